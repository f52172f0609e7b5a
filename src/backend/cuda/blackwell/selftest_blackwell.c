/* Blackwell's kernels have never run on hardware. So whoever opens a card that has them first runs each of its family
 * on a small problem and holds the results to the processor's: codes and scales to the bit (SwiGLU's to a step, as the
 * card's exp may differ), sums within 2^-20 of the sum of magnitudes (fp32 sums of any order and rounding stay far
 * below; a wrong layout, descriptor or fence does not). Each link of a mixture is held to what the link before it left.
 * Takes milliseconds. */
#include "backend/cuda/blackwell/table_blackwell.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number/act_rows.h"

/* Outputs and columns end inside tiles. */
enum {
    FEW = 3,
    MANY = 130, /* rows at most that a product is tested with */
    OUT = 200,
    IN = 320,
    TOKENS = 3,
    EXPERTS = 4,
    TOP = 2,
    PAIRS = TOKENS * TOP,
    DIM = 96,
    INNER = 64
};
enum { ARENA = 8 << 20, ALIGN = 256 };

struct test {
    struct nib_stream s; /* the caller's queue with scratch of its own */
    const struct nib_blackwell_family *family;
    uint8_t          *arena;
    size_t            used;
    uint64_t          random;
    cudaError_t       e;
    char             *why;
    size_t            why_bytes;
};

static void *take(struct test *t, size_t bytes)
{
    void *p = t->arena + t->used;
    t->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (t->used > ARENA)
        t->e = cudaErrorMemoryAllocation;
    return t->used > ARENA ? t->arena : p;
}

static void *put(struct test *t, const void *from, size_t bytes)
{
    void *p = take(t, bytes);
    if (t->e == cudaSuccess)
        t->e = cudaMemcpyAsync(p, from, bytes, cudaMemcpyHostToDevice, t->s.handle);
    if (t->e == cudaSuccess)
        t->e = cudaStreamSynchronize(t->s.handle);
    return p;
}

/* To the host, with all work before it done; malloc'd. */
static void *get(struct test *t, const void *from, size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p)
        t->e = cudaErrorMemoryAllocation;
    if (t->e == cudaSuccess)
        t->e = cudaMemcpyAsync(p, from, bytes, cudaMemcpyDeviceToHost, t->s.handle);
    if (t->e == cudaSuccess)
        t->e = cudaStreamSynchronize(t->s.handle);
    return p;
}

static uint32_t next(struct test *t)
{
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(t->random >> 33);
}

static void differ(struct test *t, const char *kernel, int32_t row, int32_t at, double got, double want)
{
    if (t->why[0] == 0)
        (void)snprintf(t->why, t->why_bytes, "%s %s: row %d, element %d is %.9g, wanted %.9g", t->family->name, kernel,
                       row, at, got, want);
}

/* ---- Problems ---- */

struct matrix {
    struct nib_cuda_weight w;
    float                 *value; /* host: [n_stack][n_out][n_in] without the global scale */
    float                  alpha[EXPERTS];
};

static void make_matrix(struct test *t, struct matrix *m, int32_t n_stack, int32_t n_out, int32_t n_in)
{
    const struct nib_weight_desc d = {NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, n_stack, n_out, n_in, NULL};
    size_t codes = (size_t)n_out * (size_t)n_in / 2, scales = codes / 8, packed_codes, packed_scales;
    memset(m, 0, sizeof *m);
    if (!t->family->packs(&d, &packed_codes, &packed_scales)) {
        t->e = cudaErrorInvalidValue;
        return;
    }
    m->w.head = (struct nib_weight){NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, n_stack, n_out, n_in};
    m->w.m = (struct nib_cuda_matrix){.codes = take(t, (size_t)n_stack * packed_codes),
                                      .scales = take(t, (size_t)n_stack * packed_scales),
                                      .codes_stride = (int64_t)packed_codes,
                                      .scales_stride = (int64_t)packed_scales,
                                      .type = NIB_WEIGHT_NVFP4,
                                      .layout = (int32_t)t->family->layout,
                                      .n_stack = n_stack,
                                      .n_out = n_out,
                                      .n_in = n_in};
    m->value = malloc((size_t)n_stack * codes * 2 * sizeof *m->value);
    uint8_t *stored = malloc(codes + scales);
    if (!m->value || !stored) {
        t->e = cudaErrorMemoryAllocation;
        free(stored);
        return;
    }
    for (int32_t i = 0; i < n_stack; i++) {
        for (size_t k = 0; k < codes; k++)
            stored[k] = (uint8_t)next(t);
        for (size_t k = 0; k < scales; k++)
            stored[codes + k] = (uint8_t)(0x28 + next(t) % 0x20);
        for (int32_t o = 0; o < n_out; o++)
            nib_nvfp4_row_decode(stored + o * (n_in / 2), stored + codes + o * (n_in / 16), 1.0f, n_in,
                                 m->value + ((size_t)i * (size_t)n_out + (size_t)o) * (size_t)n_in);
        m->alpha[i] = 1e-2f * (float)(i + 3);
        const uint8_t *on = put(t, stored, codes + scales);
        if (t->e == cudaSuccess)
            t->e = t->family->pack(t->s.handle, &m->w.m, i, on, on + codes);
    }
    m->w.m.alpha0 = m->alpha[0];
    if (n_stack > 1)
        m->w.m.alpha = put(t, m->alpha, (size_t)n_stack * sizeof *m->alpha);
    free(stored);
}

/* n random rows as ops hand them on; their values in x [n][cols]. Row 1 holds a NaN. */
static struct nib_act make_rows(struct test *t, int32_t n, int32_t cols, float *x)
{
    struct nib_act a = {.format = NIB_ACT_NVFP4,
                        .rows = n,
                        .cols = cols,
                        .codes_stride = nib_act_codes_stride(NIB_ACT_NVFP4, cols),
                        .scales_stride = nib_act_scales_stride(NIB_ACT_NVFP4, cols)};
    uint8_t *codes = calloc((size_t)n, (size_t)a.codes_stride), *scales = calloc((size_t)n, (size_t)a.scales_stride);
    float   *g = malloc((size_t)n * sizeof *g);
    if (!codes || !scales || !g) {
        t->e = cudaErrorMemoryAllocation;
    } else {
        for (int32_t i = 0; i < n; i++) {
            for (int32_t k = 0; k < cols; k++)
                x[i * cols + k] = ((float)(next(t) % 2001) - 1000.0f) * (i % 3 == 2 ? 1e-5f : 1e-2f);
            if (i == 1)
                x[i * cols + 5] = NAN;
            nib_nvfp4_row_encode(x + i * cols, cols, codes + i * a.codes_stride, scales + i * a.scales_stride, &g[i]);
            nib_nvfp4_row_decode(codes + i * a.codes_stride, scales + i * a.scales_stride, g[i], cols, x + i * cols);
        }
        a.codes = put(t, codes, (size_t)n * (size_t)a.codes_stride);
        a.scales = put(t, scales, (size_t)n * (size_t)a.scales_stride);
        a.row_scale = put(t, g, (size_t)n * sizeof *g);
    }
    free(codes);
    free(scales);
    free(g);
    return a;
}

/* One row of results against x, n_in values whose row scale may be NaN, times one matrix. */
static void hold_product(struct test *t, const char *kernel, int32_t row, const float *x, const struct matrix *m,
                         int32_t stack, const float *y)
{
    int32_t n_out = m->w.m.n_out, n_in = m->w.m.n_in;
    for (int32_t o = 0; o < n_out; o++) {
        const float *w = m->value + ((size_t)stack * (size_t)n_out + (size_t)o) * (size_t)n_in;
        double       sum = 0, size = 0;
        for (int32_t k = 0; k < n_in; k++) {
            double v = (double)x[k] * (double)w[k] * (double)m->alpha[stack];
            sum += v;
            size += fabs(v);
        }
        if (isnan(sum) ? !isnan(y[o]) : !(fabs((double)y[o] - sum) <= 0x1p-20 * size))
            differ(t, kernel, row, o, (double)y[o], sum);
    }
}

/* ---- Kernels ---- */

/* Codes on their scale: neighbours differ by 1. */
static int32_t rung(uint8_t code)
{
    return code & 8 ? -(code & 7) : code & 7;
}

/* steps: how far scales and codes may lie from the processor's, where what is encoded was not read back: 0, or 1. */
static void hold_codes(struct test *t, const char *kernel, int32_t row, const float *x, int32_t n, const uint8_t *codes,
                       const uint8_t *scales, float g, int32_t steps)
{
    uint8_t want_codes[IN / 2], want_scales[IN / 16];
    float   want;
    nib_nvfp4_row_encode(x, n, want_codes, want_scales, &want);
    if (isnan(want) || isnan(g)) {
        if (!isnan(want) || !isnan(g))
            differ(t, kernel, row, -1, (double)g, (double)want);
        return;
    }
    if (fabsf(g - want) > (float)steps * 0x1p-20f * want)
        differ(t, kernel, row, -1, (double)g, (double)want);
    for (int32_t i = 0; i < n / 16; i++)
        if (abs(scales[i] - want_scales[i]) > steps)
            differ(t, kernel, row, i * 16, scales[i], want_scales[i]);
    for (int32_t i = 0; i < n / 2; i++)
        if (abs(rung(codes[i] & 15) - rung(want_codes[i] & 15)) > steps ||
            abs(rung(codes[i] >> 4) - rung(want_codes[i] >> 4)) > steps)
            differ(t, kernel, row, i * 2, codes[i], want_codes[i]);
}

static enum nib_status test_norm(struct test *t)
{
    float x[FEW * IN], weight[IN];
    for (int32_t i = 0; i < FEW * IN; i++)
        x[i] = ((float)(next(t) % 2001) - 1000.0f) * 1e-3f;
    for (int32_t i = 0; i < IN; i++)
        weight[i] = 0.5f + (float)(next(t) % 1000) * 1e-3f;
    x[IN + 7] = NAN;
    struct nib_act y = {.plain = {take(t, sizeof x), NIB_DTYPE_F32, FEW, IN, IN},
                        .format = NIB_ACT_NVFP4,
                        .rows = FEW,
                        .cols = IN,
                        .codes_stride = nib_act_codes_stride(NIB_ACT_NVFP4, IN),
                        .scales_stride = nib_act_scales_stride(NIB_ACT_NVFP4, IN)};
    y.codes = take(t, FEW * (size_t)y.codes_stride);
    y.scales = take(t, FEW * (size_t)y.scales_stride);
    y.row_scale = take(t, FEW * sizeof(float));
    struct nib_norm_args a = {.x = {put(t, x, sizeof x), NIB_DTYPE_F32, FEW, IN, IN},
                              .weight = put(t, weight, sizeof weight),
                              .eps = 1e-6f,
                              .y = y};
    NIB_TRY(nib_cuda_blackwell_norm(&t->s, &a));
    float   *plain = get(t, y.plain.data, sizeof x), *g = get(t, y.row_scale, FEW * sizeof(float));
    uint8_t *codes = get(t, y.codes, FEW * (size_t)y.codes_stride),
            *scales = get(t, y.scales, FEW * (size_t)y.scales_stride);
    for (int32_t row = 0; row < FEW && t->e == cudaSuccess; row++) {
        double sum = 0;
        for (int32_t i = 0; i < IN; i++)
            sum += (double)x[row * IN + i] * (double)x[row * IN + i];
        for (int32_t i = 0; i < IN; i++) {
            double want = (double)x[row * IN + i] / sqrt(sum / IN + 1e-6) * (double)weight[i],
                   got = (double)plain[row * IN + i];
            if (isnan(want) ? !isnan(got) : !(fabs(got - want) <= 0x1p-20 * fabs(want)))
                differ(t, "norm", row, i, got, want);
        }
        hold_codes(t, "norm", row, plain + row * IN, IN, codes + row * y.codes_stride,
                   scales + row * y.scales_stride, g[row], 0);
    }
    free(plain);
    free(g);
    free(codes);
    free(scales);
    return NIB_OK;
}

static enum nib_status test_linear(struct test *t, struct matrix *m, int32_t n, const char *kernel)
{
    float *x = malloc((size_t)n * IN * sizeof *x), *y = NULL;
    if (!x) {
        t->e = cudaErrorMemoryAllocation;
        return NIB_OK;
    }
    struct nib_linear_args a = {.x = make_rows(t, n, IN, x),
                                .n_weights = 1,
                                .w = {&m->w.head},
                                .y = {{take(t, (size_t)n * OUT * sizeof(float)), NIB_DTYPE_F32, n, OUT, OUT}}};
    enum nib_status        status = t->e == cudaSuccess ? nib_cuda_blackwell_linear(&t->s, &a) : NIB_OK;
    if (status == NIB_OK)
        y = get(t, a.y[0].data, (size_t)n * OUT * sizeof *y);
    for (int32_t row = 0; row < n && status == NIB_OK && t->e == cudaSuccess; row++)
        hold_product(t, kernel, row, x + row * IN, m, 0, y + row * OUT);
    free(x);
    free(y);
    return status;
}

static float swiglu(float g, float u)
{
    return (float)((double)g / (1 + exp(-(double)g))) * u;
}

/* One row of gate and up through SwiGLU, its codes, and its product with the second matrix. */
static void hold_inner(struct test *t, const char *kernel, int32_t row, const float *gate, const float *up,
                       const uint8_t *codes, const uint8_t *scales, float g, const struct matrix *w2, int32_t stack,
                       const float *y)
{
    float x[INNER];
    for (int32_t i = 0; i < INNER; i++)
        x[i] = swiglu(gate[i], up[i]);
    hold_codes(t, kernel, row, x, INNER, codes, scales, g, 1);
    nib_nvfp4_row_decode(codes, scales, g, INNER, x);
    hold_product(t, "product of experts' inner rows", row, x, w2, stack, y);
}

struct experts {
    struct matrix w1, w2, w3, sw1, sw2, sw3;
};

/* What the links of a mixture left, on the host. */
static void hold_experts(struct test *t, const struct experts *m, const float *x, const int32_t *chosen,
                         const float *weight, const float *y)
{
    struct nib_cuda_blackwell   *q = &t->s.blackwell;
    struct nib_cuda_moe_scratch *r = &t->s.moe;
    int64_t stride = nib_act_codes_stride(NIB_ACT_NVFP4, INNER), s_stride = nib_act_scales_stride(NIB_ACT_NVFP4, INNER);
    int32_t *place = get(t, r->place, PAIRS * 4), *scale_row = q->scale_row ? get(t, q->scale_row, PAIRS * 4) : NULL;
    float *gate = get(t, r->hidden, (PAIRS + TOKENS) * INNER * 4), *up = get(t, r->parts, (PAIRS + TOKENS) * INNER * 4);
    float *g = get(t, q->inner_row_scale, PAIRS * 4), *shared_g = get(t, q->shared_row_scale, TOKENS * 4);
    float *z = get(t, r->y, (PAIRS + TOKENS) * DIM * 4);
    uint8_t *codes = get(t, q->inner_codes, PAIRS * (size_t)stride),
            *shared_codes = get(t, q->shared_codes, TOKENS * (size_t)stride);
    uint8_t *scales = get(t, q->inner_scales, (size_t)q->inner_scales_bytes);
    uint8_t *shared_scales = get(t, q->shared_scales, TOKENS * (size_t)s_stride), row_scales[INNER / 16];
    for (int32_t p = 0; p < PAIRS && t->e == cudaSuccess; p++) {
        int32_t row = place[p], e = chosen[p];
        if (row < 0 || row >= PAIRS) {
            differ(t, "groups", p, 0, row, PAIRS - 1);
            continue;
        }
        hold_product(t, "product of experts", row, x + p / TOP * DIM, &m->w1, e, gate + row * INNER);
        hold_product(t, "product of experts", row, x + p / TOP * DIM, &m->w3, e, up + row * INNER);
        for (int32_t b = 0; b < INNER / 16; b++) {
            int64_t at = scale_row ? t->family->scale_offset(scale_row[row], b, INNER) : row * s_stride + b;
            if (at < 0 || at >= q->inner_scales_bytes) {
                differ(t, "groups", p, 1, scale_row[row], PAIRS - 1);
                at = 0;
            }
            row_scales[b] = scales[at];
        }
        hold_inner(t, "swiglu", row, gate + row * INNER, up + row * INNER, codes + row * stride, row_scales, g[row],
                   &m->w2, e, z + row * DIM);
    }
    for (int32_t i = 0; i < TOKENS && t->e == cudaSuccess && t->why[0] == 0; i++) {
        const float *gate_row = gate + (PAIRS + i) * INNER, *up_row = up + (PAIRS + i) * INNER,
                    *z_row = z + (PAIRS + i) * DIM;
        hold_product(t, "product of the shared expert", i, x + i * DIM, &m->sw1, 0, gate_row);
        hold_product(t, "product of the shared expert", i, x + i * DIM, &m->sw3, 0, up_row);
        hold_inner(t, "swiglu_act", i, gate_row, up_row, shared_codes + i * stride, shared_scales + i * s_stride,
                   shared_g[i], &m->sw2, 0, z_row);
        int32_t first = chosen[i * TOP] > chosen[i * TOP + 1];
        for (int32_t k = 0; k < DIM; k++) {
            float sum = weight[i * TOP + first] * z[place[i * TOP + first] * DIM + k];
            sum += weight[i * TOP + !first] * z[place[i * TOP + !first] * DIM + k];
            sum += z_row[k];
            if (isnan(sum) ? !isnan(y[i * DIM + k]) : y[i * DIM + k] != sum)
                differ(t, "combine", i, k, (double)y[i * DIM + k], (double)sum);
        }
    }
    void *all[] = {place, scale_row, gate, up, g, shared_g, z, codes, shared_codes, scales, shared_scales};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static enum nib_status test_experts(struct test *t, struct experts *m)
{
    /* Expert 2 gets nobody; one token's choices do not ascend. */
    static const int32_t chosen[PAIRS] = {0, 3, 1, 3, 3, 1};
    static const float   weight[PAIRS] = {0.75f, 0.5f, 0.25f, 1.0f, 0.625f, 0.375f};
    float                x[TOKENS * DIM];
    make_matrix(t, &m->w1, EXPERTS, INNER, DIM);
    make_matrix(t, &m->w3, EXPERTS, INNER, DIM);
    make_matrix(t, &m->w2, EXPERTS, DIM, INNER);
    make_matrix(t, &m->sw1, 1, INNER, DIM);
    make_matrix(t, &m->sw3, 1, INNER, DIM);
    make_matrix(t, &m->sw2, 1, DIM, INNER);
    struct nib_act rows = make_rows(t, TOKENS, DIM, x);
    t->s.moe.chosen = put(t, chosen, sizeof chosen);
    t->s.moe.weight = put(t, weight, sizeof weight);
    if (t->e != cudaSuccess)
        return NIB_OK;
    struct nib_mat      y = {take(t, sizeof x), NIB_DTYPE_F32, TOKENS, DIM, DIM};
    struct nib_moe_args a = {.n_experts = EXPERTS,
                             .top_k = TOP,
                             .w1 = &m->w1.w.head,
                             .w2 = &m->w2.w.head,
                             .w3 = &m->w3.w.head,
                             .sw1 = &m->sw1.w.head,
                             .sw2 = &m->sw2.w.head,
                             .sw3 = &m->sw3.w.head,
                             .y = y};
    NIB_TRY(nib_blackwell_experts_run(&t->s, &a, &rows, y));
    float *got = get(t, y.data, sizeof x);
    if (t->e == cudaSuccess)
        hold_experts(t, m, x, chosen, weight, got);
    free(got);
    return NIB_OK;
}

/* ---- All of them ---- */

static void make_scratch(struct test *t)
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
    m->pair = take(t, PAIRS * 4);
    m->place = take(t, PAIRS * 4);
    m->hidden = take(t, (PAIRS + TOKENS) * INNER * 4);
    m->parts = take(t, (PAIRS + TOKENS) * INNER * 4);
    m->y = take(t, (PAIRS + TOKENS) * DIM * 4);
    size_t bytes = nib_cuda_blackwell_lay_out(q, m, &dims, NULL);
    (void)nib_cuda_blackwell_lay_out(q, m, &dims, take(t, bytes));
    q->on = true;
}

static enum nib_status run_tests(struct test *t, struct matrix *linear, struct experts *experts)
{
    make_scratch(t);
    if (t->e != cudaSuccess)
        return NIB_OK;
    NIB_TRY(test_norm(t));
    make_matrix(t, linear, 1, OUT, IN);
    for (const struct nib_blackwell_product *p = t->family->products; p->n_rows > 0; p++)
        NIB_TRY(test_linear(t, linear, p->n_rows, p->kernel));
    NIB_TRY(test_experts(t, experts));
    return t->family->selftest && t->e == cudaSuccess && t->why[0] == 0
               ? t->family->selftest(&t->s, t->why, t->why_bytes)
               : NIB_OK;
}

enum nib_status nib_blackwell_selftest(struct nib_stream *s, char *why, size_t why_bytes)
{
    struct test    *t = calloc(1, sizeof *t);
    struct matrix  *linear = calloc(1, sizeof *linear);
    struct experts *experts = calloc(1, sizeof *experts);
    enum nib_status status = NIB_OK;
    why[0] = 0;
    if (!t || !linear || !experts) {
        status = nib_error_set(&s->error, NIB_E_MEMORY, "cuda: no memory for the self-test");
    } else {
        t->s.handle = s->handle;
        t->s.n_sms = s->n_sms;
        t->s.arch = s->arch;
        t->s.blackwell.encode = s->blackwell.encode;
        t->family = s->blackwell.family;
        t->random = 100;
        t->why = why;
        t->why_bytes = why_bytes;
        t->e = cudaMalloc((void **)&t->arena, ARENA);
        if (t->e == cudaSuccess)
            t->e = cudaMemsetAsync(t->arena, 0, ARENA, s->handle); /* scratch is read before it is written */
        if (t->e == cudaSuccess)
            status = run_tests(t, linear, experts);
        if (status != NIB_OK)
            (void)nib_error_set(&s->error, status, "self-test: %s", t->s.error.text);
        else if (t->e != cudaSuccess)
            status = nib_cuda_check(s, t->e, "self-test");
        (void)cudaStreamSynchronize(s->handle);
        (void)cudaFree(t->arena);
        struct matrix *all[] = {linear,        &experts->w1,  &experts->w2, &experts->w3,
                                &experts->sw1, &experts->sw2, &experts->sw3};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            free(all[i]->value);
    }
    free(t);
    free(linear);
    free(experts);
    return status;
}
