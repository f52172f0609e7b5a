/* Whole ops of the sm_100a family, and their kernels' self-test. */
#ifndef NIB_OPS_SM100A_H
#define NIB_OPS_SM100A_H

#include "backend/cuda/blackwell/table_blackwell.h"

/* Once the self-test has passed; else, and for what the kernels do not take, any/. */
enum nib_status nib_sm100a_attend(struct nib_stream *s, const struct nib_attend_args *a);
enum nib_status nib_sm100a_index_select(struct nib_stream *s, const struct nib_index_select_args *a);

/* Whether nib_sm100a_attend_launch takes these arguments, and the launch itself. few: blocks that share a row. */
bool            nib_sm100a_attend_takes(const struct nib_attend_args *a);
enum nib_status nib_sm100a_attend_launch(struct nib_stream *s, const struct nib_attend_args *a, bool few);

/* Scores of rows [first, first + n), whose queries are ready, into score [n][stride]; a row sees up to n_entries. */
enum nib_status nib_sm100a_index_scores(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first,
                                        int32_t n, int64_t n_entries, float *score, int64_t stride);

/* struct nib_blackwell_family.plain. */
enum nib_status nib_sm100a_plain_multiply(struct nib_stream *s, const struct nib_mat *x, int32_t n_groups,
                                          const struct nib_cuda_matrix *w, const struct nib_mat *y, bool *taken);

/* struct nib_blackwell_family.selftest. */
enum nib_status nib_sm100a_selftest(struct nib_stream *s, char *why, size_t why_bytes);

#endif
