/* Who runs, and with how many rows.
 *
 * Every running request that has all of its tokens but one in its sequence decodes: one row in every step. The rows
 * left for prompts are shared evenly, so that a short prompt does not wait behind a long one. Where requests decode,
 * prompts get only as many rows as keep a step from taking much longer than usual.
 *
 * When no KV page is free, kept beginnings go first, then the youngest running request: it keeps its tokens, gives up
 * its sequence and waits at the front; its tokens are read again later (from a kept beginning, if there still is one),
 * which gives the same bits. */
#include "engine/scheduler.h"

#include <string.h>

#define KEEP_EVERY    (4 * NIB_PAGE_TOKENS) /* tokens between the beginnings kept of a long prompt */
#define ROWS_AT_LEAST 16                    /* of prompts in a step, whatever it costs */
#define STEP_STRETCH  2.0                   /* a step with prompts may take that many times one without */

static void remove_running(struct nib_server *s, int32_t i)
{
    s->n_running--;
    memmove(s->running + i, s->running + i + 1, (size_t)(s->n_running - i) * sizeof(struct nib_request *));
}

static void end_running(struct nib_server *s, int32_t i, enum nib_status status, enum nib_stop_reason reason)
{
    struct nib_request *r = s->running[i];
    remove_running(s, i);
    s->crowded = false;
    nib_request_finish(r, status, reason);
}

/* Whether it is over for r whatever it has got so far, and how. */
static bool is_over(const struct nib_request *r, double now, enum nib_status *status, enum nib_stop_reason *reason)
{
    const double age = now - r->submit_time;
    *reason = NIB_STOP_CALLBACK;
    *status = NIB_E_CANCELLED;
    if (atomic_load(&r->cancelled))
        return true;
    *status = NIB_E_TIME;
    if (r->args.wait_s_max > 0 && !r->result.was_run && age > r->args.wait_s_max)
        return true;
    if (!(r->args.total_s_max > 0) || age <= r->args.total_s_max)
        return false;
    if (r->result.n_generated > 0) {
        *status = NIB_OK;
        *reason = NIB_STOP_LENGTH;
    }
    return true;
}

static void drop_over(struct nib_server *s)
{
    const double now = nib_server_now();
    enum nib_status status;
    enum nib_stop_reason reason;
    for (int32_t i = s->n_running - 1; i >= 0; i--)
        if (is_over(s->running[i], now, &status, &reason))
            end_running(s, i, status, reason);
    struct nib_request_list kept = {0};
    for (struct nib_request *r; (r = nib_request_pop(&s->waiting));) {
        if (is_over(r, now, &status, &reason))
            nib_request_finish(r, status, reason);
        else
            nib_request_push(&kept, r, false);
    }
    s->waiting = kept;
}

/* ---- Coming in ---- */

static int32_t n_common(const struct nib_request *a, const struct nib_request *b)
{
    const int32_t n = a->n_ids < b->n_ids ? a->n_ids : b->n_ids;
    int32_t i = 0;
    while (i < n && a->ids[i] == b->ids[i])
        i++;
    return i;
}

/* Whether waiting pays: a running request is still reading a beginning that this one shares, and will keep it. */
static bool should_wait_for_beginning(const struct nib_server *s, const struct nib_request *r, int32_t n_hit)
{
    for (int32_t i = 0; s->prefix.n_snapshots_max > 0 && i < s->n_running; i++) {
        const struct nib_request *o = s->running[i];
        if (o->args.salt != r->args.salt || nib_request_n_pending(o) <= 1)
            continue;
        int32_t n = n_common(r, o);
        n = (n < r->n_ids ? n : r->n_ids - 1) / NIB_PAGE_TOKENS * NIB_PAGE_TOKENS;
        const int32_t last = (o->n_ids - 1) / NIB_PAGE_TOKENS * NIB_PAGE_TOKENS;
        n = n < last ? n / KEEP_EVERY * KEEP_EVERY : last;
        if (n > n_hit && n > nib_seq_length(o->seq))
            return true;
    }
    return false;
}

/* A sequence for r, from the longest kept beginning. */
static enum nib_status open_sequence(struct nib_server *s, struct nib_request *r, struct nib_seq *kept)
{
    for (;;) {
        const enum nib_status status = kept ? nib_seq_fork(kept, &r->seq, NULL) : nib_seq_open(s->engine, &r->seq, NULL);
        if (status != NIB_E_LIMIT)
            return status;
        /* Slots were lent to beginnings. The one to start from may be the one that goes. */
        int32_t n_hit, n_known;
        if (!nib_prefix_evict(&s->prefix))
            return status;
        kept = kept ? nib_prefix_match(&s->prefix, r->args.salt, r->ids, r->n_ids, &n_hit, &n_known) : NULL;
    }
}

static bool admit(struct nib_server *s, struct nib_request *r, bool *wait)
{
    int32_t n_hit = 0;
    struct nib_seq *kept = nib_prefix_match(&s->prefix, r->args.salt, r->ids, r->n_ids, &n_hit, &r->n_known);
    *wait = should_wait_for_beginning(s, r, n_hit);
    if (*wait)
        return false;
    const enum nib_status status = open_sequence(s, r, kept);
    if (status != NIB_OK) {
        nib_request_finish(r, status, NIB_STOP_CALLBACK);
        return true;
    }
    if (!r->result.was_run) {
        r->result.was_run = true;
        r->result.queue_s = nib_server_now() - r->submit_time;
        r->result.n_cached = nib_seq_length(r->seq);
        s->stats.n_prefix_queries += (uint64_t)r->args.n_prompt;
        s->stats.n_prefix_hits += (uint64_t)r->result.n_cached;
    }
    r->last_kept = 0;
    s->running[s->n_running++] = r;
    return true;
}

static void admit_waiting(struct nib_server *s)
{
    struct nib_request_list passed = {0};
    bool wait;
    while (s->n_running < s->options.n_running_max && !(s->crowded && s->n_running > 0)) {
        struct nib_request *r = nib_request_pop(&s->waiting);
        if (!r)
            break;
        if (!admit(s, r, &wait))
            nib_request_push(&passed, r, false);
    }
    /* Those who wait for a beginning keep their place. */
    for (struct nib_request *r; (r = nib_request_pop(&s->waiting));)
        nib_request_push(&passed, r, false);
    s->waiting = passed;
}

/* ---- Rows ---- */

/* Rows of a prompt end where its beginning will be kept: at its last page border, where it leaves what is known, and
 * every so often. */
static int32_t next_border(const struct nib_request *r)
{
    const int32_t length = nib_seq_length(r->seq);
    const int32_t last = (r->n_ids - 1) / NIB_PAGE_TOKENS * NIB_PAGE_TOKENS;
    int32_t border = (length / KEEP_EVERY + 1) * KEEP_EVERY;
    if (r->n_known > length && r->n_known < border)
        border = r->n_known;
    if (last > length && last < border)
        border = last;
    return border;
}

static int32_t prompt_rows_allowed(const struct nib_server *s, int32_t n_decode_rows)
{
    int32_t n = s->options.n_prefill_max;
    if (n_decode_rows > 0 && s->n_prefill_now < n)
        n = s->n_prefill_now;
    const int32_t room = s->engine->options.n_rows_max - n_decode_rows;
    return n < room ? n : room;
}

/* Rows for everyone into n_rows; returns how many for prompts. Smallest prompts first, each at most an even share of
 * what is left. */
static int32_t share_rows(struct nib_server *s)
{
    int32_t n_prompts = 0, n_decode_rows = 0;
    for (int32_t i = 0; i < s->n_running; i++) {
        struct nib_request *r = s->running[i];
        r->n_rows = nib_request_n_pending(r) == 1 ? 1 + r->n_drafts : 0;
        n_prompts += r->n_rows == 0;
        n_decode_rows += r->n_rows;
    }
    const int32_t allowed = prompt_rows_allowed(s, n_decode_rows);
    int32_t left = allowed;
    for (; n_prompts > 0 && left > 0; n_prompts--) {
        struct nib_request *smallest = NULL;
        for (int32_t i = 0; i < s->n_running; i++)
            if (s->running[i]->n_rows == 0 && (!smallest || nib_request_n_pending(s->running[i]) < nib_request_n_pending(smallest)))
                smallest = s->running[i];
        int32_t n = left / n_prompts > 0 ? left / n_prompts : 1;
        const int32_t pending = nib_request_n_pending(smallest), border = next_border(smallest) - nib_seq_length(smallest->seq);
        n = n < pending ? n : pending;
        n = n < border ? n : border;
        smallest->n_rows = n;
        left -= n;
    }
    return allowed - left;
}

static struct nib_batch make_batch(struct nib_server *s)
{
    struct nib_batch b = {.token = s->token, .seq_start = s->seq_start, .seq = s->seq, .logits_row = s->logits_row};
    for (int32_t i = 0; i < s->n_running; i++) {
        struct nib_request *r = s->running[i];
        if (r->n_rows == 0)
            continue;
        s->in_batch[b.n_seqs] = r;
        s->seq[b.n_seqs] = r->seq;
        s->seq_start[b.n_seqs++] = b.n_rows;
        const int32_t n_known = r->n_rows - r->n_drafts;
        memcpy(s->token + b.n_rows, r->ids + nib_seq_length(r->seq), (size_t)n_known * sizeof(int32_t));
        memcpy(s->token + b.n_rows + n_known, r->draft, (size_t)r->n_drafts * sizeof(int32_t));
        b.n_rows += r->n_rows;
        r->logits_at = b.n_logits;
        r->n_logits = n_known == nib_request_n_pending(r) ? 1 + r->n_drafts : 0;
        for (int32_t k = r->n_logits; k > 0; k--) {
            s->sampled[b.n_logits] = r;
            s->logits_row[b.n_logits++] = b.n_rows - k;
        }
    }
    s->seq_start[b.n_seqs] = b.n_rows;
    return b;
}

/* ---- When memory is full ---- */

static bool preempt_youngest(struct nib_server *s)
{
    if (s->n_running <= 1)
        return false;
    struct nib_request *r = s->running[s->n_running - 1];
    remove_running(s, s->n_running - 1);
    nib_seq_close(r->seq);
    r->seq = NULL;
    r->result.n_preempted++;
    s->stats.n_preemptions++;
    s->crowded = true;
    nib_request_push(&s->waiting, r, true);
    return true;
}

/* Run a step, making room until it fits. *b is what ran. */
static enum nib_status run_step(struct nib_server *s, struct nib_batch *b, int32_t *n_prompt_rows)
{
    for (;;) {
        *n_prompt_rows = share_rows(s);
        *b = make_batch(s);
        const enum nib_status status = nib_step_run(s->engine, b, s->engine->options.mtp, NULL);
        if (status != NIB_E_LIMIT || (!nib_prefix_evict(&s->prefix) && !preempt_youngest(s)))
            return status;
    }
}

/* ---- After a step ---- */

static double average(double before, double now)
{
    return before == 0 ? now : 0.8 * before + 0.2 * now;
}

/* What a step without prompts takes, and what a prompt row adds. From both follows how many rows keep a step with
 * prompts from taking much longer than one without. */
static void pace(struct nib_server *s, double seconds, int32_t n_rows, int32_t n_prompt_rows)
{
    if (n_prompt_rows == 0) {
        s->decode_s = average(s->decode_s, seconds);
    } else {
        const double alone = n_rows > n_prompt_rows ? s->decode_s : 0;
        s->row_s = average(s->row_s, (seconds > alone ? seconds - alone : 0) / n_prompt_rows);
    }
    if (s->decode_s == 0 || s->row_s == 0)
        return;
    const double rows = (STEP_STRETCH - 1) * s->decode_s / s->row_s;
    s->n_prefill_now = rows < ROWS_AT_LEAST ? ROWS_AT_LEAST : rows < s->options.n_prefill_max ? (int32_t)rows : s->options.n_prefill_max;
}

/* A sequence that stands at a page border is kept if a prompt ends there, or if it is the last one of what is being
 * generated. */
static void keep_beginning(struct nib_server *s, struct nib_request *r)
{
    const int32_t length = nib_seq_length(r->seq);
    if (length == 0 || length % NIB_PAGE_TOKENS != 0)
        return;
    const int32_t last = (r->n_ids - 1) / NIB_PAGE_TOKENS * NIB_PAGE_TOKENS;
    const bool decodes = length >= r->args.n_prompt;
    if (!decodes && length != last && length != r->n_known && length % KEEP_EVERY != 0)
        return;
    nib_prefix_put(&s->prefix, r->args.salt, r->ids, length, r->seq);
    if (!decodes)
        return;
    if (r->last_kept > 0 && r->last_kept % KEEP_EVERY != 0)
        nib_prefix_demote(&s->prefix, r->args.salt, r->ids, r->last_kept);
    r->last_kept = length;
}

static bool is_stop(const struct nib_request *r, int32_t token)
{
    for (int32_t i = 0; i < r->args.n_stop; i++)
        if (r->args.stop_id[i] == token)
            return true;
    return false;
}

/* The token of that row of logits goes to its request. True if that was its last. */
static bool deliver(struct nib_server *s, struct nib_request *r, int32_t row, int32_t *id, enum nib_status *status,
                    enum nib_stop_reason *reason)
{
    int32_t top_id[NIB_TOP_MAX];
    float top_logprob[NIB_TOP_MAX], logprob;
    struct nib_next next = {.stop = false};
    *id = -1;
    *status = nib_server_token(s, r, row, id, &logprob);
    if (*status == NIB_OK && *id < 0)
        *status = NIB_E_NUMERIC;
    if (*status == NIB_OK && r->args.n_top > 0)
        *status = nib_server_top(s, row, r->args.n_top, top_id, top_logprob);
    if (*status != NIB_OK)
        return true;
    if (r->result.n_generated == 0)
        r->result.first_token_s = nib_server_now() - r->submit_time;
    const struct nib_drawn_token token = {.id = *id, .index = r->result.n_generated++, .logprob = logprob, .n_top = r->args.n_top,
                                          .top_id = top_id, .top_logprob = top_logprob};
    s->stats.n_generated_tokens++;
    if (r->args.on_token)
        r->args.on_token(r->args.user, &token, &next);
    r->allowed = next.allowed;
    r->n_allowed = next.n_allowed;
    *reason = is_stop(r, *id) ? NIB_STOP_ID : next.stop ? NIB_STOP_CALLBACK : NIB_STOP_LENGTH;
    if (*reason != NIB_STOP_LENGTH || r->n_ids == r->n_ids_max || r->result.n_generated == r->args.n_max)
        return true;
    nib_history_add(&r->history, *id, true);
    r->ids[r->n_ids++] = *id;
    return false;
}

static int32_t place_of(const struct nib_server *s, const struct nib_request *r)
{
    int32_t i = 0;
    while (s->running[i] != r)
        i++;
    return i;
}

static void count_step(struct nib_server *s, const struct nib_batch *b, int32_t n_prompt_rows)
{
    int32_t bucket = b->n_rows > 1;
    for (int64_t bound = 8; bucket > 0 && bucket < NIB_SERVER_N_BUCKETS - 1 && b->n_rows > bound; bound *= 2)
        bucket++;
    s->stats.n_steps++;
    s->stats.n_step_rows += (uint64_t)b->n_rows;
    s->stats.n_prompt_tokens += (uint64_t)n_prompt_rows;
    s->stats.step_rows[bucket]++;
}

static void fail_step(struct nib_server *s, const struct nib_batch *b, enum nib_status status)
{
    for (int32_t i = 0; i < b->n_seqs; i++)
        end_running(s, place_of(s, s->in_batch[i]), status, NIB_STOP_CALLBACK);
}

/* A request gets its tokens, one after another as long as they are what was guessed; wrong guesses are taken back. */
static void take_tokens(struct nib_server *s, struct nib_request *r)
{
    enum nib_status status;
    enum nib_stop_reason reason = NIB_STOP_LENGTH;
    int32_t n_right = 0, id;
    bool ended, right = true;
    for (int32_t i = 0;; i++) {
        ended = deliver(s, r, r->logits_at + i, &id, &status, &reason);
        if (i == r->n_drafts)
            break;
        right = id == r->draft[i];
        s->tally.n_judged[i]++;
        s->tally.n_right[i] += right;
        n_right += right;
        if (ended || !right)
            break;
    }
    s->tally.n_texts += r->n_drafts > 0;
    s->stats.n_drafts += r->n_drafts > 0;
    s->stats.n_draft_tokens += (uint64_t)r->n_drafts;
    s->stats.n_accepted_tokens += (uint64_t)n_right;
    /* A token that ends the text is not among the ids; any other last one is, and is not fed yet. */
    const int32_t length = ended ? r->n_ids : r->n_ids - 1;
    if (nib_seq_length(r->seq) > length && nib_seq_truncate(r->seq, length) != NIB_OK) {
        status = NIB_E_STATE;
        ended = true;
    } else {
        keep_beginning(s, r);
    }
    if (ended)
        end_running(s, place_of(s, r), status, reason);
}

static void all_told(const struct nib_server *s)
{
    if (s->options.on_told)
        s->options.on_told(s->options.user);
}

static bool round_of(struct nib_server *s)
{
    struct nib_batch b;
    int32_t n_prompt_rows;
    drop_over(s);
    admit_waiting(s);
    nib_server_publish(s);
    if (s->n_running == 0)
        return false;
    all_told(s);
    const double start = nib_server_now();
    nib_server_draft(s);
    enum nib_status status = run_step(s, &b, &n_prompt_rows);
    if (status == NIB_OK && b.n_logits > 0) {
        status = nib_step_logits(s->engine, 0, b.n_logits, false);
        if (status == NIB_OK)
            status = nib_server_sample(s, b.n_logits);
        if (status == NIB_E_DEVICE)
            nib_engine_break(s->engine);
    }
    if (status != NIB_OK) {
        nib_server_publish(s); /* first, so that who is told finds why */
        fail_step(s, &b, status);
        return true;
    }
    const double seconds = nib_server_now() - start;
    pace(s, seconds, b.n_rows, n_prompt_rows);
    count_step(s, &b, n_prompt_rows);
    for (int32_t i = 0; i < b.n_seqs; i++) {
        struct nib_request *r = s->in_batch[i];
        if (r->n_logits > 0)
            take_tokens(s, r);
        else
            keep_beginning(s, r);
    }
    nib_server_draft_learn(s, n_prompt_rows == 0, seconds);
    return true;
}

bool nib_server_round(struct nib_server *s)
{
    const bool busy = round_of(s);
    nib_server_publish(s); /* first, so that who is told finds the numbers to go with it */
    all_told(s);
    return busy;
}
