/* Encoders and exact decoders of the stored weight formats; see weights.h. */
#include "number/weight_rows.h"

#include "number/act_rows.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"

enum { NVFP4_BLOCK = 16, MXFP4_BLOCK = 32, FP8_BLOCK = 128 };

float nib_nvfp4_global_scale(float amax)
{
    return amax / (NIB_E2M1_MAX * NIB_E4M3_MAX);
}

enum nib_status nib_nvfp4_weight_encode(const float *w, int64_t n_out, int64_t n_in, float g, uint8_t *codes,
                                        uint8_t *scales)
{
    if (n_in % NVFP4_BLOCK != 0 || !(g >= 0) || !nib_f32_is_finite(g))
        return NIB_E_ARGUMENT;
    /* Rows are whole blocks, so the matrix is one run of blocks. */
    for (int64_t i = 0; i < n_out * n_in; i += NVFP4_BLOCK) {
        if (!nib_f32_is_finite(nib_f32_absmax(w + i, NVFP4_BLOCK)))
            return NIB_E_NUMERIC;
        scales[i / NVFP4_BLOCK] = nib_nvfp4_block_encode(w + i, NVFP4_BLOCK, g, codes + i / 2);
    }
    return NIB_OK;
}

enum nib_status nib_mxfp4_weight_encode(const float *w, int64_t n_out, int64_t n_in, uint8_t *codes, uint8_t *scales)
{
    if (n_in % MXFP4_BLOCK != 0)
        return NIB_E_ARGUMENT;
    for (int64_t i = 0; i < n_out * n_in; i += MXFP4_BLOCK) {
        float amax = nib_f32_absmax(w + i, MXFP4_BLOCK);
        if (!nib_f32_is_finite(amax))
            return NIB_E_NUMERIC;
        uint8_t b = nib_e8m0_ceil(amax / NIB_E2M1_MAX);
        float scale = nib_e8m0_to_f32(b);
        scales[i / MXFP4_BLOCK] = b;
        for (int64_t k = i; k < i + MXFP4_BLOCK; k += 2)
            codes[k / 2] = (uint8_t)(nib_e2m1_from_f32(w[k] / scale) | nib_e2m1_from_f32(w[k + 1] / scale) << 4);
    }
    return NIB_OK;
}

enum nib_status nib_fp8_weight_encode(const float *w, int64_t n_out, int64_t n_in, uint8_t *codes, uint8_t *scales)
{
    for (int64_t o0 = 0; o0 < n_out; o0 += FP8_BLOCK) {
        int64_t o1 = o0 + FP8_BLOCK < n_out ? o0 + FP8_BLOCK : n_out;
        for (int64_t k0 = 0; k0 < n_in; k0 += FP8_BLOCK) {
            int64_t k1 = k0 + FP8_BLOCK < n_in ? k0 + FP8_BLOCK : n_in;
            float amax = 0;
            for (int64_t o = o0; o < o1; o++) {
                float row = nib_f32_absmax(w + o * n_in + k0, k1 - k0);
                if (!nib_f32_is_finite(row))
                    return NIB_E_NUMERIC;
                amax = row > amax ? row : amax;
            }
            uint8_t b = nib_e8m0_ceil(amax / NIB_E4M3_MAX);
            float scale = nib_e8m0_to_f32(b);
            *scales++ = b;
            for (int64_t o = o0; o < o1; o++) {
                for (int64_t k = k0; k < k1; k++)
                    codes[o * n_in + k] = nib_e4m3_from_f32(w[o * n_in + k] / scale);
            }
        }
    }
    return NIB_OK;
}

static void e2m1_decode(const uint8_t *codes, int64_t n, double scale, double *w)
{
    for (int64_t i = 0; i < n; i += 2) {
        w[i] = (double)nib_e2m1_to_f32(codes[i / 2]) * scale;
        w[i + 1] = (double)nib_e2m1_to_f32((uint32_t)codes[i / 2] >> 4) * scale;
    }
}

void nib_nvfp4_weight_decode(const uint8_t *codes, const uint8_t *scales, int64_t n_in, double *w)
{
    for (int64_t k = 0; k < n_in; k += NVFP4_BLOCK)
        e2m1_decode(codes + k / 2, NVFP4_BLOCK, (double)nib_e4m3_to_f32(scales[k / NVFP4_BLOCK]), w + k);
}

void nib_mxfp4_weight_decode(const uint8_t *codes, const uint8_t *scales, int64_t n_in, double *w)
{
    for (int64_t k = 0; k < n_in; k += MXFP4_BLOCK)
        e2m1_decode(codes + k / 2, MXFP4_BLOCK, (double)nib_e8m0_to_f32(scales[k / MXFP4_BLOCK]), w + k);
}

void nib_fp8_weight_decode(const uint8_t *codes, const uint8_t *scales, int64_t n_in, double *w)
{
    for (int64_t k0 = 0; k0 < n_in; k0 += FP8_BLOCK) {
        double scale = (double)nib_e8m0_to_f32(scales[k0 / FP8_BLOCK]);
        int64_t k1 = k0 + FP8_BLOCK < n_in ? k0 + FP8_BLOCK : n_in;
        for (int64_t k = k0; k < k1; k++)
            w[k] = (double)nib_e4m3_to_f32(codes[k]) * scale;
    }
}
