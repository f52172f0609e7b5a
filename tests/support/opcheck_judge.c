/* Bounds and comparisons that several checks share. */
#include "support/opcheck.h"

#include <math.h>
#include <string.h>

double oc_dot_bound(double mag, int64_t n)
{
    /* The cpu backend's longest chain: 16 products of a block (which round before they are added where there is no fused
     * multiply-add), its scale, one sum for each block of 16 channels, 2 scales at the end. The absolute part: products
     * and sums may be subnormal, which loses up to 2^-149 each. */
    return ((double)n / 16 + 20) * OC_U * mag + (double)n * 0x1p-148;
}

void oc_compare(struct oc_worst *w, double got, double ref, double bound, int64_t row, int64_t col)
{
    bool   ok = isfinite(ref) ? fabs(got - ref) <= bound : !isfinite(got);
    double excess = ok ? 0 : isfinite(got) && bound > 0 ? fabs(got - ref) / bound : INFINITY;
    /* A bound that is itself not finite says that fp32 may overflow: then nothing is wrong. */
    if (ok || (isfinite(ref) && !isfinite(bound)))
        return;
    if (!w->failed || excess > w->excess)
        *w = (struct oc_worst){excess, got, ref, bound, row, col, true};
}

void oc_conclude(struct oc_case *c, const struct oc_worst *w, const char *what)
{
    ++*c->n_checks;
    if (w->failed)
        oc_fail(c, "%s[%lld][%lld] is %.9g, wanted %.9g +- %.3g (%.3g times the bound)", what, (long long)w->row,
                (long long)w->col, w->got, w->ref, w->bound, w->excess);
}

double oc_out_bound(const struct oc_output *o, double ref)
{
    return o->kind == OC_F32 ? 2 * OC_U * fabs(ref) + 0x1p-149 : oc_b16(ref);
}

void oc_same(struct oc_case *c, const struct oc_result *ref, const struct oc_result *got, const char *name)
{
    const struct oc_output *a = oc_find(ref, name), *b = oc_find(got, name);
    ++*c->n_checks;
    if (a->bytes != b->bytes || memcmp(a->data, b->data, a->bytes) != 0)
        oc_fail(c, "%s differs from ref, and must not", name);
}

void oc_judge_emitted(struct oc_case *c, const struct oc_result *got, const struct oc_output *plain,
                      enum nib_act_format format, int32_t rows, int32_t cols)
{
    const struct oc_output *codes = oc_find(got, "codes"), *scales = oc_find(got, "scales");
    const struct oc_output *row_scale = oc_find(got, "row_scale");
    float                  *x = oc_new(c, sizeof(float) * (size_t)cols);
    uint8_t                *own_codes = oc_new(c, (size_t)nib_act_codes_stride(format, cols) + 1);
    uint8_t                *own_scales = oc_new(c, (size_t)nib_act_scales_stride(format, cols) + 1);
    double                 *want = oc_new(c, sizeof(double) * (size_t)cols);
    double                 *have = oc_new(c, sizeof(double) * (size_t)cols);
    if (format == NIB_ACT_PLAIN)
        return;
    ++*c->n_checks;
    for (int32_t r = 0; r < rows; r++) {
        float own_g = 0, g = row_scale ? (float)oc_at(row_scale, r, 0) : 0;
        for (int32_t i = 0; i < cols; i++)
            x[i] = (float)oc_at(plain, r, i);
        oc_quantise(format, x, cols, own_codes, own_scales, &own_g);
        oc_dequantise(format, own_codes, own_scales, own_g, cols, want);
        oc_dequantise(format, oc_row_at(codes, r), oc_row_at(scales, r), g, cols, have);
        for (int32_t i = 0; i < (cols + 127) / 128 && format == NIB_ACT_FP8; i++)
            if (oc_row_at(scales, r)[i] != own_scales[i])
                oc_fail(c, "row %d, block %d: scale byte %d, wanted %d", r, i, oc_row_at(scales, r)[i], own_scales[i]);
        for (int32_t i = 0; i < cols; i++)
            if (have[i] != want[i] && !(isnan(have[i]) && isnan(want[i]))) {
                oc_fail(c, "quantised row %d, channel %d of %d: %.9g became %.9g, wanted %.9g", r, i, cols,
                        (double)x[i], have[i], want[i]);
                return;
            }
    }
}

void oc_norm_bound(const double *x, const double *err, const float *weight, double eps, int32_t n, double *y,
                   double *bound)
{
    double sum = 0, cross = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
        cross += err ? 2 * fabs(x[i]) * err[i] + err[i] * err[i] : 0;
    }
    double mean = sum / n + eps, r = 1 / sqrt(mean);
    /* All terms of the mean are positive: its relative error is that of the chain of roundings, half of it in r. */
    double rel = 0.5 * (((double)n / 16 + 8) * OC_U + cross / n / mean) + 8 * OC_U;
    for (int32_t i = 0; i < n; i++) {
        double w = weight ? (double)weight[i] : 1;
        y[i] = x[i] * r * w;
        bound[i] = fabs(y[i]) * rel + (err ? err[i] * r * fabs(w) * (1 + rel) : 0) + 0x1p-148;
    }
    /* Where the sum leaves fp32, what comes out is not worth comparing. */
    if (sum > 1e36)
        for (int32_t i = 0; i < n; i++)
            bound[i] = INFINITY;
}

void oc_rotate(const struct nib_rope *rope, int32_t pos, bool inverse, double *x, double *err, int32_t d)
{
    for (int32_t i = 0; i < rope->n_rot / 2; i++) {
        double  angle = (double)((float)pos * rope->freq[i]), co = cos(angle), si = inverse ? -sin(angle) : sin(angle);
        double *p = x + d - rope->n_rot + 2 * i, *e = err + d - rope->n_rot + 2 * i;
        double  a = p[0], b = p[1], mag = fabs(a) + fabs(b), both = e[0] + e[1] + 6 * OC_U * mag + 0x1p-148;
        p[0] = a * co - b * si;
        p[1] = a * si + b * co;
        e[0] = e[1] = both;
    }
}
