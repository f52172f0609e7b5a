/* cvt: between integers, floats and packed narrow floats. */
#include "ptxsim/sim.h"
#include "ptxsim/sim_number.h"

#include <math.h>

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

static uint64_t low_bytes(uint64_t v, uint32_t bytes)
{
    return bytes == 8 ? v : v & ((1ull << (8 * bytes)) - 1);
}

static uint64_t largest_of(uint8_t t)
{
    uint32_t bits = 8 * px_type_bytes((enum px_type)t);
    return is_signed(t) ? (1ull << (bits - 1)) - 1 : bits == 64 ? ~0ull : (1ull << bits) - 1;
}

static uint64_t between_integers(const struct px_instruction *i, uint8_t to, uint8_t from, uint64_t v)
{
    uint32_t bytes = px_type_bytes((enum px_type)from), out = px_type_bytes((enum px_type)to);
    bool     negative = is_signed(from) && sign_extend(v, bytes) < 0;
    uint64_t x = is_signed(from) ? (uint64_t)sign_extend(v, bytes) : low_bytes(v, bytes);
    if (i->sat) {
        uint64_t most = largest_of(to), least = is_signed(to) ? ~most : 0;
        if (!negative && x > most)
            x = most;
        else if (negative && (!is_signed(to) || (int64_t)x < (int64_t)least))
            x = least;
    }
    x = low_bytes(x, out);
    return is_signed(to) ? (uint64_t)sign_extend(x, out) : x;
}

static uint64_t from_integer(const struct px_instruction *i, uint8_t to, uint8_t from, uint64_t v)
{
    uint32_t      bytes = px_type_bytes((enum px_type)from);
    enum px_round how = px_round_of(i);
    /* Exact as the sum of two halves, rounded once. */
    if (is_signed(from)) {
        int64_t x = sign_extend(v, bytes);
        return to == PX_F64 ? px_encode_float(to, (double)x, how, false)
                            : px_encode_sum(to, (double)(x >> 32) * 0x1p32, (double)(x & 0xffffffff), how, false);
    }
    uint64_t x = low_bytes(v, bytes);
    return to == PX_F64 ? px_encode_float(to, (double)x, how, false)
                        : px_encode_sum(to, (double)(x >> 32) * 0x1p32, (double)(x & 0xffffffff), how, false);
}

static double to_integral(double v, const struct px_instruction *i)
{
    switch (i->rounding) {
    case PX_M_RNI: return nearbyint(v);
    case PX_M_RZI: return trunc(v);
    case PX_M_RMI: return floor(v);
    case PX_M_RPI: return ceil(v);
    default: return v;
    }
}

static uint64_t to_integer(const struct px_instruction *i, uint8_t to, uint8_t from, double v)
{
    uint32_t bits = 8 * px_type_bytes((enum px_type)to);
    if (v != v)
        return from != PX_F64 && bits != 64 ? 0 : 1ull << (bits - 1);
    v = to_integral(v, i);
    double most = ldexp(1, (int)(is_signed(to) ? bits - 1 : bits)), least = is_signed(to) ? -most : 0;
    if (v >= most)
        return largest_of(to);
    if (v <= least)
        return is_signed(to) ? ~largest_of(to) : 0;
    return v < 0 ? (uint64_t)(int64_t)v : (uint64_t)v;
}

static double flushed(double v, bool ftz)
{
    return ftz && fabs(v) < 0x1p-126 ? copysign(0, v) : v;
}

/* A value of a single float type into one of another, with the flags of the instruction. */
static uint64_t between_floats(const struct px_instruction *i, uint8_t to, uint8_t from, double v)
{
    if (i->ftz && (from == PX_F32 || to == PX_F32))
        v = from == PX_F32 ? flushed(v, true) : v;
    v = i->rounding == PX_M_RNI || i->rounding == PX_M_RZI || i->rounding == PX_M_RMI || i->rounding == PX_M_RPI ? to_integral(v, i) : v;
    if (px_has(i, PX_M_RELU) && v < 0)
        v = 0;
    if (i->sat)
        v = v > 0 ? v < 1 ? v : 1 : 0;
    bool     narrow = to >= PX_E4M3 || px_has(i, PX_M_SATFINITE);
    uint64_t r = px_encode_float(to, v, px_round_of(i), narrow && px_has(i, PX_M_SATFINITE));
    return i->ftz && to == PX_F32 && (r & 0x7f800000u) == 0 ? r & 0x80000000u : r;
}

/* Two values to a packed type: from two registers, the first into the upper half, or from a pair. */
static uint64_t packed(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    uint32_t n, bits, from_n, from_bits;
    uint8_t  to = px_element_type(i->type[0], &n, &bits), from = px_element_type(i->type[1], &from_n, &from_bits);
    uint64_t r = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint64_t v = from_n == 1 ? px_get(w, &i->o[k == 0 ? 2 : 1], lane)
                                 : px_get(w, &i->o[1], lane) >> (k * from_bits) & ((1ull << from_bits) - 1);
        r |= between_floats(i, to, from, px_decode_float(from, v)) << (k * bits);
    }
    return r;
}

static uint64_t convert(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    uint8_t  to = i->type[0], from = i->type[1];
    uint64_t v = px_get(w, &i->o[1], lane);
    if (!is_float(to) && !is_float(from))
        return between_integers(i, to, from, v);
    if (!is_float(from))
        return from_integer(i, to, from, v);
    double x = flushed(px_decode_float(from, v), i->ftz && from == PX_F32);
    if (!is_float(to))
        return to_integer(i, to, from, x);
    return between_floats(i, to, from, x);
}

void px_convert(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t n, bits, from_n;
    (void)px_element_type(i->type[0], &n, &bits);
    (void)px_element_type(i->type[1], &from_n, &bits);
    if (n == 2 && from_n == 1 && i->n_operands != 3)
        px_trap(w->cta->m, "this cvt takes two operands");
    if (n == 1 && from_n == 2)
        px_trap(w->cta->m, "a packed value cannot become one value");
    PX_EACH(l, lanes)
    px_set(w, &i->o[0], l, n == 2 ? packed(w, i, l) : convert(w, i, l));
}
