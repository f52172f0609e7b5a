/* Hyper-connections: the published Sinkhorn example, directions of the mixing, and the collapses. */
#include "unit/ref_rig.h"

enum { HC = 4 };

static const enum nib_dtype dtypes[2] = {NIB_DTYPE_F32, NIB_DTYPE_BF16};

/* Streams of ones and fn rows that are constant: mix[i] is what the example prescribes, but for fp32 parameters. */
static void sinkhorn_example(void **state)
{
    (void)state;
    static const double pre[4] = {0.4013133, 0.5498350, 0.4750218, 0.5374308};
    static const double post[4] = {1.0872774, 0.9875007, 1.0249948, 0.9251403};
    static const double comb[16] = {0.1882311, 0.3899900, 0.2335468, 0.1882311, 0.2748269, 0.1093550,
                                    0.3409903, 0.2748269, 0.1714509, 0.3552237, 0.3018734, 0.1714510,
                                    0.3654901, 0.1454302, 0.1235885, 0.3654901};
    struct rig r;
    rig_open(&r, 1);
    enum { DIM = 8, WIDTH = HC * DIM };
    float          fn[24 * WIDTH], base[24], scale[3] = {0.5f, 0.25f, 1.5f};
    float         *ones = rig_random_floats(&r, DIM, 1, 1);
    struct nib_mat streams = rig_mat(&r, NIB_DTYPE_F32, 1, WIDTH);
    struct nib_act x = {.plain = rig_mat(&r, NIB_DTYPE_F32, 1, DIM), .rows = 1, .cols = DIM};
    for (int i = 0; i < 24; i++) {
        base[i] = (float)(0.05 * ((5 * i) % 7 - 3));
        for (int k = 0; k < WIDTH; k++)
            fn[i * WIDTH + k] = (float)(0.1 * ((7 * i) % 11 - 5) * sqrt(1 + 1e-6) / WIDTH);
    }
    for (int k = 0; k < WIDTH; k++)
        rig_set(&streams, 0, k, 1);
    /* Collapsed channel c is sum_i pre[i] * stream[i][c]: one pass per stream would show pre; its sum does here. */
    struct nib_hc_pre_args a = {.streams = streams, .n_hc = HC, .n_iters = 20, .fn = fn, .base = base, .scale = scale,
                                .hc_eps = 1e-6f, .norm_eps = 1e-6f, .norm_weight = ones,
                                .post = rig_mat(&r, NIB_DTYPE_F32, 1, HC),
                                .comb = rig_mat(&r, NIB_DTYPE_F32, 1, HC * HC), .x = x,
                                .collapsed = rig_mat(&r, NIB_DTYPE_F32, 1, DIM)};
    assert_int_equal(r.ops->hc_pre(r.s, &a), NIB_OK);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(rig_get(&a.post, 0, i) - post[i]) < 2e-7);
    for (int i = 0; i < 16; i++)
        assert_true(fabs(rig_get(&a.comb, 0, i) - comb[i]) < 2e-7);
    assert_true(fabs(rig_get(&a.collapsed, 0, 0) - (pre[0] + pre[1] + pre[2] + pre[3])) < 1e-6);
    /* Doubly stochastic: the last step was on columns. */
    for (int i = 0; i < 4; i++) {
        double row = 0, column = 0;
        for (int j = 0; j < 4; j++) {
            row += rig_get(&a.comb, 0, i * 4 + j);
            column += rig_get(&a.comb, 0, j * 4 + i);
        }
        assert_true(fabs(column - 1) < 3e-6 && fabs(row - 1) < 3e-6);
    }
    /* Streams one at a time: unit vectors of the stream index show each pre. mean(X^2) falls to 1/4, so fn doubles. */
    for (int s = 0; s < HC; s++) {
        for (int i = 0; i < 24; i++) {
            for (int k = 0; k < WIDTH; k++)
                fn[i * WIDTH + k] = (float)(0.1 * ((7 * i) % 11 - 5) * sqrt(0.25 + 1e-6) / DIM);
        }
        for (int k = 0; k < WIDTH; k++)
            rig_set(&streams, 0, k, k / DIM == s ? 1 : 0);
        assert_int_equal(r.ops->hc_pre(r.s, &a), NIB_OK);
        assert_true(fabs(rig_get(&a.collapsed, 0, 0) - pre[s]) < 2e-7);
    }
    rig_close(&r);
}

static double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

/* Random rows against the formulas in double. */
static void pre_equals_its_definition(void **state)
{
    (void)state;
    enum { N = 7, DIM = RIG_DIM, WIDTH = HC * DIM };
    for (int k = 0; k < 4; k++) {
        enum nib_dtype dtype = dtypes[k % 2];
        int            n_iters = k < 2 ? 20 : 3;
        struct rig     r;
        rig_open(&r, 2);
        struct nib_hc_pre_args a = {
            .streams = rig_random_mat(&r, dtype, N, WIDTH), .n_hc = HC, .n_iters = n_iters,
            .fn = rig_random_floats(&r, 24 * WIDTH, -0.1f, 0.1f), .base = rig_random_floats(&r, 24, -1, 1),
            .scale = rig_random_floats(&r, 3, 0.5f, 2), .hc_eps = 1e-4f, .norm_eps = 1e-6f,
            .norm_weight = rig_random_floats(&r, DIM, -2, 2), .post = rig_mat(&r, NIB_DTYPE_F32, N, HC),
            .comb = rig_mat(&r, NIB_DTYPE_F32, N, HC * HC),
            .x = rig_act_mat(&r, dtype, NIB_ACT_NVFP4, true, N, DIM), .collapsed = rig_mat(&r, dtype, N, DIM)};
        assert_int_equal(r.ops->hc_pre(r.s, &a), NIB_OK);
        for (int t = 0; t < N; t++) {
            double mix[24], c[HC][HC], square = 0;
            for (int i = 0; i < WIDTH; i++)
                square += rig_get(&a.streams, t, i) * rig_get(&a.streams, t, i);
            for (int m = 0; m < 24; m++) {
                int group = m < 4 ? 0 : m < 8 ? 1 : 2;
                mix[m] = 0;
                for (int i = 0; i < WIDTH; i++)
                    mix[m] += (double)a.fn[m * WIDTH + i] * rig_get(&a.streams, t, i);
                mix[m] = mix[m] / sqrt(square / WIDTH + 1e-6) * (double)a.scale[group] + (double)a.base[m];
            }
            for (int j = 0; j < HC; j++) {
                double sum = 0;
                for (int l = 0; l < HC; l++)
                    sum += exp(mix[8 + j * HC + l]);
                for (int l = 0; l < HC; l++)
                    c[j][l] = exp(mix[8 + j * HC + l]) / sum + (double)1e-4f;
            }
            for (int pass = 1; pass < 2 * n_iters; pass++) { /* odd: columns */
                for (int i = 0; i < HC; i++) {
                    double sum = (double)1e-4f;
                    for (int j = 0; j < HC; j++)
                        sum += pass % 2 ? c[j][i] : c[i][j];
                    for (int j = 0; j < HC; j++)
                        *(pass % 2 ? &c[j][i] : &c[i][j]) /= sum;
                }
            }
            for (int i = 0; i < HC; i++) {
                rig_assert_near(rig_get(&a.post, t, i), 2 * sigmoid(mix[HC + i]), 2, NIB_DTYPE_F32);
                for (int j = 0; j < HC; j++)
                    rig_assert_near(rig_get(&a.comb, t, i * HC + j), c[i][j], 4, NIB_DTYPE_F32);
            }
            /* Four products and sums in fp32: a few ulps of the largest; then bf16 once if the rows are. */
            double mean = 0;
            for (int i = 0; i < DIM; i++) {
                double sum = 0;
                for (int s = 0; s < HC; s++)
                    sum += (sigmoid(mix[s]) + (double)1e-4f) * rig_get(&a.streams, t, s * DIM + i);
                rig_assert_near(rig_get(&a.collapsed, t, i), sum, 8 * 0x1p21, dtype);
                mean += rig_get(&a.collapsed, t, i) * rig_get(&a.collapsed, t, i) / DIM;
            }
            float row[DIM], wanted[DIM], got[DIM];
            for (int i = 0; i < DIM; i++) {
                double y = rig_get(&a.collapsed, t, i) / sqrt(mean + 1e-6) * (double)a.norm_weight[i];
                rig_assert_near(rig_get(&a.x.plain, t, i), y, 4 * 0x1p21, dtype);
                row[i] = (float)rig_get(&a.x.plain, t, i);
            }
            model_nvfp4_sim(row, DIM, wanted);
            for (int i = 0; i < DIM; i++) {
                uint32_t code = (uint32_t)a.x.codes[t * a.x.codes_stride + i / 2] >> (i % 2 * 4) & 15u;
                float    d = (float)model_e4m3(a.x.scales[t * a.x.scales_stride + i / 16]) * a.x.row_scale[t];
                got[i] = (float)model_e2m1(code) * d;
            }
            assert_true(model_same(got, wanted, DIM));
        }
        rig_close(&r);
    }
}

/* comb[j][k] = 1 iff k = permutation(j): stream j must land in stream permutation(j). */
static void post_moves_streams_forward(void **state)
{
    (void)state;
    enum { DIM = 10 };
    static const int permutation[4] = {2, 0, 3, 1};
    for (int k = 0; k < 2; k++) {
        struct rig r;
        rig_open(&r, 1);
        struct nib_mat streams = rig_random_mat(&r, dtypes[k], 2, HC * DIM), y = rig_random_mat(&r, dtypes[k], 2, DIM);
        struct nib_mat post = rig_mat(&r, NIB_DTYPE_F32, 2, HC), comb = rig_mat(&r, NIB_DTYPE_F32, 2, HC * HC);
        double         old[HC * DIM];
        for (int i = 0; i < HC * DIM; i++)
            old[i] = rig_get(&streams, 1, i);
        for (int t = 0; t < 2; t++) {
            for (int i = 0; i < HC; i++)
                rig_set(&post, t, i, 0);
            for (int i = 0; i < HC * HC; i++)
                rig_set(&comb, t, i, permutation[i / HC] == i % HC ? 1 : 0);
        }
        assert_int_equal(r.ops->hc_post(r.s, &(struct nib_hc_post_args){streams, HC, y, post, comb}), NIB_OK);
        for (int j = 0; j < HC; j++) {
            for (int c = 0; c < DIM; c++)
                assert_true(rig_get(&streams, 1, permutation[j] * DIM + c) == old[j * DIM + c]);
        }
        rig_close(&r);
    }
}

static void post_equals_its_definition(void **state)
{
    (void)state;
    enum { DIM = 33, N = 5 };
    for (int k = 0; k < 2; k++) {
        struct rig r;
        rig_open(&r, 2);
        struct nib_mat streams = rig_random_mat(&r, dtypes[k], N, HC * DIM), y = rig_random_mat(&r, dtypes[k], N, DIM);
        struct nib_mat post = rig_random_mat(&r, NIB_DTYPE_F32, N, HC);
        struct nib_mat comb = rig_random_mat(&r, NIB_DTYPE_F32, N, HC * HC);
        struct nib_mat old = rig_mat(&r, dtypes[k], N, HC * DIM);
        rig_set(&streams, 2, 7, NAN);
        for (int t = 0; t < N; t++) {
            for (int i = 0; i < HC * DIM; i++)
                rig_set(&old, t, i, (float)rig_get(&streams, t, i));
        }
        assert_int_equal(r.ops->hc_post(r.s, &(struct nib_hc_post_args){streams, HC, y, post, comb}), NIB_OK);
        for (int t = 0; t < N; t++) {
            for (int i = 0; i < HC * DIM; i++) {
                double sum = rig_get(&post, t, i / DIM) * rig_get(&y, t, i % DIM);
                for (int j = 0; j < HC; j++)
                    sum += rig_get(&comb, t, j * HC + i / DIM) * rig_get(&old, t, j * DIM + i % DIM);
                if (t == 2 && i % DIM == 7)
                    assert_true(isnan(rig_get(&streams, t, i)));
                else
                    rig_assert_near(rig_get(&streams, t, i), sum, 5, dtypes[k]);
            }
        }
        rig_close(&r);
    }
}

static void head_equals_its_definition(void **state)
{
    (void)state;
    enum { DIM = 40, WIDTH = HC * DIM };
    static const int32_t rows[3] = {4, 0, 2};
    for (int k = 0; k < 2; k++) {
        struct rig r;
        rig_open(&r, 2);
        struct nib_hc_head_args a = {
            .streams = rig_random_mat(&r, dtypes[k], 5, WIDTH), .row = rows, .n = 3, .n_hc = HC,
            .fn = rig_random_floats(&r, HC * WIDTH, -0.1f, 0.1f), .base = rig_random_floats(&r, HC, -1, 1),
            .scale = rig_random_floats(&r, 1, 2, 2), .hc_eps = 1e-3f, .norm_eps = 1e-6f,
            .norm_weight = rig_random_floats(&r, DIM, -2, 2), .x = rig_mat(&r, dtypes[k], 3, DIM),
            .collapsed = rig_mat(&r, dtypes[k], 3, DIM)};
        assert_int_equal(r.ops->hc_head(r.s, &a), NIB_OK);
        for (int t = 0; t < 3; t++) {
            double w[HC], square = 0, mean = 0;
            for (int i = 0; i < WIDTH; i++)
                square += rig_get(&a.streams, rows[t], i) * rig_get(&a.streams, rows[t], i) / WIDTH;
            for (int m = 0; m < HC; m++) {
                w[m] = 0;
                for (int i = 0; i < WIDTH; i++)
                    w[m] += (double)a.fn[m * WIDTH + i] * rig_get(&a.streams, rows[t], i);
                w[m] = sigmoid(w[m] / sqrt(square + 1e-6) * 2 + (double)a.base[m]) + (double)1e-3f;
            }
            for (int i = 0; i < DIM; i++) {
                double sum = 0;
                for (int s = 0; s < HC; s++)
                    sum += w[s] * rig_get(&a.streams, rows[t], s * DIM + i);
                rig_assert_near(rig_get(&a.collapsed, t, i), sum, 8 * 0x1p21, dtypes[k]);
                mean += rig_get(&a.collapsed, t, i) * rig_get(&a.collapsed, t, i) / DIM;
            }
            for (int i = 0; i < DIM; i++) {
                double y = rig_get(&a.collapsed, t, i) / sqrt(mean + 1e-6) * (double)a.norm_weight[i];
                rig_assert_near(rig_get(&a.x, t, i), y, 4 * 0x1p21, dtypes[k]);
            }
        }
        rig_close(&r);
    }
}

/* NaN or Inf in one row's streams shows in all that hc_pre makes of it, and in no other row. */
static void poison_stays_in_its_row(void **state)
{
    (void)state;
    enum { N = 4, DIM = 32, WIDTH = HC * DIM };
    static const float bad[3] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        struct rig r;
        rig_open(&r, 2);
        struct nib_act         x = {.plain = rig_mat(&r, NIB_DTYPE_F32, N, DIM), .rows = N, .cols = DIM};
        struct nib_hc_pre_args a = {
            .streams = rig_random_mat(&r, NIB_DTYPE_F32, N, WIDTH), .n_hc = HC, .n_iters = 20,
            .fn = rig_random_floats(&r, 24 * WIDTH, -1, 1), .base = rig_random_floats(&r, 24, -1, 1),
            .scale = rig_random_floats(&r, 3, 1, 1), .hc_eps = 1e-6f, .norm_eps = 1e-6f,
            .norm_weight = rig_random_floats(&r, DIM, 1, 1), .post = rig_mat(&r, NIB_DTYPE_F32, N, HC),
            .comb = rig_mat(&r, NIB_DTYPE_F32, N, HC * HC), .x = x};
        rig_set(&a.streams, 1, 50, bad[k]);
        assert_int_equal(r.ops->hc_pre(r.s, &a), NIB_OK);
        for (int t = 0; t < N; t++) {
            if (t == 1) {
                rig_assert_nan_row(&x.plain, t);
                rig_assert_nan_row(&a.post, t);
                rig_assert_nan_row(&a.comb, t);
            } else {
                rig_assert_finite_row(&x.plain, t);
                rig_assert_finite_row(&a.comb, t);
            }
        }
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sinkhorn_example),           cmocka_unit_test(pre_equals_its_definition),
        cmocka_unit_test(post_moves_streams_forward), cmocka_unit_test(post_equals_its_definition),
        cmocka_unit_test(head_equals_its_definition), cmocka_unit_test(poison_stays_in_its_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
