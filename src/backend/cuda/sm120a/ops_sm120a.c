/* Where NVFP4 activations meet NVFP4 weights on RTX cards and GB10: ops to launches of the kernels in this folder. What
 * they do not take goes on, weight by weight. Compiled and simulated; never run on hardware yet.
 *
 * Rows arrive as every op hands them on (struct nib_act) and are multiplied where they are; experts' rows too, through
 * the pairs. A mixture: route, sort, both first products, SwiGLU with rows again, the second product, weighted sum; the
 * shared expert is three linears. Every launch has a shape that the host knows. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/sm120a/sm120a.h"

#include <string.h>

/* Host handles of the kernels, as nvcc's stubs define them. */
void nib_sm120a_norm(const struct nib_sm120a_norm_args a);
void nib_sm120a_linear_128(const struct nib_sm120a_linear_args a);
void nib_sm120a_linear_32(const struct nib_sm120a_linear_args a);
void nib_sm120a_decode_16(const struct nib_sm120a_linear_args a);
void nib_sm120a_decode_8(const struct nib_sm120a_linear_args a);
void nib_sm120a_groups(const struct nib_sm120a_groups_args a);
void nib_sm120a_swiglu(const struct nib_sm120a_swiglu_args a);
void nib_sm120a_swiglu_act(const struct nib_sm120a_swiglu_act_args a);
void nib_sm120a_combine(const struct nib_sm120a_combine_args a);
void nib_sm120a_pack(const struct nib_sm120a_pack_args a);

enum {
    ROW_THREADS = 256,
    GROUPS_THREADS = 1024,
    LEAST_TILE_ROWS = 8,
    SHARED_FREE = 40 * 1024 /* with static shared memory below what needs no asking */
};

/* ---- Card and weights ---- */

bool nib_cuda_sm120a_card(void)
{
    struct cudaFuncAttributes f;
    int                       major = 0;
    bool ok = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major == 12 &&
              cudaFuncGetAttributes(&f, (const void *)nib_sm120a_linear_128) == cudaSuccess;
    (void)cudaGetLastError();
    return ok;
}

bool nib_cuda_sm120a_layout(const struct nib_weight_desc *d, size_t *codes, size_t *scales)
{
    /* Rows of x are copied by 16 bytes, and end in whole pairs of scales. */
    if (d->type != NIB_WEIGHT_NVFP4 || d->act != NIB_ACT_NVFP4 || d->n_in % 32 != 0)
        return false;
    *codes = (size_t)nib_sm120a_code_bytes(d->n_out, d->n_in, 1);
    *scales = (size_t)nib_sm120a_scale_bytes(d->n_out, d->n_in, 1);
    return true;
}

cudaError_t nib_cuda_sm120a_pack(cudaStream_t stream, const struct nib_cuda_matrix *m, int32_t i, const uint8_t *codes,
                                 const uint8_t *scales)
{
    struct nib_sm120a_pack_args a = {.stored = {codes, NULL},
                                     .stored_scales = {scales, NULL},
                                     .codes = (uint8_t *)(uintptr_t)m->codes + i * m->codes_stride,
                                     .scales = (uint8_t *)(uintptr_t)m->scales + i * m->scales_stride,
                                     .n_out = m->n_out,
                                     .n_in = m->n_in,
                                     .n_parts = 1};
    struct nib_sm120a_launch    l;
    void                       *args[] = {&a};
    nib_sm120a_pack_plan(&a, &l);
    return cudaLaunchKernel((const void *)nib_sm120a_pack, (dim3){l.grid, 1, 1}, (dim3){l.block, 1, 1}, args, 0,
                            stream);
}

/* ---- Scratch ---- */

static void *take(uint8_t *base, size_t *used, int64_t bytes)
{
    void *p = base ? base + *used : NULL;
    *used += ((size_t)bytes + 255) / 256 * 256;
    return p;
}

size_t nib_cuda_sm120a_lay_out(struct nib_cuda_sm120a_scratch *x, const struct nib_cuda_moe_scratch *m,
                               const struct nib_dims *d, uint8_t *base)
{
    size_t used = 0;
    if (d->n_experts == 0)
        return used;
    int64_t rows = m->n_rows, pairs = rows * (d->top_k > 1 ? d->top_k : 1);
    int64_t groups = nib_sm120a_groups_most((int32_t)pairs, d->n_experts, LEAST_TILE_ROWS);
    x->inner_codes = take(base, &used, pairs * nib_act_codes_stride(NIB_ACT_NVFP4, d->n_inner));
    x->inner_scales = take(base, &used, pairs * nib_act_scales_stride(NIB_ACT_NVFP4, d->n_inner));
    x->inner_row_scale = take(base, &used, pairs * 4);
    x->groups = take(base, &used, groups * (int64_t)sizeof(struct nib_sm120a_group));
    x->n_groups = take(base, &used, 4);
    x->shared_codes = take(base, &used, rows * nib_act_codes_stride(NIB_ACT_FP8, d->n_inner_shared));
    x->shared_scales = take(base, &used, rows * nib_act_scales_stride(NIB_ACT_INT8, d->n_inner_shared));
    x->shared_row_scale = take(base, &used, rows * 4);
    return used;
}

/* ---- Launches ---- */

/* As nib_launch() (device/launch.cuh): may begin while what is before it in the stream still runs. */
static enum nib_status launch(struct nib_stream *s, const void *kernel, dim3 grid, unsigned threads, size_t bytes,
                              void *args, const char *what)
{
    cudaLaunchAttribute attr;
    void               *params[] = {args};
    cudaLaunchConfig_t  config = {.gridDim = grid,
                                  .blockDim = {threads, 1, 1},
                                  .dynamicSmemBytes = bytes,
                                  .stream = s->handle,
                                  .attrs = &attr,
                                  .numAttrs = 1};
    memset(&attr, 0, sizeof attr);
    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = 1;
    if (bytes > SHARED_FREE)
        NIB_TRY(nib_cuda_check(s, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                               what));
    nib_cuda_flush(s); /* what waits to be launched comes first */
    return nib_cuda_check(s, cudaLaunchKernelExC(&config, kernel, params), what);
}

static dim3 grid_of(int64_t x, int64_t y)
{
    return (dim3){(unsigned)x, (unsigned)y, 1};
}

static const void *kernel_of(int32_t tile_rows)
{
    return tile_rows == 8    ? (const void *)nib_sm120a_decode_8
           : tile_rows == 16 ? (const void *)nib_sm120a_decode_16
           : tile_rows == 32 ? (const void *)nib_sm120a_linear_32
                             : (const void *)nib_sm120a_linear_128;
}

static enum nib_status multiply(struct nib_stream *s, struct nib_sm120a_linear *p)
{
    struct nib_sm120a_linear_args args;
    struct nib_sm120a_launch      l;
    char                          why[160];
    p->n_parts = 1;
    if (!p->tile_rows)
        p->tile_rows = nib_sm120a_tile_rows(p->n_rows, 0);
    if (!nib_sm120a_linear_plan(p, &args, &l, why, sizeof why))
        return nib_error_set(&s->error, NIB_E_DEVICE, "cuda: %s", why);
    return launch(s, kernel_of(p->tile_rows), grid_of(l.grid, 1), l.block, l.shared_bytes, &args, "an NVFP4 product");
}

/* ---- Norm ---- */

enum nib_status nib_cuda_sm120a_norm(struct nib_stream *s, const struct nib_norm_args *a)
{
    const struct nib_act *y = &a->y;
    bool                  on = s->sm120a.n_groups; /* scratch is laid out on these cards only */
    if (!on || y->format != NIB_ACT_NVFP4 || y->cols % 16 != 0 || a->x.rows == 0)
        return nib_cuda_sm100a_norm(s, a);
    struct nib_sm120a_norm_args n = {.x = a->x.data,
                                     .weight = a->weight,
                                     .plain = y->plain.data,
                                     .x_stride = a->x.stride,
                                     .plain_stride = y->plain.stride,
                                     .eps = a->eps,
                                     .n_in = y->cols,
                                     .x_f32 = a->x.dtype == NIB_DTYPE_F32,
                                     .plain_f32 = y->plain.dtype == NIB_DTYPE_F32,
                                     .y = {.codes = y->codes,
                                           .scales = y->scales,
                                           .row_scale = y->row_scale,
                                           .codes_stride = y->codes_stride,
                                           .scales_stride = y->scales_stride}};
    return launch(s, (const void *)nib_sm120a_norm, grid_of(a->x.rows, 1), ROW_THREADS, (size_t)y->cols * sizeof(float),
                  &n, "norm");
}

/* ---- Linear ---- */

static bool takes(const struct nib_weight *w)
{
    return nib_cuda_matrix_of(w)->layout == NIB_CUDA_UNITS;
}

/* Sizes and rows of x w^T; y and the rest are the caller's. */
static struct nib_sm120a_linear product(const struct nib_act *x, const struct nib_cuda_matrix *m)
{
    return (struct nib_sm120a_linear){.n_rows = x->rows,
                                      .n_out = m->n_out,
                                      .n_in = m->n_in,
                                      .x_codes = x->codes,
                                      .x_scales = x->scales,
                                      .x_codes_stride = x->codes_stride,
                                      .x_scales_stride = x->scales_stride,
                                      .row_scale = x->row_scale,
                                      .w_codes = m->codes,
                                      .w_scales = m->scales,
                                      .alpha = {m->alpha0, 0},
                                      .alphas = m->alpha};
}

enum nib_status nib_cuda_sm120a_linear(struct nib_stream *s, const struct nib_linear_args *a)
{
    struct nib_linear_args rest = *a;
    rest.n_weights = 0;
    for (int32_t i = 0; i < a->n_weights; i++) {
        if (!takes(a->w[i])) {
            rest.w[rest.n_weights] = a->w[i];
            rest.y[rest.n_weights++] = a->y[i];
            continue;
        }
        if (a->x.rows == 0)
            continue;
        struct nib_sm120a_linear p = product(&a->x, nib_cuda_matrix_of(a->w[i]));
        p.y = a->y[i].data;
        p.y_stride = a->y[i].stride;
        p.y_f32 = a->y[i].dtype == NIB_DTYPE_F32;
        NIB_TRY(multiply(s, &p));
    }
    return rest.n_weights > 0 ? nib_cuda_sm100a_linear(s, &rest) : NIB_OK;
}

/* ---- Experts ---- */

/* The routed experts of s->moe.chosen for the rows of x, up to their rows of y in s->moe.y. */
static enum nib_status routed(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_act *x)
{
    struct nib_cuda_sm120a_scratch *t = &s->sm120a;
    struct nib_cuda_moe_scratch    *m = &s->moe;
    const struct nib_cuda_matrix   *w1 = nib_cuda_matrix_of(a->w1), *w3 = nib_cuda_matrix_of(a->w3);
    const struct nib_cuda_matrix   *w2 = nib_cuda_matrix_of(a->w2);
    int32_t                         pairs = x->rows * a->top_k, inner = w1->n_out;
    struct nib_sm120a_groups_args   g = {.chosen = m->chosen,
                                         .groups = (struct nib_sm120a_group *)(void *)t->groups,
                                         .n_groups = t->n_groups,
                                         .pair = m->pair,
                                         .place = m->place,
                                         .n_pairs = pairs,
                                         .n_experts = a->n_experts,
                                         .tile_rows = nib_sm120a_tile_rows(pairs, a->n_experts)};
    NIB_TRY(launch(s, (const void *)nib_sm120a_groups, grid_of(1, 1), GROUPS_THREADS, (size_t)a->n_experts * 12, &g,
                   "sorting pairs"));

    /* gate and up lie where the kernels of any/ keep hidden rows and their three bf16 parts. */
    struct nib_act           rows = {.rows = pairs, .cols = inner, .codes = t->inner_codes, .scales = t->inner_scales};
    float                   *gate = m->hidden, *up = (float *)(void *)m->parts;
    struct nib_sm120a_linear l = product(x, w1);
    rows.row_scale = t->inner_row_scale;
    rows.codes_stride = nib_act_codes_stride(NIB_ACT_NVFP4, inner);
    rows.scales_stride = nib_act_scales_stride(NIB_ACT_NVFP4, inner);
    l.n_rows = pairs, l.pair = m->pair, l.top_k = a->top_k;
    l.n_experts = a->n_experts, l.groups = g.groups, l.n_groups = g.n_groups, l.tile_rows = g.tile_rows;
    l.y = gate, l.y_stride = inner, l.y_f32 = true;
    NIB_TRY(multiply(s, &l));
    l.w_codes = w3->codes, l.w_scales = w3->scales, l.alpha[0] = w3->alpha0, l.alphas = w3->alpha, l.y = up;
    NIB_TRY(multiply(s, &l));

    struct nib_sm120a_swiglu_args h = {.gate = gate,
                                       .up = up,
                                       .weight = a->weight_before_w2 ? m->weight : NULL,
                                       .pair = m->pair,
                                       .stride = inner,
                                       .limit = a->limit,
                                       .n_in = inner,
                                       .f32 = 1,
                                       .y = {.codes = rows.codes,
                                             .scales = rows.scales,
                                             .row_scale = rows.row_scale,
                                             .codes_stride = rows.codes_stride,
                                             .scales_stride = rows.scales_stride}};
    NIB_TRY(
        launch(s, (const void *)nib_sm120a_swiglu, grid_of(pairs, 1), ROW_THREADS, (size_t)inner * 4, &h, "SwiGLU"));
    l = product(&rows, w2);
    l.n_experts = a->n_experts, l.groups = g.groups, l.n_groups = g.n_groups, l.tile_rows = g.tile_rows;
    l.y = m->y, l.y_stride = w2->n_out, l.y_f32 = true;
    return multiply(s, &l);
}

/* The shared expert's fp32 rows behind the routed ones in s->moe.y. Its weights may be of any format. */
static enum nib_status shared(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_act *x, float *y)
{
    struct nib_cuda_sm120a_scratch *t = &s->sm120a;
    int32_t                         n = x->rows, inner = a->sw1->n_out;
    int64_t                         at = (int64_t)n * a->top_k * a->w1->n_out;
    float                          *gate = s->moe.hidden + at, *up = (float *)(void *)s->moe.parts + at;
    struct nib_mat gate_rows = {gate, NIB_DTYPE_F32, n, inner, inner}, up_rows = {up, NIB_DTYPE_F32, n, inner, inner};
    struct nib_mat y_rows = {y, NIB_DTYPE_F32, n, a->y.cols, a->y.cols};
    struct nib_linear_args first = {.x = *x, .n_weights = 2, .w = {a->sw1, a->sw3}, .y = {gate_rows, up_rows}};
    enum nib_act_format    format = a->sw2->act;
    struct nib_sm120a_swiglu_act_args h = {
        .gate = gate, .up = up, .limit = a->limit, .y = {.format = format, .rows = n, .cols = inner}};
    NIB_TRY(nib_cuda_sm120a_linear(s, &first));
    if (format == NIB_ACT_PLAIN) {
        h.y.plain = gate_rows;
    } else {
        h.y.codes = t->shared_codes;
        h.y.scales = t->shared_scales;
        h.y.row_scale = t->shared_row_scale;
        h.y.codes_stride = nib_act_codes_stride(format, inner);
        h.y.scales_stride = nib_act_scales_stride(format, inner);
    }
    NIB_TRY(
        launch(s, (const void *)nib_sm120a_swiglu_act, grid_of(n, 1), ROW_THREADS, (size_t)inner * 4, &h, "SwiGLU"));
    struct nib_linear_args second = {.x = h.y, .n_weights = 1, .w = {a->sw2}, .y = {y_rows}};
    return nib_cuda_sm120a_linear(s, &second);
}

static enum nib_status experts(struct nib_stream *s, const struct nib_moe_args *a, int32_t first, int32_t n)
{
    struct nib_act x = a->x;
    struct nib_mat y = a->y;
    float         *shared_y = s->moe.y + (int64_t)n * a->top_k * y.cols;
    x.rows = n;
    x.codes += first * x.codes_stride;
    x.scales += first * x.scales_stride;
    x.row_scale += first;
    if (x.plain.data)
        x.plain.data = (uint8_t *)x.plain.data + first * x.plain.stride * (x.plain.dtype == NIB_DTYPE_F32 ? 4 : 2);
    x.plain.rows = n;
    NIB_TRY(nib_cuda_moe_route(s, a, first, n));
    NIB_TRY(routed(s, a, &x));
    NIB_TRY(shared(s, a, &x, shared_y));
    struct nib_sm120a_combine_args c = {.expert_y = s->moe.y,
                                        .shared = shared_y,
                                        .chosen = s->moe.chosen,
                                        .place = s->moe.place,
                                        .weight = a->weight_before_w2 ? NULL : s->moe.weight,
                                        .y = (uint8_t *)y.data + first * y.stride * (y.dtype == NIB_DTYPE_F32 ? 4 : 2),
                                        .expert_stride = y.cols,
                                        .shared_stride = y.cols,
                                        .y_stride = y.stride,
                                        .top_k = a->top_k,
                                        .dim = y.cols,
                                        .y_f32 = y.dtype == NIB_DTYPE_F32};
    return launch(s, (const void *)nib_sm120a_combine, grid_of((y.cols + ROW_THREADS - 1) / ROW_THREADS, n),
                  ROW_THREADS, (size_t)a->top_k * 8, &c, "the experts' sum");
}

enum nib_status nib_cuda_sm120a_moe(struct nib_stream *s, const struct nib_moe_args *a)
{
    if (!takes(a->w1) || !takes(a->w2) || !takes(a->w3))
        return nib_cuda_sm100a_moe(s, a);
    int32_t chunk = nib_cuda_rows_fit(s, a->x.cols, a->x.rows);
    chunk = chunk < s->moe.n_rows ? chunk : s->moe.n_rows;
    for (int32_t first = 0, n; first < a->x.rows; first += n) {
        n = a->x.rows - first < chunk ? a->x.rows - first : chunk;
        NIB_TRY(experts(s, a, first, n));
    }
    return NIB_OK;
}
