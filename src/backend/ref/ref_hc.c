/* Hyper-connections: collapse of the streams before a module, their mixing after it, and the final collapse. */
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"

/* mix[i] = (fn[i] . X) * rsqrt(mean(X^2) + eps) for n values. */
static void mix_streams(const float *streams, int64_t width, const float *fn, int32_t n, float eps, double *mix)
{
    double ir = 1 / sqrt(nib_ref_dot_f32(streams, streams, width) / (double)width + (double)eps);
    for (int32_t i = 0; i < n; i++)
        mix[i] = nib_ref_dot_f32(fn + i * width, streams, width) * ir;
}

/* y = sum_i weight[i] * stream[i]; in a row of floats, rounded to bf16 if the streams are. */
static void collapse(const struct nib_mat *m, const float *streams, const double *weight, int32_t n_hc, int32_t dim,
                     float *y)
{
    for (int32_t c = 0; c < dim; c++) {
        float sum = 0;
        for (int32_t i = 0; i < n_hc; i++)
            sum += (float)weight[i] * streams[(int64_t)i * dim + c];
        y[c] = nib_ref_round((double)sum, m->dtype == NIB_DTYPE_BF16);
    }
}

/* Rows (over = destination) or columns of C [n][n], each divided by its sum + eps. */
static void normalise(double *c, int32_t n, bool columns, double eps)
{
    for (int32_t i = 0; i < n; i++) {
        double sum = eps;
        for (int32_t j = 0; j < n; j++)
            sum += columns ? c[j * n + i] : c[i * n + j];
        for (int32_t j = 0; j < n; j++)
            c[columns ? j * n + i : i * n + j] /= sum;
    }
}

static void sinkhorn(double *c, int32_t n, int32_t n_iters, double eps)
{
    for (int32_t j = 0; j < n; j++) {
        double *row = c + j * n, most = row[0], sum = 0;
        for (int32_t k = 1; k < n; k++)
            most = row[k] > most ? row[k] : most;
        for (int32_t k = 0; k < n; k++)
            sum += row[k] = exp(row[k] - most);
        for (int32_t k = 0; k < n; k++)
            row[k] = row[k] / sum + eps;
    }
    normalise(c, n, true, eps);
    for (int32_t i = 1; i < n_iters; i++) {
        normalise(c, n, false, eps);
        normalise(c, n, true, eps);
    }
}

static void hc_pre_row(const struct nib_hc_pre_args *a, int32_t t, struct nib_ref_thread *th)
{
    int32_t      n = a->n_hc, dim = a->streams.cols / n;
    const float *streams = nib_ref_row(&a->streams, t, th->row[0]);
    double      *mix = th->weight, *pre = th->sum;
    mix_streams(streams, a->streams.cols, a->fn, (2 + n) * n, a->norm_eps, mix);
    for (int32_t i = 0; i < n; i++) {
        double post = mix[n + i] * (double)a->scale[1] + (double)a->base[n + i];
        pre[i] = nib_ref_sigmoid(mix[i] * (double)a->scale[0] + (double)a->base[i]) + (double)a->hc_eps;
        nib_ref_store(&a->post, t, i, 2 * nib_ref_sigmoid(post));
    }
    double *comb = mix + 2 * n;
    for (int32_t i = 0; i < n * n; i++)
        comb[i] = comb[i] * (double)a->scale[2] + (double)a->base[2 * n + i];
    sinkhorn(comb, n, a->n_iters, (double)a->hc_eps);
    for (int32_t i = 0; i < n * n; i++)
        nib_ref_store(&a->comb, t, i, comb[i]);

    float *x = th->row[1];
    collapse(&a->streams, streams, pre, n, dim, x);
    if (a->collapsed.data)
        nib_ref_store_row(&a->collapsed, t, x);
    nib_ref_rms_norm(x, a->norm_weight, dim, a->norm_eps, x);
    nib_ref_act_store(&a->x, t, x);
}

enum nib_status nib_ref_hc_pre(struct nib_stream *s, const struct nib_hc_pre_args *a)
{
    int64_t work = (int64_t)a->streams.rows * a->streams.cols * (2 + a->n_hc) * a->n_hc;
#pragma omp parallel for num_threads(nib_ref_threads(s, work))
    for (int32_t t = 0; t < a->streams.rows; t++)
        hc_pre_row(a, t, nib_ref_thread(s));
    return NIB_OK;
}

enum nib_status nib_ref_hc_post(struct nib_stream *s, const struct nib_hc_post_args *a)
{
    int32_t n = a->n_hc, dim = a->y.cols;
    int64_t work = (int64_t)a->streams.rows * a->streams.cols * n;
#pragma omp parallel for num_threads(nib_ref_threads(s, work))
    for (int32_t t = 0; t < a->streams.rows; t++) {
        struct nib_ref_thread *th = nib_ref_thread(s);
        const float           *y = nib_ref_row(&a->y, t, th->row[1]);
        const float           *post = (const float *)a->post.data + t * a->post.stride;
        const float           *comb = (const float *)a->comb.data + t * a->comb.stride;
        float                 *old = th->row[2];
        memcpy(old, nib_ref_row(&a->streams, t, th->row[0]), (size_t)a->streams.cols * sizeof *old);
        for (int32_t k = 0; k < n; k++) {
            for (int32_t c = 0; c < dim; c++) {
                double sum = (double)post[k] * (double)y[c];
                for (int32_t j = 0; j < n; j++)
                    sum += (double)comb[j * n + k] * (double)old[(int64_t)j * dim + c];
                nib_ref_store(&a->streams, t, (int64_t)k * dim + c, sum);
            }
        }
    }
    return NIB_OK;
}

enum nib_status nib_ref_hc_head(struct nib_stream *s, const struct nib_hc_head_args *a)
{
    int32_t n = a->n_hc, dim = a->streams.cols / n;
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)a->n * a->streams.cols * n))
    for (int32_t t = 0; t < a->n; t++) {
        struct nib_ref_thread *th = nib_ref_thread(s);
        const float           *streams = nib_ref_row(&a->streams, a->row[t], th->row[0]);
        double                *weight = th->weight;
        float                 *x = th->row[1];
        mix_streams(streams, a->streams.cols, a->fn, n, a->norm_eps, weight);
        for (int32_t i = 0; i < n; i++)
            weight[i] = nib_ref_sigmoid(weight[i] * (double)a->scale[0] + (double)a->base[i]) + (double)a->hc_eps;
        collapse(&a->streams, streams, weight, n, dim, x);
        if (a->collapsed.data)
            nib_ref_store_row(&a->collapsed, t, x);
        nib_ref_rms_norm(x, a->norm_weight, dim, a->norm_eps, x);
        nib_ref_store_row(&a->x, t, x);
    }
    return NIB_OK;
}
