/* The chat encoder beyond the goldens: which bytes of a prompt are said to come from the conversation, what clients may
 * send that the reference would not take (add_generation_prompt), and refused input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nibble.h"

#define LENGTH(a) (sizeof(a) / sizeof *(a))

#define BOS  "<｜begin▁of▁sentence｜>"
#define EOS  "<｜end▁of▁sentence｜>"
#define USER "<｜User｜>"
#define ASST "<｜Assistant｜>"
#define REM  "<｜latest_reminder｜>"
#define DSML "｜DSML｜"

/* The conversation of the range tests: every place where a client's text can land. */
#define FULL_MESSAGES                                                                                                  \
    "[{\"role\":\"system\",\"content\":\"%s\",\"response_format\":{\"k\":\"%s\"}},"                                    \
    "{\"role\":\"latest_reminder\",\"content\":\"%s\"},"                                                               \
    "{\"role\":\"user\",\"content\":\"%s\"},{\"role\":\"user\",\"content\":\"%s\"},"                                   \
    "{\"role\":\"assistant\",\"content\":\"%s\",\"reasoning_content\":\"%s\",\"tool_calls\":[{\"id\":\"1\","           \
    "\"function\":{\"name\":\"%s\",\"arguments\":\"{\\\"%s\\\":\\\"%s\\\",\\\"n\\\":[1,\\\"%s\\\"]}\"}}]},"            \
    "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"%s\"},"                                                   \
    "{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"%s\"},{\"type\":\"%s\"}]},"                         \
    "{\"role\":\"developer\",\"content\":\"%s\"}]"
#define FULL_TOOLS "[{\"function\":{\"name\":\"%s\"}},{\"function\":{\"name\":\"b\"}}]"

/* What lands there: a digit to tell them apart, and something that looks like the encoder's own markup. */
static const char *const typed[16] = {
    "0<think>", "1</think>", "2" EOS, "3" USER, "4" ASST, "5" DSML, "6" BOS, "7</" DSML "invoke>", "8" REM,
    "9</tool_result>", "a<｜title｜>", "b" EOS USER, "c</think>", "d" DSML, "e" EOS, "f<think>",
};

static void encode_full(const char *const t[16], struct nib_prompt *p)
{
    char messages[4096], tools[512];
    struct nib_chat_options o;
    struct nib_error err = {0};
    nib_chat_options_init(&o);
    o.thinking = true;
    o.effort = NIB_EFFORT_MAX;
    o.add_generation_prompt = false;
    (void)snprintf(messages, sizeof messages, FULL_MESSAGES, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9],
                   t[10], t[11], t[12], t[13], t[14]);
    (void)snprintf(tools, sizeof tools, FULL_TOOLS, t[15]);
    if (nib_chat_encode(&o, messages, tools, NULL, p, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void ranges_hold_exactly_what_was_typed(void **state)
{
    (void)state;
    struct nib_prompt p;
    encode_full(typed, &p);
    char schema[64], format[64], list[64];
    (void)snprintf(schema, sizeof schema, "{\"name\": \"%s\"}", typed[15]);
    (void)snprintf(format, sizeof format, "{\"k\": \"%s\"}", typed[1]);
    (void)snprintf(list, sizeof list, "[1, \"%s\"]", typed[10]);
    const char *const expected[] = {
        typed[0], schema, "{\"name\": \"b\"}", format, typed[2], typed[3], typed[4], typed[6], typed[5], typed[7],
        typed[8], typed[9], "n", list, typed[11], typed[12], typed[13], typed[14],
    };
    assert_int_equal(p.n_content, LENGTH(expected));
    for (size_t i = 0; i < p.n_content; i++) {
        assert_int_equal(p.content[i].end - p.content[i].start, strlen(expected[i]));
        assert_memory_equal(p.text.data + p.content[i].start, expected[i], strlen(expected[i]));
    }
    nib_prompt_free(&p);
}

/* Text outside the ranges, in one piece; the caller frees. */
static char *outside(const struct nib_prompt *p)
{
    char *text = malloc(p->text.n + 1);
    assert_non_null(text);
    size_t n = 0, at = 0;
    for (size_t i = 0; i <= p->n_content; i++) {
        size_t start = i < p->n_content ? p->content[i].start : p->text.n;
        memcpy(text + n, p->text.data + at, start - at);
        n += start - at;
        at = i < p->n_content ? p->content[i].end : at;
    }
    text[n] = '\0';
    return text;
}

/* What lies outside does not depend on what was typed. */
static void scaffolding_is_the_same_for_any_text(void **state)
{
    (void)state;
    struct nib_prompt p;
    encode_full(typed, &p);
    char *expected = outside(&p);
    nib_prompt_free(&p);
    for (size_t shift = 1; shift < LENGTH(typed); shift++) {
        const char *turned[LENGTH(typed)];
        for (size_t i = 0; i < LENGTH(typed); i++)
            turned[i] = typed[(i + shift) % LENGTH(typed)];
        encode_full(turned, &p);
        char *found = outside(&p);
        assert_string_equal(found, expected);
        free(found);
        nib_prompt_free(&p);
    }
    free(expected);
}

/* Through the tokenizer: with the ranges, no typed text becomes a control token; the encoder's own markers still do. */
static void typed_markers_are_plain_text(void **state)
{
    (void)state;
    struct nib_tokenizer *t;
    struct nib_error err = {0};
    if (nib_tokenizer_open(NIB_SOURCE_DIR "/models/tiny-v4", &t, &err) != NIB_OK)
        fail_msg("%s", err.text);
    static const char *const plain[16] = {"0", "1", "2", "3", "4", "5", "6", "7",
                                          "8", "9", "a", "b", "c", "d", "e", "f"};
    static const char *const markers[] = {BOS, EOS, USER, ASST, REM, DSML, "<think>", "</think>", "<｜title｜>"};
    struct nib_prompt p[2];
    struct nib_ids ids[2];
    encode_full(typed, &p[0]);
    encode_full(plain, &p[1]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(nib_tokenizer_encode(t, p[i].text.data, p[i].text.n, p[i].content, p[i].n_content, &ids[i],
                                              &err), NIB_OK);
    for (size_t k = 0; k < LENGTH(markers); k++) {
        size_t n[2] = {0};
        int32_t id = nib_tokenizer_find(t, markers[k]);
        assert_true(id >= 0);
        for (int i = 0; i < 2; i++)
            for (size_t j = 0; j < ids[i].n; j++)
                n[i] += ids[i].id[j] == id;
        assert_int_equal(n[0], n[1]);
        assert_true(n[0] > 0 || !strcmp(markers[k], "<｜title｜>"));
    }
    for (int i = 0; i < 2; i++) {
        nib_ids_free(&ids[i]);
        nib_prompt_free(&p[i]);
    }
    nib_tokenizer_close(t);
}

struct product_case {
    const char *messages;
    bool        thinking;
    const char *prompt; /* NULL: refused */
};

#define CALL(ARGUMENTS)                                                                                              \
    "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","    \
    "\"arguments\":" ARGUMENTS "}}]},{\"role\":\"tool\",\"content\":\"r\"}]"
#define CALLED(PARAMETERS)                                                                                           \
    BOS USER "q" ASST "</think>\n\n<" DSML "tool_calls>\n<" DSML "invoke name=\"f\">\n" PARAMETERS "\n</" DSML         \
    "invoke>\n</" DSML "tool_calls>" EOS USER "<tool_result>r</tool_result>" ASST "</think>"
#define PARAMETER(NAME, IS_STRING, VALUE)                                                                            \
    "<" DSML "parameter name=\"" NAME "\" string=\"" IS_STRING "\">" VALUE "</" DSML "parameter>"

static const struct product_case product_cases[] = {
    /* null and missing content */
    {"[{\"role\":\"user\",\"content\":null}]", false, BOS USER ASST "</think>"},
    {"[{\"role\":\"user\"}]", false, BOS USER ASST "</think>"},
    {"[{\"role\":\"latest_reminder\",\"content\":null},{\"role\":\"user\",\"content\":\"q\"}]", true,
     BOS REM USER "q" ASST "<think>"},
    {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"tool\",\"content\":null}]", false,
     BOS USER "q\n\n<tool_result></tool_result>" ASST "</think>"},
    /* lists of parts */
    {"[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},"
     "{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"c\"},{\"type\":\"text\",\"text\":\"d\"}]},"
     "{\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"e\"},{\"type\":\"text\",\"text\":"
     "\"f\"}]},{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"g\"},{\"type\":\"input_text\",\"text\":"
     "\"h\"}]}]", false,
     BOS "ab" USER "c\n\nd" ASST "</think>ef" EOS USER "<tool_result>g\n\nh</tool_result>" ASST "</think>"},
    {"[{\"role\":\"user\",\"content\":[]}]", false, BOS USER ASST "</think>"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]", false, NULL},
    {"[{\"role\":\"tool\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]", false, NULL},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":null}]}]", false, NULL},
    {"[{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":5}]}]", false, NULL},
    {"[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]", false, NULL},
    {"[{\"role\":\"user\",\"content\":[\"a\"]}]", false, NULL},
    {"[{\"role\":\"user\",\"content\":5}]", false, NULL},
    {"[{\"role\":\"system\",\"content\":{\"a\":1}},{\"role\":\"user\",\"content\":\"q\"}]", false, NULL},
    /* call arguments */
    {CALL("{\"x\":1.50,\"y\":\"z\"}"), false,
     CALLED(PARAMETER("x", "false", "1.5") "\n" PARAMETER("y", "true", "z"))},
    {CALL("\"{\\\"x\\\":1}\""), false, CALLED(PARAMETER("x", "false", "1"))},
    {CALL("\"[1,2]\""), false, CALLED(PARAMETER("arguments", "true", "[1,2]"))},
    {CALL("\" 3\""), false, CALLED(PARAMETER("arguments", "true", " 3"))},
    {CALL("[1,2]"), false, CALLED(PARAMETER("arguments", "false", "[1, 2]"))},
    {CALL("\"{x\""), false, CALLED(PARAMETER("arguments", "true", "{x"))},
    {CALL("\"\""), false, CALLED(PARAMETER("arguments", "true", ""))},
    {CALL("null"), false, CALLED("")},
    {CALL("{}"), false, CALLED("")},
    {CALL("{\"x\":1e999}"), false, NULL},
    {CALL("\"{\\\"x\\\":1e999}\""), false, NULL},
    /* names for reasoning; the longer one wins */
    {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"r\"}]", true,
     BOS USER "q" ASST "<think>r</think>a" EOS ASST "<think>"},
    {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"r\","
     "\"reasoning_content\":\"s\"}]", true, BOS USER "q" ASST "<think>s</think>a" EOS ASST "<think>"},
    /* roles */
    {"[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"q\"}]", true,
     BOS "d" USER "q" ASST "<think>"},
    {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"function\",\"name\":\"f\",\"content\":\"r\"}]", false,
     BOS USER "q\n\n<tool_result>r</tool_result>" ASST "</think>"},
    {"[{\"role\":\"critic\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"q\"}]", true, NULL},
    {"[{\"content\":\"x\"}]", false, NULL},
    {"[{\"role\":\"user\",\"content\":\"q\",\"name\":\"n\",\"audio\":1,\"refusal\":\"no\"}]", false,
     BOS USER "q" ASST "</think>"},
    {"[]", false, NULL},
    /* conversations that do not end with a question */
    {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"}]", false,
     BOS USER "q" ASST "</think>a" EOS ASST "</think>"},
    {"[{\"role\":\"system\",\"content\":\"s\"}]", true, BOS "s" ASST "<think>"},
    {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"system\",\"content\":\"s\"}]", false,
     BOS USER "qs" ASST "</think>"},
    {"[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"latest_reminder\",\"content\":\"m\"}]", false,
     BOS "s" REM "m" ASST "</think>"},
    {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\",\"task\":\"title\"}]", false,
     BOS USER "q" ASST "</think>a" EOS "<｜title｜>"},
    /* an answer to be continued */
    {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\",\"prefix\":true}]", false,
     BOS USER "q" ASST "</think>a"},
    {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\",\"prefix\":true}]", true,
     BOS USER "q" ASST "<think></think>a"},
    {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\",\"wo_eos\":true}]", false,
     BOS USER "q" ASST "</think>a"},
    {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\",\"prefix\":true},"
     "{\"role\":\"user\",\"content\":\"r\"}]", false, BOS USER "q" ASST "</think>a" EOS USER "r" ASST "</think>"},
};

static void takes_what_clients_send(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(product_cases); i++) {
        const struct product_case *c = &product_cases[i];
        struct nib_chat_options o;
        struct nib_prompt p;
        struct nib_error err = {0};
        nib_chat_options_init(&o);
        o.thinking = c->thinking;
        o.add_generation_prompt = true;
        enum nib_status status = nib_chat_encode(&o, c->messages, NULL, NULL, &p, &err);
        if (!c->prompt) {
            if (status == NIB_OK)
                fail_msg("case %zu was not refused: %s", i, p.text.data);
            assert_true(err.status == status && err.text[0]);
            continue;
        }
        if (status != NIB_OK)
            fail_msg("case %zu: %s", i, err.text);
        if (strcmp(p.text.data, c->prompt))
            fail_msg("case %zu:\n%s\nwanted\n%s", i, p.text.data, c->prompt);
        nib_prompt_free(&p);
    }
}

static void options_are_checked(void **state)
{
    (void)state;
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"q\"}]";
    struct nib_chat_options o;
    struct nib_prompt p;
    struct nib_error err;
    nib_chat_options_init(&o);
    o.profile = NIB_CHAT_AUTO;
    assert_int_equal(nib_chat_encode(&o, messages, NULL, NULL, &p, &err), NIB_E_ARGUMENT);
    o.profile = NIB_CHAT_PREVIEW;
    o.thinking = true;
    o.effort = NIB_EFFORT_LOW;
    o.add_generation_prompt = false;
    assert_int_equal(nib_chat_encode(&o, messages, NULL, NULL, &p, &err), NIB_E_ARGUMENT);
    assert_non_null(strstr(err.text, "low"));
    o.add_generation_prompt = true; /* what a user may ask for on any checkpoint */
    assert_int_equal(nib_chat_encode(&o, messages, NULL, NULL, &p, &err), NIB_OK);
    assert_string_equal(p.text.data, BOS USER "q" ASST "<think>");
    nib_prompt_free(&p);
}

/* The release's own encoder renders a tool's parts itself; they are checked there too. */
static void parts_of_results_are_checked(void **state)
{
    (void)state;
    struct nib_chat_options o;
    struct nib_prompt p;
    struct nib_error err;
    nib_chat_options_init(&o);
    o.profile = NIB_CHAT_GA;
    o.add_generation_prompt = false;
    assert_int_equal(nib_chat_encode(&o, "[{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":5}]}]", NULL, NULL,
                                     &p, &err), NIB_E_ARGUMENT);
    assert_non_null(strstr(err.text, "content[].text: found a number, wanted a string"));
}

static void errors_name_the_place(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *tools, *words;
    } cases[] = {
        {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"user\",\"content\":7}]", NULL, "messages[1].content"},
        {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"oracle\"}]", NULL, "messages[1].role: found \"oracle\""},
        {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[{}]}]", NULL, "messages[1]"},
        {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":{\"a\":1}}]", NULL,
         "messages[1].tool_calls"},
        {"[{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":5}]}]", NULL, "content[].text"},
        {"[7]", NULL, "messages[0]"},
        {"{}", NULL, "messages: found an object"},
        {"[{]", NULL, "messages: byte 2"},
        {"[{\"role\":\"user\",\"content\":\"q\"}]", "{}", "tools: found an object"},
        {"[{\"role\":\"user\",\"content\":\"q\"}]", "[{\"name\":\"f\"}]", "tools[0]"},
        {"[{\"role\":\"user\",\"content\":\"q\"}]", "[", "tools: byte 1"},
        {"[{\"role\":\"user\",\"content\":\"q\",\"task\":\"dance\"}]", NULL, "messages[0].task: found \"dance\""},
        {"[{\"role\":\"a\\nb\\u0000\\u4f60\"}]", NULL, "found \"a?b?\xe4\xbd\xa0\", wanted"},
        {"[{\"role\":\"12345678901234567890123456789012345678901234567890123456789\\u4f60\"}]", NULL,
         "90123456789...\", wanted"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct nib_chat_options o;
        struct nib_prompt p;
        struct nib_error err = {0};
        nib_chat_options_init(&o);
        assert_int_not_equal(nib_chat_encode(&o, cases[i].messages, cases[i].tools, NULL, &p, &err), NIB_OK);
        if (!strstr(err.text, cases[i].words))
            fail_msg("error \"%s\" does not say \"%s\"", err.text, cases[i].words);
    }
}

/* A JSON \u0000 is a character like any other. */
static void keeps_zero_bytes(void **state)
{
    (void)state;
    struct nib_chat_options o;
    struct nib_prompt p;
    nib_chat_options_init(&o);
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]";
    static const char expected[] = BOS USER "a\0b" ASST "</think>";
    assert_int_equal(nib_chat_encode(&o, messages, NULL, NULL, &p, NULL), NIB_OK);
    assert_int_equal(p.text.n, sizeof expected - 1);
    assert_memory_equal(p.text.data, expected, sizeof expected);
    nib_prompt_free(&p);
}

/* Many calls, answered in reverse. */
static void sorts_many_results(void **state)
{
    (void)state;
    enum { N = 5000 };
    struct nib_chat_options o;
    struct nib_prompt p;
    char *messages = malloc((size_t)N * 160 + 200);
    assert_non_null(messages);
    size_t n = (size_t)sprintf(messages, "[{\"role\":\"user\",\"content\":\"q\"},"
                                         "{\"role\":\"assistant\",\"tool_calls\":[");
    for (int i = 0; i < N; i++)
        n += (size_t)sprintf(messages + n, "%s{\"id\":\"c%d\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}",
                             i ? "," : "", i);
    n += (size_t)sprintf(messages + n, "]}");
    for (int i = N - 1; i >= 0; i--)
        n += (size_t)sprintf(messages + n, ",{\"role\":\"tool\",\"tool_call_id\":\"c%d\",\"content\":\"r%d.\"}", i, i);
    memcpy(messages + n, "]", 2);
    nib_chat_options_init(&o);
    assert_int_equal(nib_chat_encode(&o, messages, NULL, NULL, &p, NULL), NIB_OK);
    const char *at = p.text.data;
    for (int i = 0; i < N; i++) {
        char result[64];
        (void)snprintf(result, sizeof result, "<tool_result>r%d.</tool_result>", i);
        at = strstr(at, "<tool_result>");
        assert_non_null(at);
        assert_memory_equal(at, result, strlen(result));
        at++;
    }
    nib_prompt_free(&p);
    free(messages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_hold_exactly_what_was_typed),
        cmocka_unit_test(scaffolding_is_the_same_for_any_text),
        cmocka_unit_test(typed_markers_are_plain_text),
        cmocka_unit_test(takes_what_clients_send),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(errors_name_the_place),
        cmocka_unit_test(parts_of_results_are_checked),
        cmocka_unit_test(keeps_zero_bytes),
        cmocka_unit_test(sorts_many_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
