/* The AVX2 rung: the portable bodies compiled a second time with vectors of 32 bytes. FMA stays off, so that its
 * results are those of the portable rung bit for bit. The target is set by pragma and not by a compiler flag because
 * a flag would also reach the inline functions of shared headers, which the linker may then pick for every caller;
 * so every header comes first, outside the pragma. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)

/* 16 lanes are 2 registers: 2 rows by 3 outputs take 12 of 16, and 10 loads feed 24 operations. */
#define VEC_BYTES 32
#define DOT_ROWS  2
#define DOT_OUTS  3

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#include "backend/cpu/body_vector.h"
#include "backend/cpu/body_decode.h"
#include "backend/cpu/body_quantise.h"
#include "backend/cpu/body_dot.h"
#include "backend/cpu/body_fill.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

void nib_cpu_kernels_fill_avx2(struct nib_cpu_kernels *k)
{
    fill_all(k);
    k->name = "avx2";
}

#else

void nib_cpu_kernels_fill_avx2(struct nib_cpu_kernels *k) { (void)k; }

#endif
