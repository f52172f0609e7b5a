/* Twelve sums that do not wait for one another keep two units of latency 4 or 5 busy. What is added is chosen so that
 * sums neither overflow nor become denormal, and so that no compiler can know the result. */
#include "measure/peak_loops.h"

#include <string.h>

#define N_SUMS 12

/* ---- Anywhere: GCC's and clang's vectors, in whatever the target has ---- */

typedef float    vec_f32 __attribute__((vector_size(32)));
typedef uint64_t vec_u64 __attribute__((vector_size(32)));

static bool always(void)
{
    return true;
}

static inline __attribute__((always_inline)) uint64_t read_all(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    vec_u64 sum[4] = {{0}};
    for (size_t i = 0; i < bytes; i += 256) {
        for (size_t k = 0; k < 8; k++) {
            vec_u64 v;
            memcpy(&v, p + i + 32 * k, sizeof v);
            sum[k % 4] ^= v;
        }
    }
    const vec_u64 all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
    return all[0] ^ all[1] ^ all[2] ^ all[3];
}

static uint64_t read_c(const void *data, size_t bytes)
{
    return read_all(data, bytes);
}

static float fp32_c(int64_t n)
{
    vec_f32 sum[N_SUMS] = {{0}}, a = {1, 1, 1, 1, 1, 1, 1, 1};
    const vec_f32 b = a * 1e-9f;
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < N_SUMS; k++)
            sum[k] = sum[k] * a + b;
        __asm__ volatile("" : "+m"(a));
    }
    float total = 0;
    for (int k = 0; k < N_SUMS; k++)
        total += sum[k][k % 8];
    return total;
}

#if defined(__x86_64__)
#include <immintrin.h>

/* ---- AVX2 and FMA ---- */

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

__attribute__((target("avx2"))) static uint64_t read_avx2(const void *data, size_t bytes)
{
    const __m256i *p = data;
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < bytes / 32; i += 8) {
        a = _mm256_xor_si256(_mm256_xor_si256(a, _mm256_load_si256(p + i)), _mm256_load_si256(p + i + 1));
        b = _mm256_xor_si256(_mm256_xor_si256(b, _mm256_load_si256(p + i + 2)), _mm256_load_si256(p + i + 3));
        c = _mm256_xor_si256(_mm256_xor_si256(c, _mm256_load_si256(p + i + 4)), _mm256_load_si256(p + i + 5));
        d = _mm256_xor_si256(_mm256_xor_si256(d, _mm256_load_si256(p + i + 6)), _mm256_load_si256(p + i + 7));
    }
    uint64_t out[4];
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d)));
    return out[0] ^ out[1] ^ out[2] ^ out[3];
}

__attribute__((target("avx2,fma"))) static float fp32_avx2(int64_t n)
{
    __m256 sum[N_SUMS], a = _mm256_set1_ps(1.0f);
    const __m256 b = _mm256_set1_ps(1e-9f);
    for (int k = 0; k < N_SUMS; k++)
        sum[k] = _mm256_set1_ps((float)k);
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < N_SUMS; k++)
            sum[k] = _mm256_fmadd_ps(a, b, sum[k]);
        __asm__ volatile("" : "+x"(a));
    }
    for (int k = 1; k < N_SUMS; k++)
        sum[0] = _mm256_add_ps(sum[0], sum[k]);
    return _mm256_cvtss_f32(sum[0]);
}

/* Products of pairs into 16 bits, the step that limits every way to add up bytes here: what follows it is done for many
 * at once. In assembly, because gcc writes each result to memory as well, which takes longer than the products. */
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define START(k)   __m256i v##k = _mm256_set1_epi8(k + 1);
#define PRODUCT(k) "vpmaddubsw %[b], %[v" #k "], %[v" #k "]\n\t"
#define HELD(k)    , [v##k] "+x"(v##k)
#define ADD(k)     all = _mm256_xor_si256(all, v##k);
_Static_assert(N_SUMS == 12, "as many as EACH names");
__attribute__((target("avx2"))) static uint64_t int8_avx2(int64_t n)
{
    const __m256i b = _mm256_set1_epi8(1);
    __m256i       all = _mm256_setzero_si256();
    EACH(START)
    for (int64_t i = 0; i < n; i++)
        __asm__ volatile(EACH(PRODUCT) : "+x"(all) EACH(HELD) : [b] "x"(b));
    EACH(ADD)
    return (uint64_t)_mm256_extract_epi64(all, 0);
}

/* ---- AVX-512, and its products of bytes ---- */

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

static bool has_avx512_vnni(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

__attribute__((target("avx512f"))) static uint64_t read_avx512(const void *data, size_t bytes)
{
    const __m512i *p = data;
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < bytes / 64; i += 4) {
        a = _mm512_xor_si512(a, _mm512_load_si512(p + i));
        b = _mm512_xor_si512(b, _mm512_load_si512(p + i + 1));
        c = _mm512_xor_si512(c, _mm512_load_si512(p + i + 2));
        d = _mm512_xor_si512(d, _mm512_load_si512(p + i + 3));
    }
    return (uint64_t)_mm512_reduce_add_epi64(_mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
}

__attribute__((target("avx512f"))) static float fp32_avx512(int64_t n)
{
    __m512 sum[N_SUMS], a = _mm512_set1_ps(1.0f);
    const __m512 b = _mm512_set1_ps(1e-9f);
    for (int k = 0; k < N_SUMS; k++)
        sum[k] = _mm512_set1_ps((float)k);
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < N_SUMS; k++)
            sum[k] = _mm512_fmadd_ps(a, b, sum[k]);
        __asm__ volatile("" : "+v"(a));
    }
    for (int k = 1; k < N_SUMS; k++)
        sum[0] = _mm512_add_ps(sum[0], sum[k]);
    return _mm512_reduce_add_ps(sum[0]);
}

__attribute__((target("avx512f,avx512bw"))) static uint64_t int8_avx512(int64_t n)
{
    __m512i v[N_SUMS];
    const __m512i b = _mm512_set1_epi8(1);
    for (int k = 0; k < N_SUMS; k++)
        v[k] = _mm512_set1_epi8((char)(k + 1));
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < N_SUMS; k++)
            v[k] = _mm512_maddubs_epi16(v[k], b);
    for (int k = 1; k < N_SUMS; k++)
        v[0] = _mm512_xor_si512(v[0], v[k]);
    return (uint64_t)_mm512_reduce_add_epi64(v[0]);
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static uint64_t int8_vnni(int64_t n)
{
    __m512i sum[N_SUMS], a = _mm512_set1_epi8(1);
    const __m512i b = _mm512_set1_epi8(2);
    for (int k = 0; k < N_SUMS; k++)
        sum[k] = _mm512_set1_epi32(k);
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < N_SUMS; k++)
            sum[k] = _mm512_dpbusd_epi32(sum[k], a, b);
        __asm__ volatile("" : "+v"(a));
    }
    for (int k = 1; k < N_SUMS; k++)
        sum[0] = _mm512_xor_si512(sum[0], sum[k]);
    return (uint64_t)_mm512_reduce_add_epi64(sum[0]);
}

const struct nib_peak_loops nib_peak_loops[] = {
    {always, read_c, fp32_c, 2 * 8 * N_SUMS, NULL, 0},
    {has_avx2, read_avx2, fp32_avx2, 2 * 8 * N_SUMS, int8_avx2, 2 * 32 * N_SUMS},
    {has_avx512, read_avx512, fp32_avx512, 2 * 16 * N_SUMS, int8_avx512, 2 * 64 * N_SUMS},
    {has_avx512_vnni, NULL, NULL, 0, int8_vnni, 2 * 64 * N_SUMS},
    {0},
};

#elif defined(__aarch64__)
#include <arm_neon.h>

/* ---- NEON, and its products of bytes ---- */

static float fp32_neon(int64_t n)
{
    float32x4_t sum[2 * N_SUMS], a = vdupq_n_f32(1.0f);
    const float32x4_t b = vdupq_n_f32(1e-9f);
    for (int k = 0; k < 2 * N_SUMS; k++)
        sum[k] = vdupq_n_f32((float)k);
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < 2 * N_SUMS; k++)
            sum[k] = vfmaq_f32(sum[k], a, b);
        __asm__ volatile("" : "+w"(a));
    }
    for (int k = 1; k < 2 * N_SUMS; k++)
        sum[0] = vaddq_f32(sum[0], sum[k]);
    return vgetq_lane_f32(sum[0], 0);
}

static uint64_t int8_neon(int64_t n)
{
    int16x8_t sum[N_SUMS];
    int8x8_t a = vdup_n_s8(1);
    const int8x8_t b = vdup_n_s8(2);
    for (int k = 0; k < N_SUMS; k++)
        sum[k] = vdupq_n_s16((int16_t)k);
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < N_SUMS; k++)
            sum[k] = vmlal_s8(sum[k], a, b);
        __asm__ volatile("" : "+w"(a));
    }
    for (int k = 1; k < N_SUMS; k++)
        sum[0] = veorq_s16(sum[0], sum[k]);
    return (uint64_t)vaddvq_s16(sum[0]);
}

/* Only in builds for processors that all have it; elsewhere a step faster than the loop above raises the figure. */
#if defined(__ARM_FEATURE_DOTPROD)
static uint64_t int8_dot(int64_t n)
{
    int32x4_t sum[N_SUMS];
    int8x16_t a = vdupq_n_s8(1);
    const int8x16_t b = vdupq_n_s8(2);
    for (int k = 0; k < N_SUMS; k++)
        sum[k] = vdupq_n_s32(k);
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < N_SUMS; k++)
            sum[k] = vdotq_s32(sum[k], a, b);
        __asm__ volatile("" : "+w"(a));
    }
    for (int k = 1; k < N_SUMS; k++)
        sum[0] = veorq_s32(sum[0], sum[k]);
    return (uint64_t)vaddvq_s32(sum[0]);
}
#endif

const struct nib_peak_loops nib_peak_loops[] = {
    {always, read_c, fp32_c, 2 * 8 * N_SUMS, NULL, 0},
    {always, NULL, fp32_neon, 2 * 4 * 2 * N_SUMS, int8_neon, 2 * 8 * N_SUMS},
#if defined(__ARM_FEATURE_DOTPROD)
    {always, NULL, NULL, 0, int8_dot, 2 * 16 * N_SUMS},
#endif
    {0},
};

#else

const struct nib_peak_loops nib_peak_loops[] = {{always, read_c, fp32_c, 2 * 8 * N_SUMS, NULL, 0}, {0}};

#endif
