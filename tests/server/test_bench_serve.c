/* nibble bench --serve: against nibble serve, whose own counters must agree; and against a server of this file that
 * sends what it is told when it is told, for times and faults that are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "server_rig.h"

static const char *g_program;

/* Run `nibble bench ARGUMENTS`; standard output and standard error, and the exit code. */
static int bench(const char *arguments, char *out, size_t n_out, char *err, size_t n_err)
{
    char command[1024], path[64] = "/tmp/nibble-bench-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)snprintf(command, sizeof command, "'%s' bench %s 2>%s", g_program, arguments, path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    out[fread(out, 1, n_out - 1, f)] = '\0';
    const int status = pclose(f);
    const ssize_t n = read(fd, err, n_err - 1);
    err[n > 0 ? n : 0] = '\0';
    (void)close(fd);
    (void)unlink(path);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static json_t *bench_json(const char *arguments, int code)
{
    char out[16384], err[4096];
    const int got = bench(arguments, out, sizeof out, err, sizeof err);
    if (got != code)
        fail_msg("bench %s: exit code %d, wanted %d: %s", arguments, got, code, err);
    json_t *v = json_loads(out, 0, NULL);
    if (!v)
        fail_msg("bench %s: not JSON: %s", arguments, out);
    return v;
}

static double number(json_t *v, const char *path)
{
    json_t *n = at(v, path);
    if (!json_is_number(n))
        fail_msg("%s is no number", path);
    return json_number_value(n);
}

/* ---- Against nibble serve ---- */

#define GENERATED "vllm:generation_tokens_total"
#define PROMPT    "vllm:prompt_tokens_total"

static void test_counts(void **state)
{
    (void)state;
    const char *const arguments[] = {"--ctx", "1024", "--log-level", "quiet", "--api-key", "sesame", NULL};
    struct rig server = rig_start(g_program, arguments);
    char text[256];
    const double generated = rig_metric(&server, GENERATED), prompt = rig_metric(&server, PROMPT);
    (void)snprintf(text, sizeof text, "--serve http://127.0.0.1:%d --api-key sesame --concurrency 1,3 --requests 4 --prompt-tokens 100 "
                                      "--max-tokens 8 --json", server.port);
    json_t *v = bench_json(text, 0);
    double n_prompt = 0;
    assert_int_equal(json_array_size(at(v, "runs")), 2);
    for (int i = 0; i < 2; i++) {
        json_t *run = json_array_get(at(v, "runs"), (size_t)i);
        assert_int_equal(number(run, "concurrency"), i ? 3 : 1);
        assert_int_equal(number(run, "errors"), 0);
        assert_int_equal(number(run, "generated_tokens"), 4 * 8);
        /* The wanted length, but for a word at most: two tokens or three of a prompt's 100. */
        assert_in_range(number(run, "prompt_tokens"), 4 * 90, 4 * 110);
        n_prompt += number(run, "prompt_tokens");
        assert_true(number(run, "first_token_ms.p50") > 0 && number(run, "first_token_ms.max") <= number(run, "request_ms.max"));
        assert_true(number(run, "gap_ms.p50") <= number(run, "gap_ms.p90") && number(run, "gap_ms.p90") <= number(run, "gap_ms.p99") &&
                    number(run, "gap_ms.p99") <= number(run, "gap_ms.max"));
        assert_true(number(run, "request_ms.max") <= 1e3 * number(run, "seconds"));
        assert_true(fabs(number(run, "tokens_per_s") * number(run, "seconds") - 32) < 1e-3);
    }
    /* Two more requests find how long prompts are, a token each. */
    assert_int_equal(rig_metric(&server, GENERATED) - generated, 2 * 4 * 8 + 2);
    assert_true(rig_metric(&server, PROMPT) - prompt > n_prompt);
    json_decref(v);
    (void)snprintf(text, sizeof text, "--serve http://127.0.0.1:%d/v1/", server.port);
    char out[4096], err[4096];
    assert_int_equal(bench(text, out, sizeof out, err, sizeof err), 1);
    assert_non_null(strstr(err, "status 401: an API key is needed"));
    assert_int_equal(rig_stop(&server), 0);
}

/* ---- Against a server that does as it is told ---- */

/* What is sent for each request after the two that find lengths: pieces with a pause in front of each, then the end. */
struct piece {
    int         wait_ms;
    const char *bytes;
};
struct script {
    const struct piece *piece;
    int                 n_pieces;
    bool                chunked;
};

struct actor {
    int            listener, port, n_requests;
    struct script  script;
    pthread_t      thread;
};

static void send_piece(int fd, const char *bytes, bool chunked)
{
    char head[32];
    if (chunked) {
        (void)snprintf(head, sizeof head, "%zx\r\n", strlen(bytes));
        rig_send(fd, head, strlen(head));
    }
    rig_send(fd, bytes, strlen(bytes));
    if (chunked)
        rig_send(fd, "\r\n", 2);
}

#define EVENT(text)  "data: {\"choices\":[{\"delta\":{\"content\":\"" text "\"}}]}\n\n"
#define USAGE(n, m)  "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":" n ",\"completion_tokens\":" m "}}\n\n"
#define END          "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n"
#define HEAD         "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
#define HEAD_CHUNKED "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

/* A request's head and body are swallowed up to the closing brace of JSON that is known to end so. */
static bool swallow(int fd)
{
    char text[65536];
    size_t n = 0;
    while (n + 1 < sizeof text) {
        const ssize_t k = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (k <= 0)
            return false;
        n += (size_t)k;
        text[n] = '\0';
        const char *head_end = strstr(text, "\r\n\r\n"), *length = strstr(text, "Content-Length: ");
        if (head_end && strlen(head_end + 4) >= (length ? strtoul(length + 16, NULL, 10) : 0))
            return true;
    }
    return false;
}

static void perform(int fd, const struct script *s)
{
    for (int i = 0; i < s->n_pieces; i++) {
        const struct piece *p = &s->piece[i];
        (void)nanosleep(&(struct timespec){.tv_sec = p->wait_ms / 1000, .tv_nsec = p->wait_ms % 1000 * 1000000L}, NULL);
        send_piece(fd, p->bytes, s->chunked && i > 0);
    }
    if (s->chunked)
        rig_send(fd, "0\r\n\r\n", 5);
}

static void *act(void *user)
{
    static const struct piece first[] = {{0, HEAD EVENT("a") USAGE("20", "1") END "data: [DONE]\n\n"}};
    static const struct piece second[] = {{0, HEAD EVENT("a") USAGE("84", "1") END "data: [DONE]\n\n"}};
    struct actor *a = user;
    int fd;
    while ((fd = accept(a->listener, NULL, NULL)) >= 0) {
        while (swallow(fd)) {
            const struct script lengths[2] = {{first, 1, false}, {second, 1, false}};
            const struct script *s = a->n_requests < 2 ? &lengths[a->n_requests] : &a->script;
            a->n_requests++;
            perform(fd, s);
            if (!s->chunked)
                break;
        }
        (void)close(fd);
    }
    return NULL;
}

static void actor_start(struct actor *a, struct script script)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof where;
    memset(a, 0, sizeof *a);
    a->script = script;
    a->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(a->listener >= 0 && bind(a->listener, (struct sockaddr *)&where, n) == 0 && listen(a->listener, 8) == 0);
    assert_int_equal(getsockname(a->listener, (struct sockaddr *)&where, &n), 0);
    a->port = ntohs(where.sin_port);
    assert_int_equal(pthread_create(&a->thread, NULL, act, a), 0);
}

static void actor_stop(struct actor *a)
{
    (void)shutdown(a->listener, SHUT_RDWR);
    (void)pthread_join(a->thread, NULL);
    (void)close(a->listener);
}

/* Four events: the first after 300 ms, then gaps of 50, 50 and 200 ms. They can come later, never earlier, so the
 * figures have a floor; and their sum is the request's. The second and third event's bytes are torn apart, and a
 * comment stands between. */
static void test_times(void **state)
{
    (void)state;
    static const struct piece pieces[] = {
        {0, HEAD_CHUNKED}, {100, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"},
        {200, EVENT("a")}, {25, "data: {\"choices\":[{\"delta\":{\"reasoning_content\""}, {25, ":\"b\"}}]}\r\n\r\n: keep-alive\n\n"},
        {50, EVENT("c")}, {200, EVENT("d") END USAGE("100", "4")}, {100, "data: [DONE]\n\n"},
    };
    struct actor a;
    char text[256];
    actor_start(&a, (struct script){pieces, 8, true});
    (void)snprintf(text, sizeof text, "--serve http://127.0.0.1:%d --model m --concurrency 1 --requests 3 --prompt-tokens 100 --max-tokens 4 --json",
                   a.port);
    json_t *v = bench_json(text, 0), *run = at(v, "runs.0");
    assert_int_equal(number(run, "generated_tokens"), 12);
    assert_int_equal(number(run, "prompt_tokens"), 300);
    assert_int_equal(number(run, "events"), 12);
    assert_true(number(run, "first_token_ms.p50") >= 300);
    assert_true(number(run, "gap_ms.p50") >= 50 && number(run, "gap_ms.p90") >= 200);
    assert_true(number(run, "request_ms.p50") >= 700 && number(run, "seconds") >= 2.1);
    json_decref(v);
    actor_stop(&a);
    /* Two for lengths and three measured: nothing was sent twice, and nothing left out. */
    assert_int_equal(a.n_requests, 5);
}

/* Whatever a server does, it is an error with a sentence, not a figure. */
static void test_faults(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *says;
    } cases[] = {
        {HEAD EVENT("a"), "the stream ended before the answer did"},
        {HEAD EVENT("a") "data: {\"error\":{\"message\":\"out of luck\"}}\n\n", "out of luck"},
        {HEAD END "data: [DONE]\n\n", "the answer holds no text"},
        {HEAD "data: {\"choices\n\n", "is not a JSON object"},
        {HEAD "data: 7\n\n", "is not a JSON object"},
        {"", "the connection ended before the reply did"},
        {"HTTP/1.1 200 OK\r\n", "the connection ended before the reply did"},
        {"SSH-2.0-nothing\r\n", "does not begin like HTTP"},
        {"HTTP/1.1 503 No\r\nContent-Length: 32\r\n\r\n{\"error\":{\"message\":\"too busy\"}}", "status 503: too busy"},
        {"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nOops", "status 500"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" EVENT("a"), "the connection ended before the reply did"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "is not the size of a chunk"},
    };
    char text[256], out[8192], err[4096];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct piece piece = {0, cases[i].bytes};
        struct actor a;
        actor_start(&a, (struct script){&piece, 1, false});
        (void)snprintf(text, sizeof text, "--serve http://127.0.0.1:%d --model m --concurrency 1 --requests 1", a.port);
        const int code = bench(text, out, sizeof out, err, sizeof err);
        if (code != 1 || !strstr(err, cases[i].says))
            fail_msg("%s: exit code %d, standard error: %s", cases[i].bytes, code, err);
        assert_null(strstr(out, "nan"));
        actor_stop(&a);
    }
}

static void test_usage(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *says;
    } cases[] = {
        {"--serve https://a.example", "there is no TLS"}, {"--serve a.example", "does not begin with http://"},
        {"--serve http://", "the host is missing"}, {"--serve http://a:0", "port 0 is out of range"},
        {"--serve http://a:x", "'x' is not a port"}, {"--serve http://a:", "is not a port"}, {"--serve 'http://[::1'", "closing bracket"},
        {"--serve 'http://a/?b'", "a query or fragment, '?b'"}, {"--serve http://b@a", "a user in the URL"},
        {"--serve 'http://a b'", "must be escaped"}, {"--serve http://a --concurrency 1,,2", "is not a list of whole numbers"},
        {"--serve http://a --concurrency 0", "0 is out of range"}, {"--serve http://a --concurrency 2000", "2000 is out of range"},
        {"--serve http://a --concurrency 1,", "is not a list"}, {"--serve http://a --max-tokens 0", "--max-tokens: 0 is out of range"},
    };
    char out[4096], err[4096];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int code = bench(cases[i].arguments, out, sizeof out, err, sizeof err);
        if (code != 2 || !strstr(err, cases[i].says))
            fail_msg("bench %s: exit code %d, standard error: %s", cases[i].arguments, code, err);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_usage),
    };
    if (argc < 2)
        return 2;
    g_program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
