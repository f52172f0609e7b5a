/* Tokens to characters to a reader: reasoning told apart from the answer, calls written out for people. */
#include "run_stream.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "output.h"

#define DIM   "\033[2m"
#define BOLD  "\033[1m"
#define PLAIN "\033[0m"

static const char replacement[] = "\xef\xbf\xbd";

static void style(const struct stream *s, const char *code)
{
    if (s->colour)
        (void)fputs(code, stdout);
}

/* Bytes of the control character that begins at c: those of ASCII but line end and tab, and U+0080 to U+009F. */
static size_t control_bytes(const unsigned char *c, size_t n)
{
    if ((c[0] < 0x20 && c[0] != '\n' && c[0] != '\t') || c[0] == 0x7f)
        return 1;
    return n > 1 && c[0] == 0xc2 && c[1] < 0xa0 ? 2 : 0;
}

/* A terminal would obey control characters, so it gets none from a model. */
static void print_for_terminal(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n;) {
        const size_t control = control_bytes((const unsigned char *)bytes + i, n - i);
        if (control)
            (void)fputs(replacement, stdout);
        else
            (void)fputc(bytes[i], stdout);
        i += control ? control : 1;
    }
}

static void print_bytes(struct stream *s, const char *bytes, size_t n)
{
    if (!s->options.print || n == 0)
        return;
    if (s->terminal)
        print_for_terminal(bytes, n);
    else
        (void)fwrite(bytes, 1, n, stdout);
    s->last = bytes[n - 1];
}

static void print_string(struct stream *s, const char *text)
{
    print_bytes(s, text, strlen(text));
}

/* ---- Reasoning ---- */

static void begin_reasoning(struct stream *s)
{
    s->reasoning = true;
    if (!s->options.print)
        return;
    style(s, DIM);
    /* The prompt's own <think> is not repeated where only a program reads. */
    if (!s->colour && (s->terminal || !s->options.thinking))
        print_string(s, "<think>");
}

static void end_reasoning(struct stream *s)
{
    s->reasoning = false;
    if (!s->options.print)
        return;
    style(s, PLAIN);
    if (!s->colour)
        print_string(s, "</think>");
    if (s->terminal)
        print_string(s, "\n\n");
}

/* ---- Calls ---- */

static bool append(struct nib_text *t, const char *bytes, size_t n)
{
    char *larger = realloc(t->data, t->n + n + 1);

    if (!larger)
        return false;
    memcpy(larger + t->n, bytes, n);
    t->data = larger;
    t->n += n;
    t->data[t->n] = '\0';
    return true;
}

static void print_argument(struct stream *s, const char *key, const json_t *value)
{
    char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));

    print_string(s, "  ");
    print_string(s, key);
    print_string(s, ": ");
    print_string(s, shown ? shown : "");
    print_string(s, "\n");
    free(shown);
}

static void print_call(struct stream *s)
{
    const char *key;
    json_t     *value, *arguments;

    if (!s->options.print)
        return;
    arguments = json_loadb(s->arguments.data ? s->arguments.data : "", s->arguments.n, 0, NULL);
    if (s->last && s->last != '\n')
        print_string(s, "\n");
    style(s, BOLD);
    print_string(s, "call ");
    print_bytes(s, s->name.data, s->name.n);
    style(s, PLAIN);
    print_string(s, "\n");
    if (json_is_object(arguments)) {
        json_object_foreach(arguments, key, value)
            print_argument(s, key, value);
    } else {
        print_bytes(s, s->arguments.data, s->arguments.n); /* numbers beyond what is read here */
        print_string(s, "\n");
    }
    json_decref(arguments);
}

/* ---- Events ---- */

/* What opens an answer without being seen. */
static size_t n_line_ends(const struct stream *s, const struct nib_chat_event *e)
{
    size_t n = 0;

    while (s->terminal && !s->said && n < e->n && e->text[n] == '\n')
        n++;
    return n;
}

static void on_event(void *user, const struct nib_chat_event *e)
{
    struct stream *s = user;

    if (e->kind == NIB_CHAT_REASONING && !s->reasoning)
        begin_reasoning(s);
    else if (e->kind != NIB_CHAT_REASONING && s->reasoning)
        end_reasoning(s);
    switch (e->kind) {
    case NIB_CHAT_REASONING:
        print_bytes(s, e->text, e->n);
        break;
    case NIB_CHAT_CONTENT: {
        const size_t skipped = n_line_ends(s, e);
        print_bytes(s, e->text + skipped, e->n - skipped);
        s->said |= e->n > skipped;
        break;
    }
    case NIB_CHAT_CALL_BEGIN:
        s->name.n = 0;
        s->arguments.n = 0;
        s->failed |= !append(&s->name, e->text, e->n);
        break;
    case NIB_CHAT_ARGUMENTS:
        s->failed |= !append(&s->arguments, e->text, e->n);
        break;
    case NIB_CHAT_CALL_END:
        if (!s->failed)
            print_call(s);
        break;
    }
}

/* ---- Tokens ---- */

bool stream_open(struct stream *s, const struct nib_tokenizer *t, int32_t eos_id, const struct stream_options *o)
{
    struct nib_chat_parser_options p;

    *s = (struct stream){.options = *o, .tokenizer = t, .eos_id = eos_id};
    s->terminal = o->print && isatty(1) == 1;
    s->colour = o->print && output_has_colour(1);
    nib_utf8_stream_init(&s->utf8);
    if (o->raw)
        return true;
    nib_chat_parser_options_init(&p);
    p.thinking = o->thinking;
    p.tools = o->tools;
    p.on_event = on_event;
    p.user = s;
    if (nib_chat_parser_open(&p, &s->parser, NULL) != NIB_OK)
        return false;
    if (o->thinking)
        begin_reasoning(s);
    return true;
}

static bool push_raw(struct stream *s, const char *bytes, size_t n)
{
    const size_t start = s->text.n;

    if (nib_utf8_stream_push(&s->utf8, bytes, n, &s->text) != NIB_OK)
        return false;
    if (s->text.n > start)
        print_bytes(s, s->text.data + start, s->text.n - start);
    return true;
}

static bool push_parsed(struct stream *s, const char *bytes, size_t n)
{
    if (nib_chat_parser_push(s->parser, bytes, n, NULL) != NIB_OK || s->failed)
        return false;
    /* The end of reasoning is shown at once, not with the answer's first character. */
    if (s->reasoning && !nib_chat_parser_in_reasoning(s->parser))
        end_reasoning(s);
    return true;
}

bool stream_token(struct stream *s, int32_t token)
{
    bool   special = false;
    size_t n = 0;

    if (token == s->eos_id)
        return true;
    const char *bytes = nib_tokenizer_bytes(s->tokenizer, token, &n, &special);
    /* The output layer may have more rows than the tokenizer has tokens. */
    if (!bytes || special)
        return true;
    if (!(s->parser ? push_parsed(s, bytes, n) : push_raw(s, bytes, n)))
        return false;
    return !s->options.print || fflush(stdout) == 0;
}

bool stream_done(const struct stream *s)
{
    return s->parser && nib_chat_parser_done(s->parser);
}

bool stream_end(struct stream *s, enum nib_chat_end end)
{
    const size_t start = s->text.n;
    bool         ok;

    if (s->parser) {
        ok = nib_chat_parser_end(s->parser, end, NULL) == NIB_OK && !s->failed;
    } else {
        ok = nib_utf8_stream_end(&s->utf8, &s->text) == NIB_OK;
        if (s->text.n > start)
            print_bytes(s, s->text.data + start, s->text.n - start);
    }
    if (s->reasoning)
        style(s, PLAIN);
    if (s->options.print && s->last != '\n')
        (void)fputc('\n', stdout);
    return ok && (!s->options.print || fflush(stdout) == 0);
}

const struct nib_reply *stream_reply(const struct stream *s)
{
    return s->parser ? nib_chat_parser_reply(s->parser) : NULL;
}

const char *stream_content(const struct stream *s, size_t *n)
{
    const struct nib_reply *reply = stream_reply(s);
    const struct nib_text  *t = reply ? &reply->content : &s->text;

    *n = t->n;
    return t->data ? t->data : "";
}

void stream_close(struct stream *s)
{
    nib_chat_parser_close(s->parser);
    nib_text_free(&s->text);
    nib_text_free(&s->name);
    nib_text_free(&s->arguments);
}
