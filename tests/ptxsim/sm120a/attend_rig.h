/* For tests of attention on sm_120a: a problem, its run in the simulator, and what must come out. */
#ifndef ATTEND_RIG_H
#define ATTEND_RIG_H

#include "ptxsim/sm120a/sm120a_rig.h"

struct rig_attend {
    enum nib_row_format format;
    int32_t             n_heads, n_rows, n_window, ratio;
    int32_t             top_k;    /* entries that each row chooses; 0: all that it sees */
    const int32_t      *pos;      /* [n_rows], ascending; one sequence */
    bool                bf16_out, f32_query;
    int32_t             n_spans;  /* summed apart, this many a launch; 0: rows as a whole */
    struct px_config    config;
    uint64_t            seed;
    struct px_module   *module;   /* instead of what nvcc emitted */
    /* Made by the run. */
    float              *o;        /* [n_rows][n_heads * 512] */
    double             *want, *bound;
    char                error[1200];
};

/* False: a kernel stopped, for the reason in r->error. */
bool rig_attend_run(struct rig_attend *r);
/* False: a result is wrong, described in text. */
bool rig_attend_right(const struct rig_attend *r, char *text, size_t bytes);
void rig_attend_free(struct rig_attend *r);

#endif
