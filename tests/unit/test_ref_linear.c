/* Products with every weight type and every activation format, against sums over decoded values. */
#include "unit/ref_rig.h"

static const enum nib_dtype dtypes[2] = {NIB_DTYPE_F32, NIB_DTYPE_BF16};

/* Activation rows of x in the format, made by op norm with eps 0 and weight 1 so that norm's output side is used. The
 * plain part keeps the values from which the quantised one was made. */
static struct nib_act make_act(struct rig *r, enum nib_act_format format, enum nib_dtype dtype, int rows, int cols)
{
    struct nib_mat x = rig_random_mat(r, dtype, rows, cols);
    struct nib_act y = rig_act_mat(r, dtype, format, true, rows, cols);
    float         *ones = rig_random_floats(r, cols, 1, 1);
    assert_int_equal(r->ops->norm(r->s, &(struct nib_norm_args){x, ones, 1e-6f, y}), NIB_OK);
    return y;
}

static void act_row(const struct nib_act *a, enum nib_act_format format, int t, float *out)
{
    float plain[4096];
    for (int i = 0; i < a->cols; i++)
        plain[i] = (float)rig_get(&a->plain, t, i);
    rig_quantise(format, plain, a->cols, out);
}

static void check_product(const struct nib_act *a, enum nib_act_format act, const double *w, int n_out,
                          const struct nib_mat *y)
{
    float x[4096];
    for (int t = 0; t < a->rows; t++) {
        act_row(a, act, t, x);
        for (int o = 0; o < n_out; o++) {
            double sum = 0, mag = 0;
            for (int k = a->cols - 1; k >= 0; k--) {
                sum += w[(int64_t)o * a->cols + k] * (double)x[k];
                mag += fabs(w[(int64_t)o * a->cols + k] * (double)x[k]);
            }
            rig_assert_near(rig_get(y, t, o), sum, mag, y->dtype);
        }
        assert_true(isnan(rig_get(y, t, n_out))); /* nothing beyond the columns */
    }
}

static void every_type_and_format(void **state)
{
    (void)state;
    struct rig r;
    for (int type = NIB_WEIGHT_F32; type <= NIB_WEIGHT_NVFP4; type++) {
        for (int format = NIB_ACT_PLAIN; format <= NIB_ACT_INT8; format++) {
            enum nib_dtype      dtype = dtypes[(type + format) % 2];
            enum nib_act_format f = (enum nib_act_format)format;
            double             *w;
            rig_open(&r, 2);
            struct nib_act     x = make_act(&r, f, dtype, 5, 160);
            struct nib_weight *W = rig_weight(&r, (enum nib_weight_type)type, f, 1, 137, 160, &w);
            struct nib_mat     y = rig_mat(&r, dtype, 5, 137);
            struct nib_linear_args a = {.x = x, .n_weights = 1, .w = {W}, .y = {y}};
            assert_int_equal(r.ops->linear(r.s, &a), NIB_OK);
            check_product(&x, f, w, 137, &y);
            rig_close(&r);
        }
    }
}

/* Projections of the same rows, some of the plain part and some of the quantised one, in one call. */
static void several_weights_at_once(void **state)
{
    (void)state;
    struct rig r;
    double    *w[4];
    rig_open(&r, 2);
    const enum nib_act_format act[4] = {NIB_ACT_NVFP4, NIB_ACT_PLAIN, NIB_ACT_NVFP4, NIB_ACT_PLAIN};
    struct nib_linear_args    a = {.x = make_act(&r, NIB_ACT_NVFP4, NIB_DTYPE_F32, 3, 96), .n_weights = 4};
    for (int i = 0; i < 4; i++) {
        a.w[i] = rig_weight(&r, i % 2 ? NIB_WEIGHT_BF16 : NIB_WEIGHT_NVFP4, act[i], 1, 10 + i, 96, &w[i]);
        a.y[i] = rig_mat(&r, i == 3 ? NIB_DTYPE_BF16 : NIB_DTYPE_F32, 3, 10 + i);
    }
    assert_int_equal(r.ops->linear(r.s, &a), NIB_OK);
    for (int i = 0; i < 4; i++)
        check_product(&a.x, act[i], w[i], 10 + i, &a.y[i]);
    rig_close(&r);
}

static void no_rows_is_nothing(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 2);
    struct nib_weight *W = rig_weight(&r, NIB_WEIGHT_FP8, NIB_ACT_FP8, 1, 8, 96, NULL);
    struct nib_mat     y = rig_mat(&r, NIB_DTYPE_F32, 0, 8);
    struct nib_act     x = {.format = NIB_ACT_FP8, .cols = 96};
    assert_int_equal(r.ops->linear(r.s, &(struct nib_linear_args){.x = x, .n_weights = 1, .w = {W}, .y = {y}}), NIB_OK);
    assert_true(isnan(rig_get(&y, 0, 0)));
    rig_close(&r);
}

/* Bits depend on neither the threads nor the other rows. Large enough that a team is used. */
static void threads_and_neighbours_change_no_bit(void **state)
{
    (void)state;
    struct nib_mat y[3], one;
    struct rig     r[3];
    for (int i = 0; i < 3; i++) {
        rig_open(&r[i], i + 1);
        struct nib_act x = make_act(&r[i], NIB_ACT_FP8, NIB_DTYPE_F32, 40, 200);
        struct nib_weight *W = rig_weight(&r[i], NIB_WEIGHT_FP8, NIB_ACT_FP8, 1, 150, 200, NULL);
        y[i] = rig_mat(&r[i], NIB_DTYPE_F32, 40, 150);
        struct nib_linear_args a = {.x = x, .n_weights = 1, .w = {W}, .y = {y[i]}};
        assert_int_equal(r[i].ops->linear(r[i].s, &a), NIB_OK);
        one = rig_mat(&r[i], NIB_DTYPE_F32, 1, 150);
        a.x.plain = rig_slice(&x.plain, 17, 1);
        a.x.codes += 17 * x.codes_stride;
        a.x.scales += 17 * x.scales_stride;
        a.x.rows = 1;
        a.y[0] = one;
        assert_int_equal(r[i].ops->linear(r[i].s, &a), NIB_OK);
        rig_assert_same_row(&one, 0, &y[i], 17);
    }
    for (int t = 0; t < 40; t++) {
        rig_assert_same_row(&y[0], t, &y[1], t);
        rig_assert_same_row(&y[0], t, &y[2], t);
    }
    for (int i = 0; i < 3; i++)
        rig_close(&r[i]);
}

static void poison_stays_in_its_row(void **state)
{
    (void)state;
    struct rig r;
    for (int format = NIB_ACT_PLAIN; format <= NIB_ACT_INT8; format++) {
        rig_open(&r, 2);
        struct nib_mat x = rig_random_mat(&r, NIB_DTYPE_F32, 4, 96);
        rig_set(&x, 1, 90, NAN);
        rig_set(&x, 2, 3, -INFINITY);
        struct nib_act     q = rig_act_mat(&r, NIB_DTYPE_F32, (enum nib_act_format)format, true, 4, 96);
        struct nib_weight *W = rig_weight(&r, NIB_WEIGHT_NVFP4, (enum nib_act_format)format, 1, 20, 96, NULL);
        struct nib_mat     y = rig_mat(&r, NIB_DTYPE_F32, 4, 20);
        float             *ones = rig_random_floats(&r, 96, 1, 1);
        assert_int_equal(r.ops->norm(r.s, &(struct nib_norm_args){x, ones, 1e-6f, q}), NIB_OK);
        assert_int_equal(r.ops->linear(r.s, &(struct nib_linear_args){.x = q, .n_weights = 1, .w = {W}, .y = {y}}),
                         NIB_OK);
        for (int o = 0; o < 20; o++)
            assert_true(isnan(rig_get(&y, 1, o)) && isnan(rig_get(&y, 2, o)));
        rig_assert_finite_row(&y, 0);
        rig_assert_finite_row(&y, 3);
        rig_close(&r);
    }
}

static void grouped_output_projection(void **state)
{
    (void)state;
    struct rig r;
    for (int format = NIB_ACT_PLAIN; format <= NIB_ACT_INT8; format++) {
        enum { N = 3, GROUPS = 2, RANK = 40, IN = 112 };
        double *w;
        float   row[GROUPS * RANK], wanted[GROUPS * RANK], got[GROUPS * RANK];
        rig_open(&r, 2);
        struct nib_mat x = rig_random_mat(&r, dtypes[format % 2], N, GROUPS * IN);
        struct nib_weight *W = rig_weight(&r, format % 2 ? NIB_WEIGHT_FP8 : NIB_WEIGHT_BF16, NIB_ACT_PLAIN, 1,
                                          GROUPS * RANK, IN, &w);
        struct nib_act y = rig_act_mat(&r, dtypes[format % 2], (enum nib_act_format)format, true, N, GROUPS * RANK);
        assert_int_equal(r.ops->o_a(r.s, &(struct nib_o_a_args){x, GROUPS, W, y}), NIB_OK);
        for (int t = 0; t < N; t++) {
            for (int g = 0; g < GROUPS; g++) {
                for (int a = 0; a < RANK; a++) {
                    double sum = 0, mag = 0;
                    for (int b = 0; b < IN; b++) {
                        double p = w[(g * RANK + a) * IN + b] * rig_get(&x, t, g * IN + b);
                        sum += p;
                        mag += fabs(p);
                    }
                    rig_assert_near(rig_get(&y.plain, t, g * RANK + a), sum, mag, y.plain.dtype);
                }
            }
            for (int i = 0; i < GROUPS * RANK; i++)
                row[i] = (float)rig_get(&y.plain, t, i);
            if (format == NIB_ACT_PLAIN)
                continue;
            /* The quantised part is read back by a product with the unit matrix. */
            rig_quantise((enum nib_act_format)format, row, GROUPS * RANK, wanted);
            float *unit = rig_random_floats(&r, GROUPS * RANK * GROUPS * RANK, 0, 0);
            for (int i = 0; i < GROUPS * RANK; i++)
                unit[i * GROUPS * RANK + i] = 1;
            struct nib_weight_part part = {unit, NULL, 1};
            struct nib_weight_desc d = {NIB_WEIGHT_F32, y.format, 1, GROUPS * RANK, GROUPS * RANK, &part, NIB_USE_ANY};
            struct nib_weight     *U;
            assert_int_equal(nib_backend_ref.weight_pack(r.b, &d, &U, NULL), NIB_OK);
            r.weight[r.n_weight++] = U;
            struct nib_mat back = rig_mat(&r, NIB_DTYPE_F32, N, GROUPS * RANK);
            assert_int_equal(
                r.ops->linear(r.s, &(struct nib_linear_args){.x = y, .n_weights = 1, .w = {U}, .y = {back}}), NIB_OK);
            for (int i = 0; i < GROUPS * RANK; i++)
                got[i] = (float)rig_get(&back, t, i);
            assert_true(model_same(got, wanted, GROUPS * RANK));
        }
        rig_close(&r);
    }
}

static void embedding_and_head(void **state)
{
    (void)state;
    struct rig    r;
    const int32_t token[3] = {7, 299, 0};
    for (int i = 0; i < 2; i++) {
        double *w;
        rig_open(&r, 2);
        struct nib_weight *W = rig_weight(&r, i ? NIB_WEIGHT_BF16 : NIB_WEIGHT_F32, NIB_ACT_PLAIN, 1, 300, 96, &w);
        struct nib_mat     y = rig_mat(&r, dtypes[i], 3, 4 * 96);
        assert_int_equal(r.ops->embed(r.s, &(struct nib_embed_args){token, 3, 4, W, y}), NIB_OK);
        for (int t = 0; t < 3; t++) {
            for (int k = 0; k < 4 * 96; k++)
                assert_true(rig_get(&y, t, k) == w[token[t] * 96 + k % 96]);
        }
        struct nib_mat x = rig_random_mat(&r, dtypes[i], 3, 96);
        struct nib_mat logits = rig_mat(&r, NIB_DTYPE_F32, 3, 300);
        assert_int_equal(r.ops->head(r.s, &(struct nib_head_args){x, W, logits}), NIB_OK);
        struct nib_act plain = {.plain = x, .rows = 3, .cols = 96};
        check_product(&plain, NIB_ACT_PLAIN, w, 300, &logits);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_format),
        cmocka_unit_test(several_weights_at_once),
        cmocka_unit_test(no_rows_is_nothing),
        cmocka_unit_test(threads_and_neighbours_change_no_bit),
        cmocka_unit_test(poison_stays_in_its_row),
        cmocka_unit_test(grouped_output_projection),
        cmocka_unit_test(embedding_and_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
