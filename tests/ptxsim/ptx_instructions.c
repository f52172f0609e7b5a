/* Names in their scopes, the slots that values get, operands, and whole instructions. */
#include "ptxsim/ptx_parser.h"

#include <stdlib.h>
#include <string.h>

/* ---- Names ---- */

struct symbol *px_declare(struct parser *p, struct token name, enum symbol_kind kind)
{
    p->symbol = px_grow(p, p->symbol, p->n_symbols, &p->max_symbols, sizeof *p->symbol);
    struct symbol *s = &p->symbol[p->n_symbols++];
    *s = (struct symbol){.s = name.s, .n = name.n, .kind = kind, .depth = p->depth};
    return s;
}

/* The innermost symbol of this name; index: the number behind a counted name. */
struct symbol *px_find(struct parser *p, const char *s, size_t n, uint32_t *index)
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

struct px_function *px_function_of(struct parser *p, const char *s, size_t n)
{
    struct px_module *m = p->m;
    for (uint32_t i = 0; i < m->n_functions; i++) {
        if (strlen(m->function[i].name) == n && memcmp(m->function[i].name, s, n) == 0)
            return &m->function[i];
    }
    m->function = px_grow(p, m->function, m->n_functions, &m->max_functions, sizeof *m->function);
    struct px_function *f = &m->function[m->n_functions++];
    f->name = malloc(n + 1);
    if (!f->name)
        px_fail(p, "no memory");
    memcpy(f->name, s, n);
    f->name[n] = 0;
    return f;
}

/* ---- Slots ---- */

uint32_t px_new_slot(struct parser *p, uint32_t width)
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
                px_fail(p, "more than %d constants in one function", SEEN / 2);
            f->constant = px_grow(p, f->constant, f->n_constants, &f->max_constants, sizeof *f->constant);
            f->constant[f->n_constants] = (struct px_constant){px_new_slot(p, width), (uint8_t)width, (uint8_t)fill, value};
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
    struct token      t = px_word(p);
    uint32_t          index, width;
    uint64_t          value;
    if (t.n == 1 && t.s[0] == '_')
        return (struct px_operand){.kind = PX_SINK, .width = 4};
    if (special(t, &width, &value)) {
        o.slot = constant(p, width, PX_FILL_SPECIAL, value);
        o.width = (uint8_t)width;
        return o;
    }
    struct symbol *y = px_find(p, t.s, t.n, &index);
    if (!y)
        px_fail(p, "unknown name '%.*s'", (int)t.n, t.s);
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
    px_fail(p, "'%.*s' is a label", (int)t.n, t.s);
}

static struct px_operand plain_operand(struct parser *p, const struct px_instruction *i, bool address)
{
    struct px_operand o = {.kind = PX_REG};
    if (px_accept(p, "!")) {
        o = name_operand(p, i, address);
        o.negated = true;
        return o;
    }
    const char *at = p->t.s;
    if (*at == '-' || p->t.kind == '0') {
        uint32_t width = address ? 8 : immediate_width(i);
        o.value = px_number(p, i->type[0] == PX_F32);
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
    m->operand = px_grow(p, m->operand, m->n_operands, &m->max_operands, sizeof *m->operand);
    m->operand[m->n_operands++] = o;
    i->n_operands++;
    return &m->operand[m->n_operands - 1];
}

static void close_group(struct parser *p, struct px_instruction *i, uint32_t n)
{
    if (i->n_groups >= sizeof i->group || n > 255)
        px_fail(p, "too many operands of '%s'", px_op_name((enum px_op)i->op));
    i->group[i->n_groups++] = (uint8_t)n;
}

static uint32_t vector_operand(struct parser *p, struct px_instruction *i)
{
    uint32_t n = 0;
    px_expect(p, "{");
    do {
        (void)push(p, i, plain_operand(p, i, false));
        n++;
    } while (px_accept(p, ","));
    px_expect(p, "}");
    return n;
}

static void address_operand(struct parser *p, struct px_instruction *i)
{
    px_expect(p, "[");
    struct px_operand o = plain_operand(p, i, true);
    if (o.kind == PX_REG)
        o.kind = PX_ADDRESS;
    if (px_accept(p, "+"))
        o.offset += (int32_t)px_number(p, false);
    (void)push(p, i, o);
    close_group(p, i, 1);
    if (px_accept(p, ","))
        close_group(p, i, vector_operand(p, i));
    px_expect(p, "]");
}

static void operand(struct parser *p, struct px_instruction *i)
{
    if (px_is(p, "[")) {
        address_operand(p, i);
    } else if (px_is(p, "{")) {
        close_group(p, i, vector_operand(p, i));
    } else {
        (void)push(p, i, plain_operand(p, i, false));
        close_group(p, i, 1);
        if (px_accept(p, "|")) {
            (void)push(p, i, plain_operand(p, i, false));
            i->dual = true;
            i->group[i->n_groups - 1] = 2;
        }
    }
}

/* ---- Instructions ---- */

void px_add_fixup(struct parser *p, uint32_t instruction, uint32_t table, struct token t)
{
    p->fixup = px_grow(p, p->fixup, p->n_fixups, &p->max_fixups, sizeof *p->fixup);
    p->fixup[p->n_fixups++] = (struct fixup){instruction, table, p->depth, t.s, t.n};
}

uint32_t px_emit(struct parser *p, const struct px_instruction *i)
{
    struct px_module *m = p->m;
    m->code = px_grow(p, m->code, m->n_code, &m->max_code, sizeof *m->code);
    m->code[m->n_code++] = *i;
    return m->n_code - 1;
}

static void frame_operand(struct parser *p, struct px_instruction *i)
{
    struct px_operand o = plain_operand(p, i, false);
    if (o.kind != PX_FRAME_ADDRESS)
        px_fail(p, "a call's parameters must be .param variables");
    (void)push(p, i, o);
}

/* call (results), name, (arguments); results and arguments may be absent. */
static void call(struct parser *p, struct px_instruction i)
{
    struct px_instruction results = i;
    results.op = PX_RESULTS;
    results.first_operand = p->m->n_operands;
    if (px_accept(p, "(")) {
        do
            frame_operand(p, &results);
        while (px_accept(p, ","));
        px_expect(p, ")");
        px_expect(p, ",");
    }
    struct token name = px_word(p);
    i.first_operand = p->m->n_operands;
    if (px_accept(p, ",")) {
        px_expect(p, "(");
        if (!px_is(p, ")")) {
            do
                frame_operand(p, &i);
            while (px_accept(p, ","));
        }
        px_expect(p, ")");
        if (px_accept(p, ","))
            px_fail(p, "indirect calls are not supported");
    }
    px_expect(p, ";");
    uint32_t current = (uint32_t)(p->f - p->m->function);
    i.target = results.target = (uint32_t)(px_function_of(p, name.s, name.n) - p->m->function);
    p->f = &p->m->function[current]; /* the array may have moved */
    results.guarded = false;
    (void)px_emit(p, &i);
    (void)px_emit(p, &results);
}

void px_parse_instruction(struct parser *p)
{
    struct px_instruction i = {.line = p->t.line};
    char                  why[256];
    if (px_accept(p, "@")) {
        i.guarded = true;
        i.guard_not = px_accept(p, "!");
        struct px_instruction none = {0};
        struct px_operand     o = plain_operand(p, &none, false);
        if (o.width != 0 || o.kind != PX_REG)
            px_fail(p, "a guard must be a predicate");
        i.guard = o.slot;
    }
    struct token opcode = px_word(p);
    if (!px_decode(&i, opcode.s, opcode.n, why, sizeof why))
        px_fail(p, "%s", why);
    i.first_operand = p->m->n_operands;
    if (i.op == PX_CALL) {
        call(p, i);
        return;
    }
    if (i.op == PX_BRA || i.op == PX_BRX) {
        if (i.op == PX_BRX) {
            operand(p, &i);
            px_expect(p, ",");
        }
        struct token label = px_word(p);
        px_expect(p, ";");
        uint32_t at = px_emit(p, &i);
        px_add_fixup(p, at, UINT32_MAX, label);
        return;
    }
    if (!px_is(p, ";")) {
        do
            operand(p, &i);
        while (px_accept(p, ","));
    }
    px_expect(p, ";");
    int least, most;
    px_operand_limits((enum px_op)i.op, &least, &most);
    if (i.n_groups < least || i.n_groups > most)
        px_fail(p, "'%.*s' has %d operands, %d to %d wanted", (int)opcode.n, opcode.s, i.n_groups, least, most);
    (void)px_emit(p, &i);
}
