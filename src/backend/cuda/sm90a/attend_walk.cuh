/* How the two warpgroups of attend_wide.cuh walk an item's tiles: products, weights, and what they hand each other. */
#ifndef NIB_CUDA_ATTEND_WALK_CUH
#define NIB_CUDA_ATTEND_WALK_CUH

#include "backend/cuda/sm90a/attend_feed.cuh"
#include "backend/cuda/sm90a/wgmma.cuh"

/* ---- Products ---- */

/* An operand with a swizzle of 128 bytes. K-major: groups of 8 rows are 1024 bytes apart. Along the channels: `next`
 * bytes to the next 64 of them, and 1024 to the next 8 rows, which are k there. */
NIB_DEVICE uint64_t descriptor(const void *p, uint32_t next)
{
    return (uint64_t)(nib_shared_address(p) >> 4 & 0x3fffu) | (uint64_t)(next >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)
NIB_DEVICE void product_scores(float (&d)[32], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, 1, 1, 1, 0, 0;"
                 : F16(0), F16(16)
                 : "l"(a), "l"(b));
}
#undef F4
#undef F16

/* Scores or weights of a tile's rows times their row scales. */
NIB_DEVICE void scale_rows(const float *row_scale, int lane, float (&s)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
        float2 g = *(const float2 *)&row_scale[i * 2 + lane % 4 * 2];
        s[i] *= g.x;
        s[i + 1] *= g.y;
        s[i + 2] *= g.x;
        s[i + 3] *= g.y;
    }
}

/* Scores of tile number c. scaled: a row scale belongs to all channels but the rotary ones, which come last. */
template <bool scaled> NIB_DEVICE void score(struct shared *m, uint32_t c, int lane, float (&s)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = 0;
    settled(s);
    side_wait(m, c, 0);
    side_wait(m, c, 1);
    nib_wgmma_fence();
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk++) {
        if (scaled && chunk == kNope / kChunk) {
            nib_wgmma_commit();
            nib_wgmma_wait();
            settled(s);
            scale_rows(m->row_scale[c % kStages], lane, s);
            settled(s);
            nib_wgmma_fence();
        }
        uint64_t q = descriptor(m->q[chunk], 16), kv = descriptor(m->kv[c % kStages][chunk], 16);
#pragma unroll
        for (int k = 0; k < kChunk / 16; k++)
            product_scores(s, q + 2 * k, kv + 2 * k); /* 32 bytes */
    }
    nib_wgmma_commit();
    nib_wgmma_wait();
    settled(s);
}

/* Starts adding weights times a side of tile number c; plain: weights of the rotary channels, where they are others. */
template <int side, bool scaled>
NIB_DEVICE void start_sums(struct shared *m, uint32_t c, const uint4 (&p)[kTile / 16], const uint4 (&plain)[kTile / 16],
                           float (&o)[128])
{
    settled(o);
    nib_wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTile / 16; k++) {
        uint32_t w[4] = {p[k].x, p[k].y, p[k].z, p[k].w};
        uint64_t rows = descriptor(m->kv[c % kStages][side * kSideChunks][k * 16], kTile * kChunk * 2);
        if (scaled && side == 1) {
            uint32_t v[4] = {plain[k].x, plain[k].y, plain[k].z, plain[k].w};
            nib_wgmma_bf16_rows_192(o, w, rows);
            nib_wgmma_bf16_rows_behind_192(
                o, v, descriptor(m->kv[c % kStages][kNope / kChunk][k * 16], kTile * kChunk * 2));
        } else {
            nib_wgmma_bf16_rows(o, w, rows);
        }
    }
    nib_wgmma_commit();
}

/* Products read weights from their registers until this. */
NIB_DEVICE void end_sums(float (&o)[128])
{
    nib_wgmma_wait();
    settled(o);
}

/* ---- Weights: a thread holds heads 16 * warp + lane / 4 (+ 8) ---- */

struct softmax {
    float factor;           /* of a score, so that weights are powers of two */
    float most[2], total[2];
};

NIB_DEVICE float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Raises the maxima; older sums shrink by *shrink, which the totals have done then. */
NIB_DEVICE void raise(struct softmax *w, const float most[2], float shrink[2])
{
    for (int c = 0; c < 2; c++) {
        shrink[c] = w->most[c] == -INFINITY ? 0 : power_of_2((w->most[c] - most[c]) * w->factor);
        w->total[c] *= shrink[c];
        w->most[c] = most[c];
    }
}

NIB_DEVICE void shrink_sums(float (&o)[128], const float shrink[2])
{
    if (!__any_sync(~0u, shrink[0] != 1 || shrink[1] != 1))
        return;
#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i] *= shrink[i / 2 % 2];
}

/* Weights as the operand of the sums; of an fp32 query in two parts, in the rows of M that its own parts have. */
template <bool f32>
NIB_DEVICE void as_operand(const float (&s)[32], uint4 (&p)[kTile / 16])
{
#pragma unroll
    for (int k = 0; k < kTile / 16; k++) {
        if (f32) {
            nib_split_bf16x2(s[8 * k], s[8 * k + 1], &p[k].x, &p[k].y);
            nib_split_bf16x2(s[8 * k + 4], s[8 * k + 5], &p[k].z, &p[k].w);
        } else {
            p[k] = make_uint4(nib_pack_bf16x2(s[8 * k], s[8 * k + 1]), nib_pack_bf16x2(s[8 * k + 2], s[8 * k + 3]),
                              nib_pack_bf16x2(s[8 * k + 4], s[8 * k + 5]), nib_pack_bf16x2(s[8 * k + 6], s[8 * k + 7]));
        }
    }
}

/* Scores of a tile of which n rows are there become weights. fp32 queries: the scores of a head's two parts belong
 * together, and its weights stand where the first part's did. */
template <bool f32> NIB_DEVICE void weigh(float (&s)[32], int32_t n, int lane, struct softmax *w, float shrink[2])
{
    float top[2] = {w->most[0], w->most[1]}, base[2];
#pragma unroll
    for (int i = 0; f32 && i < 32; i++)
        s[i] = i / 2 % 2 == 0 ? s[i] + s[i + 2] : s[i - 2];
    if (n < kTile) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i] = i / 4 * 8 + lane % 4 * 2 + i % 2 < n ? s[i] : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 32; i++)
        top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        top[c] = fmaxf(top[c], __shfl_xor_sync(~0u, top[c], 1));
        top[c] = fmaxf(top[c], __shfl_xor_sync(~0u, top[c], 2));
        base[c] = top[c] == -INFINITY ? 0 : top[c];
    }
    raise(w, top, shrink);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        if (f32 && i / 2 % 2)
            continue;
        s[i] = power_of_2((s[i] - base[i / 2 % 2]) * w->factor); /* at most 1 however large scores are; NaN passes */
        w->total[i / 2 % 2] += s[i];
    }
    if (f32)
        w->total[1] = w->total[0];
}

/* Weights as operands; scaled: p has the row scales, plain has not. */
template <bool f32, bool scaled>
NIB_DEVICE void as_operands(float (&s)[32], int lane, const float *row_scale, uint4 (&p)[kTile / 16],
                            uint4 (&plain)[kTile / 16])
{
    if (scaled) {
        as_operand<f32>(s, plain);
        scale_rows(row_scale, lane, s);
    }
    as_operand<f32>(s, p);
}

/* Weights and maxima of the pair's tile `which` to the other warpgroup, and from it. */
NIB_DEVICE void hand_over(struct shared *m, int which, const uint4 (&p)[kTile / 16], const float most[2])
{
    int i = threadIdx.x % 128;
#pragma unroll
    for (int k = 0; k < kTile / 16; k++)
        m->p[which][k][i] = p[k];
    m->most[which][i] = make_float2(most[0], most[1]);
    pair_arrive(which, i / 32);
}

NIB_DEVICE void take_over(struct shared *m, int which, uint4 (&p)[kTile / 16], float most[2])
{
    int i = threadIdx.x % 128;
    pair_sync(which, i / 32);
#pragma unroll
    for (int k = 0; k < kTile / 16; k++)
        p[k] = m->p[which][k][i];
    float2 v = m->most[which][i];
    most[0] = v.x;
    most[1] = v.y;
}

/* ---- An item's pairs of tiles ---- */

/* The next query may come; or what other blocks have added up for this one. */
template <int parts, int cut> NIB_DEVICE void query_release(struct shared *m, int lane)
{
    if (parts == 2 || cut > 1) {
        nib_cluster_arrive();
        return;
    }
    __syncwarp(); /* all lanes are done with the last item's angles, too */
    if (lane == 0)
        nib_barrier_arrive(&m->q_empty);
}

/* The first warpgroup: scores the first tile of every pair, number c being the item's first; adds up the lower side. */
template <int parts, int cut, bool f32, bool scaled>
NIB_DEVICE void walk_first(struct shared *m, const struct item &it, uint32_t c, int lane, struct softmax *w,
                           float (&o)[128])
{
    float shrink[2], most[2];
    uint4 p[kTile / 16], plain[kTile / 16];
    for (int32_t base = it.begin; base < it.end; base += 2 * kTile, c += 2) {
        bool second = base + kTile < it.end;
        {
            float s[32];
            score<scaled>(m, c, lane, s);
            if (base + 2 * kTile >= it.end)
                query_release<parts, cut>(m, lane);
            weigh<f32>(s, it.end - base, lane, w, shrink);
            as_operands<f32, scaled>(s, lane, m->row_scale[c % kStages], p, plain);
        }
        for (int k = 0; scaled && k < kTile / 16; k++)
            m->plain[k][threadIdx.x % 128] = plain[k];
        hand_over(m, kFirstReady, p, w->most);
        shrink_sums(o, shrink);
        start_sums<0, scaled>(m, c, p, plain, o);
        end_sums(o);
        side_release(m, c, 0, lane);
        if (!second)
            break;
        take_over(m, kSecondReady, p, most);
        raise(w, most, shrink);
        side_wait(m, c + 1, 0);
        shrink_sums(o, shrink);
        start_sums<0, scaled>(m, c + 1, p, plain, o);
        end_sums(o);
        side_release(m, c + 1, 0, lane);
    }
}

/* The second: scores the second tile, adds up the upper side. in_turns: where rows are decoded as they come, it is done
 * with the first tile before it asks for the second one, so that one's place is filled while the other is used. */
template <int parts, int cut, bool f32, bool scaled, bool in_turns>
NIB_DEVICE void walk_second(struct shared *m, const struct item &it, uint32_t c, int lane, struct softmax *w,
                            float (&o)[128])
{
    float shrink[2], most[2];
    uint4 p[kTile / 16], plain[kTile / 16];
    if (it.begin + kTile >= it.end)
        query_release<parts, cut>(m, lane);
    for (int32_t base = it.begin; base < it.end; base += 2 * kTile, c += 2) {
        bool  second = base + kTile < it.end;
        float s[32];
        if (second && !in_turns) {
            score<scaled>(m, c + 1, lane, s);
            if (base + 3 * kTile >= it.end)
                query_release<parts, cut>(m, lane);
        }
        take_over(m, kFirstReady, p, most);
        for (int k = 0; scaled && k < kTile / 16; k++)
            plain[k] = m->plain[k][threadIdx.x % 128];
        raise(w, most, shrink);
        side_wait(m, c, 1);
        shrink_sums(o, shrink);
        start_sums<1, scaled>(m, c, p, plain, o);
        if (second && !in_turns) /* while the sums run */
            weigh<f32>(s, it.end - base - kTile, lane, w, shrink);
        end_sums(o);
        if (in_turns) {
            side_release(m, c, 1, lane);
            if (!second)
                break;
            score<scaled>(m, c + 1, lane, s);
            if (base + 3 * kTile >= it.end)
                query_release<parts, cut>(m, lane);
            weigh<f32>(s, it.end - base - kTile, lane, w, shrink);
        }
        if (second) { /* the registers of the first tile's weights are free */
            settled(s);
            as_operands<f32, scaled>(s, lane, m->row_scale[(c + 1) % kStages], p, plain);
            hand_over(m, kSecondReady, p, w->most);
        }
        if (!in_turns)
            side_release(m, c, 1, lane);
        if (!second)
            break;
        shrink_sums(o, shrink);
        start_sums<1, scaled>(m, c + 1, p, plain, o);
        end_sums(o);
        side_release(m, c + 1, 1, lane);
    }
}

#endif
