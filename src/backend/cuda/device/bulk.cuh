/* Barriers in shared memory and the bulk copies that complete on them. */
#ifndef NIB_CUDA_BULK_CUH
#define NIB_CUDA_BULK_CUH

#include "backend/cuda/device/cluster.cuh"
#include "backend/cuda/device/ptx.cuh"

NIB_DEVICE uint32_t nib_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

NIB_DEVICE void nib_barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(nib_shared_address(barrier)), "r"(arrivals) : "memory");
}

/* Makes barriers visible to the copy engine before the first copy names one. */
NIB_DEVICE void nib_barrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

NIB_DEVICE void nib_barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(nib_shared_address(barrier)) : "memory");
}

/* Until the phase of this parity is over. */
NIB_DEVICE void nib_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(nib_shared_address(barrier)), "r"(parity)
                     : "memory");
}

/* One arrival, and bytes that the phase waits for besides. */
NIB_DEVICE void nib_barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(nib_shared_address(barrier)), "r"(bytes) : "memory");
}

/* bytes (a multiple of 16) into shared memory, which the barrier has been told to expect. */
NIB_DEVICE void nib_bulk_copy_expected(void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(nib_shared_address(to)),
                 "l"(from), "r"(bytes), "r"(nib_shared_address(barrier))
                 : "memory");
}

/* bytes (a multiple of 16) into shared memory; the barrier's phase ends when they are there. */
NIB_DEVICE void nib_bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
    nib_barrier_expect(barrier, bytes);
    nib_bulk_copy_expected(to, from, bytes, barrier);
}

/* ---- Blocks of a cluster ---- */

/* At the barrier that stands in the same place in another block, behind what this thread has read, and what it waited for: a stage
 * may be filled again. Release is of this block only, which is no instruction besides; with .cluster it would be a fence of the
 * whole card, and only what this block wrote needs that. */
NIB_DEVICE void nib_barrier_arrive_at(uint64_t *barrier, uint32_t rank)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];" ::"r"(nib_cluster_at(barrier, rank)) : "memory");
}

/* To the same place in the blocks of the mask, where their barriers have been told to expect it. */
NIB_DEVICE void nib_bulk_copy_to_all(void *to, const void *from, uint32_t bytes, uint64_t *barrier, uint32_t mask)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
                     nib_shared_address(to)),
                 "l"(from), "r"(bytes), "r"(nib_shared_address(barrier)), "h"((uint16_t)mask)
                 : "memory");
}

#endif
