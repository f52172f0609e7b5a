/* The last positions of a context of 2^20 tokens, on ref and cpu: rotations by the fp32 product of position and
 * frequency, entries and pages where they belong, selection among all 262144 entries and attention over them.
 * Everything expected is computed here in double, from the angles' rule alone; the rule's alternative, a product in
 * double, is shown to differ visibly. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "model/config.h"

enum { CTX = 1 << 20, N_PAGES = CTX / NIB_PAGE_TOKENS, ROT = 64, HALF = ROT / 2, DIM = 128, HEADS = 2, ROWS = 128,
       TOP_K = 16 };
#define EPS 1e-6f

static const struct nib_backend_api *const apis[] = {&nib_backend_ref, &nib_backend_cpu};

/* One opened backend and a step of n rows that ends at the context's end. */
struct bed {
    const struct nib_backend_api *api;
    struct nib_backend           *b;
    struct nib_stream            *s;
    void                         *memory[64];
    int                           n_memory;
    uint64_t                      seed;
    struct nib_rows               rows;
    struct nib_rope               rope;
    float                         freq[HALF];
};

static void *take(struct bed *t, size_t bytes)
{
    assert_true(t->n_memory < 64);
    void *p = t->api->alloc(t->b, bytes);
    assert_non_null(p);
    return t->memory[t->n_memory++] = p;
}

static float draw(struct bed *t)
{
    t->seed = t->seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(t->seed >> 40) * 0x1p-23f - 1.0f;
}

static float *take_random(struct bed *t, size_t n)
{
    float *x = take(t, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = draw(t);
    return x;
}

static struct nib_mat mat(float *data, int32_t rows, int32_t cols)
{
    return (struct nib_mat){data, NIB_DTYPE_F32, rows, cols, cols};
}

/* Frequencies of compressed layers of the published models. */
static void published_freq(float *freq)
{
    struct nib_config c;
    memset(&c, 0, sizeof c);
    c.n_rot = ROT;
    c.compress_rope_theta = 160000;
    c.yarn = true;
    c.yarn_factor = 16;
    c.yarn_beta_fast = 32;
    c.yarn_beta_slow = 1;
    c.yarn_original = 65536;
    nib_rope_freq(&c, true, freq);
}

static struct bed open_bed(const struct nib_backend_api *api, int32_t n_rows)
{
    struct bed t = {.api = api, .seed = 5};
    const struct nib_backend_config c = {
        .dims = {.n_rows_max = ROWS, .n_seqs_max = 1, .n_ctx_max = CTX, .dim = DIM, .n_hc = 4, .n_heads = HEADS,
                 .head_dim = DIM, .n_rot = ROT, .q_rank = DIM, .n_groups = 1, .o_rank = DIM, .n_window = 128,
                 .n_index_heads = HEADS,
                 .index_dim = ROT, .index_top_k = TOP_K, .n_experts = 4, .top_k = 2, .n_inner = 32,
                 .n_inner_shared = 32, .vocab = 64},
        .n_threads = 2, .cpu_mask = ~0u};
    struct nib_error err;
    assert_int_equal(api->open(&c, &t.b, &err), NIB_OK);
    t.s = api->stream(t.b);
    int32_t *ints = take(&t, (size_t)(3 * n_rows + 3 + 2 * N_PAGES) * sizeof *ints);
    int32_t *token = ints, *pos = token + n_rows, *seq = pos + n_rows, *start = seq + n_rows, *slot = start + 2;
    int32_t *window = slot + 1, *entry = window + N_PAGES;
    for (int32_t i = 0; i < n_rows; i++)
        pos[i] = CTX - n_rows + i;
    start[1] = n_rows;
    /* Two pages of window rows are held, of which the last token sees the last one; the entries' pages lie in reverse.
     */
    for (int32_t i = 0; i < N_PAGES; i++) {
        window[i] = i >= N_PAGES - 2 ? N_PAGES - 1 - i : -1;
        entry[i] = N_PAGES - 1 - i;
    }
    t.rows = (struct nib_rows){.n_rows = n_rows, .n_seqs = 1, .token = token, .pos = pos, .seq = seq,
                               .seq_start = start, .slot = slot, .window_page = window, .entry_page = entry,
                               .page_stride = N_PAGES};
    published_freq(t.freq);
    float *freq = take(&t, sizeof t.freq);
    memcpy(freq, t.freq, sizeof t.freq);
    t.rope = (struct nib_rope){.freq = freq, .n_rot = ROT};
    return t;
}

static void close_bed(struct bed *t)
{
    while (t->n_memory > 0)
        t->api->release(t->b, t->memory[--t->n_memory]);
    t->api->close(t->b);
}

static struct nib_store store(struct bed *t, int32_t page_rows, int32_t n_pages, int32_t d)
{
    const int64_t row = nib_row_bytes(NIB_ROW_F32, d, ROT);
    return (struct nib_store){.base = take(t, (size_t)(n_pages * page_rows * row)),
                              .format = NIB_ROW_F32,
                              .page_rows = page_rows,
                              .row_bytes = row};
}

/* An entry's row, its pages in reverse. */
static float *entry_row(const struct nib_store *st, int32_t e)
{
    const int64_t page = N_PAGES - 1 - e / st->page_rows;
    return (float *)(void *)(st->base + (page * st->page_rows + e % st->page_rows) * st->row_bytes);
}

/* ---- What is right, in double ---- */

static void rotate(double *x, int32_t d, const float *freq, int32_t pos, double sign, bool product_in_double)
{
    for (int32_t i = 0; i < HALF; i++) {
        const float product = (float)pos * freq[i];
        const double angle = product_in_double ? (double)pos * (double)freq[i] : (double)product;
        double *pair = x + d - ROT + 2 * i;
        const double a = pair[0], b = pair[1], c = cos(angle), s = sign * sin(angle);
        pair[0] = a * c - b * s;
        pair[1] = a * s + b * c;
    }
}

static void normalise(double *x, int32_t d, const float *weight)
{
    double sum = 0;
    for (int32_t i = 0; i < d; i++)
        sum += x[i] * x[i];
    const double r = 1 / sqrt(sum / d + (double)EPS);
    for (int32_t i = 0; i < d; i++)
        x[i] *= r * (weight ? (double)weight[i] : 1);
}

/* Normed rows are below 8 here; a norm and a rotation round some ten times, each at most 2^-24 of that: 5e-6. */
static void assert_row(const float *got, const double *wanted, int32_t d, double tolerance)
{
    for (int32_t i = 0; i < d; i++)
        if (!(fabs((double)got[i] - wanted[i]) <= tolerance))
            fail_msg("channel %d is %.9g, wanted %.9g", (int)i, (double)got[i], wanted[i]);
}
#define NORM_TOLERANCE 5e-6

/* ---- Ops ---- */

static void check_q_rope(struct bed *t)
{
    float *q = take_random(t, (size_t)(t->rows.n_rows * HEADS * DIM)),
          *before = malloc((size_t)(t->rows.n_rows * HEADS * DIM) * 4);
    assert_non_null(before);
    memcpy(before, q, (size_t)(t->rows.n_rows * HEADS * DIM) * 4);
    assert_int_equal(t->api->ops->q_rope(t->s, &(struct nib_q_rope_args){
        .q = mat(q, t->rows.n_rows, HEADS * DIM), .n_heads = HEADS, .head_dim = DIM, .eps = EPS, .rows = &t->rows,
        .rope = t->rope}), NIB_OK);
    double apart = 0;
    for (int32_t i = 0; i < t->rows.n_rows * HEADS; i++) {
        double right[DIM], other[DIM];
        for (int32_t k = 0; k < DIM; k++)
            right[k] = (double)before[i * DIM + k];
        normalise(right, DIM, NULL);
        memcpy(other, right, sizeof right);
        rotate(right, DIM, t->freq, t->rows.pos[i / HEADS], 1, false);
        rotate(other, DIM, t->freq, t->rows.pos[i / HEADS], 1, true);
        for (int32_t k = 0; k < DIM; k++)
            apart = fmax(apart, fabs(right[k] - other[k]));
        assert_row(q + i * DIM, right, DIM, NORM_TOLERANCE);
    }
    /* Up to 1/32 of a radian, as fp32 numbers near 2^20 * 0.7 are 1/16 apart. */
    assert_true(apart > 0.01);
    free(before);
}

/* Window rows at the last 128 positions, and what the last one attends to: they, and 8192 entries of a 128:1 layer. */
static void check_window_and_attend(struct bed *t)
{
    const int32_t n = t->rows.n_rows, last = CTX - 1, n_entries = CTX / 128;
    const float *weight = take_random(t, DIM);
    float *kv = take_random(t, (size_t)(n * DIM)), *q = take_random(t, (size_t)(n * HEADS * DIM)),
          *sink = take_random(t, HEADS);
    float *o = take(t, (size_t)(n * HEADS * DIM) * 4);
    const struct nib_store window = store(t, NIB_PAGE_TOKENS, 2, DIM), entries = store(t, 1, N_PAGES, DIM);
    assert_int_equal(n, NIB_PAGE_TOKENS);
    assert_int_equal(t->api->ops->kv_insert(t->s, &(struct nib_kv_insert_args){
        .kv = mat(kv, n, DIM), .norm_weight = weight, .eps = EPS, .rows = &t->rows, .rope = t->rope,
        .window = window}), NIB_OK);
    for (int32_t i = 0; i < n; i++) {
        double right[DIM];
        for (int32_t k = 0; k < DIM; k++)
            right[k] = (double)kv[i * DIM + k];
        normalise(right, DIM, weight);
        rotate(right, DIM, t->freq, t->rows.pos[i], 1, false);
        assert_row((const float *)(const void *)window.base + i * DIM, right, DIM, NORM_TOLERANCE);
    }
    for (int32_t e = 0; e < n_entries; e++)
        for (int32_t k = 0; k < DIM; k++)
            entry_row(&entries, e)[k] = draw(t);
    const float scale = 0.25f;
    assert_int_equal(t->api->ops->attend(t->s, &(struct nib_attend_args){
        .q = mat(q, n, HEADS * DIM), .sink = sink, .n_heads = HEADS, .head_dim = DIM, .n_window = 128, .ratio = 128,
        .scale = scale, .rows = &t->rows, .rope = t->rope, .window = window, .entries = entries, .o = mat(o, n,
        HEADS * DIM)}), NIB_OK);
    for (int32_t h = 0; h < HEADS; h++) {
        const float *mine = q + ((n - 1) * HEADS + h) * DIM;
        double sum = exp((double)sink[h]), out[DIM] = {0};
        for (int32_t j = 0; j < n + n_entries; j++) {
            const float *row = j < n ? (const float *)(const void *)window.base + j * DIM : entry_row(&entries, j - n);
            double dot = 0;
            for (int32_t k = 0; k < DIM; k++)
                dot += (double)mine[k] * (double)row[k];
            const double p = exp(dot * (double)scale);
            sum += p;
            for (int32_t k = 0; k < DIM; k++)
                out[k] += p * (double)row[k];
        }
        for (int32_t k = 0; k < DIM; k++)
            out[k] /= sum;
        rotate(out, DIM, t->freq, last, -1, false);
        /* A mean of 8320 rows below 8, added up in fp32: at worst every addition rounds by 2^-24 of the sum's 8, half
         * of them the same way. Scores of up to 20 in fp32 are right to 2^-19, which their exponentials inherit. */
        assert_row(o + ((n - 1) * HEADS + h) * DIM, out, DIM, 1e-4);
    }
}

/* The entries that the last tokens complete: pooled from the step's own rows, rotated at the first position of their
 * window. */
static void check_compress(struct bed *t, int32_t ratio)
{
    const int32_t n = t->rows.n_rows, halves = ratio == 4 ? 2 : 1, cols = halves * DIM, e = CTX / ratio - 1;
    const float *ape = take_random(t, (size_t)(ratio * cols)), *weight = take_random(t, DIM);
    float *kv = take_random(t, (size_t)(n * cols)), *gate = take_random(t, (size_t)(n * cols));
    const struct nib_store entries = store(t, NIB_PAGE_TOKENS / ratio, N_PAGES, DIM);
    const int32_t n_ring = (ratio == 4 ? 8 : ratio) + 16;
    const struct nib_frontier frontier = {.kv = take(t, (size_t)(n_ring * cols) * 4),
                                          .score = take(t, (size_t)(n_ring * cols) * 4), .n_ring = n_ring,
                                          .slot_stride = (int64_t)n_ring * cols};
    assert_int_equal(t->api->ops->compress(t->s, &(struct nib_compress_args){
        .kv = mat(kv, n, cols), .gate = mat(gate, n, cols), .ape = ape, .norm_weight = weight, .eps = EPS,
        .ratio = ratio,
        .width = DIM, .overlap = ratio == 4, .rows = &t->rows, .rope = t->rope, .frontier = frontier,
        .entries = entries}), NIB_OK);
    double right[DIM];
    for (int32_t k = 0; k < DIM; k++) {
        double sum = 0;
        right[k] = 0;
        for (int32_t i = n - ratio * halves; i < n; i++) {
            const int32_t c = halves == 2 && i >= n - ratio ? DIM + k : k;
            const double p = exp((double)gate[i * cols + c] + (double)ape[t->rows.pos[i] % ratio * cols + c]);
            sum += p;
            right[k] += p * (double)kv[i * cols + c];
        }
        right[k] /= sum;
    }
    normalise(right, DIM, weight);
    rotate(right, DIM, t->freq, e * ratio, 1, false);
    /* Pooling rounds as often again, and the norm enlarges means of 128 values by about ten. */
    assert_row(entry_row(&entries, e), right, DIM, 1e-4);
}

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* The last token scores 262144 keys. */
static void check_select(struct bed *t)
{
    const int32_t n = t->rows.n_rows, n_keys = CTX / 4;
    float *q = take_random(t, (size_t)(n * HEADS * ROT)), *w = take_random(t, (size_t)(n * HEADS));
    int32_t *selected = take(t, (size_t)(n * TOP_K) * 4), *n_selected = take(t, (size_t)n * 4);
    const struct nib_store keys = store(t, NIB_PAGE_TOKENS / 4, N_PAGES, ROT);
    double *score = malloc(2 * (size_t)n_keys * sizeof *score), *sorted = score + n_keys, mine[HEADS][ROT];
    assert_non_null(score);
    for (int32_t c = 0; c < n_keys; c++)
        for (int32_t k = 0; k < ROT; k++)
            entry_row(&keys, c)[k] = draw(t);
    for (int32_t h = 0; h < HEADS; h++) {
        for (int32_t k = 0; k < ROT; k++)
            mine[h][k] = (double)q[h * ROT + k];
        rotate(mine[h], ROT, t->freq, CTX - 1, 1, false);
        w[h] = fabsf(w[h]) + 0.5f;
    }
    assert_int_equal(t->api->ops->index_select(t->s, &(struct nib_index_select_args){
        .q = mat(q, n, HEADS * ROT), .weight = mat(w, n, HEADS), .n_heads = HEADS, .dim = ROT, .ratio = 4,
        .top_k = TOP_K,
        .scale = 1, .rows = &t->rows, .rope = t->rope, .keys = keys, .selected = selected, .n_selected = n_selected}),
        NIB_OK);
    for (int32_t c = 0; c < n_keys; c++) {
        score[c] = 0;
        for (int32_t h = 0; h < HEADS; h++) {
            double dot = 0;
            for (int32_t k = 0; k < ROT; k++)
                dot += mine[h][k] * (double)entry_row(&keys, c)[k];
            score[c] += dot > 0 ? (double)w[h] * dot : 0;
        }
    }
    memcpy(sorted, score, (size_t)n_keys * sizeof *score);
    qsort(sorted, (size_t)n_keys, sizeof *sorted, descending);
    /* Sums of 128 products below 1 in fp32 are right to 1e-5 here; only scores closer than that could change places. */
    assert_true(sorted[TOP_K - 1] - sorted[TOP_K] > 1e-4);
    assert_int_equal(n_selected[0], TOP_K);
    for (int32_t i = 0; i < TOP_K; i++) {
        assert_true(selected[i] >= 0 && selected[i] < n_keys && (i == 0 || selected[i] > selected[i - 1]));
        assert_true(score[selected[i]] >= sorted[TOP_K - 1]);
    }
    free(score);
}

static void test_rows(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof apis / sizeof apis[0]; i++) {
        struct bed t = open_bed(apis[i], ROWS);
        check_q_rope(&t);
        check_window_and_attend(&t);
        check_compress(&t, 128);
        check_compress(&t, 4);
        close_bed(&t);
    }
}

static void test_select(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof apis / sizeof apis[0]; i++) {
        struct bed t = open_bed(apis[i], 1);
        check_select(&t);
        close_bed(&t);
    }
}

/* The published models' frequencies, pairs 0 to 15 as they are, 25 to 31 slowed by 16: the ends and the ramp. */
static void test_frequencies(void **unused)
{
    (void)unused;
    static const struct {
        int    i;
        double freq;
    } known[] = {{0, 1.0},           {1, 6.8765604e-01},  {15, 3.6355385e-03}, {16, 2.2656249e-03}, {20, 2.9697778e-04},
                 {24, 1.9531251e-05}, {25, 5.3723124e-06}, {31, 5.6805294e-07}};
    float freq[HALF];
    published_freq(freq);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_true(fabs((double)freq[known[i].i] / known[i].freq - 1) < 2e-7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_frequencies), cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_select)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
