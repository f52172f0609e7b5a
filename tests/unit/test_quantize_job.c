/* Conversions of small checkpoints written here: exact casts at every spread of exponents, saturation and zeros,
 * outliers, broken sources, a destination that is not empty. */
#include "unit/quantize_rig.h"

/* ---- Exact casts ---- */

/* Two blocks a row at exponents k_low and k_high; returns blocks of 16 recoded. */
static uint64_t cast_spread(int k_low, int k_high, bool *exact)
{
    enum { ROWS = 16, COLS = 256 };
    static int      n;
    char            name[40], src[300], dst[300];
    uint8_t         codes[ROWS * COLS / 2], scales[ROWS * COLS / 32];
    for (int i = 0; i < ROWS * COLS / 2; i++)
        codes[i] = (uint8_t)(i * 37 + i / 7);
    for (int i = 0; i < ROWS * COLS / 32; i++)
        scales[i] = (uint8_t)((i % 3 == 0 ? k_low : k_high) + 127);
    const struct tensor t[] = {{"layers.0.ffn.experts.0.w2.weight", NIB_ST_I8, 2, {ROWS, COLS / 2}, codes},
                               {"layers.0.ffn.experts.0.w2.scale", NIB_ST_F8_E8M0, 2, {ROWS, COLS / 32}, scales}};
    (void)snprintf(name, sizeof name, "cast%d", n++);
    (void)snprintf(src, sizeof src, "%s/%s", g_root, name);
    (void)snprintf(dst, sizeof dst, "%s/%s-out", g_root, name);
    write_checkpoint(src, t, 2);
    struct nib_quantize_options o = options();
    struct nib_quantize_result  r;
    struct nib_error            err = {0};
    assert_int_equal(nib_quantize(src, dst, &o, &r, &err), NIB_OK);
    struct result q = open_result(dst, "layers.0.ffn.experts.0.w2");
    *exact = true;
    uint64_t recoded = 0;
    for (int64_t b = 0; b < ROWS * COLS / 16; b++) {
        bool same = true;
        for (int64_t i = b * 16; i < b * 16 + 16; i++) {
            const double want = e2m1(codes[i / 2] >> (i % 2 * 4) & 15) * ldexp(1, scales[i / 32] - 127), got = value(&q, i) * (double)q.g;
            same = same && want == got && (codes[i / 2] == q.codes[i / 2]);
            *exact = *exact && want == got;
        }
        recoded += !same;
        if (b % 2 == 1 && same)
            assert_int_equal(q.scales[b], q.scales[b - 1]);
        /* Only blocks below the window may differ. */
        if (!same)
            assert_true(scales[b / 2] - 127 < k_high - 17);
    }
    assert_int_equal(r.n_exact, *exact);
    if (k_high - k_low > 17)
        assert_true(r.n_recoded >= recoded);
    nib_checkpoint_close(q.c);
    return r.n_recoded;
}

static void test_b20_cast_by_spread(void **state)
{
    (void)state;
    static const struct {
        int low, high;
        bool exact;
    } cases[] = {{-8, -8, true}, {-16, -8, true}, {-25, -8, true}, {-26, -8, false}, {-48, -8, false}, {110, 127, true}, {127, 127, true},
                 {-126, -126, true}, {-127, -126, true}, {-127, 127, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool           exact;
        const uint64_t recoded = cast_spread(cases[i].low, cases[i].high, &exact);
        assert_int_equal(exact, cases[i].exact);
        /* A third of 128 blocks of 32 is low, rounded up: two of 16 each. */
        assert_int_equal(recoded, cases[i].exact ? 0 : 2 * ((128 + 2) / 3));
    }
}

/* ---- Encoding of BF16 matrices ---- */

#define N 256

static struct result encode(const char *name, const uint16_t *x, enum nib_quant_method method, struct nib_quantize_result *r)
{
    char src[300], dst[300];
    (void)snprintf(src, sizeof src, "%s/%s", g_root, name);
    (void)snprintf(dst, sizeof dst, "%s/%s-out", g_root, name);
    const struct tensor t[] = {{"layers.0.ffn.experts.0.w2.weight", NIB_ST_BF16, 2, {N, N}, x}};
    write_checkpoint(src, t, 1);
    struct nib_quantize_options o = options();
    struct nib_error            err = {0};
    o.method = method;
    assert_int_equal(nib_quantize(src, dst, &o, r, &err), NIB_OK);
    return open_result(dst, "layers.0.ffn.experts.0.w2");
}

static uint64_t g_seed = 1;

static double gaussian(void)
{
    double u[2];
    for (int i = 0; i < 2; i++) {
        g_seed = g_seed * 6364136223846793005u + 1442695040888963407u;
        u[i] = ((double)(g_seed >> 11) + 0.5) * 0x1p-53;
    }
    return sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1]);
}

static void test_b14_scales_saturate(void **state)
{
    (void)state;
    static uint16_t x[N * N];
    struct nib_quantize_result r;
    for (int i = 0; i < N * N; i++)
        x[i] = to_bf16((float)(gaussian() * 0.002));
    memset(x + 160, 0, 32); /* block 10 */
    x[77] = to_bf16(0.01f);
    struct result q = encode("b14a", x, NIB_QUANT_ABSMAX, &r);
    uint8_t       most = 0;
    for (int i = 0; i < N * N / 16; i++)
        most = q.scales[i] > most ? q.scales[i] : most;
    assert_int_equal(most, 0x7e);
    for (int i = 160; i < 176; i++)
        assert_true(value(&q, i) == 0);
    nib_checkpoint_close(q.c);

    for (int i = 0; i < N * N; i++)
        x[i] = to_bf16((float)(gaussian() * 1e37));
    x[5] = to_bf16(3e38f);
    q = encode("b14b", x, NIB_QUANT_AUTO, &r);
    assert_true(r.relative_mse > 0 && r.relative_mse < 0.03);
    nib_checkpoint_close(q.c);

    memset(x, 0, sizeof x);
    q = encode("b14c", x, NIB_QUANT_AUTO, &r);
    for (int i = 0; i < N * N; i++)
        assert_true(value(&q, i) == 0);
    assert_int_equal(r.n_exact, 1);
    nib_checkpoint_close(q.c);
}

/* Signal to noise, in dB, of all blocks but the first. */
static double snr(const uint16_t *x, const struct result *q)
{
    double signal = 0, noise = 0;
    for (int i = 16; i < N * N; i++) {
        const double v = (double)from_bf16(x[i]), e = v - value(q, i) * (double)q->g;
        signal += v * v;
        noise += e * e;
        assert_true(value(q, i) == 0 || (value(q, i) < 0) == (v < 0));
    }
    return 10 * log10(signal / noise);
}

static void test_b21_outlier(void **state)
{
    (void)state;
    static uint16_t x[N * N];
    struct nib_quantize_result r;
    static const float outlier[] = {0, 10, 1e3f, 1e5f};
    double plain = 0;
    for (int k = 0; k < 4; k++) {
        char name[20];
        (void)snprintf(name, sizeof name, "b21-%d", k);
        g_seed = 1;
        for (int i = 0; i < N * N; i++)
            x[i] = to_bf16((float)(gaussian() * 0.02));
        if (k > 0)
            x[3] = to_bf16(outlier[k]);
        struct result q = encode(name, x, NIB_QUANT_AUTO, &r);
        const double  db = snr(x, &q);
        if (k == 0)
            plain = db;
        if (k == 1) /* ratio of about 200: nothing is lost */
            assert_true(fabs(db - plain) < 1);
        if (k == 3)
            assert_non_null(strstr(g_warnings, "layers.0.ffn.experts.0.w2"));
        nib_checkpoint_close(q.c);
    }
}

/* ---- Broken sources ---- */

static void test_nan_and_truncation(void **state)
{
    (void)state;
    static uint16_t x[N * N];
    for (int i = 0; i < N * N; i++)
        x[i] = to_bf16(0.01f);
    x[777] = 0x7fc0;
    const struct tensor t[] = {{"layers.0.ffn.experts.0.w2.weight", NIB_ST_BF16, 2, {N, N}, x}};
    struct nib_quantize_options o = options();
    write_checkpoint(path_in("nan"), t, 1);
    expect_failure(path_in("nan"), path_in("nan-out"), &o, NIB_E_NUMERIC, "layers.0.ffn.experts.0.w2");
    x[777] = 0x7f80;
    write_checkpoint(path_in("inf"), t, 1);
    expect_failure(path_in("inf"), path_in("inf-out"), &o, NIB_E_NUMERIC, "layers.0.ffn.experts.0.w2");
    x[777] = 0;
    write_checkpoint(path_in("cut"), t, 1);
    assert_int_equal(truncate(path_in("cut/model.safetensors"), 100000), 0);
    expect_failure(path_in("cut"), path_in("cut-out"), &o, NIB_E_FORMAT, "truncated");
}

static void test_destination_is_respected(void **state)
{
    (void)state;
    struct nib_quantize_options o = options();
    assert_int_equal(mkdir(path_in("full"), 0777), 0);
    FILE *f = fopen(path_in("full/precious"), "w");
    assert_non_null(f);
    (void)fclose(f);
    expect_failure(TINY, path_in("full"), &o, NIB_E_ARGUMENT, "not empty");
    assert_int_equal(access(path_in("full/precious"), F_OK), 0);
    expect_failure(TINY, TINY, &o, NIB_E_ARGUMENT, "");
    o.include = "layers.*.ffn.gate";
    expect_failure(TINY, path_in("gate"), &o, NIB_E_ARGUMENT, "ffn.gate");
    o.include = NULL;
    o.exclude = "layers.0.ffn.experts.3.*";
    expect_failure(TINY, path_in("mixed"), &o, NIB_E_ARGUMENT, "share one format");
    o.exclude = "no.such.thing";
    expect_failure(TINY, path_in("typo"), &o, NIB_E_ARGUMENT, "no.such.thing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b20_cast_by_spread), cmocka_unit_test(test_b14_scales_saturate),      cmocka_unit_test(test_b21_outlier),
        cmocka_unit_test(test_nan_and_truncation), cmocka_unit_test(test_destination_is_respected),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
