/* The self-test of sm_100a's products of plain rows: few and many, BF16 and fp32, of BF16 and FP8 weights. */
#include "backend/cuda/sm100a/selftest_sm100a.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number/act_rows.h"

enum {
    PLAIN_ROWS = 40, /* more than the kernels for few rows take */
    PLAIN_GROUPS = 2,
    PLAIN_OUT = 140, /* of a group: two tiles */
    PLAIN_IN = 336,  /* several blocks share them, and more stages than one has; the last is not full */
    PLAIN_BANDS = 3, /* of 128 outputs, by as many columns: scales of FP8 */
    PLAIN_SCALES = 3
};

struct plain {
    float    x[PLAIN_ROWS * PLAIN_GROUPS * PLAIN_IN], got[PLAIN_ROWS * PLAIN_GROUPS * PLAIN_OUT];
    uint16_t half[PLAIN_ROWS * PLAIN_GROUPS * PLAIN_IN], w[PLAIN_GROUPS * PLAIN_OUT * PLAIN_IN];
    uint8_t  codes[PLAIN_GROUPS * PLAIN_OUT * PLAIN_IN]; /* FP8; w is their values */
    uint8_t  atoms[PLAIN_BANDS * PLAIN_SCALES * 512];
};

static void draw_weights(struct nib_sm100a_test *t, struct plain *p, bool fp8)
{
    for (int32_t i = 0; i < PLAIN_BANDS * PLAIN_SCALES && fp8; i++)
        memset(p->atoms + i * 512, 118 + (int)(nib_selftest_word(&t->card.random) % 16), 512);
    for (int32_t i = 0; i < PLAIN_GROUPS * PLAIN_OUT * PLAIN_IN; i++) {
        if (!fp8) {
            p->w[i] = nib_selftest_bf16(nib_selftest_value(&t->card.random));
            continue;
        }
        uint8_t code = (uint8_t)nib_selftest_word(&t->card.random);
        int32_t atom = i / PLAIN_IN / 128 * PLAIN_SCALES + i % PLAIN_IN / 128;
        float   v;
        p->codes[i] = (code & 0x7f) == 0x7f ? 0x38 : code; /* no NaN */
        nib_fp8_row_decode(p->codes + i, p->atoms + atom * 512, 1, 128, &v);
        p->w[i] = nib_selftest_bf16(v); /* exact */
    }
}

/* Sums of exact products in fp32, in any order: 2^-18 of the sum of magnitudes is more than 328 roundings. */
static void hold_plain(struct nib_sm100a_test *t, const char *kernel, const struct plain *p, int32_t n)
{
    for (int32_t i = 0; i < n * PLAIN_GROUPS * PLAIN_OUT && t->card.why[0] == 0; i++) {
        int32_t         o = i % (PLAIN_GROUPS * PLAIN_OUT), row = i / (PLAIN_GROUPS * PLAIN_OUT);
        const float    *x = p->x + (row * PLAIN_GROUPS + o / PLAIN_OUT) * PLAIN_IN;
        const uint16_t *w = p->w + o * PLAIN_IN;
        double          want = 0, size = 0;
        for (int32_t k = 0; k < PLAIN_IN; k++) {
            want += (double)x[k] * (double)nib_selftest_from_bf16(w[k]);
            size += fabs((double)x[k] * (double)nib_selftest_from_bf16(w[k]));
        }
        if (!(fabs((double)p->got[i] - want) <= 0x1p-18 * size))
            (void)snprintf(t->card.why, t->card.why_bytes, "sm100a %s: row %d, element %d is %.9g, wanted %.9g", kernel,
                           row, o, (double)p->got[i], want);
    }
}

static enum nib_status test_product(struct nib_sm100a_test *t, struct plain *p, int32_t n, bool f32, bool fp8,
                                    const char *kernel)
{
    size_t  start = t->card.used;
    int32_t in = PLAIN_GROUPS * PLAIN_IN, out = PLAIN_GROUPS * PLAIN_OUT;
    bool    taken = false;
    for (int32_t i = 0; i < n * in; i++) { /* 24 bits, or the eight of bf16 */
        float v = nib_selftest_value(&t->card.random) + nib_selftest_value(&t->card.random) * 0x1p-12f;
        p->half[i] = nib_selftest_bf16(v);
        p->x[i] = f32 ? v : nib_selftest_from_bf16(p->half[i]);
    }
    size_t                 bytes = (size_t)(n * out) * sizeof *p->got;
    void                  *x = nib_selftest_put(&t->card, f32 ? (void *)p->x : p->half,
                                                (size_t)(n * in) * (f32 ? 4 : 2));
    struct nib_cuda_matrix w = {.codes = nib_selftest_put(&t->card, fp8 ? (void *)p->codes : p->w,
                                                         fp8 ? sizeof p->codes : sizeof p->w),
                                .scales = fp8 ? nib_selftest_put(&t->card, p->atoms, sizeof p->atoms) : NULL,
                                .type = fp8 ? NIB_WEIGHT_FP8 : NIB_WEIGHT_BF16,
                                .layout = NIB_CUDA_ATOMS,
                                .n_stack = 1,
                                .n_out = out,
                                .n_in = PLAIN_IN};
    struct nib_mat rows = {x, f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, n, in, in},
                   y = {nib_selftest_take(&t->card, bytes), NIB_DTYPE_F32, n, out, out};
    if (t->card.e == cudaSuccess)
        t->card.e = cudaMemsetAsync(y.data, 0xff, bytes, t->s->handle); /* NaN */
    if (t->card.e == cudaSuccess)
        NIB_TRY(nib_sm100a_plain_multiply(t->s, &rows, PLAIN_GROUPS, &w, &y, &taken));
    if (t->card.e == cudaSuccess)
        t->card.e = cudaMemcpyAsync(p->got, y.data, bytes, cudaMemcpyDeviceToHost, t->s->handle);
    if (t->card.e == cudaSuccess)
        t->card.e = cudaStreamSynchronize(t->s->handle);
    if (t->card.e == cudaSuccess)
        hold_plain(t, kernel, p, n);
    t->card.used = start;
    return NIB_OK;
}

enum nib_status nib_sm100a_test_products(struct nib_sm100a_test *t)
{
    static const struct {
        int32_t     n;
        bool        f32, fp8;
        const char *kernel;
    } kernels[] = {{3, false, false, "plain_few_bf16"},          {3, true, false, "plain_few_f32"},
                   {PLAIN_ROWS, false, false, "plain_many_bf16"}, {PLAIN_ROWS, true, false, "plain_many_f32"},
                   {3, false, true, "plain_fp8_few_bf16"},        {3, true, true, "plain_fp8_few_f32"},
                   {PLAIN_ROWS, false, true, "plain_fp8_many_bf16"},
                   {PLAIN_ROWS, true, true, "plain_fp8_many_f32"}};
    enum nib_status status = NIB_OK;
    struct plain   *p = calloc(1, sizeof *p);
    if (!p)
        return nib_error_set(&t->s->error, NIB_E_MEMORY, "cuda: no memory for the self-test");
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (i == 0 || kernels[i].fp8 != kernels[i - 1].fp8)
            draw_weights(t, p, kernels[i].fp8);
        if (status == NIB_OK && t->card.e == cudaSuccess && t->card.why[0] == 0)
            status = test_product(t, p, kernels[i].n, kernels[i].f32, kernels[i].fp8, kernels[i].kernel);
    }
    free(p);
    return status;
}
