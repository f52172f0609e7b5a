/* Encoding where no recorded results exist: any bytes, literal ranges, other files' splitters, huge pieces, threads. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/text_buf.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#if defined(__SANITIZE_ADDRESS__)
#define IS_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED true
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED false
#endif

static struct nib_tokenizer *v4;

static uint32_t random_below(uint32_t n)
{
    static uint64_t state = 42;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

static struct nib_ids encode(const char *text, size_t n, const struct nib_range *literal, size_t n_literal)
{
    struct nib_error err = {NIB_OK, ""};
    struct nib_ids ids;
    if (nib_tokenizer_encode(v4, text, n, literal, n_literal, &ids, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return ids;
}

/* The bytes of the ids are the text, whatever the text. */
static void check_bytes(const struct nib_ids *ids, const char *text, size_t n)
{
    size_t at = 0, n_bytes = 0;
    for (size_t i = 0; i < ids->n; i++, at += n_bytes) {
        const char *bytes = nib_tokenizer_bytes(v4, ids->id[i], &n_bytes, NULL);
        assert_non_null(bytes);
        assert_true(n_bytes <= n - at);
        assert_memory_equal(bytes, text + at, n_bytes);
    }
    assert_int_equal(at, n);
}

/* Bits of text that meet each other in all ways: classes, added tokens and parts of them, broken UTF-8. */
static size_t random_text(char *text, size_t n_max, bool valid)
{
    static const char *const good[] = {
        " ", "  ", "\n", "\r\n", "\t", "a", "Word", "42", "1", "!", "...", "<", "think>", "</think>", "<think>", "<｜",
        "User｜>", "<｜User｜>", "｜DSML｜", "｜", "中文", "カナ", "é", "\u0301", "\u200D", "😀", "\u00A0", "\xC2\x85",
        "\u180E", "\u3000", "\U0010FFFF", "\uE000", "\x01", ""};
    static const char *const bad[] = {"\xFF", "\xC3", "\xE4\xB8", "\xF0\x9F\x98", "\x80", "\xED\xA0\x80",
                                      "\xEF\xBD", "\xC0\x80"};
    enum { N_GOOD = sizeof good / sizeof good[0], N_BAD = sizeof bad / sizeof bad[0] };
    size_t n = 0;
    for (uint32_t k = random_below(60); k > 0; k--) {
        uint32_t pick = random_below(valid ? N_GOOD : N_GOOD + N_BAD);
        const char *p = pick < N_GOOD ? good[pick] : bad[pick - N_GOOD];
        size_t n_part = *p ? strlen(p) : 1; /* the empty one is a NUL */
        if (n + n_part > n_max)
            break;
        memcpy(text + n, p, n_part);
        n += n_part;
        if (!valid && random_below(8) == 0 && n < n_max)
            text[n++] = (char)random_below(256);
    }
    return n;
}

static size_t random_ranges(struct nib_range *range, size_t n_max, size_t n)
{
    size_t count = 0, from = 0;
    while (count < n_max && from <= n && random_below(4) > 0) {
        size_t start = from + random_below((uint32_t)(n - from + 1));
        size_t end = start + random_below((uint32_t)(n - start + 1)) / 4;
        range[count++] = (struct nib_range){start, end};
        from = end;
    }
    return count;
}

static void any_bytes_come_back(void **state)
{
    (void)state;
    char text[1024];
    struct nib_range range[8];
    for (int round = 0; round < 20000; round++) {
        bool valid = round % 2 == 0;
        size_t n = random_text(text, sizeof text, valid);
        size_t n_ranges = random_ranges(range, 8, n);
        struct nib_ids ids = encode(text, n, range, n_ranges);
        check_bytes(&ids, text, n);
        if (valid) {
            struct nib_text back;
            assert_int_equal(nib_tokenizer_decode(v4, ids.id, ids.n, false, &back, NULL), NIB_OK);
            assert_int_equal(back.n, n);
            assert_memory_equal(back.data, text, n);
            nib_text_free(&back);
        }
        nib_ids_free(&ids);
    }
}

static bool same_ids(const struct nib_ids *a, const struct nib_ids *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->id, b->id, a->n * sizeof a->id[0]) == 0);
}

/* Where there is nothing to recognise, ranges change nothing: their borders are no borders of pieces. */
static void borders_of_ranges_do_not_cut(void **state)
{
    (void)state;
    const char text[] = "You are helpful.\n\n## Tools\n  12345 中文カナ don't <th\xFF ink>";
    size_t n = sizeof text - 1;
    struct nib_ids want = encode(text, n, NULL, 0);
    for (size_t a = 0; a <= n; a++) {
        for (size_t b = a; b <= n; b++) {
            struct nib_range range = {a, b};
            struct nib_ids got = encode(text, n, &range, 1);
            assert_true(same_ids(&got, &want));
            nib_ids_free(&got);
        }
    }
    nib_ids_free(&want);
}

static size_t count_id(const struct nib_ids *ids, int32_t id)
{
    size_t count = 0;
    for (size_t i = 0; i < ids->n; i++)
        count += ids->id[i] == id;
    return count;
}

/* Two of the same token: a range that touches any byte of one hides that one alone. */
static void a_touched_token_is_plain_text(void **state)
{
    (void)state;
    const char text[] = "x<think>y</think><think>";
    size_t n = sizeof text - 1;
    const int32_t open = nib_tokenizer_find(v4, "<think>"), close = nib_tokenizer_find(v4, "</think>");
    assert_int_equal(open, 128821);
    assert_int_equal(close, 128822);
    for (size_t a = 0; a <= n; a++) {
        for (size_t b = a; b <= n; b++) {
            struct nib_range range = {a, b};
            struct nib_ids ids = encode(text, n, &range, 1);
            size_t hidden_first = a < b && a < 8 && b > 1, hidden_close = a < b && a < 17 && b > 9;
            size_t hidden_last = a < b && b > 17;
            assert_int_equal(count_id(&ids, open), 2 - hidden_first - hidden_last);
            assert_int_equal(count_id(&ids, close), 1 - hidden_close);
            check_bytes(&ids, text, n);
            nib_ids_free(&ids);
        }
    }
}

static void wrong_ranges_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct nib_range range[2];
        const char      *says;
    } cases[] = {
        {{{0, 6}, {6, 6}}, "range 0 is [0, 6)"},
        {{{3, 2}, {3, 3}}, "range 0 is [3, 2)"},
        {{{1, 3}, {2, 4}}, "range 1 is [2, 4)"},
        {{{SIZE_MAX, SIZE_MAX}, {0, 0}}, "range 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct nib_error err = {NIB_OK, ""};
        struct nib_ids ids = {(int32_t[]){1}, 1};
        assert_int_equal(nib_tokenizer_encode(v4, "hello", 5, cases[i].range, 2, &ids, &err), NIB_E_ARGUMENT);
        assert_non_null(strstr(err.text, cases[i].says));
        assert_null(ids.id);
        assert_int_equal(ids.n, 0);
    }
}

static void wrong_ids_are_refused(void **state)
{
    (void)state;
    static const int32_t wrong[] = {-1, INT32_MIN, 129280, INT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const int32_t id[2] = {0, wrong[i]};
        struct nib_error err = {NIB_OK, ""};
        struct nib_text out = {NULL, 9};
        char number[32];
        assert_int_equal(nib_tokenizer_decode(v4, id, 2, false, &out, &err), NIB_E_ARGUMENT);
        (void)snprintf(number, sizeof number, "is %ld, wanted", (long)wrong[i]);
        assert_non_null(strstr(err.text, number));
        assert_null(out.data);
        assert_int_equal(out.n, 0);
    }
}

struct pieces {
    struct nib_text joined; /* each piece behind a '|' */
};

static enum nib_status note_piece(void *user, const char *bytes, size_t n)
{
    struct pieces *p = user;
    assert_true(n > 0);
    assert_int_equal(nib_text_append(&p->joined, "|", 1), NIB_OK);
    return nib_text_append(&p->joined, bytes, n);
}

static void check_pieces(const struct nib_pretokenizer *t, const char *text, const char *want)
{
    struct pieces p = {{NULL, 0}};
    assert_int_equal(nib_pretokenizer_split(t, text, strlen(text), note_piece, &p, NULL), NIB_OK);
    assert_string_equal(p.joined.data ? p.joined.data : "", want);
    nib_text_free(&p.joined);
}

/* An invalid byte is a character of no class: it may stand first before letters, else it is in a gap. */
static void pieces_of_broken_text(void **state)
{
    (void)state;
    const struct nib_pretokenizer *t = v4->pretokenizer;
    check_pieces(t, "\xFF", "|\xFF");
    check_pieces(t, "\xFF" "abc", "|\xFF" "abc");
    check_pieces(t, "a\xFF\xFF b", "|a|\xFF\xFF| b");
    check_pieces(t, "a\xFF\xFF" "b", "|a|\xFF|\xFF" "b");
    check_pieces(t, "12\xE4\xB8" "34", "|12|\xE4\xB8|34");
    check_pieces(t, "\xE4\xB8中\xE4\xB8", "|\xE4\xB8|中|\xE4\xB8");
    check_pieces(t, "x \x80\xC3!?\n\xF0\x9F", "|x| |\x80\xC3|!?\n|\xF0\x9F");
    check_pieces(t, "\U0010FFFF\xFF\U0010FFFF" "a", "|\U0010FFFF\xFF|\U0010FFFF" "a");
}

static struct nib_pretokenizer *splitters(size_t n, const char *const *pattern)
{
    struct nib_pretokenizer *t;
    struct nib_error err = {NIB_OK, ""};
    if (nib_pretokenizer_open(pattern, n, &t, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return t;
}

static void check_one(const char *pattern, const char *text, const char *want)
{
    struct nib_pretokenizer *t = splitters(1, &pattern);
    check_pieces(t, text, want);
    nib_pretokenizer_close(t);
}

static void splitters_of_other_files(void **state)
{
    (void)state;
    check_one("b", "abbc", "|a|b|b|c");
    check_one("(?=b)", "abbc", "|a|b|bc"); /* an empty match is a place to cut */
    check_one("a*", "baac", "|b|aa|c");
    check_one("x*", "中é", "|中|é");
    check_one("^b$", "a\nb\nb", "|a\n|b|\n|b");
    check_one(".+", "a\n\r", "|a|\n|\r");
    check_one("\\\\s+", "a\\ss\\s b", "|a|\\ss|\\s| b"); /* a backslash and some s, not space */
    check_one("[^\\S\\n]+", "a \n\tb", "|a| |\n|\t|b");
    check_one("(?i:'S|'Re)|\\p{^L}|\\P{Lu}\\x{41}", "we'RE bA", "|we|'RE| |bA");

    struct nib_pretokenizer *none = splitters(0, NULL);
    check_pieces(none, "all of it\n\xFF", "|all of it\n\xFF");
    check_pieces(none, "", "");
    nib_pretokenizer_close(none);
    /* The second splitter sees neither side of a digit. */
    struct nib_pretokenizer *two = splitters(2, (const char *const[]){"\\p{N}", "(?<!\\p{N})a|b(?!\\p{N})"});
    check_pieces(two, "1ax1xb1", "|1|a|x|1|x|b|1");
    nib_pretokenizer_close(two);
}

static void splitters_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char     *pattern;
        enum nib_status status;
        const char     *says;
    } cases[] = {
        {"a(", NIB_E_FORMAT, "parenthes"},
        {"[z-a]", NIB_E_FORMAT, "range"},
        {"a\\", NIB_E_FORMAT, "\\"},
        {"(?<n>a)(?<n>b)", NIB_E_FORMAT, "name"},
        {"\\p{Qq}", NIB_E_UNSUPPORTED, "\\p{Qq}"},
        {"\\p{Han}", NIB_E_UNSUPPORTED, "\\p{Han}"},
        {"\\p{", NIB_E_UNSUPPORTED, "\\p{"},
        {"\\p", NIB_E_UNSUPPORTED, "\\p"},
        {"\\w+", NIB_E_UNSUPPORTED, "\\w+"},
        {"\\bx", NIB_E_UNSUPPORTED, "\\bx"},
        {"a\\Kb", NIB_E_UNSUPPORTED, "\\Kb"},
        {"\\C", NIB_E_UNSUPPORTED, "\\C"},
        {"\\xE4", NIB_E_UNSUPPORTED, "\\xE4"},
        {"(a)\\1", NIB_E_UNSUPPORTED, "\\1"},
        {"\\Qa\\E", NIB_E_UNSUPPORTED, "\\Qa"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const pattern[2] = {"a", cases[i].pattern};
        struct nib_error err = {NIB_OK, ""};
        struct nib_pretokenizer *t;
        if (nib_pretokenizer_open(pattern, 2, &t, &err) != cases[i].status)
            fail_msg("'%s': %s '%s'", cases[i].pattern, nib_status_name(err.status), err.text);
        assert_null(t);
        assert_non_null(strstr(err.text, "splitter 1"));
        if (!strstr(err.text, cases[i].says))
            fail_msg("'%s' does not say '%s'", err.text, cases[i].says);
    }
}

/* A pattern that tries 2^40 ways ends with an error, not with the day. */
static void endless_backtracking_ends(void **state)
{
    (void)state;
    struct nib_pretokenizer *t = splitters(1, (const char *const[]){"(?:a+)+(?:a+)+[cd]"});
    char text[40];
    memset(text, 'a', sizeof text);
    text[39] = 'b';
    struct pieces p = {{NULL, 0}};
    struct nib_error err = {NIB_OK, ""};
    assert_int_equal(nib_pretokenizer_split(t, text, sizeof text, note_piece, &p, &err), NIB_E_LIMIT);
    assert_non_null(strstr(err.text, "splitter 0"));
    nib_text_free(&p.joined);
    nib_pretokenizer_close(t);
}

/* \s is the White_Space property: these code points and no others, in every Unicode version since 6.3. */
static void white_space_is_the_property(void **state)
{
    (void)state;
    struct nib_pretokenizer *t = splitters(1, (const char *const[]){"\\s"});
    for (uint32_t c = 0; c < 0x3100; c++) {
        char text[16], want[16], character[5] = "";
        if (c == 0)
            continue; /* ends a C string; not white space anywhere */
        size_t n = nib_utf8_encode(c, character);
        character[n] = '\0';
        bool space = (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
                     (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
                     c == 0x3000;
        (void)snprintf(text, sizeof text, "a%sa", character);
        (void)snprintf(want, sizeof want, space ? "|a|%s|a" : "|a%sa", character);
        check_pieces(t, text, want);
    }
    nib_pretokenizer_close(t);
}

/* Four megabytes that are one piece take under a second of CPU time. Fills of many pieces have more allowance, for
 * platforms without compiled patterns; what is quadratic would take hours. */
static void huge_pieces_take_no_time(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double      seconds;
    } fill[] = {{"a", 1}, {" ", 1}, {"=", 1}, {"é", 1}, {"\n", 1}, {"ab", 1}, {"\xFF", 5}, {"中", 5}, {"1", 5},
                {" \n", 5}, {"<", 5}, {"\u200D", 5}, {" 1", 5}, {"a\xFF", 5}};
    const size_t n = 4u << 20;
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t k = 0; k < sizeof fill / sizeof fill[0]; k++) {
        for (size_t i = 0, n_fill = strlen(fill[k].text); i < n; i++)
            text[i] = fill[k].text[i % n_fill];
        clock_t start = clock();
        struct nib_ids ids = encode(text, n, NULL, 0);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        check_bytes(&ids, text, n);
        nib_ids_free(&ids);
        print_message("fill %zu: %.3f s\n", k, seconds);
        if (!IS_SANITIZED && !getenv("NIB_TEST_UNTIMED")) /* scripts/tsan.sh sets it under valgrind */
            assert_true(seconds < fill[k].seconds);
    }
    free(text);
}

static const char shared_text[] = "Several threads read one tokenizer: 12345, naïve 中文\xFF, <think>ja</think>"
                                  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

static void *encode_often(void *user)
{
    const struct nib_ids *want = user;
    for (int i = 0; i < 500; i++) {
        struct nib_ids ids;
        if (nib_tokenizer_encode(v4, shared_text, sizeof shared_text - 1, NULL, 0, &ids, NULL) != NIB_OK)
            return user;
        bool same = same_ids(&ids, want);
        nib_ids_free(&ids);
        if (!same)
            return user;
    }
    return NULL;
}

static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    struct nib_ids want = encode(shared_text, sizeof shared_text - 1, NULL, 0);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, encode_often, &want), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        assert_int_equal(pthread_join(thread[i], &wrong), 0);
        assert_null(wrong);
    }
    nib_ids_free(&want);
}

static int setup(void **state)
{
    (void)state;
    struct nib_error err = {NIB_OK, ""};
    if (nib_tokenizer_open(NIB_SOURCE_DIR "/tests/data/goldens/tokenizer/deepseek_v4.tokenizer.json", &v4, &err))
        fail_msg("%s", err.text);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    nib_tokenizer_close(v4);
    nib_tokenizer_close(NULL);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(borders_of_ranges_do_not_cut),
        cmocka_unit_test(a_touched_token_is_plain_text),
        cmocka_unit_test(wrong_ranges_are_refused),
        cmocka_unit_test(wrong_ids_are_refused),
        cmocka_unit_test(pieces_of_broken_text),
        cmocka_unit_test(splitters_of_other_files),
        cmocka_unit_test(splitters_that_are_refused),
        cmocka_unit_test(endless_backtracking_ends),
        cmocka_unit_test(white_space_is_the_property),
        cmocka_unit_test(huge_pieces_take_no_time),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
