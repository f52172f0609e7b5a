/* Plain rows (BF16 or fp32) times BF16 or FP8 weights on tcgen05, by groups of outputs: o_a, the router.
 *
 *   warp 4     loads weights: 128 outputs by 64 values of k a stage (128-byte swizzle); FP8: by 128, as they are stored
 *   warps 0-3  bring rows beside them, fp32 values as three bf16 parts, which hold them exactly; open FP8 weights with
 *              their scales to bf16, which is exact, too; later sums from tensor memory to y
 *   warp 5     issues products, owns tensor memory
 *
 * Weights are the 128 lanes and rows the columns, one for each part of a row, so few rows cost no more than the
 * weights' bytes. The blocks of a cluster take a span of k each of the same tile and add their sums in that order. How
 * many they are follows from the weight's shape alone, so a row has the same bits among few rows and among many.
 * docs/kernels/sm100a.md has the arithmetic. */
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/ptx.cuh"
#include "backend/cuda/device/tcgen05.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kOuts = NIB_SM100A_PLAIN_OUTS; /* the lanes of tensor memory */
constexpr int kDepth = NIB_SM100A_PLAIN_K_TILE, kUnits = kDepth / 8; /* of 8 values, 16 bytes of bf16 */
constexpr int kSteps = 4;                                            /* products in a stage: 16 values of k each */
constexpr float kUp = 256.0f;                                        /* of a part over the one before it */
constexpr int kRaw = NIB_SM100A_PLAIN_FP8_RAW, kRawBytes = NIB_SM100A_PLAIN_FP8_RAW_BYTES; /* FP8 as stored */
constexpr int kRowWarps = 4, kRowThreads = 32 * kRowWarps, kThreads = NIB_SM100A_PLAIN_THREADS;
static_assert(kDepth * 2 == 128, "a row of a stage is the span of the swizzle");
static_assert(kThreads == kRowThreads + 64, "a role for each warp");

template <bool FP8_WEIGHTS, int PARTS, int ROWS> struct tile {
    static constexpr bool FP8 = FP8_WEIGHTS;
    static constexpr int kColumns = PARTS * ROWS;
    static constexpr int kStages = !FP8            ? NIB_SM100A_PLAIN_STAGES
                                   : kColumns > 64 ? NIB_SM100A_PLAIN_FP8_MANY_STAGES
                                                   : NIB_SM100A_PLAIN_FP8_FEW_STAGES;
    static constexpr int kX = kOuts * 128, kStage = kX + kColumns * 128;
    static constexpr int kRawAt = kStages * kStage;
    static constexpr int kEach = ROWS * kUnits / kRowThreads; /* units of a thread and stage */
    static constexpr int kTmemColumns = kColumns <= 32 ? 32 : kColumns <= 64 ? 64 : 256;
    static_assert(kColumns % 16 == 0 && kColumns <= 256, "n of one product with m = 128");
    static_assert(kStage % 1024 == 0, "swizzled operands begin at multiples of 1024 bytes");
    static_assert(ROWS * kUnits % kRowThreads == 0, "threads have equal shares of a stage");
    static_assert(ROWS * kOuts * 4 <= kStages * kStage, "the tile's sums take the place of the stages");
    static_assert(kRawBytes == kOuts * 128, "weights of two stages, a row the span of the swizzle");
};

struct barriers {
    uint32_t full, empty, done; /* addresses of arrays: stages filled, emptied; the last product */
    uint32_t raw_full, raw_empty; /* FP8: of weights as they are stored */
};

/* What a block does. */
struct work {
    int32_t  weight, out;   /* first row of weights; of outputs, within the group */
    int32_t  group, row;    /* first of the rows */
    int32_t  begin, end;    /* stages of k */
    uint32_t rank, n_ranks; /* of the cluster */
};

static __device__ __forceinline__ struct work work_of(const struct nib_sm100a_plain_args &a, int rows, bool fp8)
{
    struct work w;
    uint32_t    n;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    int32_t tile = (int32_t)(blockIdx.x / n), span = (a.n_k_tiles + (int32_t)n - 1) / (int32_t)n;
    span += fp8 ? span % 2 : 0; /* two stages are loaded together */
    w.rank = nib_cluster_rank();
    w.n_ranks = n;
    w.group = tile / a.n_out_tiles;
    w.out = tile % a.n_out_tiles * kOuts;
    w.weight = w.group * a.n_out + w.out;
    w.row = (int32_t)blockIdx.y * rows;
    w.begin = min((int32_t)w.rank * span, a.n_k_tiles);
    w.end = min(w.begin + span, a.n_k_tiles);
    return w;
}

/* ---- Weights ---- */

template <class T>
static __device__ __forceinline__ void load_weights(const struct nib_sm100a_plain_args &a, const struct work &w,
                                                    uint32_t memory, const struct barriers &bar)
{
    for (int32_t k = w.begin, used = 0; k < w.end && !T::FP8; k++, used++) {
        uint32_t stage = (uint32_t)used % T::kStages, full = bar.full + 8 * stage;
        nib_mbar_wait(bar.empty + 8 * stage, ((uint32_t)used / T::kStages & 1) ^ 1);
        nib_mbar_expect(full, kOuts * 128);
        nib_tensor_load(memory + stage * T::kStage, &a.w, k * 128, w.weight, full);
    }
    for (int32_t k = w.begin, used = 0; k < w.end && T::FP8; k += 2, used++) {
        uint32_t slot = (uint32_t)used % kRaw, full = bar.raw_full + 8 * slot;
        nib_mbar_wait(bar.raw_empty + 8 * slot, ((uint32_t)used / kRaw & 1) ^ 1);
        nib_mbar_expect(full, kRawBytes);
        nib_tensor_load(memory + T::kRawAt + slot * kRawBytes, &a.w, k * kDepth, w.weight, full);
    }
}

/* The scale byte of this thread's row of weights at stage k: an atom holds it for 128 rows, over and over. */
static __device__ __forceinline__ uint32_t load_scale(const struct nib_sm100a_plain_args &a, const struct work &w,
                                                      int32_t k)
{
    int32_t row = min(w.weight + (int32_t)threadIdx.x, a.n_weights - 1); /* of those behind the last nothing is kept */
    return a.w_scales[((int64_t)(row / 128) * a.n_scale_cols + k / 2) * 512];
}

/* Two codes, in bytes 1 and 3, times a factor that makes up for the exponents' biases: E4M3's four bits of exponent are
 * the lowest of bf16's. Subnormal codes are subnormal numbers before they are multiplied. */
static __device__ __forceinline__ uint32_t open_pair(uint32_t codes, uint32_t factor)
{
    uint32_t low = (codes & 0x80008000u) | (codes & 0x7f007f00u) >> 4, r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(low), "r"(factor));
    return r;
}

static __device__ __forceinline__ uint4 open_codes(uint32_t first, uint32_t second, uint32_t factor)
{
    return make_uint4(open_pair(__byte_perm(first, 0, 0x1404), factor),
                      open_pair(__byte_perm(first, 0, 0x3424), factor),
                      open_pair(__byte_perm(second, 0, 0x1404), factor),
                      open_pair(__byte_perm(second, 0, 0x3424), factor));
}

/* A thread opens the stage's 64 values of one row of weights. */
template <class T> struct opener {
    uint4    codes[4];
    uint32_t factor, next_scale;
};

template <class T>
static __device__ __forceinline__ void take_codes(struct opener<T> *o, const struct nib_sm100a_plain_args &a,
                                                  const struct work &w, const uint8_t *memory,
                                                  const struct barriers &bar, int32_t k, int32_t used, int lane)
{
    uint32_t raw = (uint32_t)used / 2, slot = raw % kRaw;
    if (used % 2 == 0) {
        o->factor = (o->next_scale + 120) * 0x00800080u; /* 2^(scale - 7), twice */
        if (k + 2 < w.end)
            o->next_scale = load_scale(a, w, k + 2);
        nib_mbar_wait(bar.raw_full + 8 * slot, raw / kRaw & 1);
    }
    const uint8_t *from = memory + T::kRawAt + slot * kRawBytes + threadIdx.x * 128;
#pragma unroll
    for (int i = 0; i < 4; i++)
        o->codes[i] = *(const uint4 *)(from + ((used % 2 * 4 + i) ^ (int)(threadIdx.x % 8)) * 16);
    if (used % 2 == 0 && k + 1 < w.end)
        return;
    __syncwarp();
    if (lane == 0)
        nib_mbar_arrive(bar.raw_empty + 8 * slot);
}

template <class T> static __device__ __forceinline__ void store_codes(const struct opener<T> &o, uint8_t *outs)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint4 &c = o.codes[i / 2];
        *(uint4 *)(outs + threadIdx.x * 128 + (i ^ (int)(threadIdx.x % 8)) * 16) =
            i % 2 ? open_codes(c.z, c.w, o.factor) : open_codes(c.x, c.y, o.factor);
    }
}

/* ---- Rows ---- */

/* Eight values as they stand in memory. */
template <int PARTS> struct unit {
    uint4 v[PARTS == 1 ? 1 : 2];
};

/* The eight values of k from `k` on of unit u's row; zeros where there are none. */
template <int PARTS>
static __device__ __forceinline__ struct unit<PARTS> load_unit(const struct nib_sm100a_plain_args &a,
                                                               const struct work &w, int32_t k, int u)
{
    int32_t            row = w.row + u / kUnits, at = k * kDepth + u % kUnits * 8;
    struct unit<PARTS> x = {};
    if (row < a.n_rows && at < a.n_in) {
        const uint8_t *from = (const uint8_t *)a.x +
                              (row * a.x_stride + (int64_t)w.group * a.n_in + at) * (PARTS == 1 ? 2 : 4);
        x.v[0] = ((const uint4 *)from)[0];
        if (PARTS > 1)
            x.v[PARTS > 1] = ((const uint4 *)from)[1];
    }
    return x;
}

/* One fp32 value as three bf16 ones: eight bits of it, the next eight times 2^8, the last eight times 2^16, so that those
 * of the smallest values are bf16, too. What is no number is the first alone. */
static __device__ __forceinline__ void split(uint32_t x, uint32_t part[3])
{
    bool  odd = (x & 0x7f800000u) == 0x7f800000u;
    float rest;
    part[0] = x & 0xffff0000u;
    if (odd && (x & 0x7fffffu) != 0)
        part[0] |= 0x400000u; /* a NaN stays one without its lower bits */
    rest = odd ? 0.0f : (__uint_as_float(x) - __uint_as_float(part[0])) * kUp;
    part[1] = __float_as_uint(rest) & 0xffff0000u;
    part[2] = __float_as_uint((rest - __uint_as_float(part[1])) * kUp);
}

/* To where products read it; part p of a row is column p * ROWS + row. */
template <int PARTS, int ROWS>
static __device__ __forceinline__ void store_unit(const struct unit<PARTS> &x, uint8_t *columns, int u)
{
    int      row = u / kUnits;
    uint32_t at = (uint32_t)row * 128 + (uint32_t)((u ^ row) % 8) * 16;
    if (PARTS == 1) {
        *(uint4 *)(columns + at) = x.v[0];
        return;
    }
    const uint32_t value[8] = {x.v[0].x, x.v[0].y, x.v[0].z, x.v[0].w,
                               x.v[PARTS > 1].x, x.v[PARTS > 1].y, x.v[PARTS > 1].z, x.v[PARTS > 1].w};
    uint32_t       word[3][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t low[3], high[3];
        split(value[2 * i], low);
        split(value[2 * i + 1], high);
#pragma unroll
        for (int p = 0; p < 3; p++)
            word[p][i] = low[p] >> 16 | (high[p] & 0xffff0000u);
    }
#pragma unroll
    for (int p = 0; p < 3; p++)
        *(uint4 *)(columns + p * ROWS * 128 + at) = make_uint4(word[p][0], word[p][1], word[p][2], word[p][3]);
}

template <class T, int PARTS, int ROWS>
static __device__ __forceinline__ void bring_rows(const struct nib_sm100a_plain_args &a, const struct work &w,
                                                  uint8_t *memory, const struct barriers &bar, int lane)
{
    struct unit<PARTS> next[T::kEach];
    struct opener<T>   weights;
    if (T::FP8 && w.begin < w.end)
        weights.next_scale = load_scale(a, w, w.begin);
#pragma unroll
    for (int i = 0; i < T::kEach; i++)
        next[i] = load_unit<PARTS>(a, w, w.begin, (int)threadIdx.x + i * kRowThreads);
#pragma unroll 1
    for (int32_t k = w.begin, used = 0; k < w.end; k++, used++) {
        uint32_t           stage = (uint32_t)used % T::kStages;
        struct unit<PARTS> now[T::kEach];
#pragma unroll
        for (int i = 0; i < T::kEach; i++) {
            now[i] = next[i];
            if (k + 1 < w.end)
                next[i] = load_unit<PARTS>(a, w, k + 1, (int)threadIdx.x + i * kRowThreads);
        }
        if (T::FP8)
            take_codes(&weights, a, w, memory, bar, k, used, lane);
        nib_mbar_wait(bar.empty + 8 * stage, ((uint32_t)used / T::kStages & 1) ^ 1);
        if (T::FP8)
            store_codes(weights, memory + stage * T::kStage);
#pragma unroll
        for (int i = 0; i < T::kEach; i++)
            store_unit<PARTS, ROWS>(now[i], memory + stage * T::kStage + T::kX, (int)threadIdx.x + i * kRowThreads);
        nib_proxy_fence();
        __syncwarp();
        if (lane == 0)
            nib_mbar_arrive(bar.full + 8 * stage);
    }
}

/* ---- Products ---- */

template <class T>
static __device__ __forceinline__ void multiply(const struct work &w, uint32_t memory, const struct barriers &bar,
                                                uint32_t tmem)
{
    for (int32_t k = w.begin, used = 0; k < w.end; k++, used++) {
        uint32_t stage = (uint32_t)used % T::kStages, from = memory + stage * T::kStage;
        nib_mbar_wait(bar.full + 8 * stage, (uint32_t)used / T::kStages & 1);
        nib_tcgen05_after_sync();
        for (uint32_t j = 0; j < kSteps; j++) /* 32 bytes of k are 2 in a descriptor */
            nib_mma_half(tmem, nib_matrix_sw128(from) + 2 * j, nib_matrix_sw128(from + kOuts * 128) + 2 * j,
                         nib_instruction_half(kOuts, T::kColumns, false, false), (used | (int32_t)j) != 0);
        nib_tcgen05_commit<1>(bar.empty + 8 * stage);
    }
    nib_tcgen05_commit<1>(bar.done);
}

/* ---- Results ---- */

/* The block's sums, the smallest parts first, by row and then output: neighbouring lanes, neighbouring words. */
template <int PARTS, int ROWS>
static __device__ __forceinline__ void keep_sums(uint32_t tmem, bool any, float *sums, int warp)
{
#pragma unroll 1
    for (int c = 0; c < ROWS; c += 8) {
        uint32_t r[PARTS][8];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            if (any)
                nib_tmem_read8(tmem + ((uint32_t)warp * 32 << 16) + (uint32_t)(p * ROWS + c), r[p]);
            for (int i = 0; i < 8 && !any; i++)
                r[p][i] = 0;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float sum = __uint_as_float(r[PARTS - 1][i]);
#pragma unroll
            for (int p = PARTS - 2; p >= 0; p--)
                sum = __uint_as_float(r[p][i]) + sum * (1 / kUp);
            sums[(c + i) * kOuts + (int)threadIdx.x] = sum;
        }
    }
}

static __device__ __forceinline__ float load_sum(const float *p, uint32_t rank)
{
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(nib_map_rank(nib_shared_address(p), rank)) : "memory");
    return v;
}

/* This block's share of the tile's rows: the sums of all spans, in their order, an output a thread. */
template <int ROWS>
static __device__ __forceinline__ void store_rows(const struct nib_sm100a_plain_args &a, const struct work &w,
                                                  const float *sums)
{
    int32_t out = w.out + (int32_t)threadIdx.x, each = ROWS / (int32_t)w.n_ranks, first = (int32_t)w.rank * each,
            end = min(first + each, a.n_rows - w.row);
    if (out >= a.n_out)
        return;
    for (int32_t r = first; r < end; r++) {
        const float *own = sums + r * kOuts + threadIdx.x;
        float        sum = load_sum(own, 0);
        for (uint32_t i = 1; i < w.n_ranks; i++)
            sum += load_sum(own, i);
        int64_t to = (w.row + r) * a.y_stride + (int64_t)w.group * a.n_out + out;
        if (a.y_f32)
            ((float *)a.y)[to] = sum;
        else
            ((uint16_t *)a.y)[to] = (uint16_t)nib_bf16_code(sum);
    }
}

/* ---- The kernel ---- */

template <bool FP8, int PARTS, int ROWS>
static __device__ __forceinline__ void product(const struct nib_sm100a_plain_args &a)
{
    using T = tile<FP8, PARTS, ROWS>;
    extern __shared__ uint8_t        dynamic[];
    __shared__ __align__(8) uint64_t full[T::kStages], empty[T::kStages], done;
    __shared__ __align__(8) uint64_t raw_full[FP8 ? kRaw : 1], raw_empty[FP8 ? kRaw : 1];
    __shared__ uint32_t              tmem_address;
    nib_grid_release();
    int      warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    uint8_t *memory = dynamic + (1024 - nib_shared_address(dynamic) % 1024) % 1024;
    struct barriers bar = {nib_shared_address(full), nib_shared_address(empty), nib_shared_address(&done), 0, 0};
    if (FP8) {
        bar.raw_full = nib_shared_address(raw_full);
        bar.raw_empty = nib_shared_address(raw_empty);
    }
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < T::kStages; s++) {
            nib_mbar_init(bar.full + 8 * s, (FP8 ? 0 : 1) + kRowWarps);
            nib_mbar_init(bar.empty + 8 * s, 1);
        }
        for (uint32_t s = 0; s < kRaw && FP8; s++) {
            nib_mbar_init(bar.raw_full + 8 * s, 1);
            nib_mbar_init(bar.raw_empty + 8 * s, kRowWarps);
        }
        nib_mbar_init(bar.done, 1);
        nib_mbar_init_fence();
    }
    if (warp == 5)
        nib_tmem_alloc<1>(nib_shared_address(&tmem_address), T::kTmemColumns);
    __syncwarp();
    nib_tcgen05_before_sync();
    __syncthreads();
    nib_tcgen05_after_sync();
    uint32_t    tmem = tmem_address;
    struct work w = work_of(a, ROWS, FP8);

    if (warp == 4) { /* weights were there before the kernels that this one follows */
        if (nib_elect())
            load_weights<T>(a, w, nib_shared_address(memory), bar);
    } else if (warp == 5) {
        if (nib_elect())
            multiply<T>(w, nib_shared_address(memory), bar, tmem);
    } else {
        nib_grid_wait();
        bring_rows<T, PARTS, ROWS>(a, w, memory, bar, lane);
        nib_mbar_wait(bar.done, 0);
        nib_tcgen05_after_sync();
        keep_sums<PARTS, ROWS>(tmem, w.begin < w.end, (float *)memory, warp);
    }
    __syncwarp(); /* one thread worked in warps 4 and 5; what follows is for whole warps */
    nib_tcgen05_before_sync();
    nib_cluster_sync();
    nib_tcgen05_after_sync();
    if (warp == 5)
        nib_tmem_dealloc<1>(tmem, T::kTmemColumns);
    if (warp < kRowWarps)
        store_rows<ROWS>(a, w, (const float *)memory);
    __syncwarp();
    nib_cluster_sync(); /* others may still read this block's sums */
}

#define KERNEL(name, FP8, PARTS, ROWS, BLOCKS)                                                                         \
    extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)                                                     \
        nib_sm100a_plain_##name(const __grid_constant__ struct nib_sm100a_plain_args a)                                \
    {                                                                                                                  \
        product<FP8, PARTS, ROWS>(a);                                                                                  \
    }

KERNEL(few_bf16, false, 1, NIB_SM100A_PLAIN_FEW_BF16, 2)
KERNEL(few_f32, false, 3, NIB_SM100A_PLAIN_FEW_F32, 2)
KERNEL(many_bf16, false, 1, NIB_SM100A_PLAIN_MANY_BF16, 1)
KERNEL(many_f32, false, 3, NIB_SM100A_PLAIN_MANY_F32, 1)
KERNEL(fp8_few_bf16, true, 1, NIB_SM100A_PLAIN_FEW_BF16, 2)
KERNEL(fp8_few_f32, true, 3, NIB_SM100A_PLAIN_FEW_F32, 2)
KERNEL(fp8_many_bf16, true, 1, NIB_SM100A_PLAIN_MANY_BF16, 1)
KERNEL(fp8_many_f32, true, 3, NIB_SM100A_PLAIN_MANY_F32, 1)
