/* In the place of the file of this name in src/: the block-scaled product of a warp without the instruction, so that
 * what stands around it runs on cards that lack it. Operands are gathered lane by lane as the ISA's tables place them;
 * the sum is exact but for its rounding. Slow. */
#ifndef NIB_MMA_SM120A_CUH
#define NIB_MMA_SM120A_CUH

#include <stdint.h>

static __device__ __forceinline__ float emulated_e2m1(uint32_t code)
{
    uint32_t m = code & 7u;
    float    v = m < 2 ? 0.5f * (float)m : __uint_as_float((126u << 23) + (m << 22));
    return code & 8u ? -v : v;
}

static __device__ __forceinline__ float emulated_ue4m3(uint32_t byte)
{
    uint32_t m = byte & 0x7fu;
    if (m == 0x7fu)
        return __uint_as_float(0x7fc00000u);
    return m < 8 ? (float)m * (1.0f / 512.0f) : __uint_as_float((m << 20) + (120u << 23));
}

/* The sum of eight products of codes: a multiple of 0.25 below 2^9, exact. */
static __device__ __forceinline__ float emulated_dot8(uint32_t a, uint32_t b)
{
    float sum = 0;
    for (int i = 0; i < 32; i += 4)
        sum += emulated_e2m1(a >> i) * emulated_e2m1(b >> i);
    return sum;
}

static __device__ __noinline__ void nib_mma_nvfp4_warp(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                                       uint32_t scale_a, uint32_t scale_b)
{
    int      lane = (int)threadIdx.x % 32, g = lane / 4, l = lane % 4;
    double   sum[4] = {d[0], d[1], d[2], d[3]};
    uint32_t row_scale[2] = {__shfl_sync(~0u, scale_a, 4 * g), __shfl_sync(~0u, scale_a, 4 * g + 1)};
    for (int column = 0; column < 2; column++) {
        uint32_t column_scale = __shfl_sync(~0u, scale_b, 4 * (2 * l + column));
        for (int q = 0; q < 4; q++) { /* lanes of the quads that hold the row and the column */
            uint32_t b[2] = {__shfl_sync(~0u, b0, 4 * (2 * l + column) + q),
                             __shfl_sync(~0u, b1, 4 * (2 * l + column) + q)};
            for (int i = 0; i < 4; i++) { /* a_i: row g + 8 (i & 1), k = 8 q + 32 (i >> 1) */
                uint32_t v = __shfl_sync(~0u, a[i], 4 * g + q);
                int      block = q / 2 + i / 2 * 2;
                float scale = emulated_ue4m3(row_scale[i % 2] >> 8 * block) * emulated_ue4m3(column_scale >> 8 * block);
                sum[i % 2 * 2 + column] += (double)emulated_dot8(v, b[i / 2]) * (double)scale;
            }
        }
    }
    for (int i = 0; i < 4; i++)
        d[i] = (float)sum[i];
}

static __device__ __forceinline__ float emulated_e4m3(uint32_t byte)
{
    float v = emulated_ue4m3(byte);
    return byte & 0x80u ? -v : v;
}

static __device__ __forceinline__ double emulated_ue8m0(uint32_t byte)
{
    return byte == 255 ? (double)__uint_as_float(0x7fc00000u) : __longlong_as_double((long long)(byte + 896) << 52);
}

template <bool FP8>
static __device__ __noinline__ void nib_mma_mx_warp(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                                    uint32_t scale_a, uint32_t scale_b, int step)
{
    int      lane = (int)threadIdx.x % 32, g = lane / 4, l = lane % 4;
    double   sum[4] = {};
    uint32_t row_scale[2] = {__shfl_sync(~0u, scale_a, 4 * g), __shfl_sync(~0u, scale_a, 4 * g + 1)};
    for (int column = 0; column < 2; column++) {
        uint32_t column_scale = __shfl_sync(~0u, scale_b, 4 * (2 * l + column));
        for (int q = 0; q < 4; q++) {
            uint32_t b[2] = {__shfl_sync(~0u, b0, 4 * (2 * l + column) + q),
                             __shfl_sync(~0u, b1, 4 * (2 * l + column) + q)};
            for (int i = 0; i < 4; i++) { /* a_i: row g + 8 (i & 1), k = 4 q + 16 (i >> 1) */
                uint32_t v = __shfl_sync(~0u, a[i], 4 * g + q);
                for (int k = 0; k < 32; k += 8)
                    sum[i % 2 * 2 + column] +=
                        (double)(FP8 ? emulated_e4m3(v >> k & 255u) : emulated_e2m1(v >> (k + 2) & 15u)) *
                        (double)emulated_e4m3(b[i / 2] >> k & 255u);
            }
        }
        for (int row = 0; row < 2; row++)
            sum[row * 2 + column] *=
                emulated_ue8m0(row_scale[row] >> 8 * step & 255u) * emulated_ue8m0(column_scale & 255u);
    }
    for (int i = 0; i < 4; i++)
        d[i] = (float)((double)d[i] + sum[i]);
}

template <int byte>
static __device__ __noinline__ void nib_mma_mxf4_warp(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                                      uint32_t scale_a, uint32_t scale_b)
{
    int      lane = (int)threadIdx.x % 32, g = lane / 4, l = lane % 4;
    double   sum[4] = {d[0], d[1], d[2], d[3]};
    uint32_t row_scale[2] = {__shfl_sync(~0u, scale_a, 4 * g), __shfl_sync(~0u, scale_a, 4 * g + 1)};
    for (int column = 0; column < 2; column++) {
        uint32_t column_scale = __shfl_sync(~0u, scale_b, 4 * (2 * l + column));
        for (int q = 0; q < 4; q++) {
            uint32_t b[2] = {__shfl_sync(~0u, b0, 4 * (2 * l + column) + q),
                             __shfl_sync(~0u, b1, 4 * (2 * l + column) + q)};
            for (int i = 0; i < 4; i++) { /* as above; k up to 31 has the first scale */
                uint32_t v = __shfl_sync(~0u, a[i], 4 * g + q);
                int      at = 8 * (byte + i / 2);
                double   scale = emulated_ue8m0(row_scale[i % 2] >> at & 255u) *
                               emulated_ue8m0(column_scale >> at & 255u);
                sum[i % 2 * 2 + column] += (double)emulated_dot8(v, b[i / 2]) * scale;
            }
        }
    }
    for (int i = 0; i < 4; i++)
        d[i] = (float)sum[i];
}

#endif
