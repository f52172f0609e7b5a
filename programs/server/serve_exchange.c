/* Exchanges: one HTTP request each, from its headers to the end of its answer; and the watch over those that wait.
 *
 * A connection whose answer is not there yet is suspended, and libmicrohttpd does not look at its socket then. The watch
 * thread does: where the client has left, its requests are cancelled, and what follows wakes the connection, which then
 * fails by itself. */
#define _GNU_SOURCE /* POLLRDHUP */
#include "serve.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "serve_generate.h"

enum {
    KEEP_ALIVE_S = 10,      /* a stream says nothing for that long: a comment */
    WATCH_MS = 20,
    OUT_BYTES_MAX = 8 << 20 /* of a stream whose client does not read */
};

double serve_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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
    (void)getentropy(&random, sizeof random);
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
    if (!x->suspended)
        return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
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
    const bool too_much = x->out.n > OUT_BYTES_MAX;
    (void)pthread_mutex_unlock(&x->lock);
    if (too_much)
        generation_cancel(x->generation);
}

/* The list is locked: an exchange in it cannot end, and its socket is still its own. */
static void look_around(struct serve *s, struct pollfd *fds, struct exchange **who)
{
    const double time = serve_now();
    nfds_t       n = 0;

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

static void *watch(void *user)
{
    struct serve     *s = user;
    struct pollfd    *fds = calloc(N_CONNECTIONS_MAX, sizeof *fds);
    struct exchange **who = calloc(N_CONNECTIONS_MAX, sizeof *who);

    while (!atomic_load(&s->watch_ends) && fds && who) {
        (void)pthread_mutex_lock(&s->lock);
        look_around(s, fds, who);
        (void)pthread_mutex_unlock(&s->lock);
        (void)nanosleep(&(struct timespec){.tv_nsec = WATCH_MS * 1000000L}, NULL);
    }
    free(fds);
    free(who);
    return NULL;
}

bool watch_start(struct serve *s)
{
    (void)pthread_mutex_init(&s->lock, NULL);
    return pthread_create(&s->watch, NULL, watch, s) == 0;
}

void watch_stop(struct serve *s)
{
    atomic_store(&s->watch_ends, true);
    (void)pthread_join(s->watch, NULL);
}
