/* The aarch64 rungs: NEON, which every such machine has, and dot products of bytes where there are some. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>

/* 16 lanes are 4 of 32 registers: 3 rows by 2 outputs of them, and group tiles of 2 rows by 6 outputs of
 * one, or 3 by 4, with their sums. */
#define VEC_BYTES        16
#define VEC_FMA(a, b, c) ((a) = (vec)vfmaq_f32((float32x4_t)(a), (float32x4_t)(b), (float32x4_t)(c)))
#define VEC_KEEP(v)
#define VEC_OPAQUE(p)
#define SPLIT_ROWS       3
#define DOT_ROWS         3
#define DOT_OUTS         2
#define TILE_OUTS_3      4
#define TILE_OUTS_2      6

#include "backend/cpu/body_vector.h"
#include "backend/cpu/body_decode.h"
#include "backend/cpu/body_quantise.h"
#include "backend/cpu/body_dot.h"

/* Doubled values of E2M1 codes. */
BODY void doubled_codes(const i8x16 *nibbles, i8x16 *out)
{
    const int8x16_t table = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    *out = (i8x16)vqtbl1q_s8(table, (uint8x16_t)*nibbles);
}

/* 16-bit sums of 8 channels, even and odd ones: at most 8 * 24 * 127 = 24384. */
typedef i16x8 code_sum;

BODY void codes_dot(code_sum *sum, const u8_vec *u, const int8_t *x)
{
    int8x16_t xv = vld1q_s8(x), uv = (int8x16_t)*u;
    int16x8_t low = vmull_s8(vget_low_s8(uv), vget_low_s8(xv)), high = vmull_high_s8(uv, xv);
    *sum += (i16x8)vpaddq_s16(low, high);
}

BODY void codes_sum(const code_sum *sum, const int32_t *fix, vec *f)
{
    int32x4_t all = vpadalq_s16(vld1q_s32(fix), (int16x8_t)*sum);
    *f = (vec)vcvtq_f32_s32(all);
}

#include "backend/cpu/body_groups.h"
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
