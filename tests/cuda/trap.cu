/* A kernel that brings its context down, as a fault of the device or of a kernel does. */
#include <cuda_runtime_api.h>

static __global__ void trap(void)
{
    asm volatile("trap;");
}

extern "C" int nib_test_trap(void)
{
    trap<<<1, 1>>>();
    return (int)cudaGetLastError();
}
