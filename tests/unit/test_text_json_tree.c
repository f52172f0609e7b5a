/* The ordered JSON tree: what is read, what is refused and where, and the way back to text. Expected numbers were
 * printed by Python 3.11's json.dumps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/json_tree.h"

#define LENGTH(a) (sizeof(a) / sizeof *(a))

/* Parse a copy of exactly n bytes, so that reading beyond them shows under the address sanitizer. */
static enum nib_status parse_copy(const char *text, size_t n, struct nib_error *err)
{
    struct nib_arena arena;
    struct nib_tree *v;
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    nib_arena_init(&arena);
    enum nib_status status = nib_tree_parse(n ? copy : copy + 1, n, "text", &arena, &v, err);
    assert_int_equal(v != NULL, status == NIB_OK);
    nib_arena_deinit(&arena);
    free(copy);
    return status;
}

/* Read and write again; the caller frees. */
static enum nib_status rewrite(const char *text, size_t n, struct nib_text *out, struct nib_error *err)
{
    struct nib_arena arena;
    struct nib_tree *v;
    *out = (struct nib_text){0};
    nib_arena_init(&arena);
    enum nib_status status = nib_tree_parse(text, n, "text", &arena, &v, err);
    if (status == NIB_OK)
        status = nib_tree_write(v, "text", out, err);
    nib_arena_deinit(&arena);
    return status;
}

static void check_rewrite(const char *text, const char *expected)
{
    struct nib_text out;
    struct nib_error err = {0};
    if (rewrite(text, strlen(text), &out, &err) != NIB_OK)
        fail_msg("%s: %s", text, err.text);
    assert_string_equal(out.data, expected);
    assert_int_equal(out.n, strlen(expected));
    nib_text_free(&out);
}

static const char *const numbers[][2] = {
    {"0", "0"},
    {"-0", "0"},
    {"-0.0", "-0.0"},
    {"0.0", "0.0"},
    {"-0e5", "-0.0"},
    {"7", "7"},
    {"-12", "-12"},
    {"12345678901234567890123", "12345678901234567890123"},
    {"-98765432109876543210", "-98765432109876543210"},
    {"1.0", "1.0"},
    {"1.50", "1.5"},
    {"-1.50", "-1.5"},
    {"1E-7", "1e-07"},
    {"1e10", "10000000000.0"},
    {"1E+2", "100.0"},
    {"1e16", "1e+16"},
    {"1e15", "1000000000000000.0"},
    {"1e-4", "0.0001"},
    {"1e-5", "1e-05"},
    {"0.0001", "0.0001"},
    {"0.00001", "1e-05"},
    {"123456789.125", "123456789.125"},
    {"1e-999", "0.0"},
    {"-1e-999", "-0.0"},
    {"1.7976931348623158e308", "1.7976931348623157e+308"},
    {"100000000000000000000", "100000000000000000000"},
    {"1e20", "1e+20"},
    {"0.10", "0.1"},
    {"9.5e0", "9.5"},
    {"2.4703282292062328e-324", "5e-324"},
    {"7.1202363472230444258887447e-307", "7.120236347223045e-307"},
    {"7.2911220195563974921100746e-304", "7.291122019556398e-304"},
    {"8.2090736025967524986720586e-289", "8.209073602596753e-289"},
    {"5.6412324245775924252164440e-278", "5.641232424577593e-278"},
    {"7.6784476871456304886663395e-239", "7.678447687145631e-239"},
    {"5.9409111446723744484846013e-213", "5.940911144672375e-213"},
    {"6.0834930121445114352482317e-210", "6.083493012144512e-210"},
    {"5.4266571032350524498113120e-166", "5.426657103235053e-166"},
    {"5.9666725849601653946327723e-154", "5.966672584960166e-154"},
    {"6.2565096724471903888424538e-148", "6.256509672447191e-148"},
    {"5.0758836746312984465480491e-116", "5.075883674631299e-116"},
    {"6.3108872417680944432938285e-30", "6.310887241768095e-30"},
    {"4.9406564584124654417656879e-324", "5e-324"},
    {"2.2250738585072013830902327e-308", "2.2250738585072014e-308"},
    {"1.7976931348623157081452742e+308", "1.7976931348623157e+308"},
    {"1.0000000000000000555111512e-01", "0.1"},
    {"3.3333333333333331482961626e-01", "0.3333333333333333"},
    {"6.6666666666666662965923251e-01", "0.6666666666666666"},
    {"1.0000000000000000000000000e+22", "1e+22"},
    {"9.9999999999999991611392000e+22", "1e+23"},
    {"9.0071992547409920000000000e+15", "9007199254740992.0"},
    {"9.9999999999999980000000000e+15", "9999999999999998.0"},
    {"1.2345678901234568000000000e+17", "1.2345678901234568e+17"},
    {"1.2344999999999999203137424e-04", "0.00012345"},
    {"4.3499999999999996447286321e+00", "4.35"},
    {"3.0000000000000004440892099e-01", "0.30000000000000004"},
    {"6.2290169488970189813588516e+66", "6.229016948897019e+66"},
    {"7.9519356556569673237316690e+241", "7.951935655656967e+241"},
    {"2.9005228283614735334746736e+174", "2.9005228283614735e+174"},
    {"7.7595856743571690982423309e-46", "7.759585674357169e-46"},
    {"6.4897455313692424527837866e-141", "6.489745531369242e-141"},
    {"1.1320596465314435955251209e+179", "1.1320596465314436e+179"},
    {"8.6844545786509528065188420e+88", "8.684454578650953e+88"},
    {"5.4376085923593047641148827e+286", "5.437608592359305e+286"},
    {"2.4933071444268662015496542e-80", "2.4933071444268662e-80"},
    {"4.0815105497451404595850590e-115", "4.0815105497451405e-115"},
    {"9.1634537180855188864421417e+97", "9.163453718085519e+97"},
    {"1.5960421235803822999031142e-228", "1.5960421235803823e-228"},
    {"1.3876741839890316362318578e+154", "1.3876741839890316e+154"},
    {"1.2669923255026972026818104e-300", "1.2669923255026972e-300"},
    {"9.7233728968653638426668319e-296", "9.723372896865364e-296"},
    {"2.0945638249511788611500528e-81", "2.0945638249511789e-81"},
    {"9.6012710021749953489762329e-132", "9.601271002174995e-132"},
    {"8.7240776543680187047301311e-05", "8.724077654368019e-05"},
    {"3.1365136773495361478486053e-98", "3.136513677349536e-98"},
    {"5.3922346887081067305508098e-92", "5.392234688708107e-92"},
};

static void writes_numbers_as_python(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(numbers); i++)
        check_rewrite(numbers[i][0], numbers[i][1]);
}

/* Every power of two, where the doubles below are denser than those above, and its neighbours: the text reads back as
 * the same double, and no text with one digit less does. */
static void shortest_digits_near_powers_of_two(void **state)
{
    (void)state;
    double power = 4.9406564584124654e-324; /* 2^-1074, the smallest */
    for (int k = -1074; k < 1024; k++, power *= 2) {
        for (int step = -1; step <= 1; step++) {
            uint64_t bits;
            double v;
            char text[64];
            struct nib_text out;
            memcpy(&bits, &power, sizeof bits);
            bits += (uint64_t)(int64_t)step;
            memcpy(&v, &bits, sizeof v);
            (void)snprintf(text, sizeof text, "%.30e", v);
            assert_int_equal(rewrite(text, strlen(text), &out, NULL), NIB_OK);
            assert_true(strtod(out.data, NULL) == v);
            size_t n = 0, zeros = 0;
            for (const char *c = out.data; *c && *c != 'e'; c++) {
                if (*c >= '0' && *c <= '9' && (n || *c != '0')) {
                    n++;
                    zeros = *c == '0' ? zeros + 1 : 0;
                }
            }
            n -= zeros;
            for (int up = 0; n > 1 && up < 2; up++) { /* the two nearest of n - 1 digits, one on either side */
                char fewer[64];
                (void)snprintf(fewer, sizeof fewer, "%.*e", (int)n - 2, v);
                char *last = strchr(fewer, 'e') - 1;
                bool rounded_up = strtod(fewer, NULL) > v;
                if (up && *last != (rounded_up ? '0' : '9'))
                    *last = (char)(*last + (rounded_up ? -1 : 1));
                assert_true(strtod(fewer, NULL) != v);
            }
            nib_text_free(&out);
        }
    }
}

static void writes_as_python_dumps(void **state)
{
    (void)state;
    check_rewrite(" { } ", "{}");
    check_rewrite("\t[\r\n]", "[]");
    check_rewrite("[1,2 ,[],{\"b\":null,\"a\":[true,false]}]", "[1, 2, [], {\"b\": null, \"a\": [true, false]}]");
    check_rewrite("\"\"", "\"\"");
    check_rewrite("\"a\\/b\\\\\\\"\\b\\f\\n\\r\\t\"", "\"a/b\\\\\\\"\\b\\f\\n\\r\\t\"");
    check_rewrite("\"\\u0000\\u001F\\u007f\\u2028\"", "\"\\u0000\\u001f\x7f\xe2\x80\xa8\"");
    check_rewrite("\"\\u4f60\\u00e9\"", "\"\xe4\xbd\xa0\xc3\xa9\"");
    check_rewrite("\"\\uD83d\\uDe00\"", "\"\xf0\x9f\x98\x80\"");
    check_rewrite("\"\xf0\x9f\x98\x80\"", "\"\xf0\x9f\x98\x80\"");
    /* Surrogates without a partner: alone, in the wrong order, before something else, twice high and then low. */
    check_rewrite("\"\\ud83d\"", "\"\xef\xbf\xbd\"");
    check_rewrite("\"\\ude00\\ud83d\"", "\"\xef\xbf\xbd\xef\xbf\xbd\"");
    check_rewrite("\"\\ud83d\\n\\u0041\"", "\"\xef\xbf\xbd\\nA\"");
    check_rewrite("\"\\ud83d\\ud83d\\ude00\"", "\"\xef\xbf\xbd\xf0\x9f\x98\x80\"");
    check_rewrite("\"\\ud83d\\u0041\"", "\"\xef\xbf\xbd" "A\"");
    /* First place, last value. */
    check_rewrite("{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}");
    check_rewrite("{\"z\":0,\"\":1,\"\\u007a\":2,\"\":3,\"z\":[4]}", "{\"z\": [4], \"\": 3}");
}

static void keeps_order_among_many_keys(void **state)
{
    (void)state;
    enum { N = 5000 };
    struct nib_text out;
    char *text = malloc((size_t)2 * N * 24 + 2), *expected = malloc((size_t)N * 24 + 2);
    assert_true(text && expected);
    size_t n = 0, m = 0;
    for (int i = 0; i < 2 * N; i++)
        n += (size_t)sprintf(text + n, "%c\"k%d\":%d", i ? ',' : '{', i * 7919 % N, i);
    for (int i = 0; i < N; i++)
        m += (size_t)sprintf(expected + m, "%s\"k%d\": %d", i ? ", " : "{", i * 7919 % N, i + N);
    text[n++] = '}';
    memcpy(expected + m, "}", 2);
    assert_int_equal(rewrite(text, n, &out, NULL), NIB_OK);
    assert_string_equal(out.data, expected);
    nib_text_free(&out);
    free(text);
    free(expected);
}

static const struct {
    const char *text;
    size_t      n, offset; /* n 0: strlen */
} hostile[] = {
    {"", 0, 0}, {" ", 0, 1}, {"]", 0, 0}, {"nul", 0, 3}, {"nulL", 0, 3}, {"True", 0, 0}, {"NaN", 0, 0},
    {"Infinity", 0, 0}, {"-Infinity", 0, 1}, {"+1", 0, 0}, {"-", 0, 1}, {"01", 0, 1}, {"-01", 0, 2}, {"1.", 0, 2},
    {".5", 0, 0}, {"1.e5", 0, 2}, {"1e", 0, 2}, {"1e+", 0, 3}, {"0x10", 0, 1}, {"1_0", 0, 1}, {"1 2", 0, 2},
    {"[1,]", 0, 3}, {"[,1]", 0, 1}, {"[1 2]", 0, 3}, {"[1}", 0, 2}, {"{\"a\"}", 0, 4}, {"{\"a\":}", 0, 5},
    {"{\"a\":1,}", 0, 7}, {"{a:1}", 0, 1}, {"{'a':1}", 0, 1}, {"{1:2}", 0, 1}, {"{\"a\" 1}", 0, 5},
    {"[] []", 0, 3}, {"/**/1", 0, 0}, {"\xef\xbb\xbf[]", 0, 0}, {"[1]\0", 4, 3}, {"\0", 1, 0},
    /* strings: control characters, escapes */
    {"\"abc", 0, 4}, {"\"a\nb\"", 0, 2}, {"\"a\tb\"", 0, 2}, {"\"a\0b\"", 5, 2}, {"\"\\x41\"", 0, 2},
    {"\"\\", 0, 2}, {"\"\\\0\"", 4, 2}, {"\"\\u\"", 0, 3}, {"\"\\u12\"", 0, 3}, {"\"\\u123g\"", 0, 3},
    {"\"\\u+123\"", 0, 3}, {"\"\\U00000041\"", 0, 2}, {"\"\\ud83d\\u12\"", 0, 9},
    /* UTF-8: stray continuation, overlong 2, 3, 4, surrogate, beyond U+10FFFF, cut off, never valid */
    {"\"\x80\"", 0, 1}, {"\"\xc0\x80\"", 0, 1}, {"\"\xc1\xbf\"", 0, 1}, {"\"\xe0\x9f\xbf\"", 0, 1},
    {"\"\xed\xa0\x80\"", 0, 1}, {"\"\xed\xbf\xbf\"", 0, 1}, {"\"\xf0\x8f\xbf\xbf\"", 0, 1},
    {"\"\xf4\x90\x80\x80\"", 0, 1}, {"\"\xf5\x80\x80\x80\"", 0, 1}, {"\"\xff\"", 0, 1}, {"\"\xe4\xbd\"", 0, 1},
    {"\"a\xe4", 0, 2}, {"\"\xf0\x9f\x98", 0, 1}, {"{\"\xc3\x28\":1}", 0, 2},
};

static void refuses_what_is_not_json(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(hostile); i++) {
        struct nib_error err = {0};
        char expected[32];
        size_t n = hostile[i].n ? hostile[i].n : strlen(hostile[i].text);
        if (parse_copy(hostile[i].text, n, &err) != NIB_E_FORMAT)
            fail_msg("text %zu was not refused as malformed: %s", i, hostile[i].text);
        (void)snprintf(expected, sizeof expected, "text: byte %zu: ", hostile[i].offset);
        if (strncmp(err.text, expected, strlen(expected)))
            fail_msg("text %zu: error \"%s\" does not begin with \"%s\"", i, err.text, expected);
    }
}

static void refuses_every_beginning(void **state)
{
    (void)state;
    static const char text[] = "{\"a\": [1.5e-3, {\"\\u4f60\\ud83d\\ude00\": \"\xe4\xbd\xa0\\n\"}, true, false, null, "
                               "\"\xf0\x9f\x98\x80\"], \"b\": {}, \"a\": -0}";
    for (size_t n = 0; n < sizeof text - 1; n++) {
        struct nib_error err = {0};
        assert_int_equal(parse_copy(text, n, &err), NIB_E_FORMAT);
        assert_non_null(strstr(err.text, "text: byte "));
        assert_true(strtoul(err.text + strlen("text: byte "), NULL, 10) <= n);
    }
    assert_int_equal(parse_copy(text, sizeof text - 1, NULL), NIB_OK);
}

/* Any one byte changed to any other value: refused or read, never a crash. */
static void survives_every_changed_byte(void **state)
{
    (void)state;
    static const char text[] = "[\"\\ud83d\\ude00\xe4\xbd\xa0\", -1.5e+3, {\"a\": null, \"a\": [true]}]";
    char changed[sizeof text];
    for (size_t i = 0; i < sizeof text - 1; i++) {
        for (int c = 0; c < 256; c++) {
            memcpy(changed, text, sizeof text);
            changed[i] = (char)c;
            enum nib_status status = parse_copy(changed, sizeof text - 1, NULL);
            assert_true(status == NIB_OK || status == NIB_E_FORMAT);
        }
    }
}

static enum nib_status parse_nested(size_t depth, const char *open, const char *close)
{
    size_t n_open = strlen(open), n_close = strlen(close);
    char *text = malloc(depth * (n_open + n_close) + 1);
    assert_non_null(text);
    for (size_t i = 0; i < depth; i++) {
        memcpy(text + i * n_open, open, n_open);
        memcpy(text + depth * n_open + i * n_close, close, n_close);
    }
    /* The innermost object needs a value behind its key. */
    enum nib_status status = NIB_OK;
    if (n_open > 1) {
        memcpy(text + depth * n_open - n_open, "[ ]  ", n_open);
        status = parse_copy(text, depth * n_open + (depth - 1) * n_close, NULL);
    } else {
        status = parse_copy(text, depth * (n_open + n_close), NULL);
    }
    free(text);
    return status;
}

static void limits_depth_size_and_count(void **state)
{
    (void)state;
    assert_int_equal(parse_nested(128, "[", "]"), NIB_OK);
    assert_int_equal(parse_nested(129, "[", "]"), NIB_E_LIMIT);
    assert_int_equal(parse_nested(10000, "[", "]"), NIB_E_LIMIT);
    assert_int_equal(parse_nested(10000, "[", ""), NIB_E_LIMIT);
    assert_int_equal(parse_nested(128, "{\"a\":", "}"), NIB_OK);
    assert_int_equal(parse_nested(129, "{\"a\":", "}"), NIB_E_LIMIT);
    assert_int_equal(parse_nested(10000, "{\"a\":", "}"), NIB_E_LIMIT);

    struct nib_arena arena;
    struct nib_tree *v;
    nib_arena_init(&arena);
    assert_int_equal(nib_tree_parse("1", NIB_TREE_BYTES_MAX + 1, "text", &arena, &v, NULL), NIB_E_LIMIT);
    assert_null(v);
    nib_arena_deinit(&arena);

    size_t n = NIB_TREE_VALUES_MAX; /* the array itself is a value as well, so one zero too many */
    char *text = malloc(2 * n + 1);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        memcpy(text + 2 * i, i ? ",0" : "[0", 2);
    text[2 * n] = ']';
    assert_int_equal(parse_copy(text, 2 * n + 1, NULL), NIB_E_LIMIT);
    text[2 * n - 2] = ']';
    assert_int_equal(parse_copy(text, 2 * n - 1, NULL), NIB_OK);
    free(text);
}

static void huge_numbers(void **state)
{
    (void)state;
    static const char *const overflowing[] = {"1e999", "-1e999", "1.7976931348623159e308", "[0, {\"a\": 1e400}]",
                                              "123456789e99999999999999999999"};
    enum { N = 100000 };
    struct nib_text out;
    for (size_t i = 0; i < LENGTH(overflowing); i++) {
        struct nib_error err = {0};
        assert_int_equal(rewrite(overflowing[i], strlen(overflowing[i]), &out, &err), NIB_E_FORMAT);
        assert_non_null(strstr(err.text, "beyond the range"));
        nib_text_free(&out);
    }
    char *digits = malloc(N + 3);
    assert_non_null(digits);
    memset(digits, '7', N);
    assert_int_equal(rewrite(digits, N, &out, NULL), NIB_OK); /* an integer stays as it is */
    assert_int_equal(out.n, N);
    assert_memory_equal(out.data, digits, N);
    nib_text_free(&out);
    memcpy(digits + N, "e0", 3);
    assert_int_equal(rewrite(digits, N + 2, &out, NULL), NIB_E_FORMAT);
    nib_text_free(&out);
    digits[1] = '.';
    assert_int_equal(rewrite(digits, N, &out, NULL), NIB_OK);
    assert_string_equal(out.data, "7.777777777777778");
    nib_text_free(&out);
    free(digits);
}

static void finds_members(void **state)
{
    (void)state;
    static const char text[] = "{\"a\": \"x\\u0000y\", \"ab\": 1.50, \"\": []}";
    struct nib_arena arena;
    struct nib_tree *v;
    nib_arena_init(&arena);
    assert_int_equal(nib_tree_parse(text, sizeof text - 1, "text", &arena, &v, NULL), NIB_OK);
    struct nib_tree *a = nib_tree_get(v, "a"), *ab = nib_tree_get(v, "ab");
    assert_true(a && a->type == NIB_TREE_STRING && a->n == 3 && !memcmp(a->as.text, "x\0y", 3));
    assert_false(nib_tree_is_text(a, "x"));
    assert_true(ab && ab->type == NIB_TREE_NUMBER && ab->n == 4 && !memcmp(ab->as.text, "1.50", 4));
    assert_int_equal(nib_tree_get(v, "")->type, NIB_TREE_ARRAY);
    assert_null(nib_tree_get(v, "b"));
    assert_null(nib_tree_get(a, "a"));
    assert_null(nib_tree_get(NULL, "a"));
    nib_arena_deinit(&arena);
}

/* A host program may have set any locale; where none with a comma is installed this shows nothing. */
static void locale_does_not_matter(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"};
    for (size_t i = 0; i < LENGTH(names); i++)
        if (setlocale(LC_NUMERIC, names[i]))
            break;
    check_rewrite("1.50", "1.5");
    check_rewrite("2.5e-7", "2.5e-07");
    (void)setlocale(LC_NUMERIC, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_numbers_as_python),
        cmocka_unit_test(shortest_digits_near_powers_of_two),
        cmocka_unit_test(writes_as_python_dumps),
        cmocka_unit_test(keeps_order_among_many_keys),
        cmocka_unit_test(refuses_what_is_not_json),
        cmocka_unit_test(refuses_every_beginning),
        cmocka_unit_test(survives_every_changed_byte),
        cmocka_unit_test(limits_depth_size_and_count),
        cmocka_unit_test(huge_numbers),
        cmocka_unit_test(finds_members),
        cmocka_unit_test(locale_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
