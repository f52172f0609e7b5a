/* A line of JSON for every op. Keys and values are ours, so nothing needs escaping. */
#include "engine/observe.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/file.h"

enum nib_status nib_trace_open(struct nib_observer *o, const char *path, struct nib_error *err)
{
    char text[128];
    o->trace = fopen(path, "w");
    return o->trace ? NIB_OK : nib_error_set(err, NIB_E_IO, "%s: cannot write: %s", path,
                                             nib_errno_text(errno, text, sizeof text));
}

void nib_trace_close(struct nib_observer *o)
{
    if (o->trace)
        (void)fclose(o->trace);
    o->trace = NULL;
}

/* The weights of an op, by shape and format. */
static void print_weight(FILE *f, const char *name, const struct nib_weight *w, bool *first)
{
    static const char *const types[] = {"f32", "bf16", "fp8", "mxfp4", "nvfp4"};
    static const char *const acts[] = {"plain", "fp8", "nvfp4", "int8"};
    if (!w)
        return;
    (void)fprintf(f, "%s\"%s\": {\"shape\": [%" PRId32 ", %" PRId32 ", %" PRId32 "], \"format\": \"%s\", \"act\": \"%s\"}",
                  *first ? ", \"weights\": {" : ", ", name, w->n_stack, w->n_out, w->n_in, types[w->type], acts[w->act]);
    *first = false;
}

static void print_weights(FILE *f, enum nib_op op, const void *args)
{
    bool first = true;
    if (op == NIB_OP_EMBED) {
        print_weight(f, "w", ((const struct nib_embed_args *)args)->w, &first);
    } else if (op == NIB_OP_LINEAR) {
        const struct nib_linear_args *a = args;
        for (int32_t i = 0; i < a->n_weights; i++)
            print_weight(f, (const char[]){'w', (char)('0' + i), '\0'}, a->w[i], &first);
    } else if (op == NIB_OP_O_A) {
        print_weight(f, "w", ((const struct nib_o_a_args *)args)->w, &first);
    } else if (op == NIB_OP_HEAD) {
        print_weight(f, "w", ((const struct nib_head_args *)args)->w, &first);
    } else if (op == NIB_OP_MOE) {
        const struct nib_moe_args *a = args;
        const struct nib_weight *const w[] = {a->router, a->w1, a->w2, a->w3, a->sw1, a->sw2, a->sw3};
        static const char *const names[] = {"router", "w1", "w2", "w3", "sw1", "sw2", "sw3"};
        for (size_t i = 0; i < sizeof w / sizeof w[0]; i++)
            print_weight(f, names[i], w[i], &first);
    }
    if (!first)
        (void)fputs("}", f);
}

static void print_values(FILE *f, const struct nib_values *v)
{
    const size_t n = (size_t)v->rows * (size_t)v->cols;
    int64_t n_nan = 0, n_inf = 0;
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = fabs((double)v->value[i]);
        n_nan += isnan(x) != 0;
        n_inf += isinf(x) != 0;
        largest = isfinite(x) && x > largest ? x : largest;
    }
    (void)fprintf(f, "\"%s\": {\"shape\": [%" PRId32 ", %" PRId32 "], \"format\": \"%s\", \"hash\": \"%016" PRIx64 "\", "
                     "\"nan\": %" PRId64 ", \"inf\": %" PRId64 ", \"max\": %.9g}",
                  v->name, v->rows, v->cols, v->format, v->hash, n_nan, n_inf, largest);
}

enum nib_status nib_trace_op(struct nib_observer *o, enum nib_op op, const void *args, double seconds)
{
    const struct nib_rank *rk = &o->engine->rank;
    const struct nib_reader r = {rk->api, rk->stream, &o->arena};
    struct nib_values v[NIB_VALUES_MAX];
    FILE *f = o->trace;
    const int32_t n = nib_op_results(&r, op, args, v);
    if (n < 0)
        return nib_error_set(&o->engine->op_error, NIB_E_MEMORY,
                             "the results of op '%s' could not be read for the trace", nib_op_name(op));
    (void)fprintf(f, "{\"step\": %" PRIu64 ", \"n\": %" PRIu64 ", \"layer\": %" PRId32 ", \"part\": \"%s\", \"op\": \"%s\", "
                     "\"rows\": %" PRId32 ", \"us\": %.1f",
                  o->step, o->n_ops, o->layer, o->part, nib_op_name(op), nib_op_rows(op, args), 1e6 * seconds);
    print_weights(f, op, args);
    (void)fputs(", \"out\": {", f);
    for (int32_t i = 0; i < n; i++) {
        if (i > 0)
            (void)fputs(", ", f);
        print_values(f, &v[i]);
    }
    (void)fputs("}}\n", f);
    if (fflush(f) == 0)
        return NIB_OK;
    char text[128];
    return nib_error_set(&o->engine->op_error, NIB_E_IO, "the trace cannot be written: %s",
                         nib_errno_text(errno, text, sizeof text));
}
