/* config.json: the spellings, the published models, every limit, and rotary frequencies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "model/config.h"
#include "support/safetensors_write.h"

#define TINY NIB_SOURCE_DIR "/models/tiny-v4"

static json_t *tiny_json(void)
{
    json_t *root = json_load_file(TINY "/config.json", 0, NULL);
    assert_non_null(root);
    return root;
}

/* Takes the reference of root. */
static enum nib_status parse(json_t *root, struct nib_config *c, struct nib_error *err)
{
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    memset(err, 0, sizeof *err);
    enum nib_status status = nib_config_parse(text, strlen(text), "here.json", c, err);
    assert_int_equal(status == NIB_OK ? NIB_OK : err->status, status);
    free(text);
    json_decref(root);
    return status;
}

static void parses(json_t *root, struct nib_config *c)
{
    struct nib_error err;
    if (parse(root, c, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void refused(json_t *root, const char *part, const char *other)
{
    struct nib_config c;
    struct nib_error err;
    enum nib_status status = parse(root, &c, &err);
    if (status != NIB_E_FORMAT && status != NIB_E_UNSUPPORTED)
        fail_msg("accepted, or status %d; '%s' '%s' wanted", status, part, other);
    if (!strstr(err.text, part) || !strstr(err.text, other) || !strstr(err.text, "here.json"))
        fail_msg("'%s', '%s' and here.json wanted in: %s", part, other, err.text);
}

static void check_tiny(const struct nib_config *c)
{
    static const int32_t ratio[7] = { 0, 4, 128, 4, 128, 4, 0 };
    assert_int_equal(c->dim, 256);
    assert_int_equal(c->n_layers, 6);
    assert_int_equal(c->n_hash_layers, 2);
    assert_int_equal(c->n_mtp_layers, 1);
    assert_int_equal(c->n_heads, 4);
    assert_int_equal(c->head_dim, 512);
    assert_int_equal(c->n_rot, 64);
    assert_int_equal(c->q_rank, 128);
    assert_int_equal(c->n_groups, 2);
    assert_int_equal(c->o_rank, 64);
    assert_int_equal(c->n_window, 128);
    assert_int_equal(c->n_index_heads, 8);
    assert_int_equal(c->index_dim, 128);
    assert_int_equal(c->index_top_k, 64);
    assert_int_equal(c->n_experts, 16);
    assert_int_equal(c->n_shared, 1);
    assert_int_equal(c->top_k, 4);
    assert_int_equal(c->n_inner, 64);
    assert_int_equal(c->n_hc, 4);
    assert_int_equal(c->n_sinkhorn, 20);
    assert_int_equal(c->vocab, 2048);
    assert_int_equal(c->n_ctx_max, 16384);
    assert_int_equal(c->bos_id, 0);
    assert_int_equal(c->eos_id, 1);
    assert_true(c->norm_eps == 1e-6f && c->hc_eps == 1e-6f);
    assert_true(c->route_scale == 1.5f && c->swiglu_limit == 10.0f);
    assert_true(c->rope_theta == 10000.0f && c->compress_rope_theta == 160000.0f);
    assert_true(c->yarn && c->yarn_factor == 4.0f && c->yarn_beta_fast == 32.0f && c->yarn_beta_slow == 1.0f);
    assert_int_equal(c->yarn_original, 4096);
    for (int i = 0; i < 7; i++)
        assert_int_equal(c->ratio[i], ratio[i]);
    assert_true(c->temperature == 1.0f && c->top_p == 1.0f && !c->greedy);
}

static void reads_the_tiny_models(void **state)
{
    (void)state;
    static const char *const dirs[] = { TINY, NIB_SOURCE_DIR "/tests/data/tiny-v4-official" };
    for (size_t i = 0; i < 2; i++) {
        struct nib_config c;
        struct nib_error err;
        if (nib_config_read(dirs[i], &c, &err) != NIB_OK)
            fail_msg("%s", err.text);
        check_tiny(&c);
    }
}

static void rename_key(json_t *root, const char *from, const char *to)
{
    json_t *v = json_object_get(root, from);
    assert_non_null(v);
    assert_int_equal(json_object_set(root, to, v), 0);
    assert_int_equal(json_object_del(root, from), 0);
}

static void set(json_t *root, const char *key, const char *value)
{
    json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(v);
    assert_int_equal(json_object_set_new(root, key, v), 0);
}

/* The tiny model as Hugging Face's library would save it. */
static json_t *normalised(void)
{
    json_t *root = tiny_json();
    static const char *const gone[] = { "compress_ratios", "num_hash_layers", "qk_rope_head_dim",
                                        "rope_scaling",    "rope_theta",      "compress_rope_theta" };
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        assert_int_equal(json_object_del(root, gone[i]), 0);
    set(root, "layer_types",
        "[\"sliding_attention\",\"compressed_sparse_attention\",\"heavily_compressed_attention\","
        "\"compressed_sparse_attention\",\"heavily_compressed_attention\",\"compressed_sparse_attention\"]");
    set(root, "mlp_layer_types", "[\"hash_moe\",\"hash_moe\",\"moe\",\"moe\",\"moe\",\"moe\"]");
    set(root, "compress_rates", "{\"compressed_sparse_attention\":4,\"heavily_compressed_attention\":128}");
    set(root, "partial_rotary_factor", "0.125");
    set(root, "rope_parameters",
        "{\"main\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,\"partial_rotary_factor\":0.125},"
        "\"compress\":{\"rope_type\":\"yarn\",\"rope_theta\":160000,\"factor\":4.0,\"beta_fast\":32,\"beta_slow\":1,"
        "\"original_max_position_embeddings\":4096,\"attention_factor\":1.0,\"partial_rotary_factor\":0.125}}");
    return root;
}

/* The release's inference/config.json; what it leaves out has one meaning. */
static json_t *release(void)
{
    static const char *const names[][2] = { { "hidden_size", "dim" },
                                            { "moe_intermediate_size", "moe_inter_dim" },
                                            { "num_hidden_layers", "n_layers" },
                                            { "num_hash_layers", "n_hash_layers" },
                                            { "num_attention_heads", "n_heads" },
                                            { "num_experts_per_tok", "n_activated_experts" },
                                            { "scoring_func", "score_func" },
                                            { "routed_scaling_factor", "route_scale" },
                                            { "qk_rope_head_dim", "rope_head_dim" },
                                            { "sliding_window", "window_size" } };
    static const char *const kept[] = {
        "vocab_size", "n_routed_experts",  "n_shared_experts",    "swiglu_limit",   "q_lora_rank",    "head_dim",
        "o_groups",   "o_lora_rank",       "rope_theta",          "index_n_heads",  "index_head_dim", "index_topk",
        "hc_mult",    "hc_sinkhorn_iters", "compress_rope_theta", "compress_ratios"
    };
    json_t *from = tiny_json(), *root = json_object();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_int_equal(json_object_set(root, names[i][1], json_object_get(from, names[i][0])), 0);
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        assert_int_equal(json_object_set(root, kept[i], json_object_get(from, kept[i])), 0);
    json_decref(from);
    set(root, "original_seq_len", "4096");
    set(root, "rope_factor", "4");
    set(root, "beta_fast", "32");
    set(root, "beta_slow", "1");
    set(root, "dtype", "\"fp8\"");
    set(root, "scale_fmt", "\"ue8m0\"");
    set(root, "expert_dtype", "\"fp4\"");
    return root;
}

static void spellings_agree(void **state)
{
    (void)state;
    struct nib_config c;
    parses(tiny_json(), &c);
    check_tiny(&c);
    parses(normalised(), &c);
    check_tiny(&c);
    parses(release(), &c);
    check_tiny(&c);
    /* Both at once, as some exports have it. */
    json_t *both = normalised(), *tiny = tiny_json();
    assert_int_equal(json_object_update(both, tiny), 0);
    json_decref(tiny);
    parses(both, &c);
    check_tiny(&c);
    /* A nested object under the old key, and bases still at the top level. */
    json_t *old = normalised();
    rename_key(old, "rope_parameters", "rope_scaling");
    set(old, "rope_theta", "10000");
    set(old, "compress_rope_theta", "160000");
    json_object_del(json_object_get(json_object_get(old, "rope_scaling"), "main"), "rope_theta");
    json_object_del(json_object_get(json_object_get(old, "rope_scaling"), "compress"), "rope_theta");
    parses(old, &c);
    check_tiny(&c);
    /* The newer name of rope_scaling's type. */
    json_t *typed = tiny_json();
    rename_key(json_object_get(typed, "rope_scaling"), "type", "rope_type");
    parses(typed, &c);
    check_tiny(&c);
}

static void two_names_must_agree(void **state)
{
    (void)state;
    json_t *root = tiny_json();
    set(root, "dim", "256");
    struct nib_config c;
    parses(root, &c);
    root = tiny_json();
    set(root, "dim", "512");
    refused(root, "hidden_size", "dim");
    root = normalised();
    set(root, "compress_ratios", "[0,4,128,4,4,4,0]");
    refused(root, "layer 4 has ratio 4 by compress_ratios", "128 by layer_types");
    root = normalised();
    set(root, "num_hash_layers", "3");
    refused(root, "num_hash_layers is 3", "mlp_layer_types has 2");
    root = normalised();
    set(root, "qk_rope_head_dim", "128");
    refused(root, "partial_rotary_factor", "qk_rope_head_dim");
}

/* Keys of the published models; sizes that the text of their lists gives are written out by rule. */
static json_t *published(bool pro)
{
    json_t *root = tiny_json(), *ratios = json_array();
    static const struct {
        const char *key;
        int pro, flash;
    } keys[] = { { "hidden_size", 7168, 4096 },
                 { "num_hidden_layers", 61, 43 },
                 { "num_attention_heads", 128, 64 },
                 { "q_lora_rank", 1536, 1024 },
                 { "o_groups", 16, 8 },
                 { "o_lora_rank", 1024, 1024 },
                 { "index_n_heads", 64, 64 },
                 { "index_topk", 1024, 512 },
                 { "n_routed_experts", 384, 256 },
                 { "num_experts_per_tok", 6, 6 },
                 { "moe_intermediate_size", 3072, 2048 },
                 { "num_hash_layers", 3, 3 },
                 { "vocab_size", 129280, 129280 },
                 { "max_position_embeddings", 1048576, 1048576 } };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        json_object_set_new(root, keys[i].key, json_integer(pro ? keys[i].pro : keys[i].flash));
    set(root, "routed_scaling_factor", pro ? "2.5" : "1.5");
    set(root, "rope_scaling",
        "{\"type\":\"yarn\",\"factor\":16,\"original_max_position_embeddings\":65536,\"beta_fast\":32,"
        "\"beta_slow\":1}");
    for (int i = 0; i < 2; i++)
        json_array_append_new(ratios, json_integer(pro ? 128 : 0));
    for (int i = 0; i < (pro ? 29 : 20); i++) {
        json_array_append_new(ratios, json_integer(4));
        json_array_append_new(ratios, json_integer(128));
    }
    json_array_append_new(ratios, json_integer(4));
    json_array_append_new(ratios, json_integer(0));
    json_object_set_new(root, "compress_ratios", ratios);
    return root;
}

static void reads_the_published_models(void **state)
{
    (void)state;
    for (int pro = 0; pro < 2; pro++) {
        struct nib_config c;
        int32_t n[3] = { 0, 0, 0 };
        parses(published(pro), &c);
        assert_int_equal(c.n_layers, pro ? 61 : 43);
        for (int32_t i = 0; i < c.n_layers; i++)
            n[c.ratio[i] == 0 ? 0 : c.ratio[i] == 4 ? 1 : 2]++;
        assert_int_equal(n[0], pro ? 0 : 2);
        assert_int_equal(n[1], pro ? 30 : 21);
        assert_int_equal(n[2], pro ? 31 : 20);
        assert_int_equal(c.ratio[c.n_layers], 0);
        assert_int_equal(c.n_ctx_max, 1048576);
        assert_true(c.route_scale == (pro ? 2.5f : 1.5f));
    }
    /* The later Flash: more zeros for draft blocks, of which only the first is the MTP block's. */
    struct nib_config c;
    json_t *later = published(false);
    json_array_append_new(json_object_get(later, "compress_ratios"), json_integer(0));
    json_array_append_new(json_object_get(later, "compress_ratios"), json_string("not read"));
    parses(later, &c);
    /* And a list that ends with the layers. */
    json_t *shorter = published(false);
    json_array_remove(json_object_get(shorter, "compress_ratios"), 43);
    parses(shorter, &c);
    assert_int_equal(c.ratio[43], 0);
}

static void rotary_frequencies(void **state)
{
    (void)state;
    /* Of the release: base 160000, YaRN 16 over 65536, 64 channels. */
    static const double want[32] = { 1.0000000e+00, 6.8765604e-01, 4.7287080e-01, 3.2517245e-01, 2.2360680e-01,
                                     1.5376456e-01, 1.0573712e-01, 7.2710775e-02, 5.0000001e-02, 3.4382802e-02,
                                     2.3643540e-02, 1.6258623e-02, 1.1180340e-02, 7.6882280e-03, 5.2868566e-03,
                                     3.6355385e-03, 2.2656249e-03, 1.3968013e-03, 8.4968971e-04, 5.0808198e-04,
                                     2.9697778e-04, 1.6817999e-04, 9.0867843e-05, 4.5444234e-05, 1.9531251e-05,
                                     5.3723124e-06, 3.6943034e-06, 2.5404097e-06, 1.7469282e-06, 1.2012856e-06,
                                     8.2607130e-07, 5.6805294e-07 };
    struct nib_config c;
    float f[32];
    parses(published(true), &c);
    nib_rope_freq(&c, true, f);
    /* 2e-7: the table is fp32, and so is the arithmetic; three of its values are one unit in the last place away. */
    for (int i = 0; i < 32; i++)
        assert_true(fabs((double)f[i] - want[i]) <= 2e-7 * want[i]);
    nib_rope_freq(&c, false, f);
    for (int i = 0; i < 32; i++) {
        double exact = pow(10000, -2 * i / 64.0);
        assert_true(fabs((double)f[i] - exact) <= 2e-7 * exact);
    }

    /* The tiny model's YaRN: pairs below 8 turn more than 32 times in 4096 positions, those above 18 less than once.
     * The bounds by hand: 64 ln(4096 / (b 2 pi)) / (2 ln 160000) = 8.05 for b = 32 and 17.3 for b = 1. In the ramp the
     * fp32 error of 1 - ramp, 6e-8, meets a result that is at least a quarter of f: 3e-7, beside 3 roundings of 6e-8
     * each. */
    parses(tiny_json(), &c);
    nib_rope_freq(&c, true, f);
    for (int i = 0; i < 32; i++) {
        double exact = pow(160000, -2 * i / 64.0);
        double ramp = i <= 8 ? 0 : i >= 18 ? 1 : (i - 8) / 10.0;
        double blended = exact / 4 * ramp + exact * (1 - ramp);
        assert_true(fabs((double)f[i] - blended) <= 6e-7 * blended);
    }

    /* Both ends of the ramp are held inside the table. 64 positions: 32 turns are never reached, so it begins at pair
     * 0, and ends at 64 ln(64 / (2 pi)) / (2 ln 160000) = 6.2, rounded up. */
    json_t *brief = tiny_json();
    json_object_set_new(json_object_get(brief, "rope_scaling"), "original_max_position_embeddings", json_integer(64));
    parses(brief, &c);
    nib_rope_freq(&c, true, f);
    for (int i = 0; i < 32; i++) {
        double exact = pow(160000, -2 * i / 64.0), ramp = i >= 7 ? 1 : i / 7.0;
        double blended = exact / 4 * ramp + exact * (1 - ramp);
        assert_true(fabs((double)f[i] - blended) <= 6e-7 * blended);
    }
    /* Base 2: bounds of 139 and, held to 63, an end before the beginning: by the formula every pair is slowed. */
    json_t *steep = tiny_json();
    set(steep, "compress_rope_theta", "2");
    parses(steep, &c);
    nib_rope_freq(&c, true, f);
    for (int i = 0; i < 32; i++)
        assert_true(fabs((double)f[i] - exp2(-i / 32.0) / 4) <= 6e-7 * exp2(-i / 32.0) / 4);

    /* No scaling asked for: both kinds of layer have plain tables. */
    json_t *plain = tiny_json();
    json_object_del(plain, "rope_scaling");
    parses(plain, &c);
    assert_false(c.yarn);
    nib_rope_freq(&c, true, f);
    for (int i = 0; i < 32; i++)
        assert_true(fabs((double)f[i] - pow(160000, -2 * i / 64.0)) <= 2e-7 * pow(160000, -2 * i / 64.0));
}

static void limits(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *part;
    } cases[] = {
        { "hidden_size", "300", "hidden_size (dim) is 300, wanted a multiple of 32" },
        { "hidden_size", "65568", "from 32 to 65536" },
        { "moe_intermediate_size", "72", "is 72, wanted a multiple of 32" },
        { "qk_rope_head_dim", "63", "is 63, wanted an even number" },
        { "qk_rope_head_dim", "512", "512" },
        { "qk_rope_head_dim", "96", "head_dim 512 without its 96 rotary channels" },
        { "head_dim", "480", "head_dim 480" },
        { "head_dim", "64", "from 66 to 4096" },
        { "num_attention_heads", "5", "is 5, wanted a multiple of o_groups, which is 2" },
        { "num_attention_heads", "0", "num_attention_heads is 0" },
        { "o_groups", "0", "o_groups is 0" },
        { "o_groups", "3", "o_groups, which is 3" },
        { "index_head_dim", "96", "index_head_dim is 96, wanted a power of two" },
        { "index_head_dim", "32", "index_head_dim is 32, wanted at least the 64" },
        { "num_experts_per_tok", "17", "is 17, wanted at most the 16" },
        { "n_shared_experts", "2", "n_shared_experts is 2" },
        { "sliding_window", "129", "from 1 to 128" },
        { "num_key_value_heads", "2", "num_key_value_heads is 2" },
        { "num_nextn_predict_layers", "2", "num_nextn_predict_layers is 2" },
        { "num_hidden_layers", "257", "from 1 to 256" },
        { "num_hidden_layers", "8", "compress_ratios has 7 entries, wanted one for each of 8" },
        { "num_hash_layers", "7", "from 0 to 6" },
        { "vocab_size", "1", "vocab_size is 1" },
        { "eos_token_id", "2048", "from 0 to 2047" },
        { "eos_token_id", "[]", "eos_token_id[0]" },
        { "eos_token_id", "[2048]", "eos_token_id[0]" },
        { "max_position_embeddings", "0", "max_position_embeddings is 0" },
        { "max_position_embeddings", "4294967296", "max_position_embeddings is 4294967296" },
        { "hc_mult", "9", "from 1 to 8" },
        { "rms_norm_eps", "0", "rms_norm_eps is 0" },
        { "swiglu_limit", "0", "swiglu_limit is 0" },
        { "routed_scaling_factor", "-1", "routed_scaling_factor is -1" },
        { "rope_theta", "1", "rope_theta is 1" },
        { "hidden_act", "\"gelu\"", "hidden_act is \"gelu\", wanted \"silu\"" },
        { "scoring_func", "\"sigmoid\"", "scoring_func is \"sigmoid\", wanted \"sqrtsoftplus\"" },
        { "topk_method", "\"greedy\"", "topk_method is \"greedy\"" },
        { "attention_bias", "true", "attention_bias is true, wanted false" },
        { "tie_word_embeddings", "true", "tie_word_embeddings is true, wanted false" },
        { "norm_topk_prob", "false", "norm_topk_prob is false, wanted true" },
        { "model_type", "\"deepseek_v41\"", "model_type is \"deepseek_v41\", wanted \"deepseek_v4\"" },
        { "model_type", "\"deepseek_v3\"", "model_type is \"deepseek_v3\"" },
        { "compress_ratios", "[0,4,128,4,8,4,0]", "compress_ratios[4] is 8, wanted 0, 4 or 128" },
        { "compress_ratios", "[0,4,128,4,4.0,4,0]", "compress_ratios[4] is a number with a fraction" },
        { "compress_ratios", "[0,4,128,4,128,4,4]", "compress_ratios[6] is 4, wanted 0 for the MTP block" },
        { "layer_types", "[\"sliding_attention\",\"x\",\"x\",\"x\",\"x\",\"x\"]", "layer_types[1] is \"x\"" },
        { "layer_types", "[0,4,128,4,128,4]", "layer_types[0] is 0" },
        { "mlp_layer_types", "[\"moe\",\"hash_moe\",\"moe\",\"moe\",\"moe\",\"moe\"]", "mlp_layer_types[1]" },
        { "mlp_layer_types", "[\"hash_moe\",\"hash_moe\",\"dense\",\"moe\",\"moe\",\"moe\"]",
          "mlp_layer_types[2] is \"dense\"" },
        { "compress_rates", "{\"heavily_compressed_attention\":8}",
          "compress_rates.heavily_compressed_attention is 8" },
        { "partial_rotary_factor", "0.1251", "partial_rotary_factor" },
        { "rope_scaling", "{}", "rope_scaling.rope_type (or type) is missing" },
        { "rope_scaling", "{\"type\":\"linear\",\"factor\":2}", "rope_scaling.type is linear" },
        { "rope_scaling", "{\"type\":\"yarn\",\"original_max_position_embeddings\":4096}",
          "rope_scaling.factor is missing" },
        { "rope_scaling", "{\"type\":\"yarn\",\"factor\":4}",
          "rope_scaling.original_max_position_embeddings is missing" },
        { "rope_scaling", "{\"type\":\"yarn\",\"factor\":0.5,\"original_max_position_embeddings\":4096}",
          "factor is 0.5" },
        { "rope_scaling", "{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":4096,\"mscale\":0.7}",
          "rope_scaling.mscale is 0.7" },
        { "rope_scaling",
          "{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":4096,\"attention_factor\":1.3}",
          "rope_scaling.attention_factor is 1.3" },
        { "rope_scaling",
          "{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":4096,\"beta_fast\":1,"
          "\"beta_slow\":32}",
          "beta_fast is 1, wanted at least beta_slow" },
        { "rope_parameters", "{\"main\":{\"rope_theta\":10000}}", "rope_parameters.compress is missing" },
        { "rope_parameters",
          "{\"main\":{\"rope_theta\":10000,\"rope_type\":\"yarn\"},\"compress\":{\"rope_theta\":160000,"
          "\"rope_type\":\"default\"}}",
          "rope_parameters.main.rope_type is \"yarn\"" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = tiny_json();
        set(root, cases[i].key, cases[i].value);
        refused(root, cases[i].part, "");
    }
}

static void lists_of_ids(void **state)
{
    (void)state;
    struct nib_config c;
    json_t *root = tiny_json();
    set(root, "eos_token_id", "[7,8]");
    parses(root, &c);
    assert_int_equal(c.eos_id, 7);
}

static void reads_generation_config(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum nib_status status;
        const char *part;
        float temperature, top_p;
        bool greedy;
    } cases[] = {
        { "{\"do_sample\":true,\"temperature\":0.6,\"top_p\":0.95}", NIB_OK, "", 0.6f, 0.95f, false },
        { "{\"do_sample\":false,\"temperature\":null}", NIB_OK, "", 1, 1, true },
        { "{}", NIB_OK, "", 1, 1, false },
        { "{\"temperature\":0}", NIB_OK, "", 0, 1, false },
        { "{\"temperature\":-1}", NIB_E_UNSUPPORTED, "temperature is -1", 0, 0, false },
        { "{\"temperature\":\"1\"}", NIB_E_FORMAT, "temperature is a string", 0, 0, false },
        { "{\"top_p\":0}", NIB_E_UNSUPPORTED, "top_p is 0", 0, 0, false },
        { "{\"top_p\":1.5}", NIB_E_UNSUPPORTED, "top_p is 1.5", 0, 0, false },
        { "{\"do_sample\":1}", NIB_E_FORMAT, "do_sample is an integer", 0, 0, false },
        { "[]", NIB_E_FORMAT, "an array", 0, 0, false },
        { "{", NIB_E_FORMAT, "not valid JSON", 0, 0, false },
    };
    struct test_dir d;
    struct nib_config c;
    struct nib_error err;
    test_dir_open(&d);
    assert_int_equal(nib_config_read(d.path, &c, &err), NIB_E_IO);
    assert_non_null(strstr(err.text, "config.json"));
    json_t *root = tiny_json();
    char *text = json_dumps(root, 0);
    json_decref(root);
    assert_non_null(text);
    test_dir_write(&d, "config.json", text, strlen(text));
    free(text);
    assert_int_equal(nib_config_read(d.path, &c, &err), NIB_OK);
    check_tiny(&c);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_dir_write(&d, "generation_config.json", cases[i].text, strlen(cases[i].text));
        assert_int_equal(nib_config_read(d.path, &c, &err), cases[i].status);
        if (cases[i].status != NIB_OK) {
            assert_non_null(strstr(err.text, cases[i].part));
            assert_non_null(strstr(err.text, "generation_config.json"));
        } else {
            assert_true(c.temperature == cases[i].temperature && c.top_p == cases[i].top_p);
            assert_int_equal(c.greedy, cases[i].greedy);
            assert_int_equal(c.dim, 256);
        }
    }
    test_dir_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_tiny_models), cmocka_unit_test(spellings_agree),
        cmocka_unit_test(two_names_must_agree),  cmocka_unit_test(reads_the_published_models),
        cmocka_unit_test(rotary_frequencies),    cmocka_unit_test(limits),
        cmocka_unit_test(lists_of_ids),          cmocka_unit_test(reads_generation_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
