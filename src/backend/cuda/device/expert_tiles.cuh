/* The experts of few tokens on tiled weights (products.cuh): gate and up of every pair (a row and one of its
 * choices), down of every pair. A segment is one expert and up to 16 of its pairs; launches have a fixed shape, and
 * blocks without a segment leave at once. The shared expert's rows follow as more segments of the same launches.
 * Bytes: an expert's codes once per segment. One file a kind of rows has the kernels, as each takes long to compile. */
#ifndef NIB_CUDA_EXPERT_TILES_CUH
#define NIB_CUDA_EXPERT_TILES_CUH

#include "backend/cuda/device/cluster.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/products.cuh"
#include "backend/cuda/device/routing.cuh"
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
    /* One row in two launches: */
    struct nib_routing          routing;
    struct nib_mat              y;
    int32_t                     first; /* its row of y */
};

constexpr int kOneMost = 8; /* blocks of a cluster: the choices of a row and the shared expert */

/* Segments of 8 or 16 pairs (wide) of rows that the plain loop takes, of 8 of any. */
void nib_cuda_gate_up_plain(struct nib_stream *s, const struct nib_experts *a, bool wide, unsigned n_segments);
void nib_cuda_down_plain(struct nib_stream *s, const struct nib_experts *a, bool wide, unsigned n_segments);
void nib_cuda_gate_up_any(struct nib_stream *s, const struct nib_experts *a, unsigned n_segments);
void nib_cuda_down_any(struct nib_stream *s, const struct nib_experts *a, unsigned n_segments);
/* One row, from the router's scores to y. */
void nib_cuda_gate_up_one(struct nib_stream *s, const struct nib_experts *a);
void nib_cuda_down_one(struct nib_stream *s, const struct nib_experts *a);

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

/* ---- Gate and up ---- */

/* Tiles of a block: a warp each, with all its columns. Two warps a tile make twice as many blocks, and those of one token
 * no longer all run at once. */
constexpr int kGateTiles = kWarps / 2, kDownTiles = kWarps;

/* One row's segment y: the shared expert, whose weights can be asked for before anything is known, then the row's
 * choices, which every block makes for itself: that is sooner than another launch. The next launch may begin once all
 * blocks have waited for the router, so that its blocks can choose as well before this launch is complete. */
NIB_DEVICE struct nib_segment nib_segment_one(const struct nib_experts &a, int32_t y, int32_t *chosen)
{
    struct nib_segment s = {0, max(y - 1, 0), 1, y == 0, false};
    if (s.shared)
        return s;
    nib_grid_wait();
    nib_grid_release();
    if (threadIdx.x < 32)
        nib_choose_warp(a.routing, chosen);
    __syncthreads();
    s.stack = chosen[s.from];
    if (s.from == 0 && blockIdx.x == 0 && (int)threadIdx.x < a.top_k) {
        float weight = nib_choice_weight(a.routing, chosen, threadIdx.x);
        a.m.weight[threadIdx.x] = weight;
        if (a.routing.chosen)
            a.routing.chosen[threadIdx.x] = chosen[threadIdx.x];
        if (a.routing.weight)
            a.routing.weight[threadIdx.x] = weight;
    }
    return s;
}

/* A block is two tiles of w1 and of w3. one: of a single row. */
template <int NT, bool plain, bool one>
static __global__ void __launch_bounds__(kThreads, NT == 2 ? NIB_BLOCKS(4, 3, 2) : 4)
gate_up(const __grid_constant__ struct nib_experts a)
{
    if (!one)
        nib_grid_start();
    __shared__ int32_t chosen[kOneMost];
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ const uint16_t              *row[NT * 8];
    __shared__ float                        sums[kWarps][kTileRows * NT * 8];
    struct nib_segment                      seg =
        one ? nib_segment_one(a, blockIdx.y, chosen) : nib_segment_of(a, blockIdx.y);
    if (seg.none)
        return;
    const struct nib_expert_side &side = a.side[seg.shared];
    int     warp = threadIdx.x / 32, lane = threadIdx.x % 32, which = warp % 2, n = side.w1.n_out;
    int64_t tile0 = (int64_t)blockIdx.x * kGateTiles, tile = tile0 + warp / 2;
    int64_t n_tiles = (n + kTileRows - 1) / kTileRows;
    if (tile0 >= n_tiles)
        return;
    struct nib_tile t = nib_tile_of(which ? side.w3 : side.w1, seg.stack, min(tile, n_tiles - 1), lane);
    struct nib_row_source rows = nib_row_source_of(row, side.x, seg.count, side.w1.n_in, 0, 1, a.piece_blocks, warp,
                                                   kWarps, (uint16_t *)memory);
    float acc[NT][4] = {};
    nib_tile_multiply_any<NT, plain>(side.w1.type, t, rows, [&] {
        if (one && seg.shared) {
            nib_grid_wait();
            nib_grid_release();
        }
        if ((int)threadIdx.x < seg.count)
            row[threadIdx.x] = side.x.part + (one ? 0 : nib_segment_row(a, seg, threadIdx.x)) * side.x.stride;
        __syncthreads();
    }, acc);
    nib_sums_put<NT>(acc, lane, sums[warp]);
    __syncthreads();

    float alpha1 = nib_alpha_of(side.w1, seg.stack), alpha3 = nib_alpha_of(side.w3, seg.stack);
    for (int e = threadIdx.x; e < kGateTiles * kTileRows * seg.count; e += kThreads) {
        int     o = e % (kGateTiles * kTileRows), i = e / (kGateTiles * kTileRows), at_sum = o % kTileRows * NT * 8 + i;
        float   g = sums[o / kTileRows * 2][at_sum], u = sums[o / kTileRows * 2 + 1][at_sum];
        int64_t out = tile0 * kTileRows + o;
        if (out >= n)
            continue;
        int64_t of = one ? 0 : nib_segment_row(a, seg, i);
        float   act = nib_expert_swiglu(nib_row_scaled(g, alpha1, side.x, of), nib_row_scaled(u, alpha3, side.x, of),
                                        a.limit);
        if (a.weight_before && !seg.shared)
            act *= one ? nib_choice_weight(a.routing, chosen, seg.from) : a.weight[a.m.pair[seg.from + i]];
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
    int64_t tile0 = (int64_t)blockIdx.x * kDownTiles, tile = tile0 + warp;
    int64_t n_tiles = (a.dim + kTileRows - 1) / kTileRows;
    if (tile0 >= n_tiles)
        return;
    struct nib_row_source rows = nib_row_source_of(row, side.inner, seg.count, side.w2.n_in, 0, 1, a.piece_blocks, warp,
                                                   kWarps, (uint16_t *)memory);
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
    for (int e = threadIdx.x; e < kDownTiles * kTileRows * seg.count; e += kThreads) {
        int     o = e % (kDownTiles * kTileRows), i = e / (kDownTiles * kTileRows);
        int64_t out = tile0 * kTileRows + o;
        if (out >= a.dim)
            continue;
        float sum = nib_row_scaled(sums[o / kTileRows][o % kTileRows * NT * 8 + i], alpha, side.inner, seg.from + i);
        if (!a.weight_before && !seg.shared)
            sum *= a.weight[a.m.pair[seg.from + i]];
        a.m.y[(side.y_at + seg.from + i) * a.dim + out] = sum;
    }
}

/* One row: blocks x of a cluster take its choices in turn, the shared expert last, and the same outputs; the sum is in
 * ascending order of expert. */
template <int NT> static __global__ void __launch_bounds__(kThreads, 4)
down_one(const __grid_constant__ struct nib_experts a)
{
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ const uint16_t              *row[NT * 8];
    __shared__ float                        sums[kWarps][kTileRows * NT * 8], out[kWarps * kTileRows];
    __shared__ int32_t                      chosen[kOneMost], order[kOneMost];
    int     warp = threadIdx.x / 32, lane = threadIdx.x % 32, x = blockIdx.x, k = a.top_k;
    bool    shared = x == k;
    const struct nib_expert_side &side = a.side[shared];
    int64_t tile0 = (int64_t)blockIdx.y * kDownTiles, tile = tile0 + warp;
    int64_t n_tiles = (a.dim + kTileRows - 1) / kTileRows;
    nib_grid_release();
    if (threadIdx.x < 32) /* the scores are there, though not all of what gate and up make (nib_segment_one) */
        nib_choose_warp(a.routing, chosen);
    __syncthreads();
    int32_t               stack = shared ? 0 : chosen[x];
    struct nib_row_source rows = nib_row_source_of(row, side.inner, 1, side.w2.n_in, 0, 1, a.piece_blocks, warp, kWarps,
                                                   (uint16_t *)memory);
    float           acc[NT][4] = {};
    struct nib_tile t = nib_tile_of(side.w2, stack, min(tile, n_tiles - 1), lane);
    nib_tile_multiply_any<NT, true>(side.w2.type, t, rows, [&] {
        nib_grid_wait();
        if (threadIdx.x == 0)
            row[0] = side.inner.part + (shared ? 0 : x) * side.inner.stride;
        if ((int)threadIdx.x < k) {
            int32_t e = chosen[threadIdx.x], rank = 0;
            for (int j = 0; j < k; j++) {
                int32_t other = chosen[j];
                rank += other < e || (other == e && j < (int)threadIdx.x);
            }
            order[rank] = (int32_t)threadIdx.x;
        }
        __syncthreads();
    }, acc);
    nib_sums_put<NT>(acc, lane, sums[warp]);
    __syncthreads();

    int o = threadIdx.x, outs = kDownTiles * kTileRows;
    if (o < outs) {
        float sum = nib_row_scaled(sums[o / kTileRows][o % kTileRows * NT * 8], nib_alpha_of(side.w2, stack), side.inner,
                                   shared ? 0 : x);
        out[o] = a.weight_before || shared ? sum : sum * a.weight[x];
    }
    nib_cluster_sync();
    if (x == 0 && o < outs && tile0 * kTileRows + o < a.dim) {
        float sum = 0;
        for (int i = 0; i <= k; i++)
            sum += nib_cluster_load_f32(&out[o], (uint32_t)(i < k ? order[i] : k));
        nib_mat_set(a.y, a.first, tile0 * kTileRows + o, sum);
    }
    nib_cluster_sync(); /* the others' sums have been read */
}

/* ---- Launches ---- */

static unsigned nib_expert_blocks(int32_t n_out, int per_block)
{
    return (unsigned)(((n_out + kTileRows - 1) / kTileRows + per_block - 1) / per_block);
}

template <int NT, bool plain, bool one = false>
static void nib_gate_up_launch(struct nib_stream *s, const struct nib_experts *a, unsigned n_segments)
{
    int32_t x = 0, parts = max(a->side[0].x.n_parts, a->side[1].x.n_parts);
    for (int i = 0; i < 2; i++)
        x = max(x, (int32_t)nib_expert_blocks(a->side[i].w1.n_out, kGateTiles));
    int32_t            rows = one ? 1 : min(a->n_pairs, a->segment_rows); /* a hash table may name an expert twice */
    struct nib_experts b = *a;
    b.piece_blocks = nib_piece_blocks(rows * parts);
    size_t bytes = nib_rows_bytes(1, parts, rows, b.piece_blocks);
    cudaFuncSetAttribute(gate_up<NT, plain, one>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, gate_up<NT, plain, one>, dim3((unsigned)x, n_segments), kThreads, bytes, b);
}

template <int NT, bool plain>
static void nib_down_launch(struct nib_stream *s, const struct nib_experts *a, unsigned n_segments)
{
    int32_t            parts = max(a->side[0].inner.n_parts, a->side[1].inner.n_parts);
    int32_t            rows = min(a->n_pairs, a->segment_rows); /* a hash table may name an expert twice */
    struct nib_experts b = *a;
    b.piece_blocks = nib_piece_blocks(rows * parts);
    size_t bytes = nib_rows_bytes(1, parts, rows, b.piece_blocks);
    cudaFuncSetAttribute(down<NT, plain>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, down<NT, plain>, dim3(nib_expert_blocks(a->dim, kDownTiles), n_segments), kThreads, bytes, b);
}

template <int NT> static void nib_down_one_launch(struct nib_stream *s, const struct nib_experts *a)
{
    unsigned           n = (unsigned)a->top_k + 1;
    unsigned           tiles = nib_expert_blocks(a->dim, kDownTiles);
    struct nib_experts b = *a;
    b.piece_blocks = nib_piece_blocks(1);
    size_t bytes = nib_rows_bytes(1, 1, 1, b.piece_blocks);
    nib_launch_cluster(s, n, down_one<NT>, dim3(n, tiles), kThreads, bytes, b);
}

#endif
