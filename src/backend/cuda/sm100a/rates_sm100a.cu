/* tcgen05's products with nothing beside them: a block a multiprocessor, whose one thread issues them. */
#include "backend/cuda/any/rates.h"
#include "backend/cuda/device/tcgen05.cuh"

constexpr int kRows = 128, kOuts = 256, kRowBytes = 128; /* of k: NIB_RATE_TCGEN05_STEPS products */
constexpr int kThreads = 128, kTmemColumns = 512, kScales = kOuts;
constexpr int kShared = 128 << 10; /* more than it needs, so that a multiprocessor holds one block */

template <int KIND>
static __device__ __forceinline__ void multiply(uint32_t memory, uint32_t tmem, int32_t rounds)
{
    constexpr uint32_t kHalf = nib_instruction_half(kRows, kOuts, false, false);
    for (int32_t r = 0; r < rounds; r++) {
#pragma unroll
        for (uint32_t j = 0; j < NIB_RATE_TCGEN05_STEPS; j++) { /* 32 bytes of k are 2 in a descriptor */
            uint64_t a = nib_matrix_sw128(memory) + 2 * j, b = nib_matrix_sw128(memory + kRows * kRowBytes) + 2 * j;
            bool     more = (r | (int32_t)j) != 0;
            if (KIND == NIB_RATE_BF16)
                nib_mma_half(tmem, a, b, kHalf, more);
            else if (KIND == NIB_RATE_FP8)
                nib_mma_mx<1>(tmem, a, b, nib_instruction_mx(kRows, kOuts, 0, 0, 0), tmem + kScales,
                              tmem + kScales + 8, more);
            else
                nib_mma_nvfp4<1>(tmem, a, b, nib_instruction_nvfp4(kRows, kOuts), tmem + kScales, tmem + kScales + 8,
                                 more);
        }
    }
}

template <int KIND> static __device__ __forceinline__ void loop(int32_t rounds, double *out)
{
    constexpr uint32_t kOnes = KIND == NIB_RATE_BF16  ? 0x3f803f80u
                               : KIND == NIB_RATE_FP8 ? 0x38383838u
                                                      : 0x22222222u;
    extern __shared__ uint8_t        dynamic[];
    __shared__ __align__(8) uint64_t done;
    __shared__ uint32_t              tmem_address;
    int      warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    uint8_t *memory = dynamic + (1024 - nib_shared_address(dynamic) % 1024) % 1024;
    if (threadIdx.x == 0) {
        nib_mbar_init(nib_shared_address(&done), 1);
        nib_mbar_init_fence();
    }
    if (warp == 0)
        nib_tmem_alloc<1>(nib_shared_address(&tmem_address), kTmemColumns);
    for (int i = threadIdx.x; i < (kRows + kOuts) * kRowBytes / 4; i += kThreads)
        ((uint32_t *)memory)[i] = kOnes;
    nib_proxy_fence();
    __syncwarp();
    nib_tcgen05_before_sync();
    __syncthreads();
    nib_tcgen05_after_sync();
    uint32_t tmem = tmem_address, lanes = tmem + ((uint32_t)warp * 32 << 16);
    if (KIND != NIB_RATE_BF16) {
        uint32_t r[32];
#pragma unroll
        for (int i = 0; i < 32; i++)
            r[i] = KIND == NIB_RATE_FP8 ? 0x7f7f7f7fu : 0x38383838u;
        nib_tmem_store32(lanes + kScales, r);
        nib_tmem_wait_store();
    }
    nib_tcgen05_before_sync();
    __syncthreads();
    nib_tcgen05_after_sync();
    if (warp == 0 && nib_elect()) {
        multiply<KIND>(nib_shared_address(memory), tmem, rounds);
        nib_tcgen05_commit<1>(nib_shared_address(&done));
    }
    __syncwarp();
    nib_mbar_wait(nib_shared_address(&done), 0);
    nib_tcgen05_after_sync();
    double sum = 0;
#pragma unroll 1
    for (uint32_t c = 0; c < kOuts; c += 8) {
        uint32_t r[8];
        nib_tmem_read8(lanes + c, r);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum += (double)__uint_as_float(r[i]);
    }
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&out[blockIdx.x], sum);
    nib_tcgen05_before_sync();
    __syncthreads();
    nib_tcgen05_after_sync();
    if (warp == 0)
        nib_tmem_dealloc<1>(tmem, kTmemColumns);
}

#define RATE(name, KIND)                                                                                               \
    static __global__ void __launch_bounds__(kThreads, 1) rate_tcgen05_##name(int32_t rounds, double *out)             \
    {                                                                                                                  \
        loop<KIND>(rounds, out);                                                                                       \
    }                                                                                                                  \
    extern "C" cudaError_t nib_rate_tcgen05_##name(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out) \
    {                                                                                                                  \
        cudaError_t e = cudaFuncSetAttribute((const void *)rate_tcgen05_##name,                                        \
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);                    \
        if (e == cudaSuccess) {                                                                                        \
            rate_tcgen05_##name<<<(unsigned)n_blocks, kThreads, kShared, stream>>>(rounds, out);                       \
            e = cudaGetLastError();                                                                                    \
        }                                                                                                              \
        return e;                                                                                                      \
    }

RATE(bf16, NIB_RATE_BF16)
RATE(fp8, NIB_RATE_FP8)
RATE(fp4, NIB_RATE_FP4)
