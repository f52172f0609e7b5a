/* From headers to a plan: what becomes of every tensor, in which order, in which shard. */
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quantize/layout_quant.h"

const char *nib_quant_action_name(enum nib_quant_action a)
{
    static const char *const names[] = {"copy", "cast", "encode", "relay", "widen"};
    return names[a];
}

const char *nib_quant_type_name(enum nib_weight_type t)
{
    static const char *const names[] = {"f32", "bf16", "fp8", "mxfp4", "nvfp4"};
    return names[t];
}

const char *nib_quant_method_name(enum nib_quant_method m)
{
    static const char *const names[] = {"auto", "absmax", "4over6", "mse", "gptq"};
    return names[m];
}

const char *nib_quant_preset_name(enum nib_quant_preset s)
{
    static const char *const names[] = {"experts", "full", "full+head"};
    return names[s];
}

const char *nib_quant_family(const struct nib_quant_plan *p, const struct nib_quant_id *id)
{
    return !id->field ? "other" : id->layer == p->config.n_layers ? "mtp" : id->field->family;
}

static enum nib_status no_memory(struct nib_error *err)
{
    return nib_error_set(err, NIB_E_MEMORY, "no memory for the plan");
}

/* ---- Selection ---- */

struct globs {
    char   *text; /* copy, cut at commas */
    char  **pattern;
    bool   *used;
    int32_t n;
};

static enum nib_status globs_init(struct globs *g, struct nib_arena *arena, const char *list, struct nib_error *err)
{
    memset(g, 0, sizeof *g);
    if (!list)
        return NIB_OK;
    size_t n = 1;
    for (const char *c = list; *c; c++)
        n += *c == ',';
    g->text = nib_arena_printf(arena, "%s", list);
    g->pattern = nib_arena_array(arena, n, sizeof *g->pattern);
    g->used = nib_arena_array(arena, n, sizeof *g->used);
    if (!g->text || !g->pattern || !g->used)
        return no_memory(err);
    char *rest = NULL;
    for (char *t = strtok_r(g->text, ",", &rest); t; t = strtok_r(NULL, ",", &rest))
        g->pattern[g->n++] = t;
    return NIB_OK;
}

static bool globs_match(struct globs *g, const char *const *names, int n_names)
{
    bool any = false;
    for (int32_t i = 0; i < g->n; i++)
        for (int k = 0; k < n_names; k++)
            if (fnmatch(g->pattern[i], names[k], 0) == 0) {
                g->used[i] = true;
                any = true;
            }
    return any;
}

static enum nib_status globs_check(const struct globs *g, const char *option, struct nib_error *err)
{
    for (int32_t i = 0; i < g->n; i++)
        if (!g->used[i])
            return nib_error_set(err, NIB_E_ARGUMENT,
                                 "%s '%s' matches no matrix of the checkpoint (names are without \".weight\")", option,
                                 g->pattern[i]);
    return NIB_OK;
}

struct planner {
    struct nib_quant_plan *p;
    struct globs           include, exclude;
    struct nib_error      *err;
    int64_t                capacity;
};

/* Only these may be asked for; everything else is too small or too delicate. */
static bool may_quantise(const struct nib_field *f)
{
    return (f->kind == NIB_FIELD_LINEAR || f->kind == NIB_FIELD_EXPERTS) && strcmp(f->family, "embed") != 0 &&
           strcmp(f->family, "router") != 0;
}

static bool in_preset(enum nib_quant_preset preset, const struct nib_field *f)
{
    if (f->kind == NIB_FIELD_EXPERTS)
        return true;
    if (preset == NIB_QUANT_EXPERTS)
        return false;
    return f->quantised_input || (preset == NIB_QUANT_FULL_HEAD && strcmp(f->family, "head") == 0);
}

static enum nib_status select_matrix(struct planner *pl, const struct nib_quant_id *id, const char *base,
                                     bool *selected)
{
    char        official[400], hf[400];
    const char *names[3] = {base, official, hf};
    const struct nib_quant_plan *p = pl->p;
    const bool  named = nib_quant_name(id, p->config.n_layers, false, official, sizeof official) &&
                       nib_quant_name(id, p->config.n_layers, true, hf, sizeof hf);
    const bool included = globs_match(&pl->include, names, named ? 3 : 1);
    const bool excluded = globs_match(&pl->exclude, names, named ? 3 : 1);
    if (included && !may_quantise(id->field))
        return nib_error_set(
            pl->err, NIB_E_ARGUMENT,
            "--include matches '%s', which stays as it is: wanted a projection, not a router or embedding", base);
    *selected = may_quantise(id->field) && (in_preset(p->options->preset, id->field) || included) && !excluded;
    return NIB_OK;
}

/* ---- Units ---- */

static struct nib_quant_unit *new_unit(struct planner *pl, enum nib_quant_action action, const struct nib_quant_id *id,
                                       const char *base)
{
    struct nib_quant_plan *p = pl->p;
    if (p->n_units == pl->capacity) {
        const int64_t          grown = pl->capacity ? 2 * pl->capacity : 1024;
        struct nib_quant_unit *u = realloc(p->unit, (size_t)grown * sizeof *u);
        if (!u)
            return NULL;
        p->unit = u;
        pl->capacity = grown;
    }
    struct nib_quant_unit *u = &p->unit[p->n_units++];
    memset(u, 0, sizeof *u);
    u->action = action;
    u->id = *id;
    u->base = base;
    u->partner = -1;
    u->amax = -1;
    u->m.data.file = u->m.scales.file = u->m.global.file = u->m.input_scale.file = -1;
    return u;
}

static const char *out_base(struct planner *pl, const struct nib_quant_id *id, const char *base)
{
    char name[400];
    const struct nib_quant_plan *p = pl->p;
    if (!id->field || p->hf == p->src_hf || !nib_quant_name(id, p->config.n_layers, p->hf, name, sizeof name))
        return base;
    return nib_arena_printf(&pl->p->arena, "%s", name);
}

/* A tensor as it is; under a new layout the suffix of FP8 scales changes with the name. */
static enum nib_status add_copy(struct planner *pl, const struct nib_quant_id *id, const struct nib_tensor_entry *e)
{
    struct nib_quant_plan *p = pl->p;
    struct nib_quant_unit *u = new_unit(pl, NIB_QUANT_COPY, id, e->name);
    if (!u)
        return no_memory(pl->err);
    const bool  matrix = id->field && id->suffix[0];
    const char *suffix = id->suffix;
    char       *base = matrix ? nib_arena_printf(&p->arena, "%.*s", (int)id->base_bytes, e->name) : NULL;
    if (matrix && !base)
        return no_memory(pl->err);
    if (matrix && p->hf != p->src_hf && e->dtype == NIB_ST_F8_E8M0 &&
        (strcmp(suffix, ".scale") == 0 || strcmp(suffix, ".weight_scale_inv") == 0))
        suffix = p->hf ? ".weight_scale_inv" : ".scale";
    const char *renamed = out_base(pl, id, matrix ? base : e->name);
    u->m.data = nib_quant_span_of(p, e);
    u->m.rows = u->m.cols = 0;
    u->out_base = matrix && renamed != base ? nib_arena_printf(&p->arena, "%s%s", renamed, suffix)
                  : matrix                  ? e->name
                                            : renamed;
    u->bytes_before = e->bytes;
    return u->out_base ? nib_quant_output_add(p, u, u->out_base, "", e->dtype, e->n_dims, e->shape, pl->err)
                       : no_memory(pl->err);
}

static enum nib_status add_nvfp4(struct planner *pl, struct nib_quant_unit *u)
{
    struct nib_quant_plan *p = pl->p;
    const int64_t rows = u->m.rows, cols = u->m.cols;
    if (cols % NIB_QUANT_BLOCK != 0)
        return nib_error_set(pl->err, NIB_E_UNSUPPORTED,
                             "matrix '%s' has %" PRId64 " input channels, NVFP4 wants a multiple of 16; --exclude it",
                             u->base, cols);
    u->stats.n_weights = (uint64_t)(rows * cols);
    u->stats.n_blocks = u->stats.n_weights / NIB_QUANT_BLOCK;
    p->n_matrices++;
    NIB_TRY(nib_quant_output_add(p, u, u->out_base, ".weight", NIB_ST_U8, 2, (int64_t[2]){rows, cols / 2}, pl->err));
    NIB_TRY(nib_quant_output_add(p, u, u->out_base, ".weight_scale", NIB_ST_F8_E4M3, 2,
                                 (int64_t[2]){rows, cols / NIB_QUANT_BLOCK}, pl->err));
    NIB_TRY(nib_quant_output_add(p, u, u->out_base, ".weight_scale_2", NIB_ST_F32, 0, NULL, pl->err));
    return nib_quant_output_add(p, u, u->out_base, ".input_scale", NIB_ST_F32, 0, NULL, pl->err);
}

static enum nib_status add_converted(struct planner *pl, enum nib_quant_action action, const struct nib_quant_id *id,
                                     const char *base, const struct nib_quant_matrix *m)
{
    struct nib_quant_unit *u = new_unit(pl, action, id, base);
    if (!u)
        return no_memory(pl->err);
    u->m = *m;
    u->out_base = out_base(pl, id, base);
    if (!u->out_base)
        return no_memory(pl->err);
    u->bytes_before = m->data.bytes + (m->scales.file < 0 ? 0 : m->scales.bytes) +
                      (m->global.file < 0 ? 0 : m->global.bytes);
    if (action == NIB_QUANT_COPY || action == NIB_QUANT_WIDEN) {
        const enum nib_st_dtype dtype = action == NIB_QUANT_WIDEN || m->type == NIB_WEIGHT_BF16 ? NIB_ST_BF16
                                                                                                : NIB_ST_F32;
        return nib_quant_output_add(pl->p, u, u->out_base, ".weight", dtype, 2, (int64_t[2]){m->rows, m->cols},
                                    pl->err);
    }
    return add_nvfp4(pl, u);
}

/* [E, parts * rows, cols] in one tensor: taken apart where any of it is quantised, or the layout has no such tensor. */
static enum nib_status add_stacked(struct planner *pl, const struct nib_quant_id *id, const struct nib_tensor_entry *e)
{
    struct nib_quant_plan *p = pl->p;
    bool any = !p->hf;
    if (e->n_dims != 3 || e->shape[0] != p->config.n_experts || (e->dtype != NIB_ST_BF16 && e->dtype != NIB_ST_F32) ||
        e->shape[1] % id->field->stacked_parts != 0)
        return nib_error_set(
            pl->err, NIB_E_UNSUPPORTED,
            "%s: tensor '%s': stacked experts must be BF16 or F32 of three dimensions, %d experts first", e->file,
            e->name, (int)p->config.n_experts);
    const size_t item = e->dtype == NIB_ST_BF16 ? 2 : 4;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t x = 0; x < p->config.n_experts; x++) {
            for (const struct nib_field *f = nib_fields; f < nib_fields + nib_n_fields; f++) {
                if (!f->hf_stacked || strcmp(f->hf_stacked, id->field->hf_stacked) != 0)
                    continue;
                struct nib_quant_id part = {.field = f, .layer = id->layer, .expert = x};
                char  name[400];
                bool  selected = false;
                (void)nib_quant_name(&part, p->config.n_layers, p->src_hf, name, sizeof name);
                NIB_TRY(select_matrix(pl, &part, name, &selected));
                any = any || selected;
                if (pass == 0)
                    continue;
                const char *base = nib_arena_printf(&p->arena, "%s", name);
                if (!base)
                    return no_memory(pl->err);
                struct nib_quant_matrix m = {.type = item == 2 ? NIB_WEIGHT_BF16 : NIB_WEIGHT_F32,
                                             .rows = e->shape[1] / f->stacked_parts,
                                             .cols = e->shape[2],
                                             .scales = {.file = -1},
                                             .global = {.file = -1},
                                             .input_scale = {.file = -1}};
                const uint64_t bytes = (uint64_t)m.rows * (uint64_t)m.cols * item;
                m.data = nib_quant_span_of(p, e);
                m.data.offset += ((uint64_t)x * (uint64_t)f->stacked_parts + (uint64_t)f->stacked_part) * bytes;
                m.data.bytes = bytes;
                NIB_TRY(add_converted(pl, selected ? NIB_QUANT_ENCODE : NIB_QUANT_COPY, &part, base, &m));
            }
        }
        if (pass == 0 && !any)
            return add_copy(pl, &(struct nib_quant_id){.layer = id->layer, .suffix = ""}, e);
    }
    return NIB_OK;
}

/* The tensors of a matrix that is not converted, each for itself. */
static enum nib_status copy_matrix(struct planner *pl, const char *base)
{
    static const char *const suffixes[] = {".weight", ".scale", ".weight_scale", ".weight_scale_inv", ".input_scale"};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        char name[512];
        struct nib_quant_id id;
        (void)snprintf(name, sizeof name, "%s%s", base, suffixes[i]);
        const struct nib_tensor_entry *e = nib_checkpoint_find(pl->p->checkpoint, name);
        if (!e)
            continue;
        (void)nib_quant_identify(e->name, pl->p->config.n_layers, &id);
        NIB_TRY(add_copy(pl, &id, e));
    }
    return NIB_OK;
}

static enum nib_status add_matrix(struct planner *pl, const struct nib_quant_id *id, const char *base)
{
    const struct nib_quant_plan *p = pl->p;
    struct nib_quant_matrix m;
    enum nib_status status = NIB_OK;
    bool selected = false;
    NIB_TRY(select_matrix(pl, id, base, &selected));
    if (!nib_quant_matrix_find(p, base, &m, &status, pl->err))
        return status;
    if (m.type == NIB_WEIGHT_NVFP4)
        return add_converted(pl, NIB_QUANT_RELAY, id, base, &m);
    if (selected)
        return add_converted(pl, m.type == NIB_WEIGHT_MXFP4 ? NIB_QUANT_CAST : NIB_QUANT_ENCODE, id, base, &m);
    if (p->options->preset != NIB_QUANT_EXPERTS && m.type == NIB_WEIGHT_FP8 && !m.f32_scales &&
        id->field->kind == NIB_FIELD_LINEAR && !id->field->quantised_input)
        return add_converted(pl, NIB_QUANT_WIDEN, id, base, &m);
    return copy_matrix(pl, base);
}

/* Companions go with their matrix. */
static bool is_companion(const struct nib_quant_plan *p, const struct nib_quant_id *id, const char *name)
{
    char main[512];
    if (strcmp(id->suffix, ".weight") == 0 || strcmp(id->suffix, ".weight_packed") == 0)
        return false;
    (void)snprintf(main, sizeof main, "%.*s.weight", (int)id->base_bytes, name);
    if (nib_checkpoint_find(p->checkpoint, main))
        return true;
    (void)snprintf(main, sizeof main, "%.*s.weight_packed", (int)id->base_bytes, name);
    return nib_checkpoint_find(p->checkpoint, main) != NULL;
}

static enum nib_status add_tensor(struct planner *pl, const struct nib_tensor_entry *e)
{
    struct nib_quant_plan *p = pl->p;
    struct nib_quant_id    id;
    /* Experts beyond the config's are nobody's; statistics of inputs have no place for them. */
    if (!nib_quant_identify(e->name, p->config.n_layers, &id) || id.expert >= p->config.n_experts) {
        p->n_unknown++;
        id = (struct nib_quant_id){.layer = p->config.n_layers + 2, .suffix = ""};
        return add_copy(pl, &id, e);
    }
    const bool matrix = id.field->kind == NIB_FIELD_LINEAR || id.field->kind == NIB_FIELD_EXPERTS;
    if (!matrix)
        return add_copy(pl, &id, e);
    if (id.field->kind == NIB_FIELD_EXPERTS && id.expert < 0)
        return add_stacked(pl, &id, e);
    if (is_companion(p, &id, e->name))
        return NIB_OK;
    if (strcmp(id.suffix, ".weight") != 0 && strcmp(id.suffix, ".weight_packed") != 0)
        return nib_error_set(pl->err, NIB_E_FORMAT, "%s: tensor '%s' has no '%.*s.weight' beside it", e->file, e->name,
                             (int)id.base_bytes, e->name);
    const char *base = nib_arena_printf(&p->arena, "%.*s", (int)id.base_bytes, e->name);
    return base ? add_matrix(pl, &id, base) : no_memory(pl->err);
}

/* ---- Order ---- */

static int compare_i64(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

/* Layers one after the other, as calibration runs them; w1 and w3 of an expert side by side. */
static int id_compare(const struct nib_quant_unit *x, const struct nib_quant_unit *y)
{
    const bool ex = x->id.field && x->id.field->kind == NIB_FIELD_EXPERTS,
               ey = y->id.field && y->id.field->kind == NIB_FIELD_EXPERTS;
    int order = compare_i64(x->id.layer, y->id.layer);
    if (order == 0)
        order = compare_i64(ex, ey);
    if (order == 0 && ex)
        order = compare_i64(x->id.expert, y->id.expert);
    if (order == 0)
        order = compare_i64(x->id.field ? x->id.field - nib_fields : -1, y->id.field ? y->id.field - nib_fields : -1);
    return order;
}

static int unit_compare(const void *a, const void *b)
{
    const struct nib_quant_unit *x = a, *y = b;
    const int order = id_compare(x, y);
    return order ? order : strcmp(x->base, y->base);
}

const struct nib_quant_unit *nib_quant_unit_find(const struct nib_quant_plan *p, const struct nib_quant_id *id)
{
    const struct nib_quant_unit key = {.id = *id};
    int64_t low = 0, high = p->n_units;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (id_compare(&p->unit[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->n_units && id_compare(&p->unit[low], &key) == 0 ? &p->unit[low] : NULL;
}

static bool same_place(const struct nib_quant_unit *a, const struct nib_quant_unit *b)
{
    return a->id.layer == b->id.layer && a->id.expert == b->id.expert && a->id.field && b->id.field &&
           strcmp(a->id.field->family, b->id.field->family) == 0;
}

static bool ends_in(const struct nib_quant_unit *u, const char *tail)
{
    const char  *name = u->id.field ? u->id.field->official : "";
    const size_t n = strlen(name), m = strlen(tail);
    return n > m && strcmp(name + n - m, tail) == 0;
}

/* Gate and up feed one fused product, which has one global scale. */
static void find_partners(struct nib_quant_plan *p)
{
    for (int64_t i = 0; i + 1 < p->n_units; i++) {
        struct nib_quant_unit *a = &p->unit[i], *b = &p->unit[i + 1];
        if ((a->action == NIB_QUANT_CAST || a->action == NIB_QUANT_ENCODE) && a->action == b->action &&
            same_place(a, b) && ends_in(a, ".w1") && ends_in(b, ".w3")) {
            a->partner = i + 1;
            b->partner = i;
        }
    }
}

/* A loader wants the experts of a layer in one format. */
static enum nib_status check_experts(const struct nib_quant_plan *p, struct nib_error *err)
{
    enum { NONE, NVFP4, OTHER };
    unsigned char *seen = calloc((size_t)(p->config.n_layers + 1) * (size_t)nib_n_fields, 1);
    enum nib_status status = seen ? NIB_OK : no_memory(err);
    for (int64_t i = 0; i < p->n_units && status == NIB_OK; i++) {
        const struct nib_quant_unit *u = &p->unit[i];
        if (!u->id.field || u->id.field->kind != NIB_FIELD_EXPERTS || u->id.layer > p->config.n_layers)
            continue;
        unsigned char *s = &seen[u->id.layer * nib_n_fields + (int32_t)(u->id.field - nib_fields)];
        const unsigned char kind = u->action == NIB_QUANT_COPY || u->action == NIB_QUANT_WIDEN ? OTHER : NVFP4;
        if (*s != NONE && *s != kind)
            status = nib_error_set(
                err, NIB_E_ARGUMENT,
                "--include and --exclude leave some experts of layer %d as they are and quantise others "
                "('%s'); the experts of a layer must share one format",
                (int)u->id.layer, u->base);
        *s = kind;
    }
    free(seen);
    return status;
}

static enum nib_status plan_units(struct planner *pl)
{
    struct nib_quant_plan *p = pl->p;
    NIB_TRY(globs_init(&pl->include, &p->arena, p->options->include, pl->err));
    NIB_TRY(globs_init(&pl->exclude, &p->arena, p->options->exclude, pl->err));
    for (int64_t i = 0; i < nib_checkpoint_n_tensors(p->checkpoint); i++)
        NIB_TRY(add_tensor(pl, nib_checkpoint_at(p->checkpoint, i)));
    NIB_TRY(globs_check(&pl->include, "--include", pl->err));
    NIB_TRY(globs_check(&pl->exclude, "--exclude", pl->err));
    qsort(p->unit, (size_t)p->n_units, sizeof *p->unit, unit_compare);
    find_partners(p);
    return check_experts(p, pl->err);
}

static enum nib_status plan_all(struct nib_quant_plan *p, struct nib_error *err)
{
    struct planner pl = {.p = p, .err = err};
    NIB_TRY(nib_config_read(p->src, &p->config, err));
    NIB_TRY(nib_checkpoint_open(p->src, &p->checkpoint, err));
    p->src_hf = nib_checkpoint_find(p->checkpoint, "model.embed_tokens.weight") != NULL;
    if (!p->src_hf && !nib_checkpoint_find(p->checkpoint, "embed.weight"))
        return nib_error_set(
            err, NIB_E_FORMAT,
            "%s: neither 'embed.weight' nor 'model.embed_tokens.weight' exists: not a DeepSeek-V4 checkpoint", p->src);
    p->hf = p->options->layout == NIB_QUANT_LAYOUT_KEEP ? p->src_hf : p->options->layout == NIB_QUANT_LAYOUT_HF;
    NIB_TRY(nib_quant_files_open(p, err));
    NIB_TRY(plan_units(&pl));
    return nib_quant_layout(p, err);
}

enum nib_status nib_quant_plan_open(const char *src, const struct nib_quantize_options *o, struct nib_quant_plan *out,
                                    struct nib_error *err)
{
    memset(out, 0, sizeof *out);
    nib_arena_init(&out->arena);
    out->src = src;
    out->options = o;
    return plan_all(out, err);
}

void nib_quant_plan_close(struct nib_quant_plan *p)
{
    for (int32_t i = 0; i < p->n_files; i++)
        if (p->file[i].fd >= 0)
            (void)close(p->file[i].fd);
    nib_checkpoint_close(p->checkpoint);
    free(p->file);
    free(p->unit);
    free(p->output);
    free(p->shard);
    nib_arena_deinit(&p->arena);
    memset(p, 0, sizeof *p);
}
