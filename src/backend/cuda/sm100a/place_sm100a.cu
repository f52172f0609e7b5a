/* Quantised rows to where a product reads them: codes gathered by expert, scales into the tensor core's layout. Bytes:
 * 0.5625 in and out a value; 0.0625 where codes stay. */
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kThreads = 128;

/* Four scales of a row, which may hold two behind its last whole word: rows are multiples of 32 values. */
static __device__ __forceinline__ uint32_t scale_word(const uint8_t *scales, int32_t word, int32_t n_blocks)
{
    if (word * 4 + 4 <= n_blocks)
        return ((const uint32_t *)scales)[word];
    return word * 4 < n_blocks ? ((const uint16_t *)scales)[word * 2] : 0;
}

extern "C" __global__ void __launch_bounds__(kThreads)
nib_sm100a_place(const __grid_constant__ struct nib_sm100a_place_args a)
{
    nib_grid_start();
    int64_t to = blockIdx.x, from = a.pair ? a.pair[to] / a.top_k : to;
    int64_t s_row = a.y.scale_row ? a.y.scale_row[to] : to;
    int32_t n_words = a.fp8 ? (a.n_in + NIB_SM100A_MX_K_TILE - 1) / NIB_SM100A_MX_K_TILE
                            : (a.n_in + NIB_SM100A_K_TILE - 1) / NIB_SM100A_K_TILE * (NIB_SM100A_K_TILE / 64);
    const uint8_t *scales = a.scales + from * a.scales_stride;
    uint8_t       *packed = a.y.scales + s_row / 128 * ((int64_t)n_words * 512) + s_row % 32 * 16 + s_row % 128 / 32 * 4;
    float          g = a.fp8 ? 1.0f : a.row_scale[from];
    for (int32_t w = (int32_t)threadIdx.x; w < n_words; w += kThreads)
        *(uint32_t *)(packed + w * 512) = a.fp8              ? scales[w] * 0x01010101u
                                          : nib_is_finite(g) ? scale_word(scales, w, a.n_in / 16)
                                                             : 0;
    if (!a.y.codes)
        return;
    const uint4 *codes = (const uint4 *)(a.codes + from * a.codes_stride);
    for (int32_t i = (int32_t)threadIdx.x; i < a.n_in / (a.fp8 ? 16 : 32); i += kThreads)
        ((uint4 *)(a.y.codes + to * a.y.codes_stride))[i] = codes[i];
    if (threadIdx.x == 0 && !a.fp8)
        a.y.row_scale[to] = g;
}
