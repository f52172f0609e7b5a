/* Choosing the number of drafts, on made-up machines: what rounds cost and how many guesses come true are given, the
 * clock is simulated, and the whole text's time is compared with that of never drafting and of the best fixed
 * number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/draft_auto.h"

static uint64_t g_seed;

static double random_unit(void)
{
    g_seed = g_seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(g_seed >> 11) * 0x1p-53;
}

/* A round with k drafts takes plain * (1 + per_draft * k), give or take `noise`; drafts are right with probability
 * `right`. */
struct machine {
    double plain, per_draft, right, noise;
};

struct run {
    double  seconds;
    int32_t tokens, last_k;
    double  n_rounds, n_drafted;
};

static void simulate(struct nib_draft_auto *a, const struct machine *m, int32_t n_tokens, struct run *r)
{
    *r = (struct run){0};
    while (r->tokens < n_tokens) {
        const int32_t k = nib_draft_auto_choose(a, a->max);
        int32_t accepted = 0;
        assert_in_range(k, 0, a->max);
        while (accepted < k && random_unit() < m->right)
            accepted++;
        const double seconds = m->plain * (1 + m->per_draft * k) * (1 + m->noise * (2 * random_unit() - 1));
        nib_draft_auto_record(a, k, accepted, seconds);
        r->seconds += seconds;
        r->tokens += accepted + 1;
        r->last_k = k;
        r->n_rounds++;
        r->n_drafted += k;
    }
}

/* Expected seconds a token with a fixed k. */
static double fixed(const struct machine *m, int32_t k)
{
    double tokens = 1, all = 1;
    for (int32_t i = 0; i < k; i++)
        tokens += all *= m->right;
    return m->plain * (1 + m->per_draft * k) / tokens;
}

static double best_fixed(const struct machine *m, int32_t max)
{
    double best = fixed(m, 0);
    for (int32_t k = 1; k <= max; k++)
        best = fixed(m, k) < best ? fixed(m, k) : best;
    return best;
}

static void test_against_fixed(void **state)
{
    (void)state;
    static const double per_draft[] = {0.02, 0.1, 0.3, 0.6, 1.0, 1.5}, right[] = {0, 0.2, 0.5, 0.8, 0.95, 1}, noise[] = {0, 0.2};
    for (size_t c = 0; c < 6; c++)
        for (size_t p = 0; p < 6; p++)
            for (size_t n = 0; n < 2; n++) {
                const struct machine m = {0.01, per_draft[c], right[p], noise[n]};
                struct nib_draft_auto a;
                struct run r;
                g_seed = c * 100 + p * 10 + n;
                nib_draft_auto_init(&a, 8);
                simulate(&a, &m, 4000, &r);
                const double got = r.seconds / r.tokens, plain = fixed(&m, 0), best = best_fixed(&m, 8);
                /* B50: never more than 5 % slower than without. */
                if (!(got <= 1.05 * plain))
                    fail_msg("cost %g a draft, %g right, noise %g: %g s a token, %g without drafts", m.per_draft,
                             m.right, m.noise, got, plain);
                if (!(got <= 1.15 * best))
                    fail_msg("cost %g a draft, %g right, noise %g: %g s a token, %g with the best fixed number",
                             m.per_draft, m.right, m.noise, got, best);
            }
}

/* Guesses that stop coming true turn drafts off, and back on when they do again. */
static void test_change(void **state)
{
    (void)state;
    struct machine m = {0.01, 0.2, 1, 0.05};
    struct nib_draft_auto a;
    struct run r;
    g_seed = 9;
    nib_draft_auto_init(&a, 4);
    simulate(&a, &m, 2000, &r);
    assert_true(r.n_drafted / r.n_rounds > 3.5);
    m.right = 0;
    simulate(&a, &m, 300, &r); /* long enough to learn it */
    simulate(&a, &m, 2000, &r);
    assert_true(r.n_drafted / r.n_rounds < 0.05);
    m.right = 1;
    simulate(&a, &m, 6000, &r);
    simulate(&a, &m, 1000, &r);
    assert_true(r.n_drafted / r.n_rounds > 3.5);
    /* A new text forgets what came true, not what steps cost. */
    m.right = 0;
    simulate(&a, &m, 500, &r);
    nib_draft_auto_restart(&a);
    m.right = 1;
    simulate(&a, &m, 100, &r);
    assert_true(r.n_drafted / r.n_rounds > 2);
}

static void test_limits(void **state)
{
    (void)state;
    struct nib_draft_auto a;
    const struct machine m = {0.01, 0.01, 1, 0};
    struct run r;
    nib_draft_auto_init(&a, 0);
    simulate(&a, &m, 100, &r);
    assert_true(r.n_drafted == 0);
    nib_draft_auto_init(&a, 8);
    simulate(&a, &m, 500, &r);
    for (int32_t limit = 0; limit <= 8; limit++)
        assert_in_range(nib_draft_auto_choose(&a, limit), 0, limit);
    assert_int_equal(nib_draft_auto_choose(&a, -3), 0);
}

/* One round that an interruption made long counts as twice a usual one: with the fifth cost's weight of a quarter at
 * most, the mean stays below 1.25 times. */
static void test_interruption(void **state)
{
    (void)state;
    struct nib_draft_auto a;
    nib_draft_auto_init(&a, 4);
    for (int i = 0; i < 5; i++)
        nib_draft_auto_record(&a, 0, 0, 0.01);
    nib_draft_auto_record(&a, 0, 0, 100);
    assert_true(a.cost[0] > 0.01 && a.cost[0] <= 0.01 * 1.25);
}

/* While drafts pay, a plain round is measured again every 256 rounds or so, since its cost grows with the context;
 * while they do not, tries become rare: gaps of 64, 128, ... 1024 and then always 1024, a round with drafts each. */
static void test_measuring_again(void **state)
{
    (void)state;
    struct nib_draft_auto a;
    struct run            r;
    double                n_plain = 0;
    nib_draft_auto_init(&a, 4);
    for (int i = 0; i < 10 * 257; i++) {
        const int32_t k = nib_draft_auto_choose(&a, 4);
        nib_draft_auto_record(&a, k, k, 0.01 * (1 + 0.1 * k));
        n_plain += k == 0 && i > 100;
    }
    assert_true(n_plain >= 9 && n_plain <= 11);
    nib_draft_auto_init(&a, 4);
    simulate(&a, &(struct machine){0.01, 1.5, 0, 0}, 20000, &r);
    /* Tries until the gap is 1024: 4 to know what a draft costs and 4 of doubling; (20000 - 960) / 1024 later. */
    assert_true(r.n_drafted >= 20 && r.n_drafted <= 4 + 4 + 19 + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_fixed),
        cmocka_unit_test(test_change),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_interruption),
        cmocka_unit_test(test_measuring_again),
    };
    return cmocka_run_group_tests_name("choosing drafts", tests, NULL, NULL);
}
