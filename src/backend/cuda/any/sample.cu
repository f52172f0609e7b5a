/* Drawing the next token: many blocks a row find its largest logit and the sum of its softmax, then one block a row
 * draws. Cuts are thresholds on ordered bits, found by bisection, so nothing is sorted; sums run over fixed shares of
 * the vocabulary in fp64 and are then added in order. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"

constexpr int kThreads = 1024;

struct draw {
    int32_t n;
    double *z, *p;  /* logit after temperature; exp(z - max), 0 once dropped */
    double *buffer; /* [kThreads] shared */
};

NIB_DEVICE uint64_t order_bits(double v)
{
    uint64_t u = (uint64_t)__double_as_longlong(v + 0.0);
    return u >> 63 ? ~u : u | (uint64_t)1 << 63;
}

NIB_DEVICE void drop(const struct draw &d, int32_t i)
{
    d.z[i] = -INFINITY;
    d.p[i] = 0;
}

NIB_DEVICE double mass_at_least(const struct draw &d, uint64_t key, bool count)
{
    double sum = 0;
    for (int32_t i = threadIdx.x; i < d.n; i += kThreads)
        if (d.p[i] > 0 && order_bits(d.z[i]) >= key)
            sum += count ? 1 : d.p[i];
    return nib_block_sum_f64(sum, d.buffer);
}

NIB_DEVICE uint64_t cut_at(const struct draw &d, double wanted, bool count)
{
    uint64_t cut = 0;
    for (uint64_t bit = (uint64_t)1 << 63; bit; bit >>= 1)
        if (mass_at_least(d, cut | bit, count) >= wanted)
            cut |= bit;
    return cut;
}

/* Sum of v over all lower threads; *total of all. */
NIB_DEVICE double before_block(double v, double *buffer, double *total)
{
    __syncthreads();
    buffer[threadIdx.x] = v;
    __syncthreads();
    double before = 0, all = 0;
    for (int i = 0; i < kThreads; i++) {
        before += i < (int)threadIdx.x ? buffer[i] : 0;
        all += buffer[i];
    }
    __syncthreads();
    *total = all;
    return before;
}

/* A thread's share of the ids: consecutive ones. */
NIB_DEVICE void share_of(int32_t n, int32_t *begin, int32_t *end)
{
    int32_t each = (n + kThreads - 1) / kThreads;
    *begin = min((int32_t)threadIdx.x * each, n);
    *end = min(*begin + each, n);
}

NIB_DEVICE void keep_top_p(const struct draw &d, double top_p)
{
    double   wanted = top_p * mass_at_least(d, 0, false), total, ties = 0;
    uint64_t cut = cut_at(d, wanted > 0 ? wanted : 1, false);
    double   above = mass_at_least(d, cut + 1, false);
    int32_t  begin, end;
    share_of(d.n, &begin, &end);
    for (int32_t i = begin; i < end; i++)
        ties += order_bits(d.z[i]) == cut ? d.p[i] : 0;
    double mass = above + before_block(ties, d.buffer, &total);
    for (int32_t i = begin; i < end; i++) {
        uint64_t key = order_bits(d.z[i]);
        bool     kept = key > cut || (key == cut && (mass < wanted || mass == 0));
        mass += key == cut ? d.p[i] : 0;
        if (!kept)
            drop(d, i);
    }
    __syncthreads();
}

NIB_DEVICE int32_t draw_token(const struct draw &d, double uniform, int32_t *result)
{
    double  total, sum = 0;
    int32_t begin, end;
    share_of(d.n, &begin, &end);
    for (int32_t i = begin; i < end; i++)
        sum += d.p[i];
    double before = before_block(sum, d.buffer, &total), target = uniform * total;
    if (threadIdx.x == 0)
        result[0] = 0x7fffffff, result[1] = -1;
    __syncthreads();
    /* The first id at which the running sum passes the target; the last one with mass if rounding leaves none. */
    for (int32_t i = begin; i < end; i++) {
        if (d.p[i] > 0) {
            before += d.p[i];
            atomicMax(&result[1], i);
            if (before > target) {
                atomicMin(&result[0], i);
                break;
            }
        }
    }
    __syncthreads();
    return result[0] != 0x7fffffff ? result[0] : result[1];
}

/* Of all threads' candidates the largest, ties to the lowest index; -1 is none. */
NIB_DEVICE int32_t best_block(double value, int32_t candidate, double *buffer, int32_t *index)
{
    __syncthreads();
    buffer[threadIdx.x] = value;
    index[threadIdx.x] = candidate;
    __syncthreads();
    for (int step = kThreads / 2; step > 0; step /= 2) {
        int32_t other = (int)threadIdx.x < step ? index[threadIdx.x + step] : -1, mine = index[threadIdx.x];
        if (other >= 0 && (mine < 0 || buffer[threadIdx.x + step] > buffer[threadIdx.x] ||
                           (buffer[threadIdx.x + step] == buffer[threadIdx.x] && other < mine))) {
            buffer[threadIdx.x] = buffer[threadIdx.x + step];
            index[threadIdx.x] = other;
        }
        __syncthreads();
    }
    int32_t best = index[0];
    __syncthreads();
    return best;
}

template <typename T> NIB_DEVICE int32_t largest(const T *z, int32_t n, double *buffer, int32_t *index)
{
    int32_t best = -1;
    T       value = 0;
#pragma unroll 8
    for (int32_t i = threadIdx.x; i < n; i += kThreads) {
        T v = z[i];
        if (best < 0 || v > value) {
            best = i;
            value = v;
        }
    }
    return best_block((double)value, best, buffer, index);
}

NIB_DEVICE void penalise(const struct nib_sample_args &a, const struct nib_sample_row &row, double *z)
{
    for (int32_t i = row.history_start + threadIdx.x; i < row.history_start + row.history_count; i += kThreads) {
        double *l = &z[a.history_token[i]];
        int32_t times = a.history_times[i];
        *l = *l > 0 ? *l / (double)row.repetition : *l * (double)row.repetition;
        *l -= (double)row.frequency * times;
        *l -= times > 0 ? (double)row.presence : 0;
    }
    __syncthreads();
}

NIB_DEVICE int32_t sample_row(const struct nib_sample_args &a, int64_t t, const struct draw &d, int32_t *index)
{
    const struct nib_sample_row row = a.row[t];
    const float                *logits = (const float *)a.logits.data + t * a.logits.stride;
    for (int32_t i = threadIdx.x; i < d.n; i += kThreads)
        d.z[i] = (double)logits[i];
    __syncthreads();
    penalise(a, row, d.z);
    int32_t best = largest(d.z, d.n, d.buffer, index);
    if (row.temperature < 1e-5f)
        return best;
    double most = d.z[best];
    __syncthreads();
    for (int32_t i = threadIdx.x; i < d.n; i += kThreads) {
        d.z[i] = (d.z[i] - most) / (double)row.temperature;
        d.p[i] = exp(d.z[i]);
        if (d.p[i] < (double)row.min_p)
            drop(d, i);
    }
    __syncthreads();
    if (row.top_k > 0) {
        uint64_t cut = cut_at(d, row.top_k, true);
        for (int32_t i = threadIdx.x; i < d.n; i += kThreads)
            if (order_bits(d.z[i]) < cut)
                drop(d, i);
        __syncthreads();
    }
    if (row.top_p < 1)
        keep_top_p(d, (double)row.top_p);
    return draw_token(d, (double)row.uniform, index);
}

/* ---- Over the whole row ---- */

constexpr int kSliceThreads = 256, kSlicesMost = 64, kSliceLeast = 512;

/* One share of a row's logits. Two doubles' worth, so that a row's slices fit where its draw will keep its values. */
struct slice {
    double  sum;  /* of exp(logit - most) */
    float   most;
    int32_t best; /* first place of `most`; kNothing: no finite logit, kBad: a NaN or +Inf */
};
constexpr int32_t kNothing = -1, kBad = -2;

/* Grid (slices, rows). */
static __global__ void __launch_bounds__(kSliceThreads)
sample_slices(const struct nib_sample_args a, int32_t first, int32_t length, double *scratch)
{
    nib_grid_start();
    __shared__ double buffer[32];
    __shared__ float  warp_most[kSliceThreads / 32];
    __shared__ int    warp_best[kSliceThreads / 32];
    int32_t n = a.logits.cols, begin = (int32_t)blockIdx.x * length, end = min(begin + length, n), best = kNothing;
    const float      *logits = (const float *)a.logits.data + (first + (int64_t)blockIdx.y) * a.logits.stride;
    bool              bad = false;
    float             most = -INFINITY;
#pragma unroll 4
    for (int32_t i = begin + threadIdx.x; i < end; i += kSliceThreads) {
        float v = logits[i];
        bad |= isnan(v) || v == INFINITY;
        if (nib_is_finite(v) && (best == kNothing || v > most)) {
            most = v;
            best = i;
        }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        float   other = __shfl_xor_sync(~0u, most, offset);
        int32_t place = __shfl_xor_sync(~0u, best, offset);
        if (place >= 0 && (best < 0 || other > most || (other == most && place < best))) {
            most = other;
            best = place;
        }
    }
    if (threadIdx.x % 32 == 0) {
        warp_most[threadIdx.x / 32] = most;
        warp_best[threadIdx.x / 32] = best;
    }
    bad = __syncthreads_or(bad);
    most = -INFINITY;
    best = kNothing;
    for (int w = 0; w < kSliceThreads / 32; w++)
        if (warp_best[w] >= 0 && (best < 0 || warp_most[w] > most || (warp_most[w] == most && warp_best[w] < best))) {
            most = warp_most[w];
            best = warp_best[w];
        }
    double sum = 0;
    for (int32_t i = begin + threadIdx.x; best >= 0 && i < end; i += kSliceThreads)
        sum += exp((double)logits[i] - (double)most);
    sum = nib_block_sum_f64(sum, buffer);
    if (threadIdx.x == 0) {
        struct slice *out = (struct slice *)(scratch + (int64_t)blockIdx.y * 2 * n) + blockIdx.x;
        out->sum = sum;
        out->most = most;
        out->best = bad ? kBad : best;
    }
}

/* A row's slices as one, a thread a slice; *sum: of exp(logit - most). share: [kSlicesMost] in shared memory. */
NIB_DEVICE int32_t whole_row(const struct slice *part, int32_t n_slices, double *share, double *sum, double *most)
{
    int32_t best = kNothing;
    float   top = -INFINITY;
    bool    bad = false;
    for (int32_t i = 0; i < n_slices; i++) {
        bad |= part[i].best == kBad;
        if (part[i].best >= 0 && (best < 0 || part[i].most > top)) {
            top = part[i].most;
            best = part[i].best;
        }
    }
    *most = (double)top;
    if ((int32_t)threadIdx.x < n_slices)
        share[threadIdx.x] = best >= 0 && part[threadIdx.x].best >= 0
                                 ? part[threadIdx.x].sum * exp((double)part[threadIdx.x].most - (double)top)
                                 : 0;
    __syncthreads();
    *sum = 0;
    for (int32_t i = 0; i < n_slices; i++)
        *sum += share[i];
    return bad ? kBad : best;
}

static __global__ void __launch_bounds__(kThreads)
sample_rows(const struct nib_sample_args a, int32_t first, int32_t n_slices, double *scratch)
{
    nib_grid_start();
    __shared__ double       buffer[kThreads];
    __shared__ int32_t      index[kThreads];
    __shared__ struct slice part[kSlicesMost];
    __shared__ double       share[kSlicesMost];
    int64_t                 t = first + (int64_t)blockIdx.x;
    int32_t                 n = a.logits.cols;
    struct draw d = {n, scratch + (int64_t)blockIdx.x * 2 * n, scratch + (int64_t)blockIdx.x * 2 * n + n, buffer};
    double                  sum, most;
    if ((int32_t)threadIdx.x < n_slices)
        part[threadIdx.x] = ((const struct slice *)d.z)[threadIdx.x];
    __syncthreads();
    int32_t best = whole_row(part, n_slices, share, &sum, &most);
    bool    plain = a.row[t].temperature < 1e-5f && a.row[t].history_count == 0;
    int32_t token = best < 0 ? -1 : plain ? best : sample_row(a, t, d, index);
    if (threadIdx.x == 0) {
        const float *logits = (const float *)a.logits.data + t * a.logits.stride;
        a.token[t] = token;
        a.logprob[t] = token < 0 ? NAN : (float)((double)logits[token] - most - log(sum));
    }
}

enum nib_status nib_cuda_sample(struct nib_stream *s, const struct nib_sample_args *a)
{
    int32_t vocab = a->logits.cols, n_slices = (vocab + kSliceLeast - 1) / kSliceLeast, n;
    n_slices = n_slices < kSlicesMost ? n_slices : kSlicesMost;
    int32_t length = (vocab + n_slices - 1) / n_slices;
    for (int32_t first = 0; first < a->n; first += n) {
        n = a->n - first < s->n_sample_rows ? a->n - first : s->n_sample_rows;
        nib_launch(s, sample_slices, dim3((unsigned)n_slices, (unsigned)n), kSliceThreads, 0, *a, first, length,
                   s->sample);
        nib_launch(s, sample_rows, (unsigned)n, kThreads, 0, *a, first, n_slices, s->sample);
    }
    return nib_cuda_check(s, cudaGetLastError(), "sample");
}
