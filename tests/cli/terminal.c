/* forkpty and polling, with one generous limit for everything. */
#define _GNU_SOURCE
#include "terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

/* A busy machine under sanitizers is a hundred times slower than an idle one. */
enum { LIMIT_S = 300 };

static time_t now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

void terminal_start(struct terminal *t, const char *const *argv, const char *terminal_type, bool no_color,
                    int n_columns)
{
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)n_columns};

    *t = (struct terminal){.fd = -1};
    t->pid = forkpty(&t->fd, NULL, NULL, &size);
    assert_true(t->pid >= 0);
    if (t->pid == 0) {
        (void)setenv("TERM", terminal_type, 1);
        if (no_color)
            (void)setenv("NO_COLOR", "1", 1);
        else
            (void)unsetenv("NO_COLOR");
        (void)execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    assert_int_equal(fcntl(t->fd, F_SETFL, O_NONBLOCK), 0);
    t->seen = calloc(1, 1);
    assert_non_null(t->seen);
}

/* Take what is there. */
static void take(struct terminal *t)
{
    char    bytes[4096];
    ssize_t n;

    while ((n = read(t->fd, bytes, sizeof bytes)) > 0) {
        t->seen = realloc(t->seen, t->n + (size_t)n + 1);
        assert_non_null(t->seen);
        memcpy(t->seen + t->n, bytes, (size_t)n);
        t->n += (size_t)n;
        t->seen[t->n] = '\0';
    }
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        t->ended = true;
}

static void give_up(struct terminal *t, const char *why, const char *text)
{
    (void)fprintf(stderr, "%s '%s'; the screen since then:\n", why, text);
    for (size_t i = t->mark; i < t->n; i++) {
        const unsigned char c = (unsigned char)t->seen[i];
        (void)fprintf(stderr, c == 0x1b ? "\\e" : c < 0x20 && c != '\n' ? "\\x%02x" : "%c", c);
    }
    (void)fputc('\n', stderr);
    (void)kill(t->pid, SIGKILL);
    fail();
}

static void wait_for(struct terminal *t, short events)
{
    struct pollfd p = {.fd = t->fd, .events = events};

    (void)poll(&p, 1, 1000);
}

void terminal_type(struct terminal *t, const char *bytes, size_t n)
{
    const time_t limit = now_s() + LIMIT_S;

    while (n > 0) {
        const ssize_t sent = write(t->fd, bytes, n);
        if (sent > 0) {
            bytes += sent;
            n -= (size_t)sent;
        } else {
            if (now_s() > limit || t->ended)
                give_up(t, "could not type", "all");
            wait_for(t, POLLIN | POLLOUT);
        }
        take(t);
    }
}

const char *terminal_wait(struct terminal *t, const char *text)
{
    const time_t limit = now_s() + LIMIT_S;

    for (;;) {
        take(t);
        char *at = memmem(t->seen + t->mark, t->n - t->mark, text, strlen(text));
        if (at) {
            static char *between;
            const size_t from = t->mark, n = (size_t)(at - t->seen) - from;
            free(between);
            between = strndup(t->seen + from, n);
            assert_non_null(between);
            t->mark = from + n + strlen(text);
            return between;
        }
        if (t->ended)
            give_up(t, "the program ended before it wrote", text);
        if (now_s() > limit)
            give_up(t, "waited too long for", text);
        wait_for(t, POLLIN);
    }
}

int terminal_end(struct terminal *t)
{
    const time_t limit = now_s() + LIMIT_S;
    int          status = 0;

    while (!t->ended) {
        take(t);
        if (now_s() > limit)
            give_up(t, "waited too long for", "the end");
        if (!t->ended)
            wait_for(t, POLLIN);
    }
    assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
    (void)close(t->fd);
    free(t->seen);
    t->seen = NULL;
    return status;
}
