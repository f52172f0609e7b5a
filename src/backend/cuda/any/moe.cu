/* The mixture of experts without a host round trip: route, sort the (row, expert) pairs by expert, gate and up of every
 * pair, down of every pair, and a sum per row in ascending expert order. Launches have a fixed shape: a segment is one expert
 * and up to NT * 8 of its pairs; blocks without a segment leave at once. The shared expert's rows follow as more segments of
 * the same launches, so it costs no launch of its own. Bytes: a routed expert's codes once per segment. */
#include "backend/cuda/device/products.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"

/* ---- Routing ---- */

/* Orders floats as integers above 0; NaN is 0, passed over while a number is left. */
NIB_DEVICE uint32_t order_key(float v)
{
    uint32_t u = __float_as_uint(v == 0 ? 0.0f : v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

NIB_DEVICE float route_score(float z)
{
    double v = (double)z;
    return (float)sqrt(v > 20 ? v : log1p(exp(v)));
}

/* A block a row: a thread an expert for the scores, then the first warp chooses. route: scores after the square root of
 * softplus; keys in shared memory [n_experts], then flags of those taken. */
static __global__ void choose_experts(const struct nib_moe_args a, const struct nib_rows rows, int32_t first, float *route,
                                      int32_t *chosen, float *weight)
{
    nib_grid_start();
    extern __shared__ uint32_t key[];
    bool                      *taken = (bool *)(key + a.n_experts);
    int                        lane = threadIdx.x, k = a.top_k;
    int64_t                    r = blockIdx.x, t = first + r;
    float                     *score = route + r * a.n_experts;
    for (int e = threadIdx.x; e < a.n_experts; e += blockDim.x) {
        float s = route_score(score[e]);
        score[e] = s;
        taken[e] = false;
        key[e] = a.tid2eid ? 0 : order_key(s + a.bias[e]);
    }
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    for (int i = 0; i < k; i++) {
        int32_t best;
        if (a.tid2eid) {
            best = a.tid2eid[(int64_t)rows.token[t] * k + i];
        } else {
            /* ~e in the low word: of equal keys the lowest expert. A taken one is left out altogether. */
            uint64_t top = 0;
            for (int e = lane; e < a.n_experts; e += 32) {
                uint64_t v = (uint64_t)key[e] << 32 | (uint32_t)~e;
                top = !taken[e] && v > top ? v : top;
            }
            for (int offset = 16; offset > 0; offset /= 2) {
                uint64_t other = __shfl_xor_sync(~0u, top, offset);
                top = other > top ? other : top;
            }
            best = (int32_t)~(uint32_t)top;
            if (lane == 0)
                taken[best] = true;
        }
        if (lane == 0)
            chosen[r * k + i] = best;
        __syncwarp();
    }
    double sum = 0;
    for (int i = 0; i < k; i++)
        sum += (double)score[chosen[r * k + i]];
    for (int i = lane; i < k; i += 32) {
        float w = sum == 0 ? 0 : (float)((double)score[chosen[r * k + i]] / sum * (double)a.route_scale);
        weight[r * k + i] = w;
        if (a.chosen)
            a.chosen[t * k + i] = chosen[r * k + i];
        if (a.weights)
            a.weights[t * k + i] = w;
    }
}

/* One block. Pairs of an expert end up together in no particular order, which changes no result: rows do not see each
 * other. count [2 * n_experts] in shared memory. */
static __global__ void sort_pairs(int32_t n_experts, int32_t n_pairs, int32_t segment_rows, const int32_t *chosen,
                                  const struct nib_cuda_moe_scratch m)
{
    nib_grid_start();
    extern __shared__ int32_t count[];
    int32_t                  *fill = count + n_experts;
    for (int e = threadIdx.x; e < n_experts; e += blockDim.x)
        count[e] = 0;
    __syncthreads();
    for (int p = threadIdx.x; p < n_pairs; p += blockDim.x)
        atomicAdd(&count[chosen[p]], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        int32_t lane = threadIdx.x, at = 0, segments = 0;
        for (int e0 = 0; e0 < n_experts; e0 += 32) {
            int32_t e = e0 + lane, c = e < n_experts ? count[e] : 0, s = (c + segment_rows - 1) / segment_rows;
            int32_t c_sum = c, s_sum = s;
            for (int offset = 1; offset < 32; offset *= 2) {
                int32_t c_low = __shfl_up_sync(~0u, c_sum, offset), s_low = __shfl_up_sync(~0u, s_sum, offset);
                c_sum += lane >= offset ? c_low : 0;
                s_sum += lane >= offset ? s_low : 0;
            }
            if (e < n_experts) {
                m.first[e] = fill[e] = at + c_sum - c;
                for (int i = 0; i < s; i++) {
                    m.segment[2 * (segments + s_sum - s + i)] = e;
                    m.segment[2 * (segments + s_sum - s + i) + 1] = at + c_sum - c + i * segment_rows;
                }
            }
            at += __shfl_sync(~0u, c_sum, 31);
            segments += __shfl_sync(~0u, s_sum, 31);
        }
        if (lane == 0) {
            m.first[n_experts] = n_pairs;
            *m.n_segments = segments;
        }
    }
    __syncthreads();
    for (int p = threadIdx.x; p < n_pairs; p += blockDim.x) {
        int32_t at = atomicAdd(&fill[chosen[p]], 1);
        m.pair[at] = p;
        m.place[p] = at;
    }
}

/* ---- One expert's arithmetic ---- */

/* silu(min(g, limit)) * clamp(u, +-limit); Inf must stay visible, so it does not meet the clamps. */
NIB_DEVICE float swiglu(float g, float u, float limit)
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
struct side {
    struct nib_cuda_matrix w1, w3, w2;
    struct nib_cuda_rows   x, inner;
    int64_t                hidden_at; /* first element of its part of hidden; rows of w1.n_out */
    int64_t                y_at;      /* first row of its part of y */
};

struct moe_args {
    struct side                 side[2]; /* routed, shared */
    struct nib_cuda_moe_scratch m;
    const int32_t              *chosen;
    const float                *weight;
    int32_t                     n_rows, n_pairs, top_k, dim, n_segments_max, segment_rows;
    float                       limit;
    bool                        weight_before, bf16; /* bf16: hidden goes straight to its one part */
};

/* A block's rows: `count` sorted pairs (or rows of the shared expert) from `from` on, of matrix `stack`. */
struct segment {
    int32_t stack, from, count;
    bool    shared, none;
};

NIB_DEVICE struct segment segment_of(const struct moe_args &a, int32_t i)
{
    struct segment s = {0, 0, 0, i >= a.n_segments_max, false};
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

NIB_DEVICE int32_t row_of(const struct moe_args &a, const struct segment &s, int32_t i)
{
    return s.shared ? s.from + i : a.m.pair[s.from + i] / a.top_k;
}

/* ---- Gate and up ---- */

/* Warps of a block that share a tile's columns: a function of the shape alone. */
static __host__ __device__ inline int splits_of(int32_t n_in)
{
    return n_in >= 1024 ? 2 : 1;
}

/* A block is one tile of w1 and of w3 (two where columns are few), two warps or one each sharing its columns. */
template <int NT> static __global__ void __launch_bounds__(kThreads, NT > 2 ? 2 : 4)
gate_up(const __grid_constant__ struct moe_args a)
{
    nib_grid_start();
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ const uint16_t              *row[NT * 8];
    __shared__ float                        sums[kWarps][kTileRows * NT * 8];
    struct segment                          seg = segment_of(a, blockIdx.y);
    if (seg.none)
        return;
    const struct side &side = a.side[seg.shared];
    int     warp = threadIdx.x / 32, lane = threadIdx.x % 32, which = warp % 2, n = side.w1.n_out;
    int     n_splits = splits_of(side.w1.n_in), per_block = 2 / n_splits, split = warp / 2 % n_splits;
    int64_t tile0 = (int64_t)blockIdx.x * per_block, tile = tile0 + warp / 2 / n_splits;
    int64_t n_tiles = (n + kTileRows - 1) / kTileRows;
    if (tile0 >= n_tiles)
        return;
    struct nib_tile t = nib_tile_of(which ? side.w3 : side.w1, seg.stack, min(tile, n_tiles - 1), lane);
    if ((int)threadIdx.x < seg.count)
        row[threadIdx.x] = side.x.part + row_of(a, seg, threadIdx.x) * side.x.stride;
    __syncthreads();
    /* Pairs of warps (w1's and w3's) and, with one span, all four share the rows. */
    struct nib_row_source rows = nib_row_source_of(row, side.x, seg.count, side.w1.n_in, split, n_splits,
                                                   n_splits == 1 ? warp : warp % 2, memory);
    float acc[NT][4] = {};
    nib_tile_prefetch_any(side.w1.type, t, rows.begin, rows.end);
    nib_tile_multiply_any<NT>(side.w1.type, t, rows, tile >= n_tiles, acc);
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
        int64_t of = row_of(a, seg, i);
        float   act = swiglu(nib_row_scaled(g, alpha1, side.x, of), nib_row_scaled(u, alpha3, side.x, of), a.limit);
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

template <int NT> static __global__ void __launch_bounds__(kThreads, NT > 2 ? 2 : 4)
down(const __grid_constant__ struct moe_args a)
{
    nib_grid_start();
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ const uint16_t              *row[NT * 8];
    __shared__ float                        sums[kWarps][kTileRows * NT * 8];
    struct segment                          seg = segment_of(a, blockIdx.y);
    if (seg.none)
        return;
    const struct side &side = a.side[seg.shared];
    int     warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int     n_splits = splits_of(side.w2.n_in), per_block = kWarps / n_splits;
    int64_t tile0 = (int64_t)blockIdx.x * per_block, tile = tile0 + warp / n_splits;
    int64_t n_tiles = (a.dim + kTileRows - 1) / kTileRows;
    if (tile0 >= n_tiles)
        return;
    if ((int)threadIdx.x < seg.count)
        row[threadIdx.x] = side.inner.part + (int64_t)(seg.from + threadIdx.x) * side.inner.stride;
    __syncthreads();
    struct nib_row_source rows = nib_row_source_of(row, side.inner, seg.count, side.w2.n_in, warp % n_splits, n_splits,
                                                   warp / n_splits, memory);
    float           acc[NT][4] = {};
    struct nib_tile t = nib_tile_of(side.w2, seg.stack, min(tile, n_tiles - 1), lane);
    nib_tile_prefetch_any(side.w2.type, t, rows.begin, rows.end);
    nib_tile_multiply_any<NT>(side.w2.type, t, rows, tile >= n_tiles, acc);
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

/* ---- Where a weight is not tiled: a warp an output and a pair ---- */

NIB_DEVICE float stored_dot(const struct nib_cuda_matrix &w, int32_t stack, int64_t o, const float *x)
{
    float sum = 0;
    for (int32_t k = threadIdx.x % 32; k < w.n_in; k += 32)
        sum = fmaf(nib_matrix_value(w, stack, o, k), x[k], sum);
    return nib_warp_sum(sum) * nib_alpha_of(w, stack);
}

static __global__ void stored_gate_up(const struct moe_args a, int shared)
{
    nib_grid_start();
    const struct side &side = a.side[shared];
    int64_t            o = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, p = blockIdx.y;
    if (o >= side.w1.n_out)
        return;
    int32_t      pair = shared ? 0 : a.m.pair[p], stack = shared ? 0 : a.chosen[pair];
    const float *x = side.x.f32 + (shared ? p : pair / a.top_k) * side.x.f32_stride;
    float        act = swiglu(stored_dot(side.w1, stack, o, x), stored_dot(side.w3, stack, o, x), a.limit);
    if (a.weight_before && !shared)
        act *= a.weight[pair];
    if (threadIdx.x % 32 == 0)
        a.m.hidden[side.hidden_at + p * side.w1.n_out + o] = act;
}

static __global__ void stored_down(const struct moe_args a, int shared)
{
    nib_grid_start();
    const struct side &side = a.side[shared];
    int64_t            o = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, p = blockIdx.y;
    if (o >= a.dim)
        return;
    int32_t pair = shared ? 0 : a.m.pair[p], stack = shared ? 0 : a.chosen[pair];
    float   sum = stored_dot(side.w2, stack, o, side.inner.f32 + p * side.inner.f32_stride);
    if (!a.weight_before && !shared)
        sum *= a.weight[pair];
    if (threadIdx.x % 32 == 0)
        a.m.y[(side.y_at + p) * a.dim + o] = sum;
}

/* ---- Between gate-up and down ---- */

/* A hidden row through the format of w2's activations, back to fp32 and into its bf16 parts. row: [n] floats, codes [n] and
 * scales bytes behind. */
static __global__ void finish_hidden(enum nib_act_format act, int32_t n, float *hidden, int n_parts, uint16_t *part, int64_t part_stride,
                                     int32_t *exponent)
{
    nib_grid_start();
    extern __shared__ float row[];
    __shared__ uint32_t     buffer[32];
    __shared__ float        row_scale;
    int64_t                 at = (int64_t)blockIdx.x * n;
    uint8_t                *codes = (uint8_t *)(row + n), *scales = codes + nib_round_up(n, 4);
    struct nib_act          y = {{}, act, 1, n, codes, scales, &row_scale, n, n};
    uint32_t                most = 0;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        row[i] = hidden[at + i];
    __syncthreads();
    if (act != NIB_ACT_PLAIN) {
        nib_act_quantise_block(y, 0, row, buffer);
        for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
            hidden[at + i] = row[i] = nib_act_get(y, 0, i);
    }
    if (n_parts == 0)
        return;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        most = max(most, __float_as_uint(row[i]) & 0x7fffffffu);
    int32_t e = nib_exponent_of(nib_block_max_u32(most, buffer));
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        nib_parts_put(scalbnf(row[i], -e), n_parts, part + at + i, part_stride);
    if (threadIdx.x == 0)
        exponent[blockIdx.x] = e;
}

/* y[t] = sum over chosen experts in ascending id, then the shared expert. */
static __global__ void combine(const struct moe_args a, int32_t first, const struct nib_mat y)
{
    nib_grid_start();
    extern __shared__ int32_t order[]; /* [top_k] sorted places */
    int64_t                   t = blockIdx.y;
    int32_t                   k = a.top_k, c = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = threadIdx.x; i < k; i += blockDim.x) {
        int32_t e = a.chosen[t * k + i], rank = 0;
        for (int j = 0; j < k; j++) {
            int32_t other = a.chosen[t * k + j];
            rank += other < e || (other == e && j < i);
        }
        order[rank] = a.m.place[t * k + i];
    }
    __syncthreads();
    if (c >= a.dim)
        return;
    float sum = 0;
    for (int i = 0; i < k; i++)
        sum += a.m.y[(int64_t)order[i] * a.dim + c];
    sum += a.m.y[(a.side[1].y_at + t) * a.dim + c];
    nib_mat_set(y, first + t, c, sum);
}

/* ---- Launches ---- */

static unsigned tiles_grid(int32_t n_out, int per_block)
{
    return (unsigned)(((n_out + kTileRows - 1) / kTileRows + per_block - 1) / per_block);
}

static int32_t most(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Rows that a segment can have in this launch (a hash table may name an expert twice). */
static int32_t most_rows(const struct moe_args &a)
{
    return a.n_pairs < a.segment_rows ? a.n_pairs : a.segment_rows;
}

/* Rows of a segment: a product's, where a block's memory on this card holds them in three parts, columns cut in two. */
static int32_t segment_rows_for(const struct nib_stream *s, int32_t n_pairs, int32_t experts)
{
    const size_t sums = 16 * (sizeof(uint16_t *) + kWarps * kTileRows * sizeof(float));
    const size_t fit = ((size_t)s->shared_most - sums) / nib_rows_bytes(2, 3, 1);
    const size_t rows = n_pairs > 4 * experts && fit >= 16 ? 16 : 8;
    return (int32_t)(fit < rows ? fit : rows);
}

template <int NT> static void launch_gate_up(struct nib_stream *s, const struct moe_args &a, unsigned n_segments)
{
    int32_t x = 0, parts = most(a.side[0].x.n_parts, a.side[1].x.n_parts);
    for (int i = 0; i < 2; i++)
        x = most(x, (int32_t)tiles_grid(a.side[i].w1.n_out, 2 / splits_of(a.side[i].w1.n_in)));
    size_t bytes = nib_rows_bytes(2, parts, most_rows(a));
    cudaFuncSetAttribute(gate_up<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, gate_up<NT>, dim3((unsigned)x, n_segments), kThreads, bytes, a);
}

template <int NT> static void launch_down(struct nib_stream *s, const struct moe_args &a, unsigned n_segments)
{
    int32_t x = 0, parts = most(a.side[0].inner.n_parts, a.side[1].inner.n_parts);
    for (int i = 0; i < 2; i++)
        x = most(x, (int32_t)tiles_grid(a.dim, kWarps / splits_of(a.side[i].w2.n_in)));
    size_t bytes = nib_rows_bytes(2, parts, most_rows(a));
    cudaFuncSetAttribute(down<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, down<NT>, dim3((unsigned)x, n_segments), kThreads, bytes, a);
}

/* Rows of hidden become the inner rows of w2. */
static void launch_finish(struct nib_stream *s, struct moe_args *a, const struct nib_weight *w2, int i, bool direct, bool stored)
{
    struct side *side = &a->side[i];
    int32_t      n = side->w1.n_out, rows = i ? a->n_rows : a->n_pairs;
    int64_t      all = (int64_t)a->n_pairs * a->side[0].w1.n_out + (int64_t)a->n_rows * a->side[1].w1.n_out;
    size_t       bytes = (size_t)n * 6 + 64;
    memset(&side->inner, 0, sizeof side->inner);
    side->inner.n_parts = direct || w2->act == NIB_ACT_FP8 ? 1 : 3;
    side->inner.part = a->m.parts + side->hidden_at;
    side->inner.part_stride = (all + 7) / 8 * 8;
    side->inner.stride = side->inner.f32_stride = n;
    side->inner.f32 = a->m.hidden + side->hidden_at;
    if (direct)
        return;
    side->inner.exponent = a->m.exponent + (i ? a->n_pairs : 0);
    cudaFuncSetAttribute(finish_hidden, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, finish_hidden, (unsigned)rows, 128, bytes, w2->act, n, a->m.hidden + side->hidden_at, stored ? 0 : side->inner.n_parts,
                                                            a->m.parts + side->hidden_at, side->inner.part_stride,
                                                            a->m.exponent + (i ? a->n_pairs : 0));
}

/* A stage runs on tiles only if all of its matrices can. */
static bool first_stage_is_tiled(const struct moe_args *a)
{
    bool tiled = true;
    for (int i = 0; i < 2; i++)
        tiled = tiled && a->side[i].w1.layout == NIB_CUDA_TILED && a->side[i].w3.layout == NIB_CUDA_TILED;
    return tiled;
}

static void launch_stages(struct nib_stream *s, struct moe_args *a, const struct nib_weight *const w2[2])
{
    bool     in_tiled = first_stage_is_tiled(a);
    bool     out_tiled = a->side[0].w2.layout == NIB_CUDA_TILED && a->side[1].w2.layout == NIB_CUDA_TILED;
    int32_t  wide = a->segment_rows > 8 ? 2 : 1;
    unsigned n_segments = (unsigned)(a->n_segments_max + (a->n_rows + a->segment_rows - 1) / a->segment_rows);
    bool     direct = a->bf16 && in_tiled && out_tiled && w2[0]->act == NIB_ACT_PLAIN && w2[1]->act == NIB_ACT_PLAIN;
    a->bf16 = direct;
    if (in_tiled) {
        if (wide == 1)
            launch_gate_up<1>(s, *a, n_segments);
        else
            launch_gate_up<2>(s, *a, n_segments);
    } else {
        for (int i = 0; i < 2; i++)
            nib_launch(s, stored_gate_up, dim3((unsigned)((a->side[i].w1.n_out + 7) / 8), (unsigned)(i ? a->n_rows : a->n_pairs)), 256, 0, *a, i);
    }
    for (int i = 0; i < 2; i++)
        launch_finish(s, a, w2[i], i, direct, !out_tiled);
    if (out_tiled) {
        if (wide == 1)
            launch_down<1>(s, *a, n_segments);
        else
            launch_down<2>(s, *a, n_segments);
    } else {
        for (int i = 0; i < 2; i++)
            nib_launch(s, stored_down, dim3((unsigned)((a->dim + 7) / 8), (unsigned)(i ? a->n_rows : a->n_pairs)), 256, 0, *a, i);
    }
}

enum nib_status nib_cuda_moe_route(struct nib_stream *s, const struct nib_moe_args *a, int32_t first, int32_t n)
{
    struct nib_cuda_moe_scratch *m = &s->moe;
    struct nib_cuda_products     router;
    int64_t                      at = 0;
    memset(&router, 0, sizeof router);
    router.n = n;
    router.n_weights = 1;
    router.w[0] = *nib_cuda_matrix_of(a->router);
    router.y[0].data = m->route;
    router.y[0].rows = n;
    router.y[0].cols = a->n_experts;
    router.y[0].stride = a->n_experts;
    NIB_TRY(nib_cuda_rows_prepare(s, &a->x, NIB_ACT_PLAIN, first, n, router.w[0].layout == NIB_CUDA_STORED, &at, &router.x[0]));
    NIB_TRY(nib_cuda_products_run(s, &router));
    size_t keys = (size_t)a->n_experts * 5;
    cudaFuncSetAttribute(choose_experts, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)keys);
    nib_launch(s, choose_experts, (unsigned)n, 256, keys, *a, *a->rows, first, m->route, m->chosen, m->weight);
    return nib_cuda_check(s, cudaGetLastError(), "routing");
}

static enum nib_status moe_rows(struct nib_stream *s, const struct nib_moe_args *a, int32_t first, int32_t n)
{
    const struct nib_weight *const w[2][3] = {{a->w1, a->w2, a->w3}, {a->sw1, a->sw2, a->sw3}};
    struct nib_cuda_moe_scratch   *m = &s->moe;
    struct moe_args                args;
    int64_t                        at = 0;
    memset(&args, 0, sizeof args);
    NIB_TRY(nib_cuda_moe_route(s, a, first, n));

    args.m = *m;
    args.chosen = m->chosen;
    args.weight = m->weight;
    args.n_rows = n;
    args.n_pairs = n * a->top_k;
    args.top_k = a->top_k;
    args.dim = a->x.cols;
    args.limit = a->limit;
    args.weight_before = a->weight_before_w2;
    args.bf16 = a->y.dtype == NIB_DTYPE_BF16;
    int32_t experts = args.n_pairs < a->n_experts ? args.n_pairs : a->n_experts;
    args.segment_rows = segment_rows_for(s, args.n_pairs, experts);
    args.n_segments_max = experts + args.n_pairs / args.segment_rows;

    size_t counts = 2 * (size_t)a->n_experts * 4;
    cudaFuncSetAttribute(sort_pairs, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)counts);
    nib_launch(s, sort_pairs, 1, 1024, counts, a->n_experts, args.n_pairs, args.segment_rows, m->chosen, *m);
    NIB_TRY(nib_cuda_check(s, cudaGetLastError(), "routing"));

    for (int i = 0; i < 2; i++) {
        struct side *side = &args.side[i];
        side->w1 = *nib_cuda_matrix_of(w[i][0]);
        side->w2 = *nib_cuda_matrix_of(w[i][1]);
        side->w3 = *nib_cuda_matrix_of(w[i][2]);
        side->hidden_at = i ? (int64_t)args.n_pairs * a->w1->n_out : 0;
        side->y_at = i ? args.n_pairs : 0;
    }
    bool tiled = first_stage_is_tiled(&args);
    for (int i = 0; i < 2; i++) {
        if (!tiled)
            NIB_TRY(nib_cuda_rows_prepare(s, &a->x, w[i][0]->act, first, n, true, &at, &args.side[i].x));
        else if (i == 1 && w[1][0]->act == w[0][0]->act)
            args.side[1].x = args.side[0].x;
        else
            NIB_TRY(nib_cuda_rows_prepare(s, &a->x, w[i][0]->act, first, n, false, &at, &args.side[i].x));
    }
    const struct nib_weight *const w2[2] = {a->w2, a->sw2};
    launch_stages(s, &args, w2);
    nib_launch(s, combine, dim3((unsigned)((args.dim + 255) / 256), (unsigned)n), 256, (size_t)a->top_k * 4, args, first, a->y);
    return nib_cuda_check(s, cudaGetLastError(), "experts");
}

enum nib_status nib_cuda_moe(struct nib_stream *s, const struct nib_moe_args *a)
{
    int32_t n, chunk = nib_cuda_rows_fit(s, a->x.cols, a->x.rows);
    chunk = chunk < s->moe.n_rows ? chunk : s->moe.n_rows;
    for (int32_t first = 0; first < a->x.rows; first += n) {
        n = a->x.rows - first < chunk ? a->x.rows - first : chunk;
        NIB_TRY(moe_rows(s, a, first, n));
    }
    return NIB_OK;
}
