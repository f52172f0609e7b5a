/* The product of more rows of one part, 32 a block: device/tiled.cuh. */
#include "backend/cuda/device/tiled.cuh"

void nib_cuda_tiled_plain32(struct nib_stream *s, const struct nib_tiled *a)
{
    nib_tiled_launch<4, true, kWarps>(s, a);
}
