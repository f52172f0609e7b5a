/* 2,000 random operations on sequences, against a list of the tokens that each should hold: appending in batches, generating with wrong
 * drafts, forking, cutting back, saving and loading, closing. Now and then a sequence's logits are compared, as bits, with those of a
 * fresh one that was fed its list in one go. At the end the pool is empty.
 *
 *   test_soak [SEED [OPERATIONS [THREADS]]]
 *
 * The seed is new each time and printed; a failure prints it again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "support/model_support.h"

#define N_SEQS     5
#define N_CTX      300
#define N_ROLLBACK 16

/* What a sequence should hold. */
struct held {
    struct nib_seq *seq;
    int32_t         n, high, token[N_CTX];
};

static struct {
    struct fixture f;
    struct held    held[N_SEQS];
    int32_t        n_open;
    uint64_t       seed, random;
    int32_t        n_operations, n_threads, at, n_checked;
    char           path[64];
} g = {.n_operations = 2000, .n_threads = 1};

static uint32_t below(uint32_t n)
{
    g.random = g.random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g.random >> 33) % n;
}

/* Stop with what replays the run. */
static void expect(bool ok, const char *what, const struct nib_error *err)
{
    if (!ok)
        fail_msg("seed %llu, operation %d: %s%s%s", (unsigned long long)g.seed, (int)g.at, what, err ? ": " : "",
                 err ? err->text : "");
}

static struct held *pick(void)
{
    return &g.held[below((uint32_t)g.n_open)];
}

static uint64_t hash_row(const float *x, int32_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        h = (h ^ bits) * 0x100000001b3u;
    }
    return h;
}

static void step(int32_t n_seqs, struct nib_seq *const *seq, const int32_t *start, const int32_t *token,
                 const int32_t *row, int32_t n_rows, float *logits)
{
    struct nib_error err = {0};
    const struct nib_batch b = {.n_rows = start[n_seqs], .n_seqs = n_seqs, .n_logits = n_rows, .token = token, .seq_start = start,
                                .seq = seq, .logits_row = row};
    expect(nib_step(g.f.engine, &b, logits, NULL, &err) == NIB_OK, "a step failed", &err);
}

static int32_t random_token(void)
{
    return (int32_t)below((uint32_t)g.f.vocab);
}

/* New tokens for some of the sequences in one step. */
static void append(void)
{
    struct nib_seq *seq[N_SEQS];
    int32_t start[N_SEQS + 1] = {0}, token[N_CTX * N_SEQS], k = 0;
    const int32_t most = below(12) == 0 ? 140 : 6;
    for (int32_t i = 0; i < g.n_open; i++) {
        struct held *h = &g.held[i];
        int32_t n = 1 + (int32_t)below((uint32_t)most);
        n = n < N_CTX - h->n ? n : N_CTX - h->n;
        if (n == 0 || below(2))
            continue;
        for (int32_t t = 0; t < n; t++)
            token[start[k] + t] = h->token[h->n++] = random_token();
        h->high = h->high > h->n ? h->high : h->n;
        seq[k] = h->seq;
        start[k + 1] = start[k] + n;
        k++;
    }
    if (k > 0)
        step(k, seq, start, token, NULL, 0, NULL);
}

static bool keep_token(void *user, int32_t token, float logprob)
{
    struct held *h = user;
    (void)logprob;
    h->token[h->n++] = token;
    return true;
}

static void wrong(void *user, int32_t position, int32_t n, int32_t *token)
{
    (void)user;
    (void)position;
    for (int32_t i = (int32_t)below(2); i < n; i++)
        token[i] = random_token();
}

static void generate(struct held *h)
{
    struct nib_error err = {0};
    struct nib_generate_result r;
    const int32_t prompt = random_token(), n_max = 1 + (int32_t)below(6);
    if (h->n + 1 + n_max > N_CTX)
        return;
    struct nib_generate_args a = {.seq = h->seq, .prompt = &prompt, .n_prompt = 1, .n_max = n_max, .n_drafts = (int32_t)below(5),
                                  .on_token = keep_token, .user = h};
    nib_sampling_init(&a.sampling);
    a.sampling.temperature = below(2) ? 0 : 1;
    a.sampling.seed = g.random;
    g.f.engine->drafts.force = below(3) ? wrong : NULL;
    h->token[h->n++] = prompt;
    expect(nib_generate(g.f.engine, &a, &r, &err) == NIB_OK, "generating failed", &err);
    g.f.engine->drafts.force = NULL;
    h->n--; /* the last token is not kept */
    h->high = h->high > h->n ? h->high : h->n;
}

static void open_one(void)
{
    struct nib_error err = {0};
    struct nib_seq *s = NULL;
    const enum nib_status status = nib_seq_open(g.f.engine, &s, &err);
    expect(status == (g.n_open < N_SEQS ? NIB_OK : NIB_E_LIMIT), "opening", &err);
    if (s)
        g.held[g.n_open++] = (struct held){.seq = s};
}

static void fork_one(struct held *h)
{
    struct nib_error err = {0};
    struct nib_seq *s = NULL;
    const enum nib_status status = nib_seq_fork(h->seq, &s, &err);
    expect(status == (g.n_open < N_SEQS ? NIB_OK : NIB_E_LIMIT), "forking", &err);
    if (s) {
        g.held[g.n_open] = *h;
        g.held[g.n_open++].seq = s;
    }
}

static void truncate_one(struct held *h)
{
    const int32_t reach = below(4) == 0 ? h->n + 1 : h->n < 8 ? h->n + 1 : 8;
    const int32_t length = below(20) == 0 ? 0 : h->n - (int32_t)below((uint32_t)reach);
    const enum nib_status status = nib_seq_truncate(h->seq, length);
    const bool promised = length == h->n || length == 0 || length >= h->high - N_ROLLBACK;
    expect(status == NIB_OK || (!promised && status == NIB_E_STATE), "cutting back", NULL);
    if (status == NIB_OK) {
        h->n = length;
        h->high = length == 0 ? 0 : h->high;
    }
}

static void close_one(struct held *h)
{
    nib_seq_close(h->seq);
    *h = g.held[--g.n_open];
}

/* Through a file; only the last tokens can be cut then. */
static void save_and_load(struct held *h)
{
    struct nib_error err = {0};
    expect(nib_seq_save(h->seq, g.path, &err) == NIB_OK, "saving", &err);
    nib_seq_close(h->seq);
    expect(nib_seq_load(g.f.engine, g.path, &h->seq, &err) == NIB_OK, "loading", &err);
}

/* One more token on the sequence and the same list on a fresh one. A slot is needed for it. */
static void check(struct held *h)
{
    if (g.n_open == N_SEQS) {
        const bool is_last = h == &g.held[N_SEQS - 1]; /* it moves into the place of what is closed */
        close_one(&g.held[is_last ? 0 : N_SEQS - 1]);
        h = is_last ? &g.held[0] : h;
    }
    if (h->n == 0 || h->n == N_CTX)
        return;
    struct nib_error err = {0};
    struct nib_seq *fresh = NULL;
    float *logits = malloc((size_t)g.f.vocab * sizeof *logits);
    assert_non_null(logits);
    const int32_t token = random_token(), start[2] = {0, 1}, row = 0, all[2] = {0, h->n + 1}, last = h->n;
    h->token[h->n++] = token;
    h->high = h->high > h->n ? h->high : h->n;
    step(1, &h->seq, start, &token, &row, 1, logits);
    const uint64_t got = hash_row(logits, g.f.vocab);
    expect(nib_seq_open(g.f.engine, &fresh, &err) == NIB_OK, "opening for a check", &err);
    step(1, &fresh, all, h->token, &last, 1, logits);
    expect(got == hash_row(logits, g.f.vocab), "the logits differ from those of a fresh sequence", NULL);
    nib_seq_close(fresh);
    free(logits);
    g.n_checked++;
}

static void operate(void)
{
    if (g.n_open == 0) {
        open_one();
        return;
    }
    const uint32_t what = below(100);
    if (what < 40)
        append();
    else if (what < 50)
        generate(pick());
    else if (what < 54)
        open_one();
    else if (what < 64)
        fork_one(pick());
    else if (what < 84)
        truncate_one(pick());
    else if (what < 94)
        close_one(pick());
    else if (what < 97)
        save_and_load(pick());
    else
        check(pick());
}

static void test_soak(void **state)
{
    (void)state;
    struct nib_options o;
    nib_options_init(&o);
    o.backend = "cpu";
    o.n_ctx = N_CTX;
    o.n_seqs_max = N_SEQS;
    o.n_rows_max = 140 * N_SEQS;
    o.n_rollback = N_ROLLBACK;
    o.n_threads = g.n_threads;
    o.n_drafts = 4;
    g.random = g.seed;
    printf("seed %llu, %d operations\n", (unsigned long long)g.seed, (int)g.n_operations);
    (void)snprintf(g.path, sizeof g.path, "%s/nibble-soak-%ld", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
                   (long)getpid());
    g.f = fixture_open(MODEL_NVFP4, &o);
    for (g.at = 0; g.at < g.n_operations; g.at++) {
        operate();
        for (int32_t i = 0; i < g.n_open; i++)
            expect(nib_seq_length(g.held[i].seq) == g.held[i].n, "a sequence's length is wrong", NULL);
        const struct nib_pool *p = &g.f.engine->rank.pool;
        expect(p->n_slots_used == g.n_open, "the number of slots in use is wrong", NULL);
        if (g.n_open == 0)
            expect(p->window.n_free == p->window.n && p->entry.n_free == p->entry.n, "pages are lost", NULL);
    }
    while (g.n_open > 0)
        close_one(&g.held[0]);
    const struct nib_pool *p = &g.f.engine->rank.pool;
    assert_int_equal(p->window.n_free, p->window.n);
    assert_int_equal(p->entry.n_free, p->entry.n);
    assert_int_equal(p->n_slots_used, 0);
    printf("%d sequences compared with fresh ones\n", (int)g.n_checked);
    assert_true(g.n_operations < 500 || g.n_checked > g.n_operations / 100);
    (void)unlink(g.path);
    fixture_close(&g.f);
}

int main(int argc, char **argv)
{
    g.seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    if (argc > 2)
        g.n_operations = (int32_t)strtol(argv[2], NULL, 10);
    if (argc > 3)
        g.n_threads = (int32_t)strtol(argv[3], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_soak)};
    return cmocka_run_group_tests_name("soak", tests, NULL, NULL);
}
