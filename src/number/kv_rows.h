/* Storage of one KV row: d channels of which the last n_rot are rotary, n = d - n_rot. One pair of functions a format;
 * which to use is told by enum nib_row_format (backend.h, where the layouts are defined). Rows need no alignment.
 * A row with NaN or Inf decodes to NaN in the block concerned (NVFP4: all n channels) or as it was (F32, BF16).
 * Padding bytes are written as zero. Nothing is allocated; safe from any thread. */
#ifndef NIB_KV_ROWS_H
#define NIB_KV_ROWS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a row, a multiple of 4. */
int64_t nib_kv_f32_bytes(int32_t d);
int64_t nib_kv_bf16_bytes(int32_t d);
int64_t nib_kv_fp8_bytes(int32_t d, int32_t n_rot);
int64_t nib_kv_nvfp4_bytes(int32_t d, int32_t n_rot);
int64_t nib_kv_fp4_bytes(int32_t d);

void nib_kv_f32_encode(const float *x, int32_t d, uint8_t *row);
void nib_kv_f32_decode(const uint8_t *row, int32_t d, float *x);
void nib_kv_bf16_encode(const float *x, int32_t d, uint8_t *row);
void nib_kv_bf16_decode(const uint8_t *row, int32_t d, float *x);
void nib_kv_fp8_encode(const float *x, int32_t d, int32_t n_rot, uint8_t *row);
void nib_kv_fp8_decode(const uint8_t *row, int32_t d, int32_t n_rot, float *x);
void nib_kv_nvfp4_encode(const float *x, int32_t d, int32_t n_rot, uint8_t *row);
void nib_kv_nvfp4_decode(const uint8_t *row, int32_t d, int32_t n_rot, float *x);
/* Indexer keys, all d channels alike; Hadamard is the caller's step. */
void nib_kv_fp4_encode(const float *x, int32_t d, uint8_t *row);
void nib_kv_fp4_decode(const uint8_t *row, int32_t d, float *x);

#ifdef __cplusplus
}
#endif
#endif
