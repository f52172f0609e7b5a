/* Generated text behind a letter of options and one that tells how to cut it. Pieces must give what the whole gives,
 * and the events must add up to the reply. */
#include <stdlib.h>
#include <string.h>

#include "base/text_buf.h"
#include "fuzz.h"

struct heard {
    struct nib_text reasoning, content, arguments;
    int32_t         n_calls;
};

static void on_event(void *user, const struct nib_chat_event *e)
{
    struct heard *h = user;
    struct nib_text *to = e->kind == NIB_CHAT_REASONING ? &h->reasoning : e->kind == NIB_CHAT_CONTENT ? &h->content : &h->arguments;
    if (e->kind == NIB_CHAT_CALL_BEGIN)
        FUZZ_CHECK(e->call == h->n_calls++);
    else if (e->kind != NIB_CHAT_CALL_END)
        FUZZ_CHECK(nib_text_append(to, e->text, e->n) == NIB_OK);
}

static int same(const struct nib_text *a, const struct nib_text *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->data, b->data, a->n) == 0);
}

static void check_same(const struct nib_reply *a, const struct nib_reply *b)
{
    FUZZ_CHECK(same(&a->reasoning, &b->reasoning) && same(&a->content, &b->content));
    FUZZ_CHECK(a->n_calls == b->n_calls && a->finish == b->finish);
    for (int32_t i = 0; i < a->n_calls; i++)
        FUZZ_CHECK(same(&a->call[i].name, &b->call[i].name) && same(&a->call[i].arguments, &b->call[i].arguments));
}

/* Where the first stop string begins, looked for naively. */
static void check_stops(const char *text, size_t n)
{
    static const char *const stop[] = {"\n\n", "<", "</", "ab", "", "aab"};
    enum { N_STOP = 6 };
    size_t which = 0, found = n, found_which = N_STOP;
    for (size_t i = 0; i < n && found == n; i++) {
        for (size_t k = 0; k < N_STOP && found == n; k++) {
            const size_t length = strlen(stop[k]);
            if (length > 0 && length <= n - i && memcmp(text + i, stop[k], length) == 0) {
                found = i;
                found_which = k;
            }
        }
    }
    FUZZ_CHECK(nib_stop_find(text, n, stop, N_STOP, &which) == found && which == found_which);
    FUZZ_CHECK(nib_stop_tail(text, n, stop, N_STOP) <= 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct nib_chat_parser_options o;
    struct nib_error err = {0};
    struct nib_reply whole = {0};
    struct heard h = {0};
    struct nib_chat_parser *p = NULL;
    if (n < 2)
        return 0;
    nib_chat_parser_options_init(&o);
    o.thinking = data[0] & 1;
    o.tools = data[0] & 2;
    const enum nib_chat_end end = data[0] & 4 ? NIB_CHAT_END_LENGTH : NIB_CHAT_END_STOP;
    const size_t step = data[1] % 16 + 1u;
    const char *text = (const char *)data + 2;
    n -= 2;
    FUZZ_CHECK(nib_chat_parse(&o, text, n, end, &whole, &err) == NIB_OK);
    o.on_event = on_event;
    o.user = &h;
    FUZZ_CHECK(nib_chat_parser_open(&o, &p, &err) == NIB_OK);
    for (size_t i = 0; i < n; i += step)
        FUZZ_CHECK(nib_chat_parser_push(p, text + i, n - i < step ? n - i : step, &err) == NIB_OK);
    FUZZ_CHECK(nib_chat_parser_end(p, end, &err) == NIB_OK);
    check_same(&whole, nib_chat_parser_reply(p));
    /* Where calls that were announced turn out void, the reply may keep their text as content. */
    FUZZ_CHECK(same(&h.reasoning, &whole.reasoning) && h.n_calls >= whole.n_calls && h.content.n <= whole.content.n);
    FUZZ_CHECK(h.n_calls > whole.n_calls || h.content.n == whole.content.n);
    FUZZ_CHECK(h.content.n == 0 || memcmp(h.content.data, whole.content.data, h.content.n) == 0);
    check_stops(text, n);
    nib_chat_parser_close(p);
    nib_reply_free(&whole);
    nib_text_free(&h.reasoning);
    nib_text_free(&h.content);
    nib_text_free(&h.arguments);
    return 0;
}
