/* What a kernel must not do stops the PTX simulator with a sentence, and the same without the fault runs. */
#include <stdio.h>
#include <string.h>

#include "ptxsim/ptx_rig.h"

static uint32_t zeros[1024], sink[1024];

static const struct rig small = {.in = zeros, .in_bytes = sizeof zeros, .out = sink, .out_bytes = 0};

static int n_stops;

static void stops(struct rig r, const char *body, const char *text)
{
    r.body = body;
    rig_stops(&r, text);
    n_stops++;
}

static void good(struct rig r, const char *body)
{
    r.body = body;
    for (uint64_t seed = 0; seed < 6; seed++) {
        r.config.seed = seed;
        rig_good(&r);
    }
}

static struct rig threads(uint32_t n)
{
    struct rig r = small;
    r.block = (struct px_dim){n, 1, 1};
    return r;
}

/* ---- Text ---- */

static void text(void)
{
    stops(small, "frobnicate.b32 %r1, %r2;", "unknown opcode 'frobnicate.b32'");
    stops(small, "add.rx.s32 %r1, %r2, %r3;", "unknown modifier '.rx' of 'add'");
    stops(small, "add.s32 %r1, %r2;", "has 2 operands");
    stops(small, "add.s32 %r1, %r2, %q3;", "unknown name '%q3'");
    stops(small, "bra $nowhere;", "no label '$nowhere'");
    stops(small, "mov.u32 %r1, 0x12xy;", "is no number");
    stops(small, "wgmma.frobnicate;", "line 16: unknown opcode");
}

/* ---- Memory ---- */

static void memory(void)
{
    stops(small, "ld.global.u32 %r1, [%in+4096];", "byte 4096 of an allocation of 4096 bytes");
    stops(small, "ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%in+4088];", "byte 4088");
    stops(small, "ld.global.u32 %r1, [%in+2];", "not aligned to 4");
    stops(small, "ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%in+8];", "not aligned to 16");
    stops(small, "mov.u64 %d1, 64; ld.global.u32 %r1, [%d1];", "no allocation");
    stops(small, "ld.global.u32 %r1, [%out+-4];", "no allocation");
    struct rig out = small;
    out.out_bytes = 64;
    stops(out, "ld.global.u32 %r1, [%out];", "where nobody wrote");
    stops(out, "st.global.u32 [%out], %t;", "not all of the output was written");
    stops(small, ".shared .align 4 .b8 s[64]; mov.u32 %r1, s; ld.shared.u32 %r2, [%r1];", "where nobody wrote");
    stops(small, ".shared .align 4 .b8 s[64]; mov.u32 %r1, s; st.shared.u32 [%r1+64], %t;", "shared memory at 64 of 64");
    stops(small, ".shared .align 4 .b8 s[64]; mov.u32 %r1, s; st.shared.u32 [%r1+2], %t;", "not aligned to 4");
    stops(small, ".local .align 8 .b8 l[16]; mov.u32 %r1, l; ld.local.u32 %r2, [%r1];", "local memory is read");
    stops(small, ".local .align 8 .b8 l[16]; mov.u32 %r1, l; st.local.u32 [%r1+16], %t;", "local memory at 16 of 16");
    stops(small, "cvta.to.shared.u64 %d1, %in;", "not in the space it is converted to");
    stops(small, "div.u32 %r1, %t, %b;", "by 0");
    struct rig dynamic = small;
    dynamic.shared_bytes = 228 * 1024;
    stops(dynamic, "", "bytes of shared memory, at most");
    /* A card with 99 KiB a block and no clusters; static shared memory counts. */
    struct rig less = small;
    less.config.shared_most = 99 * 1024;
    less.config.cluster_most = 1;
    less.shared_bytes = 99 * 1024;
    good(less, "");
    stops(less, ".shared .align 16 .b8 s[16]; mov.u32 %r1, s;", "101392 bytes of shared memory, at most 101376");
    less.shared_bytes += 16;
    stops(less, "", "101392 bytes of shared memory, at most 101376");
    struct rig pair = small;
    pair.grid = pair.cluster = (struct px_dim){2, 1, 1};
    good(pair, "");
    pair.config.cluster_most = 1;
    stops(pair, "", "a cluster of 2 blocks, at most 1");
}

/* ---- Races ---- */

#define SHARED ".shared .align 16 .b8 s[1024]; mov.u32 %r1, s; shl.b32 %r2, %t, 2; add.s32 %r2, %r1, %r2;"

static void races(void)
{
    /* Each thread writes its word and reads one of the other warp. */
    stops(threads(64), SHARED "st.shared.u32 [%r2], %t; xor.b32 %r3, %t, 32; shl.b32 %r3, %r3, 2; add.s32 %r3, %r1, %r3;"
          "setp.ge.u32 %p1, %t, 32; @%p1 ld.shared.u32 %r4, [%r3];", "reads what is a write of warp 0");
    good(threads(64), SHARED "st.shared.u32 [%r2], %t; bar.sync 0; xor.b32 %r3, %t, 32; shl.b32 %r3, %r3, 2; add.s32 %r3, %r1, %r3;"
         "ld.shared.u32 %r4, [%r3];");
    /* Reads before, a write behind. */
    stops(threads(64), SHARED "st.shared.u32 [%r2], %t; bar.sync 0; ld.shared.u32 %r4, [%r1]; setp.eq.u32 %p1, %t, 33;"
          "@%p1 st.shared.u32 [%r1], %t;", "overwrites what is a read");
    good(threads(64), SHARED "st.shared.u32 [%r2], %t; bar.sync 0; ld.shared.u32 %r4, [%r1]; bar.sync 0; setp.eq.u32 %p1, %t, 33;"
         "@%p1 st.shared.u32 [%r1], %t;");
    /* Between lanes of one warp. */
    stops(small, SHARED "st.shared.u32 [%r2], %t; xor.b32 %r3, %t, 1; shl.b32 %r3, %r3, 2; add.s32 %r3, %r1, %r3;"
          "ld.shared.u32 %r4, [%r3];", "its own");
    good(small, SHARED "st.shared.u32 [%r2], %t; bar.warp.sync -1; xor.b32 %r3, %t, 1; shl.b32 %r3, %r3, 2; add.s32 %r3, %r1, %r3;"
         "ld.shared.u32 %r4, [%r3];");
    stops(threads(64), SHARED "setp.eq.u32 %p1, %t, 5; setp.eq.u32 %p2, %t, 40; @%p1 st.shared.u32 [%r1], %t; @%p2 st.shared.u32 [%r1], %t;",
          "overwrites what is a write");
    /* Bytes of one word are apart; atomics do not race with each other, but with a store. */
    good(threads(64), SHARED "add.s32 %r3, %r1, %t; st.shared.u8 [%r3], %t;");
    good(threads(64), SHARED "setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [%r1], 0; bar.sync 0; atom.shared.add.u32 %r4, [%r1], 1;");
    stops(threads(64), SHARED "setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [%r1], 0; atom.shared.add.u32 %r4, [%r1], 1;", "race");
}

/* ---- Lanes and barriers ---- */

static void lanes(void)
{
    stops(small, "shfl.sync.bfly.b32 %r1, %t, 1, 31, 0xffff;", "does not hold them");
    stops(small, "setp.lt.u32 %p1, %t, 16; @%p1 bra $A; exit;\n$A: shfl.sync.bfly.b32 %r1, %t, 16, 31, -1;", "which is not there");
    stops(small, "setp.lt.u32 %p1, %t, 16; @%p1 bra $A; bar.sync 0; bra $B;\n$A: bar.sync 0;\n$B:", "different aligned instructions");
    stops(small, "setp.lt.u32 %p1, %t, 16; @%p1 bra $A; bar.warp.sync -1;\n$A: bar.sync 0;", "different aligned instructions");
    stops(threads(64), "setp.lt.u32 %p1, %t, 32; @%p1 bra $A; bar.sync 1; bra $B;\n$A: bar.sync 2;\n$B:", "deadlock");
    stops(threads(64), "bar.sync 1, 48;", "a multiple of 32");
    stops(threads(64), "bar.sync 16;", "barrier 16 of 16");
    stops(threads(64), "bar.sync 1, 96;", "in a block of 64");
    stops(threads(96), "setp.lt.u32 %p1, %t, 32; @%p1 bra $A; bar.sync 1, 64; bra $B;\n$A: bar.sync 1, 96;\n$B:", "while others wait there for");
    good(threads(96), "setp.lt.u32 %p1, %t, 64; @%p1 bar.sync 1, 64;");
    stops(small, "trap;", "the kernel traps");
    struct rig endless = small;
    endless.config.max_steps = 10000;
    stops(endless, "$A: bra $A;", "and no end");
    stops(small, "barrier.cluster.wait;", "did not arrive");
    stops(small, "barrier.cluster.arrive; barrier.cluster.arrive;", "arrive twice");
    stops(small, ".shared .align 4 .b8 s[4]; mov.u32 %r1, s; mapa.shared::cluster.u32 %r2, %r1, 1;", "of a cluster of 1");
}

/* ---- mbarriers and bulk copies ---- */

#define MBAR ".shared .align 8 .b8 m[8]; .shared .align 128 .b8 s[1024]; mov.u32 %r1, m; mov.u32 %r2, s; setp.eq.u32 %p1, %t, 0;"
#define INIT MBAR "@%p1 mbarrier.init.shared::cta.b64 [%r1], 1; @%p1 fence.mbarrier_init.release.cluster; bar.sync 0;"
#define WAIT "$W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0; @!%p2 bra $W;"
#define LOAD "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256;" \
             "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%in], 256, [%r1];"

static void mbarriers(void)
{
    stops(small, MBAR "mbarrier.arrive.shared::cta.b64 _, [%r1];", "no mbarrier was initialised");
    stops(small, MBAR "@%p1 mbarrier.init.shared::cta.b64 [%r1], 0;", "for 0 arrivals");
    stops(small, MBAR "@%p1 mbarrier.init.shared::cta.b64 [%r1+4], 1;", "not aligned to 8");
    stops(small, INIT "@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;", "without mbarrier.inval");
    good(small, INIT "@%p1 mbarrier.inval.shared::cta.b64 [%r1]; @%p1 mbarrier.init.shared::cta.b64 [%r1], 1;");
    stops(threads(64), MBAR "@%p1 mbarrier.init.shared::cta.b64 [%r1], 64; mbarrier.arrive.shared::cta.b64 _, [%r1];",
          "used before its initialisation by warp 0 is known");
    stops(small, INIT "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1], 2;", "which waits for 1 more");
    stops(small, INIT "@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 1048576;", "can be counted");
    stops(small, INIT "mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r1], 2;", "wanted 0 or 1");
    stops(small, INIT WAIT, "deadlock");
    good(small, INIT "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];" WAIT);
    /* Loads. */
    stops(small, INIT "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 240;"
          "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%in], 200, [%r1];", "multiple of 16");
    stops(small, INIT "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%in+8], 16, [%r1];", "aligned to 16");
    stops(small, INIT LOAD "ld.shared.u32 %r5, [%r2];", "on its way");
    stops(small, INIT LOAD, "was not waited for");
    good(small, INIT LOAD WAIT "ld.shared.u32 %r5, [%r2+252];");
    /* Too few bytes are expected: the phase never ends. Too many: neither. */
    stops(small, INIT "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 272;"
          "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%in], 256, [%r1];" WAIT, "deadlock");
    /* The wait of one warp is nothing to another. */
    stops(threads(64), INIT LOAD "setp.lt.u32 %p3, %t, 32; @!%p3 bra $B;" WAIT "bra $C;\n$B: mov.u32 %r9, 0;\n"
          "$D: add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, 200000; @%p4 bra $D; ld.shared.u32 %r5, [%r2];\n$C:",
          "without having waited for it");
    /* Other threads still read what is loaded over. */
    stops(threads(64), INIT "st.shared.u32 [%r2], 0;", "race");
    stops(threads(64), INIT "setp.eq.u32 %p5, %t, 40; @%p5 st.shared.u32 [%r2], 0; bar.sync 0; ld.shared.u32 %r6, [%r2];"
          LOAD "bar.sync 0;", "race");
}

static void stores(void)
{
    struct rig out = small;
    out.out_bytes = 256;
#define FILL ".shared .align 128 .b8 s[256]; mov.u32 %r2, s; setp.eq.u32 %p1, %t, 0; shl.b32 %r3, %t, 3; add.s32 %r3, %r2, %r3;" \
             "mov.u64 %d1, 7; st.shared.u64 [%r3], %d1;"
#define STORE "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%out], [%r2], 256; @%p1 cp.async.bulk.commit_group;"
    stops(out, FILL "bar.sync 0;" STORE "@%p1 cp.async.bulk.wait_group 0;", "without fence.proxy.async");
    good(out, FILL "fence.proxy.async.shared::cta; bar.sync 0;" STORE "@%p1 cp.async.bulk.wait_group 0;");
    stops(out, FILL "fence.proxy.async.shared::cta; bar.sync 0;" STORE, "was not waited for");
    stops(out, FILL "fence.proxy.async.shared::cta; bar.sync 0;" STORE "@%p1 st.shared.u64 [%r3], %d1; @%p1 cp.async.bulk.wait_group 0;",
          "while an asynchronous read");
    good(out, FILL "fence.proxy.async.shared::cta; bar.sync 0;" STORE "@%p1 cp.async.bulk.wait_group.read 0; bar.sync 0; st.shared.u64 [%r3], %d1;");
    /* cp.async: visible to its lane when waited for, to others behind a barrier. */
#define COPY ".shared .align 16 .b8 s[512]; mov.u32 %r2, s; shl.b32 %r3, %t, 4; add.s32 %r3, %r2, %r3;" \
             "mul.wide.u32 %d2, %t, 16; add.s64 %d2, %in, %d2; cp.async.cg.shared.global [%r3], [%d2], 16; cp.async.commit_group;"
    stops(small, COPY "ld.shared.u32 %r4, [%r3];", "on its way");
    good(small, COPY "cp.async.wait_group 0; ld.shared.u32 %r4, [%r3];");
    stops(small, COPY "cp.async.wait_group 1; ld.shared.u32 %r4, [%r3];", "on its way");
    stops(small, COPY "cp.async.wait_group 0; ld.shared.u32 %r4, [%r2];", "race");
    good(small, COPY "cp.async.wait_group 0; bar.sync 0; ld.shared.u32 %r4, [%r2];");
    /* Two copies of the second warp with an arrival behind each, which happen in any order: the first warp may read what it
     * has waited for, and no more. */
#define TWO ".shared .align 8 .b8 m[16]; .shared .align 16 .b8 s[1024]; mov.u32 %r1, m; mov.u32 %r2, s; setp.eq.u32 %p1, %t, 0;" \
            "@%p1 mbarrier.init.shared::cta.b64 [%r1], 32; @%p1 mbarrier.init.shared::cta.b64 [%r1+8], 32; bar.sync 0;" \
            "and.b32 %r5, %t, 31; shl.b32 %r3, %r5, 4; add.s32 %r3, %r2, %r3; mul.wide.u32 %d2, %r5, 16; add.s64 %d2, %in, %d2;" \
            "setp.lt.u32 %p3, %t, 32; @%p3 bra $W; cp.async.cg.shared.global [%r3], [%d2], 16;" \
            "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1]; cp.async.cg.shared.global [%r3+512], [%d2], 16;" \
            "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1+8]; bra $E;" WAIT
#define BOTH "$V: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+8], 0; @!%p2 bra $V;"
    good(threads(64), TWO "ld.shared.u32 %r4, [%r3];" BOTH "ld.shared.u32 %r4, [%r3+512]; $E: bar.sync 0;");
    stops(threads(64), TWO "ld.shared.u32 %r4, [%r3+512];" BOTH "$E: bar.sync 0;", "on its way");
}

int main(void)
{
    text();
    memory();
    races();
    lanes();
    mbarriers();
    stores();
    printf("%d faults, each stopped\n", n_stops);
    return 0;
}
