/* The product of few rows of any kind: device/tiled.cuh. */
#include "backend/cuda/device/tiled.cuh"

void nib_cuda_tiled_any8(struct nib_stream *s, const struct nib_tiled *a)
{
    nib_tiled_launch<1, false, kWarps>(s, a);
}
