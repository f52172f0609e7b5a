/* See index_rig.h. */
#include "ptxsim/blackwell/index_rig.h"

#include "backend/cuda/blackwell/blackwell.h"
#include "number/kv_rows.h"
#include "ptxsim/blackwell/kernel_rig.h"

enum { DIM = 128, RATIO = 4, PAGE = 32, PAGES = 41 };

struct index_data {
    float   *q, *key; /* as the kernel reads them: [rows][heads][DIM], [entries by place][DIM] */
    float    weight[256];
    int32_t *pos, *seq, page[PAGES];
    uint8_t *rows;
    int64_t  row_bytes;
    struct nib_blackwell_index_args args;
    struct px_machine              *m;
};

static void encode(const struct index_problem *p, const float *x, uint8_t *row)
{
    if (p->fp4)
        nib_kv_fp4_encode(x, DIM, row);
    else
        nib_kv_bf16_encode(x, DIM, row);
}

static void decode(const struct index_problem *p, const uint8_t *row, float *x)
{
    if (p->fp4)
        nib_kv_fp4_decode(row, DIM, x);
    else
        nib_kv_bf16_decode(row, DIM, x);
}

static void make(const struct index_problem *p, struct index_data *d)
{
    uint64_t seed = p->seed * 31 + 3;
    uint8_t  row[2 * DIM];
    float    x[DIM];
    memset(d, 0, sizeof *d);
    d->row_bytes = p->fp4 ? nib_kv_fp4_bytes(DIM) : nib_kv_bf16_bytes(DIM);
    d->q = calloc((size_t)(p->n_rows * p->n_heads * DIM), sizeof *d->q);
    d->key = calloc(PAGES * PAGE * DIM, sizeof *d->key);
    d->rows = calloc(PAGES * PAGE, (size_t)d->row_bytes);
    d->pos = calloc((size_t)p->n_rows, 4);
    d->seq = calloc((size_t)p->n_rows, 4);
    assert_true(d->q && d->key && d->rows && d->pos && d->seq);
    for (int32_t i = 0; i < p->n_rows * p->n_heads; i++) {
        for (int k = 0; k < DIM; k++)
            x[k] = rig_value(&seed) * ldexpf(1, i % 7 * 5 - 15) * (k / 32 == i % 5 ? 1e-9f : 1);
        if (p->not_finite && i == 1)
            x[70] = NAN;
        encode(p, x, row);
        decode(p, row, d->q + i * DIM);
        if (!p->fp4 && p->q_f32)
            memcpy(d->q + i * DIM, x, sizeof x);
    }
    for (int32_t i = 0; i < PAGES * PAGE; i++) {
        for (int k = 0; k < DIM; k++)
            x[k] = rig_value(&seed) * ldexpf(1, i % 11 * 3 - 15) * (k / 32 == i % 6 ? 0 : 1);
        if (p->not_finite && i % 40 == 7)
            x[i % DIM] = INFINITY;
        encode(p, x, d->rows + i * d->row_bytes);
        decode(p, d->rows + i * d->row_bytes, d->key + i * DIM);
    }
    for (int i = 0; i < 256; i++)
        d->weight[i] = rig_from_bf16(rig_bf16(rig_value(&seed)));
    for (int i = 0; i < PAGES; i++)
        d->page[i] = (i * 7 + 3) % PAGES;
    for (int32_t t = 0; t < p->n_rows; t++)
        d->pos[t] = p->pos + 37 * t;
}

static void *put_mat(struct px_machine *m, const float *x, size_t n, bool f32)
{
    uint16_t *half = calloc(n, 2);
    assert_non_null(half);
    for (size_t i = 0; i < n; i++)
        half[i] = rig_bf16(x[i]);
    void *p = f32 ? rig_alloc(m, n * 4, x) : rig_alloc(m, n * 2, half);
    free(half);
    return p;
}

static void put(const struct index_problem *p, struct index_data *d)
{
    int32_t                       n = p->n_rows, cols = p->n_heads * DIM;
    struct nib_index_select_args *a = &d->args.a;
    enum nib_dtype                dtype = p->q_f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16;
    d->m = px_machine_new(&p->config);
    assert_non_null(d->m);
    a->q = (struct nib_mat){put_mat(d->m, d->q, (size_t)(n * cols), p->q_f32), dtype, n, cols, cols};
    a->weight = (struct nib_mat){put_mat(d->m, d->weight, 256, p->q_f32), dtype, n, p->n_heads, 3};
    a->n_heads = p->n_heads;
    a->dim = DIM;
    a->ratio = RATIO;
    a->top_k = p->top_k;
    a->scale = 0.011f;
    a->keys = (struct nib_store){rig_alloc(d->m, (size_t)(PAGES * PAGE * d->row_bytes), d->rows),
                                 p->fp4 ? NIB_ROW_FP4 : NIB_ROW_BF16, PAGE, d->row_bytes};
    d->args.score_stride = PAGES * PAGE + 8;
    if (p->traced)
        a->scores = (struct nib_mat){rig_alloc(d->m, (size_t)n * 1024 * 4, NULL), NIB_DTYPE_F32, n, 1024, 1024};
    d->args.score = rig_alloc(d->m, (size_t)n * (size_t)d->args.score_stride * 4, NULL);
    d->args.rows = (struct nib_rows){.n_rows = n,
                                     .n_seqs = 1,
                                     .pos = rig_alloc(d->m, 4 * (size_t)n, d->pos),
                                     .seq = rig_alloc(d->m, 4 * (size_t)n, d->seq),
                                     .entry_page = rig_alloc(d->m, sizeof d->page, d->page),
                                     .page_stride = PAGES};
}

/* ---- What it must give ----
 *
 * A dot product is exact but for one rounding to fp32 per product of 64 values (bf16 keys: 16) and group, and with fp32
 * queries of BF16 keys for what two bf16 parts of a query leave, 2^-18 of it, and their sum; then, with
 * bf16 queries, comes a rounding to bf16, whose outcome is known to lie between those of the ends of what went before. So it
 * does for the sum over heads, fp32 in ascending order. */
#define U 0x1p-24

struct range {
    double low, high;
};

static struct range rounded(struct range r, bool bf16)
{
    if (!bf16)
        return r;
    return (struct range){(double)rig_from_bf16(rig_bf16((float)r.low)),
                          (double)rig_from_bf16(rig_bf16((float)r.high))};
}

static struct range score_of(const struct index_problem *p, const struct index_data *d, int32_t t, const float *key)
{
    struct range sum = {0, 0};
    double       size = 0;
    bool         bf16 = !p->q_f32;
    double       two_parts = p->q_f32 && !p->fp4 ? 0x1p-18 + 2 * U : 0;
    for (int32_t h = 0; h < p->n_heads; h++) {
        const float *q = d->q + (t * p->n_heads + h) * DIM;
        double       dot = 0, all = 0;
        for (int k = 0; k < DIM; k++) {
            double v = (double)q[k] * (double)key[k];
            dot += v;
            all += fabs(v);
        }
        float        x = d->weight[t * 3 + h] * d->args.a.scale;
        double       w = (double)(bf16 ? rig_from_bf16(rig_bf16(x)) : x), slack = ((p->fp4 ? 8 : 16) * U + two_parts) * all;
        struct range r = rounded((struct range){dot - slack, dot + slack}, bf16);
        r.low = r.low < 0 ? 0 : r.low;
        r.high = r.high < 0 ? 0 : r.high;
        sum.low += w * (w < 0 ? r.high : r.low);
        sum.high += w * (w < 0 ? r.low : r.high);
        size += fabs(w) * r.high;
    }
    sum.low -= (p->n_heads + 1) * U * size;
    sum.high += (p->n_heads + 1) * U * size;
    return rounded(sum, bf16);
}

static bool right(const struct index_problem *p, const struct index_data *d, char *text, size_t bytes)
{
    for (int32_t t = 0; t < p->n_rows; t++) {
        int32_t visible = (d->pos[t] + 1) / RATIO;
        for (int32_t e = 0; e < d->args.score_stride; e++) {
            float *got = d->args.score + t * d->args.score_stride + e,
                  *trace = (float *)d->args.a.scores.data + t * 1024 + e;
            bool   wanted = e < visible && (visible > p->top_k || p->traced);
            if (px_written(d->m, got, 4) != wanted) {
                (void)snprintf(text, bytes, "row %d, entry %d of %d: written, or not", t, e, visible);
                return false;
            }
            if (!wanted)
                continue;
            const float *key = d->key + (d->page[e / PAGE] * PAGE + e % PAGE) * DIM;
            struct range r = score_of(p, d, t, key);
            bool         nan = isnan(r.low) || isnan(r.high);
            if (nan ? !isnan(*got) : !((double)*got >= r.low && (double)*got <= r.high)) {
                (void)snprintf(text, bytes, "row %d, entry %d of %d is %.9g: wants %.9g to %.9g", t, e, visible,
                               (double)*got, r.low, r.high);
                return false;
            }
            if (p->traced && memcmp(got, trace, 4) != 0) {
                (void)snprintf(text, bytes, "row %d, entry %d is traced as %g, not %g", t, e, (double)*trace,
                               (double)*got);
                return false;
            }
        }
    }
    return true;
}

bool index_run(const struct index_problem *p, struct px_module *module, const char *kernel, uint32_t threads,
               uint32_t shared_bytes, char *text, size_t bytes)
{
    struct index_data d;
    make(p, &d);
    put(p, &d);
    const void      *params[1] = {&d.args};
    struct px_launch l = {.grid = {(uint32_t)p->blocks, (uint32_t)p->n_rows, 1},
                          .block = {threads, 1, 1},
                          .shared_bytes = shared_bytes,
                          .params = params};
    bool             ok = px_run(d.m, module, kernel, &l);
    if (!ok)
        (void)snprintf(text, bytes, "%s", px_error(d.m));
    ok = ok && right(p, &d, text, bytes);
    px_machine_free(d.m);
    free(d.q);
    free(d.key);
    free(d.rows);
    free(d.pos);
    free(d.seq);
    return ok;
}
