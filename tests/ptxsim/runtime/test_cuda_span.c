/* Which matrices the CUDA backend may put into tiles: scales far below the largest one rule that out, unless their blocks hold zeros.
 * No card and no simulator is needed, only the runtime's header. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda/cuda.h"

static bool fits(enum nib_weight_type type, int32_t n_out, int32_t n_in, const uint8_t *codes, const uint8_t *scales)
{
    const struct nib_weight_part part = {codes, scales, 1};
    return nib_cuda_span_fits(&(struct nib_weight_desc){type, NIB_ACT_PLAIN, 1, n_out, n_in, &part, NIB_USE_ANY});
}

static void test_mxfp4(void **state)
{
    (void)state;
    uint8_t codes[2 * 32], scales[4] = {200, 200, 200, 200};
    memset(codes, 0x11, sizeof codes);
    assert_int_equal(nib_cuda_largest_scale(&(struct nib_weight_desc){NIB_WEIGHT_MXFP4, NIB_ACT_PLAIN, 1, 2, 64,
                                                                     &(struct nib_weight_part){codes, scales, 1}, NIB_USE_ANY}, 0), 200);
    assert_true(fits(NIB_WEIGHT_MXFP4, 2, 64, codes, scales));
    scales[3] = 200 - 96;
    assert_true(fits(NIB_WEIGHT_MXFP4, 2, 64, codes, scales));
    scales[3] = 200 - 97;
    assert_false(fits(NIB_WEIGHT_MXFP4, 2, 64, codes, scales));
    /* Only the block that the scale belongs to matters, and 8 is a negative zero. */
    memset(codes + 48, 0x80, 16);
    assert_true(fits(NIB_WEIGHT_MXFP4, 2, 64, codes, scales));
    codes[63] = 0x10;
    assert_false(fits(NIB_WEIGHT_MXFP4, 2, 64, codes, scales));
}

/* 130 x 140: blocks of 128 x 128, 128 x 12, 2 x 128, 2 x 12. */
static void test_fp8_ragged(void **state)
{
    enum { N_OUT = 130, N_IN = 140 };
    static uint8_t codes[N_OUT * N_IN];
    (void)state;
    for (int block = 0; block < 4; block++) {
        const int o0 = block / 2 * 128, k0 = block % 2 * 128, o1 = o0 ? N_OUT : 128, k1 = k0 ? N_IN : 128;
        uint8_t   scales[4] = {250, 250, 250, 250};
        memset(codes, 0x38, sizeof codes);
        scales[block] = 250 - 97;
        assert_false(fits(NIB_WEIGHT_FP8, N_OUT, N_IN, codes, scales));
        for (int o = o0; o < o1; o++)
            memset(codes + o * N_IN + k0, 0x80, (size_t)(k1 - k0));
        assert_true(fits(NIB_WEIGHT_FP8, N_OUT, N_IN, codes, scales));
        codes[(o1 - 1) * N_IN + k1 - 1] = 1; /* its last value */
        assert_false(fits(NIB_WEIGHT_FP8, N_OUT, N_IN, codes, scales));
        scales[block]++;
        assert_true(fits(NIB_WEIGHT_FP8, N_OUT, N_IN, codes, scales));
    }
}

/* Scales of one type do not reach so far; one bad matrix of a stack is enough. */
static void test_others(void **state)
{
    (void)state;
    uint8_t codes[16], scales[4] = {1, 126, 1, 126};
    memset(codes, 0x11, sizeof codes);
    assert_true(fits(NIB_WEIGHT_NVFP4, 1, 32, codes, scales));
    assert_true(fits(NIB_WEIGHT_BF16, 1, 8, codes, NULL));
    static const uint8_t near[2] = {127, 127}, far[2] = {127, 1};
    uint8_t both[32];
    memset(both, 0x11, sizeof both);
    const struct nib_weight_part part[2] = {{both, near, 1}, {both, far, 1}};
    struct nib_weight_desc d = {NIB_WEIGHT_MXFP4, NIB_ACT_PLAIN, 2, 1, 64, part, NIB_USE_ANY};
    assert_false(nib_cuda_span_fits(&d));
    d.n_stack = 1;
    assert_true(nib_cuda_span_fits(&d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mxfp4),
        cmocka_unit_test(test_fp8_ragged),
        cmocka_unit_test(test_others),
    };
    return cmocka_run_group_tests_name("cuda span", tests, NULL, NULL);
}
