/* The kernels for AVX2, eight blocks of a BF16 row at a time; F32 rows and what is left over go to the portable ones.
 *
 * Codes without divisions: whether fp32(|x| / d) passes a threshold T of the grid depends on |x| alone once d is known. The
 * quotient rounds to more than T (to T or more, where a tie goes up) exactly if |x| > d * (T + u/2) (>= d * (T - u/2)), u being the
 * last place at T: T itself is even, so the half-way case rounds to T. d * (T +- u/2) is exact in double (24 + 25 bits), and is
 * turned into the largest BF16 that does not pass, which 16-bit comparisons use, a block at a time.
 * tests/unit/test_quantize_kernels.c compares with true divisions over every BF16 value. */
#if defined(__x86_64__)

#include "quantize/kernels_quant.h"

#include <immintrin.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e4m3.h"

#define AVX2 __attribute__((target("avx2")))

enum { GROUP = 8, N_STEPS = 7, FLUSH_GROUPS = 4 };

/* The seven steps between codes, and saturation; `up_at`: a value at the bound itself passes. */
static const struct {
    double bound;
    bool   up_at;
} k_step[N_STEPS + 1] = {{0.25 + 0x1p-26, false}, {0.75 - 0x1p-25, true}, {1.25 + 0x1p-24, false}, {1.75 - 0x1p-24, true},
                         {2.5 + 0x1p-23, false},  {3.5 - 0x1p-23, true},  {5.0 + 0x1p-22, false},  {6.0 + 0x1p-22, false}};

/* A row without its first b blocks. */
static struct nib_quant_row behind(const struct nib_quant_row *r, int64_t b)
{
    struct nib_quant_row rest = *r;
    rest.n_blocks -= b;
    if (rest.bf16)
        rest.bf16 += b * NIB_QUANT_BLOCK;
    if (rest.f32)
        rest.f32 += b * NIB_QUANT_BLOCK;
    if (rest.weight)
        rest.weight += b * NIB_QUANT_BLOCK;
    return rest;
}

AVX2 static inline __m256i load_words(const uint16_t *x)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)x);
}

/* Largest of 16 magnitudes: the minimum of their complements. */
AVX2 static inline uint32_t block_absmax(const uint16_t *x)
{
    const __m256i magnitude = _mm256_and_si256(load_words(x), _mm256_set1_epi16(0x7fff));
    const __m128i most = _mm_max_epu16(_mm256_castsi256_si128(magnitude), _mm256_extracti128_si256(magnitude, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1)));
    return ~(uint32_t)_mm_cvtsi128_si32(least) & 0xffffu;
}

AVX2 static float absmax(const struct nib_quant_row *r)
{
    if (!r->bf16)
        return nib_quant_kernels_portable.absmax(r);
    __m256i most = _mm256_setzero_si256();
    for (int64_t b = 0; b < r->n_blocks; b++)
        most = _mm256_max_epu16(most, _mm256_and_si256(load_words(r->bf16 + b * NIB_QUANT_BLOCK), _mm256_set1_epi16(0x7fff)));
    uint16_t lane[16];
    uint32_t best = 0;
    _mm256_storeu_si256((__m256i *)(void *)lane, most);
    for (int i = 0; i < 16; i++)
        best = lane[i] > best ? lane[i] : best;
    return nib_f32_from_bits(best << 16);
}

/* Eight UE4M3 bytes as floats. */
AVX2 static inline __m256 e4m3_to_ps(const uint8_t *scales)
{
    const __m256i m = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)scales));
    const __m256  normal = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(m, 20), _mm256_set1_epi32(120 << 23)));
    const __m256  small = _mm256_mul_ps(_mm256_cvtepi32_ps(m), _mm256_set1_ps(0x1p-9f));
    return _mm256_blendv_ps(normal, small, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), m)));
}

/* Eight floats in [0, 448] to UE4M3, in 32-bit lanes. */
AVX2 static inline __m256i e4m3_from_ps(__m256 v)
{
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 20), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7ffff)), odd);
    const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
    const __m256  steps = _mm256_add_ps(_mm256_mul_ps(v, _mm256_set1_ps(512.0f)), _mm256_set1_ps(8388608.0f));
    const __m256i small = _mm256_and_si256(_mm256_castps_si256(steps), _mm256_set1_epi32(0xf));
    return _mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(u, _mm256_set1_epi32(0x3c7fffff)));
}

/* Byte 0 of each of eight lanes. */
AVX2 static inline void store_bytes(uint8_t *to, __m256i v)
{
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64((__m128i *)(void *)to, _mm_packus_epi16(words, words));
}

AVX2 static void choose_absmax(const struct nib_quant_row *r, int64_t n_groups, uint8_t *scales)
{
    const __m256 six = _mm256_set1_ps(6.0f), g = _mm256_set1_ps(r->g), most = _mm256_set1_ps(NIB_E4M3_MAX);
    for (int64_t i = 0; i < n_groups; i++) {
        uint32_t amax[GROUP];
        for (int b = 0; b < GROUP; b++)
            amax[b] = block_absmax(r->bf16 + (i * GROUP + b) * NIB_QUANT_BLOCK) << 16;
        const __m256 a = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *)(const void *)amax));
        const __m256 s = _mm256_div_ps(_mm256_div_ps(a, six), g);
        store_bytes(scales + i * GROUP, e4m3_from_ps(_mm256_min_ps(s, most)));
    }
}

/* |x| / d rounded to E2M1, as nib_quant_round(). */
AVX2 static inline __m256 round_ps(__m256 y)
{
    const __m256 h = _mm256_set1_ps(0x1.8p+22f), o = _mm256_set1_ps(0x1.8p+23f), t = _mm256_set1_ps(0x1.8p+24f);
    const __m256 halves = _mm256_sub_ps(_mm256_add_ps(y, h), h), ones = _mm256_sub_ps(_mm256_add_ps(y, o), o);
    const __m256 twos = _mm256_min_ps(_mm256_sub_ps(_mm256_add_ps(y, t), t), _mm256_set1_ps(6.0f));
    const __m256 upper = _mm256_blendv_ps(twos, ones, _mm256_cmp_ps(y, _mm256_set1_ps(4.0f), _CMP_LT_OQ));
    return _mm256_blendv_ps(upper, halves, _mm256_cmp_ps(y, _mm256_set1_ps(2.0f), _CMP_LT_OQ));
}

/* Errors of 16 candidates from `first` up for one block: lanes are candidates, so sums run over elements in order. */
AVX2 static inline void block_errors(const struct nib_quant_row *r, int64_t b, uint8_t first, float error[NIB_QUANT_CANDIDATES])
{
    uint8_t s[NIB_QUANT_CANDIDATES];
    float   a[NIB_QUANT_BLOCK];
    for (int i = 0; i < NIB_QUANT_CANDIDATES; i++)
        s[i] = (uint8_t)(first + i);
    const __m256i magnitude = _mm256_and_si256(load_words(r->bf16 + b * NIB_QUANT_BLOCK), _mm256_set1_epi16(0x7fff));
    const __m256  unit = _mm256_set1_ps(r->unit), g = _mm256_set1_ps(r->g), one = _mm256_set1_ps(1.0f);
    const __m256i low = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(magnitude)), 16);
    const __m256i high = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(magnitude, 1)), 16);
    _mm256_storeu_ps(a, _mm256_mul_ps(_mm256_castsi256_ps(low), unit));
    _mm256_storeu_ps(a + 8, _mm256_mul_ps(_mm256_castsi256_ps(high), unit));
    const __m256 d0 = _mm256_mul_ps(_mm256_mul_ps(e4m3_to_ps(s), g), unit), d1 = _mm256_mul_ps(_mm256_mul_ps(e4m3_to_ps(s + 8), g), unit);
    const __m256 i0 = _mm256_div_ps(one, d0), i1 = _mm256_div_ps(one, d1);
    __m256       sum0 = _mm256_setzero_ps(), sum1 = _mm256_setzero_ps();
    for (int k = 0; k < NIB_QUANT_BLOCK; k++) {
        const __m256 x = _mm256_broadcast_ss(a + k);
        const __m256 e0 = _mm256_sub_ps(x, _mm256_mul_ps(round_ps(_mm256_mul_ps(x, i0)), d0));
        const __m256 e1 = _mm256_sub_ps(x, _mm256_mul_ps(round_ps(_mm256_mul_ps(x, i1)), d1));
        __m256       ee0 = _mm256_mul_ps(e0, e0), ee1 = _mm256_mul_ps(e1, e1);
        if (r->weight) {
            const __m256 h = _mm256_broadcast_ss(r->weight + b * NIB_QUANT_BLOCK + k);
            ee0 = _mm256_mul_ps(ee0, h);
            ee1 = _mm256_mul_ps(ee1, h);
        }
        sum0 = _mm256_add_ps(sum0, ee0);
        sum1 = _mm256_add_ps(sum1, ee1);
    }
    _mm256_storeu_ps(error, sum0);
    _mm256_storeu_ps(error + 8, sum1);
}

AVX2 static void choose_mse(const struct nib_quant_row *r, uint8_t *scales)
{
    for (int64_t b = 0; b < r->n_blocks; b++) {
        float       error[NIB_QUANT_CANDIDATES];
        const float amax = nib_f32_from_bits(block_absmax(r->bf16 + b * NIB_QUANT_BLOCK) << 16);
        int         best = 0;
        scales[b] = 0;
        if (amax == 0)
            continue;
        const uint8_t first = nib_quant_first_candidate(amax / 6.0f / r->g);
        block_errors(r, b, first, error);
        for (int i = 1; i < NIB_QUANT_CANDIDATES; i++)
            best = error[i] < error[best] ? i : best;
        scales[b] = (uint8_t)(first + best);
    }
}

AVX2 static void choose(const struct nib_quant_row *r, enum nib_quant_choice how, uint8_t *scales)
{
    if (!r->bf16 || how == NIB_QUANT_CHOOSE_4OVER6) {
        nib_quant_kernels_portable.choose(r, how, scales);
        return;
    }
    if (how == NIB_QUANT_CHOOSE_MSE) {
        choose_mse(r, scales);
        return;
    }
    const int64_t n_groups = r->n_blocks / GROUP;
    choose_absmax(r, n_groups, scales);
    const struct nib_quant_row rest = behind(r, n_groups * GROUP);
    nib_quant_kernels_portable.choose(&rest, how, scales + n_groups * GROUP);
}

/* For each step and block of a group the largest BF16 magnitude that does not pass, twice in 32 bits; and which blocks are not all
 * zero, as masks (in the others nothing passes). */
struct thresholds {
    uint32_t step[N_STEPS + 1][GROUP];
    uint32_t live[GROUP];
    float    d[GROUP];
};

/* Exactly, through double. Returns the bits of the largest float that does not pass. */
AVX2 static __m256i exact_step(__m256 d, int i)
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

/* fp32(d * T) is within two places of the exact bound, so its upper half is the answer unless its lower half is within two of a
 * carry; d must then be a normal number, and all its products. */
AVX2 static inline void find_thresholds(const uint8_t *scales, float g, struct thresholds *t)
{
    static const float step[N_STEPS + 1] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f};
    const __m256  d = _mm256_mul_ps(e4m3_to_ps(scales), _mm256_set1_ps(g));
    const __m256i live = _mm256_castps_si256(_mm256_cmp_ps(d, _mm256_setzero_ps(), _CMP_GT_OQ));
    const __m256  small = _mm256_cmp_ps(d, _mm256_set1_ps(0x1p-100f), _CMP_LT_OQ), large = _mm256_cmp_ps(d, _mm256_set1_ps(0x1p+100f), _CMP_GT_OQ);
    __m256i       unsure = _mm256_and_si256(_mm256_castps_si256(_mm256_or_ps(small, large)), live);
    const __m256i nothing = _mm256_andnot_si256(live, _mm256_set1_epi32(0x7fff7fff));
    for (int i = 0; i <= N_STEPS; i++) {
        const __m256i p = _mm256_castps_si256(_mm256_mul_ps(d, _mm256_set1_ps(step[i])));
        const __m256i low = _mm256_and_si256(_mm256_add_epi32(p, _mm256_set1_epi32(2)), _mm256_set1_epi32(0xffff));
        const __m256i top = _mm256_srli_epi32(p, 16);
        unsure = _mm256_or_si256(unsure, _mm256_and_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(5), low), live));
        _mm256_storeu_si256((__m256i *)(void *)t->step[i], _mm256_or_si256(_mm256_or_si256(top, _mm256_slli_epi32(top, 16)), nothing));
    }
    for (int i = 0; i <= N_STEPS && !_mm256_testz_si256(unsure, unsure); i++) {
        const __m256i top = _mm256_srli_epi32(exact_step(d, i), 16);
        _mm256_storeu_si256((__m256i *)(void *)t->step[i], _mm256_or_si256(_mm256_or_si256(top, _mm256_slli_epi32(top, 16)), nothing));
    }
    _mm256_storeu_si256((__m256i *)(void *)t->live, live);
    _mm256_storeu_ps(t->d, d);
}

AVX2 static inline __m256i word_pair(const uint32_t *v)
{
    return _mm256_set1_epi32((int)*v);
}

/* The eight partial sums of a kind. */
struct lanes {
    __m256 xx, yy, ee;
};

AVX2 static inline void add_half(struct lanes *l, __m256 x, __m256 y)
{
    const __m256 e = _mm256_sub_ps(x, y);
    l->xx = _mm256_add_ps(l->xx, _mm256_mul_ps(x, x));
    l->yy = _mm256_add_ps(l->yy, _mm256_mul_ps(y, y));
    l->ee = _mm256_add_ps(l->ee, _mm256_mul_ps(e, e));
}

AVX2 static double flush(__m256 *v)
{
    float  lane[8];
    double sum = 0;
    _mm256_storeu_ps(lane, *v);
    for (int i = 0; i < 8; i++)
        sum += (double)lane[i];
    *v = _mm256_setzero_ps();
    return sum;
}

AVX2 static inline void flush_lanes(struct lanes *l, struct nib_quant_sums *sums)
{
    sums->xx += flush(&l->xx);
    sums->yy += flush(&l->yy);
    sums->ee += flush(&l->ee);
}

AVX2 static inline __m256 magnitudes(void)
{
    return _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
}

AVX2 static inline __m256 words_to_ps(__m128i words, float unit)
{
    const __m256 x = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
    return unit == 1 ? x : _mm256_mul_ps(x, _mm256_set1_ps(unit));
}

/* Codes of one block, as bytes in 32-bit lanes; *saturated gets -1 for each saturated word. An encoder keeps signs, so errors are
 * those of magnitudes. */
AVX2 static inline __m256i block_codes(const uint16_t *x, const struct thresholds *t, int b, float unit, __m256i *saturated, struct lanes *l)
{
    const __m256i word = load_words(x), magnitude = _mm256_and_si256(word, _mm256_set1_epi16(0x7fff));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(word, 12), _mm256_set1_epi16(8));
    __m256i       count = _mm256_setzero_si256();
    for (int i = 0; i < N_STEPS; i++)
        count = _mm256_sub_epi16(count, _mm256_cmpgt_epi16(magnitude, word_pair(&t->step[i][b])));
    *saturated = _mm256_add_epi16(*saturated, _mm256_cmpgt_epi16(magnitude, word_pair(&t->step[N_STEPS][b])));
    const __m256 d = _mm256_set1_ps(t->d[b] * unit);
    const __m256 y0 = _mm256_permutevar8x32_ps(magnitudes(), _mm256_cvtepu16_epi32(_mm256_castsi256_si128(count)));
    const __m256 y1 = _mm256_permutevar8x32_ps(magnitudes(), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(count, 1)));
    add_half(l, words_to_ps(_mm256_castsi256_si128(magnitude), unit), _mm256_mul_ps(y0, d));
    add_half(l, words_to_ps(_mm256_extracti128_si256(magnitude, 1), unit), _mm256_mul_ps(y1, d));
    const __m256i pairs = _mm256_madd_epi16(_mm256_or_si256(count, sign), _mm256_set1_epi32(0x00100001));
    return _mm256_and_si256(pairs, word_pair(&t->live[b]));
}

AVX2 static void encode(const struct nib_quant_row *r, const uint8_t *scales, uint8_t *codes, struct nib_quant_sums *sums)
{
    /* Groups end where the portable kernel adds up, so that what is left over begins a new sum there too. */
    const int64_t     n_groups = r->bf16 ? r->n_blocks / (GROUP * FLUSH_GROUPS) * FLUSH_GROUPS : 0;
    const __m256i     order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    struct lanes      l = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256i           saturated = _mm256_setzero_si256();
    struct thresholds t;
    for (int64_t i = 0; i < n_groups; i++) {
        const uint16_t *x = r->bf16 + i * GROUP * NIB_QUANT_BLOCK;
        find_thresholds(scales + i * GROUP, r->g, &t);
        for (int b = 0; b < GROUP; b += 4) {
            const __m256i c0 = block_codes(x + b * NIB_QUANT_BLOCK, &t, b, r->unit, &saturated, &l);
            const __m256i c1 = block_codes(x + (b + 1) * NIB_QUANT_BLOCK, &t, b + 1, r->unit, &saturated, &l);
            const __m256i c2 = block_codes(x + (b + 2) * NIB_QUANT_BLOCK, &t, b + 2, r->unit, &saturated, &l);
            const __m256i c3 = block_codes(x + (b + 3) * NIB_QUANT_BLOCK, &t, b + 3, r->unit, &saturated, &l);
            const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(c0, c1), _mm256_packus_epi32(c2, c3));
            _mm256_storeu_si256((__m256i *)(void *)(codes + (i * GROUP + b) * (NIB_QUANT_BLOCK / 2)),
                                _mm256_permutevar8x32_epi32(packed, order));
        }
        if ((i + 1) % FLUSH_GROUPS == 0) {
            int32_t part[8];
            _mm256_storeu_si256((__m256i *)(void *)part, _mm256_madd_epi16(saturated, _mm256_set1_epi16(-1)));
            for (int k = 0; k < 8; k++)
                sums->saturated += part[k];
            saturated = _mm256_setzero_si256();
            flush_lanes(&l, sums);
        }
    }
    const struct nib_quant_row rest = behind(r, n_groups * GROUP);
    nib_quant_kernels_portable.encode(&rest, scales + n_groups * GROUP, codes + n_groups * GROUP * (NIB_QUANT_BLOCK / 2), sums);
}

AVX2 static inline __m256 decode_half(uint32_t code, __m256 d)
{
    const __m256i nibble = _mm256_srlv_epi32(_mm256_set1_epi32((int)code), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(nibble, 28), _mm256_set1_epi32((int)0x80000000u));
    return _mm256_mul_ps(_mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes(), nibble), _mm256_castsi256_ps(sign)), d);
}

AVX2 static void measure(const struct nib_quant_row *r, const uint8_t *scales, const uint8_t *codes, struct nib_quant_sums *sums)
{
    const int64_t n_groups = r->bf16 ? r->n_blocks / (GROUP * FLUSH_GROUPS) * FLUSH_GROUPS : 0;
    const __m256  unit = _mm256_set1_ps(r->unit), g = _mm256_set1_ps(r->g);
    struct lanes  l = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t i = 0; i < n_groups; i++) {
        float d[GROUP];
        _mm256_storeu_ps(d, _mm256_mul_ps(_mm256_mul_ps(e4m3_to_ps(scales + i * GROUP), g), unit));
        for (int64_t b = i * GROUP; b < (i + 1) * GROUP; b++) {
            uint32_t      code[2];
            const __m256i x = load_words(r->bf16 + b * NIB_QUANT_BLOCK);
            const __m256  db = _mm256_broadcast_ss(&d[b % GROUP]);
            memcpy(code, codes + b * (NIB_QUANT_BLOCK / 2), sizeof code);
            add_half(&l, words_to_ps(_mm256_castsi256_si128(x), r->unit), decode_half(code[0], db));
            add_half(&l, words_to_ps(_mm256_extracti128_si256(x, 1), r->unit), decode_half(code[1], db));
        }
        if ((i + 1) % FLUSH_GROUPS == 0)
            flush_lanes(&l, sums);
    }
    const struct nib_quant_row rest = behind(r, n_groups * GROUP);
    nib_quant_kernels_portable.measure(&rest, scales + n_groups * GROUP, codes + n_groups * GROUP * (NIB_QUANT_BLOCK / 2), sums);
}

AVX2 static void fp8_to_bf16(const uint8_t *x, int64_t n, int32_t k, uint16_t *out)
{
    /* Subnormals m * 2^-9 = BF16 with exponent 118 + floor(log2 m): the two bytes of each by table. */
    const __m256i low = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x20, 0x40, 0x60, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i high = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i shift = _mm256_set1_epi16((short)(k * 128)), bias = _mm256_set1_epi16((short)(120 * 128)), zero = _mm256_setzero_si256();
    int64_t       i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(x + i)));
        const __m256i m = _mm256_and_si256(c, _mm256_set1_epi16(0x7f)), sign = _mm256_slli_epi16(_mm256_and_si256(c, _mm256_set1_epi16(0x80)), 8);
        const __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(m, 4), bias);
        const __m256i small = _mm256_or_si256(_mm256_and_si256(_mm256_shuffle_epi8(low, m), _mm256_set1_epi16(0xff)),
                                              _mm256_slli_epi16(_mm256_shuffle_epi8(high, m), 8));
        const __m256i value = _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi16(_mm256_set1_epi16(8), m));
        const __m256i scaled = _mm256_andnot_si256(_mm256_cmpeq_epi16(m, zero), _mm256_add_epi16(value, shift));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), _mm256_or_si256(scaled, sign));
    }
    nib_quant_kernels_portable.fp8_to_bf16(x + i, n - i, k, out + i);
}

const struct nib_quant_kernels nib_quant_kernels_avx2 = {
    .absmax = absmax, .choose = choose, .encode = encode, .measure = measure, .fp8_to_bf16 = fp8_to_bf16};

#else
typedef int nib_quant_no_avx2; /* a translation unit may not be empty */
#endif
