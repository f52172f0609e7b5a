/* Conversions of the bundled models, and of other sources than they: threads and memory, a full disk and resuming,
 * equal logits, calibration, weights that are NVFP4 or FP8 already, stacked experts. */
#include "quantize/quant.h"
#include "unit/quantize_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

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
    eo.backend = "cpu";
    eo.act_quant = NIB_ACT_QUANT_NONE; /* rounding before 4-bit weights alone would tell formats apart */
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

/* Matrices that the model does not read, an expert beyond the config's and an indexer in a layer that has none, of
 * another width: the first is copied, the second converted without statistics. */
static void test_strays(void **state)
{
    (void)state;
    static uint16_t     data[64 * 1024];
    static const char   expert[] = "model.layers.0.mlp.experts.999999.gate_proj.weight";
    static const char   indexer[] = "model.layers.0.self_attn.compressor.indexer.q_b_proj";
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    char                        command[4096], header[512];
    for (size_t i = 0; i < sizeof data / sizeof data[0]; i++)
        data[i] = to_bf16((float)(i % 7) - 3);
    (void)snprintf(command, sizeof command,
                   "cd '%s' && mkdir strays && ln -s '" NIB_SOURCE_DIR "'/models/tiny-v4/* strays && "
                   "echo '{\"ids\": [0, 2038, 57, 632]}' >text.jsonl", g_root);
    assert_int_equal(system(command), 0);
    const int n = snprintf(header, sizeof header,
                           "{\"%s\":{\"dtype\":\"BF16\",\"shape\":[64,256],\"data_offsets\":[0,32768]},"
                           "\"%s.weight\":{\"dtype\":\"BF16\",\"shape\":[64,1024],\"data_offsets\":[32768,163840]}}",
                           expert, indexer);
    const uint64_t n_header = (uint64_t)n;
    FILE *f = fopen(path_in("strays/extra.safetensors"), "wb");
    assert_non_null(f);
    assert_true(fwrite(&n_header, sizeof n_header, 1, f) == 1 && fwrite(header, (size_t)n, 1, f) == 1 &&
                fwrite(data, 32768, 1, f) == 1 && fwrite(data, sizeof data, 1, f) == 1);
    assert_int_equal(fclose(f), 0);
    o.preset = NIB_QUANT_FULL;
    o.method = NIB_QUANT_GPTQ;
    o.calibrate = path_in("text.jsonl");
    struct nib_error err = {0};
    if (nib_quantize(path_in("strays"), path_in("strays-out"), &o, &r, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_non_null(strstr(g_warnings, "1 tensors have names that no DeepSeek-V4 layout knows"));
    struct result converted = open_result(path_in("strays-out"), indexer);
    const struct nib_tensor_entry *copied = nib_checkpoint_find(converted.c, expert);
    assert_non_null(copied);
    assert_int_equal(copied->bytes, 64 * 256 * sizeof *data);
    assert_memory_equal(copied->data, data, (size_t)copied->bytes);
    assert_int_equal(converted.cols, 1024);
    nib_checkpoint_close(converted.c);
    /* A number that 32 bits would take for expert 0. */
    struct nib_quant_id id;
    assert_true(nib_quant_identify("layers.0.ffn.experts.0.w1.weight", 6, &id));
    assert_false(nib_quant_identify("layers.0.ffn.experts.4294967296.w1.weight", 6, &id));
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
    const uint8_t  e8m0[4] = {120, 118, 121, 119}, larger[4] = {123, 121, 124, 122};
    const float    f32[4] = {0x1p-7f, 0x1p-9f, 0x1p-6f, 0x1p-8f};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < ROWS * COLS; i++)
            codes[k][i] = (uint8_t)(((i * 89 + i / 256 * 13) % 0x60) | (i * 7 & 0x80));
    codes[1][1234] = 0x7e;
    const struct tensor t[] = {{"layers.0.ffn.experts.0.w1.weight", NIB_ST_F8_E4M3, 2, {ROWS, COLS}, codes[0]},
                               {"layers.0.ffn.experts.0.w1.scale", NIB_ST_F8_E8M0, 2, {2, 2}, e8m0},
                               {"layers.0.ffn.experts.0.w3.weight", NIB_ST_F8_E4M3, 2, {ROWS, COLS}, codes[1]},
                               {"layers.0.ffn.experts.0.w3.weight_scale_inv", NIB_ST_F32, 2, {2, 2}, f32},
                               {"layers.0.ffn.experts.1.w1.weight", NIB_ST_F8_E4M3, 2, {ROWS, COLS}, codes[1]},
                               {"layers.0.ffn.experts.1.w1.scale", NIB_ST_F8_E8M0, 2, {2, 2}, larger},
                               {"layers.0.ffn.experts.1.w3.weight", NIB_ST_F8_E4M3, 2, {ROWS, COLS}, codes[0]},
                               {"layers.0.ffn.experts.1.w3.scale", NIB_ST_F8_E8M0, 2, {2, 2}, larger}};
    static const char *const    names[4] = {"layers.0.ffn.experts.0.w1", "layers.0.ffn.experts.0.w3",
                                            "layers.0.ffn.experts.1.w1", "layers.0.ffn.experts.1.w3"};
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    write_checkpoint(path_in("fp8"), t, 8);
    assert_int_equal(nib_quantize(path_in("fp8"), path_in("fp8-out"), &o, &r, NULL), NIB_OK);
    assert_int_equal(r.n_matrices, 4);
    float g[4];
    for (int k = 0; k < 4; k++) {
        double         xx = 0, ee = 0;
        const uint8_t *code = codes[k == 1 || k == 2];
        struct result  q = open_result(path_in("fp8-out"), names[k]);
        for (int i = 0; i < ROWS * COLS; i++) {
            const int    block = i / COLS / 128 * 2 + i % COLS / 128;
            const double x = (code[i] & 0x80 ? -1 : 1) * e4m3(code[i] & 0x7f) * (double)f32[block] * (k < 2 ? 1 : 8);
            const double e = x - value(&q, i) * (double)q.g;
            xx += x * x;
            ee += e * e;
        }
        g[k] = q.g;
        assert_true(ee / xx < 0.02);
        nib_checkpoint_close(q.c);
    }
    /* w1 and w3 of an expert share the global scale, and no two experts do: of the second one all values are 8 times as
     * large. */
    assert_true(g[0] == g[1] && g[2] == g[3] && g[2] == 8 * g[0]);
}

/* FP8 is decoded to BF16 by adding to exponents, as far as BF16's normal numbers go: with a scale of 2^-118 the smallest
 * code, 2^-9, is below them, and with 2^121 the largest one is above all numbers and its exponent would run into the sign.
 * The small ones are kept, 2^-17.8 of the largest value, which a block scale of NVFP4 still reaches. */
static void test_fp8_extreme_scales(void **state)
{
    (void)state;
    enum { N = 128 * 128 };
    static uint8_t      codes[N];
    uint8_t             scale = 127 - 118;
    const struct tensor t[] = {{"layers.0.ffn.experts.0.w2.weight", NIB_ST_F8_E4M3, 2, {128, 128}, codes},
                               {"layers.0.ffn.experts.0.w2.scale", NIB_ST_F8_E8M0, 2, {1, 1}, &scale}};
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    memset(codes, 0x01, sizeof codes);
    codes[0] = 0x7e;
    write_checkpoint(path_in("fp8-small"), t, 2);
    assert_int_equal(nib_quantize(path_in("fp8-small"), path_in("fp8-small-out"), &o, &r, NULL), NIB_OK);
    struct result q = open_result(path_in("fp8-small-out"), "layers.0.ffn.experts.0.w2");
    for (int i = 16; i < N; i++)
        assert_true(fabs(value(&q, i) * (double)q.g - 0x1p-127) < 0.2 * 0x1p-127);
    nib_checkpoint_close(q.c);
    scale = 127 + 121;
    write_checkpoint(path_in("fp8-large"), t, 2);
    expect_failure(path_in("fp8-large"), path_in("fp8-large-out"), &o, NIB_E_NUMERIC, "layers.0.ffn.experts.0.w2");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_and_memory_change_nothing), cmocka_unit_test(test_full_disk_and_resume),
        cmocka_unit_test(test_official_to_experts_is_exact),      cmocka_unit_test(test_b22_calibration_text),
        cmocka_unit_test(test_relay_keeps_codes),                 cmocka_unit_test(test_fp8_experts),
        cmocka_unit_test(test_fp8_extreme_scales),
        cmocka_unit_test(test_strays),
        cmocka_unit_test(test_stacked_experts),                   cmocka_unit_test(test_b18_unequal_w1_and_w3),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
