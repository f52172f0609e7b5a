/* A real lost device: while requests run on the card, a kernel traps, which takes the process's context with it. Every
 * request ends with NIB_E_DEVICE, later calls say what failed, and closing neither hangs nor crashes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "nibble.h"
#include "support/serving_support.h"

int nib_test_trap(void);

enum { N = 3, TRAP_AT = 20 };
static atomic_int g_tokens;

/* On the server's thread, between steps. */
static void on_token(void *user, const struct nib_drawn_token *t, struct nib_next *next)
{
    job_on_token(user, t, next);
    if (atomic_fetch_add(&g_tokens, 1) + 1 == TRAP_AT)
        assert_int_equal(nib_test_trap(), 0);
}

static void submit(struct nib_server *s, struct job *j)
{
    struct nib_error err = {0};
    const struct nib_request_args a = {.prompt = j->prompt, .n_prompt = j->n_prompt, .n_max = j->n_max, .sampling = j->sampling,
                                       .on_token = on_token, .on_end = job_on_end, .user = j};
    if (nib_server_submit(s, &a, &j->handle, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void expect_named(enum nib_status status, const struct nib_error *err)
{
    assert_int_equal(status, NIB_E_DEVICE);
    if (!strstr(err->text, "cuda: "))
        fail_msg("'%s' does not name what failed", err->text);
    printf("%s\n", err->text);
}

static void test_lost_device(void **state)
{
    (void)state;
    struct job *jobs = calloc(N, sizeof *jobs);
    struct nib_options o;
    struct nib_server_options so;
    struct nib_server *server;
    struct nib_seq *seq;
    struct nib_error err = {0};
    const int32_t token = 500, start[] = {0, 1};
    assert_non_null(jobs);
    nib_options_init(&o);
    o.backend = "cuda";
    o.n_ctx = 1280;
    o.n_seqs_max = N + 1;
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    assert_int_equal(nib_seq_open(f.engine, &seq, &err), NIB_OK);
    nib_server_options_init(&so);
    so.n_running_max = N;
    assert_int_equal(nib_server_open(f.engine, &so, &server, &err), NIB_OK);
    assert_int_equal(nib_server_failure(server, &err), NIB_OK);
    for (int i = 0; i < N; i++) {
        nib_sampling_init(&jobs[i].sampling);
        jobs[i].n_prompt = 90 + 30 * i;
        jobs[i].n_max = 400;
        random_ids(jobs[i].prompt, jobs[i].n_prompt);
        submit(server, &jobs[i]);
    }
    for (int i = 0; i < N; i++) {
        job_wait(&jobs[i]);
        assert_int_equal(jobs[i].result.status, NIB_E_DEVICE);
    }
    assert_true(atomic_load(&g_tokens) >= TRAP_AT);
    expect_named(nib_server_failure(server, &err), &err);
    const struct nib_request_args late = {.prompt = &token, .n_prompt = 1, .n_max = 4, .sampling = jobs[0].sampling};
    expect_named(nib_server_submit(server, &late, NULL, &err), &err);
    nib_server_close(server);
    const struct nib_batch b = {.token = &token, .n_rows = 1, .seq_start = start, .seq = &seq, .n_seqs = 1};
    expect_named(nib_step(f.engine, &b, NULL, NULL, &err), &err);
    char path[] = "/tmp/nibble-lost-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    expect_named(nib_seq_save(seq, path, &err), &err);
    (void)unlink(path);
    nib_seq_close(seq);
    fixture_close(&f);
    free(jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lost_device)};
    return cmocka_run_group_tests_name("lost device", tests, NULL, NULL);
}
