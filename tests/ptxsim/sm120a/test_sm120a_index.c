/* The sm_120a indexer's scores, from their emitted PTX, held to sums in double; with `long` under more schedules, and
 * with one thing broken in the PTX, which must be caught under one of a few. */
#include "ptxsim/blackwell/index_rig.h"
#include "ptxsim/sm120a/sm120a_rig.h"

static bool long_run;

static bool run(const struct index_problem *p, struct px_module *module, char *text, size_t bytes)
{
    return index_run(p, module ? module : rig_module("index_sm120a"), "nib_sm120a_index_fp4", NIB_SM120A_INDEX_THREADS, 0,
                     text, bytes);
}

static const struct index_problem cases[] = {
    {.fp4 = true, .n_heads = 64, .n_rows = 1, .pos = 2900, .top_k = 64, .blocks = 1},
    {.fp4 = true, .q_f32 = true, .n_heads = 5, .n_rows = 3, .pos = 1000, .top_k = 60, .blocks = 2, .traced = true},
    {.fp4 = true, .n_heads = 100, .n_rows = 3, .pos = 200, .top_k = 55, .blocks = 3, .not_finite = true},
    {.fp4 = true, .q_f32 = true, .n_heads = 128, .n_rows = 1, .pos = 2051, .top_k = 3, .blocks = 4},
};

static void all_cases(void **state)
{
    (void)state;
    char text[1024];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint64_t schedule = 0; schedule < (long_run ? 12 : 1); schedule++) {
            struct index_problem p = cases[i];
            p.seed = i + 10 * schedule;
            p.config = (struct px_config){.seed = long_run ? schedule : i % 3,
                                          .mma_by_steps = schedule == 3,
                                          .resident = schedule % 3 == 2 ? 2 : 0,
                                          .shared_most = 99 * 1024};
            if (!run(&p, NULL, text, sizeof text))
                fail_msg("case %d, schedule %d: %s", (int)i, (int)schedule, text);
        }
}

/* ---- Broken ---- */

#define PRODUCT "mma.sync"

static const struct ptx_breakage breakages[] = {
    {"the query read before it is there", "bar.sync", 0, PTX_DELETE, NULL},
    {"scales of the first half twice", "{2, 0}", 0, PTX_REPLACE, "{0, 0}"},
    {"a half not multiplied", PRODUCT, 1, PTX_DELETE, NULL},
    {"the second entries not multiplied", PRODUCT, 2, PTX_DELETE, NULL},
    {"columns of a quad not met", "shfl.sync.bfly", -1, PTX_REPLACE, "shfl.sync.idx"},
    {"negative products not cut off", "setp.lt.f32", 0, PTX_REPLACE, "setp.nan.f32"},
};

static bool caught(const void *problem, struct px_module *module, uint64_t seed, char *text, size_t bytes)
{
    struct index_problem p = *(const struct index_problem *)problem;
    p.seed = seed;
    p.config = (struct px_config){.seed = seed, .max_steps = 20000000};
    return !run(&p, module, text, bytes);
}

static void broken_kernels(void **state)
{
    (void)state;
    const struct index_problem p = {
        .fp4 = true, .q_f32 = true, .n_heads = 40, .n_rows = 1, .pos = 2100, .top_k = 64, .blocks = 1};
    if (long_run)
        rig_break_all(&(struct rig_broken){"index_sm120a", "nib_sm120a_index_fp4", 6, &p, caught}, breakages,
                      sizeof breakages / sizeof breakages[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_cases), cmocka_unit_test(broken_kernels)};
    long_run = argc > 1 && strcmp(argv[1], "long") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
