/* The replaced allocator, and the loop over n. */
#define _GNU_SOURCE
#include "faults/alloc_fail.h"

#include <errno.h>
#include <jansson.h>
#include <link.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define UNDER_SANITIZER 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define UNDER_SANITIZER 1
#endif

static atomic_long g_count, g_fail_at, g_live;
static atomic_bool g_armed, g_sticky;

/* Whether this allocation fails. */
static bool take(void)
{
    if (!atomic_load(&g_armed))
        return false;
    const long n = atomic_fetch_add(&g_count, 1) + 1, at = atomic_load(&g_fail_at);
    const bool fails = at > 0 && (n == at || (atomic_load(&g_sticky) && n > at));
    if (fails)
        errno = ENOMEM;
    return fails;
}

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add(&g_live, 1);
    return p;
}

#if defined(UNDER_SANITIZER)
#define HOOK(name) __wrap_##name
#define REAL(name) __real_##name
void *REAL(malloc)(size_t n);
void *REAL(calloc)(size_t n, size_t size);
void *REAL(realloc)(void *p, size_t n);
void *REAL(aligned_alloc)(size_t align, size_t n);
void  REAL(free)(void *p);
char *HOOK(strdup)(const char *s);

char *HOOK(strdup)(const char *s)
{
    char *p = take() ? NULL : counted(REAL(malloc)(strlen(s) + 1));
    return p ? strcpy(p, s) : NULL;
}

static bool from_openmp(const void *caller)
{
    (void)caller;
    return false;
}
#elif defined(__GLIBC__)
#define HOOK(name) name
#define REAL(name) __libc_##name
extern void *REAL(malloc)(size_t n);
extern void *REAL(calloc)(size_t n, size_t size);
extern void *REAL(realloc)(void *p, size_t n);
extern void *REAL(memalign)(size_t align, size_t n);
extern void  REAL(free)(void *p);
#define __libc_aligned_alloc __libc_memalign

static uintptr_t g_openmp[2];

static int find_openmp(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    (void)user;
    const char *name = strrchr(info->dlpi_name, '/');
    if (!name || (strncmp(name, "/libgomp", 8) != 0 && strncmp(name, "/libomp", 7) != 0))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            g_openmp[0] = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            g_openmp[1] = g_openmp[0] + info->dlpi_phdr[i].p_memsz;
        }
    }
    return 1;
}

static bool from_openmp(const void *caller)
{
    return (uintptr_t)caller >= g_openmp[0] && (uintptr_t)caller < g_openmp[1];
}
#endif

#ifdef HOOK
void *HOOK(malloc)(size_t n);
void *HOOK(calloc)(size_t n, size_t size);
void *HOOK(realloc)(void *p, size_t n);
void *HOOK(aligned_alloc)(size_t align, size_t n);
int   HOOK(posix_memalign)(void **out, size_t align, size_t n);
void  HOOK(free)(void *p);

static bool fails_for(const void *caller)
{
    return !from_openmp(caller) && take();
}

void *HOOK(malloc)(size_t n)
{
    return fails_for(__builtin_return_address(0)) ? NULL : counted(REAL(malloc)(n));
}

void *HOOK(calloc)(size_t n, size_t size)
{
    return fails_for(__builtin_return_address(0)) ? NULL : counted(REAL(calloc)(n, size));
}

void *HOOK(realloc)(void *p, size_t n)
{
    if (fails_for(__builtin_return_address(0)))
        return NULL;
    void *grown = REAL(realloc)(p, n);
    if (!p)
        return counted(grown);
    if (!grown && n == 0)
        atomic_fetch_sub(&g_live, 1);
    return grown;
}

void *HOOK(aligned_alloc)(size_t align, size_t n)
{
    return fails_for(__builtin_return_address(0)) ? NULL : counted(REAL(aligned_alloc)(align, n));
}

int HOOK(posix_memalign)(void **out, size_t align, size_t n)
{
    /* Unlike posix_memalign, aligned_alloc wants a multiple of the alignment. */
    n = (n + align - 1) / align * align;
    void *p = fails_for(__builtin_return_address(0)) ? NULL : counted(REAL(aligned_alloc)(align, n));
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

#if !defined(UNDER_SANITIZER)
/* OpenMP's library takes its teams from here and gives them back to free(). */
void *memalign(size_t align, size_t n);

void *memalign(size_t align, size_t n)
{
    return fails_for(__builtin_return_address(0)) ? NULL : counted(__libc_memalign(align, n));
}
#endif

void HOOK(free)(void *p)
{
    if (p)
        atomic_fetch_sub(&g_live, 1);
    REAL(free)(p);
}
#endif

bool alloc_fail_works(void)
{
#if defined(UNDER_SANITIZER)
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
    return true;
#elif defined(__GLIBC__)
    (void)dl_iterate_phdr(find_openmp, NULL);
    return true;
#else
    return false;
#endif
}

void alloc_fail_arm(long n, bool sticky)
{
    atomic_store(&g_count, 0);
    atomic_store(&g_fail_at, n);
    atomic_store(&g_sticky, sticky);
    atomic_store(&g_armed, true);
}

long alloc_fail_disarm(void)
{
    atomic_store(&g_armed, false);
    return atomic_load(&g_count);
}

long alloc_fail_live(void)
{
    return atomic_load(&g_live);
}

static void check_one(const struct alloc_fail_case *c, long n, bool sticky)
{
    struct nib_error err = {0};
    const long before = alloc_fail_live();
    alloc_fail_arm(n, sticky);
    const enum nib_status status = c->run(c->user, &err);
    (void)alloc_fail_disarm();
    if (status != NIB_OK && status != NIB_E_MEMORY)
        fail_msg("%s: allocation %ld%s failing: status %s, wanted memory: %s", c->name, n,
                 sticky ? " and later ones" : "", nib_status_name(status), err.text);
    if (status == NIB_E_MEMORY && (err.status != status || err.text[0] == '\0'))
        fail_msg("%s: allocation %ld failing: no error text", c->name, n);
    if (alloc_fail_live() != before)
        fail_msg("%s: allocation %ld%s failing: %ld blocks are left", c->name, n, sticky ? " and later ones" : "",
                 alloc_fail_live() - before);
}

static void check_untouched(const struct alloc_fail_case *c, long n)
{
    struct nib_error err = {0};
    if (c->run(c->user, &err) != NIB_OK)
        fail_msg("%s: an untouched run after failure %ld: %s", c->name, n, err.text);
}

void alloc_fail_check(const struct alloc_fail_case *c, long n_runs)
{
    check_untouched(c, 0);
    check_untouched(c, 0); /* what is allocated once and kept is there now */
    alloc_fail_arm(0, false);
    check_untouched(c, 0);
    const long total = alloc_fail_disarm();
    assert_true(total > 0);
    /* Beginnings and ends of long runs one by one, between them a stride. */
    const long stride = n_runs == 0 || total <= n_runs ? 1 : (total + n_runs / 2 - 1) / (n_runs / 2);
    long n_done = 0;
    for (long n = 1; n <= total; n++) {
        if (stride > 1 && n > n_runs / 4 && n <= total - n_runs / 4 && n % stride != 0)
            continue;
        check_one(c, n, false);
        if (n_done % 8 == 0 || stride == 1)
            check_one(c, n, true);
        if (n_done % 16 == 0 || stride == 1)
            check_untouched(c, n);
        n_done++;
    }
    printf("%s: %ld of %ld allocations failed one by one\n", c->name, n_done, total);
}
