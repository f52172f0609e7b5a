/* nibble logits: the raw output of the model after given ids, for comparing engines. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "cli.h"
#include "input.h"
#include "nibble.h"
#include "progress.h"
#include "session.h"

struct logits_options {
    struct cli_engine_options engine;
    const char               *ids;
    int32_t                   last, chunk;
    bool                      mtp, json;
};

/* All wanted rows are gathered first, so that a failure half way leaves no half result on standard output. */
struct gathered {
    const struct session *session;
    struct progress       progress;
    int32_t               n_ids, first, n_rows;
    float                *logits, *mtp_logits; /* [n_rows][vocab]; mtp_logits NULL without --mtp */
    int32_t              *argmax;              /* [n_rows] */
};

static bool gather_row(void *user, int32_t i, const float *logits, const float *mtp_logits)
{
    struct gathered *g = user;
    size_t           vocab = (size_t)g->session->info->vocab;
    size_t           row = (size_t)(i - g->first);

    memcpy(g->logits + row * vocab, logits, vocab * sizeof *logits);
    if (g->mtp_logits)
        memcpy(g->mtp_logits + row * vocab, mtp_logits, vocab * sizeof *mtp_logits);
    g->argmax[row] = session_argmax(g->session, logits);
    if (g->argmax[row] < 0) {
        (void)cli_fail("the logits of position %d hold NaN", i);
        return false;
    }
    progress_update(&g->progress, (uint64_t)i + 1, (uint64_t)g->n_ids);
    return true;
}

/* Written by hand: as a JSON tree, thousands of rows of a large vocabulary would take ten times their size. Nine
 * digits give back the same float. */
static void print_row(const float *row, int32_t vocab)
{
    (void)putchar('[');
    for (int32_t i = 0; i < vocab; i++) {
        if (i > 0)
            (void)putchar(',');
        if (isfinite(row[i]))
            (void)printf("%.9g", (double)row[i]);
        else
            (void)fputs("null", stdout);
    }
    (void)putchar(']');
}

static void print_rows(const char *name, const float *rows, const struct gathered *g, bool first_is_null)
{
    int32_t vocab = g->session->info->vocab;

    (void)printf(" \"%s\": [", name);
    for (int32_t i = 0; i < g->n_rows; i++) {
        (void)fputs(i > 0 ? ",\n  " : "\n  ", stdout);
        if (i == 0 && first_is_null)
            (void)fputs("null", stdout);
        else
            print_row(rows + (size_t)i * (size_t)vocab, vocab);
    }
    (void)putchar(']');
}

static void print_json(const struct gathered *g)
{
    (void)printf("{\"first\": %d,\n", g->first);
    print_rows("logits", g->logits, g, false);
    (void)printf(",\n \"argmax\": [");
    for (int32_t i = 0; i < g->n_rows; i++)
        (void)printf(i > 0 ? ", %d" : "%d", g->argmax[i]);
    (void)putchar(']');
    if (g->mtp_logits) {
        (void)printf(",\n");
        /* Position 0 has no streams before it, so no MTP row. */
        print_rows("mtp_logits", g->mtp_logits, g, g->first == 0);
    }
    (void)printf("}\n");
}

static void print_table(const struct gathered *g)
{
    size_t vocab = (size_t)g->session->info->vocab;

    (void)printf("%8s %8s %14s", "position", "argmax", "logit");
    (void)printf(g->mtp_logits ? " %10s %14s\n" : "\n", "mtp argmax", "logit");
    for (int32_t i = 0; i < g->n_rows; i++) {
        (void)printf("%8d %8d %14.9g", g->first + i, g->argmax[i],
                     (double)g->logits[(size_t)i * vocab + (size_t)g->argmax[i]]);
        if (g->mtp_logits && g->first + i > 0) {
            const float *row = g->mtp_logits + (size_t)i * vocab;
            int32_t      best = session_argmax(g->session, row);
            if (best < 0)
                (void)printf(" %10s %14s", "NaN", "NaN");
            else
                (void)printf(" %10d %14.9g", best, (double)row[best]);
        } else if (g->mtp_logits) {
            (void)printf(" %10s %14s", "-", "-");
        }
        (void)putchar('\n');
    }
}

static int compute(struct session *s, const struct logits_options *o, const int32_t *ids, int32_t n)
{
    size_t          vocab = (size_t)s->info->vocab;
    struct gathered g = {.session = s, .n_ids = n};
    int             code;

    if (o->last > n)
        return cli_usage("--last: %d is out of range; --ids has %d", o->last, n);
    code = session_open_engine(s, o->chunk, o->mtp);
    if (code != CLI_OK)
        return code;
    if (n > s->n_ctx)
        return cli_fail("--ids: %d ids do not fit in the context of %d; see --ctx", n, s->n_ctx);

    g.n_rows = o->last == 0 ? n : o->last;
    g.first = n - g.n_rows;
    g.argmax = malloc((size_t)g.n_rows * sizeof *g.argmax);
    g.logits = malloc((size_t)g.n_rows * vocab * sizeof *g.logits);
    if (o->mtp)
        g.mtp_logits = malloc((size_t)g.n_rows * vocab * sizeof *g.mtp_logits);
    progress_start(&g.progress, "computing", "tok");
    if (!g.argmax || !g.logits || (o->mtp && !g.mtp_logits))
        code = cli_fail_memory();
    else
        code = session_feed(s, ids, n, g.n_rows, gather_row, &g);
    progress_finish(&g.progress);
    if (code == CLI_OK && o->json)
        print_json(&g);
    else if (code == CLI_OK)
        print_table(&g);
    free(g.argmax);
    free(g.logits);
    free(g.mtp_logits);
    return code;
}

int cmd_logits(int argc, char **argv)
{
    struct logits_options o = {.last = 1};
    struct session        s;
    int32_t              *ids = NULL, n = 0;
    int                   code;

    cli_engine_options_init(&o.engine);
    const struct cli_option own[] = {
        {.name = "--ids", .kind = CLI_KIND_TEXT, .value = &o.ids, .metavar = "LIST|FILE",
         .help = "token ids, \"0,5,17\", or a file of them (- for standard input):\n"
                 "separated by commas or white space, or a JSON array"},
        {.name = "--last", .kind = CLI_KIND_COUNT, .value = &o.last, .low = 0, .high = INT32_MAX, .metavar = "K",
         .help = "print the rows of the last K ids; 0: all; 1"},
        {.name = "--chunk", .kind = CLI_KIND_COUNT, .value = &o.chunk, .low = 1, .high = 65536, .metavar = "N",
         .help = "ids computed in one step; changes no bit of the result; 256"},
        {.name = "--mtp", .kind = CLI_KIND_FLAG, .value = &o.mtp,
         .help = "the MTP block's logits too: row p is its guess at the id that follows, from\n"
                 "the streams of p-1 and the id at p; null at position 0"},
        {.name = "--json", .kind = CLI_KIND_FLAG, .value = &o.json, .help = "print all values, as JSON"},
    };
    const struct cli_group groups[] = {
        {"Options", own, sizeof own / sizeof own[0]},
        {"Engine", o.engine.table, o.engine.n_table},
    };
    const struct cli_syntax syntax = {
        .command = "logits",
        .usage = "--ids LIST|FILE [options]",
        .about = "Prints the logits after each of the last ids; nothing is put in front of them (id 0 is usually the\n"
                 "beginning of sentence). As text: position, most likely id, its logit. With --json:\n"
                 "{\"first\": position of the first row, \"logits\": [[...]], \"argmax\": [...],\n"
                 " \"mtp_logits\": [[...]]}\n"
                 "with nine digits, which give back the same float.",
        .groups = groups,
        .n_groups = 2,
    };
    if (!cli_parse(&syntax, argc, argv, &code))
        return code;
    if (!o.ids)
        return cli_usage("logits: --ids is missing; give token ids such as --ids 0,5,17");

    code = session_open(&s, &o.engine);
    if (code == CLI_OK)
        code = input_ids("--ids", o.ids, s.info->vocab, &ids, &n);
    if (code == CLI_OK)
        code = compute(&s, &o, ids, n);
    free(ids);
    session_close(&s);
    return code;
}
