/* A shared expert in BF16 for many tokens, the widest product only: wide_experts.cuh. */
#include "backend/cuda/sm90a/wide_experts.cuh"

void nib_cuda_wide_experts_bf16(struct nib_stream *s, const struct nib_wide_experts *a, unsigned n_groups)
{
    nib_wide_experts_launch<NIB_WEIGHT_BF16, false>(s, a, n_groups);
}
