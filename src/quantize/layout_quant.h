/* Parts of planning: source files and matrices, destination shards. */
#ifndef NIB_LAYOUT_QUANT_H
#define NIB_LAYOUT_QUANT_H

#include "quantize/quant.h"

/* Open every file of the checkpoint for reading, and note where it is mapped. */
enum nib_status nib_quant_files_open(struct nib_quant_plan *p, struct nib_error *err);

/* One more output of the unit made last, named base and suffix (base must outlive the plan). */
enum nib_status nib_quant_output_add(struct nib_quant_plan *p, struct nib_quant_unit *u, const char *base,
                                     const char *suffix, enum nib_st_dtype dtype, int32_t n_dims, const int64_t *shape,
                                     struct nib_error *err);

/* Units in order into shards; totals and the fingerprint. */
enum nib_status nib_quant_layout(struct nib_quant_plan *p, struct nib_error *err);

#endif
