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
constexpr int kDigit = 11, kBins = 1 << kDigit; /* two digits mostly say which keys are taken */
constexpr int kCopies = 2; /* lanes count in histograms of their own, as many scores share a digit */
constexpr int kGroupBins = kBins / kWarps;
static_assert(kBins == 2 * kThreads, "a thread adds up two bins, a warp a group of 64");
static_assert(kGroupBins * kClusterMost == kThreads, "a thread asks one block for one bin of a group");

struct take_shared {
    int32_t copies[kBins * kCopies];
    int32_t histogram[2][kBins]; /* of this block, in turns: others may still read the last one */
    int32_t group[2][kWarps];    /* its sums over 64 bins each */
    int32_t bin[kGroupBins];     /* of one group, over the cluster */
    int32_t state[5];
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

/* Of 32 counts, a lane each, the highest lane at which the sum from the top on reaches `wanted`: whether it is this one, and
 * the sum of the lanes above. */
NIB_DEVICE bool reaches(int32_t own, int32_t wanted, int32_t *above)
{
    int32_t lane = threadIdx.x % 32, sum = own;
    for (int offset = 1; offset < 32; offset *= 2) {
        int32_t higher = __shfl_down_sync(~0u, sum, offset);
        sum += lane + offset < 32 ? higher : 0;
    }
    *above = sum - own;
    return sum - own < wanted && sum >= wanted;
}

/* Counts of the digit at `shift` in this block, of keys that agree with the cut in the bits from shift + n_bits on. */
NIB_DEVICE void count_digits(struct take_shared *m, const uint32_t key[kKeys], int32_t n_held, int32_t passes,
                             uint32_t cut, int shift, int n_bits, int turn)
{
    int      t = (int)threadIdx.x;
    uint32_t mask = (1u << n_bits) - 1;
    for (int i = t; i < kBins * kCopies; i += kThreads)
        m->copies[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kKeys; i++) {
        if (i >= passes)
            break;
        if (i < n_held && (shift + n_bits == 32 || key[i] >> (shift + n_bits) == cut >> (shift + n_bits)))
            atomicAdd(&m->copies[(key[i] >> shift & mask) * kCopies + t % kCopies], 1);
    }
    __syncthreads();
    int32_t low = 0, high = 0;
    for (int c = 0; c < kCopies; c++) {
        low += m->copies[2 * t * kCopies + c];
        high += m->copies[(2 * t + 1) * kCopies + c];
    }
    *(int2 *)&m->histogram[turn][2 * t] = make_int2(low, high);
    int32_t sum = __reduce_add_sync(~0u, low + high);
    if (t % 32 == 0)
        m->group[turn][t / 32] = sum;
}

/* A digit of the cut: the bin in which the wanted-th largest key lies. First the group of bins is found, then the bin, so
 * that blocks read little of each other. Afterwards `cut` has the digit, and *wanted keys of the bin are wanted; returns
 * how many the bin has. */
NIB_DEVICE int32_t find_digit(struct take_shared *m, const uint32_t key[kKeys], int32_t n_held, int32_t passes,
                              int shift, int n_bits, int turn, uint32_t *cut, int32_t *wanted)
{
    int     t = (int)threadIdx.x, lane = t % 32, n_blocks = (int)nib_cluster_size();
    int32_t above, sum = 0;
    count_digits(m, key, n_held, passes, *cut, shift, n_bits, turn);
    n_blocks > 1 ? nib_cluster_sync() : __syncthreads();
    if (t < 32) {
#pragma unroll
        for (int b = 0; b < kClusterMost; b++)
            if (b < n_blocks)
                sum += n_blocks > 1 ? nib_cluster_load(&m->group[turn][lane], (uint32_t)b) : m->group[turn][lane];
        if (reaches(sum, *wanted, &above)) {
            m->state[3] = lane;
            m->state[4] = *wanted - above;
        }
    }
    __syncthreads();
    /* 16 lanes a bin, one for each block. */
    int32_t bin = m->state[3] * kGroupBins + t / kClusterMost, block = t % kClusterMost, own = 0;
    if (block < n_blocks)
        own = n_blocks > 1 ? nib_cluster_load(&m->histogram[turn][bin], (uint32_t)block) : m->histogram[turn][bin];
    for (int offset = 1; offset < kClusterMost; offset *= 2)
        own += __shfl_xor_sync(~0u, own, offset);
    if (block == 0)
        m->bin[t / kClusterMost] = own;
    __syncthreads();
    if (t < 32) {
        int2 two = *(const int2 *)&m->bin[2 * lane];
        if (reaches(two.x + two.y, m->state[4], &above)) {
            int32_t left = m->state[4] - above;
            bool    high = two.y >= left;
            m->state[0] = m->state[3] * kGroupBins + 2 * lane + high;
            m->state[1] = high ? left : left - two.y;
            m->state[2] = high ? two.y : two.x;
        }
    }
    __syncthreads();
    *cut |= (uint32_t)m->state[0] << shift;
    *wanted = m->state[1];
    return m->state[2];
}

/* The cut among one or two keys of n_bits a thread of one block, bit by bit: a count is one barrier, where a digit takes
 * six. */
NIB_DEVICE uint32_t cut_by_bits(const uint32_t key[kKeys], int n_bits, int32_t n_held, int32_t passes, int32_t *wanted)
{
    uint32_t cut = 0;
    int32_t  n = *wanted;
    for (int bit = n_bits - 1; bit >= 0; bit--) {
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
    /* Bits that no longer matter are left out: where all keys of the last bin are taken, and below those of bf16. */
    bool rounded = a.q.dtype == NIB_DTYPE_BF16;
    if (n_blocks == 1 && passes <= 2) {
        for (int i = 0; i < 2; i++)
            key[i] >>= rounded ? 16 : 0;
        cut = cut_by_bits(key, rounded ? 16 : 32, n_held, passes, &wanted);
    } else {
        int shift = 32 - kDigit;
        if (find_digit(&m, key, n_held, passes, shift, kDigit, 0, &cut, &wanted) > wanted) {
            shift -= kDigit;
            if (find_digit(&m, key, n_held, passes, shift, kDigit, 1, &cut, &wanted) > wanted && !rounded) {
                (void)find_digit(&m, key, n_held, passes, 0, shift, 0, &cut, &wanted);
                shift = 0;
            }
        }
        cut >>= shift;
#pragma unroll
        for (int i = 0; i < kKeys; i++)
            key[i] >>= shift;
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
