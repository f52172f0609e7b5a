/* Sizes of a backend that is opened for a test of its own ways, not of its results: the smallest that it takes. */
#ifndef PTXSIM_SMALL_DIMS_H
#define PTXSIM_SMALL_DIMS_H

#include "backend/backend.h"

enum { SMALL_COLS = 64 };

#define SMALL_DIMS                                                                                                    \
    {                                                                                                                 \
        .n_rows_max = 4, .n_seqs_max = 2, .n_ctx_max = 256, .dim = SMALL_COLS, .n_hc = 2, .n_heads = 2,               \
        .head_dim = 64, .n_rot = 16, .q_rank = 64, .n_groups = 1, .o_rank = 32, .n_window = 128,                      \
        .n_index_heads = 2, .index_dim = 64, .index_top_k = 8, .n_experts = 4, .top_k = 2, .n_inner = 64,             \
        .n_inner_shared = 64, .vocab = 100                                                                            \
    }

#endif
