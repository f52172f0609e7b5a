/* In the place of the file of this name in src/: tensor memory and tcgen05 on a card that lacks them, so that what
 * stands around them (copies, barriers, phases, epilogues) runs there as it is. Slow, and late by random pauses.
 *
 * Tensor memory is memory of the card, 256 KiB a block, NaN when allocated. The warp that issues products works as a
 * whole: nib_elect() is true in all its lanes, and every copy and product is done when its call returns, from shared
 * memory as the descriptors say, decoded here from their bits. tcgen05.commit arrives after a pause. What a descriptor
 * may not hold stops the kernel.
 *
 * Of a pair of blocks the even one works for both, with the other's shared memory through the cluster's window. Copies
 * of the odd block count at the even one's barrier: the odd one waits for them at a barrier of its own, then completes
 * the bytes there. */
#ifndef NIB_CUDA_TCGEN05_CUH
#define NIB_CUDA_TCGEN05_CUH

#include "backend/cuda/device/tensor_copies.cuh"
#include "backend/cuda/device/tensor_operands.cuh"
#include "emulated/emulated_sm100a.h"

/* The warp that issues products. */
#ifndef NIB_EMULATED_WARP
#define NIB_EMULATED_WARP 5
#endif

constexpr uint32_t kLanesOfMemory = 128, kColumnsOfMemory = 512;

static __device__ uint32_t                 emulated_memory[NIB_EMULATED_BLOCKS][kColumnsOfMemory * kLanesOfMemory];
static __device__ struct nib_emulated_card emulated_card;
/* Tells the program where, before main(). */
static struct nib_emulated_place emulated_place(&emulated_card);

NIB_INLINE void emulated_wants(bool right)
{
    if (!right)
        asm volatile("trap;");
}

/* Up to some microseconds. */
NIB_INLINE void emulated_pause(void)
{
    uint32_t h = (uint32_t)clock64() * 0x9e3779b9u ^ threadIdx.x / 32 * 0x85ebca6bu;
    h ^= h >> 15;
    __nanosleep(h % 8 == 0 ? 8192 : h % 512);
    __syncwarp();
}

/* Tensor memory of the block of this rank in the cluster, of this one if it has none. */
NIB_INLINE uint32_t *emulated_tensor(uint32_t rank, bool pair)
{
    uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    emulated_wants(block < NIB_EMULATED_BLOCKS);
    return emulated_memory[pair ? block - nib_cluster_rank() + rank : block];
}

NIB_INLINE uint32_t *emulated_cell(uint32_t *tensor, uint32_t column, uint32_t lane)
{
    emulated_wants(column < kColumnsOfMemory && lane < kLanesOfMemory);
    return tensor + column * kLanesOfMemory + lane;
}

/* 16 bytes of a block's shared memory. */
NIB_INLINE uint4 emulated_shared(uint32_t address, uint32_t rank, bool pair)
{
    uint4 v;
    if (pair)
        asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(nib_map_rank(address, rank))
                     : "memory");
    else
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(address)
                     : "memory");
    return v;
}

/* ---- One lane of a warp ---- */

NIB_INLINE bool nib_elect(void)
{
    return threadIdx.x / 32 == NIB_EMULATED_WARP || threadIdx.x % 32 == 0;
}

/* ---- Copies of a pair ---- */

NIB_INLINE void nib_tensor_load_pair(uint32_t to, const void *map, int32_t x, int32_t y, uint32_t bar)
{
    __shared__ __align__(8) uint64_t here;
    if (nib_cluster_rank() == 0) {
        nib_tensor_load(to, map, x, y, bar);
        return;
    }
    uint32_t own = nib_shared_address(&here), bytes = 0;
    for (uint32_t i = 0; i < emulated_card.n_boxes; i++) {
        bool same = true;
        for (int w = 0; w < 16; w++)
            same &= emulated_card.box[i].map[w] == ((const uint64_t *)map)[w];
        bytes = same ? emulated_card.box[i].bytes : bytes;
    }
    emulated_wants(bytes > 0);
    nib_mbar_init(own, 1);
    nib_mbar_init_fence();
    nib_mbar_expect(own, bytes);
    nib_tensor_load(to, map, x, y, own);
    nib_mbar_wait(own, 0);
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(own) : "memory");
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
    asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* ---- Tensor memory ---- */

template <int N_CTAS> NIB_INLINE void nib_tmem_alloc(uint32_t address_of_result, uint32_t n_columns)
{
    uint32_t *tensor = emulated_tensor(nib_cluster_rank(), N_CTAS == 2), lane = threadIdx.x % 32;
    emulated_wants(n_columns >= 32 && n_columns <= kColumnsOfMemory && (n_columns & (n_columns - 1)) == 0);
    for (uint32_t i = lane; i < n_columns * kLanesOfMemory; i += 32)
        __stcg(tensor + i, 0xffffffffu);
    if (lane == 0) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(address_of_result), "r"(0u) : "memory");
        atomicAdd(&emulated_card.held, (int32_t)n_columns);
    }
    __threadfence();
    __syncwarp();
}

template <int N_CTAS> NIB_INLINE void nib_tmem_dealloc(uint32_t address, uint32_t n_columns)
{
    emulated_wants(address == 0);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&emulated_card.held, -(int32_t)n_columns);
}

template <int N> NIB_INLINE void emulated_load(uint32_t address, uint32_t *r)
{
    uint32_t *tensor = emulated_tensor(nib_cluster_rank(), true), lane = threadIdx.x % 128;
    emulated_wants(address >> 16 == lane / 32 * 32);
    emulated_pause();
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        r[i] = __ldcg(emulated_cell(tensor, (address & 0xffffu) + i, lane));
    __syncwarp();
}

NIB_INLINE void nib_tmem_load32(uint32_t address, uint32_t r[32])
{
    emulated_load<32>(address, r);
}

NIB_INLINE void nib_tmem_load16(uint32_t address, uint32_t r[16])
{
    emulated_load<16>(address, r);
}

NIB_INLINE void nib_tmem_read8(uint32_t address, uint32_t r[8])
{
    emulated_load<8>(address, r);
}

NIB_INLINE void nib_tmem_wait_load(uint32_t r[32])
{
    (void)r;
}

NIB_INLINE void nib_tmem_wait_load16(uint32_t r[16])
{
    (void)r;
}

NIB_INLINE void nib_tcgen05_before_sync(void)
{
    __threadfence();
}

NIB_INLINE void nib_tcgen05_after_sync(void) {}

/* ---- Descriptors ---- */

/* Where 16 bytes of an operand stand: row of m or n, 16-byte column of a product's 32 bytes of k. */
NIB_INLINE uint32_t emulated_address(uint64_t desc, uint32_t row, uint32_t column)
{
    uint32_t start = (uint32_t)desc << 4 & 0x3fff0u, stride = (uint32_t)(desc >> 32) << 4 & 0x3fff0u;
    uint32_t swizzle = (uint32_t)(desc >> 61), span = swizzle == 2 ? 128 : swizzle == 4 ? 64 : 32;
    /* Version 1; no base offset, no mode of the leading offset, nothing reserved; K-major under a swizzle. */
    emulated_wants((desc >> 46 & 7) == 1 && (desc >> 49 & 0xfff) == 0);
    emulated_wants(swizzle == 2 || swizzle == 4 || swizzle == 6);
    uint32_t at = start + row / 8 * stride + row % 8 * span + column * 16;
    return at ^ (at >> 7 & span / 16 - 1) << 4;
}

/* ---- Copies of scales ---- */

template <int N_CTAS> NIB_INLINE void nib_tmem_copy_scales(uint32_t to, uint64_t from)
{
    uint32_t lane = threadIdx.x % 32, start = (uint32_t)from << 4 & 0x3fff0u,
             stride = (uint32_t)(from >> 32) << 4 & 0x3fff0u;
    emulated_wants((from >> 46 & 7) == 1 && from >> 49 == 0 && to >> 16 == 0);
    for (uint32_t rank = 0; rank < N_CTAS; rank++) {
        uint32_t *tensor = emulated_tensor(rank, N_CTAS == 2);
        uint4     v = emulated_shared(start + lane / 8 * stride + lane % 8 * 16, rank, N_CTAS == 2);
        for (uint32_t quarter = 0; quarter < 4; quarter++) {
            __stcg(emulated_cell(tensor, to, quarter * 32 + lane), v.x);
            __stcg(emulated_cell(tensor, to + 1, quarter * 32 + lane), v.y);
            __stcg(emulated_cell(tensor, to + 2, quarter * 32 + lane), v.z);
            __stcg(emulated_cell(tensor, to + 3, quarter * 32 + lane), v.w);
        }
    }
    __threadfence();
    __syncwarp();
}

/* ---- Products ---- */

enum emulated_kind { EMULATED_NVFP4, EMULATED_MX, EMULATED_MXFP4 };

/* Twice the value of a code: 0 1 2 3 4 6 8 12. */
NIB_INLINE int32_t emulated_e2m1(uint32_t code)
{
    int32_t v = (int32_t)(0xc8643210u >> 4 * (code & 7u) & 15u);
    return code & 8u ? -v : v;
}

NIB_INLINE float emulated_e4m3(uint32_t byte)
{
    uint32_t m = byte & 0x7fu;
    float    v = m == 0x7fu ? __uint_as_float(0x7fc00000u)
                 : m < 8    ? (float)m * (1.0f / 512.0f)
                            : __uint_as_float((m << 20) + (120u << 23));
    return byte & 0x80u ? -v : v;
}

/* A sum of magnitude below 2^115 times this is exact in double. */
NIB_INLINE double emulated_ue8m0(uint32_t byte)
{
    return byte == 255 ? (double)__uint_as_float(0x7fc00000u) : __longlong_as_double((long long)(byte + 896) << 52);
}

/* A row's 32 bytes of k as numbers: twice the values of E2M1 under four-bit kinds, as they are under others. */
template <emulated_kind KIND, typename T> NIB_INLINE void emulated_values(const uint4 bytes[2], uint32_t type, T *v)
{
    uint32_t word[8] = {bytes[0].x, bytes[0].y, bytes[0].z, bytes[0].w, bytes[1].x, bytes[1].y, bytes[1].z, bytes[1].w};
#pragma unroll
    for (int i = 0; i < (KIND == EMULATED_MX ? 32 : 64); i++) {
        if (KIND != EMULATED_MX)
            v[i] = (T)emulated_e2m1(word[i / 8] >> i % 8 * 4);
        else if (type == 5) /* 16 values in the first 8 of 16 bytes */
            v[i] = (T)emulated_e2m1(word[i / 16 * 4 + i % 16 / 8] >> i % 8 * 4) * (T)0.5f;
        else
            v[i] = (T)emulated_e4m3(word[i / 4] >> i % 4 * 8 & 255u);
    }
}

/* What a row and a column add to their sum; the words of their scales. */
template <emulated_kind KIND, typename T>
NIB_INLINE double emulated_sum(const T *a, const T *b, uint32_t scale_a, uint32_t scale_b, uint32_t id_a, uint32_t id_b)
{
    constexpr int block = KIND == EMULATED_NVFP4 ? 16 : 32;
    constexpr int n = KIND == EMULATED_NVFP4 ? 4 : KIND == EMULATED_MXFP4 ? 2 : 1;
    double        sum = 0;
#pragma unroll
    for (int g = 0; g < n; g++) {
        double   part = 0;
        int32_t  whole = 0;
        uint32_t sa = scale_a >> 8 * (g + id_a) & 255u, sb = scale_b >> 8 * (g + id_b) & 255u;
#pragma unroll
        for (int i = g * block; i < (g + 1) * block; i++) {
            if (KIND == EMULATED_MX)
                part += (double)(a[i] * b[i]);
            else
                whole += (int32_t)a[i] * (int32_t)b[i];
        }
        part = KIND == EMULATED_MX ? part : (double)whole * 0.25;
        if (KIND == EMULATED_NVFP4)
            sum += part * (double)(emulated_e4m3(sa) * emulated_e4m3(sb));
        else
            sum += part * emulated_ue8m0(sa) * emulated_ue8m0(sb);
    }
    return sum;
}

template <emulated_kind KIND, typename T, int N_CTAS>
static __device__ __noinline__ void emulated_product(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc,
                                                     uint32_t scale_a, uint32_t scale_b, bool accumulate)
{
    constexpr bool pair = N_CTAS == 2;
    constexpr int  values = KIND == EMULATED_MX ? 32 : 64;
    uint32_t lane = threadIdx.x % 32, n = (idesc >> 17 & 63u) << 3, m = (idesc >> 27 & 3u) << 7;
    uint32_t type_a = idesc >> 7 & 7u, type_b = idesc >> 10 & 7u, id_a = idesc >> 29 & 3u, id_b = idesc >> 4 & 3u;
    bool     four = KIND != EMULATED_MX;
    /* Dense, no negation, K-major, nothing reserved; scales of the kind. */
    emulated_wants((idesc & 0x8701e04fu) == 0 && (idesc >> 23 & 1u) == (KIND != EMULATED_NVFP4));
    emulated_wants(m == 128 * N_CTAS && n >= 8 * N_CTAS && n <= 256 && n % (8 * N_CTAS) == 0);
    emulated_wants(four ? type_a == 1 && type_b == 1
                        : (type_a == 0 || type_a == 5) && (type_b == 0 || type_b == 5));
    emulated_wants(KIND == EMULATED_NVFP4 ? id_a == 0 && id_b == 0
                                          : KIND != EMULATED_MXFP4 || (id_a | id_b | 2u) == 2u);
    emulated_wants(d >> 16 == 0 && scale_a >> 16 == 0 && scale_b >> 16 == 0);
    for (uint32_t row = lane; row < m; row += 32) {
        uint32_t  rank = row / 128, at = row % 128;
        uint32_t *tensor = emulated_tensor(rank, pair);
        uint4     bytes[2] = {emulated_shared(emulated_address(a, at, 0), rank, pair),
                              emulated_shared(emulated_address(a, at, 1), rank, pair)};
        T         x[values], w[values];
        emulated_values<KIND>(bytes, type_a, x);
        uint32_t x_scale = __ldcg(emulated_cell(tensor, scale_a + at / 32, at % 32 + at / 32 * 32));
        for (uint32_t column = 0; column < n; column++) {
            uint32_t from = column / (n / N_CTAS), in = column % (n / N_CTAS);
            bytes[0] = emulated_shared(emulated_address(b, in, 0), from, pair);
            bytes[1] = emulated_shared(emulated_address(b, in, 1), from, pair);
            emulated_values<KIND>(bytes, type_b, w);
            uint32_t  w_scale = __ldcg(emulated_cell(tensor, scale_b + column / 32, column % 32 + at / 32 * 32));
            uint32_t *cell = emulated_cell(tensor, d + column, at);
            double    sum = emulated_sum<KIND>(x, w, x_scale, w_scale, id_a, id_b);
            if (accumulate)
                sum += (double)__uint_as_float(__ldcg(cell));
            __stcg(cell, __float_as_uint((float)sum));
        }
    }
    __threadfence();
    __syncwarp();
    emulated_pause();
}

template <int N_CTAS>
NIB_INLINE void nib_mma_nvfp4(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, uint32_t scale_a, uint32_t scale_b,
                              bool accumulate)
{
    emulated_product<EMULATED_NVFP4, int32_t, N_CTAS>(d, a, b, idesc, scale_a, scale_b, accumulate);
}

template <int N_CTAS>
NIB_INLINE void nib_mma_mx(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, uint32_t scale_a, uint32_t scale_b,
                           bool accumulate)
{
    emulated_product<EMULATED_MX, float, N_CTAS>(d, a, b, idesc, scale_a, scale_b, accumulate);
}

/* One arrival at the barrier of the block, of a pair at both blocks', late. */
template <int N_CTAS> NIB_INLINE void nib_tcgen05_commit(uint32_t bar)
{
    emulated_pause();
    __threadfence();
    __syncwarp();
    for (uint32_t rank = 0; threadIdx.x % 32 == 0 && rank < N_CTAS; rank++)
        nib_mbar_arrive_cluster(nib_map_rank(bar, N_CTAS == 2 ? rank : nib_cluster_rank()));
    __syncwarp();
}

#endif
