/* The number formats once more, by search over code values: slow, short, and sharing nothing with src. */
#include "support/opcheck.h"

#include <math.h>
#include <string.h>

float oc_bf16_value(uint16_t bits)
{
    uint32_t u = (uint32_t)bits << 16;
    float    f;
    memcpy(&f, &u, sizeof f);
    return f;
}

uint16_t oc_bf16_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if (isnan(x))
        return (uint16_t)(u >> 16 | 0x40);
    uint16_t down = (uint16_t)(u >> 16), up = (uint16_t)(down + 1); /* neighbours by magnitude */
    if (isinf(x))
        return down;
    double a = fabs((double)x), low = fabs((double)oc_bf16_value(down));
    double high = isinf(oc_bf16_value(up)) ? 0x1p128 : fabs((double)oc_bf16_value(up));
    if (a - low != high - a)
        return a - low < high - a ? down : up;
    return down & 1 ? up : down;
}

float oc_bf16_round(float x)
{
    return oc_bf16_value(oc_bf16_bits(x));
}

double oc_e4m3_value(uint8_t code)
{
    static double table[128];
    if (table[0x7e] == 0)
        for (int i = 0; i < 128; i++)
            table[i] = i == 0x7f ? NAN : i < 8 ? ldexp(i, -9) : ldexp(8 + i % 8, i / 8 - 10);
    return code & 0x80 ? -table[code & 0x7f] : table[code];
}

double oc_e2m1_value(uint8_t code)
{
    static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -value[code & 7] : value[code & 7];
}

double oc_ue8m0_value(uint8_t code)
{
    return code == 255 ? NAN : ldexp(1, code - 127);
}

/* The code among 0 .. last whose value is nearest to |x|, ties to the even code; beyond the largest, the largest. */
static uint8_t nearest(double x, uint8_t last, double (*value)(uint8_t))
{
    double  a = fabs(x);
    uint8_t best = 0;
    for (uint8_t i = 1; i <= last; i++) {
        double old = fabs(a - value(best)), new = fabs(a - value(i));
        if (new < old || (new == old && i % 2 == 0))
            best = i;
    }
    return best;
}

static uint8_t e4m3(float x)
{
    return (uint8_t)(nearest((double)x, 0x7e, oc_e4m3_value) | (signbit(x) ? 0x80 : 0));
}

static uint8_t e2m1(float x)
{
    return (uint8_t)(nearest((double)x, 7, oc_e2m1_value) | (signbit(x) ? 8 : 0));
}

static float absmax(const float *x, int32_t n)
{
    float m = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return NAN;
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    }
    return m;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* Byte of the smallest power of two that is at least v. */
static uint8_t ue8m0_ceil(float v)
{
    int    e;
    double m = frexp((double)v, &e); /* v = m 2^e, 1/2 <= m < 1 */
    return (uint8_t)((m == 0.5 ? e - 1 : e) + 127);
}

static void put_nibble(uint8_t *codes, int32_t i, uint8_t code)
{
    codes[i / 2] = (uint8_t)(i % 2 ? (codes[i / 2] & 15) | code << 4 : code);
}

static void fp8_quantise(const float *x, int32_t n, int32_t block, uint8_t *codes, uint8_t *scales)
{
    memset(codes, 0, (size_t)n);
    for (int32_t k = 0; k < n; k += block) {
        float amax = absmax(x + k, least(block, n - k));
        scales[k / block] = 255;
        if (isnan(amax))
            continue;
        amax = amax > 1e-4f ? amax : 1e-4f;
        scales[k / block] = ue8m0_ceil(amax * (1.0f / 448));
        for (int32_t i = k; i < least(k + block, n); i++) {
            float q = x[i] / (float)oc_ue8m0_value(scales[k / block]);
            codes[i] = e4m3(q > 448 ? 448 : q < -448 ? -448 : q);
        }
    }
}

static void nvfp4_quantise(const float *x, int32_t n, uint8_t *codes, uint8_t *scales, float *row_scale)
{
    float g = absmax(x, n) / 2688.0f;
    *row_scale = g;
    memset(codes, 0, ((size_t)n + 1) / 2);
    memset(scales, 0, ((size_t)n + 15) / 16);
    for (int32_t k = 0; k < n && g > 0; k += 16) {
        float s = absmax(x + k, least(16, n - k)) / 6.0f / g;
        scales[k / 16] = e4m3(s < 448.0f ? s : 448.0f);
        float d = (float)oc_e4m3_value(scales[k / 16]) * g;
        for (int32_t i = k; i < least(k + 16, n) && d > 0; i++)
            put_nibble(codes, i, e2m1(x[i] / d));
    }
}

static void int8_quantise(const float *x, int32_t n, uint8_t *codes, float *scales)
{
    for (int32_t k = 0; k < n; k += 32) {
        float s = absmax(x + k, least(32, n - k)) / 127.0f;
        scales[k / 32] = s;
        for (int32_t i = k; i < least(k + 32, n); i++) {
            double q = s > 0 ? rint((double)(x[i] / s)) : 0;
            codes[i] = (uint8_t)(int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
        }
    }
}

static void fp4_quantise(const float *x, int32_t n, uint8_t *codes, uint8_t *scales)
{
    memset(codes, 0, ((size_t)n + 1) / 2);
    for (int32_t k = 0; k < n; k += 32) {
        float amax = absmax(x + k, least(32, n - k));
        scales[k / 32] = 255;
        if (isnan(amax))
            continue;
        amax = amax > 6 * 0x1p-126f ? amax : 6 * 0x1p-126f;
        scales[k / 32] = ue8m0_ceil(amax * (1.0f / 6));
        for (int32_t i = k; i < least(k + 32, n); i++)
            put_nibble(codes, i, e2m1(x[i] / (float)oc_ue8m0_value(scales[k / 32])));
    }
}

void oc_quantise(enum nib_act_format f, const float *x, int32_t n, uint8_t *codes, uint8_t *scales, float *row_scale)
{
    switch (f) {
    case NIB_ACT_PLAIN: break;
    case NIB_ACT_FP8: fp8_quantise(x, n, 128, codes, scales); break;
    case NIB_ACT_NVFP4: nvfp4_quantise(x, n, codes, scales, row_scale); break;
    case NIB_ACT_INT8: int8_quantise(x, n, codes, (float *)(void *)scales); break;
    }
}

static double nibble_value(const uint8_t *codes, int32_t i)
{
    return oc_e2m1_value(codes[i / 2] >> (i % 2 * 4) & 15);
}

void oc_dequantise(enum nib_act_format f, const uint8_t *codes, const uint8_t *scales, float row_scale, int32_t n,
                   double *value)
{
    for (int32_t i = 0; i < n; i++) {
        float s;
        switch (f) {
        case NIB_ACT_PLAIN: break;
        case NIB_ACT_FP8: value[i] = oc_e4m3_value(codes[i]) * oc_ue8m0_value(scales[i / 128]); break;
        case NIB_ACT_NVFP4:
            s = (float)oc_e4m3_value(scales[i / 16]) * row_scale;
            value[i] = (double)((float)nibble_value(codes, i) * s);
            break;
        case NIB_ACT_INT8:
            memcpy(&s, scales + i / 32 * 4, sizeof s);
            value[i] = (double)((float)(int8_t)codes[i] * s);
            break;
        }
    }
}

/* Where the parts of a stored KV row begin; see enum nib_row_format. */
static int32_t nvfp4_scale_at(int32_t n) { return ((n + 1) / 2 + (n + 15) / 16 + 3) / 4 * 4; }

static void put_bf16(const float *x, int32_t n, uint8_t *at)
{
    for (int32_t i = 0; i < n; i++) {
        uint16_t b = oc_bf16_bits(x[i]);
        memcpy(at + 2 * i, &b, 2);
    }
}

static void get_bf16(const uint8_t *at, int32_t n, double *value)
{
    for (int32_t i = 0; i < n; i++) {
        uint16_t b;
        memcpy(&b, at + 2 * i, 2);
        value[i] = (double)oc_bf16_value(b);
    }
}

void oc_row_encode(enum nib_row_format f, const float *x, int32_t d, int32_t n_rot, uint8_t *row)
{
    int32_t n = d - n_rot;
    float   g;
    switch (f) {
    case NIB_ROW_F32: memcpy(row, x, sizeof(float) * (size_t)d); break;
    case NIB_ROW_BF16: put_bf16(x, d, row); break;
    case NIB_ROW_FP8:
        fp8_quantise(x, n, 64, row, row + n + 2 * n_rot);
        put_bf16(x + n, n_rot, row + n);
        break;
    case NIB_ROW_NVFP4:
        nvfp4_quantise(x, n, row, row + (n + 1) / 2, &g);
        memcpy(row + nvfp4_scale_at(n), &g, 4);
        put_bf16(x + n, n_rot, row + nvfp4_scale_at(n) + 4);
        break;
    case NIB_ROW_FP4: fp4_quantise(x, d, row, row + (d + 1) / 2); break;
    }
}

void oc_row_decode(enum nib_row_format f, const uint8_t *row, int32_t d, int32_t n_rot, double *value)
{
    int32_t n = d - n_rot;
    float   g;
    switch (f) {
    case NIB_ROW_F32:
        for (int32_t i = 0; i < d; i++) {
            memcpy(&g, row + 4 * i, 4);
            value[i] = (double)g;
        }
        break;
    case NIB_ROW_BF16: get_bf16(row, d, value); break;
    case NIB_ROW_FP8:
        for (int32_t i = 0; i < n; i++)
            value[i] = oc_e4m3_value(row[i]) * oc_ue8m0_value(row[n + 2 * n_rot + i / 64]);
        get_bf16(row + n, n_rot, value + n);
        break;
    case NIB_ROW_NVFP4:
        memcpy(&g, row + nvfp4_scale_at(n), 4);
        oc_dequantise(NIB_ACT_NVFP4, row, row + (n + 1) / 2, g, n, value);
        get_bf16(row + nvfp4_scale_at(n) + 4, n_rot, value + n);
        break;
    case NIB_ROW_FP4:
        for (int32_t i = 0; i < d; i++)
            value[i] = nibble_value(row, i) * oc_ue8m0_value(row[(d + 1) / 2 + i / 32]);
        break;
    }
}

void oc_hadamard(float *x, int32_t n)
{
    for (int32_t h = 1; h < n; h *= 2)
        for (int32_t i = 0; i < n; i++)
            if (!(i & h)) {
                float a = x[i], b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
    for (int32_t i = 0; i < n; i++)
        x[i] *= (float)pow(n, -0.5);
}

/* ---- Intervals ---- */

static double code_of(enum nib_act_format f, float q)
{
    if (f == NIB_ACT_FP8)
        return oc_e4m3_value(e4m3(q > 448 ? 448 : q < -448 ? -448 : q));
    if (f == NIB_ACT_NVFP4)
        return oc_e2m1_value(e2m1(q));
    return rint(q > 127 ? 127 : q < -127 ? -127 : (double)q);
}

/* Least and largest decoded value of x in [low, high] under a scale in [d[0], d[1]]. Rounding is monotone, so the ends
 * decide which codes can occur; each of them may then meet either end of the scale. */
static void widen(enum nib_act_format f, double low, double high, const float d[2], double *least_value,
                  double *most_value)
{
    const double ends[2] = {low, high};
    double       code[2] = {INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++) {
        double v = code_of(f, d[i / 2] > 0 ? (float)ends[i % 2] / d[i / 2] : 0);
        code[0] = v < code[0] ? v : code[0];
        code[1] = v > code[1] ? v : code[1];
    }
    for (int i = 0; i < 4; i++) {
        double v = (double)((float)code[i % 2] * d[i / 2]);
        *least_value = v < *least_value ? v : *least_value;
        *most_value = v > *most_value ? v : *most_value;
    }
}

static void absmax_interval(const double *x, const double *err, int32_t n, float *low, float *high)
{
    double l = 0, h = 0;
    for (int32_t i = 0; i < n; i++) {
        l = fabs(x[i]) - err[i] > l ? fabs(x[i]) - err[i] : l;
        h = fabs(x[i]) + err[i] > h ? fabs(x[i]) + err[i] : h;
    }
    *low = (float)l;
    *high = (float)h;
}

/* The intervals of scales that a block may get, as pairs; returns their number, -1 if they are too many to list. */
static int scales_of(enum nib_act_format f, float low, float high, float row_low, float row_high, float scale[][2])
{
    const float g[2] = {row_low / 2688.0f, row_high / 2688.0f};
    int         n = 0;
    if (f == NIB_ACT_FP8) {
        uint8_t first = ue8m0_ceil((low > 1e-4f ? low : 1e-4f) * (1.0f / 448));
        uint8_t last = ue8m0_ceil((high > 1e-4f ? high : 1e-4f) * (1.0f / 448));
        if (last - first > 7)
            return -1;
        for (uint8_t code = first; code <= last; code++, n++)
            scale[n][0] = scale[n][1] = (float)oc_ue8m0_value(code);
    } else if (f == NIB_ACT_INT8) {
        scale[n][0] = low / 127.0f;
        scale[n++][1] = high / 127.0f;
    } else if (f == NIB_ACT_NVFP4) {
        uint8_t first = g[1] > 0 ? e4m3(fminf(low / 6.0f / g[1], 448)) : 0;
        uint8_t last = g[0] > 0 ? e4m3(fminf(high / 6.0f / g[0], 448)) : high > 0 ? 0x7e : 0;
        if (last - first > 7)
            return -1;
        for (uint8_t code = first; code <= last; code++, n++)
            for (int i = 0; i < 2; i++)
                scale[n][i] = (float)oc_e4m3_value(code) * g[i];
    }
    return n;
}

void oc_quantise_interval(enum nib_act_format f, const double *x, const double *err, int32_t n, double *low,
                          double *high)
{
    int32_t block = f == NIB_ACT_FP8 ? 128 : f == NIB_ACT_NVFP4 ? 16 : 32;
    float   row_low, row_high, block_low, block_high, scale[8][2];
    absmax_interval(x, err, n, &row_low, &row_high);
    for (int32_t k = 0; k < n; k += block) {
        int32_t end = least(k + block, n);
        absmax_interval(x + k, err + k, end - k, &block_low, &block_high);
        int n_scales = scales_of(f, block_low, block_high, row_low, row_high, scale);
        for (int32_t i = k; i < end; i++) {
            low[i] = f == NIB_ACT_PLAIN ? x[i] - err[i] : INFINITY;
            high[i] = f == NIB_ACT_PLAIN ? x[i] + err[i] : -INFINITY;
            if (n_scales < 0) /* a scale rounds by 1/16 at most */
                low[i] = -(high[i] = 1.1 * (double)block_high);
            for (int s = 0; s < n_scales; s++)
                widen(f, x[i] - err[i], x[i] + err[i], scale[s], &low[i], &high[i]);
        }
    }
}
