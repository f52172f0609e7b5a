/* Row-wise steps around attention: norm, query norm and rotation, KV insertion; and plain moves of rows. */
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"

enum nib_status nib_ref_norm(struct nib_stream *s, const struct nib_norm_args *a)
{
    int32_t n = a->x.rows, dim = a->x.cols;
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)n * dim))
    for (int32_t t = 0; t < n; t++) {
        struct nib_ref_thread *th = nib_ref_thread(s);
        nib_ref_rms_norm(nib_ref_row(&a->x, t, th->row[0]), a->weight, dim, a->eps, th->row[1]);
        nib_ref_act_store(&a->y, t, th->row[1]);
    }
    return NIB_OK;
}

/* One head: q *= rsqrt(mean(q^2) + eps). With bf16 the square, the mean, the root and the product are rounded. */
static void head_norm(float *q, int32_t n, float eps, bool bf16)
{
    float mean = (float)(nib_ref_dot_f32(q, q, n) / n);
    if (bf16) {
        double sum = 0;
        for (int32_t i = 0; i < n; i++)
            sum += (double)nib_bf16_round(q[i] * q[i]);
        mean = nib_bf16_round((float)(sum / n));
    }
    float r = nib_ref_round(1 / sqrt((double)(mean + eps)), bf16);
    for (int32_t i = 0; i < n; i++)
        q[i] = nib_ref_round((double)(q[i] * r), bf16);
}

enum nib_status nib_ref_q_rope(struct nib_stream *s, const struct nib_q_rope_args *a)
{
    const struct nib_rows *rows = a->rows;
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)rows->n_rows * a->q.cols))
    for (int32_t t = 0; t < rows->n_rows; t++) {
        struct nib_ref_thread *th = nib_ref_thread(s);
        float                 *q = th->row[1];
        memcpy(q, nib_ref_row(&a->q, t, th->row[0]), (size_t)a->q.cols * sizeof *q);
        nib_ref_angles(&a->rope, rows->pos[t] - rows->first_pos, th->angle);
        for (int32_t h = 0; h < a->n_heads; h++) {
            float *head = q + (int64_t)h * a->head_dim;
            head_norm(head, a->head_dim, a->eps, a->q.dtype == NIB_DTYPE_BF16);
            nib_ref_rotate(head, a->head_dim, a->rope.n_rot, th->angle, false);
        }
        nib_ref_store_row(&a->q, t, q);
    }
    return NIB_OK;
}

enum nib_status nib_ref_kv_insert(struct nib_stream *s, const struct nib_kv_insert_args *a)
{
    const struct nib_rows *rows = a->rows;
    int32_t                d = a->kv.cols;
    bool                   bf16 = a->kv.dtype == NIB_DTYPE_BF16;
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)rows->n_rows * d))
    for (int32_t t = 0; t < rows->n_rows; t++) {
        struct nib_ref_thread *th = nib_ref_thread(s);
        float                 *kv = th->row[1];
        nib_ref_rms_norm(nib_ref_row(&a->kv, t, th->row[0]), a->norm_weight, d, a->eps, kv);
        for (int32_t i = 0; i < d; i++)
            kv[i] = nib_ref_round((double)kv[i], bf16);
        nib_ref_angles(&a->rope, rows->pos[t] - rows->first_pos, th->angle);
        nib_ref_rotate(kv, d, a->rope.n_rot, th->angle, false);
        for (int32_t i = 0; i < d; i++)
            kv[i] = nib_ref_round((double)kv[i], bf16);
        const int32_t *page = rows->window_page + rows->seq[t] * rows->page_stride;
        nib_ref_encode(a->window.format, kv, d, a->rope.n_rot, nib_ref_store_at(&a->window, page, rows->pos[t]));
    }
    return NIB_OK;
}

enum nib_status nib_ref_mtp_join(struct nib_stream *s, const struct nib_mtp_join_args *a)
{
    int32_t n = a->h.rows, dim = a->e.cols;
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)n * a->h.cols))
    for (int32_t t = 0; t < n; t++) {
        struct nib_ref_thread *th = nib_ref_thread(s);
        const float           *e = nib_ref_row(&a->e, t, th->row[0]);
        const float           *h = nib_ref_row(&a->h, t, th->row[1]);
        for (int32_t i = 0; i < a->n_hc * dim; i++)
            nib_ref_store(&a->h, t, i, (double)h[i] + (double)e[i % dim]);
    }
    return NIB_OK;
}

enum nib_status nib_ref_copy_rows(struct nib_stream *s, const struct nib_copy_rows_args *a)
{
    int64_t element = a->src.dtype == NIB_DTYPE_F32 ? 4 : 2;
    (void)s;
    for (int32_t i = 0; i < a->n; i++) {
        if (a->src_row[i] < 0 || a->dst_row[i] < 0)
            continue;
        memcpy((char *)a->dst.data + a->dst_row[i] * a->dst.stride * element,
               (const char *)a->src.data + a->src_row[i] * a->src.stride * element, (size_t)(a->src.cols * element));
    }
    return NIB_OK;
}
