/* The AVX-512 BF16 rung: rows that are exact in bf16 by vdpbf16ps, everything else as VNNI; packed orders are AVX-512's. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define VEC_BYTES        64
#define VEC_FMA(a, b, c) ((a) = (vec)_mm512_fmadd_ps((__m512)(b), (__m512)(c), (__m512)(a)))
#define VEC_FUSED
#define PREFETCH_BYTES   3072
/* Chains and sums of 8 rows fit beside an octet's four vectors; decoded, a panel meets 12 chains at a time. */
#define PAIRS_STREAM_ROWS 8
#define PAIRS_STREAM_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#define PAIRS_ROWS_MOST   12
#define PAIRS_ROWS_CASES(CASE) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)

/* Of the bodies only what these products need is used. */
#pragma GCC diagnostic ignored "-Wunused-function"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#endif

#include "backend/cpu/body_vector.h"
#include "backend/cpu/body_decode.h"
#include "backend/cpu/body_panel_avx512.h"
#include "backend/cpu/body_packed.h"
#include "backend/cpu/body_bf16.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

void nib_cpu_kernels_fill_bf16(struct nib_cpu_kernels *k)
{
    k->tile_bf16 = tile_pairs;
    k->bf16_take = bf16_take;
    k->name = "bf16";
}

#else

void nib_cpu_kernels_fill_bf16(struct nib_cpu_kernels *k) { (void)k; }

#endif
