/* Descriptors of what tcgen05 multiplies: matrices in shared memory, and the instruction's own. */
#ifndef NIB_CUDA_TENSOR_OPERANDS_CUH
#define NIB_CUDA_TENSOR_OPERANDS_CUH

#include "backend/cuda/device/tensor_copies.cuh"

/* K-major rows of 128 bytes under the 128-byte swizzle: groups of 8 rows are 1024 bytes apart. */
NIB_INLINE uint64_t nib_matrix_sw128(uint32_t address)
{
    return (uint64_t)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 46 | 2ull << 61;
}

/* K-major rows of 64 bytes under the 64-byte swizzle: groups of 8 rows are 512 bytes apart. */
NIB_INLINE uint64_t nib_matrix_sw64(uint32_t address)
{
    return (uint64_t)(address >> 4 & 0x3fff) | 1ull << 16 | 32ull << 32 | 1ull << 46 | 4ull << 61;
}

/* Rows of k, 128 bytes of m or n each, under that swizzle: groups of 8 rows are 1024 bytes apart, the next 64 bf16
 * values of m or n `next` bytes. */
NIB_INLINE uint64_t nib_matrix_along(uint32_t address, uint32_t next)
{
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(next >> 4) << 16 | 64ull << 32 | 1ull << 46 | 2ull << 61;
}

/* An atom of scales: 32 rows of 16 bytes, groups of 8 rows 128 bytes apart. */
NIB_INLINE uint64_t nib_matrix_scales(uint32_t address)
{
    return (uint64_t)(address >> 4 & 0x3fff) | 1ull << 16 | 8ull << 32 | 1ull << 46;
}

/* Types 0 for E4M3 and 5 for E2M1, with UE8M0 scales in byte `id` of their words, dense, K-major. */
NIB_INLINE constexpr uint32_t nib_instruction_mx(int m, int n, uint32_t a_type, uint32_t b_type, uint32_t id)
{
    return id << 4 | a_type << 7 | b_type << 10 | (uint32_t)(n >> 3) << 17 | 1u << 23 | (uint32_t)(m >> 7) << 27 | id << 29;
}

/* bf16 times bf16, sums in fp32; an operand is K-major, or else read along m or n. */
NIB_INLINE constexpr uint32_t nib_instruction_half(int m, int n, bool a_along_m, bool b_along_n)
{
    return 1u << 4 | 1u << 7 | 1u << 10 | (uint32_t)a_along_m << 15 | (uint32_t)b_along_n << 16 |
           (uint32_t)(n >> 3) << 17 | (uint32_t)(m >> 4) << 24;
}

/* E2M1 times E2M1 with UE8M0 scales of 32 values in bytes `id` (0 or 2) and the next of their words, dense, K-major. */
NIB_INLINE constexpr uint32_t nib_instruction_mxfp4(int m, int n, uint32_t id)
{
    return id << 4 | 1u << 7 | 1u << 10 | (uint32_t)(n >> 3) << 17 | 1u << 23 | (uint32_t)(m >> 7) << 27 | id << 29;
}

/* E2M1 times E2M1 with UE4M3 scales, dense, K-major. */
NIB_INLINE constexpr uint32_t nib_instruction_nvfp4(int m, int n)
{
    return 1u << 7 | 1u << 10 | (uint32_t)(n >> 3) << 17 | (uint32_t)(m >> 7) << 27;
}

#endif
