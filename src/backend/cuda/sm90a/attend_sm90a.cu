/* Attention of many rows on Hopper's wgmma: bf16 queries of 64 heads of 512 channels over BF16 or FP8 rows.
 *
 * A block takes one query row and 64 heads, which are the M of its products, and all that the row attends to, 64 rows
 * at a time. A warpgroup brings rows from their pages into shared memory (FP8 decoded on the way, exactly), two tiles
 * deep, each row once for both products: as the K-major operand of the scores and, read along its channels, as the
 * operand of the sums. Of the other two warpgroups each scores half of a tile and adds up half of the channels; weights
 * pass from one to the other through shared memory, as two bf16 parts, so that both products are as good as fp32.
 *
 * Counts for a tile: scores 64 * 64 * 512 multiply-adds, sums twice that for the two parts; 64 KB from L2. With 2048
 * multiply-adds a clock that is 3072 clocks, of which the scores' reading of the query from shared memory costs 512
 * more: at 1.75 GHz and 132 blocks 500 TFLOP/s counted without the second part, before what the weights in between
 * cost.
 *
 * Registers: 128 of sums and 16 of scores a thread, 224 for these warpgroups and 56 for the third. Shared memory: query
 * 64 KB, tiles 128 KB, weights 18 KB. */
#include "backend/cuda/attend_cuda.h"
#include "backend/cuda/device/attended.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm90a/wgmma.cuh"

constexpr int kD = kAttendDim, kNope = kAttendNope, kRot = kAttendRot;
constexpr int kHeads = 64, kTile = 64, kHalf = kTile / 2, kStages = 2, kConsumers = 256, kThreads = kConsumers + 128;
constexpr int kChunk = 64, kChunks = kD / kChunk; /* channels that stand together: a row of 128 bytes */
constexpr int kPHalves = kTile + 8;

struct shared {
    uint16_t q[kChunks][kHeads][kChunk];
    uint16_t kv[kStages][kChunks][kTile][kChunk];
    uint16_t p[2][kHeads][kPHalves];
    float    most[2][kHeads], total[2][kHeads]; /* of each warpgroup's half */
    float    angle[kRot];
    uint64_t full[kStages], empty[kStages];
};
constexpr int kAlign = 1024; /* of what wgmma reads with a swizzle of 128 bytes */
static_assert(sizeof(struct shared) + kAlign <= 227 * 1024, "a block's memory must fit");

/* Where the eight channels `unit` of a row stand: units of 16 bytes change places with the row. */
NIB_DEVICE uint4 *unit_of(uint16_t (*tile)[kTile][kChunk], int row, int unit)
{
    return (uint4 *)&tile[unit / 8][row][(unit % 8 ^ row % 8) * 8];
}

/* ---- Products ---- */

/* An operand with a swizzle of 128 bytes. K-major: groups of 8 rows are 1024 bytes apart. Along the channels: `next`
 * bytes to the next 64 of them, and 1024 to the next 8 rows, which are k there. */
NIB_DEVICE uint64_t descriptor(const void *p, uint32_t next)
{
    return (uint64_t)(nib_shared_address(p) >> 4 & 0x3fffu) | (uint64_t)(next >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

NIB_DEVICE void product_scores(float (&d)[16], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "l"(a), "l"(b));
}

/* Keeps the compiler from reading or moving sums before the wait in front of it. */
template <int n> NIB_DEVICE void settled(float (&d)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* The two warps that hold the same heads, one of each warpgroup. */
NIB_DEVICE void pair_sync(int warp)
{
    asm volatile("bar.sync %0, 64;" ::"r"(1 + warp) : "memory");
}

NIB_DEVICE void consumers_sync(void)
{
    asm volatile("bar.sync 5, 256;" ::: "memory");
}

NIB_DEVICE void proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- Rows into shared memory ---- */

NIB_DEVICE void copy_unit(uint4 *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(nib_shared_address(to)), "l"(from) : "memory");
}

/* Unit `u` of an FP8 row as stored: eight codes with their scale in `more`, or a quarter of the rotary channels. */
NIB_DEVICE uint2 fp8_read(const uint8_t *row, int u, uint2 *more)
{
    if (u >= kNope / 8) {
        const uint2 *h = (const uint2 *)(row + kNope) + (u - kNope / 8) * 2;
        *more = h[1];
        return h[0];
    }
    more->x = row[kNope + 2 * kRot + u / 8];
    return ((const uint2 *)row)[u];
}

NIB_DEVICE uint4 fp8_decoded(int u, uint2 c, uint2 more)
{
    if (u >= kNope / 8)
        return make_uint4(c.x, c.y, more.x, more.y);
    float scale = nib_e8m0_value(more.x);
    return make_uint4(nib_pack_bf16x2(nib_fp8_value(c.x & 255, scale), nib_fp8_value(c.x >> 8 & 255, scale)),
                      nib_pack_bf16x2(nib_fp8_value(c.x >> 16 & 255, scale), nib_fp8_value(c.x >> 24, scale)),
                      nib_pack_bf16x2(nib_fp8_value(c.y & 255, scale), nib_fp8_value(c.y >> 8 & 255, scale)),
                      nib_pack_bf16x2(nib_fp8_value(c.y >> 16 & 255, scale), nib_fp8_value(c.y >> 24, scale)));
}

/* Rows r0 .. r0 + 3 of a warp's: all read before the first is written, so that their reads overlap. */
NIB_DEVICE void fp8_rows(uint16_t (*tile)[kTile][kChunk], const uint8_t *row, int first, int r0, int lane)
{
    const uint8_t *from[4];
    uint2          c[4][2] = {}, more[4][2] = {};
#pragma unroll
    for (int r = 0; r < 4; r++)
        from[r] = (const uint8_t *)(uintptr_t)__shfl_sync(~0u, (unsigned long long)(uintptr_t)row, r0 + r);
#pragma unroll
    for (int r = 0; r < 4; r++)
        for (int i = 0; from[r] && i < 2; i++)
            c[r][i] = fp8_read(from[r], lane + 32 * i, &more[r][i]);
#pragma unroll
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < 2; i++)
            *unit_of(tile, first + r0 + r, lane + 32 * i) = from[r] ? fp8_decoded(lane + 32 * i, c[r][i], more[r][i])
                                                                    : make_uint4(0, 0, 0, 0);
}

/* The third warpgroup: 16 rows of each tile a warp, whose addresses its lanes find one tile ahead. */
template <int format>
NIB_DEVICE void feed(const struct nib_attend_args &a, const struct nib_attended &at, struct shared *m)
{
    int            warp = (threadIdx.x - kConsumers) / 32, lane = threadIdx.x % 32, mine = warp * 16 + lane % 16;
    const uint8_t *row = mine < at.n ? nib_attended_row(a, at, mine) : NULL;
    for (int32_t base = 0, i = 0; base < at.n; base += kTile, i++) {
        int32_t        stage = i % kStages, next = base + kTile + mine;
        uint16_t     (*tile)[kTile][kChunk] = m->kv[stage];
        const uint8_t *next_row = next < at.n ? nib_attended_row(a, at, next) : NULL;
        if (i >= kStages)
            nib_barrier_wait(&m->empty[stage], (uint32_t)(i / kStages - 1) & 1u);
        for (int r = 0; format == NIB_ROW_FP8 && r < 16; r += 4)
            fp8_rows(tile, row, warp * 16, r, lane);
#pragma unroll 4
        for (int r = 0; format != NIB_ROW_FP8 && r < 16; r++) {
            const uint8_t *from = (const uint8_t *)(uintptr_t)__shfl_sync(~0u, (unsigned long long)(uintptr_t)row, r);
            for (int u = lane; u < kD / 8; u += 32) {
                uint4 *to = unit_of(tile, warp * 16 + r, u);
                if (!from)
                    *to = make_uint4(0, 0, 0, 0);
                else
                    copy_unit(to, (const uint4 *)from + u);
            }
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        proxy_fence();
        nib_barrier_arrive(&m->full[stage]);
        row = next_row;
    }
}

/* ---- Scores, weights and sums ---- */

/* A warpgroup's own threads: heads 16 * warp + lane / 4 (+ 8) of its half of the rows. */
struct weights {
    float most[2], total[2];
};

NIB_DEVICE void put_parts(struct shared *m, int h, int r, float p0, float p1)
{
    uint32_t high = nib_pack_bf16x2(p0, p1);
    *(uint32_t *)&m->p[0][h][r] = high;
    *(uint32_t *)&m->p[1][h][r] = nib_pack_bf16x2(p0 - nib_bf16_value(high & 0xffffu), p1 - nib_bf16_value(high >> 16));
}

/* Weights of a tile from its scores, to shared memory; fade: of older sums. n: rows of the tile that are there. */
NIB_DEVICE void weigh(struct shared *m, float (&s)[16], float scale, int32_t n, int half, int warp, int lane,
                      struct weights *w, float fade[2])
{
    int h = warp * 16 + lane / 4;
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int r = half * kHalf + i / 4 * 8 + lane % 4 * 2 + i % 2;
        s[i] = r < n ? s[i] * scale : -INFINITY;
        top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
        top[c] = fmaxf(top[c], __shfl_xor_sync(~0u, top[c], 1));
        top[c] = fmaxf(top[c], __shfl_xor_sync(~0u, top[c], 2));
        if (lane % 4 == 0)
            m->most[half][h + c * 8] = top[c];
    }
    pair_sync(warp);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        float before = w->most[c];
        w->most[c] = fmaxf(before, fmaxf(m->most[0][h + c * 8], m->most[1][h + c * 8]));
        fade[c] = before == -INFINITY ? 0 : expf(before - w->most[c]);
        w->total[c] *= fade[c];
    }
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        int   c = i / 2 % 2;
        float p0 = s[i] == -INFINITY ? 0 : expf(s[i] - w->most[c]),
              p1 = s[i + 1] == -INFINITY ? 0 : expf(s[i + 1] - w->most[c]);
        w->total[c] += p0 + p1; /* NaN passes */
        put_parts(m, h + c * 8, half * kHalf + i / 4 * 8 + lane % 4 * 2, p0, p1);
    }
    pair_sync(warp);
}

/* Two sums by turns: products this narrow would wait for each other. */
NIB_DEVICE void score(struct shared *m, int stage, int half, float (&s)[16])
{
    float other[16] = {};
#pragma unroll
    for (int i = 0; i < 16; i++)
        s[i] = 0;
    settled(s);
    settled(other);
    nib_wgmma_fence();
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk++) {
        uint64_t a = descriptor(m->q[chunk], 16), b = descriptor(m->kv[stage][chunk][half * kHalf], 16);
#pragma unroll
        for (int k = 0; k < kChunk / 16; k += 2) {
            product_scores(s, a + 2 * k, b + 2 * k); /* 32 bytes */
            product_scores(other, a + 2 * k + 2, b + 2 * k + 2);
        }
    }
    nib_wgmma_commit();
    nib_wgmma_wait();
    settled(s);
    settled(other);
#pragma unroll
    for (int i = 0; i < 16; i++)
        s[i] += other[i];
}

NIB_DEVICE void add(struct shared *m, int stage, int half, int warp, int lane, float (&o)[128])
{
    uint32_t part[2][kTile / 16][4];
#pragma unroll
    for (int p = 0; p < 2; p++)
        for (int k = 0; k < kTile / 16; k++)
            nib_ldmatrix_x4(part[p][k], &m->p[p][warp * 16 + lane % 16][k * 16 + lane / 16 * 8]);
    settled(o);
    nib_wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTile / 16; k++)
        for (int p = 0; p < 2; p++)
            nib_wgmma_bf16_rows(o, part[p][k],
                                descriptor(m->kv[stage][half * kChunks / 2][k * 16], kTile * kChunk * 2));
    nib_wgmma_commit();
    nib_wgmma_wait();
    settled(o);
}

/* Divides by the totals of both halves and the sink, rotates back, stores. */
NIB_DEVICE void finish(const struct nib_attend_args &a, int64_t t, int h0, int half, int warp, int lane,
                       struct shared *m, const struct weights &w, float (&o)[128])
{
    int  h = warp * 16 + lane / 4;
    bool pairs = a.o.dtype == NIB_DTYPE_BF16 && a.o.stride % 2 == 0 && (uintptr_t)a.o.data % 4 == 0;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        float total = w.total[c] + __shfl_xor_sync(~0u, w.total[c], 1);
        total += __shfl_xor_sync(~0u, total, 2);
        if (lane % 4 == 0)
            m->total[half][h + c * 8] = total;
    }
    pair_sync(warp);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        int   head = h0 + h + c * 8;
        float sink = head < a.n_heads ? a.sink[head] : 0, most = fmaxf(w.most[c], sink),
              fade = w.most[c] == -INFINITY ? 0 : expf(w.most[c] - most);
        float total = (m->total[0][h + c * 8] + m->total[1][h + c * 8]) * fade + expf(sink - most);
        if (head >= a.n_heads)
            continue;
#pragma unroll
        for (int i = c * 2; i < 128; i += 4) {
            int   channel = half * (kD / 2) + i / 4 * 8 + lane % 4 * 2;
            float even = o[i] * fade / total, odd = o[i + 1] * fade / total;
            if (channel >= kNope) {
                int pair = (channel - kNope) / 2;
                nib_rotate_pair(&even, &odd, m->angle[pair], -m->angle[kRot / 2 + pair]);
            }
            int64_t col = (int64_t)head * kD + channel;
            if (pairs) {
                *(uint32_t *)((uint16_t *)a.o.data + t * a.o.stride + col) = nib_pack_bf16x2(even, odd);
            } else {
                nib_mat_set(a.o, t, col, even);
                nib_mat_set(a.o, t, col + 1, odd);
            }
        }
    }
}

/* Grid (groups of 64 heads, rows). */
template <int format> static __global__ void __launch_bounds__(kThreads, 1)
    attend_wide(const __grid_constant__ struct nib_attend_args a, const __grid_constant__ struct nib_rows rows,
                int32_t first)
{
    nib_grid_release();
    extern __shared__ uint8_t memory[];
    struct shared *m = (struct shared *)(memory + (kAlign - nib_shared_address(memory) % kAlign) % kAlign);
    int64_t        t = first + (int64_t)blockIdx.y;
    int            h0 = blockIdx.x * kHeads;
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; i++) {
            nib_barrier_init(&m->full[i], kThreads - kConsumers);
            nib_barrier_init(&m->empty[i], kConsumers / 32);
        }
    }
    __syncthreads();
    nib_grid_wait();
    struct nib_attended at = nib_attended_by(a, rows, t);
    if (threadIdx.x >= kConsumers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        feed<format>(a, at, m);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    int half = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < kHeads * (kD / 8); i += kConsumers) {
        int h = i / (kD / 8), u = i % (kD / 8);
        *unit_of(m->q, h,
                 u) = h0 + h < a.n_heads
                          ? ((const uint4 *)((const uint16_t *)a.q.data + t * a.q.stride + (int64_t)(h0 + h) * kD))[u]
                          : make_uint4(0, 0, 0, 0);
    }
    if (threadIdx.x < kRot / 2) {
        double sine, cosine;
        sincos((double)((float)(rows.pos[t] - rows.first_pos) * a.rope.freq[threadIdx.x]), &sine, &cosine);
        m->angle[threadIdx.x] = (float)cosine;
        m->angle[kRot / 2 + threadIdx.x] = (float)sine;
    }
    proxy_fence();
    consumers_sync();
    struct weights w = {{-INFINITY, -INFINITY}, {0, 0}};
    float          o[128] = {}, s[16];
    for (int32_t base = 0, i = 0; base < at.n; base += kTile, i++) {
        int32_t stage = i % kStages;
        float   fade[2];
        nib_barrier_wait(&m->full[stage], (uint32_t)(i / kStages) & 1u);
        score(m, stage, half, s);
        weigh(m, s, a.scale, at.n - base, half, warp, lane, &w, fade);
        if (__any_sync(~0u, fade[0] != 1 || fade[1] != 1)) {
#pragma unroll
            for (int k = 0; k < 128; k++)
                o[k] *= fade[k / 2 % 2];
        }
        add(m, stage, half, warp, lane, o);
        if (lane == 0)
            nib_barrier_arrive(&m->empty[stage]);
    }
    finish(a, t, h0, half, warp, lane, m, w, o);
}

/* ---- Host ---- */

bool nib_cuda_attend_wide(struct nib_stream *s, const struct nib_attend_args *a)
{
    enum nib_row_format f = a->window.format;
    int                 bytes = (int)sizeof(struct shared) + kAlign, groups = (a->n_heads + kHeads - 1) / kHeads;
    if (s->arch != 90 || (f != NIB_ROW_BF16 && f != NIB_ROW_FP8))
        return false;
    auto *kernel = f == NIB_ROW_FP8 ? attend_wide<NIB_ROW_FP8> : attend_wide<NIB_ROW_BF16>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    for (int32_t first = 0; first < a->rows->n_rows; first += 32768) {
        int32_t n = a->rows->n_rows - first < 32768 ? a->rows->n_rows - first : 32768;
        nib_launch(s, kernel, dim3((unsigned)groups, (unsigned)n), kThreads, (size_t)bytes, *a, *a->rows, first);
    }
    return true;
}
