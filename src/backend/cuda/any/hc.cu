/* Hyper-connections. Before a module: mixing coefficients (products of the streams with fn, spread over slices of their
 * channels), then one block a row: Sinkhorn, collapse, norm and activation rows. After it: the streams mixed in place. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"

constexpr int kThreads = 512;
constexpr int kMixMax = 80; /* (2 + n_hc) * n_hc for n_hc <= 8 */

NIB_DEVICE double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

constexpr int kMixWarps = 8, kMixRows = 8, kMixSlice = NIB_CUDA_MIX_SLICE, kMixLane = kMixSlice / 32;
static_assert(kMixLane == 8, "a lane takes two groups of four channels");

/* Where the mixing products stand between the two kernels. */
struct mix {
    float         *part; /* [rows][slices][n + 1] */
    const int32_t *row;  /* of the streams; NULL: the same */
    int32_t        n_rows, n, n_slices;
};

/* part[t][slice][i] = fn[i] . X over a slice of the channels, and X . X last. Grid (slices, rows / R): a warp takes every
 * eighth i, whose weights it reads once for R rows. */
template <int R> static __global__ void __launch_bounds__(32 * kMixWarps)
mix_slices(const struct nib_mat streams, const float *fn, const struct mix m)
{
    nib_grid_start();
    int   lane = threadIdx.x % 32, row0 = blockIdx.y * R, width = streams.cols, k0 = blockIdx.x * kMixSlice + lane * kMixLane;
    float x[R][kMixLane];
    bool by8 = nib_mat_by8(streams) && k0 + kMixLane <= width;
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (by8 && row0 + r < m.n_rows) {
            nib_mat_get8(streams, m.row ? m.row[row0 + r] : row0 + r, k0, x[r]);
            continue;
        }
        for (int k = 0; k < kMixLane; k++)
            x[r][k] = row0 + r < m.n_rows && k0 + k < width ? nib_mat_get(streams, m.row ? m.row[row0 + r] : row0 + r, k0 + k) : 0;
    }
    bool whole = k0 + kMixLane <= width && width % 4 == 0 && (uintptr_t)fn % 16 == 0;
    for (int i = threadIdx.x / 32; i <= m.n; i += kMixWarps) {
        float        w[kMixLane] = {};
        const float *f = fn + (int64_t)i * width + k0;
        if (i < m.n && whole) {
            *(float4 *)w = __ldg((const float4 *)f);
            *(float4 *)(w + 4) = __ldg((const float4 *)f + 1);
        } else {
            for (int k = 0; i < m.n && k < kMixLane; k++)
                w[k] = k0 + k < width ? f[k] : 0;
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            float sum = 0;
            for (int k = 0; k < kMixLane; k++)
                sum = fmaf(i < m.n ? w[k] : x[r][k], x[r][k], sum);
            sum = nib_warp_sum(sum);
            if (lane == 0 && row0 + r < m.n_rows)
                m.part[((int64_t)(row0 + r) * m.n_slices + blockIdx.x) * (m.n + 1) + i] = sum;
        }
    }
}

/* mix[i] = (fn[i] . X) / sqrt(mean(X^2) + eps) of row t from its slices, a warp a product. */
NIB_DEVICE void mix_block(const struct mix &m, int64_t t, int width, float eps, double *mix)
{
    int n = m.n, lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i <= n; i += blockDim.x / 32) {
        double sum = 0;
        for (int s = lane; s < m.n_slices; s += 32)
            sum += (double)m.part[(t * m.n_slices + s) * (n + 1) + i];
        sum = nib_warp_sum_f64(sum);
        if (lane == 0)
            mix[i] = sum;
    }
    __syncthreads();
    double ir = 1 / sqrt(mix[n] / width + (double)eps);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        mix[i] *= ir;
    __syncthreads();
}

static struct mix launch_mix(struct nib_stream *s, const struct nib_mat &streams, const int32_t *row, int32_t n_rows, const float *fn, int n)
{
    struct mix m = {s->mix, row, n_rows, n, (streams.cols + kMixSlice - 1) / kMixSlice};
    if (n_rows == 1)
        nib_launch(s, mix_slices<1>, (unsigned)m.n_slices, 32 * kMixWarps, 0, streams, fn, m);
    else
        nib_launch(s, mix_slices<kMixRows>, dim3((unsigned)m.n_slices, (unsigned)((n_rows + kMixRows - 1) / kMixRows)), 32 * kMixWarps, 0, 
            streams, fn, m);
    return m;
}

/* x[c] = sum_i w[i] * stream[i][c], each product and sum rounded to fp32; rounded to bf16 if the streams are. */
NIB_DEVICE void collapse_block(const struct nib_mat &streams, int64_t t, const double *w, int n_hc, int dim, float *x)
{
    bool bf16 = streams.dtype == NIB_DTYPE_BF16;
    int  whole = nib_mat_by8(streams) && dim % 8 == 0 ? dim : 0;
    for (int c = threadIdx.x * 8; c < whole; c += blockDim.x * 8) {
        float sum[8] = {}, stream[8];
        for (int i = 0; i < n_hc; i++) {
            nib_mat_get8(streams, t, (int64_t)i * dim + c, stream);
            for (int k = 0; k < 8; k++)
                sum[k] += (float)w[i] * stream[k];
        }
        for (int k = 0; k < 8; k++)
            x[c + k] = bf16 ? nib_bf16_rounded(sum[k]) : sum[k];
    }
    for (int c = whole + threadIdx.x; c < dim; c += blockDim.x) {
        float sum = 0;
        for (int i = 0; i < n_hc; i++)
            sum += (float)w[i] * nib_mat_get(streams, t, (int64_t)i * dim + c);
        x[c] = bf16 ? nib_bf16_rounded(sum) : sum;
    }
    __syncthreads();
}

/* One thread an entry of c [n][n], n * n <= 32, in one warp: rows or columns over their sum + eps. */
NIB_DEVICE float normalised(float v, int n, bool columns, float eps, int at)
{
    float sum = eps;
    for (int j = 0; j < n; j++)
        sum += __shfl_sync(~0u, v, columns ? j * n + at % n : at / n * n + j);
    return v / sum;
}

NIB_DEVICE float sinkhorn(float v, int n, int n_iters, float eps, int at)
{
    float most = __shfl_sync(~0u, v, at / n * n), sum = 0;
    for (int j = 1; j < n; j++)
        most = fmaxf(most, __shfl_sync(~0u, v, at / n * n + j));
    v = expf(v - most);
    for (int j = 0; j < n; j++)
        sum += __shfl_sync(~0u, v, at / n * n + j);
    v = v / sum + eps;
    v = normalised(v, n, true, eps, at);
    for (int i = 1; i < n_iters; i++) {
        v = normalised(v, n, false, eps, at);
        v = normalised(v, n, true, eps, at);
    }
    return v;
}

/* What hc_post will need: by a block of its own, beside the one that goes on to the norm. */
NIB_DEVICE void post_and_comb(const struct nib_hc_pre_args &a, int64_t t, const double *mix)
{
    int n = a.n_hc, lane = threadIdx.x, at = lane < n * n ? lane : 0, i = 2 * n + at;
    if (lane >= 32)
        return;
    if (lane < n)
        nib_mat_set(a.post, t, lane, (float)(2 * sigmoid(mix[n + lane] * (double)a.scale[1] + (double)a.base[n + lane])));
    float v = sinkhorn((float)(mix[i] * (double)a.scale[2] + (double)a.base[i]), n, a.n_iters, a.hc_eps, at);
    if (lane < n * n)
        nib_mat_set(a.comb, t, lane, v);
}

static __global__ void hc_pre_rows(const struct nib_hc_pre_args a, const struct mix m)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ double       mix[kMixMax + 1], pre[8], buffer[32];
    __shared__ uint32_t     max_buffer[32];
    int64_t                 t = blockIdx.x;
    int                     n = a.n_hc, dim = a.streams.cols / n, lane = threadIdx.x;
    mix_block(m, t, a.streams.cols, a.norm_eps, mix);
    if (blockIdx.y == 1) {
        post_and_comb(a, t, mix);
        return;
    }
    if (lane < n)
        pre[lane] = sigmoid(mix[lane] * (double)a.scale[0] + (double)a.base[lane]) + (double)a.hc_eps;
    __syncthreads();
    collapse_block(a.streams, t, pre, n, dim, x);
    if (a.collapsed.data)
        for (int c = threadIdx.x; c < dim; c += blockDim.x)
            nib_mat_set(a.collapsed, t, c, x[c]);
    nib_rms_norm_block(x, a.norm_weight, dim, a.norm_eps, buffer);
    nib_act_store_block(a.x, t, x, max_buffer);
}

enum nib_status nib_cuda_hc_pre(struct nib_stream *s, const struct nib_hc_pre_args *a)
{
    size_t bytes = (size_t)(a->streams.cols / a->n_hc) * sizeof(float);
    if (a->streams.rows == 0)
        return NIB_OK;
    cudaFuncSetAttribute(hc_pre_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    struct mix m = launch_mix(s, a->streams, NULL, a->streams.rows, a->fn, (2 + a->n_hc) * a->n_hc);
    nib_launch(s, hc_pre_rows, dim3((unsigned)a->streams.rows, 2), kThreads, bytes, *a, m);
    return nib_cuda_check(s, cudaGetLastError(), "hc_pre");
}

constexpr int kStreamsMax = 5; /* as check_dims() lets in */

/* One channel of all streams, or eight. */
template <int W> NIB_DEVICE void hc_post_channels(const struct nib_hc_post_args &a, int64_t t, int c)
{
    int    n = a.n_hc, dim = a.y.cols;
    float  old[kStreamsMax][W], y[W], out[W];
    double post = 0, comb = 0;
    if (W == 8)
        nib_mat_get8(a.y, t, c, y);
    else
        y[0] = nib_mat_get(a.y, t, c);
#pragma unroll
    for (int j = 0; j < kStreamsMax; j++) {
        if (j < n && W == 8)
            nib_mat_get8(a.streams, t, (int64_t)j * dim + c, old[j]);
        else if (j < n)
            old[j][0] = nib_mat_get(a.streams, t, (int64_t)j * dim + c);
    }
    for (int k = 0; k < n; k++) {
        double sum[W];
        post = (double)nib_mat_get(a.post, t, k);
        for (int i = 0; i < W; i++)
            sum[i] = post * (double)y[i];
#pragma unroll
        for (int j = 0; j < kStreamsMax; j++) {
            if (j >= n)
                continue;
            comb = (double)nib_mat_get(a.comb, t, j * n + k);
            for (int i = 0; i < W; i++)
                sum[i] += comb * (double)old[j][i];
        }
        for (int i = 0; i < W; i++)
            out[i] = (float)sum[i];
        if (W == 8)
            nib_mat_set8(a.streams, t, (int64_t)k * dim + c, out);
        else
            nib_mat_set(a.streams, t, (int64_t)k * dim + c, out[0]);
    }
}

static __global__ void hc_post_rows(const struct nib_hc_post_args a)
{
    nib_grid_start();
    int  c = blockIdx.x * blockDim.x + threadIdx.x;
    bool by8 = nib_mat_by8(a.y) && nib_mat_by8(a.streams) && a.y.cols % 8 == 0;
    if (by8 && c * 8 < a.y.cols)
        hc_post_channels<8>(a, blockIdx.y, c * 8);
    else if (!by8 && c < a.y.cols)
        hc_post_channels<1>(a, blockIdx.y, c);
}

enum nib_status nib_cuda_hc_post(struct nib_stream *s, const struct nib_hc_post_args *a)
{
    dim3 grid((unsigned)((a->y.cols + 63) / 64), (unsigned)a->streams.rows);
    if (a->streams.rows == 0)
        return NIB_OK;
    nib_launch(s, hc_post_rows, grid, 64, 0, *a);
    return nib_cuda_check(s, cudaGetLastError(), "hc_post");
}

static __global__ void hc_head_rows(const struct nib_hc_head_args a, const struct mix m)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ double       mix[kMixMax + 1], buffer[32];
    int64_t                 t = blockIdx.x, row = a.row[t];
    int                     n = a.n_hc, dim = a.streams.cols / n;
    mix_block(m, t, a.streams.cols, a.norm_eps, mix);
    if ((int)threadIdx.x < n)
        mix[threadIdx.x] = sigmoid(mix[threadIdx.x] * (double)a.scale[0] + (double)a.base[threadIdx.x]) + (double)a.hc_eps;
    __syncthreads();
    collapse_block(a.streams, row, mix, n, dim, x);
    if (a.collapsed.data)
        for (int c = threadIdx.x; c < dim; c += blockDim.x)
            nib_mat_set(a.collapsed, t, c, x[c]);
    nib_rms_norm_block(x, a.norm_weight, dim, a.norm_eps, buffer);
    for (int c = threadIdx.x; c < dim; c += blockDim.x)
        nib_mat_set(a.x, t, c, x[c]);
}

enum nib_status nib_cuda_hc_head(struct nib_stream *s, const struct nib_hc_head_args *a)
{
    size_t bytes = (size_t)(a->streams.cols / a->n_hc) * sizeof(float);
    if (a->n == 0)
        return NIB_OK;
    cudaFuncSetAttribute(hc_head_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    struct mix m = launch_mix(s, a->streams, a->row, a->n, a->fn, a->n_hc);
    nib_launch(s, hc_head_rows, (unsigned)a->n, kThreads, bytes, *a, m);
    return nib_cuda_check(s, cudaGetLastError(), "hc_head");
}
