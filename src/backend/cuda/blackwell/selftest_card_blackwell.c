/* Room for self-tests on the card, and copies to and from it. */
#include "backend/cuda/blackwell/selftest_card_blackwell.h"

#include <stdlib.h>

enum { ALIGN = 256 };

void *nib_selftest_take(struct nib_selftest_card *c, size_t bytes)
{
    void *p = c->arena + c->used;
    c->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (c->used > c->size)
        c->e = cudaErrorMemoryAllocation;
    return c->used > c->size ? c->arena : p;
}

void *nib_selftest_put(struct nib_selftest_card *c, const void *from, size_t bytes)
{
    void *p = nib_selftest_take(c, bytes);
    if (c->e == cudaSuccess)
        c->e = cudaMemcpyAsync(p, from, bytes, cudaMemcpyHostToDevice, c->queue);
    if (c->e == cudaSuccess)
        c->e = cudaStreamSynchronize(c->queue);
    return p;
}

void *nib_selftest_get(struct nib_selftest_card *c, const void *from, size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p)
        c->e = cudaErrorMemoryAllocation;
    if (c->e == cudaSuccess)
        c->e = cudaMemcpyAsync(p, from, bytes, cudaMemcpyDeviceToHost, c->queue);
    if (c->e == cudaSuccess)
        c->e = cudaStreamSynchronize(c->queue);
    return p;
}
