/* BF16: the upper half of a float. C11 and C++17; safe from any thread. */
#ifndef NIB_BF16_H
#define NIB_BF16_H

#include "number/bits.h"

static inline float nib_bf16_to_f32(uint16_t h)
{
    return nib_f32_from_bits((uint32_t)h << 16);
}

/* To nearest, ties to even; overflow to Inf; NaN stays NaN (quiet). */
static inline uint16_t nib_bf16_from_f32(float v)
{
    uint32_t u = nib_f32_bits(v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u); /* adding below could carry a NaN into Inf or zero */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* The float nearest to v that BF16 can hold. */
static inline float nib_bf16_round(float v)
{
    return nib_bf16_to_f32(nib_bf16_from_f32(v));
}

#endif
