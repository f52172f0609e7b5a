/* Guessing and judging. Rows of logits come to the host only where distributions must be compared, which is at
 * temperatures above 0. */
#include "engine/draft.h"
#include "engine/random.h"

#include <math.h>
#include <stdlib.h>

enum nib_status nib_drafts_init(struct nib_engine *e)
{
    struct nib_drafts *d = &e->drafts;
    const size_t vocab = (size_t)e->model->config.vocab, n = (size_t)e->options.n_drafts;
    nib_draft_auto_init(&d->chooser, e->options.n_drafts);
    if (n == 0)
        return NIB_OK;
    d->q = malloc(n * vocab * sizeof *d->q);
    d->p = malloc(vocab * sizeof *d->p);
    d->logits = malloc((n + 1) * vocab * sizeof *d->logits);
    d->order = malloc(vocab * sizeof *d->order);
    return d->q && d->p && d->logits && d->order ? NIB_OK : NIB_E_MEMORY;
}

void nib_drafts_deinit(struct nib_engine *e)
{
    free(e->drafts.q);
    free(e->drafts.p);
    free(e->drafts.logits);
    free(e->drafts.order);
}

static enum nib_status read_logits(struct nib_engine *e, int32_t n)
{
    const size_t bytes = (size_t)n * (size_t)e->model->config.vocab * sizeof(float);
    return e->rank.api->download(e->rank.stream, e->drafts.logits, e->rank.work.logits.data, bytes);
}

/* Guess i, from the MTP block's logits in row 0. -1 where they hold no distribution. */
static enum nib_status guess(struct nib_engine *e, const struct nib_sampling *s, const struct nib_past *h,
                             int32_t position, int32_t i, struct nib_error *err)
{
    struct nib_drafts *d = &e->drafts;
    const int32_t vocab = e->model->config.vocab;
    float logprob;
    if (!d->drawn)
        return nib_draw_rows(e, s, h, 0, 1, position, &d->token[i], &logprob, err);
    const enum nib_status status = read_logits(e, 1);
    if (status != NIB_OK)
        return nib_engine_failed(e, status, "read drafts", err);
    const struct nib_seen seen = nib_past_seen(h);
    double *q = d->q + (size_t)i * (size_t)vocab;
    d->token[i] = nib_distribution(s, d->logits, vocab, &seen, q, d->order)
                      ? nib_distribution_draw(q, vocab, (double)nib_uniform(s->seed, (uint64_t)position, NIB_DRAW_DRAFT))
                      : -1;
    return NIB_OK;
}

enum nib_status nib_draft_propose(struct nib_engine *e, struct nib_seq *seq, const struct nib_sampling *s,
                                  const struct nib_past *h, int32_t token, int32_t *k, struct nib_error *err)
{
    struct nib_drafts *d = &e->drafts;
    const int32_t position = seq->state.length + 1;
    d->drawn = !nib_sampling_is_greedy(s);
    for (int32_t i = 0; i < *k; i++) {
        const struct nib_draft_row row = {seq, i == 0 ? token : d->token[i - 1], 0};
        const enum nib_status status = nib_step_draft(e, &row, 1, i);
        if (status != NIB_OK)
            return nib_engine_failed(e, status, "make drafts", err);
        NIB_TRY(guess(e, s, h, position + i, i, err));
        if (d->token[i] < 0)
            *k = i;
    }
    if (d->force) {
        d->force(d->force_user, position, *k, d->token);
        d->drawn = false;
    }
    return NIB_OK;
}

static enum nib_status verify_greedy(struct nib_engine *e, const struct nib_sampling *s, struct nib_past *h,
                                     int32_t position, int32_t k, struct nib_verdict *v, struct nib_error *err)
{
    int32_t token[NIB_DRAFTS_MAX + 1];
    float logprob[NIB_DRAFTS_MAX + 1];
    /* Without penalties no row needs to know what became of those before it. */
    if (!h->counts)
        NIB_TRY(nib_draw_rows(e, s, h, 0, k + 1, position, token, logprob, err));
    for (int32_t i = 0;; i++) {
        if (h->counts)
            NIB_TRY(nib_draw_rows(e, s, h, i, 1, position + i, &token[i], &logprob[i], err));
        if (i == k || token[i] != e->drafts.token[i]) {
            v->next = token[i];
            v->next_logprob = logprob[i];
            return NIB_OK;
        }
        v->logprob[v->n_accepted++] = logprob[i];
        nib_past_add(h, token[i], true);
    }
}

/* What p has more than q; p itself if rounding leaves nothing. */
static int32_t draw_residual(double *p, const double *q, int32_t token, int32_t vocab, double uniform)
{
    double left = 0;
    for (int32_t i = 0; i < vocab; i++) {
        const double mass = q ? q[i] : i == token;
        left += p[i] > mass ? p[i] - mass : 0;
    }
    for (int32_t i = 0; left > 0 && i < vocab; i++) {
        const double mass = q ? q[i] : i == token;
        p[i] = p[i] > mass ? p[i] - mass : 0;
    }
    return nib_distribution_draw(p, vocab, uniform);
}

static enum nib_status verify_sampled(struct nib_engine *e, const struct nib_sampling *s, struct nib_past *h,
                                      int32_t position, int32_t k, struct nib_verdict *v, struct nib_error *err)
{
    struct nib_drafts *d = &e->drafts;
    const int32_t vocab = e->model->config.vocab;
    const enum nib_status status = k > 0 ? read_logits(e, k) : NIB_OK;
    if (status != NIB_OK)
        return nib_engine_failed(e, status, "judge drafts", err);
    for (int32_t i = 0; i < k; i++) {
        const struct nib_seen seen = nib_past_seen(h);
        const float *logits = d->logits + (size_t)i * (size_t)vocab;
        const double *q = d->drawn ? d->q + (size_t)i * (size_t)vocab : NULL;
        const uint64_t at = (uint64_t)position + (uint64_t)i;
        const int32_t token = d->token[i];
        v->next = -1;
        if (!nib_distribution(s, logits, vocab, &seen, d->p, d->order))
            return NIB_OK;
        if (!((double)nib_uniform(s->seed, at, NIB_DRAW_ACCEPT) * (q ? q[token] : 1) < d->p[token])) {
            v->next = draw_residual(d->p, q, token, vocab, (double)nib_uniform(s->seed, at, NIB_DRAW_RESIDUAL));
            v->next_logprob = (float)nib_log_softmax(logits, vocab, v->next);
            return NIB_OK;
        }
        v->logprob[v->n_accepted++] = (float)nib_log_softmax(logits, vocab, token);
        nib_past_add(h, token, true);
    }
    return nib_draw_rows(e, s, h, k, 1, position + k, &v->next, &v->next_logprob, err);
}

enum nib_status nib_draft_verify(struct nib_engine *e, const struct nib_sampling *s, struct nib_past *h,
                                 int32_t position, int32_t k, struct nib_verdict *out, struct nib_error *err)
{
    *out = (struct nib_verdict){.n_accepted = 0};
    return (nib_sampling_is_greedy(s) ? verify_greedy : verify_sampled)(e, s, h, position, k, out, err);
}
