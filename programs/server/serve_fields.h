/* A request's JSON: checked as a whole, then read field by field. A reader that returns false has filled the error,
 * which names the field, the value and what was wanted; absent and null fields leave *out alone. */
#ifndef NIB_SERVE_FIELDS_H
#define NIB_SERVE_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* What goes into OpenAI's error object, and the status to send it with. */
struct api_error {
    int         status; /* 0: none */
    const char *type, *code;
    char        param[64]; /* "" for null */
    int64_t     n_prompt, n_ctx; /* of a prompt that is too long; n_ctx 0: not told */
    char        message[600];
};

/* Fill e and return false, so that callers can `return api_fail(...)`. Status 400, invalid_request_error. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
bool api_fail(struct api_error *e, const char *param, const char *code, const char *fmt, ...);

/* The error object as text; free() it. NULL without memory. */
char *api_error_text(const struct api_error *e);

/* A body that is a JSON object. Escapes of half a surrogate pair become U+FFFD, in place. All numbers are reals. */
bool body_parse(char *text, size_t n, json_t **out, struct api_error *e);

/* The text of a member of the body's object as the client wrote it, copied; NULL if absent or null. Number spellings
 * and the order of keys matter to prompts. *failed is set when memory is used up. */
char *body_member(const char *text, const char *key, bool *failed);

bool field_bool(const json_t *o, const char *key, bool *out, struct api_error *e);
bool field_float(const json_t *o, const char *key, double low, double high, float *out, struct api_error *e);
bool field_int(const json_t *o, const char *key, double low, double high, int32_t *out, struct api_error *e); /* clamps to int32 */
bool field_string(const json_t *o, const char *key, const char **out, struct api_error *e);

const json_t *field_get(const json_t *o, const char *key); /* NULL for null too */
void field_describe(const json_t *v, char *out, size_t out_bytes); /* "a string", "7", ... */

/* Fill e with "NAME is VALUE; wanted WANTED" and return false. name: where the value v (NULL: none) stands, as
 * "tools[2].type"; param: the request's field that it belongs to; wanted: a format. */
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
bool field_wrong(struct api_error *e, const json_t *v, const char *param, const char *name, const char *wanted, ...);

#endif
