/* FP8 rows times FP8 and MXFP4 weights on sm_100a, from the emitted PTX: scales placed and packed by their kernels,
 * each result held to a sum over the operands' values. `long`: more schedules. */
#include "ptxsim/ptx_break.h"
#include "ptxsim/sm100a/sm100a_rig.h"

struct problem {
    enum nib_sm100a_format format;
    int32_t                n_rows, n_out, n_in, n_ctas;
    bool                   f32, hostile;
    const int32_t         *count; /* rows of each of 3 experts, or NULL */
    struct px_config       config;
};

struct operands {
    uint8_t *x, *x_scales, *w, *w_scales; /* as stored; x_scales [rows][k_tiles] */
    int32_t *expert;
    int64_t  w_bytes, s_bytes;            /* of one matrix */
    int32_t  k_tiles, n_stack;
};

static const float alphas[3] = {1e-3f, 2e-3f, 3e-3f};
static uint64_t    seed = 3;

/* ---- Values ---- */

static double x_value(const struct problem *p, const struct operands *o, int32_t t, int32_t k)
{
    return rig_e4m3(o->x[(int64_t)t * p->n_in + k]) * rig_ue8m0(o->x_scales[(int64_t)t * o->k_tiles + k / 128]);
}

static double w_value(const struct problem *p, const struct operands *o, int32_t e, int32_t n, int32_t k)
{
    const uint8_t *w = o->w + e * o->w_bytes, *s = o->w_scales + e * o->s_bytes;
    int64_t        at = (int64_t)n * p->n_in + k;
    if (p->format == NIB_SM100A_FP8)
        return rig_e4m3(w[at]) * rig_ue8m0(s[n / 128 * o->k_tiles + k / 128]);
    return rig_e2m1((uint32_t)w[at / 2] >> k % 2 * 4 & 15) * rig_ue8m0(s[at / 32]);
}

/* ---- Operands ---- */

static uint8_t *draw(int64_t n, uint32_t first, uint32_t span, bool no_nan)
{
    uint8_t *p = malloc((size_t)n);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) {
        p[i] = (uint8_t)(first + rig_next(&seed) % span);
        if (no_nan && (p[i] & 0x7f) == 0x7f)
            p[i] = 0x38;
    }
    return p;
}

static struct operands make(const struct problem *p)
{
    struct operands o = {.k_tiles = (p->n_in + 127) / 128, .n_stack = p->count ? 3 : 1};
    bool            fp8 = p->format == NIB_SM100A_FP8;
    uint32_t        span = p->hostile ? 60 : 8;
    o.w_bytes = (int64_t)p->n_out * p->n_in / (fp8 ? 1 : 2);
    o.s_bytes = fp8 ? (int64_t)((p->n_out + 127) / 128) * o.k_tiles : (int64_t)p->n_out * p->n_in / 32;
    o.x = draw((int64_t)p->n_rows * p->n_in, 0, 256, true);
    o.x_scales = draw((int64_t)p->n_rows * o.k_tiles, 120 - span / 2, span, false);
    o.w = draw(o.w_bytes * o.n_stack, 0, 256, fp8);
    o.w_scales = draw(o.s_bytes * o.n_stack, 118 - span / 2, span, false);
    o.expert = calloc((size_t)p->n_rows, sizeof *o.expert);
    assert_non_null(o.expert);
    for (int32_t t = 2; p->hostile && t < p->n_rows;
         t += 5) { /* a row of NaN, one with a NaN among its codes, one of zeros */
        if (t % 3 == 0)
            memset(o.x_scales + (int64_t)t * o.k_tiles, 255, (size_t)o.k_tiles);
        if (t % 3 == 1)
            o.x[(int64_t)t * p->n_in + 7] = 0x7f;
        if (t % 3 == 2)
            memset(o.x + (int64_t)t * p->n_in, 0, (size_t)p->n_in);
    }
    for (int32_t e = 0, t = 0; p->count && e < 3; e++)
        for (int32_t i = 0; i < p->count[e]; i++)
            o.expert[t++] = e;
    return o;
}

static void launch(struct px_machine *m, const char *file, const char *kernel, uint32_t grid, uint32_t block,
                   const void *a)
{
    const void      *params[1] = {a};
    struct px_launch l = {.grid = {grid, 1, 1}, .block = {block, 1, 1}, .params = params};
    if (!px_run(m, rig_module(file), kernel, &l))
        fail_msg("%s", px_error(m));
}

/* Groups of up to 128 n_ctas rows; where each row's scales stand. Their number. */
static int32_t place_groups(const struct problem *p, struct nib_blackwell_group *g, int32_t *scale_row)
{
    int32_t tile = 128 * p->n_ctas, n = 0, row = 0;
    for (int32_t e = 0; e < 3; row += p->count[e], e++)
        for (int32_t i = 0; i < p->count[e]; i += tile, n++) {
            int32_t rows = p->count[e] - i < tile ? p->count[e] - i : tile;
            g[n] = (struct nib_blackwell_group){e, rows, row + i};
            for (int32_t j = 0; j < rows; j++)
                scale_row[row + i + j] = n * tile + j;
        }
    return n;
}

/* ---- A run ---- */

static void rows_in(const struct problem *p, const struct operands *o, struct px_machine *m,
                    struct nib_sm100a_linear *l)
{
    int64_t                      stride = (p->n_in + 63) / 64 * 64, s_stride = (o->k_tiles + 63) / 64 * 64;
    int32_t                      scale_rows = p->n_rows, *scale_row = calloc((size_t)p->n_rows, sizeof *scale_row);
    uint8_t                     *codes = rig_alloc(m, (size_t)(p->n_rows * stride), NULL);
    uint8_t                     *scales = rig_alloc(m, (size_t)(p->n_rows * s_stride), NULL);
    struct nib_sm100a_place_args place = {
        .codes = codes, .scales = scales, .codes_stride = stride, .scales_stride = s_stride, .n_in = p->n_in, .fp8 = 1};
    assert_non_null(scale_row);
    for (int32_t t = 0; t < p->n_rows; t++) {
        memcpy(codes + t * stride, o->x + (int64_t)t * p->n_in, (size_t)p->n_in);
        memcpy(scales + t * s_stride, o->x_scales + (int64_t)t * o->k_tiles, (size_t)o->k_tiles);
        assert_true(px_wrote(m, codes + t * stride, (size_t)p->n_in) &&
                    px_wrote(m, scales + t * s_stride, (size_t)o->k_tiles));
    }
    if (p->count) {
        struct nib_blackwell_group groups[64];
        int32_t                 n = place_groups(p, groups, scale_row);
        scale_rows = nib_sm100a_groups_most(p->n_rows, 3, 128 * p->n_ctas) * 128 * p->n_ctas;
        l->n_experts = 3;
        l->groups = rig_alloc(m, (size_t)(n + 1) * sizeof *groups, groups);
        l->n_groups = rig_alloc(m, 4, &n);
        l->alphas = rig_alloc(m, sizeof alphas, alphas);
        place.y.scale_row = rig_alloc(m, (size_t)p->n_rows * 4, scale_row);
        place.y.codes = rig_alloc(m, (size_t)(p->n_rows * stride), NULL);
        place.y.codes_stride = stride;
    }
    size_t bytes = (size_t)nib_sm100a_mx_scale_bytes(scale_rows, p->n_in);
    place.y.scales = rig_alloc(m, bytes, NULL);
    memset(place.y.scales, 255, bytes); /* NaN where no row's scales stand */
    assert_true(px_wrote(m, place.y.scales, bytes));
    launch(m, "place_sm100a", "nib_sm100a_place", (uint32_t)p->n_rows, 128, &place);
    l->x_codes = place.y.codes ? place.y.codes : codes;
    l->x_scales = place.y.scales;
    l->x_stride = stride;
    free(scale_row);
}

static void weights_in(const struct problem *p, const struct operands *o, struct px_machine *m,
                       struct nib_sm100a_linear *l)
{
    int64_t  bytes = nib_sm100a_mx_scale_bytes(p->n_out, p->n_in);
    uint8_t *packed = rig_alloc(m, (size_t)(bytes * o->n_stack), NULL);
    uint8_t *stored = rig_alloc(m, (size_t)(o->s_bytes * o->n_stack), o->w_scales);
    for (int32_t e = 0; e < o->n_stack; e++) {
        struct nib_sm100a_pack_args a = {.stored = stored + e * o->s_bytes,
                                         .packed = (uint32_t *)(void *)(packed + e * bytes),
                                         .n_words = bytes / 4,
                                         .n_out = p->n_out,
                                         .n_in = p->n_in,
                                         .format = (int32_t)p->format};
        launch(m, "pack_sm100a", "nib_sm100a_pack_scales", (uint32_t)((a.n_words + 255) / 256), 256, &a);
    }
    l->w_codes = rig_alloc(m, (size_t)(o->w_bytes * o->n_stack), o->w);
    l->w_scales = packed;
}

static bool right(const struct problem *p, const struct operands *o, const void *y, int32_t t, int32_t n)
{
    double sum = 0, most = 0, alpha = (double)alphas[o->expert[t]];
    for (int32_t k = 0; k < p->n_in; k++) {
        double v = x_value(p, o, t, k) * w_value(p, o, o->expert[t], n, k);
        sum += v;
        most += fabs(v);
    }
    int64_t at = (int64_t)t * p->n_out + n;
    double  got = p->f32 ? (double)((const float *)y)[at] : (double)rig_from_bf16(((const uint16_t *)y)[at]);
    /* A rounding to fp32 of every 32 values' sum, two of alpha, then that of the result. */
    double bound = ((p->n_in / 32 + 4) * 0x1p-24 * most + 0x1p-140) * alpha + (p->f32 ? 0 : 0x1p-8 * fabs(sum * alpha));
    return isnan(sum) ? isnan(got) : fabs(got - sum * alpha) <= bound;
}

/* Whether all went well; what did not, in error. module NULL: as emitted. */
static bool run(struct problem p, struct px_module *module, char *error, size_t error_bytes)
{
    struct nib_sm100a_linear_args args;
    struct nib_blackwell_launch      plan;
    bool                          good = true;
    const void                   *params[1] = {&args};
    struct px_machine            *m = px_machine_new(&p.config);
    struct nib_sm100a_linear      l = {.format = p.format,
                                       .n_out = p.n_out,
                                       .n_in = p.n_in,
                                       .alpha = alphas[0],
                                       .y_stride = p.n_out,
                                       .y_f32 = p.f32,
                                       .n_sms = p.n_ctas,
                                       .n_ctas = p.n_ctas};
    assert_non_null(m);
    for (int32_t e = 0; p.count && e < 3; e++)
        p.n_rows += p.count[e];
    l.n_rows = p.n_rows;
    struct operands o = make(&p);
    rows_in(&p, &o, m, &l);
    weights_in(&p, &o, m, &l);
    l.y = rig_alloc(m, (size_t)p.n_rows * (size_t)p.n_out * (p.f32 ? 4 : 2), NULL);
    if (!nib_sm100a_linear_plan(&l, sim_tensor_map_encode_tiled, &args, &plan, error, error_bytes))
        fail_msg("%s", error);
    struct px_launch launch_of = {.grid = {plan.grid, 1, 1},
                                  .block = {plan.block, 1, 1},
                                  .cluster = {plan.cluster, 1, 1},
                                  .shared_bytes = plan.shared_bytes,
                                  .params = params};
    if (!px_run(m, module ? module : rig_module("linear_sm100a"), plan.kernel, &launch_of)) {
        (void)snprintf(error, error_bytes, "%s", px_error(m));
        good = false;
    }
    for (int32_t t = 0; t < p.n_rows && good; t++)
        for (int32_t n = 0; n < p.n_out && good; n++)
            if (!right(&p, &o, l.y, t, n)) {
                (void)snprintf(error, error_bytes, "%s, seed %d: row %d, output %d is wrong", plan.kernel,
                               (int)p.config.seed, t, n);
                good = false;
            }
    free(o.x);
    free(o.x_scales);
    free(o.w);
    free(o.w_scales);
    free(o.expert);
    px_machine_free(m);
    return good;
}

static void check(struct problem p)
{
    char error[1200];
    if (!run(p, NULL, error, sizeof error))
        fail_msg("%s", error);
}

static void formats(uint64_t schedule)
{
    static const int32_t some[3] = {1, 0, 131};
    for (int f = NIB_SM100A_FP8; f <= NIB_SM100A_MXFP4; f++) {
        enum nib_sm100a_format format = (enum nib_sm100a_format)f;
        struct px_config       config = {.seed = schedule, .mma_by_steps = schedule % 2 == 1};
        bool                   fp8 = format == NIB_SM100A_FP8;
        check((struct problem){.format = format,
                               .n_rows = 37,
                               .n_out = 72,
                               .n_in = fp8 ? 928 : 896,
                               .n_ctas = 1,
                               .f32 = true,
                               .config = config}); /* more stages than there are */
        check((struct problem){.format = format,
                               .n_rows = 21,
                               .n_out = 40,
                               .n_in = fp8 ? 160 : 256,
                               .n_ctas = 1,
                               .hostile = true,
                               .config = config});
        check((struct problem){.format = format, .n_rows = 140, .n_out = 210, .n_in = 256, .n_ctas = 2, .f32 = true,
                               .config = config}); /* a tile that begins inside a band */
        check((struct problem){
            .format = format, .n_out = 136, .n_in = 128, .n_ctas = 1, .count = some, .config = config});
    }
}

static void products(void **state)
{
    (void)state;
    formats(1);
}

static void many_schedules(void **state)
{
    (void)state;
    for (uint64_t schedule = 2; schedule < 14; schedule++)
        formats(schedule);
}

/* The instruction descriptor of the first step is 0x08a01400; the others choose scale 1, 2, 3 of both sides. */
static const struct ptx_breakage breakages[] = {
    {"the first scales for the second step", "681579536", -1, PTX_REPLACE, "144708608"},
    {"the first scale of weights for the second step", "681579536", -1, PTX_REPLACE, "681579520"},
    {"the first scale of weights for the third step", "1218450464", -1, PTX_REPLACE, "1218450432"},
    {"weights as E4M3", "144708608", -1, PTX_REPLACE, "144703488"},
    {"UE4M3 scales", "144708608", -1, PTX_REPLACE, "136320000"},
    {"16 bytes too few expected", "mbarrier.arrive.expect_tx", 0, PTX_LAST, "33776"},
    {"scales of rows not copied", "tcgen05.cp", 0, PTX_DELETE, NULL},
    {"scales of weights not copied", "tcgen05.cp", 1, PTX_DELETE, NULL},
    {"a copy of weights left out", "cp.async.bulk.tensor", 1, PTX_DELETE, NULL},
    {"no wait for a full stage", "mbarrier.try_wait.parity", 4, PTX_SKIP_WAIT, NULL},
    {"no wait for free scale columns", "mbarrier.try_wait.parity", 3, PTX_SKIP_WAIT, NULL},
    {"no scale columns kept apart", "block_scale.block32", -1, PTX_REPLACE, "block_scale.block16"},
};

static void broken_kernels(void **state)
{
    (void)state;
    (void)rig_module("linear_sm100a"); /* skips where there is no PTX */
    char *text = ptx_text(NIB_PTX_DIR, "linear_sm100a"), error[1200];
    assert_non_null(text);
    for (size_t i = 0; i < sizeof breakages / sizeof breakages[0]; i++) {
        char *changed = ptx_broken(text, "nib_sm100a_mxfp4_one", &breakages[i]);
        if (!changed)
            fail_msg("%s: '%s' is not there", breakages[i].name, breakages[i].text);
        struct px_module *module = px_module_parse(changed, strlen(changed), error, sizeof error);
        bool              caught = !module;
        for (uint64_t schedule = 0; schedule < 4 && !caught; schedule++)
            caught = !run((struct problem){.format = NIB_SM100A_MXFP4,
                                           .n_rows = 37,
                                           .n_out = 72,
                                           .n_in = 1024,
                                           .n_ctas = 1,
                                           .f32 = true,
                                           .config = {.seed = schedule, .max_steps = 4000000}},
                          module, error, sizeof error);
        if (!caught)
            fail_msg("%s: nothing was wrong", breakages[i].name);
        error[strcspn(error, "\n")] = 0;
        printf("%s: %s\n", breakages[i].name, error);
        px_module_free(module);
        free(changed);
    }
    free(text);
}

static void refused(void **state)
{
    (void)state;
    struct nib_sm100a_linear p = {.format = NIB_SM100A_MXFP4, .n_rows = 1, .n_out = 1, .n_in = 160, .x_stride = 192};
    struct nib_sm100a_linear_args args;
    struct nib_blackwell_launch      launch_of;
    char                          error[200];
    assert_false(nib_sm100a_linear_plan(&p, sim_tensor_map_encode_tiled, &args, &launch_of, error, sizeof error));
    assert_non_null(strstr(error, "n_in is 160: wants a multiple of 128"));
    p.n_in = 256;
    assert_false(nib_sm100a_linear_plan(&p, sim_tensor_map_encode_tiled, &args, &launch_of, error, sizeof error));
    assert_non_null(strstr(error, "stride of the rows' codes is 192"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products), cmocka_unit_test(refused)};
    const struct CMUnitTest longer[] = {cmocka_unit_test(broken_kernels), cmocka_unit_test(many_schedules)};
    return argc > 1 && strcmp(argv[1], "long") == 0 ? cmocka_run_group_tests(longer, NULL, NULL)
                                                    : cmocka_run_group_tests(tests, NULL, NULL);
}
