/* Attention over scattered pages against a plain sum, its independence of how a prompt is cut, and the choice of
 * compressed entries. */
#include "number/kv_rows.h"
#include "unit/ref_rig.h"

enum { D = RIG_HEAD_DIM, H = RIG_HEADS, WINDOW = 20, TOP_K = 9 };

static const enum nib_dtype dtypes[2] = {NIB_DTYPE_F32, NIB_DTYPE_BF16};

/* Three sequences with random KV rows and entries in place. */
struct scene {
    int               ratio;
    struct nib_store  window, entries;
    struct nib_rope   rope;
    struct nib_mat    q; /* rows at rig_home */
    float            *sink;
    float             kv[RIG_SEQS][RIG_CTX][D], entry[RIG_SEQS][RIG_CTX][D]; /* as stored */
};

static void decode(enum nib_row_format format, const uint8_t *row, float *x)
{
    switch (format) {
    case NIB_ROW_F32: nib_kv_f32_decode(row, D, x); break;
    case NIB_ROW_BF16: nib_kv_bf16_decode(row, D, x); break;
    case NIB_ROW_FP8: nib_kv_fp8_decode(row, D, RIG_ROT, x); break;
    case NIB_ROW_NVFP4: nib_kv_nvfp4_decode(row, D, RIG_ROT, x); break;
    case NIB_ROW_FP4: nib_kv_fp4_decode(row, D, x); break;
    }
}

static void encode(enum nib_row_format format, const float *x, uint8_t *row)
{
    switch (format) {
    case NIB_ROW_F32: nib_kv_f32_encode(x, D, row); break;
    case NIB_ROW_BF16: nib_kv_bf16_encode(x, D, row); break;
    case NIB_ROW_FP8: nib_kv_fp8_encode(x, D, RIG_ROT, row); break;
    case NIB_ROW_NVFP4: nib_kv_nvfp4_encode(x, D, RIG_ROT, row); break;
    case NIB_ROW_FP4: nib_kv_fp4_encode(x, D, row); break;
    }
}

/* Fill one kind of rows of every sequence; what a reader will see goes to `seen`. */
static void fill(struct rig *r, const struct nib_store *s, bool window, int n, float (*seen)[RIG_CTX][D])
{
    struct rig_step st;
    rig_step(&st, (int[]){0, 0, 0}, (int[]){1, 1, 1});
    for (int q = 0; q < RIG_SEQS; q++) {
        for (int i = 0; i < n; i++) {
            int     page = (window ? st.window_page : st.entry_page)[q * 8 + i / s->page_rows];
            uint8_t *row = s->base + (page * s->page_rows + i % s->page_rows) * s->row_bytes;
            float    x[D];
            model_fill(x, D, 0, &r->seed);
            encode(s->format, x, row);
            decode(s->format, row, seen[q][i]);
        }
    }
}

static struct scene *make_scene(struct rig *r, enum nib_row_format format, enum nib_dtype dtype, int ratio)
{
    struct scene *s = rig_alloc(r, sizeof *s);
    s->ratio = ratio;
    s->rope = rig_rope(r);
    s->q = rig_random_mat(r, dtype, RIG_ROWS, H * D);
    s->sink = rig_random_floats(r, H, -2, 2);
    s->window = rig_store(r, format, 128, D, RIG_ROT);
    fill(r, &s->window, true, 300, s->kv);
    if (ratio > 0) {
        s->entries = rig_store(r, format, 128 / ratio, D, RIG_ROT);
        fill(r, &s->entries, false, 300 / ratio, s->entry);
    }
    return s;
}

/* One step of the scene; the rows' results go home. `pick` lists entries per home row, or is NULL. */
static void run(struct rig *r, const struct scene *s, const int *first, const int *count, const int32_t *pick,
                const int32_t *n_pick, int first_pos, struct nib_mat *home)
{
    struct rig_step st;
    int             n = count[0] + count[1] + count[2];
    rig_step(&st, first, count);
    st.rows.first_pos = first_pos;
    struct nib_mat q = rig_mat(r, s->q.dtype, n, H * D), o = rig_mat(r, s->q.dtype, n, H * D);
    int32_t       *selected = rig_alloc(r, (size_t)n * TOP_K * 4), *n_selected = rig_alloc(r, (size_t)n * 4);
    for (int i = 0, t = 0; i < RIG_SEQS; i++) {
        for (int k = 0; k < count[i]; k++, t++) {
            int at = rig_home(i, first[i] + k);
            for (int j = 0; j < H * D; j++)
                rig_set(&q, t, j, (float)rig_get(&s->q, at, j));
            for (int j = 0; pick && j < TOP_K; j++)
                selected[t * TOP_K + j] = pick[at * TOP_K + j];
            n_selected[t] = pick ? n_pick[at] : 0;
        }
    }
    struct nib_attend_args a = {.q = q, .sink = s->sink, .n_heads = H, .head_dim = D, .n_window = WINDOW,
                                .ratio = s->ratio, .top_k = TOP_K, .scale = 0.3f, .rows = &st.rows, .rope = s->rope,
                                .window = s->window, .entries = s->entries, .selected = pick ? selected : NULL,
                                .n_selected = pick ? n_selected : NULL, .o = o};
    assert_int_equal(r->ops->attend(r->s, &a), NIB_OK);
    for (int i = 0, t = 0; i < RIG_SEQS; i++) {
        for (int k = 0; k < count[i]; k++, t++) {
            for (int j = 0; j < H * D; j++)
                rig_set(home, rig_home(i, first[i] + k), j, (float)rig_get(&o, t, j));
        }
    }
    for (int i = 0; i < 4; i++)
        nib_backend_ref.release(r->b, r->memory[--r->n_memory]);
}

/* One row and head from the definition, rows taken backwards and the sink last. */
static void expect(const struct scene *s, int seq, int pos, int h, const int32_t *pick, int n_pick, int first_pos,
                   double *o, double *mag)
{
    const float *row[RIG_CTX * 2];
    double       score[RIG_CTX * 2], den;
    int          n = 0, first = pos - WINDOW + 1 < first_pos ? first_pos : pos - WINDOW + 1;
    for (int p = pos; p >= first; p--)
        row[n++] = s->kv[seq][p];
    for (int c = s->ratio ? (pick ? n_pick : (pos + 1) / s->ratio) - 1 : -1; c >= 0; c--)
        row[n++] = s->entry[seq][pick ? pick[c] : c];
    den = exp((double)s->sink[h]);
    for (int i = 0; i < D; i++)
        o[i] = mag[i] = 0;
    for (int j = 0; j < n; j++) {
        score[j] = 0;
        for (int i = 0; i < D; i++)
            score[j] += rig_get(&s->q, rig_home(seq, pos), h * D + i) * (double)row[j][i];
        score[j] = exp(score[j] * (double)0.3f);
        den += score[j];
    }
    for (int j = 0; j < n; j++) {
        for (int i = 0; i < D; i++) {
            o[i] += score[j] / den * (double)row[j][i];
            mag[i] += score[j] / den * fabs((double)row[j][i]);
        }
    }
    rig_rotate(&s->rope, o, D, pos - first_pos, -1);
}

/* Few roundings to fp32 of values up to mag, and of its partner in a rotated pair; then one to the row's type. */
static void check(const struct scene *s, const struct nib_mat *home, int seq, int pos, const int32_t *pick,
                  const int32_t *n_pick, int first_pos)
{
    double o[D], mag[D];
    int    at = rig_home(seq, pos);
    for (int h = 0; h < H; h++) {
        expect(s, seq, pos, h, pick ? pick + at * TOP_K : NULL, pick ? n_pick[at] : 0, first_pos, o, mag);
        for (int i = 0; i < D; i++)
            rig_assert_near(rig_get(home, at, h * D + i), o[i], (mag[i] + mag[i ^ 1]) * 0x1p23, home->dtype);
    }
}

static void equals_its_definition(void **state)
{
    (void)state;
    static const int ratio[] = {0, 4, 8, 128};
    for (int round = 0; round < 8; round++) {
        struct rig r;
        rig_open(&r, 2);
        struct scene *s = make_scene(&r, (enum nib_row_format)(round % 4), dtypes[round / 4], ratio[round % 4]);
        struct nib_mat home = rig_mat(&r, dtypes[round / 4], RIG_ROWS, H * D);
        run(&r, s, (int[]){0, 0, 100}, (int[]){30, 140, 50}, NULL, NULL, 0, &home);
        for (int i = 0; i < 30; i++)
            check(s, &home, 0, i, NULL, NULL, 0);
        for (int i = 0; i < 140; i += 7)
            check(s, &home, 1, i, NULL, NULL, 0);
        for (int i = 100; i < 150; i += 3)
            check(s, &home, 2, i, NULL, NULL, 0);
        rig_close(&r);
    }
}

static void selected_entries_and_first_position(void **state)
{
    (void)state;
    static int32_t pick[RIG_ROWS * TOP_K], n_pick[RIG_ROWS];
    struct rig     r;
    rig_open(&r, 2);
    struct scene  *s = make_scene(&r, NIB_ROW_BF16, NIB_DTYPE_F32, 4);
    struct nib_mat home = rig_mat(&r, NIB_DTYPE_F32, RIG_ROWS, H * D);
    for (int t = 0; t < RIG_ROWS; t++) {
        n_pick[t] = t % (TOP_K + 1);
        for (int j = 0; j < TOP_K; j++)
            pick[t * TOP_K + j] = j < n_pick[t] ? 7 * j + t % 7 : -1;
    }
    run(&r, s, (int[]){0, 0, 100}, (int[]){0, 0, 50}, pick, n_pick, 0, &home);
    for (int i = 100; i < 150; i++)
        check(s, &home, 2, i, pick, n_pick, 0);
    s->ratio = 0;
    run(&r, s, (int[]){1, 0, 0}, (int[]){40, 0, 0}, NULL, NULL, 1, &home);
    for (int i = 1; i < 41; i++)
        check(s, &home, 0, i, NULL, NULL, 1);
    rig_close(&r);
}

/* Pieces, neighbours and threads change no bit. */
static void cutting_changes_no_bit(void **state)
{
    (void)state;
    struct rig     r[3];
    struct nib_mat home[3];
    for (int k = 0; k < 3; k++) {
        rig_open(&r[k], k + 1);
        struct scene *s = make_scene(&r[k], NIB_ROW_FP8, NIB_DTYPE_F32, 4);
        home[k] = rig_mat(&r[k], NIB_DTYPE_F32, RIG_ROWS, H * D);
        if (k == 0)
            run(&r[k], s, (int[]){0, 0, 0}, (int[]){120, 90, 70}, NULL, NULL, 0, &home[k]);
        for (int at = 0; k == 1 && at < 120; at += 10)
            run(&r[k], s, (int[]){at, at, at}, (int[]){10, at < 90 ? 10 : 0, at < 70 ? 10 : 0}, NULL, NULL, 0,
                &home[k]);
        for (int at = 0; k == 2 && at < 280; at++) {
            int q = at < 120 ? 0 : at < 210 ? 1 : 2, p = at - (q == 0 ? 0 : q == 1 ? 120 : 210);
            run(&r[k], s, (int[]){p, p, p}, (int[]){q == 0, q == 1, q == 2}, NULL, NULL, 0, &home[k]);
        }
    }
    for (int q = 0; q < RIG_SEQS; q++) {
        for (int p = 0; p < 120 - 30 * q + (q == 2 ? 10 : 0); p++) {
            rig_assert_same_row(&home[0], rig_home(q, p), &home[1], rig_home(q, p));
            rig_assert_same_row(&home[0], rig_home(q, p), &home[2], rig_home(q, p));
        }
    }
    for (int k = 0; k < 3; k++)
        rig_close(&r[k]);
}

/* A NaN query poisons its row; a NaN KV row those queries whose window holds it. */
static void poison_goes_where_it_is_seen(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 2);
    struct scene   *s = make_scene(&r, NIB_ROW_FP8, NIB_DTYPE_F32, 128);
    struct nib_mat  home = rig_mat(&r, NIB_DTYPE_F32, RIG_ROWS, H * D);
    struct rig_step st;
    float           x[D];
    rig_step(&st, (int[]){0, 0, 0}, (int[]){1, 1, 1});
    model_fill(x, D, 0, &r.seed);
    x[3] = INFINITY;
    encode(NIB_ROW_FP8, x, s->window.base + (st.window_page[0] * 128 + 50) * s->window.row_bytes);
    rig_set(&s->q, rig_home(0, 30), 5 * D, NAN);
    run(&r, s, (int[]){0, 0, 0}, (int[]){100, 100, 0}, NULL, NULL, 0, &home);
    for (int p = 0; p < 100; p++) {
        if (p == 30 || (p >= 50 && p < 50 + WINDOW))
            rig_assert_nan_row(&home, rig_home(0, p));
        else
            rig_assert_finite_row(&home, rig_home(0, p));
        rig_assert_finite_row(&home, rig_home(1, p));
    }
    rig_close(&r);
}

/* A sink of -inf takes nothing, a huge one takes all, and neither makes NaN. */
static void extreme_sinks(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 1);
    struct scene  *s = make_scene(&r, NIB_ROW_F32, NIB_DTYPE_F32, 0);
    struct nib_mat home = rig_mat(&r, NIB_DTYPE_F32, RIG_ROWS, H * D);
    s->sink[0] = -INFINITY;
    s->sink[1] = 3e38f;
    run(&r, s, (int[]){0, 0, 0}, (int[]){1, 0, 0}, NULL, NULL, 0, &home);
    for (int i = 0; i < D; i++) {
        assert_true(rig_get(&home, 0, i) == (double)s->kv[0][0][i]);
        assert_true(rig_get(&home, 0, D + i) == 0);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_its_definition),       cmocka_unit_test(selected_entries_and_first_position),
        cmocka_unit_test(cutting_changes_no_bit),      cmocka_unit_test(poison_goes_where_it_is_seen),
        cmocka_unit_test(extreme_sinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
