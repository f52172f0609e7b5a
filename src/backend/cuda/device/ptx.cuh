/* Instructions that C has no name for, one wrapper each, and the warp's sums. */
#ifndef NIB_CUDA_PTX_CUH
#define NIB_CUDA_PTX_CUH

#include "backend/cuda/device/numbers.cuh"

/* d += a . b, a 16 x 16 (row-major fragment), b 16 x 8, bf16 in, fp32 out. Lane (g, l) = (lane / 4, lane % 4) holds of
 * a: rows g, g+8, g, g+8 at k = 2l, 2l, 2l+8, 2l+8 (two values each); of b: column g at k = 2l and 2l+8; of d: rows g,
 * g, g+8, g+8 at columns 2l, 2l+1, 2l, 2l+1. */
NIB_DEVICE void nib_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two bf16 products, rounded once each; subnormals are kept. */
NIB_DEVICE uint32_t nib_mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* Eight E2M1 codes as bf16 pairs, the first lowest: the magnitude's two bytes by selection from tables, then the signs. */
NIB_DEVICE void nib_e2m1_bf16x8(uint32_t codes, uint32_t v[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t c = i ? codes >> 16 : codes, at = c & 0x7777u;
        uint32_t high = __byte_perm(0x3f3f3f00u, 0x40404040u, at), low = __byte_perm(0xc0800000u, 0xc0804000u, at);
        v[2 * i] = __byte_perm(low, high, 0x5140) | (c & 0x8u) << 12 | (c & 0x80u) << 24;
        v[2 * i + 1] = __byte_perm(low, high, 0x7362) | (c & 0x800u) << 4 | (c & 0x8000u) << 16;
    }
}

/* The two floats as bf16, low half first. */
NIB_DEVICE uint32_t nib_pack_bf16x2(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/* Each of two floats as the sum of two bf16 numbers, off by at most 2^-16 of it; low half first. */
NIB_DEVICE void nib_split_bf16x2(float x, float y, uint32_t *high, uint32_t *low)
{
    *high = nib_pack_bf16x2(x, y);
    *low = nib_pack_bf16x2(x - __uint_as_float(*high << 16), y - __uint_as_float(*high & 0xffff0000u));
}

/* 16 bytes that will not be read again soon: past L1, which keeps the activations. */
NIB_DEVICE uint4 nib_load_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* For nib_load_once(). */
NIB_DEVICE uint64_t nib_once_policy(void)
{
    uint64_t policy = 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

/* The same of what is read once, which is to leave the L2 before all that is read again there: rows, entries, and the
 * kernels' own code, of which a step needs another piece every few microseconds. Measured on Hopper, so left out elsewhere. */
NIB_DEVICE uint4 nib_load_once(const void *p, uint64_t policy)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "l"(policy));
    return v;
#else
    (void)policy;
    return nib_load_stream(p);
#endif
}

NIB_DEVICE float nib_warp_sum(float v)
{
    for (int offset = 16; offset > 0; offset /= 2)
        v += __shfl_xor_sync(~0u, v, offset);
    return v;
}

NIB_DEVICE double nib_warp_sum_f64(double v)
{
    for (int offset = 16; offset > 0; offset /= 2)
        v += __shfl_xor_sync(~0u, v, offset);
    return v;
}

NIB_DEVICE uint32_t nib_warp_max_u32(uint32_t v)
{
    return __reduce_max_sync(~0u, v);
}

/* Sum over the block, the same bits in every thread; buffer [32] in shared memory. Ends with the buffer free. */
NIB_DEVICE double nib_block_sum_f64(double v, double *buffer)
{
    int warp = (int)threadIdx.x / 32, n_warps = ((int)blockDim.x + 31) / 32;
    v = nib_warp_sum_f64(v);
    if (threadIdx.x % 32 == 0)
        buffer[warp] = v;
    __syncthreads();
    double sum = 0;
    for (int i = 0; i < n_warps; i++)
        sum += buffer[i];
    __syncthreads();
    return sum;
}

NIB_DEVICE uint32_t nib_block_max_u32(uint32_t v, uint32_t *buffer)
{
    int warp = (int)threadIdx.x / 32, n_warps = ((int)blockDim.x + 31) / 32;
    v = nib_warp_max_u32(v);
    if (threadIdx.x % 32 == 0)
        buffer[warp] = v;
    __syncthreads();
    uint32_t most = 0;
    for (int i = 0; i < n_warps; i++)
        most = max(most, buffer[i]);
    __syncthreads();
    return most;
}

#endif
