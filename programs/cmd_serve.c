/* nibble serve: an OpenAI-compatible server. Options, start, and an orderly end; what it serves is in server/. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "arguments.h"
#include "cli.h"
#include "input.h"
#include "nibble.h"
#include "server/serve.h"
#include "server/serve_config.h"
#include "session.h"

enum { PAGE_TOKENS = 128 };

/* Of --served-name with its end, and more than any folder's name with what is added to it. */
enum { NAME_BYTES = 1024 };

struct serve_command {
    struct cli_engine_options engine;
    struct serve_settings     settings;
    float                     kv_gib, cache_gib;
    int32_t                   profile;
    const char               *config;
};

/* ---- Options that are text ---- */

#define BLANKS " \t"

static bool is_control(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f;
}

static bool is_utf8(const char *text)
{
    json_t    *v = json_string(text);
    const bool yes = v != NULL;
    json_decref(v);
    return yes;
}

/* What a table of options cannot check. An empty key would let in whoever sends one, and a server meant to be closed
 * would be open where a script's variable is unset. */
static int check_texts(const struct serve_settings *o)
{
    const char *key = o->api_key, *name = o->served_name;

    if (key && (!*key || strspn(key, BLANKS) > 0 || strchr(BLANKS, key[strlen(key) - 1]) || strpbrk(key, "\r\n")))
        return cli_usage("--api-key: '%s' is no key; wanted one without blanks around it", key);
    if (o->cors && !*o->cors)
        return cli_usage("--cors: '' is no origin; wanted one such as https://example.org, or * for all");
    if (name && strlen(name) >= NAME_BYTES)
        return cli_usage("--served-name has %zu bytes; wanted less than %d", strlen(name), NAME_BYTES);
    if (name && (!*name || *name == ',' || name[strlen(name) - 1] == ',' || strstr(name, ",,")))
        return cli_usage("--served-name: '%s' holds an empty name; wanted NAME or NAME,NAME...", name);
    for (const char *c = name; c && *c; c++)
        if (is_control(*c))
            return cli_usage("--served-name: byte 0x%02x at offset %zu is a control character", (unsigned)*c, (size_t)(c - name));
    if (name && !is_utf8(name))
        return cli_usage("--served-name: '%s' is not UTF-8", name);
    return serve_http_check(o);
}

/* ---- API keys ---- */

static bool add_key(struct serve *s, const char *key, size_t n)
{
    char **keys = realloc(s->keys, (s->n_keys + 1) * sizeof *keys);
    if (!keys)
        return false;
    s->keys = keys;
    keys[s->n_keys] = strndup(key, n);
    return keys[s->n_keys++] != NULL;
}

/* A line each; blanks around a key do not count, as around a header's value, nor do empty lines. */
static int read_keys(struct serve *s)
{
    char  *text = NULL;
    size_t n = 0;

    if (s->settings->api_key && !add_key(s, s->settings->api_key, strlen(s->settings->api_key)))
        return cli_fail_memory();
    if (!s->settings->api_key_file)
        return CLI_OK;
    if (!input_read_file("--api-key-file", s->settings->api_key_file, &text, &n))
        return CLI_FAILED;
    bool ok = true;
    for (char *line = text; ok && *line;) {
        line += strspn(line, BLANKS "\r\n");
        const size_t length = strcspn(line, "\r\n");
        size_t       n_key = length;
        while (n_key > 0 && strchr(BLANKS, line[n_key - 1]))
            n_key--;
        if (n_key > 0)
            ok = add_key(s, line, n_key);
        line += length;
    }
    free(text);
    if (ok && s->n_keys == 0)
        return cli_fail("--api-key-file: '%s' holds no key", s->settings->api_key_file);
    return ok ? CLI_OK : cli_fail_memory();
}

/* ---- The engine ---- */

/* Pages for the contexts that run and sequence slots for beginnings, within what memory was given. */
static void plan_memory(const struct session *s, const struct serve_command *c, struct nib_options *o)
{
    struct nib_memory_plan two, one;
    struct nib_options     probe = *o;
    const int32_t          n_ctx_pages = (o->n_ctx + PAGE_TOKENS - 1) / PAGE_TOKENS;
    int32_t                n_kept = 64;

    probe.n_seqs_max = 1;
    probe.n_kv_pages = 1;
    (void)nib_model_plan(s->model, &probe, &one, NULL);
    probe.n_kv_pages = 2;
    probe.n_ctx = o->n_ctx > PAGE_TOKENS ? o->n_ctx : 2 * PAGE_TOKENS;
    (void)nib_model_plan(s->model, &probe, &two, NULL);
    const double page = two.kv_bytes > one.kv_bytes ? (double)(two.kv_bytes - one.kv_bytes) : 1;
    probe.n_kv_pages = 1;
    probe.n_seqs_max = 2;
    (void)nib_model_plan(s->model, &probe, &two, NULL);
    const double slot = two.kv_bytes > one.kv_bytes ? (double)(two.kv_bytes - one.kv_bytes) : 1;
    if (c->cache_gib >= 0)
        n_kept = c->cache_gib * 0x1p30 / slot > 4000 ? 4000 : (int32_t)(c->cache_gib * 0x1p30 / slot);
    o->n_seqs_max = c->settings.n_running + n_kept;
    /* By default as many pages again for what is kept. */
    double pages = c->kv_gib > 0 ? c->kv_gib * 0x1p30 / page : (n_kept > 0 ? 2.0 : 1.0) * c->settings.n_running * n_ctx_pages;
    o->n_kv_pages = pages < 1 ? 1 : pages > 1e9 ? 1000000000 : (int32_t)pages;
}

/* What is in force. */
static void log_settings(const struct session *s, const struct serve_command *c, const struct serve *serve,
                         const struct nib_server_options *so)
{
    static const char *const     kv_names[] = {"f32", "bf16", "fp8", "nvfp4"};
    static const char *const     quant_names[] = {"auto", "none", "fp8", "nvfp4", "int8"};
    const struct nib_options    *r = nib_engine_options(s->engine);
    const struct serve_settings *o = &c->settings;
    cli_note("serving '%s' from %s: backend %s, threads %d, context %d, kv %s, act-quant %s, numerics %s, drafts %s", serve->name, s->dir,
             r->backend, (int)r->n_threads, (int)r->n_ctx, kv_names[r->kv], quant_names[r->act_quant],
             cli_numerics_names[r->numerics], so->n_drafts == 0 ? "0" : cli_draft_names[c->engine.drafts]);
    cli_note("limits: %d requests at once, %d waiting, %d prompt tokens a step, %d KV pages of %d tokens, %d kept beginnings, bodies of %d MiB, "
             "%d MiB unsent", (int)so->n_running_max, (int)so->n_waiting_max, (int)so->n_prefill_max, (int)r->n_kv_pages, PAGE_TOKENS,
             (int)(r->n_seqs_max - so->n_running_max), (int)o->max_body_mb, (int)o->max_unsent_mb);
    cli_note("seconds (0: any): queue %d, request %d, receive %d, idle %d, drain %d; %s; CORS %s; control tokens in messages are %s",
             (int)o->queue_timeout_s, (int)o->request_timeout_s, (int)o->receive_timeout_s, (int)o->idle_timeout_s, (int)o->drain_timeout_s,
             serve->n_keys ? "API keys asked for" : "no API key", o->cors ? o->cors : "off",
             o->allow_control_tokens ? "taken as such" : "plain text");
}

static int open_engine(struct session *s, const struct serve_command *c, struct serve *serve)
{
    struct nib_options        o;
    struct nib_server_options so;
    struct nib_error          err = {0};

    int code = session_engine_options(s, 0, false, &o);
    if (code != CLI_OK)
        return code;
    o.n_ctx = serve->n_ctx;
    struct nib_memory_plan usual;
    enum nib_status        status = nib_model_plan(s->model, &o, &usual, &err);
    if (status != NIB_OK)
        return session_fail(status, &err);
    const int32_t n_prefill = c->settings.n_prefill > 0 ? c->settings.n_prefill : usual.n_rows_max > 512 ? usual.n_rows_max : 512;
    o.n_rows_max = n_prefill + c->settings.n_running * (1 + o.n_drafts);
    plan_memory(s, c, &o);
    status = nib_engine_open(s->model, &o, &s->engine, &err);
    if (status != NIB_OK)
        return session_fail(status, &err);
    session_warn_of_kernels(nib_engine_options(s->engine)->backend);
    nib_server_options_init(&so);
    so.n_running_max = c->settings.n_running;
    so.n_waiting_max = c->settings.n_waiting;
    so.n_prefill_max = n_prefill;
    so.on_told = exchange_wake_told;
    so.user = serve;
    so.n_drafts = c->engine.drafts == CLI_DRAFTS_AUTO && o.n_drafts > 0 ? NIB_DRAFTS_AUTO : o.n_drafts;
    status = nib_server_open(s->engine, &so, &serve->engine, &err);
    if (status != NIB_OK)
        return session_fail(status, &err);
    log_settings(s, c, serve, &so);
    return CLI_OK;
}

/* ---- Start and end ---- */

/* Clients of the release's own service know these; hidden sizes and numbers of layers tell which of the two it is. */
static const char *release_name(const struct nib_model_info *m)
{
    return m->dim == 7168 && m->n_layers == 61 ? ",deepseek-v4-pro" : m->dim == 4096 && m->n_layers == 43 ? ",deepseek-v4-flash" : "";
}

/* A folder's name may hold what separates names, and bytes that no JSON can hold: '_' stands for those. */
static void clean_name(char *name)
{
    const bool whole = is_utf8(name);
    for (char *c = name; *c; c++)
        if (*c == ',' || is_control(*c) || (!whole && (unsigned char)*c >= 0x80))
            *c = '_';
}

/* The first of the names ends up in `name`, NAME_BYTES long, further ones behind it. */
static void find_names(struct serve *serve, const char *given, char *name)
{
    char *real = given ? NULL : realpath(serve->dir, NULL);
    char *slash = real ? strrchr(real, '/') : NULL;
    (void)snprintf(name, NAME_BYTES, "%s", given ? given : slash && slash[1] ? slash + 1 : "nibble");
    free(real);
    if (!given) {
        clean_name(name);
        (void)strncat(name, release_name(serve->info), NAME_BYTES - 1 - strlen(name));
    }
    char *comma = strchr(name, ',');
    if (comma)
        *comma = '\0';
    serve->name = name;
    serve->other_names = comma ? comma + 1 : "";
}

static int prepare(struct session *s, const struct serve_command *c, struct serve *serve, char *name)
{
    struct nib_error err = {0};
    bool             guessed = false;

    int code = session_open(s, &c->engine);
    if (code == CLI_OK)
        code = session_open_tokenizer(s);
    if (code != CLI_OK)
        return code;
    serve->info = s->info;
    serve->tokenizer = s->tokenizer;
    serve->dir = s->dir;
    find_names(serve, c->settings.served_name, name);
    serve->dsml_id = nib_tokenizer_find(s->tokenizer, "｜DSML｜");
    serve->think_end_id = nib_tokenizer_find(s->tokenizer, "</think>");
    serve->n_ctx = c->engine.ctx > 0 ? c->engine.ctx : s->info->n_ctx_max < 8192 ? s->info->n_ctx_max : 8192;
    serve->profile = (enum nib_chat_profile)c->profile;
    if (serve->profile == NIB_CHAT_AUTO) {
        enum nib_status status = nib_chat_profile_detect(s->dir, &serve->profile, &guessed, &err);
        if (status != NIB_OK)
            return session_fail(status, &err);
    }
    cli_note("chat profile %s%s", serve->profile == NIB_CHAT_PREVIEW ? "preview" : "ga",
             guessed ? " (nothing said which)" : "");
    return read_keys(serve);
}

/* SIGTERM or SIGINT ends what runs in its own time; the second one, or the time limit, at once. So does a device that
 * failed, which only a new process can use again: whoever watches over this one starts it. */
static int wait_for_end(struct serve *s, const sigset_t *signals)
{
    struct nib_error err = {0};

    while (nib_server_failure(s->engine, &err) == NIB_OK)
        if (sigtimedwait(signals, NULL, &(struct timespec){.tv_nsec = 500000000L}) > 0)
            break;
    const int code = nib_server_failure(s->engine, &err) == NIB_OK ? CLI_OK : cli_fail("the device failed: %s", err.text);
    atomic_store(&s->draining, true);
    nib_server_drain(s->engine);
    (void)MHD_quiesce_daemon(s->daemon);
    cli_note("shutting down; requests that run have %d s", (int)s->settings->drain_timeout_s);
    for (int i = 0; i < s->settings->drain_timeout_s * 10; i++) {
        struct nib_server_stats stats;
        nib_server_get_stats(s->engine, &stats);
        if (stats.n_running == 0 && stats.n_waiting == 0)
            break;
        if (sigtimedwait(signals, NULL, &(struct timespec){.tv_nsec = 100000000L}) > 0)
            break;
    }
    return code;
}

static int serve_until_signal(struct session *s, const struct serve_command *c, struct serve *serve, const sigset_t *signals)
{
    if (!serve_http_start(serve))
        return CLI_FAILED;
    const bool v6 = strchr(c->settings.host, ':') != NULL;
    cli_note("listening on http://%s%s%s:%d", v6 ? "[" : "", c->settings.host, v6 ? "]" : "", (int)c->settings.port);
    int code = open_engine(s, c, serve);
    if (code == CLI_OK) {
        atomic_store(&serve->ready, true);
        cli_note("ready");
        code = wait_for_end(serve, signals);
    }
    /* Ends every request; those still told about it get it sent in the moment before the connections close. */
    nib_server_stop(serve->engine);
    (void)nanosleep(&(struct timespec){.tv_nsec = 200000000L}, NULL);
    serve_http_stop(serve); /* until then handlers may ask for stats or submit, which fails */
    nib_server_close(serve->engine);
    return code;
}

static int run(const struct serve_command *c)
{
    struct session s;
    struct serve   serve = {.settings = &c->settings, .start_time = (int64_t)time(NULL)};
    struct rlimit  files;
    sigset_t       signals;
    char           name[NAME_BYTES];

    /* Before any thread starts, so that all of them leave the signals to this one. */
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    metrics_init(&serve.metrics);
    serve.replay = malloc(sizeof *serve.replay);
    if (!serve.replay)
        return cli_fail_memory();
    replay_init(serve.replay);
    int code = prepare(&s, c, &serve, name);
    if (code == CLI_OK)
        code = serve_until_signal(&s, c, &serve, &signals);
    replay_deinit(serve.replay);
    free(serve.replay);
    for (size_t i = 0; i < serve.n_keys; i++)
        free(serve.keys[i]);
    free(serve.keys);
    session_close(&s);
    return code;
}

static int serve_command(int argc, char **argv, struct serve_config *config)
{
    static const char *const profile_names[] = {"auto", "ga", "preview", NULL};
    static const char *const effort_names[] = {"none", "low", "high", "max", NULL}; /* enum nib_effort */
    static const char *const reasoning_names[] = {"reasoning_content", "reasoning", "both", NULL};
    static const char *const level_names[] = {"quiet", "info", NULL};
    struct serve_command     c = {
            .settings = {.host = "127.0.0.1", .port = 8000, .n_running = 16, .n_waiting = 256, 
                         .max_body_mb = 64, .max_unsent_mb = 8, .log_level = 1, .default_effort = NIB_EFFORT_HIGH, .drain_timeout_s = 30, .queue_timeout_s = 600,
                         .receive_timeout_s = 30, .idle_timeout_s = 60},
            .cache_gib = -1};
    int code;

    cli_engine_options_init(&c.engine);
    const struct cli_option own[] = {
        {.name = "--host", .kind = CLI_KIND_TEXT, .value = &c.settings.host, .metavar = "A",
         .help = "address to listen on; 127.0.0.1. TLS is left to a proxy"},
        {.name = "--port", .kind = CLI_KIND_COUNT, .value = &c.settings.port, .low = 1, .high = 65535, .metavar = "P",
         .help = "port; 8000"},
        {.name = "--api-key", .kind = CLI_KIND_TEXT, .value = &c.settings.api_key, .metavar = "KEY",
         .help = "ask for this key; others can read it in the process list"},
        {.name = "--api-key-file", .kind = CLI_KIND_TEXT, .value = &c.settings.api_key_file, .metavar = "F",
         .help = "ask for one of the keys in a file, a line each"},
        {.name = "--served-name", .kind = CLI_KIND_TEXT, .value = &c.settings.served_name, .metavar = "NAME,...",
         .help = "the model's name for clients, or several; the folder's name"},
        {.name = "--any-model", .kind = CLI_KIND_FLAG, .value = &c.settings.any_model,
         .help = "answer requests for any model with this one"},
        {.name = "--default-effort", .kind = CLI_KIND_CHOICE, .value = &c.settings.default_effort,
         .choices = effort_names, .help = "thinking of requests that say nothing about it; high"},
        {.name = "--reasoning-field", .kind = CLI_KIND_CHOICE, .value = &c.settings.reasoning_field,
         .choices = reasoning_names, .help = "what reasoning is called in answers; reasoning_content"},
        {.name = "--cors", .kind = CLI_KIND_TEXT, .value = &c.settings.cors, .metavar = "ORIGIN",
         .help = "let pages from there (* for all) use the server; off"},
        {.name = "--chat-profile", .kind = CLI_KIND_CHOICE, .value = &c.profile, .choices = profile_names,
         .help = "which release's prompt rules; auto: from the checkpoint folder"},
        {.name = "--allow-control-tokens", .kind = CLI_KIND_FLAG, .value = &c.settings.allow_control_tokens,
         .help = "control tokens written in messages count; otherwise they are plain text"},
        {.name = "--log-level", .kind = CLI_KIND_CHOICE, .value = &c.settings.log_level, .choices = level_names,
         .help = "info: one line for each request"},
        {.name = "--config", .kind = CLI_KIND_TEXT, .value = &c.config, .metavar = "FILE",
         .help = "options from a file, a line each: name value. The command line counts more"},
    };
    const struct cli_option limits[] = {
        {.name = "--max-seqs", .kind = CLI_KIND_COUNT, .value = &c.settings.n_running, .low = 1, .high = 1024,
         .metavar = "N", .help = "requests that run at once; 16"},
        {.name = "--max-queue", .kind = CLI_KIND_COUNT, .value = &c.settings.n_waiting, .low = 1, .high = 1000000,
         .metavar = "N", .help = "requests that wait; more are refused; 256"},
        {.name = "--kv-memory", .kind = CLI_KIND_NUMBER, .value = &c.kv_gib, .low = 0, .above_low = true, .high = 1e6,
         .metavar = "GiB", .help = "memory for context rows; twice what all requests at full length need"},
        {.name = "--cache-memory", .kind = CLI_KIND_NUMBER, .value = &c.cache_gib, .low = 0, .high = 1e6,
         .metavar = "GiB", .help = "memory for the ends of kept beginnings, 0: keep none; that of 64"},
        {.name = "--prefill-budget", .kind = CLI_KIND_COUNT, .value = &c.settings.n_prefill, .low = 0, .high = 16384,
         .metavar = "N", .help = "prompt tokens in a step, at most; 0: 512, on a GPU 2048"},
        {.name = "--drafts", .kind = CLI_KIND_CHOICE, .value = &c.engine.drafts, .choices = cli_draft_names,
         .help = "tokens that the MTP block guesses ahead for each request in a step; changes the\n"
                 "speed, not the text (docs/drafts.md); auto: as many as pay; 0"},
        {.name = "--max-body-mb", .kind = CLI_KIND_COUNT, .value = &c.settings.max_body_mb, .low = 1, .high = 2047,
         .metavar = "N", .help = "size of a request; 64"},
        {.name = "--max-unsent-mb", .kind = CLI_KIND_COUNT, .value = &c.settings.max_unsent_mb, .low = 1, .high = 2047,
         .metavar = "N", .help = "a stream of which its client leaves more unread ends; 8"},
        {.name = "--queue-timeout", .kind = CLI_KIND_COUNT, .value = &c.settings.queue_timeout_s, .low = 0,
         .high = 86400, .metavar = "S", .help = "seconds that a request may wait to be begun; 600, 0: any"},
        {.name = "--request-timeout", .kind = CLI_KIND_COUNT, .value = &c.settings.request_timeout_s, .low = 0, .high = 86400,
         .metavar = "S", .help = "seconds that a request may take; it then ends as if by its length; 0: any"},
        {.name = "--receive-timeout", .kind = CLI_KIND_COUNT, .value = &c.settings.receive_timeout_s, .low = 1, .high = 3600,
         .metavar = "S", .help = "seconds for a request to arrive, and more where it comes at 16 KiB/s; 30"},
        {.name = "--idle-timeout", .kind = CLI_KIND_COUNT, .value = &c.settings.idle_timeout_s, .low = 1, .high = 3600,
         .metavar = "S", .help = "seconds without a byte that end a connection; 60"},
        {.name = "--drain-timeout", .kind = CLI_KIND_COUNT, .value = &c.settings.drain_timeout_s, .low = 0, .high = 86400,
         .metavar = "S", .help = "seconds that running requests have when the server is told to end; 30"},
    };
    const struct cli_group groups[] = {
        {"Server", own, sizeof own / sizeof own[0]},
        {"Limits", limits, sizeof limits / sizeof limits[0]},
        {"Engine", c.engine.table, c.engine.n_table},
    };
    const struct cli_syntax syntax = {
        .command = "serve",
        .usage = "[-m DIR] [options]",
        .about = "Answers OpenAI-style requests over HTTP, many at once, and shows a chat page at /. See docs/server.md.\n"
                 "SIGTERM lets running requests end, a second one does not.",
        .groups = groups,
        .n_groups = 3,
    };
    if (!serve_config_apply(config, argc, argv, &syntax, &code) || !cli_parse(&syntax, argc, argv, &code))
        return code;
    code = check_texts(&c.settings);
    return code == CLI_OK ? run(&c) : code;
}

int cmd_serve(int argc, char **argv)
{
    struct serve_config config = {0};
    const int           code = serve_command(argc, argv, &config);
    serve_config_free(&config);
    return code;
}
