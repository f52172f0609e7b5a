/* Body of a rung: rotations. Pairs are neighbours, so cosines and sines stand twice each: [n] cosines, then [n] sines,
 * those of even channels negative. */

typedef double  f64x4 __attribute__((vector_size(32)));
typedef int64_t i64x4 __attribute__((vector_size(32)));

/* Sines and cosines of four angles below 2^24. x = k pi/2 + r with |r| <= pi/4 by pi/2 in two parts, the first of 29 bits, so
 * that its product with k is exact; Taylor polynomials whose next terms are below 2^-36. */
BODY void sin_cos4(const float *angle, f32x4 *sin_out, f32x4 *cos_out)
{
    const double round_bits = 6755399441055744.0; /* 1.5 * 2^52: adding it leaves the nearest integer in the low bits */
    f32x4        a;
    memcpy(&a, angle, sizeof a);
    f64x4 x = __builtin_convertvector(a, f64x4), t = x * 0.63661977236758134 + round_bits, k = t - round_bits;
    i64x4 quarter = (i64x4)t;
    f64x4 r = (x - k * 0x1.921fb54p+0) - k * 0x1.10b4611a62633p-30;
    f64x4 q = r * r;
    f64x4 s = q * (-1.0 / 39916800) + 1.0 / 362880;
    s = s * q - 1.0 / 5040;
    s = s * q + 1.0 / 120;
    s = s * q - 1.0 / 6;
    s = s * q * r + r;
    f64x4 c = q * (1.0 / 479001600) - 1.0 / 3628800;
    c = c * q + 1.0 / 40320;
    c = c * q - 1.0 / 720;
    c = c * q + 1.0 / 24;
    c = c * q - 0.5;
    c = c * q + 1.0;
    /* An odd quarter swaps them; sines of the last two quarters are negative, and cosines of the middle two. */
    i64x4 odd = -(quarter & 1), minus_s = (quarter & 2) << 62, minus_c = ((quarter + 1) & 2) << 62;
    i64x4 sine = (((i64x4)s & ~odd) | ((i64x4)c & odd)) ^ minus_s;
    i64x4 cosine = (((i64x4)c & ~odd) | ((i64x4)s & odd)) ^ minus_c;
    *sin_out = __builtin_convertvector((f64x4)sine, f32x4);
    *cos_out = __builtin_convertvector((f64x4)cosine, f32x4);
}

static void rotary_angles(const float *freq, int32_t n, float pos, float *out)
{
    for (int32_t i = 0; i < n / 2; i += 4) {
        float angle[4] = {0}, s[4], c[4];
        f32x4 sines, cosines;
        int32_t m = n / 2 - i < 4 ? n / 2 - i : 4;
        for (int32_t j = 0; j < m; j++)
            angle[j] = pos * freq[i + j];
        sin_cos4(angle, &sines, &cosines);
        memcpy(s, &sines, sizeof s);
        memcpy(c, &cosines, sizeof c);
        for (int32_t j = 0; j < m; j++) {
            out[2 * (i + j)] = out[2 * (i + j) + 1] = c[j];
            out[n + 2 * (i + j)] = -s[j];
            out[n + 2 * (i + j) + 1] = s[j];
        }
    }
}

/* Each lane's neighbour of its pair. */
BODY void swap_pairs(vec *v)
{
#if VEC_BYTES == 16
    *v = __builtin_shufflevector(*v, *v, 1, 0, 3, 2);
#elif VEC_BYTES == 32
    *v = __builtin_shufflevector(*v, *v, 1, 0, 3, 2, 5, 4, 7, 6);
#else
    *v = __builtin_shufflevector(*v, *v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#endif
}

/* Products and their sum round one by one: quantisers follow. */
static void rotate(float *x, int32_t n, const float *angle, bool inverse)
{
    const ivec turn = (ivec){0} + (inverse ? INT32_MIN : 0);
    int32_t    i = 0;
    for (; i + VEC_FLOATS <= n; i += VEC_FLOATS) {
        vec v = *(const vec_at *)(x + i), other = v;
        swap_pairs(&other);
        vec s = (vec)((ivec) * (const vec_at *)(angle + n + i) ^ turn);
        *(vec_at *)(x + i) = v * *(const vec_at *)(angle + i) + other * s;
    }
    for (; i < n; i += 2) {
        float a = x[i], b = x[i + 1], s = inverse ? -angle[n + i + 1] : angle[n + i + 1];
        x[i] = a * angle[i] - b * s;
        x[i + 1] = a * s + b * angle[i + 1];
    }
}

/* Walsh-Hadamard transform of n channels, a power of 2, times n^-0.5. Sums and differences of lanes 1 and 2 apart within
 * vectors of four, the others of whole vectors. */
static void hadamard(float *x, int32_t n, float scale)
{
    int32_t stride = 1;
    if (n >= 4) {
        const f32x4 minus1 = {1, -1, 1, -1}, minus2 = {1, 1, -1, -1};
        for (int32_t i = 0; i < n; i += 4) {
            f32x4 v = *(const f32x4_at *)(x + i);
            v = __builtin_shufflevector(v, v, 1, 0, 3, 2) + v * minus1;
            v = __builtin_shufflevector(v, v, 2, 3, 0, 1) + v * minus2;
            *(f32x4_at *)(x + i) = v;
        }
        stride = 4;
    }
    for (; stride < VEC_FLOATS && stride < n; stride *= 2)
        for (int32_t i = 0; i < n; i += 2 * stride)
            for (int32_t j = i; j < i + stride; j++) {
                float a = x[j], b = x[j + stride];
                x[j] = a + b;
                x[j + stride] = a - b;
            }
    for (; stride < n; stride *= 2)
        for (int32_t i = 0; i < n; i += 2 * stride)
            for (int32_t j = i; j < i + stride; j += VEC_FLOATS) {
                vec a = *(const vec_at *)(x + j), b = *(const vec_at *)(x + j + stride);
                *(vec_at *)(x + j) = a + b;
                *(vec_at *)(x + j + stride) = a - b;
            }
    for (int32_t i = 0; i < n; i++)
        x[i] *= scale;
}
