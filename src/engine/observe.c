/* The wrapping table, and where in the model an op stands. */
#include "engine/observe.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* An op knows its stream and nothing else, so observers are found by it. Opening and closing are rare; looking up takes
 * the lock for a few nanoseconds. */
static pthread_mutex_t      g_lock = PTHREAD_MUTEX_INITIALIZER;
static struct nib_observer *g_observers;

static struct nib_observer *find(const struct nib_stream *s)
{
    pthread_mutex_lock(&g_lock);
    struct nib_observer *o = g_observers;
    while (o && o->engine->rank.stream != s)
        o = o->next;
    pthread_mutex_unlock(&g_lock);
    return o;
}

const char *nib_op_name(enum nib_op op)
{
    static const char *const names[] = {
#define X(upper, lower) #lower,
        NIB_OP_LIST(X)
#undef X
    };
    return names[op];
}

enum nib_status nib_op_call(const struct nib_ops *ops, enum nib_op op, struct nib_stream *s, const void *args)
{
    switch (op) {
#define X(upper, lower) case NIB_OP_##upper: return ops->lower(s, args);
        NIB_OP_LIST(X)
#undef X
    case NIB_N_OPS: break;
    }
    return NIB_E_ARGUMENT;
}

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Every layer is entered through its own hyper-connection weights, so those tell where an op stands. */
static void locate(struct nib_observer *o, enum nib_op op, const void *args)
{
    const struct nib_weights *w = &o->engine->rank.weights;
    const int32_t n_layers = o->engine->rank.config->n_layers;
    if (op == NIB_OP_EMBED) {
        const struct nib_embed_args *a = args;
        const bool trunk = a->n_copies > 1;
        o->step += trunk;
        o->layer = trunk ? -1 : n_layers;
        o->part = trunk ? "embed" : "mtp";
    } else if (op == NIB_OP_HC_HEAD || op == NIB_OP_SAMPLE) {
        o->layer = -1;
        o->part = op == NIB_OP_SAMPLE ? "sample" : "head";
    } else if (op == NIB_OP_HC_PRE) {
        const struct nib_hc_pre_args *a = args;
        for (int32_t l = 0; l <= n_layers; l++) {
            const struct nib_layer *layer = l == n_layers ? &w->mtp.layer : &w->layer[l];
            if (a->fn == layer->attn_hc.fn || a->fn == layer->ffn_hc.fn) {
                o->layer = l;
                o->part = a->fn == layer->attn_hc.fn ? "attention" : "experts";
            }
        }
    }
}

static enum nib_status observe(struct nib_stream *s, enum nib_op op, const void *args)
{
    struct nib_observer *o = find(s);
    const void *mine = args;
    void *copies = NULL;
    if (nib_op_rows(op, args) == 0)
        return nib_op_call(o->inner, op, s, args);
    nib_arena_deinit(&o->arena);
    nib_arena_init(&o->arena);
    locate(o, op, args);
    o->n_ops++;
    if (o->shadow) {
        copies = nib_shadow_args(o, op, args, &mine);
        if (!copies)
            return nib_error_set(&o->engine->op_error, NIB_E_MEMORY, "no memory to compare op '%s' with ref",
                                 nib_op_name(op));
    }
    const double start = seconds();
    NIB_TRY(nib_op_call(o->inner, op, s, mine));
    if (o->trace) {
        NIB_TRY(o->engine->rank.api->synchronise(s));
        NIB_TRY(nib_trace_op(o, op, mine, seconds() - start));
    }
    return o->shadow ? nib_compare_op(o, op, copies, mine) : NIB_OK;
}

#define X(upper, lower)                                                                              \
    static enum nib_status watch_##lower(struct nib_stream *s, const struct nib_##lower##_args *a)   \
    {                                                                                                \
        return observe(s, NIB_OP_##upper, a);                                                        \
    }
NIB_OP_LIST(X)
#undef X

static const struct nib_ops k_watching = {
#define X(upper, lower) .lower = watch_##lower,
    NIB_OP_LIST(X)
#undef X
};

enum nib_status nib_observer_open(struct nib_engine *e, struct nib_error *err)
{
    const struct nib_options *opt = &e->options;
    if (!opt->trace && !opt->compare)
        return NIB_OK;
    struct nib_observer *o = calloc(1, sizeof *o);
    if (!o)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for an observer");
    *o = (struct nib_observer){.engine = e, .inner = e->rank.ops, .layer = -1, .part = "embed"};
    nib_arena_init(&o->arena);
    e->observer = o;
    if (opt->trace)
        NIB_TRY(nib_trace_open(o, opt->trace, err));
    if (opt->compare)
        NIB_TRY(nib_shadow_open(o, err));
    pthread_mutex_lock(&g_lock);
    o->next = g_observers;
    g_observers = o;
    pthread_mutex_unlock(&g_lock);
    e->rank.ops = &k_watching;
    e->options.trace = NULL; /* the caller's text may go */
    e->options.compare = o->shadow ? o->shadow->api->name : NULL;
    return NIB_OK;
}

void nib_observer_close(struct nib_engine *e)
{
    struct nib_observer *o = e->observer;
    if (!o)
        return;
    pthread_mutex_lock(&g_lock);
    for (struct nib_observer **p = &g_observers; *p; p = &(*p)->next)
        if (*p == o) {
            *p = o->next;
            break;
        }
    pthread_mutex_unlock(&g_lock);
    e->rank.ops = o->inner;
    nib_shadow_close(o);
    nib_trace_close(o);
    nib_arena_deinit(&o->arena);
    free(o);
    e->observer = NULL;
}
