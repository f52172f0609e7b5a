/* Running one step again and again: sequences of the wanted length, a counted step, then timed ones of which the
 * fastest counts. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "cli.h"
#include "session.h"

enum { N_LEAST = 3, N_MOST = 2000 };
#define SECONDS_LEAST 0.5

/* The sequences and arrays of a case. */
struct setting {
    struct nib_engine       *engine;
    const struct bench_case *c;
    bool                     is_device;
    struct nib_seq         **seq;
    int32_t                 *token, *start, *wanted;
    float                   *logits;
    struct nib_batch         batch;
};

static void close_setting(struct setting *s)
{
    for (int32_t i = 0; s->seq && i < s->c->batch; i++)
        nib_seq_close(s->seq[i]);
    free(s->seq);
    free(s->token);
    free(s->start);
    free(s->wanted);
    free(s->logits);
}

/* Tokens that differ, with `head` logits of each sequence's last row. */
static int open_setting(struct setting *s, struct nib_engine *e, int32_t vocab, const struct bench_case *c, bool head)
{
    const size_t     n_seqs = (size_t)c->batch, n_rows = (size_t)c->n_rows;
    const int32_t    rows = c->n_rows / c->batch;
    struct nib_error err = {0};
    enum nib_status  status = NIB_OK;

    *s = (struct setting){.engine = e, .c = c};
    s->seq = calloc(n_seqs, sizeof(struct nib_seq *));
    s->token = calloc(n_rows, sizeof *s->token);
    s->start = calloc(n_seqs + 1, sizeof *s->start);
    s->wanted = calloc(n_seqs, sizeof *s->wanted);
    s->logits = malloc(n_seqs * (size_t)vocab * sizeof *s->logits);
    if (!s->seq || !s->token || !s->start || !s->wanted || !s->logits)
        return cli_fail_memory();
    for (size_t i = 0; i < n_rows; i++)
        s->token[i] = (int32_t)((i * 7919 + 17) % (size_t)vocab);
    for (int32_t i = 0; i < c->batch && status == NIB_OK; i++) {
        s->start[i + 1] = (i + 1) * rows;
        s->wanted[i] = (i + 1) * rows - 1;
        status = nib_seq_open(e, &s->seq[i], &err);
        if (status == NIB_OK)
            status = nib_seq_fill_random(s->seq[i], c->n_held, &err);
    }
    s->batch = (struct nib_batch){.n_rows = c->n_rows, .n_seqs = c->batch, .n_logits = head ? c->batch : 0,
                                  .token = s->token, .seq_start = s->start, .seq = s->seq, .logits_row = s->wanted};
    return status == NIB_OK ? CLI_OK : session_fail(status, &err);
}

/* A step as a server runs it: looking at single ops would make a device wait for each. */
static enum nib_status whole_step(struct setting *s, struct nib_profile *out, struct nib_error *err)
{
    struct timespec begin, end;

    *out = (struct nib_profile){0};
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    const enum nib_status status = nib_step(s->engine, &s->batch, s->logits, NULL, err);
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    out->seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    return status;
}

/* One step, taken back: counted, or timed as a whole or by its ops. */
enum how { COUNTED, WHOLE, BY_OPS };

static int step(struct setting *s, enum how how, struct nib_profile *out)
{
    struct nib_error err = {0};
    enum nib_status  status = how == WHOLE
                                  ? whole_step(s, out, &err)
                                  : nib_step_profile(s->engine, &s->batch, s->logits, how == COUNTED, out, &err);

    for (int32_t i = 0; i < s->c->batch && status == NIB_OK; i++)
        status = nib_seq_truncate(s->seq[i], s->c->n_held);
    return status == NIB_OK ? CLI_OK : session_fail(status, &err);
}

static double ops_seconds(const struct nib_profile *p, bool head_only)
{
    double sum = 0;

    for (int32_t i = 0; i < p->n_ops; i++)
        if (!head_only || p->op[i].head)
            sum += p->op[i].seconds;
    return sum;
}

/* The fastest of many: of the whole, of its two parts, and of each op by itself. */
struct best {
    double all, layers, head, outside;
    double op[NIB_PROFILE_OPS_MAX];
};

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static void take_better(struct best *b, const struct nib_profile *p, bool first)
{
    const double head = ops_seconds(p, true);

    if (first || p->seconds < b->all) {
        b->all = p->seconds;
        b->outside = 1 - ops_seconds(p, false) / p->seconds;
    }
    b->layers = first ? p->seconds - head : smaller(b->layers, p->seconds - head);
    b->head = first ? head : smaller(b->head, head);
    for (int32_t i = 0; i < p->n_ops; i++)
        b->op[i] = first ? p->op[i].seconds : smaller(b->op[i], p->op[i].seconds);
}

static int time_steps(struct setting *s, enum how how, int32_t repeat, struct best *best)
{
    struct nib_profile p;
    double             spent = 0;
    int                code = step(s, how, &p); /* not counted: pages and caches are cold */

    for (int32_t i = 0; code == CLI_OK; i++) {
        if (repeat > 0 ? i >= repeat : i >= N_MOST || (i >= N_LEAST && spent >= SECONDS_LEAST))
            break;
        code = step(s, how, &p);
        if (code != CLI_OK)
            break;
        take_better(best, &p, i == 0);
        spent += p.seconds;
    }
    return code;
}

static int add_row(struct bench_result *result, const struct bench_row *row)
{
    struct bench_row *more = realloc(result->row, (size_t)(result->n_rows + 1) * sizeof *more);

    if (!more)
        return cli_fail_memory();
    result->row = more;
    result->row[result->n_rows++] = *row;
    return CLI_OK;
}

static int add_parts(const struct bench_options *o, const struct bench_case *c, const struct nib_profile *counts,
                     const struct best *best, struct bench_result *result)
{
    const double seconds[] = {[BENCH_LAYERS] = best->layers, [BENCH_HEAD] = best->head, [BENCH_ALL] = best->all};
    int          code = CLI_OK;

    for (int part = BENCH_LAYERS; part <= BENCH_ALL && code == CLI_OK; part++) {
        struct bench_row row = {.phase = c->phase, .part = (enum bench_part)part, .context = c->context,
                                .batch = c->batch, .n_tokens = c->n_rows, .n_calls = 1, .seconds = seconds[part]};
        if (result->is_device ? part != BENCH_ALL : o->part != BENCH_EVERY_PART && o->part != part)
            continue;
        for (int32_t i = 0; i < counts->n_ops; i++) {
            const struct nib_profile_op *op = &counts->op[i];
            if (part != BENCH_ALL && op->head != (part == BENCH_HEAD))
                continue;
            row.bytes += op->bytes;
            row.fp32_ops += op->fp32_ops;
            row.fp8_ops += op->fp8_ops;
            row.int8_ops += op->int8_ops;
        }
        code = add_row(result, &row);
    }
    return code;
}

static int add_ops(const struct bench_case *c, const struct nib_profile *counts, const struct best *best,
                   struct bench_result *result)
{
    int code = CLI_OK;

    for (int32_t i = 0; i < counts->n_ops && code == CLI_OK; i++) {
        const struct nib_profile_op *op = &counts->op[i];
        /* Where nothing had to be done, such as selecting from few entries, there is no share. */
        if (op->bytes + op->fp32_ops + op->fp8_ops + op->int8_ops == 0)
            continue;
        const struct bench_row row = {.phase = c->phase, .part = op->head ? BENCH_HEAD : BENCH_LAYERS, .op = op->name,
                                      .context = c->context, .batch = c->batch, .n_tokens = c->n_rows,
                                      .n_calls = op->n_calls, .seconds = best->op[i], .bytes = op->bytes,
                                      .fp32_ops = op->fp32_ops, .fp8_ops = op->fp8_ops, .int8_ops = op->int8_ops};
        code = add_row(result, &row);
    }
    return code;
}

static int add_outside(struct bench_result *result, const struct bench_case *c, double share)
{
    struct bench_outside *more = realloc(result->outside, (size_t)(result->n_outside + 1) * sizeof *more);

    if (!more)
        return cli_fail_memory();
    result->outside = more;
    more[result->n_outside++] = (struct bench_outside){c->phase, c->context, c->batch, share};
    return CLI_OK;
}

int bench_measure(const struct bench_options *o, struct nib_engine *e, int32_t vocab, const struct bench_case *c,
                  struct bench_result *result)
{
    struct setting     s;
    struct nib_profile counts;
    struct best        best = {0}, single = {0};

    int code = open_setting(&s, e, vocab, c, o->part != BENCH_LAYERS);
    s.is_device = result->is_device;
    if (code == CLI_OK)
        code = step(&s, COUNTED, &counts);
    if (code == CLI_OK)
        code = time_steps(&s, s.is_device ? WHOLE : BY_OPS, o->repeat, &best);
    if (code == CLI_OK && s.is_device && o->ops)
        code = time_steps(&s, BY_OPS, o->repeat, &single);
    close_setting(&s);
    if (code == CLI_OK)
        code = add_parts(o, c, &counts, &best, result);
    if (code == CLI_OK && o->ops)
        code = add_ops(c, &counts, s.is_device ? &single : &best, result);
    return code == CLI_OK && !result->is_device ? add_outside(result, c, best.outside) : code;
}

/* ---- Shares ---- */

uint64_t bench_ops(const struct bench_row *r)
{
    return r->fp32_ops + r->fp8_ops + r->int8_ops;
}

double bench_share(const struct nib_machine *m, const struct bench_row *r, bool *by_bytes)
{
    const double bytes = 1e-9 * (double)r->bytes / m->read_gb_s;
    const double ops = 1e-9 * ((double)r->fp32_ops / m->fp32_gflop_s + (double)r->fp8_ops / m->fp8_gflop_s +
                               (double)r->int8_ops / m->int8_gop_s);

    *by_bytes = bytes >= ops;
    return r->seconds > 0 ? (bytes > ops ? bytes : ops) / r->seconds : 0;
}

static const struct bench_row *worst(const struct bench_result *result, bool *by_bytes, double *share)
{
    const struct bench_row *found = NULL;

    *share = 1;
    for (int i = 0; i < result->n_rows; i++) {
        bool   bytes;
        double s = bench_share(&result->machine, &result->row[i], &bytes);
        if (s > *share) {
            found = &result->row[i];
            *share = s;
            *by_bytes = bytes;
        }
    }
    return found;
}

int bench_measure_machine(struct bench_result *result, int32_t n_threads, uint64_t read_bytes)
{
    struct nib_error      err = {0};
    const enum nib_status status = result->is_device
                                       ? nib_device_measure("cuda", read_bytes, &result->machine, &err)
                                       : nib_machine_measure(n_threads, read_bytes, &result->machine, &err);

    return status == NIB_OK ? CLI_OK : session_fail(status, &err);
}

int bench_settle(struct bench_result *result)
{
    struct nib_machine *m = &result->machine;
    double              share;
    bool                by_bytes;

    /* Once more in any case: what else the machine did at the start may have stopped. */
    for (int i = 0; i < 4; i++) {
        if (i > 0 && !worst(result, &by_bytes, &share))
            return CLI_OK;
        const int code = bench_measure_machine(result, m->n_threads, m->read_bytes);
        if (code != CLI_OK)
            return code;
    }
    while (worst(result, &by_bytes, &share)) {
        result->raised = true;
        /* A hair more, so that rounding leaves the share at 1. */
        share *= 1 + 1e-9;
        if (by_bytes) {
            m->read_gb_s *= share;
        } else {
            m->fp32_gflop_s *= share;
            m->fp8_gflop_s *= share;
            m->int8_gop_s *= share;
        }
    }
    return CLI_OK;
}
