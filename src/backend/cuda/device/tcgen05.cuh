/* Wrappers of what Blackwell's tensor cores need, an instruction each: tensor memory, tcgen05, copies of pairs.
 * docs/kernels/sm100a.md tells the protocol. */
#ifndef NIB_CUDA_TCGEN05_CUH
#define NIB_CUDA_TCGEN05_CUH

#include "backend/cuda/device/tensor_copies.cuh"
#include "backend/cuda/device/tensor_operands.cuh"

/* True in one lane of a converged warp. */
NIB_INLINE bool nib_elect(void)
{
    uint32_t chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen != 0;
}

/* nib_tensor_load() where `bar` may be the pair's other CTA's. */
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

/* nib_tmem_load32() of 16 columns. */
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

#endif
