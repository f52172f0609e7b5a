/* Row kernels of the quantiser: the AVX2 variant gives the bits of the portable one, over every BF16 value where that
 * can be enumerated; the portable one follows the formula; and the errors of the methods are those of the format's
 * published table. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/weight_rows.h"
#include "quantize/kernels_quant.h"

static uint64_t g_seed = 88172645463325252u;

static uint64_t draw(void)
{
    g_seed ^= g_seed << 13;
    g_seed ^= g_seed >> 7;
    g_seed ^= g_seed << 17;
    return g_seed;
}

static double uniform(void)
{
    return ((double)(draw() >> 11) + 0.5) * 0x1p-53;
}

static double gaussian(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static const struct nib_quant_kernels *fast(void)
{
    const struct nib_quant_kernels *k = nib_quant_kernels_find(false);
    if (k == &nib_quant_kernels_portable)
        skip();
    return k;
}

/* ---- Every BF16 magnitude against true divisions ---- */

static void encode_all_values(float g, uint8_t scale)
{
    enum { N = 32640, N_BLOCKS = N / 16 }; /* magnitudes below Inf */
    static uint16_t x[N];
    static uint8_t  scales[N_BLOCKS], a[N / 2], b[N / 2];
    for (int i = 0; i < N; i++)
        x[i] = (uint16_t)(i | (i % 3 == 0 ? 0x8000 : 0));
    memset(scales, scale, sizeof scales);
    const struct nib_quant_row r = {.bf16 = x, .n_blocks = N_BLOCKS, .g = g, .unit = 1};
    struct nib_quant_sums sa = {0}, sb = {0};
    nib_quant_kernels_portable.encode(&r, scales, a, &sa);
    fast()->encode(&r, scales, b, &sb);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(sa.saturated, sb.saturated);
}

static void test_encode_every_value(void **state)
{
    (void)state;
    for (int s = 0; s < 0x7f; s++) /* every scale under one odd global, then a spread of globals */
        encode_all_values(1.2345678e-4f, (uint8_t)s);
    for (int i = 0; i < 400; i++) {
        const uint32_t bits = (uint32_t)(draw() % 0x7f000000u) + 1;
        encode_all_values(nib_f32_from_bits(bits), (uint8_t)(draw() % 0x7f));
    }
    /* Products with the steps that end just beside a BF16 number, where a bound has to be found exactly: d * T for
     * every step T, a few places to either side. The scale of 1 makes d of g. */
    static const float step[] = {0.25f, 0.75f, 1.25f, 1.75f, 6.0f};
    for (int i = 0; i < 5 * 12 * 9; i++) {
        const float    target = nib_f32_from_bits((uint32_t)(0x3a00 + draw() % 0x400) << 16);
        const uint32_t near_by = nib_f32_bits(target / step[i % 5]) + (uint32_t)(i / 5 % 9) - 4;
        encode_all_values(nib_f32_from_bits(near_by), 0x38);
    }
    encode_all_values(nib_f32_from_bits(1), 1); /* s * g is 0 */
    encode_all_values(3e38f, 0x7e);             /* s * g is Inf */
    encode_all_values(0x1p-149f, 0x7e);
    encode_all_values(0x1p-126f, 0x38);
}

/* The portable encoder against thresholds in long double, written from the format's table: a quotient is what fp32
 * division gives. */
static void test_portable_is_the_formula(void **state)
{
    (void)state;
    enum { N = 256 };
    for (int round = 0; round < 2000; round++) {
        uint16_t x[N];
        float    f[N];
        uint8_t  scales[N / 16], codes[N / 2], want_scales[N / 16], want[N / 2];
        float    amax = 0;
        for (int i = 0; i < N; i++) {
            x[i] = nib_bf16_from_f32((float)(gaussian() * exp2((double)(round % 40) - 20)));
            f[i] = nib_bf16_to_f32(x[i]);
            amax = fabsf(f[i]) > amax ? fabsf(f[i]) : amax;
        }
        const float g = nib_nvfp4_global_scale(amax);
        const struct nib_quant_row r = {.bf16 = x, .n_blocks = N / 16, .g = g, .unit = 1};
        nib_quant_kernels_portable.choose(&r, NIB_QUANT_CHOOSE_ABSMAX, scales);
        struct nib_quant_sums sums = {0};
        nib_quant_kernels_portable.encode(&r, scales, codes, &sums);
        assert_int_equal(nib_nvfp4_weight_encode(f, 1, N, g, want, want_scales), NIB_OK);
        assert_memory_equal(scales, want_scales, sizeof scales);
        assert_memory_equal(codes, want, sizeof codes);
    }
}

/* ---- Variants agree ---- */

static void test_variants_agree(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        enum { N_MAX = 16 * 90 };
        static uint16_t x[N_MAX];
        static float    h[N_MAX], wide[N_MAX];
        static uint8_t  sa[N_MAX / 16], sb[N_MAX / 16], ca[N_MAX / 2], cb[N_MAX / 2];
        const int64_t   n_blocks = 1 + (int64_t)(draw() % 90), n = n_blocks * 16;
        const double    spread = (double)(round % 5) * 4;
        for (int64_t i = 0; i < n; i++) {
            x[i] = draw() % 40 == 0 ? 0 : nib_bf16_from_f32((float)(gaussian() * 0.02 * exp2(spread * (uniform() - 0.5))));
            h[i] = (float)uniform();
            if (i / 16 % 7 == 3)
                x[i] = 0;
        }
        struct nib_quant_row r = {.bf16 = x, .n_blocks = n_blocks, .unit = round % 3 ? 64 : 1, .weight = round % 2 ? h : NULL};
        for (int64_t i = 0; i < n; i++) /* more digits than BF16 has */
            wide[i] = nib_bf16_to_f32(x[i]) * (1 + (float)(draw() % 100) * 1e-4f);
        if (round % 7 == 6) {
            r.bf16 = NULL;
            r.f32 = wide;
        }
        const float amax = nib_quant_kernels_portable.absmax(&r);
        assert_true(amax == fast()->absmax(&r));
        r.g = (amax > 0 ? amax : 1) / (round % 4 == 3 ? 8 : 1536); /* too large a g: scales are subnormal and zero
                                                                      too */
        for (int how = 0; how < 3; how++) {
            struct nib_quant_sums ma = {0}, mb = {0}, mc = {0};
            nib_quant_kernels_portable.choose(&r, (enum nib_quant_choice)how, sa);
            fast()->choose(&r, (enum nib_quant_choice)how, sb);
            assert_memory_equal(sa, sb, (size_t)n_blocks);
            nib_quant_kernels_portable.encode(&r, sa, ca, &ma);
            fast()->encode(&r, sb, cb, &mb);
            assert_memory_equal(ca, cb, (size_t)n / 2);
            assert_memory_equal(&ma, &mb, sizeof ma);
            fast()->measure(&r, sa, ca, &mc);
            mc.saturated = ma.saturated;
            assert_memory_equal(&ma, &mc, sizeof ma);
        }
    }
}

static void test_fp8_every_code(void **state)
{
    (void)state;
    uint8_t  code[256 + 7];
    uint16_t a[256 + 7], b[256 + 7];
    for (int i = 0; i < 256 + 7; i++)
        code[i] = (uint8_t)(i % 256 & 0x7f) == 0x7f ? 0 : (uint8_t)i;
    for (int k = -117; k <= 119; k++) {
        nib_quant_kernels_portable.fp8_to_bf16(code, 263, k, a);
        fast()->fp8_to_bf16(code, 263, k, b);
        assert_memory_equal(a, b, sizeof a);
        for (int i = 0; i < 263; i++)
            assert_true((double)nib_bf16_to_f32(a[i]) == ldexp((double)nib_e4m3_to_f32(code[i]), k));
    }
}

/* ---- The table of errors by method ---- */

enum shape { GAUSSIAN, LAPLACE, STUDENT5, OUTLIERS };

static float draw_weight(enum shape s, int64_t column)
{
    if (s == LAPLACE)
        return (float)(-log(uniform()) * (draw() & 1 ? 1 : -1));
    if (s == STUDENT5) {
        double chi = 0;
        for (int i = 0; i < 5; i++) {
            const double z = gaussian();
            chi += z * z;
        }
        return (float)(gaussian() / sqrt(chi / 5));
    }
    return (float)(gaussian() * (s == OUTLIERS && column % 100 == 37 ? 20 : 1));
}

static double relative_mse(enum shape s, enum nib_quant_choice how)
{
    enum { ROWS = 512, COLS = 4096 };
    float   *x = malloc(sizeof *x * ROWS * COLS);
    uint8_t *scales = malloc(COLS / 16), *codes = malloc(COLS / 2);
    float    amax = 0;
    g_seed = 88172645463325252u;
    for (int64_t i = 0; i < (int64_t)ROWS * COLS; i++) {
        x[i] = draw_weight(s, i % COLS);
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    struct nib_quant_sums sums = {0};
    const float g = amax / (how == NIB_QUANT_CHOOSE_ABSMAX ? 2688.0f : 1536.0f);
    for (int64_t i = 0; i < ROWS; i++) {
        const struct nib_quant_row r = {.f32 = x + i * COLS, .n_blocks = COLS / 16, .g = g, .unit = 1};
        nib_quant_kernels_portable.choose(&r, how, scales);
        nib_quant_kernels_portable.encode(&r, scales, codes, &sums);
    }
    free(x);
    free(scales);
    free(codes);
    return sums.ee / sums.xx;
}

/* 512 x 4096 draws: a relative MSE scatters by about (2/1e6)^0.5 = 0.15 %, heavy tails by some more. */
static void test_published_errors(void **state)
{
    (void)state;
    static const double want[4][3] = {{9.05e-3, 7.55e-3, 6.59e-3}, {8.59e-3, 7.60e-3, 6.80e-3}, {8.53e-3, 7.51e-3, 6.74e-3},
                                      {8.23e-3, 7.78e-3, 7.58e-3}};
    for (int s = 0; s < 4; s++) {
        double got[3];
        for (int how = 0; how < 3; how++) {
            got[how] = relative_mse((enum shape)s, (enum nib_quant_choice)how);
            print_message("shape %d method %d: %.4e, published %.2e, ratio %.4f\n", s, how, got[how], want[s][how],
                          got[how] / want[s][how]);
            assert_true(fabs(got[how] / want[s][how] - 1) <= 0.02);
        }
        if (s == GAUSSIAN)
            assert_true(got[NIB_QUANT_CHOOSE_MSE] <= 0.75 * got[NIB_QUANT_CHOOSE_ABSMAX]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_every_value), cmocka_unit_test(test_portable_is_the_formula), cmocka_unit_test(test_variants_agree),
        cmocka_unit_test(test_fp8_every_code),     cmocka_unit_test(test_published_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
