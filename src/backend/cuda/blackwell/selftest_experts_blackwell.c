/* The self-test of a mixture of experts: each link is held to what the link before it left. */
#include "backend/cuda/blackwell/selftest_blackwell.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float swiglu(float g, float u)
{
    return (float)((double)g / (1 + exp(-(double)g))) * u;
}

/* Codes of one row of inner values, exact if x was read back, and their product with the second matrix. */
static void hold_inner(struct nib_selftest *t, const char *kernel, int32_t row, const float *x, int32_t steps,
                       const uint8_t *codes, const uint8_t *scales, float g, const struct nib_selftest_matrix *w2,
                       int32_t stack, const float *y)
{
    float value[INNER];
    nib_selftest_hold_codes(t, kernel, row, x, INNER, codes, scales, g, steps);
    nib_selftest_decode_row(t->format, codes, scales, g, INNER, value);
    nib_selftest_hold_product(t, "product of experts' inner rows", row, value, w2, stack, y);
}

/* What the kernels of routed rows left, on the host. */
struct links {
    int32_t *place, *scale_row;
    float   *gate, *up, *g, *shared_g, *z;
    uint8_t *codes, *scales, *shared_codes, *shared_scales;
    int64_t  scales_bytes;
    bool     fused, in_one;   /* by two kernels; by a product that makes SwiGLU of both */
    bool     atoms, repeated; /* scales in the tensor core's layout; four bytes for one of FP8 */
};

static void hold_routed(struct nib_selftest *t, const struct nib_selftest_experts *m, const struct links *l, int32_t p,
                        int32_t e, const float *x)
{
    int64_t stride = nib_act_codes_stride(t->format, INNER), s_stride = nib_act_scales_stride(t->format, INNER);
    int32_t row = l->place[p], n_scales = t->format == NIB_ACT_NVFP4 ? INNER / 16 : INNER / 128;
    uint8_t scales[INNER / 16];
    float   h[INNER];
    if (row < 0 || row >= PAIRS) {
        nib_selftest_differ(t, "groups", p, 0, row, PAIRS - 1);
        return;
    }
    if (l->in_one) {
        nib_selftest_hold_swiglu(t, "experts' SwiGLU", row, x, &m->w1, &m->w3, e, 0, l->gate + row * INNER);
        memcpy(h, l->gate + row * INNER, sizeof h);
    } else {
        nib_selftest_hold_product(t, "product of experts", row, x, &m->w1, e, l->gate + row * INNER);
        nib_selftest_hold_product(t, "product of experts", row, x, &m->w3, e, l->up + row * INNER);
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
            nib_selftest_differ(t, "groups", p, 1, l->scale_row[row], PAIRS - 1);
            at = 0;
        }
        scales[b] = l->scales[at];
    }
    hold_inner(t, l->fused ? "experts' rows" : "swiglu", row, h, !l->in_one, l->codes + row * stride, scales, l->g[row],
               &m->w2, e, l->z + row * DIM);
}

/* What the links of a mixture of n tokens left. */
static void hold_experts(struct nib_selftest *t, const struct nib_selftest_experts *m, int32_t n, const float *x,
                         const int32_t *chosen, const float *weight, const float *y)
{
    struct nib_cuda_blackwell   *q = &t->s.blackwell;
    struct nib_cuda_moe_scratch *r = &t->s.moe;
    int64_t      stride = nib_act_codes_stride(t->format, INNER), s_stride = nib_act_scales_stride(t->format, INNER);
    int32_t      pairs = n * TOP;
    bool         fused = t->family->experts_in && m->w1.w.head.type == m->w2.w.head.type;
    bool         atoms = t->family->scale_offset && (fused || t->format == NIB_ACT_NVFP4);
    bool         one = t->family->multiply_swiglu != NULL; /* w1 and w3 are of one type, sw1 and sw3 too */
    struct links l = {.fused = fused, .in_one = fused || one, .atoms = atoms, .repeated = atoms && t->format == NIB_ACT_FP8};
    l.scales_bytes = atoms ? q->inner_atoms_bytes : PAIRS * s_stride;
    l.place = nib_selftest_get(&t->card, r->place, PAIRS * 4);
    l.scale_row = atoms ? nib_selftest_get(&t->card, q->scale_row, PAIRS * 4) : NULL;
    l.gate = nib_selftest_get(&t->card, r->hidden, (PAIRS + TOKENS) * INNER * 4);
    l.up = nib_selftest_get(&t->card, r->parts, (PAIRS + TOKENS) * INNER * 4);
    l.g = nib_selftest_get(&t->card, q->inner_row_scale, PAIRS * 4);
    l.shared_g = nib_selftest_get(&t->card, q->shared_row_scale, TOKENS * 4);
    l.z = nib_selftest_get(&t->card, r->y, (PAIRS + TOKENS) * DIM * 4);
    l.codes = nib_selftest_get(&t->card, q->inner_codes, PAIRS * (size_t)stride);
    l.scales = nib_selftest_get(&t->card, atoms ? q->inner_atoms : q->inner_scales, (size_t)l.scales_bytes);
    l.shared_codes = nib_selftest_get(&t->card, q->shared_codes, TOKENS * (size_t)stride);
    l.shared_scales = nib_selftest_get(&t->card, q->shared_scales, TOKENS * (size_t)s_stride);
    for (int32_t p = 0; p < pairs && t->card.e == cudaSuccess; p++)
        hold_routed(t, m, &l, p, chosen[p], x + p / TOP * DIM);
    for (int32_t i = 0; i < n && t->card.e == cudaSuccess && t->card.why[0] == 0; i++) {
        const float *gate = l.gate + (pairs + i) * INNER, *up = l.up + (pairs + i) * INNER,
                    *z = l.z + (pairs + i) * DIM;
        float        h[INNER];
        if (one) {
            nib_selftest_hold_swiglu(t, "SwiGLU of the shared expert", i, x + i * DIM, &m->sw1, &m->sw3, 0, 0, gate);
            memcpy(h, gate, sizeof h);
        } else {
            nib_selftest_hold_product(t, "product of the shared expert", i, x + i * DIM, &m->sw1, 0, gate);
            nib_selftest_hold_product(t, "product of the shared expert", i, x + i * DIM, &m->sw3, 0, up);
            for (int32_t k = 0; k < INNER; k++)
                h[k] = swiglu(gate[k], up[k]);
        }
        hold_inner(t, "swiglu_act", i, h, !one, l.shared_codes + i * stride, l.shared_scales + i * s_stride, l.shared_g[i],
                   &m->sw2, 0, z);
        int32_t first = chosen[i * TOP] > chosen[i * TOP + 1];
        for (int32_t k = 0; k < DIM; k++) {
            float sum = weight[i * TOP + first] * l.z[l.place[i * TOP + first] * DIM + k];
            sum += weight[i * TOP + !first] * l.z[l.place[i * TOP + !first] * DIM + k];
            sum += z[k];
            if (isnan(sum) ? !isnan(y[i * DIM + k]) : y[i * DIM + k] != sum)
                nib_selftest_differ(t, "experts' sum", i, k, (double)y[i * DIM + k], (double)sum);
        }
    }
    void *all[] = {l.place, l.scale_row, l.gate,   l.up,           l.g,           l.shared_g,
                   l.z,     l.codes,     l.scales, l.shared_codes, l.shared_scales};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* n tokens. Expert 2 gets nobody; some tokens' choices do not ascend. */
enum nib_status nib_selftest_experts(struct nib_selftest *t, struct nib_selftest_experts *m, enum nib_weight_type type,
                                    enum nib_weight_type down, enum nib_weight_type shared, int32_t n)
{
    int32_t chosen[PAIRS];
    float   weight[PAIRS], *x = calloc(TOKENS * DIM, sizeof *x);
    for (int32_t p = 0; p < n * TOP; p++) {
        chosen[p] = p % TOP ? (p % 4 == 1 ? 3 : 0) : 1;
        weight[p] = 0.25f + 0.125f * (float)(p % 7);
    }
    nib_selftest_make_matrix(t, &m->w1, type, EXPERTS, INNER, DIM);
    nib_selftest_make_matrix(t, &m->w3, type, EXPERTS, INNER, DIM);
    nib_selftest_make_matrix(t, &m->w2, down, EXPERTS, DIM, INNER);
    nib_selftest_make_matrix(t, &m->sw1, shared, 1, INNER, DIM);
    nib_selftest_make_matrix(t, &m->sw3, shared, 1, INNER, DIM);
    nib_selftest_make_matrix(t, &m->sw2, shared, 1, DIM, INNER);
    if (!x)
        t->card.e = cudaErrorMemoryAllocation;
    if (t->card.e != cudaSuccess) {
        free(x);
        return NIB_OK;
    }
    struct nib_act rows = nib_selftest_make_rows(t, n, DIM, x);
    t->s.moe.chosen = nib_selftest_put(&t->card, chosen, sizeof chosen);
    t->s.moe.weight = nib_selftest_put(&t->card, weight, sizeof weight);
    struct nib_mat      y = {nib_selftest_take(&t->card, TOKENS * DIM * sizeof(float)), NIB_DTYPE_F32, n, DIM, DIM};
    struct nib_moe_args a = {.n_experts = EXPERTS,
                             .top_k = TOP,
                             .w1 = &m->w1.w.head,
                             .w2 = &m->w2.w.head,
                             .w3 = &m->w3.w.head,
                             .sw1 = &m->sw1.w.head,
                             .sw2 = &m->sw2.w.head,
                             .sw3 = &m->sw3.w.head,
                             .y = y};
    enum nib_status status = t->card.e == cudaSuccess ? nib_blackwell_experts_run(&t->s, &a, &rows, y) : NIB_OK;
    float          *got = status == NIB_OK ? nib_selftest_get(&t->card, y.data, TOKENS * DIM * sizeof(float)) : NULL;
    if (status == NIB_OK && t->card.e == cudaSuccess)
        hold_experts(t, m, n, x, chosen, weight, got);
    struct nib_selftest_matrix *all[] = {&m->w1, &m->w2, &m->w3, &m->sw1, &m->sw2, &m->sw3};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]->value);
        all[i]->value = NULL;
    }
    free(got);
    free(x);
    return status;
}
