/* Body of the AVX2 rung: packed groups to vectors.
 *
 * A 4-bit code's fp32 value has two bytes that are not zero. Two table look-ups give them for 32 codes, an
 * interleave within 16 bytes makes 16-bit halves of them, and a shift and a mask make fp32 of the even and the odd
 * halves: 8 operations for 32 weights. So chunk c = 2 * half + odd (half of a block, odd channels), vector 2 * side + p of
 * it holds, in 16-byte part b4, blocks 4 * b4 + 2 * side and the next, channels p and p + 2 of 4 each. Blocks of `side` make
 * one chain. */

#define CHUNKS            4
#define CHAINS            2
#define CHUNK_CHAIN(c, i) ((i) / 2)
#define CHAIN_VEC(c, i)   (4 * ((i) / 2) + 2 * (c) + (i) % 2)

BODY int32_t row_channel(int32_t i)
{
    int32_t chunk = i / 32, side = i / 16 % 2, p = i / 8 % 2, part = i / 4 % 2, lane = i % 4;
    int32_t block = 4 * part + 2 * side + lane / 2, byte = 2 * (lane % 2) + p;
    return 16 * block + 8 * (chunk / 2) + 2 * byte + chunk % 2;
}

/* FP8 bytes widen within 16 bytes too: bytes 0..7 and 8..15 of a part become vectors 0 and 2, or 1 and 3 of the other. */
BODY int32_t fp8_channel(int32_t i)
{
    int32_t chunk = i / 32, vector = 2 * (i / 8 % 2) + i / 16 % 2;
    return row_channel(32 * chunk + 8 * vector + i % 8);
}

BODY int32_t bf16_channel(int32_t i) { return row_channel(16 * (i / 16) + 8 * (i % 2) + i / 2 % 8); }

BODY __m256i load32(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Nibbles of 32 bytes: the odd channels are the high ones. */
BODY __m256i nibbles_of(const uint8_t *codes, int odd)
{
    __m256i b = load32(codes);
    return _mm256_and_si256(odd ? _mm256_srli_epi16(b, 4) : b, _mm256_set1_epi8(15));
}

/* 16 bytes, the lowest first, for both 16-byte parts. */
BODY __m256i table16(uint64_t low, uint64_t high)
{
    return _mm256_set_epi64x((long long)high, (long long)low, (long long)high, (long long)low);
}

BODY void chunk_decode(const int type, const uint8_t *codes, int chunk, vec *v)
{
    const __m256i high_half = _mm256_set1_epi32((int)0xffff0000u);
    if (type == NIB_WEIGHT_BF16) {
        for (int i = 0; i < 2; i++) {
            __m256i pair = load32(codes + 64 * chunk + 32 * i);
            v[2 * i] = (vec)_mm256_slli_epi32(pair, 16);
            v[2 * i + 1] = (vec)_mm256_and_si256(pair, high_half);
        }
    } else if (type == NIB_WEIGHT_FP8) {
        /* E4M3 bits with a zero exponent bit before them are an fp16 number of 2^-8 times the value, subnormals too. */
        const __m256i zero = _mm256_setzero_si256(), clear = _mm256_set1_epi16((short)0xbfff);
        __m256i       b = load32(codes + 32 * chunk);
        __m256i       low = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpacklo_epi8(zero, b), 1), clear);
        __m256i       high = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpackhi_epi8(zero, b), 1), clear);
        v[0] = (vec)_mm256_cvtph_ps(_mm256_castsi256_si128(low));
        v[1] = (vec)_mm256_cvtph_ps(_mm256_extracti128_si256(low, 1));
        v[2] = (vec)_mm256_cvtph_ps(_mm256_castsi256_si128(high));
        v[3] = (vec)_mm256_cvtph_ps(_mm256_extracti128_si256(high, 1));
    } else {
        /* Bytes 2 and 3 of the fp32 values 0 0.5 1 1.5 2 3 4 6 and their negatives. */
        const __m256i byte2 = table16(0xc0804000c0800000, 0xc0804000c0800000);
        const __m256i byte3 = table16(0x404040403f3f3f00, 0xc0c0c0c0bfbfbf80);
        __m256i       n = nibbles_of(codes + 32 * (chunk / 2), chunk % 2);
        __m256i       b2 = _mm256_shuffle_epi8(byte2, n), b3 = _mm256_shuffle_epi8(byte3, n);
        __m256i       low = _mm256_unpacklo_epi8(b2, b3), high = _mm256_unpackhi_epi8(b2, b3);
        v[0] = (vec)_mm256_slli_epi32(low, 16);
        v[1] = (vec)_mm256_and_si256(low, high_half);
        v[2] = (vec)_mm256_slli_epi32(high, 16);
        v[3] = (vec)_mm256_and_si256(high, high_half);
    }
}

/* Scales of 8 blocks in order. UE4M3 bits put at an fp32 exponent are 2^-120 times the value, subnormals too. */
BODY __m256 block_scales(const bool mx, const uint8_t *p)
{
    if (mx) {
        int32_t four;
        memcpy(&four, p, sizeof four);
        __m128i b = _mm_cvtsi32_si128(four);
        __m256i e = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_unpacklo_epi8(b, b)), 23);
        return _mm256_castsi256_ps(_mm256_max_epi32(e, _mm256_set1_epi32(0x400000))); /* byte 0 is 2^-127 */
    }
    __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)), 20);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
}

BODY void group_scales(const int type, const uint8_t *p, vec *s)
{
    if (type == NIB_WEIGHT_BF16) {
        s[0] = s[1] = (vec)_mm256_set1_ps(1.0f);
    } else if (type == NIB_WEIGHT_FP8) {
        s[0] = s[1] = (vec)_mm256_set1_ps(ue8m0_value(*p) * 256.0f);
    } else {
        __m256 blocks = block_scales(type == NIB_WEIGHT_MXFP4, p);
        s[0] = (vec)_mm256_unpacklo_ps(blocks, blocks);
        s[1] = (vec)_mm256_unpackhi_ps(blocks, blocks);
    }
}

BODY void codes_scales(const bool mx, const uint8_t *p, vec *s) { *s = (vec)block_scales(mx, p); }

BODY void codes_decode(const uint8_t *codes, u8_vec *u)
{
    /* 12 more than 0 1 2 3 4 6 8 12 and their negatives. */
    const __m256i biased = table16(0x181412100f0e0d0c, 0x00040608090a0b0c);
    for (int i = 0; i < 4; i++)
        u[i] = (u8_vec)_mm256_shuffle_epi8(biased, nibbles_of(codes + 32 * (i / 2), i % 2));
}

/* 16-bit sums of 8 channels: at most 8 * 24 * 127 = 24384. */
typedef u8_vec code_sum;

BODY void codes_dot(code_sum *sum, const u8_vec *u, const int8_t *x)
{
    *sum = (code_sum)_mm256_add_epi16((__m256i)*sum, _mm256_maddubs_epi16((__m256i)*u, load32(x)));
}

BODY void codes_sum(const code_sum *sum, const int32_t *fix, vec *f)
{
    __m256i all = _mm256_madd_epi16((__m256i)*sum, _mm256_set1_epi16(1));
    *f = (vec)_mm256_cvtepi32_ps(_mm256_add_epi32(all, load32(fix)));
}
