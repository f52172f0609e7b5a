/* B49, B50: at temperatures above 0 drafts leave the distribution as it is. Texts of three tokens are drawn many times
 * with and without drafts and compared by chi-square; the first token's counts are also held to the softmax of the
 * prompt's own logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/draft.h"
#include "support/model_support.h"

#define N_DEPTH  3

static const char *g_backend = "cpu";
static int32_t g_ids[777];
static int32_t g_n_prompt; /* chosen where the next token is least certain */
static int32_t g_n_samples = 200;  /* 20,000 with NIB_TEST_LONG set: minutes */

static struct fixture open_engine(int32_t n_drafts)
{
    struct nib_options o;
    nib_options_init(&o);
    o.backend = g_backend;
    o.n_ctx = 1024;
    o.n_rows_max = 64;
    o.n_threads = 1;
    o.n_seqs_max = 2;
    o.n_drafts = n_drafts;
    return fixture_open(MODEL_NVFP4, &o);
}

static struct nib_seq *open_seq(struct fixture *f)
{
    struct nib_error err = {0};
    struct nib_seq *s = NULL;
    if (nib_seq_open(f->engine, &s, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return s;
}

struct text {
    int32_t n, token[256], stop_id, most; /* most: the callback ends the text there, which the drafts do not know; 0:
                                             never */
    bool    after_stop;
};

static bool on_token(void *user, int32_t token, float logprob)
{
    struct text *t = user;
    assert_true(logprob <= 0 && isfinite(logprob));
    t->after_stop = t->after_stop || (t->n > 0 && t->token[t->n - 1] == t->stop_id);
    t->token[t->n++] = token;
    return t->n != t->most;
}

static struct nib_generate_result run(struct fixture *f, struct nib_seq *seq, const int32_t *ids, int32_t n_ids,
                                      int32_t n_max, int32_t n_drafts, const struct nib_sampling *s, struct text *t)
{
    struct nib_error err = {0};
    struct nib_generate_result r;
    const struct nib_generate_args a = {.seq = seq, .prompt = ids, .n_prompt = n_ids, .n_max = n_max, .stop_id = &t->stop_id,
                                        .n_stop = t->stop_id >= 0, .sampling = *s, .n_drafts = n_drafts, .on_token = on_token,
                                        .user = t};
    t->n = 0;
    if (nib_generate(f->engine, &a, &r, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return r;
}

/* ---- Chi-square ---- */

/* Upper tail of the chi-square distribution by the Wilson-Hilferty approximation; at p = 0.001 it is right to 10 % from
 * 3 degrees of freedom on. */
static double chi_square_p(double x, int32_t degrees)
{
    const double k = degrees, z = (cbrt(x / k) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k));
    return 0.5 * erfc(z / sqrt(2));
}

struct chi {
    double  x, rest_a, rest_b;
    int32_t degrees;
};

/* Cells of both counts together below 20 go to one cell of the rest. */
static void chi_cell(struct chi *c, double a, double b)
{
    if (a + b < 20) {
        c->rest_a += a;
        c->rest_b += b;
    } else {
        c->x += (a - b) * (a - b) / (a + b);
        c->degrees++;
    }
}

/* Of two samples of the same size. */
static double two_sample_p(const int32_t *a, const int32_t *b, int32_t n)
{
    struct chi c = {0};
    for (int32_t i = 0; i < n; i++)
        chi_cell(&c, a[i], b[i]);
    if (c.rest_a + c.rest_b > 0) {
        c.x += (c.rest_a - c.rest_b) * (c.rest_a - c.rest_b) / (c.rest_a + c.rest_b);
        c.degrees++;
    }
    return c.degrees < 2 ? 1 : chi_square_p(c.x, c.degrees - 1);
}

/* Of a sample against probabilities. Expected counts below 5 go together. */
static double one_sample_p(const int32_t *count, const double *p, int32_t n, int32_t n_samples)
{
    struct chi c = {0};
    double wanted_rest = 0;
    for (int32_t i = 0; i < n; i++) {
        const double wanted = p[i] * n_samples;
        if (wanted < 5) {
            wanted_rest += wanted;
            c.rest_a += count[i];
        } else {
            c.x += (count[i] - wanted) * (count[i] - wanted) / wanted;
            c.degrees++;
        }
    }
    if (wanted_rest >= 1) {
        c.x += (c.rest_a - wanted_rest) * (c.rest_a - wanted_rest) / wanted_rest;
        c.degrees++;
    } else if (c.rest_a > 12) { /* Poisson with mean 1 exceeds that once in 10^10 */
        return 0;
    }
    return c.degrees < 2 ? 1 : chi_square_p(c.x, c.degrees - 1);
}

/* ---- B49 ---- */

/* One setting of the sampler and a way of drafting: the MTP block's own draws, or a hook's certain guesses, most of
 * them wrong. */
struct case_of {
    const char         *name;
    struct nib_sampling sampling;
    int32_t             n_drafts;
    bool                forced;
};

static void guess_likely(void *user, int32_t position, int32_t n, int32_t *token)
{
    const int32_t *likely = user;
    for (int32_t i = 0; i < n; i++)
        token[i] = likely[(position + i) % 4];
}

static void count(struct fixture *f, struct nib_seq *prefix, const struct case_of *c, int32_t n_drafts, uint64_t seed0,
                  int32_t eos, int32_t *counts, int32_t *n_eos, struct nib_generate_result *total)
{
    const size_t vocab = (size_t)f->vocab;
    struct text t = {.stop_id = eos, .most = N_DEPTH};
    *n_eos = 0;
    for (int32_t i = 0; i < g_n_samples; i++) {
        struct nib_sampling s = c->sampling;
        struct nib_error err = {0};
        struct nib_seq *seq = NULL;
        s.seed = seed0 + (uint64_t)i;
        assert_int_equal(nib_seq_fork(prefix, &seq, &err), NIB_OK);
        t.after_stop = false;
        const struct nib_generate_result r = run(f, seq, g_ids + g_n_prompt - 1, 1, 0, n_drafts, &s, &t);
        assert_false(t.after_stop);
        nib_seq_close(seq);
        for (int32_t d = 0; d < t.n; d++) {
            counts[(size_t)d * vocab + (size_t)t.token[d]]++;
            *n_eos += t.token[d] == eos;
        }
        total->n_drafted += r.n_drafted;
        total->n_accepted += r.n_accepted;
    }
}

/* The commonest second token of the plain texts stands in for the end of sentence, which this model rarely draws early:
 * as a stop token it lies among the drafts. */
static int32_t commonest(const int32_t *count, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = count[i] > count[best] ? i : best;
    return best;
}

static void check_case(struct fixture *f, struct nib_seq *prefix, const struct case_of *c, const double *first_p)
{
    const size_t vocab = (size_t)f->vocab;
    int32_t *plain = calloc(2 * N_DEPTH * vocab, sizeof *plain), *drafted = plain + N_DEPTH * vocab;
    struct nib_generate_result total = {0}, none = {0};
    int32_t likely[4] = {0}, n_eos = 0, n_eos_plain = 0;
    assert_non_null(plain);
    struct text probe = {.stop_id = -1};
    struct nib_sampling s = c->sampling;
    struct nib_error err = {0};
    for (int32_t i = 0; i < 4; i++) { /* guesses for the hook: what the sampler drew at that depth once */
        struct nib_seq *seq = NULL;
        s.seed = 77 + (uint64_t)i;
        assert_int_equal(nib_seq_fork(prefix, &seq, &err), NIB_OK);
        (void)run(f, seq, g_ids + g_n_prompt - 1, 1, N_DEPTH, 0, &s, &probe);
        likely[i] = probe.token[1];
        nib_seq_close(seq);
    }
    count(f, prefix, c, 0, 1000000, likely[0], plain, &n_eos_plain, &none);
    f->engine->drafts.force = c->forced ? guess_likely : NULL;
    f->engine->drafts.force_user = likely;
    count(f, prefix, c, c->n_drafts, 9000000, likely[0], drafted, &n_eos, &total);
    f->engine->drafts.force = NULL;
    for (int32_t d = 0; d < N_DEPTH; d++) {
        const double p = two_sample_p(plain + (size_t)d * vocab, drafted + (size_t)d * vocab, f->vocab);
        printf("%s: token %d: p = %.4f (commonest %d)\n", c->name, (int)d, p,
               (int)commonest(drafted + (size_t)d * vocab, f->vocab));
        if (!(p > 0.001))
            fail_msg("%s: token %d has another distribution with drafts, p = %g", c->name, (int)d, p);
    }
    if (first_p) {
        const double p = one_sample_p(drafted, first_p, f->vocab, g_n_samples);
        if (!(p > 0.001))
            fail_msg("%s: the first token's distribution is not the softmax's, p = %g", c->name, p);
    }
    /* Two binomial counts of one mean differ by more than 3.9 standard deviations once in 10,000. */
    const double spread = sqrt((double)n_eos + (double)n_eos_plain + 1);
    printf("%s: stopped %d times, %d without; %d of %d drafts accepted\n", c->name, (int)n_eos, (int)n_eos_plain,
           (int)total.n_accepted, (int)total.n_drafted);
    assert_true(fabs((double)n_eos - (double)n_eos_plain) < 3.9 * spread);
    assert_true(total.n_drafted > 0 && total.n_accepted > 0 && total.n_accepted < total.n_drafted);
    free(plain);
}

static double entropy_of(const float *logits, int32_t n)
{
    double entropy = 0, sum = 0;
    const double most = (double)logits[argmax_of(logits, n)];
    for (int32_t k = 0; k < n; k++)
        sum += exp((double)logits[k] - most);
    for (int32_t k = 0; k < n; k++)
        entropy -= exp((double)logits[k] - most) / sum * ((double)logits[k] - most - log(sum));
    return entropy;
}

/* The prompt length, of 4 to 60, behind which this text's next two tokens are least certain; and the logits there. */
static void choose_prompt(struct fixture *f, float *logits)
{
    enum { N = 62 };
    struct nib_error err = {0};
    struct nib_seq *seq = open_seq(f);
    int32_t row[N];
    const int32_t start[2] = {0, N};
    const size_t vocab = (size_t)f->vocab;
    double entropy[N], most = 0;
    float *all = malloc(N * vocab * sizeof *all);
    assert_non_null(all);
    for (int32_t i = 0; i < N; i++)
        row[i] = i;
    const struct nib_batch b = {.n_rows = N, .n_seqs = 1, .n_logits = N, .token = g_ids, .seq_start = start, .seq = &seq,
                                .logits_row = row};
    assert_int_equal(nib_step(f->engine, &b, all, NULL, &err), NIB_OK);
    for (int32_t i = 0; i < N; i++)
        entropy[i] = entropy_of(all + (size_t)i * vocab, f->vocab);
    for (int32_t i = 3; i + 1 < N; i++) {
        const double less = entropy[i] < entropy[i + 1] ? entropy[i] : entropy[i + 1];
        if (less > most) {
            most = less;
            g_n_prompt = i + 1;
        }
    }
    memcpy(logits, all + (size_t)(g_n_prompt - 1) * vocab, vocab * sizeof *logits);
    printf("prompt of %d tokens, entropy of the next two %.2f and %.2f nats\n", (int)g_n_prompt,
           entropy[g_n_prompt - 1], entropy[g_n_prompt]);
    assert_true(most > 0.5);
    free(all);
    nib_seq_close(seq);
}

static void test_distribution(void **state)
{
    (void)state;
    struct fixture f = open_engine(3);
    struct nib_seq *prefix = open_seq(&f);
    struct nib_error err = {0};
    const size_t vocab = (size_t)f.vocab;
    float *logits = malloc(vocab * sizeof *logits);
    double *p = malloc(vocab * sizeof *p), sum = 0;
    assert_true(logits && p);
    choose_prompt(&f, logits);
    const int32_t start[2] = {0, g_n_prompt - 1};
    const struct nib_batch b = {.n_rows = g_n_prompt - 1, .n_seqs = 1, .token = g_ids, .seq_start = start, .seq = &prefix};
    assert_int_equal(nib_step(f.engine, &b, NULL, NULL, &err), NIB_OK);
    const double most = (double)logits[argmax_of(logits, f.vocab)];
    for (size_t i = 0; i < vocab; i++)
        sum += p[i] = exp((double)logits[i] - most);
    for (size_t i = 0; i < vocab; i++)
        p[i] /= sum;

    struct case_of c = {.name = "temperature 1", .n_drafts = 2};
    nib_sampling_init(&c.sampling);
    check_case(&f, prefix, &c, p);
    if (getenv("NIB_TEST_LONG")) {
        c.name = "certain guesses";
        c.forced = true;
        check_case(&f, prefix, &c, p);
    }
    c = (struct case_of){.name = "temperature 1.5, top-k, top-p, min-p, penalties", .n_drafts = 3};
    nib_sampling_init(&c.sampling);
    c.sampling.temperature = 1.5f;
    c.sampling.top_k = 200;
    c.sampling.top_p = 0.9f;
    c.sampling.min_p = 0.001f;
    c.sampling.presence = 0.5f;
    c.sampling.repetition = 1.2f;
    check_case(&f, prefix, &c, NULL);
    free(logits);
    free(p);
    nib_seq_close(prefix);
    fixture_close(&f);
}

/* ---- The verdict alone ---- */

static double random_unit(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) * 0x1p-53;
}

/* Verify two drafts 20,000 times against fixed rows of logits. The first token must have the distribution of row 0
 * whatever the draft was drawn from; the second one, where the first draft stayed, that of row 1. */
static void test_verdict(void **state)
{
    (void)state;
    enum { N = 20000, K = 2, N_LIVE = 40 };
    struct fixture f = open_engine(K);
    struct nib_engine *e = f.engine;
    struct nib_sampling s;
    struct nib_past h;
    struct nib_error err = {0};
    const size_t vocab = (size_t)f.vocab;
    float *logits = malloc((K + 1) * vocab * sizeof *logits);
    double *p = calloc(K * vocab, sizeof *p);
    int32_t *counts = malloc(K * vocab * sizeof *counts), n_second, n_accepted;
    uint64_t seed = 5;
    assert_true(logits && p && counts);
    for (size_t i = 0; i < (K + 1) * vocab; i++)
        logits[i] = -INFINITY;
    for (int32_t row = 0; row <= K; row++)
        for (int32_t i = 0; i < N_LIVE; i++)
            logits[(size_t)row * vocab + (size_t)(i * 37 + row)] = (float)(3 * random_unit(&seed));
    for (int32_t row = 0; row < K; row++) {
        double sum = 0;
        for (size_t i = 0; i < vocab; i++)
            sum += p[(size_t)row * vocab + i] = exp((double)logits[(size_t)row * vocab + i]);
        for (size_t i = 0; i < vocab; i++)
            p[(size_t)row * vocab + i] /= sum;
    }
    memcpy(e->rank.work.logits.data, logits, (K + 1) * vocab * sizeof *logits);
    for (int kind = 0; kind < 4; kind++) { /* q: unlike p, half of it where p is 0; p itself; one id; a hook's certain
                                              id */
        memset(counts, 0, K * vocab * sizeof *counts);
        n_second = n_accepted = 0;
        e->drafts.drawn = kind != 3;
        for (int32_t row = 0; row < K; row++) {
            double *q = e->drafts.q + (size_t)row * vocab, sum = 0;
            for (size_t i = 0; i < vocab; i++)
                q[i] = kind == 1 ? p[(size_t)row * vocab + i] : kind == 2 ? i == 37 + (size_t)row : i % 37 < 2 ? random_unit(&seed) : 0;
            for (size_t i = 0; i < vocab; i++)
                sum += q[i];
            for (size_t i = 0; i < vocab; i++)
                q[i] /= sum;
        }
        for (int32_t n = 0; n < N; n++) {
            struct nib_verdict v;
            nib_sampling_init(&s);
            s.seed = (uint64_t)n;
            nib_past_start(&h, e, &s);
            for (int32_t row = 0; row < K; row++)
                e->drafts.token[row] = kind == 3 ? 37 * 5 + row
                                                 : nib_distribution_draw(e->drafts.q + (size_t)row * vocab, f.vocab,
                                                                         random_unit(&seed));
            assert_int_equal(nib_draft_verify(e, &s, &h, 100, K, &v, &err), NIB_OK);
            counts[v.n_accepted > 0 ? e->drafts.token[0] : v.next]++;
            n_accepted += v.n_accepted;
            if (v.n_accepted > 0) {
                counts[vocab + (size_t)(v.n_accepted > 1 ? e->drafts.token[1] : v.next)]++;
                n_second++;
            }
        }
        const double p0 = one_sample_p(counts, p, f.vocab, N), p1 = one_sample_p(counts + vocab, p + vocab, f.vocab, n_second);
        printf("q of kind %d: p = %.4f and %.4f; %d of %d drafts accepted\n", kind, p0, p1, (int)n_accepted,
               N + n_second);
        assert_true(p0 > 0.001);
        assert_true(p1 > 0.001);
        if (kind == 1)
            assert_int_equal(n_accepted, K * N);
    }
    free(logits);
    free(p);
    free(counts);
    fixture_close(&f);
}

/* The same seed gives the same text, drafts and all, and another number of drafts another text of the same
 * distribution. */
static void test_seed(void **state)
{
    (void)state;
    struct fixture f = open_engine(4);
    struct nib_sampling s;
    struct text t[3] = {{.stop_id = -1}, {.stop_id = -1}, {.stop_id = -1}};
    nib_sampling_init(&s);
    s.seed = 12345;
    for (int i = 0; i < 3; i++) {
        struct nib_seq *seq = open_seq(&f);
        s.seed += i == 2;
        (void)run(&f, seq, g_ids, 40, 60, 3, &s, &t[i]);
        nib_seq_close(seq);
    }
    assert_int_equal(t[0].n, t[1].n);
    assert_memory_equal(t[0].token, t[1].token, (size_t)t[0].n * sizeof(int32_t));
    assert_memory_not_equal(t[0].token, t[2].token, 60 * sizeof(int32_t));
    fixture_close(&f);
}

/* B50: drafts are drawn as the text is, so a temperature of 1 costs less than half of the acceptance. */
static void test_acceptance(void **state)
{
    (void)state;
    struct fixture f = open_engine(2);
    double share[3];
    static const float temperature[] = {0, 0.6f, 1};
    for (int i = 0; i < 3; i++) {
        struct nib_sampling s;
        struct text t = {.stop_id = -1};
        int32_t drafted = 0, accepted = 0;
        nib_sampling_init(&s);
        s.temperature = temperature[i];
        s.top_p = 0.95f;
        for (int32_t k = 0; k < 2; k++) {
            struct nib_seq *seq = open_seq(&f);
            s.seed = (uint64_t)k;
            const struct nib_generate_result r = run(&f, seq, g_ids + 20 * k, 200, 60, 2, &s, &t);
            drafted += r.n_drafted;
            accepted += r.n_accepted;
            nib_seq_close(seq);
        }
        share[i] = (double)accepted / (double)drafted;
        printf("temperature %g: %d of %d drafts accepted\n", (double)temperature[i], (int)accepted, (int)drafted);
    }
    assert_true(share[1] >= 0.5 * share[0]);
    assert_true(share[2] >= 0.5 * share[0]);
    fixture_close(&f);
}

/* With an argument, the tests whose names match it. */
/* FILTER and BACKEND: the tests run on that backend instead; for cards, which make check has none of. */
int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (argc > 2)
        g_backend = argv[2];
    const struct CMUnitTest tests[] = {
        {"B49 distribution", test_distribution, NULL, NULL, NULL},
        {"B49 verdict", test_verdict, NULL, NULL, NULL},
        {"seed", test_seed, NULL, NULL, NULL},
        {"B50 acceptance", test_acceptance, NULL, NULL, NULL},
    };
    if (getenv("NIB_TEST_LONG"))
        g_n_samples = 20000;
    struct nib_checkpoint *goldens = goldens_open();
    int32_t *ids = golden_copy(golden_find(goldens, "ids.777"));
    memcpy(g_ids, ids, sizeof g_ids);
    free(ids);
    nib_checkpoint_close(goldens);
    return cmocka_run_group_tests_name("sampled drafts", tests, NULL, NULL);
}
