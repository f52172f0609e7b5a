/* Hyper-connections. Before a module: mixing coefficients (products of the streams with fn, spread over slices of their
 * channels), then two blocks a row: collapse, norm and activation rows; Sinkhorn. After it: the streams mixed in place,
 * which for one row waits for the next module's coefficients to be computed in the same launch. With few rows one
 * launch does all before a module: blocks that have done their slice wait for the others and take a row. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/hc_row.cuh"
#include "backend/cuda/device/launch.cuh"

static __global__ void NIB_LAUNCH_BOUNDS(kThreads, 3)
hc_pre_rows(const struct nib_hc_pre_args a, const struct mix m)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ struct pre_buffers         buffers;
    hc_pre_row<0>(a, m, blockIdx.x, blockIdx.y == 0, x, &buffers);
}

/* ---- Mixing products ---- */

/* part[t][slice][i] = fn[i] . X over a slice of the channels, and X . X last, for any number of streams. Grid (slices,
 * rows / R): a warp takes every eighth i, whose weights it reads once for R rows. */
template <int R> static __global__ void __launch_bounds__(kThreads)
mix_slices(const struct nib_mat streams, const float *fn, const struct mix m)
{
    nib_grid_start();
    int lane = threadIdx.x % 32, row0 = blockIdx.y * R, width = streams.cols,
        k0 = blockIdx.x * kMixSlice + lane * kMixLane;
    float x[R][kMixLane];
#pragma unroll
    for (int r = 0; r < R; r++)
        for (int k = 0; k < kMixLane; k++)
            x[r][k] = row0 + r < m.n_rows && k0 + k < width
                          ? nib_mat_get(streams, m.row ? m.row[row0 + r] : row0 + r, k0 + k)
                          : 0;
    for (int i = threadIdx.x / 32; i <= m.n; i += kWarps) {
        float        w[kMixLane] = {};
        const float *f = fn + (int64_t)i * width + k0;
        for (int k = 0; i < m.n && k < kMixLane; k++)
            w[k] = k0 + k < width ? f[k] : 0;
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

/* What hc_mix does around the products. */
struct around {
    struct nib_hc_post_args post; /* first, where POST */
    struct nib_hc_pre_args  pre;  /* then, where TAIL */
};

/* streams[k][c] of a row behind a module, rounded as stored: a sum in double over the module's output and the older
 * streams. */
NIB_DEVICE float post_value(const struct nib_hc_post_args &a, float post, const float comb[kTightHc], float y,
                            const float old[kTightHc])
{
    double sum = (double)post * (double)y;
    for (int j = 0; j < kTightHc; j++)
        sum += (double)comb[j] * (double)old[j];
    return a.streams.dtype == NIB_DTYPE_BF16 ? nib_bf16_rounded((float)sum) : (float)sum;
}

/* The block's slice of R rows in shared memory: channels [64 * slice, +64) of each of the four streams, as they are or
 * (POST) as they are made here. */
template <int R, bool POST> NIB_DEVICE void slice_load(const struct nib_mat &streams, const struct mix &m,
                                                       const struct nib_hc_post_args &post, int row0,
                                                       float x[R][kMixSlice])
{
    int   dim = streams.cols / kTightHc, k = threadIdx.x / kTight, c = blockIdx.x * kTight + threadIdx.x % kTight;
    float old[R][kTightHc], y[R], factor[R], comb[R][kTightHc];
#pragma unroll
    for (int r = 0; r < R; r++) {
        int64_t t = row0 + r < m.n_rows ? m.row ? m.row[row0 + r] : row0 + r : -1;
        if (!POST) {
            x[r][threadIdx.x] = t < 0 ? 0 : nib_mat_get(streams, t, (int64_t)k * dim + c);
            continue;
        }
        y[r] = t < 0 ? 0 : nib_mat_get(post.y, t, c);
        factor[r] = t < 0 ? 0 : nib_mat_get(post.post, t, k);
        for (int j = 0; j < kTightHc; j++)
            comb[r][j] = t < 0 ? 0 : nib_mat_get(post.comb, t, j * kTightHc + k);
        for (int j = 0; j < kTightHc; j++)
            old[r][j] = t < 0 ? 0 : nib_mat_get(streams, t, (int64_t)j * dim + c);
    }
    __syncthreads(); /* all have read what is now overwritten */
#pragma unroll
    for (int r = 0; POST && r < R; r++) {
        float v = row0 + r < m.n_rows ? post_value(post, factor[r], comb[r], y[r], old[r]) : 0;
        x[r][threadIdx.x] = v;
        if (row0 + r < m.n_rows)
            nib_mat_set(streams, row0 + r, (int64_t)k * dim + c, v);
    }
    __syncthreads();
}

/* After this block's results: waits until all blocks of its rows have come here. All of them run at once. */
NIB_DEVICE void meet(int32_t *arrived, int32_t n)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t left;
        __threadfence();
        atomicInc((unsigned *)arrived, (unsigned)(n - 1)); /* the last one brings it back to 0 */
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(left) : "l"(arrived) : "memory");
        } while (left != 0);
    }
    __syncthreads();
}

NIB_DEVICE void arrive(int32_t *arrived, int32_t n)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicInc((unsigned *)arrived, (unsigned)(n - 1));
    }
}

/* The same sums as mix_slices for four streams in slices of their channels, so that behind a module (POST) a block
 * makes the channels that it multiplies. TAIL: the first blocks go on to the rows, one for the collapse and one for
 * Sinkhorn. */
template <int R, bool POST, bool TAIL> static __global__ void __launch_bounds__(kThreads)
hc_mix(const struct nib_mat streams, const float *fn, const struct mix m, const __grid_constant__ struct around around)
{
    extern __shared__ __align__(16) float x_row[];
    __shared__ float                      x[R][kMixSlice];
    __shared__ struct pre_buffers         buffers;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row0 = blockIdx.y * R, dim = streams.cols / kTightHc;
    int from = lane / 8 * dim + (int)blockIdx.x * kTight + lane % 8 * 8;
    nib_grid_release();
    float w[kMixPasses][kMixLane] = {};
#pragma unroll
    for (int p = 0; p < kMixPasses; p++) {
        int i = warp + p * kWarps;
        if (i < m.n) {
            *(float4 *)w[p] = __ldg((const float4 *)(fn + (int64_t)i * streams.cols + from));
            *(float4 *)(w[p] + 4) = __ldg((const float4 *)(fn + (int64_t)i * streams.cols + from) + 1);
        }
    }
    if (TAIL && (int)blockIdx.x < R) /* what the rows will wait for, on its way before they are known */
        for (int c = threadIdx.x * 32; c < dim; c += kThreads * 32)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(around.pre.norm_weight + c));
    nib_grid_wait();
    slice_load<R, POST>(streams, m, around.post, row0, x);
#pragma unroll
    for (int p = 0; p < kMixPasses; p++) {
        int i = warp + p * kWarps;
        if (i > m.n)
            break;
#if NIB_ON_HOPPER
#pragma unroll
#else
#pragma unroll 4
#endif
        for (int r = 0; r < R; r++) {
            float sum = 0, v[kMixLane];
            *(float4 *)v = *(const float4 *)&x[r][lane * 8];
            *(float4 *)(v + 4) = *(const float4 *)&x[r][lane * 8 + 4];
            for (int k = 0; k < kMixLane; k++)
                sum = fmaf(i < m.n ? w[p][k] : v[k], v[k], sum);
            sum = nib_warp_sum(sum);
            if (lane == 0 && row0 + r < m.n_rows)
                m.part[((int64_t)(row0 + r) * m.n_slices + blockIdx.x) * (m.n + 1) + i] = sum;
        }
    }
    if (!TAIL)
        return;
    int role = (int)blockIdx.x, row = row0 + role % R;
    if (role >= 2 * R || row >= m.n_rows) {
        arrive(m.arrived + blockIdx.y, m.n_slices);
        return;
    }
    meet(m.arrived + blockIdx.y, m.n_slices);
    hc_pre_row<kTightHc>(around.pre, m, row, role < R, x_row, &buffers);
}

/* Whether four streams are cut by channels. */
static bool is_tight(const struct nib_mat &streams, const float *fn, int n_hc)
{
    return n_hc == kTightHc && streams.cols % kMixSlice == 0 && (uintptr_t)fn % 16 == 0;
}

template <int R, bool POST> static void launch_tight(struct nib_stream *s, const struct nib_mat &streams,
                                                     const float *fn, const struct mix &m, const struct around &around,
                                                     bool tail)
{
    dim3   grid((unsigned)m.n_slices, (unsigned)((m.n_rows + R - 1) / R));
    size_t bytes = (size_t)streams.cols / kTightHc * sizeof(float);
    if (!tail) {
        nib_launch(s, hc_mix<R, POST, false>, grid, kThreads, 0, streams, fn, m, around);
        return;
    }
    cudaFuncSetAttribute(hc_mix<R, POST, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, hc_mix<R, POST, true>, grid, kThreads, bytes, streams, fn, m, around);
}

/* Products of n_rows rows. pre: the rows themselves too, if one launch can do that. Returns whether it did. */
static bool launch_mix(struct nib_stream *s, const struct nib_mat &streams, const float *fn, int n_hc,
                       const struct nib_hc_pre_args *pre, struct mix *m)
{
    struct around around = {};
    m->part = s->mix;
    m->arrived = s->arrived;
    m->n_slices = (streams.cols + kMixSlice - 1) / kMixSlice;
    int  groups = (m->n_rows + kMixRows - 1) / kMixRows, R = m->n_rows == 1 ? 1 : kMixRows;
    if (!is_tight(streams, fn, n_hc)) {
        if (m->n_rows == 1)
            nib_launch(s, mix_slices<1>, (unsigned)m->n_slices, kThreads, 0, streams, fn, *m);
        else
            nib_launch(s, mix_slices<kMixRows>, dim3((unsigned)m->n_slices, (unsigned)groups), kThreads, 0, streams, fn,
                       *m);
        return false;
    }
    /* With several rows a block makes them one after the other, which takes longer than a launch of their own. */
    bool post = pre && s->post_waits && m->n_rows == 1 && s->post.streams.data == streams.data &&
                s->post.streams.rows == streams.rows && s->post.streams.stride == streams.stride &&
                s->post.n_hc == n_hc;
    bool tail = pre && m->n_slices >= 2 * R && m->n_slices * groups <= s->n_sms;
    if (post) {
        around.post = s->post;
        s->post_waits = false;
    }
    if (pre)
        around.pre = *pre;
    if (R == 1)
        post ? launch_tight<1, true>(s, streams, fn, *m, around, tail)
             : launch_tight<1, false>(s, streams, fn, *m, around, tail);
    else
        launch_tight<kMixRows, false>(s, streams, fn, *m, around, tail);
    return tail;
}

enum nib_status nib_cuda_hc_pre(struct nib_stream *s, const struct nib_hc_pre_args *a)
{
    size_t     bytes = (size_t)(a->streams.cols / a->n_hc) * sizeof(float);
    struct mix m = {};
    m.n_rows = a->streams.rows;
    m.n = (2 + a->n_hc) * a->n_hc;
    if (a->streams.rows == 0)
        return NIB_OK;
    if (!launch_mix(s, a->streams, a->fn, a->n_hc, a, &m)) {
        cudaFuncSetAttribute(hc_pre_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        nib_launch(s, hc_pre_rows, dim3((unsigned)a->streams.rows, 2), kThreads, bytes, *a, m);
    }
    return nib_cuda_check(s, cudaGetLastError(), "hc_pre");
}

/* ---- Behind a module ---- */

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

void nib_cuda_hc_post_run(struct nib_stream *s)
{
    const struct nib_hc_post_args a = s->post;
    dim3                         grid((unsigned)((a.y.cols + 63) / 64), (unsigned)a.streams.rows);
    s->post_waits = false;
    nib_launch(s, hc_post_rows, grid, 64, 0, a);
}

/* Waits for the next hc_pre of these streams. */
enum nib_status nib_cuda_hc_post(struct nib_stream *s, const struct nib_hc_post_args *a)
{
    if (a->streams.rows == 0)
        return NIB_OK;
    nib_cuda_flush_all(s);
    s->post = *a;
    s->post_waits = true;
    return NIB_OK;
}

static __global__ void hc_head_rows(const struct nib_hc_head_args a, const struct mix m)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ double       mix[kMixMax + 1], share[kThreads], buffer[32];
    int64_t                 t = blockIdx.x, row = a.row[t];
    int                     n = a.n_hc, dim = a.streams.cols / n;
    mix_block(m, t, a.streams.cols, a.norm_eps, mix, share);
    if ((int)threadIdx.x < n)
        mix[threadIdx.x] = sigmoid(mix[threadIdx.x] * (double)a.scale[0] + (double)a.base[threadIdx.x]) +
                           (double)a.hc_eps;
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
    struct mix m = {};
    m.row = a->row;
    m.n_rows = a->n;
    m.n = a->n_hc;
    (void)launch_mix(s, a->streams, a->fn, a->n_hc, NULL, &m);
    nib_launch(s, hc_head_rows, (unsigned)a->n, kThreads, bytes, *a, m);
    return nib_cuda_check(s, cudaGetLastError(), "hc_head");
}
