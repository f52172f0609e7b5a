/* UTF-8 after table 3-7 of the Unicode standard: the lead byte fixes the length and the range of the second byte, all
 * later bytes are 80..BF. Broken text is replaced as browsers do it: one U+FFFD for each maximal part that could have
 * begun a character. */
#include "text/utf8.h"

#include <string.h>

#include "base/text_buf.h"

static const char REPLACEMENT[3] = {'\xEF', '\xBF', '\xBD'};

/* Length of the character that a lead byte begins; 0 if it begins none. */
static size_t lead_length(unsigned char c)
{
    if (c < 0x80)
        return 1;
    if (c < 0xC2)
        return 0;
    return c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
}

/* Whether byte c may stand at place i (1 to 3) of a character that begins with `lead`. */
static bool may_follow(unsigned char lead, size_t i, unsigned char c)
{
    unsigned char low = 0x80, high = 0xBF;
    if (i == 1) {
        if (lead == 0xE0)
            low = 0xA0;
        else if (lead == 0xED)
            high = 0x9F;
        else if (lead == 0xF0)
            low = 0x90;
        else if (lead == 0xF4)
            high = 0x8F;
    }
    return low <= c && c <= high;
}

size_t nib_utf8_decode(const char *s, size_t n, uint32_t *c)
{
    if (n == 0)
        return 0;
    const unsigned char *u = (const unsigned char *)s;
    size_t length = lead_length(u[0]);
    if (length == 0 || length > n)
        return 0;
    uint32_t value = length == 1 ? u[0] : u[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (!may_follow(u[0], i, u[i]))
            return 0;
        value = value << 6 | (u[i] & 0x3Fu);
    }
    if (c)
        *c = value;
    return length;
}

size_t nib_utf8_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c >= 0xD800 && c <= 0xDFFF)
        c = 0xFFFD;
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

void nib_utf8_stream_init(struct nib_utf8_stream *s)
{
    memset(s, 0, sizeof *s);
}

/* Where the stream writes: `data` NULL only counts. */
struct sink {
    char  *data;
    size_t n;
};

static void sink_put(struct sink *k, const void *bytes, size_t n)
{
    if (k->data)
        memcpy(k->data + k->n, bytes, n);
    k->n += n;
}

static void stream_byte(struct nib_utf8_stream *s, unsigned char c, struct sink *k)
{
    if (s->n_pending > 0) {
        size_t i = (size_t)s->n_pending;
        if (may_follow(s->pending[0], i, c)) {
            s->pending[i] = c;
            s->n_pending++;
            if (i + 1 == lead_length(s->pending[0])) {
                sink_put(k, s->pending, i + 1);
                s->n_pending = 0;
            }
            return;
        }
        sink_put(k, REPLACEMENT, sizeof REPLACEMENT);
        s->n_pending = 0;
    }
    if (c < 0x80) {
        sink_put(k, &c, 1);
    } else if (lead_length(c) > 0) {
        s->pending[0] = c;
        s->n_pending = 1;
    } else {
        sink_put(k, REPLACEMENT, sizeof REPLACEMENT);
    }
}

/* One dry run gives the exact size, so that a failed allocation leaves stream and text untouched. */
enum nib_status nib_utf8_stream_push(struct nib_utf8_stream *s, const char *bytes, size_t n, struct nib_text *out)
{
    struct nib_utf8_stream dry = *s;
    struct sink k = {NULL, 0};
    for (size_t i = 0; i < n; i++)
        stream_byte(&dry, (unsigned char)bytes[i], &k);
    NIB_TRY(nib_text_reserve(out, k.n));

    k = (struct sink){out->data + out->n, 0};
    for (size_t i = 0; i < n; i++)
        stream_byte(s, (unsigned char)bytes[i], &k);
    out->n += k.n;
    out->data[out->n] = '\0';
    return NIB_OK;
}

enum nib_status nib_utf8_stream_end(struct nib_utf8_stream *s, struct nib_text *out)
{
    if (s->n_pending > 0)
        NIB_TRY(nib_text_append(out, REPLACEMENT, sizeof REPLACEMENT));
    else
        NIB_TRY(nib_text_reserve(out, 0));
    s->n_pending = 0;
    return NIB_OK;
}
