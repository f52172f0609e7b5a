/* Problems for the sm_100a attention kernels: random rows in pages, run in the simulator, held to sums in double. */
#ifndef SM100A_ATTEND_H
#define SM100A_ATTEND_H

#include "ptxsim/sm100a/sm100a_rig.h"

enum rig_attend_spice {
    RIG_PLAIN,
    RIG_SHARP,  /* scores so far apart that a few rows count, the largest last */
    RIG_NOT_FINITE, /* NaN in a head of a query, NaN and infinity in attended rows of the second query */
};

struct rig_attend {
    enum nib_row_format   format;
    bool                  f32;   /* queries, of all bits; else bf16 */
    bool                  few;   /* the kernel for few rows, else for many */
    int32_t               n_heads, n_rows, n_window, ratio, top_k; /* top_k 0: all entries */
    int32_t               pos;   /* of the first row; rows follow one another in two sequences */
    int32_t               first_pos;
    bool                  o_f32, o_odd; /* results in fp32; rows of them that are not aligned */
    enum rig_attend_spice spice;
    uint64_t              seed;
    struct px_config      config;
    struct px_module     *module; /* NULL: attend_sm100a */
};

/* Runs it; false, with a sentence, if the simulator stopped it or an element is out of bounds. */
bool rig_attend_run(const struct rig_attend *r, char *text, size_t bytes);

#endif
