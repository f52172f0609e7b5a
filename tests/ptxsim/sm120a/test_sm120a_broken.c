/* The simulator must tell right from wrong: products of sm_120a with one thing broken in their emitted PTX, or in their
 * operands, must not pass, under at least one of a few schedules. What caught it is printed. */
#include "ptxsim/ptx_break.h"
#include "ptxsim/sm120a/sm120a_rig.h"

#define A_SELECTOR "{0, 0}, %r"
#define B_SELECTOR "{0, 0};"

/* Copies of a stage, in their order: weights, weights, scales of weights, rows, rows, scales of rows; four stages
 * first. */
static const struct ptx_breakage tile_breakages[] = {
    {"no wait for copies", "cp.async.wait_group 3", 0, PTX_DELETE, NULL},
    {"a stage that is still on its way", "cp.async.wait_group 3", 0, PTX_REPLACE, "cp.async.wait_group 4"},
    {"copies never committed", "cp.async.commit_group", 4, PTX_DELETE, NULL},
    {"a stage filled while others read it", "bar.sync", 0, PTX_DELETE, NULL},
    {"sums over stages that others read", "bar.sync", 1, PTX_DELETE, NULL},
    {"sums read before they are there", "bar.sync", 2, PTX_DELETE, NULL},
    {"no copy of weights", "cp.async.cg", 21, PTX_DELETE, NULL},
    {"no copy of weights' scales", "cp.async.cg", 22, PTX_DELETE, NULL},
    {"no copy of rows", "cp.async.cg", 23, PTX_DELETE, NULL},
    {"no copy of rows' scales", "cp.async.ca", 4, PTX_DELETE, NULL},
    {"copies into the wrong stage", ", 5;", 0, PTX_REPLACE, ", 4;"},
    {"products of the wrong stage", ", 5;", 1, PTX_REPLACE, ", 4;"},
    {"byte selector 1 for weights", A_SELECTOR, 0, PTX_REPLACE, "{1, 0}, %r"},
    {"byte selector 2 for rows", B_SELECTOR, 5, PTX_REPLACE, "{2, 0};"},
    {"thread selector 2 for weights", A_SELECTOR, 3, PTX_REPLACE, "{0, 2}, %r"},
    {"UE8M0 scales", "f32.ue4m3", -1, PTX_REPLACE, "f32.ue8m0"},
    {"rows transposed", "x4.shared", 0, PTX_REPLACE, "x4.trans.shared"},
    {"a slice not summed", "add.rn.f32", 0, PTX_LAST, "0f00000000"},
    {"row scale left out", "mul.rn.f32", -1, PTX_LAST, "0f3F800000"},
    {"no wait for the kernel before", "griddepcontrol.wait", 0, PTX_DELETE, NULL},
};

static const struct ptx_breakage decode_breakages[] = {
    {"sums read before they are there", "bar.sync", 0, PTX_DELETE, NULL},
    {"byte selector 1 for weights", A_SELECTOR, 0, PTX_REPLACE, "{1, 0}, %r"},
    {"byte selector 1 for rows", B_SELECTOR, 1, PTX_REPLACE, "{1, 0};"},
    {"the second row of units taken for the first", "ld.global.nc", 1, PTX_DELETE, NULL},
    {"half the scales of a tile of k", "ld.global.v2.u32", 0, PTX_DELETE, NULL},
    {"UE8M0 scales", "f32.ue4m3", -1, PTX_REPLACE, "f32.ue8m0"},
    {"a slice not summed", "add.rn.f32", 3, PTX_LAST, "0f00000000"},
    {"no wait for the kernel before", "griddepcontrol.wait", 0, PTX_DELETE, NULL},
};

/* Of gate and up in one product. */
static const struct ptx_breakage tile_swiglu_breakages[] = {
    {"up's alpha is gate's", "+132];", 0, PTX_REPLACE, "+128];"},
    {"gate clamped from below", "setp.lt.f32", -1, PTX_REPLACE, "setp.gt.f32"},
    {"another exponential", "ex2.approx", -1, PTX_LAST, "0f00000000"},
};

static const struct ptx_breakage decode_swiglu_breakages[] = {
    {"up's codes from gate's matrix", "+48];", 0, PTX_REPLACE, "+40];"},
    {"up's alpha is gate's", "+132];", 0, PTX_REPLACE, "+128];"},
    {"gate clamped from below", "setp.lt.f32", 0, PTX_REPLACE, "setp.gt.f32"},
    {"another exponential", "ex2.approx", 0, PTX_LAST, "0f00000000"},
};

struct breaking {
    int32_t tile_rows;
    bool    swiglu;
};

static struct rig_product problem(const struct breaking *b, uint64_t seed)
{
    int32_t tile_rows = b->tile_rows;
    if (b->swiglu)
        return (struct rig_product){.p = {.n_rows = 13,
                                          .n_out = 44,
                                          .n_in = 288,
                                          .n_parts = 2,
                                          .alpha = {1e-3f, 2e-3f},
                                          .limit = 1.5f,
                                          .y_f32 = true,
                                          .tile_rows = tile_rows},
                                    .config = {.seed = seed, .max_steps = 20000000},
                                    .seed = seed};
    return (struct rig_product){.p = {.n_rows = tile_rows < 32 ? 13 : 40,
                                      .n_out = tile_rows < 32 ? 40 : 136,
                                      .n_in = tile_rows < 32 ? 1184 : 1568,
                                      .alpha = {1e-3f, 0},
                                      .y_f32 = true,
                                      .tile_rows = tile_rows},
                                .config = {.seed = seed, .max_steps = 20000000},
                                .seed = seed};
}

/* What was wrong with it; false if nothing was. */
static bool is_wrong(struct rig_product r, char *text, size_t bytes)
{
    bool ran = rig_product_run(&r), right = ran && rig_product_right(&r, text, bytes);
    if (!ran)
        (void)snprintf(text, bytes, "%s", r.error);
    rig_product_free(&r);
    return !right;
}

static void must_be_caught(const char *name, const struct breaking *b, enum rig_wrong wrong)
{
    char text[1300];
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct rig_product r = problem(b, seed);
        r.wrong = wrong;
        if (!is_wrong(r, text, sizeof text))
            continue;
        char *line = strchr(text, '\n');
        if (line)
            *line = 0;
        printf("%s: schedule %d: %s\n", name, (int)seed, text);
        return;
    }
    fail_msg("%s: nothing was wrong", name);
}

static bool caught(const void *breaking, struct px_module *module, uint64_t schedule, char *text, size_t bytes)
{
    struct rig_product r = problem(breaking, schedule);
    r.module = module;
    return is_wrong(r, text, bytes);
}

static void break_all(const char *name, const char *entry, struct breaking b, const struct ptx_breakage *list, size_t n)
{
    rig_break_all(&(struct rig_broken){name, entry, 4, &b, caught}, list, n);
}

static void broken_tiles(void **state)
{
    (void)state;
    break_all("linear_sm120a", "nib_sm120a_linear_128", (struct breaking){128, false}, tile_breakages,
              sizeof tile_breakages / sizeof tile_breakages[0]);
}

static void broken_decodes(void **state)
{
    (void)state;
    break_all("decode_sm120a", "nib_sm120a_decode_16", (struct breaking){16, false}, decode_breakages,
              sizeof decode_breakages / sizeof decode_breakages[0]);
}

static void broken_swiglu(void **state)
{
    (void)state;
    break_all("linear_sm120a", "nib_sm120a_linear_128", (struct breaking){128, true}, tile_swiglu_breakages,
              sizeof tile_swiglu_breakages / sizeof tile_swiglu_breakages[0]);
    break_all("decode_sm120a", "nib_sm120a_decode_16", (struct breaking){16, true}, decode_swiglu_breakages,
              sizeof decode_swiglu_breakages / sizeof decode_swiglu_breakages[0]);
    for (int rows = 16; rows <= 128; rows *= 8)
        must_be_caught("gate and up exchanged", &(struct breaking){rows, true}, RIG_PARTS_SWAPPED);
}

/* Lanes hold the scales wherever a thread selector may look, as public descriptions disagree on what it means. */
static const struct ptx_breakage harmless[] = {
    {"another lane's scales of weights", A_SELECTOR, -1, PTX_REPLACE, "{0, 1}, %r"},
    {"another lane's scales of rows", B_SELECTOR, -1, PTX_REPLACE, "{0, 3};"},
};

static void thread_selectors_do_not_matter(void **state)
{
    (void)state;
    static const char *const files[] = {"linear_sm120a", "decode_sm120a"},
                            *const entries[] = {"nib_sm120a_linear_128", "nib_sm120a_decode_16"};
    (void)rig_module(files[0]);
    for (int i = 0; i < 4; i++) {
        char  error[512], found[1300];
        char *text = ptx_text(NIB_PTX_DIR, files[i / 2]),
             *changed = text ? ptx_broken(text, entries[i / 2], &harmless[i % 2]) : NULL;
        assert_non_null(changed);
        struct px_module *module = px_module_parse(changed, strlen(changed), error, sizeof error);
        if (!module)
            fail_msg("%s", error);
        struct rig_product r = problem(&(struct breaking){i / 2 ? 16 : 128, false}, 1);
        r.module = module;
        if (is_wrong(r, found, sizeof found))
            fail_msg("%s: %s", harmless[i % 2].name, found);
        px_module_free(module);
        free(changed);
        free(text);
    }
}

static void broken_operands(void **state)
{
    (void)state;
    for (int rows = 16; rows <= 128; rows *= 8) {
        must_be_caught("scales of the two steps exchanged", &(struct breaking){rows, false}, RIG_SCALES_SWAPPED);
        must_be_caught("units exchanged", &(struct breaking){rows, false}, RIG_UNITS_SWAPPED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(broken_tiles), cmocka_unit_test(broken_decodes),
                                       cmocka_unit_test(broken_operands), cmocka_unit_test(broken_swiglu),
                                       cmocka_unit_test(thread_selectors_do_not_matter)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
