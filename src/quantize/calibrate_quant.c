/* Calibration: the engine's layers run over a text one after the other, each with its weights loaded alone, and the
 * inputs of its projections are observed.
 *
 * What is kept between layers is the streams of all tokens, once in front of the layer and once behind. When a matrix
 * of layer L is asked for, layers up to L have been run; inputs of L are observed in one run, or, where second moments
 * of all of them do not fit, in several, a stretch of inputs each. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "quantize/calibration_text.h"
#include "quantize/observe_quant.h"

/* Inputs seen in fewer rows than this lean on those of the whole layer. */
#define PRIOR_ROWS 32.0

struct nib_quant_calibration {
    const struct nib_quant_plan  *plan;
    struct nib_model             *model;
    struct nib_rank               rank;
    struct nib_quant_text         text;
    float                        *streams, *next; /* [n_tokens][n_hc * dim] before and behind `layer` */
    int32_t                       layer;          /* whose inputs are in `streams`; -1: nothing yet */
    bool                          next_valid;
    struct nib_quant_observer     observer;
    struct nib_ops                table;
    struct nib_quant_input       *input; /* [n_inputs] */
    int32_t                       n_inputs, first, end; /* observed: [first, end) */
    uint64_t                      budget_bytes;  /* of second moments */
    int32_t                      *host, *device; /* integers of a step */
    int32_t                       n_threads;
    float                        *mean_square; /* handed out */
    double                       *hessian;
};

static uint64_t stream_floats(const struct nib_quant_calibration *c)
{
    return (uint64_t)c->model->config.n_hc * (uint64_t)c->model->config.dim;
}

/* ---- Running a layer ---- */

/* Rows of one whole sequence from position 0. */
static enum nib_status fill_rows(struct nib_quant_calibration *c, const struct nib_seq_state *s, const int32_t *token,
                                 int32_t n, struct nib_rows *rows)
{
    const int32_t stride = c->rank.pool.page_stride;
    int32_t      *at = c->host;
    memcpy(at, token, (size_t)n * sizeof *at);
    for (int32_t i = 0; i < n; i++) {
        at[n + i] = i;
        at[2 * n + i] = 0;
    }
    int32_t *rest = at + 3 * n;
    rest[0] = 0;
    rest[1] = n;
    rest[2] = s->slot;
    memcpy(rest + 3, s->window_page, (size_t)stride * sizeof *rest);
    memcpy(rest + 3 + stride, s->entry_page, (size_t)stride * sizeof *rest);
    const int32_t *d = c->device, *dr = d + 3 * n;
    *rows = (struct nib_rows){.n_rows = n,
                              .n_seqs = 1,
                              .token = d,
                              .pos = d + n,
                              .seq = d + 2 * n,
                              .seq_start = dr,
                              .slot = dr + 2,
                              .window_page = dr + 3,
                              .entry_page = dr + 3 + stride,
                              .page_stride = stride};
    return c->rank.api->upload(c->rank.stream, c->device, c->host, (size_t)(3 * n + 3 + 2 * stride) * sizeof *c->host);
}

/* layer -1: the embedding. */
static enum nib_status run_sequence(struct nib_quant_calibration *c, int32_t layer, int64_t first, int32_t n)
{
    struct nib_rank     *rk = &c->rank;
    struct nib_seq_state state;
    struct nib_rows      rows;
    const uint64_t       width = stream_floats(c);
    NIB_TRY(nib_seq_state_init(&rk->pool, &state));
    enum nib_status status = nib_pool_reserve(&rk->pool, (struct nib_seq_state *const[]){&state}, &n, 1);
    if (status == NIB_OK)
        status = fill_rows(c, &state, c->text.id + first, n, &rows);
    const size_t bytes = (size_t)n * (size_t)width * sizeof(float);
    if (status == NIB_OK && layer < 0)
        status = rk->ops->embed(rk->stream, &(struct nib_embed_args){.token = rows.token,
                                                                     .n_rows = n,
                                                                     .n_copies = rk->config->n_hc,
                                                                     .w = rk->weights.embed,
                                                                     .y = nib_mat_rows(rk->work.streams, n)});
    else if (status == NIB_OK) {
        status = rk->api->upload(rk->stream, rk->work.streams.data, c->streams + (uint64_t)first * width, bytes);
        if (status == NIB_OK)
            status = nib_block(rk, &rows, &rk->weights.layer[layer], layer, rk->work.streams);
    }
    if (status == NIB_OK)
        status = rk->api->download(rk->stream, c->next + (uint64_t)first * width, rk->work.streams.data, bytes);
    nib_seq_state_advance(&rk->pool, &state, status == NIB_OK ? n : 0);
    nib_seq_state_deinit(&rk->pool, &state);
    return status == NIB_OK ? c->observer.status : status;
}

/* The sources of a layer (or, for -1, the embedding) stand together in model order. */
static struct nib_sources part_of(const struct nib_sources *all, int32_t layer)
{
    struct nib_sources part = *all;
    int32_t            begin = 0;
    while (begin < all->n && all->source[begin].layer != layer)
        begin++;
    int32_t end = begin;
    while (end < all->n && all->source[end].layer == layer && (layer >= 0 || end == begin))
        end++;
    part.source = all->source + begin;
    part.n = end - begin;
    return part;
}

static const struct nib_source *find_source(const struct nib_sources *part, size_t offset)
{
    for (int32_t i = 0; i < part->n; i++)
        if (part->source[i].field->scope == NIB_SCOPE_LAYER && part->source[i].field->offset == offset)
            return &part->source[i];
    return NULL;
}

/* `layer` over the whole text, from streams to next; with its inputs observed. */
static enum nib_status run_layer(struct nib_quant_calibration *c, int32_t layer, bool observe, struct nib_error *err)
{
    struct nib_rank         *rk = &c->rank;
    const struct nib_sources part = part_of(&c->model->sources, layer);
    NIB_TRY(nib_weights_load(
        &(struct nib_load_args){
            .config = rk->config, .sources = &part, .api = rk->api, .backend = rk->backend, .act_quant = rk->act_quant},
        &rk->weights, err));
    struct nib_quant_observer *o = &c->observer;
    o->status = NIB_OK;
    rk->ops = rk->api->ops;
    if (observe) {
        o->layer = &rk->weights.layer[layer];
        o->w1 = find_source(&part, offsetof(struct nib_layer, w1));
        o->w3 = find_source(&part, offsetof(struct nib_layer, w3));
        o->sw1 = find_source(&part, offsetof(struct nib_layer, sw1));
        o->sw3 = find_source(&part, offsetof(struct nib_layer, sw3));
        rk->ops = nib_quant_observe(o, &c->table);
    }
    enum nib_status status = NIB_OK;
    for (int64_t i = 0; i < c->text.n_pieces && status == NIB_OK; i++)
        status = run_sequence(c, layer, c->text.start[i], (int32_t)(c->text.start[i + 1] - c->text.start[i]));
    (void)nib_quant_observe(NULL, NULL);
    nib_weights_unload(&rk->weights, rk->config, rk->api, rk->backend);
    c->next_valid = status == NIB_OK;
    return status == NIB_OK ? NIB_OK : nib_error_set(err, status, "calibration could not run layer %d", (int)layer);
}

static void release_inputs(struct nib_quant_calibration *c)
{
    for (int32_t i = 0; i < c->n_inputs; i++) {
        free(c->input[i].square);
        free(c->input[i].product);
        c->input[i] = (struct nib_quant_input){.n_in = c->input[i].n_in};
    }
    c->first = c->end = 0;
}

static enum nib_status advance_to(struct nib_quant_calibration *c, int32_t layer, struct nib_error *err)
{
    while (c->layer < layer) {
        if (!c->next_valid)
            NIB_TRY(run_layer(c, c->layer, false, err));
        float *behind = c->next;
        c->next = c->streams;
        c->streams = behind;
        c->next_valid = false;
        c->layer++;
        release_inputs(c);
    }
    return NIB_OK;
}

/* ---- Inputs ---- */

/* Observe from `input` on: all of them, or as many as have room for their second moments. */
static enum nib_status observe_from(struct nib_quant_calibration *c, int32_t input, struct nib_error *err)
{
    const bool gptq = c->plan->options->method == NIB_QUANT_GPTQ;
    uint64_t   used = 0;
    release_inputs(c);
    c->first = gptq ? input : 0;
    for (c->end = c->first; c->end < c->n_inputs; c->end++) {
        struct nib_quant_input *in = &c->input[c->end];
        const uint64_t          n2 = (uint64_t)in->n_in * (uint64_t)in->n_in * sizeof *in->product;
        if (gptq && used + n2 > c->budget_bytes && c->end > input)
            break;
        used += n2;
        in->square = calloc((size_t)in->n_in, sizeof *in->square);
        in->product = gptq ? calloc((size_t)n2, 1) : NULL;
        if (!in->square || (gptq && !in->product))
            return nib_error_set(err, NIB_E_MEMORY, "no memory for the second moments of %" PRId64 " channels",
                                 in->n_in);
    }
    /* The whole layer's input is what rare experts lean on; its squares are always kept. */
    if (!c->input[NIB_INPUT_FFN].square)
        c->input[NIB_INPUT_FFN].square = calloc((size_t)c->input[NIB_INPUT_FFN].n_in, sizeof(double));
    if (!c->input[NIB_INPUT_FFN].square)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for input statistics");
    return run_layer(c, c->layer, true, err);
}

/* Which input a matrix reads; -1: none that is observed. */
static int32_t input_of(const struct nib_quant_calibration *c, const struct nib_quant_unit *u)
{
    static const struct {
        size_t  offset;
        int32_t input;
    } map[] = {{offsetof(struct nib_layer, wq_a), NIB_INPUT_ATTN},
               {offsetof(struct nib_layer, wkv), NIB_INPUT_ATTN},
               {offsetof(struct nib_layer, compress.wkv), NIB_INPUT_ATTN},
               {offsetof(struct nib_layer, compress.wgate), NIB_INPUT_ATTN},
               {offsetof(struct nib_layer, index.wkv), NIB_INPUT_ATTN},
               {offsetof(struct nib_layer, index.wgate), NIB_INPUT_ATTN},
               {offsetof(struct nib_layer, index_weights), NIB_INPUT_ATTN},
               {offsetof(struct nib_layer, wq_b), NIB_INPUT_Q},
               {offsetof(struct nib_layer, index_wq_b), NIB_INPUT_Q},
               {offsetof(struct nib_layer, wo_b), NIB_INPUT_O},
               {offsetof(struct nib_layer, sw1), NIB_INPUT_FFN},
               {offsetof(struct nib_layer, sw3), NIB_INPUT_FFN},
               {offsetof(struct nib_layer, sw2), NIB_INPUT_SHARED_INNER}};
    const struct nib_field *f = u->id.field;
    if (f->scope != NIB_SCOPE_LAYER || u->id.layer < 0 || u->id.layer >= c->model->config.n_layers)
        return -1;
    if (f->kind == NIB_FIELD_EXPERTS)
        return NIB_INPUT_EXPERTS + 2 * u->id.expert + (f->offset == offsetof(struct nib_layer, w2));
    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++)
        if (map[i].offset == f->offset)
            return map[i].input;
    return -1;
}

static bool is_expert_input(int32_t input, bool *inner)
{
    *inner = input == NIB_INPUT_SHARED_INNER || (input > NIB_INPUT_EXPERTS && (input - NIB_INPUT_EXPERTS) % 2 == 1);
    return input >= NIB_INPUT_EXPERTS;
}

/* Means, with PRIOR_ROWS rows of what the layer's inputs are like mixed in for an expert: all tokens' means for what w1
 * and w3 read, equal channels for what w2 reads. */
static void hand_out(struct nib_quant_calibration *c, int32_t input, struct nib_quant_inputs *out)
{
    const struct nib_quant_input *in = &c->input[input], *all = &c->input[NIB_INPUT_FFN];
    const int64_t n = in->n_in;
    bool          inner;
    const bool    expert = is_expert_input(input, &inner);
    const double  rows = (double)in->n_rows, prior = expert ? PRIOR_ROWS : 0, total = rows + prior;
    double        flat = 0;
    for (int64_t k = 0; k < n; k++)
        flat += in->square[k] / (double)n / (rows > 0 ? rows : 1);
    for (int64_t k = 0; k < n; k++) {
        const double usual = inner ? flat : all->n_rows ? all->square[k] / (double)all->n_rows : 0;
        const double mean = (in->square[k] + prior * usual) / (total > 0 ? total : 1);
        c->mean_square[k] = (float)mean;
        for (int64_t j = k; in->product && j < n; j++) {
            const double v = j == k ? mean : in->product[k * n + j] / (total > 0 ? total : 1);
            c->hessian[k * n + j] = c->hessian[j * n + k] = v;
        }
    }
    *out = (struct nib_quant_inputs){.n_in = n, .n_rows = in->n_rows, .amax = in->amax, .measured = in->n_rows > 0,
                                     .mean_square = c->mean_square, .hessian = in->product ? c->hessian : NULL};
    if (in->n_rows > 0 || !expert || all->n_rows == 0)
        return;
    /* Never routed to: as if all tokens had been, or for w2 as far as any sibling observed went. */
    out->n_rows = all->n_rows;
    out->amax = inner ? 0 : all->amax;
    for (int32_t i = NIB_INPUT_EXPERTS + 1; inner && i < c->n_inputs; i += 2)
        out->amax = c->input[i].amax > out->amax ? c->input[i].amax : out->amax;
    for (int64_t k = 0; inner && k < n; k++)
        c->mean_square[k] = 1;
    out->hessian = NULL;
}

enum nib_status nib_quant_calibration_inputs(struct nib_quant_calibration *c, const struct nib_quant_unit *u,
                                             bool *found, struct nib_quant_inputs *out, struct nib_error *err)
{
    const int32_t input = input_of(c, u);
    /* A matrix that no layer reads may have any width. */
    *found = input >= 0 && c->text.n > 0 && c->input[input].n_in == u->m.cols;
    if (!*found)
        return NIB_OK;
    NIB_TRY(advance_to(c, u->id.layer, err));
    if (input < c->first || input >= c->end)
        NIB_TRY(observe_from(c, input, err));
    hand_out(c, input, out);
    return NIB_OK;
}

/* ---- Opening ---- */

static enum nib_status take_inputs(struct nib_quant_calibration *c)
{
    const struct nib_config *m = &c->model->config;
    c->n_inputs = NIB_INPUT_EXPERTS + 2 * m->n_experts;
    c->input = calloc((size_t)c->n_inputs, sizeof *c->input);
    if (!c->input)
        return NIB_E_MEMORY;
    int64_t widest = 0;
    for (int32_t i = 0; i < c->n_inputs; i++) {
        bool inner;
        (void)is_expert_input(i, &inner);
        c->input[i].n_in = i == NIB_INPUT_Q                ? m->q_rank
                           : i == NIB_INPUT_O              ? m->n_groups * m->o_rank
                           : i == NIB_INPUT_SHARED_INNER   ? m->n_inner * m->n_shared
                           : inner                         ? m->n_inner
                                                           : m->dim;
        widest = c->input[i].n_in > widest ? c->input[i].n_in : widest;
    }
    c->mean_square = calloc((size_t)widest, sizeof *c->mean_square);
    c->hessian = c->plan->options->method == NIB_QUANT_GPTQ ? calloc((size_t)(widest * widest), sizeof *c->hessian)
                                                            : NULL;
    return c->mean_square && (c->hessian || c->plan->options->method != NIB_QUANT_GPTQ) ? NIB_OK : NIB_E_MEMORY;
}

static enum nib_status open_rank(struct nib_quant_calibration *c, struct nib_error *err)
{
    struct nib_options asked, o;
    struct nib_rank   *rk = &c->rank;
    nib_options_init(&asked);
    asked.backend = "cpu"; /* the observer reads rows where they are */
    asked.n_threads = c->n_threads;
    asked.n_ctx = c->text.n_longest > 0 ? c->text.n_longest : 1;
    asked.n_rows_max = asked.n_ctx;
    asked.act_quant = NIB_ACT_QUANT_NONE;
    asked.kv = NIB_KV_F32;
    NIB_TRY(nib_options_resolve(c->model, &asked, &o, err));
    const struct nib_backend_config bc = nib_backend_config_for(&c->model->config, &o);
    const struct nib_pool_config    pc = nib_pool_config_for(&c->model->config, &o);
    rk->api = nib_backend_find(o.backend);
    rk->ops = rk->api->ops;
    rk->config = &c->model->config;
    rk->act_quant = o.act_quant;
    rk->numerics = o.numerics;
    NIB_TRY(rk->api->open(&bc, &rk->backend, err));
    rk->stream = rk->api->stream(rk->backend);
    NIB_TRY(nib_work_init(rk, o.n_rows_max, 1, false, err));
    NIB_TRY(nib_pool_init(&rk->pool, &pc, rk->api, rk->backend, rk->work.dtype, err));
    const size_t integers = (size_t)(3 * asked.n_ctx + 3 + 2 * rk->pool.page_stride);
    c->host = malloc(integers * sizeof *c->host);
    c->device = rk->api->alloc(rk->backend, integers * sizeof *c->device);
    c->observer = (struct nib_quant_observer){.config = rk->config,
                                              .ops = rk->api->ops,
                                              .input = c->input,
                                              .rows_max = asked.n_ctx,
                                              .n_threads = c->n_threads};
    c->observer.chosen = rk->api->alloc(rk->backend, (size_t)asked.n_ctx * (size_t)rk->config->top_k * sizeof(int32_t));
    return c->host && c->device && c->observer.chosen ? NIB_OK
                                                      : nib_error_set(err, NIB_E_MEMORY, "no memory for calibration");
}

static enum nib_status open_all(struct nib_quant_calibration *c, struct nib_error *err)
{
    const struct nib_quantize_options *o = c->plan->options;
    NIB_TRY(nib_model_open(c->plan->src, &c->model, err));
    NIB_TRY(nib_quant_text_read(o->calibrate, c->plan->src, &c->model->config, &c->text, err));
    const uint64_t bytes = 2 * (uint64_t)c->text.n * stream_floats(c) * sizeof(float);
    if (bytes > o->memory_bytes / 2)
        return nib_error_set(err, NIB_E_LIMIT,
                             "'%s' has %" PRId64 " tokens, whose streams take %" PRIu64
                             " MiB; wanted at most half of the %" PRIu64 " MiB allowed: shorten it or raise --memory",
                             o->calibrate, c->text.n, bytes >> 20, o->memory_bytes >> 20);
    c->budget_bytes = o->memory_bytes / 4;
    c->streams = malloc((size_t)bytes / 2 + 1);
    c->next = malloc((size_t)bytes / 2 + 1);
    if (!c->streams || !c->next || take_inputs(c) != NIB_OK)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for calibration");
    NIB_TRY(open_rank(c, err));
    NIB_TRY(run_layer(c, -1, false, err));
    return advance_to(c, 0, err);
}

enum nib_status nib_quant_calibration_open(const struct nib_quant_plan *p, int32_t n_threads,
                                           struct nib_quant_calibration **out, struct nib_error *err)
{
    *out = NULL;
    struct nib_quant_calibration *c = calloc(1, sizeof *c);
    if (!c)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for calibration");
    c->plan = p;
    c->n_threads = n_threads;
    c->layer = -1;
    const enum nib_status status = open_all(c, err);
    if (status == NIB_OK)
        *out = c;
    else
        nib_quant_calibration_close(c);
    return status;
}

void nib_quant_calibration_close(struct nib_quant_calibration *c)
{
    if (!c)
        return;
    struct nib_rank *rk = &c->rank;
    if (c->input)
        release_inputs(c);
    if (rk->backend) {
        rk->api->release(rk->backend, c->device);
        rk->api->release(rk->backend, c->observer.chosen);
        nib_work_deinit(rk);
        if (rk->pool.api)
            nib_pool_deinit(&rk->pool);
        rk->api->close(rk->backend);
    }
    nib_quant_text_free(&c->text);
    free(c->streams);
    free(c->next);
    free(c->input);
    free(c->host);
    free(c->mean_square);
    free(c->hessian);
    nib_model_close(c->model);
    free(c);
}
