/* The exact largest k of a row's scores, ascending, ties to the lowest entry: a radix selection that keeps the scores
 * in registers and reads them once. Up to 16 blocks share a row, as a cluster that adds up its histograms in shared
 * memory.
 *
 * A warp holds entries that follow one another, 32 at a time, so votes give each its rank. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/cluster.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"

constexpr int kThreads = 1024, kWarps = kThreads / 32, kKeys = 32, kKeysAimed = 4;
constexpr int kClusterMost = 16, kClusterPortable = 8;
constexpr int kBins = 256,
              kCopies = 8; /* most scores share their first digit: lanes count in histograms of their own */

struct take_shared {
    int32_t copies[kBins * kCopies];
    int32_t histogram[2][kBins]; /* of this block, in turns: others may still read the last one */
    int32_t total[kBins];        /* of the cluster */
    int32_t state[2];
    int32_t above[kWarps], equal[kWarps];
    int32_t block[2]; /* entries above the cut and at it */
};

/* Orders scores as integers, NaN first of all so that it cannot be left out unseen. */
NIB_DEVICE uint32_t score_key(float v)
{
    uint32_t u = __float_as_uint(v == 0 ? 0.0f : v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return ~0u;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Counts of the digit at `shift` over the cluster, of keys that agree with the cut so far. */
NIB_DEVICE void count_digits(struct take_shared *m, const uint32_t key[kKeys], int32_t n_held, int32_t passes,
                             uint32_t cut, int shift, int turn)
{
    for (int i = threadIdx.x; i < kBins * kCopies; i += kThreads)
        m->copies[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kKeys; i++) {
        if (i >= passes)
            break;
        if (i < n_held && (shift == 24 || key[i] >> (shift + 8) == cut >> (shift + 8)))
            atomicAdd(&m->copies[(key[i] >> shift & 255u) * kCopies + threadIdx.x % kCopies], 1);
    }
    __syncthreads();
    if (threadIdx.x < kBins) {
        int32_t sum = 0;
        for (int c = 0; c < kCopies; c++)
            sum += m->copies[threadIdx.x * kCopies + c];
        m->histogram[turn][threadIdx.x] = sum;
    }
    uint32_t n_blocks = nib_cluster_size();
    if (n_blocks > 1)
        nib_cluster_sync();
    else
        __syncthreads();
    if (threadIdx.x < kBins) {
        int32_t sum = 0;
#pragma unroll 4
        for (uint32_t b = 0; b < n_blocks; b++)
            sum += n_blocks > 1 ? nib_cluster_load(&m->histogram[turn][threadIdx.x], b)
                                : m->histogram[turn][threadIdx.x];
        m->total[threadIdx.x] = sum;
    }
    __syncthreads();
}

/* The digit in which the k-th largest lies, and how many of its keys are wanted, to m->state. */
NIB_DEVICE void find_digit(struct take_shared *m, int32_t k)
{
    if (threadIdx.x >= 32)
        return;
    /* Lane i holds bins 8i .. 8i+7; counts of higher lanes by a scan from the top. */
    int32_t lane = threadIdx.x, own = 0, above;
    for (int i = 0; i < 8; i++)
        own += m->total[8 * lane + i];
    above = own;
    for (int offset = 1; offset < 32; offset *= 2) {
        int32_t higher = __shfl_down_sync(~0u, above, offset);
        above += lane + offset < 32 ? higher : 0;
    }
    above -= own;
    if (above < k && above + own >= k) {
        int32_t bin = 8 * lane + 7;
        while (above + m->total[bin] < k)
            above += m->total[bin--];
        m->state[0] = bin;
        m->state[1] = k - above;
    }
}

/* The cut among one or two keys a thread of one block, bit by bit: a count is one barrier, where a digit takes six. */
NIB_DEVICE uint32_t cut_by_bits(const uint32_t key[kKeys], int32_t n_held, int32_t passes, int32_t *wanted)
{
    uint32_t cut = 0;
    int32_t  n = *wanted;
    for (int bit = 31; bit >= 0; bit--) {
        uint32_t trial = cut | 1u << bit;
        int32_t  count = __syncthreads_count(n_held > 0 && key[0] >= trial);
        if (passes > 1)
            count += __syncthreads_count(n_held > 1 && key[1] >= trial);
        cut = count >= n ? trial : cut;
    }
    int32_t above = __syncthreads_count(n_held > 0 && key[0] > cut);
    if (passes > 1)
        above += __syncthreads_count(n_held > 1 && key[1] > cut);
    *wanted = n - above;
    return cut;
}

/* Entries before this warp that are above the cut, and at it; m->above and m->equal hold every warp's. */
NIB_DEVICE void count_before(struct take_shared *m, int32_t *above, int32_t *equal)
{
    uint32_t rank = nib_cluster_rank(), n_blocks = nib_cluster_size();
    __syncthreads();
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, a = m->above[lane], e = m->equal[lane];
    *above = __reduce_add_sync(~0u, lane < warp ? a : 0);
    *equal = __reduce_add_sync(~0u, lane < warp ? e : 0);
    if (n_blocks == 1)
        return;
    if (warp == 0) {
        a = __reduce_add_sync(~0u, a);
        e = __reduce_add_sync(~0u, e);
        if (lane == 0) {
            m->block[0] = a;
            m->block[1] = e;
        }
    }
    nib_cluster_sync();
    for (uint32_t b = 0; b < rank; b++) {
        *above += nib_cluster_load(&m->block[0], b);
        *equal += nib_cluster_load(&m->block[1], b);
    }
}

/* Grid (blocks of a row, rows), a row's blocks one cluster. */
static __global__ void __launch_bounds__(kThreads, 1)
    index_take(const struct nib_index_select_args a, const struct nib_rows rows, int32_t first, const float *score,
               int64_t score_stride)
{
    nib_grid_start();
    __shared__ struct take_shared m;
    int64_t                       t = first + (int64_t)blockIdx.y;
    int32_t visible = (rows.pos[t] + 1) / a.ratio, n = min(visible, a.top_k), *selected = a.selected + t * a.top_k;
    int     lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0)
            a.n_selected[t] = n;
        for (int32_t i = threadIdx.x; i < a.top_k; i += kThreads)
            if (visible <= a.top_k || i >= n)
                selected[i] = i < n ? i : -1;
    }
    if (visible <= a.top_k || n == 0) /* for all blocks of the cluster */
        return;
    int32_t n_blocks = (int32_t)nib_cluster_size(),
            passes = (visible + n_blocks * kThreads - 1) / (n_blocks * kThreads);
    int32_t begin = ((int32_t)nib_cluster_rank() * kWarps + warp) * passes * 32 +
                    lane; /* entry i of the thread: + 32 * i */
    const float *row = score + blockIdx.y * score_stride;
    int32_t      n_held = min(passes, max(0, (visible - begin + 31) / 32));
    uint32_t     key[kKeys], cut = 0;
#pragma unroll
    for (int i = 0; i < kKeys; i++)
        key[i] = i < n_held ? score_key(row[begin + 32 * i]) : 0;
    int32_t wanted = n;
    if (n_blocks == 1 && passes <= 2)
        cut = cut_by_bits(key, n_held, passes, &wanted);
    for (int shift = n_blocks == 1 && passes <= 2 ? -1 : 24, turn = 0; shift >= 0; shift -= 8, turn ^= 1) {
        count_digits(&m, key, n_held, passes, cut, shift, turn);
        find_digit(&m, wanted);
        __syncthreads();
        cut |= (uint32_t)m.state[0] << shift;
        wanted = m.state[1];
    }
    /* `wanted` keys equal to the cut are taken, the first ones. */
    int32_t above = 0, equal = 0;
#pragma unroll
    for (int i = 0; i < kKeys; i++) {
        if (i >= passes)
            break;
        above += __popc(__ballot_sync(~0u, i < n_held && key[i] > cut));
        equal += __popc(__ballot_sync(~0u, i < n_held && key[i] == cut));
    }
    if (lane == 0) {
        m.above[warp] = above;
        m.equal[warp] = equal;
    }
    count_before(&m, &above, &equal);
    uint32_t lower = (1u << lane) - 1;
#pragma unroll
    for (int i = 0; i < kKeys; i++) {
        if (i >= passes)
            break;
        bool     is_above = i < n_held && key[i] > cut, is_equal = i < n_held && key[i] == cut;
        uint32_t votes_above = __ballot_sync(~0u, is_above), votes_equal = __ballot_sync(~0u, is_equal);
        int32_t  rank = equal + __popc(votes_equal & lower);
        if (is_above || (is_equal && rank < wanted))
            selected[above + __popc(votes_above & lower) + min(rank, wanted)] = begin + 32 * i;
        above += __popc(votes_above);
        equal += __popc(votes_equal);
    }
    if (n_blocks > 1)
        nib_cluster_sync(); /* others may still read this block's memory */
}

bool nib_cuda_index_take(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first, int32_t n,
                         int64_t n_entries)
{
    unsigned cluster = 1, most = s->cluster_most < kClusterPortable ? (unsigned)s->cluster_most
                                 : s->arch == 90                    ? kClusterMost
                                                                    : kClusterPortable;
    /* As many as must be; where rows are few, as many as leave a thread with few keys. */
    while (cluster < most &&
           ((int64_t)cluster * kThreads * kKeys < n_entries - 1 ||
            ((int64_t)cluster * kThreads * kKeysAimed < n_entries - 1 && (int64_t)cluster * n < s->n_sms)))
        cluster *= 2;
    if ((int64_t)cluster * kThreads * kKeys < n_entries - 1)
        return false;
    if (cluster > kClusterPortable)
        cudaFuncSetAttribute(index_take, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    nib_launch_cluster(s, cluster, index_take, dim3(cluster, (unsigned)n), kThreads, 0, *a, *a->rows, first,
                       (const float *)s->score, n_entries);
    return true;
}
