/* HTTP by libmicrohttpd: routes, bodies, answers. */
#include "serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../cli.h"
#include "serve_generate.h"

enum {
    HEADER_BYTES_MAX = 64 * 1024,
    BODY_BYTES_PER_S = 16 * 1024, /* a body that comes that fast may take as long as it needs */
    N_HTTP_THREADS = 4
};

static const struct route routes[] = {
    {"", "GET", serve_page, true, false, true},
    {"/health", "GET", serve_health, true, false, true},
    {"/v1/health", "GET", serve_health, true, false, true},
    {"/ping", "GET", serve_health, true, false, true},
    {"/ping", "POST", serve_health, true, false, true},
    {"/version", "GET", serve_version, true, false, true},
    {"/metrics", "GET", serve_metrics, true, true, true},
    {"/v1/models", "GET", serve_models, false, false, false},
    {"/models", "GET", serve_models, false, false, false},
    {"/v1/chat/completions", "POST", serve_chat, false, true, false},
    {"/chat/completions", "POST", serve_chat, false, true, false},
    {"/beta/chat/completions", "POST", serve_chat, false, true, false},
    {"/beta/completions", "POST", serve_completions, false, true, false},
    {"/v1/completions", "POST", serve_completions, false, true, false},
    {"/completions", "POST", serve_completions, false, true, false},
    {"/tokenize", "POST", serve_tokenize, false, false, false},
    {"/detokenize", "POST", serve_detokenize, false, false, false},
};
enum { N_ROUTES = sizeof routes / sizeof routes[0] };

/* ---- Answers ---- */

static void add_headers(const struct exchange *x, struct MHD_Response *r, unsigned status)
{
    (void)MHD_add_response_header(r, "X-Request-Id", x->id);
    if (x->serve->settings->cors)
        (void)MHD_add_response_header(r, "Access-Control-Allow-Origin", x->serve->settings->cors);
    if (status == 401)
        (void)MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (status == 429 || status == 503)
        (void)MHD_add_response_header(r, "Retry-After", "1");
}

/* The page holds its style and script itself and talks to this server only; what else it might be made to load stays
 * out. */
static void add_page_headers(struct MHD_Response *r)
{
    (void)MHD_add_response_header(r, "Content-Security-Policy",
                                  "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
                                  "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    (void)MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
}

/* Names of their own for what no route knows: a client must not make new ones. */
static const char *handler_of(const struct exchange *x)
{
    return !x->route ? "other" : x->route->path[0] ? x->route->path : "/";
}

static const char *method_of(const struct exchange *x)
{
    return x->route ? x->route->method : "any";
}

static enum MHD_Result send_text(struct exchange *x, unsigned status, char *text, size_t n, const char *type)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        free(text);
        return MHD_NO;
    }
    x->answered = true;
    add_headers(x, r, status);
    (void)MHD_add_response_header(r, "Content-Type", type);
    if (strncmp(type, "text/html", 9) == 0)
        add_page_headers(r);
    if (status == 405)
        (void)MHD_add_response_header(r, "Allow", x->error.param[0] ? x->error.param : "GET, POST");
    enum MHD_Result result = MHD_queue_response(x->connection, status, r);
    MHD_destroy_response(r);
    metrics_http(&x->serve->metrics, handler_of(x), method_of(x), status, serve_now() - x->start);
    if (!x->route || !x->route->is_quiet || status >= 500)
        generation_log(x, status);
    return result;
}

static enum MHD_Result send_error(struct exchange *x)
{
    const int status = x->error.status;
    if (status == 405) {
        /* The method that is allowed travels in `param` up to here. */
        char allowed[sizeof x->error.param];
        memcpy(allowed, x->error.param, sizeof allowed);
        x->error.param[0] = '\0';
        char *text = api_error_text(&x->error);
        memcpy(x->error.param, allowed, sizeof allowed);
        return text ? send_text(x, 405, text, strlen(text), "application/json") : MHD_NO;
    }
    char *text = api_error_text(&x->error);
    return text ? send_text(x, (unsigned)status, text, strlen(text), "application/json") : MHD_NO;
}

/* libmicrohttpd asks for more of a stream. Suspended until there is some. */
static ssize_t read_stream(void *user, uint64_t position, char *to, size_t max)
{
    struct exchange *x = user;
    (void)position;
    (void)pthread_mutex_lock(&x->lock);
    ssize_t n = (ssize_t)(x->out.n < max ? x->out.n : max);
    if (n > 0) {
        memcpy(to, x->out.data, (size_t)n);
        buffer_drop_front(&x->out, (size_t)n);
    } else if (x->finished || x->out.failed) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    (void)pthread_mutex_unlock(&x->lock);
    return n;
}

static enum MHD_Result send_stream(struct exchange *x)
{
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 * 1024, read_stream, x, NULL);
    if (!r)
        return MHD_NO;
    x->answered = true;
    add_headers(x, r, 200);
    (void)MHD_add_response_header(r, "Content-Type", "text/event-stream; charset=utf-8");
    (void)MHD_add_response_header(r, "Cache-Control", "no-cache");
    (void)MHD_add_response_header(r, "X-Accel-Buffering", "no");
    enum MHD_Result result = MHD_queue_response(x->connection, 200, r);
    MHD_destroy_response(r);
    return result;
}

/* ---- Requests ---- */

static bool is_path(const char *url, const char *path)
{
    size_t n = strlen(path);
    return strncmp(url, path, n) == 0 && (!url[n] || (url[n] == '/' && !url[n + 1]));
}

static void fail(struct exchange *x, int status, const char *code, const char *message)
{
    (void)api_fail(&x->error, NULL, code, "%s", message);
    x->error.status = status;
}

static void find_route(struct exchange *x, const char *url, const char *method)
{
    const char *allowed = NULL;
    for (int i = 0; i < N_ROUTES; i++) {
        bool single_model = routes[i].run == serve_models && strncmp(url, routes[i].path, strlen(routes[i].path)) == 0 &&
                            url[strlen(routes[i].path)] == '/';
        if (!is_path(url, routes[i].path) && !single_model)
            continue;
        if (strcmp(routes[i].method, method) == 0 ||
            (strcmp(method, "HEAD") == 0 && strcmp(routes[i].method, "GET") == 0)) {
            x->route = &routes[i];
            return;
        }
        allowed = routes[i].method;
    }
    if (!allowed) {
        fail(x, 404, "not_found", "there is nothing at this path");
        return;
    }
    fail(x, 405, "method_not_allowed", "this path takes another method");
    (void)snprintf(x->error.param, sizeof x->error.param, "%s", allowed);
}

/* In a time that depends on the lengths alone. */
static bool same_key(const char *a, const char *b)
{
    const size_t  n = strlen(a), m = strlen(b);
    unsigned char differs = n != m;
    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)(a[i] ^ b[m ? i % m : 0]);
    return !differs;
}

static void check_key(struct exchange *x)
{
    const struct serve *s = x->serve;
    const char         *bearer = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Authorization");
    const char         *key = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "x-api-key");
    bool                known = false;

    if (s->n_keys == 0 || (x->route && x->route->is_public))
        return;
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        key = bearer + 7;
    for (size_t i = 0; key && i < s->n_keys; i++)
        known |= same_key(key, s->keys[i]);
    if (known)
        return;
    fail(x, 401, "invalid_api_key",
         key ? "the API key is not known here" : "an API key is needed: Authorization: Bearer KEY");
    x->error.type = "authentication_error";
}

static void check_length(struct exchange *x)
{
    const char *length = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Content-Length");
    if (!length || strtoull(length, NULL, 10) <= (unsigned long long)x->serve->settings->max_body_mb << 20)
        return;
    fail(x, 413, "request_too_large", "the body is larger than --max-body-mb allows");
}

static enum MHD_Result take_body(struct exchange *x, const char *data, size_t n)
{
    if (x->error.status)
        return MHD_YES;
    if (x->body.n + n > (size_t)x->serve->settings->max_body_mb << 20) {
        fail(x, 413, "request_too_large", "the body is larger than --max-body-mb allows");
        buffer_free(&x->body);
        return MHD_YES;
    }
    buffer_add(&x->body, data, n);
    exchange_set_limit(x, x->start + x->serve->settings->receive_timeout_s + (double)x->body.n / BODY_BYTES_PER_S);
    return MHD_YES;
}

static void dispatch(struct exchange *x)
{
    struct serve *s = x->serve;
    x->dispatched = true;
    if (x->body.failed) {
        fail(x, 500, "internal_error", "memory is used up");
        x->error.type = "server_error";
    } else if (x->route->needs_model && !atomic_load(&s->ready)) {
        fail(x, 503, "loading", "the model is still being loaded");
        x->error.type = "unavailable_error";
    } else {
        buffer_add(&x->body, "", 0);
        x->route->run(x);
    }
    buffer_free(&x->body);
}

/* Wait for a whole answer or for a stream's beginning: true if it is there. Until then a stream can still become an
 * error. */
static bool answer_is_there(struct exchange *x)
{
    (void)pthread_mutex_lock(&x->lock);
    const bool there = x->finished || (x->streams && x->out.n > 0);
    if (!there) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    x->begun = there && x->streams;
    (void)pthread_mutex_unlock(&x->lock);
    return there;
}

static enum MHD_Result send_generated(struct exchange *x)
{
    if (!answer_is_there(x))
        return MHD_YES;
    if (x->begun)
        return send_stream(x);
    exchange_unwatch(x);
    if (x->error.status)
        return send_error(x);
    char  *text = x->out.data;
    size_t n = x->out.n;
    if (!text || x->out.failed)
        return MHD_NO;
    x->out = (struct buffer){0};
    return send_text(x, 200, text, n, "application/json");
}

static enum MHD_Result send_preflight(struct exchange *x)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    const char *headers = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    if (!r)
        return MHD_NO;
    add_headers(x, r, 204);
    (void)MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    if (headers)
        (void)MHD_add_response_header(r, "Access-Control-Allow-Headers", headers);
    enum MHD_Result result = MHD_queue_response(x->connection, 204, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result handle(void *user, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *data, size_t *n_data, void **state)
{
    struct serve    *s = user;
    struct exchange *x = *state;

    (void)version;
    if (!x) {
        x = exchange_new(s, connection);
        if (!x)
            return MHD_NO;
        *state = x;
        if (s->settings->cors && strcmp(method, "OPTIONS") == 0)
            return MHD_YES;
        find_route(x, url, method);
        check_key(x);
        if (!x->error.status)
            check_length(x);
        /* Too large: said before the body is sent. */
        return x->error.status == 413 ? send_error(x) : MHD_YES;
    }
    if (*n_data > 0) {
        size_t n = *n_data;
        *n_data = 0;
        return take_body(x, data, n);
    }
    if (x->answered)
        return MHD_YES;
    if (s->settings->cors && strcmp(method, "OPTIONS") == 0)
        return send_preflight(x);
    exchange_set_limit(x, INFINITY);
    if (!x->error.status && !x->dispatched) {
        if (x->route->run == serve_models && strlen(url) > strlen(x->route->path))
            buffer_text(&x->body, url + strlen(x->route->path) + 1);
        dispatch(x);
    }
    if (x->generation)
        return send_generated(x);
    if (x->error.status)
        return send_error(x);
    char *text = x->text;
    x->text = NULL;
    return send_text(x, 200, text, x->n_text, x->content_type);
}

static void completed(void *user, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode why)
{
    struct exchange    *x = *state;
    const struct serve *s = user;
    (void)connection;
    if (!x)
        return;
    exchange_unwatch(x);
    if (x->generation) {
        if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK)
            generation_cancel(x->generation);
    }
    (void)pthread_mutex_lock(&x->lock);
    if (x->generation && x->begun) {
        metrics_http(&x->serve->metrics, handler_of(x), method_of(x), 200, serve_now() - x->start);
        generation_log(x, 200);
    }
    x->suspended = false;
    x->finished = true; /* no one reads what still comes */
    (void)pthread_mutex_unlock(&x->lock);
    exchange_set_limit(x, serve_now() + s->settings->idle_timeout_s + s->settings->receive_timeout_s);
    exchange_unref(x);
    *state = NULL;
}

/* ---- Start and stop ---- */

static bool parse_address(const struct serve_settings *o, struct sockaddr_storage *out, bool *is_v6)
{
    struct sockaddr_in  *v4 = (struct sockaddr_in *)(void *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)out;
    const char          *host = strcmp(o->host, "localhost") == 0 ? "127.0.0.1" : o->host;

    memset(out, 0, sizeof *out);
    *is_v6 = inet_pton(AF_INET6, host, &v6->sin6_addr) == 1;
    if (*is_v6) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)o->port);
        return true;
    }
    v4->sin_family = AF_INET;
    v4->sin_port = htons((uint16_t)o->port);
    return inet_pton(AF_INET, host, &v4->sin_addr) == 1;
}

int serve_http_check(const struct serve_settings *o)
{
    struct sockaddr_storage address;
    bool                    is_v6;

    return parse_address(o, &address, &is_v6)
               ? CLI_OK
               : cli_usage("--host: '%s' is not an address; wanted localhost or an IPv4 or IPv6 address", o->host);
}

bool serve_http_start(struct serve *s)
{
    struct sockaddr_storage address;
    bool                    is_v6;

    (void)parse_address(s->settings, &address, &is_v6);
    (void)pthread_mutex_init(&s->lock, NULL);
    /* MHD_OPTION_LISTENING_ADDRESS_REUSE stays unset: it would let two servers share a port, each with a part of the
     * requests. Without it a port can still be taken anew at once after a server has ended. */
    errno = 0;
    s->daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | (is_v6 ? MHD_USE_IPv6 : 0u),
                                 (uint16_t)s->settings->port, NULL, NULL, handle, s,
                                 MHD_OPTION_SOCK_ADDR, &address,
                                 MHD_OPTION_NOTIFY_COMPLETED, completed, s,
                                 MHD_OPTION_NOTIFY_CONNECTION, link_changed, s,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES_MAX,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)N_CONNECTIONS_MAX,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->settings->idle_timeout_s,
                                 MHD_OPTION_THREAD_POOL_SIZE, (unsigned)N_HTTP_THREADS, MHD_OPTION_END);
    if (!s->daemon) {
        (void)cli_fail("cannot listen on %s port %d: %s", s->settings->host, (int)s->settings->port,
                       errno ? strerror(errno) : "libmicrohttpd does not say why");
        return false;
    }
    if (!watch_start(s)) {
        MHD_stop_daemon(s->daemon);
        s->daemon = NULL;
        (void)cli_fail("cannot start a thread");
        return false;
    }
    return true;
}

void serve_http_stop(struct serve *s)
{
    watch_stop(s);
    MHD_stop_daemon(s->daemon);
    (void)pthread_mutex_destroy(&s->lock);
}
