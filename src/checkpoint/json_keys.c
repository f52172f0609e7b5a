/* Reading keys of a JSON object with checks; see the header. */
#include "checkpoint/json_keys.h"

#include <math.h>
#include <string.h>

#include "checkpoint/json_file.h"

struct nib_keys nib_keys_enter(const struct nib_keys *r, const json_t *object, const char *where)
{
    struct nib_keys sub = *r;
    sub.object = object;
    sub.where = where;
    return sub;
}

const json_t *nib_keys_find(struct nib_keys *r, const char *a, const char *b, const char **name)
{
    const json_t *va = json_object_get(r->object, a);
    const json_t *vb = b ? json_object_get(r->object, b) : NULL;
    if (json_is_null(va))
        va = NULL;
    if (json_is_null(vb))
        vb = NULL;
    *name = !va && vb ? b : a;
    if (r->status == NIB_OK && va && vb && !json_equal(va, vb)) {
        r->status = nib_error_set(r->err, NIB_E_FORMAT, "%s: %s%s and %s%s are two names of one value, but differ",
                                  r->what, r->where, a, r->where, b);
    }
    return va ? va : vb;
}

void nib_keys_missing(struct nib_keys *r, const char *a, const char *b)
{
    r->status = nib_error_set(r->err, NIB_E_FORMAT, "%s: %s%s%s%s%s is missing", r->what, r->where, a, b ? " (or " : "",
                              b ? b : "", b ? ")" : "");
}

void nib_keys_int(struct nib_keys *r, const char *a, const char *b, int32_t min, int32_t max, int32_t fallback,
                  int32_t *out)
{
    const char *name;
    const json_t *v = nib_keys_find(r, a, b, &name);
    if (r->status != NIB_OK)
        return;
    if (!v) {
        if (fallback == NIB_NEEDED_INT)
            nib_keys_missing(r, a, b);
        *out = fallback;
    } else if (!json_is_integer(v)) {
        r->status = nib_error_set(r->err, NIB_E_FORMAT, "%s: %s%s is %s, wanted an integer from %d to %d", r->what,
                                  r->where, name, nib_json_type_name(v), min, max);
    } else if (json_integer_value(v) < min || json_integer_value(v) > max) {
        r->status = nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: %s%s is %lld, wanted an integer from %d to %d",
                                  r->what, r->where, name, (long long)json_integer_value(v), min, max);
    } else {
        *out = (int32_t)json_integer_value(v);
    }
}

void nib_keys_float(struct nib_keys *r, const char *a, const char *b, double min, double max, double fallback,
                    float *out)
{
    const char *name;
    const json_t *v = nib_keys_find(r, a, b, &name);
    if (r->status != NIB_OK)
        return;
    if (!v) {
        if (isnan(fallback))
            nib_keys_missing(r, a, b);
        *out = (float)fallback;
    } else if (!json_is_number(v)) {
        r->status = nib_error_set(r->err, NIB_E_FORMAT, "%s: %s%s is %s, wanted a number from %g to %g", r->what,
                                  r->where, name, nib_json_type_name(v), min, max);
    } else if (!(json_number_value(v) >= min && json_number_value(v) <= max)) {
        r->status = nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: %s%s is %g, wanted a number from %g to %g", r->what,
                                  r->where, name, json_number_value(v), min, max);
    } else {
        *out = (float)json_number_value(v);
    }
}

void nib_keys_only_string(struct nib_keys *r, const char *a, const char *b, const char *wanted)
{
    const char *name;
    const json_t *v = nib_keys_find(r, a, b, &name);
    if (r->status != NIB_OK || !v)
        return;
    if (!json_is_string(v)) {
        r->status = nib_error_set(r->err, NIB_E_FORMAT, "%s: %s%s is %s, wanted \"%s\"", r->what, r->where, name,
                                  nib_json_type_name(v), wanted);
    } else if (strcmp(json_string_value(v), wanted) != 0) {
        r->status = nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: %s%s is \"%.200s\", wanted \"%s\"", r->what, r->where,
                                  name, json_string_value(v), wanted);
    }
}

void nib_keys_only_bool(struct nib_keys *r, const char *key, bool wanted)
{
    const char *name;
    const json_t *v = nib_keys_find(r, key, NULL, &name);
    if (r->status != NIB_OK || !v)
        return;
    if (!json_is_boolean(v)) {
        r->status = nib_error_set(r->err, NIB_E_FORMAT, "%s: %s%s is %s, wanted %s", r->what, r->where, key,
                                  nib_json_type_name(v), wanted ? "true" : "false");
    } else if (json_is_true(v) != wanted) {
        r->status = nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: %s%s is %s, wanted %s", r->what, r->where, key,
                                  wanted ? "false" : "true", wanted ? "true" : "false");
    }
}

const json_t *nib_keys_object(struct nib_keys *r, const char *key)
{
    const char *name;
    const json_t *v = nib_keys_find(r, key, NULL, &name);
    if (r->status == NIB_OK && v && !json_is_object(v)) {
        r->status = nib_error_set(r->err, NIB_E_FORMAT, "%s: %s%s is %s, wanted an object", r->what, r->where, key,
                                  nib_json_type_name(v));
    }
    return r->status == NIB_OK ? v : NULL;
}

const json_t *nib_keys_list(struct nib_keys *r, const char *key, int32_t n_min)
{
    const char *name;
    const json_t *v = nib_keys_find(r, key, NULL, &name);
    if (r->status != NIB_OK || !v)
        return NULL;
    if (!json_is_array(v)) {
        r->status =
            nib_error_set(r->err, NIB_E_FORMAT, "%s: %s is %s, wanted an array", r->what, key, nib_json_type_name(v));
        return NULL;
    }
    if (json_array_size(v) < (size_t)n_min) {
        r->status = nib_error_set(r->err, NIB_E_FORMAT, "%s: %s has %zu entries, wanted one for each of %d layers",
                                  r->what, key, json_array_size(v), n_min);
        return NULL;
    }
    return v;
}
