/* Experts' rows: from the experts that pairs (a row and one of its choices) chose to the order of rows and the tiles of
 * a grouped product, and from the experts' results to their weighted sum. */
#ifndef NIB_CUDA_EXPERTS_CUH
#define NIB_CUDA_EXPERTS_CUH

#include "backend/cuda/device/rows.cuh"

constexpr int kGroupsThreads = 1024, kCombineThreads = 256;

/* The sum of v over the threads before this one; *total: over all. buffer [kGroupsThreads]. */
static __device__ int32_t nib_sum_before(int32_t v, int32_t *buffer, int32_t *total)
{
    int t = (int)threadIdx.x;
    buffer[t] = v;
    __syncthreads();
    for (int step = 1; step < kGroupsThreads; step *= 2) {
        int32_t add = t >= step ? buffer[t - step] : 0;
        __syncthreads();
        buffer[t] += add;
        __syncthreads();
    }
    *total = buffer[kGroupsThreads - 1];
    int32_t before = buffer[t] - v;
    __syncthreads();
    return before;
}

/* All pointers of global memory; shared memory: memory [3 * n_experts], buffer [kGroupsThreads]. */
struct nib_pairs {
    const int32_t *chosen;    /* [n_pairs] */
    int32_t       *groups;    /* [..][3] expert, number of rows, first row */
    int32_t       *n_groups;
    int32_t       *pair;      /* [n_pairs] of each row */
    int32_t       *place;     /* [n_pairs] row of each pair */
    int32_t       *scale_row; /* [n_pairs] each row's number when every group takes scale_tile rows; or NULL */
    int32_t       *zero;      /* [n_zero] words to clear, for those who count later */
    int32_t        n_pairs, n_experts, tile_rows, scale_tile, n_zero;
};

/* By one block of kGroupsThreads threads. Experts without pairs get no group; an expert's pairs come in any order. */
static __device__ void nib_groups_block(const struct nib_pairs &a, int32_t *memory, int32_t *buffer)
{
    int32_t *count = memory; /* of each expert; its first row; its next row and its first group */
    int32_t *next = count + a.n_experts, *group = next + a.n_experts, n_groups = 0, n_rows = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < a.n_zero; i += kGroupsThreads)
        a.zero[i] = 0;
    for (int32_t e = (int32_t)threadIdx.x; e < a.n_experts; e += kGroupsThreads)
        count[e] = 0;
    __syncthreads();
    for (int32_t p = (int32_t)threadIdx.x; p < a.n_pairs; p += kGroupsThreads)
        atomicAdd(&count[a.chosen[p]], 1);
    __syncthreads();
    for (int32_t begin = 0; begin < a.n_experts; begin += kGroupsThreads) {
        int32_t e = begin + (int32_t)threadIdx.x, c = e < a.n_experts ? count[e] : 0, total_rows, total;
        int32_t row = n_rows + nib_sum_before(c, buffer, &total_rows);
        int32_t n = (c + a.tile_rows - 1) / a.tile_rows, at = n_groups + nib_sum_before(n, buffer, &total);
        for (int32_t i = 0; i < n; i++) {
            int32_t *to = a.groups + 3 * (at + i);
            to[0] = e;
            to[1] = min(c - i * a.tile_rows, a.tile_rows);
            to[2] = row + i * a.tile_rows;
        }
        if (e < a.n_experts) {
            count[e] = next[e] = row;
            group[e] = at;
        }
        n_groups += total;
        n_rows += total_rows;
    }
    if (threadIdx.x == 0)
        *a.n_groups = n_groups;
    __syncthreads();
    for (int32_t p = (int32_t)threadIdx.x; p < a.n_pairs; p += kGroupsThreads) {
        int32_t e = a.chosen[p], row = atomicAdd(&next[e], 1), in = row - count[e];
        a.pair[row] = p;
        a.place[p] = row;
        if (a.scale_row)
            a.scale_row[row] = (group[e] + in / a.tile_rows) * a.scale_tile + in % a.tile_rows;
    }
}

struct nib_expert_sum {
    const float   *expert_y; /* [..][expert_stride] */
    const float   *shared;   /* [n_rows][shared_stride] or NULL */
    const int32_t *chosen, *place; /* [n_rows][top_k] */
    const float   *weight;   /* [n_rows][top_k]; NULL: all 1 */
    struct nib_mat y;        /* [n_rows, dim] */
    int64_t        expert_stride, shared_stride;
    int32_t        top_k;
};

/* y[t][i] for column i of the thread: the sum in ascending order of expert, the shared expert last. By a block of
 * kCombineThreads threads; place [2 * top_k] is shared memory. */
static __device__ void nib_combine_block(const struct nib_expert_sum &a, int64_t t, int32_t i, int32_t *place)
{
    float  *weight = (float *)(place + a.top_k); /* rows in ascending order of expert, then their weights */
    int32_t k = a.top_k;
    for (int32_t j = (int32_t)threadIdx.x; j < k; j += kCombineThreads) {
        int32_t e = a.chosen[t * k + j], rank = 0;
        for (int32_t other = 0; other < k; other++) { /* a hash table may name an expert twice */
            int32_t f = a.chosen[t * k + other];
            rank += f < e || (f == e && other < j);
        }
        place[rank] = a.place[t * k + j];
        weight[rank] = a.weight ? a.weight[t * k + j] : 1.0f;
    }
    __syncthreads();
    if (i >= a.y.cols)
        return;
    float sum = 0;
    for (int32_t j = 0; j < k; j++)
        sum += weight[j] * a.expert_y[place[j] * a.expert_stride + i];
    if (a.shared)
        sum += a.shared[t * a.shared_stride + i];
    nib_mat_set(a.y, t, i, sum);
}

#endif
