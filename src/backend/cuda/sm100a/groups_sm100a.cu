/* Which rows multiply which expert's weights, made on the device from choices that only the device knows. */
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kThreads = 1024;

/* The sum of v over the threads before this one; *total: over all. buffer [kThreads]. */
static __device__ int32_t sum_before(int32_t v, int32_t *buffer, int32_t *total)
{
    int t = (int)threadIdx.x;
    buffer[t] = v;
    __syncthreads();
    for (int step = 1; step < kThreads; step *= 2) {
        int32_t add = t >= step ? buffer[t - step] : 0;
        __syncthreads();
        buffer[t] += add;
        __syncthreads();
    }
    *total = buffer[kThreads - 1];
    int32_t before = buffer[t] - v;
    __syncthreads();
    return before;
}

extern "C" __global__ void __launch_bounds__(kThreads)
nib_sm100a_groups(const __grid_constant__ struct nib_sm100a_groups_args a)
{
    nib_grid_start();
    extern __shared__ int32_t count[]; /* of each expert; then its next row, and how much further its scales stand */
    __shared__ int32_t        buffer[kThreads];
    int32_t                  *next = count + a.n_experts, *shift = next + a.n_experts, n_groups = 0, n_rows = 0;
    for (int32_t e = (int32_t)threadIdx.x; e < a.n_experts; e += kThreads)
        count[e] = 0;
    __syncthreads();
    for (int32_t p = (int32_t)threadIdx.x; p < a.n_pairs; p += kThreads)
        atomicAdd(&count[a.chosen[p]], 1);
    __syncthreads();
    for (int32_t begin = 0; begin < a.n_experts; begin += kThreads) {
        int32_t e = begin + (int32_t)threadIdx.x, c = e < a.n_experts ? count[e] : 0, total_rows, total;
        int32_t row = n_rows + sum_before(c, buffer, &total_rows);
        int32_t n = (c + a.tile_rows - 1) / a.tile_rows, at = n_groups + sum_before(n, buffer, &total);
        for (int32_t i = 0; i < n; i++)
            a.groups[at + i] = {e, min(c - i * a.tile_rows, a.tile_rows), row + i * a.tile_rows};
        if (e < a.n_experts) {
            next[e] = row;
            shift[e] = at * a.tile_rows - row;
        }
        n_groups += total;
        n_rows += total_rows;
    }
    if (threadIdx.x == 0)
        *a.n_groups = n_groups;
    __syncthreads();
    for (int32_t p = (int32_t)threadIdx.x; p < a.n_pairs; p += kThreads) {
        int32_t e = a.chosen[p], row = atomicAdd(&next[e], 1);
        a.pair[row] = p;
        a.place[p] = row;
        a.scale_row[row] = row + shift[e];
    }
}
