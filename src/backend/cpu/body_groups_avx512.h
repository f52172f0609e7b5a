/* Body of the AVX-512 rungs: packed groups to vectors. The 64 bytes of a group are 16 lanes of 8 codes, first halves of the
 * 8 blocks and then second ones; vector n of the group is each lane's channel n, which one look-up in a table of 16 fp32
 * values gives. One chain, whose lanes are half blocks. */

#define CHUNKS            1
#define CHAINS            1
#define CHUNK_CHAIN(c, i) 0
#define CHAIN_VEC(c, i)   (i)

BODY int32_t row_channel(int32_t i) { return 16 * (i % 8) + 8 * (i / 8 % 2) + i / 16; }

BODY int32_t fp8_channel(int32_t i) { return row_channel(i); }
BODY int32_t bf16_channel(int32_t i) { return row_channel(32 * (i / 32) + 16 * (i % 2) + i / 2 % 16); }

BODY __m512i load64(const void *p) { return _mm512_loadu_si512(p); }

BODY void chunk_decode(const int type, const uint8_t *codes, int chunk, vec *v)
{
    (void)chunk;
    if (type == NIB_WEIGHT_BF16) {
        UNROLL for (int i = 0; i < 4; i++)
        {
            __m512i pair = load64(codes + 64 * i);
            v[2 * i] = (vec)_mm512_slli_epi32(pair, 16);
            v[2 * i + 1] = (vec)_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000u));
        }
    } else if (type == NIB_WEIGHT_FP8) {
        /* E4M3 bits with a zero exponent bit before them are an fp16 number of 2^-8 times the value, subnormals too. */
        UNROLL for (int i = 0; i < 8; i++)
        {
            __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(codes + 16 * i)));
            b = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 1);
            v[i] = (vec)_mm512_cvtph_ps(_mm256_and_si256(b, _mm256_set1_epi16((short)0xbfff)));
        }
    } else {
        const __m512 value = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
        __m512i      b = load64(codes);
        UNROLL for (int i = 0; i < 8; i++)
            v[i] = (vec)_mm512_permutexvar_ps(_mm512_srli_epi32(b, 4 * (unsigned)i), value); /* low 4 bits count */
    }
}

/* fp32 of 16 scale bytes. UE4M3 bits put at an fp32 exponent are 2^-120 times the value, subnormals too. */
BODY __m512 scales_of(const bool mx, __m128i bytes)
{
    __m512i wide = _mm512_cvtepu8_epi32(bytes);
    if (mx) /* byte 0 is 2^-127 */
        return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(wide, 23), _mm512_set1_epi32(0x400000)));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 20)), _mm512_set1_ps(0x1p120f));
}

BODY void group_scales(const int type, const uint8_t *p, vec *s)
{
    if (type == NIB_WEIGHT_BF16) {
        s[0] = (vec)_mm512_set1_ps(1.0f);
    } else if (type == NIB_WEIGHT_FP8) {
        s[0] = (vec)_mm512_set1_ps(ue8m0_value(*p) * 256.0f);
    } else {
        __m128i b;
        if (type == NIB_WEIGHT_MXFP4) {
            int32_t four;
            memcpy(&four, p, sizeof four);
            b = _mm_cvtsi32_si128(four);
            b = _mm_unpacklo_epi8(b, b);
        } else {
            b = _mm_loadl_epi64((const __m128i *)(const void *)p);
        }
        s[0] = (vec)scales_of(type == NIB_WEIGHT_MXFP4, _mm_unpacklo_epi64(b, b));
    }
}

/* A step is two groups, 16 blocks. */
BODY void codes_scales(const bool mx, const uint8_t *p, vec *s)
{
    __m128i b;
    if (mx) {
        b = _mm_loadl_epi64((const __m128i *)(const void *)p);
        b = _mm_unpacklo_epi8(b, b);
    } else {
        b = _mm_loadu_si128((const __m128i *)(const void *)p);
    }
    *s = (vec)scales_of(mx, b);
}

BODY void codes_decode(const uint8_t *codes, u8_vec *u)
{
    /* 12 more than 0 1 2 3 4 6 8 12 and their negatives. */
    const __m512i biased = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i low = _mm512_set1_epi8(15);
    __m512i       a = load64(codes), b = load64(codes + 64);
    __m512i       half[2] = {_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee)};
    UNROLL for (int i = 0; i < 2; i++)
    {
        u[2 * i] = (u8_vec)_mm512_shuffle_epi8(biased, _mm512_and_si512(half[i], low));
        u[2 * i + 1] = (u8_vec)_mm512_shuffle_epi8(biased, _mm512_and_si512(_mm512_srli_epi16(half[i], 4), low));
    }
}
