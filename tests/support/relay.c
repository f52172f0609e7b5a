/* The kinds of layout as a table, and the walk over a checkpoint that applies one. */
#include "support/relay.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/json_file.h"
#include "checkpoint/writer.h"
#include "support/relay_names.h"
#include "support/relay_values.h"

enum form { KEEP, BF16, NVFP4, FP8 };

struct kind {
    const char *name, *text;
    enum form experts, dense; /* routed experts; other linears that are stored in few bits */
    enum form mtp;            /* all of the MTP block's, if not KEEP */
    bool bf16_wo_a, hf_names, stack, drop_mtp;
    const char *scale_suffix; /* NULL: as it is */
    int64_t n_shards;         /* 0: as many files as the source's size suggests, i.e. one */
};

static const struct kind kinds[] = {
    { .name = "bf16", .text = "HF names, BF16, experts one by one", .experts = BF16, .dense = BF16, .hf_names = true },
    { .name = "bf16-stacked",
      .text = "HF names, BF16, experts stacked",
      .experts = BF16,
      .dense = BF16,
      .hf_names = true,
      .stack = true },
    { .name = "nvfp4-experts", .text = "experts as NVFP4 by the exact cast", .experts = NVFP4 },
    { .name = "nvfp4-bf16", .text = "experts as NVFP4, other linears as BF16", .experts = NVFP4, .dense = BF16 },
    { .name = "scale-names",
      .text = "scales named .weight_scale_inv, wo_a as BF16",
      .bf16_wo_a = true,
      .scale_suffix = ".weight_scale_inv" },
    { .name = "scale-names-plain", .text = "scales named .weight_scale", .scale_suffix = ".weight_scale" },
    { .name = "fp8-experts", .text = "experts as FP8 128x128", .experts = FP8 },
    { .name = "mtp-bf16", .text = "MTP block as BF16", .mtp = BF16 },
    { .name = "no-mtp", .text = "without the MTP block", .drop_mtp = true },
    { .name = "sharded", .text = "five shards", .n_shards = 5 },
    { .name = "single", .text = "one file, no index" },
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

const char *relay_kind(int i)
{
    static char text[N_KINDS][128];
    if (i < 0 || i >= N_KINDS)
        return NULL;
    (void)snprintf(text[i], sizeof text[i], "%s\t%s", kinds[i].name, kinds[i].text);
    return text[i];
}

struct relay {
    const struct kind *kind;
    const struct nib_checkpoint *c;
    struct relay_items out;
    struct nib_error *err;
};

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

static bool is_expert(const char *name)
{
    return strstr(name, ".experts.") != NULL;
}

static bool is_mtp(const char *name)
{
    return strncmp(name, "mtp.", 4) == 0 || strncmp(name, "model.mtp.", 10) == 0;
}

static enum nib_status output_name(struct relay *r, const char *name, char *out, size_t n)
{
    if (!r->kind->hf_names || strncmp(name, "model.", 6) == 0 || strncmp(name, "lm_head.", 8) == 0) {
        (void)snprintf(out, n, "%s", name);
    } else if (!relay_hf_name(name, out, n)) {
        return nib_error_set(r->err, NIB_E_FORMAT, "no HF name is known for tensor '%s'", name);
    }
    return NIB_OK;
}

static enum nib_status copy_entry(struct relay *r, const struct nib_tensor_entry *e, const char *name)
{
    char renamed[512];
    NIB_TRY(output_name(r, name, renamed, sizeof renamed));
    void *data = relay_items_add(&r->out, renamed, e->dtype, e->n_dims, e->shape);
    if (e->bytes > 0)
        memcpy(data, e->data, (size_t)e->bytes);
    return NIB_OK;
}

static enum nib_status write_bf16(struct relay *r, const struct relay_linear *w)
{
    const char *name = w->weight->name;
    char renamed[512];
    NIB_TRY(output_name(r, name, renamed, sizeof renamed));
    double *x = relay_decode(w, r->err);
    if (!x)
        return NIB_E_FORMAT;
    uint16_t *out = relay_items_add(&r->out, renamed, NIB_ST_BF16, 2, (int64_t[2]){ w->rows, w->cols });
    enum nib_status status = relay_to_bf16(x, w->rows * w->cols, out, name, r->err);
    free(x);
    return status;
}

/* w1 and w3 of an expert share one global scale, as the kernels that fuse them expect. */
static enum nib_status write_nvfp4(struct relay *r, const struct relay_linear *w, const char *base)
{
    int32_t k_max = relay_mxfp4_k_max(w);
    char other[512];
    (void)snprintf(other, sizeof other, "%s", base);
    char *digit = other + strlen(other) - 1;
    struct relay_linear partner;
    if (*digit == '1' || *digit == '3') {
        *digit = *digit == '1' ? '3' : '1';
        if (!relay_linear_find(r->c, other, &partner) || partner.format != RELAY_MXFP4)
            return nib_error_set(r->err, NIB_E_FORMAT, "'%s' has no MXFP4 partner '%s'", base, other);
        int32_t k = relay_mxfp4_k_max(&partner);
        k_max = k > k_max ? k : k_max;
    }
    return relay_mxfp4_to_nvfp4(w, k_max, base, &r->out, r->err);
}

/* BASE.weight and its scales, in the form that the kind wants. */
static enum nib_status convert(struct relay *r, const char *base)
{
    const struct kind *k = r->kind;
    struct relay_linear w;
    char name[512];
    (void)relay_linear_find(r->c, base, &w);
    enum form form = is_expert(base) ? k->experts : k->dense;
    if (is_mtp(base) && k->mtp != KEEP)
        form = k->mtp;
    if (k->bf16_wo_a && ends_with(base, ".wo_a"))
        form = BF16;
    if (w.format == RELAY_PLAIN)
        form = KEEP;
    if ((form == NVFP4 || form == FP8) && w.format != RELAY_MXFP4)
        return nib_error_set(r->err, NIB_E_FORMAT, "'%s' is not MXFP4: no exact conversion is known", base);
    switch (form) {
    case BF16: return write_bf16(r, &w);
    case NVFP4: return write_nvfp4(r, &w, base);
    case FP8: return relay_mxfp4_to_fp8(&w, base, &r->out, r->err);
    case KEEP: break;
    }
    NIB_TRY(copy_entry(r, w.weight, w.weight->name));
    if (!w.scale)
        return NIB_OK;
    (void)snprintf(name, sizeof name, "%s%s", base, k->scale_suffix ? k->scale_suffix : w.scale->name + strlen(base));
    return copy_entry(r, w.scale, name);
}

/* Companions are written with their weight. */
static bool is_scale(const struct relay *r, const char *name, size_t *base_bytes)
{
    static const char *const suffixes[] = { ".scale", ".weight_scale_inv", ".weight_scale" };
    for (size_t i = 0; i < 3; i++) {
        if (ends_with(name, suffixes[i])) {
            char weight[512];
            *base_bytes = strlen(name) - strlen(suffixes[i]);
            (void)snprintf(weight, sizeof weight, "%.*s.weight", (int)*base_bytes, name);
            return nib_checkpoint_find(r->c, weight) != NULL;
        }
    }
    return false;
}

static enum nib_status walk(struct relay *r)
{
    for (int64_t i = 0; i < nib_checkpoint_n_tensors(r->c); i++) {
        const struct nib_tensor_entry *e = nib_checkpoint_at(r->c, i);
        size_t n;
        char base[512];
        if ((is_mtp(e->name) && r->kind->drop_mtp) || is_scale(r, e->name, &n))
            continue;
        if (ends_with(e->name, ".weight")) {
            (void)snprintf(base, sizeof base, "%.*s", (int)(strlen(e->name) - 7), e->name);
            NIB_TRY(convert(r, base));
        } else {
            NIB_TRY(copy_entry(r, e, e->name));
        }
    }
    return NIB_OK;
}

static struct relay_item *item_find(struct relay *r, const char *name)
{
    for (int64_t i = 0; i < r->out.n; i++) {
        if (r->out.item[i].name && strcmp(r->out.item[i].name, name) == 0)
            return &r->out.item[i];
    }
    return NULL;
}

static void item_take(struct relay *r, const char *prefix, int64_t expert, const char *matrix, uint16_t *to)
{
    char name[512];
    (void)snprintf(name, sizeof name, "%s%lld.%s.weight", prefix, (long long)expert, matrix);
    struct relay_item *it = item_find(r, name);
    memcpy(to, it->data, (size_t)it->bytes);
    free(it->data);
    free(it->name);
    it->data = NULL;
    it->name = NULL;
}

/* model.layers.N.mlp.experts.E.{gate,up,down}_proj.weight of all E into two tensors. The emptied items are dropped. */
static void stack_experts(struct relay *r)
{
    for (int64_t i = 0; i < r->out.n; i++) {
        char prefix[256], name[512];
        const char *at = r->out.item[i].name ? strstr(r->out.item[i].name, "mlp.experts.0.gate_proj.weight") : NULL;
        if (!at)
            continue;
        (void)snprintf(prefix, sizeof prefix, "%.*smlp.experts.", (int)(at - r->out.item[i].name), r->out.item[i].name);
        int64_t inner = r->out.item[i].shape[0], dim = r->out.item[i].shape[1], n = 0, one = inner * dim;
        do {
            n++;
            (void)snprintf(name, sizeof name, "%s%lld.gate_proj.weight", prefix, (long long)n);
        } while (item_find(r, name));
        (void)snprintf(name, sizeof name, "%sgate_up_proj", prefix);
        uint16_t *gate_up = relay_items_add(&r->out, name, NIB_ST_BF16, 3, (int64_t[3]){ n, 2 * inner, dim });
        (void)snprintf(name, sizeof name, "%sdown_proj", prefix);
        uint16_t *down = relay_items_add(&r->out, name, NIB_ST_BF16, 3, (int64_t[3]){ n, dim, inner });
        for (int64_t e = 0; e < n; e++) {
            item_take(r, prefix, e, "gate_proj", gate_up + 2 * e * one);
            item_take(r, prefix, e, "up_proj", gate_up + (2 * e + 1) * one);
            item_take(r, prefix, e, "down_proj", down + e * one);
        }
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < r->out.n; i++) {
        if (r->out.item[i].name)
            r->out.item[kept++] = r->out.item[i];
    }
    r->out.n = kept;
}

/* Wide elements first: then every tensor is aligned for its type. */
static int item_compare(const void *a, const void *b)
{
    const struct relay_item *x = a, *y = b;
    int32_t wx = nib_st_dtype_bytes(x->dtype), wy = nib_st_dtype_bytes(y->dtype);
    return wx != wy ? (wx > wy ? -1 : 1) : strcmp(x->name, y->name);
}

/* Files that the writer makes of this limit; it fills them in order. */
static int64_t count_shards(const struct relay_items *l, uint64_t limit)
{
    int64_t n = 1;
    uint64_t used = 0;
    for (int64_t i = 0; i < l->n; i++) {
        if (used > 0 && used + l->item[i].bytes > limit) {
            n++;
            used = 0;
        }
        used += l->item[i].bytes;
    }
    return n;
}

static enum nib_status write_items(struct relay *r, const char *dst)
{
    struct relay_items *l = &r->out;
    uint64_t limit = 0;
    qsort(l->item, (size_t)l->n, sizeof *l->item, item_compare);
    if (r->kind->n_shards > 0) {
        for (int64_t i = 0; i < l->n; i++)
            limit += l->item[i].bytes;
        limit /= (uint64_t)r->kind->n_shards;
        while (count_shards(l, limit) > r->kind->n_shards)
            limit += limit / 256 + 1;
    }
    struct nib_writer_tensor *t = relay_alloc((size_t)l->n * sizeof *t);
    for (int64_t i = 0; i < l->n; i++) {
        t[i] = (struct nib_writer_tensor){ .name = l->item[i].name,
                                           .dtype = l->item[i].dtype,
                                           .n_dims = l->item[i].n_dims };
        memcpy(t[i].shape, l->item[i].shape, sizeof t[i].shape);
    }
    struct nib_writer *w;
    enum nib_status status = nib_writer_open(dst, t, l->n, limit, &w, r->err);
    for (int64_t i = 0; i < l->n && status == NIB_OK; i++)
        status = nib_writer_append(w, l->item[i].data, (size_t)l->item[i].bytes, r->err);
    if (status == NIB_OK)
        status = nib_writer_finish(w, r->err);
    nib_writer_close(w);
    free(t);
    return status;
}

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

/* What producers of these layouts write; all of it is informative, since tensors decide. */
static enum nib_status write_config(struct relay *r, const char *src, const char *dst)
{
    const struct kind *k = r->kind;
    json_t *root;
    char *path = nib_path_join(src, "config.json");
    enum nib_status status = nib_json_file_read(path, 1 << 24, &root, r->err);
    free(path);
    NIB_TRY(status);
    if (k->drop_mtp)
        (void)json_object_set_new(root, "num_nextn_predict_layers", json_integer(0));
    if (k->experts == BF16) {
        (void)json_object_del(root, "quantization_config");
        (void)json_object_del(root, "expert_dtype");
    } else if (k->experts == FP8) {
        (void)json_object_set_new(root, "expert_dtype", json_string("fp8"));
    } else if (k->experts == NVFP4) {
        (void)json_object_set_new(root, "expert_dtype", json_string("nvfp4"));
        (void)json_object_set_new(json_object_get(root, "quantization_config"), "moe_quant_algo", json_string("NVFP4"));
        json_t *layers = json_object();
        for (int64_t i = 0; i < json_integer_value(json_object_get(root, "num_hidden_layers")); i++) {
            char name[64];
            (void)snprintf(name, sizeof name, "layers.%lld.ffn.experts", (long long)i);
            (void)json_object_set_new(layers, name, json_pack("{s:s, s:i}", "quant_algo", "NVFP4", "group_size", 16));
        }
        json_t *quant = json_pack("{s:{s:s, s:s}, s:{s:s, s:n, s:i, s:o, s:[s,s,s,s,s,s,s,s,s,s,s,s,s,s]}}", "producer",
                                  "name", "modelopt", "version", "0.0", "quantization", "quant_algo", "MIXED_PRECISION",
                                  "kv_cache_quant_algo", "group_size", 16, "quantized_layers", layers,
                                  "exclude_modules", "*.attn.*", "*.attn_norm.*", "*.ffn.shared_experts.*",
                                  "*.ffn.gate.*", "*.ffn_norm.*", "embed.weight", "head.weight", "*.hc_*", "*.h_proj.*",
                                  "*.e_proj.*", "*.enorm.*", "*.hnorm.*", "mtp.*.norm.*", "norm.weight");
        status = write_json(dst, "hf_quant_config.json", quant, r->err);
        json_decref(quant);
    }
    if (status == NIB_OK)
        status = write_json(dst, "config.json", root, r->err);
    json_decref(root);
    return status;
}

/* Tokenizer and other small files, as they are. */
static enum nib_status copy_files(struct relay *r, const char *src, const char *dst)
{
    DIR *d = opendir(src);
    enum nib_status status = NIB_OK;
    if (!d)
        return nib_error_set(r->err, NIB_E_IO, "cannot open '%s': %s", src, strerror(errno));
    for (struct dirent *e; status == NIB_OK && (e = readdir(d)) != NULL;) {
        struct stat st;
        char *data = NULL, *path = nib_path_join(src, e->d_name);
        size_t n;
        bool wanted = stat(path, &st) == 0 && S_ISREG(st.st_mode) && !strstr(e->d_name, ".safetensors") &&
                      strcmp(e->d_name, "config.json") != 0 && strcmp(e->d_name, "hf_quant_config.json") != 0;
        if (wanted)
            status = nib_file_read(path, 1u << 30, &data, &n, r->err);
        if (wanted && status == NIB_OK)
            status = write_file(dst, e->d_name, data, n, r->err);
        free(data);
        free(path);
    }
    (void)closedir(d);
    return status;
}

enum nib_status relay_checkpoint(const char *kind, const char *src, const char *dst, struct nib_error *err)
{
    struct relay r = { .err = err };
    for (int i = 0; i < N_KINDS; i++) {
        if (strcmp(kinds[i].name, kind) == 0)
            r.kind = &kinds[i];
    }
    if (!r.kind)
        return nib_error_set(err, NIB_E_ARGUMENT, "unknown kind '%s'", kind);
    if (mkdir(dst, 0777) != 0 && errno != EEXIST)
        return nib_error_set(err, NIB_E_IO, "cannot create '%s': %s", dst, strerror(errno));
    struct nib_checkpoint *c;
    NIB_TRY(nib_checkpoint_open(src, &c, err));
    r.c = c;
    enum nib_status status = walk(&r);
    if (status == NIB_OK && r.kind->stack)
        stack_experts(&r);
    if (status == NIB_OK)
        status = write_items(&r, dst);
    relay_items_free(&r.out);
    nib_checkpoint_close(c);
    if (status == NIB_OK)
        status = write_config(&r, src, dst);
    if (status == NIB_OK)
        status = copy_files(&r, src, dst);
    return status;
}
