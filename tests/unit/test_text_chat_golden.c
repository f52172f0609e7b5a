/* The chat encoder against encode.jsonl: every prompt as a string and as ids, every error, and what the content ranges
 * leave outside: nothing but the fixed texts of constants.json and a few words of markup. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nibble.h"

#define CHAT_DIR NIB_SOURCE_DIR "/tests/data/goldens/chat/"

/* One line: what jansson makes of it, and the raw text of the values whose number spellings matter. */
struct golden {
    json_t *line;
    char   *messages, *tools, *context; /* NULL for null */
    struct nib_chat_options options;
    bool    expressible; /* there is no way to ask for a third thinking mode */
    bool    ga, preview;
};

/* End of the JSON value at s, by counting brackets outside strings. */
static const char *value_end(const char *s)
{
    int depth = 0;
    bool quoted = false;
    for (;; s++) {
        assert_true(*s != '\0');
        if (quoted) {
            if (*s == '\\')
                s++;
            else if (*s == '"')
                quoted = false;
        } else if (*s == '"') {
            quoted = true;
        } else if (*s == '[' || *s == '{') {
            depth++;
        } else if (depth > 0 && (*s == ']' || *s == '}')) {
            depth--;
        } else if (depth == 0 && (*s == ',' || *s == '}')) {
            return s;
        }
    }
}

/* Raw text of a member of the object that begins at s; NULL if it is null. */
static char *raw_member(const char *s, const char *key)
{
    size_t n_key = strlen(key);
    for (s++; *s && *s != '}';) {
        s += strspn(s, " ,");
        assert_true(*s == '"');
        const char *name = s + 1, *colon = strchr(name, ':'); /* no key of these files holds a colon */
        const char *value = colon + 1 + strspn(colon + 1, " ");
        const char *end = value_end(value);
        if (!strncmp(name, key, n_key) && name[n_key] == '"')
            return strncmp(value, "null", 4) ? strndup(value, (size_t)(end - value)) : NULL;
        s = end;
    }
    fail_msg("no member %s", key);
    return NULL;
}

/* The file's numbers include one that jansson cannot hold, so the messages and tools are cut out before it reads. */
static json_t *load_rest(const char *line)
{
    char *rest = malloc(strlen(line) + 1);
    assert_non_null(rest);
    const char *from = strstr(line, "\"messages\": "), *to = strstr(from, "\"options\": {\"thinking_mode\"");
    assert_non_null(to);
    memcpy(rest, line, (size_t)(from - line));
    strcpy(rest + (from - line), to);
    json_error_t error;
    json_t *v = json_loads(rest, JSON_ALLOW_NUL, &error);
    if (!v)
        fail_msg("%s in %s", error.text, rest);
    free(rest);
    return v;
}

static void read_golden(const char *text, struct golden *g)
{
    memset(g, 0, sizeof *g);
    g->line = load_rest(text);
    g->messages = raw_member(text, "messages");
    g->tools = raw_member(text, "tools");
    char *options_text = raw_member(text, "options");
    g->context = raw_member(options_text, "context");
    free(options_text);

    const char *profile = json_string_value(json_object_get(g->line, "profile"));
    g->ga = strcmp(profile, "preview") != 0;
    g->preview = strcmp(profile, "ga") != 0;
    json_t *options = json_object_get(g->line, "options");
    const char *mode = json_string_value(json_object_get(options, "thinking_mode"));
    const char *effort = json_string_value(json_object_get(options, "reasoning_effort"));
    nib_chat_options_init(&g->options);
    g->expressible = !strcmp(mode, "thinking") || !strcmp(mode, "chat");
    g->options.thinking = !strcmp(mode, "thinking");
    g->options.effort = !effort ? NIB_EFFORT_NONE : !strcmp(effort, "low") ? NIB_EFFORT_LOW
                      : !strcmp(effort, "high") ? NIB_EFFORT_HIGH : !strcmp(effort, "max") ? NIB_EFFORT_MAX
                      : (enum nib_effort)99;
    g->options.drop_thinking = json_is_true(json_object_get(options, "drop_thinking"));
    g->options.add_bos = json_is_true(json_object_get(options, "add_default_bos_token"));
    g->options.add_generation_prompt = false;
}

static void free_golden(struct golden *g)
{
    json_decref(g->line);
    free(g->messages);
    free(g->tools);
    free(g->context);
}

static enum nib_status encode(const struct golden *g, enum nib_chat_profile profile, struct nib_prompt *out,
                              struct nib_error *err)
{
    struct nib_chat_options o = g->options;
    o.profile = profile;
    return nib_chat_encode(&o, g->messages, g->tools, g->context, out, err);
}

/* Call check(golden, prompt or NULL, error, user) for every line and profile; returns how many there were. */
static int for_every_line(void (*check)(const struct golden *g, const struct nib_prompt *p, const struct nib_error *err,
                                        void *user), void *user)
{
    int n = 0;
    char *line = NULL;
    size_t n_line = 0;
    FILE *f = fopen(CHAT_DIR "encode.jsonl", "r");
    assert_non_null(f);
    while (getline(&line, &n_line, f) > 0) {
        struct golden g;
        read_golden(line, &g);
        for (int preview = 0; g.expressible && preview < 2; preview++) {
            struct nib_prompt p;
            struct nib_error err = {0};
            if (!(preview ? g.preview : g.ga))
                continue;
            enum nib_status status = encode(&g, preview ? NIB_CHAT_PREVIEW : NIB_CHAT_GA, &p, &err);
            check(&g, status == NIB_OK ? &p : NULL, &err, user);
            nib_prompt_free(&p);
            n++;
        }
        free_golden(&g);
    }
    free(line);
    fclose(f);
    return n;
}

static const char *name_of(const struct golden *g)
{
    return json_string_value(json_object_get(g->line, "name"));
}

static void check_string(const struct golden *g, const struct nib_prompt *p, const struct nib_error *err, void *user)
{
    (void)user;
    json_t *prompt = json_object_get(g->line, "prompt");
    if (!prompt) {
        if (p)
            fail_msg("%s: the reference failed, but the prompt is %s", name_of(g), p->text.data);
        assert_true(err->status != NIB_OK && err->text[0] != '\0');
        return;
    }
    if (!p)
        fail_msg("%s: %s", name_of(g), err->text);
    if (p->text.n != json_string_length(prompt) || memcmp(p->text.data, json_string_value(prompt), p->text.n))
        fail_msg("%s:\n%s\nwanted\n%s", name_of(g), p->text.data, json_string_value(prompt));
}

static void prompts_equal_the_reference(void **state)
{
    (void)state;
    /* 104 conversations in two profiles, less the one whose thinking mode has no name here. */
    assert_int_equal(for_every_line(check_string, NULL), 206);
}

static void check_ids(const struct golden *g, const struct nib_prompt *p, const struct nib_error *err, void *user)
{
    (void)err;
    const struct nib_tokenizer *t = user;
    struct nib_ids ids;
    struct nib_error e = {0};
    json_t *expected = json_object_get(g->line, "ids");
    if (!expected)
        return;
    assert_non_null(p);
    if (nib_tokenizer_encode(t, p->text.data, p->text.n, NULL, 0, &ids, &e) != NIB_OK)
        fail_msg("%s: %s", name_of(g), e.text);
    assert_int_equal(ids.n, json_array_size(expected));
    for (size_t i = 0; i < ids.n; i++)
        if (ids.id[i] != json_integer_value(json_array_get(expected, i)))
            fail_msg("%s: id %zu is %d", name_of(g), i, ids.id[i]);
    nib_ids_free(&ids);
}

static void ids_equal_the_reference(void **state)
{
    (void)state;
    struct nib_tokenizer *t;
    struct nib_error err = {0};
    const char *path = NIB_SOURCE_DIR "/tests/data/goldens/tokenizer/deepseek_v4.tokenizer.json";
    if (nib_tokenizer_open(path, &t, &err) != NIB_OK)
        fail_msg("%s", err.text);
    (void)for_every_line(check_ids, t);
    nib_tokenizer_close(t);
}

struct pieces {
    const char *text[64];
    int         n;
};

/* Length of a text made of pieces at the start of s[0..n): the longest piece first, again and again. */
static size_t match_pieces(const struct pieces *known, const char *s, size_t n)
{
    size_t done = 0, longest = 1;
    while (longest > 0) {
        longest = 0;
        for (int i = 0; i < known->n; i++) {
            size_t k = strlen(known->text[i]);
            if (k > longest && k <= n - done && !memcmp(s + done, known->text[i], k))
                longest = k;
        }
        done += longest;
    }
    return done;
}

static void check_ranges(const struct golden *g, const struct nib_prompt *p, const struct nib_error *err, void *user)
{
    (void)err;
    size_t at = 0;
    if (!p)
        return;
    for (size_t i = 0; i <= p->n_content; i++) {
        size_t start = i < p->n_content ? p->content[i].start : p->text.n;
        assert_true(start >= at && start <= p->text.n);
        assert_true(i == 0 || i == p->n_content || start > at); /* ranges that touch would be one */
        size_t matched = match_pieces(user, p->text.data + at, start - at);
        if (matched != start - at)
            fail_msg("%s: outside of all ranges: %.*s", name_of(g), (int)(start - at - matched),
                     p->text.data + at + matched);
        if (i < p->n_content) {
            assert_true(p->content[i].end > start && p->content[i].end <= p->text.n);
            at = p->content[i].end;
        }
    }
}

static void only_fixed_texts_lie_outside_ranges(void **state)
{
    (void)state;
    static const char *const keys[] = {"bos", "eos", "user", "assistant", "think_start", "think_end",
                                       "latest_reminder", "tools_section_before_schemas",
                                       "tools_section_after_schemas", "response_format_before_schema",
                                       "tool_calls_open", "tool_calls_close"};
    struct pieces known = {.text = {"\n", "<tool_result>", "</tool_result>", "[Unsupported ", "]", "None", "\">",
                                    "<｜DSML｜invoke name=\"", "</｜DSML｜invoke>", "<｜DSML｜parameter name=\"",
                                    "\" string=\"true\">", "\" string=\"false\">", "</｜DSML｜parameter>"}};
    while (known.text[known.n])
        known.n++;
    json_t *constants = json_load_file(CHAT_DIR "constants.json", 0, NULL);
    assert_non_null(constants);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        known.text[known.n++] = json_string_value(json_object_get(constants, keys[i]));
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(constants, "task_tokens"), key, value)
        known.text[known.n++] = json_string_value(value);
    json_object_foreach(json_object_get(json_object_get(constants, "reasoning_effort_prefix"), "ga"), key, value)
        known.text[known.n++] = json_string_value(value);
    for (int i = 0; i < known.n; i++)
        assert_non_null(known.text[i]);
    (void)for_every_line(check_ranges, &known);
    json_decref(constants);
}

/* A conversation cut short is an error, and reading stops in time. About sixty cuts for each text. */
static void beginnings_are_errors(void **state)
{
    (void)state;
    char *line = NULL;
    size_t n_line = 0;
    FILE *f = fopen(CHAT_DIR "encode.jsonl", "r");
    assert_non_null(f);
    while (getline(&line, &n_line, f) > 0) {
        struct golden g;
        read_golden(line, &g);
        const char *texts[] = {g.messages, g.tools, g.context};
        for (int which = 0; which < 3; which++) {
            size_t n = texts[which] ? strlen(texts[which]) : 0;
            for (size_t k = 0; k < n; k += 1 + n / 60) {
                struct nib_prompt p;
                char *cut = strndup(texts[which], k);
                assert_non_null(cut);
                enum nib_status status = nib_chat_encode(&g.options, which == 0 ? cut : g.messages,
                                                         which == 1 ? cut : g.tools, which == 2 ? cut : g.context, &p,
                                                         NULL);
                assert_true(status == NIB_E_FORMAT || status == NIB_E_ARGUMENT);
                assert_true(p.text.data == NULL && p.content == NULL);
                free(cut);
            }
        }
        free_golden(&g);
    }
    free(line);
    fclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_equal_the_reference),
        cmocka_unit_test(ids_equal_the_reference),
        cmocka_unit_test(only_fixed_texts_lie_outside_ranges),
        cmocka_unit_test(beginnings_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
