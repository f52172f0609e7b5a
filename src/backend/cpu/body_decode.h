/* Body of a rung: stored rows to fp32. Every product here is exact. */

BODY float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

BODY uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* 2^(b - 127); b = 0 is subnormal, 255 is NaN. */
BODY float ue8m0_value(uint8_t b)
{
    return float_of(b == 255 ? 0x7fc00000u : b ? (uint32_t)b << 23 : 0x400000u);
}

/* Without the sign; 0x7f is NaN. Subnormals (exponent field 0) come out of the normal formula as 2^-7 (1 + m/8), from
 * which m * 2^-9 is twice the part above 2^-7: no subnormal fp32 is touched, which some CPUs handle slowly. */
BODY float e4m3_magnitude(uint32_t b)
{
    float v = float_of(((b & 0x7f) << 20) + (120u << 23));
    float s = (v - 0x1p-7f) * 2;
    return (b & 0x78) ? v : s;
}

BODY float ue4m3_value(uint8_t b)
{
    return b == 0x7f ? float_of(0x7fc00000u) : e4m3_magnitude(b);
}

/* Bytes to the top bytes of 32-bit integers. */
BODY void widen16(i8x16 b, i32x4 *out)
{
    const i8x16 z = {0};
    i16x8       low = (i16x8)__builtin_shufflevector(z, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    i16x8 high = (i16x8)__builtin_shufflevector(z, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    out[0] = (i32x4)__builtin_shufflevector((i16x8)z, low, 0, 8, 1, 9, 2, 10, 3, 11);
    out[1] = (i32x4)__builtin_shufflevector((i16x8)z, low, 4, 12, 5, 13, 6, 14, 7, 15);
    out[2] = (i32x4)__builtin_shufflevector((i16x8)z, high, 0, 8, 1, 9, 2, 10, 3, 11);
    out[3] = (i32x4)__builtin_shufflevector((i16x8)z, high, 4, 12, 5, 13, 6, 14, 7, 15);
}

/* n <= 16 E2M1 codes (8 bytes, low nibble first) to twice their values. Magnitude codes 0..7 mean 0 1 2 3 4 6 8 12: the
 * code plus 1 above 4, 1 more above 5 and 3 more above 6. Comparisons give -1. */
BODY void e2m1_doubled(const uint8_t *src, int32_t n, i8x16 *out)
{
    int64_t word = 0;
    if (n >= 16)
        memcpy(&word, src, 8);
    else
        memcpy(&word, src, ((size_t)n + 1) / 2);
    i8x16 b = (i8x16)(i64x2){word, 0};
    i8x16 low = b & 15, high = (i8x16)((i16x8)b >> 4) & 15; /* bytes have no shift */
    i8x16 c = __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    i8x16 m = c & 7, negative = (i8x16)(c > 7);
    i8x16 d = m - (i8x16)(m > 4) - (i8x16)(m > 5) + ((i8x16)(m > 6) & 3);
    *out = (d ^ negative) - negative;
}

/* n codes of one block times its scale. Halving stays outside, for the scale may be the smallest of all. */
BODY void fp4_block(const uint8_t *codes, float scale, int32_t n, float *dst)
{
    i8x16 d;
    e2m1_doubled(codes, n, &d);
    if (n >= 16) {
        i32x4 wide[4];
        widen16(d, wide);
        for (int i = 0; i < 4; i++)
            *(f32x4_at *)(dst + 4 * i) = __builtin_convertvector(wide[i] >> 24, f32x4) * 0.5f * scale;
    } else {
        for (int32_t i = 0; i < n; i++)
            dst[i] = (float)d[i] * 0.5f * scale;
    }
}

/* 16 E4M3 codes times a scale; exponents and subnormals as in e4m3_magnitude. */
BODY void e4m3_block(const uint8_t *codes, float scale, float *dst)
{
    i8x16 b;
    i32x4 wide[4];
    memcpy(&b, codes, sizeof b);
    widen16(b, wide);
    for (int i = 0; i < 4; i++) {
        i32x4 subnormal = (i32x4)((wide[i] & 0x78000000) == 0);
        f32x4 v = (f32x4)((wide[i] >> 4 & 0x07f00000) + (120 << 23)), s = (v - 0x1p-7f) * 2;
        i32x4 bits = ((i32x4)v & ~subnormal) | ((i32x4)s & subnormal) | (wide[i] & INT32_MIN);
        *(f32x4_at *)(dst + 4 * i) = (f32x4)bits * scale;
    }
}

static void fp8_decode(const uint8_t *codes, const uint8_t *scales, int32_t n, int32_t block, float *dst)
{
    for (int32_t k = 0; k < n; k += block) {
        int32_t end = k + block < n ? k + block : n, i = k;
        float   scale = ue8m0_value(scales[k / block]);
        for (; i + 16 <= end; i += 16)
            e4m3_block(codes + i, scale, dst + i);
        for (; i < end; i++)
            dst[i] = float_of(bits_of(e4m3_magnitude(codes[i])) | (codes[i] & 0x80u) << 24) * scale;
    }
}

static void nvfp4_decode(const uint8_t *codes, const uint8_t *scales, float row_scale, int32_t n, float *dst)
{
    for (int32_t k = 0; k < n; k += 16)
        fp4_block(codes + k / 2, ue4m3_value(scales[k / 16]) * row_scale, n - k, dst + k);
}

static void fp4_decode(const uint8_t *codes, const uint8_t *scales, int32_t n, float *dst)
{
    for (int32_t k = 0; k < n; k += 16)
        fp4_block(codes + k / 2, ue8m0_value(scales[k / 32]), n - k, dst + k);
}

static void int8_decode(const uint8_t *codes, const float *scales, int32_t n, float *dst)
{
    const int8_t *q = (const int8_t *)codes;
    for (int32_t k = 0; k < n; k += 32) {
        int32_t end = k + 32 < n ? k + 32 : n;
        float   scale = scales[k / 32];
        for (int32_t i = k; i < end; i++)
            dst[i] = (float)q[i] * scale;
    }
}

static void bf16_decode(const uint16_t *src, float *dst, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)src[i] << 16;
        memcpy(dst + i, &bits, sizeof bits);
    }
}
