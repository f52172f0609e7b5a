/* What the AVX2 kernels share: kernels_avx2_quant.c makes codes, search_avx2_quant.c chooses scales. */
#ifndef NIB_LANES_AVX2_QUANT_H
#define NIB_LANES_AVX2_QUANT_H

#include <immintrin.h>

#include "quantize/kernels_quant.h"

#define NIB_AVX2 __attribute__((target("avx2,fma")))

/* Blocks at a time. */
#define NIB_QUANT_GROUP 8

/* Scales of a row, as the kernels table's `choose`. */
void nib_quant_choose_avx2(const struct nib_quant_row *r, enum nib_quant_choice how, uint8_t *scales);

/* A row without its first b blocks. */
static inline struct nib_quant_row nib_quant_behind(const struct nib_quant_row *r, int64_t b)
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

/* Global scales with which every s * g, and six times that, is a normal number with room around it. Outside, and a
 * weight never is, everything is left to the portable kernels. */
static inline bool nib_quant_is_safe(const struct nib_quant_row *r)
{
    return r->g >= 0x1p-90f && r->g <= 0x1p+90f;
}

NIB_AVX2 static inline __m256i nib_quant_load_words(const uint16_t *x)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)x);
}

/* Eight UE4M3 bytes as floats. */
NIB_AVX2 static inline __m256 nib_quant_e4m3_to_ps(const uint8_t *scales)
{
    const __m256i m = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)scales));
    const __m256 normal = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(m, 20), _mm256_set1_epi32(120 << 23)));
    const __m256  small = _mm256_mul_ps(_mm256_cvtepi32_ps(m), _mm256_set1_ps(0x1p-9f));
    return _mm256_blendv_ps(normal, small, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), m)));
}

#endif
