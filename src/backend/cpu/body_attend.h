/* Body of a rung: what attention and the indexer do with rows of fp32 channels. ATTEND_ROWS KV rows, or vectors of
 * channels, by four heads are the sums that registers hold. */

/* Sums have NIB_CPU_LANES lanes here too, VEC_FLOATS at a time: each of so many parts of the channels has its own. A rung
 * whose vectors have lanes enough may take all channels at once. */
#ifndef ATTEND_PARTS
#define ATTEND_PARTS (NIB_CPU_LANES / VEC_FLOATS)
#endif
#define ATTEND_HEADS 4
/* Vectors of channels whose sums registers hold. */
#ifndef ATTEND_VECS
#define ATTEND_VECS ATTEND_ROWS
#endif

BODY f32x4 fold_vec(vec v)
{
#if VEC_BYTES == 16
    return v;
#elif VEC_BYTES == 32
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
    f32x4 low = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 8, 9, 10, 11);
    f32x4 high = __builtin_shufflevector(v, v, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 12, 13, 14, 15);
    return low + high;
#endif
}

#if VEC_BYTES == 64
/* Quarters of two vectors, or lanes of each quarter, chosen twice and added up. */
#define ADD_QUARTERS(a, b, one, other) \
    ((vec)_mm512_shuffle_f32x4((__m512)(a), (__m512)(b), one) + (vec)_mm512_shuffle_f32x4((__m512)(a), (__m512)(b), other))
#define ADD_LANES(a, b, one, other) \
    ((vec)_mm512_shuffle_ps((__m512)(a), (__m512)(b), one) + (vec)_mm512_shuffle_ps((__m512)(a), (__m512)(b), other))

/* The sums of the lanes of rows by four vectors to y[head * y_stride + row], all rows together: one by one that took a
 * fifth of the dot products' time. The additions are those of fold_vecs: lanes 8, 4, 2 and 1 apart. */
BODY void fold_rows(const int rows, vec sum[][ATTEND_HEADS], float *y, int64_t y_stride)
{
    vec quarter[8] = {{0}}; /* [row], a quarter for each head */
    UNROLL for (int o = 0; o < rows; o++)
    {
        const vec ab = ADD_QUARTERS(sum[o][0], sum[o][1], 0x44, 0xee), cd = ADD_QUARTERS(sum[o][2], sum[o][3], 0x44, 0xee);
        quarter[o] = ADD_QUARTERS(ab, cd, 0x88, 0xdd);
    }
    UNROLL for (int o = 0; o < rows; o += 4)
    {
        const vec two = ADD_LANES(quarter[o], quarter[o + 1], 0x44, 0xee);
        const vec more = o + 2 < rows ? ADD_LANES(quarter[o + 2], quarter[o + 3], 0x44, 0xee) : two;
        const vec all = ADD_LANES(two, more, 0x88, 0xdd); /* [head][row] */
        const size_t bytes = sizeof(float) * (size_t)(rows - o < 4 ? rows - o : 4);
        const f32x4 head[4] = {__builtin_shufflevector(all, all, 0, 1, 2, 3), __builtin_shufflevector(all, all, 4, 5, 6, 7),
                               __builtin_shufflevector(all, all, 8, 9, 10, 11),
                               __builtin_shufflevector(all, all, 12, 13, 14, 15)};
        UNROLL for (int r = 0; r < 4; r++)
            memcpy(y + r * y_stride + o, &head[r], bytes);
    }
}
#endif

/* The sums of the lanes of four vectors. */
BODY void fold_vecs(const vec *v, f32x4 *out)
{
    f32x4 a[4];
    UNROLL for (int i = 0; i < 4; i++) a[i] = fold_vec(v[i]);
    f32x4 a01 = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5), a23 = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5);
    f32x4 b01 = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7), b23 = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
    f32x4 t0 = __builtin_shufflevector(a01, a23, 0, 1, 4, 5), t1 = __builtin_shufflevector(a01, a23, 2, 3, 6, 7);
    f32x4 t2 = __builtin_shufflevector(b01, b23, 0, 1, 4, 5), t3 = __builtin_shufflevector(b01, b23, 2, 3, 6, 7);
    *out = (t0 + t2) + (t1 + t3);
}

/* Channels [k, end) of heads x rows sums; heads and rows are constants at every call. */
BODY void dot_part(const int heads, const int rows, const float *x, int64_t x_stride, const float *w, int64_t w_stride,
                   int32_t k, int32_t end, vec sum[][ATTEND_HEADS])
{
    UNROLL for (int o = 0; o < rows; o++)
        UNROLL for (int r = 0; r < heads; r++)
            sum[o][r] = (vec){0};
    UNROLL_FOUR for (; k + VEC_FLOATS <= end; k += VEC_FLOATS)
    {
        vec wv[ATTEND_ROWS];
        UNROLL for (int o = 0; o < rows; o++)
        {
            wv[o] = *(const vec_at *)(w + o * w_stride + k);
            VEC_KEEP(wv[o]);
        }
        UNROLL for (int r = 0; r < heads; r++)
        {
            vec xv = *(const vec_at *)(x + r * x_stride + k);
            VEC_KEEP(xv);
            UNROLL for (int o = 0; o < rows; o++)
                VEC_FMA(sum[o][r], xv, wv[o]);
        }
    }
    if (k < end)
        UNROLL for (int o = 0; o < rows; o++)
            UNROLL for (int r = 0; r < heads; r++) {
                vec xv, wv;
                load_part(x + r * x_stride, k, end, 0.0f, &xv);
                load_part(w + o * w_stride, k, end, 0.0f, &wv);
                VEC_FMA(sum[o][r], xv, wv);
            }
}

BODY void dot_tile(const int heads, const int rows, const float *x, int64_t x_stride, const float *w, int64_t w_stride,
                   int32_t n, float *y, int64_t y_stride)
{
    const int32_t width = ATTEND_PARTS * VEC_FLOATS, part = (n + width - 1) / width * VEC_FLOATS;
    vec           sum[ATTEND_ROWS][ATTEND_HEADS] = {{{0}}};
    dot_part(heads, rows, x, x_stride, w, w_stride, 0, part < n ? part : n, sum);
    UNROLL for (int i = 1; i < ATTEND_PARTS; i++)
    {
        vec before[ATTEND_ROWS][ATTEND_HEADS];
        memcpy(before, sum, sizeof before);
        dot_part(heads, rows, x, x_stride, w, w_stride, i * part, (i + 1) * part < n ? (i + 1) * part : n, sum);
        UNROLL for (int o = 0; o < rows; o++)
            UNROLL for (int r = 0; r < heads; r++)
                sum[o][r] += before[o][r];
    }
#if VEC_BYTES == 64
    if (heads == ATTEND_HEADS) {
        fold_rows(rows, sum, y, y_stride);
        return;
    }
#endif
    UNROLL for (int o = 0; o < rows; o++) {
        f32x4 four;
        fold_vecs(sum[o], &four);
        UNROLL for (int r = 0; r < heads; r++)
            y[r * y_stride + o] = four[r];
    }
}

BODY void dot_strip(const int rows, const float *x, int64_t x_stride, int32_t n_x, const float *w, int64_t w_stride,
                    int32_t n, float *y, int64_t y_stride)
{
    int32_t i = 0;
    for (; i + ATTEND_HEADS <= n_x; i += ATTEND_HEADS)
        dot_tile(ATTEND_HEADS, rows, x + i * x_stride, x_stride, w, w_stride, n, y + i * y_stride, y_stride);
    for (; i < n_x; i++)
        dot_tile(1, rows, x + i * x_stride, x_stride, w, w_stride, n, y + i * y_stride, y_stride);
}

/* Two tiles' rows of x stay in the L1 cache while those of w pass by. */
static void dot_rows(const float *x, int64_t x_stride, int32_t n_x, const float *w, int64_t w_stride, int32_t n_w,
                     int32_t n, float *y, int64_t y_stride)
{
    for (int32_t i = 0; i < n_x; i += 2 * ATTEND_HEADS) {
        int32_t heads = n_x - i < 2 * ATTEND_HEADS ? n_x - i : 2 * ATTEND_HEADS, j = 0;
        for (; j + ATTEND_ROWS <= n_w; j += ATTEND_ROWS)
            dot_strip(ATTEND_ROWS, x + i * x_stride, x_stride, heads, w + j * w_stride, w_stride, n,
                      y + i * y_stride + j, y_stride);
        for (; j < n_w; j++)
            dot_strip(1, x + i * x_stride, x_stride, heads, w + j * w_stride, w_stride, n, y + i * y_stride + j,
                      y_stride);
    }
}

/* `vecs` vectors of channels of `heads` outputs stay in registers while the rows of v pass by. */
BODY void add_tile(const int heads, const int vecs, const float *p, int64_t p_stride, const float *v, int64_t v_stride,
                   int32_t n_v, float *o, int64_t o_stride)
{
    vec sum[ATTEND_HEADS][ATTEND_VECS];
    UNROLL for (int r = 0; r < heads; r++)
        UNROLL for (int l = 0; l < vecs; l++)
            sum[r][l] = *(const vec_at *)(o + r * o_stride + l * VEC_FLOATS);
    for (int32_t j = 0; j < n_v; j++) {
        vec value[ATTEND_VECS];
        UNROLL for (int l = 0; l < vecs; l++)
            value[l] = *(const vec_at *)(v + j * v_stride + l * VEC_FLOATS);
        UNROLL for (int r = 0; r < heads; r++) {
            vec weight = (vec)((ivec){0} + (int32_t)bits_of(p[r * p_stride + j]));
            UNROLL for (int l = 0; l < vecs; l++)
                VEC_FMA(sum[r][l], weight, value[l]);
        }
    }
    UNROLL for (int r = 0; r < heads; r++)
        UNROLL for (int l = 0; l < vecs; l++)
            *(vec_at *)(o + r * o_stride + l * VEC_FLOATS) = sum[r][l];
}

BODY void add_strip(const int vecs, const float *p, int64_t p_stride, int32_t n_p, const float *v, int64_t v_stride,
                    int32_t n_v, float *o, int64_t o_stride)
{
    int32_t i = 0;
    for (; i + ATTEND_HEADS <= n_p; i += ATTEND_HEADS)
        add_tile(ATTEND_HEADS, vecs, p + i * p_stride, p_stride, v, v_stride, n_v, o + i * o_stride, o_stride);
    for (; i < n_p; i++)
        add_tile(1, vecs, p + i * p_stride, p_stride, v, v_stride, n_v, o + i * o_stride, o_stride);
}

static void add_weighted(const float *p, int64_t p_stride, int32_t n_p, const float *v, int64_t v_stride, int32_t n_v,
                         int32_t n, float *o, int64_t o_stride)
{
    int32_t c = 0;
    for (; c + ATTEND_VECS * VEC_FLOATS <= n; c += ATTEND_VECS * VEC_FLOATS)
        add_strip(ATTEND_VECS, p, p_stride, n_p, v + c, v_stride, n_v, o + c, o_stride);
    for (; c + VEC_FLOATS <= n; c += VEC_FLOATS)
        add_strip(1, p, p_stride, n_p, v + c, v_stride, n_v, o + c, o_stride);
    for (; c < n; c++)
        for (int32_t i = 0; i < n_p; i++)
            for (int32_t j = 0; j < n_v; j++)
                o[i * o_stride + c] += p[i * p_stride + j] * v[j * v_stride + c];
}

/* ---- FP4 queries and keys ---- */

/* E2M1 pairs and scale bytes of a query of dim channels to its parts of struct nib_cpu_fp4_queries. */
static void fp4_query_open(const uint8_t *codes, const uint8_t *scales, int32_t dim, uint8_t *out, float *out_scales)
{
    for (int32_t k = 0; k < dim; k += 32) {
        for (int32_t i = k; i < k + 32 && i < dim; i += 16) {
            i8x16   d;
            int32_t n = dim - i < 16 ? dim - i : 16;
            e2m1_doubled(codes + i / 2, n, &d);
            d += NIB_CPU_CODE_BIAS;
            memcpy(out + i, &d, (size_t)n);
        }
        out_scales[k / 32] = ue8m0_value(scales[k / 32]) * 0.25f;
    }
}

static void fp4_dots(const struct nib_cpu_fp4_queries *q, const uint8_t *const *key, int32_t n, int32_t dim,
                     float *work, float *y, int64_t y_stride)
{
    const int32_t stride = (dim + 15) / 16 * 16 + 16;
    for (int32_t j = 0; j < n; j++)
        fp4_decode(key[j], key[j] + (dim + 1) / 2, dim, work + j * stride);
    dot_rows(q->x, q->x_stride, q->n, work, stride, n, dim, y, y_stride);
}

static void add_positive(float *sum, const float *x, float weight, int32_t n)
{
    int32_t i = 0;
    for (; i + VEC_FLOATS <= n; i += VEC_FLOATS) {
        vec v = *(const vec_at *)(x + i), s = *(const vec_at *)(sum + i);
        v = (vec)((ivec)v & ~(ivec)(v < 0.0f));
        VEC_FMA(s, v, (vec){0} + weight);
        *(vec_at *)(sum + i) = s;
    }
    if (i < n) {
        vec v, s;
        load_part(x, i, n, 0.0f, &v);
        load_part(sum, i, n, 0.0f, &s);
        v = (vec)((ivec)v & ~(ivec)(v < 0.0f));
        VEC_FMA(s, v, (vec){0} + weight);
        memcpy(sum + i, &s, sizeof(float) * (size_t)(n - i));
    }
}

static void fp4_scores(const struct nib_cpu_fp4_queries *q, const float *weight, const uint8_t *const *key, int32_t n,
                       int32_t dim, float *work, float *dots, float *score)
{
    const int32_t stride = (n + 15) / 16 * 16;
    fp4_dots(q, key, n, dim, work, dots, stride);
    memset(score, 0, sizeof(float) * (size_t)n);
    for (int32_t h = 0; h < q->n; h++)
        add_positive(score, dots + h * stride, weight[h], n);
}
