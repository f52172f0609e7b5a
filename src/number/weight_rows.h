/* Weight matrices in their stored formats, row-major [n_out][n_in].
 *
 * Encoders take fp32 and refuse NaN and Inf with NIB_E_NUMERIC (outputs are then unspecified). Decoders give one row
 * exactly, in double and without the NVFP4 global scale, which the caller applies once. Nothing is allocated; safe
 * from any thread. */
#ifndef NIB_WEIGHT_ROWS_H
#define NIB_WEIGHT_ROWS_H

#include <stdint.h>

#include "nibble.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The global scale of an NVFP4 tensor (or of several that share one) with largest magnitude amax: amax / 2688. */
float nib_nvfp4_global_scale(float amax);

/* E2M1 pairs [n_out][n_in / 2], UE4M3 scales [n_out][n_in / 16], under the global scale g >= 0. n_in must be a
 * multiple of 16. A block that is all zero, or too small for the smallest scale, gets scale byte 0x00. */
enum nib_status nib_nvfp4_weight_encode(const float *w, int64_t n_out, int64_t n_in, float g, uint8_t *codes,
                                        uint8_t *scales);

/* E2M1 pairs [n_out][n_in / 2], UE8M0 scales [n_out][n_in / 32] = 2^ceil(log2(max|block| / 6)); byte 0 where all are
 * zero. n_in must be a multiple of 32. */
enum nib_status nib_mxfp4_weight_encode(const float *w, int64_t n_out, int64_t n_in, uint8_t *codes, uint8_t *scales);

/* E4M3 codes [n_out][n_in], UE8M0 scales [ceil(n_out / 128)][ceil(n_in / 128)] = 2^ceil(log2(max|block| / 448)); byte
 * 0 where all are zero. Blocks at the edges may be partial. */
enum nib_status nib_fp8_weight_encode(const float *w, int64_t n_out, int64_t n_in, uint8_t *codes, uint8_t *scales);

/* One row: codes and scales point at the row's own bytes; for FP8 scales at the row of blocks that holds it. */
void nib_nvfp4_weight_decode(const uint8_t *codes, const uint8_t *scales, int64_t n_in, double *w);
void nib_mxfp4_weight_decode(const uint8_t *codes, const uint8_t *scales, int64_t n_in, double *w);
void nib_fp8_weight_decode(const uint8_t *codes, const uint8_t *scales, int64_t n_in, double *w);

#ifdef __cplusplus
}
#endif
#endif
