/* Values onto the backend: every source is checked, then packed (matrices), widened to fp32 (vectors) or narrowed to
 * int32 (ids). */
#include "model/weights_table.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum nib_act_format nib_source_act(const struct nib_source *s, enum nib_act_quant q)
{
    if (!s->field->quantised_input)
        return NIB_ACT_PLAIN;
    const bool fp4 = s->type == NIB_WEIGHT_NVFP4 || s->type == NIB_WEIGHT_MXFP4;
    if (q == NIB_ACT_QUANT_FP8 && (fp4 || s->type == NIB_WEIGHT_FP8))
        return NIB_ACT_FP8;
    if (q == NIB_ACT_QUANT_NVFP4 && fp4)
        return NIB_ACT_NVFP4;
    if (q == NIB_ACT_QUANT_INT8 && fp4)
        return NIB_ACT_INT8;
    return NIB_ACT_PLAIN;
}

static enum nib_weight_use use_of(const struct nib_field *f)
{
    if (f->scope != NIB_SCOPE_LAYER)
        return NIB_USE_ANY;
    return f->offset == offsetof(struct nib_layer, wo_a)     ? NIB_USE_O_A
           : f->offset == offsetof(struct nib_layer, router) ? NIB_USE_ROUTER
                                                             : NIB_USE_ANY;
}

static void describe(const struct nib_source *s, enum nib_act_quant q, struct nib_weight_desc *d)
{
    d->type = s->type;
    d->act = nib_source_act(s, q);
    d->n_stack = s->n_stack;
    d->n_out = s->n_out;
    d->n_in = s->n_in;
    d->part = s->part;
    d->use = use_of(s->field);
}

uint64_t nib_source_device_bytes(const struct nib_source *s, const struct nib_backend_api *api, enum nib_act_quant q)
{
    if (s->field->kind == NIB_FIELD_VECTOR || s->field->kind == NIB_FIELD_IDS)
        return (uint64_t)s->n_out * (uint64_t)s->n_in * 4;
    struct nib_weight_desc d;
    describe(s, q, &d);
    return api->weight_bytes(&d);
}

/* The struct that holds a source's field. */
static unsigned char *owner_of(struct nib_weights *w, const struct nib_config *c, const struct nib_field *f, int32_t layer)
{
    switch (f->scope) {
    case NIB_SCOPE_GLOBAL: return (unsigned char *)w;
    case NIB_SCOPE_MTP: return (unsigned char *)&w->mtp;
    case NIB_SCOPE_LAYER: return (unsigned char *)(layer == c->n_layers ? &w->mtp.layer : &w->layer[layer]);
    }
    return NULL;
}

/* Every pointer in these structs has the same representation on the platforms nibble builds for. */
static void *get_field(const unsigned char *owner, const struct nib_field *f)
{
    void *p;
    memcpy(&p, owner + f->offset, sizeof p);
    return p;
}

static void set_field(unsigned char *owner, const struct nib_field *f, void *p)
{
    memcpy(owner + f->offset, &p, sizeof p);
}

static float value_at(const struct nib_tensor_entry *e, size_t i)
{
    uint32_t bits = 0;
    if (e->dtype == NIB_ST_F32) {
        memcpy(&bits, (const unsigned char *)e->data + i * 4, 4);
    } else {
        uint16_t half;
        memcpy(&half, (const unsigned char *)e->data + i * 2, 2);
        bits = (uint32_t)half << 16;
    }
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

static int32_t id_at(const struct nib_tensor_entry *e, size_t i)
{
    if (e->dtype == NIB_ST_I64) {
        int64_t v;
        memcpy(&v, (const unsigned char *)e->data + i * 8, 8);
        return (int32_t)v;
    }
    int32_t v;
    memcpy(&v, (const unsigned char *)e->data + i * 4, 4);
    return v;
}

static enum nib_status to_device(const struct nib_load_args *a, const void *host, size_t bytes, void **out, struct nib_error *err)
{
    *out = a->api->alloc(a->backend, bytes);
    if (!*out)
        return nib_error_set(err, NIB_E_MEMORY, "backend '%s' has no %zu bytes left for weights", a->api->name, bytes);
    struct nib_stream *stream = a->api->stream(a->backend);
    enum nib_status status = a->api->upload(stream, *out, host, bytes);
    if (status == NIB_OK)
        status = a->api->synchronise(stream);
    if (status != NIB_OK) {
        a->api->release(a->backend, *out);
        *out = NULL;
        return nib_error_set(err, status, "backend '%s' could not take %zu bytes of weights", a->api->name, bytes);
    }
    return NIB_OK;
}

static enum nib_status load_small(const struct nib_load_args *a, const struct nib_source *s, void **out, struct nib_error *err)
{
    const size_t n = (size_t)s->n_out * (size_t)s->n_in;
    uint32_t *host = malloc(n * 4);
    if (!host)
        return nib_error_set(err, NIB_E_MEMORY, "no memory to read tensor '%s'", s->name);
    for (size_t i = 0; i < n; i++) {
        if (s->field->kind == NIB_FIELD_IDS) {
            host[i] = (uint32_t)id_at(s->entry, i);
        } else {
            const float v = value_at(s->entry, i);
            memcpy(&host[i], &v, 4);
        }
    }
    const enum nib_status status = to_device(a, host, n * 4, out, err);
    free(host);
    return status;
}

static enum nib_status load_source(const struct nib_load_args *a, const struct nib_source *s, struct nib_weights *w,
                                   struct nib_error *err)
{
    void *p = NULL;
    NIB_TRY(nib_source_check(s, a->config, err));
    if (s->field->kind == NIB_FIELD_VECTOR || s->field->kind == NIB_FIELD_IDS) {
        NIB_TRY(load_small(a, s, &p, err));
    } else {
        struct nib_weight_desc d;
        struct nib_weight *packed = NULL;
        describe(s, a->act_quant, &d);
        NIB_TRY(a->api->weight_pack(a->backend, &d, &packed, err));
        p = packed;
    }
    set_field(owner_of(w, a->config, s->field, s->layer), s->field, p);
    return NIB_OK;
}

static enum nib_act_format act_of(const struct nib_weight *const *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (w[i] && w[i]->act != NIB_ACT_PLAIN)
            return w[i]->act;
    return NIB_ACT_PLAIN;
}

static void set_layer_acts(struct nib_layer *l)
{
    l->attn_act = act_of((const struct nib_weight *const[]){l->wq_a, l->wkv, l->compress.wkv, l->compress.wgate, l->index.wkv,
                                                            l->index.wgate}, 6);
    l->q_act = act_of((const struct nib_weight *const[]){l->wq_b, l->index_wq_b}, 2);
    l->o_act = act_of((const struct nib_weight *const[]){l->wo_b}, 1);
    l->ffn_act = act_of((const struct nib_weight *const[]){l->w1, l->w3, l->sw1, l->sw3}, 4);
}

static enum nib_status load_rope(const struct nib_load_args *a, bool compressed, float **out, struct nib_error *err)
{
    const size_t n = (size_t)a->config->n_rot / 2;
    float *host = malloc(n * sizeof *host);
    void *device = NULL;
    if (!host)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for rotary frequencies");
    nib_rope_freq(a->config, compressed, host);
    const enum nib_status status = to_device(a, host, n * sizeof *host, &device, err);
    free(host);
    *out = device;
    return status;
}

static enum nib_status load_all(const struct nib_load_args *a, struct nib_weights *w, struct nib_error *err)
{
    const struct nib_config *c = a->config;
    uint64_t total = 0, done = 0;
    w->layer = calloc((size_t)c->n_layers, sizeof *w->layer);
    if (!w->layer)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for %" PRId32 " layers", c->n_layers);
    for (int32_t l = 0; l < c->n_layers; l++)
        w->layer[l].ratio = c->ratio[l];
    w->mtp.layer.ratio = c->ratio[c->n_layers];
    w->has_mtp = a->mtp;

    for (int32_t i = 0; i < a->sources->n; i++)
        if (a->mtp || a->sources->source[i].layer != c->n_layers)
            total += a->sources->source[i].bytes;
    for (int32_t i = 0; i < a->sources->n; i++) {
        const struct nib_source *s = &a->sources->source[i];
        if (!a->mtp && s->layer == c->n_layers)
            continue;
        NIB_TRY(load_source(a, s, w, err));
        done += s->bytes;
        if (a->progress && !a->progress(a->progress_user, done, total))
            return nib_error_set(err, NIB_E_CANCELLED, "loading was cancelled");
    }
    for (int32_t l = 0; l < c->n_layers; l++)
        set_layer_acts(&w->layer[l]);
    set_layer_acts(&w->mtp.layer);
    NIB_TRY(load_rope(a, false, &w->rope_plain, err));
    return load_rope(a, true, &w->rope_compressed, err);
}

enum nib_status nib_weights_load(const struct nib_load_args *a, struct nib_weights *out, struct nib_error *err)
{
    memset(out, 0, sizeof *out);
    const enum nib_status status = load_all(a, out, err);
    if (status != NIB_OK)
        nib_weights_unload(out, a->config, a->api, a->backend);
    return status;
}

static void unload_field(unsigned char *owner, const struct nib_field *f, const struct nib_backend_api *api, struct nib_backend *b)
{
    void *p = get_field(owner, f);
    if (!p)
        return;
    if (f->kind == NIB_FIELD_LINEAR || f->kind == NIB_FIELD_EXPERTS)
        api->weight_free(b, p);
    else
        api->release(b, p);
}

void nib_weights_unload(struct nib_weights *w, const struct nib_config *c, const struct nib_backend_api *api, struct nib_backend *b)
{
    for (int32_t i = 0; i < nib_n_fields; i++) {
        const struct nib_field *f = &nib_fields[i];
        if (f->scope != NIB_SCOPE_LAYER) {
            unload_field(owner_of(w, c, f, -1), f, api, b);
            continue;
        }
        for (int32_t l = 0; w->layer && l <= c->n_layers; l++)
            unload_field(owner_of(w, c, f, l), f, api, b);
    }
    if (w->rope_plain)
        api->release(b, w->rope_plain);
    if (w->rope_compressed)
        api->release(b, w->rope_compressed);
    free(w->layer);
    memset(w, 0, sizeof *w);
}
