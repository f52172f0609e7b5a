/* The experts of many tokens with weights in NVFP4: wide_experts.cuh. */
#include "backend/cuda/sm90a/wide_experts.cuh"

void nib_cuda_wide_experts_nvfp4(struct nib_stream *s, const struct nib_wide_experts *a, unsigned n_groups)
{
    nib_wide_experts_launch<NIB_WEIGHT_NVFP4, true>(s, a, n_groups);
}
