/* speed: the row kernels in memory against a copy, on two cores. Matrices out of buffers much larger than any cache are
 * copied and converted turn about, a piece for each thread at once; it counts only if neither thread was interrupted,
 * and the middle one of many is taken, so a busy machine takes longer to measure but gives nearly the same answer.
 * Bytes count as source + destination for both. Exit 1 below the wanted shares.
 *
 * The floor for absmax, a weight: 2 + 2 bytes read (the tensor's largest magnitude decides every scale, so weights are
 * seen twice) and 0.5625 written, where a copy reads 2 and writes 2: (2.56 / 4.56) / (4 / 4), at most 56 % of a copy.
 * The 4.65 instructions a weight that remain, error sums among them, keep it at 30 to 34 %. The converter has the first
 * look while it reads; speed_files.sh holds it to the 35 % of a copy that are asked for. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "quantize/kernels_quant.h"

/* 16 matrices of 16 MiB, as large as those of an expert; a piece is 1 MiB. */
enum { COLS = 4096, BLOCKS = COLS / NIB_QUANT_BLOCK, PIECE_ROWS = 128, N_THREADS = 2, N_ROUNDS = 8, N_MATRICES = 16 };
enum { ROWS = PIECE_ROWS * N_THREADS * N_ROUNDS * N_MATRICES };
enum what { COPY, LARGEST, ABSMAX, MSE, N_WHATS };

static double clock_s(clockid_t id)
{
    struct timespec t = {0};
    (void)clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint16_t *g_x;
static uint8_t  *g_codes, *g_scales, *g_copy;
static float     g_amax;

static double do_piece(const struct nib_quant_kernels *k, enum what what, int64_t first)
{
    struct nib_quant_sums sums = {0};
    double                result = 0;
    if (what == COPY)
        memcpy(g_copy + first * COLS * 2, g_x + first * COLS, (size_t)PIECE_ROWS * COLS * 2);
    for (int64_t i = first; i < first + PIECE_ROWS && what != COPY; i++) {
        const struct nib_quant_row r = {
            .bf16 = g_x + i * COLS, .n_blocks = BLOCKS, .g = g_amax / (what == MSE ? 1536 : 2688), .unit = 1};
        if (what == LARGEST) {
            result += (double)k->absmax(&r);
            continue;
        }
        k->choose(&r, what == MSE ? NIB_QUANT_CHOOSE_MSE : NIB_QUANT_CHOOSE_ABSMAX, g_scales + i * BLOCKS);
        k->encode(&r, g_scales + i * BLOCKS, g_codes + i * COLS / 2, &sums);
    }
    return result + sums.ee;
}

/* One piece for each thread at the same time: the longer one's seconds. Negative if one of them had to wait for a
 * processor, or if they did not begin together. */
static double round_s(const struct nib_quant_kernels *k, enum what what, int round)
{
    double first = 1e18, last = 0, longest = 0, waited = 0, sum = 0;
    int    arrived = 0;
#pragma omp parallel num_threads(N_THREADS) reduction(+ : sum) reduction(min : first) \
    reduction(max : last, longest, waited)
    {
#pragma omp for schedule(static, 1)
        for (int i = 0; i < N_THREADS; i++) {
            const double deadline = clock_s(CLOCK_MONOTONIC) + 1;
#pragma omp atomic
            arrived++;
            for (int here = 0; here < N_THREADS && clock_s(CLOCK_MONOTONIC) < deadline;) {
#pragma omp atomic read
                here = arrived;
            }
            const double worked = clock_s(CLOCK_THREAD_CPUTIME_ID), begin = clock_s(CLOCK_MONOTONIC);
            sum += do_piece(k, what, ((int64_t)round * N_THREADS + i) * PIECE_ROWS);
            longest = clock_s(CLOCK_MONOTONIC) - begin;
            waited = longest - (clock_s(CLOCK_THREAD_CPUTIME_ID) - worked);
            first = last = begin;
        }
    }
    return waited > 0.02 * longest || last - first > 0.05 * longest || sum < 0 ? -1 : longest;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void)
{
    const struct nib_quant_kernels *k = nib_quant_kernels_find(false);
    const double n = (double)PIECE_ROWS * COLS * N_THREADS, limit = clock_s(CLOCK_MONOTONIC) + 60;
    enum { N_MAX = 400, N_WANTED = 100 };
    double   s[N_WHATS][N_MAX];
    int      count[N_WHATS] = {0}, least = 0;
    uint32_t seed = 1;
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
    memset(g_codes, 1, (size_t)COLS * ROWS / 2);
    memset(g_scales, 1, (size_t)ROWS * BLOCKS);
    g_amax = k->absmax(&(struct nib_quant_row){.bf16 = g_x, .n_blocks = (int64_t)BLOCKS * ROWS, .g = 1, .unit = 1});
    /* Each kind of work on a matrix of its own, as the converter goes through one: all of it looked at, then all of it
     * converted. */
    for (int turn = 0; least < N_WANTED && clock_s(CLOCK_MONOTONIC) < limit; turn++) {
        least = N_MAX;
        for (int what = 0; what < N_WHATS; what++) {
            const int matrix = (turn * 3 + (what == COPY ? 0 : what == MSE ? 1 : 2)) % N_MATRICES;
            for (int round = 0; round < N_ROUNDS; round++) {
                const double t = count[what] < N_MAX ? round_s(k, (enum what)what, matrix * N_ROUNDS + round) : -1;
                if (t > 0)
                    s[what][count[what]++] = t;
            }
            least = count[what] < least ? count[what] : least;
        }
    }
    for (int what = 0; what < N_WHATS; what++)
        qsort(s[what], (size_t)count[what], sizeof s[what][0], compare);
    if (least < 10) {
        printf("skipped: the machine is too busy, %d undisturbed pieces of %d\n", least, N_WANTED);
        return 77;
    }
    const double copy = s[COPY][count[COPY] / 2], mse = n / s[MSE][count[MSE] / 2] / 1e6;
    const double largest = s[LARGEST][count[LARGEST] / 2], absmax = s[ABSMAX][count[ABSMAX] / 2];
    const double copy_rate = n * 4 / copy / 1e9, absmax_rate = n * 2.5625 / (largest + absmax) / 1e9;
    printf(
        "two cores: memcpy %.2f GB/s; absmax %.2f GB/s = %.0f %% of it, wanted 25 %% (%.2f ns a block to look, %.2f to "
        "convert); mse %.0f M weights/s, wanted 100\n",
        copy_rate, absmax_rate, 100 * absmax_rate / copy_rate, largest / n * 16e9 * N_THREADS,
        absmax / n * 16e9 * N_THREADS, mse);
    if (k == &nib_quant_kernels_portable) {
        printf("no AVX2: the wanted shares are for it\n");
        return 0;
    }
    return absmax_rate >= 0.25 * copy_rate && mse >= 100 ? 0 : 1;
}
