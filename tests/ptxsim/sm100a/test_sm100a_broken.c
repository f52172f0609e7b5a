/* The simulator must tell right from wrong: the NVFP4 product with one thing broken in its emitted PTX (a fence or
 * wait left out, a wrong phase, descriptor field, byte count, early free) or in its operands (scales in another
 * layout) must not pass, under at least one of a few schedules. What caught it is printed. */
#include "ptxsim/sm100a/sm100a_rig.h"

enum how {
    DELETE,   /* the line */
    REPLACE,  /* the text by `with` */
    LAST,     /* the line's last operand by `with` */
    SKIP_WAIT /* the wait always succeeds */
};

struct breakage {
    const char *name, *text; /* in the line to be broken */
    int         nth;         /* of the lines that hold the text, from 0; -1: all */
    enum how    how;
    const char *with;
};

#define WAIT "mbarrier.try_wait.parity"

static const struct breakage breakages[] = {
    /* Waits, in their order in the code: stage empty, drained at the end, accumulator free, scales free, stage
     * full, tile done. The drain is not missed here: commits of one thread take effect in order, so the epilogue
     * has seen the last one. */
    {"no wait for an empty stage", WAIT, 0, SKIP_WAIT, NULL},
    {"no wait for a free accumulator", WAIT, 2, SKIP_WAIT, NULL},
    {"no wait for free scale columns", WAIT, 3, SKIP_WAIT, NULL},
    {"no wait for a full stage", WAIT, 4, SKIP_WAIT, NULL},
    {"no wait for a finished tile", WAIT, 5, SKIP_WAIT, NULL},
    {"phase 0 for empty stages", WAIT, 0, LAST, "0"},
    {"phase 1 for empty stages", WAIT, 0, LAST, "1"},
    {"phase 0 for free accumulators", WAIT, 2, LAST, "0"},
    {"phase 1 for free accumulators", WAIT, 2, LAST, "1"},
    {"phase 0 for free scales", WAIT, 3, LAST, "0"},
    {"phase 1 for free scales", WAIT, 3, LAST, "1"},
    {"phase 0 for full stages", WAIT, 4, LAST, "0"},
    {"phase 1 for full stages", WAIT, 4, LAST, "1"},
    {"phase 0 for finished tiles", WAIT, 5, LAST, "0"},
    {"phase 1 for finished tiles", WAIT, 5, LAST, "1"},
    /* fences; those not named here stand before another that covers them */
    {"no fence after a full stage", "fence::after_thread_sync", 2, DELETE, NULL},
    {"no fence after a finished tile", "fence::after_thread_sync", 3, DELETE, NULL},
    {"no fence before freeing", "fence::after_thread_sync", 4, DELETE, NULL},
    {"no fence behind the allocation", "fence::before_thread_sync", 0, DELETE, NULL},
    {"no fence behind the loads", "fence::before_thread_sync", 1, DELETE, NULL},
    {"no wait for loads", "tcgen05.wait::ld", -1, DELETE, NULL},
    /* arrivals and bytes */
    {"stages never emptied", "tcgen05.commit", 0, DELETE, NULL},
    {"tiles never finished", "tcgen05.commit", 1, DELETE, NULL},
    {"accumulators never freed", "mbarrier.arrive.release", 0, DELETE, NULL},
    {"16 bytes too many expected", "mbarrier.arrive.expect_tx", 0, LAST, "36880"},
    {"16 bytes too few expected", "mbarrier.arrive.expect_tx", 0, LAST, "36848"},
    {"a copy of rows left out", "cp.async.bulk.tensor", 0, DELETE, NULL},
    {"a copy of scales left out", "cp.async.bulk.tensor", 3, DELETE, NULL},
    {"a stage's scales not copied", "tcgen05.cp", 5, DELETE, NULL},
    /* the instruction descriptor, 0x08200480 */
    {"UE8M0 scales", "136316032", -1, REPLACE, "144704640"},
    {"n = 120", "136316032", -1, REPLACE, "136184960"},
    {"m = 256", "136316032", -1, REPLACE, "270533760"},
    {"E2M1 as in mixed kinds", "136316032", -1, REPLACE, "136320640"},
    {"transposed A", "136316032", -1, REPLACE, "136348800"},
    {"negated A", "136316032", -1, REPLACE, "136324224"},
    {"scale id 1", "136316032", -1, REPLACE, "673186944"},
    /* matrix descriptors, 0x4000404000010000 and 0x0000400800010000 */
    {"no version bits", "4611756662049538048", -1, REPLACE, "4611686293305360384"},
    {"64-byte swizzle", "4611756662049538048", -1, REPLACE, "9223442680476925952"},
    {"no swizzle", "4611756662049538048", -1, REPLACE, "70643622150144"},
    {"half the stride between groups of rows", "4611756662049538048", -1, REPLACE, "4611756524610584576"},
    {"a base offset", "4611756662049538048", -1, REPLACE, "4612319612002959360"},
    {"64 bytes for a step along k", "4611756662049538050", -1, REPLACE, "4611756662049538052"},
    {"double stride in scale atoms", "70403103981568", -1, REPLACE, "70437463719936"},
    /* accumulation */
    {"always accumulating", "setp.ne.b32 p,", 0, REPLACE, "setp.ne.b32 p, 1, 0; // "},
    {"never accumulating", "setp.ne.b32 p,", 2, REPLACE, "setp.ne.b32 p, 0, 0; // "},
    /* tensor memory */
    {"freed while it is read", "bar.sync", 1, DELETE, NULL},
    {"never freed", "tcgen05.dealloc", 0, DELETE, NULL},
    {"used before it is allocated", "bar.sync", 0, DELETE, NULL},
    {"allocated by 48 columns", "tcgen05.alloc", 0, LAST, "48"},
    {"too few columns", "tcgen05.alloc", 0, LAST, "256"},
};

/* What only a pair of blocks can get wrong. */
static const struct breakage pair_breakages[] = {
    {"the odd block's stages never emptied", "tcgen05.commit", 0, LAST, "1"},
    {"the odd block's tiles never finished", "tcgen05.commit", 1, LAST, "1"},
    {"bytes counted at the odd block", "mapa", 0, LAST, "1"},
    {"accumulators freed at the odd block", "mapa", 1, LAST, "1"},
    {"bytes of one block expected", "mbarrier.arrive.expect_tx", 0, LAST, "34816"},
    {"bytes counted elsewhere by a copy for one block", ".cta_group::2.shared::cluster.global", 0, REPLACE,
     ".shared::cluster.global"},
    {"m = 128", "271582336", -1, REPLACE, "137364608"},
    {"n = 128", "271582336", -1, REPLACE, "270533760"},
    {"products of one block", "tcgen05.mma.cta_group::2", 0, REPLACE, "tcgen05.mma.cta_group::1"},
    {"no wait for full stages of both", WAIT, 4, SKIP_WAIT, NULL},
    {"no wait for free accumulators of both", WAIT, 2, SKIP_WAIT, NULL},
};

/* ---- Editing ---- */

static char *read_text(const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s.ptx", NIB_PTX_DIR, name);
    FILE *f = fopen(path, "r");
    if (!f)
        return NULL;
    char  *text = calloc(1, 4 << 20);
    size_t n = text ? fread(text, 1, (4 << 20) - 1, f) : 0;
    (void)fclose(f);
    assert_true(n > 0);
    return text;
}

static void edit_line(char *out, size_t bytes, const char *line, const struct breakage *b)
{
    const char *end = strrchr(line, ';');
    switch (b->how) {
    case DELETE: (void)snprintf(out, bytes, "\n"); return;
    case SKIP_WAIT: (void)snprintf(out, bytes, "setp.eq.u32 p, 0, 0;\n"); return;
    case REPLACE: {
        const char *at = strstr(line, b->text);
        (void)snprintf(out, bytes, "%.*s%s%s", (int)(at - line), line, b->with, at + strlen(b->text));
        return;
    }
    case LAST: {
        const char *comma = end;
        while (*comma != ',')
            comma--;
        (void)snprintf(out, bytes, "%.*s, %s;\n", (int)(comma - line), line, b->with);
        return;
    }
    }
}

/* The module with the lines of one entry changed; asserts that there were some. */
static char *broken(const char *text, const char *entry, const struct breakage *b)
{
    char        mark[128], line[4096], changed[4200];
    char       *out = malloc(strlen(text) + 65536), *to = out;
    const char *at = text;
    bool        inside = false;
    int         n = 0, hits = 0;
    assert_non_null(out);
    (void)snprintf(mark, sizeof mark, ".entry %s(", entry);
    while (*at) {
        const char *next = strchr(at, '\n');
        size_t      length = next ? (size_t)(next - at) + 1 : strlen(at);
        assert_true(length < sizeof line);
        memcpy(line, at, length);
        line[length] = 0;
        at += length;
        if (strstr(line, ".entry "))
            inside = strstr(line, mark) != NULL;
        const char *write = line;
        if (inside && strstr(line, b->text) && (b->nth < 0 || n == b->nth)) {
            edit_line(changed, sizeof changed, line, b);
            write = changed;
            hits++;
        }
        n += inside && strstr(line, b->text);
        to += sprintf(to, "%s", write);
    }
    if (hits == 0)
        fail_msg("%s: '%s' does not occur %d times in %s", b->name, b->text, b->nth + 1, entry);
    return out;
}

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

static void whole_passes(void **state)
{
    (void)state;
    char text[1024];
    for (uint64_t seed = 0; seed < 8; seed++)
        if (caught(rig_module("linear_sm100a"), seed % 2, seed / 2, false, text, sizeof text))
            fail_msg("unbroken, schedule %d: %s", (int)seed / 2, text);
}

static void break_all(const char *entry, bool pair, const struct breakage *list, size_t n)
{
    (void)rig_module("linear_sm100a"); /* skips where there is no PTX */
    char *text = read_text("linear_sm100a"), error[512];
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) {
        char             *changed = broken(text, entry, &list[i]);
        struct px_module *module = px_module_parse(changed, strlen(changed), error, sizeof error);
        if (!module)
            fail_msg("%s: %s", list[i].name, error);
        must_be_caught(module, pair, list[i].name, false);
        px_module_free(module);
        free(changed);
    }
    free(text);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_passes), cmocka_unit_test(broken_kernels),
                                       cmocka_unit_test(broken_pairs), cmocka_unit_test(broken_operands)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
