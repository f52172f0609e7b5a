/* The parser's state and its parts: words (ptx_words.c), names, operands and instructions (ptx_instructions.c), declarations and bodies
 * (ptx_parse.c). Internal to ptxsim. */
#ifndef PTX_PARSER_H
#define PTX_PARSER_H

#include <setjmp.h>

#include "ptxsim/ptx_module.h"

struct token {
    const char *s;
    size_t      n;
    uint32_t    line;
    char        kind; /* 'w' word, '0' number, '"' string, 0 end, else the character */
};

enum symbol_kind { SYM_REGISTERS, SYM_SHARED, SYM_DYNAMIC, SYM_LOCAL, SYM_FRAME, SYM_PARAM, SYM_MEMORY, SYM_LABEL, SYM_TABLE };

struct symbol {
    const char      *s;
    size_t           n;
    enum symbol_kind kind;
    uint32_t         count; /* %r<count>; 0: the name itself */
    uint32_t         slot, stride, width;
    uint64_t         value; /* offset, address, instruction */
    uint32_t         depth;
};

struct fixup { uint32_t instruction, table, depth; const char *s; size_t n; };

struct parser {
    struct px_module   *m;
    struct px_function *f; /* being parsed */
    const char         *at, *end;
    uint32_t            line;
    struct token        t; /* next */
    struct symbol      *symbol;
    uint32_t            n_symbols, max_symbols, depth;
    struct fixup       *fixup;
    uint32_t            n_fixups, max_fixups;
    uint32_t            module_shared, module_shared_align;
    uint32_t           *seen; /* hash of constants of this function: index + 1 */
    char               *error;
    size_t              error_bytes;
    jmp_buf             out;
};

enum { SEEN = 1 << 14 };

/* ---- Words ---- */

__attribute__((format(printf, 2, 3), noreturn)) void px_fail(struct parser *p, const char *fmt, ...);
void *px_grow(struct parser *p, void *array, uint32_t n, uint32_t *max, size_t element);
void px_next(struct parser *p);
bool px_is(const struct parser *p, const char *text);
bool px_accept(struct parser *p, const char *text);
void px_expect(struct parser *p, const char *text);
struct token px_word(struct parser *p);
void px_skip_line(struct parser *p);
uint64_t px_number(struct parser *p, bool f32);

/* ---- Names, slots, instructions ---- */

struct symbol *px_declare(struct parser *p, struct token name, enum symbol_kind kind);
struct symbol *px_find(struct parser *p, const char *s, size_t n, uint32_t *index);
struct px_function *px_function_of(struct parser *p, const char *s, size_t n);
uint32_t px_new_slot(struct parser *p, uint32_t width);
void px_parse_instruction(struct parser *p);
uint32_t px_emit(struct parser *p, const struct px_instruction *i);
void px_add_fixup(struct parser *p, uint32_t instruction, uint32_t table, struct token t);

#endif
