/* The weighted sum of a row's experts. Bytes: top_k rows of fp32 in, one row out. */
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kThreads = 256;

extern "C" __global__ void __launch_bounds__(kThreads)
nib_sm100a_combine(const __grid_constant__ struct nib_sm100a_combine_args a)
{
    nib_grid_start();
    extern __shared__ int32_t place[]; /* [top_k] rows in ascending order of expert, then their weights */
    float                    *weight = (float *)(place + a.top_k);
    int64_t                   t = blockIdx.y;
    int32_t                   k = a.top_k, i = blockIdx.x * kThreads + threadIdx.x;
    for (int32_t j = (int32_t)threadIdx.x; j < k; j += kThreads) {
        int32_t e = a.chosen[t * k + j], rank = 0;
        for (int32_t other = 0; other < k; other++) { /* a hash table may name an expert twice */
            int32_t f = a.chosen[t * k + other];
            rank += f < e || (f == e && other < j);
        }
        place[rank] = a.place[t * k + j];
        weight[rank] = a.weight ? a.weight[t * k + j] : 1.0f;
    }
    __syncthreads();
    if (i >= a.dim)
        return;
    struct nib_mat y = {a.y, a.y_f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, 0, a.dim, a.y_stride};
    float          sum = 0;
    for (int32_t j = 0; j < k; j++)
        sum += weight[j] * a.expert_y[place[j] * a.expert_stride + i];
    if (a.shared)
        sum += a.shared[t * a.shared_stride + i];
    nib_mat_set(y, t, i, sum);
}
