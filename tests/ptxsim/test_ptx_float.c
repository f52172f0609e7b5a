/* Floating-point instructions and conversions of the PTX simulator: arithmetic against binary128, narrow formats against a
 * search through all their codes, approximations within the bounds that the ISA gives. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptxsim/ptx_rig.h"

enum { N = 2048 };

static uint64_t state = 362436069;
static int      n_tests, n_bad;

static uint32_t next(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static float of_bits(uint32_t b)
{
    float f;
    memcpy(&f, &b, 4);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t b;
    memcpy(&b, &f, 4);
    return b;
}

/* Edges, numbers near 1, and anything. */
static uint32_t hostile(void)
{
    static const uint32_t edges[] = {0, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000, 1, 0x807fffff,
                                     0x00800000, 0x7f7fffff, 0x3f800001, 0x4b800000, 0x43e00000, 0x40c00000, 0x3e800000};
    switch (next() % 4) {
    case 0: return edges[next() % 16];
    case 1: return 0x3c000000 + next() % 0x07000000 + (next() & 0x80000000);
    case 2: return (0x3f800000 + (next() % 64 << 17)) | (next() & 0x80000000); /* ties of short formats */
    default: return next();
    }
}

static uint32_t in[N][4], out[N];

static void run(const char *code)
{
    char body[1200];
    (void)snprintf(body, sizeof body,
                   "mad.lo.s32 %%r0, %%b, 32, %%t; mul.wide.u32 %%d20, %%r0, 16; add.s64 %%d20, %%in, %%d20;\n"
                   "ld.global.v4.u32 {%%r1,%%r2,%%r3,%%r4}, [%%d20]; mov.b32 %%f1, %%r1; mov.b32 %%f2, %%r2; mov.b32 %%f3, %%r3;\n%s\n"
                   "mul.wide.u32 %%d21, %%r0, 4; add.s64 %%d21, %%out, %%d21; st.global.u32 [%%d21], %%r10;\n", code);
    rig_good(&(struct rig){.body = body, .grid = {N / 32, 1, 1}, .in = in, .in_bytes = sizeof in, .out = out, .out_bytes = sizeof out});
    n_tests++;
}

static void wrong(const char *name, int k, uint32_t want)
{
    if (n_bad++ < 20)
        fprintf(stderr, "%s(%08x, %08x, %08x) = %08x, wanted %08x\n", name, in[k][0], in[k][1], in[k][2], out[k], want);
}

static void expect(const char *name, uint32_t (*want)(const uint32_t *x))
{
    for (int k = 0; k < N; k++) {
        uint32_t w = want(in[k]);
        if (out[k] != w)
            wrong(name, k, w);
    }
}

/* ---- fp32 ---- */

static uint32_t canonical(float f)
{
    return f != f ? 0x7fffffff : bits_of(f);
}

static uint32_t w_add(const uint32_t *x) { return canonical((float)((__float128)of_bits(x[0]) + of_bits(x[1]))); }
static uint32_t w_mul(const uint32_t *x) { return canonical((float)((__float128)of_bits(x[0]) * of_bits(x[1]))); }
static uint32_t w_div(const uint32_t *x) { return canonical((float)((__float128)of_bits(x[0]) / of_bits(x[1]))); }
static uint32_t w_fma(const uint32_t *x)
{
    /* binary128 holds the product exactly, and the sum unless the exponents are far apart, where only a tie could differ. */
    return canonical((float)((__float128)of_bits(x[0]) * of_bits(x[1]) + of_bits(x[2])));
}
static uint32_t w_ftz(const uint32_t *x)
{
    uint32_t a = (x[0] & 0x7f800000) ? x[0] : x[0] & 0x80000000, b = (x[1] & 0x7f800000) ? x[1] : x[1] & 0x80000000;
    uint32_t r = canonical((float)((__float128)of_bits(a) * of_bits(b)));
    return (r & 0x7f800000) ? r : r & 0x80000000;
}
static uint32_t w_sat(const uint32_t *x)
{
    float v = of_bits(x[0]) + of_bits(x[1]);
    return v != v || v <= 0 ? 0 : v >= 1 ? 0x3f800000 : bits_of(v);
}
static uint32_t w_min(const uint32_t *x)
{
    float a = of_bits(x[0]), b = of_bits(x[1]);
    if (a != a || b != b)
        return canonical(a != a ? b : a);
    return a == b ? (x[0] & 0x80000000 ? x[0] : x[1]) : a < b ? x[0] : x[1];
}
static uint32_t w_max_nan(const uint32_t *x)
{
    float a = of_bits(x[0]), b = of_bits(x[1]);
    if (a != a || b != b)
        return 0x7fffffff;
    return a == b ? (x[0] & 0x80000000 ? x[1] : x[0]) : a > b ? x[0] : x[1];
}
/* Rounded down: the largest float that is not above. */
static uint32_t w_rm(const uint32_t *x)
{
    float a = of_bits(x[0]), b = of_bits(x[1]), f = a + b, large = fabsf(a) > fabsf(b) ? a : b, small = large == a ? b : a;
    if (f != f)
        return 0x7fffffff;
    if (f == 0 && (x[0] ^ x[1]) >> 31)
        return 0x80000000; /* a sum that cancels is -0 when rounding down */
    /* f - large is exact in binary128, as both are near each other or large is not much larger than small. */
    if (isfinite(a) && isfinite(b) && (isinf(f) ? f > 0 : (__float128)f - large > small))
        f = nextafterf(f, -INFINITY);
    return bits_of(f);
}

static void arithmetic(void)
{
    run("add.f32 %f10, %f1, %f2; mov.b32 %r10, %f10;"), expect("add", w_add);
    run("mul.rn.f32 %f10, %f1, %f2; mov.b32 %r10, %f10;"), expect("mul", w_mul);
    run("div.rn.f32 %f10, %f1, %f2; mov.b32 %r10, %f10;"), expect("div", w_div);
    run("fma.rn.f32 %f10, %f1, %f2, %f3; mov.b32 %r10, %f10;"), expect("fma", w_fma);
    run("mul.ftz.f32 %f10, %f1, %f2; mov.b32 %r10, %f10;"), expect("mul.ftz", w_ftz);
    run("add.sat.f32 %f10, %f1, %f2; mov.b32 %r10, %f10;"), expect("add.sat", w_sat);
    run("min.f32 %f10, %f1, %f2; mov.b32 %r10, %f10;"), expect("min", w_min);
    run("max.NaN.f32 %f10, %f1, %f2; mov.b32 %r10, %f10;"), expect("max.NaN", w_max_nan);
    run("add.rm.f32 %f10, %f1, %f2; mov.b32 %r10, %f10;"), expect("add.rm", w_rm);
}

/* ---- Narrow formats, by all their codes ---- */

struct narrow { int exponent, mantissa, bias; bool inf, nan; };

static const struct narrow f16 = {5, 10, 15, true, true}, bf16 = {8, 7, 127, true, true}, e4m3 = {4, 3, 7, false, true},
                           e5m2 = {5, 2, 15, true, true}, e2m1 = {2, 1, 1, false, false};

/* Positive values of all codes; what is no number is NaN. */
static double code_value(const struct narrow *t, uint32_t code)
{
    uint32_t e = code >> t->mantissa, m = code & ((1u << t->mantissa) - 1), top = (1u << t->exponent) - 1;
    if (t->inf && e == top)
        return m ? NAN : INFINITY;
    if (t->nan && !t->inf && e == top && m + 1 == 1u << t->mantissa)
        return NAN;
    double v = e ? 1 + (double)m / (1u << t->mantissa) : 2 * (double)m / (1u << t->mantissa);
    return v * pow(2, (double)e - t->bias);
}

/* The code nearest to |v|, even where two are; finite: never Inf or NaN. */
static uint32_t nearest(const struct narrow *t, double v, bool finite)
{
    uint32_t n = 1u << (t->exponent + t->mantissa), best = 0, sign = signbit(v) ? n : 0;
    uint32_t last = t->inf ? n - (1u << t->mantissa) - 1 : t->nan ? n - 2 : n - 1; /* finite */
    double   a = fabs(v);
    if (v != v)
        return n - 1;
    uint32_t low = 0, high = last; /* codes rise with their values: search where they pass a */
    while (low < high) {
        uint32_t mid = (low + high + 1) / 2;
        if (code_value(t, mid) <= a)
            low = mid;
        else
            high = mid - 1;
    }
    best = low;
    double below = code_value(t, low), step = code_value(t, low) - (low ? code_value(t, low - 1) : 0);
    double above = low < last ? code_value(t, low + 1) : below + (step > 0 ? step : 1);
    if (a > below && (a - below > above - a || (a - below == above - a && (low & 1))))
        best = low + 1;
    if (best > last)
        best = finite ? last : n - 1 - (t->inf ? (1u << t->mantissa) - 1 : 0);
    if (isinf(a))
        best = finite || !t->inf ? last : best;
    return best | sign;
}

/* Two values of a register pair, low part from the second operand. */
static uint32_t pair_want(const struct narrow *t, const uint32_t *x, int bits, bool finite)
{
    return nearest(t, of_bits(x[1]), finite) | nearest(t, of_bits(x[0]), finite) << bits;
}

static uint32_t w_bf16x2(const uint32_t *x) { return pair_want(&bf16, x, 16, false); }
static uint32_t w_f16x2(const uint32_t *x) { return pair_want(&f16, x, 16, false); }
static uint32_t w_e4m3x2(const uint32_t *x) { return pair_want(&e4m3, x, 8, true); }
static uint32_t w_e5m2x2(const uint32_t *x) { return pair_want(&e5m2, x, 8, true); }
static uint32_t w_e2m1x2(const uint32_t *x) { return pair_want(&e2m1, x, 4, true); }

static double half_value(const struct narrow *t, uint32_t code)
{
    uint32_t n = 1u << (t->exponent + t->mantissa);
    double   v = code_value(t, code & (n - 1));
    return code & n ? -v : v;
}

static uint32_t w_mul_bf16x2(const uint32_t *x)
{
    uint32_t r = 0;
    for (int h = 0; h < 2; h++)
        r |= nearest(&bf16, half_value(&bf16, x[0] >> 16 * h & 0xffff) * half_value(&bf16, x[1] >> 16 * h & 0xffff), false) << 16 * h;
    return r;
}

static uint32_t w_mul_f16(const uint32_t *x)
{
    return nearest(&f16, half_value(&f16, x[0] & 0xffff) * half_value(&f16, x[1] & 0xffff), false);
}

static uint32_t w_from_f16(const uint32_t *x)
{
    return canonical((float)half_value(&f16, x[0] & 0xffff));
}

static uint32_t w_from_e4m3(const uint32_t *x)
{
    return nearest(&f16, half_value(&e4m3, x[0] & 0xff), false) | nearest(&f16, half_value(&e4m3, x[0] >> 8 & 0xff), false) << 16;
}

static uint32_t w_from_e2m1(const uint32_t *x)
{
    return nearest(&f16, half_value(&e2m1, x[0] & 15), false) | nearest(&f16, half_value(&e2m1, x[0] >> 4 & 15), false) << 16;
}

/* The smallest power of two that is not below, as UE8M0. */
static uint32_t ue8m0_up(float f)
{
    double a = fabs((double)f);
    if (f != f)
        return 255;
    double power = 0x1p-127;
    for (uint32_t c = 0; c < 254; c++, power *= 2) {
        if (power >= a)
            return c;
    }
    return 254;
}
static uint32_t w_ue8m0(const uint32_t *x) { return ue8m0_up(of_bits(x[1])) | ue8m0_up(of_bits(x[0])) << 8; }

static void narrow_formats(void)
{
    run("cvt.rn.bf16x2.f32 %r10, %f1, %f2;"), expect("cvt.bf16x2", w_bf16x2);
    run("cvt.rn.f16x2.f32 %r10, %f1, %f2;"), expect("cvt.f16x2", w_f16x2);
    run("cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2; cvt.u32.u16 %r10, %h1;"), expect("cvt.e4m3x2", w_e4m3x2);
    run("cvt.rn.satfinite.e5m2x2.f32 %h1, %f1, %f2; cvt.u32.u16 %r10, %h1;"), expect("cvt.e5m2x2", w_e5m2x2);
    run(".reg .b8 q; cvt.rn.satfinite.e2m1x2.f32 q, %f1, %f2; cvt.u32.u8 %r10, q;"), expect("cvt.e2m1x2", w_e2m1x2);
    run("cvt.rp.satfinite.ue8m0x2.f32 %h1, %f1, %f2; cvt.u32.u16 %r10, %h1;"), expect("cvt.ue8m0x2", w_ue8m0);
    run("mul.rn.bf16x2 %r10, %r1, %r2;"), expect("mul.bf16x2", w_mul_bf16x2);
    run("cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2; mul.rn.f16 %h3, %h1, %h2; cvt.u32.u16 %r10, %h3;"), expect("mul.f16", w_mul_f16);
    run("cvt.u16.u32 %h1, %r1; cvt.f32.f16 %f10, %h1; mov.b32 %r10, %f10;"), expect("cvt.f32.f16", w_from_f16);
    run("cvt.u16.u32 %h1, %r1; cvt.rn.f16x2.e4m3x2 %r10, %h1;"), expect("cvt.f16x2.e4m3x2", w_from_e4m3);
    run("cvt.u16.u32 %h1, %r1; cvt.rn.f16x2.e2m1x2 %r10, %h1;"), expect("cvt.f16x2.e2m1x2", w_from_e2m1);
}

/* ---- Integers ---- */

static uint32_t w_rni(const uint32_t *x)
{
    double v = of_bits(x[0]);
    if (v != v)
        return 0;
    double f = floor(v), r = v - f > 0.5 || (v - f == 0.5 && fmod(f, 2) != 0) ? f + 1 : f;
    return r >= 2147483647.0 ? 0x7fffffff : r <= -2147483648.0 ? 0x80000000 : (uint32_t)(int32_t)r;
}
static uint32_t w_rzi_u(const uint32_t *x)
{
    double v = of_bits(x[0]);
    return v != v || v <= 0 ? 0 : v >= 4294967295.0 ? 0xffffffff : (uint32_t)v;
}
static uint32_t w_s32(const uint32_t *x) { return bits_of((float)(int32_t)x[0]); }
static uint32_t w_u64(const uint32_t *x) { return bits_of((float)((__float128)((uint64_t)x[1] << 32 | x[0]))); }
static uint32_t w_rzi_f(const uint32_t *x) { return canonical(truncf(of_bits(x[0]))); }

static void integers(void)
{
    run("cvt.rni.s32.f32 %r10, %f1;"), expect("cvt.rni.s32.f32", w_rni);
    run("cvt.rzi.u32.f32 %r10, %f1;"), expect("cvt.rzi.u32.f32", w_rzi_u);
    run("cvt.rn.f32.s32 %f10, %r1; mov.b32 %r10, %f10;"), expect("cvt.rn.f32.s32", w_s32);
    run("mov.b64 %d1, {%r1,%r2}; cvt.rn.f32.u64 %f10, %d1; mov.b32 %r10, %f10;"), expect("cvt.rn.f32.u64", w_u64);
    run("cvt.rzi.f32.f32 %f10, %f1; mov.b32 %r10, %f10;"), expect("cvt.rzi.f32.f32", w_rzi_f);
}

/* ---- Approximations: the ISA's bounds, of relative error or, for sin and cos in [-pi, pi], absolute ---- */

static void approximates(const char *name, const char *code, double (*f)(double), double relative, double absolute, double low, double high)
{
    for (int k = 0; k < N; k++)
        in[k][0] = bits_of((float)(low + (high - low) * next() / 4294967296.0));
    run(code);
    for (int k = 0; k < N; k++) {
        double x = of_bits(in[k][0]), want = f(x), got = of_bits(out[k]);
        if (!(fabs(got - want) <= relative * fabs(want) + absolute))
            wrong(name, k, bits_of((float)want));
    }
}

static double reciprocal(double x) { return 1 / x; }
static double root(double x) { return 1 / sqrt(x); }

static void approximations(void)
{
    approximates("ex2", "ex2.approx.ftz.f32 %f10, %f1; mov.b32 %r10, %f10;", exp2, 0x1p-22, 0, -100, 100);
    approximates("lg2", "lg2.approx.f32 %f10, %f1; mov.b32 %r10, %f10;", log2, 0x1p-22, 0x1p-22, 0.01, 1000);
    approximates("rcp", "rcp.approx.ftz.f32 %f10, %f1; mov.b32 %r10, %f10;", reciprocal, 0x1p-23, 0, 0.001, 1000);
    approximates("rsqrt", "rsqrt.approx.f32 %f10, %f1; mov.b32 %r10, %f10;", root, 0x1p-22, 0, 0.001, 1000);
    approximates("tanh", "tanh.approx.f32 %f10, %f1; mov.b32 %r10, %f10;", tanh, 0x1p-11, 0, -4, 4);
    approximates("sin", "sin.approx.f32 %f10, %f1; mov.b32 %r10, %f10;", sin, 0, 0x1p-20, -3.14, 3.14);
    approximates("cos", "cos.approx.f32 %f10, %f1; mov.b32 %r10, %f10;", cos, 0, 0x1p-20, -3.14, 3.14);
}

int main(void)
{
    for (int k = 0; k < N; k++)
        for (int e = 0; e < 4; e++)
            in[k][e] = hostile();
    arithmetic();
    narrow_formats();
    integers();
    approximations();
    printf("%d floating-point instructions, %d values each, %d wrong\n", n_tests, N, n_bad);
    return n_bad != 0;
}
