/* Messages of a wanted length, events of a stream, and their times. */
#include "bench_serve_request.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EVENT_BYTES_MAX = 4 << 20, ERROR_BYTES_MAX = 64 << 10 };

/* ---- Times ---- */

double bench_serve_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void times_add(struct times *t, double seconds)
{
    if (t->n == t->capacity) {
        const size_t capacity = t->capacity ? 2 * t->capacity : 1024;
        double      *at = realloc(t->at, capacity * sizeof *at);
        t->failed |= !at;
        if (!at)
            return;
        t->at = at;
        t->capacity = capacity;
    }
    t->at[t->n++] = seconds;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void times_sort(struct times *t)
{
    if (t->n > 0)
        qsort(t->at, t->n, sizeof *t->at, compare);
}

double times_percentile(const struct times *t, double percent)
{
    if (t->n == 0)
        return NAN;
    const double rank = ceil(percent / 100 * (double)t->n);
    return t->at[rank < 1 ? 0 : (size_t)rank - 1];
}

void times_free(struct times *t)
{
    free(t->at);
    memset(t, 0, sizeof *t);
}

/* ---- The body ---- */

/* SplitMix64: the words need to differ, no more. */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Each sixteen words are all of them in some order, so that texts of one length have about one number of tokens. */
static char *make_text(int32_t n_words, uint64_t number)
{
    static const char *const words[] = {"river", "stone", "lamp",   "green", "seven", "garden", "paper", "winter",
                                        "bridge", "music", "north", "table", "silver", "window", "bread", "story"};
    const size_t             size = (size_t)n_words * 8 + 1;
    char                    *text = malloc(size);
    size_t                   n = 0;

    for (int32_t i = 0; text && i < n_words; i++) {
        const uint64_t order = mix(mix(number) + (uint64_t)i / 16); /* an odd step goes through all sixteen */
        const uint64_t word = ((uint64_t)i * (order | 1) + (order >> 32)) % 16;
        n += (size_t)snprintf(text + n, size - n, i ? " %s" : "%s", words[word]);
    }
    return text;
}

/* Without thinking, as vLLM, SGLang, llama-server and nibble spell it: the chat form is shortest then, and every token
 * is text. */
static char *make_body(const struct request_shape *shape)
{
    char   *text = make_text(shape->n_words, shape->number);
    json_t *o = json_pack("{s:s, s:[{s:s, s:s}], s:i, s:i, s:b, s:b, s:{s:b}, s:{s:b, s:b}}", "model", shape->model,
                          "messages", "role", "user", "content", text ? text : "", "max_tokens", (int)shape->max_tokens,
                          "temperature", 0, "ignore_eos", 1, "stream", 1, "stream_options", "include_usage", 1,
                          "chat_template_kwargs", "thinking", 0, "enable_thinking", 0);
    char   *body = o && text ? json_dumps(o, JSON_COMPACT) : NULL;

    json_decref(o);
    free(text);
    return body;
}

/* ---- The stream ---- */

struct stream {
    struct request_result *result;
    struct times          *gaps;
    double                 start, last;
    char                  *line; /* what came of a line, or of an error's body */
    size_t                 n, capacity;
    bool                   done; /* [DONE], or the reason of the end */
};

static bool fail(struct request_result *r, const char *what)
{
    (void)snprintf(r->why, sizeof r->why, "%s", what);
    return false;
}

/* {"error": {"message"}} or {"error": "..."} or {"message"}, as servers have it. */
static const char *error_message(const json_t *o)
{
    const json_t *e = json_object_get(o, "error");
    const char   *text = json_string_value(json_object_get(e, "message"));
    return text ? text : json_is_string(e) ? json_string_value(e) : e ? "an error without a message" : NULL;
}

static bool has_text(const json_t *delta)
{
    static const char *const keys[] = {"content", "reasoning_content", "reasoning"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (json_string_length(json_object_get(delta, keys[i])) > 0)
            return true;
    return json_array_size(json_object_get(delta, "tool_calls")) > 0;
}

static void take_usage(const json_t *usage, struct request_result *r)
{
    if (!json_is_object(usage))
        return;
    r->has_usage = true;
    r->n_prompt = json_integer_value(json_object_get(usage, "prompt_tokens"));
    r->n_generated = json_integer_value(json_object_get(usage, "completion_tokens"));
    r->n_cached = json_integer_value(json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

static bool take_event(struct stream *s, const char *text, size_t n, double time)
{
    struct request_result *r = s->result;

    if (n == 6 && memcmp(text, "[DONE]", 6) == 0)
        return s->done = true;
    json_t *o = json_loadb(text, n, 0, NULL);
    if (!json_is_object(o)) {
        json_decref(o);
        return fail(r, "an event of the stream is not a JSON object");
    }
    const json_t *choice = json_array_get(json_object_get(o, "choices"), 0);
    const char   *error = error_message(o);
    if (error)
        (void)fail(r, error);
    if (has_text(json_object_get(choice, "delta"))) {
        if (r->n_events++ == 0)
            r->first_s = time - s->start;
        else if (s->gaps)
            times_add(s->gaps, time - s->last);
        s->last = time;
    }
    s->done |= json_is_string(json_object_get(choice, "finish_reason"));
    take_usage(json_object_get(o, "usage"), r);
    json_decref(o);
    return !error;
}

static bool keep(struct stream *s, const char *bytes, size_t n, size_t most)
{
    if (s->n + n > most)
        return fail(s->result, "a line of the stream is longer than 4 MiB");
    if (s->n + n > s->capacity) {
        const size_t capacity = 2 * (s->n + n);
        char        *line = realloc(s->line, capacity);
        if (!line)
            return fail(s->result, "memory is used up");
        s->line = line;
        s->capacity = capacity;
    }
    if (n > 0)
        memcpy(s->line + s->n, bytes, n);
    s->n += n;
    return true;
}

/* A line of server-sent events. OpenAI's events are one line of data each; comments and other fields do not matter. */
static bool take_line(struct stream *s, double time)
{
    size_t n = s->n, at = 5;

    s->n = 0;
    if (n > 0 && s->line[n - 1] == '\r')
        n--;
    if (n < 5 || memcmp(s->line, "data:", 5) != 0)
        return true;
    at += n > 5 && s->line[5] == ' ';
    return take_event(s, s->line + at, n - at, time);
}

static bool on_stream(void *user, int status, const char *bytes, size_t n)
{
    struct stream *s = user;
    const double   time = bench_serve_now();

    if (status != 200) {
        const size_t room = ERROR_BYTES_MAX - s->n;
        return keep(s, bytes, n < room ? n : room, ERROR_BYTES_MAX);
    }
    while (n > 0) {
        const char  *newline = memchr(bytes, '\n', n);
        const size_t k = newline ? (size_t)(newline - bytes) : n;
        if (!keep(s, bytes, k, EVENT_BYTES_MAX) || (newline && !take_line(s, time)))
            return false;
        bytes += k + (newline != NULL);
        n -= k + (newline != NULL);
    }
    return true;
}

static void say_status(const struct stream *s, int status)
{
    json_t     *o = json_loadb(s->line ? s->line : "", s->n, 0, NULL);
    const char *text = error_message(o);

    (void)snprintf(s->result->why, sizeof s->result->why, "status %d%s%.200s", status, text ? ": " : "",
                   text ? text : "");
    json_decref(o);
}

void bench_serve_request(struct http_client *c, const struct request_shape *shape, struct times *gaps,
                         struct request_result *out)
{
    char         *body = make_body(shape);
    struct stream s = {.result = out, .gaps = gaps};

    memset(out, 0, sizeof *out);
    if (!body) {
        (void)fail(out, "memory is used up");
        return;
    }
    s.start = bench_serve_now();
    const int status = http_request(c, "/chat/completions", body, on_stream, &s);
    out->total_s = bench_serve_now() - s.start;
    if (status < 0)
        (void)fail(out, c->why);
    else if (status > 0 && status != 200)
        say_status(&s, status);
    else if (status == 200 && !s.done)
        (void)fail(out, "the stream ended before the answer did");
    else if (status == 200 && out->n_events == 0)
        (void)fail(out, "the answer holds no text");
    out->ok = !out->why[0];
    if (!out->has_usage)
        out->n_generated = out->n_events;
    free(s.line);
    free(body);
}

/* ---- Models ---- */

static bool on_models(void *user, int status, const char *bytes, size_t n)
{
    (void)status;
    return keep(user, bytes, n, EVENT_BYTES_MAX);
}

char *bench_serve_first_model(struct http_client *c, char why[HTTP_WHY_BYTES])
{
    struct request_result r = {0};
    struct stream         s = {.result = &r};
    const int             status = http_request(c, "/models", NULL, on_models, &s);
    json_t               *o = status == 200 ? json_loadb(s.line ? s.line : "", s.n, 0, NULL) : NULL;
    const char           *id = json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
    char                 *name = id ? strdup(id) : NULL;

    if (status < 0)
        (void)fail(&r, c->why);
    else if (status > 0 && status != 200)
        say_status(&s, status);
    else if (!name && !r.why[0])
        (void)fail(&r, "the list of models names none; give one with --model");
    (void)snprintf(why, HTTP_WHY_BYTES, "%s", r.why);
    json_decref(o);
    free(s.line);
    return name;
}
