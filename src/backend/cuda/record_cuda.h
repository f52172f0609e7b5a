/* Ops recorded as CUDA graphs, the least recently used making room. */
#ifndef NIB_RECORD_CUDA_H
#define NIB_RECORD_CUDA_H

#include "backend/cuda/cuda.h"

extern const struct nib_recorder nib_cuda_recorder;

/* All graphs of a stream; none may be running. */
void nib_cuda_records_free(struct nib_cuda_records *r);

#endif
