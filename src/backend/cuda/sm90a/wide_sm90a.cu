/* Products with many rows on Hopper: Y^T = W . X^T (wide.cuh), 128 outputs x 128 or 256 rows a block, after one pass
 * over the activations which makes their image.
 *
 * Bytes a block of the grid: weights once (0.56 a weight from memory, then L2), the image once for two blocks.
 *
 * Only rows that one bf16 number a channel holds exactly come here. A product cuts what it adds to its sums; with
 * fp32 rows in three parts that happened three times as often, and sums left opcheck's bounds by up to 1.3 times on a
 * card. */
#include <string.h>

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm90a/wide.cuh"

constexpr int kOuts = 128;

/* ---- The image of rows ---- */

struct image {
    uint16_t *value;    /* [row tile][block][rows of a tile / 8]{8 rows} */
    int32_t  *exponent; /* [n] of FP8 rows; NULL: rows are as they were */
    int32_t   n_rows, tile_rows;
};

static __global__ void row_exponents(const struct nib_act x, int32_t first, int32_t n, int32_t *exponent)
{
    nib_grid_start();
    nib_wide_exponents(x, first, n, exponent);
}

/* A warp makes 32 rows of a block: a lane reads its row's 128 bytes, and the warp writes neighbouring rows together.
 * Rows behind the last one are zeros. */
template <bool fp8> static __global__ void make_image(const struct nib_act x, int32_t first, const struct image im)
{
    nib_grid_start();
    int32_t row = (int32_t)blockIdx.x * 32 + (int32_t)threadIdx.x % 32, n_blocks = x.cols / kBlockCols;
    int32_t block = (int32_t)(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32);
    if (block >= n_blocks)
        return;
    uint4 v[8] = {};
    if (row < im.n_rows)
        nib_wide_load<fp8>(x, (int64_t)first + row, block, fp8 ? im.exponent[row] : 0, v);
    nib_wide_put(im.value + ((int64_t)(row / im.tile_rows) * n_blocks + block) * (kBlockCols * im.tile_rows),
                 row % im.tile_rows, v);
}

/* ---- The product ---- */

struct wide_args {
    struct nib_cuda_matrix w;
    struct image           x;
    struct nib_mat         y;
    int32_t                n_x_blocks, group_rows; /* blocks of columns of x; outputs that share a group of them, 0: all */
    bool                   by_eights;              /* y is bf16, and eight outputs are one access */
};

NIB_DEVICE struct nib_wide_factor factor_of(const struct wide_args &a, const struct nib_wide_alpha &alpha, int32_t row)
{
    return nib_wide_factor_of(alpha, a.x.exponent && row < a.x.n_rows ? a.x.exponent[row] : 0);
}

NIB_DEVICE float scaled(float sum, const struct nib_wide_factor &by)
{
    return sum * by.first * by.second;
}

/* Straight from registers: where what is asked for does not lie in 16 bytes. */
template <int N> NIB_DEVICE void store_singly(const struct wide_args &a, int32_t o, int lane, const float (&acc)[N / 2])
{
    struct nib_wide_alpha alpha = nib_wide_alpha_of(nib_alpha_of(a.w, 0));
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int32_t row = (int32_t)blockIdx.y * N + i / 4 * 8 + 2 * (lane % 4) + i % 2, out = o + lane / 4 + i % 4 / 2 * 8;
        if (row < a.x.n_rows && out < a.w.n_out)
            nib_mat_set(a.y, row, out, scaled(acc[i], factor_of(a, alpha, row)));
    }
}

/* Through shared memory, a warpgroup its 64 outputs: [N][64 + 8] bf16. Sums lie by outputs and are stored by rows,
 * which is what stmatrix transposes. */
template <int N> NIB_DEVICE void store(const struct wide_args &a, int32_t o, uint16_t *memory, const float (&acc)[N / 2])
{
    constexpr int stride = 72;
    int           lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
    uint16_t     *tile = memory + group * (N * stride);
    int32_t       row0 = (int32_t)blockIdx.y * N;
    struct nib_wide_alpha alpha = nib_wide_alpha_of(nib_alpha_of(a.w, 0));
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        int32_t                row = row0 + i * 8 + 2 * (lane % 4);
        struct nib_wide_factor by = factor_of(a, alpha, row), by1 = factor_of(a, alpha, row + 1);
        uint32_t low = nib_pack_bf16x2(scaled(acc[4 * i], by), scaled(acc[4 * i + 1], by1));
        uint32_t high = nib_pack_bf16x2(scaled(acc[4 * i + 2], by), scaled(acc[4 * i + 3], by1));
        nib_store_transposed(tile + (i * 8 + lane % 8) * stride + warp * 16 + lane / 8 % 2 * 8, low, high);
    }
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    int32_t first_out = o - warp * kTileRows;
    for (int k = threadIdx.x % 128; k < N * 8; k += 128) {
        int32_t row = row0 + k / 8, out = first_out + k % 8 * 8;
        if (row < a.x.n_rows && out < a.w.n_out)
            *(uint4 *)((uint16_t *)a.y.data + row * a.y.stride + out) =
                *(const uint4 *)(tile + k / 8 * stride + k % 8 * 8);
    }
}

template <int type, int N>
static __global__ void __launch_bounds__(kWideThreads, 1) wide_product(const __grid_constant__ struct wide_args a)
{
    nib_grid_release();
    extern __shared__ __align__(128) uint8_t memory[];
    struct nib_wide_memory *m = (struct nib_wide_memory *)memory;
    int     warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int32_t n_blocks = a.w.n_in / kBlockCols, o = (int32_t)blockIdx.x * kOuts + warp * kTileRows;
    int32_t group = a.group_rows ? (int32_t)blockIdx.x * kOuts / a.group_rows : 0;
    nib_wide_init(m);
    nib_grid_wait();
    if (warp >= kWideConsumers / 32) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == kWideConsumers)
            nib_wide_feed(a.x.value + ((int64_t)blockIdx.y * a.n_x_blocks + group * n_blocks) * (kBlockCols * N),
                          kBlockCols * N, N / kGroupRows, n_blocks, 1, N, m);
        __syncwarp();
        nib_cluster_sync();
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    /* Warps behind the last tile multiply with it, as a warpgroup works as one, and keep nothing. */
    float           acc[N / 2] = {};
    struct nib_tile t = nib_tile_of(a.w, 0, min(o, a.w.n_out - 1) / kTileRows, lane);
    nib_wide_multiply<type, N>(t, 0, n_blocks, m, acc);
    /* All products are done, here and in the other block of a pair, which sends nothing any more: rows make way. */
    nib_cluster_sync();
    if (a.by_eights) {
        store<N>(a, o, m->rows, acc); /* not the barriers, where the other block may still give a stage back */
    } else {
        store_singly<N>(a, o, lane, acc);
    }
}

/* ---- Host ---- */

template <int type, int N> static void launch(struct nib_stream *s, const struct wide_args &a)
{
    dim3 grid((unsigned)((a.w.n_out + kOuts - 1) / kOuts), (unsigned)((a.x.n_rows + N - 1) / N));
    int  bytes = (int)sizeof(struct nib_wide_memory);
    bool pairs = grid.x % 2 == 0 && a.group_rows % (2 * kOuts) == 0;
    cudaFuncSetAttribute(wide_product<type, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    nib_launch_cluster(s, pairs ? 2 : 1, wide_product<type, N>, grid, kWideThreads, (size_t)bytes, a);
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

/* One bf16 number holds a channel exactly, and rows can be read in words. */
static bool is_bf16(const struct nib_act *x, enum nib_act_format act)
{
    if (act == NIB_ACT_FP8)
        return x->codes_stride % 4 == 0 && (uintptr_t)x->codes % 4 == 0;
    return act == NIB_ACT_PLAIN && x->plain.dtype == NIB_DTYPE_BF16 && x->plain.stride % 8 == 0 &&
           (uintptr_t)x->plain.data % 16 == 0;
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

static bool by_eights(const struct nib_mat *y)
{
    return y->dtype == NIB_DTYPE_BF16 && y->stride % 8 == 0 && y->cols % 8 == 0 && (uintptr_t)y->data % 16 == 0;
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
            bool     fp8 = w[i]->act == NIB_ACT_FP8;
            dim3     grid((unsigned)(n_tiles * tile_rows / 32), (unsigned)((x->cols / kBlockCols + 7) / 8));
            ready[quant] = {s->parts + at, fp8 ? exponent : NULL, n, tile_rows};
            at += ((int64_t)n_tiles * tile_rows * x->cols + 63) / 64 * 64;
            if (fp8) {
                nib_launch(s, row_exponents, (unsigned)(n + 7) / 8, 256, 0, *x, first, n, exponent);
                nib_launch(s, make_image<true>, grid, 256, 0, *x, first, ready[quant]);
            } else {
                nib_launch(s, make_image<false>, grid, 256, 0, *x, first, ready[quant]);
            }
            have[quant] = true;
        }
        struct wide_args a = {*nib_cuda_matrix_of(w[i]), ready[quant], y[i], x->cols / kBlockCols, group_rows,
                              by_eights(&y[i])};
        if (tile_rows == 128)
            launch_type<128>(s, a);
        else
            launch_type<256>(s, a);
    }
    return nib_cuda_check(s, cudaGetLastError(), "products of many rows");
}
