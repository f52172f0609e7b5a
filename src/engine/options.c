/* Options: defaults, resolution against a model, and the memory plan they imply. */
#include "engine/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define N_CTX_DEFAULT 8192
#define N_ROWS_MAX    65536
/* A GPU reads the experts' weights for each step of a long prompt, so few long steps are faster: docs/kernels/cuda.md. */
enum { N_ROWS_DEFAULT = 256, N_ROWS_DEFAULT_GPU = 2048 };

void nib_options_init(struct nib_options *o)
{
    *o = (struct nib_options){.backend = "auto", .n_seqs_max = 1, .n_rollback = 16,
                              .act_quant = NIB_ACT_QUANT_AUTO, .kv = NIB_KV_BF16, .numerics = NIB_NUMERICS_AUTO, .cpu_mask = ~0u};
}

static enum nib_status check_range(const char *name, int64_t found, int64_t low, int64_t high, struct nib_error *err)
{
    if (found >= low && found <= high)
        return NIB_OK;
    return nib_error_set(err, NIB_E_ARGUMENT, "%s is %" PRId64 ", wanted %" PRId64 " to %" PRId64, name, found, low,
                         high);
}

static enum nib_act_quant auto_act_quant(const struct nib_options *o)
{
    const struct nib_backend_api   *api = nib_backend_find(o->backend);
    const struct nib_backend_config c = {.cpu_mask = o->cpu_mask, .cpu_level = o->cpu};
    return api->prefers_int8 && api->prefers_int8(&c) ? NIB_ACT_QUANT_INT8 : NIB_ACT_QUANT_NONE;
}

/* The release is one fixed set of roundings. A caller that left kv and act_quant at their defaults gets them. */
static enum nib_status resolve_numerics(struct nib_options *o, struct nib_error *err)
{
    if (o->numerics == NIB_NUMERICS_AUTO)
        o->numerics = nib_backend_find(o->backend)->prefers_bf16 ? NIB_NUMERICS_BF16 : NIB_NUMERICS_MODEL;
    if (o->numerics != NIB_NUMERICS_RELEASE) {
        if (o->act_quant == NIB_ACT_QUANT_AUTO)
            o->act_quant = auto_act_quant(o);
        return NIB_OK;
    }
    if (o->act_quant != NIB_ACT_QUANT_AUTO && o->act_quant != NIB_ACT_QUANT_FP8)
        return nib_error_set(err, NIB_E_ARGUMENT,
                             "release numerics quantise activations to fp8; another act_quant was asked for");
    if (o->kv != NIB_KV_BF16 && o->kv != NIB_KV_FP8)
        return nib_error_set(err, NIB_E_ARGUMENT, "release numerics keep KV rows in fp8; another kv was asked for");
    o->act_quant = NIB_ACT_QUANT_FP8;
    o->kv = NIB_KV_FP8;
    return NIB_OK;
}

/* The list has the best last; some of them may have nothing to run on here. */
static const char *best_backend(void)
{
    struct nib_device_info device;
    const char *best = NULL;
    for (const struct nib_backend_api *const *b = nib_backends(); *b; b++)
        if ((*b)->device(0, &device, NULL) == NIB_OK && device.usable)
            best = (*b)->name;
    return best;
}

enum nib_status nib_options_resolve(const struct nib_model *m, const struct nib_options *o, struct nib_options *out,
                                    struct nib_error *err)
{
    *out = *o;
    if (out->backend && strcmp(out->backend, "auto") == 0)
        out->backend = best_backend();
    if (!out->backend || !nib_backend_find(out->backend))
        return nib_error_set(err, NIB_E_ARGUMENT, "backend '%s' is not in this build",
                             out->backend ? out->backend : "(none)");
    if (out->n_ctx == 0)
        out->n_ctx = m->config.n_ctx_max < N_CTX_DEFAULT ? m->config.n_ctx_max : N_CTX_DEFAULT;
    if (out->n_rows_max == 0)
        out->n_rows_max = nib_backend_find(out->backend)->prefers_bf16 ? N_ROWS_DEFAULT_GPU : N_ROWS_DEFAULT;
    NIB_TRY(check_range("n_ctx", out->n_ctx, 1, m->config.n_ctx_max, err));
    NIB_TRY(check_range("n_seqs_max", out->n_seqs_max, 1, 4096, err));
    NIB_TRY(check_range("n_rows_max", out->n_rows_max, 1, N_ROWS_MAX, err));
    NIB_TRY(check_range("n_rollback", out->n_rollback, 0, 1024, err));
    NIB_TRY(check_range("n_drafts", out->n_drafts, 0, NIB_DRAFTS_MAX, err));
    NIB_TRY(check_range("n_kv_pages", out->n_kv_pages, 0, INT32_MAX, err));
    NIB_TRY(check_range("n_threads", out->n_threads, 0, 1024, err));
    NIB_TRY(check_range("act_quant", (int64_t)out->act_quant, NIB_ACT_QUANT_AUTO, NIB_ACT_QUANT_INT8, err));
    NIB_TRY(check_range("kv", (int64_t)out->kv, NIB_KV_F32, NIB_KV_NVFP4, err));
    NIB_TRY(check_range("numerics", (int64_t)out->numerics, NIB_NUMERICS_MODEL, NIB_NUMERICS_AUTO, err));
    if (out->compare && strcmp(out->compare, "ref") != 0)
        return nib_error_set(err, NIB_E_ARGUMENT, "compare is '%s', wanted 'ref'", out->compare);
    out->mtp = out->mtp || out->n_drafts > 0;
    if (out->mtp && !m->sources.has_mtp)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "'%s' has no MTP block%s", m->dir,
                             out->n_drafts > 0 ? ", which makes the drafts" : "");
    return resolve_numerics(out, err);
}

struct nib_backend_config nib_backend_config_for(const struct nib_config *c, const struct nib_options *o)
{
    return (struct nib_backend_config){
        .dims = {.n_rows_max = o->mtp ? o->n_rows_max * c->n_hc : o->n_rows_max, .n_seqs_max = o->n_seqs_max, .n_ctx_max = o->n_ctx,
                 .dim = c->dim, .n_hc = c->n_hc, .n_heads = c->n_heads, .head_dim = c->head_dim, .n_rot = c->n_rot,
                 .q_rank = c->q_rank, .n_groups = c->n_groups, .o_rank = c->o_rank, .n_window = c->n_window,
                 .n_index_heads = c->n_index_heads, .index_dim = c->index_dim, .index_top_k = c->index_top_k,
                 .n_experts = c->n_experts, .top_k = c->top_k, .n_inner = c->n_inner, .n_inner_shared = c->n_inner * c->n_shared,
                 .vocab = c->vocab},
        .n_threads = o->n_threads, .cpu_mask = o->cpu_mask, .cpu_level = o->cpu, .selftest_file = o->selftest_file};
}

struct nib_pool_config nib_pool_config_for(const struct nib_config *c, const struct nib_options *o)
{
    /* Rejected drafts have overwritten what lies a ring behind them, so they get room of their own. */
    return (struct nib_pool_config){.model = c, .kv = o->kv, .n_ctx = o->n_ctx, .n_seqs_max = o->n_seqs_max,
                                    .n_rows_max = o->n_rows_max, .n_rollback = o->n_rollback + o->n_drafts,
                                    .n_pages = o->n_kv_pages, .mtp = o->mtp};
}

int32_t nib_logits_rows(const struct nib_options *o)
{
    const int32_t n = o->n_seqs_max > 32 ? o->n_seqs_max : 32;
    return n < o->n_rows_max ? n : o->n_rows_max;
}

enum nib_status nib_device_get(const char *backend, int32_t i, struct nib_device_info *out, struct nib_error *err)
{
    const struct nib_backend_api *api = nib_backend_find(backend);
    memset(out, 0, sizeof *out);
    if (!api)
        return nib_error_set(err, NIB_E_ARGUMENT, "backend '%s' is not in this build", backend ? backend : "(null)");
    return api->device(i, out, err);
}

enum nib_status nib_model_plan(const struct nib_model *m, const struct nib_options *o, struct nib_memory_plan *out,
                               struct nib_error *err)
{
    struct nib_options r;
    memset(out, 0, sizeof *out);
    NIB_TRY(nib_options_resolve(m, o, &r, err));
    const struct nib_backend_api *api = nib_backend_find(r.backend);
    const struct nib_backend_config bc = nib_backend_config_for(&m->config, &r);
    const struct nib_pool_config pc = nib_pool_config_for(&m->config, &r);

    for (int32_t i = 0; i < m->sources.n; i++)
        if (r.mtp || m->sources.source[i].layer != m->config.n_layers)
            out->weights_bytes += nib_source_device_bytes(&m->sources.source[i], api, r.act_quant);
    out->kv_bytes = nib_pool_bytes(&pc, &out->kv_bytes_per_seq);
    out->workspace_bytes = api->scratch_bytes(&bc) +
                           nib_work_bytes(&m->config, r.n_rows_max, nib_logits_rows(&r), r.mtp, nib_work_dtype(r.numerics), r.act_quant);
    out->total_bytes = out->weights_bytes + out->kv_bytes + out->workspace_bytes;
    struct nib_device_info device;
    if (nib_device_get(r.backend, 0, &device, NULL) == NIB_OK)
        out->available_bytes = device.available_bytes;
    out->backend = api->name;
    out->n_ctx = r.n_ctx;
    out->n_seqs_max = r.n_seqs_max;
    out->n_rows_max = r.n_rows_max;
    return NIB_OK;
}
