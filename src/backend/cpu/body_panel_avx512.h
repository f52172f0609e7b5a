/* Body of the AVX-512 rungs: packed octets to vectors. Of 4-bit codes a 32-bit lane is the 8 codes of an output, and one look-up
 * in a table of 16 fp32 values makes a vector of one channel. */

#define CHUNKS              1
#define CHUNK_CHANNEL(c, i) (i)

BODY int32_t fp4_place(int32_t out, int32_t pair) { return 4 * out + pair; }
/* Of four channels two and two are the halves of 16-bit words, so that 32 outputs become fp16 together. */
BODY int32_t fp8_place(int32_t out, int32_t channel)
{
    return 64 * (channel / 4) + 32 * (channel % 2) + 2 * out + channel / 2 % 2;
}
BODY int32_t bf16_place(int32_t out, int32_t channel) { return 32 * (channel / 2) + 2 * out + channel % 2; }

BODY __m512i load64(const void *p) { return _mm512_loadu_si512(p); }

/* Four channels of E4M3 codes to fp16 of 2^-8 times their values, subnormals too: a zero exponent bit comes between the
 * sign and the rest. h[0]: channels 0 and 1 of 16 outputs, h[1]: 2 and 3. */
BODY void fp8_halves(const uint8_t *codes, __m512i *h)
{
    const __m512i bits = _mm512_set1_epi16((short)0xbf80);
    __m512i       b = load64(codes);
    h[0] = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(b, 8), 1), bits);
    h[1] = _mm512_and_si512(_mm512_srai_epi16(b, 1), bits);
}

/* v[i]: channel i of 16 outputs. */
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
        UNROLL for (int i = 0; i < 2; i++)
        {
            __m512i h[2];
            fp8_halves(codes + 64 * i, h);
            UNROLL for (int j = 0; j < 2; j++)
            {
                v[4 * i + 2 * j] = (vec)_mm512_cvtph_ps(_mm512_castsi512_si256(h[j]));
                v[4 * i + 2 * j + 1] = (vec)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(h[j], 1));
            }
        }
    } else {
        const __m512 value = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
        __m512i      b = load64(codes);
        UNROLL for (int i = 0; i < 8; i++)
            v[i] = (vec)_mm512_permutexvar_ps(_mm512_srli_epi32(b, 4 * (unsigned)i), value); /* low 4 bits count */
    }
}

/* A block's scales of 16 outputs. UE4M3 bits put at an fp32 exponent are 2^-120 times the value, subnormals too. */
BODY void panel_scales_decode(const int type, const uint8_t *p, vec *s)
{
    if (type == NIB_WEIGHT_BF16) {
        *s = (vec){0};
    } else if (type == NIB_WEIGHT_FP8) {
        *s = (vec){0} + ue8m0_value(*p) * 256.0f;
    } else {
        __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
        if (type == NIB_WEIGHT_MXFP4) /* byte 0 is 2^-127 */
            *s = (vec)_mm512_max_epi32(_mm512_slli_epi32(wide, 23), _mm512_set1_epi32(0x400000));
        else
            *s = (vec)_mm512_slli_epi32(wide, 20) * 0x1p120f;
    }
}

BODY void codes_scales(const int type, const uint8_t *p, vec *s) { panel_scales_decode(type, p, s); }

/* The codes of an octet with their bias: u[0], the even channels, u[1], the odd ones; an output's four together. */
BODY void codes_decode(const uint8_t *codes, u8_vec *u)
{
    /* 12 more than 0 1 2 3 4 6 8 12 and their negatives. */
    const __m512i biased = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i low = _mm512_set1_epi8(15);
    __m512i       b = load64(codes);
    u[0] = (u8_vec)_mm512_shuffle_epi8(biased, _mm512_and_si512(b, low));
    u[1] = (u8_vec)_mm512_shuffle_epi8(biased, _mm512_and_si512(_mm512_srli_epi16(b, 4), low));
}
