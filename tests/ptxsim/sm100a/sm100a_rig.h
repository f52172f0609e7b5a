/* For the tests of the sm_100a kernels: the PTX that nvcc emitted for them, run in the simulator. */
#ifndef SM100A_RIG_H
#define SM100A_RIG_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda/sm100a/sm100a.h"
#include "ptxsim/ptxsim.h"
#include "ptxsim/tensor.h"

/* A kernel file's module; parsed once. NIB_PTX_DIR: where the build put the PTX. Skips the running test if that is
 * empty. */
struct px_module *rig_module(const char *name);

/* One machine's memory, filled by the host. */
void *rig_alloc(struct px_machine *m, size_t bytes, const void *from); /* from NULL: stays unwritten */

uint32_t rig_next(uint64_t *seed);
float    rig_value(uint64_t *seed); /* about normal, never zero */
uint16_t rig_bf16(float v);
float    rig_from_bf16(uint16_t h);

/* ---- Products ---- */

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
    struct nib_sm100a_launch  launch;
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
