/* Body of a rung: products of opened rows with packed weights, by groups of 128 channels (see kernels.h).
 *
 * The rung supplies chunk_decode, group_scales, the codes_* functions and the order of channels. A group is CHUNKS
 * times CHUNK_VECS vectors; each belongs to one of CHAINS chains of multiply-adds, by CHUNK_CHAIN. Up to STREAM_ROWS
 * rows take their weights straight from registers: one pass over the stored bytes, which is what decoding a token
 * costs. More rows share a tile that is decoded to scratch. Both run the same operations for a row. */

#define GROUP_VECS  (NIB_CPU_GROUP / VEC_FLOATS)
#define CHUNK_VECS  (GROUP_VECS / CHUNKS)
#define CHAIN_VECS  (GROUP_VECS / CHAINS)
#define TILE_GROUPS (NIB_CPU_TILE_K / NIB_CPU_GROUP)

_Static_assert(CHAINS * VEC_FLOATS == NIB_CPU_LANES, "chains of vectors are the sums' lanes");

/* Add one group's channels to the sums of `rows` rows. */
BODY void group_add(const int rows, const int type, const uint8_t *codes, const uint8_t *scales,
                    const float *const *x, int64_t k, vec (*acc)[CHAINS])
{
    vec t[STREAM_ROWS][CHAINS] = {{{0}}}, s[CHAINS];
    UNROLL for (int c = 0; c < CHUNKS; c++)
    {
        vec v[CHUNK_VECS];
        chunk_decode(type, codes, c, v);
        UNROLL for (int i = 0; i < CHUNK_VECS; i++)
            UNROLL for (int r = 0; r < rows; r++)
            {
                vec xv = *(const vec_at *)(x[r] + k + (c * CHUNK_VECS + i) * VEC_FLOATS);
                VEC_FMA(t[r][CHUNK_CHAIN(c, i)], xv, v[i]);
            }
    }
    group_scales(type, scales, s);
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < CHAINS; c++)
            VEC_FMA(acc[r][c], t[r][c], s[c]);
}

BODY float fold_vecs(const vec *acc)
{
    float lane[NIB_CPU_LANES];
    memcpy(lane, acc, sizeof lane);
    return fold_lanes(lane);
}

/* A tile of `rows` rows straight from the stored bytes. */
BODY void stream_rows(const int rows, const int type, const struct nib_cpu_tile *t)
{
    const struct nib_cpu_matrix *w = t->w;
    int32_t                      n_groups = w->n_in / NIB_CPU_GROUP, rest = w->n_in % NIB_CPU_GROUP;
    for (int32_t o = 0; o < t->n_outs; o++) {
        const uint8_t *codes = row_codes(w, t->out + o), *scales = row_scales(w, t->out + o);
        vec            acc[STREAM_ROWS][CHAINS] = {{{0}}};
        for (int32_t g = 0; g < n_groups; g++) {
            UNROLL for (int i = 0; i < group_bytes(type); i += 64)
                __builtin_prefetch(codes + PREFETCH_BYTES + i);
            group_add(rows, type, codes, scales, t->x, (int64_t)g * NIB_CPU_GROUP, acc);
            codes += group_bytes(type);
            scales += group_scale_bytes(type);
        }
        if (rest) {
            struct last_group last;
            last_group_pack(type, codes, scales, rest, &last);
            group_add(rows, type, last.codes, last.scales, t->x, (int64_t)n_groups * NIB_CPU_GROUP, acc);
        }
        UNROLL for (int r = 0; r < rows; r++)
            t->y[r * NIB_CPU_TILE_OUTS + o] = fold_vecs(acc[r]) * w->global_scale;
    }
}

/* Decode groups [g0, g0 + n) of the tile's outputs to v, scales beside them. */
BODY void tile_open(const int type, const struct nib_cpu_tile *t, int32_t g0, int32_t n, float *v, float *s)
{
    const struct nib_cpu_matrix *w = t->w;
    for (int32_t o = 0; o < t->n_outs; o++)
        for (int32_t g = 0; g < n; g++) {
            const uint8_t    *codes = row_codes(w, t->out + o) + (int64_t)(g0 + g) * group_bytes(type);
            const uint8_t    *scales = row_scales(w, t->out + o) + (int64_t)(g0 + g) * group_scale_bytes(type);
            int32_t           n_left = w->n_in - (g0 + g) * NIB_CPU_GROUP;
            struct last_group last;
            if (n_left < NIB_CPU_GROUP) {
                last_group_pack(type, codes, scales, n_left, &last);
                codes = last.codes;
                scales = last.scales;
            }
            float *to = v + o * NIB_CPU_TILE_K + g * NIB_CPU_GROUP;
            UNROLL for (int c = 0; c < CHUNKS; c++)
                chunk_decode(type, codes, c, (vec *)(void *)(to + c * CHUNK_VECS * VEC_FLOATS));
            group_scales(type, scales, (vec *)(void *)(s + (o * TILE_GROUPS + g) * NIB_CPU_LANES));
        }
}

/* Add n decoded groups to rows x outs sums; acc as in dot_block. */
BODY void tile_block(const int rows, const int outs, const float *const *x, int64_t k0, const float *v, const float *s,
                     int32_t n, float *acc)
{
    for (int32_t g = 0; g < n; g++)
        for (int c = 0; c < CHAINS; c++) {
            vec t[TILE_BLOCK_ROWS][TILE_BLOCK_OUTS] = {{{0}}};
            UNROLL for (int i = 0; i < CHAIN_VECS; i++)
            {
                int64_t at = (int64_t)(g * GROUP_VECS + CHAIN_VEC(c, i)) * VEC_FLOATS;
                vec     xv[TILE_BLOCK_ROWS];
                UNROLL for (int r = 0; r < rows; r++)
                    xv[r] = *(const vec_at *)(x[r] + k0 + at);
                UNROLL for (int o = 0; o < outs; o++)
                {
                    vec wv = *(const vec *)(const void *)(v + o * NIB_CPU_TILE_K + at);
                    UNROLL for (int r = 0; r < rows; r++)
                        VEC_FMA(t[r][o], xv[r], wv);
                }
            }
            UNROLL for (int o = 0; o < outs; o++)
            {
                const float *so = s + (o * TILE_GROUPS + g) * NIB_CPU_LANES + c * VEC_FLOATS;
                vec          scale = *(const vec *)(const void *)so;
                UNROLL for (int r = 0; r < rows; r++)
                {
                    vec *sum = (vec *)(void *)(acc + (r * NIB_CPU_TILE_OUTS + o) * NIB_CPU_LANES + c * VEC_FLOATS);
                    VEC_FMA(*sum, t[r][o], scale);
                }
            }
        }
}

OWN void tile_block_all(const float *const *x, int64_t k0, const float *v, const float *s, int32_t n, float *acc)
{
    tile_block(TILE_BLOCK_ROWS, TILE_BLOCK_OUTS, x, k0, v, s, n, acc);
}

OWN void tile_block_row(const float *const *x, int64_t k0, const float *v, const float *s, int32_t n, float *acc)
{
    tile_block(1, TILE_BLOCK_OUTS, x, k0, v, s, n, acc);
}

OWN void tile_block_out(const float *const *x, int64_t k0, const float *v, const float *s, int32_t n, float *acc)
{
    tile_block(TILE_BLOCK_ROWS, 1, x, k0, v, s, n, acc);
}

OWN void tile_block_one(const float *const *x, int64_t k0, const float *v, const float *s, int32_t n, float *acc)
{
    tile_block(1, 1, x, k0, v, s, n, acc);
}

/* All rows and outputs of a tile. */
static void tile_blocks(const struct nib_cpu_tile *t, int64_t k0, const float *v, const float *s, int32_t n, float *acc)
{
    for (int32_t o = 0; o < t->n_outs;) {
        bool         outs = t->n_outs - o >= TILE_BLOCK_OUTS;
        const float *vo = v + o * NIB_CPU_TILE_K, *so = s + o * TILE_GROUPS * NIB_CPU_LANES;
        for (int32_t r = 0; r < t->n_rows;) {
            bool   rows = t->n_rows - r >= TILE_BLOCK_ROWS;
            float *sums = acc + (r * NIB_CPU_TILE_OUTS + o) * NIB_CPU_LANES;
            if (rows)
                (outs ? tile_block_all : tile_block_out)(t->x + r, k0, vo, so, n, sums);
            else
                (outs ? tile_block_row : tile_block_one)(t->x + r, k0, vo, so, n, sums);
            r += rows ? TILE_BLOCK_ROWS : 1;
        }
        o += outs ? TILE_BLOCK_OUTS : 1;
    }
}

BODY void tile_many(const int type, const struct nib_cpu_tile *t)
{
    float  *v = t->work, *s = v + NIB_CPU_TILE_OUTS * NIB_CPU_TILE_K;
    float  *acc = s + NIB_CPU_TILE_OUTS * TILE_GROUPS * NIB_CPU_LANES;
    int32_t n_groups = (t->w->n_in + NIB_CPU_GROUP - 1) / NIB_CPU_GROUP;
    memset(acc, 0, sizeof(float) * NIB_CPU_LANES * NIB_CPU_TILE_OUTS * (size_t)t->n_rows);
    for (int32_t g = 0; g < n_groups; g += TILE_GROUPS) {
        int32_t n = n_groups - g < TILE_GROUPS ? n_groups - g : TILE_GROUPS;
        tile_open(type, t, g, n, v, s);
        tile_blocks(t, (int64_t)g * NIB_CPU_GROUP, v, s, n, acc);
    }
    for (int32_t r = 0; r < t->n_rows; r++)
        for (int32_t o = 0; o < t->n_outs; o++)
            t->y[r * NIB_CPU_TILE_OUTS + o] =
                fold_lanes(acc + (r * NIB_CPU_TILE_OUTS + o) * NIB_CPU_LANES) * t->w->global_scale;
}

/* One function for each type: together they would share one frame and its spills. */
BODY void tile_of_type(const int type, const struct nib_cpu_tile *t)
{
    switch (t->n_rows) {
    case 1: stream_rows(1, type, t); break;
    case 2: stream_rows(2, type, t); break;
    case 3: stream_rows(3, type, t); break;
    case 4: stream_rows(4, type, t); break;
    default: tile_many(type, t); break;
    }
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
