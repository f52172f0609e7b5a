/* Scores of the indexer for FP4 keys of 128 channels with FP4 queries, by block-scaled mma.sync (kind::mxf4, a UE8M0
 * scale for 32 values). Compiled and simulated; never run on hardware yet.
 *
 * A block takes one query row and walks its visible entries 128 at a time, 32 a warp. Entries are the 16-row operand: a
 * lane reads the words that it multiplies from the keys' pages, those of the next tile while this one is multiplied.
 * Heads are the 8-column operand, brought to codes once a block, in the order in which lanes read them. A lane adds up
 * weighted heads of four entries; quads meet at the end. */
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/sm120a/mma_sm120a.cuh"
#include "backend/cuda/sm120a/sm120a.h"

constexpr int kDim = 128, kHeadsMost = NIB_SM120A_INDEX_HEADS, kEntries = NIB_SM120A_INDEX_ENTRIES;
constexpr int kThreads = NIB_SM120A_INDEX_THREADS, kWarps = kThreads / 32, kTiles = kEntries / kWarps / 16;
constexpr int kCodeWords = kDim / 8; /* of a row, before the word of its scales */
static_assert(kTiles * kWarps * 16 == kEntries, "tiles of 16 entries");

/* ---- Keys ---- */

struct keys {
    uint32_t code[kTiles][2][4]; /* of a product: rows g and g+8 at k = 8l, then at 8l+32 */
    uint32_t scale[kTiles];      /* of row g in even lanes, g+8 in odd ones */
};

/* Entries behind the last visible one are zeros. */
NIB_DEVICE void fetch(const struct nib_index_select_args &a, const int32_t *page, int32_t base, int32_t visible,
                      struct keys *v)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, l = lane % 4;
#pragma unroll
    for (int m = 0; m < kTiles; m++) {
        const uint32_t *row[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int32_t e = base + m * 16 + i * 8 + g;
            row[i] = e < visible ? (const uint32_t *)nib_store_at(a.keys, page, e) : NULL;
        }
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                v->code[m][s][j] = row[j % 2] ? row[j % 2][s * 8 + j / 2 * 4 + l] : 0;
        const uint32_t *mine = l % 2 ? row[1] : row[0];
        v->scale[m] = mine ? mine[kCodeWords] : 0;
    }
}

/* ---- Queries ---- */

struct query {
    uint4    code[kHeadsMost / 8][32]; /* lane (g, l) of eight heads: words l, l+4, l+8, l+12 of head g */
    uint8_t  scale[kHeadsMost][4];
    float    weight[kHeadsMost];
};

/* 32 values, which are those of codes: encoding them again is exact, as the largest one is its block's scale times 6,
 * 4, 3, 2, 1.5, 1 or 0.5, and with each of these every smaller one has a code under the new scale. */
NIB_DEVICE uint32_t encode(const struct nib_mat &q, int64_t t, int64_t col, uint32_t word[4])
{
    float    x[32];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        x[i] = nib_mat_get(q, t, col + i);
        most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
    }
    float amax = __uint_as_float(most), least = 0x1.8p-124f;
    if (!nib_is_finite(amax))
        return 255;
    uint32_t scale = nib_e8m0_ceil_code((amax > least ? amax : least) * (1.0f / 6.0f));
    float    unit = nib_e8m0_value(scale);
#pragma unroll
    for (int i = 0; i < 32; i++)
        word[i / 8] |= nib_e2m1_code(x[i] / unit) << i % 8 * 4;
    return scale;
}

/* Heads up to n, of which those that do not exist are zeros, and their weights. */
NIB_DEVICE void take_query(const struct nib_index_select_args &a, int64_t t, int n, struct query *q)
{
    for (int i = (int)threadIdx.x; i < n * 4; i += kThreads) {
        int      h = i / 4, part = i % 4;
        uint32_t word[4] = {}, scale = 127;
        if (h < a.n_heads)
            scale = encode(a.q, t, (int64_t)h * kDim + part * 32, word);
#pragma unroll
        for (int l = 0; l < 4; l++)
            ((uint32_t *)&q->code[h / 8][h % 8 * 4 + l])[part] = word[l];
        q->scale[h][part] = (uint8_t)scale;
    }
    for (int h = (int)threadIdx.x; h < n; h += kThreads) {
        float w = h < a.n_heads ? nib_mat_get(a.weight, t, h) * a.scale : 0;
        q->weight[h] = a.q.dtype == NIB_DTYPE_BF16 ? nib_bf16_rounded(w) : w;
    }
}

/* ---- Scores ---- */

/* sum += weight * max(dot, 0) of two heads; NaN passes. */
NIB_DEVICE void add_heads(float *sum, float x, float y, float2 weight, bool bf16)
{
    if (bf16) {
        uint32_t v = nib_pack_bf16x2(x, y);
        x = __uint_as_float(v << 16);
        y = __uint_as_float(v & 0xffff0000u);
    }
    *sum = fmaf(weight.x, x < 0 ? 0 : x, *sum);
    *sum = fmaf(weight.y, y < 0 ? 0 : y, *sum);
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
nib_sm120a_index_fp4(const __grid_constant__ struct nib_blackwell_index_args args)
{
    nib_grid_start();
    __shared__ struct query             q;
    const struct nib_index_select_args &a = args.a;
    int64_t        t = args.first + (int64_t)blockIdx.y;
    int32_t        visible = (args.rows.pos[t] + 1) / a.ratio, base = (int32_t)blockIdx.x * kEntries;
    int            n = (a.n_heads + 7) / 8 * 8, lane = (int)threadIdx.x % 32, g = lane / 4, l = lane % 4;
    int            from = (int)threadIdx.x / 32 * kTiles * 16;
    const int32_t *page = args.rows.entry_page + args.rows.seq[t] * args.rows.page_stride;
    bool           bf16 = a.q.dtype == NIB_DTYPE_BF16;
    if ((visible <= a.top_k && !a.scores.data) || base >= visible)
        return;
    struct keys key, next;
    fetch(a, page, base + from, visible, &next);
    take_query(a, t, n, &q);
    __syncthreads();
#pragma unroll 1
    for (int32_t step = (int32_t)gridDim.x * kEntries; base < visible; base += step) {
        float sum[kTiles][2] = {};
        key = next;
        if (base + step < visible)
            fetch(a, page, base + step + from, visible, &next);
#pragma unroll 1
        for (int h = 0; h < n; h += 8) {
            uint4    b = q.code[h / 8][lane];
            uint32_t scale = *(const uint32_t *)q.scale[h + g];
            float2   weight = *(const float2 *)&q.weight[h + l * 2];
#pragma unroll
            for (int m = 0; m < kTiles; m++) {
                float d[4] = {};
                nib_mma_mxf4_warp<0>(d, key.code[m][0], b.x, b.y, key.scale[m], scale);
                nib_mma_mxf4_warp<2>(d, key.code[m][1], b.z, b.w, key.scale[m], scale);
                add_heads(&sum[m][0], d[0], d[1], weight, bf16);
                add_heads(&sum[m][1], d[2], d[3], weight, bf16);
            }
        }
#pragma unroll
        for (int i = 0; i < kTiles * 2; i++) {
            float v = sum[i / 2][i % 2];
            v += __shfl_xor_sync(~0u, v, 1);
            v += __shfl_xor_sync(~0u, v, 2);
            v = bf16 ? nib_bf16_rounded(v) : v;
            int32_t e = base + from + i * 8 + g;
            if (l == 0 && e < visible) {
                args.score[blockIdx.y * args.score_stride + e] = v;
                if (a.scores.data)
                    nib_mat_set(a.scores, t, e, v);
            }
        }
    }
}
