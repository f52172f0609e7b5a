/* Loops that do one kind of work on the whole card and nothing else: its limits. C11 and C++17. */
#ifndef NIB_CUDA_RATES_H
#define NIB_CUDA_RATES_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a product's operands are. Sums are fp32. */
enum nib_rate_kind { NIB_RATE_BF16, NIB_RATE_FP8, NIB_RATE_FP4 };

/* Blocks that multiply ones by ones. Each adds its sums to its own out[], which so rises by ops / 2 a round. */
struct nib_rate_loop {
    int32_t            major;  /* compute capability that it is for; 0: all */
    enum nib_rate_kind kind;
    int32_t            blocks; /* a multiprocessor holds */
    int64_t            ops;    /* of a block and round, two a product */
    cudaError_t (*run)(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out);
};
extern const struct nib_rate_loop nib_rate_loops[]; /* of this build; ends with run NULL (meter_cuda.c) */

#define NIB_RATE_WARP_SUMS 8                            /* independent sums of a warp */
#define NIB_RATE_WARPS     8                            /* of a block */
#define NIB_RATE_MMA_OPS(k) (2 * 16 * 8 * (int64_t)(k)) /* of a warp's product of 16 by 8 */

/* any/ */
cudaError_t nib_rate_mma_bf16(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out);
/* Reads a power of two of 16-byte words, again and again: n_blocks * NIB_RATE_READ_WORDS of them a round, each round on
 * from where the last one ended. *out rises by the sum of their four 32-bit parts. */
#define NIB_RATE_READ_WORDS (512 * 8)
cudaError_t nib_rate_read(cudaStream_t stream, int32_t n_blocks, int32_t rounds, const void *data, uint64_t n_words,
                          unsigned long long *out);
/* Keeps the queue busy for so many clocks, which the host uses to enqueue what is to be timed. */
cudaError_t nib_rate_hold(cudaStream_t stream, int64_t clocks);

/* sm90a/ */
#define NIB_RATE_WGMMA_STEPS 16
cudaError_t nib_rate_wgmma_bf16(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out);

/* sm100a/ */
#define NIB_RATE_TCGEN05_STEPS 4
cudaError_t nib_rate_tcgen05_bf16(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out);
cudaError_t nib_rate_tcgen05_fp8(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out);
cudaError_t nib_rate_tcgen05_fp4(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out);

/* sm120a/ */
cudaError_t nib_rate_mma_fp8(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out);
cudaError_t nib_rate_mma_fp4(cudaStream_t stream, int32_t n_blocks, int32_t rounds, double *out);

#ifdef __cplusplus
}
#endif
#endif
