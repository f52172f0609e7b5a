/* Running the sm_120a kernels' PTX, and what their results must be. */
#include "ptxsim/sm120a/sm120a_rig.h"

/* ---- Operands ---- */

static void randomise(struct rig_product *r, uint8_t *codes, uint8_t *scales, int64_t rows)
{
    int64_t n_in = r->p.n_in;
    for (int64_t i = 0; i < rows * n_in / 2; i++)
        codes[i] = (uint8_t)rig_next(&r->seed);
    for (int64_t i = 0; i < rows * (n_in / 16); i++) {
        uint32_t v = rig_next(&r->seed);
        scales[i] = (uint8_t)(0x28 + v % 0x30);
        if (r->hostile) /* every scale there is: zero, subnormals, the largest */
            scales[i] = (uint8_t)(v % 5 == 0 ? 0 : v % 5 == 1 ? 0x7e : v % 0x7f);
    }
}

/* Which expert each row is of, which row of x it is, and the groups. */
static void place_rows(struct rig_product *r)
{
    int32_t tile = r->p.tile_rows, n = 0, t = 0;
    if (r->p.n_experts) {
        r->p.n_rows = 0;
        for (int32_t e = 0; e < r->p.n_experts; e++)
            r->p.n_rows += r->count[e];
    }
    int32_t rows = r->p.n_rows, room = rows > 0 ? rows : 1;
    r->expert_of = calloc((size_t)room, sizeof *r->expert_of);
    r->source = calloc((size_t)room, sizeof *r->source);
    assert_true(r->expert_of && r->source);
    if (r->p.n_experts) {
        int32_t                  most = nib_sm120a_groups_most(rows, r->p.n_experts, tile);
        struct nib_blackwell_group *groups = rig_alloc(r->machine, (size_t)(most + 1) * sizeof *groups, NULL);
        r->alphas = calloc((size_t)r->p.n_experts * 2, sizeof *r->alphas);
        assert_non_null(r->alphas);
        for (int32_t e = 0; e < r->p.n_experts; e++) {
            for (int32_t i = 0; i < r->count[e]; i++)
                r->expert_of[t + i] = e;
            for (int32_t i = 0; i < r->count[e]; i += tile, n++)
                groups[n] = (struct nib_blackwell_group){
                    e, r->count[e] - i < tile ? r->count[e] - i : tile, t + i};
            t += r->count[e];
            for (int32_t part = 0; part < r->p.n_parts; part++)
                r->alphas[part * r->p.n_experts + e] = 1e-3f * (float)(e + 1 + part);
        }
        assert_true(n <= most);
        assert_true(px_wrote(r->machine, groups, (size_t)n * sizeof *groups));
        r->p.groups = groups;
        r->p.n_groups = rig_alloc(r->machine, 4, &n);
        for (int32_t part = 0; part < r->p.n_parts; part++)
            r->p.alphas[part] =
                rig_alloc(r->machine, (size_t)r->p.n_experts * 4, r->alphas + part * r->p.n_experts);
    }
    r->n_sources = r->gather ? (rows + 2) / 3 : rows;
    r->p.top_k = r->gather ? 3 : 0;
    int32_t *pair = malloc((size_t)room * sizeof *pair);
    assert_non_null(pair);
    for (t = 0; t < rows; t++) {
        pair[t] = (int32_t)((int64_t)t * 7 % (r->n_sources * 3));
        r->source[t] = r->gather ? pair[t] / 3 : t;
    }
    r->p.pair = r->gather ? rig_alloc(r->machine, (size_t)rows * 4, pair) : NULL;
    free(pair);
}

static void fill_rows(struct rig_product *r)
{
    struct px_machine *m = r->machine;
    size_t             n = (size_t)r->n_sources, half = (size_t)r->p.n_in / 2, blocks = (size_t)r->p.n_in / 16;
    r->x_codes = malloc(n * half);
    r->x_scales = malloc(n * blocks);
    r->row_scale = malloc(n * sizeof *r->row_scale);
    assert_true(r->x_codes && r->x_scales && r->row_scale);
    randomise(r, r->x_codes, r->x_scales, r->n_sources);
    /* Strides as struct nib_act has them; what lies between rows was never written, so nothing may read it. */
    r->p.x_codes_stride = (int64_t)(half + 63) / 64 * 64;
    r->p.x_scales_stride = (int64_t)(blocks + 63) / 64 * 64;
    uint8_t *codes = rig_alloc(m, n * (size_t)r->p.x_codes_stride, NULL),
            *scales = rig_alloc(m, n * (size_t)r->p.x_scales_stride, NULL);
    for (size_t t = 0; t < n; t++) {
        r->row_scale[t] =
            ldexpf(1.0f + (float)(rig_next(&r->seed) % 1000) / 1000.0f, (int)(rig_next(&r->seed) % 16) - 12);
        if (r->hostile) /* beyond what the product of both scales may be in fp32 */
            r->row_scale[t] = t % 7 == 3 ? NAN : t % 7 == 4 ? 1e37f : t % 7 == 5 ? 1e-38f : r->row_scale[t];
        uint8_t *c = codes + t * (size_t)r->p.x_codes_stride, *s = scales + t * (size_t)r->p.x_scales_stride;
        memcpy(c, r->x_codes + t * half, half);
        memcpy(s, r->x_scales + t * blocks, blocks);
        assert_true(px_wrote(m, c, half) && px_wrote(m, s, blocks));
    }
    r->p.x_codes = codes;
    r->p.x_scales = scales;
    r->p.row_scale = rig_alloc(m, n * 4, r->row_scale);
}

static void swap_bytes(uint8_t *bytes, size_t n, size_t piece)
{
    for (size_t at = 0; at + 2 * piece <= n; at += 2 * piece)
        for (size_t i = 0; i < piece; i++) {
            uint8_t b = bytes[at + i];
            bytes[at + i] = bytes[at + piece + i];
            bytes[at + piece + i] = b;
        }
}

/* Stored weights, each part packed by the kernel that packs them. */
static void fill_weights(struct rig_product *r)
{
    struct px_machine *m = r->machine;
    int32_t            n_stack = r->p.n_experts ? r->p.n_experts : 1, parts = r->p.n_parts;
    size_t half = (size_t)r->p.n_in / 2, one = (size_t)r->p.n_out * half, all = one * (size_t)(n_stack * parts);
    size_t             codes = (size_t)nib_sm120a_code_bytes(r->p.n_out, r->p.n_in),
                       scales = (size_t)nib_sm120a_scale_bytes(r->p.n_out, r->p.n_in);
    r->w_codes = malloc(all);
    r->w_scales = malloc(all / 8);
    assert_true(r->w_codes && r->w_scales);
    randomise(r, r->w_codes, r->w_scales, (int64_t)n_stack * parts * r->p.n_out);
    uint8_t *stored = rig_alloc(m, all, r->w_codes), *stored_scales = rig_alloc(m, all / 8, r->w_scales);
    for (int32_t p = 0; p < parts; p++) {
        uint8_t *packed = rig_alloc(m, codes * (size_t)n_stack, NULL),
                *packed_scales = rig_alloc(m, scales * (size_t)n_stack, NULL);
        for (int32_t e = 0; e < n_stack; e++) {
            struct nib_sm120a_pack_args a = {.stored = stored + (size_t)(e * parts + p) * one,
                                             .stored_scales = stored_scales + (size_t)(e * parts + p) * one / 8,
                                             .codes = packed + (size_t)e * codes,
                                             .scales = packed_scales + (size_t)e * scales,
                                             .n_out = r->p.n_out,
                                             .n_in = r->p.n_in};
            struct nib_blackwell_launch l;
            nib_sm120a_pack_plan(&a, &l);
            rig_launch(m, "pack_sm120a", &l, &a);
        }
        if (r->wrong == RIG_SCALES_SWAPPED)
            swap_bytes(packed_scales, scales, 4);
        if (r->wrong == RIG_UNITS_SWAPPED)
            swap_bytes(packed, codes, 512);
        int to = r->wrong == RIG_PARTS_SWAPPED ? 1 - p : p;
        r->p.w_codes[to] = packed;
        r->p.w_scales[to] = packed_scales;
    }
}

bool rig_product_run(struct rig_product *r)
{
    struct nib_sm120a_linear_args args;
    const void                   *params[1] = {&args};
    r->machine = px_machine_new(&r->config);
    assert_non_null(r->machine);
    r->p.n_parts = r->p.n_parts ? r->p.n_parts : 1;
    place_rows(r);
    fill_rows(r);
    fill_weights(r);
    if (r->p.y_stride == 0)
        r->p.y_stride = r->p.n_out;
    size_t bytes = (size_t)r->p.n_rows * (size_t)r->p.y_stride * (r->p.y_f32 ? 4 : 2);
    r->p.y = rig_alloc(r->machine, bytes, NULL);
    memset(r->p.y, 0xff, bytes);
    if (!nib_sm120a_linear_plan(&r->p, &args, &r->launch, r->error, sizeof r->error))
        return false;
    struct px_launch  l = {.grid = {r->launch.grid, 1, 1},
                           .block = {r->launch.block, 1, 1},
                           .shared_bytes = r->launch.shared_bytes,
                           .params = params,
                           .overlaps = true};
    const char       *name = strstr(r->launch.kernel, "decode") ? "decode_sm120a" : "linear_sm120a";
    struct px_module *module = r->module ? r->module : rig_module(name);
    if (!px_run(r->machine, module, r->launch.kernel, &l)) {
        (void)snprintf(r->error, sizeof r->error, "%s", px_error(r->machine));
        return false;
    }
    r->stats = px_stats_of(r->machine);
    return true;
}

/* ---- Results ---- */

struct sum {
    double value, most; /* most: of the terms' magnitudes */
};

static struct sum sum_of(const struct rig_product *r, int32_t source, int64_t w_row)
{
    int64_t    n_blocks = r->p.n_in / 16, n_in = r->p.n_in;
    struct sum s = {0, 0};
    for (int64_t b = 0; b < n_blocks; b++) {
        double part = 0;
        for (int64_t k = b * 16; k < b * 16 + 16; k++) {
            int64_t ix = (source * n_in + k) / 2, iw = (w_row * n_in + k) / 2;
            part +=
                rig_e2m1((unsigned)r->x_codes[ix] >> k % 2 * 4 & 15u) * rig_e2m1((unsigned)r->w_codes[iw] >> k % 2 * 4 & 15u);
        }
        part *= rig_ue4m3(r->x_scales[source * n_blocks + b]) * rig_ue4m3(r->w_scales[w_row * n_blocks + b]);
        s.value += part;
        s.most += fabs(part);
    }
    return s;
}

/* What the output must be, and how far from it the kernel may be. NaN: the result must be NaN. */
static double want_of(const struct rig_product *r, int32_t t, int32_t o, double *bound)
{
    int32_t parts = r->p.n_parts, e = r->expert_of[t];
    double  v[2] = {0, 0}, b[2] = {0, 0};
    for (int32_t p = 0; p < parts; p++) {
        struct sum s = sum_of(r, r->source[t], ((int64_t)e * parts + p) * r->p.n_out + o);
        double     scale = (double)r->row_scale[r->source[t]] *
                       (double)(r->alphas ? r->alphas[p * r->p.n_experts + e] : r->p.alpha[p]);
        v[p] = s.value * scale;
        /* One rounding to fp32 of every 64 values' sum, one of each slice's, three of the scales. */
        b[p] = (r->p.n_in / 64 + NIB_SM120A_SLICES + 4) * 0x1p-24 * s.most * fabs(scale) + 0x1p-148;
    }
    double want = v[0];
    *bound = b[0];
    if (parts == 2) {
        double g = v[0], u = v[1], limit = (double)r->p.limit;
        if (!(fabs(g) < 3.4e38) || !(fabs(u) < 3.4e38))
            return NAN;
        if (limit > 0) {
            g = fmin(g, limit);
            u = fmax(fmin(u, limit), -limit);
        }
        double silu = g / (1 + exp(-g));
        want = silu * u;
        /* The slope of silu is below 1.1. exp, 1 +, the quotient and the product: 3 ulp, 1, 1, 1 of fp32; what exp
         * overflows to Inf for is below 2^-120 |g|. */
        *bound = (1.1 * b[0] * (fabs(u) + b[1]) + fabs(silu) * b[1]) + 8 * 0x1p-23 * fabs(want) +
                 0x1p-120 * fabs(g * u) + 0x1p-148;
    }
    if (!r->p.y_f32)
        *bound += 0x1p-8 * fabs(want) + 0x1p-133;
    return want;
}

bool rig_product_right(const struct rig_product *r, char *text, size_t bytes)
{
    double dot = 0, yy = 0, ww = 0, top = r->p.y_f32 ? 0x1.fffffep127 : 0x1.fep127;
    for (int32_t t = 0; t < r->p.n_rows; t++) {
        double scale = fabs((double)r->row_scale[r->source[t]]);
        for (int32_t o = 0; o < r->p.n_out; o++) {
            double  bound, want = want_of(r, t, o, &bound);
            int64_t at = t * r->p.y_stride + o;
            double  got = r->p.y_f32 ? (double)((float *)r->p.y)[at] : (double)rig_from_bf16(((uint16_t *)r->p.y)[at]);
            bool    right = isnan(want)
                                ? isnan(got)
                                : fabs(got - want) <= bound ||
                                      (isinf(got) && (got > 0) == (want > 0) && fabs(want) + bound >= top);
            if (!right) {
                (void)snprintf(text, bytes, "row %d, output %d: got %.9g, want %.9g +- %.2g", t, o, got, want, bound);
                return false;
            }
            if (scale > 1e-30 && scale < 1e30) {
                dot += got * want;
                yy += got * got;
                ww += want * want;
            }
        }
        /* What lies between rows is not written. */
        size_t gap = (size_t)(r->p.y_stride - r->p.n_out), size = r->p.y_f32 ? 4 : 2;
        for (size_t i = 0; i < gap * size; i++)
            if (((uint8_t *)r->p.y)[((size_t)t * (size_t)r->p.y_stride + (size_t)r->p.n_out) * size + i] != 0xff) {
                (void)snprintf(text, bytes, "row %d is written behind its end", t);
                return false;
            }
    }
    if (yy > 0 && dot / sqrt(yy * ww) <= 0.99999) {
        (void)snprintf(text, bytes, "cosine %.8f", dot / sqrt(yy * ww));
        return false;
    }
    return true;
}

void rig_product_check(struct rig_product *r)
{
    char text[256];
    if (!rig_product_run(r))
        fail_msg("%s: %s", r->launch.kernel ? r->launch.kernel : "plan", r->error);
    if (!rig_product_right(r, text, sizeof text))
        fail_msg("%s, %d rows, [%d, %d], seed %d: %s", r->launch.kernel, r->p.n_rows, r->p.n_out, r->p.n_in,
                 (int)r->config.seed, text);
    rig_product_free(r);
}

void rig_product_free(struct rig_product *r)
{
    px_machine_free(r->machine);
    free(r->x_codes);
    free(r->x_scales);
    free(r->w_codes);
    free(r->w_scales);
    free(r->row_scale);
    free(r->alphas);
    free(r->expert_of);
    free(r->source);
}
