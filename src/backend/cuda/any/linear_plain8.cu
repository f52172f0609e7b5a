/* The product of up to 8 rows of one part: device/tiled.cuh. */
#include "backend/cuda/device/tiled.cuh"

void nib_cuda_tiled_plain8(struct nib_stream *s, const struct nib_tiled *a)
{
    if (a->warps == kWarpsMost)
        nib_tiled_launch<1, true, kWarpsMost>(s, a);
    else
        nib_tiled_launch<1, true, kWarps>(s, a);
}
