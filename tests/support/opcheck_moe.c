/* Check of the mixture of experts, in double from the router on, given the experts that the backend chose. */
#include "support/opcheck.h"

#include <math.h>
#include <string.h>

struct moe {
    struct oc_act     x;
    struct oc_seqs    seqs;
    struct oc_weight *router, *w1, *w2, *w3, *sw1, *sw2, *sw3;
    float            *bias, route_scale, limit;
    int32_t          *tid2eid, n_experts, top_k, n_inner, n_inner_shared;
    bool              before;
    enum nib_dtype    dtype;
};

static void run_moe(struct oc_run *r, const void *data, int32_t step)
{
    const struct moe   *a = data;
    int32_t             n = a->x.rows, dim = a->x.cols;
    struct nib_act      x = oc_put_act(r, &a->x);
    const struct nib_weight *w1 = oc_put_weight(r, a->w1); /* first: quantised weights ready a device for the others */
    struct nib_moe_args args = {
        .router = oc_put_weight(r, a->router),
        .bias = oc_put(r, a->bias, 4 * (size_t)a->n_experts),
        .tid2eid = oc_put(r, a->tid2eid, 400 * (size_t)a->top_k),
        .n_experts = a->n_experts,
        .top_k = a->top_k,
        .route_scale = a->route_scale,
        .limit = a->limit,
        .weight_before_w2 = a->before,
        .w1 = w1,
        .w2 = oc_put_weight(r, a->w2),
        .w3 = oc_put_weight(r, a->w3),
        .sw1 = oc_put_weight(r, a->sw1),
        .sw2 = oc_put_weight(r, a->sw2),
        .sw3 = oc_put_weight(r, a->sw3),
    };
    struct nib_mat y = oc_out_mat(r, "y", a->dtype, n, dim, dim + 1, NULL);
    int32_t       *chosen = oc_out(r, "chosen", OC_I32, n, a->top_k, NULL);
    float         *weights = oc_out(r, "weights", OC_F32, n, a->top_k, NULL);
    for (int32_t t = 0; t < n; t += step) {
        int32_t m = step < n - t ? step : n - t;
        args.x = oc_rows_of_act(x, t, m);
        args.rows = oc_put_rows(r, &a->seqs, t, m);
        args.y = oc_rows_of_mat(y, t, m);
        args.chosen = chosen + t * a->top_k;
        args.weights = weights + t * a->top_k;
        oc_op(r, r->api->ops->moe(r->s, &args));
    }
}

/* y[o] = sum_k x[k] w[o][k] with errors of x carried along. */
static double dot(const double *x, const double *x_err, const double *w, int32_t n, double *err)
{
    double sum = 0, mag = 0, carried = 0;
    for (int32_t k = 0; k < n; k++) {
        sum += x[k] * w[k];
        mag += fabs(x[k] * w[k]);
        carried += x_err ? x_err[k] * fabs(w[k]) : 0;
    }
    *err = mag > 1e34 ? INFINITY : oc_dot_bound(mag + carried, n) + carried + OC_U * fabs(sum);
    return sum;
}

/* Router scores s with errors of one row. */
static void own_scores(const struct moe *a, int32_t t, double *s, double *err)
{
    const double *x = a->x.plain.value + (int64_t)t * a->x.cols;
    for (int32_t e = 0; e < a->n_experts; e++) {
        double z_err, z = dot(x, NULL, oc_weight_row(a->router, 0, e), a->x.cols, &z_err);
        s[e] = sqrt(z > 20 ? z : log1p(exp(z)));
        /* ds/dz = sigmoid(z) / 2s; below z = 0 the fp32 of exp and log1p are relative errors again. */
        double slope = s[e] > 0 ? 1 / (1 + exp(-z)) / (2 * s[e]) : 0;
        err[e] = 1.1 * slope * (z_err + 2 * OC_U * fabs(z)) + 6 * OC_U * s[e] + 0x1p-74;
    }
}

/* Whether the backend's choice is a top k within the errors of the scores, and its weights. */
static void judge_route(struct oc_case *c, const struct moe *a, const struct oc_result *ref,
                        const struct oc_result *got, int32_t t, const double *s, const double *err,
                        struct oc_worst *worst)
{
    const struct oc_output *chosen = oc_find(got, "chosen"), *weights = oc_find(got, "weights");
    bool                    taken[32] = {false}, all_zero = true;
    double                  sum = 0, sum_err = 0;
    ++*c->n_checks;
    for (int32_t i = 0; i < a->top_k; i++) {
        int32_t e = oc_int_at(chosen, t, i);
        if (e < 0 || e >= a->n_experts || (taken[e] && !a->tid2eid)) {
            oc_fail(c, "row %d chooses expert %d, which is no expert or taken", t, e);
            return;
        }
        taken[e] = true;
        sum += s[e];
        sum_err += err[e];
        if (a->tid2eid && e != a->tid2eid[a->seqs.token[t] * a->top_k + i])
            oc_fail(c, "row %d: token %d does not go to expert %d", t, a->seqs.token[t], e);
    }
    for (int32_t k = 0; k < a->x.cols; k++)
        all_zero = all_zero && a->x.plain.value[(int64_t)t * a->x.cols + k] == 0;
    for (int32_t i = 0; i < a->top_k && !a->tid2eid; i++) {
        int32_t e = oc_int_at(chosen, t, i);
        double  key = s[e] + (double)a->bias[e];
        for (int32_t f = 0; f < a->n_experts; f++) {
            double other = s[f] + (double)a->bias[f], slack = err[e] + err[f] + 2 * OC_U * (fabs(key) + fabs(other));
            if (!taken[f] && other > key + slack)
                oc_fail(c, "row %d: expert %d (%.9g) was chosen before %d (%.9g)", t, e, key, f, other);
        }
        /* Equal inputs make scores equal to the bit: then the order is decided by the tie rule alone. */
        if (all_zero && e != oc_int_at(oc_find(ref, "chosen"), t, i))
            oc_fail(c, "row %d of zeros: choice %d is expert %d, ref has %d", t, i, e,
                    oc_int_at(oc_find(ref, "chosen"), t, i));
    }
    for (int32_t i = 0; i < a->top_k; i++) {
        int32_t e = oc_int_at(chosen, t, i);
        double  w = sum > 0 ? s[e] / sum * (double)a->route_scale : 0;
        double  w_err = sum > 1e-30 ? w * (err[e] / (s[e] + 1e-300) + sum_err / sum + 8 * OC_U) : INFINITY;
        oc_compare(worst, oc_at(weights, t, i), w, w_err, t, i);
    }
}

/* Add one expert's output for row t to y; weight 1 and no error for the shared one. silu(g) * u is an fp32 product
 * (backend.h): where it is surely above fp32 the row must say so, close to that it may. */
static void own_expert(struct oc_case *c, const struct moe *a, const struct oc_weight *const w[3], int32_t e, int32_t t,
                       double weight, double weight_err, bool routed, double *y, double *y_err)
{
    int32_t n_inner = w[0]->desc.n_out, dim = a->x.cols;
    size_t  bytes = 8 * (size_t)n_inner;
    double *act = oc_new(c, bytes), *err = oc_new(c, bytes), *low = oc_new(c, bytes), *high = oc_new(c, bytes);
    bool    bf16 = a->dtype == NIB_DTYPE_BF16, poisoned = false, unsure = false;
    double  limit = a->limit > 0 ? (double)a->limit : INFINITY;
    for (int32_t i = 0; i < n_inner; i++) {
        double ge, ue, g = dot(oc_operand(&a->x, w[0], t), NULL, oc_weight_row(w[0], e, i), dim, &ge);
        double u = dot(oc_operand(&a->x, w[2], t), NULL, oc_weight_row(w[2], e, i), dim, &ue);
        poisoned = poisoned || !isfinite(g) || !isfinite(u);
        ge += bf16 ? oc_b16(g) : 0;
        ue += bf16 ? oc_b16(u) : 0;
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        double silu = g / (1 + exp(-g));
        act[i] = silu * u;
        err[i] = 1.1 * ge * (fabs(u) + ue) + fabs(silu) * ue + 10 * OC_U * fabs(act[i]) + 0x1p-140;
        poisoned = poisoned || fabs(act[i]) - err[i] > 0x1p128;
        unsure = unsure || !(fabs(act[i]) + err[i] < 1e38);
        if (routed && a->before) {
            err[i] = err[i] * weight + weight_err * fabs(act[i]);
            act[i] *= weight;
        }
        err[i] += bf16 ? oc_b16(act[i]) : 0;
    }
    if (!poisoned && !unsure) {
        oc_quantise_interval(w[1]->desc.act, act, err, n_inner, low, high);
        for (int32_t i = 0; i < n_inner; i++) {
            act[i] = 0.5 * (low[i] + high[i]);
            err[i] = 0.5 * (high[i] - low[i]) + 3 * OC_U * fabs(act[i]);
        }
    }
    for (int32_t o = 0; o < dim; o++) {
        if (unsure && !poisoned) {
            y_err[o] = INFINITY;
            continue;
        }
        double e2, v = poisoned ? NAN : dot(act, err, oc_weight_row(w[1], e, o), n_inner, &e2);
        e2 = poisoned ? 0 : e2;
        if (routed && !a->before) {
            e2 = e2 * weight + weight_err * fabs(v);
            v *= weight;
        }
        y[o] += v;
        y_err[o] += e2 + (a->top_k + 4) * OC_U * fabs(v) + (bf16 ? oc_b16(v) : 0);
    }
}

static void judge_moe(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct moe        *a = data;
    const struct oc_output  *have = oc_find(got, "y"), *chosen = oc_find(got, "chosen");
    const struct oc_output  *weights = oc_find(got, "weights");
    const struct oc_weight  *routed[3] = {a->w1, a->w2, a->w3}, *shared[3] = {a->sw1, a->sw2, a->sw3};
    int32_t                  dim = a->x.cols;
    double                   s[32], err[32];
    struct oc_worst          worst = {0}, worst_weight = {0};
    for (int32_t t = 0; t < a->x.rows && !c->failed; t++) {
        double *y = oc_new(c, 8 * (size_t)dim), *y_err = oc_new(c, 8 * (size_t)dim);
        bool    finite = true;
        own_scores(a, t, s, err);
        for (int32_t e = 0; e < a->n_experts; e++)
            finite = finite && isfinite(s[e]);
        if (finite)
            judge_route(c, a, ref, got, t, s, err, &worst_weight);
        for (int32_t i = 0; i < a->top_k && !c->failed; i++) {
            int32_t e = oc_int_at(chosen, t, i);
            if (!oc_expect(c, e >= 0 && e < a->n_experts, "an expert out of range"))
                return;
            /* The backend's own weights: they have been judged. */
            own_expert(c, a, routed, e, t, oc_at(weights, t, i), 0, true, y, y_err);
        }
        own_expert(c, a, shared, 0, t, 1, 0, false, y, y_err);
        for (int32_t o = 0; o < dim; o++)
            oc_compare(&worst, oc_at(have, t, o), y[o], y_err[o] + oc_out_bound(have, y[o]), t, o);
    }
    oc_conclude(c, &worst_weight, "weight");
    oc_conclude(c, &worst, "y");
}

void oc_check_moe(struct oc_case *c)
{
    static const int32_t acts[] = {NIB_ACT_PLAIN, NIB_ACT_FP8, NIB_ACT_INT8, NIB_ACT_NVFP4};
    enum nib_weight_type type = (enum nib_weight_type)(c->index % 5); /* every type in any five cases */
    enum nib_weight_type shared = oc_chance(c, 0.5) ? type : NIB_WEIGHT_FP8;
    bool                 four = type == NIB_WEIGHT_NVFP4 || type == NIB_WEIGHT_MXFP4;
    bool                 plain_type = type == NIB_WEIGHT_F32 || type == NIB_WEIGHT_BF16;
    enum nib_act_format  act = plain_type ? NIB_ACT_PLAIN : (enum nib_act_format)oc_pick(c, four ? 4 : 3, acts);
    enum nib_act_format  shared_act = shared == type ? act : act == NIB_ACT_FP8 ? NIB_ACT_FP8 : NIB_ACT_PLAIN;
    const bool format = c->format != NIB_ACT_PLAIN;
    if (c->format == NIB_ACT_FP8) {
        type = c->index % 3 == 2 ? NIB_WEIGHT_FP8 : NIB_WEIGHT_MXFP4;
        act = NIB_ACT_FP8;
        shared = (enum nib_weight_type)oc_pick(
            c, 3, (const int32_t[]){NIB_WEIGHT_FP8, NIB_WEIGHT_MXFP4, NIB_WEIGHT_BF16});
        shared_act = shared == NIB_WEIGHT_BF16 ? NIB_ACT_PLAIN : act;
    }
    if (c->format == NIB_ACT_NVFP4) {
        type = NIB_WEIGHT_NVFP4;
        act = NIB_ACT_NVFP4;
        shared = (enum nib_weight_type)oc_pick(c, 3, (const int32_t[]){NIB_WEIGHT_NVFP4, NIB_WEIGHT_FP8, NIB_WEIGHT_BF16});
        shared_act = shared == NIB_WEIGHT_NVFP4 ? act : NIB_ACT_PLAIN;
    }
    struct moe a = {.top_k = oc_range(c, 1, 4), .route_scale = 1.5f, .n_inner = 32 * oc_range(c, 1, 5),
                    .n_inner_shared = 32 * oc_range(c, 1, 5)};
    int32_t    dim = 32 * oc_range(c, 1, oc_chance(c, 0.1) ? 36 : 8);
    if (c->format == NIB_ACT_FP8) { /* whole boxes of MXFP4 */
        dim = 128 * oc_range(c, 1, 3);
        a.n_inner = 128;
        a.n_inner_shared = oc_chance(c, 0.5) ? 128 : a.n_inner_shared;
    }
    if (c->deep) {
        dim = 64 * oc_range(c, 13, 24);
        a.n_inner = 64 * oc_range(c, 1, 3);
        a.n_inner_shared = 64 * oc_range(c, 1, 3);
        act = plain_type || oc_chance(c, 0.5) ? NIB_ACT_PLAIN : NIB_ACT_FP8;
        shared_act = shared == type ? act : NIB_ACT_PLAIN;
        if (c->index % 2) { /* columns that are whole steps of every type, as those of published models */
            dim = 256 * oc_range(c, 4, 6);
            a.n_inner = 256 * oc_range(c, 1, 2);
            a.n_inner_shared = 256 * oc_range(c, 1, 2);
            act = shared_act = NIB_ACT_PLAIN;
        }
    }
    if (c->many && !format) { /* whole tiles of four-bit weights; the shared expert of any type */
        static const int32_t types[] = {NIB_WEIGHT_NVFP4, NIB_WEIGHT_MXFP4, NIB_WEIGHT_FP8, NIB_WEIGHT_BF16};
        type = (enum nib_weight_type)types[c->index % 2];
        shared = (enum nib_weight_type)types[c->index / 2 % 4];
        act = shared_act = NIB_ACT_PLAIN;
        dim = 64 * (c->deep ? oc_range(c, 13, 24) : oc_range(c, 1, 5));
        a.n_inner = 64 * oc_range(c, 1, 3);
        a.n_inner_shared = 64 * oc_range(c, 1, 3);
    }
    const int32_t rows_most = c->deep ? 140 : OC_ROWS_MOST; /* of wide rows fewer */
    a.n_experts = oc_range(c, a.top_k, c->deep ? 6 : 16);
    a.limit = oc_chance(c, 0.7) ? 10.0f : oc_chance(c, 0.5) ? 0.5f : 0;
    a.before = oc_chance(c, 0.5);
    a.dtype = c->many || c->deep || oc_chance(c, 0.25) ? NIB_DTYPE_BF16 : NIB_DTYPE_F32;
    a.seqs = oc_seqs_new(c, c->many ? rows_most : oc_chance(c, 0.1) ? 80 : 8, 300, 0);
    while (c->many && a.seqs.n_rows <= 96) /* more than kernels for few rows take */
        a.seqs = oc_seqs_new(c, rows_most, 300, 0);
    struct oc_mat plain = oc_mat_new(c, a.dtype, a.seqs.n_rows, dim, 1, oc_chance(c, format ? 0.5 : 0.1));
    a.x = oc_act_new(c, &plain, act, true);
    a.router =
        oc_weight_new(c, oc_chance(c, 0.7) ? NIB_WEIGHT_BF16 : NIB_WEIGHT_F32, NIB_ACT_PLAIN, 1, a.n_experts, dim);
    a.router->desc.use = format ? NIB_USE_ROUTER : NIB_USE_ANY;
    if (oc_chance(c, 0.3)) {
        a.tid2eid = oc_new(c, 400 * (size_t)a.top_k);
        for (int32_t i = 0; i < 100; i++)
            for (int32_t k = 0, first = oc_range(c, 0, a.n_experts - 1); k < a.top_k; k++)
                a.tid2eid[i * a.top_k + k] = (first + k) % a.n_experts;
    } else {
        a.bias = oc_floats(c, a.n_experts, 0, 0.3);
        for (int32_t e = 0; e < a.n_experts && oc_chance(c, 0.7); e++)
            a.bias[e] = 0.25f; /* some equal ones */
        /* All rows to the same experts, the others without any: scores stay below sqrt(softplus(100)). */
        for (int32_t e = 0; format && e < a.top_k && c->index % 2 == 0; e++)
            a.bias[(e * 5 + 1) % a.n_experts] += e == 0 || a.n_experts % 5 ? 20.0f : 0;
    }
    a.w1 = oc_weight_new(c, type, act, a.n_experts, a.n_inner, dim);
    a.w3 = oc_weight_new(c, type, act, a.n_experts, a.n_inner, dim);
    a.w2 = oc_weight_new(c, type, act, a.n_experts, dim, a.n_inner);
    a.sw1 = oc_weight_new(c, shared, shared_act, 1, a.n_inner_shared, dim);
    a.sw3 = oc_weight_new(c, shared, shared_act, 1, a.n_inner_shared, dim);
    a.sw2 = oc_weight_new(c, shared, shared_act, 1, dim, a.n_inner_shared);
    oc_shape(c, "%d of %d experts type %d act %d [%d, %d], ", a.top_k, a.n_experts, type, act, a.n_inner, dim);
    oc_shape(c, "shared type %d act %d [%d], ", shared, shared_act, a.n_inner_shared);
    oc_shape(c, "limit %g, before %d, hash %d, rows %d", (double)a.limit, a.before, a.tid2eid != NULL, a.dtype);
    oc_all(c, run_moe, judge_moe, &a, a.x.rows);
}
