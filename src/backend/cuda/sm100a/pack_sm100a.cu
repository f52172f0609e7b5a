/* Scales of weights from their stored rows to the tensor core's layout, once at load. Codes stay as they are
 * stored, and global scales stay apart: nothing is folded or rounded. */
#include "backend/cuda/sm100a/sm100a.h"

#include <cuda_runtime.h>

constexpr int kThreads = 256;

extern "C" __global__ void __launch_bounds__(kThreads)
    nib_sm100a_pack_scales(const __grid_constant__ struct nib_sm100a_pack_args a)
{
    int64_t i = (int64_t)blockIdx.x * kThreads + threadIdx.x;
    if (i >= a.n_words)
        return;
    /* Word i: quarter of the 128 rows, row in it, atom of 4 scales a row, band. */
    bool    mx = a.format != NIB_SM100A_NVFP4;
    int64_t k_tile = mx ? NIB_SM100A_MX_K_TILE : NIB_SM100A_K_TILE, k_tiles = (a.n_in + k_tile - 1) / k_tile;
    int64_t atoms = mx ? k_tiles : k_tiles * (NIB_SM100A_K_TILE / 64);
    int64_t row = i / (128 * atoms) * 128 + i % 4 * 32 + i / 4 % 32, block = i / 128 % atoms * 4,
            n_blocks = a.n_in / (mx ? 32 : 16);
    uint32_t word = 0;
    if (a.format == NIB_SM100A_FP8 && row < a.n_out)
        word = a.stored[row / 128 * k_tiles + block / 4] * 0x01010101u;
    for (int j = 0; j < 4 && a.format != NIB_SM100A_FP8; j++)
        if (row < a.n_out && block + j < n_blocks)
            word |= (uint32_t)a.stored[row * n_blocks + block + j] << 8 * j;
    a.packed[i] = word;
}
