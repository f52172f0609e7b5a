/* The formats of src/number/ on the device, bit for bit: same roundings, same thresholds, true divisions. The tree is
 * compiled with -fmad=false, so a product and a sum are two roundings unless fmaf is written. */
#ifndef NIB_CUDA_NUMBERS_CUH
#define NIB_CUDA_NUMBERS_CUH

#include <math.h>
#include <stdint.h>

#define NIB_DEVICE static __device__ __forceinline__

NIB_DEVICE bool nib_is_finite(float v)
{
    return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u;
}

/* ---- bf16 ---- */

NIB_DEVICE float nib_bf16_value(uint32_t h)
{
    return __uint_as_float(h << 16);
}

NIB_DEVICE uint16_t nib_bf16_code(float v)
{
    uint32_t u = __float_as_uint(v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

NIB_DEVICE float nib_bf16_rounded(float v)
{
    return nib_bf16_value(nib_bf16_code(v));
}

/* ---- e2m1 ---- */

NIB_DEVICE float nib_e2m1_value(uint32_t code)
{
    uint32_t m = code & 7u; /* 0 0.5 1 1.5 2 3 4 6: the float of (exponent, mantissa), subnormal below 1 */
    float    v = m < 2 ? 0.5f * (float)m : __uint_as_float((126u << 23) + (m << 22));
    return __uint_as_float(__float_as_uint(v) | (code & 8u) << 28);
}

NIB_DEVICE uint32_t nib_e2m1_code(float v)
{
    uint32_t u = __float_as_uint(v);
    float    a = fabsf(v);
    uint32_t code = (uint32_t)!(a <= 0.25f) + (uint32_t)!(a < 0.75f) + (uint32_t)!(a <= 1.25f) +
                    (uint32_t)!(a < 1.75f) + (uint32_t)!(a <= 2.5f) + (uint32_t)!(a < 3.5f) + (uint32_t)!(a <= 5.0f);
    return (u >> 28 & 8u) | code;
}

/* ---- e4m3 ---- */

NIB_DEVICE float nib_e4m3_value(uint32_t code)
{
    uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7fu;
    if (magnitude == 0x7fu)
        return __uint_as_float(sign | 0x7fc00000u);
    if (magnitude < 8)
        return __uint_as_float(sign | __float_as_uint((float)magnitude * (1.0f / 512.0f)));
    return __uint_as_float(sign | ((magnitude << 20) + (120u << 23)));
}

NIB_DEVICE uint32_t nib_e4m3_code(float v)
{
    uint32_t u = __float_as_uint(v), sign = u >> 24 & 0x80u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return 0x7fu;
    if (magnitude >= 0x43e00000u) /* 448 */
        return sign | 0x7eu;
    if (magnitude >= 0x3c800000u) { /* 2^-6, the smallest normal */
        magnitude += 0x7ffffu + (magnitude >> 20 & 1u);
        return sign | ((magnitude >> 20) - (120u << 3));
    }
    float steps = __uint_as_float(magnitude) * 512.0f + 8388608.0f;
    return sign | (__float_as_uint(steps) & 0xfu);
}

/* ---- e8m0 ---- */

NIB_DEVICE float nib_e8m0_value(uint32_t b)
{
    if (b == 0)
        return __uint_as_float(0x00400000u);
    return b == 255 ? __uint_as_float(0x7fc00000u) : __uint_as_float(b << 23);
}

NIB_DEVICE uint32_t nib_e8m0_ceil_code(float v)
{
    uint32_t u = __float_as_uint(v);
    int32_t  b = (int32_t)(u >> 23 & 255u) + ((u & 0x7fffffu) != 0);
    return (uint32_t)(b > 254 ? 254 : b);
}

/* ---- Blocks, one thread each ---- */

NIB_DEVICE uint32_t nib_absmax_bits(const float *x, int32_t n)
{
    uint32_t most = 0;
    for (int32_t i = 0; i < n; i++)
        most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
    return most;
}

/* codes[i / 2] of n values divided by d; the last high nibble of an odd n is zero. */
NIB_DEVICE void nib_e2m1_block_pack(const float *x, int32_t n, float d, uint8_t *codes)
{
    for (int32_t i = 0; i < n; i += 2) {
        uint32_t high = i + 1 < n ? nib_e2m1_code(x[i + 1] / d) : 0;
        codes[i / 2] = (uint8_t)(nib_e2m1_code(x[i] / d) | high << 4);
    }
}

/* One block of NVFP4 under the row scale g >= 0, finite values: codes, and the scale byte as result. */
NIB_DEVICE uint8_t nib_nvfp4_block_pack(const float *x, int32_t n, float g, uint8_t *codes)
{
    uint32_t scale = 0;
    float    d = 0;
    if (g > 0) {
        float s = __uint_as_float(nib_absmax_bits(x, n)) / 6.0f / g;
        scale = nib_e4m3_code(s < 448.0f ? s : 448.0f);
        d = nib_e4m3_value(scale) * g;
    }
    if (d > 0) {
        nib_e2m1_block_pack(x, n, d, codes);
    } else {
        for (int32_t i = 0; i < (n + 1) / 2; i++)
            codes[i] = 0;
    }
    return (uint8_t)scale;
}

#endif
