/* The indexer: scores against their definition, and which entries are taken. */
#include "number/kv_rows.h"
#include "unit/ref_rig.h"

enum { H = RIG_INDEX_HEADS, D = RIG_INDEX_DIM, TOP_K = 16, RATIO = 4, ROT = RIG_ROT };

static const enum nib_dtype dtypes[2] = {NIB_DTYPE_F32, NIB_DTYPE_BF16};

struct scene {
    struct nib_rope  rope;
    struct nib_store keys;
    float            key[RIG_SEQS][RIG_CTX][D]; /* as stored */
};

static void store_key(struct scene *s, int seq, int e, const float *x)
{
    struct rig_step st;
    rig_step(&st, (int[]){0, 0, 0}, (int[]){1, 1, 1});
    int      page = st.entry_page[seq * 8 + e / s->keys.page_rows];
    uint8_t *row = s->keys.base + (page * s->keys.page_rows + e % s->keys.page_rows) * s->keys.row_bytes;
    if (s->keys.format == NIB_ROW_F32) {
        nib_kv_f32_encode(x, D, row);
        nib_kv_f32_decode(row, D, s->key[seq][e]);
    } else if (s->keys.format == NIB_ROW_BF16) {
        nib_kv_bf16_encode(x, D, row);
        nib_kv_bf16_decode(row, D, s->key[seq][e]);
    } else {
        nib_kv_fp4_encode(x, D, row);
        nib_kv_fp4_decode(row, D, s->key[seq][e]);
    }
}

static struct scene *make_scene(struct rig *r, enum nib_row_format format)
{
    struct scene *s = rig_alloc(r, sizeof *s);
    s->rope = rig_rope(r);
    s->keys = rig_store(r, format, 128 / RATIO, D, 0);
    for (int q = 0; q < RIG_SEQS; q++) {
        for (int e = 0; e < 150; e++) {
            float x[D];
            model_fill(x, D, 0, &r->seed);
            store_key(s, q, e, x);
        }
    }
    return s;
}

struct result {
    struct rig_step st;
    struct nib_mat  q, weight, scores;
    int32_t        *selected, *n_selected;
};

/* Rows of three sequences; q and weight random unless given. */
static struct result run(struct rig *r, const struct scene *s, enum nib_dtype dtype, const int *first, const int *count,
                         const struct nib_mat *q, const struct nib_mat *weight, bool scores)
{
    struct result res;
    int           n = count[0] + count[1] + count[2];
    rig_step(&res.st, first, count);
    res.q = q ? *q : rig_random_mat(r, dtype, n, H * D);
    res.weight = weight ? *weight : rig_random_mat(r, dtype, n, H);
    res.scores = rig_mat(r, NIB_DTYPE_F32, n, 160);
    res.selected = rig_alloc(r, (size_t)n * TOP_K * 4);
    res.n_selected = rig_alloc(r, (size_t)n * 4);
    struct nib_index_select_args a = {.q = res.q, .weight = res.weight, .n_heads = H, .dim = D, .ratio = RATIO,
                                      .top_k = TOP_K, .scale = 0.1f, .rows = &res.st.rows, .rope = s->rope,
                                      .keys = s->keys, .selected = res.selected, .n_selected = res.n_selected,
                                      .scores = res.scores};
    if (!scores)
        a.scores.data = NULL;
    assert_int_equal(r->ops->index_select(r->s, &a), NIB_OK);
    return res;
}

static struct nib_mat copy_of(struct rig *r, const struct nib_mat *m)
{
    struct nib_mat c = rig_mat(r, m->dtype, m->rows, m->cols);
    for (int t = 0; t < m->rows; t++) {
        for (int i = 0; i < m->cols; i++)
            rig_set(&c, t, i, (float)rig_get(m, t, i));
    }
    return c;
}

static double maybe_bf16(double v, bool bf16)
{
    return bf16 ? (double)model_bf16((float)v) : v;
}

/* The query as the keys see it: rotated in fp32 steps, then Hadamard and FP4 for FP4 keys. */
static void expect_query(const struct scene *s, const struct nib_mat *q, int t, int h, int pos, float *x)
{
    bool bf16 = q->dtype == NIB_DTYPE_BF16;
    for (int i = 0; i < D; i++)
        x[i] = (float)rig_get(q, t, h * D + i);
    for (int i = 0; i < ROT / 2; i++) {
        float angle = (float)pos * s->rope.freq[i], *p = x + D - ROT + 2 * i;
        float c = (float)cos((double)angle), sn = (float)sin((double)angle), a = p[0], b = p[1];
        volatile float ac = a * c, bs = b * sn, as = a * sn, bc = b * c; /* each product rounded */
        p[0] = ac - bs;
        p[1] = as + bc;
    }
    for (int i = 0; i < D; i++)
        x[i] = (float)maybe_bf16((double)x[i], bf16);
    if (s->keys.format == NIB_ROW_FP4) {
        model_hadamard(x, D);
        for (int i = 0; i < D; i++)
            x[i] = (float)maybe_bf16((double)x[i], bf16);
        float y[D];
        model_fp4_sim(x, D, y);
        memcpy(x, y, sizeof y);
    }
}

static void scores_follow_the_formula(void **state)
{
    (void)state;
    static const enum nib_row_format formats[] = {NIB_ROW_F32, NIB_ROW_BF16, NIB_ROW_FP4};
    for (int round = 0; round < 6; round++) {
        struct rig r;
        rig_open(&r, 2);
        enum nib_dtype dtype = dtypes[round / 3];
        bool           bf16 = dtype == NIB_DTYPE_BF16;
        struct scene  *s = make_scene(&r, formats[round % 3]);
        struct nib_mat q = rig_random_mat(&r, dtype, 60, H * D), old = copy_of(&r, &q);
        struct result  res = run(&r, s, dtype, (int[]){0, 0, 400}, (int[]){30, 0, 30}, &q, NULL, true);
        for (int t = 0; t < 60; t++) {
            int   pos = res.st.pos[t], seq = t < 30 ? 0 : 2, visible = (pos + 1) / RATIO;
            float x[H][D];
            for (int h = 0; h < H; h++) {
                expect_query(s, &old, t, h, pos, x[h]);
                for (int i = 0; i < D; i++) /* in place */
                    assert_true((double)x[h][i] == rig_get(&res.q, t, h * D + i));
            }
            for (int c = 0; c < visible; c++) {
                double sum = 0, mag = 0;
                for (int h = 0; h < H; h++) {
                    double dot = 0, w = rig_get(&res.weight, t, h) * (double)0.1f;
                    for (int i = 0; i < D; i++) {
                        dot += (double)x[h][i] * (double)s->key[seq][c][i];
                        mag += fabs((double)x[h][i] * (double)s->key[seq][c][i] * w);
                    }
                    dot = maybe_bf16(dot, bf16);
                    sum += maybe_bf16(w, bf16) * (dot > 0 ? dot : 0);
                }
                rig_assert_near(rig_get(&res.scores, t, c), maybe_bf16(sum, bf16), mag, NIB_DTYPE_F32);
            }
            assert_true(isnan(rig_get(&res.scores, t, visible)));
        }
        rig_close(&r);
    }
}

/* The k best by a simple selection, ties to the lowest, against what the op lists, ascending. */
static void check_selection(const struct result *res, int t)
{
    int  visible = (res->st.pos[t] + 1) / RATIO, k = visible < TOP_K ? visible : TOP_K;
    bool taken[RIG_CTX] = {false};
    for (int i = 0; i < k; i++) {
        int best = -1;
        for (int c = 0; c < visible; c++) {
            if (!taken[c] && (best < 0 || rig_get(&res->scores, t, c) > rig_get(&res->scores, t, best)))
                best = c;
        }
        taken[best] = true;
    }
    assert_int_equal(res->n_selected[t], k);
    for (int c = 0, i = 0; i < TOP_K; i++) {
        while (i < k && !taken[c])
            c++;
        assert_int_equal(res->selected[t * TOP_K + i], i < k ? c++ : -1);
    }
}

static void takes_the_best(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        struct rig r;
        rig_open(&r, 1 + round % 3);
        struct scene *s = make_scene(&r, round % 2 ? NIB_ROW_FP4 : NIB_ROW_F32);
        struct result res =
            run(&r, s, dtypes[round / 2], (int[]){0, 40, 300}, (int[]){200, 100, 200}, NULL, NULL, true);
        for (int t = 0; t < 500; t++)
            check_selection(&res, t);
        rig_close(&r);
    }
}

/* Few distinct keys, so that most scores tie at the cut; all of them equal; zeros of both signs. */
static void ties_go_to_the_lowest(void **state)
{
    (void)state;
    for (int distinct = 1; distinct <= 5; distinct++) {
        struct rig r;
        rig_open(&r, 2);
        struct scene *s = make_scene(&r, NIB_ROW_F32);
        for (int e = TOP_K; e < 150; e++)
            store_key(s, 0, e, s->key[0][e * 7 % distinct]);
        for (int e = 0; e < TOP_K; e++)
            store_key(s, 0, e, s->key[0][e % distinct]);
        struct result res = run(&r, s, NIB_DTYPE_F32, (int[]){200, 0, 0}, (int[]){400, 0, 0}, NULL, NULL, true);
        for (int t = 0; t < 400; t++)
            check_selection(&res, t);
        for (int i = 0; distinct == 1 && i < TOP_K; i++)
            assert_int_equal(res.selected[399 * TOP_K + i], i);
        rig_close(&r);
    }
    struct rig r;
    rig_open(&r, 1);
    struct scene  *s = make_scene(&r, NIB_ROW_F32);
    struct nib_mat weight = rig_mat(&r, NIB_DTYPE_F32, 1, H), q = rig_random_mat(&r, NIB_DTYPE_F32, 1, H * D);
    for (int h = 0; h < H; h++)
        rig_set(&weight, 0, h, -1e-30f); /* sums below zero round to -0, without a positive dot product they are 0 */
    for (int i = 0; i < H * D; i++)
        rig_set(&q, 0, i, (float)rig_get(&q, 0, i) * 1e-20f);
    struct result res = run(&r, s, NIB_DTYPE_F32, (int[]){500, 0, 0}, (int[]){1, 0, 0}, &q, &weight, true);
    int           n_negative = 0;
    for (int c = 0; c < 125; c++)
        n_negative += signbit(rig_get(&res.scores, 0, c)) != 0;
    assert_true(n_negative > 20 && n_negative < 125);
    for (int i = 0; i < TOP_K; i++)
        assert_int_equal(res.selected[i], i);
    rig_close(&r);
}

/* Up to top_k visible entries all are listed, q stays as it was, and no score is needed. */
static void few_entries_need_no_scores(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 2);
    struct scene  *s = make_scene(&r, NIB_ROW_F32);
    struct nib_mat q = rig_random_mat(&r, NIB_DTYPE_F32, 68, H * D), old = copy_of(&r, &q);
    struct result  res = run(&r, s, NIB_DTYPE_F32, (int[]){0, 0, 0}, (int[]){68, 0, 0}, &q, NULL, false);
    for (int t = 0; t < 67; t++) {
        int visible = (t + 1) / RATIO;
        assert_int_equal(res.n_selected[t], visible);
        for (int i = 0; i < TOP_K; i++)
            assert_int_equal(res.selected[t * TOP_K + i], i < visible ? i : -1);
        rig_assert_same_row(&q, t, &old, t);
    }
    assert_int_equal(res.n_selected[67], TOP_K);
    rig_close(&r);
}

/* Cutting the rows changes no choice; a NaN key is taken, a NaN query disturbs no other row. */
static void cutting_and_poison(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 2);
    struct scene  *s = make_scene(&r, NIB_ROW_FP4);
    struct nib_mat q = rig_random_mat(&r, NIB_DTYPE_F32, 100, H * D);
    struct nib_mat weight = rig_random_mat(&r, NIB_DTYPE_F32, 100, H);
    rig_set(&q, 40, 3, NAN);
    struct nib_mat q1 = copy_of(&r, &q);
    struct result  res = run(&r, s, NIB_DTYPE_F32, (int[]){0, 300, 0}, (int[]){0, 100, 0}, &q, &weight, true);
    for (int t = 0; t < 100; t++) {
        struct nib_mat qt = rig_slice(&q1, t, 1), wt = rig_slice(&weight, t, 1);
        struct result one = run(&r, s, NIB_DTYPE_F32, (int[]){0, 300 + t, 0}, (int[]){0, 1, 0}, &qt, &wt, t % 2 == 0);
        assert_memory_equal(one.selected, res.selected + t * TOP_K, TOP_K * 4);
        for (int i = 0; i < 3; i++)
            nib_backend_ref.release(r.b, r.memory[--r.n_memory]);
        if (t != 40)
            check_selection(&res, t);
    }
    float x[D];
    model_fill(x, D, 0, &r.seed);
    x[0] = NAN;
    store_key(s, 1, 70, x);
    res = run(&r, s, NIB_DTYPE_F32, (int[]){0, 300, 0}, (int[]){0, 1, 0}, NULL, NULL, true);
    int n_poisoned = 0;
    for (int i = 0; i < TOP_K; i++)
        n_poisoned += res.selected[i] == 70;
    assert_int_equal(n_poisoned, 1);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_follow_the_formula),  cmocka_unit_test(takes_the_best),
        cmocka_unit_test(ties_go_to_the_lowest),      cmocka_unit_test(few_entries_need_no_scores),
        cmocka_unit_test(cutting_and_poison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
