/* The one place where CPU features are tested. */
#include "backend/cpu/kernels.h"

unsigned nib_cpu_flags_detect(void)
{
    unsigned flags = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        flags |= NIB_CPU_AVX2;
#endif
    return flags;
}

void nib_cpu_kernels_init(struct nib_cpu_kernels *k, unsigned flags)
{
    nib_cpu_kernels_fill_c(k);
    if (flags & NIB_CPU_AVX2)
        nib_cpu_kernels_fill_avx2(k);
}
