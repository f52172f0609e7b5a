/* FP8 rows times FP8 and MXFP4 weights on sm_120a, from the emitted PTX: weights packed by their kernels, results held
 * to sums over the operands' values; the three kernels of a format give the same bits. `long`: more schedules.
 * `broken`: one thing wrong in the PTX, which must be seen. */
#include "ptxsim/ptx_break.h"
#include "ptxsim/sm120a/sm120a_rig.h"

enum { EXPERTS = 3, TOP = 2, LIMIT = 7 };

struct problem {
    enum nib_sm120a_format format;
    int32_t                n_rows, n_out, n_in;
    bool                   f32, hostile, swiglu; /* swiglu: gate and up */
    const int32_t         *count;  /* rows of each of 3 experts, through pairs; or NULL */
    struct px_config       config;
    struct px_module      *module; /* instead of what nvcc emitted */
};

struct operands {
    uint8_t *x, *x_scales, *w, *w_scales; /* as stored; x_scales [rows][k_tiles] */
    int32_t *expert, *pair;               /* of each row of the product */
    int64_t  w_bytes, s_bytes;            /* of one matrix; those of gate come first */
    int32_t  k_tiles, n_stack, n_parts, n_sources;
};

static const float alphas[2][EXPERTS] = {{1e-3f, 2e-3f, 3e-3f}, {2e-3f, 1e-3f, 4e-3f}};
static uint64_t    seed = 5;

/* ---- Values ---- */

static double x_value(const struct problem *p, const struct operands *o, int32_t t, int32_t k)
{
    int64_t row = o->pair ? o->pair[t] / TOP : t;
    return rig_e4m3(o->x[row * p->n_in + k]) * rig_ue8m0(o->x_scales[row * o->k_tiles + k / 128]);
}

static double w_value(const struct problem *p, const struct operands *o, int32_t e, int32_t n, int32_t k)
{
    const uint8_t *w = o->w + e * o->w_bytes, *s = o->w_scales + e * o->s_bytes;
    int64_t        at = (int64_t)n * p->n_in + k;
    if (p->format == NIB_SM120A_FP8)
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
    struct operands o = {.k_tiles = (p->n_in + 127) / 128,
                         .n_stack = p->count ? EXPERTS : 1,
                         .n_parts = p->swiglu ? 2 : 1,
                         .n_sources = p->n_rows};
    bool            fp8 = p->format == NIB_SM120A_FP8;
    uint32_t        span = p->hostile ? 60 : 8;
    o.w_bytes = (int64_t)p->n_out * p->n_in / (fp8 ? 1 : 2);
    o.s_bytes = fp8 ? (int64_t)((p->n_out + 127) / 128) * o.k_tiles : (int64_t)p->n_out * p->n_in / 32;
    o.x = draw((int64_t)o.n_sources * p->n_in, 0, 256, true);
    o.x_scales = draw((int64_t)o.n_sources * o.k_tiles, 120 - span / 2, span, false);
    o.w = draw(o.w_bytes * o.n_stack * o.n_parts, 0, 256, fp8);
    o.w_scales = draw(o.s_bytes * o.n_stack * o.n_parts, 118 - span / 2, span, false);
    o.expert = calloc((size_t)p->n_rows, sizeof *o.expert);
    assert_non_null(o.expert);
    for (int32_t t = 2; p->hostile && t < o.n_sources; t += 5) { /* a row of NaN, one with a NaN code, one of zeros */
        if (t % 3 == 0)
            memset(o.x_scales + (int64_t)t * o.k_tiles, 255, (size_t)o.k_tiles);
        if (t % 3 == 1)
            o.x[(int64_t)t * p->n_in + 7] = 0x7f;
        if (t % 3 == 2)
            memset(o.x + (int64_t)t * p->n_in, 0, (size_t)p->n_in);
    }
    if (!p->count)
        return o;
    o.pair = calloc((size_t)p->n_rows, sizeof *o.pair);
    assert_non_null(o.pair);
    for (int32_t e = 0, t = 0; e < EXPERTS; e++)
        for (int32_t i = 0; i < p->count[e]; i++, t++) {
            o.expert[t] = e;
            o.pair[t] = (int32_t)(rig_next(&seed) % (uint32_t)(o.n_sources * TOP));
        }
    return o;
}

static void free_operands(struct operands *o)
{
    free(o->x);
    free(o->x_scales);
    free(o->w);
    free(o->w_scales);
    free(o->expert);
    free(o->pair);
}

/* ---- A run ---- */

static bool launch(const struct problem *p, struct px_machine *m, const struct nib_blackwell_launch *l, const void *a)
{
    const void      *params[1] = {a};
    struct px_launch to = {.grid = {l->grid, 1, 1},
                           .block = {l->block, 1, 1},
                           .shared_bytes = l->shared_bytes,
                           .params = params,
                           .overlaps = strstr(l->kernel, "pack") == NULL};
    return px_run(m, p->module ? p->module : rig_module("mx_sm120a"), l->kernel, &to);
}

static int32_t make_groups(const struct problem *p, int32_t rows, struct nib_blackwell_group *g)
{
    int32_t n = 0, row = 0;
    for (int32_t e = 0; e < EXPERTS; row += p->count[e], e++)
        for (int32_t i = 0; i < p->count[e]; i += rows)
            g[n++] =
                (struct nib_blackwell_group){e, p->count[e] - i < rows ? p->count[e] - i : rows, row + i};
    return n;
}

/* Matrices of one part, packed. */
static bool pack(const struct problem *p, const struct operands *o, int part, struct px_machine *m,
                 struct nib_sm120a_linear *q)
{
    int64_t  codes = nib_sm120a_mx_code_bytes(p->n_out, p->n_in, p->format),
             scales = nib_sm120a_mx_scale_bytes(p->n_out, p->n_in);
    uint8_t *packed = rig_alloc(m, (size_t)(codes * o->n_stack), NULL),
            *packed_scales = rig_alloc(m, (size_t)(scales * o->n_stack), NULL);
    bool     ran = true;
    for (int32_t e = 0; e < o->n_stack && ran; e++) {
        int64_t                     at = part * o->n_stack + e;
        struct nib_sm120a_pack_args a = {
            .stored = rig_alloc(m, (size_t)o->w_bytes, o->w + at * o->w_bytes),
            .stored_scales = rig_alloc(m, (size_t)o->s_bytes, o->w_scales + at * o->s_bytes),
            .codes = packed + e * codes,
            .scales = packed_scales + e * scales,
            .n_out = p->n_out,
            .n_in = p->n_in};
        struct nib_blackwell_launch l;
        nib_sm120a_mx_pack_plan(&a, p->format, &l);
        ran = launch(p, m, &l, &a);
    }
    q->w_codes[part] = packed;
    q->w_scales[part] = packed_scales;
    return ran;
}

/* The product by tiles of `rows` rows, to y [n_rows][n_out] as fp32; false with the reason in error. */
static bool run(const struct problem *p, const struct operands *o, int32_t rows, float *y, char *error, size_t bytes)
{
    struct px_config config = p->config;
    config.shared_most = 99 * 1024;
    struct px_machine *m = px_machine_new(&config);
    assert_non_null(m);
    int64_t stride = (p->n_in + 15) / 16 * 16, pitch = p->n_out + 3;
    bool    ran = true;
    uint8_t *x = rig_alloc(m, (size_t)(stride * o->n_sources), NULL);
    for (int32_t t = 0; t < o->n_sources; t++) {
        memcpy(x + t * stride, o->x + (int64_t)t * p->n_in, (size_t)p->n_in);
        assert_true(px_wrote(m, x + t * stride, (size_t)p->n_in));
    }
    struct nib_blackwell_group groups[256];
    int32_t                    n_groups = p->count ? make_groups(p, rows, groups) : 0;
    struct nib_sm120a_linear   q = {
        .n_rows = p->n_rows,
        .n_out = p->n_out,
        .n_in = p->n_in,
        .x_codes = x,
        .x_scales = rig_alloc(m, (size_t)(o->n_sources * o->k_tiles), o->x_scales),
        .x_codes_stride = stride,
        .x_scales_stride = o->k_tiles,
        .n_parts = o->n_parts,
        .alpha = {alphas[0][0], alphas[1][0]},
        .limit = LIMIT,
        .y = rig_alloc(m, (size_t)(p->n_rows * pitch) * (p->f32 ? 4 : 2), NULL),
        .y_stride = pitch,
        .y_f32 = p->f32,
        .tile_rows = rows,
    };
    for (int part = 0; part < o->n_parts; part++)
        ran = ran && pack(p, o, part, m, &q);
    if (p->count) {
        q.n_experts = EXPERTS;
        q.groups = rig_alloc(m, (size_t)n_groups * sizeof *groups, groups);
        q.n_groups = rig_alloc(m, 4, &n_groups);
        q.pair = rig_alloc(m, (size_t)p->n_rows * 4, o->pair);
        q.top_k = TOP;
        for (int part = 0; part < o->n_parts; part++)
            q.alphas[part] = rig_alloc(m, sizeof alphas[part], alphas[part]);
    }
    struct nib_sm120a_linear_args a;
    struct nib_blackwell_launch   l;
    if (!nib_sm120a_mx_plan(&q, p->format, &a, &l, error, bytes))
        fail_msg("%s", error);
    ran = ran && launch(p, m, &l, &a);
    if (!ran)
        (void)snprintf(error, bytes, "%s", px_error(m));
    for (int32_t t = 0; ran && t < p->n_rows; t++)
        for (int32_t n = 0; ran && n < p->n_out; n++) {
            int64_t at = t * pitch + n;
            void   *from = (uint8_t *)q.y + at * (p->f32 ? 4 : 2);
            ran = px_written(m, from, p->f32 ? 4 : 2);
            if (!ran)
                (void)snprintf(error, bytes, "row %d, output %d was not written", (int)t, (int)n);
            else
                y[(int64_t)t * p->n_out + n] = p->f32 ? *(float *)from : rig_from_bf16(*(uint16_t *)from);
        }
    px_machine_free(m);
    return ran;
}

/* What one result must be: sums of n_in / 32 instructions and eight slices in fp32, alpha. */
static double want_of(const struct problem *p, const struct operands *o, int32_t t, int32_t n, double *bound)
{
    double v[2] = {0, 0}, b[2] = {0, 0};
    for (int part = 0; part < o->n_parts; part++) {
        double sum = 0, mag = 0, alpha = (double)alphas[part][o->expert[t]];
        for (int32_t k = 0; k < p->n_in; k++) {
            double term = x_value(p, o, t, k) * w_value(p, o, part * o->n_stack + o->expert[t], n, k);
            sum += term;
            mag += fabs(term);
        }
        v[part] = sum * alpha;
        b[part] = (p->n_in / 32 + 12) * 0x1p-24 * mag * alpha;
    }
    *bound = b[0];
    if (!p->swiglu || isnan(v[0]))
        return v[0];
    double g = fmin(v[0], LIMIT), u = fmax(fmin(v[1], LIMIT), -LIMIT), silu = g / (1 + exp(-g)), want = silu * u;
    /* The slope of silu is below 1.1; exp, 1 +, the quotient and the product are 8 ulp of fp32; what exp overflows to
     * Inf for is below 2^-120 |g|. */
    *bound = 1.1 * b[0] * (fabs(u) + b[1]) + fabs(silu) * b[1] + 8 * 0x1p-23 * fabs(want) + 0x1p-120 * fabs(g * u);
    return want;
}

static bool right(const struct problem *p, const struct operands *o, const float *y, char *text, size_t bytes)
{
    for (int32_t t = 0; t < p->n_rows; t++)
        for (int32_t n = 0; n < p->n_out; n++) {
            double bound, want = want_of(p, o, t, n, &bound), got = (double)y[(int64_t)t * p->n_out + n];
            bound += (p->f32 ? 0 : 0x1p-8 * fabs(want)) + 0x1p-133;
            if (isnan(want) ? isnan(got) : fabs(got - want) <= bound)
                continue;
            (void)snprintf(text, bytes, "row %d, output %d is %.9g, wanted %.9g +- %.3g", (int)t, (int)n, got, want,
                           bound);
            return false;
        }
    return true;
}

static void check(const struct problem *p)
{
    static const int32_t tiles[] = {8, 16, NIB_SM120A_MX_ROWS};
    char                 text[1300];
    size_t               bytes = (size_t)p->n_rows * (size_t)p->n_out * sizeof(float);
    struct operands      o = make(p);
    float               *y[3];
    for (int i = 0; i < 3; i++) {
        y[i] = calloc(1, bytes);
        assert_non_null(y[i]);
        if (!run(p, &o, tiles[i], y[i], text, sizeof text) || !right(p, &o, y[i], text, sizeof text))
            fail_msg("tiles of %d rows: %s", (int)tiles[i], text);
        assert_memory_equal(y[i], y[0], bytes);
    }
    for (int i = 0; i < 3; i++)
        free(y[i]);
    free_operands(&o);
}

static const enum nib_sm120a_format formats[] = {NIB_SM120A_FP8, NIB_SM120A_MXFP4};

static void ragged(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        check(&(struct problem){.format = formats[f], .n_rows = 1, .n_out = 9, .n_in = 32, .f32 = true});
        check(&(struct problem){.format = formats[f],
                                .n_rows = 19,
                                .n_out = 133,
                                .n_in = 1312,
                                .hostile = true,
                                .f32 = f == 0,
                                .config = {.seed = 2}});
    }
}

static void experts(void **state)
{
    (void)state;
    static const int32_t count[EXPERTS] = {0, 1, 20};
    for (int f = 0; f < 2; f++)
        check(&(struct problem){.format = formats[f],
                                .n_rows = 21,
                                .n_out = 40,
                                .n_in = 416,
                                .f32 = f == 1,
                                .count = count,
                                .config = {.seed = 3}});
}

/* Gate and up in one product: outputs that end inside a pair of units, of a matrix and of experts. */
static void swiglu(void **state)
{
    (void)state;
    static const int32_t count[EXPERTS] = {9, 0, 12};
    for (int f = 0; f < 2; f++) {
        check(&(struct problem){.format = formats[f],
                                .n_rows = 19,
                                .n_out = f ? 68 : 20,
                                .n_in = 1312,
                                .swiglu = true,
                                .hostile = true,
                                .f32 = f == 0,
                                .config = {.seed = 5}});
        check(&(struct problem){.format = formats[f],
                                .n_rows = 21,
                                .n_out = 40,
                                .n_in = 416,
                                .swiglu = true,
                                .f32 = true,
                                .count = count,
                                .config = {.seed = 6}});
    }
}

static void schedules(void **state)
{
    (void)state;
    static const int32_t count[EXPERTS] = {70, 3, 9};
    for (uint64_t s = 0; s < 12; s++)
        check(&(struct problem){.format = formats[s % 2],
                                .swiglu = s >= 8,
                                .n_rows = s % 4 < 2 ? 82 : 67,
                                .n_out = 200,
                                .n_in = 1184,
                                .f32 = s % 3 == 0,
                                .hostile = s % 3 == 1,
                                .count = s % 4 < 2 ? count : NULL,
                                .config = {.seed = s, .mma_by_steps = s % 4 == 3}});
}

/* ---- Broken kernels ---- */

static const struct ptx_breakage tile_breakages[] = {
    {"no wait for copies", "cp.async.wait_group 2", 0, PTX_DELETE, NULL},
    {"a stage that is still on its way", "cp.async.wait_group 2", 0, PTX_REPLACE, "cp.async.wait_group 3"},
    {"a stage filled while others read it", "bar.sync", 0, PTX_DELETE, NULL},
    {"sums over stages that others read", "bar.sync", 1, PTX_DELETE, NULL},
    {"sums read before they are there", "bar.sync", 2, PTX_DELETE, NULL},
    {"the scales of another step", "{1, 0}", 0, PTX_REPLACE, "{2, 0}"},
    {"rows transposed", "x4.shared", 0, PTX_REPLACE, "x4.trans.shared"},
    {"a slice not summed", "add.rn.f32", 0, PTX_LAST, "0f00000000"},
    {"no wait for the kernel before", "griddepcontrol.wait", 0, PTX_DELETE, NULL},
};
static const struct ptx_breakage decode_breakages[] = {
    {"sums read before they are there", "bar.sync", 0, PTX_DELETE, NULL},
    {"FP8 taken for FP4", "f32.e4m3.e4m3", 2, PTX_REPLACE, "f32.e2m1.e4m3"},
    {"a slice not summed", "add.rn.f32", 6, PTX_LAST, "0f00000000"}, /* gate's and up's take turns */
    {"no wait for the kernel before", "griddepcontrol.wait", 0, PTX_DELETE, NULL},
};

/* Of gate and up in one product. */
static const struct ptx_breakage swiglu_breakages[] = {
    {"up's alpha is gate's", "+132];", 0, PTX_REPLACE, "+128];"},
    {"gate clamped from below", "setp.lt.f32", -1, PTX_REPLACE, "setp.gt.f32"},
    {"another exponential", "ex2.approx", -1, PTX_LAST, "0f00000000"},
    /* Of the streaming kernels alone: */
    {"up's codes from gate's matrix", "+48];", 0, PTX_REPLACE, "+40];"},
    {"a slice of up not summed", "add.rn.f32", 7, PTX_LAST, "0f00000000"},
};
enum { SWIGLU_OF_TILES = 3 };

struct breaking {
    enum nib_sm120a_format format;
    int32_t                rows; /* of a tile */
    bool                   swiglu;
};

static bool caught(const void *problem, struct px_module *module, uint64_t schedule, char *text, size_t bytes)
{
    const struct breaking *b = problem;
    struct problem         p = {.format = b->format,
                                .n_rows = 13,
                                .n_out = 40,
                                .n_in = 1568, /* the last stage is one that finished sums take the place of */
                                .f32 = true,
                                .swiglu = b->swiglu,
                                .config = {.seed = schedule, .max_steps = 20000000},
                                .module = module};
    struct operands        o = make(&p);
    float                  y[13 * 40];
    bool                   seen = !run(&p, &o, b->rows, y, text, bytes) || !right(&p, &o, y, text, bytes);
    free_operands(&o);
    return seen;
}

static void break_all(const char *entry, const struct breaking *b, const struct ptx_breakage *list, size_t n)
{
    rig_break_all(&(struct rig_broken){"mx_sm120a", entry, 4, b, caught}, list, n);
}

static void broken(void **state)
{
    (void)state;
    const struct breaking tiles = {NIB_SM120A_MXFP4, NIB_SM120A_MX_ROWS, false}, few = {NIB_SM120A_FP8, 16, false},
                          tiles_swiglu = {NIB_SM120A_MXFP4, NIB_SM120A_MX_ROWS, true},
                          few_swiglu = {NIB_SM120A_FP8, 16, true};
    break_all("nib_sm120a_mxfp4_64", &tiles, tile_breakages, sizeof tile_breakages / sizeof tile_breakages[0]);
    break_all("nib_sm120a_fp8_16", &few, decode_breakages, sizeof decode_breakages / sizeof decode_breakages[0]);
    break_all("nib_sm120a_mxfp4_64", &tiles_swiglu, swiglu_breakages, SWIGLU_OF_TILES);
    break_all("nib_sm120a_fp8_16", &few_swiglu, swiglu_breakages, sizeof swiglu_breakages / sizeof swiglu_breakages[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ragged), cmocka_unit_test(experts), cmocka_unit_test(swiglu)};
    const struct CMUnitTest more[] = {cmocka_unit_test(schedules)};
    const struct CMUnitTest wrong[] = {cmocka_unit_test(broken)};
    if (argc > 1 && strcmp(argv[1], "long") == 0)
        return cmocka_run_group_tests(more, NULL, NULL);
    if (argc > 1 && strcmp(argv[1], "broken") == 0)
        return cmocka_run_group_tests(wrong, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
