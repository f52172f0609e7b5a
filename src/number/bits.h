/* The bits of a float, as every format here needs them. C11 and C++17; safe from any thread. */
#ifndef NIB_BITS_H
#define NIB_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t nib_f32_bits(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

static inline float nib_f32_from_bits(uint32_t u)
{
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

static inline bool nib_f32_is_finite(float v)
{
    return (nib_f32_bits(v) & 0x7f800000u) != 0x7f800000u;
}

/* max |x| of n values; 0 for n == 0. Magnitudes are compared as integers, where Inf and then NaN come last, so that
 * neither can hide behind a number. */
static inline float nib_f32_absmax(const float *x, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = nib_f32_bits(x[i]) & 0x7fffffffu;
        most = u > most ? u : most;
    }
    return nib_f32_from_bits(most);
}

#endif
