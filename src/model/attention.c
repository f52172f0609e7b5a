/* Attention of one layer: projections, window and compressed rows, selection, softmax, grouped output projection. */
#include "model/forward.h"

#include <math.h>

static struct nib_rope rope_of(const struct nib_rank *rk, const struct nib_layer *l)
{
    return (struct nib_rope){.freq = l->ratio ? rk->weights.rope_compressed : rk->weights.rope_plain, .n_rot = rk->config->n_rot};
}

static struct nib_mat narrowed(struct nib_mat m, int32_t rows, int32_t cols)
{
    m.rows = rows;
    m.cols = cols;
    m.stride = cols;
    return m;
}

/* Everything that multiplies the layer's input, in one op. */
static enum nib_status input_projections(struct nib_rank *rk, const struct nib_layer *l, int32_t n)
{
    struct nib_work *w = &rk->work;
    const int32_t width = (l->ratio == 4 ? 2 : 1) * rk->config->head_dim;
    struct nib_linear_args a = {.x = nib_act_rows(w->x, n, l->attn_act)};
    a.w[a.n_weights] = l->wq_a;
    a.y[a.n_weights++] = nib_mat_rows(w->qa, n);
    a.w[a.n_weights] = l->wkv;
    a.y[a.n_weights++] = nib_mat_rows(w->kv, n);
    if (l->ratio > 0) {
        a.w[a.n_weights] = l->compress.wkv;
        a.y[a.n_weights++] = narrowed(w->compress_kv, n, width);
        a.w[a.n_weights] = l->compress.wgate;
        a.y[a.n_weights++] = narrowed(w->compress_gate, n, width);
    }
    if (l->ratio == 4) {
        a.w[a.n_weights] = l->index.wkv;
        a.y[a.n_weights++] = nib_mat_rows(w->index_kv, n);
        a.w[a.n_weights] = l->index.wgate;
        a.y[a.n_weights++] = nib_mat_rows(w->index_gate, n);
        a.w[a.n_weights] = l->index_weights;
        a.y[a.n_weights++] = nib_mat_rows(w->index_weight, n);
    }
    return rk->ops->linear(rk->stream, &a);
}

static enum nib_status query_norm(struct nib_rank *rk, const struct nib_layer *l, int32_t n)
{
    struct nib_work *w = &rk->work;
    return rk->ops->norm(rk->stream, &(struct nib_norm_args){
        .x = nib_mat_rows(w->qa, n), .weight = l->q_norm, .eps = rk->config->norm_eps, .y = nib_act_rows(w->qr, n, l->q_act)});
}

static enum nib_status query(struct nib_rank *rk, const struct nib_rows *rows, const struct nib_layer *l)
{
    struct nib_work *w = &rk->work;
    const struct nib_config *c = rk->config;
    const int32_t n = rows->n_rows;
    const struct nib_act qr = nib_act_rows(w->qr, n, l->q_act);

    struct nib_linear_args a = {.x = qr, .n_weights = 1, .w = {l->wq_b}, .y = {nib_mat_rows(w->q, n)}};
    if (l->ratio == 4) {
        a.w[1] = l->index_wq_b;
        a.y[1] = nib_mat_rows(w->index_q, n);
        a.n_weights = 2;
    }
    NIB_TRY(rk->ops->linear(rk->stream, &a));
    return rk->ops->q_rope(rk->stream, &(struct nib_q_rope_args){
        .q = nib_mat_rows(w->q, n), .n_heads = c->n_heads, .head_dim = c->head_dim, .eps = c->norm_eps, .rows = rows,
        .rope = rope_of(rk, l)});
}

/* The window row of every token, and the entries that these tokens complete. An entry is there before the query that
 * completes it attends. */
static enum nib_status store_rows(struct nib_rank *rk, const struct nib_rows *rows, const struct nib_layer *l,
                                  const struct nib_layer_state *state)
{
    struct nib_work *w = &rk->work;
    const struct nib_config *c = rk->config;
    const int32_t n = rows->n_rows;
    const bool release = rk->numerics == NIB_NUMERICS_RELEASE;

    NIB_TRY(rk->ops->kv_insert(rk->stream, &(struct nib_kv_insert_args){
        .kv = nib_mat_rows(w->kv, n), .norm_weight = l->kv_norm, .eps = c->norm_eps, .rows = rows, .rope = rope_of(rk, l),
        .window = state->window}));
    if (l->ratio > 0) {
        const int32_t width = (l->ratio == 4 ? 2 : 1) * c->head_dim;
        NIB_TRY(rk->ops->compress(rk->stream, &(struct nib_compress_args){
            .kv = narrowed(w->compress_kv, n, width), .gate = narrowed(w->compress_gate, n, width), .ape = l->compress.ape,
            .norm_weight = l->compress.norm, .eps = c->norm_eps, .ratio = l->ratio, .width = c->head_dim, .overlap = l->ratio == 4,
            .round_bf16 = release, .rows = rows, .rope = rope_of(rk, l), .frontier = state->frontier, .entries = state->entries}));
    }
    if (l->ratio == 4) {
        NIB_TRY(rk->ops->compress(rk->stream, &(struct nib_compress_args){
            .kv = nib_mat_rows(w->index_kv, n), .gate = nib_mat_rows(w->index_gate, n), .ape = l->index.ape,
            .norm_weight = l->index.norm, .eps = c->norm_eps, .ratio = l->ratio, .width = c->index_dim, .overlap = true,
            .hadamard = state->index.format == NIB_ROW_FP4, .round_bf16 = release, .rows = rows, .rope = rope_of(rk, l),
            .frontier = state->index_frontier, .entries = state->index}));
    }
    return NIB_OK;
}

static enum nib_status select_entries(struct nib_rank *rk, const struct nib_rows *rows, const struct nib_layer *l,
                                      const struct nib_layer_state *state)
{
    struct nib_work *w = &rk->work;
    const struct nib_config *c = rk->config;
    const int32_t n = rows->n_rows;
    const double scale = 1.0 / sqrt((double)c->index_dim * (double)c->n_index_heads);

    return rk->ops->index_select(rk->stream, &(struct nib_index_select_args){
        .q = nib_mat_rows(w->index_q, n), .weight = nib_mat_rows(w->index_weight, n), .n_heads = c->n_index_heads,
        .dim = c->index_dim, .ratio = l->ratio, .top_k = c->index_top_k, .scale = (float)scale, .rows = rows, .rope = rope_of(rk, l),
        .keys = state->index, .selected = w->selected, .n_selected = w->n_selected});
}

static enum nib_status attend(struct nib_rank *rk, const struct nib_rows *rows, const struct nib_layer *l,
                              const struct nib_layer_state *state)
{
    struct nib_work *w = &rk->work;
    const struct nib_config *c = rk->config;
    const int32_t n = rows->n_rows;
    const bool selective = l->ratio == 4;

    return rk->ops->attend(rk->stream, &(struct nib_attend_args){
        .q = nib_mat_rows(w->q, n), .sink = l->sink, .n_heads = c->n_heads, .head_dim = c->head_dim, .n_window = c->n_window,
        .ratio = l->ratio, .top_k = c->index_top_k, .scale = (float)(1.0 / sqrt((double)c->head_dim)), .rows = rows,
        .rope = rope_of(rk, l), .window = state->window, .entries = state->entries, .selected = selective ? w->selected : NULL,
        .n_selected = selective ? w->n_selected : NULL, .o = nib_mat_rows(w->o, n)});
}

enum nib_status nib_attention(struct nib_rank *rk, const struct nib_rows *rows, const struct nib_layer *l, int32_t layer)
{
    struct nib_work *w = &rk->work;
    const struct nib_layer_state *state = &rk->pool.layer[layer];
    const int32_t n = rows->n_rows;
    const struct nib_act u = nib_act_rows(w->u, n, l->o_act);

    NIB_TRY(input_projections(rk, l, n));
    /* Steps on single rows follow one another, so that a device may do them in one launch. */
    NIB_TRY(query_norm(rk, l, n));
    NIB_TRY(store_rows(rk, rows, l, state));
    NIB_TRY(query(rk, rows, l));
    if (l->ratio == 4)
        NIB_TRY(select_entries(rk, rows, l, state));
    NIB_TRY(attend(rk, rows, l, state));
    NIB_TRY(rk->ops->o_a(rk->stream, &(struct nib_o_a_args){
        .x = nib_mat_rows(w->o, n), .n_groups = rk->config->n_groups, .w = l->wo_a, .y = u}));
    return rk->ops->linear(rk->stream, &(struct nib_linear_args){
        .x = u, .n_weights = 1, .w = {l->wo_b}, .y = {nib_mat_rows(w->y, n)}});
}
