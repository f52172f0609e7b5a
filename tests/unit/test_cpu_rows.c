/* The cpu backend's kernels for rows of attention, the indexer, the router and sampling, on every level of this machine, at the
 * lengths of real models and at odd ones: against plain loops in double, the C library and the formats' own decoders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels.h"
#include "number/kv_rows.h"

#define U 0x1p-24 /* half a step of fp32 at 1 */

static struct nib_cpu_kernels k;
static uint64_t               g_random = 1;

static uint32_t random_bits(void)
{
    g_random = g_random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g_random >> 33);
}

static float random_float(void) { return (float)random_bits() * 0x1p-30f - 1.0f; }

static float *random_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float();
    return x;
}

static void each_level(void (*check)(void))
{
    static const char *const names[] = {"c", "avx2", "avx512", "vnni", "bf16", "neon", "dotprod"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unsigned mask;
        if (nib_cpu_level_mask(names[i], nib_cpu_flags_detect(), &mask, NULL) != NIB_OK)
            continue;
        nib_cpu_kernels_init(&k, mask);
        check();
    }
}

/* Sums of 16 lanes: a term takes part in n / 16 additions and a few of the lanes. */
static void check_products(void)
{
    static const int32_t shapes[][3] = {{64, 48, 512}, {4, 48, 512}, {5, 7, 96}, {1, 1, 37}, {3, 50, 128}}; /* heads, rows, channels */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int32_t h = shapes[i][0], n = shapes[i][1], d = shapes[i][2], stride = d + 3, columns = n + 2;
        float *q = random_floats((size_t)(h * stride)), *v = random_floats((size_t)(n * stride)), *y = random_floats((size_t)(h * columns));
        k.dot_rows(q, stride, h, v, stride, n, d, y, columns);
        for (int32_t r = 0; r < h; r++)
            for (int32_t j = 0; j < n; j++) {
                double sum = 0, size = 0;
                for (int32_t c = 0; c < d; c++) {
                    sum += (double)q[r * stride + c] * (double)v[j * stride + c];
                    size += fabs((double)q[r * stride + c] * (double)v[j * stride + c]);
                }
                assert_true(fabs((double)y[r * columns + j] - sum) <= (d / 8 + 8) * U * size); /* 8 lanes at least */
            }
        float *o = random_floats((size_t)(h * stride)), *before = malloc((size_t)(h * stride) * sizeof *o);
        assert_non_null(before);
        memcpy(before, o, (size_t)(h * stride) * sizeof *o);
        k.add_weighted(y, columns, h, v, stride, n, d, o, stride);
        for (int32_t r = 0; r < h; r++)
            for (int32_t c = 0; c < stride; c++) {
                double sum = (double)before[r * stride + c], size = fabs(sum);
                for (int32_t j = 0; j < n && c < d; j++) {
                    sum += (double)y[r * columns + j] * (double)v[j * stride + c];
                    size += fabs((double)y[r * columns + j] * (double)v[j * stride + c]);
                }
                assert_true(fabs((double)o[r * stride + c] - sum) <= (c < d ? (2 * n + 1) * U * size : 0));
            }
        free(q);
        free(v);
        free(y);
        free(o);
        free(before);
    }
}

static void test_products(void **state)
{
    (void)state;
    each_level(check_products);
}

/* Rows of BF16 where they lie, anywhere, give the bits of the same rows decoded. */
static void check_bf16_products(void)
{
    /* heads, rows, channels */
    static const int32_t shapes[][3] = {{8, 48, 512}, {4, 47, 512}, {5, 7, 96}, {1, 1, 16}, {3, 25, 144}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int32_t h = shapes[i][0], n = shapes[i][1], d = shapes[i][2], columns = n + 2;
        uint16_t *stored = malloc((size_t)(n * (d + 1)) * sizeof *stored);
        const uint16_t *row[48];
        float *v = random_floats((size_t)(n * d)), *q = random_floats((size_t)(h * d));
        float *o = random_floats((size_t)(h * d));
        float *y = random_floats((size_t)(h * columns)), *want_y = malloc((size_t)(h * columns) * sizeof *y);
        float *want_o = malloc((size_t)(h * d) * sizeof *o);
        assert_true(stored && want_y && want_o);
        for (int32_t j = 0; j < n; j++) {
            uint16_t *to = stored + (n - 1 - j) * (d + 1);
            k.bf16_round(v + j * d, d);
            for (int32_t c = 0; c < d; c++) {
                uint32_t bits;
                memcpy(&bits, v + j * d + c, sizeof bits);
                to[c] = (uint16_t)(bits >> 16);
            }
            row[j] = to;
        }
        memcpy(want_y, y, (size_t)(h * columns) * sizeof *y);
        memcpy(want_o, o, (size_t)(h * d) * sizeof *o);
        k.dot_rows(q, d, h, v, d, n, d, want_y, columns);
        k.dot_bf16(q, d, h, row, row, n, d, y, columns);
        assert_memory_equal(y, want_y, (size_t)(h * columns) * sizeof *y);
        k.add_weighted(y, columns, h, v, d, n, d, want_o, d);
        k.add_bf16(y, columns, h, row, row, n, d, o, d);
        assert_memory_equal(o, want_o, (size_t)(h * d) * sizeof *o);
        free(stored);
        free(v);
        free(q);
        free(o);
        free(y);
        free(want_y);
        free(want_o);
    }
}

static void test_bf16_products(void **state)
{
    (void)state;
    each_level(check_bf16_products);
}

/* Rows as attention finds them, and decoders for the parts of one. Equal values, for every product is exact or the same. */
static void check_decoders(void)
{
    enum { N = 448, ROT = 64, D = N + ROT };
    float x[D], want[D], got[N];
    for (int round = 0; round < 200; round++) {
        const float size = ldexpf(1.0f, (int)(random_bits() % 60) - 30);
        uint8_t     row[2 * D];
        for (int i = 0; i < D; i++)
            x[i] = random_float() * size * (round % 5 == 4 && i / 16 % 3 == 0 ? 1e-4f : 1.0f);
        if (round == 7)
            x[100] = NAN;
        nib_kv_fp8_encode(x, D, ROT, row);
        nib_kv_fp8_decode(row, D, ROT, want);
        k.fp8_decode(row, row + N + 2 * ROT, N, 64, got);
        for (int i = 0; i < N; i++)
            assert_true(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])));
        nib_kv_nvfp4_encode(x, D, ROT, row);
        nib_kv_nvfp4_decode(row, D, ROT, want);
        float g;
        memcpy(&g, row + N / 2 + N / 16, sizeof g);
        k.nvfp4_decode(row, row + N / 2, g, N, got);
        for (int i = 0; i < N; i++)
            assert_true(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])));
    }
}

static void test_decoders(void **state)
{
    (void)state;
    each_level(check_decoders);
}

/* FP4 values are multiples of half a scale, and sums of 16 lanes of them round only where scales differ much. */
static void check_fp4_dots(void)
{
    static const int32_t shapes[][3] = {{64, 48, 128}, {3, 48, 128}, {8, 5, 64}, {1, 1, 32}, {7, 21, 16}, {5, 17, 256}}; /* heads, keys, channels */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int32_t h = shapes[i][0], n = shapes[i][1], d = shapes[i][2], blocks = (d + 31) / 32, columns = 48;
        const size_t  bytes = (size_t)nib_kv_fp4_bytes(d);
        float        *q = random_floats((size_t)(h * d)), *value = random_floats((size_t)(n * d)), *x = random_floats((size_t)d);
        float        *work = random_floats((size_t)(n + 16) * (size_t)(d + 32)), *y = random_floats((size_t)(h * columns));
        float        *weight = random_floats((size_t)h), *dots = random_floats((size_t)(h * columns)), score[48], sums[48];
        uint8_t      *row = malloc(bytes * (size_t)n), *query = malloc(bytes);
        uint8_t      *codes = malloc((size_t)(h * d));
        float        *scales = random_floats((size_t)(h * blocks));
        const uint8_t *key[48];
        assert_true(row && query && codes);
        for (int32_t j = 0; j < n; j++) {
            for (int32_t c = 0; c < d; c++)
                x[c] = random_float() * ldexpf(1.0f, (int)(random_bits() % 8) - 4 + c / 32);
            if (j == 4)
                x[d / 2] = NAN;
            key[j] = row + bytes * (size_t)j;
            nib_kv_fp4_encode(x, d, row + bytes * (size_t)j);
            nib_kv_fp4_decode(key[j], d, value + j * d);
        }
        for (int32_t r = 0; r < h; r++) {
            for (int32_t c = 0; c < d; c++)
                x[c] = random_float() * ldexpf(1.0f, (int)(random_bits() % 8) - 4);
            nib_kv_fp4_encode(x, d, query);
            nib_kv_fp4_decode(query, d, q + r * d);
            k.fp4_query_open(query, query + d / 2, d, codes + r * d, scales + r * blocks);
        }
        const struct nib_cpu_fp4_queries all = {h, q, d, codes, scales};
        k.fp4_dots(&all, key, n, d, work, y, columns);
        for (int32_t r = 0; r < h; r++)
            for (int32_t j = 0; j < n; j++) {
                double sum = 0, size = 0;
                for (int32_t c = 0; c < d; c++) {
                    sum += (double)q[r * d + c] * (double)value[j * d + c];
                    size += fabs((double)q[r * d + c] * (double)value[j * d + c]);
                }
                const double got = (double)y[r * columns + j];
                assert_true(isnan(sum) ? isnan(got) : fabs(got - sum) <= (d / 16 + 8) * U * size);
            }
        /* The scores of the queries, whether dot products are written down or not. */
        k.fp4_scores(&all, weight, key, n, d, work, dots, score);
        memset(sums, 0, sizeof sums);
        for (int32_t r = 0; r < h; r++)
            k.add_positive(sums, y + r * columns, weight[r], n);
        assert_memory_equal(score, sums, sizeof(float) * (size_t)n);
        free(q);
        free(value);
        free(x);
        free(work);
        free(y);
        free(row);
        free(query);
        free(codes);
        free(scales);
        free(weight);
        free(dots);
    }
}

static void test_fp4_dots(void **state)
{
    (void)state;
    each_level(check_fp4_dots);
}

/* Rows copied past the caches, to whole cache lines and to any place: every number, and nothing beside them. */
static void check_rows_past(void)
{
    static const int32_t shapes[][4] = {{7, 32, 48, 0}, {3, 16, 16, 0}, {5, 32, 40, 0}, {4, 20, 32, 0}, {6, 32, 48, 1}, {1, 1, 1, 3}};
    float *src = aligned_alloc(64, 16 * 64 * sizeof *src), *dst = aligned_alloc(64, 16 * 64 * sizeof *dst);
    assert_true(src && dst);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int32_t rows = shapes[i][0], n = shapes[i][1], stride = shapes[i][2], first = shapes[i][3];
        for (int32_t j = 0; j < 16 * 64; j++) {
            src[j] = random_float();
            dst[j] = 7;
        }
        k.rows_past(src, 64, rows, n, dst + first, stride);
        for (int32_t j = 0; j < 16 * 64; j++) {
            const int32_t at = j - first, r = at / stride, o = at % stride;
            assert_true(dst[j] == (at >= 0 && r < rows && o < n ? src[r * 64 + o] : 7));
        }
    }
    free(src);
    free(dst);
}

static void test_rows_past(void **state)
{
    (void)state;
    each_level(check_rows_past);
}

/* Angles up to a million positions: the fp32 product's own sine and cosine, to a step of fp32. */
static void check_rotary(void)
{
    enum { N = 64 };
    float freq[N / 2], angle[2 * N], x[N], y[N];
    for (int i = 0; i < N / 2; i++)
        freq[i] = powf(10000.0f, -2.0f * (float)i / N);
    for (int round = 0; round < 400; round++) {
        const float pos = (float)(round < 40 ? (uint32_t)round : random_bits() % (1u << 20));
        k.rotary_angles(freq, N, pos, angle);
        for (int i = 0; i < N / 2; i++) {
            const double a = (double)(pos * freq[i]), c = cos(a), s = sin(a);
            assert_true(angle[2 * i] == angle[2 * i + 1] && angle[N + 2 * i] == -angle[N + 2 * i + 1]);
            assert_true(fabs((double)angle[2 * i] - c) <= 1.01 * U * fabs(c) + 1e-12);
            assert_true(fabs((double)angle[N + 2 * i + 1] - s) <= 1.01 * U * fabs(s) + 1e-12);
        }
        for (int i = 0; i < N; i++)
            x[i] = y[i] = random_float();
        k.rotate(y, N, angle, round % 2 == 1);
        for (int i = 0; i < N; i += 2) {
            const float c = angle[i], s = round % 2 ? -angle[N + i + 1] : angle[N + i + 1];
            const float ac = x[i] * c, bs = x[i + 1] * s, as = x[i] * s, bc = x[i + 1] * c;
            assert_true(y[i] == ac - bs && y[i + 1] == as + bc);
        }
    }
    for (int n = 1; n <= N; n *= 2) {
        const float scale = (float)(1 / sqrt((double)n));
        for (int i = 0; i < n; i++)
            x[i] = y[i] = (float)(int32_t)(random_bits() % 1000); /* sums of such are exact */
        k.hadamard(y, n, scale);
        for (int i = 0; i < n; i++) {
            float sum = 0;
            for (int j = 0; j < n; j++)
                sum += __builtin_popcount((unsigned)(i & j)) % 2 ? -x[j] : x[j];
            assert_true(y[i] == sum * scale);
        }
    }
}

static void test_rotary(void **state)
{
    (void)state;
    each_level(check_rotary);
}

/* ---- The largest ---- */

static const float *g_values;

static int by_value(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const float   x = g_values[i], y = g_values[j];
    if (isnan(x) != isnan(y))
        return isnan(x) ? -1 : 1;
    if (x != y && !isnan(x))
        return x > y ? -1 : 1;
    return i < j ? -1 : 1;
}

static int by_index(const void *a, const void *b) { return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1; }

/* Kinds of numbers: all different, many equal, with both infinities and zeros, with NaN, all one. */
static float number_of(int kind)
{
    static const float few[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, 1e-40f, -1e-40f};
    if (kind == 1)
        return (float)(random_bits() % 7) - 3;
    if (kind == 2 || (kind == 3 && random_bits() % 9 == 0))
        return few[random_bits() % 8];
    if (kind == 3 && random_bits() % 50 == 0)
        return NAN;
    return kind == 4 ? 0.5f : random_float();
}

static void check_select(void)
{
    static const int32_t lengths[] = {2, 3, 17, 100, 640, 4095, 4096, 16384, 20001};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (int kind = 0; kind < 5; kind++) {
            const int32_t n = lengths[l], top = n < 5 || kind == 1 ? n - 1 : n > 2000 ? 512 : n / 3;
            float        *x = random_floats((size_t)n), *copy = random_floats((size_t)n);
            int32_t      *order = malloc((size_t)n * sizeof *order), *selected = malloc((size_t)n * sizeof *selected);
            assert_true(order && selected);
            for (int32_t i = 0; i < n; i++) {
                copy[i] = x[i] = number_of(kind);
                order[i] = i;
            }
            g_values = copy;
            qsort(order, (size_t)n, sizeof *order, by_value);
            qsort(order, (size_t)top, sizeof *order, by_index);
            k.select_top(x, n, top, selected);
            assert_memory_equal(selected, order, (size_t)top * sizeof *order);
            free(x);
            free(copy);
            free(order);
            free(selected);
        }
}

static void test_select(void **state)
{
    (void)state;
    each_level(check_select);
}

static void check_choose(void)
{
    for (int round = 0; round < 600; round++) {
        enum { N = 257 };
        float         score[N], bias[N], sum[N], work[N];
        const int32_t n = 1 + (int32_t)(random_bits() % N), top = 1 + (int32_t)(random_bits() % (uint32_t)(n < 8 ? n : 8));
        int32_t       chosen[8];
        bool          taken[N] = {false};
        for (int32_t i = 0; i < n; i++) {
            score[i] = number_of(round % 5);
            bias[i] = round % 2 ? 0.0f : number_of(1);
            sum[i] = score[i] + bias[i];
        }
        k.choose_top(score, bias, n, top, work, chosen);
        for (int32_t c = 0; c < top; c++) { /* NaN only where nothing else is left */
            int32_t best = -1;
            for (int32_t i = 0; i < n; i++)
                if (!taken[i] && (best < 0 || sum[i] > sum[best] || (isnan(sum[best]) && !isnan(sum[i]))))
                    best = i;
            assert_int_equal(chosen[c], best);
            taken[best] = true;
        }
        int32_t best = -1;
        bool    bad = false;
        for (int32_t i = 0; i < n; i++) {
            bad |= isnan(score[i]) || score[i] == INFINITY;
            if (score[i] > (best < 0 ? -INFINITY : score[best]))
                best = i;
        }
        assert_int_equal(k.largest(score, n), bad ? -1 : best);
    }
}

static void test_choose(void **state)
{
    (void)state;
    each_level(check_choose);
}

/* exp and log are each right to a few halves of a step, and the root halves what they are off. */
static void check_scores(void)
{
    enum { N = 4003 };
    static float z[N], y[N];
    double       sum = 0, size = 0;
    for (int i = 0; i < N; i++)
        z[i] = y[i] = ((float)i - N / 2) * 0.02f + random_float() * 0.01f;
    y[5] = z[5] = NAN;
    y[6] = z[6] = -INFINITY;
    y[7] = z[7] = 3e38f;
    k.route_scores(y, N);
    for (int i = 0; i < N; i++) {
        const double want = sqrt(z[i] > 20.0f ? (double)z[i] : log1p(exp((double)z[i])));
        assert_true(isnan(want) ? isnan(y[i]) : fabs((double)y[i] - want) <= 6 * U * want);
    }
    for (int i = 8; i < N; i++) {
        sum += (double)y[i];
        size += fabs((double)y[i]);
    }
    assert_true(fabs(k.sum_doubles(y + 8, N - 8) - sum) <= N * 0x1p-52 * size);
}

static void test_scores(void **state)
{
    (void)state;
    each_level(check_scores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_products),
        cmocka_unit_test(test_products), cmocka_unit_test(test_decoders), cmocka_unit_test(test_fp4_dots), cmocka_unit_test(test_rows_past), cmocka_unit_test(test_rotary),
        cmocka_unit_test(test_select),   cmocka_unit_test(test_choose),   cmocka_unit_test(test_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
