/* Results of ops as rows of floats, whatever they are stored in. */
#include "engine/observe.h"

#include <string.h>

#include "number/act_rows.h"
#include "number/bf16.h"
#include "number/kv_rows.h"

void *nib_read(const struct nib_reader *r, const void *from, size_t bytes)
{
    void *to = nib_arena_alloc(r->arena, bytes ? bytes : 1);
    if (!to || (bytes > 0 && r->api->download(r->stream, to, from, bytes) != NIB_OK))
        return NULL;
    return to;
}

static uint64_t hash_bytes(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static const uint64_t k_start = 0xcbf29ce484222325u;

static const char *act_name(enum nib_act_format f)
{
    static const char *const names[] = {"plain", "fp8", "nvfp4", "int8"};
    return names[f];
}

static const char *row_name(enum nib_row_format f)
{
    static const char *const names[] = {"f32", "bf16", "fp8", "nvfp4", "fp4"};
    return names[f];
}

static float *floats(const struct nib_reader *r, int32_t rows, int32_t cols)
{
    return nib_arena_array(r->arena, (size_t)rows * (size_t)cols + 1, sizeof(float));
}

/* Results gather here; `failed` is told once at the end. */
struct list {
    const struct nib_reader *r;
    struct nib_values       *out;
    int32_t                  n;
    bool                     failed;
};

/* rows: NULL, or which rows of the matrix. */
static void add_rows_of(struct list *l, const char *name, const struct nib_mat *m, const int32_t *row, int32_t n)
{
    const size_t item = m->dtype == NIB_DTYPE_F32 ? 4 : 2, bytes = (size_t)m->cols * item;
    struct nib_values *v = &l->out[l->n];
    *v = (struct nib_values){.name = name, .format = m->dtype == NIB_DTYPE_F32 ? "f32" : "bf16", .kind = NIB_VALUES_PLAIN,
                             .dtype = m->dtype, .rows = n, .cols = m->cols, .value = floats(l->r, n, m->cols), .hash = k_start};
    for (int32_t i = 0; v->value && i < n; i++) {
        const int64_t at = row ? row[i] : i;
        float *to = v->value + (size_t)i * (size_t)m->cols;
        if (at < 0) {
            memset(to, 0, (size_t)m->cols * sizeof *to);
            continue;
        }
        const void *from = nib_read(l->r, (const unsigned char *)m->data + (size_t)(at * m->stride) * item, bytes);
        if (!from) {
            l->failed = true;
            return;
        }
        v->hash = hash_bytes(v->hash, from, bytes);
        if (m->dtype == NIB_DTYPE_F32)
            memcpy(to, from, bytes);
        for (int32_t k = 0; m->dtype != NIB_DTYPE_F32 && k < m->cols; k++) {
            uint16_t half;
            memcpy(&half, (const unsigned char *)from + 2 * (size_t)k, 2);
            to[k] = nib_bf16_to_f32(half);
        }
    }
    l->failed = l->failed || !v->value;
    l->n++;
}

static void add_mat(struct list *l, const char *name, const struct nib_mat *m)
{
    if (m->data)
        add_rows_of(l, name, m, NULL, m->rows);
}

static void add_floats(struct list *l, const char *name, const float *x, int32_t rows, int32_t cols)
{
    add_mat(l, name, &(struct nib_mat){.data = (void *)(uintptr_t)x, .dtype = NIB_DTYPE_F32, .rows = rows, .cols = cols, .stride = cols});
}

static void add_ints(struct list *l, const char *name, const int32_t *x, int32_t rows, int32_t cols)
{
    struct nib_values *v = &l->out[l->n];
    const size_t n = (size_t)rows * (size_t)cols;
    const int32_t *host = nib_read(l->r, x, n * sizeof *x);
    *v = (struct nib_values){.name = name, .format = "i32", .kind = NIB_VALUES_INTS, .rows = rows, .cols = cols,
                             .value = floats(l->r, rows, cols)};
    if (!host || !v->value) {
        l->failed = true;
        return;
    }
    v->hash = hash_bytes(k_start, host, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        v->value[i] = (float)host[i];
    l->n++;
}

static void decode_act(const struct nib_act *a, const uint8_t *codes, const uint8_t *scales, float g, float *to)
{
    switch (a->format) {
    case NIB_ACT_FP8: nib_fp8_row_decode(codes, scales, a->cols, 128, to); return;
    case NIB_ACT_NVFP4: nib_nvfp4_row_decode(codes, scales, g, a->cols, to); return;
    case NIB_ACT_INT8: nib_int8_row_decode((const int8_t *)codes, (const float *)(const void *)scales, a->cols, to); return;
    case NIB_ACT_PLAIN: return;
    }
}

static void add_act(struct list *l, const char *plain, const char *quantised, const struct nib_act *a)
{
    add_mat(l, plain, &a->plain);
    if (a->format == NIB_ACT_PLAIN || l->failed)
        return;
    struct nib_values *v = &l->out[l->n];
    *v = (struct nib_values){.name = quantised, .format = act_name(a->format), .kind = NIB_VALUES_ACT, .act_format = a->format,
                             .rows = a->rows, .cols = a->cols, .value = floats(l->r, a->rows, a->cols), .hash = k_start};
    const uint8_t *codes = nib_read(l->r, a->codes, (size_t)a->rows * (size_t)a->codes_stride);
    const uint8_t *scales = nib_read(l->r, a->scales, (size_t)a->rows * (size_t)a->scales_stride);
    const float *g = a->format == NIB_ACT_NVFP4 ? nib_read(l->r, a->row_scale, (size_t)a->rows * sizeof(float)) : NULL;
    if (!v->value || !codes || !scales || (a->format == NIB_ACT_NVFP4 && !g)) {
        l->failed = true;
        return;
    }
    for (int32_t i = 0; i < a->rows; i++)
        decode_act(a, codes + i * a->codes_stride, scales + i * a->scales_stride, g ? g[i] : 0, v->value + (size_t)i * (size_t)a->cols);
    /* Of the values: padding bytes have no meaning. */
    v->hash = hash_bytes(k_start, v->value, (size_t)a->rows * (size_t)a->cols * sizeof(float));
    l->n++;
}

static void decode_row(const struct nib_store *st, const uint8_t *row, int32_t d, int32_t n_rot, float *to)
{
    switch (st->format) {
    case NIB_ROW_F32: nib_kv_f32_decode(row, d, to); return;
    case NIB_ROW_BF16: nib_kv_bf16_decode(row, d, to); return;
    case NIB_ROW_FP8: nib_kv_fp8_decode(row, d, n_rot, to); return;
    case NIB_ROW_NVFP4: nib_kv_nvfp4_decode(row, d, n_rot, to); return;
    case NIB_ROW_FP4: nib_kv_fp4_decode(row, d, to); return;
    }
}

/* The stored rows that a step's rows wrote: one each (ratio 0), or one where an entry was completed. */
static void add_stored(struct list *l, const char *name, const struct nib_store *st, const struct nib_rows *rows, const int32_t *pages,
                       int32_t ratio, int32_t d, int32_t n_rot)
{
    const size_t n = (size_t)rows->n_rows;
    const int32_t *pos = nib_read(l->r, rows->pos, n * sizeof *pos), *seq = nib_read(l->r, rows->seq, n * sizeof *seq);
    const int32_t *table = nib_read(l->r, pages, (size_t)rows->n_seqs * (size_t)rows->page_stride * sizeof *table);
    struct nib_values *v = &l->out[l->n];
    *v = (struct nib_values){.name = name, .format = row_name(st->format), .kind = NIB_VALUES_ROWS, .row_format = st->format,
                             .n_rot = n_rot, .cols = d, .value = floats(l->r, rows->n_rows, d), .hash = k_start};
    if (!pos || !seq || !table || !v->value) {
        l->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (ratio > 0 && (pos[i] + 1) % ratio != 0)
            continue;
        const int32_t index = ratio > 0 ? pos[i] / ratio : pos[i];
        const int64_t page = table[seq[i] * rows->page_stride + index / st->page_rows];
        const uint8_t *row = nib_read(l->r, st->base + (page * st->page_rows + index % st->page_rows) * st->row_bytes,
                                      (size_t)st->row_bytes);
        if (!row) {
            l->failed = true;
            return;
        }
        v->hash = hash_bytes(v->hash, row, (size_t)st->row_bytes);
        decode_row(st, row, d, n_rot, v->value + (size_t)v->rows++ * (size_t)d);
    }
    l->n++;
}

/* What the compressor keeps of this step's projections: the last n_ring rows of each sequence. */
static void add_ring(struct list *l, const char *name, const struct nib_frontier *f, const float *base, const struct nib_rows *rows)
{
    const size_t n = (size_t)rows->n_rows;
    const int32_t cols = (int32_t)(f->slot_stride / f->n_ring);
    const int32_t *pos = nib_read(l->r, rows->pos, n * sizeof *pos), *seq = nib_read(l->r, rows->seq, n * sizeof *seq);
    const int32_t *slot = nib_read(l->r, rows->slot, (size_t)rows->n_seqs * sizeof *slot);
    const int32_t *start = nib_read(l->r, rows->seq_start, ((size_t)rows->n_seqs + 1) * sizeof *start);
    struct nib_values *v = &l->out[l->n];
    *v = (struct nib_values){.name = name, .format = "f32", .kind = NIB_VALUES_PLAIN, .dtype = NIB_DTYPE_F32, .cols = cols,
                             .value = floats(l->r, rows->n_rows, cols), .hash = k_start};
    if (!pos || !seq || !slot || !start || !v->value) {
        l->failed = true;
        return;
    }
    for (int32_t i = 0; i < rows->n_rows; i++) {
        if (i < start[seq[i] + 1] - f->n_ring)
            continue;
        const float *row = nib_read(l->r, base + slot[seq[i]] * f->slot_stride + (int64_t)(pos[i] % f->n_ring) * cols,
                                    (size_t)cols * sizeof *row);
        if (!row) {
            l->failed = true;
            return;
        }
        v->hash = hash_bytes(v->hash, row, (size_t)cols * sizeof *row);
        memcpy(v->value + (size_t)v->rows++ * (size_t)cols, row, (size_t)cols * sizeof *row);
    }
    l->n++;
}

static void add_linear(struct list *l, const struct nib_linear_args *a)
{
    static const char *const names[] = {"y0", "y1", "y2", "y3", "y4", "y5", "y6", "y7"};
    for (int32_t i = 0; i < a->n_weights && i < NIB_VALUES_MAX; i++)
        add_mat(l, names[i], &a->y[i]);
}

static void add_copied(struct list *l, const struct nib_copy_rows_args *a)
{
    const size_t bytes = (size_t)a->n * sizeof(int32_t);
    const int32_t *src = nib_read(l->r, a->src_row, bytes), *dst = nib_read(l->r, a->dst_row, bytes);
    int32_t *row = nib_arena_alloc(l->r->arena, bytes);
    if (!src || !dst || !row) {
        l->failed = true;
        return;
    }
    for (int32_t i = 0; i < a->n; i++)
        row[i] = src[i] < 0 ? -1 : dst[i];
    add_rows_of(l, "dst", &a->dst, row, a->n);
}

#define ARGS(type) const struct nib_##type##_args *a = args

static void add_results(struct list *l, enum nib_op op, const void *args)
{
    switch (op) {
    case NIB_OP_EMBED: { ARGS(embed); add_mat(l, "y", &a->y); return; }
    case NIB_OP_NORM: { ARGS(norm); add_act(l, "y", "y.q", &a->y); return; }
    case NIB_OP_LINEAR: add_linear(l, args); return;
    case NIB_OP_Q_ROPE: { ARGS(q_rope); add_mat(l, "q", &a->q); return; }
    case NIB_OP_KV_INSERT: {
        ARGS(kv_insert);
        add_stored(l, "window", &a->window, a->rows, a->rows->window_page, 0, a->kv.cols, a->rope.n_rot);
        return;
    }
    case NIB_OP_COMPRESS: {
        ARGS(compress);
        add_stored(l, "entries", &a->entries, a->rows, a->rows->entry_page, a->ratio, a->width, a->rope.n_rot);
        add_ring(l, "raw", &a->frontier, a->frontier.kv, a->rows);
        add_ring(l, "score", &a->frontier, a->frontier.score, a->rows);
        return;
    }
    case NIB_OP_INDEX_SELECT: {
        ARGS(index_select);
        add_ints(l, "selected", a->selected, a->rows->n_rows, a->top_k);
        add_ints(l, "n_selected", a->n_selected, a->rows->n_rows, 1);
        return;
    }
    case NIB_OP_ATTEND: { ARGS(attend); add_mat(l, "o", &a->o); return; }
    case NIB_OP_O_A: { ARGS(o_a); add_act(l, "y", "y.q", &a->y); return; }
    case NIB_OP_MOE: {
        ARGS(moe);
        add_mat(l, "y", &a->y);
        if (a->chosen)
            add_ints(l, "chosen", a->chosen, a->y.rows, a->top_k);
        if (a->weights)
            add_floats(l, "weights", a->weights, a->y.rows, a->top_k);
        return;
    }
    case NIB_OP_HC_PRE: {
        ARGS(hc_pre);
        add_mat(l, "post", &a->post);
        add_mat(l, "comb", &a->comb);
        add_act(l, "x", "x.q", &a->x);
        return;
    }
    case NIB_OP_HC_POST: { ARGS(hc_post); add_mat(l, "streams", &a->streams); return; }
    case NIB_OP_HC_HEAD: { ARGS(hc_head); add_mat(l, "x", &a->x); return; }
    case NIB_OP_HEAD: { ARGS(head); add_mat(l, "logits", &a->logits); return; }
    case NIB_OP_MTP_JOIN: { ARGS(mtp_join); add_mat(l, "h", &a->h); return; }
    case NIB_OP_COPY_ROWS: add_copied(l, args); return;
    case NIB_OP_SAMPLE: {
        ARGS(sample);
        add_ints(l, "token", a->token, a->n, 1);
        add_floats(l, "logprob", a->logprob, a->n, 1);
        return;
    }
    case NIB_N_OPS: return;
    }
}

int32_t nib_op_results(const struct nib_reader *r, enum nib_op op, const void *args, struct nib_values *out)
{
    struct list l = {.r = r, .out = out};
    add_results(&l, op, args);
    return l.failed ? -1 : l.n;
}

int32_t nib_op_rows(enum nib_op op, const void *args)
{
    switch (op) {
    case NIB_OP_EMBED: { ARGS(embed); return a->n_rows; }
    case NIB_OP_NORM: { ARGS(norm); return a->x.rows; }
    case NIB_OP_LINEAR: { ARGS(linear); return a->x.rows; }
    case NIB_OP_Q_ROPE: { ARGS(q_rope); return a->rows->n_rows; }
    case NIB_OP_KV_INSERT: { ARGS(kv_insert); return a->rows->n_rows; }
    case NIB_OP_COMPRESS: { ARGS(compress); return a->rows->n_rows; }
    case NIB_OP_INDEX_SELECT: { ARGS(index_select); return a->rows->n_rows; }
    case NIB_OP_ATTEND: { ARGS(attend); return a->rows->n_rows; }
    case NIB_OP_O_A: { ARGS(o_a); return a->x.rows; }
    case NIB_OP_MOE: { ARGS(moe); return a->rows->n_rows; }
    case NIB_OP_HC_PRE: { ARGS(hc_pre); return a->streams.rows; }
    case NIB_OP_HC_POST: { ARGS(hc_post); return a->streams.rows; }
    case NIB_OP_HC_HEAD: { ARGS(hc_head); return a->n; }
    case NIB_OP_HEAD: { ARGS(head); return a->x.rows; }
    case NIB_OP_MTP_JOIN: { ARGS(mtp_join); return a->h.rows; }
    case NIB_OP_COPY_ROWS: { ARGS(copy_rows); return a->n; }
    case NIB_OP_SAMPLE: { ARGS(sample); return a->n; }
    case NIB_N_OPS: break;
    }
    return 0;
}
