/* A sequence's logits depend on its own tokens alone, bit for bit: however a prompt is cut, whoever else is in the
 * batch, however many threads run, and whether or not the state was forked, restored or cut back in between. Every
 * row's logits (and the MTP block's) are compared as bits with those of one undisturbed pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "support/model_support.h"

#define N_TOKENS 300

struct setting {
    const char        *name, *backend, *dir;
    enum nib_kv        kv;
    enum nib_act_quant act;
    enum nib_numerics  numerics;
};

static const struct setting k_settings[] = {
    {"cpu nvfp4 f32", "cpu", MODEL_NVFP4, NIB_KV_F32, NIB_ACT_QUANT_NONE, NIB_NUMERICS_MODEL},
    {"cpu nvfp4 bf16", "cpu", MODEL_NVFP4, NIB_KV_BF16, NIB_ACT_QUANT_NVFP4, NIB_NUMERICS_MODEL},
    {"cpu nvfp4 nvfp4, bf16 rows", "cpu", MODEL_NVFP4, NIB_KV_NVFP4, NIB_ACT_QUANT_FP8, NIB_NUMERICS_BF16},
    {"cpu nvfp4 int8", "cpu", MODEL_NVFP4, NIB_KV_BF16, NIB_ACT_QUANT_INT8, NIB_NUMERICS_MODEL},
    {"cpu official fp8", "cpu", MODEL_OFFICIAL, NIB_KV_FP8, NIB_ACT_QUANT_NVFP4, NIB_NUMERICS_MODEL},
    {"cpu official release", "cpu", MODEL_OFFICIAL, NIB_KV_FP8, NIB_ACT_QUANT_FP8, NIB_NUMERICS_RELEASE},
    {"ref nvfp4 bf16", "ref", MODEL_NVFP4, NIB_KV_BF16, NIB_ACT_QUANT_NONE, NIB_NUMERICS_MODEL},
};
#define N_SETTINGS ((int)(sizeof k_settings / sizeof k_settings[0]))

static int32_t  g_ids[N_TOKENS];
static uint64_t g_seed = 1;

static uint32_t random_below(uint32_t n)
{
    g_seed = g_seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g_seed >> 33) % n;
}

static uint64_t hash_row(const float *x, int32_t n, uint64_t h)
{
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        h = (h ^ bits) * 0x100000001b3u;
    }
    return h;
}

static struct fixture open_setting(const struct setting *s, int32_t n_seqs, int32_t n_threads)
{
    struct nib_options o;
    nib_options_init(&o);
    o.backend = s->backend;
    o.n_ctx = 1024;
    o.n_seqs_max = n_seqs;
    o.n_rows_max = 512;
    o.n_threads = n_threads;
    o.kv = s->kv;
    o.act_quant = s->act;
    o.numerics = s->numerics;
    o.mtp = true;
    return fixture_open(s->dir, &o);
}

static struct nib_seq *open_seq(struct fixture *f)
{
    struct nib_error err = {0};
    struct nib_seq *s = NULL;
    if (nib_seq_open(f->engine, &s, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return s;
}

/* One step over several sequences; hash[i] of every row's two sets of logits, in row order. */
static void step(struct fixture *f, int32_t n_seqs, struct nib_seq *const *seq, const int32_t *const *ids,
                 const int32_t *n, uint64_t *hash)
{
    struct nib_error err = {0};
    int32_t token[512], start[9] = {0}, row[512];
    for (int32_t i = 0; i < n_seqs; i++) {
        memcpy(token + start[i], ids[i], (size_t)n[i] * sizeof *token);
        start[i + 1] = start[i] + n[i];
    }
    const int32_t rows = start[n_seqs];
    for (int32_t i = 0; i < rows; i++)
        row[i] = i;
    const size_t vocab = (size_t)f->vocab;
    float *logits = malloc((size_t)rows * vocab * sizeof *logits), *mtp = malloc((size_t)rows * vocab * sizeof *mtp);
    assert_true(logits && mtp);
    const struct nib_batch b = {.n_rows = rows, .n_seqs = n_seqs, .n_logits = rows, .token = token, .seq_start = start, .seq = seq,
                                .logits_row = row};
    if (nib_step(f->engine, &b, logits, mtp, &err) != NIB_OK)
        fail_msg("%s", err.text);
    for (int32_t i = 0; i < rows; i++)
        hash[i] = hash_row(mtp + (size_t)i * vocab, f->vocab,
                           hash_row(logits + (size_t)i * vocab, f->vocab, 0xcbf29ce484222325u));
    free(logits);
    free(mtp);
}

/* Steps of more rows may be another kernel variant on a card, with other sums (docs/contracts.md). */
static int32_t g_rows_most = 512, g_portion_most = 120;

static void feed(struct fixture *f, struct nib_seq *s, const int32_t *ids, int32_t n, uint64_t *hash)
{
    for (int32_t i = 0, k; i < n; i += k) {
        const int32_t *from = ids + i;
        k = n - i < g_rows_most ? n - i : g_rows_most;
        step(f, 1, &s, &from, &k, hash + i);
    }
}

static void expect_equal(const char *what, const uint64_t *got, const uint64_t *want, int32_t first, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s: the logits at position %d differ", what, (int)(first + i));
}

static void undisturbed(const struct setting *s, uint64_t *hash)
{
    struct fixture f = open_setting(s, 1, 1);
    struct nib_seq *seq = open_seq(&f);
    feed(&f, seq, g_ids, N_TOKENS, hash);
    nib_seq_close(seq);
    fixture_close(&f);
}

/* Every `stride`-th of the list, from `first` on. */
static void check_chunks(struct fixture *f, const uint64_t *want, int first, int stride)
{
    static const int32_t chunks[] = {1, 2, 3, 4, 5, 64, 100, 127, 128, 129, 0};
    for (size_t c = (size_t)first; c < sizeof chunks / sizeof chunks[0]; c += (size_t)stride) {
        struct nib_seq *seq = open_seq(f);
        char what[64];
        (void)snprintf(what, sizeof what, "chunks of %d (0: random)", (int)chunks[c]);
        for (int32_t i = 0; i < N_TOKENS;) {
            uint64_t hash[512];
            int32_t n = chunks[c] ? chunks[c] : 1 + (int32_t)random_below(150);
            n = n < N_TOKENS - i ? n : N_TOKENS - i;
            feed(f, seq, g_ids + i, n, hash);
            expect_equal(what, hash, want + i, i, n);
            i += n;
        }
        nib_seq_close(seq);
    }
}

/* Four sequences at different offsets of the same text, in random portions; each must see what it sees alone. The first
 * is the undisturbed one; the others start elsewhere, so they are compared with themselves alone. */
static void check_neighbours(struct fixture *f, const uint64_t *want)
{
    enum { N = 4 };
    static const int32_t offset[N] = {0, 17, 128, 200};
    uint64_t alone[N][N_TOKENS], hash[512];
    struct nib_seq *seq[N];
    int32_t done[N] = {0};
    memcpy(alone[0], want, sizeof alone[0]);
    for (int i = 1; i < N; i++) {
        struct nib_seq *s = open_seq(f);
        feed(f, s, g_ids + offset[i], N_TOKENS - offset[i], alone[i]);
        nib_seq_close(s);
    }
    for (int i = 0; i < N; i++)
        seq[i] = open_seq(f);
    for (;;) {
        struct nib_seq *in[N];
        const int32_t *ids[N];
        int32_t n[N], who[N], k = 0;
        const int first = (int)random_below(N);
        for (int j = 0; j < N; j++) {
            const int i = (first + j) % N;
            const int32_t left = N_TOKENS - offset[i] - done[i];
            if (left == 0 || random_below(4) == 0)
                continue;
            const int32_t want_n = 1 + (int32_t)random_below(random_below(2) ? 3 : (uint32_t)g_portion_most);
            who[k] = i;
            in[k] = seq[i];
            ids[k] = g_ids + offset[i] + done[i];
            n[k++] = want_n < left ? want_n : left;
        }
        if (k > 0) {
            step(f, k, in, ids, n, hash);
            int32_t row = 0;
            for (int32_t j = 0; j < k; j++) {
                expect_equal("with neighbours", hash + row, alone[who[j]] + done[who[j]], done[who[j]], n[j]);
                row += n[j];
                done[who[j]] += n[j];
            }
        }
        int32_t left = 0;
        for (int i = 0; i < N; i++)
            left += N_TOKENS - offset[i] - done[i];
        if (left == 0)
            break;
    }
    for (int i = 0; i < N; i++)
        nib_seq_close(seq[i]);
}

/* Keep a fork at `at`, go on with other tokens, restore from the fork twice, and go on as if nothing had been. */
static void check_fork(struct fixture *f, const uint64_t *want, int32_t at)
{
    struct nib_error err = {0};
    uint64_t hash[512];
    int32_t other[40];
    for (int i = 0; i < 40; i++)
        other[i] = (int32_t)random_below(2000);
    struct nib_seq *seq = open_seq(f), *snapshot = NULL, *restored = NULL;
    if (at > 0)
        feed(f, seq, g_ids, at, hash);
    assert_int_equal(nib_seq_fork(seq, &snapshot, &err), NIB_OK);
    feed(f, seq, other, 40, hash);
    nib_seq_close(seq);
    for (int round = 0; round < 2; round++) {
        const int32_t n = at + 40 < N_TOKENS ? 40 : N_TOKENS - at;
        assert_int_equal(nib_seq_fork(snapshot, &restored, &err), NIB_OK);
        for (int32_t i = 0, k; i < n; i += k) {
            k = i == 0 ? 1 : n - i < 20 ? n - i : 20;
            feed(f, restored, g_ids + at + i, k, hash);
            expect_equal("after restore", hash, want + at + i, at + i, k);
        }
        nib_seq_close(restored);
    }
    assert_int_equal(nib_seq_length(snapshot), at);
    nib_seq_close(snapshot);
}

/* Feed past `at` by k wrong tokens, cut back, and go on. */
static void check_truncate(struct fixture *f, const uint64_t *want, int32_t at, int32_t k)
{
    uint64_t hash[512];
    int32_t other[16];
    for (int i = 0; i < 16; i++)
        other[i] = (int32_t)random_below(2000);
    struct nib_seq *seq = open_seq(f);
    if (at > 0)
        feed(f, seq, g_ids, at, hash);
    feed(f, seq, other, k, hash);
    assert_int_equal(nib_seq_truncate(seq, at), NIB_OK);
    /* A second wrong turn from the same place. */
    feed(f, seq, other, k / 2 + 1, hash);
    assert_int_equal(nib_seq_truncate(seq, at), NIB_OK);
    const int32_t n = at + 40 < N_TOKENS ? 40 : N_TOKENS - at;
    feed(f, seq, g_ids + at, 1, hash);
    expect_equal("after truncation", hash, want + at, at, 1);
    feed(f, seq, g_ids + at + 1, n - 1, hash);
    expect_equal("after truncation", hash, want + at + 1, at + 1, n - 1);
    nib_seq_close(seq);
}

static const int32_t k_edges[] = {0, 1, 2, 3, 4, 5, 7, 8, 126, 127, 128, 129, 131, 132, 255, 256, 257, 259};

static void expect_pool_empty(const struct fixture *f)
{
    const struct nib_pool *p = &f->engine->rank.pool;
    assert_int_equal(p->window.n_free, p->window.n);
    assert_int_equal(p->entry.n_free, p->entry.n);
    assert_int_equal(p->n_slots_used, 0);
}

static void test_identity(void **state)
{
    const struct setting *s = *state;
    uint64_t *want = malloc(N_TOKENS * sizeof *want);
    assert_non_null(want);
    undisturbed(s, want);
    for (int32_t threads = 2; threads <= 3; threads++) {
        uint64_t hash[512];
        struct fixture f = open_setting(s, 1, threads);
        struct nib_seq *seq = open_seq(&f);
        feed(&f, seq, g_ids, N_TOKENS, hash);
        expect_equal("with more threads", hash, want, 0, N_TOKENS);
        nib_seq_close(seq);
        fixture_close(&f);
    }
    /* A setting takes a part of the cases, the next one another, so that two settings of the cpu backend have each of
     * them; with NIB_TEST_LONG the first takes all. */
    static int n_settings;
    const bool is_all = n_settings == 0 && getenv("NIB_TEST_LONG") != NULL;
    const int stride = is_all ? 1 : strcmp(s->backend, "ref") == 0 ? 7 : 3, first = n_settings++ % stride;
    struct fixture f = open_setting(s, 4, 1);
    check_chunks(&f, want, first, stride);
    check_neighbours(&f, want);
    expect_pool_empty(&f);
    for (size_t i = (size_t)first; i < sizeof k_edges / sizeof k_edges[0]; i += (size_t)stride) {
        check_fork(&f, want, k_edges[i]);
        check_truncate(&f, want, k_edges[i], 16 - (int32_t)random_below(2) * (int32_t)random_below(15));
    }
    expect_pool_empty(&f);
    fixture_close(&f);
    free(want);
}

/* What truncate may refuse, it refuses without changing anything. */
static void test_truncate_limits(void **state)
{
    (void)state;
    uint64_t hash[512], want[N_TOKENS];
    undisturbed(&k_settings[0], want);
    struct fixture f = open_setting(&k_settings[0], 2, 2);
    struct nib_seq *seq = open_seq(&f);
    feed(&f, seq, g_ids, 290, hash);
    assert_int_equal(nib_seq_truncate(seq, 291), NIB_E_ARGUMENT);
    assert_int_equal(nib_seq_truncate(seq, -1), NIB_E_ARGUMENT);
    assert_int_equal(nib_seq_truncate(seq, 200), NIB_E_STATE);
    assert_int_equal(nib_seq_truncate(seq, 273), NIB_E_STATE);
    assert_int_equal(nib_seq_length(seq), 290);
    feed(&f, seq, g_ids + 290, 5, hash);
    expect_equal("after refused truncations", hash, want + 290, 290, 5);
    for (int32_t at = 294; at >= 279; at--) /* 16 tokens before the highest position ever written */
        assert_int_equal(nib_seq_truncate(seq, at), NIB_OK);
    assert_int_equal(nib_seq_truncate(seq, 276), NIB_E_STATE);
    assert_int_equal(nib_seq_truncate(seq, 0), NIB_OK);
    feed(&f, seq, g_ids, 290, hash);
    expect_equal("after starting anew", hash, want, 0, 290);
    nib_seq_close(seq);
    expect_pool_empty(&f);
    fixture_close(&f);
}

/* With a backend's name, the settings run on that one instead: for cards, which make check has none of. */
int main(int argc, char **argv)
{
    static struct setting settings[N_SETTINGS];
    struct CMUnitTest tests[N_SETTINGS + 1];
    struct nib_checkpoint *goldens = goldens_open();
    int32_t *ids = golden_copy(golden_find(goldens, "ids.777"));
    memcpy(g_ids, ids, sizeof g_ids);
    free(ids);
    nib_checkpoint_close(goldens);
    for (int i = 0; i < N_SETTINGS; i++) {
        settings[i] = k_settings[i];
        if (argc > 1) {
            settings[i].backend = argv[1];
            g_rows_most = 16;
            g_portion_most = 4;
        }
        tests[i] = (struct CMUnitTest){settings[i].name, test_identity, NULL, NULL, &settings[i]};
    }
    tests[N_SETTINGS] = (struct CMUnitTest)cmocka_unit_test(test_truncate_limits);
    return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}
