/* UTF-8: single characters against the definition, and the streaming decoder at every cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text_buf.h"
#include "text/utf8.h"

static void every_code_point_survives(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char bytes[4];
        uint32_t back = 0;
        size_t n = nib_utf8_encode(c, bytes);
        size_t want_n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        assert_int_equal(n, want_n);
        assert_int_equal(nib_utf8_decode(bytes, n, &back), n);
        assert_int_equal(back, c >= 0xD800 && c <= 0xDFFF ? 0xFFFD : c);
        for (size_t cut = 0; cut < n; cut++)
            assert_int_equal(nib_utf8_decode(bytes, cut, NULL), 0);
    }
}

/* A sequence is well-formed if its payload, encoded the shortest way, gives it back and is no surrogate. */
static bool well_formed(const unsigned char *b, size_t n)
{
    static const unsigned char lead_mask[5] = {0, 0x80, 0xE0, 0xF0, 0xF8}, lead_bits[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if ((b[0] & lead_mask[n]) != lead_bits[n])
        return false;
    uint32_t c = b[0] & (unsigned char)~lead_mask[n];
    for (size_t i = 1; i < n; i++) {
        if ((b[i] & 0xC0) != 0x80)
            return false;
        c = c << 6 | (b[i] & 0x3Fu);
    }
    return c >= least[n] && c < 0x110000 && (c < 0xD800 || c > 0xDFFF);
}

static size_t length_by_definition(const unsigned char *b, size_t n)
{
    for (size_t length = 1; length <= 4 && length <= n; length++) {
        if (well_formed(b, length))
            return length;
    }
    return 0;
}

/* All bytes in the first three places, and bytes on either side of every limit in the fourth. */
static void every_lead_is_judged(void **state)
{
    (void)state;
    static const unsigned char fourth[] = {0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xFF};
    for (uint32_t k = 0; k < 1u << 24; k += (k >> 16) < 0xC0 ? 0x1F : 1) {
        unsigned char b[4] = {(unsigned char)(k >> 16), (unsigned char)(k >> 8), (unsigned char)k, 0};
        b[3] = fourth[k % sizeof fourth];
        if (nib_utf8_decode((const char *)b, 4, NULL) != length_by_definition(b, 4))
            fail_msg("%02X %02X %02X %02X: length %zu, wanted %zu", b[0], b[1], b[2], b[3],
                     nib_utf8_decode((const char *)b, 4, NULL), length_by_definition(b, 4));
    }
}

#define R "\xEF\xBF\xBD"

/* From the Unicode standard, section 3.9, and from the cases that decoders are known to get wrong. */
static const struct {
    const char *bytes, *text;
} replaced[] = {
    {"", ""},
    {"plain", "plain"},
    {"\xE4\xBD", R},
    {"\xE4\xBDx", R "x"},
    {"\xE4\xBD\xE4\xBD\xA0", R "\xE4\xBD\xA0"},
    {"\xED\xA0\x80", R R R},
    {"\xC0\x80", R R},
    {"\xC2", R},
    {"\xC2\xC2\x80", R "\xC2\x80"},
    {"\x80\xBF", R R},
    {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
    {"\xF0\x9F\x98", R},
    {"\xF0\x9F\x98z\xF0\x9F", R "z" R},
    {"\xF4\x8F\xBF\xBF\xF4\x90\x80\x80", "\xF4\x8F\xBF\xBF" R R R R},
    {"\xF5\x80\xFF", R R R},
    {"\xE0\x80\x80\xE0\xA0\x80", R R R "\xE0\xA0\x80"},
    {"a\xF1\x80\x80\xE1\x80\xC2" "b\x80" "c\x80\xBF" "d", "a" R R R "b" R "c" R R "d"},
};

static void check_stream(const char *bytes, size_t n, size_t cut_a, size_t cut_b, const char *want, size_t n_want)
{
    struct nib_utf8_stream s;
    struct nib_text out = {NULL, 0};
    const size_t cut[4] = {0, cut_a, cut_b, n};
    nib_utf8_stream_init(&s);
    for (int i = 0; i < 3; i++) {
        size_t before = out.n;
        assert_int_equal(nib_utf8_stream_push(&s, bytes + cut[i], cut[i + 1] - cut[i], &out), NIB_OK);
        for (size_t at = before; at < out.n;) { /* whole characters only */
            size_t length = nib_utf8_decode(out.data + at, out.n - at, NULL);
            assert_true(length > 0);
            at += length;
        }
    }
    assert_int_equal(nib_utf8_stream_end(&s, &out), NIB_OK);
    assert_int_equal(s.n_pending, 0);
    assert_int_equal(out.n, n_want);
    assert_memory_equal(out.data, want, n_want);
    assert_int_equal(out.data[out.n], '\0');
    nib_text_free(&out);
}

static void broken_text_is_replaced_at_every_cut(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof replaced / sizeof replaced[0]; k++) {
        size_t n = strlen(replaced[k].bytes);
        for (size_t a = 0; a <= n; a++) {
            for (size_t b = a; b <= n; b++)
                check_stream(replaced[k].bytes, n, a, b, replaced[k].text, strlen(replaced[k].text));
        }
    }
}

static void random_bytes_cut_anywhere_agree(void **state)
{
    (void)state;
    /* Bytes that meet each other's limits, so that nearly-characters are frequent. */
    static const unsigned char pool[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF,
                                         0xE0, 0xE4, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
    uint32_t x = 7;
    for (int round = 0; round < 3000; round++) {
        char bytes[24];
        for (size_t i = 0; i < sizeof bytes; i++) {
            x = x * 1664525u + 1013904223u;
            bytes[i] = (char)pool[(x >> 16) % sizeof pool];
        }
        struct nib_utf8_stream s;
        struct nib_text whole = {NULL, 0};
        nib_utf8_stream_init(&s);
        assert_int_equal(nib_utf8_stream_push(&s, bytes, sizeof bytes, &whole), NIB_OK);
        assert_int_equal(nib_utf8_stream_end(&s, &whole), NIB_OK);
        for (size_t a = 0; a <= sizeof bytes; a++)
            check_stream(bytes, sizeof bytes, a, a + (sizeof bytes - a) / 2, whole.data, whole.n);
        nib_text_free(&whole);
    }
}

static void text_grows_and_keeps_its_end(void **state)
{
    (void)state;
    struct nib_text t = {NULL, 0};
    assert_int_equal(nib_text_append(&t, NULL, 0), NIB_OK);
    assert_string_equal(t.data, "");
    for (size_t i = 0; i < 5000; i++) {
        const char c = (char)('a' + i % 26);
        assert_int_equal(nib_text_append(&t, &c, 1), NIB_OK);
        assert_int_equal(t.n, i + 1);
        assert_int_equal(t.data[t.n], '\0');
    }
    for (size_t i = 0; i < 5000; i++)
        assert_int_equal(t.data[i], 'a' + i % 26);
    assert_int_equal(nib_text_reserve(&t, SIZE_MAX / 2), NIB_E_MEMORY);
    assert_int_equal(nib_text_reserve(&t, SIZE_MAX), NIB_E_MEMORY);
    assert_int_equal(t.n, 5000);
    nib_text_free(&t);
    nib_text_free(&t);
    nib_text_free(NULL);
    assert_null(t.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_survives),
        cmocka_unit_test(every_lead_is_judged),
        cmocka_unit_test(broken_text_is_replaced_at_every_cut),
        cmocka_unit_test(random_bytes_cut_anywhere_agree),
        cmocka_unit_test(text_grows_and_keeps_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
