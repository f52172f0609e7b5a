/* Checks of compress and index_select. */
#include "support/opcheck.h"

#include <math.h>
#include <string.h>

enum { N_SLOTS = 8 };

static int32_t part(int32_t step, int32_t left) { return step < left ? step : left; }

/* ---- compress ---- */

struct compress {
    struct oc_seqs  seqs;
    struct oc_mat   kv, gate;
    float          *ape, *norm_weight, *ring_kv, *ring_score;
    int32_t         ratio, width, wide, n_ring;
    bool            overlap, hadamard, round_bf16;
    struct nib_rope rope;
    struct oc_store store;
};

static void run_compress(struct oc_run *r, const void *data, int32_t step)
{
    const struct compress *a = data;
    struct nib_mat         kv = oc_put_mat(r, &a->kv), gate = oc_put_mat(r, &a->gate);
    struct nib_compress_args args = {
        .ape = oc_put(r, a->ape, 4 * (size_t)(a->ratio * a->wide)),
        .norm_weight = oc_put(r, a->norm_weight, 4 * (size_t)a->width),
        .eps = 1e-6f,
        .ratio = a->ratio,
        .width = a->width,
        .overlap = a->overlap,
        .hadamard = a->hadamard,
        .round_bf16 = a->round_bf16,
        .rope = oc_put_rope(r, &a->rope),
        .frontier = {.kv = oc_out(r, "ring kv", OC_F32, N_SLOTS * a->n_ring, a->wide, a->ring_kv),
                     .score = oc_out(r, "ring score", OC_F32, N_SLOTS * a->n_ring, a->wide, a->ring_score),
                     .n_ring = a->n_ring,
                     .slot_stride = (int64_t)a->n_ring * a->wide},
        .entries = oc_out_store(r, &a->store),
    };
    for (int32_t t = 0; t < a->kv.rows; t += step) {
        int32_t n = part(step, a->kv.rows - t);
        args.kv = oc_rows_of_mat(kv, t, n);
        args.gate = oc_rows_of_mat(gate, t, n);
        args.rows = oc_put_rows(r, &a->seqs, t, n);
        oc_op(r, r->api->ops->compress(r->s, &args));
    }
}

/* Value and score of a channel at a position that row t can see: of this step, or in the ring. */
static void raw(const struct compress *a, int32_t t, int32_t pos, int32_t channel, double *value, double *score)
{
    int32_t row = t - (a->seqs.pos[t] - pos);
    if (row >= 0 && a->seqs.seq[row] == a->seqs.seq[t]) {
        *value = a->kv.value[(int64_t)row * a->wide + channel];
        *score = (double)((float)a->gate.value[(int64_t)row * a->wide + channel] +
                          a->ape[pos % a->ratio * a->wide + channel]);
    } else {
        int64_t at = ((int64_t)a->seqs.slot[a->seqs.seq[t]] * a->n_ring + pos % a->n_ring) * a->wide + channel;
        *value = (double)a->ring_kv[at];
        *score = (double)a->ring_score[at];
    }
}

/* The entry that row t completes, before storage, with its error. A weight below 2^-126, fp32's least normal number, next to
 * the largest one has steps of 2^-149, of which exp may be off by two. */
static void own_entry(struct oc_case *c, const struct compress *a, int32_t t, double *y, double *err)
{
    int32_t w = a->width, pos = a->seqs.pos[t], own = pos + 1 - a->ratio;
    double *pooled = oc_new(c, 8 * (size_t)w), *pooled_err = oc_new(c, 8 * (size_t)w);
    for (int32_t i = 0; i < w; i++) {
        double most = -INFINITY, sum = 0, value, score, mag = 0, steps = 0;
        int32_t first = a->overlap ? own - a->ratio : own;
        first = first < a->seqs.first_pos ? a->seqs.first_pos : first;
        for (int pass = 0; pass < 2; pass++)
            for (int32_t p = first; p <= pos; p++) {
                raw(a, t, p, a->overlap && p >= own ? w + i : i, &value, &score);
                double e = exp(score - most);
                if (pass == 0) {
                    most = score > most ? score : most;
                    continue;
                }
                sum += e;
                pooled[i] += e * value;
                mag += e * fabs(value);
                steps += e < 0x1p-125 ? 0x1p-148 * fabs(value) : 0;
            }
        pooled[i] /= sum;
        /* exp of a difference d below the maximum has a relative error of about |d| ulps, and e^-d d < 1. */
        pooled_err[i] = mag / sum * (2 * (pos - first + 1) + 24) * OC_U + steps / sum + 0x1p-140;
        pooled_err[i] += a->round_bf16 ? oc_b16(pooled[i]) : 0;
    }
    oc_norm_bound(pooled, pooled_err, a->norm_weight, 1e-6, w, y, err);
    for (int32_t i = 0; i < w && a->round_bf16; i++)
        err[i] += oc_b16(y[i]);
    oc_rotate(&a->rope, pos / a->ratio * a->ratio - a->seqs.first_pos, false, y, err, w);
    for (int32_t i = 0; i < w && a->round_bf16; i++)
        err[i] += oc_b16(y[i]);
}

/* Hadamard in double; every output's error is that of all inputs together. */
static void own_hadamard(struct oc_case *c, double *x, double *err, int32_t n, bool bf16)
{
    double *y = oc_new(c, 8 * (size_t)n), all = 0, mag = 0, root = pow(n, -0.5);
    for (int32_t i = 0; i < n; i++) {
        all += err[i];
        mag += fabs(x[i]);
        for (int32_t k = 0; k < n; k++)
            y[i] += (__builtin_parity((unsigned)(i & k)) ? -x[k] : x[k]) * root;
    }
    for (int32_t i = 0; i < n; i++) {
        x[i] = y[i];
        err[i] = (all + 16 * OC_U * mag) * root + (bf16 ? oc_b16(y[i]) : 0);
    }
}

static void judge_ring(struct oc_case *c, const struct compress *a, const struct oc_result *got)
{
    struct oc_worst worst = {0};
    float          *kv = oc_new(c, 4 * (size_t)(N_SLOTS * a->n_ring * a->wide)), *score;
    size_t          bytes = 4 * (size_t)(N_SLOTS * a->n_ring * a->wide);
    score = oc_new(c, bytes);
    memcpy(kv, a->ring_kv, bytes);
    memcpy(score, a->ring_score, bytes);
    for (int32_t t = 0; t < a->kv.rows; t++)
        for (int32_t i = 0; i < a->wide; i++) {
            double  value, s;
            int64_t at = ((int64_t)a->seqs.slot[a->seqs.seq[t]] * a->n_ring + a->seqs.pos[t] % a->n_ring) * a->wide + i;
            raw(a, t, a->seqs.pos[t], i, &value, &s);
            kv[at] = (float)value;
            score[at] = (float)s;
        }
    for (int32_t i = 0; i < N_SLOTS * a->n_ring * a->wide; i++) {
        oc_compare(&worst, oc_at(oc_find(got, "ring kv"), 0, i), (double)kv[i], 0, 0, i);
        oc_compare(&worst, oc_at(oc_find(got, "ring score"), 0, i), (double)score[i], 0, 1, i);
    }
    oc_conclude(c, &worst, "ring");
}

static void judge_compress(struct oc_case *c, const void *data, const struct oc_result *ref,
                           const struct oc_result *got)
{
    const struct compress  *a = data;
    const struct oc_output *have = oc_find(got, "store"), *want = oc_find(ref, "store");
    int32_t                 d = a->width;
    double *y = oc_new(c, 8 * (size_t)d), *err = oc_new(c, 8 * (size_t)d), *v = oc_new(c, 8 * (size_t)d),
           *w = oc_new(c, 8 * (size_t)d);
    float           *exact = oc_new(c, 4 * (size_t)d);
    uint8_t         *row = oc_new(c, (size_t)a->store.row_bytes);
    bool            *written = oc_new(c, (size_t)have->rows);
    struct compress  f32 = *a;
    struct oc_result plain;
    struct oc_worst  worst = {0};
    judge_ring(c, a, got);
    if (a->store.format != NIB_ROW_F32) {
        f32.store = oc_store_new(c, NIB_ROW_F32, a->store.page_rows, a->store.n_pages, d, a->rope.n_rot, 1);
        oc_again(c, run_compress, &f32, &plain);
    }
    for (int32_t t = 0; t < a->kv.rows; t++) {
        int32_t pos = a->seqs.pos[t];
        if ((pos + 1) % a->ratio)
            continue;
        int64_t at = oc_store_row(&a->store, &a->seqs, a->seqs.entry_page, a->seqs.seq[t], pos / a->ratio);
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
        own_entry(c, a, t, y, err);
        if (a->hadamard)
            own_hadamard(c, y, err, d, a->round_bf16);
        for (int32_t i = 0; i < d; i++) {
            oc_compare(&worst, v[i], w[i], 2 * err[i] + 2 * OC_U * fabs(w[i]), t, i);
            oc_compare(&worst, v[i], y[i], err[i] + OC_U * fabs(y[i]), t, i);
        }
    }
    oc_conclude(c, &worst, "entry");
    ++*c->n_checks;
    for (int32_t i = 0; i < have->rows; i++)
        if (!written[i] &&
            memcmp(oc_row_at(have, i), a->store.data + i * a->store.row_bytes, (size_t)a->store.row_bytes))
            oc_fail(c, "entry row %d was written and completes no window", i);
}

void oc_check_compress(struct oc_case *c)
{
    static const int32_t formats[] = {NIB_ROW_F32, NIB_ROW_BF16, NIB_ROW_FP8, NIB_ROW_NVFP4, NIB_ROW_FP4};
    struct compress      a = {.ratio = oc_chance(c, 0.5) ? 4 : 128};
    int32_t              n_rot = oc_chance(c, 0.5) ? 32 : 16;
    enum nib_row_format  f = (enum nib_row_format)formats[c->index % 5];
    a.overlap = a.ratio == 4;
    a.width = oc_chance(c, 0.2) ? 128 : oc_chance(c, 0.5) ? 64 : 48;
    a.hadamard = f == NIB_ROW_FP4;
    if (a.hadamard)
        a.width = oc_chance(c, 0.5) ? 64 : 128;
    if (f == NIB_ROW_F32 && a.width != 48)
        a.hadamard = oc_chance(c, 0.4); /* seen without quantisation */
    a.round_bf16 = oc_chance(c, 0.3);
    a.wide = (a.overlap ? 2 : 1) * a.width;
    a.n_ring = (a.overlap ? 8 : 128) + oc_range(c, 0, 9);
    a.seqs = oc_seqs_new(c, oc_chance(c, 0.3) ? 80 : 14, 420, 0);
    a.rope = oc_rope_new(c, n_rot);
    a.kv = oc_mat_new(c, NIB_DTYPE_F32, a.seqs.n_rows, a.wide, 1, false);
    a.gate = oc_mat_new(c, NIB_DTYPE_F32, a.seqs.n_rows, a.wide, oc_chance(c, 0.3) ? 10 : 1, oc_chance(c, 0.05));
    a.ape = oc_floats(c, a.ratio * a.wide, 0, 0.5);
    a.norm_weight = oc_floats(c, a.width, 1, 0.3);
    a.ring_kv = oc_floats(c, N_SLOTS * a.n_ring * a.wide, 0, 1);
    a.ring_score = oc_floats(c, N_SLOTS * a.n_ring * a.wide, 0, 1);
    a.store = oc_store_new(c, f, NIB_PAGE_TOKENS / a.ratio, a.seqs.n_pages, a.width, n_rot, 1);
    oc_shape(c, "ratio %d, width %d, %d rotary, ring %d, format %d, hadamard %d, bf16 %d", a.ratio, a.width, n_rot,
             a.n_ring, f, a.hadamard, a.round_bf16);
    oc_all(c, run_compress, judge_compress, &a, a.seqs.n_rows);
}

/* ---- index_select ---- */

struct index_select {
    struct oc_seqs  seqs;
    struct oc_mat   q, weight;
    int32_t         n_heads, d, top_k, n_scores;
    float           scale;
    struct nib_rope rope;
    struct oc_store keys;
    bool            scores;
    struct oc_weight *w; /* --format nvfp4: devices with kernels of their own for such models launch them */
};

static void run_index(struct oc_run *r, const void *data, int32_t step)
{
    const struct index_select *a = data;
    int32_t                    n = a->q.rows;
    struct nib_mat             q = oc_out_mat(r, "q", a->q.dtype, n, a->q.cols, a->q.stride, a->q.data);
    struct nib_mat             weight = oc_put_mat(r, &a->weight), scores = {0};
    struct nib_rope            rope = oc_put_rope(r, &a->rope);
    struct nib_store           keys = oc_put_store(r, &a->keys);
    if (a->w)
        (void)oc_put_weight(r, a->w);
    int32_t                   *selected = oc_out(r, "selected", OC_I32, n, a->top_k, NULL);
    int32_t                   *n_selected = oc_out(r, "n", OC_I32, n, 1, NULL);
    if (a->scores)
        scores = oc_out_mat(r, "scores", NIB_DTYPE_F32, n, a->n_scores, a->n_scores, NULL);
    for (int32_t t = 0; t < n; t += step) {
        int32_t m = part(step, n - t);
        oc_op(r, r->api->ops->index_select(r->s, &(struct nib_index_select_args){
            oc_rows_of_mat(q, t, m), oc_rows_of_mat(weight, t, m), a->n_heads, a->d, 4, a->top_k, a->scale,
            oc_put_rows(r, &a->seqs, t, m), rope, keys, selected + (int64_t)t * a->top_k, n_selected + t,
            oc_rows_of_mat(scores, t, m)}));
    }
}

static int32_t visible_of(const struct index_select *a, int32_t t) { return (a->seqs.pos[t] + 1) / 4; }

/* Row t's score of entry e from the queries as the backend left them. */
static void judge_score(const struct index_select *a, const struct oc_result *got, int32_t t, int32_t e,
                        struct oc_worst *worst)
{
    const struct oc_output *q = oc_find(got, "q");
    const double *key = a->keys.value + oc_store_row(&a->keys, &a->seqs, a->seqs.entry_page, a->seqs.seq[t], e) * a->d;
    double        score = 0, err = 0, mag_all = 0;
    for (int32_t h = 0; h < a->n_heads; h++) {
        double dot = 0, mag = 0;
        for (int32_t i = 0; i < a->d; i++) {
            double p = oc_at(q, t, h * a->d + i) * key[i];
            dot += p;
            mag += fabs(p);
        }
        float  w = (float)a->weight.value[t * a->n_heads + h] * a->scale;
        double dot_err = oc_dot_bound(mag, a->d) + (q->kind == OC_BF16 ? oc_b16(dot) : 0);
        if (q->kind == OC_F32 && a->keys.format == NIB_ROW_BF16) /* a query may be two bf16 numbers */
            dot_err += 0x1p-17 * mag;
        w = q->kind == OC_BF16 ? oc_bf16_round(w) : w;
        score += (double)w * (dot < 0 ? 0 : dot);
        err += fabs((double)w) * dot_err;
        mag_all += fabs((double)w * dot);
    }
    err += (a->n_heads + 3) * OC_U * mag_all + (q->kind == OC_BF16 ? oc_b16(score) : 0) + 0x1p-140;
    if (isfinite(score))
        oc_compare(worst, oc_at(oc_find(got, "scores"), t, e), score, err, t, e);
}

/* The exact top k of the scores that the backend reported; NaN counts as the largest. */
static void judge_selection(struct oc_case *c, const struct index_select *a, const struct oc_result *got, int32_t t)
{
    const struct oc_output *scores = oc_find(got, "scores");
    int32_t                 visible = visible_of(a, t), n = visible < a->top_k ? visible : a->top_k, taken = 0;
    ++*c->n_checks;
    if (oc_int_at(oc_find(got, "n"), t, 0) != n)
        oc_fail(c, "row %d selects %d of %d entries, wanted %d", t, oc_int_at(oc_find(got, "n"), t, 0), visible, n);
    for (int32_t e = 0; e < visible; e++) {
        int32_t before = 0; /* entries that come before e in the order of choice */
        double  mine = oc_at(scores, t, e);
        for (int32_t o = 0; o < visible; o++) {
            double other = oc_at(scores, t, o);
            bool   equal = other == mine || (isnan(other) && isnan(mine));
            before += equal ? o < e : isnan(other) || other > mine;
        }
        if (before < n && oc_int_at(oc_find(got, "selected"), t, taken++) != e)
            oc_fail(c, "row %d: entry %d has rank %d of %d and was not selected in its place", t, e, before, visible);
    }
    for (int32_t i = n; i < a->top_k; i++)
        if (oc_int_at(oc_find(got, "selected"), t, i) != -1)
            oc_fail(c, "row %d: the tail of a short list is not -1", t);
}

/* Queries after rotation against arithmetic; after Hadamard and FP4 exactly, from the rotated ones. */
static void judge_queries(struct oc_case *c, const struct index_select *a, const struct oc_result *got)
{
    const struct oc_output *q = oc_find(got, "q");
    bool                    fp4 = a->keys.format == NIB_ROW_FP4, bf16 = q->kind == OC_BF16;
    struct index_select     rotated = *a;
    struct oc_result        plain;
    struct oc_worst         worst = {0};
    double                 *y = oc_new(c, 8 * (size_t)a->d), *err = oc_new(c, 8 * (size_t)a->d);
    float                  *x = oc_new(c, 4 * (size_t)a->d);
    uint8_t                *row = oc_new(c, (size_t)nib_row_bytes(NIB_ROW_FP4, a->d, 0));
    rotated.keys = oc_store_new(c, NIB_ROW_F32, 32, a->keys.n_pages, a->d, a->rope.n_rot, 1);
    oc_again(c, run_index, &rotated, &plain);
    for (int32_t t = 0; t < a->q.rows; t++)
        for (int32_t h = 0; h < a->n_heads && visible_of(a, t) > 0; h++) {
            for (int32_t i = 0; i < a->d; i++) {
                y[i] = a->q.value[(int64_t)t * a->q.cols + h * a->d + i];
                err[i] = 0;
                x[i] = (float)oc_at(oc_find(&plain, "q"), t, h * a->d + i);
            }
            oc_rotate(&a->rope, a->seqs.pos[t] - a->seqs.first_pos, false, y, err, a->d);
            for (int32_t i = 0; i < a->d; i++)
                oc_compare(&worst, (double)x[i], y[i], err[i] + (bf16 ? oc_b16(y[i]) : OC_U * fabs(y[i])), t, h * a->d + i);
            if (fp4) {
                oc_hadamard(x, a->d);
                for (int32_t i = 0; i < a->d && bf16; i++)
                    x[i] = oc_bf16_round(x[i]);
                oc_row_encode(NIB_ROW_FP4, x, a->d, 0, row);
                oc_row_decode(NIB_ROW_FP4, row, a->d, 0, y);
                for (int32_t i = 0; i < a->d; i++)
                    oc_compare(&worst, oc_at(q, t, h * a->d + i), y[i], 0, t, h * a->d + i);
            }
        }
    oc_conclude(c, &worst, "q");
}

static void judge_index(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct index_select *a = data;
    struct index_select        traced = *a;
    struct oc_result           again;
    struct oc_worst            worst = {0};
    (void)ref; /* close scores may be chosen differently: each backend is held to the scores it reports */
    if (!a->scores) {
        traced.scores = true;
        oc_again(c, run_index, &traced, &again);
        oc_same(c, &again, got, "selected");
        oc_same(c, &again, got, "n");
        got = &again;
    }
    judge_queries(c, &traced, got);
    for (int32_t t = 0; t < a->q.rows; t++) {
        for (int32_t e = 0; e < visible_of(a, t); e++)
            judge_score(a, got, t, e, &worst);
        judge_selection(c, a, got, t);
    }
    oc_conclude(c, &worst, "score");
}

void oc_check_index_select(struct oc_case *c)
{
    static const int32_t formats[] = {NIB_ROW_F32, NIB_ROW_BF16, NIB_ROW_FP4};
    struct index_select  a = {.n_heads = oc_range(c, 1, 8), .d = oc_chance(c, 0.5) ? 128 : 64};
    bool                 is_long = c->index % 16 == 9; /* entries enough to be shared out */
    int32_t              pos_end = is_long ? 9000 : oc_chance(c, 0.3) ? 900 : 300;
    a.seqs = oc_seqs_new(c, is_long ? 2 : oc_chance(c, 0.2) ? 30 : 6, pos_end, 0);
    a.top_k = oc_chance(c, 0.2) ? 64 : oc_range(c, 1, 32);
    a.n_scores = pos_end / 4 + 1;
    a.scale = (float)(pow(a.d, -0.5) * pow(a.n_heads, -0.5));
    a.scores = oc_chance(c, 0.5);
    bool bf16 = oc_chance(c, 0.3);
    enum nib_row_format format = (enum nib_row_format)formats[c->index % 3];
    if (c->format == NIB_ACT_NVFP4) {
        a.d = 128;
        a.scale = (float)(pow(a.d, -0.5) * pow(a.n_heads, -0.5));
        a.w = oc_weight_new(c, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, 1, 8, 64);
        format = c->index % 2 ? NIB_ROW_BF16 : NIB_ROW_FP4;
        bf16 = bf16 || format == NIB_ROW_BF16;
    }
    a.q = oc_mat_new(c, bf16 ? NIB_DTYPE_BF16 : NIB_DTYPE_F32, a.seqs.n_rows, a.n_heads * a.d, 1, oc_chance(c, 0.1));
    a.weight = oc_mat_new(c, a.q.dtype, a.seqs.n_rows, a.n_heads, 1, false);
    a.rope = oc_rope_new(c, oc_chance(c, 0.5) ? 64 : 32);
    a.keys = oc_store_new(c, format, 32, a.seqs.n_pages, a.d, a.rope.n_rot, 1);
    if (oc_chance(c, 0.2)) {
        /* Equal keys everywhere: only the order of entries decides. */
        for (int64_t i = 1; i < (int64_t)a.keys.n_pages * 32; i++) {
            memcpy(a.keys.data + i * a.keys.row_bytes, a.keys.data, (size_t)a.keys.row_bytes);
            memcpy(a.keys.value + i * a.d, a.keys.value, 8 * (size_t)a.d);
        }
    }
    if (oc_chance(c, 0.1)) {
        /* A key that is NaN must be seen: its entry comes first. */
        int64_t at = oc_store_row(&a.keys, &a.seqs, a.seqs.entry_page, 0, oc_range(c, 0, a.seqs.pos[0] / 4));
        memset(a.keys.data + at * a.keys.row_bytes, 0xff, (size_t)a.keys.row_bytes);
        oc_row_decode(a.keys.format, a.keys.data + at * a.keys.row_bytes, a.d, a.rope.n_rot, a.keys.value + at * a.d);
    }
    oc_shape(c, "%d heads of %d, %d rotary, top_k %d, rows %d, keys format %d, scores %d", a.n_heads, a.d, a.rope.n_rot,
             a.top_k, a.q.dtype, a.keys.format, a.scores);
    oc_all(c, run_index, judge_index, &a, a.q.rows);
}
