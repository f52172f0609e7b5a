/* Rows of NVFP4 from values in shared memory, by a block of 256 threads a row. The conversions to E4M3 and E2M1
 * are the hardware's; the values they get are those of the definition (src/number/act_rows.h), true divisions
 * included, so codes and scales are the same bits. Block scales go where the tensor core wants them (sm100a.h). */
#ifndef NIB_ROWS_SM100A_CUH
#define NIB_ROWS_SM100A_CUH

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kThreads = 256;
constexpr int kBlock = 16; /* values that share a scale */

/* The E4M3 byte of v >= 0; NaN gives 0x7f. */
NIB_DEVICE uint32_t e4m3_of(float v)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(v));
    return pair & 0xffu;
}

/* E2M1 codes of eight values, the first lowest. */
NIB_DEVICE uint32_t e2m1_of(const float v[8])
{
    uint32_t codes;
    asm("{\n.reg .b8 a, b, c, d;\ncvt.rn.satfinite.e2m1x2.f32 a, %2, %1;\ncvt.rn.satfinite.e2m1x2.f32 b, %4, %3;\n"
        "cvt.rn.satfinite.e2m1x2.f32 c, %6, %5;\ncvt.rn.satfinite.e2m1x2.f32 d, %8, %7;\nmov.b32 %0, {a, b, c, d};\n}"
        : "=r"(codes)
        : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]));
    return codes;
}

/* One block under the row's scale g; returns the scale byte. */
NIB_DEVICE uint32_t encode_block(const float *x, float g, uint2 *codes)
{
    float most = __uint_as_float(nib_absmax_bits(x, kBlock)), s = g > 0 ? most / 6.0f / g : 0.0f;
    *codes = make_uint2(0, 0);
    if (!(g > 0))
        return 0;
    uint32_t scale = e4m3_of(s < 448.0f ? s : 448.0f);
    float    d = nib_e4m3_value(scale) * g;
    if (!(d > 0))
        return scale;
    float v[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; i++)
        v[i] = x[i] / d;
    *codes = make_uint2(e2m1_of(v), e2m1_of(v + 8));
    return scale;
}

/* Row `row` of n_in values x, a multiple of 16, visible to all threads. max_buffer [32]. */
NIB_DEVICE void nib_nvfp4_row_store(const struct nib_sm100a_rows &q, int64_t row, const float *x, int32_t n_in,
                                    uint32_t *max_buffer)
{
    uint32_t most = 0;
    for (int32_t i = threadIdx.x; i < n_in; i += kThreads)
        most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
    float amax = __uint_as_float(nib_block_max_u32(most, max_buffer));
    bool  finite = nib_is_finite(amax);
    float g = finite ? amax / 2688.0f : __uint_as_float(0x7fc00000u);
    if (threadIdx.x == 0)
        q.row_scale[row] = g;

    /* A thread a block of 16; the scales of four blocks of a row lie on end. Blocks behind the row's end get 0. */
    int32_t  n_blocks = n_in / kBlock, n_tiles = (n_in + NIB_SM100A_K_TILE - 1) / NIB_SM100A_K_TILE;
    int32_t  n_padded = n_tiles * (NIB_SM100A_K_TILE / kBlock);
    int64_t  s_row = q.scale_row ? q.scale_row[row] : row;
    uint8_t *codes = q.codes + row * q.codes_stride;
    uint8_t *scales = q.scales + s_row / 128 * ((int64_t)n_padded * 128) + s_row % 32 * 16 + s_row % 128 / 32 * 4;
    int      atom = 512;
    if (q.scales_stride) {
        scales = q.scales + s_row * q.scales_stride;
        atom = 4;
        n_padded = (n_blocks + 3) / 4 * 4;
    }
    for (int32_t first = 0; first < n_padded; first += kThreads) { /* whole warps, for the exchange */
        int32_t  b = first + (int32_t)threadIdx.x;
        uint32_t scale = 0;
        if (b < n_blocks) {
            uint2 pair;
            scale = encode_block(x + b * kBlock, finite ? g : 0.0f, &pair);
            *(uint2 *)(codes + b * 8) = pair;
        }
        uint32_t word = scale << 8 * (b % 4); /* the four lanes' bytes together: one store a word */
        word |= __shfl_xor_sync(~0u, word, 1);
        word |= __shfl_xor_sync(~0u, word, 2);
        if (b % 4 == 0 && b < n_padded)
            *(uint32_t *)(scales + b / 4 * atom) = word;
    }
}

#endif
