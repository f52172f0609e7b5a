/* Known faults B66, B68 and B72 on the side of the text: what a conversation that clients send back becomes, byte for
 * byte. The expected prompts are written out by the rules of the releases' encoder (a turn's parts in their order;
 * results stably sorted by the place of their call, unknown ids as the first), not taken from this one. */
#include "nibble.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BOS  "<｜begin▁of▁sentence｜>"
#define EOS  "<｜end▁of▁sentence｜>"
#define USER "<｜User｜>"
#define ASST "<｜Assistant｜>"

struct history {
    const char *what, *messages;
    bool        thinking;
    const char *prompt;
    bool        keep; /* reasoning of earlier turns */
};

static void check(const struct history *h, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct nib_chat_options o;
        struct nib_prompt       p;
        struct nib_error        err = {0};

        nib_chat_options_init(&o);
        o.thinking = h[i].thinking;
        o.drop_thinking = !h[i].keep;
        o.add_generation_prompt = true;
        if (nib_chat_encode(&o, h[i].messages, NULL, NULL, &p, &err) != NIB_OK)
            fail_msg("%s: %s", h[i].what, err.text);
        if (strcmp(p.text.data, h[i].prompt) != 0)
            fail_msg("%s:\n%s\nwanted\n%s", h[i].what, p.text.data, h[i].prompt);
        nib_prompt_free(&p);
    }
}

/* As sent, and as the model reads it. */
#define SENT_CALL(ID, NAME, X)                                                        \
    "{\"id\":\"" ID "\",\"type\":\"function\",\"function\":{\"name\":\"" NAME "\"," \
    "\"arguments\":\"{\\\"x\\\": \\\"" X "\\\"}\"}}"
#define SENT_CALLS(REST, CALLS) "{\"role\":\"assistant\"," REST "\"tool_calls\":[" CALLS "]}"
#define SENT_RESULT(ID, TEXT)   "{\"role\":\"tool\",\"tool_call_id\":\"" ID "\",\"content\":\"" TEXT "\"}"
#define SENT_USER(TEXT)         "{\"role\":\"user\",\"content\":\"" TEXT "\"}"
#define READ_CALL(NAME, X)                                                                                            \
    "<｜DSML｜invoke name=\"" NAME "\">\n<｜DSML｜parameter name=\"x\" string=\"true\">" X "</｜DSML｜parameter>\n"         \
    "</｜DSML｜invoke>\n"
#define READ_CALLS(CALLS)  "\n\n<｜DSML｜tool_calls>\n" CALLS "</｜DSML｜tool_calls>" EOS
#define READ_RESULT(TEXT)  "<tool_result>" TEXT "</tool_result>"

/* B66: a turn of the assistant's at the end is closed, and a new one is opened; a prefix is gone on with. */
static void b66_last_turn_is_the_assistants(void **state)
{
    static const struct history h[] = {
        {"plain", "[" SENT_USER("q") ",{\"role\":\"assistant\",\"content\":\"a\"}]", false,
         BOS USER "q" ASST "</think>a" EOS ASST "</think>", false},
        {"with reasoning",
         "[" SENT_USER("q") ",{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\"}]", true,
         BOS USER "q" ASST "<think>r</think>a" EOS ASST "<think>", false},
        {"reasoning, not thinking now",
         "[" SENT_USER("q") ",{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\"}]", false,
         BOS USER "q" ASST "</think>a" EOS ASST "</think>", false},
        {"with calls", "[" SENT_USER("q") "," SENT_CALLS("\"content\":null,", SENT_CALL("c1", "f", "v")) "]", false,
         BOS USER "q" ASST "</think>" READ_CALLS(READ_CALL("f", "v")) ASST "</think>", false},
        {"with content, reasoning and calls",
         "[" SENT_USER("q") "," SENT_CALLS("\"content\":\"a\",\"reasoning_content\":\"r\",", SENT_CALL("c1", "f", "v"))
         "]", true,
         BOS USER "q" ASST "<think>r</think>a" READ_CALLS(READ_CALL("f", "v")) ASST "<think>", false},
        {"prefix with reasoning",
         "[" SENT_USER("q") ",{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\","
         "\"prefix\":true}]", true,
         BOS USER "q" ASST "<think>r</think>a", false},
    };
    (void)state;
    check(h, sizeof h / sizeof h[0]);
}

/* B68: what looks like markup in names, arguments and results stays what it was; nothing is cut, doubled or escaped. */
#define WITH(M)                                                                                                       \
    {"in a call, without reasoning: " M,                                                                              \
     "[" SENT_USER("q") "," SENT_CALLS("", SENT_CALL("c1", "f", M)) "," SENT_RESULT("c1", "a" M "b") "]", false,      \
     BOS USER "q" ASST "</think>" READ_CALLS(READ_CALL("f", M)) USER READ_RESULT("a" M "b") ASST "</think>", false},  \
    {"in a call, with reasoning: " M,                                                                                 \
     "[" SENT_USER("q") "," SENT_CALLS("\"content\":\"" M "\",\"reasoning_content\":\"r" M "\",",                     \
                                       SENT_CALL("c1", "f", M)) "," SENT_RESULT("c1", M) "]", true,                   \
     BOS USER "q" ASST "<think>r" M "</think>" M READ_CALLS(READ_CALL("f", M)) USER READ_RESULT(M) ASST "<think>",    \
     true},                                                                                                           \
    {"in a call, reasoning left out: " M,                                                                             \
     "[" SENT_USER("q") "," SENT_CALLS("\"content\":\"" M "\",\"reasoning_content\":\"r" M "\",",                     \
                                       SENT_CALL("c1", "f", M)) "," SENT_RESULT("c1", M) "]", true,                   \
     BOS USER "q" ASST "</think>" M READ_CALLS(READ_CALL("f", M)) USER READ_RESULT(M) ASST "<think>", false},         \
    {"in a name: " M,                                                                                                 \
     "[" SENT_USER(M) "," SENT_CALLS("", SENT_CALL("c1", M, "v")) "]", false,                                         \
     BOS USER M ASST "</think>" READ_CALLS(READ_CALL(M, "v")) ASST "</think>", false}

static void b68_markers_in_history(void **state)
{
    static const struct history h[] = {
        WITH("<｜DSML｜invoke"), WITH("</｜DSML｜parameter>"), WITH("</think>"), WITH("｜DSML｜"),
        WITH("</tool_result>"),
    };
    (void)state;
    check(h, sizeof h / sizeof h[0]);
}

/* B72: results that are missing, in another order, double, early, or of nobody. */
#define TWO_CALLS SENT_CALLS("", SENT_CALL("c1", "f", "one") "," SENT_CALL("c2", "g", "two"))
#define TWO_READ  BOS USER "q" ASST "</think>" READ_CALLS(READ_CALL("f", "one") READ_CALL("g", "two"))

static void b72_results_of_two_calls(void **state)
{
    static const struct history h[] = {
        {"no result", "[" SENT_USER("q") "," TWO_CALLS "," SENT_USER("go on") "]", false,
         TWO_READ USER "go on" ASST "</think>", false},
        {"the second result only", "[" SENT_USER("q") "," TWO_CALLS "," SENT_RESULT("c2", "B") "]", false,
         TWO_READ USER READ_RESULT("B") ASST "</think>", false},
        {"both in order", "[" SENT_USER("q") "," TWO_CALLS "," SENT_RESULT("c1", "A") ","
         SENT_RESULT("c2", "B") "]", false,
         TWO_READ USER READ_RESULT("A") "\n\n" READ_RESULT("B") ASST "</think>", false},
        {"both swapped", "[" SENT_USER("q") "," TWO_CALLS "," SENT_RESULT("c2", "B") ","
         SENT_RESULT("c1", "A") "]", false,
         TWO_READ USER READ_RESULT("A") "\n\n" READ_RESULT("B") ASST "</think>", false},
        {"a double one", "[" SENT_USER("q") "," TWO_CALLS "," SENT_RESULT("c2", "B") "," SENT_RESULT("c1", "A") ","
         SENT_RESULT("c1", "again") "]", false,
         TWO_READ USER READ_RESULT("A") "\n\n" READ_RESULT("again") "\n\n" READ_RESULT("B") ASST "</think>", false},
        {"an unknown one", "[" SENT_USER("q") "," TWO_CALLS "," SENT_RESULT("c2", "B") "," SENT_RESULT("zz", "Z") ","
         SENT_RESULT("c1", "A") "]", false,
         TWO_READ USER READ_RESULT("Z") "\n\n" READ_RESULT("A") "\n\n" READ_RESULT("B") ASST "</think>", false},
        {"before the calls", "[" SENT_USER("q") "," SENT_RESULT("c2", "B") "," SENT_RESULT("c1", "A") "," TWO_CALLS ","
         SENT_RESULT("c2", "later") "]", false,
         BOS USER "q\n\n" READ_RESULT("B") "\n\n" READ_RESULT("A") ASST "</think>"
         READ_CALLS(READ_CALL("f", "one") READ_CALL("g", "two")) USER READ_RESULT("later") ASST "</think>", false},
        {"the same ids again, the other way round", "[" SENT_USER("q") "," TWO_CALLS "," SENT_RESULT("c1", "A") ","
         SENT_RESULT("c2", "B") "," SENT_CALLS("", SENT_CALL("c2", "g", "two") "," SENT_CALL("c1", "f", "one")) ","
         SENT_RESULT("c1", "C") "," SENT_RESULT("c2", "D") "]", false,
         TWO_READ USER READ_RESULT("A") "\n\n" READ_RESULT("B") ASST "</think>"
         READ_CALLS(READ_CALL("g", "two") READ_CALL("f", "one")) USER READ_RESULT("D") "\n\n" READ_RESULT("C")
         ASST "</think>", false},
        {"a text between them stays where it is", "[" SENT_USER("q") "," TWO_CALLS "," SENT_RESULT("c2", "B") ","
         SENT_USER("now") "," SENT_RESULT("c1", "A") "]", false,
         TWO_READ USER READ_RESULT("A") "\n\nnow\n\n" READ_RESULT("B") ASST "</think>", false},
    };
    (void)state;
    check(h, sizeof h / sizeof h[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b66_last_turn_is_the_assistants),
        cmocka_unit_test(b68_markers_in_history),
        cmocka_unit_test(b72_results_of_two_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
