/* Manifold-constrained hyper-connections: before a module, after it, and the final collapse. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <string.h>

static int32_t min_of(int32_t a, int32_t b) { return a < b ? a : b; }

static float exp_one(const struct nib_stream *s, float x)
{
    s->k.exp_shifted(&x, 0, 1);
    return x;
}

static float sigmoid(const struct nib_stream *s, float x) { return 1.0f / (1.0f + exp_one(s, -x)); }

typedef float f32x4 __attribute__((vector_size(16)));

static void transpose4(f32x4 *v)
{
    f32x4 a01 = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5), a23 = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    f32x4 b01 = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7), b23 = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    v[0] = __builtin_shufflevector(a01, a23, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a01, a23, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(b01, b23, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(b01, b23, 2, 3, 6, 7);
}

/* Divide each lane of 4 vectors by the sum of that lane. */
static void divide_by_sums(f32x4 *v, float eps)
{
    f32x4 sum = ((v[0] + v[1]) + v[2]) + v[3] + eps;
    for (int i = 0; i < 4; i++)
        v[i] /= sum;
}

/* The iterations for four streams, which every model has: the same operations as for any number, four at a time. */
static void sinkhorn4(float *c, int32_t n_iters, float eps)
{
    f32x4 v[4];
    memcpy(v, c, sizeof v);
    for (int32_t i = 0; i < n_iters; i++) {
        if (i > 0) {
            transpose4(v);
            divide_by_sums(v, eps);
            transpose4(v);
        }
        divide_by_sums(v, eps);
    }
    memcpy(c, v, sizeof v);
}

/* c is [n][n], source stream first. Rows are softmaxed, then columns and rows divided by their sums in turn, columns
 * last. */
static void sinkhorn(const struct nib_stream *s, float *c, int32_t n, int32_t n_iters, float eps)
{
    for (int32_t j = 0; j < n; j++) {
        float *row = c + j * n, top = row[0], sum = 0;
        for (int32_t k = 1; k < n; k++)
            top = row[k] > top ? row[k] : top;
        s->k.exp_shifted(row, top, n);
        for (int32_t k = 0; k < n; k++)
            sum += row[k];
        for (int32_t k = 0; k < n; k++)
            row[k] = row[k] / sum + eps;
    }
    if (n == 4) {
        sinkhorn4(c, n_iters, eps);
        return;
    }
    for (int32_t i = 0; i < n_iters; i++) {
        for (int32_t j = 0; i > 0 && j < n; j++) {
            float sum = 0;
            for (int32_t k = 0; k < n; k++)
                sum += c[j * n + k];
            for (int32_t k = 0; k < n; k++)
                c[j * n + k] /= sum + eps;
        }
        for (int32_t k = 0; k < n; k++) {
            float sum = 0;
            for (int32_t j = 0; j < n; j++)
                sum += c[j * n + k];
            for (int32_t j = 0; j < n; j++)
                c[j * n + k] /= sum + eps;
        }
    }
}

/* x = sum over streams ascending of weight[i] * stream[i]. */
static void collapse(const float *streams, const float *weight, int32_t n_hc, int32_t dim, float *x)
{
    memset(x, 0, sizeof(float) * (size_t)dim);
    for (int32_t i = 0; i < n_hc; i++)
        for (int32_t c = 0; c < dim; c++)
            x[c] += weight[i] * streams[i * dim + c];
}

static void hc_pre_row(const struct nib_stream *s, const struct nib_hc_pre_args *a, const float *streams, float *mix,
                       int64_t t, float *x)
{
    int32_t n_hc = a->n_hc, dim = a->x.cols, n_mix = (2 + n_hc) * n_hc;
    float   ir = nib_cpu_rms_factor(s, streams, a->norm_eps, n_hc * dim);
    float  *post = (float *)nib_cpu_row(&a->post, t), *comb = (float *)nib_cpu_row(&a->comb, t);
    for (int32_t i = 0; i < n_mix; i++)
        mix[i] = mix[i] * ir * a->scale[i < n_hc ? 0 : i < 2 * n_hc ? 1 : 2] + a->base[i];
    for (int32_t i = 0; i < n_hc; i++) {
        mix[i] = sigmoid(s, mix[i]) + a->hc_eps;
        post[i] = 2.0f * sigmoid(s, mix[n_hc + i]);
    }
    memcpy(comb, mix + 2 * n_hc, sizeof(float) * (size_t)(n_hc * n_hc));
    sinkhorn(s, comb, n_hc, a->n_iters, a->hc_eps);

    collapse(streams, mix, n_hc, dim, x);
    if (a->streams.dtype == NIB_DTYPE_BF16)
        s->k.bf16_round(x, dim);
    if (a->collapsed.data)
        nib_cpu_row_write(s, &a->collapsed, t, 0, dim, x);
    nib_cpu_rms_norm(s, x, a->norm_weight, a->norm_eps, dim);
    nib_cpu_act_write(s, &a->x, t, x);
}

/* Rows that a thread takes at a time: as many as share the loads of fn in registers, twice over. */
enum { HC_ROWS = 4 };

/* Streams from row0 on as fp32, zeros up to a whole block: where they lie, or in the stream's scratch. */
static struct nib_cpu_rows rows_of(const struct nib_stream *s, const struct nib_mat *streams, int32_t row0)
{
    if (streams->dtype == NIB_DTYPE_F32 && streams->cols % NIB_CPU_BLOCK == 0)
        return (struct nib_cpu_rows){.plain = nib_cpu_row(streams, row0), .plain_stride = streams->stride};
    return (struct nib_cpu_rows){.plain = s->scratch.plain, .plain_stride = nib_cpu_stride(streams->cols)};
}

static void decode_row(const struct nib_stream *s, const struct nib_mat *streams, int64_t t, float *to)
{
    const int32_t width = streams->cols;
    const float  *x = nib_cpu_row_read(s, streams, t, 0, width, to);
    if (x != to)
        memcpy(to, x, sizeof(float) * (size_t)width);
    memset(to + width, 0, sizeof(float) * (size_t)(nib_cpu_padded(width) - width));
}

/* mix[r][i] = fn[i] . streams[first + r] for n rows; scaled by the row's rms later. */
static void mix_rows(const struct nib_stream *s, struct nib_cpu_thread *th, const struct nib_cpu_matrix *fn,
                     const struct nib_cpu_rows *rows, int32_t first, int32_t n, float *mix)
{
    for (int32_t out = 0; out < fn->n_out; out += NIB_CPU_TILE_OUTS) {
        const int32_t n_outs = min_of(fn->n_out - out, NIB_CPU_TILE_OUTS);
        nib_cpu_tile_run(s, th, fn, NIB_CPU_NEED_PLAIN, rows, NULL, first, n, 0, out, n_outs, th->tile_y[0]);
        for (int32_t r = 0; r < n; r++)
            memcpy(mix + r * fn->n_out + out, th->tile_y[0] + r * NIB_CPU_TILE_OUTS, sizeof(float) * (size_t)n_outs);
    }
}

/* Rows [first, first + n) of a group that begins at row0. */
static void hc_pre_rows(const struct nib_stream *s, const struct nib_hc_pre_args *a, struct nib_cpu_thread *th,
                        int32_t row0, int32_t first, int32_t n)
{
    const int32_t               n_mix = (2 + a->n_hc) * a->n_hc;
    const struct nib_cpu_matrix fn = nib_cpu_matrix_f32(a->fn, n_mix, a->streams.cols);
    const struct nib_cpu_rows   rows = rows_of(s, &a->streams, row0);
    float                      *mix = s->scratch.mix + first * n_mix;
    for (int32_t r = first; r < first + n && rows.plain == s->scratch.plain; r++)
        decode_row(s, &a->streams, row0 + r, s->scratch.plain + r * rows.plain_stride);
    mix_rows(s, th, &fn, &rows, first, n, mix);
    for (int32_t r = 0; r < n; r++)
        hc_pre_row(s, a, rows.plain + (first + r) * rows.plain_stride, mix + r * n_mix, row0 + first + r, th->row[0]);
}

enum nib_status nib_cpu_hc_pre(struct nib_stream *s, const struct nib_hc_pre_args *a)
{
    const int32_t width = a->streams.cols, n_mix = (2 + a->n_hc) * a->n_hc;
    for (int32_t row0 = 0; row0 < a->streams.rows; row0 += NIB_CPU_GROUP_ROWS) {
        const int32_t n = min_of(a->streams.rows - row0, NIB_CPU_GROUP_ROWS);
        /* What else a row takes is about as much as its products. */
        const int64_t work = n > HC_ROWS ? (int64_t)n * width * n_mix * 2 : 0;
#pragma omp parallel for num_threads(nib_cpu_threads(s, work)) schedule(static)
        for (int32_t r = 0; r < n; r += HC_ROWS)
            hc_pre_rows(s, a, &s->scratch.thread[omp_get_thread_num()], row0, r, min_of(n - r, HC_ROWS));
    }
    return NIB_OK;
}

enum nib_status nib_cpu_hc_post(struct nib_stream *s, const struct nib_hc_post_args *a)
{
    int32_t n_hc = a->n_hc, dim = a->y.cols;
    const int64_t work = (int64_t)a->streams.rows * a->streams.cols * (n_hc + 4);
#pragma omp parallel for num_threads(nib_cpu_threads(s, work)) schedule(static)
    for (int32_t t = 0; t < a->y.rows; t++) {
        struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
        const float *y = nib_cpu_row_read(s, &a->y, t, 0, dim, th->row[0]);
        const float *old = nib_cpu_row_read(s, &a->streams, t, 0, n_hc * dim, th->row[1]);
        const float *post = (const float *)nib_cpu_row(&a->post, t), *comb = (const float *)nib_cpu_row(&a->comb, t);
        float       *new = th->row[2], *weight = th->block_sum; /* comb, target stream first */
        for (int32_t k = 0; k < n_hc; k++) {
            for (int32_t j = 0; j < n_hc; j++)
                weight[k * n_hc + j] = comb[j * n_hc + k];
            for (int32_t c = 0; c < dim; c++)
                new[k * dim + c] = post[k] * y[c];
        }
        s->k.add_weighted(weight, n_hc, n_hc, old, dim, n_hc, dim, new, dim);
        nib_cpu_row_write(s, &a->streams, t, 0, n_hc * dim, new);
    }
    return NIB_OK;
}

enum nib_status nib_cpu_hc_head(struct nib_stream *s, const struct nib_hc_head_args *a)
{
    int32_t               n_hc = a->n_hc, dim = a->x.cols, width = n_hc * dim;
    struct nib_cpu_matrix fn = nib_cpu_matrix_f32(a->fn, n_hc, width);
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)a->n * width * n_hc)) schedule(dynamic, 1)
    for (int32_t t = 0; t < a->n; t++) {
        struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
        const float           *streams = nib_cpu_row_read(s, &a->streams, a->row[t], 0, width, th->row[0]);
        float                 *mix = th->tile_y[0], *x = th->row[1];
        struct nib_cpu_rows    rows = {.plain = streams};
        for (int32_t i = 0; i < n_hc; i += NIB_CPU_TILE_OUTS)
            nib_cpu_tile_run(s, th, &fn, NIB_CPU_NEED_PLAIN, &rows, NULL, 0, 1, 0, i,
                             min_of(n_hc - i, NIB_CPU_TILE_OUTS), mix + i);
        float ir = nib_cpu_rms_factor(s, streams, a->norm_eps, width);
        for (int32_t i = 0; i < n_hc; i++)
            mix[i] = sigmoid(s, mix[i] * ir * a->scale[0] + a->base[i]) + a->hc_eps;
        collapse(streams, mix, n_hc, dim, x);
        if (a->streams.dtype == NIB_DTYPE_BF16)
            s->k.bf16_round(x, dim);
        if (a->collapsed.data)
            nib_cpu_row_write(s, &a->collapsed, t, 0, dim, x);
        nib_cpu_rms_norm(s, x, a->norm_weight, a->norm_eps, dim);
        nib_cpu_row_write(s, &a->x, t, 0, dim, x);
    }
    return NIB_OK;
}
