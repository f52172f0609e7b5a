/* Body of the AVX2 and AVX-512 rungs: stored rows to fp32 through fp16, which holds every E2M1 and E4M3 value exactly. */

/* 8 fp16 numbers times two factors, one after the other. */
BODY void fp16_scaled(__m128i h, __m256 a, __m256 b, float *dst)
{
    _mm256_storeu_ps(dst, _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtph_ps(h), a), b));
}

/* E4M3 bits with a zero exponent bit before them are an fp16 number of 2^-8 times the value, subnormals too. */
BODY void e4m3_row16(const uint8_t *codes, __m256 scale, float *dst)
{
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)codes));
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff));
    __m256  unit = _mm256_set1_ps(256.0f); /* apart from the scale, with which it could overflow */
    fp16_scaled(_mm256_castsi256_si128(half), unit, scale, dst);
    fp16_scaled(_mm256_extracti128_si256(half, 1), unit, scale, dst + 8);
}

static void fp8_row_decode(const uint8_t *codes, const uint8_t *scales, int32_t n, int32_t block, float *dst)
{
    for (int32_t k = 0; k < n; k += block) {
        int32_t end = k + block < n ? k + block : n, i = k;
        __m256  scale = _mm256_set1_ps(ue8m0_value(scales[k / block]));
        for (; i + 16 <= end; i += 16)
            e4m3_row16(codes + i, scale, dst + i);
        for (; i < end; i++)
            dst[i] = float_of(bits_of(e4m3_magnitude(codes[i])) | (codes[i] & 0x80u) << 24) * _mm256_cvtss_f32(scale);
    }
}

/* 32 E2M1 codes to the upper bytes of their fp16 values, whose lower ones are 0: in order in two registers. */
BODY void e2m1_upper32(const uint8_t *codes, __m128i *out)
{
    const __m128i upper = _mm_set_epi64x((long long)0xc6c4c2c0bebcb880, 0x464442403e3c3800);
    const __m128i low = _mm_set1_epi8(15);
    __m128i       b = _mm_loadu_si128((const __m128i *)codes);
    __m128i       even = _mm_shuffle_epi8(upper, _mm_and_si128(b, low));
    __m128i       odd = _mm_shuffle_epi8(upper, _mm_and_si128(_mm_srli_epi16(b, 4), low));
    out[0] = _mm_unpacklo_epi8(even, odd);
    out[1] = _mm_unpackhi_epi8(even, odd);
}

/* 16 of them times a scale. */
BODY void e2m1_row16(__m128i upper, __m256 scale, float *dst)
{
    const __m128i zero = _mm_setzero_si128();
    _mm256_storeu_ps(dst, _mm256_mul_ps(_mm256_cvtph_ps(_mm_unpacklo_epi8(zero, upper)), scale));
    _mm256_storeu_ps(dst + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm_unpackhi_epi8(zero, upper)), scale));
}

/* 8 UE4M3 scales times the row's: bits put at an fp32 exponent are 2^-120 times the value, subnormals too. 0x7f is NaN. */
BODY void ue4m3_scales8(const uint8_t *scales, float row_scale, float *dst)
{
    const __m256i nan = _mm256_set1_epi32(0x7f << 20);
    __m256i       bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)scales)), 20);
    __m256        value = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
    value = _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, nan)));
    _mm256_storeu_ps(dst, _mm256_mul_ps(value, _mm256_set1_ps(row_scale)));
}

static void nvfp4_row_decode(const uint8_t *codes, const uint8_t *scales, float row_scale, int32_t n, float *dst)
{
    int32_t k = 0;
    for (; k + 128 <= n; k += 128) {
        float scale[8];
        ue4m3_scales8(scales + k / 16, row_scale, scale);
        UNROLL for (int i = 0; i < 4; i++)
        {
            __m128i upper[2];
            e2m1_upper32(codes + k / 2 + 16 * i, upper);
            e2m1_row16(upper[0], _mm256_set1_ps(scale[2 * i]), dst + k + 32 * i);
            e2m1_row16(upper[1], _mm256_set1_ps(scale[2 * i + 1]), dst + k + 32 * i + 16);
        }
    }
    for (; k + 32 <= n; k += 32) {
        __m128i upper[2];
        e2m1_upper32(codes + k / 2, upper);
        for (int i = 0; i < 2; i++)
            e2m1_row16(upper[i], _mm256_set1_ps(ue4m3_value(scales[k / 16 + i]) * row_scale), dst + k + 16 * i);
    }
    for (; k < n; k += 16)
        fp4_block(codes + k / 2, ue4m3_value(scales[k / 16]) * row_scale, n - k, dst + k);
}

static void fp4_row_decode(const uint8_t *codes, const uint8_t *scales, int32_t n, float *dst)
{
    int32_t k = 0;
    for (; k + 32 <= n; k += 32) {
        __m128i upper[2];
        __m256  scale = _mm256_set1_ps(ue8m0_value(scales[k / 32]));
        e2m1_upper32(codes + k / 2, upper);
        e2m1_row16(upper[0], scale, dst + k);
        e2m1_row16(upper[1], scale, dst + k + 16);
    }
    for (; k < n; k += 16)
        fp4_block(codes + k / 2, ue8m0_value(scales[k / 32]), n - k, dst + k);
}
