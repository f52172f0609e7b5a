/* Products with weight matrices on every device: linear, grouped o_a, the head.
 *
 * A launch covers all weights of the op. A block of 4 warps takes 64 outputs, or, where there are few of them, 16 outputs
 * whose columns its warps share; their sums meet in shared memory in a fixed order. Bytes: each weight code once per row
 * block of 8, 16 or 32. */
#include "backend/cuda/device/products.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"

/* ---- Rows made ready ---- */

constexpr int kParts = 3; /* 3 x 8 significant bits hold an fp32 value exactly */

NIB_DEVICE float row_value(const struct nib_act &x, enum nib_act_format act, int64_t t, int32_t i)
{
    return act == NIB_ACT_PLAIN ? nib_mat_get(x.plain, t, i) : nib_act_get(x, t, i);
}

/* A block a row. */
static __global__ void split_rows(const struct nib_act x, enum nib_act_format act, int32_t first, int n_parts, uint16_t *part,
                                  int64_t part_stride, int32_t *exponent)
{
    nib_grid_start();
    __shared__ uint32_t buffer[32];
    int64_t             row = blockIdx.x;
    uint32_t            most = 0;
    for (int32_t i = threadIdx.x; i < x.cols; i += blockDim.x)
        most = max(most, __float_as_uint(row_value(x, act, first + row, i)) & 0x7fffffffu);
    int32_t e = nib_exponent_of(nib_block_max_u32(most, buffer));
    for (int32_t i = threadIdx.x; i < x.cols; i += blockDim.x)
        nib_parts_put(scalbnf(row_value(x, act, first + row, i), -e), n_parts, part + row * x.cols + i, part_stride);
    if (threadIdx.x == 0)
        exponent[row] = e;
}

static __global__ void float_rows(const struct nib_act x, enum nib_act_format act, int32_t first, float *out)
{
    nib_grid_start();
    int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < x.cols)
        out[(int64_t)blockIdx.y * x.cols + i] = row_value(x, act, first + (int64_t)blockIdx.y, i);
}

int32_t nib_cuda_rows_fit(const struct nib_stream *s, int32_t cols, int32_t n_rows)
{
    /* A plain part, a quantised one and one in fp32 may be wanted at once. */
    int64_t fit = s->n_parts_max / ((int64_t)cols * 8 + 64);
    return (int32_t)(fit < 1 ? 1 : fit < n_rows ? fit : n_rows);
}

enum nib_status nib_cuda_rows_prepare(struct nib_stream *s, const struct nib_act *x, enum nib_act_format act, int32_t first,
                                      int32_t n, bool f32, int64_t *at, struct nib_cuda_rows *out)
{
    bool plain = act == NIB_ACT_PLAIN;
    dim3 grid((unsigned)((x->cols + 255) / 256), (unsigned)n);
    memset(out, 0, sizeof *out);
    *at = (*at + 7) / 8 * 8;
    if (f32) {
        if (plain && x->plain.dtype == NIB_DTYPE_F32) {
            out->f32 = (const float *)x->plain.data + first * x->plain.stride;
            out->f32_stride = x->plain.stride;
            return NIB_OK;
        }
        float *to = (float *)(s->parts + *at);
        nib_launch(s, float_rows, grid, 256, 0, *x, act, first, to);
        out->f32 = to;
        out->f32_stride = x->cols;
        *at += 2 * (int64_t)n * x->cols;
        return nib_cuda_check(s, cudaGetLastError(), "rows to fp32");
    }
    const uint16_t *bf16 = (const uint16_t *)x->plain.data + first * x->plain.stride;
    if (plain && x->plain.dtype == NIB_DTYPE_BF16 && x->plain.stride % 8 == 0 && (uintptr_t)bf16 % 16 == 0) {
        out->part = bf16;
        out->stride = x->plain.stride;
        out->n_parts = 1;
        return NIB_OK;
    }
    out->n_parts = act == NIB_ACT_FP8 || (plain && x->plain.dtype == NIB_DTYPE_BF16) ? 1 : kParts;
    out->part = s->parts + *at;
    out->stride = x->cols;
    out->part_stride = (int64_t)n * x->cols;
    int32_t *exponent = s->exponent + (int64_t)(s->n_exponents++ % 8) * s->dims.n_rows_max;
    out->exponent = exponent;
    nib_launch(s, split_rows, (unsigned)n, 256, 0, *x, act, first, out->n_parts, s->parts + *at, out->part_stride, exponent);
    *at += out->n_parts * out->part_stride;
    return nib_cuda_check(s, cudaGetLastError(), "rows to bf16 parts");
}

/* ---- Tiled weights ---- */

struct tiled_args {
    struct nib_cuda_products p;
    int32_t                  first_block[NIB_CUDA_PRODUCTS + 1]; /* of each weight */
    int32_t                  rows;                               /* of x that a block takes */
};

/* Warps of a block that share a tile's columns: all four where there are few tiles, so that even a small matrix keeps many
 * warps loading. A function of the shape alone, as the order of sums must not depend on anything else. */
static __host__ __device__ inline int splits_of(const struct nib_cuda_matrix &w, bool wide)
{
    return !wide && w.n_out < 24576 && w.n_in >= 4 * kBlockCols * 4 ? 4 : 1;
}

static int32_t blocks_of(const struct nib_cuda_matrix *w, bool wide)
{
    int32_t outs = kTileRows * kWarps / splits_of(*w, wide);
    return (w->n_out + outs - 1) / outs;
}

/* NT == 4 is for many rows, which make enough blocks of their own. */
template <int NT> static __global__ void __launch_bounds__(kThreads, NT > 2 ? 2 : 4)
tiled_products(const __grid_constant__ struct tiled_args a)
{
    nib_grid_release();
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ const uint16_t              *row[NT * 8];
    __shared__ float                        sums[kWarps][kTileRows * NT * 8];
    int i = 0;
    while ((int32_t)blockIdx.x >= a.first_block[i + 1])
        i++;
    const struct nib_cuda_matrix &w = a.p.w[i];
    const struct nib_cuda_rows   &x = a.p.x[i];
    int     warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_splits = splits_of(w, NT == 4), outs = kTileRows * kWarps / n_splits;
    int32_t o0 = ((int32_t)blockIdx.x - a.first_block[i]) * outs, o = o0 + warp / n_splits * kTileRows, row0 = blockIdx.y * a.rows;
    int32_t count = min(a.rows, a.p.n - row0);
    struct nib_row_source rows = nib_row_source_of(row, x, count, w.n_in, warp % n_splits, n_splits, warp / n_splits, memory);
    struct nib_tile       t = nib_tile_of(w, 0, min(o, w.n_out - 1) / kTileRows, lane);

    /* Weights belong to nobody: they may come while the kernel before this one still runs. */
    if (o < w.n_out)
        nib_tile_prefetch_any(w.type, t, rows.begin, rows.end);
    nib_grid_wait();

    /* With groups of outputs, tiles may lie in more than one: every output takes its own. */
    float   acc[NT][4] = {};
    int32_t per_group = a.p.group_rows, end = min(o0 + outs, w.n_out) - 1;
    for (int32_t g = per_group ? o0 / per_group : 0; g <= (per_group ? end / per_group : 0); g++) {
        float part[NT][4] = {};
        __syncthreads();
        if ((int)threadIdx.x < count)
            row[threadIdx.x] = x.part + (row0 + (int64_t)threadIdx.x) * x.stride + (int64_t)g * w.n_in;
        __syncthreads();
        nib_tile_multiply_any<NT>(w.type, t, rows, o >= w.n_out, part);
        for (int nt = 0; nt < NT; nt++)
            for (int c = 0; c < 4; c++)
                if (per_group == 0 || (o + lane / 4 + c / 2 * 8) / per_group == g)
                    acc[nt][c] = part[nt][c];
    }

    nib_sums_put<NT>(acc, lane, sums[warp]);
    __syncthreads();
    float alpha = nib_alpha_of(w, 0);
    for (int e = threadIdx.x; e < outs * count; e += kThreads) {
        int   at = e % outs, r = e / outs, first = at / kTileRows * n_splits;
        float sum = 0;
        for (int k = 0; k < n_splits; k++)
            sum += sums[first + k][at % kTileRows * NT * 8 + r];
        if (o0 + at < w.n_out)
            nib_mat_set(a.p.y[i], row0 + r, o0 + at, nib_row_scaled(sum, alpha, x, row0 + r));
    }
}

/* A block takes as many rows as its product does, or as its memory on this card holds. */
template <int NT> static void launch_tiled(struct nib_stream *s, struct tiled_args *a)
{
    constexpr size_t kStatic = NT * 8 * (sizeof(uint16_t *) + kWarps * kTileRows * sizeof(float));
    size_t           row = 0, fit;
    for (int i = 0; i < a->p.n_weights; i++) {
        size_t one = nib_rows_bytes(splits_of(a->p.w[i], NT == 4), a->p.x[i].n_parts, 1);
        row = one > row ? one : row;
    }
    fit = ((size_t)s->shared_most - kStatic) / row;
    a->rows = fit < NT * 8 ? (int32_t)fit : NT * 8;
    size_t bytes = row * (size_t)(a->p.n < a->rows ? a->p.n : a->rows);
    dim3   grid((unsigned)a->first_block[a->p.n_weights], (unsigned)((a->p.n + a->rows - 1) / a->rows));
    cudaFuncSetAttribute(tiled_products<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, tiled_products<NT>, grid, kThreads, bytes, *a);
}

/* ---- Stored weights ---- */

constexpr int kStoredRows = 8;

/* One warp an output, 8 rows at a time. */
static __global__ void stored_product(const struct nib_cuda_matrix w, const struct nib_cuda_rows x, int32_t n, int32_t group_rows,
                                      const struct nib_mat y)
{
    nib_grid_start();
    int     lane = threadIdx.x % 32;
    int64_t o = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int32_t row0 = blockIdx.y * kStoredRows;
    if (o >= w.n_out)
        return;
    int64_t col = group_rows ? o / group_rows * w.n_in : 0;
    float   sum[kStoredRows] = {};
    for (int32_t k = lane; k < w.n_in; k += 32) {
        float v = nib_matrix_value(w, 0, o, k);
#pragma unroll
        for (int r = 0; r < kStoredRows; r++)
            if (row0 + r < n)
                sum[r] = fmaf(v, x.f32[(row0 + r) * x.f32_stride + col + k], sum[r]);
    }
    for (int r = 0; r < kStoredRows; r++) {
        float total = nib_warp_sum(sum[r]);
        if (lane == 0 && row0 + r < n)
            nib_mat_set(y, row0 + r, o, total * nib_alpha_of(w, 0));
    }
}

enum nib_status nib_cuda_products_run(struct nib_stream *s, const struct nib_cuda_products *p)
{
    struct tiled_args a;
    bool              wide = p->n > NIB_CUDA_MANY_ROWS;
    int32_t           n_parts = 1;
    memset(&a, 0, sizeof a);
    a.p.n = p->n;
    a.p.group_rows = p->group_rows;
    for (int32_t i = 0; i < p->n_weights; i++) {
        if (p->w[i].layout != NIB_CUDA_TILED) {
            dim3 grid((unsigned)((p->w[i].n_out + 7) / 8), (unsigned)((p->n + kStoredRows - 1) / kStoredRows));
            nib_launch(s, stored_product, grid, 256, 0, p->w[i], p->x[i], p->n, p->group_rows, p->y[i]);
            continue;
        }
        int32_t k = a.p.n_weights++;
        a.p.w[k] = p->w[i];
        a.p.x[k] = p->x[i];
        a.p.y[k] = p->y[i];
        n_parts = p->x[i].n_parts > n_parts ? p->x[i].n_parts : n_parts;
        a.first_block[k + 1] = a.first_block[k] + blocks_of(&p->w[i], wide);
    }
    if (a.p.n_weights > 0) {
        if (wide)
            launch_tiled<4>(s, &a);
        else if (p->n <= 8 || n_parts > 1)
            launch_tiled<1>(s, &a);
        else
            launch_tiled<2>(s, &a);
    }
    return nib_cuda_check(s, cudaGetLastError(), "products with weights");
}

/* ---- Ops ---- */

#ifndef NIB_CUDA_SM90A
/* Without Hopper's kernels nothing is theirs. */
bool nib_cuda_wide_takes(const struct nib_stream *, const struct nib_act *, int32_t, int32_t, const struct nib_weight *const *, int32_t)
{
    return false;
}

enum nib_status nib_cuda_wide(struct nib_stream *s, const struct nib_act *, int32_t, int32_t, int32_t, const struct nib_weight *const *,
                              const struct nib_mat *, int32_t)
{
    return nib_cuda_check(s, cudaErrorNotSupported, "products of many rows");
}
#endif

static struct nib_mat rows_from(struct nib_mat m, int32_t first, int32_t n)
{
    m.data = (uint8_t *)m.data + first * m.stride * (m.dtype == NIB_DTYPE_F32 ? 4 : 2);
    m.rows = n;
    return m;
}

enum nib_status nib_cuda_linear(struct nib_stream *s, const struct nib_linear_args *a)
{
    int32_t n, chunk = nib_cuda_rows_fit(s, a->x.cols, a->x.rows);
    for (int32_t first = 0; first < a->x.rows; first += n) {
        struct nib_cuda_products p;
        struct nib_cuda_rows     ready[2][2]; /* plain or quantised, bf16 parts or fp32 */
        bool                     have[2][2] = {};
        int64_t                  at = 0;
        n = a->x.rows - first < chunk ? a->x.rows - first : chunk;
        if (nib_cuda_wide_takes(s, &a->x, n, a->n_weights, a->w, 0)) {
            struct nib_mat y[NIB_LINEAR_MAX];
            for (int32_t i = 0; i < a->n_weights; i++)
                y[i] = rows_from(a->y[i], first, n);
            NIB_TRY(nib_cuda_wide(s, &a->x, first, n, a->n_weights, a->w, y, 0));
            continue;
        }
        memset(&p, 0, sizeof p);
        p.n = n;
        p.n_weights = a->n_weights;
        for (int32_t i = 0; i < a->n_weights; i++) {
            p.w[i] = *nib_cuda_matrix_of(a->w[i]);
            int quant = a->w[i]->act != NIB_ACT_PLAIN, f32 = p.w[i].layout != NIB_CUDA_TILED;
            if (!have[quant][f32])
                NIB_TRY(nib_cuda_rows_prepare(s, &a->x, a->w[i]->act, first, n, f32, &at, &ready[quant][f32]));
            have[quant][f32] = true;
            p.x[i] = ready[quant][f32];
            p.y[i] = rows_from(a->y[i], first, n);
        }
        NIB_TRY(nib_cuda_products_run(s, &p));
    }
    return NIB_OK;
}

enum nib_status nib_cuda_head(struct nib_stream *s, const struct nib_head_args *a)
{
    struct nib_linear_args l;
    memset(&l, 0, sizeof l);
    l.x.plain = a->x;
    l.x.rows = a->x.rows;
    l.x.cols = a->x.cols;
    l.n_weights = 1;
    l.w[0] = a->w;
    l.y[0] = a->logits;
    struct nib_weight w = *a->w; /* the head always takes plain rows */
    struct nib_cuda_weight plain = *(const struct nib_cuda_weight *)a->w;
    w.act = NIB_ACT_PLAIN;
    plain.head = w;
    l.w[0] = &plain.head;
    return nib_cuda_linear(s, &l);
}

static __global__ void store_act(const struct nib_act y, const float *x, int64_t first)
{
    nib_grid_start();
    extern __shared__ __align__(16) float row[];
    __shared__ uint32_t     buffer[32];
    for (int32_t i = threadIdx.x; i < y.cols; i += blockDim.x)
        row[i] = x[(int64_t)blockIdx.x * y.cols + i];
    __syncthreads();
    nib_act_store_block(y, first + blockIdx.x, row, buffer);
}

enum nib_status nib_cuda_o_a(struct nib_stream *s, const struct nib_o_a_args *a)
{
    struct nib_act x;
    memset(&x, 0, sizeof x);
    x.plain = a->x;
    x.rows = a->x.rows;
    x.cols = a->x.cols;
    bool    direct = a->y.format == NIB_ACT_PLAIN;
    int32_t n, chunk = nib_cuda_rows_fit(s, x.cols, x.rows);
    for (int32_t first = 0; first < x.rows; first += n) {
        struct nib_cuda_products p;
        int64_t                  at = 0;
        n = x.rows - first < chunk ? x.rows - first : chunk;
        memset(&p, 0, sizeof p);
        p.n = n;
        p.n_weights = 1;
        p.w[0] = *nib_cuda_matrix_of(a->w);
        p.group_rows = a->w->n_out / a->n_groups;
        struct nib_mat out = {s->out, NIB_DTYPE_F32, n, a->w->n_out, a->w->n_out};
        p.y[0] = direct ? rows_from(a->y.plain, first, n) : out;
        if (nib_cuda_wide_takes(s, &x, n, 1, &a->w, p.group_rows)) {
            NIB_TRY(nib_cuda_wide(s, &x, first, n, 1, &a->w, p.y, p.group_rows));
        } else {
            NIB_TRY(nib_cuda_rows_prepare(s, &x, NIB_ACT_PLAIN, first, n, p.w[0].layout == NIB_CUDA_STORED, &at, &p.x[0]));
            NIB_TRY(nib_cuda_products_run(s, &p));
        }
        if (!direct) {
            size_t bytes = (size_t)a->y.cols * sizeof(float);
            cudaFuncSetAttribute(store_act, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
            nib_launch(s, store_act, (unsigned)n, 256, bytes, a->y, s->out, first);
            NIB_TRY(nib_cuda_check(s, cudaGetLastError(), "activation rows of o_a"));
        }
    }
    return NIB_OK;
}

static __global__ void embed_rows(const int32_t *token, int32_t n_copies, const struct nib_cuda_matrix w, const struct nib_mat y)
{
    nib_grid_start();
    int64_t t = blockIdx.x, o = token[t];
    for (int32_t i = threadIdx.x; i < w.n_in; i += blockDim.x) {
        float v = nib_matrix_value(w, 0, o, i) * nib_alpha_of(w, 0);
        for (int32_t c = 0; c < n_copies; c++)
            nib_mat_set(y, t, (int64_t)c * w.n_in + i, v);
    }
}

enum nib_status nib_cuda_embed(struct nib_stream *s, const struct nib_embed_args *a)
{
    if (a->n_rows == 0)
        return NIB_OK;
    nib_launch(s, embed_rows, (unsigned)a->n_rows, 256, 0, a->token, a->n_copies, *nib_cuda_matrix_of(a->w), a->y);
    return nib_cuda_check(s, cudaGetLastError(), "embed");
}
