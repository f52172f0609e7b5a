/* What finished sums of NVFP4 products are multiplied by. */
#ifndef NIB_CUDA_FACTORS_CUH
#define NIB_CUDA_FACTORS_CUH

#include "backend/cuda/device/numbers.cuh"

/* row scale * alpha as two factors that neither overflow nor underflow against sums of any size, where their product
 * might. */
NIB_DEVICE float2 nib_factors(float row_scale, float alpha)
{
    double   t = (double)row_scale * (double)alpha; /* never subnormal: both are fp32 */
    uint64_t u = (uint64_t)__double_as_longlong(t);
    int32_t  e = (int32_t)(u >> 52 & 0x7ff) - 1023;
    if (e == -1023 || e == 1024) /* zero, Inf, NaN */
        return make_float2((float)t, 1.0f);
    /* Sums are multiples of 2^-20 and below 2^60, so beyond these exponents every result is zero or Inf anyway. */
    e = min(max(e, -250), 254);
    int32_t first = e / 2;
    double  mantissa = __longlong_as_double((long long)((u & ~(0x7ffull << 52)) | 1023ull << 52));
    return make_float2((float)mantissa * __uint_as_float((uint32_t)(127 + first) << 23),
                       __uint_as_float((uint32_t)(127 + e - first) << 23));
}

#endif
