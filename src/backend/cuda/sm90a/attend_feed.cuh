/* The block of attend_sm90a.cu: its shared memory, what it takes on, whom its warps wait for, and how its third warpgroup
 * brings the query and the rows. */
#ifndef NIB_CUDA_ATTEND_FEED_CUH
#define NIB_CUDA_ATTEND_FEED_CUH

#include "backend/cuda/device/attended.cuh"
#include "backend/cuda/device/bulk.cuh"

constexpr int kD = kAttendDim, kNope = kAttendNope, kRot = kAttendRot;
constexpr int kHeads = 64, kTile = 64, kStages = 2, kConsumers = 256, kFeeders = 128,
              kThreads = kConsumers + kFeeders;
/* Heads of a block: an fp32 query takes two rows of the products' M, eight apart, one for each of its bf16 parts. */
template <bool f32> constexpr int kItemHeads = f32 ? kHeads / 2 : kHeads;
constexpr int kChunk = 64, kChunks = kD / kChunk; /* channels that stand together: a row of 128 bytes */
constexpr int kSide = kD / 2, kSideChunks = kChunks / 2;

constexpr int kHalfUnits = kSide / 8 / 2;
constexpr int kFew = 8; /* blocks of a row where there are few */
constexpr int kFewUnits = kSide / 8 / kFew, kFewHeads = kHeads / 2;
struct shared {
    union {
        uint16_t q[kChunks][kHeads][kChunk];
        float4   other[kHalfUnits][kConsumers]; /* sums of the other block of two, as the threads hold them */
        float4   each[kFew][kFewUnits][kConsumers / 2]; /* likewise, of all eight, up to half the heads */
    };
    union {
        uint16_t kv[kStages][kChunks][kTile][kChunk];
        float    o[kHeads][kD]; /* sums that the cluster adds up */
    };
    uint4    p[2][kTile / 16][128];       /* weights of a pair's tiles, as the threads hold them */
    uint4    plain[kTile / 16][128];      /* of the first tile without the row scale that p has: NVFP4 rows */
    float    row_scale[kStages][kTile];
    float2   most[2][128];                /* their maxima */
    float2   total[2][2][128];            /* of items in turns, of each warpgroup's tiles */
    float    angle[2][kRot];              /* of items in turns */
    float    head_most[kFew * kFewHeads], head_total[kFew * kFewHeads];
    uint64_t full[kStages][2], empty[kStages][2], q_full, q_empty;
    uint64_t totals[4]; /* of the warps that hold the same heads */
    uint64_t angles[2]; /* each turn's own: of short items the next one's may come before the last one's were waited for */
};
constexpr int kAlign = 1024; /* of what wgmma reads with a swizzle of 128 bytes */
static_assert(sizeof(struct shared) + kAlign <= 227 * 1024, "a block's memory must fit");

/* What is done: row t's heads h0 .., the attended rows [begin, end). */
struct item {
    struct nib_attended at;
    int64_t             t;
    int32_t             h0, begin, end, n_parts;
};

template <int parts, bool f32, int cut>
NIB_DEVICE struct item item_of(const struct nib_attend_args &a, const struct nib_rows &rows, int32_t first, int32_t i)
{
    struct item it;
    constexpr int kOwn = kItemHeads<f32> / cut;
    int32_t       n_groups = (a.n_heads + kOwn - 1) / kOwn;
    it.t = first + i / n_groups;
    it.h0 = i % n_groups * kOwn;
    it.at = nib_attended_by(a, rows, it.t);
    int32_t share = parts == 1 ? it.at.n : max(16, (it.at.n + parts - 1) / parts);
    it.n_parts = (it.at.n + share - 1) / share;
    it.begin = parts == 1 ? 0 : min((int32_t)nib_cluster_rank() * share, it.at.n);
    it.end = min(it.begin + share, it.at.n);
    return it;
}

/* Where the eight channels `unit` of a row stand: units of 16 bytes change places with the row. */
NIB_DEVICE uint4 *unit_of(uint16_t (*tile)[kTile][kChunk], int row, int unit)
{
    return (uint4 *)&tile[unit / 8][row][(unit % 8 ^ row % 8) * 8];
}

/* ---- Waiting ---- */

/* Of the warps that hold the same heads. */
NIB_DEVICE void pair_arrive(int what, int warp)
{
    asm volatile("bar.arrive %0, 64;" ::"r"(1 + what * 4 + warp) : "memory");
}

NIB_DEVICE void pair_sync(int what, int warp)
{
    asm volatile("bar.sync %0, 64;" ::"r"(1 + what * 4 + warp) : "memory");
}
constexpr int kFirstReady = 0, kSecondReady = 1;

NIB_DEVICE void consumers_sync(void)
{
    asm volatile("bar.sync 9, 256;" ::: "memory");
}

NIB_DEVICE void proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Until a side of tile number `c` is there, and products may read it. */
NIB_DEVICE void side_wait(struct shared *m, uint32_t c, int side)
{
    nib_barrier_wait(&m->full[c % kStages][side], c / kStages & 1u);
    proxy_fence();
}

NIB_DEVICE void side_release(struct shared *m, uint32_t c, int side, int lane)
{
    __syncwarp();
    if (lane == 0)
        nib_barrier_arrive(&m->empty[c % kStages][side]);
}

/* Keeps the compiler from reading or moving sums before the wait in front of it. */
template <int n> NIB_DEVICE void settled(float (&d)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* ---- Rows into shared memory ---- */

/* 16 bytes, zeros for none; the barrier's phase counts them with the thread's next arrive_copied(). */
NIB_DEVICE void copy_unit(uint4 *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(nib_shared_address(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

/* Likewise of four. */
NIB_DEVICE void copy_scale(float *to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(nib_shared_address(to)), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}

NIB_DEVICE void arrive_copied(uint64_t *barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(nib_shared_address(barrier)) : "memory");
}

/* A lane's row of a tile, of those that its warp brings. */
constexpr int kWarpRows = 16;
NIB_DEVICE const uint8_t *row_of_lane(const uint8_t *row, int r)
{
    return (const uint8_t *)(uintptr_t)__shfl_sync(~0u, (unsigned long long)(uintptr_t)row, r);
}

/* What one lane of the third warpgroup needs to name its rows: places are found two tiles ahead, addresses one. */
struct places {
    const struct nib_attend_args *a;
    const struct item            *it;
};

NIB_DEVICE int32_t place_of(const struct places &p, int32_t j)
{
    int32_t e = j - p.it->at.n_window;
    return j >= p.it->end ? -1 : e < 0 ? p.it->at.first + j : p.it->at.selected ? p.it->at.selected[e] : e;
}

NIB_DEVICE const uint8_t *address_of(const struct places &p, int32_t j, int32_t place)
{
    return j >= p.it->end              ? NULL
           : j < p.it->at.n_window ? nib_store_at(p.a->window, p.it->at.window_page, place)
                                       : nib_store_at(p.a->entries, p.it->at.entry_page, place);
}

/* fp32 queries as two bf16 numbers, whose sum they are but for 2^-16. */
template <int cut> NIB_DEVICE void feed_query_f32(const struct nib_attend_args &a, const struct item &it, struct shared *m)
{
    constexpr int kEach = 4; /* heads read together before the first is written */
    int           unit = (threadIdx.x - kConsumers) % (kD / 8), h0 = (threadIdx.x - kConsumers) / (kD / 8);
    const float  *q = (const float *)a.q.data + it.t * a.q.stride + unit * 8;
#pragma unroll 1
    for (int h = h0; h < kItemHeads<true> / cut; h += kEach * (kFeeders / (kD / 8))) {
        float x[kEach][8] = {};
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            int head = it.h0 + h + i * (kFeeders / (kD / 8));
            if (head < a.n_heads) {
                *(float4 *)x[i] = *(const float4 *)(q + (int64_t)head * kD);
                *(float4 *)(x[i] + 4) = *(const float4 *)(q + (int64_t)head * kD + 4);
            }
        }
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            int      at = h + i * (kFeeders / (kD / 8));
            uint32_t high[4], low[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                nib_split_bf16x2(x[i][2 * k], x[i][2 * k + 1], &high[k], &low[k]);
            *unit_of(m->q, at / 8 * 16 + at % 8, unit) = make_uint4(high[0], high[1], high[2], high[3]);
            *unit_of(m->q, at / 8 * 16 + at % 8 + 8, unit) = make_uint4(low[0], low[1], low[2], low[3]);
        }
    }
    proxy_fence();
    nib_barrier_arrive(&m->q_full);
}

template <int cut> NIB_DEVICE void feed_query(const struct nib_attend_args &a, const struct item &it, struct shared *m)
{
    int             i = threadIdx.x - kConsumers;
    const uint16_t *q = (const uint16_t *)a.q.data + it.t * a.q.stride;
#pragma unroll 8
    for (int h = i / (kD / 8); h < kHeads / cut; h += kFeeders / (kD / 8)) {
        bool there = it.h0 + h < a.n_heads;
        copy_unit(unit_of(m->q, h, i % (kD / 8)),
                  (const uint4 *)(q + (int64_t)(there ? it.h0 + h : 0) * kD) + i % (kD / 8), there);
    }
    arrive_copied(&m->q_full);
}

/* The angles of an item's position, which are only needed at its end. */
NIB_DEVICE void feed_angles(const struct nib_attend_args &a, const struct nib_rows &rows, const struct item &it,
                            struct shared *m, int turn)
{
    int i = threadIdx.x - kConsumers;
    if (i >= kRot / 2)
        return;
    double sine, cosine;
    sincos((double)((float)(rows.pos[it.t] - rows.first_pos) * a.rope.freq[i]), &sine, &cosine);
    m->angle[turn][i] = (float)cosine;
    m->angle[turn][kRot / 2 + i] = (float)sine;
    nib_barrier_arrive(&m->angles[turn]);
}

NIB_DEVICE void place_wait(struct shared *m, uint32_t c, int side)
{
    if (c >= kStages)
        nib_barrier_wait(&m->empty[c % kStages][side], (c / kStages - 1) & 1u);
}

/* Rows that were NVFP4 and are BF16 but for their row scale, which stands behind them (attend_decoded_sm90a.cu). */
constexpr int kRowScaled = 1000;

/* The tiles of an item, number c first: BF16 rows; scaled: with a row scale. */
template <bool scaled>
NIB_DEVICE void feed_bf16(const struct nib_attend_args &a, const struct item &it, struct shared *m, uint32_t c)
{
    int            warp = (threadIdx.x - kConsumers) / 32, lane = threadIdx.x % 32, r0 = warp * 16;
    struct places  p = {&a, &it};
    int32_t        j = it.begin + r0 + lane % 16, place = place_of(p, j + kTile);
    const uint8_t *row = address_of(p, j, place_of(p, j));
    for (int32_t base = it.begin; base < it.end; base += kTile, j += kTile, c++) {
        int32_t        next_place = place_of(p, j + 2 * kTile);
        const uint8_t *next_row = address_of(p, j + kTile, place);
#pragma unroll
        for (int side = 0; side < 2; side++) {
            place_wait(m, c, side);
#pragma unroll
            for (int r = 0; r < 16; r++) {
                const uint8_t *from = row_of_lane(row, r);
                copy_unit(unit_of(m->kv[c % kStages], r0 + r, side * 32 + lane),
                          (const uint4 *)(from ? from : a.window.base) + side * 32 + lane, from != NULL);
            }
            if (scaled && side == 1 && lane < kWarpRows) /* both sides' places are free: nobody reads the last scale */
                copy_scale(&m->row_scale[c % kStages][r0 + lane], row ? row + 2 * kD : a.window.base, row != NULL);
            arrive_copied(&m->full[c % kStages][side]);
        }
        row = next_row;
        place = next_place;
    }
}

#endif
