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
    IN = 384,
    TOKENS = 33, /* of a mixture at most: more than 16 pairs an expert, which is another kernel on sm_100a */
    EXPERTS = 4,
    TOP = 2,
    PAIRS = TOKENS * TOP,
    DIM = 128,
    INNER = 128
};
enum { ARENA = 8 << 20, ALIGN = 256 };

struct test {
    struct nib_stream s; /* the caller's queue with scratch of its own */
    const struct nib_blackwell_family *family;
    enum nib_act_format                format; /* of rows */
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

/* Bytes of one matrix as stored; its values, without the global scale, to value. */
static void decode(const struct nib_weight_desc *d, const uint8_t *codes, const uint8_t *scales, float *value)
{
    for (int32_t o = 0; o < d->n_out; o++) {
        float *row = value + (int64_t)o * d->n_in;
        if (d->type == NIB_WEIGHT_NVFP4)
            nib_nvfp4_row_decode(codes + o * (d->n_in / 2), scales + o * (d->n_in / 16), 1.0f, d->n_in, row);
        else if (d->type == NIB_WEIGHT_MXFP4)
            nib_fp4_row_decode(codes + o * (d->n_in / 2), scales + o * (d->n_in / 32), d->n_in, row);
        else
            nib_fp8_row_decode(codes + o * d->n_in, scales + o / 128 * ((d->n_in + 127) / 128), d->n_in, 128, row);
    }
}

static void make_matrix(struct test *t, struct matrix *m, enum nib_weight_type type, int32_t n_stack, int32_t n_out,
                        int32_t n_in)
{
    const struct nib_weight_desc d = {type, t->format, n_stack, n_out, n_in, NULL};
    bool   nvfp4 = type == NIB_WEIGHT_NVFP4, fp8 = type == NIB_WEIGHT_FP8;
    size_t values = (size_t)n_out * (size_t)n_in, codes = fp8 ? values : values / 2, packed_codes, packed_scales;
    size_t scales = fp8 ? (size_t)((n_out + 127) / 128 * ((n_in + 127) / 128)) : values / (nvfp4 ? 16 : 32);
    memset(m, 0, sizeof *m);
    if (!t->family->packs(&d, &packed_codes, &packed_scales)) {
        t->e = cudaErrorInvalidValue;
        return;
    }
    m->w.head = (struct nib_weight){type, t->format, n_stack, n_out, n_in};
    m->w.m = (struct nib_cuda_matrix){.codes = take(t, (size_t)n_stack * packed_codes),
                                      .scales = take(t, (size_t)n_stack * packed_scales),
                                      .codes_stride = (int64_t)packed_codes,
                                      .scales_stride = (int64_t)packed_scales,
                                      .type = (int32_t)type,
                                      .layout = (int32_t)t->family->layout,
                                      .n_stack = n_stack,
                                      .n_out = n_out,
                                      .n_in = n_in};
    m->value = malloc((size_t)n_stack * values * sizeof *m->value);
    uint8_t *stored = malloc(codes + scales);
    if (!m->value || !stored) {
        t->e = cudaErrorMemoryAllocation;
        free(stored);
        return;
    }
    for (int32_t i = 0; i < n_stack; i++) {
        for (size_t k = 0; k < codes; k++) {
            stored[k] = (uint8_t)next(t);
            if (fp8 && (stored[k] & 0x7f) == 0x7f) /* NaN */
                stored[k] = 0x38;
        }
        for (size_t k = 0; k < scales; k++)
            stored[codes + k] = (uint8_t)(nvfp4 ? 0x28 + next(t) % 0x20 : 120 + next(t) % 8);
        decode(&d, stored, stored + codes, m->value + (size_t)i * values);
        m->alpha[i] = nvfp4 ? 1e-2f * (float)(i + 3) : 1.0f;
        const uint8_t *on = put(t, stored, codes + scales);
        if (t->e == cudaSuccess)
            t->e = t->family->pack(t->s.handle, &m->w.m, i, on, on + codes);
    }
    m->w.m.alpha0 = m->alpha[0];
    if (n_stack > 1)
        m->w.m.alpha = put(t, m->alpha, (size_t)n_stack * sizeof *m->alpha);
    free(stored);
}

static void encode(enum nib_act_format format, const float *x, int32_t n, uint8_t *codes, uint8_t *scales, float *g)
{
    *g = 1.0f;
    if (format == NIB_ACT_NVFP4)
        nib_nvfp4_row_encode(x, n, codes, scales, g);
    else
        nib_fp8_row_encode(x, n, 128, codes, scales);
}

static void decode_row(enum nib_act_format format, const uint8_t *codes, const uint8_t *scales, float g, int32_t n,
                       float *x)
{
    if (format == NIB_ACT_NVFP4)
        nib_nvfp4_row_decode(codes, scales, g, n, x);
    else
        nib_fp8_row_decode(codes, scales, n, 128, x);
}

/* n random rows as ops hand them on; their values in x [n][cols]. Row 1 holds a NaN. */
static struct nib_act make_rows(struct test *t, int32_t n, int32_t cols, float *x)
{
    struct nib_act a = {.format = t->format,
                        .rows = n,
                        .cols = cols,
                        .codes_stride = nib_act_codes_stride(t->format, cols),
                        .scales_stride = nib_act_scales_stride(t->format, cols)};
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
            encode(t->format, x + i * cols, cols, codes + i * a.codes_stride, scales + i * a.scales_stride, &g[i]);
            decode_row(t->format, codes + i * a.codes_stride, scales + i * a.scales_stride, g[i], cols, x + i * cols);
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

/* A code without its sign bit on its scale: neighbours differ by 1. */
static int32_t rung(uint32_t code, uint32_t sign)
{
    int32_t v = (int32_t)(code & (sign - 1));
    return code & sign ? -v : v;
}

/* steps: how far NVFP4's scales and codes may lie from the processor's, where what is encoded was not read back: 0, or
 * 1. */
static void hold_codes(struct test *t, const char *kernel, int32_t row, const float *x, int32_t n, const uint8_t *codes,
                       const uint8_t *scales, float g, int32_t steps)
{
    bool    nvfp4 = t->format == NIB_ACT_NVFP4;
    uint8_t want_codes[IN], want_scales[IN / 16];
    float   want;
    encode(t->format, x, n, want_codes, want_scales, &want);
    if (nvfp4 && (isnan(want) || isnan(g))) {
        if (!isnan(want) || !isnan(g))
            differ(t, kernel, row, -1, (double)g, (double)want);
        return;
    }
    if (nvfp4 && fabsf(g - want) > (float)steps * 0x1p-20f * want)
        differ(t, kernel, row, -1, (double)g, (double)want);
    for (int32_t i = 0; i < (nvfp4 ? n / 16 : (n + 127) / 128); i++)
        if (abs(scales[i] - want_scales[i]) > (nvfp4 ? steps : 0))
            differ(t, kernel, row, i * (nvfp4 ? 16 : 128), scales[i], want_scales[i]);
    for (int32_t i = 0; i < n; i++) {
        uint32_t shift = nvfp4 ? (uint32_t)i % 2 * 4 : 0, sign = nvfp4 ? 8 : 128;
        uint32_t got = codes[nvfp4 ? i / 2 : i], wanted = want_codes[nvfp4 ? i / 2 : i];
        bool     is_nan = !nvfp4 && want_scales[i / 128] == 255;
        if (!is_nan && abs(rung(got >> shift, sign) - rung(wanted >> shift, sign)) > steps)
            differ(t, kernel, row, i, got, wanted);
    }
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

static enum nib_status test_linear(struct test *t, struct matrix *m, const struct nib_blackwell_product *p)
{
    int32_t     n = p->n_rows;
    const char *kernel = p->kernel;
    float *x = malloc((size_t)n * IN * sizeof *x), *y = NULL;
    if (!x) {
        t->e = cudaErrorMemoryAllocation;
        return NIB_OK;
    }
    make_matrix(t, m, p->type, 1, OUT, IN);
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

/* A row of SwiGLU of both products of x, as a kernel that keeps the products to itself leaves it. */
static void hold_swiglu(struct test *t, int32_t row, const float *x, const struct matrix *w1, const struct matrix *w3,
                        int32_t stack, const float *h)
{
    const struct matrix *w[2] = {w1, w3};
    for (int32_t o = 0; o < INNER; o++) {
        double sum[2] = {0, 0}, size[2] = {0, 0};
        for (int p = 0; p < 2; p++)
            for (int32_t k = 0; k < DIM; k++) {
                int64_t at = ((int64_t)stack * INNER + o) * DIM + k;
                double  v = (double)x[k] * (double)w[p]->value[at] * (double)w[p]->alpha[stack];
                sum[p] += v;
                size[p] += fabs(v);
            }
        double silu = sum[0] / (1 + exp(-sum[0])), want = silu * sum[1];
        /* silu's slope is at most 1.1. */
        double bound = 0x1p-20 * (1.1 * size[0] * (fabs(sum[1]) + size[1] * 0x1p-20) + fabs(silu) * size[1] +
                                  4 * fabs(want));
        if (isnan(want) ? !isnan(h[o]) : !(fabs((double)h[o] - want) <= bound))
            differ(t, "experts' SwiGLU", row, o, (double)h[o], want);
    }
}

/* Codes of one row of inner values, exact if x was read back, and their product with the second matrix. */
static void hold_inner(struct test *t, const char *kernel, int32_t row, const float *x, int32_t steps,
                       const uint8_t *codes, const uint8_t *scales, float g, const struct matrix *w2, int32_t stack,
                       const float *y)
{
    float value[INNER];
    hold_codes(t, kernel, row, x, INNER, codes, scales, g, steps);
    decode_row(t->format, codes, scales, g, INNER, value);
    hold_product(t, "product of experts' inner rows", row, value, w2, stack, y);
}

struct experts {
    struct matrix w1, w2, w3, sw1, sw2, sw3;
};

/* What the kernels of routed rows left, on the host. */
struct links {
    int32_t *place, *scale_row;
    float   *gate, *up, *g, *shared_g, *z;
    uint8_t *codes, *scales, *shared_codes, *shared_scales;
    int64_t  scales_bytes;
    bool     fused, atoms, repeated; /* scales in the tensor core's layout; four bytes for one of FP8 */
};

static void hold_routed(struct test *t, const struct experts *m, const struct links *l, int32_t p, int32_t e,
                        const float *x)
{
    int64_t stride = nib_act_codes_stride(t->format, INNER), s_stride = nib_act_scales_stride(t->format, INNER);
    int32_t row = l->place[p], n_scales = t->format == NIB_ACT_NVFP4 ? INNER / 16 : INNER / 128;
    uint8_t scales[INNER / 16];
    float   h[INNER];
    if (row < 0 || row >= PAIRS) {
        differ(t, "groups", p, 0, row, PAIRS - 1);
        return;
    }
    if (l->fused) {
        hold_swiglu(t, row, x, &m->w1, &m->w3, e, l->gate + row * INNER);
        memcpy(h, l->gate + row * INNER, sizeof h);
    } else {
        hold_product(t, "product of experts", row, x, &m->w1, e, l->gate + row * INNER);
        hold_product(t, "product of experts", row, x, &m->w3, e, l->up + row * INNER);
        for (int32_t i = 0; i < INNER; i++)
            h[i] = swiglu(l->gate[row * INNER + i], l->up[row * INNER + i]);
    }
    for (int32_t b = 0; b < n_scales; b++) {
        int64_t at = row * s_stride + b;
        if (l->atoms) /* an atom of FP8 is a fourth of a tile of NVFP4's, and holds each scale four times */
            at = l->repeated ? l->scale_row[row] / 128 * (INNER / 128) * 512 + l->scale_row[row] % 32 * 16 +
                                   l->scale_row[row] % 128 / 32 * 4
                             : t->family->scale_offset(l->scale_row[row], b, INNER);
        if (at < 0 || at >= l->scales_bytes) {
            differ(t, "groups", p, 1, l->scale_row[row], PAIRS - 1);
            at = 0;
        }
        scales[b] = l->scales[at];
    }
    hold_inner(t, l->fused ? "experts' rows" : "swiglu", row, h, !l->fused, l->codes + row * stride, scales, l->g[row],
               &m->w2, e, l->z + row * DIM);
}

/* What the links of a mixture of n tokens left. */
static void hold_experts(struct test *t, const struct experts *m, int32_t n, const float *x, const int32_t *chosen,
                         const float *weight, const float *y)
{
    struct nib_cuda_blackwell   *q = &t->s.blackwell;
    struct nib_cuda_moe_scratch *r = &t->s.moe;
    int64_t      stride = nib_act_codes_stride(t->format, INNER), s_stride = nib_act_scales_stride(t->format, INNER);
    int32_t      pairs = n * TOP;
    bool         fused = t->family->experts_in && m->w1.w.head.type != NIB_WEIGHT_FP8;
    bool         atoms = t->family->scale_offset && (fused || t->format == NIB_ACT_NVFP4);
    struct links l = {.fused = fused, .atoms = atoms, .repeated = atoms && t->format == NIB_ACT_FP8};
    l.scales_bytes = atoms ? q->inner_atoms_bytes : PAIRS * s_stride;
    l.place = get(t, r->place, PAIRS * 4), l.scale_row = atoms ? get(t, q->scale_row, PAIRS * 4) : NULL;
    l.gate = get(t, r->hidden, (PAIRS + TOKENS) * INNER * 4), l.up = get(t, r->parts, (PAIRS + TOKENS) * INNER * 4);
    l.g = get(t, q->inner_row_scale, PAIRS * 4), l.shared_g = get(t, q->shared_row_scale, TOKENS * 4);
    l.z = get(t, r->y, (PAIRS + TOKENS) * DIM * 4);
    l.codes = get(t, q->inner_codes, PAIRS * (size_t)stride);
    l.scales = get(t, atoms ? q->inner_atoms : q->inner_scales, (size_t)l.scales_bytes);
    l.shared_codes = get(t, q->shared_codes, TOKENS * (size_t)stride);
    l.shared_scales = get(t, q->shared_scales, TOKENS * (size_t)s_stride);
    for (int32_t p = 0; p < pairs && t->e == cudaSuccess; p++)
        hold_routed(t, m, &l, p, chosen[p], x + p / TOP * DIM);
    for (int32_t i = 0; i < n && t->e == cudaSuccess && t->why[0] == 0; i++) {
        const float *gate = l.gate + (pairs + i) * INNER, *up = l.up + (pairs + i) * INNER,
                    *z = l.z + (pairs + i) * DIM;
        float        h[INNER];
        hold_product(t, "product of the shared expert", i, x + i * DIM, &m->sw1, 0, gate);
        hold_product(t, "product of the shared expert", i, x + i * DIM, &m->sw3, 0, up);
        for (int32_t k = 0; k < INNER; k++)
            h[k] = swiglu(gate[k], up[k]);
        hold_inner(t, "swiglu_act", i, h, 1, l.shared_codes + i * stride, l.shared_scales + i * s_stride, l.shared_g[i],
                   &m->sw2, 0, z);
        int32_t first = chosen[i * TOP] > chosen[i * TOP + 1];
        for (int32_t k = 0; k < DIM; k++) {
            float sum = weight[i * TOP + first] * l.z[l.place[i * TOP + first] * DIM + k];
            sum += weight[i * TOP + !first] * l.z[l.place[i * TOP + !first] * DIM + k];
            sum += z[k];
            if (isnan(sum) ? !isnan(y[i * DIM + k]) : y[i * DIM + k] != sum)
                differ(t, "experts' sum", i, k, (double)y[i * DIM + k], (double)sum);
        }
    }
    void *all[] = {l.place, l.scale_row, l.gate,   l.up,           l.g,           l.shared_g,
                   l.z,     l.codes,     l.scales, l.shared_codes, l.shared_scales};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* n tokens. Expert 2 gets nobody; some tokens' choices do not ascend. */
static enum nib_status test_experts(struct test *t, struct experts *m, enum nib_weight_type type,
                                    enum nib_weight_type shared, int32_t n)
{
    int32_t chosen[PAIRS];
    float   weight[PAIRS], *x = calloc(TOKENS * DIM, sizeof *x);
    for (int32_t p = 0; p < n * TOP; p++) {
        chosen[p] = p % TOP ? (p % 4 == 1 ? 3 : 0) : 1;
        weight[p] = 0.25f + 0.125f * (float)(p % 7);
    }
    make_matrix(t, &m->w1, type, EXPERTS, INNER, DIM);
    make_matrix(t, &m->w3, type, EXPERTS, INNER, DIM);
    make_matrix(t, &m->w2, type, EXPERTS, DIM, INNER);
    make_matrix(t, &m->sw1, shared, 1, INNER, DIM);
    make_matrix(t, &m->sw3, shared, 1, INNER, DIM);
    make_matrix(t, &m->sw2, shared, 1, DIM, INNER);
    if (!x)
        t->e = cudaErrorMemoryAllocation;
    if (t->e != cudaSuccess) {
        free(x);
        return NIB_OK;
    }
    struct nib_act rows = make_rows(t, n, DIM, x);
    t->s.moe.chosen = put(t, chosen, sizeof chosen);
    t->s.moe.weight = put(t, weight, sizeof weight);
    struct nib_mat      y = {take(t, TOKENS * DIM * sizeof(float)), NIB_DTYPE_F32, n, DIM, DIM};
    struct nib_moe_args a = {.n_experts = EXPERTS,
                             .top_k = TOP,
                             .w1 = &m->w1.w.head,
                             .w2 = &m->w2.w.head,
                             .w3 = &m->w3.w.head,
                             .sw1 = &m->sw1.w.head,
                             .sw2 = &m->sw2.w.head,
                             .sw3 = &m->sw3.w.head,
                             .y = y};
    enum nib_status status = t->e == cudaSuccess ? nib_blackwell_experts_run(&t->s, &a, &rows, y) : NIB_OK;
    float          *got = status == NIB_OK ? get(t, y.data, TOKENS * DIM * sizeof(float)) : NULL;
    if (status == NIB_OK && t->e == cudaSuccess)
        hold_experts(t, m, n, x, chosen, weight, got);
    struct matrix *all[] = {&m->w1, &m->w2, &m->w3, &m->sw1, &m->sw2, &m->sw3};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]->value);
        all[i]->value = NULL;
    }
    free(got);
    free(x);
    return status;
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
    q->on[t->format] = true;
}

static enum nib_status run_tests(struct test *t, struct matrix *linear, struct experts *experts)
{
    make_scratch(t);
    if (t->e != cudaSuccess)
        return NIB_OK;
    if (t->format == NIB_ACT_NVFP4)
        NIB_TRY(test_norm(t));
    for (const struct nib_blackwell_product *p = t->family->products; p->n_rows > 0; p++) {
        if (p->act != t->format)
            continue;
        NIB_TRY(test_linear(t, linear, p));
        free(linear->value);
        linear->value = NULL;
    }
    bool                 nvfp4 = t->format == NIB_ACT_NVFP4;
    enum nib_weight_type four = nvfp4 ? NIB_WEIGHT_NVFP4 : NIB_WEIGHT_MXFP4, shared = nvfp4 ? four : NIB_WEIGHT_FP8;
    NIB_TRY(test_experts(t, experts, four, shared, FEW));
    NIB_TRY(test_experts(t, experts, four, shared, TOKENS));
    if (!nvfp4)
        NIB_TRY(test_experts(t, experts, NIB_WEIGHT_FP8, NIB_WEIGHT_MXFP4, FEW));
    return t->family->selftest && !t->s.blackwell.ops_on && t->e == cudaSuccess && t->why[0] == 0
               ? t->family->selftest(&t->s, t->why, t->why_bytes)
               : NIB_OK;
}

enum nib_status nib_blackwell_selftest(struct nib_stream *s, enum nib_act_format format, char *why, size_t why_bytes)
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
        t->s.blackwell.ops_on = s->blackwell.ops_on; /* those have passed */
        t->family = s->blackwell.family;
        t->format = format;
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
