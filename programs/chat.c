/* The conversation: read a message, answer it, or do what a command says. */
#include "chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat_line.h"
#include "cli.h"

volatile sig_atomic_t chat_interrupted;

static void on_interrupt(int number)
{
    chat_interrupted = number;
}

/* Without SA_RESTART: a plain line being typed ends too. */
static void catch_interrupt(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
}

/* ---- Commands ---- */

struct command {
    const char *name, *argument, *about;
    bool (*run)(struct chat *c, const char *argument); /* false: leave */
};

static bool help(struct chat *c, const char *argument);

static json_t *system_message(const struct chat *c)
{
    json_t     *first = json_array_get(c->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));

    return role && strcmp(role, "system") == 0 ? first : NULL;
}

static bool reset(struct chat *c, const char *argument)
{
    const size_t kept = system_message(c) ? 1 : 0;

    (void)argument;
    while (json_array_size(c->messages) > kept)
        (void)json_array_remove(c->messages, json_array_size(c->messages) - 1);
    (void)printf("A new conversation%s.\n", kept ? "; the system message stays" : "");
    return true;
}

static bool think(struct chat *c, const char *argument)
{
    /* "on" is the least there is: what the prompt rules have where no effort is given. */
    int32_t found = strcmp(argument, "on") == 0 ? NIB_EFFORT_LOW : -1;

    for (int32_t i = 0; prompt_think_names[i]; i++)
        if (strcmp(argument, prompt_think_names[i]) == 0)
            found = i;
    if (*argument && found < 0) {
        (void)cli_fail("/think: '%s' is not known; wanted off, on, low, high or max", argument);
        return true;
    }
    if (*argument)
        c->rules.think = found;
    const bool least = c->rules.profile == NIB_CHAT_PREVIEW && c->rules.think == NIB_EFFORT_LOW;
    (void)printf("Thinking: %s%s.\n", prompt_think_names[c->rules.think],
                 least ? " (for this model the same as high)" : "");
    return true;
}

static bool set_system(struct chat *c, const char *argument)
{
    json_t *first = system_message(c);

    if (!*argument) {
        const char *text = json_string_value(json_object_get(first, "content"));
        if (text)
            (void)printf("System message: %s\n", text);
        else
            (void)printf("There is no system message.\n");
        return true;
    }
    if (strcmp(argument, "-") == 0) {
        if (first)
            (void)json_array_remove(c->messages, 0);
        (void)printf("There is no system message now.\n");
        return true;
    }
    json_t *list = json_array();
    if (list && prompt_add_message(list, "/system", "system", argument, strlen(argument)) == CLI_OK) {
        json_t *message = json_array_get(list, 0);
        if ((first ? json_array_set(c->messages, 0, message) : json_array_insert(c->messages, 0, message)) != 0)
            (void)cli_fail_memory();
        else
            (void)printf("The system message is set, for all of the conversation.\n");
    }
    json_decref(list);
    return true;
}

/* "-" is no standard input here. */
static const char *file_name(const char *command, const char *argument)
{
    if (!*argument)
        (void)cli_fail("%s needs the name of a file after it", command);
    return strcmp(argument, "-") == 0 ? "./-" : *argument ? argument : NULL;
}

static bool save(struct chat *c, const char *argument)
{
    const char *path = file_name("/save", argument);

    if (path && chat_save(c, path))
        (void)printf("Saved to '%s'.\n", path);
    return true;
}

static bool load(struct chat *c, const char *argument)
{
    const char *path = file_name("/load", argument);

    if (path && chat_load(c, path))
        (void)printf("Loaded '%s': %zu messages.\n", path, json_array_size(c->messages));
    return true;
}

static bool quit(struct chat *c, const char *argument)
{
    (void)c;
    (void)argument;
    return false;
}

static const struct command commands[] = {
    {"/help", "", "show this", help},
    {"/reset", "", "begin a new conversation; the system message stays", reset},
    {"/think", " off|on|low|high|max", "let the model reason first, or show whether it does", think},
    {"/system", " TEXT", "set the system message; - takes it out, nothing shows it", set_system},
    {"/save", " FILE", "write the conversation to a file", save},
    {"/load", " FILE", "go on with one from a file, in place of this one", load},
    {"/quit", "", "leave", quit},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static bool help(struct chat *c, const char *argument)
{
    char left[64];

    (void)c;
    (void)argument;
    for (int i = 0; i < N_COMMANDS; i++) {
        (void)snprintf(left, sizeof left, "%s%s", commands[i].name, commands[i].argument);
        (void)printf("  %-27s %s\n", left, commands[i].about);
    }
    (void)printf("\nA backslash at the end of a line goes on with another line; pasted lines stay together. A message\n"
                 "that begins with a slash is written with two. Ctrl-C stops an answer and clears what is typed;\n"
                 "Ctrl-D leaves.\n");
    return true;
}

static bool run_command(struct chat *c, const char *text)
{
    const size_t n = strcspn(text, " \t\n");
    const char  *argument = text + n + strspn(text + n, " \t\n");

    for (int i = 0; i < N_COMMANDS; i++)
        if (strlen(commands[i].name) == n && memcmp(commands[i].name, text, n) == 0) {
            if (!commands[i].argument[0] && *argument)
                (void)cli_fail("%s takes nothing after it, but '%.200s' was given", commands[i].name, argument);
            else
                return commands[i].run(c, argument);
            return true;
        }
    (void)cli_fail("'%.*s' is not a command; /help lists them, and // begins a message with a slash",
                   (int)(n < 80 ? n : 80), text);
    return true;
}

/* ---- The loop ---- */

/* What is typed next: a message, or a call's result. */
static void make_prompt(const struct chat *c, char *out, size_t out_bytes, bool *is_result)
{
    struct chat_call due;

    *is_result = chat_call_due(c->messages, &due);
    if (!*is_result) {
        (void)snprintf(out, out_bytes, "> ");
        return;
    }
    (void)snprintf(out, out_bytes, "result of %.40s> ", due.name);
    for (char *b = out; *b; b++)
        if ((unsigned char)*b < 0x20 || (unsigned char)*b >= 0x7f)
            *b = '?'; /* its columns are counted as its bytes */
}

/* False: leave. */
static bool take_message(struct chat *c, const char *text, size_t n, bool is_result)
{
    if (n == 0 && !is_result)
        return true;
    if (strlen(text) != n) {
        (void)cli_fail("the message: byte 0x00 at offset %zu is not text; it is not sent", strlen(text));
        return true;
    }
    if (text[0] == '/' && text[1] != '/')
        return run_command(c, text);
    if (text[0] == '/') {
        text++;
        n--;
    }
    chat_say(c, is_result ? "tool" : "user", text, n);
    return !c->lost;
}

static void talk(struct chat *c, struct chat_line *l)
{
    char        prompt[64];
    const char *text;
    size_t      n;
    bool        is_result, go_on = true;

    while (go_on) {
        make_prompt(c, prompt, sizeof prompt, &is_result);
        chat_interrupted = 0;
        switch (chat_line_read(l, prompt, &text, &n)) {
        case CHAT_TYPED_TEXT: go_on = take_message(c, text, n, is_result); break;
        case CHAT_TYPED_END: go_on = false; break;
        case CHAT_TYPED_INTERRUPTED:
        case CHAT_TYPED_FAILED: break;
        }
        (void)fflush(stdout);
    }
}

static int begin(struct chat *c)
{
    const struct prompt_options *o = c->o->prompt;
    int                          code = c->messages ? CLI_OK : cli_fail_memory();

    c->rules.think = o->think;
    c->rules.allow_control = o->allow_control;
    if (code == CLI_OK)
        code = prompt_profile(c->s, o, &c->rules.profile);
    if (code == CLI_OK)
        code = prompt_read_tools(o, &c->tools);
    if (code == CLI_OK && o->system)
        code = prompt_add_message(c->messages, "--system", "system", o->system, strlen(o->system));
    return code;
}

int chat_run(struct session *s, const struct chat_options *o)
{
    struct chat       c = {.s = s, .o = o, .messages = json_array()};
    struct chat_line *l = NULL;

    int code = begin(&c);
    if (code == CLI_OK) {
        const bool opened = chat_seq_open(&c.seq, s->engine, s->seq);
        s->seq = NULL;
        l = opened ? chat_line_open() : NULL;
        if (!l)
            code = cli_fail_memory();
    }
    if (code == CLI_OK) {
        (void)printf("nibble %s, %s, %d tokens of context. /help lists the commands, Ctrl-D leaves.\n", nib_version(),
                     s->bundled ? "the bundled model" : s->dir, s->n_ctx);
        catch_interrupt(on_interrupt);
        talk(&c, l);
        catch_interrupt(SIG_DFL);
        code = c.lost ? CLI_FAILED : CLI_OK;
    }
    chat_line_close(l);
    chat_seq_close(&c.seq);
    json_decref(c.messages);
    free(c.tools);
    return code;
}
