/* Body of a rung: products of fp32 rows with packed weights (see kernels.h).
 *
 * The rung supplies chunk_decode and panel_scales_decode. An octet is CHUNKS chunks of CHUNK_CHANNELS channels, channel
 * CHUNK_CHANNEL(c, i) each. Up to STREAM_ROWS rows take their weights straight from registers: one pass over the stored
 * bytes, which is what decoding a token costs. More rows share a panel that is decoded to scratch. Both run the same
 * operations for a row. */

#define CHUNK_CHANNELS (NIB_CPU_OCTET / CHUNKS)
#define TILE_BLOCKS    (NIB_CPU_TILE_K / NIB_CPU_BLOCK)

#ifndef OCTET_FLOATS
/* Room of a decoded octet in scratch, and whether its stored bytes serve as well. */
#define OCTET_FLOATS(type)   (NIB_CPU_OCTET * NIB_CPU_PANEL)
#define OCTET_IN_PLACE(type) false

/* An octet to scratch, as panel_load finds it. */
BODY void octet_store(const int type, const uint8_t *codes, float *v)
{
    UNROLL for (int c = 0; c < CHUNKS; c++)
    {
        vec d[CHUNK_CHANNELS * PANEL_VECS];
        chunk_decode(type, codes, c, d);
        UNROLL for (int i = 0; i < CHUNK_CHANNELS * PANEL_VECS; i++)
            *(vec *)(void *)(v + (c * CHUNK_CHANNELS * PANEL_VECS + i) * VEC_FLOATS) = d[i];
    }
}

/* Vector p of the j-th channel of a block in scratch. */
BODY void panel_load(const int type, const float *v, int j, int p, vec *w)
{
    (void)type;
    *w = *(const vec *)(const void *)(v + (j * PANEL_VECS + p) * VEC_FLOATS);
}

/* A panel's outputs from the order of scratch to their own, or back. */
BODY void panel_turn(const int type, vec *v)
{
    (void)type;
    (void)v;
}
#endif

/* sum += chain * scale, or without a scale. */
BODY void sum_add(const int type, vec *sum, const vec *chain, const vec *scale)
{
    if (type == NIB_WEIGHT_BF16)
        *sum += *chain;
    else
        VEC_FMA(*sum, *chain, *scale);
}

/* The sums of n outputs are complete but for the matrix's scale, and their order if they come from scratch. */
BODY void sums_end(const int type, const struct nib_cpu_tile *t, bool turned)
{
    const vec scale = SPLAT(t->w->global_scale);
    for (int32_t r = 0; r < t->n_rows; r++)
        for (int32_t o = 0; o < t->n_outs; o += NIB_CPU_PANEL) {
            vec *y = (vec *)(void *)(t->y + r * NIB_CPU_TILE_OUTS + o), sum[PANEL_VECS];
            memcpy(sum, y, sizeof sum);
            if (turned)
                panel_turn(type, sum);
            UNROLL for (int p = 0; p < PANEL_VECS; p++)
                y[p] = sum[p] * scale;
        }
}

/* ---- Few rows: straight from the stored bytes ---- */

/* Chunk c of a block's two octets into its chains: t[row][vector] = sum of x * w over the block's channels. */
BODY void chunk_add(const int rows, const int type, const int c, const uint8_t *codes, const float *const *x, int64_t k,
                    vec (*t)[PANEL_VECS])
{
    vec v[CHUNK_CHANNELS * PANEL_VECS];
    chunk_decode(type, codes + c / CHUNKS * block_bytes(type) / 2, c % CHUNKS, v);
    UNROLL for (int i = 0; i < CHUNK_CHANNELS; i++)
        UNROLL for (int r = 0; r < rows; r++)
        {
            vec xv = SPLAT(x[r][k + c / CHUNKS * NIB_CPU_OCTET + CHUNK_CHANNEL(c % CHUNKS, i)]);
            UNROLL for (int p = 0; p < PANEL_VECS; p++)
            {
                if (c == 0 && i == 0)
                    t[r][p] = xv * v[p];
                else
                    VEC_FMA(t[r][p], xv, v[i * PANEL_VECS + p]);
            }
        }
}

/* `panels` panels side by side, chunk by chunk: one panel's chains alone would wait for themselves. */
BODY void stream_panels(const int rows, const int panels, const int type, const struct nib_cpu_tile *t, int32_t o)
{
    const struct nib_cpu_matrix *w = t->w;
    const int32_t  n_blocks = n_blocks_of(w);
    const uint8_t *begin = panel_codes(w, t->out + o), *codes = begin, *scales[STREAM_PANELS];
    const float   *x[STREAM_ROWS];
    vec            sum[STREAM_ROWS][STREAM_PANELS][PANEL_VECS];
    UNROLL for (int q = 0; q < panels; q++)
        scales[q] = panel_scales(w, t->out + o + q * NIB_CPU_PANEL);
    UNROLL for (int r = 0; r < rows; r++)
    {
        x[r] = t->x[r];
        UNROLL for (int q = 0; q < panels; q++)
            UNROLL for (int p = 0; p < PANEL_VECS; p++)
                sum[r][q][p] = (vec){0};
    }
    for (int32_t b = 0; b < n_blocks; b++) {
        vec chain[STREAM_PANELS][STREAM_ROWS][PANEL_VECS];
        UNROLL for (int q = 0; q < panels; q++)
            UNROLL for (int i = 0; i < block_bytes(type); i += 64)
                __builtin_prefetch(codes_ahead(type, begin + q * w->codes_stride, b, n_blocks, panels) + i);
        UNROLL for (int c = 0; c < 2 * CHUNKS; c++)
            UNROLL for (int q = 0; q < panels; q++)
                chunk_add(rows, type, c, codes + q * w->codes_stride, x, (int64_t)b * NIB_CPU_BLOCK, chain[q]);
        UNROLL for (int q = 0; q < panels; q++)
        {
            vec s[PANEL_VECS];
            panel_scales_decode(type, block_scales_at(type, scales[q], b), s);
            UNROLL for (int r = 0; r < rows; r++)
                UNROLL for (int p = 0; p < PANEL_VECS; p++)
                    sum_add(type, &sum[r][q][p], &chain[q][r][p], &s[p]);
        }
        codes += block_bytes(type);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int q = 0; q < panels; q++)
            UNROLL for (int p = 0; p < PANEL_VECS; p++)
                *(vec *)(void *)(t->y + r * NIB_CPU_TILE_OUTS + o + q * NIB_CPU_PANEL + p * VEC_FLOATS) = sum[r][q][p];
}

#ifndef STREAM_SIDE_ROWS
/* Rows for which STREAM_PANELS panels pass side by side: registers hold the chains of so many. */
#define STREAM_SIDE_ROWS 1
#endif

#ifndef STREAM_RUN
/* A rung may have a way of its own for some types, of the same bits. */
#define STREAM_RUN stream_panels
#endif

BODY void stream_rows(const int rows, const int type, const struct nib_cpu_tile *t)
{
    const int panels = rows <= STREAM_SIDE_ROWS ? STREAM_PANELS : 1;
    int32_t   o = 0;
    for (; panels > 1 && t->n_outs - o > NIB_CPU_PANEL; o += panels * NIB_CPU_PANEL)
        STREAM_RUN(rows, panels, type, t, o);
    for (; o < t->n_outs; o += NIB_CPU_PANEL)
        STREAM_RUN(rows, 1, type, t, o);
}

/* ---- Many rows: a panel decoded to scratch ---- */

/* Decode blocks [b0, b0 + n) of a panel to v, channel after channel in the order of the chains, and scales to s. */
BODY void panel_open(const int type, const struct nib_cpu_matrix *w, int32_t out, int32_t b0, int32_t n, float *v,
                     float *s)
{
    const uint8_t *codes = panel_codes(w, out) + (int64_t)b0 * block_bytes(type), *scales = panel_scales(w, out);
    for (int32_t b = b0; b < b0 + n; b++) {
        UNROLL for (int h = 0; !OCTET_IN_PLACE(type) && h < 2; h++)
            octet_store(type, codes + h * block_bytes(type) / 2, v + h * OCTET_FLOATS(type));
        vec sc[PANEL_VECS];
        panel_scales_decode(type, block_scales_at(type, scales, b), sc);
        panel_turn(type, sc);
        UNROLL for (int p = 0; p < PANEL_VECS; p++)
            *(vec *)(void *)(s + p * VEC_FLOATS) = sc[p];
        codes += block_bytes(type);
        v += 2 * OCTET_FLOATS(type);
        s += NIB_CPU_PANEL;
    }
}

/* Add n decoded blocks to `rows` rows of sums: one weight vector serves all rows, one number of a row a whole panel. As
 * blocks pass, n_lines cache lines for each are asked for from `next` on. */
BODY void panel_rows(const int rows, const int type, const float *const *x, int64_t k0, const float *v, const float *s,
                     int32_t n, const uint8_t *next, int32_t n_lines, float *y)
{
    const float *xr[TILE_ROWS_MOST];
    UNROLL for (int r = 0; r < rows; r++)
        xr[r] = x[r] + k0;
    for (int32_t b = 0; b < n; b++) {
        vec t[TILE_ROWS_MOST][PANEL_VECS];
        for (int32_t i = 0; i < n_lines; i++, next += 64)
            __builtin_prefetch(next);
        UNROLL for (int j = 0; j < NIB_CPU_BLOCK; j++)
        {
            const int at = j / NIB_CPU_OCTET * NIB_CPU_OCTET +
                           CHUNK_CHANNEL(j % NIB_CPU_OCTET / CHUNK_CHANNELS, j % CHUNK_CHANNELS);
            vec w[PANEL_VECS];
            UNROLL for (int p = 0; p < PANEL_VECS; p++)
            {
                panel_load(type, v, j, p, &w[p]);
                VEC_KEEP(w[p]);
            }
            UNROLL for (int r = 0; r < rows; r++)
            {
                vec xv = SPLAT(xr[r][at]);
                UNROLL for (int p = 0; p < PANEL_VECS; p++)
                {
                    if (j == 0)
                        t[r][p] = xv * w[p];
                    else
                        VEC_FMA(t[r][p], xv, w[p]);
                }
            }
        }
        /* Sums are memory's: there are no registers for them, and compilers would keep copies on the stack as well. */
        __asm__("" : "+r"(y));
        UNROLL for (int p = 0; p < PANEL_VECS; p++)
        {
            vec scale = *(const vec *)(const void *)(s + p * VEC_FLOATS);
            UNROLL for (int r = 0; r < rows; r++)
                sum_add(type, (vec *)(void *)(y + r * NIB_CPU_TILE_OUTS + p * VEC_FLOATS), &t[r][p], &scale);
        }
        v += 2 * OCTET_FLOATS(type);
        s += NIB_CPU_PANEL;
        UNROLL for (int r = 0; r < rows; r++)
            xr[r] += NIB_CPU_BLOCK;
    }
}

#define PANEL_ROWS(ROWS)                                                                                              \
    case ROWS: panel_rows(ROWS, type, x, k0, v, s, n, next, lines, y); break;

/* The rows of a tile in parts of nearly equal size, TILE_ROWS_MOST at most. What is decoded next is asked for evenly by all
 * parts: at once it would come faster than memory gives it. */
BODY void panel_all_rows(const int type, const struct nib_cpu_tile *t, int64_t k0, const float *v, const float *s,
                         int32_t n, const uint8_t *next, float *sums)
{
    int32_t parts = (t->n_rows + TILE_ROWS_MOST - 1) / TILE_ROWS_MOST, r = 0, left = block_bytes(type) / 64;
    for (; parts > 0; parts--) {
        const int32_t       lines = (left + parts - 1) / parts;
        int32_t             rows = (t->n_rows - r + parts - 1) / parts;
        const float *const *x = t->x + r;
        float              *y = sums + r * NIB_CPU_TILE_OUTS;
        switch (rows) {
            TILE_ROWS_CASES(PANEL_ROWS)
        }
        r += rows;
        next += n * lines * 64;
        left -= lines;
    }
}

/* Ask for the scales of n blocks: few lines, but not where the processor would expect them. */
BODY void scales_ask(const int type, const struct nib_cpu_matrix *w, int32_t out, int32_t b, int32_t n)
{
    const uint8_t *scales = block_scales_at(type, panel_scales(w, out), b);
    for (int32_t i = 0; (type == NIB_WEIGHT_NVFP4 || type == NIB_WEIGHT_MXFP4) && i < n * NIB_CPU_PANEL; i += 64)
        __builtin_prefetch(scales + i);
}

BODY void tile_many(const int type, const struct nib_cpu_tile *t)
{
    float  *v = t->work, *s = v + NIB_CPU_TILE_K * NIB_CPU_PANEL;
    int32_t n_blocks = n_blocks_of(t->w);
    memset(t->y, 0, sizeof(float) * NIB_CPU_TILE_OUTS * (size_t)t->n_rows);
    for (int32_t b = 0; b < n_blocks; b += TILE_BLOCKS)
        for (int32_t o = 0; o < t->n_outs; o += NIB_CPU_PANEL) {
            /* What is decoded next: the next panel, after the last one the next blocks of the first, or the next tile. */
            const int32_t  n = n_blocks - b < TILE_BLOCKS ? n_blocks - b : TILE_BLOCKS;
            const bool     more = o + NIB_CPU_PANEL < t->n_outs, further = b + n < n_blocks;
            const int32_t  next_out = t->out + (more ? o + NIB_CPU_PANEL : further ? 0 : t->n_outs);
            const int32_t  next_b = more ? b : further ? b + n : 0;
            const uint8_t *next = panel_codes(t->w, next_out) + (int64_t)next_b * block_bytes(type);
            panel_open(type, t->w, t->out + o, b, n, v, s);
            scales_ask(type, t->w, next_out, next_b, n);
            const void *codes = panel_codes(t->w, t->out + o) + (int64_t)b * block_bytes(type);
            panel_all_rows(type, t, (int64_t)b * NIB_CPU_BLOCK, OCTET_IN_PLACE(type) ? codes : v, s, n, next, t->y + o);
        }
}

#define STREAM_CASE(ROWS)                                                                                             \
    case ROWS: stream_rows(ROWS, type, t); break;

/* One function for each type: together they would share one frame and its spills. */
BODY void tile_of_type(const int type, const struct nib_cpu_tile *t)
{
    switch (t->n_rows) {
        STREAM_ROWS_CASES(STREAM_CASE)
    default: tile_many(type, t); break;
    }
    sums_end(type, t, t->n_rows > STREAM_ROWS);
}

OWN void tile_bf16(const struct nib_cpu_tile *t) { tile_of_type(NIB_WEIGHT_BF16, t); }
OWN void tile_fp8(const struct nib_cpu_tile *t) { tile_of_type(NIB_WEIGHT_FP8, t); }
OWN void tile_mxfp4(const struct nib_cpu_tile *t) { tile_of_type(NIB_WEIGHT_MXFP4, t); }
OWN void tile_nvfp4(const struct nib_cpu_tile *t) { tile_of_type(NIB_WEIGHT_NVFP4, t); }

static void tile_plain(const struct nib_cpu_tile *t)
{
    switch (t->w->type) {
    case NIB_WEIGHT_F32: tile_f32(t); break;
    case NIB_WEIGHT_BF16: tile_bf16(t); break;
    case NIB_WEIGHT_FP8: tile_fp8(t); break;
    case NIB_WEIGHT_MXFP4: tile_mxfp4(t); break;
    case NIB_WEIGHT_NVFP4: tile_nvfp4(t); break;
    }
}
