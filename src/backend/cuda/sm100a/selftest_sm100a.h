/* Inside of the self-test of sm_100a's whole ops (selftest_sm100a.c): memory on the card, and its parts. */
#ifndef NIB_SELFTEST_SM100A_H
#define NIB_SELFTEST_SM100A_H

#include "backend/cuda/blackwell/selftest_card_blackwell.h"
#include "backend/cuda/blackwell/selftest_draw_blackwell.h"
#include "backend/cuda/sm100a/ops_sm100a.h"

struct nib_sm100a_test {
    struct nib_stream       *s;
    struct nib_selftest_card card;
};

/* Products of plain rows with BF16 and FP8 weights (selftest_plain_sm100a.c). */
enum nib_status nib_sm100a_test_products(struct nib_sm100a_test *t);

#endif
