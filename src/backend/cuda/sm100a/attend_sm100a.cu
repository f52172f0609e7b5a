/* Attention on tcgen05: bf16 queries of 64 heads of 512 channels over rows of BF16, FP8 or NVFP4. Compiled and
 * simulated; never run on hardware yet.
 *
 * A block takes one query row, 64 heads and 128 attended rows at a time. Both products are turned round, so that what
 * there is much of fills the tensor core's 128 lanes: scores have a row a lane and a head a column, sums a channel a
 * lane and a head a column. Then 512 channels of sums for 64 heads are 256 columns of tensor memory, and 64 or 128 are
 * left to the scores. Rows stand in shared memory once for both: chunks of 64 channels, 128 bytes a row.
 *
 *   warps 5-8  bring rows from their pages, chunk by chunk, decoded to bf16 (exactly), behind the products that
 *              still read the tile before
 *   warp 4     issues products, owns tensor memory
 *   warps 0-3  make weights of scores, a row a thread, scale older sums where a maximum has grown, store the result
 *
 * Weights are two bf16 parts, so that both products are as good as fp32. NVFP4 rows leave their row scale out of
 * shared memory: it multiplies scores and weights, of all channels but the rotary ones, which therefore have a second
 * set of weights and columns of their own.
 *
 * With few rows eight blocks, a cluster, share what one query attends to and add up in each other's shared memory.
 * docs/kernels/sm100a.md has the arithmetic. */
#include "backend/cuda/device/attended.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/tcgen05.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kD = kAttendDim, kNope = kAttendNope, kRot = kAttendRot;
constexpr int kHeads = NIB_SM100A_ATTEND_HEADS, kTile = 128, kChunk = 64, kChunks = kD / kChunk;
constexpr int kPairs = kChunks / 2; /* of chunks: the 128 channels of one product's lanes */
constexpr int kWeighWarps = 4, kProductWarp = 4, kLoadWarps = 4, kThreads = NIB_SM100A_ATTEND_THREADS;
constexpr int kRowsEach = kTile / kLoadWarps, kUnits = kRowsEach / 4; /* of a warp; 16 bytes a lane of a chunk */
constexpr int kDepth = 3;                                              /* chunks of BF16 rows on their way */
constexpr int kAhead = 1, kRing = 2; /* chunks of other rows read before they are decoded, and room for them */
constexpr int kTmemColumns = 512;
constexpr uint32_t kScores = 384, kRotaryScores = 448; /* first columns; sums stand from 0 on */
/* A maximum is raised only when it has grown by this many powers of two: sums need not be scaled for less, and weights
 * of up to 256 are as exact as those of up to 1. */
constexpr float kLate = 8.0f;
constexpr float kLog2E = 1.4426950408889634f;
static_assert(kThreads == 32 * (kWeighWarps + 1 + kLoadWarps), "a role for each warp");
static_assert(kNope % kChunk == 0 && kRot == kChunk, "the last chunk is the rotary one");

struct barriers {
    uint64_t full[kChunks], empty[kPairs], scored, weighed, turn, added; /* turn: NVFP4's first weights are used up */
};

struct shared {
    union {
        uint16_t kv[kChunks][kTile][kChunk];
        float    o[kHeads][kD]; /* of a block of a cluster, in the end */
    };
    uint16_t        q[kChunks][kHeads][kChunk];
    uint16_t        p[2][kTile][kHeads];
    float           most[kWeighWarps][kHeads]; /* maxima of a tile; in the end totals */
    float           peak[kHeads], fade[kHeads];
    float           angle[kRot];
    struct barriers bar;
    uint32_t        tmem;
};
static_assert(sizeof(struct shared) + 1024 == NIB_SM100A_ATTEND_SHARED, "what the host asks for");
static_assert(NIB_SM100A_ATTEND_SHARED <= 232448, "a block's memory must fit");

struct work {
    const struct nib_attend_args *a;
    struct nib_attended           at;
    int64_t                       t;
    int32_t                       h0, begin, end; /* attended rows of this block */
};

NIB_DEVICE uint32_t at(const void *p)
{
    return nib_shared_address(p);
}

/* Where 16 bytes, `unit` of the 8 of a row, stand under the swizzle. */
NIB_DEVICE uint4 *unit_of(uint16_t (*rows)[64], int row, int unit)
{
    return (uint4 *)&rows[row][(unit ^ row % 8) * 8];
}

NIB_DEVICE void weighers_sync(void)
{
    asm volatile("bar.sync 1, 128;" ::: "memory");
}

/* ---- Rows into shared memory ---- */

NIB_DEVICE void copy_unit(uint4 *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(to)), "l"(from) : "memory");
}

/* Queries of heads that do not exist are zeros. */
NIB_DEVICE void load_query(const struct work &w, struct shared *m, int thread)
{
    for (int i = thread; i < kHeads * (kD / 8); i += 32 * kLoadWarps) {
        int    h = i / (kD / 8), u = i % (kD / 8);
        uint4 *to = unit_of(m->q[u / 8], h, u % 8);
        if (w.h0 + h < w.a->n_heads)
            copy_unit(to, (const uint4 *)((const uint16_t *)w.a->q.data + w.t * w.a->q.stride +
                                          (int64_t)(w.h0 + h) * kD) +
                              u);
        else
            *to = make_uint4(0, 0, 0, 0);
    }
}

/* The row of the warp's kRowsEach that this lane's piece i belongs to. */
NIB_DEVICE int piece_row(int lane, int i)
{
    return lane / 8 + 4 * i;
}

NIB_DEVICE const uint8_t *row_of_piece(const uint8_t *mine, int lane, int i)
{
    return (const uint8_t *)(uintptr_t)__shfl_sync(~0u, (unsigned long long)(uintptr_t)mine, piece_row(lane, i));
}

/* A chunk that is stored as bf16, on its way without passing a register: `from` bytes into each row. FP8 rows are
 * aligned to 8 bytes. */
template <int format>
NIB_DEVICE void copy_chunk(uint16_t (*to)[kChunk], const uint8_t *mine, int from, int first, int lane)
{
#pragma unroll
    for (int i = 0; i < kUnits; i++) {
        const uint8_t *row = row_of_piece(mine, lane, i);
        uint4         *unit = unit_of(to, first + piece_row(lane, i), lane % 8);
        if (!row) {
            *unit = make_uint4(0, 0, 0, 0);
        } else if (format == NIB_ROW_FP8) {
            for (int k = 0; k < 2; k++)
                asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at((uint2 *)unit + k)),
                             "l"(row + from + lane % 8 * 16 + k * 8)
                             : "memory");
        } else {
            copy_unit(unit, row + from + lane % 8 * 16);
        }
    }
}

/* What a lane holds of a chunk until it is decoded: eight codes a piece, and their scale. */
struct raw {
    uint2    codes[kUnits];
    uint32_t scales[kUnits / 4]; /* a byte each */
};

template <int format> NIB_DEVICE void read_chunk(const uint8_t *mine, int chunk, int lane, struct raw *r)
{
#pragma unroll
    for (int i = 0; i < kUnits; i++) {
        const uint8_t *row = row_of_piece(mine, lane, i);
        uint32_t       scale = 0;
        r->codes[i] = make_uint2(0, 0);
        if (row && format == NIB_ROW_FP8) {
            r->codes[i] = ((const uint2 *)row)[chunk * 8 + lane % 8];
            scale = row[kNope + 2 * kRot + chunk];
        } else if (row) {
            r->codes[i].x = ((const uint32_t *)row)[chunk * 8 + lane % 8];
            scale = row[kNope / 2 + chunk * 4 + lane % 8 / 2];
        }
        r->scales[i / 4] = i % 4 == 0 ? scale : r->scales[i / 4] | scale << i % 4 * 8;
    }
}

template <int format> NIB_DEVICE uint4 decoded(uint2 c, uint32_t scale)
{
    uint32_t v[4];
    float    s = format == NIB_ROW_FP8 ? nib_e8m0_value(scale) : nib_e4m3_value(scale);
    for (int i = 0; i < 4; i++) {
        uint32_t two = format == NIB_ROW_FP8 ? (i < 2 ? c.x : c.y) >> i % 2 * 16 : c.x >> 8 * i;
        v[i] = format == NIB_ROW_FP8
                   ? nib_pack_bf16x2(nib_fp8_value(two & 255, s), nib_fp8_value(two >> 8 & 255, s))
                   : nib_pack_bf16x2(nib_e2m1_value(two) * s, nib_e2m1_value(two >> 4) * s);
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}

template <int format>
NIB_DEVICE void decode_chunk(uint16_t (*to)[kChunk], const struct raw *r, int first, int lane)
{
#pragma unroll
    for (int i = 0; i < kUnits; i++)
        *unit_of(to, first + piece_row(lane, i), lane % 8) =
            decoded<format>(r->codes[i], r->scales[i / 4] >> i % 4 * 8 & 255u);
}

NIB_DEVICE void announce(uint64_t *full, int lane)
{
    nib_proxy_fence();
    __syncwarp();
    if (lane == 0)
        nib_mbar_arrive(at(full));
}

NIB_DEVICE const uint8_t *row_of(const struct work &w, int32_t j)
{
    return j < w.end ? nib_attended_row(*w.a, w.at, j) : NULL;
}

/* The products that read this pair of chunks a tile before are done. */
NIB_DEVICE void await_pair(struct shared *m, int c, int32_t tile)
{
    if (tile > 0 && c % 2 == 0)
        nib_mbar_wait(at(&m->bar.empty[c / 2]), (uint32_t)(tile - 1) & 1u);
}

/* Chunk after chunk of a tile, up to kDepth on their way. */
NIB_DEVICE void load_bf16(struct shared *m, const uint8_t *mine, int32_t tile, int first, int lane)
{
#pragma unroll 1
    for (int c = 0; c < kChunks; c++) {
        await_pair(m, c, tile);
        copy_chunk<NIB_ROW_BF16>(m->kv[c], mine, c * 2 * kChunk, first, lane);
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (c < kDepth)
            continue;
        asm volatile("cp.async.wait_group %0;" ::"n"(kDepth) : "memory");
        announce(&m->bar.full[c - kDepth], lane);
    }
    /* Not left for the next tile: scores wait for them, and the next tile for what follows the scores. */
    asm volatile("cp.async.wait_all;" ::: "memory");
    for (int c = kChunks - kDepth; c < kChunks; c++)
        announce(&m->bar.full[c], lane);
}

/* The same; codes are read kAhead chunks before they are decoded, the next tile's too. */
template <int format>
NIB_DEVICE void load_coded(struct shared *m, const uint8_t *mine, const uint8_t *next, int32_t tile, int first,
                           int lane, struct raw ring[kRing])
{
    constexpr int last = kChunks - 1, rotary = format == NIB_ROW_FP8 ? kNope : kNope / 2 + kNope / 16 + 4;
#pragma unroll kRing
    for (int c = 0; c < kChunks; c++) {
        int ahead = (c + kAhead) % kChunks;
        if (ahead != last)
            read_chunk<format>(c + kAhead < kChunks ? mine : next, ahead, lane, &ring[(c + kAhead) % kRing]);
        await_pair(m, c, tile);
        if (c == last - 1)
            copy_chunk<format>(m->kv[last], mine, rotary, first, lane);
        if (c < last)
            decode_chunk<format>(m->kv[c], &ring[c % kRing], first, lane);
        if (c == last || c == 0) /* the query came with the first */
            asm volatile("cp.async.wait_all;" ::: "memory");
        announce(&m->bar.full[c], lane);
    }
}

/* Tile after tile; a lane finds the address of one row, a tile ahead. Rows behind the last are zeros. */
template <int format> NIB_DEVICE void load_tiles(const struct work &w, struct shared *m, int warp, int lane)
{
    int            first = warp * kRowsEach;
    const uint8_t *mine = row_of(w, w.begin + first + lane % kRowsEach);
    struct raw     ring[kRing];
    load_query(w, m, warp * 32 + lane);
    for (int c = 0; format != NIB_ROW_BF16 && c < kAhead; c++)
        read_chunk<format>(mine, c, lane, &ring[c]);
    for (int32_t base = w.begin, i = 0; base < w.end; base += kTile, i++) {
        const uint8_t *next = row_of(w, base + kTile + first + lane % kRowsEach);
        if (format == NIB_ROW_BF16)
            load_bf16(m, mine, i, first, lane);
        else
            load_coded<format>(m, mine, next, i, first, lane, ring);
        mine = next;
    }
}

/* ---- Products, by one thread ---- */

/* Sums of 128 channels += rows x weights, both parts. */
NIB_DEVICE void add_pair(struct shared *m, uint32_t d, int pair, bool older)
{
    constexpr uint32_t idesc = nib_instruction_half(128, kHeads, true, true);
    for (int part = 0; part < 2; part++)
        for (int k = 0; k < kTile / 16; k++)
            nib_mma_half(d, nib_matrix_along(at(m->kv[2 * pair][k * 16]), sizeof m->kv[0]),
                         nib_matrix_along(at(m->p[part][k * 16]), 0), idesc, older || part > 0 || k > 0);
}

template <int format> NIB_DEVICE void multiply_tiles(const struct work &w, struct shared *m, uint32_t tmem)
{
    constexpr uint32_t idesc = nib_instruction_half(kTile, kHeads, false, false);
    uint32_t           n_weighed = 0;
    for (int32_t base = w.begin, i = 0; base < w.end; base += kTile, i++) {
        for (int c = 0; c < kChunks; c++) {
            bool     rotary = format == NIB_ROW_NVFP4 && c == kChunks - 1;
            uint32_t d = tmem + (rotary ? kRotaryScores : kScores);
            nib_mbar_wait(at(&m->bar.full[c]), (uint32_t)i & 1u);
            nib_tcgen05_after_sync();
            for (int k = 0; k < kChunk / 16; k++) /* 32 bytes are 2 in a descriptor */
                nib_mma_half(d, nib_matrix_sw128(at(m->kv[c])) + 2 * k, nib_matrix_sw128(at(m->q[c])) + 2 * k, idesc,
                             (c > 0 && !rotary) || k > 0);
        }
        nib_tcgen05_commit<1>(at(&m->bar.scored));
        nib_mbar_wait(at(&m->bar.weighed), n_weighed++ & 1u);
        nib_tcgen05_after_sync();
#pragma unroll 1
        for (int pair = 0; pair < kPairs; pair++) {
            add_pair(m, tmem + (uint32_t)(pair * kHeads), pair, i > 0);
            if (format != NIB_ROW_NVFP4 || pair + 1 < kPairs)
                nib_tcgen05_commit<1>(at(&m->bar.empty[pair]));
        }
        if (format != NIB_ROW_NVFP4)
            continue;
        nib_tcgen05_commit<1>(at(&m->bar.turn));
        nib_mbar_wait(at(&m->bar.weighed), n_weighed++ & 1u);
        nib_tcgen05_after_sync();
        add_pair(m, tmem + kPairs * kHeads, kPairs - 1, i > 0); /* for its upper lanes, the rotary channels */
        nib_tcgen05_commit<1>(at(&m->bar.empty[kPairs - 1]));
    }
    nib_tcgen05_commit<1>(at(&m->bar.added));
}

/* ---- Weights, a row a thread ---- */

/* v[i] of all lanes joined; lane i gets that of i. */
template <bool add> NIB_DEVICE float across(float v[32], int lane)
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) {
            float keep = lane & half ? v[i + half] : v[i],
                  other = __shfl_xor_sync(~0u, lane & half ? v[i] : v[i + half], half);
            v[i] = add ? keep + other : fmaxf(keep, other);
        }
    return v[0];
}

/* Columns of this warp's lanes where the sums of 128 channels stand. */
template <int format> NIB_DEVICE uint32_t sums_of(uint32_t tmem, int pair, int warp)
{
    bool rotary = format == NIB_ROW_NVFP4 && pair == kPairs - 1 && warp >= 2;
    return tmem + (uint32_t)((pair + rotary) * kHeads) + ((uint32_t)warp << 21);
}

/* Half of the scores of this thread's row, in powers of two; -inf where there is no row. Read once for the maxima and
 * once for each set of weights, as 64 would take registers from what loads rows. */
template <int format>
NIB_DEVICE void read_scores(const struct work &w, uint32_t tmem, int half, bool there, float g, float s[32])
{
    float    unit = w.a->scale * kLog2E;
    uint32_t r[32], x[32];
    nib_tmem_load32(tmem + kScores + half * 32, r);
    nib_tmem_wait_load(r);
    if (format == NIB_ROW_NVFP4) {
        nib_tmem_load32(tmem + kRotaryScores + half * 32, x);
        nib_tmem_wait_load(x);
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float v = __uint_as_float(r[i]);
        if (format == NIB_ROW_NVFP4)
            v = v * g + __uint_as_float(x[i]);
        s[i] = there ? v * unit : -INFINITY;
    }
}

/* Each lane's two heads, lane and 32 + lane: running maxima and, of this warp's rows, totals. */
struct running {
    float peak[2], total[2];
};

/* Raises maxima, alike in all four warps; what older sums are multiplied by goes to shared memory. True if it
 * matters. */
template <int format>
NIB_DEVICE bool raise_peaks(const struct work &w, struct shared *m, uint32_t tmem, int warp, int lane, bool there,
                            float g, struct running *run)
{
    float fade[2];
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        float s[32];
        read_scores<format>(w, tmem, half, there, g, s);
        m->most[warp][half * 32 + lane] = across<false>(s, lane);
    }
    weighers_sync();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int   h = half * 32 + lane;
        float old = run->peak[half],
              top = fmaxf(fmaxf(m->most[0][h], m->most[1][h]), fmaxf(m->most[2][h], m->most[3][h]));
        if (old == -INFINITY || top > old + kLate)
            run->peak[half] = top;
        fade[half] = old == -INFINITY ? 1 : exp2f(old - run->peak[half]);
        run->total[half] *= fade[half];
        if (warp == 0) {
            m->peak[h] = run->peak[half];
            m->fade[h] = fade[half];
        }
    }
    weighers_sync();
    return __any_sync(~0u, fade[0] != 1 || fade[1] != 1);
}

template <int format> NIB_DEVICE void scale_sums(const struct shared *m, uint32_t tmem, int warp)
{
#pragma unroll 1
    for (int pair = 0; pair < kPairs; pair++)
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            uint32_t r[32], from = sums_of<format>(tmem, pair, warp) + half * 32;
            nib_tmem_load32(from, r);
            nib_tmem_wait_load(r);
#pragma unroll
            for (int i = 0; i < 32; i++)
                r[i] = __float_as_uint(__uint_as_float(r[i]) * m->fade[half * 32 + i]);
            nib_tmem_store32(from, r);
        }
    nib_tmem_wait_store();
}

/* Weights of the row times `by`, as two bf16 parts, to where products read them; sum: whether they count. */
template <int format>
NIB_DEVICE void put_weights(const struct work &w, struct shared *m, uint32_t tmem, int row, bool there, float g,
                            float by, bool sum, struct running *run)
{
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        float s[32];
        read_scores<format>(w, tmem, half, there, g, s);
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i] = s[i] == -INFINITY ? 0 : exp2f(s[i] - m->peak[half * 32 + i]); /* NaN passes */
#pragma unroll
        for (int u = 0; u < 4; u++) {
            uint32_t high[4], low[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float v0 = s[u * 8 + 2 * i] * by, v1 = s[u * 8 + 2 * i + 1] * by;
                high[i] = nib_pack_bf16x2(v0, v1);
                low[i] = nib_pack_bf16x2(v0 - nib_bf16_value(high[i] & 0xffffu), v1 - nib_bf16_value(high[i] >> 16));
            }
            *unit_of(m->p[0], row, half * 4 + u) = make_uint4(high[0], high[1], high[2], high[3]);
            *unit_of(m->p[1], row, half * 4 + u) = make_uint4(low[0], low[1], low[2], low[3]);
        }
        if (sum) {
            float total = across<true>(s, row % 32);
            run->total[0] += half == 0 ? total : 0;
            run->total[1] += half == 1 ? total : 0;
        }
    }
}

/* What was stored to shared and tensor memory is there for the products. */
NIB_DEVICE void hand_over(struct shared *m, int lane)
{
    nib_proxy_fence();
    nib_tcgen05_before_sync();
    __syncwarp();
    if (lane == 0)
        nib_mbar_arrive(at(&m->bar.weighed));
}

NIB_DEVICE float row_scale(const uint8_t *row)
{
    return row ? *(const float *)(row + kNope / 2 + kNope / 16) : 0;
}

template <int format>
NIB_DEVICE void weigh_tiles(const struct work &w, struct shared *m, uint32_t tmem, int warp, int lane,
                            struct running *run)
{
    int      row = warp * 32 + lane;
    uint32_t own = tmem + ((uint32_t)warp << 21); /* this warp's lanes */
    float    g = format == NIB_ROW_NVFP4 ? row_scale(row_of(w, w.begin + row)) : 1;
    for (int32_t base = w.begin, i = 0; base < w.end; base += kTile, i++) {
        bool  there = base + row < w.end;
        float next = format == NIB_ROW_NVFP4 ? row_scale(row_of(w, base + kTile + row)) : 1;
        nib_mbar_wait(at(&m->bar.scored), (uint32_t)i & 1u); /* and with them the sums of the tile before */
        nib_tcgen05_after_sync();
        bool grown = raise_peaks<format>(w, m, own, warp, lane, there, g, run);
        if (i > 0 && grown)
            scale_sums<format>(m, tmem, warp);
        put_weights<format>(w, m, own, row, there, g, g, true, run);
        hand_over(m, lane);
        if (format == NIB_ROW_NVFP4) {
            nib_mbar_wait(at(&m->bar.turn), (uint32_t)i & 1u);
            put_weights<format>(w, m, own, row, there, g, 1, false, run);
            hand_over(m, lane);
        }
        g = next;
    }
    if (w.begin < w.end) {
        nib_mbar_wait(at(&m->bar.added), 0);
        nib_tcgen05_after_sync();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        m->most[warp][half * 32 + lane] = run->total[half];
        if (warp == 0)
            m->peak[half * 32 + lane] = run->peak[half];
    }
    weighers_sync();
}

/* ---- Results ---- */

NIB_DEVICE float total_of(const struct shared *m, int h)
{
    return m->most[0][h] + m->most[1][h] + m->most[2][h] + m->most[3][h];
}

/* What sums of a head are multiplied by: its sink counts like a row that adds nothing. */
NIB_DEVICE float factor_of(float sink, float peak, float total)
{
    float most = fmaxf(peak, sink), fade = peak == -INFINITY ? 0 : exp2f(peak - most);
    return fade / (total * fade + exp2f(sink - most));
}

NIB_DEVICE void store_pair(const struct work &w, const struct shared *m, int head, int channel, float even, float odd,
                           bool pairs)
{
    int64_t col = (int64_t)head * kD + channel;
    if (channel >= kNope) {
        int pair = (channel - kNope) / 2;
        nib_rotate_pair(&even, &odd, m->angle[pair], -m->angle[kRot / 2 + pair]);
    }
    if (pairs) {
        *(uint32_t *)((uint16_t *)w.a->o.data + w.t * w.a->o.stride + col) = nib_pack_bf16x2(even, odd);
    } else {
        nib_mat_set(w.a->o, w.t, col, even);
        nib_mat_set(w.a->o, w.t, col + 1, odd);
    }
}

/* A channel a lane: neighbours swap every other head, so that each stores pairs of channels. */
template <int format>
NIB_DEVICE void store_sums(const struct work &w, struct shared *m, uint32_t tmem, int warp, int lane)
{
    const struct nib_mat &o = w.a->o;
    bool pairs = o.dtype == NIB_DTYPE_BF16 && o.stride % 2 == 0 && (uintptr_t)o.data % 4 == 0;
    int  h = warp * 32 + lane;
    if (h < kHeads)
        m->fade[h] = factor_of(w.h0 + h < w.a->n_heads ? w.a->sink[w.h0 + h] * kLog2E : 0, m->peak[h], total_of(m, h));
    weighers_sync();
#pragma unroll 1
    for (int pair = 0; pair < kPairs; pair++)
#pragma unroll 1
        for (int first = 0; first < kHeads; first += 8) {
            uint32_t r[8];
            int      channel = pair * 2 * kChunk + warp * 32 + lane / 2 * 2;
            nib_tmem_read8(sums_of<format>(tmem, pair, warp) + first, r);
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                float v0 = __uint_as_float(r[i]) * m->fade[first + i],
                      v1 = __uint_as_float(r[i + 1]) * m->fade[first + i + 1];
                float other = __shfl_xor_sync(~0u, lane % 2 ? v0 : v1, 1);
                int   head = w.h0 + first + i + lane % 2;
                if (head < w.a->n_heads)
                    store_pair(w, m, head, channel, lane % 2 ? other : v0, lane % 2 ? v1 : other, pairs);
            }
            __syncwarp();
        }
}

/* A block of a cluster: its sums to shared memory, where rows stood; totals to m->fade. */
template <int format> NIB_DEVICE void keep_sums(struct shared *m, uint32_t tmem, int warp, int lane)
{
    if (warp * 32 + lane < kHeads)
        m->fade[warp * 32 + lane] = total_of(m, warp * 32 + lane);
#pragma unroll 1
    for (int pair = 0; pair < kPairs; pair++)
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            uint32_t r[32];
            nib_tmem_load32(sums_of<format>(tmem, pair, warp) + half * 32, r);
            nib_tmem_wait_load(r);
#pragma unroll
            for (int i = 0; i < 32; i++)
                m->o[half * 32 + i][pair * 2 * kChunk + warp * 32 + lane] = __uint_as_float(r[i]);
        }
}

NIB_DEVICE float cluster_load(const float *p, uint32_t rank)
{
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(nib_map_rank(at(p), rank)) : "memory");
    return v;
}

NIB_DEVICE void cluster_load4(const float *p, uint32_t rank, float v[4])
{
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(nib_map_rank(at(p), rank))
                 : "memory");
}

/* Four channels of a head a thread: the blocks' sums in ascending order of their rows. Block r finishes every
 * eighth head from r on. */
NIB_DEVICE void join_sums(const struct work &w, const struct shared *m, int32_t n_blocks)
{
    constexpr int blocks = NIB_SM100A_ATTEND_BLOCKS;
    const struct nib_mat &y = w.a->o;
    bool pairs = y.dtype == NIB_DTYPE_BF16 && y.stride % 2 == 0 && (uintptr_t)y.data % 4 == 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < kHeads / blocks * (kD / 4); i += kThreads) {
        int   h = i / (kD / 4) * blocks + (int)nib_cluster_rank(), c = i % (kD / 4) * 4;
        float peak[blocks], total[blocks], x[blocks][4], o[4] = {}, most, sum;
        if (w.h0 + h >= w.a->n_heads)
            continue;
        float sink = w.a->sink[w.h0 + h] * kLog2E;
        most = sink;
#pragma unroll
        for (int b = 0; b < blocks; b++) {
            uint32_t from = (uint32_t)min(b, n_blocks - 1); /* without a branch: all reads on their way together */
            peak[b] = cluster_load(&m->peak[h], from);
            total[b] = cluster_load(&m->fade[h], from);
            cluster_load4(&m->o[h][c], from, x[b]);
        }
#pragma unroll
        for (int b = 0; b < blocks; b++)
            most = b < n_blocks ? fmaxf(most, peak[b]) : most;
        sum = exp2f(sink - most);
#pragma unroll
        for (int b = 0; b < blocks; b++) {
            float by = b >= n_blocks || peak[b] == -INFINITY ? 0 : exp2f(peak[b] - most);
            for (int k = 0; b < n_blocks && k < 4; k++)
                o[k] = fmaf(x[b][k], by, o[k]);
            sum = b < n_blocks ? fmaf(total[b], by, sum) : sum;
        }
        for (int k = 0; k < 4; k += 2)
            store_pair(w, m, w.h0 + h, c + k, o[k] / sum, o[k + 1] / sum, pairs);
    }
}

/* ---- The kernel ---- */

/* As with sincos() in double, whose code for huge angles needs a stack: the angle in half turns as a sum of two
 * doubles, the even whole ones of which do not matter. */
NIB_DEVICE void cosine_sine(float angle, float *cosine, float *sine)
{
    constexpr double high = 0.31830988618379067154, low = -1.9678676675182486e-17; /* 1 / pi */
    double           x = (double)angle, turns = x * high, rest = fma(x, high, -turns) + x * low, s, c;
    sincospi((turns - 2 * rint(turns / 2)) + rest, &s, &c);
    *cosine = (float)c;
    *sine = (float)s;
}

template <int format> NIB_DEVICE void attend(const struct nib_sm100a_attend_args &args)
{
    extern __shared__ uint8_t memory[];
    nib_grid_release();
    struct shared *m = (struct shared *)(memory + (1024 - nib_shared_address(memory) % 1024) % 1024);
    int            warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int c = 0; c < kChunks; c++)
            nib_mbar_init(at(&m->bar.full[c]), kLoadWarps);
        for (int pair = 0; pair < kPairs; pair++)
            nib_mbar_init(at(&m->bar.empty[pair]), 1);
        nib_mbar_init(at(&m->bar.scored), 1);
        nib_mbar_init(at(&m->bar.weighed), kWeighWarps);
        nib_mbar_init(at(&m->bar.turn), 1);
        nib_mbar_init(at(&m->bar.added), 1);
        nib_mbar_init_fence();
    }
    if (warp == kProductWarp)
        nib_tmem_alloc<1>(at(&m->tmem), kTmemColumns);
    __syncwarp();
    nib_tcgen05_before_sync();
    __syncthreads();
    nib_tcgen05_after_sync();
    uint32_t tmem = m->tmem;
    nib_grid_wait();

    int32_t     blocks = args.few ? NIB_SM100A_ATTEND_BLOCKS : 1;
    struct work w = {&args.a, {}, args.first + (int64_t)blockIdx.y, (int32_t)blockIdx.x / blocks * kHeads, 0, 0};
    w.at = nib_attended_by(args.a, args.rows, w.t);
    int32_t share = args.few ? max(16, (w.at.n + blocks - 1) / blocks) : w.at.n;
    w.begin = (int32_t)blockIdx.x % blocks * share;
    w.end = min(w.begin + share, w.at.n);
    if (threadIdx.x < kRot / 2) {
        float angle = (float)(args.rows.pos[w.t] - args.rows.first_pos) * args.a.rope.freq[threadIdx.x];
        cosine_sine(angle, &m->angle[threadIdx.x], &m->angle[kRot / 2 + threadIdx.x]);
    }
    if (warp > kProductWarp) {
        if (w.begin < w.end)
            load_tiles<format>(w, m, warp - kProductWarp - 1, lane);
    } else if (warp == kProductWarp) {
        if (nib_elect())
            multiply_tiles<format>(w, m, tmem);
    } else {
        struct running run = {{-INFINITY, -INFINITY}, {0, 0}};
        weigh_tiles<format>(w, m, tmem, warp, lane, &run);
        if (!args.few)
            store_sums<format>(w, m, tmem, warp, lane);
        else if (w.begin < w.end)
            keep_sums<format>(m, tmem, warp, lane);
    }
    __syncwarp(); /* one thread worked in warp 4; what follows is for whole warps */
    nib_tcgen05_before_sync();
    if (args.few)
        nib_cluster_sync();
    else
        __syncthreads();
    nib_tcgen05_after_sync();
    if (warp == kProductWarp)
        nib_tmem_dealloc<1>(tmem, kTmemColumns);
    if (args.few) {
        join_sums(w, m, (w.at.n + share - 1) / share);
        __syncwarp();
        nib_cluster_sync(); /* others may still read this block's memory */
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_attend_bf16(const __grid_constant__ struct nib_sm100a_attend_args a)
{
    attend<NIB_ROW_BF16>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_attend_fp8(const __grid_constant__ struct nib_sm100a_attend_args a)
{
    attend<NIB_ROW_FP8>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm100a_attend_nvfp4(const __grid_constant__ struct nib_sm100a_attend_args a)
{
    attend<NIB_ROW_NVFP4>(a);
}
