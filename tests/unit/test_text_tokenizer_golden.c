/* The tokenizer against recorded results: DeepSeek-V4's own file with ids, pieces and decoded text from the reference
 * libraries, and the bundled model's file with the ids it was trained on. The data: tests/data/goldens/. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/text_buf.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#define GOLDENS NIB_SOURCE_DIR "/tests/data/goldens/"

enum { CODE_POINTS = 0x110000, V4_FIRST_NEW_ID = 128815 };

static struct nib_tokenizer *v4;
static unsigned char         differs[CODE_POINTS]; /* PCRE2's class is not that of the goldens' Unicode version */

static struct nib_tokenizer *open_or_fail(const char *path)
{
    struct nib_error err = {NIB_OK, ""};
    struct nib_tokenizer *t;
    if (nib_tokenizer_open(path, &t, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return t;
}

/* Call `each` with every line of a JSONL file; returns how many there were. */
static size_t for_each_line(const char *path, void (*each)(size_t line, const json_t *row))
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    char *line = NULL;
    size_t cap = 0, n = 0;
    ssize_t got;
    while ((got = getline(&line, &cap, f)) > 0) {
        json_error_t e;
        json_t *row = json_loadb(line, (size_t)got, JSON_ALLOW_NUL, &e);
        if (!row)
            fail_msg("%s:%zu: %s", path, n + 1, e.text);
        each(++n, row);
        json_decref(row);
    }
    free(line);
    (void)fclose(f);
    return n;
}

static const char *row_text(const json_t *row, const char *key, size_t *n)
{
    const json_t *v = json_object_get(row, key);
    assert_true(json_is_string(v));
    *n = json_string_length(v);
    return json_string_value(v);
}

static int32_t *row_ids(const json_t *row, const char *key, size_t *n)
{
    const json_t *v = json_object_get(row, key);
    assert_true(json_is_array(v));
    *n = json_array_size(v);
    int32_t *id = malloc((*n + 1) * sizeof *id);
    assert_non_null(id);
    for (size_t i = 0; i < *n; i++)
        id[i] = (int32_t)json_integer_value(json_array_get(v, i));
    return id;
}

static void check_ids(size_t line, const struct nib_ids *got, const int32_t *want, size_t n_want)
{
    for (size_t i = 0; i < got->n && i < n_want; i++) {
        if (got->id[i] != want[i])
            fail_msg("line %zu: id %zu is %d, wanted %d", line, i, got->id[i], want[i]);
    }
    if (got->n != n_want)
        fail_msg("line %zu: %zu ids, wanted %zu", line, got->n, n_want);
}

static void check_encode(const struct nib_tokenizer *t, size_t line, const char *text, size_t n,
                         const struct nib_range *literal, size_t n_literal, const int32_t *want, size_t n_want)
{
    struct nib_error err = {NIB_OK, ""};
    struct nib_ids ids;
    if (nib_tokenizer_encode(t, text, n, literal, n_literal, &ids, &err) != NIB_OK)
        fail_msg("line %zu: %s", line, err.text);
    check_ids(line, &ids, want, n_want);
    nib_ids_free(&ids);
}

/* Write all code points but surrogates in order; returns the bytes used. offset[c] is where c begins. */
static size_t all_characters(char *text, uint32_t *offset)
{
    size_t n = 0;
    for (uint32_t c = 0; c < CODE_POINTS; c++) {
        offset[c] = (uint32_t)n;
        if (c < 0xD800 || c > 0xDFFF)
            n += nib_utf8_encode(c, text + n);
    }
    return n;
}

/* Add `bit` to mask[c] of every code point that PCRE2 puts in \p{name}. */
static void pcre2_class(char name, unsigned char bit, unsigned char *mask, const char *text, size_t n,
                        const uint32_t *offset)
{
    char pattern[8];
    int number;
    PCRE2_SIZE at = 0;
    (void)snprintf(pattern, sizeof pattern, "\\p{%c}+", name);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &number, &at,
                                     NULL);
    assert_non_null(code);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    uint32_t c = 0;
    for (at = 0; pcre2_match(code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, match, NULL) >= 0;) {
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(match);
        for (; c < CODE_POINTS && offset[c] < span[1]; c++) {
            if (offset[c] >= span[0])
                mask[c] |= bit;
        }
        at = span[1];
    }
    pcre2_match_data_free(match);
    pcre2_code_free(code);
}

/* Fill `differs` from the class ranges of the goldens; the classes are disjoint. */
static void compare_classes(void)
{
    static const char names[] = "LMNPS";
    static unsigned char ours[CODE_POINTS], theirs[CODE_POINTS];
    static uint32_t offset[CODE_POINTS];
    char *text = malloc(4 * (size_t)CODE_POINTS);
    assert_non_null(text);
    size_t n = all_characters(text, offset);
    json_error_t e;
    json_t *classes = json_load_file(GOLDENS "tokenizer/unicode_classes.json", 0, &e);
    assert_non_null(classes);
    for (size_t k = 0; names[k]; k++) {
        const char name[2] = {names[k], '\0'};
        const json_t *ranges = json_object_get(classes, name);
        assert_true(json_array_size(ranges) > 0);
        for (size_t i = 0; i < json_array_size(ranges); i++) {
            const json_t *range = json_array_get(ranges, i);
            for (json_int_t c = json_integer_value(json_array_get(range, 0));
                 c <= json_integer_value(json_array_get(range, 1)); c++)
                theirs[c] |= (unsigned char)(1u << k);
        }
        pcre2_class(names[k], (unsigned char)(1u << k), ours, text, n, offset);
    }
    json_decref(classes);
    free(text);

    uint32_t n_differ = 0;
    for (uint32_t c = 0; c < CODE_POINTS; c++) {
        differs[c] = (c < 0xD800 || c > 0xDFFF) && ours[c] != theirs[c];
        n_differ += differs[c];
    }
    char unicode[64], version[64];
    (void)pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, unicode);
    (void)pcre2_config(PCRE2_CONFIG_VERSION, version);
    print_message("PCRE2 %s has the classes of Unicode %s: %u code points differ from the goldens\n", version, unicode,
                  n_differ);
    for (uint32_t c = 0; n_differ > 0 && c < CODE_POINTS; c++) {
        uint32_t end = c;
        while (end < CODE_POINTS && differs[end])
            end++;
        if (end > c)
            print_message("%04X-%04X ", c, end - 1);
        c = end;
    }
    print_message("\n");
    /* Most code points ever assigned are older than any PCRE2 we build with; more would be a fault of this test. */
    assert_true(n_differ < 15000);
}

static size_t n_skipped;

/* Whether the text holds a code point on which PCRE2 and the goldens disagree; counts and prints it. */
static bool skip_text(size_t line, const char *text, size_t n)
{
    bool skip = false;
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        size_t length = nib_utf8_decode(text + i, n - i, &c);
        assert_true(length > 0);
        if (differs[c]) {
            if (!skip)
                print_message("line %zu skipped for", line);
            print_message(" U+%04X", c);
            skip = true;
        }
        i += length;
    }
    if (skip)
        print_message("\n");
    n_skipped += skip;
    return skip;
}

static void each_encode(size_t line, const json_t *row)
{
    size_t n, n_want;
    const char *text = row_text(row, "text", &n);
    if (skip_text(line, text, n))
        return;
    int32_t *want = row_ids(row, "ids", &n_want);
    check_encode(v4, line, text, n, NULL, 0, want, n_want);
    free(want);
}

static void ids_of_the_release_texts(void **state)
{
    (void)state;
    n_skipped = 0;
    assert_int_equal(for_each_line(GOLDENS "tokenizer/deepseek_v4.jsonl", each_encode), 533);
    print_message("%zu of 533 skipped\n", n_skipped);
    assert_true(n_skipped <= 1);
}

static void ids_of_random_mixtures(void **state)
{
    (void)state;
    n_skipped = 0;
    assert_int_equal(for_each_line(GOLDENS "tokenizer/fuzz.jsonl", each_encode), 3000);
    print_message("%zu of 3000 skipped\n", n_skipped);
    assert_true(n_skipped <= 62); /* with the oldest PCRE2 we support, which has Unicode 14 */
}

/* V3 has the same vocabulary and lacks the added tokens from V4_FIRST_NEW_ID on: with those made literal, V4 has to
 * give V3's ids. */
static void each_v3(size_t line, const json_t *row)
{
    size_t n, n_want, n_literal = 0;
    const char *text = row_text(row, "text", &n);
    if (skip_text(line, text, n))
        return;
    static struct nib_range literal[4096];
    for (size_t i = 0; i < n; i++) {
        for (int32_t id = V4_FIRST_NEW_ID; text[i] != 'a' && id < nib_tokenizer_n_ids(v4); id++) {
            size_t n_bytes;
            const char *bytes = nib_tokenizer_bytes(v4, id, &n_bytes, NULL);
            if (n_bytes > n - i || memcmp(text + i, bytes, n_bytes) != 0)
                continue;
            bool joins = n_literal > 0 && literal[n_literal - 1].end > i;
            assert_true(n_literal < 4096);
            if (joins && literal[n_literal - 1].end < i + n_bytes)
                literal[n_literal - 1].end = i + n_bytes;
            else if (!joins)
                literal[n_literal++] = (struct nib_range){i, i + n_bytes};
        }
    }
    int32_t *want = row_ids(row, "ids", &n_want);
    check_encode(v4, line, text, n, literal, n_literal, want, n_want);
    free(want);
}

static void literal_ranges_give_the_ids_of_v3(void **state)
{
    (void)state;
    n_skipped = 0;
    assert_int_equal(for_each_line(GOLDENS "tokenizer/deepseek_v3.jsonl", each_v3), 533);
    assert_true(n_skipped <= 1);
}

struct pieces_check {
    size_t        line, next;
    const json_t *want;
};

static enum nib_status check_piece(void *user, const char *bytes, size_t n)
{
    struct pieces_check *c = user;
    const json_t *want = json_array_get(c->want, c->next++);
    if (!want || json_string_length(want) != n || memcmp(json_string_value(want), bytes, n) != 0)
        fail_msg("line %zu: piece %zu is '%.*s', wanted '%s'", c->line, c->next - 1, (int)n, bytes,
                 want ? json_string_value(want) : "no more");
    return NIB_OK;
}

static void each_pieces(size_t line, const json_t *row)
{
    size_t n;
    const char *text = row_text(row, "text", &n);
    if (skip_text(line, text, n))
        return;
    struct pieces_check c = {.line = line, .want = json_object_get(row, "pieces")};
    assert_int_equal(nib_pretokenizer_split(v4->pretokenizer, text, n, check_piece, &c, NULL), NIB_OK);
    assert_int_equal(c.next, json_array_size(c.want));
}

static void pieces(void **state)
{
    (void)state;
    n_skipped = 0;
    assert_int_equal(for_each_line(GOLDENS "tokenizer/pretokenize.jsonl", each_pieces), 461);
    assert_true(n_skipped <= 1);
}

static void each_decode(size_t line, const json_t *row)
{
    static const char *const key[2] = {"text", "text_skip_special"};
    size_t n_ids, n_want;
    int32_t *ids = row_ids(row, "ids", &n_ids);
    for (int skip = 0; skip < 2; skip++) {
        struct nib_text got;
        const char *want = row_text(row, key[skip], &n_want);
        assert_int_equal(nib_tokenizer_decode(v4, ids, n_ids, skip == 1, &got, NULL), NIB_OK);
        if (got.n != n_want || memcmp(got.data, want, n_want) != 0)
            fail_msg("line %zu: decoded to '%s', wanted '%s'", line, got.data, want);
        assert_int_equal(got.data[got.n], '\0');
        nib_text_free(&got);
    }
    free(ids);
}

static void decoded_text(void **state)
{
    (void)state;
    assert_int_equal(for_each_line(GOLDENS "tokenizer/decode.jsonl", each_decode), 62);
}

static void added_tokens(void **state)
{
    (void)state;
    FILE *f = fopen(GOLDENS "tokenizer/added_tokens.tsv", "rb");
    assert_non_null(f);
    char line[1024], content[512];
    size_t n_lines = 0, n_special = 0;
    assert_non_null(fgets(line, sizeof line, f));
    while (fgets(line, sizeof line, f)) {
        int id, want_special;
        assert_int_equal(sscanf(line, "%d\t%511[^\t]\t%d\t", &id, content, &want_special), 3);
        assert_int_equal(nib_tokenizer_find(v4, content), id);
        size_t n;
        bool special;
        const char *bytes = nib_tokenizer_bytes(v4, id, &n, &special);
        assert_non_null(bytes);
        assert_int_equal(n, strlen(content));
        assert_memory_equal(bytes, content, n);
        assert_int_equal(special, want_special);
        int32_t want = id;
        check_encode(v4, n_lines, content, n, NULL, 0, &want, 1);
        n_lines++;
        n_special += special;
    }
    (void)fclose(f);
    assert_int_equal(n_lines, 1283);
    assert_int_equal(v4->n_added, 1283);

    assert_int_equal(nib_tokenizer_n_ids(v4), 129280);
    for (int32_t id = 0; id < 129280; id++) {
        bool special;
        size_t n;
        assert_non_null(nib_tokenizer_bytes(v4, id, &n, &special));
        n_special -= special;
    }
    assert_int_equal(n_special, 0);
    assert_null(nib_tokenizer_bytes(v4, -1, NULL, NULL));
    assert_null(nib_tokenizer_bytes(v4, 129280, NULL, NULL));
    assert_int_equal(nib_tokenizer_find(v4, "<think"), -1);
    assert_int_equal(nib_tokenizer_find(v4, "the"), -1);
    assert_int_equal(nib_tokenizer_find(v4, ""), -1);
}

static struct nib_tokenizer *tiny;

/* The prompt as text: written out where the row has its question, else decoded from its ids. */
static void tiny_prompt(const json_t *row, const int32_t *id, size_t n, struct nib_text *out)
{
    const char *question = json_string_value(json_object_get(row, "question"));
    if (!question) {
        assert_int_equal(nib_tokenizer_decode(tiny, id, n, false, out, NULL), NIB_OK);
        return;
    }
    bool thinks = strcmp(json_string_value(json_object_get(row, "category")), "thinking") == 0;
    assert_int_equal(nib_text_append_string(out, "<｜begin▁of▁sentence｜><｜User｜>"), NIB_OK);
    assert_int_equal(nib_text_append_string(out, question), NIB_OK);
    assert_int_equal(nib_text_append_string(out, thinks ? "<｜Assistant｜><think>" : "<｜Assistant｜></think>"), NIB_OK);
}

static void each_tiny(size_t line, const json_t *row)
{
    size_t n, n_answer;
    int32_t *want = row_ids(row, "prompt_ids", &n);
    struct nib_text text = {NULL, 0};
    tiny_prompt(row, want, n, &text);
    check_encode(tiny, line, text.data, text.n, NULL, 0, want, n);
    nib_text_free(&text);
    free(want);

    want = row_ids(row, "answer_ids", &n);
    const char *answer = row_text(row, "answer", &n_answer);
    assert_int_equal(nib_text_append(&text, answer, n_answer), NIB_OK);
    assert_int_equal(nib_text_append_string(&text, "<｜end▁of▁sentence｜>"), NIB_OK);
    check_encode(tiny, line, text.data, text.n, NULL, 0, want, n);
    nib_text_free(&text);
    free(want);
}

static void ids_of_the_bundled_model(void **state)
{
    (void)state;
    tiny = open_or_fail(NIB_SOURCE_DIR "/models/tiny-v4");
    assert_int_equal(nib_tokenizer_n_ids(tiny), 2048);
    assert_int_equal(nib_tokenizer_find(tiny, "｜DSML｜"), 2043);
    assert_int_equal(for_each_line(GOLDENS "model/evaluation.jsonl", each_tiny), 680);
    nib_tokenizer_close(tiny);
}

static int setup(void **state)
{
    (void)state;
    v4 = open_or_fail(GOLDENS "tokenizer/deepseek_v4.tokenizer.json");
    compare_classes();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    nib_tokenizer_close(v4);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_of_the_release_texts),
        cmocka_unit_test(ids_of_random_mixtures),
        cmocka_unit_test(literal_ranges_give_the_ids_of_v3),
        cmocka_unit_test(pieces),
        cmocka_unit_test(decoded_text),
        cmocka_unit_test(added_tokens),
        cmocka_unit_test(ids_of_the_bundled_model),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
