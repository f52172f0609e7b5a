/* Wrappers of what Blackwell's tensor cores need, an instruction each: mbarriers, tensor copies, tensor memory,
 * tcgen05. Shared memory is named by 32-bit addresses of the CTA's own window. docs/kernels/sm100a.md tells the
 * protocol. */
#ifndef NIB_CUDA_TCGEN05_CUH
#define NIB_CUDA_TCGEN05_CUH

#include <stdint.h>

#define NIB_INLINE static __device__ __forceinline__

NIB_INLINE uint32_t nib_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* True in one lane of a converged warp. */
NIB_INLINE bool nib_elect(void)
{
    uint32_t chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen != 0;
}

/* ---- mbarriers ---- */

NIB_INLINE void nib_mbar_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* Initialised barriers become visible to the asynchronous proxy and to the cluster. */
NIB_INLINE void nib_mbar_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

NIB_INLINE void nib_mbar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

NIB_INLINE void nib_mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* bar: an address of the cluster's window (nib_map_rank). */
NIB_INLINE void nib_mbar_arrive_cluster(uint32_t bar)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Until the phase of this parity is complete. */
NIB_INLINE void nib_mbar_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (!done);
}

/* The same, with what other CTAs of the cluster wrote before they arrived. */
NIB_INLINE void nib_mbar_wait_cluster(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (!done);
}

/* ---- Clusters ---- */

NIB_INLINE uint32_t nib_cluster_rank(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The address in the cluster's window of what has `address` in the CTA of this rank. */
NIB_INLINE uint32_t nib_map_rank(uint32_t address, uint32_t rank)
{
    uint32_t mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

NIB_INLINE void nib_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* ---- Tensor copies ---- */

/* A box to this CTA's shared memory; its bytes are counted at `bar`. */
NIB_INLINE void nib_tensor_load(uint32_t to, const void *map, int32_t x, int32_t y, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
                 "%3}], [%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(bar)
                 : "memory");
}

/* The same where `bar` may be the pair's other CTA's. */
NIB_INLINE void nib_tensor_load_pair(uint32_t to, const void *map, int32_t x, int32_t y, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(bar)
                 : "memory");
}

/* ---- Tensor memory, by whole warps ---- */

/* The address of the columns is written to shared memory. */
template <int N_CTAS> NIB_INLINE void nib_tmem_alloc(uint32_t address_of_result, uint32_t n_columns)
{
    if (N_CTAS == 1) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(address_of_result),
                     "r"(n_columns)
                     : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
    } else {
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(address_of_result),
                     "r"(n_columns)
                     : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
    }
}

template <int N_CTAS> NIB_INLINE void nib_tmem_dealloc(uint32_t address, uint32_t n_columns)
{
    if (N_CTAS == 1)
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(n_columns) : "memory");
    else
        asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(n_columns) : "memory");
}

/* 32 columns of the warp's 32 lanes, a lane a thread; valid after nib_tmem_wait_load. */
NIB_INLINE void nib_tmem_load32(uint32_t address, uint32_t r[32])
{
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]), "=r"(r[8]),
          "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]), "=r"(r[14]), "=r"(r[15]), "=r"(r[16]),
          "=r"(r[17]), "=r"(r[18]), "=r"(r[19]), "=r"(r[20]), "=r"(r[21]), "=r"(r[22]), "=r"(r[23]), "=r"(r[24]),
          "=r"(r[25]), "=r"(r[26]), "=r"(r[27]), "=r"(r[28]), "=r"(r[29]), "=r"(r[30]), "=r"(r[31])
        : "r"(address));
}

/* 8 columns; the loads are waited for here. */
NIB_INLINE void nib_tmem_read8(uint32_t address, uint32_t r[8])
{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7])
                 : "r"(address));
    asm volatile("tcgen05.wait::ld.sync.aligned;"
                 : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]), "+r"(r[4]), "+r"(r[5]), "+r"(r[6]), "+r"(r[7])
                 :
                 : "memory");
}

/* The registers are operands, so that nothing uses them before. */
NIB_INLINE void nib_tmem_wait_load(uint32_t r[32])
{
    asm volatile("tcgen05.wait::ld.sync.aligned;"
                 : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]), "+r"(r[4]), "+r"(r[5]), "+r"(r[6]), "+r"(r[7]),
                   "+r"(r[8]), "+r"(r[9]), "+r"(r[10]), "+r"(r[11]), "+r"(r[12]), "+r"(r[13])
                 :
                 : "memory");
    asm volatile(""
                 : "+r"(r[14]), "+r"(r[15]), "+r"(r[16]), "+r"(r[17]), "+r"(r[18]), "+r"(r[19]), "+r"(r[20]),
                   "+r"(r[21]), "+r"(r[22]), "+r"(r[23]), "+r"(r[24]), "+r"(r[25]), "+r"(r[26]), "+r"(r[27]),
                   "+r"(r[28]), "+r"(r[29]), "+r"(r[30]), "+r"(r[31])
                 :
                 : "memory");
}

/* The other way; in effect for others after nib_tmem_wait_store. */
NIB_INLINE void nib_tmem_store32(uint32_t address, const uint32_t r[32])
{
    asm volatile(
        "tcgen05.st.sync.aligned.32x32b.x32.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
        "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32};" ::"r"(address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]), "r"(r[8]), "r"(r[9]),
        "r"(r[10]), "r"(r[11]), "r"(r[12]), "r"(r[13]), "r"(r[14]), "r"(r[15]), "r"(r[16]), "r"(r[17]), "r"(r[18]),
        "r"(r[19]), "r"(r[20]), "r"(r[21]), "r"(r[22]), "r"(r[23]), "r"(r[24]), "r"(r[25]), "r"(r[26]), "r"(r[27]),
        "r"(r[28]), "r"(r[29]), "r"(r[30]), "r"(r[31])
        : "memory");
}

NIB_INLINE void nib_tmem_wait_store(void)
{
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

/* What this thread wrote to shared memory becomes visible to tensor cores and copies. */
NIB_INLINE void nib_proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The same of 16 columns. */
NIB_INLINE void nib_tmem_load16(uint32_t address, uint32_t r[16])
{
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "[%16];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]), "=r"(r[8]),
          "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]), "=r"(r[14]), "=r"(r[15])
        : "r"(address));
}

NIB_INLINE void nib_tmem_wait_load16(uint32_t r[16])
{
    asm volatile("tcgen05.wait::ld.sync.aligned;"
                 : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]), "+r"(r[4]), "+r"(r[5]), "+r"(r[6]), "+r"(r[7]),
                   "+r"(r[8]), "+r"(r[9]), "+r"(r[10]), "+r"(r[11]), "+r"(r[12]), "+r"(r[13])
                 :
                 : "memory");
    asm volatile("" : "+r"(r[14]), "+r"(r[15])::"memory");
}

NIB_INLINE void nib_tcgen05_before_sync(void)
{
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

NIB_INLINE void nib_tcgen05_after_sync(void)
{
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/* ---- Copies and products, by one thread ---- */

/* An atom of scales, 32 rows of 16 bytes, to all four quarters of 4 columns. */
template <int N_CTAS> NIB_INLINE void nib_tmem_copy_scales(uint32_t to, uint64_t from)
{
    if (N_CTAS == 1)
        asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(from) : "memory");
    else
        asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(from) : "memory");
}

/* d (+)= a b of 64 values of k under scales of 16. */
template <int N_CTAS>
NIB_INLINE void nib_mma_nvfp4(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, uint32_t scale_a, uint32_t scale_b,
                              bool accumulate)
{
    if (N_CTAS == 1)
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
            "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%0], %1, %2, %3, [%4], [%5], p;\n}" ::"r"(d),
            "l"(a), "l"(b), "r"(idesc), "r"(scale_a), "r"(scale_b), "r"((uint32_t)accumulate)
            : "memory");
    else
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
            "tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.block16 [%0], %1, %2, %3, [%4], [%5], p;\n}" ::"r"(d),
            "l"(a), "l"(b), "r"(idesc), "r"(scale_a), "r"(scale_b), "r"((uint32_t)accumulate)
            : "memory");
}

/* d (+)= a b of 32 values of k in 8-bit containers under scales of 32. */
template <int N_CTAS>
NIB_INLINE void nib_mma_mx(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, uint32_t scale_a, uint32_t scale_b,
                           bool accumulate)
{
    if (N_CTAS == 1)
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
            "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32 [%0], %1, %2, %3, [%4], [%5], p;\n}" ::"r"(d),
            "l"(a), "l"(b), "r"(idesc), "r"(scale_a), "r"(scale_b), "r"((uint32_t)accumulate)
            : "memory");
    else
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
            "tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale.block32 [%0], %1, %2, %3, [%4], [%5], p;\n}" ::"r"(d),
            "l"(a), "l"(b), "r"(idesc), "r"(scale_a), "r"(scale_b), "r"((uint32_t)accumulate)
            : "memory");
}

/* d (+)= a b of 64 values of k, E2M1 under UE8M0 scales of 32, by one CTA. */
NIB_INLINE void nib_mma_mxfp4(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, uint32_t scale_a, uint32_t scale_b,
                              bool accumulate)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block32 [%0], %1, %2, %3, [%4], [%5], p;\n}" ::"r"(d),
                 "l"(a), "l"(b), "r"(idesc), "r"(scale_a), "r"(scale_b), "r"((uint32_t)accumulate)
                 : "memory");
}

/* d (+)= a b of 16 values of k, bf16, by one CTA. */
NIB_INLINE void nib_mma_half(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, bool accumulate)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d),
                 "l"(a), "l"(b), "r"(idesc), "r"((uint32_t)accumulate)
                 : "memory");
}

/* One arrival at `bar` (of both CTAs of a pair) once all copies and products issued by this thread are done. */
template <int N_CTAS> NIB_INLINE void nib_tcgen05_commit(uint32_t bar)
{
    if (N_CTAS == 1)
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(bar)
                     : "memory");
    else
        asm volatile(
            "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                bar),
            "h"((uint16_t)3)
            : "memory");
}

/* ---- Descriptors ---- */

/* K-major rows of 128 bytes under the 128-byte swizzle: groups of 8 rows are 1024 bytes apart. */
NIB_INLINE uint64_t nib_matrix_sw128(uint32_t address)
{
    return (uint64_t)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 46 | 2ull << 61;
}

/* K-major rows of 64 bytes under the 64-byte swizzle: groups of 8 rows are 512 bytes apart. */
NIB_INLINE uint64_t nib_matrix_sw64(uint32_t address)
{
    return (uint64_t)(address >> 4 & 0x3fff) | 1ull << 16 | 32ull << 32 | 1ull << 46 | 4ull << 61;
}

/* Rows of k, 128 bytes of m or n each, under that swizzle: groups of 8 rows are 1024 bytes apart, the next 64 bf16
 * values of m or n `next` bytes. */
NIB_INLINE uint64_t nib_matrix_along(uint32_t address, uint32_t next)
{
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(next >> 4) << 16 | 64ull << 32 | 1ull << 46 | 2ull << 61;
}

/* An atom of scales: 32 rows of 16 bytes, groups of 8 rows 128 bytes apart. */
NIB_INLINE uint64_t nib_matrix_scales(uint32_t address)
{
    return (uint64_t)(address >> 4 & 0x3fff) | 1ull << 16 | 8ull << 32 | 1ull << 46;
}

/* Types 0 for E4M3 and 5 for E2M1, with UE8M0 scales in byte `id` of their words, dense, K-major. */
NIB_INLINE constexpr uint32_t nib_instruction_mx(int m, int n, uint32_t a_type, uint32_t b_type, uint32_t id)
{
    return id << 4 | a_type << 7 | b_type << 10 | (uint32_t)(n >> 3) << 17 | 1u << 23 | (uint32_t)(m >> 7) << 27 | id << 29;
}

/* bf16 times bf16, sums in fp32; an operand is K-major, or else read along m or n. */
NIB_INLINE constexpr uint32_t nib_instruction_half(int m, int n, bool a_along_m, bool b_along_n)
{
    return 1u << 4 | 1u << 7 | 1u << 10 | (uint32_t)a_along_m << 15 | (uint32_t)b_along_n << 16 |
           (uint32_t)(n >> 3) << 17 | (uint32_t)(m >> 4) << 24;
}

/* E2M1 times E2M1 with UE8M0 scales of 32 values in bytes `id` (0 or 2) and the next of their words, dense, K-major. */
NIB_INLINE constexpr uint32_t nib_instruction_mxfp4(int m, int n, uint32_t id)
{
    return id << 4 | 1u << 7 | 1u << 10 | (uint32_t)(n >> 3) << 17 | 1u << 23 | (uint32_t)(m >> 7) << 27 | id << 29;
}

/* E2M1 times E2M1 with UE4M3 scales, dense, K-major. */
NIB_INLINE constexpr uint32_t nib_instruction_nvfp4(int m, int n)
{
    return 1u << 7 | 1u << 10 | (uint32_t)(n >> 3) << 17 | (uint32_t)(m >> 7) << 27;
}

#endif
