/* Body of a rung: products of integer rows (NVFP4, INT8) with 4-bit weights. Unsigned codes with a bias meet four channels of a
 * row at a time and are summed as integers over a block's 16 channels (at most 16 * 24 * 127 = 48768; in two halves of 16
 * bits where a rung has no wider sums), corrected by the row's fix, then times both scales in fp32. */

/* Vectors of a block's codes: of the even and the odd channels of two octets. */
#define CODE_VECS (4 * PANEL_VECS)
/* Rows that take their codes straight from the stored bytes. */
#define CODES_STREAM_ROWS 4

/* Position of channel c in an opened row: four even channels of an octet, then four odd ones. */
BODY int32_t code_at(int32_t c) { return c / 8 * 8 + 4 * (c % 2) + c % 8 / 2; }

static void codes_open(enum nib_act_format format, const uint8_t *codes, const uint8_t *scales, int32_t n, int8_t *dst,
                       float *dst_scales, int32_t *fix)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (int32_t k = 0; k < n; k += NIB_CPU_BLOCK) {
        int32_t sum = 0;
        for (int32_t i = k; i < k + NIB_CPU_BLOCK; i++) {
            int8_t q = 0;
            if (i < n)
                q = format == NIB_ACT_INT8 ? (int8_t)codes[i] : doubled[codes[i / 2] >> 4 * (i % 2) & 15];
            dst[code_at(i)] = q;
            sum += q;
        }
        fix[k / NIB_CPU_BLOCK] = -NIB_CPU_CODE_BIAS * sum;
        dst_scales[k / NIB_CPU_BLOCK] = format == NIB_ACT_INT8 ? ((const float *)(const void *)scales)[k / 32]
                                                               : ue4m3_value(scales[k / NIB_CPU_BLOCK]);
    }
}

/* sum += one block of a row and vector p of a panel, scaled. */
BODY void block_add(const u8_vec *u, const int p, const vec *scale, const struct nib_cpu_code_row *x, int64_t b, vec *sum)
{
    code_sum all;
    vec      f;
    codes_start(&all, x->fix[b]);
    UNROLL for (int i = 0; i < 4; i++)
        codes_dot(&all, &u[i * PANEL_VECS + p], x->codes + b * NIB_CPU_BLOCK + 4 * i);
    codes_sum(&all, x->fix[b], &f);
    f *= *scale; /* exact, and no product of two scales, which may be subnormal */
    VEC_FMA(*sum, f, SPLAT(x->scales[b]));
}

/* Blocks [b0, b0 + n) of one panel for `rows` rows, from stored bytes. */
BODY void codes_stream(const int rows, const int type, const struct nib_cpu_tile *t, int32_t o)
{
    const int32_t  n_blocks = n_blocks_of(t->w);
    const uint8_t *codes = panel_codes(t->w, t->out + o), *scales = panel_scales(t->w, t->out + o);
    vec            sum[CODES_STREAM_ROWS][PANEL_VECS] = {{{0}}};
    for (int32_t b = 0; b < n_blocks; b++) {
        u8_vec u[CODE_VECS];
        vec    s[PANEL_VECS];
        UNROLL for (int i = 0; i < block_bytes(type); i += 64)
            __builtin_prefetch(codes + PREFETCH_BYTES + i);
        UNROLL for (int h = 0; h < 2; h++)
            codes_decode(codes + h * block_bytes(type) / 2, u + h * CODE_VECS / 2);
        codes_scales(type, block_scales_at(type, scales, b), s);
        UNROLL for (int p = 0; p < PANEL_VECS; p++)
            UNROLL for (int r = 0; r < rows; r++)
                block_add(u, p, &s[p], t->xi[r], b, &sum[r][p]);
        codes += block_bytes(type);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < PANEL_VECS; p++)
            *(vec *)(void *)(t->y + r * NIB_CPU_TILE_OUTS + o + p * VEC_FLOATS) = sum[r][p];
}

/* Decoded blocks of a panel. */
struct codes_block {
    u8_vec u[CODE_VECS];
    vec    s[PANEL_VECS];
};
_Static_assert(sizeof(struct codes_block) * NIB_CPU_TILE_K / NIB_CPU_BLOCK <= NIB_CPU_TILE_WORK * sizeof(float),
               "a panel's decoded codes fit into a tile's scratch");

/* The same for decoded blocks [b0, b0 + n), added to y. */
BODY void codes_rows(const int rows, const struct codes_block *block, const struct nib_cpu_code_row *const *x, int32_t b0,
                     int32_t n, float *y)
{
    vec sum[CODES_ROWS][PANEL_VECS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < PANEL_VECS; p++)
            sum[r][p] = *(vec *)(void *)(y + r * NIB_CPU_TILE_OUTS + p * VEC_FLOATS);
    for (int32_t b = 0; b < n; b++)
        UNROLL for (int p = 0; p < PANEL_VECS; p++)
            UNROLL for (int r = 0; r < rows; r++)
                block_add(block[b].u, p, &block[b].s[p], x[r], b0 + b, &sum[r][p]);
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < PANEL_VECS; p++)
            *(vec *)(void *)(y + r * NIB_CPU_TILE_OUTS + p * VEC_FLOATS) = sum[r][p];
}

#define CODES_ROWS_CASE(ROWS)                                                                                         \
    case ROWS: codes_rows(ROWS, block, t->xi + r, b0, n, y + r * NIB_CPU_TILE_OUTS); break;

/* CODES_ROWS rows at a time, whose sums stay in registers. */
BODY void codes_all_rows(const struct nib_cpu_tile *t, const struct codes_block *block, int32_t b0, int32_t n, float *y)
{
    for (int32_t r = 0; r < t->n_rows; r += CODES_ROWS)
        switch (t->n_rows - r < CODES_ROWS ? t->n_rows - r : CODES_ROWS) {
            CODES_ROWS_CASES(CODES_ROWS_CASE)
        }
}

BODY void codes_many(const int type, const struct nib_cpu_tile *t)
{
    struct codes_block *block = (struct codes_block *)(void *)t->work;
    int32_t             n_blocks = n_blocks_of(t->w), most = NIB_CPU_TILE_K / NIB_CPU_BLOCK;
    memset(t->y, 0, sizeof(float) * NIB_CPU_TILE_OUTS * (size_t)t->n_rows);
    for (int32_t o = 0; o < t->n_outs; o += NIB_CPU_PANEL) {
        const uint8_t *codes = panel_codes(t->w, t->out + o), *scales = panel_scales(t->w, t->out + o);
        for (int32_t b0 = 0; b0 < n_blocks; b0 += most) {
            int32_t n = n_blocks - b0 < most ? n_blocks - b0 : most;
            for (int32_t b = 0; b < n; b++, codes += block_bytes(type)) {
                UNROLL for (int i = 0; i < block_bytes(type); i += 64)
                    __builtin_prefetch(codes + PREFETCH_BYTES + i);
                UNROLL for (int h = 0; h < 2; h++)
                    codes_decode(codes + h * block_bytes(type) / 2, block[b].u + h * CODE_VECS / 2);
                codes_scales(type, block_scales_at(type, scales, b0 + b), block[b].s);
            }
            codes_all_rows(t, block, b0, n, t->y + o);
        }
    }
}

BODY void tile_codes_of(const int type, const struct nib_cpu_tile *t)
{
    if (t->n_rows > CODES_STREAM_ROWS)
        codes_many(type, t);
    else
        for (int32_t o = 0; o < t->n_outs; o += NIB_CPU_PANEL)
            switch (t->n_rows) {
            case 1: codes_stream(1, type, t, o); break;
            case 2: codes_stream(2, type, t, o); break;
            case 3: codes_stream(3, type, t, o); break;
            default: codes_stream(4, type, t, o); break;
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
