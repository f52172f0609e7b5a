/* From a tensor's name, in either spelling, to its row of the weights table, and back. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quantize/quant.h"

/* Longest first where one ends in another. */
static const char *const k_suffixes[] = {".weight_global_scale",
                                         ".input_global_scale",
                                         ".weight_packed",
                                         ".weight_scale_inv",
                                         ".weight_scale_2",
                                         ".weight_scale",
                                         ".input_scale",
                                         ".weight",
                                         ".scale"};

static const char *after(const char *s, const char *prefix)
{
    const size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 ? s + n : NULL;
}

/* "N." of at most nine digits; NULL if there is none. */
static const char *after_number(const char *s, int32_t *out)
{
    size_t  n = strspn(s, "0123456789");
    if (n == 0 || n > 9 || s[n] != '.')
        return NULL;
    *out = (int32_t)strtol(s, NULL, 10);
    return s + n + 1;
}

/* What follows the prefix of a layer or the MTP block, or all of the name. */
static const char *scope_of(const char *name, int32_t n_layers, int32_t *layer)
{
    const char *rest = after(name, "model."), *in_layer;
    int32_t     number;
    const char *body = rest ? rest : name;
    if ((in_layer = after(body, "layers.")) != NULL && (in_layer = after_number(in_layer, &number)) != NULL) {
        *layer = number;
        return number < n_layers ? in_layer : NULL;
    }
    if ((in_layer = after(body, "mtp.0.")) != NULL) {
        *layer = n_layers;
        return in_layer;
    }
    *layer = -1;
    return name;
}

/* Whether [s, s + n) is one of the pattern's alternatives; %d stands for the expert. */
static bool matches(const char *pattern, const char *s, size_t n, int32_t *expert)
{
    while (pattern) {
        const char *p = pattern, *end = strchr(pattern, '|');
        const size_t length = end ? (size_t)(end - p) : strlen(p);
        const char  *digit = memchr(p, '%', length);
        if (!digit && length == n && memcmp(p, s, n) == 0)
            return true;
        if (digit) {
            const size_t head = (size_t)(digit - p), tail = length - head - 2;
            if (n > head + tail && memcmp(p, s, head) == 0 && memcmp(digit + 2, s + n - tail, tail) == 0) {
                const size_t digits = n - head - tail;
                if (digits <= 6 && strspn(s + head, "0123456789") == digits) {
                    *expert = (int32_t)strtol(s + head, NULL, 10);
                    return true;
                }
            }
        }
        pattern = end ? end + 1 : NULL;
    }
    return false;
}

static bool in_scope(const struct nib_field *f, int32_t layer, int32_t n_layers)
{
    switch (f->scope) {
    case NIB_SCOPE_GLOBAL: return layer < 0;
    case NIB_SCOPE_LAYER: return layer >= 0;
    case NIB_SCOPE_MTP: return layer == n_layers;
    }
    return false;
}

bool nib_quant_identify(const char *name, int32_t n_layers, struct nib_quant_id *out)
{
    const size_t n = strlen(name);
    *out = (struct nib_quant_id){.layer = -1, .expert = -1, .base_bytes = n, .suffix = name + n};
    for (size_t i = 0; i < sizeof k_suffixes / sizeof k_suffixes[0]; i++) {
        const size_t m = strlen(k_suffixes[i]);
        if (n > m && strcmp(name + n - m, k_suffixes[i]) == 0) {
            out->base_bytes = n - m;
            out->suffix = name + n - m;
            break;
        }
    }
    const char *rest = scope_of(name, n_layers, &out->layer);
    if (!rest)
        return false;
    for (int32_t i = 0; i < nib_n_fields; i++) {
        const struct nib_field *f = &nib_fields[i];
        if (!in_scope(f, out->layer, n_layers))
            continue;
        const bool   matrix = f->kind == NIB_FIELD_LINEAR || f->kind == NIB_FIELD_EXPERTS;
        const size_t length = matrix ? out->base_bytes - (size_t)(rest - name) : strlen(rest);
        if (matrix && out->suffix[0] &&
            (matches(f->official, rest, length, &out->expert) || matches(f->hf, rest, length, &out->expert))) {
            out->field = f;
            return true;
        }
        if (!matrix && (strcmp(f->official, rest) == 0 || strcmp(f->hf, rest) == 0)) {
            out->base_bytes = n;
            out->suffix = name + n;
            out->field = f;
            return true;
        }
        if (f->hf_stacked && strcmp(f->hf_stacked, rest) == 0 && f->stacked_part == 0) {
            out->expert = -1;
            out->field = f;
            return true;
        }
    }
    return false;
}

bool nib_quant_name(const struct nib_quant_id *id, int32_t n_layers, bool hf, char *out, size_t n)
{
    const char *pattern = hf ? id->field->hf : id->field->official;
    int         used = 0;
    if (id->layer == n_layers)
        used = snprintf(out, n, "%smtp.0.", hf ? "model." : "");
    else if (id->layer >= 0)
        used = snprintf(out, n, "%slayers.%" PRId32 ".", hf ? "model." : "", id->layer);
    for (; *pattern && *pattern != '|' && used >= 0 && (size_t)used + 12 < n; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'd') {
            used += snprintf(out + used, n - (size_t)used, "%" PRId32, id->expert);
            pattern++;
        } else {
            out[used++] = *pattern;
        }
    }
    if (used < 0 || (size_t)used >= n || (*pattern && *pattern != '|'))
        return false;
    out[used] = '\0';
    return true;
}
