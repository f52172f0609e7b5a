/* nibble tokenize against the tokenizer's and the chat encoder's goldens, which come from other programs; and what it
 * refuses. The whole goldens are the library's tests; here a share of them takes the way through files and the
 * command line. */
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#define GOLDENS   NIB_SOURCE_DIR "/tests/data/goldens"
#define TOKENIZER GOLDENS "/tokenizer/deepseek_v4.tokenizer.json"

static char dir[64];

static const char *in_dir(const char *name)
{
    static char path[2][128];
    static int  turn;

    turn = !turn;
    (void)snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void write_bytes(const char *name, const char *bytes, size_t n)
{
    FILE *f = fopen(in_dir(name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static char *read_bytes(const char *name, size_t *n)
{
    FILE *f = fopen(in_dir(name), "rb");
    char *bytes = malloc(1 << 20);

    assert_non_null(f);
    assert_non_null(bytes);
    *n = fread(bytes, 1, (1 << 20) - 1, f);
    bytes[*n] = '\0';
    (void)fclose(f);
    return bytes;
}

/* nibble tokenize with these words; output goes to the files out and err, input comes from the file in. */
static int run(const char *words)
{
    char command[1024];

    (void)snprintf(command, sizeof command, "%s tokenize %s <%s/in >%s/out 2>%s/err", NIB_PROGRAM, words, dir, dir,
                   dir);
    const int status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void run_well(const char *words)
{
    size_t n;

    if (run(words) == 0)
        return;
    print_error("nibble tokenize %s: %s\n", words, read_bytes("err", &n));
    fail();
}

static json_t *output(void)
{
    json_t *o = json_load_file(in_dir("out"), JSON_ALLOW_NUL, NULL);

    assert_non_null(o);
    return o;
}

/* Call for every step-th line of a golden file; for eight times as many with NIB_TEST_LONG. Reading the tokenizer takes
 * a third of a second each time. */
static void each_line(const char *path, int step, void (*check)(const json_t *row))
{
    if (getenv("NIB_TEST_LONG"))
        step = (step + 7) / 8;
    static char line[1 << 18];
    FILE       *f = fopen(path, "r");
    int         i = 0, n_checked = 0;

    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (i++ % step == 0) {
            json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
            assert_non_null(row);
            check(row);
            json_decref(row);
            n_checked++;
        }
    (void)fclose(f);
    assert_true(n_checked > 1);
}

static void write_ids(const char *name, const json_t *ids, const char *between)
{
    FILE *f = fopen(in_dir(name), "w");

    assert_non_null(f);
    for (size_t i = 0; i < json_array_size(ids); i++)
        (void)fprintf(f, "%s%lld", i ? between : "", (long long)json_integer_value(json_array_get(ids, i)));
    assert_int_equal(fclose(f), 0);
}

/* ---- Text ---- */

static void check_text(const json_t *row)
{
    const json_t *text = json_object_get(row, "text");
    size_t        n;

    write_bytes("in", json_string_value(text), json_string_length(text));
    run_well("-m " TOKENIZER " --json");
    json_t *o = output();
    assert_true(json_equal(json_object_get(o, "ids"), json_object_get(row, "ids")));
    assert_int_equal(json_array_size(json_object_get(o, "pieces")), json_array_size(json_object_get(row, "ids")));
    json_decref(o);

    write_ids("in", json_object_get(row, "ids"), ",");
    run_well("-m " TOKENIZER " --decode");
    char *bytes = read_bytes("out", &n);
    assert_int_equal(n, json_string_length(text));
    assert_memory_equal(bytes, json_string_value(text), n);
    free(bytes);
}

static void test_text(void **state)
{
    (void)state;
    each_line(GOLDENS "/tokenizer/deepseek_v4.jsonl", 200, check_text);
}

static void check_decoded(const json_t *row)
{
    write_ids("in", json_object_get(row, "ids"), "\n");
    run_well("-m " TOKENIZER " --decode --json -f -");
    json_t *o = output();
    assert_true(json_equal(json_object_get(o, "text"), json_object_get(row, "text")));
    json_decref(o);
}

static void test_decode(void **state)
{
    (void)state;
    each_line(GOLDENS "/tokenizer/decode.jsonl", 31, check_decoded);
}

/* Bytes that are no characters, and no byte at all, come back as they were. */
static void test_bytes(void **state)
{
    static const char odd[] = "a\0b\xff\xfe\xe6\x97 \xf0\x9f\x98\x80\r\n\"\\\x7f";
    size_t            n;

    (void)state;
    write_bytes("odd", odd, sizeof odd - 1);
    write_bytes("in", "", 0);
    char command[256];
    (void)snprintf(command, sizeof command, "--ids -f %s", in_dir("odd"));
    run_well(command);
    char *ids = read_bytes("out", &n);
    write_bytes("in", ids, n);
    free(ids);
    run_well("--decode");
    char *bytes = read_bytes("out", &n);
    assert_int_equal(n, sizeof odd - 1);
    assert_memory_equal(bytes, odd, n);
    free(bytes);
    run_well(command + strlen("--ids ")); /* the table spells out every byte */
    bytes = read_bytes("out", &n);
    static const char *const shown[] = {"\\x00", "\\xff", "\\xfe", "\\r", "\\n", "\\\"", "\\\\", "\\x7f"};
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++)
        assert_non_null(strstr(bytes, shown[i]));
    free(bytes);

    write_bytes("in", "", 0);
    run_well("--ids");
    run_well("--decode");
    bytes = read_bytes("out", &n);
    assert_int_equal(n, 0);
    free(bytes);
    /* A control token in a text is one unless it is told to be text. 2038 is the bundled tokenizer's <User>. */
    run_well("--ids '<｜User｜>'");
    bytes = read_bytes("out", &n);
    assert_string_equal(bytes, "2038\n");
    free(bytes);
    run_well("--ids --no-control-tokens '<｜User｜>'");
    bytes = read_bytes("out", &n);
    assert_null(strstr(bytes, "2038"));
    free(bytes);
}

/* ---- Conversations ---- */

static const char *think_of(const json_t *options, bool preview)
{
    const char *mode = json_string_value(json_object_get(options, "thinking_mode"));
    const char *effort = json_string_value(json_object_get(options, "reasoning_effort"));

    if (strcmp(mode, "thinking") != 0)
        return "off";
    return effort ? effort : preview ? "high" : "low"; /* what has no text of its own */
}

/* Rows that the command line cannot ask for, and one whose numbers jansson would spell otherwise, are the library's
 * tests alone. */
static void check_chat(const json_t *row)
{
    const json_t *options = json_object_get(row, "options"), *tools = json_object_get(row, "tools");
    const bool    preview = strcmp(json_string_value(json_object_get(row, "profile")), "preview") == 0;
    char          words[512];

    if (json_object_get(row, "error") || !json_is_null(json_object_get(options, "context")) ||
        !json_is_true(json_object_get(options, "add_default_bos_token")) ||
        strcmp(json_string_value(json_object_get(row, "name")), "tools_number_and_escape_rendering") == 0)
        return;
    assert_int_equal(json_dump_file(json_object_get(row, "messages"), in_dir("messages"), 0), 0);
    if (!json_is_null(tools))
        assert_int_equal(json_dump_file(tools, in_dir("tools"), 0), 0);
    /* The goldens' ids take control tokens in messages for what they spell. */
    (void)snprintf(words, sizeof words,
                   "-m %s --json --no-generation-prompt --allow-control-tokens --chat-profile %s --think %s %s "
                   "--chat %s/messages",
                   TOKENIZER, preview ? "preview" : "ga", think_of(options, preview),
                   json_is_true(json_object_get(options, "drop_thinking")) ? "" : "--keep-thinking", dir);
    if (!json_is_null(tools))
        (void)snprintf(words + strlen(words), sizeof words - strlen(words), " --tools %s/tools", dir);
    run_well(words);
    json_t *o = output();
    assert_string_equal(json_string_value(json_object_get(o, "text")),
                        json_string_value(json_object_get(row, "prompt")));
    assert_true(json_equal(json_object_get(o, "ids"), json_object_get(row, "ids")));
    json_decref(o);
}

static void test_chat(void **state)
{
    (void)state;
    each_line(GOLDENS "/chat/encode.jsonl", 19, check_chat);
}

/* An object with messages and tools is the same as two files; the plain form shows the text, then the ids. */
static void test_chat_forms(void **state)
{
    static const char object[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"tools\": [{\"type\": "
                                 "\"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}]}";
    char              words[256];
    size_t            n;

    (void)state;
    write_bytes("chat", object, sizeof object - 1);
    (void)snprintf(words, sizeof words, "--chat %s --think low", in_dir("chat"));
    run_well(words);
    char *shown = read_bytes("out", &n);
    assert_non_null(strstr(shown, "{\"name\": \"f\", \"parameters\": {}}"));
    assert_non_null(strstr(shown, "<｜User｜>Hi<｜Assistant｜><think>\n\n"));
    assert_non_null(strstr(shown, "   2041  \"<think>\"\n"));
    free(shown);
}

/* ---- Refusals ---- */

static void refuses(int code, const char *words, const char *why)
{
    size_t n;

    const int found = run(words);
    char     *said = read_bytes("err", &n);
    if (found != code || !strstr(said, why) || strncmp(said, "nibble: ", 8) != 0 ||
        strchr(said, '\n') != said + n - 1) {
        print_error("nibble tokenize %s: code %d, wanted %d; no '%s' in: %s\n", words, found, code, why, said);
        fail();
    }
    free(said);
}

static void refuses_chat(const char *file, const char *why)
{
    char words[256];

    write_bytes("chat", file, strlen(file));
    (void)snprintf(words, sizeof words, "--chat %s", in_dir("chat"));
    refuses(1, words, why);
}

static void test_refusals(void **state)
{
    (void)state;
    write_bytes("in", "1,2,x", 5);
    refuses(1, "--decode", "'x' at place 2 is not a token id");
    refuses(2, "--decode abc", "'abc' at place 0 is not a token id");
    refuses(2, "--decode 5,2048", "id 2048 at place 1 is outside 0..2047");
    refuses(2, "--decode -- -1", "id -1 at place 0 is outside 0..2047");
    refuses(2, "--decode 99999999999999999999", "at place 0");
    refuses(2, "--decode 1.5", "'1.5' at place 0");
    write_bytes("in", "1\0002", 3);
    refuses(1, "--decode", "byte 0x00 at offset 1");
    refuses(2, "a b", "'b' is one TEXT too many");
    refuses(2, "a -f b", "TEXT and -f both");
    refuses(2, "a --chat b", "--chat and TEXT both");
    refuses(2, "--decode --chat b", "wanted one of them");
    refuses(2, "--decode --ids 1", "--ids is for encoding");
    refuses(2, "--think low a", "goes with --chat");
    refuses(2, "--json --ids a", "two forms");
    refuses(1, "-f /no/such/file", "cannot open '/no/such/file'");
    refuses(1, "--chat /no/such/file", "cannot open '/no/such/file'");
    refuses(1, "-m /no/such/folder a", "/no/such/folder");
    refuses_chat("[{\"role\":\n \"user\",]", "line 2, column ");
    refuses_chat("", "line 1, column ");
    refuses_chat("5", "line 1, column 1: '[' or '{' expected");
    refuses_chat("{\"messages\": 5}", "neither an array of messages");
    refuses_chat("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": 5}",
                 "\"tools\" is not an array");
    refuses_chat("[]", "messages: found an empty array");
    refuses_chat("[{\"role\": \"king\", \"content\": \"a\"}]", "king");
    refuses_chat("[{\"role\": \"user\", \"content\": 5}]", "content");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text), cmocka_unit_test(test_decode),     cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_chat), cmocka_unit_test(test_chat_forms), cmocka_unit_test(test_refusals),
    };
    char command[128];

    (void)snprintf(dir, sizeof dir, "/tmp/nibble-tokenize-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    write_bytes("in", "", 0);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0 ? 1 : failed;
}
