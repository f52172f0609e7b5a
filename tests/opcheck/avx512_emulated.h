/* The AVX-512 intrinsics that the processor's kernels use, in plain C over vectors of 64 bytes, for machines without AVX-512
 * (tests/opcheck/avx512.sh). Each function does what Intel's manual says of its instruction, one element after another. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef float    emu_f32 __attribute__((vector_size(64)));
typedef int32_t  emu_s32 __attribute__((vector_size(64)));
typedef uint32_t emu_u32 __attribute__((vector_size(64)));
typedef int16_t  emu_s16 __attribute__((vector_size(64)));
typedef uint16_t emu_u16 __attribute__((vector_size(64)));
typedef int8_t   emu_s8 __attribute__((vector_size(64)));
typedef uint8_t  emu_u8 __attribute__((vector_size(64)));

#define EMU static inline __attribute__((always_inline, unused))

EMU emu_s32 emu_set1_32(int32_t v)
{
    emu_s32 r;
    for (int i = 0; i < 16; i++)
        r[i] = v;
    return r;
}

EMU emu_s32 emu_set1_16(int16_t v)
{
    emu_s16 r;
    for (int i = 0; i < 32; i++)
        r[i] = v;
    return (emu_s32)r;
}

EMU emu_s32 emu_set1_8(int8_t v)
{
    emu_s8 r;
    for (int i = 0; i < 64; i++)
        r[i] = v;
    return (emu_s32)r;
}

EMU emu_f32 emu_set1_f32(float v)
{
    emu_f32 r;
    for (int i = 0; i < 16; i++)
        r[i] = v;
    return r;
}

/* Within each 16 bytes; a negative choice gives zero. */
EMU emu_s32 emu_shuffle_8(emu_s8 a, emu_s8 k)
{
    emu_s8 r;
    for (int i = 0; i < 64; i++)
        r[i] = k[i] < 0 ? 0 : a[(i & 48) | (k[i] & 15)];
    return (emu_s32)r;
}

/* Two chosen quarters of a, then two of b. */
EMU emu_f32 emu_shuffle_quarters(emu_f32 a, emu_f32 b, int choice)
{
    emu_f32 r;
    for (int i = 0; i < 16; i++)
        r[i] = (i < 8 ? a : b)[(choice >> 2 * (i / 4) & 3) * 4 + i % 4];
    return r;
}

/* Within each quarter two chosen lanes of a, then two of b. */
EMU emu_f32 emu_shuffle_lanes(emu_f32 a, emu_f32 b, int choice)
{
    emu_f32 r;
    for (int i = 0; i < 16; i++)
        r[i] = (i % 4 < 2 ? a : b)[i / 4 * 4 + (choice >> 2 * (i % 4) & 3)];
    return r;
}

EMU emu_f32 emu_permute(emu_s32 k, emu_f32 a)
{
    emu_f32 r;
    for (int i = 0; i < 16; i++)
        r[i] = a[k[i] & 15];
    return r;
}

EMU emu_s32 emu_max(emu_s32 a, emu_s32 b)
{
    emu_s32 r;
    for (int i = 0; i < 16; i++)
        r[i] = a[i] > b[i] ? a[i] : b[i];
    return r;
}

EMU emu_f32 emu_fma(emu_f32 a, emu_f32 b, emu_f32 c)
{
    emu_f32 r;
    for (int i = 0; i < 16; i++)
        r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
}

EMU emu_f32 emu_from_f16(__m256i h)
{
    emu_f32 r;
    __m256  low = _mm256_cvtph_ps(_mm256_castsi256_si128(h)), high = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
    memcpy(&r, &low, sizeof low);
    memcpy((char *)&r + sizeof low, &high, sizeof high);
    return r;
}

EMU emu_s32 emu_from_u16(__m256i b)
{
    emu_s32 r;
    uint16_t units[16];
    memcpy(units, &b, sizeof units);
    for (int i = 0; i < 16; i++)
        r[i] = units[i];
    return r;
}

EMU emu_s32 emu_from_u8(__m128i b)
{
    emu_s32 r;
    uint8_t bytes[16];
    memcpy(bytes, &b, sizeof bytes);
    for (int i = 0; i < 16; i++)
        r[i] = bytes[i];
    return r;
}

EMU emu_s32 emu_four_times(__m128i b)
{
    emu_s32 r;
    for (int i = 0; i < 4; i++)
        memcpy((char *)&r + 16 * i, &b, sizeof b);
    return r;
}

/* Pairs of products, added and kept within 16 bits. */
EMU emu_s32 emu_maddubs(emu_u8 a, emu_s8 b)
{
    emu_s16 r;
    for (int i = 0; i < 32; i++) {
        int32_t sum = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
        r[i] = (int16_t)(sum > INT16_MAX ? INT16_MAX : sum < INT16_MIN ? INT16_MIN : sum);
    }
    return (emu_s32)r;
}

EMU emu_s32 emu_madd(emu_s16 a, emu_s16 b)
{
    emu_s32 r;
    for (int i = 0; i < 16; i++)
        r[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return r;
}

EMU emu_s32 emu_dpbusd(emu_s32 sum, emu_u8 a, emu_s8 b)
{
    for (int i = 0; i < 16; i++)
        for (int j = 4 * i; j < 4 * i + 4; j++)
            sum[i] += a[j] * b[j];
    return sum;
}

/* One multiply-add of vdpbf16ps: subnormal factors, sums and results are 0, whatever the modes of the processor. */
EMU float emu_normal(float v) { return __builtin_fabsf(v) < 0x1p-126f ? __builtin_copysignf(0, v) : v; }

EMU float emu_bf16_fma(uint16_t a, uint16_t b, float sum)
{
    uint32_t bits[2] = {(uint32_t)a << 16, (uint32_t)b << 16};
    float    f[2];
    memcpy(f, bits, sizeof f);
    return emu_normal(__builtin_fmaf(emu_normal(f[0]), emu_normal(f[1]), emu_normal(sum)));
}

/* The odd pair first. Called, for hundreds of copies of this take a compiler minutes. */
static __attribute__((noinline, unused)) emu_f32 emu_dpbf16(emu_f32 sum, emu_u16 a, emu_u16 b)
{
    for (int i = 0; i < 16; i++) {
        sum[i] = emu_bf16_fma(a[2 * i + 1], b[2 * i + 1], sum[i]);
        sum[i] = emu_bf16_fma(a[2 * i], b[2 * i], sum[i]);
    }
    return sum;
}

EMU emu_s32 emu_permute_16(emu_u16 k, emu_u16 a)
{
    emu_u16 r;
    for (int i = 0; i < 32; i++)
        r[i] = a[k[i] & 31];
    return (emu_s32)r;
}

EMU emu_s32 emu_shift_16(emu_u16 a, emu_u16 n)
{
    emu_u16 r;
    for (int i = 0; i < 32; i++)
        r[i] = n[i] > 15 ? 0 : (uint16_t)(a[i] >> n[i]);
    return (emu_s32)r;
}

EMU __m256i emu_low_16(emu_s32 a)
{
    uint16_t units[16];
    __m256i  r;
    for (int i = 0; i < 16; i++)
        units[i] = (uint16_t)a[i];
    memcpy(&r, units, sizeof r);
    return r;
}

EMU emu_s32 emu_min(emu_s32 a, emu_s32 b)
{
    emu_s32 r;
    for (int i = 0; i < 16; i++)
        r[i] = a[i] < b[i] ? a[i] : b[i];
    return r;
}

EMU uint32_t emu_signs(emu_s32 a)
{
    uint32_t signs = 0;
    for (int i = 0; i < 16; i++)
        signs |= (uint32_t)(a[i] < 0) << i;
    return signs;
}

EMU emu_s32 emu_load(const void *p)
{
    emu_s32 r;
    memcpy(&r, p, sizeof r);
    return r;
}

EMU __m256i emu_half(emu_s32 a, int i)
{
    __m256i r;
    memcpy(&r, (const char *)&a + 32 * i, sizeof r);
    return r;
}

EMU void emu_store(float *p, emu_f32 v) { memcpy(p, &v, sizeof v); }

#define STREAM_KEEP(v) /* no register of a machine without AVX-512 holds one */

/* Macros of compilers' headers, some without optimisation only. */
#undef _mm512_setr_ps
#undef _mm512_slli_epi32
#undef _mm512_srli_epi32
#undef _mm512_slli_epi16
#undef _mm512_srli_epi16
#undef _mm512_srai_epi16
#undef _mm512_extracti64x4_epi64
#define __m512                         emu_f32
#define __m512i                        emu_s32
#define __m512bh                       emu_u16
#define _mm512_set1_epi32(v)           emu_set1_32(v)
#define _mm512_set1_epi16(v)           emu_set1_16(v)
#define _mm512_set1_epi8(v)            emu_set1_8(v)
#define _mm512_set1_ps(v)              emu_set1_f32(v)
#define _mm512_setr_ps(...)            ((emu_f32){__VA_ARGS__})
#define _mm512_slli_epi32(a, n)        ((emu_s32)((emu_u32)(a) << (n)))
#define _mm512_srli_epi32(a, n)        ((emu_s32)((emu_u32)(a) >> (n)))
#define _mm512_srli_epi16(a, n)        ((emu_s32)((emu_u16)(a) >> (n)))
#define _mm512_slli_epi16(a, n)        ((emu_s32)((emu_u16)(a) << (n)))
#define _mm512_srai_epi16(a, n)        ((emu_s32)((emu_s16)(a) >> (n)))
#define _mm512_and_si512(a, b)         ((emu_s32)(a) & (emu_s32)(b))
#define _mm512_add_epi32(a, b)         ((emu_s32)((emu_u32)(a) + (emu_u32)(b)))
#define _mm512_add_epi16(a, b)         ((emu_s32)((emu_u16)(a) + (emu_u16)(b)))
#define _mm512_shuffle_epi8(a, k)      emu_shuffle_8((emu_s8)(a), (emu_s8)(k))
#define _mm512_permutexvar_ps(k, a)    emu_permute(k, a)
#define _mm512_shuffle_f32x4(a, b, c)  emu_shuffle_quarters(a, b, c)
#define _mm512_shuffle_ps(a, b, c)     emu_shuffle_lanes(a, b, c)
#define _mm512_max_epi32(a, b)         emu_max(a, b)
#define _mm512_loadu_si512(p)          emu_load(p)
#define _mm512_store_si512(p, a)       memcpy((p), &(a), sizeof(emu_s32))
#define _mm512_stream_ps(p, a)         emu_store(p, a)
#define _mm512_fmadd_ps(a, b, c)       emu_fma(a, b, c)
#define _mm512_cvtph_ps(h)             emu_from_f16(h)
#define _mm512_castsi512_si256(a)      emu_half((a), 0)
#define _mm512_extracti64x4_epi64(a, i) emu_half((a), (i))
#define _mm512_cvtepu8_epi32(b)        emu_from_u8(b)
#define _mm512_cvtepu16_epi32(b)       emu_from_u16(b)
#define _mm512_cvtepi32_ps(a)          __builtin_convertvector((emu_s32)(a), emu_f32)
#define _mm512_broadcast_i32x4(b)      emu_four_times(b)
#define _mm512_movepi32_mask(a)        emu_signs(a)
#define _mm512_maddubs_epi16(a, b)     emu_maddubs((emu_u8)(a), (emu_s8)(b))
#define _mm512_madd_epi16(a, b)        emu_madd((emu_s16)(a), (emu_s16)(b))
#define _mm512_dpbusd_epi32(sum, a, b) emu_dpbusd(sum, (emu_u8)(a), (emu_s8)(b))
#define _mm512_dpbf16_ps(sum, a, b)    emu_dpbf16(sum, a, b)
#define _mm512_permutexvar_epi16(k, a) emu_permute_16((emu_u16)(k), (emu_u16)(a))
#define _mm512_srlv_epi16(a, n)        emu_shift_16((emu_u16)(a), (emu_u16)(n))
#define _mm512_cvtepi32_epi16(a)       emu_low_16(a)
#define _mm512_min_epi32(a, b)         emu_min(a, b)
