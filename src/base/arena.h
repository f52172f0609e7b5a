/* Many small allocations that live and die together. Single-threaded. */
#ifndef NIB_ARENA_H
#define NIB_ARENA_H

#include <stddef.h>

struct nib_arena_block;

struct nib_arena {
    struct nib_arena_block *block; /* newest first */
};

void nib_arena_init(struct nib_arena *a);
void nib_arena_deinit(struct nib_arena *a); /* frees everything taken from it; may be called again */

/* Zeroed memory aligned for any type; NULL when there is none. */
void *nib_arena_alloc(struct nib_arena *a, size_t bytes);
void *nib_arena_array(struct nib_arena *a, size_t n, size_t item_bytes); /* NULL on overflow too */
char *nib_arena_printf(struct nib_arena *a, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

#endif
