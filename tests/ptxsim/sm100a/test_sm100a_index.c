/* The sm_100a indexer's scores, from their emitted PTX, held to sums in double; with `long` under more schedules, and
 * with one thing broken in the PTX, which must be caught under one of a few. */
#include "ptxsim/blackwell/index_rig.h"
#include "ptxsim/sm100a/sm100a_rig.h"

static bool long_run;

static bool run(const struct index_problem *p, struct px_module *module, char *text, size_t bytes)
{
    return index_run(p, module ? module : rig_module("index_sm100a"),
                     p->fp4     ? "nib_sm100a_index_fp4"
                     : p->q_f32 ? "nib_sm100a_index_f32_bf16"
                                : "nib_sm100a_index_bf16",
                     NIB_SM100A_INDEX_THREADS,
                     p->fp4 ? NIB_SM100A_INDEX_FP4_SHARED : NIB_SM100A_INDEX_BF16_SHARED, text, bytes);
}

static const struct index_problem cases[] = {
    {.fp4 = true, .n_heads = 64, .n_rows = 1, .pos = 2900, .top_k = 64, .blocks = 1},
    {.fp4 = true, .q_f32 = true, .n_heads = 5, .n_rows = 3, .pos = 1000, .top_k = 60, .blocks = 2, .traced = true},
    {.fp4 = true, .n_heads = 100, .n_rows = 3, .pos = 200, .top_k = 55, .blocks = 3, .not_finite = true},
    {.fp4 = false, .n_heads = 64, .n_rows = 1, .pos = 2000, .top_k = 64, .blocks = 1},
    {.fp4 = false, .n_heads = 3, .n_rows = 3, .pos = 30, .top_k = 40, .blocks = 2, .traced = true, .not_finite = true},
    {.fp4 = false, .q_f32 = true, .n_heads = 64, .n_rows = 1, .pos = 1900, .top_k = 64, .blocks = 1},
    {.fp4 = false, .q_f32 = true, .n_heads = 8, .n_rows = 3, .pos = 900, .top_k = 40, .blocks = 2, .not_finite = true},
};

static void all_cases(void **state)
{
    (void)state;
    char text[1024];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint64_t schedule = 0; schedule < (long_run ? 12 : 1); schedule++) {
            struct index_problem p = cases[i];
            p.seed = i + 10 * schedule;
            p.config = (struct px_config){.seed = long_run ? schedule : i % 3, .elect_high = schedule % 2 == 1,
                                          .mma_by_steps = schedule == 3, .resident = schedule % 3 == 2 ? 2 : 0};
            if (!run(&p, NULL, text, sizeof text))
                fail_msg("case %d, schedule %d: %s", (int)i, (int)schedule, text);
        }
}

/* ---- Broken ---- */

#define WAIT "mbarrier.try_wait.parity"

static const struct ptx_breakage breakages[] = {
    /* Waits, in their order in the code: a stage empty, the query there, an accumulator free, a stage full, products
     * done. */
    {"no wait for an empty stage", WAIT, 0, PTX_SKIP_WAIT, NULL},
    {"no wait for the query", WAIT, 1, PTX_SKIP_WAIT, NULL},
    {"no wait for a free accumulator", WAIT, 2, PTX_SKIP_WAIT, NULL},
    {"no wait for a full stage", WAIT, 3, PTX_SKIP_WAIT, NULL},
    {"no wait for products", WAIT, 4, PTX_SKIP_WAIT, NULL},
    {"phase 0 for empty stages", WAIT, 0, PTX_LAST, "0"},
    {"phase 1 for empty stages", WAIT, 0, PTX_LAST, "1"},
    {"phase 1 for the query", WAIT, 1, PTX_LAST, "1"},
    {"phase 0 for free accumulators", WAIT, 2, PTX_LAST, "0"},
    {"phase 1 for free accumulators", WAIT, 2, PTX_LAST, "1"},
    {"phase 0 for full stages", WAIT, 3, PTX_LAST, "0"},
    {"phase 1 for full stages", WAIT, 3, PTX_LAST, "1"},
    {"phase 0 for products", WAIT, 4, PTX_LAST, "0"},
    {"phase 1 for products", WAIT, 4, PTX_LAST, "1"},
    {"no fence after a free accumulator", "fence::after_thread_sync", 2, PTX_DELETE, NULL},
    {"no fence after products", "fence::after_thread_sync", 3, PTX_DELETE, NULL},
    {"no fence behind the allocation", "fence::before_thread_sync", 0, PTX_DELETE, NULL},
    {"no fence behind the loads", "fence::before_thread_sync", 1, PTX_DELETE, NULL},
    {"keys not shown to the tensor core", "fence.proxy.async", 0, PTX_DELETE, NULL},
    {"the query not shown to the tensor core", "fence.proxy.async", 2, PTX_DELETE, NULL},
    {"no wait for loads", "tcgen05.wait::ld", -1, PTX_DELETE, NULL},
    {"keys announced a tile early", "cp.async.wait_group 3", 0, PTX_REPLACE, "cp.async.wait_group 4"},
    {"the last keys announced early", "cp.async.wait_all", 0, PTX_DELETE, NULL},
    {"the query announced by three warps", "mbarrier.init", 12, PTX_LAST, "3"},
    {"stages never emptied", "tcgen05.commit", 0, PTX_DELETE, NULL},
    {"products never done", "tcgen05.commit", 1, PTX_DELETE, NULL},
    {"the query's scales not copied", "tcgen05.cp", 0, PTX_DELETE, NULL},
    {"the keys' scales not copied", "tcgen05.cp", 1, PTX_DELETE, NULL},
    {"scales of the first half twice", "1216349344", -1, PTX_REPLACE, "142607488"},
    {"32-byte swizzle of keys", "-9223301530671579136", -1, PTX_REPLACE,
     "-4611615512244191232"},
    {"never accumulating", "setp.ne.b32 p,", 1, PTX_REPLACE, "setp.ne.b32 p, 0, 0; // "},
    {"always accumulating", "setp.ne.b32 p,", 0, PTX_REPLACE, "setp.eq.b32 p, 0, 0; // "},
    {"freed while it is read", "bar.sync \t0", 1, PTX_DELETE, NULL},
    {"never freed", "tcgen05.dealloc", 0, PTX_DELETE, NULL},
};

/* Of fp32 queries of BF16 keys, whose two parts have columns of their own; two stages. */
static const struct ptx_breakage f32_breakages[] = {
    {"second parts of products not read", "tcgen05.ld", 1, PTX_DELETE, NULL},
    {"second parts read before they are there", "tcgen05.wait::ld", 1, PTX_DELETE, NULL},
    {"no wait for an empty stage", WAIT, 0, PTX_SKIP_WAIT, NULL},
    {"no wait for the query", WAIT, 1, PTX_SKIP_WAIT, NULL},
    {"no wait for a free accumulator", WAIT, 2, PTX_SKIP_WAIT, NULL},
    {"no wait for a full stage", WAIT, 3, PTX_SKIP_WAIT, NULL},
    {"no wait for products", WAIT, 4, PTX_SKIP_WAIT, NULL},
    {"keys announced a tile early", "cp.async.wait_group 1", 0, PTX_REPLACE, "cp.async.wait_group 2"},
    {"64-byte swizzle of keys and queries", "4611756662049538048", -1, PTX_REPLACE, "9223442680476925952"},
    {"too few columns", "tcgen05.alloc", 0, PTX_LAST, "32"},
};

static bool caught(const void *problem, struct px_module *module, uint64_t seed, char *text, size_t bytes)
{
    struct index_problem p = *(const struct index_problem *)problem;
    p.seed = seed;
    p.config = (struct px_config){.seed = seed, .max_steps = 5000000};
    return !run(&p, module, text, bytes);
}

static void broken_kernels(void **state)
{
    (void)state;
    struct index_problem fp4 = {.fp4 = true, .n_heads = 40, .n_rows = 1, .pos = 5100, .top_k = 64, .blocks = 1}, f32 = fp4;
    f32.fp4 = false;
    f32.q_f32 = true;
    if (!long_run)
        return;
    rig_break_all(&(struct rig_broken){"index_sm100a", "nib_sm100a_index_fp4", 6, &fp4, caught}, breakages,
                  sizeof breakages / sizeof breakages[0]);
    rig_break_all(&(struct rig_broken){"index_sm100a", "nib_sm100a_index_f32_bf16", 6, &f32, caught}, f32_breakages,
                  sizeof f32_breakages / sizeof f32_breakages[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_cases), cmocka_unit_test(broken_kernels)};
    long_run = argc > 1 && strcmp(argv[1], "long") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
