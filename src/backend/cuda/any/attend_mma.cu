/* Attention on tensor cores for bf16 queries at head_dim 512 with 64 rotary channels, over rows of BF16, FP8 or NVFP4.
 *
 * A block takes one query row, 64 heads and a span of the attended rows; it walks the span 32 rows at a time. Rows come
 * from their pages decoded to bf16 in shared memory, once for all 64 heads. Every decoded value is exact: NVFP4 rows
 * leave their row scale out, which multiplies scores and weights instead. Weights enter the second product as bf16,
 * as in the release. Spans hold 64 rows at decode, so that one query fills many
 * multiprocessors; a second kernel adds the spans of a query in order, with the sink, and rotates the result back.
 *
 * Bytes: each attended row once per 64 heads. Work: 2 * 512 multiply-adds per head and row. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/attended.cuh"

constexpr int kD = kAttendDim, kRot = kAttendRot, kNope = kAttendNope;
constexpr int kHeads = 64, kTile = 32, kThreads = 256, kWarps = kThreads / 32;
constexpr int kRowHalves = kD + 8; /* 16 bytes of padding: the eight rows of an ldmatrix fall into different banks */
constexpr int kPHalves = kTile + 8;
constexpr int kSpanDecode = 64;    /* attended rows of a span */
constexpr int kPartFloats = kD + 2; /* a head's partial sum, its maximum and its total */

struct shared {
    uint16_t q[kHeads][kRowHalves];
    uint16_t kv[kTile][kRowHalves];
    uint16_t p[2][kHeads][kPHalves]; /* [scaled by the row scale] */
    float    s[kHeads][kTile + 1];
    float    most[kHeads], total[kHeads], fade[kHeads], row_scale[kTile];
};
static_assert(sizeof(struct shared) <= 227 * 1024, "a block's memory must fit");

template <int format> NIB_DEVICE void load_tile(const struct nib_attend_args &a, const struct nib_attended &at,
                                                int32_t base, struct shared *m)
{
    int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < kTile; r += kWarps) {
        int32_t   j = base + r;
        uint16_t *to = m->kv[r];
        if (j >= at.n) {
            for (int i = lane; i < kD / 8; i += 32)
                ((uint4 *)to)[i] = make_uint4(0, 0, 0, 0);
            if (lane == 0)
                m->row_scale[r] = 0;
            continue;
        }
        const uint8_t *row = nib_attended_row(a, at, j);
        if (format == NIB_ROW_FP8) {
            nib_attend_load_fp8(row, to, lane);
        } else if (format == NIB_ROW_NVFP4) {
            nib_attend_load_nvfp4(row, to, &m->row_scale[r], lane);
        } else {
            for (int i = lane; i < kD / 8; i += 32)
                ((uint4 *)to)[i] = ((const uint4 *)row)[i];
        }
    }
}

/* ---- Products ---- */

/* Scores of 16 heads and 16 rows a warp, to shared memory; -inf beyond n rows. */
template <int format> NIB_DEVICE void score_tile(struct shared *m, float scale, int32_t n)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = warp % 4 * 16, r = warp / 4 * 16, g = lane / 4,
        l = lane % 4;
    float s[2][4] = {};
    float row_scale[2][2];
    for (int nt = 0; nt < 2; nt++)
        for (int c = 0; c < 2; c++)
            row_scale[nt][c] = format == NIB_ROW_NVFP4 ? m->row_scale[r + nt * 8 + 2 * l + c] : 1;
#pragma unroll 4
    for (int k = 0; k < kD; k += 16) {
        uint32_t a[4], b[4];
        nib_ldmatrix_x4(a, &m->q[h + lane % 16][k + lane / 16 * 8]);
        nib_ldmatrix_x4(b, &m->kv[r + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
        if (format == NIB_ROW_NVFP4 && k == kNope)
            for (int nt = 0; nt < 2; nt++)
                for (int c = 0; c < 4; c++)
                    s[nt][c] *= row_scale[nt][c % 2];
        nib_mma_bf16(s[0], a, b[0], b[1]);
        nib_mma_bf16(s[1], a, b[2], b[3]);
    }
    for (int nt = 0; nt < 2; nt++)
        for (int c = 0; c < 4; c++) {
            int row = r + nt * 8 + 2 * l + c % 2;
            m->s[h + g + c / 2 * 8][row] = row < n ? s[nt][c] * scale : -INFINITY;
        }
}

/* Four threads a head: the running maximum, weights of the tile, how much older sums fade. */
template <int format> NIB_DEVICE void weigh_tile(struct shared *m)
{
    int   h = threadIdx.x / 4, part = threadIdx.x % 4;
    float before = m->most[h], top = before;
    for (int i = 0; i < kTile / 4; i++)
        top = fmaxf(top, m->s[h][part * (kTile / 4) + i]);
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    float sum = 0;
    for (int i = 0; i < kTile / 4; i++) {
        int   r = part * (kTile / 4) + i;
        float v = m->s[h][r], p = v == -INFINITY ? 0 : expf(v - top); /* NaN passes */
        sum += p;
        m->p[0][h][r] = nib_bf16_code(p);
        if (format == NIB_ROW_NVFP4)
            m->p[1][h][r] = nib_bf16_code(p * m->row_scale[r]);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (part == 0) {
        float fade = before == -INFINITY ? 0 : expf(before - top);
        m->fade[h] = fade;
        m->total[h] = m->total[h] * fade + sum;
        m->most[h] = top;
    }
}

/* o += p . rows for 16 heads and 256 channels a warp. */
template <int format> NIB_DEVICE void add_tile(struct shared *m, float o[32][4])
{
    int   warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = warp % 4 * 16, c0 = warp / 4 * 256, g = lane / 4;
    float low = m->fade[h + g], high = m->fade[h + g + 8];
#pragma unroll
    for (int nt = 0; nt < 32; nt++) {
        o[nt][0] *= low;
        o[nt][1] *= low;
        o[nt][2] *= high;
        o[nt][3] *= high;
    }
    for (int k = 0; k < kTile; k += 16) {
        uint32_t a[4], plain[4];
        nib_ldmatrix_x4(a, &m->p[format == NIB_ROW_NVFP4][h + lane % 16][k + lane / 16 * 8]);
        if (format == NIB_ROW_NVFP4)
            nib_ldmatrix_x4(plain, &m->p[0][h + lane % 16][k + lane / 16 * 8]);
#pragma unroll
        for (int nt = 0; nt < 32; nt += 2) {
            uint32_t b[4];
            bool     rotary = format == NIB_ROW_NVFP4 && c0 + nt * 8 >= kNope;
            nib_ldmatrix_x4_trans(b, &m->kv[k + lane % 16][c0 + nt * 8 + lane / 16 * 8]);
            nib_mma_bf16(o[nt], rotary ? plain : a, b[0], b[1]);
            nib_mma_bf16(o[nt + 1], rotary ? plain : a, b[2], b[3]);
        }
    }
}

/* ---- Kernels ---- */

struct spans {
    float  *part;      /* [rows][n_spans][heads][kPartFloats] */
    int32_t first_row; /* of the op, that part's row 0 is */
    int32_t n_spans, span_rows, n_heads;
};

/* Grid (spans, head blocks, rows). */
template <int format> static __global__ void __launch_bounds__(kThreads, 1)
attend_spans(const struct nib_attend_args a, const struct nib_rows rows, const struct spans sp)
{
    nib_grid_start();
    extern __shared__ __align__(16) uint8_t memory[];
    struct shared  *m = (struct shared *)memory;
    int64_t         t = sp.first_row + (int64_t)blockIdx.z;
    struct nib_attended at = nib_attended_by(a, rows, t);
    int32_t         begin = blockIdx.x * sp.span_rows, end = min(begin + sp.span_rows, at.n), h0 = blockIdx.y * kHeads;
    if (begin >= at.n)
        return;
    for (int i = threadIdx.x; i < kHeads * (kD / 8); i += kThreads) {
        int h = i / (kD / 8), c = i % (kD / 8);
        ((uint4 *)m->q[h])[c] = h0 + h < a.n_heads
                                    ? ((const uint4 *)((const uint16_t *)a.q.data + t * a.q.stride + (h0 + h) * kD))[c]
                                    : make_uint4(0, 0, 0, 0);
    }
    if (threadIdx.x < kHeads) {
        m->most[threadIdx.x] = -INFINITY;
        m->total[threadIdx.x] = 0;
    }
    float o[32][4] = {};
    for (int32_t base = begin; base < end; base += kTile) {
        struct nib_attended upto = at;
        upto.n = end;
        __syncthreads();
        load_tile<format>(a, upto, base, m);
        __syncthreads();
        score_tile<format>(m, a.scale, end - base);
        __syncthreads();
        weigh_tile<format>(m);
        __syncthreads();
        add_tile<format>(m, o);
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = warp % 4 * 16 + lane / 4,
        c0 = warp / 4 * 256 + lane % 4 * 2;
    float *to = sp.part + (((int64_t)blockIdx.z * sp.n_spans + blockIdx.x) * sp.n_heads + h0) * kPartFloats;
#pragma unroll
    for (int nt = 0; nt < 32; nt++) {
        if (h0 + h < a.n_heads)
            *(float2 *)(to + h * kPartFloats + c0 + nt * 8) = make_float2(o[nt][0], o[nt][1]);
        if (h0 + h + 8 < a.n_heads)
            *(float2 *)(to + (h + 8) * kPartFloats + c0 + nt * 8) = make_float2(o[nt][2], o[nt][3]);
    }
    if (threadIdx.x < kHeads && h0 + (int)threadIdx.x < a.n_heads) {
        to[threadIdx.x * kPartFloats + kD] = m->most[threadIdx.x];
        to[threadIdx.x * kPartFloats + kD + 1] = m->total[threadIdx.x];
    }
}

/* Grid (heads, rows), 128 threads: four channels each. */
static __global__ void add_spans(const struct nib_attend_args a, const struct nib_rows rows, const struct spans sp)
{
    nib_grid_start();
    int64_t      t = sp.first_row + (int64_t)blockIdx.y;
    int32_t h = blockIdx.x, c = threadIdx.x * 4, n = (nib_attended_by(a, rows, t).n + sp.span_rows - 1) / sp.span_rows;
    const float      *part = sp.part + ((int64_t)blockIdx.y * sp.n_spans * sp.n_heads + h) * kPartFloats;
    int64_t           next = (int64_t)sp.n_heads * kPartFloats;
    float             most = a.sink[h];
    for (int i = 0; i < n; i++)
        most = fmaxf(most, part[i * next + kD]);
    float  total = expf(a.sink[h] - most);
    float4 o = make_float4(0, 0, 0, 0);
    for (int i = 0; i < n; i++) {
        const float *p = part + i * next;
        float        w = expf(p[kD] - most);
        float2       x = *(const float2 *)(p + c), y = *(const float2 *)(p + c + 2);
        total = fmaf(p[kD + 1], w, total);
        o.x = fmaf(x.x, w, o.x);
        o.y = fmaf(x.y, w, o.y);
        o.z = fmaf(y.x, w, o.z);
        o.w = fmaf(y.y, w, o.w);
    }
    float v[4] = {o.x / total, o.y / total, o.z / total, o.w / total};
    for (int i = 0; c >= kNope && i < 4; i += 2) {
        double sine, cosine;
        sincos((double)((float)(rows.pos[t] - rows.first_pos) * a.rope.freq[(c - kNope + i) / 2]), &sine, &cosine);
        nib_rotate_pair(&v[i], &v[i + 1], (float)cosine, -(float)sine);
    }
    for (int i = 0; i < 4; i++)
        nib_mat_set(a.o, t, (int64_t)h * kD + c + i, v[i]);
}

bool nib_cuda_attend_rows_fit(const struct nib_attend_args *a)
{
    enum nib_row_format f = a->window.format;
    return a->head_dim == kD && a->rope.n_rot == kRot &&
           (f == NIB_ROW_BF16 || f == NIB_ROW_FP8 || f == NIB_ROW_NVFP4) &&
           (a->ratio == 0 || a->entries.format == f) && (uintptr_t)a->window.base % 16 == 0 &&
           (uintptr_t)a->entries.base % 16 == 0;
}

bool nib_cuda_attend_mma_takes(const struct nib_attend_args *a)
{
    return a->q.dtype == NIB_DTYPE_BF16 && a->q.stride % 8 == 0 && (uintptr_t)a->q.data % 16 == 0 &&
           nib_cuda_attend_rows_fit(a);
}

int64_t nib_cuda_attend_part_floats(int32_t n_heads)
{
    return (int64_t)n_heads * kPartFloats;
}

template <int format>
static void launch(struct nib_stream *s, const struct nib_attend_args *a, const struct spans &sp, int32_t n)
{
    dim3 grid((unsigned)sp.n_spans, (unsigned)((a->n_heads + kHeads - 1) / kHeads), (unsigned)n);
    cudaFuncSetAttribute(attend_spans<format>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(struct shared));
    nib_launch(s, attend_spans<format>, grid, kThreads, sizeof(struct shared), *a, *a->rows, sp);
}

/* Spans are a function of the op's arguments and the context, not of the rows. */
static struct spans spans_for(const struct nib_stream *s, const struct nib_attend_args *a, bool prefill)
{
    struct spans sp = {};
    int64_t most = a->n_window + (a->ratio == 0 ? 0 : a->selected ? a->top_k : s->dims.n_ctx_max / a->ratio), fit;
    sp.part = s->attend;
    sp.n_heads = a->n_heads;
    fit = s->n_attend_max / nib_cuda_attend_part_floats(a->n_heads);
    fit = fit > 160 ? 160 : fit;
    sp.span_rows = prefill ? (int32_t)most : kSpanDecode;
    while ((most + sp.span_rows - 1) / sp.span_rows > fit)
        sp.span_rows *= 2;
    sp.n_spans = (int32_t)((most + sp.span_rows - 1) / sp.span_rows);
    return sp;
}

enum nib_status nib_cuda_attend_mma(struct nib_stream *s, const struct nib_attend_args *a)
{
    int32_t n, n_rows = a->rows->n_rows;
    bool    few = n_rows <= NIB_CUDA_ATTEND_FEW;
    if (few && nib_cuda_attend_cluster(s, a))
        return nib_cuda_check(s, cudaGetLastError(), "attend");
    struct spans sp = spans_for(s, a, !few);
    int64_t      fit = s->n_attend_max / (nib_cuda_attend_part_floats(a->n_heads) * sp.n_spans);
    fit = fit < 1 ? 1 : fit > 32768 ? 32768 : fit;
    for (int32_t first = 0; first < n_rows; first += n) {
        n = n_rows - first < fit ? n_rows - first : (int32_t)fit;
        sp.first_row = first;
        if (a->window.format == NIB_ROW_FP8)
            launch<NIB_ROW_FP8>(s, a, sp, n);
        else if (a->window.format == NIB_ROW_NVFP4)
            launch<NIB_ROW_NVFP4>(s, a, sp, n);
        else
            launch<NIB_ROW_BF16>(s, a, sp, n);
        nib_launch(s, add_spans, dim3((unsigned)a->n_heads, (unsigned)n), 128, 0, *a, *a->rows, sp);
    }
    return nib_cuda_check(s, cudaGetLastError(), "attend");
}
