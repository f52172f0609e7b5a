/* Attended rows and the query into shared memory, for attend_sm100a.cu: by warps 5-8, chunk by chunk, BF16 past registers
 * and codes decoded on the way. */
#ifndef NIB_ATTEND_ROWS_SM100A_CUH
#define NIB_ATTEND_ROWS_SM100A_CUH

#include "backend/cuda/sm100a/attend_block_sm100a.cuh"
#include "backend/cuda/sm100a/parts_sm100a.cuh"

NIB_DEVICE void copy_unit(uint4 *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(to)), "l"(from) : "memory");
}

/* Queries of heads that do not exist are zeros. */
template <int parts> NIB_DEVICE void load_query(const struct work &w, struct shared *m, int thread)
{
    int64_t first = w.t * w.a->q.stride + (int64_t)w.h0 * kD;
    for (int i = thread; i < kHeads<parts> * (kD / 8); i += 32 * kLoadWarps) {
        int    h = i / (kD / 8), u = i % (kD / 8);
        uint4 *to = unit_of(m->q[u / 8], h, u % 8), *rest = unit_of(m->q[u / 8], h + kColumns / 2, u % 8);
        bool   there = w.h0 + h < w.a->n_heads;
        if (parts == 1 && there) {
            copy_unit(to, (const uint16_t *)w.a->q.data + first + i * 8);
        } else if (parts == 2 && there) {
            const float4 *from = (const float4 *)((const float *)w.a->q.data + first + i * 8), x[2] = {from[0], from[1]};
            split_unit(x, to, rest);
        } else {
            *to = make_uint4(0, 0, 0, 0);
            if (parts == 2)
                *rest = make_uint4(0, 0, 0, 0);
        }
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
template <int format, int parts> NIB_DEVICE void load_tiles(const struct work &w, struct shared *m, int warp, int lane)
{
    int            first = warp * kRowsEach;
    const uint8_t *mine = row_of(w, w.begin + first + lane % kRowsEach);
    struct raw     ring[kRing];
    load_query<parts>(w, m, warp * 32 + lane);
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

#endif
