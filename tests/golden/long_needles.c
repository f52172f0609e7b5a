/* Needles in more text than the bundled model was trained on, as rows for `nibble score`: the evaluation's longest
 * needle questions with the sentences of all of them around one needle, at depths from the first to the last. Usage:
 * long_needles EVALUATION.jsonl MODEL N_TOKENS N_ROWS; prints the rows. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nibble.h"

enum { N_QUESTIONS_MAX = 64, N_SENTENCES_MAX = 1 << 15 };

struct text {
    const char *at;
    size_t      n;
};

static struct text  g_filler[N_SENTENCES_MAX];
static int          g_n_filler;
static const json_t *g_row[N_QUESTIONS_MAX];
static int           g_n_rows;

static int fail(const char *what)
{
    (void)fprintf(stderr, "long_needles: %s\n", what);
    return 1;
}

/* The sentence at the beginning of `text`; sentences end before a space and a capital letter. */
static struct text sentence(const char *text)
{
    const char *end = text;
    while (*end && !(strchr(".?!", end[0]) && end[1] == ' ' && end[2] >= 'A' && end[2] <= 'Z'))
        end++;
    return (struct text){text, (size_t)(end - text) + (*end != '\0')};
}

static const char *after(struct text s)
{
    return s.at[s.n] == ' ' ? s.at + s.n + 1 : s.at + s.n;
}

static bool begins(struct text s, const char *with)
{
    return s.n >= strlen(with) && memcmp(s.at, with, strlen(with)) == 0;
}

/* Of any of the three kinds, also one that is not asked for; and the question itself. */
static bool is_needle(struct text s)
{
    return begins(s, "The code of ") || begins(s, "The treasure of ") || begins(s, "Remember this: ") ||
           begins(s, "What is ");
}

static const char *string_of(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}

/* The sentence that the answer repeats, and the question at the end. False if there are several such sentences. */
static bool find_needle(const json_t *row, struct text *needle, struct text *question)
{
    const char *answer = string_of(row, "answer");
    const bool secret = strncmp(answer, "The secret word", 15) == 0;
    int n = 0;
    for (const char *at = string_of(row, "question"); *at; at = after(*question)) {
        *question = sentence(at);
        if (secret ? begins(*question, "Remember this: ")
                   : question->n == strlen(answer) && begins(*question, answer)) {
            *needle = *question;
            n++;
        }
    }
    return n == 1 && begins(*question, "What is ");
}

static bool read_rows(const char *path, json_t *keep)
{
    char *line = NULL;
    size_t room = 0;
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    while (getline(&line, &room, f) > 0 && g_n_rows < N_QUESTIONS_MAX) {
        json_t *row = json_loads(line, 0, NULL);
        if (!row || json_array_append_new(keep, row) != 0)
            break;
        if (strcmp(string_of(row, "category"), "needle3600") != 0)
            continue;
        g_row[g_n_rows++] = row;
        for (const char *at = string_of(row, "question"); *at && g_n_filler < N_SENTENCES_MAX;) {
            const struct text s = sentence(at);
            if (!is_needle(s))
                g_filler[g_n_filler++] = s;
            at = after(s);
        }
    }
    free(line);
    (void)fclose(f);
    return g_n_rows > 0 && g_n_filler > 0;
}

static bool append(struct nib_ids *ids, const struct nib_tokenizer *t, const char *text, size_t n)
{
    struct nib_ids more = {0};
    if (nib_tokenizer_encode(t, text, n, NULL, 0, &more, NULL) != NIB_OK)
        return false;
    int32_t *larger = realloc(ids->id, (ids->n + more.n) * sizeof *larger);
    if (larger) {
        memcpy(larger + ids->n, more.id, more.n * sizeof *larger);
        ids->id = larger;
        ids->n += more.n;
    }
    nib_ids_free(&more);
    return larger != NULL;
}

/* A question's text: as many sentences as make n_tokens, the needle after `depth` of them. */
static char *make_text(int first, int n_sentences, int depth, struct text needle, struct text question)
{
    size_t room = needle.n + question.n + 4, used = 0;
    for (int i = 0; i < n_sentences; i++)
        room += g_filler[(first + i) % g_n_filler].n + 1;
    char *out = malloc(room);
    for (int i = 0; out && i <= n_sentences; i++) {
        const struct text *const parts[] = {i == depth ? &needle : NULL,
                                            i < n_sentences ? &g_filler[(first + i) % g_n_filler] : &question};
        for (int k = 0; k < 2; k++) {
            if (!parts[k])
                continue;
            memcpy(out + used, parts[k]->at, parts[k]->n);
            used += parts[k]->n;
            out[used++] = ' ';
        }
    }
    if (out)
        out[used - 1] = '\0';
    return out;
}

/* The prompt's frame is the row's own: what stands before and behind its question there. */
static bool print_row(const struct nib_tokenizer *t, const json_t *row, const char *text, size_t *n_tokens)
{
    const json_t *old = json_object_get(row, "prompt_ids");
    const size_t n_old = json_array_size(old);
    struct nib_ids question = {0}, ids = {0};
    const char *asked = string_of(row, "question");
    bool ok = append(&question, t, asked, strlen(asked)) && append(&ids, t, text, strlen(text));
    ok = ok && n_old == question.n + 4;
    for (size_t i = 0; ok && i < question.n; i++)
        ok = json_integer_value(json_array_get(old, i + 2)) == question.id[i];
    if (ok) {
        (void)printf("{\"category\": \"needle\", \"prompt_ids\": [%d, %d",
                     (int)json_integer_value(json_array_get(old, 0)), (int)json_integer_value(json_array_get(old, 1)));
        for (size_t i = 0; i < ids.n; i++)
            (void)printf(", %d", ids.id[i]);
        char *answer = json_dumps(json_object_get(row, "answer_ids"), JSON_COMPACT);
        (void)printf(", %d, %d], \"answer_ids\": %s}\n", (int)json_integer_value(json_array_get(old, n_old - 2)),
                     (int)json_integer_value(json_array_get(old, n_old - 1)), answer ? answer : "null");
        free(answer);
    }
    *n_tokens = ids.n + 4;
    nib_ids_free(&question);
    nib_ids_free(&ids);
    return ok;
}

static int make_rows(const struct nib_tokenizer *t, size_t n_tokens, int n)
{
    for (int i = 0; i < n; i++) {
        const json_t *row = g_row[i % g_n_rows];
        struct text needle = {0}, question = {0};
        size_t got = 0;
        /* Sentences have 9.1 tokens on average. */
        const int n_sentences = (int)(n_tokens * 2 / 19), depth = (int)((2 * (long)i + 1) * n_sentences / (2 * n));
        if (!find_needle(row, &needle, &question))
            return fail("a row without its needle");
        char *text = make_text(i * 977, n_sentences, depth, needle, question);
        const bool ok = text && print_row(t, row, text, &got);
        free(text);
        if (!ok)
            return fail("a row whose ids are not its question's");
        (void)fprintf(stderr, "row %d: %zu tokens, needle after %d of %d sentences\n", i, got, depth, n_sentences);
        if (got < n_tokens / 20 * 18 || got > n_tokens)
            return fail("too few or too many tokens");
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct nib_tokenizer *t = NULL;
    json_t *keep = json_array();
    if (argc != 5)
        return fail("wanted EVALUATION.jsonl MODEL N_TOKENS N_ROWS");
    int code = 1;
    if (!read_rows(argv[1], keep) || nib_tokenizer_open(argv[2], &t, NULL) != NIB_OK)
        (void)fail("cannot read the evaluation or the tokenizer");
    else
        code = make_rows(t, (size_t)atoi(argv[3]), atoi(argv[4]));
    nib_tokenizer_close(t);
    json_decref(keep);
    return code;
}
