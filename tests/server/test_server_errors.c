/* nibble serve's refusals: wrong values by field, broken bodies, paths, prompts that are too long. After every blow a
 * known request gets its known answer. Known faults B71, B73, B76 and B82. */
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

/* A wrong value's sentence says what was wanted, or which other field it does not go with or without. */
static void check_sentence(json_t *v, const char *fields)
{
    static const char *const ways[] = {"wanted ", " only for ", " needs ", " does not go with ", " not among the tools"};
    const char *text = text_at(v, "error.message");
    bool        says = strcmp(text_at(v, "error.code"), "invalid_value") != 0;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        says |= strstr(text, ways[i]) != NULL;
    if (!says || strlen(text) <= 10)
        fail_msg("%s: '%s' does not say what was wanted", fields, text);
}

/* B71, B73, B76, B82: every wrong value is a 400 that names its field. */
static void test_wrong_values(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        int         status;
        const char *param, *code;
    } cases[] = {
        {PLAIN ",\"max_tokens\":0", 400, "max_tokens", "invalid_value"}, {PLAIN ",\"max_tokens\":-1", 400, "max_tokens", "invalid_value"},
        {PLAIN ",\"max_tokens\":\"5\"", 400, "max_tokens", "invalid_value"}, {PLAIN ",\"max_tokens\":1.5", 400, "max_tokens", "invalid_value"},
        {PLAIN ",\"max_tokens\":true", 400, "max_tokens", "invalid_value"}, {PLAIN ",\"temperature\":-1", 400, "temperature", "invalid_value"},
        {PLAIN ",\"temperature\":1e9", 400, "temperature", "invalid_value"}, {PLAIN ",\"temperature\":\"NaN\"", 400, "temperature", "invalid_value"},
        {PLAIN ",\"top_p\":0", 400, "top_p", "invalid_value"}, {PLAIN ",\"top_p\":1.1", 400, "top_p", "invalid_value"},
        {PLAIN ",\"top_k\":-2", 400, "top_k", "invalid_value"}, {PLAIN ",\"seed\":1.5", 400, "seed", "invalid_value"},
        {PLAIN ",\"seed\":1e30", 400, "seed", "invalid_value"}, {PLAIN ",\"n\":0", 400, "n", "invalid_value"},
        {PLAIN ",\"n\":-1", 400, "n", "invalid_value"}, {PLAIN ",\"n\":1000000", 400, "n", "invalid_value"},
        {PLAIN ",\"stop\":\"\"", 400, "stop", "invalid_value"}, {PLAIN ",\"stop\":[1]", 400, "stop", "invalid_value"},
        {PLAIN ",\"stop_token_ids\":{}", 400, "stop_token_ids", "invalid_value"}, {PLAIN ",\"logit_bias\":[]", 400, "logit_bias", "invalid_value"},
        {PLAIN ",\"logit_bias\":{\"5\":\"1\"}", 400, "logit_bias", "invalid_value"}, {PLAIN ",\"tools\":{}", 400, "tools", "invalid_value"},
        {PLAIN ",\"tools\":[7]", 400, "tools", "invalid_value"}, {PLAIN ",\"response_format\":7", 400, "response_format", "invalid_value"},
        {PLAIN ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\\u0000b\"}}]", 400, "tools", "invalid_value"},
        {PLAIN "," TOOLS ",\"tool_choice\":7", 400, "tool_choice", "invalid_value"}, {QUESTION ",\"thinking\":7", 400, "thinking", "invalid_value"},
        {QUESTION ",\"chat_template_kwargs\":7", 400, "chat_template_kwargs", "invalid_value"},
        {PLAIN ",\"stream\":true,\"stream_options\":7", 400, "stream_options", "invalid_value"},
        {PLAIN ",\"stream\":1", 400, "stream", "invalid_value"}, {PLAIN ",\"stream_options\":{}", 400, "stream_options", "invalid_value"},
        {PLAIN ",\"top_logprobs\":3", 400, "top_logprobs", "invalid_value"},
        {PLAIN ",\"logprobs\":true,\"top_logprobs\":-1", 400, "top_logprobs", "invalid_value"},
        {PLAIN ",\"logit_bias\":{\"x\":1}", 400, "logit_bias", "invalid_value"},
        {PLAIN ",\"logit_bias\":{\"999999999\":1}", 400, "logit_bias", "invalid_value"},
        {PLAIN ",\"tool_choice\":\"required\"", 400, "tool_choice", "invalid_value"},
        {PLAIN "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"nope\"}}", 400, "tool_choice", "invalid_value"},
        {PLAIN ",\"tools\":[{\"type\":\"web_search\"}]", 400, "tools", "invalid_value"},
        {PLAIN ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\\\"b\"}}]", 400, "tools", "invalid_value"},
        {PLAIN ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}", 400, "response_format", "unsupported_parameter"},
        {PLAIN ",\"response_format\":{\"type\":\"json_schema\"}", 400, "response_format", "invalid_value"},
        {PLAIN ",\"modalities\":[\"audio\"]", 400, "modalities", "unsupported_parameter"},
        {QUESTION ",\"reasoning_effort\":\"abc\"", 400, "reasoning_effort", "invalid_value"},
        {QUESTION ",\"thinking\":{\"type\":\"maybe\"}", 400, "thinking", "invalid_value"},
        {PLAIN ",\"continue_final_message\":true,\"add_generation_prompt\":true", 400, "continue_final_message", "invalid_value"},
        {PLAIN ",\"model\":\"gpt-4\"", 404, "model", "model_not_found"}, {PLAIN ",\"model\":7", 400, "model", "invalid_value"},
        {PLAIN ",\"functions\":[{\"name\":\"f\"}]", 400, "functions", "unsupported_parameter"},
        {PLAIN ",\"function_call\":\"auto\"", 400, "function_call", "unsupported_parameter"},
        {"\"model\":null", 400, "messages", "missing_required_parameter"}, {"\"messages\":[]", 400, "messages", "invalid_value"},
        {"\"messages\":\"x\"", 400, "messages", "invalid_value"},
        {"\"messages\":[{\"role\":\"wizard\",\"content\":\"x\"}]", 400, "messages", "invalid_value"},
        {"\"messages\":[{\"role\":\"\",\"content\":\"x\"}]", 400, "messages", "invalid_value"},
        {"\"messages\":[{\"content\":\"x\"}]", 400, "messages", "invalid_value"},
        {"\"messages\":[{\"role\":null,\"content\":\"x\"}]", 400, "messages", "invalid_value"},
        {"\"messages\":[{\"role\":\"user\",\"content\":7}]", 400, "messages", "invalid_value"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", 400, "messages", "invalid_value"},
    };
    char body[2048];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(body, sizeof body, "{%s}", cases[i].fields);
        json_t *v = rig_post(&g, CHAT, body, cases[i].status);
        if (strcmp(text_at(v, "error.param"), cases[i].param) != 0 || strcmp(text_at(v, "error.code"), cases[i].code) != 0)
            fail_msg("%s: param '%s' code '%s'", cases[i].fields, text_at(v, "error.param"), text_at(v, "error.code"));
        assert_string_equal(text_at(v, "error.type"), "invalid_request_error");
        check_sentence(v, cases[i].fields);
        json_decref(v);
    }
    rig_check_alive(&g);
}

static void test_wrong_completions(void **state)
{
    (void)state;
    static const struct {
        const char *fields, *param, *code;
    } cases[] = {
        {"\"max_tokens\":3", "prompt", "missing_required_parameter"}, {"\"prompt\":{}", "prompt", "invalid_value"},
        {"\"prompt\":[]", "prompt", "invalid_value"}, {"\"prompt\":[-1]", "prompt", "invalid_value"},
        {"\"prompt\":[5,\"x\"]", "prompt", "invalid_value"}, {"\"prompt\":[[5],[999999]]", "prompt", "invalid_value"},
        {"\"prompt\":\"x\",\"best_of\":2", "best_of", "unsupported_parameter"}, {"\"prompt\":\"x\",\"echo\":1", "echo", "invalid_value"},
        {"\"prompt\":\"x\",\"echo\":true,\"logprobs\":1", "echo", "unsupported_parameter"},
        {"\"prompt\":\"x\",\"echo\":true,\"max_tokens\":0", "max_tokens", "invalid_value"},
        {"\"prompt\":[1,2],\"suffix\":\"x\"", "suffix", "invalid_value"}, {"\"prompt\":\"x\",\"logprobs\":21", "logprobs", "invalid_value"},
        {"\"prompt\":\"x\",\"min_p\":1.5", "min_p", "invalid_value"}, {"\"prompt\":\"x\",\"repetition_penalty\":0", "repetition_penalty", "invalid_value"},
        {"\"prompt\":\"x\",\"stop_token_ids\":[-1]", "stop_token_ids", "invalid_value"}, {"\"prompt\":[[5],{}]", "prompt", "invalid_value"},
        {"\"prompt\":\"x\",\"suffix\":7", "suffix", "invalid_value"},
    };
    char body[512];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(body, sizeof body, "{%s}", cases[i].fields);
        json_t *v = rig_post(&g, "/v1/completions", body, 400);
        if (strcmp(text_at(v, "error.param"), cases[i].param) != 0 || strcmp(text_at(v, "error.code"), cases[i].code) != 0)
            fail_msg("%s: param '%s' code '%s'", cases[i].fields, text_at(v, "error.param"), text_at(v, "error.code"));
        check_sentence(v, cases[i].fields);
        json_decref(v);
    }
    rig_check_alive(&g);
}

/* And what looks odd but is right. */
static void test_odd_values(void **state)
{
    (void)state;
    static const char *const cases[] = {
        PLAIN ",\"max_tokens\":null", PLAIN ",\"max_tokens\":1e18", PLAIN ",\"max_tokens\":1", PLAIN ",\"top_k\":-1", PLAIN ",\"top_k\":1e9",
        PLAIN ",\"top_p\":1", PLAIN ",\"seed\":-1", PLAIN ",\"seed\":9223372036854775807", PLAIN ",\"unknown_field\":{\"a\":[1]}",
        PLAIN ",\"tools\":[]", PLAIN ",\"response_format\":{\"type\":\"text\"}", PLAIN ",\"user\":7", PLAIN ",\"n\":null",
        PLAIN ",\"max_tokens\":2,\"logit_bias\":{\"5\":1e300,\"6\":-1e300}", /* infinite as floats */
        PLAIN ",\"max_tokens\":2,\"ignore_eos\":true,\"min_tokens\":2", PLAIN ",\"logit_bias\":{\"5\":-100}",
        "\"messages\":[{\"role\":\"developer\",\"content\":\"be brief\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}],\"max_tokens\":2",
        "\"mess\\u0061ges\":[{\"role\":\"assistant\",\"content\":\"x\"}],\"max_tokens\":2,\"continue_final_message\":true",
        "\"messages\":[{\"role\":\"user\",\"content\":null}],\"max_tokens\":2", "\"messages\":[{\"role\":\"user\",\"content\":[]}],\"max_tokens\":2",
        "\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"}],\"max_tokens\":2",
        "\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"The\",\"prefix\":true}],\"max_tokens\":2",
        "\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"The\"}],\"max_tokens\":2,"
        "\"continue_final_message\":true,\"add_generation_prompt\":false",
        "\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000\\ud83d\\ude00\\udc00\"}],\"max_tokens\":2",
        "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":2,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"parameters\":{\"big\":123456789012345678901234567890}}}]",
    };
    char body[2048];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(body, sizeof body, "{%s}", cases[i]);
        json_decref(rig_post(&g, CHAT, body, 200));
    }
}

static void test_broken_bodies(void **state)
{
    (void)state;
    static const char *const bodies[] = {"", "{", "[]", "7", "{\"a\":NaN}", "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
                                         "{\"a\":1}x", "{\"temperature\":1e999}", "nul", "{\"a\":\"\\ud8\"}"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        json_t *v = rig_post(&g, CHAT, bodies[i], 400);
        assert_string_equal(text_at(v, "error.code"), "invalid_json");
        json_decref(v);
    }
    char *deep = malloc(20010);
    assert_non_null(deep);
    memset(deep, '[', 10000);
    memset(deep + 10000, ']', 10000);
    deep[20000] = '\0';
    json_decref(rig_post(&g, CHAT, deep, 400));
    char *nested = malloc(40000);
    assert_non_null(nested);
    (void)snprintf(nested, 40000, "{" PLAIN ",\"x\":%s}", deep);
    json_decref(rig_post(&g, CHAT, nested, 400));
    free(nested);
    free(deep);
    rig_check_alive(&g);
}

static void test_paths(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path;
        int         status;
    } cases[] = {
        {"GET", "/health", 200}, {"GET", "/v1/health", 200}, {"POST", "/ping", 200}, {"GET", "/version", 200}, {"GET", "/", 200},
        {"GET", "/v1/models", 200}, {"GET", "/v1/models/", 200}, {"GET", "/v1/models/tiny-v4", 200}, {"GET", "/v1/models/other", 404}, {"GET", "/v1/models/other-name", 200}, {"GET", "/v1/models/name", 404},
        {"GET", "/v1/nothing", 404}, {"GET", "/v1/embeddings", 404}, {"GET", "/v1/chat/completions", 405}, {"POST", "/v1/models", 405},
        {"DELETE", "/health", 405}, {"OPTIONS", "/v1/models", 405}, {"GET", "/metrics", 200}, {"GET", "/beta/completions", 405}, {"HEAD", "/health", 200},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(cases[i].method, "HEAD") == 0)
            continue; /* no body follows its length */
        struct reply r = rig_request(&g, cases[i].method, cases[i].path, "", NULL);
        if (r.status != cases[i].status)
            fail_msg("%s %s: %d", cases[i].method, cases[i].path, r.status);
        if (r.status == 405)
            assert_non_null(strstr(r.headers, "Allow: "));
        assert_null(strstr(r.headers, "Access-Control-Allow-Origin"));
        reply_free(&r);
    }
    struct reply r = rig_request(&g, "GET", "/v1/models", "X-Request-Id: my-own-id\r\n", NULL);
    assert_non_null(strstr(r.headers, "X-Request-Id: my-own-id"));
    reply_free(&r);
}

/* A model of several names answers under the one that was asked for. */
static void test_names(void **state)
{
    (void)state;
    static const char *const names[] = {"tiny-v4", "other-name", "third"};
    json_t *list = NULL;
    struct reply r = rig_request(&g, "GET", "/v1/models", "", NULL);
    assert_non_null(list = json_loads(r.body, 0, NULL));
    assert_int_equal(json_array_size(at(list, "data")), 3);
    for (size_t i = 0; i < 3; i++) {
        char body[256];
        assert_string_equal(text_at(json_array_get(at(list, "data"), i), "id"), names[i]);
        (void)snprintf(body, sizeof body, "{\"prompt\":\"x\",\"max_tokens\":1,\"model\":\"%s\"}", names[i]);
        json_t *v = rig_post(&g, "/v1/completions", body, 200);
        assert_string_equal(text_at(v, "model"), names[i]);
        json_decref(v);
    }
    static const char *const wrong[] = {"", "other", "tiny-v4,other-name", "other-name,", "thirds"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char body[256];
        (void)snprintf(body, sizeof body, "{\"prompt\":\"x\",\"max_tokens\":1,\"model\":\"%s\"}", wrong[i]);
        json_t *v = rig_post(&g, "/v1/completions", body, 404);
        assert_string_equal(text_at(v, "error.code"), "model_not_found");
        json_decref(v);
    }
    json_decref(list);
    reply_free(&r);
}

static void test_too_long(void **state)
{
    (void)state;
    char *body = malloc(60000);
    assert_non_null(body);
    (void)snprintf(body, 60000, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 3000; i++)
        (void)strcat(body + (i == 0 ? 0 : 40 + 5 * (i - 1)), " word");
    (void)strcat(body, "\"}]}");
    json_t *v = rig_post(&g, CHAT, body, 400);
    assert_string_equal(text_at(v, "error.code"), "context_length_exceeded");
    assert_non_null(strstr(text_at(v, "error.message"), "1024"));
    assert_int_equal(json_integer_value(at(v, "error.n_ctx")), 1024);
    assert_true(json_integer_value(at(v, "error.n_prompt_tokens")) > 3000);
    json_decref(v);
    free(body);
}

static int start(void **state)
{
    (void)state;
    const char *arguments[] = {"--ctx", "1024", "--log-level", "quiet", "--served-name", "tiny-v4,other-name,third", "--cache-memory", "0.05", NULL};
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
        cmocka_unit_test(test_wrong_values), cmocka_unit_test(test_wrong_completions), cmocka_unit_test(test_odd_values), cmocka_unit_test(test_broken_bodies),
        cmocka_unit_test(test_paths), cmocka_unit_test(test_names), cmocka_unit_test(test_too_long),
    };
    if (argc < 2)
        return 2;
    g_program = argv[1];
    return cmocka_run_group_tests(tests, start, stop);
}
