/* Hyper-connections. Before a module: mixing coefficients (products of the streams with fn, spread over slices of their
 * channels), then two blocks a row: collapse, norm and activation rows; Sinkhorn. After it: the streams mixed in place,
 * which for one row waits for the next module's coefficients to be computed in the same launch. With few rows one
 * launch does all before a module: blocks that have done their slice wait for the others and take a row. With many
 * rows tensor cores multiply, a warp makes a row's coefficients, and a block collapses it. */
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

/* nib_mat_by8() on the host. */
static bool lies_by8(const struct nib_mat &m)
{
    return m.stride % 8 == 0 && (uintptr_t)m.data % 16 == 0;
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

/* ---- Many rows ---- */

constexpr int kManyRows = 128, kManySteps = kMixSlice / 32, kManyAhead = 4, kManyTiles = (2 + kTightHc) * kTightHc / 8;
static_assert(kManyRows == kWarps * 16 && kManySteps == kWarps && kManyTiles * 8 == (2 + kTightHc) * kTightHc,
              "a warp multiplies sixteen rows and makes the weights of one step ready");

/* Eight fp32 weights as three bf16 numbers each, whose sum they are: cut, so that what is left over is exact. */
NIB_DEVICE void split_weights(const float *f, uint4 part[3])
{
    float v[8];
    *(float4 *)v = __ldg((const float4 *)f);
    *(float4 *)(v + 4) = __ldg((const float4 *)f + 1);
#pragma unroll
    for (int p = 0; p < 3; p++) {
        uint32_t word[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t low = __float_as_uint(v[2 * k]), high = __float_as_uint(v[2 * k + 1]);
            word[k] = __byte_perm(low, high, 0x7632);
            v[2 * k] -= __uint_as_float(low & 0xffff0000u);
            v[2 * k + 1] -= __uint_as_float(high & 0xffff0000u);
        }
        part[p] = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

/* part[t][slice][i] as of hc_mix, for bf16 rows by tensor cores. Products are exact; a product of 16 channels cuts what
 * it adds to its sum, so sums of 32 channels begin at nothing, the smallest parts first, and are then added up in fp32.
 * Lane (g, l) gives rows g and g+8, columns g, and channels 8l .. 8l+7 of 32 in the order in which they lie. */
static __global__ void __launch_bounds__(kThreads, NIB_BLOCKS(2, 1, 1))
mix_many(const struct nib_mat streams, const float *fn, const struct mix m)
{
    __shared__ uint4 weight[3][kManyTiles][kManySteps][32];
    int   lane = threadIdx.x % 32, warp = threadIdx.x / 32, k0 = (int)blockIdx.x * kMixSlice + lane % 4 * 8;
    int   row0 = (int)blockIdx.y * kManyRows + warp * 16 + lane / 4;
    float sum[kManyTiles][4] = {}, square[2] = {};
    uint4 x[kManyAhead][2];
    nib_grid_release();
#pragma unroll
    for (int i = 0; i < kManyTiles; i++) {
        uint4 part[3];
        split_weights(fn + (int64_t)(i * 8 + lane / 4) * streams.cols + k0 + warp * 32, part);
        for (int p = 0; p < 3; p++)
            weight[p][i][warp][lane] = part[p];
    }
    nib_grid_wait();
    const uint16_t *from[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        from[r] = (const uint16_t *)streams.data + (int64_t)min(row0 + 8 * r, m.n_rows - 1) * streams.stride + k0;
#pragma unroll
        for (int step = 0; step < kManyAhead; step++)
            x[step][r] = *(const uint4 *)(from[r] + step * 32);
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kManySteps; step++) {
        const uint4    low = x[step % kManyAhead][0], high = x[step % kManyAhead][1];
        const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int r = 0; step + kManyAhead < kManySteps && r < 2; r++)
            x[step % kManyAhead][r] = *(const uint4 *)(from[r] + (step + kManyAhead) * 32);
#pragma unroll
        for (int i = 0; i < kManyTiles; i++) {
            float d[4] = {};
#pragma unroll
            for (int p = 2; p >= 0; p--) {
                uint4 w = weight[p][i][step][lane];
                nib_mma_bf16(d, first, w.x, w.y);
                nib_mma_bf16(d, second, w.z, w.w);
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
                sum[i][k] += d[k];
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float v[8];
            nib_bf16x8_values(r ? high : low, v);
#pragma unroll
            for (int k = 0; k < 8; k++)
                square[r] = fmaf(v[k], v[k], square[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        square[r] += __shfl_xor_sync(~0u, square[r], 1);
        square[r] += __shfl_xor_sync(~0u, square[r], 2);
        int row = row0 + 8 * r;
        if (row >= m.n_rows)
            continue;
        float *part = m.part + ((int64_t)row * m.n_slices + blockIdx.x) * (m.n + 1);
#pragma unroll
        for (int i = 0; i < kManyTiles; i++) {
            part[i * 8 + lane % 4 * 2] = sum[i][2 * r];
            part[i * 8 + lane % 4 * 2 + 1] = sum[i][2 * r + 1];
        }
        if (lane % 4 == 0)
            part[m.n] = square[r];
    }
}

/* A warp a row: its coefficients, those of the collapse to where its first products stood. */
static __global__ void __launch_bounds__(kThreads)
coefficients_many(const __grid_constant__ struct nib_hc_pre_args a, const struct mix m)
{
    __shared__ double mix[kWarps][kMixMax + 1];
    nib_grid_start();
    int     lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = (2 + kTightHc) * kTightHc;
    int64_t t = (int64_t)blockIdx.x * kWarps + warp;
    if (t >= m.n_rows)
        return;
    float *part = m.part + t * m.n_slices * (n + 1);
    double sum = 0;
#pragma unroll 16
    for (int s = 0; lane <= n && s < m.n_slices; s++)
        sum += (double)part[s * (n + 1) + lane];
    double squares = __shfl_sync(~0u, sum, n);
    mix[warp][lane] = sum * (1 / sqrt(squares / a.streams.cols + (double)a.norm_eps));
    __syncwarp();
    if (lane < kTightHc)
        part[lane] = (float)(sigmoid(mix[warp][lane] * (double)a.scale[0] + (double)a.base[lane]) + (double)a.hc_eps);
    else if (lane < 2 * kTightHc)
        nib_mat_set(a.post, t, lane - kTightHc,
                    (float)(2 * sigmoid(mix[warp][lane] * (double)a.scale[1] + (double)a.base[lane])));
    sinkhorn<kTightHc>(a, t, mix[warp]);
}

static __global__ void __launch_bounds__(kThreads, 2)
collapse_many(const __grid_constant__ struct nib_hc_pre_args a, const struct mix m)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ struct pre_buffers         buffers;
    hc_pre_row<kTightHc, true>(a, m, blockIdx.x, true, x, &buffers);
}

/* Whether the kernels of many rows take them: another variant, with its own order of sums. */
static bool is_many(const struct nib_hc_pre_args *a)
{
    return a->streams.rows > NIB_CUDA_MANY_ROWS && is_tight(a->streams, a->fn, a->n_hc) &&
           a->streams.dtype == NIB_DTYPE_BF16 && lies_by8(a->streams);
}

static void launch_many(struct nib_stream *s, const struct nib_hc_pre_args *a, struct mix m)
{
    size_t bytes = (size_t)(a->streams.cols / a->n_hc) * sizeof(float);
    m.part = s->mix;
    m.n_slices = a->streams.cols / kMixSlice;
    cudaFuncSetAttribute(collapse_many, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, mix_many, dim3((unsigned)m.n_slices, (unsigned)((m.n_rows + kManyRows - 1) / kManyRows)), kThreads, 0,
               a->streams, a->fn, m);
    nib_launch(s, coefficients_many, (unsigned)((m.n_rows + kWarps - 1) / kWarps), kThreads, 0, *a, m);
    nib_launch(s, collapse_many, (unsigned)m.n_rows, kThreads, bytes, *a, m);
}

enum nib_status nib_cuda_hc_pre(struct nib_stream *s, const struct nib_hc_pre_args *a)
{
    size_t     bytes = (size_t)(a->streams.cols / a->n_hc) * sizeof(float);
    struct mix m = {};
    m.n_rows = a->streams.rows;
    m.n = (2 + a->n_hc) * a->n_hc;
    if (a->streams.rows == 0)
        return NIB_OK;
    if (is_many(a)) {
        launch_many(s, a, m);
    } else if (!launch_mix(s, a->streams, a->fn, a->n_hc, a, &m)) {
        cudaFuncSetAttribute(hc_pre_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        nib_launch(s, hc_pre_rows, dim3((unsigned)a->streams.rows, 2), kThreads, bytes, *a, m);
    }
    return nib_cuda_check(s, cudaGetLastError(), "hc_pre");
}

/* ---- Behind a module ---- */

constexpr int kStreamsMax = 5; /* as check_dims() lets in */
constexpr int kPostThreads = 128;

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

/* Four bf16 streams of a row, a thread eight channels, as hc_post_channels() to the bit: a product of two floats is
 * exact in double, so that it may be a part of the sum's one rounding. Four channels at a time, for want of
 * registers. */
static __global__ void __launch_bounds__(kPostThreads, 4) hc_post_tight(const struct nib_hc_post_args a)
{
    nib_grid_start();
    int     dim = a.y.cols, c = ((int)blockIdx.x * kPostThreads + (int)threadIdx.x) * 8;
    int64_t t = blockIdx.y;
    if (c >= dim)
        return;
    uint16_t *stream = (uint16_t *)a.streams.data + t * a.streams.stride + c;
    uint4     y = *(const uint4 *)((const uint16_t *)a.y.data + t * a.y.stride + c), old[kTightHc];
    float     post[kTightHc], comb[kTightHc][kTightHc];
#pragma unroll
    for (int j = 0; j < kTightHc; j++)
        old[j] = *(const uint4 *)(stream + (int64_t)j * dim);
#pragma unroll
    for (int k = 0; k < kTightHc; k++) {
        post[k] = nib_mat_get(a.post, t, k);
#pragma unroll
        for (int j = 0; j < kTightHc; j++)
            comb[j][k] = nib_mat_get(a.comb, t, j * kTightHc + k);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        double v[kTightHc + 1][4];
#pragma unroll
        for (int j = 0; j <= kTightHc; j++) {
            uint4    from = j < kTightHc ? old[j % kTightHc] : y;
            uint32_t pair[2] = {half ? from.z : from.x, half ? from.w : from.y};
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[j][i] = (double)nib_bf16_value(i % 2 ? pair[i / 2] >> 16 : pair[i / 2] & 0xffffu);
        }
#pragma unroll
        for (int k = 0; k < kTightHc; k++) {
            float out[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                double sum = (double)post[k] * v[kTightHc][i];
#pragma unroll
                for (int j = 0; j < kTightHc; j++)
                    sum = fma((double)comb[j][k], v[j][i], sum);
                out[i] = (float)sum;
            }
            *(uint2 *)(stream + (int64_t)k * dim + 4 * half) =
                make_uint2(nib_pack_bf16x2(out[0], out[1]), nib_pack_bf16x2(out[2], out[3]));
        }
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
    bool tight = a.n_hc == kTightHc && a.streams.rows > kMixRows && a.streams.dtype == NIB_DTYPE_BF16 &&
                 a.y.dtype == NIB_DTYPE_BF16 && a.y.cols % 8 == 0 && lies_by8(a.streams) && lies_by8(a.y);
    s->post_waits = false;
    if (tight) {
        grid.x = (unsigned)((a.y.cols + kPostThreads * 8 - 1) / (kPostThreads * 8));
        nib_launch(s, hc_post_tight, grid, kPostThreads, 0, a);
        return;
    }
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
