/* Body of a rung: attention of a few heads to BF16 rows where they lie: to write them down decoded would take longer than
 * to decode them twice. Every operation and its order are those of body_attend.h on decoded rows, so the bits are, too.
 *
 * Few heads are also so little work for a row that memory is what bounds it. So the rows that come next are asked for
 * all the time, a line for each line: the first halves during the dot products, the second ones during the sums. */

enum {
    BF16_LINE = 32, /* channels in a line of a cache */
    /* Vectors of channels whose sums stay in registers while rows pass by, and rows that pass at a time: rows of a power
     * of two bytes share so few sets of a cache that the lines of more would be gone at their other half's turn. */
    BF16_VECS = 2,
    BF16_ROWS = 24,
    BF16_WIDTH = BF16_VECS * VEC_FLOATS,
    BF16_PER_LINE = 2 * BF16_LINE / BF16_WIDTH /* steps of BF16_WIDTH channels for each line that is asked for */
};

typedef uint16_t half_vec __attribute__((vector_size(VEC_BYTES / 2)));
typedef uint16_t half_vec_at __attribute__((vector_size(VEC_BYTES / 2), aligned(2), may_alias));

BODY void load_bf16(const uint16_t *p, vec *v)
{
#if VEC_BYTES == 16
    const half_vec b = *(const half_vec_at *)p, z = {0};
    *v = (vec)__builtin_shufflevector(z, b, 0, 4, 1, 5, 2, 6, 3, 7);
#elif VEC_BYTES == 32
    *v = (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i) * (const half_vec_at *)p), 16);
#else
    *v = (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i) * (const half_vec_at *)p), 16);
#endif
}

BODY void dot_bf16_tile(const int heads, const int rows, const float *x, int64_t x_stride, const uint16_t *const *w,
                        const uint16_t *const *next, int32_t n, float *y, int64_t y_stride)
{
    const int32_t part = n / ATTEND_PARTS;
    vec           sum[ATTEND_ROWS][ATTEND_HEADS] = {{{0}}};
    UNROLL for (int i = 0; i < ATTEND_PARTS; i++)
    {
        vec before[ATTEND_ROWS][ATTEND_HEADS];
        memcpy(before, sum, sizeof before);
        UNROLL for (int o = 0; o < rows; o++)
            UNROLL for (int r = 0; r < heads; r++)
                sum[o][r] = (vec){0};
        for (int32_t k = i * part; k < (i + 1) * part; k += VEC_FLOATS) {
            vec wv[ATTEND_ROWS];
            if (k % (2 * BF16_LINE) == 0)
                UNROLL for (int o = 0; o < rows; o++)
                    __builtin_prefetch(next[o] + k / 2);
            UNROLL for (int o = 0; o < rows; o++)
            {
                load_bf16(w[o] + k, &wv[o]);
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
        if (i > 0)
            UNROLL for (int o = 0; o < rows; o++)
                UNROLL for (int r = 0; r < heads; r++)
                    sum[o][r] += before[o][r];
    }
    UNROLL for (int o = 0; o < rows; o++) {
        f32x4 four;
        fold_vecs(sum[o], &four);
        UNROLL for (int r = 0; r < heads; r++)
            y[r * y_stride + o] = four[r];
    }
}

BODY void dot_bf16_strip(const int rows, const float *x, int64_t x_stride, int32_t n_x, const uint16_t *const *w,
                         const uint16_t *const *next, int32_t n, float *y, int64_t y_stride)
{
    int32_t i = 0;
    for (; i + ATTEND_HEADS <= n_x; i += ATTEND_HEADS)
        dot_bf16_tile(ATTEND_HEADS, rows, x + i * x_stride, x_stride, w, next, n, y + i * y_stride, y_stride);
    for (; i < n_x; i++)
        dot_bf16_tile(1, rows, x + i * x_stride, x_stride, w, next, n, y + i * y_stride, y_stride);
}

static void dot_bf16(const float *x, int64_t x_stride, int32_t n_x, const uint16_t *const *w,
                     const uint16_t *const *next, int32_t n_w, int32_t n, float *y, int64_t y_stride)
{
    int32_t j = 0;
    for (; j + ATTEND_ROWS <= n_w; j += ATTEND_ROWS)
        dot_bf16_strip(ATTEND_ROWS, x, x_stride, n_x, w + j, next + j, n, y + j, y_stride);
    for (; j < n_w; j++)
        dot_bf16_strip(1, x, x_stride, n_x, w + j, next + j, n, y + j, y_stride);
}

BODY void add_bf16_tile(const int heads, const int vecs, const float *p, int64_t p_stride, const uint16_t *const *v,
                        int32_t c, int32_t n_v, float *o, int64_t o_stride)
{
    vec sum[ATTEND_HEADS][BF16_VECS];
    UNROLL for (int r = 0; r < heads; r++)
        UNROLL for (int l = 0; l < vecs; l++)
            sum[r][l] = *(const vec_at *)(o + r * o_stride + c + l * VEC_FLOATS);
    for (int32_t j = 0; j < n_v; j++) {
        vec value[BF16_VECS];
        UNROLL for (int l = 0; l < vecs; l++)
            load_bf16(v[j] + c + l * VEC_FLOATS, &value[l]);
        UNROLL for (int r = 0; r < heads; r++) {
            vec weight = SPLAT(p[r * p_stride + j]);
            UNROLL for (int l = 0; l < vecs; l++)
                VEC_FMA(sum[r][l], weight, value[l]);
        }
    }
    UNROLL for (int r = 0; r < heads; r++)
        UNROLL for (int l = 0; l < vecs; l++)
            *(vec_at *)(o + r * o_stride + c + l * VEC_FLOATS) = sum[r][l];
}

BODY void add_bf16_strip(const int vecs, const float *p, int64_t p_stride, int32_t n_p, const uint16_t *const *v,
                         int32_t c, int32_t n_v, float *o, int64_t o_stride)
{
    int32_t i = 0;
    for (; i + ATTEND_HEADS <= n_p; i += ATTEND_HEADS)
        add_bf16_tile(ATTEND_HEADS, vecs, p + i * p_stride, p_stride, v, c, n_v, o + i * o_stride, o_stride);
    for (; i < n_p; i++)
        add_bf16_tile(1, vecs, p + i * p_stride, p_stride, v, c, n_v, o + i * o_stride, o_stride);
}

static void add_bf16(const float *p, int64_t p_stride, int32_t n_p, const uint16_t *const *v,
                     const uint16_t *const *next, int32_t n_v, int32_t n, float *o, int64_t o_stride)
{
    for (int32_t j = 0; j < n_v; j += BF16_ROWS) {
        const int32_t rows = n_v - j < BF16_ROWS ? n_v - j : BF16_ROWS;
        int32_t c = 0;
        for (; c + BF16_WIDTH <= n; c += BF16_WIDTH) {
            for (int32_t i = c / BF16_WIDTH % BF16_PER_LINE; i < rows; i += BF16_PER_LINE)
                __builtin_prefetch(next[j + i] + n / 2 + c / 2);
            add_bf16_strip(BF16_VECS, p + j, p_stride, n_p, v + j, c, rows, o, o_stride);
        }
        for (; c + VEC_FLOATS <= n; c += VEC_FLOATS)
            add_bf16_strip(1, p + j, p_stride, n_p, v + j, c, rows, o, o_stride);
    }
}
