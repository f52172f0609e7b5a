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

/* Sums of a tile: 16 lanes for each row and output. */
BODY float *sums_of(float *acc, int32_t r, int32_t o) { return acc + (r * NIB_CPU_TILE_OUTS + o) * NIB_CPU_LANES; }

/* y has room for all outputs of a tile, and so do the sums. */
static void sums_finish(const struct nib_cpu_tile *t, const float *acc)
{
    const f32x4 scale = (f32x4){0} + t->w->global_scale;
    for (int32_t r = 0; r < t->n_rows; r++)
        for (int32_t o = 0; o < t->n_outs; o += 4) {
            f32x4_at *y = (f32x4_at *)(t->y + r * NIB_CPU_TILE_OUTS + o);
            fold4(acc + (r * NIB_CPU_TILE_OUTS + o) * NIB_CPU_LANES, (float *)y);
            *y *= scale;
        }
}

/* ---- Few rows: straight from the stored bytes ---- */

/* Channels of SPLIT_ROWS rows or more that are passed, of all together, before the next output: 16 KiB of them stay in the L1
 * cache. */
#define STREAM_GROUPS (4096 / NIB_CPU_GROUP)

/* Add the channels of chains [c0, c0 + n_c) of one group to sums [rows][n_c]. */
BODY void group_add(const int rows, const int type, const int c0, const int n_c, const uint8_t *codes,
                    const uint8_t *scales, const float *const *x, int64_t k, vec (*acc)[CHAINS])
{
    vec t[STREAM_ROWS][CHAINS] = {{{0}}}, s[CHAINS];
    UNROLL for (int c = 0; c < CHUNKS; c++)
    {
        vec v[CHUNK_VECS];
        chunk_decode(type, codes, c, v);
        UNROLL for (int i = 0; i < CHUNK_VECS; i++)
        {
            const int chain = CHUNK_CHAIN(c, i) - c0;
            if (chain < 0 || chain >= n_c)
                continue;
            UNROLL for (int r = 0; r < rows; r++)
            {
                vec xv = *(const vec_at *)(x[r] + k + (c * CHUNK_VECS + i) * VEC_FLOATS);
                VEC_FMA(t[r][chain], xv, v[i]);
            }
        }
    }
    group_scales(type, scales, s);
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < n_c; c++)
            VEC_FMA(acc[r][c], t[r][c], s[c0 + c]);
}

/* Chains [c0, c0 + n_c) of groups [g, end) of one output; the last may be a part of one. */
BODY void stream_chains(const int rows, const int type, const int c0, const int n_c, const struct nib_cpu_tile *t,
                        int32_t o, int32_t g, int32_t end, ptrdiff_t ahead, float *sums)
{
    const struct nib_cpu_matrix *w = t->w;
    const uint8_t *codes = row_codes(w, t->out + o) + (int64_t)g * group_bytes(type);
    const uint8_t *scales = row_scales(w, t->out + o) + (int64_t)g * group_scale_bytes(type);
    int32_t        n_full = w->n_in / NIB_CPU_GROUP;
    vec            acc[STREAM_ROWS][CHAINS];
    const float   *x[STREAM_ROWS];
    UNROLL for (int r = 0; r < rows; r++)
    {
        x[r] = t->x[r];
        UNROLL for (int c = 0; c < n_c; c++)
            acc[r][c] = (vec){0};
        if (g > 0)
            UNROLL for (int c = 0; c < n_c; c++)
                acc[r][c] = *(vec *)(void *)(sums_of(sums, r, o) + (c0 + c) * VEC_FLOATS);
    }
    for (; g < end && g < n_full; g++) {
        if (c0 == 0)
            UNROLL for (int i = 0; i < group_bytes(type); i += 64)
                __builtin_prefetch(codes + ahead + i);
        group_add(rows, type, c0, n_c, codes, scales, x, (int64_t)g * NIB_CPU_GROUP, acc);
        codes += group_bytes(type);
        scales += group_scale_bytes(type);
    }
    if (g < end) {
        struct last_group last;
        last_group_pack(type, codes, scales, w->n_in % NIB_CPU_GROUP, last.codes, last.scales);
        group_add(rows, type, c0, n_c, last.codes, last.scales, x, (int64_t)g * NIB_CPU_GROUP, acc);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < n_c; c++)
            *(vec *)(void *)(sums_of(sums, r, o) + (c0 + c) * VEC_FLOATS) = acc[r][c];
}

/* Sums of many rows leave no registers for all chains: then one at a time, and bytes are decoded for each. */
BODY void stream_output(const int rows, const int type, const struct nib_cpu_tile *t, int32_t o, int32_t g, int32_t end,
                        ptrdiff_t ahead, float *sums)
{
    if (rows < SPLIT_ROWS)
        stream_chains(rows, type, 0, CHAINS, t, o, g, end, ahead, sums);
    else
        UNROLL for (int c = 0; c < CHAINS; c++)
            stream_chains(rows, type, c, 1, t, o, g, end, ahead, sums);
}

/* From groups [g, g + most) of output o to the bytes that are read PREFETCH_BYTES later: further on in a row that is read
 * whole, else the groups of a later output, or of the first ones' next groups, or of the next tile's. */
BODY ptrdiff_t stream_ahead(const int type, const struct nib_cpu_tile *t, int32_t o, int32_t g, int32_t most,
                            int32_t n_groups)
{
    int32_t   bytes = most * group_bytes(type), n = (PREFETCH_BYTES + bytes - 1) / bytes;
    ptrdiff_t stride = t->w->codes_stride;
    if (most >= n_groups)
        return PREFETCH_BYTES;
    if (o + n < t->n_outs)
        return n * stride;
    if (g + most < n_groups)
        return (n - t->n_outs) * stride + bytes;
    return n * stride - (ptrdiff_t)g * group_bytes(type);
}

BODY void stream_rows(const int rows, const int type, const struct nib_cpu_tile *t)
{
    int32_t n_groups = (t->w->n_in + NIB_CPU_GROUP - 1) / NIB_CPU_GROUP;
    int32_t most = rows < SPLIT_ROWS ? n_groups : STREAM_GROUPS / rows;
    for (int32_t g = 0; g < n_groups; g += most)
        for (int32_t o = 0; o < t->n_outs; o++)
            stream_output(rows, type, t, o, g, g + most < n_groups ? g + most : n_groups,
                          stream_ahead(type, t, o, g, most, n_groups), t->work);
    sums_finish(t, t->work);
}

/* ---- Many rows: a tile decoded to scratch ---- */

/* Decoded vectors of the tile's outputs lie side by side, so that a block of outputs reads them in order: vector i of
 * group g and output o, and the vector of its scales for chain c. */
BODY float *opened_at(float *v, int32_t g, int32_t i, int32_t o)
{
    return v + ((g * GROUP_VECS + i) * NIB_CPU_TILE_OUTS + o) * VEC_FLOATS;
}
BODY float *scale_at(float *s, int32_t g, int32_t c, int32_t o)
{
    return s + ((g * CHAINS + c) * NIB_CPU_TILE_OUTS + o) * VEC_FLOATS;
}

/* Decode groups [g0, g0 + n) of the tile's outputs to v, scales beside them. */
BODY void tile_open(const int type, const struct nib_cpu_tile *t, int32_t g0, int32_t n, float *v, float *s)
{
    const struct nib_cpu_matrix *w = t->w;
    ptrdiff_t ahead = n * group_bytes(type), scales_ahead = n * group_scale_bytes(type);
    if ((g0 + n) * NIB_CPU_GROUP >= w->n_in) {
        ahead = t->n_outs * w->codes_stride - (ptrdiff_t)g0 * group_bytes(type);
        scales_ahead = t->n_outs * w->scales_stride - (ptrdiff_t)g0 * group_scale_bytes(type);
    }
    for (int32_t o = 0; o < t->n_outs; o++)
        for (int32_t g = 0; g < n; g++) {
            const uint8_t    *codes = row_codes(w, t->out + o) + (int64_t)(g0 + g) * group_bytes(type);
            const uint8_t    *scales = row_scales(w, t->out + o) + (int64_t)(g0 + g) * group_scale_bytes(type);
            int32_t           n_left = w->n_in - (g0 + g) * NIB_CPU_GROUP;
            struct last_group last;
            /* The same groups of the next turn: these outputs' next groups, or the next tile's first ones. */
            UNROLL for (int i = 0; i < group_bytes(type); i += 64)
                __builtin_prefetch(codes + ahead + i);
            if (g == 0)
                __builtin_prefetch(scales + scales_ahead);
            if (n_left < NIB_CPU_GROUP) {
                last_group_pack(type, codes, scales, n_left, last.codes, last.scales);
                codes = last.codes;
                scales = last.scales;
            }
            UNROLL for (int c = 0; c < CHUNKS; c++)
            {
                vec d[CHUNK_VECS];
                chunk_decode(type, codes, c, d);
                UNROLL for (int i = 0; i < CHUNK_VECS; i++)
                    *(vec *)(void *)opened_at(v, g, c * CHUNK_VECS + i, o) = d[i];
            }
            vec sc[CHAINS];
            group_scales(type, scales, sc);
            UNROLL for (int c = 0; c < CHAINS; c++)
                *(vec *)(void *)scale_at(s, g, c, o) = sc[c];
        }
}

/* Add n decoded groups to rows x outs sums from output o on. */
BODY void tile_block(const int rows, const int outs, const float *const *x, int64_t k0, float *v, float *s, int32_t n,
                     int32_t o, float *acc)
{
    const bool first = k0 == 0;
    UNROLL for (int c = 0; c < CHAINS; c++)
    {
        vec          sum[4][NIB_CPU_TILE_OUTS];
        const float *wv = opened_at(v, 0, CHAIN_VEC(c, 0), o), *sv = scale_at(s, 0, c, o), *xr[4];
        float       *sums = sums_of(acc, 0, o) + c * VEC_FLOATS;
        UNROLL for (int r = 0; r < rows; r++)
            xr[r] = x[r] + k0 + CHAIN_VEC(c, 0) * VEC_FLOATS;
        UNROLL for (int j = 0; j < outs; j++)
            UNROLL for (int r = 0; r < rows; r++)
            {
                sum[r][j] = (vec){0};
                if (!first)
                    sum[r][j] = *(vec *)(void *)sums_of(sums, r, j);
            }
        for (int32_t g = 0; g < n; g++) {
            vec t[4][NIB_CPU_TILE_OUTS] = {{{0}}};
            /* One pointer each: compilers would rather have a dozen, and spill them. */
            VEC_OPAQUE(wv);
            UNROLL for (int i = 0; i < CHAIN_VECS; i++)
            {
                const int at = CHAIN_VEC(0, i) - CHAIN_VEC(0, 0);
                vec       xv[4];
                UNROLL for (int r = 0; r < rows; r++)
                {
                    xv[r] = *(const vec_at *)(xr[r] + at * VEC_FLOATS);
                    VEC_KEEP(xv[r]);
                }
                UNROLL for (int j = 0; j < outs; j++)
                {
                    vec w = *(const vec *)(const void *)(wv + (at * NIB_CPU_TILE_OUTS + j) * VEC_FLOATS);
                    VEC_KEEP(w);
                    UNROLL for (int r = 0; r < rows; r++)
                        VEC_FMA(t[r][j], xv[r], w);
                }
            }
            UNROLL for (int j = 0; j < outs; j++)
            {
                vec scale = *(const vec *)(const void *)(sv + j * VEC_FLOATS);
                UNROLL for (int r = 0; r < rows; r++)
                    VEC_FMA(sum[r][j], t[r][j], scale);
            }
            wv += GROUP_VECS * NIB_CPU_TILE_OUTS * VEC_FLOATS;
            sv += CHAINS * NIB_CPU_TILE_OUTS * VEC_FLOATS;
            UNROLL for (int r = 0; r < rows; r++)
                xr[r] += NIB_CPU_GROUP;
        }
        UNROLL for (int j = 0; j < outs; j++)
            UNROLL for (int r = 0; r < rows; r++)
                *(vec *)(void *)sums_of(sums, r, j) = sum[r][j];
    }
}

#define TILE_BLOCK(ROWS, OUTS)                                                                                        \
    OWN void tile_block_##ROWS(const float *const *x, int64_t k0, float *v, float *s, int32_t n, int32_t n_outs,      \
                               float *acc)                                                                            \
    {                                                                                                                 \
        for (int32_t o = 0; o < n_outs; o += OUTS)                                                                    \
            tile_block(ROWS, OUTS, x, k0, v, s, n, o, acc);                                                           \
    }
TILE_BLOCK(3, TILE_OUTS_3)
TILE_BLOCK(2, TILE_OUTS_2)

/* All rows and outputs of a tile. */
static void tile_blocks(const struct nib_cpu_tile *t, int64_t k0, float *v, float *s, int32_t n, float *acc)
{
    int32_t r = 0;
    for (; t->n_rows - r >= 4 || t->n_rows - r == 2; r += 2)
        tile_block_2(t->x + r, k0, v, s, n, t->n_outs, sums_of(acc, r, 0));
    if (r < t->n_rows)
        tile_block_3(t->x + r, k0, v, s, n, t->n_outs, sums_of(acc, r, 0));
}

BODY void tile_many(const int type, const struct nib_cpu_tile *t)
{
    float  *v = t->work, *s = v + NIB_CPU_TILE_OUTS * NIB_CPU_TILE_K;
    float  *acc = s + NIB_CPU_TILE_OUTS * TILE_GROUPS * NIB_CPU_LANES;
    int32_t n_groups = (t->w->n_in + NIB_CPU_GROUP - 1) / NIB_CPU_GROUP;
    if (t->n_outs < NIB_CPU_TILE_OUTS) /* blocks of outputs may reach beyond the last */
        memset(v, 0, sizeof(float) * NIB_CPU_TILE_OUTS * (NIB_CPU_TILE_K + TILE_GROUPS * NIB_CPU_LANES));
    for (int32_t g = 0; g < n_groups; g += TILE_GROUPS) {
        int32_t n = n_groups - g < TILE_GROUPS ? n_groups - g : TILE_GROUPS;
        tile_open(type, t, g, n, v, s);
        tile_blocks(t, (int64_t)g * NIB_CPU_GROUP, v, s, n, acc);
    }
    sums_finish(t, acc);
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
