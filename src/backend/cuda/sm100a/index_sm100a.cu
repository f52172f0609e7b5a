/* Scores of the indexer on tcgen05, for keys of 128 channels: FP4 keys with FP4 queries (kind::mxf4, scales of 32
 * values), BF16 keys with bf16 or fp32 queries (kind::f16). Compiled and simulated; never run on hardware yet.
 *
 * A block takes one query row and walks its visible entries 128 at a time: an entry a lane of the tensor core, a head a
 * column, so that a thread adds up its own entry's weighted heads, in ascending order.
 *
 *   warps 5-8  bring keys from their pages by cp.async, up to kStages tiles ahead
 *   warp 4     issues products, owns tensor memory
 *   warps 0-3  bring queries to the keys' form, then read products and write scores
 *
 * FP4 queries arrive as the values of their codes; encoding them again is exact, as a block's largest value is one of
 * its scale times 6, 4, 3, 2, 1.5, 1 or 0.5, and with each of these every smaller one has a code under the new scale.
 * fp32 queries of BF16 keys are two bf16 parts in columns of their own, which are added up before anything else.
 * Two accumulators, and two sets of columns for the keys' scales, by turns. */
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/device/tcgen05.cuh"
#include "backend/cuda/sm100a/parts_sm100a.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kDim = 128, kEntries = NIB_SM100A_INDEX_ENTRIES, kHeadsMost = 128;
constexpr int kScoreWarps = 4, kProductWarp = 4, kLoadWarps = 4, kThreads = NIB_SM100A_INDEX_THREADS;
constexpr int kRowsEach = kEntries / kLoadWarps;
static_assert(kThreads == 32 * (kScoreWarps + 1 + kLoadWarps), "a role for each warp");
static_assert(kRowsEach == 32, "a lane knows one row's address");

template <bool fp4> struct keys {
    static constexpr int kStages = fp4 ? 4 : 2;
    static constexpr int kRowBytes = fp4 ? kDim / 2 : 2 * kDim, kBytes = kEntries * kRowBytes; /* without scales */
    static constexpr int kStage = kBytes + (fp4 ? 1024 : 0); /* aligned for a swizzle */
    static constexpr int kShared = (kStages + 1) * kStage + 1024; /* a query, alignment */
};
static_assert(keys<true>::kShared <= NIB_SM100A_INDEX_FP4_SHARED, "what the host asks for");
static_assert(keys<false>::kShared <= NIB_SM100A_INDEX_BF16_SHARED, "what the host asks for");

struct barriers {
    uint64_t full[4], empty[4], done[2], free[2], query;
};

struct work {
    const struct nib_blackwell_index_args *args;
    const int32_t                      *page;
    int64_t                             t;
    int32_t                             visible, first, step; /* entries; of this block's tiles */
    int32_t                             n; /* heads, rounded up to 32 */
    int32_t                             columns; /* of an accumulator: n for each part of queries */
    uint32_t                            query, tiles; /* shared memory: a query, stages of keys */
};

NIB_DEVICE uint32_t at(const void *p)
{
    return nib_shared_address(p);
}

/* Where byte `i` of row `row` stands: rows of 64 bytes under their swizzle, or two chunks of rows of 128. */
template <bool fp4> NIB_DEVICE uint32_t place_of(int row, int i)
{
    if (fp4)
        return (uint32_t)(row * 64 + (i ^ (row / 2 % 4) << 4));
    return (uint32_t)(i / 128 * kEntries * 128 + row * 128 + (i % 128 ^ row % 8 << 4));
}

/* Where the scales of a row stand in its atom. */
NIB_DEVICE uint32_t scale_of(int row)
{
    return (uint32_t)(row % 32 * 16 + row / 32 * 4);
}

NIB_DEVICE void store_word(uint32_t to, uint32_t v)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

NIB_DEVICE void store_unit(uint32_t to, uint4 v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* ---- Keys ---- */

/* 32 entries a warp, a lane the address of one; entries behind the last visible one are zeros. */
template <bool fp4> NIB_DEVICE void load_tile(const struct work &w, uint32_t to, int32_t base, int warp, int lane)
{
    constexpr int  kPieces = fp4 ? (kDim / 2 + 4) / 4 : 2 * kDim / 16; /* of a row: words, or 16 bytes */
    constexpr int  kPiece = fp4 ? 4 : 16;
    int32_t        e = base + warp * kRowsEach + lane;
    const uint8_t *mine = e < w.visible ? nib_store_at(w.args->a.keys, w.page, e) : NULL;
#pragma unroll
    for (int k = 0; k < kPieces; k++) {
        int            piece = k * 32 + lane, r = piece / kPieces, i = piece % kPieces, row = warp * kRowsEach + r;
        const uint8_t *from = (const uint8_t *)(uintptr_t)__shfl_sync(~0u, (unsigned long long)(uintptr_t)mine, r);
        uint32_t       there = to + (fp4 && i == kPieces - 1 ? keys<fp4>::kBytes + scale_of(row)
                                                              : place_of<fp4>(row, i * kPiece));
        if (from && fp4)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(there), "l"(from + i * kPiece) : "memory");
        else if (from)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(there), "l"(from + i * kPiece) : "memory");
        else if (fp4)
            store_word(there, 0);
        else
            store_unit(there, make_uint4(0, 0, 0, 0));
    }
}

NIB_DEVICE void announce(uint64_t *full, int lane)
{
    nib_proxy_fence();
    __syncwarp();
    if (lane == 0)
        nib_mbar_arrive(at(full));
}

template <bool fp4> NIB_DEVICE void load_tiles(const struct work &w, struct barriers *bar, int warp, int lane)
{
    constexpr int kStages = keys<fp4>::kStages, kDepth = kStages - 1;
    int32_t       n = 0, told = 0;
    for (int32_t base = w.first; base < w.visible; base += w.step, n++) {
        int32_t stage = n % kStages;
        if (n >= kStages)
            nib_mbar_wait(at(&bar->empty[stage]), (uint32_t)(n / kStages - 1) & 1u);
        load_tile<fp4>(w, w.tiles + (uint32_t)(stage * keys<fp4>::kStage), base, warp, lane);
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (n < kDepth)
            continue;
        asm volatile("cp.async.wait_group %0;" ::"n"(kDepth) : "memory");
        announce(&bar->full[told++ % kStages], lane);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll 1
    while (told < n)
        announce(&bar->full[told++ % kStages], lane);
}

/* ---- Queries ---- */

/* 32 values of a head, whose codes are exact. */
NIB_DEVICE uint4 query_codes(const struct nib_mat &q, int64_t t, int64_t col, uint32_t *scale)
{
    float    x[32];
    uint32_t most = 0, v[4] = {0, 0, 0, 0};
    for (int i = 0; i < 32; i++) {
        x[i] = nib_mat_get(q, t, col + i);
        most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
    }
    float amax = __uint_as_float(most), least = 0x1.8p-124f;
    if (!nib_is_finite(amax)) {
        *scale = 255;
        return make_uint4(0, 0, 0, 0);
    }
    *scale = nib_e8m0_ceil_code((amax > least ? amax : least) * (1.0f / 6.0f));
    float unit = nib_e8m0_value(*scale);
    for (int i = 0; i < 32; i++)
        v[i / 8] |= nib_e2m1_code(x[i] / unit) << i % 8 * 4;
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* Heads up to w.n, of which those that do not exist are zeros, and their weights. */
template <bool fp4, int parts> NIB_DEVICE void load_query(const struct work &w, float *weight, int thread)
{
    constexpr int                       kUnits = keys<fp4>::kRowBytes / 16; /* of a head */
    const struct nib_index_select_args &a = w.args->a;
    bool                                bf16 = a.q.dtype == NIB_DTYPE_BF16;
    for (int i = thread; i < w.n * kUnits; i += 32 * kScoreWarps) {
        int      h = i / kUnits, u = i % kUnits;
        uint4    v = make_uint4(0, 0, 0, 0), rest = v;
        uint32_t scale = 127;
        if (h < a.n_heads && fp4) {
            v = query_codes(a.q, w.t, (int64_t)h * kDim + u * 32, &scale);
        } else if (h < a.n_heads && parts == 2) {
            const float *x = (const float *)a.q.data + w.t * a.q.stride + (int64_t)h * kDim + u * 8;
            const float4 all[2] = {make_float4(x[0], x[1], x[2], x[3]), make_float4(x[4], x[5], x[6], x[7])};
            split_unit(all, &v, &rest);
        } else if (h < a.n_heads) {
            const uint16_t *x = (const uint16_t *)a.q.data + w.t * a.q.stride + (int64_t)h * kDim + u * 8;
            v = make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
        }
        store_unit(w.query + place_of<fp4>(h, u * 16), v);
        if (parts == 2)
            store_unit(w.query + place_of<fp4>(w.n + h, u * 16), rest);
        if (fp4)
            asm volatile("st.shared.b8 [%0], %1;" ::"r"(w.query + keys<fp4>::kBytes + scale_of(h) + u), "r"(scale)
                         : "memory");
    }
    for (int h = (fp4 ? w.n : kHeadsMost) + thread; h < kHeadsMost; h += 32 * kScoreWarps)
        store_word(w.query + keys<fp4>::kBytes + scale_of(h), 0);
    for (int h = thread; h < w.n; h += 32 * kScoreWarps) {
        float x = h < a.n_heads ? nib_mat_get(a.weight, w.t, h) * a.scale : 0;
        weight[h] = bf16 ? nib_bf16_rounded(x) : x;
    }
}

/* ---- Products, by one thread ---- */

template <bool fp4> NIB_DEVICE void multiply_tiles(const struct work &w, struct barriers *bar, uint32_t tmem)
{
    constexpr int kStages = keys<fp4>::kStages;
    uint32_t      q_scales = tmem + 2 * (uint32_t)w.columns;
    int32_t       n = 0;
    nib_mbar_wait(at(&bar->query), 0);
    nib_tcgen05_after_sync();
    if (fp4)
        nib_tmem_copy_scales<1>(q_scales, nib_matrix_scales(w.query + keys<fp4>::kBytes));
    for (int32_t base = w.first; base < w.visible; base += w.step, n++) {
        int32_t  stage = n % kStages, turn = n % 2;
        uint32_t from = w.tiles + (uint32_t)(stage * keys<fp4>::kStage), d = tmem + (uint32_t)(turn * w.columns),
                 scales = q_scales + 4 + 4 * (uint32_t)turn;
        if (n >= 2) /* read, and so the products two tiles ago are done with their scales too */
            nib_mbar_wait(at(&bar->free[turn]), (uint32_t)(n / 2 - 1) & 1u);
        nib_mbar_wait(at(&bar->full[stage]), (uint32_t)(n / kStages) & 1u);
        nib_tcgen05_after_sync();
        if (fp4) {
            nib_tmem_copy_scales<1>(scales, nib_matrix_scales(from + keys<fp4>::kBytes));
            for (uint32_t k = 0; k < 2; k++)
                nib_mma_mxfp4(d, nib_matrix_sw64(from) + 2 * k, nib_matrix_sw64(w.query) + 2 * k,
                              nib_instruction_mxfp4(kEntries, w.columns, 2 * k), scales, q_scales, k > 0);
        } else {
            uint32_t idesc = nib_instruction_half(kEntries, w.columns, false, false);
            for (uint32_t k = 0; k < kDim / 16; k++) {
                uint32_t chunk = k / 4 * kEntries * 128;
                nib_mma_half(d, nib_matrix_sw128(from + chunk) + 2 * (k % 4),
                             nib_matrix_sw128(w.query + chunk) + 2 * (k % 4), idesc, k > 0);
            }
        }
        nib_tcgen05_commit<1>(at(&bar->empty[stage]));
        nib_tcgen05_commit<1>(at(&bar->done[turn]));
    }
}

/* ---- Scores ---- */

template <bool bf16> NIB_DEVICE float add_heads(const float *weight, const float v[32], float sum)
{
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float d = v[i];
        d = bf16 ? nib_bf16_rounded(d) : d;
        sum = fmaf(weight[i], d < 0 ? 0 : d, sum); /* NaN passes */
    }
    return sum;
}

template <int parts>
NIB_DEVICE void score_tiles(const struct work &w, struct barriers *bar, const float *weight, uint32_t tmem, int warp,
                            int lane)
{
    const struct nib_index_select_args &a = w.args->a;
    bool                                bf16 = a.q.dtype == NIB_DTYPE_BF16;
    float                              *score = w.args->score + blockIdx.y * w.args->score_stride;
    int32_t                             n = 0;
    for (int32_t base = w.first; base < w.visible; base += w.step, n++) {
        int32_t turn = n % 2, e = base + warp * 32 + lane;
        float   sum = 0;
        nib_mbar_wait(at(&bar->done[turn]), (uint32_t)(n / 2) & 1u); /* behind the query, and so all weights */
        nib_tcgen05_after_sync();
#pragma unroll 1
        for (int32_t h = 0; h < w.n; h += 32) {
            uint32_t r[32], from = tmem + (uint32_t)(turn * w.columns + h) + ((uint32_t)warp << 21);
            float    v[32];
            nib_tmem_load32(from, r);
            nib_tmem_wait_load(r);
#pragma unroll
            for (int i = 0; i < 32; i++)
                v[i] = __uint_as_float(r[i]);
            if (parts == 2) {
                nib_tmem_load32(from + (uint32_t)w.n, r);
                nib_tmem_wait_load(r);
#pragma unroll
                for (int i = 0; i < 32; i++)
                    v[i] += __uint_as_float(r[i]);
            }
            sum = bf16 ? add_heads<true>(weight + h, v, sum) : add_heads<false>(weight + h, v, sum);
        }
        nib_tcgen05_before_sync();
        __syncwarp();
        if (lane == 0)
            nib_mbar_arrive(at(&bar->free[turn]));
        sum = bf16 ? nib_bf16_rounded(sum) : sum;
        if (e < w.visible) {
            score[e] = sum;
            if (a.scores.data)
                nib_mat_set(a.scores, w.t, e, sum);
        }
    }
}

/* ---- The kernel ---- */

template <bool fp4, int parts> NIB_DEVICE void score_entries(const struct nib_blackwell_index_args &args)
{
    extern __shared__ uint8_t  memory[];
    __shared__ struct barriers bar;
    __shared__ float           weight[kHeadsMost];
    __shared__ uint32_t        tmem_address;
    nib_grid_start();
    const struct nib_index_select_args &a = args.a;
    int         warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    struct work w = {&args, NULL, args.first + (int64_t)blockIdx.y};
    w.visible = (args.rows.pos[w.t] + 1) / a.ratio;
    w.first = (int32_t)blockIdx.x * kEntries;
    w.step = (int32_t)gridDim.x * kEntries;
    if ((w.visible <= a.top_k && !a.scores.data) || w.first >= w.visible)
        return;
    w.page = args.rows.entry_page + args.rows.seq[w.t] * args.rows.page_stride;
    w.n = nib_round_up(a.n_heads, 32);
    w.columns = w.n * parts;
    w.query = (at(memory) + 1023) & ~1023u;
    w.tiles = w.query + keys<fp4>::kStage;
    uint32_t n_columns = 32, wanted = (uint32_t)(2 * w.columns) + (fp4 ? 12 : 0);
    while (n_columns < wanted)
        n_columns *= 2;
    if (threadIdx.x == 0) {
        for (int s = 0; s < keys<fp4>::kStages; s++) {
            nib_mbar_init(at(&bar.full[s]), kLoadWarps);
            nib_mbar_init(at(&bar.empty[s]), 1);
        }
        for (int turn = 0; turn < 2; turn++) {
            nib_mbar_init(at(&bar.done[turn]), 1);
            nib_mbar_init(at(&bar.free[turn]), kScoreWarps);
        }
        nib_mbar_init(at(&bar.query), kScoreWarps);
        nib_mbar_init_fence();
    }
    if (warp == kProductWarp)
        nib_tmem_alloc<1>(at(&tmem_address), n_columns);
    __syncwarp();
    nib_tcgen05_before_sync();
    __syncthreads();
    nib_tcgen05_after_sync();
    uint32_t tmem = tmem_address;

    if (warp > kProductWarp) {
        load_tiles<fp4>(w, &bar, warp - kProductWarp - 1, lane);
    } else if (warp == kProductWarp) {
        if (nib_elect())
            multiply_tiles<fp4>(w, &bar, tmem);
    } else {
        load_query<fp4, parts>(w, weight, threadIdx.x);
        announce(&bar.query, lane);
        score_tiles<parts>(w, &bar, weight, tmem, warp, lane);
    }
    __syncwarp(); /* one thread worked in warp 4; what follows is for whole warps */
    nib_tcgen05_before_sync();
    __syncthreads();
    nib_tcgen05_after_sync();
    if (warp == kProductWarp)
        nib_tmem_dealloc<1>(tmem, n_columns);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
nib_sm100a_index_fp4(const __grid_constant__ struct nib_blackwell_index_args a)
{
    score_entries<true, 1>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
nib_sm100a_index_bf16(const __grid_constant__ struct nib_blackwell_index_args a)
{
    score_entries<false, 1>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
nib_sm100a_index_f32_bf16(const __grid_constant__ struct nib_blackwell_index_args a)
{
    score_entries<false, 2>(a);
}
