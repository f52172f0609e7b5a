/* mbarriers, blocks of a cluster, copies of boxes of a tensor to shared memory: what Hopper and Blackwell have in common.
 * Shared memory is named by 32-bit addresses of the CTA's own window. */
#ifndef NIB_CUDA_TENSOR_COPIES_CUH
#define NIB_CUDA_TENSOR_COPIES_CUH

#include <stdint.h>

#define NIB_INLINE static __device__ __forceinline__

NIB_INLINE uint32_t nib_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
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

/* What this thread wrote to shared memory becomes visible to tensor cores and copies. */
NIB_INLINE void nib_proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
