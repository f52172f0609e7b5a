/* Body of a rung: products of integer rows (NVFP4, INT8) with 4-bit weights. Unsigned codes with a bias meet four channels
 * of a row at a time and are summed as integers over a block's 16 channels (at most 16 * 24 * 127 = 48768; in two halves of 16
 * bits where a rung has no wider sums), corrected by the row's fix, then times both scales in fp32. */

/* Vectors of a block's codes: of the even and the odd channels of two octets. */
#define CODE_VECS (4 * PANEL_VECS)

/* The codes of 16 channels in an opened block's order, and their fix. */
BODY void code_block_fill(const i8x16 *q, struct nib_cpu_code_block *out)
{
    i8x16 v = __builtin_shufflevector(*q, *q, 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    i16x8 pairs = (((i16x8)v << 8) >> 8) + ((i16x8)v >> 8);
    i32x4 fours = (((i32x4)pairs << 16) >> 16) + ((i32x4)pairs >> 16);
    memcpy(out->codes, &v, sizeof v);
    out->fix = -NIB_CPU_CODE_BIAS * (fours[0] + fours[1] + fours[2] + fours[3]);
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

/* The codes of one block of a panel, and its scales. */
struct codes_block {
    u8_vec u[CODE_VECS];
    vec    s[PANEL_VECS];
};
_Static_assert(sizeof(struct codes_block) * NIB_CPU_TILE_K / NIB_CPU_BLOCK <= NIB_CPU_TILE_WORK * sizeof(float),
               "a panel's decoded codes fit into a tile's scratch");

BODY void codes_block_open(const int type, const uint8_t *codes, const uint8_t *scales, int32_t b,
                           struct codes_block *out)
{
    UNROLL for (int i = 0; i < block_bytes(type); i += 64)
        __builtin_prefetch(codes + PREFETCH_BYTES + i);
    UNROLL for (int h = 0; h < 2; h++)
        codes_decode(codes + h * block_bytes(type) / 2, out->u + h * CODE_VECS / 2);
    codes_scales(type, block_scales_at(type, scales, b), out->s);
}

/* Sums of `rows` rows += block w times block b of each. Four channels of the panel at a time are kept in registers for
 * all rows, and four of a row for the whole panel: loads, not products, are what there is too much of. */
BODY void block_add(const int rows, const struct codes_block *w, const struct nib_cpu_code_block *const *x, int64_t b,
                    vec (*sum)[PANEL_VECS])
{
    code_sum all[CODES_ROWS][PANEL_VECS];
    UNROLL for (int i = 0; i < 4; i++)
    {
        u8_vec u[PANEL_VECS];
        UNROLL for (int p = 0; p < PANEL_VECS; p++)
        {
            u[p] = w->u[i * PANEL_VECS + p];
            VEC_KEEP(u[p]);
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int p = 0; p < PANEL_VECS; p++)
            {
                if (i == 0)
                    codes_start(&all[r][p], x[r][b].fix);
                codes_dot(&all[r][p], &u[p], x[r][b].codes + 4 * i);
                VEC_KEEP(all[r][p]);
            }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < PANEL_VECS; p++)
        {
            vec f;
            codes_sum(&all[r][p], x[r][b].fix, &f);
            f *= w->s[p]; /* exact, and no product of two scales, which may be subnormal */
            VEC_FMA(sum[r][p], f, SPLAT(x[r][b].scale));
            VEC_KEEP(sum[r][p]);
        }
}

/* One row of a panel, from the stored bytes. */
BODY void codes_stream(const int type, const struct nib_cpu_tile *t, int32_t o)
{
    const int32_t  n_blocks = n_blocks_of(t->w);
    const uint8_t *codes = panel_codes(t->w, t->out + o), *scales = panel_scales(t->w, t->out + o);
    vec            sum[1][PANEL_VECS] = {{{0}}};
    for (int32_t b = 0; b < n_blocks; b++) {
        struct codes_block w;
        codes_block_open(type, codes, scales, b, &w);
        block_add(1, &w, &t->xi[0]->block, b, sum);
        codes += block_bytes(type);
    }
    UNROLL for (int p = 0; p < PANEL_VECS; p++)
        *(vec *)(void *)(t->y + o + p * VEC_FLOATS) = sum[0][p];
}

/* n decoded blocks from b0 on for `rows` rows, added to y. What lies `ahead` blocks further in the rows is asked for: pieces
 * of some hundred bytes are too short for the processor to foresee. */
BODY void codes_rows(const int rows, const struct codes_block *w, const struct nib_cpu_code_row *const *row, int32_t b0,
                     int32_t n, int32_t ahead, float *y)
{
    const struct nib_cpu_code_block *x[CODES_ROWS];
    vec                              sum[CODES_ROWS][PANEL_VECS];
    UNROLL for (int r = 0; r < rows; r++)
    {
        x[r] = row[r]->block + b0;
        UNROLL for (int p = 0; p < PANEL_VECS; p++)
            sum[r][p] = *(vec *)(void *)(y + r * NIB_CPU_TILE_OUTS + p * VEC_FLOATS);
    }
    for (int32_t b = 0; b < n; b++) {
        UNROLL for (int r = 0; r < rows; r++)
            __builtin_prefetch(&x[r][b + ahead]);
        block_add(rows, &w[b], x, b, sum);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < PANEL_VECS; p++)
            *(vec *)(void *)(y + r * NIB_CPU_TILE_OUTS + p * VEC_FLOATS) = sum[r][p];
}

#define CODES_ROWS_CASE(ROWS)                                                                                         \
    case ROWS: codes_rows(ROWS, w, t->xi + r, b0, n, ahead, y + r * NIB_CPU_TILE_OUTS); break;

/* CODES_ROWS rows at a time. */
BODY void codes_all_rows(const struct nib_cpu_tile *t, const struct codes_block *w, int32_t b0, int32_t n, int32_t ahead,
                         float *y)
{
    for (int32_t r = 0; r < t->n_rows; r += CODES_ROWS)
        switch (t->n_rows - r < CODES_ROWS ? t->n_rows - r : CODES_ROWS) {
            CODES_ROWS_CASES(CODES_ROWS_CASE)
        }
}

/* More rows: 256 channels of both panels in turn, for which the rows' part stays in the L1 cache. */
BODY void codes_many(const int type, const struct nib_cpu_tile *t)
{
    struct codes_block *w = (struct codes_block *)(void *)t->work;
    int32_t             n_blocks = n_blocks_of(t->w), most = NIB_CPU_TILE_K / NIB_CPU_BLOCK;
    memset(t->y, 0, sizeof(float) * NIB_CPU_TILE_OUTS * (size_t)t->n_rows);
    for (int32_t b0 = 0; b0 < n_blocks; b0 += most)
        for (int32_t o = 0; o < t->n_outs; o += NIB_CPU_PANEL) {
            const uint8_t *codes = panel_codes(t->w, t->out + o) + (int64_t)b0 * block_bytes(type);
            const uint8_t *scales = panel_scales(t->w, t->out + o);
            int32_t        n = n_blocks - b0 < most ? n_blocks - b0 : most;
            for (int32_t b = 0; b < n; b++, codes += block_bytes(type))
                codes_block_open(type, codes, scales, b0 + b, &w[b]);
            codes_all_rows(t, w, b0, n, o + NIB_CPU_PANEL >= t->n_outs ? n : 0, t->y + o);
        }
}

BODY void tile_codes_of(const int type, const struct nib_cpu_tile *t)
{
    if (t->n_rows > 1)
        codes_many(type, t);
    else
        for (int32_t o = 0; o < t->n_outs; o += NIB_CPU_PANEL)
            codes_stream(type, t, o);
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
