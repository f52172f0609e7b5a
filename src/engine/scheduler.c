/* The server's API and its thread. */
#include "engine/scheduler.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double nib_server_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Requests ---- */

void nib_request_push(struct nib_request_list *l, struct nib_request *r, bool front)
{
    r->next = front ? l->first : NULL;
    if (front) {
        l->first = r;
        l->last = l->last ? l->last : r;
    } else {
        if (l->last)
            l->last->next = r;
        else
            l->first = r;
        l->last = r;
    }
    l->n++;
}

struct nib_request *nib_request_pop(struct nib_request_list *l)
{
    struct nib_request *r = l->first;
    if (!r)
        return NULL;
    l->first = r->next;
    if (!l->first)
        l->last = NULL;
    l->n--;
    r->next = NULL;
    return r;
}

static void drop_reference(struct nib_request *r)
{
    if (atomic_fetch_sub(&r->n_refs, 1) != 1)
        return;
    free((void *)r->args.stop_id);
    free((void *)r->args.bias);
    free(r->ids);
    free(r->history.place);
    free(r->history.token);
    free(r->history.times);
    free(r);
}

void nib_request_finish(struct nib_request *r, enum nib_status status, enum nib_stop_reason reason)
{
    nib_seq_close(r->seq);
    r->seq = NULL;
    r->result.status = status;
    r->result.reason = reason;
    r->result.n_prompt = r->args.n_prompt;
    r->result.total_s = nib_server_now() - r->submit_time;
    if (r->args.on_end)
        r->args.on_end(r->args.user, &r->result);
    drop_reference(r);
}

static void *copy_of(const void *from, size_t bytes)
{
    void *to = malloc(bytes > 0 ? bytes : 1);
    if (to && bytes > 0)
        memcpy(to, from, bytes);
    return to;
}

static bool make_history(struct nib_request *r, int32_t vocab)
{
    const struct nib_sampling *p = &r->args.sampling;
    if (p->repetition == 1.0f && p->presence == 0.0f && p->frequency == 0.0f)
        return true;
    r->history.place = calloc((size_t)vocab, sizeof(int32_t));
    r->history.token = malloc((size_t)vocab * sizeof(int32_t));
    r->history.times = malloc((size_t)vocab * sizeof(int32_t));
    if (!r->history.place || !r->history.token || !r->history.times)
        return false;
    for (int32_t i = 0; i < r->n_ids; i++)
        nib_history_add(&r->history, r->ids[i], false);
    return true;
}

static struct nib_request *request_new(struct nib_server *s, const struct nib_request_args *a, int32_t n_ids_max)
{
    struct nib_request *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->server = s;
    atomic_init(&r->n_refs, 1);
    atomic_init(&r->cancelled, false);
    r->args = *a;
    r->args.stop_id = copy_of(a->stop_id, (size_t)a->n_stop * sizeof *a->stop_id);
    r->args.bias = copy_of(a->bias, (size_t)a->n_bias * sizeof *a->bias);
    r->args.prompt = NULL;
    r->allowed = a->allowed;
    r->n_allowed = a->n_allowed;
    r->ids = malloc((size_t)n_ids_max * sizeof *r->ids);
    r->n_ids = a->n_prompt;
    r->n_ids_max = n_ids_max;
    r->submit_time = nib_server_now();
    if (r->ids)
        memcpy(r->ids, a->prompt, (size_t)a->n_prompt * sizeof *r->ids);
    if (!r->ids || !r->args.stop_id || !r->args.bias || !make_history(r, s->engine->model->config.vocab)) {
        drop_reference(r);
        return NULL;
    }
    return r;
}

/* ---- Submitting ---- */

static enum nib_status check_ids(const char *name, const int32_t *id, int32_t n, int32_t vocab, struct nib_error *err)
{
    for (int32_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= vocab)
            return nib_error_set(err, NIB_E_ARGUMENT, "%s %" PRId32 " is %" PRId32 ", wanted 0 to %" PRId32, name, i,
                                 id[i], vocab - 1);
    return NIB_OK;
}

static enum nib_status check_args(const struct nib_server *s, const struct nib_request_args *a, struct nib_error *err)
{
    const int32_t vocab = s->engine->model->config.vocab;
    NIB_TRY(nib_sampling_check(&a->sampling, err));
    if (a->n_prompt < 1)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_prompt is %" PRId32 ", wanted at least 1", a->n_prompt);
    if (!(a->wait_s_max >= 0) || !(a->total_s_max >= 0))
        return nib_error_set(err, NIB_E_ARGUMENT, "wait_s_max and total_s_max must not be negative");
    if (a->n_max < 0 || a->n_min < 0 || a->n_stop < 0 || a->n_bias < 0)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_max, n_min, n_stop and n_bias must not be negative");
    if (a->n_top < 0 || a->n_top > NIB_TOP_MAX || a->n_top > vocab)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_top is %" PRId32 ", wanted 0 to %d", a->n_top, NIB_TOP_MAX);
    for (int32_t i = 0; i < a->n_bias; i++) {
        NIB_TRY(check_ids("biased id", &a->bias[i].id, 1, vocab, err));
        if (!(a->bias[i].bias < INFINITY))
            return nib_error_set(err, NIB_E_ARGUMENT, "the bias of id %" PRId32 " is not a number below infinity",
                                 a->bias[i].id);
    }
    NIB_TRY(check_ids("stop id", a->stop_id, a->n_stop, vocab, err));
    NIB_TRY(check_ids("allowed id", a->allowed, a->n_allowed, vocab, err));
    return check_ids("prompt token", a->prompt, a->n_prompt, vocab, err);
}

/* The most tokens, prompt and generated, that this request can come to hold. The last generated one is never fed. */
static int64_t n_ids_max(const struct nib_server *s, const struct nib_request_args *a)
{
    const int64_t context = s->engine->options.n_ctx, pool = (int64_t)s->engine->rank.pool.entry.n * NIB_PAGE_TOKENS;
    const int64_t most = context < pool ? context : pool;
    const int64_t wanted = a->n_max > 0 ? (int64_t)a->n_prompt + a->n_max : most;
    return wanted < most ? wanted : most;
}

enum nib_status nib_server_submit(struct nib_server *s, const struct nib_request_args *a, struct nib_request **out, struct nib_error *err)
{
    if (out)
        *out = NULL;
    NIB_TRY(check_args(s, a, err));
    const int64_t n_max = n_ids_max(s, a);
    if (a->n_prompt > n_max)
        return nib_error_set(err, NIB_E_LIMIT, "the prompt has %" PRId32 " tokens; the context and the KV pool hold %" PRId64, a->n_prompt,
                             n_max);
    struct nib_request *r = request_new(s, a, (int32_t)n_max);
    if (!r)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for a request of %" PRId32 " tokens", a->n_prompt);
    enum nib_status status = NIB_OK;
    (void)pthread_mutex_lock(&s->lock);
    if (s->draining || s->closing)
        status = nib_error_set(err, NIB_E_STATE, "the server is shutting down");
    else if (s->failure.text[0])
        status = nib_error_set(err, NIB_E_DEVICE, "the device failed earlier (%s); open the engine again", s->failure.text);
    else if (s->inbox.n + s->published.n_waiting >= s->options.n_waiting_max)
        status = nib_error_set(err, NIB_E_LIMIT, "%" PRId32 " requests wait already", s->options.n_waiting_max);
    if (status == NIB_OK) {
        if (out) {
            (void)atomic_fetch_add(&r->n_refs, 1);
            *out = r;
        }
        nib_request_push(&s->inbox, r, false);
        (void)pthread_cond_signal(&s->wake);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (status != NIB_OK)
        drop_reference(r);
    return status;
}

void nib_request_cancel(struct nib_request *r)
{
    atomic_store(&r->cancelled, true);
}

void nib_request_close(struct nib_request *r)
{
    if (r)
        drop_reference(r);
}

/* ---- The thread ---- */

void nib_server_publish(struct nib_server *s)
{
    (void)pthread_mutex_lock(&s->lock);
    const struct nib_page_set *pages = &s->engine->rank.pool.entry;
    s->stats.n_running = s->n_running;
    s->stats.n_waiting = s->waiting.n;
    s->stats.n_running_max = s->options.n_running_max;
    s->stats.n_snapshots = s->prefix.n_snapshots;
    s->stats.n_snapshots_max = s->prefix.n_snapshots_max;
    s->stats.n_pages = pages->n;
    s->stats.n_pages_used = pages->n - pages->n_free;
    s->published = s->stats;
    if (s->engine->broken)
        s->failure = s->engine->why_broken;
    (void)pthread_mutex_unlock(&s->lock);
}

static void cancel_all(struct nib_server *s)
{
    for (int32_t i = 0; i < s->n_running; i++)
        atomic_store(&s->running[i]->cancelled, true);
    for (struct nib_request *r = s->waiting.first; r; r = r->next)
        atomic_store(&r->cancelled, true);
}

static void *run(void *user)
{
    struct nib_server *s = user;
    nib_server_publish(s);
    for (bool busy = false, closing = false; !closing || busy;) {
        (void)pthread_mutex_lock(&s->lock);
        while (!busy && s->inbox.n == 0 && s->waiting.n == 0 && !s->closing)
            (void)pthread_cond_wait(&s->wake, &s->lock);
        for (struct nib_request *r; (r = nib_request_pop(&s->inbox));)
            nib_request_push(&s->waiting, r, false);
        s->published.n_waiting = s->waiting.n;
        closing = s->closing;
        (void)pthread_mutex_unlock(&s->lock);
        if (closing)
            cancel_all(s);
        busy = nib_server_round(s);
    }
    return NULL;
}

void nib_server_options_init(struct nib_server_options *o)
{
    *o = (struct nib_server_options){.n_running_max = 8, .n_waiting_max = 256, .n_prefill_max = 512, .reuse = true};
}

static enum nib_status check_options(const struct nib_engine *e, const struct nib_server_options *o, struct nib_error *err)
{
    const struct nib_options *eo = &e->options;
    if (o->n_running_max < 1 || o->n_running_max > eo->n_seqs_max || o->n_running_max > eo->n_rows_max)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_running_max is %" PRId32 ", wanted 1 to %" PRId32 ", the engine's n_seqs_max and n_rows_max",
                             o->n_running_max, eo->n_seqs_max < eo->n_rows_max ? eo->n_seqs_max : eo->n_rows_max);
    if (o->n_waiting_max < 1 || o->n_prefill_max < 1)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_waiting_max and n_prefill_max must be at least 1");
    if (o->n_drafts != NIB_DRAFTS_AUTO && (o->n_drafts < 0 || o->n_drafts > eo->n_drafts))
        return nib_error_set(err, NIB_E_ARGUMENT, "n_drafts is %" PRId32 ", wanted 0 to %" PRId32 ", the engine's own",
                             o->n_drafts, eo->n_drafts);
    return NIB_OK;
}

static bool make_buffers(struct nib_server *s)
{
    struct nib_rank *rk = &s->engine->rank;
    const size_t n = (size_t)s->options.n_running_max, n_logits = (size_t)rk->work.n_logits_max, vocab = (size_t)rk->config->vocab;
    s->running = calloc(n, sizeof *s->running);
    s->in_batch = calloc(n, sizeof *s->in_batch);
    s->sampled = calloc(n_logits, sizeof *s->sampled);
    s->draft_row = calloc(n, sizeof *s->draft_row);
    s->seq = calloc(n, sizeof *s->seq);
    s->seq_start = calloc(n + 1, sizeof *s->seq_start);
    s->logits_row = calloc(n_logits, sizeof *s->logits_row);
    s->token = calloc((size_t)s->engine->options.n_rows_max, sizeof *s->token);
    s->host_row = calloc(n_logits, sizeof *s->host_row);
    s->host_token = calloc(n_logits, sizeof *s->host_token);
    s->host_logprob = calloc(n_logits, sizeof *s->host_logprob);
    s->logits = calloc(vocab, sizeof *s->logits);
    s->edited = calloc(vocab, sizeof *s->edited);
    s->device_row = rk->api->alloc(rk->backend, n_logits * sizeof *s->device_row);
    s->device_token = rk->api->alloc(rk->backend, n_logits * sizeof *s->device_token);
    s->device_logprob = rk->api->alloc(rk->backend, n_logits * sizeof *s->device_logprob);
    return s->running && s->in_batch && s->sampled && s->draft_row && s->seq && s->seq_start && s->logits_row && s->token && s->host_row &&
           s->host_token && s->host_logprob && s->logits && s->edited && s->device_row && s->device_token && s->device_logprob;
}

static void free_buffers(struct nib_server *s)
{
    struct nib_rank *rk = &s->engine->rank;
    void *const host[] = {s->running,  s->in_batch,   s->sampled,      s->seq,    s->seq_start, s->logits_row, s->token,
                          s->host_row, s->host_token, s->host_logprob, s->logits, s->edited,
                          s->draft_row};
    void *const device[] = {s->device_row, s->device_token, s->device_logprob};
    for (size_t i = 0; i < sizeof host / sizeof host[0]; i++)
        free(host[i]);
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++)
        if (device[i])
            rk->api->release(rk->backend, device[i]);
}

static void server_free(struct nib_server *s)
{
    nib_prefix_deinit(&s->prefix);
    free_buffers(s);
    (void)pthread_cond_destroy(&s->wake);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

enum nib_status nib_server_open(struct nib_engine *e, const struct nib_server_options *o, struct nib_server **out, struct nib_error *err)
{
    *out = NULL;
    NIB_TRY(check_options(e, o, err));
    struct nib_server *s = calloc(1, sizeof *s);
    if (!s)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for a server");
    s->engine = e;
    s->options = *o;
    s->n_prefill_now = o->n_prefill_max < NIB_PAGE_TOKENS ? o->n_prefill_max : NIB_PAGE_TOKENS; /* until it is known better */
    for (int32_t i = 0; i < NIB_CHOOSERS; i++)
        nib_draft_auto_init(&s->chooser[i], e->options.n_drafts);
    nib_prefix_init(&s->prefix, o->reuse ? e->options.n_seqs_max - o->n_running_max : 0);
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->wake, NULL);
    /* The caller's threads, which loaded the model, would be idle from now on, but count as busy ones with OpenMP: with
     * more of them than cores, those that work would be put to sleep after every op. */
    (void)omp_pause_resource_all(omp_pause_soft);
    if (!make_buffers(s) || pthread_create(&s->thread, NULL, run, s) != 0) {
        server_free(s);
        return nib_error_set(err, NIB_E_MEMORY, "no memory or no thread for a server");
    }
    *out = s;
    return NIB_OK;
}

void nib_server_drain(struct nib_server *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->draining = true;
    (void)pthread_mutex_unlock(&s->lock);
}

void nib_server_stop(struct nib_server *s)
{
    if (!s || s->stopped)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->closing = true;
    (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_join(s->thread, NULL);
    s->stopped = true;
}

void nib_server_close(struct nib_server *s)
{
    nib_server_stop(s);
    if (s)
        server_free(s);
}

void nib_server_get_stats(struct nib_server *s, struct nib_server_stats *out)
{
    (void)pthread_mutex_lock(&s->lock);
    *out = s->published;
    out->n_waiting += s->inbox.n;
    (void)pthread_mutex_unlock(&s->lock);
}

enum nib_status nib_server_failure(struct nib_server *s, struct nib_error *err)
{
    (void)pthread_mutex_lock(&s->lock);
    const struct nib_error failure = s->failure;
    (void)pthread_mutex_unlock(&s->lock);
    return failure.text[0] ? nib_error_set(err, NIB_E_DEVICE, "%s", failure.text) : NIB_OK;
}
