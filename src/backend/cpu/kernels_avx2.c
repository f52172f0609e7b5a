/* The AVX2 rung: bodies compiled with vectors of 32 bytes and fused multiply-adds, and 4-bit codes by table look-up. The
 * target is set by pragma and not by a compiler flag because a flag would also reach the inline functions of shared
 * headers, which the linker may then pick for every caller; so every header comes first, outside the pragma. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* 16 lanes are 2 registers: 2 rows by 3 outputs take 12 of 16, and 10 loads feed 24 operations. A channel of a panel is 2 as
 * well: 6 rows are 12 chains, and 8 loads feed 12 operations. */
#define VEC_BYTES        32
#define VEC_FMA(a, b, c) ((a) = (vec)_mm256_fmadd_ps((__m256)(b), (__m256)(c), (__m256)(a)))
#define VEC_STORE_PAST(p, v) _mm256_stream_ps((p), (__m256)(v))
#define VEC_FUSED
#define CODES_ROWS       4
#define CODES_TOGETHER   4
#define CODES_STREAM_ROWS 6
#define CODES_STREAM_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
/* Their requests took longer than what they saved. */
#define CODES_ASK_ROWS   false
#define CODES_ROWS_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4)
/* Keep a value in a register. */
#define VEC_KEEP(v)      __asm__("" : "+x"(v))
#define DOT_ROWS         2
#define DOT_OUTS         3
#define STREAM_ROWS      3
#define STREAM_ROWS_CASES(CASE) CASE(1) CASE(2) CASE(3)
#define STREAM_PANELS    2
#define STREAM_SIDE_ROWS 2
#define TILE_ROWS_MOST   6
#define TILE_ROWS_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#define VEC_MASK(v)      ((uint32_t)_mm256_movemask_ps((__m256)(v)))
#define ATTEND_ROWS      3
/* Putting two parts' sums together took a fifth of the dot products' time. */
#define ATTEND_PARTS     1

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#include "backend/cpu/body_vector.h"
#include "backend/cpu/body_decode.h"
#include "backend/cpu/body_quantise.h"
#include "backend/cpu/body_dot.h"
#include "backend/cpu/body_attend.h"
#include "backend/cpu/body_attend_bf16.h"
#include "backend/cpu/body_rotary.h"
#include "backend/cpu/body_select.h"
#include "backend/cpu/body_panel_avx2.h"
#include "backend/cpu/body_packed.h"
#include "backend/cpu/body_stream_avx2.h"
#include "backend/cpu/body_tile.h"
#include "backend/cpu/body_codes.h"
#include "backend/cpu/body_rows_avx2.h"
/* 16-bit sums of the indexer's products. */
typedef int16_t index_lanes __attribute__((vector_size(VEC_BYTES)));

BODY void index_dot(ivec *sum, const ivec *x, const ivec *key)
{
    *sum = (ivec)_mm256_add_epi16((__m256i)*sum, _mm256_maddubs_epi16((__m256i)*x, (__m256i)*key));
}

BODY void index_total(ivec *sum) { *sum = (ivec)_mm256_madd_epi16((__m256i)*sum, _mm256_set1_epi16(1)); }

/* All 48 keys of a block for one query, whose four channels are then loaded once for six vectors of keys. */
#define INDEX_HEADS 1
#define INDEX_SETS  3

#include "backend/cpu/body_index_x86.h"
#include "backend/cpu/body_fill.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

void nib_cpu_kernels_fill_avx2(struct nib_cpu_kernels *k)
{
    fill_all(k);
    k->fp8_decode = fp8_row_decode;
    k->nvfp4_decode = nvfp4_row_decode;
    k->fp4_decode = fp4_row_decode;
    k->fp4_dots = fp4_code_dots;
    k->fp4_scores = fp4_code_scores;
    k->name = "avx2";
}

#else

void nib_cpu_kernels_fill_avx2(struct nib_cpu_kernels *k) { (void)k; }

#endif
