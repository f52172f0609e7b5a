/* Strict JSON reading. The parser is jansson; what is added here is the text of its errors. */
#include "checkpoint/json_file.h"

#include <errno.h>
#include <stdlib.h>

#include "base/file.h"

/* The key that ends at `end`, as written. jansson leaves keys over 20 bytes out of its message. */
static bool key_before(const char *text, size_t end, const char **key, size_t *n)
{
    if (end < 2 || text[end - 1] != '"')
        return false;
    for (size_t i = end - 1; i-- > 0;) {
        size_t slashes = 0;
        if (text[i] != '"')
            continue;
        while (slashes < i && text[i - 1 - slashes] == '\\')
            slashes++;
        if (slashes % 2 == 0) {
            *key = text + i + 1;
            *n = end - 1 - (i + 1);
            return true;
        }
    }
    return false;
}

/* A text given to the parser byte by byte. Where memory ends, the parser leaves characters out of long strings without
 * a word, so whether it did is looked at before each byte: between two of them it may reset errno. */
struct feed {
    const char *text;
    size_t      n, at;
    bool        starved;
};

static size_t feed_byte(void *buffer, size_t size, void *user)
{
    struct feed *f = user;
    (void)size;
    f->starved = f->starved || errno == ENOMEM;
    if (f->starved || f->at == f->n)
        return 0;
    *(char *)buffer = f->text[f->at++];
    return 1;
}

enum nib_status nib_json_parse(const char *text, size_t n, const char *what, json_t **out, struct nib_error *err)
{
    json_error_t e;
    struct feed feed = { .text = text, .n = n };
    errno = 0;
    *out = json_load_callback(feed_byte, &feed, JSON_REJECT_DUPLICATES, &e);
    if (*out && !feed.starved)
        return NIB_OK;
    json_decref(*out);
    *out = NULL;
    enum json_error_code code = json_error_code(&e);
    /* Where jansson runs out of memory it mostly just stops, without a text, or blames the token that it could not
     * keep. */
    if (feed.starved || code == json_error_out_of_memory || e.text[0] == 0 || errno == ENOMEM)
        return nib_error_set(err, NIB_E_MEMORY, "%s: no memory to parse %zu bytes of JSON", what, n);
    const char *key;
    size_t key_bytes;
    if (code == json_error_duplicate_key && e.position > 0 && (size_t)e.position <= n &&
        key_before(text, (size_t)e.position, &key, &key_bytes)) {
        return nib_error_set(err, NIB_E_FORMAT, "%s: the key '%.*s' occurs twice in one object (line %d)", what,
                             (int)(key_bytes < 300 ? key_bytes : 300), key, e.line);
    }
    return nib_error_set(err, NIB_E_FORMAT, "%s: not valid JSON at line %d, column %d: %s", what, e.line, e.column,
                         e.text);
}

enum nib_status nib_json_file_read(const char *path, size_t max_bytes, json_t **out, struct nib_error *err)
{
    char *text;
    size_t n;
    *out = NULL;
    enum nib_status status = nib_file_read(path, max_bytes, &text, &n, err);
    if (status == NIB_OK)
        status = nib_json_parse(text, n, path, out, err);
    free(text);
    return status;
}

char *nib_json_dump(const json_t *v, size_t flags)
{
    /* Into a buffer of the right size nothing has to be allocated while writing. */
    size_t n = json_dumpb(v, NULL, 0, flags);
    char *text = n > 0 ? malloc(n + 1) : NULL;
    if (text && json_dumpb(v, text, n, flags) != n) {
        free(text);
        return NULL;
    }
    if (text)
        text[n] = 0;
    return text;
}

const char *nib_json_type_name(const json_t *v)
{
    if (!v)
        return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction or exponent";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    }
    return "an unknown type";
}
