/* Row-wise steps: norm, query norm and rotation, insertion of KV rows, joins and copies. */
#include "number/kv_rows.h"
#include "unit/ref_rig.h"

static const enum nib_dtype dtypes[2] = {NIB_DTYPE_F32, NIB_DTYPE_BF16};

/* The factor of a norm, in fp32 from the mean on. */
static float rms(const double *x, int n, float eps)
{
    double sum = 0;
    for (int i = n - 1; i >= 0; i--)
        sum += x[i] * x[i];
    float mean = (float)(sum / n) + eps;
    return (float)(1 / sqrt((double)mean));
}

/* a * b rounded to fp32; a sum or difference of two such products. */
static float product(double a, double b)
{
    return (float)(a * b);
}

/* Rotate the last RIG_ROT of d values with a rounding to fp32 after each of the six operations. */
static void rotate(const struct nib_rope *rope, float *x, int d, int pos)
{
    for (int i = 0; i < RIG_ROT / 2; i++) {
        double angle = (double)((float)pos * rope->freq[i]);
        double c = (double)(float)cos(angle), s = (double)(float)sin(angle);
        double a = (double)x[d - RIG_ROT + 2 * i], b = (double)x[d - RIG_ROT + 2 * i + 1];
        x[d - RIG_ROT + 2 * i] = (float)((double)product(a, c) - (double)product(b, s));
        x[d - RIG_ROT + 2 * i + 1] = (float)((double)product(a, s) + (double)product(b, c));
    }
}

static void norm_is_right(void **state)
{
    (void)state;
    struct rig r;
    for (int k = 0; k < 2; k++) {
        rig_open(&r, 2);
        struct nib_mat x = rig_random_mat(&r, dtypes[k], 4, 101);
        struct nib_act y = {.plain = rig_mat(&r, dtypes[k], 4, 101), .rows = 4, .cols = 101};
        float         *w = rig_random_floats(&r, 101, -2, 2);
        for (int i = 0; i < 101; i++)
            rig_set(&x, 3, i, 0);
        assert_int_equal(r.ops->norm(r.s, &(struct nib_norm_args){x, w, 1e-3f, y}), NIB_OK);
        for (int t = 0; t < 4; t++) {
            double v[101];
            for (int i = 0; i < 101; i++)
                v[i] = rig_get(&x, t, i);
            double s = (double)rms(v, 101, 1e-3f);
            for (int i = 0; i < 101; i++) {
                float wanted = product((double)product(v[i], s), (double)w[i]);
                assert_true(rig_get(&y.plain, t, i) == (double)(k ? model_bf16(wanted) : wanted));
            }
        }
        rig_close(&r);
    }
}

/* The quantised part comes from the plain values as stored; without a plain part, from fp32. */
static void norm_quantises_what_is_stored(void **state)
{
    (void)state;
    struct rig r;
    for (int k = 0; k < 3; k++) {
        rig_open(&r, 2);
        struct nib_mat x = rig_random_mat(&r, NIB_DTYPE_F32, 2, 200);
        float         *w = rig_random_floats(&r, 200, -2, 2), row[200], wanted[200], got[200];
        struct nib_act f32 = {.plain = rig_mat(&r, NIB_DTYPE_F32, 2, 200), .rows = 2, .cols = 200};
        struct nib_act y = rig_act_mat(&r, dtypes[k % 2], NIB_ACT_FP8, k < 2, 2, 200);
        assert_int_equal(r.ops->norm(r.s, &(struct nib_norm_args){x, w, 1e-6f, f32}), NIB_OK);
        assert_int_equal(r.ops->norm(r.s, &(struct nib_norm_args){x, w, 1e-6f, y}), NIB_OK);
        for (int t = 0; t < 2; t++) {
            for (int i = 0; i < 200; i++) {
                row[i] = (float)rig_get(&f32.plain, t, i);
                row[i] = k == 1 ? model_bf16(row[i]) : row[i];
                if (k < 2)
                    assert_true(rig_get(&y.plain, t, i) == (double)row[i]);
            }
            model_fp8_sim(row, 200, 128, wanted);
            for (int i = 0; i < 200; i++)
                got[i] = (float)ldexp(model_e4m3(y.codes[t * y.codes_stride + i]),
                                      y.scales[t * y.scales_stride + i / 128] - 127);
            assert_true(model_same(got, wanted, 200));
        }
        rig_close(&r);
    }
}

static void query_norm_and_rotation(void **state)
{
    (void)state;
    struct rig      r;
    struct rig_step st;
    enum { H = 3, D = 40 };
    for (int k = 0; k < 2; k++) {
        bool bf16 = k == 1;
        rig_open(&r, 2);
        rig_step(&st, (int[]){0, 0, 500}, (int[]){2, 0, 3});
        st.rows.first_pos = 1;
        st.pos[0] = 1;
        struct nib_mat q = rig_random_mat(&r, dtypes[k], 5, H * D), old = rig_mat(&r, dtypes[k], 5, H * D);
        for (int t = 0; t < 5; t++) {
            for (int i = 0; i < H * D; i++)
                rig_set(&old, t, i, (float)rig_get(&q, t, i));
        }
        struct nib_rope rope = rig_rope(&r);
        assert_int_equal(r.ops->q_rope(r.s, &(struct nib_q_rope_args){q, H, D, 1e-6f, &st.rows, rope}), NIB_OK);
        for (int t = 0; t < 5; t++) {
            for (int h = 0; h < H; h++) {
                double v[D], sum = 0;
                float  x[D];
                for (int i = 0; i < D; i++) {
                    v[i] = rig_get(&old, t, h * D + i);
                    sum += (double)model_bf16((float)(v[i] * v[i]));
                }
                float s = model_bf16((float)(1 / sqrt((double)model_bf16((float)(sum / D)) + 1e-6)));
                if (!bf16)
                    s = rms(v, D, 1e-6f);
                for (int i = 0; i < D; i++)
                    x[i] = bf16 ? model_bf16(product(v[i], (double)s)) : product(v[i], (double)s);
                rotate(&rope, x, D, st.pos[t] - 1);
                for (int i = 0; i < D; i++)
                    assert_true(rig_get(&q, t, h * D + i) == (double)(bf16 ? model_bf16(x[i]) : x[i]));
            }
        }
        rig_close(&r);
    }
}

/* What is stored is the row after norm, rotation (and bf16 between them), in the store's format, at its position's
 * page; a step of parts stores the same bytes; nothing else is touched. */
static void kv_rows_reach_their_pages(void **state)
{
    (void)state;
    enum { D = 96 };
    for (int round = 0; round < 8; round++) {
        enum nib_row_format format = (enum nib_row_format)(round % 4);
        enum nib_dtype      dtype = dtypes[round / 4];
        struct rig          r;
        struct rig_step     st;
        rig_open(&r, 2);
        struct nib_rope  rope = rig_rope(&r);
        float           *w = rig_random_floats(&r, D, -2, 2);
        struct nib_mat   kv = rig_random_mat(&r, dtype, 420, D);
        struct nib_store whole = rig_store(&r, format, 128, D, RIG_ROT), parts = rig_store(&r, format, 128, D, RIG_ROT);
        rig_step(&st, (int[]){0, 0, 90}, (int[]){260, 0, 160});
        struct nib_kv_insert_args a = {kv, w, 1e-6f, &st.rows, rope, whole};
        assert_int_equal(r.ops->kv_insert(r.s, &a), NIB_OK);
        for (int t = 0; t < 420; t++) {
            double v[D];
            float  x[D], wanted[D];
            for (int i = 0; i < D; i++)
                v[i] = rig_get(&kv, t, i);
            double s = (double)rms(v, D, 1e-6f);
            for (int i = 0; i < D; i++) {
                x[i] = product((double)product(v[i], s), (double)w[i]);
                x[i] = dtype == NIB_DTYPE_BF16 ? model_bf16(x[i]) : x[i];
            }
            rotate(&rope, x, D, st.pos[t]);
            for (int i = 0; i < D && dtype == NIB_DTYPE_BF16; i++)
                x[i] = model_bf16(x[i]);
            if (format == NIB_ROW_F32)
                memcpy(wanted, x, sizeof x);
            if (format == NIB_ROW_FP8)
                model_fp8_sim(x, D - RIG_ROT, 64, wanted);
            if (format == NIB_ROW_NVFP4)
                model_nvfp4_sim(x, D - RIG_ROT, wanted);
            for (int i = format == NIB_ROW_BF16 ? 0 : D - RIG_ROT; format != NIB_ROW_F32 && i < D; i++)
                wanted[i] = model_bf16(x[i]);
            int page = st.window_page[st.seq[t] * 8 + st.pos[t] / 128];
            const uint8_t *row = whole.base + (page * 128 + st.pos[t] % 128) * whole.row_bytes;
            float          got[D];
            if (format == NIB_ROW_F32)
                nib_kv_f32_decode(row, D, got);
            else if (format == NIB_ROW_BF16)
                nib_kv_bf16_decode(row, D, got);
            else if (format == NIB_ROW_FP8)
                nib_kv_fp8_decode(row, D, RIG_ROT, got);
            else
                nib_kv_nvfp4_decode(row, D, RIG_ROT, got);
            assert_true(model_same(got, wanted, D));
        }
        for (int begin = 0; begin < 260; begin += 77) {
            int n = 260 - begin < 77 ? 260 - begin : 77;
            rig_step(&st, (int[]){begin, 0, 0}, (int[]){n, 0, 0});
            a = (struct nib_kv_insert_args){rig_slice(&kv, begin, n), w, 1e-6f, &st.rows, rope, parts};
            assert_int_equal(r.ops->kv_insert(r.s, &a), NIB_OK);
        }
        rig_step(&st, (int[]){0, 0, 90}, (int[]){0, 0, 160});
        a = (struct nib_kv_insert_args){rig_slice(&kv, 260, 160), w, 1e-6f, &st.rows, rope, parts};
        assert_int_equal(r.ops->kv_insert(r.s, &a), NIB_OK);
        assert_memory_equal(whole.base, parts.base, (size_t)(RIG_PAGES * 128 * whole.row_bytes));
        rig_close(&r);
    }
}

static void kv_poison_stays_in_its_row(void **state)
{
    (void)state;
    enum { D = 96 };
    for (int format = 0; format < 4; format++) {
        struct rig      r;
        struct rig_step st;
        float           got[D];
        rig_open(&r, 2);
        struct nib_mat   kv = rig_random_mat(&r, NIB_DTYPE_F32, 3, D);
        struct nib_store store = rig_store(&r, (enum nib_row_format)format, 128, D, RIG_ROT);
        rig_set(&kv, 1, 5, NAN);
        rig_step(&st, (int[]){0, 0, 0}, (int[]){3, 0, 0});
        float *w = rig_random_floats(&r, D, 1, 2);
        assert_int_equal(
            r.ops->kv_insert(r.s, &(struct nib_kv_insert_args){kv, w, 1e-6f, &st.rows, rig_rope(&r), store}), NIB_OK);
        for (int t = 0; t < 3; t++) {
            const uint8_t *row = store.base + (st.window_page[0] * 128 + t) * store.row_bytes;
            switch (format) {
            case NIB_ROW_F32: nib_kv_f32_decode(row, D, got); break;
            case NIB_ROW_BF16: nib_kv_bf16_decode(row, D, got); break;
            case NIB_ROW_FP8: nib_kv_fp8_decode(row, D, RIG_ROT, got); break;
            default: nib_kv_nvfp4_decode(row, D, RIG_ROT, got); break;
            }
            for (int i = 0; i < D; i++)
                assert_int_equal(isnan(got[i]) != 0, t == 1);
        }
        rig_close(&r);
    }
}

static void join_and_copy(void **state)
{
    (void)state;
    struct rig r;
    for (int k = 0; k < 2; k++) {
        rig_open(&r, 2);
        struct nib_mat e = rig_random_mat(&r, dtypes[k], 3, 20), h = rig_random_mat(&r, dtypes[k], 3, 80);
        struct nib_mat old = rig_mat(&r, dtypes[k], 3, 80), dst = rig_mat(&r, dtypes[k], 4, 80);
        const int32_t  src_row[4] = {2, 0, -1, 1}, dst_row[4] = {0, 3, 1, -1};
        for (int t = 0; t < 3; t++) {
            for (int i = 0; i < 80; i++)
                rig_set(&old, t, i, (float)rig_get(&h, t, i));
        }
        assert_int_equal(r.ops->mtp_join(r.s, &(struct nib_mtp_join_args){e, h, 4}), NIB_OK);
        for (int t = 0; t < 3; t++) {
            for (int i = 0; i < 80; i++)
                rig_assert_near(rig_get(&h, t, i), rig_get(&old, t, i) + rig_get(&e, t, i % 20), 0, dtypes[k]);
        }
        assert_int_equal(r.ops->copy_rows(r.s, &(struct nib_copy_rows_args){h, dst, src_row, dst_row, 4}), NIB_OK);
        rig_assert_same_row(&dst, 0, &h, 2);
        rig_assert_same_row(&dst, 3, &h, 0);
        for (int i = 0; i < 83; i++)
            assert_true(isnan(rig_get(&dst, 1, i)) && isnan(rig_get(&dst, 2, i)));
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_is_right),
        cmocka_unit_test(norm_quantises_what_is_stored),
        cmocka_unit_test(query_norm_and_rotation),
        cmocka_unit_test(kv_rows_reach_their_pages),
        cmocka_unit_test(kv_poison_stays_in_its_row),
        cmocka_unit_test(join_and_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
