/* Tensor stores from PTX text: what stands in a box of shared memory goes to the tensor, element by element; and each
 * way to issue or to wait for one wrongly stops the kernel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ptxsim/ptxsim.h"
#include "ptxsim/tensor.h"

/* The tensor: 13 rows of 72 half words, 160 bytes apart; the box: 8 rows of 32 words at column 48 or row 6 and beyond. */
enum { ROWS = 13, COLUMNS = 72, STRIDE = 80, BOX_ROWS = 8, BOX_COLUMNS = 32, BOX_BYTES = BOX_ROWS * BOX_COLUMNS * 2 };

static const char head[] = ".version 9.0\n.target sm_90a\n.address_size 64\n"
                           ".visible .entry store(.param .u64 p_map, .param .u32 p_x, .param .u32 p_y)\n{\n"
                           ".reg .b32 %r<16>;\n.reg .b64 %d<4>;\n.reg .b16 %h<4>;\n.reg .pred %p<4>;\n"
                           ".shared .align 1024 .b8 box[1024];\n"
                           "ld.param.u64 %d1, [p_map];\nld.param.u32 %r1, [p_x];\nld.param.u32 %r2, [p_y];\n"
                           "mov.u32 %r3, box;\nmov.u32 %r4, %tid.x;\nsetp.eq.u32 %p1, %r4, 0;\n";
/* Half word i of the box's bytes is i + 1; two bytes a thread in rounds of 64 threads. */
static const char fill[] = "mov.u32 %r5, %r4;\n$F: shl.b32 %r6, %r5, 1;\nadd.u32 %r6, %r6, %r3;\nadd.u32 %r7, %r5, 1;\n"
                           "cvt.u16.u32 %h1, %r7;\nst.shared.u16 [%r6], %h1;\nadd.u32 %r5, %r5, 64;\n"
                           "setp.lt.u32 %p2, %r5, 256;\n@%p2 bra $F;\n";
#define FENCE "fence.proxy.async.shared::cta;\n"
#define SYNC "bar.sync 0;\n"
#define STORE "@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {%r1, %r2}], [%r3];\n"
#define COMMIT "@%p1 cp.async.bulk.commit_group;\n"
#define WAIT "@%p1 cp.async.bulk.wait_group 0;\n"
#define WAIT_READ "@%p1 cp.async.bulk.wait_group.read 0;\n"

/* Runs head, fill, body. The tensor's half words afterwards, or NULL and what stopped it. */
static uint16_t *run(const char *body, int x, int y, int swizzle, uint64_t seed, char *why, size_t why_bytes)
{
    char                   text[4096];
    const struct px_config config = {.seed = seed, .max_steps = 100000};
    struct px_machine     *m = px_machine_new(&config);
    (void)snprintf(text, sizeof text, "%s%s%s\nret;\n}\n", head, fill, body);
    struct px_module *module = px_module_parse(text, strlen(text), why, why_bytes);
    if (!module || !m)
        fail_msg("%s", why);
    uint16_t              *tensor = px_alloc(m, ROWS * STRIDE * 2), *got = calloc(ROWS * STRIDE, 2);
    struct sim_tensor_map *map = px_alloc(m, sizeof *map);
    uint64_t               dim[2] = {COLUMNS, ROWS}, stride[1] = {STRIDE * 2};
    uint32_t               box[2] = {BOX_COLUMNS, BOX_ROWS}, one[2] = {1, 1};
    assert_true(tensor && got && map);
    memset(tensor, 0, ROWS * STRIDE * 2);
    assert_int_equal(sim_tensor_map_encode_tiled(map, SIM_MAP_U16, 2, tensor, dim, stride, box, one, 0, swizzle, 0, 0), 0);
    assert_true(px_wrote(m, map, sizeof *map));
    const void      *params[] = {&map, &x, &y};
    struct px_launch l = {.grid = {1, 1, 1}, .block = {64, 1, 1}, .params = params};
    bool             ran = px_run(m, module, "store", &l);
    if (ran) {
        memcpy(got, tensor, ROWS * STRIDE * 2);
        /* Only what lies in the tensor counts as written. */
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < STRIDE; c++)
                assert_int_equal(px_written(m, tensor + r * STRIDE + c, 2), got[r * STRIDE + c] != 0);
    } else {
        (void)snprintf(why, why_bytes, "%s", px_error(m));
        free(got);
        got = NULL;
    }
    px_module_free(module);
    px_machine_free(m);
    return got;
}

static void boxes_go_out(void **state)
{
    (void)state;
    static const int places[][2] = {{0, 0}, {48, 6}, {-8, -3}, {64, 12}};
    char             why[1200];
    for (int swizzle = 0; swizzle <= 2; swizzle += 2) /* none, 64 bytes */
        for (size_t p = 0; p < 4; p++)
            for (uint64_t seed = 0; seed < 4; seed++) {
                int       x = places[p][0], y = places[p][1];
                uint16_t *got = run(FENCE SYNC STORE COMMIT WAIT, x, y, swizzle, seed, why, sizeof why);
                if (!got)
                    fail_msg("%s", why);
                for (int r = 0; r < ROWS; r++)
                    for (int c = 0; c < STRIDE; c++) {
                        int want = 0, i = r - y, j = c - x;
                        if (c < COLUMNS && i >= 0 && i < BOX_ROWS && j >= 0 && j < BOX_COLUMNS) {
                            int byte = i * BOX_COLUMNS * 2 + j * 2;
                            /* Swizzle of 64 bytes: piece of 16 bytes p of line l of 128 stands at p ^ (l mod 4). */
                            if (swizzle == 2)
                                byte = byte / 128 * 128 + ((byte % 128 / 16) ^ (byte / 128 % 4)) * 16 + byte % 16;
                            want = byte / 2 + 1;
                        }
                        assert_int_equal(got[r * STRIDE + c], want);
                    }
                free(got);
            }
}

static void stops(const char *body, const char *text)
{
    char      why[1200];
    uint16_t *got = run(body, 0, 0, 0, 0, why, sizeof why);
    if (got || !strstr(why, text))
        fail_msg("wanted '%s', found '%s' for\n%s", text, got ? "it ran" : why, body);
}

static void misuse(void **state)
{
    (void)state;
    stops(SYNC STORE COMMIT WAIT, "without fence.proxy.async");
    stops(FENCE STORE COMMIT WAIT, "where nobody wrote"); /* yet */
    stops(FENCE SYNC STORE COMMIT, "was not waited for");
    stops(FENCE SYNC STORE WAIT, "was not waited for"); /* never committed, so the wait does not mean it */
    stops(FENCE SYNC STORE COMMIT "@%p1 st.shared.u16 [%r3], %h1;\n" WAIT, "while an asynchronous read");
    stops(FENCE SYNC "@%p1 add.u32 %r3, %r3, 16;\n" STORE COMMIT WAIT, "not aligned to 128");
    stops(FENCE SYNC "@%p1 add.u32 %r3, %r3, 512;\n" STORE COMMIT WAIT, "where nobody wrote");
    stops(FENCE SYNC "@%p1 cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%d1, {%r1}], [%r3];\n" COMMIT WAIT,
          "1 dimensions through a map of 2");
    stops(FENCE SYNC "@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1+64, {%r1, %r2}], [%r3];\n"
          COMMIT WAIT, "global memory");
    char      why[1200];
    uint16_t *got = run(FENCE SYNC STORE COMMIT WAIT_READ SYNC "@%p1 st.shared.u16 [%r3], %h1;\n" WAIT, 0, 0, 0, 3, why,
                        sizeof why);
    if (!got)
        fail_msg("%s", why);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(boxes_go_out), cmocka_unit_test(misuse)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
