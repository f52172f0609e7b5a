/* Sampling rules on logits made by hand, and the whole chain against a sort. */
#include "unit/ref_rig.h"

enum { V = 300 };

static const struct nib_sample_row neutral = {.temperature = 1, .top_p = 1, .min_p = 0, .top_k = 0, .repetition = 1,
                                              .presence = 0, .frequency = 0, .uniform = 0};

/* One row of n logits. */
static int32_t draw(struct rig *r, const float *logits, int n, struct nib_sample_row row, const int32_t *history,
                    const int32_t *times, float *logprob)
{
    int32_t token = -2;
    float   p;
    float  *copy = rig_alloc(r, (size_t)n * sizeof *copy);
    memcpy(copy, logits, (size_t)n * sizeof *copy);
    struct nib_mat         m = {copy, NIB_DTYPE_F32, 1, n, n};
    struct nib_sample_args a = {m, 1, &row, history, times, &token, logprob ? logprob : &p};
    assert_int_equal(r->ops->sample(r->s, &a), NIB_OK);
    assert_memory_equal(copy, logits, (size_t)n * sizeof *copy);
    nib_backend_ref.release(r->b, r->memory[--r->n_memory]);
    return token;
}

/* Which of n <= 16 ids come out as uniform runs over [0, 1): a bit each. */
static unsigned support(struct rig *r, const float *logits, int n, struct nib_sample_row row)
{
    unsigned seen = 0;
    for (int i = 0; i < 1000; i++) {
        row.uniform = (float)i / 1000;
        int32_t token = draw(r, logits, n, row, NULL, NULL, NULL);
        assert_true(token >= 0 && token < n);
        seen |= 1u << token;
    }
    return seen;
}

static void greedy(void **state)
{
    (void)state;
    struct rig            r;
    struct nib_sample_row row = neutral;
    rig_open(&r, 1);
    row.temperature = 0;
    row.uniform = 0.99f;
    row.top_k = 1;
    assert_int_equal(draw(&r, (const float[]){1, 5, 5, 2}, 4, row, NULL, NULL, NULL), 1);
    assert_int_equal(draw(&r, (const float[]){-1, -5, -0.5f, -0.5f}, 4, row, NULL, NULL, NULL), 2);
    assert_int_equal(draw(&r, (const float[]){-INFINITY, -INFINITY, -9}, 3, row, NULL, NULL, NULL), 2);
    assert_int_equal(draw(&r, (const float[]){-0.0f, 0.0f}, 2, row, NULL, NULL, NULL), 0);
    row.temperature = 0.9e-5f;
    assert_int_equal(draw(&r, (const float[]){1, 1.00001f}, 2, row, NULL, NULL, NULL), 1);
    rig_close(&r);
}

static void degenerate_logits(void **state)
{
    (void)state;
    struct rig            r;
    struct nib_sample_row row = neutral;
    float                 p;
    rig_open(&r, 1);
    for (int k = 0; k < 2; k++) {
        row.temperature = (float)k;
        assert_int_equal(draw(&r, (const float[]){1, NAN, 3}, 3, row, NULL, NULL, &p), -1);
        assert_true(isnan(p));
        assert_int_equal(draw(&r, (const float[]){-INFINITY, -INFINITY}, 2, row, NULL, NULL, &p), -1);
        assert_int_equal(draw(&r, (const float[]){1, INFINITY}, 2, row, NULL, NULL, &p), -1);
        assert_int_equal(draw(&r, (const float[]){3e38f, -3e38f}, 2, row, NULL, NULL, &p), 0);
        assert_true(p == 0);
    }
    rig_close(&r);
}

/* p = 1/2, 1/4, 1/8, 1/8 in a scattered order: the draw is the inverse of the cumulative sum over ascending ids. */
static void inverse_cdf_in_id_order(void **state)
{
    (void)state;
    struct rig            r;
    struct nib_sample_row row = neutral;
    const float           l2 = (float)log(2);
    const float           logits[5] = {-3 * l2, -l2, -INFINITY, -3 * l2, -2 * l2};
    const struct {
        float   uniform;
        int32_t token;
    } want[] = {{0, 0},       {0.1249f, 0}, {0.1251f, 1}, {0.6249f, 1}, {0.6251f, 3},
                {0.7499f, 3}, {0.7501f, 4}, {0.99999994f, 4}};
    rig_open(&r, 1);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        float p;
        row.uniform = want[i].uniform;
        assert_int_equal(draw(&r, logits, 5, row, NULL, NULL, &p), want[i].token);
        assert_true(fabs((double)p - (double)logits[want[i].token]) < 1e-6);
    }
    rig_close(&r);
}

/* A cumulative sum that is exactly the random number does not pass it. */
static void edges_belong_to_the_next(void **state)
{
    (void)state;
    struct rig            r;
    struct nib_sample_row row = neutral;
    rig_open(&r, 1);
    for (int i = 0; i < 4; i++) {
        row.uniform = (float)i / 4;
        assert_int_equal(draw(&r, (const float[]){0, 0, 0, 0}, 4, row, NULL, NULL, NULL), i);
    }
    rig_close(&r);
}

static void temperature_and_logprob(void **state)
{
    (void)state;
    struct rig            r;
    struct nib_sample_row row = neutral;
    float                 p;
    rig_open(&r, 1);
    /* At temperature 0.5 the odds 1 : e become 1 : e^2; the log-probability stays that of temperature 1. */
    row.temperature = 0.5f;
    double edge = 1 / (1 + exp(2));
    row.uniform = (float)(edge - 1e-6);
    assert_int_equal(draw(&r, (const float[]){0, 1}, 2, row, NULL, NULL, &p), 0);
    assert_true(fabs((double)p + log(1 + exp(1))) < 1e-6);
    row.uniform = (float)(edge + 1e-6);
    assert_int_equal(draw(&r, (const float[]){0, 1}, 2, row, NULL, NULL, &p), 1);
    assert_true(fabs((double)p - 1 + log(1 + exp(1))) < 1e-6);
    rig_close(&r);
}

static void cuts(void **state)
{
    (void)state;
    struct rig            r;
    struct nib_sample_row row = neutral;
    const float           l2 = (float)log(2);
    const float           tied[6] = {1, 3, 2, 2, 3, 2};
    const float           eighth[4] = {-3 * l2, -l2, -2 * l2, -3 * l2};
    rig_open(&r, 1);
    row.top_k = 1; /* ties at the border all stay */
    assert_int_equal(support(&r, tied, 6, row), 1 << 1 | 1 << 4);
    row.top_k = 3;
    assert_int_equal(support(&r, tied, 6, row), 0x3e);
    row.top_k = 100;
    assert_int_equal(support(&r, tied, 6, row), 0x3f);
    row = neutral;
    row.min_p = 0.3f; /* of the largest: 1/2 -> 0.15 */
    assert_int_equal(support(&r, eighth, 4, row), 1 << 1 | 1 << 2);
    row.min_p = 1;
    assert_int_equal(support(&r, eighth, 4, row), 1 << 1);
    row = neutral;
    row.top_p = 0.4f; /* the first always stays */
    assert_int_equal(support(&r, eighth, 4, row), 1 << 1);
    row.top_p = 0.6f;
    assert_int_equal(support(&r, eighth, 4, row), 1 << 1 | 1 << 2);
    row.top_p = 0.8f; /* of the two eighths the lower id */
    assert_int_equal(support(&r, eighth, 4, row), 1 << 0 | 1 << 1 | 1 << 2);
    row.top_p = 0.9f;
    assert_int_equal(support(&r, eighth, 4, row), 0xf);
    row.top_p = 0.7f; /* four equal ones */
    assert_int_equal(support(&r, (const float[]){0, 0, 0, 0}, 4, row), 7);
    row.top_p = 0;
    assert_int_equal(support(&r, (const float[]){0, 0, 0, 0}, 4, row), 1);
    /* top_p works on what top_k leaves: 2/3, 1/3. */
    row.top_k = 2;
    row.top_p = 0.66f;
    assert_int_equal(support(&r, eighth, 4, row), 1 << 1);
    row.top_p = 0.67f;
    assert_int_equal(support(&r, eighth, 4, row), 1 << 1 | 1 << 2);
    /* min_p looks at probabilities after temperature: odds 1 : 1/2 become 1 : 1/4. */
    row = neutral;
    row.min_p = 0.4f;
    assert_int_equal(support(&r, (const float[]){0, -l2}, 2, row), 3);
    row.temperature = 0.5f;
    assert_int_equal(support(&r, (const float[]){0, -l2}, 2, row), 1);
    rig_close(&r);
}

static void penalties(void **state)
{
    (void)state;
    struct rig            r;
    struct nib_sample_row row = neutral;
    const int32_t         history[] = {9, 9, 0, 1, 3}, times[] = {9, 9, 2, 0, 1};
    float                 p;
    rig_open(&r, 1);
    row.temperature = 0;
    row.history_start = 2;
    row.history_count = 3;
    /* Repetition counts the prompt too; positive logits are divided, negative multiplied. */
    row.repetition = 2;
    assert_int_equal(draw(&r, (const float[]){4, 4, 2.1f, 4}, 4, row, history, times, &p), 2);
    assert_true(fabs((double)p - (2.1 - log(3 * exp(4) + exp(2.1)))) < 1e-6); /* raw */
    assert_int_equal(draw(&r, (const float[]){4, 4, 1.9f, 4}, 4, row, history, times, &p), 0);
    assert_int_equal(draw(&r, (const float[]){-1, -1, -1.9f, -1}, 4, row, history, times, &p), 2);
    /* Presence: generated ids only, once. */
    row.repetition = 1;
    row.presence = 1;
    assert_int_equal(draw(&r, (const float[]){4, 3.5f, 0, 4}, 4, row, history, times, &p), 1);
    assert_int_equal(draw(&r, (const float[]){4, 2.9f, 0, 3.9f}, 4, row, history, times, &p), 0);
    /* Frequency: times how often generated. */
    row.presence = 0;
    row.frequency = 0.5f;
    assert_int_equal(draw(&r, (const float[]){4, 0, 0, 3.6f}, 4, row, history, times, &p), 3);
    assert_int_equal(draw(&r, (const float[]){4, 0, 0, 3.4f}, 4, row, history, times, &p), 0);
    /* All at once: 8 / 2 - 2 * 0.5 - 1 = 2. */
    row.repetition = 2;
    row.presence = 1;
    assert_int_equal(draw(&r, (const float[]){8, 0, 1.99f, 0}, 4, row, history, times, &p), 0);
    assert_int_equal(draw(&r, (const float[]){8, 0, 2.01f, 0}, 4, row, history, times, &p), 2);
    rig_close(&r);
}

struct candidate {
    double  z, p;
    int32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->z != y->z ? (x->z < y->z) - (x->z > y->z) : (x->id > y->id) - (x->id < y->id);
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* The chain by sorting; false where a decision is within rounding of going the other way. */
static bool expect(const float *logits, const struct nib_sample_row *row, const int32_t *history, const int32_t *times,
                   int32_t *token)
{
    struct candidate c[V];
    int              n = V, kept;
    double           sum = 0, total = 0, target;
    for (int i = 0; i < V; i++)
        c[i] = (struct candidate){(double)logits[i], 0, i};
    for (int i = row->history_start; i < row->history_start + row->history_count; i++) {
        struct candidate *h = &c[history[i]];
        h->z = h->z > 0 ? h->z / (double)row->repetition : h->z * (double)row->repetition;
        h->z -= (double)row->frequency * times[i];
        if (times[i] > 0)
            h->z -= (double)row->presence;
    }
    qsort(c, V, sizeof *c, by_rank);
    for (int i = V - 1; i >= 0; i--)
        c[i].z = (c[i].z - c[0].z) / (double)row->temperature;
    for (int i = 0; i < V; i++) {
        c[i].p = exp(c[i].z);
        if (fabs(c[i].p - (double)row->min_p) < 1e-12)
            return false;
    }
    while (c[n - 1].p < (double)row->min_p)
        n--;
    for (kept = row->top_k; row->top_k > 0 && kept < n && c[kept].z == c[row->top_k - 1].z; kept++)
        ;
    n = row->top_k > 0 && kept < n ? kept : n;
    for (int i = 0; i < n; i++)
        total += c[i].p;
    if (row->top_p < 1) {
        for (kept = 0; kept == 0 || (kept < n && sum < (double)row->top_p * total); kept++)
            sum += c[kept].p;
        if (fabs(sum - (double)row->top_p * total) < 1e-12 ||
            fabs(sum - c[kept - 1].p - (double)row->top_p * total) < 1e-12)
            return false;
        n = kept;
        total = sum;
    }
    qsort(c, (size_t)n, sizeof *c, by_id);
    target = (double)row->uniform * total;
    sum = 0;
    for (int i = 0; i < n; i++) {
        sum += c[i].p;
        *token = c[i].id;
        if (fabs(sum - target) < 1e-12)
            return false;
        if (sum > target)
            return true;
    }
    return true;
}

/* Random logits (some with few distinct values) and settings, many rows at once, at 1 and 3 threads. */
static void equals_a_sort(void **state)
{
    (void)state;
    enum { N = 120 };
    struct rig r[2];
    int32_t    token[2][N], n_checked = 0;
    float      logprob[2][N];
    rig_open(&r[0], 1);
    rig_open(&r[1], 3);
    uint64_t *seed = &r[0].seed;
    for (int round = 0; round < 10; round++) {
        struct nib_mat        logits = rig_mat(&r[0], NIB_DTYPE_F32, N, V);
        struct nib_sample_row row[N];
        int32_t               history[N * 4], times[N * 4];
        for (int t = 0; t < N; t++) {
            for (int i = 0; i < V; i++) {
                float v = 6 * model_uniform(seed);
                rig_set(&logits, t, i, t % 3 ? v : floorf(v) / 2);
            }
            row[t] = (struct nib_sample_row){
                .temperature = 0.3f + fabsf(model_uniform(seed)),
                .top_p = t % 2 ? fabsf(model_uniform(seed)) : 1,
                .min_p = t % 5 ? 0 : 0.2f * fabsf(model_uniform(seed)),
                .top_k = t % 4 ? 0 : (int32_t)(model_random(seed) % 60),
                .repetition = t % 7 ? 1 : 1.3f, .presence = t % 6 ? 0 : 0.4f, .frequency = t % 5 ? 0 : -0.2f,
                .uniform = 0.5f + 0.5f * model_uniform(seed), .history_start = t * 4, .history_count = t % 5};
            for (int i = 0; i < 4; i++) {
                history[t * 4 + i] = (int32_t)(model_random(seed) % 70) + i * 70;
                times[t * 4 + i] = (int32_t)(model_random(seed) % 4);
            }
        }
        for (int k = 0; k < 2; k++) {
            struct nib_sample_args a = {logits, N, row, history, times, token[k], logprob[k]};
            assert_int_equal(r[k].ops->sample(r[k].s, &a), NIB_OK);
        }
        assert_memory_equal(token[0], token[1], sizeof token[0]);
        assert_memory_equal(logprob[0], logprob[1], sizeof logprob[0]);
        for (int t = 0; t < N; t++) {
            int32_t      wanted;
            const float *l = (const float *)logits.data + t * logits.stride;
            if (!expect(l, &row[t], history, times, &wanted))
                continue;
            assert_int_equal(token[0][t], wanted);
            n_checked++;
        }
    }
    assert_true(n_checked > 10 * N * 9 / 10);
    rig_close(&r[0]);
    rig_close(&r[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy),
        cmocka_unit_test(degenerate_logits),
        cmocka_unit_test(inverse_cdf_in_id_order),
        cmocka_unit_test(edges_belong_to_the_next),
        cmocka_unit_test(temperature_and_logprob),
        cmocka_unit_test(cuts),
        cmocka_unit_test(penalties),
        cmocka_unit_test(equals_a_sort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
