/* Rows of a .jsonl file to pieces of token ids. */
#include "quantize/calibration_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/json_file.h"

#define TEXT_BYTES_MAX ((size_t)1 << 30)

struct reader {
    const char              *path, *dir;
    const struct nib_config *config;
    struct nib_tokenizer    *tokenizer; /* opened when a row needs it */
    struct nib_quant_text   *t;
    int64_t                  room, pieces_room;
    int32_t                  line;
    struct nib_error        *err;
};

static enum nib_status no_memory(const struct reader *r)
{
    return nib_error_set(r->err, NIB_E_MEMORY, "no memory for '%s'", r->path);
}

static enum nib_status add_id(struct reader *r, int64_t id)
{
    struct nib_quant_text *t = r->t;
    if (id < 0 || id >= r->config->vocab)
        return nib_error_set(r->err, NIB_E_ARGUMENT, "%s:%d: id %" PRId64 ", wanted 0 to %d", r->path, (int)r->line, id,
                             (int)r->config->vocab - 1);
    if (t->n == r->room) {
        r->room = r->room ? 2 * r->room : 4096;
        int32_t *grown = realloc(t->id, (size_t)r->room * sizeof *grown);
        if (!grown)
            return no_memory(r);
        t->id = grown;
    }
    t->id[t->n++] = (int32_t)id;
    return NIB_OK;
}

static enum nib_status add_ids(struct reader *r, const json_t *list)
{
    size_t  i;
    json_t *v;
    if (list && !json_is_array(list))
        return nib_error_set(r->err, NIB_E_FORMAT, "%s:%d: ids are %s, wanted an array", r->path, (int)r->line,
                             nib_json_type_name(list));
    json_array_foreach((json_t *)list, i, v)
    {
        if (!json_is_integer(v))
            return nib_error_set(r->err, NIB_E_FORMAT, "%s:%d: id %zu is %s, wanted an integer", r->path, (int)r->line,
                                 i, nib_json_type_name(v));
        NIB_TRY(add_id(r, json_integer_value(v)));
    }
    return NIB_OK;
}

static enum nib_status add_text(struct reader *r, const char *text, const char *more)
{
    struct nib_ids ids[2] = {{0}};
    if (!r->tokenizer)
        NIB_TRY(nib_tokenizer_open(r->dir, &r->tokenizer, r->err));
    enum nib_status status = nib_tokenizer_encode(r->tokenizer, text, strlen(text), NULL, 0, &ids[0], r->err);
    if (status == NIB_OK && more)
        status = nib_tokenizer_encode(r->tokenizer, more, strlen(more), NULL, 0, &ids[1], r->err);
    if (status == NIB_OK && (ids[0].n == 0 || ids[0].id[0] != r->config->bos_id))
        status = add_id(r, r->config->bos_id);
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < ids[k].n && status == NIB_OK; i++)
            status = add_id(r, ids[k].id[i]);
    nib_ids_free(&ids[0]);
    nib_ids_free(&ids[1]);
    return status;
}

static enum nib_status end_piece(struct reader *r, int64_t end)
{
    struct nib_quant_text *t = r->t;
    if (t->n_pieces + 2 > r->pieces_room) {
        r->pieces_room = r->pieces_room ? 2 * r->pieces_room : 256;
        int64_t *grown = realloc(t->start, (size_t)r->pieces_room * sizeof *grown);
        if (!grown)
            return no_memory(r);
        t->start = grown;
        t->start[0] = 0;
    }
    const int64_t length = end - t->start[t->n_pieces];
    t->start[++t->n_pieces] = end;
    t->n_longest = length > t->n_longest ? (int32_t)length : t->n_longest;
    return NIB_OK;
}

static enum nib_status add_row(struct reader *r, const json_t *row)
{
    const json_t *ids = json_object_get(row, "ids");
    const char   *text = json_string_value(json_object_get(row, "text"));
    const int64_t begin = r->t->n;
    if (!ids)
        ids = json_object_get(row, "prompt_ids");
    if (!text)
        text = json_string_value(json_object_get(row, "prompt"));
    if (ids) {
        NIB_TRY(add_ids(r, ids));
        NIB_TRY(add_ids(r, json_object_get(row, "answer_ids")));
    } else if (text) {
        NIB_TRY(add_text(r, text, json_string_value(json_object_get(row, "answer"))));
    } else {
        return nib_error_set(r->err, NIB_E_FORMAT,
                             "%s:%d: the row has none of \"ids\", \"prompt_ids\", \"text\", \"prompt\"", r->path,
                             (int)r->line);
    }
    for (int64_t at = begin; at < r->t->n; at += NIB_QUANT_PIECE_TOKENS)
        NIB_TRY(end_piece(r, r->t->n - at < NIB_QUANT_PIECE_TOKENS ? r->t->n : at + NIB_QUANT_PIECE_TOKENS));
    return NIB_OK;
}

static enum nib_status read_lines(struct reader *r, const char *data)
{
    for (const char *at = data; *at; r->line++) {
        const size_t n = strcspn(at, "\n");
        if (strspn(at, " \t\r") < n) {
            char    what[600];
            json_t *row;
            (void)snprintf(what, sizeof what, "%.500s:%d", r->path, (int)r->line);
            NIB_TRY(nib_json_parse(at, n, what, &row, r->err));
            const enum nib_status status = add_row(r, row);
            json_decref(row);
            NIB_TRY(status);
        }
        at += n + (at[n] == '\n');
    }
    return NIB_OK;
}

enum nib_status nib_quant_text_read(const char *path, const char *dir, const struct nib_config *c,
                                    struct nib_quant_text *out, struct nib_error *err)
{
    struct reader r = {.path = path, .dir = dir, .config = c, .t = out, .line = 1, .err = err};
    char  *data;
    size_t n;
    memset(out, 0, sizeof *out);
    NIB_TRY(nib_file_read(path, TEXT_BYTES_MAX, &data, &n, err));
    const enum nib_status status = read_lines(&r, data);
    free(data);
    nib_tokenizer_close(r.tokenizer);
    return status;
}

void nib_quant_text_free(struct nib_quant_text *t)
{
    free(t->id);
    free(t->start);
    memset(t, 0, sizeof *t);
}
