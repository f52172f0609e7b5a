/* PTX text cut into words, and the way out at the first fault. */
#include "ptxsim/ptx_parser.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 2, 3), noreturn)) void px_fail(struct parser *p, const char *fmt, ...)
{
    char    what[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    (void)snprintf(p->error, p->error_bytes, "line %" PRIu32 ": %s", p->t.line, what);
    longjmp(p->out, 1);
}

/* Room for one more element of an array that doubles. */
void *px_grow(struct parser *p, void *array, uint32_t n, uint32_t *max, size_t element)
{
    if (n < *max)
        return array;
    uint32_t bigger = *max ? *max * 2 : 64;
    void    *a = realloc(array, bigger * element);
    if (!a)
        px_fail(p, "no memory");
    memset((char *)a + *max * element, 0, (bigger - *max) * element);
    *max = bigger;
    return a;
}

/* ---- Words ---- */

static bool word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' || c == '%' || c == '.';
}

static void skip_space(struct parser *p)
{
    while (p->at < p->end) {
        if (*p->at == '\n') {
            p->line++;
            p->at++;
        } else if (*p->at == ' ' || *p->at == '\t' || *p->at == '\r') {
            p->at++;
        } else if (p->at + 1 < p->end && p->at[0] == '/' && p->at[1] == '/') {
            while (p->at < p->end && *p->at != '\n')
                p->at++;
        } else if (p->at + 1 < p->end && p->at[0] == '/' && p->at[1] == '*') {
            for (p->at += 2; p->at + 1 < p->end && !(p->at[0] == '*' && p->at[1] == '/'); p->at++)
                p->line += *p->at == '\n';
            p->at = p->at + 2 < p->end ? p->at + 2 : p->end;
        } else {
            break;
        }
    }
}

void px_next(struct parser *p)
{
    skip_space(p);
    p->t = (struct token){p->at, 0, p->line, 0};
    if (p->at >= p->end)
        return;
    char c = *p->at;
    if (c == '"') {
        const char *q = p->at + 1;
        while (q < p->end && *q != '"' && *q != '\n')
            q++;
        p->t.kind = '"';
        p->at = q < p->end ? q + 1 : q;
    } else if (c >= '0' && c <= '9') {
        p->t.kind = '0';
        while (p->at < p->end && word_char(*p->at))
            p->at++;
    } else if (word_char(c)) {
        p->t.kind = 'w';
        while (p->at < p->end) {
            if (word_char(*p->at))
                p->at++;
            else if (p->at + 2 < p->end && p->at[0] == ':' && p->at[1] == ':' && word_char(p->at[2]))
                p->at += 2;
            else
                break;
        }
    } else {
        p->t.kind = c;
        p->at++;
    }
    p->t.n = (size_t)(p->at - p->t.s);
}

bool px_is(const struct parser *p, const char *text)
{
    return p->t.n == strlen(text) && memcmp(p->t.s, text, p->t.n) == 0;
}

bool px_accept(struct parser *p, const char *text)
{
    if (!px_is(p, text))
        return false;
    px_next(p);
    return true;
}

void px_expect(struct parser *p, const char *text)
{
    if (!px_accept(p, text))
        px_fail(p, "'%.*s' found, '%s' wanted", (int)(p->t.n < 60 ? p->t.n : 60), p->t.s, text);
}

struct token px_word(struct parser *p)
{
    struct token t = p->t;
    if (t.kind != 'w')
        px_fail(p, "'%.*s' found, a name wanted", (int)(t.n < 60 ? t.n : 60), t.s);
    px_next(p);
    return t;
}

void px_skip_line(struct parser *p)
{
    uint32_t line = p->t.line;
    while (p->t.kind && p->t.line == line)
        px_next(p);
}

/* A number as bits of a value of `width` bytes. Floats without a prefix are taken as the type says. */
uint64_t px_number(struct parser *p, bool f32)
{
    char   text[80];
    bool   negative = px_accept(p, "-");
    size_t n = p->t.n < sizeof text - 1 ? p->t.n : sizeof text - 1;
    if (p->t.kind != '0')
        px_fail(p, "'%.*s' found, a number wanted", (int)n, p->t.s);
    memcpy(text, p->t.s, n);
    text[n] = 0;
    px_next(p);
    uint64_t v;
    char    *end;
    if (text[0] == '0' && (text[1] == 'f' || text[1] == 'F')) {
        v = strtoull(text + 2, &end, 16);
        return negative ? v ^ 0x80000000u : v;
    }
    if (text[0] == '0' && (text[1] == 'd' || text[1] == 'D')) {
        v = strtoull(text + 2, &end, 16);
        return negative ? v ^ 1ull << 63 : v;
    }
    if (strchr(text, '.') && !(text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))) {
        double d = strtod(text, &end);
        d = negative ? -d : d;
        float    f = (float)d;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        memcpy(&v, &d, 8);
        return f32 ? bits : v;
    }
    v = text[0] == '0' && (text[1] == 'b' || text[1] == 'B') ? strtoull(text + 2, &end, 2) : strtoull(text, &end, 0);
    if (*end == 'U' || *end == 'u')
        end++;
    if (*end)
        px_fail(p, "'%s' is no number", text);
    return negative ? 0 - v : v;
}
