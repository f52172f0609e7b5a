/* From PTX text to a module: words, scopes with their names, variables, functions, instructions. One pass; labels and
 * callees are put in place at the end of their scope and of the module. The first fault ends parsing with its line. */
#include "ptxsim/ptx_module.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- State ---- */

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

__attribute__((format(printf, 2, 3), noreturn)) static void fail(struct parser *p, const char *fmt, ...)
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
static void *grow(struct parser *p, void *array, uint32_t n, uint32_t *max, size_t element)
{
    if (n < *max)
        return array;
    uint32_t bigger = *max ? *max * 2 : 64;
    void    *a = realloc(array, bigger * element);
    if (!a)
        fail(p, "no memory");
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

static void next(struct parser *p)
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

static bool is(const struct parser *p, const char *text)
{
    return p->t.n == strlen(text) && memcmp(p->t.s, text, p->t.n) == 0;
}

static bool accept(struct parser *p, const char *text)
{
    if (!is(p, text))
        return false;
    next(p);
    return true;
}

static void expect(struct parser *p, const char *text)
{
    if (!accept(p, text))
        fail(p, "'%.*s' found, '%s' wanted", (int)(p->t.n < 60 ? p->t.n : 60), p->t.s, text);
}

static struct token word(struct parser *p)
{
    struct token t = p->t;
    if (t.kind != 'w')
        fail(p, "'%.*s' found, a name wanted", (int)(t.n < 60 ? t.n : 60), t.s);
    next(p);
    return t;
}

static void skip_line(struct parser *p)
{
    uint32_t line = p->t.line;
    while (p->t.kind && p->t.line == line)
        next(p);
}

/* A number as bits of a value of `width` bytes. Floats without a prefix are taken as the type says. */
static uint64_t number(struct parser *p, bool f32)
{
    char   text[80];
    bool   negative = accept(p, "-");
    size_t n = p->t.n < sizeof text - 1 ? p->t.n : sizeof text - 1;
    if (p->t.kind != '0')
        fail(p, "'%.*s' found, a number wanted", (int)n, p->t.s);
    memcpy(text, p->t.s, n);
    text[n] = 0;
    next(p);
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
        fail(p, "'%s' is no number", text);
    return negative ? 0 - v : v;
}

/* ---- Names ---- */

static struct symbol *declare(struct parser *p, struct token name, enum symbol_kind kind)
{
    p->symbol = grow(p, p->symbol, p->n_symbols, &p->max_symbols, sizeof *p->symbol);
    struct symbol *s = &p->symbol[p->n_symbols++];
    *s = (struct symbol){.s = name.s, .n = name.n, .kind = kind, .depth = p->depth};
    return s;
}

/* The innermost symbol of this name; index: the number behind a counted name. */
static struct symbol *find(struct parser *p, const char *s, size_t n, uint32_t *index)
{
    size_t digits = 0;
    while (digits < n && s[n - 1 - digits] >= '0' && s[n - 1 - digits] <= '9')
        digits++;
    uint32_t number_behind = 0;
    for (size_t i = n - digits; i < n; i++)
        number_behind = number_behind * 10 + (uint32_t)(s[i] - '0');
    for (uint32_t i = p->n_symbols; i-- > 0;) {
        struct symbol *y = &p->symbol[i];
        if (y->count == 0 && y->n == n && memcmp(y->s, s, n) == 0) {
            *index = 0;
            return y;
        }
        if (y->count > 0 && digits > 0 && y->n == n - digits && memcmp(y->s, s, y->n) == 0 && number_behind < y->count) {
            *index = number_behind;
            return y;
        }
    }
    return NULL;
}

static struct px_function *function_of(struct parser *p, const char *s, size_t n)
{
    struct px_module *m = p->m;
    for (uint32_t i = 0; i < m->n_functions; i++) {
        if (strlen(m->function[i].name) == n && memcmp(m->function[i].name, s, n) == 0)
            return &m->function[i];
    }
    m->function = grow(p, m->function, m->n_functions, &m->max_functions, sizeof *m->function);
    struct px_function *f = &m->function[m->n_functions++];
    f->name = malloc(n + 1);
    if (!f->name)
        fail(p, "no memory");
    memcpy(f->name, s, n);
    f->name[n] = 0;
    return f;
}

/* ---- Slots ---- */

static uint32_t new_slot(struct parser *p, uint32_t width)
{
    uint32_t words = width == 0 ? 2 : width <= 4 ? 32 : width == 8 ? 64 : 128, slot = p->f->n_words;
    p->f->n_words += words;
    return slot;
}

/* The slot of a constant; the same for equal ones. */
static uint32_t constant(struct parser *p, uint32_t width, enum px_fill fill, uint64_t value)
{
    struct px_function *f = p->f;
    if (width <= 4 && fill == PX_FILL_VALUE)
        value &= 0xffffffffu;
    uint64_t h = (value ^ value >> 29) * 0x9e3779b97f4a7c15ull + width * 7919 + (uint64_t)fill * 104729;
    for (uint32_t at = (uint32_t)(h >> 40) % SEEN;; at = (at + 1) % SEEN) {
        if (p->seen[at] == 0) {
            if (f->n_constants >= SEEN / 2)
                fail(p, "more than %d constants in one function", SEEN / 2);
            f->constant = grow(p, f->constant, f->n_constants, &f->max_constants, sizeof *f->constant);
            f->constant[f->n_constants] = (struct px_constant){new_slot(p, width), (uint8_t)width, (uint8_t)fill, value};
            p->seen[at] = ++f->n_constants;
            return f->constant[f->n_constants - 1].slot;
        }
        const struct px_constant *c = &f->constant[p->seen[at] - 1];
        if (c->width == width && c->fill == fill && c->value == value)
            return c->slot;
    }
}

static const struct { const char *name; enum px_special special; uint8_t width, of3; } specials[] = {
    {"%tid", PX_TID, 4, 1}, {"%ntid", PX_NTID, 4, 1}, {"%ctaid", PX_CTAID, 4, 1}, {"%nctaid", PX_NCTAID, 4, 1},
    {"%clusterid", PX_CLUSTERID, 4, 1}, {"%nclusterid", PX_NCLUSTERID, 4, 1}, {"%cluster_ctaid", PX_CLUSTER_CTAID, 4, 1},
    {"%cluster_nctaid", PX_CLUSTER_NCTAID, 4, 1}, {"%cluster_ctarank", PX_CLUSTER_CTARANK, 4, 0},
    {"%cluster_nctarank", PX_CLUSTER_NCTARANK, 4, 0}, {"%laneid", PX_LANEID, 4, 0}, {"%warpid", PX_WARPID, 4, 0},
    {"%nwarpid", PX_NWARPID, 4, 0}, {"%smid", PX_SMID, 4, 0}, {"%nsmid", PX_NSMID, 4, 0}, {"%gridid", PX_GRIDID, 8, 0},
    {"%lanemask_eq", PX_LANEMASK_EQ, 4, 0}, {"%lanemask_lt", PX_LANEMASK_LT, 4, 0}, {"%lanemask_le", PX_LANEMASK_LE, 4, 0},
    {"%lanemask_gt", PX_LANEMASK_GT, 4, 0}, {"%lanemask_ge", PX_LANEMASK_GE, 4, 0},
    {"%dynamic_smem_size", PX_DYNAMIC_SMEM, 4, 0}, {"%total_smem_size", PX_TOTAL_SMEM, 4, 0}, {"%clock", PX_CLOCK, 4, 0},
    {"%clock64", PX_CLOCK, 8, 0}, {"%globaltimer", PX_CLOCK, 8, 0}, {"%globaltimer_lo", PX_CLOCK, 4, 0},
};

static bool special(struct token t, uint32_t *width, uint64_t *value)
{
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
        size_t n = strlen(specials[i].name);
        bool   exact = t.n == n, part = specials[i].of3 && t.n == n + 2 && t.s[n] == '.' && t.s[n + 1] >= 'x' && t.s[n + 1] <= 'z';
        if (memcmp(t.s, specials[i].name, t.n < n ? t.n : n) != 0 || !(specials[i].of3 ? part : exact))
            continue;
        *width = specials[i].width;
        *value = specials[i].special + (part ? (uint64_t)(t.s[n + 1] - 'x') : 0);
        return true;
    }
    return false;
}

/* ---- Operands ---- */

/* Bytes of an immediate that is the next written operand of this instruction. */
static uint32_t immediate_width(const struct px_instruction *i)
{
    enum px_type t = (enum px_type)i->type[i->op == PX_CVT || i->op == PX_SET ? 1 : i->op == PX_SLCT && i->n_groups == 3 ? 1 : 0];
    switch (i->op) {
    case PX_SHFL: case PX_VOTE: case PX_REDUX: case PX_MBAR_INIT: case PX_MBAR_ARRIVE: case PX_MBAR_DROP: case PX_MBAR_EXPECT:
    case PX_MBAR_COMPLETE: case PX_MBAR_TEST: case PX_MBAR_TRY: case PX_PRMT: return 4;
    case PX_MATCH: if (i->n_groups == 2) return 4; break;
    case PX_SHL: case PX_SHR: case PX_BFE: if (i->n_groups >= 2) return 4; break;
    case PX_BFI: if (i->n_groups >= 3) return 4; break;
    case PX_MAD: if (px_has(i, PX_M_WIDE) && i->n_groups == 3) return 8; break;
    default: break;
    }
    return px_type_bytes(t) == 8 ? 8 : px_type_bytes(t) == 16 ? 16 : 4;
}

static struct px_operand name_operand(struct parser *p, const struct px_instruction *i, bool address)
{
    struct px_operand o = {.kind = PX_REG};
    struct token      t = word(p);
    uint32_t          index, width;
    uint64_t          value;
    if (t.n == 1 && t.s[0] == '_')
        return (struct px_operand){.kind = PX_SINK, .width = 4};
    if (special(t, &width, &value)) {
        o.slot = constant(p, width, PX_FILL_SPECIAL, value);
        o.width = (uint8_t)width;
        return o;
    }
    struct symbol *y = find(p, t.s, t.n, &index);
    if (!y)
        fail(p, "unknown name '%.*s'", (int)t.n, t.s);
    width = address || px_type_bytes((enum px_type)i->type[0]) != 8 ? 4 : 8;
    o.width = 8;
    switch (y->kind) {
    case SYM_REGISTERS:
        o.slot = y->slot + index * y->stride;
        o.width = (uint8_t)y->width;
        return o;
    case SYM_SHARED:
        o.slot = constant(p, width, PX_FILL_SHARED, y->value);
        o.width = (uint8_t)width;
        return o;
    case SYM_DYNAMIC:
        o.slot = constant(p, width, PX_FILL_DYNAMIC, y->value);
        o.width = (uint8_t)width;
        return o;
    case SYM_PARAM: o.slot = constant(p, 8, PX_FILL_PARAM, y->value); return o;
    case SYM_MEMORY: o.slot = constant(p, 8, PX_FILL_VALUE, y->value); return o;
    case SYM_LOCAL:
        o.slot = constant(p, width, PX_FILL_LOCAL, y->value);
        o.width = (uint8_t)width;
        return o;
    case SYM_FRAME:
        o.kind = PX_FRAME_ADDRESS;
        o.offset = (int32_t)y->value;
        return o;
    case SYM_LABEL: case SYM_TABLE: break;
    }
    fail(p, "'%.*s' is a label", (int)t.n, t.s);
}

static struct px_operand plain_operand(struct parser *p, const struct px_instruction *i, bool address)
{
    struct px_operand o = {.kind = PX_REG};
    if (accept(p, "!")) {
        o = name_operand(p, i, address);
        o.negated = true;
        return o;
    }
    const char *at = p->t.s;
    if (*at == '-' || p->t.kind == '0') {
        uint32_t width = address ? 8 : immediate_width(i);
        o.value = number(p, i->type[0] == PX_F32);
        o.width = (uint8_t)width;
        o.constant = true;
        if (i->type[0] == PX_PRED && i->op != PX_BAR_RED && i->op != PX_BAR_RED_CTA && i->op != PX_VOTE) {
            /* mov.pred p, 0 and the like: all lanes equal. */
            o.width = 0;
            o.value = o.value ? 0xffffffffu : 0;
            o.slot = constant(p, 0, PX_FILL_VALUE, o.value);
            return o;
        }
        o.slot = constant(p, width, PX_FILL_VALUE, o.value);
        return o;
    }
    return name_operand(p, i, address);
}

static struct px_operand *push(struct parser *p, struct px_instruction *i, struct px_operand o)
{
    struct px_module *m = p->m;
    m->operand = grow(p, m->operand, m->n_operands, &m->max_operands, sizeof *m->operand);
    m->operand[m->n_operands++] = o;
    i->n_operands++;
    return &m->operand[m->n_operands - 1];
}

static void close_group(struct parser *p, struct px_instruction *i, uint32_t n)
{
    if (i->n_groups >= sizeof i->group || n > 255)
        fail(p, "too many operands of '%s'", px_op_name((enum px_op)i->op));
    i->group[i->n_groups++] = (uint8_t)n;
}

static uint32_t vector_operand(struct parser *p, struct px_instruction *i)
{
    uint32_t n = 0;
    expect(p, "{");
    do {
        (void)push(p, i, plain_operand(p, i, false));
        n++;
    } while (accept(p, ","));
    expect(p, "}");
    return n;
}

static void address_operand(struct parser *p, struct px_instruction *i)
{
    expect(p, "[");
    struct px_operand o = plain_operand(p, i, true);
    if (o.kind == PX_REG)
        o.kind = PX_ADDRESS;
    if (accept(p, "+"))
        o.offset += (int32_t)number(p, false);
    (void)push(p, i, o);
    close_group(p, i, 1);
    if (accept(p, ","))
        close_group(p, i, vector_operand(p, i));
    expect(p, "]");
}

static void operand(struct parser *p, struct px_instruction *i)
{
    if (is(p, "[")) {
        address_operand(p, i);
    } else if (is(p, "{")) {
        close_group(p, i, vector_operand(p, i));
    } else {
        (void)push(p, i, plain_operand(p, i, false));
        close_group(p, i, 1);
        if (accept(p, "|")) {
            (void)push(p, i, plain_operand(p, i, false));
            i->dual = true;
            i->group[i->n_groups - 1] = 2;
        }
    }
}

/* ---- Instructions ---- */

static void add_fixup(struct parser *p, uint32_t instruction, uint32_t table, struct token t)
{
    p->fixup = grow(p, p->fixup, p->n_fixups, &p->max_fixups, sizeof *p->fixup);
    p->fixup[p->n_fixups++] = (struct fixup){instruction, table, p->depth, t.s, t.n};
}

static uint32_t emit(struct parser *p, const struct px_instruction *i)
{
    struct px_module *m = p->m;
    m->code = grow(p, m->code, m->n_code, &m->max_code, sizeof *m->code);
    m->code[m->n_code++] = *i;
    return m->n_code - 1;
}

static void frame_operand(struct parser *p, struct px_instruction *i)
{
    struct px_operand o = plain_operand(p, i, false);
    if (o.kind != PX_FRAME_ADDRESS)
        fail(p, "a call's parameters must be .param variables");
    (void)push(p, i, o);
}

/* call (results), name, (arguments); results and arguments may be absent. */
static void call(struct parser *p, struct px_instruction i)
{
    struct px_instruction results = i;
    results.op = PX_RESULTS;
    results.first_operand = p->m->n_operands;
    if (accept(p, "(")) {
        do
            frame_operand(p, &results);
        while (accept(p, ","));
        expect(p, ")");
        expect(p, ",");
    }
    struct token name = word(p);
    i.first_operand = p->m->n_operands;
    if (accept(p, ",")) {
        expect(p, "(");
        if (!is(p, ")")) {
            do
                frame_operand(p, &i);
            while (accept(p, ","));
        }
        expect(p, ")");
        if (accept(p, ","))
            fail(p, "indirect calls are not supported");
    }
    expect(p, ";");
    uint32_t current = (uint32_t)(p->f - p->m->function);
    i.target = results.target = (uint32_t)(function_of(p, name.s, name.n) - p->m->function);
    p->f = &p->m->function[current]; /* the array may have moved */
    results.guarded = false;
    (void)emit(p, &i);
    (void)emit(p, &results);
}

static void instruction(struct parser *p)
{
    struct px_instruction i = {.line = p->t.line};
    char                  why[256];
    if (accept(p, "@")) {
        i.guarded = true;
        i.guard_not = accept(p, "!");
        struct px_instruction none = {0};
        struct px_operand     o = plain_operand(p, &none, false);
        if (o.width != 0 || o.kind != PX_REG)
            fail(p, "a guard must be a predicate");
        i.guard = o.slot;
    }
    struct token opcode = word(p);
    if (!px_decode(&i, opcode.s, opcode.n, why, sizeof why))
        fail(p, "%s", why);
    i.first_operand = p->m->n_operands;
    if (i.op == PX_CALL) {
        call(p, i);
        return;
    }
    if (i.op == PX_BRA || i.op == PX_BRX) {
        if (i.op == PX_BRX) {
            operand(p, &i);
            expect(p, ",");
        }
        struct token label = word(p);
        expect(p, ";");
        uint32_t at = emit(p, &i);
        add_fixup(p, at, UINT32_MAX, label);
        return;
    }
    if (!is(p, ";")) {
        do
            operand(p, &i);
        while (accept(p, ","));
    }
    expect(p, ";");
    int least, most;
    px_operand_limits((enum px_op)i.op, &least, &most);
    if (i.n_groups < least || i.n_groups > most)
        fail(p, "'%.*s' has %d operands, %d to %d wanted", (int)opcode.n, opcode.s, i.n_groups, least, most);
    (void)emit(p, &i);
}

/* ---- Declarations ---- */

static enum px_type type_word(struct parser *p)
{
    struct token t = word(p);
    for (int k = 1; k < PX_N_TYPES; k++) {
        const char *name = px_type_name((enum px_type)k);
        if (t.n == strlen(name) + 1 && memcmp(t.s + 1, name, t.n - 1) == 0)
            return (enum px_type)k;
    }
    fail(p, "'%.*s' found, a type wanted", (int)t.n, t.s);
}

static void registers(struct parser *p)
{
    if (p->t.n > 2 && p->t.s[1] == 'v')
        fail(p, "vector registers are not supported");
    enum px_type type = type_word(p);
    uint32_t     bytes = px_type_bytes(type), width = type == PX_PRED ? 0 : bytes < 2 ? 2 : bytes;
    do {
        struct token   name = word(p);
        struct symbol *y = declare(p, name, SYM_REGISTERS);
        uint32_t       n = 1;
        if (accept(p, "<")) {
            n = (uint32_t)number(p, false);
            expect(p, ">");
            y->count = n;
        }
        y->width = width;
        y->slot = new_slot(p, width);
        y->stride = p->f->n_words - y->slot;
        for (uint32_t k = 1; k < n; k++)
            (void)new_slot(p, width);
    } while (accept(p, ","));
    expect(p, ";");
}

static uint32_t up(uint32_t v, uint32_t align)
{
    return (v + align - 1) / align * align;
}

struct variable { struct token name; uint32_t align, bytes, element; bool open; };

/* [.align n] .type name[count] */
static struct variable variable(struct parser *p)
{
    struct variable v = {.align = 0};
    uint32_t        lanes = 1;
    while (is(p, ".align") || is(p, ".v2") || is(p, ".v4") || is(p, ".ptr") || is(p, ".attribute")) {
        if (accept(p, ".align"))
            v.align = (uint32_t)number(p, false);
        else if (accept(p, ".v2"))
            lanes = 2;
        else if (accept(p, ".v4"))
            lanes = 4;
        else
            fail(p, "'%.*s' of variables is not supported", (int)p->t.n, p->t.s);
    }
    v.element = px_type_bytes(type_word(p));
    /* Pointers of entries may say where they point. */
    while (is(p, ".ptr") || is(p, ".global") || is(p, ".align") || is(p, ".shared") || is(p, ".const") || is(p, ".local")) {
        if (accept(p, ".align"))
            (void)number(p, false);
        else
            next(p);
    }
    v.name = word(p);
    uint64_t count = lanes;
    while (accept(p, "[")) {
        if (is(p, "]"))
            v.open = true;
        else
            count *= number(p, false);
        expect(p, "]");
    }
    if (count * v.element > 1u << 30)
        fail(p, "'%.*s' has %" PRIu64 " elements", (int)v.name.n, v.name.s, count);
    v.bytes = (uint32_t)(count * v.element);
    if (v.align == 0)
        v.align = v.element * lanes;
    return v;
}

static void initialise(struct parser *p, uint8_t *to, const struct variable *v)
{
    uint32_t at = 0;
    if (!is(p, "{")) {
        uint64_t one = number(p, v->element == 4);
        memcpy(to, &one, v->element);
        return;
    }
    int depth = 0;
    do {
        if (accept(p, "{")) {
            depth++;
        } else if (accept(p, "}")) {
            depth--;
            (void)accept(p, ",");
        } else {
            if (p->t.kind == 'w')
                fail(p, "addresses in initialisers are not supported");
            uint64_t x = number(p, v->element == 4);
            if (at + v->element > v->bytes)
                fail(p, "more values than '%.*s' holds", (int)v->name.n, v->name.s);
            memcpy(to + at, &x, v->element);
            at += v->element;
            (void)accept(p, ",");
        }
    } while (depth > 0);
}

static void memory_variable(struct parser *p, bool is_constant)
{
    struct variable   v = variable(p);
    struct px_module *m = p->m;
    m->variable = grow(p, m->variable, m->n_variables, &m->max_variables, sizeof *m->variable);
    struct px_variable *x = &m->variable[m->n_variables++];
    x->name = strndup(v.name.s, v.name.n);
    x->bytes = v.bytes;
    x->constant = is_constant;
    x->memory = aligned_alloc(256, up(v.bytes ? v.bytes : 1, 256));
    if (!x->memory || !x->name)
        fail(p, "no memory for '%.*s'", (int)v.name.n, v.name.s);
    memset(x->memory, 0, v.bytes);
    if (accept(p, "="))
        initialise(p, x->memory, &v);
    expect(p, ";");
    declare(p, v.name, SYM_MEMORY)->value = (uint64_t)(uintptr_t)x->memory;
}

/* A variable of a space, in a function or outside; the word for the space has been read. */
static void space_variable(struct parser *p, struct token space, bool external)
{
    if (space.n == 7 && memcmp(space.s, ".shared", 7) == 0) {
        struct variable v = variable(p);
        expect(p, ";");
        if (external && v.open) {
            declare(p, v.name, SYM_DYNAMIC)->value = v.align;
            return;
        }
        uint32_t *bytes = p->f ? &p->f->shared_bytes : &p->module_shared;
        uint32_t *align = p->f ? &p->f->shared_align : &p->module_shared_align;
        *bytes = up(*bytes, v.align);
        *align = v.align > *align ? v.align : *align;
        declare(p, v.name, SYM_SHARED)->value = *bytes;
        *bytes += v.bytes;
    } else if (p->f && space.n == 6 && memcmp(space.s, ".local", 6) == 0) {
        struct variable v = variable(p);
        expect(p, ";");
        p->f->local_bytes = up(p->f->local_bytes, v.align < 16 ? 16 : v.align);
        declare(p, v.name, SYM_LOCAL)->value = p->f->local_bytes;
        p->f->local_bytes += v.bytes;
    } else if (p->f && space.n == 6 && memcmp(space.s, ".param", 6) == 0) {
        struct variable v = variable(p);
        expect(p, ";");
        p->f->frame_bytes = up(p->f->frame_bytes, 16);
        declare(p, v.name, SYM_FRAME)->value = p->f->frame_bytes;
        p->f->frame_bytes += v.bytes;
    } else if (space.n == 7 && memcmp(space.s, ".global", 7) == 0) {
        memory_variable(p, false);
    } else if (space.n == 6 && memcmp(space.s, ".const", 6) == 0) {
        memory_variable(p, true);
    } else {
        fail(p, "'%.*s' is not supported here", (int)space.n, space.s);
    }
}

/* ---- Bodies ---- */

/* Labels of the scope that ends here take the branches to them; other branches go on to the scope around. */
static void close_scope(struct parser *p)
{
    uint32_t kept = 0;
    for (uint32_t k = 0; k < p->n_fixups; k++) {
        struct fixup f = p->fixup[k];
        uint32_t     index;
        if (f.depth == p->depth) {
            struct symbol *y = find(p, f.s, f.n, &index);
            if (y && y->depth == p->depth && (y->kind == SYM_LABEL || y->kind == SYM_TABLE)) {
                if (f.table == UINT32_MAX)
                    p->m->code[f.instruction].target = (uint32_t)y->value;
                else
                    p->m->table[f.table] = (uint32_t)y->value;
                continue;
            }
            f.depth--;
        }
        if (f.depth == 0)
            fail(p, "no label '%.*s'", (int)f.n, f.s);
        p->fixup[kept++] = f;
    }
    p->n_fixups = kept;
    while (p->n_symbols > 0 && p->symbol[p->n_symbols - 1].depth == p->depth)
        p->n_symbols--;
    p->depth--;
}

static void branch_targets(struct parser *p, struct token name)
{
    struct px_module *m = p->m;
    m->table = grow(p, m->table, m->n_table, &m->max_table, sizeof *m->table);
    uint32_t first = m->n_table++;
    declare(p, name, SYM_TABLE)->value = first;
    do {
        m->table = grow(p, m->table, m->n_table, &m->max_table, sizeof *m->table);
        m->table[first]++;
        add_fixup(p, 0, m->n_table, word(p));
        m->n_table++;
    } while (accept(p, ","));
    expect(p, ";");
}

static void statement(struct parser *p)
{
    if (p->t.kind != 'w') {
        instruction(p); /* with a guard, or refused there */
        return;
    }
    if (*p->t.s != '.') {
        const char  *at = p->at;
        struct token t = p->t;
        uint32_t     line = p->line;
        next(p);
        if (accept(p, ":")) {
            if (accept(p, ".branchtargets"))
                branch_targets(p, t);
            else
                declare(p, t, SYM_LABEL)->value = p->m->n_code;
            return;
        }
        p->at = at;
        p->t = t;
        p->line = line;
        instruction(p);
        return;
    }
    struct token t = word(p);
    p->t.line = t.line;
    if (t.n == 4 && memcmp(t.s, ".reg", 4) == 0) {
        registers(p);
    } else if (t.n == 7 && memcmp(t.s, ".pragma", 7) == 0) {
        while (!accept(p, ";"))
            next(p);
    } else if (t.n == 4 && memcmp(t.s, ".loc", 4) == 0) {
        skip_line(p);
    } else {
        space_variable(p, t, false);
    }
}

static void body(struct parser *p)
{
    expect(p, "{");
    uint32_t outer = p->depth;
    for (;;) {
        if (p->t.kind == 0)
            fail(p, "the file ends inside a function");
        if (accept(p, "{")) {
            p->depth++;
        } else if (is(p, "}")) {
            close_scope(p);
            next(p);
            if (p->depth < outer)
                return;
        } else {
            statement(p);
        }
    }
}

static void parameters(struct parser *p, struct px_function *f, bool results)
{
    uint32_t n = 0, at = 0;
    expect(p, "(");
    while (!accept(p, ")")) {
        expect(p, ".param");
        struct variable v = variable(p);
        if (n >= (results ? 4u : 64u))
            fail(p, "more than %u parameters of '%s'", results ? 4u : 64u, f->name);
        if (f->entry) {
            at = up(at, v.align);
            f->param[n] = (struct px_param){at, v.bytes};
            declare(p, v.name, SYM_PARAM)->value = at;
            at += v.bytes;
            f->param_bytes = at;
        } else {
            f->frame_bytes = up(f->frame_bytes, 16);
            (results ? f->result : f->param)[n] = (struct px_param){f->frame_bytes, v.bytes};
            declare(p, v.name, SYM_FRAME)->value = f->frame_bytes;
            f->frame_bytes += v.bytes;
        }
        n++;
        (void)accept(p, ",");
    }
    *(results ? &f->n_returns : &f->n_params) = n;
}

static uint32_t launch_numbers(struct parser *p, uint32_t out[3])
{
    uint32_t n = 0, product = 1;
    do {
        out[n] = (uint32_t)number(p, false);
        product *= out[n++];
    } while (n < 3 && accept(p, ","));
    return product;
}

/* A function's results stand before its name. They are read twice: once to be skipped. */
static void function(struct parser *p, bool entry)
{
    const char  *at = p->at;
    struct token t = p->t;
    uint32_t     line = p->line, numbers[3] = {1, 1, 1};
    bool         results = is(p, "(");
    if (results) {
        while (!accept(p, ")"))
            next(p);
    }
    struct token name = word(p);
    struct token behind = p->t;
    const char  *behind_at = p->at;
    uint32_t     behind_line = p->line;
    p->f = function_of(p, name.s, name.n);
    struct px_function *f = p->f;
    if (f->defined)
        fail(p, "'%s' is defined twice", f->name);
    f->entry = entry;
    f->frame_bytes = f->n_params = 0;
    f->shared_bytes = p->module_shared;
    f->shared_align = p->module_shared_align ? p->module_shared_align : 16;
    p->depth++;
    if (results) {
        p->t = t;
        p->at = at;
        p->line = line;
        parameters(p, f, true);
        p->t = behind;
        p->at = behind_at;
        p->line = behind_line;
    }
    if (is(p, "("))
        parameters(p, f, false);
    while (p->t.kind == 'w') {
        if (accept(p, ".maxntid")) {
            f->max_threads = launch_numbers(p, numbers);
        } else if (accept(p, ".minnctapersm") || accept(p, ".maxnreg") || accept(p, ".reqntid")) {
            (void)launch_numbers(p, numbers);
        } else if (accept(p, ".reqnctapercluster")) {
            numbers[1] = numbers[2] = 1;
            (void)launch_numbers(p, numbers);
            memcpy(f->cluster, numbers, sizeof numbers);
        } else if (!accept(p, ".explicitcluster") && !accept(p, ".noreturn") && !accept(p, ".blocksareclusters")) {
            fail(p, "'%.*s' of functions is not supported", (int)p->t.n, p->t.s);
        }
    }
    if (accept(p, ";")) {
        close_scope(p);
        f->frame_bytes = 0;
    } else {
        memset(p->seen, 0, SEEN * sizeof *p->seen);
        f->defined = true;
        f->begin = p->m->n_code;
        body(p);
        f = p->f;
        f->end = p->m->n_code;
        struct px_instruction last = {.op = PX_RET, .line = p->t.line, .first_operand = p->m->n_operands};
        (void)emit(p, &last);
        f->end = p->m->n_code;
    }
    p->f = NULL;
}

static void module(struct parser *p)
{
    next(p);
    while (p->t.kind) {
        struct token t = word(p);
        bool         external = false;
        while ((t.n == 8 && memcmp(t.s, ".visible", 8) == 0) || (t.n == 7 && memcmp(t.s, ".extern", 7) == 0) ||
               (t.n == 5 && memcmp(t.s, ".weak", 5) == 0) || (t.n == 7 && memcmp(t.s, ".common", 7) == 0)) {
            external = t.s[1] == 'e';
            t = word(p);
        }
        if ((t.n == 8 && memcmp(t.s, ".version", 8) == 0) || (t.n == 7 && memcmp(t.s, ".target", 7) == 0) ||
            (t.n == 13 && memcmp(t.s, ".address_size", 13) == 0) || (t.n == 5 && memcmp(t.s, ".file", 5) == 0)) {
            while (p->t.kind && p->t.line == t.line)
                next(p);
        } else if (t.n == 8 && memcmp(t.s, ".section", 8) == 0) {
            while (p->t.kind && !accept(p, "}"))
                next(p);
        } else if (t.n == 7 && memcmp(t.s, ".pragma", 7) == 0) {
            while (p->t.kind && !accept(p, ";"))
                next(p);
        } else if (t.n == 6 && memcmp(t.s, ".entry", 6) == 0) {
            function(p, true);
        } else if (t.n == 5 && memcmp(t.s, ".func", 5) == 0) {
            function(p, false);
        } else {
            space_variable(p, t, external);
        }
    }
}

/* Registers, local memory and frames of functions follow the largest entry's: nothing recurses. */
static void place_functions(struct parser *p)
{
    struct px_module *m = p->m;
    for (uint32_t i = 0; i < m->n_functions; i++) {
        const struct px_function *f = &m->function[i];
        if (f->entry && f->n_words > m->n_words)
            m->n_words = f->n_words;
        if (f->entry && f->local_bytes > m->local_bytes)
            m->local_bytes = f->local_bytes;
        if (f->entry && f->frame_bytes > m->frame_bytes)
            m->frame_bytes = f->frame_bytes;
    }
    m->local_bytes = up(m->local_bytes, 16);
    m->frame_bytes = up(m->frame_bytes, 16);
    for (uint32_t i = 0; i < m->n_functions; i++) {
        struct px_function *f = &m->function[i];
        if (f->entry)
            continue;
        f->base = m->n_words;
        f->local_base = m->local_bytes;
        f->frame_base = m->frame_bytes;
        m->n_words += f->n_words;
        m->local_bytes += up(f->local_bytes, 16);
        m->frame_bytes += up(f->frame_bytes, 16);
    }
    for (uint32_t i = 0; i < m->n_code; i++)
        m->code[i].o = m->operand + m->code[i].first_operand;
}

/* False with the sentence written. */
static bool parse_guarded(struct parser *p)
{
    if (setjmp(p->out) != 0)
        return false;
    module(p);
    place_functions(p);
    return true;
}

struct px_module *px_module_parse(const char *text, size_t bytes, char *error, size_t error_bytes)
{
    struct parser    *p = calloc(1, sizeof *p);
    struct px_module *m = calloc(1, sizeof *m);
    bool              good = p && m && (p->seen = calloc(SEEN, sizeof *p->seen)) != NULL && (m->text = malloc(bytes + 1)) != NULL;
    if (!good) {
        (void)snprintf(error, error_bytes, "no memory");
    } else {
        memcpy(m->text, text, bytes);
        m->text[bytes] = 0;
        m->bytes = bytes;
        p->m = m;
        p->at = m->text;
        p->end = m->text + bytes;
        p->line = 1;
        p->error = error;
        p->error_bytes = error_bytes;
        good = parse_guarded(p);
    }
    if (p) {
        free(p->symbol);
        free(p->fixup);
        free(p->seen);
    }
    free(p);
    if (good)
        return m;
    px_module_free(m);
    return NULL;
}

struct px_module *px_module_read(const char *path, char *error, size_t error_bytes)
{
    FILE *f = fopen(path, "rb");
    long  n = -1;
    char *text = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0)
        text = malloc((size_t)n + 1);
    struct px_module *m = NULL;
    if (text && fread(text, 1, (size_t)n, f) == (size_t)n) {
        char why[512];
        m = px_module_parse(text, (size_t)n, why, sizeof why);
        if (!m)
            (void)snprintf(error, error_bytes, "%s, %s", path, why);
    } else {
        (void)snprintf(error, error_bytes, "%s cannot be read", path);
    }
    if (f)
        (void)fclose(f);
    free(text);
    return m;
}

void px_module_free(struct px_module *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->n_functions; i++) {
        free(m->function[i].name);
        free(m->function[i].constant);
    }
    for (uint32_t i = 0; i < m->n_variables; i++) {
        free(m->variable[i].name);
        free(m->variable[i].memory);
    }
    free(m->function);
    free(m->variable);
    free(m->table);
    free(m->operand);
    free(m->code);
    free(m->text);
    free(m);
}

static const struct px_function *entry_of(const struct px_module *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_functions; i++) {
        if (m->function[i].entry && m->function[i].defined && strcmp(m->function[i].name, name) == 0)
            return &m->function[i];
    }
    return NULL;
}

bool px_module_has(const struct px_module *m, const char *entry, int32_t *n_params)
{
    const struct px_function *f = entry_of(m, entry);
    if (f && n_params)
        *n_params = (int32_t)f->n_params;
    return f != NULL;
}

const char *px_module_entry(const struct px_module *m, int32_t i)
{
    for (uint32_t k = 0; k < m->n_functions; k++) {
        if (m->function[k].entry && m->function[k].defined && i-- == 0)
            return m->function[k].name;
    }
    return NULL;
}

size_t px_module_param_bytes(const struct px_module *m, const char *entry, int32_t i)
{
    const struct px_function *f = entry_of(m, entry);
    return f && i >= 0 && (uint32_t)i < f->n_params ? f->param[i].bytes : 0;
}

void px_module_line(const struct px_module *m, uint32_t line, char *out, size_t n)
{
    const char *s = m->text;
    while (line > 1 && (s = strchr(s, '\n')) != NULL) {
        line--;
        s++;
    }
    size_t length = 0;
    if (s) {
        s += strspn(s, " \t");
        length = strcspn(s, "\n");
    }
    length = length < n - 1 ? length : n - 1;
    memcpy(out, s ? s : "", length);
    out[length] = 0;
}
