/* Floating-point arithmetic. fp32 results that are NaN have the one pattern 0x7fffffff, as on the device. Approximations
 * are computed in double and rounded once: better than what the device promises, never worse. */
#include "ptxsim/sim.h"
#include "ptxsim/sim_number.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

static float f32_of(uint32_t b)
{
    float f;
    memcpy(&f, &b, 4);
    return f;
}

static uint32_t f32_bits(float f)
{
    uint32_t b;
    memcpy(&b, &f, 4);
    return f != f ? 0x7fffffff : b;
}

static double f64_of(uint64_t b)
{
    double d;
    memcpy(&d, &b, 8);
    return d;
}

static uint64_t f64_bits(double d)
{
    uint64_t b;
    memcpy(&b, &d, 8);
    return b;
}

static uint32_t flush32(uint32_t b)
{
    return (b & 0x7f800000u) == 0 ? b & 0x80000000u : b;
}

double px_float_value(struct px_machine *m, uint8_t type, uint64_t bits, bool ftz);
double px_float_value(struct px_machine *m, uint8_t type, uint64_t bits, bool ftz)
{
    if (type == PX_F32 && ftz)
        bits = flush32((uint32_t)bits);
    if (px_type_bytes((enum px_type)type) == 0)
        px_trap(m, "no value of this type");
    return px_decode_float(type, bits);
}

/* ---- One lane of fp32 and fp64 ---- */

static void direction(enum px_round how)
{
    (void)fesetround(how == PX_TO_ZERO ? FE_TOWARDZERO : how == PX_DOWN ? FE_DOWNWARD : how == PX_UP ? FE_UPWARD : FE_TONEAREST);
}

/* Kept apart from other code, and volatile, so that the rounding direction holds. */
static __attribute__((noinline)) float f32_directed(uint16_t op, float a, float b, float c, enum px_round how)
{
    volatile float x = a, y = b, z = c, r;
    direction(how);
    switch (op) {
    case PX_ADD: r = x + y; break;
    case PX_SUB: r = x - y; break;
    case PX_MUL: r = x * y; break;
    case PX_DIV: r = x / y; break;
    case PX_SQRT: r = sqrtf(x); break;
    case PX_RCP: r = 1 / x; break;
    default: r = fmaf(x, y, z); break;
    }
    direction(PX_TO_NEAREST);
    return r;
}

static __attribute__((noinline)) double f64_directed(uint16_t op, double a, double b, double c, enum px_round how)
{
    volatile double x = a, y = b, z = c, r;
    direction(how);
    switch (op) {
    case PX_ADD: r = x + y; break;
    case PX_SUB: r = x - y; break;
    case PX_MUL: r = x * y; break;
    case PX_DIV: r = x / y; break;
    case PX_SQRT: r = sqrt(x); break;
    case PX_RCP: r = 1 / x; break;
    default: r = fma(x, y, z); break;
    }
    direction(PX_TO_NEAREST);
    return r;
}

/* The one that is not NaN; -0 is less than +0. */
static double least(double a, double b)
{
    if (a != a || b != b)
        return a != a ? b : a;
    return a < b || (a == b && signbit(a)) ? a : b;
}

static double most(double a, double b)
{
    if (a != a || b != b)
        return a != a ? b : a;
    return a > b || (a == b && !signbit(a)) ? a : b;
}

static double extreme(const struct px_instruction *i, double a, double b)
{
    if (px_has(i, PX_M_NAN) && (a != a || b != b))
        return NAN;
    return i->op == PX_MIN ? least(a, b) : most(a, b);
}

static uint32_t f32_lane(struct px_machine *m, const struct px_instruction *i, uint32_t a, uint32_t b, uint32_t c)
{
    enum px_round how = px_round_of(i);
    uint32_t      r;
    if (i->ftz) {
        a = flush32(a);
        b = flush32(b);
        c = flush32(c);
    }
    float x = f32_of(a), y = f32_of(b), z = f32_of(c);
    switch (i->op) {
    case PX_ADD: r = f32_bits(how ? f32_directed(PX_ADD, x, y, 0, how) : x + y); break;
    case PX_SUB: r = f32_bits(how ? f32_directed(PX_SUB, x, y, 0, how) : x - y); break;
    case PX_MUL: r = f32_bits(how ? f32_directed(PX_MUL, x, y, 0, how) : x * y); break;
    case PX_DIV: r = f32_bits(how ? f32_directed(PX_DIV, x, y, 0, how) : x / y); break;
    case PX_FMA: case PX_MAD: r = f32_bits(how ? f32_directed(PX_FMA, x, y, z, how) : fmaf(x, y, z)); break;
    case PX_ABS: return x != x ? 0x7fffffff : a & 0x7fffffffu;
    case PX_NEG: return x != x ? 0x7fffffff : a ^ 0x80000000u;
    case PX_MIN: case PX_MAX:
        r = f32_bits((float)extreme(i, x, y));
        if (i->n_operands > 3)
            r = f32_bits((float)extreme(i, f32_of(r), z));
        break;
    default: px_trap(m, "an f32 form of '%s' is missing", px_op_name((enum px_op)i->op));
    }
    if (i->ftz)
        r = flush32(r);
    if (i->sat) {
        float v = f32_of(r);
        r = v > 0 ? v < 1 ? r : 0x3f800000u : 0; /* NaN becomes +0 */
    }
    return r;
}

static uint64_t f64_lane(struct px_machine *m, const struct px_instruction *i, uint64_t a, uint64_t b, uint64_t c)
{
    enum px_round how = px_round_of(i);
    double        x = f64_of(a), y = f64_of(b), z = f64_of(c);
    switch (i->op) {
    case PX_ADD: return f64_bits(how ? f64_directed(PX_ADD, x, y, 0, how) : x + y);
    case PX_SUB: return f64_bits(how ? f64_directed(PX_SUB, x, y, 0, how) : x - y);
    case PX_MUL: return f64_bits(how ? f64_directed(PX_MUL, x, y, 0, how) : x * y);
    case PX_DIV: return f64_bits(how ? f64_directed(PX_DIV, x, y, 0, how) : x / y);
    case PX_FMA: case PX_MAD: return f64_bits(how ? f64_directed(PX_FMA, x, y, z, how) : fma(x, y, z));
    case PX_ABS: return a & ~(1ull << 63);
    case PX_NEG: return a ^ 1ull << 63;
    case PX_MIN: case PX_MAX: return f64_bits(extreme(i, x, y));
    default: px_trap(m, "an f64 form of '%s' is missing", px_op_name((enum px_op)i->op));
    }
}

/* ---- Narrow types ---- */

static uint64_t narrow_value(struct px_machine *m, const struct px_instruction *i, uint8_t t, double x, double y, double z)
{
    uint64_t r;
    switch (i->op) {
    case PX_ADD: r = px_encode_sum(t, x, y, PX_TO_NEAREST, false); break;
    case PX_SUB: r = px_encode_sum(t, x, -y, PX_TO_NEAREST, false); break;
    case PX_MUL: r = px_encode_float(t, x * y, PX_TO_NEAREST, false); break; /* exact in double */
    case PX_FMA: r = px_encode_sum(t, x * y, z, PX_TO_NEAREST, false); break;
    case PX_MIN: case PX_MAX: r = px_encode_float(t, extreme(i, x, y), PX_TO_NEAREST, false); break;
    case PX_ABS: r = px_encode_float(t, fabs(x), PX_TO_NEAREST, false); break;
    case PX_NEG: r = px_encode_float(t, -x, PX_TO_NEAREST, false); break;
    default: px_trap(m, "a 16-bit form of '%s' is missing", px_op_name((enum px_op)i->op));
    }
    double v = px_decode_float(t, r);
    if (i->sat)
        r = v > 0 ? v < 1 ? r : px_encode_float(t, 1, PX_TO_NEAREST, false) : 0;
    if (px_has(i, PX_M_RELU) && v < 0)
        r = 0;
    return r;
}

static void narrow(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t n, bits;
    uint8_t  t = px_element_type(i->type[0], &n, &bits);
    PX_EACH(l, lanes)
    {
        uint64_t r = 0;
        for (uint32_t k = 0; k < n; k++) {
            double v[3] = {0, 0, 0};
            for (uint32_t s = 1; s < i->n_operands && s < 4; s++) {
                v[s - 1] = px_decode_float(t, px_get(w, &i->o[s], l) >> (k * bits) & 0xffff);
                if (i->ftz && t == PX_F16 && fabs(v[s - 1]) < 0x1p-14)
                    v[s - 1] = copysign(0, v[s - 1]);
            }
            uint64_t one = narrow_value(w->cta->m, i, t, v[0], v[1], v[2]);
            if (i->ftz && t == PX_F16 && (one & 0x7c00) == 0)
                one &= 0x8000;
            r |= one << (k * bits);
        }
        px_set(w, &i->o[0], l, r);
    }
}

/* Products of bf16 pairs, by far the most frequent: exact in fp32 while the result is a normal number. False where it is not. */
static bool multiply_bf16x2(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t        r[PX_LANES], odd = 0;
    uint32_t       *d = px_r32(w, &i->o[0]);
    const uint32_t *a = px_r32(w, &i->o[1]), *b = px_r32(w, &i->o[2]);
    for (int l = 0; l < PX_LANES; l++) {
        uint32_t low = f32_bits(f32_of(a[l] << 16) * f32_of(b[l] << 16));
        uint32_t high = f32_bits(f32_of(a[l] & 0xffff0000u) * f32_of(b[l] & 0xffff0000u));
        uint32_t el = low & 0x7f800000u, eh = high & 0x7f800000u;
        bool     zero_l = (a[l] & 0x7fff) == 0 || (b[l] & 0x7fff) == 0, zero_h = (a[l] & 0x7fff0000u) == 0 || (b[l] & 0x7fff0000u) == 0;
        odd |= (uint32_t)((el - 0x00800000u >= 0x7e800000u && !zero_l) | (eh - 0x00800000u >= 0x7e800000u && !zero_h) |
                          (el == 0x7f800000u) | (eh == 0x7f800000u));
        low = (low + 0x7fff + (low >> 16 & 1)) >> 16;
        high = (high + 0x7fff + (high >> 16 & 1)) & 0xffff0000u;
        r[l] = low | high;
    }
    if (odd)
        return false;
    for (int l = 0; l < PX_LANES; l++)
        d[l] = lanes >> l & 1 ? r[l] : d[l];
    return true;
}

/* ---- Arithmetic ---- */

/* All operands plain fp32 registers, nearest, no flags: in one pass. */
static bool fast(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    if (i->ftz || i->sat || (i->rounding != PX_NO_ROUNDING && i->rounding != PX_M_RN))
        return false;
    uint32_t       *d = px_r32(w, &i->o[0]);
    const uint32_t *a = px_r32(w, &i->o[1]), *b = px_r32(w, &i->o[2]);
    if (i->op != PX_ADD && i->op != PX_SUB && i->op != PX_MUL)
        return false;
    for (int l = 0; l < PX_LANES; l++) {
        float    x = f32_of(a[l]), y = f32_of(b[l]), v = i->op == PX_ADD ? x + y : i->op == PX_SUB ? x - y : x * y;
        uint32_t bits = f32_bits(v);
        d[l] = lanes >> l & 1 ? bits : d[l];
    }
    return true;
}

void px_float(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    struct px_machine *m = w->cta->m;
    if (i->type[0] == PX_F32) {
        if (i->n_operands == 3 && fast(w, i, lanes))
            return;
        PX_EACH(l, lanes)
        px_set(w, &i->o[0], l, f32_lane(m, i, px_get32(w, &i->o[1], l), i->n_operands > 2 ? px_get32(w, &i->o[2], l) : 0,
                                        i->n_operands > 3 ? px_get32(w, &i->o[3], l) : 0));
    } else if (i->type[0] == PX_F64) {
        PX_EACH(l, lanes)
        px_set(w, &i->o[0], l, f64_lane(m, i, px_get(w, &i->o[1], l), i->n_operands > 2 ? px_get(w, &i->o[2], l) : 0,
                                        i->n_operands > 3 ? px_get(w, &i->o[3], l) : 0));
    } else if (i->type[0] <= PX_BF16X2) {
        if (i->op == PX_MUL && i->type[0] == PX_BF16X2 && !i->sat && multiply_bf16x2(w, i, lanes))
            return;
        narrow(w, i, lanes);
    } else {
        px_trap(m, "'%s' on this type is missing", px_op_name((enum px_op)i->op));
    }
}

/* ---- Functions ---- */

static double function(struct px_machine *m, const struct px_instruction *i, double x)
{
    switch (i->op) {
    case PX_RCP: return 1 / x;
    case PX_SQRT: return sqrt(x);
    case PX_RSQRT: return 1 / sqrt(x);
    case PX_EX2: return exp2(x);
    case PX_LG2: return log2(x);
    case PX_SIN: return sin(x);
    case PX_COS: return cos(x);
    case PX_TANH: return tanh(x);
    default: px_trap(m, "'%s' is missing", px_op_name((enum px_op)i->op));
    }
}

static uint64_t function64(struct px_machine *m, const struct px_instruction *i, uint64_t a)
{
    enum px_round how = px_round_of(i);
    if (!px_has(i, PX_M_APPROX)) {
        if (how)
            return f64_bits(f64_directed(i->op, f64_of(a), 0, 0, how));
        return f64_bits(function(m, i, f64_of(a)));
    }
    /* The gross approximation: only the upper words of operand and result; subnormals count as zero. */
    a &= ~0xffffffffull;
    if ((a >> 52 & 0x7ff) == 0)
        a &= 1ull << 63;
    uint64_t r = f64_bits(function(m, i, f64_of(a))) & ~0xffffffffull;
    return (r >> 52 & 0x7ff) == 0 ? r & 1ull << 63 : r;
}

static uint32_t function32(struct px_machine *m, const struct px_instruction *i, uint32_t a)
{
    enum px_round how = px_round_of(i);
    if (i->ftz || (i->op == PX_SIN || i->op == PX_COS ? i->ftz : false))
        a = flush32(a);
    uint32_t r;
    if ((i->op == PX_SQRT || i->op == PX_RCP) && !px_has(i, PX_M_APPROX))
        r = f32_bits(f32_directed(i->op, f32_of(a), 0, 0, how));
    else
        r = f32_bits((float)function(m, i, f32_of(a)));
    return i->ftz ? flush32(r) : r;
}

static bool tested(const struct px_instruction *i, double v, bool subnormal)
{
    if (px_has(i, PX_M_FINITE))
        return isfinite(v) != 0;
    if (px_has(i, PX_M_INFINITE))
        return isinf(v) != 0;
    if (px_has(i, PX_M_NUMBER))
        return v == v;
    if (px_has(i, PX_M_NOTANUMBER))
        return v != v;
    if (px_has(i, PX_M_SUBNORMAL))
        return subnormal;
    return isfinite(v) && v != 0 && !subnormal;
}

void px_function(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    struct px_machine *m = w->cta->m;
    bool               wide = i->type[0] == PX_F64;
    PX_EACH(l, lanes)
    {
        uint64_t a = px_get(w, &i->o[1], l);
        if (i->op == PX_TESTP) {
            bool subnormal = wide ? (a >> 52 & 0x7ff) == 0 && (a << 12) != 0 : (a & 0x7f800000u) == 0 && (a & 0x7fffff) != 0;
            px_set(w, &i->o[0], l, tested(i, px_decode_float(i->type[0], a), subnormal));
        } else if (i->op == PX_COPYSIGN) {
            uint64_t sign = wide ? 1ull << 63 : 0x80000000u;
            px_set(w, &i->o[0], l, (a & sign) | (px_get(w, &i->o[2], l) & ~sign));
        } else if (wide) {
            px_set(w, &i->o[0], l, function64(m, i, a));
        } else if (i->type[0] == PX_F32) {
            px_set(w, &i->o[0], l, function32(m, i, (uint32_t)a));
        } else {
            uint32_t n, bits;
            uint8_t  t = px_element_type(i->type[0], &n, &bits);
            uint64_t r = 0;
            for (uint32_t k = 0; k < n; k++)
                r |= px_encode_float(t, function(m, i, px_decode_float(t, a >> (k * bits) & 0xffff)), PX_TO_NEAREST, false) << (k * bits);
            px_set(w, &i->o[0], l, r);
        }
    }
}
