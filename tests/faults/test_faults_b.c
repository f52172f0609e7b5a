/* Known faults of NVFP4: B15, B17, B18, B24. B14 and B20 to B22 are test_quantize_job's, B25 is test_opcheck's
 * (docs/known-faults.md). */
#include "faults/both_backends.h"

#include <stdio.h>

#include "support/hostile.h"
#include "support/model_support.h"
#include "support/relay.h"

enum { VOCAB = 2048, COLS = 160, OUT = 70, N_TOKENS = 6 };

/* ---- B15: division by zero when rows are quantised ---- */

enum { ZERO, TINY, UNEVEN, LARGE, N_ODD };

static void odd_row(const struct nib_mat *x, int t, int kind)
{
    for (int i = 0; i < COLS; i++) {
        float v = 0;
        if (kind == TINY)
            v = i == 33 ? 1e-30f : 0;
        else if (kind == UNEVEN)
            v = i < 16 ? 1e-9f : i < 32 ? 1e3f : 0;
        else if (kind == LARGE)
            v = 448 * 6;
        rig_set(x, t, i, v);
    }
}

/* y of n random rows, with the odd row before row `at` if kind is one. */
static struct nib_mat product(struct rig *r, const struct nib_weight *w, enum nib_act_format format, int n, int at, int kind)
{
    const int rows = n + (kind < N_ODD);
    struct nib_mat x = rig_mat(r, NIB_DTYPE_F32, rows, COLS), y = rig_mat(r, NIB_DTYPE_F32, rows, OUT);
    uint64_t seed = 9;
    for (int t = 0; t < rows; t++) {
        if (kind < N_ODD && t == at)
            odd_row(&x, t, kind);
        for (int i = 0; i < COLS && !(kind < N_ODD && t == at); i++)
            rig_set(&x, t, i, model_uniform(&seed));
    }
    struct nib_act a = rig_act_mat(r, NIB_DTYPE_F32, format, false, rows, COLS);
    float *ones = rig_random_floats(r, COLS, 1, 1);
    assert_int_equal(r->ops->norm(r->s, &(struct nib_norm_args){x, ones, 1e-6f, a}), NIB_OK);
    assert_int_equal(r->ops->linear(r->s, &(struct nib_linear_args){.x = a, .n_weights = 1, .w = {w}, .y = {y}}),
                     NIB_OK);
    return y;
}

static void b15_odd_activation_rows(void)
{
    static const int n_rows[] = {0, 6, 127};
    static const enum nib_act_format formats[] = {NIB_ACT_NVFP4, NIB_ACT_FP8, NIB_ACT_INT8};
    for (int f = 0; f < 3; f++) {
        for (int n = 0; n < 3; n++) {
            struct rig r;
            rig_open(&r, 1);
            struct nib_weight *w = rig_weight(&r, NIB_WEIGHT_NVFP4, formats[f], 1, OUT, COLS, NULL);
            struct nib_mat clean = product(&r, w, formats[f], n_rows[n], 0, N_ODD);
            for (int kind = 0; kind < N_ODD; kind++) {
                const int at = n_rows[n] / 2;
                struct nib_mat y = product(&r, w, formats[f], n_rows[n], at, kind);
                for (int t = 0; t <= n_rows[n]; t++) {
                    rig_assert_finite_row(&y, t);
                    if (t != at)
                        rig_assert_same_row(&y, t, &clean, t - (t > at));
                }
                for (int i = 0; kind == ZERO && i < OUT; i++)
                    assert_true(rig_get(&y, at, i) == 0);
            }
            rig_close(&r);
        }
    }
}
BOTH(b15_odd_activation_rows)

/* ---- Whole models ---- */

static const char *const backends[] = {"ref", "cpu"};

static bool same_logits(const char *a, const char *b, const char *backend, bool mtp)
{
    float *x = hostile_logits(a, backend, NIB_ACT_QUANT_NONE, N_TOKENS, mtp), *y = hostile_logits(b, backend, NIB_ACT_QUANT_NONE, N_TOKENS, mtp);
    /* The first row of the MTP block is NaN. */
    const size_t from = mtp ? VOCAB : 0;
    const bool same = memcmp(x + from, y + from, (N_TOKENS * VOCAB - from) * sizeof *x) == 0;
    free(x);
    free(y);
    return same;
}

/* B17: an input_scale plays no part where activations are not quantised, nor does its absence. */
static void b17_input_scales_are_not_read(void **state)
{
    struct hostile without, ones;
    int n = 0;
    (void)state;
    hostile_open(&without, MODEL_NVFP4);
    hostile_open(&ones, MODEL_NVFP4);
    for (int64_t i = ones.items.n - 1; i >= 0; i--) {
        struct relay_item *it = &ones.items.item[i];
        const size_t length = strlen(it->name);
        if (length < 12 || strcmp(it->name + length - 12, ".input_scale") != 0)
            continue;
        hostile_drop(&without, it->name);
        *(float *)it->data = 1;
        n++;
    }
    assert_true(n > 300);
    (void)hostile_write(&without);
    (void)hostile_write(&ones);
    for (int k = 0; k < 2; k++) {
        assert_true(same_logits(without.dir.path, ones.dir.path, backends[k], false));
        assert_true(same_logits(without.dir.path, MODEL_NVFP4, backends[k], true));
    }
    hostile_close(&without);
    hostile_close(&ones);
}

/* The number in the place of '#'. */
static void with_number(char *out, size_t n, const char *pattern, int number)
{
    const char *at = strchr(pattern, '#');
    if (at)
        (void)snprintf(out, n, "%.*s%d%s", (int)(at - pattern), pattern, number, at + 1);
    else
        (void)snprintf(out, n, "%s", pattern);
}

static void global_scale(struct hostile *h, const char *base, float factor)
{
    char name[128];
    float g;
    (void)snprintf(name, sizeof name, "%s.weight_scale_2", base);
    void *data = hostile_item(h, name)->data;
    memcpy(&g, data, sizeof g);
    g *= factor;
    memcpy(data, &g, sizeof g);
}

/* base as plain F32, decoded by the definition. */
static void to_plain(struct hostile *h, const char *base)
{
    char name[3][128];
    const char *const suffix[] = {"weight", "weight_scale", "weight_scale_2"};
    float g;
    for (int i = 0; i < 3; i++)
        (void)snprintf(name[i], sizeof name[i], "%s.%s", base, suffix[i]);
    struct relay_item *w = hostile_item(h, name[0]);
    const int64_t rows = w->shape[0], cols = 2 * w->shape[1];
    unsigned char *code = w->data, *scale = hostile_item(h, name[1])->data;
    float *x = malloc((size_t)(rows * cols) * sizeof *x);
    assert_non_null(x);
    memcpy(&g, hostile_item(h, name[2])->data, sizeof g);
    for (int64_t i = 0; i < rows * cols; i++)
        x[i] = (float)(model_e2m1((uint32_t)code[i / 2] >> (i % 2 * 4) & 15u) * model_e4m3(scale[i / 16]) * (double)g);
    memcpy(hostile_reshape(h, name[0], NIB_ST_F32, 2, (int64_t[2]){rows, cols}), x, (size_t)(rows * cols) * sizeof *x);
    hostile_drop(h, name[1]);
    hostile_drop(h, name[2]);
    free(x);
}

/* B18: gate and up of an expert, and of the shared one, with global scales that differ tenfold either way: each half
 * uses its own. The plain copy holds the products rounded to fp32, 2^-24 of each; what that does to logits is far below
 * 1e-3. */
static void b18_halves_with_different_global_scales(void **state)
{
    static const char *const pairs[][2] = {{"model.layers.0.mlp.experts.#.gate_proj", "model.layers.0.mlp.experts.#.up_proj"},
                                           {"model.layers.3.mlp.shared_experts.gate_proj", "model.layers.3.mlp.shared_experts.up_proj"},
                                           {"model.layers.4.self_attn.q_a_proj", "model.layers.4.self_attn.kv_proj"}};
    (void)state;
    for (int larger = 0; larger < 2; larger++) {
        struct hostile coded, plain;
        hostile_open(&coded, MODEL_NVFP4);
        hostile_open(&plain, MODEL_NVFP4);
        for (int p = 0; p < 3; p++) {
            for (int e = 0; e < (p == 0 ? 16 : 1); e++) {
                for (int half = 0; half < 2; half++) {
                    char base[96];
                    with_number(base, sizeof base, pairs[p][half], e);
                    if (half == larger) {
                        global_scale(&coded, base, 10);
                        global_scale(&plain, base, 10);
                    }
                    to_plain(&plain, base);
                }
            }
        }
        (void)hostile_write(&coded);
        (void)hostile_write(&plain);
        for (int k = 0; k < 2; k++) {
            float *a = hostile_logits(coded.dir.path, backends[k], NIB_ACT_QUANT_NONE, N_TOKENS, false);
            float *b = hostile_logits(plain.dir.path, backends[k], NIB_ACT_QUANT_NONE, N_TOKENS, false);
            float *c = hostile_logits(MODEL_NVFP4, backends[k], NIB_ACT_QUANT_NONE, N_TOKENS, false);
            assert_true(hostile_distance(a, b, N_TOKENS, VOCAB) <= 1e-3);
            assert_true(hostile_distance(a, c, N_TOKENS, VOCAB) > 0.1); /* it does matter */
            free(a);
            free(b);
            free(c);
        }
        hostile_close(&coded);
        hostile_close(&plain);
    }
}

/* Codes of one byte each (E4M3) made such that halving is exact, and halved. */
static void make_even(unsigned char *code, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if ((code[i] & 0x7f) < 0x10)
            code[i] &= 0xfe;
}

static void halve(unsigned char *code, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        code[i] = (unsigned char)((code[i] & 0x7f) < 0x10 ? (code[i] & 0x80) | (code[i] & 0x7f) >> 1 : code[i] - 8);
}

/* B24: twice the scale of a tensor and half of what it multiplies change no bit; twice the scale alone does. For each
 * family, so that none goes without its scale. */
static void b24_scales_of_every_family(void **state)
{
    static const struct {
        const char *model, *base, *scale;
        bool fp8, mtp, normed; /* normed: a norm behind it takes its scale away, but for eps */
    } cases[] = {
        {MODEL_NVFP4, "model.layers.2.mlp.experts.#.gate_proj", "weight_scale_2", false, false, false},
        {MODEL_NVFP4, "model.layers.2.mlp.experts.#.up_proj", "weight_scale_2", false, false, false},
        {MODEL_NVFP4, "model.layers.2.mlp.experts.#.down_proj", "weight_scale_2", false, false, false},
        {MODEL_NVFP4, "model.layers.2.mlp.shared_experts.gate_proj", "weight_scale_2", false, false, false},
        {MODEL_NVFP4, "model.layers.2.mlp.shared_experts.up_proj", "weight_scale_2", false, false, false},
        {MODEL_NVFP4, "model.layers.2.mlp.shared_experts.down_proj", "weight_scale_2", false, false, false},
        {MODEL_NVFP4, "model.layers.1.self_attn.q_b_proj", "weight_scale_2", false, false, true},
        {MODEL_NVFP4, "model.layers.1.self_attn.o_b_proj", "weight_scale_2", false, false, false},
        {MODEL_NVFP4, "model.layers.1.self_attn.compressor.kv_proj", "weight_scale_2", false, false, true},
        {MODEL_NVFP4, "model.layers.1.self_attn.compressor.gate_proj", "weight_scale_2", false, false, false},
        {MODEL_NVFP4, "model.mtp.0.h_proj", "weight_scale_2", false, true, false},
        {MODEL_OFFICIAL, "layers.3.attn.wkv", "scale", true, false, true},
        {MODEL_OFFICIAL, "layers.3.attn.wo_a", "scale", true, false, false},
        {MODEL_OFFICIAL, "layers.3.attn.wo_b", "scale", true, false, false},
        {MODEL_OFFICIAL, "layers.3.ffn.shared_experts.w2", "scale", true, false, false},
        {MODEL_OFFICIAL, "mtp.0.e_proj", "scale", true, true, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hostile h[3]; /* as it is; both changed; the scale alone */
        for (int v = 0; v < 3; v++) {
            hostile_open(&h[v], cases[i].model);
            for (int e = 0; e < (strchr(cases[i].base, '#') ? 16 : 1); e++) {
                char base[96], name[128];
                with_number(base, sizeof base, cases[i].base, e);
                (void)snprintf(name, sizeof name, "%s.%s", base, cases[i].fp8 ? "weight" : "weight_scale");
                struct relay_item *codes = hostile_item(&h[v], name);
                make_even(codes->data, codes->bytes);
                if (v == 1)
                    halve(codes->data, codes->bytes);
                (void)snprintf(name, sizeof name, "%s.%s", base, cases[i].scale);
                struct relay_item *scale = hostile_item(&h[v], name);
                for (uint64_t k = 0; v > 0 && cases[i].fp8 && k < scale->bytes; k++)
                    ((unsigned char *)scale->data)[k]++;
                if (v > 0 && !cases[i].fp8)
                    global_scale(&h[v], base, 2);
            }
            (void)hostile_write(&h[v]);
        }
        const char *const backend = backends[i % 2];
        if (!same_logits(h[0].dir.path, h[1].dir.path, backend, cases[i].mtp))
            fail_msg("%s, %s: twice the scale and half the codes change logits", cases[i].base, backend);
        if (!cases[i].normed && same_logits(h[0].dir.path, h[2].dir.path, backend, cases[i].mtp))
            fail_msg("%s, %s: the scale does not matter", cases[i].base, backend);
        for (int v = 0; v < 3; v++)
            hostile_close(&h[v]);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        ON_BOTH(b15_odd_activation_rows),
        cmocka_unit_test(b17_input_scales_are_not_read),
        cmocka_unit_test(b18_halves_with_different_global_scales),
        cmocka_unit_test(b24_scales_of_every_family),
    };
    return cmocka_run_group_tests_name("faults_b", tests, NULL, NULL);
}
