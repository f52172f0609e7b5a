/* FP8 rows times FP8 or MXFP4 weights by block-scaled mma.sync (kind::mxf8f6f4), 32 values of k an instruction at half the
 * rate of NVFP4; packing of such weights. Two ways, which give the same bits, as in decode_sm120a.cu and
 * linear_sm120a.cu: weights streamed past up to 8 or 16 rows, and tiles of 128 packed rows by 64 rows of x.
 *
 * A unit is 8 rows by 128 values again (sm120a.h): lane (g, l) owns words l, l+4 ... l+28 of row g, a word being four
 * values, and instruction s takes words 8s + l and 8s + l + 4. MXFP4 codes are kept two words in one, in the low and the
 * high halves of its bytes, and spread when they are multiplied. Scales are four bytes of a row in a tile of k; FP8 has
 * one for 128 x 128 values, repeated. Rows of x have one for 128 values and no row scale. */
#include "backend/cuda/sm120a/parts_sm120a.cuh"

template <bool FP8> struct mx {
    static constexpr int kUnit = FP8 ? NIB_SM120A_FP8_UNIT : NIB_SM120A_UNIT_BYTES, kLoads = kUnit / 512;
    static constexpr int kScales = NIB_SM120A_MX_SCALES;
};
constexpr int kXBytes = NIB_SM120A_K_TILE; /* of a row in one tile of k */
constexpr int kSteps = NIB_SM120A_K_TILE / 32;

/* A lane's part of two units, the rows g and g + 8 of a product. */
template <bool FP8> struct weights {
    uint4 v[2][mx<FP8>::kLoads];
};

/* Word l + 4 * i of the row, ready to be multiplied: MXFP4 stands in bits 2 to 5 of a byte. */
template <bool FP8> NIB_DEVICE uint32_t word_of(const struct weights<FP8> &w, int unit, int i)
{
    int          at = FP8 ? i : i / 2;
    const uint4 &v = w.v[unit][at / 4];
    uint32_t     word = at % 4 == 0 ? v.x : at % 4 == 1 ? v.y : at % 4 == 2 ? v.z : v.w;
    return FP8 ? word : (i % 2 ? word >> 2 : word << 2) & 0x3c3c3c3cu;
}

/* d += 16 rows of weights times 8 rows of x, over a tile of k. x: this lane's eight words of row g of x; scale_w: four
 * bytes of row g (lanes 0 and 2 of a quad) or g + 8; scale_x: one byte four times. */
template <bool FP8>
NIB_DEVICE void multiply(float d[4], const struct weights<FP8> &w, const uint32_t x[2 * kSteps], uint32_t scale_w,
                         uint32_t scale_x)
{
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
        uint32_t a[4] = {word_of(w, 0, 2 * s), word_of(w, 1, 2 * s), word_of(w, 0, 2 * s + 1), word_of(w, 1, 2 * s + 1)};
        nib_mma_mx_warp<FP8>(d, a, x[2 * s], x[2 * s + 1], scale_w, scale_x, s);
    }
}

/* ---- Few rows ---- */

template <bool FP8, int NT> NIB_DEVICE void decode(const struct nib_sm120a_linear_args &a)
{
    using M = mx<FP8>;
    constexpr int    kRows = 8 * NT, kBatch = FP8 || NT == 2 ? 2 : 4; /* tiles of k on their way */
    __shared__ float part[kWarps][kRows][17];
    nib_grid_start();
    struct nib_tile t;
    if (!nib_tile_of(a, (int32_t)blockIdx.x, kRows, 2, &t))
        return;
    int     tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, l = lane % 4;
    int64_t n_k = a.n_k_tiles;
    struct nib_unit u = nib_unit_of(a, t, l % 2);
    const uint8_t  *codes[2], *scales = a.w_scales[u.part] + u.at * n_k * M::kScales + g * kSteps;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u = nib_unit_of(a, t, i);
        codes[i] = a.w_codes[u.part] + u.at * n_k * M::kUnit + lane * 16;
    }
    const uint8_t *x[NT], *x_scales[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int     row = n * 8 + g;
        int64_t source = row < t.n_rows ? nib_source_row(a, t.row + row) : 0;
        x[n] = row < t.n_rows ? a.x_codes + source * a.x_codes_stride + l * 4 : NULL;
        x_scales[n] = a.x_scales + source * a.x_scales_stride;
    }
    float d[NT][4] = {};
    int32_t end = min((warp + 1) * a.slice_k_tiles, a.n_k_tiles);
    for (int32_t k0 = warp * a.slice_k_tiles; k0 < end; k0 += kBatch) {
        struct weights<FP8> w[kBatch];
        uint32_t            v[kBatch][NT][2 * kSteps], scale_w[kBatch], scale_x[kBatch][NT];
#pragma unroll
        for (int i = 0; i < kBatch; i++) {
            if (k0 + i >= end)
                continue;
            int64_t k = k0 + i;
#pragma unroll
            for (int j = 0; j < 2 * M::kLoads; j++)
                w[i].v[j / M::kLoads][j % M::kLoads] =
                    nib_load_stream(codes[j / M::kLoads] + k * M::kUnit + j % M::kLoads * 512);
            scale_w[i] = *(const uint32_t *)(scales + k * M::kScales);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                scale_x[i][n] = x[n] ? x_scales[n][k] * 0x01010101u : 0;
#pragma unroll
                for (int j = 0; j < 2 * kSteps; j++)
                    v[i][n][j] = x[n] && k * kXBytes + j * 16 < a.n_in
                                     ? *(const uint32_t *)(x[n] + k * kXBytes + j * 16)
                                     : 0;
            }
        }
#pragma unroll
        for (int i = 0; i < kBatch; i++)
#pragma unroll
            for (int n = 0; n < NT; n++)
                if (k0 + i < end)
                    multiply<FP8>(d[n], w[i], v[i][n], scale_w[i], scale_x[i][n]);
    }
#pragma unroll
    for (int i = 0; i < NT * 4; i++)
        part[warp][i / 4 * 8 + l * 2 + i % 2][g + i / 2 % 2 * 8] = d[i / 4][i % 4];
    __syncthreads();

    int row = tid / 16, j = tid % 16, n_out = 16 / a.n_parts, out = t.unit / 2 * n_out + j;
    if (row >= t.n_rows || j >= n_out || out >= a.n_out)
        return;
    float sum[2] = {0, 0};
#pragma unroll
    for (int s = 0; s < kWarps; s++) {
        sum[0] += part[s][row][j];
        sum[1] += part[s][row][j % 8 + 8];
    }
    float v = sum[0] * nib_alpha_of(a, t, 0);
    if (a.n_parts == 2)
        v = nib_swiglu(v, sum[1] * nib_alpha_of(a, t, 1), a.limit);
    int64_t at = (int64_t)(t.row + row) * a.y_stride + out;
    if (a.y_f32)
        ((float *)a.y)[at] = v;
    else
        ((uint16_t *)a.y)[at] = nib_bf16_of(v);
}

/* ---- Many rows ---- */

constexpr int kRows = NIB_SM120A_MX_ROWS, kUnits = 16, kStages = NIB_SM120A_MX_STAGES;
constexpr int kPitch = 132; /* floats of a row of finished sums */
constexpr int WM = 4, WN = kWarps / WM, MT = kUnits / 2 / WM, NT = kRows / 8 / WN;

template <bool FP8> struct stage {
    static constexpr int kW = 0, kWScales = kUnits * mx<FP8>::kUnit, kX = kWScales + kUnits * mx<FP8>::kScales,
                         kBytes = kX + kRows * kXBytes;
    static_assert(kBytes == (FP8 ? NIB_SM120A_FP8_STAGE : NIB_SM120A_MXFP4_STAGE), "as launches have it");
    static_assert(kRows * kPitch * 4 <= kStages * kBytes, "finished sums take the stages' place");
};

NIB_DEVICE void copy16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

/* What one thread copies in every stage. */
struct loader {
    const uint8_t *w[4], *w_scales, *x[2]; /* x NULL: no such row */
    uint32_t       x_to[2];
    bool           w_there[4], w_scales_there;
};

template <bool FP8>
NIB_DEVICE void start_loads(struct loader *p, const struct nib_sm120a_linear_args &a, const struct nib_tile &t)
{
    using M = mx<FP8>;
    int     tid = (int)threadIdx.x;
    int64_t n_k = a.n_k_tiles;
#pragma unroll
    for (int i = 0; i < 2 * M::kLoads; i++) {
        int at = tid + i * kThreads, unit = at / (M::kUnit / 16);
        p->w_there[i] = t.unit + unit < a.n_units;
        struct nib_unit u = nib_unit_of(a, t, p->w_there[i] ? unit : 0);
        p->w[i] = a.w_codes[u.part] + u.at * n_k * M::kUnit + at % (M::kUnit / 16) * 16;
    }
    int unit = tid / (M::kScales / 16);
    p->w_scales_there = unit < kUnits && t.unit + unit < a.n_units;
    struct nib_unit u = nib_unit_of(a, t, p->w_scales_there ? unit : 0);
    p->w_scales = a.w_scales[u.part] + u.at * n_k * M::kScales + tid % (M::kScales / 16) * 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = tid / 8 + i * (kThreads / 8), piece = tid % 8;
        p->x[i] = row < t.n_rows ? a.x_codes + nib_source_row(a, t.row + row) * a.x_codes_stride + piece * 16 : NULL;
        p->x_to[i] = (uint32_t)(row * kXBytes + (piece ^ row % 8) * 16);
    }
}

template <bool FP8>
NIB_DEVICE void load_stage(const struct loader &p, const struct nib_sm120a_linear_args &a, int32_t k, uint32_t to)
{
    using M = mx<FP8>;
    using S = stage<FP8>;
    int tid = (int)threadIdx.x, left = a.n_in - k * kXBytes;
#pragma unroll
    for (int i = 0; i < 2 * M::kLoads; i++)
        copy16(to + (tid + i * kThreads) * 16, p.w[i] + (int64_t)k * M::kUnit, p.w_there[i]);
    if (tid < kUnits * M::kScales / 16)
        copy16(to + S::kWScales + tid * 16, p.w_scales + (int64_t)k * M::kScales, p.w_scales_there);
    /* Behind the row's last value zeros come, and no address beyond it. */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool there = p.x[i] && tid % 8 * 16 < left;
        copy16(to + S::kX + p.x_to[i], there ? p.x[i] + (int64_t)k * kXBytes : a.x_codes, there);
    }
}

template <bool FP8>
NIB_DEVICE void multiply_stage(uint32_t from, int unit, int row, int lane, const uint32_t scale_x[NT],
                               float d[MT][NT][4])
{
    using M = mx<FP8>;
    using S = stage<FP8>;
    int                 g = lane / 4, l = lane % 4;
    struct weights<FP8> w[MT];
    uint32_t            scale_w[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int i = 0; i < 2 * M::kLoads; i++) {
            uint4 *v = &w[m].v[i / M::kLoads][i % M::kLoads];
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v->x), "=r"(v->y), "=r"(v->z), "=r"(v->w)
                         : "r"(from + (uint32_t)((unit + 2 * m + i / M::kLoads) * M::kUnit + i % M::kLoads * 512 +
                                                 lane * 16))
                         : "memory");
        }
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(scale_w[m])
                     : "r"(from + S::kWScales + (uint32_t)((unit + 2 * m + l % 2) * M::kScales + g * kSteps))
                     : "memory");
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        uint32_t x[2 * kSteps];
        int      r = row + n * 8 + lane % 8;
#pragma unroll
        for (int i = 0; i < 2; i++)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x[4 * i]), "=r"(x[4 * i + 1]), "=r"(x[4 * i + 2]), "=r"(x[4 * i + 3])
                         : "r"(from + S::kX + (uint32_t)(r * kXBytes + ((4 * i + lane / 8) ^ r % 8) * 16))
                         : "memory");
#pragma unroll
        for (int m = 0; m < MT; m++)
            multiply<FP8>(d[m][n], w[m], x, scale_w[m], scale_x[n]);
    }
}

template <bool FP8> NIB_DEVICE void linear(const struct nib_sm120a_linear_args &a)
{
    using S = stage<FP8>;
    extern __shared__ __align__(128) uint8_t memory[];
    nib_grid_start();
    struct nib_tile t;
    if (!nib_tile_of(a, (int32_t)blockIdx.x, kRows, kUnits, &t))
        return;
    int      warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int      unit = warp % WM * MT * 2, row = warp / WM * NT * 8;
    uint32_t base = (uint32_t)__cvta_generic_to_shared(memory);

    struct loader loads;
    start_loads<FP8>(&loads, a, t);
    for (int32_t k = 0; k < kStages - 1; k++) {
        if (k < a.n_k_tiles)
            load_stage<FP8>(loads, a, k, base + k * S::kBytes);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    const uint8_t *x_scales[NT]; /* of this lane's row g in each group of eight; through L1, a tile of k ahead */
    uint32_t       next_scale[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int r = row + n * 8 + lane / 4;
        x_scales[n] = a.x_scales + (r < t.n_rows ? nib_source_row(a, t.row + r) : 0) * a.x_scales_stride;
        next_scale[n] = x_scales[n][0];
    }
    float total[MT][NT][4] = {}, d[MT][NT][4] = {};
    int32_t in_slice = 0;
    for (int32_t k = 0; k < a.n_k_tiles; k++) {
        uint32_t scale_x[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) {
            scale_x[n] = next_scale[n] * 0x01010101u;
            if (k + 1 < a.n_k_tiles)
                next_scale[n] = x_scales[n][k + 1];
        }
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
        __syncthreads(); /* stage k is there for all, and all are done with the stage before it */
        int32_t next = k + kStages - 1;
        if (next < a.n_k_tiles)
            load_stage<FP8>(loads, a, next, base + next % kStages * S::kBytes);
        asm volatile("cp.async.commit_group;" ::: "memory");
        multiply_stage<FP8>(base + k % kStages * S::kBytes, unit, row, lane, scale_x, d);
        if (++in_slice < a.slice_k_tiles && k + 1 < a.n_k_tiles)
            continue;
        in_slice = 0;
#pragma unroll
        for (int i = 0; i < MT * NT * 4; i++) {
            total[i / (NT * 4)][i / 4 % NT][i % 4] += d[i / (NT * 4)][i / 4 % NT][i % 4];
            d[i / (NT * 4)][i / 4 % NT][i % 4] = 0;
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads(); /* the stages are free */
    float *sums = (float *)memory;
#pragma unroll
    for (int i = 0; i < MT * NT * 4; i++)
        sums[(row + i / 4 % NT * 8 + lane % 4 * 2 + i % 2) * kPitch + (unit + 2 * (i / (NT * 4)) + i / 2 % 2) * 8 +
             lane / 4] = total[i / (NT * 4)][i / 4 % NT][i % 4];
    __syncthreads();
    int   per_row = kUnits / a.n_parts; /* eight outputs each */
    float gate = nib_alpha_of(a, t, 0), up = nib_alpha_of(a, t, 1);
    for (int i = (int)threadIdx.x; i < t.n_rows * per_row; i += kThreads) {
        int          at = i % per_row;
        int32_t      out = (t.unit / a.n_parts + at) * 8;
        const float *first = sums + i / per_row * kPitch + at * a.n_parts * 8;
        float        v[8];
        if (out >= a.n_out)
            continue;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[j] = first[j] * gate;
            if (a.n_parts == 2)
                v[j] = nib_swiglu(v[j], first[8 + j] * up, a.limit);
        }
        nib_store8(a, t.row + i / per_row, out, v);
    }
}

/* ---- Kernels ---- */

#define KERNEL(name, blocks, what)                                                                                     \
    extern "C" __global__ void __launch_bounds__(kThreads, blocks)                                                     \
    nib_sm120a_##name(const __grid_constant__ struct nib_sm120a_linear_args a)                                         \
    {                                                                                                                  \
        what(a);                                                                                                       \
    }
KERNEL(fp8_8, 2, (decode<true, 1>))
KERNEL(fp8_16, 2, (decode<true, 2>))
KERNEL(fp8_64, 1, linear<true>)
KERNEL(mxfp4_8, 2, (decode<false, 1>))
KERNEL(mxfp4_16, 2, (decode<false, 2>))
KERNEL(mxfp4_64, 1, linear<false>)
#undef KERNEL

/* ---- Packing: a thread for 16 bytes of codes ---- */

template <bool FP8> NIB_DEVICE void pack(const struct nib_sm120a_pack_args &a)
{
    using M = mx<FP8>;
    int64_t i = (int64_t)blockIdx.x * kThreads + threadIdx.x;
    if (i >= a.n_pieces)
        return;
    int64_t at = i / (M::kUnit / 16), k = at % a.n_k_tiles * NIB_SM120A_K_TILE, unit = at / a.n_k_tiles;
    int     lane = (int)(i % 32), half = (int)(i / 32 % M::kLoads), g = lane / 4, l = lane % 4;
    int64_t row = unit * 8 + g;
    bool    there = row < a.n_out;
    uint32_t word[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int64_t first = k + (FP8 ? 4 * half + j : 2 * j) * 16 + l * 4; /* the value of the word, or of its low halves */
        word[j] = 0;
        if (FP8) {
            if (there && first < a.n_in)
                word[j] = *(const uint32_t *)(a.stored + row * a.n_in + first);
            continue;
        }
        if (!there || first >= a.n_in)
            continue;
        const uint8_t *from = a.stored + (row * a.n_in + first) / 2;
        uint32_t       low = *(const uint16_t *)from, high = *(const uint16_t *)(from + 8); /* 16 values on */
#pragma unroll
        for (int b = 0; b < 4; b++)
            word[j] |= (low >> 4 * b & 15u) << 8 * b | (high >> 4 * b & 15u) << (8 * b + 4);
    }
    *(uint4 *)(a.codes + i * 16) = make_uint4(word[0], word[1], word[2], word[3]);
    if (half > 0)
        return;
    int64_t block = k / 32 + l;
    uint8_t scale = 0;
    if (there && block * 32 < a.n_in)
        scale = FP8 ? a.stored_scales[row / 128 * a.n_k_tiles + k / 128]
                    : a.stored_scales[row * (a.n_in / 32) + block];
    a.scales[at * M::kScales + g * kSteps + l] = scale;
}

extern "C" __global__ void __launch_bounds__(kThreads)
nib_sm120a_pack_fp8(const __grid_constant__ struct nib_sm120a_pack_args a)
{
    pack<true>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads)
nib_sm120a_pack_mxfp4(const __grid_constant__ struct nib_sm120a_pack_args a)
{
    pack<false>(a);
}
