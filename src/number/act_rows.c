/* Block-quantised rows and the Hadamard transform; see act_rows.h for the formats. */
#include "number/act_rows.h"

#include <math.h>

#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"

enum { FP4_BLOCK = 32, NVFP4_BLOCK = 16, INT8_BLOCK = 32 };

static int32_t block_length(int32_t n, int32_t begin, int32_t block)
{
    return n - begin < block ? n - begin : block;
}

void nib_fp8_row_encode(const float *x, int32_t n, int32_t block, uint8_t *codes, uint8_t *scales)
{
    for (int32_t begin = 0; begin < n; begin += block, scales++) {
        int32_t length = block_length(n, begin, block);
        float amax = nib_f32_absmax(x + begin, length);
        if (!nib_f32_is_finite(amax)) {
            *scales = NIB_E8M0_NAN;
            memset(codes + begin, NIB_E4M3_NAN, (size_t)length);
            continue;
        }
        *scales = nib_e8m0_ceil((amax > 1e-4f ? amax : 1e-4f) * (1.0f / NIB_E4M3_MAX));
        float scale = nib_e8m0_to_f32(*scales);
        for (int32_t i = begin; i < begin + length; i++)
            codes[i] = nib_e4m3_from_f32(x[i] / scale);
    }
}

void nib_fp8_row_decode(const uint8_t *codes, const uint8_t *scales, int32_t n, int32_t block, float *x)
{
    for (int32_t begin = 0; begin < n; begin += block, scales++) {
        float scale = nib_e8m0_to_f32(*scales);
        int32_t end = begin + block_length(n, begin, block);
        for (int32_t i = begin; i < end; i++)
            x[i] = nib_e4m3_to_f32(codes[i]) * scale;
    }
}

/* codes[i / 2] of n values divided by d. */
static void e2m1_pack(const float *x, int32_t n, float d, uint8_t *codes)
{
    for (int32_t i = 0; i + 1 < n; i += 2)
        codes[i / 2] = (uint8_t)(nib_e2m1_from_f32(x[i] / d) | nib_e2m1_from_f32(x[i + 1] / d) << 4);
    if (n % 2)
        codes[n / 2] = nib_e2m1_from_f32(x[n - 1] / d);
}

static void e2m1_unpack(const uint8_t *codes, int32_t n, float d, float *x)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = nib_e2m1_to_f32((uint32_t)codes[i / 2] >> (i % 2 * 4)) * d;
}

uint8_t nib_nvfp4_block_encode(const float *x, int32_t n, float g, uint8_t *codes)
{
    uint8_t scale = 0;
    float d = 0;
    if (g > 0) {
        float s = nib_f32_absmax(x, n) / NIB_E2M1_MAX / g;
        scale = nib_e4m3_from_f32(s < NIB_E4M3_MAX ? s : NIB_E4M3_MAX);
        d = nib_e4m3_to_f32(scale) * g;
    }
    if (d > 0)
        e2m1_pack(x, n, d, codes);
    else
        memset(codes, 0, (size_t)(n + 1) / 2);
    return scale;
}

void nib_nvfp4_row_encode(const float *x, int32_t n, uint8_t *codes, uint8_t *scales, float *g)
{
    float amax = nib_f32_absmax(x, n);
    if (!nib_f32_is_finite(amax)) {
        *g = NAN;
        memset(codes, 0, (size_t)(n + 1) / 2);
        memset(scales, NIB_E4M3_NAN, (size_t)(n + NVFP4_BLOCK - 1) / NVFP4_BLOCK);
        return;
    }
    *g = amax / (NIB_E2M1_MAX * NIB_E4M3_MAX);
    for (int32_t begin = 0; begin < n; begin += NVFP4_BLOCK, scales++)
        *scales = nib_nvfp4_block_encode(x + begin, block_length(n, begin, NVFP4_BLOCK), *g, codes + begin / 2);
}

void nib_nvfp4_row_decode(const uint8_t *codes, const uint8_t *scales, float g, int32_t n, float *x)
{
    for (int32_t begin = 0; begin < n; begin += NVFP4_BLOCK, scales++)
        e2m1_unpack(codes + begin / 2, block_length(n, begin, NVFP4_BLOCK), nib_e4m3_to_f32(*scales) * g, x + begin);
}

void nib_int8_row_encode(const float *x, int32_t n, int8_t *codes, float *scales)
{
    for (int32_t begin = 0; begin < n; begin += INT8_BLOCK, scales++) {
        int32_t length = block_length(n, begin, INT8_BLOCK);
        float amax = nib_f32_absmax(x + begin, length);
        *scales = nib_f32_is_finite(amax) ? amax / 127.0f : NAN;
        if (!(*scales > 0)) {
            memset(codes + begin, 0, (size_t)length);
            continue;
        }
        for (int32_t i = begin; i < begin + length; i++) {
            /* A subnormal scale may be rounded down so far that the quotient passes 127. */
            long q = lrintf(x[i] / *scales);
            codes[i] = (int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
        }
    }
}

void nib_int8_row_decode(const int8_t *codes, const float *scales, int32_t n, float *x)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = (float)codes[i] * scales[i / INT8_BLOCK];
}

void nib_fp4_row_encode(const float *x, int32_t n, uint8_t *codes, uint8_t *scales)
{
    const float least = 0x1.8p-124f; /* 6 * 2^-126 */
    for (int32_t begin = 0; begin < n; begin += FP4_BLOCK, scales++) {
        int32_t length = block_length(n, begin, FP4_BLOCK);
        float amax = nib_f32_absmax(x + begin, length);
        if (!nib_f32_is_finite(amax)) {
            *scales = NIB_E8M0_NAN;
            memset(codes + begin / 2, 0, (size_t)(length + 1) / 2);
            continue;
        }
        *scales = nib_e8m0_ceil((amax > least ? amax : least) * (1.0f / NIB_E2M1_MAX));
        e2m1_pack(x + begin, length, nib_e8m0_to_f32(*scales), codes + begin / 2);
    }
}

void nib_fp4_row_decode(const uint8_t *codes, const uint8_t *scales, int32_t n, float *x)
{
    for (int32_t begin = 0; begin < n; begin += FP4_BLOCK, scales++)
        e2m1_unpack(codes + begin / 2, block_length(n, begin, FP4_BLOCK), nib_e8m0_to_f32(*scales), x + begin);
}

void nib_hadamard(float *x, int32_t n)
{
    for (int32_t stride = 1; stride < n; stride *= 2) {
        for (int32_t i = 0; i < n; i += 2 * stride) {
            for (int32_t k = i; k < i + stride; k++) {
                float a = x[k], b = x[k + stride];
                x[k] = a + b;
                x[k + stride] = a - b;
            }
        }
    }
    float scale = (float)(1.0 / sqrt((double)n));
    for (int32_t i = 0; i < n; i++)
        x[i] *= scale;
}
