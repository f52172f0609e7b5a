/* fp32 values as two bf16 parts, for products that take bf16: together they keep 16 bits of each value. */
#ifndef NIB_PARTS_SM100A_CUH
#define NIB_PARTS_SM100A_CUH

#include "backend/cuda/device/rows.cuh"

/* Eight values; the second part is what the first leaves (nothing where that is no number). */
NIB_DEVICE void split_unit(const float4 x[2], uint4 *high, uint4 *low)
{
    const float v[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
    uint32_t    h[4], l[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float rest[2];
        h[i] = nib_pack_bf16x2(v[2 * i], v[2 * i + 1]);
        for (int k = 0; k < 2; k++) {
            float left = v[2 * i + k] - nib_bf16_value(h[i] >> 16 * k & 0xffffu);
            rest[k] = nib_is_finite(left) ? left : 0;
        }
        l[i] = nib_pack_bf16x2(rest[0], rest[1]);
    }
    *high = make_uint4(h[0], h[1], h[2], h[3]);
    *low = make_uint4(l[0], l[1], l[2], l[3]);
}

#endif
