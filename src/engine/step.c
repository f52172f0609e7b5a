/* One step: check the batch, take its pages, send its integers to the device, run the pass, read logits back. */
#include "engine/engine.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

size_t nib_step_buffer_size(int32_t n_rows_max, int32_t n_seqs_max, int32_t page_stride, int32_t n_rollback)
{
    const size_t rows = (size_t)n_rows_max, seqs = (size_t)n_seqs_max;
    /* token, pos, seq, logits row; and for the MTP block those four, two sources and a destination. Kept streams: a
     * pair each. */
    return 11 * rows + 2 * (seqs + 1) + seqs + 2 * seqs * (size_t)page_stride + 2 * seqs * ((size_t)n_rollback + 1);
}

static enum nib_status check_batch(struct nib_engine *e, const struct nib_batch *b, struct nib_error *err)
{
    const struct nib_options *o = &e->options;
    const int32_t vocab = e->model->config.vocab;
    if (e->broken)
        return nib_error_set(err, NIB_E_DEVICE, "the device failed earlier (%s); open the engine again",
                             e->why_broken.text);
    if (b->n_rows < 0 || b->n_rows > o->n_rows_max)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_rows is %" PRId32 ", wanted 0 to %" PRId32, b->n_rows,
                             o->n_rows_max);
    if (b->n_seqs < 0 || b->n_seqs > o->n_seqs_max)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_seqs is %" PRId32 ", wanted 0 to %" PRId32, b->n_seqs,
                             o->n_seqs_max);
    if (b->n_seqs > 0 ? b->seq_start[0] != 0 || b->seq_start[b->n_seqs] != b->n_rows : b->n_rows != 0)
        return nib_error_set(err, NIB_E_ARGUMENT, "seq_start must run from 0 to n_rows (%" PRId32 ")", b->n_rows);
    e->step.count++;
    for (int32_t i = 0; i < b->n_seqs; i++) {
        const int64_t n = (int64_t)b->seq_start[i + 1] - b->seq_start[i];
        if (n < 1)
            return nib_error_set(err, NIB_E_ARGUMENT, "sequence %" PRId32 " has %" PRId64 " rows, wanted at least 1", i,
                                 n);
        if (!b->seq[i] || b->seq[i]->engine != e)
            return nib_error_set(err, NIB_E_ARGUMENT, "sequence %" PRId32 " is not of this engine", i);
        if (b->seq[i]->stamp == e->step.count)
            return nib_error_set(err, NIB_E_ARGUMENT, "sequence %" PRId32 " stands twice in the batch", i);
        b->seq[i]->stamp = e->step.count;
        if (n > o->n_ctx - b->seq[i]->state.length)
            return nib_error_set(err, NIB_E_LIMIT, "sequence %" PRId32 " holds %" PRId32 " tokens and gets %" PRId64
                                 " more; the context is %" PRId32, i, b->seq[i]->state.length, n, o->n_ctx);
    }
    for (int32_t i = 0; i < b->n_rows; i++)
        if (b->token[i] < 0 || b->token[i] >= vocab)
            return nib_error_set(err, NIB_E_ARGUMENT, "token %" PRId32 " is %" PRId32 ", wanted 0 to %" PRId32, i,
                                 b->token[i], vocab - 1);
    if (b->n_logits < 0 || b->n_logits > b->n_rows)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_logits is %" PRId32 ", wanted 0 to %" PRId32, b->n_logits,
                             b->n_rows);
    for (int32_t i = 0; i < b->n_logits; i++)
        if (b->logits_row[i] < 0 || b->logits_row[i] >= b->n_rows || (i > 0 && b->logits_row[i] <= b->logits_row[i - 1]))
            return nib_error_set(err, NIB_E_ARGUMENT, "logits_row %" PRId32 " is %" PRId32 ", wanted ascending rows below %" PRId32, i,
                                 b->logits_row[i], b->n_rows);
    return NIB_OK;
}

/* A piece of the step buffer: filled at host, read at device. */
struct piece {
    int32_t *host;
    int32_t *device;
};

static struct piece take(struct nib_step_buffer *s, size_t n)
{
    const struct piece p = {s->host + s->used, s->device + s->used};
    s->used += n;
    return p;
}

static void fill_pages(struct nib_engine *e, const struct nib_batch *b, struct piece window, struct piece entry, struct piece slot)
{
    const size_t stride = (size_t)e->rank.pool.page_stride;
    for (int32_t i = 0; i < b->n_seqs; i++) {
        const struct nib_seq_state *s = &b->seq[i]->state;
        slot.host[i] = s->slot;
        memcpy(window.host + (size_t)i * stride, s->window_page, stride * sizeof(int32_t));
        memcpy(entry.host + (size_t)i * stride, s->entry_page, stride * sizeof(int32_t));
    }
}

static struct nib_rows fill_rows(struct nib_engine *e, const struct nib_batch *b)
{
    struct nib_step_buffer *s = &e->step;
    const size_t n = (size_t)b->n_rows, n_seqs = (size_t)b->n_seqs, stride = (size_t)e->rank.pool.page_stride;
    const struct piece token = take(s, n), pos = take(s, n), seq = take(s, n), start = take(s, n_seqs + 1), slot = take(s, n_seqs);
    const struct piece window = take(s, n_seqs * stride), entry = take(s, n_seqs * stride), logits = take(s, (size_t)b->n_logits);

    memcpy(token.host, b->token, n * sizeof(int32_t));
    memcpy(start.host, b->seq_start, (n_seqs + 1) * sizeof(int32_t));
    for (int32_t i = 0; i < b->n_seqs; i++)
        for (int32_t r = b->seq_start[i]; r < b->seq_start[i + 1]; r++) {
            pos.host[r] = b->seq[i]->state.length + r - b->seq_start[i];
            seq.host[r] = i;
        }
    fill_pages(e, b, window, entry, slot);
    if (b->n_logits > 0)
        memcpy(logits.host, b->logits_row, (size_t)b->n_logits * sizeof(int32_t));
    s->logits_row = logits.device;
    return (struct nib_rows){.n_rows = b->n_rows, .n_seqs = b->n_seqs, .token = token.device, .pos = pos.device, .seq = seq.device,
                             .seq_start = start.device, .slot = slot.device, .window_page = window.device,
                             .entry_page = entry.device, .page_stride = e->rank.pool.page_stride, .first_pos = 0};
}

/* The trunk's last streams of each sequence go to its ring, for the first pair of its next step. */
static void fill_keep(struct nib_engine *e, const struct nib_batch *b, struct nib_mtp_rows *m)
{
    const int32_t ring = e->rank.pool.n_streams;
    const struct piece row = take(&e->step, (size_t)b->n_seqs * (size_t)ring);
    const struct piece to = take(&e->step, (size_t)b->n_seqs * (size_t)ring);
    for (int32_t i = 0; i < b->n_seqs; i++) {
        const struct nib_seq_state *s = &b->seq[i]->state;
        const int32_t end = b->seq_start[i + 1], n = end - b->seq_start[i];
        for (int32_t r = n > ring ? end - ring : b->seq_start[i]; r < end; r++) {
            row.host[m->n_keep] = r;
            to.host[m->n_keep++] = s->slot * ring + (s->length + r - b->seq_start[i]) % ring;
        }
    }
    m->keep_row = row.device;
    m->keep_ring = to.device;
}

static struct nib_mtp_rows fill_mtp(struct nib_engine *e, const struct nib_batch *b, const struct nib_rows *trunk)
{
    struct nib_step_buffer *s = &e->step;
    const size_t n = (size_t)b->n_rows;
    const int32_t ring = e->rank.pool.n_streams;
    const struct piece token = take(s, n), pos = take(s, n), seq = take(s, n), start = take(s, (size_t)b->n_seqs + 1);
    const struct piece step = take(s, n), from_ring = take(s, n), to = take(s, n), logits = take(s, (size_t)b->n_logits);
    struct nib_mtp_rows m = {.rows = *trunk};
    int32_t k = 0, l = 0;

    for (int32_t i = 0; i < b->n_seqs; i++) {
        const struct nib_seq_state *state = &b->seq[i]->state;
        start.host[i] = k;
        for (int32_t r = b->seq_start[i]; r < b->seq_start[i + 1]; r++) {
            const int32_t p = state->length + r - b->seq_start[i];
            if (l < b->n_logits && b->logits_row[l] == r)
                logits.host[l++] = p > 0 ? k : 0;
            if (p == 0)
                continue;
            const bool first = r == b->seq_start[i];
            token.host[k] = b->token[r];
            pos.host[k] = p;
            seq.host[k] = i;
            step.host[k] = first ? -1 : r - 1;
            from_ring.host[k] = first ? state->slot * ring + (p - 1) % ring : -1;
            to.host[k] = k;
            k++;
        }
    }
    start.host[b->n_seqs] = k;
    s->mtp_row = logits.device;
    s->n_mtp_rows = k;
    m.rows.n_rows = k;
    m.rows.first_pos = 1;
    m.rows.token = token.device;
    m.rows.pos = pos.device;
    m.rows.seq = seq.device;
    m.rows.seq_start = start.device;
    m.from_step = step.device;
    m.from_ring = from_ring.device;
    m.to = to.device;
    fill_keep(e, b, &m);
    return m;
}

static enum nib_status run(struct nib_engine *e, const struct nib_batch *b, bool mtp)
{
    struct nib_rank *rk = &e->rank;
    struct nib_mtp_rows m;
    e->step.used = 0;
    e->step.n_mtp_rows = 0;
    const struct nib_rows rows = fill_rows(e, b);
    if (mtp)
        m = fill_mtp(e, b, &rows);
    NIB_TRY(rk->api->upload(rk->stream, e->step.device, e->step.host, e->step.used * sizeof(int32_t)));
    NIB_TRY(nib_forward(rk, &rows));
    return mtp ? nib_forward_mtp(rk, &m) : NIB_OK;
}

enum nib_status nib_step_run(struct nib_engine *e, const struct nib_batch *b, bool mtp, struct nib_error *err)
{
    NIB_TRY(check_batch(e, b, err));
    if (b->n_rows == 0)
        return NIB_OK;
    for (int32_t i = 0; i < b->n_seqs; i++) {
        e->step.state[i] = &b->seq[i]->state;
        e->step.n_new[i] = b->seq_start[i + 1] - b->seq_start[i];
    }
    enum nib_status status = nib_pool_reserve(&e->rank.pool, e->step.state, e->step.n_new, b->n_seqs);
    if (status != NIB_OK)
        return nib_error_set(err, status, "no free KV pages for %" PRId32 " more rows", b->n_rows);
    status = run(e, b, mtp);
    for (int32_t i = 0; i < b->n_seqs; i++)
        nib_seq_state_advance(&e->rank.pool, e->step.state[i], status == NIB_OK ? e->step.n_new[i] : 0);
    if (status == NIB_OK)
        return NIB_OK;
    char what[64];
    (void)snprintf(what, sizeof what, "run a step of %" PRId32 " rows", b->n_rows);
    return nib_engine_failed(e, status, what, err);
}

enum nib_status nib_step_logits(struct nib_engine *e, int32_t first, int32_t n, bool mtp)
{
    return nib_forward_logits(&e->rank, (mtp ? e->step.mtp_row : e->step.logits_row) + first, n, mtp);
}

enum nib_status nib_step_draft(struct nib_engine *e, const struct nib_draft_row *row, int32_t n, int32_t i)
{
    struct nib_rank *rk = &e->rank;
    struct nib_step_buffer *b = &e->step;
    const size_t rows = (size_t)n, stride = (size_t)rk->pool.page_stride;
    const int32_t ring = rk->pool.n_streams;
    b->used = 0;
    const struct piece token = take(b, rows), pos = take(b, rows), seq = take(b, rows), start = take(b, rows + 1);
    const struct piece slot = take(b, rows), from = take(b, rows), to = take(b, rows);
    const struct piece window = take(b, rows * stride), entry = take(b, rows * stride);
    for (int32_t r = 0; r < n; r++) {
        const struct nib_seq_state *state = &row[r].seq->state;
        token.host[r] = row[r].token;
        pos.host[r] = state->length + i;
        seq.host[r] = start.host[r] = to.host[r] = r;
        slot.host[r] = state->slot;
        from.host[r] = i == 0 ? state->slot * ring + (state->length - 1) % ring : row[r].from;
        memcpy(window.host + (size_t)r * stride, state->window_page, stride * sizeof(int32_t));
        memcpy(entry.host + (size_t)r * stride, state->entry_page, stride * sizeof(int32_t));
    }
    start.host[n] = n;

    const struct nib_mtp_rows m = {
        .rows = {.n_rows = n, .n_seqs = n, .token = token.device, .pos = pos.device, .seq = seq.device, .seq_start = start.device,
                 .slot = slot.device, .window_page = window.device, .entry_page = entry.device,
                 .page_stride = rk->pool.page_stride, .first_pos = 1},
        .from_ring = i == 0 ? from.device : NULL, .from_mtp = i == 0 ? NULL : from.device, .to = to.device};
    NIB_TRY(rk->api->upload(rk->stream, b->device, b->host, b->used * sizeof(int32_t)));
    NIB_TRY(nib_forward_mtp(rk, &m));
    return nib_forward_logits(rk, to.device, n, true);
}

/* All wanted logits to the caller, as many rows at a time as the work buffer holds. */
static enum nib_status read_logits(struct nib_engine *e, int32_t n_logits, bool mtp, float *out)
{
    struct nib_rank *rk = &e->rank;
    const size_t vocab = (size_t)e->model->config.vocab;
    for (int32_t i = 0; i < n_logits; i += rk->work.n_logits_max) {
        const int32_t n = n_logits - i < rk->work.n_logits_max ? n_logits - i : rk->work.n_logits_max;
        NIB_TRY(nib_step_logits(e, i, n, mtp));
        NIB_TRY(rk->api->download(rk->stream, out + (size_t)i * vocab, rk->work.logits.data,
                                  (size_t)n * vocab * sizeof(float)));
    }
    return NIB_OK;
}

/* Rows at position 0 have no pair before them. Lengths have advanced by now. */
static void blank_first_rows(struct nib_engine *e, const struct nib_batch *b, float *out)
{
    const size_t vocab = (size_t)e->model->config.vocab;
    int32_t seq = 0;
    for (int32_t l = 0; l < b->n_logits; l++) {
        while (b->logits_row[l] >= b->seq_start[seq + 1])
            seq++;
        const int32_t from_end = b->seq_start[seq + 1] - b->logits_row[l];
        if (b->seq[seq]->state.length == from_end)
            for (size_t i = 0; i < vocab; i++)
                out[(size_t)l * vocab + i] = NAN;
    }
}

enum nib_status nib_step(struct nib_engine *e, const struct nib_batch *b, float *logits, float *mtp_logits, struct nib_error *err)
{
    if (mtp_logits && !e->options.mtp)
        return nib_error_set(err, NIB_E_ARGUMENT, "MTP logits were asked for, but the engine was opened without mtp");
    NIB_TRY(nib_step_run(e, b, e->options.mtp, err));
    enum nib_status status = NIB_OK;
    if (logits)
        status = read_logits(e, b->n_logits, false, logits);
    if (status == NIB_OK && mtp_logits) {
        if (e->step.n_mtp_rows > 0)
            status = read_logits(e, b->n_logits, true, mtp_logits);
        if (status == NIB_OK)
            blank_first_rows(e, b, mtp_logits);
    }
    if (status == NIB_OK)
        status = e->rank.api->synchronise(e->rank.stream);
    return status == NIB_OK ? NIB_OK : nib_engine_failed(e, status, "give logits", err);
}
