/* The core of products with many rows on Hopper: a warpgroup multiplies 64 outputs with N rows, two warpgroups a
 * block.
 *
 * Weights are the A operand: their packed tiles (cuda.h) are already fragments, so a warp decodes its 16 outputs'
 * codes in registers and never writes them back. Rows are the B operand: an image of them holds bf16 in the tiles'
 * order of columns, for a block of 64 columns 8 rows a kilobyte, so that a stage is one bulk copy. A third
 * warpgroup, which gives its registers to the two, keeps stages on their way; two blocks that share their rows get
 * them by one read of the L2. A warpgroup decodes its next operands while its products run.
 *
 * Sums run over blocks of columns in ascending order, whatever the number of rows. */
#ifndef NIB_CUDA_WIDE_CUH
#define NIB_CUDA_WIDE_CUH

#include "backend/cuda/device/products.cuh"
#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/sm90a/wgmma.cuh"

constexpr int kWideConsumers = 256, kWideThreads = kWideConsumers + 128, kWideRows = 256;
constexpr int kGroupRows = 8, kGroupHalves = kGroupRows * kBlockCols;
constexpr int kWideAhead = 4; /* steps of weights on their way to the L2 */
constexpr int kWideHalves = 6 * kWideRows * kBlockCols, kWideStagesMost = 12;
/* Where two blocks share a multiprocessor: one warp fetches, and stages are fewer. */
constexpr int kFewRows = 64, kFewThreads = kWideConsumers + 32, kFewStages = 8;
constexpr int kFewHalves = kFewStages * kFewRows * kBlockCols;

struct nib_wide_memory {
    uint64_t              full[kWideStagesMost], empty[kWideStagesMost];
    alignas(128) uint16_t rows[kWideHalves]; /* stages of N rows; last: kFewHalves where stages are fewer */
};

/* Stages of n_rows rows, a multiple of 32: as many as fit. */
static __host__ __device__ constexpr int nib_wide_stages(int n_rows)
{
    return n_rows <= kFewRows ? kFewStages : kWideHalves / (n_rows * kBlockCols);
}

/* All threads of both blocks of a pair. */
NIB_DEVICE void nib_wide_init(struct nib_wide_memory *m)
{
    if (threadIdx.x < kWideStagesMost) {
        nib_barrier_init(&m->full[threadIdx.x], 1);
        nib_barrier_init(&m->empty[threadIdx.x], kWideConsumers / 32 * nib_cluster_size());
        nib_barrier_init_done();
    }
    nib_cluster_sync();
}

/* One thread: blocks of columns of n_groups * 8 rows, block_halves from one to the next, into stages of n_rows rows;
 * all of them n_times, for as many products. Each block of a pair asks for its part of them, which arrives at both,
 * once both have room. */
NIB_DEVICE void nib_wide_feed(const uint16_t *from, int64_t block_halves, int32_t n_groups, int32_t n_blocks,
                              int32_t n_times, int n_rows, struct nib_wide_memory *m)
{
    uint32_t n = nib_cluster_size(), rank = nib_cluster_rank(), empty = 1;
    int32_t  first = n_groups * (int32_t)rank / (int32_t)n, count = n_groups * (int32_t)(rank + 1) / (int32_t)n - first;
    int      at = 0, n_stages = nib_wide_stages(n_rows);
    for (int32_t i = 0, block = 0; i < n_times * n_blocks; i++) {
        nib_barrier_wait(&m->empty[at], empty); /* at first of the phase before the first, which is over */
        nib_barrier_expect(&m->full[at], (uint32_t)n_groups * kGroupHalves * 2);
        if (count > 0)
            nib_bulk_copy_to_all(m->rows + at * n_rows * kBlockCols + first * kGroupHalves,
                                 from + block * block_halves + first * kGroupHalves, (uint32_t)count * kGroupHalves * 2,
                                 &m->full[at], (1u << n) - 1);
        block = block + 1 < n_blocks ? block + 1 : 0;
        at = at + 1 < n_stages ? at + 1 : 0;
        empty ^= at == 0;
    }
}

/* The four operands of block i of a step. */
template <int type, int i> NIB_DEVICE void nib_wide_decode(const struct nib_tile_step<type> &s, uint32_t operand[4][4])
{
    struct nib_tile_scales scale = nib_tile_step_scales<type>(s, i);
    nib_tile_step_operand<type, i, 0>(s, scale, operand[0]);
    nib_tile_step_operand<type, i, 1>(s, scale, operand[1]);
    nib_tile_step_operand<type, i, 2>(s, scale, operand[2]);
    nib_tile_step_operand<type, i, 3>(s, scale, operand[3]);
}

/* Operands against the rows of a block, counted from the first in the first stage: begun, and waited for. */
template <int N>
NIB_DEVICE void nib_wide_begin(const uint32_t operand[4][4], int32_t block, struct nib_wide_memory *m,
                               float (&acc)[N / 2])
{
    constexpr int n_stages = nib_wide_stages(N);
    int32_t       at = block % n_stages, round = block / n_stages;
    nib_barrier_wait(&m->full[at], (uint32_t)round & 1u);
    uint64_t b = nib_wgmma_descriptor(nib_shared_address(m->rows + at * N * kBlockCols), 128, kGroupHalves * 2);
    nib_wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++)
        nib_wgmma_bf16(acc, operand[j], b + (uint64_t)(j * 16)); /* 256 bytes, in units of 16 */
    nib_wgmma_commit();
}

template <int N> NIB_DEVICE void nib_wide_end(int32_t block, struct nib_wide_memory *m)
{
    nib_wgmma_wait();
    if (threadIdx.x % 32 < nib_cluster_size())
        nib_barrier_arrive_at(&m->empty[block % nib_wide_stages(N)], threadIdx.x % 32);
}

/* A warp's 16 outputs of its warpgroup's 64. The next block's operands are decoded while one is multiplied.
 * first: blocks that went through the stages before, in other products. */
template <int type, int N>
NIB_DEVICE void nib_wide_multiply(const struct nib_tile &t, int32_t first, int32_t n_blocks, struct nib_wide_memory *m,
                                  float (&acc)[N / 2])
{
    constexpr int              n = nib_tile_step<type>::kBlocks;
    struct nib_tile_step<type> now, next;
    uint32_t                   even[4][4], odd[4][4];
    nib_tile_step_load<type>(t, 0, n_blocks, now);
    nib_wide_decode<type, 0>(now, even);
#pragma unroll 1
    for (int32_t block = 0; block < n_blocks; block += n) {
        if constexpr (type == NIB_WEIGHT_FP8 || type == NIB_WEIGHT_BF16) /* of four-bit codes enough are on their way */
            nib_steps_prefetch<type>(t, block + kWideAhead * n, n_blocks, 1);
        nib_tile_step_load<type>(t, block + n, n_blocks, next);
        if (n == 1) {
            nib_wide_begin<N>(even, first + block, m, acc);
            nib_wide_decode<type, 0>(next, odd);
            nib_wide_end<N>(first + block, m);
            memcpy(even, odd, sizeof even);
            continue;
        }
        nib_wide_begin<N>(even, first + block, m, acc);
        nib_wide_decode<type, 1 % n>(now, odd);
        nib_wide_end<N>(first + block, m);
        if (n == 4 && block + 1 < n_blocks) {
            nib_wide_begin<N>(odd, first + block + 1, m, acc);
            nib_wide_decode<type, 2 % n>(now, even);
            nib_wide_end<N>(first + block + 1, m);
        }
        if (n == 4 && block + 2 < n_blocks) {
            nib_wide_begin<N>(even, first + block + 2, m, acc);
            nib_wide_decode<type, 3 % n>(now, odd);
            nib_wide_end<N>(first + block + 2, m);
        }
        if (block + n <= n_blocks) {
            nib_wide_begin<N>(odd, first + block + n - 1, m, acc);
            nib_wide_decode<type, 0>(next, even);
            nib_wide_end<N>(first + block + n - 1, m);
        }
        now = next;
    }
}

/* Block i of a step, decoded where the last one's operands were. */
template <int type, int N, int i>
NIB_DEVICE void nib_wide_block(const struct nib_tile_step<type> &s, int32_t block, struct nib_wide_memory *m,
                               float (&acc)[N / 2])
{
    uint32_t operand[4][4];
    nib_wide_decode<type, i>(s, operand);
    nib_wide_begin<N>(operand, block, m, acc);
    nib_wide_end<N>(block, m);
}

/* The same with fewer registers, where there are other warps to decode while one's products run. */
template <int type, int N>
NIB_DEVICE void nib_wide_multiply_few(const struct nib_tile &t, int32_t first, int32_t n_blocks,
                                      struct nib_wide_memory *m, float (&acc)[N / 2])
{
    constexpr int              n = nib_tile_step<type>::kBlocks;
    struct nib_tile_step<type> now, next;
    nib_tile_step_load<type>(t, 0, n_blocks, now);
#pragma unroll 1
    for (int32_t block = 0; block < n_blocks; block += n) {
        nib_tile_step_load<type>(t, block + n, n_blocks, next);
        nib_wide_block<type, N, 0>(now, first + block, m, acc);
        if (n > 1 && block + 1 < n_blocks)
            nib_wide_block<type, N, 1 % n>(now, first + block + 1, m, acc);
        if (n > 2 && block + 2 < n_blocks)
            nib_wide_block<type, N, 2 % n>(now, first + block + 2, m, acc);
        if (n > 2 && block + 3 < n_blocks)
            nib_wide_block<type, N, 3 % n>(now, first + block + 3, m, acc);
        now = next;
    }
}

NIB_DEVICE void nib_wide_meet(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* threadIdx.x, read anew: what follows from it is not kept in registers while products run. */
NIB_DEVICE int nib_wide_thread(void)
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* ---- FP8 rows ---- */

NIB_DEVICE float nib_power_of_two(int32_t e) /* within a float's normal range */
{
    return __uint_as_float((uint32_t)(min(max(e, -126), 127) + 127) << 23);
}

/* Exponents of the largest scales of n rows; a warp a row. An image holds rows times 2^-exponent. NaN's scale (255) is
 * the largest, and what it stands for stays NaN. */
NIB_DEVICE void nib_wide_exponents(const struct nib_act &x, int32_t first, int32_t n, int32_t *exponent)
{
    int32_t row = (int32_t)(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
    if (row >= n)
        return;
    const uint8_t *scales = x.scales + ((int64_t)first + row) * x.scales_stride;
    uint32_t       most = 0;
    for (int32_t i = threadIdx.x % 32; i < (x.cols + 127) / 128; i += 32)
        most = max(most, (uint32_t)scales[i]);
    most = nib_warp_max_u32(most);
    if (threadIdx.x % 32 == 0)
        exponent[row] = (int32_t)most - 127;
}

/* A matrix's alpha in two: mantissa * 2^exponent. */
struct nib_wide_alpha {
    float   mantissa;
    int32_t exponent;
};

NIB_DEVICE struct nib_wide_alpha nib_wide_alpha_of(float alpha)
{
    int32_t e = nib_exponent_of(__float_as_uint(alpha) & 0x7fffffffu);
    return {scalbnf(alpha, -e), e};
}

/* What a row's sums are multiplied with, one after the other: alpha and the row's power of two, which may leave the
 * range of a float in opposite directions. */
struct nib_wide_factor {
    float first, second;
};

NIB_DEVICE struct nib_wide_factor nib_wide_factor_of(const struct nib_wide_alpha &alpha, int32_t row_exponent)
{
    int32_t all = alpha.exponent + row_exponent, half = min(max(all, -126), 127);
    return {alpha.mantissa * nib_power_of_two(half), nib_power_of_two(all - half)};
}

/* ---- The image ---- */

/* An e4m3 code times factor / 2^120: its exponent and mantissa in those of a float, small ones, too, are 2^-120 of
 * it. */
NIB_DEVICE float nib_wide_e4m3(uint32_t code, float factor)
{
    uint32_t magnitude = code & 0x7fu;
    uint32_t bits = magnitude == 0x7fu ? 0x7fc00000u : magnitude << 20;
    return __uint_as_float((code & 0x80u) << 24 | bits) * factor;
}

/* Columns of block `block` of row t as bf16 pairs: plain bf16 rows, or FP8 ones times 2^-e. */
template <bool fp8>
NIB_DEVICE void nib_wide_load(const struct nib_act &x, int64_t t, int32_t block, int32_t e, uint4 v[8])
{
    if (!fp8) {
        const uint4 *from = (const uint4 *)((const uint16_t *)x.plain.data + t * x.plain.stride + block * kBlockCols);
        for (int k = 0; k < 8; k++)
            v[k] = from[k];
        return;
    }
    const uint8_t *codes = x.codes + t * x.codes_stride + block * kBlockCols;
    int32_t        scale = x.scales[t * x.scales_stride + block / 2];
    float          factor = scale == 255 ? __uint_as_float(0x7fc00000u) : nib_power_of_two(scale - 127 - e + 120);
    uint32_t      *to = (uint32_t *)v;
#pragma unroll
    for (int k = 0; k < 16; k++) {
        uint32_t four = *(const uint32_t *)(codes + 4 * k);
        to[2 * k] = nib_pack_bf16x2(nib_wide_e4m3(four, factor), nib_wide_e4m3(four >> 8, factor));
        to[2 * k + 1] = nib_pack_bf16x2(nib_wide_e4m3(four >> 16, factor), nib_wide_e4m3(four >> 24, factor));
    }
}

/* 64 columns of a row, as bf16 pairs, to its place in an image's block. Of the 16 columns that product j of a block
 * takes, (2l, 2l+1) are columns 16l + 4j + (0, 1) and (2l+8, 2l+9) are 16l + 4j + (2, 3). */
NIB_DEVICE void nib_wide_put(uint16_t *block, int32_t row, const uint4 v[8])
{
    const uint32_t *word = (const uint32_t *)v;
    uint16_t       *to = block + row / kGroupRows * kGroupHalves + row % kGroupRows * 8;
#pragma unroll
    for (int i = 0; i < 8; i++)
        *(uint4 *)(to + i * kGroupRows * 8) = make_uint4(word[i], word[8 + i], word[16 + i], word[24 + i]);
}

#endif
