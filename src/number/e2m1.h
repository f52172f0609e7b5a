/* E2M1: sign, 2 exponent bits, 1 mantissa bit. Magnitudes 0 0.5 1 1.5 2 3 4 6; code 8 is -0. Two codes share a byte,
 * the even element in the low nibble. C11 and C++17; safe from any thread. */
#ifndef NIB_E2M1_H
#define NIB_E2M1_H

#include "number/bits.h"

#define NIB_E2M1_MAX 6.0f

/* Value of the low four bits of code. */
static inline float nib_e2m1_to_f32(uint32_t code)
{
    static const float value[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return value[code & 15u];
}

/* To nearest, ties to the even code, saturating; the sign is kept, also of zero. NaN has no code and gives magnitude
 * 6: callers mark it in the scale. */
static inline uint8_t nib_e2m1_from_f32(float v)
{
    uint32_t u = nib_f32_bits(v);
    float a = nib_f32_from_bits(u & 0x7fffffffu);
    /* One step for every threshold passed; at a threshold the even code wins. Negated, so that NaN passes them all. */
    uint32_t code = (uint32_t)!(a <= 0.25f) + (uint32_t)!(a < 0.75f) + (uint32_t)!(a <= 1.25f) +
                    (uint32_t)!(a < 1.75f) + (uint32_t)!(a <= 2.5f) + (uint32_t)!(a < 3.5f) + (uint32_t)!(a <= 5.0f);
    return (uint8_t)(u >> 28 & 8u) | (uint8_t)code;
}

#endif
