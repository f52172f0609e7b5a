/* The destination: outputs into shards, offsets, headers, and a fingerprint of all that decides its bytes. */
#include "quantize/layout_quant.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

#define DATA_ALIGN 64
#define CALIBRATION_BYTES_MAX ((size_t)1 << 30)

enum nib_status nib_quant_output_add(struct nib_quant_plan *p, struct nib_quant_unit *u, const char *base,
                                     const char *suffix, enum nib_st_dtype dtype, int32_t n_dims, const int64_t *shape,
                                     struct nib_error *err)
{
    /* Doubled whenever the count reaches a power of two. */
    if (p->n_outputs == 0 || (p->n_outputs & (p->n_outputs - 1)) == 0) {
        struct nib_quant_output *grown = realloc(p->output,
                                                 (size_t)(p->n_outputs ? 2 * p->n_outputs : 1) * sizeof *grown);
        if (!grown)
            return nib_error_set(err, NIB_E_MEMORY, "no memory for %" PRId64 " tensors", p->n_outputs);
        p->output = grown;
    }
    struct nib_quant_output *o = &p->output[p->n_outputs];
    *o = (struct nib_quant_output){
        .name = suffix[0] ? nib_arena_printf(&p->arena, "%s%s", base, suffix) : base, .dtype = dtype, .n_dims = n_dims};
    if (!o->name)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for a name");
    for (int32_t i = 0; i < n_dims; i++)
        o->shape[i] = shape[i];
    if (!nib_st_tensor_bytes(dtype, n_dims, o->shape, &o->bytes))
        return nib_error_set(err, NIB_E_FORMAT, "tensor '%s' is too large", o->name);
    if (u->n_outs++ == 0)
        u->out = p->n_outputs;
    p->n_outputs++;
    return NIB_OK;
}

static uint64_t unit_bytes(const struct nib_quant_plan *p, const struct nib_quant_unit *u)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < u->n_outs; i++)
        sum += p->output[u->out + i].bytes;
    return sum;
}

static uint64_t unit_source_bytes(const struct nib_quant_unit *u)
{
    return u->m.data.bytes + (u->m.scales.file < 0 ? 0 : u->m.scales.bytes);
}

/* Wide types first, so that every tensor is aligned for its own. */
static void place_outputs(struct nib_quant_plan *p, int32_t shard)
{
    struct nib_quant_shard *s = &p->shard[shard];
    uint64_t                offset = 0;
    for (int32_t width = 8; width >= 1; width /= 2)
        for (int64_t i = s->first_unit; i < s->end_unit; i++)
            for (int64_t k = p->unit[i].out; k < p->unit[i].out + p->unit[i].n_outs; k++)
                if (nib_st_dtype_bytes(p->output[k].dtype) == width) {
                    p->output[k].shard = shard;
                    p->output[k].offset = offset;
                    offset += p->output[k].bytes;
                }
    s->bytes = offset;
}

static enum nib_status cut_shards(struct nib_quant_plan *p, struct nib_error *err)
{
    const uint64_t limit = p->options->shard_bytes;
    int32_t        capacity = 0;
    uint64_t       used = 0;
    for (int64_t i = 0; i < p->n_units; i++) {
        const uint64_t bytes = unit_bytes(p, &p->unit[i]);
        if (p->n_shards == 0 || (used > 0 && used + bytes > limit)) {
            if (p->n_shards == capacity) {
                capacity = capacity ? 2 * capacity : 64;
                struct nib_quant_shard *grown = realloc(p->shard, (size_t)capacity * sizeof *grown);
                if (!grown)
                    return nib_error_set(err, NIB_E_MEMORY, "no memory for %" PRId32 " shards", capacity);
                p->shard = grown;
            }
            p->shard[p->n_shards++] = (struct nib_quant_shard){.first_unit = i};
            used = 0;
        }
        used += bytes;
        p->shard[p->n_shards - 1].end_unit = i + 1;
        p->output_bytes += bytes;
        p->source_bytes += unit_source_bytes(&p->unit[i]);
    }
    for (int32_t i = 0; i < p->n_shards; i++) {
        if (p->n_shards == 1)
            (void)snprintf(p->shard[i].name, sizeof p->shard[i].name, "model.safetensors");
        else
            (void)snprintf(p->shard[i].name, sizeof p->shard[i].name,
                           "model-%05" PRId32 "-of-%05" PRId32 ".safetensors", i + 1, p->n_shards);
        place_outputs(p, i);
    }
    return NIB_OK;
}

static void hash_bytes(uint64_t *h, const void *data, size_t n)
{
    const unsigned char *b = data;
    for (size_t i = 0; i < n; i++)
        *h = (*h ^ b[i]) * 0x100000001b3u;
}

static void hash_text(uint64_t *h, const char *s)
{
    hash_bytes(h, s, strlen(s) + 1);
}

static void hash_u64(uint64_t *h, uint64_t v)
{
    hash_bytes(h, &v, sizeof v);
}

/* Two runs with the same value write the same bytes, unless a source file was changed in place within its modification
 * time. */
static enum nib_status fingerprint(struct nib_quant_plan *p, struct nib_error *err)
{
    const struct nib_quantize_options *o = p->options;
    uint64_t                           h = 0xcbf29ce484222325u;
    hash_text(&h, nib_version());
    hash_u64(&h, (uint64_t)o->preset);
    hash_u64(&h, (uint64_t)o->method);
    for (int32_t i = 0; i < p->n_files; i++) {
        struct stat st;
        hash_text(&h, p->file[i].name);
        hash_u64(&h, p->file[i].bytes);
        if (fstat(p->file[i].fd, &st) == 0)
            hash_u64(&h, (uint64_t)st.st_mtime);
    }
    for (int64_t i = 0; i < p->n_units; i++) {
        hash_u64(&h, (uint64_t)p->unit[i].action);
        hash_text(&h, p->unit[i].base);
        for (int64_t k = p->unit[i].out; k < p->unit[i].out + p->unit[i].n_outs; k++) {
            hash_text(&h, p->output[k].name);
            hash_u64(&h, (uint64_t)p->output[k].shard);
            hash_u64(&h, p->output[k].bytes);
        }
    }
    if (o->calibrate) {
        char  *text;
        size_t n;
        NIB_TRY(nib_file_read(o->calibrate, CALIBRATION_BYTES_MAX, &text, &n, err));
        hash_bytes(&h, text, n);
        free(text);
    }
    p->fingerprint = h;
    return NIB_OK;
}

static int name_compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Renaming may bring two tensors under one name, as when a source has one in both spellings. */
static enum nib_status check_names(const struct nib_quant_plan *p, struct nib_error *err)
{
    const char    **name = malloc((size_t)p->n_outputs * sizeof *name + 1);
    enum nib_status status = name ? NIB_OK
                                  : nib_error_set(err, NIB_E_MEMORY, "no memory for %" PRId64 " names", p->n_outputs);
    for (int64_t i = 0; name && i < p->n_outputs; i++)
        name[i] = p->output[i].name;
    if (name)
        qsort(name, (size_t)p->n_outputs, sizeof *name, name_compare);
    for (int64_t i = 1; status == NIB_OK && i < p->n_outputs; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            status = nib_error_set(err, NIB_E_FORMAT, "two tensors of '%s' would both be named '%s'", p->src, name[i]);
    free(name);
    return status;
}

enum nib_status nib_quant_layout(struct nib_quant_plan *p, struct nib_error *err)
{
    NIB_TRY(check_names(p, err));
    NIB_TRY(cut_shards(p, err));
    return fingerprint(p, err);
}

static json_t *output_json(const struct nib_quant_output *o)
{
    json_t *shape = json_array();
    for (int32_t i = 0; i < o->n_dims; i++)
        (void)json_array_append_new(shape, json_integer(o->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", nib_st_dtype_name(o->dtype), "shape", shape, "data_offsets",
                     (json_int_t)o->offset, (json_int_t)(o->offset + o->bytes));
}

enum nib_status nib_quant_shard_header(const struct nib_quant_plan *p, int32_t shard, char **out, size_t *n,
                                       struct nib_error *err)
{
    const struct nib_quant_shard *s = &p->shard[shard];
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    bool    ok = root != NULL;
    /* Readers like headers in the order of the data. */
    for (int32_t width = 8; width >= 1; width /= 2)
        for (int64_t i = s->first_unit; i < s->end_unit && ok; i++)
            for (int64_t k = p->unit[i].out; k < p->unit[i].out + p->unit[i].n_outs && ok; k++)
                if (nib_st_dtype_bytes(p->output[k].dtype) == width)
                    ok = json_object_set_new(root, p->output[k].name, output_json(&p->output[k])) == 0;
    char *text = ok ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    *out = NULL;
    if (text) {
        const size_t text_bytes = strlen(text);
        *n = (8 + text_bytes + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
        *out = malloc(*n);
        if (*out) {
            for (int i = 0; i < 8; i++)
                (*out)[i] = (char)(unsigned char)((uint64_t)(*n - 8) >> (8 * i));
            memcpy(*out + 8, text, text_bytes);
            memset(*out + 8 + text_bytes, ' ', *n - 8 - text_bytes);
        }
        free(text);
    }
    return *out ? NIB_OK : nib_error_set(err, NIB_E_MEMORY, "no memory for the header of '%s'", s->name);
}
