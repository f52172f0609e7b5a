/* The mixture of experts: router, chosen experts in ascending order, shared expert. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"

/* sqrt(softplus(z)). */
static float route_score(float z)
{
    double v = (double)z;
    return (float)sqrt(v > 20 ? v : log1p(exp(v)));
}

/* The k largest of s + bias in descending order, ties to the lowest expert; NaN is passed over while a number is
 * left to take, so that k distinct experts come out of any row. */
static void choose(const float *score, const float *bias, int32_t n, int32_t k, int32_t *chosen)
{
    for (int32_t i = 0; i < k; i++) {
        int32_t best = -1;
        float   best_value = 0;
        for (int32_t e = 0; e < n; e++) {
            float value = score[e] + bias[e];
            bool  taken = false;
            for (int32_t j = 0; j < i; j++)
                taken = taken || chosen[j] == e;
            if (!taken && (best < 0 || value > best_value || (isnan(best_value) && !isnan(value)))) {
                best = e;
                best_value = value;
            }
        }
        chosen[i] = best;
    }
}

/* Experts and weights of row t from its scores. */
static void route_row(const struct nib_stream *s, const struct nib_moe_args *a, int32_t t)
{
    const float *score = s->route + (int64_t)t * a->n_experts;
    int32_t     *chosen = s->chosen + (int64_t)t * a->top_k;
    float       *weight = s->weight + (int64_t)t * a->top_k;
    double       sum = 0;
    if (a->tid2eid)
        memcpy(chosen, a->tid2eid + (int64_t)a->rows->token[t] * a->top_k, (size_t)a->top_k * sizeof *chosen);
    else
        choose(score, a->bias, a->n_experts, a->top_k, chosen);
    for (int32_t i = 0; i < a->top_k; i++)
        sum += (double)score[chosen[i]];
    for (int32_t i = 0; i < a->top_k; i++) /* all scores can underflow to 0 together */
        weight[i] = sum == 0 ? 0 : (float)((double)score[chosen[i]] / sum * (double)a->route_scale);
}

static void route(const struct nib_stream *s, const struct nib_moe_args *a)
{
    int32_t      n = a->x.rows, dim = a->x.cols;
    int64_t      stride;
    const float *x = nib_ref_act_rows(s, &a->x, NIB_ACT_PLAIN, s->x[0], &stride);
    double       scale = nib_ref_weight_scale(a->router, 0);
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)n * a->n_experts * dim))
    for (int32_t e = 0; e < a->n_experts; e++) {
        const double *row = nib_ref_weight_row(a->router, 0, e, nib_ref_thread(s)->weight);
        for (int32_t t = 0; t < n; t++)
            s->route[(int64_t)t * a->n_experts + e] =
                route_score((float)(scale * nib_ref_dot(row, x + t * stride, dim)));
    }
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)n * a->n_experts * a->top_k))
    for (int32_t t = 0; t < n; t++)
        route_row(s, a, t);
    if (a->chosen)
        memcpy(a->chosen, s->chosen, (size_t)n * (size_t)a->top_k * sizeof *a->chosen);
    if (a->weights)
        memcpy(a->weights, s->weight, (size_t)n * (size_t)a->top_k * sizeof *a->weights);
}

/* silu(min(g, limit)) * clamp(u, +-limit), in fp32 after silu. Inf must stay visible: it does not meet the clamps. */
static double swiglu(double g, double u, double limit)
{
    if (!isfinite(g) || !isfinite(u))
        return NAN;
    if (limit > 0) {
        g = g < limit ? g : limit;
        u = u < -limit ? -limit : u > limit ? limit : u;
    }
    return (double)((float)(g / (1 + exp(-g))) * (float)u);
}

/* One expert (matrix i of each stack) over n_pairs pairs, pair = row * per_row + place. weight == NULL: the shared
 * expert. */
struct expert {
    const struct nib_weight *w1, *w2, *w3;
    int32_t                  i, n_pairs, per_row;
    const int32_t           *pair;
    const float             *weight;
};

/* hidden[j] = activation of the expert's j-th pair. */
static void expert_in(const struct nib_stream *s, const struct nib_moe_args *a, const struct expert *e, const float *x,
                      int64_t stride)
{
    bool    bf16 = a->y.dtype == NIB_DTYPE_BF16;
    int32_t dim = e->w1->n_in, n_inner = e->w1->n_out;
    double  scale1 = nib_ref_weight_scale(e->w1, e->i), scale3 = nib_ref_weight_scale(e->w3, e->i);
#pragma omp parallel for num_threads(nib_ref_threads(s, 2 * (int64_t)e->n_pairs * n_inner * dim))
    for (int32_t o = 0; o < n_inner; o++) {
        struct nib_ref_thread *th = nib_ref_thread(s);
        const double          *row1 = nib_ref_weight_row(e->w1, e->i, o, th->weight);
        const double          *row3 = nib_ref_weight_row(e->w3, e->i, o, th->sum);
        for (int32_t j = 0; j < e->n_pairs; j++) {
            const float *xt = x + e->pair[j] / e->per_row * stride;
            float        g = nib_ref_round(scale1 * nib_ref_dot(row1, xt, dim), bf16);
            float        u = nib_ref_round(scale3 * nib_ref_dot(row3, xt, dim), bf16);
            double       act = swiglu((double)g, (double)u, (double)a->limit);
            if (e->weight && a->weight_before_w2)
                act *= (double)e->weight[e->pair[j]];
            s->hidden[(int64_t)j * n_inner + o] = nib_ref_round(act, bf16);
        }
    }
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)e->n_pairs * n_inner))
    for (int32_t j = 0; j < e->n_pairs; j++)
        nib_ref_act_round_trip(e->w2->act, s->hidden + (int64_t)j * n_inner, n_inner, nib_ref_thread(s));
}

static void expert_out(const struct nib_stream *s, const struct nib_moe_args *a, const struct expert *e)
{
    bool    bf16 = a->y.dtype == NIB_DTYPE_BF16;
    int32_t dim = e->w2->n_out, n_inner = e->w2->n_in;
    double  scale = nib_ref_weight_scale(e->w2, e->i);
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)e->n_pairs * n_inner * dim))
    for (int32_t o = 0; o < dim; o++) {
        const double *row = nib_ref_weight_row(e->w2, e->i, o, nib_ref_thread(s)->weight);
        for (int32_t j = 0; j < e->n_pairs; j++) {
            double y = scale * nib_ref_dot(row, s->hidden + (int64_t)j * n_inner, n_inner);
            if (e->weight && !a->weight_before_w2)
                y *= (double)e->weight[e->pair[j]];
            s->sum[(int64_t)(e->pair[j] / e->per_row) * dim + o] += (double)nib_ref_round(y, bf16);
        }
    }
}

/* Every expert over the rows that chose it, in ascending order, so each row's sum is too. */
static void run_experts(const struct nib_stream *s, const struct nib_moe_args *a)
{
    int64_t      stride;
    const float *x = nib_ref_act_rows(s, &a->x, a->w1->act, s->x[0], &stride);
    for (int32_t i = 0; i < a->n_experts; i++) {
        struct expert e = {a->w1, a->w2, a->w3, i, 0, a->top_k, s->pair, s->weight};
        for (int32_t p = 0; p < a->x.rows * a->top_k; p++) {
            if (s->chosen[p] == i)
                s->pair[e.n_pairs++] = p;
        }
        expert_in(s, a, &e, x, stride);
        expert_out(s, a, &e);
    }
}

static void run_shared(const struct nib_stream *s, const struct nib_moe_args *a)
{
    int64_t       stride;
    const float  *x = nib_ref_act_rows(s, &a->x, a->sw1->act, s->x[0], &stride);
    struct expert e = {a->sw1, a->sw2, a->sw3, 0, a->x.rows, 1, s->pair, NULL};
    for (int32_t t = 0; t < a->x.rows; t++)
        s->pair[t] = t;
    expert_in(s, a, &e, x, stride);
    expert_out(s, a, &e);
}

enum nib_status nib_ref_moe(struct nib_stream *s, const struct nib_moe_args *a)
{
    int32_t n = a->x.rows, dim = a->x.cols;
    if (n == 0)
        return NIB_OK;
    assert(n <= s->dims.n_rows_max && a->n_experts <= s->dims.n_experts && a->top_k <= s->dims.top_k);
    assert(a->w1->n_out <= s->dims.n_inner && a->sw1->n_out <= s->dims.n_inner_shared && dim <= s->dims.dim);
    memset(s->sum, 0, (size_t)n * (size_t)dim * sizeof *s->sum);
    route(s, a);
    run_experts(s, a);
    run_shared(s, a);
    for (int32_t t = 0; t < n; t++) {
        for (int32_t i = 0; i < dim; i++)
            nib_ref_store(&a->y, t, i, s->sum[(int64_t)t * dim + i]);
    }
    return NIB_OK;
}
