/* speed: the row kernels in memory against a copy, on two cores, turn about in one run; the best of many rounds counts, since other
 * work on the machine only ever makes a round slower. Bytes count as source + destination for both. Exit 1 below the wanted shares. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "quantize/kernels_quant.h"

enum { COLS = 4096, ROWS = 4096, BLOCKS = COLS / NIB_QUANT_BLOCK };

static double clock_s(void)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint16_t *g_x;
static uint8_t  *g_codes, *g_scales, *g_copy;

/* As the converter does it: the tensor's largest magnitude first, then scales, codes and error sums. */
static double encode_s(const struct nib_quant_kernels *k, enum nib_quant_choice how)
{
    const double start = clock_s();
    float        amax = 0;
    double       error = 0;
#pragma omp parallel num_threads(2)
    {
        struct nib_quant_sums sums = {0};
#pragma omp for schedule(static) reduction(max : amax)
        for (int64_t i = 0; i < ROWS; i++) {
            const struct nib_quant_row r = {.bf16 = g_x + i * COLS, .n_blocks = BLOCKS, .g = 1, .unit = 1};
            const float                a = k->absmax(&r);
            amax = a > amax ? a : amax;
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < ROWS; i++) {
            const struct nib_quant_row r = {.bf16 = g_x + i * COLS, .n_blocks = BLOCKS, .g = amax / 2688, .unit = 1};
            k->choose(&r, how, g_scales + i * BLOCKS);
            k->encode(&r, g_scales + i * BLOCKS, g_codes + i * COLS / 2, &sums);
        }
#pragma omp atomic
        error += sums.ee;
    }
    return clock_s() - start + (error < 0 ? 1 : 0);
}

static double copy_s(void)
{
    const size_t half = (size_t)COLS * ROWS;
    const double start = clock_s();
#pragma omp parallel for schedule(static) num_threads(2)
    for (int i = 0; i < 2; i++)
        memcpy(g_copy + (size_t)i * half, (uint8_t *)g_x + (size_t)i * half, half);
    return clock_s() - start;
}

int main(void)
{
    const struct nib_quant_kernels *k = nib_quant_kernels_find(false);
    const double n = (double)COLS * ROWS;
    double       copy = 1e9, absmax = 1e9, mse = 1e9;
    uint32_t     seed = 1;
    g_x = malloc((size_t)COLS * ROWS * 2);
    g_copy = malloc((size_t)COLS * ROWS * 2);
    g_codes = malloc((size_t)COLS * ROWS / 2);
    g_scales = malloc((size_t)ROWS * BLOCKS);
    if (!g_x || !g_copy || !g_codes || !g_scales)
        return 1;
    for (int64_t i = 0; i < (int64_t)COLS * ROWS; i++) {
        seed = seed * 1664525u + 1013904223u;
        g_x[i] = (uint16_t)(0x3c00u + (seed >> 22) + (seed << 4 & 0x8000u));
    }
    memset(g_copy, 1, (size_t)COLS * ROWS * 2);
    for (int round = 0; round < 40; round++) {
        const double c = copy_s(), a = encode_s(k, NIB_QUANT_CHOOSE_ABSMAX);
        copy = c < copy ? c : copy;
        absmax = a < absmax ? a : absmax;
        if (round < 10) {
            const double m = encode_s(k, NIB_QUANT_CHOOSE_MSE);
            mse = m < mse ? m : mse;
        }
    }
    const double copy_rate = n * 4 / copy / 1e9, absmax_rate = n * 2.5625 / absmax / 1e9;
    printf("two cores: copy %.2f GB/s, absmax %.2f GB/s = %.0f %% of it, mse %.0f M weights/s\n", copy_rate, absmax_rate,
           100 * absmax_rate / copy_rate, n / mse / 1e6);
    if (k == &nib_quant_kernels_portable) {
        printf("no AVX2: the wanted shares are for it\n");
        return 0;
    }
    return absmax_rate >= 0.35 * copy_rate && n / mse >= 1e8 ? 0 : 1;
}
