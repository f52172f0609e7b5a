/* The aarch64 rung with dot products of bytes: integer rows by sdot, everything else as NEON, whose orders it shares. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>

#define VEC_BYTES        16
#define VEC_FMA(a, b, c) ((a) = (vec)vfmaq_f32((float32x4_t)(a), (float32x4_t)(b), (float32x4_t)(c)))
#define VEC_KEEP(v)
#define VEC_FUSED
#define CODES_ROWS       4
#define CODES_TOGETHER   4
#define CODES_STREAM_ROWS 3
#define CODES_STREAM_CASES(CASE) CASE(1) CASE(2) CASE(3)
#define CODES_ROWS_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4)

/* Of the bodies only what the integer products need is used. */
#pragma GCC diagnostic ignored "-Wunused-function"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

#include "backend/cpu/body_vector.h"
#include "backend/cpu/body_decode.h"

BODY void doubled_codes(const i8x16 *nibbles, i8x16 *out)
{
    const int8x16_t table = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    *out = (i8x16)vqtbl1q_s8(table, (uint8x16_t)*nibbles);
}

typedef ivec code_sum;

BODY void codes_start(code_sum *sum, int32_t fix) { *sum = (ivec){fix, fix, fix, fix}; }

/* Four channels of a row meet those of each output. Biased codes are at most 24, so they are signed bytes as well. */
BODY void codes_dot(code_sum *sum, const u8_vec *u, const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    *sum = (code_sum)vdotq_s32((int32x4_t)*sum, (int8x16_t)*u, vreinterpretq_s8_s32(vdupq_n_s32(four)));
}

BODY void codes_sum(const code_sum *sum, int32_t fix, vec *f)
{
    (void)fix;
    *f = (vec)*sum;
}

#include "backend/cpu/body_panel.h"
#include "backend/cpu/body_packed.h"
#include "backend/cpu/body_codes.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

void nib_cpu_kernels_fill_dotprod(struct nib_cpu_kernels *k)
{
    k->tile_codes = tile_codes;
    k->name = "dotprod";
}

#else

void nib_cpu_kernels_fill_dotprod(struct nib_cpu_kernels *k) { (void)k; }

#endif
