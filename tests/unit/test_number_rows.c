/* Row quantisers, storage rows and the steps of the release's numerics (act_quant, fp8_sim64, fp4_sim32,
 * hadamard128), bit for bit against number_model.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "number/act_rows.h"
#include "number/bf16.h"
#include "number/kv_rows.h"
#include "unit/number_model.h"

enum { N_MAX = 600, N_ROUNDS = 20 };

static float   x[N_MAX], wanted[N_MAX], got[N_MAX];
static uint8_t codes[N_MAX], scales[N_MAX], row[4 * N_MAX + 64];

static const int lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 127, 128, 129, 200, 256, 448, 511};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static void fp8_round_trip(int n, int block)
{
    memset(scales, 0xee, sizeof scales);
    nib_fp8_row_encode(x, n, block, codes, scales);
    assert_int_equal(scales[(n + block - 1) / block], 0xee);
    nib_fp8_row_decode(codes, scales, n, block, got);
}

static void act_quant_is_exact(void **state)
{
    (void)state;
    uint64_t seed = 10;
    for (int round = 0; round < N_ROUNDS * MODEL_FILLS; round++) {
        int n = lengths[round % N_LENGTHS], block = round % 2 ? 128 : 64;
        model_fill(x, n, round % MODEL_FILLS, &seed);
        model_fp8_sim(x, n, block, wanted);
        fp8_round_trip(n, block);
        assert_true(model_same(got, wanted, n));
    }
}

/* Values on which the exponent of the scale turns: amax exactly 448 * 2^k and its neighbours, and below the floor. */
static void act_quant_scale_edges(void **state)
{
    (void)state;
    for (int e = -40; e < 60; e++) {
        for (int side = -1; side <= 1; side++) {
            float v = ldexpf(448, e);
            v = side < 0 ? nextafterf(v, 0) : side > 0 ? nextafterf(v, INFINITY) : v;
            for (int i = 0; i < 128; i++)
                x[i] = v * (float)i / 127;
            x[127] = -v;
            model_fp8_sim(x, 128, 128, wanted);
            fp8_round_trip(128, 128);
            assert_true(model_same(got, wanted, 128));
        }
    }
    for (int i = 0; i < 128; i++)
        x[i] = 1e-6f;
    fp8_round_trip(128, 128);
    assert_int_equal(scales[0], 127 - 22); /* 1e-4 / 448 = 2^-22.1 */
}

static void nvfp4_rows_are_exact(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (int round = 0; round < N_ROUNDS * MODEL_FILLS; round++) {
        float g;
        int   n = lengths[round % N_LENGTHS];
        model_fill(x, n, round % MODEL_FILLS, &seed);
        model_nvfp4_sim(x, n, wanted);
        nib_nvfp4_row_encode(x, n, codes, scales, &g);
        nib_nvfp4_row_decode(codes, scales, g, n, got);
        assert_true(model_same(got, wanted, n));
        assert_true(g == (float)(model_amax(x, n) / 2688));
    }
}

/* With bf16 sources exact ties are frequent, and a product with a rounded reciprocal in place of a division shows. */
static void nvfp4_rows_divide(void **state)
{
    (void)state;
    uint64_t seed = 25;
    for (int round = 0; round < 3000; round++) {
        float g;
        model_fill(x, 256, 9, &seed);
        for (int i = 0; i < 32; i++) /* small whole maxima: scales tie too */
            x[i] = (float)(i == 0 ? round / 50 + 1 : i == 16 ? round % 50 + 1 : 0);
        model_nvfp4_sim(x, round % 2 ? 256 : 32, wanted);
        nib_nvfp4_row_encode(x, round % 2 ? 256 : 32, codes, scales, &g);
        nib_nvfp4_row_decode(codes, scales, g, round % 2 ? 256 : 32, got);
        assert_true(model_same(got, wanted, round % 2 ? 256 : 32));
    }
}

/* A block 2^-30 below the row's maximum has no scale: zero codes under scale byte 0. */
static void nvfp4_small_block_vanishes(void **state)
{
    (void)state;
    float g;
    for (int i = 0; i < 32; i++)
        x[i] = i < 16 ? 1.0f : -0x1p-30f;
    nib_nvfp4_row_encode(x, 32, codes, scales, &g);
    assert_int_equal(scales[0], 0x7e);
    assert_int_equal(scales[1], 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(codes[i], 0x77);
        assert_int_equal(codes[8 + i], 0);
    }
}

static void int8_rows_are_exact(void **state)
{
    (void)state;
    uint64_t seed = 12;
    int8_t   q[N_MAX];
    float    s[N_MAX];
    for (int round = 0; round < N_ROUNDS * MODEL_FILLS; round++) {
        int n = lengths[round % N_LENGTHS];
        model_fill(x, n, round % MODEL_FILLS, &seed);
        nib_int8_row_encode(x, n, q, s);
        nib_int8_row_decode(q, s, n, got);
        for (int b = 0; b < n; b += 32) {
            int   len = n - b < 32 ? n - b : 32;
            float scale = (float)(model_amax(x + b, len) / 127);
            assert_true(s[b / 32] == scale);
            for (int i = b; i < b + len; i++) {
                double v = scale > 0 ? (double)(float)((double)x[i] / (double)scale) : 0, whole = trunc(v);
                double rest = fabs(v - whole);
                if (rest > 0.5 || (rest == 0.5 && fmod(whole, 2) != 0))
                    whole += v < 0 ? -1 : 1;
                whole = fmax(-127, fmin(127, whole));
                assert_true((double)q[i] == whole);
                assert_true(got[i] == (float)(whole * (double)scale));
            }
        }
    }
}

static void fp4_sim_is_exact(void **state)
{
    (void)state;
    uint64_t seed = 13;
    for (int round = 0; round < N_ROUNDS * MODEL_FILLS; round++) {
        int n = lengths[round % N_LENGTHS];
        model_fill(x, n, round % MODEL_FILLS, &seed);
        model_fp4_sim(x, n, wanted);
        nib_fp4_row_encode(x, n, codes, scales);
        nib_fp4_row_decode(codes, scales, n, got);
        assert_true(model_same(got, wanted, n));
    }
    for (int i = 0; i < 32; i++)
        x[i] = 0;
    nib_fp4_row_encode(x, 32, codes, scales);
    assert_int_equal(scales[0], 1); /* 2^-126 */
}

static void hadamard_is_exact(void **state)
{
    (void)state;
    uint64_t seed = 14;
    for (int round = 0; round < N_ROUNDS * MODEL_FILLS; round++) {
        int n = 1 << (round % 8); /* 1 .. 128 */
        model_fill(x, n, round % MODEL_FILLS, &seed);
        for (int i = 0; i < n; i++)
            x[i] *= 0x1p-8f; /* sums of 128 stay finite */
        memcpy(wanted, x, sizeof x);
        memcpy(got, x, sizeof x);
        model_hadamard(wanted, n);
        nib_hadamard(got, n);
        assert_true(model_same(got, wanted, n));
    }
}

/* Against the matrix: H[i][j] = (-1)^popcount(i & j) / sqrt(n). Seven roundings of partial sums and one product. */
static void hadamard_is_natural_order(void **state)
{
    (void)state;
    uint64_t seed = 15;
    double   total = 0;
    for (int i = 0; i < 128; i++) {
        x[i] = got[i] = model_uniform(&seed);
        total += fabs((double)x[i]);
    }
    nib_hadamard(got, 128);
    for (unsigned i = 0; i < 128; i++) {
        double sum = 0;
        for (unsigned j = 0; j < 128; j++)
            sum += __builtin_popcount(i & j) % 2 ? -(double)x[j] : (double)x[j];
        assert_true(fabs((double)got[i] - sum * 0.08838834764831845) <= 8 * 0x1p-24 * total * 0.0884);
    }
    nib_hadamard(got, 128);
    for (int i = 0; i < 128; i++)
        assert_true(fabsf(got[i] - x[i]) <= 16 * 0x1p-24f * (float)total);
}

/* NaN or Inf at one place: its block decodes to NaN, other blocks are as without it. */
static void check_poison(float bad, int n, int at)
{
    int8_t q[N_MAX];
    float  s[N_MAX], g;
    struct {
        int   block;
        float clean[N_MAX], bad[N_MAX];
    } r[4] = {{.block = 128}, {.block = 32}, {.block = 32}, {.block = N_MAX}};
    for (int with = 0; with < 2; with++) {
        if (with)
            x[at] = bad;
        fp8_round_trip(n, 128);
        memcpy(with ? r[0].bad : r[0].clean, got, sizeof got);
        nib_int8_row_encode(x, n, q, s);
        nib_int8_row_decode(q, s, n, with ? r[1].bad : r[1].clean);
        nib_fp4_row_encode(x, n, codes, scales);
        nib_fp4_row_decode(codes, scales, n, with ? r[2].bad : r[2].clean);
        nib_nvfp4_row_encode(x, n, codes, scales, &g);
        nib_nvfp4_row_decode(codes, scales, g, n, with ? r[3].bad : r[3].clean);
    }
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < n; i++) {
            if (i / r[k].block == at / r[k].block)
                assert_true(isnan(r[k].bad[i]));
            else
                assert_true(r[k].bad[i] == r[k].clean[i]);
        }
    }
}

static void poison_is_visible(void **state)
{
    (void)state;
    uint64_t    seed = 16;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 200; i++) {
        int n = 130 + (int)(model_random(&seed) % 300);
        model_fill(x, n, 0, &seed);
        check_poison(bad[i % 4], n, (int)(model_random(&seed) % (uint64_t)n));
    }
    nib_fp8_row_encode(x, 130, 128, codes, scales);
    memset(x, 0, sizeof x);
    x[129] = NAN;
    nib_fp8_row_encode(x, 130, 128, codes, scales);
    assert_int_equal(scales[1], 255);
}

static void row_sizes(void **state)
{
    (void)state;
    assert_int_equal(nib_row_bytes(NIB_ROW_F32, 512, 64), 2048);
    assert_int_equal(nib_row_bytes(NIB_ROW_BF16, 512, 64), 1024);
    assert_int_equal(nib_row_bytes(NIB_ROW_FP8, 512, 64), 584);
    assert_int_equal(nib_row_bytes(NIB_ROW_NVFP4, 512, 64), 384);
    assert_int_equal(nib_row_bytes(NIB_ROW_FP4, 128, 64), 68);
    for (int d = 2; d < 200; d++) {
        for (int f = NIB_ROW_F32; f <= NIB_ROW_FP4; f++)
            assert_int_equal(nib_row_bytes((enum nib_row_format)f, d, d / 4 * 2) % 4, 0);
    }
    assert_int_equal(nib_act_codes_stride(NIB_ACT_FP8, 4096), 4096);
    assert_int_equal(nib_act_codes_stride(NIB_ACT_FP8, 100), 128);
    assert_int_equal(nib_act_codes_stride(NIB_ACT_NVFP4, 256), 128);
    assert_int_equal(nib_act_codes_stride(NIB_ACT_PLAIN, 256), 0);
    assert_int_equal(nib_act_scales_stride(NIB_ACT_FP8, 7168), 64);
    assert_int_equal(nib_act_scales_stride(NIB_ACT_FP8, 64 * 128 + 1), 128);
    assert_int_equal(nib_act_scales_stride(NIB_ACT_NVFP4, 7168), 448);
    assert_int_equal(nib_act_scales_stride(NIB_ACT_INT8, 7168), 896);
}

/* fp8_sim64: 448 channels in FP8 blocks of 64, 64 rotary ones in bf16; and the bytes where a reader expects them. */
static void fp8_kv_rows_are_exact(void **state)
{
    (void)state;
    uint64_t seed = 17;
    for (int round = 0; round < N_ROUNDS * MODEL_FILLS; round++) {
        int d = round % 3 ? 512 : 96 + 2 * (round % 50), n_rot = round % 3 ? 64 : 32, n = d - n_rot;
        model_fill(x, d, round % MODEL_FILLS, &seed);
        model_fp8_sim(x, n, 64, wanted);
        for (int i = n; i < d; i++)
            wanted[i] = model_bf16(x[i]);
        memset(row, 0xee, sizeof row);
        nib_kv_fp8_encode(x, d, n_rot, row);
        assert_int_equal(row[nib_row_bytes(NIB_ROW_FP8, d, n_rot)], 0xee);
        nib_kv_fp8_decode(row, d, n_rot, got);
        assert_true(model_same(got, wanted, d));
    }
    model_fill(x, 512, 0, &seed);
    nib_kv_fp8_encode(x, 512, 64, row);
    for (int b = 0; b < 7; b++) {
        assert_int_equal(row[576 + b], model_block_exponent(x + 64 * b, 64, 448, 1e-4f) + 127);
        assert_int_equal(row[64 * b], model_e4m3_encode(ldexp((double)x[64 * b], 127 - row[576 + b])));
    }
    assert_int_equal(row[583], 0);
    assert_int_equal(row[448 + 1] << 8 | row[448], nib_bf16_from_f32(x[448]));
}

static void nvfp4_kv_rows_are_exact(void **state)
{
    (void)state;
    uint64_t seed = 18;
    float    g;
    for (int round = 0; round < N_ROUNDS * MODEL_FILLS; round++) {
        int d = round % 3 ? 512 : 96 + 2 * (round % 50), n_rot = round % 3 ? 64 : 32, n = d - n_rot;
        model_fill(x, d, round % MODEL_FILLS, &seed);
        model_nvfp4_sim(x, n, wanted);
        for (int i = n; i < d; i++)
            wanted[i] = model_bf16(x[i]);
        memset(row, 0xee, sizeof row);
        nib_kv_nvfp4_encode(x, d, n_rot, row);
        assert_int_equal(row[nib_row_bytes(NIB_ROW_NVFP4, d, n_rot)], 0xee);
        nib_kv_nvfp4_decode(row, d, n_rot, got);
        assert_true(model_same(got, wanted, d));
    }
    model_fill(x, 512, 0, &seed);
    nib_kv_nvfp4_encode(x, 512, 64, row);
    memcpy(&g, row + 224 + 28, sizeof g);
    assert_true(g == (float)(model_amax(x, 448) / 2688));
    assert_int_equal(row[256 + 1] << 8 | row[256], nib_bf16_from_f32(x[448]));
}

static void plain_and_fp4_kv_rows(void **state)
{
    (void)state;
    uint64_t seed = 19;
    for (int round = 0; round < N_ROUNDS * MODEL_FILLS; round++) {
        int d = round % 3 ? 128 : 1 + round % 200;
        model_fill(x, d, round % MODEL_FILLS, &seed);
        memset(row, 0xee, sizeof row);
        nib_kv_fp4_encode(x, d, row);
        assert_int_equal(row[nib_row_bytes(NIB_ROW_FP4, d, 0)], 0xee);
        model_fp4_sim(x, d, wanted);
        nib_kv_fp4_decode(row, d, got);
        assert_true(model_same(got, wanted, d));
        nib_kv_f32_encode(x, d, row);
        nib_kv_f32_decode(row, d, got);
        assert_memory_equal(got, x, (size_t)d * sizeof *x);
        memset(row, 0xee, sizeof row);
        nib_kv_bf16_encode(x, d, row);
        assert_int_equal(row[nib_row_bytes(NIB_ROW_BF16, d, 0)], 0xee);
        nib_kv_bf16_decode(row, d, got);
        for (int i = 0; i < d; i++)
            assert_true(got[i] == model_bf16(x[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(act_quant_is_exact),
        cmocka_unit_test(act_quant_scale_edges),
        cmocka_unit_test(nvfp4_rows_are_exact),
        cmocka_unit_test(nvfp4_rows_divide),
        cmocka_unit_test(nvfp4_small_block_vanishes),
        cmocka_unit_test(int8_rows_are_exact),
        cmocka_unit_test(fp4_sim_is_exact),
        cmocka_unit_test(hadamard_is_exact),
        cmocka_unit_test(hadamard_is_natural_order),
        cmocka_unit_test(poison_is_visible),
        cmocka_unit_test(row_sizes),
        cmocka_unit_test(fp8_kv_rows_are_exact),
        cmocka_unit_test(nvfp4_kv_rows_are_exact),
        cmocka_unit_test(plain_and_fp4_kv_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
