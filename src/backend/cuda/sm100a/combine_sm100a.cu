/* The weighted sum of a row's experts. Bytes: top_k rows of fp32 in, one row out. */
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kThreads = 256;

extern "C" __global__ void __launch_bounds__(kThreads)
nib_sm100a_combine(const __grid_constant__ struct nib_sm100a_combine_args a)
{
    nib_grid_start();
    int64_t        t = blockIdx.x;
    struct nib_mat y = {a.y, a.y_f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, 0, a.dim, a.y_stride};
    for (int32_t i = threadIdx.x; i < a.dim; i += kThreads) {
        float sum = 0;
        for (int32_t j = 0; j < a.top_k; j++)
            sum += a.weight[t * a.top_k + j] * a.expert_y[a.place[t * a.top_k + j] * a.expert_stride + i];
        if (a.shared)
            sum += a.shared[t * a.shared_stride + i];
        nib_mat_set(y, t, i, sum);
    }
}
