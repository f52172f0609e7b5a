/* Connections that mean harm or know no better, one kind after the other: whatever was sent, the server is there
 * afterwards and gives a known request its known answer, and what is no request gets no answer but an error. With
 * NIBBLE_HOSTILE_SECONDS (the long test) bytes that come one a second go on for that long, past the time in which a
 * request must arrive; otherwise times are short, since libmicrohttpd keeps some broken heads until they have
 * passed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "server_rig.h"

enum { HUGE = 10 << 20, RECEIVE_S = 30 /* --receive-timeout, if not set */ };
#define SHORT_S "6"

static const char *g_program;
static struct rig  g;

static char *filled(char byte, size_t n)
{
    char *text = malloc(n + 1);
    assert_non_null(text);
    memset(text, byte, n);
    text[n] = '\0';
    return text;
}

/* Bytes as they are, and nothing behind them. */
static int begin_raw(const char *bytes, size_t n)
{
    int fd = rig_connect(&g);
    rig_send(fd, bytes, n);
    (void)shutdown(fd, SHUT_WR);
    return fd;
}

/* What comes back: a status, or 0 where the connection was ended without one. */
static int end_raw(int fd)
{
    struct reply r;
    int status = 0;
    if (rig_read(fd, &r) || r.status)
        status = r.status;
    reply_free(&r);
    (void)close(fd);
    return status;
}

static bool is_refusal(int status)
{
    return status == 0 || (status >= 400 && status < 500) || status == 501 || status == 505;
}

/* ---- Requests in a row ---- */

static void test_pipelining(void **state)
{
    (void)state;
    enum { N = 60 };
    char text[N * 256], name[64];
    size_t n = 0;
    for (int i = 0; i < N; i++) {
        static const char body[] = "{" PLAIN ",\"max_tokens\":1}";
        if (i % 6 == 5)
            n += (size_t)snprintf(text + n, sizeof text - n, "POST " CHAT " HTTP/1.1\r\nHost: x\r\nX-Request-Id: number-%d\r\nContent-Length: %zu\r\n\r\n%s",
                                  i, sizeof body - 1, body);
        else
            n += (size_t)snprintf(text + n, sizeof text - n, "GET %s HTTP/1.1\r\nHost: x\r\nX-Request-Id: number-%d\r\n\r\n",
                                  i % 6 == 3 ? "/nothing" : "/v1/models", i);
        assert_true(n < sizeof text);
    }
    int fd = rig_connect(&g);
    rig_send(fd, text, n);
    for (int i = 0; i < N; i++) {
        struct reply r;
        assert_true(rig_read(fd, &r));
        assert_int_equal(r.status, i % 6 == 3 ? 404 : 200);
        (void)snprintf(name, sizeof name, "X-Request-Id: number-%d\r\n", i);
        if (!strstr(r.headers, name))
            fail_msg("reply %d has other headers: %s", i, r.headers);
        reply_free(&r);
    }
    (void)close(fd);
    /* The same, and gone before the first reply. */
    for (int i = 0; i < 10; i++) {
        fd = rig_connect(&g);
        rig_send(fd, text, n);
        (void)close(fd);
    }
    rig_check_alive(&g);
}

/* ---- Slowly, halfway, never ---- */

/* Too slow in the end: told so, or cut. */
static void check_ended(int fd)
{
    struct reply r;
    if (rig_read(fd, &r))
        assert_int_equal(r.status, 408);
    reply_free(&r);
    char rest;
    assert_true(recv(fd, &rest, 1, MSG_DONTWAIT) <= 0);
    (void)close(fd);
}

static void test_byte_a_second(void **state)
{
    (void)state;
    const char *seconds_text = getenv("NIBBLE_HOSTILE_SECONDS");
    const int seconds = seconds_text ? atoi(seconds_text) : 2;
    const char *body = "{" PLAIN "}";
    char head[1024];
    int in_head = rig_connect(&g), in_body = rig_connect(&g);
    const int n = snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: x\r\nX-Long: %0*d\r\nContent-Length: %zu\r\n\r\n", seconds, 0, strlen(body));
    int at_head = 0, at_body = 0;
    rig_send(in_body, head, (size_t)n);
    for (int i = 0; i < seconds; i++) {
        rig_send(in_head, head + at_head++, 1);
        rig_send(in_body, body + at_body++, 1);
        rig_nap(1000);
        if (i % 10 == 0)
            rig_check_alive(&g);
    }
    if (seconds > 2 * RECEIVE_S) {
        check_ended(in_head);
        check_ended(in_body);
        return;
    }
    /* Slow is not wrong: the rest at once, and both are answered. */
    rig_send(in_head, head + at_head, (size_t)(n - at_head));
    rig_send(in_head, body, strlen(body));
    rig_send(in_body, body + at_body, strlen(body) - (size_t)at_body);
    for (int i = 0; i < 2; i++) {
        struct reply r;
        int fd = i ? in_body : in_head;
        assert_true(rig_read(fd, &r));
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.body, ANSWER));
        reply_free(&r);
        (void)close(fd);
    }
}

/* Connections that end nowhere: silent, in the head, in the body, in a chunk, behind a whole request that asks for a
 * stream. They stay open while the known request is answered, then one half is reset and the other closed. */
static void test_half_open(void **state)
{
    (void)state;
    enum { N = 150 };
    static const char *const beginnings[] = {
        "", "G", "GET /health HTTP/1.1\r\nHo", "POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"messages\":[",
        "POST " CHAT " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"m\r\nff", "POST " CHAT " HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    };
    int fd[N];
    char stream[512];
    static const char body[] = "{" PLAIN ",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":200}";
    (void)snprintf(stream, sizeof stream, "POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", sizeof body - 1, body);
    for (int i = 0; i < N; i++) {
        const char *text = i % 25 == 24 ? stream : beginnings[(size_t)i % (sizeof beginnings / sizeof beginnings[0])];
        fd[i] = rig_connect(&g);
        rig_send(fd[i], text, strlen(text));
        if (i % 3 == 0 && i % 25 != 24)
            (void)shutdown(fd[i], SHUT_WR);
    }
    rig_check_alive(&g);
    for (int i = 0; i < N; i++) {
        const struct linger reset = {.l_onoff = 1, .l_linger = 0};
        if (i % 2)
            (void)setsockopt(fd[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        (void)close(fd[i]);
    }
    rig_check_alive(&g);
    /* Nothing of it goes on. */
    for (int k = 0; k < 600 && rig_metric(&g, "vllm:num_requests_running") > 0; k++)
        rig_nap(50);
    assert_true(rig_metric(&g, "vllm:num_requests_running") <= 0);
}

/* A stream that no one reads while others are answered. */
static void test_slow_reader(void **state)
{
    (void)state;
    static const char body[] = "{" PLAIN ",\"stream\":true,\"ignore_eos\":true,\"logprobs\":true,\"top_logprobs\":20,\"max_tokens\":300}";
    char text[512];
    int fd[4];
    (void)snprintf(text, sizeof text, "POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", sizeof body - 1, body);
    for (int i = 0; i < 4; i++) {
        const int least = 1;
        fd[i] = rig_connect(&g);
        (void)setsockopt(fd[i], SOL_SOCKET, SO_RCVBUF, &least, sizeof least);
        rig_send(fd[i], text, strlen(text));
    }
    rig_check_alive(&g);
    for (int i = 0; i < 4; i++)
        (void)close(fd[i]);
    rig_check_alive(&g);
}

/* ---- No HTTP ---- */

static void test_heads(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t      n; /* 0: up to the NUL */
    } cases[] = {
        {"\r\n\r\n\r\n", 0}, {"GET\r\n\r\n", 0}, {"GET / HTTP/9.9\r\n\r\n", 0}, {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0},
        {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11}, {"GET /health HTTP/1.1\r\nHost: x\r\nA\0B: c\r\n\r\n\0P", 43},
        {"POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}", 0},
        {"POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length: 2e1\r\n\r\n{}", 0},
        {"POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n{}", 0},
        {"POST " CHAT " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}", 0},
        {"POST " CHAT " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n", 0},
        {"POST " CHAT " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n", 0},
        {"POST " CHAT " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n{}", 0},
        {"BREW /health HTTP/1.1\r\nHost: x\r\n\r\n", 0}, {"GET /nothing%00%ff%zz HTTP/1.1\r\nHost: x\r\n\r\n", 0},
        {"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 0}, {"GET //v1/models/../../.. HTTP/1.1\r\nHost: x\r\n\r\n", 0},
        {"GET /v1/models/\xff\xfe\xc0\x80 HTTP/1.1\r\nHost: x\r\n\r\n", 0},
    };
    enum { N_CASES = sizeof cases / sizeof cases[0], N_NOISE = 100 };
    int fd[N_CASES + N_NOISE]; /* beside each other: some wait until a request must have arrived */
    for (size_t i = 0; i < N_CASES; i++)
        fd[i] = begin_raw(cases[i].bytes, cases[i].n ? cases[i].n : strlen(cases[i].bytes));
    rig_check_alive(&g);
    /* The bytes of no one: a generator with a fixed seed. */
    uint64_t seed = 7;
    for (int i = 0; i < N_NOISE; i++) {
        char noise[600];
        for (size_t k = 0; k < sizeof noise; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            noise[k] = (char)(seed >> 56);
        }
        memcpy(noise, i % 2 ? "POST " CHAT " HTTP/1.1\r\n" : "\r\n", i % 2 ? 36 : 2);
        fd[N_CASES + i] = begin_raw(noise, sizeof noise);
    }
    rig_check_alive(&g);
    for (int i = 0; i < N_CASES + N_NOISE; i++) {
        const int status = end_raw(fd[i]);
        if (!is_refusal(status))
            fail_msg("case %d (noise from %d on) was answered with status %d", i, (int)N_CASES, status);
    }
    rig_check_alive(&g);
}

/* 10 MB where a line was due. */
static void test_huge_heads(void **state)
{
    (void)state;
    static const char *const before[] = {"", "GET /", "GET /health HTTP/1.1\r\nX: ", "GET /health HTTP/1.1\r\n",
                                         "POST " CHAT " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;"};
    char *text = malloc(HUGE + 256);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        size_t n = strlen(before[i]);
        memcpy(text, before[i], n);
        memset(text + n, 'x', HUGE);
        for (size_t k = 0; i == 3 && k + 10 <= HUGE; k += 10) /* a million small ones */
            memcpy(text + n + k, "A: bcdef\r\n", 10);
        const int status = end_raw(begin_raw(text, n + HUGE));
        /* libmicrohttpd calls an endless size of a chunk an error of the server's. */
        if (!is_refusal(status) && !(i == 4 && status == 500))
            fail_msg("10 MB behind '%s' were answered with status %d", before[i], status);
        rig_check_alive(&g);
    }
    free(text);
}

/* ---- No JSON ---- */

static void post_refused(const char *body, const char *what)
{
    static const char *const paths[] = {CHAT, "/v1/completions", "/tokenize", "/detokenize"};
    for (size_t i = 0; i < 4; i++) {
        struct reply r = rig_request(&g, "POST", paths[i], "", body);
        if (r.status != 400 || !strstr(r.body, "\"code\":\"invalid_json\""))
            fail_msg("%s to %s: status %d, %.200s", what, paths[i], r.status, r.body);
        reply_free(&r);
    }
}

static void test_deep_json(void **state)
{
    (void)state;
    enum { DEEP = 10000 };
    static const struct {
        const char *before, *open, *close, *after;
    } shapes[] = {
        {"", "[", "]", ""}, {"", "{\"a\":", "}", ""}, {"{\"messages\":", "[", "]", "}"}, {"{\"messages\":", "{\"a\":", "}", "}"},
        {"{\"tools\":[{\"a\":", "[{\"b\":", "}]", "}]}"}, {"{\"prompt\":", "[", "]", "}"}, {"{\"tokens\":", "[", "", ""},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t n_open = strlen(shapes[s].open), n_close = strlen(shapes[s].close);
        char *text = filled(' ', 64 + DEEP * (n_open + n_close)), *to = text;
        to = stpcpy(to, shapes[s].before);
        for (int i = 0; i < DEEP; i++)
            to = stpcpy(to, shapes[s].open);
        *to++ = '1';
        for (int i = 0; i < DEEP; i++)
            to = stpcpy(to, shapes[s].close);
        (void)strcpy(to, shapes[s].after);
        post_refused(text, shapes[s].open);
        free(text);
    }
    rig_check_alive(&g);
}

static void test_invalid_utf8(void **state)
{
    (void)state;
    /* A byte that begins nothing, overlong, a surrogate, above the last character, cut, a lone continuation. */
    static const char *const broken[] = {"\xff", "\xc0\x80", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe4\xbd", "\x80", "\xf8\x88\x80\x80\x80"};
    static const char *const forms[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":1}", "{\"%s\":1,\"prompt\":\"x\"}",
        "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "{\"prompt\":\"x\",\"stop\":[\"%s\"]}", "%s{}", "{\"tokens\":[1]}%s",
    };
    char body[256], header[128];
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        for (size_t k = 0; k < sizeof forms / sizeof forms[0]; k++) {
            (void)snprintf(body, sizeof body, forms[k], broken[i]);
            post_refused(body, "invalid UTF-8");
        }
        /* In a header it is no request id, and harms none. */
        (void)snprintf(header, sizeof header, "X-Request-Id: %s\r\n", broken[i]);
        struct reply r = rig_request(&g, "GET", "/v1/models", header, NULL);
        assert_int_equal(r.status, 200);
        assert_null(strstr(r.headers, broken[i]));
        reply_free(&r);
    }
    rig_check_alive(&g);
}

static void test_not_numbers(void **state)
{
    (void)state;
    static const char *const fields[] = {"temperature", "top_p", "min_p", "top_k", "presence_penalty", "frequency_penalty", "repetition_penalty",
                                         "seed", "max_tokens", "max_completion_tokens", "n", "top_logprobs", "min_tokens"};
    static const char *const no_json[] = {"NaN", "nan", "Infinity", "-Infinity", "-inf", "1e999", "-1e999", "+1", "0x10", "1.", ".5", "01", "1e"};
    static const char *const no_value[] = {"\"NaN\"", "\"Infinity\"", "[1]", "{}", "true", "\"1\""};
    char body[512];
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        for (size_t k = 0; k < sizeof no_json / sizeof no_json[0]; k++) {
            (void)snprintf(body, sizeof body, "{" PLAIN ",\"logprobs\":true,\"%s\":%s}", fields[i], no_json[k]);
            json_t *v = rig_post(&g, CHAT, body, 400);
            assert_string_equal(text_at(v, "error.code"), "invalid_json");
            json_decref(v);
        }
        for (size_t k = 0; k < sizeof no_value / sizeof no_value[0]; k++) {
            (void)snprintf(body, sizeof body, "{" PLAIN ",\"logprobs\":true,\"%s\":%s}", fields[i], no_value[k]);
            json_t *v = rig_post(&g, CHAT, body, 400);
            assert_string_equal(text_at(v, "error.param"), fields[i]);
            json_decref(v);
        }
    }
    json_decref(rig_post(&g, CHAT, "{" PLAIN ",\"logit_bias\":{\"5\":NaN}}", 400));
    json_decref(rig_post(&g, CHAT, "{" PLAIN ",\"logit_bias\":{\"NaN\":1}}", 400));
    json_decref(rig_post(&g, CHAT, "{" PLAIN ",\"logit_bias\":{\"5\":\"NaN\"}}", 400));
    json_decref(rig_post(&g, "/detokenize", "{\"tokens\":[NaN]}", 400));
    json_decref(rig_post(&g, "/v1/completions", "{\"prompt\":[1e400]}", 400));
    rig_check_alive(&g);
}

static int start(void **state)
{
    (void)state;
    const char *arguments[] = {"--ctx", "1024", "--log-level", "quiet", "--served-name", "tiny-v4", "--receive-timeout", SHORT_S, "--idle-timeout", SHORT_S, NULL};
    if (getenv("NIBBLE_HOSTILE_SECONDS"))
        arguments[6] = NULL;
    g = rig_start(g_program, arguments);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return rig_stop(&g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipelining), cmocka_unit_test(test_byte_a_second), cmocka_unit_test(test_half_open), cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_heads),      cmocka_unit_test(test_huge_heads),    cmocka_unit_test(test_deep_json), cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_not_numbers),
    };
    if (argc < 2)
        return 2;
    g_program = argv[1];
    return cmocka_run_group_tests(tests, start, stop);
}
