/* Tests of the tests: sm_100a attention with one thing broken in its emitted PTX (a wait or fence left out, a wrong
 * phase, descriptor field or operand, an early free) must not pass, under at least one of a few schedules. What caught it is
 * printed. */
#include "ptxsim/sm100a/sm100a_attend.h"

#define WAIT "mbarrier.try_wait.parity"
#define AFTER "tcgen05.fence::after_thread_sync"
#define BEFORE "tcgen05.fence::before_thread_sync"

static const struct ptx_breakage many[] = {
    /* Waits, in their order in the code: a pair of chunks empty, eight chunks full, weights made, scores made, sums
     * made. The last three chunks are known to be full together. */
    {"no wait for empty pairs", WAIT, 0, PTX_SKIP_WAIT, NULL},
    {"no wait for a full first chunk", WAIT, 1, PTX_SKIP_WAIT, NULL},
    {"no wait for a full fifth chunk", WAIT, 5, PTX_SKIP_WAIT, NULL},
    {"no wait for weights", WAIT, 9, PTX_SKIP_WAIT, NULL},
    {"no wait for scores", WAIT, 10, PTX_SKIP_WAIT, NULL},
    {"no wait for sums", WAIT, 11, PTX_SKIP_WAIT, NULL},
    {"phase 0 for empty pairs", WAIT, 0, PTX_LAST, "0"},
    {"phase 1 for empty pairs", WAIT, 0, PTX_LAST, "1"},
    {"phase 0 for full chunks", WAIT, 1, PTX_LAST, "0"},
    {"phase 1 for full chunks", WAIT, 1, PTX_LAST, "1"},
    {"phase 0 for weights", WAIT, 9, PTX_LAST, "0"},
    {"phase 1 for weights", WAIT, 9, PTX_LAST, "1"},
    {"phase 0 for scores", WAIT, 10, PTX_LAST, "0"},
    {"phase 1 for scores", WAIT, 10, PTX_LAST, "1"},
    {"phase 1 for sums", WAIT, 11, PTX_LAST, "1"},
    /* Fences: those behind the allocation and full chunks stand before others that cover them. */
    {"no fence behind the allocation", BEFORE, 0, PTX_DELETE, NULL},
    {"no fence after weights", AFTER, 9, PTX_DELETE, NULL},
    {"no fence after scores", AFTER, 10, PTX_DELETE, NULL},
    {"no fence after sums", AFTER, 11, PTX_DELETE, NULL},
    {"no fence behind the weights' loads and stores", BEFORE, 1, PTX_DELETE, NULL},
    {"no fence before freeing", AFTER, 12, PTX_DELETE, NULL},
    {"rows not shown to the tensor core", "fence.proxy.async", 0, PTX_DELETE, NULL},
    {"weights not shown to the tensor core", "fence.proxy.async", 4, PTX_DELETE, NULL},
    {"no wait for loads", "tcgen05.wait::ld", -1, PTX_DELETE, NULL},
    {"no wait for stores", "tcgen05.wait::st", -1, PTX_DELETE, NULL},
    /* arrivals */
    {"scores never made", "tcgen05.commit", 0, PTX_DELETE, NULL},
    {"chunks never emptied", "tcgen05.commit", 1, PTX_DELETE, NULL},
    {"sums never made", "tcgen05.commit", 2, PTX_DELETE, NULL},
    {"a chunk never announced", "mbarrier.arrive", 2, PTX_DELETE, NULL},
    {"weights never announced", "mbarrier.arrive", 4, PTX_DELETE, NULL},
    {"chunks announced a copy early", "cp.async.wait_group 3", 0, PTX_REPLACE, "cp.async.wait_group 4"},
    {"the last chunks announced early", "cp.async.wait_all", 0, PTX_DELETE, NULL},
    {"warps' maxima not awaited", "bar.sync 1, 128", 0, PTX_DELETE, NULL},
    /* the instruction descriptors, 0x08100490 and 0x08118490 */
    {"scores of 56 heads", "135267472", -1, PTX_REPLACE, "135136400"},
    {"scores of fp16", "135267472", -1, PTX_REPLACE, "135267344"},
    {"scores with m = 64", "135267472", -1, PTX_REPLACE, "68158608"},
    {"scores with negated rows", "135267472", -1, PTX_REPLACE, "135275664"},
    {"scores in fp16 sums", "135267472", -1, PTX_REPLACE, "135267456"},
    {"sums of rows that are not turned", "135365776", -1, PTX_REPLACE, "135333008"},
    {"sums of weights that are not turned", "135365776", -1, PTX_REPLACE, "135300240"},
    {"sums of 128 heads", "135365776", -1, PTX_REPLACE, "136414352"},
    /* matrix descriptors */
    {"no version bits", "4611756662049538048", -1, PTX_REPLACE, "4611686293305360384"},
    {"64-byte swizzle", "4611756662049538048", -1, PTX_REPLACE, "9223442680476925952"},
    {"half the stride between groups of rows", "4611756662049538048", -1, PTX_REPLACE, "4611756524610584576"},
    {"64 bytes for a step along k", "4611756662049538050", -1, PTX_REPLACE, "4611756662049538052"},
    {"the next 64 channels at the next chunk but one", "4611756662116581376", -1, PTX_REPLACE, "4611756662183690240"},
    {"half the stride between rows of k", "4611756662116581376", -1, PTX_REPLACE, "4611756524677627904"},
    {"no swizzle of weights", "4611756662049472512", -1, PTX_REPLACE, "70643622084608"},
    /* tensor memory */
    {"freed while it is read", "bar.sync \t0", 1, PTX_DELETE, NULL},
    {"used before it is allocated", "bar.sync \t0", 0, PTX_DELETE, NULL},
    {"never freed", "tcgen05.dealloc", 0, PTX_DELETE, NULL},
    {"too few columns", "tcgen05.alloc", 0, PTX_LAST, "256"},
};

/* What only a cluster can get wrong. */
static const struct ptx_breakage few[] = {
    {"blocks join before all have written", "barrier.cluster.wait", 0, PTX_DELETE, NULL},
    {"a block ends while others read", "barrier.cluster.wait", 1, PTX_DELETE, NULL},
    {"all read the first block", "mapa.shared::cluster", -1, PTX_LAST, "0"},
};

/* Two sets of weights. */
static const struct ptx_breakage nvfp4[] = {
    {"no wait for the rotary channels' weights", WAIT, 10, PTX_SKIP_WAIT, NULL},
    {"rotary weights while the others are read", WAIT, 12, PTX_SKIP_WAIT, NULL},
    {"rotary weights not shown to the tensor core", "fence.proxy.async", 3, PTX_DELETE, NULL},
};

/* fp32 queries: two parts of each, and of weights, side by side. */
static const struct ptx_breakage f32[] = {
    {"first parts of queries overwritten by the second", "+135168]", 0, PTX_REPLACE, "+131072]"},
    {"first parts of scores twice", ", 416;", 0, PTX_REPLACE, ", 384;"},
    {"second parts of eight weights left out", "+196608]", 1, PTX_DELETE, NULL},
    {"second parts of sums not read", "tcgen05.ld.sync.aligned.32x32b.x8", 1, PTX_DELETE, NULL},
};

static const struct rig_attend problems[] = {
    {.format = NIB_ROW_BF16, .n_heads = 7, .n_rows = 1, .n_window = 128, .ratio = 4, .pos = 900, .o_f32 = true,
     .spice = RIG_SHARP},
    {.format = NIB_ROW_BF16, .few = true, .n_heads = 20, .n_rows = 1, .n_window = 128, .pos = 400, .o_f32 = true},
    {.format = NIB_ROW_NVFP4, .n_heads = 7, .n_rows = 1, .n_window = 128, .ratio = 4, .pos = 560, .o_f32 = true,
     .spice = RIG_SHARP},
    {.format = NIB_ROW_BF16, .f32 = true, .n_heads = 7, .n_rows = 1, .n_window = 128, .ratio = 4, .pos = 900,
     .o_f32 = true, .spice = RIG_SHARP},
};

static bool caught(const void *problem, struct px_module *module, uint64_t seed, char *text, size_t bytes)
{
    struct rig_attend r = *(const struct rig_attend *)problem;
    r.module = module;
    r.seed = seed;
    r.config = (struct px_config){.seed = seed, .max_steps = 5000000};
    return !rig_attend_run(&r, text, bytes);
}

static void break_all(const struct rig_attend *problem, const char *entry, const struct ptx_breakage *list, size_t n)
{
    rig_break_all(&(struct rig_broken){"attend_sm100a", entry, 6, problem, caught}, list, n);
}

static void many_rows(void **state)
{
    (void)state;
    break_all(&problems[0], "nib_sm100a_attend_bf16", many, sizeof many / sizeof many[0]);
}

static void few_rows(void **state)
{
    (void)state;
    break_all(&problems[1], "nib_sm100a_attend_bf16", few, sizeof few / sizeof few[0]);
}

static void two_sets_of_weights(void **state)
{
    (void)state;
    break_all(&problems[2], "nib_sm100a_attend_nvfp4", nvfp4, sizeof nvfp4 / sizeof nvfp4[0]);
}

static void fp32_queries(void **state)
{
    (void)state;
    break_all(&problems[3], "nib_sm100a_attend_f32_bf16", f32, sizeof f32 / sizeof f32[0]);
    break_all(&problems[3], "nib_sm100a_attend_f32_bf16", many, sizeof many / sizeof many[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_rows),
                                       cmocka_unit_test(few_rows), cmocka_unit_test(two_sets_of_weights),
                                       cmocka_unit_test(fp32_queries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
