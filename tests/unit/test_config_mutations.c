/* config.json damaged in every systematic way: cut short, keys removed, keys of a wrong type, single bytes changed. The
 * outcome is a refusal that names the file (and the key), or a default that docs/checkpoints.md lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/config.h"

/* Keys that the engine does not look at. */
static const char *const unread[] = { "architectures", "attention_dropout", "pad_token_id", "initializer_range",
                                      "torch_dtype",   "use_cache",         "expert_dtype" };

/* Keys that may be absent, because their default is what the tiny model has. */
static const char *const optional[] = { "attention_bias",
                                        "quantization_config",
                                        "bos_token_id",
                                        "eos_token_id",
                                        "hc_eps",
                                        "hidden_act",
                                        "norm_topk_prob",
                                        "n_shared_experts",
                                        "num_key_value_heads",
                                        "rms_norm_eps",
                                        "scoring_func",
                                        "tie_word_embeddings",
                                        "topk_method",
                                        "num_nextn_predict_layers" };

#define HAS(list, key) has(list, sizeof list / sizeof list[0], key)
static bool has(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i], key) == 0)
            return true;
    }
    return false;
}

static json_t *tiny_json(void)
{
    json_t *root = json_load_file(NIB_SOURCE_DIR "/tests/data/tiny-v4-official/config.json", 0, NULL);
    assert_non_null(root);
    return root;
}

static enum nib_status parse(const json_t *root, struct nib_config *c, struct nib_error *err)
{
    char *text = json_dumps(root, JSON_INDENT(1));
    assert_non_null(text);
    memset(err, 0, sizeof *err);
    enum nib_status status = nib_config_parse(text, strlen(text), "here.json", c, err);
    free(text);
    return status;
}

static void every_key_removed(void **state)
{
    (void)state;
    json_t *root = tiny_json(), *v;
    struct nib_config whole, c;
    struct nib_error err;
    const char *key;
    void *next;
    assert_int_equal(parse(root, &whole, &err), NIB_OK);
    for (int null = 0; null < 2; null++) {
        json_object_foreach_safe(root, next, key, v)
        {
            json_t *copy = json_copy(root);
            if (null)
                json_object_set_new(copy, key, json_null());
            else
                json_object_del(copy, key);
            enum nib_status status = parse(copy, &c, &err);
            json_decref(copy);
            if (HAS(unread, key) || HAS(optional, key)) {
                if (status != NIB_OK)
                    fail_msg("without %s: %s", key, err.text);
                assert_memory_equal(&c, &whole, sizeof c);
            } else if (strcmp(key, "rope_scaling") == 0) {
                assert_int_equal(status, NIB_OK);
                assert_false(c.yarn);
            } else if (strcmp(key, "max_position_embeddings") == 0) {
                /* The length that YaRN stretches to; the tiny model's file says the same. */
                assert_int_equal(status, NIB_OK);
                assert_int_equal(c.n_ctx_max, 4 * 4096);
            } else if (status != NIB_E_FORMAT || !strstr(err.text, key) || !strstr(err.text, "is missing") ||
                       !strstr(err.text, "here.json")) {
                fail_msg("without %s: status %d, %s", key, status, err.text);
            }
        }
    }
    json_decref(root);
}

static void every_key_of_a_wrong_type(void **state)
{
    (void)state;
    static const char *const values[] = { "true",  "false", "-1",     "1e300", "99999999999999",
                                          "\"x\"", "[]",    "[null]", "{}",    "0.5" };
    json_t *root = tiny_json(), *v;
    struct nib_config whole, c;
    struct nib_error err;
    const char *key;
    assert_int_equal(parse(root, &whole, &err), NIB_OK);
    json_object_foreach(root, key, v)
    {
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            json_t *bad = json_loads(values[i], JSON_DECODE_ANY, NULL), *copy = json_copy(root);
            bool same_kind =
                (json_is_boolean(bad) && json_is_boolean(v)) || (json_is_real(bad) && json_number_value(bad) < 1) ||
                (json_is_object(bad) && strcmp(key, "quantization_config") == 0);
            json_object_set_new(copy, key, bad);
            enum nib_status status = parse(copy, &c, &err);
            if (HAS(unread, key)) {
                assert_int_equal(status, NIB_OK);
                assert_memory_equal(&c, &whole, sizeof c);
            } else if (status == NIB_OK && !same_kind) {
                fail_msg("%s = %s was accepted", key, values[i]);
            } else if (status != NIB_OK && (!strstr(err.text, key) || !strstr(err.text, "here.json"))) {
                fail_msg("%s = %s: %s", key, values[i], err.text);
            }
            json_decref(copy);
        }
    }
    json_decref(root);
}

static char *tiny_text(size_t *n)
{
    json_t *root = tiny_json();
    char *text = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    assert_non_null(text);
    *n = strlen(text);
    return text;
}

static void every_truncation(void **state)
{
    (void)state;
    size_t n;
    char *text = tiny_text(&n);
    for (size_t i = 0; i < n; i++) {
        struct nib_config c;
        struct nib_error err = { NIB_OK, "" };
        /* A copy of its own, so that reading past the end is seen. */
        char *part = malloc(i ? i : 1);
        assert_non_null(part);
        memcpy(part, text, i);
        assert_int_equal(nib_config_parse(part, i, "here.json", &c, &err), NIB_E_FORMAT);
        assert_non_null(strstr(err.text, "here.json"));
        free(part);
    }
    free(text);
}

static void every_byte_changed(void **state)
{
    (void)state;
    static const char values[] = { 0, '"', '0', '9', '-', '.', 'e', '{', ']', ',', ' ', (char)0xff };
    size_t n;
    char *text = tiny_text(&n);
    int32_t n_refused = 0;
    for (size_t i = 0; i < n; i++) {
        char old = text[i];
        for (size_t v = 0; v < sizeof values; v++) {
            struct nib_config c;
            struct nib_error err = { NIB_OK, "" };
            text[i] = values[v];
            enum nib_status status = nib_config_parse(text, n, "here.json", &c, &err);
            if (status == NIB_OK) {
                assert_true(c.dim >= 32 && c.n_layers >= 1 && c.n_layers <= NIB_LAYERS_MAX && c.top_k <= c.n_experts);
            } else {
                assert_int_equal(err.status, status);
                assert_non_null(strstr(err.text, "here.json"));
                n_refused++;
            }
        }
        text[i] = old;
    }
    assert_true(n_refused > 0);
    free(text);
}

static void documents_that_are_no_object(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", " ", "[]", "1", "null", "\"x\"", "{}", "{\"dim\":1}", "{\"a\":1,\"a\":2}"
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct nib_config c;
        struct nib_error err = { NIB_OK, "" };
        assert_true(nib_config_parse(texts[i], strlen(texts[i]), "here.json", &c, &err) != NIB_OK);
        assert_non_null(strstr(err.text, "here.json"));
        assert_true(nib_config_parse(texts[i], strlen(texts[i]), "here.json", &c, NULL) != NIB_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_removed),
        cmocka_unit_test(every_key_of_a_wrong_type),
        cmocka_unit_test(every_truncation),
        cmocka_unit_test(every_byte_changed),
        cmocka_unit_test(documents_that_are_no_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
