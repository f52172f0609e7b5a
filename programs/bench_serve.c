/* Options, clients that ask at the same time, and the report. One run for each concurrency; each client is a thread
 * with a connection of its own and asks anew as soon as its answer has ended. */
#include "bench_serve.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arguments.h"
#include "bench_serve_request.h"
#include "cli.h"
#include "output.h"

enum { N_CONCURRENCIES_MAX = 32, CONCURRENCY_MAX = 1024 };

struct bench_settings {
    const char *url, *concurrencies, *model, *api_key;
    int32_t     n_requests, n_prompt, max_tokens;
    bool        json;
};

struct bench {
    const struct bench_settings *settings;
    struct http_url              url;
    const char                  *model;
    int32_t                      n_words; /* that make a prompt of the wanted length */
    uint64_t                     n_sent;  /* requests so far, over all runs */
};

/* What the clients of one run share; guarded by the lock. */
struct bench_run {
    struct bench   *bench;
    pthread_mutex_t lock;
    int32_t         concurrency, n_requests, n_taken, n_ok, n_failed;
    char            first_error[HTTP_WHY_BYTES];
    struct times    first, gaps, total;
    int64_t         n_prompt, n_cached, n_generated, n_events;
    bool            has_usage;
    double          seconds;
};

/* ---- Running ---- */

static bool take_number(struct bench_run *run, uint64_t *number)
{
    (void)pthread_mutex_lock(&run->lock);
    const bool more = run->n_taken < run->n_requests;
    run->n_taken += more;
    *number = run->bench->n_sent;
    run->bench->n_sent += more;
    (void)pthread_mutex_unlock(&run->lock);
    return more;
}

static void add_gaps(struct times *to, struct times *from)
{
    for (size_t i = 0; i < from->n; i++)
        times_add(to, from->at[i]);
    to->failed |= from->failed;
    from->n = 0;
}

/* Times of requests that failed would flatter or spoil those of the others; they only count. */
static void add_result(struct bench_run *run, const struct request_result *r, struct times *gaps)
{
    (void)pthread_mutex_lock(&run->lock);
    if (!r->ok) {
        if (run->n_failed++ == 0)
            memcpy(run->first_error, r->why, sizeof r->why);
        gaps->n = 0;
    } else {
        run->n_ok++;
        run->n_prompt += r->n_prompt;
        run->n_cached += r->n_cached;
        run->n_generated += r->n_generated;
        run->n_events += r->n_events;
        run->has_usage &= r->has_usage;
        times_add(&run->first, r->first_s);
        times_add(&run->total, r->total_s);
        add_gaps(&run->gaps, gaps);
    }
    (void)pthread_mutex_unlock(&run->lock);
}

static void *client(void *user)
{
    struct bench_run     *run = user;
    const struct bench   *b = run->bench;
    struct request_shape  shape = {.model = b->model, .n_words = b->n_words, .max_tokens = b->settings->max_tokens};
    struct request_result result;
    struct times          gaps = {0};
    struct http_client   *c = malloc(sizeof *c);

    if (c)
        http_client_init(c, &b->url, b->settings->api_key);
    while (c && take_number(run, &shape.number)) {
        bench_serve_request(c, &shape, &gaps, &result);
        add_result(run, &result, &gaps);
    }
    if (c)
        http_client_deinit(c);
    free(c);
    times_free(&gaps);
    return NULL;
}

static int run_clients(struct bench *b, int32_t concurrency, struct bench_run *run)
{
    pthread_t thread[CONCURRENCY_MAX];
    int32_t   n = 0;
    const int32_t by_default = 4 * concurrency > 16 ? 4 * concurrency : 16;

    memset(run, 0, sizeof *run);
    run->bench = b;
    run->concurrency = concurrency;
    run->n_requests = b->settings->n_requests > 0 ? b->settings->n_requests : by_default;
    run->has_usage = true;
    (void)pthread_mutex_init(&run->lock, NULL);
    const double start = bench_serve_now();
    while (n < concurrency && pthread_create(&thread[n], NULL, client, run) == 0)
        n++;
    for (int32_t i = 0; i < n; i++)
        (void)pthread_join(thread[i], NULL);
    run->seconds = bench_serve_now() - start;
    (void)pthread_mutex_destroy(&run->lock);
    if (n < concurrency)
        return cli_fail("only %d of %d threads could be started", (int)n, (int)concurrency);
    if (run->first.failed || run->gaps.failed || run->total.failed || run->n_ok + run->n_failed < run->n_requests)
        return cli_fail_memory();
    times_sort(&run->first);
    times_sort(&run->gaps);
    times_sort(&run->total);
    return CLI_OK;
}

/* How many words make a prompt of that many tokens is the tokenizer's and the chat form's affair: two prompts tell. */
static int find_length(struct bench *b)
{
    const int32_t         n_words[2] = {16, 80};
    int64_t               n_tokens[2];
    struct request_result r;
    struct http_client    c;
    bool                  ok = true;

    http_client_init(&c, &b->url, b->settings->api_key);
    for (int i = 0; ok && i < 2; i++) {
        bench_serve_request(&c, &(struct request_shape){b->model, n_words[i], 1, b->n_sent++}, NULL, &r);
        /* One token may be half a character, and so no text. */
        ok = (r.ok || r.has_usage) && r.n_prompt > 0;
        n_tokens[i] = r.n_prompt;
    }
    http_client_deinit(&c);
    if (!ok && r.why[0])
        return cli_fail("%s: %s", b->settings->url, r.why);
    if (!ok || n_tokens[1] <= n_tokens[0])
        return cli_fail("%s: the server does not tell how long prompts are (usage.prompt_tokens)", b->settings->url);
    const double each = (double)(n_tokens[1] - n_tokens[0]) / (n_words[1] - n_words[0]);
    const double words = n_words[0] + ((double)b->settings->n_prompt - (double)n_tokens[0]) / each;
    if (words < 1)
        cli_note("--prompt-tokens %d is less than a message of one word takes, about %.0f", (int)b->settings->n_prompt,
                 (double)n_tokens[0] - each * (n_words[0] - 1));
    b->n_words = words < 1 ? 1 : words > 1e8 ? 100000000 : (int32_t)lround(words);
    return CLI_OK;
}

/* ---- The report ---- */

static const double percents[] = {50, 90, 99, 100};

static json_t *times_json(const struct times *t)
{
    json_t *o = json_object();
    static const char *const names[] = {"p50", "p90", "p99", "max"};

    for (size_t i = 0; i < 4; i++)
        json_object_set_new(o, names[i], output_real(1e3 * times_percentile(t, percents[i])));
    return o;
}

static json_t *run_json(const struct bench_run *r)
{
    json_t *o = json_pack("{s:i, s:i, s:i}", "concurrency", (int)r->concurrency, "requests", (int)r->n_requests,
                          "errors", (int)r->n_failed);

    json_object_set_new(o, "first_error", r->n_failed ? json_string(r->first_error) : json_null());
    json_object_set_new(o, "seconds", output_real(r->seconds));
    json_object_set_new(o, "prompt_tokens", r->has_usage ? json_integer(r->n_prompt) : json_null());
    json_object_set_new(o, "cached_tokens", r->has_usage ? json_integer(r->n_cached) : json_null());
    json_object_set_new(o, "generated_tokens", r->has_usage ? json_integer(r->n_generated) : json_null());
    json_object_set_new(o, "events", json_integer(r->n_events));
    json_object_set_new(o, "requests_per_s", output_real(r->n_ok / r->seconds));
    json_object_set_new(o, "tokens_per_s", output_real(r->has_usage ? (double)r->n_generated / r->seconds : NAN));
    json_object_set_new(o, "events_per_s", output_real((double)r->n_events / r->seconds));
    json_object_set_new(o, "first_token_ms", times_json(&r->first));
    json_object_set_new(o, "gap_ms", times_json(&r->gaps));
    json_object_set_new(o, "request_ms", times_json(&r->total));
    return o;
}

static void print_times(const struct times *t)
{
    for (int i = 0; i < 3; i++)
        if (t->n > 0)
            (void)printf("%s %8.1f", i ? "" : " ", 1e3 * times_percentile(t, percents[i]));
        else
            (void)printf("%s %8s", i ? "" : " ", "-");
}

static void print_head(const struct bench *b)
{
    (void)printf("%s, model %s, prompts of about %d tokens, %d generated\n\n", b->settings->url, b->model,
                 (int)b->settings->n_prompt, (int)b->settings->max_tokens);
    (void)printf("%40s  %26s  %26s\n", "", "first token, ms", "gap between events, ms");
    (void)printf("%6s %6s %6s %7s %10s", "conc.", "req.", "errors", "prompt", "tokens/s");
    for (int i = 0; i < 2; i++)
        (void)printf("  %8s %8s %8s", "p50", "p90", "p99");
    (void)putchar('\n');
}

static void print_run(const struct bench_run *r)
{
    (void)printf("%6d %6d %6d %7.0f %10.1f", (int)r->concurrency, (int)r->n_requests, (int)r->n_failed,
                 r->n_ok ? (double)r->n_prompt / r->n_ok : 0, (double)r->n_generated / r->seconds);
    print_times(&r->first);
    print_times(&r->gaps);
    (void)putchar('\n');
    (void)fflush(stdout);
    if (r->n_ok == 0)
        return;
    if (!r->has_usage)
        cli_note("the server tells no usage: tokens are counted as events");
    else if ((double)r->n_generated > 1.05 * (double)r->n_events)
        cli_note("%.2f tokens came in one event", (double)r->n_generated / (double)r->n_events);
    if (r->n_generated < (int64_t)r->n_ok * r->bench->settings->max_tokens)
        cli_note("answers had %.1f tokens: the server ended them early", (double)r->n_generated / r->n_ok);
}

/* ---- The command ---- */

static int parse_concurrencies(const char *text, int32_t out[N_CONCURRENCIES_MAX], int *n_out)
{
    *n_out = 0;
    for (const char *c = text;; c++) {
        char      *end;
        const long v = strtol(c, &end, 10);
        if (end == c || (*end && *end != ',') || *c < '0' || *c > '9')
            return cli_usage("--concurrency: '%.60s' is not a list of whole numbers, as in 1,4,16", text);
        if (v < 1 || v > CONCURRENCY_MAX)
            return cli_usage("--concurrency: %.*s is out of range; wanted 1 to %d", (int)(end - c), c, CONCURRENCY_MAX);
        if (*n_out == N_CONCURRENCIES_MAX)
            return cli_usage("--concurrency: more than %d numbers", N_CONCURRENCIES_MAX);
        out[(*n_out)++] = (int32_t)v;
        if (!*end)
            return CLI_OK;
        c = end;
    }
}

static int run_all(struct bench *b, const int32_t *concurrency, int n)
{
    const struct bench_settings *o = b->settings;
    json_t                      *runs = o->json ? json_array() : NULL;
    int32_t                      n_failed = 0;
    int                          code = find_length(b);
    char                         error[HTTP_WHY_BYTES] = "";

    if (code == CLI_OK && !o->json)
        print_head(b);
    for (int i = 0; code == CLI_OK && i < n; i++) {
        struct bench_run run;
        code = run_clients(b, concurrency[i], &run);
        if (code == CLI_OK && o->json)
            json_array_append_new(runs, run_json(&run));
        else if (code == CLI_OK)
            print_run(&run);
        if (n_failed == 0)
            memcpy(error, run.first_error, sizeof error);
        n_failed += run.n_failed;
        times_free(&run.first);
        times_free(&run.gaps);
        times_free(&run.total);
    }
    if (code == CLI_OK && o->json)
        code = output_json(json_pack("{s:s, s:s, s:i, s:i, s:O}", "url", o->url, "model", b->model,
                                     "prompt_tokens_wanted", (int)o->n_prompt, "max_tokens", (int)o->max_tokens, "runs",
                                     runs));
    json_decref(runs);
    if (code == CLI_OK && n_failed > 0)
        code = cli_fail("%d requests failed; the first: %s", (int)n_failed, error);
    return code;
}

static int bench_url(const struct bench_settings *o)
{
    /* A server that keeps prompts must not know them from an earlier call. */
    struct bench       b = {.settings = o, .model = o->model, .n_sent = (uint64_t)time(NULL) << 32};
    struct http_client c;
    int32_t            concurrency[N_CONCURRENCIES_MAX];
    int                n;
    char               why[HTTP_WHY_BYTES], *found = NULL;

    int code = parse_concurrencies(o->concurrencies, concurrency, &n);
    if (code != CLI_OK)
        return code;
    if (!http_url_parse(o->url, &b.url, why))
        return cli_usage("--serve: %s", why);
    if (!b.url.base[0])
        (void)strcpy(b.url.base, "/v1");
    if (o->api_key && strpbrk(o->api_key, "\r\n"))
        return cli_usage("--api-key: the key holds a line break");
    if (!o->model) {
        http_client_init(&c, &b.url, o->api_key);
        b.model = found = bench_serve_first_model(&c, why);
        http_client_deinit(&c);
        if (!found)
            return cli_fail("%s: %s", o->url, why);
    }
    code = run_all(&b, concurrency, n);
    free(found);
    return code;
}

int bench_serve(int argc, char **argv)
{
    struct bench_settings o = {.concurrencies = "1,4,16", .n_prompt = 128, .max_tokens = 128};
    int                   code;

    const struct cli_option options[] = {
        {.name = "--serve", .kind = CLI_KIND_TEXT, .value = &o.url, .metavar = "URL",
         .help = "the server, as http://127.0.0.1:8000; /v1 is added where there is no path. No TLS"},
        {.name = "--concurrency", .kind = CLI_KIND_TEXT, .value = &o.concurrencies, .metavar = "N,N..",
         .help = "requests under way at the same time, a run for each number; 1,4,16"},
        {.name = "--requests", .kind = CLI_KIND_COUNT, .value = &o.n_requests, .low = 0, .high = 10000000,
         .metavar = "N", .help = "requests in a run; 0: four for each at the same time, 16 at least"},
        {.name = "--prompt-tokens", .kind = CLI_KIND_COUNT, .value = &o.n_prompt, .low = 1, .high = 10000000,
         .metavar = "N", .help = "length of a prompt, about; the report has what the server counted; 128"},
        {.name = "--max-tokens", .kind = CLI_KIND_COUNT, .value = &o.max_tokens, .low = 1, .high = 10000000,
         .metavar = "N", .help = "tokens to generate for each, past any end of the answer; 128"},
        {.name = "--model", .kind = CLI_KIND_TEXT, .value = &o.model, .metavar = "NAME",
         .help = "the first one the server lists"},
        {.name = "--api-key", .kind = CLI_KIND_TEXT, .value = &o.api_key, .metavar = "KEY",
         .help = "sent as Authorization: Bearer KEY"},
        {.name = "--json", .kind = CLI_KIND_FLAG, .value = &o.json, .help = "print the result as JSON"},
    };
    const struct cli_group  groups[] = {{"Options", options, sizeof options / sizeof options[0]}};
    const struct cli_syntax syntax = {
        .command = "bench",
        .help_words = "nibble bench --serve --help",
        .usage = "--serve URL [options]",
        .about = "Measures a running server, nibble's or another with OpenAI's chat interface: tokens per second,\n"
                 "time to the first token, gaps between the events of a stream. See docs/server.md.",
        .groups = groups,
        .n_groups = 1,
    };
    /* --serve --help asks for this help; it is no URL. */
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--serve") == 0 && (strcmp(argv[i + 1], "--help") == 0 || strcmp(argv[i + 1], "-h") == 0)) {
            argv += i;
            argc = 2;
        }
    if (!cli_parse(&syntax, argc, argv, &code))
        return code;
    return o.url ? bench_url(&o) : cli_usage("bench: --serve URL is missing; see nibble bench --serve --help");
}
