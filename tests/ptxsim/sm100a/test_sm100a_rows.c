/* The sm_100a kernels that prepare operands, from their emitted PTX: norm with NVFP4 rows, packing of weights'
 * scales. */
#include "number/act_rows.h"
#include "ptxsim/sm100a/sm100a_rig.h"

static uint64_t seed = 9;

/* ---- Norm and activation rows ---- */

struct rows {
    int32_t n, n_in;
    bool    x_f32, plain_f32, normed, plain;
};

/* Where a block's scale stands, by the formula of the golden file. */
static int64_t place_of(int64_t row, int64_t block, int64_t n_in)
{
    int64_t blocks = (n_in + 255) / 256 * 16;
    return row / 128 * blocks * 128 + block / 4 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

static float hostile_value(int32_t row, int32_t i)
{
    float v = rig_value(&seed);
    switch (row % 9) {
    case 1: return 0;
    case 2: return i == 5 ? NAN : v;
    case 3: return i == 700 % 16 ? INFINITY : v;
    case 4: return v * 1e-38f;
    case 5: return v * 1e38f;
    case 6: return i / 16 % 2 ? 0 : v; /* every other block is zero */
    case 7: return (float)(i % 13) * 0.25f; /* ties */
    case 8: return i / 16 == 0 ? 1000.0f : v * 1e-4f; /* scales that round to subnormals and zero */
    default: return v;
    }
}

/* The rows that the definition's encoder makes of y. */
static void expect_codes(const float *y, int32_t row, int32_t n_in, const struct nib_blackwell_rows *q)
{
    float    g;
    uint8_t *codes = malloc((size_t)n_in / 2), *scales = malloc((size_t)n_in / 16);
    assert_true(codes && scales);
    nib_nvfp4_row_encode(y, n_in, codes, scales, &g);
    assert_true(q->row_scale[row] == g || (isnan(g) && isnan(q->row_scale[row])));
    int32_t padded = q->scales_stride ? (n_in / 16 + 3) / 4 * 4 : (n_in + 255) / 256 * 16;
    for (int32_t b = 0; b < padded; b++) {
        uint8_t got = q->scales_stride ? q->scales[row * q->scales_stride + b]
                                       : q->scales[place_of(q->scale_row ? q->scale_row[row] : row, b, n_in)];
        if (b >= n_in / 16) {
            assert_int_equal(got, 0);
            continue;
        }
        assert_true(got != 0x7f); /* a NaN row is marked by its row scale; other rows share the tensor core with it */
        if (isnan(g))
            continue;
        assert_int_equal(got, scales[b]);
        assert_memory_equal(q->codes + row * q->codes_stride + b * 8, codes + b * 8, 8);
    }
    free(codes);
    free(scales);
}

static void expect_norm(const struct rows *s, int32_t row, const float *x, const float *weight,
                        const struct nib_blackwell_norm_args *a)
{
    float *y = malloc((size_t)s->n_in * sizeof *y);
    double sum = 0;
    assert_non_null(y);
    for (int32_t i = 0; i < s->n_in; i++)
        sum += (double)x[i] * (double)x[i];
    float mean = (float)(sum / s->n_in), r = (float)(1.0 / sqrt((double)(mean + a->eps)));
    for (int32_t i = 0; i < s->n_in; i++) {
        y[i] = s->normed ? x[i] * r * weight[i] : x[i];
        if (s->plain && !s->plain_f32)
            y[i] = rig_from_bf16(rig_bf16(y[i]));
        if (!s->plain)
            continue;
        float stored = s->plain_f32 ? ((float *)a->plain)[row * a->plain_stride + i]
                                    : rig_from_bf16(((uint16_t *)a->plain)[row * a->plain_stride + i]);
        assert_true(stored == y[i] || (isnan(stored) && isnan(y[i])));
    }
    expect_codes(y, row, s->n_in, &a->y);
    free(y);
}

static struct nib_blackwell_rows rows_for(struct px_machine *m, int32_t n, int32_t n_in)
{
    struct nib_blackwell_rows q = {.codes_stride = (int64_t)(n_in / 2 + 63) / 64 * 64};
    q.codes = rig_alloc(m, (size_t)n * (size_t)q.codes_stride, NULL);
    q.scales = rig_alloc(m, (size_t)nib_sm100a_scale_bytes(n, n_in), NULL);
    q.row_scale = rig_alloc(m, (size_t)n * 4, NULL);
    return q;
}

static void one_norm(const struct rows *s, uint64_t schedule)
{
    struct px_config            config = {.seed = schedule};
    struct px_machine          *m = px_machine_new(&config);
    struct nib_blackwell_norm_args a = {.eps = 1e-6f, .n_in = s->n_in, .x_f32 = s->x_f32, .plain_f32 = s->plain_f32};
    size_t                      n = (size_t)s->n, width = (size_t)s->n_in;
    float                      *x = malloc(n * width * 4), *weight = malloc(width * 4);
    uint16_t                   *half = malloc(n * width * 2);
    assert_true(m && x && weight && half);
    for (size_t i = 0; i < n * width; i++) {
        x[i] = hostile_value((int32_t)(i / width), (int32_t)(i % width));
        half[i] = rig_bf16(x[i]);
        if (!s->x_f32)
            x[i] = rig_from_bf16(half[i]);
    }
    for (size_t i = 0; i < width; i++)
        weight[i] = 1.0f + 0.1f * rig_value(&seed);
    a.x_stride = s->n_in;
    a.x = s->x_f32 ? rig_alloc(m, n * width * 4, x) : rig_alloc(m, n * width * 2, half);
    a.weight = s->normed ? rig_alloc(m, width * 4, weight) : NULL;
    a.plain_stride = s->n_in + 8;
    a.plain = s->plain ? rig_alloc(m, n * (width + 8) * 4, NULL) : NULL;
    int32_t *order = malloc(n * 4);
    assert_non_null(order);
    for (int32_t row = 0; row < s->n; row++)
        order[row] = s->n - 1 - row;
    a.y = rows_for(m, s->n, s->n_in);
    if (schedule == 1) /* scales stand elsewhere: the last row's first */
        a.y.scale_row = rig_alloc(m, n * 4, order);
    if (schedule == 3) { /* row by row */
        a.y.scales_stride = (int64_t)(width / 16 + 63) / 64 * 64;
        a.y.scales = rig_alloc(m, n * (size_t)a.y.scales_stride, NULL);
    }
    free(order);
    const void      *params[1] = {&a};
    struct px_launch l = {
        .grid = {(uint32_t)s->n, 1, 1}, .block = {256, 1, 1}, .shared_bytes = (uint32_t)width * 4, .params = params};
    if (!px_run(m, rig_module("norm_sm100a"), "nib_sm100a_norm", &l))
        fail_msg("%s", px_error(m));
    for (int32_t row = 0; row < s->n; row++)
        expect_norm(s, row, x + (size_t)row * width, weight, &a);
    free(x);
    free(weight);
    free(half);
    px_machine_free(m);
}

static void norms_and_rows(void **state)
{
    (void)state;
    static const struct rows shapes[] = {
        {9, 64, true, false, true, false},    {9, 272, false, false, true, true},
        {9, 256, true, true, true, true},     {9, 1040, true, false, false, true},
        {131, 32, false, false, true, false}, {9, 4352, false, false, false, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        one_norm(&shapes[i], i);
}

/* ---- SwiGLU and activation rows ---- */

static float silu_product(float g, float u, float limit)
{
    if (!isfinite(g) || !isfinite(u))
        return NAN;
    if (limit > 0) {
        g = fminf(g, limit);
        u = fmaxf(fminf(u, limit), -limit);
    }
    return (float)((double)g / (1 + exp(-(double)g))) * u;
}

static void one_swiglu(int32_t n, int32_t n_in, bool f32, float limit, uint64_t schedule)
{
    struct px_config              config = {.seed = schedule};
    struct px_machine            *m = px_machine_new(&config);
    struct nib_blackwell_swiglu_args a = {.stride = n_in + 16, .limit = limit, .n_in = n_in, .f32 = f32};
    size_t                        values = (size_t)n * (size_t)a.stride;
    float                        *x[2], *y = malloc((size_t)n_in * 4);
    uint16_t                     *half = malloc(values * 2);
    void                         *on[2];
    assert_true(m && y && half);
    for (int part = 0; part < 2; part++) {
        x[part] = malloc(values * 4);
        assert_non_null(x[part]);
        for (size_t i = 0; i < values; i++) {
            x[part][i] = 8 * hostile_value((int32_t)(i / (size_t)a.stride), (int32_t)(i % (size_t)a.stride));
            half[i] = rig_bf16(x[part][i]);
            x[part][i] = f32 ? x[part][i] : rig_from_bf16(half[i]);
        }
        on[part] = f32 ? rig_alloc(m, values * 4, x[part]) : rig_alloc(m, values * 2, half);
    }
    a.gate = on[0];
    a.up = on[1];
    a.y = rows_for(m, n, n_in);
    const void      *params[1] = {&a};
    struct px_launch l = {
        .grid = {(uint32_t)n, 1, 1}, .block = {256, 1, 1}, .shared_bytes = (uint32_t)n_in * 4, .params = params};
    if (!px_run(m, rig_module("swiglu_sm100a"), "nib_sm100a_swiglu", &l))
        fail_msg("%s", px_error(m));
    for (int32_t row = 0; row < n; row++) {
        for (int32_t i = 0; i < n_in; i++)
            y[i] = silu_product(x[0][row * a.stride + i], x[1][row * a.stride + i], limit);
        expect_codes(y, row, n_in, &a.y);
    }
    free(x[0]);
    free(x[1]);
    free(y);
    free(half);
    px_machine_free(m);
}

static void swiglu_rows(void **state)
{
    (void)state;
    one_swiglu(9, 272, true, 0, 1);
    one_swiglu(9, 512, false, 10, 2);
    one_swiglu(3, 2048, true, 7, 0);
}

/* ---- Packing ---- */

static void one_pack(int32_t n_out, int32_t n_in)
{
    struct px_config            config = {.seed = 3};
    struct px_machine          *m = px_machine_new(&config);
    int64_t                     bytes = nib_sm100a_scale_bytes(n_out, n_in), n = (int64_t)n_out * (n_in / 16);
    struct nib_sm100a_pack_args a = {.n_words = bytes / 4, .n_out = n_out, .n_in = n_in};
    uint8_t                    *stored = malloc((size_t)n);
    assert_true(m && stored);
    for (int64_t i = 0; i < n; i++)
        stored[i] = (uint8_t)rig_next(&seed);
    a.stored = rig_alloc(m, (size_t)n, stored);
    a.packed = rig_alloc(m, (size_t)bytes, NULL);
    const void      *params[1] = {&a};
    struct px_launch l = {.grid = {(uint32_t)((a.n_words + 255) / 256), 1, 1}, .block = {256, 1, 1}, .params = params};
    if (!px_run(m, rig_module("pack_sm100a"), "nib_sm100a_pack_scales", &l))
        fail_msg("%s", px_error(m));
    assert_true(px_written(m, a.packed, (size_t)bytes));
    int64_t blocks = (n_in + 255) / 256 * 16;
    for (int64_t row = 0; row < (n_out + 127) / 128 * 128; row++)
        for (int64_t b = 0; b < blocks; b++) {
            int64_t at = place_of(row, b, n_in);
            assert_int_equal(nib_sm100a_scale_offset(row, b, n_in), at);
            assert_int_equal(((uint8_t *)a.packed)[at],
                             row < n_out && b < n_in / 16 ? stored[row * (n_in / 16) + b] : 0);
        }
    if (n_out == 256 && n_in == 1024) { /* the shape of the golden file */
        char  text[128];
        FILE *f = fopen(NIB_SOURCE_DIR "/tests/data/goldens/sm100/sf_layout.txt", "r");
        assert_non_null(f);
        while (fgets(text, sizeof text, f)) {
            int row, b, offset;
            if (text[0] == '#')
                continue;
            assert_int_equal(sscanf(text, "%d %d %d", &row, &b, &offset), 3);
            assert_int_equal(((uint8_t *)a.packed)[offset], stored[row * 64 + b]);
        }
        (void)fclose(f);
    }
    free(stored);
    px_machine_free(m);
}

static void packed_scales(void **state)
{
    (void)state;
    one_pack(256, 1024);
    one_pack(1, 16);
    one_pack(129, 272);
    one_pack(320, 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(norms_and_rows), cmocka_unit_test(swiglu_rows),
                                       cmocka_unit_test(packed_scales)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
