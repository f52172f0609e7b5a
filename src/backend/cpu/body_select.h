/* Body of a rung: the largest of many numbers, for the indexer, the router and sampling; and the router's scores.
 * VEC_MASK(v) is a bit for each lane of an ivec whose lanes are 0 or -1. */

typedef int32_t ivec_at __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

#ifndef VEC_MASK
BODY uint32_t lane_mask(const ivec *v)
{
    uint32_t mask = 0;
    UNROLL for (int l = 0; l < VEC_FLOATS; l++)
        mask |= (uint32_t)((*v)[l] & 1) << l;
    return mask;
}
#define VEC_MASK(v) lane_mask(&(v))
#endif

/* fp32 numbers as integers of the same order; both zeros are one value, NaN is `nan`. */
BODY void order_of(const vec *x, int32_t nan, ivec *out)
{
    vec  v = *x + 0.0f;
    ivec b = (ivec)v, is_nan = (ivec)(v != v);
    b ^= (b >> 31) & INT32_MAX;
    *out = (b & ~is_nan) | (is_nan & nan);
}

/* Keys of n numbers in place of them; 0 lanes beyond n are not stored. */
BODY void order_all(float *x, int32_t n, int32_t nan)
{
    for (int32_t i = 0; i < n; i += VEC_FLOATS) {
        vec  v;
        ivec key;
        load_part(x, i, n, 0.0f, &v);
        order_of(&v, nan, &key);
        if (i + VEC_FLOATS <= n)
            *(ivec_at *)(void *)(x + i) = key;
        else
            memcpy(x + i, &key, sizeof(float) * (size_t)(n - i));
    }
}

BODY void load_keys(const int32_t *key, int32_t i, int32_t n, int32_t rest, ivec *v)
{
    if (i + VEC_FLOATS <= n) {
        *v = *(const ivec_at *)(key + i);
        return;
    }
    *v = (ivec){0} + rest;
    memcpy(v, key + i, sizeof(int32_t) * (size_t)(n - i));
}

/* How many keys have each digit at `shift` among those whose higher bits are those of `prefix`. The first digit is counted with
 * its sign turned, so that digits ascend with keys. */
BODY void count_digits(const int32_t *key, int32_t n, int32_t prefix, int shift, int bits, int32_t *count)
{
    const uint32_t turn = 0x80000000u, mask = (1u << bits) - 1;
    if (shift + bits == 32) {
        for (int32_t i = 0; i < n; i++)
            count[((uint32_t)key[i] ^ turn) >> shift & mask]++;
        return;
    }
    const ivec wanted = (ivec){0} + (prefix >> (shift + bits));
    for (int32_t i = 0; i < n; i += VEC_FLOATS) {
        ivec v;
        load_keys(key, i, n, ~prefix, &v); /* no such prefix: the sign differs */
        ivec same = (ivec)((v >> (shift + bits)) == wanted);
        for (uint32_t m = VEC_MASK(same); m != 0; m &= m - 1)
            count[(uint32_t)key[i + __builtin_ctz(m)] >> shift & mask]++;
    }
}

/* Indices of the k < n largest of x, NaN first, ties to the lowest index, ascending: the k-th largest key digit by digit, then
 * one pass that takes what is above it and the first ones equal to it. x is destroyed. */
static void select_top(float *x, int32_t n, int32_t k, int32_t *selected)
{
    const int32_t *key = (const int32_t *)(const void *)x;
    const int      width = n < 4096 ? 8 : 11; /* counting a long list once more costs more than going through the counts */
    int32_t        prefix = 0, wanted = k;    /* rank of the threshold among keys that share the prefix */
    order_all(x, n, INT32_MAX);
    for (int shift = 32; shift > 0;) {
        int32_t   count[2048] = {0};
        const int bits = width < shift ? width : shift;
        shift -= bits;
        count_digits(key, n, prefix, shift, bits, count);
        uint32_t digit = (1u << bits) - 1;
        while (count[digit] < wanted)
            wanted -= count[digit--];
        prefix = (int32_t)((uint32_t)prefix | (shift + bits == 32 ? digit ^ (1u << (bits - 1)) : digit) << shift);
    }
    const ivec limit = (ivec){0} + prefix;
    int32_t    n_selected = 0;
    for (int32_t i = 0; i < n; i += VEC_FLOATS) {
        ivec v;
        load_keys(key, i, n, INT32_MIN, &v);
        ivec     above = (ivec)(v > limit), equal = (ivec)(v == limit);
        uint32_t m_equal = VEC_MASK(equal), m = VEC_MASK(above) | (wanted > 0 ? m_equal : 0);
        for (; m != 0; m &= m - 1) {
            const int lane = __builtin_ctz(m);
            if (!(m_equal >> lane & 1) || wanted-- > 0)
                selected[n_selected++] = i + lane;
        }
    }
}

/* The first index of the largest key. */
BODY int32_t first_largest(const int32_t *key, int32_t n)
{
    ivec most = (ivec){0} + INT32_MIN, v;
    for (int32_t i = 0; i < n; i += VEC_FLOATS) {
        load_keys(key, i, n, INT32_MIN, &v);
        ivec more = (ivec)(v > most);
        most = (v & more) | (most & ~more);
    }
    int32_t top = most[0];
    for (int l = 1; l < VEC_FLOATS; l++)
        top = most[l] > top ? most[l] : top;
    for (int32_t i = 0; i < n; i += VEC_FLOATS) {
        load_keys(key, i, n, INT32_MIN, &v);
        ivec     equal = (ivec)(v == (ivec){0} + top);
        uint32_t m = VEC_MASK(equal);
        if (m != 0)
            return i + __builtin_ctz(m);
    }
    return 0;
}

/* The k largest of score + bias one after another, ties to the lowest index, NaN last. work: [n]. */
static void choose_top(const float *score, const float *bias, int32_t n, int32_t k, float *work, int32_t *chosen)
{
    int32_t *key = (int32_t *)(void *)work;
    for (int32_t i = 0; i < n; i++)
        work[i] = score[i] + bias[i];
    order_all(work, n, INT32_MIN + 1);
    for (int32_t i = 0; i < k; i++) {
        chosen[i] = first_largest(key, n);
        key[chosen[i]] = INT32_MIN;
    }
}

/* The first index of the largest number; -1 where there is NaN or +Inf, or nothing above -Inf. */
static int32_t largest(const float *x, int32_t n)
{
    vec  most = (vec){0} - INFINITY, v;
    ivec bad = {0};
    for (int32_t i = 0; i < n; i += VEC_FLOATS) {
        load_part(x, i, n, -INFINITY, &v);
        ivec more = (ivec)(v > most);
        bad |= ~(ivec)(v < INFINITY);
        most = (vec)(((ivec)v & more) | ((ivec)most & ~more));
    }
    float top = most[0];
    for (int l = 1; l < VEC_FLOATS; l++)
        top = most[l] > top ? most[l] : top;
    if (VEC_MASK(bad) != 0 || top == -INFINITY)
        return -1;
    for (int32_t i = 0; i < n; i += VEC_FLOATS) {
        load_part(x, i, n, -INFINITY, &v);
        ivec     equal = (ivec)(v == (vec){0} + top);
        uint32_t m = VEC_MASK(equal);
        if (m != 0)
            return i + __builtin_ctz(m);
    }
    return -1;
}

static double sum_doubles(const float *x, int32_t n)
{
    double  lane[8] = {0};
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++)
            lane[l] += (double)x[i + l];
    for (int l = 0; i < n; i++, l++)
        lane[l] += (double)x[i];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* log(1 + e) for e >= 0: 1 + e = 2^n m with m around 1, log m = 2 atanh(f / (2 + f)) for f = m - 1, which is e itself for n = 0; for
 * others what 1 + e lost in rounding follows. */
BODY void log1p_vec(vec *px)
{
    vec  e = *px, u = e + 1.0f, lost = (e - (u - 1.0f)) / u;
    ivec n = ((ivec)u - 0x3f3504f3) >> 23, small = (ivec)(n == 0);
    vec  m = (vec)((ivec)u - (n << 23)) - 1.0f, nf = __builtin_convertvector(n, vec);
    vec  f = (vec)(((ivec)e & small) | ((ivec)m & ~small)), s = f / (f + 2.0f), q = s * s;
    vec  p = q * (2.0f / 9) + 2.0f / 7;
    p = p * q + 2.0f / 5;
    p = p * q + 2.0f / 3;
    lost = (vec)((ivec)lost & ~small);
    p = p * q * s + (lost + nf * 1.42860677e-6f);
    *px = nf * 0.693145751953125f + (s * 2.0f + p);
}

/* z = sqrt(log(1 + exp(z))); above 20 the logarithm is z. */
static void route_scores(float *z, int32_t n)
{
    for (int32_t i = 0; i < n; i += VEC_FLOATS) {
        vec v;
        load_part(z, i, n, 0.0f, &v);
        ivec high = (ivec)(v > 20.0f), nan = (ivec)(v != v);
        vec  e = (vec)((ivec)v & ~(high | nan));
        exp_vec(&e);
        log1p_vec(&e);
        e = (vec)(((ivec)v & (high | nan)) | ((ivec)e & ~(high | nan)));
        if (i + VEC_FLOATS <= n)
            *(vec_at *)(z + i) = e;
        else
            memcpy(z + i, &e, sizeof(float) * (size_t)(n - i));
    }
    for (int32_t i = 0; i < n; i++)
        z[i] = sqrtf(z[i]);
}
