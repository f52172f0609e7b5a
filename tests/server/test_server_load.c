/* nibble serve under load: streams of mixed lengths, clients that drop off at random moments, keep-alive connections
 * that never rest. Every answer equals the one given alone, nothing leaks, streams keep their pace, and many streams
 * are faster than one after the other. Known faults B78 and B84. NIBBLE_LOAD_SECONDS is how long the storm lasts; `make
 * check-full` asks for 600. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "server_rig.h"

enum { N_KINDS = 12, N_GAPS_MAX = 1 << 20 };

static const char *g_program;
static struct rig  g;
static double      g_storm_s = 40, g_seconds; /* all of the storm; one round of clients */
static const double PACE_S_MAX = 60;          /* longer measurements of pace and throughput tell nothing more */
/* The long run has more streams, and goes on until that many connections were dropped and that many requests answered
 * on eight others. */
static int         g_n_streams = 16;
static long        g_n_dropped_min, g_n_steady_min;

/* Requests and what they are answered alone. */
static int    g_n_kinds = N_KINDS; /* in use */
static char  *g_body[N_KINDS], *g_stream_body[N_KINDS], *g_text[N_KINDS];
static long   g_tokens[N_KINDS];

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static unsigned random_of(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void make_bodies(void)
{
    for (int k = 0; k < N_KINDS; k++) {
        char *b = malloc(8192);
        assert_non_null(b);
        int n = snprintf(b, 8192, "{\"prompt\":[0");
        for (int i = 0; i < 5 + k * 35; i++)
            n += snprintf(b + n, 8192 - (size_t)n, ",%d", 300 + (i * 37 + k / 3 * 11) % 1500);
        (void)snprintf(b + n, 8192 - (size_t)n, "],\"max_tokens\":%d,\"temperature\":%s,\"seed\":%d,\"ignore_eos\":true", k == 0 ? 60 : 10 + k * 7 % 40,
                       k % 2 ? "1" : "0", k);
        g_stream_body[k] = malloc(8300);
        g_body[k] = malloc(8300);
        assert_true(g_stream_body[k] && g_body[k]);
        (void)snprintf(g_stream_body[k], 8300, "%s,\"stream\":true}", b);
        (void)snprintf(g_body[k], 8300, "%s}", b);
        free(b);
        json_t *v = rig_post(&g, "/v1/completions", g_body[k], 200);
        g_text[k] = strdup(text_at(v, "choices.0.text"));
        g_tokens[k] = (long)json_integer_value(at(v, "usage.completion_tokens"));
        json_decref(v);
    }
}

static atomic_long g_wrong, g_answers, g_dropped, g_steady, g_tokens_done, g_n_gaps;
static float       g_gap[N_GAPS_MAX];

/* Counts an answer, and tells of the first wrong ones: what came, and what came before it. */
static void count_answer(int kind, int status, const char *got)
{
    atomic_fetch_add(&g_answers, 1);
    atomic_fetch_add(&g_tokens_done, g_tokens[kind]);
    if (strcmp(got, g_text[kind]) != 0 && atomic_fetch_add(&g_wrong, 1) < 5)
        print_message("kind %d, status %d: got '%s', wanted '%s'\n", kind, status, got, g_text[kind]);
}

static void send_request(int fd, const char *body)
{
    char head[256];
    const int n = snprintf(head, sizeof head, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    rig_send(fd, head, (size_t)n);
    rig_send(fd, body, strlen(body));
}

/* Read a stream as it comes and note the gaps between its events. */
static void read_timed_stream(int fd, int kind)
{
    size_t n = 0, size = 1 << 20;
    char  *all = malloc(size), text[4096] = "";
    double last = 0;
    ssize_t k;
    int status = 0;

    assert_non_null(all);
    while (n + 1 < size && (k = recv(fd, all + n, size - n - 1, 0)) > 0) {
        const double t = now();
        if (last > 0) {
            const long i = atomic_fetch_add(&g_n_gaps, 1);
            if (i < N_GAPS_MAX)
                g_gap[i] = (float)(t - last);
        }
        last = t;
        n += (size_t)k;
        all[n] = '\0';
        if (strstr(all + (n > 64 ? n - 64 : 0), "[DONE]"))
            break;
    }
    all[n] = '\0';
    for (char *s = strstr(all, "data: {"); s; s = strstr(s + 1, "data: {")) {
        char   *end = strstr(s, "\n\n");
        json_t *v = end ? json_loadb(s + 6, (size_t)(end - s - 6), 0, NULL) : NULL;
        (void)strncat(text, text_at(v, "choices.0.text"), sizeof text - strlen(text) - 1);
        json_decref(v);
    }
    (void)sscanf(all, "HTTP/1.1 %d", &status);
    count_answer(kind, status, text);
    free(all);
}

static void *stream_client(void *user)
{
    unsigned     state = (unsigned)(uintptr_t)user;
    const double end = now() + g_seconds;
    while (now() < end) {
        const int k = (int)(random_of(&state) % (unsigned)g_n_kinds);
        int       fd = rig_connect(&g);
        send_request(fd, g_stream_body[k]);
        read_timed_stream(fd, k);
        (void)close(fd);
    }
    return NULL;
}

static void *dropping_client(void *user)
{
    unsigned     state = (unsigned)(uintptr_t)user;
    const double end = now() + g_seconds;
    while (now() < end || atomic_load(&g_dropped) < g_n_dropped_min) {
        int fd = rig_connect(&g);
        send_request(fd, random_of(&state) % 2 ? g_body[random_of(&state) % (unsigned)g_n_kinds] : g_stream_body[random_of(&state) % (unsigned)g_n_kinds]);
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)(random_of(&state) % 300) * 1000000L}, NULL);
        if (random_of(&state) % 2) /* as a reset */
            (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
        (void)close(fd);
        atomic_fetch_add(&g_dropped, 1);
    }
    return NULL;
}

static void *steady_client(void *user)
{
    unsigned     state = (unsigned)(uintptr_t)user;
    const double end = now() + g_seconds;
    int          fd = rig_connect(&g);
    while (now() < end || atomic_load(&g_steady) < g_n_steady_min) {
        const int    k = (int)(random_of(&state) % (unsigned)g_n_kinds);
        struct reply r;
        send_request(fd, g_body[k]);
        const bool ok = rig_read(fd, &r);
        json_t    *v = ok && r.status == 200 ? json_loads(r.body, 0, NULL) : NULL;
        count_answer(k, r.status, text_at(v, "choices.0.text"));
        atomic_fetch_add(&g_steady, 1);
        json_decref(v);
        reply_free(&r);
        if (!ok) { /* what comes next belongs to this request */
            (void)close(fd);
            fd = rig_connect(&g);
        }
    }
    (void)close(fd);
    return NULL;
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void run_clients(int n_streams, int n_dropping, int n_steady)
{
    pthread_t thread[128];
    int       n = 0;
    for (int i = 0; i < n_streams; i++)
        (void)pthread_create(&thread[n++], NULL, stream_client, (void *)(uintptr_t)(100 + i));
    for (int i = 0; i < n_dropping; i++)
        (void)pthread_create(&thread[n++], NULL, dropping_client, (void *)(uintptr_t)(200 + i));
    for (int i = 0; i < n_steady; i++)
        (void)pthread_create(&thread[n++], NULL, steady_client, (void *)(uintptr_t)(300 + i));
    for (int i = 0; i < n; i++)
        (void)pthread_join(thread[i], NULL);
}

/* Everything at once; then nothing is left running, and memory is what it was after a first round of the same. */
static void test_storm(void **state)
{
    (void)state;
    double resident = 0;
    g_seconds = g_storm_s / 2;
    for (int round = 0; round < 2; round++) {
        run_clients(g_n_streams, 4, 8);
        for (int i = 0; i < 100 && rig_metric(&g, "vllm:num_requests_running") > 0; i++)
            (void)nanosleep(&(struct timespec){.tv_nsec = 50000000L}, NULL);
        if (round == 0)
            resident = rig_metric(&g, "process_resident_memory_bytes");
    }
    const double growth = rig_metric(&g, "process_resident_memory_bytes") - resident;
    print_message("%ld answers, %ld of them on eight connections, %ld dropped, %.1f MiB of growth\n", atomic_load(&g_answers),
                  atomic_load(&g_steady), atomic_load(&g_dropped), growth / 0x1p20);
    assert_int_equal(atomic_load(&g_wrong), 0);
    assert_true(atomic_load(&g_answers) > 10);
    assert_true(rig_metric(&g, "vllm:num_requests_running") <= 0);
    assert_true(rig_metric(&g, "vllm:num_requests_waiting") <= 0);
    assert_true(growth < 50 << 20);
}

static double pace_s(void)
{
    return g_storm_s / 4 < PACE_S_MAX ? g_storm_s / 4 : PACE_S_MAX;
}

/* Gaps between a stream's pieces, beside others that come and go with prompts to read. */
static void test_pace(void **state)
{
    (void)state;
    g_seconds = pace_s();
    atomic_store(&g_n_gaps, 0);
    run_clients(8, 0, 0);
    long n = atomic_load(&g_n_gaps);
    n = n < N_GAPS_MAX ? n : N_GAPS_MAX;
    assert_true(n > 100);
    qsort(g_gap, (size_t)n, sizeof g_gap[0], compare_floats);
    const double median = (double)g_gap[n / 2], p99 = (double)g_gap[n * 99 / 100];
    print_message("gaps: median %.1f ms, p99 %.1f ms, %.1f times\n", 1e3 * median, 1e3 * p99, p99 / median);
    assert_true(getenv("NIBBLE_LOAD_QUIET_MACHINE") == NULL || p99 <= 3 * median);
}

static double rate(int n_streams)
{
    g_seconds = pace_s() / 2;
    g_n_kinds = 1; /* a short prompt: what counts is decoding */
    atomic_store(&g_tokens_done, 0);
    const double start = now();
    run_clients(n_streams, 0, 0);
    const double tokens = (double)atomic_load(&g_tokens_done);
    g_n_kinds = N_KINDS;
    return tokens / (now() - start);
}

static void test_throughput(void **state)
{
    (void)state;
    const double one = rate(1), many = rate(16);
    print_message("one stream %.0f tokens/s, 16 streams %.0f, %.2f times\n", one, many, many / one);
    assert_true(getenv("NIBBLE_LOAD_QUIET_MACHINE") == NULL || many >= 2.5 * one);
    assert_int_equal(atomic_load(&g_wrong), 0);
}

static int start(void **state)
{
    (void)state;
    const char *arguments[] = {"--ctx", "1024", "--log-level", "quiet", "--max-seqs", "16", "--cache-memory", "0.1", NULL};
    g = rig_start(g_program, arguments);
    make_bodies();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        free(g_body[k]);
        free(g_stream_body[k]);
        free(g_text[k]);
    }
    return rig_stop(&g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_storm), cmocka_unit_test(test_pace), cmocka_unit_test(test_throughput)};
    const char *seconds = getenv("NIBBLE_LOAD_SECONDS");
    if (argc < 2)
        return 2;
    g_program = argv[1];
    if (seconds)
        g_storm_s = strtod(seconds, NULL);
    if (g_storm_s >= 100) {
        g_n_streams = 64;
        g_n_dropped_min = 500;
        g_n_steady_min = 2000;
    }
    return cmocka_run_group_tests(tests, start, stop);
}
