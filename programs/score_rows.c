/* Reading rows: {"prompt_ids": [...], "answer_ids": [...]} or {"prompt": "...", "answer": "..."}, each with an
 * optional "category"; other keys are ignored. Where both forms are present the ids count. */
#include "score_rows.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "input.h"

void score_rows_deinit(struct score_rows *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->row[i].prompt);
        free(r->row[i].answer);
    }
    for (size_t i = 0; i < r->n_categories; i++)
        free(r->category[i].name);
    free(r->row);
    free(r->category);
    *r = (struct score_rows){0};
}

/* Index of the category, added if new; SIZE_MAX when memory is used up. */
static size_t find_category(struct score_rows *r, const char *name)
{
    for (size_t i = 0; i < r->n_categories; i++)
        if (strcmp(r->category[i].name, name) == 0)
            return i;
    struct score_category *larger = realloc(r->category, (r->n_categories + 1) * sizeof *larger);
    if (!larger)
        return SIZE_MAX;
    r->category = larger;
    char *copy = malloc(strlen(name) + 1);
    if (!copy)
        return SIZE_MAX;
    strcpy(copy, name);
    r->category[r->n_categories] = (struct score_category){.name = copy};
    return r->n_categories++;
}

static struct score_row *add_row(struct score_rows *r)
{
    if (r->n == r->n_room) {
        size_t            room = r->n_room ? 2 * r->n_room : 64;
        struct score_row *larger = realloc(r->row, room * sizeof *larger);
        if (!larger)
            return NULL;
        r->row = larger;
        r->n_room = room;
    }
    r->row[r->n] = (struct score_row){0};
    return &r->row[r->n++];
}

static int encode_text(struct session *s, const char *where, const json_t *value, int32_t **out, int32_t *n)
{
    struct nib_ids   ids = {0};
    struct nib_error err = {0};

    if (!json_is_string(value) || json_string_length(value) == 0)
        return cli_fail("%s: wanted ids or a text that is not empty", where);
    if (!s->tokenizer && session_open_tokenizer(s) != CLI_OK)
        return CLI_FAILED;
    enum nib_status status = nib_tokenizer_encode(s->tokenizer, json_string_value(value), json_string_length(value),
                                                  NULL, 0, &ids, &err);
    if (status != NIB_OK)
        return session_fail(status, &err);
    *out = malloc((ids.n + 1) * sizeof **out);
    if (*out && ids.n > 0)
        memcpy(*out, ids.id, ids.n * sizeof **out);
    *n = (int32_t)ids.n;
    nib_ids_free(&ids);
    return *out ? CLI_OK : cli_fail_memory();
}

/* name: "prompt" or "answer". */
static int take_ids(struct session *s, const char *path, int32_t line, const json_t *object, const char *name,
                    int32_t **out, int32_t *n)
{
    char          key[32], where[600];
    const json_t *ids;

    (void)snprintf(key, sizeof key, "%s_ids", name);
    ids = json_object_get(object, key);
    (void)snprintf(where, sizeof where, "%.500s: line %d: %s", path, line, ids ? key : name);
    if (ids)
        return input_json_ids(where, ids, s->info->vocab, out, n) ? CLI_OK : CLI_FAILED;
    return encode_text(s, where, json_object_get(object, name), out, n);
}

/* Adds a row unless its category is full. */
static int take_line(struct score_rows *r, struct session *s, const char *path, int32_t line, const char *text,
                     int32_t per_category)
{
    json_error_t problem;
    json_t      *object = json_loads(text, 0, &problem);
    int          code = CLI_OK;

    if (!json_is_object(object)) {
        code = object ? cli_fail("%s: line %d: wanted a JSON object", path, line)
                      : cli_fail("%s: line %d: not JSON: %s", path, line, problem.text);
        goto done;
    }
    const json_t *named = json_object_get(object, "category");
    const char   *name = json_string_value(named);
    if (named && !name && !json_is_null(named)) {
        code = cli_fail("%s: line %d: category: wanted a text", path, line);
        goto done;
    }
    size_t category = find_category(r, name ? name : "");
    if (category == SIZE_MAX) {
        code = cli_fail_memory();
        goto done;
    }
    if (per_category > 0 && r->category[category].n_rows >= per_category)
        goto done;
    struct score_row *row = add_row(r);
    if (!row) {
        code = cli_fail_memory();
        goto done;
    }
    row->category = category;
    row->line = line;
    r->category[category].n_rows++;
    code = take_ids(s, path, line, object, "prompt", &row->prompt, &row->n_prompt);
    if (code == CLI_OK)
        code = take_ids(s, path, line, object, "answer", &row->answer, &row->n_answer);
done:
    json_decref(object);
    return code;
}

int score_rows_load(struct score_rows *out, const char *path, struct session *s, int32_t limit, int32_t per_category)
{
    char   *text;
    size_t  n_bytes;
    int32_t number = 0;
    int     code = CLI_OK;

    *out = (struct score_rows){0};
    if (!input_read_file("score", path, &text, &n_bytes))
        return CLI_FAILED;
    if (strlen(text) != n_bytes)
        code = cli_fail("%s: holds a zero byte at offset %zu; wanted lines of JSON", path, strlen(text));
    for (char *line = text; line && *line && code == CLI_OK;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        number++;
        if (line[strspn(line, " \t\r")] != '\0')
            code = take_line(out, s, path, number, line, per_category);
        if (limit > 0 && out->n >= (size_t)limit)
            break;
        line = end ? end + 1 : NULL;
    }
    if (code == CLI_OK && out->n == 0)
        code = cli_fail("%s: holds no rows", path);
    free(text);
    return code;
}
