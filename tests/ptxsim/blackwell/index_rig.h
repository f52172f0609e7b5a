/* For tests of kernels with struct nib_blackwell_index_args: a problem, its run in the simulator, what must come out. */
#ifndef INDEX_RIG_H
#define INDEX_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ptxsim/ptxsim.h"

struct index_problem {
    bool             fp4, q_f32, traced, not_finite;
    int32_t          n_heads, n_rows, pos, top_k, blocks;
    uint64_t         seed;
    struct px_config config;
};

/* False: the kernel stopped, or a score is wrong; text says how. */
bool index_run(const struct index_problem *p, struct px_module *module, const char *kernel, uint32_t threads,
               uint32_t shared_bytes, char *text, size_t bytes);

#endif
