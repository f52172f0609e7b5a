/* What every self-test keeps of the card: its queue, room there, and the first thing that went wrong. */
#ifndef NIB_SELFTEST_CARD_BLACKWELL_H
#define NIB_SELFTEST_CARD_BLACKWELL_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

struct nib_selftest_card {
    cudaStream_t queue;
    uint8_t     *arena;
    size_t       size, used;
    uint64_t     random;
    cudaError_t  e;
    char        *why; /* what disagreed, or "" */
    size_t       why_bytes;
};

/* Room on the card until the end of the test; what does not fit sets e. */
void *nib_selftest_take(struct nib_selftest_card *c, size_t bytes);
void *nib_selftest_put(struct nib_selftest_card *c, const void *from, size_t bytes);
/* To the host, with all work before it done; malloc'd. */
void *nib_selftest_get(struct nib_selftest_card *c, const void *from, size_t bytes);

#endif
