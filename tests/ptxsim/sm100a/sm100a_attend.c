/* Attention in the simulator, and what it must give. */
#include "ptxsim/sm100a/sm100a_attend.h"

#include "number/kv_rows.h"

enum { D = 512, ROT = 64, PAGE = 128, PAGES = 9, SEQS = 2 };

struct rows {
    uint8_t *bytes;     /* as stored */
    float   *value;     /* decoded */
    int32_t  page_rows;
    int64_t  row_bytes;
};

struct problem {
    const struct rig_attend     *r;
    struct px_machine           *m;
    struct nib_sm100a_attend_args args;
    struct rows                  window, entries;
    int32_t                     *pos, *seq, page[2][SEQS * PAGES], *selected, *n_selected;
    uint16_t                    *half; /* queries as bf16 */
    float                       *q;    /* their values */
    float                       *sink, freq[ROT / 2];
    uint64_t                     seed;
};

static void *take(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    assert_non_null(p);
    return p;
}

static int64_t row_bytes(enum nib_row_format f)
{
    return f == NIB_ROW_FP8     ? nib_kv_fp8_bytes(D, ROT)
           : f == NIB_ROW_NVFP4 ? nib_kv_nvfp4_bytes(D, ROT)
                                : nib_kv_bf16_bytes(D);
}

static void encode(enum nib_row_format f, const float *x, uint8_t *row)
{
    if (f == NIB_ROW_FP8)
        nib_kv_fp8_encode(x, D, ROT, row);
    else if (f == NIB_ROW_NVFP4)
        nib_kv_nvfp4_encode(x, D, ROT, row);
    else
        nib_kv_bf16_encode(x, D, row);
}

static void decode(enum nib_row_format f, const uint8_t *row, float *x)
{
    if (f == NIB_ROW_FP8)
        nib_kv_fp8_decode(row, D, ROT, x);
    else if (f == NIB_ROW_NVFP4)
        nib_kv_nvfp4_decode(row, D, ROT, x);
    else
        nib_kv_bf16_decode(row, D, x);
}

/* Pages of all sequences; each row with a size of its own. */
static void make_rows(struct problem *p, struct rows *s, int32_t page_rows)
{
    int32_t n = SEQS * PAGES * page_rows;
    float   x[D];
    s->page_rows = page_rows;
    s->row_bytes = row_bytes(p->r->format);
    s->bytes = take((size_t)(n * s->row_bytes));
    s->value = take((size_t)n * D * sizeof(float));
    for (int32_t i = 0; i < n; i++) {
        float size = 0.5f + (float)(rig_next(&p->seed) % 64) / 32.0f;
        for (int k = 0; k < D; k++)
            x[k] = rig_value(&p->seed) * size;
        encode(p->r->format, x, s->bytes + i * s->row_bytes);
    }
}

static int64_t place(const struct problem *p, const struct rows *s, bool window, int32_t seq, int32_t i)
{
    return (int64_t)p->page[window ? 0 : 1][seq * PAGES + i / s->page_rows] * s->page_rows + i % s->page_rows;
}

/* Rows that row t attends to, as indexes of the stores; negative ones are entries, -1 the first. */
static int32_t attended(const struct problem *p, int32_t t, int64_t *row)
{
    const struct rig_attend *r = p->r;
    int32_t                  n = 0, pos = p->pos[t], entries = r->ratio == 0 ? 0 : (pos + 1) / r->ratio;
    for (int32_t i = pos - r->n_window + 1; i <= pos; i++)
        if (i >= r->first_pos)
            row[n++] = place(p, &p->window, true, p->seq[t], i);
    for (int32_t e = 0; e < (r->top_k ? p->n_selected[t] : entries); e++)
        row[n++] = -1 - place(p, &p->entries, false, p->seq[t], r->top_k ? p->selected[t * r->top_k + e] : e);
    return n;
}

static void spice(struct problem *p)
{
    int64_t *row = take(sizeof *row * 4096);
    float    x[D];
    int32_t  n;
    if (p->r->spice == RIG_NOT_FINITE) {
        p->half[3] = 0x7fc0; /* head 0 of the first query */
        p->q[3] = NAN;
        n = attended(p, p->r->n_rows - 1, row); /* of the other sequence */
        for (int k = 0; k < D; k++)
            x[k] = 1;
        x[500] = NAN; /* a rotary channel, which every format keeps */
        assert_true(n > 1 && row[0] >= 0 && row[1] >= 0);
        encode(p->r->format, x, p->window.bytes + row[0] * p->window.row_bytes);
    }
    /* Rows come to point along the first query's heads: each next tile of 128 has larger scores than the last. */
    n = attended(p, 0, row);
    for (int32_t j = 0; p->r->spice == RIG_SHARP && j < n; j++) {
        struct rows *s = row[j] >= 0 ? &p->window : &p->entries;
        int64_t      at = row[j] >= 0 ? row[j] : -1 - row[j];
        int32_t      h = (int32_t)(rig_next(&p->seed) % (uint32_t)p->r->n_heads);
        for (int k = 0; k < D; k++)
            x[k] = p->q[h * D + k] * (float)(j + 1) / 64.0f + 0.25f * rig_value(&p->seed);
        encode(p->r->format, x, s->bytes + at * s->row_bytes);
    }
    free(row);
}

static void pick(struct problem *p, int32_t t)
{
    const struct rig_attend *r = p->r;
    int32_t                  visible = (p->pos[t] + 1) / r->ratio, n = 0;
    for (int32_t e = 0; e < visible && n < r->top_k; e++)
        if (visible - e <= r->top_k - n || rig_next(&p->seed) % 3 == 0)
            p->selected[t * r->top_k + n++] = e;
    p->n_selected[t] = n;
    while (n < r->top_k)
        p->selected[t * r->top_k + n++] = -1;
}

static void make_problem(struct problem *p, const struct rig_attend *r)
{
    int32_t n = r->n_rows, half = (n + 1) / 2;
    memset(p, 0, sizeof *p);
    p->r = r;
    p->seed = r->seed * 77 + 5;
    p->pos = take(4 * (size_t)n);
    p->seq = take(4 * (size_t)n);
    p->selected = take(4 * (size_t)(n * r->top_k));
    p->n_selected = take(4 * (size_t)n);
    for (int32_t t = 0; t < n; t++) {
        p->seq[t] = t >= half;
        p->pos[t] = r->pos + (t >= half ? t - half + 3 : t);
    }
    for (int which = 0; which < 2; which++)
        for (int32_t i = 0; i < SEQS * PAGES; i++)
            p->page[which][i] = (i * 5 + which * 7) % (SEQS * PAGES);
    for (int32_t t = 0; r->top_k && t < n; t++)
        pick(p, t);
    p->half = take(2 * (size_t)(n * r->n_heads * D));
    p->q = take(4 * (size_t)(n * r->n_heads * D));
    for (int64_t i = 0; i < (int64_t)n * r->n_heads * D; i++) {
        p->q[i] = rig_value(&p->seed) * 1.37f;
        p->half[i] = rig_bf16(p->q[i]);
        if (!r->f32)
            p->q[i] = rig_from_bf16(p->half[i]);
    }
    p->sink = take(4 * (size_t)r->n_heads);
    for (int32_t h = 0; h < r->n_heads; h++)
        p->sink[h] = h % 5 == 4 ? -INFINITY : 2 * rig_value(&p->seed);
    for (int i = 0; i < ROT / 2; i++)
        p->freq[i] = powf(10000.0f, -(float)i / (ROT / 2));
    make_rows(p, &p->window, PAGE);
    if (r->ratio)
        make_rows(p, &p->entries, PAGE / r->ratio);
    spice(p);
    for (int which = 0; which < (r->ratio ? 2 : 1); which++) {
        struct rows *s = which ? &p->entries : &p->window;
        for (int32_t i = 0; i < SEQS * PAGES * s->page_rows; i++)
            decode(r->format, s->bytes + i * s->row_bytes, s->value + (int64_t)i * D);
    }
}

static struct nib_store put_store(struct problem *p, const struct rows *s)
{
    size_t bytes = (size_t)(SEQS * PAGES * s->page_rows * s->row_bytes);
    return (struct nib_store){rig_alloc(p->m, bytes, s->bytes), p->r->format, s->page_rows, s->row_bytes};
}

static void put(struct problem *p)
{
    const struct rig_attend *r = p->r;
    int32_t                  n = r->n_rows, cols = r->n_heads * D;
    int64_t                  stride = cols + (r->o_odd ? 5 : 8);
    struct nib_attend_args  *a = &p->args.a;
    p->m = px_machine_new(&r->config);
    assert_non_null(p->m);
    a->q = (struct nib_mat){r->f32 ? rig_alloc(p->m, 4 * (size_t)(n * cols), p->q)
                                  : rig_alloc(p->m, 2 * (size_t)(n * cols), p->half),
                           r->f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, n, cols, cols};
    a->o = (struct nib_mat){rig_alloc(p->m, (size_t)n * (size_t)stride * 4, NULL),
                            r->o_f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, n, cols, stride};
    a->sink = rig_alloc(p->m, 4 * (size_t)r->n_heads, p->sink);
    a->n_heads = r->n_heads;
    a->head_dim = D;
    a->n_window = r->n_window;
    a->ratio = r->ratio;
    a->top_k = r->top_k;
    a->scale = 0.044194174f;
    a->rope = (struct nib_rope){rig_alloc(p->m, sizeof p->freq, p->freq), ROT};
    a->window = put_store(p, &p->window);
    if (r->ratio)
        a->entries = put_store(p, &p->entries);
    if (r->top_k) {
        a->selected = rig_alloc(p->m, 4 * (size_t)(n * r->top_k), p->selected);
        a->n_selected = rig_alloc(p->m, 4 * (size_t)n, p->n_selected);
    }
    p->args.few = r->few;
    p->args.rows = (struct nib_rows){.n_rows = n,
                                     .n_seqs = SEQS,
                                     .pos = rig_alloc(p->m, 4 * (size_t)n, p->pos),
                                     .seq = rig_alloc(p->m, 4 * (size_t)n, p->seq),
                                     .window_page = rig_alloc(p->m, sizeof p->page[0], p->page[0]),
                                     .entry_page = rig_alloc(p->m, sizeof p->page[1], p->page[1]),
                                     .page_stride = PAGES,
                                     .first_pos = r->first_pos};
}

/* ---- What it must give ----
 *
 * A score is a sum of 512 products, rounded to fp32 after every 16 (NVFP4: and once more for the row scale), and 8 more
 * roundings up to its power of two, whose size adds to its error. fp32 queries are two bf16 parts, the second rounded to
 * 2^-9 of 2^-9 of the query; sums of both add one rounding. A weight is two bf16 parts, the second of which is
 * rounded to 2^-9 of 2^-9; with fp32 sums of n terms, their scaling and the division that makes 2^-18 + (n + 24) *
 * 2^-24 of each term's size. An error e_j of score j moves weight j by p_j (e_j + sum p e), to first order. */
#define U 0x1p-24

struct terms {
    double score[4096], error[4096];
    const float *row[4096];
};

static void own_head(const struct problem *p, int32_t t, int32_t h, struct terms *x, const int64_t *row, int32_t n,
                     double *o, double *err)
{
    const float    *q = p->q + ((int64_t)t * p->r->n_heads + h) * D;
    double          most = (double)p->sink[h], sum, mean = 0, step = 2 * U;
    for (int32_t j = 0; j < n; j++) {
        double dot = 0, size = 0;
        x->row[j] = row[j] >= 0 ? p->window.value + row[j] * D : p->entries.value + (-1 - row[j]) * D;
        for (int k = 0; k < D; k++) {
            double v = (double)q[k] * (double)x->row[j][k];
            dot += v;
            size += fabs(v);
        }
        x->score[j] = dot * (double)p->args.a.scale;
        x->error[j] = ((D / 16 + 4) * U + (p->r->f32 ? 0x1p-18 + U : 0)) * size * (double)p->args.a.scale;
        most = fmax(most, x->score[j]);
    }
    sum = exp((double)p->sink[h] - most);
    for (int32_t j = 0; j < n; j++) {
        x->error[j] += 8 * U * (fabs(x->score[j] - most) + fabs(most) + 1);
        x->score[j] = exp(x->score[j] - most);
        sum += x->score[j];
    }
    for (int32_t j = 0; j < n; j++)
        mean += x->score[j] / sum * x->error[j];
    if (isfinite(p->sink[h]))
        mean += exp((double)p->sink[h] - most) / sum * 8 * U * (fabs((double)p->sink[h]) + fabs(most) + 1);
    for (int k = 0; k < D; k++) {
        o[k] = err[k] = 0;
        for (int32_t j = 0; j < n; j++) {
            double v = x->score[j] / sum * (double)x->row[j][k];
            o[k] += v;
            err[k] += fabs(v) * (1.1 * (x->error[j] + mean) + 0x1p-18 + (n + 24) * U);
        }
    }
    for (int k = D - ROT; k < D; k += 2) {
        double angle = (double)((float)(p->pos[t] - p->r->first_pos) * p->freq[(k - D + ROT) / 2]), c = cos(angle),
               s = sin(angle), even = o[k], odd = o[k + 1],
               both = err[k] + err[k + 1] + step * (fabs(even) + fabs(odd));
        o[k] = even * c + odd * s;
        o[k + 1] = odd * c - even * s;
        err[k] = err[k + 1] = both;
    }
}

static bool right(const struct problem *p, char *text, size_t bytes)
{
    const struct rig_attend *r = p->r;
    const struct nib_mat    *y = &p->args.a.o;
    struct terms            *x = take(sizeof *x);
    int64_t                 *row = take(sizeof *row * 4096);
    double                   o[D], err[D];
    bool                     ok = true;
    for (int32_t t = 0; t < r->n_rows && ok; t++) {
        int32_t n = attended(p, t, row);
        for (int32_t h = 0; h < r->n_heads && ok; h++) {
            own_head(p, t, h, x, row, n, o, err);
            for (int k = 0; k < D && ok; k++) {
                int64_t     at = t * y->stride + h * D + k;
                const void *from = (const uint8_t *)y->data + at * (r->o_f32 ? 4 : 2);
                if (!px_written(p->m, from, r->o_f32 ? 4 : 2)) {
                    (void)snprintf(text, bytes, "row %d, head %d, channel %d was not written", t, h, k);
                    ok = false;
                    break;
                }
                double got = (double)(r->o_f32 ? *(const float *)from : rig_from_bf16(*(const uint16_t *)from));
                double bound = err[k] + (r->o_f32 ? 0 : fabs(o[k]) * 0x1p-8) + 0x1p-100;
                if (isnan(got) && isnan(o[k]))
                    continue;
                if (fabs(got - o[k]) <= bound)
                    continue;
                (void)snprintf(text, bytes, "row %d (%d rows), head %d, channel %d is %g: wants %g within %g", t, n, h,
                               k, got, o[k], bound);
                ok = false;
            }
        }
    }
    free(x);
    free(row);
    return ok;
}

bool rig_attend_run(const struct rig_attend *r, char *text, size_t bytes)
{
    static const char *const name[] = {[NIB_ROW_BF16] = "bf16", [NIB_ROW_FP8] = "fp8", [NIB_ROW_NVFP4] = "nvfp4"};
    struct problem           p;
    char                     entry[64];
    make_problem(&p, r);
    put(&p);
    (void)snprintf(entry, sizeof entry, "nib_sm100a_attend_%s%s", r->f32 ? "f32_" : "", name[r->format]);
    int32_t          heads = NIB_SM100A_ATTEND_COLUMNS / (r->f32 ? 2 : 1);
    uint32_t         groups = (uint32_t)((r->n_heads + heads - 1) / heads),
                     blocks = r->few ? NIB_SM100A_ATTEND_BLOCKS : 1;
    const void      *params[1] = {&p.args};
    struct px_launch l = {.grid = {groups * blocks, (uint32_t)r->n_rows, 1},
                          .block = {NIB_SM100A_ATTEND_THREADS, 1, 1},
                          .cluster = {blocks, 1, 1},
                          .shared_bytes = NIB_SM100A_ATTEND_SHARED,
                          .params = params};
    bool ok = px_run(p.m, r->module ? r->module : rig_module("attend_sm100a"), entry, &l);
    if (ok)
        ok = right(&p, text, bytes);
    else
        (void)snprintf(text, bytes, "%s", px_error(p.m));
    px_machine_free(p.m);
    free(p.window.bytes);
    free(p.window.value);
    free(p.entries.bytes);
    free(p.entries.value);
    free(p.pos);
    free(p.seq);
    free(p.selected);
    free(p.n_selected);
    free(p.q);
    free(p.half);
    free(p.sink);
    return ok;
}
