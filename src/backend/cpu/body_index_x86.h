/* Body of the AVX2, AVX-512 and VNNI rungs: FP4 queries and keys of the indexer in integers, 16 keys at a time.
 *
 * A 32-bit lane belongs to a key and holds four of its channels as signed doubled codes. One instruction multiplies them
 * with the same four of a query, which are unsigned, with NIB_CPU_CODE_BIAS; a block's 32 channels are 8 such products. Its
 * sum begins with what the bias adds, negative, so it is exact: on the way there at most 16 * 24 * 12 = 4608 in 16 bits.
 * Only the sum of the blocks rounds.
 *
 * The rung has the sums in index_lanes: index_dot(sum, query, keys) adds a vector of products to them, index_total makes
 * 32-bit lanes of them. INDEX_HEADS queries by INDEX_SETS sets of 16 keys are the sums that registers hold. */

enum { INDEX_KEYS = 16, INDEX_VECS = INDEX_KEYS / VEC_FLOATS };

typedef int32_t index_at __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

/* Sets of 16 keys opened, block after block of 32 channels. */
struct index_block {
    int8_t  code[8][INDEX_KEYS][4]; /* [four channels][key] */
    int32_t start[INDEX_KEYS];      /* as index_lanes: minus the bias times the codes */
    float   scale[INDEX_KEYS];
};

/* Unpack 16-bit units within 16 bytes: out[i] holds unit i of rows 0 to 7. */
BODY void transpose8_16(const __m256i *in, __m256i *out)
{
    __m256i a[8], b[8];
    UNROLL for (int i = 0; i < 4; i++)
    {
        a[i] = _mm256_unpacklo_epi16(in[2 * i], in[2 * i + 1]);     /* rows 2i, 2i + 1; units 0 to 3 */
        a[4 + i] = _mm256_unpackhi_epi16(in[2 * i], in[2 * i + 1]); /* units 4 to 7 */
    }
    UNROLL for (int i = 0; i < 2; i++)
        UNROLL for (int h = 0; h < 2; h++)
        {
            b[4 * h + i] = _mm256_unpacklo_epi32(a[4 * h + 2 * i], a[4 * h + 2 * i + 1]); /* rows 4i to 4i + 3 */
            b[4 * h + 2 + i] = _mm256_unpackhi_epi32(a[4 * h + 2 * i], a[4 * h + 2 * i + 1]);
        }
    UNROLL for (int u = 0; u < 4; u++)
    {
        out[2 * u] = _mm256_unpacklo_epi64(b[2 * u], b[2 * u + 1]);
        out[2 * u + 1] = _mm256_unpackhi_epi64(b[2 * u], b[2 * u + 1]);
    }
}

/* Codes of 16 keys. Unpacking bytes keeps to each half of a register, so keys 0 to 3 and 8 to 11 go to the lower halves. */
BODY void index_codes_open(const uint8_t *const *key, int32_t k, struct index_block *b)
{
    const __m256i doubled = _mm256_broadcastsi128_si256(_mm_set_epi64x((long long)0xf4f8fafcfdfeff00, 0x0c08060403020100));
    const __m256i low = _mm256_set1_epi8(15);
    __m256i       in[8], unit[8];
    UNROLL for (int i = 0; i < 8; i++)
    {
        const int at = i < 4 ? i : i + 4;
        in[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(key[at] + k / 2))),
                                        _mm_loadu_si128((const __m128i *)(key[at + 4] + k / 2)), 1);
    }
    transpose8_16(in, unit);
    UNROLL for (int i = 0; i < 8; i++)
    {
        __m256i even = _mm256_shuffle_epi8(doubled, _mm256_and_si256(unit[i], low));
        __m256i odd = _mm256_shuffle_epi8(doubled, _mm256_and_si256(_mm256_srli_epi16(unit[i], 4), low));
        _mm256_storeu_si256((__m256i *)(void *)b->code[i][0], _mm256_unpacklo_epi8(even, odd));
        _mm256_storeu_si256((__m256i *)(void *)b->code[i][8], _mm256_unpackhi_epi8(even, odd));
    }
}

/* Scales of 16 keys' blocks. */
BODY void index_scales_open(const uint8_t *const *key, int32_t dim, struct index_block *block)
{
    for (int32_t b = 0; b < dim / 32; b += 4) {
        int32_t four[INDEX_KEYS] = {0}, n = dim / 32 - b < 4 ? dim / 32 - b : 4;
        for (int i = 0; i < INDEX_KEYS; i++)
            memcpy(&four[i], key[i] + dim / 2 + b, (size_t)n);
        for (int32_t i = 0; i < n; i++)
            for (int v = 0; v < 2; v++) {
                __m256i one = _mm256_loadu_si256((const __m256i *)(four + 8 * v)), nan = _mm256_set1_epi32(255);
                one = _mm256_and_si256(_mm256_srl_epi32(one, _mm_cvtsi32_si128(8 * i)), nan);
                __m256i bits = _mm256_max_epi32(_mm256_slli_epi32(one, 23), _mm256_set1_epi32(0x400000)); /* 0 is 2^-127 */
                bits = _mm256_or_si256(bits, _mm256_and_si256(_mm256_cmpeq_epi32(one, nan), _mm256_set1_epi32(0x7fc00000)));
                _mm256_storeu_si256((__m256i *)(void *)(block[b + i].scale + 8 * v), bits);
            }
    }
}

BODY void index_open(const uint8_t *const *key, int32_t dim, struct index_block *block)
{
    const ivec bias = (ivec){0} + 0x01010101 * NIB_CPU_CODE_BIAS;
    for (int32_t b = 0; b < dim / 32; b++) {
        index_codes_open(key, 32 * b, &block[b]);
        for (int v = 0; v < INDEX_VECS; v++) {
            ivec sum = {0};
            UNROLL for (int t = 0; t < 8; t++)
            {
                const ivec key4 = *(const index_at *)(const void *)block[b].code[t][v * VEC_FLOATS];
                index_dot(&sum, &bias, &key4);
            }
            *(index_at *)(block[b].start + v * VEC_FLOATS) = (ivec)-(index_lanes)sum;
        }
    }
    index_scales_open(key, dim, block);
}

/* Dot products of `heads` queries from h on with `sets` sets of opened keys. */
BODY void index_tile(const int heads, const int sets, const struct nib_cpu_fp4_queries *q, int32_t h, int32_t dim,
                     const struct index_block *keys, vec sum[][INDEX_SETS * INDEX_VECS])
{
    const int      vecs = sets * INDEX_VECS, n_blocks = dim / 32;
    const uint8_t *codes = q->codes + (int64_t)h * dim;
    const float   *scales = q->scales + (int64_t)h * n_blocks;
    UNROLL for (int r = 0; r < heads; r++)
        UNROLL for (int v = 0; v < vecs; v++)
            sum[r][v] = (vec){0};
    for (int32_t b = 0; b < n_blocks; b++, keys++) {
        ivec acc[INDEX_HEADS][INDEX_SETS * INDEX_VECS];
        UNROLL for (int v = 0; v < vecs; v++)
        {
            const struct index_block *set = keys + v / INDEX_VECS * n_blocks;
            const ivec start = *(const index_at *)(set->start + v % INDEX_VECS * VEC_FLOATS);
            UNROLL for (int r = 0; r < heads; r++)
                acc[r][v] = start;
        }
        UNROLL for (int t = 0; t < 8; t++)
        {
            ivec key[INDEX_SETS * INDEX_VECS];
            UNROLL for (int v = 0; v < vecs; v++)
            {
                const struct index_block *set = keys + v / INDEX_VECS * n_blocks;
                key[v] = *(const index_at *)(const void *)set->code[t][v % INDEX_VECS * VEC_FLOATS];
            }
            UNROLL for (int r = 0; r < heads; r++)
            {
                int32_t four;
                memcpy(&four, codes + (int64_t)r * dim + 32 * b + 4 * t, sizeof four);
                const ivec x = (ivec){0} + four;
                UNROLL for (int v = 0; v < vecs; v++)
                {
                    index_dot(&acc[r][v], &x, &key[v]);
                    VEC_KEEP(acc[r][v]); /* else gcc takes all products first, and stores them for want of registers */
                }
            }
        }
        UNROLL for (int r = 0; r < heads; r++)
        {
            const vec scale = SPLAT(scales[(int64_t)r * n_blocks + b]);
            UNROLL for (int v = 0; v < vecs; v++)
            {
                const struct index_block *set = keys + v / INDEX_VECS * n_blocks;
                index_total(&acc[r][v]);
                const vec f = __builtin_convertvector(acc[r][v], vec) *
                              *(const vec_at *)(set->scale + v % INDEX_VECS * VEC_FLOATS);
                VEC_FMA(sum[r][v], f, scale);
            }
        }
    }
}

/* What becomes of them: with weights y[key] is the score, to which they are added; without, y[query * y_stride + key]. */
BODY void index_tile_out(const int heads, const int sets, const struct nib_cpu_fp4_queries *q, int32_t h, int32_t dim,
                         const struct index_block *keys, const float *weight, float *y, int64_t y_stride)
{
    vec sum[INDEX_HEADS][INDEX_SETS * INDEX_VECS];
    index_tile(heads, sets, q, h, dim, keys, sum);
    UNROLL for (int v = 0; v < sets * INDEX_VECS; v++)
    {
        vec score = *(const vec_at *)(y + v * VEC_FLOATS);
        UNROLL for (int r = 0; r < heads; r++)
        {
            if (!weight) {
                *(vec_at *)(y + (h + r) * y_stride + v * VEC_FLOATS) = sum[r][v];
                continue;
            }
            const vec positive = (vec)((ivec)sum[r][v] & ~(ivec)(sum[r][v] < 0.0f)); /* keeps NaN, as add_positive does */
            VEC_FMA(score, positive, SPLAT(weight[h + r]));
        }
        if (weight)
            *(vec_at *)(y + v * VEC_FLOATS) = score;
    }
}

BODY void index_strip(const int sets, const struct nib_cpu_fp4_queries *q, int32_t dim, const struct index_block *keys,
                      const float *weight, float *y, int64_t y_stride)
{
    int32_t h = 0;
    for (; h + INDEX_HEADS <= q->n; h += INDEX_HEADS)
        index_tile_out(INDEX_HEADS, sets, q, h, dim, keys, weight, y, y_stride);
    for (; INDEX_HEADS > 1 && h < q->n; h++)
        index_tile_out(1, sets, q, h, dim, keys, weight, y, y_stride);
}

/* All queries with n keys, the last of which fills up the last set. */
BODY void index_all(const struct nib_cpu_fp4_queries *q, const uint8_t *const *key, int32_t n, int32_t dim,
                    struct index_block *block, const float *weight, float *y, int64_t y_stride)
{
    const int32_t n_sets = (n + INDEX_KEYS - 1) / INDEX_KEYS, n_blocks = dim / 32;
    for (int32_t set = 0; set < n_sets; set++) {
        const uint8_t *row[INDEX_KEYS];
        for (int32_t i = 0; i < INDEX_KEYS; i++)
            row[i] = key[set * INDEX_KEYS + i < n ? set * INDEX_KEYS + i : n - 1];
        index_open(row, dim, block + set * n_blocks);
    }
    int32_t set = 0;
    for (; set + INDEX_SETS <= n_sets; set += INDEX_SETS)
        index_strip(INDEX_SETS, q, dim, block + set * n_blocks, weight, y + set * INDEX_KEYS, y_stride);
    for (; set < n_sets; set++)
        index_strip(1, q, dim, block + set * n_blocks, weight, y + set * INDEX_KEYS, y_stride);
}

static void fp4_code_dots(const struct nib_cpu_fp4_queries *q, const uint8_t *const *key, int32_t n, int32_t dim,
                          float *work, float *y, int64_t y_stride)
{
    if (dim % 32 == 0)
        index_all(q, key, n, dim, (struct index_block *)(void *)work, NULL, y, y_stride);
    else
        fp4_dots(q, key, n, dim, work, y, y_stride);
}

static void fp4_code_scores(const struct nib_cpu_fp4_queries *q, const float *weight, const uint8_t *const *key, int32_t n,
                            int32_t dim, float *work, float *dots, float *score)
{
    if (dim % 32 != 0) {
        fp4_scores(q, weight, key, n, dim, work, dots, score);
        return;
    }
    memset(dots, 0, sizeof(float) * (size_t)((n + INDEX_KEYS - 1) / INDEX_KEYS * INDEX_KEYS)); /* scores of whole sets */
    index_all(q, key, n, dim, (struct index_block *)(void *)work, weight, dots, 0);
    memcpy(score, dots, sizeof(float) * (size_t)n);
}
