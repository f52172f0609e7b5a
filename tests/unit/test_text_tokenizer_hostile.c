/* tokenizer.json files that are wrong or want what is not implemented: each is a small good file with one change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "text/tokenizer.h"
#include "text/utf8.h"

static char path[] = "/tmp/nib_tokenizer_XXXXXX";

static void write_file(const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The 256 bytes in the order of GPT-2's table, which gives the ones that print their own character first. */
static json_t *byte_vocab(void)
{
    json_t *vocab = json_object();
    bool prints[256] = {false};
    json_int_t id = 3;
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++)
        prints[b] = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE);
    for (int round = 0; round < 2; round++) {
        for (uint32_t b = 0; b < 256; b++) {
            char key[5] = "";
            if (prints[b] != (round == 0))
                continue;
            key[nib_utf8_encode(prints[b] ? b : next++, key)] = '\0';
            assert_int_equal(json_object_set_new(vocab, key, json_integer(id++)), 0);
        }
    }
    return vocab;
}

static json_t *good_file(void)
{
    json_error_t e;
    json_t *root = json_loads(
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"normalizer\": null, \"added_tokens\": ["
        "  {\"id\": 0, \"content\": \"<a>\", \"special\": true, \"single_word\": false, \"lstrip\": false,"
        "   \"rstrip\": false, \"normalized\": false},"
        "  {\"id\": 1, \"content\": \"<a>b\"}, {\"id\": 262, \"content\": \"éa\"}],"
        " \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
        "  {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\s+\"}, \"behavior\": \"Isolated\", \"invert\": false},"
        "  {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]},"
        " \"post_processor\": {\"type\": \"ByteLevel\"}, \"decoder\": {\"type\": \"ByteLevel\"},"
        " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": \"\","
        "  \"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false,"
        "  \"merges\": [\"t h\", [\"th\", \"e\"], \"Ġ the\"]}}", 0, &e);
    if (!root)
        fail_msg("%s at %d", e.text, e.position);
    json_t *vocab = byte_vocab();
    assert_int_equal(json_object_set_new(vocab, "<a>", json_integer(0)), 0);
    assert_int_equal(json_object_set_new(vocab, "th", json_integer(259)), 0);
    assert_int_equal(json_object_set_new(vocab, "the", json_integer(260)), 0);
    assert_int_equal(json_object_set_new(vocab, "Ġthe", json_integer(261)), 0);
    assert_int_equal(json_object_set_new(json_object_get(root, "model"), "vocab", vocab), 0);
    return root;
}

/* Put `value` (JSON; NULL removes) at a place like "model/merges/0". */
static void change(json_t *root, const char *place, const char *value)
{
    char part[64];
    json_t *at = root;
    for (;;) {
        size_t n = strcspn(place, "/");
        bool last = place[n] == '\0';
        (void)snprintf(part, sizeof part, "%.*s", (int)n, place);
        size_t index = (size_t)strtoul(part, NULL, 10);
        if (last && !value) {
            assert_int_equal(json_is_array(at) ? json_array_remove(at, index) : json_object_del(at, part), 0);
            return;
        }
        if (last) {
            json_error_t e;
            json_t *v = json_loads(value, JSON_DECODE_ANY, &e);
            assert_non_null(v);
            if (json_is_object(at))
                assert_int_equal(json_object_set_new(at, part, v), 0);
            else if (index == json_array_size(at))
                assert_int_equal(json_array_append_new(at, v), 0);
            else
                assert_int_equal(json_array_set_new(at, index, v), 0);
            return;
        }
        at = json_is_array(at) ? json_array_get(at, index) : json_object_get(at, part);
        assert_non_null(at);
        place += n + 1;
    }
}

static void write_changed(const char *place, const char *value)
{
    json_t *root = good_file();
    if (place)
        change(root, place, value);
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    write_file(text, strlen(text));
    free(text);
    json_decref(root);
}

static void check_refused(const char *label, enum nib_status want, const char *const says[3])
{
    struct nib_tokenizer *t = NULL;
    struct nib_error err = {NIB_OK, ""};
    enum nib_status got = nib_tokenizer_open(path, &t, &err);
    if (got != want)
        fail_msg("%s: %s '%s'", label, nib_status_name(got), err.text);
    assert_null(t);
    assert_int_equal(err.status, want);
    if (!strstr(err.text, path))
        fail_msg("%s: '%s' does not name the file", label, err.text);
    for (int i = 0; i < 3 && says[i]; i++) {
        if (!strstr(err.text, says[i]))
            fail_msg("%s: '%s' does not say '%s'", label, err.text, says[i]);
    }
}

#define F NIB_E_FORMAT
#define U NIB_E_UNSUPPORTED

static const struct {
    const char     *place, *value;
    enum nib_status status;
    const char     *says[3]; /* thing, found, wanted */
} changes[] = {
    {"version", "\"2.0\"", U, {"version", "'2.0'", "'1.0'"}},
    {"truncation", "{\"max_length\": 5}", U, {"truncation", "an object", "none"}},
    {"padding", "{}", U, {"padding", "an object", "none"}},
    {"normalizer", "{\"type\": \"NFC\"}", U, {"normalizer", "null or an empty"}},
    {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}", U, {"normalizer"}},
    {"normalizer", "{\"type\": \"Sequence\"}", U, {"normalizer"}},
    {"normalizer", "5", U, {"normalizer", "is 5"}},
    {"post_processor", "{\"type\": \"BertProcessing\"}", U, {"post_processor", "'BertProcessing'", "ByteLevel"}},
    {"decoder", NULL, U, {"decoder.type", "nothing", "'ByteLevel'"}},
    {"decoder/type", "\"WordPiece\"", U, {"decoder.type", "'WordPiece'"}},
    {"decoder", "[]", U, {"decoder.type", "nothing"}},

    {"pre_tokenizer", NULL, U, {"pre_tokenizer.type", "nothing", "'Sequence'"}},
    {"pre_tokenizer", "null", U, {"pre_tokenizer.type"}},
    {"pre_tokenizer/type", "\"ByteLevel\"", U, {"pre_tokenizer.type", "'ByteLevel'"}},
    {"pre_tokenizer/pretokenizers", "[]", F, {"pretokenizers", "an array"}},
    {"pre_tokenizer/pretokenizers", "7", F, {"pretokenizers", "is 7"}},
    {"pre_tokenizer/pretokenizers/0", "null", U, {"pretokenizers[0].type"}},
    {"pre_tokenizer/pretokenizers/0/type", "\"Digits\"", U, {"pretokenizers[0].type", "'Digits'", "'Split'"}},
    {"pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \" \"}", U, {"pattern.Regex", "nothing", "regular"}},
    {"pre_tokenizer/pretokenizers/0/pattern/Regex", "1", U, {"pattern.Regex", "is 1"}},
    {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"a(\"", F, {"splitter 0", "parenthes"}},
    {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\p{Latin}\"", U, {"splitter 0", "\\p{Latin}"}},
    {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", U, {"[0].behavior", "'Removed'", "'Isolated'"}},
    {"pre_tokenizer/pretokenizers/0/behavior", NULL, U, {"[0].behavior", "nothing", "'Isolated'"}},
    {"pre_tokenizer/pretokenizers/0/invert", "true", U, {"[0].invert", "true", "false"}},
    {"pre_tokenizer/pretokenizers/1", NULL, U, {"last", "'Split'", "'ByteLevel'"}},
    {"pre_tokenizer/pretokenizers/1/add_prefix_space", "true", U, {"add_prefix_space", "true", "false"}},
    {"pre_tokenizer/pretokenizers/1/use_regex", NULL, U, {"use_regex", "nothing", "false"}},
    {"pre_tokenizer/pretokenizers", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", U, {"pre_tokenizer", "18", "17"}},

    {"model", NULL, U, {"model.type", "nothing", "'BPE'"}},
    {"model/type", "\"Unigram\"", U, {"model.type", "'Unigram'", "'BPE'"}},
    {"model/dropout", "0.1", U, {"model.dropout", "none"}},
    {"model/unk_token", "\"<unk>\"", U, {"model.unk_token", "'<unk>'", "none"}},
    {"model/continuing_subword_prefix", "\"##\"", U, {"continuing_subword_prefix", "'##'"}},
    {"model/end_of_word_suffix", "\"</w>\"", U, {"end_of_word_suffix", "'</w>'"}},
    {"model/byte_fallback", "true", U, {"model.byte_fallback", "true"}},
    {"model/ignore_merges", "true", U, {"model.ignore_merges", "true"}},

    {"model/vocab", NULL, F, {"model.vocab", "nothing", "an object"}},
    {"model/vocab", "[\"a\"]", F, {"model.vocab", "an array"}},
    {"model/vocab", "{}", F, {"byte 0x00", "all 256"}},
    {"model/vocab/the", "-1", F, {"'the'", "is -1", "[0, 16777216)"}},
    {"model/vocab/the", "16777216", F, {"'the'", "is 16777216"}},
    {"model/vocab/the", "9223372036854775807", F, {"'the'", "9223372036854775807"}},
    {"model/vocab/the", "260.0", F, {"'the'", "integer"}},
    {"model/vocab/the", "\"260\"", F, {"'the'", "'260'", "integer"}},
    {"model/vocab/the", "null", F, {"'the'", "null"}},
    {"model/vocab/the", "259", F, {"has id 259", "another"}},
    {"model/vocab/the", "262", F, {"'the'", "262", "another"}},
    {"model/vocab/a b", "263", F, {"'a b'", "U+0020", "byte alphabet"}},
    {"model/vocab/中", "263", F, {"'中'", "U+4E2D", "byte alphabet"}},
    {"model/vocab/", "263", F, {"''", "no character"}},
    {"model/vocab/A", NULL, F, {"byte 0x41", "all 256"}},
    {"model/vocab/Ġ", NULL, F, {"byte 0x20", "all 256"}},

    {"model/merges", NULL, F, {"model.merges", "nothing", "an array"}},
    {"model/merges", "{}", F, {"model.merges", "an object"}},
    {"model/merges/0", "\"th\"", F, {"merges[0]", "'th'", "two tokens"}},
    {"model/merges/0", "\"t h e\"", F, {"merges[0]", "'t h e'"}},
    {"model/merges/0", "\"\"", F, {"merges[0]", "''"}},
    {"model/merges/0", "\" \"", F, {"merges[0]", "''", "lacks"}},
    {"model/merges/1", "[\"t\"]", F, {"merges[1]", "an array", "two tokens"}},
    {"model/merges/1", "[\"t\", 5]", F, {"merges[1]", "an array"}},
    {"model/merges/1", "[null, \"t\"]", F, {"merges[1]"}},
    {"model/merges/1", "[\"t\", \"h\", \"e\"]", F, {"merges[1]"}},
    {"model/merges/1", "17", F, {"merges[1]", "is 17"}},
    {"model/merges/1", "[\"th\", \"zz\"]", F, {"merges[1]", "'zz'", "lacks"}},
    {"model/merges/1", "[\"zz\", \"e\"]", F, {"merges[1]", "'zz'", "lacks"}},
    {"model/merges/1", "[\"th\", \"x\"]", F, {"merges[1]", "'thx'", "lacks"}},
    {"model/merges/2", "\"t h\"", F, {"merges[2]", "repeats"}},

    {"added_tokens", "{}", F, {"added_tokens", "an object", "an array"}},
    {"added_tokens/0", "7", F, {"added_tokens[0].content", "nothing"}},
    {"added_tokens/0/content", NULL, F, {"added_tokens[0].content", "nothing", "text"}},
    {"added_tokens/0/content", "\"\"", F, {"added_tokens[0].content", "''"}},
    {"added_tokens/0/id", NULL, F, {"'<a>'", "nothing", "integer"}},
    {"added_tokens/0/id", "-5", F, {"'<a>'", "-5"}},
    {"added_tokens/0/id", "99999999", F, {"'<a>'", "99999999"}},
    {"added_tokens/0/id", "2", F, {"'<a>'", "id 2", "wanted 0"}},
    {"added_tokens/2/content", "\"é\"", F, {"'é'", "id 262", "wanted 168"}}, /* byte E9's entry */
    {"added_tokens/0/special", "1", F, {"'<a>'", "special is 1", "true or false"}},
    {"added_tokens/1/id", "0", F, {"'<a>b'", "id 0", "earlier"}},
    {"added_tokens/1/id", "260", F, {"'the'", "260", "another"}},
    {"added_tokens/1/lstrip", "true", U, {"'<a>b'", "lstrip is true", "false"}},
    {"added_tokens/1/rstrip", "true", U, {"'<a>b'", "rstrip is true"}},
    {"added_tokens/1/single_word", "true", U, {"'<a>b'", "single_word is true"}},
    {"added_tokens/3", "{\"id\": 263, \"content\": \"éa\"}", F, {"'éa'", "twice", "263"}},
};

static void changed_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        write_changed(changes[i].place, changes[i].value);
        check_refused(changes[i].place, changes[i].status, changes[i].says);
    }
}

static void files_that_are_no_json(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says[3];
    } cases[] = {
        {"", {"JSON"}},
        {"{", {"JSON"}},
        {"{\"model\": {}} x", {"JSON"}},
        {"[]", {"model.type", "nothing"}},
        {"{\"model\": {\"type\": \"BPE\"}, \"model\": {}}", {"model", "twice"}},
        {"{\"version\": \"1\\u0000\"}", {"JSON"}},
        {"{\"version\": \"\xFF\"}", {"JSON"}},
        {"{\"version\": 99999999999999999999}", {"JSON"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(cases[i].text, strlen(cases[i].text));
        check_refused(cases[i].text, strcmp(cases[i].text, "[]") == 0 ? U : F, cases[i].says);
    }
    const char deep = '[';
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 0; i < 1000000; i++)
        assert_int_equal(fputc(deep, f), deep);
    assert_int_equal(fclose(f), 0);
    check_refused("deep", F, (const char *const[3]){"depth", NULL, NULL});
}

/* A good file cut short, or with one byte spoilt, is refused or opened; nothing worse. */
static void spoilt_files(void **state)
{
    (void)state;
    json_t *root = good_file();
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    size_t n = strlen(text), n_opened = 0;
    for (size_t i = 0; i < 2 * n; i += 3) {
        struct nib_tokenizer *t;
        struct nib_error err;
        char kept = text[i / 2];
        text[i / 2] = i % 2 == 0 ? '"' : '9';
        write_file(text, i % 16 == 0 ? i / 2 : n);
        text[i / 2] = kept;
        n_opened += nib_tokenizer_open(path, &t, &err) == NIB_OK;
        nib_tokenizer_close(t);
    }
    assert_true(n_opened < n / 2);
    free(text);
    json_decref(root);
}

static void missing_files(void **state)
{
    (void)state;
    struct nib_tokenizer *t;
    struct nib_error err = {NIB_OK, ""};
    assert_int_equal(nib_tokenizer_open("/nowhere/tokenizer.json", &t, &err), NIB_E_IO);
    assert_non_null(strstr(err.text, "/nowhere/tokenizer.json"));
    assert_null(t);
    /* A folder is asked for its tokenizer.json. */
    assert_int_equal(nib_tokenizer_open(NIB_SOURCE_DIR "/tests", &t, &err), NIB_E_IO);
    assert_non_null(strstr(err.text, "/tests/tokenizer.json"));
    assert_int_equal(nib_tokenizer_open("/nowhere", &t, NULL), NIB_E_IO);
}

static void check_ids(const struct nib_tokenizer *t, const char *text, const struct nib_range *literal, size_t n,
                      const int32_t *want)
{
    struct nib_ids ids;
    assert_int_equal(nib_tokenizer_encode(t, text, strlen(text), literal, literal ? 1 : 0, &ids, NULL), NIB_OK);
    assert_int_equal(ids.n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids.id[i], want[i]);
    nib_ids_free(&ids);
}

/* The unchanged file opens, so each refusal above is for its change; and it shows what the released one cannot: an
 * added token that begins another. */
static void the_good_file(void **state)
{
    (void)state;
    struct nib_tokenizer *t;
    struct nib_error err = {NIB_OK, ""};
    write_changed("version", NULL);
    if (nib_tokenizer_open(path, &t, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib_tokenizer_n_ids(t), 263);
    enum { B = 'b' - '!' + 3, LESS = '<' - '!' + 3, A = 'a' - '!' + 3, MORE = '>' - '!' + 3 };
    check_ids(t, "the the", NULL, 3, (const int32_t[]){260, 223, 260}); /* the splitter keeps the space apart */
    check_ids(t, "<a>", NULL, 1, (const int32_t[]){0});
    check_ids(t, "<a>b<a>éa<a", NULL, 5, (const int32_t[]){1, 0, 262, LESS, A});
    check_ids(t, "<a>b", &(struct nib_range){3, 4}, 2, (const int32_t[]){0, B});
    check_ids(t, "<a>b", &(struct nib_range){2, 3}, 4, (const int32_t[]){LESS, A, MORE, B});
    check_ids(t, "<a>b", &(struct nib_range){2, 2}, 1, (const int32_t[]){1});

    size_t n;
    bool special;
    assert_memory_equal(nib_tokenizer_bytes(t, 262, &n, &special), "éa", 3);
    assert_int_equal(n, 3);
    assert_false(special);
    struct nib_text text;
    const int32_t with_special[] = {0, 1, 0};
    assert_int_equal(nib_tokenizer_decode(t, with_special, 3, true, &text, NULL), NIB_OK);
    assert_string_equal(text.data, "<a>b");
    nib_text_free(&text);
    /* Id 2 is nobody's. */
    assert_null(nib_tokenizer_bytes(t, 2, NULL, NULL));
    assert_int_equal(nib_tokenizer_decode(t, (const int32_t[]){2}, 1, true, &text, &err), NIB_E_ARGUMENT);
    nib_tokenizer_close(t);

    /* An id far out makes a sparse table, not a refusal. */
    write_changed("added_tokens/1/id", "16777215");
    assert_int_equal(nib_tokenizer_open(path, &t, &err), NIB_OK);
    assert_int_equal(nib_tokenizer_n_ids(t), 16777216);
    assert_int_equal(nib_tokenizer_find(t, "<a>b"), 16777215);
    nib_tokenizer_close(t);
}

static int setup(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_good_file),
        cmocka_unit_test(changed_files),
        cmocka_unit_test(files_that_are_no_json),
        cmocka_unit_test(spoilt_files),
        cmocka_unit_test(missing_files),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
