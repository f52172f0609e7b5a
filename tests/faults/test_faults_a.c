/* Known faults of loading checkpoints: B01, B02, B11, B12. Those about files, B05 to B10, are test_checkpoint_folder's
 * and test_checkpoint_shard's; docs/known-faults.md names the tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/weights.h"
#include "support/hostile.h"
#include "support/model_support.h"
#include "support/relay.h"
#include "unit/number_model.h"

enum { N = 6, EXPERTS = 16, INNER = 64, DIM = 256, VOCAB = 2048 };

static const char *const backends[] = {"ref", "cpu"};

/* A tensor of w1's shape becomes plain numbers: BF16 if every one is a bf16 number, as the cpu backend adds up BF16 and
 * coded weights in one order and F32 ones in another; F32 if `wide`, or where a number is not. */
static void make_plain(struct hostile *h, const char *name, const float *x, bool wide)
{
    const int64_t shape[2] = {INNER, DIM};
    for (int i = 0; i < INNER * DIM && !wide; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        wide = (bits & 0xffffu) != 0;
    }
    if (wide) {
        memcpy(hostile_reshape(h, name, NIB_ST_F32, 2, shape), x, (size_t)INNER * DIM * sizeof *x);
        return;
    }
    uint16_t *to = hostile_reshape(h, name, NIB_ST_BF16, 2, shape);
    for (int i = 0; i < INNER * DIM; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        to[i] = (uint16_t)(bits >> 16);
    }
}

/* layers.2.ffn.experts.E.w1 of a form, all with scale bytes b, against the same as plain numbers, code x 2^(b -
 * 127). */
static void check_scale_byte(const char *src, bool fp8, int b, int backend)
{
    struct hostile coded, plain;
    float *x = malloc((size_t)INNER * DIM * sizeof *x);
    assert_non_null(x);
    hostile_open(&coded, src);
    hostile_open(&plain, src);
    for (int e = 0; e < EXPERTS; e++) {
        char weight[64], scale[64];
        (void)snprintf(weight, sizeof weight, "layers.2.ffn.experts.%d.w1.weight", e);
        (void)snprintf(scale, sizeof scale, "layers.2.ffn.experts.%d.w1.scale", e);
        memset(hostile_item(&coded, scale)->data, b, hostile_item(&coded, scale)->bytes);
        const unsigned char *code = hostile_item(&coded, weight)->data;
        hostile_drop(&plain, scale);
        for (int i = 0; i < INNER * DIM; i++)
            x[i] = (float)ldexp(fp8 ? model_e4m3(code[i]) : model_e2m1((uint32_t)code[i / 2] >> (i % 2 * 4) & 15u), b - 127);
        make_plain(&plain, weight, x, backend == 0);
    }
    float *got = hostile_logits(hostile_write(&coded), backends[backend], NIB_ACT_QUANT_NONE, N, false);
    float *wanted = hostile_logits(hostile_write(&plain), backends[backend], NIB_ACT_QUANT_NONE, N, false);
    if (memcmp(got, wanted, N * VOCAB * sizeof *got) != 0)
        fail_msg("byte %d, %s, %s: logits differ by %g", b, fp8 ? "FP8" : "MXFP4", backends[backend],
                 hostile_distance(got, wanted, N, VOCAB));
    free(got);
    free(wanted);
    free(x);
    hostile_close(&coded);
    hostile_close(&plain);
}

static void relaid(struct test_dir *d, const char *kind)
{
    struct nib_error err = {0};
    test_dir_open(d);
    if (relay_checkpoint(kind, MODEL_OFFICIAL, d->path, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void b01_scale_bytes_are_powers_of_two(void **state)
{
    static const int bytes[] = {1, 64, 120, 127, 128, 200};
    struct test_dir fp8;
    (void)state;
    relaid(&fp8, "fp8-experts");
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        for (int backend = 0; backend < 2; backend++) {
            check_scale_byte(MODEL_OFFICIAL, false, bytes[i], backend);
            check_scale_byte(fp8.path, true, bytes[i], backend);
        }
    }
    test_dir_close(&fp8);
}

static void b01_scale_byte_255_is_refused(void **state)
{
    struct test_dir fp8;
    struct hostile h;
    (void)state;
    relaid(&fp8, "fp8-experts");
    for (int k = 0; k < 2; k++) {
        hostile_open(&h, k ? fp8.path : MODEL_OFFICIAL);
        ((unsigned char *)hostile_item(&h, "layers.4.ffn.experts.9.w3.scale")->data)[k] = 255;
        hostile_refused(&h, NIB_E_FORMAT, "layers.4.ffn.experts.9.w3.weight", "255", k ? "element 1" : "element 0", "model.safetensors", NULL);
        hostile_close(&h);
    }
    test_dir_close(&fp8);
}

/* With a column for each 16 channels the same bytes are E4M3 numbers, and 0x7F and above are none. */
static void b01_the_same_bytes_as_e4m3(void **state)
{
    struct test_dir d;
    struct hostile coded, plain;
    (void)state;
    relaid(&d, "nvfp4-experts");
    hostile_open(&coded, d.path);
    hostile_open(&plain, d.path);
    for (int e = 0; e < EXPERTS; e++) {
        static const unsigned char bytes[] = {1, 64, 120};
        char name[3][80];
        const char *const suffix[3] = {"weight", "weight_scale", "weight_scale_2"};
        for (int i = 0; i < 3; i++)
            (void)snprintf(name[i], sizeof name[i], "layers.2.ffn.experts.%d.w1.%s", e, suffix[i]);
        float g;
        memcpy(&g, hostile_item(&coded, name[2])->data, sizeof g);
        unsigned char *scale = hostile_item(&coded, name[1])->data;
        for (int i = 0; i < INNER * DIM / 16; i++)
            scale[i] = bytes[i % 3];
        const unsigned char *code = hostile_item(&coded, name[0])->data;
        float *x = malloc((size_t)INNER * DIM * sizeof *x);
        assert_non_null(x);
        hostile_drop(&plain, name[1]);
        hostile_drop(&plain, name[2]);
        for (int i = 0; i < INNER * DIM; i++)
            x[i] = (float)(model_e2m1((uint32_t)code[i / 2] >> (i % 2 * 4) & 15u) * model_e4m3(scale[i / 16]) * (double)g);
        make_plain(&plain, name[0], x, false);
        free(x);
    }
    for (int k = 0; k < 2; k++) {
        float *got = hostile_logits(k ? coded.dir.path : hostile_write(&coded), backends[k], NIB_ACT_QUANT_NONE, N, false);
        float *wanted = hostile_logits(k ? plain.dir.path : hostile_write(&plain), backends[k], NIB_ACT_QUANT_NONE, N, false);
        assert_memory_equal(got, wanted, N * VOCAB * sizeof *got); /* g is a power of two there */
        free(got);
        free(wanted);
    }
    static const unsigned char bad[] = {127, 128, 200, 255};
    for (int i = 0; i < 4; i++) {
        unsigned char *scale = hostile_item(&coded, "layers.2.ffn.experts.5.w1.weight_scale")->data;
        const unsigned char kept = scale[77];
        scale[77] = bad[i];
        hostile_refused(&coded, NIB_E_FORMAT, "layers.2.ffn.experts.5.w1.weight", "element 77", "UE4M3", NULL);
        scale[77] = kept;
    }
    /* MXFP4's columns with E4M3 as type: neither format. */
    hostile_close(&plain);
    hostile_open(&plain, MODEL_OFFICIAL);
    hostile_item(&plain, "layers.2.ffn.experts.5.w1.scale")->dtype = NIB_ST_F8_E4M3;
    hostile_refused(&plain, NIB_E_UNSUPPORTED, "layers.2.ffn.experts.5.w1.scale", "F8_E4M3", "F8_E8M0", NULL);
    hostile_close(&coded);
    hostile_close(&plain);
    test_dir_close(&d);
}

/* The three names of scales, and wo_a as BF16 without one, are the relaid models of tests same_scale-names*. */
static void b02_scales_that_are_missing_or_stray(void **state)
{
    struct hostile h;
    (void)state;
    hostile_open(&h, MODEL_OFFICIAL);
    memset(hostile_add(&h, "layers.1.attn.compressor.wkv.scale", NIB_ST_F8_E8M0, 2, (int64_t[2]){8, 2}), 127, 16);
    hostile_refused(&h, NIB_E_FORMAT, "'layers.1.attn.compressor.wkv.weight' is BF16", "'layers.1.attn.compressor.wkv.scale' exists", NULL);
    hostile_drop(&h, "layers.1.attn.compressor.wkv.scale");
    hostile_rename(&h, "layers.3.attn.wq_b.scale", "layers.3.attn.wq_b.scales");
    hostile_refused(&h, NIB_E_FORMAT, "'layers.3.attn.wq_b.weight' is F8_E4M3", "no scales", ".weight_scale'", "'.scale'", "'.weight_scale_inv'", NULL);
    hostile_rename(&h, "layers.3.attn.wq_b.scales", "layers.3.attn.wq_b.weight_scale");
    memset(hostile_add(&h, "layers.3.attn.wq_b.weight_scale_inv", NIB_ST_F8_E8M0, 2, (int64_t[2]){16, 1}), 127, 16);
    hostile_refused(&h, NIB_E_FORMAT, "'layers.3.attn.wq_b.weight_scale' and 'layers.3.attn.wq_b.weight_scale_inv' both exist", NULL);
    hostile_close(&h);
}

/* What other schemes bring along, and what their spelling does not allow. */
static void b11_parts_that_would_be_ignored(void **state)
{
    static const char *const parts[] = {"pre_quant_scale", "weight_zero_point", "weight_g_idx"};
    struct test_dir d;
    struct hostile h;
    (void)state;
    relaid(&d, "ct-nvfp4");
    hostile_open(&h, d.path);
    for (int i = 0; i < 3; i++) {
        char name[96];
        (void)snprintf(name, sizeof name, "layers.0.ffn.experts.3.w2.%s", parts[i]);
        (void)hostile_add(&h, name, NIB_ST_F32, 1, (int64_t[1]){64});
        hostile_refused(&h, NIB_E_UNSUPPORTED, name, "not supported", NULL);
        hostile_drop(&h, name);
    }
    hostile_item(&h, "layers.0.ffn.experts.3.w2.weight_packed")->dtype = NIB_ST_I8;
    hostile_refused(&h, NIB_E_UNSUPPORTED, "layers.0.ffn.experts.3.w2.weight_packed", "dtype I8, wanted U8", NULL);
    /* Integer codes, eight in an I32. */
    (void)hostile_reshape(&h, "layers.0.ffn.experts.3.w2.weight_packed", NIB_ST_I32, 2, (int64_t[2]){256, 8});
    hostile_refused(&h, NIB_E_UNSUPPORTED, "layers.0.ffn.experts.3.w2.weight_packed", "dtype I32", "not NVFP4", NULL);
    hostile_close(&h);
    test_dir_close(&d);
}

static void b11_global_scales_of_the_other_convention(void **state)
{
    static const char *const kinds[] = {"nvfp4-experts", "ct-nvfp4"};
    static const float bad[][4] = {{4096, NAN, 0, -1e-3f}, {1e-4f, INFINITY, 0, -4096}};
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct test_dir d;
        struct hostile h;
        const char *const name = k ? "layers.5.ffn.experts.0.w1.weight_global_scale" : "layers.5.ffn.experts.0.w1.weight_scale_2";
        const char *const other = k ? "layers.5.ffn.experts.0.w1.weight_scale_2" : "layers.5.ffn.experts.0.w1.weight_global_scale";
        relaid(&d, kinds[k]);
        hostile_open(&h, d.path);
        float *g = hostile_item(&h, name)->data, good = *g;
        for (int i = 0; i < 4; i++) {
            *g = bad[k][i];
            hostile_refused(&h, NIB_E_FORMAT, name, i == 0 ? (k ? "at least 1" : "at most 1") : "above 0", NULL);
        }
        *g = good;
        hostile_rename(&h, name, other);
        hostile_refused(&h, NIB_E_FORMAT, other, name, NULL);
        hostile_rename(&h, other, name);
        *(float *)hostile_add(&h, other, NIB_ST_F32, 0, NULL) = 1 / good;
        hostile_refused(&h, NIB_E_FORMAT, other, name, "both exist", NULL);
        hostile_drop(&h, other);
        hostile_drop(&h, name);
        hostile_refused(&h, NIB_E_FORMAT, "no global scale", name, NULL);
        hostile_close(&h);
        test_dir_close(&d);
    }
}

static void b11_fp8_scales_as_numbers(void **state)
{
    static const float bad[] = {3, 0, -1, NAN, INFINITY, 1.0000001f, 0x1p-128f};
    struct test_dir d;
    struct hostile h;
    (void)state;
    relaid(&d, "ct-nvfp4");
    hostile_open(&h, d.path);
    float *scale = hostile_item(&h, "layers.5.attn.wq_a.weight_scale")->data;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const float kept = scale[1];
        scale[1] = bad[i];
        hostile_refused(&h, NIB_E_UNSUPPORTED, "layers.5.attn.wq_a.weight_scale", "element 1", "powers of two", NULL);
        scale[1] = kept;
    }
    (void)hostile_reshape(&h, "layers.5.attn.wq_a.weight_scale", NIB_ST_F32, 1, (int64_t[1]){1});
    hostile_refused(&h, NIB_E_FORMAT, "layers.5.attn.wq_a.weight_scale", "[1]", "wanted [1, 2]", NULL);
    hostile_close(&h);
    test_dir_close(&d);
}

/* Lists of excluded modules are wrong in the models of tests same_nvfp4-experts, same_nvfp4-bf16 and same_mixed; here,
 * that FP8 data is used as it lies in the file. */
static void b11_payload_is_the_files(void **state)
{
    struct test_dir d;
    struct nib_checkpoint *c = NULL;
    struct nib_config config;
    struct nib_sources s;
    struct nib_error err = {0};
    int n_fp8 = 0;
    (void)state;
    relaid(&d, "nvfp4-experts");
    assert_int_equal(nib_config_read(d.path, &config, &err), NIB_OK);
    assert_int_equal(nib_checkpoint_open(d.path, &c, &err), NIB_OK);
    assert_int_equal(nib_sources_resolve(c, &config, &s, &err), NIB_OK);
    for (int32_t i = 0; i < s.n; i++) {
        char name[96];
        if (s.source[i].part == NULL || s.source[i].type != NIB_WEIGHT_FP8)
            continue;
        (void)snprintf(name, sizeof name, "%.*s.scale", (int)strlen(s.source[i].name) - 7, s.source[i].name);
        assert_ptr_equal(s.source[i].part[0].data, nib_checkpoint_find(c, s.source[i].name)->data);
        assert_ptr_equal(s.source[i].part[0].scales, nib_checkpoint_find(c, name)->data);
        n_fp8++;
    }
    /* wq_a, wq_b, wkv, wo_a, wo_b and three shared of six layers and the MTP block, three indexers, e_proj and
     * h_proj */
    assert_int_equal(n_fp8, 7 * 8 + 3 + 2);
    nib_sources_deinit(&s);
    nib_checkpoint_close(c);
    test_dir_close(&d);
}

/* What no tensor can decide, or decides otherwise. */
static void b11_settings_that_cannot_be_resolved(void **state)
{
    static const struct {
        const char *quantization, *key;
    } cases[] = {
        {"{\"quant_algo\":\"NVFP4\",\"group_size\":32}", "quantization_config.group_size is 32"},
        {"{\"quant_algo\":\"MIXED_PRECISION\",\"group_size\":128}", "group_size is 128"},
        {"{\"quant_algo\":\"NVFP4\",\"group_size\":\"16\"}", "group_size is a string"},
        {"{\"quant_algo\":16}", "quant_algo is an integer"},
        {"{\"quantized_layers\":{\"layers.3.ffn.experts\":{\"quant_algo\":\"NVFP4\",\"group_size\":8}}}", "layers.3.ffn.experts.group_size is 8"},
        {"{\"quantized_layers\":{\"mtp.0.ffn.experts\":{\"quant_algo\":\"W4A8_MXFP4_FP8\",\"group_size\":16}}}", "wanted an integer from 32 to 32"},
        {"{\"quantized_layers\":[]}", "quantized_layers is an array"},
        {"{\"weight_block_size\":[64,64]}", "weight_block_size is [64,64], wanted [128,128]"},
        {"{\"weight_block_size\":[128]}", "weight_block_size is [128]"},
        {"{\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":4,\"type\":\"float\",\"group_size\":32}}}}", "config_groups.group_0.weights.group_size is 32"},
        {"{\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8,\"type\":\"float\",\"block_structure\":[1,128]}}}}", "block_structure is [1,128]"},
        {"{\"config_groups\":{\"g\":{\"weights\":{\"symmetric\":false}}}}", "symmetric is false"},
    };
    struct hostile h;
    (void)state;
    hostile_open(&h, MODEL_OFFICIAL);
    (void)hostile_write(&h);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int file = 0; file < 2; file++) {
            json_t *quantization = json_loads(cases[i].quantization, 0, NULL), *root = json_copy(h.config), *hf = json_object();
            assert_non_null(quantization);
            if (file == 0)
                json_object_set(root, "quantization_config", quantization);
            else
                json_object_set(hf, "quantization", quantization);
            char *text = json_dumps(root, 0), *hf_text = json_dumps(hf, 0);
            test_dir_write(&h.dir, "config.json", text, strlen(text));
            test_dir_write(&h.dir, "hf_quant_config.json", hf_text, strlen(hf_text));
            const char *key = file == 1 && strncmp(cases[i].key, "quantization_config.", 20) == 0 ? cases[i].key + 20 : cases[i].key;
            hostile_dir_refused(h.dir.path, strstr(key, "is a string") || strstr(key, "is an ") ? NIB_E_FORMAT : NIB_E_UNSUPPORTED, key,
                                file ? "hf_quant_config.json" : "/config.json", NULL);
            free(text);
            free(hf_text);
            json_decref(root);
            json_decref(hf);
            json_decref(quantization);
        }
    }
    hostile_close(&h);
}

/* MTP absent, BF16, as MXFP4 and FP8, and NVFP4 are the models of tests same_no-mtp, same_mtp-bf16, same_mtp-mxfp4 and
 * same_mtp-nvfp4: the main model's logits are equal bit for bit in all. Here, half of it. */
static void b12_half_an_mtp_block_is_refused(void **state)
{
    static const char *const names[] = {"mtp.0.e_proj.weight", "mtp.0.hc_head_base", "mtp.0.enorm.weight", "mtp.0.ffn.experts.7.w2.weight",
                                        "mtp.0.ffn.experts.15.w3.scale", "mtp.0.attn.attn_sink", "mtp.0.ffn.gate.bias", "mtp.0.norm.weight"};
    struct hostile h;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char weight[64];
        hostile_open(&h, MODEL_OFFICIAL);
        hostile_drop(&h, names[i]);
        /* A missing scale is told by its weight. */
        (void)snprintf(weight, sizeof weight, "%s", names[i]);
        char *scale = strstr(weight, ".scale");
        if (scale)
            (void)snprintf(scale, 8, ".weight");
        hostile_refused(&h, NIB_E_FORMAT, weight, NULL);
        hostile_close(&h);
    }
}

/* One of its experts in another format than the rest. */
static void b12_formats_within_a_layer_are_not_mixed(void **state)
{
    struct hostile h;
    (void)state;
    hostile_open(&h, MODEL_OFFICIAL);
    (void)hostile_reshape(&h, "mtp.0.ffn.experts.4.w1.weight", NIB_ST_BF16, 2, (int64_t[2]){INNER, DIM});
    hostile_drop(&h, "mtp.0.ffn.experts.4.w1.scale");
    hostile_refused(&h, NIB_E_UNSUPPORTED, "mtp.0.ffn.experts.4.w1.weight", "another format", NULL);
    hostile_close(&h);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b01_scale_bytes_are_powers_of_two),
        cmocka_unit_test(b01_scale_byte_255_is_refused),
        cmocka_unit_test(b01_the_same_bytes_as_e4m3),
        cmocka_unit_test(b02_scales_that_are_missing_or_stray),
        cmocka_unit_test(b11_parts_that_would_be_ignored),
        cmocka_unit_test(b11_global_scales_of_the_other_convention),
        cmocka_unit_test(b11_fp8_scales_as_numbers),
        cmocka_unit_test(b11_payload_is_the_files),
        cmocka_unit_test(b11_settings_that_cannot_be_resolved),
        cmocka_unit_test(b12_half_an_mtp_block_is_refused),
        cmocka_unit_test(b12_formats_within_a_layer_are_not_mixed),
    };
    return cmocka_run_group_tests_name("faults_a", tests, NULL, NULL);
}
