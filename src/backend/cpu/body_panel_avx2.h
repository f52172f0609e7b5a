/* Body of the AVX2 rung: packed octets to vectors.
 *
 * Codes of 8 and 4 bits become fp16, which holds every such value exactly, in scratch: an interleave within 16 bytes
 * makes halves of bytes, for 4-bit codes after a look-up of the upper byte, for the lower one is 0. The load that takes
 * them from there converts them to fp32 and costs what a plain one does. 4-bit codes stand as 32 bytes of two
 * neighbouring bytes of each output, those of outputs 0 to 3 and 8 to 11 in the first 16. Chunk 0 is the low nibbles,
 * the even channels, chunk 1 the odd ones. */

#define CHUNKS              2
#define CHUNK_CHANNEL(c, i) (2 * (i) + (c))

BODY int32_t fp4_place(int32_t out, int32_t pair)
{
    return 32 * (pair / 2) + 16 * (out / 4 % 2) + 8 * (out / 8) + 2 * (out % 4) + pair % 2;
}

/* FP8 bytes widen within 16 bytes too: a part holds 8 outputs of two channels. */
BODY int32_t fp8_place(int32_t out, int32_t channel)
{
    int32_t i = channel / 2;
    return 64 * (channel % 2) + 32 * (i / 2) + 16 * (out / 8) + 8 * (i % 2) + out % 8;
}

BODY int32_t bf16_place(int32_t out, int32_t channel)
{
    return 64 * (channel % 2) + 16 * (channel / 2) + 2 * (out % 8) + out / 8;
}

BODY __m256i load32(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Nibbles of 32 bytes: the odd channels are the high ones. */
BODY __m256i nibbles_of(__m256i b, int odd)
{
    return _mm256_and_si256(odd ? _mm256_srli_epi16(b, 4) : b, _mm256_set1_epi8(15));
}

/* 16 bytes, the lowest first, for both 16-byte parts. */
BODY __m256i table16(uint64_t low, uint64_t high)
{
    return _mm256_set_epi64x((long long)high, (long long)low, (long long)high, (long long)low);
}

/* v[2 * i + side]: channel i of the chunk, outputs 8 * side and on. Only BF16 is multiplied from where it stands. */
BODY void chunk_decode(const int type, const uint8_t *codes, int chunk, vec *v)
{
    (void)type;
    UNROLL for (int i = 0; i < 4; i++)
    {
        __m256i pair = load32(codes + 128 * chunk + 32 * i);
        v[2 * i] = (vec)_mm256_slli_epi32(pair, 16);
        v[2 * i + 1] = (vec)_mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000u));
    }
}

/* Room of a decoded octet in scratch; BF16 is as good as decoded where it stands. */
#define OCTET_FLOATS(type)   (NIB_CPU_OCTET * NIB_CPU_PANEL / 2)
#define OCTET_IN_PLACE(type) ((type) == NIB_WEIGHT_BF16)

BODY void fp16_store(float *v, int j, __m256i h) { _mm256_store_si256((__m256i *)(void *)(v + 8 * j), h); }

/* Half an octet to scratch, as panel_load finds it: 4 channels. */
BODY void half_store(const int type, const int half, const uint8_t *codes, float *v)
{
    const __m256i zero = _mm256_setzero_si256();
    if (type == NIB_WEIGHT_FP8) {
        /* E4M3 bits with a zero exponent bit before them are an fp16 number of 2^-8 times the value, subnormals too. */
        UNROLL for (int i = 4 * half; i < 4 * half + 4; i++)
        {
            __m256i b = load32(codes + 32 * (i / 2));
            __m256i wide = i % 2 ? _mm256_unpackhi_epi8(zero, b) : _mm256_unpacklo_epi8(zero, b);
            fp16_store(v, i, _mm256_and_si256(_mm256_srai_epi16(wide, 1), _mm256_set1_epi16((short)0xbfff)));
        }
    } else {
        /* Upper bytes of fp16; the lower ones are 0. */
        const __m256i upper = table16(0x464442403e3c3800, 0xc6c4c2c0bebcb880);
        const __m256i apart = table16(0x0e0c0a0806040200, 0x0f0d0b0907050301);
        __m256i       b = _mm256_shuffle_epi8(load32(codes + 32 * half), apart);
        UNROLL for (int c = 0; c < 2; c++)
        {
            __m256i h = _mm256_shuffle_epi8(upper, nibbles_of(b, c));
            fp16_store(v, 4 * c + 2 * half, _mm256_unpacklo_epi8(zero, h));
            fp16_store(v, 4 * c + 2 * half + 1, _mm256_unpackhi_epi8(zero, h));
        }
    }
}

BODY void octet_store(const int type, const uint8_t *codes, float *v)
{
    half_store(type, 0, codes, v);
    half_store(type, 1, codes, v);
}

/* Vector p of the j-th channel of a block in scratch. */
BODY void panel_load(const int type, const float *v, int j, int p, vec *w)
{
    if (type == NIB_WEIGHT_BF16) {
        __m256i pair = load32(v + 8 * j);
        *w = (vec)(p ? _mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000u)) : _mm256_slli_epi32(pair, 16));
    } else
        *w = (vec)_mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(v + 8 * j + 4 * p)));
}

/* 4-bit codes come to fp16 as outputs 0 to 3 and 8 to 11, then the others: the middle two fours change places. */
BODY void panel_turn(const int type, vec *v)
{
    if (type == NIB_WEIGHT_BF16 || type == NIB_WEIGHT_FP8)
        return;
    __m256 low = _mm256_permute2f128_ps((__m256)v[0], (__m256)v[1], 0x20);
    v[1] = (vec)_mm256_permute2f128_ps((__m256)v[0], (__m256)v[1], 0x31);
    v[0] = (vec)low;
}

/* A block's scales of 16 outputs. UE4M3 bits put at an fp32 exponent are 2^-120 times the value, subnormals too. */
BODY void panel_scales_decode(const int type, const uint8_t *p, vec *s)
{
    if (type == NIB_WEIGHT_BF16) {
        s[0] = s[1] = (vec){0};
    } else if (type == NIB_WEIGHT_FP8) {
        s[0] = s[1] = (vec)_mm256_set1_ps(ue8m0_value(*p) * 256.0f);
    } else {
        UNROLL for (int i = 0; i < 2; i++)
        {
            __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + 8 * i)));
            if (type == NIB_WEIGHT_MXFP4) /* byte 0 is 2^-127 */
                s[i] = (vec)_mm256_max_epi32(_mm256_slli_epi32(b, 23), _mm256_set1_epi32(0x400000));
            else
                s[i] = (vec)_mm256_slli_epi32(b, 20) * 0x1p120f;
        }
    }
}

BODY void codes_scales(const int type, const uint8_t *p, vec *s) { panel_scales_decode(type, p, s); }

/* The codes of an octet with their bias: u[side], the even channels, u[2 + side], the odd ones; an output's four together. */
BODY void codes_decode(const uint8_t *codes, u8_vec *u)
{
    /* 12 more than 0 1 2 3 4 6 8 12 and their negatives. */
    const __m256i biased = table16(0x181412100f0e0d0c, 0x00040608090a0b0c);
    __m256i       first = load32(codes), second = load32(codes + 32);
    UNROLL for (int side = 0; side < 2; side++)
    {
        __m256i b = side ? _mm256_unpackhi_epi16(first, second) : _mm256_unpacklo_epi16(first, second);
        u[side] = (u8_vec)_mm256_shuffle_epi8(biased, nibbles_of(b, 0));
        u[2 + side] = (u8_vec)_mm256_shuffle_epi8(biased, nibbles_of(b, 1));
    }
}

/* 16-bit sums of 8 channels: at most 8 * 24 * 127 = 24384. */
typedef u8_vec code_sum;

/* Sums of 16 bits have no room for the row's fix: it comes at the end. */
BODY void codes_start(code_sum *sum, int32_t fix)
{
    (void)fix;
    *sum = (code_sum){0};
}

/* Four channels of a row meet those of each output. */
BODY void codes_dot(code_sum *sum, const u8_vec *u, const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    *sum = (code_sum)_mm256_add_epi16((__m256i)*sum, _mm256_maddubs_epi16((__m256i)*u, _mm256_set1_epi32(four)));
}

BODY void codes_sum(const code_sum *sum, int32_t fix, vec *f)
{
    __m256i all = _mm256_madd_epi16((__m256i)*sum, _mm256_set1_epi16(1));
    *f = (vec)_mm256_add_epi32(all, _mm256_set1_epi32(fix));
}
