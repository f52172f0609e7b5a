/* A step under observation: the engine's table of ops is replaced for one call by one that takes times or counts. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/meter.h"
#include "measure/cost.h"

enum { N_USES = 4, N_SLOTS = NIB_OP_SLOTS };
_Static_assert((int)N_SLOTS == (int)NIB_N_OPS * (int)N_USES, "a slot for every op in every use");
_Static_assert((int)NIB_PROFILE_OPS_MAX >= (int)N_SLOTS, "a profile holds every op in every use");

struct profiler {
    struct nib_engine    *engine;
    const struct nib_ops *inner;
    bool                  count;
    int32_t              *chosen; /* on the backend, [n_rows_max][top_k]; for counting */
    struct nib_profile_op slot[N_SLOTS];
};

/* An op knows its stream and nothing else; it runs on the thread that called nib_step_profile(). */
static _Thread_local struct profiler *t_profiler;

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int use_of_linear(const struct nib_config *c, const struct nib_linear_args *a)
{
    const int32_t n_out = a->w[0]->n_out;
    if (n_out == c->q_rank && a->n_weights > 1)
        return 0;
    if (n_out == c->n_heads * c->head_dim)
        return 1;
    return a->w[0]->n_in == c->n_groups * c->o_rank ? 2 : 3;
}

static int use_of_ratio(int32_t ratio)
{
    return ratio == 0 ? 0 : ratio == 4 ? 1 : 2;
}

static const char *name_of(enum nib_op op, int use)
{
    static const char *const linear[] = {"linear_in", "linear_q", "linear_out", "linear_mtp"};
    static const char *const attend[] = {"attend_swa", "attend_csa", "attend_hca"};
    static const char *const compress[] = {"compress", "compress_csa", "compress_hca", "compress_index"};
    return op == NIB_OP_LINEAR     ? linear[use]
           : op == NIB_OP_ATTEND   ? attend[use]
           : op == NIB_OP_COMPRESS ? compress[use]
                                   : nib_op_name(op);
}

int nib_op_slot(const struct nib_config *c, enum nib_op op, const void *args, const char **name)
{
    int use = 0;
    if (op == NIB_OP_LINEAR) {
        use = use_of_linear(c, args);
    } else if (op == NIB_OP_ATTEND) {
        const struct nib_attend_args *a = args;
        use = use_of_ratio(a->ratio);
    } else if (op == NIB_OP_COMPRESS) {
        const struct nib_compress_args *a = args;
        use = a->width == c->index_dim && a->width != c->head_dim ? 3 : use_of_ratio(a->ratio);
    }
    *name = name_of(op, use);
    return (int)op * N_USES + use;
}

static struct nib_profile_op *slot_of(struct profiler *p, enum nib_op op, const void *args)
{
    const char            *name;
    struct nib_profile_op *slot = &p->slot[nib_op_slot(p->engine->rank.config, op, args, &name)];
    slot->name = name;
    slot->head = op == NIB_OP_HC_HEAD || op == NIB_OP_HEAD;
    return slot;
}

static enum nib_status count(struct profiler *p, struct nib_stream *s, enum nib_op op, const void *args,
                             struct nib_profile_op *slot)
{
    struct nib_arena arena;
    struct nib_cost cost;
    struct nib_moe_args moe;
    nib_arena_init(&arena);
    if (op == NIB_OP_MOE) {
        memcpy(&moe, args, sizeof moe);
        moe.chosen = p->chosen;
        args = &moe;
    }
    const struct nib_reader reader = {.api = p->engine->rank.api, .stream = s, .arena = &arena};
    enum nib_status status = nib_op_call(p->inner, op, s, args);
    if (status == NIB_OK && !nib_op_cost(&reader, op, args, &cost))
        status = NIB_E_MEMORY;
    nib_arena_deinit(&arena);
    if (status != NIB_OK)
        return status;
    slot->bytes += cost.bytes;
    slot->fp32_ops += cost.fp32_ops;
    slot->fp8_ops += cost.fp8_ops;
    slot->int8_ops += cost.int8_ops;
    return NIB_OK;
}

/* One op for a meter. */
struct call {
    const struct nib_ops *ops;
    enum nib_op           op;
    const void           *args;
};

static enum nib_status run_call(struct nib_stream *s, void *data)
{
    const struct call *c = data;
    return nib_op_call(c->ops, c->op, s, c->args);
}

static enum nib_status take_time(struct profiler *p, struct nib_stream *s, struct call *c, double *took)
{
    const struct nib_backend_api *api = p->engine->rank.api;
    const struct nib_meter *meter = nib_meter_of(api);
    if (meter)
        return meter->time(s, run_call, c, took);
    const double start = seconds();
    enum nib_status status = run_call(s, c);
    if (status == NIB_OK)
        status = api->synchronise(s);
    *took = seconds() - start;
    return status;
}

static enum nib_status observe(struct nib_stream *s, enum nib_op op, const void *args)
{
    struct profiler *p = t_profiler;
    if (nib_op_rows(op, args) == 0)
        return nib_op_call(p->inner, op, s, args);
    struct nib_profile_op *slot = slot_of(p, op, args);
    slot->n_calls++;
    if (p->count)
        return count(p, s, op, args, slot);
    double took = 0;
    const enum nib_status status = take_time(p, s, &(struct call){p->inner, op, args}, &took);
    slot->seconds += took;
    return status;
}

#define X(upper, lower)                                                                              \
    static enum nib_status profile_##lower(struct nib_stream *s, const struct nib_##lower##_args *a) \
    {                                                                                                \
        return observe(s, NIB_OP_##upper, a);                                                        \
    }
NIB_OP_LIST(X)
#undef X

static const struct nib_ops k_profiling = {
#define X(upper, lower) .lower = profile_##lower,
    NIB_OP_LIST(X)
#undef X
};

static enum nib_status run(struct profiler *p, const struct nib_batch *b, float *logits, struct nib_profile *out,
                           struct nib_error *err)
{
    struct nib_rank *rk = &p->engine->rank;
    p->inner = rk->ops;
    rk->ops = &k_profiling;
    t_profiler = p;
    const double start = seconds();
    const enum nib_status status = nib_step(p->engine, b, logits, NULL, err);
    out->seconds = seconds() - start;
    t_profiler = NULL;
    rk->ops = p->inner;
    for (int i = 0; i < N_SLOTS; i++)
        if (p->slot[i].n_calls > 0)
            out->op[out->n_ops++] = p->slot[i];
    return status;
}

enum nib_status nib_step_profile(struct nib_engine *e, const struct nib_batch *b, float *logits, bool count_work,
                                 struct nib_profile *out, struct nib_error *err)
{
    struct nib_rank *rk = &e->rank;
    struct profiler p = {.engine = e, .count = count_work};
    memset(out, 0, sizeof *out);
    if (e->observer)
        return nib_error_set(err, NIB_E_STATE, "an engine opened with trace or compare cannot be profiled");
    if (count_work) {
        const size_t n = (size_t)e->options.n_rows_max * (size_t)rk->config->top_k;
        p.chosen = rk->api->alloc(rk->backend, n * sizeof *p.chosen);
        if (!p.chosen)
            return nib_error_set(err, NIB_E_MEMORY, "no memory to count a step of %zu routed rows", n);
    }
    const enum nib_status status = run(&p, b, logits, out, err);
    if (p.chosen)
        rk->api->release(rk->backend, p.chosen);
    return status;
}
