/* Instructions of several lanes, warps and blocks in the PTX simulator, against plain C: shuffles, votes, matrix moves and
 * products, atomics, barriers, mbarriers, copies, clusters. Each under several schedules, which must not change a result. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptxsim/ptx_rig.h"

static uint64_t state = 521288629;
static uint32_t in[4096], out[4096];

static uint32_t next(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static void fill(void)
{
    for (int k = 0; k < 4096; k++)
        in[k] = next();
}

/* in: word t is in %r1 of thread t; %d21 is the address of its word of the output. */
#define BEGIN "mul.wide.u32 %d20, %t, 4; add.s64 %d20, %in, %d20; ld.global.u32 %r1, [%d20]; mul.wide.u32 %d21, %t, 4;" \
              "add.s64 %d21, %out, %d21;"
#define END "st.global.u32 [%d21], %r10;"

static void run(const char *body, uint32_t threads, size_t out_words)
{
    for (uint64_t seed = 0; seed < 5; seed++) {
        uint32_t before[4096];
        memcpy(before, out, sizeof out);
        rig_good(&(struct rig){.body = body, .config.seed = seed, .block = {threads, 1, 1}, .in = in, .in_bytes = sizeof in, .out = out,
                               .out_bytes = 4 * out_words});
        if (seed > 0 && memcmp(before, out, 4 * out_words) != 0) {
            fprintf(stderr, "schedule %d changes the result of: %s\n", (int)seed, body);
            exit(1);
        }
    }
}

static void expect(const char *name, int k, uint32_t got, uint32_t want)
{
    if (got != want) {
        fprintf(stderr, "%s: word %d is %08x, wanted %08x\n", name, k, got, want);
        exit(1);
    }
}

/* ---- Lanes ---- */

static void shuffles(void)
{
    run(BEGIN "shfl.sync.bfly.b32 %r10, %r1, 5, 31, -1;" END, 32, 32);
    for (int l = 0; l < 32; l++)
        expect("shfl.bfly", l, out[l], in[l ^ 5]);
    run(BEGIN "shfl.sync.up.b32 %r10|%p1, %r1, 3, 0, -1; @!%p1 mov.u32 %r10, 77;" END, 32, 32);
    for (int l = 0; l < 32; l++)
        expect("shfl.up", l, out[l], l < 3 ? 77 : in[l - 3]);
    /* Segments of 8: mask 0x1800, last lane of each in the low bits. */
    run(BEGIN "shfl.sync.down.b32 %r10|%p1, %r1, 2, 0x181f, -1; @!%p1 mov.u32 %r10, 78;" END, 32, 32);
    for (int l = 0; l < 32; l++)
        expect("shfl.down", l, out[l], l % 8 >= 6 ? 78 : in[l + 2]);
    run(BEGIN "shfl.sync.idx.b32 %r10, %r1, 3, 0x181f, -1;" END, 32, 32);
    for (int l = 0; l < 32; l++)
        expect("shfl.idx", l, out[l], in[l / 8 * 8 + 3]);
    /* Halves of a warp apart, each with its own mask, on different paths. */
    run(BEGIN "setp.lt.u32 %p1, %t, 16; @%p1 bra $A; shfl.sync.bfly.b32 %r10, %r1, 1, 31, 0xffff0000; bra $B;\n"
        "$A: shfl.sync.bfly.b32 %r10, %r1, 2, 31, 0xffff;\n$B:" END, 32, 32);
    for (int l = 0; l < 32; l++)
        expect("shfl apart", l, out[l], in[l < 16 ? l ^ 2 : l ^ 1]);
}

static void votes(void)
{
    uint32_t ballot = 0, most = 0, sum = 0, least = 0x7fffffff;
    run(BEGIN "and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 1; vote.sync.ballot.b32 %r10, %p1, -1;" END, 32, 32);
    for (int l = 0; l < 32; l++)
        ballot |= (in[l] & 1) << l;
    for (int l = 0; l < 32; l++)
        expect("ballot", l, out[l], ballot);
    run(BEGIN "setp.lt.u32 %p1, %t, 31; vote.sync.all.pred %p2, %p1, -1; vote.sync.any.pred %p3, %p1, -1;"
        "selp.b32 %r10, 1, 0, %p2; @%p3 add.s32 %r10, %r10, 2;" END, 32, 32);
    expect("vote", 0, out[0], 2);
    run(BEGIN "redux.sync.max.u32 %r10, %r1, -1;" END, 32, 32);
    for (int l = 0; l < 32; l++)
        most = in[l] > most ? in[l] : most, sum += in[l], least = (int32_t)in[l] < (int32_t)least ? in[l] : least;
    expect("redux.max", 9, out[9], most);
    run(BEGIN "redux.sync.add.s32 %r10, %r1, -1;" END, 32, 32);
    expect("redux.add", 9, out[9], sum);
    run(BEGIN "redux.sync.min.s32 %r10, %r1, -1;" END, 32, 32);
    expect("redux.min", 9, out[9], least);
    run(BEGIN "and.b32 %r2, %r1, 3; match.any.sync.b32 %r10, %r2, -1;" END, 32, 32);
    for (int l = 0; l < 32; l++) {
        uint32_t want = 0;
        for (int k = 0; k < 32; k++)
            want |= (uint32_t)((in[k] & 3) == (in[l] & 3)) << k;
        expect("match", l, out[l], want);
    }
    run(BEGIN "setp.lt.u32 %p1, %t, 12; mov.u32 %r10, 0; @%p1 activemask.b32 %r10;" END, 32, 32);
    expect("activemask", 3, out[3], 0xfff);
    run(BEGIN "elect.sync %r2|%p1, -1; selp.b32 %r10, 1, 0, %p1;" END, 32, 32);
    for (int l = 0; l < 32; l++)
        expect("elect", l, out[l], l == 0);
    /* A loop that lanes leave one after the other. */
    run(BEGIN "mov.u32 %r10, 0; mov.u32 %r2, %t;\n$L: add.u32 %r10, %r10, 3; sub.u32 %r2, %r2, 1; setp.lt.s32 %p1, %r2, 0;"
        "@!%p1 bra $L; shfl.sync.bfly.b32 %r10, %r10, 1, 31, -1;" END, 32, 32);
    for (int l = 0; l < 32; l++)
        expect("loop", l, out[l], 3 * (uint32_t)((l ^ 1) + 1));
    /* A table of branches. */
    run(BEGIN "and.b32 %r2, %t, 3;\n$T: .branchtargets $A, $B, $C, $D;\nbrx.idx %r2, $T;\n$A: mov.u32 %r10, 10; bra $E;\n"
        "$B: mov.u32 %r10, 11; bra $E;\n$C: mov.u32 %r10, 12; bra $E;\n$D: mov.u32 %r10, 13;\n$E:" END, 32, 32);
    for (int l = 0; l < 32; l++)
        expect("brx", l, out[l], 10 + (uint32_t)(l & 3));
}

/* ---- Matrices ---- */

static double half(uint32_t h)
{
    uint32_t e = h >> 10 & 31, m = h & 1023;
    double   v = e ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static double bf16(uint32_t h)
{
    uint32_t b = h << 16;
    float    f;
    memcpy(&f, &b, 4);
    return f;
}

static double e4m3(uint32_t h)
{
    uint32_t e = h >> 3 & 15, m = h & 7;
    double   v = e ? ldexp(8 + m, (int)e - 10) : ldexp(m, -9);
    return h & 0x80 ? -v : v;
}

static double tf32(uint32_t b)
{
    float f;
    b &= 0xffffe000u;
    memcpy(&f, &b, 4);
    return f;
}

static double s8(uint32_t h)
{
    return (int8_t)h;
}

/* Element (row, k) of A and (k, col) of B as the ISA's tables place them, for p elements in a register. */
struct shape { const char *op; int k, p, bits; double (*value)(uint32_t); bool integer; };

static uint32_t element(const struct shape *s, uint32_t reg, int i)
{
    return s->bits == 32 ? reg : reg >> (i * s->bits) & ((1u << s->bits) - 1);
}

static uint32_t small_number(const struct shape *s)
{
    uint32_t r = 0;
    for (int i = 0; i < s->p; i++) {
        uint32_t v = next();
        if (s->value == half)
            v = (v & 0x8000) | (0x3000 + v % 0x1400);
        else if (s->value == bf16)
            v = (v & 0x8000) | (0x3e00 + v % 0x200);
        else if (s->value == e4m3)
            v = (v & 0x80) | v % 0x78;
        else if (s->value == tf32)
            v = (v & 0x80000000u) | (0x3e000000u + v % 0x02000000u);
        r |= (s->bits == 32 ? v : v & ((1u << s->bits) - 1)) << (i * s->bits % 32);
    }
    return r;
}

static void product(const struct shape *s)
{
    char body[1500];
    int  n_a = s->k / (2 * s->p), n_b = s->k / (4 * s->p);
    for (int k = 0; k < 320; k++)
        in[k] = small_number(s);
    for (int k = 320; k < 512; k++)
        in[k] = s->integer ? next() % 1000 : 0x3f800000 + next() % 0x800000;
    const char *c = s->integer ? "%r" : "%f";
    (void)snprintf(body, sizeof body,
                   "mul.wide.u32 %%d20, %%t, 64; add.s64 %%d20, %%in, %%d20; ld.global.v4.u32 {%%r1,%%r2,%%r3,%%r4}, [%%d20];"
                   "ld.global.v2.u32 {%%r5,%%r6}, [%%d20+16]; mul.wide.u32 %%d22, %%t, 16; add.s64 %%d23, %%in, %%d22;"
                   "ld.global.v4.b32 {%s40,%s41,%s42,%s43}, [%%d23+2048]; %s {%s50,%s51,%s52,%s53}, {%%r1,%%r2%s}, {%%r5%s},"
                   "{%s40,%s41,%s42,%s43}; add.s64 %%d24, %%out, %%d22; st.global.v4.b32 [%%d24], {%s50,%s51,%s52,%s53};",
                   c, c, c, c, s->op, c, c, c, c, n_a == 4 ? ",%r3,%r4" : "", n_b == 2 ? ",%r6" : "", c, c, c, c, c, c, c, c);
    /* Operands: words 16 t .. of the first 512, sums: words 512 + 4 t ... */
    for (int k = 512; k < 640; k++)
        in[k] = s->integer ? next() % 1000 : 0x3f800000 + next() % 0x800000;
    for (int t = 0; t < 32; t++)
        for (int r = 0; r < 6; r++)
            in[16 * t + r] = small_number(s);
    run(body, 32, 128);
    for (int row = 0; row < 16; row++) {
        for (int col = 0; col < 8; col++) {
            int    lane = row % 8 * 4 + col / 2, reg = row / 8 * 2 + col % 2;
            double sum = 0, size = 0;
            for (int k = 0; k < s->k; k++) {
                int    part = k / (4 * s->p), t = k / s->p % 4, i = k % s->p;
                double a = s->value(element(s, in[16 * (row % 8 * 4 + t) + part * 2 + row / 8], i));
                double b = s->value(element(s, in[16 * (col * 4 + t) + 4 + part], i));
                sum += a * b;
                size += fabs(a * b);
            }
            uint32_t c0 = in[512 + 4 * lane + reg], got = out[4 * lane + reg];
            if (s->integer) {
                expect(s->op, row * 8 + col, got, c0 + (uint32_t)(int64_t)sum);
                continue;
            }
            float cf, gf;
            memcpy(&cf, &c0, 4);
            memcpy(&gf, &got, 4);
            /* One rounding to fp32 of a sum that is in double. */
            if (!(fabs(gf - (sum + cf)) <= 0x1p-24 * (fabs(sum + cf)) + 0x1p-48 * (size + fabs(cf)))) {
                fprintf(stderr, "%s: row %d, column %d is %.9g, wanted %.9g\n", s->op, row, col, gf, sum + cf);
                exit(1);
            }
        }
    }
}

static void matrices(void)
{
    static const struct shape shapes[] = {
        {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, 2, 16, bf16, false},
        {"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", 8, 2, 16, bf16, false},
        {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, 2, 16, half, false},
        {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 8, 1, 32, tf32, false},
        {"mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", 32, 4, 8, e4m3, false},
        {"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", 32, 4, 8, s8, true},
    };
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        product(&shapes[k]);
    /* Four 8 x 8 matrices of 16-bit values, rows in shared memory as they come: element (r, c) of matrix m is number
     * 64 m + 8 r + c. */
#define MATRIX ".shared .align 16 .b8 s[512]; mov.u32 %r2, s; mad.lo.s32 %r3, %t, 16, %r2; mul.wide.u32 %d22, %t, 16;" \
               "add.s64 %d22, %in, %d22; ld.global.v4.u32 {%r20,%r21,%r22,%r23}, [%d22]; st.shared.v4.u32 [%r3], {%r20,%r21,%r22,%r23};" \
               "bar.warp.sync -1;"
#define PUT4 "mul.wide.u32 %d23, %t, 16; add.s64 %d23, %out, %d23; st.global.v4.u32 [%d23], {%r30,%r31,%r32,%r33};"
    fill();
    const uint16_t *v = (const uint16_t *)(const void *)in;
    run(MATRIX "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r30,%r31,%r32,%r33}, [%r3];" PUT4, 32, 128);
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < 4; m++)
            expect("ldmatrix", 4 * l + m, out[4 * l + m], v[64 * m + l / 4 * 8 + l % 4 * 2] | (uint32_t)v[64 * m + l / 4 * 8 + l % 4 * 2 + 1] << 16);
    run(MATRIX "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r30,%r31,%r32,%r33}, [%r3];" PUT4, 32, 128);
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < 4; m++)
            expect("ldmatrix.trans", 4 * l + m, out[4 * l + m], v[64 * m + l % 4 * 16 + l / 4] | (uint32_t)v[64 * m + l % 4 * 16 + 8 + l / 4] << 16);
    run(BEGIN "movmatrix.sync.aligned.m8n8.trans.b16 %r10, %r1;" END, 32, 32);
    for (int l = 0; l < 32; l++) /* element (r, c) is half c % 2 of lane 4 r + c / 2 */
        expect("movmatrix", l, out[l], v[2 * (l % 4 * 8 + l / 8) + l / 4 % 2] | (uint32_t)v[2 * (l % 4 * 8 + 4 + l / 8) + l / 4 % 2] << 16);
}

/* ---- Warps and blocks ---- */

static void barriers(void)
{
    /* Sums over 96 threads, twice through the same words. */
    run(BEGIN ".shared .align 4 .b8 s[512]; mov.u32 %r2, s; mad.lo.s32 %r3, %t, 4, %r2; st.shared.u32 [%r3], %r1; bar.sync 0; mov.u32 %r4, 95;"
        "sub.s32 %r4, %r4, %t; mad.lo.s32 %r4, %r4, 4, %r2; ld.shared.u32 %r5, [%r4]; bar.sync 0; add.s32 %r5, %r5, %t;"
        "st.shared.u32 [%r3], %r5; barrier.sync 3; ld.shared.u32 %r10, [%r4];" END, 96, 96);
    for (uint32_t t = 0; t < 96; t++)
        expect("bar.sync", (int)t, out[t], in[t] + 95 - t);
    run(BEGIN "setp.eq.u32 %p1, %t, 70; bar.red.or.pred %p2, 0, %p1; bar.red.and.pred %p3, 0, %p1; bar.red.popc.u32 %r10, 0, %p1;"
        "@%p2 add.s32 %r10, %r10, 10; @%p3 add.s32 %r10, %r10, 100;" END, 96, 96);
    expect("bar.red", 5, out[5], 11);
    /* A producer of two warps that only arrives, a consumer that waits. */
    run(BEGIN ".shared .align 4 .b8 s[512]; mov.u32 %r2, s; mad.lo.s32 %r3, %t, 4, %r2; mov.u32 %r10, 0; setp.ge.u32 %p1, %t, 32; @!%p1 bra $C;"
        "st.shared.u32 [%r3], %r1; bar.arrive 1, 96; bra $E;\n$C: bar.sync 1, 96; ld.shared.u32 %r4, [%r3+128]; ld.shared.u32 %r5, [%r3+256];"
        "add.s32 %r10, %r4, %r5;\n$E:" END, 96, 96);
    for (int t = 0; t < 32; t++)
        expect("bar.arrive", t, out[t], in[t + 32] + in[t + 64]);
    /* Atomics of 128 threads. */
    run(BEGIN ".shared .align 8 .b8 s[64]; mov.u32 %r2, s; setp.eq.u32 %p1, %t, 0; @%p1 st.shared.v2.u32 [%r2], {0, 0}; bar.sync 0;"
        "atom.shared.add.u32 %r3, [%r2], 3; atom.shared.max.u32 %r4, [%r2+4], %r1; bar.sync 0; ld.shared.v2.u32 {%r5,%r6}, [%r2];"
        "xor.b32 %r10, %r5, %r6;" END, 128, 128);
    uint32_t most = 0;
    for (int t = 0; t < 128; t++)
        most = in[t] > most ? in[t] : most;
    expect("atom", 0, out[0], 384 ^ most);
}

static void copies(void)
{
    /* Two stages of 256 bytes through mbarriers, a producer warp and a consumer warp, six rounds. */
    static const char pipeline[] =
        ".shared .align 8 .b8 m[32]; .shared .align 128 .b8 s[512]; mov.u32 %r1, m; mov.u32 %r2, s; setp.eq.u32 %p1, %t, 0; @!%p1 bra $I;"
        "mbarrier.init.shared::cta.b64 [%r1], 1; mbarrier.init.shared::cta.b64 [%r1+8], 1; mbarrier.init.shared::cta.b64 [%r1+16], 32;"
        "mbarrier.init.shared::cta.b64 [%r1+24], 32; fence.mbarrier_init.release.cluster;\n$I: bar.sync 0; mov.u32 %r3, 0;"
        "setp.ge.u32 %p2, %t, 32; @%p2 bra $CONSUME; @!%p1 bra $END;\n"
        "$P: and.b32 %r4, %r3, 1; shr.u32 %r5, %r3, 1; and.b32 %r5, %r5, 1; xor.b32 %r5, %r5, 1; mad.lo.s32 %r6, %r4, 8, %r1;"
        "mad.lo.s32 %r7, %r4, 256, %r2;\n$PW: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r6+16], %r5; @!%p3 bra $PW;"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6], 256; mul.wide.u32 %d1, %r3, 256; add.s64 %d1, %in, %d1;"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%d1], 256, [%r6]; add.s32 %r3, %r3, 1;"
        "setp.lt.u32 %p4, %r3, 6; @%p4 bra $P; bra $END;\n"
        "$CONSUME: and.b32 %r8, %t, 31;\n$C: and.b32 %r4, %r3, 1; shr.u32 %r5, %r3, 1; and.b32 %r5, %r5, 1; mad.lo.s32 %r6, %r4, 8, %r1;"
        "mad.lo.s32 %r7, %r4, 256, %r2; mad.lo.s32 %r7, %r8, 8, %r7;\n$CW: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r6], %r5;"
        "@!%p3 bra $CW; ld.shared.v2.u32 {%r20,%r21}, [%r7]; mbarrier.arrive.shared::cta.b64 _, [%r6+16]; mad.lo.s32 %r9, %r3, 32, %r8;"
        "mul.wide.u32 %d2, %r9, 8; add.s64 %d2, %out, %d2; st.global.v2.u32 [%d2], {%r20,%r21}; add.s32 %r3, %r3, 1;"
        "setp.lt.u32 %p4, %r3, 6; @%p4 bra $C;\n$END:";
    run(pipeline, 64, 384);
    for (int k = 0; k < 384; k++)
        expect("bulk pipeline", k, out[k], in[k]);
    /* Without the consumer's arrival the producer stops; arriving before reading lets a copy overwrite what is read. */
    char broken[sizeof pipeline];
    memcpy(broken, pipeline, sizeof pipeline);
    char *arrive = strstr(broken, "mbarrier.arrive.shared::cta.b64 _, [%r6+16];");
    memset(arrive, ' ', 44);
    rig_stops(&(struct rig){.body = broken, .block = {64, 1, 1}, .in = in, .in_bytes = sizeof in, .out = out, .out_bytes = 1536}, "deadlock");
    /* Blocks of a cluster: each reads the other's word. */
    for (uint64_t seed = 0; seed < 5; seed++) {
        rig_good(&(struct rig){
            .body = ".shared .align 4 .b8 s[128]; mov.u32 %r1, s; mad.lo.s32 %r2, %t, 4, %r1; mad.lo.s32 %r3, %b, 32, %t; mul.wide.u32 %d1, %r3, 4;"
                    "add.s64 %d2, %in, %d1; add.s64 %d3, %out, %d1; ld.global.u32 %r4, [%d2]; st.shared.u32 [%r2], %r4; mov.u32 %r5, %cluster_ctarank;"
                    "xor.b32 %r5, %r5, 1; mapa.shared::cluster.u32 %r6, %r2, %r5; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
                    "ld.shared::cluster.u32 %r7, [%r6]; st.global.u32 [%d3], %r7; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
            .config.seed = seed, .grid = {4, 1, 1}, .cluster = {2, 1, 1}, .in = in, .in_bytes = sizeof in, .out = out, .out_bytes = 512});
        for (int k = 0; k < 128; k++)
            expect("cluster", k, out[k], in[k ^ 32]);
    }
}

/* 64 x 16 bf16 in registers times a 16 x 8 bf16 matrix in shared memory: its column n is 8 values of k in 16 bytes at
 * 16 n, the next 8 of k 128 bytes on. Twice, so that the second product adds to the first. */
static void warpgroup(void)
{
    static const char body[] =
        ".shared .align 128 .b8 s[256]; mov.u32 %r2, s; mul.wide.u32 %d20, %t, 16; add.s64 %d20, %in, %d20;"
        "ld.global.v4.u32 {%r20,%r21,%r22,%r23}, [%d20]; setp.lt.u32 %p1, %t, 64; mul.wide.u32 %d21, %t, 4; add.s64 %d21, %in, %d21;"
        "mad.lo.s32 %r3, %t, 4, %r2; @%p1 ld.global.u32 %r4, [%d21+2048]; @%p1 st.shared.u32 [%r3], %r4; fence.proxy.async.shared::cta;"
        "bar.sync 0; and.b32 %r5, %r2, 0x3ffff; shr.u32 %r5, %r5, 4; mov.b64 %d1, {%r5, 8}; or.b64 %d1, %d1, 0x80000;"
        "wgmma.fence.sync.aligned;"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f30,%f31,%f32,%f33}, {%r20,%r21,%r22,%r23}, %d1, 0, 1, 1, 0;"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f30,%f31,%f32,%f33}, {%r20,%r21,%r22,%r23}, %d1, 1, 1, 1, 0;"
        "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
        "mul.wide.u32 %d22, %t, 16; add.s64 %d22, %out, %d22; st.global.v4.f32 [%d22], {%f30,%f31,%f32,%f33};";
    static const uint16_t digits[16] = {0x3f80, 0x4000, 0x4040, 0x4080, 0xbf80, 0xc000, 0, 0x3f00, 0x40a0, 0x40c0, 0xc040, 0x3e80,
                                        0x4100, 0xc0a0, 0x3fc0, 0x4110}; /* bf16 */
    for (int k = 0; k < 1024; k++)
        in[k] = digits[next() % 16] | (uint32_t)digits[next() % 16] << 16;
    run(body, 128, 512);
    const uint16_t *v = (const uint16_t *)(const void *)in, *b = v + 1024;
    for (int row = 0; row < 64; row++) {
        for (int col = 0; col < 8; col++) {
            double sum = 0;
            for (int k = 0; k < 16; k++) {
                int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2, reg = row / 8 % 2 + k / 8 * 2;
                sum += 2 * bf16(v[thread * 8 + reg * 2 + k % 2]) * bf16(b[k / 8 * 64 + col * 8 + k % 8]);
            }
            float got;
            memcpy(&got, &out[(row / 16 * 32 + row % 8 * 4 + col / 2) * 4 + row / 8 % 2 * 2 + col % 2], 4);
            if (got != (float)sum) { /* exact: multiples of 1/64 below 2^12 */
                fprintf(stderr, "wgmma: row %d, column %d is %g, wanted %g\n", row, col, got, sum);
                exit(1);
            }
        }
    }
    char   broken[sizeof body];
    struct rig r = {.body = broken, .block = {128, 1, 1}, .in = in, .in_bytes = sizeof in, .out = out, .out_bytes = 2048};
    memcpy(broken, body, sizeof body);
    memset(strstr(broken, "wgmma.wait_group"), ' ', strlen("wgmma.wait_group.sync.aligned 0;"));
    rig_stops(&r, "did not wait for");
    memcpy(broken, body, sizeof body);
    memset(strstr(broken, "fence.proxy"), ' ', strlen("fence.proxy.async.shared::cta;"));
    rig_stops(&r, "without fence.proxy.async");
    memcpy(broken, body, sizeof body);
    memset(strstr(broken, "bar.sync 0;"), ' ', strlen("bar.sync 0;"));
    r.config.seed = 3;
    const char *why = rig_run(&r);
    if (!why || (!strstr(why, "without having waited") && !strstr(why, "nobody wrote"))) {
        fprintf(stderr, "wgmma without a barrier: %s\n", why ? why : "ran");
        exit(1);
    }
}

int main(void)
{
    fill();
    shuffles();
    votes();
    barriers();
    copies();
    matrices();
    warpgroup();
    printf("lanes, barriers, copies, clusters and matrices: as in C under 5 schedules\n");
    return 0;
}
