/* JSON trees to text, byte for byte as Python's json.dumps(v, ensure_ascii=False) writes them. */
#include "text/json_tree.h"

#include "base/text_buf.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum nib_status nib_tree_escape(const char *s, size_t n, struct nib_text *out)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        NIB_TRY(nib_text_append(out, s + from, i - from));
        from = i + 1;
        const char *known = c ? strchr(escaped, c) : NULL;
        char u[] = {'\\', 'u', '0', '0', (char)('0' + (c >> 4)), "0123456789abcdef"[c & 15]};
        if (known)
            NIB_TRY(nib_text_append(out, (char[]){'\\', letters[known - escaped]}, 2));
        else
            NIB_TRY(nib_text_append(out, u, sizeof u));
    }
    return nib_text_append(out, s + from, n - from);
}

static enum nib_status write_string(const char *s, size_t n, struct nib_text *out)
{
    NIB_TRY(nib_text_append(out, "\"", 1));
    NIB_TRY(nib_tree_escape(s, n, out));
    return nib_text_append(out, "\"", 1);
}

/* Shortest decimal of a finite v > 0: digits without trailing zeros, first digit's power of ten in *exponent. */
static size_t shortest_digits(double v, char digits[20], int *exponent)
{
    for (int n = 1;; n++) {
        char text[40];
        (void)snprintf(text, sizeof text, "%.*e", n - 1, v);
        char *e = strchr(text, 'e');
        if (strtod(text, NULL) != v && n < 17) {
            /* Below a power of two doubles are twice as dense as above, so the nearest n digits may lie outside the
             * interval that reads back as v while the next larger ones lie inside. (A 9 never has to carry here: it
             * would end in 0, and fewer digits would have done.) */
            if (e[-1] == '9')
                continue;
            e[-1]++;
            if (strtod(text, NULL) != v)
                continue;
        }
        *exponent = (int)strtol(e + 1, NULL, 10);
        size_t k = 0;
        for (const char *c = text; c < e; c++)
            if (*c >= '0' && *c <= '9')
                digits[k++] = *c;
        return k;
    }
}

static enum nib_status write_double(double v, bool negative, struct nib_text *out)
{
    char digits[20], text[64];
    size_t n = 0;
    int exponent = 0;
    size_t k = v > 0 ? shortest_digits(v, digits, &exponent) : 1;
    if (v == 0)
        digits[0] = '0';
    if (negative)
        text[n++] = '-';
    if (exponent < -4 || exponent >= 16) {
        text[n++] = digits[0];
        if (k > 1) {
            text[n++] = '.';
            memcpy(text + n, digits + 1, k - 1);
            n += k - 1;
        }
        n += (size_t)snprintf(text + n, sizeof text - n, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return nib_text_append(out, text, n);
    }
    if (exponent < 0) {
        memcpy(text + n, "0.0000", 6);
        n += (size_t)(1 - exponent); /* "0." and the zeros before the first digit */
        memcpy(text + n, digits, k);
        return nib_text_append(out, text, n + k);
    }
    size_t whole = (size_t)exponent + 1;
    for (size_t i = 0; i < whole; i++)
        text[n++] = i < k ? digits[i] : '0';
    text[n++] = '.';
    for (size_t i = whole; i < k; i++)
        text[n++] = digits[i];
    if (k <= whole)
        text[n++] = '0';
    return nib_text_append(out, text, n);
}

static enum nib_status write_number(const struct nib_tree *v, const char *what, struct nib_text *out,
                                    struct nib_error *err)
{
    const char *s = v->as.text;
    bool integer = true;
    for (size_t i = 0; i < v->n && integer; i++)
        integer = s[i] != '.' && s[i] != 'e' && s[i] != 'E';
    if (integer && v->n == 2 && s[0] == '-' && s[1] == '0')
        return nib_text_append(out, "0", 1);
    if (integer)
        return nib_text_append(out, s, v->n);
    char small[64];
    char *copy = v->n < sizeof small ? small : malloc(v->n + 1);
    if (!copy)
        return NIB_E_MEMORY;
    memcpy(copy, s, v->n);
    copy[v->n] = '\0';
    double d = strtod(copy, NULL);
    if (copy != small)
        free(copy);
    d = d < 0 ? -d : d;
    if (!(d < HUGE_VAL))
        return nib_error_set(err, NIB_E_FORMAT, "%s: the number %.*s lies beyond the range of a double", what,
                             v->n < 40 ? (int)v->n : 40, s);
    return write_double(d == 0 ? 0 : d, s[0] == '-', out);
}

static enum nib_status write_value(const struct nib_tree *v, const char *what, struct nib_text *out,
                                   struct nib_error *err)
{
    switch (v->type) {
    case NIB_TREE_NULL: return nib_text_append(out, "null", 4);
    case NIB_TREE_FALSE: return nib_text_append(out, "false", 5);
    case NIB_TREE_TRUE: return nib_text_append(out, "true", 4);
    case NIB_TREE_NUMBER: return write_number(v, what, out, err);
    case NIB_TREE_STRING: return write_string(v->as.text, v->n, out);
    case NIB_TREE_ARRAY:
        NIB_TRY(nib_text_append(out, "[", 1));
        for (size_t i = 0; i < v->n; i++) {
            NIB_TRY(nib_text_append(out, ", ", i ? 2 : 0));
            NIB_TRY(write_value(&v->as.item[i], what, out, err));
        }
        return nib_text_append(out, "]", 1);
    case NIB_TREE_OBJECT:
        NIB_TRY(nib_text_append(out, "{", 1));
        for (size_t i = 0; i < v->n; i++) {
            NIB_TRY(nib_text_append(out, ", ", i ? 2 : 0));
            NIB_TRY(write_string(v->as.member[i].key, v->as.member[i].n_key, out));
            NIB_TRY(nib_text_append(out, ": ", 2));
            NIB_TRY(write_value(&v->as.member[i].value, what, out, err));
        }
        return nib_text_append(out, "}", 1);
    }
    return NIB_OK;
}

/* Numbers pass through printf and strtod, which would take the decimal point of whatever locale the host program set.
 * uselocale changes this thread alone. */
enum nib_status nib_tree_write(const struct nib_tree *v, const char *what, struct nib_text *out, struct nib_error *err)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return nib_error_set(err, NIB_E_MEMORY, "%s: no memory to write JSON", what);
    locale_t before = uselocale(plain);
    enum nib_status status = write_value(v, what, out, err);
    (void)uselocale(before);
    freelocale(plain);
    if (status == NIB_E_MEMORY)
        return nib_error_set(err, status, "%s: no memory to write JSON", what);
    return status;
}
