/* SwiGLU of finished sums, for the products' ends and for rows of its own. */
#ifndef NIB_SWIGLU_SM120A_CUH
#define NIB_SWIGLU_SM120A_CUH

#include "backend/cuda/device/numbers.cuh"

/* silu(min(g, limit)) * clamp(u, +-limit) in fp32: these cards have next to no fp64. Inf must stay visible, so it does
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
