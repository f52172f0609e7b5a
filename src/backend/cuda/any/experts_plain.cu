/* Gate and up, and down, of rows of one part: device/expert_tiles.cuh. */
#include "backend/cuda/device/expert_tiles.cuh"

void nib_cuda_gate_up_plain(struct nib_stream *s, const struct nib_experts *a, bool wide, unsigned n_segments)
{
    if (wide)
        nib_gate_up_launch<2, true>(s, a, n_segments);
    else
        nib_gate_up_launch<1, true>(s, a, n_segments);
}

void nib_cuda_down_plain(struct nib_stream *s, const struct nib_experts *a, bool wide, unsigned n_segments)
{
    if (wide)
        nib_down_launch<2, true>(s, a, n_segments);
    else
        nib_down_launch<1, true>(s, a, n_segments);
}
