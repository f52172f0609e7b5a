/* NVFP4 rows times NVFP4 weights on tcgen05, and FP8 rows times FP8 or MXFP4 weights: persistent, one role a warp.
 *
 *   warp 4  loads stages of 128 bytes of k (256 values; 128 of FP8): codes of rows and weights (128-byte swizzle),
 *           their scales
 *   warp 5  copies scales to tensor memory, issues products, owns tensor memory
 *   warps 0-3  read finished tiles, multiply by the rows' scales and alpha, write y
 *
 * Two accumulators: while the epilogue reads one tile the products of the next fill the other. Scales have two sets of
 * columns, and a set is overwritten only when the products that read it are known to be done: the ISA does not order
 * copies behind products. With two CTAs a tile is 256 rows; each CTA holds its 128 rows and half of the weights, the
 * even one issues.
 *
 * Per stage and CTA of a pair (256 x 192 tile): 16 + 12 KiB of codes, 2 + 4 KiB of scales; 384 clocks of products at
 * the published rate. docs/kernels/sm100a.md has the arithmetic. */
#include "backend/cuda/device/factors.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/ptx.cuh"
#include "backend/cuda/device/tcgen05.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kRows = 128;              /* of a CTA: the lanes of tensor memory */
constexpr int kRowBytes = NIB_SM100A_K_TILE / 2;
constexpr int kSteps = 4; /* products in a stage: 32 bytes of k each */
constexpr int kAtom = 512;
constexpr int kEpilogueWarps = 4, kThreads = 192;
constexpr int kTmemColumns = 512;
constexpr int kSharedMax = 232448;
static_assert(kRowBytes == 128, "a row of a stage is the span of the swizzle");

/* An atom of scales serves one product of NVFP4 (four scales of 16 values a row), or all four of the others (one of 32
 * values each, chosen by the instruction). */
template <int FORMAT, int OUT, int CTAS, int STAGES> struct tile {
    static constexpr int kAtoms = FORMAT == NIB_SM100A_NVFP4 ? kSteps : 1, kBandBytes = kAtoms * kAtom;
    static constexpr int kOutOfCta = OUT / CTAS;
    /* Tiles that do not begin at multiples of 128 weights begin in the upper half of a band every other time. */
    static constexpr int kBands = (OUT + (OUT % 128 ? 64 : 0) + 127) / 128;
    static constexpr int kX = 0, kW = kRows * kRowBytes, kXScales = kW + kOutOfCta * kRowBytes,
                         kWScales = kXScales + kBandBytes;
    static constexpr int kBytes = kWScales + kBands * kBandBytes, kStage = (kBytes + 1023) / 1024 * 1024;
    static constexpr int kScaleColumns = kAtoms * 4 * (1 + kBands);
    static constexpr int kScales = 2 * OUT; /* first column behind the accumulators */
    static_assert(OUT % (8 * CTAS) == 0 && OUT <= 256 && OUT % 64 == 0, "n of one product; halves of bands");
    static_assert(kOutOfCta % 8 == 0, "every row of eight is whole");
    static_assert(kScales + 2 * kScaleColumns <= kTmemColumns, "two accumulators and two sets of scales");
    static_assert(STAGES * kStage + 1024 <= kSharedMax, "stages and alignment");
};

struct barriers {
    uint32_t full, empty, done, free; /* addresses of arrays: stages filled, emptied; accumulators finished, read */
};

struct place {
    int32_t row, out;       /* of a tile's first element */
    int32_t band;           /* of its rows' scales */
    int32_t end_row, expert; /* whose weights the rows multiply; 0 without groups */
};

/* With groups their number is known on the device only. */
static __device__ __forceinline__ int32_t row_tiles_of(const struct nib_sm100a_linear_args &a)
{
    return a.groups ? *a.n_groups : a.n_row_tiles;
}

/* Rows vary fastest: blocks that run together share weights. */
static __device__ __forceinline__ struct place place_of(const struct nib_sm100a_linear_args &a, int32_t n_row_tiles,
                                                        int32_t i, int rows, int out)
{
    struct place p = {i % n_row_tiles * rows, i / n_row_tiles * out, i % n_row_tiles * (rows / kRows), a.n_rows, 0};
    if (a.groups) {
        struct nib_blackwell_group g = a.groups[i % n_row_tiles];
        p.expert = g.expert;
        p.row = g.row;
        p.end_row = g.row + g.n_rows;
    }
    return p;
}

/* ---- Loading ---- */

template <int FORMAT, int OUT, int CTAS, int STAGES>
static __device__ __forceinline__ void load_tiles(const struct nib_sm100a_linear_args &a, uint32_t memory,
                                                  const struct barriers &bar, uint32_t rank)
{
    using T = tile<FORMAT, OUT, CTAS, STAGES>;
    int32_t n_row_tiles = row_tiles_of(a), n_tiles = n_row_tiles * a.n_out_tiles, step = (int32_t)gridDim.x / CTAS;
    int32_t used = 0;
    for (int32_t i = (int32_t)blockIdx.x / CTAS; i < n_tiles; i += step) {
        struct place at = place_of(a, n_row_tiles, i, kRows * CTAS, OUT);
        int32_t      w_row = at.expert * a.n_out + at.out, w_band = at.expert * a.n_bands + at.out / 128;
        for (int32_t k = 0; k < a.n_k_tiles; k++, used++) {
            uint32_t stage = (uint32_t)used % STAGES, to = memory + stage * T::kStage, full = bar.full + 8 * stage;
            nib_mbar_wait(bar.empty + 8 * stage, ((uint32_t)used / STAGES & 1) ^ 1);
            if (rank == 0)
                nib_mbar_expect(full, T::kBytes * CTAS);
            if (CTAS == 1) {
                nib_tensor_load(to + T::kX, &a.x, k * kRowBytes, at.row, full);
                nib_tensor_load(to + T::kW, &a.w, k * kRowBytes, w_row, full);
                nib_tensor_load(to + T::kXScales, &a.x_scales, k * (T::kBandBytes / 8), at.band, full);
                for (int b = 0; b < T::kBands; b++)
                    nib_tensor_load(to + T::kWScales + b * T::kBandBytes, &a.w_scales, k * (T::kBandBytes / 8),
                                    w_band + b, full);
            } else { /* both count at the even CTA, which issues the products */
                uint32_t there = nib_map_rank(full, 0);
                nib_tensor_load_pair(to + T::kX, &a.x, k * kRowBytes, at.row + (int32_t)rank * kRows, there);
                nib_tensor_load_pair(to + T::kW, &a.w, k * kRowBytes, w_row + (int32_t)rank * T::kOutOfCta, there);
                nib_tensor_load_pair(to + T::kXScales, &a.x_scales, k * (T::kBandBytes / 8), at.band + (int32_t)rank,
                                     there);
                for (int b = 0; b < T::kBands; b++)
                    nib_tensor_load_pair(to + T::kWScales + b * T::kBandBytes, &a.w_scales, k * (T::kBandBytes / 8),
                                         w_band + b, there);
            }
        }
    }
    /* Nothing may arrive at barriers of a CTA that has gone. */
    for (int32_t u = used > STAGES ? used - STAGES : 0; u < used; u++)
        nib_mbar_wait(bar.empty + 8 * ((uint32_t)u % STAGES), (uint32_t)u / STAGES & 1);
}

/* ---- Products ---- */

template <int FORMAT, int OUT, int CTAS, int STAGES>
static __device__ __forceinline__ void multiply_tiles(const struct nib_sm100a_linear_args &a, uint32_t memory,
                                                      const struct barriers &bar, uint32_t tmem)
{
    using T = tile<FORMAT, OUT, CTAS, STAGES>;

    int32_t n_row_tiles = row_tiles_of(a), n_tiles = n_row_tiles * a.n_out_tiles, step = (int32_t)gridDim.x / CTAS;
    int32_t used = 0, n = 0;
    for (int32_t i = (int32_t)blockIdx.x / CTAS; i < n_tiles; i += step, n++) {
        uint32_t acc = (uint32_t)n % 2, d = tmem + acc * OUT;
        uint32_t half = (uint32_t)(i / n_row_tiles * OUT) % 128 / 32; /* columns of the first band that come before */
        nib_mbar_wait_cluster(bar.free + 8 * acc, ((uint32_t)n / 2 & 1) ^ 1);
        nib_tcgen05_after_sync();
        for (int32_t k = 0; k < a.n_k_tiles; k++, used++) {
            uint32_t stage = (uint32_t)used % STAGES, from = memory + stage * T::kStage;
            uint32_t x_scales = tmem + T::kScales + (uint32_t)used % 2 * T::kScaleColumns,
                     w_scales = x_scales + T::kAtoms * 4;
            if (used >= 2) /* the products that read this set of scales */
                nib_mbar_wait(bar.empty + 8 * ((uint32_t)(used - 2) % STAGES), (uint32_t)(used - 2) / STAGES & 1);
            nib_mbar_wait_cluster(bar.full + 8 * stage, (uint32_t)used / STAGES & 1);
            nib_tcgen05_after_sync();
            for (uint32_t j = 0; j < T::kAtoms; j++) {
                nib_tmem_copy_scales<CTAS>(x_scales + 4 * j, nib_matrix_scales(from + T::kXScales + j * kAtom));
                for (uint32_t b = 0; b < T::kBands; b++)
                    nib_tmem_copy_scales<CTAS>(w_scales + 4 * (T::kBands * j + b),
                                               nib_matrix_scales(from + T::kWScales + b * T::kBandBytes + j * kAtom));
            }
            for (uint32_t j = 0; j < kSteps; j++) { /* 32 bytes of k are 2 in a descriptor */
                uint64_t x = nib_matrix_sw128(from + T::kX) + 2 * j, w = nib_matrix_sw128(from + T::kW) + 2 * j;
                bool     more = (k | (int32_t)j) != 0;
                if (FORMAT == NIB_SM100A_NVFP4)
                    nib_mma_nvfp4<CTAS>(d, x, w, nib_instruction_nvfp4(kRows * CTAS, OUT), x_scales + 4 * j,
                                        w_scales + 4 * T::kBands * j + half, more);
                else
                    nib_mma_mx<CTAS>(d, x, w,
                                     nib_instruction_mx(kRows * CTAS, OUT, 0, FORMAT == NIB_SM100A_MXFP4 ? 5 : 0, j),
                                     x_scales, w_scales + half, more);
            }
            nib_tcgen05_commit<CTAS>(bar.empty + 8 * stage);
        }
        nib_tcgen05_commit<CTAS>(bar.done + 8 * acc);
    }
}

/* ---- Epilogue ---- */

static __device__ __forceinline__ void store32(const struct nib_sm100a_linear_args &a, int64_t row, int32_t out,
                                               const uint32_t r[32], float2 f, bool wide)
{
#pragma unroll
    for (int c = 0; c < 32; c += 8) {
        float v[8];
        for (int j = 0; j < 8; j++)
            v[j] = __uint_as_float(r[c + j]) * f.x * f.y;
        int64_t at = row * a.y_stride + out + c;
        if (wide && out + c + 8 <= a.n_out) {
            if (a.y_f32) {
                ((float4 *)((float *)a.y + at))[0] = make_float4(v[0], v[1], v[2], v[3]);
                ((float4 *)((float *)a.y + at))[1] = make_float4(v[4], v[5], v[6], v[7]);
            } else {
                *(uint4 *)((uint16_t *)a.y + at) = make_uint4(nib_pack_bf16x2(v[0], v[1]), nib_pack_bf16x2(v[2], v[3]),
                                                              nib_pack_bf16x2(v[4], v[5]), nib_pack_bf16x2(v[6], v[7]));
            }
            continue;
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (out + c + j >= a.n_out)
                continue;
            if (a.y_f32)
                ((float *)a.y)[at + j] = v[j];
            else
                ((uint16_t *)a.y)[at + j] = nib_bf16_code(v[j]);
        }
    }
}

template <int OUT, int CTAS>
static __device__ __forceinline__ void write_tiles(const struct nib_sm100a_linear_args &a, const struct barriers &bar,
                                                   uint32_t tmem, uint32_t rank, uint32_t warp, uint32_t lane)
{
    int32_t n_row_tiles = row_tiles_of(a), n_tiles = n_row_tiles * a.n_out_tiles, step = (int32_t)gridDim.x / CTAS;
    int32_t n = 0;
    bool    wide = a.y_stride % 8 == 0 && (uintptr_t)a.y % 16 == 0;
    for (int32_t i = (int32_t)blockIdx.x / CTAS; i < n_tiles; i += step, n++) {
        struct place at = place_of(a, n_row_tiles, i, kRows * CTAS, OUT);
        int64_t      row = at.row + (int64_t)rank * kRows + warp * 32 + lane;
        uint32_t     acc = (uint32_t)n % 2, from = tmem + acc * OUT + (warp * 32 << 16);
        float2       f = make_float2(0.0f, 0.0f);
        if (row < at.end_row)
            f = nib_factors(a.row_scale ? a.row_scale[row] : 1.0f, a.alphas ? a.alphas[at.expert] : a.alpha);
        nib_mbar_wait(bar.done + 8 * acc, (uint32_t)n / 2 & 1);
        nib_tcgen05_after_sync();
        for (int c = 0; c < OUT; c += 32) {
            uint32_t r[32];
            nib_tmem_load32(from + c, r);
            nib_tmem_wait_load(r);
            if (c + 32 == OUT) { /* all read: the accumulator may be filled while this is written */
                nib_tcgen05_before_sync();
                __syncwarp();
                if (lane == 0)
                    nib_mbar_arrive_cluster(CTAS == 1 ? bar.free + 8 * acc : nib_map_rank(bar.free + 8 * acc, 0));
            }
            if (row < at.end_row && at.out + c < a.n_out)
                store32(a, row, at.out + c, r, f, wide);
            __syncwarp();
        }
    }
}

/* ---- The kernel ---- */

template <int FORMAT, int OUT, int CTAS, int STAGES>
static __device__ __forceinline__ void linear(const struct nib_sm100a_linear_args &a)
{
    extern __shared__ uint8_t      dynamic[];
    __shared__ __align__(8) uint64_t full[STAGES], empty[STAGES], done[2], free[2];
    __shared__ uint32_t            tmem_address;
    nib_grid_release();
    uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32,
             rank = CTAS == 1 ? 0 : nib_cluster_rank();
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
            nib_mbar_init(bar.free + 8 * s, kEpilogueWarps * CTAS);
        }
        nib_mbar_init_fence();
    }
    if (warp == 5)
        nib_tmem_alloc<CTAS>(nib_shared_address(&tmem_address), kTmemColumns);
    __syncwarp();
    nib_tcgen05_before_sync();
    __syncthreads();
    if (CTAS == 2)
        nib_cluster_sync();
    nib_tcgen05_after_sync();
    uint32_t tmem = tmem_address;
    nib_grid_wait();

    if (warp == 4) {
        if (nib_elect())
            load_tiles<FORMAT, OUT, CTAS, STAGES>(a, memory, bar, rank);
    } else if (warp == 5) {
        if (rank == 0 && nib_elect())
            multiply_tiles<FORMAT, OUT, CTAS, STAGES>(a, memory, bar, tmem);
    } else {
        write_tiles<OUT, CTAS>(a, bar, tmem, rank, warp, lane);
    }
    __syncwarp(); /* one thread worked in warps 4 and 5; what follows is for whole warps */
    nib_tcgen05_before_sync();
    __syncthreads();
    if (CTAS == 2)
        nib_cluster_sync();
    nib_tcgen05_after_sync();
    if (warp == 5)
        nib_tmem_dealloc<CTAS>(tmem, kTmemColumns);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_linear_one(const __grid_constant__ struct nib_sm100a_linear_args a)
{
    linear<NIB_SM100A_NVFP4, 128, 1, 5>(a);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
nib_sm100a_linear_pair(const __grid_constant__ struct nib_sm100a_linear_args a)
{
    linear<NIB_SM100A_NVFP4, 192, 2, 6>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_fp8_one(const __grid_constant__ struct nib_sm100a_linear_args a)
{
    linear<NIB_SM100A_FP8, 128, 1, 6>(a);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
nib_sm100a_fp8_pair(const __grid_constant__ struct nib_sm100a_linear_args a)
{
    linear<NIB_SM100A_FP8, 192, 2, 7>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_mxfp4_one(const __grid_constant__ struct nib_sm100a_linear_args a)
{
    linear<NIB_SM100A_MXFP4, 128, 1, 6>(a);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
nib_sm100a_mxfp4_pair(const __grid_constant__ struct nib_sm100a_linear_args a)
{
    linear<NIB_SM100A_MXFP4, 192, 2, 7>(a);
}
