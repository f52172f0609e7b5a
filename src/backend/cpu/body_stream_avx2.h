/* Body of the AVX2 rung: few rows of weights of 8 and 4 bits.
 *
 * Shifts, shuffles and multiply-adds share three ports, and a conversion of fp16 in a register takes two operations; a
 * load that converts takes one, on a port that has time. So a block of channels is written to the L1 cache as fp16 while
 * the block before it, which lies there already, is multiplied: piece by piece in turn, for both to be in the
 * processor's sight. The operations of a row are those of body_tile.h in their order. */

enum {
    STREAM_QUARTER = NIB_CPU_BLOCK / 4,              /* channels that are written, then multiplied */
    STREAM_BLOCK = NIB_CPU_BLOCK * NIB_CPU_PANEL / 2 /* floats that a decoded block takes */
};

/* Quarter `u` of a block's codes to scratch. */
BODY void quarter_store(const int type, const int u, const uint8_t *codes, float *v)
{
    half_store(type, u % 2, codes + u / 2 * block_bytes(type) / 2, v + u / 2 * STREAM_BLOCK / 2);
}

/* Quarter `u` of a decoded block of each panel into its chains; x + k is the block's first channel. */
BODY void quarter_add(const int rows, const int panels, const int type, const int u, const float *v,
                      const float *const *x, int64_t k, vec (*t)[STREAM_ROWS][PANEL_VECS])
{
    UNROLL for (int i = 0; i < STREAM_QUARTER; i++)
    {
        const int at = u / 2 * NIB_CPU_OCTET + CHUNK_CHANNEL(u % 2, i);
        vec xv[STREAM_ROWS];
        UNROLL for (int r = 0; r < rows; r++)
            xv[r] = SPLAT(x[r][k + at]);
        UNROLL for (int q = 0; q < panels; q++)
        {
            vec w[PANEL_VECS];
            UNROLL for (int p = 0; p < PANEL_VECS; p++)
                panel_load(type, v + q * STREAM_BLOCK, STREAM_QUARTER * u + i, p, &w[p]);
            UNROLL for (int r = 0; r < rows; r++)
                UNROLL for (int p = 0; p < PANEL_VECS; p++)
                {
                    if (u == 0 && i == 0)
                        t[q][r][p] = xv[r] * w[p];
                    else
                        VEC_FMA(t[q][r][p], xv[r], w[p]);
                }
        }
    }
    UNROLL for (int q = 0; q < panels; q++)
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int p = 0; p < PANEL_VECS; p++)
                VEC_KEEP(t[q][r][p]);
}

/* `panels` panels side by side, for few rows' chains alone would wait for themselves; a row's number serves both. */
BODY void stream_decoded(const int rows, const int panels, const int type, const struct nib_cpu_tile *t, int32_t o)
{
    const struct nib_cpu_matrix *w = t->w;
    const int32_t  n_blocks = n_blocks_of(w);
    const int64_t  stride = w->codes_stride;
    const uint8_t *codes = panel_codes(w, t->out + o), *scales[STREAM_PANELS];
    const float   *x[STREAM_ROWS];
    float         *v = t->work, *v_next = v + STREAM_PANELS * STREAM_BLOCK;
    vec            sum[STREAM_ROWS][STREAM_PANELS][PANEL_VECS];
    UNROLL for (int q = 0; q < panels; q++)
    {
        scales[q] = panel_scales(w, t->out + o + q * NIB_CPU_PANEL);
        UNROLL for (int u = 0; u < 4; u++)
            quarter_store(type, u, codes + q * stride, v + q * STREAM_BLOCK);
    }
    UNROLL for (int r = 0; r < rows; r++)
    {
        x[r] = t->x[r];
        UNROLL for (int q = 0; q < panels; q++)
            UNROLL for (int p = 0; p < PANEL_VECS; p++)
                sum[r][q][p] = (vec){0};
    }
    for (int32_t b = 0; b < n_blocks; b++) {
        vec chain[STREAM_PANELS][STREAM_ROWS][PANEL_VECS];
        codes += b + 1 < n_blocks ? block_bytes(type) : 0; /* the last block is written twice */
        UNROLL for (int q = 0; q < panels; q++)
            UNROLL for (int i = 0; i < block_bytes(type); i += 64)
                __builtin_prefetch(codes + q * stride + PREFETCH_BYTES + i);
        UNROLL for (int u = 0; u < 4; u++)
        {
            UNROLL for (int q = 0; q < panels; q++)
                quarter_store(type, u, codes + q * stride, v_next + q * STREAM_BLOCK);
            quarter_add(rows, panels, type, u, v, x, (int64_t)b * NIB_CPU_BLOCK, chain);
        }
        UNROLL for (int q = 0; q < panels; q++)
        {
            vec s[PANEL_VECS];
            panel_scales_decode(type, block_scales_at(type, scales[q], b), s);
            panel_turn(type, s);
            UNROLL for (int r = 0; r < rows; r++)
                UNROLL for (int p = 0; p < PANEL_VECS; p++)
                    VEC_FMA(sum[r][q][p], chain[q][r][p], s[p]);
        }
        float *done = v;
        v = v_next;
        v_next = done;
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int q = 0; q < panels; q++)
        {
            panel_turn(type, sum[r][q]);
            UNROLL for (int p = 0; p < PANEL_VECS; p++)
                *(vec *)(void *)(t->y + r * NIB_CPU_TILE_OUTS + o + q * NIB_CPU_PANEL + p * VEC_FLOATS) = sum[r][q][p];
        }
}

#define STREAM_RUN(rows, panels, type, t, o)                                                                          \
    (OCTET_IN_PLACE(type) ? stream_panels(rows, panels, type, t, o) : stream_decoded(rows, panels, type, t, o))
