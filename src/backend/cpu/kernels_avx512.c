/* The AVX-512 rung (F, BW, DQ, VL): vectors of 64 bytes, 4-bit codes by one look-up in a register of fp32 values. See
 * kernels_avx2.c for the pragmas. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* One register is a channel of a panel: 12 rows are 12 chains, each fed by a number from memory. */
#define VEC_BYTES        64
#define VEC_FMA(a, b, c) ((a) = (vec)_mm512_fmadd_ps((__m512)(b), (__m512)(c), (__m512)(a)))
#define VEC_STORE_PAST(p, v) _mm512_stream_ps((p), (__m512)(v))
#define VEC_FUSED
#define VEC_KEEP(v)
/* 6 integer rows by two panels are 12 sums of integers and 12 of fp32; 8 are 4 and 4, 8 and 16. More are parts of 4 to 6. */
#define CODES_ROWS        6
#define CODES_TOGETHER    6
#define CODES_STREAM_ROWS 8
#define CODES_ROWS_CASES(CASE)   CASE(4) CASE(5) CASE(6)
#define CODES_STREAM_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#define PREFETCH_BYTES    3072
#define DOT_ROWS         4
#define DOT_OUTS         4
/* 8 rows are 8 chains and as many sums beside the 8 vectors of an octet. */
#define STREAM_ROWS      8
#define STREAM_ROWS_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#define STREAM_PANELS    2
/* Rows for which two panels of a `type` pass side by side: BF16 weights have no other use for registers. */
#define STREAM_SIDE_ROWS (type == NIB_WEIGHT_BF16 ? STREAM_ROWS : 1)
/* A number to a register, before what follows. */
#ifndef STREAM_KEEP
#define STREAM_KEEP(v)   __asm__("" : "+v"(v))
#endif
#define TILE_ROWS_MOST   12
/* More rows than pass straight are parts of 6 to 12. */
#define TILE_ROWS_CASES(CASE) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#define VEC_MASK(v)      ((uint32_t)_mm512_movepi32_mask((__m512i)(v)))
#define ATTEND_ROWS      6
/* 512 channels are 8 times as many. */
#define ATTEND_VECS      4

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
#include "backend/cpu/body_attend.h"
#include "backend/cpu/body_attend_bf16.h"
#include "backend/cpu/body_rotary.h"
#include "backend/cpu/body_select.h"
#include "backend/cpu/body_panel_avx512.h"

/* 16-bit sums of 8 channels: at most 8 * 24 * 127 = 24384. */
typedef u8_vec code_sum;

/* Sums of 16 bits have no room for the row's fix: it comes at the end. */
BODY void codes_start(code_sum *sum, int32_t fix)
{
    (void)fix;
    *sum = (code_sum){0};
}

/* Four channels of a row meet those of each output. */
BODY void codes_dot(code_sum *sum, const u8_vec *u, const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    *sum = (code_sum)_mm512_add_epi16((__m512i)*sum, _mm512_maddubs_epi16((__m512i)*u, _mm512_set1_epi32(four)));
}

BODY void codes_sum(const code_sum *sum, int32_t fix, vec *f)
{
    __m512i all = _mm512_madd_epi16((__m512i)*sum, _mm512_set1_epi16(1));
    *f = (vec)_mm512_add_epi32(all, _mm512_set1_epi32(fix));
}

#include "backend/cpu/body_packed.h"
#include "backend/cpu/body_stream_avx512.h"
#include "backend/cpu/body_tile.h"
#include "backend/cpu/body_codes.h"
#include "backend/cpu/body_rows_avx2.h"
/* 16-bit sums of the indexer's products. */
typedef int16_t index_lanes __attribute__((vector_size(VEC_BYTES)));

BODY void index_dot(ivec *sum, const ivec *x, const ivec *key)
{
    *sum = (ivec)_mm512_add_epi16((__m512i)*sum, _mm512_maddubs_epi16((__m512i)*x, (__m512i)*key));
}

BODY void index_total(ivec *sum) { *sum = (ivec)_mm512_madd_epi16((__m512i)*sum, _mm512_set1_epi16(1)); }

#define INDEX_HEADS 4
#define INDEX_SETS  3

#include "backend/cpu/body_index_x86.h"
#include "backend/cpu/body_fill.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

void nib_cpu_kernels_fill_avx512(struct nib_cpu_kernels *k)
{
    fill_all(k);
    k->fp8_decode = fp8_row_decode;
    k->nvfp4_decode = nvfp4_row_decode;
    k->fp4_decode = fp4_row_decode;
    k->fp4_dots = fp4_code_dots;
    k->fp4_scores = fp4_code_scores;
    k->name = "avx512";
}

#else

void nib_cpu_kernels_fill_avx512(struct nib_cpu_kernels *k) { (void)k; }

#endif
