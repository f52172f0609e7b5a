/* Row kernels of the quantiser: scales, codes and error sums of one row of a weight matrix.
 *
 * A row is BF16 (official FP8 decodes to BF16 without loss, see rows_quant.h) or F32, a whole number of blocks of 16.
 * Every variant of a slot gives the same bits: the portable one is the definition, in the order of operations described
 * here; the AVX2 one is held to it by tests/unit/test_quantize_kernels.c. */
#ifndef NIB_KERNELS_QUANT_H
#define NIB_KERNELS_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#define NIB_QUANT_BLOCK 16
/* Scales that a search tries: this many neighbouring E4M3 codes, two binades. */
#define NIB_QUANT_CANDIDATES 16

enum nib_quant_choice { NIB_QUANT_CHOOSE_ABSMAX, NIB_QUANT_CHOOSE_4OVER6, NIB_QUANT_CHOOSE_MSE };

/* Error sums, of values times the row's `unit`. */
struct nib_quant_sums {
    double  xx, yy, ee; /* source^2, decoded^2, (source - decoded)^2 */
    int64_t saturated;      /* values beyond the grid: |x| / d rounds to more than 6 */
};

struct nib_quant_row {
    const uint16_t *bf16; /* one of the two is NULL */
    const float    *f32;
    int64_t         n_blocks;
    float           g;    /* > 0 */
    float unit; /* power of two that brings the tensor's largest magnitude near 1: squares then stay in range */
    const float    *weight; /* [16 * n_blocks] of squared errors, or NULL: all 1 */
};

struct nib_quant_kernels {
    /* Largest magnitude of the row; Inf or NaN where it holds one. */
    float (*absmax)(const struct nib_quant_row *r);

    /* scales [n_blocks]. absmax: e4m3(min(max|x| / 6 / g, 448)), true divisions. 4-over-6: that, or the same with 4 in
     * place of 6, whichever has the smaller error (ties: 6). MSE: the best of NIB_QUANT_CANDIDATES codes from e4m3(0.6
     * * max|x| / 6 / g) up (ties: the lowest). A block of zeros gets byte 0. Errors are weighted where `weight` is
     * given. */
    void (*choose)(const struct nib_quant_row *r, enum nib_quant_choice how, uint8_t *scales);

    /* codes [8 * n_blocks] = e2m1(x / (s * g)), true division, ties to even; zeros where s * g is 0. Adds to *sums what
     * measure() adds, and how many values saturate. */
    void (*encode)(const struct nib_quant_row *r, const uint8_t *scales, uint8_t *codes, struct nib_quant_sums *sums);

    /* Add the row's sums under any codes; `saturated` is left alone. */
    void (*measure)(const struct nib_quant_row *r, const uint8_t *scales, const uint8_t *codes,
                    struct nib_quant_sums *sums);

    /* n E4M3 bytes as BF16 times 2^k. Exact for -117 <= k <= 119. */
    void (*fp8_to_bf16)(const uint8_t *x, int64_t n, int32_t k, uint16_t *out);
};

/* The fastest table this machine may use; portable = true: the definition. */
const struct nib_quant_kernels *nib_quant_kernels_find(bool portable);

extern const struct nib_quant_kernels nib_quant_kernels_portable;
#if defined(__x86_64__)
extern const struct nib_quant_kernels nib_quant_kernels_avx2;
#endif

/* ---- Shared by the variants ---- */

/* Largest code of a search's first candidate, so that all of them are numbers. */
#define NIB_QUANT_FIRST_MAX (0x7e - (NIB_QUANT_CANDIDATES - 1))

/* First candidate for a block whose amax / 6 / g is t. */
uint8_t nib_quant_first_candidate(float t);

/* |x| / d rounded to E2M1 for the search, given y = |x| * (1 / d): sums and differences that round at 0.5, 1 and 2. */
static inline float nib_quant_round(float y)
{
    const float halves = (y + 0x1.8p+22f) - 0x1.8p+22f, ones = (y + 0x1.8p+23f) - 0x1.8p+23f;
    const float twos = (y + 0x1.8p+24f) - 0x1.8p+24f, top = twos < 6.0f ? twos : 6.0f;
    return y < 2.0f ? halves : y < 4.0f ? ones : top;
}

#endif
