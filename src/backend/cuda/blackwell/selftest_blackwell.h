/* The self-test's parts (selftest_blackwell.c): problems on the card, their values on the host, and how results are
 * held to them. For its own files. */
#ifndef NIB_SELFTEST_BLACKWELL_H
#define NIB_SELFTEST_BLACKWELL_H

#include "backend/cuda/blackwell/selftest_card_blackwell.h"
#include "backend/cuda/blackwell/table_blackwell.h"

/* Outputs and columns end inside tiles. */
enum {
    FEW = 3,
    MANY = 130, /* rows at most that a product is tested with */
    OUT = 200,
    IN = 384,
    TOKENS = 33, /* of a mixture at most: more than 16 pairs an expert, which is another kernel on sm_100a */
    EXPERTS = 4,
    TOP = 2,
    PAIRS = TOKENS * TOP,
    DIM = 128,
    INNER = 128
};
struct nib_selftest {
    struct nib_stream s; /* the caller's queue with scratch of its own */
    const struct nib_blackwell_family *family;
    enum nib_act_format                format; /* of rows */
    struct nib_selftest_card           card;
};

struct nib_selftest_matrix {
    struct nib_cuda_weight w;
    float                 *value; /* host: [n_stack][n_out][n_in] without the global scale */
    float                  alpha[EXPERTS];
};

struct nib_selftest_experts {
    struct nib_selftest_matrix w1, w2, w3, sw1, sw2, sw3;
};

uint32_t nib_selftest_next(struct nib_selftest *t);

/* What disagreed, unless something has before. */
void nib_selftest_differ(struct nib_selftest *t, const char *kernel, int32_t row, int32_t at, double got, double want);

void nib_selftest_make_matrix(struct nib_selftest *t, struct nib_selftest_matrix *m, enum nib_weight_type type,
                              int32_t n_stack, int32_t n_out, int32_t n_in);
void nib_selftest_encode(enum nib_act_format format, const float *x, int32_t n, uint8_t *codes, uint8_t *scales,
                         float *g);
void nib_selftest_decode_row(enum nib_act_format format, const uint8_t *codes, const uint8_t *scales, float g,
                             int32_t n, float *x);
/* n random rows as ops hand them on; their values in x [n][cols]. Row 1 holds a NaN. */
struct nib_act nib_selftest_make_rows(struct nib_selftest *t, int32_t n, int32_t cols, float *x);

/* One row of results against x, n_in values whose row scale may be NaN, times one matrix. */
void nib_selftest_hold_product(struct nib_selftest *t, const char *kernel, int32_t row, const float *x,
                               const struct nib_selftest_matrix *m, int32_t stack, const float *y);
/* A row of SwiGLU of both products of x, as a kernel that keeps the products to itself leaves it. limit 0: no clamps. */
void nib_selftest_hold_swiglu(struct nib_selftest *t, const char *kernel, int32_t row, const float *x,
                              const struct nib_selftest_matrix *w1, const struct nib_selftest_matrix *w3, int32_t stack,
                              double limit, const float *h);
/* steps: how far NVFP4's scales and codes may lie from the processor's, where what is encoded was not read back: 0, or
 * 1. */
void nib_selftest_hold_codes(struct nib_selftest *t, const char *kernel, int32_t row, const float *x, int32_t n,
                             const uint8_t *codes, const uint8_t *scales, float g, int32_t steps);

/* A mixture of n tokens, link by link. down: of the second product. */
enum nib_status nib_selftest_experts(struct nib_selftest *t, struct nib_selftest_experts *m, enum nib_weight_type type,
                                     enum nib_weight_type down, enum nib_weight_type shared, int32_t n);

#endif
