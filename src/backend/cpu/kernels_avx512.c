/* The AVX-512 rung (F, BW, DQ, VL): vectors of 64 bytes, 4-bit codes by one look-up in a register of fp32 values. See
 * kernels_avx2.c for the pragmas. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* One register holds a sum's 16 lanes: 2 rows by 6 outputs, or 3 by 4, are 12 sums and 12 of a
 * group of 32 registers. */
#define VEC_BYTES        64
#define VEC_FMA(a, b, c) ((a) = (vec)_mm512_fmadd_ps((__m512)(b), (__m512)(c), (__m512)(a)))
#define VEC_KEEP(v)
#define VEC_OPAQUE(p)
#define SPLIT_ROWS       99
#define DOT_ROWS         4
#define DOT_OUTS         4
#define TILE_OUTS_3      4
#define TILE_OUTS_2      6

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif

#include "backend/cpu/body_vector.h"
#include "backend/cpu/body_decode.h"
#include "backend/cpu/body_quantise.h"
#include "backend/cpu/body_dot.h"
#include "backend/cpu/body_groups_avx512.h"

/* 16-bit sums of 8 channels: at most 8 * 24 * 127 = 24384. */
typedef u8_vec code_sum;

BODY void codes_dot(code_sum *sum, const u8_vec *u, const int8_t *x)
{
    *sum = (code_sum)_mm512_add_epi16((__m512i)*sum, _mm512_maddubs_epi16((__m512i)*u, load64(x)));
}

BODY void codes_sum(const code_sum *sum, const int32_t *fix, vec *f)
{
    __m512i all = _mm512_madd_epi16((__m512i)*sum, _mm512_set1_epi16(1));
    *f = (vec)_mm512_cvtepi32_ps(_mm512_add_epi32(all, load64(fix)));
}

#include "backend/cpu/body_packed.h"
#include "backend/cpu/body_tile.h"
#include "backend/cpu/body_codes.h"
#include "backend/cpu/body_fill.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

void nib_cpu_kernels_fill_avx512(struct nib_cpu_kernels *k)
{
    fill_all(k);
    k->name = "avx512";
}

#else

void nib_cpu_kernels_fill_avx512(struct nib_cpu_kernels *k) { (void)k; }

#endif
