/* Which rows multiply which expert's weights, made on the device from counts that only the device knows. */
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kThreads = 256;

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
    __shared__ int32_t buffer[kThreads];
    int32_t            n_groups = 0;
    for (int32_t begin = 0; begin < a.n_experts; begin += kThreads) {
        int32_t e = begin + (int32_t)threadIdx.x, count = e < a.n_experts ? a.count[e] : 0, total;
        int32_t n = (count + a.tile_rows - 1) / a.tile_rows, at = n_groups + sum_before(n, buffer, &total);
        for (int32_t i = 0; i < n; i++)
            a.groups[at + i] = {e, min(count - i * a.tile_rows, a.tile_rows)};
        if (e < a.n_experts)
            a.first[e] = at * a.tile_rows;
        n_groups += total;
    }
    if (threadIdx.x == 0)
        *a.n_groups = n_groups;
}
