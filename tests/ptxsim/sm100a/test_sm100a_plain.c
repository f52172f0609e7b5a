/* The sm_100a product of plain rows from its emitted PTX, held to sums in double: BF16 and fp32 rows, BF16 and FP8
 * weights, few and many rows, groups, ragged shapes, values at every edge, the same bits among few rows and many. `long`:
 * many schedules; `broken`: changes to the PTX, each of which must be caught. */
#include "ptxsim/sm100a/sm100a_rig.h"

struct problem {
    struct nib_sm100a_plain p; /* shapes, and whether x and y are fp32; pointers into the machine */
    struct px_config        config;
    uint64_t                seed;
    bool                    hostile;
    struct px_module       *module; /* NULL: as emitted */
    struct px_machine      *machine;
    float                  *x, *w; /* [n_rows][x_stride], [n_groups * n_out][n_in] */
    char                    error[1024];
};

/* Edges of fp32 in rows of their own, so that what is lost in one row cannot hide what is lost in another. */
static float edge(struct problem *r, int32_t row)
{
    float v = rig_value(&r->seed);
    switch (row % 8) {
    case 1: return v * 0x1p100f;
    case 2: return v * 0x1p-100f;
    case 3: return rig_next(&r->seed) % 50 == 0 ? NAN : v;
    case 4: return rig_next(&r->seed) % 50 == 0 ? INFINITY : fabsf(v);
    case 5: return rig_next(&r->seed) % 3 ? v * 0x1p-130f : v * 0x1.fffffep0f * 0x1p-126f; /* subnormal */
    case 6: return ldexpf(v, (int)(rig_next(&r->seed) % 60) - 30);
    default: return v;
    }
}

/* Every code but NaN under scales near 1, or as far apart as the kernels take them; atoms as they are packed. */
static void fill_fp8(struct problem *r)
{
    struct nib_sm100a_plain *p = &r->p;
    int32_t  rows = p->n_groups * p->n_out, cols = (p->n_in + 127) / 128, bands = (rows + 127) / 128;
    size_t   n = (size_t)rows * (size_t)p->n_in, n_atoms = (size_t)(bands * cols);
    uint8_t *codes = malloc(n), *atoms = malloc(n_atoms * 512);
    assert_true(codes && atoms);
    for (size_t i = 0; i < n_atoms; i++)
        memset(atoms + i * 512, 115 + (int)(rig_next(&r->seed) % 16), 512);
    for (size_t i = 0; i < n_atoms && r->hostile; i++)
        memset(atoms + i * 512, 60 + (int)(rig_next(&r->seed) % (NIB_SM100A_PLAIN_FP8_MOST - 59)), 512);
    if (r->hostile)
        memset(atoms, NIB_SM100A_PLAIN_FP8_MOST, 512);
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)rig_next(&r->seed);
        codes[i] = (c & 0x7f) == 0x7f ? 0x38 : c;
        size_t atom = i / (size_t)p->n_in / 128 * (size_t)cols + i % (size_t)p->n_in / 128;
        r->w[i] = (float)(rig_e4m3(codes[i]) * rig_ue8m0(atoms[atom * 512]));
    }
    p->w = rig_alloc(r->machine, n, codes);
    p->w_scales = rig_alloc(r->machine, n_atoms * 512, atoms);
    free(codes);
    free(atoms);
}

static void fill(struct problem *r)
{
    struct nib_sm100a_plain *p = &r->p;
    size_t n_x = (size_t)p->n_rows * (size_t)p->x_stride, n_w = (size_t)p->n_groups * (size_t)(p->n_out * p->n_in),
           n_y = (size_t)p->n_rows * (size_t)p->y_stride * (p->y_f32 ? 4 : 2);
    uint16_t *half = malloc((n_x > n_w ? n_x : n_w) * sizeof *half);
    r->x = malloc(n_x * sizeof *r->x);
    r->w = malloc(n_w * sizeof *r->w);
    assert_true(half && r->x && r->w);
    if (p->w_fp8)
        fill_fp8(r);
    for (size_t i = 0; i < n_w && !p->w_fp8; i++) {
        half[i] = rig_bf16(rig_value(&r->seed));
        r->w[i] = rig_from_bf16(half[i]);
    }
    if (!p->w_fp8)
        p->w = rig_alloc(r->machine, n_w * 2, half);
    uint64_t start = r->seed;
    for (size_t i = 0; i < n_x; i++) {
        int32_t row = (int32_t)(i / (size_t)p->x_stride), at = (int32_t)(i % (size_t)p->x_stride);
        /* Each row the same however many there are. */
        if (at == 0)
            r->seed = start + (uint64_t)row;
        float v = at >= p->n_groups * p->n_in ? NAN : r->hostile ? edge(r, row) : rig_value(&r->seed);
        half[i] = rig_bf16(v);
        r->x[i] = p->x_f32 ? v : rig_from_bf16(half[i]);
    }
    p->x = p->x_f32 ? rig_alloc(r->machine, n_x * 4, r->x) : rig_alloc(r->machine, n_x * 2, half);
    p->y = rig_alloc(r->machine, n_y, NULL);
    memset(p->y, 0xff, n_y);
    free(half);
}

static bool run(struct problem *r)
{
    struct nib_sm100a_plain_args args;
    struct nib_blackwell_launch  launch;
    uint32_t                     n_row_tiles;
    const void                  *params[1] = {&args};
    if (r->p.x_stride == 0)
        r->p.x_stride = (r->p.n_groups * r->p.n_in + 23) / 8 * 8;
    if (r->p.y_stride == 0)
        r->p.y_stride = r->p.n_groups * r->p.n_out + 3;
    r->machine = px_machine_new(&r->config);
    assert_non_null(r->machine);
    fill(r);
    if (!nib_sm100a_plain_plan(&r->p, sim_tensor_map_encode_tiled, &args, &launch, &n_row_tiles, r->error,
                               sizeof r->error))
        return false;
    struct px_launch l = {.grid = {launch.grid, n_row_tiles, 1},
                          .block = {launch.block, 1, 1},
                          .cluster = {launch.cluster, 1, 1},
                          .shared_bytes = launch.shared_bytes,
                          .params = params};
    bool ran = px_run(r->machine, r->module ? r->module : rig_module("plain_sm100a"), launch.kernel, &l);
    if (!ran)
        (void)snprintf(r->error, sizeof r->error, "%s", px_error(r->machine));
    return ran;
}

static void release(struct problem *r)
{
    free(r->x);
    free(r->w);
    px_machine_free(r->machine);
}

/* One fp32 rounding of each 16 products (or four) of each of up to three parts, which are 2^-7 of one another, two of
 * the parts' sum and seven of the spans'; where sums are subnormal each rounding is up to 2^-149. */
static bool right(struct problem *r)
{
    const struct nib_sm100a_plain *p = &r->p;
    int32_t terms = r->config.mma_by_steps ? 4 : 16;
    for (int32_t t = 0; t < p->n_rows; t++)
        for (int32_t o = 0; o < p->n_groups * p->n_out; o++) {
            const float *x = r->x + t * p->x_stride + o / p->n_out * p->n_in, *w = r->w + (int64_t)o * p->n_in;
            double       want = 0, most = 0, bound;
            for (int32_t k = 0; k < p->n_in; k++) {
                want += (double)x[k] * (double)w[k];
                most += fabs((double)x[k] * (double)w[k]);
            }
            bound = ((p->n_in / terms + 1) * 1.02 + 9) * 0x1p-24 * most + (p->n_in + 32) * 0x1p-149 +
                    (p->y_f32 ? 0 : 0x1p-8 * fabs(want) + 0x1p-134);
            int64_t at = t * p->y_stride + o;
            double  got = p->y_f32 ? (double)((const float *)p->y)[at]
                                   : (double)rig_from_bf16(((const uint16_t *)p->y)[at]);
            if (isnan(want) ? isnan(got) : isinf(want) ? got == want : fabs(got - want) <= bound)
                continue;
            (void)snprintf(r->error, sizeof r->error, "row %d, output %d: got %.9g, want %.9g", t, o, got, want);
            return false;
        }
    /* Between rows nothing is written. */
    for (int32_t t = 0; t < p->n_rows; t++)
        for (int64_t i = p->n_groups * p->n_out; i < p->y_stride; i++)
            if (p->y_f32 ? ((const uint32_t *)p->y)[t * p->y_stride + i] != ~0u
                         : ((const uint16_t *)p->y)[t * p->y_stride + i] != 0xffff) {
                (void)snprintf(r->error, sizeof r->error, "written behind row %d", t);
                return false;
            }
    return true;
}

static bool of_fp8; /* weights */

static void one(int32_t n_rows, int32_t n_groups, int32_t n_out, int32_t n_in, bool x_f32, bool y_f32, bool hostile,
                struct px_config config)
{
    struct problem r = {.p = {.n_rows = n_rows, .n_groups = n_groups, .n_out = n_out, .n_in = n_in, .x_f32 = x_f32,
                              .y_f32 = y_f32, .w_fp8 = of_fp8},
                        .config = config,
                        .seed = (uint64_t)(n_rows * 31 + n_out),
                        .hostile = hostile};
    if (!run(&r) || !right(&r))
        fail_msg("%d rows, %d groups of [%d, %d], seed %llu: %s", n_rows, n_groups, n_out, n_in,
                 (unsigned long long)config.seed, r.error);
    release(&r);
}

static void few_rows(void **state)
{
    (void)state;
    one(1, 1, 8, 8, true, true, false, (struct px_config){.seed = 0});
    one(16, 3, 72, 200, true, false, true, (struct px_config){.seed = 1});
    one(9, 2, 136, 1032, true, true, true, (struct px_config){.seed = 2}); /* spans without anything */
    one(32, 2, 40, 136, false, true, true, (struct px_config){.seed = 3});
    one(3, 1, 16, 3200, false, false, false, (struct px_config){.seed = 4}); /* stages are used again */
}

static void many_rows(void **state)
{
    (void)state;
    one(70, 2, 130, 136, true, true, true, (struct px_config){.seed = 5});
    one(200, 1, 24, 264, false, false, true, (struct px_config){.seed = 6});
}

static void fp8_weights(void **state)
{
    (void)state;
    of_fp8 = true;
    one(1, 1, 8, 16, true, true, false, (struct px_config){.seed = 0});
    one(16, 3, 72, 208, true, false, true, (struct px_config){.seed = 1}); /* groups that begin inside a band of scales */
    one(9, 2, 136, 1040, true, true, true, (struct px_config){.seed = 2});
    one(3, 1, 16, 2080, false, false, false, (struct px_config){.seed = 4}); /* stages are used again, all of them */
    one(70, 2, 130, 144, true, true, true, (struct px_config){.seed = 5});
    one(193, 1, 24, 272, false, false, true, (struct px_config){.seed = 6});
    of_fp8 = false;
}

/* The first rows of one product are those of the other. */
static void same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool           f32 = i % 2, fp8 = i / 2;
        struct problem few = {.p = {.n_rows = 5, .n_groups = 2, .n_out = 20, .n_in = 528, .x_f32 = f32, .y_f32 = true,
                                    .w_fp8 = fp8},
                              .seed = 9},
                       many = few;
        many.p.n_rows = 40;
        if (!run(&few) || !right(&few))
            fail_msg("few: %s", few.error);
        if (!run(&many) || !right(&many))
            fail_msg("many: %s", many.error);
        assert_memory_equal(few.x, many.x, (size_t)(5 * few.p.x_stride) * sizeof *few.x);
        assert_memory_equal(few.p.y, many.p.y, (size_t)(5 * few.p.y_stride) * sizeof(float));
        release(&few);
        release(&many);
    }
}

static void open_questions(void **state)
{
    (void)state;
    one(5, 1, 40, 200, true, true, false, (struct px_config){.seed = 7, .mma_by_steps = true});
    one(5, 1, 40, 200, false, true, false, (struct px_config){.seed = 8, .elect_high = true});
}

static void refused(void **state)
{
    (void)state;
    static uint8_t               memory[64] __attribute__((aligned(16)));
    struct nib_sm100a_plain      p = {.n_rows = 1, .n_groups = 1, .n_out = 1, .n_in = 8, .x = memory, .w = memory,
                                      .y = memory, .x_stride = 8, .y_stride = 1};
    struct nib_sm100a_plain_args args;
    struct nib_blackwell_launch  launch;
    uint32_t                     n;
    char                         error[160];
#define PLAN() nib_sm100a_plain_plan(&p, sim_tensor_map_encode_tiled, &args, &launch, &n, error, sizeof error)
    assert_true(PLAN());
    p.n_in = 12;
    assert_false(PLAN());
    assert_string_equal(error, "sm_100a: n_in of plain rows is 12: wants a multiple of 8");
    p.n_in = 24;
    p.x_stride = 24;
    p.w_fp8 = true;
    assert_false(PLAN());
    assert_string_equal(error, "sm_100a: n_in of plain rows is 24: wants a multiple of 16");
    p.w_fp8 = false;
    p.n_in = 8;
    p.x_stride = 12;
    assert_false(PLAN());
    assert_non_null(strstr(error, "the stride of plain rows is 12"));
    p.x_stride = 8;
    p.x = memory + 8;
    assert_false(PLAN());
    p.x = memory;
    p.n_rows = 0;
    assert_false(PLAN());
    assert_non_null(strstr(error, "is 0: wants at least 1"));
#undef PLAN
    /* How many blocks share a tile, which is the order of sums: a matter of the weight alone. */
    static const int32_t shape[][4] = {{8, 1024, 4096, 2}, {16, 1024, 4096, 1}, {1, 256, 4096, 8}, {1, 384, 7168, 8},
                                       {4, 1024, 4096, 4}, {1, 8, 136, 1}, {1, 8, 264, 2}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int32_t rows = 1; rows < 300; rows += 149) {
            p = (struct nib_sm100a_plain){.n_rows = rows, .n_groups = shape[i][0], .n_out = shape[i][1],
                                          .n_in = shape[i][2], .x_f32 = rows % 2, .x = memory, .w = memory,
                                          .y = memory, .x_stride = (int64_t)shape[i][0] * shape[i][2]};
            assert_true(nib_sm100a_plain_plan(&p, sim_tensor_map_encode_tiled, &args, &launch, &n, error, sizeof error));
            assert_int_equal(launch.cluster, shape[i][3]);
            assert_int_equal(launch.grid, shape[i][0] * ((shape[i][1] + 127) / 128) * shape[i][3]);
        }
}

static void many_schedules(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 24; seed++) {
        of_fp8 = seed % 4 == 3;
        one(7 + (int32_t)seed, 2, 136, 1040, seed % 3 != 0, seed % 2, true,
            (struct px_config){.seed = seed, .resident = 1 + (int32_t)seed % 2});
        one(100 + (int32_t)seed, 1, 70, 528, seed % 3 == 0, seed % 2, true, (struct px_config){.seed = seed});
    }
    of_fp8 = false;
    one(3, 1, 130, 7168, true, true, false, (struct px_config){.seed = 24, .mma_by_steps = true});
    one(18, 160, 8, 72, true, true, true, (struct px_config){.seed = 25}); /* one block a tile, two of rows */
}

/* ---- Broken ---- */

#define WAIT "mbarrier.try_wait.parity"
#define AFTER "tcgen05.fence::after_thread_sync"
#define BEFORE "tcgen05.fence::before_thread_sync"

static const struct ptx_breakage breakages[] = {
    /* Waits, in their order in the code: stage empty (weights), full, empty (rows), all done. */
    {"no wait for an empty stage of weights", WAIT, 0, PTX_SKIP_WAIT, NULL},
    {"no wait for a full stage", WAIT, 1, PTX_SKIP_WAIT, NULL},
    {"no wait for an empty stage of rows", WAIT, 2, PTX_SKIP_WAIT, NULL},
    {"no wait for the last product", WAIT, 3, PTX_SKIP_WAIT, NULL},
    {"phase 0 for empty stages of weights", WAIT, 0, PTX_LAST, "0"},
    {"phase 1 for empty stages of weights", WAIT, 0, PTX_LAST, "1"},
    {"phase 0 for full stages", WAIT, 1, PTX_LAST, "0"},
    {"phase 1 for full stages", WAIT, 1, PTX_LAST, "1"},
    {"phase 0 for empty stages of rows", WAIT, 2, PTX_LAST, "0"},
    {"phase 1 for empty stages of rows", WAIT, 2, PTX_LAST, "1"},
    {"phase 1 for the last product", WAIT, 3, PTX_LAST, "1"},
    /* Fences and barriers. The one after a full stage has nothing of tensor memory before it. */
    {"no fence behind the allocation", BEFORE, 0, PTX_DELETE, NULL},
    {"no fence after the last product", AFTER, 2, PTX_DELETE, NULL},
    {"no fence behind the loads", BEFORE, 1, PTX_DELETE, NULL},
    {"no fence before freeing", AFTER, 3, PTX_DELETE, NULL},
    {"rows not shown to the tensor core", "fence.proxy.async", 0, PTX_DELETE, NULL},
    {"no wait for loads", "tcgen05.wait::ld", 2, PTX_DELETE, NULL}, /* which covers those before */
    {"used before it is allocated", "bar.sync", 0, PTX_DELETE, NULL},
    {"lanes not together before a stage is announced", "bar.warp.sync", 1, PTX_DELETE, NULL},
    {"sums read before they are there", "barrier.cluster", 0, PTX_DELETE, NULL},
    {"a block's end not awaited", "barrier.cluster", 1, PTX_DELETE, NULL},
    /* Arrivals, bytes, copies. */
    {"stages never emptied", "tcgen05.commit", 0, PTX_DELETE, NULL},
    {"never done", "tcgen05.commit", 1, PTX_DELETE, NULL},
    {"rows never announced", "mbarrier.arrive.shared", 0, PTX_DELETE, NULL},
    {"16 bytes too many expected", "mbarrier.arrive.expect_tx", 0, PTX_LAST, "16400"},
    {"16 bytes too few expected", "mbarrier.arrive.expect_tx", 0, PTX_LAST, "16368"},
    {"weights left out", "cp.async.bulk.tensor", 0, PTX_DELETE, NULL},
    {"second parts left out", "st.shared.v4", 1, PTX_DELETE, NULL},
    {"third parts where the second are", "+20480]", 0, PTX_REPLACE, "+18432]"},
    /* The instruction descriptor, 0x080c0490. */
    {"n = 40", "135005328", -1, PTX_REPLACE, "134874256"},
    {"m = 64", "135005328", -1, PTX_REPLACE, "67896464"},
    {"fp16 weights", "135005328", -1, PTX_REPLACE, "135005200"},
    {"fp16 sums", "135005328", -1, PTX_REPLACE, "135005312"},
    {"negated weights", "135005328", -1, PTX_REPLACE, "135013520"},
    {"turned weights", "135005328", -1, PTX_REPLACE, "135038096"},
    /* Matrix descriptors, 0x4000404000010000. */
    {"no version bits", "4611756662049538048", -1, PTX_REPLACE, "4611686293305360384"},
    {"64-byte swizzle", "4611756662049538048", -1, PTX_REPLACE, "9223442680476925952"},
    {"no swizzle", "4611756662049538048", -1, PTX_REPLACE, "70643622150144"},
    {"half the stride between groups of rows", "4611756662049538048", -1, PTX_REPLACE, "4611756524610584576"},
    {"a base offset", "4611756662049538048", -1, PTX_REPLACE, "4612319612002959360"},
    {"64 bytes for a step along k", "4611756662049538050", -1, PTX_REPLACE, "4611756662049538052"},
    /* Accumulation, spans, tensor memory. */
    {"always accumulating", "setp.ne.b32 p,", 0, PTX_REPLACE, "setp.ne.b32 p, 1, 0; // "},
    {"never accumulating", "setp.ne.b32 p,", 2, PTX_REPLACE, "setp.ne.b32 p, 0, 0; // "},
    {"the first span's sums twice", "mapa", 1, PTX_LAST, "0"},
    {"every span the first", "%cluster_ctarank", 0, PTX_LAST, "0"},
    {"never freed", "tcgen05.dealloc", 0, PTX_DELETE, NULL},
    {"allocated by 48 columns", "tcgen05.alloc", 0, PTX_LAST, "48"},
    {"too few columns", "tcgen05.alloc", 0, PTX_LAST, "32"},
};

/* Where FP8 weights come in: waits in their order are a place for codes emptied, stage full, codes there, stage empty, all
 * done. Not here: lanes that are not together before codes are given back, which no schedule has shown. */
static const struct ptx_breakage fp8_breakages[] = {
    {"no wait for a place for codes", WAIT, 0, PTX_SKIP_WAIT, NULL},
    {"no wait for a full stage", WAIT, 1, PTX_SKIP_WAIT, NULL},
    {"no wait for codes", WAIT, 2, PTX_SKIP_WAIT, NULL},
    {"no wait for an empty stage", WAIT, 3, PTX_SKIP_WAIT, NULL},
    {"no wait for the last product", WAIT, 4, PTX_SKIP_WAIT, NULL},
    {"phase 0 for places", WAIT, 0, PTX_LAST, "0"},
    {"phase 1 for places", WAIT, 0, PTX_LAST, "1"},
    {"phase 0 for full stages", WAIT, 1, PTX_LAST, "0"},
    {"phase 1 for full stages", WAIT, 1, PTX_LAST, "1"},
    {"phase 0 for codes", WAIT, 2, PTX_LAST, "0"},
    {"phase 1 for codes", WAIT, 2, PTX_LAST, "1"},
    {"phase 0 for empty stages", WAIT, 3, PTX_LAST, "0"},
    {"phase 1 for empty stages", WAIT, 3, PTX_LAST, "1"},
    {"weights not shown to the tensor core", "fence.proxy.async", 0, PTX_DELETE, NULL},
    {"lanes not together before a stage is announced", "bar.warp.sync", 2, PTX_DELETE, NULL},
    {"codes never given back", "mbarrier.arrive.shared", 0, PTX_DELETE, NULL},
    {"stages never announced", "mbarrier.arrive.shared", 1, PTX_DELETE, NULL},
    {"stages never emptied", "tcgen05.commit", 0, PTX_DELETE, NULL},
    {"16 bytes too many expected", "mbarrier.arrive.expect_tx", 0, PTX_LAST, "16400"},
    {"16 bytes too few expected", "mbarrier.arrive.expect_tx", 0, PTX_LAST, "16368"},
    {"codes left out", "cp.async.bulk.tensor", 0, PTX_DELETE, NULL},
    {"eight values of a row left out", "st.shared.v4", 3, PTX_DELETE, NULL},
    {"codes 16 bytes on", "+45056]", 0, PTX_REPLACE, "+45072]"},
    {"two values exchanged", "prmt.b32", 0, PTX_LAST, "1044"},
    {"biases not made up for", "mul.rn.bf16x2", 0, PTX_LAST, "1065369472"},
    {"the first scale for all of a row", "ld.global.u8", 1, PTX_DELETE, NULL},
    {"every span the first", "%cluster_ctarank", 0, PTX_LAST, "0"},
};

static bool caught(const void *problem, struct px_module *module, uint64_t seed, char *text, size_t bytes)
{
    struct problem r = *(const struct problem *)problem;
    r.module = module;
    r.seed = seed;
    r.config = (struct px_config){.seed = seed, .max_steps = 2000000};
    bool bad = !run(&r) || !right(&r);
    (void)snprintf(text, bytes, "%s", r.error);
    release(&r);
    return bad;
}

static void broken(void **state)
{
    (void)state;
    const struct problem r = {.p = {.n_rows = 9, .n_groups = 1, .n_out = 72, .n_in = 3592, .x_f32 = true, .y_f32 = true}};
    rig_break_all(&(struct rig_broken){"plain_sm100a", "nib_sm100a_plain_few_f32", 4, &r, caught}, breakages,
                  sizeof breakages / sizeof breakages[0]);
}

static void broken_fp8(void **state)
{
    (void)state;
    const struct problem r = {.p = {.n_rows = 9, .n_groups = 1, .n_out = 40, .n_in = 7200, .x_f32 = true, .y_f32 = true,
                                    .w_fp8 = true}};
    rig_break_all(&(struct rig_broken){"plain_sm100a", "nib_sm100a_plain_fp8_few_f32", 4, &r, caught}, fp8_breakages,
                  sizeof fp8_breakages / sizeof fp8_breakages[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_rows), cmocka_unit_test(many_rows),
                                       cmocka_unit_test(fp8_weights), cmocka_unit_test(same_bits),
                                       cmocka_unit_test(open_questions),
                                       cmocka_unit_test(refused)};
    const struct CMUnitTest longer[] = {cmocka_unit_test(many_schedules)};
    const struct CMUnitTest wrong[] = {cmocka_unit_test(broken), cmocka_unit_test(broken_fp8)};
    if (argc > 1 && strcmp(argv[1], "broken") == 0)
        return cmocka_run_group_tests(wrong, NULL, NULL);
    return argc > 1 && strcmp(argv[1], "long") == 0 ? cmocka_run_group_tests(longer, NULL, NULL)
                                                    : cmocka_run_group_tests(tests, NULL, NULL);
}
