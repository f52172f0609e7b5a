/* For the tests of Blackwell's kernels: the PTX that nvcc emitted for them, run in the simulator. */
#ifndef KERNEL_RIG_H
#define KERNEL_RIG_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda/blackwell/blackwell.h"
#include "ptxsim/ptx_break.h"
#include "ptxsim/ptxsim.h"

/* A kernel file's module; parsed once. Skips the running test where nvcc was not there to emit it. */
struct px_module *rig_module(const char *name);

/* One machine's memory, filled by the host. */
void *rig_alloc(struct px_machine *m, size_t bytes, const void *from); /* from NULL: stays unwritten */

uint32_t rig_next(uint64_t *seed);
float    rig_value(uint64_t *seed); /* about normal, never zero */
uint16_t rig_bf16(float v);
float    rig_from_bf16(uint16_t h);
double   rig_e2m1(uint32_t code);
double   rig_ue4m3(uint32_t code);
double   rig_e4m3(uint32_t code);  /* 0x7f and 0xff are NaN */
double   rig_ue8m0(uint32_t code); /* 0xff is NaN */

/* Fails the test if the kernel stops. */
void rig_launch(struct px_machine *m, const char *module, const struct nib_blackwell_launch *l, const void *args);

/* A kernel with one thing changed in its PTX: whether the problem, run with this module under a schedule, shows that
 * something is wrong, and what. */
struct rig_broken {
    const char *module, *entry;
    uint64_t    n_schedules; /* tried until one shows it */
    const void *problem;
    bool (*caught)(const void *problem, struct px_module *module, uint64_t schedule, char *text, size_t bytes);
};

/* The module as emitted must pass under all schedules; every change of the list must be caught, and what caught it is
 * printed. */
void rig_break_all(const struct rig_broken *b, const struct ptx_breakage *list, size_t n);

#endif
