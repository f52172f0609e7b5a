/* KV rows in bytes: the quantised channels by act_rows.h, the rotary ones as BF16. */
#include "number/kv_rows.h"

#include <string.h>

#include "number/act_rows.h"
#include "number/bf16.h"

enum { FP8_BLOCK = 64 };

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

int64_t nib_kv_f32_bytes(int32_t d)
{
    return 4 * (int64_t)d;
}

int64_t nib_kv_bf16_bytes(int32_t d)
{
    return round_up(2 * (int64_t)d, 4);
}

static int64_t fp8_scales_bytes(int64_t n)
{
    return round_up(round_up(n, FP8_BLOCK) / FP8_BLOCK, 8);
}

int64_t nib_kv_fp8_bytes(int32_t d, int32_t n_rot)
{
    int64_t n = d - n_rot;
    return round_up(n + 2 * (int64_t)n_rot + fp8_scales_bytes(n), 4);
}

/* Where the fp32 row scale of an NVFP4 row stands. */
static int64_t nvfp4_scale_at(int64_t n)
{
    return round_up(round_up(n, 2) / 2 + round_up(n, 16) / 16, 4);
}

int64_t nib_kv_nvfp4_bytes(int32_t d, int32_t n_rot)
{
    return round_up(nvfp4_scale_at(d - n_rot) + 4 + 2 * (int64_t)n_rot, 4);
}

int64_t nib_kv_fp4_bytes(int32_t d)
{
    return round_up(round_up(d, 2) / 2 + round_up(d, 32) / 32, 4);
}

static void bf16_encode(const float *x, int32_t n, uint8_t *bytes)
{
    for (int32_t i = 0; i < n; i++) {
        uint16_t h = nib_bf16_from_f32(x[i]);
        memcpy(bytes + 2 * i, &h, sizeof h);
    }
}

static void bf16_decode(const uint8_t *bytes, int32_t n, float *x)
{
    for (int32_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, bytes + 2 * i, sizeof h);
        x[i] = nib_bf16_to_f32(h);
    }
}

void nib_kv_f32_encode(const float *x, int32_t d, uint8_t *row)
{
    memcpy(row, x, (size_t)d * sizeof *x);
}

void nib_kv_f32_decode(const uint8_t *row, int32_t d, float *x)
{
    memcpy(x, row, (size_t)d * sizeof *x);
}

void nib_kv_bf16_encode(const float *x, int32_t d, uint8_t *row)
{
    memset(row + 2 * (int64_t)d, 0, (size_t)(nib_kv_bf16_bytes(d) - 2 * (int64_t)d));
    bf16_encode(x, d, row);
}

void nib_kv_bf16_decode(const uint8_t *row, int32_t d, float *x)
{
    bf16_decode(row, d, x);
}

void nib_kv_fp8_encode(const float *x, int32_t d, int32_t n_rot, uint8_t *row)
{
    int32_t n = d - n_rot;
    uint8_t *scales = row + n + 2 * n_rot;
    memset(scales, 0, (size_t)(nib_kv_fp8_bytes(d, n_rot) - (scales - row)));
    nib_fp8_row_encode(x, n, FP8_BLOCK, row, scales);
    bf16_encode(x + n, n_rot, row + n);
}

void nib_kv_fp8_decode(const uint8_t *row, int32_t d, int32_t n_rot, float *x)
{
    int32_t n = d - n_rot;
    nib_fp8_row_decode(row, row + n + 2 * n_rot, n, FP8_BLOCK, x);
    bf16_decode(row + n, n_rot, x + n);
}

void nib_kv_nvfp4_encode(const float *x, int32_t d, int32_t n_rot, uint8_t *row)
{
    int32_t n = d - n_rot;
    int64_t scales_at = (n + 1) / 2, g_at = nvfp4_scale_at(n);
    float g;
    memset(row + scales_at, 0, (size_t)(nib_kv_nvfp4_bytes(d, n_rot) - scales_at));
    nib_nvfp4_row_encode(x, n, row, row + scales_at, &g);
    memcpy(row + g_at, &g, sizeof g);
    bf16_encode(x + n, n_rot, row + g_at + 4);
}

void nib_kv_nvfp4_decode(const uint8_t *row, int32_t d, int32_t n_rot, float *x)
{
    int32_t n = d - n_rot;
    int64_t g_at = nvfp4_scale_at(n);
    float g;
    memcpy(&g, row + g_at, sizeof g);
    nib_nvfp4_row_decode(row, row + (n + 1) / 2, g, n, x);
    bf16_decode(row + g_at + 4, n_rot, x + n);
}

void nib_kv_fp4_encode(const float *x, int32_t d, uint8_t *row)
{
    int32_t scales_at = (d + 1) / 2;
    memset(row + scales_at, 0, (size_t)(nib_kv_fp4_bytes(d) - scales_at));
    nib_fp4_row_encode(x, d, row, row + scales_at);
}

void nib_kv_fp4_decode(const uint8_t *row, int32_t d, float *x)
{
    nib_fp4_row_decode(row, row + (d + 1) / 2, d, x);
}
