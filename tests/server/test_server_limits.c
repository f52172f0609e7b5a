/* nibble serve's limits, and clients that leave: what is refused, with which status; that a request ends within a step
 * of its client's leaving, whatever it was doing; that nobody else notices. B41 and B78 over HTTP. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "server_rig.h"

static const char *g_program;

#define COMPLETIONS "/v1/completions"
#define ENDLESS        "{\"prompt\":[0,500,600],\"ignore_eos\":true,\"max_tokens\":4000,\"temperature\":0}"
#define ENDLESS_STREAM "{\"prompt\":[0,500,600],\"ignore_eos\":true,\"max_tokens\":4000,\"temperature\":0,\"stream\":true}"
#define RUNNING     "vllm:num_requests_running"
#define WAITING     "vllm:num_requests_waiting"
#define USED        "vllm:kv_cache_usage_perc"
#define ABORTED     "vllm:request_success_total{model_name=\"tiny-v4\",engine=\"0\",finished_reason=\"abort\"}"
#define ROWS        "vllm:iteration_tokens_total_sum"

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check_refused(const struct rig *r, const char *body, int status, const char *type, const char *code, bool retry)
{
    struct reply reply = rig_request(r, "POST", COMPLETIONS, "", body);
    if (reply.status != status)
        fail_msg("%s: status %d, wanted %d: %s", body, reply.status, status, reply.body);
    assert_int_equal(strstr(reply.headers, "Retry-After: ") != NULL, retry);
    json_t *v = json_loads(reply.body, 0, NULL);
    assert_string_equal(text_at(v, "error.type"), type);
    assert_string_equal(text_at(v, "error.code"), code);
    json_decref(v);
    reply_free(&reply);
}

/* Settings from a file, some of which the command line overrules; a mistake there is told with its line. */
static void write_config(char *path, const char *text)
{
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

static void test_config_mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message, *line;
    } cases[] = {
        {"# limits\nmax-seqs 2\n\nmax-sequences 3\n", "unknown option '--max-sequences'", "line 4 of"},
        {"max-queue = none\n", "--max-queue: 'none'", "line 1 of"},
        {"ctx 512\nconfig other\n", "cannot stand in a file", "line 2 of"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[] = "/tmp/nibble-config-XXXXXX", command[512], output[2048];
        write_config(path, cases[i].text);
        (void)snprintf(command, sizeof command, "'%s' serve --port 1 --config %s 2>&1", g_program, path);
        FILE *f = popen(command, "r");
        assert_non_null(f);
        output[fread(output, 1, sizeof output - 1, f)] = '\0';
        assert_int_not_equal(pclose(f), 0);
        if (!strstr(output, cases[i].message) || !strstr(output, cases[i].line))
            fail_msg("%s", output);
        (void)unlink(path);
    }
}

static void test_queue_full(void **state)
{
    (void)state;
    char path[] = "/tmp/nibble-config-XXXXXX";
    write_config(path, "# small\nmax-seqs = 1\nmax-queue 50\n  cache-memory 0\r\nserved-name tiny-v4\n");
    const char *arguments[] = {"--config", path, "--max-queue", "2", "--ctx", "4096", "--log-level", "quiet", NULL};
    struct rig  r = rig_start(g_program, arguments);
    (void)unlink(path);
    int running = rig_begin(&r, COMPLETIONS, ENDLESS);
    rig_wait_metric(&r, RUNNING, 1, 1);
    rig_wait_metric(&r, WAITING, 0, 0);
    int second = rig_begin(&r, COMPLETIONS, ENDLESS);
    rig_wait_metric(&r, WAITING, 1, 1);
    /* Two choices where one has room: neither. */
    check_refused(&r, "{\"prompt\":\"x\",\"n\":2}", 429, "rate_limit_error", "queue_full", true);
    rig_wait_metric(&r, WAITING, 1, 1);
    int third = rig_begin(&r, COMPLETIONS, ENDLESS);
    rig_wait_metric(&r, WAITING, 2, 2);
    check_refused(&r, "{\"prompt\":\"x\"}", 429, "rate_limit_error", "queue_full", true);
    check_refused(&r, "{\"prompt\":\"x\",\"stream\":true}", 429, "rate_limit_error", "queue_full", true);
    (void)close(second);
    (void)close(third);
    rig_wait_metric(&r, WAITING, 0, 0);
    (void)close(running);
    rig_wait_metric(&r, RUNNING, 0, 0);
    rig_check_alive(&r);
    assert_int_equal(rig_stop(&r), 0);
}

static void test_time_limits(void **state)
{
    (void)state;
    const char *arguments[] = {"--max-seqs", "1", "--queue-timeout", "1", "--request-timeout", "4", "--ctx", "4096", "--log-level", "quiet", NULL};
    struct rig  r = rig_start(g_program, arguments);
    struct reply reply;
    int running = rig_begin(&r, COMPLETIONS, ENDLESS);
    rig_wait_metric(&r, RUNNING, 1, 1);
    int waiting[2] = {rig_begin(&r, COMPLETIONS, ENDLESS), rig_begin(&r, COMPLETIONS, ENDLESS_STREAM)};
    /* Not begun in time: as HTTP has it, the stream too. */
    for (int i = 0; i < 2; i++) {
        assert_true(rig_read(waiting[i], &reply));
        assert_int_equal(reply.status, 503);
        assert_non_null(strstr(reply.body, "queue_timeout"));
        assert_non_null(strstr(reply.headers, "Retry-After: "));
        reply_free(&reply);
        (void)close(waiting[i]);
    }
    /* One that has tokens ends as if by its length. */
    assert_true(rig_read(running, &reply));
    assert_int_equal(reply.status, 200);
    json_t *v = json_loads(reply.body, 0, NULL);
    assert_string_equal(text_at(v, "choices.0.finish_reason"), "length");
    assert_in_range(json_integer_value(at(v, "usage.completion_tokens")), 1, 3999);
    json_decref(v);
    reply_free(&reply);
    (void)close(running);
    assert_int_equal(rig_stop(&r), 0);
}

/* No token by the time limit: as HTTP has it, the stream too. At one token of the prompt a step no machine reads these
 * in a second. */
static void test_no_token_in_time(void **state)
{
    (void)state;
    enum { N = 16000 };
    const char *arguments[] = {"--max-seqs", "2", "--request-timeout", "1", "--prefill-budget", "1", "--ctx", "16384", "--cache-memory", "0",
                               "--served-name", "tiny-v4", "--log-level", "quiet", NULL};
    struct rig  r = rig_start(g_program, arguments);
    int fd[2];
    for (int stream = 0; stream < 2; stream++) {
        char  *body = malloc(64 + N * 8);
        size_t n = 0;
        assert_non_null(body);
        n += (size_t)sprintf(body, "{\"stream\":%s,\"prompt\":[0", stream ? "true" : "false");
        for (int i = 1; i < N; i++)
            n += (size_t)sprintf(body + n, ",%d", 300 + (i * 7 + stream) % 1500);
        (void)strcpy(body + n, "]}");
        fd[stream] = rig_begin(&r, COMPLETIONS, body);
        free(body);
    }
    for (int stream = 0; stream < 2; stream++) {
        struct reply reply;
        assert_true(rig_read(fd[stream], &reply));
        assert_int_equal(reply.status, 504);
        json_t *v = json_loads(reply.body, 0, NULL);
        assert_string_equal(text_at(v, "error.type"), "timeout_error");
        assert_string_equal(text_at(v, "error.code"), "request_timeout");
        json_decref(v);
        reply_free(&reply);
        (void)close(fd[stream]);
    }
    rig_wait_metric(&r, RUNNING, 0, 0);
    assert_int_equal(rig_stop(&r), 0);
}

/* ---- Leaving ---- */

enum moment { QUEUED, READING, DECODING, N_MOMENTS };

static char *long_prompt(int n, bool stream)
{
    char *body = malloc(16384);
    assert_non_null(body);
    int k = snprintf(body, 16384, "{\"max_tokens\":900,\"ignore_eos\":true,\"stream\":%s,\"prompt\":[0", stream ? "true" : "false");
    for (int i = 1; i < n; i++)
        k += snprintf(body + k, 16384 - (size_t)k, ",%d", 300 + i * 7 % 1500);
    (void)snprintf(body + k, 16384 - (size_t)k, "]}");
    return body;
}

static void leave(int fd, int how)
{
    if (how == 1) /* as a reset */
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    if (how == 2)
        (void)shutdown(fd, SHUT_WR); /* only the sending half */
    else
        (void)close(fd);
}

static void leave_at(const struct rig *r, enum moment moment, bool stream, int how)
{
    const double aborted = rig_metric(r, ABORTED), rows = rig_metric(r, ROWS);
    char *body = moment == READING ? long_prompt(1900, stream) : strdup(stream ? ENDLESS_STREAM : ENDLESS);
    int other = moment == QUEUED ? rig_begin(r, COMPLETIONS, ENDLESS) : -1;
    if (moment == QUEUED) {
        rig_wait_metric(r, RUNNING, 1, 1);
        rig_wait_metric(r, WAITING, 0, 0);
    }
    int fd = rig_begin(r, COMPLETIONS, body);
    if (moment == QUEUED)
        rig_wait_metric(r, WAITING, 1, 1);
    else
        rig_wait_metric(r, ROWS, rows + 1, 1e18);
    leave(fd, how);
    rig_wait_metric(r, ABORTED, aborted + 1, aborted + 1);
    if (moment == QUEUED) { /* the one that runs goes on */
        rig_wait_metric(r, WAITING, 0, 0);
        assert_true(rig_metric(r, RUNNING) >= 1);
        (void)close(other);
        rig_wait_metric(r, ABORTED, aborted + 2, aborted + 2);
    }
    rig_wait_metric(r, RUNNING, 0, 0);
    assert_true(rig_metric(r, USED) <= 0); /* nothing is kept here, so every page is free */
    if (moment != QUEUED) /* far from the end of its prompt, or of its answer */
        assert_true(rig_metric(r, ROWS) - rows < (moment == READING ? 1900 : 4000));
    if (how == 2)
        (void)close(fd);
    free(body);
}

static void test_leaving(void **state)
{
    (void)state;
    const char *arguments[] = {"--max-seqs", "1", "--cache-memory", "0", "--prefill-budget", "8", "--ctx", "4096", "--served-name", "tiny-v4",
                               "--log-level", "quiet", NULL};
    struct rig  r = rig_start(g_program, arguments);
    int how = 0;
    for (enum moment m = QUEUED; m < N_MOMENTS; m++)
        for (int stream = 0; stream < 2; stream++)
            leave_at(&r, m, stream == 1, how++ % 3);
    rig_check_alive(&r);
    assert_int_equal(rig_stop(&r), 0);
}

/* ---- Slow ones ---- */

/* True if the connection ends before `limit`; what came is in text. */
static bool ends_within(int fd, double limit, char *text, size_t size, const char *trickle)
{
    const double end = now() + limit;
    size_t n = 0;
    while (now() < end) {
        if (trickle)
            (void)send(fd, trickle, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        char c[256];
        const ssize_t k = recv(fd, c, sizeof c, MSG_DONTWAIT);
        if (k > 0 && n + (size_t)k < size) {
            memcpy(text + n, c, (size_t)k);
            n += (size_t)k;
        }
        text[n] = '\0';
        if (k == 0)
            return true;
        if (k < 0)
            (void)nanosleep(&(struct timespec){.tv_nsec = 100000000L}, NULL);
    }
    return false;
}

static void test_slow_senders(void **state)
{
    (void)state;
    const char *arguments[] = {"--receive-timeout", "1", "--idle-timeout", "2", "--ctx", "256", "--log-level", "quiet", NULL};
    struct rig  r = rig_start(g_program, arguments);
    char text[1024] = "";
    static const char head[] = "POST " COMPLETIONS " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{";
    /* A body, a byte at a time. */
    int fd = rig_connect(&r);
    rig_send(fd, head, sizeof head - 1);
    assert_true(ends_within(fd, 60, text, sizeof text, " "));
    assert_memory_equal(text, "HTTP/1.1 408 ", 13);
    assert_non_null(strstr(text, "request_not_received"));
    (void)close(fd);
    /* A body that does not go on, headers a byte at a time, and nothing at all. */
    int body = rig_connect(&r), headers = rig_connect(&r), nothing = rig_connect(&r);
    rig_send(body, head, sizeof head - 1);
    rig_send(headers, "GET /health HTTP/1.1\r\nX: ", 25);
    assert_true(ends_within(body, 60, text, sizeof text, NULL));
    assert_memory_equal(text, "HTTP/1.1 408 ", 13);
    assert_true(ends_within(headers, 60, text, sizeof text, "x"));
    assert_true(ends_within(nothing, 60, text, sizeof text, NULL));
    rig_check_alive(&r);
    (void)close(body);
    (void)close(headers);
    (void)close(nothing);
    assert_int_equal(rig_stop(&r), 0);
}

/* A stream that is not read ends when its buffer is full; another beside it does not notice. */
static void test_slow_reader(void **state)
{
    (void)state;
    const char *arguments[] = {"--max-unsent-mb", "1", "--ctx", "1024", "--served-name", "tiny-v4", "--log-level", "quiet", NULL};
    struct rig  r = rig_start(g_program, arguments);
    const int   small = 4096;
    struct rig  same = r;
    int fd = rig_connect(&same);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    static const char body[] = "{\"prompt\":[0,500,600],\"ignore_eos\":true,\"max_tokens\":1000,\"n\":14,\"logprobs\":20,\"stream\":true}";
    char head[256];
    (void)snprintf(head, sizeof head, "POST " COMPLETIONS " HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", sizeof body - 1, body);
    rig_send(fd, head, strlen(head));
    rig_wait_metric(&r, RUNNING, 14, 14);
    while (rig_metric(&r, RUNNING) >= 14)
        rig_check_alive(&r);
    rig_wait_metric(&r, ABORTED, 14, 14);
    rig_wait_metric(&r, RUNNING, 0, 0);
    rig_check_alive(&r);
    (void)close(fd);
    assert_int_equal(rig_stop(&r), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_mistakes), cmocka_unit_test(test_queue_full),   cmocka_unit_test(test_time_limits),
        cmocka_unit_test(test_no_token_in_time), cmocka_unit_test(test_leaving),     cmocka_unit_test(test_slow_senders),
        cmocka_unit_test(test_slow_reader),
    };
    if (argc < 2)
        return 2;
    g_program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
