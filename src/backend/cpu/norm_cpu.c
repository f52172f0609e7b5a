/* Ops on single rows without weights matrices: norm, q_rope, kv_insert, mtp_join, copy_rows. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum nib_status nib_cpu_norm(struct nib_stream *s, const struct nib_norm_args *a)
{
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)a->x.rows * a->x.cols * 4)) schedule(static)
    for (int32_t t = 0; t < a->x.rows; t++) {
        float       *x = s->scratch.thread[omp_get_thread_num()].row[0];
        const float *src = nib_cpu_row_read(s, &a->x, t, 0, a->x.cols, x);
        if (src != x)
            memcpy(x, src, sizeof(float) * (size_t)a->x.cols);
        nib_cpu_rms_norm(s, x, a->weight, a->eps, a->x.cols);
        nib_cpu_act_write(s, &a->y, t, x);
    }
    return NIB_OK;
}

static float bf16_of(const struct nib_stream *s, float x)
{
    s->k.bf16_round(&x, 1);
    return x;
}

/* x *= rsqrt(mean(x^2) + eps), with every step rounded to bf16 where rows are. */
static void head_norm(const struct nib_stream *s, float *x, int32_t n, float eps, bool bf16, float *square)
{
    if (!bf16) {
        float factor = nib_cpu_rms_factor(s, x, eps, n);
        for (int32_t i = 0; i < n; i++)
            x[i] *= factor;
        return;
    }
    for (int32_t i = 0; i < n; i++)
        square[i] = x[i] * x[i];
    s->k.bf16_round(square, n);
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)square[i];
    float mean = bf16_of(s, (float)(sum / n));
    float factor = bf16_of(s, (float)(1 / sqrt((double)mean + (double)eps)));
    for (int32_t i = 0; i < n; i++)
        x[i] *= factor;
    s->k.bf16_round(x, n);
}

enum nib_status nib_cpu_q_rope(struct nib_stream *s, const struct nib_q_rope_args *a)
{
    bool bf16 = a->q.dtype == NIB_DTYPE_BF16;
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)a->q.rows * a->q.cols * 4)) schedule(static)
    for (int32_t t = 0; t < a->rows->n_rows; t++) {
        struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
        nib_cpu_angles(s, &a->rope, a->rows->pos[t] - a->rows->first_pos, th->angle);
        for (int32_t h = 0; h < a->n_heads; h++) {
            float *x = bf16 ? th->row[0] : (float *)nib_cpu_row(&a->q, t) + h * a->head_dim;
            if (bf16)
                nib_cpu_row_read(s, &a->q, t, h * a->head_dim, a->head_dim, x);
            head_norm(s, x, a->head_dim, a->eps, bf16, th->row[1]);
            nib_cpu_rotate(s, x, a->head_dim, a->rope.n_rot, th->angle, false);
            if (bf16)
                nib_cpu_row_write(s, &a->q, t, h * a->head_dim, a->head_dim, x);
        }
    }
    return NIB_OK;
}

enum nib_status nib_cpu_kv_insert(struct nib_stream *s, const struct nib_kv_insert_args *a)
{
    const struct nib_rows *rows = a->rows;
    int32_t                d = a->kv.cols, n_rot = a->rope.n_rot;
    bool                   bf16 = a->kv.dtype == NIB_DTYPE_BF16;
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)rows->n_rows * d * 8)) schedule(static)
    for (int32_t t = 0; t < rows->n_rows; t++) {
        struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
        float                 *x = th->row[0];
        const float           *src = nib_cpu_row_read(s, &a->kv, t, 0, d, x);
        if (src != x)
            memcpy(x, src, sizeof(float) * (size_t)d);
        nib_cpu_rms_norm(s, x, a->norm_weight, a->eps, d);
        if (bf16)
            s->k.bf16_round(x, d);
        nib_cpu_angles(s, &a->rope, rows->pos[t] - rows->first_pos, th->angle);
        nib_cpu_rotate(s, x, d, n_rot, th->angle, false);
        if (bf16)
            s->k.bf16_round(x, d);
        int32_t page = rows->window_page[rows->seq[t] * rows->page_stride + rows->pos[t] / NIB_PAGE_TOKENS];
        nib_cpu_kv_write(s, &a->window, x, d, n_rot,
                         nib_cpu_store_row(&a->window, page, rows->pos[t] % NIB_PAGE_TOKENS));
    }
    return NIB_OK;
}

enum nib_status nib_cpu_mtp_join(struct nib_stream *s, const struct nib_mtp_join_args *a)
{
    int32_t dim = a->e.cols;
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)a->h.rows * a->h.cols)) schedule(static)
    for (int32_t t = 0; t < a->e.rows; t++) {
        struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
        const float           *e = nib_cpu_row_read(s, &a->e, t, 0, dim, th->row[0]);
        for (int32_t c = 0; c < a->n_hc; c++) {
            const float *h = nib_cpu_row_read(s, &a->h, t, c * dim, dim, th->row[1]);
            float       *sum = th->row[2];
            for (int32_t i = 0; i < dim; i++)
                sum[i] = h[i] + e[i];
            nib_cpu_row_write(s, &a->h, t, c * dim, dim, sum);
        }
    }
    return NIB_OK;
}

enum nib_status nib_cpu_copy_rows(struct nib_stream *s, const struct nib_copy_rows_args *a)
{
    size_t bytes = (size_t)a->src.cols * (a->src.dtype == NIB_DTYPE_F32 ? 4 : 2);
    (void)s;
    for (int32_t i = 0; i < a->n; i++)
        if (a->src_row[i] >= 0 && a->dst_row[i] >= 0)
            memcpy(nib_cpu_row(&a->dst, a->dst_row[i]), nib_cpu_row(&a->src, a->src_row[i]), bytes);
    return NIB_OK;
}
