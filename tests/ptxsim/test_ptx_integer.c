/* Integer instructions of the PTX simulator against plain C, written from the ISA's text, on hostile and random values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptxsim/ptx_rig.h"

typedef unsigned __int128 u128;
typedef __int128          s128;

enum { N = 1024 };

static uint64_t state = 88172645463325252ull;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Edges, few bits, small numbers and anything. */
static uint64_t hostile(void)
{
    static const uint64_t edges[] = {0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff,
                                     0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff, 31, 32, 33, 63, 64, 0xffffffff80000000};
    switch (next() % 4) {
    case 0: return edges[next() % (sizeof edges / sizeof *edges)];
    case 1: return 1ull << next() % 64;
    case 2: return next() % 70;
    default: return next();
    }
}

/* ---- Expectations ---- */

static int32_t  s(uint64_t v) { return (int32_t)(uint32_t)v; }
static uint32_t u(uint64_t v) { return (uint32_t)v; }

static uint64_t add32(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u(a + b); }
static uint64_t sub64(uint64_t a, uint64_t b, uint64_t c) { (void)c; return a - b; }
static uint64_t mullo(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u((uint64_t)u(a) * u(b)); }
static uint64_t mulhiu(uint64_t a, uint64_t b, uint64_t c) { (void)c; return (uint64_t)u(a) * u(b) >> 32; }
static uint64_t mulhis(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u((uint64_t)((int64_t)s(a) * s(b) >> 32)); }
static uint64_t mulhi64(uint64_t a, uint64_t b, uint64_t c) { (void)c; return (uint64_t)((u128)a * b >> 64); }
static uint64_t mulwides(uint64_t a, uint64_t b, uint64_t c) { (void)c; return (uint64_t)((int64_t)s(a) * s(b)); }
static uint64_t mulwideu(uint64_t a, uint64_t b, uint64_t c) { (void)c; return (uint64_t)u(a) * u(b); }
static uint64_t madlo(uint64_t a, uint64_t b, uint64_t c) { return u(a * b + c); }
static uint64_t madhi(uint64_t a, uint64_t b, uint64_t c) { return u((uint64_t)((int64_t)s(a) * s(b) >> 32) + c); }
static uint64_t mins(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u(s(a) < s(b) ? a : b); }
static uint64_t maxu(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u(a) > u(b) ? u(a) : u(b); }
static uint64_t mins64(uint64_t a, uint64_t b, uint64_t c) { (void)c; return (int64_t)a < (int64_t)b ? a : b; }
static uint64_t abss(uint64_t a, uint64_t b, uint64_t c) { (void)b, (void)c; return s(a) < 0 ? u(0 - a) : u(a); }
static uint64_t negs(uint64_t a, uint64_t b, uint64_t c) { (void)b, (void)c; return u(~a + 1); }
static uint64_t shl32(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u(b) >= 32 ? 0 : u(a << u(b)); }
static uint64_t shru(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u(b) >= 32 ? 0 : u(a) >> u(b); }
static uint64_t shrs(uint64_t a, uint64_t b, uint64_t c)
{
    (void)c;
    int64_t v = s(a); /* by halving */
    for (uint32_t k = 0; k < u(b) && k < 40; k++)
        v = v < 0 ? -((-v + 1) / 2) : v / 2;
    return u((uint64_t)v);
}
static uint64_t popc(uint64_t a, uint64_t b, uint64_t c)
{
    (void)b, (void)c;
    uint64_t n = 0;
    for (a = u(a); a; a &= a - 1)
        n++;
    return n;
}
static uint64_t clz(uint64_t a, uint64_t b, uint64_t c)
{
    (void)b, (void)c;
    uint64_t n = 0;
    while (n < 32 && !(u(a) >> (31 - n) & 1))
        n++;
    return n;
}
static uint64_t clz64(uint64_t a, uint64_t b, uint64_t c)
{
    (void)b, (void)c;
    uint64_t n = 0;
    while (n < 64 && !(a >> (63 - n) & 1))
        n++;
    return n;
}
static uint64_t brev(uint64_t a, uint64_t b, uint64_t c)
{
    (void)b, (void)c;
    uint32_t v = u(a);
    v = (v >> 1 & 0x55555555) | (v & 0x55555555) << 1;
    v = (v >> 2 & 0x33333333) | (v & 0x33333333) << 2;
    v = (v >> 4 & 0x0f0f0f0f) | (v & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(v);
}
static uint64_t bfindu(uint64_t a, uint64_t b, uint64_t c)
{
    (void)b, (void)c;
    return u(a) ? 31 - clz(a, 0, 0) : 0xffffffff;
}
/* The field as a shift in a wide number: bits above the word are the sign of the field's highest bit, or zero. */
static uint64_t bfeu(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t p = b & 255, n = c & 255;
    return p > 31 ? 0 : u((u(a) >> p) & (n > 31 ? 0xffffffff : (1ull << n) - 1));
}
static uint64_t bfes(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t p = b & 255, n = c & 255;
    if (n == 0)
        return 0;
    if (p > 31)
        return s(a) < 0 ? 0xffffffff : 0;
    int64_t v = s(a) >> p;
    return n > 31 - p ? u((uint64_t)v) : u((uint64_t)((int64_t)((uint64_t)v << (64 - n)) >> (64 - n)));
}
static uint64_t bfi(uint64_t a, uint64_t b, uint64_t c) /* of 8 bits at c % 40 */
{
    uint64_t p = c & 255, mask = p > 31 ? 0 : u(0xffull << p);
    return u((u(b) & ~mask) | ((p > 31 ? 0 : u(a) << p) & mask));
}
static uint64_t prmt(uint64_t a, uint64_t b, uint64_t c)
{
    uint8_t in[8], out[4];
    memcpy(in, &a, 4);
    memcpy(in + 4, &b, 4);
    for (int k = 0; k < 4; k++) {
        uint32_t nibble = u(c) >> 4 * k & 15;
        out[k] = nibble & 8 ? (in[nibble & 7] >= 128 ? 255 : 0) : in[nibble];
    }
    uint32_t v;
    memcpy(&v, out, 4);
    return v;
}
static uint64_t lop3(uint64_t a, uint64_t b, uint64_t c) { return u((a & b) ^ (~c | a)); } /* its table is computed as the ISA says */
static uint64_t shfl_(uint64_t a, uint64_t b, uint64_t c)
{
    u128 both = (u128)u(b) << 32 | u(a);
    return u((uint64_t)(both >> (32 - (c & 31))));
}
static uint64_t shfr(uint64_t a, uint64_t b, uint64_t c)
{
    u128 both = (u128)u(b) << 32 | u(a);
    return u((uint64_t)(both >> (u(c) > 32 ? 32 : u(c))));
}
static uint64_t dp4as(uint64_t a, uint64_t b, uint64_t c)
{
    int8_t x[4], y[4];
    memcpy(x, &a, 4);
    memcpy(y, &b, 4);
    return u(c + (uint64_t)(int64_t)(x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3]));
}
static uint64_t dp4au(uint64_t a, uint64_t b, uint64_t c)
{
    uint8_t x[4], y[4];
    memcpy(x, &a, 4);
    memcpy(y, &b, 4);
    return u(c + (uint64_t)(x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3]));
}
static uint64_t sadu(uint64_t a, uint64_t b, uint64_t c) { return u(c + (u(a) > u(b) ? u(a) - u(b) : u(b) - u(a))); }
static uint64_t satadd(uint64_t a, uint64_t b, uint64_t c)
{
    (void)c;
    int64_t v = (int64_t)s(a) + s(b);
    return u((uint64_t)(v > 2147483647 ? 2147483647 : v < -2147483647 - 1 ? -2147483647 - 1 : v));
}
static uint64_t cvts8(uint64_t a, uint64_t b, uint64_t c)
{
    (void)b, (void)c;
    return u((uint64_t)(((int64_t)(a & 255) ^ 128) - 128));
}
static uint64_t cvtsat(uint64_t a, uint64_t b, uint64_t c) { (void)b, (void)c; return s(a) < -128 ? 0xffffff80 : s(a) > 127 ? 127 : u(a); }
static uint64_t selp_(uint64_t a, uint64_t b, uint64_t c) { return s(a) < s(b) ? u(c) : u(a); }
static uint64_t setgeu(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u(a) >= u(b) ? 7 : 9; }
/* Four words of a 64 x 64 bit product's upper half, by carries. */
static uint64_t chain(uint64_t a, uint64_t b, uint64_t c) { return (uint64_t)(((u128)a * b + c) >> 64); }
static uint64_t sub_chain(uint64_t a, uint64_t b, uint64_t c) { (void)c; return a - b; }

/* Divisors are made odd and never -1: 0 has no result, and the least number has none by -1. */
static uint64_t divu(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u(a) / (u(b) | 1); }
static uint64_t remu(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u(a) % (u(b) | 1); }
static int32_t  odd(uint64_t b) { return s((b | 1) & 0xbfffffff); }
static uint64_t divs(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u((uint64_t)(int64_t)(s(a) / odd(b))); }
static uint64_t rems(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u((uint64_t)(int64_t)(s(a) % odd(b))); }
static uint64_t rem64(uint64_t a, uint64_t b, uint64_t c) { (void)c; return a - a / (b | 1) * (b | 1); }
static int64_t  low24(uint64_t v) { return (int64_t)((v & 0xffffff) ^ 0x800000) - 0x800000; }
static uint64_t mul24u(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u((a & 0xffffff) * (b & 0xffffff)); }
static uint64_t mul24s(uint64_t a, uint64_t b, uint64_t c) { (void)c; return u((uint64_t)(low24(a) * low24(b)) >> 16); }
static uint64_t bmsk(uint64_t a, uint64_t b, uint64_t c) /* one bit at a time */
{
    (void)c;
    uint64_t mask = 0;
    for (uint64_t k = 0; k < 32; k++)
        mask |= (uint64_t)(k >= u(a) && k - u(a) < u(b)) << k;
    return mask;
}
static uint64_t szext(uint64_t a, uint64_t b, uint64_t c)
{
    (void)c;
    if (u(b) == 0 || u(b) >= 32)
        return u(b) == 0 ? 0 : u(a);
    uint64_t top = 1ull << (u(b) - 1);
    return u(((a & (2 * top - 1)) ^ top) - top);
}
static uint64_t cnot(uint64_t a, uint64_t b, uint64_t c) { (void)b, (void)c; return u(a) == 0; }
static uint64_t slct(uint64_t a, uint64_t b, uint64_t c) { return s(c) >= 0 ? u(a) : u(b); }
static uint64_t dp2a(uint64_t a, uint64_t b, uint64_t c)
{
    int16_t x[2];
    int8_t  y[4];
    memcpy(x, &a, 4);
    memcpy(y, &b, 4);
    return u(c + (uint64_t)(int64_t)(x[0] * y[2] + x[1] * y[3]));
}
static uint64_t copysign_(uint64_t a, uint64_t b, uint64_t c) { (void)c; return (a & 0x80000000) | (b & 0x7fffffff); }
/* Of a float: 1 finite, 2 infinite, 4 not a number, 8 subnormal. */
static uint64_t kind_of(uint64_t a, uint64_t b, uint64_t c)
{
    (void)b, (void)c;
    float    f;
    uint32_t v = u(a);
    memcpy(&f, &v, 4);
    int k = fpclassify(f);
    return k == FP_INFINITE ? 2 : k == FP_NAN ? 4 : k == FP_SUBNORMAL ? 9 : 1;
}

static const struct test {
    const char *name, *code; /* from %r1, %r2, %r3 or %d1, %d2, %d3 to %d10, or to %r10 if narrow */
    uint64_t (*want)(uint64_t, uint64_t, uint64_t);
    bool narrow;
} tests[] = {
    {"add", "add.s32 %r10, %r1, %r2;", add32, true},
    {"sub64", "sub.s64 %d10, %d1, %d2;", sub64, false},
    {"mul.lo", "mul.lo.s32 %r10, %r1, %r2;", mullo, true},
    {"mul.hi.u32", "mul.hi.u32 %r10, %r1, %r2;", mulhiu, true},
    {"mul.hi.s32", "mul.hi.s32 %r10, %r1, %r2;", mulhis, true},
    {"mul.hi.u64", "mul.hi.u64 %d10, %d1, %d2;", mulhi64, false},
    {"mul.wide.s32", "mul.wide.s32 %d10, %r1, %r2;", mulwides, false},
    {"mul.wide.u32", "mul.wide.u32 %d10, %r1, %r2;", mulwideu, false},
    {"mad.lo", "mad.lo.s32 %r10, %r1, %r2, %r3;", madlo, true},
    {"mad.hi.s32", "mad.hi.s32 %r10, %r1, %r2, %r3;", madhi, true},
    {"min.s32", "min.s32 %r10, %r1, %r2;", mins, true},
    {"max.u32", "max.u32 %r10, %r1, %r2;", maxu, true},
    {"min.s64", "min.s64 %d10, %d1, %d2;", mins64, false},
    {"abs", "abs.s32 %r10, %r1;", abss, true},
    {"neg", "neg.s32 %r10, %r1;", negs, true},
    {"shl", "shl.b32 %r10, %r1, %r2;", shl32, true},
    {"shr.u32", "shr.u32 %r10, %r1, %r2;", shru, true},
    {"shr.s32", "shr.s32 %r10, %r1, %r2;", shrs, true},
    {"popc", "popc.b32 %r10, %r1;", popc, true},
    {"clz", "clz.b32 %r10, %r1;", clz, true},
    {"clz64", "clz.b64 %r10, %d1;", clz64, true},
    {"brev", "brev.b32 %r10, %r1;", brev, true},
    {"bfind", "bfind.u32 %r10, %r1;", bfindu, true},
    {"bfe.u32", "bfe.u32 %r10, %r1, %r2, %r3;", bfeu, true},
    {"bfe.s32", "bfe.s32 %r10, %r1, %r2, %r3;", bfes, true},
    {"bfi", "bfi.b32 %r10, %r1, %r2, %r3, 8;", bfi, true},
    {"prmt", "prmt.b32 %r10, %r1, %r2, %r3;", prmt, true},
    {"lop3", "lop3.b32 %r10, %r1, %r2, %r3, 0x35;", lop3, true}, /* (0xf0 & 0xcc) ^ (~0xaa | 0xf0) */
    {"shf.l.wrap", "shf.l.wrap.b32 %r10, %r1, %r2, %r3;", shfl_, true},
    {"shf.r.clamp", "shf.r.clamp.b32 %r10, %r1, %r2, %r3;", shfr, true},
    {"dp4a.s32", "dp4a.s32.s32 %r10, %r1, %r2, %r3;", dp4as, true},
    {"dp4a.u32", "dp4a.u32.u32 %r10, %r1, %r2, %r3;", dp4au, true},
    {"sad.u32", "sad.u32 %r10, %r1, %r2, %r3;", sadu, true},
    {"add.sat", "add.sat.s32 %r10, %r1, %r2;", satadd, true},
    {"cvt.s32.s8", "cvt.s32.s8 %r10, %r1;", cvts8, true},
    {"cvt.sat.s8.s32", "cvt.sat.s8.s32 %r10, %r1;", cvtsat, true},
    {"selp", "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r10, %r3, %r1, %p1;", selp_, true},
    {"setp.ge.u32", "setp.ge.u32 %p1|%p2, %r1, %r2; selp.b32 %r10, 7, 1, %p1; @%p2 mov.u32 %r10, 9;", setgeu, true},
    {"div.u32", "or.b32 %r4, %r2, 1; div.u32 %r10, %r1, %r4;", divu, true},
    {"rem.u32", "or.b32 %r4, %r2, 1; rem.u32 %r10, %r1, %r4;", remu, true},
    {"div.s32", "or.b32 %r4, %r2, 1; and.b32 %r4, %r4, 0xbfffffff; div.s32 %r10, %r1, %r4;", divs, true},
    {"rem.s32", "or.b32 %r4, %r2, 1; and.b32 %r4, %r4, 0xbfffffff; rem.s32 %r10, %r1, %r4;", rems, true},
    {"rem.u64", "or.b64 %d4, %d2, 1; rem.u64 %d10, %d1, %d4;", rem64, false},
    {"mul24.lo.u32", "mul24.lo.u32 %r10, %r1, %r2;", mul24u, true},
    {"mul24.hi.s32", "mul24.hi.s32 %r10, %r1, %r2;", mul24s, true},
    {"bmsk.clamp", "bmsk.clamp.b32 %r10, %r1, %r2;", bmsk, true},
    {"szext.clamp.s32", "szext.clamp.s32 %r10, %r1, %r2;", szext, true},
    {"cnot", "cnot.b32 %r10, %r1;", cnot, true},
    {"slct", "slct.b32.s32 %r10, %r1, %r2, %r3;", slct, true},
    {"dp2a.hi.s32", "dp2a.hi.s32.s32 %r10, %r1, %r2, %r3;", dp2a, true},
    {"copysign", "mov.b32 %f1, %r1; mov.b32 %f2, %r2; copysign.f32 %f3, %f1, %f2; mov.b32 %r10, %f3;", copysign_, true},
    {"testp",
     "mov.b32 %f1, %r1; mov.u32 %r10, 0; testp.finite.f32 %p1, %f1; @%p1 or.b32 %r10, %r10, 1;"
     "testp.infinite.f32 %p1, %f1; @%p1 or.b32 %r10, %r10, 2; testp.notanumber.f32 %p1, %f1; @%p1 or.b32 %r10, %r10, 4;"
     "testp.subnormal.f32 %p1, %f1; @%p1 or.b32 %r10, %r10, 8;", kind_of, true},
    {"mad chain",
     "mov.b64 {%r20,%r21}, %d1; mov.b64 {%r22,%r23}, %d2; mov.b64 {%r24,%r25}, %d3;"
     "mad.lo.cc.u32 %r30, %r20, %r22, %r24; madc.hi.cc.u32 %r31, %r20, %r22, %r25; madc.lo.cc.u32 %r32, %r21, %r23, 0;"
     "madc.hi.u32 %r33, %r21, %r23, 0; mad.lo.cc.u32 %r31, %r20, %r23, %r31; madc.hi.cc.u32 %r32, %r20, %r23, %r32;"
     "addc.u32 %r33, %r33, 0; mad.lo.cc.u32 %r31, %r21, %r22, %r31; madc.hi.cc.u32 %r32, %r21, %r22, %r32;"
     "addc.u32 %r33, %r33, 0; mov.b64 %d10, {%r32,%r33};", chain, false},
    {"sub chain",
     "mov.b64 {%r20,%r21}, %d1; mov.b64 {%r22,%r23}, %d2; sub.cc.u32 %r30, %r20, %r22; subc.u32 %r31, %r21, %r23;"
     "mov.b64 %d10, {%r30,%r31};", sub_chain, false},
};

static int check(const struct test *t, const uint64_t (*in)[3], const uint64_t *out)
{
    int bad = 0;
    for (int k = 0; k < N; k++) {
        uint64_t want = t->want(in[k][0], in[k][1], in[k][2]);
        if (out[k] != want && bad++ < 3)
            fprintf(stderr, "%s(%#llx, %#llx, %#llx) = %#llx, wanted %#llx\n", t->name, (unsigned long long)in[k][0],
                    (unsigned long long)in[k][1], (unsigned long long)in[k][2], (unsigned long long)out[k], (unsigned long long)want);
    }
    return bad;
}

int main(void)
{
    static uint64_t in[N][3], out[N];
    int             bad = 0;
    for (int k = 0; k < N; k++)
        for (int e = 0; e < 3; e++)
            in[k][e] = hostile();
    for (size_t k = 0; k < sizeof tests / sizeof *tests; k++) {
        char body[2000];
        (void)snprintf(body, sizeof body,
                       "mad.lo.s32 %%r0, %%b, 32, %%t; mul.wide.u32 %%d20, %%r0, 24; add.s64 %%d20, %%in, %%d20;\n"
                       "ld.global.u64 %%d1, [%%d20]; ld.global.u64 %%d2, [%%d20+8]; ld.global.u64 %%d3, [%%d20+16];\n"
                       "cvt.u32.u64 %%r1, %%d1; cvt.u32.u64 %%r2, %%d2; cvt.u32.u64 %%r3, %%d3;\n%s\n%s\n"
                       "mul.wide.u32 %%d21, %%r0, 8; add.s64 %%d21, %%out, %%d21; st.global.u64 [%%d21], %%d10;\n",
                       tests[k].code, tests[k].narrow ? "cvt.u64.u32 %d10, %r10;" : "");
        rig_good(&(struct rig){.body = body, .grid = {N / 32, 1, 1}, .in = in, .in_bytes = sizeof in, .out = out, .out_bytes = sizeof out});
        bad += check(&tests[k], (const uint64_t(*)[3])in, out);
    }
    printf("%zu integer instructions, %d values each, %d wrong\n", sizeof tests / sizeof *tests, N, bad);
    return bad != 0;
}
