/* How the third warpgroup of attend_wide.cuh brings FP8 and NVFP4 rows: as stored to where they will
 * stand, and decoded there. */
#ifndef NIB_CUDA_ATTEND_PACKED_CUH
#define NIB_CUDA_ATTEND_PACKED_CUH

#include "backend/cuda/sm90a/attend_feed.cuh"

/* ---- Rows into shared memory ---- */

/* An FP8 row comes as stored to where it will stand, 16 pieces of 8 bytes to each chunk's row of the tile, so that a
 * whole tile is on its way without a register; then its warp decodes it there. Of a warp's 16 rows only the first
 * `there` are. Eight lanes share a row, so that few instructions ask for it. */
constexpr int kRowLanes = 8;
constexpr int kPieces = (kNope + 2 * kRot + 8) / 8;

NIB_DEVICE uint2 *piece_of(uint16_t (*tile)[kTile][kChunk], int row, int piece)
{
    return (uint2 *)tile[piece / 16][row] + piece % 16;
}

NIB_DEVICE void copy_piece(uint2 *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(nib_shared_address(to)), "l"(from) : "memory");
}

NIB_DEVICE void fp8_fetch(const uint8_t *row, uint16_t (*tile)[kTile][kChunk], int r0, int there, int lane)
{
    int q = lane % kRowLanes;
#pragma unroll
    for (int k = 0; k < kWarpRows; k += 32 / kRowLanes) {
        int          r = k + lane / kRowLanes;
        const uint2 *from = (const uint2 *)row_of_lane(row, r) + q;
        uint2       *to = piece_of(tile, r0 + r, q);
        if (r < there) {
#pragma unroll
            for (int i = 0; i < kPieces / kRowLanes; i++)
                copy_piece(to + i / 2 * (kTile * kChunk / 4) + i % 2 * kRowLanes, from + i * kRowLanes);
        }
    }
    if (lane < there && lane < kWarpRows) /* the scales */
        copy_piece(piece_of(tile, r0 + lane, kPieces - 1), (const uint2 *)row + kPieces - 1);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Eight channels a lane and step: zeros to rows that are not there. */
NIB_DEVICE void clear_rows(uint16_t (*tile)[kTile][kChunk], int r0, int there, int lane)
{
    if (there >= kWarpRows)
        return;
    __syncwarp();
    for (int r = there; r < kWarpRows; r++) {
        *unit_of(tile, r0 + r, lane) = make_uint4(0, 0, 0, 0);
        *unit_of(tile, r0 + r, 32 + lane) = make_uint4(0, 0, 0, 0);
    }
}

/* Lanes with 16 channels each of a row, which they write as two units. Of lanes four apart one writes the higher unit
 * first: eight lanes next to each other then write to all banks. The other lanes go along. */
constexpr int kDecoders = kNope / 16, kRowsAtOnce = 4;

/* The first (k 0) or second unit of kRowsAtOnce rows from r on, a multiple of that. */
NIB_DEVICE void store_units(uint16_t (*tile)[kTile][kChunk], int r, int lane, int k, const uint4 (&v)[kRowsAtOnce])
{
    int    unit = 2 * lane + (lane / 4 % 2 ^ k), at = unit % 8 ^ r % 8;
    uint4 *to = (uint4 *)tile[unit / 8 % kChunks][r];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; i++)
        if (lane < kDecoders)
            to[i * (kChunk / 8) + (at ^ i)] = v[i];
}

NIB_DEVICE void fp8_decode(uint16_t (*tile)[kTile][kChunk], int r0, int there, int lane)
{
    int   turn = lane / 4 % 2, unit = lane % 8;
    uint4 rotary[kWarpRows / 4];
    __syncwarp(); /* all lanes' copies are there */
#pragma unroll
    for (int i = 0; i < kWarpRows / 4; i++) { /* the last chunk's rows, where no piece came */
        int r = i * 4 + lane / 8;
        rotary[i] = r < there ? *(const uint4 *)piece_of(tile, r0 + r, kNope / 8 + 2 * unit) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kWarpRows / 4; i++)
        *unit_of(tile, r0 + i * 4 + lane / 8, kNope / 8 + unit) = rotary[i];
    const uint8_t *scales = (const uint8_t *)piece_of(tile, r0, kPieces - 1) + lane / 4;
    const uint2   *first = piece_of(tile, r0, 2 * lane + turn), *second = piece_of(tile, r0, 2 * lane + 1 - turn);
#pragma unroll 1
    for (int r = 0; r < there; r += kRowsAtOnce) {
        uint2    codes[2][kRowsAtOnce] = {};
        uint32_t scale[kRowsAtOnce] = {}, most = 0;
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; i++) {
            if (r + i >= there)
                continue;
            codes[0][i] = first[(r + i) * (kChunk / 4)];
            codes[1][i] = second[(r + i) * (kChunk / 4)];
            scale[i] = scales[(r + i) * (kChunk * 2)];
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; i++)
            most = max(most, scale[i]);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint4 v[kRowsAtOnce];
#pragma unroll
            for (int i = 0; i < kRowsAtOnce; i++)
                v[i] = nib_fp8_values_of_small(codes[k][i], scale[i]);
            if (most > kFp8ScaleMost) {
#pragma unroll
                for (int i = 0; i < kRowsAtOnce; i++)
                    v[i] = nib_fp8_values_of_large(v[i], scale[i]);
            }
            store_units(tile, r0 + r, lane, k, v);
        }
    }
    clear_rows(tile, r0, there, lane);
    proxy_fence();
}

/* An NVFP4 row: rotary channels to where they belong, the 256 bytes before them, as stored, to the row's place in the
 * first two chunks. */
NIB_DEVICE void nvfp4_fetch(const uint8_t *row, uint16_t (*tile)[kTile][kChunk], int r0, int there, int lane)
{
    int q = lane % kRowLanes;
#pragma unroll
    for (int k = 0; k < kWarpRows; k += 32 / kRowLanes) {
        int          r = k + lane / kRowLanes;
        const uint4 *from = (const uint4 *)row_of_lane(row, r) + q;
        if (r < there) {
            copy_unit((uint4 *)tile[0][r0 + r] + q, from, true);
            copy_unit((uint4 *)tile[1][r0 + r] + q, from + kRowLanes, true);
            copy_unit(unit_of(tile, r0 + r, kNope / 8 + q), from + 2 * kRowLanes, true);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* The row scale stays apart. */
NIB_DEVICE void nvfp4_decode(uint16_t (*tile)[kTile][kChunk], float *row_scale, int r0, int there, int lane)
{
    int turn = lane / 4 % 2;
    __syncwarp();
    const uint2   *codes = piece_of(tile, r0, lane);
    const uint8_t *scales = (const uint8_t *)tile[1][r0] + kNope / 2 - 2 * kChunk + lane;
    if (lane < kWarpRows)
        row_scale[r0 + lane] = lane < there ? *(const float *)(tile[1][r0 + lane] + kChunk - 2) : 0;
#pragma unroll 1
    for (int r = 0; r < there; r += kRowsAtOnce) {
        uint2    code[kRowsAtOnce] = {};
        uint32_t scale[kRowsAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; i++) {
            if (r + i >= there)
                continue;
            code[i] = codes[(r + i) * (kChunk / 4)];
            scale[i] = scales[(r + i) * (kChunk * 2)];
        }
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint4 v[kRowsAtOnce];
#pragma unroll
            for (int i = 0; i < kRowsAtOnce; i++)
                v[i] = nib_nvfp4_values(turn ^ k ? code[i].y : code[i].x, scale[i]);
            store_units(tile, r0 + r, lane, k, v);
        }
    }
    clear_rows(tile, r0, there, lane);
    proxy_fence();
}

/* ---- Tiles ---- */

NIB_DEVICE bool barrier_done(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(nib_shared_address(barrier)), "r"(parity)
                 : "memory");
    return done != 0;
}

/* Whether both sides of tile number c's place are free. */
NIB_DEVICE bool place_free(struct shared *m, uint32_t c)
{
    uint32_t phase = (c / kStages - 1) & 1u;
    return c < kStages || __all_sync(~0u, barrier_done(&m->empty[c % kStages][0], phase) &&
                                              barrier_done(&m->empty[c % kStages][1], phase));
}

/* A tile of FP8 or NVFP4 rows to where it will stand, and decoded there. */
template <int format>
NIB_DEVICE void packed_fetch(struct shared *m, uint32_t c, const uint8_t *row, int r0, int there, int lane)
{
    format == NIB_ROW_FP8 ? fp8_fetch(row, m->kv[c % kStages], r0, there, lane)
                          : nvfp4_fetch(row, m->kv[c % kStages], r0, there, lane);
}

template <int format> NIB_DEVICE void packed_decode(struct shared *m, uint32_t c, int r0, int there, int lane)
{
    format == NIB_ROW_FP8 ? fp8_decode(m->kv[c % kStages], r0, there, lane)
                          : nvfp4_decode(m->kv[c % kStages], m->row_scale[c % kStages], r0, there, lane);
    nib_barrier_arrive(&m->full[c % kStages][0]);
    nib_barrier_arrive(&m->full[c % kStages][1]);
}

/* A row's address in two steps, each of which asks for what the next one needs, a tile ahead: nothing waits for what
 * was loaded where it is loaded, as a choice between it and another value would. */
NIB_DEVICE void load_if(bool there, const int32_t *from, int32_t *to)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.s32 %0, [%1];\n}"
                 : "+r"(*to)
                 : "l"(from), "r"((uint32_t)there)
                 : "memory");
}

NIB_DEVICE int32_t place_ahead(const struct places &p, int32_t j)
{
    int32_t e = j - p.it->at.n_window, place = e < 0 ? p.it->at.first + j : e;
    load_if(e >= 0 && j < p.it->end && p.it->at.selected != NULL, p.it->at.selected + e, &place);
    return place;
}

NIB_DEVICE int32_t page_ahead(const struct places &p, int32_t j, int32_t place)
{
    bool    window = j < p.it->at.n_window;
    int32_t page = 0, i = place >> (31 - __clz(window ? p.a->window.page_rows : p.a->entries.page_rows));
    load_if(j < p.it->end, (window ? p.it->at.window_page : p.it->at.entry_page) + i, &page);
    return page;
}

NIB_DEVICE const uint8_t *row_at(const struct places &p, int32_t j, int32_t place, int32_t page)
{
    const struct nib_store &s = j < p.it->at.n_window ? p.a->window : p.a->entries;
    return s.base + ((int64_t)page * s.page_rows + (place & (s.page_rows - 1))) * s.row_bytes;
}

/* Tiles of such rows; where the next one's place is free already, it is on its way while the last one is decoded. */
template <int format>
NIB_DEVICE void feed_packed(const struct nib_attend_args &a, const struct item &it, struct shared *m, uint32_t c)
{
    int            warp = (threadIdx.x - kConsumers) / 32, lane = threadIdx.x % 32, r0 = warp * kWarpRows;
    struct places  p = {&a, &it};
    int32_t        j = it.begin + r0 + lane % kWarpRows, left = it.end - it.begin - r0;
    int32_t        place = place_ahead(p, j), next_place = place_ahead(p, j + kTile), page = page_ahead(p, j, place);
    const uint8_t *row = row_at(p, j, place, page);
    bool           asked = false; /* for the tile's rows */
    place = next_place; /* of the tile behind, as is the page */
    page = page_ahead(p, j + kTile, place);
    next_place = place_ahead(p, j + 2 * kTile);
    for (int32_t base = it.begin; base < it.end; base += kTile, c++, left -= kTile) {
        if (!asked) {
            place_wait(m, c, 0);
            place_wait(m, c, 1);
            packed_fetch<format>(m, c, row, r0, left, lane);
        }
        j += kTile;
        row = row_at(p, j, place, page);
        place = next_place;
        page = page_ahead(p, j + kTile, place);
        next_place = place_ahead(p, j + 2 * kTile);
        asked = base + kTile < it.end && place_free(m, c + 1);
        if (asked) {
            packed_fetch<format>(m, c + 1, row, r0, left - kTile, lane);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        packed_decode<format>(m, c, r0, max(0, min(kWarpRows, left)), lane);
    }
}

#endif
