/* What the self-test has found before, on this card with this driver and this program (backend/verdicts.h). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dl_iterate_phdr */
#endif
#include "backend/cuda/blackwell/known_blackwell.h"

#include <link.h>
#include <stdio.h>
#include <string.h>

#include "backend/verdicts.h"

/* All bytes of the program, or library, that holds these kernels and that it never changes: code, constants and the
 * kernels themselves. What it loads besides (the runtime is linked in) does not count. Reads between variables. */
#if defined(__GNUC__)
__attribute__((no_sanitize("address")))
#endif
static int
add_program(struct dl_phdr_info *info, size_t bytes, void *to)
{
    const uintptr_t own = (uintptr_t)&nib_blackwell_known;
    uint64_t       *h = to;
    bool            is_it = false;
    (void)bytes;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        is_it |= p->p_type == PT_LOAD && own - (info->dlpi_addr + p->p_vaddr) < p->p_memsz;
    }
    for (int i = 0; i < info->dlpi_phnum && is_it; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && (p->p_flags & (PF_R | PF_W)) == PF_R)
            *h = nib_verdict_hash(*h, (const void *)(info->dlpi_addr + p->p_vaddr), p->p_filesz);
    }
    return is_it;
}

/* The first line says which driver it is, more exactly than the runtime does; where it cannot be read, that is all. */
static uint64_t add_driver(uint64_t h)
{
    char  line[256] = "";
    int   version = 0;
    FILE *f = fopen("/proc/driver/nvidia/version", "r");
    if (f && !fgets(line, sizeof line, f))
        line[0] = 0;
    if (f)
        (void)fclose(f);
    (void)cudaDriverGetVersion(&version);
    (void)cudaGetLastError();
    h = nib_verdict_hash(h, &version, sizeof version);
    return nib_verdict_hash(h, line, strlen(line));
}

static uint64_t key_of(const struct nib_stream *s)
{
    const struct nib_cuda_blackwell *x = &s->blackwell;
    struct cudaDeviceProp            prop;
    int32_t                          card[2] = {s->n_sms, s->arch};
    uint64_t                         h = nib_verdict_hash(1, card, sizeof card);
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess)
        memset(&prop, 0, sizeof prop);
    (void)cudaGetLastError();
    h = nib_verdict_hash(h, prop.name, strlen(prop.name));
    h = nib_verdict_hash(h, &prop.uuid, sizeof prop.uuid);
    h = nib_verdict_hash(h, x->family->name, strlen(x->family->name));
    h = add_driver(h);
    (void)dl_iterate_phdr(add_program, &h);
    return h ? h : 1;
}

bool nib_blackwell_known(struct nib_stream *s, const char *part, char *why, size_t why_bytes)
{
    struct nib_cuda_blackwell *x = &s->blackwell;
    if (!s->selftest_file)
        return false;
    if (x->key == 0)
        x->key = key_of(s);
    return nib_verdict_find(s->selftest_file, x->key, part, why, why_bytes);
}

void nib_blackwell_keep(struct nib_stream *s, const char *part, const char *why)
{
    if (s->selftest_file)
        nib_verdict_keep(s->selftest_file, s->blackwell.key, part, why);
}
