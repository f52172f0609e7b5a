/* Gate and up, and down with the sum, of one row: device/expert_tiles.cuh. */
#include "backend/cuda/device/expert_tiles.cuh"

void nib_cuda_gate_up_one(struct nib_stream *s, const struct nib_experts *a)
{
    nib_gate_up_launch<1, true, true>(s, a, (unsigned)a->top_k + 1);
}

void nib_cuda_down_one(struct nib_stream *s, const struct nib_experts *a)
{
    nib_down_one_launch<1>(s, a);
}
