/* The aarch64 rungs: NEON, which every such machine has, and dot products of bytes where there are some. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>

/* 16 lanes are 4 of 32 registers: 3 rows by 2 outputs of them. A channel of a panel is 4 too: 6 rows are 24 chains. */
#define VEC_BYTES        16
#define VEC_FMA(a, b, c) ((a) = (vec)vfmaq_f32((float32x4_t)(a), (float32x4_t)(b), (float32x4_t)(c)))
#define VEC_FUSED
#define CODES_ROWS       4
#define CODES_TOGETHER   4
#define CODES_STREAM_ROWS 3
#define CODES_STREAM_CASES(CASE) CASE(1) CASE(2) CASE(3)
#define CODES_ROWS_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4)
#define VEC_KEEP(v)
#define DOT_ROWS         3
#define DOT_OUTS         2
#define STREAM_ROWS      3
#define STREAM_ROWS_CASES(CASE) CASE(1) CASE(2) CASE(3)
#define STREAM_PANELS    1
#define TILE_ROWS_MOST   6
#define TILE_ROWS_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#define ATTEND_ROWS      6

#include "backend/cpu/body_vector.h"
#include "backend/cpu/body_decode.h"
#include "backend/cpu/body_quantise.h"
#include "backend/cpu/body_dot.h"
#include "backend/cpu/body_attend.h"
#include "backend/cpu/body_attend_bf16.h"
#include "backend/cpu/body_rotary.h"
#include "backend/cpu/body_select.h"

/* Doubled values of E2M1 codes. */
BODY void doubled_codes(const i8x16 *nibbles, i8x16 *out)
{
    const int8x16_t table = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    *out = (i8x16)vqtbl1q_s8(table, (uint8x16_t)*nibbles);
}

/* 16-bit sums of 8 channels, even and odd ones: at most 8 * 24 * 127 = 24384. */
typedef i16x8 code_sum;

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
    int8x16_t xv = vreinterpretq_s8_s32(vdupq_n_s32(four)), uv = (int8x16_t)*u;
    int16x8_t low = vmull_s8(vget_low_s8(uv), vget_low_s8(xv)), high = vmull_high_s8(uv, xv);
    *sum += (i16x8)vpaddq_s16(low, high);
}

BODY void codes_sum(const code_sum *sum, int32_t fix, vec *f)
{
    *f = (vec)vpadalq_s16(vdupq_n_s32(fix), (int16x8_t)*sum);
}

#include "backend/cpu/body_panel.h"
#include "backend/cpu/body_packed.h"
#include "backend/cpu/body_tile.h"
#include "backend/cpu/body_codes.h"
#include "backend/cpu/body_fill.h"

void nib_cpu_kernels_fill_neon(struct nib_cpu_kernels *k)
{
    fill_all(k);
    k->name = "neon";
}

#else

void nib_cpu_kernels_fill_neon(struct nib_cpu_kernels *k) { (void)k; }

#endif
