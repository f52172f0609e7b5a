/* Weights from their stored rows to units (sm120a.h), once at load. Codes and scales keep their values, and global
 * scales stay apart: nothing is folded or rounded. */
#include "backend/cuda/sm120a/sm120a.h"

#include <cuda_runtime.h>

constexpr int kThreads = 256;

extern "C" __global__ void __launch_bounds__(kThreads)
nib_sm120a_pack(const __grid_constant__ struct nib_sm120a_pack_args a)
{
    int64_t i = (int64_t)blockIdx.x * kThreads + threadIdx.x;
    if (i >= a.n_pieces)
        return;
    int64_t k_tile = i / 32 % a.n_k_tiles, unit = i / 32 / a.n_k_tiles;
    int     lane = (int)(i % 32), g = lane / 4, l = lane % 4;
    int64_t row = unit * 8 + g;

    uint32_t word[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int64_t at = k_tile * (NIB_SM120A_K_TILE / 2) + (l + 4 * j) * 4;
        word[j] = row < a.n_out && at < a.n_in / 2 ? *(const uint32_t *)(a.stored + row * (a.n_in / 2) + at) : 0;
    }
    *(uint4 *)(a.codes + i * 16) = make_uint4(word[0], word[1], word[2], word[3]);

    /* Two of the row's eight scales in this tile of k. */
    int64_t  n_blocks = a.n_in / 16, block = k_tile * 8 + l * 2;
    uint16_t pair = 0;
    if (row < a.n_out && block < n_blocks)
        pair = *(const uint16_t *)(a.stored_scales + row * n_blocks + block);
    *(uint16_t *)(a.scales + i * 2) = pair;
}
