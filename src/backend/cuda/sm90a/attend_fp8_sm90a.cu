/* Attention over FP8 rows, a file of its own so that compilers share the work. */
#include "backend/cuda/sm90a/attend_wide.cuh"

void nib_cuda_attend_wide_fp8(struct nib_stream *s, const struct nib_attend_args *a)
{
    launch_format<NIB_ROW_FP8>(s, a);
}
