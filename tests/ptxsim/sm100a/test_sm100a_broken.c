/* The simulator must tell right from wrong: the NVFP4 product with one thing broken in its emitted PTX (a fence or
 * wait left out, a wrong phase, descriptor field, byte count, early free) or in its operands (scales in another
 * layout) must not pass, under at least one of a few schedules. What caught it is printed. */
#include "ptxsim/sm100a/sm100a_rig.h"

#define WAIT "mbarrier.try_wait.parity"

static const struct ptx_breakage breakages[] = {
    /* Waits, in their order in the code: stage empty, drained at the end, accumulator free, scales free, stage
     * full, tile done. The drain is not missed here: commits of one thread take effect in order, so the epilogue
     * has seen the last one. */
    {"no wait for an empty stage", WAIT, 0, PTX_SKIP_WAIT, NULL},
    {"no wait for a free accumulator", WAIT, 2, PTX_SKIP_WAIT, NULL},
    {"no wait for free scale columns", WAIT, 3, PTX_SKIP_WAIT, NULL},
    {"no wait for a full stage", WAIT, 4, PTX_SKIP_WAIT, NULL},
    {"no wait for a finished tile", WAIT, 5, PTX_SKIP_WAIT, NULL},
    {"phase 0 for empty stages", WAIT, 0, PTX_LAST, "0"},
    {"phase 1 for empty stages", WAIT, 0, PTX_LAST, "1"},
    {"phase 0 for free accumulators", WAIT, 2, PTX_LAST, "0"},
    {"phase 1 for free accumulators", WAIT, 2, PTX_LAST, "1"},
    {"phase 0 for free scales", WAIT, 3, PTX_LAST, "0"},
    {"phase 1 for free scales", WAIT, 3, PTX_LAST, "1"},
    {"phase 0 for full stages", WAIT, 4, PTX_LAST, "0"},
    {"phase 1 for full stages", WAIT, 4, PTX_LAST, "1"},
    {"phase 0 for finished tiles", WAIT, 5, PTX_LAST, "0"},
    {"phase 1 for finished tiles", WAIT, 5, PTX_LAST, "1"},
    /* fences; those not named here stand before another that covers them */
    {"no fence after a full stage", "fence::after_thread_sync", 2, PTX_DELETE, NULL},
    {"no fence after a finished tile", "fence::after_thread_sync", 3, PTX_DELETE, NULL},
    {"no fence before freeing", "fence::after_thread_sync", 4, PTX_DELETE, NULL},
    {"no fence behind the allocation", "fence::before_thread_sync", 0, PTX_DELETE, NULL},
    {"no fence behind the loads", "fence::before_thread_sync", 1, PTX_DELETE, NULL},
    {"no wait for loads", "tcgen05.wait::ld", -1, PTX_DELETE, NULL},
    /* arrivals and bytes */
    {"stages never emptied", "tcgen05.commit", 0, PTX_DELETE, NULL},
    {"tiles never finished", "tcgen05.commit", 1, PTX_DELETE, NULL},
    {"accumulators never freed", "mbarrier.arrive.release", 0, PTX_DELETE, NULL},
    {"16 bytes too many expected", "mbarrier.arrive.expect_tx", 0, PTX_LAST, "36880"},
    {"16 bytes too few expected", "mbarrier.arrive.expect_tx", 0, PTX_LAST, "36848"},
    {"a copy of rows left out", "cp.async.bulk.tensor", 0, PTX_DELETE, NULL},
    {"a copy of scales left out", "cp.async.bulk.tensor", 3, PTX_DELETE, NULL},
    {"a stage's scales not copied", "tcgen05.cp", 5, PTX_DELETE, NULL},
    /* the instruction descriptor, 0x08200480 */
    {"UE8M0 scales", "136316032", -1, PTX_REPLACE, "144704640"},
    {"n = 120", "136316032", -1, PTX_REPLACE, "136184960"},
    {"m = 256", "136316032", -1, PTX_REPLACE, "270533760"},
    {"E2M1 as in mixed kinds", "136316032", -1, PTX_REPLACE, "136320640"},
    {"transposed A", "136316032", -1, PTX_REPLACE, "136348800"},
    {"negated A", "136316032", -1, PTX_REPLACE, "136324224"},
    {"scale id 1", "136316032", -1, PTX_REPLACE, "673186944"},
    /* matrix descriptors, 0x4000404000010000 and 0x0000400800010000 */
    {"no version bits", "4611756662049538048", -1, PTX_REPLACE, "4611686293305360384"},
    {"64-byte swizzle", "4611756662049538048", -1, PTX_REPLACE, "9223442680476925952"},
    {"no swizzle", "4611756662049538048", -1, PTX_REPLACE, "70643622150144"},
    {"half the stride between groups of rows", "4611756662049538048", -1, PTX_REPLACE, "4611756524610584576"},
    {"a base offset", "4611756662049538048", -1, PTX_REPLACE, "4612319612002959360"},
    {"64 bytes for a step along k", "4611756662049538050", -1, PTX_REPLACE, "4611756662049538052"},
    {"double stride in scale atoms", "70403103981568", -1, PTX_REPLACE, "70437463719936"},
    /* accumulation */
    {"always accumulating", "setp.ne.b32 p,", 0, PTX_REPLACE, "setp.ne.b32 p, 1, 0; // "},
    {"never accumulating", "setp.ne.b32 p,", 2, PTX_REPLACE, "setp.ne.b32 p, 0, 0; // "},
    /* tensor memory */
    {"freed while it is read", "bar.sync", 1, PTX_DELETE, NULL},
    {"never freed", "tcgen05.dealloc", 0, PTX_DELETE, NULL},
    {"used before it is allocated", "bar.sync", 0, PTX_DELETE, NULL},
    {"allocated by 48 columns", "tcgen05.alloc", 0, PTX_LAST, "48"},
    {"too few columns", "tcgen05.alloc", 0, PTX_LAST, "256"},
};

/* What only a pair of blocks can get wrong. */
static const struct ptx_breakage pair_breakages[] = {
    {"the odd block's stages never emptied", "tcgen05.commit", 0, PTX_LAST, "1"},
    {"the odd block's tiles never finished", "tcgen05.commit", 1, PTX_LAST, "1"},
    {"bytes counted at the odd block", "mapa", 0, PTX_LAST, "1"},
    {"accumulators freed at the odd block", "mapa", 1, PTX_LAST, "1"},
    {"bytes of one block expected", "mbarrier.arrive.expect_tx", 0, PTX_LAST, "34816"},
    {"bytes counted elsewhere by a copy for one block", ".cta_group::2.shared::cluster.global", 0, PTX_REPLACE,
     ".shared::cluster.global"},
    {"m = 128", "271582336", -1, PTX_REPLACE, "137364608"},
    {"n = 128", "271582336", -1, PTX_REPLACE, "270533760"},
    {"products of one block", "tcgen05.mma.cta_group::2", 0, PTX_REPLACE, "tcgen05.mma.cta_group::1"},
    {"no wait for full stages of both", WAIT, 4, PTX_SKIP_WAIT, NULL},
    {"no wait for free accumulators of both", WAIT, 2, PTX_SKIP_WAIT, NULL},
};

/* ---- Running ---- */

static struct rig_product problem(uint64_t seed, bool pair)
{
    if (pair)
        return (struct rig_product){
            .p = {.n_rows = 270, .n_out = 200, .n_in = 1568, .alpha = 1e-3f, .y_f32 = true, .n_ctas = 2, .n_sms = 2},
            .config = {.seed = seed, .max_steps = 20000000},
            .seed = seed};
    return (struct rig_product){
        .p = {.n_rows = 130, .n_out = 136, .n_in = 1568, .alpha = 1e-3f, .y_f32 = true, .n_ctas = 1, .n_sms = 1},
        .config = {.seed = seed, .max_steps = 20000000},
        .seed = seed};
}

/* What was wrong with it under this schedule; false if nothing was. */
static bool caught(struct px_module *module, bool pair, uint64_t seed, bool linear_scales, char *text, size_t bytes)
{
    struct rig_product r = problem(seed, pair);
    r.module = module;
    r.linear_scales = linear_scales;
    bool ran = rig_product_run(&r), right = ran && rig_product_right(&r, text, bytes);
    if (!ran)
        (void)snprintf(text, bytes, "%s", r.error);
    rig_product_free(&r);
    return !right;
}

static void must_be_caught(struct px_module *module, bool pair, const char *name, bool linear_scales)
{
    char text[1024];
    for (uint64_t seed = 0; seed < 4; seed++) {
        if (!caught(module, pair, seed, linear_scales, text, sizeof text))
            continue;
        char *line = strchr(text, '\n');
        if (line)
            *line = 0;
        printf("%s: schedule %d: %s\n", name, (int)seed, text);
        return;
    }
    fail_msg("%s: nothing was wrong", name);
}

static bool one_caught(const void *pair, struct px_module *module, uint64_t schedule, char *text, size_t bytes)
{
    return caught(module, *(const bool *)pair, schedule, false, text, bytes);
}

static void break_all(const char *entry, bool pair, const struct ptx_breakage *list, size_t n)
{
    rig_break_all(&(struct rig_broken){"linear_sm100a", entry, 4, &pair, one_caught}, list, n);
}

static void broken_kernels(void **state)
{
    (void)state;
    break_all("nib_sm100a_linear_one", false, breakages, sizeof breakages / sizeof breakages[0]);
}

static void broken_pairs(void **state)
{
    (void)state;
    break_all("nib_sm100a_linear_pair", true, pair_breakages, sizeof pair_breakages / sizeof pair_breakages[0]);
}

static void broken_operands(void **state)
{
    (void)state;
    must_be_caught(rig_module("linear_sm100a"), false, "scales row by row", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(broken_kernels),
                                       cmocka_unit_test(broken_pairs), cmocka_unit_test(broken_operands)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
