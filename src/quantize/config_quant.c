/* config.json and hf_quant_config.json of the destination. Which modules are NVFP4 is read off the plan, so that both
 * say what the shards hold; the spellings are those of ModelOpt's exports. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/json_file.h"
#include "quantize/quant.h"

#define CONFIG_BYTES_MAX ((size_t)16 << 20)

struct shares {
    int64_t nvfp4[256], other[256]; /* matrices by field */
    bool    fp8;                    /* some matrices stay FP8 */
    bool    experts;                /* routed experts are NVFP4 */
};

static bool is_matrix(const struct nib_quant_unit *u)
{
    return u->id.field && (u->id.field->kind == NIB_FIELD_LINEAR || u->id.field->kind == NIB_FIELD_EXPERTS);
}

static bool is_nvfp4(const struct nib_quant_unit *u)
{
    return u->n_outs == 4;
}

/* A copied companion is not a module of its own. */
static bool is_main(const struct nib_quant_plan *p, const struct nib_quant_unit *u)
{
    const char  *name = p->output[u->out].name;
    const size_t n = strlen(name);
    return is_nvfp4(u) || (n > 7 && strcmp(name + n - 7, ".weight") == 0);
}

static void count(const struct nib_quant_plan *p, struct shares *s)
{
    memset(s, 0, sizeof *s);
    for (int64_t i = 0; i < p->n_units; i++) {
        const struct nib_quant_unit *u = &p->unit[i];
        if (!is_matrix(u) || !is_main(p, u))
            continue;
        const ptrdiff_t f = u->id.field - nib_fields;
        s->nvfp4[f] += is_nvfp4(u);
        s->other[f] += !is_nvfp4(u);
        s->fp8 = s->fp8 || p->output[u->out].dtype == NIB_ST_F8_E4M3;
        s->experts = s->experts || (is_nvfp4(u) && u->id.field->kind == NIB_FIELD_EXPERTS);
    }
}

static json_t *strings(const char *const *s, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(list, json_string(s[i]));
    return list;
}

/* A field whose matrices all stay is named once, as a glob; others one by one. */
static json_t *ignored(const struct nib_quant_plan *p, const struct shares *s)
{
    static const char *const official[] = {"*.attn.*",     "*.attn_norm.*", "*.ffn.shared_experts.*",
                                           "*.ffn.gate.*", "*.ffn_norm.*",  "embed.weight",
                                           "head.weight",  "*.hc_*",        "*.h_proj.*",
                                           "*.e_proj.*",   "*.enorm.*",     "*.hnorm.*",
                                           "mtp.*.norm.*", "norm.weight"};
    const struct nib_quantize_options *o = p->options;
    if (!p->hf && o->preset == NIB_QUANT_EXPERTS && !o->include && !o->exclude)
        return strings(official, sizeof official / sizeof official[0]);
    json_t *list = strings(
        p->hf ? (const char *const[]){"*_hc*", "*hc_head*"} : (const char *const[]){"*hc_*", "*hc_head*"}, 2);
    for (int32_t f = 0; f < nib_n_fields; f++) {
        char name[256];
        const char *pattern = p->hf ? nib_fields[f].hf : nib_fields[f].official;
        const int   length = (int)strcspn(pattern, "|%");
        if (s->other[f] == 0 || s->nvfp4[f] > 0)
            continue;
        (void)snprintf(name, sizeof name, "%s%.*s%s", nib_fields[f].scope == NIB_SCOPE_GLOBAL ? "" : "*.", length,
                       pattern, pattern[length] == '%' ? "*" : "");
        (void)json_array_append_new(list, json_string(name));
    }
    for (int64_t i = 0; i < p->n_units; i++) {
        const struct nib_quant_unit *u = &p->unit[i];
        if (!is_matrix(u) || !is_main(p, u) || is_nvfp4(u) || s->nvfp4[u->id.field - nib_fields] == 0)
            continue;
        const char *name = p->output[u->out].name;
        (void)json_array_append_new(list, json_stringn(name, strlen(name) - 7));
    }
    return list;
}

static json_t *read_config(const struct nib_quant_plan *p, struct nib_error *err)
{
    json_t *root = NULL;
    char   *path = nib_path_join(p->src, "config.json");
    if (!path)
        (void)nib_error_set(err, NIB_E_MEMORY, "no memory for a path");
    else
        (void)nib_json_file_read(path, CONFIG_BYTES_MAX, &root, err);
    free(path);
    return root;
}

/* Experts NVFP4 beside FP8: what the official loaders expect of such hybrids. */
static json_t *hybrid_config(const json_t *source)
{
    json_t     *q = json_deep_copy(json_object_get(source, "quantization_config"));
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (!q || !method || strcmp(method, "fp8") != 0) {
        json_decref(q);
        q = json_pack("{s:s, s:s, s:s, s:[i, i], s:s}", "quant_method", "fp8", "fmt", "e4m3", "scale_fmt", "ue8m0",
                      "weight_block_size", 128, 128, "activation_scheme", "dynamic");
    }
    (void)json_object_set_new(q, "moe_quant_algo", json_string("NVFP4"));
    return q;
}

static json_t *modelopt_config(json_t *ignore)
{
    json_t *input = json_pack("{s:b, s:i, s:s, s:i}", "dynamic", 0, "num_bits", 4, "type", "float", "group_size", 16);
    json_t *weights = json_deep_copy(input);
    return json_pack("{s:s, s:s, s:{s:{s:o, s:o, s:[s]}}, s:O}", "quant_method", "modelopt", "quant_algo", "NVFP4",
                     "config_groups", "group_0", "input_activations", input, "weights", weights, "targets", "Linear",
                     "ignore", ignore);
}

/* Modules in their own algorithm; the routed experts of a layer as one. */
static json_t *quantized_layers(const struct nib_quant_plan *p)
{
    json_t *layers = json_object();
    for (int64_t i = 0; i < p->n_units; i++) {
        const struct nib_quant_unit *u = &p->unit[i];
        char name[400];
        if (!is_nvfp4(u))
            continue;
        const char *experts = u->id.field->kind == NIB_FIELD_EXPERTS ? strstr(u->out_base, ".experts.") : NULL;
        (void)snprintf(name, sizeof name, "%.*s", experts ? (int)(experts - u->out_base) + 8 : (int)strlen(u->out_base),
                       u->out_base);
        if (!json_object_get(layers, name))
            (void)json_object_set_new(layers, name, json_pack("{s:s, s:i}", "quant_algo", "NVFP4", "group_size", 16));
    }
    return layers;
}

static enum nib_status write_json(const char *dst, const char *name, json_t *root, struct nib_error *err)
{
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    const enum nib_status status = text ? nib_quant_write_file(dst, name, text, strlen(text), err)
                                        : nib_error_set(err, NIB_E_MEMORY, "no memory for '%s'", name);
    free(text);
    return status;
}

enum nib_status nib_quant_config_write(const struct nib_quant_plan *p, const char *dst, struct nib_error *err)
{
    struct shares s;
    struct nib_error e = {.status = NIB_E_MEMORY};
    char version[64];
    (void)snprintf(version, sizeof version, "nibble-%s", nib_version());
    json_t *config = read_config(p, err ? err : &e);
    if (!config)
        return err ? err->status : e.status;
    count(p, &s);
    json_t *ignore = ignored(p, &s);
    json_t *quantization = json_pack("{s:s, s:n, s:i, s:O}", "quant_algo", s.fp8 ? "MIXED_PRECISION" : "NVFP4",
                                     "kv_cache_quant_algo", "group_size", 16, "exclude_modules", ignore);
    if (s.fp8)
        (void)json_object_set_new(quantization, "quantized_layers", quantized_layers(p));
    (void)json_object_set_new(config, "quantization_config", s.fp8 ? hybrid_config(config) : modelopt_config(ignore));
    if (s.experts && (s.fp8 || json_object_get(config, "expert_dtype")))
        (void)json_object_set_new(config, "expert_dtype", json_string("nvfp4"));
    json_decref(ignore);
    json_t *hf = json_pack("{s:{s:s, s:s}, s:o}", "producer", "name", "modelopt", "version", version, "quantization",
                           quantization);
    const enum nib_status status = write_json(dst, "hf_quant_config.json", hf, err);
    if (status != NIB_OK) {
        json_decref(config);
        return status;
    }
    return write_json(dst, "config.json", config, err);
}
