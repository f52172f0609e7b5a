/* Which of Hopper's attention kernels (attend_wide.cuh) takes a call. */
#include "backend/cuda/attend_cuda.h"

static bool by_16_bytes(const struct nib_mat *m)
{
    return m->stride * (m->dtype == NIB_DTYPE_F32 ? 4 : 2) % 16 == 0 && (uintptr_t)m->data % 16 == 0;
}

bool nib_cuda_attend_wide(struct nib_stream *s, const struct nib_attend_args *a)
{
    enum nib_row_format    f = a->window.format;
    struct nib_attend_args plain;
    struct nib_rows        rows;
    if (s->arch != 90 || !nib_cuda_attend_rows_fit(a) || a->o.dtype != a->q.dtype || !by_16_bytes(&a->q) ||
        !by_16_bytes(&a->o))
        return false;
    if (nib_cuda_attend_decode(s, a, &plain, &rows))
        f == NIB_ROW_FP8 ? nib_cuda_attend_wide_bf16(s, &plain) : nib_cuda_attend_wide_scaled(s, &plain);
    else if (f == NIB_ROW_FP8)
        nib_cuda_attend_wide_fp8(s, a);
    else if (f == NIB_ROW_NVFP4)
        nib_cuda_attend_wide_nvfp4(s, a);
    else
        nib_cuda_attend_wide_bf16(s, a);
    return true;
}
