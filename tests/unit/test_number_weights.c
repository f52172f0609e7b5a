/* Weight encoders against number_model.h, exact decoding, degenerate blocks and refusals. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "number/weight_rows.h"
#include "unit/number_model.h"

enum { N_OUT = 200, N_IN = 320 };

static float   w[N_OUT * N_IN];
static uint8_t codes[N_OUT * N_IN], again[N_OUT * N_IN], scales[N_OUT * N_IN / 16], scales_again[N_OUT * N_IN / 16];
static double  row[N_IN];

/* Weight-like values with every magnitude by row; kind 1 and 2 as in model_fill. */
static void fill(int n_out, int n_in, int kind, uint64_t *seed)
{
    for (int o = 0; o < n_out; o++)
        model_fill(w + o * n_in, n_in, kind, seed);
}

static uint8_t nibble(const uint8_t *bytes, int i)
{
    return (uint8_t)(bytes[i / 2] >> (i % 2 * 4) & 15);
}

static void nvfp4_weights(void **state)
{
    (void)state;
    uint64_t seed = 20;
    for (int kind = 0; kind < MODEL_FILLS; kind++) {
        int n_out = 5, n_in = 96;
        fill(n_out, n_in, kind, &seed);
        float g = nib_nvfp4_global_scale((float)model_amax(w, n_out * n_in));
        assert_true(g == (float)(model_amax(w, n_out * n_in) / 2688));
        assert_int_equal(nib_nvfp4_weight_encode(w, n_out, n_in, g, codes, scales), NIB_OK);
        for (int b = 0; b < n_out * n_in / 16; b++) {
            const float *x = w + 16 * b;
            float        t = g > 0 ? (float)((double)(float)(model_amax(x, 16) / 6) / (double)g) : 0;
            uint8_t      s = model_e4m3_encode(fmin((double)t, 448));
            float        d = (float)(model_e4m3(s) * (double)g);
            assert_int_equal(scales[b], s);
            for (int i = 0; i < 16; i++) {
                uint8_t code = d > 0 ? model_e2m1_encode((double)(float)((double)x[i] / (double)d)) : 0;
                assert_int_equal(nibble(codes, 16 * b + i), code);
            }
        }
        for (int o = 0; o < n_out; o++) {
            nib_nvfp4_weight_decode(codes + o * n_in / 2, scales + o * n_in / 16, n_in, row);
            for (int k = 0; k < n_in; k++) {
                int i = o * n_in + k;
                assert_true(row[k] == model_e2m1(nibble(codes, i)) * model_e4m3(scales[i / 16]));
            }
        }
    }
}

/* Encoding what a tensor decodes to, at its own global scale, changes no code and no scale. */
static void nvfp4_is_stable(void **state)
{
    (void)state;
    uint64_t seed = 21;
    fill(N_OUT, N_IN, 0, &seed);
    float g = nib_nvfp4_global_scale((float)model_amax(w, N_OUT * N_IN));
    assert_int_equal(nib_nvfp4_weight_encode(w, N_OUT, N_IN, g, codes, scales), NIB_OK);
    for (int o = 0; o < N_OUT; o++) {
        nib_nvfp4_weight_decode(codes + o * N_IN / 2, scales + o * N_IN / 16, N_IN, row);
        for (int k = 0; k < N_IN; k++)
            w[o * N_IN + k] = (float)(row[k] * (double)g);
    }
    assert_int_equal(nib_nvfp4_weight_encode(w, N_OUT, N_IN, g, again, scales_again), NIB_OK);
    assert_memory_equal(scales, scales_again, sizeof scales);
    assert_memory_equal(codes, again, N_OUT * N_IN / 2);
}

static void mxfp4_weights(void **state)
{
    (void)state;
    uint64_t seed = 22;
    for (int kind = 0; kind < MODEL_FILLS; kind++) {
        int n_out = 7, n_in = 96;
        fill(n_out, n_in, kind, &seed);
        assert_int_equal(nib_mxfp4_weight_encode(w, n_out, n_in, codes, scales), NIB_OK);
        for (int b = 0; b < n_out * n_in / 32; b++) {
            const float *x = w + 32 * b;
            double       quotient = (double)(float)(model_amax(x, 32) / 6);
            int          e = quotient == 0 ? -127 : model_ceil_log2(fmax(quotient, 0x1p-126));
            assert_int_equal(scales[b], e + 127);
            for (int i = 0; i < 32; i++)
                assert_int_equal(nibble(codes, 32 * b + i), model_e2m1_encode((double)(float)ldexp((double)x[i], -e)));
        }
        for (int o = 0; o < n_out; o++) {
            nib_mxfp4_weight_decode(codes + o * n_in / 2, scales + o * n_in / 32, n_in, row);
            for (int k = 0; k < n_in; k++)
                assert_true(row[k] ==
                            ldexp(model_e2m1(nibble(codes, o * n_in + k)), scales[(o * n_in + k) / 32] - 127));
        }
    }
}

/* Shapes that leave partial blocks at both edges, or at one, or none. */
static void fp8_weights(void **state)
{
    (void)state;
    uint64_t  seed = 23;
    const int shape[][2] = {{1, 1}, {128, 128}, {130, 200}, {200, 257}, {129, 64}, {64, 320}};
    for (int round = 0; round < 6 * MODEL_FILLS; round++) {
        int n_out = shape[round % 6][0], n_in = shape[round % 6][1], blocks = (n_in + 127) / 128;
        fill(n_out, n_in, round / 6, &seed);
        assert_int_equal(nib_fp8_weight_encode(w, n_out, n_in, codes, scales), NIB_OK);
        for (int o = 0; o < n_out; o++) {
            nib_fp8_weight_decode(codes + o * n_in, scales + o / 128 * blocks, n_in, row);
            for (int k = 0; k < n_in; k++) {
                int e = scales[o / 128 * blocks + k / 128] - 127, i = o * n_in + k;
                assert_int_equal(codes[i], model_e4m3_encode((double)(float)ldexp((double)w[i], -e)));
                assert_true(row[k] == ldexp(model_e4m3(codes[i]), e));
            }
        }
        for (int bo = 0; bo < n_out; bo += 128) {
            for (int bk = 0; bk < n_in; bk += 128) {
                double amax = 0;
                for (int o = bo; o < n_out && o < bo + 128; o++)
                    amax = fmax(amax, model_amax(w + o * n_in + bk, n_in - bk < 128 ? n_in - bk : 128));
                double quotient = (double)(float)(amax / 448);
                int    e = quotient == 0 ? -127 : model_ceil_log2(fmax(quotient, 0x1p-126));
                assert_int_equal(scales[bo / 128 * blocks + bk / 128], e + 127);
            }
        }
    }
}

static void degenerate_weights(void **state)
{
    (void)state;
    uint64_t seed = 24;
    fill(1, 64, 0, &seed);
    memset(w, 0, 16 * sizeof *w);
    memset(codes, 0xee, 32);
    memset(scales, 0xee, 4);
    assert_int_equal(nib_nvfp4_weight_encode(w, 1, 64, nib_nvfp4_global_scale(1), codes, scales), NIB_OK);
    assert_int_equal(scales[0], 0);
    assert_int_equal(codes[0] | codes[7], 0);
    assert_int_not_equal(scales[1], 0);
    /* A global scale far too small clips at 448 * 6 * g and nothing worse. */
    assert_int_equal(nib_nvfp4_weight_encode(w, 1, 64, 1e-9f, codes, scales), NIB_OK);
    assert_int_equal(scales[1], 0x7e);
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        w[63] = bad[i];
        assert_int_equal(nib_nvfp4_weight_encode(w, 1, 64, 1, codes, scales), NIB_E_NUMERIC);
        assert_int_equal(nib_mxfp4_weight_encode(w, 1, 64, codes, scales), NIB_E_NUMERIC);
        assert_int_equal(nib_fp8_weight_encode(w, 1, 64, codes, scales), NIB_E_NUMERIC);
    }
    w[63] = 0;
    assert_int_equal(nib_nvfp4_weight_encode(w, 1, 63, 1, codes, scales), NIB_E_ARGUMENT);
    assert_int_equal(nib_nvfp4_weight_encode(w, 1, 64, NAN, codes, scales), NIB_E_ARGUMENT);
    assert_int_equal(nib_nvfp4_weight_encode(w, 1, 64, -1, codes, scales), NIB_E_ARGUMENT);
    assert_int_equal(nib_mxfp4_weight_encode(w, 1, 48, codes, scales), NIB_E_ARGUMENT);
}

/* Byte 0 of UE8M0 is 2^-127, not zero. */
static void smallest_scale_is_a_number(void **state)
{
    (void)state;
    memset(codes, 0x22, 16);
    scales[0] = 0;
    nib_mxfp4_weight_decode(codes, scales, 32, row);
    assert_true(row[0] == 0x1p-127 && row[31] == 0x1p-127);
    memset(codes, 0x38, 32);
    nib_fp8_weight_decode(codes, scales, 32, row);
    assert_true(row[0] == 0x1p-127 && row[31] == 0x1p-127);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nvfp4_weights),      cmocka_unit_test(nvfp4_is_stable),
        cmocka_unit_test(mxfp4_weights),      cmocka_unit_test(fp8_weights),
        cmocka_unit_test(degenerate_weights), cmocka_unit_test(smallest_scale_is_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
