/* Engines and sequences: what is taken at open, and given back in reverse. */
#include "engine/draft.h"
#include "engine/observe.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static enum nib_status sample_init(struct nib_engine *e)
{
    const struct nib_rank *rk = &e->rank;
    const size_t vocab = (size_t)e->model->config.vocab;
    const size_t n = NIB_DRAFTS_MAX + 1;
    e->sample.row = rk->api->alloc(rk->backend, n * sizeof *e->sample.row);
    e->sample.token = rk->api->alloc(rk->backend, n * sizeof *e->sample.token);
    e->sample.logprob = rk->api->alloc(rk->backend, n * sizeof *e->sample.logprob);
    e->sample.history_token = rk->api->alloc(rk->backend, vocab * sizeof(int32_t));
    e->sample.history_times = rk->api->alloc(rk->backend, vocab * sizeof(int32_t));
    e->sample.host_times = calloc(vocab, sizeof(int32_t));
    e->sample.host_list = calloc(vocab, sizeof(int32_t));
    e->sample.host_list_times = calloc(vocab, sizeof(int32_t));
    const bool ok = e->sample.row && e->sample.token && e->sample.logprob && e->sample.history_token && e->sample.history_times &&
                    e->sample.host_times && e->sample.host_list && e->sample.host_list_times;
    return ok ? NIB_OK : NIB_E_MEMORY;
}

static enum nib_status step_buffer_init(struct nib_engine *e)
{
    const struct nib_options *o = &e->options;
    e->step.n = nib_step_buffer_size(o->n_rows_max, o->n_seqs_max, e->rank.pool.page_stride,
                                     e->rank.pool.config.n_rollback);
    e->step.host = malloc(e->step.n * sizeof *e->step.host);
    e->step.device = e->rank.api->alloc(e->rank.backend, e->step.n * sizeof *e->step.device);
    e->step.state = calloc((size_t)o->n_seqs_max, sizeof *e->step.state);
    e->step.n_new = calloc((size_t)o->n_seqs_max, sizeof *e->step.n_new);
    return e->step.host && e->step.device && e->step.state && e->step.n_new ? NIB_OK : NIB_E_MEMORY;
}

static enum nib_status open_parts(struct nib_engine *e, struct nib_error *err)
{
    struct nib_rank *rk = &e->rank;
    const struct nib_options *o = &e->options;
    const struct nib_backend_config bc = nib_backend_config_for(&e->model->config, o);
    const struct nib_pool_config pc = nib_pool_config_for(&e->model->config, o);

    NIB_TRY(rk->api->open(&bc, &rk->backend, err));
    rk->stream = rk->api->stream(rk->backend);
    NIB_TRY(nib_work_init(rk, o->n_rows_max, nib_logits_rows(o), o->mtp, err));
    NIB_TRY(nib_pool_init(&rk->pool, &pc, rk->api, rk->backend, rk->work.dtype, err));
    if (step_buffer_init(e) != NIB_OK || sample_init(e) != NIB_OK || nib_drafts_init(e) != NIB_OK)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for the step buffers");
    return nib_weights_load(&(struct nib_load_args){
        .config = &e->model->config, .sources = &e->model->sources, .api = rk->api, .backend = rk->backend,
        .act_quant = o->act_quant, .mtp = o->mtp, .progress = o->progress, .progress_user = o->progress_user}, &rk->weights, err);
}

/* Where what is free is known exactly, too little of it is said before minutes of loading. Elsewhere the estimate may
 * be wrong. */
static enum nib_status check_memory(const struct nib_model *m, const struct nib_options *o, struct nib_error *err)
{
    struct nib_memory_plan plan;
    struct nib_device_info device;
    NIB_TRY(nib_model_plan(m, o, &plan, err));
    if (nib_device_get(o->backend, 0, &device, NULL) != NIB_OK || !device.exact || plan.total_bytes <= device.available_bytes)
        return NIB_OK; /* open() says what is wrong with a device that cannot be asked */
    return nib_error_set(err, NIB_E_MEMORY, "%s: %.1f GiB are needed (weights %.1f, context %.1f, workspace %.1f), %.1f GiB are free on '%s'",
                         o->backend, (double)plan.total_bytes / 0x1p30, (double)plan.weights_bytes / 0x1p30,
                         (double)plan.kv_bytes / 0x1p30, (double)plan.workspace_bytes / 0x1p30,
                         (double)device.available_bytes / 0x1p30, device.name);
}

enum nib_status nib_engine_open(struct nib_model *m, const struct nib_options *o, struct nib_engine **out, struct nib_error *err)
{
    *out = NULL;
    struct nib_engine *e = calloc(1, sizeof *e);
    if (!e)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for an engine");
    e->model = m;
    enum nib_status status = nib_options_resolve(m, o, &e->options, err);
    if (status != NIB_OK)
        goto fail;
    e->rank.api = nib_backend_find(e->options.backend);
    e->options.backend = e->rank.api->name; /* lives as long as the program, unlike the caller's text */
    e->rank.ops = e->rank.api->ops;
    e->rank.config = &m->config;
    e->rank.act_quant = e->options.act_quant;
    e->rank.numerics = e->options.numerics;
    status = check_memory(m, &e->options, err);
    if (status == NIB_OK)
        status = open_parts(e, err);
    e->options.cpu = e->options.selftest_file = NULL; /* the caller's text; the backend has taken what it says */
    if (status != NIB_OK)
        goto fail;
    status = nib_observer_open(e, err);
    if (status != NIB_OK)
        goto fail;
    *out = e;
    return NIB_OK;
fail:
    nib_engine_close(e);
    return status;
}

void nib_engine_close(struct nib_engine *e)
{
    if (!e)
        return;
    struct nib_rank *rk = &e->rank;
    nib_observer_close(e);
    if (rk->backend) {
        void *const owned[] = {e->step.device,       e->sample.row,           e->sample.token, e->sample.logprob,
                               e->sample.history_token, e->sample.history_times};
        nib_weights_unload(&rk->weights, rk->config, rk->api, rk->backend);
        nib_work_deinit(rk);
        if (rk->pool.api)
            nib_pool_deinit(&rk->pool);
        for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++)
            rk->api->release(rk->backend, owned[i]);
        rk->api->close(rk->backend);
    }
    free(e->step.host);
    free(e->step.state);
    free(e->step.n_new);
    free(e->sample.host_times);
    free(e->sample.host_list);
    free(e->sample.host_list_times);
    nib_drafts_deinit(e);
    free(e);
}

/* What an op found goes before what the backend says. */
static void find_reason(struct nib_engine *e)
{
    if (e->op_error.text[0] == '\0' && e->rank.api->why)
        e->rank.api->why(e->rank.stream, &e->op_error);
}

void nib_engine_break(struct nib_engine *e)
{
    find_reason(e);
    if (!e->broken)
        (void)nib_error_set(&e->why_broken, NIB_E_DEVICE, "%s", e->op_error.text[0] ? e->op_error.text : "no reason was given");
    e->broken = true;
}

enum nib_status nib_engine_failed(struct nib_engine *e, enum nib_status status, const char *what, struct nib_error *err)
{
    if (status == NIB_E_DEVICE)
        nib_engine_break(e);
    find_reason(e);
    if (e->op_error.text[0] == '\0')
        return nib_error_set(err, status, "backend '%s' failed to %s", e->rank.api->name, what);
    (void)nib_error_set(err, status, "%s", e->op_error.text);
    e->op_error.text[0] = '\0';
    return status;
}

const struct nib_options *nib_engine_options(const struct nib_engine *e)
{
    return &e->options;
}

enum nib_status nib_seq_open(struct nib_engine *e, struct nib_seq **out, struct nib_error *err)
{
    *out = NULL;
    struct nib_seq *s = calloc(1, sizeof *s);
    if (!s)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for a sequence");
    const enum nib_status status = nib_seq_state_init(&e->rank.pool, &s->state);
    if (status != NIB_OK) {
        free(s);
        return status == NIB_E_LIMIT ? nib_error_set(err, status, "%" PRId32 " sequences are open, as many as this engine was opened for",
                                                     e->rank.pool.n_slots_used)
                                     : nib_error_set(err, status, "no memory for a sequence's page table");
    }
    s->engine = e;
    *out = s;
    return NIB_OK;
}

void nib_seq_close(struct nib_seq *s)
{
    if (!s)
        return;
    nib_seq_state_deinit(&s->engine->rank.pool, &s->state);
    free(s);
}

int32_t nib_seq_length(const struct nib_seq *s)
{
    return s->state.length;
}

enum nib_status nib_seq_truncate(struct nib_seq *s, int32_t length)
{
    return nib_seq_state_truncate(&s->engine->rank.pool, &s->state, length);
}

enum nib_status nib_seq_fork(struct nib_seq *s, struct nib_seq **out, struct nib_error *err)
{
    NIB_TRY(nib_seq_open(s->engine, out, err));
    const enum nib_status status = nib_seq_state_copy(&s->engine->rank.pool, &(*out)->state, &s->state);
    if (status != NIB_OK) {
        nib_seq_close(*out);
        *out = NULL;
        return nib_error_set(err, status, "the backend could not copy a sequence's state");
    }
    return NIB_OK;
}
