/* Attention on tcgen05: queries of heads of 512 channels, bf16 or fp32, over rows of BF16, FP8 or NVFP4. Compiled and
 * simulated; never run on hardware yet.
 *
 * A block takes one query row, 64 heads (fp32: 32, in two bf16 parts) and 128 attended rows at a time. Both products are turned round, so that what
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
 * docs/kernels/sm100a-attention.md has the arithmetic. */
#include "backend/cuda/sm100a/attend_rows_sm100a.cuh"
#include "backend/cuda/sm100a/attend_weights_sm100a.cuh"

/* ---- Products, by one thread ---- */

/* Sums of 128 channels += rows x weights, both parts: one after the other, or side by side. */
template <int parts> NIB_DEVICE void add_pair(struct shared *m, uint32_t d, int pair, bool older)
{
    constexpr uint32_t idesc = nib_instruction_half(128, kColumns, true, true);
    for (int part = 0; part < 2 / parts; part++)
        for (int k = 0; k < kTile / 16; k++)
            nib_mma_half(d, nib_matrix_along(at(m->kv[2 * pair][k * 16]), sizeof m->kv[0]),
                         nib_matrix_along(at(m->p[part][k * 16]), 0), idesc, older || part > 0 || k > 0);
}

template <int format, int parts> NIB_DEVICE void multiply_tiles(const struct work &w, struct shared *m, uint32_t tmem)
{
    constexpr uint32_t idesc = nib_instruction_half(kTile, kColumns, false, false);
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
            add_pair<parts>(m, tmem + (uint32_t)(pair * kColumns), pair, i > 0);
            if (format != NIB_ROW_NVFP4 || pair + 1 < kPairs)
                nib_tcgen05_commit<1>(at(&m->bar.empty[pair]));
        }
        if (format != NIB_ROW_NVFP4)
            continue;
        nib_tcgen05_commit<1>(at(&m->bar.turn));
        nib_mbar_wait(at(&m->bar.weighed), n_weighed++ & 1u);
        nib_tcgen05_after_sync();
        add_pair<parts>(m, tmem + kPairs * kColumns, kPairs - 1, i > 0); /* for its upper lanes, the rotary channels */
        nib_tcgen05_commit<1>(at(&m->bar.empty[kPairs - 1]));
    }
    nib_tcgen05_commit<1>(at(&m->bar.added));
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

/* Eight heads' sums, both parts of weights. */
template <int parts> NIB_DEVICE void read_sums(uint32_t from, float v[8])
{
    uint32_t r[8];
    nib_tmem_read8(from, r);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = __uint_as_float(r[i]);
    if (parts == 1)
        return;
    nib_tmem_read8(from + kColumns / 2, r);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] += __uint_as_float(r[i]);
}

/* A channel a lane: neighbours swap every other head, so that each stores pairs of channels. */
template <int format, int parts>
NIB_DEVICE void store_sums(const struct work &w, struct shared *m, uint32_t tmem, int warp, int lane)
{
    const struct nib_mat &o = w.a->o;
    bool pairs = o.dtype == NIB_DTYPE_BF16 && o.stride % 2 == 0 && (uintptr_t)o.data % 4 == 0;
    int  h = warp * 32 + lane;
    if (h < kHeads<parts>)
        m->fade[h] = factor_of(w.h0 + h < w.a->n_heads ? w.a->sink[w.h0 + h] * kLog2E : 0, m->peak[h], total_of(m, h));
    weighers_sync();
#pragma unroll 1
    for (int pair = 0; pair < kPairs; pair++)
#pragma unroll 1
        for (int first = 0; first < kHeads<parts>; first += 8) {
            float    r[8];
            int      channel = pair * 2 * kChunk + warp * 32 + lane / 2 * 2;
            read_sums<parts>(sums_of<format>(tmem, pair, warp) + first, r);
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                float v0 = r[i] * m->fade[first + i], v1 = r[i + 1] * m->fade[first + i + 1];
                float other = __shfl_xor_sync(~0u, lane % 2 ? v0 : v1, 1);
                int   head = w.h0 + first + i + lane % 2;
                if (head < w.a->n_heads)
                    store_pair(w, m, head, channel, lane % 2 ? other : v0, lane % 2 ? v1 : other, pairs);
            }
            __syncwarp();
        }
}

/* A block of a cluster: its sums to shared memory, where rows stood; totals to m->fade. */
template <int format, int parts> NIB_DEVICE void keep_sums(struct shared *m, uint32_t tmem, int warp, int lane)
{
    if (warp * 32 + lane < kHeads<parts>)
        m->fade[warp * 32 + lane] = total_of(m, warp * 32 + lane);
#pragma unroll 1
    for (int pair = 0; pair < kPairs; pair++)
#pragma unroll 1
        for (int half = 0; half < kHalves<parts>; half++) {
            float v[32];
            read_heads<parts>(sums_of<format>(tmem, pair, warp) + half * 32, v);
#pragma unroll
            for (int i = 0; i < 32; i++)
                m->o[half * 32 + i][pair * 2 * kChunk + warp * 32 + lane] = v[i];
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
template <int parts>
NIB_DEVICE void join_sums(const struct work &w, const struct shared *m, int32_t n_blocks)
{
    constexpr int blocks = NIB_SM100A_ATTEND_BLOCKS;
    const struct nib_mat &y = w.a->o;
    bool pairs = y.dtype == NIB_DTYPE_BF16 && y.stride % 2 == 0 && (uintptr_t)y.data % 4 == 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < kHeads<parts> / blocks * (kD / 4); i += kThreads) {
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

template <int format, int parts> NIB_DEVICE void attend(const struct nib_sm100a_attend_args &args)
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
    struct work w = {&args.a, {}, args.first + (int64_t)blockIdx.y, (int32_t)blockIdx.x / blocks * kHeads<parts>, 0, 0};
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
            load_tiles<format, parts>(w, m, warp - kProductWarp - 1, lane);
    } else if (warp == kProductWarp) {
        if (nib_elect())
            multiply_tiles<format, parts>(w, m, tmem);
    } else {
        struct running<parts> run;
        for (int half = 0; half < kHalves<parts>; half++) {
            run.peak[half] = -INFINITY;
            run.total[half] = 0;
        }
        weigh_tiles<format, parts>(w, m, tmem, warp, lane, &run);
        if (!args.few)
            store_sums<format, parts>(w, m, tmem, warp, lane);
        else if (w.begin < w.end)
            keep_sums<format, parts>(m, tmem, warp, lane);
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
        join_sums<parts>(w, m, (w.at.n + share - 1) / share);
        __syncwarp();
        nib_cluster_sync(); /* others may still read this block's memory */
    }
}

#define KERNEL(name, format, parts)                                                                                    \
    extern "C" __global__ void __launch_bounds__(kThreads, 1)                                                          \
        nib_sm100a_attend_##name(const __grid_constant__ struct nib_sm100a_attend_args a)                              \
    {                                                                                                                  \
        attend<format, parts>(a);                                                                                      \
    }

KERNEL(bf16, NIB_ROW_BF16, 1)
KERNEL(fp8, NIB_ROW_FP8, 1)
KERNEL(nvfp4, NIB_ROW_NVFP4, 1)
KERNEL(f32_bf16, NIB_ROW_BF16, 2)
KERNEL(f32_fp8, NIB_ROW_FP8, 2)
KERNEL(f32_nvfp4, NIB_ROW_NVFP4, 2)
