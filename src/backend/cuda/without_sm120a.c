/* The backend in a build without targets that have block-scaled mma.sync. */
#include "backend/cuda/cuda.h"

bool nib_cuda_sm120a_card(void)
{
    return false;
}

bool nib_cuda_sm120a_layout(const struct nib_weight_desc *d, size_t *codes, size_t *scales)
{
    (void)d, (void)codes, (void)scales;
    return false;
}

size_t nib_cuda_sm120a_lay_out(struct nib_cuda_sm120a_scratch *x, const struct nib_cuda_moe_scratch *m,
                               const struct nib_dims *d, uint8_t *base)
{
    (void)x, (void)m, (void)d, (void)base;
    return 0;
}

cudaError_t nib_cuda_sm120a_pack(cudaStream_t stream, const struct nib_cuda_matrix *m, int32_t i, const uint8_t *codes,
                                 const uint8_t *scales)
{
    (void)stream, (void)m, (void)i, (void)codes, (void)scales;
    return cudaErrorNotSupported;
}

enum nib_status nib_cuda_sm120a_norm(struct nib_stream *s, const struct nib_norm_args *a)
{
    return nib_cuda_sm100a_norm(s, a);
}

enum nib_status nib_cuda_sm120a_linear(struct nib_stream *s, const struct nib_linear_args *a)
{
    return nib_cuda_sm100a_linear(s, a);
}

enum nib_status nib_cuda_sm120a_moe(struct nib_stream *s, const struct nib_moe_args *a)
{
    return nib_cuda_sm100a_moe(s, a);
}
