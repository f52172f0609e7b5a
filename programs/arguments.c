/* Parsing by table, and the engine options shared by all commands. */
#include "arguments.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "complete.h"
#include "nibble.h"

/* ---- Values ---- */

static int parse_count(const struct cli_option *o, const char *text)
{
    char     *end;
    long long v;

    errno = 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end || isspace((unsigned char)text[0]))
        return cli_usage("%s: '%s' is not a whole number", o->name, text);
    if (errno == ERANGE || (double)v < o->low || (double)v > o->high)
        return cli_usage("%s: %s is out of range; wanted %.0f to %.0f", o->name, text, o->low, o->high);
    *(int32_t *)o->value = (int32_t)v;
    return CLI_OK;
}

static int parse_number(const struct cli_option *o, const char *text)
{
    char  *end;
    float  v = strtof(text, &end); /* as it is kept, so that what is 0 or infinite as a float counts as that */

    if (end == text || *end || isspace((unsigned char)text[0]) || isnan(v))
        return cli_usage("%s: '%s' is not a number", o->name, text);
    if (!(v <= (float)o->high) || !(o->above_low ? v > (float)o->low : v >= (float)o->low))
        return cli_usage("%s: %s is out of range; wanted %s %g to %g", o->name, text,
                         o->above_low ? "more than" : "from", o->low, o->high);
    *(float *)o->value = v;
    return CLI_OK;
}

static int parse_seed(const struct cli_option *o, const char *text)
{
    char              *end;
    unsigned long long v;

    errno = 0;
    v = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end)
        return cli_usage("%s: '%s' is not a whole number from 0", o->name, text);
    if (errno == ERANGE)
        return cli_usage("%s: %s is out of range; wanted 0 to 18446744073709551615", o->name, text);
    *(uint64_t *)o->value = v;
    return CLI_OK;
}

static void list_choices(const char *const *choices, const char *between, char *out, size_t out_bytes)
{
    out[0] = '\0';
    for (int i = 0; choices[i]; i++) {
        size_t used = strlen(out);
        (void)snprintf(out + used, out_bytes - used, "%s%s", i ? between : "", choices[i]);
    }
}

static int parse_choice(const struct cli_option *o, const char *text)
{
    char all[256];

    for (int32_t i = 0; o->choices[i]; i++)
        if (strcmp(o->choices[i], text) == 0) {
            *(int32_t *)o->value = i;
            return CLI_OK;
        }
    list_choices(o->choices, ", ", all, sizeof all);
    return cli_usage("%s: '%s' is not known; wanted one of %s", o->name, text, all);
}

static int parse_value(const struct cli_option *o, const char *text)
{
    switch (o->kind) {
    case CLI_KIND_FLAG: *(bool *)o->value = true; return CLI_OK;
    case CLI_KIND_TEXT: *(const char **)o->value = text; return CLI_OK;
    case CLI_KIND_COUNT: return parse_count(o, text);
    case CLI_KIND_NUMBER: return parse_number(o, text);
    case CLI_KIND_SEED: return parse_seed(o, text);
    case CLI_KIND_CHOICE: return parse_choice(o, text);
    }
    return CLI_USAGE;
}

/* ---- Help ---- */

enum { HELP_COLUMN = 26 };

static void print_option(const struct cli_option *o)
{
    char left[128], choices[96];
    int  used;

    used = snprintf(left, sizeof left, "  %s%s%s", o->alias ? o->alias : "", o->alias ? ", " : "", o->name);
    if (o->kind == CLI_KIND_CHOICE) {
        list_choices(o->choices, "|", choices, sizeof choices);
        (void)snprintf(left + used, sizeof left - (size_t)used, " %s", choices);
    } else if (o->kind != CLI_KIND_FLAG) {
        (void)snprintf(left + used, sizeof left - (size_t)used, " %s", o->metavar);
    }
    (void)printf("%-*s", HELP_COLUMN, left);
    if (strlen(left) >= HELP_COLUMN)
        (void)printf("\n%*s", HELP_COLUMN, "");
    for (const char *c = o->help; *c; c++) {
        (void)putchar(*c);
        if (*c == '\n')
            (void)printf("%*s", HELP_COLUMN, "");
    }
    (void)putchar('\n');
}

static void print_help(const struct cli_syntax *s)
{
    (void)printf("Usage: nibble %s %s\n\n%s\n", s->command, s->usage, s->about);
    for (int g = 0; g < s->n_groups; g++) {
        (void)printf("\n%s:\n", s->groups[g].title);
        for (int i = 0; i < s->groups[g].n; i++)
            print_option(&s->groups[g].options[i]);
    }
}

/* ---- Parsing ---- */

/* name_bytes: without a value joined by '='. */
static const struct cli_option *find_option(const struct cli_syntax *s, const char *arg, size_t name_bytes)
{
    for (int g = 0; g < s->n_groups; g++)
        for (int i = 0; i < s->groups[g].n; i++) {
            const struct cli_option *o = &s->groups[g].options[i];
            if (strlen(o->name) == name_bytes && memcmp(o->name, arg, name_bytes) == 0)
                return o;
            if (o->alias && strcmp(o->alias, arg) == 0)
                return o;
        }
    return NULL;
}

static const char *help_words(const struct cli_syntax *s, char words[64])
{
    (void)snprintf(words, 64, s->help_words ? "%s" : "nibble help %s", s->help_words ? s->help_words : s->command);
    return words;
}

static int take_operand(const struct cli_syntax *s, const char *arg)
{
    char words[64];

    if (!s->operand)
        return cli_usage("%s: '%s' is not an option, and %s takes nothing else; see %s", s->command, arg, s->command,
                         help_words(s, words));
    const char **where = s->second && *s->operand ? s->second : s->operand;
    if (*where)
        return cli_usage("%s: '%s' is one %s too many", s->command, arg, s->second ? s->second_name : s->operand_name);
    *where = arg;
    return CLI_OK;
}

/* Take the option at argv[*i], moving *i to its last argument. */
static int take_option(const struct cli_syntax *s, int argc, char **argv, int *i)
{
    char        words[64];
    const char *arg = argv[*i];
    const char *equals = strncmp(arg, "--", 2) == 0 ? strchr(arg, '=') : NULL;
    const char *text = equals ? equals + 1 : NULL;
    size_t      name_bytes = equals ? (size_t)(equals - arg) : strlen(arg);

    const struct cli_option *o = find_option(s, arg, name_bytes);
    if (!o)
        return cli_usage("%s: unknown option '%.*s'; see %s", s->command, (int)name_bytes, arg, help_words(s, words));
    if (o->kind == CLI_KIND_FLAG && text)
        return cli_usage("%s takes no value, but '%s' was given", o->name, text);
    if (o->kind != CLI_KIND_FLAG && !text) {
        if (*i + 1 >= argc)
            return cli_usage("%s needs a value after it", arg);
        text = argv[++*i];
    }
    if (o->given)
        *o->given = true;
    /* Messages name the option as it was written. */
    struct cli_option shown = *o;
    if (!equals)
        shown.name = arg;
    return parse_value(&shown, text);
}

bool cli_parse(const struct cli_syntax *s, int argc, char **argv, int *exit_code)
{
    bool options_ended = false;

    if (cli_completing.n > 0) {
        cli_complete(s);
        *exit_code = CLI_OK;
        return false;
    }
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        bool        is_option = !options_ended && arg[0] == '-' && arg[1] != '\0';

        if (is_option && strcmp(arg, "--") == 0) {
            options_ended = true;
            continue;
        }
        if (is_option && (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0)) {
            print_help(s);
            *exit_code = CLI_OK;
            return false;
        }
        *exit_code = is_option ? take_option(s, argc, argv, &i) : take_operand(s, arg);
        if (*exit_code != CLI_OK)
            return false;
    }
    const char *missing = s->operand && !*s->operand && !s->operand_optional ? s->operand_name
                          : s->second && !*s->second                         ? s->second_name
                                                                             : NULL;
    if (missing)
        *exit_code = cli_usage("%s: %s is missing; see nibble help %s", s->command, missing, s->command);
    return !missing;
}

/* ---- Engine options ---- */

const char *const cli_backend_names[] = {"auto", "ref", "cpu", "cuda", NULL};

/* In the order of the library's enums. */
static const char *const act_quant_names[] = {"auto", "none", "fp8", "nvfp4", "int8", NULL};
static const char *const kv_names[] = {"f32", "bf16", "fp8", "nvfp4", NULL};
const char *const cli_numerics_names[] = {"model", "release", "bf16", "auto", NULL};

const char *const cli_cpu_names[] = {"auto", "c", "avx2", "avx512", "vnni", "bf16", "neon", "dotprod", NULL};

const char *const cli_draft_names[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "auto", NULL};

void cli_engine_options_init(struct cli_engine_options *e)
{
    *e = (struct cli_engine_options){.backend = 0, .kv = NIB_KV_BF16, .numerics = NIB_NUMERICS_AUTO};
    static const char *const compare_names[] = {"off", "ref", NULL};
    const struct cli_option table[] = {
        {.name = "--model", .alias = "-m", .kind = CLI_KIND_TEXT, .value = &e->model, .metavar = "DIR",
         .help = "checkpoint folder; the bundled small model if not given"},
        {.name = "--ctx", .kind = CLI_KIND_COUNT, .value = &e->ctx, .low = 0, .high = INT32_MAX, .metavar = "N",
         .help = "tokens that fit in the context; 0: the model's limit, at most 8192"},
        {.name = "--threads", .kind = CLI_KIND_COUNT, .value = &e->threads, .low = 0, .high = 1024, .metavar = "N",
         .help = "CPU threads; 0: all cores. Changes no result"},
        {.name = "--backend", .kind = CLI_KIND_CHOICE, .value = &e->backend, .choices = cli_backend_names,
         .help = "auto: a usable card if this build has cuda, else cpu; ref: plain loops that define what is right, slow"},
        {.name = "--cpu", .kind = CLI_KIND_CHOICE, .value = &e->cpu, .choices = cli_cpu_names,
         .help = "kernels of this level and none above it; auto: the machine's best"},
        {.name = "--act-quant", .kind = CLI_KIND_CHOICE, .value = &e->act_quant, .given = &e->act_quant_given,
         .choices = act_quant_names, .help = "round activations before quantised weights; auto: int8 on the\ncpu backend (not on NEON without dot products), else none"},
        {.name = "--kv", .kind = CLI_KIND_CHOICE, .value = &e->kv, .given = &e->kv_given, .choices = kv_names,
         .help = "format in which context rows are kept; bf16"},
        {.name = "--numerics", .kind = CLI_KIND_CHOICE, .value = &e->numerics, .choices = cli_numerics_names,
         .help = "model: rows between ops are fp32; bf16: they are rounded to bf16; auto: bf16 on\na GPU, else model; release: round wherever the published inference code rounds\nand set --act-quant fp8 and --kv fp8"},
        {.name = "--selftest-again", .kind = CLI_KIND_FLAG, .value = &e->selftest_again,
         .help = "forget what the self-test of a card's kernels found before"},
        {.name = "--trace", .kind = CLI_KIND_TEXT, .value = &e->trace, .metavar = "FILE",
         .help = "write every op's shapes, time and results' checksums there (docs/tracing.md); slow"},
        {.name = "--compare", .kind = CLI_KIND_CHOICE, .value = &e->compare, .choices = compare_names,
         .help = "run every op on ref too and stop at the first result out of bounds; very slow"},
        {.name = "--verbose", .alias = "-v", .kind = CLI_KIND_FLAG, .value = &e->verbose,
         .help = "say on standard error what was chosen"},
    };
    _Static_assert(sizeof table <= sizeof e->table, "struct cli_engine_options holds the whole table");
    memcpy(e->table, table, sizeof table);
    e->n_table = (int)(sizeof table / sizeof table[0]);
}
