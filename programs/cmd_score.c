/* nibble score: exact match and likelihood of known answers. Plain texts go to perplexity.c. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "cli.h"
#include "nibble.h"
#include "output.h"
#include "perplexity.h"
#include "progress.h"
#include "score_rows.h"
#include "session.h"

enum { NAME_WIDTH = 16 };

struct score_options {
    struct cli_engine_options engine;
    const char               *file;
    int32_t                   limit, per_category;
    bool                      teacher, json;
};

struct tally {
    int64_t rows, exact, tokens;
    double  nll; /* summed over answer tokens */
};

/* ---- One row ---- */

struct answer {
    const struct session *session;
    const int32_t        *id;
    int32_t               n, n_seen; /* predictions seen so far */
    bool                  exact;     /* all of them were the answer's ids */
    double                nll;
};

static bool see_prediction(void *user, int32_t i, const float *logits, const float *mtp_logits)
{
    struct answer *a = user;
    int32_t        wanted = a->id[a->n_seen];
    int32_t        best = session_argmax(a->session, logits);

    (void)i;
    (void)mtp_logits;
    if (best < 0) {
        (void)cli_fail("the logits before answer token %d hold NaN", a->n_seen);
        return false;
    }
    a->exact = a->exact && best == wanted;
    a->nll += session_nll(a->session, logits, wanted);
    a->n_seen++;
    return true;
}

/* While everything was right, the answer's ids are the model's own, so feeding them one at a time is greedy
 * generation. Behind the first wrong one only the likelihood is left to find, in one go. */
static int score_row(struct session *s, const struct score_row *row, bool teacher, struct answer *a)
{
    *a = (struct answer){.session = s, .id = row->answer, .n = row->n_answer, .exact = true};
    if ((int64_t)row->n_prompt + row->n_answer - 1 > s->n_ctx)
        return cli_fail("line %d: prompt and answer have %d tokens, which do not fit in the context of %d; see --ctx",
                        row->line, row->n_prompt + row->n_answer, s->n_ctx);
    enum nib_status status = nib_seq_truncate(s->seq, 0);
    if (status != NIB_OK)
        return session_fail(status, NULL);

    int code = session_feed(s, row->prompt, row->n_prompt, 1, see_prediction, a);
    while (code == CLI_OK && a->n_seen < a->n) {
        int32_t n = a->exact && !teacher ? 1 : a->n - a->n_seen;
        code = session_feed(s, a->id + a->n_seen - 1, n, n, see_prediction, a);
    }
    return code;
}

static void tally_add(struct tally *t, const struct answer *a)
{
    t->rows++;
    t->exact += a->exact;
    t->tokens += a->n;
    t->nll += a->nll;
}

/* ---- Result ---- */

static json_t *tally_json(const struct tally *t)
{
    return json_pack("{s:I, s:o, s:o}", "rows", (json_int_t)t->rows, "exact",
                     output_real((double)t->exact / (double)t->rows), "nll", output_real(t->nll / (double)t->tokens));
}

static int print_json(const struct score_rows *rows, const struct tally *all, const struct tally *by_category)
{
    json_t *result = tally_json(all);
    json_t *categories = json_object();

    for (size_t i = 0; i < rows->n_categories; i++)
        if (rows->category[i].name[0] && by_category[i].rows > 0)
            (void)json_object_set_new(categories, rows->category[i].name, tally_json(&by_category[i]));
    if (json_object_set_new(result, "categories", categories) != 0) {
        json_decref(result);
        result = NULL;
    }
    return output_json(result);
}

static void print_line(const char *name, const struct tally *t)
{
    const int width = (int)strnlen(name, NAME_WIDTH);

    output_plain(name);
    (void)printf("%*s %6" PRId64 " %7.4f %9.5f\n", NAME_WIDTH - width, "", t->rows,
                 (double)t->exact / (double)t->rows, t->nll / (double)t->tokens);
}

static int print_table(const struct score_rows *rows, const struct tally *all, const struct tally *by_category)
{
    (void)printf("%-*s %6s %7s %9s\n", NAME_WIDTH, "category", "rows", "exact", "nll");
    for (size_t i = 0; i < rows->n_categories; i++)
        if (rows->category[i].name[0] && by_category[i].rows > 0)
            print_line(rows->category[i].name, &by_category[i]);
    print_line("all", all);
    return CLI_OK;
}

/* ---- Command ---- */

static int score_all(struct session *s, const struct score_rows *rows, const struct score_options *o)
{
    struct tally    all = {0};
    struct progress progress;
    struct answer   a;
    int             code = CLI_OK;

    struct tally *by_category = calloc(rows->n_categories, sizeof *by_category);
    if (!by_category)
        return cli_fail_memory();
    progress_start(&progress, "scoring", "rows");
    for (size_t i = 0; i < rows->n && code == CLI_OK; i++) {
        code = score_row(s, &rows->row[i], o->teacher, &a);
        if (code == CLI_OK) {
            tally_add(&all, &a);
            tally_add(&by_category[rows->row[i].category], &a);
        }
        progress_update(&progress, i + 1, rows->n);
    }
    progress_finish(&progress);
    if (code == CLI_OK)
        code = o->json ? print_json(rows, &all, by_category) : print_table(rows, &all, by_category);
    free(by_category);
    return code;
}

static bool is_jsonl(const char *path)
{
    size_t n = strlen(path);

    return n >= 6 && strcmp(path + n - 6, ".jsonl") == 0;
}

static int score(struct session *s, const struct score_options *o)
{
    struct score_rows rows;

    if (!is_jsonl(o->file))
        return perplexity_score(s, o->file, o->limit, o->json);
    int code = score_rows_load(&rows, o->file, s, o->limit, o->per_category);
    if (code == CLI_OK)
        code = session_open_engine(s, 0, false);
    if (code == CLI_OK)
        code = score_all(s, &rows, o);
    score_rows_deinit(&rows);
    return code;
}

int cmd_score(int argc, char **argv)
{
    struct score_options o = {0};
    struct session       s;
    int                  code;

    cli_engine_options_init(&o.engine);
    const struct cli_option own[] = {
        {.name = "--limit", .kind = CLI_KIND_COUNT, .value = &o.limit, .low = 1, .high = INT32_MAX, .metavar = "N",
         .help = "stop after N rows, or N windows of a text"},
        {.name = "--per-category", .kind = CLI_KIND_COUNT, .value = &o.per_category, .low = 1, .high = INT32_MAX,
         .metavar = "N", .help = "take the first N rows of each category"},
        {.name = "--teacher", .kind = CLI_KIND_FLAG, .value = &o.teacher,
         .help = "feed the answer instead of generating it: faster, and the same result where\n"
                 "chunks change no bit"},
        {.name = "--json", .kind = CLI_KIND_FLAG, .value = &o.json, .help = "print as JSON"},
    };
    const struct cli_group groups[] = {
        {"Options", own, sizeof own / sizeof own[0]},
        {"Engine", o.engine.table, o.engine.n_table},
    };
    const struct cli_syntax syntax = {
        .command = "score",
        .usage = "[-m DIR] FILE [options]",
        .about = "FILE.jsonl: one JSON object a line, with \"prompt_ids\" and \"answer_ids\", or with \"prompt\" and\n"
                 "\"answer\" as raw text in which control tokens count and to which nothing is added; and optionally\n"
                 "\"category\". Printed over all rows and by category: rows; exact, the share of rows whose greedy\n"
                 "continuation equals the answer's ids over the answer's whole length; nll, the mean negative\n"
                 "log-likelihood in nats of an answer token, over all answer tokens of all rows.\n\n"
                 "Any other FILE is a plain text: its perplexity, exp(nll) over all its tokens. It is cut into\n"
                 "windows of --ctx tokens that do not overlap; each is computed on its own behind a beginning of\n"
                 "sentence.",
        .groups = groups,
        .n_groups = 2,
        .operand = &o.file,
        .operand_name = "FILE",
    };
    if (!cli_parse(&syntax, argc, argv, &code))
        return code;
    if (!is_jsonl(o.file) && (o.teacher || o.per_category > 0))
        return cli_usage("score: %s is for .jsonl files; '%s' is taken as plain text",
                         o.teacher ? "--teacher" : "--per-category", o.file);
    code = session_open(&s, &o.engine);
    if (code == CLI_OK)
        code = score(&s, &o);
    session_close(&s);
    return code;
}
