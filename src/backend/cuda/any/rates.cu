/* The card's own rates by plain kernels: reading, and bf16 products of warps, which every card has. */
#include "backend/cuda/any/rates.h"
#include "backend/cuda/device/ptx.cuh"

constexpr int kReadThreads = 512, kUnroll = 8; /* loads in flight */
static_assert(kReadThreads * kUnroll == NIB_RATE_READ_WORDS, "what a block reads a round");

static __global__ void __launch_bounds__(kReadThreads)
rate_read(const uint4 *data, uint64_t mask, int32_t rounds, unsigned long long *out)
{
    uint64_t           step = (uint64_t)gridDim.x * kReadThreads;
    uint64_t           at = (uint64_t)blockIdx.x * kReadThreads + threadIdx.x;
    unsigned long long sum = 0;
    __shared__ unsigned long long all;
    if (threadIdx.x == 0)
        all = 0;
    __syncthreads();
    for (int32_t r = 0; r < rounds; r++) {
        uint4 v[kUnroll];
#pragma unroll
        for (int k = 0; k < kUnroll; k++, at += step)
            v[k] = nib_load_stream(data + (at & mask));
#pragma unroll
        for (int k = 0; k < kUnroll; k++)
            sum += (uint64_t)v[k].x + v[k].y + v[k].z + v[k].w;
    }
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&all, sum);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(out, all);
}

extern "C" cudaError_t nib_rate_read(cudaStream_t stream, int32_t n_blocks, int32_t rounds, const void *data,
                                     uint64_t n_words, unsigned long long *out)
{
    rate_read<<<(unsigned)n_blocks, kReadThreads, 0, stream>>>((const uint4 *)data, n_words - 1, rounds, out);
    return cudaGetLastError();
}

static __global__ void __launch_bounds__(32 * NIB_RATE_WARPS) rate_mma_bf16(int32_t rounds, double *out)
{
    constexpr uint32_t kOnes = 0x3f803f80u;
    const uint32_t     a[4] = {kOnes, kOnes, kOnes, kOnes};
    float              d[NIB_RATE_WARP_SUMS][4] = {};
    double             sum = 0;
#pragma unroll 4
    for (int32_t r = 0; r < rounds; r++)
#pragma unroll
        for (int i = 0; i < NIB_RATE_WARP_SUMS; i++)
            nib_mma_bf16(d[i], a, kOnes, kOnes);
#pragma unroll
    for (int i = 0; i < NIB_RATE_WARP_SUMS; i++)
        for (int k = 0; k < 4; k++)
            sum += (double)d[i][k];
    sum = nib_warp_sum_f64(sum);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&out[blockIdx.x], sum);
}

extern "C" cudaError_t nib_rate_mma_bf16(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out)
{
    rate_mma_bf16<<<(unsigned)n_blocks, 32 * NIB_RATE_WARPS, 0, stream>>>(rounds, out);
    return cudaGetLastError();
}

/* A turn takes more than eight clocks, so that their number bounds nothing but a clock that stands. */
static __global__ void rate_hold(int64_t clocks)
{
    int64_t begin = clock64();
    for (int64_t turns = clocks / 8; turns > 0 && clock64() - begin < clocks; turns--)
        ;
}

extern "C" cudaError_t nib_rate_hold(cudaStream_t stream, int64_t clocks)
{
    rate_hold<<<1, 1, 0, stream>>>(clocks);
    return cudaGetLastError();
}
