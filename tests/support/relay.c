/* The kinds of layout as a table, and the walk over a checkpoint that applies one. */
#include "support/relay.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/checkpoint.h"
#include "support/relay_kind.h"
#include "support/relay_names.h"
#include "support/relay_values.h"

static const struct relay_kind kinds[] = {
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
    { .name = "mtp-mxfp4", .text = "experts as NVFP4, those of the MTP block as they are", .experts = NVFP4, .mtp_experts = AS_STORED },
    { .name = "mtp-nvfp4", .text = "experts of the MTP block as NVFP4, no others", .mtp_experts = NVFP4 },
    { .name = "mixed", .text = "experts in another format in each layer, w2 in another than w1 and w3", .experts = BY_LAYER },
    { .name = "ct-nvfp4",
      .text = "compressed-tensors: experts as weight_packed, FP8 scales as F32",
      .experts = NVFP4,
      .compressed = true,
      .scale_suffix = ".weight_scale",
      .scale_dtype = "F32" },
    { .name = "ct-nvfp4-hf",
      .text = "the same with HF names, FP8 scales as BF16, MTP block as BF16",
      .experts = NVFP4,
      .mtp = BF16,
      .hf_names = true,
      .compressed = true,
      .scale_suffix = ".weight_scale",
      .scale_dtype = "BF16" },
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
    const struct relay_kind *kind;
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

/* Companions in compressed-tensors' spelling: other suffixes, and global scales as divisors. */
static void to_compressed(struct relay_item *it, char *name, size_t n)
{
    static const char *const suffixes[][2] = { { ".weight_scale_2", ".weight_global_scale" },
                                               { ".input_scale", ".input_global_scale" },
                                               { ".weight", ".weight_packed" } };
    for (size_t i = 0; i < 3; i++) {
        if (!ends_with(it->name, suffixes[i][0]))
            continue;
        (void)snprintf(name, n, "%.*s%s", (int)(strlen(it->name) - strlen(suffixes[i][0])), it->name, suffixes[i][1]);
        if (i < 2) {
            float g;
            memcpy(&g, it->data, sizeof g);
            g = 1 / g;
            memcpy(it->data, &g, sizeof g);
            it->n_dims = 1;
            it->shape[0] = 1;
        }
        return;
    }
}

/* Give the tensors from `first` on, which have official names, the names that the kind wants. */
static enum nib_status rename_items(struct relay *r, int64_t first)
{
    for (int64_t i = first; i < r->out.n; i++) {
        struct relay_item *it = &r->out.item[i];
        char name[512], renamed[512];
        (void)snprintf(name, sizeof name, "%s", it->name);
        if (r->kind->compressed)
            to_compressed(it, name, sizeof name);
        NIB_TRY(output_name(r, name, renamed, sizeof renamed));
        free(it->name);
        it->name = relay_alloc(strlen(renamed) + 1);
        memcpy(it->name, renamed, strlen(renamed) + 1);
    }
    return NIB_OK;
}

/* The exponents of an FP8 linear as numbers. */
static enum nib_status copy_scale(struct relay *r, const struct nib_tensor_entry *e, const char *name)
{
    char renamed[512];
    enum nib_st_dtype dtype = NIB_ST_F32;
    NIB_TRY(output_name(r, name, renamed, sizeof renamed));
    (void)nib_st_dtype_find(r->kind->scale_dtype, &dtype);
    const size_t item = (size_t)nib_st_dtype_bytes(dtype);
    unsigned char *data = relay_items_add(&r->out, renamed, dtype, e->n_dims, e->shape);
    for (uint64_t i = 0; i < e->bytes; i++) {
        const float v = ldexpf(1, ((const uint8_t *)e->data)[i] - 127);
        memcpy(data + i * item, (const unsigned char *)&v + sizeof v - item, item); /* the high half is a bf16 */
    }
    return NIB_OK;
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
    const int64_t first = r->out.n;
    NIB_TRY(relay_mxfp4_to_nvfp4(w, k_max, base, &r->out, r->err));
    return rename_items(r, first);
}

static enum relay_form form_of(const struct relay_kind *k, const char *base)
{
    static const enum relay_form by_layer[] = { NVFP4, KEEP, FP8, BF16 };
    int layer = 5; /* the MTP block's, say */
    enum relay_form form = is_expert(base) ? k->experts : k->dense;
    if (is_mtp(base) && k->mtp != KEEP)
        form = k->mtp;
    if (is_mtp(base) && is_expert(base) && k->mtp_experts != KEEP)
        form = k->mtp_experts;
    if (k->bf16_wo_a && ends_with(base, ".wo_a"))
        form = BF16;
    if (form == BY_LAYER) {
        (void)sscanf(base, "layers.%d.", &layer);
        form = by_layer[(layer + ends_with(base, ".w2")) % 4];
    }
    return form;
}

/* BASE.weight and its scales, in the form that the kind wants. */
static enum nib_status convert(struct relay *r, const char *base)
{
    const struct relay_kind *k = r->kind;
    struct relay_linear w;
    char name[512];
    (void)relay_linear_find(r->c, base, &w);
    enum relay_form form = form_of(k, base);
    if (w.format == RELAY_PLAIN)
        form = KEEP;
    if ((form == NVFP4 || form == FP8) && w.format != RELAY_MXFP4)
        return nib_error_set(r->err, NIB_E_FORMAT, "'%s' is not MXFP4: no exact conversion is known", base);
    switch (form) {
    case BF16: return write_bf16(r, &w);
    case NVFP4: return write_nvfp4(r, &w, base);
    case FP8: return relay_mxfp4_to_fp8(&w, base, &r->out, r->err);
    case KEEP:
    case AS_STORED:
    case BY_LAYER: break;
    }
    NIB_TRY(copy_entry(r, w.weight, w.weight->name));
    if (!w.scale)
        return NIB_OK;
    (void)snprintf(name, sizeof name, "%s%s", base, k->scale_suffix ? k->scale_suffix : w.scale->name + strlen(base));
    return w.format == RELAY_FP8 && k->scale_dtype ? copy_scale(r, w.scale, name) : copy_entry(r, w.scale, name);
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
        status = relay_items_write(&r.out, dst, r.kind->n_shards, err);
    relay_items_free(&r.out);
    nib_checkpoint_close(c);
    if (status == NIB_OK)
        status = relay_write_config(r.kind, src, dst, err);
    if (status == NIB_OK)
        status = relay_copy_files(src, dst, err);
    return status;
}
