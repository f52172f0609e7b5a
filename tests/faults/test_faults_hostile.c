/* Values that no checkpoint may hold, and things that are not files: a refusal that names file, tensor, what was found
 * and wanted. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/hostile.h"
#include "support/model_support.h"
#include "support/relay.h"

/* In F32 and BF16 tensors of every kind. */
static void nan_and_inf_in_plain_tensors(void **state)
{
    static const char *const names[] = {"norm.weight", "embed.weight", "layers.2.ffn.gate.bias", "layers.0.attn.attn_sink", "hc_head_scale",
                                        "layers.1.attn.compressor.ape", "mtp.0.enorm.weight", "layers.3.hc_ffn_fn", "layers.1.attn.indexer.weights_proj.weight"};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct hostile h;
    (void)state;
    hostile_open(&h, MODEL_OFFICIAL);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct relay_item *it = hostile_item(&h, names[i]);
        const size_t item = (size_t)nib_st_dtype_bytes(it->dtype), last = it->bytes / item - 1;
        unsigned char kept[4], *at = (unsigned char *)it->data + last * item;
        char element[48];
        assert_true(it->dtype == NIB_ST_F32 || it->dtype == NIB_ST_BF16);
        memcpy(kept, at, item);
        memcpy(at, (const unsigned char *)&bad[i % 3] + 4 - item, item);
        (void)snprintf(element, sizeof element, "element %zu", last);
        hostile_refused(&h, NIB_E_FORMAT, names[i], "NaN or Inf", element, "model.safetensors", NULL);
        memcpy(at, kept, item); /* writing sorts the list, but moves no data */
    }
    hostile_close(&h);
}

static void nan_codes_of_fp8(void **state)
{
    static const unsigned char bad[] = {0x7f, 0xff};
    struct hostile h;
    (void)state;
    hostile_open(&h, MODEL_OFFICIAL);
    for (int i = 0; i < 2; i++) {
        unsigned char *codes = hostile_item(&h, "layers.4.ffn.shared_experts.w3.weight")->data, kept = codes[5000];
        codes[5000] = bad[i];
        hostile_refused(&h, NIB_E_FORMAT, "layers.4.ffn.shared_experts.w3.weight", "E4M3 NaN", "element 5000", NULL);
        codes[5000] = kept;
    }
    hostile_close(&h);
}

static void experts_out_of_range(void **state)
{
    static const int64_t bad[] = {16, -1, INT64_MAX, INT64_MIN, (int64_t)1 << 32};
    struct hostile h;
    (void)state;
    hostile_open(&h, MODEL_OFFICIAL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct relay_item *it = hostile_item(&h, "layers.1.ffn.gate.tid2eid");
        char expert[64];
        int64_t kept;
        assert_int_equal(it->dtype, NIB_ST_I64);
        unsigned char *at = (unsigned char *)it->data + (4 * 777 + 2) * 8; /* token 777's third of four */
        memcpy(&kept, at, sizeof kept);
        memcpy(at, &bad[i], sizeof bad[i]);
        (void)snprintf(expert, sizeof expert, "expert %lld for token 777", (long long)bad[i]);
        hostile_refused(&h, NIB_E_FORMAT, "layers.1.ffn.gate.tid2eid", expert, "wanted 0 to 15", "model.safetensors",
                        NULL);
        memcpy(at, &kept, sizeof kept);
    }
    hostile_close(&h);
}

static void wrong_types_and_shapes(void **state)
{
    static const struct {
        const char *name, *found, *wanted;
        enum nib_st_dtype dtype;
        int32_t n_dims;
        int64_t shape[3];
        enum nib_status status;
    } cases[] = {
        {"norm.weight", "F16", "wanted F32 or BF16", NIB_ST_F16, 1, {256}, NIB_E_UNSUPPORTED},
        {"norm.weight", "[255]", "wanted [256]", NIB_ST_BF16, 1, {255}, NIB_E_FORMAT},
        {"norm.weight", "[256, 1]", "wanted [256]", NIB_ST_BF16, 2, {256, 1}, NIB_E_FORMAT},
        {"head.weight", "[2047, 256]", "wanted [2048, 256]", NIB_ST_BF16, 2, {2047, 256}, NIB_E_FORMAT},
        {"head.weight", "F64", "wanted BF16, F32", NIB_ST_F64, 2, {2048, 256}, NIB_E_UNSUPPORTED},
        {"head.weight", "F8_E5M2", "wanted BF16, F32", NIB_ST_F8_E5M2, 2, {2048, 256}, NIB_E_UNSUPPORTED},
        {"layers.0.ffn.gate.tid2eid", "F32", "wanted I64 or I32", NIB_ST_F32, 2, {2048, 4}, NIB_E_UNSUPPORTED},
        {"layers.0.ffn.gate.tid2eid", "[2048, 5]", "wanted [2048, 4]", NIB_ST_I64, 2, {2048, 5}, NIB_E_FORMAT},
        {"layers.2.ffn.experts.3.w1.weight", "[64, 256]", "wanted [64, 128]", NIB_ST_I8, 2, {64, 256}, NIB_E_FORMAT},
        {"layers.2.ffn.experts.3.w1.scale", "[64, 9]", "wanted [64, 8]", NIB_ST_F8_E8M0, 2, {64, 9}, NIB_E_FORMAT},
        {"layers.2.ffn.experts.3.w1.scale", "[]", "wanted [64, 8]", NIB_ST_F8_E8M0, 0, {0}, NIB_E_FORMAT},
        {"layers.3.attn.wq_a.scale", "I32", "wanted F8_E8M0", NIB_ST_I32, 2, {1, 2}, NIB_E_UNSUPPORTED},
        {"layers.3.attn.attn_sink", "[0]", "wanted [4]", NIB_ST_F32, 1, {0}, NIB_E_FORMAT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hostile h;
        hostile_open(&h, MODEL_OFFICIAL);
        (void)hostile_reshape(&h, cases[i].name, cases[i].dtype, cases[i].n_dims, cases[i].shape);
        hostile_refused(&h, cases[i].status, cases[i].name, cases[i].found, cases[i].wanted, "model.safetensors", NULL);
        hostile_close(&h);
    }
}

static void missing_tensors(void **state)
{
    static const char *const names[] = {"embed.weight", "head.weight", "norm.weight", "hc_head_fn", "layers.5.ffn.experts.15.w2.weight",
                                        "layers.0.ffn.gate.tid2eid", "layers.2.ffn.gate.bias", "layers.1.attn.indexer.compressor.ape"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct hostile h;
        hostile_open(&h, MODEL_OFFICIAL);
        hostile_drop(&h, names[i]);
        hostile_refused(&h, NIB_E_FORMAT, names[i], NULL);
        hostile_close(&h);
    }
}

/* Under a name where a file is expected: waiting for a FIFO's writer would hang. */
static void fifos_and_folders_in_the_place_of_files(void **state)
{
    static const char *const names[] = {"config.json", "generation_config.json", "hf_quant_config.json", "model.safetensors", "model.safetensors.index.json"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (int folder = 0; folder < 2; folder++) {
            struct hostile h;
            hostile_open(&h, MODEL_OFFICIAL);
            (void)hostile_write(&h);
            const char *path = test_dir_path(&h.dir, names[i]);
            (void)unlink(path);
            assert_int_equal(folder ? mkdir(path, 0700) : mkfifo(path, 0600), 0);
            hostile_dir_refused(h.dir.path, NIB_E_IO, names[i], NULL);
            assert_int_equal(folder ? rmdir(path) : unlink(path), 0);
            hostile_close(&h);
        }
    }
    struct nib_tokenizer *t = NULL;
    struct test_dir d;
    struct nib_error err = {0};
    test_dir_open(&d);
    assert_int_equal(mkfifo(test_dir_path(&d, "tokenizer.json"), 0600), 0);
    assert_int_equal(nib_tokenizer_open(d.path, &t, &err), NIB_E_IO);
    assert_true(strstr(err.text, "tokenizer.json") && strstr(err.text, "not a regular file"));
    test_dir_close(&d);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_and_inf_in_plain_tensors),
        cmocka_unit_test(nan_codes_of_fp8),
        cmocka_unit_test(experts_out_of_range),
        cmocka_unit_test(wrong_types_and_shapes),
        cmocka_unit_test(missing_tensors),
        cmocka_unit_test(fifos_and_folders_in_the_place_of_files),
    };
    return cmocka_run_group_tests_name("faults_hostile", tests, NULL, NULL);
}
