/* SwiGLU of finished sums, for the ends of products on Blackwell and for rows of its own on sm_120a. */
#ifndef NIB_CUDA_SWIGLU_CUH
#define NIB_CUDA_SWIGLU_CUH

#include "backend/cuda/device/numbers.cuh"

/* silu(min(g, limit)) * clamp(u, +-limit) in fp32: RTX and B300 have next to no fp64. Inf must stay visible, so it does
 * not meet the clamps. */
NIB_DEVICE float nib_swiglu(float g, float u, float limit)
{
    if (!nib_is_finite(g) || !nib_is_finite(u))
        return __uint_as_float(0x7fc00000u);
    if (limit > 0) {
        g = g < limit ? g : limit;
        u = u < -limit ? -limit : u > limit ? limit : u;
    }
    return g / (1.0f + expf(-g)) * u;
}

#endif
