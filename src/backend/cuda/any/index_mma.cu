/* Index scores on tensor cores, for dim 128: FP4 keys (whose queries are brought to FP4 too) and BF16 keys. Products are
 * exact, sums fp32; fp32 queries of BF16 keys are taken as two bf16 numbers each.
 *
 * A block takes one query row and its warps walk visible entries 16 at a time, the next ones on their way. Keys go from
 * memory straight into the registers that are the product's operand, and never meet in shared memory: a lane takes
 * eight channels that follow one another where the operand wants four pairs, so queries stand with their channels in
 * that same order. Then the weighted sum of the positive parts over heads. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"

constexpr int kDim = 128, kTile = 16, kWarps = 4, kThreads = 32 * kWarps, kBlocksEach = 4, kHeadsMax = 128;
constexpr int kGroups = kDim / 32; /* of 32 channels, eight a lane: two steps of the product */

template <int format, bool bf16> struct kind {
    static constexpr int n_parts = format == NIB_ROW_BF16 && !bf16 ? 2 : 1;
};

/* ---- Keys: rows lane / 4 and lane / 4 + 8 of a tile, channels 32 * j + 8 * (lane % 4) .. ---- */

template <int format> struct fetched;

template <> struct fetched<NIB_ROW_BF16> {
    uint4 v[2][kGroups];
};

/* A row is 64 bytes of codes and 4 scale bytes, 4-byte aligned. */
template <> struct fetched<NIB_ROW_FP4> {
    uint32_t codes[2][kGroups], scales[2];
};

/* row: the tile's first. */
NIB_DEVICE void fetch(struct fetched<NIB_ROW_BF16> *f, const uint8_t *row, int64_t row_bytes, int32_t n)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int j = 0; j < kGroups; j++)
            f->v[r][j] = lane / 4 + 8 * r < n
                             ? __ldcg((const uint4 *)(row + (lane / 4 + 8 * r) * row_bytes) + j * 4 + lane % 4)
                             : make_uint4(0, 0, 0, 0);
}

NIB_DEVICE void fetch(struct fetched<NIB_ROW_FP4> *f, const uint8_t *row, int64_t row_bytes, int32_t n)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t *at = (const uint32_t *)(row + (lane / 4 + 8 * r) * row_bytes);
        bool            there = lane / 4 + 8 * r < n;
#pragma unroll
        for (int j = 0; j < kGroups; j++)
            f->codes[r][j] = there ? at[j * 4 + lane % 4] : 0;
        f->scales[r] = there ? at[kDim / 8] : 0;
    }
}

/* The operand of the product's step k. */
NIB_DEVICE void operand(const struct fetched<NIB_ROW_BF16> &f, uint32_t key[kDim / 16][4])
{
#pragma unroll
    for (int j = 0; j < kGroups; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            key[2 * j][r] = f.v[r][j].x;
            key[2 * j][2 + r] = f.v[r][j].y;
            key[2 * j + 1][r] = f.v[r][j].z;
            key[2 * j + 1][2 + r] = f.v[r][j].w;
        }
}

/* Eight E2M1 codes times a factor: pairs of channels (i, i + 4). The code's bits as the last exponent and first mantissa
 * bits of a bf16 number are its value times 2^-126, subnormal where the code is, so one product gives the rest. */
NIB_DEVICE void fp4_pairs(uint32_t codes, uint32_t factor, uint32_t v[4])
{
    v[0] = (codes << 6 & 0x01c001c0u) | (codes << 12 & 0x80008000u);
    v[1] = (codes << 2 & 0x01c001c0u) | (codes << 8 & 0x80008000u);
    v[2] = (codes >> 2 & 0x01c001c0u) | (codes << 4 & 0x80008000u);
    v[3] = (codes >> 6 & 0x01c001c0u) | (codes & 0x80008000u);
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = nib_mul_bf16x2(v[i], factor);
}

/* A scale above 2 would be a factor that no bf16 number is: then there are two. */
NIB_DEVICE void operand(const struct fetched<NIB_ROW_FP4> &f, uint32_t key[kDim / 16][4])
{
    uint32_t large[2]; /* the highest bit of each scale code above 128 */
#pragma unroll
    for (int r = 0; r < 2; r++)
        large[r] = ((f.scales[r] & 0x7f7f7f7fu) + 0x7f7f7f7fu) & f.scales[r] & 0x80808080u;
#pragma unroll
    for (int j = 0; j < kGroups; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t v[4], code = f.scales[r] >> 8 * j & 255u;
            /* 2^(code - 1), a pair */
            fp4_pairs(f.codes[r][j], ((large[r] >> 8 * j & 128u ? 128u : code) + 126u) * 0x00800080u, v);
            key[2 * j][r] = v[0];
            key[2 * j][2 + r] = v[1];
            key[2 * j + 1][r] = v[2];
            key[2 * j + 1][2 + r] = v[3];
        }
    if (!__any_sync(~0u, large[0] | large[1]))
        return;
#pragma unroll
    for (int j = 0; j < kGroups; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t code = f.scales[r] >> 8 * j & 255u;
            uint32_t rest = code <= 128u ? 0x3f803f80u : code == 255u ? 0x7fc07fc0u : (code - 1u) * 0x00800080u;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                key[2 * j + i][r] = nib_mul_bf16x2(key[2 * j + i][r], rest);
                key[2 * j + i][2 + r] = nib_mul_bf16x2(key[2 * j + i][2 + r], rest);
            }
        }
}

/* ---- Queries: [part][eight heads][group][lane], the lane's operands of two steps ---- */

NIB_DEVICE uint4 *query_of(uint4 *q, int part, int n_heads, int tile, int j, int lane)
{
    return q + ((part * (n_heads / 8) + tile) * kGroups + j) * 32 + lane;
}

/* Eight channels of head h to where they stand. */
template <int format, bool bf16>
NIB_DEVICE void put_query(uint4 *q, int n_heads, int h, int c, const float x[8])
{
    uint32_t high[4], low[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int i = format == NIB_ROW_FP4 ? k : 2 * k, other = format == NIB_ROW_FP4 ? k + 4 : 2 * k + 1;
        nib_split_bf16x2(x[i], x[other], &high[k], &low[k]);
    }
    *query_of(q, 0, n_heads, h / 8, c / 4, h % 8 * 4 + c % 4) = make_uint4(high[0], high[1], high[2], high[3]);
    if (kind<format, bf16>::n_parts > 1)
        *query_of(q, 1, n_heads, h / 8, c / 4, h % 8 * 4 + c % 4) = make_uint4(low[0], low[1], low[2], low[3]);
}

template <int format, bool bf16>
NIB_DEVICE void load_queries(const struct nib_index_select_args &a, int64_t t, int n_heads, uint4 *q, float *weight)
{
    float w = 0;
    if ((int)threadIdx.x < a.n_heads)
        w = nib_mat_get(a.weight, t, threadIdx.x) * a.scale;
    if (nib_mat_by8(a.q)) {
        const uint4 *from = (const uint4 *)((const uint8_t *)a.q.data + t * a.q.stride * (bf16 ? 2 : 4));
        int32_t      last = a.n_heads * (kDim / 8) - 1;
        /* Without a branch, so that all reads are on their way together. */
#pragma unroll 4
        for (int i = threadIdx.x; i < n_heads * (kDim / 8); i += kThreads) {
            float x[8];
            int   at = min(i, last);
            if (bf16) {
                uint4 v = from[at];
                x[0] = nib_bf16_value(v.x & 0xffffu), x[1] = nib_bf16_value(v.x >> 16);
                x[2] = nib_bf16_value(v.y & 0xffffu), x[3] = nib_bf16_value(v.y >> 16);
                x[4] = nib_bf16_value(v.z & 0xffffu), x[5] = nib_bf16_value(v.z >> 16);
                x[6] = nib_bf16_value(v.w & 0xffffu), x[7] = nib_bf16_value(v.w >> 16);
            } else {
                *(uint4 *)x = from[2 * at];
                *(uint4 *)(x + 4) = from[2 * at + 1];
            }
#pragma unroll
            for (int k = 0; k < 8; k++)
                x[k] = i <= last ? x[k] : 0;
            put_query<format, bf16>(q, n_heads, i / (kDim / 8), i % (kDim / 8), x);
        }
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; i < n_heads * (kDim / 8); i += kThreads) {
            float x[8];
            for (int k = 0; k < 8; k++)
                x[k] = i < a.n_heads * (kDim / 8) ? nib_mat_get(a.q, t, (int64_t)i * 8 + k) : 0;
            put_query<format, bf16>(q, n_heads, i / (kDim / 8), i % (kDim / 8), x);
        }
    }
    if ((int)threadIdx.x < n_heads)
        weight[threadIdx.x] = bf16 ? nib_bf16_rounded(w) : w;
}

NIB_DEVICE void mma_from_zero(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

/* NaN stays NaN. */
NIB_DEVICE float positive(float x)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(0.0f));
    return y;
}

NIB_DEVICE uint32_t positive_bf16x2(uint32_t x)
{
    uint32_t y;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(0));
    return y;
}

/* A lane's share of the scores of rows lane / 4 and lane / 4 + 8: heads 2 * (lane % 4) and the next, of every eight. */
template <int format, bool bf16>
NIB_DEVICE void score_tile(uint4 *q, const float *weight, int n_heads, const uint32_t key[kDim / 16][4], float sum[2])
{
    int lane = threadIdx.x % 32;
    sum[0] = sum[1] = 0;
#pragma unroll 1
    for (int tile = 0; tile < n_heads / 8; tile += 2) {
        float dot[2][4];
#pragma unroll
        for (int p = 0; p < kind<format, bf16>::n_parts; p++)
#pragma unroll
            for (int j = 0; j < kGroups; j++) {
                uint4 b = *query_of(q, p, n_heads, tile, j, lane), d = *query_of(q, p, n_heads, tile + 1, j, lane);
                if (p == 0 && j == 0) {
                    mma_from_zero(dot[0], key[0], b.x, b.y);
                    mma_from_zero(dot[1], key[0], d.x, d.y);
                } else {
                    nib_mma_bf16(dot[0], key[2 * j], b.x, b.y);
                    nib_mma_bf16(dot[1], key[2 * j], d.x, d.y);
                }
                nib_mma_bf16(dot[0], key[2 * j + 1], b.z, b.w);
                nib_mma_bf16(dot[1], key[2 * j + 1], d.z, d.w);
            }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float2 w = *(const float2 *)&weight[(tile + n) * 8 + lane % 4 * 2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float x = dot[n][2 * c], y = dot[n][2 * c + 1];
                if (bf16) {
                    uint32_t v = positive_bf16x2(nib_pack_bf16x2(x, y));
                    x = __uint_as_float(v << 16);
                    y = __uint_as_float(v & 0xffff0000u);
                } else {
                    x = positive(x);
                    y = positive(y);
                }
                sum[c] = fmaf(w.x, x, sum[c]);
                sum[c] = fmaf(w.y, y, sum[c]);
            }
        }
    }
}

/* Where the tile's first entry stands: a tile lies within a page. */
NIB_DEVICE const uint8_t *tile_at(const struct nib_store &keys, int32_t page, int32_t e)
{
    return keys.base + ((int64_t)page * keys.page_rows + (e & (keys.page_rows - 1))) * keys.row_bytes;
}

template <int format, bool bf16> static __global__ void __launch_bounds__(kThreads, kBlocksEach)
    index_scores_mma(const struct nib_index_select_args a, const struct nib_rows rows, int32_t first, float *score,
                     int64_t score_stride)
{
    nib_grid_start();
    extern __shared__ uint4          queries[];
    __shared__ __align__(8) float    weight[kHeadsMax];
    int64_t        t = first + (int64_t)blockIdx.y;
    int32_t        visible = (rows.pos[t] + 1) / a.ratio, n_heads = nib_round_up(a.n_heads, 16);
    int            lane = threadIdx.x % 32;
    const int32_t *page = rows.entry_page + rows.seq[t] * rows.page_stride;
    int32_t        shift = 31 - __clz(a.keys.page_rows), step = (int32_t)gridDim.x * kWarps * kTile;
    int32_t        base = ((int32_t)blockIdx.x * kWarps + (int32_t)threadIdx.x / 32) * kTile;
    if ((visible <= a.top_k && !a.scores.data) || (int32_t)blockIdx.x * kWarps * kTile >= visible)
        return;
    struct fetched<format> f;
    int32_t                next_page = base + step < visible ? page[(base + step) >> shift] : 0;
    if (base < visible)
        fetch(&f, tile_at(a.keys, page[base >> shift], base), a.keys.row_bytes, visible - base);
    load_queries<format, bf16>(a, t, n_heads, queries, weight);
    __syncthreads();
    for (; base < visible; base += step) {
        uint32_t key[kDim / 16][4];
        float    sum[2];
        operand(f, key);
        if (base + step < visible) { /* on their way while this tile is multiplied */
            fetch(&f, tile_at(a.keys, next_page, base + step), a.keys.row_bytes, visible - base - step);
            next_page = base + 2 * step < visible ? page[(base + 2 * step) >> shift] : 0;
        }
        score_tile<format, bf16>(queries, weight, n_heads, key, sum);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            sum[c] += __shfl_xor_sync(~0u, sum[c], 1);
            sum[c] += __shfl_xor_sync(~0u, sum[c], 2);
            int32_t e = base + lane / 4 + c * 8;
            float   v = bf16 ? nib_bf16_rounded(sum[c]) : sum[c];
            if (lane % 4 == 0 && e < visible) {
                score[blockIdx.y * score_stride + e] = v;
                if (a.scores.data)
                    nib_mat_set(a.scores, t, e, v);
            }
        }
    }
}

/* ---- Host ---- */

bool nib_cuda_index_mma_takes(const struct nib_index_select_args *a)
{
    return (a->keys.format == NIB_ROW_FP4 || a->keys.format == NIB_ROW_BF16) && a->dim == kDim &&
           a->n_heads <= kHeadsMax && a->keys.page_rows % kTile == 0 && (uintptr_t)a->keys.base % 16 == 0;
}

template <int format, bool bf16>
static void launch(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first, int32_t n,
                   int64_t n_entries)
{
    int32_t n_heads = (a->n_heads + 15) / 16 * 16;
    size_t  bytes = (size_t)n_heads * kDim * 2 * kind<format, bf16>::n_parts;
    int64_t blocks = (n_entries + kWarps * kTile - 1) / (kWarps * kTile), most = kBlocksEach * (int64_t)s->n_sms / n;
    blocks = blocks < most ? blocks : most < 1 ? 1 : most;
    cudaFuncSetAttribute(index_scores_mma<format, bf16>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, index_scores_mma<format, bf16>, dim3((unsigned)blocks, (unsigned)n), kThreads, bytes, *a, *a->rows,
               first, s->score, n_entries);
}

void nib_cuda_index_mma(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first, int32_t n,
                        int64_t n_entries)
{
    bool bf16 = a->q.dtype == NIB_DTYPE_BF16;
    if (a->keys.format == NIB_ROW_FP4)
        bf16 ? launch<NIB_ROW_FP4, true>(s, a, first, n, n_entries)
             : launch<NIB_ROW_FP4, false>(s, a, first, n, n_entries);
    else
        bf16 ? launch<NIB_ROW_BF16, true>(s, a, first, n, n_entries)
             : launch<NIB_ROW_BF16, false>(s, a, first, n, n_entries);
}
