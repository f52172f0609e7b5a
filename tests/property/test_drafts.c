/* Drafts change nothing but the speed: the same greedy text, log-probabilities and state, bit for bit, whatever the
 * guesses are. A hook replaces the guesses, since the model's own are right so often that they would hide a wrong
 * roll-back. B numbers are those of the public faults that a test restates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "support/model_support.h"

#define N_IDS 777
#define N_MOST 400

struct setting {
    const char        *name, *backend, *dir;
    enum nib_kv        kv;
    enum nib_act_quant act;
    enum nib_numerics  numerics;
    int                stride; /* every stride-th case */
};

static struct setting g_settings[] = {
    {"B51 cpu nvfp4 bf16", "cpu", MODEL_NVFP4, NIB_KV_BF16, NIB_ACT_QUANT_NONE, NIB_NUMERICS_MODEL, 1},
    {"B51 cpu nvfp4 nvfp4", "cpu", MODEL_NVFP4, NIB_KV_NVFP4, NIB_ACT_QUANT_NVFP4, NIB_NUMERICS_MODEL, 11},
    {"B51 cpu official release", "cpu", MODEL_OFFICIAL, NIB_KV_FP8, NIB_ACT_QUANT_FP8, NIB_NUMERICS_RELEASE, 11},
    {"B51 ref nvfp4 f32", "ref", MODEL_NVFP4, NIB_KV_F32, NIB_ACT_QUANT_NONE, NIB_NUMERICS_MODEL, 37},
};
#define N_SETTINGS ((int)(sizeof g_settings / sizeof g_settings[0]))

static int32_t g_ids[N_IDS];

/* What a run gave. */
struct text {
    int32_t                    n, token[N_MOST], length;
    float                      logprob[N_MOST];
    int32_t                    stop_after; /* the callback ends the text after so many tokens; 0: never */
    struct nib_generate_result result;
    struct nib_sampling        sampling;
};

static bool on_token(void *user, int32_t token, float logprob)
{
    struct text *t = user;
    assert_true(t->n < N_MOST);
    t->token[t->n] = token;
    t->logprob[t->n++] = logprob;
    return t->n != t->stop_after;
}

/* Tokens of a step that are sums of one order: a card has another one for more (docs/contracts.md, Order). */
static int32_t rows_of_one_order(const struct setting *s)
{
    return strcmp(s->backend, "cuda") == 0 ? 16 : 256;
}

static struct fixture open_engine_for(const struct setting *s, int32_t n_drafts, int32_t n_ctx, int32_t n_rows_max)
{
    struct nib_options o;
    nib_options_init(&o);
    o.backend = s->backend;
    o.n_ctx = n_ctx;
    o.n_seqs_max = 3;
    o.n_rows_max = n_rows_max;
    o.n_threads = 1;
    o.kv = s->kv;
    o.act_quant = s->act;
    o.numerics = s->numerics;
    o.n_drafts = n_drafts;
    return fixture_open(s->dir, &o);
}

static struct fixture open_engine(const struct setting *s, int32_t n_drafts, int32_t n_ctx)
{
    return open_engine_for(s, n_drafts, n_ctx, 256);
}

static struct nib_seq *open_seq(struct fixture *f)
{
    struct nib_error err = {0};
    struct nib_seq *s = NULL;
    if (nib_seq_open(f->engine, &s, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return s;
}

static struct nib_seq *fork_of(struct nib_seq *s)
{
    struct nib_error err = {0};
    struct nib_seq *copy = NULL;
    if (nib_seq_fork(s, &copy, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return copy;
}

/* Continue seq with ids, then up to n_max tokens. */
static void generate(struct fixture *f, struct nib_seq *seq, const int32_t *ids, int32_t n_ids, int32_t n_max,
                     int32_t n_drafts, int32_t stop_id, struct text *t)
{
    struct nib_error err = {0};
    const struct nib_generate_args a = {.seq = seq, .prompt = ids, .n_prompt = n_ids, .n_max = n_max, .stop_id = &stop_id,
                                        .n_stop = stop_id >= 0, .sampling = t->sampling, .n_drafts = n_drafts,
                                        .on_token = on_token, .user = t};
    t->n = 0;
    if (nib_generate(f->engine, &a, &t->result, &err) != NIB_OK)
        fail_msg("%s", err.text);
    t->length = nib_seq_length(seq);
}

static void greedy(struct text *t)
{
    memset(t, 0, sizeof *t);
    nib_sampling_init(&t->sampling);
    t->sampling.temperature = 0;
}

static void expect_same(const char *what, const struct text *got, const struct text *want)
{
    for (int32_t i = 0; i < got->n && i < want->n; i++) {
        if (got->token[i] != want->token[i])
            fail_msg("%s: token %d is %d, wanted %d", what, (int)i, (int)got->token[i], (int)want->token[i]);
        if (memcmp(&got->logprob[i], &want->logprob[i], sizeof(float)) != 0)
            fail_msg("%s: the log-probability of token %d differs", what, (int)i);
    }
    if (got->n != want->n || got->length != want->length || got->result.reason != want->result.reason)
        fail_msg("%s: %d tokens, length %d, reason %d; wanted %d, %d, %d", what, (int)got->n, (int)got->length,
                 (int)got->result.reason, (int)want->n, (int)want->length, (int)want->result.reason);
}

/* ---- The hook ---- */

/* Guesses that are right up to draft j and wrong from there on. */
struct force {
    const struct text *right;
    int32_t            first; /* position of right->token[0] */
    int32_t            j, vocab;
    uint32_t           random;
};

static void force(void *user, int32_t position, int32_t n, int32_t *token)
{
    struct force *w = user;
    for (int32_t i = 0; i < n; i++) {
        const int32_t at = position + i - w->first;
        if (i < w->j && at < w->right->n) {
            token[i] = w->right->token[at];
            continue;
        }
        w->random = w->random * 1664525u + 1013904223u;
        token[i] = (int32_t)((w->random >> 8) % (uint32_t)w->vocab);
        if (at < w->right->n && token[i] == w->right->token[at])
            token[i] = (token[i] + 1) % w->vocab;
    }
}

/* ---- State as bytes ---- */

static char *state_of(struct nib_seq *seq, size_t *n)
{
    struct nib_error err = {0};
    /* In memory where the system has such a folder: saving waits for the disk. */
    char path[32];
    (void)snprintf(path, sizeof path, "%s/nibble-test-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    if (nib_seq_save(seq, path, &err) != NIB_OK)
        fail_msg("%s", err.text);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *data = malloc(1 << 24);
    assert_non_null(data);
    *n = fread(data, 1, 1 << 24, file);
    assert_true(*n < 1 << 24);
    (void)fclose(file);
    (void)unlink(path);
    return data;
}

static void expect_state(const char *what, struct nib_seq *got, const char *want, size_t n_want)
{
    size_t n = 0;
    char *data = state_of(got, &n);
    if (n != n_want || memcmp(data, want, n) != 0)
        fail_msg("%s: the state differs from that of a run without drafts", what);
    free(data);
}

static void expect_pool_empty(const struct fixture *f)
{
    const struct nib_pool *p = &f->engine->rank.pool;
    assert_int_equal(p->window.n_free, p->window.n);
    assert_int_equal(p->entry.n_free, p->entry.n);
    assert_int_equal(p->n_slots_used, 0);
}

/* ---- B51: roll-back across boundaries ---- */

static const int32_t k_starts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 124, 125, 126, 127, 128, 129, 130, 131, 132};
static const int32_t k_drafts[] = {1, 2, 3, 4, 8};

static void check_start(struct fixture *f, int32_t start, int stride, int *n_case)
{
    struct text want, got;
    greedy(&want);
    greedy(&got);
    struct nib_seq *prefix = open_seq(f);
    generate(f, prefix, g_ids, start, 1, 0, -1, &want); /* leaves the prompt alone in the sequence */
    assert_int_equal(nib_seq_length(prefix), start);
    const int32_t first = want.token[0];
    struct nib_seq *plain = fork_of(prefix);
    generate(f, plain, &first, 1, 9, 0, -1, &want);
    size_t n_plain_state = 0;
    char *plain_state = state_of(plain, &n_plain_state);
    for (size_t d = 0; d < sizeof k_drafts / sizeof k_drafts[0]; d++)
        for (int32_t j = 0; j <= k_drafts[d]; j++) {
            if ((*n_case)++ % stride != 0 || (k_drafts[d] == 8 && j % 4 != 0))
                continue;
            char what[96];
            (void)snprintf(what, sizeof what, "start %d, %d drafts, wrong from %d", (int)start, (int)k_drafts[d],
                           (int)j);
            struct force w = {&want, start + 1, j, f->vocab, (uint32_t)start * 977 + (uint32_t)j};
            struct nib_drafts *drafts = &f->engine->drafts;
            struct nib_seq *seq = fork_of(prefix);
            drafts->force = force;
            drafts->force_user = &w;
            generate(f, seq, &first, 1, 9, k_drafts[d], -1, &got);
            drafts->force = NULL;
            expect_same(what, &got, &want);
            assert_true(got.result.n_drafted > 0);
            if (j == 0)
                assert_int_equal(got.result.n_accepted, 0);
            if (j == k_drafts[d])
                assert_int_equal(got.result.n_accepted, got.result.n_drafted);
            expect_state(what, seq, plain_state, n_plain_state);
            nib_seq_close(seq);
        }
    free(plain_state);
    nib_seq_close(plain);
    nib_seq_close(prefix);
}

static void test_rollback(void **state)
{
    const struct setting *s = *state;
    struct fixture f = open_engine(s, 8, 512);
    int n_case = 0;
    for (size_t i = 0; i < sizeof k_starts / sizeof k_starts[0]; i++)
        check_start(&f, k_starts[i], s->stride, &n_case);
    expect_pool_empty(&f);
    fixture_close(&f);
}

/* The engine without room for drafts is the measure: the model's own guesses, penalties, stops and limits. */
static void test_same_text(void **state)
{
    (void)state;
    static struct text want[2], got;
    struct fixture plain = open_engine(&g_settings[0], 0, 320), f = open_engine(&g_settings[0], 8, 320);
    for (int round = 0; round < 2; round++) {
        greedy(&want[0]);
        greedy(&got);
        if (round == 1) {
            got.sampling.repetition = 1.3f;
            got.sampling.frequency = 0.4f;
            got.sampling.presence = 0.2f;
        }
        want[0].sampling = want[1].sampling = got.sampling;
        /* A second prompt comes behind the first text, and a text until the context is full. */
        struct nib_seq *a = open_seq(&plain);
        generate(&plain, a, g_ids, 100, 60, 0, -1, &want[0]);
        generate(&plain, a, g_ids + 50, 70, 0, 0, -1, &want[1]);
        nib_seq_close(a);
        for (int32_t k = NIB_DRAFTS_AUTO; k <= 8; k += 3) {
            struct nib_seq *b = open_seq(&f);
            generate(&f, b, g_ids, 100, 60, k, -1, &got);
            expect_same(round ? "penalties" : "own guesses", &got, &want[0]);
            generate(&f, b, g_ids + 50, 70, 0, k, -1, &got);
            expect_same(round ? "penalties, to the end" : "own guesses, to the end", &got, &want[1]);
            nib_seq_close(b);
        }
    }
    fixture_close(&plain);
    fixture_close(&f);
}

/* A text ends at the same token, and leaves the same tokens in the sequence, wherever among the drafts its end lies.
 * B49: nothing comes after it. */
static void test_ends(void **state)
{
    (void)state;
    static struct text all, want, got;
    struct fixture f = open_engine(&g_settings[0], 4, 160);
    struct nib_seq *prefix = open_seq(&f), *seq;
    greedy(&all);
    generate(&f, prefix, g_ids, 120, 1, 0, -1, &all);
    const int32_t first = all.token[0];
    seq = fork_of(prefix);
    generate(&f, seq, &first, 1, 0, 0, -1, &all);
    assert_int_equal(all.length, 160);
    assert_int_equal(all.result.reason, NIB_STOP_LENGTH);
    nib_seq_close(seq);
    for (int kind = 0; kind < 4; kind++)
        for (int32_t at = 0; at < (kind == 3 ? 1 : 12); at++) {
            struct force w = {&all, 121, 4, f.vocab, 1};
            for (int drafts = 0; drafts < 2; drafts++) {
                struct text *t = drafts ? &got : &want;
                greedy(t);
                t->stop_after = kind == 1 ? at + 1 : 0;
                seq = fork_of(prefix);
                f.engine->drafts.force = drafts ? force : NULL;
                f.engine->drafts.force_user = &w;
                generate(&f, seq, &first, 1, kind == 2 ? at + 1 : 0, drafts ? 4 : 0, kind == 0 ? all.token[at] : -1, t);
                /* The sequence can be cut and continued as usual. */
                static struct text more;
                greedy(&more);
                assert_int_equal(nib_seq_truncate(seq, t->length - (t->length > 120 ? 1 : 0)), NIB_OK);
                if (kind != 3)
                    generate(&f, seq, g_ids, 1, 4, 0, -1, &more);
                memcpy(t->token + 380, more.token, 4 * sizeof(int32_t));
                nib_seq_close(seq);
            }
            f.engine->drafts.force = NULL;
            expect_same("ends", &got, &want);
            assert_memory_equal(got.token + 380, want.token + 380, 4 * sizeof(int32_t));
            assert_int_equal(got.result.reason,
                             kind == 0 ? NIB_STOP_ID : kind == 1 ? NIB_STOP_CALLBACK : NIB_STOP_LENGTH);
        }
    nib_seq_close(prefix);
    expect_pool_empty(&f);
    fixture_close(&f);
}

/* n_rollback tokens can be taken back after rejected drafts that reach behind the end: the callback ends the text,
 * which the drafts do not know beforehand. */
static void test_truncate_after_drafts(void **state)
{
    (void)state;
    static struct text t, want, got;
    struct fixture f = open_engine(&g_settings[0], 8, 512);
    for (int32_t start = 125; start <= 133; start += 4) {
        greedy(&want);
        struct force w = {&want, start, 0, f.vocab, 7};
        struct nib_seq *a = open_seq(&f), *b = open_seq(&f);
        greedy(&t);
        t.stop_after = 20;
        f.engine->drafts.force = force;
        f.engine->drafts.force_user = &w;
        generate(&f, a, g_ids, start, 0, 8, -1, &t);
        assert_true(a->state.high == a->state.length + 8);
        f.engine->drafts.force = NULL;
        const int32_t length = t.length - 16;
        assert_int_equal(nib_seq_truncate(a, length), NIB_OK);
        greedy(&got);
        greedy(&want);
        want.stop_after = 20;
        generate(&f, b, g_ids, start, 0, 0, -1, &want);
        assert_int_equal(nib_seq_truncate(b, length), NIB_OK);
        want.stop_after = 0;
        generate(&f, a, g_ids + 300, 5, 20, 0, -1, &got);
        generate(&f, b, g_ids + 300, 5, 20, 0, -1, &want);
        expect_same("after taking back", &got, &want);
        size_t n = 0;
        char *plain = state_of(b, &n);
        expect_state("after taking back", a, plain, n);
        free(plain);
        nib_seq_close(a);
        nib_seq_close(b);
    }
    fixture_close(&f);
}

/* B42: pages behind the window are given back while drafts come and go. 20,000 tokens with NIB_TEST_LONG set, else
 * fewer. */
static void test_window_pages(void **state)
{
    (void)state;
    const bool is_long = getenv("NIB_TEST_LONG") != NULL;
    const int32_t n_tokens = is_long ? 20000 : 600, n_ctx = is_long ? 16384 : 2048;
    for (int drafts = 0; drafts < 2; drafts++) {
        static struct text t, nothing;
        struct fixture f = open_engine(&g_settings[0], 4, n_ctx);
        struct nib_seq *seq = open_seq(&f);
        const struct nib_page_set *pages = &f.engine->rank.pool.window;
        const int32_t bound = (127 + 16 + 4) / 128 + 2; /* window + roll-back + drafts in whole pages, one more at each
                                                           end */
        for (int32_t done = 0; done < n_tokens; done += 200) {
            if (nib_seq_length(seq) + 210 > n_ctx)
                assert_int_equal(nib_seq_truncate(seq, 0), NIB_OK);
            greedy(&t);
            struct force w = {&nothing, 0, 0, f.vocab, (uint32_t)done};
            f.engine->drafts.force = drafts && done % 400 ? force : NULL;
            f.engine->drafts.force_user = &w;
            generate(&f, seq, g_ids + done % 500, 1, 200, drafts ? 4 : 0, -1, &t);
            if (pages->n - pages->n_free > bound)
                fail_msg("after %d tokens %d window pages are in use, wanted at most %d", (int)done,
                         (int)(pages->n - pages->n_free), (int)bound);
        }
        nib_seq_close(seq);
        expect_pool_empty(&f);
        fixture_close(&f);
    }
}

/* ---- Settings that must be right ---- */

/* B47, B48: the MTP block has the last entry of compress_ratios, not that of the layers around it (the bundled list is
 * 0 4 128 4 128 4 | 0), and the plain frequencies. */
static void test_mtp_ratio(void **state)
{
    (void)state;
    struct fixture f = open_engine(&g_settings[0], 1, 256);
    const struct nib_rank *rk = &f.engine->rank;
    float freq[512];
    assert_in_range(rk->config->n_rot, 2, 1024);
    assert_int_equal(rk->api->download(rk->stream, freq, rk->weights.rope_plain, (size_t)rk->config->n_rot / 2 * sizeof *freq), NIB_OK);
    assert_int_equal(rk->weights.layer[1].ratio, 4);
    assert_int_equal(rk->weights.layer[rk->config->n_layers - 1].ratio, 4);
    assert_int_equal(rk->weights.mtp.layer.ratio, 0);
    assert_int_equal(rk->pool.layer[rk->config->n_layers].frontier.n_ring, 0);
    for (int32_t i = 0; i < rk->config->n_rot / 2; i++) {
        assert_true(i == 0 || freq[i] < freq[i - 1]);
    }
    fixture_close(&f);
}

static double share_accepted(const struct text *t)
{
    return (double)t->result.n_accepted / (double)t->result.n_drafted;
}

/* The drafts' own state is filled by a prompt in one piece, in chunks, and behind a fork alike: one text, and where
 * steps hold so few rows that all sums have one order, the same bits and drafts. */
static void check_acceptance(int32_t n_rows_max, bool one_order)
{
    static struct text t[3];
    struct fixture f = open_engine_for(&g_settings[0], 1, 1024, n_rows_max);
    struct nib_seq *seq = open_seq(&f), *prefix = open_seq(&f);
    for (int i = 0; i < 3; i++)
        greedy(&t[i]);
    generate(&f, seq, g_ids, 777, 50, 1, -1, &t[0]);
    nib_seq_close(seq);
    seq = open_seq(&f);
    static struct text ignored;
    for (int32_t i = 0; i < 770; i += 77) { /* a token is drawn behind each chunk and not kept */
        greedy(&ignored);
        generate(&f, seq, g_ids + i, 77, 1, 1, -1, &ignored);
    }
    generate(&f, seq, g_ids + 770, 7, 50, 1, -1, &t[1]);
    nib_seq_close(seq);
    greedy(&ignored);
    generate(&f, prefix, g_ids, 700, 1, 1, -1, &ignored);
    seq = fork_of(prefix);
    generate(&f, seq, g_ids + 700, 77, 50, 1, -1, &t[2]);
    for (int i = 1; i < 3; i++) {
        if (!one_order) {
            assert_int_equal(t[i].n, t[0].n);
            assert_memory_equal(t[i].token, t[0].token, (size_t)t[0].n * sizeof *t[0].token);
            continue;
        }
        expect_same("prompt fed otherwise", &t[i], &t[0]);
        assert_int_equal(t[i].result.n_accepted, t[0].result.n_accepted);
        assert_int_equal(t[i].result.n_drafted, t[0].result.n_drafted);
    }
    for (int i = 0; i < 3; i++)
        if (!(share_accepted(&t[i]) > 0.5))
            fail_msg("%d of %d drafts accepted, wanted more than half", (int)t[i].result.n_accepted,
                     (int)t[i].result.n_drafted);
    nib_seq_close(seq);
    nib_seq_close(prefix);
    fixture_close(&f);
}

/* B48, B52. One draft a step: the checkpoint's MTP block was trained for that, and its reference share is 0.998. */
static void test_acceptance(void **state)
{
    (void)state;
    const int32_t n = rows_of_one_order(&g_settings[0]);
    check_acceptance(n, true);
    if (n < 256)
        check_acceptance(256, false);
}

/* What was asked for and cannot be. */
static void test_refusals(void **state)
{
    (void)state;
    struct nib_error err = {0};
    struct nib_options o;
    struct nib_engine *engine = NULL;
    struct nib_generate_result r;
    struct fixture f = open_engine(&g_settings[0], 2, 256);
    struct nib_seq *seq = open_seq(&f);
    struct nib_generate_args a = {.seq = seq, .prompt = g_ids, .n_prompt = 4, .n_max = 4, .n_drafts = 3};
    nib_sampling_init(&a.sampling);
    assert_int_equal(nib_generate(f.engine, &a, &r, &err), NIB_E_ARGUMENT);
    assert_string_equal(err.text, "n_drafts is 3, wanted 0 to 2, the engine's own");
    a.n_drafts = -2;
    assert_int_equal(nib_generate(f.engine, &a, &r, &err), NIB_E_ARGUMENT);
    assert_int_equal(nib_seq_length(seq), 0);
    assert_true(nib_engine_options(f.engine)->mtp);
    nib_options_init(&o);
    o.n_drafts = 9;
    assert_int_equal(nib_engine_open(f.model, &o, &engine, &err), NIB_E_ARGUMENT);
    assert_string_equal(err.text, "n_drafts is 9, wanted 0 to 8");
    nib_seq_close(seq);
    fixture_close(&f);
}

/* With an argument, the tests whose names match it (with * and ?). */
/* FILTER and BACKEND: the settings run on that backend instead; for cards, which make check has none of. */
int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    struct CMUnitTest tests[N_SETTINGS + 7];
    for (int i = 0; i < N_SETTINGS && argc > 2; i++)
        g_settings[i].backend = argv[2];
    struct nib_checkpoint *goldens = goldens_open();
    int32_t *ids = golden_copy(golden_find(goldens, "ids.777"));
    memcpy(g_ids, ids, sizeof g_ids);
    free(ids);
    nib_checkpoint_close(goldens);
    for (int i = 0; i < N_SETTINGS; i++)
        tests[i] = (struct CMUnitTest){g_settings[i].name, test_rollback, NULL, NULL, (void *)(uintptr_t)&g_settings[i]};
    tests[N_SETTINGS] = (struct CMUnitTest){"same text", test_same_text, NULL, NULL, NULL};
    tests[N_SETTINGS + 1] = (struct CMUnitTest){"B49 ends of texts", test_ends, NULL, NULL, NULL};
    tests[N_SETTINGS + 2] = (struct CMUnitTest){"taking back after drafts", test_truncate_after_drafts, NULL, NULL, NULL};
    tests[N_SETTINGS + 3] = (struct CMUnitTest){"B42 window pages", test_window_pages, NULL, NULL, NULL};
    tests[N_SETTINGS + 4] = (struct CMUnitTest){"B47 B48 the MTP block's ratio", test_mtp_ratio, NULL, NULL, NULL};
    tests[N_SETTINGS + 5] = (struct CMUnitTest){"B48 B52 acceptance however the prompt came", test_acceptance, NULL, NULL, NULL};
    tests[N_SETTINGS + 6] = (struct CMUnitTest){"refusals", test_refusals, NULL, NULL, NULL};
    return cmocka_run_group_tests_name("drafts", tests, NULL, NULL);
}
