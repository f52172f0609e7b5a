/* Checks of q_rope, kv_insert and attend. */
#include "support/opcheck.h"

#include <math.h>
#include <string.h>

/* Backends may run small ops on one thread: one case in sixteen has rows enough to be shared out. */
static int32_t rows_most(const struct oc_case *c, int32_t most) { return c->index % 16 == 15 ? 90 : most; }

static int32_t part(int32_t step, int32_t left) { return step < left ? step : left; }

/* Head widths with their rotary channels. */
/* Every fifth case has the heads of published models, for which devices have kernels of their own. */
static void pick_head(struct oc_case *c, int32_t *d, int32_t *n_rot)
{
    static const int32_t shapes[][2] = {{96, 32}, {128, 64}, {80, 16}, {32, 8}, {192, 64}, {512, 64}};
    int32_t              i = c->index % 5 == 4 ? 5 : oc_range(c, 0, 4);
    *d = shapes[i][0];
    *n_rot = shapes[i][1];
}

/* ---- q_rope ---- */

struct q_rope {
    struct oc_seqs  seqs;
    struct oc_mat   q;
    int32_t         n_heads, d;
    struct nib_rope rope;
};

static void run_q_rope(struct oc_run *r, const void *data, int32_t step)
{
    const struct q_rope *a = data;
    struct nib_mat       q = oc_out_mat(r, "q", a->q.dtype, a->q.rows, a->q.cols, a->q.stride, a->q.data);
    struct nib_rope      rope = oc_put_rope(r, &a->rope);
    for (int32_t t = 0; t < a->q.rows; t += step) {
        int32_t n = part(step, a->q.rows - t);
        oc_op(r, r->api->ops->q_rope(r->s, &(struct nib_q_rope_args){oc_rows_of_mat(q, t, n), a->n_heads, a->d, 1e-6f,
                                                                     oc_put_rows(r, &a->seqs, t, n), rope}));
    }
}

/* BF16 heads before rotation are known to the bit, unless the mean or the root is too near the middle of two codes. */
static void judge_bf16_head(const struct q_rope *a, const struct oc_output *have, int32_t t, int32_t h,
                            struct oc_worst *worst)
{
    const double *x = a->q.value + (int64_t)t * a->q.cols + h * a->d;
    double        sum = 0, slack = (a->d / 16 + 8) * OC_U;
    for (int32_t i = 0; i < a->d; i++)
        sum += (double)oc_bf16_round((float)(x[i] * x[i]));
    float mean = oc_bf16_round((float)(sum / a->d));
    if (oc_bf16_round((float)(sum / a->d * (1 - slack))) != mean ||
        oc_bf16_round((float)(sum / a->d * (1 + slack))) != mean)
        return;
    double root = 1 / sqrt((double)mean + 1e-6);
    float  r = oc_bf16_round((float)root);
    if (oc_bf16_round((float)(root * (1 - 4 * OC_U))) != r || oc_bf16_round((float)(root * (1 + 4 * OC_U))) != r)
        return;
    for (int32_t i = 0; i < a->d - a->rope.n_rot; i++)
        oc_compare(worst, oc_at(have, t, h * a->d + i), (double)oc_bf16_round((float)x[i] * r), 0, t, h * a->d + i);
}

static void judge_q_rope(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct q_rope    *a = data;
    const struct oc_output *have = oc_find(got, "q"), *want = oc_find(ref, "q");
    double                 *y = oc_new(c, 8 * (size_t)a->d), *err = oc_new(c, 8 * (size_t)a->d);
    struct oc_worst         worst = {0};
    for (int32_t t = 0; t < a->q.rows; t++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            oc_norm_bound(a->q.value + (int64_t)t * a->q.cols + h * a->d, NULL, NULL, 1e-6, a->d, y, err);
            /* Half a step of the mean, one of the root and one of the product may fall to the other side. */
            for (int32_t i = 0; i < a->d && have->kind == OC_BF16; i++)
                err[i] += 2.5 * oc_b16(y[i]);
            oc_rotate(&a->rope, a->seqs.pos[t] - a->seqs.first_pos, false, y, err, a->d);
            if (have->kind == OC_BF16)
                judge_bf16_head(a, have, t, h, &worst);
            for (int32_t i = 0; i < a->d; i++) {
                double v = oc_at(want, t, h * a->d + i);
                oc_compare(&worst, oc_at(have, t, h * a->d + i), v, 2 * err[i] + oc_out_bound(have, v), t,
                           h * a->d + i);
            }
        }
    oc_conclude(c, &worst, "q");
}

void oc_check_q_rope(struct oc_case *c)
{
    struct q_rope a = {.seqs = oc_seqs_new(c, rows_most(c, 8), 1200, oc_range(c, 0, 1)), .n_heads = oc_range(c, 1, 8)};
    int32_t       n_rot;
    pick_head(c, &a.d, &n_rot);
    a.rope = oc_rope_new(c, n_rot);
    a.q = oc_mat_new(c, oc_chance(c, 0.4) ? NIB_DTYPE_BF16 : NIB_DTYPE_F32, a.seqs.n_rows, a.n_heads * a.d, 1,
                     oc_chance(c, 0.1));
    oc_shape(c, "%d heads of %d, %d rotary, rows %d", a.n_heads, a.d, n_rot, a.q.dtype);
    oc_all(c, run_q_rope, judge_q_rope, &a, a.q.rows);
}

/* ---- kv_insert ---- */

struct kv_insert {
    struct oc_seqs  seqs;
    struct oc_mat   kv;
    float          *norm_weight;
    struct nib_rope rope;
    struct oc_store store;
};

static void run_kv_insert(struct oc_run *r, const void *data, int32_t step)
{
    const struct kv_insert *a = data;
    struct nib_mat          kv = oc_put_mat(r, &a->kv);
    float                  *weight = oc_put(r, a->norm_weight, 4 * (size_t)a->kv.cols);
    struct nib_rope         rope = oc_put_rope(r, &a->rope);
    struct nib_store        store = oc_out_store(r, &a->store);
    for (int32_t t = 0; t < a->kv.rows; t += step) {
        int32_t n = part(step, a->kv.rows - t);
        oc_op(r,
              r->api->ops->kv_insert(r->s, &(struct nib_kv_insert_args){oc_rows_of_mat(kv, t, n), weight, 1e-6f,
                                                                        oc_put_rows(r, &a->seqs, t, n), rope, store}));
    }
}

/* Rows that no position of the step owns must be as before. */
static void expect_rest_untouched(struct oc_case *c, const struct oc_store *st, const bool *written,
                                  const struct oc_output *got)
{
    ++*c->n_checks;
    for (int32_t i = 0; i < got->rows; i++)
        if (!written[i] && memcmp(oc_row_at(got, i), st->data + i * st->row_bytes, (size_t)st->row_bytes) != 0)
            oc_fail(c, "row %d of the store was written, and belongs to no row of the step", i);
}

static void judge_kv_insert(struct oc_case *c, const void *data, const struct oc_result *ref,
                            const struct oc_result *got)
{
    const struct kv_insert *a = data;
    const struct oc_output *have = oc_find(got, "store"), *want = oc_find(ref, "store");
    int32_t                 d = a->kv.cols;
    size_t                  bytes = 8 * (size_t)d;
    double                 *y = oc_new(c, bytes), *err = oc_new(c, bytes), *v = oc_new(c, bytes), *w = oc_new(c, bytes);
    float                  *exact = oc_new(c, bytes);
    bool                   *written = oc_new(c, (size_t)have->rows);
    uint8_t                *row = oc_new(c, (size_t)a->store.row_bytes);
    struct kv_insert        f32 = *a;
    struct oc_result        plain;
    struct oc_worst         worst = {0};
    if (a->store.format != NIB_ROW_F32) {
        /* What was quantised is seen by storing it as fp32. */
        f32.store = oc_store_new(c, NIB_ROW_F32, NIB_PAGE_TOKENS, a->store.n_pages, d, a->rope.n_rot, 1);
        oc_again(c, run_kv_insert, &f32, &plain);
    }
    for (int32_t t = 0; t < a->kv.rows; t++) {
        int64_t at = oc_store_row(&a->store, &a->seqs, a->seqs.window_page, a->seqs.seq[t], a->seqs.pos[t]);
        written[at] = true;
        oc_row_decode(a->store.format, oc_row_at(have, at), d, a->rope.n_rot, v);
        oc_row_decode(a->store.format, oc_row_at(want, at), d, a->rope.n_rot, w);
        if (a->store.format != NIB_ROW_F32) {
            memcpy(exact, oc_row_at(oc_find(&plain, "store"), at), 4 * (size_t)d);
            oc_row_encode(a->store.format, exact, d, a->rope.n_rot, row);
            oc_row_decode(a->store.format, row, d, a->rope.n_rot, w);
            for (int32_t i = 0; i < d; i++)
                oc_compare(&worst, v[i], w[i], 0, t, i);
            continue;
        }
        oc_norm_bound(a->kv.value + (int64_t)t * d, NULL, a->norm_weight, 1e-6, d, y, err);
        for (int32_t i = 0; i < d && a->kv.dtype == NIB_DTYPE_BF16; i++)
            err[i] += oc_b16(y[i]);
        oc_rotate(&a->rope, a->seqs.pos[t] - a->seqs.first_pos, false, y, err, d);
        for (int32_t i = 0; i < d; i++)
            oc_compare(&worst, v[i], w[i],
                       2 * err[i] + (a->kv.dtype == NIB_DTYPE_BF16 ? oc_b16(w[i]) : 2 * OC_U * fabs(w[i])), t, i);
    }
    oc_conclude(c, &worst, "stored row");
    expect_rest_untouched(c, &a->store, written, have);
}

void oc_check_kv_insert(struct oc_case *c)
{
    struct kv_insert a = {.seqs = oc_seqs_new(c, rows_most(c, 8), 500, oc_range(c, 0, 1))};
    int32_t          d, n_rot;
    pick_head(c, &d, &n_rot);
    a.rope = oc_rope_new(c, n_rot);
    a.kv = oc_mat_new(c, oc_chance(c, 0.4) ? NIB_DTYPE_BF16 : NIB_DTYPE_F32, a.seqs.n_rows, d, 1, oc_chance(c, 0.1));
    a.norm_weight = oc_floats(c, d, 1, 0.3);
    a.store = oc_store_new(c, (enum nib_row_format)(c->index % 4), NIB_PAGE_TOKENS, a.seqs.n_pages, d, n_rot, 1);
    oc_shape(c, "width %d, %d rotary, rows %d, store format %d", d, n_rot, a.kv.dtype, a.store.format);
    oc_all(c, run_kv_insert, judge_kv_insert, &a, a.kv.rows);
}

/* ---- attend ---- */

struct attend {
    struct oc_seqs  seqs;
    struct oc_mat   q;
    float          *sink, scale;
    int32_t         n_heads, d, n_window, ratio, top_k;
    struct nib_rope rope;
    struct oc_store window, entries;
    int32_t        *selected, *n_selected;
    enum nib_dtype  dtype;
    int32_t         padding; /* between rows of o: some kernels want them at multiples of 16 bytes */
    struct oc_weight *w; /* --format nvfp4: devices with kernels of their own for such models launch them */
};

static void run_attend(struct oc_run *r, const void *data, int32_t step)
{
    const struct attend   *a = data;
    int32_t                n = a->q.rows, cols = a->q.cols;
    struct nib_mat         q = oc_put_mat(r, &a->q), o = oc_out_mat(r, "o", a->dtype, n, cols, cols + a->padding, NULL);
    struct nib_attend_args args = {
        .sink = oc_put(r, a->sink, 4 * (size_t)a->n_heads),
        .n_heads = a->n_heads,
        .head_dim = a->d,
        .n_window = a->n_window,
        .ratio = a->ratio,
        .top_k = a->top_k,
        .scale = a->scale,
        .rope = oc_put_rope(r, &a->rope),
        .window = oc_put_store(r, &a->window),
        .entries = a->ratio ? oc_put_store(r, &a->entries) : (struct nib_store){0},
    };
    if (a->w)
        (void)oc_put_weight(r, a->w);
    int32_t *selected = oc_put(r, a->selected, 4 * (size_t)(n * a->top_k));
    int32_t *n_selected = oc_put(r, a->n_selected, 4 * (size_t)n);
    for (int32_t t = 0; t < n; t += step) {
        int32_t m = part(step, n - t);
        args.q = oc_rows_of_mat(q, t, m);
        args.o = oc_rows_of_mat(o, t, m);
        args.rows = oc_put_rows(r, &a->seqs, t, m);
        args.selected = selected ? selected + (int64_t)t * a->top_k : NULL;
        args.n_selected = n_selected ? n_selected + t : NULL;
        oc_op(r, r->api->ops->attend(r->s, &args));
    }
}

/* Rows that query t attends to, in order. */
static int32_t attended(const struct attend *a, int32_t t, const double **row)
{
    int32_t pos = a->seqs.pos[t], seq = a->seqs.seq[t], n = 0;
    int32_t n_entries = !a->ratio ? 0 : a->selected ? a->n_selected[t] : (pos + 1) / a->ratio;
    for (int32_t p = pos - a->n_window + 1; p <= pos; p++)
        if (p >= a->seqs.first_pos)
            row[n++] = a->window.value + oc_store_row(&a->window, &a->seqs, a->seqs.window_page, seq, p) * a->d;
    for (int32_t e = 0; e < n_entries; e++) {
        int32_t entry = a->selected ? a->selected[t * a->top_k + e] : e;
        row[n++] = a->entries.value + oc_store_row(&a->entries, &a->seqs, a->seqs.entry_page, seq, entry) * a->d;
    }
    return n;
}

/* o of one head in double, and its error. An error e_j of score j moves p_j by p_j (e_j + sum p e), to first order;
 * sums of n terms in ascending order round n times, and each rescaling by a running maximum once more. With bf16 queries
 * a device may round each weight to bf16 once before it multiplies a row: 2^-8 of it. With fp32 ones it may take queries
 * and weights as two bf16 numbers each: what the first leaves is below 2^-8 of the value's power of two, so the second
 * is off by half of 2^-16 of it, and by 2^-134, half of bf16's least step, where that is more. A weight below 2^-126,
 * fp32's least normal number, next to the largest one may be nothing. */
static void own_attend(struct oc_case *c, const struct attend *a, int32_t t, int32_t h, double *o, double *err)
{
    const double **row = oc_new(c, sizeof *row * 1024);
    double *gone = oc_new(c, 8 * 1024); /* 1: the weight may be nothing */
    double *score = oc_new(c, 8 * 1024), *score_err = oc_new(c, 8 * 1024), most = (double)a->sink[h], sum, mean_err = 0;
    const double  *q = a->q.value + (int64_t)t * a->q.cols + h * a->d;
    const double   split_err = a->dtype == NIB_DTYPE_F32 && a->window.format != NIB_ROW_F32 ? 0x1p-17 : 0;
    const double   weight_err = a->dtype == NIB_DTYPE_BF16 ? 0x1p-8 : split_err;
    const double   least_err = split_err > 0 ? 0x1p-134 : 0;
    int32_t        n = attended(a, t, row);
    for (int32_t j = 0; j < n; j++) {
        double dot = 0, mag = 0;
        for (int32_t i = 0; i < a->d; i++) {
            dot += q[i] * row[j][i];
            mag += fabs(q[i] * row[j][i]);
        }
        score[j] = dot * (double)a->scale;
        /* A score's sum may have 8 lanes only, where others have 16: chains of d / 8 products. */
        score_err[j] = (oc_dot_bound(mag, 2 * a->d) + 2 * OC_U * fabs(dot) + split_err * mag) * (double)a->scale;
        most = score[j] > most ? score[j] : most;
    }
    sum = exp((double)a->sink[h] - most);
    for (int32_t j = 0; j < n; j++) {
        /* The subtraction of the maximum rounds too; far below it, the weight vanishes faster than its error grows. */
        score_err[j] += OC_U * fabs(score[j] - most) + OC_U * fabs(most);
        score[j] = exp(score[j] - most);
        gone[j] = score[j] * exp(-score_err[j]) < 0x1p-126;
        sum += score[j];
    }
    for (int32_t j = 0; j < n; j++)
        mean_err += score[j] / sum * score_err[j];
    mean_err += exp((double)a->sink[h] - most) / sum * OC_U * fabs(most);
    for (int32_t i = 0; i < a->d; i++) {
        o[i] = err[i] = 0;
        for (int32_t j = 0; j < n; j++) {
            double v = score[j] / sum * row[j][i];
            o[i] += v;
            err[i] += fabs(v) * (1.1 * (score_err[j] + mean_err) + (2 * n + 20) * OC_U + weight_err + gone[j]) +
                      least_err / sum * fabs(row[j][i]);
        }
        /* First order is not enough where scores are uncertain by more than a little. */
        if (mean_err > 0.05)
            err[i] = INFINITY;
        /* A device may keep weight times row scale in bf16, whose steps are 2^-133 at least; values are up to 2688 row
         * scales. */
        err[i] += a->window.format == NIB_ROW_NVFP4 ? n * 2688 * 0x1p-134 : 0x1p-140;
    }
}

static void judge_attend(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct attend    *a = data;
    const struct oc_output *have = oc_find(got, "o"), *want = oc_find(ref, "o");
    double                 *o = oc_new(c, 8 * (size_t)a->d), *err = oc_new(c, 8 * (size_t)a->d);
    struct oc_worst         worst = {0}, own = {0};
    for (int32_t t = 0; t < a->q.rows; t++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            own_attend(c, a, t, h, o, err);
            oc_rotate(&a->rope, a->seqs.pos[t] - a->seqs.first_pos, true, o, err, a->d);
            for (int32_t i = 0; i < a->d; i++) {
                double v = oc_at(want, t, h * a->d + i), g = oc_at(have, t, h * a->d + i);
                oc_compare(&worst, g, v, 2 * err[i] + oc_out_bound(have, v), t, h * a->d + i);
                oc_compare(&own, g, o[i], err[i] + oc_out_bound(have, o[i]), t, h * a->d + i);
            }
        }
    oc_conclude(c, &worst, "o");
    oc_conclude(c, &own, "o (own)");
}

static void pick_selected(struct oc_case *c, struct attend *a)
{
    a->top_k = oc_range(c, 1, 40);
    a->selected = oc_new(c, 4 * (size_t)(a->seqs.n_rows * a->top_k));
    a->n_selected = oc_new(c, 4 * (size_t)a->seqs.n_rows);
    for (int32_t t = 0; t < a->seqs.n_rows; t++) {
        int32_t visible = (a->seqs.pos[t] + 1) / a->ratio, n = 0;
        for (int32_t e = 0; e < visible && n < a->top_k; e++)
            if (visible - e <= a->top_k - n || oc_chance(c, 0.4))
                a->selected[t * a->top_k + n++] = e;
        a->n_selected[t] = n;
        while (n < a->top_k)
            a->selected[t * a->top_k + n++] = -1;
    }
}

/* At least 128 rows, and 64 for each of their sequences; the first two cases are small enough for a simulator. */
static void pick_prompt(struct oc_case *c, struct attend *a)
{
    bool small = c->index < 2;
    do {
        c->shape[0] = 0;
        a->seqs = oc_seqs_new(c, small ? 136 : OC_ROWS_MOST, 500, oc_range(c, 0, 1));
    } while (a->seqs.n_rows < 128 || a->seqs.n_rows < 64 * a->seqs.n_seqs);
    a->n_heads = oc_range(c, 1, small ? 1 : 4);
    a->n_window = small ? oc_range(c, 1, 40) : a->n_window;
}

void oc_check_attend(struct oc_case *c)
{
    struct attend        a = {.n_heads = oc_range(c, 1, 8), .n_window = oc_chance(c, 0.6) ? 128 : oc_range(c, 1, 128)};
    static const int32_t ratios[] = {0, 4, 128};
    int32_t              n_rot;
    /* Devices have kernels of their own for more than 16 rows and share out heads by tens. */
    bool many = oc_chance(c, c->index % 5 == 4 ? 0.4 : 0.05) || c->many;
    /* And for a hundred rows of a sequence. */
    a.seqs = oc_seqs_new(c, c->many && c->index % 8 >= 6 ? 300 : many ? 24 : oc_chance(c, 0.2) ? 16 : 5, 500, oc_range(c, 0, 1));
    if (c->index % 16 == 7)
        a.n_heads = oc_range(c, 30, 40);
    /* --format fp8 --rows many: prompts of few heads over FP8 and NVFP4 rows, which devices may decode ahead. */
    bool prompt = c->many && c->format == NIB_ACT_FP8;
    if (prompt)
        pick_prompt(c, &a);
    a.ratio = oc_pick(c, 3, ratios);
    pick_head(c, &a.d, &n_rot);
    if (c->format == NIB_ACT_NVFP4 || prompt) {
        a.d = 512;
        n_rot = 64;
    }
    if (c->format == NIB_ACT_NVFP4) {
        a.w = c->index % 2 ? oc_weight_new(c, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, 1, 8, 64)
                           : oc_weight_new(c, NIB_WEIGHT_FP8, NIB_ACT_FP8, 1, 128, 128);
    }
    a.scale = (float)pow(a.d, -0.5);
    a.padding = c->index / 4 % 4 == 3 ? 5 : 8;
    a.rope = oc_rope_new(c, n_rot);
    a.dtype = oc_chance(c, a.d == 512 ? 0.8 : 0.3) ? NIB_DTYPE_BF16 : NIB_DTYPE_F32;
    if (c->format == NIB_ACT_NVFP4) /* each with every format of rows and weights */
        a.dtype = (c->index + c->index / 6) % 2 ? NIB_DTYPE_BF16 : NIB_DTYPE_F32;
    a.q = oc_mat_new(c, a.dtype, a.seqs.n_rows, a.n_heads * a.d, oc_chance(c, 0.2) ? 5 : 1, oc_chance(c, 0.1));
    a.sink = oc_floats(c, a.n_heads, 0, 2);
    if (oc_chance(c, 0.1))
        a.sink[0] = -INFINITY; /* no sink */
    enum nib_row_format f = (enum nib_row_format)(c->format == NIB_ACT_NVFP4 ? 1 + c->index % 3 : c->index % 4);
    f = !prompt ? f : c->index % 2 ? NIB_ROW_NVFP4 : NIB_ROW_FP8;
    a.window = oc_store_new(c, f, NIB_PAGE_TOKENS, a.seqs.n_pages, a.d, n_rot, 1);
    if (a.ratio) {
        a.entries = oc_store_new(c, f, NIB_PAGE_TOKENS / a.ratio, a.seqs.n_pages, a.d, n_rot, 1);
        if (a.ratio == 4 && oc_chance(c, 0.7))
            pick_selected(c, &a);
    }
    oc_shape(c, "%d heads of %d, window %d, ratio %d, top_k %d, rows %d, store format %d", a.n_heads, a.d, a.n_window,
             a.ratio, a.top_k, a.dtype, f);
    oc_all(c, run_attend, judge_attend, &a, a.q.rows);
}
