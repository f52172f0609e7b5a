/* The card's own copy rate, by a plain kernel: 16 bytes a thread and turn, four in flight. */
#include <cuda_runtime_api.h>
#include <stdint.h>

static __global__ void copy16(const uint4 *from, uint4 *to, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * (4 * blockDim.x) + threadIdx.x;
    uint4   v[4];
    for (int k = 0; k < 4; k++)
        if (i + k * blockDim.x < n)
            v[k] = from[i + k * blockDim.x];
    for (int k = 0; k < 4; k++)
        if (i + k * blockDim.x < n)
            to[i + k * blockDim.x] = v[k];
}

extern "C" cudaError_t nib_rate_copy(cudaStream_t stream, const void *from, void *to, size_t bytes)
{
    int64_t n = (int64_t)(bytes / 16);
    copy16<<<(unsigned)((n + 4 * 512 - 1) / (4 * 512)), 512, 0, stream>>>((const uint4 *)from, (uint4 *)to, n);
    return cudaGetLastError();
}
