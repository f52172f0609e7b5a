/* The block-scaled products of 12.x with nothing beside them. */
#include "backend/cuda/any/rates.h"
#include "backend/cuda/sm120a/mma_sm120a.cuh"

/* FP8: E4M3 under UE8M0 scales; else E2M1 under UE4M3 ones. All ones. */
template <bool FP8> static __device__ __forceinline__ void loop(int32_t rounds, double *out)
{
    constexpr uint32_t kOnes = FP8 ? 0x38383838u : 0x22222222u, kScales = FP8 ? 0x7f7f7f7fu : 0x38383838u;
    const uint32_t     a[4] = {kOnes, kOnes, kOnes, kOnes};
    float              d[NIB_RATE_WARP_SUMS][4] = {};
    double             sum = 0;
#pragma unroll 4
    for (int32_t r = 0; r < rounds; r++) {
#pragma unroll
        for (int i = 0; i < NIB_RATE_WARP_SUMS; i++) {
            if (FP8)
                nib_mma_mx_warp<true>(d[i], a, kOnes, kOnes, kScales, kScales, 0);
            else
                nib_mma_nvfp4_warp(d[i], a, kOnes, kOnes, kScales, kScales);
        }
    }
#pragma unroll
    for (int i = 0; i < NIB_RATE_WARP_SUMS; i++)
        for (int k = 0; k < 4; k++)
            sum += (double)d[i][k];
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&out[blockIdx.x], sum);
}

static __global__ void __launch_bounds__(32 * NIB_RATE_WARPS) rate_mma_fp8(int32_t rounds, double *out)
{
    loop<true>(rounds, out);
}

static __global__ void __launch_bounds__(32 * NIB_RATE_WARPS) rate_mma_fp4(int32_t rounds, double *out)
{
    loop<false>(rounds, out);
}

extern "C" cudaError_t nib_rate_mma_fp8(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out)
{
    rate_mma_fp8<<<(unsigned)n_blocks, 32 * NIB_RATE_WARPS, 0, stream>>>(rounds, out);
    return cudaGetLastError();
}

extern "C" cudaError_t nib_rate_mma_fp4(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out)
{
    rate_mma_fp4<<<(unsigned)n_blocks, 32 * NIB_RATE_WARPS, 0, stream>>>(rounds, out);
    return cudaGetLastError();
}
