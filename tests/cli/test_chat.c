/* nibble run as a conversation, through a pseudo-terminal: history, commands, files. Right answers are the bundled
 * model's training data (names told earlier, sums, tools), the same as in the evaluation set; at temperature 0 it gives
 * them whenever history and engine are right. */
#define _GNU_SOURCE
#include "chat_rig.h"

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

/* ---- What a model may write ---- */

/* A copy of the bundled model, in which the token " Paris" stands for a text with control characters: ESC [2J would
 * clear the screen, BEL and DEL, U+009B is CSI in one character; the tab is harmless. Its one merge goes, since no two
 * tokens make that text. Vocabularies spell bytes as characters: U+011B is 1B, U+0107 07, U+0121 7F, U+00C2 U+013D C2
 * 9B, U+0109 09, U+0120 a blank. */
static void make_hostile_model(void)
{
    static const char name[] = "\u0120\u011b[2J\u0107\u0121\u00c2\u013d\u0109Paris", paris[] = "\u0120Paris";
    json_t *root = json_load_file(NIB_SOURCE_DIR "/models/tiny-v4/tokenizer.json", 0, NULL);
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab"), *id;
    json_t *merges = json_object_get(model, "merges");
    char    command[4096];

    assert_non_null(id = json_incref(json_object_get(vocab, paris)));
    assert_int_equal(json_object_del(vocab, paris), 0);
    assert_int_equal(json_object_set_new(vocab, name, id), 0);
    for (size_t i = json_array_size(merges); i-- > 0;)
        if (strcmp(json_string_value(json_array_get(json_array_get(merges, i), 1)), "aris") == 0)
            assert_int_equal(json_array_remove(merges, i), 0);
    (void)snprintf(command, sizeof command, "mkdir %s && ln -s '" NIB_SOURCE_DIR "'/models/tiny-v4/[cgm]* %s",
                   in_dir("hostile"), in_dir("hostile"));
    assert_int_equal(system(command), 0);
    assert_int_equal(json_dump_file(root, in_dir("hostile/tokenizer.json"), 0), 0);
    json_decref(root);
}

/* A terminal gets none of them; a file or a pipe gets the model's bytes. */
static void test_control_characters(void **state)
{
    struct terminal t;
    char            options[160], command[4096], output[256];

    (void)state;
    make_hostile_model();
    (void)snprintf(options, sizeof options, "-m %s --chat-profile ga", in_dir("hostile"));
    start(&t, options);
    has(ask(&t, "What is the capital of France?").text,
        "France is \xef\xbf\xbd[2J\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\tParis.");
    quit(&t);
    (void)snprintf(command, sizeof command,
                   "'" NIB_PROGRAM "' run --temp 0 --threads 1 %s -p 'What is the capital of France?' 2>&1", options);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    output[fread(output, 1, sizeof output - 1, f)] = '\0';
    assert_int_equal(pclose(f), 0);
    has(output, "France is \033[2J\007\177\xc2\x9b\tParis.");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_turns), cmocka_unit_test(test_end_typed_ahead), cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_commands),  cmocka_unit_test(test_save_and_load),   cmocka_unit_test(test_wrong_files),
        cmocka_unit_test(test_control_characters),
    };

    make_dir();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return remove_dir() ? failed : 1;
}
