/* JSON from the checkpoint folder: one strict reading rule for indexes, headers and configs.
 *
 * Strict means: no duplicate keys (the parser would keep one of them, by luck of order), valid UTF-8, nothing behind
 * the value. */
#ifndef NIB_JSON_FILE_H
#define NIB_JSON_FILE_H

#include <jansson.h>

#include "base/status.h"

/* Parse n bytes; `what` names them in errors. *out is a new reference, NULL on failure. */
enum nib_status nib_json_parse(const char *text, size_t n, const char *what, json_t **out, struct nib_error *err);

/* The same from a file of at most max_bytes; the path names it in errors. */
enum nib_status nib_json_file_read(const char *path, size_t max_bytes, json_t **out, struct nib_error *err);

/* The value as text, owned by the caller (free); NULL without memory. jansson's own json_dumps leaves keys out where
 * memory ends in the middle of one. */
char *nib_json_dump(const json_t *v, size_t flags);

/* "an integer", "a string", ...: for messages about wrong types. */
const char *nib_json_type_name(const json_t *v);

#endif
