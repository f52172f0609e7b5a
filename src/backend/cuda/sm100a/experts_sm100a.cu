/* The products of experts on tcgen05, weights on the 128 lanes and up to 96 (or 16) of a group's rows as columns, so
 * that an expert with one row costs little more than its weights. Two kernels a mixture:
 *
 *   in   both first products (w1 and w3) of the same rows into two accumulators, SwiGLU with clamps of their sums, and
 *        rows again for the second product
 *   out  the second product and the weighted sum of each row's experts
 *
 * FP8 and MXFP4 weights (mx_*) differ in the copies' maps and the instruction's type alone: a row of a stage is 128 bytes.
 *
 * Roles of warps as in linear_sm100a.cu: warp 4 loads stages, warp 5 multiplies, warps 0-3 read finished tiles. A tile
 * is a group of rows (listed on the device) by 128 outputs. What needs more than a tile comes last: a row's scale needs
 * the largest of all its values, a weighted sum all of its experts. So results go to memory (L2, in effect), and once
 * all tiles of the grid are done every block takes its share of rows, a warp a row. That waits for blocks which wait
 * for none: it needs all blocks of the grid on the card at once, at most one an SM.
 *
 * The order of sums does not depend on the number of rows, so neither do bits; both sizes of columns give the same. */
#include "backend/cuda/device/factors.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/nvfp4_rows.cuh"
#include "backend/cuda/device/ptx.cuh"
#include "backend/cuda/device/swiglu.cuh"
#include "backend/cuda/device/tcgen05.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kLanes = 128; /* outputs of a tile */
constexpr int kRowBytes = 128; /* of k in a stage */
constexpr int kSteps = 4, kAtom = 512;
constexpr int kEpilogueThreads = 128, kThreads = 192, kWarps = kThreads / 32;
constexpr int kTmemColumns = 512, kSharedMax = 232448;
constexpr int kChunk = 16; /* columns read at once */

/* PARTS: 2 for w1 and w3, 1 for w2. Scales as in linear_sm100a.cu: an atom a product of NVFP4, one for all four
 * otherwise. Rows' scales have a band of 128 a group. */
template <bool NVFP4, int PARTS, int COLUMNS, int STAGES> struct shape {
    static constexpr int kAtoms = NVFP4 ? kSteps : 1, kBandBytes = kAtoms * kAtom;
    static constexpr int kW = 0, kX = PARTS * kLanes * kRowBytes, kWScales = kX + COLUMNS * kRowBytes,
                         kXScales = kWScales + PARTS * kBandBytes;
    static constexpr int kBytes = kXScales + kBandBytes, kStage = (kBytes + 1023) / 1024 * 1024;
    static constexpr int kScaleColumns = kAtoms * 4 * (PARTS + 1), kScales = 2 * PARTS * COLUMNS;
    static_assert(COLUMNS % kChunk == 0 && COLUMNS <= kLanes, "whole chunks, and one atom's rows");
    static_assert(kX % 1024 == 0 && kWScales % 1024 == 0, "tiles begin where the swizzle does");
    static_assert(kScales + 2 * kScaleColumns <= kTmemColumns, "two accumulators and two sets of scales");
    static_assert(STAGES * kStage + 1024 + 8192 <= kSharedMax, "stages, alignment and static memory");
};

struct barriers {
    uint32_t full, empty, done, free; /* as in linear_sm100a.cu */
};

struct tile {
    struct nib_blackwell_group group;
    int32_t                    index, band; /* of the group; of 128 outputs */
};

/* Groups vary fastest: blocks that run together share an expert's weights. */
NIB_DEVICE struct tile tile_of(const struct nib_sm100a_experts_args &a, int32_t n_groups, int32_t i)
{
    return {a.groups[i % n_groups], i % n_groups, i / n_groups};
}

/* ---- Loading ---- */

template <bool NVFP4, int PARTS, int COLUMNS, int STAGES>
NIB_DEVICE void load_tiles(const struct nib_sm100a_experts_args &a, int32_t n_groups, int32_t n_tiles, uint32_t memory,
                           const struct barriers &bar)
{
    using S = shape<NVFP4, PARTS, COLUMNS, STAGES>;
    int32_t used = 0;
    for (int32_t i = (int32_t)blockIdx.x; i < n_tiles; i += (int32_t)gridDim.x) {
        struct tile t = tile_of(a, n_groups, i);
        for (int32_t k = 0; k < a.n_k_tiles; k++, used++) {
            uint32_t stage = (uint32_t)used % STAGES, to = memory + stage * S::kStage, full = bar.full + 8 * stage;
            nib_mbar_wait(bar.empty + 8 * stage, ((uint32_t)used / STAGES & 1) ^ 1);
            nib_mbar_expect(full, S::kBytes);
            for (int p = 0; p < PARTS; p++) {
                nib_tensor_load(to + S::kW + p * kLanes * kRowBytes, &a.w[p], k * kRowBytes,
                                t.group.expert * a.n_out + t.band * kLanes, full);
                nib_tensor_load(to + S::kWScales + p * S::kBandBytes, &a.w_scales[p], k * (S::kBandBytes / 8),
                                t.group.expert * a.n_bands + t.band, full);
            }
            nib_tensor_load(to + S::kX, &a.x, k * kRowBytes, t.group.row, full);
            nib_tensor_load(to + S::kXScales, &a.x_scales, k * (S::kBandBytes / 8), t.index, full);
        }
    }
}

/* ---- Products ---- */

/* Columns of a product: a group's rows, rounded up to what is read at once. */
NIB_DEVICE int32_t columns_of(int32_t n_rows)
{
    return (n_rows + kChunk - 1) / kChunk * kChunk;
}

template <bool NVFP4, int PARTS, int COLUMNS, int STAGES>
NIB_DEVICE void multiply_tiles(const struct nib_sm100a_experts_args &a, int32_t n_groups, int32_t n_tiles,
                               uint32_t memory, const struct barriers &bar, uint32_t tmem)
{
    using S = shape<NVFP4, PARTS, COLUMNS, STAGES>;
    int32_t used = 0, n = 0;
    for (int32_t i = (int32_t)blockIdx.x; i < n_tiles; i += (int32_t)gridDim.x, n++) {
        struct tile t = tile_of(a, n_groups, i);
        int         columns = columns_of(t.group.n_rows);
        uint32_t    acc = (uint32_t)n % 2, d = tmem + acc * PARTS * COLUMNS;
        nib_mbar_wait(bar.free + 8 * acc, ((uint32_t)n / 2 & 1) ^ 1);
        nib_tcgen05_after_sync();
        for (int32_t k = 0; k < a.n_k_tiles; k++, used++) {
            uint32_t stage = (uint32_t)used % STAGES, from = memory + stage * S::kStage;
            uint32_t x_scales = tmem + S::kScales + (uint32_t)used % 2 * S::kScaleColumns,
                     w_scales = x_scales + S::kAtoms * 4;
            if (used >= 2) /* the products that read this set of scales */
                nib_mbar_wait(bar.empty + 8 * ((uint32_t)(used - 2) % STAGES), (uint32_t)(used - 2) / STAGES & 1);
            nib_mbar_wait(bar.full + 8 * stage, (uint32_t)used / STAGES & 1);
            nib_tcgen05_after_sync();
            for (uint32_t j = 0; j < S::kAtoms; j++) {
                nib_tmem_copy_scales<1>(x_scales + 4 * j, nib_matrix_scales(from + S::kXScales + j * kAtom));
                for (uint32_t p = 0; p < PARTS; p++)
                    nib_tmem_copy_scales<1>(w_scales + 4 * (PARTS * j + p),
                                            nib_matrix_scales(from + S::kWScales + p * S::kBandBytes + j * kAtom));
            }
            for (uint32_t j = 0; j < kSteps; j++) { /* 32 bytes of k are 2 in a descriptor */
                uint64_t x = nib_matrix_sw128(from + S::kX) + 2 * j;
                bool     more = (k | (int32_t)j) != 0;
                for (uint32_t p = 0; p < PARTS; p++) {
                    uint64_t w = nib_matrix_sw128(from + S::kW + p * kLanes * kRowBytes) + 2 * j;
                    if (NVFP4)
                        nib_mma_nvfp4<1>(d + p * COLUMNS, w, x, nib_instruction_nvfp4(kLanes, columns),
                                         w_scales + 4 * (PARTS * j + p), x_scales + 4 * j, more);
                    else
                        nib_mma_mx<1>(d + p * COLUMNS, w, x, nib_instruction_mx(kLanes, columns, a.w_type, 0, j),
                                      w_scales + 4 * p, x_scales, more);
                }
            }
            nib_tcgen05_commit<1>(bar.empty + 8 * stage);
        }
        nib_tcgen05_commit<1>(bar.done + 8 * acc);
    }
}

/* ---- Tiles ---- */

NIB_DEVICE void epilogue_sync(void)
{
    asm volatile("bar.sync 1, 128;" ::: "memory");
}

/* What multiplies the sums of a column: row scale and alpha of each part as two factors (device/factors.cuh), and the
 * routing weight. */
struct column {
    float2 factors[2];
    float  weight;
};

template <int PARTS>
NIB_DEVICE void column_of(const struct nib_sm100a_experts_args &a, const struct nib_blackwell_group &g, int i,
                          struct column *c)
{
    float scale = a.row_scale ? a.row_scale[g.row + i] : 1.0f;
    for (int p = 0; p < PARTS; p++)
        c->factors[p] = nib_factors(scale, a.alphas[p] ? a.alphas[p][g.expert] : a.alpha[p]);
    c->weight = a.weight ? a.weight[a.pair[g.row + i]] : 1.0f;
}

template <int PARTS, int COLUMNS>
NIB_DEVICE void write_tiles(const struct nib_sm100a_experts_args &a, int32_t n_groups, int32_t n_tiles,
                            const struct barriers &bar, uint32_t tmem, uint32_t warp, uint32_t lane,
                            struct column (*columns)[COLUMNS])
{
    int32_t n = 0;
    for (int32_t i = (int32_t)blockIdx.x; i < n_tiles; i += (int32_t)gridDim.x, n++) {
        struct tile    t = tile_of(a, n_groups, i);
        uint32_t       acc = (uint32_t)n % 2, from = tmem + acc * PARTS * COLUMNS + (warp * 32 << 16);
        int32_t        out = t.band * kLanes + (int32_t)(warp * 32 + lane), n_columns = columns_of(t.group.n_rows);
        struct column *column = columns[acc];
        if (threadIdx.x < (uint32_t)t.group.n_rows)
            column_of<PARTS>(a, t.group, (int)threadIdx.x, &column[threadIdx.x]);
        epilogue_sync(); /* columns are there; all are done with those of two tiles ago */
        nib_mbar_wait(bar.done + 8 * acc, (uint32_t)n / 2 & 1);
        nib_tcgen05_after_sync();
        for (int c = 0; c < n_columns; c += kChunk) {
            uint32_t r[2][kChunk];
            for (int p = 0; p < PARTS; p++)
                nib_tmem_load16(from + p * COLUMNS + c, r[p]);
            for (int p = 0; p < PARTS; p++)
                nib_tmem_wait_load16(r[p]);
            if (c + kChunk == n_columns) { /* all read: the accumulator may be filled while this is written */
                nib_tcgen05_before_sync();
                __syncwarp();
                if (lane == 0)
                    nib_mbar_arrive(bar.free + 8 * acc);
            }
#pragma unroll
            for (int j = 0; j < kChunk; j++) {
                if (c + j >= t.group.n_rows)
                    break;
                struct column s = column[c + j];
                int64_t       row = t.group.row + c + j;
                float         v = __uint_as_float(r[0][j]) * s.factors[0].x * s.factors[0].y;
                if (PARTS == 2) {
                    float up = __uint_as_float(r[1][j]) * s.factors[1].x * s.factors[1].y;
                    v = nib_swiglu(v, up, a.limit) * s.weight;
                    uint32_t most = nib_warp_max_u32(out < a.n_out ? __float_as_uint(v) & 0x7fffffffu : 0);
                    if (lane == 0)
                        atomicMax(&a.most[row], most);
                }
                if (out < a.n_out)
                    a.y[row * a.n_out + out] = v;
            }
            __syncwarp();
        }
        __threadfence();
        epilogue_sync();
        if (threadIdx.x == 0)
            atomicAdd(a.n_done, 1);
    }
}

/* ---- What comes last ---- */

/* Until all tiles of the grid are written. By the whole block; one warp asks, and pauses between questions for as long
 * as an answer takes to come anyway, so that the blocks which still count their tiles are not kept from that word. */
NIB_DEVICE void wait_for_all(const struct nib_sm100a_experts_args &a, int32_t n_tiles, uint32_t warp)
{
    int32_t n = 0;
    while (warp == 0) {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(n) : "l"(a.n_done) : "memory");
        if (n >= n_tiles)
            break;
        __nanosleep(100);
    }
    __syncthreads();
}

/* Four values that other blocks have written: past L1. */
NIB_DEVICE float4 load4(const float *p)
{
    return __ldcg((const float4 *)p);
}

/* Row `row` of a.y, n_out values (a multiple of 32), to NVFP4 as nvfp4_rows.cuh makes it. By a warp. */
NIB_DEVICE void quantise_nvfp4(const struct nib_sm100a_experts_args &a, int64_t row, int lane)
{
    float    amax = __uint_as_float(__ldcg(&a.most[row]));
    bool     finite = nib_is_finite(amax);
    float    g = finite ? amax / 2688.0f : __uint_as_float(0x7fc00000u);
    int64_t  s_row = a.rows.scale_row[row];
    int32_t  n_blocks = a.n_out / 16, n_padded = (a.n_out + NIB_SM100A_K_TILE - 1) / NIB_SM100A_K_TILE * 16;
    uint8_t *scales = a.rows.scales + s_row / 128 * ((int64_t)n_padded * 128) + s_row % 32 * 16 + s_row % 128 / 32 * 4;
    if (lane == 0)
        a.rows.row_scale[row] = g;
    for (int32_t first = 0; first < n_padded; first += 32) {
        int32_t  b = first + lane;
        uint32_t scale = 0;
        if (b < n_blocks) {
            float x[16];
            uint2 codes;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float4 v = load4(a.y + row * a.n_out + b * 16 + 4 * i);
                x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
            }
            scale = nib_nvfp4_block(x, finite ? g : 0.0f, &codes);
            *(uint2 *)(a.rows.codes + row * a.rows.codes_stride + b * 8) = codes;
        }
        uint32_t word = scale << 8 * (b % 4);
        word |= __shfl_xor_sync(~0u, word, 1);
        word |= __shfl_xor_sync(~0u, word, 2);
        if (b % 4 == 0 && b < n_padded)
            *(uint32_t *)(scales + b / 4 * kAtom) = word;
    }
}

/* The same to FP8: a scale for 128 values, which serves the four products of a stage. */
NIB_DEVICE void quantise_fp8(const struct nib_sm100a_experts_args &a, int64_t row, int lane)
{
    int64_t  s_row = a.rows.scale_row[row];
    int32_t  n_words = (a.n_out + NIB_SM100A_MX_K_TILE - 1) / NIB_SM100A_MX_K_TILE;
    uint8_t *scales = a.rows.scales + s_row / 128 * ((int64_t)n_words * kAtom) + s_row % 32 * 16 + s_row % 128 / 32 * 4;
    for (int32_t b = 0; b < n_words; b++) {
        int32_t  at = b * 128 + lane * 4;
        float4   v = at < a.n_out ? load4(a.y + row * a.n_out + at) : make_float4(0, 0, 0, 0);
        uint32_t most = max(max(__float_as_uint(v.x) & 0x7fffffffu, __float_as_uint(v.y) & 0x7fffffffu),
                            max(__float_as_uint(v.z) & 0x7fffffffu, __float_as_uint(v.w) & 0x7fffffffu));
        float    amax = __uint_as_float(nib_warp_max_u32(most));
        bool     finite = nib_is_finite(amax);
        uint32_t code = finite ? nib_e8m0_ceil_code((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f)) : 255u;
        float    scale = nib_e8m0_value(code);
        uint32_t codes = 0x7f7f7f7fu;
        if (finite)
            codes = nib_e4m3_code(v.x / scale) | nib_e4m3_code(v.y / scale) << 8 | nib_e4m3_code(v.z / scale) << 16 |
                    nib_e4m3_code(v.w / scale) << 24;
        if (at < a.n_out)
            *(uint32_t *)(a.rows.codes + row * a.rows.codes_stride + at) = codes;
        if (lane == 0)
            *(uint32_t *)(scales + b * kAtom) = code * 0x01010101u;
    }
}

/* The weighted sum of row t's experts, at most 32, in ascending order, the shared one last. By a warp. */
NIB_DEVICE void sum_experts(const struct nib_blackwell_combine_args &a, int64_t t, int lane)
{
    int32_t expert = INT32_MAX, place = 0, rank = 0;
    float   weight = 1.0f;
    if (lane < a.top_k) {
        expert = a.chosen[t * a.top_k + lane];
        place = a.place[t * a.top_k + lane];
        weight = a.weight ? a.weight[t * a.top_k + lane] : 1.0f;
    }
    for (int j = 0; j < a.top_k; j++) { /* a hash table may name an expert twice */
        int32_t other = __shfl_sync(~0u, expert, j);
        rank += other < expert || (other == expert && j < lane);
    }
    for (int32_t first = 0; first < a.dim; first += 32) {
        int32_t i = first + lane;
        float   sum = 0;
        for (int r = 0; r < a.top_k; r++) {
            int     from = __ffs((int)__ballot_sync(~0u, lane < a.top_k && rank == r)) - 1;
            int64_t row = __shfl_sync(~0u, place, from);
            float   w = __shfl_sync(~0u, weight, from);
            if (i < a.dim)
                sum += w * __ldcg(a.expert_y + row * a.expert_stride + i);
        }
        if (i >= a.dim)
            continue;
        if (a.shared)
            sum += a.shared[t * a.shared_stride + i];
        nib_mat_set({a.y, a.y_f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, 0, a.dim, a.y_stride}, t, i, sum);
    }
}

template <bool NVFP4, int PARTS>
NIB_DEVICE void finish(const struct nib_sm100a_experts_args &a, int32_t n_tiles, uint32_t warp, int lane)
{
    wait_for_all(a, n_tiles, warp);
    int32_t n = PARTS == 2 ? a.n_pairs : a.n_rows;
    for (int64_t row = blockIdx.x * kWarps + warp; row < n; row += gridDim.x * kWarps) {
        if (PARTS == 1)
            sum_experts(a.sum, row, lane);
        else if (NVFP4)
            quantise_nvfp4(a, row, lane);
        else
            quantise_fp8(a, row, lane);
    }
}

/* ---- The kernels ---- */

template <bool NVFP4, int PARTS, int COLUMNS, int STAGES>
NIB_DEVICE void experts(const struct nib_sm100a_experts_args &a)
{
    extern __shared__ uint8_t      dynamic[];
    __shared__ __align__(8) uint64_t full[STAGES], empty[STAGES], done[2], free[2];
    __shared__ struct column       columns[2][COLUMNS];
    __shared__ uint32_t            tmem_address;
    nib_grid_release();
    uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    uint32_t memory = (nib_shared_address(dynamic) + 1023) & ~1023u;
    struct barriers bar = {nib_shared_address(full), nib_shared_address(empty), nib_shared_address(done),
                           nib_shared_address(free)};
    if (warp == 4 && nib_elect()) {
        for (uint32_t s = 0; s < STAGES; s++) {
            nib_mbar_init(bar.full + 8 * s, 1);
            nib_mbar_init(bar.empty + 8 * s, 1);
        }
        for (uint32_t s = 0; s < 2; s++) {
            nib_mbar_init(bar.done + 8 * s, 1);
            nib_mbar_init(bar.free + 8 * s, kEpilogueThreads / 32);
        }
        nib_mbar_init_fence();
    }
    if (warp == 5)
        nib_tmem_alloc<1>(nib_shared_address(&tmem_address), kTmemColumns);
    __syncwarp();
    nib_tcgen05_before_sync();
    __syncthreads();
    nib_tcgen05_after_sync();
    uint32_t tmem = tmem_address;
    nib_grid_wait();
    int32_t n_groups = *a.n_groups, n_tiles = n_groups * a.n_bands;

    if (warp == 4) {
        if (nib_elect())
            load_tiles<NVFP4, PARTS, COLUMNS, STAGES>(a, n_groups, n_tiles, memory, bar);
    } else if (warp == 5) {
        if (nib_elect())
            multiply_tiles<NVFP4, PARTS, COLUMNS, STAGES>(a, n_groups, n_tiles, memory, bar, tmem);
    } else {
        write_tiles<PARTS, COLUMNS>(a, n_groups, n_tiles, bar, tmem, warp, lane, columns);
    }
    __syncwarp(); /* one thread worked in warps 4 and 5; what follows is for whole warps */
    nib_tcgen05_before_sync();
    __syncthreads();
    nib_tcgen05_after_sync();
    if (warp == 5)
        nib_tmem_dealloc<1>(tmem, kTmemColumns);
    finish<NVFP4, PARTS>(a, n_tiles, warp, (int)lane);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_experts_in_96(const __grid_constant__ struct nib_sm100a_experts_args a)
{
    experts<true, 2, 96, 4>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_experts_in_16(const __grid_constant__ struct nib_sm100a_experts_args a)
{
    experts<true, 2, 16, 5>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_experts_out_96(const __grid_constant__ struct nib_sm100a_experts_args a)
{
    experts<true, 1, 96, 6>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_experts_out_16(const __grid_constant__ struct nib_sm100a_experts_args a)
{
    experts<true, 1, 16, 8>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_mx_in_96(const __grid_constant__ struct nib_sm100a_experts_args a)
{
    experts<false, 2, 96, 4>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_mx_in_16(const __grid_constant__ struct nib_sm100a_experts_args a)
{
    experts<false, 2, 16, 5>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_mx_out_96(const __grid_constant__ struct nib_sm100a_experts_args a)
{
    experts<false, 1, 96, 6>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_mx_out_16(const __grid_constant__ struct nib_sm100a_experts_args a)
{
    experts<false, 1, 16, 8>(a);
}
