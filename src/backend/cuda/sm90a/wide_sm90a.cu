/* Products with many rows on Hopper: Y^T = W . X^T by warpgroups, 128 outputs x 128 or 256 rows a block.
 *
 * Weights are the A operand: their packed tiles (cuda.h) are already fragments, so a warp decodes its 16 outputs' codes in
 * registers and never writes them back. Rows are the B operand: one pass over the activations makes an image of them, bf16
 * in the tiles' order of columns and in the order in which a product reads shared memory, so that the rows of a block of
 * 64 columns arrive by one bulk copy. A third warpgroup, which gives its registers to the two, keeps kStages of these on their way. While one warpgroup decodes, the other
 * multiplies.
 *
 * Bytes a block of the grid: weights once (0.56 a weight from memory, then L2), the image once. Sums run over blocks of columns in
 * ascending order, whatever the number of rows.
 *
 * Only rows that one bf16 number a channel holds exactly come here. A product cuts what it adds to its sums; with fp32 rows in three
 * parts that happened three times as often, and sums left opcheck's bounds by up to 1.3 times on a card. */
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/products.cuh"
#include "backend/cuda/device/rows.cuh"
#include "backend/cuda/sm90a/wgmma.cuh"

constexpr int kOuts = 128, kConsumers = 256, kWideThreads = kConsumers + 128;

/* ---- The image of rows ---- */

struct image {
    uint16_t *value;    /* [row tile][block][8][rows of a tile][8] */
    int32_t  *exponent; /* [n] */
    int32_t   n_rows, tile_rows;
};

NIB_DEVICE float act_value(const struct nib_act &x, enum nib_act_format act, int64_t t, int32_t i)
{
    return act == NIB_ACT_PLAIN ? nib_mat_get(x.plain, t, i) : nib_act_get(x, t, i);
}

/* A block a row; rows behind the last one are zeros. A thread makes 8 neighbours in k of a product: of the 16 that product j of a
 * block takes, (2l, 2l+1) are columns 16l + 4j + (0, 1) and (2l+8, 2l+9) columns 16l + 4j + (2, 3). */
static __global__ void make_image(const struct nib_act x, enum nib_act_format act, int32_t first, const struct image im)
{
    nib_grid_start();
    __shared__ uint32_t buffer[32];
    int32_t             row = (int32_t)blockIdx.x, n_eights = x.cols / 8, n_blocks = x.cols / kBlockCols, e = 0;
    bool                there = row < im.n_rows;
    uint32_t            most = 0;
    if (there) {
        for (int32_t i = threadIdx.x; i < x.cols; i += blockDim.x)
            most = max(most, __float_as_uint(act_value(x, act, (int64_t)first + row, i)) & 0x7fffffffu);
        e = nib_exponent_of(nib_block_max_u32(most, buffer));
        if (threadIdx.x == 0)
            im.exponent[row] = e;
    }
    int64_t tile = row / im.tile_rows, in_tile = row % im.tile_rows, block_halves = (int64_t)kBlockCols * im.tile_rows;
    for (int32_t i = threadIdx.x; i < n_eights; i += blockDim.x) {
        int32_t block = i / 8, j = i % 8 / 2, from = block * kBlockCols + 4 * j + i % 2 * 2;
        __align__(16) uint16_t eight[8];
        for (int32_t k = 0; k < 8; k++)
            eight[k] = nib_bf16_code(there ? scalbnf(act_value(x, act, (int64_t)first + row, from + k / 2 * 16 + k % 2), -e) : 0);
        uint16_t *to = im.value + (tile * n_blocks + block) * block_halves + (i % 8 * im.tile_rows + in_tile) * 8;
        *(uint4 *)to = *(const uint4 *)eight;
    }
}

/* ---- The product ---- */

struct wide_args {
    struct nib_cuda_matrix w;
    struct image           x;
    struct nib_mat         y;
    int32_t                n_x_blocks, group_rows; /* blocks of columns of x; outputs that share a group of them, 0: all */
};

template <int N> struct wide_memory {
    static constexpr int kStages = N == 256 ? 6 : 10;
    uint16_t             rows[kStages][kBlockCols * N];
    uint64_t             full[kStages], empty[kStages];
};

/* One thread: image blocks in the order in which they are used. */
template <int N> NIB_DEVICE void feed(const struct wide_args &a, int32_t first_block, int32_t n_blocks, struct wide_memory<N> *m)
{
    int32_t         n_stages = wide_memory<N>::kStages;
    const uint16_t *tile = a.x.value + ((int64_t)blockIdx.y * a.n_x_blocks + first_block) * (kBlockCols * N);
    for (int32_t block = 0; block < n_blocks; block++) {
        int32_t at = block % n_stages, round = block / n_stages;
        if (round > 0)
            nib_barrier_wait(&m->empty[at], (uint32_t)(round - 1) & 1u);
        nib_bulk_copy(m->rows[at], tile + (int64_t)block * (kBlockCols * N), kBlockCols * N * 2, &m->full[at]);
    }
}

/* Block i of a step, which is `block` of the product, against its rows. */
template <int type, int N, int i>
NIB_DEVICE void multiply_block(const struct nib_tile_step<type> &s, int32_t block, struct wide_memory<N> *m, float (&acc)[N / 2])
{
    struct nib_tile_scales scale = nib_tile_step_scales<type>(s, i);
    uint32_t               operand[4][4];
    nib_tile_step_operand<type, i, 0>(s, scale, operand[0]);
    nib_tile_step_operand<type, i, 1>(s, scale, operand[1]);
    nib_tile_step_operand<type, i, 2>(s, scale, operand[2]);
    nib_tile_step_operand<type, i, 3>(s, scale, operand[3]);
    int32_t at = block % wide_memory<N>::kStages, round = block / wide_memory<N>::kStages;
    nib_barrier_wait(&m->full[at], (uint32_t)round & 1u);
    uint64_t b = nib_wgmma_descriptor(nib_shared_address(m->rows[at]), N * 16, 128);
    nib_wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++)
        nib_wgmma_bf16(acc, operand[j], b + (uint64_t)(j * 2 * N)); /* 2 * N * 16 bytes, in units of 16 */
    nib_wgmma_commit();
    nib_wgmma_wait();
    if (threadIdx.x % 32 == 0)
        nib_barrier_arrive(&m->empty[at]);
}

template <int type, int N>
NIB_DEVICE void multiply(const struct wide_args &a, const struct nib_tile &t, int32_t n_blocks, struct wide_memory<N> *m, float (&acc)[N / 2])
{
    constexpr int              n = nib_tile_step<type>::kBlocks;
    struct nib_tile_step<type> now, next;
    nib_tile_step_load<type>(t, 0, n_blocks, now);
#pragma unroll 1
    for (int32_t block = 0; block < n_blocks; block += n) {
        nib_steps_prefetch<type>(t, block + kPrefetchSteps * n, n_blocks, 1);
        nib_tile_step_load<type>(t, block + n, n_blocks, next);
        multiply_block<type, N, 0>(now, block, m, acc);
        if (n > 1 && block + 1 < n_blocks)
            multiply_block<type, N, 1 % n>(now, block + 1, m, acc);
        if (n > 2 && block + 2 < n_blocks)
            multiply_block<type, N, 2 % n>(now, block + 2, m, acc);
        if (n > 2 && block + 3 < n_blocks)
            multiply_block<type, N, 3 % n>(now, block + 3, m, acc);
        now = next;
    }
}

template <int N> NIB_DEVICE void store(const struct wide_args &a, int32_t o, int lane, const float (&acc)[N / 2])
{
    float alpha = nib_alpha_of(a.w, 0);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int32_t row = (int32_t)blockIdx.y * N + i / 4 * 8 + 2 * (lane % 4) + i % 2, out = o + lane / 4 + i % 4 / 2 * 8;
        if (row < a.x.n_rows && out < a.w.n_out)
            nib_mat_set(a.y, row, out, (float)scalbn((double)acc[i] * (double)alpha, a.x.exponent[row]));
    }
}

template <int type, int N> static __global__ void __launch_bounds__(kWideThreads, 1) wide_product(const __grid_constant__ struct wide_args a)
{
    nib_grid_release();
    extern __shared__ __align__(128) uint8_t memory[];
    struct wide_memory<N> *m = (struct wide_memory<N> *)memory;
    int     warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int32_t n_blocks = a.w.n_in / kBlockCols, o = (int32_t)blockIdx.x * kOuts + warp * kTileRows;
    int32_t group = a.group_rows ? (int32_t)blockIdx.x * kOuts / a.group_rows : 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < wide_memory<N>::kStages; i++) {
            nib_barrier_init(&m->full[i], 1);
            nib_barrier_init(&m->empty[i], kConsumers / 32);
        }
        nib_barrier_init_done();
    }
    __syncthreads();
    nib_grid_wait();
    if (warp >= kConsumers / 32) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == kConsumers)
            feed<N>(a, group * n_blocks, n_blocks, m);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    /* Warps behind the last tile multiply with it, as a warpgroup works as one, and keep nothing. */
    float           acc[N / 2] = {};
    struct nib_tile t = nib_tile_of(a.w, 0, min(o, a.w.n_out - 1) / kTileRows, lane);
    multiply<type, N>(a, t, n_blocks, m, acc);
    store<N>(a, o, lane, acc);
}

/* ---- Host ---- */

template <int type, int N> static void launch(struct nib_stream *s, const struct wide_args &a)
{
    dim3 grid((unsigned)((a.w.n_out + kOuts - 1) / kOuts), (unsigned)((a.x.n_rows + N - 1) / N));
    int  bytes = (int)sizeof(struct wide_memory<N>);
    cudaFuncSetAttribute(wide_product<type, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    nib_launch(s, wide_product<type, N>, grid, kWideThreads, (size_t)bytes, a);
}

template <int N> static void launch_type(struct nib_stream *s, const struct wide_args &a)
{
    switch (a.w.type) {
    case NIB_WEIGHT_NVFP4: launch<NIB_WEIGHT_NVFP4, N>(s, a); break;
    case NIB_WEIGHT_MXFP4: launch<NIB_WEIGHT_MXFP4, N>(s, a); break;
    case NIB_WEIGHT_FP8: launch<NIB_WEIGHT_FP8, N>(s, a); break;
    default: launch<NIB_WEIGHT_BF16, N>(s, a); break;
    }
}

/* One bf16 number holds a channel exactly. */
static bool is_bf16(const struct nib_act *x, enum nib_act_format act)
{
    return act == NIB_ACT_FP8 || (act == NIB_ACT_PLAIN && x->plain.dtype == NIB_DTYPE_BF16);
}

bool nib_cuda_wide_takes(const struct nib_stream *s, const struct nib_act *x, int32_t n, int32_t n_weights,
                         const struct nib_weight *const *w, int32_t group_rows)
{
    int64_t halves = 0, rows = (n + 255) / 256 * 256;
    bool    have[2] = {false, false};
    if (s->arch != 90 || n <= NIB_CUDA_MANY_ROWS || group_rows % kOuts != 0)
        return false;
    for (int32_t i = 0; i < n_weights; i++) {
        bool quant = w[i]->act != NIB_ACT_PLAIN;
        if (nib_cuda_matrix_of(w[i])->layout != NIB_CUDA_TILED || !is_bf16(x, w[i]->act))
            return false;
        if (!have[quant])
            halves += rows * x->cols + 64;
        have[quant] = true;
    }
    return halves <= s->n_parts_max;
}

enum nib_status nib_cuda_wide(struct nib_stream *s, const struct nib_act *x, int32_t first, int32_t n, int32_t n_weights,
                              const struct nib_weight *const *w, const struct nib_mat *y, int32_t group_rows)
{
    int32_t      tile_rows = n <= 128 ? 128 : 256, n_tiles = (n + tile_rows - 1) / tile_rows;
    struct image ready[2];
    bool         have[2] = {false, false};
    int64_t      at = 0;
    for (int32_t i = 0; i < n_weights; i++) {
        bool quant = w[i]->act != NIB_ACT_PLAIN;
        if (!have[quant]) {
            int32_t *exponent = s->exponent + (int64_t)(s->n_exponents++ % 8) * s->dims.n_rows_max;
            ready[quant] = {s->parts + at, exponent, n, tile_rows};
            at += ((int64_t)n_tiles * tile_rows * x->cols + 63) / 64 * 64;
            nib_launch(s, make_image, dim3((unsigned)(n_tiles * tile_rows)), 256, 0, *x, w[i]->act, first, ready[quant]);
            have[quant] = true;
        }
        struct wide_args a = {*nib_cuda_matrix_of(w[i]), ready[quant], y[i], x->cols / kBlockCols, group_rows};
        if (tile_rows == 128)
            launch_type<128>(s, a);
        else
            launch_type<256>(s, a);
    }
    return nib_cuda_check(s, cudaGetLastError(), "products of many rows");
}
