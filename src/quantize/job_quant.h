/* What nib_quantize() and nib_quantize_verify() share. */
#ifndef NIB_JOB_QUANT_H
#define NIB_JOB_QUANT_H

#include "quantize/quant.h"

double  nib_quant_clock(void); /* seconds on a clock that only moves forward */
int32_t nib_quant_threads(int32_t wanted); /* 0: all cores */

/* Kernels, threads and piece sizes for a plan; *done_bytes counts for the progress callback, named `what` there. */
void nib_quant_context_init(struct nib_quant_context *c, const struct nib_quant_plan *p, const char *what,
                            uint64_t *done_bytes);

#endif
