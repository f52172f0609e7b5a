/* Running the choices of a request, and the answers that hold them all. */
#include "serve_generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "../cli.h"
#include "serve_choice.h"

/* ---- Answers ---- */

json_t *generation_usage(const struct generation *g)
{
    int64_t prompt = 0, completion = 0, reasoning = 0, cached = 0;
    for (size_t i = 0; i < g->args.n_prompts; i++)
        prompt += (int64_t)g->args.prompt[i].n;
    for (int32_t i = 0; i < g->n; i++) {
        completion += g->choice[i].n_tokens;
        reasoning += g->choice[i].n_reasoning;
        /* A prompt counts once, as its first choice found it. */
        cached += i % g->args.n == 0 ? g->choice[i].result.n_cached : 0;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}, s:I, s:I}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
                     (json_int_t)completion, "total_tokens", (json_int_t)(prompt + completion), "prompt_tokens_details",
                     "cached_tokens", (json_int_t)cached, "completion_tokens_details", "reasoning_tokens",
                     (json_int_t)reasoning, "prompt_cache_hit_tokens", (json_int_t)cached, "prompt_cache_miss_tokens",
                     (json_int_t)(prompt - cached));
}

static json_t *envelope(const struct generation *g, const char *object, json_t *choices)
{
    char fingerprint[64];
    (void)snprintf(fingerprint, sizeof fingerprint, "fp_nibble_%s", nib_version());
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", g->id, "object", object, "created", (json_int_t)g->created,
                     "model", g->args.model, "system_fingerprint", fingerprint, "choices", choices);
}

json_t *generation_chunk(const struct generation *g, json_t *choices)
{
    json_t *o = envelope(g, g->args.is_chat ? "chat.completion.chunk" : "text_completion", choices);
    if (g->args.include_usage)
        json_object_set_new(o, "usage", json_null());
    return o;
}

void generation_event(struct generation *g, json_t *object)
{
    struct exchange *x = g->exchange;
    char            *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!text) {
        x->out.failed = true;
        return;
    }
    buffer_text(&x->out, "data: ");
    buffer_text(&x->out, text);
    buffer_text(&x->out, "\n\n");
    x->last_out = serve_now();
    free(text);
}

static const char *event_head(struct generation *g)
{
    if (!g->event_head) {
        json_t *o = envelope(g, g->args.is_chat ? "chat.completion.chunk" : "text_completion", json_array());
        g->event_head = o ? json_dumps(o, JSON_COMPACT) : NULL;
        json_decref(o);
        if (g->event_head)
            g->event_head[strlen(g->event_head) - strlen("]}")] = '\0';
    }
    return g->event_head;
}

void generation_text_event(struct generation *g, int32_t index, const char *name, const char *text, size_t n)
{
    struct exchange *x = g->exchange;
    const char      *head = event_head(g);
    if (!head) {
        x->out.failed = true;
        return;
    }
    buffer_text(&x->out, "data: ");
    buffer_text(&x->out, head);
    buffer_printf(&x->out, "{\"index\":%d,", (int)index);
    if (name)
        buffer_printf(&x->out, "\"delta\":{\"%s\":", name);
    else
        buffer_text(&x->out, "\"text\":");
    buffer_json_string(&x->out, text, n);
    buffer_text(&x->out, name ? "},\"logprobs\":null,\"finish_reason\":null}]" : ",\"logprobs\":null,\"finish_reason\":null}]");
    buffer_text(&x->out, g->args.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
    x->last_out = serve_now();
}

static void check_json(const struct generation *g)
{
    for (int32_t i = 0; g->args.wants_json && i < g->n; i++) {
        const struct buffer *b = &g->choice[i].content;
        json_t              *v = b->data ? json_loadb(b->data, b->n, JSON_ALLOW_NUL, NULL) : NULL;
        if (!json_is_object(v))
            cli_note("%s: response_format json_object was asked for, but choice %d is no JSON object", g->exchange->id,
                     (int)i);
        json_decref(v);
    }
}

static void finish_generation(struct generation *g)
{
    struct exchange *x = g->exchange;
    int32_t most = 0;
    for (int32_t i = 0; i < g->n; i++)
        most = g->choice[i].n_tokens > most ? g->choice[i].n_tokens : most;
    if (most > 0)
        metrics_observe(&x->serve->metrics, METRIC_MOST_GENERATED, most);
    x->finished = true;
    check_json(g);
    if (g->failed && !x->begun && x->out.n == 0)
        x->streams = g->args.streams = false; /* nothing was said yet: an error can be one of HTTP's */
    if (g->args.streams) {
        if (g->failed) {
            char *text = api_error_text(&x->error);
            buffer_text(&x->out, "data: ");
            buffer_text(&x->out, text ? text : "{}");
            buffer_text(&x->out, "\n\n");
            free(text);
        } else if (g->args.include_usage) {
            json_t *o = generation_chunk(g, json_array());
            json_object_set_new(o, "usage", generation_usage(g));
            generation_event(g, o);
        }
        buffer_text(&x->out, "data: [DONE]\n\n");
        return;
    }
    if (g->failed)
        return;
    json_t *choices = json_array();
    for (int32_t i = 0; i < g->n; i++)
        json_array_append_new(choices, choice_answer(&g->choice[i]));
    json_t *o = envelope(g, g->args.is_chat ? "chat.completion" : "text_completion", choices);
    json_object_set_new(o, "usage", generation_usage(g));
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
    if (text)
        buffer_text(&x->out, text);
    else
        x->out.failed = true;
    free(text);
}

/* ---- Tokens arrive ---- */

static void on_token(void *user, const struct nib_drawn_token *t, struct nib_next *next)
{
    struct choice     *c = user;
    struct exchange   *x = c->generation->exchange;
    const double       time = serve_now();

    (void)pthread_mutex_lock(&x->lock);
    if (c->n_tokens > 0)
        metrics_observe(&x->serve->metrics, METRIC_BETWEEN_TOKENS, time - c->last_token);
    else
        metrics_observe(&x->serve->metrics, METRIC_FIRST_TOKEN, time - x->start);
    c->last_token = time;
    choice_take_forced(c, t->id);
    next->stop = !choice_token(c, t) || atomic_load(&c->generation->cancelled);
    next->n_allowed = choice_allowed(c);
    next->allowed = c->allowed;
    exchange_tell(x);
    (void)pthread_mutex_unlock(&x->lock);
}

static void fail_by_time(struct generation *g, const struct nib_request_result *r)
{
    struct exchange             *x = g->exchange;
    const struct serve_settings *o = x->serve->settings;
    const bool only_waited = !r->was_run && !(o->request_timeout_s > 0 && r->total_s > o->request_timeout_s);

    g->failed = true;
    if (only_waited)
        (void)api_fail(&x->error, NULL, "queue_timeout", "not begun within --queue-timeout of %d s",
                       (int)o->queue_timeout_s);
    else
        (void)api_fail(&x->error, NULL, "request_timeout", "no token within --request-timeout of %d s",
                       (int)o->request_timeout_s);
    x->error.status = only_waited ? 503 : 504;
    x->error.type = only_waited ? "unavailable_error" : "timeout_error";
}

static void on_end(void *user, const struct nib_request_result *r)
{
    struct choice     *c = user;
    struct generation *g = c->generation;
    struct exchange   *x = g->exchange;

    (void)pthread_mutex_lock(&x->lock);
    choice_end(c, r);
    if (r->status == NIB_E_CANCELLED && atomic_load(&x->serve->draining) && !g->failed) {
        g->failed = true;
        (void)api_fail(&x->error, NULL, "shutting_down", "the server is shutting down");
        x->error.status = 503;
        x->error.type = "unavailable_error";
    }
    if (r->status == NIB_E_TIME && !g->failed)
        fail_by_time(g, r);
    if (r->status != NIB_OK && r->status != NIB_E_CANCELLED && !g->failed) {
        g->failed = true;
        if (r->status == NIB_E_DEVICE)
            (void)api_fail(&x->error, NULL, "device_failed", "the device that computes answers failed; the server ends");
        else
            (void)api_fail(&x->error, NULL, "internal_error", "generation failed: %s", nib_status_name(r->status));
        x->error.status = 500;
        x->error.type = "server_error";
    }
    if (++g->n_ended == g->n)
        finish_generation(g);
    exchange_tell(x);
    (void)pthread_mutex_unlock(&x->lock);
    exchange_unref(x);
}

/* ---- Start ---- */

enum { PAGE_TOKENS = 128 };

/* What fits the context but not the memory for it will never fit. */
static bool submit_failed(struct exchange *x, const struct generation *g, enum nib_status status, const struct nib_error *err)
{
    struct nib_server_stats stats;
    nib_server_get_stats(x->serve->engine, &stats);
    bool too_long = false;
    for (size_t i = 0; i < g->args.n_prompts; i++)
        too_long |= g->args.prompt[i].n > (size_t)stats.n_pages * PAGE_TOKENS;
    (void)api_fail(&x->error, NULL, "invalid_value", "%s", err->text);
    if (status == NIB_E_STATE) {
        x->error = (struct api_error){.status = 503, .type = "unavailable_error", .code = "shutting_down"};
    } else if (status == NIB_E_LIMIT && too_long) {
        x->error = (struct api_error){.status = 400, .type = "invalid_request_error", .code = "context_length_exceeded"};
    } else if (status == NIB_E_LIMIT) {
        x->error = (struct api_error){.status = 429, .type = "rate_limit_error", .code = "queue_full"};
    } else if (status == NIB_E_MEMORY) {
        x->error = (struct api_error){.status = 500, .type = "server_error", .code = "internal_error"};
    } else if (status == NIB_E_DEVICE) {
        x->error = (struct api_error){.status = 500, .type = "server_error", .code = "device_failed"};
    }
    (void)snprintf(x->error.message, sizeof x->error.message, "%.500s", err->text);
    return false;
}

static bool check_lengths(struct exchange *x, const struct generation_args *a)
{
    for (size_t i = 0; i < a->n_prompts; i++)
        if (a->prompt[i].n >= (size_t)x->serve->n_ctx) {
            (void)api_fail(&x->error, a->is_chat ? "messages" : "prompt", "context_length_exceeded",
                           "the prompt has %zu tokens, which leaves no room in the context of %d tokens", a->prompt[i].n,
                           (int)x->serve->n_ctx);
            x->error.n_prompt = (int64_t)a->prompt[i].n;
            x->error.n_ctx = x->serve->n_ctx;
            return false;
        }
    return true;
}

static enum nib_status submit(struct choice *c, struct nib_error *err)
{
    struct generation      *g = c->generation;
    struct generation_args *a = &g->args;
    const struct nib_ids   *prompt = &a->prompt[c->index / a->n];
    struct nib_sampling     sampling = a->sampling;

    sampling.seed += (uint64_t)c->index * 0x9E3779B97F4A7C15u;
    const int32_t n_allowed = choice_allowed(c);
    const struct nib_request_args args = {
        .prompt = prompt->id, .n_prompt = (int32_t)prompt->n, .n_max = a->n_max, .n_min = a->n_min, .stop_id = a->stop_id,
        .n_stop = a->n_stop_id, .sampling = sampling, .bias = a->bias, .n_bias = a->n_bias, .n_top = a->n_top,
        .allowed = c->allowed, .n_allowed = n_allowed, .salt = a->salt,
        .wait_s_max = g->exchange->serve->settings->queue_timeout_s, .total_s_max = g->exchange->serve->settings->request_timeout_s,
        .on_token = on_token, .on_end = on_end, .user = c};
    (void)atomic_fetch_add(&g->exchange->n_refs, 1);
    const enum nib_status status = nib_server_submit(g->exchange->serve->engine, &args, &c->handle, err);
    if (status != NIB_OK)
        (void)atomic_fetch_sub(&g->exchange->n_refs, 1);
    return status;
}

static struct generation *generation_new(struct exchange *x, struct generation_args *a)
{
    struct generation *g = calloc(1, sizeof *g);
    uint64_t           random[2] = {0};

    if (!g) {
        generation_args_free(a);
        return NULL;
    }
    g->exchange = x;
    g->args = *a;
    memset(a, 0, sizeof *a);
    g->n = g->args.n * (int32_t)g->args.n_prompts;
    g->created = (int64_t)time(NULL);
    atomic_init(&g->cancelled, false);
    serve_random(random, sizeof random);
    (void)snprintf(g->id, sizeof g->id, "%s-%016llx%08llx", g->args.is_chat ? "chatcmpl" : "cmpl",
                   (unsigned long long)random[0], (unsigned long long)(random[1] >> 32));
    g->choice = calloc((size_t)g->n, sizeof *g->choice);
    for (int32_t i = 0; g->choice && i < g->n; i++)
        if (!choice_init(&g->choice[i], g, i)) {
            generation_free(g);
            return NULL;
        }
    if (!g->choice) {
        generation_free(g);
        return NULL;
    }
    return g;
}

bool generation_start(struct exchange *x, struct generation_args *a)
{
    struct nib_error err = {0};

    if (!check_lengths(x, a)) {
        generation_args_free(a);
        return false;
    }
    struct generation *g = generation_new(x, a);
    if (!g)
        return generation_no_memory(x);
    metrics_observe(&x->serve->metrics, METRIC_N_CHOICES, g->args.n);
    if (g->args.n_max > 0)
        metrics_observe(&x->serve->metrics, METRIC_MAX_TOKENS, g->args.n_max);
    /* Tokens may come at once; they wait until everything is in place. */
    (void)pthread_mutex_lock(&x->lock);
    x->generation = g;
    x->streams = g->args.streams;
    x->last_out = serve_now();
    enum nib_status status = NIB_OK;
    int32_t         n = 0;
    while (n < g->n && (status = submit(&g->choice[n], &err)) == NIB_OK)
        n++;
    if (status != NIB_OK) {
        /* All or none: those that got in are taken back, and end without anyone to tell. */
        atomic_store(&g->cancelled, true);
        for (int32_t i = 0; i < n; i++)
            nib_request_cancel(g->choice[i].handle);
        g->n_ended = g->n - n;
        x->finished = n == 0;
        x->streams = false;
        g->args.streams = false;
        g->failed = true;
        (void)submit_failed(x, g, status, &err);
    }
    (void)pthread_mutex_unlock(&x->lock);
    exchange_watch(x);
    return status == NIB_OK;
}

void generation_cancel(struct generation *g)
{
    if (!g || atomic_exchange(&g->cancelled, true))
        return;
    for (int32_t i = 0; i < g->n; i++)
        if (g->choice[i].handle)
            nib_request_cancel(g->choice[i].handle);
}

void generation_free(struct generation *g)
{
    if (!g)
        return;
    for (int32_t i = 0; g->choice && i < g->n; i++)
        choice_free(&g->choice[i]);
    free(g->choice);
    free(g->event_head);
    generation_args_free(&g->args);
    free(g);
}

/* ---- The log ---- */

void generation_log(const struct exchange *x, unsigned status)
{
    const struct generation *g = x->generation;
    char                     when[32], tokens[200] = "";
    time_t                   t = time(NULL);
    struct tm                tm;

    if (x->serve->settings->log_level == 0)
        return;
    (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
    if (g && !g->failed && g->n_ended == g->n) {
        const struct nib_request_result *r = &g->choice[0].result;
        int64_t                          n = 0, n_reasoning = 0;
        for (int32_t i = 0; i < g->n; i++) {
            n += g->choice[i].n_tokens;
            n_reasoning += g->choice[i].n_reasoning;
        }
        (void)snprintf(tokens, sizeof tokens,
                       " prompt=%d cached=%d output=%lld reasoning=%lld queue=%.3fs ttft=%.3fs rate=%.1f/s finish=%s",
                       (int)r->n_prompt, (int)r->n_cached, (long long)n, (long long)n_reasoning, r->queue_s, r->first_token_s,
                       r->total_s > r->first_token_s ? (double)(r->n_generated - 1) / (r->total_s - r->first_token_s) : 0.0,
                       r->status == NIB_E_CANCELLED                    ? "abort"
                       : g->choice[0].finish == NIB_CHAT_FINISH_LENGTH ? "length"
                       : g->choice[0].finish == NIB_CHAT_FINISH_STOP   ? "stop"
                                                                       : "tool_calls");
    }
    cli_note("%s %s %s %s %u %.3fs%s", when, x->id, x->client, x->route ? x->route->path : "-", status,
             serve_now() - x->start, tokens);
}
