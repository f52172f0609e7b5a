/* The two kernels of a mixture of experts on sm_100a, from the emitted PTX: SwiGLU of both first products with rows
 * again, and the weighted sum of the second. Sums are held to double within the bound of accumulation; codes, scales
 * and weighted sums to the bit of what the kernels' own results must give. `broken`: changes to the PTX, which must
 * not pass. `long`: more schedules. */
#include "number/act_rows.h"
#include "ptxsim/sm100a/sm100a_rig.h"

enum { EXPERTS = 4, WIDE = 1536 /* columns at most */ };

struct problem {
    bool             mx, fp8, hostile, before; /* mx: MXFP4 weights, or FP8 ones; before: weights multiply the inner rows */
    int32_t          columns, n_tokens, top_k, dim, inner, n_sms;
    float            limit;
    uint64_t         seed;
    struct px_module *module; /* NULL: experts_sm100a */
    bool             linear_scales; /* of w1: arranged wrongly */
};

/* A stack of EXPERTS matrices on the machine, and its values. */
struct stack {
    int32_t  n_out, n_in;
    uint8_t *codes, *scales;
    float   *alphas, *value;
};

struct run {
    struct problem     p;
    struct px_machine *m;
    uint64_t           random;
    int32_t            n_pairs, scale_rows;
    int32_t           *chosen;
    float             *weight, *x; /* x: values of each pair's row, in the order of rows */
    struct stack       w1, w3, w2;
    struct nib_blackwell_groups_args g;
    struct nib_blackwell_rows        rows, inner; /* of x; of what `in` makes */
    float                           *h, *z, *y, *shared;
    char                             error[1200];
};

static int64_t scale_at(const struct problem *p, int64_t row, int64_t block, int64_t n_in)
{
    if (!p->mx)
        return nib_sm100a_scale_offset(row, block, n_in);
    return row / 128 * ((n_in + 127) / 128) * 512 + block / 4 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

static size_t scale_bytes(const struct problem *p, int64_t rows, int64_t n_in)
{
    return (size_t)(p->mx ? nib_sm100a_mx_scale_bytes(rows, n_in) : nib_sm100a_scale_bytes(rows, n_in));
}

static struct stack make_stack(struct run *r, int32_t n_out, int32_t n_in, bool linear)
{
    const struct problem *p = &r->p;
    struct stack s = {.n_out = n_out, .n_in = n_in};
    int32_t      n_blocks = n_in / (p->mx ? 32 : 16);
    size_t       packed = scale_bytes(p, n_out, n_in), rows = (size_t)EXPERTS * (size_t)n_out;
    size_t       row_bytes = (size_t)n_in / (p->fp8 ? 1 : 2);
    uint8_t     *codes = malloc(rows * row_bytes), *scales = calloc(EXPERTS, packed), stored[WIDE / 16];
    float        alphas[EXPERTS];
    s.value = malloc(rows * (size_t)n_in * sizeof *s.value);
    assert_true(codes && scales && s.value && n_in <= WIDE);
    for (size_t i = 0; i < rows * row_bytes; i++) {
        codes[i] = (uint8_t)rig_next(&r->random);
        if (p->fp8 && (codes[i] & 0x7f) == 0x7f) /* NaN */
            codes[i] = 0x38;
    }
    for (size_t row = 0; row < rows; row++) {
        size_t e = row / (size_t)n_out, o = row % (size_t)n_out;
        for (int32_t b = 0; b < n_blocks; b++) {
            stored[b] = (uint8_t)(p->mx ? 120 + rig_next(&r->random) % 8 : 0x28 + rig_next(&r->random) % 0x20);
            size_t at = linear ? o * (packed / (size_t)n_out) + (size_t)b : (size_t)scale_at(p, (int64_t)o, b, n_in);
            if (p->fp8) /* one for 128 values of 128 rows */
                stored[b] = (uint8_t)(120 + (e * 5 + o / 128 * 3 + (size_t)b / 4) % 8);
            scales[e * packed + at] = stored[b];
        }
        for (int32_t b = 0; p->fp8 && b < n_in; b += 32)
            nib_fp8_row_decode(codes + row * row_bytes + b, stored + b / 32, 32, 128, s.value + row * (size_t)n_in + b);
        if (p->fp8)
            continue;
        if (p->mx)
            nib_fp4_row_decode(codes + row * row_bytes, stored, n_in, s.value + row * (size_t)n_in);
        else
            nib_nvfp4_row_decode(codes + row * row_bytes, stored, 1.0f, n_in, s.value + row * (size_t)n_in);
    }
    for (int e = 0; e < EXPERTS; e++)
        alphas[e] = p->mx ? 1.0f : 1e-2f * (float)(e + 3);
    s.codes = rig_alloc(r->m, rows * row_bytes, codes);
    s.scales = rig_alloc(r->m, EXPERTS * packed, scales);
    s.alphas = rig_alloc(r->m, sizeof alphas, alphas);
    free(codes);
    free(scales);
    return s;
}

/* Places for n rows; scales of no row are NaN, which must not reach any that counts. */
static struct nib_blackwell_rows make_places(struct run *r, int32_t n_in, bool written)
{
    enum nib_act_format       format = r->p.mx ? NIB_ACT_FP8 : NIB_ACT_NVFP4;
    struct nib_blackwell_rows q = {.codes_stride = nib_act_codes_stride(format, n_in)};
    size_t bytes = scale_bytes(&r->p, r->scale_rows, n_in), n = (size_t)r->n_pairs;
    void  *nan = malloc(bytes), *zero = calloc(n, (size_t)q.codes_stride);
    assert_true(nan && zero);
    memset(nan, r->p.mx ? 0xff : 0x7f, bytes);
    q.codes = rig_alloc(r->m, n * (size_t)q.codes_stride, written ? zero : NULL);
    q.scales = rig_alloc(r->m, bytes, nan);
    q.row_scale = rig_alloc(r->m, n * 4, NULL);
    q.scale_row = r->g.scale_row;
    free(nan);
    free(zero);
    return q;
}

/* The pairs' rows: codes, scales where the product reads them, values to r->x. */
static void fill_rows(struct run *r)
{
    const struct problem *p = &r->p;
    int32_t  n_in = p->dim, block = p->mx ? 128 : 16, n_blocks = (n_in + block - 1) / block;
    float   *x = malloc((size_t)n_in * 4);
    uint8_t *stored = malloc((size_t)n_blocks);
    r->rows = make_places(r, n_in, true);
    r->x = malloc((size_t)r->n_pairs * (size_t)n_in * 4);
    assert_true(x && stored && r->x);
    for (int32_t pair = 0; pair < r->n_pairs; pair++) {
        int32_t  row = r->g.place[pair];
        uint8_t *codes = r->rows.codes + row * r->rows.codes_stride;
        float    g = 1.0f;
        for (int32_t i = 0; i < n_in; i++)
            x[i] = rig_value(&r->random) * (p->hostile && pair % 3 == 1 ? 1e-3f : 1.0f);
        if (p->hostile && pair % 7 == 2)
            x[3] = NAN;
        if (p->hostile && pair % 7 == 5)
            memset(x, 0, (size_t)n_in * 4);
        if (p->mx)
            nib_fp8_row_encode(x, n_in, 128, codes, stored);
        else
            nib_nvfp4_row_encode(x, n_in, codes, stored, &g);
        r->rows.row_scale[row] = g;
        for (int32_t b = 0; b < (n_in + 255) / 256 * 256 / block; b++) {
            uint8_t byte = b < n_blocks && isfinite(g) ? stored[b] : 0;
            for (int32_t k = 0; p->mx && b < n_blocks && k < 4; k++)
                r->rows.scales[scale_at(p, r->g.scale_row[row], b * 4 + k, n_in)] = byte;
            if (!p->mx)
                r->rows.scales[scale_at(p, r->g.scale_row[row], b, n_in)] = byte;
        }
        if (p->mx)
            nib_fp8_row_decode(codes, stored, n_in, 128, r->x + (int64_t)row * n_in);
        else
            nib_nvfp4_row_decode(codes, stored, g, n_in, r->x + (int64_t)row * n_in);
    }
    assert_true(px_wrote(r->m, r->rows.row_scale, (size_t)r->n_pairs * 4));
    free(x);
    free(stored);
}

/* Most pairs to expert 0, none to expert 2. */
static void place_pairs(struct run *r)
{
    const struct problem *p = &r->p;
    size_t  n = (size_t)r->n_pairs;
    int32_t most = nib_sm100a_groups_most(r->n_pairs, EXPERTS, p->columns);
    r->chosen = malloc(n * 4);
    r->weight = malloc(n * 4);
    assert_true(r->chosen && r->weight);
    for (int32_t i = 0; i < r->n_pairs; i++) {
        uint32_t v = rig_next(&r->random) % 10;
        r->chosen[i] = v < 7 ? 0 : v < 9 ? 3 : 1;
        r->weight[i] = 0.25f + (float)(rig_next(&r->random) % 100) / 200.0f;
    }
    r->scale_rows = most * 128;
    r->g = (struct nib_blackwell_groups_args){.n_pairs = r->n_pairs, .n_experts = EXPERTS, .tile_rows = p->columns,
                                              .scale_tile = 128, .n_zero = 2 + r->n_pairs};
    r->g.chosen = rig_alloc(r->m, n * 4, r->chosen);
    r->g.groups = rig_alloc(r->m, (size_t)most * sizeof *r->g.groups, NULL);
    r->g.n_groups = rig_alloc(r->m, 4, NULL);
    r->g.pair = rig_alloc(r->m, n * 4, NULL);
    r->g.place = rig_alloc(r->m, n * 4, NULL);
    r->g.scale_row = rig_alloc(r->m, n * 4, NULL);
    r->g.zero = rig_alloc(r->m, (2 + n) * 4, NULL);
    struct nib_blackwell_launch l = {"nib_sm100a_groups", 1, 1024, EXPERTS * 12, 1};
    rig_launch(r->m, "groups_sm100a", &l, &r->g);
}

static bool launch(struct run *r, const struct nib_sm100a_experts *e)
{
    struct nib_sm100a_experts_args args;
    struct nib_blackwell_launch    l;
    if (!nib_sm100a_experts_plan(e, sim_tensor_map_encode_tiled, &args, &l, r->error, sizeof r->error))
        fail_msg("%s", r->error);
    const void      *params[1] = {&args};
    struct px_launch run = {.grid = {l.grid, 1, 1}, .block = {l.block, 1, 1}, .shared_bytes = l.shared_bytes,
                            .params = params};
    if (px_run(r->m, r->p.module ? r->p.module : rig_module("experts_sm100a"), l.kernel, &run))
        return true;
    (void)snprintf(r->error, sizeof r->error, "%s: %s", l.kernel, px_error(r->m));
    return false;
}

static struct nib_sm100a_experts problem_of(const struct run *r, const struct nib_blackwell_rows *x, int32_t n_parts,
                                            const struct stack *a, const struct stack *b)
{
    struct nib_sm100a_experts e = {.format = r->p.fp8 ? NIB_SM100A_FP8 : r->p.mx ? NIB_SM100A_MXFP4 : NIB_SM100A_NVFP4, .n_parts = n_parts, .columns = r->p.columns,
                                   .n_pairs = r->n_pairs, .n_rows = r->p.n_tokens, .n_experts = EXPERTS,
                                   .n_out = a->n_out, .n_in = a->n_in, .x_codes = x->codes, .x_scales = x->scales,
                                   .x_stride = x->codes_stride, .n_sms = r->p.n_sms,
                                   .w_codes = {a->codes, b->codes}, .w_scales = {a->scales, b->scales}};
    e.rest = (struct nib_sm100a_experts_args){.row_scale = r->p.mx ? NULL : x->row_scale,
                                              .alphas = {a->alphas, b->alphas}, .groups = r->g.groups,
                                              .n_groups = r->g.n_groups, .pair = r->g.pair, .limit = r->p.limit};
    return e;
}

/* Both kernels; false with the simulator's sentence in r->error. */
static bool run(struct run *r)
{
    struct problem  *p = &r->p;
    /* The largest problem here takes 0.3 million; a broken kernel that spins must not take minutes to be caught. */
    struct px_config config = {.seed = p->seed, .max_steps = 4000000, .resident = p->n_sms};
    size_t           n = (size_t)p->n_tokens * (size_t)p->dim;
    r->m = px_machine_new(&config);
    assert_non_null(r->m);
    r->random = 77 + p->seed;
    r->n_pairs = p->n_tokens * p->top_k;
    place_pairs(r);
    fill_rows(r);
    r->w1 = make_stack(r, p->inner, p->dim, p->linear_scales);
    r->w3 = make_stack(r, p->inner, p->dim, false);
    r->w2 = make_stack(r, p->dim, p->inner, false);
    r->inner = make_places(r, p->inner, false);
    r->h = rig_alloc(r->m, (size_t)r->n_pairs * (size_t)p->inner * 4, NULL);
    r->z = rig_alloc(r->m, (size_t)r->n_pairs * (size_t)p->dim * 4, NULL);
    r->y = rig_alloc(r->m, n * 4, NULL);
    float *shared = malloc(n * 4);
    assert_non_null(shared);
    for (size_t i = 0; i < n; i++)
        shared[i] = rig_value(&r->random);
    r->shared = rig_alloc(r->m, n * 4, shared);
    free(shared);

    const float              *weight = rig_alloc(r->m, (size_t)r->n_pairs * 4, r->weight);
    struct nib_sm100a_experts e = problem_of(r, &r->rows, 2, &r->w1, &r->w3);
    e.rest.y = r->h;
    e.rest.n_done = r->g.zero;
    e.rest.most = (uint32_t *)r->g.zero + 2;
    e.rest.weight = p->before ? weight : NULL;
    e.rest.rows = r->inner;
    if (!launch(r, &e))
        return false;
    e = problem_of(r, &r->inner, 1, &r->w2, &r->w2);
    e.rest.y = r->z;
    e.rest.n_done = r->g.zero + 1;
    e.rest.sum = (struct nib_blackwell_combine_args){
        .expert_y = r->z, .shared = r->shared, .chosen = r->g.chosen, .place = r->g.place,
        .weight = p->before ? NULL : weight, .y = r->y, .expert_stride = p->dim, .shared_stride = p->dim,
        .y_stride = p->dim, .top_k = p->top_k, .dim = p->dim, .y_f32 = 1};
    return launch(r, &e);
}

/* ---- What must come out ---- */

static double product(const struct run *r, const float *x, const struct stack *w, int32_t e, int32_t o, double *bound)
{
    double sum = 0, size = 0, alpha = (double)w->alphas[e];
    for (int32_t k = 0; k < w->n_in; k++) {
        double v = (double)x[k] * (double)w->value[((int64_t)e * w->n_out + o) * w->n_in + k] * alpha;
        sum += v;
        size += fabs(v);
    }
    /* Roundings of the sum after every product, of both scales and their product. */
    *bound = (w->n_in / (r->p.mx ? 32 : 64) + 5) * 0x1p-24 * size;
    return sum;
}

static bool off(char *text, size_t bytes, const char *what, int32_t row, int32_t i, double got, double want)
{
    (void)snprintf(text, bytes, "%s of row %d, element %d is %.9g, wanted %.9g", what, row, i, got, want);
    return false;
}

static bool inner_right(const struct run *r, int32_t row, char *text, size_t bytes)
{
    int32_t pair = r->g.pair[row], e = r->chosen[pair], n = r->p.inner;
    double  limit = r->p.limit > 0 ? (double)r->p.limit : INFINITY, weight = r->p.before ? (double)r->weight[pair] : 1;
    for (int32_t o = 0; o < n; o++) {
        double ge, ue, g = product(r, r->x + (int64_t)row * r->p.dim, &r->w1, e, o, &ge);
        double u = product(r, r->x + (int64_t)row * r->p.dim, &r->w3, e, o, &ue);
        double got = (double)r->h[(int64_t)row * n + o];
        bool   nan = !isfinite(g) || !isfinite(u);
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        double silu = g / (1 + exp(-g)), want = silu * u * weight;
        double bound = (1.1 * ge * (fabs(u) + ue) + fabs(silu) * ue) * weight + 0x1p-20 * fabs(want) + 0x1p-140;
        if (nan ? !isnan(got) : !(fabs(got - want) <= bound))
            return off(text, bytes, "SwiGLU", row, o, got, want);
    }
    return true;
}

/* Row `row` of r->inner is what the encoder makes of what stands in r->h; its values to value. */
static bool encoded_right(const struct run *r, int32_t row, float *value, char *text, size_t bytes)
{
    int32_t  n = r->p.inner, block = r->p.mx ? 128 : 16, n_codes = r->p.mx ? n : n / 2;
    uint8_t  codes[WIDE], scales[WIDE / 16];
    float    g = 1.0f;
    const uint8_t *got = r->inner.codes + row * r->inner.codes_stride;
    if (r->p.mx)
        nib_fp8_row_encode(r->h + (int64_t)row * n, n, 128, codes, scales);
    else
        nib_nvfp4_row_encode(r->h + (int64_t)row * n, n, codes, scales, &g);
    if (!r->p.mx && r->inner.row_scale[row] != g && !(isnan(g) && isnan(r->inner.row_scale[row])))
        return off(text, bytes, "row scale", row, 0, (double)r->inner.row_scale[row], (double)g);
    for (int32_t b = 0; b < (n + block - 1) / block; b++)
        for (int32_t k = 0; k < (r->p.mx ? 4 : 1); k++) {
            int32_t have = r->inner.scales[scale_at(&r->p, r->g.scale_row[row], r->p.mx ? b * 4 + k : b, n)];
            if (have != (isfinite(g) ? scales[b] : 0))
                return off(text, bytes, "scale", row, b, have, scales[b]);
        }
    for (int32_t i = 0; i < n_codes && isfinite(g); i++)
        if (got[i] != codes[i] && scales[i / 128] != 255)
            return off(text, bytes, "code", row, i, got[i], codes[i]);
    if (r->p.mx)
        nib_fp8_row_decode(codes, scales, n, 128, value);
    else
        nib_nvfp4_row_decode(codes, scales, g, n, value);
    return true;
}

static bool right(const struct run *r, char *text, size_t bytes)
{
    int32_t dim = r->p.dim, top = r->p.top_k;
    float   value[WIDE];
    for (int32_t row = 0; row < r->n_pairs; row++) {
        if (!inner_right(r, row, text, bytes) || !encoded_right(r, row, value, text, bytes))
            return false;
        for (int32_t o = 0; o < dim; o++) {
            double bound, want = product(r, value, &r->w2, r->chosen[r->g.pair[row]], o, &bound);
            double got = (double)r->z[(int64_t)row * dim + o];
            if (isnan(want) ? !isnan(got) : !(fabs(got - want) <= bound))
                return off(text, bytes, "second product", row, o, got, want);
        }
    }
    for (int32_t t = 0; t < r->p.n_tokens; t++)
        for (int32_t i = 0; i < dim; i++) {
            float sum = 0;
            for (int32_t e = 0; e < EXPERTS; e++)
                for (int32_t j = t * top; j < (t + 1) * top; j++)
                    if (r->chosen[j] == e)
                        sum += (r->p.before ? 1.0f : r->weight[j]) * r->z[(int64_t)r->g.place[j] * dim + i];
            sum += r->shared[t * dim + i];
            if (isnan(sum) ? !isnan(r->y[t * dim + i]) : r->y[t * dim + i] != sum)
                return off(text, bytes, "sum", t, i, (double)r->y[t * dim + i], (double)sum);
        }
    return true;
}

static void end(struct run *r)
{
    free(r->chosen), free(r->weight), free(r->x);
    free(r->w1.value), free(r->w2.value), free(r->w3.value);
    px_machine_free(r->m);
}

/* Whether anything was wrong, and what. */
static bool caught(struct problem p, char *text, size_t bytes)
{
    struct run r = {.p = p};
    bool       ran = run(&r), fine = ran && right(&r, text, bytes);
    if (!ran)
        (void)snprintf(text, bytes, "%s", r.error);
    end(&r);
    return !fine;
}

/* ---- Tests ---- */

/* Few rows: ragged groups of 16, two blocks; k over several stages and their ring. Many: groups of 96 and less. */
static const struct problem few = {.columns = 16, .n_tokens = 13, .top_k = 2, .dim = 1440, .inner = 160, .n_sms = 2,
                                   .limit = 7};
static const struct problem many = {.columns = 96, .n_tokens = 82, .top_k = 2, .dim = 288, .inner = 192, .n_sms = 3};

static void pass(struct problem p, uint64_t seeds)
{
    char text[1300];
    for (uint64_t seed = 0; seed < seeds; seed++) {
        p.seed = seed;
        if (caught(p, text, sizeof text))
            fail_msg("schedule %d: %s", (int)seed, text);
    }
}

static bool all_of_it;

static void nvfp4(void **state)
{
    (void)state;
    (void)rig_module("experts_sm100a"); /* skips where there is no PTX */
    struct problem p = few;
    pass(p, all_of_it ? 12 : 1);
    p.hostile = p.before = true;
    p.n_sms = 1;
    p.dim = 320;
    pass(p, all_of_it ? 6 : 1);
    p = many;
    pass(p, all_of_it ? 12 : 0);
    p.hostile = true;
    pass(p, all_of_it ? 6 : 0);
}

static void mxfp4(void **state)
{
    (void)state;
    (void)rig_module("experts_sm100a");
    struct problem p = few;
    p.mx = true;
    p.dim = 768;
    p.inner = 128;
    pass(p, all_of_it ? 12 : 0);
    p.hostile = true;
    pass(p, all_of_it ? 6 : 1);
    p = many;
    p.mx = true;
    p.dim = 256;
    p.inner = 256;
    p.before = true;
    pass(p, all_of_it ? 12 : 0);
}

static void fp8(void **state)
{
    (void)state;
    (void)rig_module("experts_sm100a");
    struct problem p = few;
    p.mx = p.fp8 = true;
    p.dim = 736; /* the last stage is not full */
    pass(p, all_of_it ? 12 : 1);
    p = many;
    p.mx = p.fp8 = p.hostile = p.before = true;
    p.dim = 160;
    pass(p, all_of_it ? 12 : 0);
}

static void same(const char *what, int32_t pair, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes) != 0)
        fail_msg("%s of pair %d differ between groups of 16 and of 96", what, pair);
}

/* The rows of all experts decide which size a mixture takes, so a row's bits would depend on its neighbours in the batch if
 * the sizes differed by one. Pairs of an expert stand in any order. */
static void same_bits(struct problem p)
{
    struct run a = {.p = p}, b = {.p = p};
    a.p.columns = 16;
    b.p.columns = 96;
    if (!run(&a) || !run(&b))
        fail_msg("%s%s", a.error, b.error);
    assert_true(*b.g.n_groups < *a.g.n_groups);
    size_t inner = (size_t)p.inner * 4, dim = (size_t)p.dim * 4, codes = (size_t)(p.mx ? p.inner : p.inner / 2);
    for (int32_t pair = 0; pair < a.n_pairs; pair++) {
        int64_t i = a.g.place[pair], j = b.g.place[pair];
        same("inputs", pair, a.x + i * p.dim, b.x + j * p.dim, dim);
        same("SwiGLU's results", pair, a.h + i * p.inner, b.h + j * p.inner, inner);
        same("codes", pair, a.inner.codes + i * a.inner.codes_stride, b.inner.codes + j * b.inner.codes_stride, codes);
        if (!p.mx)
            same("row scales", pair, &a.inner.row_scale[i], &b.inner.row_scale[j], 4);
        for (int32_t k = 0; k < p.inner / (p.mx ? 32 : 16); k++)
            same("scales", pair, &a.inner.scales[scale_at(&p, a.g.scale_row[i], k, p.inner)],
                 &b.inner.scales[scale_at(&p, b.g.scale_row[j], k, p.inner)], 1);
        same("second products", pair, a.z + i * p.dim, b.z + j * p.dim, dim);
    }
    for (int32_t t = 0; t < p.n_tokens; t++)
        same("sums", t * p.top_k, a.y + (int64_t)t * p.dim, b.y + (int64_t)t * p.dim, dim);
    end(&a);
    end(&b);
}

static void both_sizes(void **state)
{
    (void)state;
    (void)rig_module("experts_sm100a");
    struct problem p = {.n_tokens = 20, .top_k = 2, .dim = 544, .inner = 160, .n_sms = 2, .limit = 7, .seed = 5};
    same_bits(p);
    p.hostile = p.before = true;
    same_bits(p);
    p.mx = true;
    p.dim = 640;
    p.inner = 128;
    same_bits(p);
}

#define WAIT "mbarrier.try_wait.parity"

static const struct ptx_breakage breakages[] = {
    /* Waits in their order in the code: stage empty, accumulator free, scales free, stage full, tile done. */
    {"no wait for an empty stage", WAIT, 0, PTX_SKIP_WAIT, NULL},
    {"no wait for a free accumulator", WAIT, 1, PTX_SKIP_WAIT, NULL},
    {"no wait for free scale columns", WAIT, 2, PTX_SKIP_WAIT, NULL},
    {"no wait for a full stage", WAIT, 3, PTX_SKIP_WAIT, NULL},
    {"no wait for a finished tile", WAIT, 4, PTX_SKIP_WAIT, NULL},
    {"phase 0 for empty stages", WAIT, 0, PTX_LAST, "0"},
    {"phase 1 for free accumulators", WAIT, 1, PTX_LAST, "1"},
    {"phase 0 for free scales", WAIT, 2, PTX_LAST, "0"},
    {"phase 1 for full stages", WAIT, 3, PTX_LAST, "1"},
    {"phase 0 for finished tiles", WAIT, 4, PTX_LAST, "0"},
    {"no fence after a full stage", "fence::after_thread_sync", 2, PTX_DELETE, NULL},
    {"no fence after a finished tile", "fence::after_thread_sync", 3, PTX_DELETE, NULL},
    {"no wait for loads", "tcgen05.wait::ld", -1, PTX_DELETE, NULL},
    {"stages never emptied", "tcgen05.commit", 0, PTX_DELETE, NULL},
    {"tiles never finished", "tcgen05.commit", 1, PTX_DELETE, NULL},
    {"accumulators never freed", "mbarrier.arrive.shared::cta.b64", 0, PTX_DELETE, NULL},
    {"bytes of another number expected", "mbarrier.arrive.expect_tx", 0, PTX_LAST, "40944"},
    {"a copy of weights left out", "cp.async.bulk.tensor", 0, PTX_DELETE, NULL},
    {"a copy of scales left out", "cp.async.bulk.tensor", 1, PTX_DELETE, NULL},
    {"a stage's scales not copied", "tcgen05.cp", 4, PTX_DELETE, NULL},
    {"tiles not counted", "atom.global.add", 0, PTX_DELETE, NULL},
    {"never freed", "tcgen05.dealloc", 0, PTX_DELETE, NULL},
    {"used before it is allocated", "bar.sync", 0, PTX_DELETE, NULL},
    {"another warp's columns", "bar.sync", 1, PTX_DELETE, NULL},
    {"freed while it is read", "bar.sync", 3, PTX_DELETE, NULL},
    {"rows or sums before all tiles are done", "bar.sync", 4, PTX_DELETE, NULL},
    /* the instruction descriptor, 0x08000480 and the columns; matrix descriptors */
    {"UE8M0 scales", "134218880", 0, PTX_REPLACE, "142607488"},
    {"E2M1 as in mixed kinds", "134218880", 0, PTX_REPLACE, "134219392"},
    {"scale id 1", "134218880", 0, PTX_REPLACE, "671089792"},
    {"64-byte swizzle", "4611756662049538048", -1, PTX_REPLACE, "9223442680476925952"},
    {"double stride in scale atoms", "70403103981568", -1, PTX_REPLACE, "70437463719936"},
    {"always accumulating", "setp.ne.b32 p,", 0, PTX_REPLACE, "setp.ne.b32 p, 1, 0; // "},
    {"too few columns", "tcgen05.alloc", 0, PTX_LAST, "32"},
};

/* Those of `in` alone: the accumulators of both parts, the rows' largest values. */
static const struct ptx_breakage in_breakages[] = {
    {"rows without their largest value", "atom.global.max", -1, PTX_DELETE, NULL},
    {"one product with both weights", "tcgen05.mma", 1, PTX_DELETE, NULL},
};

static void must_be_caught(struct problem p, const char *name)
{
    char text[1300];
    for (p.seed = 0; p.seed < 6; p.seed++)
        if (caught(p, text, sizeof text)) {
            char *line = strchr(text, '\n');
            if (line)
                *line = 0;
            printf("%s: schedule %d: %s\n", name, (int)p.seed, text);
            return;
        }
    fail_msg("%s: nothing was wrong", name);
}

static bool broken_caught(const void *problem, struct px_module *module, uint64_t schedule, char *text, size_t bytes)
{
    struct problem p = *(const struct problem *)problem;
    p.module = module;
    p.seed = schedule;
    return caught(p, text, bytes);
}

static void break_entry(struct problem p, const char *entry, const struct ptx_breakage *list, size_t n)
{
    rig_break_all(&(struct rig_broken){"experts_sm100a", entry, 6, &p, broken_caught}, list, n);
}

static void broken(void **state)
{
    (void)state;
    struct problem p = few;
    break_entry(p, "nib_sm100a_experts_in_16", breakages, sizeof breakages / sizeof breakages[0]);
    break_entry(p, "nib_sm100a_experts_in_16", in_breakages, sizeof in_breakages / sizeof in_breakages[0]);
    p.inner = 1440;
    p.dim = 160;
    break_entry(p, "nib_sm100a_experts_out_16", breakages, sizeof breakages / sizeof breakages[0]);
    p = few;
    p.linear_scales = true;
    must_be_caught(p, "scales row by row");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nvfp4), cmocka_unit_test(mxfp4), cmocka_unit_test(fp8),
                                       cmocka_unit_test(both_sizes)};
    const struct CMUnitTest wrong[] = {cmocka_unit_test(broken)};
    all_of_it = argc > 1 && strcmp(argv[1], "long") == 0;
    if (argc > 1 && strcmp(argv[1], "broken") == 0)
        return cmocka_run_group_tests(wrong, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
