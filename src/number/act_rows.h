/* Rows of numbers quantised in blocks: the activation formats and the 4-bit rows of the indexer.
 *
 * Scales are written as bytes or floats, one per block; the last block of a row may be shorter and has its own
 * maximum. 4-bit codes are packed two a byte, even element low; with an odd n the last high nibble is zero. A block
 * that holds NaN or Inf gets a NaN scale, and every value of it decodes to NaN; in NVFP4 rows the whole row does.
 * Nothing is allocated; safe from any thread. */
#ifndef NIB_ACT_ROWS_H
#define NIB_ACT_ROWS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* E4M3 codes [n], UE8M0 scales [ceil(n / block)]: scale = 2^ceil(log2(max(max|x|, 1e-4) * (1/448))). Activations use
 * blocks of 128, KV rows of 64. */
void nib_fp8_row_encode(const float *x, int32_t n, int32_t block, uint8_t *codes, uint8_t *scales);
void nib_fp8_row_decode(const uint8_t *codes, const uint8_t *scales, int32_t n, int32_t block, float *x);

/* E2M1 codes [ceil(n / 2)], UE4M3 scales [ceil(n / 16)], one row scale *g = max|row| / 2688; true divisions. Values
 * decode to e2m1 * (s * g), both products in fp32. */
void nib_nvfp4_row_encode(const float *x, int32_t n, uint8_t *codes, uint8_t *scales, float *g);
void nib_nvfp4_row_decode(const uint8_t *codes, const uint8_t *scales, float g, int32_t n, float *x);

/* One block of NVFP4, n <= 16 finite values, under the scale g >= 0: codes [ceil(n / 2)]; returns the scale byte. A
 * block whose scale rounds to zero, or whose s * g underflows, gets zeros. */
uint8_t nib_nvfp4_block_encode(const float *x, int32_t n, float g, uint8_t *codes);

/* int8 codes [n], fp32 scales [ceil(n / 32)]: s = max|block| / 127, code = round to even of x / s. */
void nib_int8_row_encode(const float *x, int32_t n, int8_t *codes, float *scales);
void nib_int8_row_decode(const int8_t *codes, const float *scales, int32_t n, float *x);

/* E2M1 codes [ceil(n / 2)], UE8M0 scales [ceil(n / 32)]: scale = 2^ceil(log2(max(max|x|, 6 * 2^-126) * (1/6))). */
void nib_fp4_row_encode(const float *x, int32_t n, uint8_t *codes, uint8_t *scales);
void nib_fp4_row_decode(const uint8_t *codes, const uint8_t *scales, int32_t n, float *x);

/* Walsh-Hadamard transform of n values (a power of two) in natural order, times n^-0.5, in fp32: n log2(n) sums and
 * differences, then one product each. Its own inverse but for rounding. In place. */
void nib_hadamard(float *x, int32_t n);

#ifdef __cplusplus
}
#endif
#endif
