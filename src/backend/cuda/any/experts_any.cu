/* Gate and up, and down, of rows of any kind: device/expert_tiles.cuh. */
#include "backend/cuda/device/expert_tiles.cuh"

void nib_cuda_gate_up_any(struct nib_stream *s, const struct nib_experts *a, unsigned n_segments)
{
    nib_gate_up_launch<1, false>(s, a, n_segments);
}

void nib_cuda_down_any(struct nib_stream *s, const struct nib_experts *a, unsigned n_segments)
{
    nib_down_launch<1, false>(s, a, n_segments);
}
