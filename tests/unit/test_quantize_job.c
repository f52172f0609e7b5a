/* Whole conversions of small checkpoints written here: exact casts at every spread of exponents, saturation and zeros, outliers,
 * broken sources, a destination that is not empty, resuming, threads, and the bundled models. Decoding is this file's own. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/shard.h"
#include "checkpoint/writer.h"
#include "nibble.h"

#define TINY NIB_SOURCE_DIR "/tests/data/tiny-v4-official"

static char g_root[] = "/tmp/nibble-quantize-XXXXXX";
static char g_warnings[4096];

static char *path_in(const char *name)
{
    static char path[4][300];
    static int  next;
    char       *p = path[next++ % 4];
    (void)snprintf(p, sizeof path[0], "%s/%s", g_root, name);
    return p;
}

static void on_warning(void *user, const char *text)
{
    (void)user;
    (void)strncat(g_warnings, text, sizeof g_warnings - strlen(g_warnings) - 1);
}

/* ---- Sources ---- */

struct tensor {
    const char       *name;
    enum nib_st_dtype dtype;
    int32_t           n_dims;
    int64_t           shape[3];
    const void       *data;
};

static void write_checkpoint(const char *dir, const struct tensor *t, int n)
{
    static const char config[] =
        "{\"model_type\":\"deepseek_v4\",\"hc_eps\":1e-06,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,\"head_dim\":512,\"hidden_act\":\"silu\","
        "\"hidden_size\":256,\"index_head_dim\":128,\"index_n_heads\":8,\"index_topk\":64,\"max_position_embeddings\":16384,"
        "\"moe_intermediate_size\":64,\"n_routed_experts\":2,\"n_shared_experts\":1,\"norm_topk_prob\":true,\"num_attention_heads\":4,"
        "\"num_experts_per_tok\":2,\"num_hidden_layers\":1,\"num_hash_layers\":0,\"num_key_value_heads\":1,\"num_nextn_predict_layers\":0,"
        "\"o_groups\":2,\"o_lora_rank\":64,\"q_lora_rank\":128,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,\"rope_theta\":10000,"
        "\"compress_rope_theta\":160000,\"routed_scaling_factor\":1.5,\"scoring_func\":\"sqrtsoftplus\",\"sliding_window\":128,"
        "\"swiglu_limit\":10.0,\"vocab_size\":2048,\"compress_ratios\":[0]}";
    struct nib_writer_tensor list[16];
    struct nib_writer       *w;
    static const uint16_t    one[16];
    assert_true(n < 15);
    assert_int_equal(mkdir(dir, 0777), 0);
    for (int i = 0; i < n; i++) {
        list[i] = (struct nib_writer_tensor){.name = t[i].name, .dtype = t[i].dtype, .n_dims = t[i].n_dims};
        memcpy(list[i].shape, t[i].shape, sizeof t[i].shape);
    }
    const bool hf = strncmp(t[0].name, "model.", 6) == 0;
    list[n] = (struct nib_writer_tensor){.name = hf ? "model.embed_tokens.weight" : "embed.weight", .dtype = NIB_ST_BF16, .n_dims = 2, .shape = {1, 16}};
    assert_int_equal(nib_writer_open(dir, list, n + 1, 0, &w, NULL), NIB_OK);
    for (int i = 0; i < n; i++) {
        uint64_t bytes;
        assert_true(nib_st_tensor_bytes(t[i].dtype, t[i].n_dims, t[i].shape, &bytes));
        assert_int_equal(nib_writer_append(w, t[i].data, (size_t)bytes, NULL), NIB_OK);
    }
    assert_int_equal(nib_writer_append(w, one, sizeof one, NULL), NIB_OK);
    assert_int_equal(nib_writer_finish(w, NULL), NIB_OK);
    nib_writer_close(w);
    char path[400];
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fputs(config, f) >= 0, 1);
    assert_int_equal(fclose(f), 0);
}

static uint16_t to_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float          v;
    memcpy(&v, &u, 4);
    return v;
}

static struct nib_quantize_options options(void)
{
    struct nib_quantize_options o;
    nib_quantize_options_init(&o);
    o.n_threads = 1;
    o.warning = on_warning;
    g_warnings[0] = '\0';
    return o;
}

/* ---- Decoding, from the format's definition ---- */

static double e2m1(int c)
{
    static const double v[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return c & 8 ? -v[c & 7] : v[c & 7];
}

static double e4m3(uint8_t b)
{
    return b >> 3 ? ldexp(8 + (b & 7), (b >> 3) - 10) : ldexp(b & 7, -9);
}

struct result {
    struct nib_checkpoint *c;
    const uint8_t         *codes, *scales;
    int64_t                rows, cols;
    float                  g;
};

static struct result open_result(const char *dir, const char *base)
{
    struct result r = {0};
    char          name[200];
    assert_int_equal(nib_checkpoint_open(dir, &r.c, NULL), NIB_OK);
    (void)snprintf(name, sizeof name, "%s.weight", base);
    const struct nib_tensor_entry *e = nib_checkpoint_find(r.c, name);
    assert_non_null(e);
    assert_int_equal(e->dtype, NIB_ST_U8);
    r.codes = e->data;
    r.rows = e->shape[0];
    r.cols = 2 * e->shape[1];
    (void)snprintf(name, sizeof name, "%s.weight_scale", base);
    e = nib_checkpoint_find(r.c, name);
    assert_non_null(e);
    assert_int_equal(e->dtype, NIB_ST_F8_E4M3);
    assert_int_equal(e->shape[1], r.cols / 16);
    r.scales = e->data;
    (void)snprintf(name, sizeof name, "%s.weight_scale_2", base);
    e = nib_checkpoint_find(r.c, name);
    assert_non_null(e);
    memcpy(&r.g, e->data, 4);
    (void)snprintf(name, sizeof name, "%s.input_scale", base);
    assert_non_null(nib_checkpoint_find(r.c, name));
    for (int64_t i = 0; i < r.rows * r.cols / 16; i++)
        assert_true(r.scales[i] <= 0x7e);
    assert_true(r.g > 0 && isfinite(r.g));
    return r;
}

/* Without the global scale. */
static double value(const struct result *r, int64_t i)
{
    return e2m1(r->codes[i / 2] >> (i % 2 * 4) & 15) * e4m3(r->scales[i / 16]);
}

/* ---- Exact casts ---- */

/* Two blocks a row at exponents k_low and k_high; returns blocks of 16 recoded. */
static uint64_t cast_spread(int k_low, int k_high, bool *exact)
{
    enum { ROWS = 16, COLS = 256 };
    static int      n;
    char            name[40], src[300], dst[300];
    uint8_t         codes[ROWS * COLS / 2], scales[ROWS * COLS / 32];
    for (int i = 0; i < ROWS * COLS / 2; i++)
        codes[i] = (uint8_t)(i * 37 + i / 7);
    for (int i = 0; i < ROWS * COLS / 32; i++)
        scales[i] = (uint8_t)((i % 3 == 0 ? k_low : k_high) + 127);
    const struct tensor t[] = {{"layers.0.ffn.experts.0.w2.weight", NIB_ST_I8, 2, {ROWS, COLS / 2}, codes},
                               {"layers.0.ffn.experts.0.w2.scale", NIB_ST_F8_E8M0, 2, {ROWS, COLS / 32}, scales}};
    (void)snprintf(name, sizeof name, "cast%d", n++);
    (void)snprintf(src, sizeof src, "%s/%s", g_root, name);
    (void)snprintf(dst, sizeof dst, "%s/%s-out", g_root, name);
    write_checkpoint(src, t, 2);
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    struct nib_error            err = {0};
    assert_int_equal(nib_quantize(src, dst, &o, &r, &err), NIB_OK);
    struct result q = open_result(dst, "layers.0.ffn.experts.0.w2");
    *exact = true;
    uint64_t recoded = 0;
    for (int64_t b = 0; b < ROWS * COLS / 16; b++) {
        bool same = true;
        for (int64_t i = b * 16; i < b * 16 + 16; i++) {
            const double want = e2m1(codes[i / 2] >> (i % 2 * 4) & 15) * ldexp(1, scales[i / 32] - 127), got = value(&q, i) * (double)q.g;
            same = same && want == got && (codes[i / 2] == q.codes[i / 2]);
            *exact = *exact && want == got;
        }
        recoded += !same;
        if (b % 2 == 1 && same)
            assert_int_equal(q.scales[b], q.scales[b - 1]);
        /* Only blocks below the window may differ. */
        if (!same)
            assert_true(scales[b / 2] - 127 < k_high - 17);
    }
    assert_int_equal(r.n_exact, *exact);
    if (k_high - k_low > 17)
        assert_true(r.n_recoded >= recoded);
    nib_checkpoint_close(q.c);
    return r.n_recoded;
}

static void test_b20_cast_by_spread(void **state)
{
    (void)state;
    static const struct {
        int low, high;
        bool exact;
    } cases[] = {{-8, -8, true}, {-16, -8, true}, {-25, -8, true}, {-26, -8, false}, {-48, -8, false}, {110, 127, true}, {127, 127, true},
                 {-126, -126, true}, {-127, -126, true}, {-127, 127, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool           exact;
        const uint64_t recoded = cast_spread(cases[i].low, cases[i].high, &exact);
        assert_int_equal(exact, cases[i].exact);
        /* A third of 128 blocks of 32 is low, rounded up: two of 16 each. */
        assert_int_equal(recoded, cases[i].exact ? 0 : 2 * ((128 + 2) / 3));
    }
}

/* ---- Encoding of BF16 matrices ---- */

#define N 256

static struct result encode(const char *name, const uint16_t *x, enum nib_quant_method method, struct nib_quantize_result *r)
{
    char src[300], dst[300];
    (void)snprintf(src, sizeof src, "%s/%s", g_root, name);
    (void)snprintf(dst, sizeof dst, "%s/%s-out", g_root, name);
    const struct tensor t[] = {{"layers.0.ffn.experts.0.w2.weight", NIB_ST_BF16, 2, {N, N}, x}};
    write_checkpoint(src, t, 1);
    struct nib_quantize_options o = options();
    struct nib_error            err = {0};
    o.method = method;
    assert_int_equal(nib_quantize(src, dst, &o, r, &err), NIB_OK);
    return open_result(dst, "layers.0.ffn.experts.0.w2");
}

static uint64_t g_seed = 1;

static double gaussian(void)
{
    double u[2];
    for (int i = 0; i < 2; i++) {
        g_seed = g_seed * 6364136223846793005u + 1442695040888963407u;
        u[i] = ((double)(g_seed >> 11) + 0.5) * 0x1p-53;
    }
    return sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1]);
}

static void test_b14_scales_saturate(void **state)
{
    (void)state;
    static uint16_t x[N * N];
    struct nib_quantize_result r;
    for (int i = 0; i < N * N; i++)
        x[i] = to_bf16((float)(gaussian() * 0.002));
    memset(x + 160, 0, 32); /* block 10 */
    x[77] = to_bf16(0.01f);
    struct result q = encode("b14a", x, NIB_QUANT_ABSMAX, &r);
    uint8_t       most = 0;
    for (int i = 0; i < N * N / 16; i++)
        most = q.scales[i] > most ? q.scales[i] : most;
    assert_int_equal(most, 0x7e);
    for (int i = 160; i < 176; i++)
        assert_true(value(&q, i) == 0);
    nib_checkpoint_close(q.c);

    for (int i = 0; i < N * N; i++)
        x[i] = to_bf16((float)(gaussian() * 1e37));
    x[5] = to_bf16(3e38f);
    q = encode("b14b", x, NIB_QUANT_AUTO, &r);
    assert_true(r.relative_mse > 0 && r.relative_mse < 0.03);
    nib_checkpoint_close(q.c);

    memset(x, 0, sizeof x);
    q = encode("b14c", x, NIB_QUANT_AUTO, &r);
    for (int i = 0; i < N * N; i++)
        assert_true(value(&q, i) == 0);
    assert_int_equal(r.n_exact, 1);
    nib_checkpoint_close(q.c);
}

/* Signal to noise, in dB, of all blocks but the first. */
static double snr(const uint16_t *x, const struct result *q)
{
    double signal = 0, noise = 0;
    for (int i = 16; i < N * N; i++) {
        const double v = (double)from_bf16(x[i]), e = v - value(q, i) * (double)q->g;
        signal += v * v;
        noise += e * e;
        assert_true(value(q, i) == 0 || (value(q, i) < 0) == (v < 0));
    }
    return 10 * log10(signal / noise);
}

static void test_b21_outlier(void **state)
{
    (void)state;
    static uint16_t x[N * N];
    struct nib_quantize_result r;
    static const float outlier[] = {0, 10, 1e3f, 1e5f};
    double plain = 0;
    for (int k = 0; k < 4; k++) {
        char name[20];
        (void)snprintf(name, sizeof name, "b21-%d", k);
        g_seed = 1;
        for (int i = 0; i < N * N; i++)
            x[i] = to_bf16((float)(gaussian() * 0.02));
        if (k > 0)
            x[3] = to_bf16(outlier[k]);
        struct result q = encode(name, x, NIB_QUANT_AUTO, &r);
        const double  db = snr(x, &q);
        if (k == 0)
            plain = db;
        if (k == 1) /* ratio of about 200: nothing is lost */
            assert_true(fabs(db - plain) < 1);
        if (k == 3)
            assert_non_null(strstr(g_warnings, "layers.0.ffn.experts.0.w2"));
        nib_checkpoint_close(q.c);
    }
}

/* ---- Broken sources ---- */

static void expect_failure(const char *src, const char *dst, const struct nib_quantize_options *o, enum nib_status want, const char *text)
{
    struct nib_quantize_result r;
    struct nib_error           err = {0};
    assert_int_equal(nib_quantize(src, dst, o, &r, &err), want);
    if (!strstr(err.text, text))
        fail_msg("'%s' does not name '%s'", err.text, text);
}

static void test_nan_and_truncation(void **state)
{
    (void)state;
    static uint16_t x[N * N];
    for (int i = 0; i < N * N; i++)
        x[i] = to_bf16(0.01f);
    x[777] = 0x7fc0;
    const struct tensor t[] = {{"layers.0.ffn.experts.0.w2.weight", NIB_ST_BF16, 2, {N, N}, x}};
    struct nib_quantize_options o = options();
    write_checkpoint(path_in("nan"), t, 1);
    expect_failure(path_in("nan"), path_in("nan-out"), &o, NIB_E_NUMERIC, "layers.0.ffn.experts.0.w2");
    x[777] = 0x7f80;
    write_checkpoint(path_in("inf"), t, 1);
    expect_failure(path_in("inf"), path_in("inf-out"), &o, NIB_E_NUMERIC, "layers.0.ffn.experts.0.w2");
    x[777] = 0;
    write_checkpoint(path_in("cut"), t, 1);
    assert_int_equal(truncate(path_in("cut/model.safetensors"), 100000), 0);
    expect_failure(path_in("cut"), path_in("cut-out"), &o, NIB_E_FORMAT, "truncated");
}

static void test_destination_is_respected(void **state)
{
    (void)state;
    struct nib_quantize_options o = options();
    assert_int_equal(mkdir(path_in("full"), 0777), 0);
    FILE *f = fopen(path_in("full/precious"), "w");
    assert_non_null(f);
    (void)fclose(f);
    expect_failure(TINY, path_in("full"), &o, NIB_E_ARGUMENT, "not empty");
    assert_int_equal(access(path_in("full/precious"), F_OK), 0);
    expect_failure(TINY, TINY, &o, NIB_E_ARGUMENT, "");
    o.include = "layers.*.ffn.gate";
    expect_failure(TINY, path_in("gate"), &o, NIB_E_ARGUMENT, "ffn.gate");
    o.include = NULL;
    o.exclude = "layers.0.ffn.experts.3.*";
    expect_failure(TINY, path_in("mixed"), &o, NIB_E_ARGUMENT, "share one format");
    o.exclude = "no.such.thing";
    expect_failure(TINY, path_in("typo"), &o, NIB_E_ARGUMENT, "no.such.thing");
}

/* ---- Whole models ---- */

static bool same_file(const char *a, const char *b)
{
    FILE *f = fopen(a, "r"), *g = fopen(b, "r");
    bool  same = f && g;
    int   x = 0, y = 0;
    while (same && x != EOF) {
        x = getc(f);
        y = getc(g);
        same = x == y;
    }
    if (f)
        (void)fclose(f);
    if (g)
        (void)fclose(g);
    return same;
}

static void quantize(const char *dst, const struct nib_quantize_options *o, struct nib_quantize_result *r)
{
    struct nib_error err = {0};
    if (nib_quantize(TINY, dst, o, r, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void test_threads_and_memory_change_nothing(void **state)
{
    (void)state;
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    o.preset = NIB_QUANT_FULL;
    quantize(path_in("one"), &o, &r);
    assert_int_equal(r.n_matrices, 406);
    assert_int_equal(r.n_exact, 336);
    o.n_threads = 3;
    o.memory_bytes = (uint64_t)64 << 20;
    quantize(path_in("three"), &o, &r);
    assert_true(same_file(path_in("one/model.safetensors"), path_in("three/model.safetensors")));
    assert_true(same_file(path_in("one/nibble-quant.json"), path_in("three/nibble-quant.json")));
    struct nib_quantize_result v;
    assert_int_equal(nib_quantize_verify(TINY, path_in("one"), &o, &v, NULL), NIB_OK);
    assert_int_equal(v.n_mismatches, 0);
    assert_int_equal(v.n_matrices, 406);
    /* One flipped code is found. */
    const int fd = open(path_in("three/model.safetensors"), O_RDWR);
    struct stat st;
    uint8_t     byte;
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pread(fd, &byte, 1, st.st_size - 4000), 1);
    byte ^= 0x22;
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size - 4000), 1);
    (void)close(fd);
    assert_int_equal(nib_quantize_verify(TINY, path_in("three"), &o, &v, NULL), NIB_OK);
    assert_true(v.n_mismatches > 0);
}

/* A limit on file size stands for a full disk; what was finished is kept and the run goes on. */
static void test_full_disk_and_resume(void **state)
{
    (void)state;
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    struct rlimit               old, limit;
    o.shard_bytes = (uint64_t)3 << 20;
    quantize(path_in("whole"), &o, &r);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = (rlim_t)3100000;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    expect_failure(TINY, path_in("disk"), &o, NIB_E_IO, "model-0");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    expect_failure(TINY, path_in("disk"), &o, NIB_E_STATE, "--resume");
    o.resume = true;
    o.method = NIB_QUANT_ABSMAX;
    expect_failure(TINY, path_in("disk"), &o, NIB_E_STATE, "another run");
    o.method = NIB_QUANT_AUTO;
    quantize(path_in("disk"), &o, &r);
    for (int i = 1; i <= r.n_shards; i++) {
        char a[80], b[80];
        (void)snprintf(a, sizeof a, "whole/model-%05d-of-%05d.safetensors", i, r.n_shards);
        (void)snprintf(b, sizeof b, "disk/model-%05d-of-%05d.safetensors", i, r.n_shards);
        assert_true(same_file(path_in(a), path_in(b)));
    }
    assert_true(same_file(path_in("whole/nibble-quant.json"), path_in("disk/nibble-quant.json")));
    assert_true(same_file(path_in("whole/config.json"), path_in("disk/config.json")));
    quantize(path_in("disk"), &o, &r);
    assert_true(r.was_complete);
}

enum { N_IDS = 12, VOCAB = 2048 };

/* What the engine makes of a folder. */
static void compute_logits(const char *dir, float logits[N_IDS * VOCAB])
{
    static const int32_t ids[N_IDS] = {0, 2038, 57, 632, 267, 1518, 33, 2039, 2042, 41, 1420, 858};
    struct nib_options   eo;
    struct nib_model    *m;
    struct nib_engine   *e;
    struct nib_seq      *s;
    int32_t              rows[N_IDS];
    for (int i = 0; i < (int)N_IDS; i++)
        rows[i] = i;
    nib_options_init(&eo);
    eo.n_threads = 1;
    eo.n_ctx = 64;
    assert_int_equal(nib_model_open(dir, &m, NULL), NIB_OK);
    assert_int_equal(nib_engine_open(m, &eo, &e, NULL), NIB_OK);
    assert_int_equal(nib_seq_open(e, &s, NULL), NIB_OK);
    const struct nib_batch b = {.n_rows = N_IDS, .n_seqs = 1, .n_logits = N_IDS, .token = ids,
                                .seq_start = (int32_t[]){0, N_IDS}, .seq = &s, .logits_row = rows};
    assert_int_equal(nib_step(e, &b, logits, NULL, NULL), NIB_OK);
    nib_seq_close(s);
    nib_engine_close(e);
    nib_model_close(m);
}

/* Experts decode to the source's values and the logits are the same bits. */
static void test_official_to_experts_is_exact(void **state)
{
    (void)state;
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    static float                logits[2][N_IDS * VOCAB];
    quantize(path_in("experts"), &o, &r);
    assert_int_equal(r.n_matrices, 336);
    assert_int_equal(r.n_exact, 336);
    assert_int_equal(r.n_recoded, 0);
    compute_logits(TINY, logits[0]);
    compute_logits(path_in("experts"), logits[1]);
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

/* Multiply the global scale of every w3 in a one-file NVFP4 folder, by 10 and 0.3 turn about. */
static int make_w3_unequal(const char *dir)
{
    struct nib_shard shard;
    char             path[320];
    int              n = 0;
    assert_int_equal(nib_shard_open(dir, "model.safetensors", &shard, NULL), NIB_OK);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    const int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    for (int64_t i = 0; i < shard.n_entries; i++) {
        const struct nib_tensor_entry *e = &shard.entry[i];
        if (!strstr(e->name, ".experts.") || !strstr(e->name, ".w3.weight_scale_2"))
            continue;
        float g;
        memcpy(&g, e->data, sizeof g);
        g *= n++ % 2 ? 0.3f : 10.0f;
        assert_int_equal(pwrite(fd, &g, sizeof g, (const char *)e->data - (const char *)shard.map), sizeof g);
    }
    (void)close(fd);
    nib_shard_close(&shard);
    return n;
}

static void test_b18_unequal_w1_and_w3(void **state)
{
    (void)state;
    static float                logits[3][N_IDS * VOCAB];
    static const char *const    bases[] = {"w1", "w2", "w3"};
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    quantize(path_in("unequal"), &o, &r);
    compute_logits(path_in("unequal"), logits[0]);
    assert_int_equal(make_w3_unequal(path_in("unequal")), 7 * 16);
    compute_logits(path_in("unequal"), logits[1]);
    assert_memory_not_equal(logits[0], logits[1], sizeof logits[0]);
    o.layout = NIB_QUANT_LAYOUT_HF;
    assert_int_equal(nib_quantize(path_in("unequal"), path_in("relayed"), &o, &r, NULL), NIB_OK);
    assert_int_equal(r.n_exact, 336);
    compute_logits(path_in("relayed"), logits[2]);
    assert_memory_equal(logits[1], logits[2], sizeof logits[1]);
    static const char *const hf[] = {"gate_proj", "down_proj", "up_proj"};
    for (int layer = 0; layer < 6; layer++)
        for (int w = 0; w < 3; w++) {
            char a[100], b[100];
            (void)snprintf(a, sizeof a, "layers.%d.ffn.experts.%d.%s", layer, layer * 2 + 1, bases[w]);
            (void)snprintf(b, sizeof b, "model.layers.%d.mlp.experts.%d.%s", layer, layer * 2 + 1, hf[w]);
            struct result before = open_result(path_in("unequal"), a), after = open_result(path_in("relayed"), b);
            assert_memory_equal(before.codes, after.codes, (size_t)(before.rows * before.cols / 2));
            assert_memory_equal(before.scales, after.scales, (size_t)(before.rows * before.cols / 16));
            assert_memory_equal(&before.g, &after.g, sizeof before.g);
            nib_checkpoint_close(before.c);
            nib_checkpoint_close(after.c);
        }
    o.layout = NIB_QUANT_LAYOUT_KEEP;
    assert_int_equal(nib_quantize_verify(path_in("unequal"), path_in("relayed"), &o, &r, NULL), NIB_OK);
    assert_int_equal(r.n_mismatches, 0);
}

/* B22: calibration decides input scales, never the weights of a method that does not weigh by it. */
static void test_b22_calibration_text(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "{\"ids\": [0]}\n", "{\"ids\": [0, 2038, 57, 632, 267, 1518, 33, 2039]}\n"};
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    struct nib_checkpoint      *c[3];
    for (int i = 0; i < 3; i++) {
        char name[20];
        (void)snprintf(name, sizeof name, "b22-%d", i);
        FILE *f = fopen(path_in("text.jsonl"), "w");
        assert_non_null(f);
        assert_true(fputs(texts[i], f) >= 0);
        assert_int_equal(fclose(f), 0);
        o = options();
        o.preset = NIB_QUANT_FULL;
        o.calibrate = path_in("text.jsonl");
        quantize(path_in(name), &o, &r);
        assert_non_null(strstr(g_warnings, "not reached"));
        assert_int_equal(nib_checkpoint_open(path_in(name), &c[i], NULL), NIB_OK);
    }
    for (int64_t i = 0; i < nib_checkpoint_n_tensors(c[0]); i++) {
        const struct nib_tensor_entry *a = nib_checkpoint_at(c[0], i);
        const char                    *tail = strrchr(a->name, '.');
        for (int k = 1; k < 3; k++) {
            const struct nib_tensor_entry *b = nib_checkpoint_find(c[k], a->name);
            assert_non_null(b);
            assert_int_equal(a->bytes, b->bytes);
            if (!tail || strcmp(tail, ".input_scale") != 0)
                assert_memory_equal(a->data, b->data, (size_t)a->bytes);
        }
    }
    for (int i = 0; i < 3; i++)
        nib_checkpoint_close(c[i]);
}

/* ---- Other sources ---- */

/* compressed-tensors NVFP4: names and reciprocals change, codes and scales do not. */
static void test_relay_keeps_codes(void **state)
{
    (void)state;
    enum { ROWS = 8, COLS = 64 };
    uint8_t     codes[ROWS * COLS / 2], scales[ROWS * COLS / 16];
    const float global = 4096, input = 8;
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(i * 73 + 5);
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = (uint8_t)(i % 0x7f);
    const struct tensor t[] = {{"layers.0.ffn.experts.0.w2.weight_packed", NIB_ST_U8, 2, {ROWS, COLS / 2}, codes},
                               {"layers.0.ffn.experts.0.w2.weight_scale", NIB_ST_F8_E4M3, 2, {ROWS, COLS / 16}, scales},
                               {"layers.0.ffn.experts.0.w2.weight_global_scale", NIB_ST_F32, 1, {1}, &global},
                               {"layers.0.ffn.experts.0.w2.input_global_scale", NIB_ST_F32, 1, {1}, &input}};
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    write_checkpoint(path_in("packed"), t, 4);
    assert_int_equal(nib_quantize(path_in("packed"), path_in("packed-out"), &o, &r, NULL), NIB_OK);
    struct result q = open_result(path_in("packed-out"), "layers.0.ffn.experts.0.w2");
    assert_memory_equal(q.codes, codes, sizeof codes);
    assert_memory_equal(q.scales, scales, sizeof scales);
    assert_true(q.g == 1.0f / 4096);
    float got;
    memcpy(&got, nib_checkpoint_find(q.c, "layers.0.ffn.experts.0.w2.input_scale")->data, sizeof got);
    assert_true(got == 0.125f);
    nib_checkpoint_close(q.c);
    assert_int_equal(nib_quantize_verify(path_in("packed"), path_in("packed-out"), &o, &r, NULL), NIB_OK);
    assert_int_equal(r.n_mismatches, 0);
    scales[3] = 0x7f;
    write_checkpoint(path_in("packed-nan"), t, 4);
    expect_failure(path_in("packed-nan"), path_in("packed-nan-out"), &o, NIB_E_NUMERIC, "layers.0.ffn.experts.0.w2");
}

/* FP8 experts with E8M0 and with F32 scales: what is encoded is code * scale. w1 and w3 share their global scale. */
static void test_fp8_experts(void **state)
{
    (void)state;
    enum { ROWS = 160, COLS = 256 };
    static uint8_t codes[2][ROWS * COLS];
    const uint8_t  e8m0[4] = {120, 118, 121, 119};
    const float    f32[4] = {0x1p-7f, 0x1p-9f, 0x1p-6f, 0x1p-8f};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < ROWS * COLS; i++)
            codes[k][i] = (uint8_t)(((i * 89 + i / 256 * 13) % 0x60) | (i * 7 & 0x80));
    codes[1][1234] = 0x7e;
    const struct tensor t[] = {{"layers.0.ffn.experts.0.w1.weight", NIB_ST_F8_E4M3, 2, {ROWS, COLS}, codes[0]},
                               {"layers.0.ffn.experts.0.w1.scale", NIB_ST_F8_E8M0, 2, {2, 2}, e8m0},
                               {"layers.0.ffn.experts.0.w3.weight", NIB_ST_F8_E4M3, 2, {ROWS, COLS}, codes[1]},
                               {"layers.0.ffn.experts.0.w3.weight_scale_inv", NIB_ST_F32, 2, {2, 2}, f32}};
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    write_checkpoint(path_in("fp8"), t, 4);
    assert_int_equal(nib_quantize(path_in("fp8"), path_in("fp8-out"), &o, &r, NULL), NIB_OK);
    assert_int_equal(r.n_matrices, 2);
    float g[2];
    for (int k = 0; k < 2; k++) {
        double        xx = 0, ee = 0;
        struct result q = open_result(path_in("fp8-out"), k ? "layers.0.ffn.experts.0.w3" : "layers.0.ffn.experts.0.w1");
        for (int i = 0; i < ROWS * COLS; i++) {
            const int    block = i / COLS / 128 * 2 + i % COLS / 128;
            const double x = (codes[k][i] & 0x80 ? -1 : 1) * e4m3(codes[k][i] & 0x7f) * (double)f32[block];
            const double e = x - value(&q, i) * (double)q.g;
            xx += x * x;
            ee += e * e;
        }
        g[k] = q.g;
        assert_true(ee / xx < 0.02);
        nib_checkpoint_close(q.c);
    }
    assert_true(g[0] == g[1]);
}

/* Stacked BF16 experts come apart into the right rows. */
static void test_stacked_experts(void **state)
{
    (void)state;
    enum { INNER = 16, DIM = 32 };
    static uint16_t gate_up[2 * 2 * INNER * DIM], down[2 * DIM * INNER], embed[16];
    for (int i = 0; i < 2 * 2 * INNER * DIM; i++)
        gate_up[i] = to_bf16((float)(1 << i / (INNER * DIM))); /* 1, 2, 4, 8: expert 0 gate, up, expert 1 gate, up */
    for (int i = 0; i < 2 * DIM * INNER; i++)
        down[i] = to_bf16(i < DIM * INNER ? 16 : 32);
    const struct tensor t[] = {{"model.layers.0.mlp.experts.gate_up_proj", NIB_ST_BF16, 3, {2, 2 * INNER, DIM}, gate_up},
                               {"model.layers.0.mlp.experts.down_proj", NIB_ST_BF16, 3, {2, DIM, INNER}, down},
                               {"embed.weight", NIB_ST_BF16, 2, {1, 16}, embed}};
    static const char *const names[] = {"layers.0.ffn.experts.0.w1", "layers.0.ffn.experts.0.w3", "layers.0.ffn.experts.1.w1",
                                        "layers.0.ffn.experts.1.w3", "layers.0.ffn.experts.0.w2", "layers.0.ffn.experts.1.w2"};
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    o.layout = NIB_QUANT_LAYOUT_OFFICIAL;
    o.method = NIB_QUANT_ABSMAX;
    write_checkpoint(path_in("twice"), t, 3);
    expect_failure(path_in("twice"), path_in("twice-out"), &o, NIB_E_FORMAT, "both be named 'embed.weight'");
    write_checkpoint(path_in("stacked"), t, 2);
    assert_int_equal(nib_quantize(path_in("stacked"), path_in("stacked-out"), &o, &r, NULL), NIB_OK);
    assert_int_equal(r.n_matrices, 6);
    for (int k = 0; k < 6; k++) {
        struct result q = open_result(path_in("stacked-out"), names[k]);
        assert_int_equal(q.rows, k < 4 ? INNER : DIM);
        for (int i = 0; i < INNER * DIM; i++) /* a block of equal values: off by the scale's rounding only */
            assert_true(fabs(value(&q, i) * (double)q.g / (1 << k) - 1) < 0.0625);
        nib_checkpoint_close(q.c);
    }
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(g_root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[200];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", g_root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b20_cast_by_spread),        cmocka_unit_test(test_b14_scales_saturate),
        cmocka_unit_test(test_b21_outlier),               cmocka_unit_test(test_nan_and_truncation),
        cmocka_unit_test(test_destination_is_respected),  cmocka_unit_test(test_threads_and_memory_change_nothing),
        cmocka_unit_test(test_full_disk_and_resume),      cmocka_unit_test(test_official_to_experts_is_exact),
        cmocka_unit_test(test_b22_calibration_text),      cmocka_unit_test(test_relay_keeps_codes),
        cmocka_unit_test(test_fp8_experts),               cmocka_unit_test(test_stacked_experts),
        cmocka_unit_test(test_b18_unequal_w1_and_w3),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
