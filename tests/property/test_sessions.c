/* Sequences in files: what is loaded continues bit for bit, and what is truncated, damaged, foreign or of another
 * version is refused by name, with nothing left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "support/model_support.h"

#define N_TOKENS 300

static int32_t g_ids[777];
static char    g_dir[64], g_path[128];

struct setting {
    const char        *name, *backend, *dir;
    enum nib_kv        kv;
    enum nib_act_quant act;
    enum nib_numerics  numerics;
    bool               mtp;
    int                stride;
};

static struct setting g_settings[] = {
    {"B44 cpu bf16 mtp", "cpu", MODEL_NVFP4, NIB_KV_BF16, NIB_ACT_QUANT_NONE, NIB_NUMERICS_MODEL, true, 1},
    {"B44 cpu nvfp4", "cpu", MODEL_NVFP4, NIB_KV_NVFP4, NIB_ACT_QUANT_NVFP4, NIB_NUMERICS_MODEL, false, 3},
    {"B44 cpu official release", "cpu", MODEL_OFFICIAL, NIB_KV_FP8, NIB_ACT_QUANT_FP8, NIB_NUMERICS_RELEASE, true, 5},
    {"B44 ref f32", "ref", MODEL_NVFP4, NIB_KV_F32, NIB_ACT_QUANT_NONE, NIB_NUMERICS_MODEL, true, 9},
};
#define N_SETTINGS ((int)(sizeof g_settings / sizeof g_settings[0]))

static struct nib_options options_of(const struct setting *s)
{
    struct nib_options o;
    nib_options_init(&o);
    o.backend = s->backend;
    o.n_ctx = 512;
    o.n_seqs_max = 2;
    o.n_rows_max = 320;
    o.n_threads = 1;
    o.kv = s->kv;
    o.act_quant = s->act;
    o.numerics = s->numerics;
    o.mtp = s->mtp;
    return o;
}

static struct nib_seq *open_seq(struct fixture *f)
{
    struct nib_error err = {0};
    struct nib_seq *s = NULL;
    if (nib_seq_open(f->engine, &s, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return s;
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

/* Tokens of a step: on a card more of them are another order of sums (docs/contracts.md, Order). */
static int32_t g_most_rows = N_TOKENS;

static void feed_step(struct fixture *f, struct nib_seq *s, const int32_t *ids, int32_t n, uint64_t *hash)
{
    struct nib_error err = {0};
    const int32_t start[2] = {0, n};
    const size_t vocab = (size_t)f->vocab;
    const bool has_mtp = nib_engine_options(f->engine)->mtp;
    int32_t row[N_TOKENS];
    for (int32_t i = 0; i < n; i++)
        row[i] = i;
    float *logits = malloc((size_t)n * vocab * sizeof *logits), *mtp = malloc((size_t)n * vocab * sizeof *mtp);
    assert_true(logits && mtp);
    const struct nib_batch b = {.n_rows = n, .n_seqs = 1, .n_logits = hash ? n : 0, .token = ids, .seq_start = start, .seq = &s,
                                .logits_row = row};
    if (nib_step(f->engine, &b, hash ? logits : NULL, hash && has_mtp ? mtp : NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    for (int32_t i = 0; hash && i < n; i++) {
        hash[i] = hash_row(logits + (size_t)i * vocab, f->vocab, 0xcbf29ce484222325u);
        if (has_mtp)
            hash[i] = hash_row(mtp + (size_t)i * vocab, f->vocab, hash[i]);
    }
    free(logits);
    free(mtp);
}

/* Append ids; hash[i] of every row's logits, the MTP block's too. */
static void feed(struct fixture *f, struct nib_seq *s, const int32_t *ids, int32_t n, uint64_t *hash)
{
    for (int32_t i = 0; i < n; i += g_most_rows)
        feed_step(f, s, ids + i, n - i < g_most_rows ? n - i : g_most_rows, hash ? hash + i : NULL);
}

static void save(struct nib_seq *s)
{
    struct nib_error err = {0};
    if (nib_seq_save(s, g_path, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static struct nib_seq *load(struct fixture *f)
{
    struct nib_error err = {0};
    struct nib_seq *s = NULL;
    if (nib_seq_load(f->engine, g_path, &s, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return s;
}

static void expect_pool_empty(const struct fixture *f)
{
    const struct nib_pool *p = &f->engine->rank.pool;
    assert_int_equal(p->window.n_free, p->window.n);
    assert_int_equal(p->entry.n_free, p->entry.n);
    assert_int_equal(p->n_slots_used, 0);
}

static void expect_equal(const char *what, int32_t at, const uint64_t *got, const uint64_t *want, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s at %d: the logits of row %d differ", what, (int)at, (int)i);
}

static const int32_t k_lengths[] = {1, 2, 3, 4, 5, 7, 8, 9, 126, 127, 128, 129, 131, 132, 133, 255, 256, 257, 260};

/* Saved, disturbed, loaded into a fresh engine with other pages in use, continued; cut back after loading; saved
 * again. */
static void check_length(struct fixture *f, struct fixture *other, int32_t at, const uint64_t *want)
{
    uint64_t hash[N_TOKENS];
    const int32_t n = 24;
    struct nib_seq *seq = open_seq(f), *in_the_way = open_seq(other);
    feed(other, in_the_way, g_ids + 7, 100 + at % 50, NULL);
    if (at > 20) { /* rejected tokens behind the end must not show */
        feed(f, seq, g_ids, at - 3, NULL);
        feed(f, seq, g_ids + 400, 11, NULL);
        assert_int_equal(nib_seq_truncate(seq, at - 3), NIB_OK);
        feed(f, seq, g_ids + at - 3, 3, NULL);
    } else {
        feed(f, seq, g_ids, at, NULL);
    }
    save(seq);
    feed(f, seq, g_ids + 300, 100, NULL);
    nib_seq_close(seq);

    seq = load(other);
    assert_int_equal(nib_seq_length(seq), at);
    feed(other, seq, g_ids + at, n, hash);
    expect_equal("loaded", at, hash, want + at, n);
    nib_seq_close(seq);

    /* The engine can take back 16 of them; 5 were promised after the 11 above. */
    const int32_t back = at > 20 ? 5 : at - 1 < 16 ? at - 1 : 16;
    seq = load(other);
    assert_int_equal(nib_seq_truncate(seq, at - back), NIB_OK);
    feed(other, seq, g_ids + at - back, n, hash);
    expect_equal("loaded and cut back", at, hash, want + at - back, n);
    nib_seq_close(seq);

    seq = load(other);
    if (at > 40)
        assert_int_equal(nib_seq_truncate(seq, at - 17), NIB_E_STATE);
    assert_int_equal(nib_seq_length(seq), at);
    assert_int_equal(nib_seq_truncate(seq, 0), NIB_OK);
    feed(other, seq, g_ids, n, hash);
    expect_equal("emptied", at, hash, want, n);
    nib_seq_close(seq);
    nib_seq_close(in_the_way);
}

static void test_continue(void **state)
{
    const struct setting *s = *state;
    const struct nib_options o = options_of(s);
    struct fixture f = fixture_open(s->dir, &o), other = fixture_open(s->dir, &o);
    uint64_t want[N_TOKENS];
    struct nib_seq *seq = open_seq(&f);
    feed(&f, seq, g_ids, N_TOKENS, want);
    nib_seq_close(seq);
    for (size_t i = 0; i < sizeof k_lengths / sizeof k_lengths[0]; i += (size_t)s->stride)
        check_length(&f, &other, k_lengths[i], want);
    expect_pool_empty(&f);
    expect_pool_empty(&other);
    fixture_close(&f);
    fixture_close(&other);
}

static char *read_back(size_t *n)
{
    FILE *file = fopen(g_path, "rb");
    char *data = malloc(1 << 24);
    assert_true(file && data);
    *n = fread(data, 1, 1 << 24, file);
    (void)fclose(file);
    assert_true(*n > 88 && *n < 1 << 24);
    return data;
}

static void write_back(const char *data, size_t n)
{
    FILE *file = fopen(g_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void expect_refused(struct fixture *f, enum nib_status status, const char *text)
{
    struct nib_error err = {0};
    struct nib_seq *s = (struct nib_seq *)&err;
    const enum nib_status got = nib_seq_load(f->engine, g_path, &s, &err);
    if (got != status || !strstr(err.text, text) || !strstr(err.text, g_path))
        fail_msg("got '%s' (%s), wanted the path, '%s' and %s", err.text, nib_status_name(got), text,
                 nib_status_name(status));
    assert_null(s);
    expect_pool_empty(f);
}

static void test_empty(void **state)
{
    (void)state;
    uint64_t hash[4], want[4];
    const struct nib_options o = options_of(&g_settings[0]);
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    struct nib_seq *seq = open_seq(&f);
    save(seq);
    feed(&f, seq, g_ids, 4, want);
    nib_seq_close(seq);
    seq = load(&f);
    assert_int_equal(nib_seq_length(seq), 0);
    feed(&f, seq, g_ids, 4, hash);
    expect_equal("empty", 0, hash, want, 4);
    nib_seq_close(seq);
    fixture_close(&f);
}

/* Every cut, and a changed bit anywhere. */
static void test_damage(void **state)
{
    (void)state;
    const struct nib_options o = options_of(&g_settings[0]);
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    struct nib_seq *seq = open_seq(&f);
    feed(&f, seq, g_ids, 150, NULL);
    save(seq);
    nib_seq_close(seq);
    size_t n = 0;
    char *data = read_back(&n);
    for (size_t cut = 0; cut < n; cut += cut < 96 ? 1 : n / 37) {
        write_back(data, cut);
        expect_refused(&f, NIB_E_FORMAT, cut < 88 ? "less than the 88 of a header" : "bytes, wanted");
    }
    write_back(data, n - 1);
    expect_refused(&f, NIB_E_FORMAT, "bytes, wanted");
    data = realloc(data, n + 1);
    assert_non_null(data);
    data[n] = 0;
    write_back(data, n + 1);
    expect_refused(&f, NIB_E_FORMAT, "bytes, wanted");
    uint64_t random = 1;
    for (int i = 0; i < 150; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const size_t at = i < 88 ? (size_t)i : 88 + (size_t)(random >> 20) % (n - 88);
        data[at] = (char)(data[at] ^ 1 << (random >> 10) % 8);
        write_back(data, n);
        expect_refused(&f, at >= 8 && at < 12 ? NIB_E_UNSUPPORTED : NIB_E_FORMAT,
                       at < 8 ? "is not a saved sequence" : at < 12 ? "format version" : at < 88 ? "header is damaged" : "is damaged");
        data[at] = (char)(data[at] ^ 1 << (random >> 10) % 8);
    }
    write_back(data, n);
    seq = load(&f);
    nib_seq_close(seq);
    free(data);
    fixture_close(&f);
}

static void test_foreign(void **state)
{
    (void)state;
    struct nib_options o = options_of(&g_settings[0]);
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    struct nib_seq *seq = open_seq(&f);
    feed(&f, seq, g_ids, 150, NULL);
    save(seq);
    static const char *const texts[] = {"was saved with another model", "saved with kv bf16, the engine has kv f32",
                                        "saved with act_quant none, the engine has act_quant fp8",
                                        "saved with mtp on, the engine has mtp off", "holds 150 tokens, the context is 149"};
    for (int i = 0; i < 5; i++) {
        struct nib_options p = o;
        p.kv = i == 1 ? NIB_KV_F32 : p.kv;
        p.act_quant = i == 2 ? NIB_ACT_QUANT_FP8 : p.act_quant;
        p.mtp = i != 3;
        p.n_ctx = i == 4 ? 149 : p.n_ctx;
        struct fixture g = fixture_open(i == 0 ? MODEL_OFFICIAL : MODEL_NVFP4, &p);
        expect_refused(&g, i == 4 ? NIB_E_LIMIT : NIB_E_UNSUPPORTED, texts[i]);
        fixture_close(&g);
    }
    nib_seq_close(seq);
    write_back("{\"model\": \"something else entirely, and long enough for a header of eighty-eight bytes or so\"}",
               94);
    expect_refused(&f, NIB_E_FORMAT, "is not a saved sequence");
    fixture_close(&f);
}

/* Engines of other sizes take it too: less roll-back, another context, more sequences, other threads. */
static void test_other_sizes(void **state)
{
    (void)state;
    uint64_t want[N_TOKENS], hash[N_TOKENS];
    struct nib_options o = options_of(&g_settings[0]);
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    struct nib_seq *seq = open_seq(&f);
    feed(&f, seq, g_ids, N_TOKENS, want);
    assert_int_equal(nib_seq_truncate(seq, 0), NIB_OK);
    feed(&f, seq, g_ids, 261, NULL);
    save(seq);
    nib_seq_close(seq);
    static const int32_t rollback[] = {0, 3, 40};
    for (int i = 0; i < 3; i++) {
        struct nib_options p = o;
        p.n_rollback = rollback[i];
        p.n_ctx = 300 + 300 * i;
        p.n_seqs_max = 1 + i;
        p.n_threads = 2;
        p.n_drafts = i;
        struct fixture g = fixture_open(MODEL_NVFP4, &p);
        seq = load(&g);
        const int32_t back = rollback[i] < 16 ? rollback[i] : 16;
        assert_int_equal(nib_seq_truncate(seq, 261 - back), NIB_OK);
        feed(&g, seq, g_ids + 261 - back, 30, hash);
        expect_equal("other sizes", i, hash, want + 261 - back, 30);
        nib_seq_close(seq);
        fixture_close(&g);
    }
    fixture_close(&f);
}

/* Nothing is lost when saving fails, and nothing lies about afterwards. */
static void test_files(void **state)
{
    (void)state;
    struct nib_error err = {0};
    char path[160];
    const struct nib_options o = options_of(&g_settings[0]);
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    struct nib_seq *seq = open_seq(&f), *loaded = NULL;
    feed(&f, seq, g_ids, 10, NULL);
    save(seq);
    feed(&f, seq, g_ids, 10, NULL);
    save(seq); /* over the first */
    loaded = load(&f);
    assert_int_equal(nib_seq_length(loaded), 20);
    nib_seq_close(loaded);
    (void)snprintf(path, sizeof path, "%s/absent/file", g_dir);
    assert_int_equal(nib_seq_save(seq, path, &err), NIB_E_IO);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(nib_seq_load(f.engine, path, &loaded, &err), NIB_E_IO);
    assert_null(loaded);
    assert_int_equal(nib_seq_save(seq, g_dir, &err), NIB_E_IO); /* a folder cannot be replaced */
    assert_int_equal(nib_seq_load(f.engine, g_dir, &loaded, &err), NIB_E_FORMAT);
    (void)snprintf(path, sizeof path, "%s/pipe", g_dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(nib_seq_load(f.engine, path, &loaded, &err), NIB_E_FORMAT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(g_path), 0);
    assert_int_equal(rmdir(g_dir), 0); /* empty */
    assert_int_equal(mkdir(g_dir, 0700), 0);
    nib_seq_close(seq);
    expect_pool_empty(&f);
    fixture_close(&f);
}

/* With an argument, the tests whose names match it. */
/* FILTER and BACKEND: the settings run on that backend instead; for cards, which make check has none of. */
int main(int argc, char **argv)
{
    struct CMUnitTest tests[N_SETTINGS + 5];
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    for (int i = 0; i < N_SETTINGS && argc > 2; i++)
        g_settings[i].backend = argv[2];
    if (argc > 2 && strcmp(argv[2], "cuda") == 0)
        g_most_rows = 16;
    struct nib_checkpoint *goldens = goldens_open();
    int32_t *ids = golden_copy(golden_find(goldens, "ids.777"));
    memcpy(g_ids, ids, sizeof g_ids);
    free(ids);
    nib_checkpoint_close(goldens);
    /* In memory where the system has such a folder: saving waits for the disk. */
    (void)snprintf(g_dir, sizeof g_dir, "%s/nibble-test-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(g_dir))
        return 1;
    (void)snprintf(g_path, sizeof g_path, "%s/seq", g_dir);
    for (int i = 0; i < N_SETTINGS; i++)
        tests[i] = (struct CMUnitTest){g_settings[i].name, test_continue, NULL, NULL, (void *)(uintptr_t)&g_settings[i]};
    tests[N_SETTINGS] = (struct CMUnitTest){"empty", test_empty, NULL, NULL, NULL};
    tests[N_SETTINGS + 1] = (struct CMUnitTest){"damage", test_damage, NULL, NULL, NULL};
    tests[N_SETTINGS + 2] = (struct CMUnitTest){"foreign", test_foreign, NULL, NULL, NULL};
    tests[N_SETTINGS + 3] = (struct CMUnitTest){"other sizes", test_other_sizes, NULL, NULL, NULL};
    tests[N_SETTINGS + 4] = (struct CMUnitTest){"files", test_files, NULL, NULL, NULL};
    const int failed = cmocka_run_group_tests_name("sessions", tests, NULL, NULL);
    (void)unlink(g_path);
    (void)rmdir(g_dir);
    return failed;
}
