/* The AVX-512 VNNI rung: integer rows by vpdpbusd, everything else as AVX-512, whose packed orders it shares. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define VEC_BYTES        64
#define VEC_FMA(a, b, c) ((a) = (vec)_mm512_fmadd_ps((__m512)(b), (__m512)(c), (__m512)(a)))
#define VEC_FUSED
#define VEC_KEEP(v)
/* 6 integer rows by two panels are 12 sums of integers and 12 of fp32; 8 are 4 and 4, 8 and 16. More are parts of 4 to 6. */
#define CODES_ROWS        6
#define CODES_TOGETHER    6
#define CODES_STREAM_ROWS 8
#define CODES_ROWS_CASES(CASE)   CASE(4) CASE(5) CASE(6)
#define CODES_STREAM_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#define PREFETCH_BYTES    3072
#define ATTEND_ROWS       6
#define ATTEND_VECS      4

/* Of the bodies only what the integer products need is used. */
#pragma GCC diagnostic ignored "-Wunused-function"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#endif

#include "backend/cpu/body_vector.h"
#include "backend/cpu/body_decode.h"
#include "backend/cpu/body_panel_avx512.h"

typedef ivec code_sum;

BODY void codes_start(code_sum *sum, int32_t fix) { *sum = (ivec)_mm512_set1_epi32(fix); }

/* Four channels of a row meet those of each output. */
BODY void codes_dot(code_sum *sum, const u8_vec *u, const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    *sum = (code_sum)_mm512_dpbusd_epi32((__m512i)*sum, (__m512i)*u, _mm512_set1_epi32(four));
}

BODY void codes_sum(const code_sum *sum, int32_t fix, vec *f)
{
    (void)fix;
    *f = (vec)*sum;
}

#include "backend/cpu/body_packed.h"
#include "backend/cpu/body_codes.h"
#include "backend/cpu/body_attend.h"

typedef ivec index_lanes;

BODY void index_dot(ivec *sum, const ivec *x, const ivec *key)
{
    *sum = (ivec)_mm512_dpbusd_epi32((__m512i)*sum, (__m512i)*x, (__m512i)*key);
}

BODY void index_total(ivec *sum) { (void)sum; }

#define INDEX_HEADS 4
#define INDEX_SETS  3

#include "backend/cpu/body_index_x86.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

void nib_cpu_kernels_fill_vnni(struct nib_cpu_kernels *k)
{
    k->tile_codes = tile_codes;
    k->fp4_dots = fp4_code_dots;
    k->fp4_scores = fp4_code_scores;
    k->name = "vnni";
}

#else

void nib_cpu_kernels_fill_vnni(struct nib_cpu_kernels *k) { (void)k; }

#endif
