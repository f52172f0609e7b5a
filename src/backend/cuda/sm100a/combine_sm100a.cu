/* The weighted sum of a row's experts. Bytes: top_k rows of fp32 in, one row out. */
#include "backend/cuda/device/experts.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm100a/sm100a.h"

extern "C" __global__ void __launch_bounds__(kCombineThreads)
nib_sm100a_combine(const __grid_constant__ struct nib_blackwell_combine_args a)
{
    nib_grid_start();
    extern __shared__ int32_t place[];
    struct nib_mat            y = {a.y, a.y_f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, 0, a.dim, a.y_stride};
    nib_combine_block({a.expert_y, a.shared, a.chosen, a.place, a.weight, y, a.expert_stride, a.shared_stride, a.top_k},
                      blockIdx.y, (int32_t)(blockIdx.x * kCombineThreads + threadIdx.x), place);
}
