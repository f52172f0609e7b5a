/* nibble selftest: the kernels of this machine held to `ref`, op by op, on the bundled model. What it prints, or writes
 * with --out, is what to send along when results look wrong. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arguments.h"
#include "cli.h"
#include "nibble.h"
#include "output.h"
#include "session.h"

enum { N_CTX = 512, N_ROWS_MAX = 160, N_STEPS = 8 };

/* Few rows, a captured step that comes again, more rows than the kernels for few of them take, and one at a time behind
 * a page's end. */
static const int32_t step_rows[N_STEPS] = {1, 1, 7, 1, 129, 16, 1, 1};

/* Ways of rounding, each with kernels of its own. */
static const struct setting {
    const char        *name;
    enum nib_numerics  numerics;
    enum nib_act_quant act_quant;
    enum nib_kv        kv;
} settings[] = {
    {"plain activations, bf16 context", NIB_NUMERICS_MODEL, NIB_ACT_QUANT_NONE, NIB_KV_BF16},
    {"plain activations, fp8 context", NIB_NUMERICS_MODEL, NIB_ACT_QUANT_NONE, NIB_KV_FP8},
    {"nvfp4 activations, bf16 context", NIB_NUMERICS_MODEL, NIB_ACT_QUANT_NVFP4, NIB_KV_BF16},
    {"nvfp4 activations, nvfp4 context", NIB_NUMERICS_MODEL, NIB_ACT_QUANT_NVFP4, NIB_KV_NVFP4},
    {"int8 activations, f32 context", NIB_NUMERICS_MODEL, NIB_ACT_QUANT_INT8, NIB_KV_F32},
    {"bf16 rows, plain activations, bf16 context", NIB_NUMERICS_BF16, NIB_ACT_QUANT_NONE, NIB_KV_BF16},
    {"bf16 rows, nvfp4 activations, fp8 context", NIB_NUMERICS_BF16, NIB_ACT_QUANT_NVFP4, NIB_KV_FP8},
    {"release (fp8 activations and context)", NIB_NUMERICS_RELEASE, NIB_ACT_QUANT_FP8, NIB_KV_FP8},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

struct selftest_options {
    struct cli_engine_options engine;
    const char               *out;
    bool                      json;
};

struct result {
    bool             ok;
    double           seconds;
    struct nib_error error; /* of the first failure */
};

static double seconds_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Any ids do: spread over the vocabulary, and the same every time. */
static int32_t token_at(int32_t i, int32_t vocab)
{
    return (int32_t)(((int64_t)i * 7919 + 13) % vocab);
}

/* Logits of each step's last row go to logits: [N_STEPS][vocab]. */
static enum nib_status run_steps(struct nib_engine *e, int32_t vocab, float *logits, struct nib_error *err)
{
    struct nib_seq *seq;
    int32_t         token[N_ROWS_MAX], at = 0;
    enum nib_status status = nib_seq_open(e, &seq, err);
    for (int i = 0; status == NIB_OK && i < N_STEPS; i++) {
        const int32_t          n = step_rows[i], start[2] = {0, n}, last = n - 1;
        const struct nib_batch b = {.n_rows = n, .n_seqs = 1, .n_logits = 1, .token = token, .seq_start = start, .seq = &seq, .logits_row = &last};
        for (int32_t k = 0; k < n; k++)
            token[k] = token_at(at + k, vocab);
        at += n;
        status = nib_step(e, &b, logits + (size_t)i * (size_t)vocab, NULL, err);
    }
    nib_seq_close(seq);
    return status;
}

static enum nib_status run_engine(struct session *s, const struct nib_options *o, float *logits, struct nib_error *err)
{
    struct nib_engine *e = NULL;
    enum nib_status    status = nib_engine_open(s->model, o, &e, err);
    if (status == NIB_OK)
        status = run_steps(e, s->info->vocab, logits, err);
    nib_engine_close(e);
    return status;
}

/* Op by op against ref; and then as steps usually run (on a card as graphs), which must change no bit. */
static enum nib_status run_setting(struct session *s, const struct setting *t, float *logits, struct nib_error *err)
{
    const size_t       n = (size_t)N_STEPS * (size_t)s->info->vocab;
    struct nib_options o;
    enum nib_status    status;
    if (session_engine_options(s, N_ROWS_MAX, false, &o) != CLI_OK)
        return NIB_E_ARGUMENT;
    o.n_ctx = N_CTX;
    o.numerics = t->numerics;
    o.act_quant = t->act_quant;
    o.kv = t->kv;
    o.compare = "ref";
    status = run_engine(s, &o, logits, err);
    if (status != NIB_OK)
        return status;
    o.compare = NULL;
    status = run_engine(s, &o, logits + n, err);
    if (status != NIB_OK)
        return status;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&logits[i], &logits[n + i], sizeof *logits) != 0) {
            err->status = NIB_E_NUMERIC;
            (void)snprintf(err->text, sizeof err->text, "step %zu of %d rows: logit %zu is %.9g where ops run one by one, and %.9g otherwise",
                           i / (size_t)s->info->vocab, step_rows[i / (size_t)s->info->vocab], i % (size_t)s->info->vocab, (double)logits[i],
                           (double)logits[n + i]);
            return NIB_E_NUMERIC;
        }
    }
    return NIB_OK;
}

/* ---- What comes out ---- */

static json_t *tests_json(const struct result *r)
{
    json_t *tests = json_array();
    for (int i = 0; i < N_SETTINGS; i++)
        (void)json_array_append_new(tests, json_pack("{s:s, s:b, s:o, s:s}", "name", settings[i].name, "ok", r[i].ok, "seconds",
                                                     output_real(r[i].seconds), "why", r[i].ok ? "" : r[i].error.text));
    return tests;
}

static json_t *result_json(const char *backend, const struct nib_device_info *d, const struct session *s, const struct result *r, int n_failed)
{
    return json_pack("{s:s, s:s, s:{s:s, s:I, s:s}, s:s, s:o, s:i, s:i}", "nibble", nib_version(), "backend", backend, "device", "name", d->name,
                     "total_bytes", (json_int_t)d->total_bytes, "note", d->note, "model", s->dir, "tests", tests_json(r), "passed",
                     N_SETTINGS - n_failed, "failed", n_failed);
}

static int write_result(const char *path, json_t *result)
{
    int code = CLI_OK;
    if (!result)
        return cli_fail_memory();
    if (path && json_dump_file(result, path, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0)
        code = cli_fail("selftest: cannot write '%s'", path);
    json_decref(result);
    return code;
}

static int selftest(struct session *s, const struct selftest_options *o)
{
    struct nib_memory_plan plan;
    struct nib_options     options;
    struct nib_device_info device = {0};
    struct nib_error       err = {0};
    struct result          results[N_SETTINGS];
    int                    n_failed = 0;
    int                    code = session_engine_options(s, N_ROWS_MAX, false, &options);
    if (code != CLI_OK)
        return code;
    enum nib_status status = nib_model_plan(s->model, &options, &plan, &err);
    if (status != NIB_OK || nib_device_get(plan.backend, 0, &device, &err) != NIB_OK)
        return session_fail(status, &err);
    float *logits = malloc(2 * sizeof *logits * N_STEPS * (size_t)s->info->vocab);
    if (!logits)
        return cli_fail_memory();
    if (!o->json)
        (void)printf("backend %s on '%s', ops held to ref\n", plan.backend, device.name);
    for (int i = 0; i < N_SETTINGS; i++) {
        struct result *r = &results[i];
        const double   start = seconds_now();
        memset(&r->error, 0, sizeof r->error);
        r->ok = run_setting(s, &settings[i], logits, &r->error) == NIB_OK;
        r->seconds = seconds_now() - start;
        if (r->ok && device.failed[0] == 0 && nib_device_get(plan.backend, 0, &device, NULL) == NIB_OK && device.failed[0]) {
            r->ok = false; /* right, by the kernels that took over */
            (void)snprintf(r->error.text, sizeof r->error.text, "%s", device.failed);
        }
        n_failed += !r->ok;
        if (!o->json) {
            (void)printf("%-40s %-6s %6.2f s%s%s\n", settings[i].name, r->ok ? "ok" : "FAILED", r->seconds, r->ok ? "" : "  ",
                         r->ok ? "" : r->error.text);
            (void)fflush(stdout);
        }
    }
    free(logits);
    if (o->out)
        code = write_result(o->out, result_json(plan.backend, &device, s, results, n_failed));
    if (o->json && code == CLI_OK)
        code = output_json(result_json(plan.backend, &device, s, results, n_failed));
    if (!o->json)
        (void)printf("%d passed, %d failed\n", N_SETTINGS - n_failed, n_failed);
    return code == CLI_OK && n_failed > 0 ? CLI_FAILED : code;
}

int cmd_selftest(int argc, char **argv)
{
    struct selftest_options o = {0};
    struct session          s;
    struct cli_option       engine[4];
    int                     n_engine = 0, code;

    cli_engine_options_init(&o.engine);
    for (int i = 0; i < o.engine.n_table; i++) {
        const char *name = o.engine.table[i].name;
        if (strcmp(name, "--model") == 0 || strcmp(name, "--backend") == 0 || strcmp(name, "--threads") == 0 || strcmp(name, "--cpu") == 0)
            engine[n_engine++] = o.engine.table[i];
    }
    const struct cli_option own[] = {
        {.name = "--out", .kind = CLI_KIND_TEXT, .value = &o.out, .metavar = "FILE", .help = "write the result there, as JSON"},
        {.name = "--json", .kind = CLI_KIND_FLAG, .value = &o.json, .help = "print as JSON"},
    };
    const struct cli_group groups[] = {
        {"Options", own, sizeof own / sizeof own[0]},
        {"Engine", engine, n_engine},
    };
    const struct cli_syntax syntax = {
        .command = "selftest",
        .usage = "[-m DIR] [--backend B] [options]",
        .about = "Holds this machine's kernels to ref: steps of 1 to 129 rows of the bundled model (or -m DIR) with every way of\n"
                 "rounding, each op within what its arithmetic allows, and the same steps as they usually run, bit for bit.\n"
                 "On cards with kernels of their own for FP4 and FP8 those are tested one by one as if for the first time.\nExit "
                 "code 1 if something failed; the sentence names the op or the kernel and the element.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
    };
    if (!cli_parse(&syntax, argc, argv, &code))
        return code;
    code = session_open(&s, &o.engine);
    if (code == CLI_OK) {
        session_test_again(&s);
        code = selftest(&s, &o);
    }
    session_close(&s);
    return code;
}
