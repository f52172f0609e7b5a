/* What tests of whole conversions share: a folder for them, small checkpoints written there, what a conversion made of
 * a tensor. Decoding is this file's own. */
#ifndef NIB_TESTS_QUANTIZE_RIG_H
#define NIB_TESTS_QUANTIZE_RIG_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static inline char *path_in(const char *name)
{
    static char path[4][300];
    static int  next;
    char       *p = path[next++ % 4];
    (void)snprintf(p, sizeof path[0], "%s/%s", g_root, name);
    return p;
}

static inline void on_warning(void *user, const char *text)
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

static inline void write_checkpoint(const char *dir, const struct tensor *t, int n)
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

static inline uint16_t to_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float from_bf16(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float          v;
    memcpy(&v, &u, 4);
    return v;
}

static inline struct nib_quantize_options options(void)
{
    struct nib_quantize_options o;
    nib_quantize_options_init(&o);
    o.n_threads = 1;
    o.warning = on_warning;
    g_warnings[0] = '\0';
    return o;
}

/* ---- Decoding, from the format's definition ---- */

static inline double e2m1(int c)
{
    static const double v[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return c & 8 ? -v[c & 7] : v[c & 7];
}

static inline double e4m3(uint8_t b)
{
    return b >> 3 ? ldexp(8 + (b & 7), (b >> 3) - 10) : ldexp(b & 7, -9);
}

struct result {
    struct nib_checkpoint *c;
    const uint8_t         *codes, *scales;
    int64_t                rows, cols;
    float                  g;
};

static inline struct result open_result(const char *dir, const char *base)
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
static inline double value(const struct result *r, int64_t i)
{
    return e2m1(r->codes[i / 2] >> (i % 2 * 4) & 15) * e4m3(r->scales[i / 16]);
}

static inline void expect_failure(const char *src, const char *dst, const struct nib_quantize_options *o, enum nib_status want, const char *text)
{
    struct nib_quantize_result r;
    struct nib_error           err = {0};
    assert_int_equal(nib_quantize(src, dst, o, &r, &err), want);
    if (!strstr(err.text, text))
        fail_msg("'%s' does not name '%s'", err.text, text);
}

/* ---- The folder ---- */

static inline int make_root(void **state)
{
    (void)state;
    return mkdtemp(g_root) ? 0 : -1;
}

static inline int remove_root(void **state)
{
    char command[200];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", g_root);
    return system(command);
}

#endif
