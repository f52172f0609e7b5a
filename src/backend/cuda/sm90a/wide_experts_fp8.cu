/* A shared expert in FP8 for many tokens, the widest product only: wide_experts.cuh. */
#include "backend/cuda/sm90a/wide_experts.cuh"

void nib_cuda_wide_experts_fp8(struct nib_stream *s, const struct nib_wide_experts *a, unsigned n_groups)
{
    nib_wide_experts_launch<NIB_WEIGHT_FP8, false>(s, a, n_groups);
}
