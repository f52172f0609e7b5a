/* config.json -> struct nib_config. Keys are read through json_keys.h, which checks single values; relations between
 * values are checked once, at the end.
 *
 * Keys have up to two spellings: the published file's and the release's inference/config.json. null counts as absent;
 * keys that change nothing at inference are not looked at. docs/checkpoints.md lists defaults and limits. */
#include "model/config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "checkpoint/json_file.h"
#include "checkpoint/json_keys.h"
#include "model/quant_config.h"

#define CONFIG_BYTES_MAX (16u << 20)

/* Entry i of layer_types or compress_ratios as a ratio. */
static int32_t list_ratio(struct nib_keys *r, const json_t *list, const char *key, int32_t i)
{
    static const struct {
        const char *name;
        int32_t     ratio;
    } kinds[] = { { "sliding_attention", 0 },
                  { "compressed_sparse_attention", 4 },
                  { "heavily_compressed_attention", 128 } };
    const json_t *v = json_array_get(list, (size_t)i);
    const char *s = json_string_value(v);
    bool names = strcmp(key, "layer_types") == 0;
    if (r->status != NIB_OK)
        return 0;
    for (size_t k = 0; k < 3; k++) {
        if (names ? s && strcmp(s, kinds[k].name) == 0 : json_is_integer(v) && json_integer_value(v) == kinds[k].ratio)
            return kinds[k].ratio;
    }
    char found[220];
    if (s)
        (void)snprintf(found, sizeof found, "\"%.200s\"", s);
    else if (json_is_integer(v))
        (void)snprintf(found, sizeof found, "%lld", (long long)json_integer_value(v));
    else
        (void)snprintf(found, sizeof found, "%s", nib_json_type_name(v));
    r->status = nib_error_set(r->err, s || json_is_integer(v) ? NIB_E_UNSUPPORTED : NIB_E_FORMAT,
                              "%s: %s[%d] is %s, wanted %s", r->what, key, i, found,
                              names ? "sliding_attention, compressed_sparse_attention or heavily_compressed_attention"
                                    : "0, 4 or 128");
    return 0;
}

/* Compression ratios of the layers and of the MTP block, whose entry may be left out. Lists of later checkpoints go on
 * with entries for draft blocks; those are not read. */
static void read_ratios(struct nib_keys *r, struct nib_config *c)
{
    static const char *const keys[] = { "compress_ratios", "layer_types" };
    bool any = false;
    for (int32_t k = 0; k < 2; k++) {
        const json_t *list = nib_keys_list(r, keys[k], c->n_layers);
        if (!list)
            continue;
        bool mtp = c->n_mtp_layers > 0 && json_array_size(list) > (size_t)c->n_layers;
        for (int32_t i = 0; i < c->n_layers + (mtp ? 1 : 0) && r->status == NIB_OK; i++) {
            int32_t ratio = list_ratio(r, list, keys[k], i);
            if (r->status == NIB_OK && any && i < c->n_layers && ratio != c->ratio[i]) {
                r->status = nib_error_set(r->err, NIB_E_FORMAT,
                                          "%s: layer %d has ratio %d by compress_ratios, %d by layer_types", r->what, i,
                                          c->ratio[i], ratio);
            }
            c->ratio[i] = ratio;
        }
        any = true;
    }
    if (r->status == NIB_OK && !any)
        nib_keys_missing(r, "compress_ratios", "layer_types");
    if (r->status == NIB_OK && c->ratio[c->n_layers] != 0) {
        r->status =
            nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: compress_ratios[%d] is %d, wanted 0 for the MTP block",
                          r->what, c->n_layers, c->ratio[c->n_layers]);
    }
    const json_t *rates = nib_keys_object(r, "compress_rates");
    if (rates) {
        int32_t rate;
        struct nib_keys sub = nib_keys_enter(r, rates, "compress_rates.");
        nib_keys_int(&sub, "compressed_sparse_attention", NULL, 4, 4, 4, &rate);
        nib_keys_int(&sub, "heavily_compressed_attention", NULL, 128, 128, 128, &rate);
        r->status = sub.status;
    }
}

/* How many layers route by token id: a number, or one name a layer. */
static void read_hash_layers(struct nib_keys *r, struct nib_config *c)
{
    const json_t *list = nib_keys_list(r, "mlp_layer_types", c->n_layers);
    int32_t n = 0;
    for (int32_t i = 0; list && i < c->n_layers; i++) {
        const char *s = json_string_value(json_array_get(list, (size_t)i));
        if (s && strcmp(s, "hash_moe") == 0 && n == i) {
            n++;
        } else if (!s || strcmp(s, "moe") != 0) {
            r->status = nib_error_set(
                r->err, NIB_E_UNSUPPORTED,
                "%s: mlp_layer_types[%d] is \"%.200s\", wanted \"hash_moe\" on the first layers, then \"moe\"", r->what,
                i, s ? s : nib_json_type_name(json_array_get(list, (size_t)i)));
            return;
        }
    }
    nib_keys_int(r, "num_hash_layers", "n_hash_layers", 0, c->n_layers, list ? n : NIB_NEEDED_INT, &c->n_hash_layers);
    if (r->status == NIB_OK && list && n != c->n_hash_layers) {
        r->status =
            nib_error_set(r->err, NIB_E_FORMAT, "%s: num_hash_layers is %d, but mlp_layer_types has %d hash_moe layers",
                          r->what, c->n_hash_layers, n);
    }
}

/* One partial_rotary_factor, if the object has it: head_dim * factor must be whole and agree with the others. */
static void read_rot_factor(struct nib_keys *r, const json_t *object, const char *where, struct nib_config *c)
{
    float factor = 0;
    if (!object || r->status != NIB_OK)
        return;
    struct nib_keys sub = nib_keys_enter(r, object, where);
    nib_keys_float(&sub, "partial_rotary_factor", NULL, 0, 1, 0, &factor);
    r->status = sub.status;
    if (r->status != NIB_OK || !json_is_number(json_object_get(object, "partial_rotary_factor")))
        return;
    double n = (double)c->head_dim * json_number_value(json_object_get(object, "partial_rotary_factor"));
    int32_t n_rot = (int32_t)lround(n);
    if (fabs(n - n_rot) > 1e-3 || (c->n_rot != 0 && c->n_rot != n_rot)) {
        r->status =
            nib_error_set(r->err, NIB_E_FORMAT, "%s: %spartial_rotary_factor makes %g of head_dim %d rotary, wanted %s",
                          r->what, where, n, c->head_dim,
                          c->n_rot ? "as many as qk_rope_head_dim or the other factor says" : "a whole number");
    }
    c->n_rot = n_rot;
}

/* YaRN from a published rope_scaling or a normalised `compress` entry. */
static void read_yarn(struct nib_keys *r, const json_t *object, const char *where, struct nib_config *c)
{
    struct nib_keys sub = nib_keys_enter(r, object, where);
    const char *name;
    float unused;
    const json_t *type = nib_keys_find(&sub, "rope_type", "type", &name);
    const char *s = json_string_value(type);
    if (sub.status == NIB_OK && !type) {
        nib_keys_missing(&sub, "rope_type", "type");
    } else if (sub.status == NIB_OK && s && strcmp(s, "yarn") == 0) {
        c->yarn = true;
        nib_keys_float(&sub, "factor", NULL, 1, 65536, NIB_NEEDED_FLOAT, &c->yarn_factor);
        nib_keys_int(&sub, "original_max_position_embeddings", NULL, 1, 1 << 24, NIB_NEEDED_INT, &c->yarn_original);
        nib_keys_float(&sub, "beta_fast", NULL, 1e-3, 1e6, 32, &c->yarn_beta_fast);
        nib_keys_float(&sub, "beta_slow", NULL, 1e-3, 1e6, 1, &c->yarn_beta_slow);
        /* V4 has no magnitude scale: 1 changes nothing, anything else would. */
        nib_keys_float(&sub, "attention_factor", NULL, 1, 1, 1, &unused);
        nib_keys_float(&sub, "mscale", NULL, 1, 1, 1, &unused);
        nib_keys_float(&sub, "mscale_all_dim", NULL, 1, 1, 1, &unused);
        nib_keys_only_bool(&sub, "truncate", true);
    } else if (sub.status == NIB_OK && (!s || strcmp(s, "default") != 0)) {
        sub.status = nib_error_set(r->err, s ? NIB_E_UNSUPPORTED : NIB_E_FORMAT,
                                   "%s: %s%s is %.200s, wanted \"yarn\" or \"default\"", r->what, where, name,
                                   s ? s : nib_json_type_name(type));
    }
    r->status = sub.status;
}

/* rope_parameters { main, compress }: each has its own base. Older files keep the bases at the top level. */
static void read_rope_nested(struct nib_keys *r, const json_t *rope, const char *key, struct nib_config *c)
{
    char where[3][48];
    (void)snprintf(where[0], sizeof where[0], "%s.main.", key);
    (void)snprintf(where[1], sizeof where[1], "%s.compress.", key);
    (void)snprintf(where[2], sizeof where[2], "%s.", key);
    struct nib_keys outer = nib_keys_enter(r, rope, where[2]);
    const json_t *part[2] = { nib_keys_object(&outer, "main"), nib_keys_object(&outer, "compress") };
    for (int32_t i = 0; i < 2 && outer.status == NIB_OK; i++) {
        float *theta = i == 0 ? &c->rope_theta : &c->compress_rope_theta;
        const char *top = i == 0 ? "rope_theta" : "compress_rope_theta";
        if (!part[i]) {
            nib_keys_missing(&outer, i == 0 ? "main" : "compress", NULL);
            break;
        }
        struct nib_keys sub = nib_keys_enter(&outer, part[i], where[i]);
        if (json_is_number(json_object_get(r->object, top)) && !json_object_get(part[i], "rope_theta"))
            sub = nib_keys_enter(&outer, r->object, "");
        nib_keys_float(&sub, sub.object == r->object ? top : "rope_theta", NULL, 2, 1e12, NIB_NEEDED_FLOAT, theta);
        outer.status = sub.status;
        if (i == 0) {
            struct nib_keys main = nib_keys_enter(&outer, part[0], where[0]);
            nib_keys_only_string(&main, "rope_type", "type", "default");
            outer.status = main.status;
        } else if (outer.status == NIB_OK) {
            read_yarn(&outer, part[1], where[1], c);
        }
        read_rot_factor(&outer, part[i], where[i], c);
    }
    r->status = outer.status;
}

static void read_rope(struct nib_keys *r, struct nib_config *c)
{
    const char *key = "rope_parameters";
    const json_t *rope = nib_keys_object(r, key);
    if (!rope) {
        key = "rope_scaling";
        rope = nib_keys_object(r, key);
    }
    nib_keys_int(r, "qk_rope_head_dim", "rope_head_dim", 2, c->head_dim, 0, &c->n_rot);
    read_rot_factor(r, r->object, "", c);
    if (r->status != NIB_OK)
        return;
    if (rope && (json_object_get(rope, "main") || json_object_get(rope, "compress"))) {
        read_rope_nested(r, rope, key, c);
    } else {
        nib_keys_float(r, "rope_theta", NULL, 2, 1e12, NIB_NEEDED_FLOAT, &c->rope_theta);
        nib_keys_float(r, "compress_rope_theta", NULL, 2, 1e12, NIB_NEEDED_FLOAT, &c->compress_rope_theta);
        if (r->status == NIB_OK && rope) {
            read_yarn(r, rope, strcmp(key, "rope_scaling") == 0 ? "rope_scaling." : "rope_parameters.", c);
        } else if (r->status == NIB_OK) {
            /* The release's names; a length of 0, or none, means no YaRN there. */
            nib_keys_int(r, "original_seq_len", NULL, 0, 1 << 24, 0, &c->yarn_original);
            c->yarn = c->yarn_original > 0;
            if (c->yarn) {
                nib_keys_float(r, "rope_factor", NULL, 1, 65536, NIB_NEEDED_FLOAT, &c->yarn_factor);
                nib_keys_float(r, "beta_fast", NULL, 1e-3, 1e6, 32, &c->yarn_beta_fast);
                nib_keys_float(r, "beta_slow", NULL, 1e-3, 1e6, 1, &c->yarn_beta_slow);
            }
        }
    }
    if (r->status == NIB_OK && c->n_rot == 0)
        nib_keys_missing(r, "qk_rope_head_dim", "partial_rotary_factor");
}

/* An id, or a list of ids of which the first counts. */
static void read_id(struct nib_keys *r, const char *key, int32_t vocab, int32_t fallback, int32_t *out)
{
    const json_t *v = json_object_get(r->object, key);
    if (r->status == NIB_OK && json_is_array(v)) {
        v = json_array_get(v, 0);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab) {
            r->status =
                nib_error_set(r->err, NIB_E_FORMAT, "%s: %s[0] is not an id from 0 to %d", r->what, key, vocab - 1);
            return;
        }
        *out = (int32_t)json_integer_value(v);
        return;
    }
    nib_keys_int(r, key, NULL, 0, vocab - 1, fallback, out);
}

struct relation {
    bool        holds;
    const char *text;
    int32_t     found[2];
};

/* What the engine's arithmetic and page layout take for granted. Single limits keep every product of two sizes within
 * int32 and of three within int64. */
static void check_relations(struct nib_keys *r, const struct nib_config *c)
{
    int32_t n_plain = c->head_dim - c->n_rot;
    const struct relation all[] = {
        { c->dim % 32 == 0, "hidden_size (dim) is %d, wanted a multiple of 32", { c->dim, 0 } },
        { c->n_inner % 32 == 0,
          "moe_intermediate_size (moe_inter_dim) is %d, wanted a multiple of 32",
          { c->n_inner, 0 } },
        { c->n_rot % 2 == 0, "qk_rope_head_dim (rope_head_dim) is %d, wanted an even number", { c->n_rot, 0 } },
        { n_plain > 0 && n_plain % 64 == 0,
          "head_dim %d without its %d rotary channels: wanted a positive multiple of 64 to be left",
          { c->head_dim, c->n_rot } },
        { c->n_heads % c->n_groups == 0,
          "num_attention_heads (n_heads) is %d, wanted a multiple of o_groups, which is %d",
          { c->n_heads, c->n_groups } },
        { c->index_dim >= 32 && (c->index_dim & (c->index_dim - 1)) == 0,
          "index_head_dim is %d, wanted a power of two that is at least 32",
          { c->index_dim, 0 } },
        { c->index_dim >= c->n_rot,
          "index_head_dim is %d, wanted at least the %d rotary channels",
          { c->index_dim, c->n_rot } },
        { c->top_k <= c->n_experts,
          "num_experts_per_tok (n_activated_experts) is %d, wanted at most the %d routed experts",
          { c->top_k, c->n_experts } },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0] && r->status == NIB_OK; i++) {
        if (all[i].holds)
            continue;
        char text[256];
        (void)snprintf(text, sizeof text, all[i].text, all[i].found[0], all[i].found[1]);
        r->status = nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: %s", r->what, text);
    }
    if (r->status == NIB_OK && c->yarn && c->yarn_beta_fast < c->yarn_beta_slow) {
        r->status =
            nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: beta_fast is %g, wanted at least beta_slow, which is %g",
                          r->what, (double)c->yarn_beta_fast, (double)c->yarn_beta_slow);
    }
}

static void read_all(struct nib_keys *r, struct nib_config *c)
{
    /* The release's own file names no model type; any other must, since the same keys mean other things elsewhere. */
    const char *name;
    if (!nib_keys_find(r, "model_type", NULL, &name) && !json_object_get(r->object, "dim"))
        nib_keys_missing(r, "model_type", NULL);
    nib_keys_only_string(r, "model_type", NULL, "deepseek_v4");
    nib_keys_only_string(r, "hidden_act", NULL, "silu");
    nib_keys_only_string(r, "scoring_func", "score_func", "sqrtsoftplus");
    nib_keys_only_string(r, "topk_method", NULL, "noaux_tc");
    nib_keys_only_bool(r, "norm_topk_prob", true);
    nib_keys_only_bool(r, "attention_bias", false);
    nib_keys_only_bool(r, "tie_word_embeddings", false);

    int32_t n_kv_heads;
    nib_keys_int(r, "num_key_value_heads", NULL, 1, 1, 1, &n_kv_heads);
    nib_keys_int(r, "hidden_size", "dim", 32, 65536, NIB_NEEDED_INT, &c->dim);
    nib_keys_int(r, "num_hidden_layers", "n_layers", 1, NIB_LAYERS_MAX, NIB_NEEDED_INT, &c->n_layers);
    nib_keys_int(r, "num_nextn_predict_layers", "n_mtp_layers", 0, 1, 1, &c->n_mtp_layers);
    nib_keys_int(r, "num_attention_heads", "n_heads", 1, 1024, NIB_NEEDED_INT, &c->n_heads);
    nib_keys_int(r, "head_dim", NULL, 66, 4096, NIB_NEEDED_INT, &c->head_dim);
    nib_keys_int(r, "q_lora_rank", NULL, 16, 65536, NIB_NEEDED_INT, &c->q_rank);
    nib_keys_int(r, "o_groups", NULL, 1, 1024, NIB_NEEDED_INT, &c->n_groups);
    nib_keys_int(r, "o_lora_rank", NULL, 1, 65536, NIB_NEEDED_INT, &c->o_rank);
    nib_keys_int(r, "sliding_window", "window_size", 1, 128, NIB_NEEDED_INT, &c->n_window);
    nib_keys_int(r, "index_n_heads", NULL, 1, 1024, NIB_NEEDED_INT, &c->n_index_heads);
    nib_keys_int(r, "index_head_dim", NULL, 32, 4096, NIB_NEEDED_INT, &c->index_dim);
    nib_keys_int(r, "index_topk", NULL, 1, 65536, NIB_NEEDED_INT, &c->index_top_k);
    nib_keys_int(r, "n_routed_experts", NULL, 1, 4096, NIB_NEEDED_INT, &c->n_experts);
    nib_keys_int(r, "n_shared_experts", NULL, 1, 1, 1, &c->n_shared);
    nib_keys_int(r, "num_experts_per_tok", "n_activated_experts", 1, 64, NIB_NEEDED_INT, &c->top_k);
    nib_keys_int(r, "moe_intermediate_size", "moe_inter_dim", 32, 65536, NIB_NEEDED_INT, &c->n_inner);
    nib_keys_int(r, "hc_mult", NULL, 1, 8, NIB_NEEDED_INT, &c->n_hc);
    nib_keys_int(r, "hc_sinkhorn_iters", NULL, 1, 1000, NIB_NEEDED_INT, &c->n_sinkhorn);
    nib_keys_int(r, "vocab_size", NULL, 2, 1 << 24, NIB_NEEDED_INT, &c->vocab);
    nib_keys_float(r, "rms_norm_eps", "norm_eps", 1e-12, 1e-2, 1e-6, &c->norm_eps);
    nib_keys_float(r, "hc_eps", NULL, 0, 1e-2, 1e-6, &c->hc_eps);
    nib_keys_float(r, "routed_scaling_factor", "route_scale", 1e-6, 1e6, NIB_NEEDED_FLOAT, &c->route_scale);
    nib_keys_float(r, "swiglu_limit", NULL, 1e-6, 1e6, NIB_NEEDED_FLOAT, &c->swiglu_limit);
    if (r->status != NIB_OK)
        return;

    read_id(r, "bos_token_id", c->vocab, 0, &c->bos_id);
    read_id(r, "eos_token_id", c->vocab, 1, &c->eos_id);
    read_ratios(r, c);
    read_hash_layers(r, c);
    read_rope(r, c);
    /* The release's file has no context length; what YaRN stretches to is what it was trained for. */
    double stretched = c->yarn ? (double)c->yarn_factor * c->yarn_original : 0;
    int32_t fallback = stretched >= 1 && stretched <= 1 << 24 ? (int32_t)stretched : NIB_NEEDED_INT;
    nib_keys_int(r, "max_position_embeddings", NULL, 1, 1 << 24, fallback, &c->n_ctx_max);
    if (r->status == NIB_OK)
        check_relations(r, c);
    const json_t *quantization = nib_keys_object(r, "quantization_config");
    if (quantization)
        r->status = nib_quant_config_check(quantization, r->what, r->err);
}

enum nib_status nib_config_parse(const char *text, size_t n, const char *what, struct nib_config *out,
                                 struct nib_error *err)
{
    memset(out, 0, sizeof *out);
    json_t *root;
    NIB_TRY(nib_json_parse(text, n, what, &root, err));
    struct nib_keys r = { .object = root, .what = what, .where = "", .err = err, .status = NIB_OK };
    if (!json_is_object(root))
        r.status =
            nib_error_set(err, NIB_E_FORMAT, "%s: the file holds %s, wanted an object", what, nib_json_type_name(root));
    else
        read_all(&r, out);
    json_decref(root);
    out->temperature = 1;
    out->top_p = 1;
    return r.status;
}

static enum nib_status read_generation(const char *path, struct nib_config *c, struct nib_error *err)
{
    json_t *root;
    const char *name;
    NIB_TRY(nib_json_file_read(path, CONFIG_BYTES_MAX, &root, err));
    struct nib_keys r = { .object = root, .what = path, .where = "", .err = err, .status = NIB_OK };
    if (!json_is_object(root)) {
        r.status =
            nib_error_set(err, NIB_E_FORMAT, "%s: the file holds %s, wanted an object", path, nib_json_type_name(root));
    } else {
        nib_keys_float(&r, "temperature", NULL, 0, 100, 1, &c->temperature);
        nib_keys_float(&r, "top_p", NULL, 1e-6, 1, 1, &c->top_p);
        const json_t *sample = nib_keys_find(&r, "do_sample", NULL, &name);
        if (r.status == NIB_OK && sample && !json_is_boolean(sample)) {
            r.status = nib_error_set(err, NIB_E_FORMAT, "%s: do_sample is %s, wanted true or false", path,
                                     nib_json_type_name(sample));
        }
        c->greedy = json_is_false(sample);
    }
    json_decref(root);
    return r.status;
}

enum nib_status nib_config_read(const char *dir, struct nib_config *out, struct nib_error *err)
{
    char path[4096], *text;
    size_t n;
    struct stat st;
    memset(out, 0, sizeof *out);
    if (!*dir) /* would read the root's files */
        return nib_error_set(err, NIB_E_ARGUMENT, "the name of the checkpoint folder is '', wanted a folder");
    /* generation_config.json is the longer of the two names. */
    if (snprintf(path, sizeof path, "%s/generation_config.json", dir) >= (int)sizeof path)
        return nib_error_set(err, NIB_E_ARGUMENT, "folder name of %zu bytes, wanted less than 4000", strlen(dir));
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    NIB_TRY(nib_file_read(path, CONFIG_BYTES_MAX, &text, &n, err));
    enum nib_status status = nib_config_parse(text, n, path, out, err);
    free(text);
    (void)snprintf(path, sizeof path, "%s/generation_config.json", dir);
    if (status == NIB_OK && (lstat(path, &st) == 0 || errno != ENOENT))
        status = read_generation(path, out, err);
    return status == NIB_OK ? nib_quant_config_read(dir, err) : status;
}

void nib_rope_freq(const struct nib_config *c, bool compressed, float *freq)
{
    float base = compressed ? c->compress_rope_theta : c->rope_theta;
    float n_rot = (float)c->n_rot;
    for (int32_t i = 0; i < c->n_rot / 2; i++)
        freq[i] = 1.0f / powf(base, (float)(2 * i) / n_rot);
    if (!compressed || !c->yarn)
        return;
    /* Pairs that turn more than beta_fast times over the original context stay, those that turn less than beta_slow
     * times are slowed by the factor, a ramp over the pair number lies between. */
    const double two_pi = 6.283185307179586;
    double scale = c->n_rot / (2 * log((double)base));
    double low = floor(scale * log(c->yarn_original / (c->yarn_beta_fast * two_pi)));
    double high = ceil(scale * log(c->yarn_original / (c->yarn_beta_slow * two_pi)));
    low = fmax(low, 0);
    high = fmin(high, c->n_rot - 1);
    if (low == high)
        high += 0.001;
    for (int32_t i = 0; i < c->n_rot / 2; i++) {
        float ramp = ((float)i - (float)low) / (float)(high - low);
        float smooth = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
        freq[i] = freq[i] / c->yarn_factor * (1.0f - smooth) + freq[i] * smooth;
    }
}
