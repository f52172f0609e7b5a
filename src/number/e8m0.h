/* UE8M0: a power of two, byte b is 2^(b - 127). Byte 0 is 2^-127 (a subnormal float), 255 is NaN; there is no zero.
 * C11 and C++17; safe from any thread. */
#ifndef NIB_E8M0_H
#define NIB_E8M0_H

#include "number/bits.h"

#define NIB_E8M0_NAN 255u

static inline float nib_e8m0_to_f32(uint8_t b)
{
    if (b == 0)
        return nib_f32_from_bits(0x00400000u);
    if (b == NIB_E8M0_NAN)
        return nib_f32_from_bits(0x7fc00000u);
    return nib_f32_from_bits((uint32_t)b << 23);
}

/* ceil(log2(v)) of a normal v > 0, from its bits. Subnormals give -126, which is not below their logarithm; 0 gives
 * -127. */
static inline int32_t nib_ceil_log2(float v)
{
    uint32_t u = nib_f32_bits(v);
    return (int32_t)(u >> 23 & 255u) - 127 + ((u & 0x7fffffu) != 0);
}

/* The smallest power of two that is not below v (finite, v >= 0), as a byte: 0 for v == 0. */
static inline uint8_t nib_e8m0_ceil(float v)
{
    int32_t b = nib_ceil_log2(v) + 127;
    return (uint8_t)(b > 254 ? 254 : b);
}

#endif
