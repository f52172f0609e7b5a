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
constexpr int kFirstReady = 0, kSecondReady = 1, kBothDone = 2;

NIB_DEVICE void consumers_sync(void)
{
    asm volatile("bar.sync 13, 256;" ::: "memory");
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

NIB_DEVICE void arrive_copied(uint64_t *barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(nib_shared_address(barrier)) : "memory");
}

/* A lane's row of a tile, of the 16 that its warp brings. */
NIB_DEVICE const uint8_t *row_of_lane(const uint8_t *row, int r)
{
    return (const uint8_t *)(uintptr_t)__shfl_sync(~0u, (unsigned long long)(uintptr_t)row, r);
}

/* An FP8 row comes as stored to where it will stand, 16 pieces of 8 bytes to each chunk's row of the tile, so that a
 * whole pair of tiles is on its way without a register; then its warp decodes it there. */
constexpr int kPieces = (kNope + 2 * kRot + 8) / 8;

NIB_DEVICE uint2 *piece_of(uint16_t (*tile)[kTile][kChunk], int row, int piece)
{
    return (uint2 *)tile[piece / 16][row] + piece % 16;
}

NIB_DEVICE void copy_piece(uint2 *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(nib_shared_address(to)), "l"(from) : "memory");
}

NIB_DEVICE void fp8_fetch(const uint8_t *row, uint16_t (*tile)[kTile][kChunk], int r0, int lane)
{
    for (int r = 0; r < 16; r++) {
        const uint8_t *from = row_of_lane(row, r);
        for (int i = lane; from && i < kPieces; i += 32)
            copy_piece(piece_of(tile, r0 + r, i), (const uint2 *)from + i);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Lane: units `lane` and 32 + lane of each row, the last eight of which are rotary channels, two pieces each. */
NIB_DEVICE void fp8_decode(const uint8_t *row, uint16_t (*tile)[kTile][kChunk], int r0, int lane)
{
    constexpr int kRows = 4; /* read together before the first is written */
    bool          rotary = lane >= kNope / 8 - 32;
    int           piece = rotary ? kNope / 8 + (lane - (kNope / 8 - 32)) * 2 : 32 + lane;
    __syncwarp(); /* all lanes' copies are there */
#pragma unroll 1
    for (int r = 0; r < 16; r += kRows) {
        uint2 low[kRows] = {}, high[kRows] = {}, more[kRows] = {}, scales[kRows] = {};
#pragma unroll
        for (int i = 0; i < kRows; i++) {
            if (!row_of_lane(row, r + i))
                continue;
            low[i] = *piece_of(tile, r0 + r + i, lane);
            high[i] = *piece_of(tile, r0 + r + i, piece);
            more[i] = *piece_of(tile, r0 + r + i, rotary ? piece + 1 : piece);
            scales[i] = *piece_of(tile, r0 + r + i, kPieces - 1);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kRows; i++) {
            bool  there = row_of_lane(row, r + i) != NULL;
            uint4 first = nib_fp8_values(low[i], scales[i].x >> lane / 8 * 8 & 255u),
                  second = rotary ? make_uint4(high[i].x, high[i].y, more[i].x, more[i].y)
                                  : nib_fp8_values(high[i], scales[i].y >> lane / 8 * 8 & 255u);
            *unit_of(tile, r0 + r + i, lane) = there ? first : make_uint4(0, 0, 0, 0);
            *unit_of(tile, r0 + r + i, 32 + lane) = there ? second : make_uint4(0, 0, 0, 0);
        }
    }
    proxy_fence();
}

/* An NVFP4 row: rotary channels to where they belong, the 256 bytes before them, as stored, to the row's place in the
 * first two chunks. */
constexpr int kRawUnits = 16, kNvfp4Units = kRawUnits + 2 * kRot / 16;

NIB_DEVICE void nvfp4_fetch(const uint8_t *row, uint16_t (*tile)[kTile][kChunk], int r0, int lane)
{
#pragma unroll 4
    for (int i = lane; i < 16 * kNvfp4Units; i += 32) {
        int            r = i / kNvfp4Units, unit = i % kNvfp4Units;
        const uint8_t *from = row_of_lane(row, r);
        uint4         *to = unit < kRawUnits ? (uint4 *)tile[unit / 8][r0 + r] + unit % 8
                                             : unit_of(tile, r0 + r, kNope / 8 + unit - kRawUnits);
        if (from)
            copy_unit(to, (const uint4 *)from + unit, true);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* The row scale stays apart. */
NIB_DEVICE void nvfp4_decode(const uint8_t *row, uint16_t (*tile)[kTile][kChunk], float *row_scale, int r0, int lane)
{
    constexpr int kRows = 4;
    bool          rotary = lane >= kNope / 8 - 32;
    __syncwarp();
#pragma unroll 1
    for (int r = 0; r < 16; r += kRows) {
        uint32_t low[kRows] = {}, high[kRows] = {}, scale[kRows][2] = {};
        float    g[kRows] = {};
#pragma unroll
        for (int i = 0; i < kRows; i++) {
            if (!row_of_lane(row, r + i))
                continue;
            const uint8_t *scales = (const uint8_t *)tile[1][r0 + r + i] + kNope / 2 - 2 * kChunk;
            low[i] = ((const uint32_t *)tile[0][r0 + r + i])[lane];
            high[i] = ((const uint32_t *)tile[1][r0 + r + i])[rotary ? 0 : lane];
            scale[i][0] = scales[lane / 2];
            scale[i][1] = scales[rotary ? 0 : 16 + lane / 2];
            g[i] = *(const float *)(scales + kNope / 16);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kRows; i++) {
            bool there = row_of_lane(row, r + i) != NULL;
            *unit_of(tile, r0 + r + i, lane) = there ? nib_nvfp4_values(low[i], scale[i][0]) : make_uint4(0, 0, 0, 0);
            if (!rotary || !there)
                *unit_of(tile, r0 + r + i, 32 + lane) =
                    there ? nib_nvfp4_values(high[i], scale[i][1]) : make_uint4(0, 0, 0, 0);
            if (lane == 0)
                row_scale[r0 + r + i] = there ? g[i] : 0;
        }
    }
    proxy_fence();
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

/* The tiles of an item, number c first: BF16 rows. */
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
            arrive_copied(&m->full[c % kStages][side]);
        }
        row = next_row;
        place = next_place;
    }
}

/* FP8 or NVFP4 rows, a pair of tiles at a time: the second one's places may only be free once the first one has been used, and
 * the first one's once the pair before is done with, so both are asked for before either is decoded. */
template <int format>
NIB_DEVICE void feed_packed(const struct nib_attend_args &a, const struct item &it, struct shared *m, uint32_t c)
{
    int           warp = (threadIdx.x - kConsumers) / 32, lane = threadIdx.x % 32, r0 = warp * 16;
    struct places p = {&a, &it};
    int32_t       j = it.begin + r0 + lane % 16, place[2] = {place_of(p, j), place_of(p, j + kTile)};
    for (int32_t base = it.begin; base < it.end; base += 2 * kTile, j += 2 * kTile) {
        const uint8_t *row[2] = {address_of(p, j, place[0]), address_of(p, j + kTile, place[1])};
        int            n = base + kTile < it.end ? 2 : 1;
        place[0] = place_of(p, j + 2 * kTile);
        place[1] = place_of(p, j + 3 * kTile);
#pragma unroll
        for (int t = 0; t < 2; t++) {
            if (t >= n)
                break;
            place_wait(m, c + t, 0);
            place_wait(m, c + t, 1);
            format == NIB_ROW_FP8 ? fp8_fetch(row[t], m->kv[(c + t) % kStages], r0, lane)
                                  : nvfp4_fetch(row[t], m->kv[(c + t) % kStages], r0, lane);
        }
#pragma unroll
        for (int t = 0; t < 2; t++) {
            if (t >= n)
                break;
            if (t + 1 < n)
                asm volatile("cp.async.wait_group 1;" ::: "memory");
            else
                asm volatile("cp.async.wait_group 0;" ::: "memory");
            if (format == NIB_ROW_FP8)
                fp8_decode(row[t], m->kv[(c + t) % kStages], r0, lane);
            else
                nvfp4_decode(row[t], m->kv[(c + t) % kStages], m->row_scale[(c + t) % kStages], r0, lane);
            nib_barrier_arrive(&m->full[(c + t) % kStages][0]);
            nib_barrier_arrive(&m->full[(c + t) % kStages][1]);
        }
        c += n;
    }
}

#endif
