/* The second opinion: the model's weights on ref, and an op's inputs copied there. Pages and slots are copied as far as
 * the step's sequences hold them, under new numbers, so a shadow needs no pool of its own. */
#include "engine/observe.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/weights_table.h"
#include "number/bf16.h"
#include "number/weight_rows.h"

/* ---- Weights ---- */

static unsigned char *owner_of(struct nib_weights *w, const struct nib_config *c, const struct nib_field *f, int32_t layer)
{
    switch (f->scope) {
    case NIB_SCOPE_GLOBAL: return (unsigned char *)w;
    case NIB_SCOPE_MTP: return (unsigned char *)&w->mtp;
    case NIB_SCOPE_LAYER: return (unsigned char *)(layer == c->n_layers ? &w->mtp.layer : &w->layer[layer]);
    }
    return NULL;
}

static void *field_of(struct nib_weights *w, const struct nib_config *c, const struct nib_source *s)
{
    void *p;
    memcpy(&p, owner_of(w, c, s->field, s->layer) + s->field->offset, sizeof p);
    return p;
}

static int by_from(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const struct nib_pair *)a)->from, y = (uintptr_t)((const struct nib_pair *)b)->from;
    return (x > y) - (x < y);
}

static void pair_up(struct nib_observer *o)
{
    struct nib_shadow *s = o->shadow;
    struct nib_rank *rk = &o->engine->rank;
    const struct nib_sources *sources = &o->engine->model->sources;
    for (int32_t i = 0; i < sources->n; i++) {
        const struct nib_source *source = &sources->source[i];
        if (source->layer == rk->config->n_layers && !o->engine->options.mtp)
            continue;
        s->pair[s->n_pairs++] = (struct nib_pair){.from = field_of(&rk->weights, rk->config, source),
                                                  .to = field_of(&s->weights, rk->config, source), .source = source};
    }
    s->pair[s->n_pairs++] = (struct nib_pair){.from = rk->weights.rope_plain, .to = s->weights.rope_plain};
    s->pair[s->n_pairs++] = (struct nib_pair){.from = rk->weights.rope_compressed, .to = s->weights.rope_compressed};
    qsort(s->pair, (size_t)s->n_pairs, sizeof *s->pair, by_from);
}

enum nib_status nib_shadow_open(struct nib_observer *o, struct nib_error *err)
{
    struct nib_engine *e = o->engine;
    struct nib_rank *rk = &e->rank;
    const struct nib_backend_config bc = nib_backend_config_for(&e->model->config, &e->options);
    struct nib_shadow *s = calloc(1, sizeof *s);
    if (!s)
        return nib_error_set(err, NIB_E_MEMORY, "no memory to compare with ref");
    o->shadow = s;
    s->api = nib_backend_find("ref");
    NIB_TRY(s->api->open(&bc, &s->backend, err));
    s->stream = s->api->stream(s->backend);
    NIB_TRY(nib_weights_load(&(struct nib_load_args){
        .config = &e->model->config, .sources = &e->model->sources, .api = s->api, .backend = s->backend,
        .act_quant = e->options.act_quant, .mtp = e->options.mtp, .progress = e->options.progress,
        .progress_user = e->options.progress_user}, &s->weights, err));
    const size_t n_chosen = (size_t)e->options.n_rows_max * (size_t)rk->config->top_k;
    s->pair = calloc((size_t)e->model->sources.n + 2, sizeof *s->pair);
    s->chosen = rk->api->alloc(rk->backend, n_chosen * sizeof *s->chosen);
    s->chosen_weight = rk->api->alloc(rk->backend, n_chosen * sizeof *s->chosen_weight);
    if (!s->pair || !s->chosen || !s->chosen_weight)
        return nib_error_set(err, NIB_E_MEMORY, "no memory to compare with ref");
    pair_up(o);
    return NIB_OK;
}

void nib_shadow_close(struct nib_observer *o)
{
    struct nib_shadow *s = o->shadow;
    struct nib_rank *rk = &o->engine->rank;
    if (!s)
        return;
    for (int32_t i = 0; i < s->n_pairs; i++)
        free(s->pair[i].norm);
    free(s->pair);
    rk->api->release(rk->backend, s->chosen);
    rk->api->release(rk->backend, s->chosen_weight);
    if (s->backend) {
        nib_weights_unload(&s->weights, rk->config, s->api, s->backend);
        s->api->close(s->backend);
    }
    free(s);
    o->shadow = NULL;
}

const struct nib_pair *nib_shadow_find(const struct nib_shadow *s, const void *p, bool by_to)
{
    for (int32_t i = 0; by_to && i < s->n_pairs; i++)
        if (s->pair[i].to == p)
            return &s->pair[i];
    const struct nib_pair key = {.from = p};
    return by_to || !p ? NULL : bsearch(&key, s->pair, (size_t)s->n_pairs, sizeof key, by_from);
}

/* One row of a stored matrix. */
static void decode_row(const struct nib_source *source, const struct nib_weight_part *part, int64_t row, double *to)
{
    const int64_t n = source->n_in;
    const unsigned char *data = part->data, *scales = part->scales;
    switch (source->type) {
    case NIB_WEIGHT_F32:
        for (int64_t i = 0; i < n; i++) {
            float v;
            memcpy(&v, data + (row * n + i) * 4, 4);
            to[i] = (double)v;
        }
        return;
    case NIB_WEIGHT_BF16:
        for (int64_t i = 0; i < n; i++) {
            uint16_t v;
            memcpy(&v, data + (row * n + i) * 2, 2);
            to[i] = (double)nib_bf16_to_f32(v);
        }
        return;
    case NIB_WEIGHT_FP8: nib_fp8_weight_decode(data + row * n, scales + row / 128 * ((n + 127) / 128), n, to); return;
    case NIB_WEIGHT_MXFP4: nib_mxfp4_weight_decode(data + row * n / 2, scales + row * n / 32, n, to); return;
    case NIB_WEIGHT_NVFP4: nib_nvfp4_weight_decode(data + row * n / 2, scales + row * n / 16, n, to); return;
    }
}

const float *nib_shadow_row_norms(struct nib_shadow *s, const struct nib_weight *on_ref)
{
    struct nib_pair *p = (struct nib_pair *)(uintptr_t)nib_shadow_find(s, on_ref, true);
    if (!p || p->norm)
        return p ? p->norm : NULL;
    const struct nib_source *source = p->source;
    double *row = malloc((size_t)source->n_in * sizeof *row);
    p->norm = malloc((size_t)source->n_stack * (size_t)source->n_out * sizeof *p->norm);
    for (int64_t k = 0; row && p->norm && k < source->n_stack; k++)
        for (int64_t r = 0; r < source->n_out; r++) {
            double sum = 0;
            decode_row(source, &source->part[k], r, row);
            for (int32_t i = 0; i < source->n_in; i++)
                sum += row[i] * row[i];
            p->norm[k * source->n_out + r] = (float)(sqrt(sum) * (double)source->part[k].global_scale);
        }
    if (!row) {
        free(p->norm);
        p->norm = NULL;
    }
    free(row);
    return p->norm;
}

/* ---- Arguments ---- */

/* Copies gather here; `failed` is told once at the end. */
struct copier {
    struct nib_observer *o;
    struct nib_reader    r;
    bool                 failed;
};

static void *read(struct copier *c, const void *from, size_t bytes)
{
    void *p = from ? nib_read(&c->r, from, bytes) : NULL;
    c->failed = c->failed || (from && !p);
    return p;
}

/* A weight or a vector of the model. */
static void *weight(struct copier *c, const void *from)
{
    const struct nib_pair *p = nib_shadow_find(c->o->shadow, from, false);
    c->failed = c->failed || (from && !p);
    return p ? p->to : NULL;
}

static struct nib_mat mat(struct copier *c, struct nib_mat m)
{
    const size_t item = m.dtype == NIB_DTYPE_F32 ? 4 : 2;
    if (!m.data)
        return m;
    m.data = read(c, m.data, m.rows > 0 ? ((size_t)(m.rows - 1) * (size_t)m.stride + (size_t)m.cols) * item : 0);
    return m;
}

static struct nib_act act(struct copier *c, struct nib_act a)
{
    a.plain = mat(c, a.plain);
    if (a.format != NIB_ACT_PLAIN) {
        a.codes = read(c, a.codes, (size_t)a.rows * (size_t)a.codes_stride);
        a.scales = read(c, a.scales, (size_t)a.rows * (size_t)a.scales_stride);
        a.row_scale = read(c, a.row_scale, (size_t)a.rows * sizeof(float));
    }
    return a;
}

static struct nib_rope rope(struct copier *c, struct nib_rope r)
{
    r.freq = weight(c, r.freq);
    return r;
}

/* A step's rows with pages and slots numbered anew from 0: of page i of sequence s, s * page_stride + i; slot s. from:
 * the old ones. */
struct rows {
    struct nib_rows rows;
    const int32_t  *window_from, *entry_from, *slot_from;
};

static int32_t *renumbered(struct copier *c, const int32_t *from, size_t n)
{
    int32_t *to = nib_arena_alloc(c->r.arena, n * sizeof *to);
    c->failed = c->failed || !to || !from;
    for (size_t i = 0; !c->failed && i < n; i++)
        to[i] = from[i] < 0 ? -1 : (int32_t)i;
    return to;
}

static const struct rows *rows_of(struct copier *c, const struct nib_rows *from)
{
    struct rows *r = nib_arena_alloc(c->r.arena, sizeof *r);
    if (!r) {
        c->failed = true;
        return NULL;
    }
    const size_t n = (size_t)from->n_rows, n_seqs = (size_t)from->n_seqs, n_pages = n_seqs * (size_t)from->page_stride;
    r->rows = *from;
    r->rows.token = read(c, from->token, n * 4);
    r->rows.pos = read(c, from->pos, n * 4);
    r->rows.seq = read(c, from->seq, n * 4);
    r->rows.seq_start = read(c, from->seq_start, (n_seqs + 1) * 4);
    r->slot_from = read(c, from->slot, n_seqs * 4);
    r->window_from = read(c, from->window_page, n_pages * 4);
    r->entry_from = read(c, from->entry_page, n_pages * 4);
    r->rows.slot = renumbered(c, r->slot_from, n_seqs);
    r->rows.window_page = renumbered(c, r->window_from, n_pages);
    r->rows.entry_page = renumbered(c, r->entry_from, n_pages);
    return r;
}

static struct nib_store store(struct copier *c, struct nib_store st, const int32_t *from, const struct rows *r)
{
    const size_t bytes = (size_t)st.page_rows * (size_t)st.row_bytes;
    const size_t n = c->failed ? 0 : (size_t)r->rows.n_seqs * (size_t)r->rows.page_stride;
    const struct nib_reader *rd = &c->r;
    if (!st.base)
        return st;
    uint8_t *to = nib_arena_alloc(rd->arena, n * bytes + 1);
    c->failed = c->failed || !to;
    for (size_t i = 0; !c->failed && i < n; i++)
        if (from[i] >= 0)
            c->failed = rd->api->download(rd->stream, to + i * bytes, st.base + (size_t)from[i] * bytes,
                                          bytes) != NIB_OK;
    st.base = to;
    return st;
}

static float *slots(struct copier *c, const float *base, int64_t stride, const struct rows *r)
{
    const size_t n = c->failed ? 0 : (size_t)r->rows.n_seqs, bytes = (size_t)stride * sizeof(float);
    float *to = nib_arena_alloc(c->r.arena, n * bytes + 1);
    c->failed = c->failed || !to;
    for (size_t i = 0; !c->failed && i < n; i++)
        c->failed = c->r.api->download(c->r.stream, to + i * (size_t)stride, base + r->slot_from[i] * stride,
                                       bytes) != NIB_OK;
    return to;
}

/* Rows of F32 that only ref fills. */
static struct nib_mat extra(struct copier *c, int32_t rows, int32_t cols)
{
    struct nib_mat m = {.dtype = NIB_DTYPE_F32, .rows = rows, .cols = cols, .stride = cols};
    m.data = nib_arena_alloc(c->r.arena, (size_t)rows * (size_t)cols * sizeof(float) + 1);
    c->failed = c->failed || !m.data;
    return m;
}

static int32_t most_visible(const struct nib_rows *rows, int32_t ratio)
{
    int32_t most = 0;
    for (int32_t i = 0; i < rows->n_rows; i++)
        most = (rows->pos[i] + 1) / ratio > most ? (rows->pos[i] + 1) / ratio : most;
    return most;
}

#define COPY(type)                                                                             \
    struct nib_##type##_args *a = nib_arena_alloc(c->r.arena, sizeof *a);                      \
    if (!a)                                                                                    \
        return NULL;                                                                           \
    *a = *(const struct nib_##type##_args *)args

static void *copy_embed(struct copier *c, const void *args)
{
    COPY(embed);
    a->token = read(c, a->token, (size_t)a->n_rows * 4);
    a->w = weight(c, a->w);
    a->y = mat(c, a->y);
    return a;
}

static void *copy_norm(struct copier *c, const void *args)
{
    COPY(norm);
    a->x = mat(c, a->x);
    a->weight = weight(c, a->weight);
    a->y = act(c, a->y);
    return a;
}

static void *copy_linear(struct copier *c, const void *args)
{
    COPY(linear);
    a->x = act(c, a->x);
    for (int32_t i = 0; i < a->n_weights; i++) {
        a->w[i] = weight(c, a->w[i]);
        a->y[i] = mat(c, a->y[i]);
    }
    return a;
}

static void *copy_q_rope(struct copier *c, const void *args)
{
    COPY(q_rope);
    const struct rows *r = rows_of(c, a->rows);
    a->q = mat(c, a->q);
    a->rope = rope(c, a->rope);
    a->rows = r ? &r->rows : NULL;
    return a;
}

static void *copy_kv_insert(struct copier *c, const void *args)
{
    COPY(kv_insert);
    const struct rows *r = rows_of(c, a->rows);
    if (!r)
        return NULL;
    a->kv = mat(c, a->kv);
    a->norm_weight = weight(c, a->norm_weight);
    a->rope = rope(c, a->rope);
    a->window = store(c, a->window, r->window_from, r);
    a->rows = &r->rows;
    return a;
}

static void *copy_compress(struct copier *c, const void *args)
{
    COPY(compress);
    const struct rows *r = rows_of(c, a->rows);
    if (!r)
        return NULL;
    a->kv = mat(c, a->kv);
    a->gate = mat(c, a->gate);
    a->ape = weight(c, a->ape);
    a->norm_weight = weight(c, a->norm_weight);
    a->rope = rope(c, a->rope);
    a->frontier.kv = slots(c, a->frontier.kv, a->frontier.slot_stride, r);
    a->frontier.score = slots(c, a->frontier.score, a->frontier.slot_stride, r);
    a->entries = store(c, a->entries, r->entry_from, r);
    a->rows = &r->rows;
    return a;
}

static void *copy_index_select(struct copier *c, const void *args)
{
    COPY(index_select);
    const struct rows *r = rows_of(c, a->rows);
    if (!r)
        return NULL;
    const size_t n = (size_t)r->rows.n_rows;
    a->q = mat(c, a->q);
    a->weight = mat(c, a->weight);
    a->rope = rope(c, a->rope);
    a->keys = store(c, a->keys, r->entry_from, r);
    a->selected = read(c, a->selected, n * (size_t)a->top_k * 4);
    a->n_selected = read(c, a->n_selected, n * 4);
    a->scores = c->failed ? a->scores : extra(c, r->rows.n_rows, most_visible(&r->rows, a->ratio));
    a->rows = &r->rows;
    return a;
}

static void *copy_attend(struct copier *c, const void *args)
{
    COPY(attend);
    const struct rows *r = rows_of(c, a->rows);
    if (!r)
        return NULL;
    const size_t n = (size_t)r->rows.n_rows;
    a->q = mat(c, a->q);
    a->sink = weight(c, a->sink);
    a->rope = rope(c, a->rope);
    a->window = store(c, a->window, r->window_from, r);
    a->entries = store(c, a->entries, r->entry_from, r);
    a->selected = read(c, a->selected, n * (size_t)a->top_k * 4);
    a->n_selected = read(c, a->n_selected, n * 4);
    a->o = mat(c, a->o);
    a->rows = &r->rows;
    return a;
}

static void *copy_o_a(struct copier *c, const void *args)
{
    COPY(o_a);
    a->x = mat(c, a->x);
    a->w = weight(c, a->w);
    a->y = act(c, a->y);
    return a;
}

static void *copy_moe(struct copier *c, const void *args, const void **mine)
{
    COPY(moe);
    struct nib_moe_args *m = nib_arena_alloc(c->r.arena, sizeof *m);
    const struct rows *r = rows_of(c, a->rows);
    if (!m || !r)
        return NULL;
    *m = *a;
    m->chosen = c->o->shadow->chosen;
    m->weights = c->o->shadow->chosen_weight;
    *mine = m;
    a->x = act(c, a->x);
    a->rows = &r->rows;
    const struct nib_weight **const w[] = {&a->router, &a->w1, &a->w2, &a->w3, &a->sw1, &a->sw2, &a->sw3};
    for (size_t i = 0; i < sizeof w / sizeof w[0]; i++)
        *w[i] = weight(c, *w[i]);
    a->bias = weight(c, a->bias);
    a->tid2eid = weight(c, a->tid2eid);
    a->y = mat(c, a->y);
    a->chosen = nib_arena_alloc(c->r.arena, (size_t)r->rows.n_rows * (size_t)a->top_k * sizeof *a->chosen);
    a->weights = extra(c, r->rows.n_rows, a->top_k).data;
    c->failed = c->failed || !a->chosen;
    return a;
}

static void *copy_hc_pre(struct copier *c, const void *args)
{
    COPY(hc_pre);
    a->streams = mat(c, a->streams);
    a->fn = weight(c, a->fn);
    a->base = weight(c, a->base);
    a->scale = weight(c, a->scale);
    a->norm_weight = weight(c, a->norm_weight);
    a->post = mat(c, a->post);
    a->comb = mat(c, a->comb);
    a->x = act(c, a->x);
    a->collapsed = extra(c, a->streams.rows, a->streams.cols / a->n_hc);
    return a;
}

static void *copy_hc_post(struct copier *c, const void *args)
{
    COPY(hc_post);
    a->streams = mat(c, a->streams);
    a->y = mat(c, a->y);
    a->post = mat(c, a->post);
    a->comb = mat(c, a->comb);
    return a;
}

static void *copy_hc_head(struct copier *c, const void *args)
{
    COPY(hc_head);
    const int32_t n = a->n;
    const int32_t *row = read(c, a->row, (size_t)n * 4);
    const size_t item = a->streams.dtype == NIB_DTYPE_F32 ? 4 : 2, bytes = (size_t)a->streams.cols * item;
    unsigned char *to = nib_arena_alloc(c->r.arena, (size_t)n * bytes + 1);
    int32_t *new_row = nib_arena_alloc(c->r.arena, (size_t)n * sizeof *new_row + 1);
    c->failed = c->failed || !to || !new_row;
    for (int32_t i = 0; !c->failed && i < n; i++) {
        const unsigned char *from = (const unsigned char *)a->streams.data + (size_t)(row[i] * a->streams.stride) * item;
        c->failed = c->r.api->download(c->r.stream, to + (size_t)i * bytes, from, bytes) != NIB_OK;
        new_row[i] = i;
    }
    a->streams = (struct nib_mat){.data = to, .dtype = a->streams.dtype, .rows = n, .cols = a->streams.cols, .stride = a->streams.cols};
    a->row = new_row;
    a->fn = weight(c, a->fn);
    a->base = weight(c, a->base);
    a->scale = weight(c, a->scale);
    a->norm_weight = weight(c, a->norm_weight);
    a->x = mat(c, a->x);
    a->collapsed = extra(c, n, a->x.cols);
    return a;
}

static void *copy_head(struct copier *c, const void *args)
{
    COPY(head);
    a->x = mat(c, a->x);
    a->w = weight(c, a->w);
    a->logits = mat(c, a->logits);
    return a;
}

static void *copy_mtp_join(struct copier *c, const void *args)
{
    COPY(mtp_join);
    a->e = mat(c, a->e);
    a->h = mat(c, a->h);
    return a;
}

static void *copy_copy_rows(struct copier *c, const void *args)
{
    COPY(copy_rows);
    a->src = mat(c, a->src);
    a->dst = mat(c, a->dst);
    a->src_row = read(c, a->src_row, (size_t)a->n * 4);
    a->dst_row = read(c, a->dst_row, (size_t)a->n * 4);
    return a;
}

static void *copy_sample(struct copier *c, const void *args)
{
    COPY(sample);
    a->logits = mat(c, a->logits);
    a->row = read(c, a->row, (size_t)a->n * sizeof *a->row);
    size_t n_history = 0;
    for (int32_t i = 0; a->row && i < a->n; i++) {
        const size_t end = (size_t)(a->row[i].history_start + a->row[i].history_count);
        n_history = end > n_history ? end : n_history;
    }
    a->history_token = read(c, a->history_token, n_history * 4);
    a->history_times = read(c, a->history_times, n_history * 4);
    a->token = read(c, a->token, (size_t)a->n * 4);
    a->logprob = read(c, a->logprob, (size_t)a->n * 4);
    return a;
}

void *nib_shadow_args(struct nib_observer *o, enum nib_op op, const void *args, const void **mine)
{
    struct copier c = {.o = o, .r = {o->engine->rank.api, o->engine->rank.stream, &o->arena}};
    void *copy = NULL;
    switch (op) {
    case NIB_OP_MOE: copy = copy_moe(&c, args, mine); break;
    case NIB_OP_EMBED: copy = copy_embed(&c, args); break;
    case NIB_OP_NORM: copy = copy_norm(&c, args); break;
    case NIB_OP_LINEAR: copy = copy_linear(&c, args); break;
    case NIB_OP_Q_ROPE: copy = copy_q_rope(&c, args); break;
    case NIB_OP_KV_INSERT: copy = copy_kv_insert(&c, args); break;
    case NIB_OP_COMPRESS: copy = copy_compress(&c, args); break;
    case NIB_OP_INDEX_SELECT: copy = copy_index_select(&c, args); break;
    case NIB_OP_ATTEND: copy = copy_attend(&c, args); break;
    case NIB_OP_O_A: copy = copy_o_a(&c, args); break;
    case NIB_OP_HC_PRE: copy = copy_hc_pre(&c, args); break;
    case NIB_OP_HC_POST: copy = copy_hc_post(&c, args); break;
    case NIB_OP_HC_HEAD: copy = copy_hc_head(&c, args); break;
    case NIB_OP_HEAD: copy = copy_head(&c, args); break;
    case NIB_OP_MTP_JOIN: copy = copy_mtp_join(&c, args); break;
    case NIB_OP_COPY_ROWS: copy = copy_copy_rows(&c, args); break;
    case NIB_OP_SAMPLE: copy = copy_sample(&c, args); break;
    case NIB_N_OPS: break;
    }
    return c.failed ? NULL : copy;
}
