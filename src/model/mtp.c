/* The MTP block: one more layer that reads a position's final streams and the token after it, and guesses the token
 * after that.
 *
 * Its row for the pair (streams at t, token at t+1) is kept at position t+1, because it depends on that token: so a
 * page holds nothing that later tokens decide, and forks may share it. Rotation still counts from t (nib_rows.first_pos
 * = 1).
 *
 * To draft several tokens the block runs a row at a time on its own streams and its own guesses. Those rows stand where
 * the trunk's next step puts the real ones. */
#include "model/record.h"

static struct nib_mat pool_streams(const struct nib_rank *rk)
{
    const struct nib_pool *p = &rk->pool;
    const int32_t cols = rk->config->n_hc * rk->config->dim;
    return (struct nib_mat){.data = p->streams, .dtype = p->streams_dtype, .rows = p->config.n_seqs_max * p->n_streams,
                            .cols = cols, .stride = cols};
}

/* [n, n_hc * dim] seen as [n * n_hc, dim]. */
static struct nib_mat one_stream_a_row(struct nib_mat m, int32_t n, int32_t n_hc, int32_t dim)
{
    m.rows = n * n_hc;
    m.cols = dim;
    m.stride = dim;
    return m;
}

static enum nib_status gather_streams(struct nib_rank *rk, const struct nib_mtp_rows *m)
{
    struct nib_work *w = &rk->work;
    if (m->from_step)
        NIB_TRY(rk->ops->copy_rows(rk->stream, &(struct nib_copy_rows_args){
            .src = w->streams, .dst = w->mtp_h, .src_row = m->from_step, .dst_row = m->to, .n = m->rows.n_rows}));
    if (m->from_mtp)
        NIB_TRY(rk->ops->copy_rows(rk->stream, &(struct nib_copy_rows_args){
            .src = w->mtp_streams, .dst = w->mtp_h, .src_row = m->from_mtp, .dst_row = m->to, .n = m->rows.n_rows}));
    if (m->from_ring)
        NIB_TRY(rk->ops->copy_rows(rk->stream, &(struct nib_copy_rows_args){
            .src = pool_streams(rk), .dst = w->mtp_h, .src_row = m->from_ring, .dst_row = m->to, .n = m->rows.n_rows}));
    return NIB_OK;
}

/* Z = e_proj . norm(embedding) + h_proj . norm(each stream) */
static enum nib_status combine(struct nib_rank *rk, const struct nib_mtp_rows *m)
{
    struct nib_work *w = &rk->work;
    const struct nib_mtp *mtp = &rk->weights.mtp;
    const struct nib_config *c = rk->config;
    const int32_t n = m->rows.n_rows;
    const struct nib_act e = nib_act_rows(w->x, n, mtp->e_proj->act);
    const struct nib_act h = nib_act_rows(w->mtp_x, n * c->n_hc, mtp->h_proj->act);

    NIB_TRY(rk->ops->embed(rk->stream, &(struct nib_embed_args){
        .token = m->rows.token, .n_rows = n, .n_copies = 1, .w = rk->weights.embed, .y = nib_mat_rows(w->y, n)}));
    NIB_TRY(rk->ops->norm(rk->stream, &(struct nib_norm_args){
        .x = nib_mat_rows(w->y, n), .weight = mtp->enorm, .eps = c->norm_eps, .y = e}));
    NIB_TRY(rk->ops->linear(rk->stream, &(struct nib_linear_args){
        .x = e, .n_weights = 1, .w = {mtp->e_proj}, .y = {nib_mat_rows(w->mtp_e, n)}}));
    NIB_TRY(rk->ops->norm(rk->stream, &(struct nib_norm_args){
        .x = one_stream_a_row(w->mtp_h, n, c->n_hc, c->dim), .weight = mtp->hnorm, .eps = c->norm_eps, .y = h}));
    NIB_TRY(rk->ops->linear(rk->stream, &(struct nib_linear_args){
        .x = h, .n_weights = 1, .w = {mtp->h_proj}, .y = {one_stream_a_row(w->mtp_streams, n, c->n_hc, c->dim)}}));
    return rk->ops->mtp_join(rk->stream, &(struct nib_mtp_join_args){
        .e = nib_mat_rows(w->mtp_e, n), .h = nib_mat_rows(w->mtp_streams, n), .n_hc = c->n_hc});
}

static enum nib_status block(struct nib_rank *rk, const void *args)
{
    const struct nib_mtp_rows *m = args;
    if (m->rows.n_rows > 0) {
        NIB_TRY(gather_streams(rk, m));
        NIB_TRY(combine(rk, m));
        NIB_TRY(nib_block(rk, &m->rows, &rk->weights.mtp.layer, rk->config->n_layers, rk->work.mtp_streams));
    }
    return rk->ops->copy_rows(rk->stream, &(struct nib_copy_rows_args){
        .src = rk->work.streams, .dst = pool_streams(rk), .src_row = m->keep_row, .dst_row = m->keep_ring, .n = m->n_keep});
}

enum nib_status nib_forward_mtp(struct nib_rank *rk, const struct nib_mtp_rows *m)
{
    const void *const pointers[] = {m->from_step, m->from_ring, m->from_mtp, m->to, m->keep_row, m->keep_ring};
    struct nib_record_key key;
    nib_record_key_init(&key, NIB_RECORD_MTP);
    nib_record_key_add_rows(&key, &m->rows);
    nib_record_key_add(&key, (uint64_t)(uint32_t)m->n_keep);
    for (size_t i = 0; i < sizeof pointers / sizeof pointers[0]; i++)
        nib_record_key_add_pointer(&key, pointers[i]);
    return nib_record_run(rk, &key, m->rows.n_rows, block, m);
}
