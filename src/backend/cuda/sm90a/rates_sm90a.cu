/* Hopper's bf16 products with nothing beside them: two warpgroups a multiprocessor, so that one multiplies while the
 * other begins again. */
#include "backend/cuda/any/rates.h"
#include "backend/cuda/sm90a/wgmma.cuh"

constexpr int kThreads = 256, kOuts = 256, kDepth = 16; /* k of one product */

static __global__ void __launch_bounds__(kThreads, 1) rate_wgmma_bf16(int32_t rounds, double *out)
{
    constexpr uint32_t kOnes = 0x3f803f80u;
    const uint32_t     a[4] = {kOnes, kOnes, kOnes, kOnes};
    float              d[kOuts / 2] = {}, sum = 0;
    __shared__ __align__(128) uint32_t b[kOuts * kDepth / 2];
    for (int i = threadIdx.x; i < kOuts * kDepth / 2; i += kThreads)
        b[i] = kOnes;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    uint64_t at = nib_wgmma_descriptor(nib_shared_address(b), 128, 256);
#pragma unroll 1
    for (int32_t r = 0; r < rounds; r++) {
        nib_wgmma_fence();
#pragma unroll
        for (int k = 0; k < NIB_RATE_WGMMA_STEPS; k++)
            nib_wgmma_bf16(d, a, at);
        nib_wgmma_commit();
        nib_wgmma_wait();
    }
#pragma unroll
    for (int i = 0; i < kOuts / 2; i++)
        sum += d[i];
    double all = nib_warp_sum_f64((double)sum);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&out[blockIdx.x], all);
}

extern "C" cudaError_t nib_rate_wgmma_bf16(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out)
{
    rate_wgmma_bf16<<<(unsigned)n_blocks, kThreads, 0, stream>>>(rounds, out);
    return cudaGetLastError();
}
