/* Files, id lists and their checks. */
#include "input.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* More than any prompt or evaluation file; keeps a mistaken path (a device, a disk image) from filling memory. */
#define FILE_BYTES_MAX ((size_t)1 << 30)

static bool read_stream(const char *what, const char *path, FILE *f, char **out, size_t *n_bytes)
{
    size_t n = 0, room = 1 << 16;
    char  *data = malloc(room + 1);

    while (data) {
        errno = 0;
        n += fread(data + n, 1, room - n, f);
        if (ferror(f)) {
            (void)cli_fail("%s: cannot read '%s': %s", what, path, strerror(errno));
            free(data);
            return false;
        }
        if (n < room)
            break;
        if (room >= FILE_BYTES_MAX) {
            (void)cli_fail("%s: '%s' is larger than %zu bytes", what, path, FILE_BYTES_MAX);
            free(data);
            return false;
        }
        room *= 2;
        char *larger = realloc(data, room + 1);
        if (!larger)
            free(data);
        data = larger;
    }
    if (!data) {
        (void)cli_fail_memory();
        return false;
    }
    data[n] = '\0';
    *out = data;
    *n_bytes = n;
    return true;
}

bool input_read_file(const char *what, const char *path, char **out, size_t *n_bytes)
{
    if (strcmp(path, "-") == 0)
        return read_stream(what, "standard input", stdin, out, n_bytes);

    FILE *f = fopen(path, "rb");
    if (!f) {
        (void)cli_fail("%s: cannot open '%s': %s", what, path, strerror(errno));
        return false;
    }
    bool ok = read_stream(what, path, f, out, n_bytes);
    (void)fclose(f);
    return ok;
}

/* Bytes of the valid character at c, 0 if there is none. Overlong forms, surrogates and values above U+10FFFF are
 * ruled out by the bounds of the second byte. */
static size_t utf8_char_bytes(const unsigned char *c, size_t n)
{
    unsigned low = 0x80, high = 0xbf;
    size_t   need;

    if (c[0] < 0x80)
        return 1;
    if (c[0] < 0xc2 || c[0] > 0xf4)
        return 0;
    need = c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
    if (c[0] == 0xe0)
        low = 0xa0;
    else if (c[0] == 0xed)
        high = 0x9f;
    else if (c[0] == 0xf0)
        low = 0x90;
    else if (c[0] == 0xf4)
        high = 0x8f;
    if (n < need || c[1] < low || c[1] > high)
        return 0;
    for (size_t i = 2; i < need; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    return need;
}

size_t input_utf8_valid_bytes(const char *text, size_t n_bytes)
{
    size_t i = 0;

    while (i < n_bytes) {
        size_t step = utf8_char_bytes((const unsigned char *)text + i, n_bytes - i);
        if (step == 0)
            break;
        i += step;
    }
    return i;
}

/* ---- Ids ---- */

static bool check_id(const char *what, int32_t place, long long id, int32_t vocab)
{
    if (id >= 0 && id < vocab)
        return true;
    (void)cli_fail("%s: id %lld at place %d is outside 0..%d", what, id, place, vocab - 1);
    return false;
}

static bool is_separator(char c)
{
    return c == ',' || isspace((unsigned char)c);
}

static bool is_list(const char *text)
{
    bool digit = false;

    for (; *text; text++) {
        if (isdigit((unsigned char)*text))
            digit = true;
        else if (!is_separator(*text) && *text != '[' && *text != ']' && *text != '-')
            return false;
    }
    return digit;
}

/* text is changed: outer brackets become spaces. */
static bool parse_ids(const char *what, char *text, int32_t vocab, int32_t *ids, int32_t *n)
{
    char *c = text;
    char *end = text + strlen(text);

    while (isspace((unsigned char)*c))
        c++;
    while (end > c && isspace((unsigned char)end[-1]))
        end--;
    if (end - c >= 2 && *c == '[' && end[-1] == ']') {
        *c = ' ';
        end[-1] = ' ';
    }
    *n = 0;
    for (;;) {
        while (is_separator(*c))
            c++;
        if (!*c)
            break;
        char *after;
        errno = 0;
        long long id = strtoll(c, &after, 10);
        if (after == c || (*after && !is_separator(*after))) {
            (void)cli_fail("%s: '%.20s' at place %d is not a token id; wanted whole numbers separated by commas", what,
                           c, *n);
            return false;
        }
        if (errno == ERANGE) {
            (void)cli_fail("%s: id %.*s at place %d is outside 0..%d", what, after - c < 40 ? (int)(after - c) : 40, c, *n,
                           vocab - 1);
            return false;
        }
        if (!check_id(what, *n, id, vocab))
            return false;
        ids[(*n)++] = (int32_t)id;
        c = after;
    }
    if (*n > 0)
        return true;
    (void)cli_fail("%s: holds no token id; wanted at least one", what);
    return false;
}

bool input_text_ids(const char *what, char *text, size_t n_bytes, int32_t vocab, int32_t **out, int32_t *n)
{
    /* Every id but the last takes a digit and a separator. */
    *out = n_bytes / 2 < INT32_MAX ? malloc((n_bytes / 2 + 1) * sizeof **out) : NULL;
    if (!*out) {
        (void)cli_fail_memory();
        return false;
    }
    if (parse_ids(what, text, vocab, *out, n))
        return true;
    free(*out);
    *out = NULL;
    return false;
}

int input_ids(const char *what, const char *list_or_path, int32_t vocab, int32_t **out, int32_t *n)
{
    bool   list = is_list(list_or_path);
    char  *text = NULL;
    size_t n_bytes = strlen(list_or_path);
    int    code = CLI_OK;

    *out = NULL;
    if (list) {
        text = malloc(n_bytes + 1);
        if (!text)
            return cli_fail_memory();
        memcpy(text, list_or_path, n_bytes + 1);
    } else if (!input_read_file(what, list_or_path, &text, &n_bytes)) {
        return CLI_FAILED;
    }
    if (!input_text_ids(what, text, n_bytes, vocab, out, n))
        code = list ? CLI_USAGE : CLI_FAILED;
    free(text);
    return code;
}

bool input_json_ids(const char *what, const json_t *array, int32_t vocab, int32_t **out, int32_t *n)
{
    size_t count = json_array_size(array);

    *out = NULL;
    if (!json_is_array(array) || count == 0 || count > INT32_MAX) {
        (void)cli_fail("%s: wanted an array of at least one token id", what);
        return false;
    }
    int32_t *ids = malloc(count * sizeof *ids);
    if (!ids) {
        (void)cli_fail_memory();
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(array, i);
        if (!json_is_integer(id)) {
            (void)cli_fail("%s: the value at place %zu is not a whole number", what, i);
            free(ids);
            return false;
        }
        if (!check_id(what, (int32_t)i, json_integer_value(id), vocab)) {
            free(ids);
            return false;
        }
        ids[i] = (int32_t)json_integer_value(id);
    }
    *out = ids;
    *n = (int32_t)count;
    return true;
}
