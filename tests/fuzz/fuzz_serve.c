/* A request's body through the server's handlers, and tokens through the choices that follow: no sockets, no engine.
 * Two letters of options, the body up to a zero byte, and what the model is to say. The engine's place is taken by
 * functions of this file, which hold the handlers to nibble.h's words about requests, and draw the wanted tokens
 * wherever the request allows them. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "fuzz.h"
#include "server/serve_generate.h"

enum { N_REQUESTS_MAX = 20, N_TOKENS_MAX = 96, CONTEXT = 4096 };

/* The first letter. */
enum { ROUTE = 3, CANCELS = 4, FAILS = 8 };
/* The second: the reply is ids, two bytes each; control tokens in messages count; the older release's rules; the small
 * endpoints, for which the body is what follows the path. */
enum { AS_IDS = 1, ALLOWS_CONTROL = 2, PREVIEW = 4, SMALL = 8 };

struct nib_request {
    struct nib_request_args args;
    int32_t                 allowed[N_TOOLS_MAX], n_allowed, n_drawn;
    bool                    cancelled, ended;
};

static struct nib_model     *g_model;
static struct nib_tokenizer *g_tokenizer;
static struct nib_request    g_request[N_REQUESTS_MAX];
static int                   g_n_requests, g_n_ended;
static enum nib_status       g_submit_status;
static bool                  g_exchange_ended;

/* ---- In the place of connections ---- */

const unsigned char serve_page_html[] = "{}";
const size_t        serve_page_html_bytes = 2;

void cli_note(const char *fmt, ...)
{
    (void)fmt;
}

double serve_now(void)
{
    static double seconds;
    return seconds += 0.001;
}

/* The same in every run, so that what a run finds can be repeated. */
void serve_random(void *out, size_t n)
{
    memset(out, 7, n);
}

void exchange_answer(struct exchange *x, json_t *object)
{
    FUZZ_CHECK(object && !x->text && !x->error.status);
    x->text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    FUZZ_CHECK(x->text != NULL);
    x->n_text = strlen(x->text);
}

void exchange_tell(struct exchange *x)
{
    FUZZ_CHECK(!g_exchange_ended && x);
}

void exchange_watch(struct exchange *x)
{
    FUZZ_CHECK(x->generation != NULL);
    x->watched = true;
}

void exchange_unref(struct exchange *x)
{
    if (atomic_fetch_sub(&x->n_refs, 1) == 1)
        g_exchange_ended = true;
}

/* ---- In the place of the engine ---- */

static void check_ids(const int32_t *id, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        FUZZ_CHECK(id[i] >= 0 && id[i] < nib_model_get_info(g_model)->vocab);
}

static void take_allowed(struct nib_request *r, const int32_t *id, int32_t n)
{
    FUZZ_CHECK(n >= 0 && n <= N_TOOLS_MAX);
    check_ids(id, n);
    if (n > 0)
        memcpy(r->allowed, id, (size_t)n * sizeof *id);
    r->n_allowed = n;
}

enum nib_status nib_server_submit(struct nib_server *s, const struct nib_request_args *a, struct nib_request **out, struct nib_error *err)
{
    const struct nib_sampling *p = &a->sampling;
    (void)s;
    FUZZ_CHECK(a->n_prompt >= 0 && a->n_prompt < CONTEXT && a->n_max >= 0 && a->n_min >= 0 && a->n_top >= 0 &&
               a->n_top <= 20);
    check_ids(a->prompt, a->n_prompt);
    check_ids(a->stop_id, a->n_stop);
    for (int32_t i = 0; i < a->n_bias; i++) {
        check_ids(&a->bias[i].id, 1);
        FUZZ_CHECK(!isnan(a->bias[i].bias) && a->bias[i].bias <= 100);
    }
    FUZZ_CHECK(p->temperature >= 0 && p->temperature <= 2 && p->top_p > 0 && p->top_p <= 1 && p->top_k >= 0);
    FUZZ_CHECK(p->min_p >= 0 && p->min_p <= 1 && p->repetition > 0 && isfinite(p->repetition) &&
               fabsf(p->presence) <= 2 && fabsf(p->frequency) <= 2);
    if (g_submit_status != NIB_OK || g_n_requests == N_REQUESTS_MAX) {
        err->status = g_submit_status != NIB_OK ? g_submit_status : NIB_E_LIMIT;
        (void)strcpy(err->text, "no room");
        return err->status;
    }
    if (a->n_prompt == 0) {
        err->status = NIB_E_ARGUMENT;
        (void)strcpy(err->text, "the prompt is empty");
        return err->status;
    }
    struct nib_request *r = &g_request[g_n_requests++];
    *r = (struct nib_request){.args = *a};
    take_allowed(r, a->allowed, a->n_allowed);
    *out = r;
    return NIB_OK;
}

void nib_request_cancel(struct nib_request *r)
{
    r->cancelled = true;
}

void nib_request_close(struct nib_request *r)
{
    FUZZ_CHECK(!r || r->ended);
}

void nib_server_get_stats(struct nib_server *s, struct nib_server_stats *out)
{
    (void)s;
    memset(out, 0, sizeof *out);
}

static bool is_stop(const struct nib_request *r, int32_t id)
{
    for (int32_t i = 0; i < r->args.n_stop; i++)
        if (r->args.stop_id[i] == id)
            return true;
    return false;
}

static bool is_banned(const struct nib_request *r, int32_t id)
{
    for (int32_t i = 0; i < r->args.n_bias; i++)
        if (r->args.bias[i].id == id && isinf(r->args.bias[i].bias))
            return true;
    return is_stop(r, id) && r->n_drawn < r->args.n_min;
}

/* The wanted one, or the next that the request lets through. */
static int32_t draw(const struct nib_request *r, int32_t wanted)
{
    const int32_t vocab = nib_model_get_info(g_model)->vocab;
    if (r->n_allowed > 0)
        return r->allowed[wanted % r->n_allowed];
    for (int32_t k = 0; k < 64 && is_banned(r, wanted); k++)
        wanted = (wanted + 1) % vocab;
    return wanted;
}

static void end(struct nib_request *r, enum nib_status status, enum nib_stop_reason reason)
{
    struct nib_request_result result = {.status = status, .reason = reason, .n_prompt = r->args.n_prompt, .n_generated = r->n_drawn,
                                        .queue_s = 0.1, .first_token_s = 0.2, .total_s = 0.3};
    r->ended = true;
    g_n_ended++;
    r->args.on_end(r->args.user, &result);
}

static void step(struct nib_request *r, int32_t wanted)
{
    int32_t         top_id[20];
    float           top_logprob[20];
    struct nib_next next = {0};
    const int32_t   vocab = nib_model_get_info(g_model)->vocab;

    if (r->cancelled) {
        end(r, NIB_E_CANCELLED, NIB_STOP_LENGTH);
        return;
    }
    const int32_t id = draw(r, wanted);
    for (int32_t i = 0; i < r->args.n_top; i++) {
        top_id[i] = (id + i) % vocab;
        top_logprob[i] = -0.5f - (float)i;
    }
    const struct nib_drawn_token t = {.id = id, .index = r->n_drawn++, .logprob = -0.5f, .n_top = r->args.n_top, .top_id = top_id,
                                      .top_logprob = top_logprob};
    r->args.on_token(r->args.user, &t, &next);
    if (is_stop(r, id))
        end(r, NIB_OK, NIB_STOP_ID);
    else if (next.stop)
        end(r, NIB_OK, NIB_STOP_CALLBACK);
    else if (r->n_drawn == r->args.n_max || r->n_drawn == N_TOKENS_MAX)
        end(r, NIB_OK, NIB_STOP_LENGTH);
    else
        take_allowed(r, next.allowed, next.n_allowed);
}

/* All requests a token each in turn, the k-th from the k-th wanted one on; where the wanted ones end, the end of
 * sentence. */
static void run_requests(struct exchange *x, const struct nib_ids *wanted, uint8_t options)
{
    const int32_t eos = nib_model_get_info(g_model)->eos_id;
    for (size_t round = 0; g_n_ended < g_n_requests; round++) {
        if (round == 3 && (options & CANCELS))
            generation_cancel(x->generation);
        for (int k = 0; k < g_n_requests; k++) {
            const size_t i = round + (size_t)k;
            if (!g_request[k].ended && round == 5 && (options & FAILS))
                end(&g_request[k], NIB_E_DEVICE, NIB_STOP_LENGTH);
            else if (!g_request[k].ended)
                step(&g_request[k], i < wanted->n ? wanted->id[i] : eos);
        }
    }
}

/* ---- What came of it ---- */

static json_t *parse(const char *text, size_t n)
{
    json_t *o = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    FUZZ_CHECK(json_is_object(o));
    return o;
}

static void check_error(const struct exchange *x)
{
    char   *text = api_error_text(&x->error);
    FUZZ_CHECK(text != NULL);
    json_t *o = parse(text, strlen(text)), *e = json_object_get(o, "error");
    FUZZ_CHECK(json_string_length(json_object_get(e, "message")) > 0 && json_is_string(json_object_get(e, "type")));
    FUZZ_CHECK(json_is_string(json_object_get(e, "code")));
    const int status = x->error.status;
    FUZZ_CHECK(status == 400 || status == 404 || (status == 429 && (g_submit_status == NIB_E_LIMIT || g_n_requests == N_REQUESTS_MAX)) ||
               (status == 503 && (g_submit_status == NIB_E_STATE || !atomic_load(&x->serve->ready))) || (status == 500 && g_n_requests > 0 && g_submit_status == NIB_OK));
    json_decref(o);
    free(text);
}

static void check_usage(const json_t *usage)
{
    json_int_t n = 0;
    for (int k = 0; k < g_n_requests; k++)
        n += g_request[k].n_drawn;
    FUZZ_CHECK(json_integer_value(json_object_get(usage, "completion_tokens")) == n);
    FUZZ_CHECK(json_integer_value(json_object_get(usage, "prompt_tokens")) > 0);
}

static void check_whole(const struct exchange *x)
{
    json_t *o = parse(x->out.data, x->out.n), *choices = json_object_get(o, "choices");
    check_usage(json_object_get(o, "usage"));
    FUZZ_CHECK(json_array_size(choices) == (size_t)g_n_requests);
    for (int k = 0; k < g_n_requests; k++) {
        const json_t *c = json_array_get(choices, (size_t)k);
        FUZZ_CHECK(json_integer_value(json_object_get(c, "index")) == k);
        FUZZ_CHECK(json_is_string(json_object_get(c, "finish_reason")));
        FUZZ_CHECK(json_is_object(json_object_get(c, "message")) != json_is_string(json_object_get(c, "text")));
    }
    json_decref(o);
}

/* Each choice ends once and says nothing behind its end; the stream ends in [DONE]. Every event is spelled as the JSON
 * library spells it, also those that are written without it. */
static void check_stream(const struct exchange *x, bool failed)
{
    bool        ended[N_REQUESTS_MAX] = {0}, done = false;
    int         n_ended = 0;
    const char *last = x->out.data + x->out.n;
    for (const char *s = x->out.data; s < last;) {
        const char *close = strstr(s, "\n\n");
        FUZZ_CHECK(close && !done && strncmp(s, "data: ", 6) == 0);
        done = strncmp(s + 6, "[DONE]", 6) == 0;
        if (!done) {
            json_t       *o = parse(s + 6, (size_t)(close - s - 6));
            char         *again = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
            FUZZ_CHECK(again && strlen(again) == (size_t)(close - s - 6) && memcmp(again, s + 6, strlen(again)) == 0);
            free(again);
            const json_t *c = json_array_get(json_object_get(o, "choices"), 0);
            const size_t  k = (size_t)json_integer_value(json_object_get(c, "index"));
            FUZZ_CHECK(!c || (k < (size_t)g_n_requests && !ended[k]));
            if (json_is_string(json_object_get(c, "finish_reason"))) {
                ended[k] = true;
                n_ended++;
            }
            if (json_is_object(json_object_get(o, "usage")))
                check_usage(json_object_get(o, "usage"));
            json_decref(o);
        }
        s = close + 2;
    }
    FUZZ_CHECK(done && (failed || n_ended == g_n_requests));
}

static void check_answer(const struct exchange *x, uint8_t options)
{
    bool cut_off = (options & FAILS) != 0;
    for (int k = 0; k < g_n_requests; k++)
        cut_off |= g_request[k].cancelled;
    if (!x->generation) {
        FUZZ_CHECK(!x->error.status != !x->text);
        if (x->error.status)
            check_error(x);
        else if (x->content_type[0] == 'a') /* application/json */
            json_decref(parse(x->text, x->n_text));
        return;
    }
    FUZZ_CHECK(x->finished && !x->out.failed);
    if (x->error.status)
        check_error(x);
    if (x->streams)
        check_stream(x, cut_off);
    else if (!x->error.status)
        check_whole(x);
}

/* ---- The target ---- */

static void open_model(struct serve *s)
{
    struct nib_error err = {0};
    s->dir = NIB_SOURCE_DIR "/models/tiny-v4";
    FUZZ_CHECK(nib_model_open(s->dir, &g_model, &err) == NIB_OK);
    FUZZ_CHECK(nib_tokenizer_open(NIB_SOURCE_DIR "/models/tiny-v4", &g_tokenizer, &err) == NIB_OK);
    s->info = nib_model_get_info(g_model);
    s->tokenizer = g_tokenizer;
    s->name = "tiny-v4";
    s->n_ctx = CONTEXT;
    s->dsml_id = nib_tokenizer_find(g_tokenizer, "｜DSML｜");
    s->think_end_id = nib_tokenizer_find(g_tokenizer, "</think>");
    metrics_init(&s->metrics);
    s->replay = malloc(sizeof *s->replay);
    FUZZ_CHECK(s->replay != NULL && s->dsml_id >= 0 && s->think_end_id >= 0);
    replay_init(s->replay);
}

static void read_wanted(const char *text, size_t n, bool as_ids, struct nib_ids *out)
{
    struct nib_error err;
    if (!as_ids) {
        FUZZ_CHECK(nib_tokenizer_encode(g_tokenizer, text, n, NULL, 0, out, &err) == NIB_OK);
        return;
    }
    out->id = malloc((n / 2 + 1) * sizeof *out->id);
    FUZZ_CHECK(out->id != NULL);
    for (size_t i = 0; i + 1 < n; i += 2)
        out->id[out->n++] = ((unsigned char)text[i] * 256 + (unsigned char)text[i + 1]) % nib_model_get_info(g_model)->vocab;
}

static void exchange_free(struct exchange *x)
{
    exchange_unref(x);
    FUZZ_CHECK(g_exchange_ended);
    generation_free(x->generation);
    buffer_free(&x->body);
    buffer_free(&x->out);
    free(x->text);
    (void)pthread_mutex_destroy(&x->lock);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static route_fn *const       routes[2][4] = {{serve_chat, serve_completions, serve_tokenize, serve_detokenize},
                                                 {serve_models, serve_health, serve_metrics, serve_page}};
    static const enum nib_status refusals[] = {NIB_OK, NIB_E_LIMIT, NIB_E_STATE};
    static struct serve_settings settings = {.log_level = 1, .default_effort = NIB_EFFORT_HIGH};
    static struct serve          s = {.settings = &settings};
    size_t                       n_body, n_reply;

    if (n < 2)
        return 0;
    if (!g_model)
        open_model(&s);
    const uint8_t first = data[0], second = data[1];
    data += 2;
    n -= 2;
    settings.allow_control_tokens = second & ALLOWS_CONTROL;
    s.profile = second & PREVIEW ? NIB_CHAT_PREVIEW : NIB_CHAT_GA;
    /* Both at once: no request gets in. */
    g_submit_status = (first & CANCELS) && (first & FAILS) ? refusals[1 + second % 2] : NIB_OK;
    g_n_requests = g_n_ended = 0;
    g_exchange_ended = false;

    struct exchange x = {.serve = &s, .content_type = "application/json"};
    struct nib_ids  wanted = {0};
    char           *body = fuzz_part(&data, &n, &n_body), *reply = fuzz_part(&data, &n, &n_reply);
    atomic_init(&x.n_refs, 1);
    (void)pthread_mutex_init(&x.lock, NULL);
    read_wanted(reply, n_reply, second & AS_IDS, &wanted);
    buffer_add(&x.body, body, n_body);
    buffer_add(&x.body, "", 0);
    atomic_store(&s.ready, !(second & PREVIEW));
    routes[(second & SMALL) != 0][first & ROUTE](&x);
    buffer_free(&x.body);
    run_requests(&x, &wanted, first);
    check_answer(&x, first);
    generation_log(&x, x.error.status ? (unsigned)x.error.status : 200);
    exchange_free(&x);
    nib_ids_free(&wanted);
    free(body);
    free(reply);
    return 0;
}
