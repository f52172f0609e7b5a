/* The product for few rows: up to 8 or 16. A block makes 16 packed rows of weights; its eight warps take a slice of k
 * each, straight from memory to the instruction, weights read once and 16 bytes a lane. Slices are added up in order in
 * shared memory, so no atomics and the same bits as linear_sm120a.cu.
 *
 * Bytes bound it: 576 for each 1024 weights. Up to four tiles of k are asked for at once, 4 KiB a warp. */
#include "backend/cuda/sm120a/parts_sm120a.cuh"

/* Four scale bytes from block `block` on, zeros behind the row's end; rows have an even number. */
NIB_DEVICE uint32_t scale_word(const uint8_t *scales, int32_t block, int32_t n_blocks)
{
    if (block + 4 <= n_blocks)
        return *(const uint32_t *)(scales + block);
    return block < n_blocks ? *(const uint16_t *)(scales + block) : 0;
}

/* What a warp multiplies in one tile of k. */
template <int NT> struct operands {
    uint4    w[2];
    uint2    w_scales;
    uint32_t x[NT][4], x_scales[NT][2];
};

template <int NT> struct sources {
    const uint8_t *w[2], *w_scales, *x[NT], *x_scales[NT]; /* x NULL: no such row */
};

template <int NT>
NIB_DEVICE void start_loads(struct sources<NT> *p, const struct nib_sm120a_linear_args &a, const struct nib_tile &t,
                            int lane)
{
    int     g = lane / 4, l = lane % 4;
    int64_t k = a.n_k_tiles;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        struct nib_unit u = nib_unit_of(a, t, i);
        p->w[i] = a.w_codes[u.part] + u.at * k * kUnit + lane * 16;
    }
    struct nib_unit u = nib_unit_of(a, t, l % 2);
    p->w_scales = a.w_scales[u.part] + u.at * k * kUnitScales + g * kRowScales;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int     row = n * 8 + g;
        int64_t source = row < t.n_rows ? nib_source_row(a, t.row + row) : 0;
        p->x[n] = row < t.n_rows ? a.x_codes + source * a.x_codes_stride : NULL;
        p->x_scales[n] = a.x_scales + source * a.x_scales_stride;
    }
}

template <int NT>
NIB_DEVICE void load(const struct sources<NT> &p, const struct nib_sm120a_linear_args &a, int32_t k, int lane,
                     struct operands<NT> *o)
{
    int l = lane % 4;
    o->w[0] = nib_load_stream(p.w[0] + (int64_t)k * kUnit);
    o->w[1] = nib_load_stream(p.w[1] + (int64_t)k * kUnit);
    o->w_scales = *(const uint2 *)(p.w_scales + (int64_t)k * kUnitScales);
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int32_t at = k * kRowBytes + (l + 4 * i) * 4;
            o->x[n][i] = p.x[n] && at < a.n_in / 2 ? *(const uint32_t *)(p.x[n] + at) : 0;
        }
#pragma unroll
        for (int s = 0; s < 2; s++)
            o->x_scales[n][s] = p.x[n] ? scale_word(p.x_scales[n], k * kRowScales + 4 * s, a.n_in / 16) : 0;
    }
}

template <int NT> NIB_DEVICE void multiply(const struct operands<NT> &o, float d[NT][4])
{
    uint32_t step0[4] = {o.w[0].x, o.w[1].x, o.w[0].y, o.w[1].y}, step1[4] = {o.w[0].z, o.w[1].z, o.w[0].w, o.w[1].w};
#pragma unroll
    for (int n = 0; n < NT; n++) {
        nib_mma_nvfp4_warp(d[n], step0, o.x[n][0], o.x[n][1], o.w_scales.x, o.x_scales[n][0]);
        nib_mma_nvfp4_warp(d[n], step1, o.x[n][2], o.x[n][3], o.w_scales.y, o.x_scales[n][1]);
    }
}

template <int NT> NIB_DEVICE void decode(const struct nib_sm120a_linear_args &a)
{
    constexpr int    kRows = 8 * NT;
    constexpr int kBatch = NT == 1 ? 4 : 2; /* tiles of k on their way: what 128 registers hold, for two blocks an SM */
    __shared__ float part[kWarps][kRows][17]; /* 17: a quad's columns on different banks */
    __shared__ float4 factors[kRows];
    nib_grid_start();
    struct nib_tile t;
    if (!nib_tile_of(a, (int32_t)blockIdx.x, kRows, 2, &t))
        return;
    int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32;

    struct sources<NT> from;
    float              d[NT][4];
#pragma unroll
    for (int i = 0; i < NT * 4; i++)
        d[i / 4][i % 4] = 0;
    start_loads(&from, a, t, lane);
    if (warp == kWarps - 1 && lane < kRows) /* the last slice is the shortest */
        factors[lane] = nib_factors_of(a, t, lane);
    int32_t end = min((warp + 1) * a.slice_k_tiles, a.n_k_tiles);
    for (int32_t k = warp * a.slice_k_tiles; k < end; k += kBatch) {
        struct operands<NT> o[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; i++)
            if (k + i < end)
                load(from, a, k + i, lane, &o[i]);
#pragma unroll
        for (int i = 0; i < kBatch; i++)
            if (k + i < end)
                multiply<NT>(o[i], d);
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            part[warp][n * 8 + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = d[n][i];
    __syncthreads();

    int row = tid / 16, j = tid % 16, n_out = 16 / a.n_parts;
    if (row >= t.n_rows || j >= n_out)
        return;
    float4 f = factors[row];
    float  sum[2] = {0, 0};
#pragma unroll
    for (int s = 0; s < kWarps; s++) {
        sum[0] += part[s][row][j];
        sum[1] += part[s][row][j % 8 + 8];
    }
    float v = sum[0] * f.x * f.y;
    if (a.n_parts == 2)
        v = nib_swiglu(v, sum[1] * f.z * f.w, a.limit);
    int32_t out = t.unit / 2 * n_out + j;
    if (out >= a.n_out)
        return;
    int64_t at = (int64_t)(t.row + row) * a.y_stride + out;
    if (a.y_f32)
        ((float *)a.y)[at] = v;
    else
        ((uint16_t *)a.y)[at] = nib_bf16_of(v);
}

static_assert(NIB_SM120A_SLICES == kWarps, "a warp a slice");
static_assert(16 * 16 <= kThreads, "a thread a result");

extern "C" __global__ void __launch_bounds__(kThreads, 2)
nib_sm120a_decode_8(const __grid_constant__ struct nib_sm120a_linear_args a)
{
    decode<1>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
nib_sm120a_decode_16(const __grid_constant__ struct nib_sm120a_linear_args a)
{
    decode<2>(a);
}
