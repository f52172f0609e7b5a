/* Scores to weights, for attend_sm100a.cu: by warps 0-3, a row a thread, with running maxima, totals, and older sums
 * scaled where a maximum has grown. */
#ifndef NIB_ATTEND_WEIGHTS_SM100A_CUH
#define NIB_ATTEND_WEIGHTS_SM100A_CUH

#include "backend/cuda/sm100a/attend_rows_sm100a.cuh"

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
    return tmem + (uint32_t)((pair + rotary) * kColumns) + ((uint32_t)warp << 21);
}

/* The sums of 32 heads from `from` on, both parts of queries. */
template <int parts> NIB_DEVICE void read_heads(uint32_t from, float v[32])
{
    uint32_t r[32];
    nib_tmem_load32(from, r);
    nib_tmem_wait_load(r);
#pragma unroll
    for (int i = 0; i < 32; i++)
        v[i] = __uint_as_float(r[i]);
    if (parts == 1)
        return;
    nib_tmem_load32(from + kColumns / 2, r);
    nib_tmem_wait_load(r);
#pragma unroll
    for (int i = 0; i < 32; i++)
        v[i] += __uint_as_float(r[i]);
}

/* 32 scores of this thread's row, in powers of two; -inf where there is no row. Read once for the maxima and once for
 * each set of weights, as 64 would take registers from what loads rows. */
template <int format, int parts>
NIB_DEVICE void read_scores(const struct work &w, uint32_t tmem, int half, bool there, float g, float s[32])
{
    float unit = w.a->scale * kLog2E, x[32];
    read_heads<parts>(tmem + kScores + half * 32, s);
    if (format == NIB_ROW_NVFP4)
        read_heads<parts>(tmem + kRotaryScores + half * 32, x);
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = !there ? -INFINITY : (format == NIB_ROW_NVFP4 ? s[i] * g + x[i] : s[i]) * unit;
}

/* Each lane's heads, lane and (of 64) 32 + lane: running maxima and, of this warp's rows, totals. */
template <int parts> struct running {
    float peak[kHalves<parts>], total[kHalves<parts>];
};

/* Raises maxima, alike in all four warps; what older sums are multiplied by goes to shared memory. True if it
 * matters. */
template <int format, int parts>
NIB_DEVICE bool raise_peaks(const struct work &w, struct shared *m, uint32_t tmem, int warp, int lane, bool there,
                            float g, struct running<parts> *run)
{
    float fade[kHalves<parts>];
    bool  grown = false;
#pragma unroll 1
    for (int half = 0; half < kHalves<parts>; half++) {
        float s[32];
        read_scores<format, parts>(w, tmem, half, there, g, s);
        m->most[warp][half * 32 + lane] = across<false>(s, lane);
    }
    weighers_sync();
#pragma unroll
    for (int half = 0; half < kHalves<parts>; half++) {
        int   h = half * 32 + lane;
        float old = run->peak[half],
              top = fmaxf(fmaxf(m->most[0][h], m->most[1][h]), fmaxf(m->most[2][h], m->most[3][h]));
        if (old == -INFINITY || top > old + kLate)
            run->peak[half] = top;
        fade[half] = old == -INFINITY ? 1 : exp2f(old - run->peak[half]);
        run->total[half] *= fade[half];
        grown = grown || fade[half] != 1;
        if (warp == 0) {
            m->peak[h] = run->peak[half];
            m->fade[h] = fade[half];
        }
    }
    weighers_sync();
    return __any_sync(~0u, grown);
}

template <int format, int parts> NIB_DEVICE void scale_sums(const struct shared *m, uint32_t tmem, int warp)
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
                r[i] = __float_as_uint(__uint_as_float(r[i]) * m->fade[half * 32 % kHeads<parts> + i]);
            nib_tmem_store32(from, r);
        }
    nib_tmem_wait_store();
}

/* Weights of the row times `by`, as two bf16 parts, to where products read them; sum: whether they count. */
template <int format, int parts>
NIB_DEVICE void put_weights(const struct work &w, struct shared *m, uint32_t tmem, int row, bool there, float g,
                            float by, bool sum, struct running<parts> *run)
{
#pragma unroll 1
    for (int half = 0; half < kHalves<parts>; half++) {
        float s[32];
        read_scores<format, parts>(w, tmem, half, there, g, s);
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
            *(parts == 1 ? unit_of(m->p[1], row, half * 4 + u) : unit_of(m->p[0], row, 4 + u)) = make_uint4(low[0], low[1], low[2], low[3]);
        }
        if (sum) {
            float total = across<true>(s, row % 32);
            for (int i = 0; i < kHalves<parts>; i++)
                run->total[i] += half == i ? total : 0;
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

template <int format, int parts>
NIB_DEVICE void weigh_tiles(const struct work &w, struct shared *m, uint32_t tmem, int warp, int lane,
                            struct running<parts> *run)
{
    int      row = warp * 32 + lane;
    uint32_t own = tmem + ((uint32_t)warp << 21); /* this warp's lanes */
    float    g = format == NIB_ROW_NVFP4 ? row_scale(row_of(w, w.begin + row)) : 1;
    for (int32_t base = w.begin, i = 0; base < w.end; base += kTile, i++) {
        bool  there = base + row < w.end;
        float next = format == NIB_ROW_NVFP4 ? row_scale(row_of(w, base + kTile + row)) : 1;
        nib_mbar_wait(at(&m->bar.scored), (uint32_t)i & 1u); /* and with them the sums of the tile before */
        nib_tcgen05_after_sync();
        bool grown = raise_peaks<format, parts>(w, m, own, warp, lane, there, g, run);
        if (i > 0 && grown)
            scale_sums<format, parts>(m, tmem, warp);
        put_weights<format, parts>(w, m, own, row, there, g, g, true, run);
        hand_over(m, lane);
        if (format == NIB_ROW_NVFP4) {
            nib_mbar_wait(at(&m->bar.turn), (uint32_t)i & 1u);
            put_weights<format, parts>(w, m, own, row, there, g, 1, false, run);
            hand_over(m, lane);
        }
        g = next;
    }
    if (w.begin < w.end) {
        nib_mbar_wait(at(&m->bar.added), 0);
        nib_tcgen05_after_sync();
    }
#pragma unroll
    for (int half = 0; half < kHalves<parts>; half++) {
        m->most[warp][half * 32 + lane] = run->total[half];
        if (warp == 0)
            m->peak[half * 32 + lane] = run->peak[half];
    }
    weighers_sync();
}

#endif
