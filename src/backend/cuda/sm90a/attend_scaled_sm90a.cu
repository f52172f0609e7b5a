/* Attention over NVFP4 rows that were decoded ahead (attend_decoded_sm90a.cu), of many queries. */
#include "backend/cuda/sm90a/attend_wide.cuh"

void nib_cuda_attend_wide_scaled(struct nib_stream *s, const struct nib_attend_args *a)
{
    if (a->q.dtype == NIB_DTYPE_F32)
        launch<kRowScaled, 1, true>(s, a, (a->n_heads + kItemHeads<true> - 1) / kItemHeads<true>);
    else
        launch<kRowScaled, 1, false>(s, a, (a->n_heads + kItemHeads<false> - 1) / kItemHeads<false>);
}
