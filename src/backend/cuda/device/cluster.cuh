/* Blocks that run together as a cluster and read each other's shared memory. */
#ifndef NIB_CUDA_CLUSTER_CUH
#define NIB_CUDA_CLUSTER_CUH

#include "backend/cuda/device/numbers.cuh"

NIB_DEVICE uint32_t nib_cluster_rank(void)
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

NIB_DEVICE uint32_t nib_cluster_size(void)
{
    uint32_t n;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}

/* The two halves of nib_cluster_sync(), by whole warps: what lies between them waits for nobody. */
NIB_DEVICE void nib_cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

NIB_DEVICE void nib_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* All threads of all its blocks; what they wrote before is visible behind it. */
NIB_DEVICE void nib_cluster_sync(void)
{
    nib_cluster_arrive();
    nib_cluster_wait();
}

/* Address p of this block's shared memory, in block `rank`. */
NIB_DEVICE uint32_t nib_cluster_at(const void *p, uint32_t rank)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p), there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}

/* What stands there. */
NIB_DEVICE int32_t nib_cluster_load(const int32_t *p, uint32_t rank)
{
    uint32_t there = nib_cluster_at(p, rank);
    int32_t  v;
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(there) : "memory");
    return v;
}

/* Two, 8 bytes aligned. */
NIB_DEVICE int2 nib_cluster_load_pair(const int32_t *p, uint32_t rank)
{
    uint32_t there = nib_cluster_at(p, rank);
    int2     v;
    asm volatile("ld.shared::cluster.v2.s32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(there) : "memory");
    return v;
}

NIB_DEVICE float nib_cluster_load_f32(const float *p, uint32_t rank)
{
    uint32_t there = nib_cluster_at(p, rank);
    float    v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
}

/* 16 bytes, aligned so. */
NIB_DEVICE void nib_cluster_load_f32x4(const float *p, uint32_t rank, float v[4])
{
    uint32_t there = nib_cluster_at(p, rank);
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(there)
                 : "memory");
}

NIB_DEVICE void nib_cluster_store_f32x4(float4 *p, uint32_t rank, float x, float y, float z, float w)
{
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(nib_cluster_at(p, rank)), "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
}

NIB_DEVICE void nib_cluster_store_f32(float *p, uint32_t rank, float v)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(nib_cluster_at(p, rank)), "f"(v) : "memory");
}

#endif
