/* Blocks of growing size, handed out from the front. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct nib_arena_block {
    struct nib_arena_block  *next;
    size_t                   used, size;
    alignas(max_align_t) unsigned char data[];
};

#define BLOCK_BYTES ((size_t)64 * 1024)

void nib_arena_init(struct nib_arena *a)
{
    a->block = NULL;
}

void nib_arena_deinit(struct nib_arena *a)
{
    while (a->block) {
        struct nib_arena_block *next = a->block->next;
        free(a->block);
        a->block = next;
    }
}

void *nib_arena_alloc(struct nib_arena *a, size_t bytes)
{
    const size_t align = alignof(max_align_t);
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + align - 1) / align * align;
    if (bytes == 0)
        bytes = align;
    if (!a->block || a->block->size - a->block->used < bytes) {
        const size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        struct nib_arena_block *b = calloc(1, sizeof *b + size);
        if (!b)
            return NULL;
        b->size = size;
        b->next = a->block;
        a->block = b;
    }
    void *p = a->block->data + a->block->used;
    a->block->used += bytes;
    return p;
}

void *nib_arena_array(struct nib_arena *a, size_t n, size_t item_bytes)
{
    if (item_bytes && n > SIZE_MAX / item_bytes)
        return NULL;
    return nib_arena_alloc(a, n * item_bytes);
}

char *nib_arena_printf(struct nib_arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return NULL;
    char *text = nib_arena_alloc(a, (size_t)n + 1);
    if (!text)
        return NULL;
    va_start(ap, fmt);
    (void)vsnprintf(text, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return text;
}
