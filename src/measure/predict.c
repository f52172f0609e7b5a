/* The time of a step that nobody ran: the forward pass runs on ops that count bytes and operations by formula (cost.c)
 * in place of computing, and each kind of op takes as long as the slower of both lets it, at the share of the card's
 * rates that its kernels are planned to reach. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "measure/cost.h"
#include "measure/shape.h"

/* ---- Plan ---- */

/* What kernels are planned to reach, and launches of a call. Streaming a weight is measured at 72 to 76 % of the copy
 * rate on an H200 for large matrices; products of many rows are planned by docs/kernels. */
struct plan {
    enum nib_op op;
    double      bytes_share, ops_share;
    int32_t     n_launches, n_fp4_launches; /* on cards that multiply NVFP4; there linear has one more a weight */
};
static const struct plan k_plans[] = {
    {NIB_OP_LINEAR, 0.80, 0.75, 2, 1},   {NIB_OP_HEAD, 0.80, 0.75, 2, 2},    {NIB_OP_O_A, 0.75, 0.65, 3, 3},
    {NIB_OP_MOE, 0.70, 0.60, 10, 16},    {NIB_OP_ATTEND, 0.60, 0.50, 2, 2},  {NIB_OP_INDEX_SELECT, 0.60, 0.40, 3, 3},
    {NIB_OP_HC_PRE, 0.70, 0.30, 2, 2},   {NIB_OP_HC_POST, 0.70, 0.30, 1, 1}, {NIB_OP_HC_HEAD, 0.70, 0.30, 2, 2},
    {NIB_OP_COMPRESS, 0.50, 0.50, 2, 2},
};
/* The kernels of docs/kernels/sm100a-attention.md, for NVFP4 activations on cards of compute capability 10.x: attention
 * is bound by the chain of scores, weights and sums in a block, scores by adding up heads. One row's chain takes 10,000
 * clocks, however few rows there are. docs/kernels/sm100a.md: o_a of fp32 rows makes three products where one is counted; it
 * and the router bring rows with them. */
static const struct plan k_tcgen05_plans[] = {
    {NIB_OP_ATTEND, 0.60, 0.32, 1, 1},
    {NIB_OP_INDEX_SELECT, 0.60, 0.60, 3, 3},
    {NIB_OP_O_A, 0.75, 0.25, 3, 2},
    {NIB_OP_MOE, 0.70, 0.60, 10, 15},
};
/* Those of docs/kernels/sm120a.md on cards of 12.x. Linears have a launch a weight and no other; gate and up of experts
 * are one product, those of the shared expert, too. Attention of fp32 queries
 * makes five products where two are counted, 10,240 clocks a span of 32 rows and some 1,500 beside them; a row takes
 * that long, its rows' way from memory and the adding of spans. Index scores of fp32 queries and BF16 keys have no tensor
 * cores; FP4 keys are multiplied as they are, as fast as weighted heads are added up: 256 clocks of products and 210 of
 * the rest for 64 heads of 64 entries. */
static const struct plan k_mma_plans[] = {
    {NIB_OP_LINEAR, 0.80, 0.75, 2, 0},
    {NIB_OP_MOE, 0.70, 0.60, 10, 11},
    {NIB_OP_ATTEND, 0.60, 0.35, 2, 2},
    {NIB_OP_INDEX_SELECT, 0.60, 0.20, 3, 3},
};
static const struct plan k_other = {NIB_N_OPS, 0.50, 0.50, 1, 1};

/* From one small kernel to the next inside a graph, each waiting for the one before. */
static const double k_launch_s = 2.5e-6;

/* What a card's own kernels do otherwise than k_plans. */
struct family {
    const char        *cards[3]; /* NULL behind the last */
    const struct plan *plans;
    size_t             n;
    double             attend_s; /* attention of one row, however few there are */
    double             fp4_keys_share; /* of products of FP4 keys at FP4's rate; 0: they are opened, at BF16's */
};
static const struct family k_families[] = {
    {{"b200", "b300", "gb300"}, k_tcgen05_plans, sizeof k_tcgen05_plans / sizeof *k_tcgen05_plans, 5.4e-6, 0},
    {{"rtx-pro-6000", "spark", NULL}, k_mma_plans, sizeof k_mma_plans / sizeof *k_mma_plans, 8e-6, 0.50},
};

/* NULL: none of its own. */
static const struct family *family_of(const struct nib_card *card)
{
    for (size_t i = 0; i < sizeof k_families / sizeof *k_families; i++)
        for (int k = 0; k < 3 && k_families[i].cards[k]; k++)
            if (strcmp(card->name, k_families[i].cards[k]) == 0)
                return &k_families[i];
    return NULL;
}

static const struct plan *plan_of(enum nib_op op, const struct family *family)
{
    for (size_t i = 0; family && i < family->n; i++)
        if (family->plans[i].op == op)
            return &family->plans[i];
    for (size_t i = 0; i < sizeof k_plans / sizeof *k_plans; i++)
        if (k_plans[i].op == op)
            return &k_plans[i];
    return &k_other;
}

/* ---- A pass that counts ---- */

struct counter {
    const struct nib_predict_args *args;
    struct nib_config config;
    struct nib_arena arena;
    struct nib_rank rank;
    uint64_t random, weights_bytes;
    struct nib_prediction *out;
    struct nib_predicted_op slot[NIB_OP_SLOTS];
    double least_s[NIB_OP_SLOTS]; /* of the slot's calls, by launches or what a call takes alone */
};

/* An op knows its stream and nothing else; it runs on the thread that called nib_predict(). */
static _Thread_local struct counter *t_counter;

static uint32_t random_below(struct counter *c, uint32_t n)
{
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((c->random >> 33) % n);
}

/* Everything here is host memory. */
static enum nib_status read_host(struct nib_stream *s, void *to, const void *from, size_t bytes)
{
    (void)s;
    memcpy(to, from, bytes);
    return NIB_OK;
}

static void *no_alloc(struct nib_backend *b, size_t bytes)
{
    static char nothing;
    (void)b, (void)bytes;
    return &nothing;
}

static const struct nib_backend_api k_host = {.name = "count", .download = read_host, .alloc = no_alloc};

/* top_k different experts for each row, evenly at random. */
static const int32_t *draw_experts(struct counter *c, struct nib_arena *arena, int32_t n_rows)
{
    const int32_t k = c->config.top_k;
    int32_t *chosen = nib_arena_array(arena, (size_t)n_rows * (size_t)k, sizeof *chosen);
    for (int32_t t = 0; chosen && t < n_rows; t++) {
        for (int32_t i = 0; i < k;) {
            int32_t *one = &chosen[t * k + i], j = 0;
            *one = (int32_t)random_below(c, (uint32_t)c->config.n_experts);
            while (j < i && chosen[t * k + j] != *one)
                j++;
            i += j == i;
        }
    }
    return chosen;
}

/* What an indexer takes of the visible entries: spread evenly from a random beginning. */
static void select_entries(struct counter *c, const struct nib_index_select_args *a)
{
    for (int32_t t = 0; t < a->rows->n_rows; t++) {
        const int32_t visible = (a->rows->pos[t] + 1) / a->ratio, n = visible < a->top_k ? visible : a->top_k;
        const uint32_t from = visible > 0 ? random_below(c, (uint32_t)visible) : 0;
        a->n_selected[t] = n;
        for (int32_t i = 0; i < n; i++)
            a->selected[(int64_t)t * a->top_k + i] = (int32_t)(((int64_t)i * visible + from) / n % visible);
    }
}

/* Streams are far larger than a module's rows, so they count as bytes; the others stay near the cores. */
static uint64_t stream_bytes(enum nib_op op, const void *args)
{
    if (op == NIB_OP_HC_PRE) {
        const struct nib_hc_pre_args *a = args;
        return 4 * (uint64_t)a->streams.rows * (uint64_t)a->streams.cols;
    }
    if (op == NIB_OP_HC_POST) {
        const struct nib_hc_post_args *a = args;
        return 8 * (uint64_t)a->streams.rows * (uint64_t)a->streams.cols;
    }
    return 0;
}

static enum nib_status count(struct nib_stream *s, enum nib_op op, const void *args)
{
    struct counter *c = t_counter;
    struct nib_arena arena;
    struct nib_cost cost;
    struct nib_moe_args moe;
    const char *name;
    /* int8_ops is what a card multiplies as 4-bit numbers when both sides are NVFP4. */
    const bool fp4 = c->args->card->fp4_tflop_s > 0 && c->rank.act_quant == NIB_ACT_QUANT_NVFP4;
    const struct family *family = fp4 ? family_of(c->args->card) : NULL;
    const struct plan *plan = plan_of(op, family);
    const int which = nib_op_slot(&c->config, op, args, &name);
    struct nib_predicted_op *slot = &c->slot[which];
    nib_arena_init(&arena);
    if (op == NIB_OP_MOE) {
        memcpy(&moe, args, sizeof moe);
        moe.chosen = (int32_t *)(uintptr_t)draw_experts(c, &arena, moe.x.rows);
        args = &moe;
        if (!moe.chosen)
            return NIB_E_MEMORY;
    }
    const struct nib_reader reader = {.api = &k_host, .stream = s, .arena = &arena};
    const bool counted = nib_op_cost(&reader, op, args, &cost);
    nib_arena_deinit(&arena);
    if (!counted)
        return NIB_E_MEMORY;
    if (op == NIB_OP_INDEX_SELECT)
        select_entries(c, args);
    slot->name = name;
    slot->bytes_share = plan->bytes_share;
    slot->ops_share = plan->ops_share;
    slot->n_calls++;
    slot->bytes += cost.bytes + stream_bytes(op, args);
    int32_t n_launches = fp4 ? plan->n_fp4_launches : plan->n_launches;
    if (fp4 && op == NIB_OP_LINEAR)
        n_launches += ((const struct nib_linear_args *)args)->n_weights;
    slot->n_launches += n_launches;
    c->least_s[which] += fmax(n_launches * k_launch_s, family && op == NIB_OP_ATTEND ? family->attend_s : 0);
    const bool keys = op == NIB_OP_INDEX_SELECT, fp4_keys = keys && family && family->fp4_keys_share > 0;
    const bool fp4_products = fp4 && (!keys || fp4_keys);
    if (fp4_keys && cost.int8_ops > 0)
        slot->ops_share = family->fp4_keys_share;
    slot->fp4_ops += fp4_products ? cost.int8_ops : 0;
    slot->bf16_ops += cost.fp32_ops + cost.fp8_ops + (fp4_products ? 0 : cost.int8_ops);
    return NIB_OK;
}

#define X(upper, lower)                                                                                                \
    static enum nib_status count_##lower(struct nib_stream *s, const struct nib_##lower##_args *a)                     \
    {                                                                                                                  \
        return count(s, NIB_OP_##upper, a);                                                                            \
    }
NIB_OP_LIST(X)
#undef X

static const struct nib_ops k_counting = {
#define X(upper, lower) .lower = count_##lower,
    NIB_OP_LIST(X)
#undef X
};

/* ---- A model of heads without bodies ---- */

static enum nib_status add_weight(struct counter *c, enum nib_shape_format format, const struct nib_field *f,
                                  int32_t ratio, unsigned char *owner)
{
    const int32_t rows = nib_dim_value(&c->config, f->rows, ratio), cols = nib_dim_value(&c->config, f->cols, ratio);
    void *p;
    if (f->kind == NIB_FIELD_VECTOR || f->kind == NIB_FIELD_IDS) {
        p = no_alloc(NULL, 0);
        c->weights_bytes += 4 * (uint64_t)rows * (uint64_t)cols;
    } else {
        struct nib_weight *w = nib_arena_array(&c->arena, 1, sizeof *w);
        if (!w)
            return NIB_E_MEMORY;
        const struct nib_source s = {.field = f, .type = nib_shape_weight_type(format, f)};
        w->type = s.type;
        w->act = nib_source_act(&s, c->rank.act_quant);
        w->n_stack = f->kind == NIB_FIELD_EXPERTS ? c->config.n_experts : 1;
        w->n_out = rows;
        w->n_in = cols;
        c->weights_bytes += (uint64_t)w->n_stack * nib_matrix_bytes(w->type, rows, cols);
        p = w;
    }
    memcpy(owner + f->offset, &p, sizeof p);
    return NIB_OK;
}

static enum nib_status make_weights(struct counter *c, enum nib_shape_format format)
{
    struct nib_weights *w = &c->rank.weights;
    w->layer = nib_arena_array(&c->arena, (size_t)c->config.n_layers, sizeof *w->layer);
    if (!w->layer)
        return NIB_E_MEMORY;
    for (int32_t i = 0; i < nib_n_fields; i++) {
        const struct nib_field *f = &nib_fields[i];
        if (f->scope == NIB_SCOPE_GLOBAL)
            NIB_TRY(add_weight(c, format, f, 0, (unsigned char *)w));
        for (int32_t l = 0; f->scope == NIB_SCOPE_LAYER && l < c->config.n_layers; l++) {
            w->layer[l].ratio = c->config.ratio[l];
            if (nib_field_applies(f, c->config.ratio[l], l < c->config.n_hash_layers))
                NIB_TRY(add_weight(c, format, f, c->config.ratio[l], (unsigned char *)&w->layer[l]));
        }
    }
    return NIB_OK;
}

static enum nib_status make_stores(struct counter *c)
{
    const struct nib_config *m = &c->config;
    const enum nib_row_format kv = nib_kv_row_format(c->args->kv), index = nib_kv_index_format(c->args->kv);
    struct nib_layer_state *layer = nib_arena_array(&c->arena, (size_t)m->n_layers, sizeof *layer);
    if (!layer)
        return NIB_E_MEMORY;
    for (int32_t l = 0; l < m->n_layers; l++) {
        layer[l].window.row_bytes = layer[l].entries.row_bytes = nib_row_bytes(kv, m->head_dim, m->n_rot);
        layer[l].index.row_bytes = nib_row_bytes(index, m->index_dim, m->n_rot);
        layer[l].index.format = index;
    }
    c->rank.pool.layer = layer;
    return NIB_OK;
}

/* ---- Steps ---- */

static enum nib_status run_step(struct counter *c, struct nib_error *err)
{
    const struct nib_predict_args *a = c->args;
    struct nib_rank *rk = &c->rank;
    struct nib_rows rows = {.n_rows = a->n_seqs * a->n_rows, .n_seqs = a->n_seqs};
    int32_t *pos = nib_arena_array(&c->arena, (size_t)rows.n_rows, sizeof *pos);
    int32_t *start = nib_arena_array(&c->arena, (size_t)a->n_seqs + 1, sizeof *start);
    NIB_TRY(nib_work_init(rk, rows.n_rows, a->n_seqs, false, err));
    struct nib_work *w = &rk->work;
    w->selected = nib_arena_array(&c->arena, (size_t)rows.n_rows * (size_t)c->config.index_top_k, sizeof *w->selected);
    w->n_selected = nib_arena_array(&c->arena, (size_t)rows.n_rows, sizeof *w->n_selected);
    if (!pos || !start || !w->selected || !w->n_selected)
        return NIB_E_MEMORY;
    for (int32_t i = 0; i < rows.n_rows; i++)
        pos[i] = a->n_context + i % a->n_rows;
    for (int32_t i = 0; i <= a->n_seqs; i++)
        start[i] = i * a->n_rows;
    rows.pos = pos;
    rows.seq_start = start;
    t_counter = c;
    enum nib_status status = nib_forward(rk, &rows);
    if (status == NIB_OK)
        status = nib_forward_logits(rk, start, a->n_seqs, false);
    t_counter = NULL;
    return status;
}

static void settle(struct counter *c)
{
    const struct nib_card *card = c->args->card;
    struct nib_prediction *out = c->out;
    for (int i = 0; i < NIB_OP_SLOTS; i++) {
        struct nib_predicted_op *o = &c->slot[i];
        if (o->n_calls == 0)
            continue;
        const double by_bytes = (double)o->bytes / (card->read_gb_s * 1e9) / c->args->n_cards;
        const double by_ops = ((card->fp4_tflop_s > 0 ? (double)o->fp4_ops / card->fp4_tflop_s : 0) +
                               (double)o->bf16_ops / card->bf16_tflop_s) /
                              1e12 / c->args->n_cards;
        const double launches = c->least_s[i];
        const double bytes_s = by_bytes / o->bytes_share, ops_s = by_ops / o->ops_share;
        o->seconds = fmax(launches, fmax(bytes_s, ops_s));
        o->bound = o->seconds <= launches ? NIB_BOUND_LAUNCHES
                   : bytes_s >= ops_s     ? NIB_BOUND_BYTES
                                          : NIB_BOUND_PRODUCTS;
        out->seconds += o->seconds;
        out->limit_seconds += fmax(by_bytes, by_ops);
        out->op[out->n_ops++] = *o;
    }
    out->tokens_s = out->seconds > 0 ? c->args->n_seqs * (double)c->args->n_rows / out->seconds : 0;
}

static enum nib_status check(const struct nib_predict_args *a, const struct nib_config *c, struct nib_error *err)
{
    const struct {
        const char *name;
        int64_t value, least, most;
    } limit[] = {{"n_cards", a->n_cards, 1, 1024},
                 {"n_seqs", a->n_seqs, 1, 4096},
                 {"n_rows", a->n_rows, 1, 65536},
                 {"n_seqs x n_rows", (int64_t)a->n_seqs * a->n_rows, 1, 65536},
                 {"n_context", a->n_context, 0, (int64_t)c->n_ctx_max - a->n_rows}};
    for (size_t i = 0; i < sizeof limit / sizeof *limit; i++)
        if (limit[i].value < limit[i].least || limit[i].value > limit[i].most)
            return nib_error_set(err, NIB_E_ARGUMENT, "%s is %lld, wanted %lld to %lld", limit[i].name,
                                 (long long)limit[i].value, (long long)limit[i].least, (long long)limit[i].most);
    if (!a->card)
        return nib_error_set(err, NIB_E_ARGUMENT, "no card is named");
    return NIB_OK;
}

enum nib_status nib_predict(const struct nib_predict_args *a, struct nib_prediction *out, struct nib_error *err)
{
    enum nib_shape_format format;
    struct counter *c = calloc(1, sizeof *c);
    memset(out, 0, sizeof *out);
    if (!c)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for a prediction");
    c->args = a;
    c->out = out;
    c->random = 1;
    nib_arena_init(&c->arena);
    enum nib_status status = nib_shape_config(&a->shape, &c->config, &format, err);
    if (status == NIB_OK)
        status = check(a, &c->config, err);
    if (status == NIB_OK) {
        c->rank.api = &k_host;
        c->rank.ops = &k_counting;
        c->rank.config = &c->config;
        c->rank.act_quant = a->act_quant != NIB_ACT_QUANT_AUTO ? a->act_quant
                            : a->card->fp4_tflop_s > 0         ? NIB_ACT_QUANT_NVFP4
                                                               : NIB_ACT_QUANT_NONE;
        out->act_quant = c->rank.act_quant;
        status = make_weights(c, format);
        if (status == NIB_OK)
            status = make_stores(c);
        if (status == NIB_OK)
            status = run_step(c, err);
        if (status == NIB_E_MEMORY)
            status = nib_error_set(err, status, "no memory for a prediction of %d rows", a->n_seqs * a->n_rows);
    }
    if (status == NIB_OK) {
        const struct nib_pool_config pool = {.model = &c->config,
                                             .kv = a->kv,
                                             .n_ctx = a->n_context + a->n_rows,
                                             .n_seqs_max = a->n_seqs,
                                             .n_rows_max = a->n_seqs * a->n_rows};
        settle(c);
        out->weights_bytes = c->weights_bytes;
        out->kv_bytes = nib_pool_bytes(&pool, NULL);
        out->n_cards_needed =
            (int32_t)ceil((double)(out->weights_bytes + out->kv_bytes) / (0.9e9 * a->card->memory_gb));
    }
    nib_arena_deinit(&c->arena);
    free(c);
    return status;
}
