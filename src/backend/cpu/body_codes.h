/* Body of a rung: products of integer rows (NVFP4, INT8) with 4-bit weights. Unsigned codes with a bias meet four
 * channels of a row at a time and are summed as integers over a block's 16 channels (at most 16 * 24 * 127 = 48768; in
 * two halves of 16 bits where a rung has no wider sums), corrected by the row's fix, then times both scales in fp32. The
 * fix also holds the bits of NIB_CPU_SUM_BASE, so that a sum is an fp32 number without a conversion.
 *
 * The rung supplies codes_start, codes_dot and codes_sum; CODES_ROWS rows pass over a decoded strip at a time,
 * CODES_TOGETHER of them side by side, and up to CODES_STREAM_ROWS rows take the stored bytes; VEC_FUSED says that VEC_FMA
 * rounds once. */

/* Outputs that pass together: a panel, or two where a panel is one vector, so that a row's number serves two. */
#define STRIP_VECS   (PANEL_VECS > 1 ? PANEL_VECS : 2)
#define STRIP_PANELS (STRIP_VECS / PANEL_VECS)
#define STRIP_OUTS   (STRIP_PANELS * NIB_CPU_PANEL)

/* The codes of 16 channels in an opened block's order, and their fix. */
BODY void code_block_fill(const i8x16 *q, struct nib_cpu_code_block *out)
{
    i8x16 v = __builtin_shufflevector(*q, *q, 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    i16x8 pairs = (((i16x8)v << 8) >> 8) + ((i16x8)v >> 8);
    i32x4 fours = (((i32x4)pairs << 16) >> 16) + ((i32x4)pairs >> 16);
    memcpy(out->codes, &v, sizeof v);
    out->fix = (int32_t)bits_of(NIB_CPU_SUM_BASE) - NIB_CPU_CODE_BIAS * (fours[0] + fours[1] + fours[2] + fours[3]);
}

static void codes_open(enum nib_act_format format, const uint8_t *codes, const uint8_t *scales, int32_t n,
                       struct nib_cpu_code_block *out)
{
    for (int32_t k = 0; k < n; k += NIB_CPU_BLOCK, out++) {
        i8x16 q = {0};
        if (format == NIB_ACT_INT8) {
            memcpy(&q, codes + k, n - k < NIB_CPU_BLOCK ? (size_t)(n - k) : sizeof q);
            memcpy(&out->scale, scales + k / 32 * 4, sizeof out->scale);
        } else {
            e2m1_doubled(codes + k / 2, n - k, &q);
            out->scale = ue4m3_value(scales[k / NIB_CPU_BLOCK]);
        }
        code_block_fill(&q, out);
    }
}

/* The codes of one block of a strip, four channels of each output together, and its scales. */
struct codes_block {
    u8_vec u[4][STRIP_VECS];
    vec    s[STRIP_VECS];
};
_Static_assert(sizeof(struct codes_block) * NIB_CPU_TILE_K / NIB_CPU_BLOCK <= NIB_CPU_TILE_WORK * sizeof(float),
               "a strip's decoded codes fit into a tile's scratch");

/* Where a strip's panels are. A last panel without a neighbour is taken twice: what comes of the second one is nobody's. */
struct strip {
    const uint8_t *codes[STRIP_PANELS], *scales[STRIP_PANELS];
};

BODY void strip_at(const struct nib_cpu_tile *t, int32_t o, struct strip *at)
{
    UNROLL for (int q = 0; q < STRIP_PANELS; q++)
    {
        const bool    is_alone = o < t->n_outs && o + q * NIB_CPU_PANEL >= t->n_outs;
        const int32_t out = t->out + o + (is_alone ? 0 : q * NIB_CPU_PANEL);
        at->codes[q] = panel_codes(t->w, out);
        at->scales[q] = panel_scales(t->w, out);
    }
}

BODY void codes_block_open(const int type, const struct strip *at, int32_t b, struct codes_block *out)
{
    UNROLL for (int q = 0; q < STRIP_PANELS; q++)
    {
        UNROLL for (int h = 0; h < 2; h++)
        {
            u8_vec u[2 * PANEL_VECS];
            codes_decode(at->codes[q] + (int64_t)b * block_bytes(type) + h * block_bytes(type) / 2, u);
            UNROLL for (int i = 0; i < 2 * PANEL_VECS; i++)
                out->u[2 * h + i / PANEL_VECS][q * PANEL_VECS + i % PANEL_VECS] = u[i];
        }
        codes_scales(type, block_scales_at(type, at->scales[q], b), out->s + q * PANEL_VECS);
    }
}

/* A block's sum with NIB_CPU_SUM_BASE added, times the weights' scales: exact, and no product of two scales, which may be
 * subnormal. NVFP4's are at least 2^-9 and at most 480, so one multiply-add takes the base away as it multiplies. */
BODY void sum_scaled(const int type, vec *f, const vec *s)
{
#ifdef VEC_FUSED
    if (type == NIB_WEIGHT_NVFP4) {
        vec base = *s * -NIB_CPU_SUM_BASE;
        VEC_FMA(base, *f, *s);
        *f = base;
        return;
    }
#endif
    (void)type;
    *f = (*f - NIB_CPU_SUM_BASE) * *s;
}

/* Sums of `rows` rows += block w times block b of each, in equal parts of at most CODES_TOGETHER rows: four channels of the strip are in
 * registers for all of these, and four of a row for the whole strip. Loads, not products, are what there is too much
 * of. */
BODY void block_add(const int rows, const int type, const struct codes_block *w,
                    const struct nib_cpu_code_block *const *x, int64_t b, vec (*sum)[STRIP_VECS])
{
    const int parts = (rows + CODES_TOGETHER - 1) / CODES_TOGETHER, most = (rows + parts - 1) / parts;
    UNROLL for (int r0 = 0; r0 < rows; r0 += most)
    {
        const int n = rows - r0 < most ? rows - r0 : most;
        code_sum  all[CODES_TOGETHER][STRIP_VECS];
        UNROLL for (int i = 0; i < 4; i++)
        {
            u8_vec u[STRIP_VECS];
            UNROLL for (int p = 0; p < STRIP_VECS; p++)
            {
                u[p] = w->u[i][p];
                VEC_KEEP(u[p]);
            }
            UNROLL for (int r = 0; r < n; r++)
                UNROLL for (int p = 0; p < STRIP_VECS; p++)
                {
                    if (i == 0)
                        codes_start(&all[r][p], x[r0 + r][b].fix);
                    codes_dot(&all[r][p], &u[p], x[r0 + r][b].codes + 4 * i);
                    VEC_KEEP(all[r][p]);
                }
        }
        UNROLL for (int r = 0; r < n; r++)
            UNROLL for (int p = 0; p < STRIP_VECS; p++)
            {
                vec f;
                codes_sum(&all[r][p], x[r0 + r][b].fix, &f);
                sum_scaled(type, &f, &w->s[p]);
                VEC_FMA(sum[r0 + r][p], f, SPLAT(x[r0 + r][b].scale));
                VEC_KEEP(sum[r0 + r][p]);
            }
    }
}

/* Few rows of a strip, from the stored bytes. */
BODY void codes_stream(const int rows, const int type, const struct nib_cpu_tile *t, int32_t o)
{
    const int32_t                    n_blocks = n_blocks_of(t->w);
    const struct nib_cpu_code_block *x[CODES_STREAM_ROWS];
    vec                              sum[CODES_STREAM_ROWS][STRIP_VECS];
    struct strip                     at;
    strip_at(t, o, &at);
    UNROLL for (int r = 0; r < rows; r++)
    {
        x[r] = t->xi[r]->block;
        UNROLL for (int p = 0; p < STRIP_VECS; p++)
            sum[r][p] = (vec){0};
    }
    for (int32_t b = 0; b < n_blocks; b++) {
        struct codes_block w;
        UNROLL for (int q = 0; q < STRIP_PANELS; q++)
        {
            UNROLL for (int i = 0; i < block_bytes(type); i += 64)
                __builtin_prefetch(codes_ahead(type, at.codes[q], b, n_blocks, STRIP_PANELS) + i);
            if (b % 4 == 0)
                __builtin_prefetch(scales_ahead(type, at.scales[q], b, n_blocks, STRIP_PANELS));
        }
        codes_block_open(type, &at, b, &w);
        block_add(rows, type, &w, x, b, sum);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < STRIP_VECS; p++)
            *(vec *)(void *)(t->y + r * NIB_CPU_TILE_OUTS + o + p * VEC_FLOATS) = sum[r][p];
}

/* Cache lines of memory that are asked for while rows pass: `lines` for each block, from `next` on. */
struct ahead {
    const uint8_t *next;
    int32_t        lines;
};

#ifndef CODES_ASK_ROWS
/* Whether rows are asked for ahead of time: pieces of some hundred bytes are too short for a processor to foresee. */
#define CODES_ASK_ROWS true
#endif

/* n decoded blocks from b0 on for `rows` rows, added to y. What lies `further` blocks on in the rows is asked for. */
BODY void codes_rows(const int rows, const int type, const struct codes_block *w,
                     const struct nib_cpu_code_row *const *row, int32_t b0, int32_t n, int32_t further,
                     struct ahead ahead, float *y)
{
    const struct nib_cpu_code_block *x[CODES_ROWS];
    vec                              sum[CODES_ROWS][STRIP_VECS];
    UNROLL for (int r = 0; r < rows; r++)
    {
        x[r] = row[r]->block + b0;
        UNROLL for (int p = 0; p < STRIP_VECS; p++)
            sum[r][p] = *(vec *)(void *)(y + r * NIB_CPU_TILE_OUTS + p * VEC_FLOATS);
    }
    for (int32_t b = 0; b < n; b++) {
        for (int32_t i = 0; i < ahead.lines; i++, ahead.next += 64)
            __builtin_prefetch(ahead.next);
        UNROLL for (int r = 0; CODES_ASK_ROWS && r < rows; r++)
            __builtin_prefetch(&x[r][b + further]);
        block_add(rows, type, &w[b], x, b, sum);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < STRIP_VECS; p++)
            *(vec *)(void *)(y + r * NIB_CPU_TILE_OUTS + p * VEC_FLOATS) = sum[r][p];
}

#define CODES_ROWS_CASE(ROWS)                                                                                         \
    case ROWS: codes_rows(ROWS, type, w, t->xi + r, b0, n, further, ahead, y + r * NIB_CPU_TILE_OUTS); break;

/* The rows of a tile in parts of nearly equal size, CODES_ROWS at most. The strip that is decoded next is asked for by
 * all parts evenly, its codes panel after panel; its few lines of scales come first. */
BODY void codes_all_rows(const int type, const struct nib_cpu_tile *t, const struct codes_block *w, int32_t b0,
                         int32_t n, int32_t further, const struct strip *next, int32_t next_b0, float *y)
{
    int32_t parts = (t->n_rows + CODES_ROWS - 1) / CODES_ROWS, r = 0, line = 0;
    UNROLL for (int q = 0; q < STRIP_PANELS; q++)
        for (int32_t i = 0; i < n * NIB_CPU_PANEL; i += 64)
            __builtin_prefetch(block_scales_at(type, next->scales[q], next_b0) + i);
    for (; parts > 0; parts--) {
        const int32_t rows = (t->n_rows - r + parts - 1) / parts;
        /* Lines of a block; a part keeps to one panel's. */
        const int32_t per_panel = block_bytes(type) / 64, left = STRIP_PANELS * per_panel - line;
        const int32_t q = line / per_panel < STRIP_PANELS ? line / per_panel : 0;
        const int32_t most = per_panel - line % per_panel, share = (left + parts - 1) / parts;
        struct ahead  ahead = {next->codes[q] + (int64_t)next_b0 * block_bytes(type) + n * (line % per_panel) * 64,
                               share < most ? share : most};
        line += ahead.lines;
        switch (rows) {
            CODES_ROWS_CASES(CODES_ROWS_CASE)
        }
        r += rows;
    }
}

/* More rows: 256 channels of all strips in turn, for which the rows' part stays in the L1 cache. */
BODY void codes_many(const int type, const struct nib_cpu_tile *t)
{
    struct codes_block *w = (struct codes_block *)(void *)t->work;
    int32_t             n_blocks = n_blocks_of(t->w), most = NIB_CPU_TILE_K / NIB_CPU_BLOCK;
    memset(t->y, 0, sizeof(float) * NIB_CPU_TILE_OUTS * (size_t)t->n_rows);
    for (int32_t b0 = 0; b0 < n_blocks; b0 += most)
        for (int32_t o = 0; o < t->n_outs; o += STRIP_OUTS) {
            const int32_t n = n_blocks - b0 < most ? n_blocks - b0 : most;
            const bool    last = o + STRIP_OUTS >= t->n_outs;
            struct strip  at, next;
            strip_at(t, o, &at);
            strip_at(t, !last ? o + STRIP_OUTS : b0 + n < n_blocks ? 0 : t->n_outs, &next);
            for (int32_t b = 0; b < n; b++)
                codes_block_open(type, &at, b0 + b, &w[b]);
            const int32_t next_b0 = !last ? b0 : b0 + n < n_blocks ? b0 + n : 0;
            codes_all_rows(type, t, w, b0, n, last ? n : 0, &next, next_b0, t->y + o);
        }
}

#define CODES_STREAM_CASE(ROWS)                                                                                       \
    case ROWS: codes_stream(ROWS, type, t, o); break;

BODY void tile_codes_of(const int type, const struct nib_cpu_tile *t)
{
    if (t->n_rows > CODES_STREAM_ROWS)
        codes_many(type, t);
    else
        for (int32_t o = 0; o < t->n_outs; o += STRIP_OUTS)
            switch (t->n_rows) {
                CODES_STREAM_CASES(CODES_STREAM_CASE)
            }
    for (int32_t r = 0; r < t->n_rows; r++) {
        const vec scale = SPLAT(t->w->global_scale), row_scale = SPLAT(t->xi[r]->row_scale);
        for (int32_t o = 0; o < t->n_outs; o += VEC_FLOATS) {
            vec *y = (vec *)(void *)(t->y + r * NIB_CPU_TILE_OUTS + o);
            *y = *y * scale * row_scale;
        }
    }
}

OWN void tile_codes_mxfp4(const struct nib_cpu_tile *t) { tile_codes_of(NIB_WEIGHT_MXFP4, t); }
OWN void tile_codes_nvfp4(const struct nib_cpu_tile *t) { tile_codes_of(NIB_WEIGHT_NVFP4, t); }

static void tile_codes(const struct nib_cpu_tile *t)
{
    (t->w->type == NIB_WEIGHT_MXFP4 ? tile_codes_mxfp4 : tile_codes_nvfp4)(t);
}
