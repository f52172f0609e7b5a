/* A block of tool calls, tag by tag. What stands between tags is ignored; a value ends at its closing tag or, where
 * that is missing, at the next tag that cannot be part of it, and then one line end before that tag is not its own.
 * String values are given out as they arrive, but for an end that may be such a line end or tag. */
#include "text/chat_parse.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/text_buf.h"
#include "text/chat_parse_tag.h"
#include "text/json_tree.h"

static enum nib_status append_quoted(struct nib_text *out, const char *s, size_t n)
{
    NIB_TRY(nib_text_append(out, "\"", 1));
    NIB_TRY(nib_tree_escape(s, n, out));
    return nib_text_append(out, "\"", 1);
}

static void emit_fragment(struct nib_call_block *b)
{
    nib_chat_emit(b->options, NIB_CHAT_ARGUMENTS, b->n_begun - 1, b->fragment.data, b->fragment.n);
    b->fragment.n = 0;
}

/* ---- Values ---- */

/* The member of that key, new or seen before: the last value counts, at the first one's place. */
static enum nib_status find_member(struct nib_call_block *b, const char *key, size_t n)
{
    for (b->current = 0; b->current < b->n_members; b->current++)
        if (b->member[b->current].key.n == n && memcmp(b->member[b->current].key.data, key, n) == 0)
            return NIB_OK;
    if (b->n_members == b->member_capacity) {
        const size_t capacity = b->member_capacity ? 2 * b->member_capacity : 8;
        struct nib_call_member *member = realloc(b->member, capacity * sizeof *member);
        if (!member)
            return NIB_E_MEMORY;
        memset(member + b->member_capacity, 0, (capacity - b->member_capacity) * sizeof *member);
        b->member = member;
        b->member_capacity = capacity;
    }
    b->member[b->n_members].key.n = b->member[b->n_members].value.n = 0;
    NIB_TRY(nib_text_append(&b->member[b->n_members].key, key, n));
    b->n_members++;
    return NIB_OK;
}

/* Fragments repeat a key that came before; JSON readers take the last. */
static enum nib_status begin_value(struct nib_call_block *b, const struct nib_tag *tag)
{
    const bool first = b->n_members == 0;
    NIB_TRY(find_member(b, tag->name, tag->n_name));
    NIB_TRY(nib_text_append_string(&b->fragment, first ? "{" : ", "));
    NIB_TRY(append_quoted(&b->fragment, tag->name, tag->n_name));
    NIB_TRY(nib_text_append_string(&b->fragment, tag->string ? ": \"" : ": "));
    emit_fragment(b);
    b->in = tag->string ? NIB_CALL_STRING : NIB_CALL_JSON;
    b->scan = b->emitted = b->at;
    return NIB_OK;
}

static bool is_json(const char *s, size_t n)
{
    struct nib_arena arena;
    struct nib_tree *tree;
    nib_arena_init(&arena);
    const bool ok = nib_tree_parse(s, n, "value", &arena, &tree, NULL) == NIB_OK;
    nib_arena_deinit(&arena);
    return ok;
}

/* The value is text[at..end). */
static enum nib_status end_value(struct nib_call_block *b, size_t end)
{
    struct nib_text *value = &b->member[b->current].value;
    const char *s = b->text.data + b->at;
    value->n = 0;
    if (b->in == NIB_CALL_STRING) {
        NIB_TRY(append_quoted(value, s, end - b->at));
        NIB_TRY(nib_tree_escape(b->text.data + b->emitted, end - b->emitted, &b->fragment));
        NIB_TRY(nib_text_append(&b->fragment, "\"", 1));
    } else {
        const size_t n = end - b->at;
        NIB_TRY(is_json(s, n) ? nib_text_append(value, s, n) : append_quoted(value, s, n));
        NIB_TRY(nib_text_append(&b->fragment, value->data, value->n));
    }
    emit_fragment(b);
    b->in = NIB_CALL_BETWEEN;
    return NIB_OK;
}

/* Without the line end that belongs to a tag behind `end`. */
static size_t without_line_end(const struct nib_call_block *b, size_t end)
{
    return end > b->at && b->text.data[end - 1] == '\n' ? end - 1 : end;
}

static enum nib_status emit_string(struct nib_call_block *b)
{
    const size_t end = without_line_end(b, b->scan);
    if (b->in != NIB_CALL_STRING || end <= b->emitted)
        return NIB_OK;
    NIB_TRY(nib_tree_escape(b->text.data + b->emitted, end - b->emitted, &b->fragment));
    b->emitted = end;
    emit_fragment(b);
    return NIB_OK;
}

/* ---- Calls ---- */

static enum nib_status begin_call(struct nib_call_block *b, const struct nib_tag *tag)
{
    b->name.n = 0;
    b->n_members = 0;
    NIB_TRY(nib_text_append(&b->name, tag->name, tag->n_name));
    b->open = true;
    nib_chat_emit(b->options, NIB_CHAT_CALL_BEGIN, b->n_begun++, b->name.data, b->name.n);
    return NIB_OK;
}

static enum nib_status keep_call(struct nib_call_block *b)
{
    struct nib_reply *m = b->message;
    struct nib_reply_call *call = realloc(m->call, (size_t)(m->n_calls + 1) * sizeof *call);
    if (!call)
        return NIB_E_MEMORY;
    m->call = call;
    call += m->n_calls++;
    memset(call, 0, sizeof *call);
    NIB_TRY(nib_text_append(&call->name, b->name.data, b->name.n));
    NIB_TRY(nib_text_append(&call->arguments, "{", 1));
    for (size_t i = 0; i < b->n_members; i++) {
        NIB_TRY(nib_text_append_string(&call->arguments, i ? ", " : ""));
        NIB_TRY(append_quoted(&call->arguments, b->member[i].key.data, b->member[i].key.n));
        NIB_TRY(nib_text_append_string(&call->arguments, ": "));
        NIB_TRY(nib_text_append(&call->arguments, b->member[i].value.data, b->member[i].value.n));
    }
    return nib_text_append(&call->arguments, "}", 1);
}

static enum nib_status end_call(struct nib_call_block *b, bool counts)
{
    b->open = false;
    if (counts)
        NIB_TRY(keep_call(b));
    NIB_TRY(nib_text_append_string(&b->fragment, b->n_members > 0 ? "}" : "{}"));
    emit_fragment(b);
    nib_chat_emit(b->options, NIB_CHAT_CALL_END, b->n_begun - 1, NULL, 0);
    return NIB_OK;
}

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && !(s[i] >= '\t' && s[i] <= '\r'))
            return false;
    return true;
}

/* A tag that was read, in front of b->at. Any value has ended. */
static enum nib_status take_tag(struct nib_call_block *b, const struct nib_tag *tag)
{
    switch (tag->kind) {
    case NIB_TAG_INVOKE:
        if (b->open)
            NIB_TRY(end_call(b, true));
        return begin_call(b, tag);
    case NIB_TAG_PARAMETER:
        return b->open ? begin_value(b, tag) : NIB_OK;
    case NIB_TAG_CALLS_END:
        b->closed = true;
        b->blank = is_blank(b->text.data, b->at - tag->n);
        b->text.n = b->at; /* what follows is not part of the block */
        return b->open ? end_call(b, true) : NIB_OK;
    case NIB_TAG_INVOKE_END:
        return b->open ? end_call(b, true) : NIB_OK;
    case NIB_TAG_PARAMETER_END:
    case NIB_TAG_NONE:
    case NIB_TAG_PARTIAL:
        break;
    }
    return NIB_OK;
}

/* Where the next '<' is, or the text's end. */
static size_t next_angle(const struct nib_call_block *b, size_t from)
{
    const char *hit = memchr(b->text.data + from, '<', b->text.n - from);
    return hit ? (size_t)(hit - b->text.data) : b->text.n;
}

/* Read on up to the next tag and take it; false where more text is needed. */
static enum nib_status advance(struct nib_call_block *b, bool *more)
{
    size_t *at = b->in == NIB_CALL_BETWEEN ? &b->at : &b->scan;
    *at = next_angle(b, *at);
    *more = *at < b->text.n;
    if (!*more)
        return emit_string(b);
    const struct nib_tag tag = nib_tag_read(b->text.data + *at, b->text.n - *at);
    if (tag.kind == NIB_TAG_PARTIAL) {
        *more = false;
        return emit_string(b);
    }
    const bool passes = tag.kind == NIB_TAG_NONE || (b->in != NIB_CALL_BETWEEN && tag.kind == NIB_TAG_INVOKE);
    if (passes) {
        ++*at;
        return NIB_OK;
    }
    if (b->in != NIB_CALL_BETWEEN) {
        const size_t end = b->scan;
        NIB_TRY(end_value(b, tag.kind == NIB_TAG_PARAMETER_END ? end : without_line_end(b, end)));
        b->at = end;
    }
    b->at += tag.n;
    return take_tag(b, &tag);
}

enum nib_status nib_call_block_push(struct nib_call_block *b, const char *text, size_t n)
{
    if (b->closed)
        return NIB_OK;
    NIB_TRY(nib_text_append(&b->text, text, n));
    for (bool more = true; more && !b->closed;)
        NIB_TRY(advance(b, &more));
    return NIB_OK;
}

/* Never invent what was not generated: a call that was cut inside a value or tag, or has none, does not count. Where it
 * was announced, its JSON is still closed, so that a client can read it; after a cut by length it stays open. */
enum nib_status nib_call_block_end(struct nib_call_block *b, enum nib_chat_end end)
{
    if (!b->open || end == NIB_CHAT_END_LENGTH)
        return NIB_OK;
    const bool cut = b->in != NIB_CALL_BETWEEN || b->at < b->text.n;
    if (b->in != NIB_CALL_BETWEEN)
        NIB_TRY(end_value(b, without_line_end(b, b->scan)));
    return end_call(b, !cut && b->n_members > 0);
}

void nib_call_block_deinit(struct nib_call_block *b)
{
    for (size_t i = 0; i < b->member_capacity; i++) {
        nib_text_free(&b->member[i].key);
        nib_text_free(&b->member[i].value);
    }
    free(b->member);
    nib_text_free(&b->text);
    nib_text_free(&b->name);
    nib_text_free(&b->fragment);
}
