/* The number formats once more, written for tests in another way: every value by ldexp from its fields, every encoding
 * by searching all codes in double. Also random and hostile rows. */
#ifndef NIB_TESTS_NUMBER_MODEL_H
#define NIB_TESTS_NUMBER_MODEL_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* sign | exponent | mantissa with the given bias, no special codes. */
static inline double model_minifloat(uint32_t code, int exponent_bits, int mantissa_bits, int bias)
{
    uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
    uint32_t exponent = code >> mantissa_bits & ((1u << exponent_bits) - 1);
    bool     negative = code >> (exponent_bits + mantissa_bits) & 1u;
    double   v = ldexp((double)mantissa, 1 - bias - mantissa_bits);
    if (exponent > 0)
        v = ldexp((double)(mantissa + (1u << mantissa_bits)), (int)exponent - bias - mantissa_bits);
    return negative ? -v : v;
}

static inline double model_e4m3(uint32_t code)
{
    return (code & 127u) == 127u ? (double)NAN : model_minifloat(code, 4, 3, 7);
}

static inline double model_e2m1(uint32_t code)
{
    return model_minifloat(code, 2, 1, 1);
}

/* Nearest of the non-negative codes 0..last to |v|, ties to the even code; the sign goes to sign_bit. Beyond the last
 * value is as good as at it. */
static inline uint8_t model_nearest(double v, const double *value, uint32_t last, uint32_t sign_bit)
{
    double   a = fmin(fabs(v), value[last]);
    uint32_t best = 0;
    for (uint32_t code = 1; code <= last; code++) {
        double d = fabs(value[code] - a), so_far = fabs(value[best] - a);
        if (d < so_far || (d == so_far && code % 2 == 0))
            best = code;
    }
    return (uint8_t)(signbit(v) ? best | sign_bit : best);
}

static inline uint8_t model_e4m3_encode(double v)
{
    static double value[127]; /* filled once: the search is long enough */
    for (uint32_t code = 0; value[126] == 0 && code < 127; code++)
        value[code] = model_e4m3(code);
    return model_nearest(v, value, 126, 128);
}

static inline uint8_t model_e2m1_encode(double v)
{
    static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return model_nearest(v, value, 7, 8);
}

/* The BF16 value nearest to v, by choosing between the two around it. */
static inline float model_bf16(float v)
{
    double unit, a = fabs((double)v);
    int    e;
    if (!isfinite(v) || v == 0)
        return v;
    frexp(a, &e);
    unit = ldexp(1, (e < -125 ? -125 : e) - 8);
    double below = floor(a / unit), rest = a / unit - below;
    if (rest > 0.5 || (rest == 0.5 && fmod(below, 2) == 1))
        below += 1;
    return (float)copysign(below * unit, (double)v);
}

/* Smallest e with 2^e >= v. */
static inline int model_ceil_log2(double v)
{
    int e = -150;
    while (ldexp(1, e) < v)
        e++;
    return e;
}

static inline double model_amax(const float *x, int n)
{
    double a = 0;
    for (int i = 0; i < n; i++)
        a = fmax(a, fabs((double)x[i]));
    return a;
}

/* One block of FP8 (limit 448, floor 1e-4) or FP4 (limit 6, floor 6 * 2^-126) with a power-of-two scale: values after
 * the round trip. The product with the reciprocal is rounded to fp32, as the release does it. */
static inline int model_block_exponent(const float *x, int n, double limit, float least)
{
    double amax = fmax(model_amax(x, n), (double)least);
    return model_ceil_log2((double)(float)(amax * (double)(float)(1 / limit)));
}

static inline void model_fp8_sim(const float *x, int n, int block, float *y)
{
    for (int b = 0; b < n; b += block) {
        int    len = n - b < block ? n - b : block;
        double scale = ldexp(1, model_block_exponent(x + b, len, 448, 1e-4f));
        for (int i = b; i < b + len; i++)
            y[i] = (float)(model_e4m3(model_e4m3_encode((double)x[i] / scale)) * scale);
    }
}

static inline void model_fp4_sim(const float *x, int n, float *y)
{
    for (int b = 0; b < n; b += 32) {
        int    len = n - b < 32 ? n - b : 32;
        double scale = ldexp(1, model_block_exponent(x + b, len, 6, (float)ldexp(6, -126)));
        for (int i = b; i < b + len; i++)
            y[i] = (float)(model_e2m1(model_e2m1_encode((double)x[i] / scale)) * scale);
    }
}

/* NVFP4 with one scale a row. A quotient of floats computed in double and rounded to float is the float quotient. */
static inline void model_nvfp4_sim(const float *x, int n, float *y)
{
    float g = (float)(model_amax(x, n) / 2688);
    for (int b = 0; b < n; b += 16) {
        int   len = n - b < 16 ? n - b : 16;
        float t = g > 0 ? (float)((double)(float)(model_amax(x + b, len) / 6) / (double)g) : 0;
        float d = (float)(model_e4m3(model_e4m3_encode(fmin((double)t, 448))) * (double)g);
        for (int i = b; i < b + len; i++)
            y[i] = d > 0 ? (float)(model_e2m1(model_e2m1_encode((double)(float)((double)x[i] / (double)d))) * (double)d)
                         : 0;
    }
}

/* Walsh-Hadamard by halves: both halves first, then their sum and difference, each rounded to fp32. */
static inline void model_hadamard_sums(float *x, int n)
{
    if (n == 1)
        return;
    model_hadamard_sums(x, n / 2);
    model_hadamard_sums(x + n / 2, n / 2);
    for (int i = 0; i < n / 2; i++) {
        double a = (double)x[i], b = (double)x[i + n / 2];
        x[i] = (float)(a + b);
        x[i + n / 2] = (float)(a - b);
    }
}

static inline void model_hadamard(float *x, int n)
{
    float scale = (float)pow((double)n, -0.5);
    model_hadamard_sums(x, n);
    for (int i = 0; i < n; i++)
        x[i] = (float)((double)x[i] * (double)scale);
}

/* ---- Inputs ---- */

static inline uint64_t model_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Uniform in [-1, 1). */
static inline float model_uniform(uint64_t *state)
{
    return (float)(model_random(state) >> 40) * 0x1p-23f - 1.0f;
}

static inline float model_any_finite(uint64_t *state)
{
    uint32_t u;
    float    v;
    do {
        u = (uint32_t)(model_random(state) >> 32);
        memcpy(&v, &u, sizeof v);
    } while (!isfinite(v));
    return v;
}

enum { MODEL_FILLS = 10 };

/* Finite rows of every unpleasant kind. */
static inline void model_fill(float *x, int n, int kind, uint64_t *state)
{
    for (int i = 0; i < n; i++) {
        float u = model_uniform(state);
        switch (kind) {
        case 0: x[i] = u; break;
        case 1: x[i] = i % 2 ? 0.0f : -0.0f; break;
        case 2: x[i] = i == n / 2 ? 3.0f : 0.0f; break;
        case 3: x[i] = u * 0x1p120f; break;
        case 4: x[i] = u * 0x1p-140f; break;                               /* subnormal */
        case 5: x[i] = (float)((int)(model_random(state) % 97) - 48) / 8; break; /* ties */
        case 6: x[i] = ldexpf(u, (int)(model_random(state) % 60) - 30); break;   /* every magnitude */
        case 7: x[i] = i == 0 ? FLT_MAX / 4 : ldexpf(u, -100); break;
        case 8: x[i] = model_any_finite(state) * 0.25f; break;
        default: x[i] = model_bf16(u * u * u); break; /* bf16 sources tie often */
        }
    }
}

static inline bool model_same(const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++) {
        if (!(a[i] == b[i] || (isnan(a[i]) && isnan(b[i]))))
            return false;
    }
    return true;
}

#endif
