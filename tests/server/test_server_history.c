/* Conversations as clients send them back, over HTTP: what the model reads of them. Known faults B66, B68 and B72. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server_rig.h"

static const char *g_program;
static struct rig  g;

#define USER "{\"role\":\"user\",\"content\":\"x\"}"
#define TOOL                                                                                                           \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":" \
    "{\"a\":{\"type\":\"string\"}}}}}],\"reasoning_effort\":\"none\""

/* Ids of a conversation. */
static json_t *tokens_of(const char *messages, const char *fields)
{
    char body[8192];
    (void)snprintf(body, sizeof body, "{\"messages\":[%s]%s%s}", messages, *fields ? "," : "", fields);
    json_t *v = rig_post(&g, "/tokenize", body, 200), *tokens = json_incref(at(v, "tokens"));
    json_decref(v);
    assert_true(json_array_size(tokens) > 3);
    return tokens;
}

static json_int_t id_of(const char *marker)
{
    char body[128];
    (void)snprintf(body, sizeof body, "{\"content\":\"%s\"}", marker);
    json_t *v = rig_post(&g, "/tokenize", body, 200);
    assert_int_equal(json_array_size(at(v, "tokens")), 1);
    const json_int_t id = json_integer_value(at(v, "tokens.0"));
    json_decref(v);
    return id;
}

static int count(const json_t *tokens, json_int_t id)
{
    int n = 0;
    for (size_t i = 0; i < json_array_size(tokens); i++)
        n += json_integer_value(json_array_get(tokens, i)) == id;
    return n;
}

/* B66: a last turn of the assistant's is closed and another opened, or continued right behind its text. */
static void test_last_turn(void **state)
{
    (void)state;
    static const char *const last[] = {
        "{\"role\":\"assistant\",\"content\":\"The answer\"}",
        "{\"role\":\"assistant\",\"content\":\"The answer\",\"reasoning_content\":\"thought\"}",
        "{\"role\":\"assistant\",\"content\":\"The answer\",\"prefix\":true}",
    };
    const json_int_t end = id_of("<｜end▁of▁sentence｜>"), assistant = id_of("<｜Assistant｜>");
    char messages[512], prefixed[512];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(messages, sizeof messages, USER ",%s", last[i]);
        json_t *closed = tokens_of(messages, "\"reasoning_effort\":\"none\"");
        json_t *open = tokens_of(messages, "\"reasoning_effort\":\"none\",\"continue_final_message\":true,\"add_generation_prompt\":false");
        const size_t n = json_array_size(open);
        assert_int_equal(json_array_size(closed), n + 3);
        for (size_t k = 0; k < n; k++)
            assert_true(json_equal(json_array_get(closed, k), json_array_get(open, k)));
        assert_int_equal(json_integer_value(json_array_get(closed, n)), end);
        assert_int_equal(json_integer_value(json_array_get(closed, n + 1)), assistant);
        assert_int_equal(count(open, end), 0);
        if (i == 0) {
            (void)snprintf(prefixed, sizeof prefixed, USER ",%s", last[2]);
            json_t *same = tokens_of(prefixed, "\"reasoning_effort\":\"none\"");
            assert_true(json_equal(open, same));
            json_decref(same);
        }
        json_decref(open);
        json_decref(closed);
    }
    /* With calls in it, and nothing to answer them. */
    json_decref(tokens_of(USER ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":"
                               "{\"name\":\"f\",\"arguments\":\"{}\"}}]}", TOOL));
    json_decref(rig_post(&g, "/v1/chat/completions",
                         "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"y\"}],\"continue_final_message\":true,"
                         "\"add_generation_prompt\":true}", 400));
    json_t *v = rig_post(&g, "/v1/chat/completions", "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"y\"}],\"max_tokens\":4}", 200);
    json_decref(v);
}

/* B68: markers in what was said, called or answered are text: they add no control token. */
static void test_markers(void **state)
{
    (void)state;
    static const char form[] =
        USER ",{\"role\":\"assistant\",\"content\":\"%s\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
             "\"arguments\":\"{\\\"a\\\": \\\"%s\\\"}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"%s\"}";
    static const char *const texts[] = {"<｜DSML｜invoke", "</｜DSML｜parameter>", "</think>", "<｜end▁of▁sentence｜>", "<｜User｜>"};
    static const char *const markers[] = {"｜DSML｜", "</think>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"};
    char messages[2048];
    (void)snprintf(messages, sizeof messages, form, "plain", "plain", "plain");
    json_t *plain = tokens_of(messages, TOOL);
    assert_true(count(plain, id_of(markers[0])) > 0);
    for (size_t i = 0; i < 5; i++) {
        (void)snprintf(messages, sizeof messages, form, texts[i], texts[i], texts[i]);
        json_t *tokens = tokens_of(messages, TOOL);
        for (size_t k = 0; k < 5; k++)
            assert_int_equal(count(tokens, id_of(markers[k])), count(plain, id_of(markers[k])));
        json_decref(tokens);
    }
    json_decref(plain);
}

#define CALL(ID, A) "{\"id\":\"" ID "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": \\\"" A "\\\"}\"}}"
#define CALLS       USER ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" CALL("c1", "one") "," CALL("c2", "two") "]}"
#define RESULT(ID, TEXT) ",{\"role\":\"tool\",\"tool_call_id\":\"" ID "\",\"content\":\"" TEXT "\"}"

/* B72: results stand in the order of their calls, whatever order they came in; missing, unknown, early and double ones
 * are taken as the reference encoder takes them, and never mixed up. */
static void test_tool_results(void **state)
{
    (void)state;
    json_t *ordered = tokens_of(CALLS RESULT("c1", "first") RESULT("c2", "second"), TOOL);
    json_t *swapped = tokens_of(CALLS RESULT("c2", "second") RESULT("c1", "first"), TOOL);
    json_t *mixed = tokens_of(CALLS RESULT("c1", "second") RESULT("c2", "first"), TOOL);
    assert_true(json_equal(ordered, swapped));
    assert_false(json_equal(ordered, mixed));
    json_decref(ordered);
    json_decref(swapped);
    json_decref(mixed);
    static const char *const odd[] = {
        CALLS, CALLS RESULT("c1", "first"), CALLS RESULT("c9", "unknown"), CALLS RESULT("c1", "first") RESULT("c1", "again"),
        USER RESULT("c1", "early") ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" CALL("c1", "one") "]}",
        USER ",{\"role\":\"tool\",\"content\":\"no id\"}",
    };
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++)
        json_decref(tokens_of(odd[i], TOOL));
}

static int start(void **state)
{
    (void)state;
    const char *arguments[] = {"--ctx", "512", "--log-level", "quiet", NULL};
    g = rig_start(g_program, arguments);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return rig_stop(&g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_turn), cmocka_unit_test(test_markers), cmocka_unit_test(test_tool_results),
    };
    if (argc < 2)
        return 2;
    g_program = argv[1];
    return cmocka_run_group_tests(tests, start, stop);
}
