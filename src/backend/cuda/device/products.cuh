/* The core of every product with packed tiles: one warp, 16 outputs, a range of 64-column blocks, NT * 8 rows.
 *
 * Weights go from memory to registers 4 x 16 bytes a lane at a time, the next step's loads in flight while this one is
 * decoded and multiplied. Rows are read through L1 as bf16 parts; every part multiplies the same operand, so weights are
 * decoded once. The order of sums is fixed by the range alone: rows do not see each other. */
#ifndef NIB_CUDA_PRODUCTS_CUH
#define NIB_CUDA_PRODUCTS_CUH

#include "backend/cuda/device/tiles.cuh"

/* Blocks of one step. */
template <int type> struct nib_tile_step {
    static constexpr int kChunks = type == NIB_WEIGHT_BF16 ? 4 : type == NIB_WEIGHT_FP8 ? 2 : 1;
    static constexpr int kBlocks = 4 / kChunks;
    uint4                w[4];
    uint32_t             scale[2]; /* 4 bits: two bytes a block; FP8: one byte a block in [0] */
};

/* A warp's tile of a matrix. */
struct nib_tile {
    const uint8_t *codes;  /* of the tile, at the lane */
    const uint8_t *scales; /* of the matrix */
    int64_t        tile, n_blocks;
    int            lane;
};

NIB_DEVICE struct nib_tile nib_tile_of(const struct nib_cuda_matrix &m, int32_t stack, int64_t tile, int lane)
{
    struct nib_tile t = {m.codes + stack * m.codes_stride, m.scales + stack * m.scales_stride, tile, nib_blocks_of(m.n_in), lane};
    t.codes += (tile * t.n_blocks * nib_chunks_of(m.type) * 32 + lane) * 16;
    return t;
}

/* Blocks block .. block + kBlocks - 1, zeros from end on; block is a multiple of kBlocks. */
template <int type> NIB_DEVICE void nib_tile_step_load(const struct nib_tile &t, int64_t block, int64_t end, struct nib_tile_step<type> &s)
{
    constexpr int chunks = nib_tile_step<type>::kChunks;
#pragma unroll
    for (int i = 0; i < 4; i++)
        s.w[i] = block + i / chunks < end ? nib_load_stream(t.codes + (block * chunks + i) * 512) : make_uint4(0, 0, 0, 0);
    s.scale[0] = s.scale[1] = 0;
    if (type == NIB_WEIGHT_NVFP4 || type == NIB_WEIGHT_MXFP4) {
        if (block + 4 <= end && block / 4 < t.n_blocks / 4) {
            uint2 v = __ldg((const uint2 *)(t.scales + nib_scale_offset(type, t.n_blocks, t.tile, block, t.lane)));
            s.scale[0] = v.x;
            s.scale[1] = v.y;
        } else {
            for (int i = 0; i < 4; i++) {
                if (block + i < end)
                    s.scale[i / 2] |= (uint32_t)*(const uint16_t *)(t.scales + nib_scale_offset(type, t.n_blocks, t.tile,
                                                                                                block + i, t.lane))
                                      << (i % 2 * 16);
            }
        }
    } else if (type == NIB_WEIGHT_FP8) {
        int64_t per_row = (t.n_blocks + 1) / 2;
        if (block < end)
            s.scale[0] = t.scales[t.tile * kTileRows / 128 * per_row + block / 2]; /* both blocks lie in one of 128 columns */
    }
}

/* A operand of product j of block i of a step. */
template <int type, int i, int j> NIB_DEVICE void nib_tile_step_operand(const struct nib_tile_step<type> &s, const struct nib_tile_scales &scale,
                                                                   uint32_t a[4])
{
    if (type == NIB_WEIGHT_BF16) {
        a[0] = s.w[j].x;
        a[1] = s.w[j].z;
        a[2] = s.w[j].y;
        a[3] = s.w[j].w;
    } else if (type == NIB_WEIGHT_FP8) {
        const uint4 &w = s.w[i * 2 % 4 + j / 2];
        nib_fp8_operand(j % 2 ? w.y : w.x, j % 2 ? w.w : w.z, scale.row, a);
    } else {
        nib_fp4_operand<j>(s.w[i], scale, a);
    }
}

template <int type> NIB_DEVICE struct nib_tile_scales nib_tile_step_scales(const struct nib_tile_step<type> &s, int i)
{
    struct nib_tile_scales none = {0, 0};
    if (type == NIB_WEIGHT_NVFP4)
        return nib_nvfp4_scales(s.scale[i / 2] >> (i % 2 * 16));
    if (type == NIB_WEIGHT_MXFP4)
        return nib_mxfp4_scales(s.scale[i / 2] >> (i % 2 * 16));
    if (type == NIB_WEIGHT_FP8) {
        uint32_t v = s.scale[0] << 7 | s.scale[0] << 23;
        none.row = none.row8 = v;
    }
    return none;
}

/* The lane's rows: x[nt] points at row nt * 8 + g of the first part, columns 16l on; NULL where there is none. */
template <int NT> struct nib_lane_rows {
    const uint16_t *x[NT];
    int64_t         part_stride;
    int32_t         n_parts;
};

template <int type, int NT, int i>
NIB_DEVICE void nib_block_multiply(const struct nib_tile_step<type> &s, const struct nib_lane_rows<NT> &rows, int64_t block, float acc[NT][4])
{
    struct nib_tile_scales scale = nib_tile_step_scales<type>(s, i);
    uint32_t               a[4][4];
    nib_tile_step_operand<type, i, 0>(s, scale, a[0]);
    nib_tile_step_operand<type, i, 1>(s, scale, a[1]);
    nib_tile_step_operand<type, i, 2>(s, scale, a[2]);
    nib_tile_step_operand<type, i, 3>(s, scale, a[3]);
    for (int32_t part = 0; part < rows.n_parts; part++) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            uint4 b0 = make_uint4(0, 0, 0, 0), b1 = b0;
            if (rows.x[nt]) {
                const uint4 *x = (const uint4 *)(rows.x[nt] + part * rows.part_stride + block * kBlockCols);
                b0 = __ldg(x);
                b1 = __ldg(x + 1);
            }
            nib_mma_bf16(acc[nt], a[0], b0.x, b0.y);
            nib_mma_bf16(acc[nt], a[1], b0.z, b0.w);
            nib_mma_bf16(acc[nt], a[2], b1.x, b1.y);
            nib_mma_bf16(acc[nt], a[3], b1.z, b1.w);
        }
    }
}

/* acc += tile . rows over blocks [begin, end); begin is a multiple of 4. */
template <int type, int NT>
NIB_DEVICE void nib_tile_multiply(const struct nib_tile &t, const struct nib_lane_rows<NT> &rows, int64_t begin, int64_t end,
                                  float acc[NT][4])
{
    constexpr int         n = nib_tile_step<type>::kBlocks;
    struct nib_tile_step<type> now, next;
    nib_tile_step_load<type>(t, begin, end, now);
    for (int64_t block = begin; block < end; block += n) {
        nib_tile_step_load<type>(t, block + n, end, next);
        nib_block_multiply<type, NT, 0>(now, rows, block, acc);
        if (n > 1 && block + 1 < end)
            nib_block_multiply<type, NT, 1 % n>(now, rows, block + 1, acc);
        if (n > 2 && block + 2 < end)
            nib_block_multiply<type, NT, 2 % n>(now, rows, block + 2, acc);
        if (n > 2 && block + 3 < end)
            nib_block_multiply<type, NT, 3 % n>(now, rows, block + 3, acc);
        now = next;
    }
}

template <int NT>
NIB_DEVICE void nib_tile_multiply_any(int32_t type, const struct nib_tile &t, const struct nib_lane_rows<NT> &rows, int64_t begin,
                                      int64_t end, float acc[NT][4])
{
    switch (type) {
    case NIB_WEIGHT_NVFP4: nib_tile_multiply<NIB_WEIGHT_NVFP4, NT>(t, rows, begin, end, acc); break;
    case NIB_WEIGHT_MXFP4: nib_tile_multiply<NIB_WEIGHT_MXFP4, NT>(t, rows, begin, end, acc); break;
    case NIB_WEIGHT_FP8: nib_tile_multiply<NIB_WEIGHT_FP8, NT>(t, rows, begin, end, acc); break;
    default: nib_tile_multiply<NIB_WEIGHT_BF16, NT>(t, rows, begin, end, acc); break;
    }
}

/* ---- How a block's warps share a tile ---- */

constexpr int kProductWarps = 8;

/* Warps that split a tile's columns between them: a function of the shape alone. */
static __host__ __device__ inline int nib_splits_of(int32_t n_in)
{
    int32_t blocks = (n_in + kBlockCols - 1) / kBlockCols;
    return blocks >= 32 ? 8 : blocks >= 16 ? 4 : blocks >= 8 ? 2 : 1;
}

/* Blocks of each of n splits: multiples of 4, so that scale groups stay whole. */
NIB_DEVICE int64_t nib_split_blocks(int64_t n_blocks, int n)
{
    return ((n_blocks + n - 1) / n + 3) / 4 * 4;
}

/* A lane's sums of a tile to shared memory [16][NT * 8]. */
template <int NT> NIB_DEVICE void nib_sums_put(const float acc[NT][4], int lane, float *sums)
{
    int g = lane / 4, l = lane % 4;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        sums[g * NT * 8 + nt * 8 + 2 * l] = acc[nt][0];
        sums[g * NT * 8 + nt * 8 + 2 * l + 1] = acc[nt][1];
        sums[(g + 8) * NT * 8 + nt * 8 + 2 * l] = acc[nt][2];
        sums[(g + 8) * NT * 8 + nt * 8 + 2 * l + 1] = acc[nt][3];
    }
}

#endif
