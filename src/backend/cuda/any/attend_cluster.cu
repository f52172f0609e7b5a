/* Attention of few rows: eight blocks, a cluster, share what one query row and 32 of its heads attend to, and add up in
 * each other's shared memory. Numbers as in attend_mma.cu: bf16 products with fp32 sums.
 *
 * A block takes an eighth of the attended rows, at least 16, as few tiles of up to 80 rows. What would wait on memory
 * is spread over the threads: first every row's address, then all rows and the query at once. At 640 rows each block
 * has one tile, and a step of one sequence keeps 8 * 64 / 32 = 16 multiprocessors busy, one of eight sequences 128.
 *
 * Shared memory: query 33 KB, rows 83 KB, weights 11 KB (NVFP4), scores 10 KB; the sums of 32 heads, 65 KB, take the
 * place of query and rows. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/attended.cuh"
#include "backend/cuda/device/cluster.cuh"
#include "backend/cuda/device/launch.cuh"

constexpr int kD = kAttendDim, kNope = kAttendNope;
constexpr int kCluster = 8, kHeads = 32, kTile = 80, kThreads = 256, kWarps = kThreads / 32;
constexpr int kRowHalves = kD + 8, kPHalves = kTile + 8, kSFloats = kTile + 1;
constexpr int kChannels = kD / 4;                  /* of a warp in the second product */
constexpr int kHeadsEach = kHeads / kCluster;      /* that a block finishes */
constexpr int kRowsMost = kCluster * kTile * 4;    /* attended rows; more are split over launches (attend_mma.cu) */

struct shared {
    union {
        struct {
            uint16_t q[kHeads][kRowHalves];
            uint16_t kv[kTile][kRowHalves];
        } in;
        float o[kHeads][kD];
    };
    uint16_t       p[2][kHeads][kPHalves]; /* [scaled by the row scale] */
    float          s[kHeads][kSFloats];
    float          most[kHeads], total[kHeads], fade[kHeads], row_scale[kTile];
    const uint8_t *row[kTile];
};
static_assert(sizeof(struct shared) <= 227 * 1024, "a block's memory must fit");

/* ---- A tile of rows ---- */

/* The addresses of rows [base, base + n) of those attended. */
NIB_DEVICE void find_rows(const struct nib_attend_args &a, const struct nib_attended &at, int32_t base, int32_t n,
                          struct shared *m)
{
    if ((int32_t)threadIdx.x < kTile)
        m->row[threadIdx.x] = (int32_t)threadIdx.x < n ? nib_attended_row(a, at, base + (int32_t)threadIdx.x) : NULL;
}

NIB_DEVICE void copy_16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

/* A warp a row; rows up to the next multiple of 16 are zeros. BF16 rows go to their place without passing a register,
 * so that all are on their way at once. */
template <int format> NIB_DEVICE void load_rows(struct shared *m, int32_t n)
{
    int lane = threadIdx.x % 32, end = (n + 15) / 16 * 16;
#pragma unroll
    for (int i = 0; i < kTile / kWarps; i++) {
        int            r = threadIdx.x / 32 + i * kWarps;
        uint16_t      *to = m->in.kv[r];
        const uint8_t *row = m->row[r];
        if (r >= end)
            break;
        if (!row) {
            ((uint4 *)to)[lane] = ((uint4 *)to)[lane + 32] = make_uint4(0, 0, 0, 0);
            if (lane == 0)
                m->row_scale[r] = 0;
        } else if (format == NIB_ROW_FP8) {
            nib_attend_load_fp8(row, to, lane);
        } else if (format == NIB_ROW_NVFP4) {
            nib_attend_load_nvfp4(row, to, &m->row_scale[r], lane);
        } else {
            copy_16((uint4 *)to + lane, (const uint4 *)row + lane);
            copy_16((uint4 *)to + lane + 32, (const uint4 *)row + lane + 32);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Scores of 16 heads and every fourth group of 8 rows a warp; -inf beyond n rows. */
template <int format> NIB_DEVICE void score_rows(struct shared *m, float scale, int32_t n)
{
    constexpr int kGroups = (kTile / 8 + 3) / 4;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = warp % 2 * 16, g = lane / 4, l = lane % 4,
        n_groups = (n + 15) / 16 * 2;
    float s[kGroups][4] = {}, row_scale[kGroups][2];
#pragma unroll
    for (int i = 0; i < kGroups; i++)
        for (int c = 0; c < 2; c++)
            row_scale[i][c] = format == NIB_ROW_NVFP4 && warp / 2 + 4 * i < n_groups
                                  ? m->row_scale[(warp / 2 + 4 * i) * 8 + 2 * l + c]
                                  : 1;
#pragma unroll 2
    for (int k = 0; k < kD; k += 32) {
        uint32_t a[2][4], b[4];
        nib_ldmatrix_x4(a[0], &m->in.q[h + lane % 16][k + lane / 16 * 8]);
        nib_ldmatrix_x4(a[1], &m->in.q[h + lane % 16][k + 16 + lane / 16 * 8]);
#pragma unroll
        for (int i = 0; i < kGroups; i++) {
            int group = warp / 2 + 4 * i;
            if (group >= n_groups)
                continue;
            nib_ldmatrix_x4(b, &m->in.kv[group * 8 + lane % 8][k + lane / 8 * 8]);
            if (format == NIB_ROW_NVFP4 && k == kNope)
                for (int c = 0; c < 4; c++)
                    s[i][c] *= row_scale[i][c % 2];
            nib_mma_bf16(s[i], a[0], b[0], b[1]);
            nib_mma_bf16(s[i], a[1], b[2], b[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < kGroups; i++)
        for (int c = 0; c < 4; c++) {
            int row = (warp / 2 + 4 * i) * 8 + 2 * l + c % 2;
            if (warp / 2 + 4 * i < n_groups)
                m->s[h + g + c / 2 * 8][row] = row < n ? s[i][c] * scale : -INFINITY;
        }
}

/* Eight threads a head: the running maximum, weights of the tile, how much older sums fade. */
template <int format> NIB_DEVICE void weigh_rows(struct shared *m, int32_t n)
{
    int   h = threadIdx.x / 8, part = threadIdx.x % 8, end = (n + 15) / 16 * 16;
    float before = m->most[h], top = before, sum = 0, v[kTile / 8];
#pragma unroll
    for (int i = 0; i < kTile / 8; i++) {
        v[i] = part + 8 * i < end ? m->s[h][part + 8 * i] : -INFINITY;
        top = fmaxf(top, v[i]);
    }
    for (int i = 1; i < 8; i *= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
#pragma unroll
    for (int i = 0; i < kTile / 8; i++) {
        int   r = part + 8 * i;
        float p = v[i] == -INFINITY ? 0 : expf(v[i] - top); /* NaN passes */
        sum += p;
        if (r < end) {
            m->p[0][h][r] = nib_bf16_code(p);
            if (format == NIB_ROW_NVFP4)
                m->p[1][h][r] = nib_bf16_code(p * m->row_scale[r]);
        }
    }
    for (int i = 1; i < 8; i *= 2)
        sum += __shfl_xor_sync(~0u, sum, i);
    if (part == 0) {
        float fade = before == -INFINITY ? 0 : expf(before - top);
        m->fade[h] = fade;
        m->total[h] = m->total[h] * fade + sum;
        m->most[h] = top;
    }
}

/* o += p . rows for 16 heads and a quarter of the channels a warp. */
template <int format> NIB_DEVICE void add_rows(struct shared *m, int32_t n, float o[kChannels / 8][4])
{
    int   warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = warp % 2 * 16, c0 = warp / 2 * kChannels, g = lane / 4;
    float low = m->fade[h + g], high = m->fade[h + g + 8];
#pragma unroll
    for (int nt = 0; nt < kChannels / 8; nt++) {
        o[nt][0] *= low;
        o[nt][1] *= low;
        o[nt][2] *= high;
        o[nt][3] *= high;
    }
    for (int k = 0; k < n; k += 16) {
        uint32_t a[4], plain[4];
        nib_ldmatrix_x4(a, &m->p[format == NIB_ROW_NVFP4][h + lane % 16][k + lane / 16 * 8]);
        if (format == NIB_ROW_NVFP4)
            nib_ldmatrix_x4(plain, &m->p[0][h + lane % 16][k + lane / 16 * 8]);
#pragma unroll
        for (int nt = 0; nt < kChannels / 8; nt += 2) {
            uint32_t b[4];
            bool     rotary = format == NIB_ROW_NVFP4 && c0 + nt * 8 >= kNope;
            nib_ldmatrix_x4_trans(b, &m->in.kv[k + lane % 16][c0 + nt * 8 + lane / 16 * 8]);
            nib_mma_bf16(o[nt], rotary ? plain : a, b[0], b[1]);
            nib_mma_bf16(o[nt + 1], rotary ? plain : a, b[2], b[3]);
        }
    }
}

/* ---- The cluster's sum ---- */

/* Block r finishes heads kHeadsEach * r ..: 64 threads a head, 8 channels each, blocks in ascending order of their
 * rows. */
NIB_DEVICE void finish_heads(const struct nib_attend_args &a, const struct nib_rows &rows, int64_t t, int32_t n_blocks,
                             struct shared *m)
{
    int h = (int)nib_cluster_rank() * kHeadsEach + threadIdx.x / 64, head = blockIdx.y * kHeads + h,
        c = threadIdx.x % 64 * 8;
    float most = head < a.n_heads ? a.sink[head] : 0, part_most[kCluster], part_total[kCluster], o[8] = {};
    float x[kCluster][8];
#pragma unroll
    for (int b = 0; b < kCluster; b++) {
        uint32_t from = min(b, n_blocks - 1); /* without a branch, so that all reads are on their way together */
        part_most[b] = nib_cluster_load_f32(&m->most[h], from);
        part_total[b] = nib_cluster_load_f32(&m->total[h], from);
        nib_cluster_load_f32x4(&m->o[h][c], from, x[b]);
        nib_cluster_load_f32x4(&m->o[h][c + 4], from, x[b] + 4);
    }
#pragma unroll
    for (int b = 0; b < kCluster; b++)
        if (b >= n_blocks) {
            part_most[b] = -INFINITY;
            part_total[b] = 0;
        }
    float sink = most;
#pragma unroll
    for (int b = 0; b < kCluster; b++)
        most = fmaxf(most, part_most[b]);
    float total = expf(sink - most);
#pragma unroll
    for (int b = 0; b < kCluster; b++) {
        float w = part_most[b] == -INFINITY ? 0 : expf(part_most[b] - most);
        total = fmaf(part_total[b], w, total);
        for (int i = 0; b < n_blocks && i < 8; i++)
            o[i] = fmaf(x[b][i], w, o[i]);
    }
    if (head >= a.n_heads)
        return;
    for (int i = 0; i < 8; i++)
        o[i] = o[i] / total;
    for (int i = 0; c >= kNope && i < 8; i += 2) {
        double sine, cosine;
        sincos((double)((float)(rows.pos[t] - rows.first_pos) * a.rope.freq[(c - kNope + i) / 2]), &sine, &cosine);
        nib_rotate_pair(&o[i], &o[i + 1], (float)cosine, -(float)sine);
    }
    if (nib_mat_by8(a.o)) {
        nib_mat_set8(a.o, t, (int64_t)head * kD + c, o);
        return;
    }
    for (int i = 0; i < 8; i++)
        nib_mat_set(a.o, t, (int64_t)head * kD + c + i, o[i]);
}

/* Grid (kCluster, groups of heads, rows). */
template <int format> static __global__ void __launch_bounds__(kThreads, 1)
    attend_cluster(const struct nib_attend_args a, const struct nib_rows rows)
{
    nib_grid_start();
    extern __shared__ __align__(16) uint8_t memory[];
    struct shared      *m = (struct shared *)memory;
    int64_t             t = blockIdx.z;
    struct nib_attended at = nib_attended_by(a, rows, t);
    int32_t share = max(16, (at.n + kCluster - 1) / kCluster), n_blocks = (at.n + share - 1) / share,
            h0 = blockIdx.y * kHeads;
    int32_t             begin = (int32_t)nib_cluster_rank() * share, end = min(begin + share, at.n);
    find_rows(a, at, begin, min(kTile, end - begin), m);
    for (int i = threadIdx.x; begin < end && i < kHeads * (kD / 8); i += kThreads) {
        int h = i / (kD / 8), c = i % (kD / 8);
        if (h0 + h < a.n_heads)
            copy_16((uint4 *)m->in.q[h] + c,
                    (const uint4 *)((const uint16_t *)a.q.data + t * a.q.stride + (h0 + h) * kD) + c);
        else
            ((uint4 *)m->in.q[h])[c] = make_uint4(0, 0, 0, 0);
    }
    if (threadIdx.x < kHeads) {
        m->most[threadIdx.x] = -INFINITY;
        m->total[threadIdx.x] = 0;
    }
    float o[kChannels / 8][4] = {};
    for (int32_t base = begin; base < end; base += kTile) {
        int32_t n = min(kTile, end - base);
        __syncthreads();
        if (base > begin) {
            find_rows(a, at, base, n, m);
            __syncthreads();
        }
        load_rows<format>(m, n);
        __syncthreads();
        score_rows<format>(m, a.scale, n);
        __syncthreads();
        weigh_rows<format>(m, n);
        __syncthreads();
        add_rows<format>(m, n, o);
    }
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = warp % 2 * 16 + lane / 4,
        c0 = warp / 2 * kChannels + lane % 4 * 2;
#pragma unroll
    for (int nt = 0; begin < end && nt < kChannels / 8; nt++) {
        *(float2 *)&m->o[h][c0 + nt * 8] = make_float2(o[nt][0], o[nt][1]);
        *(float2 *)&m->o[h + 8][c0 + nt * 8] = make_float2(o[nt][2], o[nt][3]);
    }
    nib_cluster_sync();
    finish_heads(a, rows, t, n_blocks, m);
    nib_cluster_sync(); /* others may still read this block's memory */
}

template <int format> static void launch(struct nib_stream *s, const struct nib_attend_args *a)
{
    dim3 grid(kCluster, (unsigned)((a->n_heads + kHeads - 1) / kHeads), (unsigned)a->rows->n_rows);
    cudaFuncSetAttribute(attend_cluster<format>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(struct shared));
    nib_launch_cluster(s, kCluster, attend_cluster<format>, grid, kThreads, sizeof(struct shared), *a, *a->rows);
}

bool nib_cuda_attend_cluster(struct nib_stream *s, const struct nib_attend_args *a)
{
    int64_t most = a->n_window + (a->ratio == 0 ? 0 : a->selected ? a->top_k : s->dims.n_ctx_max / a->ratio);
    if (most > kRowsMost)
        return false;
    if (a->window.format == NIB_ROW_FP8)
        launch<NIB_ROW_FP8>(s, a);
    else if (a->window.format == NIB_ROW_NVFP4)
        launch<NIB_ROW_NVFP4>(s, a);
    else
        launch<NIB_ROW_BF16>(s, a);
    return true;
}
