/* Strict JSON reading. The parser is jansson; what is added here is the text of its errors. */
#include "checkpoint/json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

enum nib_status nib_json_parse(const char *text, size_t n, const char *what, json_t **out, struct nib_error *err)
{
    json_error_t e;
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (*out)
        return NIB_OK;
    enum json_error_code code = json_error_code(&e);
    if (code == json_error_out_of_memory)
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

enum nib_status nib_file_read(const char *path, uint64_t max_bytes, char **out, size_t *n, struct nib_error *err)
{
    *out = NULL;
    *n = 0;
    /* Non-blocking, so that a FIFO under this name is refused rather than waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return nib_error_set(err, NIB_E_IO, "%s: cannot open: %s", path, strerror(errno));
    enum nib_status status = NIB_OK;
    struct stat st;
    char *text = NULL;
    size_t bytes = 0, done = 0;
    if (fstat(fd, &st) != 0) {
        status = nib_error_set(err, NIB_E_IO, "%s: %s", path, strerror(errno));
        goto end;
    }
    if (!S_ISREG(st.st_mode)) {
        status = nib_error_set(err, NIB_E_IO, "%s: not a regular file", path);
        goto end;
    }
    if ((uint64_t)st.st_size > max_bytes) {
        status = nib_error_set(err, NIB_E_FORMAT, "%s: %lld bytes long, at most %llu are read", path,
                               (long long)st.st_size, (unsigned long long)max_bytes);
        goto end;
    }
    bytes = (size_t)st.st_size;
    text = malloc(bytes + 1);
    if (!text) {
        status = nib_error_set(err, NIB_E_MEMORY, "%s: no memory for %zu bytes", path, bytes);
        goto end;
    }
    while (done < bytes) {
        ssize_t got = read(fd, text + done, bytes - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            status = nib_error_set(err, NIB_E_IO, "%s: read %zu of %zu bytes: %s", path, done, bytes,
                                   got < 0 ? strerror(errno) : "the file became shorter");
            goto end;
        }
        done += (size_t)got;
    }
    text[bytes] = 0;
    *out = text;
    *n = bytes;
    text = NULL;
end:
    free(text);
    (void)close(fd);
    return status;
}

enum nib_status nib_json_file_read(const char *path, uint64_t max_bytes, json_t **out, struct nib_error *err)
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
