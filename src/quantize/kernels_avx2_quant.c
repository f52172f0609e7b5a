/* The kernels for AVX2, eight blocks at a time; what is left over goes to the portable ones, as do F32 rows' codes.
 *
 * Codes without divisions: whether fp32(|x| / d) passes a threshold T of the grid depends on |x| alone once d is known.
 * The quotient rounds to more than T (to T or more, where a tie goes up) exactly if |x| > d * (T + u/2) (>= d * (T -
 * u/2)), u being the last place at T: T itself is even, so the half-way case rounds to T. d * (T +- u/2) is exact in
 * double (24 + 25 bits), and is turned into the largest BF16 that does not pass, which 16-bit comparisons use, a block
 * at a time. Bounds of thresholds, and of scales, a power of two apart are so too: a row needs those of eight scales.
 * tests/unit/test_quantize_kernels.c compares with true divisions over every BF16 value. */
#if defined(__x86_64__)

#include "quantize/lanes_avx2_quant.h"

#include <string.h>

#include "number/bf16.h"

/* BINADE: BF16 numbers between a value and its double. */
enum { N_STEPS = 5, FLUSH_GROUPS = 4, BINADE = 128, CACHE_LINE = 64 };

/* Steps between codes, and 6, where saturation begins; 2.5, 3.5 and 5 are powers of two from others. `bound` is the
 * half-way case in fp32 between the step and its neighbour; `up_at`: a value at the bound itself passes. */
static const struct {
    double bound;
    bool   up_at;
} k_step[N_STEPS] = {{0.25 + 0x1p-26, false}, {0.75 - 0x1p-25, true}, {1.25 + 0x1p-24, false}, {1.75 - 0x1p-24, true},
                     {6.0 + 0x1p-22, false}};

NIB_AVX2 static float absmax(const struct nib_quant_row *r)
{
    if (!r->bf16)
        return nib_quant_kernels_portable.absmax(r);
    __m256i most = _mm256_setzero_si256();
    for (int64_t b = 0; b < r->n_blocks; b++)
        most = _mm256_max_epu16(
            most, _mm256_and_si256(nib_quant_load_words(r->bf16 + b * NIB_QUANT_BLOCK), _mm256_set1_epi16(0x7fff)));
    uint16_t lane[16];
    uint32_t best = 0;
    _mm256_storeu_si256((__m256i *)(void *)lane, most);
    for (int i = 0; i < 16; i++)
        best = lane[i] > best ? lane[i] : best;
    return nib_f32_from_bits(best << 16);
}

/* What the comparisons of a block need, for each of a group twice in 32 bits: the largest BF16 magnitudes that do not
 * pass a step, or those less 127 where the difference is divided. Where a block's scale is zero nothing passes. */
enum { T_025, T_075, T_125, T_600, A_125, A_175, N_BOUNDS };

struct thresholds {
    uint32_t bound[N_BOUNDS][NIB_QUANT_GROUP];
    float    d[NIB_QUANT_GROUP]; /* in units */
    unsigned dead; /* bit b: block b has a scale of zero */
};

/* The bits of the largest float that does not pass a step, found through double. */
NIB_AVX2 static __m256i exact_step(__m256 d, int i)
{
    const __m256d d0 = _mm256_cvtps_pd(_mm256_castps256_ps128(d)), d1 = _mm256_cvtps_pd(_mm256_extractf128_ps(d, 1));
    const __m256d bound = _mm256_set1_pd(k_step[i].bound), p0 = _mm256_mul_pd(d0, bound), p1 = _mm256_mul_pd(d1, bound);
    const __m128  f0 = _mm256_cvtpd_ps(p0), f1 = _mm256_cvtpd_ps(p1);
    const __m256d b0 = _mm256_cvtps_pd(f0), b1 = _mm256_cvtps_pd(f1);
    const __m256d over0 = k_step[i].up_at ? _mm256_cmp_pd(b0, p0, _CMP_GE_OQ) : _mm256_cmp_pd(b0, p0, _CMP_GT_OQ);
    const __m256d over1 = k_step[i].up_at ? _mm256_cmp_pd(b1, p1, _CMP_GE_OQ) : _mm256_cmp_pd(b1, p1, _CMP_GT_OQ);
    /* Every second half of the 64-bit masks, in block order. */
    const __m256i over = _mm256_permute4x64_epi64(
        _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castpd_ps(over0), _mm256_castpd_ps(over1), 0x88)), 0xd8);
    const __m256i f = _mm256_castps_si256(_mm256_insertf128_ps(_mm256_castps128_ps256(f0), f1, 1));
    return _mm256_add_epi32(f, over);
}

/* The upper half of each lane in both halves. */
NIB_AVX2 static inline __m256i top_twice(__m256i v)
{
    return _mm256_blend_epi16(_mm256_srli_epi32(v, 16), v, 0xaa);
}

NIB_AVX2 static inline void store_bound(struct thresholds *t, int i, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)t->bound[i], v);
}

NIB_AVX2 static void find_thresholds(const uint8_t *scales, float g, float unit, struct thresholds *t)
{
    const __m256 d = _mm256_mul_ps(nib_quant_e4m3_to_ps(scales), _mm256_set1_ps(g)),
                 inf = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
    const __m256 dead = _mm256_cmp_ps(d, _mm256_setzero_ps(), _CMP_EQ_OQ), safe = _mm256_blendv_ps(d, inf, dead);
    __m256i      top[N_STEPS];
    for (int i = 0; i < N_STEPS; i++)
        top[i] = top_twice(exact_step(safe, i));
    store_bound(t, T_025, top[0]);
    store_bound(t, T_075, top[1]);
    store_bound(t, T_125, top[2]);
    store_bound(t, T_600, top[4]);
    store_bound(t, A_125, _mm256_sub_epi16(top[2], _mm256_set1_epi16(BINADE - 1)));
    store_bound(t, A_175, _mm256_sub_epi16(top[3], _mm256_set1_epi16(BINADE - 1)));
    t->dead = (unsigned)_mm256_movemask_ps(dead);
    _mm256_storeu_ps(t->d, _mm256_mul_ps(d, _mm256_set1_ps(unit)));
}

/* Under one global scale, bounds of normal scales with the same three bits of mantissa differ by powers of two: `one`
 * are those of the eight from 1 to 1.875. Groups that hold other scales, zeros too, are worked out in full. */
NIB_AVX2 static inline void look_up_thresholds(const struct thresholds *one, const uint8_t *scales, float g, float unit,
                                           struct thresholds *t)
{
    const __m256i s = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)scales));
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), s)) != 0) {
        find_thresholds(scales, g, unit, t);
        return;
    }
    const __m256i twice = _mm256_or_si256(s, _mm256_slli_epi32(s, 16));
    const __m256i shift = _mm256_sub_epi16(_mm256_slli_epi16(_mm256_srli_epi16(twice, 3), 7),
                                           _mm256_set1_epi16(7 * BINADE));
    for (int i = 0; i < N_BOUNDS; i++) {
        const __m256i row = _mm256_loadu_si256((const __m256i *)(const void *)one->bound[i]);
        store_bound(t, i, _mm256_add_epi16(_mm256_permutevar8x32_epi32(row, s), shift));
    }
    const __m256 v = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(s, 20), _mm256_set1_epi32(120 << 23)));
    _mm256_storeu_ps(t->d, _mm256_mul_ps(_mm256_mul_ps(v, _mm256_set1_ps(g)), _mm256_set1_ps(unit)));
    t->dead = 0;
}

NIB_AVX2 static inline __m256i word_pair(const uint32_t *v)
{
    return _mm256_set1_epi32((int)*v);
}

/* The eight partial sums of a kind. */
struct lanes {
    __m256 xx, yy, ee;
};

NIB_AVX2 static inline void add_half(struct lanes *l, __m256 x, __m256 y)
{
    const __m256 e = _mm256_sub_ps(x, y);
    l->xx = _mm256_fmadd_ps(x, x, l->xx);
    l->yy = _mm256_fmadd_ps(y, y, l->yy);
    l->ee = _mm256_fmadd_ps(e, e, l->ee);
}

/* Words that are BF16 to floats: of each 128 bits the first four, or the last four. */
NIB_AVX2 static inline __m256 first_ps(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_setzero_si256(), words));
}

NIB_AVX2 static inline __m256 last_ps(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_setzero_si256(), words));
}

/* A block: source words and decoded quotients, both BF16; d is in units too. `unit` is NULL where it is 1, as it nearly
 * always is. */
NIB_AVX2 static inline void add_block(struct lanes *l, __m256i x, __m256i q, __m256 d, const float *unit)
{
    const __m256 x0 = first_ps(x), x1 = last_ps(x);
    add_half(l, unit ? _mm256_mul_ps(x0, _mm256_broadcast_ss(unit)) : x0, _mm256_mul_ps(first_ps(q), d));
    add_half(l, unit ? _mm256_mul_ps(x1, _mm256_broadcast_ss(unit)) : x1, _mm256_mul_ps(last_ps(q), d));
}

NIB_AVX2 static double flush(__m256 *v)
{
    float  lane[8];
    double sum = 0;
    _mm256_storeu_ps(lane, *v);
    for (int i = 0; i < 8; i++)
        sum += (double)lane[i];
    *v = _mm256_setzero_ps();
    return sum;
}

NIB_AVX2 static inline void flush_lanes(struct lanes *l, struct nib_quant_sums *sums)
{
    sums->xx += flush(&l->xx);
    sums->yy += flush(&l->yy);
    sums->ee += flush(&l->ee);
}

/* E2M1 codes in bytes as BF16: the halves of each value by table. */
NIB_AVX2 static inline __m256i table_of(__m128i half)
{
    return _mm256_broadcastsi128_si256(half);
}

NIB_AVX2 static inline __m256i code_highs(__m256i codes)
{
    return _mm256_shuffle_epi8(
        table_of(_mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, (char)0x80, (char)0xbf, (char)0xbf,
                               (char)0xbf, (char)0xc0, (char)0xc0, (char)0xc0, (char)0xc0)),
        codes);
}

NIB_AVX2 static inline __m256i code_lows(__m256i codes)
{
    return _mm256_shuffle_epi8(table_of(_mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0, 0,
                                                      0, (char)0x80, (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0)),
                               codes);
}

/* How many steps each of 16 magnitudes passes; *saturated gets -1 for each that is beyond the grid. From 1.25 up steps
 * repeat with every binade, as BF16 numbers 128 apart, and so are counted by a shift; above 6 the count would go on. */
NIB_AVX2 static inline __m256i count_steps(__m256i magnitude, const struct thresholds *t, int b, __m256i *saturated)
{
    const __m256i above = _mm256_max_epi16(magnitude, word_pair(&t->bound[T_125][b]));
    const __m256i even = _mm256_srli_epi16(_mm256_sub_epi16(above, word_pair(&t->bound[A_125][b])), 7);
    const __m256i odd = _mm256_srli_epi16(_mm256_sub_epi16(above, word_pair(&t->bound[A_175][b])), 7);
    const __m256i half = _mm256_cmpgt_epi16(magnitude, word_pair(&t->bound[T_025][b]));
    const __m256i one = _mm256_cmpgt_epi16(magnitude, word_pair(&t->bound[T_075][b]));
    *saturated = _mm256_add_epi16(*saturated, _mm256_cmpgt_epi16(magnitude, word_pair(&t->bound[T_600][b])));
    return _mm256_min_epi16(_mm256_sub_epi16(_mm256_add_epi16(even, odd), _mm256_add_epi16(half, one)),
                            _mm256_set1_epi16(7));
}

/* Two blocks. Returns their codes, packed, in the lower bytes of words: 4 of the first block and 4 of the second from
 * their first halves, then the same of their last halves. An encoder keeps signs, so errors are those of magnitudes. */
NIB_AVX2 static inline __m256i two_codes(const uint16_t *x, const struct thresholds *t, int b, const float *unit,
                                     __m256i *saturated, struct lanes *l)
{
    const __m256i mask = _mm256_set1_epi16(0x7fff), w0 = nib_quant_load_words(x),
                  w1 = nib_quant_load_words(x + NIB_QUANT_BLOCK);
    const __m256i m0 = _mm256_and_si256(w0, mask), m1 = _mm256_and_si256(w1, mask);
    const __m256i counts = _mm256_packus_epi16(count_steps(m0, t, b, saturated), count_steps(m1, t, b + 1, saturated));
    const __m256i high = code_highs(counts), low = code_lows(counts);
    add_block(l, m0, _mm256_unpacklo_epi8(low, high), _mm256_broadcast_ss(&t->d[b]), unit);
    add_block(l, m1, _mm256_unpackhi_epi8(low, high), _mm256_broadcast_ss(&t->d[b + 1]), unit);
    /* Packing saturates a negative word to 0x80: finite ones are far below -128. */
    const __m256i signs = _mm256_and_si256(_mm256_srli_epi16(_mm256_packs_epi16(w0, w1), 4), _mm256_set1_epi8(8));
    return _mm256_maddubs_epi16(_mm256_or_si256(counts, signs), _mm256_set1_epi16(0x1001));
}

NIB_AVX2 static inline void encode_group(const uint16_t *x, const struct thresholds *t, const float *unit,
                                         uint8_t *codes, __m256i *saturated, struct lanes *l)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int b = 0; b < NIB_QUANT_GROUP; b += 4) {
        const __m256i a = two_codes(x + b * NIB_QUANT_BLOCK, t, b, unit, saturated, l);
        const __m256i c = two_codes(x + (b + 2) * NIB_QUANT_BLOCK, t, b + 2, unit, saturated, l);
        _mm256_storeu_si256((__m256i *)(void *)(codes + b * (NIB_QUANT_BLOCK / 2)),
                            _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, c), order));
    }
    for (unsigned dead = t->dead, b = 0; dead != 0; dead >>= 1, b++)
        if (dead & 1)
            memset(codes + b * (NIB_QUANT_BLOCK / 2), 0, NIB_QUANT_BLOCK / 2);
}

/* Rows follow each other: the next one is fetched from memory while this one is worked on. */
static inline void fetch_next(const struct nib_quant_row *r, int64_t group)
{
    const char *at = (const char *)(r->bf16 + (r->n_blocks + group * NIB_QUANT_GROUP) * NIB_QUANT_BLOCK);
    for (int k = 0; k < NIB_QUANT_GROUP * NIB_QUANT_BLOCK * 2; k += CACHE_LINE)
        __builtin_prefetch(at + k);
}

NIB_AVX2 static inline void flush_saturated(__m256i *saturated, struct nib_quant_sums *sums)
{
    int32_t part[8];
    _mm256_storeu_si256((__m256i *)(void *)part, _mm256_madd_epi16(*saturated, _mm256_set1_epi16(-1)));
    for (int k = 0; k < 8; k++)
        sums->saturated += part[k];
    *saturated = _mm256_setzero_si256();
}

/* Bounds first and then codes, several groups at a time, so that either keeps its constants in registers. */
NIB_AVX2 static inline void encode_groups(const struct nib_quant_row *r, int64_t n_groups, const float *unit,
                                      const uint8_t *scales, uint8_t *codes, struct nib_quant_sums *sums)
{
    struct lanes      l = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256i           saturated = _mm256_setzero_si256();
    static const uint8_t mantissas[NIB_QUANT_GROUP] = {0x38, 0x39, 0x3a, 0x3b, 0x3c, 0x3d, 0x3e, 0x3f};
    struct thresholds one, t[FLUSH_GROUPS];
    find_thresholds(mantissas, r->g, r->unit, &one);
    for (int64_t i = 0; i < n_groups; i += FLUSH_GROUPS) {
        for (int k = 0; k < FLUSH_GROUPS; k++)
            look_up_thresholds(&one, scales + (i + k) * NIB_QUANT_GROUP, r->g, r->unit, &t[k]);
        for (int k = 0; k < FLUSH_GROUPS; k++) {
            fetch_next(r, i + k);
            encode_group(r->bf16 + (i + k) * NIB_QUANT_GROUP * NIB_QUANT_BLOCK, &t[k], unit,
                         codes + (i + k) * NIB_QUANT_GROUP * (NIB_QUANT_BLOCK / 2), &saturated, &l);
        }
        flush_saturated(&saturated, sums);
        flush_lanes(&l, sums);
    }
}

NIB_AVX2 static void encode(const struct nib_quant_row *r, const uint8_t *scales, uint8_t *codes,
                        struct nib_quant_sums *sums)
{
    /* Groups end where the portable kernel adds up, so that what is left over begins a new sum there too. */
    const int64_t n_groups = r->bf16 && nib_quant_is_safe(r)
                                 ? r->n_blocks / (NIB_QUANT_GROUP * FLUSH_GROUPS) * FLUSH_GROUPS
                                 : 0;
    if (r->unit == 1)
        encode_groups(r, n_groups, NULL, scales, codes, sums);
    else
        encode_groups(r, n_groups, &r->unit, scales, codes, sums);
    const struct nib_quant_row rest = nib_quant_behind(r, n_groups * NIB_QUANT_GROUP);
    nib_quant_kernels_portable.encode(&rest, scales + n_groups * NIB_QUANT_GROUP,
                                      codes + n_groups * NIB_QUANT_GROUP * (NIB_QUANT_BLOCK / 2), sums);
}

/* Eight bytes of codes to 16, those of two blocks side by side in each half, as unpacking wants them. */
NIB_AVX2 static inline __m256i spread_codes(const uint8_t *codes)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)codes);
    const __m128i even = _mm_and_si128(bytes, _mm_set1_epi8(15)),
                  odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    return _mm256_permute4x64_epi64(_mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd)), 0xd8);
}

NIB_AVX2 static inline void measure_groups(const struct nib_quant_row *r, int64_t n_groups, const float *unit,
                                       const uint8_t *scales, const uint8_t *codes, struct nib_quant_sums *sums)
{
    const __m256 one = _mm256_set1_ps(r->unit), g = _mm256_set1_ps(r->g);
    struct lanes l = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t i = 0; i < n_groups; i++) {
        float d[NIB_QUANT_GROUP];
        _mm256_storeu_ps(d, _mm256_mul_ps(_mm256_mul_ps(nib_quant_e4m3_to_ps(scales + i * NIB_QUANT_GROUP), g), one));
        for (int b = 0; b < NIB_QUANT_GROUP; b += 2) {
            const int64_t   at = i * NIB_QUANT_GROUP + b;
            const uint16_t *x = r->bf16 + at * NIB_QUANT_BLOCK;
            const __m256i c = spread_codes(codes + at * (NIB_QUANT_BLOCK / 2)), high = code_highs(c),
                          low = code_lows(c);
            add_block(&l, nib_quant_load_words(x), _mm256_unpacklo_epi8(low, high), _mm256_broadcast_ss(&d[b]), unit);
            add_block(&l, nib_quant_load_words(x + NIB_QUANT_BLOCK), _mm256_unpackhi_epi8(low, high),
                      _mm256_broadcast_ss(&d[b + 1]), unit);
        }
        if ((i + 1) % FLUSH_GROUPS == 0)
            flush_lanes(&l, sums);
    }
}

NIB_AVX2 static void measure(const struct nib_quant_row *r, const uint8_t *scales, const uint8_t *codes,
                         struct nib_quant_sums *sums)
{
    const int64_t n_groups = r->bf16 ? r->n_blocks / (NIB_QUANT_GROUP * FLUSH_GROUPS) * FLUSH_GROUPS : 0;
    if (r->unit == 1)
        measure_groups(r, n_groups, NULL, scales, codes, sums);
    else
        measure_groups(r, n_groups, &r->unit, scales, codes, sums);
    const struct nib_quant_row rest = nib_quant_behind(r, n_groups * NIB_QUANT_GROUP);
    nib_quant_kernels_portable.measure(&rest, scales + n_groups * NIB_QUANT_GROUP,
                                       codes + n_groups * NIB_QUANT_GROUP * (NIB_QUANT_BLOCK / 2), sums);
}

NIB_AVX2 static void fp8_to_bf16(const uint8_t *x, int64_t n, int32_t k, uint16_t *out)
{
    /* Subnormals m * 2^-9 = BF16 with exponent 118 + floor(log2 m): the two bytes of each by table. */
    const __m256i low = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x20, 0x40, 0x60, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i high = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i shift = _mm256_set1_epi16((short)(k * 128)), bias = _mm256_set1_epi16((short)(120 * 128)),
                  zero = _mm256_setzero_si256();
    int64_t       i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(x + i)));
        const __m256i m = _mm256_and_si256(c, _mm256_set1_epi16(0x7f)),
                      sign = _mm256_slli_epi16(_mm256_and_si256(c, _mm256_set1_epi16(0x80)), 8);
        const __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(m, 4), bias);
        const __m256i small = _mm256_or_si256(_mm256_and_si256(_mm256_shuffle_epi8(low, m), _mm256_set1_epi16(0xff)),
                                              _mm256_slli_epi16(_mm256_shuffle_epi8(high, m), 8));
        const __m256i value = _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi16(_mm256_set1_epi16(8), m));
        const __m256i scaled = _mm256_andnot_si256(_mm256_cmpeq_epi16(m, zero), _mm256_add_epi16(value, shift));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), _mm256_or_si256(scaled, sign));
    }
    nib_quant_kernels_portable.fp8_to_bf16(x + i, n - i, k, out + i);
}

const struct nib_quant_kernels nib_quant_kernels_avx2 = {.absmax = absmax,
                                                         .choose = nib_quant_choose_avx2,
                                                         .encode = encode,
                                                         .measure = measure,
                                                         .fp8_to_bf16 = fp8_to_bf16};

#else
typedef int nib_quant_no_avx2; /* a translation unit may not be empty */
#endif
