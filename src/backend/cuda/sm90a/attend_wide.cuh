/* Attention on Hopper's wgmma: bf16 queries of 64 heads of 512 channels over BF16 or FP8 rows.
 *
 * A block takes one query row and 64 heads, which are the M of its products, and walks what the row attends to in pairs
 * of tiles of 64 rows. Each row is brought into shared memory once for both products: as the K-major operand of the
 * scores and, read along its channels, as the operand of the sums. Two warpgroups work in turns, so that one's products
 * run while the other makes weights of scores: the first scores the first tile of a pair, the second the second one,
 * and each adds up one side, 256 channels, of both. Warps of the same number hold the same heads in both groups; they
 * hand over weights and maxima through shared memory, lane by lane. A third warpgroup brings rows, a side of a tile as
 * soon as its place is free. Weights are bf16, as in the release; scores and sums are fp32.
 *
 * Many rows: a block a multiprocessor takes one after the other, and the next one's query and rows come while the last
 * one is finished. Fewer: a cluster of two blocks shares a row's tiles, or of eight, which add up in each other's
 * shared memory.
 *
 * Counts for a pair: 4 * 2 * 64 * 64 * 512 multiply-adds, 4096 clocks at 2048 a clock; 128 KB from L2.
 *
 * Registers: 128 of sums, 32 of scores and 32 of weights a thread, 216 for these warpgroups and 72 for the third: in
 * sum no more than the 168 a thread that the block has at entry. Shared memory: query 64 KB, tiles 128 KB, weights 16 KB. */
#ifndef NIB_CUDA_ATTEND_WIDE_CUH
#define NIB_CUDA_ATTEND_WIDE_CUH

#include "backend/cuda/attend_cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm90a/attend_packed.cuh"
#include "backend/cuda/sm90a/attend_walk.cuh"

/* ---- Results ---- */

/* Totals of the whole item, the `done`th. */
NIB_DEVICE void add_totals(struct shared *m, int group, uint32_t done, struct softmax *w)
{
    int i = threadIdx.x % 128, turn = (int)(done & 1u);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        w->total[c] += __shfl_xor_sync(~0u, w->total[c], 1);
        w->total[c] += __shfl_xor_sync(~0u, w->total[c], 2);
    }
    m->total[turn][group][i] = make_float2(w->total[0], w->total[1]);
    nib_barrier_arrive(&m->totals[i / 32]);
    nib_barrier_wait(&m->totals[i / 32], done & 1u);
    float2 first = m->total[turn][0][i], second = m->total[turn][1][i];
    w->total[0] = first.x + second.x;
    w->total[1] = first.y + second.y;
}

/* Four lanes hold two neighbouring channels of four groups of eight each: afterwards a lane has one group. */
NIB_DEVICE void turn_quad(uint32_t (&v)[4], int lane)
{
    bool odd = lane & 1, high = lane & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t x = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 1], 1);
        v[i] = odd ? x : v[i];
        v[i + 1] = odd ? v[i + 1] : x;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t x = __shfl_xor_sync(~0u, high ? v[i] : v[i + 2], 2);
        v[i] = high ? x : v[i];
        v[i + 2] = high ? v[i + 2] : x;
    }
}

/* What sums are multiplied by at last, with the sink among the weights. most: of the scores as products give them. */
NIB_DEVICE float last_factor(float sink, float most, float total, float scale)
{
    float top = fmaxf(sink, most * scale), shrink = most == -INFINITY ? 0 : expf(most * scale - top);
    return shrink / fmaf(total, shrink, expf(sink - top));
}

/* Where a thread's heads are, of the item's: two for bf16 queries, eight apart; one for fp32 ones. */
template <bool f32> NIB_DEVICE int head_of(int warp, int lane, int c)
{
    return f32 ? warp * 8 + lane / 4 : warp * 16 + lane / 4 + c * 8;
}

/* The sums of both parts of an fp32 query are one. */
NIB_DEVICE void join_parts(float (&o)[128])
{
#pragma unroll
    for (int i = 0; i < 128; i += 4) {
        o[i] += o[i + 2];
        o[i + 1] += o[i + 3];
    }
}

/* n groups of eight channels from `channel` on of a thread's head c, times the factor and rotated back. */
template <bool f32, int n>
NIB_DEVICE void store_head(const struct nib_attend_args &a, const struct item &it, int head, int c, int lane,
                           int channel, const float *angle, float factor, const float (&o)[4 * n])
{
    bool    there = head < a.n_heads;
    int64_t at = it.t * a.o.stride + (int64_t)head * kD + channel;
#pragma unroll
    for (int i = 0; i < n; i += 4) {
        uint32_t v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float even = o[(i + k) * 4 + c * 2] * factor, odd = o[(i + k) * 4 + c * 2 + 1] * factor;
            if (channel + (i + k) * 8 >= kNope) {
                int pair = (channel + (i + k) * 8 - kNope) / 2 + lane % 4;
                nib_rotate_pair(&even, &odd, angle[pair], -angle[kRot / 2 + pair]);
            }
            v[k] = nib_pack_bf16x2(even, odd);
            if (f32 && there)
                *(float2 *)((float *)a.o.data + at + (i + k) * 8 + lane % 4 * 2) = make_float2(even, odd);
        }
        if (f32)
            continue;
        turn_quad(v, lane);
        if (there)
            *(uint4 *)((uint16_t *)a.o.data + at + (i + lane % 4) * 8) = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

/* An item that one block has done: a side of its channels. */
template <int side, bool f32>
NIB_DEVICE void store_item(const struct nib_attend_args &a, const struct item &it, int warp, int lane,
                           const float *angle, const struct softmax &w, float (&o)[128])
{
#pragma unroll
    for (int c = 0; c < (f32 ? 1 : 2); c++) {
        int   head = it.h0 + head_of<f32>(warp, lane, c);
        float factor = last_factor(head < a.n_heads ? a.sink[head] : 0, w.most[c], w.total[c], a.scale);
        store_head<f32, kSide / 8>(a, it, head, c, lane, side * kSide, angle, factor, o);
    }
}

/* Of two blocks each finishes half of a side's channels: a thread sends the sums of the other half to the thread of the
 * same number in the other block, into the place of its query, which both are done with. */
template <bool f32>
NIB_DEVICE void exchange_and_store(const struct nib_attend_args &a, const struct item &it, int group, int warp,
                                   int lane, struct shared *m, const float *angle, const struct softmax &w,
                                   float (&o)[128])
{
    uint32_t rank = nib_cluster_rank();
    float    own[4 * kHalfUnits], factor[2], other_factor[2];
    nib_cluster_wait(); /* for both blocks' release of the query */
#pragma unroll
    for (int i = 0; i < kHalfUnits; i++) {
        float give[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            give[k] = rank ? o[4 * i + k] : o[4 * (kHalfUnits + i) + k];
            own[4 * i + k] = rank ? o[4 * (kHalfUnits + i) + k] : o[4 * i + k];
        }
        nib_cluster_store_f32x4(&m->other[i][threadIdx.x], 1 - rank, give[0], give[1], give[2], give[3]);
    }
    for (int c = 0; group == 0 && lane % 4 == 0 && c < (f32 ? 1 : 2); c++) {
        nib_cluster_store_f32(&m->head_most[head_of<f32>(warp, lane, c)], 1 - rank, w.most[c]);
        nib_cluster_store_f32(&m->head_total[head_of<f32>(warp, lane, c)], 1 - rank, w.total[c]);
    }
    nib_cluster_sync();
#pragma unroll
    for (int c = 0; c < 2; c++) {
        int   h = head_of<f32>(warp, lane, c);
        float sink = it.h0 + h < a.n_heads ? a.sink[it.h0 + h] : 0, other_total = m->head_total[h];
        float most = w.most[c] * a.scale, other = m->head_most[h] * a.scale, top = fmaxf(sink, fmaxf(most, other));
        factor[c] = most == -INFINITY ? 0 : expf(most - top);
        other_factor[c] = other == -INFINITY ? 0 : expf(other - top);
        float total = w.total[c] * factor[c], both = other_total * other_factor[c] + total;
        both += expf(sink - top);
        factor[c] /= both;
        other_factor[c] /= both;
    }
#pragma unroll
    for (int i = 0; i < kHalfUnits; i++) {
        float4 x = m->other[i][threadIdx.x];
        own[4 * i] = fmaf(own[4 * i], factor[0], x.x * other_factor[0]);
        own[4 * i + 1] = fmaf(own[4 * i + 1], factor[0], x.y * other_factor[0]);
        own[4 * i + 2] = fmaf(own[4 * i + 2], factor[1], x.z * other_factor[1]);
        own[4 * i + 3] = fmaf(own[4 * i + 3], factor[1], x.w * other_factor[1]);
    }
#pragma unroll
    for (int c = 0; c < (f32 ? 1 : 2); c++)
        store_head<f32, kHalfUnits>(a, it, it.h0 + head_of<f32>(warp, lane, c), c, lane,
                                    group * kSide + (int)rank * (kSide / 2), angle, 1, own);
}

/* Where a head's sums of eight channels from c on stand: heads next to each other on different banks. */
NIB_DEVICE float *sums_at(struct shared *m, int h, int c)
{
    return &m->o[h][c ^ h % 8 * 8];
}

/* A block's part of an item, for the cluster. */
template <bool f32>
NIB_DEVICE void put_sums(struct shared *m, int side, int warp, int lane, const struct softmax &w, const float (&o)[128])
{
    consumers_sync(); /* no product reads the tiles any more */
#pragma unroll
    for (int c = 0; c < (f32 ? 1 : 2); c++) {
        int h = head_of<f32>(warp, lane, c);
#pragma unroll
        for (int i = 0; i < kSide / 8; i++)
            *(float2 *)(sums_at(m, h, side * kSide + i * 8) + lane % 4 * 2) =
                make_float2(o[i * 4 + c * 2], o[i * 4 + c * 2 + 1]);
        if (side == 0 && lane % 4 == 0) {
            m->head_most[h] = w.most[c];
            m->head_total[h] = w.total[c];
        }
    }
}

/* A block's share of an item's heads, eight channels a thread at a time, parts in ascending order. */
template <int parts, bool f32>
NIB_DEVICE void add_parts(const struct nib_attend_args &a, const struct item &it, const float *angle, struct shared *m)
{
    constexpr int kOwn = kItemHeads<f32> / parts, kUnits = kOwn * (kD / 8);
    for (int u = threadIdx.x; u < kUnits; u += kConsumers) {
        int   h = (int)nib_cluster_rank() * kOwn + u / (kD / 8), c = u % (kD / 8) * 8, head = it.h0 + h;
        float x[parts][8], most[parts], part_total[parts];
        if (head >= a.n_heads)
            continue;
#pragma unroll
        for (int b = 0; b < parts; b++) {
            uint32_t from = min(b, it.n_parts - 1); /* without a branch, so that all reads are on their way together */
            most[b] = nib_cluster_load_f32(&m->head_most[h], from) * a.scale;
            part_total[b] = nib_cluster_load_f32(&m->head_total[h], from);
            nib_cluster_load_f32x4(sums_at(m, h, c), from, x[b]);
            nib_cluster_load_f32x4(sums_at(m, h, c) + 4, from, x[b] + 4);
        }
        float top = a.sink[head], o[8] = {};
#pragma unroll
        for (int b = 0; b < parts; b++)
            top = b < it.n_parts ? fmaxf(top, most[b]) : top;
        float total = expf(a.sink[head] - top);
#pragma unroll
        for (int b = 0; b < parts; b++) {
            float w = b >= it.n_parts || most[b] == -INFINITY ? 0 : expf(most[b] - top);
            total = b < it.n_parts ? fmaf(part_total[b], w, total) : total;
            for (int i = 0; b < it.n_parts && i < 8; i++)
                o[i] = fmaf(x[b][i], w, o[i]);
        }
        for (int i = 0; i < 8; i++)
            o[i] /= total;
        for (int i = 0; c >= kNope && i < 8; i += 2) {
            int pair = (c - kNope + i) / 2;
            nib_rotate_pair(&o[i], &o[i + 1], angle[pair], -angle[kRot / 2 + pair]);
        }
        nib_mat_set8(a.o, it.t, (int64_t)head * kD + c, o);
    }
}

/* Of eight blocks with a share of the heads each finishes an eighth of a side's channels: every thread sends its sums to
 * the block whose channels they are, into the place of its query, and there the warps share out what has come. The sums
 * are those of add_parts(), to the bit. */
template <int cut, bool f32>
NIB_DEVICE void gather_and_store(const struct nib_attend_args &a, const struct item &it, int group, int warp, int lane,
                                 struct shared *m, const float *angle, const struct softmax &w, const float (&o)[128])
{
    constexpr int kSenders = 4 / cut;       /* warps of a group that hold heads */
    constexpr int kUnits = kFewUnits / cut; /* groups of eight channels that a thread finishes */
    int           rank = (int)nib_cluster_rank();
    nib_cluster_wait(); /* for all blocks' release of the query */
    if (warp < kSenders) {
        int from = (group * kSenders + warp) * 32 + lane;
#pragma unroll
        for (int to = 0; to < kFew; to++)
#pragma unroll
            for (int i = 0; i < kFewUnits; i++) {
                const float *v = &o[4 * (to * kFewUnits + i)];
                nib_cluster_store_f32x4(&m->each[rank][i][from], (uint32_t)to, v[0], v[1], v[2], v[3]);
            }
        if (group == 0 && lane % 4 == 0)
            for (int c = 0; c < (f32 ? 1 : 2); c++)
                for (uint32_t to = 0; to < kFew; to++) {
                    int at = rank * kFewHeads + head_of<f32>(warp, lane, c);
                    nib_cluster_store_f32(&m->head_most[at], to, w.most[c]);
                    nib_cluster_store_f32(&m->head_total[at], to, w.total[c]);
                }
    }
    nib_cluster_sync();
    int   sender = warp % kSenders, unit0 = warp / kSenders * kUnits, from = (group * kSenders + sender) * 32 + lane;
    float total[2], weight[2][kFew];
#pragma unroll
    for (int c = 0; c < (f32 ? 1 : 2); c++) {
        int   h = head_of<f32>(sender, lane, c);
        float sink = it.h0 + h < a.n_heads ? a.sink[it.h0 + h] : 0, top = sink;
#pragma unroll
        for (int b = 0; b < kFew; b++)
            top = b < it.n_parts ? fmaxf(top, m->head_most[b * kFewHeads + h] * a.scale) : top;
        total[c] = expf(sink - top);
#pragma unroll
        for (int b = 0; b < kFew; b++) {
            float most = m->head_most[b * kFewHeads + h] * a.scale;
            weight[c][b] = b >= it.n_parts || most == -INFINITY ? 0 : expf(most - top);
            total[c] = b < it.n_parts ? fmaf(m->head_total[b * kFewHeads + h], weight[c][b], total[c]) : total[c];
        }
    }
#pragma unroll
    for (int i = unit0; i < unit0 + kUnits; i++) {
        float sum[4] = {};
#pragma unroll
        for (int b = 0; b < kFew; b++) {
            float4 x = m->each[b][i][from];
            for (int k = 0; b < it.n_parts && k < 4; k++)
                sum[k] = fmaf(k == 0 ? x.x : k == 1 ? x.y : k == 2 ? x.z : x.w, weight[f32 ? 0 : k / 2][b], sum[k]);
        }
        int channel = group * kSide + (rank * kFewUnits + i) * 8 + lane % 4 * 2, pair = (channel - kNope) / 2;
#pragma unroll
        for (int c = 0; c < (f32 ? 1 : 2); c++) {
            int   head = it.h0 + head_of<f32>(sender, lane, c);
            float even = sum[2 * c] / total[c], odd = sum[2 * c + 1] / total[c];
            if (channel >= kNope)
                nib_rotate_pair(&even, &odd, angle[pair], -angle[kRot / 2 + pair]);
            int64_t at = it.t * a.o.stride + (int64_t)head * kD + channel;
            if (head >= a.n_heads)
                continue;
            if (f32)
                *(float2 *)((float *)a.o.data + at) = make_float2(even, odd);
            else
                *(uint32_t *)((uint16_t *)a.o.data + at) = nib_pack_bf16x2(even, odd);
        }
    }
}

/* ---- Kernel ---- */

/* Grid: items in turns (parts 1), or a cluster of `parts` blocks an item. cut: an item is a row's 64 / cut heads, the
 * first of the products' M, the rest of which is zeros. */
template <int format, int parts, bool f32, int cut> static __global__ void __launch_bounds__(kThreads, 1)
    attend_wide(const __grid_constant__ struct nib_attend_args a, const __grid_constant__ struct nib_rows rows,
                int32_t first, int32_t n_items)
{
    nib_grid_release();
    constexpr bool            scaled = format == NIB_ROW_NVFP4 || format == kRowScaled,
                   in_turns = format == NIB_ROW_FP8 || format == NIB_ROW_NVFP4;
    extern __shared__ uint8_t memory[];
    struct shared *m = (struct shared *)(memory + (kAlign - nib_shared_address(memory) % kAlign) % kAlign);
    int32_t        i = (int32_t)blockIdx.x / parts, step = parts == 1 ? (int32_t)gridDim.x : n_items;
    uint32_t       c = 0; /* tiles so far */
    uint32_t       done = 0; /* items */
    if (threadIdx.x == 0) {
        for (int k = 0; k < kStages * 2; k++) {
            nib_barrier_init(&m->full[k / 2][k % 2], kFeeders);
            nib_barrier_init(&m->empty[k / 2][k % 2], 4);
        }
        nib_barrier_init(&m->q_full, kFeeders);
        nib_barrier_init(&m->angles[0], kRot / 2);
        nib_barrier_init(&m->angles[1], kRot / 2);
        nib_barrier_init(&m->q_empty, kConsumers / 32);
        for (int k = 0; k < 4; k++)
            nib_barrier_init(&m->totals[k], 2 * 32);
    }
    constexpr int kUnused = (kHeads - kHeads / cut) * kChunk / 8; /* of a chunk's query, units of 16 bytes */
    for (int u = threadIdx.x; u < kChunks * kUnused; u += kThreads)
        ((uint4 *)m->q[u / max(kUnused, 1)][kHeads / cut])[u % max(kUnused, 1)] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    nib_grid_wait();
    if (threadIdx.x >= kConsumers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        for (; i < n_items; i += step, done++) {
            struct item it = item_of<parts, f32, cut>(a, rows, first, i);
            if (done > 0)
                nib_barrier_wait(&m->q_empty, (done - 1) & 1u);
            f32 ? feed_query_f32<cut>(a, it, m) : feed_query<cut>(a, it, m);
            if constexpr (format == NIB_ROW_BF16 || format == kRowScaled)
                feed_bf16<scaled>(a, it, m, c);
            else
                feed_packed<format>(a, it, m, c);
            feed_angles(a, rows, it, m, (int)(done & 1u));
            c += (uint32_t)(it.end - it.begin + kTile - 1) / kTile;
        }
        if (parts > 1) { /* as often as the other warpgroups */
            nib_cluster_sync();
            nib_cluster_sync();
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    for (; i < n_items; i += step, done++) {
        struct item    it = item_of<parts, f32, cut>(a, rows, first, i);
        int            turn = (int)(done & 1u);
        struct softmax w = {a.scale * 1.44269504f, {-INFINITY, -INFINITY}, {0, 0}};
        float          o[128];
#pragma unroll
        for (int k = 0; k < 128; k++)
            o[k] = 0;
        nib_barrier_wait(&m->q_full, (uint32_t)turn);
        proxy_fence();
        if (it.begin >= it.end)
            query_release<parts, cut>(m, lane);
        else
            group == 0 ? walk_first<parts, cut, f32, scaled>(m, it, c, lane, &w, o)
                       : walk_second<parts, cut, f32, scaled, in_turns>(m, it, c, lane, &w, o);
        if (f32)
            join_parts(o);
        add_totals(m, group, done, &w);
        nib_barrier_wait(&m->angles[turn], done / 2 & 1u); /* the next item's may be there, too */
        c += (uint32_t)(it.end - it.begin + kTile - 1) / kTile;
        if (parts == 1) {
            group == 0 ? store_item<0, f32>(a, it, warp, lane, m->angle[turn], w, o)
                       : store_item<1, f32>(a, it, warp, lane, m->angle[turn], w, o);
        } else if (parts == 2) {
            exchange_and_store<f32>(a, it, group, warp, lane, m, m->angle[turn], w, o);
        } else if (cut > 1) {
            gather_and_store<cut, f32>(a, it, group, warp, lane, m, m->angle[turn], w, o);
        } else {
            put_sums<f32>(m, group, warp, lane, w, o);
            nib_cluster_sync();
            add_parts<parts, f32>(a, it, m->angle[turn], m);
            nib_cluster_sync(); /* others may still read this block's memory */
        }
    }
}

/* ---- Host ---- */

template <int format, int parts, bool f32, int cut = 1>
static void launch(struct nib_stream *s, const struct nib_attend_args *a, int32_t n_groups)
{
    auto *kernel = attend_wide<format, parts, f32, cut>;
    int   bytes = (int)sizeof(struct shared) + kAlign;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    for (int32_t first = 0; first < a->rows->n_rows; first += 32768) {
        int32_t n = (a->rows->n_rows - first < 32768 ? a->rows->n_rows - first : 32768) * n_groups;
        int32_t blocks = parts > 1 ? n * parts : n < s->n_sms ? n : s->n_sms;
        nib_launch_cluster(s, parts, kernel, (unsigned)blocks, kThreads, (size_t)bytes, *a, *a->rows, first, n);
    }
}

template <int format, bool f32> static void launch_items(struct nib_stream *s, const struct nib_attend_args *a)
{
    int32_t n_groups = (a->n_heads + kItemHeads<f32> - 1) / kItemHeads<f32>, n_rows = a->rows->n_rows;
    /* Heads are cut among more clusters where all of those surely run at once; sums are the same to the bit. (16, on all
     * multiprocessors of an H200, do not: 8 rows took 22.9 us instead of 19.2.) */
    int32_t most = s->n_sms / (2 * kFew);
    if (n_rows * n_groups * 4 <= most)
        launch<format, kFew, f32, 4>(s, a, (a->n_heads + kItemHeads<f32> / 4 - 1) / (kItemHeads<f32> / 4));
    else if (n_rows * n_groups * 2 <= most)
        launch<format, kFew, f32, 2>(s, a, (a->n_heads + kItemHeads<f32> / 2 - 1) / (kItemHeads<f32> / 2));
    else if (n_rows <= NIB_CUDA_ATTEND_FEW)
        launch<format, kFew, f32>(s, a, n_groups);
    else if ((int64_t)n_rows * n_groups * 2 <= s->n_sms)
        launch<format, 2, f32>(s, a, n_groups);
    else
        launch<format, 1, f32>(s, a, n_groups);
}

template <int format> static void launch_format(struct nib_stream *s, const struct nib_attend_args *a)
{
    a->q.dtype == NIB_DTYPE_F32 ? launch_items<format, true>(s, a) : launch_items<format, false>(s, a);
}

#endif
