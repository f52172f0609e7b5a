/* The usual loop around steps: prefill in chunks, then draw a token, guess what follows it, and feed them together. */
#include "engine/draft.h"

#include <inttypes.h>
#include <time.h>

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Append tokens; the logits of the last n_logits are left in the work buffer. */
static enum nib_status feed(struct nib_engine *e, struct nib_seq *seq, const int32_t *token, int32_t n,
                            int32_t n_logits, struct nib_error *err)
{
    const int32_t start[2] = {0, n};
    int32_t row[NIB_DRAFTS_MAX + 1];
    struct nib_seq *const seqs[1] = {seq};
    for (int32_t i = 0; i < n_logits; i++)
        row[i] = n - n_logits + i;
    NIB_TRY(nib_step_run(e, &(struct nib_batch){.n_rows = n, .n_seqs = 1, .n_logits = n_logits, .token = token, .seq_start = start,
                                                .seq = seqs, .logits_row = row}, e->options.mtp, err));
    if (n_logits == 0)
        return NIB_OK;
    const enum nib_status status = nib_step_logits(e, 0, n_logits, false);
    return status == NIB_OK ? status : nib_engine_failed(e, status, "give logits", err);
}

static enum nib_status prefill(struct nib_engine *e, const struct nib_generate_args *a, struct nib_error *err)
{
    const int32_t chunk = e->options.n_rows_max;
    for (int32_t i = 0; i < a->n_prompt; i += chunk) {
        const int32_t n = a->n_prompt - i < chunk ? a->n_prompt - i : chunk;
        NIB_TRY(feed(e, a->seq, a->prompt + i, n, i + n == a->n_prompt ? 1 : 0, err));
        if (a->on_prefill && !a->on_prefill(a->user, i + n, a->n_prompt))
            return nib_error_set(err, NIB_E_CANCELLED, "prefill was cancelled after %" PRId32 " of %" PRId32 " tokens",
                                 i + n, a->n_prompt);
    }
    return NIB_OK;
}

static bool is_stop(const struct nib_generate_args *a, int32_t token)
{
    for (int32_t i = 0; i < a->n_stop; i++)
        if (a->stop_id[i] == token)
            return true;
    return false;
}

static enum nib_status check_ids(const struct nib_engine *e, const char *what, const int32_t *id, int32_t n, struct nib_error *err)
{
    for (int32_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= e->model->config.vocab)
            return nib_error_set(err, NIB_E_ARGUMENT, "%s %" PRId32 " is %" PRId32 ", wanted 0 to %" PRId32, what, i,
                                 id[i], e->model->config.vocab - 1);
    return NIB_OK;
}

static enum nib_status check_args(struct nib_engine *e, const struct nib_generate_args *a, struct nib_error *err)
{
    NIB_TRY(nib_sampling_check(&a->sampling, err));
    if (!a->seq || a->seq->engine != e)
        return nib_error_set(err, NIB_E_ARGUMENT, "the sequence is not of this engine");
    if (a->n_prompt < 1 || a->n_max < 0 || a->n_stop < 0)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_prompt is %" PRId32 ", n_max %" PRId32 ", n_stop %" PRId32
                             "; wanted at least 1, 0 and 0", a->n_prompt, a->n_max, a->n_stop);
    if (a->n_before < 0)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_before is %" PRId32 ", wanted at least 0", a->n_before);
    if (a->n_drafts != NIB_DRAFTS_AUTO && (a->n_drafts < 0 || a->n_drafts > e->options.n_drafts))
        return nib_error_set(err, NIB_E_ARGUMENT, "n_drafts is %" PRId32 ", wanted 0 to %" PRId32 ", the engine's own",
                             a->n_drafts, e->options.n_drafts);
    const int32_t free_tokens = e->options.n_ctx - a->seq->state.length;
    if (a->n_prompt > free_tokens)
        return nib_error_set(err, NIB_E_LIMIT, "the prompt is %" PRId32 " tokens and the sequence holds %" PRId32
                             "; the context is %" PRId32, a->n_prompt, a->seq->state.length, e->options.n_ctx);
    NIB_TRY(check_ids(e, "prompt token", a->prompt, a->n_prompt, err));
    return check_ids(e, "token before the prompt", a->before, a->n_before, err);
}

/* What one call of nib_generate() is doing. */
struct run {
    struct nib_engine              *e;
    const struct nib_generate_args *a;
    struct nib_generate_result     *r;
    struct nib_past              past;
    bool                            ended;
};

/* Hand a token to the caller, the sequence holding `length` tokens before it. */
static void emit(struct run *g, int32_t token, float logprob, int32_t length)
{
    const struct nib_generate_args *a = g->a;
    g->r->n_generated++;
    const bool go_on = !a->on_token || a->on_token(a->user, token, logprob);
    if (is_stop(a, token))
        g->r->reason = NIB_STOP_ID;
    else if (!go_on)
        g->r->reason = NIB_STOP_CALLBACK;
    else if ((a->n_max > 0 && g->r->n_generated == a->n_max) || length == g->e->options.n_ctx)
        g->r->reason = NIB_STOP_LENGTH;
    else
        return;
    g->ended = true;
}

/* Drafts for the next step, with pages reserved for them: no more than the context, the rows of a step and the tokens
 * still wanted have room for. */
static int32_t n_drafts(const struct run *g)
{
    const struct nib_options *o = &g->e->options;
    int32_t limit = g->a->n_drafts == NIB_DRAFTS_AUTO ? o->n_drafts : g->a->n_drafts;
    const int32_t room[] = {o->n_ctx - g->a->seq->state.length - 1, g->e->rank.work.n_logits_max - 1,
                            g->a->n_max > 0 ? g->a->n_max - g->r->n_generated - 1 : NIB_DRAFTS_MAX};
    for (size_t i = 0; i < sizeof room / sizeof room[0]; i++)
        limit = room[i] < limit ? room[i] : limit;
    if (g->a->n_drafts == NIB_DRAFTS_AUTO)
        limit = nib_draft_auto_choose(&g->e->drafts.chooser, limit);
    /* Pages for all rows, since drafts write there; where there are none left, a single row may still fit. */
    struct nib_seq_state *const state = &g->a->seq->state;
    const int32_t n = limit + 1;
    return limit > 0 && nib_pool_reserve(&g->e->rank.pool, &state, &n, 1) == NIB_OK ? limit : 0;
}

/* Guess *k tokens behind `token` and run all of them through the trunk. The sequence then holds them, right or
 * wrong. */
static enum nib_status step_with_drafts(struct run *g, int32_t token, int32_t *k, struct nib_verdict *v, struct nib_error *err)
{
    struct nib_engine *e = g->e;
    struct nib_seq *seq = g->a->seq;
    const int32_t length = seq->state.length;
    int32_t tokens[NIB_DRAFTS_MAX + 1] = {token};
    enum nib_status status = nib_draft_propose(e, seq, &g->a->sampling, &g->past, token, k, err);
    if (status != NIB_OK) {
        nib_seq_state_advance(&e->rank.pool, &seq->state, 0);
        return status;
    }
    for (int32_t i = 0; i < *k; i++)
        tokens[i + 1] = e->drafts.token[i];
    NIB_TRY(feed(e, seq, tokens, *k + 1, *k + 1, err));
    g->r->n_drafted += *k;
    status = nib_draft_verify(e, &g->a->sampling, &g->past, length + 1, *k, v, err);
    if (status != NIB_OK)
        (void)nib_seq_truncate(seq, length + 1);
    return status;
}

/* Hand out the accepted drafts up to one that ends the text, and drop the others from the sequence. As without drafts,
 * a token that ends the text is not kept in the sequence. */
static enum nib_status take_drafts(struct run *g, int32_t k, const struct nib_verdict *v, struct nib_error *err)
{
    struct nib_seq *seq = g->a->seq;
    const int32_t first = seq->state.length - k;
    int32_t kept = 0;
    for (; kept < v->n_accepted; kept++) {
        g->r->n_accepted++;
        emit(g, g->e->drafts.token[kept], v->logprob[kept], first + kept);
        if (g->ended)
            break;
    }
    const enum nib_status status = nib_seq_truncate(seq, first + kept);
    return status == NIB_OK ? status : nib_error_set(err, status, "could not take back %" PRId32 " drafts", k - kept);
}

static enum nib_status decode(struct run *g, struct nib_error *err)
{
    struct nib_engine *e = g->e;
    struct nib_seq *seq = g->a->seq;
    struct nib_verdict v;
    NIB_TRY(nib_draw_rows(e, &g->a->sampling, &g->past, 0, 1, seq->state.length, &v.next, &v.next_logprob, err));
    for (;;) {
        const int32_t token = v.next;
        if (token < 0)
            return nib_error_set(err, NIB_E_NUMERIC, "the logits after token %" PRId32 " hold NaN or nothing finite",
                                 seq->state.length - 1);
        emit(g, token, v.next_logprob, seq->state.length);
        if (g->ended)
            return NIB_OK;
        nib_past_add(&g->past, token, true);
        const double start = seconds();
        int32_t k = n_drafts(g);
        v.n_accepted = 0;
        if (k > 0) {
            NIB_TRY(step_with_drafts(g, token, &k, &v, err));
        } else {
            NIB_TRY(feed(e, seq, &token, 1, 1, err));
            NIB_TRY(nib_draw_rows(e, &g->a->sampling, &g->past, 0, 1, seq->state.length, &v.next, &v.next_logprob,
                                  err));
        }
        g->r->n_steps++;
        nib_draft_auto_record(&e->drafts.chooser, k, v.n_accepted, seconds() - start);
        if (k > 0)
            NIB_TRY(take_drafts(g, k, &v, err));
        if (g->ended)
            return NIB_OK;
    }
}

enum nib_status nib_generate(struct nib_engine *e, const struct nib_generate_args *a, struct nib_generate_result *r,
                             struct nib_error *err)
{
    struct run g = {.e = e, .a = a, .r = r};
    *r = (struct nib_generate_result){.reason = NIB_STOP_LENGTH};
    NIB_TRY(check_args(e, a, err));
    nib_past_start(&g.past, e, &a->sampling);
    for (int32_t i = 0; i < a->n_before; i++)
        nib_past_add(&g.past, a->before[i], false);
    for (int32_t i = 0; i < a->n_prompt; i++)
        nib_past_add(&g.past, a->prompt[i], false);
    nib_draft_auto_restart(&e->drafts.chooser);
    const double start = seconds();
    NIB_TRY(prefill(e, a, err));
    r->n_prompt = a->n_prompt;
    const double middle = seconds();
    const enum nib_status status = decode(&g, err);
    r->prefill_s = middle - start;
    r->decode_s = seconds() - middle;
    return status;
}
