/* Rows of NVFP4 from values in shared memory, by a block of kRowThreads threads a row, with Blackwell's conversions to
 * E4M3 and E2M1: the values they get are those of the definition (src/number/act_rows.h), true divisions included, so
 * codes and scales are the same bits. Where scales stand differs by card. */
#ifndef NIB_CUDA_NVFP4_ROWS_CUH
#define NIB_CUDA_NVFP4_ROWS_CUH

#include "backend/cuda/device/e2m1.cuh"
#include "backend/cuda/device/rows.cuh"

constexpr int kRowThreads = 256;
constexpr int kNvfp4Block = 16; /* values that share a scale */

/* The E4M3 byte of v >= 0; NaN gives 0x7f. */
NIB_DEVICE uint32_t nib_e4m3_of(float v)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(v));
    return pair & 0xffu;
}

/* One block under the row's scale g; returns the scale byte. */
NIB_DEVICE uint32_t nib_nvfp4_block(const float *x, float g, uint2 *codes)
{
    float most = __uint_as_float(nib_absmax_bits(x, kNvfp4Block)), s = g > 0 ? most / 6.0f / g : 0.0f;
    *codes = make_uint2(0, 0);
    if (!(g > 0))
        return 0;
    uint32_t scale = nib_e4m3_of(s < 448.0f ? s : 448.0f);
    float    d = nib_e4m3_value(scale) * g;
    if (!(d > 0))
        return scale;
    float v[kNvfp4Block];
#pragma unroll
    for (int i = 0; i < kNvfp4Block; i++)
        v[i] = x[i] / d;
    *codes = make_uint2(nib_e2m1_of(v), nib_e2m1_of(v + 8));
    return scale;
}

/* A row of n_in values x, a multiple of 16, visible to all threads. Four scales of a row are one word, words `step`
 * bytes apart from `scales` on; blocks behind the row's end, up to n_padded (a multiple of 4), get 0. max_buffer
 * [32]. */
NIB_DEVICE void nib_nvfp4_row_encode(const float *x, int32_t n_in, uint8_t *codes, uint8_t *scales, int step,
                                     int32_t n_padded, float *row_scale, uint32_t *max_buffer)
{
    uint32_t most = 0;
    for (int32_t i = threadIdx.x; i < n_in; i += kRowThreads)
        most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
    float amax = __uint_as_float(nib_block_max_u32(most, max_buffer));
    bool  finite = nib_is_finite(amax);
    float g = finite ? amax / 2688.0f : __uint_as_float(0x7fc00000u);
    if (threadIdx.x == 0)
        *row_scale = g;
    for (int32_t first = 0; first < n_padded; first += kRowThreads) { /* whole warps, for the exchange */
        int32_t  b = first + (int32_t)threadIdx.x;
        uint32_t scale = 0;
        if (b < n_in / kNvfp4Block) {
            uint2 pair;
            scale = nib_nvfp4_block(x + b * kNvfp4Block, finite ? g : 0.0f, &pair);
            *(uint2 *)(codes + b * 8) = pair;
        }
        uint32_t word = scale << 8 * (b % 4); /* the four lanes' bytes together: one store a word */
        word |= __shfl_xor_sync(~0u, word, 1);
        word |= __shfl_xor_sync(~0u, word, 2);
        if (b % 4 == 0 && b < n_padded)
            *(uint32_t *)(scales + b / 4 * step) = word;
    }
}

/* x as row `row` of m; what is quantised then is what was stored. */
NIB_DEVICE void nib_row_store_plain(const struct nib_mat &m, int64_t row, float *x, int32_t n_in)
{
    for (int32_t i = threadIdx.x; i < n_in; i += kRowThreads) {
        if (m.dtype == NIB_DTYPE_BF16)
            x[i] = nib_bf16_rounded(x[i]);
        nib_mat_set(m, row, i, x[i]);
    }
    __syncthreads();
}

#endif
