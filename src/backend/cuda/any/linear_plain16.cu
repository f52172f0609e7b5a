/* The product of up to 16 rows of one part: device/tiled.cuh. */
#include "backend/cuda/device/tiled.cuh"

void nib_cuda_tiled_plain16(struct nib_stream *s, const struct nib_tiled *a)
{
    nib_tiled_launch<2, true, kWarps>(s, a);
}
