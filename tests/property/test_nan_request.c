/* A request whose numbers overflow ends with an error of its own; those beside it in the same steps, before and after, are given what
 * they are given alone, bit for bit. The overflow is real: a token's embedding has the largest BF16 values there are, which a
 * checkpoint may hold.
 *
 *   test_nan_request [BACKEND]      of the engine; cpu. Cards run it by hand, make check has none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "nibble.h"
#include "support/hostile.h"
#include "support/serving_support.h"

enum { TOKEN_HUGE = 700 };
static const char *g_backend = "cpu";

static const char *huge_model(struct hostile *h)
{
    hostile_open(h, MODEL_NVFP4);
    struct relay_item *embed = hostile_item(h, "model.embed_tokens.weight");
    const int64_t      hidden = embed->shape[1];
    assert_int_equal(embed->dtype, NIB_ST_BF16);
    for (int64_t i = 0; i < hidden; i++) {
        static const unsigned char largest[2] = {0x7f, 0x7f}; /* 3.39e38 */
        memcpy((unsigned char *)embed->data + (TOKEN_HUGE * hidden + i) * 2, largest, sizeof largest);
    }
    return hostile_write(h);
}

static void make_jobs(struct job *jobs, int n, int huge)
{
    for (int i = 0; i < n; i++) {
        nib_sampling_init(&jobs[i].sampling);
        jobs[i].sampling.temperature = i % 2 ? 1.0f : 0.0f;
        jobs[i].sampling.seed = 50 + (uint64_t)i;
        jobs[i].n_prompt = 90 + 30 * i;
        jobs[i].n_max = 12;
        random_ids(jobs[i].prompt, jobs[i].n_prompt);
        for (int32_t k = 0; k < jobs[i].n_prompt; k++)
            jobs[i].prompt[k] += jobs[i].prompt[k] == TOKEN_HUGE;
    }
    jobs[huge].prompt[jobs[huge].n_prompt - 3] = TOKEN_HUGE;
}

/* bits: of logits, too; else the same greedy text. */
static void one_of_four(int32_t n_rows, int32_t n_prefill, bool bits)
{
    enum { N = 4, HUGE_JOB = 1 };
    struct job *jobs = calloc(N, sizeof *jobs);
    struct alone *alone = calloc(N, sizeof *alone);
    struct nib_options o;
    struct nib_server_options so;
    struct nib_server *server;
    struct nib_error err = {0};
    struct hostile h;
    assert_non_null(jobs);
    assert_non_null(alone);
    nib_options_init(&o);
    o.backend = g_backend;
    o.n_ctx = 1280;
    o.n_threads = 1;
    o.n_seqs_max = N;
    o.n_rows_max = n_rows;
    struct fixture f = fixture_open(huge_model(&h), &o);
    make_jobs(jobs, N, HUGE_JOB);
    for (int i = 0; i < N; i++)
        if (i != HUGE_JOB)
            job_run_alone(f.engine, &jobs[i], &alone[i]);
    nib_server_options_init(&so);
    so.n_running_max = N;
    so.n_prefill_max = n_prefill; /* pieces of several prompts share steps */
    assert_int_equal(nib_server_open(f.engine, &so, &server, &err), NIB_OK);
    for (int round = 0; round < 2; round++) { /* in the second the pages that held NaN belong to somebody else */
        for (int i = 0; i < N; i++)
            job_submit(server, &jobs[i]);
        for (int i = 0; i < N; i++)
            job_wait(&jobs[i]);
        for (int i = 0; i < N; i++) {
            if (i == HUGE_JOB) {
                assert_int_equal(jobs[i].result.status, NIB_E_NUMERIC);
                assert_int_equal(jobs[i].n_tokens, 0);
            } else if (bits) {
                job_check(&jobs[i], &alone[i]);
            } else {
                assert_int_equal(jobs[i].result.status, NIB_OK);
                if (jobs[i].sampling.temperature > 0)
                    continue;
                assert_int_equal(jobs[i].n_tokens, alone[i].n);
                assert_memory_equal(jobs[i].token, alone[i].token, (size_t)alone[i].n * sizeof(int32_t));
            }
        }
    }
    nib_server_close(server);
    fixture_close(&f);
    hostile_close(&h);
    free(alone);
    free(jobs);
}

/* On a card steps of more than 16 rows may be another kernel variant, with other sums than a request has alone
 * (docs/contracts.md, Order): bits are those of narrower ones. */
static void test_one_of_four(void **state)
{
    (void)state;
    if (strcmp(g_backend, "cuda") == 0)
        one_of_four(16, 12, true); /* 12 beside a row of each request */
    one_of_four(256, 128, strcmp(g_backend, "cuda") != 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_of_four)};
    if (argc > 1)
        g_backend = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
