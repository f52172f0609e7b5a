/* The one place where CPU features are tested. */
#include "backend/cpu/kernels.h"

#include <string.h>

#include "base/status.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)

/* States that the system saves for a thread: bits 1, 2 are the registers of AVX, 5 to 7 those of AVX-512. */
static unsigned saved_states(void)
{
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

unsigned nib_cpu_flags_detect(void)
{
    const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    const unsigned avx2 = 1u << 5, avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, vnni = 1u << 11;
    const unsigned amx_bf16 = 1u << 22, bf16 = 1u << 5;
    const unsigned basic = fma | osxsave | avx | f16c;
    unsigned       a, b, c, d, flags = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & basic) != basic)
        return 0;
    unsigned states = saved_states();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & avx2) || (states & 0x6) != 0x6)
        return 0;
    flags |= NIB_CPU_AVX2;
    if ((b & avx512) == avx512 && (states & 0xe6) == 0xe6) /* F, DQ, BW, VL */
        flags |= NIB_CPU_AVX512 | (c & vnni ? NIB_CPU_VNNI : 0u);
    if (flags & NIB_CPU_VNNI) {
        flags |= d & amx_bf16 ? NIB_CPU_AMX : 0u;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & bf16)
            flags |= NIB_CPU_BF16;
    }
    return flags;
}

#elif defined(__aarch64__)

unsigned nib_cpu_flags_detect(void)
{
    return NIB_CPU_NEON | (getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? NIB_CPU_DOTPROD : 0u);
}

#else

unsigned nib_cpu_flags_detect(void) { return 0; }

#endif

/* Each rung needs those before it in its architecture's list, and is no machine's own where it has what the rung loses to: such
 * a one is taken by name only. */
static const struct level {
    const char *name;
    unsigned    flags, unless;
    void (*fill)(struct nib_cpu_kernels *k);
} levels[] = {
    {"c", 0, 0, nib_cpu_kernels_fill_c},
    {"avx2", NIB_CPU_AVX2, 0, nib_cpu_kernels_fill_avx2},
    {"avx512", NIB_CPU_AVX2 | NIB_CPU_AVX512, 0, nib_cpu_kernels_fill_avx512},
    {"vnni", NIB_CPU_AVX2 | NIB_CPU_AVX512 | NIB_CPU_VNNI, 0, nib_cpu_kernels_fill_vnni},
    {"bf16", NIB_CPU_AVX2 | NIB_CPU_AVX512 | NIB_CPU_VNNI | NIB_CPU_BF16, NIB_CPU_AMX, nib_cpu_kernels_fill_bf16},
    {"neon", NIB_CPU_NEON, 0, nib_cpu_kernels_fill_neon},
    {"dotprod", NIB_CPU_NEON | NIB_CPU_DOTPROD, 0, nib_cpu_kernels_fill_dotprod},
};

enum { N_LEVELS = sizeof levels / sizeof *levels };

static bool is_own(const struct level *l, unsigned has) { return (l->flags & has) == l->flags && !(l->unless & has); }

void nib_cpu_kernels_init(struct nib_cpu_kernels *k, unsigned flags)
{
    for (int i = 0; i < N_LEVELS; i++)
        if (is_own(&levels[i], flags))
            levels[i].fill(k);
}

enum nib_status nib_cpu_level_mask(const char *name, unsigned has, unsigned *mask, struct nib_error *err)
{
    const char *best = "c";
    for (int i = 0; i < N_LEVELS; i++)
        if (is_own(&levels[i], has))
            best = levels[i].name;
    for (int i = 0; i < N_LEVELS; i++)
        if (strcmp(levels[i].name, name) == 0) {
            *mask = levels[i].flags;
            if ((*mask & has) == *mask)
                return NIB_OK;
            return nib_error_set(err, NIB_E_UNSUPPORTED,
                                 "cpu level '%s' was asked for, but this machine's best level is '%s'", name, best);
        }
    return nib_error_set(err, NIB_E_ARGUMENT,
                         "cpu level '%s' is unknown, wanted c, avx2, avx512, vnni, bf16, neon or dotprod", name);
}
