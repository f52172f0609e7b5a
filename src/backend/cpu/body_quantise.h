/* Body of a rung: fp32 to stored formats, bit-exact to the formulas beside struct nib_act. */

BODY uint16_t bf16_bits(float x)
{
    uint32_t u = bits_of(x);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    uint32_t quiet = (u >> 16) | 0x40;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

static void bf16_encode(const float *src, uint16_t *dst, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        dst[i] = bf16_bits(src[i]);
}

static void bf16_round(float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)bf16_bits(x[i]) << 16;
        memcpy(x + i, &bits, sizeof bits);
    }
}

/* Largest bit pattern of |x|: magnitudes order as integers, and NaN and Inf come out at 0x7f800000 or above. */
BODY uint32_t max_magnitude_bits(const float *x, int32_t n)
{
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t b = (int32_t)(bits_of(x[i]) & 0x7fffffff);
        m = b > m ? b : m;
    }
    return (uint32_t)m;
}

#define NOT_FINITE 0x7f800000u

/* Smallest e with v <= 2^e, v normal. */
BODY int32_t ceil_log2(float v)
{
    uint32_t u = bits_of(v);
    return (int32_t)(u >> 23) - 127 + ((u & 0x7fffff) != 0);
}

/* To nearest, ties to even, |x| <= 448. Below 2^-6 codes are multiples of 2^-9, and the code that rounds up to 8 is
 * the smallest normal number. */
BODY uint8_t e4m3_bits(float x)
{
    uint32_t u = bits_of(x), m = u & 0x7fffffff;
    float    small = float_of(m) * 512.0f + 8388608.0f; /* 2^23: the sum's low bits hold the rounded integer */
    uint32_t normal = ((m + 0x7ffff + ((m >> 20) & 1)) >> 20) - (120u << 3);
    uint32_t code = m < 0x3c800000 ? bits_of(small) & 0xff : normal;
    return (uint8_t)(code | (u >> 31) << 7);
}

/* To nearest, ties to the even code, saturating: the code is the number of thresholds passed. */
BODY uint8_t e2m1_bits(float x)
{
    float a = fabsf(x);
    int   code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)((uint32_t)code | (bits_of(x) >> 31) << 3);
}

BODY float clamped(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

static void fp8_encode(const float *x, int32_t n, int32_t block, uint8_t *codes, uint8_t *scales)
{
    for (int32_t k = 0; k < n; k += block) {
        int32_t  len = k + block < n ? block : n - k;
        uint32_t top = max_magnitude_bits(x + k, len);
        if (top >= NOT_FINITE) {
            scales[k / block] = 255;
            memset(codes + k, 0, (size_t)len);
            continue;
        }
        float   amax = float_of(top) > 1e-4f ? float_of(top) : 1e-4f;
        int32_t e = ceil_log2(amax * (1.0f / 448));
        /* Multiplying by 2^-e is the division: both are exact unless the quotient is subnormal, where it is 0. */
        float inverse = float_of((uint32_t)(127 - e) << 23);
        scales[k / block] = (uint8_t)(e + 127);
        for (int32_t i = k; i < k + len; i++)
            codes[i] = e4m3_bits(clamped(x[i] * inverse, 448.0f));
    }
}

/* 16 codes; a row's last block may have fewer channels, and an odd one leaves a zero nibble. */
BODY void e2m1_block(const float *x, float divisor, int32_t n, uint8_t *codes)
{
    uint8_t c[16] = {0};
    if (n >= 16)
        for (int i = 0; i < 16; i++)
            c[i] = e2m1_bits(x[i] / divisor);
    else
        for (int32_t i = 0; i < n; i++)
            c[i] = e2m1_bits(x[i] / divisor);
    for (int32_t i = 0; i < 8 && 2 * i < n; i++)
        codes[i] = (uint8_t)(c[2 * i] | c[2 * i + 1] << 4);
}

static void nvfp4_encode(const float *x, int32_t n, uint8_t *codes, uint8_t *scales, float *row_scale)
{
    uint32_t top = max_magnitude_bits(x, n);
    float    g = top >= NOT_FINITE ? float_of(0x7fc00000u) : float_of(top) / 2688.0f;
    *row_scale = g;
    memset(codes, 0, ((size_t)n + 1) / 2);
    memset(scales, 0, ((size_t)n + 15) / 16);
    if (!(g > 0))
        return;
    for (int32_t k = 0; k < n; k += 16) {
        int32_t len = n - k < 16 ? n - k : 16;
        float   s = float_of(max_magnitude_bits(x + k, len)) / 6.0f / g;
        uint8_t code = e4m3_bits(s < 448.0f ? s : 448.0f);
        float   divisor = e4m3_magnitude(code) * g;
        scales[k / 16] = code;
        if (divisor > 0)
            e2m1_block(x + k, divisor, len, codes + k / 2);
    }
}

static void fp4_encode(const float *x, int32_t n, uint8_t *codes, uint8_t *scales)
{
    for (int32_t k = 0; k < n; k += 32) {
        int32_t  len = n - k < 32 ? n - k : 32;
        uint32_t top = max_magnitude_bits(x + k, len);
        if (top >= NOT_FINITE) {
            scales[k / 32] = 255;
            memset(codes + k / 2, 0, ((size_t)len + 1) / 2);
            continue;
        }
        float   amax = float_of(top) > 6 * 0x1p-126f ? float_of(top) : 6 * 0x1p-126f;
        int32_t e = ceil_log2(amax * (1.0f / 6));
        scales[k / 32] = (uint8_t)(e + 127);
        for (int32_t i = 0; i < len; i += 16)
            e2m1_block(x + k + i, float_of((uint32_t)(e + 127) << 23), len - i, codes + (k + i) / 2);
    }
}

static void int8_encode(const float *x, int32_t n, uint8_t *codes, float *scales)
{
    for (int32_t k = 0; k < n; k += 32) {
        int32_t  len = k + 32 < n ? 32 : n - k;
        uint32_t top = max_magnitude_bits(x + k, len);
        float    s = top >= NOT_FINITE ? float_of(0x7fc00000u) : float_of(top) / 127.0f;
        scales[k / 32] = s;
        memset(codes + k, 0, (size_t)len);
        if (!(s > 0))
            continue;
        for (int32_t i = k; i < k + len; i++)
            /* The quotient is at most 127 and a rounding error; adding 1.5 * 2^23 rounds it to the nearest even.
             * A subnormal s can be so coarse that the quotient leaves the range. */
            codes[i] = (uint8_t)bits_of(clamped(x[i] / s, 127.0f) + 12582912.0f);
    }
}
