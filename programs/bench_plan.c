/* What to measure: lists and shapes as they are written, and the cases for which there is memory. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli.h"
#include "session.h"

/* ---- Lists and shapes ---- */

/* A number, with K or M for 2^10 or 2^20, up to a comma or the end; -1 if it is none or out of range. */
static int64_t read_number(const char **text, int64_t high)
{
    char *end;

    if (!isdigit((unsigned char)**text))
        return -1;
    errno = 0;
    long long v = strtoll(*text, &end, 10);
    int shift = *end == 'K' || *end == 'k' ? 10 : *end == 'M' || *end == 'm' ? 20 : 0;
    if (shift > 0)
        end++;
    *text = end;
    if (errno == ERANGE || v > high >> shift || (*end != ',' && *end != '\0'))
        return -1;
    return (int64_t)v << shift;
}

int bench_read_list(const char *option, const char *text, int32_t low, int32_t high, struct bench_list *out)
{
    const char *at = text;

    out->n = 0;
    for (;;) {
        int64_t v = read_number(&at, high);
        if (v < low)
            return cli_usage("%s: '%s' is not a list of numbers from %d to %d, such as 1,4K,1M", option, text, low,
                             high);
        if (out->n == BENCH_LIST_MAX)
            return cli_usage("%s: more than %d numbers", option, BENCH_LIST_MAX);
        bool known = false;
        for (int i = 0; i < out->n; i++)
            known = known || out->value[i] == v;
        if (!known)
            out->value[out->n++] = (int32_t)v;
        if (*at++ == '\0')
            return CLI_OK;
    }
}

/* "layers=2" and so on, NUL-terminated. */
static int read_shape_part(struct nib_shape *sizes, const char *part)
{
    const char *equals = strchr(part, '=');
    const char *value = equals ? equals + 1 : "";

    if (strncmp(part, "format=", 7) == 0) {
        sizes->format = value;
        return CLI_OK;
    }
    int32_t *count = strncmp(part, "layers=", 7) == 0    ? &sizes->n_layers
                     : strncmp(part, "experts=", 8) == 0 ? &sizes->n_experts
                                                         : NULL;
    if (!count)
        return cli_usage("--shape: '%s' is not known; wanted layers=N, experts=N or format=NAME", part);
    const char *end = value;
    int64_t     n = read_number(&end, 1 << 20);
    if (n < 1 || *end != '\0')
        return cli_usage("--shape: '%s' is not a whole number from 1 to %d", part, 1 << 20);
    *count = (int32_t)n;
    return CLI_OK;
}

int bench_read_shape(struct bench_options *o)
{
    if (strlen(o->shape) >= sizeof o->shape_text)
        return cli_usage("--shape: %zu characters, wanted a shape such as flash,layers=2", strlen(o->shape));
    (void)snprintf(o->shape_text, sizeof o->shape_text, "%s", o->shape);
    char *at = strchr(o->shape_text, ',');
    o->sizes.name = o->shape_text;
    while (at) {
        char *part = at + 1;
        *at = '\0';
        at = strchr(part, ',');
        if (at)
            *at = '\0';
        int code = read_shape_part(&o->sizes, part);
        if (code != CLI_OK)
            return code;
        if (at)
            *at = ','; /* the loop's own end mark, set again there */
    }
    return CLI_OK;
}

/* ---- Cases ---- */

static struct bench_skipped *skip(struct bench_result *result, const struct bench_case *c)
{
    struct bench_skipped *more = realloc(result->skipped, (size_t)(result->n_skipped + 1) * sizeof *more);

    if (!more)
        return NULL;
    result->skipped = more;
    more += result->n_skipped++;
    *more = (struct bench_skipped){.phase = c->phase, .context = c->context, .batch = c->batch};
    return more;
}

static int32_t n_pages(const struct bench_case *c)
{
    const int32_t tokens = c->n_held + c->n_rows / c->batch;

    return c->batch * (tokens / 128 + 1);
}

/* Room for every case in turn. */
static void fit_options(const struct bench_case *cases, int n, struct nib_options *o)
{
    o->n_ctx = o->n_rows_max = o->n_seqs_max = o->n_kv_pages = 1;
    o->n_rollback = 16;
    for (int i = 0; i < n; i++) {
        const struct bench_case *c = &cases[i];
        const int32_t            rows = c->n_rows / c->batch, tokens = c->n_held + rows;
        o->n_ctx = tokens > o->n_ctx ? tokens : o->n_ctx;
        o->n_rows_max = c->n_rows > o->n_rows_max ? c->n_rows : o->n_rows_max;
        o->n_seqs_max = c->batch > o->n_seqs_max ? c->batch : o->n_seqs_max;
        o->n_kv_pages = n_pages(c) > o->n_kv_pages ? n_pages(c) : o->n_kv_pages;
        if (c->n_held > 0)
            o->n_rollback = rows > o->n_rollback ? rows : o->n_rollback;
    }
}

static int add_case(const struct bench_options *o, const struct nib_model_info *info, struct bench_case c,
                    struct bench_case *cases, int *n, struct bench_result *result)
{
    const int32_t rows = c.n_rows / c.batch;

    /* The last token of a full context is measured within it. */
    c.n_held = c.context <= info->n_ctx_max && c.context > info->n_ctx_max - rows ? info->n_ctx_max - rows : c.context;
    if (c.n_held >= 0 && c.n_held <= info->n_ctx_max - rows) {
        cases[(*n)++] = c;
        return CLI_OK;
    }
    if (o->context_given && c.context > info->n_ctx_max)
        return cli_usage("--context: %d is out of range; the model was made for up to %d tokens", c.context,
                         info->n_ctx_max);
    struct bench_skipped *s = skip(result, &c);
    if (!s)
        return cli_fail_memory();
    (void)snprintf(s->why, sizeof s->why, "the model's context is %d tokens", info->n_ctx_max);
    return CLI_OK;
}

static int list_cases(const struct bench_options *o, const struct nib_model_info *info, struct bench_case *cases,
                      int *n, struct bench_result *result)
{
    int code = CLI_OK;

    for (int i = 0; i < o->context.n && code == CLI_OK; i++) {
        const int32_t context = o->context.value[i];
        for (int k = 0; k < o->batch.n && o->phase != BENCH_PREFILL && code == CLI_OK; k++)
            code =
                add_case(o, info, (struct bench_case){BENCH_DECODE, context, o->batch.value[k], o->batch.value[k], 0},
                         cases, n, result);
        if (o->phase != BENCH_DECODE && code == CLI_OK)
            code = add_case(o, info, (struct bench_case){BENCH_PREFILL, context, 1, o->rows, 0}, cases, n, result);
    }
    return code;
}

/* Leave out the case that holds the most, for lack of memory. */
static int drop_largest(const struct nib_memory_plan *plan, struct bench_case *cases, int *n,
                        struct bench_result *result)
{
    int most = 0;

    for (int i = 1; i < *n; i++)
        most = n_pages(&cases[i]) > n_pages(&cases[most]) ? i : most;
    struct bench_skipped *s = skip(result, &cases[most]);
    if (!s)
        return cli_fail_memory();
    (void)snprintf(s->why, sizeof s->why, "takes %.1f GiB of memory, %.1f GiB are available",
                   (double)plan->total_bytes / 0x1p30, (double)plan->available_bytes / 0x1p30);
    memmove(&cases[most], &cases[most + 1], (size_t)(--*n - most) * sizeof *cases);
    return CLI_OK;
}

int bench_plan(const struct bench_options *o, const struct nib_model *m, struct nib_options *engine,
               struct bench_case *cases, int *n_cases, struct bench_result *result)
{
    struct nib_memory_plan plan;
    struct nib_error       err = {0};

    int code = list_cases(o, nib_model_get_info(m), cases, n_cases, result);
    while (code == CLI_OK && *n_cases > 0) {
        fit_options(cases, *n_cases, engine);
        enum nib_status status = nib_model_plan(m, engine, &plan, &err);
        if (status != NIB_OK)
            return session_fail(status, &err);
        /* A tenth stays free: what is available is an estimate, and others want some too. */
        if (plan.available_bytes == 0 || plan.total_bytes <= plan.available_bytes / 10 * 9)
            return CLI_OK;
        code = drop_largest(&plan, cases, n_cases, result);
    }
    if (code != CLI_OK)
        return code;
    if (result->n_skipped == 0)
        return cli_fail("there is nothing to measure");
    const struct bench_skipped *last = &result->skipped[result->n_skipped - 1];
    return cli_fail("nothing can be measured: %s at context %d, batch %d %s%s", bench_phase_names[last->phase],
                    last->context, last->batch, last->why,
                    o->shape ? "; layers=N and experts=N make a shape smaller" : "");
}

void bench_result_free(struct bench_result *r)
{
    free(r->row);
    free(r->outside);
    free(r->skipped);
    *r = (struct bench_result){0};
}
