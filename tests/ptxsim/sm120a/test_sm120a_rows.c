/* NVFP4 rows of sm_120a from their emitted PTX, and a whole mixture of experts link by link: every kernel's result held
 * to what its inputs must give. */
#include "number/act_rows.h"
#include "ptxsim/sm120a/sm120a_rig.h"

static uint64_t seed = 9;

static void *room(size_t bytes)
{
    void *p = malloc(bytes);
    assert_non_null(p);
    return p;
}

static struct nib_blackwell_rows rows_for(struct px_machine *m, int32_t n, int32_t n_in)
{
    struct nib_blackwell_rows q = {.codes_stride = (int64_t)(n_in / 2 + 63) / 64 * 64,
                                .scales_stride = (int64_t)(n_in / 16 + 63) / 64 * 64};
    q.codes = rig_alloc(m, (size_t)n * (size_t)q.codes_stride, NULL);
    q.scales = rig_alloc(m, (size_t)n * (size_t)q.scales_stride, NULL);
    q.row_scale = rig_alloc(m, (size_t)n * 4, NULL);
    return q;
}

static void launch_rows(struct px_machine *m, const char *kernel, int32_t n, int32_t n_in, const void *args)
{
    struct nib_blackwell_launch l = {kernel, (uint32_t)n, 256, (uint32_t)n_in * 4, 1};
    rig_launch(m, "rows_sm120a", &l, args);
}

static float hostile_value(int32_t row, int32_t i)
{
    float v = rig_value(&seed);
    switch (row % 9) {
    case 1: return 0;
    case 2: return i == 5 ? NAN : v;
    case 3: return i == 12 ? INFINITY : v;
    case 4: return v * 1e-38f;
    case 5: return v * 1e38f;
    case 6: return i / 16 % 2 ? 0 : v;              /* every other block is zero */
    case 7: return (float)(i % 13) * 0.25f;         /* ties */
    case 8: return i / 16 == 0 ? 1000.0f : v * 1e-4f; /* scales that round to subnormals and zero */
    default: return v;
    }
}

/* The row is what the definition's encoder makes of y. */
static void expect_row(const float *y, int32_t row, int32_t n_in, const struct nib_blackwell_rows *q)
{
    float          g;
    uint8_t       *codes = room((size_t)n_in / 2), *scales = room((size_t)n_in / 16);
    const uint8_t *got = q->scales + row * q->scales_stride;
    nib_nvfp4_row_encode(y, n_in, codes, scales, &g);
    assert_true(q->row_scale[row] == g || (isnan(g) && isnan(q->row_scale[row])));
    for (int32_t b = 0; b < (n_in / 16 + 3) / 4 * 4; b++)
        assert_int_equal(got[b], b < n_in / 16 && !isnan(g) ? scales[b] : 0);
    if (!isnan(g))
        assert_memory_equal(q->codes + row * q->codes_stride, codes, (size_t)n_in / 2);
    free(codes);
    free(scales);
}

static void one_norm(int32_t n, int32_t n_in, bool x_f32, bool normed, bool plain, bool plain_f32, uint64_t schedule)
{
    struct px_config            config = {.seed = schedule};
    struct px_machine          *m = px_machine_new(&config);
    struct nib_blackwell_norm_args a = {
        .eps = 1e-6f, .n_in = n_in, .x_f32 = x_f32, .plain_f32 = plain_f32, .x_stride = n_in};
    size_t                      all = (size_t)n * (size_t)n_in;
    float                      *x = room(all * 4), *weight = room((size_t)n_in * 4), *y = room((size_t)n_in * 4);
    uint16_t                   *half = room(all * 2);
    assert_non_null(m);
    for (size_t i = 0; i < all; i++) {
        x[i] = hostile_value((int32_t)(i / (size_t)n_in), (int32_t)(i % (size_t)n_in));
        half[i] = rig_bf16(x[i]);
        x[i] = x_f32 ? x[i] : rig_from_bf16(half[i]);
    }
    for (int32_t i = 0; i < n_in; i++)
        weight[i] = 1.0f + 0.1f * rig_value(&seed);
    a.x = x_f32 ? rig_alloc(m, all * 4, x) : rig_alloc(m, all * 2, half);
    a.weight = normed ? rig_alloc(m, (size_t)n_in * 4, weight) : NULL;
    a.plain_stride = n_in + 8;
    a.plain = plain ? rig_alloc(m, (size_t)n * (size_t)a.plain_stride * 4, NULL) : NULL;
    a.y = rows_for(m, n, n_in);
    launch_rows(m, "nib_sm120a_norm", n, n_in, &a);
    for (int32_t row = 0; row < n; row++) {
        const float *from = x + (size_t)row * (size_t)n_in;
        double       sum = 0;
        for (int32_t i = 0; i < n_in; i++)
            sum += (double)from[i] * (double)from[i];
        float mean = (float)(sum / n_in), r = (float)(1.0 / sqrt((double)(mean + a.eps)));
        for (int32_t i = 0; i < n_in; i++) {
            int64_t at = row * a.plain_stride + i;
            y[i] = normed ? from[i] * r * weight[i] : from[i];
            y[i] = plain && !plain_f32 ? rig_from_bf16(rig_bf16(y[i])) : y[i];
            float stored = !plain      ? y[i]
                           : plain_f32 ? ((float *)a.plain)[at]
                                       : rig_from_bf16(((uint16_t *)a.plain)[at]);
            assert_true(stored == y[i] || (isnan(stored) && isnan(y[i])));
        }
        expect_row(y, row, n_in, &a.y);
    }
    free(x);
    free(weight);
    free(y);
    free(half);
    px_machine_free(m);
}

static void norms(void **state)
{
    (void)state;
    one_norm(9, 64, true, true, false, false, 0);
    one_norm(9, 272, false, true, true, false, 1);
    one_norm(9, 1040, true, false, true, true, 2);
    one_norm(9, 4352, false, false, false, false, 3);
}

/* exp in fp32 is not the host's to the last bit, so a code may fall to the other side now and then, by a step, on fewer
 * than one value in a thousand; a block's scale by one code. */
static void swiglu(void **state)
{
    (void)state;
    enum { N = 5, N_IN = 1056 };
    struct px_config              config = {.seed = 4};
    struct px_machine            *m = px_machine_new(&config);
    struct nib_blackwell_swiglu_args a = {.stride = N_IN, .limit = 7, .n_in = N_IN, .f32 = 1};
    static float                  x[2][N * N_IN], h[N_IN];
    static const float            weight[3] = {0.5f, 2.0f, 0.25f};
    static const int32_t          pair[N] = {2, 0, 1, 1, 0};
    int                           off = 0;
    assert_non_null(m);
    for (int i = 0; i < 2 * N * N_IN; i++)
        x[i / (N * N_IN)][i % (N * N_IN)] = 6 * rig_value(&seed);
    x[0][3 * N_IN + 100] = INFINITY;
    a.gate = rig_alloc(m, sizeof x[0], x[0]);
    a.up = rig_alloc(m, sizeof x[1], x[1]);
    a.weight = rig_alloc(m, sizeof weight, weight);
    a.pair = rig_alloc(m, sizeof pair, pair);
    a.y = rows_for(m, N, N_IN);
    launch_rows(m, "nib_sm120a_swiglu", N, N_IN, &a);
    for (int row = 0; row < N; row++) {
        uint8_t codes[N_IN / 2], scales[N_IN / 16];
        float   g;
        for (int i = 0; i < N_IN; i++) {
            double gate = fmin((double)x[0][row * N_IN + i], 7), up = fmax(fmin((double)x[1][row * N_IN + i], 7), -7);
            h[i] = isfinite(x[0][row * N_IN + i]) ? (float)(gate / (1 + exp(-gate)) * up) * weight[pair[row]] : NAN;
        }
        nib_nvfp4_row_encode(h, N_IN, codes, scales, &g);
        if (isnan(g)) {
            assert_true(isnan(a.y.row_scale[row]));
            continue;
        }
        assert_true(fabsf(a.y.row_scale[row] - g) <= 0x1p-20f * g);
        for (int b = 0; b < N_IN / 16; b++)
            assert_true(abs((int)a.y.scales[row * a.y.scales_stride + b] - (int)scales[b]) <= 1);
        for (int i = 0; i < N_IN; i++) {
            int shift = i % 2 * 4, got = a.y.codes[row * a.y.codes_stride + i / 2] >> shift & 15,
                want = codes[i / 2] >> shift & 15;
            assert_true(abs((got & 7) - (want & 7)) <= 1 && ((got ^ want) < 8 || (got & 7) + (want & 7) == 0));
            off += got != want;
        }
    }
    assert_true(off * 1000 < N * N_IN);
    px_machine_free(m);
}

/* ---- A mixture ---- */

enum { TOKENS = 11, TOP_K = 3, PAIRS = TOKENS * TOP_K, EXPERTS = 7, DIM = 96, INNER = 64 };

struct expert_weights {
    uint8_t *codes, *scales; /* [expert][part][n_out] stored rows */
    int32_t  n_out, n_in, n_parts;
    uint8_t *packed[2], *packed_scales[2];
};

static float value_of(const uint8_t *codes, const uint8_t *scales, int64_t row, int64_t k, int64_t n_in)
{
    float   v[16];
    int64_t at = row * (n_in / 16) + k / 16;
    nib_nvfp4_row_decode(codes + at * 8, scales + at, 1.0f, 16, v);
    return v[k % 16];
}

static struct expert_weights make_weights(struct px_machine *m, int32_t n_out, int32_t n_in, int32_t n_parts)
{
    struct expert_weights w = {.n_out = n_out, .n_in = n_in, .n_parts = n_parts};
    size_t                rows = (size_t)EXPERTS * (size_t)n_parts * (size_t)n_out, half = (size_t)n_in / 2;
    size_t                codes = (size_t)nib_sm120a_code_bytes(n_out, n_in), scales = codes / 8;
    w.codes = room(rows * half);
    w.scales = room(rows * half / 8);
    for (size_t i = 0; i < rows * half; i++)
        w.codes[i] = (uint8_t)rig_next(&seed);
    for (size_t i = 0; i < rows * half / 8; i++)
        w.scales[i] = (uint8_t)(0x28 + rig_next(&seed) % 0x20);
    uint8_t *stored = rig_alloc(m, rows * half, w.codes), *stored_scales = rig_alloc(m, rows * half / 8, w.scales);
    for (int32_t p = 0; p < n_parts; p++) {
        w.packed[p] = rig_alloc(m, codes * EXPERTS, NULL);
        w.packed_scales[p] = rig_alloc(m, scales * EXPERTS, NULL);
        for (int32_t e = 0; e < EXPERTS; e++) {
            size_t                      row = (size_t)((e * n_parts + p) * n_out);
            struct nib_blackwell_launch l;
            struct nib_sm120a_pack_args a = {.stored = stored + row * half,
                                             .stored_scales = stored_scales + row * half / 8,
                                             .codes = w.packed[p] + (size_t)e * codes,
                                             .scales = w.packed_scales[p] + (size_t)e * scales,
                                             .n_out = n_out,
                                             .n_in = n_in};
            nib_sm120a_pack_plan(&a, &l);
            rig_launch(m, "pack_sm120a", &l, &a);
        }
    }
    return w;
}

/* sum_k x[row][k] w[e][part][o][k] and its error bound. */
static double product(const struct nib_blackwell_rows *q, int32_t row, const struct expert_weights *w, int32_t e,
                      int32_t part, int32_t o, double *bound)
{
    double sum = 0, most = 0;
    for (int32_t k = 0; k < w->n_in; k++) {
        float x[16];
        nib_nvfp4_row_decode(q->codes + row * q->codes_stride + k / 16 * 8, q->scales + row * q->scales_stride + k / 16,
                             1.0f, 16, x);
        double v = (double)x[k % 16] *
                   (double)value_of(w->codes, w->scales, ((int64_t)e * w->n_parts + part) * w->n_out + o, k, w->n_in);
        sum += v;
        most += fabs(v);
    }
    *bound = (w->n_in / 64 + NIB_SM120A_SLICES + 4) * 0x1p-24 * most * (double)q->row_scale[row];
    return sum * (double)q->row_scale[row];
}

static void multiply(struct px_machine *m, struct nib_sm120a_linear *p, const struct nib_blackwell_rows *q,
                     const struct expert_weights *w)
{
    struct nib_sm120a_linear_args args;
    struct nib_blackwell_launch      l;
    char                          error[200];
    p->n_rows = PAIRS;
    p->n_out = w->n_out, p->n_in = w->n_in, p->n_parts = w->n_parts;
    p->x_codes = q->codes, p->x_scales = q->scales, p->row_scale = q->row_scale;
    p->x_codes_stride = q->codes_stride, p->x_scales_stride = q->scales_stride;
    for (int32_t part = 0; part < w->n_parts; part++)
        p->w_codes[part] = w->packed[part], p->w_scales[part] = w->packed_scales[part];
    p->y = rig_alloc(m, (size_t)PAIRS * (size_t)w->n_out * 4, NULL);
    p->y_stride = w->n_out;
    p->y_f32 = true;
    if (!nib_sm120a_linear_plan(p, &args, &l, error, sizeof error))
        fail_msg("%s", error);
    rig_launch(m, strstr(l.kernel, "decode") ? "decode_sm120a" : "linear_sm120a", &l, &args);
}

static void quantise(struct px_machine *m, const float *x, int32_t n, int32_t n_in, struct nib_blackwell_rows *q)
{
    struct nib_blackwell_norm_args a = {.x = x, .n_in = n_in, .x_f32 = 1, .x_stride = n_in};
    a.y = *q = rows_for(m, n, n_in);
    launch_rows(m, "nib_sm120a_norm", n, n_in, &a);
}

/* Order of rows and groups; every pair is somewhere, among its expert's. */
static void check_groups(const struct nib_blackwell_groups_args *g, int32_t expert_of[PAIRS])
{
    int32_t row = 0;
    for (int32_t i = 0; i < *g->n_groups; i++) {
        struct nib_blackwell_group one = g->groups[i];
        assert_int_equal(one.row, row);
        assert_true(one.n_rows > 0 && one.n_rows <= g->tile_rows);
        for (int32_t r = row; r < row + one.n_rows; r++) {
            assert_int_equal(g->chosen[g->pair[r]], one.expert);
            assert_int_equal(g->place[g->pair[r]], r);
            expert_of[r] = one.expert;
        }
        row += one.n_rows;
    }
    assert_int_equal(row, PAIRS);
    assert_true(*g->n_groups <= nib_sm120a_groups_most(PAIRS, EXPERTS, g->tile_rows));
}

static void one_mixture(int32_t tile_rows, uint64_t schedule)
{
    struct px_config       config = {.seed = schedule, .max_steps = 40000000};
    struct px_machine     *m = px_machine_new(&config);
    static float           x[TOKENS * DIM], weight[PAIRS], shared[TOKENS * DIM];
    static int32_t         chosen[PAIRS], expert_of[PAIRS];
    struct nib_blackwell_rows x_rows, h_rows;
    assert_non_null(m);
    for (int i = 0; i < TOKENS * DIM; i++) {
        x[i] = rig_value(&seed);
        shared[i] = rig_value(&seed);
    }
    for (int i = 0; i < PAIRS; i++) { /* expert 2 gets a row of each token, 5 none, some tokens name one twice */
        chosen[i] = i % TOP_K == 1 ? 2 : (int32_t)(rig_next(&seed) % 5);
        weight[i] = 0.1f + 0.1f * (float)(rig_next(&seed) % 8);
    }
    struct expert_weights         w13 = make_weights(m, INNER, DIM, 2), w2 = make_weights(m, DIM, INNER, 1);
    struct nib_blackwell_groups_args g = {
        .chosen = rig_alloc(m, sizeof chosen, chosen), .n_pairs = PAIRS, .n_experts = EXPERTS, .tile_rows = tile_rows};
    struct nib_blackwell_launch      l = {"nib_sm120a_groups", 1, 1024, EXPERTS * 12, 1};
    g.groups = rig_alloc(m, (size_t)nib_sm120a_groups_most(PAIRS, EXPERTS, tile_rows) * sizeof *g.groups, NULL);
    g.n_groups = rig_alloc(m, 4, NULL);
    g.pair = rig_alloc(m, PAIRS * 4, NULL);
    g.place = rig_alloc(m, PAIRS * 4, NULL);
    rig_launch(m, "experts_sm120a", &l, &g);
    check_groups(&g, expert_of);

    quantise(m, rig_alloc(m, sizeof x, x), TOKENS, DIM, &x_rows);
    struct nib_sm120a_linear p = {.alpha = {0.02f, 0.03f}, .limit = 7, .tile_rows = tile_rows, .n_experts = EXPERTS,
                                  .groups = g.groups, .n_groups = g.n_groups, .pair = g.pair, .top_k = TOP_K};
    multiply(m, &p, &x_rows, &w13);
    const float *h = p.y;
    for (int32_t r = 0; r < PAIRS; r++)
        for (int32_t o = 0; o < INNER; o++) {
            double bg, bu, gate = product(&x_rows, g.pair[r] / TOP_K, &w13, expert_of[r], 0, o, &bg) * (double)0.02f;
            double up = product(&x_rows, g.pair[r] / TOP_K, &w13, expert_of[r], 1, o, &bu) * (double)0.03f;
            gate = fmin(gate, 7), up = fmax(fmin(up, 7), -7);
            double silu = gate / (1 + exp(-gate)), want = silu * up;
            /* The slope of silu is below 1.1; its own arithmetic is good to 8 ulp. */
            double bound = 1.1 * bg * 0.02 * (fabs(up) + bu) + fabs(silu) * bu * 0.03 + 8 * 0x1p-23 * fabs(want);
            assert_true(fabs((double)h[r * INNER + o] - want) <= bound);
        }
    quantise(m, h, PAIRS, INNER, &h_rows);
    for (int32_t r = 0; r < PAIRS; r++)
        expect_row(h + r * INNER, r, INNER, &h_rows);
    p.alpha[0] = 0.05f, p.pair = NULL, p.top_k = 0;
    multiply(m, &p, &h_rows, &w2);
    const float *y2 = p.y;
    for (int32_t r = 0; r < PAIRS; r++)
        for (int32_t o = 0; o < DIM; o++) {
            double bound, want = product(&h_rows, r, &w2, expert_of[r], 0, o, &bound) * (double)0.05f;
            assert_true(fabs((double)y2[r * DIM + o] - want) <= bound * 0.05 + 0x1p-140);
        }

    struct nib_blackwell_combine_args c = {.expert_y = y2,
                                        .shared = rig_alloc(m, sizeof shared, shared),
                                        .chosen = g.chosen,
                                        .place = g.place,
                                        .weight = rig_alloc(m, sizeof weight, weight),
                                        .expert_stride = DIM,
                                        .shared_stride = DIM,
                                        .y_stride = DIM,
                                        .top_k = TOP_K,
                                        .dim = DIM,
                                        .y_f32 = 1};
    const void      *params[1] = {&c};
    struct px_launch               launch = {
                      .grid = {1, TOKENS, 1}, .block = {256, 1, 1}, .shared_bytes = TOP_K * 8, .params = params};
    c.y = rig_alloc(m, sizeof x, NULL);
    if (!px_run(m, rig_module("experts_sm120a"), "nib_sm120a_combine", &launch))
        fail_msg("%s", px_error(m));
    for (int32_t t = 0; t < TOKENS; t++)
        for (int32_t i = 0; i < DIM; i++) {
            float sum = 0;
            for (int32_t e = 0; e < EXPERTS; e++)
                for (int32_t j = 0; j < TOP_K; j++)
                    if (chosen[t * TOP_K + j] == e)
                        sum += weight[t * TOP_K + j] * y2[g.place[t * TOP_K + j] * DIM + i];
            assert_true(((float *)c.y)[t * DIM + i] == sum + shared[t * DIM + i]);
        }
    free(w13.codes);
    free(w13.scales);
    free(w2.codes);
    free(w2.scales);
    px_machine_free(m);
}

static void mixtures(void **state)
{
    (void)state;
    one_mixture(8, 1);
    one_mixture(32, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(norms), cmocka_unit_test(swiglu), cmocka_unit_test(mixtures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
