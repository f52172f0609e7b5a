/* Products with weight matrices on every device: linear, grouped o_a, the head.
 *
 * A launch covers all weights of the op. A block of 8 warps takes 8 / splits tiles of 16 outputs, `splits` warps sharing
 * a tile's columns; their sums meet in shared memory in a fixed order. Bytes: each weight code once per row block. */
#include "backend/cuda/device/products.cuh"
#include "backend/cuda/device/rows.cuh"

/* ---- Rows made ready ---- */

constexpr int kParts = 3; /* 3 x 8 significant bits hold an fp32 value exactly */

NIB_DEVICE float row_value(const struct nib_act &x, enum nib_act_format act, int64_t t, int32_t i)
{
    return act == NIB_ACT_PLAIN ? nib_mat_get(x.plain, t, i) : nib_act_get(x, t, i);
}

static __global__ void split_rows(const struct nib_act x, enum nib_act_format act, int32_t first, int n_parts, uint16_t *part,
                                  int64_t part_stride)
{
    int64_t row = blockIdx.y;
    int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= x.cols)
        return;
    float v = row_value(x, act, first + row, i);
    for (int p = 0; p < n_parts; p++) {
        /* Cut, not rounded: what is left over is then exact, and never of the other sign. */
        uint16_t h = p + 1 < n_parts ? (uint16_t)(__float_as_uint(v) >> 16) : nib_bf16_code(v);
        part[p * part_stride + row * x.cols + i] = h;
        v -= nib_bf16_value(h);
    }
}

static __global__ void float_rows(const struct nib_act x, enum nib_act_format act, int32_t first, float *out)
{
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
        float_rows<<<grid, 256, 0, s->handle>>>(*x, act, first, to);
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
    split_rows<<<grid, 256, 0, s->handle>>>(*x, act, first, out->n_parts, s->parts + *at, out->part_stride);
    *at += out->n_parts * out->part_stride;
    return nib_cuda_check(s, cudaGetLastError(), "rows to bf16 parts");
}

/* ---- Tiled weights ---- */

struct tiled_args {
    struct nib_cuda_products p;
    int32_t                  first_block[NIB_CUDA_PRODUCTS + 1]; /* of each weight */
};

/* One warp's part of a tile, for rows row0 .. row0 + NT*8 - 1, columns of group `group`. */
template <int NT>
NIB_DEVICE void multiply_group(const struct tiled_args &a, int i, const struct nib_tile &tile, int32_t row0, int32_t group, int64_t begin,
                               int64_t end, float acc[NT][4])
{
    const struct nib_cuda_rows &x = a.p.x[i];
    struct nib_lane_rows<NT>    rows;
    rows.part_stride = x.part_stride;
    rows.n_parts = x.n_parts;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        int32_t row = row0 + nt * 8 + tile.lane / 4;
        rows.x[nt] = row < a.p.n ? x.part + row * x.stride + (int64_t)group * a.p.w[i].n_in + tile.lane % 4 * 16 : NULL;
    }
    nib_tile_multiply_any<NT>(a.p.w[i].type, tile, rows, begin, end, acc);
}

template <int NT> static __global__ void __launch_bounds__(32 * kProductWarps, NT > 1 ? 1 : 2)
tiled_products(const __grid_constant__ struct tiled_args a)
{
    __shared__ float sums[kProductWarps][kTileRows * NT * 8];
    int i = 0;
    while ((int32_t)blockIdx.x >= a.first_block[i + 1])
        i++;
    const struct nib_cuda_matrix &w = a.p.w[i];
    int     warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int     n_splits = nib_splits_of(w.n_in), per_block = kProductWarps / n_splits;
    int64_t tile0 = (int64_t)((int32_t)blockIdx.x - a.first_block[i]) * per_block, tile = tile0 + warp / n_splits;
    int64_t n_tiles = (w.n_out + kTileRows - 1) / kTileRows;
    int32_t row0 = blockIdx.y * NT * 8;

    float acc[NT][4] = {};
    if (tile < n_tiles) {
        struct nib_tile t = nib_tile_of(w, 0, tile, lane);
        int64_t length = nib_split_blocks(t.n_blocks, n_splits), begin = warp % n_splits * length;
        int64_t end = min(begin + length, t.n_blocks);
        /* With groups, a tile may lie in more than one: each row of it takes its own. */
        int32_t o = (int32_t)tile * kTileRows, last = min(o + kTileRows, w.n_out) - 1, rows = a.p.group_rows;
        for (int32_t group = rows ? o / rows : 0; group <= (rows ? last / rows : 0); group++) {
            float part[NT][4] = {};
            multiply_group<NT>(a, i, t, row0, group, begin, end, part);
            for (int nt = 0; nt < NT; nt++)
                for (int c = 0; c < 4; c++)
                    if (rows == 0 || (o + lane / 4 + c / 2 * 8) / rows == group)
                        acc[nt][c] = part[nt][c];
        }
    }
    nib_sums_put<NT>(acc, lane, sums[warp]);
    __syncthreads();

    float alpha = *w.alpha;
    for (int e = threadIdx.x; e < per_block * kTileRows * NT * 8; e += blockDim.x) {
        int     o = e % (per_block * kTileRows), row = e / (per_block * kTileRows), local = o / kTileRows;
        float   sum = 0;
        for (int k = 0; k < n_splits; k++)
            sum += sums[local * n_splits + k][o % kTileRows * NT * 8 + row];
        if (row0 + row < a.p.n && tile0 * kTileRows + o < w.n_out)
            nib_mat_set(a.p.y[i], row0 + row, tile0 * kTileRows + o, sum * alpha);
    }
}

template <int NT> static void launch_tiled(struct nib_stream *s, const struct tiled_args &a)
{
    dim3 grid((unsigned)a.first_block[a.p.n_weights], (unsigned)((a.p.n + NT * 8 - 1) / (NT * 8)));
    tiled_products<NT><<<grid, 32 * kProductWarps, 0, s->handle>>>(a);
}

/* ---- Stored weights ---- */

constexpr int kStoredRows = 8;

/* One warp an output, 8 rows at a time. */
static __global__ void stored_product(const struct nib_cuda_matrix w, const struct nib_cuda_rows x, int32_t n, int32_t group_rows,
                                      const struct nib_mat y)
{
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
            nib_mat_set(y, row0 + r, o, total * *w.alpha);
    }
}

enum nib_status nib_cuda_products_run(struct nib_stream *s, const struct nib_cuda_products *p)
{
    struct tiled_args a;
    memset(&a, 0, sizeof a);
    a.p.n = p->n;
    a.p.group_rows = p->group_rows;
    for (int32_t i = 0; i < p->n_weights; i++) {
        if (p->w[i].layout == NIB_CUDA_STORED) {
            dim3 grid((unsigned)((p->w[i].n_out + 7) / 8), (unsigned)((p->n + kStoredRows - 1) / kStoredRows));
            stored_product<<<grid, 256, 0, s->handle>>>(p->w[i], p->x[i], p->n, p->group_rows, p->y[i]);
            continue;
        }
        int32_t k = a.p.n_weights++, per_block = kProductWarps / nib_splits_of(p->w[i].n_in);
        a.p.w[k] = p->w[i];
        a.p.x[k] = p->x[i];
        a.p.y[k] = p->y[i];
        int32_t tiles = (p->w[i].n_out + kTileRows - 1) / kTileRows;
        a.first_block[k + 1] = a.first_block[k] + (tiles + per_block - 1) / per_block;
    }
    if (a.p.n_weights > 0) {
        if (p->n <= 8)
            launch_tiled<1>(s, a);
        else if (p->n <= 16)
            launch_tiled<2>(s, a);
        else
            launch_tiled<4>(s, a);
    }
    return nib_cuda_check(s, cudaGetLastError(), "products with weights");
}

/* ---- Ops ---- */

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
        memset(&p, 0, sizeof p);
        p.n = n;
        p.n_weights = a->n_weights;
        for (int32_t i = 0; i < a->n_weights; i++) {
            p.w[i] = *nib_cuda_matrix_of(a->w[i]);
            int quant = a->w[i]->act != NIB_ACT_PLAIN, f32 = p.w[i].layout == NIB_CUDA_STORED;
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
    extern __shared__ float row[];
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
        NIB_TRY(nib_cuda_rows_prepare(s, &x, NIB_ACT_PLAIN, first, n, p.w[0].layout == NIB_CUDA_STORED, &at, &p.x[0]));
        struct nib_mat out = {s->out, NIB_DTYPE_F32, n, a->w->n_out, a->w->n_out};
        p.y[0] = direct ? rows_from(a->y.plain, first, n) : out;
        NIB_TRY(nib_cuda_products_run(s, &p));
        if (!direct) {
            size_t bytes = (size_t)a->y.cols * sizeof(float);
            cudaFuncSetAttribute(store_act, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
            store_act<<<(unsigned)n, 256, bytes, s->handle>>>(a->y, s->out, first);
            NIB_TRY(nib_cuda_check(s, cudaGetLastError(), "activation rows of o_a"));
        }
    }
    return NIB_OK;
}

static __global__ void embed_rows(const int32_t *token, int32_t n_copies, const struct nib_cuda_matrix w, const struct nib_mat y)
{
    int64_t t = blockIdx.x, o = token[t];
    for (int32_t i = threadIdx.x; i < w.n_in; i += blockDim.x) {
        float v = nib_matrix_value(w, 0, o, i) * *w.alpha;
        for (int32_t c = 0; c < n_copies; c++)
            nib_mat_set(y, t, (int64_t)c * w.n_in + i, v);
    }
}

enum nib_status nib_cuda_embed(struct nib_stream *s, const struct nib_embed_args *a)
{
    if (a->n_rows == 0)
        return NIB_OK;
    embed_rows<<<(unsigned)a->n_rows, 256, 0, s->handle>>>(a->token, a->n_copies, *nib_cuda_matrix_of(a->w), a->y);
    return nib_cuda_check(s, cudaGetLastError(), "embed");
}
