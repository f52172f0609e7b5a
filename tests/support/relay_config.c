/* The small files of a re-laid checkpoint. */
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "checkpoint/json_file.h"
#include "support/relay_kind.h"

static enum nib_status write_file(const char *dir, const char *name, const char *data, size_t n, struct nib_error *err)
{
    char *path = nib_path_join(dir, name);
    FILE *f = path ? fopen(path, "wb") : NULL;
    bool ok = f && fwrite(data, 1, n, f) == n;
    if (f)
        ok = fclose(f) == 0 && ok;
    free(path);
    return ok ? NIB_OK : nib_error_set(err, NIB_E_IO, "cannot write '%s/%s': %s", dir, name, strerror(errno));
}

static enum nib_status write_json(const char *dir, const char *name, json_t *root, struct nib_error *err)
{
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    enum nib_status status = text ? write_file(dir, name, text, strlen(text), err) : NIB_E_MEMORY;
    free(text);
    return status;
}

/* The settings of NVIDIA's exporter: experts in config.json, details beside it. `wrong`: everything is said to be
 * excluded. */
static enum nib_status claim_modelopt(json_t *root, const char *dst, bool wrong, struct nib_error *err)
{
    json_t *layers = json_object();
    (void)json_object_set_new(root, "expert_dtype", json_string("nvfp4"));
    (void)json_object_set_new(json_object_get(root, "quantization_config"), "moe_quant_algo", json_string("NVFP4"));
    for (int64_t i = 0; i < json_integer_value(json_object_get(root, "num_hidden_layers")); i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "layers.%lld.ffn.experts", (long long)i);
        (void)json_object_set_new(layers, name, json_pack("{s:s, s:i}", "quant_algo", "NVFP4", "group_size", 16));
    }
    json_t *quant = json_pack("{s:{s:s, s:s}, s:{s:s, s:n, s:i, s:o, s:[s,s,s,s,s,s,s,s,s,s,s,s,s,s]}}", "producer",
                              "name", "modelopt", "version", "0.0", "quantization", "quant_algo", "MIXED_PRECISION",
                              "kv_cache_quant_algo", "group_size", 16, "quantized_layers", layers,
                              "exclude_modules", "*.attn.*", "*.attn_norm.*", "*.ffn.shared_experts.*",
                              wrong ? "*" : "*.ffn.gate.*", "*.ffn_norm.*", "embed.weight", "head.weight", "*.hc_*",
                              "*.h_proj.*", "*.e_proj.*", "*.enorm.*", "*.hnorm.*", "mtp.*.norm.*", "norm.weight");
    enum nib_status status = write_json(dst, "hf_quant_config.json", quant, err);
    json_decref(quant);
    return status;
}

static void claim_compressed(json_t *root)
{
    (void)json_object_del(root, "expert_dtype");
    (void)json_object_set_new(
        root, "quantization_config",
        json_pack("{s:s, s:s, s:{s:{s:s, s:[s], s:{s:i, s:s, s:b, s:s, s:i}}, s:{s:s, s:[s], s:{s:i, s:s, s:b, s:s, s:[i,i]}}},"
                  " s:[s,s]}",
                  "quant_method", "compressed-tensors", "format", "mixed-precision", "config_groups", "group_0", "format",
                  "nvfp4-pack-quantized", "targets", "re:.*experts.*", "weights", "num_bits", 4, "type", "float",
                  "symmetric", 1, "strategy", "tensor_group", "group_size", 16, "group_1", "format", "float-quantized",
                  "targets", "re:.*attn.*", "weights", "num_bits", 8, "type", "float", "symmetric", 1, "strategy",
                  "block", "block_structure", 128, 128, "ignore", "lm_head", "re:.*gate$"));
}

/* What producers of these layouts write; all of it is informative, since tensors decide. */
enum nib_status relay_write_config(const struct relay_kind *k, const char *src, const char *dst, struct nib_error *err)
{
    json_t *root;
    char *path = nib_path_join(src, "config.json");
    enum nib_status status = nib_json_file_read(path, 1 << 24, &root, err);
    free(path);
    NIB_TRY(status);
    if (k->drop_mtp)
        (void)json_object_set_new(root, "num_nextn_predict_layers", json_integer(0));
    if (k->experts == BF16) {
        (void)json_object_del(root, "quantization_config");
        (void)json_object_del(root, "expert_dtype");
    } else if (k->experts == FP8) {
        (void)json_object_set_new(root, "expert_dtype", json_string("fp8"));
    } else if (k->compressed) {
        claim_compressed(root);
    } else if (k->experts == NVFP4 || k->experts == BY_LAYER) {
        status = claim_modelopt(root, dst, k->experts == BY_LAYER, err);
    }
    if (status == NIB_OK)
        status = write_json(dst, "config.json", root, err);
    json_decref(root);
    return status;
}

enum nib_status relay_copy_files(const char *src, const char *dst, struct nib_error *err)
{
    DIR *d = opendir(src);
    enum nib_status status = NIB_OK;
    if (!d)
        return nib_error_set(err, NIB_E_IO, "cannot open '%s': %s", src, strerror(errno));
    for (struct dirent *e; status == NIB_OK && (e = readdir(d)) != NULL;) {
        struct stat st;
        char *data = NULL, *path = nib_path_join(src, e->d_name);
        size_t n;
        bool wanted = stat(path, &st) == 0 && S_ISREG(st.st_mode) && !strstr(e->d_name, ".safetensors") &&
                      strcmp(e->d_name, "config.json") != 0 && strcmp(e->d_name, "hf_quant_config.json") != 0;
        if (wanted)
            status = nib_file_read(path, 1u << 30, &data, &n, err);
        if (wanted && status == NIB_OK)
            status = write_file(dst, e->d_name, data, n, err);
        free(data);
        free(path);
    }
    (void)closedir(d);
    return status;
}
