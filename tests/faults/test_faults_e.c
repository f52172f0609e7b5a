/* Known faults of routing: B54, B56, B57, B58, on every backend of the host. */
#include "faults/moe_rig.h"

enum { E = RIG_EXPERTS, K = RIG_TOP_K };

static const float nothing[RIG_INNER];

/* sqrt(softplus(z)) in double. */
static double score_of(double z)
{
    return sqrt(z > 0 ? z + log1p(exp(-z)) : log1p(exp(z)));
}

/* Expected choice and weights by the definition; ties to the lowest expert. */
static void route(const float *logit, const float *bias, const int32_t *table, int *chosen, double *weight)
{
    bool taken[E] = {false};
    double sum = 0;
    for (int k = 0; k < K; k++) {
        int best = -1;
        for (int e = 0; e < E; e++)
            if (!taken[e] && (best < 0 || score_of((double)logit[e]) + (double)bias[e] > score_of((double)logit[best]) + (double)bias[best]))
                best = e;
        chosen[k] = table ? table[k] : best;
        taken[chosen[k]] = true;
        sum += score_of((double)logit[chosen[k]]);
    }
    for (int k = 0; k < K; k++)
        weight[k] = sum > 0 ? score_of((double)logit[chosen[k]]) / sum * 1.5 : 0;
}

/* One row; `exact`: weights must be right to 1e-6, else finite, not negative, and not above the scale together. */
static void check(const float *logit, float *bias, bool hash, bool exact)
{
    static const float none[E];
    int32_t table[RIG_VOCAB * K];
    struct moe_rig m;
    int chosen[K];
    double weight[K], sum = 0;
    for (int i = 0; i < RIG_VOCAB * K; i++)
        table[i] = 2 * (K - 1 - i % K);
    route(logit, bias ? bias : none, hash ? table : NULL, chosen, weight);
    moe_open(&m, 1, logit, hash ? NULL : bias, hash ? table : NULL, nothing, nothing, 1, 1);
    for (int k = 0; k < K; k++) {
        const double got = (double)m.a.weights[k];
        if (exact)
            assert_int_equal(m.a.chosen[k], chosen[k]);
        assert_true(isfinite(got) && got >= 0);
        if (exact && !(fabs(got - weight[k]) <= 1e-6 * weight[k]))
            fail_msg("logits %g %g ..: weight %d is %.9g, wanted %.9g", (double)logit[0], (double)logit[1], k, got,
                     weight[k]);
        sum += got;
    }
    assert_true(sum <= 1.5 * (1 + 1e-6));
    if (exact)
        assert_true(fabs(sum - 1.5) <= 1.5e-6);
    rig_assert_finite_row(&m.a.y, 0);
    rig_close(&m.r);
}

/* Every edge for all experts and for one. Below -80 exp(z) leaves fp32's normal range: weights need only be numbers
 * there. */
static void b56_edges_of_the_score(void)
{
    static const float edges[] = {-200, -104, -50, -17, -16.6f, -1, 0, 1, 20, 88, 89, 200};
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        for (int hash = 0; hash < 2; hash++) {
            float logit[E], bias[E] = {0};
            for (int e = 0; e < E; e++)
                logit[e] = edges[i];
            check(logit, bias, hash, edges[i] > -80);
            for (int e = 0; e < E; e++)
                logit[e] = e == 2 ? edges[i] : 0.5f + 0.25f * (float)e;
            check(logit, bias, hash, edges[i] > -80 || !hash);
        }
    }
}
BOTH(b56_edges_of_the_score)

/* A bias moves the choice only. Scores from 1e-8 to 5: logits -36 to 25. */
static void b57_bias_moves_the_choice_only(void)
{
    static const float biases[][E] = {{0}, {12, -12, 12, -12, 12, -12}, {-12, 12, -12, 12, -12, 12}, {12, 12, 12, 12, 12, 12}, {0, 0, 0, 12, 0, -12}};
    static const float logits[][E] = {{-36, -20, -36, -10, -36, 3}, {25, -30, 3, -5, 0.5f, -1}, {-36.5f, -36, -35.5f, -35, -34.5f, -34}};
    for (int b = 0; b < 5; b++) {
        for (int l = 0; l < 3; l++) {
            float bias[E];
            /* With a bias of 12 in fp32, scores below 2^-21 drown: such ties are b58's. */
            if (b > 0 && l == 2)
                continue;
            memcpy(bias, biases[b], sizeof bias);
            check(logits[l], bias, false, true);
        }
    }
}
BOTH(b57_bias_moves_the_choice_only)

/* Logits of the last chosen and the first one left out that are equal, or apart by one unit of BF16 or of fp32: all
 * backends choose the same experts, for one row and for 64; equals go to the lowest. */
static void b58_near_ties(void **state)
{
    static const float base = 1.25f;
    const float values[] = {base, nextafterf(base, 2), base + 0x1p-7f, nextafterf(base, 0), base - 0x1p-7f};
    (void)state;
    for (int i = 0; i < 5; i++) {
        float logit[E] = {base, values[i], 3, base, 2.5f, -1}, bias[E] = {0};
        int32_t first[K] = {0};
        for (int k = 0; k < 4; k++) {
            struct moe_rig m;
            g_api = k % 2 ? &nib_backend_cpu : &nib_backend_ref;
            moe_open(&m, k < 2 ? 1 : 64, logit, bias, NULL, nothing, nothing, 1, 1);
            if (k == 0)
                memcpy(first, m.a.chosen, sizeof first);
            for (int t = 0; t < (k < 2 ? 1 : 64); t++)
                assert_memory_equal(m.a.chosen + t * K, first, sizeof first);
            rig_close(&m.r);
        }
        assert_int_equal(first[0], 2);
        assert_int_equal(first[1], 4);
        /* One unit of fp32 may vanish in the score; then the lowest counts. */
        if (i != 1)
            assert_int_equal(first[2], values[i] > base ? 1 : 0);
    }
}

/* There are no padding rows: experts are chosen for the rows of the step alone, by each row's own token. */
static void b54_rows_are_routed_by_their_tokens(void)
{
    enum { N = 55 };
    static const float logit[E] = {1, 1, 1, 1, 1, 1};
    int32_t table[RIG_VOCAB * K];
    struct moe_rig m;
    for (int i = 0; i < RIG_VOCAB; i++)
        for (int k = 0; k < K; k++)
            table[i * K + k] = (i + k) % E;
    moe_open(&m, N, logit, NULL, table, nothing, nothing, 1, 1);
    for (int t = 0; t < N; t++)
        for (int k = 0; k < K; k++)
            assert_int_equal(m.a.chosen[t * K + k], (m.st.token[t] + k) % E);
    rig_close(&m.r);
}
BOTH(b54_rows_are_routed_by_their_tokens)

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        ON_BOTH(b54_rows_are_routed_by_their_tokens),
        ON_BOTH(b56_edges_of_the_score),
        ON_BOTH(b57_bias_moves_the_choice_only),
        cmocka_unit_test(b58_near_ties),
    };
    return cmocka_run_group_tests_name("faults_e", tests, NULL, NULL);
}
