/* nibble bench: how fast steps are and how near the machine's limits, of a checkpoint or of random weights; with
 * --serve, a running server measured from outside; with --predict, cards that are not here. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_serve.h"
#include "cli.h"
#include "progress.h"
#include "session.h"

const char *const bench_phase_names[] = {"decode", "prefill", "both", NULL};
const char *const bench_part_names[] = {"layers", "head", "all", "every", NULL};

/* ---- Options ---- */

static bool is_of_bench(const struct cli_option *o)
{
    static const char *const others[] = {"--ctx", "--trace", "--compare"};

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(o->name, others[i]) == 0)
            return false;
    return true;
}

static bool parse(struct bench_options *o, int argc, char **argv, int *code)
{
    struct cli_option shared[sizeof o->engine.table / sizeof o->engine.table[0]];
    int               n_shared = 0;

    cli_engine_options_init(&o->engine);
    for (int i = 0; i < o->engine.n_table; i++)
        if (is_of_bench(&o->engine.table[i]))
            shared[n_shared++] = o->engine.table[i];

    const struct cli_option what[] = {
        {.name = "--shape", .kind = CLI_KIND_TEXT, .value = &o->shape, .metavar = "SHAPE",
         .help = "random weights of real sizes in place of a checkpoint: pro, flash or tiny,\n"
                 "with ,layers=N ,experts=N ,format=nvfp4|fp8|mxfp4|bf16|official"},
        {.name = "--phase", .kind = CLI_KIND_CHOICE, .value = &o->phase, .choices = bench_phase_names,
         .help = "steps of one token a sequence, steps of a prompt, or both (which is the default)"},
        {.name = "--context", .kind = CLI_KIND_TEXT, .value = &o->contexts, .given = &o->context_given,
         .metavar = "LIST", .help = "tokens held before the step: 0,1K,4K,16K,64K,256K as far as model and memory go"},
        {.name = "--batch", .kind = CLI_KIND_TEXT, .value = &o->batches, .metavar = "LIST",
         .help = "sequences that decode together: 1,8,16"},
        {.name = "--rows", .kind = CLI_KIND_COUNT, .value = &o->rows, .low = 1, .high = BENCH_ROWS_TO_ROLL_BACK,
         .metavar = "N", .help = "tokens of a prompt's step; 512"},
        {.name = "--part", .kind = CLI_KIND_CHOICE, .value = &o->part, .choices = bench_part_names,
         .help = "which lines: the layers, the head behind them, the whole step, or every one of these"},
        {.name = "--ops", .kind = CLI_KIND_FLAG, .value = &o->ops, .help = "a line for every kind of op, too"},
        {.name = "--repeat", .kind = CLI_KIND_COUNT, .value = &o->repeat, .low = 0, .high = 1000000, .metavar = "N",
         .help = "steps of each kind, of which the fastest counts; 0: at least 3, and half a second"},
        {.name = "--csv", .kind = CLI_KIND_FLAG, .value = &o->csv, .help = "lines as comma-separated values"},
        {.name = "--json", .kind = CLI_KIND_FLAG, .value = &o->json, .help = "everything as one JSON object"},
        {.name = "--serve", .kind = CLI_KIND_TEXT, .value = &o->serve, .metavar = "URL",
         .help = "measure a running server instead; see nibble bench --serve --help"},
        {.name = "--predict", .kind = CLI_KIND_TEXT, .value = &o->predict, .metavar = "CARDS",
         .help = "what cards that are not here should do; see nibble bench --predict --help"},
        {.name = "--svg", .kind = CLI_KIND_TEXT, .value = &o->svg, .metavar = "FILE",
         .help = "draw speed against context there"},
    };
    const struct cli_group groups[] = {{"Measuring", what, sizeof what / sizeof what[0]}, {"Engine", shared, n_shared}};
    const struct cli_syntax syntax = {
        .command = "bench",
        .usage = "[-m DIR | --shape SHAPE] [options]\n       nibble bench --serve URL [options]\n"
                 "       nibble bench --predict CARDS [options]",
        .about =
            "Times steps and holds them to what this machine can do at most: bytes read from memory and operations,\n"
            "both counted by formula, against the fastest plain loops. docs/benchmarks.md says how to read the lines.\n"
            "Contexts above 0 are random rows, not a computed prompt. See nibble bench --serve --help for servers.",
        .groups = groups,
        .n_groups = 2,
    };
    return cli_parse(&syntax, argc, argv, code);
}

/* A file that cannot be written is told of before minutes of measuring, not after them. */
static int try_file(const char *path)
{
    FILE *f = fopen(path, "ab");

    if (!f)
        return cli_fail("--svg: %s: %s", path, strerror(errno));
    (void)fclose(f);
    return CLI_OK;
}

static int check(struct bench_options *o)
{
    if (o->csv && o->json)
        return cli_usage("--csv and --json exclude each other");
    if (o->shape && o->engine.model)
        return cli_usage("--shape makes a model of its own; leave out -m");
    if (o->svg && o->part != BENCH_ALL && o->part != BENCH_EVERY_PART)
        return cli_usage("--svg draws whole steps, which --part %s leaves out", bench_part_names[o->part]);
    int code = bench_read_list("--context", o->contexts, 0, 1 << 24, &o->context);
    if (code == CLI_OK)
        code = bench_read_list("--batch", o->batches, 1, 256, &o->batch);
    if (code == CLI_OK && o->shape)
        code = bench_read_shape(o);
    return code == CLI_OK && o->svg ? try_file(o->svg) : code;
}

/* ---- Running ---- */

static bool on_load(void *user, uint64_t done, uint64_t total)
{
    progress_update(user, done, total);
    return true;
}

static int open_model(struct session *s, const struct bench_options *o)
{
    struct nib_error err = {0};

    if (!o->shape)
        return session_open(s, &o->engine);
    *s = (struct session){.options = &o->engine};
    enum nib_status status = nib_model_open_random(&o->sizes, &s->model, &err);
    if (status == NIB_E_ARGUMENT)
        return cli_usage("--shape: %s", err.text);
    if (status != NIB_OK)
        return session_fail(status, &err);
    s->info = nib_model_get_info(s->model);
    s->dir = s->info->dir;
    return CLI_OK;
}

static int open_engine(struct session *s, struct nib_options *options)
{
    struct nib_error err = {0};
    struct progress  progress;

    progress_start(&progress, "loading", "B");
    options->progress = on_load;
    options->progress_user = &progress;
    enum nib_status status = nib_engine_open(s->model, options, &s->engine, &err);
    progress_finish(&progress);
    if (status != NIB_OK)
        return session_fail(status, &err);
    session_warn_of_kernels(nib_engine_options(s->engine)->backend);
    return CLI_OK;
}

/* Which backend "auto" is, as for the other commands. */
static int settle_backend(const struct session *s, struct nib_options *options)
{
    struct nib_memory_plan plan;
    struct nib_error       err = {0};

    if (strcmp(options->backend, "auto") != 0)
        return CLI_OK;
    enum nib_status status = nib_model_plan(s->model, options, &plan, &err);
    if (status == NIB_OK)
        options->backend = plan.backend;
    return status == NIB_OK ? CLI_OK : session_fail(status, &err);
}

static int measure_all(struct session *s, const struct bench_options *o, struct bench_result *result)
{
    struct nib_options options;
    struct bench_case *cases = calloc(BENCH_CASES_MAX, sizeof *cases);
    int                n_cases = 0;

    int code = cases ? session_engine_options(s, 0, false, &options) : cli_fail_memory();
    if (code == CLI_OK)
        code = settle_backend(s, &options);
    result->is_device = code == CLI_OK && strcmp(options.backend, "cuda") == 0;
    if (result->is_device && (o->part == BENCH_LAYERS || o->part == BENCH_HEAD))
        code = cli_usage("--backend cuda: a step runs as a whole there; wanted --part all, or --backend cpu");
    if (code == CLI_OK)
        code = bench_plan(o, s->model, &options, cases, &n_cases, result);
    if (code == CLI_OK) /* what the smallest step reads: where it fits into a cache, so does the measured memory */
        code = bench_measure_machine(result, options.n_threads, s->info->bytes_per_token);
    if (code == CLI_OK)
        code = open_engine(s, &options);
    if (code == CLI_OK) {
        result->engine = *nib_engine_options(s->engine);
        for (int i = 0; i < n_cases && code == CLI_OK; i++)
            code = bench_measure(o, s->engine, s->info->vocab, &cases[i], result);
    }
    free(cases);
    return code == CLI_OK ? bench_settle(result) : code;
}

static int print(const struct bench_options *o, const struct bench_result *result)
{
    int code = o->json ? bench_print_json(result) : o->csv ? bench_print_csv(result) : bench_print_text(result);

    return code == CLI_OK && o->svg ? bench_write_svg(result, o->svg) : code;
}

int cmd_bench(int argc, char **argv)
{
    struct bench_options o = {.contexts = "0,1K,4K,16K,64K,256K",
                              .batches = "1,8,16",
                              .phase = BENCH_BOTH,
                              .part = BENCH_EVERY_PART,
                              .rows = 512};
    struct bench_result result = {0};
    struct session      s;
    int                 code;

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--serve") == 0 || strncmp(argv[i], "--serve=", 8) == 0)
            return bench_serve(argc, argv);
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--predict") == 0 || strncmp(argv[i], "--predict=", 10) == 0)
            return bench_predict(argc, argv);
    if (!parse(&o, argc, argv, &code))
        return code;
    code = check(&o);
    if (code != CLI_OK)
        return code;
    code = open_model(&s, &o);
    if (code == CLI_OK) {
        result.model = s.dir;
        code = measure_all(&s, &o, &result);
    }
    if (code == CLI_OK)
        code = print(&o, &result);
    bench_result_free(&result);
    session_close(&s);
    return code;
}
