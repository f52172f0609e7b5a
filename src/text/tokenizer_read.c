/* tokenizer.json, format version 1.0: a byte-level BPE model. What would change ids or text and is not implemented here
 * is refused, never passed over: a wrong tokenizer shows only as a model that talks nonsense. */
#include <stdlib.h>
#include <string.h>

#include "base/text_buf.h"
#include "checkpoint/json_file.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#define FILE_BYTES_MAX ((size_t)256 << 20) /* also keeps offsets of token bytes within 32 bits */

enum { ADDED_BYTES_MAX = 1024 }; /* looking for added tokens takes up to this many steps at a byte */

struct reader {
    struct nib_tokenizer *t;
    const char           *path;
    json_t               *vocab;
    struct nib_error     *err;
};

enum { FOUND_BYTES = 64 };

/* A value in words for an error message; v may be NULL. */
static const char *found(const json_t *v, char text[FOUND_BYTES])
{
    if (!v)
        (void)snprintf(text, FOUND_BYTES, "nothing");
    else if (json_is_string(v))
        (void)snprintf(text, FOUND_BYTES, "'%.50s'", json_string_value(v));
    else if (json_is_integer(v))
        (void)snprintf(text, FOUND_BYTES, "%lld", (long long)json_integer_value(v));
    else if (json_is_boolean(v) || json_is_null(v))
        (void)snprintf(text, FOUND_BYTES, "%s", json_is_null(v) ? "null" : json_is_true(v) ? "true" : "false");
    else
        (void)snprintf(text, FOUND_BYTES, "%s", nib_json_type_name(v));
    return text;
}

static enum nib_status refuse(const struct reader *r, enum nib_status status, const char *where, const json_t *v,
                              const char *wanted)
{
    char text[FOUND_BYTES];
    return nib_error_set(r->err, status, "%s: %s is %s, wanted %s", r->path, where, found(v, text), wanted);
}

static enum nib_status no_memory(const struct reader *r)
{
    return nib_error_set(r->err, NIB_E_MEMORY, "%s: no memory left for the tokenizer", r->path);
}

static bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

/* A feature of the format that is switched off: absent, null, false or an empty string. */
static bool is_off(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || is_text(v, "");
}

static enum nib_status want_off(const struct reader *r, const json_t *object, const char *name, const char *key)
{
    const json_t *v = json_object_get(object, key);
    char where[64];
    (void)snprintf(where, sizeof where, "%s%s", name, key);
    return is_off(v) ? NIB_OK : refuse(r, NIB_E_UNSUPPORTED, where, v, "none (this feature is not implemented)");
}

static enum nib_status want_id(const struct reader *r, const char *where, const char *name, const json_t *v,
                               int32_t *id)
{
    char text[FOUND_BYTES];
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= NIB_TOKEN_IDS_MAX)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: the id of %s '%.100s' is %s, wanted an integer in [0, %d)",
                             r->path, where, name, found(v, text), NIB_TOKEN_IDS_MAX);
    *id = (int32_t)json_integer_value(v);
    return NIB_OK;
}

static enum nib_status read_splitter(const struct reader *r, const json_t *step, size_t index, const char **pattern)
{
    char where[64];
    if (!is_text(json_object_get(step, "type"), "Split")) {
        (void)snprintf(where, sizeof where, "pre_tokenizer.pretokenizers[%zu].type", index);
        return refuse(r, NIB_E_UNSUPPORTED, where, json_object_get(step, "type"),
                      "'Split', and 'ByteLevel' for the last");
    }
    const json_t *regex = json_object_get(json_object_get(step, "pattern"), "Regex");
    if (!json_is_string(regex)) {
        (void)snprintf(where, sizeof where, "pre_tokenizer.pretokenizers[%zu].pattern.Regex", index);
        return refuse(r, NIB_E_UNSUPPORTED, where, regex, "a regular expression");
    }
    if (!is_text(json_object_get(step, "behavior"), "Isolated")) {
        (void)snprintf(where, sizeof where, "pre_tokenizer.pretokenizers[%zu].behavior", index);
        return refuse(r, NIB_E_UNSUPPORTED, where, json_object_get(step, "behavior"), "'Isolated'");
    }
    if (!is_off(json_object_get(step, "invert"))) {
        (void)snprintf(where, sizeof where, "pre_tokenizer.pretokenizers[%zu].invert", index);
        return refuse(r, NIB_E_UNSUPPORTED, where, json_object_get(step, "invert"), "false");
    }
    *pattern = json_string_value(regex);
    return NIB_OK;
}

/* The last step maps bytes to the visible alphabet; its two switches default to true in the format. */
static enum nib_status check_byte_level(const struct reader *r, const json_t *step)
{
    static const char *const key[] = {"add_prefix_space", "use_regex"};
    if (!is_text(json_object_get(step, "type"), "ByteLevel"))
        return refuse(r, NIB_E_UNSUPPORTED, "the type of the last of pre_tokenizer.pretokenizers",
                      json_object_get(step, "type"), "'ByteLevel'");
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(step, key[i]);
        char where[64];
        (void)snprintf(where, sizeof where, "%s of pre_tokenizer's ByteLevel", key[i]);
        if (!json_is_false(v))
            return refuse(r, NIB_E_UNSUPPORTED, where, v, "false");
    }
    return NIB_OK;
}

static enum nib_status read_pre_tokenizer(const struct reader *r, const json_t *root)
{
    const json_t *v = json_object_get(root, "pre_tokenizer");
    if (!is_text(json_object_get(v, "type"), "Sequence"))
        return refuse(r, NIB_E_UNSUPPORTED, "pre_tokenizer.type", json_object_get(v, "type"), "'Sequence'");
    const json_t *steps = json_object_get(v, "pretokenizers");
    size_t n = json_array_size(steps);
    if (n == 0)
        return refuse(r, NIB_E_FORMAT, "pre_tokenizer.pretokenizers", steps, "an array that ends with ByteLevel");
    if (n - 1 > NIB_SPLITTERS_MAX)
        return nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: pre_tokenizer has %zu steps, wanted at most %d", r->path,
                             n, NIB_SPLITTERS_MAX + 1);
    const char *pattern[NIB_SPLITTERS_MAX];
    for (size_t i = 0; i + 1 < n; i++)
        NIB_TRY(read_splitter(r, json_array_get(steps, i), i, &pattern[i]));
    NIB_TRY(check_byte_level(r, json_array_get(steps, n - 1)));

    struct nib_error reason = {NIB_OK, ""};
    enum nib_status status = nib_pretokenizer_open(pattern, n - 1, &r->t->pretokenizer, &reason);
    return status == NIB_OK ? NIB_OK : nib_error_set(r->err, status, "%s: pre_tokenizer: %.900s", r->path, reason.text);
}

static enum nib_status check_rest(const struct reader *r, const json_t *root, const json_t *model)
{
    static const char *const model_off[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                                            "byte_fallback", "ignore_merges"};
    const json_t *version = json_object_get(root, "version");
    if (version && !is_text(version, "1.0"))
        return refuse(r, NIB_E_UNSUPPORTED, "version", version, "'1.0'");
    if (!is_text(json_object_get(model, "type"), "BPE"))
        return refuse(r, NIB_E_UNSUPPORTED, "model.type", json_object_get(model, "type"), "'BPE'");
    for (size_t i = 0; i < sizeof model_off / sizeof model_off[0]; i++)
        NIB_TRY(want_off(r, model, "model.", model_off[i]));
    NIB_TRY(want_off(r, root, "", "truncation"));
    NIB_TRY(want_off(r, root, "", "padding"));

    const json_t *normalizer = json_object_get(root, "normalizer");
    const json_t *normalizers = json_object_get(normalizer, "normalizers");
    if (!is_off(normalizer) && !(is_text(json_object_get(normalizer, "type"), "Sequence") &&
                                 json_is_array(normalizers) && json_array_size(normalizers) == 0))
        return refuse(r, NIB_E_UNSUPPORTED, "normalizer", normalizer, "null or an empty 'Sequence'");

    /* ByteLevel as post-processor moves offsets only; any other adds tokens, which is the chat encoder's work. */
    const json_t *post = json_object_get(root, "post_processor");
    if (!is_off(post) && !is_text(json_object_get(post, "type"), "ByteLevel"))
        return refuse(r, NIB_E_UNSUPPORTED, "post_processor.type", json_object_get(post, "type"),
                      "'ByteLevel' or none");
    const json_t *decoder = json_object_get(json_object_get(root, "decoder"), "type");
    if (!is_text(decoder, "ByteLevel"))
        return refuse(r, NIB_E_UNSUPPORTED, "decoder.type", decoder, "'ByteLevel'");
    return NIB_OK;
}

static enum nib_status token_append(const struct reader *r, int32_t id, const char *bytes, size_t n)
{
    struct nib_token *token = &r->t->token[id];
    token->start = (uint32_t)r->t->bytes.n;
    token->n_bytes = (uint32_t)n;
    return nib_text_append(&r->t->bytes, bytes, n) == NIB_OK ? NIB_OK : no_memory(r);
}

/* Check every id and make the table for the largest. */
static enum nib_status size_table(const struct reader *r, const json_t *added)
{
    struct nib_tokenizer *t = r->t;
    int32_t id = -1, last = -1;
    const char *key;
    json_t *v;
    size_t i;
    json_object_foreach(r->vocab, key, v) {
        NIB_TRY(want_id(r, "vocabulary entry", key, v, &id));
        last = id > last ? id : last;
    }
    json_array_foreach(added, i, v) {
        const char *content = json_string_value(json_object_get(v, "content"));
        if (!content || !*content) {
            char where[64];
            (void)snprintf(where, sizeof where, "added_tokens[%zu].content", i);
            return refuse(r, NIB_E_FORMAT, where, json_object_get(v, "content"), "text");
        }
        NIB_TRY(want_id(r, "added token", content, json_object_get(v, "id"), &id));
        last = id > last ? id : last;
    }
    t->n_ids = last + 1;
    t->token = calloc((size_t)t->n_ids + 1, sizeof *t->token);
    t->added = calloc(json_array_size(added) + 1, sizeof *t->added);
    return t->token && t->added ? NIB_OK : no_memory(r);
}

static enum nib_status read_flag(const struct reader *r, const json_t *token, const char *key, bool *value)
{
    const json_t *v = json_object_get(token, key);
    if (v && !json_is_boolean(v)) {
        char text[FOUND_BYTES];
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: added token '%.100s': %s is %s, wanted true or false", r->path,
                             json_string_value(json_object_get(token, "content")), key, found(v, text));
    }
    *value = json_is_true(v);
    return NIB_OK;
}

static enum nib_status read_added_token(const struct reader *r, const json_t *v)
{
    static const char *const off[] = {"lstrip", "rstrip", "single_word"};
    const char *content = json_string_value(json_object_get(v, "content"));
    int32_t id = (int32_t)json_integer_value(json_object_get(v, "id"));
    struct nib_token *token = &r->t->token[id];
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        bool on = false;
        NIB_TRY(read_flag(r, v, off[i], &on));
        if (on)
            return nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: added token '%.100s': %s is true, wanted false",
                                 r->path, content, off[i]);
    }
    if (strlen(content) > ADDED_BYTES_MAX)
        return nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: added token '%.100s...' has %zu bytes, wanted at most %d",
                             r->path, content, strlen(content), ADDED_BYTES_MAX);
    const json_t *other = json_object_get(r->vocab, content);
    if (other && json_integer_value(other) != id)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: added token '%.100s' has id %ld, wanted %lld, its id in the "
                             "vocabulary", r->path, content, (long)id, (long long)json_integer_value(other));
    if (token->added)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: added token '%.100s' has id %ld, which an earlier one has too",
                             r->path, content, (long)id);
    NIB_TRY(read_flag(r, v, "special", &token->special));
    NIB_TRY(token_append(r, id, content, strlen(content)));
    token->added = true;
    r->t->added[r->t->n_added++].id = id;
    return NIB_OK;
}

/* Write the bytes of a vocabulary entry to *bytes; false if a character stands for none, which goes to *bad. */
static bool entry_bytes(const char *key, struct nib_text *bytes, uint32_t *bad)
{
    size_t left = strlen(key), length;
    bytes->n = 0;
    for (; left > 0; key += length, left -= length) {
        length = nib_utf8_decode(key, left, bad); /* the JSON parser has checked it: never 0 */
        int32_t byte = nib_byte_of_char(*bad);
        if (byte < 0)
            return false;
        bytes->data[bytes->n++] = (char)byte;
    }
    return true;
}

static enum nib_status read_entry(const struct reader *r, const char *key, int32_t id, struct nib_text *scratch)
{
    struct nib_token *token = &r->t->token[id];
    uint32_t bad = 0;
    scratch->n = 0;
    if (nib_text_reserve(scratch, strlen(key)) != NIB_OK)
        return no_memory(r);
    bool is_bytes = entry_bytes(key, scratch, &bad);
    if (is_bytes && scratch->n == 1)
        r->t->byte_id[(unsigned char)scratch->data[0]] = id;

    size_t n = token->n_bytes;
    if (token->added && n == strlen(key) && memcmp(r->t->bytes.data + token->start, key, n) == 0)
        return NIB_OK;
    if (n > 0)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: vocabulary entry '%.100s' has id %ld, which another token has "
                             "too", r->path, key, (long)id);
    if (!is_bytes || scratch->n == 0)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: vocabulary entry '%.100s' (id %ld) has %s (U+%04lX), wanted "
                             "characters of the byte alphabet", r->path, key, (long)id,
                             is_bytes ? "no character" : "a character that stands for no byte", (unsigned long)bad);
    return token_append(r, id, scratch->data, scratch->n);
}

static enum nib_status read_vocab(const struct reader *r)
{
    struct nib_tokenizer *t = r->t;
    for (size_t i = 0; i < 256; i++)
        t->byte_id[i] = -1;
    struct nib_text scratch = {NULL, 0};
    enum nib_status status = NIB_OK;
    const char *key;
    json_t *v;
    json_object_foreach(r->vocab, key, v) {
        status = read_entry(r, key, (int32_t)json_integer_value(v), &scratch);
        if (status != NIB_OK)
            break;
    }
    nib_text_free(&scratch);
    for (size_t i = 0; i < 256 && status == NIB_OK; i++) {
        if (t->byte_id[i] < 0)
            status = nib_error_set(r->err, NIB_E_FORMAT, "%s: byte 0x%02zX has no vocabulary entry, wanted all 256",
                                   r->path, i);
    }
    return status;
}

static enum nib_status index_added(const struct reader *r)
{
    struct nib_tokenizer *t = r->t;
    for (size_t i = 0; i < t->n_added; i++) {
        const struct nib_token *token = &t->token[t->added[i].id];
        t->added[i].bytes = t->bytes.data + token->start;
        t->added[i].n_bytes = token->n_bytes;
    }
    size_t repeated;
    nib_added_index(t, &repeated);
    if (repeated == t->n_added)
        return NIB_OK;
    const struct nib_added *a = &t->added[repeated];
    return nib_error_set(r->err, NIB_E_FORMAT, "%s: added token '%.*s' occurs twice, with ids %ld and %ld", r->path,
                         (int)(a->n_bytes < 100 ? a->n_bytes : 100), a->bytes, (long)a[-1].id, (long)a->id);
}

/* left and right of merges[i], "left right" or ["left", "right"], as two strings in one buffer. */
static enum nib_status merge_texts(const struct reader *r, const json_t *v, size_t i, struct nib_text *buffer,
                                   const char **left, const char **right)
{
    const char *a = json_string_value(v), *b = NULL;
    size_t n_a = 0;
    if (a && (b = strchr(a, ' ')) != NULL) {
        n_a = (size_t)(b - a);
        b++;
    } else if (json_is_array(v) && json_array_size(v) == 2) {
        a = json_string_value(json_array_get(v, 0));
        b = json_string_value(json_array_get(v, 1));
        n_a = a ? strlen(a) : 0;
    }
    if (!a || !b || strchr(b, ' ')) {
        char where[64];
        (void)snprintf(where, sizeof where, "model.merges[%zu]", i);
        return refuse(r, NIB_E_FORMAT, where, v, "two tokens, as 'a b' or ['a', 'b']");
    }
    buffer->n = 0;
    if (nib_text_append(buffer, a, n_a) != NIB_OK || nib_text_append(buffer, "", 1) != NIB_OK ||
        nib_text_append_string(buffer, b) != NIB_OK)
        return no_memory(r);
    *left = buffer->data;
    *right = buffer->data + n_a + 1;
    return NIB_OK;
}

static enum nib_status merge_id(const struct reader *r, const char *text, size_t i, int32_t *id)
{
    const json_t *v = json_object_get(r->vocab, text);
    if (!v)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: model.merges[%zu] needs token '%.100s', which the vocabulary "
                             "lacks", r->path, i, text);
    *id = (int32_t)json_integer_value(v);
    return NIB_OK;
}

static enum nib_status read_merge(const struct reader *r, const json_t *v, size_t i, struct nib_text *buffer,
                                  struct nib_merge *merge)
{
    const char *left = "", *right = "";
    NIB_TRY(merge_texts(r, v, i, buffer, &left, &right));
    NIB_TRY(merge_id(r, left, i, &merge->left));
    NIB_TRY(merge_id(r, right, i, &merge->right));
    size_t n_left = strlen(left);
    memmove(buffer->data + n_left, right, strlen(right) + 1);
    return merge_id(r, buffer->data, i, &merge->result);
}

static enum nib_status read_merges(const struct reader *r, const json_t *model)
{
    const json_t *merges = json_object_get(model, "merges");
    if (!json_is_array(merges))
        return refuse(r, NIB_E_FORMAT, "model.merges", merges, "an array");
    size_t n = json_array_size(merges), repeated = 0;
    struct nib_text buffer = {NULL, 0};
    struct nib_merge *merge = calloc(n + 1, sizeof *merge);
    enum nib_status status = merge ? NIB_OK : no_memory(r);
    for (size_t i = 0; i < n && status == NIB_OK; i++)
        status = read_merge(r, json_array_get(merges, i), i, &buffer, &merge[i]);
    if (status == NIB_OK) {
        status = nib_bpe_open(merge, n, &r->t->bpe, &repeated);
        if (status == NIB_E_FORMAT)
            (void)nib_error_set(r->err, status, "%s: model.merges[%zu] repeats an earlier pair", r->path, repeated);
        else if (status != NIB_OK)
            status = no_memory(r);
    }
    free(merge);
    nib_text_free(&buffer);
    return status;
}

static enum nib_status read_root(struct reader *r, const json_t *root)
{
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    NIB_TRY(check_rest(r, root, model));
    NIB_TRY(read_pre_tokenizer(r, root));
    r->vocab = json_object_get(model, "vocab");
    if (!json_is_object(r->vocab))
        return refuse(r, NIB_E_FORMAT, "model.vocab", r->vocab, "an object");
    if (added && !json_is_array(added))
        return refuse(r, NIB_E_FORMAT, "added_tokens", added, "an array");
    NIB_TRY(size_table(r, added));
    size_t i;
    json_t *v;
    json_array_foreach(added, i, v)
        NIB_TRY(read_added_token(r, v));
    NIB_TRY(read_vocab(r));
    NIB_TRY(index_added(r));
    return read_merges(r, model);
}

enum nib_status nib_tokenizer_read(struct nib_tokenizer *t, const char *path, struct nib_error *err)
{
    struct reader r = {.t = t, .path = path, .err = err};
    json_t *root;
    NIB_TRY(nib_json_file_read(path, FILE_BYTES_MAX, &root, err));
    enum nib_status status = read_root(&r, root);
    json_decref(root);
    return status;
}
