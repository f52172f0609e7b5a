/* Bytes to characters to columns. Widths are a small table: of the C library's, a program's locale would decide. */
#include "chat_edit.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"

/* ---- Characters ---- */

/* Bytes of the character at `at`; 1 for a byte that is none. */
static size_t char_bytes(const struct chat_edit *e, size_t at)
{
    const unsigned char first = (unsigned char)e->text[at];
    const size_t        left = e->n - at, need = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;

    return need <= left && input_utf8_valid_bytes(e->text + at, need) == need ? need : 1;
}

/* The code point of those bytes; U+FFFD for a byte that is none. */
static uint32_t code_point(const struct chat_edit *e, size_t at, size_t n_bytes)
{
    const unsigned char *c = (const unsigned char *)e->text + at;

    switch (n_bytes) {
    case 1: return c[0] < 0x80 ? c[0] : 0xfffd;
    case 2: return (uint32_t)(c[0] & 0x1f) << 6 | (c[1] & 0x3f);
    case 3: return (uint32_t)(c[0] & 0x0f) << 12 | (uint32_t)(c[1] & 0x3f) << 6 | (c[2] & 0x3f);
    default:
        return (uint32_t)(c[0] & 0x07) << 18 | (uint32_t)(c[1] & 0x3f) << 12 | (uint32_t)(c[2] & 0x3f) << 6 |
               (c[3] & 0x3f);
    }
}

struct span {
    uint32_t low, high;
};

static bool among(uint32_t c, const struct span *spans, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (c >= spans[i].low && c <= spans[i].high)
            return true;
    return false;
}

static int columns_of(uint32_t c)
{
    static const struct span none[] = {{0x300, 0x36f}, {0x483, 0x489}, {0x591, 0x5bd}, {0x610, 0x61a}, {0x64b, 0x65f},
                                       {0x93c, 0x93c}, {0x941, 0x948}, {0x94d, 0x94d}, {0xe31, 0xe31}, {0xe34, 0xe3a},
                                       {0xe47, 0xe4e}, {0x1ab0, 0x1aff}, {0x200b, 0x200f}, {0x2060, 0x2064},
                                       {0x20d0, 0x20f0}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}, {0xfeff, 0xfeff},
                                       {0xe0100, 0xe01ef}};
    static const struct span two[] = {{0x1100, 0x115f}, {0x2e80, 0x303e}, {0x3041, 0x33ff}, {0x3400, 0x4dbf},
                                      {0x4e00, 0x9fff}, {0xa000, 0xa4cf}, {0xa960, 0xa97f}, {0xac00, 0xd7a3},
                                      {0xf900, 0xfaff}, {0xfe30, 0xfe6f}, {0xff00, 0xff60}, {0xffe0, 0xffe6},
                                      {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};

    if (c < 0x300)
        return 1;
    if (among(c, none, sizeof none / sizeof none[0]))
        return 0;
    return among(c, two, sizeof two / sizeof two[0]) ? 2 : 1;
}

size_t chat_edit_next(const struct chat_edit *e, size_t at)
{
    return at < e->n ? at + char_bytes(e, at) : e->n;
}

size_t chat_edit_previous(const struct chat_edit *e, size_t at)
{
    /* The longest character that ends here. */
    for (size_t n = at < 4 ? at : 4; n > 1; n--)
        if (char_bytes(e, at - n) == n)
            return at - n;
    return at > 0 ? at - 1 : 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t';
}

size_t chat_edit_next_word(const struct chat_edit *e, size_t at)
{
    while (at < e->n && is_blank(e->text[at]))
        at++;
    while (at < e->n && !is_blank(e->text[at]))
        at++;
    return at;
}

size_t chat_edit_previous_word(const struct chat_edit *e, size_t at)
{
    while (at > 0 && is_blank(e->text[at - 1]))
        at--;
    while (at > 0 && !is_blank(e->text[at - 1]))
        at--;
    return at;
}

/* ---- Changes ---- */

void chat_edit_insert(struct chat_edit *e, const char *bytes, size_t n)
{
    if (n == 0)
        return;
    if (n > CHAT_EDIT_BYTES_MAX - e->n) {
        e->failed = true;
        return;
    }
    if (e->n + n > e->room) {
        const size_t room = 2 * (e->n + n) + 64;
        char        *larger = realloc(e->text, room);
        if (!larger) {
            e->failed = true;
            return;
        }
        e->text = larger;
        e->room = room;
    }
    memmove(e->text + e->cursor + n, e->text + e->cursor, e->n - e->cursor);
    memcpy(e->text + e->cursor, bytes, n);
    e->n += n;
    e->cursor += n;
}

void chat_edit_erase(struct chat_edit *e, size_t from, size_t to)
{
    e->cursor = from;
    if (to <= from)
        return;
    memmove(e->text + from, e->text + to, e->n - to);
    e->n -= to - from;
}

void chat_edit_set(struct chat_edit *e, const char *bytes, size_t n)
{
    e->n = 0;
    e->cursor = 0;
    e->first = 0;
    chat_edit_insert(e, bytes, n);
}

void chat_edit_free(struct chat_edit *e)
{
    free(e->text);
    *e = (struct chat_edit){0};
}

size_t chat_edit_clean(char *bytes, size_t n)
{
    size_t kept = 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c == '\r' && i + 1 < n && bytes[i + 1] == '\n')
            continue;
        if (c == '\r')
            bytes[kept++] = '\n';
        else if ((c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t')
            bytes[kept++] = bytes[i];
    }
    return kept;
}

/* ---- Drawing ---- */

/* What stands for the character on the screen, and its columns. */
static int glyph(const struct chat_edit *e, size_t at, size_t n_bytes, const char **shown, size_t *n_shown)
{
    const uint32_t c = code_point(e, at, n_bytes);

    *shown = e->text + at;
    *n_shown = n_bytes;
    if (c == '\n') {
        *shown = "\xe2\x86\xb5"; /* a bent arrow */
        *n_shown = 3;
    } else if (c == '\t') {
        *shown = " ";
        *n_shown = 1;
    } else if (c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xfffd) {
        *shown = "\xef\xbf\xbd";
        *n_shown = 3;
        return 1;
    } else {
        return columns_of(c);
    }
    return 1;
}

static int columns_between(const struct chat_edit *e, size_t from, size_t to)
{
    const char *shown;
    size_t      n_shown;
    int         columns = 0;

    for (size_t next; from < to; from = next) {
        next = chat_edit_next(e, from);
        columns += glyph(e, from, next - from, &shown, &n_shown);
    }
    return columns;
}

/* Begin the window as far back from the cursor as `room` columns go. */
static void move_window(struct chat_edit *e, int room)
{
    const char *shown;
    size_t      n_shown, at = e->cursor;

    while (at > 0) {
        const size_t before = chat_edit_previous(e, at);
        room -= glyph(e, before, at - before, &shown, &n_shown);
        if (room < 0)
            break;
        at = before;
    }
    e->first = at;
}

void chat_edit_draw(struct chat_edit *e, const char *prompt, int n_columns)
{
    /* The last column stays free: a character there would make some terminals go on to the next row. */
    int         room = n_columns - 1 - (int)strlen(prompt);
    const char *shown;
    size_t      n_shown;

    if (room < 4) { /* too narrow for a prompt as well */
        prompt = "";
        room = n_columns - 1;
    }
    if (e->first > e->cursor)
        e->first = e->cursor;
    /* Each character takes at most four bytes and most a column: far behind, counting columns is not needed. */
    if (e->cursor - e->first > (size_t)room * 8 || columns_between(e, e->first, e->cursor) > room)
        move_window(e, room);

    (void)printf("\r%s", prompt);
    int used = 0;
    for (size_t at = e->first, next; at < e->n; at = next) {
        next = chat_edit_next(e, at);
        const int columns = glyph(e, at, next - at, &shown, &n_shown);
        if (used + columns > room)
            break;
        used += columns;
        (void)fwrite(shown, 1, n_shown, stdout);
    }
    (void)fputs("\033[K\r", stdout);
    const int column = (int)strlen(prompt) + columns_between(e, e->first, e->cursor);
    if (column > 0)
        (void)printf("\033[%dC", column);
    (void)fflush(stdout);
}

void chat_edit_draw_whole(const struct chat_edit *e, const char *prompt)
{
    enum { SHOWN_BYTES_MAX = 4096 };
    const char *shown;
    size_t      n_shown, at = 0;

    (void)printf("\r%s", prompt);
    for (size_t next; at < e->n && at < SHOWN_BYTES_MAX; at = next) {
        next = chat_edit_next(e, at);
        (void)glyph(e, at, next - at, &shown, &n_shown);
        if (e->text[at] == '\n')
            (void)fputs("\033[K\n", stdout);
        else
            (void)fwrite(shown, 1, n_shown, stdout);
    }
    if (at < e->n)
        (void)printf(" ... (%zu bytes)", e->n);
    (void)fputs("\033[K\n", stdout);
    (void)fflush(stdout);
}
