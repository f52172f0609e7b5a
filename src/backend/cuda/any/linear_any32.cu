/* The product of many rows of any kind, 32 a block: device/tiled.cuh. */
#include "backend/cuda/device/tiled.cuh"

void nib_cuda_tiled_any32(struct nib_stream *s, const struct nib_tiled *a)
{
    nib_tiled_launch<4, false, kWarps>(s, a);
}
