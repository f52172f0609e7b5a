/* The definition of every kernel in plain C. */
#include "quantize/kernels_quant.h"

#include <math.h>
#include <string.h>

#include "number/act_rows.h"
#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"

/* Blocks between two additions of the float sums to the double ones. */
#define FLUSH_BLOCKS 32

static void load_block(const struct nib_quant_row *r, int64_t b, float x[NIB_QUANT_BLOCK])
{
    if (r->f32) {
        memcpy(x, r->f32 + b * NIB_QUANT_BLOCK, NIB_QUANT_BLOCK * sizeof *x);
        return;
    }
    for (int i = 0; i < NIB_QUANT_BLOCK; i++)
        x[i] = nib_bf16_to_f32(r->bf16[b * NIB_QUANT_BLOCK + i]);
}

uint8_t nib_quant_first_candidate(float t)
{
    const float low = 0.6f * t;
    const uint8_t c = nib_e4m3_from_f32(low < NIB_E4M3_MAX ? low : NIB_E4M3_MAX);
    return c < 1 ? 1 : c > NIB_QUANT_FIRST_MAX ? NIB_QUANT_FIRST_MAX : c;
}

static float row_absmax(const struct nib_quant_row *r)
{
    if (r->f32)
        return nib_f32_absmax(r->f32, r->n_blocks * NIB_QUANT_BLOCK);
    uint32_t most = 0;
    for (int64_t i = 0; i < r->n_blocks * NIB_QUANT_BLOCK; i++) {
        const uint32_t u = r->bf16[i] & 0x7fffu;
        most = u > most ? u : most;
    }
    return nib_f32_from_bits(most << 16);
}

/* Squared error of a block under scale byte s; everything in units of r->unit, sums in ascending element. */
static float block_error(const struct nib_quant_row *r, int64_t b, const float x[NIB_QUANT_BLOCK], uint8_t s)
{
    const float d = nib_e4m3_to_f32(s) * r->g * r->unit;
    const float inverse = 1.0f / d;
    float       sum = 0;
    for (int i = 0; i < NIB_QUANT_BLOCK; i++) {
        const float a = nib_f32_from_bits(nib_f32_bits(x[i]) & 0x7fffffffu) * r->unit;
        const float e = a - nib_quant_round(a * inverse) * d;
        const float ee = e * e;
        sum += r->weight ? ee * r->weight[b * NIB_QUANT_BLOCK + i] : ee;
    }
    return sum;
}

static uint8_t scale_for(float amax, float target, float g)
{
    const float s = amax / target / g;
    return nib_e4m3_from_f32(s < NIB_E4M3_MAX ? s : NIB_E4M3_MAX);
}

static uint8_t choose_4over6(const struct nib_quant_row *r, int64_t b, const float x[NIB_QUANT_BLOCK], float amax)
{
    const uint8_t six = scale_for(amax, 6.0f, r->g), four = scale_for(amax, 4.0f, r->g);
    if (six == 0 || four == six)
        return four;
    return block_error(r, b, x, four) < block_error(r, b, x, six) ? four : six;
}

static uint8_t choose_mse(const struct nib_quant_row *r, int64_t b, const float x[NIB_QUANT_BLOCK], float amax)
{
    const uint8_t first = nib_quant_first_candidate(amax / 6.0f / r->g);
    uint8_t       best = first;
    float         least = block_error(r, b, x, first);
    for (int i = 1; i < NIB_QUANT_CANDIDATES; i++) {
        const uint8_t s = (uint8_t)(first + i);
        const float   error = block_error(r, b, x, s);
        if (error < least) {
            least = error;
            best = s;
        }
    }
    return best;
}

static void row_choose(const struct nib_quant_row *r, enum nib_quant_choice how, uint8_t *scales)
{
    for (int64_t b = 0; b < r->n_blocks; b++) {
        float x[NIB_QUANT_BLOCK];
        load_block(r, b, x);
        const float amax = nib_f32_absmax(x, NIB_QUANT_BLOCK);
        if (amax == 0)
            scales[b] = 0;
        else if (how == NIB_QUANT_CHOOSE_ABSMAX)
            scales[b] = scale_for(amax, 6.0f, r->g);
        else
            scales[b] = how == NIB_QUANT_CHOOSE_4OVER6 ? choose_4over6(r, b, x, amax) : choose_mse(r, b, x, amax);
    }
}

/* Eight float sums that join the double ones from the lowest up. Element i of a block goes to the one that a machine
 * has at hand after widening each 128 bits of words to floats. */
struct lanes {
    float v[8];
};

static int lane_of(int i)
{
    return i / 8 * 4 + i % 4;
}

static double flush(struct lanes *l)
{
    double sum = 0;
    for (int i = 0; i < 8; i++)
        sum += (double)l->v[i];
    memset(l, 0, sizeof *l);
    return sum;
}

static void row_measure(const struct nib_quant_row *r, const uint8_t *scales, const uint8_t *codes,
                        struct nib_quant_sums *sums)
{
    struct lanes xx = {{0}}, yy = {{0}}, ee = {{0}};
    for (int64_t b = 0; b < r->n_blocks; b++, codes += NIB_QUANT_BLOCK / 2) {
        float       x[NIB_QUANT_BLOCK];
        const float d = nib_e4m3_to_f32(scales[b]) * r->g * r->unit;
        load_block(r, b, x);
        for (int i = 0; i < NIB_QUANT_BLOCK; i++) {
            const float v = x[i] * r->unit, y = nib_e2m1_to_f32((uint32_t)codes[i / 2] >> (i % 2 * 4)) * d, e = v - y;
            xx.v[lane_of(i)] = fmaf(v, v, xx.v[lane_of(i)]);
            yy.v[lane_of(i)] = fmaf(y, y, yy.v[lane_of(i)]);
            ee.v[lane_of(i)] = fmaf(e, e, ee.v[lane_of(i)]);
        }
        if ((b + 1) % FLUSH_BLOCKS == 0 || b + 1 == r->n_blocks) {
            sums->xx += flush(&xx);
            sums->yy += flush(&yy);
            sums->ee += flush(&ee);
        }
    }
}

static void row_encode(const struct nib_quant_row *r, const uint8_t *scales, uint8_t *all_codes,
                       struct nib_quant_sums *sums)
{
    uint8_t *codes = all_codes;
    for (int64_t b = 0; b < r->n_blocks; b++, codes += NIB_QUANT_BLOCK / 2) {
        float       x[NIB_QUANT_BLOCK];
        const float d = nib_e4m3_to_f32(scales[b]) * r->g;
        load_block(r, b, x);
        memset(codes, 0, NIB_QUANT_BLOCK / 2);
        if (!(d > 0))
            continue;
        for (int i = 0; i < NIB_QUANT_BLOCK; i++) {
            const float y = x[i] / d;
            codes[i / 2] |= (uint8_t)(nib_e2m1_from_f32(y) << (i % 2 * 4));
            sums->saturated += nib_f32_from_bits(nib_f32_bits(y) & 0x7fffffffu) > NIB_E2M1_MAX;
        }
    }
    row_measure(r, scales, all_codes, sums);
}

static void row_fp8_to_bf16(const uint8_t *x, int64_t n, int32_t k, uint16_t *out)
{
    uint16_t value[256];
    if (n == 0)
        return;
    for (int c = 0; c < 256; c++) {
        const uint32_t bits = nib_f32_bits(nib_e4m3_to_f32((uint8_t)c)) >> 16;
        value[c] = (uint16_t)((bits & 0x7fffu) == 0 ? bits : bits + (uint32_t)(k * 128));
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = value[x[i]];
}

const struct nib_quant_kernels nib_quant_kernels_portable = {.absmax = row_absmax,
                                                             .choose = row_choose,
                                                             .encode = row_encode,
                                                             .measure = row_measure,
                                                             .fp8_to_bf16 = row_fp8_to_bf16};

const struct nib_quant_kernels *nib_quant_kernels_find(bool portable)
{
#if defined(__x86_64__)
    if (!portable && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &nib_quant_kernels_avx2;
#endif
    (void)portable;
    return &nib_quant_kernels_portable;
}
