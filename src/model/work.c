/* The work buffers: their shapes in one list, used to count, to allocate and to free them. */
#include "model/forward.h"

#include <string.h>

struct sizer {
    struct nib_rank *rk; /* NULL: only count */
    enum nib_dtype   dtype;
    enum nib_act_format quant;
    uint64_t         bytes;
    bool             failed;
};

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static void *take(struct sizer *z, uint64_t bytes)
{
    z->bytes += padded(bytes);
    if (!z->rk || bytes == 0)
        return NULL;
    void *p = z->rk->api->alloc(z->rk->backend, (size_t)bytes);
    z->failed = z->failed || !p;
    return p;
}

static void mat(struct sizer *z, struct nib_mat *m, enum nib_dtype dtype, int32_t rows, int32_t cols)
{
    m->dtype = dtype;
    m->rows = rows;
    m->cols = cols;
    m->stride = cols;
    m->data = take(z, (uint64_t)rows * (uint64_t)cols * (dtype == NIB_DTYPE_F32 ? 4 : 2));
}

static void act(struct sizer *z, struct nib_act *a, int32_t rows, int32_t cols)
{
    mat(z, &a->plain, z->dtype, rows, cols);
    a->format = z->quant;
    a->rows = rows;
    a->cols = cols;
    a->codes_stride = nib_act_codes_stride(z->quant, cols);
    a->scales_stride = nib_act_scales_stride(z->quant, cols);
    a->codes = take(z, (uint64_t)rows * (uint64_t)a->codes_stride);
    a->scales = take(z, (uint64_t)rows * (uint64_t)a->scales_stride);
    a->row_scale = take(z, z->quant == NIB_ACT_NVFP4 ? (uint64_t)rows * 4 : 0);
}

static void list_buffers(struct sizer *z, struct nib_work *w, const struct nib_config *c, bool mtp)
{
    const int32_t n = w->n_rows_max;
    mat(z, &w->streams, z->dtype, n, c->n_hc * c->dim);
    mat(z, &w->post, NIB_DTYPE_F32, n, c->n_hc);
    mat(z, &w->comb, NIB_DTYPE_F32, n, c->n_hc * c->n_hc);
    act(z, &w->x, n, c->dim);
    mat(z, &w->qa, z->dtype, n, c->q_rank);
    act(z, &w->qr, n, c->q_rank);
    mat(z, &w->q, z->dtype, n, c->n_heads * c->head_dim);
    mat(z, &w->o, z->dtype, n, c->n_heads * c->head_dim);
    mat(z, &w->kv, z->dtype, n, c->head_dim);
    mat(z, &w->compress_kv, NIB_DTYPE_F32, n, 2 * c->head_dim);
    mat(z, &w->compress_gate, NIB_DTYPE_F32, n, 2 * c->head_dim);
    mat(z, &w->index_kv, NIB_DTYPE_F32, n, 2 * c->index_dim);
    mat(z, &w->index_gate, NIB_DTYPE_F32, n, 2 * c->index_dim);
    mat(z, &w->index_q, z->dtype, n, c->n_index_heads * c->index_dim);
    mat(z, &w->index_weight, z->dtype, n, c->n_index_heads);
    w->selected = take(z, (uint64_t)n * (uint64_t)c->index_top_k * 4);
    w->n_selected = take(z, (uint64_t)n * 4);
    act(z, &w->u, n, c->n_groups * c->o_rank);
    mat(z, &w->y, z->dtype, n, c->dim);
    mat(z, &w->head_x, z->dtype, w->n_logits_max, c->dim);
    mat(z, &w->logits, NIB_DTYPE_F32, w->n_logits_max, c->vocab);
    if (mtp) {
        mat(z, &w->mtp_streams, z->dtype, n, c->n_hc * c->dim);
        mat(z, &w->mtp_h, z->dtype, n, c->n_hc * c->dim);
        act(z, &w->mtp_x, n * c->n_hc, c->dim);
        mat(z, &w->mtp_e, z->dtype, n, c->dim);
    }
}

static enum nib_act_format quant_format(enum nib_act_quant q)
{
    switch (q) {
    case NIB_ACT_QUANT_FP8: return NIB_ACT_FP8;
    case NIB_ACT_QUANT_NVFP4: return NIB_ACT_NVFP4;
    case NIB_ACT_QUANT_INT8: return NIB_ACT_INT8;
    case NIB_ACT_QUANT_AUTO:
    case NIB_ACT_QUANT_NONE: break;
    }
    return NIB_ACT_PLAIN;
}

enum nib_dtype nib_work_dtype(enum nib_numerics n)
{
    return n == NIB_NUMERICS_MODEL ? NIB_DTYPE_F32 : NIB_DTYPE_BF16;
}

uint64_t nib_work_bytes(const struct nib_config *c, int32_t n_rows, int32_t n_logits, bool mtp, enum nib_dtype dtype,
                        enum nib_act_quant q)
{
    struct nib_work w;
    memset(&w, 0, sizeof w);
    w.n_rows_max = n_rows;
    w.n_logits_max = n_logits;
    struct sizer z = {.dtype = dtype, .quant = quant_format(q)};
    list_buffers(&z, &w, c, mtp);
    return z.bytes;
}

enum nib_status nib_work_init(struct nib_rank *rk, int32_t n_rows, int32_t n_logits, bool mtp, struct nib_error *err)
{
    struct nib_work *w = &rk->work;
    memset(w, 0, sizeof *w);
    w->n_rows_max = n_rows;
    w->n_logits_max = n_logits;
    w->dtype = nib_work_dtype(rk->numerics);
    struct sizer z = {.rk = rk, .dtype = w->dtype, .quant = quant_format(rk->act_quant)};
    list_buffers(&z, w, rk->config, mtp);
    if (!z.failed)
        return NIB_OK;
    nib_work_deinit(rk);
    return nib_error_set(err, NIB_E_MEMORY, "backend '%s' has no memory for the work buffers (%llu bytes)",
                         rk->api->name, (unsigned long long)z.bytes);
}

static void release_mat(struct nib_rank *rk, struct nib_mat *m)
{
    rk->api->release(rk->backend, m->data);
}

static void release_act(struct nib_rank *rk, struct nib_act *a)
{
    release_mat(rk, &a->plain);
    rk->api->release(rk->backend, a->codes);
    rk->api->release(rk->backend, a->scales);
    rk->api->release(rk->backend, a->row_scale);
}

void nib_work_deinit(struct nib_rank *rk)
{
    struct nib_work *w = &rk->work;
    struct nib_mat *const mats[] = {&w->streams,       &w->post,        &w->comb,       &w->qa,           &w->q,      &w->o,
                                    &w->kv,            &w->compress_kv, &w->compress_gate, &w->index_kv,  &w->index_gate,
                                    &w->index_q,       &w->index_weight, &w->y,         &w->head_x,       &w->logits,
                                    &w->mtp_streams,   &w->mtp_h,       &w->mtp_e};
    struct nib_act *const acts[] = {&w->x, &w->qr, &w->u, &w->mtp_x};
    for (size_t i = 0; i < sizeof mats / sizeof mats[0]; i++)
        release_mat(rk, mats[i]);
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        release_act(rk, acts[i]);
    rk->api->release(rk->backend, w->selected);
    rk->api->release(rk->backend, w->n_selected);
    memset(w, 0, sizeof *w);
}

struct nib_mat nib_mat_rows(struct nib_mat m, int32_t n)
{
    m.rows = n;
    return m;
}

struct nib_act nib_act_rows(struct nib_act a, int32_t n, enum nib_act_format format)
{
    a.rows = n;
    a.plain.rows = n;
    a.format = format;
    return a;
}
