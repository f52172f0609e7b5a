/* Checks of the products with weights: embed, linear, o_a, head. */
#include "support/opcheck.h"

#include <math.h>
#include <string.h>

static enum nib_dtype pick_dtype(struct oc_case *c)
{
    return oc_chance(c, 0.3) ? NIB_DTYPE_BF16 : NIB_DTYPE_F32;
}

/* Input widths around tiles and blocks; multiple of what the weight's format needs. */
static int32_t pick_n_in(struct oc_case *c, enum nib_weight_type type)
{
    int32_t unit = type == NIB_WEIGHT_NVFP4 ? 16 : type == NIB_WEIGHT_MXFP4 ? 32 : 1;
    int32_t n = oc_chance(c, 0.15)  ? oc_range(c, 1000, 1300)
                : oc_chance(c, 0.5) ? oc_range(c, 1, 96)
                                    : oc_range(c, 97, 400);
    return (n + unit - 1) / unit * unit;
}

/* The formats that meet: 4-bit weights take any rows; others any but NVFP4 ones. */
static enum nib_act_format pick_act(struct oc_case *c, enum nib_weight_type type)
{
    bool four = type == NIB_WEIGHT_NVFP4 || type == NIB_WEIGHT_MXFP4;
    if (type == NIB_WEIGHT_F32 || type == NIB_WEIGHT_BF16)
        return oc_chance(c, 0.8) ? NIB_ACT_PLAIN : NIB_ACT_FP8;
    return (enum nib_act_format)oc_pick(c, four ? 4 : 3, (const int32_t[]){NIB_ACT_PLAIN, NIB_ACT_FP8, NIB_ACT_INT8,
                                                                           NIB_ACT_NVFP4});
}

/* Bound of a dot product from the sum of |x||w|. */
static double dot_bound(const double *x, const double *w, int32_t n)
{
    double mag = 0;
    for (int32_t k = 0; k < n; k++)
        mag += fabs(x[k] * w[k]);
    /* Sums may run before the global scale, which is at least e^-8 here, and overflow first. */
    return mag > 1e34 ? INFINITY : oc_dot_bound(mag, n);
}

/* ---- embed ---- */

struct embed {
    struct oc_weight *w;
    int32_t           n, n_copies, *token;
    enum nib_dtype    dtype;
};

static void run_embed(struct oc_run *r, const void *data, int32_t step)
{
    const struct embed *e = data;
    int32_t             cols = e->n_copies * e->w->desc.n_in;
    struct nib_mat      y = oc_out_mat(r, "y", e->dtype, e->n, cols, cols + 2, NULL);
    int32_t            *token = oc_put(r, e->token, (size_t)e->n * 4);
    const struct nib_weight *w = oc_put_weight(r, e->w);
    for (int32_t t = 0; t < e->n; t += step) {
        int32_t n = step < e->n - t ? step : e->n - t;
        oc_op(r, r->api->ops->embed(r->s,
                                    &(struct nib_embed_args){token + t, n, e->n_copies, w, oc_rows_of_mat(y, t, n)}));
    }
}

static void judge_embed(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct embed     *e = data;
    const struct oc_output *y = oc_find(got, "y");
    int32_t                 dim = e->w->desc.n_in;
    struct oc_worst         worst = {0};
    oc_same(c, ref, got, "y");
    for (int32_t t = 0; t < e->n; t++)
        for (int32_t i = 0; i < y->cols; i++) {
            float v = (float)oc_weight_row(e->w, 0, e->token[t])[i % dim];
            oc_compare(&worst, oc_at(y, t, i), (double)(y->kind == OC_F32 ? v : oc_bf16_round(v)), 0, t, i);
        }
    oc_conclude(c, &worst, "y");
}

void oc_check_embed(struct oc_case *c)
{
    enum nib_weight_type type = oc_chance(c, 0.5) ? NIB_WEIGHT_BF16 : NIB_WEIGHT_F32;
    struct embed         e = {.n = oc_range(c, 0, 9), .n_copies = oc_range(c, 1, 4), .dtype = pick_dtype(c)};
    e.w = oc_weight_new(c, type, NIB_ACT_PLAIN, 1, oc_range(c, 1, 40), oc_range(c, 1, 200));
    e.token = oc_new(c, 40);
    for (int32_t i = 0; i < e.n; i++)
        e.token[i] = oc_range(c, 0, e.w->desc.n_out - 1);
    oc_shape(c, "weight type %d [%d, %d], %d rows, rows of type %d", type, e.w->desc.n_out, e.w->desc.n_in, e.n,
             e.dtype);
    oc_all(c, run_embed, judge_embed, &e, e.n);
}

/* ---- linear ---- */

struct linear {
    struct oc_act     x;
    int32_t           n_weights;
    struct oc_weight *w[3];
    enum nib_dtype    dtype;
};

static const char *const y_names[] = {"y0", "y1", "y2"};

static void run_linear(struct oc_run *r, const void *data, int32_t step)
{
    const struct linear   *l = data;
    struct nib_linear_args whole = {.x = oc_put_act(r, &l->x), .n_weights = l->n_weights};
    for (int32_t i = 0; i < l->n_weights; i++) {
        int32_t n_out = l->w[i]->desc.n_out;
        whole.w[i] = oc_put_weight(r, l->w[i]);
        whole.y[i] = oc_out_mat(r, y_names[i], l->dtype, l->x.rows, n_out, n_out + i, NULL);
    }
    for (int32_t t = 0; t < l->x.rows; t += step) {
        struct nib_linear_args a = whole;
        int32_t                n = step < l->x.rows - t ? step : l->x.rows - t;
        a.x = oc_rows_of_act(whole.x, t, n);
        for (int32_t i = 0; i < l->n_weights; i++)
            a.y[i] = oc_rows_of_mat(whole.y[i], t, n);
        oc_op(r, r->api->ops->linear(r->s, &a));
    }
}

/* Codes of 4 or 8 bits with scales of 1: multiples of 1/4 below 2^20, which every order of sums gives exactly. */
static void judge_exact(struct oc_case *c, const struct linear *l, int32_t i, const struct oc_output *ref,
                        const struct oc_output *got)
{
    struct oc_worst of_ref = {0}, of_got = {0};
    for (int32_t t = 0; t < l->x.rows; t++)
        for (int32_t o = 0; o < l->w[i]->desc.n_out; o++) {
            const double *x = oc_operand(&l->x, l->w[i], t), *w = oc_weight_row(l->w[i], 0, o);
            double        sum = 0;
            for (int32_t k = 0; k < l->x.cols; k++)
                sum += x[k] * w[k];
            oc_compare(&of_ref, oc_at(ref, t, o), sum, 0, t, o);
            oc_compare(&of_got, oc_at(got, t, o), sum, 0, t, o);
        }
    oc_conclude(c, &of_ref, "ref's exact sum");
    oc_conclude(c, &of_got, "exact sum");
}

static void judge_linear(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct linear *l = data;
    for (int32_t i = 0; i < l->n_weights; i++) {
        const struct oc_weight *w = l->w[i];
        const struct oc_output *y = oc_find(got, y_names[i]), *want = oc_find(ref, y_names[i]);
        struct oc_worst         worst = {0};
        if (c->unit_scales && w->desc.act != NIB_ACT_PLAIN) {
            judge_exact(c, l, i, want, y);
            continue;
        }
        for (int32_t t = 0; t < l->x.rows; t++)
            for (int32_t o = 0; o < w->desc.n_out; o++) {
                double v = oc_at(want, t, o);
                double bound = dot_bound(oc_operand(&l->x, w, t), oc_weight_row(w, 0, o), l->x.cols);
                oc_compare(&worst, oc_at(y, t, o), v, bound + oc_out_bound(y, v), t, o);
            }
        oc_conclude(c, &worst, y_names[i]);
    }
}

/* weight_bytes must answer without data, and grow by 2 % at most, or by the rest of the last panels of 16 outputs by 16
 * channels, or by the rest of the last tiles where a tensor core takes them so: of scales (128 rows by 256 columns; with
 * FP8 rows a byte for every 32 values of 128 by 128), or of everything (16 by 128; with FP8 rows such a byte too). */
static void check_weight_bytes(struct oc_case *c, const struct oc_weight *w)
{
    struct nib_weight_desc d = w->desc;
    double  n = (double)d.n_out * d.n_in, stored = 0;
    d.part = NULL;
    switch (d.type) {
    case NIB_WEIGHT_F32: stored = 4 * n; break;
    case NIB_WEIGHT_BF16: stored = 2 * n; break;
    case NIB_WEIGHT_FP8: stored = n + ceil(d.n_out / 128.0) * ceil(d.n_in / 128.0); break;
    case NIB_WEIGHT_MXFP4: stored = n / 2 + n / 32; break;
    case NIB_WEIGHT_NVFP4: stored = n / 2 + n / 16 + 4; break;
    }
    double values = ceil(d.n_out / 16.0) * ceil(d.n_in / 16.0) * 256;
    double limit = fmax(1.02 * stored, stored / n * values + 4);
    if (d.type == NIB_WEIGHT_NVFP4 && d.act == NIB_ACT_NVFP4)
        limit = fmax(fmax(limit, n / 2 + ceil(d.n_out / 128.0) * ceil(d.n_in / 256.0) * 2048),
                     ceil(d.n_out / 16.0) * ceil(d.n_in / 128.0) * 16 * 128 * 9 / 16);
    if ((d.type == NIB_WEIGHT_FP8 || d.type == NIB_WEIGHT_MXFP4) && d.act == NIB_ACT_FP8)
        limit = fmax(fmax(limit, (d.type == NIB_WEIGHT_FP8 ? n : n / 2) + ceil(d.n_out / 128.0) * ceil(d.n_in / 128.0) * 512),
                     ceil(d.n_out / 16.0) * ceil(d.n_in / 128.0) * 16 * (d.type == NIB_WEIGHT_FP8 ? 132 : 68));
    for (const struct nib_backend_api *const *api = nib_backends(); *api; api++)
        oc_expect(c, (double)(*api)->weight_bytes(&d) <= limit, "a packed weight grows by more than it may");
}

void oc_check_linear(struct oc_case *c)
{
    enum nib_weight_type type = (enum nib_weight_type)(c->index % 5); /* every type in any five cases */
    enum nib_act_format  act = pick_act(c, type);
    struct linear        l = {.n_weights = oc_range(c, 1, 3), .dtype = pick_dtype(c)};
    int32_t              n = oc_chance(c, 0.1) ? oc_range(c, 60, 80) : oc_range(c, 0, 12), n_in = pick_n_in(c, type);
    /* Prompts: kernels for many rows want whole tiles of weights. */
    bool           many = oc_chance(c, 0.06) || c->many;
    enum nib_dtype dtype = pick_dtype(c);
    if (many) {
        n = oc_range(c, 97, c->many ? 140 : OC_ROWS_MOST);
        n_in = 64 * oc_range(c, 1, c->many ? 5 : 12);
    }
    if (c->deep) {
        n = c->many ? oc_range(c, 97, 140) : oc_range(c, 1, 18);
        n_in = 64 * oc_range(c, 13, !c->many && oc_chance(c, 0.3) ? 280 : 70);
        many = true; /* whole tiles */
    }
    if (c->many || c->deep) {
        dtype = NIB_DTYPE_BF16;
        act = NIB_ACT_PLAIN;
    }
    if (c->format != NIB_ACT_PLAIN) { /* up to more rows than one tile has, and more outputs than one pair of blocks takes */
        bool nvfp4 = c->format == NIB_ACT_NVFP4;
        type = nvfp4 ? NIB_WEIGHT_NVFP4 : c->index / 4 % 2 ? NIB_WEIGHT_FP8 : NIB_WEIGHT_MXFP4;
        act = c->format;
        many = c->index % 4 == 0 || c->many;
        n = c->many ? oc_range(c, 97, 140) : many ? oc_range(c, 120, 140) : oc_range(c, 0, 12);
        n_in = 32 * oc_range(c, 1, many ? 10 : 20) - (nvfp4 && oc_chance(c, 0.2) ? 16 : 0);
        if ((type == NIB_WEIGHT_MXFP4 || c->many) && oc_chance(c, 0.8))
            n_in = (n_in + 127) / 128 * 128;
    }
    struct oc_mat plain = oc_mat_new(c, dtype, n, n_in, 1, oc_chance(c, c->format != NIB_ACT_PLAIN ? 0.5 : 0.15));
    c->unit_scales = (type == NIB_WEIGHT_NVFP4 || type == NIB_WEIGHT_MXFP4) &&
                     (act == NIB_ACT_NVFP4 || act == NIB_ACT_INT8) && oc_chance(c, 0.4);
    if (c->unit_scales)
        l.dtype = NIB_DTYPE_F32;
    l.x = oc_act_new(c, &plain, act, true);
    for (int32_t i = 0; i < l.n_weights; i++) {
        /* Beside the first weight, some that take the plain rows. */
        bool                 other = i > 0 && oc_chance(c, 0.4);
        enum nib_weight_type t = other ? NIB_WEIGHT_BF16 : type;
        int32_t              n_out = many ? 16 * oc_range(c, 1, 17) : oc_range(c, 1, oc_chance(c, 0.2) ? 140 : 30);
        l.w[i] = oc_weight_new(c, t, other ? NIB_ACT_PLAIN : act, 1, n_out, n_in);
        check_weight_bytes(c, l.w[i]);
    }
    oc_shape(c, "%d rows, weights of type %d [%d, %d] and %d more, rows of act format %d, plain %d, y %d", n, type,
             l.w[0]->desc.n_out, n_in, l.n_weights - 1, act, plain.dtype, l.dtype);
    oc_all(c, run_linear, judge_linear, &l, n);
}

/* ---- o_a ---- */

struct o_a {
    struct oc_mat       x;
    struct oc_weight   *w;
    struct oc_weight   *first; /* --format: quantised weights come before these, as in models, and ready a device for them */
    int32_t             n_groups;
    bool                plain;
    enum nib_dtype      dtype;
    enum nib_act_format format;
};

static void run_o_a(struct oc_run *r, const void *data, int32_t step)
{
    const struct o_a        *o = data;
    struct nib_mat           x = oc_put_mat(r, &o->x);
    if (o->first)
        (void)oc_put_weight(r, o->first);
    const struct nib_weight *w = oc_put_weight(r, o->w);
    struct nib_act           y = oc_out_act(r, o->plain, o->dtype, o->format, o->x.rows, o->w->desc.n_out);
    for (int32_t t = 0; t < o->x.rows; t += step) {
        int32_t n = step < o->x.rows - t ? step : o->x.rows - t;
        oc_op(r, r->api->ops->o_a(r->s, &(struct nib_o_a_args){oc_rows_of_mat(x, t, n), o->n_groups, w,
                                                               oc_rows_of_act(y, t, n)}));
    }
}

static void judge_o_a(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct o_a *o = data;
    int32_t           n_in = o->w->desc.n_in, n_out = o->w->desc.n_out, n_rank = n_out / o->n_groups;
    struct o_a        with_plain = *o;
    struct oc_result  plain_got;
    if (!o->plain) {
        /* What was quantised is seen by asking for plain fp32 rows too. */
        with_plain.plain = true;
        with_plain.dtype = NIB_DTYPE_F32;
        oc_again(c, run_o_a, &with_plain, &plain_got);
        oc_judge_emitted(c, got, oc_find(&plain_got, "plain"), o->format, o->x.rows, n_out);
        return;
    }
    const struct oc_output *y = oc_find(got, "plain"), *want = oc_find(ref, "plain");
    struct oc_worst         worst = {0};
    for (int32_t t = 0; t < o->x.rows; t++)
        for (int32_t i = 0; i < n_out; i++) {
            const double *x = o->x.value + (int64_t)t * o->x.cols + i / n_rank * n_in;
            double        v = oc_at(want, t, i);
            double        bound = dot_bound(x, oc_weight_row(o->w, 0, i), n_in);
            oc_compare(&worst, oc_at(y, t, i), v, bound + oc_out_bound(y, v), t, i);
        }
    oc_conclude(c, &worst, "y");
    oc_judge_emitted(c, got, y, o->format, o->x.rows, n_out);
}

/* The identity in each group: what is quantised is x itself, with all its edges and ties. */
static struct oc_weight *identity(struct oc_case *c, int32_t n_groups, int32_t n)
{
    struct oc_weight *w = oc_weight_new(c, NIB_WEIGHT_BF16, NIB_ACT_PLAIN, 1, n_groups * n, n);
    uint8_t          *data = (uint8_t *)(uintptr_t)w->desc.part[0].data;
    for (int32_t i = 0; i < n_groups * n * n; i++) {
        uint16_t one = i / n % n == i % n ? 0x3f80 : 0;
        memcpy(data + 2 * i, &one, 2);
        w->value[i] = one ? 1 : 0;
    }
    return w;
}

void oc_check_o_a(struct oc_case *c)
{
    enum nib_weight_type type = (enum nib_weight_type)(c->index % 5);
    struct o_a           o = {.n_groups = oc_range(c, 1, 4), .dtype = pick_dtype(c)};
    int32_t              n = oc_range(c, 0, 10), n_in = pick_n_in(c, type), n_rank = oc_range(c, 1, 5) * 16;
    o.format = (enum nib_act_format)oc_range(c, NIB_ACT_PLAIN, NIB_ACT_INT8);
    o.plain = o.format == NIB_ACT_PLAIN || oc_chance(c, 0.7);
    n_in = n_in > 384 ? 384 : n_in;
    if (c->format != NIB_ACT_PLAIN) { /* few rows and many of BF16 and FP8 weights, in whole units of columns and not */
        bool fp8 = c->index % 4 == 2 || c->index % 8 == 3;
        int32_t unit = fp8 ? 16 : 8;
        type = fp8 ? NIB_WEIGHT_FP8 : NIB_WEIGHT_BF16;
        n = c->index % 2 ? oc_range(c, 17, 40) : n;
        n_in = oc_chance(c, 0.8) ? (n_in + unit - 1) / unit * unit : fp8 ? n_in / 16 * 16 + 8 : n_in;
        o.first = oc_weight_new(c, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, 1, 8, 64);
        if (c->format == NIB_ACT_FP8)
            o.first = oc_weight_new(c, NIB_WEIGHT_FP8, NIB_ACT_FP8, 1, 128, 128);
    }
    o.x = oc_mat_new(c, pick_dtype(c), n, o.n_groups * n_in, 1, oc_chance(c, 0.15));
    o.w = oc_weight_new(c, type, NIB_ACT_PLAIN, 1, o.n_groups * n_rank, n_in);
    if (c->index % 4 == 0) {
        o.format = c->index % 8 == 0 ? NIB_ACT_NVFP4 : o.format;
        n_in = n_rank;
        type = NIB_WEIGHT_BF16;
        float *x = oc_new(c, sizeof(float) * (size_t)(n * o.n_groups * n_in) + 1);
        for (int32_t t = 0; t < n; t++)
            oc_fill_row(c, OC_EDGES, x + t * o.n_groups * n_in, o.n_groups * n_in, 1);
        o.x = oc_mat_of(c, NIB_DTYPE_F32, n, o.n_groups * n_in, x);
        o.w = identity(c, o.n_groups, n_in);
    }
    o.w->desc.use = NIB_USE_O_A;
    oc_shape(c, "%d rows, %d groups of [%d, %d] type %d, x %d, y %d format %d plain %d", n, o.n_groups, n_rank, n_in,
             type, o.x.dtype, o.dtype, o.format, o.plain);
    oc_all(c, run_o_a, judge_o_a, &o, n);
}

/* ---- head ---- */

struct head {
    struct oc_mat     x;
    struct oc_weight *w;
};

static void run_head(struct oc_run *r, const void *data, int32_t step)
{
    const struct head       *h = data;
    struct nib_mat           x = oc_put_mat(r, &h->x);
    const struct nib_weight *w = oc_put_weight(r, h->w);
    struct nib_mat y = oc_out_mat(r, "logits", NIB_DTYPE_F32, h->x.rows, h->w->desc.n_out, h->w->desc.n_out, NULL);
    for (int32_t t = 0; t < h->x.rows; t += step) {
        int32_t n = step < h->x.rows - t ? step : h->x.rows - t;
        oc_op(r, r->api->ops->head(r->s, &(struct nib_head_args){oc_rows_of_mat(x, t, n), w, oc_rows_of_mat(y, t, n)}));
    }
}

static void judge_head(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct head      *h = data;
    const struct oc_output *y = oc_find(got, "logits"), *want = oc_find(ref, "logits");
    struct oc_worst         worst = {0};
    for (int32_t t = 0; t < h->x.rows; t++)
        for (int32_t o = 0; o < y->cols; o++) {
            double v = oc_at(want, t, o);
            double bound = dot_bound(h->x.value + (int64_t)t * h->x.cols, oc_weight_row(h->w, 0, o), h->x.cols);
            oc_compare(&worst, oc_at(y, t, o), v, bound + oc_out_bound(y, v), t, o);
        }
    oc_conclude(c, &worst, "logits");
}

void oc_check_head(struct oc_case *c)
{
    static const int32_t types[] = {NIB_WEIGHT_BF16, NIB_WEIGHT_BF16, NIB_WEIGHT_F32, NIB_WEIGHT_FP8, NIB_WEIGHT_NVFP4};
    enum nib_weight_type type = (enum nib_weight_type)oc_pick(c, 5, types);
    int32_t              n = oc_range(c, 0, 5), n_in = pick_n_in(c, type);
    struct head          h = {oc_mat_new(c, pick_dtype(c), n, n_in, 1, oc_chance(c, 0.15)),
                              oc_weight_new(c, type, NIB_ACT_PLAIN, 1, oc_range(c, 1, 300), n_in)};
    oc_shape(c, "%d rows, type %d [%d, %d], x %d", n, type, h.w->desc.n_out, n_in, h.x.dtype);
    oc_all(c, run_head, judge_head, &h, n);
}
