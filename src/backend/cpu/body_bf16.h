/* Body of the AVX-512 BF16 rung: products of rows that are exact in bf16 with packed weights.
 *
 * A 32-bit lane is two channels of an output, and vdpbf16ps is two multiply-adds for it: the odd channel, then the even
 * one, each rounded. So a block of 16 channels has the chain of the AVX-512 rung but for the order within pairs, and its
 * bound. The instruction takes subnormal factors and sums for 0, and makes its subnormal results 0. All products of a row
 * and a panel are multiples of the last places of the smallest factors, and so is every partial sum, rounded or not: where
 * that is 2^-126 or more nothing subnormal can come up. Other rows take fp32 multiply-adds (exact_rows), which costs them
 * alone. Which of both a row takes depends on its own values and the panel's, and any number of rows takes this
 * instruction, so a row's bits do not depend on its neighbours, whatever a processor does between both roundings. */

#define OCTET_PAIRS (NIB_CPU_OCTET / 2)
#define BLOCK_PAIRS (NIB_CPU_BLOCK / 2)
#define PAIR_BLOCKS (NIB_CPU_TILE_K / NIB_CPU_BLOCK)
#define EXACT_ROWS  4

/* sum += the two channels of each output times the row's two. */
BODY void pair_add(vec *sum, const ivec *w, const uint16_t *x)
{
    int32_t two;
    memcpy(&two, x, sizeof two);
    *sum = (vec)_mm512_dpbf16_ps((__m512)*sum, (__m512bh)*w, (__m512bh)_mm512_set1_epi32(two));
}

/* E2M1 as bf16 by code, twice: a fifth bit does not count. */
static const uint16_t e2m1_bf16[32] = {
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
    0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
    0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

/* Channels 2 j and 2 j + 1 of a packed octet's outputs: v[j]. */
BODY void octet_pairs(const int type, const uint8_t *codes, ivec *v)
{
    if (type == NIB_WEIGHT_BF16) {
        UNROLL for (int j = 0; j < OCTET_PAIRS; j++)
            v[j] = (ivec)load64(codes + 64 * j);
    } else if (type == NIB_WEIGHT_FP8) {
        /* 2^-8 times the values, as fp32 whose lower halves are 0. */
        vec d[NIB_CPU_OCTET];
        chunk_decode(type, codes, 0, d);
        UNROLL for (int j = 0; j < OCTET_PAIRS; j++)
            v[j] = ((ivec)d[2 * j] >> 16 & 0xffff) | ((ivec)d[2 * j + 1] & (int32_t)0xffff0000);
    } else {
        const __m512i value = load64(e2m1_bf16), shift = _mm512_set1_epi32(4 << 16), b = load64(codes);
        UNROLL for (int j = 0; j < OCTET_PAIRS; j++)
        {
            /* Byte j of each lane to both of its words, the second one's upper four bits down. */
            const int32_t from = INT32_MIN | 0x8000 | j << 16 | j;
            const __m128i spread = _mm_setr_epi32(from, from + 0x40004, from + 0x80008, from + 0xc000c);
            const __m512i two = _mm512_shuffle_epi8(b, _mm512_broadcast_i32x4(spread));
            v[j] = (ivec)_mm512_permutexvar_epi16(_mm512_srlv_epi16(two, shift), value);
        }
    }
}

/* sum += chain * scale, or without a scale. */
BODY void pair_sum(const int type, vec *sum, const vec *chain, const vec *scale)
{
    if (type == NIB_WEIGHT_BF16)
        *sum += *chain;
    else
        VEC_FMA(*sum, *chain, *scale);
}

/* ---- Few rows: straight from the stored bytes ---- */

BODY void pairs_stream(const int rows, const int panels, const int type, const struct nib_cpu_tile *t, int32_t o)
{
    const struct nib_cpu_matrix *w = t->w;
    const int32_t   n_blocks = n_blocks_of(w);
    const uint8_t  *begin = panel_codes(w, t->out + o), *codes = begin, *scales[2];
    const uint16_t *x[PAIRS_STREAM_ROWS];
    vec             sum[PAIRS_STREAM_ROWS][2];
    UNROLL for (int q = 0; q < panels; q++)
        scales[q] = panel_scales(w, t->out + o + q * NIB_CPU_PANEL);
    UNROLL for (int r = 0; r < rows; r++)
    {
        x[r] = t->xh[r].x;
        UNROLL for (int q = 0; q < panels; q++)
            sum[r][q] = (vec){0};
    }
    for (int32_t b = 0; b < n_blocks; b++) {
        vec chain[2][PAIRS_STREAM_ROWS];
        UNROLL for (int q = 0; q < panels; q++)
        {
            UNROLL for (int i = 0; i < block_bytes(type); i += 64)
                __builtin_prefetch(codes_ahead(type, begin + q * w->codes_stride, b, n_blocks, panels) + i);
            UNROLL for (int r = 0; r < rows; r++)
                chain[q][r] = (vec){0};
        }
        UNROLL for (int h = 0; h < 2; h++)
            UNROLL for (int q = 0; q < panels; q++)
            {
                ivec v[OCTET_PAIRS];
                octet_pairs(type, codes + q * w->codes_stride + h * block_bytes(type) / 2, v);
                UNROLL for (int j = 0; j < OCTET_PAIRS; j++)
                    UNROLL for (int r = 0; r < rows; r++)
                        pair_add(&chain[q][r], &v[j], x[r] + (int64_t)b * NIB_CPU_BLOCK + h * NIB_CPU_OCTET + 2 * j);
            }
        UNROLL for (int q = 0; q < panels; q++)
        {
            vec s;
            panel_scales_decode(type, block_scales_at(type, scales[q], b), &s);
            UNROLL for (int r = 0; r < rows; r++)
                pair_sum(type, &sum[r][q], &chain[q][r], &s);
        }
        codes += block_bytes(type);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int q = 0; q < panels; q++)
            *(vec *)(void *)(t->y + r * NIB_CPU_TILE_OUTS + o + q * NIB_CPU_PANEL) = sum[r][q];
}

/* For up to three rows two panels pass side by side: one panel's chains alone would wait for themselves. */
BODY void pairs_few(const int rows, const int type, const struct nib_cpu_tile *t)
{
    int32_t o = 0;
    for (; rows <= 3 && t->n_outs - o > NIB_CPU_PANEL; o += 2 * NIB_CPU_PANEL)
        pairs_stream(rows, 2, type, t, o);
    for (; o < t->n_outs; o += NIB_CPU_PANEL)
        pairs_stream(rows, 1, type, t, o);
}

/* ---- Many rows: a panel decoded to scratch ---- */

/* Blocks [b0, b0 + n) of a panel as pairs to v, and scales to s. BF16 lies as pairs already. */
BODY void pairs_open(const int type, const struct nib_cpu_matrix *w, int32_t out, int32_t b0, int32_t n, uint8_t *v,
                     float *s)
{
    const uint8_t *codes = panel_codes(w, out) + (int64_t)b0 * block_bytes(type), *scales = panel_scales(w, out);
    for (int32_t b = b0; type != NIB_WEIGHT_BF16 && b < b0 + n; b++) {
        UNROLL for (int h = 0; h < 2; h++)
        {
            ivec d[OCTET_PAIRS];
            octet_pairs(type, codes + h * block_bytes(type) / 2, d);
            UNROLL for (int j = 0; j < OCTET_PAIRS; j++)
                *(ivec *)(void *)(v + (h * OCTET_PAIRS + j) * VEC_BYTES) = d[j];
        }
        vec sc;
        panel_scales_decode(type, block_scales_at(type, scales, b), &sc);
        *(vec *)(void *)s = sc;
        codes += block_bytes(type);
        v += BLOCK_PAIRS * VEC_BYTES;
        s += NIB_CPU_PANEL;
    }
}

/* Add n blocks to `rows` rows of sums. As blocks pass, n_lines cache lines for each are asked for from `next` on. */
BODY void pairs_rows(const int rows, const int type, const struct nib_cpu_bf16_row *x, int64_t k0, const uint8_t *v,
                     const float *s, int32_t n, const uint8_t *next, int32_t n_lines, float *y)
{
    const uint16_t *xr[PAIRS_ROWS_MOST];
    UNROLL for (int r = 0; r < rows; r++)
        xr[r] = x[r].x + k0;
    for (int64_t k = 0; k < n * NIB_CPU_BLOCK; k += NIB_CPU_BLOCK) {
        vec t[PAIRS_ROWS_MOST];
        for (int32_t i = 0; i < n_lines; i++, next += 64)
            __builtin_prefetch(next);
        UNROLL for (int r = 0; r < rows; r++)
            t[r] = (vec){0};
        UNROLL for (int j = 0; j < BLOCK_PAIRS; j++)
        {
            const ivec w = (ivec)load64(v + j * VEC_BYTES);
            UNROLL for (int r = 0; r < rows; r++)
                pair_add(&t[r], &w, xr[r] + k + 2 * j);
        }
        /* Sums are memory's: there are no registers for them, and compilers would keep copies on the stack as well. */
        __asm__("" : "+r"(y));
        const vec scale = type == NIB_WEIGHT_BF16 ? (vec){0} : *(const vec *)(const void *)s;
        UNROLL for (int r = 0; r < rows; r++)
            pair_sum(type, (vec *)(void *)(y + r * NIB_CPU_TILE_OUTS), &t[r], &scale);
        v += BLOCK_PAIRS * VEC_BYTES;
        s += NIB_CPU_PANEL;
    }
}

#define PAIRS_ROWS(ROWS)                                                                                              \
    case ROWS: pairs_rows(ROWS, type, t->xh + r, k0, v, s, n, next, lines, sums + r * NIB_CPU_TILE_OUTS); break;

/* The rows of a tile in parts of nearly equal size; what is decoded next is asked for evenly by all of them. */
BODY void pairs_all_rows(const int type, const struct nib_cpu_tile *t, int64_t k0, const uint8_t *v, const float *s, int32_t n,
                         const uint8_t *next, float *sums)
{
    int32_t parts = (t->n_rows + PAIRS_ROWS_MOST - 1) / PAIRS_ROWS_MOST, r = 0, left = block_bytes(type) / 64;
    for (; parts > 0; parts--) {
        const int32_t lines = (left + parts - 1) / parts, rows = (t->n_rows - r + parts - 1) / parts;
        switch (rows) {
            PAIRS_ROWS_CASES(PAIRS_ROWS)
        }
        r += rows;
        next += n * lines * 64;
        left -= lines;
    }
}

BODY void pairs_many(const int type, const struct nib_cpu_tile *t)
{
    uint8_t *v = (uint8_t *)t->work;
    float   *s = t->work + NIB_CPU_TILE_K * NIB_CPU_PANEL;
    int32_t  n_blocks = n_blocks_of(t->w);
    memset(t->y, 0, sizeof(float) * NIB_CPU_TILE_OUTS * (size_t)t->n_rows);
    for (int32_t b = 0; b < n_blocks; b += PAIR_BLOCKS)
        for (int32_t o = 0; o < t->n_outs; o += NIB_CPU_PANEL) {
            /* What is decoded next: the next panel, after the last one the next blocks of the first, or the next tile. */
            const int32_t  n = n_blocks - b < PAIR_BLOCKS ? n_blocks - b : PAIR_BLOCKS;
            const bool     more = o + NIB_CPU_PANEL < t->n_outs, further = b + n < n_blocks;
            const int32_t  next_out = t->out + (more ? o + NIB_CPU_PANEL : further ? 0 : t->n_outs);
            const uint8_t *next = panel_codes(t->w, next_out) + (int64_t)(more ? b : further ? b + n : 0) * block_bytes(type);
            const uint8_t *codes = panel_codes(t->w, t->out + o) + (int64_t)b * block_bytes(type);
            pairs_open(type, t->w, t->out + o, b, n, v, s);
            pairs_all_rows(type, t, (int64_t)b * NIB_CPU_BLOCK, type == NIB_WEIGHT_BF16 ? codes : v, s, n, next, t->y + o);
        }
}

/* ---- Rows whose products could be subnormal ---- */

/* The least exponent field of a row's values with which nothing subnormal comes up: the last place of a bf16 value is 7 below
 * its exponent (biased by 127), E2M1's is 2^-1 and that of E4M3 as decoded 2^-17. */
BODY int32_t least_exponent(const int type, const struct nib_cpu_tile *t, int32_t o)
{
    if (type != NIB_WEIGHT_BF16)
        return 1 + 7 + (type == NIB_WEIGHT_FP8 ? 17 : 1);
    const int32_t w = t->w->least[(t->out + o) / NIB_CPU_PANEL], least = 1 + 7 + 7 + 127 - w;
    return w == 0 ? 256 : least > 1 ? least : 1;
}

/* A panel's outputs of `EXACT_ROWS` rows by fp32 multiply-adds. */
BODY void exact_panel(const int type, const struct nib_cpu_tile *t, int32_t o, const int32_t *row)
{
    const uint8_t *codes = panel_codes(t->w, t->out + o), *scales = panel_scales(t->w, t->out + o);
    const int32_t  n_blocks = n_blocks_of(t->w);
    vec            sum[EXACT_ROWS];
    for (int r = 0; r < EXACT_ROWS; r++)
        sum[r] = (vec){0};
    for (int32_t b = 0; b < n_blocks; b++) {
        vec chain[EXACT_ROWS], s;
        for (int r = 0; r < EXACT_ROWS; r++)
            chain[r] = (vec){0};
        for (int h = 0; h < 2; h++, codes += block_bytes(type) / 2) {
            vec v[NIB_CPU_OCTET];
            chunk_decode(type, codes, 0, v);
            for (int i = 0; i < NIB_CPU_OCTET; i++) {
                if (type == NIB_WEIGHT_FP8)
                    v[i] *= 256.0f; /* their values, whose subnormal products have more room */
                for (int r = 0; r < EXACT_ROWS; r++) {
                    const vec x = SPLAT(float_of((uint32_t)t->xh[row[r]].x[b * NIB_CPU_BLOCK + h * NIB_CPU_OCTET + i] << 16));
                    VEC_FMA(chain[r], x, v[i]);
                }
            }
        }
        panel_scales_decode(type, block_scales_at(type, scales, b), &s);
        if (type == NIB_WEIGHT_FP8)
            s = (vec){0} + ue8m0_value(*block_scales_at(type, scales, b));
        for (int r = 0; r < EXACT_ROWS; r++)
            pair_sum(type, &sum[r], &chain[r], &s);
    }
    for (int r = 0; r < EXACT_ROWS; r++)
        *(vec *)(void *)(t->y + row[r] * NIB_CPU_TILE_OUTS + o) = sum[r] * SPLAT(t->w->global_scale);
}

BODY void exact_rows(const int type, const struct nib_cpu_tile *t)
{
    for (int32_t o = 0; o < t->n_outs; o += NIB_CPU_PANEL) {
        const int32_t least = least_exponent(type, t, o);
        int32_t       row[EXACT_ROWS], n = 0;
        for (int32_t r = 0; r < t->n_rows; r++) {
            if (t->xh[r].least < least)
                row[n++] = r;
            if (n == EXACT_ROWS || (n > 0 && r == t->n_rows - 1)) {
                for (; n < EXACT_ROWS; n++)
                    row[n] = row[n - 1];
                exact_panel(type, t, o, row);
                n = 0;
            }
        }
    }
}

/* ---- Tiles ---- */

#define PAIRS_FEW(ROWS)                                                                                               \
    case ROWS: pairs_few(ROWS, type, t); break;

BODY void pairs_of_type(const int type, const struct nib_cpu_tile *t)
{
    switch (t->n_rows) {
        PAIRS_STREAM_CASES(PAIRS_FEW)
    default: pairs_many(type, t); break;
    }
    const vec scale = SPLAT(t->w->global_scale);
    for (int32_t r = 0; r < t->n_rows; r++)
        for (int32_t o = 0; o < t->n_outs; o += NIB_CPU_PANEL)
            *(vec *)(void *)(t->y + r * NIB_CPU_TILE_OUTS + o) *= scale;
}

OWN void pairs_bf16(const struct nib_cpu_tile *t) { pairs_of_type(NIB_WEIGHT_BF16, t); }
OWN void pairs_fp8(const struct nib_cpu_tile *t) { pairs_of_type(NIB_WEIGHT_FP8, t); }
OWN void pairs_mxfp4(const struct nib_cpu_tile *t) { pairs_of_type(NIB_WEIGHT_MXFP4, t); }
OWN void pairs_nvfp4(const struct nib_cpu_tile *t) { pairs_of_type(NIB_WEIGHT_NVFP4, t); }
OWN void exact_bf16(const struct nib_cpu_tile *t) { exact_rows(NIB_WEIGHT_BF16, t); }
OWN void exact_fp8(const struct nib_cpu_tile *t) { exact_rows(NIB_WEIGHT_FP8, t); }
OWN void exact_mxfp4(const struct nib_cpu_tile *t) { exact_rows(NIB_WEIGHT_MXFP4, t); }
OWN void exact_nvfp4(const struct nib_cpu_tile *t) { exact_rows(NIB_WEIGHT_NVFP4, t); }

static void tile_pairs(const struct nib_cpu_tile *t)
{
    switch (t->w->type) {
    case NIB_WEIGHT_F32: break; /* not exact in bf16, and never asked for */
    case NIB_WEIGHT_BF16: pairs_bf16(t), exact_bf16(t); break;
    case NIB_WEIGHT_FP8: pairs_fp8(t), exact_fp8(t); break;
    case NIB_WEIGHT_MXFP4: pairs_mxfp4(t), exact_mxfp4(t); break;
    case NIB_WEIGHT_NVFP4: pairs_nvfp4(t), exact_nvfp4(t); break;
    }
}

/* ---- Rows ---- */

static uint8_t bf16_take(const float *x, int32_t n, uint16_t *out)
{
    ivec    least = (ivec)_mm512_set1_epi32(255);
    int32_t lane[VEC_FLOATS], i = 0, all = 255;
    for (; i + VEC_FLOATS <= n; i += VEC_FLOATS) {
        const ivec bits = (ivec)load64(x + i), zero = (ivec)(bits << 1 == 0);
        least = (ivec)_mm512_min_epi32((__m512i)least, (__m512i)((bits >> 23 & 255) | (zero & 255)));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), _mm512_cvtepi32_epi16((__m512i)(bits >> 16)));
    }
    memcpy(lane, &least, sizeof lane);
    for (int l = 0; l < VEC_FLOATS; l++)
        all = lane[l] < all ? lane[l] : all;
    for (; i < n; i++) {
        const uint32_t bits = bits_of(x[i]);
        const int32_t  exponent = bits << 1 ? (int32_t)(bits >> 23 & 255) : 255;
        const uint16_t upper = (uint16_t)(bits >> 16);
        memcpy(out + i, &upper, sizeof upper);
        all = exponent < all ? exponent : all;
    }
    return (uint8_t)all;
}
