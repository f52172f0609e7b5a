/* Exchanges: one HTTP request each, from its headers to the end of its answer; and the watch over those that wait.
 *
 * A connection whose answer is not there yet is suspended, and libmicrohttpd does not look at its socket then. The
 * watch thread does: where the client has left, its requests are cancelled, and what follows wakes the connection,
 * which then fails by itself. */
#define _GNU_SOURCE /* POLLRDHUP */
#include "serve.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

#include "../cli.h"
#include "serve_generate.h"

enum {
    KEEP_ALIVE_S = 10, /* a stream says nothing for that long: a comment */
    THROUGHPUT_S = 10,
    SEND_BYTES = 128 * 1024,
    DEAD_S = 60,       /* a peer that confirms nothing for that long is gone */
    WATCH_MS = 20
};

double serve_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void serve_random(void *out, size_t n)
{
    /* It fails only on kernels without the call. Ids then come from the clock: still different, but no longer a
     * secret. */
    if (getentropy(out, n) == 0)
        return;
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    uint64_t state = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ((unsigned char *)out)[i] = (unsigned char)(state >> 56);
    }
}

static void set_request_id(struct exchange *x)
{
    const char *given = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "X-Request-Id");
    size_t      n = 0;
    uint64_t    random = 0;

    for (; given && given[n] > 0x20 && given[n] < 0x7f; n++)
        continue;
    if (given && n > 0 && n < sizeof x->id && !given[n]) {
        memcpy(x->id, given, n + 1);
        return;
    }
    serve_random(&random, sizeof random);
    (void)snprintf(x->id, sizeof x->id, "req-%016llx", (unsigned long long)random);
}

static void set_client(struct exchange *x)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr          *a = info ? info->client_addr : NULL;
    const void *ip = !a                         ? NULL
                     : a->sa_family == AF_INET  ? (const void *)&((const struct sockaddr_in *)(const void *)a)->sin_addr
                     : a->sa_family == AF_INET6 ? (const void *)&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr
                                                : NULL;
    if (!ip || !inet_ntop(a->sa_family, ip, x->client, sizeof x->client))
        (void)snprintf(x->client, sizeof x->client, "-");
}

struct exchange *exchange_new(struct serve *s, struct MHD_Connection *connection)
{
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->serve = s;
    x->connection = connection;
    x->start = serve_now();
    x->content_type = "application/json";
    atomic_init(&x->n_refs, 1);
    (void)pthread_mutex_init(&x->lock, NULL);
    set_request_id(x);
    set_client(x);
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    x->socket = info ? info->connect_fd : -1;
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    x->link = info ? info->socket_context : NULL;
    exchange_set_limit(x, x->start + s->settings->receive_timeout_s);
    (void)atomic_fetch_add(&s->n_exchanges, 1);
    return x;
}

void exchange_unref(struct exchange *x)
{
    if (atomic_fetch_sub(&x->n_refs, 1) != 1)
        return;
    generation_free(x->generation);
    buffer_free(&x->body);
    buffer_free(&x->out);
    free(x->text);
    (void)pthread_mutex_destroy(&x->lock);
    (void)atomic_fetch_sub(&x->serve->n_exchanges, 1);
    free(x);
}

void exchange_answer(struct exchange *x, json_t *object)
{
    x->text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!x->text) {
        (void)api_fail(&x->error, NULL, "internal_error", "memory is used up");
        x->error.status = 500;
        x->error.type = "server_error";
        return;
    }
    x->n_text = strlen(x->text);
}

void exchange_wake(struct exchange *x)
{
    const bool has_news = x->finished || x->out.failed || (x->streams && x->out.n > 0);
    if (!x->suspended || !has_news)
        return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

void exchange_tell(struct exchange *x)
{
    if (x->is_told)
        return;
    x->is_told = true;
    (void)atomic_fetch_add(&x->n_refs, 1);
    x->next_told = x->serve->told;
    x->serve->told = x;
}

/* All of a step's together: a thread woken by the first token would want the processor, and the locks, that the others'
 * still need. */
void exchange_wake_told(void *serve)
{
    struct serve *s = serve;
    for (struct exchange *x; (x = s->told);) {
        s->told = x->next_told;
        x->is_told = false;
        (void)pthread_mutex_lock(&x->lock);
        exchange_wake(x);
        (void)pthread_mutex_unlock(&x->lock);
        exchange_unref(x);
    }
}

void exchange_watch(struct exchange *x)
{
    struct serve *s = x->serve;
    (void)pthread_mutex_lock(&s->lock);
    x->watched = true;
    x->previous = NULL;
    x->next = s->exchanges;
    if (x->next)
        x->next->previous = x;
    s->exchanges = x;
    (void)pthread_mutex_unlock(&s->lock);
}

void exchange_unwatch(struct exchange *x)
{
    struct serve *s = x->serve;
    (void)pthread_mutex_lock(&s->lock);
    if (x->watched) {
        if (x->previous)
            x->previous->next = x->next;
        else
            s->exchanges = x->next;
        if (x->next)
            x->next->previous = x->previous;
        x->watched = false;
    }
    (void)pthread_mutex_unlock(&s->lock);
}

/* ---- Connections ---- */

void exchange_set_limit(struct exchange *x, double time)
{
    struct serve *s = x->serve;
    if (!x->link)
        return;
    (void)pthread_mutex_lock(&s->lock);
    x->link->limit = time;
    (void)pthread_mutex_unlock(&s->lock);
}

/* A peer that is gone without a word is noticed while nothing is sent, and while what was sent is not confirmed. */
static void set_up_socket(int socket)
{
    const int on = 1, idle_s = DEAD_S / 2, interval_s = DEAD_S / 6, n = 3;
    const unsigned unconfirmed_ms = DEAD_S * 1000u;
    /* What the kernel holds of a stream that is not read: without this it grows to megabytes. */
    const int send_bytes = SEND_BYTES;
    (void)setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    (void)setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &n, sizeof n);
    (void)setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unconfirmed_ms, sizeof unconfirmed_ms);
}

static void link_open(struct serve *s, struct MHD_Connection *c, void **context)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct link *l = info ? calloc(1, sizeof *l) : NULL;
    *context = l;
    if (!l)
        return;
    l->socket = info->connect_fd;
    set_up_socket(l->socket);
    /* One without a byte is libmicrohttpd's to end; later than that, bytes come, but no request. */
    l->limit = serve_now() + s->settings->idle_timeout_s + s->settings->receive_timeout_s;
    (void)pthread_mutex_lock(&s->lock);
    l->next = s->links;
    if (l->next)
        l->next->previous = l;
    s->links = l;
    (void)pthread_mutex_unlock(&s->lock);
}

static void link_close(struct serve *s, struct link *l)
{
    (void)pthread_mutex_lock(&s->lock);
    if (l->previous)
        l->previous->next = l->next;
    else
        s->links = l->next;
    if (l->next)
        l->next->previous = l->previous;
    (void)pthread_mutex_unlock(&s->lock);
    free(l);
}

void link_changed(void *user, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        link_open(user, c, context);
    else if (*context)
        link_close(user, *context);
}

/* ---- The watch ---- */

/* Something for a quiet stream, and an end for one that is not read. */
static void keep_alive(struct exchange *x, double time)
{
    (void)pthread_mutex_lock(&x->lock);
    if (x->streams && !x->finished && time - x->last_out > KEEP_ALIVE_S) {
        buffer_text(&x->out, ": keep-alive\n\n");
        x->last_out = time;
        exchange_wake(x);
    }
    const bool too_much = x->out.n > (size_t)x->serve->settings->max_unsent_mb << 20;
    (void)pthread_mutex_unlock(&x->lock);
    if (!too_much)
        return;
    generation_cancel(x->generation);
    (void)shutdown(x->socket, SHUT_RDWR);
}

/* A request that does not arrive. libmicrohttpd takes no answer in the middle of one, so it is put on the socket
 * here. */
static void drop_slow_links(struct serve *s, double time)
{
    static const char answer[] =
        "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 127\r\n\r\n"
        "{\"error\":{\"message\":\"the request did not arrive in time\",\"type\":\"timeout_error\",\"param\":null,"
        "\"code\":\"request_not_received\"}}\n  ";
    for (struct link *l = s->links; l; l = l->next) {
        if (time <= l->limit)
            continue;
        l->limit = INFINITY;
        (void)send(l->socket, answer, sizeof answer - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)shutdown(l->socket, SHUT_RDWR);
        metrics_http(&s->metrics, "other", "any", 408, s->settings->receive_timeout_s);
    }
}

/* The list is locked: an exchange in it cannot end, and its socket is still its own. */
static void look_around(struct serve *s, struct pollfd *fds, struct exchange **who)
{
    const double time = serve_now();
    nfds_t       n = 0;

    drop_slow_links(s, time);
    for (struct exchange *x = s->exchanges; x && n < N_CONNECTIONS_MAX; x = x->next) {
        keep_alive(x, time);
        fds[n] = (struct pollfd){.fd = x->socket, .events = POLLRDHUP};
        who[n++] = x;
    }
    if (n == 0 || poll(fds, n, 0) <= 0)
        return;
    for (nfds_t i = 0; i < n; i++)
        if (fds[i].revents)
            generation_cancel(who[i]->generation);
}

/* A line while there is something to do: what the last seconds brought. */
static void log_throughput(struct serve *s, double time)
{
    struct nib_server_stats n;
    struct throughput *const last = &s->throughput;
    if (s->settings->log_level == 0 || !atomic_load(&s->ready) || time - last->time < THROUGHPUT_S)
        return;
    nib_server_get_stats(s->engine, &n);
    const uint64_t prompt = n.n_prompt_tokens - last->n_prompt, generated = n.n_generated_tokens - last->n_generated;
    const uint64_t queries = n.n_prefix_queries - last->n_queries, hits = n.n_prefix_hits - last->n_hits;
    const double seconds = time - last->time;
    if (last->time > 0 && (prompt > 0 || generated > 0))
        cli_note("prompts %.1f tokens/s, generated %.1f tokens/s, %d running, %d waiting, KV pages %.0f%% used, %.0f%% of prompts found kept",
                 (double)prompt / seconds, (double)generated / seconds, (int)n.n_running, (int)n.n_waiting,
                 n.n_pages ? 100.0 * n.n_pages_used / n.n_pages : 0.0, queries ? 100.0 * (double)hits / (double)queries : 0.0);
    *last = (struct throughput){time, n.n_prompt_tokens, n.n_generated_tokens, n.n_prefix_queries, n.n_prefix_hits};
}

static void *watch(void *user)
{
    struct serve     *s = user;
    struct pollfd    *fds = calloc(N_CONNECTIONS_MAX, sizeof *fds);
    struct exchange **who = calloc(N_CONNECTIONS_MAX, sizeof *who);

    while (!atomic_load(&s->watch_ends) && fds && who) {
        (void)pthread_mutex_lock(&s->lock);
        look_around(s, fds, who);
        (void)pthread_mutex_unlock(&s->lock);
        log_throughput(s, serve_now());
        (void)nanosleep(&(struct timespec){.tv_nsec = WATCH_MS * 1000000L}, NULL);
    }
    free(fds);
    free(who);
    return NULL;
}

bool watch_start(struct serve *s)
{
    return pthread_create(&s->watch, NULL, watch, s) == 0;
}

void watch_stop(struct serve *s)
{
    atomic_store(&s->watch_ends, true);
    (void)pthread_join(s->watch, NULL);
}
