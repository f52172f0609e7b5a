/* Hyper-connections. Before a module: mixing coefficients (a product of the streams with fn, in fp64 as ref, which costs
 * nothing beside the reads), Sinkhorn, collapse, norm and activation rows. After it: the streams mixed in place. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/rows.cuh"

constexpr int kThreads = 512;
constexpr int kMixMax = 80; /* (2 + n_hc) * n_hc for n_hc <= 8 */

NIB_DEVICE double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

/* mix[i] = (fn[i] . X) / sqrt(mean(X^2) + eps): a warp a coefficient; the mean is one more. X is streams' row t. */
NIB_DEVICE void mix_block(const struct nib_mat &streams, int64_t t, const float *fn, int n, float eps, double *mix)
{
    int width = streams.cols, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    for (int i = threadIdx.x / 32; i <= n; i += n_warps) {
        double sum = 0;
        for (int k = lane; k < width; k += 32) {
            double x = (double)nib_mat_get(streams, t, k);
            sum += (i < n ? (double)fn[(int64_t)i * width + k] : x) * x;
        }
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

/* x[c] = sum_i w[i] * stream[i][c], each product and sum rounded to fp32; rounded to bf16 if the streams are. */
NIB_DEVICE void collapse_block(const struct nib_mat &streams, int64_t t, const double *w, int n_hc, int dim, float *x)
{
    for (int c = threadIdx.x; c < dim; c += blockDim.x) {
        float sum = 0;
        for (int i = 0; i < n_hc; i++)
            sum += (float)w[i] * nib_mat_get(streams, t, (int64_t)i * dim + c);
        x[c] = streams.dtype == NIB_DTYPE_BF16 ? nib_bf16_rounded(sum) : sum;
    }
    __syncthreads();
}

/* One thread an entry of c [n][n], n * n <= 32, in one warp: rows or columns over their sum + eps. */
NIB_DEVICE double normalised(double v, int n, bool columns, double eps, int lane)
{
    double sum = eps;
    int    at = lane < n * n ? lane : 0;
    for (int j = 0; j < n; j++)
        sum += __shfl_sync(~0u, v, columns ? j * n + at % n : at / n * n + j);
    return v / sum;
}

NIB_DEVICE double sinkhorn(double v, int n, int n_iters, double eps, int lane)
{
    int    at = lane < n * n ? lane : 0;
    double most = __shfl_sync(~0u, v, at / n * n), sum = 0;
    for (int j = 1; j < n; j++)
        most = fmax(most, __shfl_sync(~0u, v, at / n * n + j));
    v = exp(v - most);
    for (int j = 0; j < n; j++)
        sum += __shfl_sync(~0u, v, at / n * n + j);
    v = v / sum + eps;
    v = normalised(v, n, true, eps, lane);
    for (int i = 1; i < n_iters; i++) {
        v = normalised(v, n, false, eps, lane);
        v = normalised(v, n, true, eps, lane);
    }
    return v;
}

static __global__ void hc_pre_rows(const struct nib_hc_pre_args a)
{
    extern __shared__ float x[];
    __shared__ double       mix[kMixMax + 1], pre[8], buffer[32];
    __shared__ uint32_t     max_buffer[32];
    int64_t                 t = blockIdx.x;
    int                     n = a.n_hc, dim = a.streams.cols / n, lane = threadIdx.x;
    mix_block(a.streams, t, a.fn, (2 + n) * n, a.norm_eps, mix);
    if (lane < 32) {
        if (lane < n) {
            pre[lane] = sigmoid(mix[lane] * (double)a.scale[0] + (double)a.base[lane]) + (double)a.hc_eps;
            nib_mat_set(a.post, t, lane, (float)(2 * sigmoid(mix[n + lane] * (double)a.scale[1] + (double)a.base[n + lane])));
        }
        int    i = 2 * n + (lane < n * n ? lane : 0);
        double v = sinkhorn(mix[i] * (double)a.scale[2] + (double)a.base[i], n, a.n_iters, (double)a.hc_eps, lane);
        if (lane < n * n)
            nib_mat_set(a.comb, t, lane, (float)v);
    }
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
    hc_pre_rows<<<(unsigned)a->streams.rows, kThreads, bytes, s->handle>>>(*a);
    return nib_cuda_check(s, cudaGetLastError(), "hc_pre");
}

constexpr int kStreamsMax = 8;

static __global__ void hc_post_rows(const struct nib_hc_post_args a)
{
    int64_t t = blockIdx.y;
    int     n = a.n_hc, dim = a.y.cols, c = blockIdx.x * blockDim.x + threadIdx.x;
    float   old[kStreamsMax];
    if (c >= dim)
        return;
    double y = (double)nib_mat_get(a.y, t, c);
    for (int j = 0; j < n; j++)
        old[j] = nib_mat_get(a.streams, t, (int64_t)j * dim + c);
    for (int k = 0; k < n; k++) {
        double sum = (double)nib_mat_get(a.post, t, k) * y;
        for (int j = 0; j < n; j++)
            sum += (double)nib_mat_get(a.comb, t, j * n + k) * (double)old[j];
        nib_mat_set(a.streams, t, (int64_t)k * dim + c, (float)sum);
    }
}

enum nib_status nib_cuda_hc_post(struct nib_stream *s, const struct nib_hc_post_args *a)
{
    dim3 grid((unsigned)((a->y.cols + 255) / 256), (unsigned)a->streams.rows);
    if (a->streams.rows == 0)
        return NIB_OK;
    hc_post_rows<<<grid, 256, 0, s->handle>>>(*a);
    return nib_cuda_check(s, cudaGetLastError(), "hc_post");
}

static __global__ void hc_head_rows(const struct nib_hc_head_args a)
{
    extern __shared__ float x[];
    __shared__ double       mix[kMixMax + 1], buffer[32];
    int64_t                 t = blockIdx.x, row = a.row[t];
    int                     n = a.n_hc, dim = a.streams.cols / n;
    mix_block(a.streams, row, a.fn, n, a.norm_eps, mix);
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
    hc_head_rows<<<(unsigned)a->n, kThreads, bytes, s->handle>>>(*a);
    return nib_cuda_check(s, cudaGetLastError(), "hc_head");
}
