/* nibble run as a conversation, through a pseudo-terminal: keys, stopping, kinds of terminals, tools and settings.
 * Answers are the bundled model's training data, as in test_chat.c. */
#define _GNU_SOURCE
#include "chat_rig.h"

/* ---- Keys ---- */

/* What arrived is what the saved messages hold. */
static void test_editing(void **state)
{
    struct terminal t;

    (void)state;
    start(&t, "-n 1");
    /* Home, insert, end, delete backwards; characters of one to four bytes are one step each. */
    (void)ask_edited(&t, "bc\001a\005d\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80\177\177e");
    (void)ask_edited(&t, "one two three\027\027four\001\013five"); /* Ctrl-W twice, Ctrl-A, Ctrl-K */
    (void)ask_edited(&t, "xyz\033[D\033[D\033[3~\033[C!");          /* left twice, Delete, right */
    (void)ask_edited(&t, "draft" UP UP "\033[B?");                  /* history: two back, one forward */
    (void)ask_edited(&t, "go on\\" ENTER "with this\033\rand that"); /* backslash, Alt-Enter */
    (void)ask_edited(&t, "junk\025\033[200~pasted\r\nlines\rof text\001\n\033[201~."); /* Ctrl-U; a paste */
    (void)ask_edited(&t, "a b c\033[1;5D\033[1;5DX\033fY"); /* words */
    json_t *messages = saved(&t, "editing.json");
    assert_string_equal(content(messages, 0), "abcd\xc3\xa9" "e");
    assert_string_equal(content(messages, 2), "five");
    assert_string_equal(content(messages, 4), "xz!");
    assert_string_equal(content(messages, 6), "xz!?");
    assert_string_equal(content(messages, 8), "go on\nwith this\nand that");
    assert_string_equal(content(messages, 10), "pasted\nlines\nof text.");
    assert_string_equal(content(messages, 12), "a XbY c");
    json_decref(messages);
    quit(&t);
}

/* Ctrl-C clears the line; Ctrl-D only leaves an empty one. */
static void test_prompt_keys(void **state)
{
    struct terminal t;

    (void)state;
    start(&t, "");
    edit(&t, "What is the capital of\003");
    (void)terminal_wait(&t, "^C");
    const struct said first = ask(&t, "What is 37 - 23?");
    has(first.text, "37 - 23 = 14.");
    assert_int_equal(first.n_prompt, 14); /* the golden prompt's length: nothing of the cleared line is in it */
    edit(&t, "x\001\004"); /* deletes the x */
    keys(&t, "\004");
    assert_int_equal(terminal_end(&t), 0);
}

/* Input of any kind is taken or refused in a sentence. */
static void test_odd_input(void **state)
{
    enum { N_LONG = 100000 };
    struct terminal t;

    (void)state;
    start(&t, "");
    edit(&t, "ab\xff" "c" ENTER);
    (void)terminal_wait(&t, "byte 0xff at offset 2 is not UTF-8");
    check_alive(&t);

    char *pasted = malloc(N_LONG + 1);
    assert_non_null(pasted);
    for (int i = 0; i < N_LONG; i++)
        pasted[i] = "word "[i % 5];
    pasted[N_LONG] = '\0';
    /* In one line, typed at once or pasted: more than the context holds. The default context has 8192 tokens. */
    for (int marked = 0; marked < 2; marked++) {
        edit(&t, marked ? "\033[200~" : "");
        keys(&t, pasted);
        if (marked)
            keys(&t, "\033[201~");
        keys(&t, ENTER);
        has(terminal_wait(&t, "the message is taken back"), "the context of 8192 has no room for an answer");
        (void)terminal_wait(&t, "/reset begins a new conversation; --ctx N, up to 16384");
        check_alive(&t);
    }
    free(pasted);

    /* Any byte but those with a meaning of their own leaves the chat alive; sequences that nobody knows do nothing. */
    edit(&t, "\033[999;9999zq\033OZ\033x\033[12345678901234567890~\006\002\013\014\016\020\025");
    check_alive(&t);
    for (int columns = 1; columns < 12; columns += columns < 4 ? 1 : 3) {
        const struct winsize size = {.ws_row = 5, .ws_col = (unsigned short)columns};
        assert_int_equal(ioctl(t.fd, TIOCSWINSZ, &size), 0);
        edit(&t, "\xe6\x97\xa5\xe6\x9c\xac\xcc\x81\xf0\x9f\x98\x80\xff\t\033[D\033[D\033[D\001\005\025");
        check_alive(&t);
    }
    quit(&t);
}

/* ---- Stopping ---- */

/* On ref a token takes long enough that Ctrl-C comes in the middle. */
static void test_interrupt(void **state)
{
    struct terminal t;

    (void)state;
    start(&t, "--backend ref --ctx 256");
    keys(&t, "Count from 18 to 29." ENTER);
    (void)terminal_wait(&t, "18, 19");
    keys(&t, "\003");
    (void)terminal_wait(&t, "stopped; what was said so far stays");
    const struct said stopped = answer(&t);
    assert_true(stopped.n_tokens < 40);
    check_alive(&t);
    json_t *messages = saved(&t, "stopped.json");
    assert_int_equal(json_array_size(messages), 4);
    has(content(messages, 1), "18, 19");
    has_not(content(messages, 1), "29");
    json_decref(messages);
    quit(&t);
}

static int signal_of_end(int number)
{
    struct terminal t;
    struct termios  mode;

    start(&t, "");
    (void)terminal_wait(&t, "> ");
    keys(&t, "typed");
    (void)terminal_wait(&t, "typed");
    assert_int_equal(tcgetattr(t.fd, &mode), 0);
    assert_false(mode.c_lflag & ICANON);
    assert_int_equal(kill(t.pid, number), 0);
    (void)terminal_wait(&t, "\033[?2004l");
    const int status = terminal_end(&t);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* The terminal is put back before a signal ends the program. */
static void test_signals(void **state)
{
    struct terminal t;

    (void)state;
    assert_int_equal(signal_of_end(SIGTERM), SIGTERM);
    assert_int_equal(signal_of_end(SIGHUP), SIGHUP);
    /* The window is closed. */
    start(&t, "");
    (void)terminal_wait(&t, "> ");
    (void)close(t.fd);
    int status = 0;
    assert_int_equal(waitpid(t.pid, &status, 0), t.pid);
    assert_true(WIFSIGNALED(status) || WIFEXITED(status));
    free(t.seen);
}

static void test_full_context(void **state)
{
    struct terminal t;

    (void)state;
    start(&t, "--ctx 48");
    const struct said first = ask(&t, "My name is Jane.");
    has(first.text, "Jane");
    keys(&t, "Count from 18 to 29." ENTER);
    (void)terminal_wait(&t, "the context of 48 tokens is full, so the answer is cut off");
    (void)terminal_wait(&t, "/reset begins a new conversation; --ctx N, up to 16384");
    (void)answer(&t);
    keys(&t, "What is my name?" ENTER);
    (void)terminal_wait(&t, "the context of 48 has no room for an answer");
    keys(&t, "/reset" ENTER);
    (void)terminal_wait(&t, "A new conversation.");
    check_alive(&t);
    quit(&t);

    start(&t, "-n 3");
    keys(&t, "Count from 18 to 29." ENTER);
    (void)terminal_wait(&t, "cut off after 3 tokens, as -n asks");
    assert_int_equal(answer(&t).n_tokens, 3);
    quit(&t);
}

/* ---- Terminals ---- */

/* No escape sequence is written to a dumb terminal; lines are the system's. */
static void test_dumb_terminal(void **state)
{
    struct terminal t;

    (void)state;
    start_on(&t, "dumb", false, 80, "--think low");
    (void)terminal_wait(&t, "> ");
    keys(&t, "What is the capital of\003");
    (void)terminal_wait(&t, "> ");
    keys(&t, "What is 3\\\n");
    (void)terminal_wait(&t, ". ");
    keys(&t, "\003"); /* takes both lines back */
    (void)terminal_wait(&t, "> ");
    keys(&t, "What is 3 times 7?\n");
    const struct said s = answer(&t);
    has(s.text, "<think>3 times 7 is 21.</think>");
    has(s.text, "3 * 7 = 21.");
    keys(&t, "/walk\n");
    (void)terminal_wait(&t, "'/walk' is not a command");
    keys(&t, "My name\\\nis Jane.\n");
    (void)answer(&t);
    json_t *messages = saved(&t, "dumb.json");
    assert_string_equal(content(messages, 2), "My name\nis Jane.");
    json_decref(messages);
    assert_null(memchr(t.seen, 0x1b, t.n));
    keys(&t, "\004");
    assert_int_equal(terminal_end(&t), 0);
}

static void test_no_color(void **state)
{
    struct terminal t;

    (void)state;
    start_on(&t, "xterm", true, 80, "--think low");
    has(ask(&t, "What is 3 times 7?").text, "<think>3 times 7 is 21.</think>");
    assert_null(memmem(t.seen, t.n, "\033[2m", 4));
    quit(&t);
}

/* ---- Tools and settings ---- */

/* Two calls, whose results are asked for one after the other; a conversation that waits for them can be saved and gone
 * on with. */
static void test_tools(void **state)
{
    struct terminal t;
    char            line[160];

    (void)state;
    write_text("tools.json",
               "[{\"type\": \"function\", \"function\": {\"name\": \"calculate\", "
               "\"description\": \"Add two numbers\", \"parameters\": {\"type\": \"object\", "
               "\"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"integer\"}}, "
               "\"required\": [\"a\", \"b\"]}}}, "
               "{\"type\": \"function\", \"function\": {\"name\": \"lookup\", "
               "\"description\": \"Look up a word\", \"parameters\": {\"type\": \"object\", "
               "\"properties\": {\"word\": {\"type\": \"string\"}}, \"required\": [\"word\"]}}}]");
    (void)snprintf(line, sizeof line, "--think low --tools %s", in_dir("tools.json"));
    start(&t, line);
    const struct said call = ask(&t, "Use the calculator: 98 and 344. And: Look up the word spider.");
    has(call.text, "call calculate");
    has(call.text, "  a: 98\r\n  b: 344\r\n");
    has(call.text, "call lookup");
    has(call.text, "  word: \"spider\"\r\n");
    has_not(call.text, "DSML");
    (void)terminal_wait(&t, "result of calculate> ");
    json_decref(saved(&t, "waiting.json"));
    keys(&t, "442" ENTER);
    (void)terminal_wait(&t, "result of lookup> ");
    keys(&t, "/reset" ENTER);
    (void)terminal_wait(&t, "A new conversation.");
    (void)snprintf(line, sizeof line, "/load %s" ENTER, in_dir("waiting.json"));
    keys(&t, line);
    (void)terminal_wait(&t, "2 messages.");
    (void)terminal_wait(&t, "result of calculate> ");
    keys(&t, "442" ENTER);
    (void)terminal_wait(&t, "result of lookup> ");
    const struct said reply = ask(&t, "timber");
    has(reply.text, "The result is 442. The dictionary says: timber.");
    json_t *messages = saved(&t, "tools-said.json");
    assert_int_equal(json_array_size(messages), 5);
    static const char *const results[] = {"442", "timber"}, *const ids[] = {"call_0", "call_1"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *m = json_array_get(messages, 2 + i);
        assert_string_equal(json_string_value(json_object_get(m, "role")), "tool");
        assert_string_equal(json_string_value(json_object_get(m, "tool_call_id")), ids[i]);
        assert_string_equal(content(messages, 2 + i), results[i]);
    }
    json_decref(messages);
    quit(&t);
}

/* The same with a single prompt, for programs to read. */
static void test_tools_as_json(void **state)
{
    char command[512];

    (void)state; /* the file is test_tools' */
    (void)snprintf(command, sizeof command,
                   "%s run --temp 0 --threads 1 --json --tools %s -p 'Look up the word spider.' 2>/dev/null",
                   NIB_PROGRAM, in_dir("tools.json"));
    FILE *f = popen(command, "r");
    assert_non_null(f);
    json_t *o = json_loadf(f, 0, NULL);
    assert_int_equal(pclose(f), 0);
    assert_non_null(o);
    const json_t *calls = json_object_get(o, "tool_calls"), *call = json_array_get(calls, 0);
    assert_int_equal(json_array_size(calls), 1);
    assert_string_equal(json_string_value(json_object_get(call, "name")), "lookup");
    assert_string_equal(json_string_value(json_object_get(call, "arguments")), "{\"word\": \"spider\"}");
    assert_string_equal(json_string_value(json_object_get(o, "stop")), "stop");
    assert_string_equal(json_string_value(json_object_get(o, "text")), "");
    json_decref(o);
}

/* Penalties see the whole conversation, as if it had been one prompt: with a repetition penalty the second answer is
 * the one that the same text gets in one piece. */
static void test_penalties(void **state)
{
    static const char raw[] = "<｜User｜>My name is Jane.<｜Assistant｜></think>%s<｜end▁of▁sentence｜>"
                              "<｜User｜>What is my name?<｜Assistant｜></think>";
    struct terminal t;
    char            prompt[1024], command[2048], line[1024] = "";

    (void)state;
    start(&t, "--repetition 3 -n 12");
    (void)ask(&t, "My name is Jane.");
    (void)ask(&t, "What is my name?");
    json_t *messages = saved(&t, "penalties.json");
    (void)snprintf(prompt, sizeof prompt, raw, content(messages, 1));
    assert_null(strchr(prompt, '\''));
    (void)snprintf(command, sizeof command,
                   "%s run --temp 0 --threads 1 --repetition 3 -n 12 --raw -p '%s' 2>/dev/null", NIB_PROGRAM, prompt);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    const size_t n = fread(line, 1, sizeof line - 1, f);
    assert_int_equal(pclose(f), 0);
    assert_true(n > 0 && line[n - 1] == '\n');
    line[n - 1] = '\0';
    assert_string_equal(content(messages, 3), line);
    /* The penalty changes it, so leaving the past out would show. */
    assert_string_not_equal(line, "Your name is Jane.");
    json_decref(messages);
    quit(&t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_editing),       cmocka_unit_test(test_prompt_keys), cmocka_unit_test(test_odd_input),
        cmocka_unit_test(test_interrupt),     cmocka_unit_test(test_signals),     cmocka_unit_test(test_full_context),
        cmocka_unit_test(test_dumb_terminal), cmocka_unit_test(test_no_color),    cmocka_unit_test(test_tools),
        cmocka_unit_test(test_tools_as_json), cmocka_unit_test(test_penalties),
    };

    make_dir();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return remove_dir() ? failed : 1;
}
