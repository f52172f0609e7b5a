/* Inside of the self-test of sm_100a's whole ops (selftest_sm100a.c): memory on the card, and its parts. */
#ifndef NIB_SELFTEST_SM100A_H
#define NIB_SELFTEST_SM100A_H

#include "backend/cuda/blackwell/selftest_draw_blackwell.h"
#include "backend/cuda/sm100a/ops_sm100a.h"

struct nib_sm100a_test {
    struct nib_stream *s;
    uint8_t           *arena;
    size_t             used;
    uint64_t           random;
    cudaError_t        e;
    char              *why;
    size_t             why_bytes;
};

/* Room on the card until the end of the test; what does not fit sets e. */
void *nib_sm100a_test_take(struct nib_sm100a_test *t, size_t bytes);
void *nib_sm100a_test_put(struct nib_sm100a_test *t, const void *from, size_t bytes);

/* Products of plain rows with BF16 and FP8 weights (selftest_plain_sm100a.c). */
enum nib_status nib_sm100a_test_products(struct nib_sm100a_test *t);

#endif
