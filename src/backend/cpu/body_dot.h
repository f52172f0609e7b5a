/* Body of a rung: sums over channels of plain fp32 rows. */

/* Add channels [0, n) to the lanes of rows x outs sums; n a multiple of 16 except at a row's end. Lanes of sum (r, o)
 * are at acc + (r * acc_stride + o) * 16. rows and outs are constants at every call, so the loops over them vanish. */
BODY void dot_block(const int rows, const int outs, const float *const *x, const float *w, int64_t w_stride, int32_t n,
                    float *acc, int64_t acc_stride)
{
    vec sum[DOT_ROWS][DOT_OUTS][LANE_VECS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int o = 0; o < outs; o++)
            UNROLL for (int v = 0; v < LANE_VECS; v++)
                sum[r][o][v] = *(const vec_at *)(acc + (r * acc_stride + o) * NIB_CPU_LANES + v * VEC_FLOATS);

    int32_t k = 0;
    for (; k + NIB_CPU_LANES <= n; k += NIB_CPU_LANES) {
        UNROLL for (int v = 0; v < LANE_VECS; v++) {
            vec xv[DOT_ROWS];
            UNROLL for (int r = 0; r < rows; r++)
                xv[r] = *(const vec_at *)(x[r] + k + v * VEC_FLOATS);
            UNROLL for (int o = 0; o < outs; o++) {
                vec wv = *(const vec_at *)(w + o * w_stride + k + v * VEC_FLOATS);
                UNROLL for (int r = 0; r < rows; r++)
                    VEC_FMA(sum[r][o][v], xv[r], wv);
            }
        }
    }

    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int o = 0; o < outs; o++)
            UNROLL for (int v = 0; v < LANE_VECS; v++)
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

/* Plain fp32 weights: 8 rows by 12 outputs at a time, whose weights of 256 channels stay in the L1 cache. */
static void tile_f32(const struct nib_cpu_tile *t)
{
    enum { ROWS = 8, OUTS = 12 };
    const struct nib_cpu_matrix *w = t->w;
    int64_t                      stride = w->codes_stride / 4;
    const float                 *weights = (const float *)(const void *)w->codes + t->out * stride;
    /* Weights that only one pass reads come in long streams; else a part of them stays in the L1 cache for all rows. */
    const int32_t part = t->n_rows > DOT_ROWS ? NIB_CPU_TILE_K : w->n_in;
    for (int32_t r0 = 0; r0 < t->n_rows; r0 += ROWS)
        for (int32_t o0 = 0; o0 < t->n_outs; o0 += OUTS) {
            int32_t rows = t->n_rows - r0 < ROWS ? t->n_rows - r0 : ROWS;
            int32_t outs = t->n_outs - o0 < OUTS ? t->n_outs - o0 : OUTS;
            float   acc[ROWS * OUTS * NIB_CPU_LANES] = {0};
            for (int32_t k0 = 0; k0 < w->n_in; k0 += part) {
                int32_t      n = w->n_in - k0 < part ? w->n_in - k0 : part;
                const float *x[ROWS];
                for (int32_t r = 0; r < rows; r++)
                    x[r] = t->x[r0 + r] + k0;
                dot_any(x, rows, weights + o0 * stride + k0, stride, outs, n, acc, OUTS);
            }
            for (int32_t r = 0; r < rows; r++)
                for (int32_t o = 0; o < outs; o++)
                    t->y[(r0 + r) * NIB_CPU_TILE_OUTS + o0 + o] =
                        fold_lanes(acc + (r * OUTS + o) * NIB_CPU_LANES) * w->global_scale;
        }
}
