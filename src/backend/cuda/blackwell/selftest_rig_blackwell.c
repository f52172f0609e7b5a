/* Random problems for the self-test, on the card and decoded on the host, and what holds results to them. */
#include "backend/cuda/blackwell/selftest_blackwell.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number/act_rows.h"

uint32_t nib_selftest_next(struct nib_selftest *t)
{
    t->card.random = t->card.random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(t->card.random >> 33);
}

void nib_selftest_differ(struct nib_selftest *t, const char *kernel, int32_t row, int32_t at, double got, double want)
{
    if (t->card.why[0] == 0)
        (void)snprintf(t->card.why, t->card.why_bytes, "%s %s: row %d, element %d is %.9g, wanted %.9g",
                       t->family->name, kernel, row, at, got, want);
}

/* Bytes of one matrix as stored; its values, without the global scale, to value. */
static void decode(const struct nib_weight_desc *d, const uint8_t *codes, const uint8_t *scales, float *value)
{
    for (int32_t o = 0; o < d->n_out; o++) {
        float *row = value + (int64_t)o * d->n_in;
        if (d->type == NIB_WEIGHT_NVFP4)
            nib_nvfp4_row_decode(codes + o * (d->n_in / 2), scales + o * (d->n_in / 16), 1.0f, d->n_in, row);
        else if (d->type == NIB_WEIGHT_MXFP4)
            nib_fp4_row_decode(codes + o * (d->n_in / 2), scales + o * (d->n_in / 32), d->n_in, row);
        else
            nib_fp8_row_decode(codes + o * d->n_in, scales + o / 128 * ((d->n_in + 127) / 128), d->n_in, 128, row);
    }
}

void nib_selftest_make_matrix(struct nib_selftest *t, struct nib_selftest_matrix *m, enum nib_weight_type type,
                              int32_t n_stack, int32_t n_out, int32_t n_in)
{
    const struct nib_weight_desc d = {type, t->format, n_stack, n_out, n_in, NULL, NIB_USE_ANY};
    bool   nvfp4 = type == NIB_WEIGHT_NVFP4, fp8 = type == NIB_WEIGHT_FP8;
    size_t values = (size_t)n_out * (size_t)n_in, codes = fp8 ? values : values / 2, packed_codes, packed_scales;
    size_t scales = fp8 ? (size_t)((n_out + 127) / 128 * ((n_in + 127) / 128)) : values / (nvfp4 ? 16 : 32);
    memset(m, 0, sizeof *m);
    if (!t->family->packs(&d, &packed_codes, &packed_scales)) {
        t->card.e = cudaErrorInvalidValue;
        return;
    }
    m->w.head = (struct nib_weight){type, t->format, n_stack, n_out, n_in};
    m->w.m = (struct nib_cuda_matrix){.codes = nib_selftest_take(&t->card, (size_t)n_stack * packed_codes),
                                      .scales = nib_selftest_take(&t->card, (size_t)n_stack * packed_scales),
                                      .codes_stride = (int64_t)packed_codes,
                                      .scales_stride = (int64_t)packed_scales,
                                      .type = (int32_t)type,
                                      .layout = (int32_t)t->family->layout,
                                      .n_stack = n_stack,
                                      .n_out = n_out,
                                      .n_in = n_in};
    m->value = malloc((size_t)n_stack * values * sizeof *m->value);
    uint8_t *stored = malloc(codes + scales);
    if (!m->value || !stored) {
        t->card.e = cudaErrorMemoryAllocation;
        free(stored);
        return;
    }
    for (int32_t i = 0; i < n_stack; i++) {
        for (size_t k = 0; k < codes; k++) {
            stored[k] = (uint8_t)nib_selftest_next(t);
            if (fp8 && (stored[k] & 0x7f) == 0x7f) /* NaN */
                stored[k] = 0x38;
        }
        for (size_t k = 0; k < scales; k++)
            stored[codes + k] = (uint8_t)(nvfp4 ? 0x28 + nib_selftest_next(t) % 0x20 : 120 + nib_selftest_next(t) % 8);
        decode(&d, stored, stored + codes, m->value + (size_t)i * values);
        m->alpha[i] = nvfp4 ? 1e-2f * (float)(i + 3) : 1.0f;
        const uint8_t *on = nib_selftest_put(&t->card, stored, codes + scales);
        if (t->card.e == cudaSuccess)
            t->card.e = t->family->pack(t->s.handle, &m->w.m, i, on, on + codes);
    }
    m->w.m.alpha0 = m->alpha[0];
    if (n_stack > 1)
        m->w.m.alpha = nib_selftest_put(&t->card, m->alpha, (size_t)n_stack * sizeof *m->alpha);
    free(stored);
}

void nib_selftest_encode(enum nib_act_format format, const float *x, int32_t n, uint8_t *codes, uint8_t *scales,
                         float *g)
{
    *g = 1.0f;
    if (format == NIB_ACT_NVFP4)
        nib_nvfp4_row_encode(x, n, codes, scales, g);
    else
        nib_fp8_row_encode(x, n, 128, codes, scales);
}

void nib_selftest_decode_row(enum nib_act_format format, const uint8_t *codes, const uint8_t *scales, float g,
                             int32_t n, float *x)
{
    if (format == NIB_ACT_NVFP4)
        nib_nvfp4_row_decode(codes, scales, g, n, x);
    else
        nib_fp8_row_decode(codes, scales, n, 128, x);
}

struct nib_act nib_selftest_make_rows(struct nib_selftest *t, int32_t n, int32_t cols, float *x)
{
    struct nib_act a = {.format = t->format,
                        .rows = n,
                        .cols = cols,
                        .codes_stride = nib_act_codes_stride(t->format, cols),
                        .scales_stride = nib_act_scales_stride(t->format, cols)};
    uint8_t *codes = calloc((size_t)n, (size_t)a.codes_stride), *scales = calloc((size_t)n, (size_t)a.scales_stride);
    float   *g = malloc((size_t)n * sizeof *g);
    if (!codes || !scales || !g) {
        t->card.e = cudaErrorMemoryAllocation;
    } else {
        for (int32_t i = 0; i < n; i++) {
            for (int32_t k = 0; k < cols; k++)
                x[i * cols + k] = ((float)(nib_selftest_next(t) % 2001) - 1000.0f) * (i % 3 == 2 ? 1e-5f : 1e-2f);
            if (i == 1)
                x[i * cols + 5] = NAN;
            nib_selftest_encode(t->format, x + i * cols, cols, codes + i * a.codes_stride,
                                scales + i * a.scales_stride, &g[i]);
            nib_selftest_decode_row(t->format, codes + i * a.codes_stride, scales + i * a.scales_stride, g[i], cols,
                                    x + i * cols);
        }
        a.codes = nib_selftest_put(&t->card, codes, (size_t)n * (size_t)a.codes_stride);
        a.scales = nib_selftest_put(&t->card, scales, (size_t)n * (size_t)a.scales_stride);
        a.row_scale = nib_selftest_put(&t->card, g, (size_t)n * sizeof *g);
    }
    free(codes);
    free(scales);
    free(g);
    return a;
}

void nib_selftest_hold_product(struct nib_selftest *t, const char *kernel, int32_t row, const float *x,
                               const struct nib_selftest_matrix *m, int32_t stack, const float *y)
{
    int32_t n_out = m->w.m.n_out, n_in = m->w.m.n_in;
    for (int32_t o = 0; o < n_out; o++) {
        const float *w = m->value + ((size_t)stack * (size_t)n_out + (size_t)o) * (size_t)n_in;
        double       sum = 0, size = 0;
        for (int32_t k = 0; k < n_in; k++) {
            double v = (double)x[k] * (double)w[k] * (double)m->alpha[stack];
            sum += v;
            size += fabs(v);
        }
        if (isnan(sum) ? !isnan(y[o]) : !(fabs((double)y[o] - sum) <= 0x1p-20 * size))
            nib_selftest_differ(t, kernel, row, o, (double)y[o], sum);
    }
}

void nib_selftest_hold_swiglu(struct nib_selftest *t, const char *kernel, int32_t row, const float *x,
                              const struct nib_selftest_matrix *w1, const struct nib_selftest_matrix *w3, int32_t stack,
                              double limit, const float *h)
{
    const struct nib_selftest_matrix *w[2] = {w1, w3};
    int32_t                           n_out = w1->w.m.n_out, n_in = w1->w.m.n_in;
    for (int32_t o = 0; o < n_out; o++) {
        double sum[2] = {0, 0}, size[2] = {0, 0};
        for (int p = 0; p < 2; p++)
            for (int32_t k = 0; k < n_in; k++) {
                int64_t at = ((int64_t)stack * n_out + o) * n_in + k;
                double  v = (double)x[k] * (double)w[p]->value[at] * (double)w[p]->alpha[stack];
                sum[p] += v;
                size[p] += fabs(v);
            }
        if (limit > 0 && !isnan(sum[0]) && !isnan(sum[1])) {
            sum[0] = fmin(sum[0], limit);
            sum[1] = fmax(fmin(sum[1], limit), -limit);
        }
        double silu = sum[0] / (1 + exp(-sum[0])), want = silu * sum[1];
        /* silu's slope is at most 1.1, a clamp's at most 1. */
        double bound = 0x1p-20 * (1.1 * size[0] * (fabs(sum[1]) + size[1] * 0x1p-20) + fabs(silu) * size[1] +
                                  4 * fabs(want));
        if (isnan(want) ? !isnan(h[o]) : !(fabs((double)h[o] - want) <= bound))
            nib_selftest_differ(t, kernel, row, o, (double)h[o], want);
    }
}

/* A code without its sign bit on its scale: neighbours differ by 1. */
static int32_t rung(uint32_t code, uint32_t sign)
{
    int32_t v = (int32_t)(code & (sign - 1));
    return code & sign ? -v : v;
}

void nib_selftest_hold_codes(struct nib_selftest *t, const char *kernel, int32_t row, const float *x, int32_t n,
                             const uint8_t *codes, const uint8_t *scales, float g, int32_t steps)
{
    bool    nvfp4 = t->format == NIB_ACT_NVFP4;
    uint8_t want_codes[IN], want_scales[IN / 16];
    float   want;
    nib_selftest_encode(t->format, x, n, want_codes, want_scales, &want);
    if (nvfp4 && (isnan(want) || isnan(g))) {
        if (!isnan(want) || !isnan(g))
            nib_selftest_differ(t, kernel, row, -1, (double)g, (double)want);
        return;
    }
    if (nvfp4 && fabsf(g - want) > (float)steps * 0x1p-20f * want)
        nib_selftest_differ(t, kernel, row, -1, (double)g, (double)want);
    for (int32_t i = 0; i < (nvfp4 ? n / 16 : (n + 127) / 128); i++)
        if (abs(scales[i] - want_scales[i]) > (nvfp4 ? steps : 0))
            nib_selftest_differ(t, kernel, row, i * (nvfp4 ? 16 : 128), scales[i], want_scales[i]);
    for (int32_t i = 0; i < n; i++) {
        uint32_t shift = nvfp4 ? (uint32_t)i % 2 * 4 : 0, sign = nvfp4 ? 8 : 128;
        uint32_t got = codes[nvfp4 ? i / 2 : i], wanted = want_codes[nvfp4 ? i / 2 : i];
        bool     is_nan = !nvfp4 && want_scales[i / 128] == 255;
        if (!is_nan && abs(rung(got >> shift, sign) - rung(wanted >> shift, sign)) > steps)
            nib_selftest_differ(t, kernel, row, i, got, wanted);
    }
}
