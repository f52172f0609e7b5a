/* NVFP4 rows times packed NVFP4 weights for many rows, by block-scaled mma.sync. A block makes 128 packed rows of
 * weights times 128 or 32 rows of x; eight warps. Stages of 128 values of k come by cp.async: codes and scales of both
 * sides.
 *
 * Weights are the 16-row operand: a lane's 16 bytes of a unit are what it multiplies, so they are one load without bank
 * conflicts. Rows of x are the 8-column operand, by ldmatrix from rows of 64 bytes whose 16-byte pieces are permuted by
 * the row.
 *
 * Per stage (128 x 128): 8 + 8 KiB of codes, 1 + 1 KiB of scales; 256 instructions, 4 clocks each.
 * docs/kernels/sm120a.md has the arithmetic. */
#include "backend/cuda/sm120a/parts_sm120a.cuh"

constexpr int kStages = 5;
constexpr int kUnits = 16; /* of a tile: 128 packed rows */
constexpr int kSharedMax = 101376;

template <int ROWS> struct stage {
    static constexpr int kWScales = kUnits * kUnit, kX = kWScales + kUnits * kUnitScales,
                         kXScales = kX + ROWS * kRowBytes, kBytes = kXScales + ROWS * kRowScales;
    static constexpr int kPitch = 132; /* floats of a row of finished sums: a quad's columns on different banks */
    static_assert(kBytes % 128 == 0, "every stage aligned as the first");
    static_assert(kStages * kBytes <= kSharedMax, "the stages fill what a block may have");
    static_assert(ROWS * kPitch * 4 <= kStages * kBytes, "finished sums take the stages' place");
};

/* Copies of `bytes` (16 or 4) of which the first n are from memory, the others zeros. */
NIB_DEVICE void copy16(uint32_t to, const void *from, int n)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
}

NIB_DEVICE void copy4(uint32_t to, const void *from, int n)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
}

NIB_DEVICE void copies_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most n of the committed groups are on their way. */
template <int n> NIB_DEVICE void copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

NIB_DEVICE void ldmatrix_x4(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* What one thread copies in every stage: pointers that move on by a tile of k. */
template <int ROWS> struct loader {
    static constexpr int kXPieces = ROWS * 4 / kThreads > 0 ? ROWS * 4 / kThreads : 1;
    const uint8_t *w[2], *w_scales, *x[kXPieces], *x_scales;
    uint32_t       x_to[kXPieces];
    bool           w_there[2], w_scales_there, x_there[kXPieces], x_scales_there;
};

template <int ROWS>
NIB_DEVICE void start_loads(struct loader<ROWS> *p, const struct nib_sm120a_linear_args &a, const struct nib_tile &t)
{
    int     tid = (int)threadIdx.x;
    int64_t k = a.n_k_tiles;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int unit = tid / 32 + i * 8;
        p->w_there[i] = t.unit + unit < a.n_units;
        struct nib_unit u = nib_unit_of(a, t, p->w_there[i] ? unit : 0);
        p->w[i] = a.w_codes[u.part] + u.at * k * kUnit + tid % 32 * 16;
    }
    p->w_scales_there = tid < kUnits * 4 && t.unit + tid / 4 < a.n_units;
    struct nib_unit u = nib_unit_of(a, t, p->w_scales_there ? tid / 4 : 0);
    p->w_scales = a.w_scales[u.part] + u.at * k * kUnitScales + tid % 4 * 16;
#pragma unroll
    for (int i = 0; i < loader<ROWS>::kXPieces; i++) {
        int row = tid / 4 + i * 64, piece = tid % 4;
        p->x_there[i] = row < t.n_rows;
        p->x[i] = a.x_codes + nib_source_row(a, t.row + (p->x_there[i] ? row : 0)) * a.x_codes_stride + piece * 16;
        p->x_to[i] = (uint32_t)(row * kRowBytes + (piece ^ (row >> 1 & 3)) * 16);
    }
    p->x_scales_there = tid / 2 < t.n_rows;
    p->x_scales =
        a.x_scales + nib_source_row(a, t.row + (p->x_scales_there ? tid / 2 : 0)) * a.x_scales_stride + tid % 2 * 4;
}

/* Tile k, to the stage at `to`; tiles come in order. */
template <int ROWS>
NIB_DEVICE void load_stage(struct loader<ROWS> *p, const struct nib_sm120a_linear_args &a, int32_t k, uint32_t to)
{
    using S = stage<ROWS>;
    int tid = (int)threadIdx.x, left = a.n_in / 2 - k * kRowBytes, blocks = a.n_in / 16 - k * kRowScales;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        copy16(to + tid * 16 + i * 8 * kUnit, p->w[i], p->w_there[i] ? 16 : 0);
        p->w[i] += kUnit;
    }
    if (tid < kUnits * 4)
        copy16(to + S::kWScales + tid * 16, p->w_scales, p->w_scales_there ? 16 : 0);
    p->w_scales += kUnitScales;
    /* Behind the row's last value zeros come, and no address beyond it. */
#pragma unroll
    for (int i = 0; i < loader<ROWS>::kXPieces; i++) {
        bool there = p->x_there[i] && tid % 4 * 16 < left;
        if (ROWS * 4 >= kThreads || tid < ROWS * 4)
            copy16(to + S::kX + p->x_to[i], there ? p->x[i] : a.x_codes, there ? 16 : 0);
        p->x[i] += kRowBytes;
    }
    int n = p->x_scales_there ? min(max(blocks - tid % 2 * 4, 0), 4) : 0;
    if (tid < ROWS * 2 && n != 2)
        copy4(to + S::kXScales + tid * 4, n ? p->x_scales : a.x_scales, n);
    else if (tid < ROWS * 2) /* a row may end in half a word, and what is behind it may not be anyone's */
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + S::kXScales + tid * 4),
                     "r"((uint32_t) * (const uint16_t *)p->x_scales)
                     : "memory");
    p->x_scales += kRowScales;
}

/* One stage: 16 MT packed rows by 8 NT rows of x for this warp. */
template <int ROWS, int MT, int NT>
NIB_DEVICE void multiply(uint32_t from, int unit, int row, int lane, float d[MT][NT][4])
{
    using S = stage<ROWS>;
    int      g = lane / 4, l = lane % 4;
    uint32_t b[NT][4];
    uint2    scale_b[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int r = row + n * 8 + lane % 8;
        ldmatrix_x4(b[n], from + S::kX + (uint32_t)(r * kRowBytes + ((lane / 8) ^ (r >> 1 & 3)) * 16));
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(scale_b[n].x), "=r"(scale_b[n].y)
                     : "r"(from + S::kXScales + (uint32_t)(row + n * 8 + g) * kRowScales)
                     : "memory");
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
        uint32_t v[2][4];
        uint2    scale_a;
#pragma unroll
        for (int h = 0; h < 2; h++)
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[h][0]), "=r"(v[h][1]), "=r"(v[h][2]), "=r"(v[h][3])
                         : "r"(from + (uint32_t)((unit + 2 * m + h) * kUnit + lane * 16))
                         : "memory");
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(scale_a.x), "=r"(scale_a.y)
                     : "r"(from + S::kWScales + (uint32_t)((unit + 2 * m + l % 2) * kUnitScales + g * kRowScales))
                     : "memory");
#pragma unroll
        for (int s = 0; s < 2; s++) {
            uint32_t a[4] = {v[0][2 * s], v[1][2 * s], v[0][2 * s + 1], v[1][2 * s + 1]};
#pragma unroll
            for (int n = 0; n < NT; n++)
                nib_mma_nvfp4_warp(d[m][n], a, b[n][2 * s], b[n][2 * s + 1], s ? scale_a.y : scale_a.x,
                                   s ? scale_b[n].y : scale_b[n].x);
        }
    }
}

/* Finished sums in shared memory, [ROWS][kPitch], to y: a thread eight outputs of a row. */
template <int ROWS>
NIB_DEVICE void write_tile(const struct nib_sm120a_linear_args &a, const struct nib_tile &t, const float *sums,
                           const float4 *factors)
{
    int per_row = kUnits / a.n_parts; /* eight outputs each */
    for (int i = (int)threadIdx.x; i < t.n_rows * per_row; i += kThreads) {
        int          row = i / per_row, at = i % per_row;
        int32_t      out = (t.unit / a.n_parts + at) * 8;
        const float *first = sums + row * stage<ROWS>::kPitch + at * a.n_parts * 8;
        float4       f = factors[row];
        float        v[8];
        if (out >= a.n_out)
            continue;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[j] = first[j] * f.x * f.y;
            if (a.n_parts == 2)
                v[j] = nib_swiglu(v[j], first[8 + j] * f.z * f.w, a.limit);
        }
        nib_store8(a, t.row + row, out, v);
    }
}

/* WM warps along the weights, 8 / WM along the rows. */
template <int ROWS, int WM> NIB_DEVICE void linear(const struct nib_sm120a_linear_args &a)
{
    using S = stage<ROWS>;
    constexpr int WN = kWarps / WM, MT = kUnits / 2 / WM, NT = ROWS / 8 / WN;
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ float4                        factors[ROWS];
    nib_grid_start();
    struct nib_tile t;
    if (!nib_tile_of(a, (int32_t)blockIdx.x, ROWS, kUnits, &t))
        return;
    int      warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int      unit = warp % WM * MT * 2, row = warp / WM * NT * 8;
    uint32_t base = (uint32_t)__cvta_generic_to_shared(memory);

    struct loader<ROWS> loads;
    start_loads(&loads, a, t);
    for (int32_t k = 0; k < kStages - 1; k++) {
        if (k < a.n_k_tiles)
            load_stage(&loads, a, k, base + k * S::kBytes);
        copies_commit();
    }
    for (int i = (int)threadIdx.x; i < ROWS; i += kThreads)
        factors[i] = nib_factors_of(a, t, i);

    float total[MT][NT][4], d[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT * NT * 4; i++)
        total[i / (NT * 4)][i / 4 % NT][i % 4] = d[i / (NT * 4)][i / 4 % NT][i % 4] = 0;
    int32_t in_slice = 0;
    for (int32_t k = 0; k < a.n_k_tiles; k++) {
        copies_wait<kStages - 2>();
        __syncthreads(); /* stage k is there for all, and all are done with the stage before it */
        int32_t next = k + kStages - 1;
        if (next < a.n_k_tiles)
            load_stage(&loads, a, next, base + next % kStages * S::kBytes);
        copies_commit();
        multiply<ROWS, MT, NT>(base + k % kStages * S::kBytes, unit, row, lane, d);
        if (++in_slice < a.slice_k_tiles && k + 1 < a.n_k_tiles)
            continue;
        in_slice = 0;
#pragma unroll
        for (int i = 0; i < MT * NT * 4; i++) {
            total[i / (NT * 4)][i / 4 % NT][i % 4] += d[i / (NT * 4)][i / 4 % NT][i % 4];
            d[i / (NT * 4)][i / 4 % NT][i % 4] = 0;
        }
    }
    copies_wait<0>();
    __syncthreads(); /* the stages are free */
    float *sums = (float *)memory;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[(row + n * 8 + lane % 4 * 2 + i % 2) * S::kPitch + (unit + 2 * m + i / 2) * 8 + lane / 4] =
                    total[m][n][i];
    __syncthreads();
    write_tile<ROWS>(a, t, sums, factors);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm120a_linear_128(const __grid_constant__ struct nib_sm120a_linear_args a)
{
    linear<128, 2>(a);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
nib_sm120a_linear_32(const __grid_constant__ struct nib_sm120a_linear_args a)
{
    linear<32, 4>(a);
}
