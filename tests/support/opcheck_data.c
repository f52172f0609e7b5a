/* Random and hostile host data: rows, quantised rows, weights. */
#include "support/opcheck.h"

#include <math.h>
#include <string.h>

/* ---- Rows ---- */

enum oc_fill oc_fill_pick(struct oc_case *c)
{
    return oc_chance(c, 0.6) ? OC_NORMAL : (enum oc_fill)oc_range(c, 0, OC_N_FILLS - 1);
}

/* Blocks of 16 whose maxima sit where a block scale turns (448, 6, 127, 2688 and the floor 1e-4, times powers of two,
 * now and then an ulp or two beside them) and whose other values are simple fractions of it, where codes tie. In half
 * of the rows the maxima are odd multiples of 1/28 of the row's, where NVFP4 block scales tie but for rounding. */
static void fill_edges(struct oc_case *c, float *x, int32_t n)
{
    static const double turns[] = {448, 6, 127, 2688, 1, 336};
    int                 power = oc_range(c, -12, 12);
    bool                scales_tie = oc_chance(c, 0.5);
    double              unit = 16 * (1 + oc_uniform(c));
    for (int32_t k = 0; k < n; k++) {
        if (k % 16 == 0) {
            double turn = turns[oc_range(c, 0, 5)];
            if (scales_tie)
                turn = unit * (k == 0 ? 28 : 2 * oc_range(c, 8, 12) + 1);
            double top = oc_chance(c, 0.1) ? 1e-4 : ldexp(turn, power + (k == 0 ? 0 : oc_range(c, -3, 0)));
            x[k] = (float)(top * (1 + 0x1p-23 * (oc_chance(c, 0.4) ? oc_range(c, -2, 2) : 0)));
        } else {
            x[k] = x[k / 16 * 16] * (float)oc_range(c, -24, 24) / 24;
        }
    }
}

void oc_fill_row(struct oc_case *c, enum oc_fill fill, float *x, int32_t n, double scale)
{
    if (fill == OC_EDGES) {
        fill_edges(c, x, n);
        return;
    }
    int32_t hot = oc_range(c, 0, n - 1);
    double  size = fill == OC_HUGE ? 1e12 : fill == OC_TINY ? 1e-25 : 1;
    for (int32_t i = 0; i < n; i++) {
        double v = oc_normal(c);
        if (fill == OC_ZEROS)
            v = 0;
        else if (fill == OC_ONE_HOT)
            v = i == hot ? 1 : 0;
        else if (fill == OC_TIES)
            v = oc_range(c, -6, 6) * 0.25;
        else if (fill == OC_OUTLIER)
            v = i == hot ? 1e5 : v;
        x[i] = (float)(v * size * scale);
    }
}

static void decode_values(struct oc_mat *m)
{
    for (int64_t r = 0; r < m->rows; r++)
        for (int64_t i = 0; i < m->cols; i++) {
            int64_t at = r * m->stride + i;
            m->value[r * m->cols + i] = m->dtype == NIB_DTYPE_F32 ? (double)((float *)m->data)[at]
                                                                  : (double)oc_bf16_value(((uint16_t *)m->data)[at]);
        }
}

struct oc_mat oc_mat_of(struct oc_case *c, enum nib_dtype dtype, int32_t rows, int32_t cols, const float *x)
{
    struct oc_mat m = {.dtype = dtype, .rows = rows, .cols = cols};
    size_t        size = dtype == NIB_DTYPE_F32 ? 4 : 2;
    m.stride = cols + (oc_chance(c, 0.3) ? oc_range(c, 1, 9) : 0);
    m.data = oc_new(c, (size_t)(rows * m.stride) * size + 1);
    m.value = oc_new(c, sizeof(double) * (size_t)rows * (size_t)cols + 1);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            if (dtype == NIB_DTYPE_F32)
                ((float *)m.data)[r * m.stride + i] = x[r * cols + i];
            else
                ((uint16_t *)m.data)[r * m.stride + i] = oc_bf16_bits(x[r * cols + i]);
        }
    decode_values(&m);
    return m;
}

struct oc_mat oc_mat_new(struct oc_case *c, enum nib_dtype dtype, int32_t rows, int32_t cols, double scale,
                         bool poison)
{
    float *x = oc_new(c, sizeof(float) * (size_t)rows * (size_t)cols + 1);
    for (int32_t r = 0; r < rows; r++)
        oc_fill_row(c, oc_fill_pick(c), x + (int64_t)r * cols, cols, scale);
    if (poison && rows > 0)
        x[oc_range(c, 0, rows * cols - 1)] = oc_chance(c, 0.5) ? NAN : oc_chance(c, 0.5) ? INFINITY : -INFINITY;
    return oc_mat_of(c, dtype, rows, cols, x);
}

float *oc_floats(struct oc_case *c, int32_t n, double mean, double spread)
{
    float *x = oc_new(c, sizeof(float) * (size_t)n + 1);
    for (int32_t i = 0; i < n; i++)
        x[i] = (float)(mean + spread * oc_normal(c));
    return x;
}

struct oc_act oc_act_new(struct oc_case *c, const struct oc_mat *plain, enum nib_act_format format, bool keep_plain)
{
    int32_t       n = plain->rows, cols = plain->cols;
    struct oc_act a = {.format = format, .rows = n, .cols = cols};
    if (keep_plain || format == NIB_ACT_PLAIN)
        a.plain = *plain;
    if (format == NIB_ACT_PLAIN)
        return a;
    a.codes_stride = nib_act_codes_stride(format, cols);
    a.scales_stride = nib_act_scales_stride(format, cols);
    a.codes = oc_new(c, (size_t)(n * a.codes_stride) + 1);
    a.scales = oc_new(c, (size_t)(n * a.scales_stride) + 1);
    a.row_scale = oc_new(c, sizeof(float) * (size_t)n + 1);
    a.value = oc_new(c, sizeof(double) * (size_t)n * (size_t)cols + 1);
    float *x = oc_new(c, sizeof(float) * (size_t)cols);
    for (int64_t r = 0; r < n; r++) {
        uint8_t *codes = a.codes + r * a.codes_stride, *scales = a.scales + r * a.scales_stride;
        for (int64_t i = 0; i < cols; i++)
            x[i] = (float)plain->value[r * cols + i];
        oc_quantise(format, x, cols, codes, scales, &a.row_scale[r]);
        if (c->unit_scales) {
            const float one = 1;
            a.row_scale[r] = one;
            if (format == NIB_ACT_INT8)
                for (int64_t i = 0; i < a.scales_stride; i += 4)
                    memcpy(scales + i, &one, 4);
            else
                memset(scales, format == NIB_ACT_NVFP4 ? 0x38 : 0x7f, (size_t)a.scales_stride);
        }
        oc_dequantise(format, codes, scales, a.row_scale[r], cols, a.value + r * cols);
    }
    return a;
}

/* ---- Weights ---- */

static void fill_plain(struct oc_case *c, enum nib_weight_type type, uint8_t *data, int64_t n, double *value)
{
    double scale = oc_chance(c, 0.1) ? 1e-10 : 0.1;
    for (int64_t i = 0; i < n; i++) {
        float    x = (float)(oc_normal(c) * scale);
        uint16_t b = oc_bf16_bits(x);
        if (type == NIB_WEIGHT_F32)
            memcpy(data + 4 * i, &x, 4);
        else
            memcpy(data + 2 * i, &b, 2);
        value[i] = type == NIB_WEIGHT_F32 ? (double)x : (double)oc_bf16_value(b);
    }
}

/* Codes and scale bytes at random (scale bytes around 1, now and then the extremes), and what they mean. */
static void fill_quantised(struct oc_case *c, enum nib_weight_type type, int64_t n_out, int64_t n_in, uint8_t *data,
                           int64_t n_codes, uint8_t *scales, int64_t n_scales, double *value)
{
    bool extremes = oc_chance(c, 0.15);
    for (int64_t i = 0; i < n_codes; i++) {
        data[i] = (uint8_t)oc_range(c, 0, 255);
        if (type == NIB_WEIGHT_FP8 && (data[i] & 0x7f) == 0x7f)
            data[i] = 0x3c;
    }
    for (int64_t i = 0; i < n_scales; i++) {
        if (c->unit_scales)
            scales[i] = type == NIB_WEIGHT_NVFP4 ? 0x38 : 0x7f;
        else if (type == NIB_WEIGHT_NVFP4)
            scales[i] = (uint8_t)(extremes ? oc_range(c, 0, 0x7e) : oc_range(c, 0x28, 0x48));
        else
            scales[i] = (uint8_t)(extremes ? oc_pick(c, 5, (const int32_t[]){0, 1, 100, 127, 140})
                                           : oc_range(c, 115, 125));
    }
    for (int64_t o = 0; o < n_out; o++)
        for (int64_t k = 0; k < n_in; k++) {
            double v;
            if (type == NIB_WEIGHT_FP8)
                v = oc_e4m3_value(data[o * n_in + k]) *
                    oc_ue8m0_value(scales[o / 128 * ((n_in + 127) / 128) + k / 128]);
            else if (type == NIB_WEIGHT_MXFP4)
                v = oc_e2m1_value(data[(o * n_in + k) / 2] >> (k % 2 * 4) & 15) *
                    oc_ue8m0_value(scales[o * (n_in / 32) + k / 32]);
            else
                v = oc_e2m1_value(data[(o * n_in + k) / 2] >> (k % 2 * 4) & 15) *
                    oc_e4m3_value(scales[o * (n_in / 16) + k / 16]);
            value[o * n_in + k] = v;
        }
}

struct oc_weight *oc_weight_new(struct oc_case *c, enum nib_weight_type type, enum nib_act_format act, int32_t n_stack,
                                int32_t n_out, int32_t n_in)
{
    struct oc_weight       *w = oc_new(c, sizeof *w);
    struct nib_weight_part *part = oc_new(c, sizeof *part * (size_t)n_stack);
    int64_t                 n = (int64_t)n_out * n_in, n_codes = 0, n_scales = 0;
    w->desc = (struct nib_weight_desc){type, act, n_stack, n_out, n_in, part, NIB_USE_ANY};
    w->value = oc_new(c, sizeof(double) * (size_t)n_stack * (size_t)n);
    switch (type) {
    case NIB_WEIGHT_F32: n_codes = 4 * n; break;
    case NIB_WEIGHT_BF16: n_codes = 2 * n; break;
    case NIB_WEIGHT_FP8:
        n_codes = n;
        n_scales = (int64_t)((n_out + 127) / 128) * ((n_in + 127) / 128);
        break;
    case NIB_WEIGHT_MXFP4:
        n_codes = n / 2;
        n_scales = n / 32;
        break;
    case NIB_WEIGHT_NVFP4:
        n_codes = n / 2;
        n_scales = n / 16;
        break;
    }
    for (int32_t s = 0; s < n_stack; s++) {
        /* Tensors in a file need not be aligned. */
        uint8_t *data = (uint8_t *)oc_new(c, (size_t)n_codes + 8) + oc_range(c, 0, 7);
        uint8_t *scales = oc_new(c, (size_t)n_scales + 1);
        double  *value = w->value + s * n;
        float    global = type == NIB_WEIGHT_NVFP4 && !c->unit_scales ? (float)exp(-8 * oc_uniform(c)) : 1;
        if (n_scales)
            fill_quantised(c, type, n_out, n_in, data, n_codes, scales, n_scales, value);
        else
            fill_plain(c, type, data, n, value);
        for (int64_t i = 0; i < n; i++)
            value[i] *= (double)global;
        part[s] = (struct nib_weight_part){data, n_scales ? scales : NULL, global};
    }
    return w;
}

const double *oc_weight_row(const struct oc_weight *w, int32_t stack, int32_t out)
{
    return w->value + ((int64_t)stack * w->desc.n_out + out) * w->desc.n_in;
}

const double *oc_operand(const struct oc_act *x, const struct oc_weight *w, int32_t t)
{
    return (w->desc.act == NIB_ACT_PLAIN ? x->plain.value : x->value) + (int64_t)t * x->cols;
}
