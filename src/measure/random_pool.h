/* Random numbers that look like tensors of any length: a few pools in one small file, mapped again and again side by
 * side. A model of tens of gigabytes then has sources of 32 MiB; only what a backend packs takes memory. */
#ifndef NIB_RANDOM_POOL_H
#define NIB_RANDOM_POOL_H

#include "base/status.h"

/* What the bytes of a pool are. Values are of the size that trained weights have: rows of a thousand products add up to
 * about 1, and no product of two of them is near the denormals. */
enum nib_random_kind {
    NIB_RANDOM_BYTES,      /* any: pairs of E2M1 codes */
    NIB_RANDOM_E4M3,       /* codes, 1/4 to 15/4 */
    NIB_RANDOM_UE4M3,      /* block scales, 1/2 to 15/8 */
    NIB_RANDOM_UE8M0,      /* block scales, 2^-9 to 2^-6 */
    NIB_RANDOM_BF16,       /* 1/128 to 1/32, either sign */
    NIB_RANDOM_BF16_ONES,  /* 1 to 9/8 */
    NIB_RANDOM_F32,        /* as BF16 */
    NIB_RANDOM_F32_ONES,   /* as BF16_ONES */
    NIB_N_RANDOM
};

#define NIB_RANDOM_SIZE ((size_t)4 << 20)

struct nib_random_pools {
    const unsigned char *view[NIB_N_RANDOM]; /* NULL until wanted */
    size_t               view_bytes;
    void                *file;  /* FILE *, without a name */
    uint64_t             draws;
};

/* Pools whose longest tensor has `bytes`. On failure nothing is left behind. */
enum nib_status nib_random_pools_open(struct nib_random_pools *p, size_t bytes, struct nib_error *err);
void            nib_random_pools_close(struct nib_random_pools *p);

/* `bytes` of a pool, another part of it with every call; NULL where the system has no room for the mapping. */
const void *nib_random_take(struct nib_random_pools *p, enum nib_random_kind kind, size_t bytes);

/* The next of a fixed row of random numbers. */
uint64_t nib_random_next(uint64_t *state);

#endif
