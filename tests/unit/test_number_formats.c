/* Every code of every format, and encoders against a search over all codes. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "unit/number_model.h"

enum { N_RANDOM = 400000 };

static void decodes_every_code(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 256; c++) {
        float v = nib_e4m3_to_f32((uint8_t)c);
        if ((c & 127u) == 127u) {
            assert_true(isnan(v));
            continue;
        }
        assert_true((double)v == model_e4m3(c));
        assert_int_equal(signbit(v) != 0, c >> 7);
    }
    assert_true(nib_e4m3_to_f32(0x7e) == 448.0f && nib_e4m3_to_f32(1) == 0x1p-9f);
    for (uint32_t c = 0; c < 16; c++) {
        assert_true((double)nib_e2m1_to_f32(c) == model_e2m1(c));
        assert_int_equal(signbit(nib_e2m1_to_f32(c)) != 0, c >> 3);
        assert_true(nib_e2m1_to_f32(c | 0xf0u) == nib_e2m1_to_f32(c));
    }
    for (uint32_t c = 0; c < 255; c++)
        assert_true((double)nib_e8m0_to_f32((uint8_t)c) == ldexp(1, (int)c - 127));
    assert_true(isnan(nib_e8m0_to_f32(255)));
}

static void bf16_holds_every_code(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 65536; c++) {
        float v = nib_bf16_to_f32((uint16_t)c);
        if ((c & 0x7fffu) > 0x7f80u) {
            assert_true(isnan(v));
            assert_true(isnan(nib_bf16_round(v)));
            continue;
        }
        if ((c & 0x7fffu) == 0x7f80u)
            assert_true(isinf(v));
        else
            assert_true((double)v == model_minifloat(c, 8, 7, 127));
        assert_int_equal(nib_bf16_from_f32(v), c);
    }
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < N_RANDOM; i++) {
        float v = model_any_finite(&seed);
        float wanted = model_bf16(v);
        assert_true(nib_bf16_round(v) == wanted);
        assert_int_equal(signbit(nib_bf16_round(v)) != 0, signbit(v) != 0);
    }
    /* Ties between each code and the next, and both neighbours of the tie. */
    for (uint32_t c = 0; c < 0x7f80u; c++) {
        float tie = nib_f32_from_bits(c << 16 | 0x8000u);
        assert_int_equal(nib_bf16_from_f32(tie), c + c % 2);
        assert_int_equal(nib_bf16_from_f32(nextafterf(tie, 0)), c);
        assert_int_equal(nib_bf16_from_f32(nextafterf(tie, INFINITY)), c + 1);
        assert_int_equal(nib_bf16_from_f32(-tie), 0x8000u + c + c % 2);
    }
    assert_true(isinf(nib_bf16_round(FLT_MAX)));
    assert_true(isnan(nib_bf16_round(nib_f32_from_bits(0x7f800001u))));
    assert_true(isnan(nib_bf16_round(nib_f32_from_bits(0xffffffffu))));
}

/* Both encoders at v and its neighbours, both signs, against the search. */
static void check_around(float v)
{
    const float at[3] = {v, nextafterf(v, 0), nextafterf(v, INFINITY)};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(nib_e4m3_from_f32(at[i]), model_e4m3_encode((double)at[i]));
        assert_int_equal(nib_e4m3_from_f32(-at[i]), model_e4m3_encode(-(double)at[i]));
        assert_int_equal(nib_e2m1_from_f32(at[i]), model_e2m1_encode((double)at[i]));
        assert_int_equal(nib_e2m1_from_f32(-at[i]), model_e2m1_encode(-(double)at[i]));
    }
}

static void small_encoders_round_to_nearest_even(void **state)
{
    (void)state;
    uint64_t seed = 2;
    for (uint32_t c = 0; c < 126; c++) {
        check_around((float)model_e4m3(c));
        check_around((float)((model_e4m3(c) + model_e4m3(c + 1)) / 2));
    }
    for (uint32_t c = 0; c < 7; c++)
        check_around((float)((model_e2m1(c) + model_e2m1(c + 1)) / 2));
    const float hostile[] = {0,      448,    449, 463.99f, 464, 465,     480,       512,
                             1e30f,  FLT_MAX, 6,  7,       1e9f, FLT_MIN, FLT_TRUE_MIN, 0x1p-10f};
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        check_around(hostile[i]);
    for (int i = 0; i < N_RANDOM; i++) {
        float v = i % 4 ? ldexpf(model_uniform(&seed), (int)(model_random(&seed) % 24) - 13) : model_any_finite(&seed);
        assert_int_equal(nib_e4m3_from_f32(v), model_e4m3_encode((double)v));
        assert_int_equal(nib_e2m1_from_f32(v), model_e2m1_encode((double)v));
    }
    assert_int_equal(nib_e4m3_from_f32(INFINITY), 0x7e);
    assert_int_equal(nib_e4m3_from_f32(-INFINITY), 0xfe);
    assert_int_equal(nib_e4m3_from_f32(NAN), 0x7f);
    assert_int_equal(nib_e4m3_from_f32(nib_f32_from_bits(0x7f800001u)), 0x7f);
    assert_int_equal(nib_e2m1_from_f32(INFINITY), 7);
    assert_int_equal(nib_e2m1_from_f32(NAN) & 7, 7);
}

/* The ties as the specification lists them. */
static void e2m1_ties(void **state)
{
    (void)state;
    const float tie[][2] = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2}, {3.5f, 4}, {5, 4}};
    for (size_t i = 0; i < sizeof tie / sizeof *tie; i++) {
        assert_true(nib_e2m1_to_f32(nib_e2m1_from_f32(tie[i][0])) == tie[i][1]);
        assert_true(nib_e2m1_to_f32(nib_e2m1_from_f32(-tie[i][0])) == -tie[i][1]);
    }
    assert_int_equal(nib_e2m1_from_f32(-0.1f), 8);
}

static void powers_of_two(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (int e = -126; e < 127; e++) {
        float v = ldexpf(1, e);
        assert_int_equal(nib_ceil_log2(v), e);
        assert_int_equal(nib_ceil_log2(nextafterf(v, INFINITY)), e + 1);
        if (e > -126)
            assert_int_equal(nib_ceil_log2(nextafterf(v, 0)), e);
        assert_int_equal(nib_e8m0_ceil(v), e + 127);
    }
    for (int i = 0; i < N_RANDOM; i++) {
        float v = fabsf(model_any_finite(&seed));
        if (v >= FLT_MIN && v <= 0x1p127f)
            assert_int_equal(nib_ceil_log2(v), model_ceil_log2((double)v));
    }
    assert_int_equal(nib_e8m0_ceil(0), 0);
    assert_true(nib_e8m0_to_f32(nib_e8m0_ceil(FLT_TRUE_MIN)) >= FLT_TRUE_MIN);
}

static void absmax_hides_nothing(void **state)
{
    (void)state;
    float x[5] = {1, -7, 3, 0, 2};
    assert_true(nib_f32_absmax(x, 5) == 7);
    assert_true(nib_f32_absmax(x, 0) == 0);
    x[0] = -INFINITY;
    assert_true(isinf(nib_f32_absmax(x, 5)));
    x[4] = NAN;
    assert_true(isnan(nib_f32_absmax(x, 5)));
    x[4] = 1;
    x[0] = NAN;
    x[1] = INFINITY;
    assert_true(isnan(nib_f32_absmax(x, 5)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_every_code),
        cmocka_unit_test(bf16_holds_every_code),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(small_encoders_round_to_nearest_even),
        cmocka_unit_test(e2m1_ties),
        cmocka_unit_test(powers_of_two),
        cmocka_unit_test(absmax_hides_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
