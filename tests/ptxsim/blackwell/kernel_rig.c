/* Modules, memory, numbers, broken kernels. Compiled once for each folder of kernels: NIB_PTX_DIR is where its PTX was put. */
#include "ptxsim/blackwell/kernel_rig.h"

struct px_module *rig_module(const char *name)
{
    static struct {
        char              name[64];
        struct px_module *module;
    } known[16];
    char path[512], error[512];
    if (NIB_PTX_DIR[0] == 0) {
        puts("skipped: the kernels in the simulator, which need nvcc to emit their PTX");
        skip();
    }
    for (size_t i = 0; i < 16; i++) {
        if (known[i].module && strcmp(known[i].name, name) == 0)
            return known[i].module;
        if (known[i].module)
            continue;
        (void)snprintf(path, sizeof path, "%s/%s.ptx", NIB_PTX_DIR, name);
        (void)snprintf(known[i].name, sizeof known[i].name, "%s", name);
        known[i].module = px_module_read(path, error, sizeof error);
        if (!known[i].module)
            fail_msg("%s: %s", path, error);
        return known[i].module;
    }
    fail_msg("too many modules");
    return NULL;
}

void *rig_alloc(struct px_machine *m, size_t bytes, const void *from)
{
    void *p = px_alloc(m, bytes);
    assert_non_null(p);
    if (from) {
        memcpy(p, from, bytes);
        assert_true(px_wrote(m, p, bytes));
    }
    return p;
}

uint32_t rig_next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) ^ (uint32_t)(*seed >> 17);
}

float rig_value(uint64_t *seed)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(rig_next(seed) & 0xffff) / 65536.0f - 0.5f;
    return sum == 0 ? 0.5f : sum;
}

uint16_t rig_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float rig_from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float    v;
    memcpy(&v, &u, 4);
    return v;
}

double rig_e2m1(uint32_t code)
{
    static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -value[code & 7] : value[code & 7];
}

double rig_ue4m3(uint32_t code)
{
    return code < 8 ? ldexp(code, -9) : ldexp(8 + (double)(code & 7), (int)(code >> 3) - 10);
}

double rig_e4m3(uint32_t code)
{
    double v = (code & 0x7f) == 0x7f ? NAN : rig_ue4m3(code & 0x7f);
    return code & 0x80 ? -v : v;
}

double rig_ue8m0(uint32_t code)
{
    return code == 255 ? NAN : ldexp(1, (int)code - 127);
}

void rig_launch(struct px_machine *m, const char *module, const struct nib_blackwell_launch *l, const void *args)
{
    const void      *params[1] = {args};
    struct px_launch launch = {
        .grid = {l->grid, 1, 1}, .block = {l->block, 1, 1}, .cluster = {l->cluster, 1, 1},
        .shared_bytes = l->shared_bytes, .params = params};
    if (!px_run(m, rig_module(module), l->kernel, &launch))
        fail_msg("%s", px_error(m));
}

static bool is_caught(const struct rig_broken *b, struct px_module *module, const char *name)
{
    char text[1300];
    for (uint64_t schedule = 0; schedule < b->n_schedules; schedule++) {
        if (!b->caught(b->problem, module, schedule, text, sizeof text))
            continue;
        text[strcspn(text, "\n")] = 0;
        printf("%s: %s: schedule %d: %s\n", b->entry, name, (int)schedule, text);
        return true;
    }
    return false;
}

void rig_break_all(const struct rig_broken *b, const struct ptx_breakage *list, size_t n)
{
    char   error[512];
    size_t n_missed = 0;
    if (is_caught(b, rig_module(b->module), "unbroken"))
        fail();
    char *text = ptx_text(NIB_PTX_DIR, b->module);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) {
        char *changed = ptx_broken(text, b->entry, &list[i]);
        if (!changed)
            fail_msg("%s: '%s' does not occur %d times in %s", list[i].name, list[i].text, list[i].nth + 1, b->entry);
        struct px_module *module = px_module_parse(changed, strlen(changed), error, sizeof error);
        if (!module)
            fail_msg("%s: %s", list[i].name, error);
        if (!is_caught(b, module, list[i].name)) {
            printf("%s: %s: nothing was wrong\n", b->entry, list[i].name);
            n_missed++;
        }
        px_module_free(module);
        free(changed);
    }
    free(text);
    assert_int_equal(n_missed, 0);
}
