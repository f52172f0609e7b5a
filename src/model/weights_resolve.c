/* From tensor names to sources: which tensors make up a field. Formats of single matrices are weights_formats.c's. */
#include "model/weights_formats.h"
#include "model/weights_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct resolver {
    const struct nib_checkpoint *ck;
    const struct nib_config     *c;
    struct nib_sources          *out;
    struct nib_error            *err;
    struct nib_matrix_reader     matrix;
    bool                         hf;
    const char                  *mtp_prefix;
    int32_t                      capacity;
};

/* "<prefix><pattern>", with %d replaced by the expert; the alternative-th of the pattern's '|' parts. False: no such
 * part. */
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

static enum nib_status new_source(struct resolver *r, const struct nib_field *f, int32_t layer, int32_t ratio,
                                  int32_t n_stack, struct nib_source **out)
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
        if (!nib_matrix_exists(&r->matrix, base))
            continue;
        struct nib_matrix m;
        NIB_TRY(nib_matrix_resolve(&r->matrix, base, s->n_out, s->n_in, &m));
        s->entry = m.entry;
        s->type = m.type;
        s->part[0] = m.part;
        s->bytes = m.bytes;
        s->name = s->part_name[0] = m.entry->name;
        return NIB_OK;
    }
    return nib_error_set(r->err, NIB_E_FORMAT, "tensor '%s.weight' is missing", first);
}

/* [E, parts * n_out, n_in] in one plain tensor. */
static enum nib_status resolve_stacked(struct resolver *r, const struct nib_field *f, const struct nib_tensor_entry *e,
                                       struct nib_source *s)
{
    if (e->dtype != NIB_ST_BF16 && e->dtype != NIB_ST_F32)
        return nib_wrong_dtype(e, "BF16 or F32 (stacked experts)", r->err);
    const int64_t rows = (int64_t)f->stacked_parts * s->n_out;
    if (e->n_dims != 3 || e->shape[0] != s->n_stack || e->shape[1] != rows || e->shape[2] != s->n_in) {
        char found[96];
        return nib_error_set(r->err, NIB_E_FORMAT,
                             "%s: tensor '%s' has shape %s, wanted [%" PRId32 ", %" PRId64 ", %" PRId32 "] by config.json", e->file,
                             e->name, nib_shape_text(e, found, sizeof found), s->n_stack, rows, s->n_in);
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
        (void)snprintf(base, sizeof base, "%s%s", prefix, f->hf_stacked);
        const struct nib_tensor_entry *e = nib_checkpoint_find(r->ck, base);
        if (e)
            return resolve_stacked(r, f, e, s);
    }
    for (int32_t i = 0; i < s->n_stack; i++) {
        struct nib_matrix m;
        (void)field_name(r, prefix, r->hf ? f->hf : f->official, 0, i, base, sizeof base);
        NIB_TRY(nib_matrix_resolve(&r->matrix, base, s->n_out, s->n_in, &m));
        s->part[i] = m.part;
        s->part_name[i] = m.entry->name;
        s->bytes += m.bytes;
        if (i == 0) {
            s->type = m.type;
            s->entry = m.entry;
            s->name = m.entry->name;
        } else if (m.type != s->type) {
            return nib_error_set(r->err, NIB_E_UNSUPPORTED,
                                 "%s: tensor '%s' is in another format than '%s'; the experts of a layer must share one", m.entry->file,
                                 m.entry->name, s->name);
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
            return nib_wrong_dtype(e, "I64 or I32", r->err);
    } else if (e->dtype != NIB_ST_F32 && e->dtype != NIB_ST_BF16) {
        return nib_wrong_dtype(e, "F32 or BF16", r->err);
    }
    if (f->cols != NIB_DIM_1)
        return nib_want_shape(e, s->n_out, s->n_in, r->err);
    if (e->n_dims == 1 && e->shape[0] == s->n_out)
        return NIB_OK;
    if (e->n_dims == 0 && s->n_out == 1)
        return NIB_OK;
    char found[96];
    return nib_error_set(r->err, NIB_E_FORMAT, "%s: tensor '%s' has shape %s, wanted [%" PRId32 "] by config.json",
                         e->file, e->name, nib_shape_text(e, found, sizeof found), s->n_out);
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
        if (nib_fields[i].scope == scope && nib_field_applies(&nib_fields[i], ratio, hash))
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

    /* The MTP block is present if anything of it is: half a block is refused by the field that is missing. A copy of
     * the embedding or head under its prefix does not count. */
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

enum nib_status nib_sources_resolve(const struct nib_checkpoint *ck, const struct nib_config *c,
                                    struct nib_sources *out, struct nib_error *err)
{
    memset(out, 0, sizeof *out);
    nib_arena_init(&out->arena);
    struct resolver r = {.ck = ck, .c = c, .out = out, .err = err, .matrix = {.ck = ck, .arena = &out->arena, .err = err}};
    const enum nib_status status = resolve_all(&r);
    out->n_tensors_used += r.matrix.n_tensors_used;
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
