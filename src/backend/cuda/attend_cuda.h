/* Attention kernels of one architecture. */
#ifndef NIB_ATTEND_CUDA_H
#define NIB_ATTEND_CUDA_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queries over BF16, FP8 or NVFP4 rows on Hopper (sm90a/attend_sm90a.cu); false, and nothing done, for what it does not
 * take. */
bool nib_cuda_attend_wide(struct nib_stream *s, const struct nib_attend_args *a);
/* FP8 or NVFP4 rows decoded ahead, where queries are many enough (sm90a/attend_decoded_sm90a.cu): what attends to them
 * then, as BF16 rows or with the row scale of NVFP4 behind each. False, and nothing done, where they are not. */
bool nib_cuda_attend_decode(struct nib_stream *s, const struct nib_attend_args *a, struct nib_attend_args *plain,
                            struct nib_rows *rows);
/* Of one format each. */
void nib_cuda_attend_wide_bf16(struct nib_stream *s, const struct nib_attend_args *a);
void nib_cuda_attend_wide_fp8(struct nib_stream *s, const struct nib_attend_args *a);
void nib_cuda_attend_wide_nvfp4(struct nib_stream *s, const struct nib_attend_args *a);
void nib_cuda_attend_wide_scaled(struct nib_stream *s, const struct nib_attend_args *a); /* 128 queries and more */

#ifdef __cplusplus
}
#endif
#endif
