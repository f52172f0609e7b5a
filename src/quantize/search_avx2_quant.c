/* Scales of AVX2 rows, eight blocks at a time; what is left over goes to the portable kernels. A search has the 16
 * candidates of one block in its lanes. */
#if defined(__x86_64__)

#include "quantize/lanes_avx2_quant.h"

#include <math.h>

#include "number/e4m3.h"

/* Eight floats in [0, 448] to UE4M3, in 32-bit lanes. */
NIB_AVX2 static inline __m256i e4m3_from_ps(__m256 v)
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
NIB_AVX2 static inline void store_bytes(uint8_t *to, __m256i v)
{
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64((__m128i *)(void *)to, _mm_packus_epi16(words, words));
}

/* Magnitudes of a block and the one four further, each reduced to its own half. */
NIB_AVX2 static inline __m256i two_blocks(const uint16_t *x)
{
    const __m256i mask = _mm256_set1_epi16(0x7fff), a = _mm256_and_si256(nib_quant_load_words(x), mask);
    const __m256i b = _mm256_and_si256(nib_quant_load_words(x + 4 * NIB_QUANT_BLOCK), mask);
    return _mm256_max_epu16(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

/* The largest magnitude of each of eight blocks, by halving all of them together. */
NIB_AVX2 static inline __m256 group_absmax(const uint16_t *x)
{
    __m256i half[4], quarter[2];
    for (int i = 0; i < 4; i++)
        half[i] = two_blocks(x + i * NIB_QUANT_BLOCK);
    for (int i = 0; i < 2; i++)
        quarter[i] = _mm256_max_epu16(_mm256_unpacklo_epi64(half[2 * i], half[2 * i + 1]),
                                      _mm256_unpackhi_epi64(half[2 * i], half[2 * i + 1]));
    const __m256  a = _mm256_castsi256_ps(quarter[0]), b = _mm256_castsi256_ps(quarter[1]);
    const __m256i pair = _mm256_max_epu16(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
                                          _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)));
    const __m256i most = _mm256_max_epu16(pair, _mm256_slli_epi32(pair, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(most, _mm256_set1_epi32((int)0xffff0000u)));
}

/* The same of floats. */
NIB_AVX2 static inline __m256 group_absmax_f32(const float *x)
{
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    float        most[NIB_QUANT_GROUP];
    for (int b = 0; b < NIB_QUANT_GROUP; b++, x += NIB_QUANT_BLOCK) {
        __m256 m = _mm256_max_ps(_mm256_and_ps(_mm256_loadu_ps(x), mask), _mm256_and_ps(_mm256_loadu_ps(x + 8), mask));
        m = _mm256_max_ps(m, _mm256_permute2f128_ps(m, m, 1));
        m = _mm256_max_ps(m, _mm256_permute_ps(m, 0x4e));
        most[b] = _mm256_cvtss_f32(_mm256_max_ps(m, _mm256_permute_ps(m, 0xb1)));
    }
    return _mm256_loadu_ps(most);
}

/* |x| / d rounded to E2M1, as nib_quant_round(): 1.5 * 2^22 times y's power of two, at least 1, added and subtracted
 * rounds to a half, one or two, whichever is y's step. */
NIB_AVX2 static inline __m256 round_ps(__m256 y)
{
    const __m256  most = _mm256_min_ps(y, _mm256_set1_ps(6.0f)), power = _mm256_and_ps(most, _mm256_set1_ps(INFINITY));
    const __m256i least_one = _mm256_castps_si256(_mm256_max_ps(power, _mm256_set1_ps(1.0f)));
    const __m256  big = _mm256_castsi256_ps(_mm256_add_epi32(least_one, _mm256_set1_epi32((22 << 23) + (1 << 22))));
    return _mm256_sub_ps(_mm256_add_ps(most, big), big);
}

/* Magnitudes of a block, in units. */
NIB_AVX2 static inline void block_values(const struct nib_quant_row *r, int64_t b, float a[NIB_QUANT_BLOCK])
{
    const __m256 unit = _mm256_set1_ps(r->unit), mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    for (int i = 0; i < NIB_QUANT_BLOCK; i += 8) {
        const int64_t at = b * NIB_QUANT_BLOCK + i;
        const __m256 x =
            r->f32 ? _mm256_loadu_ps(r->f32 + at)
                   : _mm256_castsi256_ps(_mm256_slli_epi32(
                         _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(r->bf16 + at))), 16));
        _mm256_storeu_ps(a + i, _mm256_mul_ps(_mm256_and_ps(x, mask), unit));
    }
}

/* Errors of 16 candidates from `first` up for one block: lanes are candidates, so sums run over elements in order. */
NIB_AVX2 static inline void block_errors(const struct nib_quant_row *r, int64_t b, const float *weight, uint8_t first,
                                     __m256 error[2])
{
    uint8_t s[NIB_QUANT_CANDIDATES];
    float   a[NIB_QUANT_BLOCK];
    for (int i = 0; i < NIB_QUANT_CANDIDATES; i++)
        s[i] = (uint8_t)(first + i);
    block_values(r, b, a);
    const __m256 unit = _mm256_set1_ps(r->unit), g = _mm256_set1_ps(r->g), one = _mm256_set1_ps(1.0f);
    const __m256 d0 = _mm256_mul_ps(_mm256_mul_ps(nib_quant_e4m3_to_ps(s), g), unit),
                 d1 = _mm256_mul_ps(_mm256_mul_ps(nib_quant_e4m3_to_ps(s + 8), g), unit);
    const __m256 i0 = _mm256_div_ps(one, d0), i1 = _mm256_div_ps(one, d1);
    __m256       sum0 = _mm256_setzero_ps(), sum1 = _mm256_setzero_ps();
    for (int k = 0; k < NIB_QUANT_BLOCK; k++) {
        const __m256 x = _mm256_broadcast_ss(a + k);
        const __m256 e0 = _mm256_sub_ps(x, _mm256_mul_ps(round_ps(_mm256_mul_ps(x, i0)), d0));
        const __m256 e1 = _mm256_sub_ps(x, _mm256_mul_ps(round_ps(_mm256_mul_ps(x, i1)), d1));
        const __m256 ee0 = _mm256_mul_ps(e0, e0), ee1 = _mm256_mul_ps(e1, e1);
        const __m256 h = weight ? _mm256_broadcast_ss(weight + b * NIB_QUANT_BLOCK + k) : one;
        sum0 = _mm256_add_ps(sum0, weight ? _mm256_mul_ps(ee0, h) : ee0);
        sum1 = _mm256_add_ps(sum1, weight ? _mm256_mul_ps(ee1, h) : ee1);
    }
    error[0] = sum0;
    error[1] = sum1;
}

/* The first of the smallest. */
NIB_AVX2 static inline int least_of(const __m256 error[2])
{
    __m256 m = _mm256_min_ps(error[0], error[1]);
    m = _mm256_min_ps(m, _mm256_permute2f128_ps(m, m, 1));
    m = _mm256_min_ps(m, _mm256_permute_ps(m, 0x4e));
    m = _mm256_min_ps(m, _mm256_permute_ps(m, 0xb1));
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(error[0], m, _CMP_EQ_OQ)),
              high = _mm256_movemask_ps(_mm256_cmp_ps(error[1], m, _CMP_EQ_OQ));
    return __builtin_ctz((unsigned)low | (unsigned)high << 8 | 1u << 16);
}

/* Scales from the largest magnitudes of a group of blocks: e4m3(min(amax / target / g, 448)). */
NIB_AVX2 static inline __m256i scales_for(__m256 amax, float target, float g)
{
    const __m256 s = _mm256_div_ps(_mm256_div_ps(amax, _mm256_set1_ps(target)), _mm256_set1_ps(g));
    return e4m3_from_ps(_mm256_min_ps(s, _mm256_set1_ps(NIB_E4M3_MAX)));
}

/* First candidates of a search, as nib_quant_first_candidate(). */
NIB_AVX2 static inline __m256i first_candidates(__m256 amax, float g)
{
    const __m256  t = _mm256_div_ps(_mm256_div_ps(amax, _mm256_set1_ps(6.0f)), _mm256_set1_ps(g));
    const __m256i c = e4m3_from_ps(_mm256_min_ps(_mm256_mul_ps(t, _mm256_set1_ps(0.6f)), _mm256_set1_ps(NIB_E4M3_MAX)));
    return _mm256_min_epi32(_mm256_max_epi32(c, _mm256_set1_epi32(1)), _mm256_set1_epi32(NIB_QUANT_FIRST_MAX));
}

NIB_AVX2 static inline void choose_mse(const struct nib_quant_row *r, int64_t at, __m256 amax, const float *weight,
                                   uint8_t *scales)
{
    uint8_t   first[NIB_QUANT_GROUP];
    const int zero = _mm256_movemask_ps(_mm256_cmp_ps(amax, _mm256_setzero_ps(), _CMP_EQ_OQ));
    store_bytes(first, first_candidates(amax, r->g));
    for (int b = 0; b < NIB_QUANT_GROUP; b++) {
        __m256 error[2];
        block_errors(r, at + b, weight, first[b], error);
        scales[b] = zero >> b & 1 ? 0 : (uint8_t)(first[b] + least_of(error));
    }
}

/* The scale that maps the largest to 4 is at most eight codes above the one for 6: both are among 16 candidates. */
NIB_AVX2 static inline void choose_4over6(const struct nib_quant_row *r, int64_t at, __m256 amax, const float *weight,
                                      uint8_t *scales)
{
    uint8_t six[NIB_QUANT_GROUP], four[NIB_QUANT_GROUP];
    store_bytes(six, scales_for(amax, 6.0f, r->g));
    store_bytes(four, scales_for(amax, 4.0f, r->g));
    for (int b = 0; b < NIB_QUANT_GROUP; b++) {
        __m256 error[2];
        float  e[NIB_QUANT_CANDIDATES];
        block_errors(r, at + b, weight, six[b], error);
        _mm256_storeu_ps(e, error[0]);
        _mm256_storeu_ps(e + 8, error[1]);
        scales[b] = six[b] == 0 || e[(four[b] - six[b]) & 15] < e[0] ? four[b] : six[b];
    }
}

NIB_AVX2 static inline void choose_group(const struct nib_quant_row *r, int64_t at, enum nib_quant_choice how,
                                     const float *weight, uint8_t *scales)
{
    const __m256 amax = r->f32 ? group_absmax_f32(r->f32 + at * NIB_QUANT_BLOCK)
                               : group_absmax(r->bf16 + at * NIB_QUANT_BLOCK);
    if (how == NIB_QUANT_CHOOSE_ABSMAX)
        store_bytes(scales + at, scales_for(amax, 6.0f, r->g));
    else if (how == NIB_QUANT_CHOOSE_4OVER6)
        choose_4over6(r, at, amax, weight, scales + at);
    else
        choose_mse(r, at, amax, weight, scales + at);
}

NIB_AVX2 void nib_quant_choose_avx2(const struct nib_quant_row *r, enum nib_quant_choice how, uint8_t *scales)
{
    const int64_t n_groups = nib_quant_is_safe(r) ? r->n_blocks / NIB_QUANT_GROUP : 0;
    for (int64_t i = 0; i < n_groups; i++) {
        if (r->weight)
            choose_group(r, i * NIB_QUANT_GROUP, how, r->weight, scales);
        else
            choose_group(r, i * NIB_QUANT_GROUP, how, NULL, scales);
    }
    const struct nib_quant_row rest = nib_quant_behind(r, n_groups * NIB_QUANT_GROUP);
    nib_quant_kernels_portable.choose(&rest, how, scales + n_groups * NIB_QUANT_GROUP);
}

#else
typedef int nib_quant_no_search_avx2; /* a translation unit may not be empty */
#endif
