/* Warpgroup products of Hopper: d += a . b, a from registers, b from shared memory. One wrapper a width; the operand lists are long
 * because registers cannot be indexed in assembly. */
#ifndef NIB_CUDA_WGMMA_CUH
#define NIB_CUDA_WGMMA_CUH

#include "backend/cuda/device/bulk.cuh"

/* Registers that a product reads or writes are not touched between fence and wait. */
NIB_DEVICE void nib_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

NIB_DEVICE void nib_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

NIB_DEVICE void nib_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* A K-major operand without swizzle: 8 x 16-byte core matrices, `k_bytes` from one to the next along k and `n_bytes` along n. */
NIB_DEVICE uint64_t nib_wgmma_descriptor(uint32_t address, uint32_t k_bytes, uint32_t n_bytes)
{
    return (uint64_t)(address >> 4 & 0x3fffu) | (uint64_t)(k_bytes >> 4) << 16 | (uint64_t)(n_bytes >> 4) << 32;
}

#define NIB_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NIB_F16(i) NIB_F4(i), NIB_F4(i + 4), NIB_F4(i + 8), NIB_F4(i + 12)
#define NIB_F64(i) NIB_F16(i), NIB_F16(i + 16), NIB_F16(i + 32), NIB_F16(i + 48)
#define NIB_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NIB_R16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NIB_R32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NIB_R48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NIB_R64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NIB_R80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NIB_R96 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define NIB_R112 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define NIB_R0_63 NIB_R0 ", " NIB_R16 ", " NIB_R32 ", " NIB_R48
#define NIB_R0_127 NIB_R0_63 ", " NIB_R64 ", " NIB_R80 ", " NIB_R96 ", " NIB_R112

/* sums: the registers of d; rest: those of a and b behind them, and whether b lies along n. */
#define NIB_WGMMA_BF16(n, sums, rest, ...) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" sums "}, " rest ";" \
                 : __VA_ARGS__ \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/* a as in nib_mma_bf16() for the 16 rows of each warp; d[4 * i + c] is column 8 * i + 2 * (lane % 4) + c % 2 of row
 * lane / 4 + c / 2 * 8. */
NIB_DEVICE void nib_wgmma_bf16(float (&d)[16], const uint32_t a[4], uint64_t b)
{
    NIB_WGMMA_BF16(32, NIB_R0, "{%16, %17, %18, %19}, %20, 1, 1, 1, 0", NIB_F16(0));
}

NIB_DEVICE void nib_wgmma_bf16(float (&d)[32], const uint32_t a[4], uint64_t b)
{
    NIB_WGMMA_BF16(64, NIB_R0 ", " NIB_R16, "{%32, %33, %34, %35}, %36, 1, 1, 1, 0", NIB_F16(0), NIB_F16(16));
}

NIB_DEVICE void nib_wgmma_bf16(float (&d)[64], const uint32_t a[4], uint64_t b)
{
    NIB_WGMMA_BF16(128, NIB_R0_63, "{%64, %65, %66, %67}, %68, 1, 1, 1, 0", NIB_F64(0));
}

NIB_DEVICE void nib_wgmma_bf16(float (&d)[96], const uint32_t a[4], uint64_t b)
{
    NIB_WGMMA_BF16(192, NIB_R0_63 ", " NIB_R64 ", " NIB_R80, "{%96, %97, %98, %99}, %100, 1, 1, 1, 0", NIB_F64(0),
                   NIB_F16(64), NIB_F16(80));
}

NIB_DEVICE void nib_wgmma_bf16(float (&d)[112], const uint32_t a[4], uint64_t b)
{
    NIB_WGMMA_BF16(224, NIB_R0_63 ", " NIB_R64 ", " NIB_R80 ", " NIB_R96, "{%112, %113, %114, %115}, %116, 1, 1, 1, 0",
                   NIB_F64(0), NIB_F16(64), NIB_F16(80), NIB_F16(96));
}

NIB_DEVICE void nib_wgmma_bf16(float (&d)[128], const uint32_t a[4], uint64_t b)
{
    NIB_WGMMA_BF16(256, NIB_R0_127, "{%128, %129, %130, %131}, %132, 1, 1, 1, 0", NIB_F64(0), NIB_F64(64));
}

/* The same with b along n: its k rows hold neighbours in n next to each other. */
NIB_DEVICE void nib_wgmma_bf16_rows(float (&d)[128], const uint32_t a[4], uint64_t b)
{
    NIB_WGMMA_BF16(256, NIB_R0_127, "{%128, %129, %130, %131}, %132, 1, 1, 1, 1", NIB_F64(0), NIB_F64(64));
}

/* Only the first 192 columns, and only the other 64. */
NIB_DEVICE void nib_wgmma_bf16_rows_192(float (&d)[128], const uint32_t a[4], uint64_t b)
{
    NIB_WGMMA_BF16(192, NIB_R0_63 ", " NIB_R64 ", " NIB_R80, "{%96, %97, %98, %99}, %100, 1, 1, 1, 1", NIB_F64(0),
                   NIB_F16(64), NIB_F16(80));
}

NIB_DEVICE void nib_wgmma_bf16_rows_behind_192(float (&d)[128], const uint32_t a[4], uint64_t b)
{
    NIB_WGMMA_BF16(64, NIB_R0 ", " NIB_R16, "{%32, %33, %34, %35}, %36, 1, 1, 1, 1", NIB_F16(96), NIB_F16(112));
}

#undef NIB_WGMMA_BF16
#undef NIB_R0_127
#undef NIB_R0_63
#undef NIB_R0
#undef NIB_R16
#undef NIB_R32
#undef NIB_R48
#undef NIB_R64
#undef NIB_R80
#undef NIB_R96
#undef NIB_R112
#undef NIB_F4
#undef NIB_F16
#undef NIB_F64

/* Two 8 x 8 matrices of 16-bit values, a and b, to shared memory with rows and columns changed: lane (g, l) gives of each row g,
 * columns 2l and 2l+1; lanes 0-7 name where the columns of a go, lanes 8-15 those of b (16 bytes each). */
NIB_DEVICE void nib_store_transposed(void *to, uint32_t a, uint32_t b)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "r"(a),
                 "r"(b)
                 : "memory");
}

#endif
