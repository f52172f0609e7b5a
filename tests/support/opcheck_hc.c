/* Checks of norm, hyper-connections, mtp_join and copy_rows. */
#include "support/opcheck.h"

#include <math.h>
#include <string.h>

static enum nib_dtype pick_dtype(struct oc_case *c)
{
    return oc_chance(c, c->many ? 0.9 : 0.3) ? NIB_DTYPE_BF16 : NIB_DTYPE_F32;
}

/* Backends may run small ops on one thread: one case in sixteen has rows enough to be shared out. */
static int32_t pick_rows(struct oc_case *c, int32_t most)
{
    if (c->many) /* more than kernels for few rows take */
        return oc_range(c, 97, oc_chance(c, 0.2) ? OC_ROWS_MOST - 2 : 140);
    return c->index % 16 == 15 ? oc_range(c, 80, 94) : oc_range(c, 0, most);
}

static int32_t part(int32_t step, int32_t left) { return step < left ? step : left; }

/* ---- norm ---- */

struct norm {
    struct oc_mat       x;
    float              *weight, eps;
    bool                plain;
    enum nib_dtype      dtype;
    enum nib_act_format format;
    struct oc_weight
        *w; /* whose rows these could be: what a backend does first for such rows it does when one is packed */
};

static void run_norm(struct oc_run *r, const void *data, int32_t step)
{
    const struct norm *a = data;
    struct nib_mat     x = oc_put_mat(r, &a->x);
    float             *weight = oc_put(r, a->weight, 4 * (size_t)a->x.cols);
    struct nib_act     y = oc_out_act(r, a->plain, a->dtype, a->format, a->x.rows, a->x.cols);
    if (a->w)
        (void)oc_put_weight(r, a->w);
    for (int32_t t = 0; t < a->x.rows; t += step) {
        int32_t n = part(step, a->x.rows - t);
        oc_op(r, r->api->ops->norm(r->s, &(struct nib_norm_args){oc_rows_of_mat(x, t, n), weight, a->eps,
                                                                 oc_rows_of_act(y, t, n)}));
    }
}

static void judge_norm(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct norm *a = data;
    int32_t            cols = a->x.cols;
    double            *y = oc_new(c, 8 * (size_t)cols), *bound = oc_new(c, 8 * (size_t)cols);
    if (!a->plain) {
        struct norm      with_plain = *a;
        struct oc_result again;
        with_plain.plain = true;
        with_plain.dtype = NIB_DTYPE_F32;
        oc_again(c, run_norm, &with_plain, &again);
        oc_judge_emitted(c, got, oc_find(&again, "plain"), a->format, a->x.rows, cols);
        return;
    }
    const struct oc_output *have = oc_find(got, "plain"), *want = oc_find(ref, "plain");
    struct oc_worst         worst = {0};
    for (int32_t t = 0; t < a->x.rows; t++) {
        oc_norm_bound(a->x.value + (int64_t)t * cols, NULL, a->weight, (double)a->eps, cols, y, bound);
        for (int32_t i = 0; i < cols; i++) {
            double v = oc_at(want, t, i);
            oc_compare(&worst, oc_at(have, t, i), v, bound[i] + oc_out_bound(have, v), t, i);
        }
    }
    oc_conclude(c, &worst, "y");
    oc_judge_emitted(c, got, have, a->format, a->x.rows, cols);
}

void oc_check_norm(struct oc_case *c)
{
    int32_t     n = pick_rows(c, 9), cols = oc_range(c, 1, n > 9 || oc_chance(c, 0.3) ? 80 : 12) * 16;
    struct norm a = {.eps = 1e-6f, .dtype = pick_dtype(c)};
    a.format = (enum nib_act_format)oc_range(c, NIB_ACT_PLAIN, NIB_ACT_INT8);
    a.format = c->format != NIB_ACT_PLAIN ? c->format : a.format;
    a.plain = a.format == NIB_ACT_PLAIN || oc_chance(c, 0.7);
    if (a.format == NIB_ACT_PLAIN)
        cols += oc_range(c, 0, 15);
    a.x = oc_mat_new(c, pick_dtype(c), n, cols, 1, oc_chance(c, 0.2));
    a.weight = oc_floats(c, cols, 1, 0.3);
    a.w = c->format == NIB_ACT_NVFP4 ? oc_weight_new(c, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, 1, 8, cols) : NULL;
    oc_shape(c, "%d rows of %d, x %d, y %d format %d plain %d", n, cols, a.x.dtype, a.dtype, a.format, a.plain);
    oc_all(c, run_norm, judge_norm, &a, n);
}

/* ---- hc_pre and hc_head ---- */

struct hc {
    struct oc_mat       streams;
    int32_t             n_hc, n_iters, n_rows, *row;
    float              *fn, *base, *scale, *norm_weight;
    enum nib_dtype      dtype; /* of x */
    enum nib_act_format format;
    struct oc_mat       before, y, post, comb; /* behind: what hc_post makes the streams of */
    bool                behind;
};

static void hc_new(struct oc_case *c, struct hc *a, int32_t n_mix, int32_t n_scales, int32_t dim)
{
    enum nib_dtype dtype = pick_dtype(c);
    a->n_rows = pick_rows(c, 6);
    a->streams = oc_mat_new(c, dtype, a->n_rows + 2, a->n_hc * dim, oc_chance(c, 0.2) ? 30 : 1, oc_chance(c, 0.15));
    a->dtype = dtype;
    a->fn = oc_floats(c, n_mix * a->n_hc * dim, 0, 1.0 / sqrt(a->n_hc * dim));
    a->base = oc_floats(c, n_mix, 0, 1);
    a->scale = oc_floats(c, n_scales, 0, oc_chance(c, 0.2) ? 4 : 0.5);
    a->norm_weight = oc_floats(c, dim, 1, 0.3);
    a->row = oc_new(c, 4 * (size_t)a->n_rows + 4);
    for (int32_t i = 0; i < a->n_rows; i++)
        a->row[i] = oc_range(c, 0, a->n_rows + 1);
}

/* mix[i] with its error, of one row; eps 1e-6. */
static void own_mix(const struct hc *a, int32_t t, int32_t n_mix, double *mix, double *err)
{
    int32_t       width = a->streams.cols;
    const double *x = a->streams.value + (int64_t)t * width;
    double        sum = 0;
    for (int32_t k = 0; k < width; k++)
        sum += x[k] * x[k];
    double ir = 1 / sqrt(sum / width + (double)1e-6f);
    for (int32_t i = 0; i < n_mix; i++) {
        double dot = 0, mag = 0;
        for (int32_t k = 0; k < width; k++) {
            double p = (double)a->fn[(int64_t)i * width + k] * x[k];
            dot += p;
            mag += fabs(p);
        }
        mix[i] = dot * ir;
        err[i] = oc_dot_bound(mag, width) * ir + fabs(mix[i]) * ((double)width / 32 + 8) * OC_U;
    }
}

/* v = sigmoid(mix * scale + base) and its error: the slope is at most 1/4 and exp costs a few ulps. */
static double own_sigmoid(double mix, double err, double scale, double base, double *out_err)
{
    double z = mix * scale + base, v = 1 / (1 + exp(-z));
    *out_err = v * (1 - v) * (err * fabs(scale) + 3 * OC_U * (fabs(mix * scale) + fabs(base))) * 1.1 + 8 * OC_U * v;
    return v;
}

/* Collapsed row and norm, with errors, given weights with errors. */
static void own_collapse(struct oc_case *c, const struct hc *a, int32_t t, const double *weight, const double *err,
                         double *collapsed, double *collapsed_err, double *y, double *y_err)
{
    int32_t dim = a->streams.cols / a->n_hc;
    (void)c;
    for (int32_t i = 0; i < dim; i++) {
        collapsed[i] = collapsed_err[i] = 0;
        for (int32_t j = 0; j < a->n_hc; j++) {
            double s = a->streams.value[(int64_t)t * a->streams.cols + j * dim + i];
            collapsed[i] += weight[j] * s;
            collapsed_err[i] += fabs(s) * (err[j] + (a->n_hc + 2) * OC_U * fabs(weight[j]));
        }
        collapsed_err[i] += 0x1p-148;
        if (a->streams.dtype == NIB_DTYPE_BF16)
            collapsed_err[i] += oc_b16(collapsed[i]);
    }
    oc_norm_bound(collapsed, collapsed_err, a->norm_weight, (double)1e-6f, dim, y, y_err);
}

static void judge_rows(struct oc_case *c, const struct oc_output *have, const struct oc_output *want, int32_t t,
                       const double *err, struct oc_worst *worst)
{
    (void)c;
    for (int32_t i = 0; i < have->cols; i++) {
        double v = oc_at(want, t, i);
        /* Both sides may be off by err. */
        oc_compare(worst, oc_at(have, t, i), v, 2 * err[i] + oc_out_bound(have, v), t, i);
    }
}

/* A module before this one, whose output becomes stream 0 while the others come from the next one each: the products
 * are with 0 and 1, so the streams are a->streams to the bit. */
static void hc_new_behind(struct oc_case *c, struct hc *a, int32_t dim)
{
    int32_t      n = a->streams.rows, n_hc = a->n_hc;
    const size_t width = (size_t)(n_hc * dim), rows = (size_t)n;
    float       *before = oc_floats(c, n * n_hc * dim, 0, 1), *y = oc_new(c, 4 * rows * (size_t)dim + 4);
    float       *post = oc_new(c, 4 * rows * (size_t)n_hc + 4), *comb = oc_new(c, 4 * rows * (size_t)(n_hc * n_hc) + 4);
    for (size_t t = 0; t < rows; t++) {
        const double *wanted = a->streams.value + t * width;
        for (int32_t k = 0; k < n_hc; k++) {
            const int32_t from = (k + 1) % n_hc;
            post[t * (size_t)n_hc + (size_t)k] = k == 0 ? 1 : 0;
            for (int32_t j = 0; j < n_hc; j++)
                comb[(t * (size_t)n_hc + (size_t)j) * (size_t)n_hc + (size_t)k] = k > 0 && j == from ? 1 : 0;
            for (int32_t i = 0; i < dim; i++)
                *(k == 0 ? &y[t * (size_t)dim + (size_t)i] : &before[t * width + (size_t)(from * dim + i)]) =
                    (float)wanted[k * dim + i];
        }
    }
    a->before = oc_mat_of(c, a->dtype, n, n_hc * dim, before);
    a->y = oc_mat_of(c, a->dtype, n, dim, y);
    a->post = oc_mat_of(c, NIB_DTYPE_F32, n, n_hc, post);
    a->comb = oc_mat_of(c, NIB_DTYPE_F32, n, n_hc * n_hc, comb);
}

static void run_hc_pre(struct oc_run *r, const void *data, int32_t step)
{
    const struct hc *a = data;
    int32_t          n_hc = a->n_hc, n_mix = (2 + n_hc) * n_hc, n = a->streams.rows, dim = a->streams.cols / n_hc;
    struct nib_mat   streams, y = {0}, behind_post = {0}, behind_comb = {0};
    if (!a->behind) {
        streams = oc_put_mat(r, &a->streams);
    } else {
        streams = oc_out_mat(r, "streams", a->dtype, n, a->before.cols, a->before.stride, a->before.data);
        y = oc_put_mat(r, &a->y);
        behind_post = oc_put_mat(r, &a->post);
        behind_comb = oc_put_mat(r, &a->comb);
    }
    float           *fn = oc_put(r, a->fn, 4 * (size_t)(n_mix * a->streams.cols));
    float           *base = oc_put(r, a->base, 4 * (size_t)n_mix), *scale = oc_put(r, a->scale, 12);
    float           *norm_weight = oc_put(r, a->norm_weight, 4 * (size_t)dim);
    struct nib_mat   post = oc_out_mat(r, "post", NIB_DTYPE_F32, n, n_hc, n_hc + 1, NULL);
    struct nib_mat   comb = oc_out_mat(r, "comb", NIB_DTYPE_F32, n, n_hc * n_hc, n_hc * n_hc, NULL);
    struct nib_mat   collapsed = oc_out_mat(r, "collapsed", a->dtype, n, dim, dim, NULL);
    struct nib_act   x = oc_out_act(r, true, a->dtype, a->format, n, dim);
    for (int32_t t = 0; t < n; t += step) {
        int32_t m = part(step, n - t);
        if (a->behind)
            oc_op(r, r->api->ops->hc_post(r->s, &(struct nib_hc_post_args){
                oc_rows_of_mat(streams, t, m), n_hc, oc_rows_of_mat(y, t, m), oc_rows_of_mat(behind_post, t, m),
                oc_rows_of_mat(behind_comb, t, m)}));
        oc_op(r, r->api->ops->hc_pre(r->s, &(struct nib_hc_pre_args){
            oc_rows_of_mat(streams, t, m), n_hc, a->n_iters, fn, base, scale, 1e-6f, 1e-6f, norm_weight,
            oc_rows_of_mat(post, t, m), oc_rows_of_mat(comb, t, m), oc_rows_of_act(x, t, m),
            oc_rows_of_mat(collapsed, t, m)}));
    }
}

static void judge_hc_pre(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct hc *a = data;
    int32_t          n_hc = a->n_hc, n_mix = (2 + n_hc) * n_hc, dim = a->streams.cols / n_hc;
    double          *mix = oc_new(c, 16 * (size_t)n_mix), *err = mix + n_mix, weight[8], weight_err[8];
    double *row = oc_new(c, 32 * (size_t)dim), *row_err = row + dim, *y = row + 2 * dim, *y_err = row + 3 * dim;
    struct oc_worst  worst[4] = {{0}};
    const char      *names[] = {"post", "comb", "collapsed", "plain"};
    for (int32_t t = 0; t < a->streams.rows; t++) {
        own_mix(a, t, n_mix, mix, err);
        double post_err[8], comb_most = 0;
        for (int32_t i = 0; i < n_hc; i++) {
            weight[i] = own_sigmoid(mix[i], err[i], (double)a->scale[0], (double)a->base[i], &weight_err[i]) + 1e-6;
            (void)own_sigmoid(mix[n_hc + i], err[n_hc + i], (double)a->scale[1], (double)a->base[n_hc + i],
                              &post_err[i]);
            post_err[i] *= 2;
        }
        for (int32_t i = 2 * n_hc; i < n_mix; i++) {
            double e = err[i] * fabs((double)a->scale[2]) +
                       3 * OC_U * (fabs(mix[i] * (double)a->scale[2]) + fabs((double)a->base[i]));
            comb_most = e > comb_most ? e : comb_most;
        }
        /* An error e of every logit is a factor within e^(+-2e) after the softmax. Dividing rows or columns by their
         * sums does not widen the spread of such factors (Hilbert's metric), and each division adds its roundings. */
        double rel = 4 * comb_most + 2 * (2 * a->n_iters + 4) * (n_hc + 4) * OC_U;
        judge_rows(c, oc_find(got, "post"), oc_find(ref, "post"), t, post_err, &worst[0]);
        for (int32_t i = 0; i < n_hc * n_hc; i++) {
            double v = oc_at(oc_find(ref, "comb"), t, i);
            oc_compare(&worst[1], oc_at(oc_find(got, "comb"), t, i), v, fabs(v) * 2 * rel + 2 * OC_U, t, i);
        }
        own_collapse(c, a, t, weight, weight_err, row, row_err, y, y_err);
        judge_rows(c, oc_find(got, "collapsed"), oc_find(ref, "collapsed"), t, row_err, &worst[2]);
        judge_rows(c, oc_find(got, "plain"), oc_find(ref, "plain"), t, y_err, &worst[3]);
    }
    for (int i = 0; i < 4; i++)
        oc_conclude(c, &worst[i], names[i]);
    oc_judge_emitted(c, got, oc_find(got, "plain"), a->format, a->streams.rows, dim);
}

void oc_check_hc_pre(struct oc_case *c)
{
    struct hc a = {.n_hc = oc_range(c, 1, 4), .n_iters = oc_chance(c, 0.7) ? 20 : oc_range(c, 1, 5)};
    int32_t   dim = oc_range(c, 1, 16) * 16;
    bool      whole = oc_chance(c, c->many ? 0.9 : 0.4); /* the shape that devices take by slices of channels */
    if (whole) {
        a.n_hc = 4;
        dim = oc_range(c, 1, 20) * 64;
    }
    a.format = (enum nib_act_format)oc_range(c, NIB_ACT_PLAIN, NIB_ACT_INT8);
    hc_new(c, &a, (2 + a.n_hc) * a.n_hc, 3, dim);
    a.behind = oc_chance(c, 0.5);
    for (int64_t i = 0; i < (int64_t)a.streams.rows * a.streams.cols; i++)
        a.behind &= isfinite(a.streams.value[i]);
    if (a.behind)
        hc_new_behind(c, &a, dim);
    oc_shape(c, "%d rows of %d x %d, %d iterations, rows %d, x format %d, behind a module %d", a.streams.rows, a.n_hc,
             dim, a.n_iters, a.dtype, a.format, a.behind);
    oc_all(c, run_hc_pre, judge_hc_pre, &a, a.streams.rows);
}

static void run_hc_head(struct oc_run *r, const void *data, int32_t step)
{
    const struct hc *a = data;
    int32_t          n_hc = a->n_hc, n = a->n_rows, dim = a->streams.cols / n_hc;
    struct nib_mat   streams = oc_put_mat(r, &a->streams);
    float           *fn = oc_put(r, a->fn, 4 * (size_t)(n_hc * a->streams.cols));
    float           *base = oc_put(r, a->base, 4 * (size_t)n_hc), *scale = oc_put(r, a->scale, 4);
    float           *norm_weight = oc_put(r, a->norm_weight, 4 * (size_t)dim);
    int32_t         *row = oc_put(r, a->row, 4 * (size_t)n);
    struct nib_mat   collapsed = oc_out_mat(r, "collapsed", a->dtype, n, dim, dim + 1, NULL);
    struct nib_mat   x = oc_out_mat(r, "plain", a->dtype, n, dim, dim, NULL);
    for (int32_t t = 0; t < n; t += step) {
        int32_t m = part(step, n - t);
        oc_op(r, r->api->ops->hc_head(r->s, &(struct nib_hc_head_args){
            streams, row + t, m, n_hc, fn, base, scale, 1e-6f, 1e-6f, norm_weight, oc_rows_of_mat(x, t, m),
            oc_rows_of_mat(collapsed, t, m)}));
    }
}

static void judge_hc_head(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct hc *a = data;
    int32_t          dim = a->streams.cols / a->n_hc;
    double           mix[8], err[8], weight[8], weight_err[8];
    double *row = oc_new(c, 32 * (size_t)dim), *row_err = row + dim, *y = row + 2 * dim, *y_err = row + 3 * dim;
    struct oc_worst  worst[2] = {{0}};
    for (int32_t t = 0; t < a->n_rows; t++) {
        own_mix(a, a->row[t], a->n_hc, mix, err);
        for (int32_t i = 0; i < a->n_hc; i++)
            weight[i] = own_sigmoid(mix[i], err[i], (double)a->scale[0], (double)a->base[i], &weight_err[i]) + 1e-6;
        own_collapse(c, a, a->row[t], weight, weight_err, row, row_err, y, y_err);
        judge_rows(c, oc_find(got, "collapsed"), oc_find(ref, "collapsed"), t, row_err, &worst[0]);
        judge_rows(c, oc_find(got, "plain"), oc_find(ref, "plain"), t, y_err, &worst[1]);
    }
    oc_conclude(c, &worst[0], "collapsed");
    oc_conclude(c, &worst[1], "x");
}

void oc_check_hc_head(struct oc_case *c)
{
    struct hc a = {.n_hc = oc_range(c, 1, 4)};
    int32_t   dim = oc_range(c, 1, 300);
    hc_new(c, &a, a.n_hc, 1, dim);
    oc_shape(c, "%d of %d rows of %d x %d, rows %d", a.n_rows, a.streams.rows, a.n_hc, dim, a.dtype);
    oc_all(c, run_hc_head, judge_hc_head, &a, a.n_rows);
}

/* ---- hc_post and mtp_join ---- */

struct join {
    struct oc_mat streams, y, post, comb;
    int32_t       n_hc;
};

static void run_hc_post(struct oc_run *r, const void *data, int32_t step)
{
    const struct join *a = data;
    int32_t            n = a->y.rows;
    struct nib_mat     y = oc_put_mat(r, &a->y), post = oc_put_mat(r, &a->post), comb = oc_put_mat(r, &a->comb);
    struct nib_mat     s =
        oc_out_mat(r, "streams", a->streams.dtype, n, a->streams.cols, a->streams.stride, a->streams.data);
    for (int32_t t = 0; t < n; t += step) {
        int32_t m = part(step, n - t);
        oc_op(r, r->api->ops->hc_post(
                     r->s, &(struct nib_hc_post_args){oc_rows_of_mat(s, t, m), a->n_hc, oc_rows_of_mat(y, t, m),
                                                      oc_rows_of_mat(post, t, m), oc_rows_of_mat(comb, t, m)}));
    }
}

static void judge_hc_post(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct join      *a = data;
    const struct oc_output *have = oc_find(got, "streams"), *want = oc_find(ref, "streams");
    int32_t                 n_hc = a->n_hc, dim = a->y.cols;
    struct oc_worst         worst = {0};
    for (int32_t t = 0; t < a->y.rows; t++)
        for (int32_t i = 0; i < n_hc * dim; i++) {
            double mag = fabs(a->post.value[t * n_hc + i / dim] * a->y.value[(int64_t)t * dim + i % dim]);
            for (int32_t j = 0; j < n_hc; j++)
                mag += fabs(a->comb.value[(t * n_hc + j) * n_hc + i / dim] *
                            a->streams.value[(int64_t)t * n_hc * dim + j * dim + i % dim]);
            double v = oc_at(want, t, i);
            oc_compare(&worst, oc_at(have, t, i), v, (n_hc + 2) * OC_U * mag + n_hc * 0x1p-148 + oc_out_bound(have, v),
                       t, i);
        }
    oc_conclude(c, &worst, "streams");
}

void oc_check_hc_post(struct oc_case *c)
{
    struct join    a = {.n_hc = oc_range(c, 1, 4)};
    enum nib_dtype dtype = pick_dtype(c);
    int32_t        n = pick_rows(c, 8), dim = oc_range(c, 1, 300);
    if (c->many && oc_chance(c, 0.9)) { /* the shape that devices take by eights, with the bits of one row */
        n = oc_range(c, 9, oc_chance(c, 0.5) ? 94 : 140);
        a.n_hc = 4;
        dim = 8 * oc_range(c, 1, 160);
    }
    a.streams = oc_mat_new(c, dtype, n, a.n_hc * dim, 1, false);
    a.y = oc_mat_new(c, dtype, n, dim, 1, oc_chance(c, 0.15));
    a.post = oc_mat_new(c, NIB_DTYPE_F32, n, a.n_hc, 1, false);
    a.comb = oc_mat_new(c, NIB_DTYPE_F32, n, a.n_hc * a.n_hc, 0.5, false);
    oc_shape(c, "%d rows of %d x %d, rows %d", n, a.n_hc, dim, dtype);
    oc_all(c, run_hc_post, judge_hc_post, &a, n);
}

static void run_mtp_join(struct oc_run *r, const void *data, int32_t step)
{
    const struct join *a = data;
    int32_t            n = a->y.rows;
    struct nib_mat     e = oc_put_mat(r, &a->y);
    struct nib_mat     h = oc_out_mat(r, "h", a->streams.dtype, n, a->streams.cols, a->streams.stride, a->streams.data);
    for (int32_t t = 0; t < n; t += step) {
        int32_t m = part(step, n - t);
        oc_op(r, r->api->ops->mtp_join(
                     r->s, &(struct nib_mtp_join_args){oc_rows_of_mat(e, t, m), oc_rows_of_mat(h, t, m), a->n_hc}));
    }
}

static void judge_mtp_join(struct oc_case *c, const void *data, const struct oc_result *ref,
                           const struct oc_result *got)
{
    const struct join      *a = data;
    const struct oc_output *h = oc_find(got, "h");
    struct oc_worst         worst = {0};
    (void)ref;
    for (int32_t t = 0; t < a->y.rows; t++)
        for (int32_t i = 0; i < a->streams.cols; i++) {
            /* One addition: the sum in double, rounded to fp32 and then to the row's type. */
            float v = (float)(a->streams.value[(int64_t)t * a->streams.cols + i] +
                              a->y.value[(int64_t)t * a->y.cols + i % a->y.cols]);
            oc_compare(&worst, oc_at(h, t, i), (double)(h->kind == OC_F32 ? v : oc_bf16_round(v)), 0, t, i);
        }
    oc_conclude(c, &worst, "h");
}

void oc_check_mtp_join(struct oc_case *c)
{
    struct join    a = {.n_hc = oc_range(c, 1, 4)};
    enum nib_dtype dtype = pick_dtype(c);
    int32_t        n = pick_rows(c, 8), dim = oc_range(c, 1, 300);
    a.streams = oc_mat_new(c, dtype, n, a.n_hc * dim, 1, false);
    a.y = oc_mat_new(c, dtype, n, dim, 1, oc_chance(c, 0.15));
    oc_shape(c, "%d rows of %d x %d, rows %d", n, a.n_hc, dim, dtype);
    oc_all(c, run_mtp_join, judge_mtp_join, &a, n);
}

/* ---- copy_rows ---- */

struct copy {
    struct oc_mat src, dst;
    int32_t       n, *src_row, *dst_row;
};

static void run_copy(struct oc_run *r, const void *data, int32_t step)
{
    const struct copy *a = data;
    struct nib_mat     src = oc_put_mat(r, &a->src);
    struct nib_mat     dst = oc_out_mat(r, "dst", a->dst.dtype, a->dst.rows, a->dst.cols, a->dst.stride, a->dst.data);
    int32_t *src_row = oc_put(r, a->src_row, 4 * (size_t)a->n), *dst_row = oc_put(r, a->dst_row, 4 * (size_t)a->n);
    for (int32_t t = 0; t < a->n; t += step)
        oc_op(r, r->api->ops->copy_rows(r->s, &(struct nib_copy_rows_args){src, dst, src_row + t, dst_row + t,
                                                                           part(step, a->n - t)}));
}

static void judge_copy(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct copy      *a = data;
    const struct oc_output *dst = oc_find(got, "dst");
    struct oc_worst         worst = {0};
    (void)ref;
    for (int32_t d = 0; d < a->dst.rows; d++) {
        const double *want = a->dst.value + (int64_t)d * a->dst.cols;
        for (int32_t i = 0; i < a->n; i++)
            if (a->dst_row[i] == d && a->src_row[i] >= 0)
                want = a->src.value + (int64_t)a->src_row[i] * a->src.cols;
        for (int32_t i = 0; i < a->dst.cols; i++)
            oc_compare(&worst, oc_at(dst, d, i), want[i], 0, d, i);
    }
    oc_conclude(c, &worst, "dst");
}

void oc_check_copy_rows(struct oc_case *c)
{
    struct copy    a = {.n = oc_range(c, 0, 10)};
    enum nib_dtype dtype = pick_dtype(c);
    int32_t        cols = oc_range(c, 1, 100);
    a.src = oc_mat_new(c, dtype, 7, cols, 1, oc_chance(c, 0.1));
    a.dst = oc_mat_new(c, dtype, 12, cols, 1, false);
    a.src_row = oc_new(c, 48);
    a.dst_row = oc_new(c, 48);
    for (int32_t i = 0; i < a.n; i++) {
        a.src_row[i] = oc_range(c, -1, 6);
        a.dst_row[i] = oc_chance(c, 0.2) ? -1 : i; /* no row is written twice */
    }
    oc_shape(c, "%d rows of %d, type %d", a.n, cols, dtype);
    oc_all(c, run_copy, judge_copy, &a, a.n);
}
