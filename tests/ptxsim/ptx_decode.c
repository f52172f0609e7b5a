/* From an opcode's text to its fields. An opcode or modifier that is not in the lists of ptx_ops.h is refused by name. */
#include "ptxsim/ptx_module.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *text, *mods;
    size_t      length;
    int         least, most;
} ops[PX_N_OPS] = {
#define ROW(name, text, least, most, mods) {text, mods, sizeof text - 1, least, most},
    PX_OPS(ROW)
#undef ROW
};

static const char *const mods[PX_N_MODS] = {
#define ROW(name, text) text,
    PX_MODS(ROW)
#undef ROW
};

static const struct {
    const char *text;
    uint32_t    bytes;
} types[PX_N_TYPES] = {
    {"", 0}, {"pred", 0}, {"b8", 1}, {"b16", 2}, {"b32", 4}, {"b64", 8}, {"b128", 16}, {"u8", 1}, {"u16", 2}, {"u32", 4},
    {"u64", 8}, {"s8", 1}, {"s16", 2}, {"s32", 4}, {"s64", 8}, {"f16", 2}, {"f16x2", 4}, {"bf16", 2}, {"bf16x2", 4},
    {"tf32", 4}, {"f32", 4}, {"f64", 8}, {"e4m3", 1}, {"e5m2", 1}, {"e2m1", 1}, {"e2m3", 1}, {"e3m2", 1}, {"ue8m0", 1},
    {"ue4m3", 1}, {"e4m3x2", 2}, {"e5m2x2", 2}, {"e2m1x2", 1}, {"e2m3x2", 2}, {"e3m2x2", 2}, {"ue8m0x2", 2},
};

static const char *const compares[] = {"", "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu",
                                       "leu", "gtu", "geu", "num", "nan"};
static const char *const joins[] = {"", "and", "or", "xor", "add", "min", "max", "popc"};

static const struct {
    const char   *text;
    enum px_space space;
} spaces[] = {{"global", PX_GLOBAL}, {"shared", PX_SHARED}, {"shared::cta", PX_SHARED}, {"shared::cluster", PX_SHARED},
              {"local", PX_LOCAL}, {"param", PX_PARAM}, {"param::entry", PX_PARAM}, {"param::func", PX_PARAM}, {"const", PX_CONST}};

uint32_t px_type_bytes(enum px_type t)
{
    return types[t].bytes;
}

const char *px_type_name(enum px_type t)
{
    return types[t].text;
}

_Static_assert(PX_N_MODS < PX_NO_ROUNDING, "a rounding is kept in a byte");

const char *px_op_name(enum px_op op)
{
    return ops[op].text;
}

void px_operand_limits(enum px_op op, int *least, int *most)
{
    *least = ops[op].least;
    *most = ops[op].most;
}

static bool same(const char *text, const char *s, size_t n)
{
    return strlen(text) == n && memcmp(text, s, n) == 0;
}

/* Whether the words of `list`, separated by spaces, hold s. */
static bool listed(const char *list, const char *s, size_t n)
{
    while (*list) {
        size_t length = strcspn(list, " ");
        if (length == n && memcmp(list, s, n) == 0)
            return true;
        list += length;
        list += strspn(list, " ");
    }
    return false;
}

/* The op with the longest text that opens the opcode at a dot. */
static int op_of(const char *s, size_t n, size_t *used)
{
    int best = -1;
    *used = 0;
    for (int i = 0; i < PX_N_OPS; i++) {
        size_t length = ops[i].length;
        if (length > *used && length <= n && ops[i].text[0] == s[0] && memcmp(ops[i].text, s, length) == 0 && (length == n || s[length] == '.')) {
            best = i;
            *used = length;
        }
    }
    return best;
}

static bool takes_joins(uint16_t op)
{
    return op == PX_SETP || op == PX_SET || op == PX_ATOM || op == PX_RED || op == PX_REDUX || op == PX_BULK_REDUCE || op == PX_BAR_RED ||
           op == PX_BAR_RED_CTA || op == PX_BARRIER_RED || op == PX_BARRIER_RED_CTA || op == PX_TENSOR;
}

static bool takes_vectors(uint16_t op)
{
    return op == PX_LD || op == PX_LDU || op == PX_ST || op == PX_ST_ASYNC || op == PX_RED || op == PX_ATOM;
}

/* Whether the word is a comparison, join, space, vector or type, and takes it in. */
static bool take_field(struct px_instruction *i, const char *s, size_t n, int *n_types)
{
    if (i->op == PX_SETP || i->op == PX_SET) {
        for (uint8_t k = 1; k < sizeof compares / sizeof *compares; k++) {
            if (same(compares[k], s, n))
                return i->compare = k, true;
        }
    }
    if (takes_joins(i->op)) {
        for (uint8_t k = 1; k < sizeof joins / sizeof *joins; k++) {
            if (same(joins[k], s, n))
                return i->join = k, true;
        }
    }
    if (i->op != PX_MEMBAR) {
        for (size_t k = 0; k < sizeof spaces / sizeof *spaces; k++) {
            if (!same(spaces[k].text, s, n))
                continue;
            if (i->space == PX_GENERIC)
                i->space = (uint8_t)spaces[k].space;
            /* Copies name two spaces: which is first is told by their modifiers. */
            if (same("shared::cta", s, n))
                i->mods[PX_M_SHARED_CTA / 64] |= 1ull << (PX_M_SHARED_CTA % 64);
            if (same("shared::cluster", s, n))
                i->mods[PX_M_SHARED_CLUSTER / 64] |= 1ull << (PX_M_SHARED_CLUSTER % 64);
            return true;
        }
    }
    if (takes_vectors(i->op) && n == 2 && s[0] == 'v' && (s[1] == '2' || s[1] == '4' || s[1] == '8'))
        return i->vector = (uint8_t)(s[1] - '0'), true;
    if (i->op == PX_WG_MMA && n > 4 && memcmp(s, "m64n", 4) == 0) {
        unsigned width = 0, depth = 0;
        if (sscanf(s, "m64n%uk%u", &width, &depth) != 2 || width < 8 || width > 256 || width % 8 != 0)
            return false;
        return i->vector = (uint8_t)(width / 8), true;
    }
    for (uint8_t k = 1; k < PX_N_TYPES; k++) {
        if (same(types[k].text, s, n) && *n_types < 5)
            return i->type[(*n_types)++] = k, true;
    }
    return false;
}

static void finish(struct px_instruction *i)
{
    i->ftz = px_has(i, PX_M_FTZ);
    i->sat = px_has(i, PX_M_SAT);
    i->cc = px_has(i, PX_M_CC);
    static const enum px_mod rounding[] = {PX_M_RN, PX_M_RZ, PX_M_RM, PX_M_RP, PX_M_RNI, PX_M_RZI, PX_M_RMI, PX_M_RPI, PX_M_RNA};
    i->rounding = PX_NO_ROUNDING;
    for (size_t k = 0; k < sizeof rounding / sizeof *rounding; k++) {
        if (px_has(i, rounding[k]))
            i->rounding = (uint8_t)rounding[k];
    }
    switch (i->op) {
    case PX_BAR_SYNC: case PX_BAR_SYNC_CTA: case PX_BAR_ARRIVE: case PX_BAR_ARRIVE_CTA: case PX_BAR_RED: case PX_BAR_RED_CTA:
        i->full = true;
        break;
    default:
        i->full = px_has(i, PX_M_ALIGNED);
    }
    if (i->vector == 0)
        i->vector = 1;
}

bool px_decode(struct px_instruction *i, const char *opcode, size_t n, char *error, size_t error_bytes)
{
    size_t at;
    int    n_types = 0, op = op_of(opcode, n, &at);
    if (op < 0) {
        (void)snprintf(error, error_bytes, "unknown opcode '%.*s'", (int)n, opcode);
        return false;
    }
    i->op = (uint16_t)op;
    while (at < n) {
        const char *s = opcode + at + 1;
        size_t      length = 0, m;
        while (at + 1 + length < n && s[length] != '.')
            length++;
        at += 1 + length;
        for (m = 0; m < PX_N_MODS && !same(mods[m], s, length); m++)
            ;
        if (m < PX_N_MODS && listed(ops[op].mods, s, length))
            i->mods[m / 64] |= 1ull << (m % 64);
        else if (!take_field(i, s, length, &n_types)) {
            (void)snprintf(error, error_bytes, "unknown modifier '.%.*s' of '%s'", (int)length, s, ops[op].text);
            return false;
        }
    }
    finish(i);
    return true;
}
