/* Floats of any width by their exponent and mantissa bits. */
#include "ptxsim/sim_number.h"

#include <math.h>
#include <string.h>

struct format {
    int  exponent, mantissa, bias;
    bool has_inf, has_nan, is_signed;
};

static struct format format_of(uint8_t type)
{
    switch (type) {
    case PX_F16: return (struct format){5, 10, 15, true, true, true};
    case PX_BF16: return (struct format){8, 7, 127, true, true, true};
    case PX_TF32: return (struct format){8, 10, 127, true, true, true};
    case PX_F32: return (struct format){8, 23, 127, true, true, true};
    case PX_E5M2: return (struct format){5, 2, 15, true, true, true};
    case PX_E4M3: return (struct format){4, 3, 7, false, true, true};
    case PX_UE4M3: return (struct format){4, 3, 7, false, true, false};
    case PX_E3M2: return (struct format){3, 2, 3, false, false, true};
    case PX_E2M3: return (struct format){2, 3, 1, false, false, true};
    case PX_E2M1: return (struct format){2, 1, 1, false, false, true};
    default: return (struct format){8, 0, 127, false, true, false}; /* UE8M0 */
    }
}

double px_decode_float(uint8_t type, uint64_t bits)
{
    double v;
    float  f;
    if (type == PX_F64) {
        memcpy(&v, &bits, 8);
        return v;
    }
    if (type == PX_TF32)
        bits &= 0xffffe000u;
    if (type == PX_BF16)
        bits <<= 16;
    if (type == PX_F32 || type == PX_TF32 || type == PX_BF16) {
        uint32_t b = (uint32_t)bits;
        memcpy(&f, &b, 4);
        return f;
    }
    struct format t = format_of(type);
    int           e = (int)(bits >> t.mantissa & ((1u << t.exponent) - 1)), m = (int)(bits & ((1u << t.mantissa) - 1));
    if (type == PX_UE8M0)
        return e == 255 ? NAN : ldexp(1, e - 127);
    bool top = e == (1 << t.exponent) - 1;
    if (t.has_inf && top)
        v = m ? NAN : INFINITY;
    else if (t.has_nan && top && m == (1 << t.mantissa) - 1)
        v = NAN;
    else
        v = e ? ldexp(m + (1 << t.mantissa), e - t.bias - t.mantissa) : ldexp(m, 1 - t.bias - t.mantissa);
    return t.is_signed && (bits >> (t.exponent + t.mantissa) & 1) ? -v : v;
}

/* The largest finite bits, without sign. */
static uint64_t largest(struct format t)
{
    uint64_t all = (1ull << (t.exponent + t.mantissa)) - 1;
    if (t.has_inf)
        return all - (1ull << t.mantissa);
    return t.has_nan ? all - 1 : all;
}

static uint64_t nan_bits(uint8_t type, struct format t)
{
    if (type == PX_F32 || type == PX_TF32)
        return 0x7fffffff;
    return t.has_nan ? (1ull << (t.exponent + t.mantissa)) - 1 : largest(t);
}

static bool rounds_up(double kept, double rest, enum px_round how, bool negative)
{
    switch (how) {
    case PX_TO_NEAREST: return rest > 0.5 || (rest == 0.5 && fmod(kept, 2) != 0);
    case PX_AWAY: return rest >= 0.5;
    case PX_DOWN: return negative && rest > 0;
    case PX_UP: return !negative && rest > 0;
    default: return false;
    }
}

uint64_t px_encode_float(uint8_t type, double v, enum px_round how, bool finite)
{
    uint64_t bits;
    if (type == PX_F64) {
        memcpy(&bits, &v, 8);
        return bits;
    }
    if (type == PX_F32 && how == PX_TO_NEAREST && v == v && !finite) {
        float    f = (float)v;
        uint32_t b;
        memcpy(&b, &f, 4);
        return b;
    }
    struct format t = format_of(type);
    bool          negative = signbit(v) != 0;
    double        a = fabs(v);
    if (v != v)
        return nan_bits(type, t);
    if (type == PX_UE8M0) {
        if (a < ldexp(1, -127))
            return 0;
        if (isinf(a))
            return 254;
        int    e;
        double m = frexp(a, &e); /* a = 2m * 2^(e-1) */
        uint64_t k = (uint64_t)(e - 1 + 127) + (m > 0.5 && (how == PX_UP || (how == PX_TO_NEAREST && m >= 0.75)));
        return k > 254 ? 254 : k;
    }
    uint64_t sign = t.is_signed && negative ? 1ull << (t.exponent + t.mantissa) : 0;
    if (isinf(a))
        return (t.has_inf && !finite ? largest(t) + 1 : largest(t)) | sign;
    if (a == 0)
        bits = 0;
    else {
        int e = ilogb(a);
        e = (e < 1 - t.bias ? 1 - t.bias : e) - t.mantissa; /* of a unit in the last place */
        double scaled = ldexp(a, -e), kept = floor(scaled);
        kept += rounds_up(kept, scaled - kept, how, negative) ? 1 : 0;
        bits = kept < ldexp(1, t.mantissa) ? (uint64_t)kept
                                           : ((uint64_t)(e + t.mantissa + t.bias) << t.mantissa) + (uint64_t)kept - (1ull << t.mantissa);
    }
    if (bits > largest(t)) {
        bool stays = finite || how == PX_TO_ZERO || (how == PX_DOWN && !negative) || (how == PX_UP && negative);
        bits = stays ? largest(t) : t.has_inf ? largest(t) + 1 : nan_bits(type, t);
    }
    if (type == PX_TF32)
        return (bits << 13) | (sign << 13);
    return bits | sign;
}

uint64_t px_encode_sum(uint8_t type, double a, double b, enum px_round how, bool finite)
{
    double s = a + b;
    if (isfinite(s)) {
        /* What the sum leaves out is kept as an odd last bit, which every narrower rounding then sees. */
        double   t = s - a, rest = (a - (s - t)) + (b - t);
        uint64_t bits;
        memcpy(&bits, &s, 8);
        if (rest != 0 && (bits & 1) == 0) {
            bits = (rest > 0) == (s > 0) ? bits + 1 : bits - 1;
            memcpy(&s, &bits, 8);
        }
    }
    return px_encode_float(type, s, how, finite);
}

uint8_t px_element_type(uint8_t type, uint32_t *n, uint32_t *bits)
{
    *n = 2;
    *bits = 8;
    switch (type) {
    case PX_F16X2: *bits = 16; return PX_F16;
    case PX_BF16X2: *bits = 16; return PX_BF16;
    case PX_E4M3X2: return PX_E4M3;
    case PX_E5M2X2: return PX_E5M2;
    case PX_E2M3X2: return PX_E2M3;
    case PX_E3M2X2: return PX_E3M2;
    case PX_UE8M0X2: return PX_UE8M0;
    case PX_E2M1X2: *bits = 4; return PX_E2M1;
    default: break;
    }
    *n = 1;
    *bits = 8 * px_type_bytes((enum px_type)type);
    return type;
}

enum px_round px_round_of(const struct px_instruction *i)
{
    switch (i->rounding) {
    case PX_M_RZ: case PX_M_RZI: return PX_TO_ZERO;
    case PX_M_RM: case PX_M_RMI: return PX_DOWN;
    case PX_M_RP: case PX_M_RPI: return PX_UP;
    case PX_M_RNA: return PX_AWAY;
    default: return PX_TO_NEAREST;
    }
}
