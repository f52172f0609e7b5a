/* The lines of a benchmark as text, as comma-separated values and as JSON. */
#include <stdio.h>

#include "bench.h"
#include "cli.h"
#include "output.h"

static double tokens_per_s(const struct bench_row *r)
{
    return r->seconds > 0 ? (double)r->n_tokens / r->seconds : 0;
}

/* Of single ops the phase is "op"; those of a prompt's step say so in front of their names. */
static const char *op_name(char out[64], const struct bench_row *r)
{
    (void)snprintf(out, 64, "%s%s", r->op && r->phase == BENCH_PREFILL ? "prefill/" : "", r->op ? r->op : "");
    return out;
}

/* ---- Text ---- */

static const char *context_text(char out[32], int32_t tokens)
{
    if (tokens > 0 && tokens % (1 << 20) == 0)
        (void)snprintf(out, 32, "%dM", tokens >> 20);
    else if (tokens > 0 && tokens % 1024 == 0)
        (void)snprintf(out, 32, "%dK", tokens >> 10);
    else
        (void)snprintf(out, 32, "%d", tokens);
    return out;
}

/* "12.1 G". */
static const char *ops_text(char out[32], uint64_t ops)
{
    static const char units[] = " kMGTP";
    double            v = (double)ops;
    int               i = 0;

    for (; v >= 1000 && units[i + 1]; i++)
        v /= 1000;
    (void)snprintf(out, 32, i == 0 ? "%.0f" : "%.1f %c", v, units[i]);
    return out;
}

static void print_head(const struct bench_result *r)
{
    static const char *const act[] = {"auto", "none", "fp8", "nvfp4", "int8"};
    static const char *const kv[] = {"f32", "bf16", "fp8", "nvfp4"};
    const struct nib_machine *m = &r->machine;
    char                      bytes[32];

    (void)printf("%s\n", r->model);
    (void)printf("  engine   %s", r->engine.backend);
    if (!r->is_device)
        (void)printf(", %d threads", m->n_threads);
    if ((size_t)r->engine.act_quant < sizeof act / sizeof act[0])
        (void)printf(", activations %s", act[r->engine.act_quant]);
    (void)printf(", numerics %s", cli_numerics_names[r->engine.numerics]);
    if ((size_t)r->engine.kv < sizeof kv / sizeof kv[0])
        (void)printf(", context rows %s", kv[r->engine.kv]);
    (void)printf("\n  machine  %.1f GB/s over %s, ", m->read_gb_s, output_bytes(bytes, m->read_bytes));
    if (r->is_device)
        (void)printf("%.1f TFLOP/s bf16, %.1f fp8, %.1f fp4", 1e-3 * m->fp32_gflop_s, 1e-3 * m->fp8_gflop_s,
                     1e-3 * m->int8_gop_s);
    else
        (void)printf("%.1f GFLOP/s fp32, %.1f GOP/s int8", m->fp32_gflop_s, m->int8_gop_s);
    (void)printf("%s\n", r->raised ? " (raised to what a step did)" : "");
    (void)printf("  context rows above 0 are random numbers, not a computed prompt\n\n");
}

static void print_row(const struct nib_machine *m, const struct bench_row *r)
{
    char   context[32], bytes[32], ops[32];
    bool   by_bytes;
    double share = bench_share(m, r, &by_bytes);

    (void)printf("%-8s%-7s%8s%6d%12.1f%11.3f%12s%12s  %-6s%5.1f %%  %s\n", bench_phase_names[r->phase],
                 bench_part_names[r->part], context_text(context, r->context), r->batch, tokens_per_s(r),
                 1e3 * r->seconds, output_bytes(bytes, r->bytes), ops_text(ops, bench_ops(r)),
                 by_bytes ? "bytes" : "ops", 100 * share, r->op ? r->op : "");
}

int bench_print_text(const struct bench_result *r)
{
    char context[32];

    print_head(r);
    (void)printf("%-8s%-7s%8s%6s%12s%11s%12s%12s  %-6s%7s  %s\n", "phase", "part", "context", "batch", "tokens/s", "ms",
                 "reads", "operations", "limit", "share", "op");
    for (int i = 0; i < r->n_rows; i++)
        print_row(&r->machine, &r->row[i]);
    (void)printf("\n");
    for (int i = 0; i < r->n_outside; i++)
        (void)printf("outside of ops: %4.1f %% of a step (%s, context %s, batch %d)\n", 100 * r->outside[i].share,
                     bench_phase_names[r->outside[i].phase], context_text(context, r->outside[i].context),
                     r->outside[i].batch);
    for (int i = 0; i < r->n_skipped; i++)
        (void)printf("left out: %s, context %s, batch %d: %s\n", bench_phase_names[r->skipped[i].phase],
                     context_text(context, r->skipped[i].context), r->skipped[i].batch, r->skipped[i].why);
    return CLI_OK;
}

/* ---- CSV ---- */

int bench_print_csv(const struct bench_result *r)
{
    (void)printf("phase,part,op,context,batch,tokens_per_s,bytes,ops,limit,share\n");
    for (int i = 0; i < r->n_rows; i++) {
        const struct bench_row *row = &r->row[i];
        char                    name[64];
        bool                    by_bytes;
        double                  share = bench_share(&r->machine, row, &by_bytes);
        (void)printf("%s,%s,%s,%d,%d,%.9g,%llu,%llu,%s,%.9g\n", row->op ? "op" : bench_phase_names[row->phase],
                     bench_part_names[row->part], op_name(name, row), row->context, row->batch, tokens_per_s(row),
                     (unsigned long long)row->bytes, (unsigned long long)bench_ops(row),
                     by_bytes ? "bytes" : "ops", share);
    }
    return CLI_OK;
}

/* ---- JSON ---- */

static json_t *row_json(const struct nib_machine *m, const struct bench_row *r)
{
    char   name[64];
    bool   by_bytes;
    double share = bench_share(m, r, &by_bytes);

    return json_pack("{s:s, s:s, s:o, s:i, s:i, s:o, s:I, s:I, s:s, s:o}", "phase",
                     r->op ? "op" : bench_phase_names[r->phase], "part", bench_part_names[r->part], "op",
                     r->op ? json_string(op_name(name, r)) : json_null(), "context", r->context, "batch", r->batch,
                     "tokens_per_s", output_real(tokens_per_s(r)), "bytes", (json_int_t)r->bytes, "ops",
                     (json_int_t)bench_ops(r), "limit", by_bytes ? "bytes" : "ops", "share",
                     output_real(share));
}

static json_t *outside_json(const struct bench_result *r)
{
    json_t *list = json_array();

    for (int i = 0; i < r->n_outside; i++)
        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:i, s:i, s:o}", "phase", bench_phase_names[r->outside[i].phase],
                                              "context", r->outside[i].context, "batch", r->outside[i].batch, "share",
                                              output_real(r->outside[i].share)));
    return list;
}

static json_t *skipped_json(const struct bench_result *r)
{
    json_t *list = json_array();

    for (int i = 0; i < r->n_skipped; i++)
        (void)json_array_append_new(
            list, json_pack("{s:s, s:i, s:i, s:s}", "phase", bench_phase_names[r->skipped[i].phase], "context",
                            r->skipped[i].context, "batch", r->skipped[i].batch, "why", r->skipped[i].why));
    return list;
}

int bench_print_json(const struct bench_result *r)
{
    const struct nib_machine *m = &r->machine;
    json_t                   *rows = json_array();

    for (int i = 0; i < r->n_rows; i++)
        (void)json_array_append_new(rows, row_json(m, &r->row[i]));
    json_t *machine = json_pack("{s:o, s:o, s:o, s:o}", "read_gb_s", output_real(m->read_gb_s), "fp32_gflop_s",
                                output_real(m->fp32_gflop_s), "fp8_gflop_s", output_real(m->fp8_gflop_s), "int8_gop_s",
                                output_real(m->int8_gop_s));
    return output_json(json_pack("{s:o, s:o, s:s, s:s, s:i, s:I, s:b, s:o, s:o}", "machine", machine, "rows", rows,
                                 "model", r->model, "backend", r->engine.backend, "threads", m->n_threads,
                                 "machine_read_bytes", (json_int_t)m->read_bytes, "machine_raised", r->raised,
                                 "outside_of_ops", outside_json(r), "left_out", skipped_json(r)));
}
