/* Reading JSON into an ordered tree; json_tree_write.c has the way back.
 *
 * Why not jansson, which reads every other JSON file here: prompts are compared byte by byte with those the model was
 * trained on, and jansson turns numbers into long long or double. Integers beyond 64 bits are refused, and 1.0, 1e0 and
 * big integers cannot be told apart or reprinted afterwards. */
#include "text/json_tree.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

struct parser {
    const char             *what;
    const char             *text;
    size_t                  n, at;
    size_t                  n_values;
    struct nib_arena       *arena;
    struct nib_error       *err;
    struct nib_tree_member *stack; /* finished values of the containers that are still open */
    size_t                  n_stack, n_stack_max;
    struct nib_tree_member **order; /* scratch of close_object */
    size_t                  n_order_max;
};

static enum nib_status parse_value(struct parser *p, int depth, struct nib_tree *out);

static enum nib_status fail_at(struct parser *p, size_t at, const char *wanted)
{
    char found[16];
    unsigned char c = at < p->n ? (unsigned char)p->text[at] : 0;
    if (at >= p->n)
        memcpy(found, "the end", sizeof "the end");
    else if (c > 0x20 && c < 0x7F)
        memcpy(found, (char[]){'\'', (char)c, '\'', 0}, 4);
    else
        memcpy(found, (char[]){'0', 'x', "0123456789abcdef"[c >> 4], "0123456789abcdef"[c & 15], 0}, 5);
    return nib_error_set(p->err, NIB_E_FORMAT, "%s: byte %zu: found %s, wanted %s", p->what, at, found, wanted);
}

static enum nib_status fail_memory(struct parser *p)
{
    return nib_error_set(p->err, NIB_E_MEMORY, "%s: no memory for a JSON text of %zu bytes", p->what, p->n);
}

static void skip_space(struct parser *p)
{
    while (p->at < p->n && (p->text[p->at] == ' ' || p->text[p->at] == '\t' || p->text[p->at] == '\n' ||
                            p->text[p->at] == '\r'))
        p->at++;
}

static bool next_is(const struct parser *p, char c)
{
    return p->at < p->n && p->text[p->at] == c;
}

/* The four hex digits at `at`, or -1. */
static int32_t hex4(const struct parser *p, size_t at)
{
    if (p->n - at < 4)
        return -1;
    int32_t v = 0;
    for (size_t i = 0; i < 4; i++) {
        char c = p->text[at + i];
        int32_t digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return -1;
        v = v * 16 + digit;
    }
    return v;
}

/* Decode checked string contents [from, to). Every escape is longer than what it stands for, so `to - from` bytes are
 * room enough. */
static size_t decode_string(const struct parser *p, size_t from, size_t to, char *out)
{
    size_t n = 0;
    while (from < to) {
        if (p->text[from] != '\\') {
            out[n++] = p->text[from++];
            continue;
        }
        static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
        char c = p->text[from + 1];
        from += 2;
        if (c != 'u') {
            out[n++] = values[strchr(letters, c) - letters];
            continue;
        }
        uint32_t u = (uint32_t)hex4(p, from);
        from += 4;
        if (u >= 0xD800 && u < 0xDC00 && to - from >= 6 && p->text[from] == '\\' && p->text[from + 1] == 'u') {
            uint32_t low = (uint32_t)hex4(p, from + 2);
            if (low >= 0xDC00 && low < 0xE000) {
                u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
                from += 6;
            }
        }
        n += nib_utf8_encode(u, out + n); /* a lone surrogate becomes U+FFFD there */
    }
    return n;
}

static enum nib_status parse_string(struct parser *p, const char **text, size_t *n)
{
    if (!next_is(p, '"'))
        return fail_at(p, p->at, "a string");
    size_t from = ++p->at;
    bool escaped = false;
    while (!next_is(p, '"')) {
        if (p->at >= p->n)
            return fail_at(p, p->at, "the end of the string");
        unsigned char c = (unsigned char)p->text[p->at];
        if (c < 0x20)
            return fail_at(p, p->at, "an escape in place of a control character");
        if (c != '\\') {
            size_t length = nib_utf8_decode(p->text + p->at, p->n - p->at, NULL);
            if (!length)
                return fail_at(p, p->at, "UTF-8");
            p->at += length;
            continue;
        }
        escaped = true;
        p->at++;
        if (p->at >= p->n || !p->text[p->at] || !strchr("\"\\/bfnrtu", p->text[p->at]))
            return fail_at(p, p->at, "one of \"\\/bfnrtu after a backslash");
        if (p->text[p->at++] == 'u') {
            if (hex4(p, p->at) < 0)
                return fail_at(p, p->at, "four hexadecimal digits after \\u");
            p->at += 4;
        }
    }
    *text = p->text + from;
    *n = p->at - from;
    p->at++;
    if (escaped) {
        char *decoded = nib_arena_alloc(p->arena, *n);
        if (!decoded)
            return fail_memory(p);
        *n = decode_string(p, from, p->at - 1, decoded);
        *text = decoded;
    }
    return NIB_OK;
}

/* At least one digit. */
static enum nib_status skip_digits(struct parser *p)
{
    size_t from = p->at;
    while (p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9')
        p->at++;
    return p->at > from ? NIB_OK : fail_at(p, p->at, "a digit");
}

static enum nib_status parse_number(struct parser *p, struct nib_tree *out)
{
    size_t from = p->at;
    if (next_is(p, '-'))
        p->at++;
    if (next_is(p, '0'))
        p->at++;
    else
        NIB_TRY(skip_digits(p));
    if (next_is(p, '.')) {
        p->at++;
        NIB_TRY(skip_digits(p));
    }
    if (next_is(p, 'e') || next_is(p, 'E')) {
        p->at++;
        if (next_is(p, '+') || next_is(p, '-'))
            p->at++;
        NIB_TRY(skip_digits(p));
    }
    *out = (struct nib_tree){.type = NIB_TREE_NUMBER, .n = p->at - from, .as.text = p->text + from};
    return NIB_OK;
}

static enum nib_status parse_word(struct parser *p, const char *word, enum nib_tree_type type, struct nib_tree *out)
{
    for (size_t i = 0; word[i]; i++, p->at++)
        if (!next_is(p, word[i]))
            return fail_at(p, p->at, word);
    *out = (struct nib_tree){.type = type};
    return NIB_OK;
}

static enum nib_status push(struct parser *p, const struct nib_tree_member *m)
{
    if (p->n_stack == p->n_stack_max) {
        size_t n_max = p->n_stack_max ? 2 * p->n_stack_max : 64;
        struct nib_tree_member *grown = realloc(p->stack, n_max * sizeof *grown);
        if (!grown)
            return fail_memory(p);
        p->stack = grown;
        p->n_stack_max = n_max;
    }
    p->stack[p->n_stack++] = *m;
    return NIB_OK;
}

/* By key, then by place in the text, which is the order in memory. */
static int compare_members(const void *a, const void *b)
{
    const struct nib_tree_member *x = *(struct nib_tree_member *const *)a;
    const struct nib_tree_member *y = *(struct nib_tree_member *const *)b;
    if (x->n_key != y->n_key)
        return x->n_key < y->n_key ? -1 : 1;
    int c = x->n_key ? memcmp(x->key, y->key, x->n_key) : 0;
    return c ? c : (x > y) - (x < y);
}

static bool same_key(const struct nib_tree_member *x, const struct nib_tree_member *y)
{
    return x->n_key == y->n_key && (!x->n_key || !memcmp(x->key, y->key, x->n_key));
}

/* Merge duplicate keys among the members from `base` on: sorting keeps an object of many keys from costing the square
 * of their number. */
static enum nib_status merge_duplicates(struct parser *p, size_t base)
{
    size_t n = p->n_stack - base;
    if (n < 2)
        return NIB_OK;
    if (n > p->n_order_max) {
        struct nib_tree_member **grown = realloc(p->order, n * sizeof *grown);
        if (!grown)
            return fail_memory(p);
        p->order = grown;
        p->n_order_max = n;
    }
    for (size_t i = 0; i < n; i++)
        p->order[i] = &p->stack[base + i];
    qsort(p->order, n, sizeof *p->order, compare_members);
    for (size_t i = 0; i < n;) {
        struct nib_tree_member *first = p->order[i];
        for (i++; i < n && same_key(p->order[i], first); i++) {
            first->value = p->order[i]->value;
            p->order[i]->key = NULL;
        }
    }
    size_t kept = base;
    for (size_t i = base; i < p->n_stack; i++)
        if (p->stack[i].key)
            p->stack[kept++] = p->stack[i];
    p->n_stack = kept;
    return NIB_OK;
}

/* Move the values from `base` on off the stack into the arena. */
static enum nib_status close_container(struct parser *p, size_t base, enum nib_tree_type type, struct nib_tree *out)
{
    if (type == NIB_TREE_OBJECT)
        NIB_TRY(merge_duplicates(p, base));
    size_t n = p->n_stack - base;
    *out = (struct nib_tree){.type = type, .n = n};
    p->n_stack = base;
    if (!n)
        return NIB_OK;
    if (type == NIB_TREE_OBJECT) {
        out->as.member = nib_arena_array(p->arena, n, sizeof *out->as.member);
        if (!out->as.member)
            return fail_memory(p);
        memcpy(out->as.member, p->stack + base, n * sizeof *out->as.member);
    } else {
        out->as.item = nib_arena_array(p->arena, n, sizeof *out->as.item);
        if (!out->as.item)
            return fail_memory(p);
        for (size_t i = 0; i < n; i++)
            out->as.item[i] = p->stack[base + i].value;
    }
    return NIB_OK;
}

static enum nib_status parse_container(struct parser *p, int depth, enum nib_tree_type type, struct nib_tree *out)
{
    char close = type == NIB_TREE_OBJECT ? '}' : ']';
    size_t base = p->n_stack;
    if (depth >= NIB_TREE_DEPTH_MAX)
        return nib_error_set(p->err, NIB_E_LIMIT, "%s: byte %zu: nested deeper than %d levels", p->what, p->at,
                             NIB_TREE_DEPTH_MAX);
    p->at++;
    skip_space(p);
    while (!next_is(p, close)) {
        if (p->n_stack > base) {
            if (!next_is(p, ','))
                return fail_at(p, p->at, type == NIB_TREE_OBJECT ? "',' or '}'" : "',' or ']'");
            p->at++;
            skip_space(p);
        }
        struct nib_tree_member m = {.key = ""};
        if (type == NIB_TREE_OBJECT) {
            NIB_TRY(parse_string(p, &m.key, &m.n_key));
            skip_space(p);
            if (!next_is(p, ':'))
                return fail_at(p, p->at, "':'");
            p->at++;
            skip_space(p);
        }
        NIB_TRY(parse_value(p, depth + 1, &m.value));
        NIB_TRY(push(p, &m));
        skip_space(p);
    }
    p->at++;
    return close_container(p, base, type, out);
}

static enum nib_status parse_value(struct parser *p, int depth, struct nib_tree *out)
{
    if (++p->n_values > NIB_TREE_VALUES_MAX)
        return nib_error_set(p->err, NIB_E_LIMIT, "%s: byte %zu: more than %zu values", p->what, p->at,
                             NIB_TREE_VALUES_MAX);
    switch (p->at < p->n ? p->text[p->at] : 0) {
    case '{': return parse_container(p, depth, NIB_TREE_OBJECT, out);
    case '[': return parse_container(p, depth, NIB_TREE_ARRAY, out);
    case '"':
        *out = (struct nib_tree){.type = NIB_TREE_STRING};
        return parse_string(p, &out->as.text, &out->n);
    case 'n': return parse_word(p, "null", NIB_TREE_NULL, out);
    case 'f': return parse_word(p, "false", NIB_TREE_FALSE, out);
    case 't': return parse_word(p, "true", NIB_TREE_TRUE, out);
    case '-': case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
        return parse_number(p, out);
    default: return fail_at(p, p->at, "a JSON value");
    }
}

enum nib_status nib_tree_parse(const char *text, size_t n, const char *what, struct nib_arena *arena,
                               struct nib_tree **out, struct nib_error *err)
{
    *out = NULL;
    if (n > NIB_TREE_BYTES_MAX)
        return nib_error_set(err, NIB_E_LIMIT, "%s: %zu bytes of JSON, at most %zu are taken", what, n,
                             NIB_TREE_BYTES_MAX);
    struct parser p = {.what = what, .text = text, .n = n, .arena = arena, .err = err};
    struct nib_tree *root = nib_arena_alloc(arena, sizeof *root);
    enum nib_status status;
    if (!root) {
        status = fail_memory(&p);
    } else {
        skip_space(&p);
        status = parse_value(&p, 0, root);
    }
    if (status == NIB_OK) {
        skip_space(&p);
        if (p.at < n)
            status = fail_at(&p, p.at, "nothing after the value");
    }
    free(p.stack);
    free(p.order);
    if (status == NIB_OK)
        *out = root;
    return status;
}

struct nib_tree *nib_tree_get(const struct nib_tree *v, const char *key)
{
    size_t n = strlen(key);
    if (!v || v->type != NIB_TREE_OBJECT)
        return NULL;
    for (size_t i = 0; i < v->n; i++)
        if (v->as.member[i].n_key == n && !memcmp(v->as.member[i].key, key, n))
            return &v->as.member[i].value;
    return NULL;
}

bool nib_tree_is_text(const struct nib_tree *v, const char *text)
{
    size_t n = strlen(text);
    return v && v->type == NIB_TREE_STRING && v->n == n && !memcmp(v->as.text, text, n);
}

const char *nib_tree_type_name(const struct nib_tree *v)
{
    static const char *const names[] = {"null", "false", "true", "a number", "a string", "an array", "an object"};
    return v ? names[v->type] : "nothing";
}
