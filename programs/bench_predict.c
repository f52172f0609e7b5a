/* nibble bench --predict: how long steps should take on cards that nobody has at hand, by formula. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "bench.h"
#include "cli.h"
#include "output.h"

static const char *const act_names[] = {"auto", "none", "fp8", "nvfp4", "int8", NULL};
static const char *const kv_names[] = {"f32", "bf16", "fp8", "nvfp4", NULL};
static const char *const bound_names[] = {"bytes", "products", "launches"};

struct predict_options {
    const char          *cards, *contexts, *batches;
    struct bench_options shape; /* only what --shape says */
    struct bench_list    context, batch;
    int32_t              phase, rows, gpus, act_quant, kv;
    bool                 ops, json;
    bool                 said; /* what all these figures are */
};

/* ---- Output ---- */

static const char *kilo(char out[32], int32_t n)
{
    (void)snprintf(out, 32, n > 0 && n % 1024 == 0 ? "%dK" : "%d", n > 0 && n % 1024 == 0 ? n / 1024 : n);
    return out;
}

static void print_head(const struct nib_predict_args *a, const struct nib_prediction *p)
{
    char weights[32], kv[32];
    (void)printf("\n%s, %s: %d card%s of %.0f GB at %.0f GB/s, %.0f TFLOP/s BF16", a->card->text, a->shape.name,
                 a->n_cards, a->n_cards > 1 ? "s" : "", a->card->memory_gb, a->card->read_gb_s, a->card->bf16_tflop_s);
    if (a->card->fp4_tflop_s > 0)
        (void)printf(", %.0f FP4", a->card->fp4_tflop_s);
    (void)printf("\n  weights %s, activations %s, context rows %s (up to %s)",
                 output_bytes(weights, p->weights_bytes), act_names[p->act_quant], kv_names[a->kv],
                 output_bytes(kv, p->kv_bytes));
    if (p->n_cards_needed > a->n_cards)
        (void)printf("; DOES NOT FIT: memory for these needs %d", p->n_cards_needed);
    (void)printf("\n  phase    context  seqs      time   tokens/s  of the limit\n");
}

static void print_ops(const struct nib_prediction *p)
{
    (void)printf("    %-15s %5s %10s %10s %10s %16s  %-9s %9s %6s\n", "kernels of", "calls", "GB", "FP4 Gop",
                 "BF16 Gop", "planned shares", "bound by", "time", "");
    for (int32_t i = 0; i < p->n_ops; i++) {
        const struct nib_predicted_op *op = &p->op[i];
        (void)printf("    %-15s %5d %10.3f %10.1f %10.1f %7.0f %% %5.0f %%  %-9s %6.0f us %4.1f %%\n", op->name,
                     op->n_calls, (double)op->bytes * 1e-9, (double)op->fp4_ops * 1e-9, (double)op->bf16_ops * 1e-9,
                     100 * op->bytes_share, 100 * op->ops_share, bound_names[op->bound], 1e6 * op->seconds,
                     100 * op->seconds / p->seconds);
    }
}

static void print_line(const struct predict_options *o, const struct nib_predict_args *a,
                       const struct nib_prediction *p)
{
    char context[32];
    (void)printf("  %-8s %7s %5d %5.2f ms %10.1f %11.0f %%\n", a->n_rows > 1 ? "prefill" : "decode",
                 kilo(context, a->n_context), a->n_seqs, 1e3 * p->seconds, p->tokens_s,
                 100 * p->limit_seconds / p->seconds);
    if (o->ops)
        print_ops(p);
}

static json_t *as_json(const struct nib_predict_args *a, const struct nib_prediction *p)
{
    json_t *ops = json_array();
    for (int32_t i = 0; i < p->n_ops; i++) {
        const struct nib_predicted_op *op = &p->op[i];
        (void)json_array_append_new(
            ops, json_pack("{s:s, s:i, s:i, s:I, s:I, s:I, s:o, s:o, s:o, s:s}", "name", op->name, "calls", op->n_calls,
                           "launches", op->n_launches, "bytes", (json_int_t)op->bytes, "fp4_ops",
                           (json_int_t)op->fp4_ops, "bf16_ops", (json_int_t)op->bf16_ops, "bytes_share",
                           output_real(op->bytes_share), "ops_share", output_real(op->ops_share), "seconds",
                           output_real(op->seconds), "bound", bound_names[op->bound]));
    }
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:o, s:o, s:o, s:I, s:I, s:i, s:o}", "card",
                     a->card->name, "shape", a->shape.name, "gpus", a->n_cards, "context", a->n_context, "sequences",
                     a->n_seqs, "rows", a->n_rows, "act_quant", act_names[p->act_quant], "kv", kv_names[a->kv],
                     "seconds", output_real(p->seconds), "tokens_per_second", output_real(p->tokens_s), "limit_seconds",
                     output_real(p->limit_seconds), "weights_bytes", (json_int_t)p->weights_bytes, "kv_bytes",
                     (json_int_t)p->kv_bytes, "gpus_needed", p->n_cards_needed, "ops", ops);
}

/* ---- Running ---- */

static int fail(const struct nib_error *err)
{
    return err->status == NIB_E_ARGUMENT ? cli_usage("--predict: %s", err->text) : cli_fail("%s", err->text);
}

/* One card and model: decode steps of every context and batch, then prompts of every context. */
static int predict_all(struct predict_options *o, struct nib_predict_args *a, json_t *list)
{
    struct nib_prediction p, first;
    struct nib_error      err = {0};
    const int             n_decode = o->phase == BENCH_PREFILL ? 0 : o->context.n * o->batch.n;
    const int             n = n_decode + (o->phase == BENCH_DECODE ? 0 : o->context.n);
    for (int pass = 0; pass < 2; pass++) { /* the head names the memory of the largest line, so sizes come first */
        memset(&first, 0, sizeof first);
        for (int i = 0; i < n; i++) {
            a->n_context = o->context.value[i < n_decode ? i / o->batch.n : i - n_decode];
            a->n_seqs = i < n_decode ? o->batch.value[i % o->batch.n] : 1;
            a->n_rows = i < n_decode ? 1 : o->rows;
            if (nib_predict(a, &p, &err) != NIB_OK)
                return fail(&err);
            if (pass == 0) {
                if (p.kv_bytes >= first.kv_bytes)
                    first = p;
                continue;
            }
            if (list)
                (void)json_array_append_new(list, as_json(a, &p));
            else
                print_line(o, a, &p);
        }
        if (pass == 0) {
            a->n_cards = o->gpus > 0 ? o->gpus : first.n_cards_needed;
            if (!list) {
                if (!o->said)
                    (void)printf("Predicted from published rates, for kernels that reach their planned shares; not "
                                 "measured.\nSeveral cards share bytes and operations evenly and talk at no cost.\n");
                o->said = true;
                print_head(a, &first);
            }
        }
    }
    return CLI_OK;
}

static bool is_listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = strstr(list, name); at; at = strstr(at + 1, name))
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == '\0'))
            return true;
    return false;
}

static int check_cards(const char *list)
{
    char text[256], known[128] = "";
    for (int32_t i = 0; nib_card_get(i); i++)
        (void)snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                       nib_card_get(i)->name);
    if (strlen(list) >= sizeof text)
        return cli_usage("--predict: %zu characters of cards", strlen(list));
    (void)strcpy(text, list);
    char *rest = NULL;
    for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        int32_t i = 0;
        while (nib_card_get(i) && strcmp(one, nib_card_get(i)->name) != 0)
            i++;
        if (!nib_card_get(i))
            return cli_usage("--predict: card '%s' is not known; wanted some of %s, or all", one, known);
    }
    return CLI_OK;
}

static int run(struct predict_options *o)
{
    static const char *const shapes[] = {"flash", "pro"};
    const bool               all = strcmp(o->cards, "all") == 0;
    json_t                  *list = o->json ? json_array() : NULL;
    int                      code = all ? CLI_OK : check_cards(o->cards);
    for (int s = 0; s < (o->shape.shape ? 1 : 2) && code == CLI_OK; s++) {
        struct nib_predict_args a = {
            .shape = o->shape.sizes, .act_quant = (enum nib_act_quant)o->act_quant, .kv = (enum nib_kv)o->kv};
        if (!o->shape.shape)
            a.shape = (struct nib_shape){.name = shapes[s]};
        for (int32_t i = 0; nib_card_get(i) && code == CLI_OK; i++) {
            a.card = nib_card_get(i);
            a.n_cards = o->gpus > 0 ? o->gpus : 1;
            if (all || is_listed(o->cards, a.card->name))
                code = predict_all(o, &a, list);
        }
    }
    if (code != CLI_OK)
        json_decref(list);
    return code == CLI_OK && list ? output_json(json_pack("{s:b, s:o}", "predicted", 1, "steps", list)) : code;
}

int bench_predict(int argc, char **argv)
{
    struct predict_options o = {.contexts = "0,4K,64K", .batches = "1,8,64", .phase = BENCH_BOTH, .rows = 512, .kv = 1};
    int                    code;
    const struct cli_option options[] = {
        {.name = "--predict",
         .kind = CLI_KIND_TEXT,
         .value = &o.cards,
         .metavar = "CARDS",
         .help = "some of b200,b300,gb300,rtx-pro-6000,spark,h200, or all"},
        {.name = "--shape",
         .kind = CLI_KIND_TEXT,
         .value = &o.shape.shape,
         .metavar = "SHAPE",
         .help = "pro, flash or tiny, with ,layers=N ,experts=N ,format=nvfp4|fp8|mxfp4|bf16|official;\n"
                 "flash and pro, all NVFP4"},
        {.name = "--gpus",
         .kind = CLI_KIND_COUNT,
         .value = &o.gpus,
         .low = 0,
         .high = 1024,
         .metavar = "N",
         .help = "cards; 0: as many as their memory takes"},
        {.name = "--phase",
         .kind = CLI_KIND_CHOICE,
         .value = &o.phase,
         .choices = bench_phase_names,
         .help = "steps of one token a sequence, steps of a prompt, or both (which is the default)"},
        {.name = "--context",
         .kind = CLI_KIND_TEXT,
         .value = &o.contexts,
         .metavar = "LIST",
         .help = "tokens held before the step: 0,4K,64K"},
        {.name = "--batch",
         .kind = CLI_KIND_TEXT,
         .value = &o.batches,
         .metavar = "LIST",
         .help = "sequences that decode together: 1,8,64"},
        {.name = "--rows",
         .kind = CLI_KIND_COUNT,
         .value = &o.rows,
         .low = 2,
         .high = 65536,
         .metavar = "N",
         .help = "tokens of a prompt's step; 512"},
        {.name = "--act-quant",
         .kind = CLI_KIND_CHOICE,
         .value = &o.act_quant,
         .choices = act_names,
         .help = "activations before quantised weights; auto: nvfp4 where the card multiplies it, else none"},
        {.name = "--kv",
         .kind = CLI_KIND_CHOICE,
         .value = &o.kv,
         .choices = kv_names,
         .help = "format in which context rows are kept; bf16"},
        {.name = "--ops", .kind = CLI_KIND_FLAG, .value = &o.ops, .help = "a line for every kind of op, too"},
        {.name = "--json", .kind = CLI_KIND_FLAG, .value = &o.json, .help = "print the result as JSON"},
    };
    const struct cli_group  groups[] = {{"Options", options, sizeof options / sizeof options[0]}};
    const struct cli_syntax syntax = {
        .command = "bench",
        .help_words = "nibble bench --predict --help",
        .usage = "--predict CARDS [options]",
        .about = "How long steps should take on cards that are not here: bytes and operations by formula, held to\n"
                 "published rates at the shares that the kernels are planned to reach. See docs/benchmarks.md.",
        .groups = groups,
        .n_groups = 1,
    };
    /* --predict --help asks for this help; it is no card. */
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--predict") == 0 &&
            (strcmp(argv[i + 1], "--help") == 0 || strcmp(argv[i + 1], "-h") == 0)) {
            argv += i;
            argc = 2;
        }
    if (!cli_parse(&syntax, argc, argv, &code))
        return code;
    if (!o.cards)
        return cli_usage("bench: --predict CARDS is missing; see nibble bench --predict --help");
    code = bench_read_list("--context", o.contexts, 0, 1 << 24, &o.context);
    if (code == CLI_OK)
        code = bench_read_list("--batch", o.batches, 1, 4096, &o.batch);
    if (code == CLI_OK && o.shape.shape)
        code = bench_read_shape(&o.shape);
    return code == CLI_OK ? run(&o) : code;
}
