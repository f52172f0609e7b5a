/* The observing op table. linear and moe see plain rows, since calibration runs without quantised activations. */
#include "quantize/observe_quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quantize/decode_quant.h"

static _Thread_local struct nib_quant_observer *t_observer;

static const float *row_of(const struct nib_mat *m, int64_t i)
{
    return (const float *)m->data + i * m->stride;
}

/* Rows into an input's sums; products only above the diagonal. */
static void add_rows(struct nib_quant_input *in, const float *const *row, int64_t n, int32_t n_threads)
{
    if (!in->square)
        return;
    for (int64_t t = 0; t < n; t++)
        for (int64_t k = 0; k < in->n_in; k++) {
            const float a = fabsf(row[t][k]);
            in->square[k] += (double)row[t][k] * (double)row[t][k];
            in->amax = a > in->amax ? a : in->amax;
        }
    in->n_rows += (uint64_t)n;
    if (!in->product)
        return;
#pragma omp parallel for schedule(dynamic, 16) num_threads(n * in->n_in * in->n_in < 1 << 20 ? 1 : n_threads)
    for (int64_t i = 0; i < in->n_in; i++)
        for (int64_t t = 0; t < n; t++) {
            const double x = (double)row[t][i];
            const float *r = row[t];
            double      *p = in->product + i * in->n_in;
            for (int64_t j = i; j < in->n_in; j++)
                p[j] += x * (double)r[j];
        }
}

static void add_mat(struct nib_quant_observer *o, int input, const struct nib_mat *m)
{
    const float **row = malloc((size_t)m->rows * sizeof *row + 1);
    if (!row) {
        o->status = NIB_E_MEMORY;
        return;
    }
    for (int64_t i = 0; i < m->rows; i++)
        row[i] = row_of(m, i);
    add_rows(&o->input[input], row, m->rows, o->n_threads);
    free(row);
}

static enum nib_status observe_linear(struct nib_stream *s, const struct nib_linear_args *a)
{
    struct nib_quant_observer *o = t_observer;
    const struct nib_layer    *l = o->layer;
    if (a->w[0] == l->wq_a)
        add_mat(o, NIB_INPUT_ATTN, &a->x.plain);
    else if (a->w[0] == l->wq_b)
        add_mat(o, NIB_INPUT_Q, &a->x.plain);
    else if (a->w[0] == l->wo_b)
        add_mat(o, NIB_INPUT_O, &a->x.plain);
    return o->ops->linear(s, a);
}

/* ---- What w2 reads ---- */

static double dot(const double *w, const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += w[k] * (double)x[k];
    return sum;
}

/* silu(w1 x) * (w3 x) with the model's clamps, for n rows; [n][inner]. */
static float *inner_rows(struct nib_quant_observer *o, const struct nib_source *w1, const struct nib_source *w3,
                         int32_t i, const float *const *row, int64_t n, float limit)
{
    const int64_t inner = w1->n_out, dim = w1->n_in;
    float        *out = malloc((size_t)(n * inner) * sizeof *out + 1);
    bool          failed = out == NULL;
#pragma omp parallel num_threads(n * inner * dim < 1 << 20 ? 1 : o->n_threads)
    {
        double *w = malloc((size_t)dim * 2 * sizeof *w);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < inner; r++) {
            if (!w || !out) {
#pragma omp atomic write
                failed = true;
                continue;
            }
            const double s1 = nib_quant_decode_row(w1->type, &w1->part[i], dim, r, w);
            const double s3 = nib_quant_decode_row(w3->type, &w3->part[i], dim, r, w + dim);
            for (int64_t t = 0; t < n; t++) {
                double g = dot(w, row[t], dim) * s1, u = dot(w + dim, row[t], dim) * s3;
                if (limit > 0) {
                    g = fmin(g, (double)limit);
                    u = fmax(fmin(u, (double)limit), -(double)limit);
                }
                out[t * inner + r] = (float)(g / (1 + exp(-g)) * u);
            }
        }
        free(w);
    }
    if (failed) {
        o->status = NIB_E_MEMORY;
        free(out);
        return NULL;
    }
    return out;
}

static void add_inner(struct nib_quant_observer *o, int input, const struct nib_source *w1, const struct nib_source *w3,
                      int32_t i, const float *const *row, int64_t n, float limit)
{
    if (n == 0 || !o->input[input].square || !w1 || !w3)
        return;
    float        *inner = inner_rows(o, w1, w3, i, row, n, limit);
    const float **at = malloc((size_t)n * sizeof *at);
    for (int64_t t = 0; inner && at && t < n; t++)
        at[t] = inner + t * w1->n_out;
    if (inner && at)
        add_rows(&o->input[input], at, n, o->n_threads);
    else
        o->status = NIB_E_MEMORY;
    free(inner);
    free(at);
}

static enum nib_status observe_moe(struct nib_stream *s, const struct nib_moe_args *a)
{
    struct nib_quant_observer *o = t_observer;
    struct nib_moe_args        asked = *a;
    const int64_t              n = a->x.plain.rows;
    const float              **row = malloc((size_t)n * sizeof *row + 1);
    asked.chosen = o->chosen;
    const enum nib_status status = row ? o->ops->moe(s, &asked) : NIB_E_MEMORY;
    for (int64_t t = 0; status == NIB_OK && t < n; t++)
        row[t] = row_of(&a->x.plain, t);
    if (status == NIB_OK) {
        add_rows(&o->input[NIB_INPUT_FFN], row, n, o->n_threads);
        add_inner(o, NIB_INPUT_SHARED_INNER, o->sw1, o->sw3, 0, row, n, a->limit);
    }
    for (int32_t e = 0; status == NIB_OK && e < a->n_experts; e++) {
        int64_t n_own = 0;
        for (int64_t t = 0; t < n; t++)
            for (int32_t k = 0; k < a->top_k; k++)
                if (o->chosen[t * a->top_k + k] == e)
                    row[n_own++] = row_of(&a->x.plain, t);
        add_rows(&o->input[NIB_INPUT_EXPERTS + 2 * e], row, n_own, o->n_threads);
        add_inner(o, NIB_INPUT_EXPERTS + 2 * e + 1, o->w1, o->w3, e, row, n_own, a->limit);
    }
    free(row);
    return status;
}

const struct nib_ops *nib_quant_observe(struct nib_quant_observer *o, struct nib_ops *table)
{
    t_observer = o;
    if (!o)
        return NULL;
    *table = *o->ops;
    table->linear = observe_linear;
    table->moe = observe_moe;
    return table;
}
