/* Body of a rung, part 4: sums over channels. */

/* Add channels [0, n) to the lanes of rows x outs sums; n a multiple of 16 except at a row's end. Lanes of sum (r, o)
 * are at acc + (r * acc_stride + o) * 16. rows and outs are constants at every call, so the loops over them vanish. */
BODY void dot_block(const int rows, const int outs, const float *const *x, const float *w, int64_t w_stride, int32_t n,
                    float *acc, int64_t acc_stride)
{
    vec sum[DOT_ROWS][DOT_OUTS][LANE_VECS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++)
#pragma GCC unroll 4
            for (int v = 0; v < LANE_VECS; v++)
                sum[r][o][v] = *(const vec_at *)(acc + (r * acc_stride + o) * NIB_CPU_LANES + v * VEC_FLOATS);

    int32_t k = 0;
    for (; k + NIB_CPU_LANES <= n; k += NIB_CPU_LANES) {
#pragma GCC unroll 4
        for (int v = 0; v < LANE_VECS; v++) {
            vec xv[DOT_ROWS];
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                xv[r] = *(const vec_at *)(x[r] + k + v * VEC_FLOATS);
#pragma GCC unroll 4
            for (int o = 0; o < outs; o++) {
                vec wv = *(const vec_at *)(w + o * w_stride + k + v * VEC_FLOATS);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++)
                    sum[r][o][v] += xv[r] * wv;
            }
        }
    }

#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++)
#pragma GCC unroll 4
            for (int v = 0; v < LANE_VECS; v++)
                *(vec_at *)(acc + (r * acc_stride + o) * NIB_CPU_LANES + v * VEC_FLOATS) = sum[r][o][v];
    for (; k < n; k++)
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < outs; o++)
                acc[(r * acc_stride + o) * NIB_CPU_LANES + k % NIB_CPU_LANES] += x[r][k] * w[o * w_stride + k];
}

/* The same for any number of rows and outputs. */
static void dot_any(const float *const *x, int32_t rows, const float *w, int64_t w_stride, int32_t outs, int32_t n,
                    float *acc, int64_t acc_stride)
{
    int32_t o = 0;
    for (; o + DOT_OUTS <= outs; o += DOT_OUTS) {
        int32_t r = 0;
        for (; r + DOT_ROWS <= rows; r += DOT_ROWS)
            dot_block(DOT_ROWS, DOT_OUTS, x + r, w + o * w_stride, w_stride, n,
                      acc + (r * acc_stride + o) * NIB_CPU_LANES, acc_stride);
        for (; r < rows; r++)
            dot_block(1, DOT_OUTS, x + r, w + o * w_stride, w_stride, n, acc + (r * acc_stride + o) * NIB_CPU_LANES,
                      acc_stride);
    }
    for (; o < outs; o++)
        for (int32_t r = 0; r < rows; r++)
            dot_block(1, 1, x + r, w + o * w_stride, w_stride, n, acc + (r * acc_stride + o) * NIB_CPU_LANES,
                      acc_stride);
}

static void tile_plain(const struct nib_cpu_tile *t)
{
    const struct nib_cpu_matrix *w = t->w;
    float                       *weights = t->work, *acc = t->work + NIB_CPU_TILE_OUTS * NIB_CPU_TILE_K;
    memset(acc, 0, sizeof(float) * NIB_CPU_LANES * NIB_CPU_TILE_OUTS * (size_t)t->n_rows);
    for (int32_t k0 = 0; k0 < w->n_in; k0 += NIB_CPU_TILE_K) {
        int32_t      n = w->n_in - k0 < NIB_CPU_TILE_K ? w->n_in - k0 : NIB_CPU_TILE_K;
        const float *x[NIB_CPU_TILE_ROWS];
        for (int32_t o = 0; o < t->n_outs; o++)
            decode_weight(w, t->out + o, k0, n, weights + o * NIB_CPU_TILE_K);
        for (int32_t r = 0; r < t->n_rows; r++)
            x[r] = t->x[r] + k0;
        dot_any(x, t->n_rows, weights, NIB_CPU_TILE_K, t->n_outs, n, acc, NIB_CPU_TILE_OUTS);
    }
    for (int32_t r = 0; r < t->n_rows; r++)
        for (int32_t o = 0; o < t->n_outs; o++)
            t->y[r * NIB_CPU_TILE_OUTS + o] =
                fold_lanes(acc + (r * NIB_CPU_TILE_OUTS + o) * NIB_CPU_LANES) * w->global_scale;
}

/* lanes[b] += sum[b] * (xs[b] * ws[b]). */
BODY void add_scaled(const i16_vec *sum, const float *xs, const float *ws, float *lanes)
{
    const i16x8 *half = (const i16x8 *)sum, z = {0};
    for (int i = 0; i < 4; i++) {
        /* Each 16-bit sum goes to the top of 32 bits and is shifted down with its sign. */
        i32x4 wide = i % 2 ? (i32x4)__builtin_shufflevector(z, half[i / 2], 4, 12, 5, 13, 6, 14, 7, 15)
                           : (i32x4)__builtin_shufflevector(z, half[i / 2], 0, 8, 1, 9, 2, 10, 3, 11);
        f32x4 scale = *(const f32x4_at *)(xs + 4 * i) * *(const f32x4_at *)(ws + 4 * i);
        *(f32x4_at *)(lanes + 4 * i) += __builtin_convertvector(wide >> 16, f32x4) * scale;
    }
}

/* Groups of 16 blocks for rows x outs sums: lane b gets block b's integer sum (at most 16 * 12 * 12 = 2304, so 16 bits
 * hold it) times both scales, a product of at most 12 + 8 bits and therefore exact. */
BODY void dot_fp4_groups(const int rows, const int outs, const struct nib_cpu_fp4_row *const *x, int32_t group0,
                         const int16_t *w, const float *w_scales, int32_t n_groups, float *acc)
{
    enum { PARTS = 32 / VEC_BYTES };
    for (int32_t g = 0; g < n_groups; g++) {
        const int16_t *wg = w + g * NIB_CPU_FP4_GROUP;
        int32_t        xg = (group0 + g) * NIB_CPU_FP4_GROUP;
        i16_vec        sum[2][2][PARTS] = {{{{0}}}};
        for (int i = 0; i < 16; i++)
#pragma GCC unroll 2
            for (int v = 0; v < PARTS; v++)
#pragma GCC unroll 2
                for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
                    for (int o = 0; o < outs; o++)
                        sum[r][o][v] += ((const i16_vec *)(x[r]->codes + xg))[i * PARTS + v] *
                                        ((const i16_vec *)(wg + o * NIB_CPU_TILE_K))[i * PARTS + v];
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < outs; o++) {
                const float *xs = x[r]->scales + (group0 + g) * 16, *ws = w_scales + o * NIB_CPU_TILE_K / 16 + g * 16;
                add_scaled(sum[r][o], xs, ws, acc + (r * NIB_CPU_TILE_OUTS + o) * NIB_CPU_LANES);
            }
    }
}

static void tile_fp4(const struct nib_cpu_tile *t)
{
    const struct nib_cpu_matrix *w = t->w;
    int16_t                     *codes = (int16_t *)(void *)t->work;
    float                       *scales = t->work + NIB_CPU_TILE_OUTS * NIB_CPU_TILE_K / 2;
    float                       *acc = t->work + NIB_CPU_TILE_OUTS * NIB_CPU_TILE_K;
    bool                         mx = w->type == NIB_WEIGHT_MXFP4;
    memset(acc, 0, sizeof(float) * NIB_CPU_LANES * NIB_CPU_TILE_OUTS * (size_t)t->n_rows);
    for (int32_t k0 = 0; k0 < w->n_in; k0 += NIB_CPU_TILE_K) {
        int32_t n = w->n_in - k0 < NIB_CPU_TILE_K ? w->n_in - k0 : NIB_CPU_TILE_K;
        int32_t n_groups = (n + NIB_CPU_FP4_GROUP - 1) / NIB_CPU_FP4_GROUP;
        for (int32_t o = 0; o < t->n_outs; o++) {
            int64_t row = t->out + o;
            fp4_open(w->codes + row * w->codes_stride + k0 / 2,
                     w->scales + row * w->scales_stride + k0 / (mx ? 32 : 16), mx, n, codes + o * NIB_CPU_TILE_K,
                     scales + o * NIB_CPU_TILE_K / 16);
        }
        for (int32_t o = 0; o < t->n_outs; o += 2)
            for (int32_t r = 0; r < t->n_rows; r += 2) {
                const struct nib_cpu_fp4_row *const *x = t->x4 + r;
                int16_t *w_codes = codes + o * NIB_CPU_TILE_K;
                float   *w_scales = scales + o * NIB_CPU_TILE_K / 16;
                float   *lanes = acc + (r * NIB_CPU_TILE_OUTS + o) * NIB_CPU_LANES;
                int32_t  group0 = k0 / NIB_CPU_FP4_GROUP;
                bool     two_rows = r + 1 < t->n_rows, two_outs = o + 1 < t->n_outs;
                if (two_rows && two_outs)
                    dot_fp4_groups(2, 2, x, group0, w_codes, w_scales, n_groups, lanes);
                else if (two_outs)
                    dot_fp4_groups(1, 2, x, group0, w_codes, w_scales, n_groups, lanes);
                else
                    for (int i = 0; i < 1 + two_rows; i++)
                        dot_fp4_groups(1, 1, x + i, group0, w_codes, w_scales, n_groups,
                                       lanes + i * NIB_CPU_TILE_OUTS * NIB_CPU_LANES);
            }
    }
    for (int32_t r = 0; r < t->n_rows; r++)
        for (int32_t o = 0; o < t->n_outs; o++)
            /* Codes were doubled on both sides. */
            t->y[r * NIB_CPU_TILE_OUTS + o] = fold_lanes(acc + (r * NIB_CPU_TILE_OUTS + o) * NIB_CPU_LANES) * 0.25f *
                                              w->global_scale * t->x4[r]->row_scale;
}

static void dot_rows(const float *x, int64_t x_stride, int32_t n_x, const float *w, int64_t w_stride, int32_t n_w,
                     int32_t n, float *y, int64_t y_stride)
{
    enum { ROWS = 8, OUTS = 12 };
    for (int32_t j = 0; j < n_w; j += OUTS) {
        int32_t outs = n_w - j < OUTS ? n_w - j : OUTS;
        for (int32_t i = 0; i < n_x; i += ROWS) {
            int32_t      rows = n_x - i < ROWS ? n_x - i : ROWS;
            const float *row[ROWS];
            float        acc[ROWS * OUTS * NIB_CPU_LANES] = {0};
            for (int32_t r = 0; r < rows; r++)
                row[r] = x + (i + r) * x_stride;
            dot_any(row, rows, w + j * w_stride, w_stride, outs, n, acc, OUTS);
            for (int32_t r = 0; r < rows; r++)
                for (int32_t o = 0; o < outs; o++)
                    y[(i + r) * y_stride + j + o] = fold_lanes(acc + (r * OUTS + o) * NIB_CPU_LANES);
        }
    }
}

/* 16 channels of `rows` outputs stay in registers while the rows of v pass by. */
BODY void add_weighted_block(const int rows, const float *p, int64_t p_stride, const float *v, int32_t n_v, int32_t n,
                             float *o)
{
    vec sum[4][LANE_VECS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int l = 0; l < LANE_VECS; l++)
            sum[r][l] = *(const vec_at *)(o + (int64_t)r * n + l * VEC_FLOATS);
    for (int32_t j = 0; j < n_v; j++)
#pragma GCC unroll 4
        for (int l = 0; l < LANE_VECS; l++) {
            vec value = *(const vec_at *)(v + (int64_t)j * n + l * VEC_FLOATS);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                sum[r][l] += p[r * p_stride + j] * value;
        }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int l = 0; l < LANE_VECS; l++)
            *(vec_at *)(o + (int64_t)r * n + l * VEC_FLOATS) = sum[r][l];
}

static void add_weighted(const float *p, int64_t p_stride, int32_t n_p, const float *v, int32_t n_v, int32_t n,
                         float *o)
{
    int32_t c = 0;
    for (; c + NIB_CPU_LANES <= n; c += NIB_CPU_LANES) {
        int32_t i = 0;
        for (; i + 4 <= n_p; i += 4)
            add_weighted_block(4, p + i * p_stride, p_stride, v + c, n_v, n, o + (int64_t)i * n + c);
        for (; i < n_p; i++)
            add_weighted_block(1, p + i * p_stride, p_stride, v + c, n_v, n, o + (int64_t)i * n + c);
    }
    for (; c < n; c++)
        for (int32_t i = 0; i < n_p; i++)
            for (int32_t j = 0; j < n_v; j++)
                o[(int64_t)i * n + c] += p[i * p_stride + j] * v[(int64_t)j * n + c];
}
