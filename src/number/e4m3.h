/* E4M3: sign, 4 exponent bits (bias 7), 3 mantissa bits. Largest 448, subnormals in steps of 2^-9, no Inf; 0x7F and
 * 0xFF are NaN. UE4M3 block scales are the same with the sign bit zero. C11 and C++17; safe from any thread. */
#ifndef NIB_E4M3_H
#define NIB_E4M3_H

#include "number/bits.h"

#define NIB_E4M3_MAX 448.0f
#define NIB_E4M3_NAN 0x7fu

static inline float nib_e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t magnitude = code & 0x7fu;
    if (magnitude == 0x7fu)
        return nib_f32_from_bits(sign | 0x7fc00000u);
    if (magnitude < 8)
        return nib_f32_from_bits(sign | nib_f32_bits((float)magnitude * (1.0f / 512.0f)));
    return nib_f32_from_bits(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

/* To nearest, ties to the even code; beyond 448 (Inf included) saturates to 448; NaN gives 0x7F. */
static inline uint8_t nib_e4m3_from_f32(float v)
{
    uint32_t u = nib_f32_bits(v);
    uint32_t sign = u >> 24 & 0x80u;
    uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return NIB_E4M3_NAN;
    if (magnitude >= 0x43e00000u) /* 448 */
        return (uint8_t)(sign | 0x7eu);
    if (magnitude >= 0x3c800000u) { /* 2^-6, the smallest normal */
        magnitude += 0x7ffffu + (magnitude >> 20 & 1u);
        return (uint8_t)(sign | ((magnitude >> 20) - ((127u - 7u) << 3)));
    }
    /* Count steps of 2^-9. At 2^23 one ulp is 1, so the addition rounds to an integer, ties to even. */
    float steps = nib_f32_from_bits(magnitude) * 512.0f + 8388608.0f;
    return (uint8_t)(sign | (nib_f32_bits(steps) & 0xfu));
}

#endif
