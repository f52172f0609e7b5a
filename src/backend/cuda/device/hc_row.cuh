/* Hyper-connections, from a row's mixing products to the module's input: coefficients, collapse and norm; Sinkhorn by a
 * block of its own. A row is one block's, whose waits for memory stand one behind the other: what it will need is asked
 * for at once, and code that runs once is kept short, as fetching it counts as well. */
#ifndef NIB_CUDA_HC_ROW_CUH
#define NIB_CUDA_HC_ROW_CUH

#include "backend/cuda/device/rows.cuh"

constexpr int kThreads = 256;
constexpr int kMixMax = 80; /* (2 + n_hc) * n_hc for n_hc <= 8 */

NIB_DEVICE double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

constexpr int kWarps = kThreads / 32, kMixRows = 8, kMixSlice = NIB_CUDA_MIX_SLICE, kMixLane = kMixSlice / 32;
constexpr int kTightHc = 4, kTight = kMixSlice / kTightHc; /* a slice of four streams: these channels of each */
constexpr int kMixPasses = ((2 + kTightHc) * kTightHc + kWarps) / kWarps; /* a warp's products, X . X among them */
static_assert(kMixLane == 8 && kMixSlice == kThreads, "a lane takes two groups of four channels, a thread one channel");

/* Where the mixing products stand until a row needs them. */
struct mix {
    float         *part;    /* [rows][slices][n + 1] */
    const int32_t *row;     /* of the streams; NULL: the same */
    int32_t       *arrived; /* [row groups] blocks that are done, modulo slices */
    int32_t        n_rows, n, n_slices;
};

/* mix[i] = (fn[i] . X) / sqrt(mean(X^2) + eps) of row t from its slices. Threads share out the slices of each product,
 * so that all are read at once; share: [kThreads] in shared memory. */
NIB_DEVICE void mix_block(const struct mix &m, int64_t t, int width, float eps, double *mix, double *share)
{
    int    n = m.n, n_shares = kThreads / (n + 1), i = threadIdx.x % (n + 1), first = threadIdx.x / (n + 1);
    double sum = 0;
#pragma unroll 8
    for (int s = first; first < n_shares && s < m.n_slices; s += n_shares)
        sum += (double)m.part[(t * m.n_slices + s) * (n + 1) + i];
    share[threadIdx.x] = sum;
    __syncthreads();
    if ((int)threadIdx.x <= n) {
        sum = 0;
        for (int k = 0; k < n_shares; k++)
            sum += share[k * (n + 1) + threadIdx.x];
        mix[threadIdx.x] = sum;
    }
    __syncthreads();
    if ((int)threadIdx.x < n) /* nobody else reads this one yet */
        mix[threadIdx.x] = sum * (1 / sqrt(mix[n] / width + (double)eps));
    __syncthreads();
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

/* first + the values that lanes from, from + step, ... hold, in that order. */
template <int n> NIB_DEVICE float gathered_sum(float first, float v, int from, int step)
{
    float part[n], sum = first;
#pragma unroll
    for (int k = 0; k < n; k++)
        part[k] = __shfl_sync(~0u, v, from + k * step);
#pragma unroll
    for (int k = 0; k < n; k++)
        sum += part[k];
    return sum;
}

/* By one warp, a lane an entry of the matrix. Sums are of few values and lie between eps and n * (1 + eps), so that the
 * approximation, within a unit in the last place, will do: it is a chain of forty. */
template <int n> NIB_DEVICE void sinkhorn(const struct nib_hc_pre_args &a, int64_t t, const double *mix)
{
    int   lane = threadIdx.x % 32, at = min(lane, n * n - 1), row = at / n * n, column = at % n;
    float v = (float)(mix[2 * n + at] * (double)a.scale[2] + (double)a.base[2 * n + at]), most = -INFINITY, one_over;
#pragma unroll
    for (int k = 0; k < n; k++)
        most = fmaxf(most, __shfl_sync(~0u, v, row + k));
    v = expf(v - most);
    v = v / gathered_sum<n>(0, v, row, 1) + a.hc_eps;
#pragma unroll 1
    for (int k = 1; k < max(2 * a.n_iters, 2); k++) { /* columns, then rows and columns in turn */
        float sum = k % 2 ? gathered_sum<n>(a.hc_eps, v, column, n) : gathered_sum<n>(a.hc_eps, v, row, 1);
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(one_over) : "f"(sum));
        v *= one_over;
    }
    if (lane < n * n)
        nib_mat_set(a.comb, t, lane, v);
}

/* What hc_post will need: by a block of its own, beside the one that goes on to the norm. */
template <int N> NIB_DEVICE void post_and_comb(const struct nib_hc_pre_args &a, int64_t t, const double *mix)
{
    int n = N ? N : a.n_hc, i = (int)threadIdx.x - 32;
    if (i >= 0 && i < n)
        nib_mat_set(a.post, t, i, (float)(2 * sigmoid(mix[n + i] * (double)a.scale[1] + (double)a.base[n + i])));
    if (threadIdx.x >= 32)
        return;
    switch (n) {
    case 1: sinkhorn<1>(a, t, mix); break;
    case 2: sinkhorn<2>(a, t, mix); break;
    case 3: sinkhorn<3>(a, t, mix); break;
    case 4: sinkhorn<4>(a, t, mix); break;
    default: sinkhorn<5>(a, t, mix); break;
    }
}

struct pre_buffers {
    double   mix[kMixMax + 1], share[kThreads], pre[8], sum[32];
    uint32_t most[32];
};

/* What streams are collapsed with. */
NIB_DEVICE void pre_weights(const struct nib_hc_pre_args &a, struct pre_buffers *b)
{
    int i = threadIdx.x;
    if (i < a.n_hc)
        b->pre[i] = sigmoid(b->mix[i] * (double)a.scale[0] + (double)a.base[i]) + (double)a.hc_eps;
    __syncthreads();
}

/* READY: they stand where the row's products did. */
template <bool READY> NIB_DEVICE void pre_weights_of(const struct nib_hc_pre_args &a, const struct mix &m, int64_t t,
                                                     struct pre_buffers *b)
{
    if (!READY) {
        mix_block(m, t, a.streams.cols, a.norm_eps, b->mix, b->share);
        pre_weights(a, b);
        return;
    }
    if ((int)threadIdx.x < a.n_hc)
        b->pre[threadIdx.x] = (double)m.part[t * m.n_slices * (m.n + 1) + threadIdx.x];
    __syncthreads();
}

constexpr int kHeld = 2; /* groups of eight channels that a thread holds */

/* Whether a row's collapse and norm stay in registers: four BF16 streams of up to 4096 channels. */
NIB_DEVICE bool is_held(const struct nib_hc_pre_args &a)
{
    int dim = a.streams.cols / kTightHc;
    return a.n_hc == kTightHc && a.streams.dtype == NIB_DTYPE_BF16 && a.streams.cols % (8 * kTightHc) == 0 &&
           dim <= kHeld * kThreads * 8 && nib_mat_by8(a.streams) && (uintptr_t)a.norm_weight % 16 == 0;
}

/* Such a row: all that it reads is asked for at once, as each wait for the L2 counts here. */
template <bool READY> NIB_DEVICE void hc_pre_row_held(const struct nib_hc_pre_args &a, const struct mix &m, int64_t t,
                                                      float *x, struct pre_buffers *b)
{
    int    dim = a.streams.cols / kTightHc;
    uint4  raw[kHeld][kTightHc];
    float  v[kHeld][8];
    float4 weight[kHeld][2];
    double sum = 0;
#pragma unroll
    for (int g = 0; g < kHeld; g++) {
        int c = (g * kThreads + (int)threadIdx.x) * 8;
        if (c >= dim)
            continue;
#pragma unroll
        for (int i = 0; i < kTightHc; i++)
            raw[g][i] =
                *(const uint4 *)((const uint16_t *)a.streams.data + t * a.streams.stride + (int64_t)i * dim + c);
        weight[g][0] = *(const float4 *)(a.norm_weight + c);
        weight[g][1] = *(const float4 *)(a.norm_weight + c + 4);
    }
    pre_weights_of<READY>(a, m, t, b);
#pragma unroll
    for (int g = 0; g < kHeld; g++) {
        int c = (g * kThreads + (int)threadIdx.x) * 8;
        if (c >= dim)
            continue;
#pragma unroll
        for (int k = 0; k < 8; k++)
            v[g][k] = 0;
#pragma unroll
        for (int i = 0; i < kTightHc; i++) {
            float stream[8], w = (float)b->pre[i];
            nib_bf16x8_values(raw[g][i], stream);
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[g][k] += w * stream[k];
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[g][k] = nib_bf16_rounded(v[g][k]);
            sum += (double)v[g][k] * (double)v[g][k];
            if (a.collapsed.data)
                nib_mat_set(a.collapsed, t, c + k, v[g][k]);
        }
    }
    float mean = (float)(nib_block_sum_f64(sum, b->sum) / dim), r = (float)(1.0 / sqrt((double)(mean + a.norm_eps)));
    bool  direct = a.x.format == NIB_ACT_PLAIN && nib_mat_by8(a.x.plain);
#pragma unroll
    for (int g = 0; g < kHeld; g++) {
        int c = (g * kThreads + (int)threadIdx.x) * 8;
        if (c >= dim)
            continue;
        const float *w = (const float *)weight[g];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[g][k] = v[g][k] * r * w[k];
            if (!direct)
                x[c + k] = v[g][k];
        }
        if (direct)
            nib_mat_set8(a.x.plain, t, c, v[g]);
    }
    if (direct)
        return;
    __syncthreads();
    nib_act_store_block(a.x, t, x, b->most);
}

/* N: streams, or 0 for any number. */
template <int N, bool READY = false>
NIB_DEVICE void hc_pre_row(const struct nib_hc_pre_args &a, const struct mix &m, int64_t t, bool collapses, float *x,
                           struct pre_buffers *b)
{
    int n = N ? N : a.n_hc, dim = a.streams.cols / n;
    if (collapses && is_held(a)) {
        hc_pre_row_held<READY>(a, m, t, x, b);
        return;
    }
    if (!collapses) {
        mix_block(m, t, a.streams.cols, a.norm_eps, b->mix, b->share);
        post_and_comb<N>(a, t, b->mix);
        return;
    }
    pre_weights_of<READY>(a, m, t, b);
    collapse_block(a.streams, t, b->pre, n, dim, x);
    if (a.collapsed.data)
        for (int c = threadIdx.x; c < dim; c += blockDim.x)
            nib_mat_set(a.collapsed, t, c, x[c]);
    nib_rms_norm_block(x, a.norm_weight, dim, a.norm_eps, b->sum);
    nib_act_store_block(a.x, t, x, b->most);
}

#endif
