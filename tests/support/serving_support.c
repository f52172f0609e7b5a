/* Jobs, their callbacks, and a server to send them to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <assert.h>
#include <pthread.h>

#include "support/serving_support.h"

static uint64_t g_random = 7;

uint32_t random_below(uint32_t n)
{
    g_random = g_random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g_random >> 33) % n;
}

void random_ids(int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = 300 + (int32_t)random_below(1500);
}

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    int32_t         n_ended;
};

static struct waiter g_waiter = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

void job_on_token(void *user, const struct nib_drawn_token *t, struct nib_next *next)
{
    struct job *j = user;
    assert(t->index == j->n_tokens && t->index < JOB_TOKENS_MAX);
    j->token[j->n_tokens] = t->id;
    j->logprob[j->n_tokens++] = t->logprob;
    next->stop = j->n_tokens == j->cancel_at;
}

void job_on_end(void *user, const struct nib_request_result *r)
{
    struct job *j = user;
    (void)pthread_mutex_lock(&g_waiter.lock);
    assert(!j->ended);
    j->ended = true;
    j->result = *r;
    g_waiter.n_ended++;
    (void)pthread_cond_broadcast(&g_waiter.changed);
    (void)pthread_mutex_unlock(&g_waiter.lock);
}

void job_submit(struct nib_server *s, struct job *j)
{
    struct nib_error err = {0};
    const struct nib_request_args a = {.prompt = j->prompt, .n_prompt = j->n_prompt, .n_max = j->n_max, .sampling = j->sampling,
                                       .salt = j->salt, .on_token = job_on_token, .on_end = job_on_end, .user = j};
    j->n_tokens = 0;
    j->ended = false;
    if (nib_server_submit(s, &a, &j->handle, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

void job_wait(struct job *j)
{
    (void)pthread_mutex_lock(&g_waiter.lock);
    while (!j->ended)
        (void)pthread_cond_wait(&g_waiter.changed, &g_waiter.lock);
    (void)pthread_mutex_unlock(&g_waiter.lock);
    nib_request_close(j->handle);
    j->handle = NULL;
}

/* ---- Alone ---- */

static bool keep_token(void *user, int32_t token, float logprob)
{
    struct alone *a = user;
    a->token[a->n] = token;
    a->logprob[a->n++] = logprob;
    return true;
}

void job_run_alone(struct nib_engine *e, const struct job *j, struct alone *out)
{
    struct nib_seq *seq;
    struct nib_generate_result r;
    struct nib_error err = {0};
    out->n = 0;
    assert_int_equal(nib_seq_open(e, &seq, &err), NIB_OK);
    const struct nib_generate_args a = {.seq = seq, .prompt = j->prompt, .n_prompt = j->n_prompt, .n_max = j->n_max,
                                        .sampling = j->sampling, .on_token = keep_token, .user = out};
    if (nib_generate(e, &a, &r, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib_seq_close(seq);
}

void job_check(const struct job *j, const struct alone *a)
{
    assert_int_equal(j->result.status, NIB_OK);
    assert_int_equal(j->n_tokens, a->n);
    assert_memory_equal(j->token, a->token, (size_t)a->n * sizeof(int32_t));
    assert_memory_equal(j->logprob, a->logprob, (size_t)a->n * sizeof(float));
}

/* ---- Settings ---- */

static enum nib_act_quant g_act_quant = NIB_ACT_QUANT_NONE;

void serving_act_quant_set(enum nib_act_quant q)
{
    g_act_quant = q;
}

static struct nib_options options_of(int32_t n_seqs)
{
    struct nib_options o;
    nib_options_init(&o);
    o.backend = "cpu";
    o.n_ctx = 1280;
    o.n_seqs_max = n_seqs;
    o.n_threads = 1;
    o.act_quant = g_act_quant;
    return o;
}

struct serving server_open(int32_t n_running, int32_t n_kept, int32_t n_pages, int32_t n_prefill)
{
    return server_open_drafting(n_running, n_kept, n_pages, n_prefill, 0);
}

struct serving server_open_drafting(int32_t n_running, int32_t n_kept, int32_t n_pages, int32_t n_prefill, int32_t n_drafts)
{
    struct serving r;
    struct nib_options o = options_of(n_running + n_kept);
    struct nib_server_options so;
    struct nib_error err = {0};
    o.n_kv_pages = n_pages;
    o.n_drafts = n_drafts == NIB_DRAFTS_AUTO ? 8 : n_drafts;
    o.n_rows_max = 256 + n_running * o.n_drafts;
    r.f = fixture_open(MODEL_NVFP4, &o);
    nib_server_options_init(&so);
    so.n_running_max = n_running;
    so.n_prefill_max = n_prefill;
    so.n_drafts = n_drafts;
    if (nib_server_open(r.f.engine, &so, &r.server, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return r;
}

void server_close(struct serving *r)
{
    nib_server_close(r->server);
    fixture_close(&r->f);
}

struct job *jobs_make(void)
{
    static const int32_t lengths[N_JOBS] = {1, 5, 127, 128, 129, 150, 280, 300, 300, 60};
    struct job *jobs = calloc(N_JOBS, sizeof *jobs);
    assert_non_null(jobs);
    for (int i = 0; i < N_JOBS; i++) {
        struct job *j = &jobs[i];
        j->n_prompt = lengths[i];
        j->n_max = 3 + (int32_t)random_below(12);
        nib_sampling_init(&j->sampling);
        j->sampling.temperature = i % 3 == 0 ? 0.0f : 1.0f;
        j->sampling.top_p = i % 2 ? 0.95f : 1.0f;
        j->sampling.seed = 1000 + (uint64_t)i;
        if (i % 4 == 1) {
            j->sampling.presence = 0.5f;
            j->sampling.repetition = 1.3f;
        }
        random_ids(j->prompt, j->n_prompt);
        if (i > 6)
            memcpy(j->prompt, jobs[6].prompt, sizeof(int32_t) * (size_t)(j->n_prompt < 270 ? j->n_prompt : 270));
        j->salt = i == 8;
    }
    return jobs;
}

struct alone *jobs_alone(const struct job *jobs, int32_t n_jobs)
{
    const struct nib_options o = options_of(1);
    struct alone *a = calloc((size_t)n_jobs, sizeof *a);
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    for (int32_t i = 0; i < n_jobs; i++)
        job_run_alone(f.engine, &jobs[i], &a[i]);
    fixture_close(&f);
    return a;
}

void jobs_check_alone(const struct job *jobs, int32_t n_jobs)
{
    struct alone *a = jobs_alone(jobs, n_jobs);
    for (int32_t i = 0; i < n_jobs; i++)
        job_check(&jobs[i], &a[i]);
    free(a);
}

void jobs_run(const struct serving *r, struct job *jobs)
{
    for (int i = 0; i < N_JOBS; i++)
        job_submit(r->server, &jobs[i]);
    for (int i = 0; i < N_JOBS; i++)
        job_wait(&jobs[i]);
}

int32_t jobs_n_ended(void)
{
    return g_waiter.n_ended;
}
