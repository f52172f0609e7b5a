/* A mixture of experts as a chain of the sm_100a kernels: groups, gathered rows, both first products, SwiGLU with
 * rows again, the second product, the weighted sum. Every link is held to what its inputs, as the link before left
 * them, must give. */
#include "number/act_rows.h"
#include "ptxsim/sm100a/sm100a_rig.h"

enum { TOKENS = 21, DIM = 288, INNER = 160, EXPERTS = 6, TOP = 2, PAIRS = TOKENS * TOP };

static uint64_t           seed = 31;
static struct px_machine *m;

/* A stack of EXPERTS matrices, and its values. */
struct stack {
    int32_t        n_out, n_in;
    const uint8_t *codes, *scales; /* of the machine */
    const float   *alphas;
    double        *value; /* [EXPERTS][n_out][n_in], alphas included */
};

static double code_value(uint32_t code)
{
    static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -value[code & 7] : value[code & 7];
}

static struct stack make_stack(int32_t n_out, int32_t n_in)
{
    struct stack s = {.n_out = n_out, .n_in = n_in};
    int64_t      rows = (int64_t)EXPERTS * n_out, packed = nib_sm100a_scale_bytes(n_out, n_in);
    uint8_t     *codes = malloc((size_t)(rows * n_in / 2)), *scales = calloc(1, (size_t)(EXPERTS * packed));
    float        alphas[EXPERTS];
    s.value = malloc((size_t)(rows * n_in) * sizeof *s.value);
    assert_true(codes && scales && s.value);
    for (int64_t i = 0; i < rows * n_in / 2; i++)
        codes[i] = (uint8_t)rig_next(&seed);
    for (int e = 0; e < EXPERTS; e++)
        alphas[e] = 1e-3f * (float)(e + 3);
    for (int64_t row = 0; row < rows; row++)
        for (int32_t b = 0; b < n_in / 16; b++) {
            uint32_t scale = 0x30 + rig_next(&seed) % 24;
            scales[row / n_out * packed + nib_sm100a_scale_offset(row % n_out, b, n_in)] = (uint8_t)scale;
            for (int32_t k = b * 16; k < b * 16 + 16; k++)
                s.value[row * n_in + k] = code_value((unsigned)codes[(row * n_in + k) / 2] >> k % 2 * 4 & 15u) *
                                          ldexp(8 + (double)(scale & 7), (int)(scale >> 3) - 10) *
                                          (double)alphas[row / n_out];
        }
    s.codes = rig_alloc(m, (size_t)(rows * n_in / 2), codes);
    s.scales = rig_alloc(m, (size_t)(EXPERTS * packed), scales);
    s.alphas = rig_alloc(m, sizeof alphas, alphas);
    free(codes);
    free(scales);
    return s;
}

static void launch(const char *module, const char *kernel, struct px_dim grid, uint32_t block, uint32_t shared, const void *args)
{
    const void      *params[1] = {args};
    struct px_launch l = {.grid = grid, .block = {block, 1, 1}, .shared_bytes = shared, .params = params};
    if (!px_run(m, rig_module(module), kernel, &l))
        fail_msg("%s", px_error(m));
}

static struct nib_blackwell_rows make_rows(int32_t n, int32_t n_in, int32_t n_scale_rows)
{
    struct nib_blackwell_rows q = {.codes_stride = (n_in / 2 + 63) / 64 * 64};
    /* As the backend's alloc() gives it: zeroed. */
    void *zero = calloc((size_t)(n + n_scale_rows), (size_t)(n_in + 256));
    assert_non_null(zero);
    q.codes = rig_alloc(m, (size_t)n * (size_t)q.codes_stride, zero);
    q.scales = rig_alloc(m, (size_t)nib_sm100a_scale_bytes(n_scale_rows, n_in), zero);
    q.row_scale = rig_alloc(m, (size_t)n * 4, zero);
    free(zero);
    return q;
}

/* Row `row` of q holds what the encoder makes of x; returns its values. */
static void expect_encoded(const struct nib_blackwell_rows *q, int32_t row, int32_t n_in, const float *x, double *value)
{
    uint8_t codes[512], scales[64];
    float   g;
    nib_nvfp4_row_encode(x, n_in, codes, scales, &g);
    assert_true(q->row_scale[row] == g);
    assert_memory_equal(q->codes + row * q->codes_stride, codes, (size_t)n_in / 2);
    for (int32_t b = 0; b < n_in / 16; b++)
        assert_int_equal(q->scales[nib_sm100a_scale_offset(q->scale_row ? q->scale_row[row] : row, b, n_in)], scales[b]);
    for (int32_t k = 0; k < n_in; k++)
        value[k] = code_value((unsigned)codes[k / 2] >> k % 2 * 4 & 15u) * (double)g *
                   (scales[k / 16] < 8 ? ldexp(scales[k / 16], -9)
                                       : ldexp(8 + (double)(scales[k / 16] & 7), (int)(scales[k / 16] >> 3) - 10));
}

struct groups {
    struct nib_blackwell_group *groups;
    int32_t                 *n_groups, n_rows;
};

static float *multiply(const struct nib_blackwell_rows *x, const struct stack *w, const struct groups *g)
{
    struct nib_sm100a_linear_args args;
    struct nib_blackwell_launch      l;
    char                          error[256];
    float                        *y = rig_alloc(m, (size_t)g->n_rows * (size_t)w->n_out * 4, NULL);
    struct nib_sm100a_linear      p = {.n_rows = g->n_rows,
                                       .n_out = w->n_out,
                                       .n_in = w->n_in,
                                       .x_codes = x->codes,
                                       .w_codes = w->codes,
                                       .x_stride = x->codes_stride,
                                       .x_scales = x->scales,
                                       .w_scales = w->scales,
                                       .row_scale = x->row_scale,
                                       .y = y,
                                       .y_stride = w->n_out,
                                       .y_f32 = true,
                                       .n_sms = 2,
                                       .n_experts = EXPERTS,
                                       .groups = g->groups,
                                       .n_groups = g->n_groups,
                                       .alphas = w->alphas};
    if (!nib_sm100a_linear_plan(&p, sim_tensor_map_encode_tiled, &args, &l, error, sizeof error))
        fail_msg("%s", error);
    const void      *params[1] = {&args};
    struct px_launch run = {.grid = {l.grid, 1, 1}, .block = {l.block, 1, 1}, .cluster = {l.cluster, 1, 1},
                            .shared_bytes = l.shared_bytes, .params = params};
    if (!px_run(m, rig_module("linear_sm100a"), l.kernel, &run))
        fail_msg("%s", px_error(m));
    return y;
}

static void expect_product(const float *y, const double *x, const struct stack *w, int32_t expert)
{
    for (int32_t o = 0; o < w->n_out; o++) {
        double sum = 0, most = 0;
        for (int32_t k = 0; k < w->n_in; k++) {
            double v = x[k] * w->value[((int64_t)expert * w->n_out + o) * w->n_in + k];
            sum += v;
            most += fabs(v);
        }
        /* Roundings of the sum after every 64 values, of both scales and their product. */
        assert_true(fabs((double)y[o] - sum) <= (w->n_in / 64 + 5) * 0x1p-24 * most);
    }
}

/* The tokens' rows as an op gets them: quantised, with their scales row by row. */
static struct nib_sm100a_place_args quantised(const float *x)
{
    struct nib_sm100a_place_args a = {.codes_stride = 192, .scales_stride = 64, .n_in = DIM, .top_k = TOP};
    uint8_t                      codes[TOKENS * 192] = {0}, scales[TOKENS * 64] = {0};
    float                        row_scale[TOKENS];
    for (int32_t t = 0; t < TOKENS; t++)
        nib_nvfp4_row_encode(x + t * DIM, DIM, codes + t * 192, scales + t * 64, &row_scale[t]);
    a.codes = rig_alloc(m, sizeof codes, codes);
    a.scales = rig_alloc(m, sizeof scales, scales);
    a.row_scale = rig_alloc(m, sizeof row_scale, row_scale);
    return a;
}

static void chain(void **state)
{
    (void)state;
    struct px_config config = {.seed = 17};
    (void)rig_module("linear_sm100a"); /* skips where there is no PTX */
    m = px_machine_new(&config);
    assert_non_null(m);
    struct stack w1 = make_stack(INNER, DIM), w3 = make_stack(INNER, DIM), w2 = make_stack(DIM, INNER);
    float        x[TOKENS][DIM], weight[PAIRS];
    int32_t      expert[PAIRS];
    for (int32_t t = 0; t < TOKENS; t++)
        for (int32_t i = 0; i < DIM; i++)
            x[t][i] = rig_value(&seed) * (float)(1 + t % 5);
    for (int32_t p = 0; p < PAIRS; p++) { /* expert 2 gets nobody; a token's choices are in no order */
        expert[p] = p % 2 == p / 2 % 2 ? (p / 2 % 3 == 0 ? 0 : 1) : 3 + (int32_t)(rig_next(&seed) % 3);
        weight[p] = 0.25f + 0.5f * (float)(rig_next(&seed) % 100) / 100.0f;
    }

    struct nib_blackwell_groups_args ga = {.n_pairs = PAIRS, .n_experts = EXPERTS, .tile_rows = 128, .scale_tile = 128};
    int32_t                       most = nib_sm100a_groups_most(PAIRS, EXPERTS, 128), n_scales = most * ga.tile_rows;
    ga.chosen = rig_alloc(m, sizeof expert, expert);
    ga.groups = rig_alloc(m, (size_t)most * sizeof *ga.groups, NULL);
    ga.n_groups = rig_alloc(m, 4, NULL);
    ga.pair = rig_alloc(m, PAIRS * 4, NULL);
    ga.place = rig_alloc(m, PAIRS * 4, NULL);
    ga.scale_row = rig_alloc(m, PAIRS * 4, NULL);
    launch("groups_sm100a", "nib_sm100a_groups", (struct px_dim){1, 1, 1}, 1024, EXPERTS * 12, &ga);
    assert_int_equal(*ga.n_groups, EXPERTS - 1);
    struct groups  g = {ga.groups, ga.n_groups, PAIRS};
    const int32_t *place = ga.place;

    struct nib_sm100a_place_args pa = quantised(&x[0][0]);
    pa.pair = ga.pair;
    pa.y = make_rows(PAIRS, DIM, n_scales);
    pa.y.scale_row = ga.scale_row;
    launch("place_sm100a", "nib_sm100a_place", (struct px_dim){PAIRS, 1, 1}, 128, 0, &pa);
    float *gate = multiply(&pa.y, &w1, &g), *up = multiply(&pa.y, &w3, &g);
    const float                  *weights = rig_alloc(m, sizeof weight, weight);
    struct nib_blackwell_swiglu_args sa = {.gate = gate,
                                        .up = up,
                                        .weight = weights,
                                        .pair = ga.pair,
                                        .stride = INNER,
                                        .limit = 7,
                                        .n_in = INNER,
                                        .f32 = 1,
                                        .y = make_rows(PAIRS, INNER, n_scales)};
    sa.y.scale_row = ga.scale_row;
    launch("swiglu_sm100a", "nib_sm100a_swiglu", (struct px_dim){PAIRS, 1, 1}, 256, INNER * 4, &sa);
    float *expert_y = multiply(&sa.y, &w2, &g);
    float *y = rig_alloc(m, TOKENS * DIM * 4, NULL);
    struct nib_blackwell_combine_args ca = {.expert_y = expert_y,
                                         .chosen = ga.chosen,
                                         .place = place,
                                         .weight = weights,
                                         .y = y,
                                         .expert_stride = DIM,
                                         .y_stride = DIM,
                                         .top_k = TOP,
                                         .dim = DIM,
                                         .y_f32 = 1};
    launch("combine_sm100a", "nib_sm100a_combine", (struct px_dim){2, TOKENS, 1}, 256, TOP * 8, &ca);

    for (int32_t p = 0; p < PAIRS; p++) {
        double value[DIM];
        float  act[INNER];
        expect_encoded(&pa.y, place[p], DIM, x[p / TOP], value);
        expect_product(gate + place[p] * INNER, value, &w1, expert[p]);
        expect_product(up + place[p] * INNER, value, &w3, expert[p]);
        for (int32_t i = 0; i < INNER; i++) {
            float a = fminf(gate[place[p] * INNER + i], 7), b = fmaxf(fminf(up[place[p] * INNER + i], 7), -7);
            act[i] = (float)((double)a / (1 + exp(-(double)a))) * b * weight[p];
        }
        expect_encoded(&sa.y, place[p], INNER, act, value);
        expect_product(expert_y + place[p] * DIM, value, &w2, expert[p]);
    }
    for (int32_t t = 0; t < TOKENS; t++)
        for (int32_t i = 0; i < DIM; i++) {
            float   sum = 0;
            int32_t first = expert[t * TOP] > expert[t * TOP + 1];
            for (int32_t k = 0, j = first; k < TOP; k++, j = !first)
                sum += weight[t * TOP + j] * expert_y[place[t * TOP + j] * DIM + i];
            assert_true(y[t * DIM + i] == sum);
        }
    free(w1.value);
    free(w2.value);
    free(w3.value);
    px_machine_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
