/* What the goldens leave out of parsing generated text: known faults B60, B62 and B63, bytes that are not UTF-8, tags
 * that are nearly right, length in linear time, and stop strings. */
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
#include "text/chat_parse_tag.h"

#define BLOCK(calls)      "\n\n<｜DSML｜tool_calls>\n" calls "</｜DSML｜tool_calls>"
#define CALL(name, param) "<｜DSML｜invoke name=\"" name "\">\n" param "</｜DSML｜invoke>\n"
#define PARAM(key, string, value) \
    "<｜DSML｜parameter name=\"" key "\" string=\"" string "\">" value "</｜DSML｜parameter>\n"

static const struct nib_chat_parser_options thinking = {.thinking = true, .tools = true}, answering = {.tools = true};

static void parse(const struct nib_chat_parser_options *o, const char *text, enum nib_chat_end end, struct nib_reply *r)
{
    assert_int_equal(nib_chat_parse(o, text, strlen(text), end, r, NULL), NIB_OK);
}

static void check_reply(const struct nib_chat_parser_options *o, const char *text, const char *reasoning,
                        const char *content, int32_t n_calls, enum nib_chat_finish finish)
{
    struct nib_reply r;
    parse(o, text, NIB_CHAT_END_STOP, &r);
    assert_string_equal(r.reasoning.data, reasoning);
    assert_string_equal(r.content.data, content);
    assert_int_equal(r.n_calls, n_calls);
    assert_int_equal(r.finish, finish);
    nib_reply_free(&r);
}

/* B62: a block inside unfinished thinking is a call; beginnings of markers are text, at the end too. */
static void test_block_in_reasoning(void **state)
{
    (void)state;
    check_reply(&thinking, "a" BLOCK(CALL("f", PARAM("x", "false", "1"))), "a", "", 1, NIB_CHAT_FINISH_TOOL_CALLS);
    check_reply(&thinking, "is 1 < 2", "is 1 < 2", "", 0, NIB_CHAT_FINISH_STOP);
    check_reply(&thinking, "ends in <", "ends in <", "", 0, NIB_CHAT_FINISH_STOP);
    check_reply(&thinking, "ends in <｜", "ends in <｜", "", 0, NIB_CHAT_FINISH_STOP);
    check_reply(&thinking, "a\n\n", "a\n\n", "", 0, NIB_CHAT_FINISH_STOP);
    check_reply(&thinking, "</thin", "</thin", "", 0, NIB_CHAT_FINISH_STOP);
    /* A marker that was only mentioned: nothing is lost. */
    check_reply(&thinking, "write <｜DSML｜tool_calls> first</think>ok", "write ",
                "<｜DSML｜tool_calls> first</think>ok", 0, NIB_CHAT_FINISH_STOP);
    const struct nib_chat_parser_options no_tools = {.thinking = true};
    check_reply(&no_tools, "write <｜DSML｜tool_calls> first</think>ok", "write <｜DSML｜tool_calls> first", "ok", 0,
                NIB_CHAT_FINISH_STOP);
}

/* At a cut a marker's beginning is dropped; what may be text is not. */
static void test_cut_by_length(void **state)
{
    (void)state;
    static const struct {
        const char *text, *content;
    } cases[] = {{"2 <", "2 <"}, {"a\n\n", "a\n\n"}, {"a\n\n<｜D", "a"}, {"a<｜DSML｜tool_calls", "a"}, {"</th", "</th"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct nib_reply r;
        parse(&answering, cases[i].text, NIB_CHAT_END_LENGTH, &r);
        assert_string_equal(r.content.data, cases[i].content);
        assert_int_equal(r.finish, NIB_CHAT_FINISH_LENGTH);
        nib_reply_free(&r);
    }
    /* Without tools a marker's beginning is text like any other. */
    struct nib_reply r;
    parse(&(struct nib_chat_parser_options){.thinking = false}, "a<｜end▁of", NIB_CHAT_END_LENGTH, &r);
    assert_string_equal(r.content.data, "a<｜end▁of");
    nib_reply_free(&r);
}

/* White space in front of reasoning that nobody asked for is not content. */
static void test_blank_before_reasoning(void **state)
{
    (void)state;
    check_reply(&answering, " \n<think>r</think>a", "r", "a", 0, NIB_CHAT_FINISH_STOP);
    check_reply(&answering, " \n a", "", " \n a", 0, NIB_CHAT_FINISH_STOP);
}

/* B63: the attribute decides about the type, never the looks. */
static void test_argument_types(void **state)
{
    (void)state;
    static const struct {
        const char *string, *value, *json;
    } cases[] = {
        {"false", "true", "true"},         {"false", "false", "false"},        {"false", "null", "null"},
        {"false", "1", "1"},               {"false", "-0.5", "-0.5"},          {"false", "1e5", "1e5"},
        {"false", "[1,2]", "[1,2]"},       {"false", "{\"a\":1}", "{\"a\":1}"}, {"false", "not-json", "\"not-json\""},
        {"false", "", "\"\""},             {"false", "NaN", "\"NaN\""},        {"false", "1 2", "\"1 2\""},
        {"true", "true", "\"true\""},      {"true", "007", "\"007\""},         {"true", "null", "\"null\""},
        {"true", "", "\"\""},              {"true", "\"q\"\n<&>\xF0\x9F\x98\x80", "\"\\\"q\\\"\\n<&>\xF0\x9F\x98\x80\""},
        {"true", "\x01\x7f", "\"\\u0001\x7f\""}, {"TRUE", "1", "1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512], wanted[512];
        (void)snprintf(text, sizeof text,
                       "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"arguments\" "
                       "string=\"%s\">%s</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
                       cases[i].string, cases[i].value);
        (void)snprintf(wanted, sizeof wanted, "{\"arguments\": %s}", cases[i].json);
        struct nib_reply r;
        parse(&answering, text, NIB_CHAT_END_STOP, &r);
        assert_int_equal(r.n_calls, 1);
        assert_string_equal(r.call[0].arguments.data, wanted);
        json_t *valid = json_loads(r.call[0].arguments.data, JSON_ALLOW_NUL, NULL);
        assert_non_null(valid);
        json_decref(valid);
        nib_reply_free(&r);
    }
}

/* Tags that are not quite tags stay text inside a value and are ignored between values. */
static void test_near_tags(void **state)
{
    (void)state;
    static const struct {
        const char *text, *arguments;
    } cases[] = {
        {BLOCK(CALL("f", PARAM("a", "true", "<｜DSML｜invoke name=\"g\">"))), "{\"a\": \"<｜DSML｜invoke name=\\\"g\\\">\"}"},
        {BLOCK(CALL("f", PARAM("a", "true", "<｜DSML｜parameter nam=\"b\">x"))),
         "{\"a\": \"<｜DSML｜parameter nam=\\\"b\\\">x\"}"},
        {BLOCK(CALL("f", PARAM("a", "true", "</｜DSML｜parameters>"))), "{\"a\": \"</｜DSML｜parameters>\"}"},
        {BLOCK(CALL("f", "<｜DSML｜parameter>x</｜DSML｜parameter>" PARAM("a", "false", "1"))), "{\"a\": 1}"},
        {BLOCK("words " CALL("f", "more words" PARAM("k>ey", "false", "1") "<b>")), "{\"k>ey\": 1}"},
        {BLOCK(CALL("", PARAM("a", "false", "0")) CALL("f", PARAM("a", "false", "1"))), "{\"a\": 1}"},
        {BLOCK("<｜DSML｜invoke name=\"g\n\">" CALL("f", PARAM("a", "false", "1"))), "{\"a\": 1}"},
        {BLOCK(PARAM("a", "false", "0") CALL("f", PARAM("a", "false", "1"))), "{\"a\": 1}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct nib_reply r;
        parse(&answering, cases[i].text, NIB_CHAT_END_STOP, &r);
        assert_int_equal(r.n_calls, 1);
        assert_string_equal(r.call[0].name.data, "f");
        assert_string_equal(r.call[0].arguments.data, cases[i].arguments);
        nib_reply_free(&r);
    }
}

static void collect(void *user, const struct nib_chat_event *e)
{
    json_t *s = json_stringn(e->text, e->n);
    assert_non_null(s);
    json_decref(s);
    if (e->kind == NIB_CHAT_CONTENT)
        *(size_t *)user += e->n;
}

/* Bytes that are no characters become U+FFFD, wherever the pieces end. */
static void test_broken_characters(void **state)
{
    (void)state;
    static const char text[] = "a\xE4\xBD<\xF0\x9F\x98\xC3\xA9\xFFz\xE4";
    static const char wanted[] = "a\xEF\xBF\xBD<\xEF\xBF\xBD\xC3\xA9\xEF\xBF\xBDz\xEF\xBF\xBD";
    for (size_t piece = 1; piece < sizeof text; piece++) {
        struct nib_chat_parser *p;
        size_t n_content = 0;
        const struct nib_chat_parser_options o = {.tools = true, .on_event = collect, .user = &n_content};
        assert_int_equal(nib_chat_parser_open(&o, &p, NULL), NIB_OK);
        for (size_t at = 0; at < sizeof text - 1; at += piece)
            assert_int_equal(nib_chat_parser_push(p, text + at, sizeof text - 1 - at < piece ? sizeof text - 1 - at : piece,
                                                  NULL), NIB_OK);
        assert_int_equal(nib_chat_parser_end(p, NIB_CHAT_END_STOP, NULL), NIB_OK);
        assert_string_equal(nib_chat_parser_reply(p)->content.data, wanted);
        assert_int_equal(n_content, sizeof wanted - 1);
        nib_chat_parser_close(p);
    }
}

/* Megabytes, byte by byte, of what is held back at every step; quadratic work would take hours. */
static void test_linear_time(void **state)
{
    (void)state;
    static const char *const openings[] = {
        "", "\n\n<｜DSML｜tool_calls>", "\n\n<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\">",
        "\n\n<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"true\">"};
    static const char *const repeated[] = {"\n", "<", "</｜DSML｜parameter", " "};
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 4; k++) {
            struct nib_chat_parser *p;
            assert_int_equal(nib_chat_parser_open(&answering, &p, NULL), NIB_OK);
            assert_int_equal(nib_chat_parser_push(p, openings[i], strlen(openings[i]), NULL), NIB_OK);
            for (size_t at = 0; at < 150000; at++)
                assert_int_equal(nib_chat_parser_push(p, &repeated[k][at % strlen(repeated[k])], 1, NULL), NIB_OK);
            assert_int_equal(nib_chat_parser_end(p, NIB_CHAT_END_STOP, NULL), NIB_OK);
            assert_true(nib_chat_parser_reply(p)->content.n >= 150000);
            nib_chat_parser_close(p);
        }
}

static void test_states(void **state)
{
    (void)state;
    struct nib_chat_parser *p;
    struct nib_error err;
    assert_int_equal(nib_chat_parser_open(&thinking, &p, NULL), NIB_OK);
    assert_true(nib_chat_parser_in_reasoning(p));
    assert_int_equal(nib_chat_parser_push(p, "</think>", 8, NULL), NIB_OK);
    assert_false(nib_chat_parser_in_reasoning(p));
    static const char block[] = BLOCK(CALL("f", ""));
    assert_int_equal(nib_chat_parser_push(p, block, sizeof block - 2, NULL), NIB_OK);
    assert_true(nib_chat_parser_in_calls(p));
    assert_false(nib_chat_parser_done(p));
    assert_int_equal(nib_chat_parser_push(p, ">", 1, NULL), NIB_OK);
    assert_true(nib_chat_parser_done(p));
    assert_int_equal(nib_chat_parser_push(p, "more", 4, NULL), NIB_OK);
    assert_int_equal(nib_chat_parser_end(p, NIB_CHAT_END_LENGTH, NULL), NIB_OK);
    assert_int_equal(nib_chat_parser_reply(p)->finish, NIB_CHAT_FINISH_TOOL_CALLS);
    assert_int_equal(nib_chat_parser_end(p, NIB_CHAT_END_STOP, &err), NIB_E_STATE);
    assert_int_equal(nib_chat_parser_push(p, "x", 1, &err), NIB_E_STATE);
    nib_chat_parser_close(p);
    nib_chat_parser_close(NULL);
}

static const char *replay(void *user, const struct nib_past_call *call, size_t n_calls, size_t *n)
{
    static const char text[] = "\n\n<｜DSML｜tool_calls>as it was";
    *(size_t *)user = n_calls;
    *n = sizeof text - 1;
    return call[0].n_id == 2 && memcmp(call[0].id, "c1", 2) == 0 && call[0].n_arguments == 10 ? text : NULL;
}

/* Calls that the caller still has the text of are read again as they were written, markers counting; others are
 * rendered anew. */
static void test_replay(void **state)
{
    (void)state;
    static const char messages[] =
        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c%d\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1.5}\"}}]},{\"role\":\"user\",\"content\":\"r\"}]";
    struct nib_chat_options o;
    size_t n_calls = 0;
    nib_chat_options_init(&o);
    o.profile = NIB_CHAT_GA;
    o.replay = replay;
    o.replay_user = &n_calls;
    for (int i = 1; i <= 2; i++) {
        char text[1024];
        struct nib_prompt prompt;
        (void)snprintf(text, sizeof text, messages, i);
        assert_int_equal(nib_chat_encode(&o, text, NULL, NULL, &prompt, NULL), NIB_OK);
        assert_int_equal(n_calls, 1);
        const char *was = strstr(prompt.text.data, "\n\n<｜DSML｜tool_calls>as it was<｜end▁of▁sentence｜>");
        assert_int_equal(was != NULL, i == 1);
        for (size_t k = 0; was && k < prompt.n_content; k++)
            assert_true(prompt.content[k].end <= (size_t)(was - prompt.text.data) ||
                        prompt.content[k].start >= (size_t)(was - prompt.text.data) + 40);
        nib_prompt_free(&prompt);
    }
}

/* One without an id is none that the caller could know. */
static void test_replay_without_id(void **state)
{
    (void)state;
    struct nib_chat_options o;
    struct nib_prompt       prompt;
    size_t                  n_calls = 0;
    nib_chat_options_init(&o);
    o.profile = NIB_CHAT_GA;
    o.replay = replay;
    o.replay_user = &n_calls;
    static const char messages[] =
        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":"
        "[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]";
    assert_int_equal(nib_chat_encode(&o, messages, NULL, NULL, &prompt, NULL), NIB_OK);
    assert_int_equal(n_calls, 0);
    nib_prompt_free(&prompt);
}

/* A single tag: attributes need white space before them, values end on their line, and a tag that is still open after
 * 4096 bytes is none; one byte less may go on. */
static void test_tags(void **state)
{
    (void)state;
    static const char invoke[] = "<｜DSML｜invoke";
    static const struct {
        const char       *rest;
        enum nib_tag_kind kind;
    } cases[] = {
        {" name=\"f\">", NIB_TAG_INVOKE}, {"\n name=\"f\" string=\"true\" >", NIB_TAG_INVOKE},
        {"name=\"f\">", NIB_TAG_NONE}, {" name=\"f\"string=\"true\">", NIB_TAG_NONE}, {" name=\"f\n>", NIB_TAG_NONE}, {" name=\"f\n", NIB_TAG_NONE},
        {" name=\"f", NIB_TAG_PARTIAL}, {" name=\"\">", NIB_TAG_NONE}, {">", NIB_TAG_NONE}, {"", NIB_TAG_PARTIAL},
    };
    char text[NIB_TAG_BYTES_MAX + 64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int n = snprintf(text, sizeof text, "%s%s", invoke, cases[i].rest);
        const struct nib_tag tag = nib_tag_read(text, (size_t)n);
        if (tag.kind != cases[i].kind || (tag.kind == NIB_TAG_INVOKE && tag.n != (size_t)n))
            fail_msg("%s: kind %d of %zu bytes, wanted %d of %d", text, (int)tag.kind, tag.n, (int)cases[i].kind, n);
    }
    memset(text, 'a', sizeof text);
    memcpy(text, invoke, sizeof invoke - 1);
    memcpy(text + sizeof invoke - 1, " name=\"", 7);
    assert_int_equal(nib_tag_read(text, NIB_TAG_BYTES_MAX - 1).kind, NIB_TAG_PARTIAL);
    assert_int_equal(nib_tag_read(text, NIB_TAG_BYTES_MAX).kind, NIB_TAG_NONE);
    assert_int_equal(nib_tag_read(text, sizeof text).kind, NIB_TAG_NONE);
}

static void test_stop_strings(void **state)
{
    (void)state;
    static const char *const stop[] = {"END", "\n\n", "ENDING", ""};
    size_t which;
    assert_int_equal(nib_stop_find("a ENDING\n\n", 10, stop, 4, &which), 2);
    assert_int_equal(which, 0);
    assert_int_equal(nib_stop_find("a\n\nEND", 6, stop, 4, &which), 1);
    assert_int_equal(which, 1);
    assert_int_equal(nib_stop_find("a EN", 4, stop, 4, &which), 4);
    assert_int_equal(which, 4);
    assert_int_equal(nib_stop_tail("a EN", 4, stop, 4), 2);
    assert_int_equal(nib_stop_tail("a ENDIN", 7, stop, 4), 5);
    assert_int_equal(nib_stop_tail("a\n", 2, stop, 4), 1);
    assert_int_equal(nib_stop_tail("a", 1, stop, 4), 0);
    assert_int_equal(nib_stop_tail("", 0, stop, 4), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_in_reasoning), cmocka_unit_test(test_cut_by_length),
        cmocka_unit_test(test_argument_types),     cmocka_unit_test(test_near_tags),
        cmocka_unit_test(test_broken_characters),  cmocka_unit_test(test_linear_time),
        cmocka_unit_test(test_states),             cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_replay),             cmocka_unit_test(test_replay_without_id),
        cmocka_unit_test(test_tags),               cmocka_unit_test(test_blank_before_reasoning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
