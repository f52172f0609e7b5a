/* relay is what other tests lean on: every layout that it writes must hold the source's weights, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "support/relay.h"
#include "support/relay_names.h"
#include "support/relay_values.h"
#include "support/safetensors_write.h"

#define SOURCE NIB_SOURCE_DIR "/tests/data/tiny-v4-official"

static double bf16_at(const void *data, int64_t i)
{
    uint16_t half;
    memcpy(&half, (const char *)data + 2 * i, 2);
    uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, 4);
    return (double)f;
}

/* A linear's values in any layout; NULL if it is not there. */
static double *values(const struct nib_checkpoint *c, const char *base, int64_t *n)
{
    struct relay_linear w;
    struct nib_error err;
    if (!relay_linear_find(c, base, &w))
        return NULL;
    if (w.format != RELAY_PLAIN) {
        *n = w.rows * w.cols;
        return relay_decode(&w, &err);
    }
    assert_int_equal(w.weight->dtype, NIB_ST_BF16);
    *n = (int64_t)(w.weight->bytes / 2);
    double *x = malloc((size_t)*n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < *n; i++)
        x[i] = bf16_at(w.weight->data, i);
    return x;
}

/* The same bytes in the same format: no need to decode. */
static bool same_bytes(const struct nib_checkpoint *a, const struct nib_checkpoint *b, const char *base)
{
    struct relay_linear x, y;
    if (!relay_linear_find(a, base, &x) || !relay_linear_find(b, base, &y) || x.format != y.format || x.scale_2)
        return false;
    return x.weight->dtype == y.weight->dtype && x.weight->bytes == y.weight->bytes && x.rows == y.rows &&
           x.cols == y.cols && memcmp(x.weight->data, y.weight->data, (size_t)x.weight->bytes) == 0 &&
           (!x.scale || memcmp(x.scale->data, y.scale->data, (size_t)x.scale->bytes) == 0);
}

/* The base name in the layout written by kind. */
static void base_in(const char *kind, const char *base, char *out, size_t n)
{
    char name[512];
    (void)snprintf(name, sizeof name, "%.500s.weight", base);
    if (strcmp(kind, "bf16") == 0) {
        assert_true(relay_hf_name(name, out, n));
        out[strlen(out) - 7] = 0;
    } else {
        (void)snprintf(out, n, "%s", base);
    }
}

/* What the kinds promise about formats. */
static const struct {
    const char *kind, *tensor;
    enum nib_st_dtype dtype;
} forms[] = {
    { "bf16", "model.layers.3.mlp.experts.9.gate_proj.weight", NIB_ST_BF16 },
    { "bf16", "model.layers.3.self_attn.o_a_proj.weight", NIB_ST_BF16 },
    { "nvfp4-experts", "layers.3.ffn.experts.9.w1.weight", NIB_ST_U8 },
    { "nvfp4-experts", "layers.3.ffn.experts.9.w1.weight_scale", NIB_ST_F8_E4M3 },
    { "nvfp4-experts", "mtp.0.ffn.experts.9.w2.weight_scale_2", NIB_ST_F32 },
    { "nvfp4-experts", "layers.3.attn.wo_a.scale", NIB_ST_F8_E8M0 },
    { "nvfp4-bf16", "layers.3.ffn.experts.9.w1.weight", NIB_ST_U8 },
    { "nvfp4-bf16", "layers.3.attn.wo_a.weight", NIB_ST_BF16 },
    { "scale-names", "layers.3.ffn.experts.9.w1.weight_scale_inv", NIB_ST_F8_E8M0 },
    { "scale-names", "layers.3.attn.wo_a.weight", NIB_ST_BF16 },
    { "scale-names", "layers.3.attn.wo_b.weight", NIB_ST_F8_E4M3 },
    { "scale-names-plain", "layers.3.attn.wo_a.weight_scale", NIB_ST_F8_E8M0 },
    { "fp8-experts", "layers.3.ffn.experts.9.w1.weight", NIB_ST_F8_E4M3 },
    { "mtp-bf16", "mtp.0.ffn.experts.9.w1.weight", NIB_ST_BF16 },
    { "mtp-bf16", "layers.0.ffn.experts.9.w1.weight", NIB_ST_I8 },
    { "mtp-mxfp4", "mtp.0.ffn.experts.9.w1.scale", NIB_ST_F8_E8M0 },
    { "mtp-mxfp4", "layers.0.ffn.experts.9.w1.weight_scale_2", NIB_ST_F32 },
    { "mtp-nvfp4", "mtp.0.ffn.experts.9.w1.weight_scale_2", NIB_ST_F32 },
    { "mtp-nvfp4", "layers.0.ffn.experts.9.w1.weight", NIB_ST_I8 },
    { "mixed", "layers.0.ffn.experts.9.w1.weight_scale", NIB_ST_F8_E4M3 },
    { "mixed", "layers.0.ffn.experts.9.w2.scale", NIB_ST_F8_E8M0 },
    { "mixed", "layers.2.ffn.experts.9.w3.weight", NIB_ST_F8_E4M3 },
    { "mixed", "layers.2.ffn.experts.9.w2.weight", NIB_ST_BF16 },
    { "ct-nvfp4", "layers.3.ffn.experts.9.w1.weight_packed", NIB_ST_U8 },
    { "ct-nvfp4", "layers.3.ffn.experts.9.w1.input_global_scale", NIB_ST_F32 },
    { "ct-nvfp4", "layers.3.attn.wo_b.weight_scale", NIB_ST_F32 },
    { "ct-nvfp4-hf", "model.layers.3.mlp.experts.9.down_proj.weight_packed", NIB_ST_U8 },
    { "ct-nvfp4-hf", "model.layers.3.self_attn.o_b_proj.weight_scale", NIB_ST_BF16 },
    { "ct-nvfp4-hf", "model.mtp.0.mlp.experts.9.down_proj.weight", NIB_ST_BF16 },
};

static void check_form(const char *kind, const struct test_dir *d, const struct nib_checkpoint *c)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const struct nib_tensor_entry *e = nib_checkpoint_find(c, forms[i].tensor);
        if (strcmp(forms[i].kind, kind) == 0 && (!e || e->dtype != forms[i].dtype))
            fail_msg("%s: wrong or no %s", kind, forms[i].tensor);
    }
    bool sharded = strcmp(kind, "sharded") == 0;
    assert_int_equal(access(test_dir_path(d, "model-00005-of-00005.safetensors"), R_OK) == 0, sharded);
    assert_int_equal(access(test_dir_path(d, "model.safetensors"), R_OK) == 0, !sharded);
    assert_int_equal(access(test_dir_path(d, "config.json"), R_OK), 0);
    assert_int_equal(access(test_dir_path(d, "tokenizer.json"), R_OK), 0);
}

static int64_t check_kind(const char *kind, const struct nib_checkpoint *source)
{
    struct test_dir d;
    struct nib_error err;
    struct nib_checkpoint *c;
    int64_t n_checked = 0;
    test_dir_open(&d);
    if (relay_checkpoint(kind, SOURCE, d.path, &err) != NIB_OK)
        fail_msg("%s: %s", kind, err.text);
    assert_int_equal(nib_checkpoint_open(d.path, &c, &err), NIB_OK);
    for (int64_t i = 0; i < nib_checkpoint_n_tensors(source); i++) {
        const struct nib_tensor_entry *e = nib_checkpoint_at(source, i);
        size_t n_name = strlen(e->name);
        char base[512], other[512];
        int64_t n, m;
        if (n_name < 7 || strcmp(e->name + n_name - 7, ".weight") != 0)
            continue;
        (void)snprintf(base, sizeof base, "%.*s", (int)n_name - 7, e->name);
        if (same_bytes(source, c, base)) {
            n_checked++;
            continue;
        }
        base_in(kind, base, other, sizeof other);
        double *want = values(source, base, &n), *got = values(c, other, &m);
        if (strcmp(kind, "no-mtp") == 0 && strncmp(base, "mtp.", 4) == 0) {
            assert_null(got);
        } else {
            assert_non_null(got);
            assert_int_equal(n, m);
            assert_memory_equal(want, got, (size_t)n * sizeof *want);
            n_checked++;
        }
        free(want);
        free(got);
    }
    check_form(kind, &d, c);
    nib_checkpoint_close(c);
    test_dir_close(&d);
    return n_checked;
}

static void every_layout_holds_the_same_weights(void **state)
{
    (void)state;
    static const char *const kinds[] = {
        "bf16",        "nvfp4-experts", "nvfp4-bf16", "scale-names", "scale-names-plain",
        "fp8-experts", "mtp-bf16",      "no-mtp",     "sharded",     "single",
        "mtp-mxfp4",   "mtp-nvfp4",     "mixed"
    };
    struct nib_checkpoint *source;
    assert_int_equal(nib_checkpoint_open(SOURCE, &source, NULL), NIB_OK);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        /* The index has 465 tensors named .weight, 66 of them the MTP block's. */
        assert_int_equal(check_kind(kinds[i], source), strcmp(kinds[i], "no-mtp") == 0 ? 399 : 465);
    }
    nib_checkpoint_close(source);
}

static float scalar(const struct nib_checkpoint *c, const char *name)
{
    const struct nib_tensor_entry *e = nib_checkpoint_find(c, name);
    float v = 0;
    assert_non_null(e);
    assert_int_equal(e->bytes, sizeof v);
    memcpy(&v, e->data, sizeof v);
    return v;
}

/* The same codes and block scales as in the exporter's spelling, and the inverse of its global scales. */
static void compressed_tensors_divide(void **state)
{
    (void)state;
    static const char *const kinds[] = { "nvfp4-experts", "ct-nvfp4", "ct-nvfp4-hf" };
    struct nib_checkpoint *c[3];
    struct test_dir d[3];
    struct nib_error err;
    for (int i = 0; i < 3; i++) {
        test_dir_open(&d[i]);
        assert_int_equal(relay_checkpoint(kinds[i], SOURCE, d[i].path, &err), NIB_OK);
        assert_int_equal(nib_checkpoint_open(d[i].path, &c[i], &err), NIB_OK);
        check_form(kinds[i], &d[i], c[i]);
    }
    for (int e = 0; e < 16; e++) {
        char name[2][128];
        (void)snprintf(name[0], sizeof name[0], "layers.4.ffn.experts.%d.w2.weight", e);
        (void)snprintf(name[1], sizeof name[1], "layers.4.ffn.experts.%d.w2.weight_packed", e);
        const struct nib_tensor_entry *a = nib_checkpoint_find(c[0], name[0]), *b = nib_checkpoint_find(c[1], name[1]);
        assert_true(a && b);
        assert_memory_equal(a->data, b->data, a->bytes);
        (void)snprintf(name[0], sizeof name[0], "layers.4.ffn.experts.%d.w2.weight_scale_2", e);
        (void)snprintf(name[1], sizeof name[1], "layers.4.ffn.experts.%d.w2.weight_global_scale", e);
        const float g = scalar(c[0], name[0]), divisor = scalar(c[1], name[1]);
        assert_true(g < 1 && divisor > 1 && g * divisor == 1);
        (void)snprintf(name[1], sizeof name[1], "model.layers.4.mlp.experts.%d.down_proj.weight_global_scale", e);
        assert_true(scalar(c[2], name[1]) == divisor);
    }
    for (int i = 0; i < 3; i++) {
        nib_checkpoint_close(c[i]);
        test_dir_close(&d[i]);
    }
}

static void stacked_experts_stand_in_order(void **state)
{
    (void)state;
    struct test_dir d;
    struct nib_checkpoint *source, *c;
    struct nib_error err;
    test_dir_open(&d);
    assert_int_equal(nib_checkpoint_open(SOURCE, &source, NULL), NIB_OK);
    assert_int_equal(relay_checkpoint("bf16-stacked", SOURCE, d.path, &err), NIB_OK);
    assert_int_equal(nib_checkpoint_open(d.path, &c, &err), NIB_OK);
    const int64_t one = 64 * 256;
    for (int layer = 0; layer <= 6; layer++) {
        char head[32], name[128];
        (void)snprintf(head, sizeof head, layer < 6 ? "layers.%d" : "mtp.0", layer);
        (void)snprintf(name, sizeof name, "model.%s.mlp.experts.gate_up_proj", head);
        const struct nib_tensor_entry *up = nib_checkpoint_find(c, name);
        (void)snprintf(name, sizeof name, "model.%s.mlp.experts.down_proj", head);
        const struct nib_tensor_entry *down = nib_checkpoint_find(c, name);
        assert_true(up && down && up->n_dims == 3 && down->n_dims == 3);
        assert_true(up->shape[0] == 16 && up->shape[1] == 128 && up->shape[2] == 256);
        assert_true(down->shape[0] == 16 && down->shape[1] == 256 && down->shape[2] == 64);
        for (int e = 0; e < 16; e++) {
            for (int k = 0; k < 3; k++) {
                static const char *const part[3] = { "w1", "w3", "w2" };
                const char *at =
                    k < 2 ? (const char *)up->data + 2 * (2 * e + k) * one : (const char *)down->data + 2 * e * one;
                int64_t n;
                (void)snprintf(name, sizeof name, "%s.ffn.experts.%d.%s", head, e, part[k]);
                double *want = values(source, name, &n);
                assert_non_null(want);
                assert_int_equal(n, one);
                for (int64_t i = 0; i < n; i++) {
                    double got = bf16_at(at, i);
                    assert_memory_equal(&got, &want[i], sizeof got);
                }
                free(want);
            }
        }
    }
    nib_checkpoint_close(c);
    nib_checkpoint_close(source);
    test_dir_close(&d);
}

static void refuses_unknown_kinds(void **state)
{
    (void)state;
    struct nib_error err;
    assert_int_equal(relay_checkpoint("no-such-kind", SOURCE, "/tmp/nibble-never-made", &err), NIB_E_ARGUMENT);
    assert_non_null(strstr(err.text, "no-such-kind"));
    assert_int_not_equal(access("/tmp/nibble-never-made", F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_holds_the_same_weights),
        cmocka_unit_test(compressed_tensors_divide),
        cmocka_unit_test(stacked_experts_stand_in_order),
        cmocka_unit_test(refuses_unknown_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
