/* NVFP4 rows (device/nvfp4_rows.cuh) where tcgen05 wants them: block scales in the tensor core's layout (sm100a.h). */
#ifndef NIB_ROWS_SM100A_CUH
#define NIB_ROWS_SM100A_CUH

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/nvfp4_rows.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kThreads = kRowThreads;

/* Row `row` of n_in values x, a multiple of 16, visible to all threads. max_buffer [32]. */
NIB_DEVICE void nib_nvfp4_row_store(const struct nib_blackwell_rows &q, int64_t row, const float *x, int32_t n_in,
                                    uint32_t *max_buffer)
{
    int32_t n_tiles = (n_in + NIB_SM100A_K_TILE - 1) / NIB_SM100A_K_TILE, n_padded = n_tiles * (NIB_SM100A_K_TILE / 16);
    int64_t  s_row = q.scale_row ? q.scale_row[row] : row;
    uint8_t *codes = q.codes + row * q.codes_stride;
    if (q.scales_stride)
        nib_nvfp4_row_encode(x, n_in, codes, q.scales + s_row * q.scales_stride, 4, (n_in / 16 + 3) / 4 * 4,
                             q.row_scale + row, max_buffer);
    else
        nib_nvfp4_row_encode(
            x, n_in, codes, q.scales + s_row / 128 * ((int64_t)n_padded * 128) + s_row % 32 * 16 + s_row % 128 / 32 * 4,
            512, n_padded, q.row_scale + row, max_buffer);
}

#endif
