/* The product of up to 8 rows of one part: device/tiled.cuh. */
#include "backend/cuda/device/tiled.cuh"

void nib_cuda_tiled_plain8(struct nib_stream *s, const struct nib_tiled *a)
{
    nib_tiled_launch<1, true>(s, a);
}
