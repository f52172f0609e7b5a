/* mma.sync with block scales from PTX text: registers, types and selectors must reach the product as they were
 * written. The product itself is held to sums in test_tensor_products; here the same registers go there directly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ptxsim/ptx_rig.h"
#include "ptxsim/tensor.h"

/* A lane's registers in memory: a, b, c, scales of a and b, and one unused. */
struct lane {
    uint32_t a[4], b[2], c[4], scale_a, scale_b;
};

static void fill(struct lane lane[32], bool ue4m3)
{
    uint32_t seed = 77;
    for (int l = 0; l < 32; l++) {
        uint32_t *word = (uint32_t *)(void *)&lane[l];
        for (int r = 0; r < 12; r++) {
            seed = seed * 1664525u + 1013904223u;
            word[r] = seed ^ seed >> 15;
        }
        for (int r = 0; r < 4; r++) { /* C of moderate size */
            float c = (float)(int32_t)lane[l].c[r] * 0x1p-20f;
            memcpy(&lane[l].c[r], &c, 4);
        }
        for (int part = 0; part < 2; part++) {
            uint32_t *s = part ? &lane[l].scale_b : &lane[l].scale_a;
            *s = ue4m3 ? *s & 0x3f3f3f3fu : (*s & 0x07070707u) + 0x7c7c7c7cu;
        }
    }
}

static const char *program(const char *op, const char *selectors_a, const char *selectors_b)
{
    static char text[2048];
    (void)snprintf(text, sizeof text,
                   "mul.wide.u32 %%d1, %%t, 48;\n"
                   "add.u64 %%d2, %%in, %%d1;\n"
                   "ld.global.v4.u32 {%%r1, %%r2, %%r3, %%r4}, [%%d2];\n"
                   "ld.global.v2.u32 {%%r5, %%r6}, [%%d2+16];\n"
                   "ld.global.v2.u32 {%%r7, %%r8}, [%%d2+24];\n"
                   "ld.global.v2.u32 {%%r9, %%r10}, [%%d2+32];\n"
                   "ld.global.v2.u32 {%%r11, %%r12}, [%%d2+40];\n"
                   "mov.b32 %%f1, %%r7;\nmov.b32 %%f2, %%r8;\nmov.b32 %%f3, %%r9;\nmov.b32 %%f4, %%r10;\n"
                   "mov.u16 %%h1, 1;\n"
                   "mma.sync.aligned.%s {%%f5, %%f6, %%f7, %%f8}, {%%r1, %%r2, %%r3, %%r4}, {%%r5, %%r6}, "
                   "{%%f1, %%f2, %%f3, %%f4}, %%r11, %s, %%r12, %s;\n"
                   "mul.wide.u32 %%d3, %%t, 16;\n"
                   "add.u64 %%d4, %%out, %%d3;\n"
                   "st.global.v4.f32 [%%d4], {%%f5, %%f6, %%f7, %%f8};\n",
                   op, selectors_a, selectors_b);
    return text;
}

static void check(const char *op, const char *selectors_a, const char *selectors_b, struct sim_mma_sync want)
{
    static const struct sim_choices plain;
    struct lane                     lane[32];
    uint32_t                        a[32][4], b[32][2], scale_a[32], scale_b[32];
    float                           d[32][4], got[32][4];
    struct sim_fault                fault;
    fill(lane, want.scale_type == SIM_UE4M3);
    for (int l = 0; l < 32; l++) {
        if (!want.packed && want.a_type == SIM_E2M1) /* 4-bit values in the middle of bytes */
            for (int r = 0; r < 4; r++)
                lane[l].a[r] &= 0x3c3c3c3cu;
        memcpy(a[l], lane[l].a, sizeof a[l]);
        memcpy(b[l], lane[l].b, sizeof b[l]);
        memcpy(d[l], lane[l].c, sizeof d[l]);
        scale_a[l] = lane[l].scale_a;
        scale_b[l] = lane[l].scale_b;
    }
    want.a = (const uint32_t (*)[4])a;
    want.b = (const uint32_t (*)[2])b;
    want.scale_a = scale_a;
    want.scale_b = scale_b;
    want.d = d;
    if (!sim_mma_sync(&want, &plain, &fault))
        fail_msg("%s", fault.text);
    struct rig r = {.body = program(op, selectors_a, selectors_b),
                    .in = lane,
                    .in_bytes = sizeof lane,
                    .out = got,
                    .out_bytes = sizeof got};
    rig_good(&r);
    assert_memory_equal(got, d, sizeof d);
}

static void scaled_products(void **state)
{
    (void)state;
    check("m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3", "{0, 0}", "{0, 0}",
          (struct sim_mma_sync){
              .a_type = SIM_E2M1, .b_type = SIM_E2M1, .packed = true, .scale = SIM_SCALE_4X, .scale_type = SIM_UE4M3});
    check("m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3", "{0, %h1}", "{0, 3}",
          (struct sim_mma_sync){.a_type = SIM_E2M1,
                                .b_type = SIM_E2M1,
                                .packed = true,
                                .scale = SIM_SCALE_4X,
                                .scale_type = SIM_UE4M3,
                                .thread_a = 1,
                                .thread_b = 3});
    check("m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0", "{2, 0}", "{0, %h1}",
          (struct sim_mma_sync){.a_type = SIM_E2M1,
                                .b_type = SIM_E2M1,
                                .packed = true,
                                .scale = SIM_SCALE_2X,
                                .scale_type = SIM_UE8M0,
                                .byte_a = 2,
                                .thread_b = 1});
    check("m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e2m1.e5m2.f32.ue8m0", "{3, 1}", "{%h1, 2}",
          (struct sim_mma_sync){.a_type = SIM_E2M1,
                                .b_type = SIM_E5M2,
                                .scale = SIM_SCALE_1X,
                                .scale_type = SIM_UE8M0,
                                .byte_a = 3,
                                .thread_a = 1,
                                .byte_b = 1,
                                .thread_b = 2});
}

static void misuse(void **state)
{
    (void)state;
    struct lane lane[32];
    float       out[32][4];
    fill(lane, true);
    struct rig r = {.in = lane, .in_bytes = sizeof lane, .out = out, .out_bytes = sizeof out};
    r.body = program("m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3", "{1, 0}",
                     "{0, 0}");
    rig_stops(&r, "selectors {1, 0}");
    r.body = program("m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue4m3", "{0, 0}",
                     "{0, 0}");
    rig_stops(&r, "scale vector");
    lane[4].scale_a |= 0x80;
    r.body = program("m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3", "{0, 0}",
                     "{0, 0}");
    rig_stops(&r, "top bit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scaled_products), cmocka_unit_test(misuse)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
