/* Splitting with PCRE2, just-in-time compiled where the platform can.
 *
 * PCRE2 in UTF mode needs valid UTF-8. Text with other bytes is cut through a shadow in which each such byte is
 * replaced by U+10FFFF, which no Unicode version will ever give a class; piece ends are carried back to the text. */
#include "text/pretokenize.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/text_buf.h"
#include "text/utf8.h"

static const char   STAND_IN[] = "\xF4\x8F\xBF\xBF"; /* U+10FFFF */
static const size_t STAND_IN_BYTES = sizeof STAND_IN - 1;

/* A whitespace run of n characters can cost a few n of backtracking in one match, so the limit grows with the piece. */
enum { MATCH_LIMIT_BASE = 1000000, MATCH_LIMIT_PER_BYTE = 8, HEAP_LIMIT_KIB = 64 * 1024 };

struct nib_pretokenizer {
    size_t      n;
    pcre2_code *code[NIB_SPLITTERS_MAX];
};

/* Escapes that mean the same in Oniguruma, for which tokenizer files are written, and in PCRE2 with UTF and UCP. */
static bool escape_is_common(const char *escape)
{
    if (strchr("rntfdDsS", escape[0]))
        return true;
    /* A code point. \xE4 would be a byte there and U+00E4 here. */
    if (escape[0] == 'x')
        return escape[1] == '{' || (escape[1] >= '0' && escape[1] <= '7');
    /* \p{L}, \P{Lu}, \p{^L}: general categories only. PCRE2 reads script names as script extensions. */
    if (escape[0] != 'p' && escape[0] != 'P')
        return false;
    if (escape[1] != '{')
        return false;
    const char *name = escape + 2 + (escape[2] == '^');
    if (!strchr("CLMNPSZ", name[0]) || name[0] == '\0')
        return false;
    return name[1] == '}' || (name[1] >= 'a' && name[1] <= 'z' && name[2] == '}');
}

/* The pattern as PCRE2 has to see it: its \s would match U+180E besides the White_Space property. */
static enum nib_status pattern_rewrite(const char *pattern, size_t index, struct nib_text *out, struct nib_error *err)
{
    for (const char *c = pattern; *c; c++) {
        if (*c != '\\' || c[1] == '\0') {
            NIB_TRY(nib_text_append(out, c, 1));
            continue;
        }
        c++;
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (letter && !escape_is_common(c))
            return nib_error_set(err, NIB_E_UNSUPPORTED,
                                 "splitter %zu: escape '\\%.12s' is found, wanted one of \\r \\n \\t \\f \\d \\s "
                                 "\\x{} and \\p{} with a general category", index, c);
        if (*c == 's' || *c == 'S') {
            NIB_TRY(nib_text_append_string(out, *c == 's' ? "\\p{White_Space}" : "\\P{White_Space}"));
        } else {
            const char escaped[2] = {'\\', *c};
            NIB_TRY(nib_text_append(out, escaped, 2));
        }
    }
    return NIB_OK;
}

static enum nib_status pattern_compile(const char *pattern, size_t index, pcre2_compile_context *context,
                                       pcre2_code **out, struct nib_error *err)
{
    struct nib_text text = {NULL, 0};
    enum nib_status status = pattern_rewrite(pattern, index, &text, err);
    if (status != NIB_OK) {
        nib_text_free(&text);
        return status == NIB_E_MEMORY ? nib_error_set(err, status, "no memory left to compile the splitters") : status;
    }
    int number;
    PCRE2_SIZE at;
    /* Oniguruma's ^ and $ are of lines. */
    const uint32_t flags = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    *out = pcre2_compile((PCRE2_SPTR)(text.data ? text.data : ""), text.n, flags, &number, &at, context);
    if (!*out) {
        PCRE2_UCHAR message[200];
        if (pcre2_get_error_message(number, message, sizeof message) < 0)
            message[0] = '\0';
        status = number == PCRE2_ERROR_HEAP_FAILED ? NIB_E_MEMORY : NIB_E_FORMAT;
        (void)nib_error_set(err, status, "splitter %zu: %s, at '%.40s'", index, (const char *)message,
                            text.data && at < text.n ? text.data + at : "its end");
    } else {
        (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* without it the same code is interpreted */
    }
    nib_text_free(&text);
    return status;
}

enum nib_status nib_pretokenizer_open(const char *const *pattern, size_t n, struct nib_pretokenizer **out,
                                      struct nib_error *err)
{
    *out = NULL;
    if (n > NIB_SPLITTERS_MAX)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "%zu splitters are found, wanted at most %d", n,
                             NIB_SPLITTERS_MAX);
    struct nib_pretokenizer *p = calloc(1, sizeof *p);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    enum nib_status status = NIB_OK;
    if (!p || !context || pcre2_set_newline(context, PCRE2_NEWLINE_LF) != 0)
        status = nib_error_set(err, NIB_E_MEMORY, "no memory left to compile the splitters");
    for (size_t i = 0; i < n && status == NIB_OK; i++) {
        status = pattern_compile(pattern[i], i, context, &p->code[i], err);
        if (status == NIB_OK)
            p->n = i + 1;
    }
    pcre2_compile_context_free(context);
    if (status != NIB_OK) {
        nib_pretokenizer_close(p);
        return status;
    }
    *out = p;
    return NIB_OK;
}

void nib_pretokenizer_close(struct nib_pretokenizer *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++)
        pcre2_code_free(p->code[i]);
    free(p);
}

/* One call of split. What is cut is the text or, if it has bytes outside characters, its shadow. */
struct work {
    const struct nib_pretokenizer *p;
    pcre2_match_data              *match;
    pcre2_match_context           *context;
    const char                    *text;   /* the next piece begins here */
    size_t                         n_text; /* from there to the end */
    bool                           is_shadow;
    enum nib_status (*on_piece)(void *user, const char *bytes, size_t n);
    void             *user;
    struct nib_error *err;
};

/* Bytes of the text for the next n bytes of what is cut. */
static size_t text_bytes(const struct work *w, size_t n)
{
    if (!w->is_shadow)
        return n;
    size_t real = 0;
    while (n > 0) {
        size_t length = nib_utf8_decode(w->text + real, w->n_text - real, NULL);
        real += length > 0 ? length : 1;
        n -= length > 0 ? length : STAND_IN_BYTES;
    }
    return real;
}

static enum nib_status emit(struct work *w, size_t n)
{
    size_t real = text_bytes(w, n);
    const char *piece = w->text;
    w->text += real;
    w->n_text -= real;
    return w->on_piece(w->user, piece, real);
}

static enum nib_status match_error(const struct work *w, size_t level, int rc)
{
    if (rc == PCRE2_ERROR_NOMEMORY)
        return nib_error_set(w->err, NIB_E_MEMORY, "no memory left to cut the text");
    PCRE2_UCHAR message[200];
    if (pcre2_get_error_message(rc, message, sizeof message) < 0)
        message[0] = '\0';
    return nib_error_set(w->err, NIB_E_LIMIT, "splitter %zu cannot cut this text: %s", level, (const char *)message);
}

/* The next match in piece[at..n): NIB_OK with *start == n + 1 if there is none. */
static enum nib_status next_match(struct work *w, size_t level, const char *piece, size_t n, size_t at, size_t *start,
                                  size_t *end)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)piece;
    int rc = pcre2_match(w->p->code[level], subject, n, at, PCRE2_NO_UTF_CHECK, w->match, w->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(w->p->code[level], subject, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->match, w->context);
    if (rc == PCRE2_ERROR_NOMATCH) {
        *start = *end = n + 1;
        return NIB_OK;
    }
    if (rc < 0)
        return match_error(w, level, rc);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(w->match);
    assert(span[0] >= at && span[1] >= span[0]); /* \K, which could break this, is refused */
    *start = span[0];
    *end = span[1];
    return NIB_OK;
}

static enum nib_status split_level(struct work *w, size_t level, const char *piece, size_t n)
{
    if (n == 0)
        return NIB_OK;
    if (level == w->p->n)
        return emit(w, n);
    size_t cut = 0, at = 0, last_end = n + 1;
    while (at <= n) {
        size_t start = 0, end = 0;
        NIB_TRY(next_match(w, level, piece, n, at, &start, &end));
        if (start > n)
            break;
        if (start == end && end == last_end) { /* an empty match counts, but not right behind a match */
            if (at == n)
                break;
            at += nib_utf8_decode(piece + at, n - at, NULL);
            continue;
        }
        NIB_TRY(split_level(w, level + 1, piece + cut, start - cut));
        NIB_TRY(split_level(w, level + 1, piece + start, end - start));
        cut = at = last_end = end;
    }
    return split_level(w, level + 1, piece + cut, n - cut);
}

/* The shadow of text[0..n), which has n_invalid bytes outside characters. */
static char *shadow_make(const char *text, size_t n, size_t n_invalid, size_t *n_shadow)
{
    if (n_invalid > (SIZE_MAX - n) / STAND_IN_BYTES)
        return NULL;
    char *shadow = malloc(n + n_invalid * (STAND_IN_BYTES - 1));
    if (!shadow)
        return NULL;
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        size_t length = nib_utf8_decode(text + i, n - i, NULL);
        memcpy(shadow + used, length > 0 ? text + i : STAND_IN, length > 0 ? length : STAND_IN_BYTES);
        used += length > 0 ? length : STAND_IN_BYTES;
        i += length > 0 ? length : 1;
    }
    *n_shadow = used;
    return shadow;
}

static size_t count_invalid(const char *text, size_t n)
{
    size_t n_invalid = 0;
    for (size_t i = 0; i < n;) {
        size_t length = (unsigned char)text[i] < 0x80 ? 1 : nib_utf8_decode(text + i, n - i, NULL);
        n_invalid += length == 0;
        i += length > 0 ? length : 1;
    }
    return n_invalid;
}

enum nib_status nib_pretokenizer_split(const struct nib_pretokenizer *p, const char *text, size_t n,
                                       enum nib_status (*on_piece)(void *user, const char *bytes, size_t n_bytes),
                                       void *user, struct nib_error *err)
{
    if (n == 0)
        return NIB_OK;
    size_t n_invalid = count_invalid(text, n), n_subject = n;
    char *shadow = n_invalid > 0 ? shadow_make(text, n, n_invalid, &n_subject) : NULL;
    struct work w = {.p = p, .text = text, .n_text = n, .is_shadow = n_invalid > 0,
                     .on_piece = on_piece, .user = user, .err = err};
    w.match = pcre2_match_data_create(1, NULL);
    w.context = pcre2_match_context_create(NULL);
    enum nib_status status;
    if (!w.match || !w.context || (w.is_shadow && !shadow)) {
        status = nib_error_set(err, NIB_E_MEMORY, "no memory left to cut the text");
    } else {
        uint64_t limit = MATCH_LIMIT_BASE + (uint64_t)MATCH_LIMIT_PER_BYTE * n_subject;
        (void)pcre2_set_match_limit(w.context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
        (void)pcre2_set_heap_limit(w.context, HEAP_LIMIT_KIB);
        status = split_level(&w, 0, w.is_shadow ? shadow : text, n_subject);
    }
    free(shadow);
    pcre2_match_context_free(w.context);
    pcre2_match_data_free(w.match);
    return status;
}
