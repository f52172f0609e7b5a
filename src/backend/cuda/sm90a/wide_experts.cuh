/* The experts of many tokens on Hopper: grouped products, as wide.cuh multiplies them. A group is an expert and up to
 * 256 of its rows, or 64 where experts have few, or as many rows of the shared expert; a block takes it with 128
 * outputs: one warpgroup 64 of w1 and the other the same 64 of w3, which meet in SwiGLU, or both together 128 of w2. A
 * block does so a few times, so that rows of the next product are on their way, and one of w2 begun, while sums of one
 * are stored. How many rows a group has is read on the device, and of the widths of a product the smallest that holds
 * them is taken.
 *
 * Rows stand in images of 8 rows and 64 columns (nib_wide_put), a group's blocks of columns one after another. What
 * SwiGLU gives is written as such an image, so down reads it as it is. Of FP8 rows it is quantised on the way: 128
 * channels share a scale, of which the two blocks of a pair have 64 each and tell one another their largest value; the
 * image holds what the codes mean, which bf16 does exactly. One file a type of weights has the kernels. */
#ifndef NIB_CUDA_WIDE_EXPERTS_CUH
#define NIB_CUDA_WIDE_EXPERTS_CUH

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm90a/wide.cuh"

/* All groups of a launch: first those of routed experts, n_most places of which *n are taken, then the shared one's. */
struct nib_wide_groups {
    const int32_t *group; /* [n_most][3] expert, number of rows, first sorted pair */
    const int32_t *n;
    int32_t        n_most, n_rows; /* n_rows: of the shared expert */
    int32_t        most_rows;      /* of a group */
};

struct nib_wide_group {
    int32_t expert, count, row; /* row: the first, of the sorted pairs or of the tokens */
    int32_t place;              /* where its image begins, in eights of rows */
    bool    shared, none;
};

NIB_DEVICE struct nib_wide_group nib_wide_group_of(const struct nib_wide_groups &a, int32_t i)
{
    struct nib_wide_group g = {0, 0, 0, 0, i >= a.n_most, false};
    if (g.shared) {
        g.row = (i - a.n_most) * a.most_rows;
        g.count = min(a.most_rows, a.n_rows - g.row);
        g.place = g.row / kGroupRows;
        g.none = g.count <= 0;
    } else if (i >= *a.n) {
        g.none = true;
    } else {
        g.expert = a.group[3 * i];
        g.count = a.group[3 * i + 1];
        g.row = a.group[3 * i + 2];
        g.place = g.row / kGroupRows + i; /* at most 7 rows of a group are filled up */
    }
    return g;
}

/* Images are of the routed side and the shared one. */
struct nib_wide_experts {
    struct nib_cuda_matrix w[2][2];   /* [side] w1 and w3; down: w2 */
    const uint16_t        *image[2];  /* of the rows that are multiplied */
    uint16_t              *hidden[2]; /* gate and up: the image of their results; down: NULL */
    float                 *y;         /* down: [sorted pairs, then rows][dim] */
    int64_t                y_shared;  /* its first row of the shared expert */
    const float           *weight;    /* gate and up: of pairs, on their results; NULL: none */
    const int32_t         *pair;      /* of sorted pairs */
    const int32_t         *exponent;  /* gate and up of FP8 rows: of tokens; NULL: BF16 rows */
    struct nib_wide_groups groups;
    int32_t                first_group; /* of this launch */
    int32_t                products;    /* of a block at most, one after another */
    int32_t                top_k;
    float                  limit;
};

constexpr int kSumStride = 68; /* floats from row to row of 64 sums: writes and reads meet no bank twice */
constexpr int kSumRows = 32;   /* of sums between gate and up at a time */

/* few: two blocks leave the L1 more of a multiprocessor with 2 KB less each. */
template <bool few> struct nib_wide_experts_memory {
    struct nib_wide_group group; /* here, and not in registers while products run */
    union {
        /* In turns, of gate and of up: [row][64]; few: of each warpgroup [row][32]. */
        alignas(16) float sums[few ? 8 : 4][kSumRows * (few ? 32 : kSumStride)];
        /* Of FP8 rows: their power of two, the weight on their results, and the bits of the largest of these here. */
        struct {
            int32_t  exponent[kWideRows];
            float    weight[kWideRows];
            uint32_t most[kWideRows];
        };
    };
    struct nib_wide_memory products; /* last, as its rows are */
};

/* Outputs of a product of a block. */
static __host__ __device__ inline int32_t nib_wide_outs(const struct nib_wide_experts &a)
{
    return a.hidden[0] ? 64 : 128;
}

/* Which outputs product i of a block has, in nib_wide_outs(): neighbours of those of the other block of a pair. */
NIB_DEVICE int32_t nib_wide_product_at(const struct nib_wide_experts &a, int32_t i)
{
    int32_t n = (int32_t)nib_cluster_size();
    return ((int32_t)blockIdx.x / n * a.products + i) * n + (int32_t)nib_cluster_rank();
}

/* How many products a block has. Both blocks of a pair have as many. */
NIB_DEVICE int32_t nib_wide_product_count(const struct nib_wide_experts &a, const struct nib_wide_group &g)
{
    int32_t n = (int32_t)nib_cluster_size(), outs = n * nib_wide_outs(a);
    int32_t all = (a.w[g.shared][0].n_out + outs - 1) / outs;
    return min(all - (int32_t)blockIdx.x / n * a.products, a.products);
}

/* Launches over n_groups groups from a.first_group on, by type of weights. */
void nib_cuda_wide_experts_nvfp4(struct nib_stream *s, const struct nib_wide_experts *a, unsigned n_groups);
void nib_cuda_wide_experts_mxfp4(struct nib_stream *s, const struct nib_wide_experts *a, unsigned n_groups);
void nib_cuda_wide_experts_fp8(struct nib_stream *s, const struct nib_wide_experts *a, unsigned n_groups);
void nib_cuda_wide_experts_bf16(struct nib_stream *s, const struct nib_wide_experts *a, unsigned n_groups);

/* ---- After the products ---- */

/* silu(g) * u within a few units of the last place; Inf must stay visible, so it does not meet the clamps. */
NIB_DEVICE float nib_wide_swiglu(float g, float u, float limit)
{
    if (!nib_is_finite(g) || !nib_is_finite(u))
        return __uint_as_float(0x7fc00000u);
    if (limit > 0) {
        g = g < limit ? g : limit;
        u = u < -limit ? -limit : u > limit ? limit : u;
    }
    /* exp(-g) = 2^t * (1 + r ln 2), r what t = -g / ln 2 lost in rounding; where 2^t is infinite the quotient is 0. */
    float t = g * -1.44269504f, r = fmaf(g, -1.44269504f, -t) + g * -1.92596303e-8f, power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
    return __fdividef(g, 1.0f + (nib_is_finite(power) ? fmaf(power * 0.693147181f, r, power) : power)) * u;
}

/* Gate's and up's sums to the group's image of block x; by all consumers, 32 rows at a time, put while those before
 * are still read. */
template <int N>
NIB_DEVICE void nib_wide_gate(const struct nib_wide_experts &a, const struct nib_wide_group &g, int32_t x,
                              struct nib_wide_experts_memory<false> *m, const float (&acc)[N / 2], float alpha)
{
    int       thread = nib_wide_thread(), lane = thread % 32, warp = thread / 32, r = lane % 8;
    int       chunk = warp % 2 * 4 + lane / 8;
    int32_t   n_groups = (g.count + kGroupRows - 1) / kGroupRows, n_blocks = a.w[g.shared][0].n_out / kBlockCols;
    int       put = 2 * (lane % 4) * kSumStride + warp % 4 * kTileRows + lane / 4;
    uint16_t *to = a.hidden[g.shared] + ((int64_t)g.place * n_blocks + (int64_t)x * n_groups) * kGroupHalves;
#pragma unroll
    for (int first = 0; first < N; first += kSumRows) {
        int32_t row = first + warp / 2 * kGroupRows + r;
        float (*sums)[kSumRows * kSumStride] = m->sums + first / kSumRows % 2 * 2;
        if (first >= n_groups * kGroupRows)
            break;
#pragma unroll
        for (int i = 0; i < kSumRows / 2; i++)
            sums[warp / 4][put + (i / 4 * 8 + i % 2) * kSumStride + i % 4 / 2 * 8] = acc[first / 2 + i] * alpha;
        float weight = a.weight && !g.shared ? a.weight[a.pair[g.row + min(row, g.count - 1)]] : 1.0f;
        nib_wide_meet(1, kWideConsumers);
        if (row >= n_groups * kGroupRows || x >= n_blocks)
            continue;
        uint4     v;
        uint32_t *word = (uint32_t *)&v;
        int       at = (row - first) * kSumStride + 2 * chunk;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 gate = *(const float2 *)(sums[0] + at + i * 16), up = *(const float2 *)(sums[1] + at + i * 16);
            float  low = nib_wide_swiglu(gate.x, up.x, a.limit), high = nib_wide_swiglu(gate.y, up.y, a.limit);
            word[i] = nib_pack_bf16x2(low * weight, high * weight);
        }
        *(uint4 *)(to + row / kGroupRows * kGroupHalves + (chunk * kGroupRows + r) * 8) = v;
    }
    nib_wide_meet(1, kWideConsumers); /* the next sums may go where the last were */
}

/* Where sum `out` of 32 of a row stands: neither writes nor reads below meet a bank twice. */
NIB_DEVICE int nib_wide_sum_at(int row, int out)
{
    return row * 32 + (out ^ (row / 2 % 4 * 8 + row % 2 * 4));
}

/* The same by a warpgroup for itself, which has 32 outputs of gate and those of up. */
template <int N>
NIB_DEVICE void nib_wide_gate_few(const struct nib_wide_experts &a, const struct nib_wide_group &g, int32_t x,
                                  struct nib_wide_experts_memory<true> *m, const float (&acc)[N / 2], float alpha)
{
    int       thread = nib_wide_thread(), lane = thread % 32, warp = thread / 32 % 4, half = thread / 128, r = lane % 8;
    int32_t   n_groups = (g.count + kGroupRows - 1) / kGroupRows, n_blocks = a.w[g.shared][0].n_out / kBlockCols;
    int       out = warp % 2 * kTileRows + lane / 4;
    uint16_t *to = a.hidden[g.shared] + ((int64_t)g.place * n_blocks + (int64_t)x * n_groups) * kGroupHalves;
#pragma unroll
    for (int first = 0; first < N; first += kSumRows) {
        int32_t row = first + warp * kGroupRows + r;
        float (*sums)[kSumRows * 32] = m->sums + half * 4 + first / kSumRows % 2 * 2;
        if (first >= n_groups * kGroupRows)
            break;
#pragma unroll
        for (int i = 0; i < kSumRows / 2; i++)
            sums[warp / 2][nib_wide_sum_at(i / 4 * 8 + 2 * (lane % 4) + i % 2, out + i % 4 / 2 * 8)] =
                acc[first / 2 + i] * alpha;
        float weight = a.weight && !g.shared ? a.weight[a.pair[g.row + min(row, g.count - 1)]] : 1.0f;
        nib_wide_meet(2 + half, kWideConsumers / 2);
        if (row >= n_groups * kGroupRows || x >= n_blocks)
            continue;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int       chunk = k * 4 + lane / 8;
            uint2     v;
            uint32_t *word = (uint32_t *)&v;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int    at = nib_wide_sum_at(warp * kGroupRows + r, i * kTileRows + 2 * chunk);
                float2 gate = *(const float2 *)(sums[0] + at), up = *(const float2 *)(sums[1] + at);
                float  low = nib_wide_swiglu(gate.x, up.x, a.limit), high = nib_wide_swiglu(gate.y, up.y, a.limit);
                word[i] = nib_pack_bf16x2(low * weight, high * weight);
            }
            *(uint2 *)(to + row / kGroupRows * kGroupHalves + (chunk * kGroupRows + r) * 8 + half * 4) = v;
        }
    }
    nib_wide_meet(2 + half, kWideConsumers / 2);
}

/* ---- The same of FP8 rows ---- */

/* A warpgroup's sums to [row][64 outputs], times alpha and the power of two of their row. */
template <int N>
NIB_DEVICE void nib_wide_sums_put(const float (&acc)[N / 2], float factor, const int32_t *exponent, float *sums)
{
    int   lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    float *to = sums + 2 * (lane % 4) * kSumStride + warp * kTileRows + lane / 4;
    struct nib_wide_alpha alpha = nib_wide_alpha_of(factor);
#pragma unroll
    for (int i = 0; i < N / 2; i += 4) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            struct nib_wide_factor by = nib_wide_factor_of(alpha, exponent[i / 4 * 8 + 2 * (lane % 4) + r]);
            to[(i / 4 * 8 + r) * kSumStride] = acc[i + r] * by.first * by.second;
            to[(i / 4 * 8 + r) * kSumStride + 8] = acc[i + r + 2] * by.first * by.second;
        }
    }
}

/* [row][64] of gate and of up to hidden values in the place of gate's, and each row's largest; by all consumers.
 * Lane (r, l) has channels 16l .. 16l + 15 of row r of eight. */
template <bool few>
NIB_DEVICE void nib_wide_hidden(const struct nib_wide_experts &a, int32_t n_eights, float *gate, const float *up,
                                struct nib_wide_experts_memory<few> *m)
{
    int lane = threadIdx.x % 32;
    for (int32_t k = threadIdx.x / 32; k < n_eights; k += kWideConsumers / 32) {
        int32_t  row = k * 8 + lane % 8, at = row * kSumStride + lane / 8 * 16;
        float    weight = m->weight[row];
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            float4 g = *(const float4 *)(gate + at + i), u = *(const float4 *)(up + at + i);
            g.x = nib_wide_swiglu(g.x, u.x, a.limit) * weight;
            g.y = nib_wide_swiglu(g.y, u.y, a.limit) * weight;
            g.z = nib_wide_swiglu(g.z, u.z, a.limit) * weight;
            g.w = nib_wide_swiglu(g.w, u.w, a.limit) * weight;
            *(float4 *)(gate + at + i) = g;
            most = max(max(most, __float_as_uint(g.x) & 0x7fffffffu), __float_as_uint(g.y) & 0x7fffffffu);
            most = max(max(most, __float_as_uint(g.z) & 0x7fffffffu), __float_as_uint(g.w) & 0x7fffffffu);
        }
        most = max(most, __shfl_xor_sync(~0u, most, 8));
        most = max(most, __shfl_xor_sync(~0u, most, 16));
        if (lane < 8)
            m->most[row] = most;
    }
}

/* Two values times `by`, as E4M3 codes; then what these mean times `scale`, as bf16. */
NIB_DEVICE uint32_t nib_wide_fp8_pair(float first, float second, float by, float scale)
{
    uint16_t codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second * by), "f"(first * by));
    return nib_pack_bf16x2(nib_e4m3_value(codes & 255u) * scale, nib_e4m3_value(codes >> 8) * scale);
}

/* Hidden values as FP8 rows to the group's image; by all consumers, chunks of a row as in nib_wide_gate(). */
template <bool few>
NIB_DEVICE void nib_wide_encode(const struct nib_wide_experts &a, const struct nib_wide_group &g, const float *hidden,
                                const struct nib_wide_experts_memory<few> *m)
{
    int32_t   n_groups = (g.count + kGroupRows - 1) / kGroupRows, n_blocks = a.w[g.shared][0].n_out / kBlockCols;
    int       lane = threadIdx.x % 32, r = lane % 8;
    uint16_t *to = a.hidden[g.shared] + ((int64_t)g.place * n_blocks + (int64_t)blockIdx.x * n_groups) * kGroupHalves;
    for (int32_t k = threadIdx.x / 32; k < 2 * n_groups; k += kWideConsumers / 32) {
        int32_t  row = k / 2 * 8 + r, chunk = k % 2 * 4 + lane / 8;
        uint32_t other = (uint32_t)nib_cluster_load((const int32_t *)&m->most[row], nib_cluster_rank() ^ 1);
        float    amax = __uint_as_float(max(m->most[row], other));
        bool     finite = nib_is_finite(amax);
        uint32_t code = finite ? nib_e8m0_ceil_code((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f)) : 255u;
        float    scale = nib_e8m0_value(code), by = nib_e8m0_value(finite ? 254u - code : 255u);
        uint4    v;
        uint32_t *word = (uint32_t *)&v;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 x = *(const float2 *)(hidden + row * kSumStride + i * 16 + 2 * chunk);
            word[i] = nib_wide_fp8_pair(x.x, x.y, by, scale);
        }
        *(uint4 *)(to + k / 2 * kGroupHalves + (chunk * kGroupRows + r) * 8) = v;
    }
}

/* A warp's sums of 16 outputs from o on to y: eight outputs of a row are 32 bytes. */
template <int N>
NIB_DEVICE void nib_wide_down(const struct nib_wide_experts &a, const struct nib_wide_group &g, int32_t o,
                              const float (&acc)[N / 2], float alpha)
{
    int     lane = nib_wide_thread() % 32;
    int32_t dim = a.w[g.shared][0].n_out;
    if (o >= dim)
        return;
    float *to = a.y + ((g.shared ? a.y_shared : 0) + g.row) * dim + o + lane / 4;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int32_t row = i / 4 * 8 + 2 * (lane % 4) + i % 2;
        if (row < g.count)
            to[(int64_t)row * dim + i % 4 / 2 * 8] = acc[i] * alpha;
    }
}

/* ---- The kernel ---- */

/* Of FP8 rows, where the stages were. */
template <int N, bool few>
NIB_DEVICE void nib_wide_gate_fp8(const struct nib_wide_experts &a, const struct nib_wide_group &g,
                                  struct nib_wide_experts_memory<few> *m, const float (&acc)[N / 2], float alpha)
{
    float *sums = (float *)m->products.rows;
    nib_wide_meet(1, kWideConsumers); /* both have read their last rows, which make way for the sums */
    nib_wide_sums_put<N>(acc, alpha, m->exponent, sums + threadIdx.x / 128 * (N * kSumStride));
    nib_wide_meet(1, kWideConsumers);
    nib_wide_hidden(a, (g.count + kGroupRows - 1) / kGroupRows, sums, sums + N * kSumStride, m);
    nib_cluster_sync();
    nib_wide_encode(a, g, sums, m);
}

template <int type, int N, bool few>
NIB_DEVICE void nib_wide_experts_group(const struct nib_wide_experts &a, struct nib_wide_experts_memory<few> *m)
{
    const struct nib_wide_group &g = m->group;
    int     warp = threadIdx.x / 32, n = nib_wide_product_count(a, g);
    bool    gates = a.hidden[0] != NULL;
    bool    apart = few && !a.exponent; /* both warpgroups have outputs of gate and those of up */
    const struct nib_cuda_matrix &w = a.w[g.shared][!gates ? 0 : apart ? warp / 2 % 2 : warp / 4];
    int     first = (!gates ? warp : apart ? warp / 4 * 2 + warp % 2 : warp % 4) * kTileRows;
    int32_t n_blocks = w.n_in / kBlockCols;
    float   alpha = nib_alpha_of(w, g.expert);
#pragma unroll 1
    for (int32_t i = 0; i < n; i++) {
        int32_t x = nib_wide_product_at(a, i), o = x * nib_wide_outs(a) + first;
        float   acc[N / 2] = {};
        /* Warps behind the last tile multiply with it, as a warpgroup works as one, and keep nothing. */
        struct nib_tile t = nib_tile_of(w, g.expert, min(o, w.n_out - 1) / kTileRows, (int)threadIdx.x % 32);
        if (few)
            nib_wide_multiply_few<type, N>(t, i * n_blocks, n_blocks, &m->products, acc);
        else
            nib_wide_multiply<type, N>(t, i * n_blocks, n_blocks, &m->products, acc);
        if (!gates)
            nib_wide_down<N>(a, g, o, acc, alpha);
        else if (a.exponent)
            nib_wide_gate_fp8<N>(a, g, m, acc, alpha);
        else if constexpr (few)
            nib_wide_gate_few<N>(a, g, x, m, acc, alpha);
        else
            nib_wide_gate<N>(a, g, x, m, acc, alpha);
    }
    nib_cluster_sync();
}

/* How many rows a group's products have room for; only the widest where `narrow` ones are not built. few: groups have
 * at most kFewRows. */
static __device__ constexpr int nib_wide_width(int32_t count, bool narrow, bool few)
{
    if (few)
        return count > 32 || !narrow ? kFewRows : 32;
    if (count > 224 || !narrow)
        return 256;
    return count > 192 ? 224 : count > 128 ? 192 : count > 64 ? 128 : count > 32 ? 64 : 32;
}

/* What products read of the stages behind a group's last eight rows; no copy ever goes there. */
NIB_DEVICE void nib_wide_clear(int32_t count, int width, struct nib_wide_memory *m)
{
    constexpr int kVectors = kGroupHalves / 8;
    int           first = (count + kGroupRows - 1) / kGroupRows * kVectors, n = width / kGroupRows * kVectors - first;
    uint4        *stage = (uint4 *)m->rows + first;
    for (int i = threadIdx.x; i < n * nib_wide_stages(width); i += blockDim.x)
        stage[i / n * (width / kGroupRows * kVectors) + i % n] = make_uint4(0, 0, 0, 0);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* few: groups of few rows, of whose work decoding weights is the most: two blocks a multiprocessor have the warps. */
template <int type, bool narrow, bool few>
static __global__ void __launch_bounds__(few ? kFewThreads : kWideThreads, few ? 2 : 1)
    wide_experts(const __grid_constant__ struct nib_wide_experts a)
{
    nib_grid_release();
    extern __shared__ __align__(128) uint8_t memory[];
    struct nib_wide_experts_memory<few> *m = (struct nib_wide_experts_memory<few> *)memory;
    nib_grid_wait();
    struct nib_wide_group g = nib_wide_group_of(a.groups, a.first_group + (int32_t)blockIdx.y);
    /* Both blocks of a pair stay, or neither does. */
    if (g.none || nib_wide_product_count(a, g) <= 0)
        return;
    if (threadIdx.x == 0)
        m->group = g;
    int width = nib_wide_width(g.count, narrow, few);
    bool fp8 = a.hidden[0] && a.exponent;
    nib_wide_clear(g.count, width, &m->products);
    for (int i = threadIdx.x; fp8 && i < width; i += blockDim.x) {
        int32_t row = g.row + min(i, g.count - 1), pair = g.shared ? 0 : a.pair[row];
        m->exponent[i] = a.exponent[g.shared ? row : pair / a.top_k];
        m->weight[i] = a.weight && !g.shared ? a.weight[pair] : 1.0f;
    }
    nib_wide_init(&m->products);
    if (threadIdx.x >= kWideConsumers) {
        if (!few)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        int32_t n_blocks = a.w[g.shared][0].n_in / kBlockCols, n_groups = (g.count + kGroupRows - 1) / kGroupRows;
        if (threadIdx.x == kWideConsumers)
            nib_wide_feed(a.image[g.shared] + (int64_t)g.place * n_blocks * kGroupHalves, n_groups * kGroupHalves,
                          n_groups, n_blocks, nib_wide_product_count(a, g), width, &m->products);
        __syncwarp();
        nib_cluster_sync();
        if (fp8)
            nib_cluster_sync();
        return;
    }
    if constexpr (few) {
        if (!narrow || width == kFewRows)
            nib_wide_experts_group<type, kFewRows, few>(a, m);
        else
            nib_wide_experts_group<type, narrow ? 32 : kFewRows, few>(a, m);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (!narrow || width == 256)
            nib_wide_experts_group<type, 256, few>(a, m);
        else if (width == 224)
            nib_wide_experts_group<type, narrow ? 224 : 256, few>(a, m);
        else if (width == 192)
            nib_wide_experts_group<type, narrow ? 192 : 256, few>(a, m);
        else if (width == 128)
            nib_wide_experts_group<type, narrow ? 128 : 256, few>(a, m);
        else if (width == 64)
            nib_wide_experts_group<type, narrow ? 64 : 256, few>(a, m);
        else
            nib_wide_experts_group<type, narrow ? 32 : 256, few>(a, m);
    }
}

template <int type, bool narrow, bool few>
static void nib_wide_experts_launch_as(struct nib_stream *s, const struct nib_wide_experts *a, unsigned n_groups)
{
    int32_t outs = max(a->w[0][0].n_out, a->w[1][0].n_out), each = nib_wide_outs(*a), n = (outs + each - 1) / each;
    int32_t pair = n % 2 == 0 && (!few || (a->hidden[0] && a->exponent)) ? 2 : 1, most = pair * a->products;
    dim3    grid((unsigned)((n + most - 1) / most * pair), n_groups);
    int     bytes = (int)sizeof(struct nib_wide_experts_memory<few>) - (few ? (kWideHalves - kFewHalves) * 2 : 0);
    cudaFuncSetAttribute(wide_experts<type, narrow, few>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    nib_launch_cluster(s, (unsigned)pair, wide_experts<type, narrow, few>, grid, few ? kFewThreads : kWideThreads,
                       (size_t)bytes, *a);
}

template <int type, bool narrow>
static void nib_wide_experts_launch(struct nib_stream *s, const struct nib_wide_experts *a, unsigned n_groups)
{
    if (a->groups.most_rows <= kFewRows)
        nib_wide_experts_launch_as<type, narrow, true>(s, a, n_groups);
    else
        nib_wide_experts_launch_as<type, narrow, false>(s, a, n_groups);
}

#endif
