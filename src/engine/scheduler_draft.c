/* Drafts inside batches: how many, and the passes of the MTP block that make them, one for all requests that decode.
 *
 * A request's rows never cross a page border, so that sequences stand at borders, where beginnings are kept, and a
 * draft never needs a page that its step would not need without it. */
#include "engine/scheduler.h"

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* The MTP block needs a token before. */
static bool decodes(const struct nib_request *r)
{
    return nib_request_n_pending(r) == 1 && nib_seq_length(r->seq) > 0;
}

/* How many a request has use for. */
static int32_t room(const struct nib_request *r)
{
    const int32_t length = nib_seq_length(r->seq);
    int32_t n = least(NIB_PAGE_TOKENS - 1 - length % NIB_PAGE_TOKENS, r->n_ids_max - r->n_ids);
    if (r->args.n_max > 0)
        n = least(n, r->args.n_max - r->result.n_generated - 1);
    return n > 0 ? n : 0;
}

/* What a step costs depends on how many decode, and so does what pays. */
static struct nib_draft_auto *chooser_now(struct nib_server *s)
{
    int32_t i = least(s->n_decoding, 33) - 1;
    for (int64_t bound = 64; s->n_decoding > bound && i < NIB_CHOOSERS - 1; bound *= 2)
        i++;
    return &s->chooser[i];
}

static int32_t choose(struct nib_server *s)
{
    const struct nib_engine *e = s->engine;
    const int32_t n_decoding = s->n_decoding, n_prompts = s->n_running - n_decoding;
    int32_t limit = e->options.n_drafts;
    limit = least(limit, (e->rank.work.n_logits_max - s->n_running) / n_decoding);
    limit = least(limit, (e->options.n_rows_max - n_decoding - (n_prompts > 0)) / n_decoding);
    if (limit <= 0)
        return 0;
    if (s->options.n_drafts != NIB_DRAFTS_AUTO)
        return least(limit, s->options.n_drafts);
    /* Steps with prompts cannot be measured. */
    struct nib_draft_auto *chooser = chooser_now(s);
    return n_prompts > 0 ? nib_draft_auto_best(chooser, limit) : nib_draft_auto_choose(chooser, limit);
}

static bool reserve(struct nib_server *s)
{
    struct nib_engine *e = s->engine;
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->n_drafts > 0) {
            e->step.state[n] = &s->running[i]->seq->state;
            e->step.n_new[n++] = 1 + s->running[i]->n_drafts;
        }
    return nib_pool_reserve(&e->rank.pool, e->step.state, e->step.n_new, n) == NIB_OK;
}

/* Guess i of all who want that many. False if there was none to make, or it failed. */
static bool guess(struct nib_server *s, int32_t i)
{
    struct nib_engine *e = s->engine;
    int32_t n = 0;
    for (int32_t k = 0; k < s->n_running; k++) {
        struct nib_request *r = s->running[k];
        if (r->n_drafts <= i)
            continue;
        s->draft_row[n] = (struct nib_draft_row){r->seq, i == 0 ? r->ids[r->n_ids - 1] : r->draft[i - 1], r->chain};
        r->chain = n;
        s->sampled[n++] = r;
    }
    if (n == 0)
        return false;
    enum nib_status status = nib_step_draft(e, s->draft_row, n, i);
    if (status == NIB_OK)
        status = nib_server_guess(s, n, i);
    if (status == NIB_E_DEVICE)
        nib_engine_break(e);
    for (int32_t k = 0; k < n; k++) {
        if (status != NIB_OK || s->host_token[k] < 0)
            s->sampled[k]->n_drafts = i;
        else
            s->sampled[k]->draft[i] = s->host_token[k];
    }
    return status == NIB_OK;
}

/* Tests replace guesses. */
static void force(struct nib_server *s)
{
    const struct nib_drafts *d = &s->engine->drafts;
    for (int32_t i = 0; d->force && i < s->n_running; i++)
        if (s->running[i]->n_drafts > 0)
            d->force(d->force_user, s->running[i]->n_ids, s->running[i]->n_drafts, s->running[i]->draft);
}

void nib_server_draft(struct nib_server *s)
{
    s->tally = (struct nib_draft_tally){.n_texts = 0};
    s->n_drafts = s->n_decoding = 0;
    for (int32_t i = 0; i < s->n_running; i++) {
        s->running[i]->n_drafts = 0;
        s->n_decoding += decodes(s->running[i]);
    }
    if (s->options.n_drafts == 0 || s->n_decoding == 0)
        return;
    const int32_t k = choose(s);
    for (int32_t i = 0; i < s->n_running; i++)
        if (decodes(s->running[i]))
            s->running[i]->n_drafts = least(k, room(s->running[i]));
    if (!reserve(s))
        for (int32_t i = 0; i < s->n_running; i++)
            s->running[i]->n_drafts = 0;
    for (int32_t i = 0; i < k && guess(s, i); i++)
        s->n_drafts = i + 1;
    force(s);
}

void nib_server_draft_learn(struct nib_server *s, bool is_pure, double seconds)
{
    if (s->options.n_drafts != NIB_DRAFTS_AUTO || s->n_decoding == 0)
        return;
    struct nib_draft_auto *chooser = chooser_now(s);
    if (is_pure)
        nib_draft_auto_cost(chooser, s->n_drafts, seconds);
    if (s->tally.n_texts > 0)
        nib_draft_auto_outcome(chooser, &s->tally);
}
