/* nib_tokenizer: open, encode, decode. The file's format is in tokenizer_read.c; the steps of encoding are
 * tokenizer_added.c (exact tokens), pretokenize.c (pieces) and bpe.c (merging), in this order. */
#include "text/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text_buf.h"

/* Bytes 21-7E, A1-AC and AE-FF are written as the character of the same number, the other 68 in ascending order as the
 * characters from U+0100 on. */
int32_t nib_byte_of_char(uint32_t c)
{
    if ((c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF))
        return (int32_t)c;
    if (c < 0x100)
        return -1;
    uint32_t i = c - 0x100;
    if (i <= 0x20)
        return (int32_t)i;
    if (i <= 0x20 + 34) /* 7F-A0 */
        return (int32_t)(i - 0x21 + 0x7F);
    return i == 0x20 + 35 ? 0xAD : -1;
}

enum nib_status nib_tokenizer_open(const char *path, struct nib_tokenizer **out, struct nib_error *err)
{
    *out = NULL;
    struct nib_tokenizer *t = calloc(1, sizeof *t);
    char *file = nib_path_is_dir(path) ? nib_path_join(path, "tokenizer.json") : strdup(path);
    enum nib_status status;
    if (t && file)
        status = nib_tokenizer_read(t, file, err);
    else
        status = nib_error_set(err, NIB_E_MEMORY, "no memory left to open tokenizer '%s'", path);
    free(file);
    if (status != NIB_OK) {
        nib_tokenizer_close(t);
        return status;
    }
    *out = t;
    return NIB_OK;
}

void nib_tokenizer_close(struct nib_tokenizer *t)
{
    if (!t)
        return;
    nib_pretokenizer_close(t->pretokenizer);
    nib_bpe_close(t->bpe);
    free(t->added);
    free(t->token);
    nib_text_free(&t->bytes);
    free(t);
}

int32_t nib_tokenizer_n_ids(const struct nib_tokenizer *t)
{
    return t->n_ids;
}

int32_t nib_tokenizer_find(const struct nib_tokenizer *t, const char *text)
{
    const struct nib_added *a = nib_added_find(t, text, strlen(text));
    return a ? a->id : -1;
}

const char *nib_tokenizer_bytes(const struct nib_tokenizer *t, int32_t id, size_t *n, bool *special)
{
    if (id < 0 || id >= t->n_ids || t->token[id].n_bytes == 0)
        return NULL;
    if (n)
        *n = t->token[id].n_bytes;
    if (special)
        *special = t->token[id].special;
    return t->bytes.data + t->token[id].start;
}

void nib_ids_free(struct nib_ids *ids)
{
    if (ids) {
        free(ids->id);
        ids->id = NULL;
        ids->n = 0;
    }
}

/* Ids so far; `ids.id` has room for `cap`. */
struct encoding {
    const struct nib_tokenizer *t;
    struct nib_ids              ids;
    size_t                      cap;
};

static enum nib_status encoding_reserve(struct encoding *e, size_t n)
{
    if (n <= e->cap - e->ids.n)
        return NIB_OK;
    if (n > SIZE_MAX / 16 || e->cap > SIZE_MAX / 16)
        return NIB_E_MEMORY;
    size_t cap = e->cap + e->cap / 2 + n + 64;
    int32_t *id = realloc(e->ids.id, cap * sizeof *id);
    if (!id)
        return NIB_E_MEMORY;
    e->ids.id = id;
    e->cap = cap;
    return NIB_OK;
}

static enum nib_status encode_piece(void *user, const char *bytes, size_t n)
{
    struct encoding *e = user;
    NIB_TRY(encoding_reserve(e, n));
    int32_t *id = e->ids.id + e->ids.n;
    for (size_t i = 0; i < n; i++)
        id[i] = e->t->byte_id[(unsigned char)bytes[i]];
    NIB_TRY(nib_bpe_apply(e->t->bpe, id, &n));
    e->ids.n += n;
    return NIB_OK;
}

static enum nib_status encode_text(struct encoding *e, const char *text, size_t n_bytes,
                                   const struct nib_range *literal, size_t n_literal, struct nib_error *err)
{
    const struct nib_pretokenizer *p = e->t->pretokenizer;
    size_t done = 0, at = 0;
    const struct nib_added *hit;
    while ((hit = nib_added_next(e->t, text, n_bytes, done, literal, n_literal, &at)) != NULL) {
        NIB_TRY(nib_pretokenizer_split(p, text + done, at - done, encode_piece, e, err));
        NIB_TRY(encoding_reserve(e, 1));
        e->ids.id[e->ids.n++] = hit->id;
        done = at + hit->n_bytes;
        while (n_literal > 0 && literal->end <= done) {
            literal++;
            n_literal--;
        }
    }
    return nib_pretokenizer_split(p, text + done, n_bytes - done, encode_piece, e, err);
}

static enum nib_status check_ranges(const struct nib_range *literal, size_t n_literal, size_t n_bytes,
                                    struct nib_error *err)
{
    size_t from = 0;
    for (size_t i = 0; i < n_literal; i++) {
        if (literal[i].start < from || literal[i].end < literal[i].start || literal[i].end > n_bytes)
            return nib_error_set(err, NIB_E_ARGUMENT,
                                 "literal range %zu is [%zu, %zu), wanted a range in [%zu, %zu] after the one before",
                                 i, literal[i].start, literal[i].end, from, n_bytes);
        from = literal[i].end;
    }
    return NIB_OK;
}

enum nib_status nib_tokenizer_encode(const struct nib_tokenizer *t, const char *text, size_t n_bytes,
                                     const struct nib_range *literal, size_t n_literal, struct nib_ids *out,
                                     struct nib_error *err)
{
    *out = (struct nib_ids){NULL, 0};
    if (!literal)
        n_literal = 0;
    NIB_TRY(check_ranges(literal, n_literal, n_bytes, err));
    struct encoding e = {.t = t};
    enum nib_status status = encode_text(&e, text, n_bytes, literal, n_literal, err);
    if (status != NIB_OK) {
        nib_ids_free(&e.ids);
        if (status == NIB_E_MEMORY)
            (void)nib_error_set(err, status, "no memory left to tokenize %zu bytes", n_bytes);
        return status;
    }
    *out = e.ids;
    return NIB_OK;
}

enum nib_status nib_tokenizer_decode(const struct nib_tokenizer *t, const int32_t *id, size_t n, bool skip_special,
                                     struct nib_text *out, struct nib_error *err)
{
    *out = (struct nib_text){NULL, 0};
    struct nib_text text = {NULL, 0};
    struct nib_utf8_stream stream;
    nib_utf8_stream_init(&stream);
    enum nib_status status = NIB_OK;
    for (size_t i = 0; i < n && status == NIB_OK; i++) {
        size_t n_bytes;
        bool special;
        const char *bytes = nib_tokenizer_bytes(t, id[i], &n_bytes, &special);
        if (!bytes)
            status = nib_error_set(err, NIB_E_ARGUMENT, "id %zu of %zu is %ld, wanted one that has a token in [0, %ld)",
                                   i, n, (long)id[i], (long)t->n_ids);
        else if (!special || !skip_special)
            status = nib_utf8_stream_push(&stream, bytes, n_bytes, &text);
    }
    if (status == NIB_OK)
        status = nib_utf8_stream_end(&stream, &text);
    if (status != NIB_OK) {
        nib_text_free(&text);
        if (status == NIB_E_MEMORY)
            (void)nib_error_set(err, status, "no memory left for the text of %zu tokens", n);
        return status;
    }
    *out = text;
    return NIB_OK;
}
