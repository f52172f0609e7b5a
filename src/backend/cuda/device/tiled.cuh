/* The kernel of products with tiled weights (products.cuh), one instantiation a file as each takes long to compile.
 * A launch covers all weights of the op. A block of 4 warps takes 64 outputs and all their columns, or, where
 * outputs are few, 4 or 8 blocks of a cluster take them, each a span of the columns: even a small matrix keeps many
 * warps loading, and a block loads its rows once for all its warps. With several rows, whose loads count, blocks have 8
 * warps. On cards without clusters the warps of a block share the columns of 16 outputs. Their sums meet in a fixed
 * order. Bytes: each weight code once per NT * 8 rows. */
#ifndef NIB_CUDA_TILED_CUH
#define NIB_CUDA_TILED_CUH

#include "backend/cuda/device/cluster.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/products.cuh"
#include "backend/cuda/device/routing.cuh"
#include "backend/cuda/device/rows.cuh"

constexpr int kSpans = 4, kSpansMost = 8, kWarpsMost = 8;

struct nib_tiled {
    struct nib_cuda_products p;
    int32_t                  first_block[NIB_CUDA_PRODUCTS + 1]; /* of each weight; in clusters multiples of 8 */
    int32_t                  piece_blocks, rows;                 /* rows: of x that a block takes */
    int32_t                  warps;                              /* of a block: kWarps, or kWarpsMost */
    bool                     clusters;                           /* this card has them */
};

/* One of the instantiations: rows of one part and whole steps (nib_is_plain), or anything; for up to 8, 16 or more
 * rows. */
void nib_cuda_tiled_plain8(struct nib_stream *s, const struct nib_tiled *a);
void nib_cuda_tiled_plain16(struct nib_stream *s, const struct nib_tiled *a);
void nib_cuda_tiled_plain32(struct nib_stream *s, const struct nib_tiled *a);
void nib_cuda_tiled_any8(struct nib_stream *s, const struct nib_tiled *a);
void nib_cuda_tiled_any32(struct nib_stream *s, const struct nib_tiled *a);

/* Blocks, or warps, that share a matrix's columns: a function of the shape and the card alone, as the order of sums
 * must not depend on anything else. */
static __host__ __device__ inline int nib_spans_of(const struct nib_cuda_matrix &w, bool clusters)
{
    if (w.n_out >= 24576 || w.n_in < 4 * kBlockCols * kSpans)
        return 1;
    return clusters && w.n_out <= 2048 && w.n_in >= 4096 ? kSpansMost : kSpans;
}

template <int NT, bool plain, int W>
static __global__ void
__launch_bounds__(32 * W, (NT > 2 ? 2 : NT == 2 ? NIB_BLOCKS(4, 2, 2) : NIB_BLOCKS(4, 4, 3)) * kWarps / W)
tiled_products(const __grid_constant__ struct nib_tiled a)
{
    nib_grid_release();
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ const uint16_t              *row[NT * 8];
    __shared__ __align__(16) float          sums[W][kTileRows * NT * 8];
    int i = 0;
    while ((int32_t)blockIdx.x >= a.first_block[i + 1])
        i++;
    const struct nib_cuda_matrix &w = a.p.w[i];
    const struct nib_cuda_rows   &x = a.p.x[i];
    int     warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_spans = nib_spans_of(w, a.clusters);
    bool    by_warps = W == kSpans && n_spans > 1 && !a.clusters; /* they share the columns */
    int32_t index = (int32_t)blockIdx.x - a.first_block[i], outs = by_warps ? kTileRows : kTileRows * W;
    int32_t span = by_warps ? warp : index % n_spans, o0 = (by_warps ? index : index / n_spans) * outs;
    int32_t o = by_warps ? o0 : o0 + warp * kTileRows, row0 = blockIdx.y * a.rows, count = min(a.rows, a.p.n - row0);
    if (o0 >= w.n_out) { /* fills up a cluster, whose others may meet */
        if (n_spans > 1 && !by_warps) {
            nib_cluster_sync();
            nib_cluster_sync();
        }
        return;
    }
    uint16_t *buffer = (uint16_t *)memory;
    if (by_warps)
        buffer += 2 * span * x.n_parts * count * nib_row_halves(a.piece_blocks);
    struct nib_row_source rows = nib_row_source_of(row, x, count, w.n_in, span, n_spans, a.piece_blocks,
                                                   by_warps ? 0 : warp, by_warps ? 1 : W, buffer);
    /* A warp behind the last tile loads rows with the others, and its sums are never looked at. */
    struct nib_tile t = nib_tile_of(w, 0, min(o, w.n_out - 1) / kTileRows, lane);

    /* With groups of outputs, tiles may lie in more than one: every output takes its own. */
    float   acc[NT][4] = {};
    int32_t per_group = a.p.group_rows, last = min(o0 + outs, w.n_out) - 1;
    int32_t g = per_group ? o0 / per_group : 0, end = per_group ? last / per_group : 0;
    auto    ready = [&] {
        nib_grid_wait();
        __syncthreads();
        if ((int)threadIdx.x < count)
            row[threadIdx.x] = x.part + (row0 + (int64_t)threadIdx.x) * x.stride + (int64_t)g * w.n_in;
        __syncthreads();
    };
    if (plain) {
        nib_tile_multiply_any<NT, true>(w.type, t, rows, ready, acc);
    } else {
#pragma unroll 1
        for (; g <= end; g++) {
            float part[NT][4] = {};
            nib_tile_multiply_any<NT, false>(w.type, t, rows, ready, part);
            for (int nt = 0; nt < NT; nt++)
                for (int c = 0; c < 4; c++)
                    if (per_group == 0 || (o + lane / 4 + c / 2 * 8) / per_group == g)
                        acc[nt][c] = part[nt][c];
        }
    }

    nib_sums_put<NT>(acc, lane, sums[warp]);
    float alpha = nib_alpha_of(w, 0);
    auto  put = [&](int64_t r, int64_t to, float v) {
        nib_mat_set(a.p.y[i], r, to, a.p.scores ? nib_route_score(v) : v);
    };
    if (n_spans == 1 || by_warps) {
        __syncthreads();
        for (int e = threadIdx.x; e < outs * count; e += 32 * W) {
            int   at = e % outs, r = e / outs, place = at % kTileRows * NT * 8 + r;
            float sum = by_warps ? 0 : sums[at / kTileRows][place];
            for (int k = 0; by_warps && k < W; k++)
                sum += sums[k][place];
            if (o0 + at < w.n_out)
                put(row0 + r, o0 + at, nib_row_scaled(sum, alpha, x, row0 + r));
        }
        return;
    }
    /* Each of the blocks that share the columns finishes as many outputs. */
    nib_cluster_sync();
    int      per_block = kTileRows * W / n_spans;
    uint32_t first = nib_cluster_rank() - (uint32_t)span;
    for (int e = threadIdx.x; e < per_block * count; e += 32 * W) {
        int   at = span * per_block + e % per_block, r = e / per_block;
        float sum = 0;
        for (int k = 0; k < n_spans; k++)
            sum += nib_cluster_load_f32(&sums[at / kTileRows][at % kTileRows * NT * 8 + r], first + (uint32_t)k);
        if (o0 + at < w.n_out)
            put(row0 + r, o0 + at, nib_row_scaled(sum, alpha, x, row0 + r));
    }
    nib_cluster_sync(); /* the others read these sums */
}

/* A block takes as many rows as its product does, or as its memory on this card holds. */
template <int NT, bool plain, int W> static void nib_tiled_launch(struct nib_stream *s, const struct nib_tiled *a)
{
    constexpr size_t kStatic = NT * 8 * (sizeof(uint16_t *) + W * kTileRows * sizeof(float));
    struct nib_tiled b = *a;
    int              spans = 1, parts = 1;
    for (int i = 0; i < a->p.n_weights; i++) {
        spans = max(spans, nib_spans_of(a->p.w[i], a->clusters));
        parts = max(parts, a->p.x[i].n_parts);
    }
    int    buffers = a->clusters ? 1 : spans;
    size_t fit = ((size_t)s->shared_most - kStatic) / nib_rows_bytes(buffers, parts, 1, 8);
    b.rows = fit < NT * 8 ? (int32_t)fit : NT * 8;
    int32_t rows = a->p.n < b.rows ? a->p.n : b.rows;
    b.piece_blocks = nib_piece_blocks(rows * parts * buffers);
    size_t bytes = nib_rows_bytes(buffers, parts, rows, b.piece_blocks);
    dim3   grid((unsigned)a->first_block[a->p.n_weights], (unsigned)((a->p.n + b.rows - 1) / b.rows));
    cudaFuncSetAttribute(tiled_products<NT, plain, W>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch_cluster(s, a->clusters ? (unsigned)spans : 1, tiled_products<NT, plain, W>, grid, 32 * W, bytes, b);
}

#endif
