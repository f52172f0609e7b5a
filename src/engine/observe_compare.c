/* One op on both sides, and the sentence about the first value out of bounds. */
#include "engine/observe.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"

struct worst {
    bool    found;
    int32_t result, row, col;
    double  got, ref, bound;
};

/* Excess over the bound; NaN on one side only is out of any. */
static void look(struct worst *w, const struct nib_values *got, const struct nib_values *ref, const double *bound, int32_t result)
{
    for (int32_t r = 0; r < ref->rows; r++)
        for (int32_t c = 0; c < ref->cols; c++) {
            const size_t i = (size_t)r * (size_t)ref->cols + (size_t)c;
            const double a = (double)got->value[i], b = (double)ref->value[i];
            if (fabs(a - b) <= bound[i] || (isnan(a) && isnan(b)) || (isinf(a) && a == b))
                continue;
            if (w->found && !(fabs(a - b) / (bound[i] + 1e-300) > fabs(w->got - w->ref) / (w->bound + 1e-300)))
                continue;
            *w = (struct worst){true, result, r, c, a, b, bound[i]};
        }
}

static bool holds(const float *list, int32_t n, float id)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == id)
            return true;
    return false;
}

/* Ids that only one side chose count if their scores are further apart than the scores' own error. */
static void look_chosen(struct worst *w, const struct nib_values *got, const struct nib_values *ref, int32_t result,
                        int32_t row, int32_t n, const float *score, double error)
{
    const float *g = got->value + (size_t)row * (size_t)got->cols, *f = ref->value + (size_t)row * (size_t)ref->cols;
    double least = INFINITY;
    for (int32_t i = 0; i < n; i++)
        if (f[i] >= 0)
            least = fmin(least, (double)score[(int32_t)f[i]]);
    for (int32_t i = 0; i < n; i++)
        if (!holds(f, n, g[i]) && (g[i] < 0 || !(fabs((double)score[(int32_t)g[i]] - least) <= error)) && !w->found)
            *w = (struct worst){true, result, row, i, (double)g[i], (double)f[i], error};
}

static double norm_of_mat_row(const struct nib_mat *m, int32_t row, int32_t first, int32_t n)
{
    double sum = 0;
    for (int32_t i = first; i < first + n; i++) {
        const int64_t k = row * m->stride + i;
        const double v = m->dtype == NIB_DTYPE_F32 ? (double)((const float *)m->data)[k]
                                                   : (double)nib_bf16_to_f32(((const uint16_t *)m->data)[k]);
        sum += v * v;
    }
    return sqrt(sum);
}

/* Entries: a score is a sum over heads of weight * dot(q, key). Keys are no longer than sqrt(dim) times their largest
 * norm weight, which is not known here; the largest score seen stands for weight * |q| |key|, with what a flipped FP4
 * code of q adds, a sixth. */
static void look_selected(struct worst *w, const struct nib_values *got, const struct nib_values *ref, const struct nib_index_select_args *a)
{
    const bool coarse = a->keys.format == NIB_ROW_FP4 || a->q.dtype == NIB_DTYPE_BF16;
    for (int32_t r = 0; r < ref[0].rows; r++) {
        const int32_t n = (int32_t)ref[1].value[r], visible = (a->rows->pos[r] + 1) / a->ratio;
        const float *score = (const float *)a->scores.data + r * a->scores.stride;
        double most = 0;
        if (got[1].value[r] != ref[1].value[r] && !w->found)
            *w = (struct worst){true, 1, r, 0, (double)got[1].value[r], (double)ref[1].value[r], 0};
        for (int32_t i = 0; i < visible; i++)
            most = fmax(most, fabs((double)score[i]));
        look_chosen(w, &got[0], &ref[0], 0, r, n, score,
                    most * (coarse ? 1.0 / 64 : (a->dim / 16.0 + 8) * 64 * 0x1p-24) + 1e-30);
    }
}

/* Experts by hash are given. Scored ones: sqrt(softplus(z)) + bias has a slope of at most a half. *near: rows where the
 * sides may differ by right. */
static bool look_routed(struct nib_observer *o, struct worst *w, const struct nib_values *got,
                        const struct nib_values *ref, const struct nib_moe_args *a, bool *near)
{
    const int32_t n_experts = a->n_experts;
    const float *norm = nib_shadow_row_norms(o->shadow, a->router);
    struct nib_mat z = {.dtype = NIB_DTYPE_F32, .rows = ref[0].rows, .cols = n_experts, .stride = n_experts};
    z.data = nib_arena_array(&o->arena, (size_t)z.rows * (size_t)n_experts, sizeof(float));
    if (!norm || !z.data)
        return false;
    const struct nib_linear_args router = {.x = a->x, .n_weights = 1, .w = {a->router}, .y = {z}};
    if (o->shadow->api->ops->linear(o->shadow->stream, &router) != NIB_OK)
        return false;
    for (int32_t r = 0; r < z.rows; r++) {
        float *score = (float *)z.data + r * z.stride;
        const double x = norm_of_mat_row(&a->x.plain, r, 0, a->x.cols);
        double error = 0;
        for (int32_t e = 0; e < n_experts; e++) {
            error = fmax(error, (a->router->n_in / 16.0 + 8) * 0x1p-22 * x * (double)norm[e]);
            score[e] = (float)(sqrt(log1p(exp((double)score[e]))) + (a->bias ? (double)a->bias[e] : 0));
        }
        const float *g = got[1].value + (size_t)r * (size_t)a->top_k, *f = ref[1].value + (size_t)r * (size_t)a->top_k;
        near[r] = memcmp(g, f, (size_t)a->top_k * sizeof *g) != 0;
        if (near[r])
            look_chosen(w, &got[1], &ref[1], 1, r, a->top_k, score, a->tid2eid ? 0 : error + 64 * 0x1p-24);
    }
    return true;
}

/* Rows that may differ by right are made equal, so that nothing else is said about them. */
static void excuse(struct nib_values *got, const struct nib_values *ref, int32_t n, const bool *near)
{
    for (int32_t k = 0; k < n; k++)
        for (int32_t r = 0; r < ref[k].rows; r++)
            if (near[r])
                memcpy(got[k].value + (size_t)r * (size_t)ref[k].cols, ref[k].value + (size_t)r * (size_t)ref[k].cols,
                       (size_t)ref[k].cols * sizeof(float));
}

/* Magnitudes that an op in place is about to overwrite, in bound[0]. */
static double *magnitudes(struct nib_observer *o, enum nib_op op, const void *args)
{
    const struct nib_hc_post_args *p = args;
    const struct nib_mtp_join_args *j = args;
    const struct nib_mat *m = op == NIB_OP_HC_POST ? &p->streams : &j->h, *y = op == NIB_OP_HC_POST ? &p->y : &j->e;
    const int32_t n_hc = op == NIB_OP_HC_POST ? p->n_hc : j->n_hc, dim = m->cols / n_hc;
    double *mag = nib_arena_array(&o->arena, (size_t)m->rows * (size_t)m->cols, sizeof *mag);
    for (int32_t r = 0; mag && r < m->rows; r++)
        for (int32_t k = 0; k < n_hc; k++)
            for (int32_t i = 0; i < dim; i++) {
                double sum = norm_of_mat_row(y, r, i, 1);
                if (op == NIB_OP_HC_POST) {
                    sum *= norm_of_mat_row(&p->post, r, k, 1);
                    for (int32_t s = 0; s < n_hc; s++)
                        sum += norm_of_mat_row(&p->comb, r, s * n_hc + k, 1) * norm_of_mat_row(m, r, s * dim + i, 1);
                } else {
                    sum += norm_of_mat_row(m, r, k * dim + i, 1);
                }
                mag[(size_t)r * (size_t)m->cols + (size_t)(k * dim + i)] = sum;
            }
    return mag;
}

static enum nib_status tell(struct nib_observer *o, enum nib_op op, const struct worst *w, const struct nib_values *v)
{
    char layer[32];
    if (o->layer == o->engine->rank.config->n_layers)
        (void)snprintf(layer, sizeof layer, "the MTP block");
    else
        (void)snprintf(layer, sizeof layer, "layer %" PRId32, o->layer);
    return nib_error_set(&o->engine->op_error, NIB_E_NUMERIC,
                         "op '%s' in %s (%s) of step %" PRIu64 ": '%s' [%" PRId32 "][%" PRId32 "] is %.9g on '%s' and %.9g on ref, "
                         "further apart than %.3g",
                         nib_op_name(op), o->layer < 0 ? o->part : layer, o->part, o->step, v[w->result].name, w->row, w->col, w->got,
                         o->engine->rank.api->name, w->ref, w->bound);
}

static bool look_all(struct nib_observer *o, enum nib_op op, const void *args, struct nib_values *got,
                     const struct nib_values *ref, int32_t n, double **bound, struct worst *w)
{
    bool *near = NULL;
    if (op == NIB_OP_INDEX_SELECT) {
        look_selected(w, got, ref, args);
        return true;
    }
    if (op == NIB_OP_MOE) {
        near = nib_arena_array(&o->arena, (size_t)ref[0].rows, sizeof *near);
        if (!near || !look_routed(o, w, got, ref, args, near))
            return false;
        excuse(got, ref, n, near);
    }
    if (!nib_op_bounds(o, op, args, ref, n, bound))
        return false;
    for (int32_t k = 0; k < n; k++)
        look(w, &got[k], &ref[k], bound[k], k);
    return true;
}

enum nib_status nib_compare_op(struct nib_observer *o, enum nib_op op, const void *args, const void *mine)
{
    struct nib_shadow *s = o->shadow;
    const struct nib_rank *rk = &o->engine->rank;
    const struct nib_reader engine = {rk->api, rk->stream, &o->arena}, ref_reader = {s->api, s->stream, &o->arena};
    struct nib_values got[NIB_VALUES_MAX], ref[NIB_VALUES_MAX];
    double *bound[NIB_VALUES_MAX] = {NULL};
    struct worst w = {.found = false};

    const bool in_place = op == NIB_OP_HC_POST || op == NIB_OP_MTP_JOIN;
    double *mag = in_place ? magnitudes(o, op, args) : NULL;
    NIB_TRY(nib_op_call(s->api->ops, op, s->stream, args));
    const int32_t n = nib_op_results(&engine, op, mine, got), n_ref = nib_op_results(&ref_reader, op, args, ref);
    bool ok = n >= 0 && n == n_ref && (!in_place || mag);
    for (int32_t k = 0; ok && k < n; k++) {
        bound[k] = in_place ? mag : nib_arena_array(&o->arena, (size_t)ref[k].rows * (size_t)ref[k].cols + 1,
                                                    sizeof **bound);
        ok = bound[k] != NULL;
    }
    if (!ok || !look_all(o, op, args, got, ref, n, bound, &w))
        return nib_error_set(&o->engine->op_error, NIB_E_MEMORY, "no memory to compare op '%s' with ref",
                             nib_op_name(op));
    return w.found ? tell(o, op, &w, ref) : NIB_OK;
}
