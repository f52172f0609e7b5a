/* Which rows multiply which expert's weights, made on the device from choices that only the device knows. */
#include "backend/cuda/device/experts.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm100a/sm100a.h"

extern "C" __global__ void __launch_bounds__(kGroupsThreads)
nib_sm100a_groups(const __grid_constant__ struct nib_blackwell_groups_args a)
{
    nib_grid_start();
    extern __shared__ int32_t memory[];
    __shared__ int32_t        buffer[kGroupsThreads];
    static_assert(sizeof(struct nib_blackwell_group) == 12, "three words a group");
    nib_groups_block({a.chosen, (int32_t *)a.groups, a.n_groups, a.pair, a.place, a.scale_row, a.zero, a.n_pairs,
                      a.n_experts, a.tile_rows, a.scale_tile, a.n_zero},
                     memory, buffer);
}
