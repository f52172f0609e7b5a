/* What an op has to read and compute, by formula from its arguments: sizes of weights, which experts were chosen, which
 * rows are seen. Not what some backend really does: a lower bound on bytes, and products only. */
#ifndef NIB_COST_H
#define NIB_COST_H

#include "engine/observe.h"

struct nib_cost {
    uint64_t bytes, fp32_ops, fp8_ops, int8_ops;
};

/* Of an op that has run, with moe's `chosen` present. False where there is no memory or the backend fails. */
bool nib_op_cost(const struct nib_reader *r, enum nib_op op, const void *args, struct nib_cost *out);

/* Ops of one name are told apart by what they work on: a slot and a name for each use. */
#define NIB_OP_SLOTS (NIB_N_OPS * 4)
int nib_op_slot(const struct nib_config *c, enum nib_op op, const void *args, const char **name);

/* Bytes of one matrix as a checkpoint stores it. */
uint64_t nib_matrix_bytes(enum nib_weight_type type, int32_t n_out, int32_t n_in);

#endif
