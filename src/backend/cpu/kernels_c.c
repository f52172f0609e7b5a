/* The portable rung: vectors of 16 bytes, which every 64-bit machine has. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

/* 16 lanes, or a channel of a panel, are 4 registers: 2 rows by 1 output, or 2 rows of chains, leave room for the operands in
 * 16 registers. */
#define VEC_BYTES        16
#define VEC_FMA(a, b, c) ((a) += (b) * (c))
#define CODES_ROWS       4
#define CODES_TOGETHER   4
#define CODES_STREAM_ROWS 3
#define CODES_STREAM_CASES(CASE) CASE(1) CASE(2) CASE(3)
#define CODES_ROWS_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4)
#define VEC_KEEP(v)
#define DOT_ROWS         2
#define DOT_OUTS         1
#define STREAM_ROWS      3
#define STREAM_ROWS_CASES(CASE) CASE(1) CASE(2) CASE(3)
#define STREAM_PANELS    1
#define TILE_ROWS_MOST   2
#define TILE_ROWS_CASES(CASE) CASE(1) CASE(2)
#define ATTEND_ROWS      2

#include "backend/cpu/body_vector.h"
#include "backend/cpu/body_decode.h"
#include "backend/cpu/body_quantise.h"
#include "backend/cpu/body_dot.h"
#include "backend/cpu/body_attend.h"
#include "backend/cpu/body_attend_bf16.h"
#include "backend/cpu/body_rotary.h"
#include "backend/cpu/body_select.h"

/* Doubled values of E2M1 codes: magnitudes 0..7 mean 0 1 2 3 4 6 8 12, the code plus 1 above 4, 1 more above 5 and 3 more
 * above 6. Comparisons give -1. */
BODY void doubled_codes(const i8x16 *nibbles, i8x16 *out)
{
    i8x16 m = *nibbles & 7, negative = (i8x16)(*nibbles > 7);
    i8x16 d = m - (i8x16)(m > 4) - (i8x16)(m > 5) + ((i8x16)(m > 6) & 3);
    *out = (d ^ negative) - negative;
}

/* 16-bit sums of 8 channels: at most 8 * 24 * 127 = 24384. */
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
    i16x8 xv = (i16x8)((i32x4){0} + four), uv = (i16x8)*u;
    *sum += (uv & 255) * ((xv << 8) >> 8) + (uv >> 8) * (xv >> 8);
}

BODY void codes_sum(const code_sum *sum, int32_t fix, vec *f)
{
    i32x4 pairs = (i32x4)*sum;
    *f = (vec)(fix + ((pairs << 16) >> 16) + (pairs >> 16));
}

#include "backend/cpu/body_panel.h"
#include "backend/cpu/body_packed.h"
#include "backend/cpu/body_tile.h"
#include "backend/cpu/body_codes.h"
#include "backend/cpu/body_fill.h"

void nib_cpu_kernels_fill_c(struct nib_cpu_kernels *k)
{
    fill_all(k);
    k->name = "c";
}
