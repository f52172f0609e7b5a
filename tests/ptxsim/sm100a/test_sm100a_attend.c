/* The sm_100a attention kernels, from their emitted PTX: every format of rows, one tile and several, few rows (a
 * cluster) and many, heads that do not fill a block, sinks, scores far apart, what is not finite. */
#include "ptxsim/sm100a/sm100a_attend.h"

static bool long_run;

static void pass(const struct rig_attend *r)
{
    char text[1024];
    if (!rig_attend_run(r, text, sizeof text))
        fail_msg("format %d, %s queries, %s rows, %d heads, ratio %d, seed %d, schedule %d: %s", r->format,
                 r->f32 ? "fp32" : "bf16", r->few ? "few" : "many",
                 r->n_heads, r->ratio, (int)r->seed, (int)r->config.seed, text);
}

static const struct rig_attend cases[] = {
    {.format = NIB_ROW_BF16, .n_heads = 64, .n_rows = 1, .n_window = 128, .pos = 300, .o_f32 = true},
    {.format = NIB_ROW_BF16, .n_heads = 7, .n_rows = 2, .n_window = 128, .ratio = 4, .pos = 900, .o_f32 = true,
     .spice = RIG_SHARP},
    {.format = NIB_ROW_FP8, .n_heads = 66, .n_rows = 1, .n_window = 100, .ratio = 4, .top_k = 90, .pos = 700,
     .first_pos = 1},
    {.format = NIB_ROW_NVFP4, .n_heads = 5, .n_rows = 2, .n_window = 128, .ratio = 4, .pos = 600, .o_f32 = true,
     .o_odd = true,
     .spice = RIG_SHARP},
    {.format = NIB_ROW_BF16, .few = true, .n_heads = 9, .n_rows = 2, .n_window = 128, .ratio = 128, .pos = 400,
     .o_f32 = true},
    {.format = NIB_ROW_FP8, .few = true, .n_heads = 64, .n_rows = 1, .n_window = 128, .ratio = 4, .top_k = 200,
     .pos = 1000,
     .spice = RIG_SHARP},
    {.format = NIB_ROW_NVFP4, .few = true, .n_heads = 3, .n_rows = 2, .n_window = 30, .pos = 20, .first_pos = 1,
     .o_odd = true},
    {.format = NIB_ROW_BF16, .n_heads = 2, .n_rows = 2, .n_window = 128, .ratio = 128, .pos = 500,
     .spice = RIG_NOT_FINITE},
    {.format = NIB_ROW_NVFP4, .few = true, .n_heads = 2, .n_rows = 2, .n_window = 128, .pos = 500,
     .spice = RIG_NOT_FINITE},
    {.format = NIB_ROW_BF16, .f32 = true, .n_heads = 33, .n_rows = 1, .n_window = 128, .ratio = 4, .pos = 700, .o_f32 = true,
     .spice = RIG_SHARP},
    {.format = NIB_ROW_FP8, .f32 = true, .n_heads = 4, .n_rows = 2, .n_window = 128, .ratio = 4, .top_k = 8, .pos = 200},
    {.format = NIB_ROW_NVFP4, .f32 = true, .n_heads = 32, .n_rows = 1, .n_window = 128, .ratio = 128, .pos = 600,
     .o_f32 = true},
    {.format = NIB_ROW_NVFP4, .f32 = true, .few = true, .n_heads = 3, .n_rows = 2, .n_window = 128, .ratio = 4, .pos = 500,
     .o_f32 = true, .spice = RIG_SHARP},
    {.format = NIB_ROW_FP8, .f32 = true, .few = true, .n_heads = 40, .n_rows = 1, .n_window = 100, .pos = 300},
    {.format = NIB_ROW_BF16, .f32 = true, .few = true, .n_heads = 2, .n_rows = 2, .n_window = 128, .pos = 500,
     .spice = RIG_NOT_FINITE},
};

static void all_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint64_t schedule = 0; schedule < (long_run ? 6 : 1); schedule++) {
            struct rig_attend r = cases[i];
            r.seed = i + 100 * schedule;
            r.config = (struct px_config){.seed = long_run ? schedule : i % 3, .elect_high = schedule % 2 == 1,
                                          .mma_by_steps = schedule == 3};
            pass(&r);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_cases)};
    long_run = argc > 1 && strcmp(argv[1], "long") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
