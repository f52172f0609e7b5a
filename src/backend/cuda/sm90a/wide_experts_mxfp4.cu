/* The experts of many tokens with weights in MXFP4: wide_experts.cuh. */
#include "backend/cuda/sm90a/wide_experts.cuh"

void nib_cuda_wide_experts_mxfp4(struct nib_stream *s, const struct nib_wide_experts *a, unsigned n_groups)
{
    nib_wide_experts_launch<NIB_WEIGHT_MXFP4, true>(s, a, n_groups);
}
