/* The server of the library: whatever runs beside a request, however its prompt is cut, whether beginnings are kept,
 * whether it has to give up its place, it gets the tokens and log-probabilities that nib_generate gives alone, bit for
 * bit. Known faults B41, B44, B78, B86 and B87, and the cache side of B96, B97 and B101. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <semaphore.h>

#include "nibble.h"
#include "support/serving_support.h"

static void check_neighbours(enum nib_act_quant act_quant)
{
    static const int32_t settings[][4] = {{4, 0, 0, 512}, {10, 12, 0, 70}, {3, 3, 0, 200}};
    serving_act_quant_set(act_quant);
    struct job *jobs = jobs_make();
    struct alone *alone = jobs_alone(jobs, N_JOBS);
    for (size_t k = 0; k < sizeof settings / sizeof settings[0]; k++) {
        struct serving r = server_open(settings[k][0], settings[k][1], settings[k][2], settings[k][3]);
        for (int round = 0; round < (k == 1 ? 2 : 1); round++) {
            jobs_run(&r, jobs);
            for (int i = 0; i < N_JOBS; i++)
                job_check(&jobs[i], &alone[i]);
        }
        struct nib_server_stats stats;
        nib_server_get_stats(r.server, &stats);
        assert_true(settings[k][1] > 0 ? stats.n_prefix_hits > 0 : stats.n_prefix_hits == 0);
        server_close(&r);
    }
    serving_act_quant_set(NIB_ACT_QUANT_NONE);
    free(alone);
    free(jobs);
}

static void test_neighbours(void **state)
{
    (void)state;
    check_neighbours(NIB_ACT_QUANT_NONE);
}

static void test_neighbours_int8(void **state)
{
    (void)state;
    check_neighbours(NIB_ACT_QUANT_INT8);
}

/* B86, B44: everyone wants more than there is. Some give up their place and come back; nobody's text changes. */
static void test_pool_full(void **state)
{
    (void)state;
    struct serving r = server_open(4, 4, 5, 256);
    struct job *jobs = calloc(4, sizeof *jobs);
    for (int i = 0; i < 4; i++) {
        nib_sampling_init(&jobs[i].sampling);
        jobs[i].sampling.temperature = 0.0f;
        jobs[i].n_prompt = 100 + 40 * i;
        jobs[i].n_max = 80;
        random_ids(jobs[i].prompt, jobs[i].n_prompt);
        job_submit(r.server, &jobs[i]);
    }
    int32_t n_preempted = 0;
    for (int i = 0; i < 4; i++) {
        job_wait(&jobs[i]);
        n_preempted += jobs[i].result.n_preempted;
    }
    struct nib_server_stats stats;
    nib_server_get_stats(r.server, &stats);
    assert_true(n_preempted > 0);
    assert_int_equal(stats.n_pages, 5);
    server_close(&r);
    jobs_check_alone(jobs, 4);
    free(jobs);
}

/* B41: what can never fit is refused at once, with both numbers; what fits only without its wish ends by length. */
static void test_too_long(void **state)
{
    (void)state;
    struct serving r = server_open(2, 0, 3, 256);
    struct job *j = calloc(1, sizeof *j);
    struct nib_error err = {0};
    nib_sampling_init(&j->sampling);
    random_ids(j->prompt, 500);
    struct nib_request_args a = {.prompt = j->prompt, .n_prompt = 500, .n_max = 4, .sampling = j->sampling, .on_end = job_on_end, .user = j};
    assert_int_equal(nib_server_submit(r.server, &a, NULL, &err), NIB_E_LIMIT);
    assert_non_null(strstr(err.text, "500"));
    assert_non_null(strstr(err.text, "384"));
    j->n_prompt = 380;
    j->n_max = 100;
    job_submit(r.server, j);
    job_wait(j);
    assert_int_equal(j->result.reason, NIB_STOP_LENGTH);
    assert_int_equal(j->n_tokens, 5); /* four are fed after the prompt, one more is drawn */
    j->prompt[1] = -1;
    a.n_prompt = 2;
    assert_int_equal(nib_server_submit(r.server, &a, NULL, &err), NIB_E_ARGUMENT);
    server_close(&r);
    free(j);
}

/* B97, B101: a prompt again, a conversation that grows, one that is edited. Everything up to a page border, or to the
 * last kept one before the edit, is there. */
static void test_hits(void **state)
{
    (void)state;
    struct serving r = server_open(2, 16, 0, 512);
    struct job *j = calloc(1, sizeof *j), *b = calloc(1, sizeof *b);
    nib_sampling_init(&j->sampling);
    j->sampling.temperature = 0.0f;
    j->n_prompt = 600;
    j->n_max = 60;
    random_ids(j->prompt, 1000);
    job_submit(r.server, j);
    job_wait(j);
    assert_int_equal(j->result.n_cached, 0);
    job_submit(r.server, j);
    job_wait(j);
    assert_int_equal(j->result.n_cached, 512);
    memcpy(j->prompt + 600, j->token, 59 * sizeof(int32_t)); /* what was generated comes back as history */
    j->n_prompt = 900;
    job_submit(r.server, j);
    job_wait(j);
    assert_int_equal(j->result.n_cached, 640);
    *b = *j;
    b->prompt[700]++; /* behind 640, before 768 */
    job_submit(r.server, b);
    job_wait(b);
    assert_int_equal(b->result.n_cached, 640);
    j->salt = 1;
    job_submit(r.server, j);
    job_wait(j);
    assert_int_equal(j->result.n_cached, 0);
    jobs_check_alone(j, 1);
    jobs_check_alone(b, 1);
    server_close(&r);
    free(j);
    free(b);
}

/* B96: conversations that take turns do not drive each other out while there is room: from the second turn on only what
 * is new is read. */
static void test_interleaved(void **state)
{
    (void)state;
    enum { N = 3, N_TURNS = 3 };
    struct serving r = server_open(2, 16, 0, 512);
    struct job *jobs = calloc(N, sizeof *jobs);
    for (int i = 0; i < N; i++) {
        nib_sampling_init(&jobs[i].sampling);
        jobs[i].n_max = 4;
        random_ids(jobs[i].prompt, 140 * N_TURNS);
    }
    for (int turn = 1; turn <= N_TURNS; turn++)
        for (int i = 0; i < N; i++) {
            const int32_t n_before = jobs[i].n_prompt;
            jobs[i].n_prompt = 140 * turn;
            job_submit(r.server, &jobs[i]);
            job_wait(&jobs[i]);
            assert_int_equal(jobs[i].result.n_cached, n_before / 128 * 128);
        }
    jobs_check_alone(&jobs[N - 1], 1);
    server_close(&r);
    free(jobs);
}

/* Many of one prompt at once: one reads it, the others wait for that. */
static void test_same_prompt_at_once(void **state)
{
    (void)state;
    struct serving r = server_open(6, 8, 0, 100);
    struct job *jobs = calloc(6, sizeof *jobs);
    int32_t n_cached = 0;
    random_ids(jobs[0].prompt, 500);
    for (int i = 0; i < 6; i++) {
        nib_sampling_init(&jobs[i].sampling);
        jobs[i].sampling.seed = (uint64_t)i;
        memcpy(jobs[i].prompt, jobs[0].prompt, sizeof jobs[0].prompt);
        jobs[i].n_prompt = 500;
        jobs[i].n_max = 8;
        job_submit(r.server, &jobs[i]);
    }
    for (int i = 0; i < 6; i++) {
        job_wait(&jobs[i]);
        n_cached += jobs[i].result.n_cached;
    }
    assert_int_equal(n_cached, 5 * 384);
    jobs_check_alone(jobs, 6);
    server_close(&r);
    free(jobs);
}

/* B78, B87: requests that go at any moment leave nothing behind, and what they left in the cache is right. */
static void test_cancelled(void **state)
{
    (void)state;
    struct serving r = server_open(4, 6, 0, 64);
    struct job *jobs = jobs_make();
    for (int i = 0; i < N_JOBS; i++)
        jobs[i].cancel_at = i % 3 == 0 ? 1 + (int32_t)random_below(4) : 0;
    int32_t n_before = jobs_n_ended();
    for (int i = 0; i < N_JOBS; i++)
        job_submit(r.server, &jobs[i]);
    for (int i = 0; i < N_JOBS; i++)
        if (random_below(2)) {
            if (random_below(2) && jobs[0].handle)
                job_wait(&jobs[0]);
            if (jobs[i].handle)
                nib_request_cancel(jobs[i].handle);
        }
    for (int i = 0; i < N_JOBS; i++)
        if (jobs[i].handle)
            job_wait(&jobs[i]);
    assert_int_equal(jobs_n_ended() - n_before, N_JOBS);
    for (int i = 0; i < N_JOBS; i++)
        jobs[i].cancel_at = 0;
    jobs_run(&r, jobs);
    jobs_check_alone(jobs, N_JOBS);
    struct nib_server_stats stats;
    nib_server_get_stats(r.server, &stats);
    assert_int_equal(stats.n_waiting, 0);
    server_close(&r);
    free(jobs);
}

static void ban_all_but(void *user, const struct nib_drawn_token *t, struct nib_next *next)
{
    static const int32_t allowed[] = {400, 500};
    job_on_token(user, t, next);
    next->allowed = allowed;
    next->n_allowed = t->index % 2 ? 1 : 2;
}

/* Edited rows: bans, prescribed tokens, held back stops; log-probabilities stay those of the model. */
static void test_edits(void **state)
{
    (void)state;
    struct serving r = server_open(2, 0, 0, 512);
    struct job *j = calloc(1, sizeof *j);
    struct alone *a = calloc(1, sizeof *a);
    nib_sampling_init(&j->sampling);
    j->sampling.temperature = 0.0f;
    j->n_prompt = 20;
    j->n_max = 6;
    random_ids(j->prompt, 20);
    job_run_alone(r.f.engine, j, a); /* the server is idle */
    const struct nib_logit_bias ban = {a->token[0], -INFINITY};
    struct nib_request_args args = {.prompt = j->prompt, .n_prompt = 20, .n_max = 6, .sampling = j->sampling, .bias = &ban, .n_bias = 1,
                                    .on_token = ban_all_but, .on_end = job_on_end, .user = j};
    assert_int_equal(nib_server_submit(r.server, &args, &j->handle, NULL), NIB_OK);
    job_wait(j);
    assert_int_not_equal(j->token[0], a->token[0]);
    assert_true(j->logprob[0] < a->logprob[0]);
    for (int i = 1; i < 6; i++)
        assert_true(j->token[i] == 400 || (j->token[i] == 500 && i % 2));
    /* The likeliest token is a stop id: it ends the request, unless it is held back. */
    args.n_bias = 0;
    args.on_token = job_on_token;
    args.stop_id = &a->token[0];
    args.n_stop = 1;
    for (int n_min = 0; n_min < 3; n_min++) {
        args.n_min = n_min;
        j->n_tokens = 0;
        j->ended = false;
        assert_int_equal(nib_server_submit(r.server, &args, &j->handle, NULL), NIB_OK);
        job_wait(j);
        if (n_min == 0) {
            assert_int_equal(j->n_tokens, 1);
            assert_int_equal(j->result.reason, NIB_STOP_ID);
        }
        for (int i = 0; i < n_min; i++)
            assert_int_not_equal(j->token[i], a->token[0]);
    }
    server_close(&r);
    free(a);
    free(j);
}

/* Time limits: of waiting, of a request without a token, of one with some. */
static void test_time_limits(void **state)
{
    (void)state;
    struct serving r = server_open(1, 0, 0, 64);
    struct job *running = calloc(1, sizeof *running), *j = calloc(1, sizeof *j);
    nib_sampling_init(&running->sampling);
    running->n_prompt = j->n_prompt = 8;
    running->n_max = JOB_TOKENS_MAX;
    random_ids(running->prompt, 8);
    random_ids(j->prompt, 8);
    struct nib_request_args a = {.prompt = running->prompt, .n_prompt = 8, .n_max = JOB_TOKENS_MAX, .sampling = running->sampling,
                                 .on_token = job_on_token, .on_end = job_on_end, .user = running, .total_s_max = 2};
    assert_int_equal(nib_server_submit(r.server, &a, &running->handle, NULL), NIB_OK);
    a.user = j;
    a.prompt = j->prompt;
    a.total_s_max = 0;
    a.wait_s_max = 1e-6;
    assert_int_equal(nib_server_submit(r.server, &a, &j->handle, NULL), NIB_OK);
    job_wait(j);
    assert_int_equal(j->result.status, NIB_E_TIME);
    assert_false(j->result.was_run);
    a.wait_s_max = 0;
    a.total_s_max = 1e-6;
    j->ended = false;
    assert_int_equal(nib_server_submit(r.server, &a, &j->handle, NULL), NIB_OK);
    job_wait(j);
    assert_int_equal(j->result.status, NIB_E_TIME);
    assert_int_equal(j->n_tokens, 0);
    job_wait(running);
    assert_int_equal(running->result.status, NIB_OK);
    assert_int_equal(running->result.reason, NIB_STOP_LENGTH);
    assert_true(running->n_tokens > 0 && (running->n_tokens == JOB_TOKENS_MAX || running->result.total_s > 2));
    a.wait_s_max = NAN;
    assert_int_equal(nib_server_submit(r.server, &a, NULL, NULL), NIB_E_ARGUMENT);
    server_close(&r);
    free(running);
    free(j);
}

struct top_check {
    struct job job;
    bool       ok;
};

static void check_top(void *user, const struct nib_drawn_token *t, struct nib_next *next)
{
    struct top_check *c = user;
    job_on_token(&c->job, t, next);
    c->ok = c->ok && t->n_top == 5 && t->top_id[0] == t->id && fabsf(t->top_logprob[0] - t->logprob) < 1e-5f;
    for (int i = 1; i < 5; i++)
        c->ok = c->ok && t->top_logprob[i] <= t->top_logprob[i - 1];
}

static void on_top_end(void *user, const struct nib_request_result *r)
{
    job_on_end(&((struct top_check *)user)->job, r);
}

static void test_top_and_drain(void **state)
{
    (void)state;
    struct serving r = server_open(2, 0, 0, 512);
    struct top_check *c = calloc(1, sizeof *c);
    struct nib_error err = {0};
    c->ok = true;
    nib_sampling_init(&c->job.sampling);
    c->job.sampling.temperature = 0.0f;
    random_ids(c->job.prompt, 10);
    const struct nib_request_args args = {.prompt = c->job.prompt, .n_prompt = 10, .n_max = 8, .sampling = c->job.sampling, .n_top = 5,
                                          .on_token = check_top, .on_end = on_top_end, .user = c};
    assert_int_equal(nib_server_submit(r.server, &args, &c->job.handle, NULL), NIB_OK);
    nib_server_drain(r.server);
    assert_int_equal(nib_server_submit(r.server, &args, NULL, &err), NIB_E_STATE);
    job_wait(&c->job);
    assert_int_equal(c->job.result.status, NIB_OK);
    assert_int_equal(c->job.n_tokens, 8);
    assert_true(c->ok);
    server_close(&r);
    free(c);
}

/* Closing ends what runs and what waits. */
static void test_close_while_busy(void **state)
{
    (void)state;
    struct serving r = server_open(2, 2, 0, 64);
    struct job *jobs = jobs_make();
    for (int i = 0; i < N_JOBS; i++)
        job_submit(r.server, &jobs[i]);
    nib_server_stop(r.server);
    const struct nib_request_args late = {.prompt = jobs[0].prompt, .n_prompt = 1, .sampling = jobs[0].sampling};
    assert_int_equal(nib_server_submit(r.server, &late, NULL, NULL), NIB_E_STATE);
    struct nib_server_stats stats;
    nib_server_get_stats(r.server, &stats);
    assert_int_equal(stats.n_running + stats.n_waiting, 0);
    server_close(&r);
    for (int i = 0; i < N_JOBS; i++) {
        assert_true(jobs[i].ended);
        assert_true(jobs[i].result.status == NIB_OK || jobs[i].result.status == NIB_E_CANCELLED);
        nib_request_close(jobs[i].handle);
    }
    free(jobs);
}

/* on_told: what one step brought to several requests is followed by one call, before the next step brings more; ends
 * without a step are, too. */
struct told {
    int32_t n_now[3], n_open; /* tokens of each request, and whatever was told, since the last call */
    int32_t n_calls, n_both;  /* all calls; those after a token of both */
    bool    ok;
    sem_t   submitted; /* all of them */
};
struct told_job {
    struct job   job;
    struct told *told;
    int          index;
};

static void count_token(void *user, const struct nib_drawn_token *t, struct nib_next *next)
{
    struct told_job *j = user;
    job_on_token(&j->job, t, next);
    if (j->index == 0 && t->index == 0)
        while (sem_wait(&j->told->submitted) != 0) /* so that the second one decodes beside it */
            continue;
    j->told->ok &= ++j->told->n_now[j->index] == 1; /* else a step went by without a call */
    j->told->n_open++;
}

static void count_end(void *user, const struct nib_request_result *r)
{
    struct told_job *j = user;
    j->told->n_open++;
    job_on_end(&j->job, r);
}

static void count_call(void *user)
{
    struct told *t = user;
    t->n_both += t->n_now[0] > 0 && t->n_now[1] > 0;
    t->n_now[0] = t->n_now[1] = t->n_open = 0;
    t->n_calls++;
}

static void test_told(void **state)
{
    (void)state;
    struct serving r = server_open(2, 0, 0, 64);
    struct told t = {.ok = true};
    (void)sem_init(&t.submitted, 0, 0);
    struct told_job *j = calloc(3, sizeof *j);
    struct nib_server_options o;
    nib_server_close(r.server);
    nib_server_options_init(&o);
    o.n_running_max = 2;
    o.reuse = false;
    o.on_told = count_call;
    o.user = &t;
    assert_int_equal(nib_server_open(r.f.engine, &o, &r.server, NULL), NIB_OK);
    for (int i = 0; i < 3; i++) { /* the third only waits, and ends by its time */
        j[i].told = &t;
        j[i].index = i;
        nib_sampling_init(&j[i].job.sampling);
        random_ids(j[i].job.prompt, 8);
        const struct nib_request_args a = {.prompt = j[i].job.prompt, .n_prompt = 8, .n_max = 12, .sampling = j[i].job.sampling,
                                           .wait_s_max = i == 2 ? 1e-6 : 0, .on_token = count_token, .on_end = count_end, .user = &j[i]};
        assert_int_equal(nib_server_submit(r.server, &a, &j[i].job.handle, NULL), NIB_OK);
    }
    (void)sem_post(&t.submitted);
    for (int i = 0; i < 3; i++)
        job_wait(&j[i].job);
    nib_server_stop(r.server);
    (void)sem_destroy(&t.submitted);
    assert_true(t.ok);
    assert_int_equal(t.n_open, 0);
    assert_int_equal(j[0].job.n_tokens, 12);
    assert_int_equal(j[1].job.n_tokens, 12);
    assert_int_equal(j[2].job.result.status, NIB_E_TIME);
    assert_true(t.n_calls >= 12);
    assert_true(t.n_both >= 10);
    server_close(&r);
    free(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_full),           cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_neighbours_int8),     cmocka_unit_test(test_told),
        cmocka_unit_test(test_too_long),            cmocka_unit_test(test_hits),
        cmocka_unit_test(test_interleaved),
        cmocka_unit_test(test_same_prompt_at_once), cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_edits),               cmocka_unit_test(test_top_and_drain),
        cmocka_unit_test(test_close_while_busy),    cmocka_unit_test(test_time_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
