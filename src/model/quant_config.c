/* Reading of quantisation settings for conflicts: sizes of blocks, and codes that are not symmetric. Lists of excluded
 * or quantised modules, names of methods and scales' types are not believed or even compared: producers get them wrong,
 * tensors do not. */
#include "model/quant_config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "checkpoint/json_file.h"
#include "checkpoint/json_keys.h"

#define QUANT_BYTES_MAX ((size_t)64 << 20)

/* The group size that the named algorithm's scales have; 0: not one of FP4. */
static int32_t group_of(const char *algorithm)
{
    if (strstr(algorithm, "MXFP4"))
        return 32;
    return strstr(algorithm, "NVFP4") || strcmp(algorithm, "MIXED_PRECISION") == 0 ? 16 : 0;
}

/* quant_algo and group_size of one object. */
static void check_algorithm(struct nib_keys *r)
{
    const char *name;
    int32_t unused;
    const json_t *v = nib_keys_find(r, "quant_algo", NULL, &name);
    if (r->status != NIB_OK || !v)
        return;
    if (!json_is_string(v)) {
        r->status = nib_error_set(r->err, NIB_E_FORMAT, "%s: %squant_algo is %s, wanted a string", r->what, r->where,
                                  nib_json_type_name(v));
        return;
    }
    const int32_t group = group_of(json_string_value(v));
    if (group)
        nib_keys_int(r, "group_size", NULL, group, group, group, &unused);
}

/* quantized_layers { "layers.0.ffn.experts": { quant_algo, group_size } } */
static void check_layers(struct nib_keys *r)
{
    json_t *layers = (json_t *)nib_keys_object(r, "quantized_layers"), *v;
    const char *layer;
    json_object_foreach(layers, layer, v) {
        char where[256];
        (void)snprintf(where, sizeof where, "%squantized_layers.%.150s.", r->where, layer);
        if (!json_is_object(v)) {
            r->status = nib_error_set(r->err, NIB_E_FORMAT, "%s: %.*s is %s, wanted an object", r->what,
                                      (int)strlen(where) - 1, where, nib_json_type_name(v));
            return;
        }
        struct nib_keys sub = nib_keys_enter(r, v, where);
        check_algorithm(&sub);
        r->status = sub.status;
        if (r->status != NIB_OK)
            return;
    }
}

/* FP8 blocks: a pair of 128. Matrices smaller than a block look the same with any size. */
static void check_block(struct nib_keys *r, const char *key)
{
    const json_t *list = nib_keys_list(r, key, 0);
    if (!list)
        return;
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_array_get(list, i);
        if (json_array_size(list) != 2 || !json_is_integer(v) || json_integer_value(v) != 128) {
            char *found = nib_json_dump(list, JSON_ENCODE_ANY | JSON_COMPACT);
            r->status = nib_error_set(r->err, found ? NIB_E_UNSUPPORTED : NIB_E_MEMORY, "%s: %s%s is %.100s, wanted [128,128]", r->what,
                                      r->where, key, found ? found : "?");
            free(found);
            return;
        }
    }
}

/* compressed-tensors: config_groups { "group_0": { "weights": { num_bits, type, strategy, group_size, ... } } } */
static void check_groups(struct nib_keys *r)
{
    json_t *groups = (json_t *)nib_keys_object(r, "config_groups"), *v;
    const char *group;
    json_object_foreach(groups, group, v) {
        char where[256];
        int32_t unused;
        (void)snprintf(where, sizeof where, "%sconfig_groups.%.100s.weights.", r->where, group);
        const json_t *weights = json_object_get(v, "weights");
        if (!json_is_object(weights))
            continue;
        struct nib_keys sub = nib_keys_enter(r, weights, where);
        const char *type = json_string_value(json_object_get(weights, "type"));
        const char *strategy = json_string_value(json_object_get(weights, "strategy"));
        if (type && strcmp(type, "float") == 0 && json_integer_value(json_object_get(weights, "num_bits")) == 4) {
            /* MXFP4 is the strategy "group"; the scales' columns say which of the two sizes it is. */
            nib_keys_int(&sub, "group_size", NULL, 16, strategy && strcmp(strategy, "group") == 0 ? 32 : 16, 16,
                         &unused);
        }
        check_block(&sub, "block_structure");
        nib_keys_only_bool(&sub, "symmetric", true);
        r->status = sub.status;
        if (r->status != NIB_OK)
            return;
    }
}

static void check_all(struct nib_keys *r)
{
    check_algorithm(r);
    check_layers(r);
    check_block(r, "weight_block_size");
    check_groups(r);
}

enum nib_status nib_quant_config_check(const json_t *object, const char *what, struct nib_error *err)
{
    struct nib_keys r = {.object = object, .what = what, .where = "quantization_config.", .err = err, .status = NIB_OK};
    check_all(&r);
    return r.status;
}

enum nib_status nib_quant_config_read(const char *dir, struct nib_error *err)
{
    struct stat st;
    json_t *root = NULL;
    enum nib_status status = NIB_OK;
    char *path = nib_path_join(dir, "hf_quant_config.json");
    if (!path)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for a path");
    if (lstat(path, &st) == 0 || errno != ENOENT)
        status = nib_json_file_read(path, QUANT_BYTES_MAX, &root, err);
    struct nib_keys r = {.object = root, .what = path, .where = "", .err = err, .status = status};
    if (root && !json_is_object(root)) {
        r.status = nib_error_set(err, NIB_E_FORMAT, "%s: the file holds %s, wanted an object", path,
                                 nib_json_type_name(root));
    } else if (root) {
        const json_t *quantization = nib_keys_object(&r, "quantization");
        struct nib_keys sub = nib_keys_enter(&r, quantization, "quantization.");
        if (quantization)
            check_all(&sub);
        r.status = sub.status;
    }
    json_decref(root);
    free(path);
    return r.status;
}
