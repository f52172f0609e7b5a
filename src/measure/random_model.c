/* A checkpoint that was never a file: every tensor that the model's table of fields asks for, with random numbers
 * behind it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "measure/random_pool.h"
#include "measure/shape.h"

/* What the tensors need as long as the model lives. */
struct owner {
    struct nib_random_pools pools;
    struct nib_arena        arena; /* names, and ids of hash layers */
    int64_t                *ids;   /* [vocab][top_k], one table for all hash layers */
};

static void owner_release(void *p)
{
    struct owner *o = p;
    nib_random_pools_close(&o->pools);
    nib_arena_deinit(&o->arena);
    free(o);
}

struct builder {
    const struct nib_config *config;
    enum nib_shape_format    format;
    struct owner            *owner;
    struct nib_tensor_entry *entry;
    int64_t                  n, capacity;
    struct nib_error        *err;
};

static enum nib_status no_memory(struct builder *b)
{
    return nib_error_set(b->err, NIB_E_MEMORY, "no memory for a model of random weights");
}

/* One tensor [rows, cols], or [rows] with cols 0; data NULL: from the pool. */
static enum nib_status add(struct builder *b, const char *base, const char *suffix, enum nib_st_dtype dtype,
                           int64_t rows, int64_t cols, enum nib_random_kind pool, const void *data)
{
    if (b->n == b->capacity) {
        const int64_t capacity = b->capacity ? 2 * b->capacity : 1024;
        struct nib_tensor_entry *more = realloc(b->entry, (size_t)capacity * sizeof *more);
        if (!more)
            return no_memory(b);
        b->entry = more;
        b->capacity = capacity;
    }
    struct nib_tensor_entry e = {
        .file = "random weights", .dtype = dtype, .n_dims = cols > 0 ? 2 : 1, .shape = {rows, cols}};
    e.name = nib_arena_printf(&b->owner->arena, "%s%s", base, suffix);
    e.bytes = (uint64_t)rows * (uint64_t)(cols > 0 ? cols : 1) * (uint64_t)nib_st_dtype_bytes(dtype);
    e.data = data ? data : nib_random_take(&b->owner->pools, pool, (size_t)e.bytes);
    if (!e.name || !e.data)
        return no_memory(b);
    b->entry[b->n++] = e;
    return NIB_OK;
}

static enum nib_status add_matrix(struct builder *b, const char *base, enum nib_weight_type type, int64_t rows,
                                  int64_t cols)
{
    /* 4-bit codes have a root mean square of 2.9; with this and block scales around 1, weights have one of 1/64. */
    static const float global = 1.0f / 256;
    switch (type) {
    case NIB_WEIGHT_F32: return add(b, base, ".weight", NIB_ST_F32, rows, cols, NIB_RANDOM_F32, NULL);
    case NIB_WEIGHT_BF16: return add(b, base, ".weight", NIB_ST_BF16, rows, cols, NIB_RANDOM_BF16, NULL);
    case NIB_WEIGHT_FP8:
        NIB_TRY(add(b, base, ".weight", NIB_ST_F8_E4M3, rows, cols, NIB_RANDOM_E4M3, NULL));
        return add(b, base, ".scale", NIB_ST_F8_E8M0, (rows + 127) / 128, (cols + 127) / 128, NIB_RANDOM_UE8M0, NULL);
    case NIB_WEIGHT_MXFP4:
        NIB_TRY(add(b, base, ".weight", NIB_ST_I8, rows, cols / 2, NIB_RANDOM_BYTES, NULL));
        return add(b, base, ".scale", NIB_ST_F8_E8M0, rows, cols / 32, NIB_RANDOM_UE8M0, NULL);
    case NIB_WEIGHT_NVFP4:
        NIB_TRY(add(b, base, ".weight", NIB_ST_U8, rows, cols / 2, NIB_RANDOM_BYTES, NULL));
        NIB_TRY(add(b, base, ".weight_scale", NIB_ST_F8_E4M3, rows, cols / 16, NIB_RANDOM_UE4M3, NULL));
        return add(b, base, ".weight_scale_2", NIB_ST_F32, 1, 0, NIB_RANDOM_F32, &global);
    }
    return NIB_E_ARGUMENT;
}

/* Norms are near 1 and so are the three factors of hyper-connections; the rest is small. */
static enum nib_status add_vector(struct builder *b, const struct nib_field *f, const char *name, int64_t rows,
                                  int64_t cols)
{
    const size_t n = strlen(name);
    const bool norm = n > 7 && strcmp(name + n - 7, ".weight") == 0;
    const bool ones = norm || (n > 6 && strcmp(name + n - 6, "_scale") == 0);
    return add(b, name, "", norm ? NIB_ST_BF16 : NIB_ST_F32, rows, f->cols == NIB_DIM_1 ? 0 : cols,
               norm ? NIB_RANDOM_BF16_ONES : ones ? NIB_RANDOM_F32_ONES : NIB_RANDOM_F32, NULL);
}

/* Every token's experts are different ones. */
static enum nib_status add_ids(struct builder *b, const char *name, int64_t rows, int64_t cols)
{
    struct owner *o = b->owner;
    const uint64_t n = (uint64_t)b->config->n_experts;
    uint64_t state = 2;
    if (!o->ids) {
        o->ids = nib_arena_array(&o->arena, (size_t)(rows * cols), sizeof *o->ids);
        if (!o->ids)
            return no_memory(b);
        for (int64_t r = 0; r < rows; r++) {
            const uint64_t first = nib_random_next(&state) % n;
            for (int64_t c = 0; c < cols; c++)
                o->ids[r * cols + c] = (int64_t)((first + (uint64_t)c * (n / (uint64_t)cols)) % n);
        }
    }
    return add(b, name, "", NIB_ST_I64, rows, cols, NIB_RANDOM_BYTES, o->ids);
}

static enum nib_status add_field(struct builder *b, const struct nib_field *f, const char *prefix, int32_t ratio)
{
    const int64_t rows = nib_dim_value(b->config, f->rows, ratio), cols = nib_dim_value(b->config, f->cols, ratio);
    const enum nib_weight_type type = nib_shape_weight_type(b->format, f);
    const char *hole = strstr(f->official, "%d");
    char name[160];
    (void)snprintf(name, sizeof name, "%s%s", prefix, f->official);
    switch (f->kind) {
    case NIB_FIELD_LINEAR: return add_matrix(b, name, type, rows, cols);
    case NIB_FIELD_EXPERTS:
        for (int32_t e = 0; e < b->config->n_experts; e++) {
            (void)snprintf(name, sizeof name, "%s%.*s%" PRId32 "%s", prefix, (int)(hole - f->official), f->official, e,
                           hole + 2);
            NIB_TRY(add_matrix(b, name, type, rows, cols));
        }
        return NIB_OK;
    case NIB_FIELD_VECTOR: return add_vector(b, f, name, rows, cols);
    case NIB_FIELD_IDS: return add_ids(b, name, rows, cols);
    }
    return NIB_E_ARGUMENT;
}

static enum nib_status add_all(struct builder *b)
{
    const struct nib_config *c = b->config;
    for (int32_t i = 0; i < nib_n_fields; i++) {
        const struct nib_field *f = &nib_fields[i];
        if (f->scope == NIB_SCOPE_GLOBAL)
            NIB_TRY(add_field(b, f, "", 0));
        for (int32_t l = 0; f->scope == NIB_SCOPE_LAYER && l < c->n_layers; l++) {
            char prefix[32];
            (void)snprintf(prefix, sizeof prefix, "layers.%" PRId32 ".", l);
            if (nib_field_applies(f, c->ratio[l], l < c->n_hash_layers))
                NIB_TRY(add_field(b, f, prefix, c->ratio[l]));
        }
    }
    return NIB_OK;
}

static enum nib_status build(struct builder *b, const char *title, struct nib_model **out)
{
    const struct nib_config *c = b->config;
    struct nib_checkpoint *checkpoint = NULL;
    /* No tensor of the three shapes is larger than the vocabulary's matrices would be in fp32. */
    const size_t largest = 4 * (size_t)c->dim * (size_t)c->vocab;
    NIB_TRY(nib_random_pools_open(&b->owner->pools, largest, b->err));
    NIB_TRY(add_all(b));
    NIB_TRY(nib_checkpoint_make(b->entry, b->n, owner_release, b->owner, &checkpoint, b->err));
    b->owner = NULL;
    const enum nib_status status = nib_model_make(title, c, checkpoint, out, b->err);
    if (status != NIB_OK)
        nib_checkpoint_close(checkpoint);
    return status;
}

enum nib_status nib_model_open_random(const struct nib_shape *shape, struct nib_model **out, struct nib_error *err)
{
    struct nib_config config;
    struct builder b = {.config = &config, .err = err};
    char title[128];
    *out = NULL;
    NIB_TRY(nib_shape_config(shape, &config, &b.format, err));
    (void)snprintf(title, sizeof title, "random %s, %" PRId32 " layers, %" PRId32 " experts, %s", shape->name,
                   config.n_layers, config.n_experts, shape->format ? shape->format : "nvfp4");
    b.owner = calloc(1, sizeof *b.owner);
    if (!b.owner)
        return no_memory(&b);
    nib_arena_init(&b.owner->arena);
    const enum nib_status status = build(&b, title, out);
    if (b.owner)
        owner_release(b.owner);
    free(b.entry);
    return status;
}
