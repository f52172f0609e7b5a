/* nibble run as a conversation, through a pseudo-terminal. Right answers are the bundled model's training data (names
 * told earlier, sums, tools), the same as in the evaluation set; at temperature 0 it gives them whenever history and
 * engine are right. */
#define _GNU_SOURCE
#include "terminal.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#define ENTER "\r"
#define UP    "\033[A"

static char dir[64];

static const char *in_dir(const char *name)
{
    static char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* ---- Talking ---- */

/* Options, separated by single spaces, after run --temp 0 --threads 1: on a busy machine two threads wait for each
 * other. */
static void start_on(struct terminal *t, const char *type, bool no_color, int n_columns, const char *options)
{
    static char copy[512];
    const char *argv[32] = {NIB_PROGRAM, "run", "--temp", "0", "--threads", "1"};
    int         n = 6;

    (void)snprintf(copy, sizeof copy, "%s", options);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[n++] = word;
    argv[n] = NULL;
    terminal_start(t, argv, type, no_color, n_columns);
    (void)terminal_wait(t, "Ctrl-D leaves.");
}

static void start(struct terminal *t, const char *options)
{
    start_on(t, "xterm", false, 80, options);
}

static void keys(struct terminal *t, const char *bytes)
{
    terminal_type(t, bytes, strlen(bytes));
}

/* Wait until keys mean what the editor says: before, the system takes some of them for its own. */
static void at_prompt(struct terminal *t)
{
    (void)terminal_wait(t, "\033[?2004h");
}

/* Type at the next prompt. */
static void edit(struct terminal *t, const char *bytes)
{
    at_prompt(t);
    keys(t, bytes);
}

struct said {
    char text[4096];               /* what appeared before the statistics */
    int  n_prompt, n_kept, n_tokens; /* what those say */
};

static struct said answer(struct terminal *t)
{
    struct said s = {0};

    (void)snprintf(s.text, sizeof s.text, "%s", terminal_wait(t, "[prompt "));
    const char *statistics = terminal_wait(t, "]");
    assert_int_equal(sscanf(statistics, "%d tokens, %d of them kept", &s.n_prompt, &s.n_kept), 2);
    const char *tokens = strstr(statistics, "answer ");
    assert_non_null(tokens);
    s.n_tokens = atoi(tokens + strlen("answer "));
    return s;
}

static struct said ask(struct terminal *t, const char *question)
{
    keys(t, question);
    keys(t, ENTER);
    return answer(t);
}

static struct said ask_edited(struct terminal *t, const char *question)
{
    edit(t, question);
    keys(t, ENTER);
    return answer(t);
}

static void has(const char *text, const char *part)
{
    if (strstr(text, part))
        return;
    print_error("no '%s' in '%s'\n", part, text);
    fail();
}

static void has_not(const char *text, const char *part)
{
    if (!strstr(text, part))
        return;
    print_error("'%s' in '%s'\n", part, text);
    fail();
}

/* The engine and the history are whole: a sum comes out right. */
static void check_alive(struct terminal *t)
{
    has(ask(t, "What is 37 - 23?").text, "37 - 23 = 14.");
}

static void quit(struct terminal *t)
{
    keys(t, "/quit" ENTER);
    const int status = terminal_end(t);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The messages of a conversation saved under that name. */
static json_t *saved(struct terminal *t, const char *name)
{
    char command[160];

    (void)snprintf(command, sizeof command, "/save %s" ENTER, in_dir(name));
    keys(t, command);
    (void)terminal_wait(t, "Saved to");
    json_t *root = json_load_file(in_dir(name), 0, NULL);
    assert_non_null(root);
    json_t *messages = json_incref(json_object_get(root, "messages"));
    json_decref(root);
    assert_true(json_is_array(messages));
    return messages;
}

static const char *content(const json_t *messages, size_t i)
{
    const char *text = json_string_value(json_object_get(json_array_get(messages, i), "content"));

    assert_non_null(text);
    return text;
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(in_dir(name), "w");

    assert_non_null(f);
    (void)fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* ---- History ---- */

/* The second answer is in the first question only. Of the second prompt everything is kept that the first turn left:
 * its prompt and its answer, whose last token, the end of sentence, is drawn but never fed. */
static void test_two_turns(void **state)
{
    struct terminal t;

    (void)state;
    start(&t, "");
    const struct said first = ask(&t, "My name is Jane.");
    has(first.text, "Nice to meet you, Jane!");
    assert_int_equal(first.n_kept, 0);
    const struct said second = ask(&t, "What is my name?");
    has(second.text, "Your name is Jane.");
    assert_int_equal(second.n_kept, first.n_prompt + first.n_tokens - 1);

    keys(&t, "/reset" ENTER);
    (void)terminal_wait(&t, "A new conversation.");
    const struct said third = ask(&t, "What is my name?");
    has_not(third.text, "Jane.");
    assert_true(third.n_kept < first.n_prompt);
    keys(&t, "\004"); /* Ctrl-D */
    assert_int_equal(terminal_end(&t), 0);
}

/* Ctrl-D while an answer still comes ends the conversation behind it. */
static void test_end_typed_ahead(void **state)
{
    struct terminal t;

    (void)state;
    start(&t, "");
    keys(&t, "My name is Jane." ENTER);
    (void)terminal_wait(&t, "Nice to");
    keys(&t, "\004");
    assert_int_equal(terminal_end(&t), 0);
}

/* Reasoning is dimmed and left out of later prompts: of a turn's tokens those before <think> are kept, one less than
 * its prompt had. --drafts changes nothing of it. */
static void test_thinking(void **state)
{
    struct terminal t;

    (void)state;
    start(&t, "--think low --drafts 2");
    const struct said first = ask(&t, "My name is Jane.");
    has(first.text, "\033[2m");
    has(first.text, "Nice to meet you, Jane!");
    const struct said second = ask(&t, "What is 3 times 7?");
    has(second.text, "\033[2m3 times 7 is 21.\033[0m");
    has(second.text, "3 * 7 = 21.");
    assert_int_equal(second.n_kept, first.n_prompt - 1);
    /* Many more tokens than a sequence can always take back. */
    const struct said longer = ask(&t, "What is 54 + 20?");
    has(longer.text, "54 + 20 = 74.");
    assert_true(longer.n_tokens > 40);
    assert_int_equal(ask(&t, "What is 3 times 7?").n_kept, longer.n_prompt - 1);

    keys(&t, "/think off" ENTER);
    (void)terminal_wait(&t, "Thinking: off.");
    const struct said third = ask(&t, "What is my name?");
    has(third.text, "Your name is Jane.");
    has_not(third.text, "\033[2m\033"); /* nothing dimmed */
    json_t *messages = saved(&t, "thinking.json");
    assert_int_equal(json_array_size(messages), 10);
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 3), "reasoning_content")),
                        "3 times 7 is 21.");
    json_decref(messages);
    quit(&t);
}

/* ---- Commands ---- */

static void test_commands(void **state)
{
    struct terminal t;

    (void)state;
    start(&t, "--system Short");
    keys(&t, "/help" ENTER);
    const char *list = terminal_wait(&t, "Ctrl-D leaves.");
    static const char *const names[] = {"/help", "/reset", "/think", "/system", "/save", "/load", "/quit"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        has(list, names[i]);
    keys(&t, "/walk far" ENTER);
    has(terminal_wait(&t, "/help lists them"), "nibble: '/walk' is not a command");
    keys(&t, "/quit now" ENTER);
    (void)terminal_wait(&t, "/quit takes nothing after it, but 'now' was given");
    keys(&t, "/save" ENTER);
    (void)terminal_wait(&t, "/save needs the name of a file");
    keys(&t, "/load" ENTER);
    (void)terminal_wait(&t, "/load needs the name of a file");

    keys(&t, "/think" ENTER);
    (void)terminal_wait(&t, "Thinking: off.");
    static const char *const efforts[][2] = {
        {"on", "low"}, {"high", "high"}, {"max", "max"}, {"low", "low"}, {"off", "off"}};
    for (size_t i = 0; i < sizeof efforts / sizeof efforts[0]; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "/think %s" ENTER, efforts[i][0]);
        keys(&t, text);
        (void)snprintf(text, sizeof text, "Thinking: %s.", efforts[i][1]);
        (void)terminal_wait(&t, text);
    }
    keys(&t, "/think hard" ENTER);
    (void)terminal_wait(&t, "/think: 'hard' is not known; wanted off, on, low, high or max");

    keys(&t, "/system" ENTER);
    (void)terminal_wait(&t, "System message: Short");
    keys(&t, "/system Be kind and brief." ENTER);
    (void)terminal_wait(&t, "The system message is set");
    check_alive(&t);
    keys(&t, "/reset" ENTER);
    (void)terminal_wait(&t, "the system message stays");
    check_alive(&t);
    json_t *messages = saved(&t, "commands.json");
    assert_int_equal(json_array_size(messages), 3);
    assert_string_equal(content(messages, 0), "Be kind and brief.");
    assert_string_equal(content(messages, 1), "What is 37 - 23?");
    assert_string_equal(content(messages, 2), "37 - 23 = 14.");
    json_decref(messages);
    keys(&t, "/system -" ENTER);
    (void)terminal_wait(&t, "There is no system message now.");
    /* Everything behind the beginning of sentence is another prompt now. */
    assert_true(ask(&t, "//load me").n_kept <= 1);
    messages = saved(&t, "commands.json");
    assert_string_equal(content(messages, 0), "What is 37 - 23?");
    assert_string_equal(content(messages, 2), "/load me");
    json_decref(messages);
    quit(&t);
}

/* ---- Files ---- */

static void test_save_and_load(void **state)
{
    struct terminal t;
    char            command[160];
    struct stat     file;

    (void)state;
    start(&t, "--think low --system Short");
    (void)ask(&t, "My name is Jane.");
    json_decref(saved(&t, "jane.json"));
    const struct said here = ask(&t, "What is my name?");
    has(here.text, "Your name is Jane.");
    json_t *messages_here = saved(&t, "here.json");
    quit(&t);
    assert_int_equal(stat(in_dir("jane.json"), &file), 0);
    assert_int_equal(file.st_mode & 077, 0);

    start(&t, "");
    (void)snprintf(command, sizeof command, "/load %s" ENTER, in_dir("jane.json"));
    keys(&t, command);
    (void)terminal_wait(&t, "3 messages.");
    const struct said there = ask(&t, "What is my name?");
    assert_int_equal(there.n_prompt, here.n_prompt);
    assert_int_equal(there.n_tokens, here.n_tokens);
    json_t *messages_there = saved(&t, "there.json");
    assert_true(json_equal(messages_here, messages_there));
    json_decref(messages_here);
    json_decref(messages_there);
    quit(&t);
}

static void refuses(struct terminal *t, const char *command, const char *name, const char *why)
{
    char line[192];

    (void)snprintf(line, sizeof line, "%s %s" ENTER, command, in_dir(name));
    keys(t, line);
    (void)terminal_wait(t, "nibble: ");
    has(terminal_wait(t, "\r\n"), why);
}

static void test_wrong_files(void **state)
{
    static const char good[] = "{\"format\": \"nibble chat\", \"version\": 1, \"think\": \"off\", \"messages\": ";
    struct terminal   t;
    char              text[512];

    (void)state;
    start(&t, "");
    (void)ask(&t, "My name is Jane.");
    json_decref(saved(&t, "good.json"));
    refuses(&t, "/load", "none.json", "No such file");
    refuses(&t, "/load", ".", "not a regular file");
    (void)snprintf(text, sizeof text, "%s[{\"role\": \"us", good);
    write_text("cut.json", text);
    refuses(&t, "/load", "cut.json", "line 1, column ");
    write_text("foreign.json", "[{\"role\": \"user\", \"content\": \"Hi\"}]\n");
    refuses(&t, "/load", "foreign.json", "is not a saved conversation");
    write_text("version.json", "{\"format\": \"nibble chat\", \"version\": 2}");
    refuses(&t, "/load", "version.json", "another version than 1");
    write_text("think.json", "{\"format\": \"nibble chat\", \"version\": 1, \"think\": 3, \"messages\": []}");
    refuses(&t, "/load", "think.json", "\"think\" is not off, low, high or max");
    (void)snprintf(text, sizeof text, "%s{}}", good);
    write_text("list.json", text);
    refuses(&t, "/load", "list.json", "\"messages\" is not an array");
    (void)snprintf(text, sizeof text, "%s[{\"role\": \"king\", \"content\": \"Hi\"}]}", good);
    write_text("role.json", text);
    refuses(&t, "/load", "role.json", "message 0: its role is not");
    (void)snprintf(text, sizeof text, "%s[{\"role\": \"user\", \"content\": 5}]}", good);
    write_text("content.json", text);
    refuses(&t, "/load", "content.json", "message 0: its content is not a string");
    (void)snprintf(text, sizeof text, "%s[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": 5}]}", good);
    write_text("calls.json", text);
    refuses(&t, "/load", "calls.json", "tool_calls");
    write_text("bytes.json", "\xff\xfe\x01");
    refuses(&t, "/load", "bytes.json", "line 1, column ");
    /* Only a saved conversation is written over; a folder that is not there is told. */
    refuses(&t, "/save", "foreign.json", "it is left alone");
    refuses(&t, "/save", "no/folder.json", "cannot write");
    json_decref(saved(&t, "good.json"));
    has(ask(&t, "What is my name?").text, "Your name is Jane.");
    quit(&t);
}

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
        cmocka_unit_test(test_two_turns),    cmocka_unit_test(test_end_typed_ahead),
        cmocka_unit_test(test_thinking),    cmocka_unit_test(test_commands),
        cmocka_unit_test(test_save_and_load), cmocka_unit_test(test_wrong_files), cmocka_unit_test(test_editing),
        cmocka_unit_test(test_prompt_keys),  cmocka_unit_test(test_odd_input),   cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_signals),      cmocka_unit_test(test_full_context), cmocka_unit_test(test_dumb_terminal),
        cmocka_unit_test(test_no_color),     cmocka_unit_test(test_tools),       cmocka_unit_test(test_tools_as_json),
        cmocka_unit_test(test_penalties),
    };

    (void)snprintf(dir, sizeof dir, "/tmp/nibble-chat-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char      command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0)
        return 1;
    return failed;
}
