/* Products with weight matrices on every device: linear, grouped o_a, the head. Rows made ready, matrices that stay as
 * stored, and which kernel takes what; device/tiled.cuh has the kernel of tiled weights. */
#include "backend/cuda/device/tiled.cuh"

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

/* ---- Stored weights ---- */

constexpr int kStoredRows = 8;

/* One warp an output, 8 rows at a time. */
static __global__ void stored_product(const struct nib_cuda_matrix w, const struct nib_cuda_rows x, int32_t n, int32_t group_rows,
                                      bool scores, const struct nib_mat y)
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
            nib_mat_set(y, row0 + r, o, scores ? nib_route_score(total * nib_alpha_of(w, 0)) : total * nib_alpha_of(w, 0));
    }
}

static void add_tiled(struct nib_tiled *a, const struct nib_cuda_products *p, int32_t i)
{
    int32_t k = a->p.n_weights++, spans = nib_spans_of(p->w[i], a->clusters), round = a->clusters ? kSpansMost : 1;
    int32_t outs = spans > 1 && !a->clusters ? kTileRows : kTileRows * a->warps;
    int32_t blocks = (p->w[i].n_out + outs - 1) / outs * (a->clusters ? spans : 1);
    a->p.n = p->n;
    a->p.group_rows = p->group_rows;
    a->p.scores = p->scores;
    a->p.w[k] = p->w[i];
    a->p.x[k] = p->x[i];
    a->p.y[k] = p->y[i];
    a->first_block[k + 1] = a->first_block[k] + (blocks + round - 1) / round * round;
}

enum nib_status nib_cuda_products_run(struct nib_stream *s, const struct nib_cuda_products *p)
{
    struct nib_tiled plain, any;
    memset(&plain, 0, sizeof plain);
    memset(&any, 0, sizeof any);
    plain.clusters = any.clusters = s->cluster_most >= kSpansMost;
    any.warps = kWarps;
    plain.warps = plain.clusters && p->n > 1 && p->n <= 8 ? kWarpsMost : kWarps;
    for (int32_t i = 0; i < p->n_weights; i++) {
        if (p->w[i].layout != NIB_CUDA_TILED) {
            dim3 grid((unsigned)((p->w[i].n_out + 7) / 8), (unsigned)((p->n + kStoredRows - 1) / kStoredRows));
            nib_launch(s, stored_product, grid, 256, 0, p->w[i], p->x[i], p->n, p->group_rows, p->scores, p->y[i]);
        } else {
            add_tiled(nib_is_plain(p->w[i], p->x[i].n_parts) && p->group_rows % (kTileRows * kWarpsMost) == 0 ? &plain : &any, p, i);
        }
    }
    if (plain.p.n_weights > 0) {
        if (p->n <= 8)
            nib_cuda_tiled_plain8(s, &plain);
        else if (p->n <= 16)
            nib_cuda_tiled_plain16(s, &plain);
        else
            nib_cuda_tiled_plain32(s, &plain);
    }
    if (any.p.n_weights > 0) {
        if (p->n <= NIB_CUDA_MANY_ROWS)
            nib_cuda_tiled_any8(s, &any);
        else
            nib_cuda_tiled_any32(s, &any);
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
        /* One image of all rows takes less scratch than parts may, and the more rows a launch has, the fewer
         * multiprocessors stand idle at its end. */
        if (nib_cuda_wide_takes(s, &a->x, a->x.rows - first, a->n_weights, a->w, 0))
            n = a->x.rows - first;
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

enum nib_status nib_cuda_store_act(struct nib_stream *s, const struct nib_act *y, const float *x)
{
    size_t bytes = (size_t)y->cols * sizeof(float);
    cudaFuncSetAttribute(store_act, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, store_act, (unsigned)y->rows, 256, bytes, *y, x, (int64_t)0);
    return nib_cuda_check(s, cudaGetLastError(), "activation rows");
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
            NIB_TRY(nib_cuda_rows_prepare(s, &x, NIB_ACT_PLAIN, first, n, p.w[0].layout != NIB_CUDA_TILED, &at, &p.x[0]));
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
    int32_t i = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x);
    if (i >= w.n_in)
        return;
    float v = nib_matrix_value(w, 0, o, i) * nib_alpha_of(w, 0);
    for (int32_t c = 0; c < n_copies; c++)
        nib_mat_set(y, t, (int64_t)c * w.n_in + i, v);
}

enum nib_status nib_cuda_embed(struct nib_stream *s, const struct nib_embed_args *a)
{
    if (a->n_rows == 0)
        return NIB_OK;
    dim3 grid((unsigned)a->n_rows, (unsigned)((a->w->n_in + 255) / 256));
    nib_launch(s, embed_rows, grid, 256, 0, a->token, a->n_copies, *nib_cuda_matrix_of(a->w), a->y);
    return nib_cuda_check(s, cudaGetLastError(), "embed");
}
