/* Index scores on tensor cores, for dim 128 and operands that bf16 holds exactly: FP4 keys (whose queries are brought
 * to FP4 too), or BF16 keys with bf16 queries. A block takes one query row and walks visible entries 64 at a time, 16 a
 * warp: all heads' products with one reading of the keys, the next ones on their way, then the weighted sum of their
 * positive parts over heads. Products are exact, sums fp32. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"

constexpr int kDim = 128, kEntries = 64, kWarps = 4, kThreads = 32 * kWarps, kHeadsMax = 128;
constexpr int kRowHalves = kDim + 8; /* the eight rows of an ldmatrix on different banks */

NIB_DEVICE void ldmatrix_x4(uint32_t r[4], const uint16_t *p)
{
    uint32_t a = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(a));
}

/* Eight channels of an FP4 key: a row is 64 bytes of codes and 4 scale bytes, 4-byte aligned. */
NIB_DEVICE uint4 fp4_key(const uint8_t *row, int c)
{
    uint32_t v[4];
    float    scale = nib_e8m0_value(row[kDim / 2 + c / 4]);
    uint32_t pair = nib_pack_bf16x2(scale, scale);
    nib_e2m1_bf16x8(((const uint32_t *)row)[c], v);
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = nib_mul_bf16x2(v[i], pair);
    return make_uint4(v[0], v[1], v[2], v[3]);
}

constexpr int kEach = kEntries * (kDim / 8) / kThreads; /* groups of eight channels that a thread brings of a tile */

/* Groups of eight channels of entries [base, base + kEntries): the addresses first, so that all reads are on their way
 * together. */
NIB_DEVICE void fetch_keys(const struct nib_index_select_args &a, const int32_t *page, int32_t base, int32_t visible,
                           uint4 v[kEach])
{
    const uint8_t *row[kEach];
    int            c = threadIdx.x % (kDim / 8);
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        int32_t e = base + (int32_t)threadIdx.x / (kDim / 8) + i * (kThreads / (kDim / 8));
        row[i] = e < visible ? nib_store_at(a.keys, page, e) : NULL;
    }
#pragma unroll
    for (int i = 0; i < kEach; i++)
        v[i] = !row[i]                        ? make_uint4(0, 0, 0, 0)
               : a.keys.format == NIB_ROW_FP4 ? fp4_key(row[i], c)
                                              : ((const uint4 *)row[i])[c];
}

NIB_DEVICE void keep_keys(uint16_t *keys, const uint4 v[kEach])
{
#pragma unroll
    for (int i = 0; i < kEach; i++)
        *(uint4 *)(keys + (threadIdx.x / (kDim / 8) + i * (kThreads / (kDim / 8))) * kRowHalves +
                   threadIdx.x % (kDim / 8) * 8) = v[i];
}

static __global__ void __launch_bounds__(kThreads)
    index_scores_mma(const struct nib_index_select_args a, const struct nib_rows rows, int32_t first, float *score,
                     int64_t score_stride)
{
    nib_grid_start();
    extern __shared__ __align__(16) uint16_t memory[]; /* queries [heads][kRowHalves], keys [kEntries][kRowHalves] */
    __shared__ __align__(8) float            weight[kHeadsMax];
    int64_t        t = first + (int64_t)blockIdx.y;
    int32_t        visible = (rows.pos[t] + 1) / a.ratio, n_heads = nib_round_up(a.n_heads, 16);
    int            warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t *page = rows.entry_page + rows.seq[t] * rows.page_stride;
    bool           bf16 = a.q.dtype == NIB_DTYPE_BF16;
    uint16_t      *q = memory, *keys = memory + n_heads * kRowHalves;
    if ((visible <= a.top_k && !a.scores.data) || (int32_t)blockIdx.x * kEntries >= visible)
        return;
    uint4 fetched[kEach];
    fetch_keys(a, page, (int32_t)blockIdx.x * kEntries, visible, fetched);
    bool whole = bf16 && a.q.stride % 8 == 0 && (uintptr_t)a.q.data % 16 == 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < n_heads * (kDim / 8); i += kThreads) {
        int   h = i / (kDim / 8), c = i % (kDim / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (h < a.n_heads && whole) {
            v = *(const uint4 *)((const uint16_t *)a.q.data + t * a.q.stride + h * kDim + c);
        } else if (h < a.n_heads) {
            float x[8];
            for (int k = 0; k < 8; k++)
                x[k] = nib_mat_get(a.q, t, (int64_t)h * kDim + c + k);
            v = make_uint4(nib_pack_bf16x2(x[0], x[1]), nib_pack_bf16x2(x[2], x[3]), nib_pack_bf16x2(x[4], x[5]),
                           nib_pack_bf16x2(x[6], x[7]));
        }
        *(uint4 *)(q + h * kRowHalves + c) = v;
    }
    for (int h = threadIdx.x; h < n_heads; h += kThreads) {
        float w = h < a.n_heads ? nib_mat_get(a.weight, t, h) * a.scale : 0;
        weight[h] = bf16 ? nib_bf16_rounded(w) : w;
    }
    for (int32_t base = blockIdx.x * kEntries; base < visible; base += gridDim.x * kEntries) {
        __syncthreads();
        keep_keys(keys, fetched);
        __syncthreads();
        if (base + (int32_t)gridDim.x * kEntries < visible) /* on their way while this tile is multiplied */
            fetch_keys(a, page, base + (int32_t)gridDim.x * kEntries, visible, fetched);
        uint32_t key[kDim / 16][4];
#pragma unroll
        for (int k = 0; k < kDim / 16; k++)
            ldmatrix_x4(key[k], keys + (warp * 16 + lane % 16) * kRowHalves + k * 16 + lane / 16 * 8);
        float sum[2] = {0, 0};
        for (int h = 0; h < n_heads; h += 16) {
            float dot[2][4] = {};
#pragma unroll
            for (int k = 0; k < kDim / 16; k++) {
                uint32_t b[4];
                ldmatrix_x4(b, q + (h + lane / 16 * 8 + lane % 8) * kRowHalves + k * 16 + lane / 8 % 2 * 8);
                nib_mma_bf16(dot[0], key[k], b[0], b[1]);
                nib_mma_bf16(dot[1], key[k], b[2], b[3]);
            }
#pragma unroll
            for (int nt = 0; nt < 2; nt++) {
                float2 w = *(const float2 *)&weight[h + nt * 8 + lane % 4 * 2];
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float x = dot[nt][2 * c], y = dot[nt][2 * c + 1];
                    if (bf16) {
                        uint32_t v = nib_pack_bf16x2(x, y);
                        x = __uint_as_float(v << 16);
                        y = __uint_as_float(v & 0xffff0000u);
                    }
                    sum[c] = fmaf(w.x, x < 0 ? 0 : x, sum[c]); /* NaN passes */
                    sum[c] = fmaf(w.y, y < 0 ? 0 : y, sum[c]);
                }
            }
        }
        for (int c = 0; c < 2; c++) {
            sum[c] += __shfl_xor_sync(~0u, sum[c], 1);
            sum[c] += __shfl_xor_sync(~0u, sum[c], 2);
            int32_t e = base + warp * 16 + lane / 4 + c * 8;
            float   v = bf16 ? nib_bf16_rounded(sum[c]) : sum[c];
            if (lane % 4 == 0 && e < visible) {
                score[blockIdx.y * score_stride + e] = v;
                if (a.scores.data)
                    nib_mat_set(a.scores, t, e, v);
            }
        }
    }
}

bool nib_cuda_index_mma_takes(const struct nib_index_select_args *a)
{
    bool exact = a->keys.format == NIB_ROW_FP4 || (a->keys.format == NIB_ROW_BF16 && a->q.dtype == NIB_DTYPE_BF16);
    return exact && a->dim == kDim && a->n_heads <= kHeadsMax && (uintptr_t)a->keys.base % 16 == 0;
}

void nib_cuda_index_mma(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first, int32_t n,
                        int64_t n_entries)
{
    size_t  bytes = (size_t)((a->n_heads + 15) / 16 * 16 + kEntries) * kRowHalves * 2;
    int64_t blocks = (n_entries + kEntries - 1) / kEntries, most = 8 * (int64_t)s->n_sms / n + 1;
    dim3    grid((unsigned)(blocks < most ? blocks : most), (unsigned)n);
    cudaFuncSetAttribute(index_scores_mma, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, index_scores_mma, grid, kThreads, bytes, *a, *a->rows, first, s->score, n_entries);
}
