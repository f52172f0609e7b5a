/* Integers, bits, moves and comparisons. All lanes are computed where nothing can go wrong in them; only active ones are
 * kept. */
#include "ptxsim/sim.h"

#include <string.h>

#define EACH32(expression)                                                                                            \
    do {                                                                                                              \
        if (lanes == ~0u) {                                                                                           \
            for (int l = 0; l < PX_LANES; l++)                                                                        \
                d[l] = (expression);                                                                                  \
        } else {                                                                                                      \
            for (int l = 0; l < PX_LANES; l++)                                                                        \
                d[l] = lanes >> l & 1 ? (expression) : d[l];                                                          \
        }                                                                                                             \
    } while (0)

static bool is_float(uint8_t t)
{
    return (t >= PX_F16 && t <= PX_F64) || t >= PX_E4M3;
}

static bool is_signed(uint8_t t)
{
    return t >= PX_S8 && t <= PX_S64;
}

static int64_t sign_extend(uint64_t v, uint32_t bytes)
{
    return bytes == 8 ? (int64_t)v : bytes == 4 ? (int32_t)(uint32_t)v : bytes == 2 ? (int16_t)(uint16_t)v : (int8_t)(uint8_t)v;
}

/* A source as its type says. */
static int64_t source(const struct px_warp *w, const struct px_operand *o, uint32_t lane, uint8_t t)
{
    uint64_t v = px_get(w, o, lane);
    uint32_t bytes = px_type_bytes((enum px_type)t);
    if (is_signed(t))
        return sign_extend(v, bytes);
    return (int64_t)(bytes == 8 ? v : v & ((1ull << (8 * bytes)) - 1));
}

/* The usual cases on 32 bits: operands all 4 bytes. */
static bool fast32(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t       *d = px_r32(w, &i->o[0]);
    const uint32_t *a = px_r32(w, &i->o[1]), *b = i->n_operands > 2 ? px_r32(w, &i->o[2]) : a;
    const uint32_t *c = i->n_operands > 3 ? px_r32(w, &i->o[3]) : a;
    bool            s = is_signed(i->type[0]);
    if (px_type_bytes((enum px_type)i->type[0]) != 4 || i->cc || i->sat)
        return false;
    for (uint32_t k = 0; k < i->n_operands; k++) {
        if (i->o[k].width != 4 || i->o[k].kind != PX_REG)
            return false;
    }
    switch (i->op) {
    case PX_ADD: EACH32(a[l] + b[l]); return true;
    case PX_SUB: EACH32(a[l] - b[l]); return true;
    case PX_AND: EACH32(a[l] & b[l]); return true;
    case PX_OR: EACH32(a[l] | b[l]); return true;
    case PX_XOR: EACH32(a[l] ^ b[l]); return true;
    case PX_NOT: EACH32(~a[l]); return true;
    case PX_NEG: EACH32(0 - a[l]); return true;
    case PX_SHL: EACH32(b[l] > 31 ? 0 : a[l] << (b[l] & 31)); return true;
    case PX_SHR:
        if (s)
            EACH32((uint32_t)((int32_t)a[l] >> (b[l] > 31 ? 31 : b[l])));
        else
            EACH32(b[l] > 31 ? 0 : a[l] >> (b[l] & 31));
        return true;
    case PX_MUL:
        if (!px_has(i, PX_M_LO))
            return false;
        EACH32(a[l] * b[l]);
        return true;
    case PX_MAD:
        if (!px_has(i, PX_M_LO))
            return false;
        EACH32(a[l] * b[l] + c[l]);
        return true;
    case PX_MIN:
        if (s)
            EACH32((int32_t)a[l] < (int32_t)b[l] ? a[l] : b[l]);
        else
            EACH32(a[l] < b[l] ? a[l] : b[l]);
        return true;
    case PX_MAX:
        if (s)
            EACH32((int32_t)a[l] > (int32_t)b[l] ? a[l] : b[l]);
        else
            EACH32(a[l] > b[l] ? a[l] : b[l]);
        return true;
    default: return false;
    }
}

static bool fast64(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    if (px_type_bytes((enum px_type)i->type[0]) != 8 || i->cc || i->o[0].width != 8 || i->o[1].width != 8)
        return false;
    uint64_t       *d = px_r64(w, &i->o[0]);
    const uint64_t *a = px_r64(w, &i->o[1]);
    if (i->op == PX_NOT) {
        EACH32(~a[l]);
        return true;
    }
    if (i->op == PX_SHL || i->op == PX_SHR) {
        if (i->o[2].width != 4)
            return false;
        const uint32_t *b = px_r32(w, &i->o[2]);
        if (i->op == PX_SHL)
            EACH32(b[l] > 63 ? 0 : a[l] << (b[l] & 63));
        else if (is_signed(i->type[0]))
            EACH32((uint64_t)((int64_t)a[l] >> (b[l] > 63 ? 63 : b[l])));
        else
            EACH32(b[l] > 63 ? 0 : a[l] >> (b[l] & 63));
        return true;
    }
    if (i->n_operands < 3 || i->o[2].width != 8)
        return false;
    const uint64_t *b = px_r64(w, &i->o[2]);
    switch (i->op) {
    case PX_ADD: EACH32(a[l] + b[l]); return true;
    case PX_SUB: EACH32(a[l] - b[l]); return true;
    case PX_AND: EACH32(a[l] & b[l]); return true;
    case PX_OR: EACH32(a[l] | b[l]); return true;
    case PX_XOR: EACH32(a[l] ^ b[l]); return true;
    default: return false;
    }
}

static void predicates(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t a = px_pred(w, &i->o[1]), b = i->n_operands > 2 ? px_pred(w, &i->o[2]) : 0;
    uint32_t v = i->op == PX_AND ? a & b : i->op == PX_OR ? a | b : i->op == PX_XOR ? a ^ b : ~a;
    px_set_pred(w, &i->o[0], lanes, v);
}

/* Sums with carries in and out, low or high halves of products. */
static uint64_t carrying(struct px_warp *w, const struct px_instruction *i, uint32_t lane, uint64_t a, uint64_t b, uint64_t c)
{
    uint32_t          bits = 8 * px_type_bytes((enum px_type)i->type[0]);
    uint64_t          in = w->carry >> lane & 1, mask = bits == 64 ? ~0ull : (1ull << bits) - 1;
    unsigned __int128 sum;
    if (i->op == PX_MAD || i->op == PX_MADC) {
        __int128 product = is_signed(i->type[0]) ? (__int128)(int64_t)a * (int64_t)b
                                                 : (__int128)((unsigned __int128)(a & mask) * (b & mask));
        uint64_t half = px_has(i, PX_M_HI) ? (uint64_t)(product >> bits) : (uint64_t)product;
        sum = (unsigned __int128)(half & mask) + (c & mask) + (i->op == PX_MADC ? in : 0);
    } else if (i->op == PX_ADD || i->op == PX_ADDC) {
        sum = (unsigned __int128)(a & mask) + (b & mask) + (i->op == PX_ADDC ? in : 0);
    } else {
        /* The condition code of a subtraction is its borrow. */
        sum = (unsigned __int128)(a & mask) - (b & mask) - (i->op == PX_SUBC ? in : 0);
    }
    if (i->cc)
        w->carry = (w->carry & ~(1u << lane)) | (uint32_t)(sum >> bits & 1) << lane;
    return (uint64_t)sum & mask;
}

static uint64_t divide(struct px_machine *m, const struct px_instruction *i, uint32_t lane, int64_t a, int64_t b)
{
    if (b == 0)
        px_trap(m, "lane %u divides %lld by 0, which has no defined result", lane, (long long)a);
    if (is_signed(i->type[0])) {
        if (b == -1)
            return i->op == PX_DIV ? 0 - (uint64_t)a : 0;
        return (uint64_t)(i->op == PX_DIV ? a / b : a % b);
    }
    return i->op == PX_DIV ? (uint64_t)a / (uint64_t)b : (uint64_t)a % (uint64_t)b;
}

static int64_t product(const struct px_instruction *i, int64_t a, int64_t b)
{
    uint32_t bits = 8 * px_type_bytes((enum px_type)i->type[0]);
    if (px_has(i, PX_M_HI)) {
        if (is_signed(i->type[0]))
            return (int64_t)(uint64_t)(((__int128)a * b) >> bits);
        return (int64_t)(uint64_t)(((unsigned __int128)(uint64_t)a * (uint64_t)b) >> bits);
    }
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

static uint64_t one(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    uint8_t  t = i->type[0];
    int64_t  a = source(w, &i->o[1], lane, t), b = 0, c = 0;
    uint32_t bits = 8 * px_type_bytes((enum px_type)t);
    bool     shift = i->op == PX_SHL || i->op == PX_SHR;
    if (i->n_operands > 2)
        b = shift ? (int64_t)px_get32(w, &i->o[2], lane) : source(w, &i->o[2], lane, t);
    if (i->n_operands > 3)
        c = px_has(i, PX_M_WIDE) ? (int64_t)px_get(w, &i->o[3], lane) : source(w, &i->o[3], lane, t);
    if (px_has(i, PX_M_WIDE) && i->n_operands > 3 && is_signed(t))
        c = sign_extend((uint64_t)c, bits / 4);
    if (i->cc || i->op == PX_ADDC || i->op == PX_SUBC || i->op == PX_MADC)
        return carrying(w, i, lane, (uint64_t)a, (uint64_t)b, (uint64_t)c);
    switch (i->op) {
    case PX_ADD:
        if (i->sat) {
            int64_t v = a + b;
            return (uint64_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v);
        }
        return (uint64_t)a + (uint64_t)b;
    case PX_SUB:
        if (i->sat) {
            int64_t v = a - b;
            return (uint64_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v);
        }
        return (uint64_t)a - (uint64_t)b;
    case PX_MUL: return (uint64_t)product(i, a, b);
    case PX_MAD: return (uint64_t)product(i, a, b) + (uint64_t)c;
    case PX_MUL24: {
        int64_t x = is_signed(t) ? (int64_t)((uint64_t)a << 40) >> 40 : a & 0xffffff;
        int64_t y = is_signed(t) ? (int64_t)((uint64_t)b << 40) >> 40 : b & 0xffffff;
        return (uint64_t)(px_has(i, PX_M_HI) ? x * y >> 16 : x * y);
    }
    case PX_DIV: case PX_REM: return divide(w->cta->m, i, lane, a, b);
    case PX_ABS: return a < 0 ? 0 - (uint64_t)a : (uint64_t)a;
    case PX_NEG: return 0 - (uint64_t)a;
    case PX_MIN: return is_signed(t) ? (uint64_t)(a < b ? a : b) : (uint64_t)a < (uint64_t)b ? (uint64_t)a : (uint64_t)b;
    case PX_MAX: return is_signed(t) ? (uint64_t)(a > b ? a : b) : (uint64_t)a > (uint64_t)b ? (uint64_t)a : (uint64_t)b;
    case PX_SAD: return (uint64_t)c + (is_signed(t) ? (uint64_t)(a > b ? a - b : b - a)
                                                    : (uint64_t)a > (uint64_t)b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a);
    case PX_AND: return (uint64_t)(a & b);
    case PX_OR: return (uint64_t)(a | b);
    case PX_XOR: return (uint64_t)(a ^ b);
    case PX_NOT: return ~(uint64_t)a;
    case PX_SHL: return (uint64_t)b >= bits ? 0 : (uint64_t)a << b;
    case PX_SHR:
        if (is_signed(t))
            return (uint64_t)(a >> ((uint64_t)b >= bits ? bits - 1 : (uint64_t)b));
        return (uint64_t)b >= bits ? 0 : (uint64_t)a >> b;
    default: px_trap(w->cta->m, "an integer form of '%s' is missing", px_op_name((enum px_op)i->op));
    }
}

/* Arithmetic that exists for integers and floats is told apart by its type. */
void px_integer(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    if (is_float(i->type[0])) {
        px_float(w, i, lanes);
        return;
    }
    if (i->type[0] == PX_PRED) {
        predicates(w, i, lanes);
        return;
    }
    if (fast32(w, i, lanes) || fast64(w, i, lanes))
        return;
    PX_EACH(l, lanes)
    px_set(w, &i->o[0], l, one(w, i, l));
}

/* ---- Bits ---- */

static uint64_t field_extract(const struct px_instruction *i, uint64_t a, uint32_t position, uint32_t length)
{
    uint32_t bits = 8 * px_type_bytes((enum px_type)i->type[0]);
    uint64_t v = 0, sign = 0;
    position &= 0xff;
    length &= 0xff;
    if (is_signed(i->type[0]) && length > 0) {
        uint32_t top = position + length - 1 < bits - 1 ? position + length - 1 : bits - 1;
        sign = a >> top & 1;
    }
    for (uint32_t k = 0; k < bits; k++) {
        uint64_t bit = k < length && position + k < bits ? a >> (position + k) & 1 : sign;
        v |= bit << k;
    }
    return v;
}

static uint64_t field_insert(uint32_t bits, uint64_t a, uint64_t b, uint32_t position, uint32_t length)
{
    position &= 0xff;
    length &= 0xff;
    for (uint32_t k = 0; k < length && position + k < bits; k++)
        b = (b & ~(1ull << (position + k))) | (a >> k & 1) << (position + k);
    return b;
}

static uint32_t permute(const struct px_instruction *i, uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t v = 0, k = c & 3;
    for (uint32_t n = 0; n < 4; n++) {
        uint32_t s = c >> (4 * n) & 15;
        if (px_has(i, PX_M_F4E))
            s = k + n;
        else if (px_has(i, PX_M_B4E))
            s = (k - n) & 7;
        else if (px_has(i, PX_M_RC8))
            s = k;
        else if (px_has(i, PX_M_ECL))
            s = n > k ? n : k;
        else if (px_has(i, PX_M_ECR))
            s = n < k ? n : k;
        else if (px_has(i, PX_M_RC16))
            s = (k & 1) * 2 + (n & 1);
        uint32_t byte = (uint32_t)(both >> (8 * (s & 7))) & 0xff;
        if (s & 8)
            byte = byte & 0x80 ? 0xff : 0;
        v |= byte << (8 * n);
    }
    return v;
}

static uint32_t logic3(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t v = 0;
    for (uint32_t k = 0; k < 8; k++) {
        if (table >> k & 1)
            v |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    }
    return v;
}

static uint32_t funnel(const struct px_instruction *i, uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t n = px_has(i, PX_M_WRAP) ? c & 31 : c > 32 ? 32 : c;
    return px_has(i, PX_M_LEFT) ? (uint32_t)((both << n) >> 32) : (uint32_t)(both >> n);
}

static int64_t part(uint32_t v, uint32_t k, uint32_t bits, bool negative_too)
{
    uint32_t x = v >> (k * bits) & ((1u << bits) - 1);
    return negative_too && x >> (bits - 1) ? (int64_t)x - (1ll << bits) : (int64_t)x;
}

static uint64_t dot(const struct px_instruction *i, uint32_t a, uint32_t b, uint32_t c)
{
    int64_t sum = is_signed(i->type[0]) || is_signed(i->type[1]) ? (int32_t)c : (int64_t)c;
    for (uint32_t k = 0; k < (i->op == PX_DP4A ? 4u : 2u); k++) {
        uint32_t at = i->op == PX_DP2A && px_has(i, PX_M_HI) ? k + 2 : k;
        sum += part(a, k, i->op == PX_DP4A ? 8 : 16, is_signed(i->type[0])) * part(b, at, 8, is_signed(i->type[1]));
    }
    return (uint32_t)sum;
}

/* The place of the n-th set bit from `base` on, downwards for negative n; 0xffffffff if there is none. */
static uint32_t nth_set(uint32_t mask, uint32_t base, int32_t n)
{
    if (n == 0)
        return mask >> (base & 31) & 1 ? base : ~0u;
    int32_t step = n < 0 ? -1 : 1, found = 0;
    for (int32_t k = (int32_t)base; k >= 0 && k < 32; k += step) {
        if ((mask >> k & 1) && ++found == n * step)
            return (uint32_t)k;
    }
    return ~0u;
}

static uint64_t bits_of(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    uint32_t bits = 8 * px_type_bytes((enum px_type)i->type[0]);
    uint64_t a = px_get(w, &i->o[1], lane), b = i->n_operands > 2 ? px_get(w, &i->o[2], lane) : 0;
    uint64_t c = i->n_operands > 3 ? px_get(w, &i->o[3], lane) : 0, e = i->n_operands > 4 ? px_get(w, &i->o[4], lane) : 0;
    uint64_t mask = bits == 64 ? ~0ull : (1ull << bits) - 1, r = 0;
    switch (i->op) {
    case PX_POPC: return (uint64_t)__builtin_popcountll(a & mask);
    case PX_CLZ: return a & mask ? (uint64_t)__builtin_clzll(a & mask) - (64 - bits) : bits;
    case PX_BREV:
        for (uint32_t k = 0; k < bits; k++)
            r |= (a >> k & 1) << (bits - 1 - k);
        return r;
    case PX_BFIND:
        a = is_signed(i->type[0]) && a >> (bits - 1) & 1 ? ~a & mask : a & mask;
        if (a == 0)
            return 0xffffffffu;
        r = 63 - (uint64_t)__builtin_clzll(a);
        return px_has(i, PX_M_SHIFTAMT) ? bits - 1 - r : r;
    case PX_BFE: return field_extract(i, a & mask, (uint32_t)b, (uint32_t)c);
    case PX_BFI: return field_insert(bits, a, b, (uint32_t)c, (uint32_t)e);
    case PX_BMSK: {
        uint64_t from = px_has(i, PX_M_WRAP) ? a & 31 : a, n = px_has(i, PX_M_WRAP) ? b & 31 : b > 32 ? 32 : b;
        for (uint64_t k = 0; k < n && from + k < 32; k++)
            r |= 1ull << (from + k);
        return r;
    }
    case PX_SZEXT: {
        uint32_t n = px_has(i, PX_M_WRAP) ? (uint32_t)b & 31 : (uint32_t)b > 32 ? 32 : (uint32_t)b;
        return n == 0 ? 0 : field_extract(i, a, 0, n);
    }
    case PX_FNS: return nth_set((uint32_t)a, (uint32_t)b, (int32_t)(uint32_t)c);
    case PX_DP4A: case PX_DP2A: return dot(i, (uint32_t)a, (uint32_t)b, (uint32_t)c);
    case PX_CNOT: return (a & mask) == 0;
    case PX_SHF: return funnel(i, (uint32_t)a, (uint32_t)b, (uint32_t)c);
    default: px_trap(w->cta->m, "'%s' is missing", px_op_name((enum px_op)i->op));
    }
}

void px_bits(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    if (i->op == PX_LOP3 || i->op == PX_PRMT) {
        PX_EACH(l, lanes)
        {
            uint32_t a = px_get32(w, &i->o[1], l), b = px_get32(w, &i->o[2], l), c = px_get32(w, &i->o[3], l);
            px_set(w, &i->o[0], l, i->op == PX_LOP3 ? logic3(a, b, c, px_get32(w, &i->o[4], l)) : permute(i, a, b, c));
        }
        return;
    }
    PX_EACH(l, lanes)
    px_set(w, &i->o[0], l, bits_of(w, i, l));
}

/* ---- Moves ---- */

/* Between a register and a vector of parts. */
static void move_parts(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t bytes = px_type_bytes((enum px_type)i->type[0]), n = i->n_operands - 1;
    bool     out = i->group[0] > 1;
    uint32_t each = 8 * bytes / n;
    if (bytes == 16)
        px_trap(w->cta->m, "mov.b128 is missing");
    PX_EACH(l, lanes)
    {
        uint64_t v = 0;
        if (out) {
            v = px_get(w, &i->o[n], l);
            for (uint32_t k = 0; k < n; k++)
                px_set(w, &i->o[k], l, v >> (k * each) & (each == 64 ? ~0ull : (1ull << each) - 1));
        } else {
            for (uint32_t k = 0; k < n; k++)
                v |= (px_get(w, &i->o[1 + k], l) & ((1ull << each) - 1)) << (k * each);
            px_set(w, &i->o[0], l, v);
        }
    }
}

void px_move(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    if (i->group[0] > 1 || i->group[1] > 1) {
        move_parts(w, i, lanes);
    } else if (i->type[0] == PX_PRED) {
        px_set_pred(w, &i->o[0], lanes, px_pred(w, &i->o[1]));
    } else if (i->o[1].kind == PX_FRAME_ADDRESS) {
        px_trap(w->cta->m, "the address of a call's parameter is not supported");
    } else if (i->o[0].width == 8 && i->o[1].width == 8) {
        uint64_t       *d = px_r64(w, &i->o[0]);
        const uint64_t *a = px_r64(w, &i->o[1]);
        EACH32(a[l]);
    } else if (i->o[0].width == 4 && i->o[1].width == 4) {
        uint32_t       *d = px_r32(w, &i->o[0]);
        const uint32_t *a = px_r32(w, &i->o[1]);
        EACH32(a[l]);
    } else {
        PX_EACH(l, lanes)
        px_set(w, &i->o[0], l, px_get(w, &i->o[1], l));
    }
}

/* ---- Comparisons ---- */

static bool compare_integers(uint8_t how, int64_t a, int64_t b, bool with_sign)
{
    bool less = with_sign ? a < b : (uint64_t)a < (uint64_t)b;
    switch (how) {
    case PX_EQ: return a == b;
    case PX_NE: return a != b;
    case PX_LT: case PX_LO: return less;
    case PX_LE: case PX_LS: return less || a == b;
    case PX_GT: case PX_HI: return !less && a != b;
    default: return !less; /* ge, hs */
    }
}

static bool compare_floats(uint8_t how, double a, double b)
{
    bool none = a != a || b != b;
    switch (how) {
    case PX_EQ: return a == b;
    case PX_NE: return !none && a != b;
    case PX_LT: return a < b;
    case PX_LE: return a <= b;
    case PX_GT: return a > b;
    case PX_GE: return a >= b;
    case PX_EQU: return none || a == b;
    case PX_NEU: return none || a != b;
    case PX_LTU: return none || a < b;
    case PX_LEU: return none || a <= b;
    case PX_GTU: return none || a > b;
    case PX_GEU: return none || a >= b;
    case PX_NUM: return !none;
    default: return none;
    }
}

double px_float_value(struct px_machine *m, uint8_t type, uint64_t bits, bool ftz);

static bool compare_lane(struct px_warp *w, const struct px_instruction *i, uint8_t t, const struct px_operand *a,
                         const struct px_operand *b, uint32_t lane)
{
    if (is_float(t))
        return compare_floats(i->compare, px_float_value(w->cta->m, t, px_get(w, a, lane), i->ftz),
                              px_float_value(w->cta->m, t, px_get(w, b, lane), i->ftz));
    return compare_integers(i->compare, source(w, a, lane, t), source(w, b, lane, t), is_signed(t));
}

/* Lane bits of the comparison, for 32-bit integers and floats in one pass over all lanes. */
static uint32_t compare_all(struct px_warp *w, const struct px_instruction *i, uint8_t t, const struct px_operand *oa,
                            const struct px_operand *ob, uint32_t lanes)
{
    uint32_t r = 0;
    if (oa->width == 4 && ob->width == 4 && (t == PX_S32 || t == PX_U32 || t == PX_B32)) {
        const uint32_t *a = px_r32(w, oa), *b = px_r32(w, ob);
        for (uint32_t l = 0; l < PX_LANES; l++) {
            bool less = t == PX_S32 ? (int32_t)a[l] < (int32_t)b[l] : a[l] < b[l], equal = a[l] == b[l], v;
            switch (i->compare) {
            case PX_EQ: v = equal; break;
            case PX_NE: v = !equal; break;
            case PX_LT: case PX_LO: v = less; break;
            case PX_LE: case PX_LS: v = less || equal; break;
            case PX_GT: case PX_HI: v = !less && !equal; break;
            default: v = !less;
            }
            r |= (uint32_t)v << l;
        }
        return r;
    }
    PX_EACH(l, lanes)
    r |= (uint32_t)compare_lane(w, i, t, oa, ob, l) << l;
    return r;
}

static uint32_t join(uint8_t how, uint32_t a, uint32_t b)
{
    return how == PX_J_AND ? a & b : how == PX_J_OR ? a | b : how == PX_J_XOR ? a ^ b : a;
}

static void set_predicates(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t first = i->dual ? 2 : 1;
    uint32_t r = compare_all(w, i, i->type[0], &i->o[first], &i->o[first + 1], lanes), c = 0;
    if (i->n_operands > first + 2)
        c = px_pred(w, &i->o[first + 2]);
    px_set_pred(w, &i->o[0], lanes, join(i->join, r, c));
    if (i->dual)
        px_set_pred(w, &i->o[1], lanes, join(i->join, ~r, c));
}

static void select(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t p = px_pred(w, &i->o[3]);
    if (i->o[0].width == 4 && i->o[1].width == 4 && i->o[2].width == 4) {
        uint32_t       *d = px_r32(w, &i->o[0]);
        const uint32_t *a = px_r32(w, &i->o[1]), *b = px_r32(w, &i->o[2]);
        EACH32(p >> l & 1 ? a[l] : b[l]);
        return;
    }
    PX_EACH(l, lanes)
    px_set(w, &i->o[0], l, px_get(w, &i->o[p >> l & 1 ? 1 : 2], l));
}

void px_compare_op(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    if (i->op == PX_SETP) {
        set_predicates(w, i, lanes);
    } else if (i->op == PX_SELP) {
        select(w, i, lanes);
    } else if (i->op == PX_SLCT) {
        PX_EACH(l, lanes)
        {
            uint64_t c = px_get(w, &i->o[3], l);
            bool     first = i->type[1] == PX_F32 ? px_float_value(w->cta->m, PX_F32, c, i->ftz) >= 0 : (int32_t)(uint32_t)c >= 0;
            px_set(w, &i->o[0], l, px_get(w, &i->o[first ? 1 : 2], l));
        }
    } else {
        uint32_t r = compare_all(w, i, i->type[1], &i->o[1], &i->o[2], lanes);
        if (i->n_operands > 3)
            r = join(i->join, r, px_pred(w, &i->o[3]));
        uint64_t yes = i->type[0] == PX_F32 ? 0x3f800000u : 0xffffffffu;
        PX_EACH(l, lanes)
        px_set(w, &i->o[0], l, r >> l & 1 ? yes : 0);
    }
}
