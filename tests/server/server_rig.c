/* Starting, stopping, talking. */
#include "server_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

static int free_port(void)
{
    struct sockaddr_in a = loopback(0);
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    (void)close(fd);
    return ntohs(a.sin_port);
}

void rig_nap(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

struct rig rig_start(const char *program, const char *const *arguments)
{
    struct rig r = {.port = free_port()};
    char port[16];
    const char *argv[32] = {program, "serve", "--port", port, "--threads", "1"};
    int n = 6;
    (void)snprintf(port, sizeof port, "%d", r.port);
    while (arguments && *arguments)
        argv[n++] = *arguments++;
    r.pid = fork();
    if (r.pid == 0) {
        /* A server that outlived its test would hold ctest's pipe open until the time limit. */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execv(program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    for (int i = 0; i < 600; i++) {
        rig_nap(100);
        if (waitpid(r.pid, NULL, WNOHANG) != 0)
            fail_msg("the server ended before it was ready");
        struct sockaddr_in a = loopback(r.port);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        const bool up = connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
        (void)close(fd);
        if (!up)
            continue;
        struct reply reply = rig_request(&r, "GET", "/health", "", NULL);
        const int status = reply.status;
        reply_free(&reply);
        if (status == 200)
            return r;
        assert_int_equal(status, 503);
    }
    fail_msg("the server was not ready after a minute");
    return r;
}

int rig_stop(struct rig *r)
{
    int status = 0;
    (void)kill(r->pid, SIGTERM);
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int rig_connect(const struct rig *r)
{
    struct sockaddr_in a = loopback(r->port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        fail_msg("cannot connect");
    return fd;
}

void rig_send(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);
        if (k <= 0)
            return; /* refused in mid-request: the reply tells */
        bytes += k;
        n -= (size_t)k;
    }
}

void reply_free(struct reply *r)
{
    free(r->headers);
    free(r->body);
    memset(r, 0, sizeof *r);
}

/* ---- Reading ---- */

/* Much longer than any answer takes: one of a loaded server under a sanitizer takes minutes. */
enum { READ_MS_MAX = 400000 };

/* What has come and was not used yet. One byte at a time keeps pipelined replies apart. */
static bool read_bytes(int fd, char *to, size_t n)
{
    while (n > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, READ_MS_MAX) <= 0)
            return false;
        ssize_t k = recv(fd, to, n, 0);
        if (k <= 0)
            return false;
        to += k;
        n -= (size_t)k;
    }
    return true;
}

static bool read_line(int fd, char *to, size_t size)
{
    size_t n = 0;
    while (n + 1 < size && read_bytes(fd, to + n, 1))
        if (to[n++] == '\n') {
            to[n] = '\0';
            return true;
        }
    return false;
}

static void grow(struct reply *r, const char *bytes, size_t n)
{
    r->body = realloc(r->body, r->n_body + n + 1);
    assert_non_null(r->body);
    if (n > 0)
        memcpy(r->body + r->n_body, bytes, n);
    r->n_body += n;
    r->body[r->n_body] = '\0';
}

static bool read_part(int fd, struct reply *r, size_t n)
{
    char *part = malloc(n + 1);
    assert_non_null(part);
    const bool ok = read_bytes(fd, part, n);
    if (ok)
        grow(r, part, n);
    free(part);
    return ok;
}

static bool read_chunks(int fd, struct reply *r)
{
    char line[64];
    for (;;) {
        if (!read_line(fd, line, sizeof line))
            return false;
        const size_t n = strtoul(line, NULL, 16);
        if ((n > 0 && !read_part(fd, r, n)) || !read_line(fd, line, sizeof line))
            return false;
        if (n == 0)
            return true;
    }
}

bool rig_read(int fd, struct reply *r)
{
    char line[8192];
    size_t n_headers = 0, length = 0;
    bool chunked = false;

    memset(r, 0, sizeof *r);
    grow(r, "", 0);
    if (!read_line(fd, line, sizeof line) || sscanf(line, "HTTP/1.1 %d", &r->status) != 1)
        return false;
    while (read_line(fd, line, sizeof line) && strcmp(line, "\r\n") != 0) {
        const size_t n = strlen(line);
        r->headers = realloc(r->headers, n_headers + n + 1);
        assert_non_null(r->headers);
        memcpy(r->headers + n_headers, line, n + 1);
        n_headers += n;
        if (strncasecmp(line, "Content-Length:", 15) == 0)
            length = strtoul(line + 15, NULL, 10);
        chunked |= strncasecmp(line, "Transfer-Encoding: chunked", 26) == 0;
    }
    if (r->status == 100) {
        reply_free(r);
        return rig_read(fd, r);
    }
    return chunked ? read_chunks(fd, r) : length == 0 || read_part(fd, r, length);
}

struct reply rig_request(const struct rig *r, const char *method, const char *path, const char *extra, const char *body)
{
    struct reply reply;
    char head[4096];
    int fd = rig_connect(r);
    const size_t n_body = body ? strlen(body) : 0;
    int n = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n", method, path, extra, n_body);
    rig_send(fd, head, (size_t)n);
    rig_send(fd, body ? body : "", n_body);
    if (!rig_read(fd, &reply))
        fail_msg("%s %s: no whole reply (status %d)", method, path, reply.status);
    (void)close(fd);
    return reply;
}

json_t *rig_post(const struct rig *r, const char *path, const char *body, int status)
{
    struct reply reply = rig_request(r, "POST", path, "", body);
    if (reply.status != status)
        fail_msg("POST %s %.300s: status %d, wanted %d: %s", path, body, reply.status, status, reply.body);
    json_t *v = json_loadb(reply.body, reply.n_body, JSON_ALLOW_NUL, NULL);
    if (!v)
        fail_msg("POST %s: not JSON: %s", path, reply.body);
    reply_free(&reply);
    return v;
}

json_t *at(json_t *v, const char *path)
{
    char key[64];
    while (v && *path) {
        const size_t n = strcspn(path, ".");
        (void)snprintf(key, sizeof key, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, strtoul(key, NULL, 10)) : json_object_get(v, key);
        path += n + (path[n] == '.');
    }
    return v;
}

const char *text_at(json_t *v, const char *path)
{
    const char *s = json_string_value(at(v, path));
    return s ? s : "";
}

double rig_metric(const struct rig *r, const char *name)
{
    struct reply reply = rig_request(r, "GET", "/metrics", "", NULL);
    assert_int_equal(reply.status, 200);
    double value = -1;
    for (char *line = strtok(reply.body, "\n"); line; line = strtok(NULL, "\n"))
        if (strncmp(line, name, strlen(name)) == 0)
            value = strtod(strrchr(line, ' '), NULL);
    reply_free(&reply);
    return value;
}

int rig_begin(const struct rig *r, const char *path, const char *body)
{
    char head[256];
    int fd = rig_connect(r);
    (void)snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", path, strlen(body));
    rig_send(fd, head, strlen(head));
    rig_send(fd, body, strlen(body));
    return fd;
}

void rig_wait_metric(const struct rig *r, const char *name, double low, double high)
{
    double value = rig_metric(r, name);
    for (int i = 0; i < 3000 && !(value >= low && value <= high); i++) {
        rig_nap(20);
        value = rig_metric(r, name);
    }
    if (!(value >= low && value <= high))
        fail_msg("%s is %g, wanted %g to %g", name, value, low, high);
}

void rig_check_alive(const struct rig *r)
{
    json_t *v = rig_post(r, CHAT, "{" PLAIN "}", 200);
    assert_string_equal(text_at(v, "choices.0.message.content"), ANSWER);
    json_decref(v);
}
