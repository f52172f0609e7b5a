/* nibble quantize: a checkpoint to NVFP4, and the check of one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arguments.h"
#include "cli.h"
#include "nibble.h"
#include "output.h"
#include "progress.h"

struct quantize_options {
    const char *include, *exclude, *calibrate;
    int32_t     preset, method, layout, threads;
    float       memory_gib, shard_gib;
    bool        resume, dry_run, verify, json;
    const char *operand[2];
};

static const char *const preset_names[] = {"experts", "full", "full+head", NULL};
static const char *const method_names[] = {"auto", "absmax", "4over6", "mse", "gptq", NULL};
static const char *const layout_names[] = {"keep", "hf", "official", NULL};

struct watch {
    struct progress bar;
    const char     *what;
    int64_t         n_warnings;
};

static bool on_progress(void *user, const struct nib_quantize_progress *p)
{
    struct watch *w = user;

    if (!w->what || strcmp(w->what, p->what) != 0) {
        progress_finish(&w->bar);
        progress_start(&w->bar, p->what, "B");
        w->what = p->what;
    }
    progress_update(&w->bar, p->done_bytes, p->total_bytes);
    return true;
}

#define N_WARNINGS_MAX 50

static void on_warning(void *user, const char *text)
{
    struct watch *w = user;

    progress_finish(&w->bar);
    if (w->n_warnings++ < N_WARNINGS_MAX)
        cli_note("%s", text);
    else if (w->n_warnings == N_WARNINGS_MAX + 1)
        cli_note("more of the same is not shown");
}

static json_t *json_u64(uint64_t v)
{
    return json_integer((json_int_t)v);
}

static int print_json(const struct nib_quantize_result *r, const struct quantize_options *o)
{
    json_t *j = json_pack("{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:o, s:o, s:b}", "tensors",
                          (json_int_t)r->n_tensors, "matrices", (json_int_t)r->n_matrices, "exact",
                          (json_int_t)r->n_exact, "weights", json_u64(r->n_weights), "recoded", json_u64(r->n_recoded),
                          "saturated", json_u64(r->n_saturated), "source_bytes", json_u64(r->source_bytes),
                          "output_bytes", json_u64(r->output_bytes), "relative_mse", output_real(r->relative_mse),
                          "cosine", output_real(r->cosine), "shards", (int)r->n_shards, "shards_kept",
                          (int)r->n_shards_kept, "memory_bytes", json_u64(r->memory_bytes), "seconds",
                          output_real(r->seconds), "was_complete", r->was_complete);

    if (j && o->verify)
        (void)json_object_set_new(j, "mismatches", json_integer((json_int_t)r->n_mismatches));
    return output_json(j);
}

static void print_plan(const struct nib_quantize_result *r)
{
    char a[32], b[32];

    (void)printf("tensors     %" PRId64 " in %d shards; %" PRId64 " matrices to NVFP4\n", r->n_tensors, r->n_shards,
                 r->n_matrices);
    (void)printf("weights     %s\n", output_count(a, r->n_weights));
    (void)printf("size        %s, from %s\n", output_bytes(a, r->output_bytes), output_bytes(b, r->source_bytes));
    (void)printf("memory      %s at most\n", output_bytes(a, r->memory_bytes));
    (void)printf("time        about %.0f min (this machine's arithmetic, measured, and files at 1 GB/s)\n",
                 r->seconds / 60);
}

static void print_result(const struct nib_quantize_result *r, const struct quantize_options *o)
{
    char a[32], b[32];

    if (r->was_complete) {
        (void)printf("'%s' is complete; nothing was left to do\n", o->operand[1]);
        return;
    }
    (void)printf("%s%" PRId64 " matrices, %" PRId64 " exact; relative MSE %.4g, cosine %.6f\n",
                 o->verify ? "verified " : "", r->n_matrices, r->n_exact, r->relative_mse, r->cosine);
    if (!o->verify)
        (void)printf("%" PRIu64 " blocks recoded, %" PRIu64 " weights saturated; %s to %s in %d shards (%d kept)\n",
                     r->n_recoded, r->n_saturated, output_bytes(a, r->source_bytes), output_bytes(b, r->output_bytes),
                     r->n_shards, r->n_shards_kept);
    (void)printf("%.1f s, %.2f GB/s read and written\n", r->seconds,
                 (double)(r->source_bytes + r->output_bytes) / 1e9 / (r->seconds > 0 ? r->seconds : 1));
    if (o->verify)
        (void)printf("%" PRId64 " tensors differ from what they should be\n", r->n_mismatches);
}

static int run_quantize(const struct quantize_options *o)
{
    struct watch                w = {0};
    struct nib_error            err = {NIB_OK, ""};
    struct nib_quantize_result  r;
    struct nib_quantize_options q;

    nib_quantize_options_init(&q);
    q.preset = (enum nib_quant_preset)o->preset;
    q.method = (enum nib_quant_method)o->method;
    q.layout = (enum nib_quant_layout)o->layout;
    q.include = o->include;
    q.exclude = o->exclude;
    q.calibrate = o->calibrate;
    q.n_threads = o->threads;
    q.memory_bytes = (uint64_t)((double)o->memory_gib * 0x1p30);
    q.shard_bytes = (uint64_t)((double)o->shard_gib * 0x1p30);
    q.resume = o->resume;
    q.dry_run = o->dry_run;
    q.progress = on_progress;
    q.warning = on_warning;
    q.user = &w;
    progress_start(&w.bar, "planning", "B");
    enum nib_status status = o->verify ? nib_quantize_verify(o->operand[0], o->operand[1], &q, &r, &err)
                                       : nib_quantize(o->operand[0], o->operand[1], &q, &r, &err);
    progress_finish(&w.bar);
    if (status != NIB_OK)
        return cli_fail("%s", err.text[0] ? err.text : nib_status_name(status));
    int code = CLI_OK;
    if (o->json)
        code = print_json(&r, o);
    else if (o->dry_run)
        print_plan(&r);
    else
        print_result(&r, o);
    if (code == CLI_OK && o->verify && r.n_mismatches > 0)
        code = CLI_FAILED;
    return code;
}

int cmd_quantize(int argc, char **argv)
{
    struct quantize_options o = {.memory_gib = 4, .shard_gib = 5};
    int                     code;

    const struct cli_option what[] = {
        {.name = "--preset", .kind = CLI_KIND_CHOICE, .value = &o.preset, .choices = preset_names,
         .help = "routed experts; or all projections but o_a; or the head as well"},
        {.name = "--include", .kind = CLI_KIND_TEXT, .value = &o.include, .metavar = "GLOB",
         .help = "matrices to quantise besides, by name without \".weight\"; several with commas"},
        {.name = "--exclude", .kind = CLI_KIND_TEXT, .value = &o.exclude, .metavar = "GLOB",
         .help = "matrices to leave as they are"},
        {.name = "--method", .kind = CLI_KIND_CHOICE, .value = &o.method, .choices = method_names,
         .help = "how scales are chosen where no exact cast exists; auto is mse"},
        {.name = "--calibrate", .kind = CLI_KIND_TEXT, .value = &o.calibrate, .metavar = "FILE.jsonl",
         .help = "prompts from which input scales are measured; mse and gptq weigh errors by them"},
        {.name = "--layout", .kind = CLI_KIND_CHOICE, .value = &o.layout, .choices = layout_names,
         .help = "spelling of tensor names"},
    };
    const struct cli_option how[] = {
        {.name = "--threads", .kind = CLI_KIND_COUNT, .value = &o.threads, .low = 0, .high = 4096, .metavar = "N",
         .help = "0: all cores; changes no byte of the result"},
        {.name = "--memory", .kind = CLI_KIND_NUMBER, .value = &o.memory_gib, .low = 0.0625, .high = 1e6,
         .metavar = "GiB", .help = "working memory; 4"},
        {.name = "--shard-size", .kind = CLI_KIND_NUMBER, .value = &o.shard_gib, .low = 0x1p-30, .high = 1e6,
         .metavar = "GiB", .help = "of a file; 5"},
        {.name = "--resume", .kind = CLI_KIND_FLAG, .value = &o.resume,
         .help = "go on with an interrupted run of the same job"},
        {.name = "--dry-run", .kind = CLI_KIND_FLAG, .value = &o.dry_run,
         .help = "print time, size and memory; write nothing"},
        {.name = "--verify", .kind = CLI_KIND_FLAG, .value = &o.verify,
         .help = "recompute the errors of DST against SRC, and compare all other tensors"},
        {.name = "--json", .kind = CLI_KIND_FLAG, .value = &o.json, .help = "print as JSON"},
    };
    const struct cli_group groups[] = {{"What", what, sizeof what / sizeof what[0]},
                                       {"How", how, sizeof how / sizeof how[0]}};
    const struct cli_syntax syntax = {
        .command = "quantize",
        .usage = "[options] SRC DST",
        .about =
            "Writes the checkpoint SRC again as DST in NVFP4: MXFP4 by an exact cast, NVFP4 as it is, all else\n"
            "with the least error. DST must be new or empty, or with --resume an interrupted run of the same job. It\n"
            "also gets nibble-quant.json and nibble-quant.md, which say what was done and what it cost. See docs/quantize.md.",
        .groups = groups,
        .n_groups = 2,
        .operand = &o.operand[0],
        .operand_name = "SRC",
        .second = &o.operand[1],
        .second_name = "DST",
    };
    return cli_parse(&syntax, argc, argv, &code) ? run_quantize(&o) : code;
}
