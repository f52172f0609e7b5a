/* The experts of few tokens on tiled weights (products.cuh): gate and up of every pair (a row and one of its
 * choices), down of every pair. A segment is one expert and up to 16 of its pairs; launches have a fixed shape, and
 * blocks without a segment leave at once. The shared expert's rows follow as more segments of the same launches.
 * Bytes: an expert's codes once per segment. One file a kind of rows has the kernels, as each takes long to compile. */
#ifndef NIB_CUDA_EXPERT_TILES_CUH
#define NIB_CUDA_EXPERT_TILES_CUH

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/products.cuh"
#include "backend/cuda/device/rows.cuh"

/* silu(min(g, limit)) * clamp(u, +-limit); Inf must stay visible, so it does not meet the clamps. */
NIB_DEVICE float nib_expert_swiglu(float g, float u, float limit)
{
    if (!nib_is_finite(g) || !nib_is_finite(u))
        return NAN;
    if (limit > 0) {
        g = g < limit ? g : limit;
        u = u < -limit ? -limit : u > limit ? limit : u;
    }
    return (float)((double)g / (1 + exp(-(double)g))) * u;
}

/* Routed or shared: which rows multiply which matrices. */
struct nib_expert_side {
    struct nib_cuda_matrix w1, w3, w2;
    struct nib_cuda_rows   x, inner;
    int64_t                hidden_at; /* first element of its part of hidden; rows of w1.n_out */
    int64_t                y_at;      /* first row of its part of y */
};

struct nib_experts {
    struct nib_expert_side      side[2]; /* routed, shared */
    struct nib_cuda_moe_scratch m;
    const int32_t              *chosen;
    const float                *weight;
    int32_t                     n_rows, n_pairs, top_k, dim, n_segments_max, segment_rows, piece_blocks;
    float                       limit;
    bool                        weight_before, bf16; /* bf16: hidden goes straight to its one part */
};

/* Segments of 8 or 16 pairs (wide) of rows that the plain loop takes, of 8 of any. */
void nib_cuda_gate_up_plain(struct nib_stream *s, const struct nib_experts *a, bool wide, unsigned n_segments);
void nib_cuda_down_plain(struct nib_stream *s, const struct nib_experts *a, bool wide, unsigned n_segments);
void nib_cuda_gate_up_any(struct nib_stream *s, const struct nib_experts *a, unsigned n_segments);
void nib_cuda_down_any(struct nib_stream *s, const struct nib_experts *a, unsigned n_segments);

/* A block's rows: `count` sorted pairs (or rows of the shared expert) from `from` on, of matrix `stack`. */
struct nib_segment {
    int32_t stack, from, count;
    bool    shared, none;
};

NIB_DEVICE struct nib_segment nib_segment_of(const struct nib_experts &a, int32_t i)
{
    struct nib_segment s = {0, 0, 0, i >= a.n_segments_max, false};
    if (s.shared) {
        s.from = (i - a.n_segments_max) * a.segment_rows;
        s.count = min(a.segment_rows, a.n_rows - s.from);
        s.none = s.count <= 0;
    } else if (i >= *a.m.n_segments) {
        s.none = true;
    } else {
        s.stack = a.m.segment[2 * i];
        s.from = a.m.segment[2 * i + 1];
        s.count = min(a.segment_rows, a.m.first[s.stack + 1] - s.from);
    }
    return s;
}

NIB_DEVICE int32_t nib_segment_row(const struct nib_experts &a, const struct nib_segment &s, int32_t i)
{
    return s.shared ? s.from + i : a.m.pair[s.from + i] / a.top_k;
}

/* Where the rows of a span of columns are staged. */
NIB_DEVICE uint16_t *nib_span_buffer(const struct nib_experts &a, const struct nib_cuda_rows &x, int32_t count,
                                     int split, uint8_t *memory)
{
    return (uint16_t *)memory + 2 * split * x.n_parts * count * nib_row_halves(a.piece_blocks);
}

/* ---- Gate and up ---- */

/* Warps of a block that share a tile's columns: a function of the shape alone. */
static __host__ __device__ inline int nib_expert_spans(int32_t n_in)
{
    return n_in >= 1024 ? 2 : 1;
}

/* A block is one tile of w1 and of w3 (two where columns are few), two warps or one each sharing its columns. */
template <int NT, bool plain> static __global__ void __launch_bounds__(kThreads, NT == 2 ? NIB_BLOCKS(4, 3, 2) : 4)
gate_up(const __grid_constant__ struct nib_experts a)
{
    nib_grid_start();
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ const uint16_t              *row[NT * 8];
    __shared__ float                        sums[kWarps][kTileRows * NT * 8];
    struct nib_segment                      seg = nib_segment_of(a, blockIdx.y);
    if (seg.none)
        return;
    const struct nib_expert_side &side = a.side[seg.shared];
    int     warp = threadIdx.x / 32, lane = threadIdx.x % 32, which = warp % 2, n = side.w1.n_out;
    int     n_splits = nib_expert_spans(side.w1.n_in), per_block = 2 / n_splits, split = warp / 2 % n_splits;
    int64_t tile0 = (int64_t)blockIdx.x * per_block, tile = tile0 + warp / 2 / n_splits;
    int64_t n_tiles = (n + kTileRows - 1) / kTileRows;
    if (tile0 >= n_tiles)
        return;
    struct nib_tile t = nib_tile_of(which ? side.w3 : side.w1, seg.stack, min(tile, n_tiles - 1), lane);
    /* Pairs of warps (w1's and w3's) and, with one span, all four share the rows. */
    struct nib_row_source rows = nib_row_source_of(row, side.x, seg.count, side.w1.n_in, split, n_splits,
                                                   a.piece_blocks, n_splits == 1 ? warp : warp % 2, kWarps / n_splits,
                                                   nib_span_buffer(a, side.x, seg.count, split, memory));
    float acc[NT][4] = {};
    nib_tile_multiply_any<NT, plain>(side.w1.type, t, rows, [&] {
        if ((int)threadIdx.x < seg.count)
            row[threadIdx.x] = side.x.part + nib_segment_row(a, seg, threadIdx.x) * side.x.stride;
        __syncthreads();
    }, acc);
    nib_sums_put<NT>(acc, lane, sums[warp]);
    __syncthreads();

    float alpha1 = nib_alpha_of(side.w1, seg.stack), alpha3 = nib_alpha_of(side.w3, seg.stack);
    for (int e = threadIdx.x; e < per_block * kTileRows * seg.count; e += kThreads) {
        int   o = e % (per_block * kTileRows), i = e / (per_block * kTileRows), local = o / kTileRows;
        float g = 0, u = 0;
        for (int k = 0; k < n_splits; k++) {
            g += sums[(local * n_splits + k) * 2][o % kTileRows * NT * 8 + i];
            u += sums[(local * n_splits + k) * 2 + 1][o % kTileRows * NT * 8 + i];
        }
        int64_t out = tile0 * kTileRows + o;
        if (out >= n)
            continue;
        int64_t of = nib_segment_row(a, seg, i);
        float   act = nib_expert_swiglu(nib_row_scaled(g, alpha1, side.x, of), nib_row_scaled(u, alpha3, side.x, of),
                                        a.limit);
        if (a.weight_before && !seg.shared)
            act *= a.weight[a.m.pair[seg.from + i]];
        int64_t at = side.hidden_at + (int64_t)(seg.from + i) * n + out;
        if (a.bf16)
            a.m.parts[at] = nib_bf16_code(act);
        else
            a.m.hidden[at] = act;
    }
}

/* ---- Down ---- */

template <int NT, bool plain> static __global__ void __launch_bounds__(kThreads, NT == 2 ? NIB_BLOCKS(4, 3, 2) : 4)
down(const __grid_constant__ struct nib_experts a)
{
    nib_grid_start();
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ const uint16_t              *row[NT * 8];
    __shared__ float                        sums[kWarps][kTileRows * NT * 8];
    struct nib_segment                      seg = nib_segment_of(a, blockIdx.y);
    if (seg.none)
        return;
    const struct nib_expert_side &side = a.side[seg.shared];
    int     warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int     n_splits = nib_expert_spans(side.w2.n_in), per_block = kWarps / n_splits;
    int64_t tile0 = (int64_t)blockIdx.x * per_block, tile = tile0 + warp / n_splits;
    int64_t n_tiles = (a.dim + kTileRows - 1) / kTileRows;
    if (tile0 >= n_tiles)
        return;
    struct nib_row_source rows = nib_row_source_of(row, side.inner, seg.count, side.w2.n_in, warp % n_splits, n_splits,
                                                   a.piece_blocks, warp / n_splits, kWarps / n_splits,
                                                   nib_span_buffer(a, side.inner, seg.count, warp % n_splits, memory));
    float           acc[NT][4] = {};
    struct nib_tile t = nib_tile_of(side.w2, seg.stack, min(tile, n_tiles - 1), lane);
    nib_tile_multiply_any<NT, plain>(side.w2.type, t, rows, [&] {
        if ((int)threadIdx.x < seg.count)
            row[threadIdx.x] = side.inner.part + (int64_t)(seg.from + threadIdx.x) * side.inner.stride;
        __syncthreads();
    }, acc);
    nib_sums_put<NT>(acc, lane, sums[warp]);
    __syncthreads();

    float alpha = nib_alpha_of(side.w2, seg.stack);
    for (int e = threadIdx.x; e < per_block * kTileRows * seg.count; e += kThreads) {
        int   o = e % (per_block * kTileRows), i = e / (per_block * kTileRows), local = o / kTileRows;
        float sum = 0;
        for (int k = 0; k < n_splits; k++)
            sum += sums[local * n_splits + k][o % kTileRows * NT * 8 + i];
        int64_t out = tile0 * kTileRows + o;
        if (out >= a.dim)
            continue;
        sum = nib_row_scaled(sum, alpha, side.inner, seg.from + i);
        if (!a.weight_before && !seg.shared)
            sum *= a.weight[a.m.pair[seg.from + i]];
        a.m.y[(side.y_at + seg.from + i) * a.dim + out] = sum;
    }
}

/* ---- Launches ---- */

static unsigned nib_expert_blocks(int32_t n_out, int per_block)
{
    return (unsigned)(((n_out + kTileRows - 1) / kTileRows + per_block - 1) / per_block);
}

template <int NT, bool plain>
static void nib_gate_up_launch(struct nib_stream *s, const struct nib_experts *a, unsigned n_segments)
{
    int32_t x = 0, parts = max(a->side[0].x.n_parts, a->side[1].x.n_parts);
    for (int i = 0; i < 2; i++)
        x = max(x, (int32_t)nib_expert_blocks(a->side[i].w1.n_out, 2 / nib_expert_spans(a->side[i].w1.n_in)));
    int32_t            rows = min(a->n_pairs, a->segment_rows); /* a hash table may name an expert twice */
    struct nib_experts b = *a;
    b.piece_blocks = nib_piece_blocks(2 * rows * parts);
    size_t bytes = nib_rows_bytes(2, parts, rows, b.piece_blocks);
    cudaFuncSetAttribute(gate_up<NT, plain>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, gate_up<NT, plain>, dim3((unsigned)x, n_segments), kThreads, bytes, b);
}

template <int NT, bool plain>
static void nib_down_launch(struct nib_stream *s, const struct nib_experts *a, unsigned n_segments)
{
    int32_t x = 0, parts = max(a->side[0].inner.n_parts, a->side[1].inner.n_parts);
    for (int i = 0; i < 2; i++)
        x = max(x, (int32_t)nib_expert_blocks(a->dim, kWarps / nib_expert_spans(a->side[i].w2.n_in)));
    int32_t            rows = min(a->n_pairs, a->segment_rows); /* a hash table may name an expert twice */
    struct nib_experts b = *a;
    b.piece_blocks = nib_piece_blocks(2 * rows * parts);
    size_t bytes = nib_rows_bytes(2, parts, rows, b.piece_blocks);
    cudaFuncSetAttribute(down<NT, plain>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, down<NT, plain>, dim3((unsigned)x, n_segments), kThreads, bytes, b);
}

#endif
