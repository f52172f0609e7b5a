/* What tests may ask of the simulated runtime. */
#ifndef PTXSIM_RUNTIME_STUB_H
#define PTXSIM_RUNTIME_STUB_H

#include <driver_types.h>

/* The nth allocation from now on fails, once. */
void ptxsim_fail_alloc(int nth);
/* The nth kernel from now on is the device's last work: every call after it fails with this error. */
void ptxsim_fail_launch(int nth, cudaError_t e);
/* Launches of the kernel of this name so far. */
int ptxsim_launches(const char *name);

#endif
