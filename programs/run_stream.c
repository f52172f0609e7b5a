/* Tokens to characters, and the change from reasoning to answer. */
#include "run_stream.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DIM   "\033[2m"
#define PLAIN "\033[0m"

static void print_bytes(struct stream *s, const char *bytes, size_t n)
{
    if (!s->print || n == 0)
        return;
    (void)fwrite(bytes, 1, n, stdout);
    s->last = bytes[n - 1];
}

void stream_open(struct stream *s, const struct nib_tokenizer *t, int32_t eos_id, bool thinking, bool print)
{
    *s = (struct stream){
        .tokenizer = t,
        .eos_id = eos_id,
        .think_end_id = nib_tokenizer_find(t, "</think>"),
        .thinking = thinking,
        .print = print,
        .terminal = print && isatty(1) == 1,
    };
    nib_utf8_stream_init(&s->utf8);
    if (s->terminal && thinking)
        (void)fputs(DIM, stdout);
}

static struct nib_text *part(struct stream *s)
{
    return s->thinking ? &s->reasoning : &s->answer;
}

static void print_from(struct stream *s, size_t start)
{
    const struct nib_text *t = part(s);

    if (t->n > start)
        print_bytes(s, t->data + start, t->n - start);
}

/* What is left of an unfinished character belongs to the part that it began in. */
static bool flush_part(struct stream *s)
{
    size_t start = part(s)->n;

    if (nib_utf8_stream_end(&s->utf8, part(s)) != NIB_OK)
        return false;
    print_from(s, start);
    return true;
}

static bool end_reasoning(struct stream *s)
{
    if (!flush_part(s))
        return false;
    if (s->terminal)
        (void)fputs(PLAIN "\n\n", stdout);
    else
        print_bytes(s, "</think>", strlen("</think>"));
    nib_utf8_stream_init(&s->utf8);
    s->thinking = false;
    return true;
}

bool stream_token(struct stream *s, int32_t token)
{
    bool   special = false;
    size_t n = 0;

    if (token == s->eos_id)
        return true;
    if (s->thinking && token == s->think_end_id) {
        if (!end_reasoning(s))
            return false;
    } else {
        const char *bytes = nib_tokenizer_bytes(s->tokenizer, token, &n, &special);
        size_t      start = part(s)->n;
        /* The output layer may have more rows than the tokenizer has tokens. */
        if (!bytes || special)
            return true;
        if (nib_utf8_stream_push(&s->utf8, bytes, n, part(s)) != NIB_OK)
            return false;
        print_from(s, start);
    }
    return !s->print || fflush(stdout) == 0;
}

bool stream_end(struct stream *s)
{
    bool ok = flush_part(s);

    if (s->terminal && s->thinking)
        (void)fputs(PLAIN, stdout);
    if (s->print && s->last != '\n')
        (void)fputc('\n', stdout);
    return ok && (!s->print || fflush(stdout) == 0);
}

void stream_close(struct stream *s)
{
    nib_text_free(&s->answer);
    nib_text_free(&s->reasoning);
}
