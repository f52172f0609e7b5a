/* The pass from token ids to streams and from streams to logits. Read attention.c next. */
#include "model/record.h"

static enum nib_status hc_pre(struct nib_rank *rk, int32_t n, struct nib_mat streams, const struct nib_hc *hc,
                              const float *norm, enum nib_act_format format)
{
    struct nib_work *w = &rk->work;
    const struct nib_config *c = rk->config;
    return rk->ops->hc_pre(rk->stream, &(struct nib_hc_pre_args){
        .streams = nib_mat_rows(streams, n), .n_hc = c->n_hc, .n_iters = c->n_sinkhorn, .fn = hc->fn, .base = hc->base,
        .scale = hc->scale, .hc_eps = c->hc_eps, .norm_eps = c->norm_eps, .norm_weight = norm, .post = nib_mat_rows(w->post, n),
        .comb = nib_mat_rows(w->comb, n), .x = nib_act_rows(w->x, n, format)});
}

static enum nib_status hc_post(struct nib_rank *rk, int32_t n, struct nib_mat streams)
{
    struct nib_work *w = &rk->work;
    return rk->ops->hc_post(rk->stream, &(struct nib_hc_post_args){
        .streams = nib_mat_rows(streams, n), .n_hc = rk->config->n_hc, .y = nib_mat_rows(w->y, n), .post = nib_mat_rows(w->post, n),
        .comb = nib_mat_rows(w->comb, n)});
}

static enum nib_status moe(struct nib_rank *rk, const struct nib_rows *rows, const struct nib_layer *l)
{
    struct nib_work *w = &rk->work;
    const struct nib_config *c = rk->config;
    /* The release weighs the input of w2, which its FP8 scales see; NVFP4 checkpoints are defined with the weight on
     * the output. */
    const bool before = rk->act_quant == NIB_ACT_QUANT_FP8;
    return rk->ops->moe(rk->stream, &(struct nib_moe_args){
        .x = nib_act_rows(w->x, rows->n_rows, l->ffn_act), .rows = rows, .router = l->router, .bias = l->bias, .tid2eid = l->tid2eid,
        .n_experts = c->n_experts, .top_k = c->top_k, .route_scale = c->route_scale, .limit = c->swiglu_limit,
        .weight_before_w2 = before, .w1 = l->w1, .w2 = l->w2, .w3 = l->w3, .sw1 = l->sw1, .sw2 = l->sw2, .sw3 = l->sw3,
        .y = nib_mat_rows(w->y, rows->n_rows)});
}

enum nib_status nib_block(struct nib_rank *rk, const struct nib_rows *rows, const struct nib_layer *l, int32_t layer,
                          struct nib_mat streams)
{
    const int32_t n = rows->n_rows;
    NIB_TRY(hc_pre(rk, n, streams, &l->attn_hc, l->attn_norm, l->attn_act));
    NIB_TRY(nib_attention(rk, rows, l, layer));
    NIB_TRY(hc_post(rk, n, streams));
    NIB_TRY(hc_pre(rk, n, streams, &l->ffn_hc, l->ffn_norm, l->ffn_act));
    NIB_TRY(moe(rk, rows, l));
    return hc_post(rk, n, streams);
}

static enum nib_status trunk(struct nib_rank *rk, const void *args)
{
    const struct nib_rows *rows = args;
    const struct nib_weights *w = &rk->weights;
    NIB_TRY(rk->ops->embed(rk->stream, &(struct nib_embed_args){
        .token = rows->token, .n_rows = rows->n_rows, .n_copies = rk->config->n_hc, .w = w->embed,
        .y = nib_mat_rows(rk->work.streams, rows->n_rows)}));
    for (int32_t l = 0; l < rk->config->n_layers; l++)
        NIB_TRY(nib_block(rk, rows, &w->layer[l], l, rk->work.streams));
    return NIB_OK;
}

enum nib_status nib_forward(struct nib_rank *rk, const struct nib_rows *rows)
{
    struct nib_record_key key;
    nib_record_key_init(&key, NIB_RECORD_TRUNK);
    nib_record_key_add_rows(&key, rows);
    return nib_record_run(rk, &key, rows->n_rows, trunk, rows);
}

struct logits_args {
    const int32_t *row;
    int32_t        n;
    bool           mtp;
};

static enum nib_status logits(struct nib_rank *rk, const void *args)
{
    const struct logits_args *a = args;
    struct nib_work *w = &rk->work;
    const struct nib_weights *m = &rk->weights;
    const struct nib_config *c = rk->config;
    const struct nib_hc *hc = a->mtp ? &m->mtp.hc_head : &m->hc_head;

    NIB_TRY(rk->ops->hc_head(rk->stream, &(struct nib_hc_head_args){
        .streams = a->mtp ? w->mtp_streams : w->streams, .row = a->row, .n = a->n, .n_hc = c->n_hc, .fn = hc->fn, .base = hc->base,
        .scale = hc->scale, .hc_eps = c->hc_eps, .norm_eps = c->norm_eps, .norm_weight = a->mtp ? m->mtp.norm : m->norm,
        .x = nib_mat_rows(w->head_x, a->n)}));
    return rk->ops->head(rk->stream, &(struct nib_head_args){
        .x = nib_mat_rows(w->head_x, a->n), .w = m->head, .logits = nib_mat_rows(w->logits, a->n)});
}

enum nib_status nib_forward_logits(struct nib_rank *rk, const int32_t *row, int32_t n, bool mtp)
{
    const struct logits_args args = {row, n, mtp};
    struct nib_record_key key;
    nib_record_key_init(&key, NIB_RECORD_LOGITS);
    nib_record_key_add_pointer(&key, row);
    nib_record_key_add(&key, (uint64_t)(uint32_t)n << 1 | mtp);
    return nib_record_run(rk, &key, n, logits, &args);
}
