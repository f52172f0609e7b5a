/* The core of every product with packed tiles: a warp takes 16 outputs and a span of 64-column blocks, for NT * 8
 * rows.
 *
 * Weights go from memory to registers 4 x 16 bytes a lane at a time, the next step's loads in flight while this one
 * is decoded and multiplied. The rows of all warps of a block come through shared memory a piece at a time, the next
 * piece on its way meanwhile (read straight from the L2, their latency stood before every product). The order of
 * sums is fixed by the span alone: rows do not see each other.
 *
 * There are two loops. The plain one takes rows of one bf16 part and matrices whose columns are whole steps, which
 * those of published models are: few instructions a weight are what few rows are bound by. The general one takes
 * everything: a row may be several parts, which all multiply the same operand, so that weights are decoded once. */
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

/* A warp's tile of a matrix, as its lane sees it. */
struct nib_tile {
    const uint8_t *codes;  /* of block 0 */
    const uint8_t *scales; /* of the tile (4 bits), of its row of 128 x 128 blocks (FP8) */
    int32_t        n_blocks, lane;
};

NIB_DEVICE struct nib_tile nib_tile_of(const struct nib_cuda_matrix &m, int32_t stack, int64_t tile, int lane)
{
    int64_t         n_blocks = nib_blocks_of(m.n_in);
    struct nib_tile t = {m.codes + stack * m.codes_stride, m.scales + stack * m.scales_stride, (int32_t)n_blocks, lane};
    t.codes += (tile * n_blocks * nib_chunks_of(m.type) * 32 + lane) * 16;
    t.scales += m.type == NIB_WEIGHT_FP8 ? tile * kTileRows / 128 * ((n_blocks + 1) / 2)
                                         : tile * n_blocks * (m.type == NIB_WEIGHT_NVFP4 ? 64 : 32);
    return t;
}

/* Blocks block .. block + kBlocks - 1; block is a multiple of kBlocks. whole: all of them lie before end; else zeros
 * stand for those that do not. once: nobody reads them again (nib_load_once). */
template <int type, bool whole, bool once = false>
NIB_DEVICE void nib_tile_step_get(const struct nib_tile &t, int32_t block, int32_t end, struct nib_tile_step<type> &s,
                                  uint64_t policy = 0)
{
    constexpr int  chunks = nib_tile_step<type>::kChunks;
    const uint8_t *codes = t.codes + (int64_t)block * (chunks * 512);
#pragma unroll
    for (int i = 0; i < 4; i++)
        s.w[i] = once                              ? nib_load_once(codes + i * 512, policy)
                 : whole || block + i / chunks < end ? nib_load_stream(codes + i * 512)
                                                     : make_uint4(0, 0, 0, 0);
    s.scale[0] = s.scale[1] = 0;
    if (!whole && block >= end)
        return;
    if (type == NIB_WEIGHT_NVFP4 || type == NIB_WEIGHT_MXFP4) {
        constexpr int  per_block = type == NIB_WEIGHT_NVFP4 ? 64 : 32;
        int            at = type == NIB_WEIGHT_NVFP4 ? t.lane : t.lane / 2;
        const uint8_t *scales = t.scales + (int64_t)block * per_block;
        if (whole || block + 4 <= t.n_blocks) {
            uint2 v = __ldg((const uint2 *)(scales + at * 8));
            s.scale[0] = v.x;
            s.scale[1] = v.y;
        } else {
            /* A last group of fewer blocks. */
            const uint16_t *pair = (const uint16_t *)(scales + at * 2);
            s.scale[0] = pair[0];
            if (block + 1 < end)
                s.scale[0] |= (uint32_t)pair[per_block / 2] << 16;
            if (block + 2 < end)
                s.scale[1] = pair[per_block];
        }
    } else if (type == NIB_WEIGHT_FP8) {
        s.scale[0] = __ldg(t.scales + block / 2); /* both blocks lie in one of 128 columns */
    }
}

template <int type> NIB_DEVICE void nib_tile_step_load(const struct nib_tile &t, int32_t block, int32_t end, struct nib_tile_step<type> &s)
{
    if (block + nib_tile_step<type>::kBlocks <= end)
        nib_tile_step_get<type, true>(t, block, end, s);
    else
        nib_tile_step_get<type, false>(t, block, end, s);
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

/* ---- Rows in shared memory ---- */

constexpr int kWarps = 4, kThreads = 32 * kWarps; /* of a block: small blocks, so that a matrix makes many */

/* What a warp multiplies: rows by pointer, and its span of columns. Warps with the same span load its rows together. */
struct nib_row_source {
    const uint16_t *const *row; /* [count] first part of each, in shared memory */
    int64_t                part_stride;
    int32_t                count, n_parts;
    int32_t                begin, end, n_pieces; /* blocks of the span; pieces of the longest one */
    int32_t                piece_blocks, row_halves;
    int32_t                sharer, n_sharers;
    uint16_t              *buffer;               /* of this span: [2][n_parts][count][row_halves] */
};

/* Blocks of 64 columns in a piece: a power of two, the more the fewer bytes the rows of a block of the grid have. */
static inline int32_t nib_piece_blocks(int32_t rows)
{
    return rows <= 4 ? 32 : rows <= 8 ? 16 : 8;
}

/* 16 bytes of padding put the 8 lanes of an access on different banks. */
static __host__ __device__ inline int32_t nib_row_halves(int32_t piece_blocks)
{
    return piece_blocks * kBlockCols + 8;
}

static inline size_t nib_rows_bytes(int n_spans, int n_parts, int count, int32_t piece_blocks)
{
    return (size_t)2 * n_spans * n_parts * count * nib_row_halves(piece_blocks) * sizeof(uint16_t);
}

/* Span `split` of n_splits: whole groups of 4 blocks, so that scale groups stay together. The warp is one of
 * n_sharers that fill the buffer in `memory`. */
NIB_DEVICE struct nib_row_source nib_row_source_of(const uint16_t *const *row, const struct nib_cuda_rows &x,
                                                   int32_t count, int32_t n_in, int split, int n_splits,
                                                   int32_t piece_blocks, int sharer, int n_sharers, uint16_t *memory)
{
    struct nib_row_source s = {row, x.part_stride, count, x.n_parts, 0, 0, 0, piece_blocks, nib_row_halves(piece_blocks),
                               sharer, n_sharers, memory};
    int32_t n_blocks = (n_in + kBlockCols - 1) / kBlockCols, groups = (n_blocks + 3) / 4;
    s.begin = min(groups * split / n_splits * 4, n_blocks);
    s.end = min(groups * (split + 1) / n_splits * 4, n_blocks);
    s.n_pieces = ((groups + n_splits - 1) / n_splits * 4 + piece_blocks - 1) / piece_blocks;
    return s;
}

NIB_DEVICE void nib_copy_async(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from));
}

NIB_DEVICE void nib_copies_commit(void)
{
    asm volatile("cp.async.commit_group;");
}

NIB_DEVICE void nib_copies_wait(void)
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* One piece of the span on its way to its half of the buffer: 512 bytes, 4 blocks of a row, at a time. */
NIB_DEVICE void nib_piece_start(const struct nib_row_source &x, int32_t piece, int lane)
{
    uint16_t *to = x.buffer + (piece & 1) * x.n_parts * x.count * x.row_halves + lane * 8;
    int32_t   block = x.begin + piece * x.piece_blocks + lane / 8, col = block * kBlockCols + lane % 8 * 8;
    int32_t   quads = x.piece_blocks / 4, shift = 31 - __clz(quads), end = x.n_parts * x.count * quads;
#pragma unroll 1
    for (int32_t i = x.sharer; i < end; i += x.n_sharers) {
        int32_t line = i >> shift, quad = i & (quads - 1), part = x.n_parts == 1 ? 0 : line / x.count;
        int32_t r = line - part * x.count;
        if (block + 4 * quad < x.end)
            nib_copy_async(to + line * x.row_halves + quad * 256, x.row[r] + part * x.part_stride + col + quad * 256);
    }
    nib_copies_commit();
}

/* Until a piece is there and nobody reads the one before it any more. */
NIB_DEVICE void nib_piece_wait(const struct nib_row_source &x)
{
    nib_copies_wait();
    if (x.n_sharers > 1)
        __syncthreads();
    else
        __syncwarp();
}

/* Steps of weights from memory into the L2, of types that have only codes in tiles, for a kernel that has few bytes of its own in
 * flight. Where 16 warps of a multiprocessor load two steps each, as here, it takes a tenth of the memory's rate instead. */
template <int type> NIB_DEVICE void nib_steps_prefetch(const struct nib_tile &t, int32_t block, int32_t end, int steps)
{
    static_assert(type == NIB_WEIGHT_FP8 || type == NIB_WEIGHT_BF16, "scales would be left behind");
    constexpr int chunks = nib_tile_step<type>::kChunks;
    int32_t       n = min(steps * nib_tile_step<type>::kBlocks, end - block);
    if (t.lane == 0 && n > 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(t.codes + (int64_t)block * (chunks * 512)),
                     "r"((uint32_t)(n * chunks * 512)));
}

/* ---- Products ---- */

/* row[nt]: where row nt * 8 + g of the part stands, in halves from `at`; rows that are not there read another's
 * place, and their sums are never looked at. */
template <int NT> NIB_DEVICE void nib_part_multiply(const uint32_t a[4][4], const uint16_t *at, const int32_t row[NT], float sum[NT][4])
{
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        const uint4 *x = (const uint4 *)(at + row[nt]);
        uint4        low = x[0], high = x[1];
        nib_mma_bf16(sum[nt], a[0], low.x, low.y);
        nib_mma_bf16(sum[nt], a[1], low.z, low.w);
        nib_mma_bf16(sum[nt], a[2], high.x, high.y);
        nib_mma_bf16(sum[nt], a[3], high.z, high.w);
    }
}

/* Block i of a step against the rows of a piece; at: the lane's columns of the block in the first part. */
template <int type, int NT, bool one, int i>
NIB_DEVICE void nib_block_multiply(const struct nib_tile_step<type> &s, const uint16_t *at, const int32_t row[NT],
                                   int32_t n_parts, int32_t part_halves, float acc[NT][4])
{
    struct nib_tile_scales scale = nib_tile_step_scales<type>(s, i);
    uint32_t               a[4][4];
    nib_tile_step_operand<type, i, 0>(s, scale, a[0]);
    nib_tile_step_operand<type, i, 1>(s, scale, a[1]);
    nib_tile_step_operand<type, i, 2>(s, scale, a[2]);
    nib_tile_step_operand<type, i, 3>(s, scale, a[3]);
    /* A tensor core cuts what it adds to its accumulator; a sum of one block, smallest parts first, loses little,
     * and the blocks' sums are added with rounding. */
    float sum[NT][4] = {};
#pragma unroll 1
    for (int32_t part = one ? 0 : n_parts - 1; part > 0; part--)
        nib_part_multiply<NT>(a, at + part * part_halves, row, sum);
    nib_part_multiply<NT>(a, at, row, sum);
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
        for (int c = 0; c < 4; c++)
            acc[nt][c] += sum[nt][c];
}

/* The first n_blocks blocks of a step against a piece. */
template <int type, int NT, bool one>
NIB_DEVICE void nib_step_multiply(const struct nib_tile_step<type> &s, const uint16_t *at, const int32_t row[NT],
                                  int32_t n_blocks, int32_t n_parts, int32_t part_halves, float acc[NT][4])
{
    constexpr int n = nib_tile_step<type>::kBlocks;
    nib_block_multiply<type, NT, one, 0>(s, at, row, n_parts, part_halves, acc);
    if (n > 1 && n_blocks > 1)
        nib_block_multiply<type, NT, one, 1 % n>(s, at + kBlockCols, row, n_parts, part_halves, acc);
    if (n > 2 && n_blocks > 2)
        nib_block_multiply<type, NT, one, 2 % n>(s, at + 2 * kBlockCols, row, n_parts, part_halves, acc);
    if (n > 2 && n_blocks > 3)
        nib_block_multiply<type, NT, one, 3 % n>(s, at + 3 * kBlockCols, row, n_parts, part_halves, acc);
}

/* acc += tile . rows over the warp's span. All warps of a block come here together. ready(): called once the first
 * weights are on their way; makes the rows' pointers visible to all. plain: rows have one part, columns are whole
 * steps of any type. */
template <int type, int NT, bool plain, typename Ready>
NIB_DEVICE void nib_tile_multiply(const struct nib_tile &t, const struct nib_row_source &x, Ready ready,
                                  float acc[NT][4])
{
    constexpr int              n = nib_tile_step<type>::kBlocks;
    constexpr bool             once = plain && NT == 1; /* more rows may be several blocks', which read the same weights */
    const uint64_t             policy = once ? nib_once_policy() : 0;
    struct nib_tile_step<type> now, next;
    int32_t block = x.begin, last = x.end - n, row[NT];
    int32_t part_halves = x.count * x.row_halves, half = x.n_parts * part_halves;
    if (plain)
        nib_tile_step_get<type, true, once>(t, block, x.end, now, policy);
    ready();
    nib_piece_start(x, 0, t.lane);
    if (plain && block <= last - n) /* behind the rows, which the first product waits for */
        nib_tile_step_get<type, true, once>(t, block + n, x.end, next, policy);
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
        row[nt] = min(nt * 8 + t.lane / 4, x.count - 1) * x.row_halves;
#pragma unroll 1
    for (int32_t piece = 0; piece < x.n_pieces; piece++) {
        nib_piece_wait(x);
        if (piece + 1 < x.n_pieces)
            nib_piece_start(x, piece + 1, t.lane);
        const uint16_t *at = x.buffer + (piece & 1) * half + t.lane % 4 * 16;
        int32_t         to = min(x.begin + (piece + 1) * x.piece_blocks, x.end);
        /* Two steps a turn, so that neither's weights need moving to the other's registers. Both are on their way while
         * a piece is waited for. */
        if (plain) {
#pragma unroll 1
            for (; block < to; block += 2 * n, at += 2 * n * kBlockCols) {
                nib_step_multiply<type, NT, true>(now, at, row, n, 1, 0, acc);
                if (block + 2 * n <= last)
                    nib_tile_step_get<type, true, once>(t, block + 2 * n, x.end, now, policy);
                if (block + n < to)
                    nib_step_multiply<type, NT, true>(next, at + n * kBlockCols, row, n, 1, 0, acc);
                if (block + 3 * n <= last)
                    nib_tile_step_get<type, true, once>(t, block + 3 * n, x.end, next, policy);
            }
        } else {
#pragma unroll 1
            for (; block < to; block += n, at += n * kBlockCols) {
                nib_tile_step_load<type>(t, block, x.end, now);
                nib_step_multiply<type, NT, false>(now, at, row, to - block, x.n_parts, part_halves, acc);
            }
        }
    }
}

template <int NT, bool plain, typename Ready>
NIB_DEVICE void nib_tile_multiply_any(int32_t type, const struct nib_tile &t, const struct nib_row_source &x,
                                      Ready ready, float acc[NT][4])
{
    switch (type) {
    case NIB_WEIGHT_NVFP4: nib_tile_multiply<NIB_WEIGHT_NVFP4, NT, plain>(t, x, ready, acc); break;
    case NIB_WEIGHT_MXFP4: nib_tile_multiply<NIB_WEIGHT_MXFP4, NT, plain>(t, x, ready, acc); break;
    case NIB_WEIGHT_FP8: nib_tile_multiply<NIB_WEIGHT_FP8, NT, plain>(t, x, ready, acc); break;
    default: nib_tile_multiply<NIB_WEIGHT_BF16, NT, plain>(t, x, ready, acc); break;
    }
}

/* Whether the plain loop takes them. */
static inline bool nib_is_plain(const struct nib_cuda_matrix &w, int32_t n_parts)
{
    return w.n_in % (4 * kBlockCols) == 0 && n_parts == 1;
}

/* A finished sum of row r times the matrix's multiplier, brought back from the row's power of two; in fp64, as the
 * two may leave the range of a float in opposite directions. */
NIB_DEVICE float nib_row_scaled(float sum, float alpha, const struct nib_cuda_rows &x, int64_t r)
{
    return x.exponent ? (float)scalbn((double)sum * (double)alpha, x.exponent[r]) : sum * alpha;
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
