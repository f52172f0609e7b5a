/* Body of a rung: vectors of VEC_BYTES, lane sums, exp. Included by each kernels_*.c after VEC_BYTES, VEC_FMA (a += b
 * * c on vectors) and the tile sizes are set; everything here is static, so each rung has its own copy compiled for
 * its target. */

#define VEC_FLOATS (VEC_BYTES / 4)
#define LANE_VECS  (NIB_CPU_LANES / VEC_FLOATS)
#define PANEL_VECS (NIB_CPU_PANEL / VEC_FLOATS)
#define BODY       static inline __attribute__((always_inline))
#define OWN        static __attribute__((noinline))
/* Loops of constant length whose arrays are registers: left as loops they would be in memory. */
#if defined(__clang__)
#define UNROLL      _Pragma("clang loop unroll(full)")
#define UNROLL_FOUR _Pragma("clang loop unroll_count(4)")
#else
#define UNROLL      _Pragma("GCC unroll 16")
#define UNROLL_FOUR _Pragma("GCC unroll 4")
#endif

typedef float   vec __attribute__((vector_size(VEC_BYTES)));
typedef int32_t ivec __attribute__((vector_size(VEC_BYTES)));
typedef uint8_t u8_vec __attribute__((vector_size(VEC_BYTES)));
/* Decoding works on 16 bytes on every rung: conversions of narrower or wider vectors fall apart into scalars. */
typedef int8_t  i8x16 __attribute__((vector_size(16)));
typedef int16_t i16x8 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef int64_t i64x2 __attribute__((vector_size(16)));
typedef float   f32x4 __attribute__((vector_size(16)));
typedef float   f32x4_at __attribute__((vector_size(16), aligned(4), may_alias));
/* The same in memory, at any float's address. */
typedef float vec_at __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

/* One number in every lane. (Adding it to zeros would be an addition, for it may be -0.) */
#if VEC_BYTES == 16
#define SPLAT(x) ((vec){x, x, x, x})
#elif VEC_BYTES == 32
#define SPLAT(x) ((vec)_mm256_set1_ps(x))
#else
#define SPLAT(x) ((vec)_mm512_set1_ps(x))
#endif

/* Fixed tree over the lanes of one sum. */
BODY float fold_lanes(const float *lane)
{
    float t[8];
    for (int i = 0; i < 8; i++)
        t[i] = lane[i] + lane[i + 8];
    return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}

/* exp for a vector: x = n ln 2 + r with |r| <= ln 2 / 2, a Taylor polynomial of degree 7 in r (the next term is below
 * 2^-27), and 2^n in two factors so that results may be subnormal. Below -104 the result is 0 in fp32, above 89 it
 * is infinite. NaN stays NaN. Vectors pass by pointer: 32-byte values have no calling convention without AVX. */
BODY void exp_vec(vec *px)
{
    const float round_bits = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    vec         x = *px;
    const vec   bottom = (vec){0} - 104.0f, top = (vec){0} + 89.0f;
    ivec        low = (ivec)(x < bottom), high = (ivec)(x > top);
    x = (vec)(((ivec)x & ~(low | high)) | ((ivec)bottom & low) | ((ivec)top & high));

    vec  t = x * 1.44269504f + round_bits;
    ivec n = (ivec)t - (ivec)((vec){0} + round_bits);
    vec  nf = t - round_bits;
    vec  r = (x - nf * 0.693145751953125f) - nf * 1.42860677e-6f;
    vec  p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    ivec half = n >> 1;
    *px = p * (vec)((half + 127) << 23) * (vec)((n - half + 127) << 23);
}

static void exp_shifted(float *x, float shift, int32_t n)
{
    int32_t i = 0;
    for (; i + VEC_FLOATS <= n; i += VEC_FLOATS) {
        vec v = *(const vec_at *)(x + i) - shift;
        exp_vec(&v);
        *(vec_at *)(x + i) = v;
    }
    if (i < n) {
        vec v = {0};
        memcpy(&v, x + i, sizeof(float) * (size_t)(n - i));
        v -= shift;
        exp_vec(&v);
        memcpy(x + i, &v, sizeof(float) * (size_t)(n - i));
    }
}

/* Lanes of x[i ..] up to n, `rest` beyond. */
BODY void load_part(const float *x, int32_t i, int32_t n, float rest, vec *v)
{
    if (i + VEC_FLOATS <= n) {
        *v = *(const vec_at *)(x + i);
        return;
    }
    *v = (vec){0} + rest;
    memcpy(v, x + i, sizeof(float) * (size_t)(n - i));
}

static float softmax_scores(float *x, int32_t n, float scale, float *top)
{
    vec most = (vec){0} + *top, sum = {0}, v;
    for (int32_t i = 0; i < n; i++)
        x[i] *= scale;
    for (int32_t i = 0; i < n; i += VEC_FLOATS) {
        load_part(x, i, n, -INFINITY, &v);
        ivec more = (ivec)(v > most);
        most = (vec)(((ivec)v & more) | ((ivec)most & ~more));
    }
    for (int l = 0; l < VEC_FLOATS; l++)
        *top = most[l] > *top ? most[l] : *top;
    exp_shifted(x, *top, n);
    for (int32_t i = 0; i < n; i += VEC_FLOATS) {
        load_part(x, i, n, 0.0f, &v);
        sum += v;
    }
    float all = 0;
    for (int l = 0; l < VEC_FLOATS; l++)
        all += sum[l];
    return all;
}

BODY void swiglu_vec(vec *pg, const vec *pu, float limit)
{
    vec g = *pg, u = *pu;
    vec not_finite = (g - g) + (u - u); /* NaN where either is NaN or Inf, which the clamps must not hide; else 0 */
    if (limit > 0) {
        vec  top = (vec){0} + limit;
        ivec g_high = (ivec)(g > top), u_high = (ivec)(u > top), u_low = (ivec)(u < -top);
        g = (vec)(((ivec)g & ~g_high) | ((ivec)top & g_high));
        u = (vec)(((ivec)u & ~(u_high | u_low)) | ((ivec)top & u_high) | ((ivec)-top & u_low));
    }
    vec e = -g;
    exp_vec(&e);
    *pg = g / (e + 1.0f) * u + not_finite;
}

static void swiglu(float *g, const float *u, float limit, int32_t n)
{
    int32_t i = 0;
    for (; i + VEC_FLOATS <= n; i += VEC_FLOATS) {
        vec vg = *(const vec_at *)(g + i), vu = *(const vec_at *)(u + i);
        swiglu_vec(&vg, &vu, limit);
        *(vec_at *)(g + i) = vg;
    }
    if (i < n) {
        size_t bytes = sizeof(float) * (size_t)(n - i);
        vec    vg = {0}, vu = {0};
        memcpy(&vg, g + i, bytes);
        memcpy(&vu, u + i, bytes);
        swiglu_vec(&vg, &vu, limit);
        memcpy(g + i, &vg, bytes);
    }
}

static double sum_squares(const float *x, int32_t n)
{
    double  lane[NIB_CPU_LANES] = {0};
    int32_t i = 0;
    for (; i + NIB_CPU_LANES <= n; i += NIB_CPU_LANES)
        for (int l = 0; l < NIB_CPU_LANES; l++)
            lane[l] += (double)x[i + l] * (double)x[i + l];
    for (; i < n; i++)
        lane[i % NIB_CPU_LANES] += (double)x[i] * (double)x[i];
    for (int l = 8; l > 0; l /= 2)
        for (int j = 0; j < l; j++)
            lane[j] += lane[j + l];
    return lane[0];
}

static void scale_by(float *x, const float *weight, float factor, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = x[i] * factor * weight[i];
}
