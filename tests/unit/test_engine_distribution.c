/* The distribution that rejection sampling of drafts compares, by docs/sampling.md: logits are logarithms of small
 * weights, so that what is left after each step is a fraction that can be written down. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "engine/distribution.h"

enum { N = 6 };
/* Ids 1 and 2, and 4 and 5, are equals. */
static const double k_weight[N] = {8, 4, 4, 2, 1, 1};

static struct nib_sampling off(void)
{
    return (struct nib_sampling){.temperature = 1, .top_p = 1, .repetition = 1};
}

/* Logits are floats below 8 and come out of logf within an ulp, 2^-22; so do weights within that share, and a
 * probability within twice that. */
static void check(const struct nib_sampling *s, const double wanted[N])
{
    static const struct nib_seen none = {.n = 0};
    float   logits[N];
    double  p[N], sum = 0;
    int32_t order[N];
    for (int i = 0; i < N; i++) {
        logits[i] = logf((float)k_weight[i]);
        sum += wanted[i];
    }
    assert_true(nib_distribution(s, logits, N, &none, p, order));
    for (int i = 0; i < N; i++)
        if (!(fabs(p[i] - wanted[i] / sum) <= 0x1p-20) || (p[i] == 0) != (wanted[i] == 0))
            fail_msg("p[%d] is %.9g, wanted %.9g", i, p[i], wanted[i] / sum);
}

static void test_steps(void **state)
{
    (void)state;
    struct nib_sampling s = off();
    check(&s, k_weight);
    s.temperature = 2;
    check(&s, (double[N]){sqrt(8), 2, 2, sqrt(2), 1, 1});
    s = off();
    s.min_p = 0.2f; /* of 8: 1.6 */
    check(&s, (double[N]){8, 4, 4, 2, 0, 0});
    s = off();
    s.top_k = 1;
    check(&s, (double[N]){8, 0, 0, 0, 0, 0});
    s.top_k = 2; /* equals at the border stay */
    check(&s, (double[N]){8, 4, 4, 0, 0, 0});
    s.top_k = 4;
    check(&s, (double[N]){8, 4, 4, 2, 0, 0});
    s.top_k = N + 1;
    check(&s, k_weight);
    s = off();
    s.top_p = 0.01f; /* the likeliest always stays */
    check(&s, (double[N]){8, 0, 0, 0, 0, 0});
    s.top_p = 0.55f; /* 8/20 is less, 12/20 is not; of equals the lower id */
    check(&s, (double[N]){8, 4, 0, 0, 0, 0});
    s.top_p = 0.93f; /* 18/20, 19/20 */
    check(&s, (double[N]){8, 4, 4, 2, 1, 0});
}

/* Top-p looks at what top-k left, scaled to 1; both look at what the temperature made. */
static void test_order_of_steps(void **state)
{
    (void)state;
    struct nib_sampling s = off();
    s.top_k = 2;
    s.top_p = 0.7f; /* 8/16, 12/16; of all it would be 16/20 */
    check(&s, (double[N]){8, 4, 0, 0, 0, 0});
    s = off();
    s.temperature = 0.5f; /* weights squared: 64, 16, 16, 4, 1, 1 of 102 */
    s.top_p = 0.65f;
    check(&s, (double[N]){64, 16, 0, 0, 0, 0});
    s.top_p = 1;
    s.min_p = 0.2f; /* 12.8 */
    check(&s, (double[N]){64, 16, 16, 0, 0, 0});
}

/* Repetition for what stood in the prompt too, frequency and presence only for what was generated. */
static void test_penalties(void **state)
{
    (void)state;
    static const float   logits[] = {2, 2, -2, -2, 2};
    static const int32_t token[] = {3, 0, 2, 1}, times[] = {1, 0, 0, 2};
    const struct nib_seen seen = {token, times, 4};
    static const double  after[] = {1, 1 - 2 * 0.5 - 0.25, -4, -4 - 0.5 - 0.25, 2};
    struct nib_sampling  s = off();
    double               p[5];
    int32_t              order[5];
    s.repetition = 2;
    s.frequency = 0.5f;
    s.presence = 0.25f;
    assert_true(nib_distribution(&s, logits, 5, &seen, p, order));
    for (int i = 0; i < 5; i++) /* all of these are exact as floats: only exp and log round */
        if (!(fabs(log(p[i] / p[4]) - (after[i] - 2)) < 1e-12))
            fail_msg("log p[%d] is %.17g from the unseen one's, wanted %.17g", i, log(p[i] / p[4]), after[i] - 2);
}

static void test_nothing_to_draw_from(void **state)
{
    (void)state;
    static const struct nib_seen none = {.n = 0};
    const struct nib_sampling    s = off();
    double                       p[2];
    int32_t                      order[2];
    assert_false(nib_distribution(&s, (float[]){1, NAN}, 2, &none, p, order));
    assert_false(nib_distribution(&s, (float[]){1, INFINITY}, 2, &none, p, order));
    assert_false(nib_distribution(&s, (float[]){-INFINITY, -INFINITY}, 2, &none, p, order));
    assert_true(nib_distribution(&s, (float[]){-INFINITY, -1000}, 2, &none, p, order));
    assert_true(p[0] == 0 && p[1] == 1);
}

static void test_draw(void **state)
{
    (void)state;
    static const double weight[] = {0, 1, 0, 3, 0};
    static const struct {
        double  uniform;
        int32_t id;
    } cases[] = {{0, 1}, {0.2499, 1}, {0.25, 3}, {0.9999, 3}, {1, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(nib_distribution_draw(weight, 5, cases[i].uniform), cases[i].id);
    assert_int_equal(nib_distribution_draw((double[]){0, 0}, 2, 0.5), -1);
}

static void test_log_softmax(void **state)
{
    (void)state;
    /* Logits as large as these would overflow exp. Differences of 1 and 2 are exact. */
    static const float logits[] = {1000, 1001, 999};
    const double       sum = 1 + exp(1) + exp(-1);
    assert_true(fabs(nib_log_softmax(logits, 3, 0) + log(sum)) < 1e-12);
    assert_true(fabs(nib_log_softmax(logits, 3, 1) - 1 + log(sum)) < 1e-12);
    assert_true(fabs(nib_log_softmax(logits, 3, 2) + 1 + log(sum)) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps), cmocka_unit_test(test_order_of_steps), cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_nothing_to_draw_from), cmocka_unit_test(test_draw), cmocka_unit_test(test_log_softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
