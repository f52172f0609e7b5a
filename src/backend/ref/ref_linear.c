/* Products with weight matrices: linear, grouped o_a, the head; and the embedding, which reads one. */
#include <assert.h>

#include "backend/ref/ref.h"

enum nib_status nib_ref_embed(struct nib_stream *s, const struct nib_embed_args *a)
{
    int32_t dim = a->w->n_in;
    for (int32_t t = 0; t < a->n_rows; t++) {
        int32_t token = a->token[t];
        assert(token >= 0 && token < a->w->n_out);
        const double *row = nib_ref_weight_row(a->w, 0, token, s->thread[0].weight);
        double        scale = nib_ref_weight_scale(a->w, 0);
        for (int32_t c = 0; c < a->n_copies; c++) {
            for (int32_t i = 0; i < dim; i++)
                nib_ref_store(&a->y, t, (int64_t)c * dim + i, row[i] * scale);
        }
    }
    return NIB_OK;
}

/* y = x . w of n rows; each weight row is decoded once. */
static void multiply(const struct nib_stream *s, const float *x, int64_t stride, int32_t n, const struct nib_weight *w,
                     const struct nib_mat *y)
{
    double scale = nib_ref_weight_scale(w, 0);
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)w->n_out * w->n_in * n))
    for (int32_t o = 0; o < w->n_out; o++) {
        const double *row = nib_ref_weight_row(w, 0, o, nib_ref_thread(s)->weight);
        for (int32_t t = 0; t < n; t++)
            nib_ref_store(y, t, o, scale * nib_ref_dot(row, x + t * stride, w->n_in));
    }
}

enum nib_status nib_ref_linear(struct nib_stream *s, const struct nib_linear_args *a)
{
    const float *part[2] = {NULL, NULL}; /* plain, quantised: made when first asked for */
    int64_t      stride[2];
    if (a->x.rows == 0)
        return NIB_OK;
    for (int32_t i = 0; i < a->n_weights; i++) {
        int q = a->w[i]->act != NIB_ACT_PLAIN;
        assert(a->w[i]->n_in == a->x.cols);
        if (!part[q])
            part[q] = nib_ref_act_rows(s, &a->x, a->w[i]->act, s->x[q], &stride[q]);
        multiply(s, part[q], stride[q], a->x.rows, a->w[i], &a->y[i]);
    }
    return NIB_OK;
}

enum nib_status nib_ref_head(struct nib_stream *s, const struct nib_head_args *a)
{
    struct nib_act x = {.plain = a->x, .rows = a->x.rows, .cols = a->x.cols};
    int64_t        stride;
    if (a->x.rows == 0)
        return NIB_OK;
    const float *rows = nib_ref_act_rows(s, &x, NIB_ACT_PLAIN, s->x[0], &stride);
    multiply(s, rows, stride, a->x.rows, a->w, &a->logits);
    return NIB_OK;
}

enum nib_status nib_ref_o_a(struct nib_stream *s, const struct nib_o_a_args *a)
{
    struct nib_act x = {.plain = a->x, .rows = a->x.rows, .cols = a->x.cols};
    int32_t        n = a->x.rows, n_in = a->w->n_in, n_out = a->w->n_out, n_rank = n_out / a->n_groups;
    int64_t        stride;
    double         scale = nib_ref_weight_scale(a->w, 0);
    float         *out = s->x[1];
    if (n == 0)
        return NIB_OK;
    assert((int64_t)n * n_out <= s->dims.n_rows_max * s->n_wide);
    const float *rows = nib_ref_act_rows(s, &x, NIB_ACT_PLAIN, s->x[0], &stride);
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)n_out * n_in * n))
    for (int32_t o = 0; o < n_out; o++) {
        const double *row = nib_ref_weight_row(a->w, 0, o, nib_ref_thread(s)->weight);
        for (int32_t t = 0; t < n; t++) {
            const float *group = rows + t * stride + (int64_t)(o / n_rank) * n_in;
            out[(int64_t)t * n_out + o] = (float)(scale * nib_ref_dot(row, group, n_in));
        }
    }
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)n_out * n))
    for (int32_t t = 0; t < n; t++)
        nib_ref_act_store(&a->y, t, out + (int64_t)t * n_out);
    return NIB_OK;
}
