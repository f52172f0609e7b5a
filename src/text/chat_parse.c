/* Generated text to reasoning, content and tool calls. One machine serves streams and whole texts. It is more tolerant
 * than the reference, which takes only perfect text: models leave tags out, and generation ends anywhere. */
#include "text/chat_parse.h"

#include <stdlib.h>
#include <string.h>

#include "base/text_buf.h"
#include "text/chat_parse_tag.h"
#include "text/marker_tail.h"

#define MARKER(s) {s, sizeof(s) - 1}

enum { OPEN_AFTER_BLANK_LINE, OPEN, THINK_START, THINK_END, N_MARKERS };
static const struct nib_marker markers[N_MARKERS] = {
    [OPEN_AFTER_BLANK_LINE] = MARKER("\n\n" NIB_MARK_CALLS), /* the blank line belongs to the block */
    [OPEN] = MARKER(NIB_MARK_CALLS),
    [THINK_START] = MARKER(NIB_MARK_THINK_START),
    [THINK_END] = MARKER(NIB_MARK_THINK_END),
};
static const struct nib_marker end_marker = MARKER(NIB_MARK_EOS);

struct nib_chat_parser {
    struct nib_chat_parser_options options;
    struct nib_utf8_stream         utf8;
    struct nib_text                raw;     /* whole characters that may still begin the end marker */
    struct nib_text                pending; /* behind that filter: may still begin another marker */
    struct nib_text                lead;    /* white space before anything else of the content */
    enum { REASONING, CONTENT, CALLS } state;
    bool                           saw_eos, has_content, ended;
    size_t                         open_marker; /* CALLS: which one opened the block */
    struct nib_call_block          block;
    struct nib_reply        message;
};

void nib_chat_parser_options_init(struct nib_chat_parser_options *o)
{
    *o = (struct nib_chat_parser_options){.thinking = false};
}

enum nib_status nib_chat_parser_open(const struct nib_chat_parser_options *o, struct nib_chat_parser **out,
                                     struct nib_error *err)
{
    *out = NULL;
    struct nib_chat_parser *p = calloc(1, sizeof *p);
    if (!p)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for a parser of generated text");
    p->options = *o;
    p->state = o->thinking ? REASONING : CONTENT;
    p->block.options = &p->options;
    p->block.message = &p->message;
    nib_utf8_stream_init(&p->utf8);
    *out = p;
    return NIB_OK;
}

void nib_reply_free(struct nib_reply *m)
{
    if (!m)
        return;
    for (int32_t i = 0; i < m->n_calls; i++) {
        nib_text_free(&m->call[i].name);
        nib_text_free(&m->call[i].arguments);
    }
    free(m->call);
    nib_text_free(&m->reasoning);
    nib_text_free(&m->content);
    memset(m, 0, sizeof *m);
}

void nib_chat_parser_close(struct nib_chat_parser *p)
{
    if (!p)
        return;
    nib_text_free(&p->raw);
    nib_text_free(&p->pending);
    nib_text_free(&p->lead);
    nib_call_block_deinit(&p->block);
    nib_reply_free(&p->message);
    free(p);
}

void nib_chat_emit(const struct nib_chat_parser_options *o, enum nib_chat_event_kind kind, int32_t call,
                   const char *text, size_t n)
{
    if (o->on_event && (n > 0 || kind == NIB_CHAT_CALL_END))
        o->on_event(o->user, &(struct nib_chat_event){.kind = kind, .call = call, .text = text, .n = n});
}

/* ---- Reasoning and content ---- */

static size_t n_blank(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (s[i] == ' ' || (s[i] >= '\t' && s[i] <= '\r')))
        i++;
    return i;
}

static enum nib_status put_content(struct nib_chat_parser *p, const char *s, size_t n)
{
    if (n == 0)
        return NIB_OK;
    NIB_TRY(nib_text_append(&p->message.content, s, n));
    nib_chat_emit(&p->options, NIB_CHAT_CONTENT, -1, s, n);
    p->has_content = true;
    return NIB_OK;
}

static enum nib_status flush_lead(struct nib_chat_parser *p)
{
    NIB_TRY(put_content(p, p->lead.data, p->lead.n));
    p->lead.n = 0;
    return NIB_OK;
}

/* Text without markers. White space that opens an answer without reasoning waits: a <think> may follow and undo it. */
static enum nib_status put_text(struct nib_chat_parser *p, const char *s, size_t n)
{
    if (n == 0)
        return NIB_OK;
    if (p->state == REASONING) {
        NIB_TRY(nib_text_append(&p->message.reasoning, s, n));
        nib_chat_emit(&p->options, NIB_CHAT_REASONING, -1, s, n);
        return NIB_OK;
    }
    if (!p->has_content && p->message.reasoning.n == 0) {
        const size_t blank = n_blank(s, n);
        NIB_TRY(nib_text_append(&p->lead, s, blank));
        if (blank == n)
            return NIB_OK;
        NIB_TRY(flush_lead(p));
        return put_content(p, s + blank, n - blank);
    }
    return put_content(p, s, n);
}

static enum nib_status take_marker(struct nib_chat_parser *p, size_t which)
{
    switch (which) {
    case OPEN_AFTER_BLANK_LINE:
    case OPEN:
        NIB_TRY(flush_lead(p));
        p->state = CALLS;
        p->open_marker = which;
        break;
    case THINK_END:
        p->state = CONTENT;
        break;
    case THINK_START:
        if (p->state == CONTENT && !p->has_content && p->message.reasoning.n == 0) {
            p->lead.n = 0;
            p->state = REASONING;
        }
        break;
    default:
        break;
    }
    return NIB_OK;
}

static const struct nib_marker *active_markers(const struct nib_chat_parser *p, size_t *n)
{
    const size_t first = p->options.tools ? 0 : THINK_START;
    *n = N_MARKERS - first;
    return markers + first;
}

/* Whole characters before the end marker. */
static enum nib_status feed(struct nib_chat_parser *p, const char *s, size_t n)
{
    if (p->state == CALLS)
        return nib_call_block_push(&p->block, s, n);
    NIB_TRY(nib_text_append(&p->pending, s, n));
    size_t from = 0, at, which, n_active;
    const struct nib_marker *active = active_markers(p, &n_active);
    while (p->state != CALLS &&
           nib_marker_find(p->pending.data + from, p->pending.n - from, active, n_active, &at, &which)) {
        NIB_TRY(put_text(p, p->pending.data + from, at));
        from += at + active[which].n;
        NIB_TRY(take_marker(p, (size_t)(active - markers) + which));
    }
    if (p->state == CALLS) {
        NIB_TRY(nib_call_block_push(&p->block, p->pending.data + from, p->pending.n - from));
        p->pending.n = 0;
        return NIB_OK;
    }
    const size_t tail = nib_marker_tail(p->pending.data + from, p->pending.n - from, active, n_active);
    NIB_TRY(put_text(p, p->pending.data + from, p->pending.n - from - tail));
    memmove(p->pending.data, p->pending.data + p->pending.n - tail, tail);
    p->pending.n = tail;
    return NIB_OK;
}

/* ---- The end marker ---- */

static enum nib_status filter(struct nib_chat_parser *p)
{
    size_t at, which;
    if (p->raw.n == 0)
        return NIB_OK;
    p->saw_eos = nib_marker_find(p->raw.data, p->raw.n, &end_marker, 1, &at, &which);
    const size_t tail = p->saw_eos ? p->raw.n - at : nib_marker_tail(p->raw.data, p->raw.n, &end_marker, 1);
    NIB_TRY(feed(p, p->raw.data, p->raw.n - tail));
    memmove(p->raw.data, p->raw.data + p->raw.n - tail, tail);
    p->raw.n = p->saw_eos ? 0 : tail;
    return NIB_OK;
}

static enum nib_status memory_error(enum nib_status status, struct nib_error *err)
{
    return status == NIB_OK ? NIB_OK : nib_error_set(err, status, "no memory to parse generated text");
}

enum nib_status nib_chat_parser_push(struct nib_chat_parser *p, const char *bytes, size_t n, struct nib_error *err)
{
    if (p->ended)
        return nib_error_set(err, NIB_E_STATE, "generated text was pushed after its end");
    if (nib_chat_parser_done(p))
        return NIB_OK;
    NIB_TRY(memory_error(nib_utf8_stream_push(&p->utf8, bytes, n, &p->raw), err));
    return memory_error(filter(p), err);
}

bool nib_chat_parser_done(const struct nib_chat_parser *p)
{
    return p->saw_eos || p->block.closed;
}

bool nib_chat_parser_in_reasoning(const struct nib_chat_parser *p)
{
    return p->state == REASONING;
}

bool nib_chat_parser_in_calls(const struct nib_chat_parser *p)
{
    return p->state == CALLS;
}

/* ---- The end ---- */

/* A marker cut by length is no text. A lone '<' or line end may well be. */
static bool is_cut_open_marker(const struct nib_chat_parser *p)
{
    const struct nib_marker bar = MARKER("<｜");
    size_t at, which;
    return p->options.tools && p->pending.n > 0 && nib_marker_find(p->pending.data, p->pending.n, &bar, 1, &at, &which);
}

/* What the character decoder and the filter still hold. */
static enum nib_status drain(struct nib_chat_parser *p)
{
    if (nib_chat_parser_done(p))
        return NIB_OK;
    NIB_TRY(nib_utf8_stream_end(&p->utf8, &p->raw));
    NIB_TRY(filter(p));
    return p->saw_eos ? NIB_OK : feed(p, p->raw.data, p->raw.n);
}

static enum nib_status flush_text(struct nib_chat_parser *p, enum nib_chat_end end)
{
    if (end == NIB_CHAT_END_STOP || !is_cut_open_marker(p))
        NIB_TRY(put_text(p, p->pending.data, p->pending.n));
    return flush_lead(p);
}

static enum nib_status append_block(const struct nib_chat_parser *p, struct nib_text *out)
{
    const struct nib_marker *open = &markers[p->open_marker];
    NIB_TRY(nib_text_append(out, open->text, open->n));
    return nib_text_append(out, p->block.text.data, p->block.text.n);
}

enum nib_status nib_chat_parser_block(const struct nib_chat_parser *p, struct nib_text *out)
{
    return p->block.closed ? append_block(p, out) : NIB_E_STATE;
}

/* A block without a call that counts is kept as content, so that nothing is lost; not in a stream that announced
 * one. */
static enum nib_status keep_block_text(struct nib_chat_parser *p)
{
    const size_t from = p->message.content.n;
    NIB_TRY(append_block(p, &p->message.content));
    if (p->block.n_begun == 0)
        nib_chat_emit(&p->options, NIB_CHAT_CONTENT, -1, p->message.content.data + from, p->message.content.n - from);
    return NIB_OK;
}

static enum nib_status finish(struct nib_chat_parser *p, enum nib_chat_end end)
{
    struct nib_reply *m = &p->message;
    NIB_TRY(drain(p));
    if (nib_chat_parser_done(p))
        end = NIB_CHAT_END_STOP;
    if (p->state != CALLS) {
        NIB_TRY(flush_text(p, end));
    } else {
        NIB_TRY(nib_call_block_end(&p->block, end));
        if (m->n_calls == 0 && end == NIB_CHAT_END_STOP && !p->block.blank)
            NIB_TRY(keep_block_text(p));
    }
    m->finish = end == NIB_CHAT_END_LENGTH ? NIB_CHAT_FINISH_LENGTH
              : m->n_calls > 0             ? NIB_CHAT_FINISH_TOOL_CALLS
                                           : NIB_CHAT_FINISH_STOP;
    NIB_TRY(nib_text_reserve(&m->reasoning, 0));
    return nib_text_reserve(&m->content, 0);
}

enum nib_status nib_chat_parser_end(struct nib_chat_parser *p, enum nib_chat_end end, struct nib_error *err)
{
    if (p->ended)
        return nib_error_set(err, NIB_E_STATE, "the end of generated text was told twice");
    p->ended = true;
    return memory_error(finish(p, end), err);
}

const struct nib_reply *nib_chat_parser_reply(const struct nib_chat_parser *p)
{
    return p->ended ? &p->message : NULL;
}

enum nib_status nib_chat_parse(const struct nib_chat_parser_options *o, const char *text, size_t n,
                               enum nib_chat_end end, struct nib_reply *out, struct nib_error *err)
{
    struct nib_chat_parser *p;
    memset(out, 0, sizeof *out);
    NIB_TRY(nib_chat_parser_open(o, &p, err));
    enum nib_status status = nib_chat_parser_push(p, text, n, err);
    if (status == NIB_OK)
        status = nib_chat_parser_end(p, end, err);
    if (status == NIB_OK) {
        *out = p->message;
        memset(&p->message, 0, sizeof p->message);
    }
    nib_chat_parser_close(p);
    return status;
}
