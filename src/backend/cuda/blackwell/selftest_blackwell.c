/* Blackwell's kernels have never run on hardware. So whoever opens a card that has them first runs each of its family
 * on a small problem and holds the results to the processor's: codes and scales to the bit (SwiGLU's to a step, as the
 * card's exp may differ), sums within 2^-20 of the sum of magnitudes (fp32 sums of any order and rounding stay far
 * below; a wrong layout, descriptor or fence does not). Each link of a mixture is held to what the link before it left.
 * Takes milliseconds. */
#include "backend/cuda/blackwell/selftest_blackwell.h"

#include <math.h>
#include <stdlib.h>

enum { ARENA = 8 << 20 };

static enum nib_status test_norm(struct nib_selftest *t)
{
    float x[FEW * IN], weight[IN];
    for (int32_t i = 0; i < FEW * IN; i++)
        x[i] = ((float)(nib_selftest_next(t) % 2001) - 1000.0f) * 1e-3f;
    for (int32_t i = 0; i < IN; i++)
        weight[i] = 0.5f + (float)(nib_selftest_next(t) % 1000) * 1e-3f;
    x[IN + 7] = NAN;
    struct nib_act y = {.plain = {nib_selftest_take(&t->card, sizeof x), NIB_DTYPE_F32, FEW, IN, IN},
                        .format = NIB_ACT_NVFP4,
                        .rows = FEW,
                        .cols = IN,
                        .codes_stride = nib_act_codes_stride(NIB_ACT_NVFP4, IN),
                        .scales_stride = nib_act_scales_stride(NIB_ACT_NVFP4, IN)};
    y.codes = nib_selftest_take(&t->card, FEW * (size_t)y.codes_stride);
    y.scales = nib_selftest_take(&t->card, FEW * (size_t)y.scales_stride);
    y.row_scale = nib_selftest_take(&t->card, FEW * sizeof(float));
    struct nib_norm_args a = {.x = {nib_selftest_put(&t->card, x, sizeof x), NIB_DTYPE_F32, FEW, IN, IN},
                              .weight = nib_selftest_put(&t->card, weight, sizeof weight),
                              .eps = 1e-6f,
                              .y = y};
    NIB_TRY(nib_cuda_blackwell_norm(&t->s, &a));
    float   *plain = nib_selftest_get(&t->card, y.plain.data, sizeof x), *g = nib_selftest_get(&t->card, y.row_scale,
                                                                                        FEW * sizeof(float));
    uint8_t *codes = nib_selftest_get(&t->card, y.codes, FEW * (size_t)y.codes_stride),
            *scales = nib_selftest_get(&t->card, y.scales, FEW * (size_t)y.scales_stride);
    for (int32_t row = 0; row < FEW && t->card.e == cudaSuccess; row++) {
        double sum = 0;
        for (int32_t i = 0; i < IN; i++)
            sum += (double)x[row * IN + i] * (double)x[row * IN + i];
        for (int32_t i = 0; i < IN; i++) {
            double want = (double)x[row * IN + i] / sqrt(sum / IN + 1e-6) * (double)weight[i],
                   got = (double)plain[row * IN + i];
            if (isnan(want) ? !isnan(got) : !(fabs(got - want) <= 0x1p-20 * fabs(want)))
                nib_selftest_differ(t, "norm", row, i, got, want);
        }
        nib_selftest_hold_codes(t, "norm", row, plain + row * IN, IN, codes + row * y.codes_stride,
                   scales + row * y.scales_stride, g[row], 0);
    }
    free(plain);
    free(g);
    free(codes);
    free(scales);
    return NIB_OK;
}

static enum nib_status test_linear(struct nib_selftest *t, struct nib_selftest_matrix *m,
                                   const struct nib_blackwell_product *p)
{
    int32_t     n = p->n_rows;
    const char *kernel = p->kernel;
    float *x = malloc((size_t)n * IN * sizeof *x), *y = NULL;
    if (!x) {
        t->card.e = cudaErrorMemoryAllocation;
        return NIB_OK;
    }
    nib_selftest_make_matrix(t, m, p->type, 1, OUT, IN);
    struct nib_linear_args a = {.x = nib_selftest_make_rows(t, n, IN, x),
                                .n_weights = 1,
                                .w = {&m->w.head},
                                .y = {{nib_selftest_take(&t->card, (size_t)n * OUT * sizeof(float)), NIB_DTYPE_F32, n,
                                       OUT, OUT}}};
    enum nib_status        status = t->card.e == cudaSuccess ? nib_cuda_blackwell_linear(&t->s, &a) : NIB_OK;
    if (status == NIB_OK)
        y = nib_selftest_get(&t->card, a.y[0].data, (size_t)n * OUT * sizeof *y);
    for (int32_t row = 0; row < n && status == NIB_OK && t->card.e == cudaSuccess; row++)
        nib_selftest_hold_product(t, kernel, row, x + row * IN, m, 0, y + row * OUT);
    free(x);
    free(y);
    return status;
}

/* The same kernel's SwiGLU of two products, where it has one. */
static enum nib_status test_swiglu(struct nib_selftest *t, struct nib_selftest_matrix *w1, struct nib_selftest_matrix *w3,
                                   const struct nib_blackwell_product *p)
{
    const float limit = 2;
    int32_t     n = p->n_rows;
    size_t      bytes = (size_t)n * OUT * sizeof(float);
    float      *x = malloc((size_t)n * IN * sizeof *x), *y = NULL;
    if (!x) {
        t->card.e = cudaErrorMemoryAllocation;
        return NIB_OK;
    }
    nib_selftest_make_matrix(t, w1, p->type, 1, OUT, IN);
    nib_selftest_make_matrix(t, w3, p->type, 1, OUT, IN);
    struct nib_act         rows = nib_selftest_make_rows(t, n, IN, x);
    struct nib_mat         out = {nib_selftest_take(&t->card, bytes), NIB_DTYPE_F32, n, OUT, OUT};
    struct nib_blackwell_x taken;
    enum nib_status        status = t->card.e == cudaSuccess ? t->family->take_rows(&t->s, &rows, &taken) : NIB_OK;
    if (status == NIB_OK && t->card.e == cudaSuccess)
        status = t->family->multiply_swiglu(&t->s, &taken, &w1->w.m, &w3->w.m, limit, &out, NULL);
    if (status == NIB_OK)
        y = nib_selftest_get(&t->card, out.data, bytes);
    for (int32_t row = 0; row < n && status == NIB_OK && t->card.e == cudaSuccess; row++)
        nib_selftest_hold_swiglu(t, p->kernel, row, x + row * IN, w1, w3, 0, (double)limit, y + row * OUT);
    free(w3->value);
    w3->value = NULL;
    free(x);
    free(y);
    return status;
}

/* ---- All of them ---- */

static void make_scratch(struct nib_selftest *t)
{
    const struct nib_dims        dims = {.n_rows_max = MANY,
                                         .dim = DIM,
                                         .n_heads = 1,
                                         .head_dim = IN,
                                         .n_groups = 1,
                                         .o_rank = 1,
                                         .q_rank = 1,
                                         .n_experts = EXPERTS,
                                         .top_k = TOP,
                                         .n_inner = INNER,
                                         .n_inner_shared = INNER};
    struct nib_cuda_moe_scratch *m = &t->s.moe;
    struct nib_cuda_blackwell   *q = &t->s.blackwell;
    t->s.dims = dims;
    m->n_rows = TOKENS;
    m->pair = nib_selftest_take(&t->card, PAIRS * 4);
    m->place = nib_selftest_take(&t->card, PAIRS * 4);
    m->hidden = nib_selftest_take(&t->card, (PAIRS + TOKENS) * INNER * 4);
    m->parts = nib_selftest_take(&t->card, (PAIRS + TOKENS) * INNER * 4);
    m->y = nib_selftest_take(&t->card, (PAIRS + TOKENS) * DIM * 4);
    size_t bytes = nib_cuda_blackwell_lay_out(q, m, &dims, NULL);
    (void)nib_cuda_blackwell_lay_out(q, m, &dims, nib_selftest_take(&t->card, bytes));
    q->on[t->format] = true;
}

static enum nib_status run_tests(struct nib_selftest *t, struct nib_selftest_matrix *linear,
                                 struct nib_selftest_experts *experts)
{
    make_scratch(t);
    if (t->card.e != cudaSuccess)
        return NIB_OK;
    if (t->format == NIB_ACT_NVFP4)
        NIB_TRY(test_norm(t));
    for (const struct nib_blackwell_product *p = t->family->products; p->n_rows > 0; p++) {
        if (p->act != t->format)
            continue;
        NIB_TRY(test_linear(t, linear, p));
        free(linear->value);
        linear->value = NULL;
        if (!t->family->multiply_swiglu)
            continue;
        NIB_TRY(test_swiglu(t, linear, &experts->w3, p));
        free(linear->value);
        linear->value = NULL;
    }
    bool                 nvfp4 = t->format == NIB_ACT_NVFP4;
    enum nib_weight_type four = nvfp4 ? NIB_WEIGHT_NVFP4 : NIB_WEIGHT_MXFP4, shared = nvfp4 ? four : NIB_WEIGHT_FP8;
    NIB_TRY(nib_selftest_experts(t, experts, four, four, shared, FEW));
    NIB_TRY(nib_selftest_experts(t, experts, four, four, shared, TOKENS));
    if (!nvfp4) {
        NIB_TRY(nib_selftest_experts(t, experts, NIB_WEIGHT_FP8, NIB_WEIGHT_FP8, NIB_WEIGHT_MXFP4, FEW));
        /* Of two formats: not in the kernels that some families have for one. */
        NIB_TRY(nib_selftest_experts(t, experts, NIB_WEIGHT_FP8, NIB_WEIGHT_MXFP4, NIB_WEIGHT_MXFP4, FEW));
    }
    return t->family->selftest && !t->s.blackwell.ops_on && t->card.e == cudaSuccess && t->card.why[0] == 0
               ? t->family->selftest(&t->s, t->card.why, t->card.why_bytes)
               : NIB_OK;
}

enum nib_status nib_blackwell_selftest(struct nib_stream *s, enum nib_act_format format, char *why, size_t why_bytes)
{
    struct nib_selftest    *t = calloc(1, sizeof *t);
    struct nib_selftest_matrix  *linear = calloc(1, sizeof *linear);
    struct nib_selftest_experts *experts = calloc(1, sizeof *experts);
    enum nib_status status = NIB_OK;
    why[0] = 0;
    if (!t || !linear || !experts) {
        status = nib_error_set(&s->error, NIB_E_MEMORY, "cuda: no memory for the self-test");
    } else {
        t->s.handle = s->handle;
        t->s.n_sms = s->n_sms;
        t->s.arch = s->arch;
        t->s.blackwell.encode = s->blackwell.encode;
        t->s.blackwell.ops_on = s->blackwell.ops_on; /* those have passed */
        t->family = s->blackwell.family;
        t->format = format;
        t->card = (struct nib_selftest_card){
            .queue = s->handle, .size = ARENA, .random = 100, .why = why, .why_bytes = why_bytes};
        t->card.e = cudaMalloc((void **)&t->card.arena, ARENA);
        if (t->card.e == cudaSuccess)
            t->card.e = cudaMemsetAsync(t->card.arena, 0, ARENA, s->handle); /* scratch is read before it is written */
        if (t->card.e == cudaSuccess)
            status = run_tests(t, linear, experts);
        if (status != NIB_OK)
            (void)nib_error_set(&s->error, status, "self-test: %s", t->s.error.text);
        else if (t->card.e != cudaSuccess)
            status = nib_cuda_check(s, t->card.e, "self-test");
        (void)cudaStreamSynchronize(s->handle);
        (void)cudaFree(t->card.arena);
        struct nib_selftest_matrix *all[] = {linear,        &experts->w1,  &experts->w2, &experts->w3,
                                &experts->sw1, &experts->sw2, &experts->sw3};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            free(all[i]->value);
    }
    free(t);
    free(linear);
    free(experts);
    return status;
}
