/* Which compressed entries a query attends to: scores of all visible entries in
 * fp32, and an exact selection by radix, in ascending order. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"

NIB_DEVICE int32_t visible_of(const struct nib_index_select_args &a, const struct nib_rows &rows, int64_t t)
{
    return (rows.pos[t] + 1) / a.ratio;
}

/* Scores are needed where not everything is taken, and for tracing. */
NIB_DEVICE bool is_scored(const struct nib_index_select_args &a, int32_t visible)
{
    return visible > a.top_k || a.scores.data;
}

/* ---- Scores ---- */

constexpr int kScoreEntries = 128; /* a block's entries, one thread each */
constexpr int kScoreHeads = 8;     /* heads that share one reading of a key */

/* Keys of a block of entries stand in shared memory [dim][entries + 1], queries [dim][heads padded to kScoreHeads]. */
static __global__ void index_scores(const struct nib_index_select_args a, const struct nib_rows rows, int32_t first, float *score,
                                    int64_t score_stride)
{
    nib_grid_start();
    extern __shared__ float key[];
    int64_t                 t = first + (int64_t)blockIdx.y;
    int32_t                 visible = visible_of(a, rows, t), n_heads = nib_round_up(a.n_heads, kScoreHeads), e = threadIdx.x;
    float                  *q = key + a.dim * (kScoreEntries + 4), *weight = q + a.dim * n_heads;
    const int32_t          *page = rows.entry_page + rows.seq[t] * rows.page_stride;
    bool                    bf16 = a.q.dtype == NIB_DTYPE_BF16;
    if (!is_scored(a, visible) || (int32_t)blockIdx.x * kScoreEntries >= visible)
        return;
    for (int32_t i = threadIdx.x; i < a.dim * n_heads; i += blockDim.x) {
        int32_t h = i / a.dim, k = i % a.dim;
        q[k * n_heads + h] = h < a.n_heads ? nib_mat_get(a.q, t, (int64_t)h * a.dim + k) : 0;
    }
    for (int32_t h = threadIdx.x; h < n_heads; h += blockDim.x) {
        float w = h < a.n_heads ? nib_mat_get(a.weight, t, h) * a.scale : 0;
        weight[h] = bf16 ? nib_bf16_rounded(w) : w;
    }
    for (int32_t base = blockIdx.x * kScoreEntries; base < visible; base += gridDim.x * kScoreEntries) {
        __syncthreads();
        for (int32_t i = threadIdx.x; i < a.dim * kScoreEntries; i += blockDim.x) {
            int32_t c = base + i / a.dim, k = i % a.dim;
            key[k * (kScoreEntries + 4) + i / a.dim] =
                c < visible ? nib_kv_get(a.keys.format, nib_store_at(a.keys, page, c), a.dim, a.rope.n_rot, k) : 0;
        }
        __syncthreads();
        float sum = 0;
        for (int32_t h0 = 0; h0 < n_heads; h0 += kScoreHeads) {
            float dot[kScoreHeads] = {};
            for (int32_t k = 0; k < a.dim; k++) {
                float v = key[k * (kScoreEntries + 4) + e];
#pragma unroll
                for (int h = 0; h < kScoreHeads; h++)
                    dot[h] = fmaf(v, q[k * n_heads + h0 + h], dot[h]);
            }
#pragma unroll
            for (int h = 0; h < kScoreHeads; h++) {
                float d = bf16 ? nib_bf16_rounded(dot[h]) : dot[h];
                if (h0 + h < a.n_heads)
                    sum = fmaf(weight[h0 + h], d < 0 ? 0 : d, sum); /* NaN passes */
            }
        }
        if (bf16)
            sum = nib_bf16_rounded(sum);
        if (base + e < visible) {
            score[blockIdx.y * score_stride + base + e] = sum;
            if (a.scores.data)
                nib_mat_set(a.scores, t, base + e, sum);
        }
    }
}

/* ---- Selection ---- */

constexpr int kSelectThreads = 1024;

/* Orders scores as integers, NaN first of all so that it cannot be left out unseen. */
NIB_DEVICE uint32_t score_key(float v)
{
    uint32_t u = __float_as_uint(v == 0 ? 0.0f : v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return ~0u;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Number of threads below this one with the flag, and *total of all; counts [32] in shared memory. */
NIB_DEVICE int32_t rank_block(bool flag, int32_t *counts, int32_t *total)
{
    int      warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t votes = __ballot_sync(~0u, flag);
    __syncthreads();
    if (lane == 0)
        counts[warp] = __popc(votes);
    __syncthreads();
    int32_t before = 0, all = 0;
    for (int i = 0; i < (int)blockDim.x / 32; i++) {
        before += i < warp ? counts[i] : 0;
        all += counts[i];
    }
    *total = all;
    return before + __popc(votes & ((1u << lane) - 1));
}

/* The k-th largest of n > k keys: eight bits a pass, from the top. *n_ties: how many keys equal to it are taken. */
NIB_DEVICE uint32_t radix_cut(const float *score, int32_t n, int32_t k, int32_t *histogram, int32_t *state, int32_t *n_ties)
{
    uint32_t cut = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int32_t i = threadIdx.x; i < 256; i += blockDim.x)
            histogram[i] = 0;
        __syncthreads();
        for (int32_t i = threadIdx.x; i < n; i += blockDim.x) {
            uint32_t key = score_key(score[i]);
            if (shift == 24 || key >> (shift + 8) == cut >> (shift + 8))
                atomicAdd(&histogram[key >> shift & 255u], 1);
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            /* Lane i holds bins 8i .. 8i+7; counts of higher lanes by a scan from the top. */
            int32_t lane = threadIdx.x, own = 0, above;
            for (int i = 0; i < 8; i++)
                own += histogram[8 * lane + i];
            above = own;
            for (int offset = 1; offset < 32; offset *= 2) {
                int32_t higher = __shfl_down_sync(~0u, above, offset);
                above += lane + offset < 32 ? higher : 0;
            }
            above -= own;
            if (above < k && above + own >= k) {
                int32_t bin = 8 * lane + 7;
                while (above + histogram[bin] < k)
                    above += histogram[bin--];
                state[0] = bin;
                state[1] = k - above;
            }
        }
        __syncthreads();
        cut |= (uint32_t)state[0] << shift;
        k = state[1];
        __syncthreads();
    }
    *n_ties = k;
    return cut;
}

/* For more entries than registers hold (any/index_take.cu). */
static __global__ void take_from_many(const struct nib_index_select_args a, const struct nib_rows rows, int32_t first, const float *score,
                                  int64_t score_stride)
{
    nib_grid_start();
    __shared__ int32_t histogram[256], counts[32], state[2];
    int64_t            t = first + (int64_t)blockIdx.x;
    int32_t            visible = visible_of(a, rows, t), n = min(visible, a.top_k), *selected = a.selected + t * a.top_k;
    if (threadIdx.x == 0)
        a.n_selected[t] = n;
    for (int32_t i = threadIdx.x; i < a.top_k; i += blockDim.x)
        if (visible <= a.top_k || i >= n)
            selected[i] = i < n ? i : -1;
    if (visible <= a.top_k || n == 0)
        return;
    int32_t      n_ties, n_taken = 0, n_equal = 0, total;
    const float *row = score + blockIdx.x * score_stride;
    uint32_t     cut = radix_cut(row, visible, n, histogram, state, &n_ties);
    for (int32_t base = 0; base < visible && n_taken < n; base += blockDim.x) {
        int32_t  i = base + threadIdx.x;
        uint32_t key = i < visible ? score_key(row[i]) : 0;
        bool     equal = i < visible && key == cut;
        int32_t  rank = n_equal + rank_block(equal, counts, &total);
        n_equal += total;
        bool    taken = i < visible && (key > cut || (equal && rank < n_ties));
        int32_t at = n_taken + rank_block(taken, counts, &total);
        n_taken += total;
        if (taken)
            selected[at] = i;
    }
}

void nib_cuda_index_choose(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first, int32_t n,
                           int64_t n_entries)
{
    if (!nib_cuda_index_take(s, a, first, n, n_entries))
        nib_launch(s, take_from_many, (unsigned)n, kSelectThreads, 0, *a, *a->rows, first, s->score, n_entries);
}

enum nib_status nib_cuda_index_select(struct nib_stream *s, const struct nib_index_select_args *a)
{
    const struct nib_rows *rows = a->rows;
    int64_t                n_entries = s->dims.n_ctx_max / a->ratio + 1;
    int32_t                fit = (int32_t)((int64_t)s->n_score_rows * s->n_entries_max / n_entries), n;
    size_t heads = (size_t)(a->n_heads + kScoreHeads - 1) / kScoreHeads * kScoreHeads;
    size_t score = ((size_t)a->dim * (kScoreEntries + 4) + (size_t)a->dim * heads + heads) * sizeof(float);
    fit = fit < 1 ? 1 : fit > 32768 ? 32768 : fit;
    cudaFuncSetAttribute(index_scores, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)score);
    for (int32_t first = 0; first < rows->n_rows; first += n) {
        n = rows->n_rows - first < fit ? rows->n_rows - first : fit;
        int64_t blocks = (n_entries + kScoreEntries - 1) / kScoreEntries, most = 8 * (int64_t)s->n_sms / n + 1;
        dim3    grid((unsigned)(blocks < most ? blocks : most), (unsigned)n);
        nib_cuda_index_query(s, a, first, n);
        if (nib_cuda_index_mma_takes(a))
            nib_cuda_index_mma(s, a, first, n, n_entries);
        else
            nib_launch(s, index_scores, grid, kScoreEntries, score, *a, *rows, first, s->score, n_entries);
        nib_cuda_index_choose(s, a, first, n, n_entries);
    }
    return nib_cuda_check(s, cudaGetLastError(), "index_select");
}
