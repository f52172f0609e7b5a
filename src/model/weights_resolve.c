/* From tensor names to sources: which tensors make up a field, and in which format. Headers only; no data is read.
 *
 * A linear's format is decided by its own tensors, never by the config: dtype, the suffixes that exist, and the scales' column
 * count (one-byte dtypes alone cannot tell E4M3 from UE8M0 or codes from values). */
#include "model/weights_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct resolver {
    const struct nib_checkpoint *ck;
    const struct nib_config     *c;
    struct nib_sources          *out;
    struct nib_error            *err;
    bool                         hf;
    const char                  *mtp_prefix;
    int32_t                      capacity;
};

static const char *shape_text(const int64_t *shape, int32_t n, char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = '\0';
    for (int32_t i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(buf + used, size - used, "%s%" PRId64, i ? ", " : "[", shape[i]);
    if (used < size)
        (void)snprintf(buf + used, size - used, n ? "]" : "[]");
    return buf;
}

static enum nib_status want_shape(struct resolver *r, const struct nib_tensor_entry *e, int64_t rows, int64_t cols)
{
    if (e->n_dims == 2 && e->shape[0] == rows && e->shape[1] == cols)
        return NIB_OK;
    char found[96];
    return nib_error_set(r->err, NIB_E_FORMAT,
                         "%s: tensor '%s' has shape %s, wanted [%" PRId64 ", %" PRId64 "] by config.json", e->file, e->name,
                         shape_text(e->shape, e->n_dims, found, sizeof found), rows, cols);
}

static const struct nib_tensor_entry *find(struct resolver *r, const char *base, const char *suffix)
{
    char name[512];
    const int n = snprintf(name, sizeof name, "%s%s", base, suffix);
    if (n < 0 || (size_t)n >= sizeof name)
        return NULL;
    return nib_checkpoint_find(r->ck, name);
}

static const char *const k_scale_suffixes[] = {".weight_scale", ".scale", ".weight_scale_inv"};

static const struct nib_tensor_entry *find_scales(struct resolver *r, const char *base)
{
    for (size_t i = 0; i < sizeof k_scale_suffixes / sizeof k_scale_suffixes[0]; i++) {
        const struct nib_tensor_entry *e = find(r, base, k_scale_suffixes[i]);
        if (e)
            return e;
    }
    return NULL;
}

static enum nib_status no_scales(struct resolver *r, const struct nib_tensor_entry *w, const char *base)
{
    return nib_error_set(r->err, NIB_E_FORMAT,
                         "%s: tensor '%s' is %s but has no scales: none of '%s.weight_scale', '.scale', '.weight_scale_inv' exists",
                         w->file, w->name, nib_st_dtype_name(w->dtype), base);
}

static enum nib_status wrong_dtype(struct resolver *r, const struct nib_tensor_entry *e, const char *wanted)
{
    return nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: tensor '%s' has dtype %s, wanted %s", e->file, e->name,
                         nib_st_dtype_name(e->dtype), wanted);
}

static enum nib_status read_global(struct resolver *r, const struct nib_tensor_entry *w, const char *base, float *out)
{
    const struct nib_tensor_entry *g = find(r, base, ".weight_scale_2");
    if (!g)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: NVFP4 tensor '%s' has no '%s.weight_scale_2'", w->file, w->name, base);
    if (g->dtype != NIB_ST_F32)
        return wrong_dtype(r, g, "F32");
    if (g->bytes != sizeof *out)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: tensor '%s' holds %" PRIu64 " bytes, wanted one F32 value", g->file,
                             g->name, g->bytes);
    memcpy(out, g->data, sizeof *out);
    if (!(*out > 0.0f) || *out > 3.4e38f)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: tensor '%s' is %g, wanted a finite global scale above 0", g->file,
                             g->name, (double)*out);
    r->out->n_tensors_used++;
    return NIB_OK;
}

/* Two codes a byte: NVFP4 or MXFP4, told apart by how many scale columns there are. */
static enum nib_status resolve_fp4(struct resolver *r, const struct nib_tensor_entry *w, const char *base, int64_t rows,
                                   int64_t cols, enum nib_weight_type *type, struct nib_weight_part *part, uint64_t *bytes)
{
    const struct nib_tensor_entry *s = find_scales(r, base);
    if (!s)
        return no_scales(r, w, base);
    if (cols % 16 != 0)
        return nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: tensor '%s' has %" PRId64 " input channels, FP4 wants a multiple of 16",
                             w->file, w->name, cols);
    NIB_TRY(want_shape(r, w, rows, cols / 2));
    if (s->n_dims == 2 && s->shape[1] == cols / 16) {
        if (s->dtype != NIB_ST_F8_E4M3 && s->dtype != NIB_ST_U8)
            return wrong_dtype(r, s, "F8_E4M3 (NVFP4 block scales)");
        *type = NIB_WEIGHT_NVFP4;
        NIB_TRY(want_shape(r, s, rows, cols / 16));
        NIB_TRY(read_global(r, w, base, &part->global_scale));
        *bytes += sizeof part->global_scale;
    } else {
        if (s->dtype != NIB_ST_F8_E8M0 && s->dtype != NIB_ST_U8)
            return wrong_dtype(r, s, "F8_E8M0 (MXFP4 block scales) or F8_E4M3 with a column for each 16 channels (NVFP4)");
        if (cols % 32 != 0)
            return nib_error_set(r->err, NIB_E_UNSUPPORTED,
                                 "%s: tensor '%s' has %" PRId64 " input channels, MXFP4 wants a multiple of 32", w->file, w->name, cols);
        *type = NIB_WEIGHT_MXFP4;
        NIB_TRY(want_shape(r, s, rows, cols / 32));
    }
    part->scales = s->data;
    *bytes += s->bytes;
    r->out->n_tensors_used++;
    return NIB_OK;
}

static enum nib_status resolve_fp8(struct resolver *r, const struct nib_tensor_entry *w, const char *base, int64_t rows,
                                   int64_t cols, struct nib_weight_part *part, uint64_t *bytes)
{
    const struct nib_tensor_entry *s = find_scales(r, base);
    if (!s)
        return no_scales(r, w, base);
    if (s->dtype != NIB_ST_F8_E8M0 && s->dtype != NIB_ST_U8)
        return wrong_dtype(r, s, "F8_E8M0 (128x128 block scales)");
    NIB_TRY(want_shape(r, w, rows, cols));
    NIB_TRY(want_shape(r, s, (rows + 127) / 128, (cols + 127) / 128));
    part->scales = s->data;
    *bytes += s->bytes;
    r->out->n_tensors_used++;
    return NIB_OK;
}

/* One matrix by its base name (without ".weight"). */
static enum nib_status resolve_matrix(struct resolver *r, const char *base, int64_t rows, int64_t cols,
                                      const struct nib_tensor_entry **entry, enum nib_weight_type *type,
                                      struct nib_weight_part *part, uint64_t *bytes)
{
    const struct nib_tensor_entry *w = find(r, base, ".weight");
    if (!w)
        return nib_error_set(r->err, NIB_E_FORMAT, "tensor '%s.weight' is missing", base);
    *entry = w;
    part->data = w->data;
    part->scales = NULL;
    part->global_scale = 1.0f;
    *bytes += w->bytes;
    r->out->n_tensors_used++;
    switch (w->dtype) {
    case NIB_ST_U8:
    case NIB_ST_I8: return resolve_fp4(r, w, base, rows, cols, type, part, bytes);
    case NIB_ST_F8_E4M3: *type = NIB_WEIGHT_FP8; return resolve_fp8(r, w, base, rows, cols, part, bytes);
    case NIB_ST_BF16: *type = NIB_WEIGHT_BF16; break;
    case NIB_ST_F32: *type = NIB_WEIGHT_F32; break;
    default: return wrong_dtype(r, w, "BF16, F32, F8_E4M3, or U8/I8 (FP4 codes)");
    }
    const struct nib_tensor_entry *stray = find_scales(r, base);
    if (stray)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: tensor '%s' is %s, which takes no scales, but '%s' exists", w->file, w->name,
                             nib_st_dtype_name(w->dtype), stray->name);
    return want_shape(r, w, rows, cols);
}

/* "<prefix><pattern>", with %d replaced by the expert; the alternative-th of the pattern's '|' parts. False: no such part. */
static bool field_name(struct resolver *r, const char *prefix, const char *pattern, int32_t alternative, int32_t expert,
                       char *buf, size_t size)
{
    (void)r;
    while (alternative-- > 0) {
        pattern = strchr(pattern, '|');
        if (!pattern)
            return false;
        pattern++;
    }
    size_t n = (size_t)snprintf(buf, size, "%s", prefix);
    for (; *pattern && *pattern != '|' && n + 12 < size; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'd') {
            n += (size_t)snprintf(buf + n, size - n, "%" PRId32, expert);
            pattern++;
        } else {
            buf[n++] = *pattern;
        }
    }
    buf[n < size ? n : size - 1] = '\0';
    return true;
}

static enum nib_status no_memory(struct resolver *r)
{
    return nib_error_set(r->err, NIB_E_MEMORY, "no memory for the table of tensors");
}

static enum nib_status new_source(struct resolver *r, const struct nib_field *f, int32_t layer, int32_t ratio, int32_t n_stack,
                                  struct nib_source **out)
{
    if (r->out->n == r->capacity)
        return nib_error_set(r->err, NIB_E_LIMIT, "more weights than planned");
    struct nib_source *s = &r->out->source[r->out->n++];
    s->field = f;
    s->layer = layer;
    s->n_stack = n_stack;
    s->n_out = nib_dim_value(r->c, f->rows, ratio);
    s->n_in = nib_dim_value(r->c, f->cols, ratio);
    if (f->kind == NIB_FIELD_LINEAR || f->kind == NIB_FIELD_EXPERTS) {
        s->part = nib_arena_array(&r->out->arena, (size_t)n_stack, sizeof *s->part);
        s->part_name = nib_arena_array(&r->out->arena, (size_t)n_stack, sizeof *s->part_name);
        if (!s->part || !s->part_name)
            return no_memory(r);
    }
    *out = s;
    return NIB_OK;
}

static enum nib_status resolve_linear(struct resolver *r, const struct nib_field *f, const char *prefix, struct nib_source *s)
{
    char base[400], first[400];
    const char *pattern = r->hf ? f->hf : f->official;
    (void)field_name(r, prefix, pattern, 0, 0, first, sizeof first);
    for (int32_t i = 0; field_name(r, prefix, pattern, i, 0, base, sizeof base); i++) {
        if (!find(r, base, ".weight"))
            continue;
        NIB_TRY(resolve_matrix(r, base, s->n_out, s->n_in, &s->entry, &s->type, &s->part[0], &s->bytes));
        s->name = s->part_name[0] = s->entry->name;
        return NIB_OK;
    }
    return nib_error_set(r->err, NIB_E_FORMAT, "tensor '%s.weight' is missing", first);
}

/* [E, parts * n_out, n_in] in one plain tensor. */
static enum nib_status resolve_stacked(struct resolver *r, const struct nib_field *f, const struct nib_tensor_entry *e,
                                       struct nib_source *s)
{
    if (e->dtype != NIB_ST_BF16 && e->dtype != NIB_ST_F32)
        return wrong_dtype(r, e, "BF16 or F32 (stacked experts)");
    const int64_t rows = (int64_t)f->stacked_parts * s->n_out;
    if (e->n_dims != 3 || e->shape[0] != s->n_stack || e->shape[1] != rows || e->shape[2] != s->n_in) {
        char found[96];
        return nib_error_set(r->err, NIB_E_FORMAT,
                             "%s: tensor '%s' has shape %s, wanted [%" PRId32 ", %" PRId64 ", %" PRId32 "] by config.json", e->file,
                             e->name, shape_text(e->shape, e->n_dims, found, sizeof found), s->n_stack, rows, s->n_in);
    }
    s->type = e->dtype == NIB_ST_BF16 ? NIB_WEIGHT_BF16 : NIB_WEIGHT_F32;
    s->entry = e;
    s->name = e->name;
    const size_t item = (size_t)nib_st_dtype_bytes(e->dtype);
    const size_t matrix = (size_t)s->n_out * (size_t)s->n_in * item;
    for (int32_t i = 0; i < s->n_stack; i++) {
        s->part[i].data = (const unsigned char *)e->data + ((size_t)i * (size_t)f->stacked_parts + (size_t)f->stacked_part) * matrix;
        s->part[i].global_scale = 1.0f;
        s->part_name[i] = e->name;
    }
    s->bytes = (uint64_t)s->n_stack * matrix;
    if (f->stacked_part == 0)
        r->out->n_tensors_used++;
    return NIB_OK;
}

static enum nib_status resolve_experts(struct resolver *r, const struct nib_field *f, const char *prefix, struct nib_source *s)
{
    char base[400];
    if (r->hf) {
        const struct nib_tensor_entry *e = find(r, prefix, f->hf_stacked);
        if (e)
            return resolve_stacked(r, f, e, s);
    }
    for (int32_t i = 0; i < s->n_stack; i++) {
        const struct nib_tensor_entry *entry = NULL;
        enum nib_weight_type type = NIB_WEIGHT_F32;
        (void)field_name(r, prefix, r->hf ? f->hf : f->official, 0, i, base, sizeof base);
        NIB_TRY(resolve_matrix(r, base, s->n_out, s->n_in, &entry, &type, &s->part[i], &s->bytes));
        s->part_name[i] = entry->name;
        if (i == 0) {
            s->type = type;
            s->entry = entry;
            s->name = entry->name;
        } else if (type != s->type) {
            return nib_error_set(r->err, NIB_E_UNSUPPORTED,
                                 "%s: tensor '%s' is in another format than '%s'; the experts of a layer must share one", entry->file,
                                 entry->name, s->name);
        }
    }
    return NIB_OK;
}

static enum nib_status resolve_vector(struct resolver *r, const struct nib_field *f, const char *prefix, struct nib_source *s)
{
    char name[400];
    (void)field_name(r, prefix, r->hf ? f->hf : f->official, 0, 0, name, sizeof name);
    const struct nib_tensor_entry *e = nib_checkpoint_find(r->ck, name);
    if (!e)
        return nib_error_set(r->err, NIB_E_FORMAT, "tensor '%s' is missing", name);
    s->entry = e;
    s->name = e->name;
    s->bytes = e->bytes;
    r->out->n_tensors_used++;
    if (f->kind == NIB_FIELD_IDS) {
        if (e->dtype != NIB_ST_I64 && e->dtype != NIB_ST_I32)
            return wrong_dtype(r, e, "I64 or I32");
    } else if (e->dtype != NIB_ST_F32 && e->dtype != NIB_ST_BF16) {
        return wrong_dtype(r, e, "F32 or BF16");
    }
    if (f->cols != NIB_DIM_1)
        return want_shape(r, e, s->n_out, s->n_in);
    if (e->n_dims == 1 && e->shape[0] == s->n_out)
        return NIB_OK;
    if (e->n_dims == 0 && s->n_out == 1)
        return NIB_OK;
    char found[96];
    return nib_error_set(r->err, NIB_E_FORMAT, "%s: tensor '%s' has shape %s, wanted [%" PRId32 "] by config.json", e->file, e->name,
                         shape_text(e->shape, e->n_dims, found, sizeof found), s->n_out);
}

static bool field_applies(const struct nib_field *f, int32_t ratio, bool hash)
{
    switch (f->when) {
    case NIB_WHEN_ALWAYS: return true;
    case NIB_WHEN_COMPRESSED: return ratio > 0;
    case NIB_WHEN_CSA: return ratio == 4;
    case NIB_WHEN_HASH: return hash;
    case NIB_WHEN_SCORED: return !hash;
    }
    return false;
}

static enum nib_status resolve_field(struct resolver *r, const struct nib_field *f, const char *prefix, int32_t layer, int32_t ratio)
{
    struct nib_source *s = NULL;
    NIB_TRY(new_source(r, f, layer, ratio, f->kind == NIB_FIELD_EXPERTS ? r->c->n_experts : 1, &s));
    switch (f->kind) {
    case NIB_FIELD_LINEAR: return resolve_linear(r, f, prefix, s);
    case NIB_FIELD_EXPERTS: return resolve_experts(r, f, prefix, s);
    case NIB_FIELD_VECTOR:
    case NIB_FIELD_IDS: return resolve_vector(r, f, prefix, s);
    }
    return NIB_E_ARGUMENT;
}

/* All fields of a scope; for a layer, those that its kind has. */
static enum nib_status resolve_scope(struct resolver *r, enum nib_field_scope scope, const char *prefix, int32_t layer)
{
    const int32_t ratio = layer >= 0 ? r->c->ratio[layer] : 0;
    const bool hash = layer >= 0 && layer < r->c->n_hash_layers;
    for (int32_t i = 0; i < nib_n_fields; i++)
        if (nib_fields[i].scope == scope && field_applies(&nib_fields[i], ratio, hash))
            NIB_TRY(resolve_field(r, &nib_fields[i], prefix, layer, ratio));
    return NIB_OK;
}

static enum nib_status detect_layout(struct resolver *r)
{
    if (nib_checkpoint_find(r->ck, "embed.weight")) {
        r->hf = false;
    } else if (nib_checkpoint_find(r->ck, "model.embed_tokens.weight")) {
        r->hf = true;
    } else {
        return nib_error_set(r->err, NIB_E_FORMAT,
                             "neither 'embed.weight' (official names) nor 'model.embed_tokens.weight' (Hugging Face names) exists: "
                             "not a DeepSeek-V4 checkpoint");
    }
    r->out->layout = r->hf ? "hf" : "official";

    /* The MTP block is present if anything of it is: half a block is refused by the field that is missing. A copy of the
     * embedding or head under its prefix does not count. */
    const int64_t n = nib_checkpoint_n_tensors(r->ck);
    for (int64_t i = 0; i < n && !r->mtp_prefix; i++) {
        const char *name = nib_checkpoint_at(r->ck, i)->name;
        const char *rest = NULL;
        if (strncmp(name, "mtp.0.", 6) == 0)
            rest = name + 6;
        else if (r->hf && strncmp(name, "model.mtp.0.", 12) == 0)
            rest = name + 12;
        if (rest && !strstr(rest, "emb") && !strstr(rest, "head.weight"))
            r->mtp_prefix = rest == name + 6 ? "mtp.0." : "model.mtp.0.";
    }
    r->out->has_mtp = r->mtp_prefix && r->c->n_mtp_layers > 0;
    return NIB_OK;
}

static enum nib_status resolve_all(struct resolver *r)
{
    char prefix[64];
    r->capacity = nib_n_fields * (r->c->n_layers + 2);
    r->out->source = nib_arena_array(&r->out->arena, (size_t)r->capacity, sizeof *r->out->source);
    if (!r->out->source)
        return no_memory(r);
    NIB_TRY(detect_layout(r));
    NIB_TRY(resolve_scope(r, NIB_SCOPE_GLOBAL, "", -1));
    for (int32_t l = 0; l < r->c->n_layers; l++) {
        (void)snprintf(prefix, sizeof prefix, "%slayers.%" PRId32 ".", r->hf ? "model." : "", l);
        NIB_TRY(resolve_scope(r, NIB_SCOPE_LAYER, prefix, l));
    }
    if (r->out->has_mtp) {
        NIB_TRY(resolve_scope(r, NIB_SCOPE_LAYER, r->mtp_prefix, r->c->n_layers));
        NIB_TRY(resolve_scope(r, NIB_SCOPE_MTP, r->mtp_prefix, r->c->n_layers));
    }
    return NIB_OK;
}

enum nib_status nib_sources_resolve(const struct nib_checkpoint *ck, const struct nib_config *c, struct nib_sources *out,
                                    struct nib_error *err)
{
    memset(out, 0, sizeof *out);
    nib_arena_init(&out->arena);
    struct resolver r = {.ck = ck, .c = c, .out = out, .err = err};
    const enum nib_status status = resolve_all(&r);
    if (status != NIB_OK)
        nib_sources_deinit(out);
    return status;
}

void nib_sources_deinit(struct nib_sources *s)
{
    nib_arena_deinit(&s->arena);
    memset(s, 0, sizeof *s);
}

enum nib_field_kind nib_source_kind(const struct nib_source *s)
{
    return s->field->kind;
}

const char *nib_source_family(const struct nib_source *s)
{
    return s->field->family;
}

const char *nib_source_format(const struct nib_source *s)
{
    if (s->field->kind == NIB_FIELD_IDS)
        return s->entry->dtype == NIB_ST_I64 ? "i64" : "i32";
    if (s->field->kind == NIB_FIELD_VECTOR)
        return s->entry->dtype == NIB_ST_F32 ? "f32" : "bf16";
    switch (s->type) {
    case NIB_WEIGHT_F32: return "f32";
    case NIB_WEIGHT_BF16: return "bf16";
    case NIB_WEIGHT_FP8: return "fp8";
    case NIB_WEIGHT_MXFP4: return "mxfp4";
    case NIB_WEIGHT_NVFP4: return "nvfp4";
    }
    return "?";
}
