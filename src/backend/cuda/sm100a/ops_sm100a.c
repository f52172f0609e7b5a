/* Where NVFP4 activations meet NVFP4 weights on Blackwell: ops to launches of the kernels in this folder. What they do
 * not take goes to the kernels of any/, weight by weight. Compiled and simulated; never run on hardware yet.
 *
 * Rows arrive as every op hands them on (struct nib_act): codes are multiplied where they are, scales are first placed
 * in the tensor core's layout. A mixture: route, sort, gather rows by expert, both first products, SwiGLU with rows
 * again, the second product, weighted sum; the shared expert is three linears. Every launch has a shape that the host
 * knows. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/sm100a/sm100a.h"

#include <string.h>

/* Host handles of the kernels, as nvcc's stubs define them. */
void nib_sm100a_norm(const struct nib_sm100a_norm_args a);
void nib_sm100a_linear_one(const struct nib_sm100a_linear_args a);
void nib_sm100a_linear_pair(const struct nib_sm100a_linear_args a);
void nib_sm100a_place(const struct nib_sm100a_place_args a);
void nib_sm100a_groups(const struct nib_sm100a_groups_args a);
void nib_sm100a_swiglu(const struct nib_sm100a_swiglu_args a);
void nib_sm100a_swiglu_act(const struct nib_sm100a_swiglu_act_args a);
void nib_sm100a_combine(const struct nib_sm100a_combine_args a);
void nib_sm100a_pack_scales(const struct nib_sm100a_pack_args a);

enum {
    ROW_THREADS = 256,
    PLACE_THREADS = 128,
    GROUPS_THREADS = 1024,
    PACK_THREADS = 256,
    SHARED_FREE = 40 * 1024 /* with static shared memory below what needs no asking */
};

/* ---- Card and weights ---- */

bool nib_cuda_sm100a_card(void)
{
    struct cudaFuncAttributes f;
    int                       major = 0;
    bool ok = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major == 10 &&
              cudaFuncGetAttributes(&f, (const void *)nib_sm100a_linear_one) == cudaSuccess;
    (void)cudaGetLastError();
    return ok;
}

bool nib_cuda_sm100a_layout(const struct nib_weight_desc *d, size_t *codes, size_t *scales)
{
    /* Rows of codes are read by boxes that begin at multiples of 16 bytes. */
    if (d->type != NIB_WEIGHT_NVFP4 || d->act != NIB_ACT_NVFP4 || d->n_in % 32 != 0)
        return false;
    *codes = (size_t)d->n_out * (size_t)d->n_in / 2;
    *scales = (size_t)nib_sm100a_scale_bytes(d->n_out, d->n_in);
    return true;
}

cudaError_t nib_cuda_sm100a_pack(cudaStream_t stream, const struct nib_cuda_matrix *m, int32_t i, const uint8_t *codes,
                                 const uint8_t *scales)
{
    struct nib_sm100a_pack_args a = {.stored = scales,
                                     .packed = (uint32_t *)(uintptr_t)(m->scales + i * m->scales_stride),
                                     .n_words = m->scales_stride / 4,
                                     .n_out = m->n_out,
                                     .n_in = m->n_in};
    void                       *args[] = {&a};
    dim3        grid = {(unsigned)((a.n_words + PACK_THREADS - 1) / PACK_THREADS), 1, 1}, block = {PACK_THREADS, 1, 1};
    cudaError_t e = cudaMemcpyAsync((uint8_t *)(uintptr_t)m->codes + i * m->codes_stride, codes,
                                    (size_t)m->codes_stride, cudaMemcpyDeviceToDevice, stream);
    return e != cudaSuccess ? e : cudaLaunchKernel((const void *)nib_sm100a_pack_scales, grid, block, args, 0, stream);
}

/* ---- Scratch ---- */

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void *take(uint8_t *base, size_t *used, int64_t bytes)
{
    void *p = base ? base + *used : NULL;
    *used += ((size_t)bytes + 255) / 256 * 256;
    return p;
}

size_t nib_cuda_sm100a_lay_out(struct nib_cuda_sm100a_scratch *x, const struct nib_cuda_moe_scratch *m,
                               const struct nib_dims *d, uint8_t *base)
{
    size_t  used = 0;
    int64_t wide = most(most((int64_t)d->n_heads * d->head_dim, d->dim), (int64_t)d->n_groups * d->o_rank);
    int64_t rows = m->n_rows, pairs = rows * most(d->top_k, 1);
    wide = most(most(wide, d->q_rank), most(d->n_inner, d->n_inner_shared));
    x->scales_bytes = nib_sm100a_scale_bytes(d->n_rows_max, wide);
    x->scales = take(base, &used, x->scales_bytes);
    if (d->n_experts == 0)
        return used;
    int64_t groups = nib_sm100a_groups_most((int32_t)pairs, d->n_experts, 1),
            scale_rows = groups * nib_sm100a_tile_rows(1);
    x->x_scales_bytes = nib_sm100a_scale_bytes(scale_rows, d->dim);
    x->inner_scales_bytes = nib_sm100a_scale_bytes(scale_rows, d->n_inner);
    x->x_scales = take(base, &used, x->x_scales_bytes);
    x->inner_scales = take(base, &used, x->inner_scales_bytes);
    x->x_codes = take(base, &used, pairs * nib_act_codes_stride(NIB_ACT_NVFP4, d->dim));
    x->inner_codes = take(base, &used, pairs * nib_act_codes_stride(NIB_ACT_NVFP4, d->n_inner));
    x->x_row_scale = take(base, &used, pairs * 4);
    x->inner_row_scale = take(base, &used, pairs * 4);
    x->scale_row = take(base, &used, pairs * 4);
    x->groups = take(base, &used, groups * (int64_t)sizeof(struct nib_sm100a_group));
    x->n_groups = take(base, &used, 4);
    x->shared_codes = take(base, &used, rows * nib_act_codes_stride(NIB_ACT_FP8, d->n_inner_shared));
    x->shared_scales = take(base, &used, rows * nib_act_scales_stride(NIB_ACT_INT8, d->n_inner_shared));
    x->shared_row_scale = take(base, &used, rows * 4);
    return used;
}

enum nib_status nib_cuda_sm100a_open(struct nib_stream *s, struct nib_error *err)
{
    struct nib_cuda_sm100a_scratch      *x = &s->sm100a;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    x->card = x->on = false;
    if (!nib_cuda_sm100a_card())
        return NIB_OK;
    /* The symbol as CUDA 12.0 defined it, whichever driver is there. */
    cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &x->encode, 12000, cudaEnableDefault, &found);
    if (e != cudaSuccess || found != cudaDriverEntryPointSuccess || !x->encode) {
        (void)cudaGetLastError();
        return nib_error_set(err, NIB_E_UNSUPPORTED,
                             "cuda: the driver has no cuTensorMapEncodeTiled, wanted CUDA 12.0 or later");
    }
    /* Scales behind a tile's last row are read before anyone writes them. */
    e = cudaMemsetAsync(x->scales, 0, (size_t)x->scales_bytes, s->handle);
    if (e == cudaSuccess && x->x_scales)
        e = cudaMemsetAsync(x->x_scales, 0, (size_t)x->x_scales_bytes, s->handle);
    if (e == cudaSuccess && x->inner_scales)
        e = cudaMemsetAsync(x->inner_scales, 0, (size_t)x->inner_scales_bytes, s->handle);
    if (e != cudaSuccess)
        return nib_error_set(err, nib_cuda_check(s, e, "clearing scales"), "%s", s->error.text);
    x->card = true;
    return NIB_OK;
}

enum nib_status nib_cuda_sm100a_ready(struct nib_stream *s, struct nib_error *err)
{
    struct nib_cuda_sm100a_scratch *x = &s->sm100a;
    if (!x->card || x->on)
        return NIB_OK;
    if (x->why_not[0] == 0) {
        enum nib_status status = nib_cuda_sm100a_selftest(s, x->why_not, sizeof x->why_not);
        if (status != NIB_OK)
            return nib_error_set(err, status, "%s; activations other than NVFP4 do not need what was tested",
                                 s->error.text);
        x->on = x->why_not[0] == 0;
    }
    if (!x->on)
        return nib_error_set(err, NIB_E_DEVICE,
                             "cuda: a kernel for NVFP4 activations fails its self-test on this card: %s; activations "
                             "other than NVFP4 do not need it",
                             x->why_not);
    return NIB_OK;
}

/* ---- Launches ---- */

/* As nib_launch() (device/launch.cuh): may begin while what is before it in the stream still runs. */
static enum nib_status launch(struct nib_stream *s, const void *kernel, dim3 grid, unsigned threads, unsigned cluster,
                              size_t bytes, void *args, const char *what)
{
    cudaLaunchAttribute attr[2];
    void               *params[] = {args};
    cudaLaunchConfig_t  config = {.gridDim = grid,
                                  .blockDim = {threads, 1, 1},
                                  .dynamicSmemBytes = bytes,
                                  .stream = s->handle,
                                  .attrs = attr,
                                  .numAttrs = cluster > 1 ? 2 : 1};
    memset(attr, 0, sizeof attr);
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    attr[1].id = cudaLaunchAttributeClusterDimension;
    attr[1].val.clusterDim.x = cluster;
    attr[1].val.clusterDim.y = attr[1].val.clusterDim.z = 1;
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

static enum nib_status multiply(struct nib_stream *s, struct nib_sm100a_linear *p)
{
    struct nib_sm100a_linear_args args;
    struct nib_sm100a_launch      l;
    char                          why[160];
    nib_sm100a_encode            *encode;
    memcpy(&encode, &s->sm100a.encode, sizeof encode);
    p->n_sms = s->n_sms;
    if (!nib_sm100a_linear_plan(p, encode, &args, &l, why, sizeof why))
        return nib_error_set(&s->error, NIB_E_DEVICE, "cuda: %s", why);
    return launch(s, l.cluster == 2 ? (const void *)nib_sm100a_linear_pair : (const void *)nib_sm100a_linear_one,
                  grid_of(l.grid, 1), l.block, l.cluster, l.shared_bytes, &args, "an NVFP4 product");
}

/* ---- Norm ---- */

enum nib_status nib_cuda_sm100a_norm(struct nib_stream *s, const struct nib_norm_args *a)
{
    const struct nib_act *y = &a->y;
    if (!s->sm100a.on || y->format != NIB_ACT_NVFP4 || y->cols % 16 != 0 || a->x.rows == 0)
        return nib_cuda_norm(s, a);
    struct nib_sm100a_norm_args n = {.x = a->x.data,
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
    return launch(s, (const void *)nib_sm100a_norm, grid_of(a->x.rows, 1), ROW_THREADS, 1,
                  (size_t)y->cols * sizeof(float), &n, "norm");
}

/* ---- Linear ---- */

static struct nib_mat rows_of(struct nib_mat m, int32_t first, int32_t n)
{
    if (m.data)
        m.data = (uint8_t *)m.data + first * m.stride * (m.dtype == NIB_DTYPE_F32 ? 4 : 2);
    m.rows = n;
    return m;
}

static struct nib_act act_rows_of(struct nib_act x, int32_t first, int32_t n)
{
    x.plain = rows_of(x.plain, first, n);
    x.rows = n;
    if (x.format != NIB_ACT_PLAIN) {
        x.codes += first * x.codes_stride;
        x.scales += first * x.scales_stride;
        x.row_scale = x.row_scale ? x.row_scale + first : NULL;
    }
    return x;
}

static bool takes(const struct nib_weight *w)
{
    return nib_cuda_matrix_of(w)->layout == NIB_CUDA_BLOCK16;
}

/* Rows of x's scales to where a product of all of them reads them. */
static enum nib_status place_scales(struct nib_stream *s, const struct nib_act *x)
{
    struct nib_sm100a_place_args p = {.codes = x->codes,
                                      .scales = x->scales,
                                      .row_scale = x->row_scale,
                                      .codes_stride = x->codes_stride,
                                      .scales_stride = x->scales_stride,
                                      .n_in = x->cols,
                                      .y = {.scales = s->sm100a.scales}};
    return launch(s, (const void *)nib_sm100a_place, grid_of(x->rows, 1), PLACE_THREADS, 1, 0, &p, "scales of rows");
}

static enum nib_status linear_rows(struct nib_stream *s, const struct nib_act *x, int32_t n_weights,
                                   const struct nib_weight *const *w, const struct nib_mat *y)
{
    NIB_TRY(place_scales(s, x));
    for (int32_t i = 0; i < n_weights; i++) {
        const struct nib_cuda_matrix *m = nib_cuda_matrix_of(w[i]);
        struct nib_sm100a_linear      p = {.n_rows = x->rows,
                                           .n_out = m->n_out,
                                           .n_in = m->n_in,
                                           .x_codes = x->codes,
                                           .w_codes = m->codes,
                                           .x_stride = x->codes_stride,
                                           .x_scales = s->sm100a.scales,
                                           .w_scales = m->scales,
                                           .row_scale = x->row_scale,
                                           .alpha = m->alpha0,
                                           .y = y[i].data,
                                           .y_stride = y[i].stride,
                                           .y_f32 = y[i].dtype == NIB_DTYPE_F32};
        NIB_TRY(multiply(s, &p));
    }
    return NIB_OK;
}

enum nib_status nib_cuda_sm100a_linear(struct nib_stream *s, const struct nib_linear_args *a)
{
    struct nib_linear_args   rest = *a;
    const struct nib_weight *w[NIB_LINEAR_MAX];
    struct nib_mat           y[NIB_LINEAR_MAX], part[NIB_LINEAR_MAX];
    int32_t                  n = 0;
    rest.n_weights = 0;
    for (int32_t i = 0; i < a->n_weights; i++) {
        struct nib_mat *to = takes(a->w[i]) ? &y[n] : &rest.y[rest.n_weights];
        *(takes(a->w[i]) ? &w[n++] : &rest.w[rest.n_weights++]) = a->w[i];
        *to = a->y[i];
    }
    if (rest.n_weights > 0)
        NIB_TRY(nib_cuda_linear(s, &rest));
    if (n == 0)
        return NIB_OK;
    int64_t bands = s->sm100a.scales_bytes / nib_sm100a_scale_bytes(128, a->x.cols);
    if (bands < 1)
        return nib_error_set(&s->error, NIB_E_ARGUMENT, "cuda: rows of %d columns, more than the dims given at open",
                             a->x.cols);
    for (int32_t first = 0, some; first < a->x.rows; first += some) {
        some = (int32_t)(a->x.rows - first < bands * 128 ? a->x.rows - first : bands * 128);
        struct nib_act x = act_rows_of(a->x, first, some);
        for (int32_t i = 0; i < n; i++)
            part[i] = rows_of(y[i], first, some);
        NIB_TRY(linear_rows(s, &x, n, w, part));
    }
    return NIB_OK;
}

/* ---- Experts ---- */

/* The routed experts of s->moe.chosen for n rows of x, up to their rows of y in s->moe.y. */
static enum nib_status routed(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_act *x)
{
    struct nib_cuda_sm100a_scratch *t = &s->sm100a;
    struct nib_cuda_moe_scratch    *m = &s->moe;
    const struct nib_cuda_matrix   *w1 = nib_cuda_matrix_of(a->w1), *w3 = nib_cuda_matrix_of(a->w3),
                                 *w2 = nib_cuda_matrix_of(a->w2);
    int32_t                       pairs = x->rows * a->top_k, inner = w1->n_out;
    struct nib_sm100a_group      *groups = (struct nib_sm100a_group *)(void *)t->groups;
    struct nib_sm100a_groups_args g = {.chosen = m->chosen,
                                       .groups = groups,
                                       .n_groups = t->n_groups,
                                       .pair = m->pair,
                                       .place = m->place,
                                       .scale_row = t->scale_row,
                                       .n_pairs = pairs,
                                       .n_experts = a->n_experts,
                                       .tile_rows = nib_sm100a_tile_rows(1)};
    NIB_TRY(launch(s, (const void *)nib_sm100a_groups, grid_of(1, 1), GROUPS_THREADS, 1, (size_t)a->n_experts * 12, &g,
                   "sorting pairs"));

    struct nib_sm100a_rows       x_rows = {.codes = t->x_codes,
                                           .scales = t->x_scales,
                                           .row_scale = t->x_row_scale,
                                           .codes_stride = nib_act_codes_stride(NIB_ACT_NVFP4, x->cols),
                                           .scale_row = t->scale_row};
    struct nib_sm100a_place_args p = {.codes = x->codes,
                                      .scales = x->scales,
                                      .row_scale = x->row_scale,
                                      .codes_stride = x->codes_stride,
                                      .scales_stride = x->scales_stride,
                                      .pair = m->pair,
                                      .y = x_rows,
                                      .top_k = a->top_k,
                                      .n_in = x->cols};
    NIB_TRY(launch(s, (const void *)nib_sm100a_place, grid_of(pairs, 1), PLACE_THREADS, 1, 0, &p, "gathering rows"));

    /* gate and up lie where the kernels of any/ keep hidden rows and their three bf16 parts. */
    float                   *gate = m->hidden, *up = (float *)(void *)m->parts;
    struct nib_sm100a_linear l = {.n_rows = pairs,
                                  .n_out = inner,
                                  .n_in = x->cols,
                                  .x_codes = x_rows.codes,
                                  .x_stride = x_rows.codes_stride,
                                  .x_scales = x_rows.scales,
                                  .row_scale = x_rows.row_scale,
                                  .y_stride = inner,
                                  .y_f32 = true,
                                  .n_experts = a->n_experts,
                                  .groups = groups,
                                  .n_groups = t->n_groups,
                                  .w_codes = w1->codes,
                                  .w_scales = w1->scales,
                                  .alpha = w1->alpha0,
                                  .alphas = w1->alpha,
                                  .y = gate};
    NIB_TRY(multiply(s, &l));
    l.w_codes = w3->codes, l.w_scales = w3->scales, l.alpha = w3->alpha0, l.alphas = w3->alpha, l.y = up;
    NIB_TRY(multiply(s, &l));

    struct nib_sm100a_swiglu_args h = {.gate = gate,
                                       .up = up,
                                       .weight = a->weight_before_w2 ? m->weight : NULL,
                                       .pair = m->pair,
                                       .stride = inner,
                                       .limit = a->limit,
                                       .n_in = inner,
                                       .f32 = 1,
                                       .y = {.codes = t->inner_codes,
                                             .scales = t->inner_scales,
                                             .row_scale = t->inner_row_scale,
                                             .codes_stride = nib_act_codes_stride(NIB_ACT_NVFP4, inner),
                                             .scale_row = t->scale_row}};
    NIB_TRY(
        launch(s, (const void *)nib_sm100a_swiglu, grid_of(pairs, 1), ROW_THREADS, 1, (size_t)inner * 4, &h, "SwiGLU"));
    l.x_codes = h.y.codes, l.x_stride = h.y.codes_stride, l.x_scales = h.y.scales, l.row_scale = h.y.row_scale;
    l.w_codes = w2->codes, l.w_scales = w2->scales, l.alpha = w2->alpha0, l.alphas = w2->alpha;
    l.n_in = inner, l.n_out = w2->n_out, l.y = m->y, l.y_stride = w2->n_out;
    return multiply(s, &l);
}

/* The shared expert's fp32 rows behind the routed ones in s->moe.y. Its weights may be of any format. */
static enum nib_status shared(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_act *x, float *y)
{
    struct nib_cuda_sm100a_scratch *t = &s->sm100a;
    int32_t                         n = x->rows, inner = a->sw1->n_out;
    int64_t                         at = (int64_t)n * a->top_k * a->w1->n_out;
    float                          *gate = s->moe.hidden + at, *up = (float *)(void *)s->moe.parts + at;
    struct nib_mat gate_rows = {gate, NIB_DTYPE_F32, n, inner, inner}, up_rows = {up, NIB_DTYPE_F32, n, inner, inner};
    struct nib_mat y_rows = {y, NIB_DTYPE_F32, n, a->y.cols, a->y.cols};
    struct nib_linear_args first = {.x = *x, .n_weights = 2, .w = {a->sw1, a->sw3}, .y = {gate_rows, up_rows}};
    enum nib_act_format    format = a->sw2->act;
    struct nib_sm100a_swiglu_act_args h = {
        .gate = gate, .up = up, .limit = a->limit, .y = {.format = format, .rows = n, .cols = inner}};
    NIB_TRY(nib_cuda_sm100a_linear(s, &first));
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
        launch(s, (const void *)nib_sm100a_swiglu_act, grid_of(n, 1), ROW_THREADS, 1, (size_t)inner * 4, &h, "SwiGLU"));
    struct nib_linear_args second = {.x = h.y, .n_weights = 1, .w = {a->sw2}, .y = {y_rows}};
    return nib_cuda_sm100a_linear(s, &second);
}

enum nib_status nib_cuda_sm100a_experts(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_act *x,
                                        struct nib_mat y)
{
    int32_t n = x->rows;
    float  *shared_y = s->moe.y + (int64_t)n * a->top_k * y.cols;
    NIB_TRY(routed(s, a, x));
    NIB_TRY(shared(s, a, x, shared_y));
    struct nib_sm100a_combine_args c = {.expert_y = s->moe.y,
                                        .shared = shared_y,
                                        .chosen = s->moe.chosen,
                                        .place = s->moe.place,
                                        .weight = a->weight_before_w2 ? NULL : s->moe.weight,
                                        .y = y.data,
                                        .expert_stride = y.cols,
                                        .shared_stride = y.cols,
                                        .y_stride = y.stride,
                                        .top_k = a->top_k,
                                        .dim = y.cols,
                                        .y_f32 = y.dtype == NIB_DTYPE_F32};
    return launch(s, (const void *)nib_sm100a_combine, grid_of((y.cols + ROW_THREADS - 1) / ROW_THREADS, n),
                  ROW_THREADS, 1, (size_t)a->top_k * 8, &c, "the experts' sum");
}

enum nib_status nib_cuda_sm100a_moe(struct nib_stream *s, const struct nib_moe_args *a)
{
    if (!takes(a->w1) || !takes(a->w2) || !takes(a->w3))
        return nib_cuda_moe(s, a);
    int32_t chunk = nib_cuda_rows_fit(s, a->x.cols, a->x.rows);
    chunk = chunk < s->moe.n_rows ? chunk : s->moe.n_rows;
    for (int32_t first = 0, n; first < a->x.rows; first += n) {
        n = a->x.rows - first < chunk ? a->x.rows - first : chunk;
        struct nib_act x = act_rows_of(a->x, first, n);
        NIB_TRY(nib_cuda_moe_route(s, a, first, n));
        NIB_TRY(nib_cuda_sm100a_experts(s, a, &x, rows_of(a->y, first, n)));
    }
    return NIB_OK;
}
