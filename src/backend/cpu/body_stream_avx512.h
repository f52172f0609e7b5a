/* Body of the AVX-512 rung: few rows of BF16 and E4M3 weights, from the stored bytes.
 *
 * Two ports share all vector operations, so what loads can do is theirs. A channel's vector is made where it is needed,
 * straight from memory, and a row's number is loaded once for two panels. E4M3 becomes fp16 first, two channels to a
 * vector, for a conversion of fp16 in a register takes two operations where a load that converts takes one: a block is
 * written to the L1 cache while the one before it, which lies there already, is multiplied. The operations of a row are
 * those of body_tile.h in their order. */

enum {
    STREAM_FOUR = 4,                                 /* channels of a vector of E4M3 codes, written together */
    STREAM_BLOCK = NIB_CPU_BLOCK * NIB_CPU_PANEL / 2 /* floats that a block of fp16 takes */
};

/* Four channels of E4M3 codes of a panel to scratch. */
BODY void four_store(const uint8_t *codes, float *v)
{
    __m512i h[2];
    fp8_halves(codes, h);
    UNROLL for (int i = 0; i < 2; i++)
        _mm512_store_si512(v + NIB_CPU_PANEL * i, h[i]);
}

/* Channel i of a block: codes are its stored bytes, v those of E4M3 as fp16. */
BODY void channel_decode(const int type, const uint8_t *codes, const float *v, int i, vec *w)
{
    if (type == NIB_WEIGHT_FP8) {
        *w = (vec)_mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)(v + NIB_CPU_PANEL / 2 * i)));
    } else {
        __m512i pair = load64(codes + 64 * (i / 2));
        *w = (vec)(i % 2 ? _mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000u)) : _mm512_slli_epi32(pair, 16));
    }
}

/* The codes of a block that comes later. One row of BF16 weights is done with them long before memory gives more: asked
 * to the second cache they leave the first one's few requests to what is at work. */
BODY void block_ask(const int rows, const int type, const uint8_t *codes)
{
    UNROLL for (int i = 0; i < block_bytes(type); i += 64)
    {
        if (type == NIB_WEIGHT_BF16 && rows == 1)
            __builtin_prefetch(codes + i, 0, 2);
        else
            __builtin_prefetch(codes + i);
    }
}

/* `panels` panels side by side, channel by channel. */
BODY void stream_channels(const int rows, const int panels, const int type, const struct nib_cpu_tile *t, int32_t o)
{
    const struct nib_cpu_matrix *w = t->w;
    const int32_t  n_blocks = n_blocks_of(w);
    const int64_t  stride = w->codes_stride;
    const uint8_t *begin = panel_codes(w, t->out + o), *codes = begin, *scales[STREAM_PANELS];
    const float   *x[STREAM_ROWS];
    float         *v = t->work;
    vec            sum[STREAM_PANELS][STREAM_ROWS];
    UNROLL for (int q = 0; q < panels; q++)
    {
        scales[q] = panel_scales(w, t->out + o + q * NIB_CPU_PANEL);
        if (type == NIB_WEIGHT_FP8)
            UNROLL for (int i = 0; i < NIB_CPU_BLOCK; i += STREAM_FOUR)
                four_store(codes + q * stride + NIB_CPU_PANEL * i, v + q * STREAM_BLOCK + NIB_CPU_PANEL / 2 * i);
    }
    UNROLL for (int r = 0; r < rows; r++)
    {
        x[r] = t->x[r];
        UNROLL for (int q = 0; q < panels; q++)
            sum[q][r] = (vec){0};
    }
    for (int32_t b = 0; b < n_blocks; b++) {
        vec            chain[STREAM_PANELS][STREAM_ROWS];
        const uint8_t *next = codes + (b + 1 < n_blocks ? block_bytes(type) : 0); /* the last block is written twice */
        UNROLL for (int q = 0; q < panels; q++)
            block_ask(rows, type, codes_ahead(type, begin + q * stride, b, n_blocks, panels));
        UNROLL for (int i = 0; i < NIB_CPU_BLOCK; i++)
        {
            vec wv[STREAM_PANELS];
            UNROLL for (int q = 0; q < panels; q++)
            {
                channel_decode(type, codes + q * stride, v + q * STREAM_BLOCK, i, &wv[q]);
                STREAM_KEEP(wv[q]);
            }
            UNROLL for (int r = 0; r < rows; r++)
            {
                vec xv = SPLAT(x[r][i]);
                if (panels > 1)
                    STREAM_KEEP(xv);
                UNROLL for (int q = 0; q < panels; q++)
                {
                    if (i == 0)
                        chain[q][r] = xv * wv[q];
                    else
                        VEC_FMA(chain[q][r], xv, wv[q]);
                }
            }
            if (type == NIB_WEIGHT_FP8 && i % STREAM_FOUR == STREAM_FOUR - 1)
                UNROLL for (int q = 0; q < panels; q++)
                    four_store(next + q * stride + NIB_CPU_PANEL * (i - STREAM_FOUR + 1),
                               v + q * STREAM_BLOCK + NIB_CPU_PANEL / 2 * (i - STREAM_FOUR + 1));
        }
        UNROLL for (int q = 0; q < panels; q++)
        {
            vec s;
            panel_scales_decode(type, block_scales_at(type, scales[q], b), &s);
            UNROLL for (int r = 0; r < rows; r++)
            {
                if (type == NIB_WEIGHT_BF16)
                    sum[q][r] += chain[q][r];
                else
                    VEC_FMA(sum[q][r], chain[q][r], s);
            }
        }
        UNROLL for (int r = 0; r < rows; r++)
            x[r] += NIB_CPU_BLOCK;
        codes = next;
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int q = 0; q < panels; q++)
            *(vec *)(void *)(t->y + r * NIB_CPU_TILE_OUTS + o + q * NIB_CPU_PANEL) = sum[q][r];
}

/* 4-bit codes come two operations each either way, and are faster a chunk at a time. */
#define STREAM_RUN(rows, panels, type, t, o)                                                                          \
    ((type) == NIB_WEIGHT_BF16 || (type) == NIB_WEIGHT_FP8 ? stream_channels(rows, panels, type, t, o)                \
                                                           : stream_panels(rows, panels, type, t, o))
