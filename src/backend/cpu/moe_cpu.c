/* The mixture of experts, a group of rows at a time: route, sort the (row, expert) pairs by expert, run gate and up of
 * every pair, then down by blocks of outputs. A block of outputs visits the experts in ascending id and adds to its
 * rows as it goes: that is the contract's order of summation, and no row of expert outputs is ever stored. The shared
 * expert is the last "expert", of all rows. */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <omp.h>
#include <string.h>

static int32_t min_of(int32_t a, int32_t b) { return a < b ? a : b; }

/* One group's work, filled step by step. */
struct moe {
    const struct nib_moe_args *a;
    int32_t                    row0, n, dim;
    bool                       bf16;
    struct nib_cpu_rows        x;
    const int32_t             *first; /* [n_experts + 2] first pair of each expert; pairs of row order inside */
    const int32_t             *active; /* [n_active] experts with pairs, ascending */
    int32_t                    n_active;
    const int32_t             *pair_row;
    const float               *pair_weight;
    struct nib_cpu_rows        inner, inner_shared;
};

/* What a weight takes of the op's rows. */
static unsigned need_of(const struct nib_stream *s, const struct moe *m, const struct nib_weight *w)
{
    return nib_cpu_need_of(s, w, m->a->x.plain.dtype);
}

/* And of inner rows, which are in bf16 where results are. */
static unsigned inner_need_of(const struct nib_stream *s, const struct moe *m, const struct nib_weight *w)
{
    return nib_cpu_need_of(s, w, m->bf16 ? NIB_DTYPE_BF16 : NIB_DTYPE_F32);
}

static bool has_shared(const struct nib_moe_args *a) { return a->sw1 != NULL; }

/* ---- Routing ---- */

static void route_row(const struct nib_stream *s, const struct moe *m, int32_t r, float *z, int32_t *chosen, float *weight)
{
    const struct nib_moe_args *a = m->a;
    int64_t                    t = m->row0 + r;
    s->k.route_scores(z, a->n_experts);
    if (a->tid2eid)
        memcpy(chosen, a->tid2eid + (int64_t)a->rows->token[t] * a->top_k, sizeof(int32_t) * (size_t)a->top_k);
    else
        s->k.choose_top(z, a->bias, a->n_experts, a->top_k, s->scratch.thread[omp_get_thread_num()].keys, chosen);
    float sum = 0;
    for (int32_t i = 0; i < a->top_k; i++)
        sum += z[chosen[i]];
    for (int32_t i = 0; i < a->top_k; i++)
        weight[i] = sum == 0 ? 0 : z[chosen[i]] / sum * a->route_scale; /* all scores can underflow together */
    if (a->chosen)
        memcpy(a->chosen + t * a->top_k, chosen, sizeof(int32_t) * (size_t)a->top_k);
    if (a->weights)
        memcpy(a->weights + t * a->top_k, weight, sizeof(float) * (size_t)a->top_k);
}

static void route(struct nib_stream *s, struct moe *m)
{
    const struct nib_moe_args *a = m->a;
    struct nib_cpu_scratch    *x = &s->scratch;
    struct nib_cpu_matrix      router = nib_cpu_matrix_of(a->router, 0);
    nib_cpu_matmul(s, &router, need_of(s, m, a->router), &m->x, m->n, x->router, a->n_experts);
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)m->n * a->n_experts * a->top_k)) schedule(static)
    for (int32_t r = 0; r < m->n; r++)
        route_row(s, m, r, x->router + (int64_t)r * a->n_experts, x->chosen + r * a->top_k, x->weight + r * a->top_k);

    /* Counting sort of pairs by expert; rows stay in order. The shared expert takes every row. */
    int32_t *first = x->expert_first, *fill = x->expert_fill, n_pairs = m->n * a->top_k;
    memset(first, 0, sizeof(int32_t) * (size_t)(a->n_experts + 2));
    for (int32_t i = 0; i < n_pairs; i++)
        first[x->chosen[i] + 1]++;
    for (int32_t e = 0; e < a->n_experts; e++)
        first[e + 1] += first[e];
    first[a->n_experts + 1] = n_pairs + (has_shared(a) ? m->n : 0);
    memcpy(fill, first, sizeof(int32_t) * (size_t)(a->n_experts + 1));
    for (int32_t i = 0; i < n_pairs; i++) {
        int32_t p = fill[x->chosen[i]]++;
        x->pair_row[p] = i / a->top_k;
        x->pair_weight[p] = x->weight[i];
    }
    for (int32_t r = 0; r < m->n; r++)
        x->pair_row[n_pairs + r] = r;
    /* The places' memory becomes the list of experts that have work, the shared one last. */
    m->n_active = 0;
    for (int32_t e = 0; e <= a->n_experts; e++)
        if (first[e] < first[e + 1])
            fill[m->n_active++] = e;
    m->active = fill;
    m->first = first;
    m->pair_row = x->pair_row;
    m->pair_weight = x->pair_weight;
}

/* ---- Gate and up ---- */

static int32_t n_pairs_of(const struct moe *m) { return m->first[m->a->n_experts]; }

/* What lies before a pair: so much for each routed one, and for each shared one behind them. */
static size_t before_pair(const struct moe *m, int32_t pair, size_t routed, size_t shared)
{
    int32_t n_pairs = n_pairs_of(m);
    return (size_t)min_of(pair, n_pairs) * routed + (size_t)(pair > n_pairs ? pair - n_pairs : 0) * shared;
}

/* fp32 row of a pair's inner values. */
static float *inner_row(const struct nib_stream *s, const struct moe *m, int32_t pair)
{
    const struct nib_moe_args *a = m->a;
    size_t                     shared = has_shared(a) ? (size_t)nib_cpu_stride(a->sw1->n_out) : 0;
    return s->scratch.inner + before_pair(m, pair, (size_t)nib_cpu_stride(a->w1->n_out), shared);
}

/* Outputs [out, out + n_outs) of gate and up for pairs [p, p + n) of expert e, and their activation. */
static void gate_up_tile(const struct nib_stream *s, const struct moe *m, struct nib_cpu_thread *th, int32_t e,
                         int32_t p, int32_t n, int32_t out, int32_t n_outs)
{
    const struct nib_moe_args *a = m->a;
    bool                       shared = e == a->n_experts;
    const struct nib_weight   *w[2] = {shared ? a->sw1 : a->w1, shared ? a->sw3 : a->w3};
    for (int i = 0; i < 2; i++) {
        struct nib_cpu_matrix matrix = nib_cpu_matrix_of(w[i], shared ? 0 : e);
        nib_cpu_tile_run(s, th, &matrix, need_of(s, m, w[i]), &m->x, m->pair_row + p, 0, n, 0, out, n_outs,
                         th->tile_y[i]);
    }
    for (int32_t r = 0; r < n; r++) {
        float *g = th->tile_y[0] + r * NIB_CPU_TILE_OUTS, *u = th->tile_y[1] + r * NIB_CPU_TILE_OUTS;
        if (m->bf16) {
            s->k.bf16_round(g, n_outs);
            s->k.bf16_round(u, n_outs);
        }
        s->k.swiglu(g, u, a->limit, n_outs);
        if (a->weight_before_w2 && !shared)
            for (int32_t o = 0; o < n_outs; o++)
                g[o] *= m->pair_weight[p + r];
        if (m->bf16)
            s->k.bf16_round(g, n_outs);
        memcpy(inner_row(s, m, p + r) + out, g, sizeof(float) * (size_t)n_outs);
    }
}

static void gate_up(struct nib_stream *s, const struct moe *m)
{
    const struct nib_moe_args *a = m->a;
    int32_t widest = has_shared(a) && a->sw1->n_out > a->w1->n_out ? a->sw1->n_out : a->w1->n_out;
    int32_t n_blocks = (widest + NIB_CPU_TILE_OUTS - 1) / NIB_CPU_TILE_OUTS, n_items = m->n_active * n_blocks;
#pragma omp parallel for num_threads(nib_cpu_threads(s, 2 * (int64_t)m->first[a->n_experts + 1] * a->w1->n_out * m->dim)) schedule(dynamic, nib_cpu_chunk(s, n_items))
    for (int32_t item = 0; item < n_items; item++) {
        struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
        int32_t e = m->active[item / n_blocks], out = item % n_blocks * NIB_CPU_TILE_OUTS, end = m->first[e + 1];
        int32_t n_outs = min_of((e == a->n_experts ? a->sw1 : a->w1)->n_out - out, NIB_CPU_TILE_OUTS);
        for (int32_t p = m->first[e]; n_outs > 0 && p < end; p += NIB_CPU_TILE_ROWS)
            gate_up_tile(s, m, th, e, p, min_of(end - p, NIB_CPU_TILE_ROWS), out, n_outs);
    }
}

/* Quantise a pair's inner row where its w2 wants that, and make it ready. */
static void inner_row_prepare(struct nib_stream *s, const struct moe *m, struct nib_cpu_thread *th, int32_t pair,
                              const struct nib_weight *w2)
{
    const struct nib_moe_args *a = m->a;
    struct nib_cpu_scratch    *x = &s->scratch;
    int32_t                    n = w2->n_in;
    float                     *values = inner_row(s, m, pair), row_scale = 1.0f;
    struct nib_act             row = {.format = w2->act, .rows = 1, .cols = n, .codes = th->codes,
                                      .scales = th->scales, .row_scale = &row_scale};
    unsigned                   need = inner_need_of(s, m, w2);
    nib_cpu_act_write(s, &row, 0, values);
    if (need == NIB_CPU_NEED_CODES) {
        size_t shared = has_shared(a) ? nib_cpu_codes_bytes(a->sw2->n_in) : 0;
        size_t before = before_pair(m, pair, nib_cpu_codes_bytes(a->w2->n_in), shared);
        nib_cpu_codes_open(s, w2->act, th->codes, th->scales, row_scale, n, x->inner_code_memory + before,
                           &x->inner_codes[pair]);
        return;
    }
    nib_cpu_act_decode(s, w2->act, th->codes, th->scales, row_scale, n, values);
    memset(values + n, 0, sizeof(float) * (size_t)(nib_cpu_padded(n) - n));
    if (need & (NIB_CPU_NEED_PLAIN_BF16 | NIB_CPU_NEED_VALUES_BF16)) {
        uint16_t *bf16 = (uint16_t *)(void *)values;
        x->inner_bf16[pair] = (struct nib_cpu_bf16_row){bf16, s->k.bf16_take(values, nib_cpu_padded(n), bf16)};
    }
}

/* Each row is in the one form that its weight takes. */
static struct nib_cpu_rows inner_rows(const struct nib_stream *s, const struct moe *m, int32_t first, int32_t n)
{
    const float *values = inner_row(s, m, first);
    return (struct nib_cpu_rows){
        .plain = values,
        .values = values,
        .codes = s->scratch.inner_codes + first,
        .plain_bf16 = s->scratch.inner_bf16 + first,
        .values_bf16 = s->scratch.inner_bf16 + first,
        .plain_stride = nib_cpu_stride(n),
        .values_stride = nib_cpu_stride(n),
    };
}

static void inner_prepare(struct nib_stream *s, struct moe *m)
{
    const struct nib_moe_args *a = m->a;
    int32_t                    n_pairs = n_pairs_of(m), n_all = m->first[a->n_experts + 1];
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)n_all * a->w1->n_out)) schedule(static)
    for (int32_t p = 0; p < n_all; p++)
        inner_row_prepare(s, m, &s->scratch.thread[omp_get_thread_num()], p, p < n_pairs ? a->w2 : a->sw2);
    m->inner = inner_rows(s, m, 0, a->w2->n_in);
    if (has_shared(a))
        m->inner_shared = inner_rows(s, m, n_pairs, a->sw2->n_in);
}

/* ---- Down ---- */

/* Pairs [p, p + n) of expert e: outputs [out, out + n_outs) of w2, added to their rows' sums, which have NIB_CPU_RUN_OUTS to
 * a row. */
static void down_tile(const struct nib_stream *s, const struct moe *m, struct nib_cpu_thread *th, int32_t e, int32_t p,
                      int32_t n, int32_t out, int32_t n_outs, float *sums)
{
    const struct nib_moe_args *a = m->a;
    bool                       shared = e == a->n_experts;
    const struct nib_weight   *w2 = shared ? a->sw2 : a->w2;
    struct nib_cpu_matrix      matrix = nib_cpu_matrix_of(w2, shared ? 0 : e);
    nib_cpu_tile_run(s, th, &matrix, inner_need_of(s, m, w2), shared ? &m->inner_shared : &m->inner, NULL,
                     shared ? p - n_pairs_of(m) : p, n, 0, out, n_outs, th->tile_y[0]);
    for (int32_t r = 0; r < n; r++) {
        float *y = th->tile_y[0] + r * NIB_CPU_TILE_OUTS, *sum = sums + m->pair_row[p + r] * NIB_CPU_RUN_OUTS;
        if (!a->weight_before_w2 && !shared)
            for (int32_t o = 0; o < n_outs; o++)
                y[o] *= m->pair_weight[p + r];
        if (m->bf16)
            s->k.bf16_round(y, n_outs);
        for (int32_t o = 0; o < n_outs; o++)
            sum[o] += y[o];
    }
}

/* Up to NIB_CPU_RUN_OUTS outputs of all rows: an expert's rows are read for all of them before the next expert's. */
static void down_run(const struct nib_stream *s, const struct moe *m, struct nib_cpu_thread *th, int32_t out,
                     int32_t n_outs)
{
    for (int32_t r = 0; r < m->n; r++)
        memset(th->block_sum + r * NIB_CPU_RUN_OUTS, 0, sizeof(float) * (size_t)n_outs);
    for (int32_t i = 0; i < m->n_active; i++) {
        const int32_t e = m->active[i], end = m->first[e + 1];
        for (int32_t p = m->first[e]; p < end; p += NIB_CPU_TILE_ROWS)
            for (int32_t o = 0; o < n_outs; o += NIB_CPU_TILE_OUTS)
                down_tile(s, m, th, e, p, min_of(end - p, NIB_CPU_TILE_ROWS), out + o,
                          min_of(n_outs - o, NIB_CPU_TILE_OUTS), th->block_sum + o);
    }
    for (int32_t r = 0; r < m->n; r++)
        nib_cpu_row_write(s, &m->a->y, m->row0 + r, out, n_outs, th->block_sum + r * NIB_CPU_RUN_OUTS);
}

static void down(struct nib_stream *s, const struct moe *m)
{
    /* Runs, unless threads would wait long for the last of them. */
    const int32_t n_blocks = (m->dim + NIB_CPU_TILE_OUTS - 1) / NIB_CPU_TILE_OUTS, fair = n_blocks / (4 * s->n_threads);
    const int32_t run = NIB_CPU_TILE_OUTS * (fair < 1 ? 1 : min_of(fair, NIB_CPU_RUN)), n_runs = (m->dim + run - 1) / run;
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)m->first[m->a->n_experts + 1] * m->a->w1->n_out * m->dim)) schedule(dynamic, nib_cpu_chunk(s, n_runs))
    for (int32_t i = 0; i < n_runs; i++)
        down_run(s, m, &s->scratch.thread[omp_get_thread_num()], i * run, min_of(m->dim - i * run, run));
}

enum nib_status nib_cpu_moe(struct nib_stream *s, const struct nib_moe_args *a)
{
    for (int32_t row0 = 0; row0 < a->x.rows; row0 += NIB_CPU_GROUP_ROWS) {
        struct moe m = {.a = a, .row0 = row0, .n = min_of(a->x.rows - row0, NIB_CPU_GROUP_ROWS), .dim = a->x.cols,
                        .bf16 = a->y.dtype == NIB_DTYPE_BF16};
        unsigned need = need_of(s, &m, a->router) | need_of(s, &m, a->w1) | need_of(s, &m, a->w3);
        if (has_shared(a))
            need |= need_of(s, &m, a->sw1) | need_of(s, &m, a->sw3);
        nib_cpu_rows_prepare(s, &a->x, row0, m.n, 1, need, &m.x);
        route(s, &m);
        gate_up(s, &m);
        inner_prepare(s, &m);
        down(s, &m);
    }
    return NIB_OK;
}
