/* Before and behind the products of experts: which rows multiply which expert's weights, made on the device from
 * choices that only the device knows; and the weighted sum of a row's experts. */
#include "backend/cuda/device/experts.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm120a/sm120a.h"

extern "C" __global__ void __launch_bounds__(kGroupsThreads)
nib_sm120a_groups(const __grid_constant__ struct nib_blackwell_groups_args a)
{
    nib_grid_start();
    extern __shared__ int32_t memory[];
    __shared__ int32_t        buffer[kGroupsThreads];
    static_assert(sizeof(struct nib_blackwell_group) == 12, "three words a group");
    nib_groups_block({a.chosen, (int32_t *)a.groups, a.n_groups, a.pair, a.place, a.scale_row, a.zero, a.n_pairs,
                      a.n_experts, a.tile_rows, a.scale_tile, a.n_zero},
                     memory, buffer);
}

extern "C" __global__ void __launch_bounds__(kCombineThreads)
nib_sm120a_combine(const __grid_constant__ struct nib_blackwell_combine_args a)
{
    nib_grid_start();
    extern __shared__ int32_t place[];
    struct nib_mat            y = {a.y, a.y_f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, 0, a.dim, a.y_stride};
    nib_combine_block({a.expert_y, a.shared, a.chosen, a.place, a.weight, y, a.expert_stride, a.shared_stride, a.top_k},
                      blockIdx.y, (int32_t)(blockIdx.x * kCombineThreads + threadIdx.x), place);
}
