/* Tags are matched on text, since their borders are not those of tokens. A quoted value may hold anything but a quote
 * or a line end: names are not escaped in this markup. */
#include "text/chat_parse_tag.h"

#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

struct reader {
    const char *s;
    size_t      n, at;
};

static struct nib_tag none(void)
{
    return (struct nib_tag){.kind = NIB_TAG_NONE};
}

/* Where the text ends inside a tag: a tag of this length is too long, or it may go on. */
static struct nib_tag unfinished(const struct reader *r)
{
    return (struct nib_tag){.kind = r->n >= NIB_TAG_BYTES_MAX ? NIB_TAG_NONE : NIB_TAG_PARTIAL};
}

static void skip_space(struct reader *r)
{
    while (r->at < r->n && is_space(r->s[r->at]))
        r->at++;
}

static struct nib_tag read_end_tag(struct reader *r, enum nib_tag_kind kind)
{
    skip_space(r);
    if (r->at == r->n)
        return unfinished(r);
    return r->s[r->at] == '>' ? (struct nib_tag){.kind = kind, .n = r->at + 1} : none();
}

/* One attribute, key="value". */
struct attribute {
    const char *key, *value;
    size_t      n_key, n_value;
};

static enum nib_tag_kind read_attribute(struct reader *r, struct attribute *a)
{
    const size_t key = r->at;
    while (r->at < r->n && r->s[r->at] >= 'a' && r->s[r->at] <= 'z')
        r->at++;
    a->key = r->s + key;
    a->n_key = r->at - key;
    if (r->at == r->n)
        return NIB_TAG_PARTIAL;
    if (a->n_key == 0 || r->s[r->at] != '=')
        return NIB_TAG_NONE;
    r->at++;
    if (r->at == r->n)
        return NIB_TAG_PARTIAL;
    if (r->s[r->at] != '"')
        return NIB_TAG_NONE;
    const size_t value = ++r->at;
    while (r->at < r->n && r->s[r->at] != '"' && r->s[r->at] != '\n')
        r->at++;
    if (r->at == r->n)
        return NIB_TAG_PARTIAL;
    if (r->s[r->at] == '\n')
        return NIB_TAG_NONE;
    a->value = r->s + value;
    a->n_value = r->at++ - value;
    return NIB_TAG_INVOKE;
}

static bool is_text(const char *s, size_t n, const char *text)
{
    return n == strlen(text) && memcmp(s, text, n) == 0;
}

static struct nib_tag read_start_tag(struct reader *r, enum nib_tag_kind kind)
{
    struct nib_tag tag = {.kind = kind};
    for (;;) {
        const size_t before = r->at;
        skip_space(r);
        if (r->at == r->n)
            return unfinished(r);
        if (r->s[r->at] == '>')
            break;
        struct attribute a;
        if (r->at == before)
            return none();
        const enum nib_tag_kind got = read_attribute(r, &a);
        if (got == NIB_TAG_PARTIAL)
            return unfinished(r);
        if (got == NIB_TAG_NONE)
            return none();
        if (is_text(a.key, a.n_key, "name")) {
            tag.name = a.value;
            tag.n_name = a.n_value;
        } else if (is_text(a.key, a.n_key, "string")) {
            tag.string = is_text(a.value, a.n_value, "true");
        }
    }
    if (!tag.name || (kind == NIB_TAG_INVOKE && tag.n_name == 0))
        return none();
    tag.n = r->at + 1;
    return tag;
}

struct nib_tag nib_tag_read(const char *s, size_t n)
{
    static const struct {
        const char       *stem;
        enum nib_tag_kind kind;
    } stems[] = {
        {"<" NIB_MARK_DSML "invoke", NIB_TAG_INVOKE},         {"</" NIB_MARK_DSML "invoke", NIB_TAG_INVOKE_END},
        {"<" NIB_MARK_DSML "parameter", NIB_TAG_PARAMETER},   {"</" NIB_MARK_DSML "parameter", NIB_TAG_PARAMETER_END},
        {"</" NIB_MARK_DSML "tool_calls", NIB_TAG_CALLS_END},
    };
    struct reader r = {s, n < NIB_TAG_BYTES_MAX ? n : NIB_TAG_BYTES_MAX, 0};
    for (size_t i = 0; i < sizeof stems / sizeof stems[0]; i++) {
        const size_t n_stem = strlen(stems[i].stem);
        if (memcmp(s, stems[i].stem, n < n_stem ? n : n_stem) != 0)
            continue;
        r.at = n_stem;
        if (n < n_stem)
            return (struct nib_tag){.kind = NIB_TAG_PARTIAL};
        const enum nib_tag_kind kind = stems[i].kind;
        return kind == NIB_TAG_INVOKE || kind == NIB_TAG_PARAMETER ? read_start_tag(&r, kind) : read_end_tag(&r, kind);
    }
    return none();
}
