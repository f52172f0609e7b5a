/* For the tests of the sm_100a kernels: the PTX that nvcc emitted for them, run in the simulator. */
#ifndef SM100A_RIG_H
#define SM100A_RIG_H

#include "backend/cuda/sm100a/sm100a.h"
#include "ptxsim/blackwell/kernel_rig.h"
#include "ptxsim/tensor.h"

/* A product with random codes and scales, run on a machine of its own; free() with rig_product_free. */
struct rig_product {
    struct nib_sm100a_linear  p;     /* pointers into the machine; shapes and options are the caller's */
    struct px_config          config;
    struct px_module         *module;  /* NULL: linear_sm100a */
    uint64_t                  seed;
    const int32_t            *count;   /* rows of each of p.n_experts; n_rows follows from them */
    bool                      linear_scales; /* arranged wrongly: row by row */
    bool                      hostile; /* extreme scales, zero blocks, a NaN row */
    struct px_machine        *machine;
    uint8_t                  *x_codes, *w_codes, *x_scales, *w_scales; /* host copies; scales [rows][n_in / 16] */
    float                    *row_scale, *alphas;
    int32_t                  *expert_of; /* [n_rows] -1: nobody's row */
    const int32_t            *scale_row; /* [n_rows] with experts: where a row's scales stand */
    int32_t                   n_scale_rows;
    struct nib_blackwell_launch  launch;
    char                      error[1024];
    struct px_stats           stats;
};

/* Runs it; false with the simulator's or the plan's sentence in r->error. */
bool rig_product_run(struct rig_product *r);
/* The result held to a sum in double; fails the test beyond the bound of fp32 accumulation. */
void rig_product_check(const struct rig_product *r);
/* The same, as an answer: whether all elements are within the bound. */
bool rig_product_right(const struct rig_product *r, char *text, size_t bytes);
void rig_product_free(struct rig_product *r);

#endif
