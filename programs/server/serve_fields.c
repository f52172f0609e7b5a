/* Reading requests. jansson checks the text; what must keep its spelling is cut out of it. */
#include "serve_fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 128 };

bool api_fail(struct api_error *e, const char *param, const char *code, const char *fmt, ...)
{
    va_list ap;

    *e = (struct api_error){.status = 400, .type = "invalid_request_error", .code = code};
    (void)snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(ap, fmt);
    (void)vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return false;
}

char *api_error_text(const struct api_error *e)
{
    /* A message may quote a client's bytes, cut anywhere. */
    json_t *message = json_string(e->message);
    if (!message) {
        char ascii[sizeof e->message];
        size_t n = 0;
        for (const char *c = e->message; *c; c++)
            ascii[n++] = (unsigned char)*c < 0x80 ? *c : '?';
        message = json_stringn(ascii, n);
    }
    json_t *o = json_pack("{s:{s:o, s:s, s:o, s:s}}", "error", "message", message, "type", e->type, "param",
                          e->param[0] ? json_string(e->param) : json_null(), "code", e->code);
    if (e->n_ctx > 0) {
        json_object_set_new(json_object_get(o, "error"), "n_prompt_tokens", json_integer(e->n_prompt));
        json_object_set_new(json_object_get(o, "error"), "n_ctx", json_integer(e->n_ctx));
    }
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

/* ---- The body ---- */

static int hex4(const char *s)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* One pass over the text: depth, and half surrogates. s[n] is a NUL. */
static bool scan(char *s, size_t n, struct api_error *e)
{
    int depth = 0;
    bool quoted = false;

    for (size_t i = 0; i < n; i++) {
        if (!quoted) {
            quoted = s[i] == '"';
            depth += (s[i] == '{' || s[i] == '[') - (s[i] == '}' || s[i] == ']');
            if (depth > DEPTH_MAX)
                return api_fail(e, NULL, "invalid_json", "the body is nested deeper than %d", DEPTH_MAX);
        } else if (s[i] == '"') {
            quoted = false;
        } else if (s[i] == '\\' && i + 1 < n) {
            int c = s[i + 1] == 'u' && i + 5 < n ? hex4(s + i + 2) : -1;
            bool pair = c >= 0xD800 && c < 0xDC00 && i + 11 < n && s[i + 6] == '\\' && s[i + 7] == 'u' &&
                        hex4(s + i + 8) >= 0xDC00 && hex4(s + i + 8) < 0xE000;
            if (c >= 0xD800 && c < 0xE000 && !pair)
                memcpy(s + i + 2, "FFFD", 4);
            i += pair ? 11 : 1;
        }
    }
    return true;
}

bool body_parse(char *text, size_t n, json_t **out, struct api_error *e)
{
    json_error_t error;

    *out = NULL;
    if (n == 0)
        return api_fail(e, NULL, "invalid_json", "the body is empty; wanted a JSON object");
    if (!scan(text, n, e))
        return false;
    /* Whole numbers of any size must pass: schemas hold them. */
    *out = json_loadb(text, n, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    if (!*out)
        return api_fail(e, NULL, "invalid_json", "the body is not JSON: %s at byte %d", error.text, error.position);
    if (json_is_object(*out))
        return true;
    char found[80];
    field_describe(*out, found, sizeof found);
    json_decref(*out);
    *out = NULL;
    return api_fail(e, NULL, "invalid_json", "the body is %s; wanted a JSON object", found);
}

static const char *skip_space(const char *s)
{
    return s + strspn(s, " \t\r\n");
}

static const char *string_end(const char *s)
{
    for (s++; *s != '"'; s++)
        s += *s == '\\';
    return s + 1;
}

static const char *value_end(const char *s)
{
    int depth = 0;
    if (*s == '"')
        return string_end(s);
    for (; *s; s++) {
        if (*s == '"') {
            s = string_end(s) - 1;
            continue;
        }
        if (*s == '{' || *s == '[')
            depth++;
        else if ((*s == '}' || *s == ']') && (depth == 0 || --depth == 0))
            return depth == 0 && (*s == '}' || *s == ']') ? s + 1 : s;
        else if (depth == 0 && (*s == ',' || *s == '}'))
            return s;
    }
    return s;
}

/* jansson finds a key that is spelled with escapes, so it must be found here too. s is at the quote in front. */
static bool is_key(const char *s, const char *end, const char *key, bool *failed)
{
    const size_t n = strlen(key), n_written = (size_t)(end - s);

    if (!memchr(s, '\\', n_written))
        return n_written == n + 2 && memcmp(s + 1, key, n) == 0;
    json_t    *name = json_loadb(s, n_written, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    const bool same = name && json_string_length(name) == n && memcmp(json_string_value(name), key, n) == 0;
    *failed |= !name;
    json_decref(name);
    return same;
}

char *body_member(const char *text, const char *key, bool *failed)
{
    const char *found = NULL, *found_end = NULL;

    for (const char *s = skip_space(skip_space(text) + 1); *s == '"';) {
        const char *name_end = string_end(s);
        const char *value = skip_space(skip_space(name_end) + 1);
        const char *end = *value == '{' || *value == '[' || *value == '"' ? value_end(value)
                                                                        : value + strcspn(value, ",} \t\r\n");
        if (is_key(s, name_end, key, failed)) {
            found = value;
            found_end = end;
        }
        s = skip_space(end);
        s = *s == ',' ? skip_space(s + 1) : s;
    }
    if (!found || strncmp(found, "null", 4) == 0)
        return NULL;
    char *copy = malloc((size_t)(found_end - found) + 1);
    if (!copy) {
        *failed = true;
        return NULL;
    }
    memcpy(copy, found, (size_t)(found_end - found));
    copy[found_end - found] = '\0';
    return copy;
}

/* ---- Fields ---- */

const json_t *field_get(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

void field_describe(const json_t *v, char *out, size_t out_bytes)
{
    if (!v)
        (void)snprintf(out, out_bytes, "nothing");
    else if (json_is_real(v))
        (void)snprintf(out, out_bytes, "%.10g", json_real_value(v));
    else if (json_is_string(v))
        (void)snprintf(out, out_bytes, "the string '%.40s'", json_string_value(v));
    else if (json_is_array(v))
        (void)snprintf(out, out_bytes, "an array of %zu", json_array_size(v));
    else
        (void)snprintf(out, out_bytes, "%s", json_is_object(v)   ? "an object"
                                             : json_is_null(v)   ? "null"
                                             : json_is_true(v)   ? "true"
                                                                 : "false");
}

bool field_wrong(struct api_error *e, const json_t *v, const char *param, const char *name, const char *wanted, ...)
{
    char    found[80], text[256];
    va_list ap;

    va_start(ap, wanted);
    (void)vsnprintf(text, sizeof text, wanted, ap);
    va_end(ap);
    field_describe(v, found, sizeof found);
    return api_fail(e, param, "invalid_value", "%s is %s; wanted %s", name, found, text);
}

bool field_bool(const json_t *o, const char *key, bool *out, struct api_error *e)
{
    const json_t *v = field_get(o, key);
    if (v && !json_is_boolean(v))
        return field_wrong(e, v, key, key, "true or false");
    if (v)
        *out = json_is_true(v);
    return true;
}

static bool number(const json_t *o, const char *key, double low, double high, bool whole, double *out, struct api_error *e)
{
    const char   *kind = whole ? "whole " : "";
    const json_t *v = field_get(o, key);
    if (!v)
        return true;
    double d = json_is_real(v) ? json_real_value(v) : NAN;
    if (d >= low && d <= high && (!whole || floor(d) == d)) {
        *out = d;
        return true;
    }
    if (high > 1e15)
        return field_wrong(e, v, key, key, "a %snumber from %g", kind, low);
    return field_wrong(e, v, key, key, "a %snumber from %g to %g", kind, low, high);
}

bool field_float(const json_t *o, const char *key, double low, double high, float *out, struct api_error *e)
{
    double v = *out;
    if (!number(o, key, low, high, false, &v, e))
        return false;
    *out = (float)v;
    return true;
}

bool field_int(const json_t *o, const char *key, double low, double high, int32_t *out, struct api_error *e)
{
    double v = *out;
    if (!number(o, key, low, high, true, &v, e))
        return false;
    *out = v > INT32_MAX ? INT32_MAX : (int32_t)v;
    return true;
}

bool field_string(const json_t *o, const char *key, const char **out, struct api_error *e)
{
    const json_t *v = field_get(o, key);
    if (v && !json_is_string(v))
        return field_wrong(e, v, key, key, "a string");
    if (v)
        *out = json_string_value(v);
    return true;
}
