/* The mixture of experts: routing rules, and the whole against plain sums over decoded weights. */
#include "unit/ref_rig.h"

enum { E = RIG_EXPERTS, K = RIG_TOP_K, DIM = RIG_DIM, INNER = RIG_INNER, SHARED = RIG_SHARED, N = 9 };

struct scene {
    struct nib_moe_args a;
    double             *router, *w1, *w2, *w3, *sw1, *sw2, *sw3;
    struct rig_step     st;
};

/* type and act are those of routed experts; the shared one is FP8 with plain or FP8 rows. */
static struct scene *make_scene(struct rig *r, enum nib_dtype dtype, enum nib_weight_type type, enum nib_act_format act,
                                bool hash, bool before)
{
    struct scene       *s = rig_alloc(r, sizeof *s);
    enum nib_act_format shared_act = act == NIB_ACT_NVFP4 ? NIB_ACT_PLAIN : act;
    rig_step(&s->st, (int[]){3, 0, 0}, (int[]){N, 0, 0});
    struct nib_moe_args *a = &s->a;
    a->x = rig_act_mat(r, dtype, act, true, N, DIM);
    struct nib_mat raw = rig_random_mat(r, dtype, N, DIM);
    assert_int_equal(
        r->ops->norm(r->s, &(struct nib_norm_args){raw, rig_random_floats(r, DIM, 1, 1), 1e-6f, a->x}), NIB_OK);
    a->rows = &s->st.rows;
    a->router = rig_weight(r, NIB_WEIGHT_BF16, NIB_ACT_PLAIN, 1, E, DIM, &s->router);
    a->bias = hash ? NULL : rig_random_floats(r, E, -1, 1);
    int32_t *table = rig_alloc(r, RIG_VOCAB * K * sizeof *table);
    for (int i = 0; i < RIG_VOCAB; i++) {
        for (int k = 0; k < K; k++)
            table[i * K + k] = (i * 5 + K - k) % E;
    }
    a->tid2eid = hash ? table : NULL;
    a->n_experts = E;
    a->top_k = K;
    a->route_scale = 1.5f;
    a->limit = 2;
    a->weight_before_w2 = before;
    a->w1 = rig_weight(r, type, act, E, INNER, DIM, &s->w1);
    a->w2 = rig_weight(r, type, act, E, DIM, INNER, &s->w2);
    a->w3 = rig_weight(r, type, act, E, INNER, DIM, &s->w3);
    a->sw1 = rig_weight(r, NIB_WEIGHT_FP8, shared_act, 1, SHARED, DIM, &s->sw1);
    a->sw2 = rig_weight(r, NIB_WEIGHT_FP8, shared_act, 1, DIM, SHARED, &s->sw2);
    a->sw3 = rig_weight(r, NIB_WEIGHT_FP8, shared_act, 1, SHARED, DIM, &s->sw3);
    a->y = rig_mat(r, dtype, N, DIM);
    a->chosen = rig_alloc(r, N * K * sizeof *a->chosen);
    a->weights = rig_alloc(r, N * K * sizeof *a->weights);
    return s;
}

static void route_expected(const struct scene *s, int t, int *chosen, double *weight)
{
    double score[E], sum = 0;
    bool   taken[E] = {false};
    for (int e = 0; e < E; e++) {
        double z = 0;
        for (int i = 0; i < DIM; i++)
            z += s->router[e * DIM + i] * rig_get(&s->a.x.plain, t, i);
        score[e] = sqrt(log1p(exp(z)));
    }
    for (int k = 0; k < K; k++) {
        int best = -1;
        for (int e = 0; e < E && !s->a.tid2eid; e++) {
            if (!taken[e] && (best < 0 || score[e] + (double)s->a.bias[e] > score[best] + (double)s->a.bias[best]))
                best = e;
        }
        chosen[k] = s->a.tid2eid ? s->a.tid2eid[s->st.token[t] * K + k] : best;
        taken[chosen[k]] = true;
        sum += score[chosen[k]];
    }
    for (int k = 0; k < K; k++)
        weight[k] = score[chosen[k]] / sum * (double)s->a.route_scale;
}

static float to_row(double v, bool bf16)
{
    return bf16 ? model_bf16((float)v) : (float)v;
}

/* One expert's output for row t, by the definition; *mag the magnitudes that went into it. */
static void expert_expected(const struct scene *s, int t, const double *w1, const double *w2, const double *w3,
                            int inner, enum nib_act_format act, double weight, bool before, double *y, double *mag)
{
    bool  bf16 = s->a.y.dtype == NIB_DTYPE_BF16;
    float plain[DIM], x[DIM], a[256], q[256];
    for (int i = 0; i < DIM; i++)
        plain[i] = (float)rig_get(&s->a.x.plain, t, i);
    rig_quantise(act, plain, DIM, x);
    for (int o = 0; o < inner; o++) {
        double g = 0, u = 0, limit = (double)s->a.limit;
        for (int i = 0; i < DIM; i++) {
            g += w1[o * DIM + i] * (double)x[i];
            u += w3[o * DIM + i] * (double)x[i];
        }
        g = (double)to_row(g, bf16);
        u = (double)to_row(u, bf16);
        if (limit > 0) {
            g = fmin(g, limit);
            u = fmax(-limit, fmin(u, limit));
        }
        double act_value = (double)(float)((double)(float)(g / (1 + exp(-g))) * u);
        a[o] = to_row(before ? act_value * weight : act_value, bf16);
    }
    rig_quantise(act, a, inner, q);
    for (int o = 0; o < DIM; o++) {
        double sum = 0;
        for (int i = 0; i < inner; i++) {
            sum += w2[o * inner + i] * (double)q[i];
            mag[o] += fabs(w2[o * inner + i] * (double)q[i]);
        }
        y[o] += (double)to_row(before ? sum : sum * weight, bf16);
    }
}

/* The sums here are ordered differently, in double, so a rounding to fp32 inside may fall the other way: an ulp of
 * each value that goes into w2, hence 2^-22 of mag. Codes and bf16 roundings could flip likewise; with these seeds
 * none does. */
static void check_row(const struct scene *s, int t)
{
    int    chosen[K], order[K];
    double weight[K], y[DIM] = {0}, mag[DIM] = {0};
    route_expected(s, t, chosen, weight);
    for (int k = 0; k < K; k++) {
        assert_int_equal(s->a.chosen[t * K + k], chosen[k]);
        rig_assert_near((double)s->a.weights[t * K + k], weight[k], 2 * 0x1p21, NIB_DTYPE_F32);
        order[k] = k;
    }
    for (int i = 0; i < K; i++) { /* ascending experts */
        for (int k = 0; k + 1 < K; k++) {
            if (chosen[order[k]] > chosen[order[k + 1]]) {
                int swap = order[k];
                order[k] = order[k + 1];
                order[k + 1] = swap;
            }
        }
    }
    for (int i = 0; i < K; i++) {
        int e = chosen[order[i]];
        expert_expected(s, t, s->w1 + e * INNER * DIM, s->w2 + e * INNER * DIM, s->w3 + e * INNER * DIM, INNER,
                        s->a.w1->act, (double)s->a.weights[t * K + order[i]], s->a.weight_before_w2, y, mag);
    }
    expert_expected(s, t, s->sw1, s->sw2, s->sw3, SHARED, s->a.sw1->act, 1, true, y, mag);
    for (int i = 0; i < DIM; i++)
        rig_assert_near(rig_get(&s->a.y, t, i), y[i], mag[i] * 0x1p23, s->a.y.dtype);
}

static void equals_its_definition(void **state)
{
    (void)state;
    static const struct {
        enum nib_dtype       dtype;
        enum nib_weight_type type;
        enum nib_act_format  act;
        bool                 hash, before;
    } kinds[] = {
        {NIB_DTYPE_F32, NIB_WEIGHT_NVFP4, NIB_ACT_PLAIN, false, true},
        {NIB_DTYPE_F32, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, false, false},
        {NIB_DTYPE_F32, NIB_WEIGHT_MXFP4, NIB_ACT_FP8, true, true},
        {NIB_DTYPE_F32, NIB_WEIGHT_FP8, NIB_ACT_INT8, true, false},
        {NIB_DTYPE_F32, NIB_WEIGHT_BF16, NIB_ACT_PLAIN, true, false},
        {NIB_DTYPE_BF16, NIB_WEIGHT_MXFP4, NIB_ACT_FP8, false, true},
        {NIB_DTYPE_BF16, NIB_WEIGHT_NVFP4, NIB_ACT_PLAIN, true, true},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (int limit = 0; limit <= 2; limit += 2) {
            struct rig r;
            rig_open(&r, 2);
            struct scene *s =
                make_scene(&r, kinds[i].dtype, kinds[i].type, kinds[i].act, kinds[i].hash, kinds[i].before);
            s->a.limit = (float)limit;
            assert_int_equal(r.ops->moe(r.s, &s->a), NIB_OK);
            for (int t = 0; t < N; t++)
                check_row(s, t);
            rig_close(&r);
        }
    }
}

static void weights_sum_to_the_scale(void **state)
{
    (void)state;
    struct rig r;
    for (int hash = 0; hash < 2; hash++) {
        rig_open(&r, 2);
        struct scene *s = make_scene(&r, NIB_DTYPE_F32, NIB_WEIGHT_NVFP4, NIB_ACT_PLAIN, hash == 1, true);
        assert_int_equal(r.ops->moe(r.s, &s->a), NIB_OK);
        for (int t = 0; t < N; t++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += (double)s->a.weights[t * K + k];
            assert_true(fabs(sum - 1.5) <= K * 0x1p-24 * 1.5);
        }
        rig_close(&r);
    }
}

/* Equal scores: the lowest experts, in that order; a bias lifts one to the front without changing its weight. */
static void ties_and_bias(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 2);
    struct scene *s = make_scene(&r, NIB_DTYPE_F32, NIB_WEIGHT_BF16, NIB_ACT_PLAIN, false, true);
    float        *bias = rig_random_floats(&r, E, 0.25f, 0.25f);
    for (int t = 0; t < N; t++) {
        for (int i = 0; i < DIM; i++)
            rig_set(&s->a.x.plain, t, i, 0);
    }
    s->a.bias = bias;
    for (int lifted = 0; lifted < 2; lifted++) {
        bias[4] = lifted ? 0.5f : 0.25f;
        assert_int_equal(r.ops->moe(r.s, &s->a), NIB_OK);
        for (int t = 0; t < N; t++) {
            for (int k = 0; k < K; k++) {
                assert_int_equal(s->a.chosen[t * K + k], lifted ? (k == 0 ? 4 : k - 1) : k);
                assert_true(s->a.weights[t * K + k] == 1.5f / K);
            }
            for (int i = 0; i < DIM; i++)
                assert_true(rig_get(&s->a.y, t, i) == 0);
        }
    }
    rig_close(&r);
}

static struct nib_weight *constant_weight(struct rig *r, int n_stack, int n_out, float value)
{
    struct nib_weight_part part[E];
    struct nib_weight_desc d = {NIB_WEIGHT_F32, NIB_ACT_PLAIN, n_stack, n_out, DIM, part, NIB_USE_ANY};
    struct nib_weight     *w;
    for (int i = 0; i < n_stack; i++)
        part[i] = (struct nib_weight_part){rig_random_floats(r, n_out * DIM, value, value), NULL, 1};
    assert_int_equal(nib_backend_ref.weight_pack(r->b, &d, &w, NULL), NIB_OK);
    r->weight[r->n_weight++] = w;
    return w;
}

/* Scores that all underflow to zero give weights of zero, not NaN. */
static void hopeless_row_is_zero(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 1);
    struct scene *s = make_scene(&r, NIB_DTYPE_F32, NIB_WEIGHT_BF16, NIB_ACT_PLAIN, false, true);
    s->a.router = constant_weight(&r, 1, E, 1);
    for (int i = 0; i < DIM; i++)
        rig_set(&s->a.x.plain, 0, i, -100);
    assert_int_equal(r.ops->moe(r.s, &s->a), NIB_OK);
    for (int k = 0; k < K; k++)
        assert_true(s->a.weights[k] == 0);
    rig_assert_finite_row(&s->a.y, 0);
    rig_close(&r);
}

/* Bits do not depend on threads or on the other rows. */
static void threads_and_neighbours_change_no_bit(void **state)
{
    (void)state;
    struct rig    r[3];
    struct scene *s[3];
    for (int i = 0; i < 3; i++) {
        rig_open(&r[i], i + 1);
        s[i] = make_scene(&r[i], NIB_DTYPE_F32, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, false, false);
        assert_int_equal(r[i].ops->moe(r[i].s, &s[i]->a), NIB_OK);
    }
    for (int t = 0; t < N; t++) {
        rig_assert_same_row(&s[0]->a.y, t, &s[1]->a.y, t);
        rig_assert_same_row(&s[0]->a.y, t, &s[2]->a.y, t);
        struct rig_step     st;
        struct nib_moe_args a = s[0]->a;
        rig_step(&st, (int[]){3 + t, 0, 0}, (int[]){1, 0, 0});
        a.rows = &st.rows;
        a.x.plain = rig_slice(&a.x.plain, t, 1);
        a.x.codes += t * a.x.codes_stride;
        a.x.scales += t * a.x.scales_stride;
        a.x.row_scale += t;
        a.x.rows = 1;
        a.y = rig_mat(&r[0], NIB_DTYPE_F32, 1, DIM);
        a.chosen = NULL;
        a.weights = NULL;
        assert_int_equal(r[0].ops->moe(r[0].s, &a), NIB_OK);
        rig_assert_same_row(&a.y, 0, &s[0]->a.y, t);
    }
    for (int i = 0; i < 3; i++)
        rig_close(&r[i]);
}

/* Sums that overflow to +Inf meet the clamps, which would turn them into numbers. The router's own weights are so
 * small that nothing else overflows. */
static void overflow_is_not_clamped_away(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 2);
    struct scene *s = make_scene(&r, NIB_DTYPE_F32, NIB_WEIGHT_BF16, NIB_ACT_PLAIN, false, true);
    s->a.router = constant_weight(&r, 1, E, 1e-39f);
    s->a.w1 = s->a.w3 = constant_weight(&r, E, INNER, 1);
    s->a.sw1 = s->a.sw3 = constant_weight(&r, 1, SHARED, 1);
    for (int i = 0; i < DIM; i++)
        rig_set(&s->a.x.plain, 2, i, 3e38f);
    assert_int_equal(r.ops->moe(r.s, &s->a), NIB_OK);
    for (int t = 0; t < N; t++) {
        for (int k = 0; k < K; k++)
            assert_true(isfinite(s->a.weights[t * K + k]));
        if (t == 2)
            rig_assert_nan_row(&s->a.y, t);
        else
            rig_assert_finite_row(&s->a.y, t);
    }
    rig_close(&r);
}

/* NaN and Inf have to stay visible, and to stay in their row. */
static void poison_stays_in_its_row(void **state)
{
    (void)state;
    static const float bad[4] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (int round = 0; round < 8; round++) {
        struct rig r;
        rig_open(&r, 2);
        struct scene  *s = make_scene(&r, NIB_DTYPE_F32, NIB_WEIGHT_NVFP4, NIB_ACT_PLAIN, round % 2 == 1, true);
        struct nib_mat before = rig_mat(&r, NIB_DTYPE_F32, N, DIM);
        assert_int_equal(r.ops->moe(r.s, &s->a), NIB_OK);
        for (int t = 0; t < N; t++) {
            for (int i = 0; i < DIM; i++)
                rig_set(&before, t, i, (float)rig_get(&s->a.y, t, i));
        }
        for (int i = 0; i < (round / 2 == 3 ? DIM : 1); i++)
            rig_set(&s->a.x.plain, 4, i, bad[round / 2]);
        assert_int_equal(r.ops->moe(r.s, &s->a), NIB_OK);
        for (int t = 0; t < N; t++) {
            if (t != 4)
                rig_assert_same_row(&s->a.y, t, &before, t);
            else
                rig_assert_nan_row(&s->a.y, 4);
        }
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_its_definition), cmocka_unit_test(weights_sum_to_the_scale),
        cmocka_unit_test(ties_and_bias),         cmocka_unit_test(hopeless_row_is_zero),
        cmocka_unit_test(threads_and_neighbours_change_no_bit),
        cmocka_unit_test(overflow_is_not_clamped_away),
        cmocka_unit_test(poison_stays_in_its_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
