/* What the tests of the conversation share: starting it, typing, reading answers, what it saves. Include it first, with
 * _GNU_SOURCE. */
#ifndef NIB_TEST_CHAT_RIG_H
#define NIB_TEST_CHAT_RIG_H

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

static inline void make_dir(void)
{
    (void)snprintf(dir, sizeof dir, "/tmp/nibble-chat-XXXXXX");
    if (!mkdtemp(dir))
        abort();
}

static inline bool remove_dir(void)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) == 0;
}

static inline const char *in_dir(const char *name)
{
    static char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* ---- Talking ---- */

/* Options, separated by single spaces, after run --temp 0 --threads 1: on a busy machine two threads wait for each
 * other. */
static inline void start_on(struct terminal *t, const char *type, bool no_color, int n_columns, const char *options)
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

static inline void start(struct terminal *t, const char *options)
{
    start_on(t, "xterm", false, 80, options);
}

static inline void keys(struct terminal *t, const char *bytes)
{
    terminal_type(t, bytes, strlen(bytes));
}

/* Wait until keys mean what the editor says: before, the system takes some of them for its own. */
static inline void at_prompt(struct terminal *t)
{
    (void)terminal_wait(t, "\033[?2004h");
}

/* Type at the next prompt. */
static inline void edit(struct terminal *t, const char *bytes)
{
    at_prompt(t);
    keys(t, bytes);
}

struct said {
    char text[4096];               /* what appeared before the statistics */
    int  n_prompt, n_kept, n_tokens; /* what those say */
};

static inline struct said answer(struct terminal *t)
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

static inline struct said ask(struct terminal *t, const char *question)
{
    keys(t, question);
    keys(t, ENTER);
    return answer(t);
}

static inline struct said ask_edited(struct terminal *t, const char *question)
{
    edit(t, question);
    keys(t, ENTER);
    return answer(t);
}

static inline void has(const char *text, const char *part)
{
    if (strstr(text, part))
        return;
    print_error("no '%s' in '%s'\n", part, text);
    fail();
}

static inline void has_not(const char *text, const char *part)
{
    if (!strstr(text, part))
        return;
    print_error("'%s' in '%s'\n", part, text);
    fail();
}

/* The engine and the history are whole: a sum comes out right. */
static inline void check_alive(struct terminal *t)
{
    has(ask(t, "What is 37 - 23?").text, "37 - 23 = 14.");
}

static inline void quit(struct terminal *t)
{
    keys(t, "/quit" ENTER);
    const int status = terminal_end(t);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The messages of a conversation saved under that name. */
static inline json_t *saved(struct terminal *t, const char *name)
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

static inline const char *content(const json_t *messages, size_t i)
{
    const char *text = json_string_value(json_object_get(json_array_get(messages, i), "content"));

    assert_non_null(text);
    return text;
}

static inline void write_text(const char *name, const char *text)
{
    FILE *f = fopen(in_dir(name), "w");

    assert_non_null(f);
    (void)fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

#endif
