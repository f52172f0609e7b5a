/* The parser of generated text against parse.jsonl: whole texts; streams cut at every byte, at pairs of bytes, byte by
 * byte, at random places and at the tokens of `ids`. Deltas joined together must be the message, whatever the cuts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nibble.h"

#define GOLDENS NIB_SOURCE_DIR "/tests/data/goldens/"
#define N_CALLS_MAX 8

struct golden {
    json_t     *line, *expected;
    const char *name, *text;
    size_t      n;
    bool        thinking, tools;
    enum nib_chat_end end;
};

/* What a client of the stream would have put together. */
struct client {
    char   reasoning[4096], content[4096], name[N_CALLS_MAX][256], arguments[N_CALLS_MAX][4096];
    int    n_calls;
    bool   call_ended[N_CALLS_MAX];
    enum nib_chat_event_kind last;
    const struct golden *golden;
};

/* Whole characters only: jansson refuses text that is not UTF-8. */
static void check_characters(const struct golden *g, const struct nib_chat_event *e)
{
    json_t *s = json_stringn(e->text, e->n);
    if (!s)
        fail_msg("%s: a delta splits a character", g->name);
    json_decref(s);
}

static void append(char *to, size_t size, const struct nib_chat_event *e)
{
    const size_t used = strlen(to);
    assert_true(used + e->n < size);
    memcpy(to + used, e->text, e->n);
    to[used + e->n] = '\0';
}

static void on_event(void *user, const struct nib_chat_event *e)
{
    struct client *c = user;
    c->last = e->kind;
    if (e->kind == NIB_CHAT_CALL_END) {
        assert_int_equal(e->call, c->n_calls - 1);
        c->call_ended[e->call] = true;
        return;
    }
    assert_true(e->n > 0);
    check_characters(c->golden, e);
    if (e->kind == NIB_CHAT_REASONING) {
        append(c->reasoning, sizeof c->reasoning, e);
    } else if (e->kind == NIB_CHAT_CONTENT) {
        append(c->content, sizeof c->content, e);
    } else if (e->kind == NIB_CHAT_CALL_BEGIN) {
        assert_int_equal(e->call, c->n_calls);
        assert_true(c->n_calls < N_CALLS_MAX);
        append(c->name[c->n_calls++], sizeof c->name[0], e);
    } else {
        assert_int_equal(e->call, c->n_calls - 1);
        assert_false(c->call_ended[e->call]);
        append(c->arguments[e->call], sizeof c->arguments[0], e);
        size_t slashes = 0;
        while (slashes < e->n && e->text[e->n - 1 - slashes] == '\\')
            slashes++;
        if (slashes % 2)
            fail_msg("%s: a delta splits an escape", c->golden->name);
    }
}

static const char *expected_text(const struct golden *g, const char *key)
{
    return json_string_value(json_object_get(g->expected, key));
}

static const char *finish_name(enum nib_chat_finish f)
{
    return f == NIB_CHAT_FINISH_STOP ? "stop" : f == NIB_CHAT_FINISH_LENGTH ? "length" : "tool_calls";
}

static void check_message(const struct golden *g, const struct nib_reply *m)
{
    json_t *calls = json_object_get(g->expected, "tool_calls");
    const char *content = expected_text(g, "content"), *reasoning = expected_text(g, "reasoning_content");
    if (m->content.n != strlen(content) || strcmp(m->content.data, content) != 0)
        fail_msg("%s: content '%s', wanted '%s'", g->name, m->content.data, content);
    if (m->reasoning.n != strlen(reasoning) || strcmp(m->reasoning.data, reasoning) != 0)
        fail_msg("%s: reasoning '%s', wanted '%s'", g->name, m->reasoning.data, reasoning);
    if (strcmp(finish_name(m->finish), expected_text(g, "finish_reason")) != 0)
        fail_msg("%s: finish_reason %s, wanted %s", g->name, finish_name(m->finish), expected_text(g, "finish_reason"));
    if ((size_t)m->n_calls != json_array_size(calls))
        fail_msg("%s: %d calls, wanted %zu", g->name, (int)m->n_calls, json_array_size(calls));
    for (int32_t i = 0; i < m->n_calls; i++) {
        json_t *call = json_array_get(calls, (size_t)i);
        assert_string_equal(m->call[i].name.data, json_string_value(json_object_get(call, "name")));
        if (strcmp(m->call[i].arguments.data, json_string_value(json_object_get(call, "arguments"))) != 0)
            fail_msg("%s: arguments '%s', wanted '%s'", g->name, m->call[i].arguments.data,
                     json_string_value(json_object_get(call, "arguments")));
    }
}

/* Calls that the end of the text made void after they were announced. */
static bool announces_void_call(const struct golden *g)
{
    static const char *const names[] = {"tool_eos_inside_param_stop", "tool_eos_after_header_stop",
                                        "tool_length_inside_first_call", "tool_length_inside_second_call"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(g->name, names[i]) == 0)
            return true;
    return false;
}

static void check_arguments(const struct golden *g, const char *got, const char *wanted)
{
    if (strcmp(g->name, "tool_duplicate_param") != 0) {
        if (strcmp(got, wanted) != 0)
            fail_msg("%s: streamed arguments '%s', wanted '%s'", g->name, got, wanted);
        return;
    }
    json_t *a = json_loads(got, 0, NULL), *b = json_loads(wanted, 0, NULL);
    assert_true(a && b && json_equal(a, b));
    json_decref(a);
    json_decref(b);
}

static void check_stream(const struct golden *g, const struct client *c)
{
    json_t *calls = json_object_get(g->expected, "tool_calls");
    const int n_calls = (int)json_array_size(calls);
    const bool has_void = announces_void_call(g);
    assert_string_equal(c->reasoning, expected_text(g, "reasoning_content"));
    if (strcmp(c->content, has_void && n_calls == 0 && g->end == NIB_CHAT_END_STOP ? "" : expected_text(g, "content")))
        fail_msg("%s: streamed content '%s'", g->name, c->content);
    assert_int_equal(c->n_calls, n_calls + has_void);
    for (int i = 0; i < n_calls; i++) {
        json_t *call = json_array_get(calls, (size_t)i);
        assert_string_equal(c->name[i], json_string_value(json_object_get(call, "name")));
        check_arguments(g, c->arguments[i], json_string_value(json_object_get(call, "arguments")));
        assert_true(c->call_ended[i]);
    }
    if (!has_void)
        return;
    /* After an end token a client can read what it got; after a cut it sees that the call never ended. */
    json_t *arguments = json_loads(c->arguments[n_calls], 0, NULL);
    assert_int_equal(arguments != NULL, g->end == NIB_CHAT_END_STOP);
    assert_int_equal(c->call_ended[n_calls], g->end == NIB_CHAT_END_STOP);
    json_decref(arguments);
}

struct run {
    struct client           client;
    struct nib_chat_parser *parser;
};

static void run_open(struct run *r, const struct golden *g)
{
    memset(&r->client, 0, sizeof r->client);
    r->client.golden = g;
    const struct nib_chat_parser_options o = {
        .thinking = g->thinking, .tools = g->tools, .on_event = on_event, .user = &r->client};
    assert_int_equal(nib_chat_parser_open(&o, &r->parser, NULL), NIB_OK);
}

static void run_push(struct run *r, const char *s, size_t n)
{
    /* A piece of its own, so that a read past its end is seen by the sanitizer. */
    char *piece = malloc(n > 0 ? n : 1);
    assert_non_null(piece);
    memcpy(piece, s, n);
    assert_int_equal(nib_chat_parser_push(r->parser, piece, n, NULL), NIB_OK);
    free(piece);
}

static void run_close(struct run *r)
{
    const struct golden *g = r->client.golden;
    assert_null(nib_chat_parser_reply(r->parser));
    assert_int_equal(nib_chat_parser_end(r->parser, g->end, NULL), NIB_OK);
    check_message(g, nib_chat_parser_reply(r->parser));
    check_stream(g, &r->client);
    nib_chat_parser_close(r->parser);
}

/* Pieces end at the given ascending places, the last one at the text's end. */
static void run_cut(const struct golden *g, const size_t *cut, size_t n_cuts)
{
    struct run r;
    size_t from = 0;
    run_open(&r, g);
    for (size_t i = 0; i < n_cuts; i++) {
        run_push(&r, g->text + from, cut[i] - from);
        from = cut[i];
    }
    run_push(&r, g->text + from, g->n - from);
    run_close(&r);
}

static void for_each_golden(void (*check)(const struct golden *g))
{
    FILE *f = fopen(GOLDENS "chat/parse.jsonl", "r");
    assert_non_null(f);
    int n_lines = 0;
    for (char line[16384]; fgets(line, sizeof line, f); n_lines++) {
        struct golden g = {.line = json_loads(line, 0, NULL)};
        assert_non_null(g.line);
        g.expected = json_object_get(g.line, "expected");
        g.name = json_string_value(json_object_get(g.line, "name"));
        g.text = json_string_value(json_object_get(g.line, "text"));
        g.n = strlen(g.text);
        g.thinking = !strcmp(json_string_value(json_object_get(g.line, "thinking_mode")), "thinking");
        g.tools = json_is_true(json_object_get(g.line, "tools_enabled"));
        g.end = !strcmp(json_string_value(json_object_get(g.line, "stop")), "stop") ? NIB_CHAT_END_STOP
                                                                                    : NIB_CHAT_END_LENGTH;
        check(&g);
        json_decref(g.line);
    }
    (void)fclose(f);
    assert_int_equal(n_lines, 51);
}

/* ---- Ways to cut ---- */

static void check_whole(const struct golden *g)
{
    struct nib_reply m;
    const struct nib_chat_parser_options o = {.thinking = g->thinking, .tools = g->tools};
    assert_int_equal(nib_chat_parse(&o, g->text, g->n, g->end, &m, NULL), NIB_OK);
    check_message(g, &m);
    nib_reply_free(&m);
    run_cut(g, NULL, 0);
}

static void check_every_byte(const struct golden *g)
{
    struct run r;
    for (size_t cut = 0; cut <= g->n; cut++)
        run_cut(g, &cut, 1);
    run_open(&r, g);
    for (size_t i = 0; i < g->n; i++)
        run_push(&r, g->text + i, 1);
    run_close(&r);
}

static void check_pairs(const struct golden *g)
{
    for (size_t a = 1; a < g->n; a++)
        for (size_t b = a + 1; b < g->n && b < a + 20; b++)
            run_cut(g, (const size_t[]){a, b}, 2);
}

static uint64_t random_state;

static uint64_t random_next(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33;
}

static void check_random(const struct golden *g)
{
    for (int i = 0; i < 60; i++) {
        size_t cut[64], n_cuts = 0;
        const uint64_t longest = 1 + random_next() % 40;
        for (size_t at = 1 + random_next() % longest; at < g->n && n_cuts < 64; at += 1 + random_next() % longest)
            cut[n_cuts++] = at;
        run_cut(g, cut, n_cuts);
    }
}

static struct nib_tokenizer *tokenizer;

static void check_tokens(const struct golden *g)
{
    json_t *ids = json_object_get(g->line, "ids");
    struct run r;
    run_open(&r, g);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        size_t n;
        bool special;
        const char *bytes =
            nib_tokenizer_bytes(tokenizer, (int32_t)json_integer_value(json_array_get(ids, i)), &n, &special);
        assert_non_null(bytes);
        run_push(&r, bytes, n);
    }
    run_close(&r);
}

static void test_whole(void **state)
{
    (void)state;
    for_each_golden(check_whole);
}

static void test_every_byte(void **state)
{
    (void)state;
    for_each_golden(check_every_byte);
}

static void test_pairs(void **state)
{
    (void)state;
    for_each_golden(check_pairs);
}

static void test_random(void **state)
{
    (void)state;
    for (random_state = 1; random_state < 4; random_state++) {
        const uint64_t seed = random_state;
        for_each_golden(check_random);
        random_state = seed;
    }
}

static void test_tokens(void **state)
{
    (void)state;
    assert_int_equal(
        nib_tokenizer_open(GOLDENS "tokenizer/deepseek_v4.tokenizer.json", &tokenizer, NULL), NIB_OK);
    for_each_golden(check_tokens);
    nib_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),  cmocka_unit_test(test_every_byte), cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_random), cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
