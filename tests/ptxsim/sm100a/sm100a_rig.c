/* Running the sm_100a kernels' PTX, and what their results must be. */
#include "ptxsim/sm100a/sm100a_rig.h"

/* ---- Products ---- */

static void randomise(struct rig_product *r, uint8_t *codes, uint8_t *scales, int64_t rows)
{
    int32_t n_in = r->p.n_in;
    for (int64_t i = 0; i < rows * n_in / 2; i++)
        codes[i] = (uint8_t)rig_next(&r->seed);
    for (int64_t i = 0; i < rows * (n_in / 16); i++) {
        uint32_t v = rig_next(&r->seed);
        scales[i] = (uint8_t)(0x28 + v % 0x30);
        if (r->hostile) /* every scale there is: zero, subnormals, the largest */
            scales[i] = (uint8_t)(v % 5 == 0 ? 0 : v % 5 == 1 ? 0x7e : v % 0x7f);
    }
}

/* Scales as the kernels read them; padding rows hold NaN, which must not reach any row that counts. */
static uint8_t *arranged(const uint8_t *scales, int32_t rows, int32_t n_in, bool linear, size_t *bytes)
{
    int32_t padded = (rows + 127) / 128 * 128, blocks = (n_in + 255) / 256 * 16, n = n_in / 16;
    *bytes = (size_t)padded * (size_t)blocks;
    uint8_t *out = malloc(*bytes);
    assert_non_null(out);
    for (int32_t row = 0; row < padded; row++)
        for (int32_t b = 0; b < blocks; b++) { /* the formula of the golden file */
            size_t at = (size_t)(row / 128) * (size_t)blocks * 128 + (size_t)(b / 4) * 512 +
                        (size_t)(row % 32 * 16 + row % 128 / 32 * 4 + b % 4);
            if (linear)
                at = (size_t)row * (size_t)blocks + (size_t)b;
            out[at] = row >= rows ? 0x7f : b < n ? scales[(size_t)row * (size_t)n + (size_t)b] : 0;
        }
    return out;
}

/* With experts: pairs in a mixed order, and the rows and tiles that the kernel makes of them. */
static void place_experts(struct rig_product *r)
{
    struct px_machine            *m = r->machine;
    int32_t                       n_ctas = r->p.n_ctas, tile = 128 * n_ctas, total = 0, n = 0;
    struct nib_blackwell_groups_args a = {.n_experts = r->p.n_experts, .tile_rows = tile, .scale_tile = tile};
    for (int32_t e = 0; e < r->p.n_experts; e++)
        total += r->count[e];
    int32_t *chosen = malloc((size_t)(total + 1) * sizeof *chosen);
    assert_non_null(chosen);
    for (int32_t e = 0, at = 0; e < r->p.n_experts; e++)
        for (int32_t i = 0; i < r->count[e]; i++)
            chosen[at++] = e;
    for (int32_t i = total - 1; i > 0; i--) {
        int32_t j = (int32_t)(rig_next(&r->seed) % (uint32_t)(i + 1)), was = chosen[i];
        chosen[i] = chosen[j];
        chosen[j] = was;
    }
    int32_t most = nib_sm100a_groups_most(total, r->p.n_experts, tile);
    size_t  room = (size_t)(total + 1) * 4;
    a.n_pairs = total;
    a.chosen = rig_alloc(m, room, chosen);
    a.groups = rig_alloc(m, (size_t)(most + 1) * sizeof *a.groups, NULL);
    a.n_groups = rig_alloc(m, 4, NULL);
    a.pair = rig_alloc(m, room, NULL);
    a.place = rig_alloc(m, room, NULL);
    a.scale_row = rig_alloc(m, room, NULL);
    const void      *params[1] = {&a};
    struct px_launch l = {.grid = {1, 1, 1}, .block = {1024, 1, 1}, .shared_bytes = (uint32_t)a.n_experts * 12, .params = params};
    if (!px_run(m, rig_module("groups_sm100a"), "nib_sm100a_groups", &l))
        fail_msg("%s", px_error(m));
    r->p.n_rows = total > 0 ? total : 1;
    r->n_scale_rows = (most > 0 ? most : 1) * tile;
    r->scale_row = a.scale_row;
    r->expert_of = malloc((size_t)r->p.n_rows * sizeof *r->expert_of);
    r->alphas = malloc((size_t)r->p.n_experts * sizeof *r->alphas);
    assert_true(r->expert_of && r->alphas);
    r->expert_of[0] = -1;
    for (int32_t e = 0, row = 0; e < r->p.n_experts; e++) {
        r->alphas[e] = 1e-3f * (float)(e + 1);
        for (int32_t i = 0; i < r->count[e]; i++) {
            assert_int_equal(chosen[a.pair[row + i]], e);
            assert_int_equal(a.place[a.pair[row + i]], row + i);
            assert_int_equal(a.scale_row[row + i], n * tile + i);
            r->expert_of[row + i] = e;
        }
        for (int32_t left = r->count[e]; left > 0; left -= tile, row += tile, n++) {
            assert_int_equal(a.groups[n].expert, e);
            assert_int_equal(a.groups[n].n_rows, left < tile ? left : tile);
            assert_int_equal(a.groups[n].row, row);
        }
        row -= r->count[e] > 0 ? (r->count[e] + tile - 1) / tile * tile - r->count[e] : 0;
    }
    assert_int_equal(*a.n_groups, n);
    assert_true(n <= most);
    r->p.groups = a.groups;
    r->p.n_groups = a.n_groups;
    r->p.alphas = rig_alloc(m, (size_t)r->p.n_experts * 4, r->alphas);
    free(chosen);
}

static void fill_rows(struct rig_product *r)
{
    struct px_machine *m = r->machine;
    int32_t            n = r->p.n_rows, n_in = r->p.n_in;
    size_t             bytes, half = (size_t)n_in / 2;
    randomise(r, r->x_codes, r->x_scales, n);
    for (int32_t t = 0; t < n; t++) {
        r->row_scale[t] =
            ldexpf(1.0f + (float)(rig_next(&r->seed) % 1000) / 1000.0f, (int)(rig_next(&r->seed) % 16) - 12);
        if (r->hostile) /* beyond what the product of both scales may be in fp32 */
            r->row_scale[t] = t % 7 == 3 ? NAN : t % 7 == 4 ? 1e37f : t % 7 == 5 ? 1e-38f : r->row_scale[t];
        if (r->expert_of && r->expert_of[t] < 0)
            r->row_scale[t] = NAN;
    }
    r->p.x_stride = (n_in / 2 + 63) / 64 * 64;
    size_t   room = (size_t)n * (size_t)r->p.x_stride;
    uint8_t *rows = calloc(room, 1);
    assert_non_null(rows);
    for (int32_t t = 0; t < n; t++)
        memcpy(rows + t * r->p.x_stride, r->x_codes + (size_t)t * half, half);
    r->p.x_codes = rig_alloc(m, room, rows);
    free(rows);
    size_t   row_bytes = (size_t)n_in / 16;
    int32_t  n_scales = r->scale_row ? r->n_scale_rows : n;
    uint8_t *stand = malloc((size_t)n_scales * row_bytes); /* rows of scales where nobody's stand hold NaN */
    assert_non_null(stand);
    memset(stand, 0x7f, (size_t)n_scales * row_bytes);
    for (int32_t t = 0; t < n; t++)
        if (!r->expert_of || r->expert_of[t] >= 0)
            memcpy(stand + (size_t)(r->scale_row ? r->scale_row[t] : t) * row_bytes, r->x_scales + (size_t)t * row_bytes, row_bytes);
    uint8_t *s = arranged(stand, n_scales, n_in, r->linear_scales, &bytes);
    r->p.x_scales = rig_alloc(m, bytes, s);
    free(s);
    free(stand);
    r->p.row_scale = rig_alloc(m, (size_t)n * sizeof *r->row_scale, r->row_scale);
}

static void fill_weights(struct rig_product *r, int32_t n_stack)
{
    int32_t  o = r->p.n_out, n_in = r->p.n_in;
    size_t   one = (size_t)o * (size_t)n_in / 2, bytes;
    uint8_t *stack = NULL;
    randomise(r, r->w_codes, r->w_scales, (int64_t)n_stack * o);
    r->p.w_codes = rig_alloc(r->machine, (size_t)n_stack * one, r->w_codes);
    for (int32_t e = 0; e < n_stack; e++) {
        uint8_t *s = arranged(r->w_scales + (size_t)e * one / 8, o, n_in, r->linear_scales, &bytes);
        stack = stack ? stack : malloc(bytes * (size_t)n_stack);
        assert_non_null(stack);
        memcpy(stack + (size_t)e * bytes, s, bytes);
        free(s);
    }
    r->p.w_scales = rig_alloc(r->machine, bytes * (size_t)n_stack, stack);
    free(stack);
}

static void fill(struct rig_product *r)
{
    int32_t n_stack = r->p.n_experts ? r->p.n_experts : 1;
    if (r->p.n_experts)
        place_experts(r);
    size_t xb = (size_t)r->p.n_rows * (size_t)r->p.n_in / 2,
           wb = (size_t)n_stack * (size_t)r->p.n_out * (size_t)r->p.n_in / 2;
    r->x_codes = malloc(xb);
    r->w_codes = malloc(wb);
    r->x_scales = malloc(xb / 8);
    r->w_scales = malloc(wb / 8);
    r->row_scale = malloc((size_t)r->p.n_rows * sizeof *r->row_scale);
    assert_true(r->x_codes && r->w_codes && r->x_scales && r->w_scales && r->row_scale);
    fill_rows(r);
    fill_weights(r, n_stack);
    if (r->p.y_stride == 0)
        r->p.y_stride = r->p.n_out;
    size_t bytes = (size_t)r->p.n_rows * (size_t)r->p.y_stride * (r->p.y_f32 ? 4 : 2);
    r->p.y = rig_alloc(r->machine, bytes, NULL);
    memset(r->p.y, 0xff, bytes);
}

bool rig_product_run(struct rig_product *r)
{
    struct nib_sm100a_linear_args args;
    const void                   *params[1] = {&args};
    r->machine = px_machine_new(&r->config);
    assert_non_null(r->machine);
    fill(r);
    if (!nib_sm100a_linear_plan(&r->p, sim_tensor_map_encode_tiled, &args, &r->launch, r->error, sizeof r->error))
        return false;
    struct px_launch l = {.grid = {r->launch.grid, 1, 1},
                          .block = {r->launch.block, 1, 1},
                          .cluster = {r->launch.cluster, 1, 1},
                          .shared_bytes = r->launch.shared_bytes,
                          .params = params};
    if (!px_run(r->machine, r->module ? r->module : rig_module("linear_sm100a"), r->launch.kernel, &l)) {
        (void)snprintf(r->error, sizeof r->error, "%s", px_error(r->machine));
        return false;
    }
    r->stats = px_stats_of(r->machine);
    return true;
}

bool rig_product_right(const struct rig_product *r, char *text, size_t bytes)
{
    int32_t n_in = r->p.n_in, n_blocks = n_in / 16;
    double  dot = 0, yy = 0, ww = 0;
    for (int32_t t = 0; t < r->p.n_rows; t++)
        for (int32_t o = 0; o < r->p.n_out; o++) {
            double  sum = 0, most = 0;
            int32_t e = r->expert_of ? r->expert_of[t] : 0;
            if (e < 0)
                continue;
            int64_t w_row = (int64_t)e * r->p.n_out + o;
            for (int32_t b = 0; b < n_blocks; b++) {
                double part = 0;
                for (int32_t k = b * 16; k < b * 16 + 16; k++) {
                    int64_t ix = ((int64_t)t * n_in + k) / 2, iw = (w_row * n_in + k) / 2;
                    part += rig_e2m1((unsigned)r->x_codes[ix] >> k % 2 * 4 & 15u) * rig_e2m1((unsigned)r->w_codes[iw] >> k % 2 * 4 & 15u);
                }
                part *= rig_ue4m3(r->x_scales[(int64_t)t * n_blocks + b]) * rig_ue4m3(r->w_scales[w_row * n_blocks + b]);
                sum += part;
                most += fabs(part);
            }
            double scale = (double)r->row_scale[t] * (double)(r->alphas ? r->alphas[e] : r->p.alpha),
                   want = sum * scale;
            int64_t at = t * r->p.y_stride + o;
            double got = r->p.y_f32 ? (double)((float *)r->p.y)[at] : (double)rig_from_bf16(((uint16_t *)r->p.y)[at]);
            if (isnan(want)) {
                if (isnan(got))
                    continue;
            } else {
                /* One rounding to fp32 of every 64 values' sum, three of the scales, then that of the result.
                 * Subnormal results round to steps of 2^-149 (bf16: 2^-133); what exceeds the type may become Inf. */
                double eps = r->p.y_f32 ? 0 : 0x1p-8,
                       bound = (n_in / 64 + 4) * 0x1p-24 * most * fabs(scale) + eps * fabs(want);
                double top = r->p.y_f32 ? 0x1.fffffep127 : 0x1.fep127;
                bound += r->p.y_f32 ? 0x1p-148 : 0x1p-133;
                if (fabs(got - want) <= bound || (isinf(got) && (got > 0) == (want > 0) && fabs(want) + bound >= top))
                    goto right;
            }
            (void)snprintf(text, bytes, "row %d, output %d: got %.9g, want %.9g", t, o, got, want);
            return false;
        right:
            if (fabs(want) < 1e30 && fabs(scale) > 1e-30) {
                dot += got * want / scale / scale;
                yy += got * got / scale / scale;
                ww += want * want / scale / scale;
            }
        }
    if (yy > 0 && dot / sqrt(yy * ww) <= 0.99999) {
        (void)snprintf(text, bytes, "cosine %.8f", dot / sqrt(yy * ww));
        return false;
    }
    return true;
}

void rig_product_check(const struct rig_product *r)
{
    char text[256];
    if (!rig_product_right(r, text, sizeof text))
        fail_msg("%s", text);
    /* Behind rows, and in rows that only fill tiles, nothing is written. */
    size_t each = r->p.y_f32 ? 4 : 2;
    for (int32_t t = 0; t < r->p.n_rows; t++)
        for (size_t b = r->expert_of && r->expert_of[t] < 0 ? 0 : (size_t)r->p.n_out * each;
             b < (size_t)r->p.y_stride * each; b++)
            assert_int_equal(((const uint8_t *)r->p.y)[(size_t)(t * r->p.y_stride) * each + b], 0xff);
}

void rig_product_free(struct rig_product *r)
{
    free(r->x_codes);
    free(r->w_codes);
    free(r->x_scales);
    free(r->w_scales);
    free(r->row_scale);
    free(r->alphas);
    free(r->expert_of);
    px_machine_free(r->machine);
    r->machine = NULL;
}
