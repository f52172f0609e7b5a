/* Attention on sm_120a: every format of rows, windows and entries, rows as a whole and spans apart, which give the same
 * bits. `broken`: one thing wrong in the emitted PTX, which must be seen. `long`: more schedules. */
#include "ptxsim/ptx_break.h"
#include "ptxsim/sm120a/attend_rig.h"

static const enum nib_row_format formats[] = {NIB_ROW_BF16, NIB_ROW_FP8, NIB_ROW_NVFP4};

/* As a whole and in spans; seed: of the schedule. */
static void both_ways(struct rig_attend r, int32_t n_spans, uint64_t seed)
{
    char              text[300];
    struct rig_attend apart = r;
    r.config.seed = apart.config.seed = seed;
    apart.n_spans = n_spans;
    if (!rig_attend_run(&r) || !rig_attend_run(&apart))
        fail_msg("format %d: %s%s", (int)r.format, r.error, apart.error);
    if (!rig_attend_right(&r, text, sizeof text) || !rig_attend_right(&apart, text, sizeof text))
        fail_msg("format %d: %s", (int)r.format, text);
    assert_memory_equal(r.o, apart.o, (size_t)r.n_rows * (size_t)r.n_heads * 512 * sizeof *r.o);
    rig_attend_free(&r);
    rig_attend_free(&apart);
}

/* First row of all, a window that ends inside a span, one that fills spans; heads that end inside a group. */
static void windows(void **state)
{
    (void)state;
    static const int32_t pos[] = {0, 40, 127};
    for (int f = 0; f < 3; f++)
        both_ways((struct rig_attend){.format = formats[f],
                                      .n_heads = f == 0 ? 35 : 5,
                                      .n_rows = 3,
                                      .n_window = 128,
                                      .pos = pos,
                                      .bf16_out = f == 1,
                                      .f32_query = f == 0,
                                      .seed = (uint64_t)f},
                  3, (uint64_t)f);
}

static void entries(void **state)
{
    (void)state;
    static const int32_t pos[] = {70, 203};
    for (int f = 0; f < 3; f++)
        both_ways((struct rig_attend){.format = formats[f],
                                      .n_heads = 4,
                                      .n_rows = 2,
                                      .n_window = 24,
                                      .ratio = 4,
                                      .top_k = f == 1 ? 0 : 30, /* chosen ones, or all */
                                      .pos = pos,
                                      .f32_query = f > 0,
                                      .seed = 7 + (uint64_t)f},
                  1, 3 + (uint64_t)f);
}

static void schedules(void **state)
{
    (void)state;
    static const int32_t pos[] = {31, 300};
    for (uint64_t seed = 0; seed < 8; seed++)
        for (int f = 0; f < 3; f++)
            both_ways((struct rig_attend){.format = formats[f],
                                          .n_heads = 33,
                                          .n_rows = 2,
                                          .n_window = 128,
                                          .ratio = 4,
                                          .top_k = seed % 2 ? 0 : 50,
                                          .pos = pos,
                                          .bf16_out = seed % 3 == 1,
                                          .f32_query = seed % 2 == 1,
                                          .config = {.mma_by_steps = seed % 4 == 3},
                                          .seed = seed},
                      2, seed);
}

/* ---- Broken kernels ---- */

static const int32_t broken_pos[] = {90};

static struct rig_attend problem(enum nib_row_format format, int32_t n_spans, uint64_t seed)
{
    return (struct rig_attend){.format = format,
                               .f32_query = format == NIB_ROW_FP8,
                               .n_heads = 32,
                               .n_rows = 1,
                               .n_window = 128,
                               .pos = broken_pos,
                               .n_spans = n_spans,
                               .config = {.seed = seed, .max_steps = 20000000},
                               .seed = seed};
}

static bool caught(struct rig_attend r, char *text, size_t bytes)
{
    bool ran = rig_attend_run(&r), right = ran && rig_attend_right(&r, text, bytes);
    if (!ran)
        (void)snprintf(text, bytes, "%s", r.error);
    rig_attend_free(&r);
    return !right;
}

static void break_all(const char *entry, enum nib_row_format format, int32_t n_spans, const struct ptx_breakage *list)
{
    (void)rig_module("attend_sm120a"); /* skips where there is no PTX */
    char  error[512], found[1300] = "";
    char *text = ptx_text(NIB_PTX_DIR, "attend_sm120a");
    assert_non_null(text);
    for (; list->name; list++) {
        char *changed = ptx_broken(text, entry, list);
        if (!changed)
            fail_msg("%s: '%s' does not occur %d times in %s", list->name, list->text, list->nth + 1, entry);
        struct px_module *module = px_module_parse(changed, strlen(changed), error, sizeof error);
        if (!module)
            fail_msg("%s: %s", list->name, error);
        bool seen = false;
        for (uint64_t seed = 0; seed < 4 && !seen; seed++) {
            struct rig_attend r = problem(format, n_spans, seed);
            r.module = module;
            seen = caught(r, found, sizeof found);
        }
        if (!seen)
            fail_msg("%s, %s: nothing was wrong", entry, list->name);
        if (strchr(found, '\n'))
            *strchr(found, '\n') = 0;
        printf("%s: %s\n", list->name, found);
        px_module_free(module);
        free(changed);
    }
    free(text);
}

static const struct ptx_breakage whole_bf16[] = {
    {"no wait for copies", "cp.async.wait_group 1", 0, PTX_DELETE, NULL},
    {"no wait for the last copies", "cp.async.wait_group 0", 0, PTX_DELETE, NULL},
    {"a stage filled while others read it", "bar.sync", 0, PTX_DELETE, NULL},
    {"rows multiplied before they are there", "bar.sync", 1, PTX_DELETE, NULL},
    {"scores read before they are there", "bar.sync", 2, PTX_DELETE, NULL},
    {"weights read before they are there", "bar.sync", 3, PTX_DELETE, NULL},
    {"results by another span's factors", "bar.sync", 5, PTX_DELETE, NULL},
    {"half of a row not copied", "cp.async.cg", 1, PTX_DELETE, NULL},
    {"rows transposed in the first product", "ldmatrix.sync.aligned.m8n8.x4.shared", 0, PTX_REPLACE,
     "ldmatrix.sync.aligned.m8n8.x4.trans.shared"},
    {"rows not transposed in the second", "x4.trans.shared", 0, PTX_REPLACE, "x4.shared"},
    {"no product", "mma.sync", 5, PTX_DELETE, NULL},
    {"the maximum of two threads only", "shfl.sync.bfly", 1, PTX_DELETE, NULL},
    {NULL, NULL, 0, PTX_DELETE, NULL},
};
static const struct ptx_breakage whole_fp8[] = {
    {"rows multiplied before they are decoded", "bar.sync", 1, PTX_DELETE, NULL},
    {"decoded over what others multiply", "bar.sync", 0, PTX_DELETE, NULL},
    {"weights read before they are there", "bar.sync", 3, PTX_DELETE, NULL},
    {"no wait for copies", "cp.async.wait_group 1", 0, PTX_DELETE, NULL},
    {"the query's middle part left out", "mma.sync", 2, PTX_DELETE, NULL},
    {NULL, NULL, 0, PTX_DELETE, NULL},
};
static const struct ptx_breakage span_nvfp4[] = {
    {"rows multiplied before they are decoded", "bar.sync", 1, PTX_DELETE, NULL},
    {"no wait for copies", "cp.async.wait_group 0", 0, PTX_DELETE, NULL},
    {"weights read before they are there", "bar.sync", 3, PTX_DELETE, NULL},
    {NULL, NULL, 0, PTX_DELETE, NULL},
};
static const struct ptx_breakage fold[] = {
    {"no wait for the spans", "griddepcontrol.wait", 0, PTX_DELETE, NULL},
    {"the sum so far lost", "st.global.f32", 0, PTX_DELETE, NULL},
    {NULL, NULL, 0, PTX_DELETE, NULL},
};

static void broken(void **state)
{
    (void)state;
    char text[1300] = "";
    for (uint64_t seed = 0; seed < 4; seed++)
        for (int f = 0; f < 6; f++)
            if (caught(problem(formats[f % 3], f / 3, seed), text, sizeof text))
                fail_msg("unbroken: %s", text);
    break_all("nib_sm120a_attend_bf16", NIB_ROW_BF16, 0, whole_bf16);
    break_all("nib_sm120a_attend_f32_fp8", NIB_ROW_FP8, 0, whole_fp8);
    break_all("nib_sm120a_attend_span_nvfp4", NIB_ROW_NVFP4, 1, span_nvfp4);
    break_all("nib_sm120a_attend_fold", NIB_ROW_BF16, 1, fold);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(windows), cmocka_unit_test(entries)};
    const struct CMUnitTest more[] = {cmocka_unit_test(schedules)};
    const struct CMUnitTest wrong[] = {cmocka_unit_test(broken)};
    if (argc > 1 && strcmp(argv[1], "long") == 0)
        return cmocka_run_group_tests(more, NULL, NULL);
    if (argc > 1 && strcmp(argv[1], "broken") == 0)
        return cmocka_run_group_tests(wrong, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
