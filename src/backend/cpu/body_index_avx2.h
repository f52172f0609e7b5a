/* Body of the AVX2 and AVX-512 rungs: dot products of FP4 queries with FP4 keys in integers, 16 keys at a time.
 *
 * A 32-bit lane belongs to a key and holds four channels of it, as unsigned codes with NIB_CPU_CODE_BIAS. One
 * instruction multiplies them with the same four of a query; a block's 32 channels are 8 such products, summed in 16 bits:
 * at most 16 * 24 * 12 = 4608. Blocks are exact, so only their sum rounds. */

enum { INDEX_KEYS = 16 };

/* Left to itself the compiler takes all products first, and stores them for want of registers. */
#define INDEX_KEEP(v) __asm__("" : "+x"(v))

/* Unpack 16-bit units of 8 rows of 16 bytes: out[i] holds unit i of rows 0 to 7. */
BODY void transpose8_16(const __m128i *in, __m128i *out)
{
    __m128i a[8], b[8];
    UNROLL for (int i = 0; i < 4; i++)
    {
        a[i] = _mm_unpacklo_epi16(in[2 * i], in[2 * i + 1]);     /* rows 2i, 2i + 1; units 0 to 3 */
        a[4 + i] = _mm_unpackhi_epi16(in[2 * i], in[2 * i + 1]); /* units 4 to 7 */
    }
    UNROLL for (int i = 0; i < 2; i++)
        UNROLL for (int h = 0; h < 2; h++)
        {
            b[4 * h + i] = _mm_unpacklo_epi32(a[4 * h + 2 * i], a[4 * h + 2 * i + 1]);     /* rows 4i to 4i + 3 */
            b[4 * h + 2 + i] = _mm_unpackhi_epi32(a[4 * h + 2 * i], a[4 * h + 2 * i + 1]);
        }
    UNROLL for (int u = 0; u < 4; u++)
    {
        out[2 * u] = _mm_unpacklo_epi64(b[2 * u], b[2 * u + 1]);
        out[2 * u + 1] = _mm_unpackhi_epi64(b[2 * u], b[2 * u + 1]);
    }
}

/* Biased codes of 8 keys: [dim / 4][8 keys][4 channels]. */
BODY void index_keys_open(const uint8_t *const *key, int32_t dim, uint8_t *dst)
{
    const __m128i biased = _mm_set_epi64x(0x00040608090a0b0c, 0x181412100f0e0d0c), low = _mm_set1_epi8(15);
    for (int32_t k = 0; k < dim; k += 32) {
        __m128i in[8], unit[8];
        UNROLL for (int i = 0; i < 8; i++)
            in[i] = _mm_loadu_si128((const __m128i *)(key[i] + k / 2));
        transpose8_16(in, unit);
        UNROLL for (int i = 0; i < 8; i++)
        {
            __m128i even = _mm_shuffle_epi8(biased, _mm_and_si128(unit[i], low));
            __m128i odd = _mm_shuffle_epi8(biased, _mm_and_si128(_mm_srli_epi16(unit[i], 4), low));
            __m128i *to = (__m128i *)(dst + 8 * k + 32 * i);
            _mm_storeu_si128(to, _mm_unpacklo_epi8(even, odd));
            _mm_storeu_si128(to + 1, _mm_unpackhi_epi8(even, odd));
        }
    }
}

/* Scales of 8 keys' blocks: dst[block * INDEX_KEYS + key]. */
BODY void index_scales_open(const uint8_t *const *key, int32_t dim, float *dst)
{
    for (int32_t b = 0; b < dim / 32; b += 4) {
        int32_t four[8] = {0}, n = dim / 32 - b < 4 ? dim / 32 - b : 4;
        for (int i = 0; i < 8; i++)
            memcpy(&four[i], key[i] + dim / 2 + b, (size_t)n);
        __m256i bytes = _mm256_loadu_si256((const __m256i *)four);
        for (int32_t i = 0; i < n; i++) {
            __m256i one = _mm256_and_si256(bytes, _mm256_set1_epi32(255)), nan = _mm256_set1_epi32(255);
            __m256i bits = _mm256_max_epi32(_mm256_slli_epi32(one, 23), _mm256_set1_epi32(0x400000)); /* 0 is 2^-127 */
            bits = _mm256_or_si256(bits, _mm256_and_si256(_mm256_cmpeq_epi32(one, nan), _mm256_set1_epi32(0x7fc00000)));
            _mm256_storeu_si256((__m256i *)(dst + (b + i) * INDEX_KEYS), bits);
            bytes = _mm256_srli_epi32(bytes, 8);
        }
    }
}

/* `heads` queries from h with 16 opened keys. */
BODY void index_tile(const int heads, const struct nib_cpu_fp4_queries *q, int32_t h, int32_t dim, const uint8_t *keys,
                     const float *key_scales, float *y, int64_t y_stride)
{
    const int64_t  side = 8 * (int64_t)dim; /* bytes of 8 opened keys */
    const int8_t  *codes = q->codes + (int64_t)h * dim;
    const float   *scales = q->scales + h * (dim / 32);
    const int32_t *fix = q->fix + h * (dim / 32);
    __m256         sum[2][2] = {{_mm256_setzero_ps(), _mm256_setzero_ps()}, {_mm256_setzero_ps(), _mm256_setzero_ps()}};
    for (int32_t b = 0; b < dim / 32; b++) {
        __m256i acc[2][2];
        UNROLL for (int r = 0; r < heads; r++)
            UNROLL for (int v = 0; v < 2; v++)
                acc[r][v] = _mm256_setzero_si256();
        UNROLL for (int t = 0; t < 8; t++)
        {
            __m256i key[2];
            UNROLL for (int v = 0; v < 2; v++)
                key[v] = _mm256_loadu_si256((const __m256i *)(keys + v * side + 256 * b + 32 * t));
            UNROLL for (int r = 0; r < heads; r++)
            {
                int32_t four;
                memcpy(&four, codes + (int64_t)r * dim + 32 * b + 4 * t, sizeof four);
                __m256i x = _mm256_set1_epi32(four);
                UNROLL for (int v = 0; v < 2; v++)
                {
                    acc[r][v] = _mm256_add_epi16(acc[r][v], _mm256_maddubs_epi16(key[v], x));
                    INDEX_KEEP(acc[r][v]);
                }
            }
        }
        UNROLL for (int r = 0; r < heads; r++)
            UNROLL for (int v = 0; v < 2; v++)
            {
                const int32_t at = r * (dim / 32) + b;
                __m256i all = _mm256_madd_epi16(acc[r][v], _mm256_set1_epi16(1));
                __m256  f = _mm256_cvtepi32_ps(_mm256_add_epi32(all, _mm256_set1_epi32(fix[at])));
                f = _mm256_mul_ps(f, _mm256_loadu_ps(key_scales + b * INDEX_KEYS + 8 * v));
                sum[r][v] = _mm256_fmadd_ps(f, _mm256_set1_ps(scales[at]), sum[r][v]);
            }
    }
    UNROLL for (int r = 0; r < heads; r++)
        UNROLL for (int v = 0; v < 2; v++)
            _mm256_storeu_ps(y + (h + r) * y_stride + 8 * v, sum[r][v]);
}

static void fp4_code_dots(const struct nib_cpu_fp4_queries *q, const uint8_t *const *key, int32_t n, int32_t dim,
                          float *work, float *y, int64_t y_stride)
{
    if (dim % 32 != 0) {
        fp4_dots(q, key, n, dim, work, y, y_stride);
        return;
    }
    float   *scales = work;
    uint8_t *keys = (uint8_t *)(work + dim / 32 * INDEX_KEYS);
    for (int32_t j = 0; j < n; j += INDEX_KEYS) {
        const uint8_t *row[INDEX_KEYS];
        for (int32_t i = 0; i < INDEX_KEYS; i++)
            row[i] = key[j + i < n ? j + i : n - 1];
        for (int v = 0; v < 2; v++) {
            index_keys_open(row + 8 * v, dim, keys + 8 * v * dim);
            index_scales_open(row + 8 * v, dim, scales + 8 * v);
        }
        int32_t h = 0;
        for (; h + 2 <= q->n; h += 2)
            index_tile(2, q, h, dim, keys, scales, y + j, y_stride);
        for (; h < q->n; h++)
            index_tile(1, q, h, dim, keys, scales, y + j, y_stride);
    }
}
