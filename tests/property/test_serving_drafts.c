/* Drafts inside batches change nothing but speed: at any temperature, with penalties, edits, stops, preemption and
 * cached beginnings, a request gets the tokens and log-probabilities that it gets alone without drafts, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "engine/scheduler.h"
#include "support/serving_support.h"

/* Guesses that are wrong from a place on which the position decides. */
static void spoil(void *user, int32_t position, int32_t n, int32_t *token)
{
    const int32_t first_wrong = position * 5 % (n + 1);
    ++*(int32_t *)user;
    for (int32_t i = first_wrong; i < n; i++)
        token[i] ^= 1;
}

static void check_stats(const struct serving *r, bool has_rejected)
{
    struct nib_server_stats stats;
    nib_server_get_stats(r->server, &stats);
    assert_true(stats.n_drafts > 0 && stats.n_accepted_tokens > 0);
    assert_true(has_rejected ? stats.n_accepted_tokens < stats.n_draft_tokens : stats.n_accepted_tokens <= stats.n_draft_tokens);
}

/* However many drafts, right or wrong, in whatever company. */
static void test_same_text(void **state)
{
    (void)state;
    static const struct {
        int32_t n_running, n_kept, n_prefill, n_drafts;
        bool    spoils;
    } settings[] = {{6, 8, 200, 3, true}, {3, 0, 70, 8, false}, {6, 0, 512, NIB_DRAFTS_AUTO, false}};
    enum { N = 6 };
    struct job *jobs = jobs_make();
    for (int i = 0; i < N; i++)
        jobs[i].n_max += 12; /* over a page border for some */
    struct alone *alone = jobs_alone(jobs, N);
    for (size_t k = 0; k < sizeof settings / sizeof settings[0]; k++) {
        struct serving r = server_open_drafting(settings[k].n_running, settings[k].n_kept, 0, settings[k].n_prefill,
                                                settings[k].n_drafts);
        int32_t n_spoilt = 0;
        if (settings[k].spoils) {
            r.f.engine->drafts.force = spoil;
            r.f.engine->drafts.force_user = &n_spoilt;
        }
        for (int i = 0; i < N; i++)
            job_submit(r.server, &jobs[i]);
        for (int i = 0; i < N; i++)
            job_wait(&jobs[i]);
        for (int i = 0; i < N; i++)
            job_check(&jobs[i], &alone[i]);
        check_stats(&r, settings[k].n_drafts > 1);
        assert_true(!settings[k].spoils || n_spoilt > 10);
        server_close(&r);
    }
    free(alone);
    free(jobs);
}

/* The pool is full: those who give up their place had drafts too. Nothing of it stays taken. */
static void test_pool_full(void **state)
{
    (void)state;
    struct serving r = server_open_drafting(4, 0, 5, 256, 4);
    struct job *jobs = calloc(4, sizeof *jobs);
    int32_t n_preempted = 0;
    for (int i = 0; i < 4; i++) {
        nib_sampling_init(&jobs[i].sampling);
        jobs[i].sampling.temperature = i % 2 ? 1.0f : 0.0f;
        jobs[i].n_prompt = 100 + 10 * i;
        jobs[i].n_max = 40;
        random_ids(jobs[i].prompt, jobs[i].n_prompt);
        job_submit(r.server, &jobs[i]);
    }
    for (int i = 0; i < 4; i++) {
        job_wait(&jobs[i]);
        n_preempted += jobs[i].result.n_preempted;
    }
    assert_true(n_preempted > 0);
    check_stats(&r, true);
    server_close(&r); /* asserts that every sequence was closed */
    jobs_check_alone(jobs, 4);
    free(jobs);
}

/* What was generated with drafts is kept at the same borders as without, and is right: B87, B97, B101. */
static void test_kept_beginnings(void **state)
{
    (void)state;
    struct serving r = server_open_drafting(2, 16, 0, 512, 5);
    struct job *j = calloc(1, sizeof *j);
    nib_sampling_init(&j->sampling);
    j->sampling.temperature = 0.0f;
    j->n_prompt = 230;
    j->n_max = 40;
    random_ids(j->prompt, 500);
    job_submit(r.server, j);
    job_wait(j);
    memcpy(j->prompt + 230, j->token, 39 * sizeof(int32_t));
    j->n_prompt = 300;
    j->n_max = 8;
    job_submit(r.server, j);
    job_wait(j);
    assert_int_equal(j->result.n_cached, 256);
    jobs_check_alone(j, 1);
    server_close(&r);
    free(j);
}

/* ---- What a request prescribes ---- */

struct edits {
    struct job job;
    int32_t    allowed[2];
    int32_t    n_top_wrong;
};

/* Two tokens in four are free, one is either of two, one is given: the rows behind it were drawn before that was
 * known. */
static void prescribe(void *user, const struct nib_drawn_token *t, struct nib_next *next)
{
    struct edits *e = user;
    job_on_token(&e->job, t, next);
    e->n_top_wrong += t->n_top != 3 || t->top_logprob[0] < t->logprob - 1e-5f;
    next->allowed = e->allowed;
    next->n_allowed = t->index % 4 < 2 ? 0 : t->index % 4 - 1;
}

static void end_edits(void *user, const struct nib_request_result *result)
{
    job_on_end(&((struct edits *)user)->job, result);
}

static void run_edits(int32_t n_drafts, int32_t n_kind, struct edits *e)
{
    struct serving r = server_open_drafting(2, 0, 0, 256, n_drafts);
    static const struct nib_logit_bias bias = {500, 3.0f};
    const int32_t stops[2] = {e->job.token[9], 700};
    struct nib_request_args a = {.prompt = e->job.prompt, .n_prompt = e->job.n_prompt, .n_max = 24, .sampling = e->job.sampling, .n_top = 3,
                                 .on_token = prescribe, .on_end = end_edits, .user = e};
    if (n_kind == 1) {
        a.bias = &bias;
        a.n_bias = 1;
    } else if (n_kind == 2) { /* held back once, then met */
        a.stop_id = stops;
        a.n_stop = 2;
        a.n_min = 12;
    }
    e->job.n_tokens = 0;
    e->job.ended = false;
    assert_int_equal(nib_server_submit(r.server, &a, &e->job.handle, NULL), NIB_OK);
    job_wait(&e->job);
    assert_int_equal(e->job.result.status, NIB_OK);
    assert_int_equal(e->n_top_wrong, 0);
    server_close(&r);
}

static void test_edits(void **state)
{
    (void)state;
    struct edits *plain = calloc(1, sizeof *plain), *drafted = calloc(1, sizeof *drafted);
    for (int kind = 0; kind < 3; kind++) {
        struct job *j = &plain->job;
        nib_sampling_init(&j->sampling);
        j->sampling.temperature = kind == 1 ? 0.7f : 0.0f;
        j->sampling.frequency = kind == 2 ? 0.3f : 0.0f;
        j->sampling.seed = 11;
        j->n_prompt = 40;
        random_ids(j->prompt, 40);
        plain->allowed[0] = 400;
        plain->allowed[1] = 500;
        *drafted = *plain;
        run_edits(0, kind, plain);
        run_edits(4, kind, drafted);
        assert_int_equal(drafted->job.n_tokens, plain->job.n_tokens);
        assert_memory_equal(drafted->job.token, plain->job.token, (size_t)plain->job.n_tokens * sizeof(int32_t));
        assert_memory_equal(drafted->job.logprob, plain->job.logprob, (size_t)plain->job.n_tokens * sizeof(float));
        assert_int_equal(drafted->job.result.reason, plain->job.result.reason);
    }
    free(plain);
    free(drafted);
}

static void test_limits(void **state)
{
    (void)state;
    struct nib_options o;
    struct nib_server_options so;
    struct nib_server *s;
    struct nib_error err = {0};
    nib_options_init(&o);
    o.backend = "cpu";
    o.n_drafts = 2;
    o.n_seqs_max = 4;
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    nib_server_options_init(&so);
    so.n_running_max = 2;
    so.n_drafts = 3;
    assert_int_equal(nib_server_open(f.engine, &so, &s, &err), NIB_E_ARGUMENT);
    assert_non_null(strstr(err.text, "n_drafts is 3"));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_text), cmocka_unit_test(test_pool_full), cmocka_unit_test(test_kept_beginnings),
        cmocka_unit_test(test_edits),     cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
