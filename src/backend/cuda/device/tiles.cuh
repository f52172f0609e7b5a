/* Packed weight tiles: bit order, decoding into the A operand of m16n8k16, and single values.
 *
 * 4-bit words hold a row's codes of columns 16l + 8h .. 16l + 8h + 7 (h = 0, 1), that is of products 2h and 2h+1. Pair p of
 * a word (columns 2p, 2p+1) has its even code in the low half and its odd code in the high half, with the bits of each
 * code s m2 m1 m0 laid out so that bf16 operands (sign at 15, exponent and mantissa at 8..6) come out with few integer
 * operations, which on Hopper run at half the rate of others:
 *     p 0: s 15, m 8..6    p 1: s 12, m 5..3    p 2: s 13, m 2..0    p 3: s 14, m 11..9
 * Pairs 0 and 1 cost one mask (and a shift), 2 and 3 two. The result is value * 2^-126; the scale's multiplier brings it
 * back: value * scale has 6 significant bits, so every operand is exact.
 * 8-bit words hold a row's codes of one product: bytes (c0, c2) low half (low, high byte: c2 low, c0 high), (c3, c1). */
#ifndef NIB_CUDA_TILES_CUH
#define NIB_CUDA_TILES_CUH

#include "backend/cuda/cuda.h"
#include "backend/cuda/device/ptx.cuh"

constexpr int kTileRows = 16, kBlockCols = 64;

/* Powers of two that the operands carry; alpha undoes them (pack.cu). */
constexpr int kNvfp4Shift = 9;   /* operand = value * scale * 2^-9 */
constexpr int kScaleBytes = 254; /* the largest UE8M0 byte of a matrix is stored as this */

NIB_DEVICE float nib_alpha_of(const struct nib_cuda_matrix &m, int32_t stack)
{
    return m.alpha ? m.alpha[stack] : m.alpha0;
}

NIB_DEVICE int64_t nib_blocks_of(int32_t n_in)
{
    return (n_in + kBlockCols - 1) / kBlockCols;
}

/* Bits of pair p's code in a half word. */
NIB_DEVICE uint32_t nib_pair_put(uint32_t code, int p)
{
    uint32_t s = code >> 3 & 1u, m = code & 7u;
    return p == 0 ? s << 15 | m << 6 : p == 1 ? s << 12 | m << 3 : p == 2 ? s << 13 | m : s << 14 | m << 9;
}

NIB_DEVICE uint32_t nib_pair_get(uint32_t half, int p)
{
    uint32_t s = p == 0 ? half >> 15 : p == 1 ? half >> 12 : p == 2 ? half >> 13 : half >> 14;
    uint32_t m = p == 0 ? half >> 6 : p == 1 ? half >> 3 : p == 2 ? half : half >> 9;
    return (s & 1u) << 3 | (m & 7u);
}

/* Pair p of a 4-bit word as bf16x2, times 2^-126. */
template <int p> NIB_DEVICE uint32_t nib_pair_operand(uint32_t w)
{
    if (p == 0)
        return w & 0x81c081c0u;
    if (p == 1)
        return w << 3 & 0x81c081c0u;
    if (p == 2)
        return (w << 6 & 0x01c001c0u) | (w << 2 & 0x80008000u);
    return (w >> 3 & 0x01c001c0u) | (w << 1 & 0x80008000u);
}

/* The scale multipliers of rows g and g+8 in one block, each in both halves. */
struct nib_tile_scales {
    uint32_t row, row8;
};

NIB_DEVICE struct nib_tile_scales nib_spread(uint32_t pair)
{
    struct nib_tile_scales s = {__byte_perm(pair, 0, 0x1010), __byte_perm(pair, 0, 0x3232)};
    return s;
}

/* From the two scale bytes {row g, row g+8}. */
NIB_DEVICE struct nib_tile_scales nib_nvfp4_scales(uint32_t bytes)
{
    uint32_t v = __byte_perm(bytes, 0, 0x4140) << 4;                            /* e4m3 bits in bf16: scale * 2^-120 */
    return nib_spread(nib_mul_bf16x2(nib_mul_bf16x2(v, 0x7f007f00u), 0x76807680u)); /* * 2^127 * 2^110 = 2^117 */
}

NIB_DEVICE struct nib_tile_scales nib_mxfp4_scales(uint32_t bytes)
{
    return nib_spread(__byte_perm(bytes, 0, 0x4140) << 7);
}

/* A operand of product j from a lane's four words {row g: h 0, 1; row g+8: h 0, 1}. */
template <int j> NIB_DEVICE void nib_fp4_operand(const uint4 &w, const struct nib_tile_scales &s, uint32_t a[4])
{
    uint32_t row = j < 2 ? w.x : w.y, row8 = j < 2 ? w.z : w.w;
    constexpr int p = j % 2 * 2;
    a[0] = nib_mul_bf16x2(nib_pair_operand<p>(row), s.row);
    a[1] = nib_mul_bf16x2(nib_pair_operand<p>(row8), s.row8);
    a[2] = nib_mul_bf16x2(nib_pair_operand<p + 1>(row), s.row);
    a[3] = nib_mul_bf16x2(nib_pair_operand<p + 1>(row8), s.row8);
}

/* A operand from a word of four e4m3 codes for each of the two rows; scale as in nib_tile_scales. */
NIB_DEVICE void nib_fp8_operand(uint32_t row, uint32_t row8, uint32_t scale, uint32_t a[4])
{
    a[0] = nib_mul_bf16x2((row & 0x80008000u) | (row >> 4 & 0x07f007f0u), scale);
    a[1] = nib_mul_bf16x2((row8 & 0x80008000u) | (row8 >> 4 & 0x07f007f0u), scale);
    a[2] = nib_mul_bf16x2((row << 8 & 0x80008000u) | (row << 4 & 0x07f007f0u), scale);
    a[3] = nib_mul_bf16x2((row8 << 8 & 0x80008000u) | (row8 << 4 & 0x07f007f0u), scale);
}

/* ---- Addresses ---- */

NIB_DEVICE int nib_chunks_of(int32_t type)
{
    return type == NIB_WEIGHT_BF16 ? 4 : type == NIB_WEIGHT_FP8 ? 2 : 1;
}

/* Offset of the two scale bytes of (tile, block, lane); 4-bit types. */
NIB_DEVICE int64_t nib_scale_offset(int32_t type, int64_t n_blocks, int64_t tile, int64_t block, int lane)
{
    int     lanes = type == NIB_WEIGHT_NVFP4 ? 32 : 16, at = type == NIB_WEIGHT_NVFP4 ? lane : lane / 2;
    int64_t base = tile * n_blocks * lanes * 2, group = block / 4;
    if (group < n_blocks / 4)
        return base + group * 4 * lanes * 2 + at * 8 + block % 4 * 2;
    return base + block * lanes * 2 + at * 2;
}

/* ---- Single values, for the embedding and for matrices too small for tiles ---- */

NIB_DEVICE float nib_stored_value(const struct nib_cuda_matrix &m, const uint8_t *codes, const uint8_t *scales, int64_t o,
                                  int64_t k)
{
    int64_t n = m.n_in;
    switch (m.type) {
    case NIB_WEIGHT_F32: return ((const float *)codes)[o * n + k];
    case NIB_WEIGHT_BF16: return nib_bf16_value(((const uint16_t *)codes)[o * n + k]);
    case NIB_WEIGHT_FP8:
        return nib_e4m3_value(codes[o * n + k]) * nib_e8m0_value(scales[o / 128 * ((n + 127) / 128) + k / 128]);
    case NIB_WEIGHT_MXFP4:
        return nib_e2m1_value((uint32_t)codes[(o * n + k) / 2] >> (k % 2 * 4)) * nib_e8m0_value(scales[(o * n + k) / 32]);
    default:
        return nib_e2m1_value((uint32_t)codes[(o * n + k) / 2] >> (k % 2 * 4)) * nib_e4m3_value(scales[(o * n + k) / 16]);
    }
}

/* The same of tiles, as the operand that products see: alpha brings it to the weight's value. */
NIB_DEVICE float nib_tiled_value(const struct nib_cuda_matrix &m, const uint8_t *codes, const uint8_t *scales, int64_t o, int64_t k)
{
    int64_t tile = o / kTileRows, block = k / kBlockCols, n_blocks = nib_blocks_of(m.n_in);
    int     lane = (int)(o % 8 * 4 + k % kBlockCols / 16), half = (int)(o % kTileRows / 8), i = (int)(k % 16);
    const uint8_t *at = codes + ((tile * n_blocks + block) * nib_chunks_of(m.type) * 32 + lane) * 16 + half * 8;
    if (m.type == NIB_WEIGHT_BF16)
        return nib_bf16_value(*(const uint16_t *)(at + i / 4 * 512 + i % 4 * 2));
    if (m.type == NIB_WEIGHT_FP8) {
        const uint8_t *word = at + i / 8 * 512 + i % 8 / 4 * 4;
        uint32_t       code = word[i % 4 == 0 ? 1 : i % 4 == 1 ? 3 : i % 4 == 2 ? 0 : 2];
        return ldexpf(nib_e4m3_value(code), scales[o / 128 * ((n_blocks + 1) / 2) + block / 2] - 127 - 120);
    }
    uint32_t word = *(const uint32_t *)(at + i / 8 * 4);
    float    v = nib_e2m1_value(nib_pair_get(i % 2 ? word >> 16 : word & 0xffffu, i % 8 / 2));
    uint32_t scale = scales[nib_scale_offset(m.type, n_blocks, tile, block, lane) + half];
    return m.type == NIB_WEIGHT_NVFP4 ? ldexpf(v * nib_e4m3_value(scale), -kNvfp4Shift) : ldexpf(v, (int)scale - 127 - 126);
}

/* Scales in atoms of 128 rows by 4 blocks of 16 values (NVFP4) or 32, rows padded to 128 and columns to 256 or 128. */
NIB_DEVICE float nib_atoms_value(const struct nib_cuda_matrix &m, const uint8_t *codes, const uint8_t *scales, int64_t o, int64_t k)
{
    if (m.type == NIB_WEIGHT_BF16)
        return nib_stored_value(m, codes, scales, o, k);
    bool     nvfp4 = m.type == NIB_WEIGHT_NVFP4;
    int64_t  band = nvfp4 ? ((int64_t)m.n_in + 255) / 256 * 2048 : ((int64_t)m.n_in + 127) / 128 * 512, block = k / (nvfp4 ? 16 : 32);
    uint32_t scale = scales[o / 128 * band + block / 4 * 512 + o % 32 * 16 + o % 128 / 32 * 4 + block % 4];
    if (m.type == NIB_WEIGHT_FP8)
        return ldexpf(nib_e4m3_value(codes[o * m.n_in + k]), (int)scale - 127);
    float v = nib_e2m1_value((uint32_t)codes[(o * m.n_in + k) / 2] >> (k % 2 * 4));
    return nvfp4 ? v * nib_e4m3_value(scale) : ldexpf(v, (int)scale - 127);
}

/* Units of 8 rows by 128 columns (sm120a/sm120a.h), one part. Word j of a lane of row o % 8: of NVFP4 eight columns on end; of FP8
 * and MXFP4 four, columns 16 apart from word to word, MXFP4 with two such words in one. */
NIB_DEVICE float nib_units_value(const struct nib_cuda_matrix &m, const uint8_t *codes, const uint8_t *scales, int64_t o,
                                 int64_t k)
{
    int64_t unit = o / 8 * (((int64_t)m.n_in + 127) / 128) + k / 128, g = o % 8, at = k % 128;
    if (m.type == NIB_WEIGHT_NVFP4) {
        int64_t  word = at / 8;
        uint32_t code = (uint32_t)codes[unit * 512 + (g * 4 + word % 4) * 16 + word / 4 * 4 + k % 8 / 2] >> (k % 2 * 4);
        return nib_e2m1_value(code) * nib_e4m3_value(scales[unit * 64 + g * 8 + at / 16]);
    }
    int64_t lane = g * 4 + at % 16 / 4, word = at / 16;
    int32_t scale = (int32_t)scales[unit * 32 + g * 4 + at / 32] - 127;
    if (m.type == NIB_WEIGHT_FP8)
        return ldexpf(nib_e4m3_value(codes[unit * 1024 + word / 4 * 512 + lane * 16 + word % 4 * 4 + k % 4]), scale);
    return ldexpf(nib_e2m1_value((uint32_t)codes[unit * 512 + lane * 16 + word / 2 * 4 + k % 4] >> (word % 2 * 4)), scale);
}

NIB_DEVICE float nib_matrix_value(const struct nib_cuda_matrix &m, int32_t stack, int64_t o, int64_t k)
{
    const uint8_t *codes = m.codes + stack * m.codes_stride, *scales = m.scales + stack * m.scales_stride;
    if (m.layout == NIB_CUDA_UNITS)
        return nib_units_value(m, codes, scales, o, k);
    if (m.layout == NIB_CUDA_ATOMS)
        return nib_atoms_value(m, codes, scales, o, k);
    return m.layout == NIB_CUDA_STORED ? nib_stored_value(m, codes, scales, o, k) : nib_tiled_value(m, codes, scales, o, k);
}

#endif
