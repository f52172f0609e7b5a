/* Where quantised activations meet quantised weights on Blackwell's tensor cores: ops to launches of a family's kernels
 * (table_blackwell.h). What they do not take goes to the kernels of any/, weight by weight. Compiled and simulated;
 * never run on hardware yet.
 *
 * Rows arrive as every op hands them on (struct nib_act). A mixture: route, sort, both first products, SwiGLU with rows
 * again, the second product, weighted sum; the shared expert is three linears. Every launch has a shape that the host
 * knows. */
#include "backend/cuda/blackwell/known_blackwell.h"

#include <string.h>

enum {
    ROW_THREADS = 256,
    GROUPS_THREADS = 1024,
    SHARED_FREE = 40 * 1024 /* with static shared memory below what needs no asking */
};

/* ---- Card and weights ---- */

void *nib_blackwell_take(uint8_t *base, size_t *used, int64_t bytes)
{
    void *p = base ? base + *used : NULL;
    *used += ((size_t)bytes + 255) / 256 * 256;
    return p;
}

size_t nib_cuda_blackwell_lay_out(struct nib_cuda_blackwell *x, const struct nib_cuda_moe_scratch *m,
                                  const struct nib_dims *d, uint8_t *base)
{
    const struct nib_blackwell_family *f = nib_blackwell_find();
    size_t                             used = 0;
    x->family = f;
    if (!f)
        return 0;
    f->lay_out(x, m, d, base, &used);
    if (d->n_experts == 0)
        return used;
    int64_t rows = m->n_rows, pairs = rows * (d->top_k > 1 ? d->top_k : 1);
    x->inner_codes = nib_blackwell_take(base, &used, pairs * nib_act_codes_stride(NIB_ACT_FP8, d->n_inner));
    x->inner_scales = nib_blackwell_take(base, &used, pairs * nib_act_scales_stride(NIB_ACT_NVFP4, d->n_inner));
    x->inner_row_scale = nib_blackwell_take(base, &used, pairs * 4);
    x->n_groups = nib_blackwell_take(base, &used, 4);
    x->shared_codes = nib_blackwell_take(base, &used, rows * nib_act_codes_stride(NIB_ACT_FP8, d->n_inner_shared));
    x->shared_scales = nib_blackwell_take(base, &used, rows * nib_act_scales_stride(NIB_ACT_INT8, d->n_inner_shared));
    x->shared_row_scale = nib_blackwell_take(base, &used, rows * 4);
    return used;
}

enum nib_status nib_cuda_blackwell_open(struct nib_stream *s, struct nib_error *err)
{
    const struct nib_blackwell_family *f = s->blackwell.family;
    return f && f->open ? f->open(s, err) : NIB_OK;
}

bool nib_cuda_blackwell_packs(const struct nib_weight_desc *d, enum nib_cuda_layout *layout, size_t *codes,
                              size_t *scales)
{
    const struct nib_blackwell_family *f = nib_blackwell_find();
    if (!f || !f->packs(d, codes, scales))
        return false;
    *layout = f->layout;
    return true;
}

cudaError_t nib_cuda_blackwell_pack(const struct nib_stream *s, const struct nib_cuda_matrix *m, int32_t i,
                                    const uint8_t *codes, const uint8_t *scales)
{
    return s->blackwell.family->pack(s->handle, m, i, codes, scales);
}

enum nib_status nib_cuda_blackwell_ready(struct nib_stream *s, enum nib_act_format format, bool *ready, struct nib_error *err)
{
    struct nib_cuda_blackwell *x = &s->blackwell;
    const char                *name = format == NIB_ACT_NVFP4 ? "NVFP4" : "FP8";
    char                      *why_not = x->why_not[format];
    if (format == NIB_ACT_PLAIN) { /* weights of whole ops */
        *ready = x->ops_on;
        return NIB_OK;
    }
    if (!x->on[format] && why_not[0] == 0) {
        if (!nib_blackwell_known(s, name, why_not, sizeof x->why_not[format])) {
            enum nib_status status = nib_blackwell_selftest(s, format, why_not, sizeof x->why_not[format]);
            if (status != NIB_OK)
                return nib_error_set(err, status, "%s; activations other than %s do not need what was tested",
                                     s->error.text, name);
            nib_blackwell_keep(s, name, why_not);
        }
        x->on[format] = why_not[0] == 0;
        x->ops_on = x->ops_on || x->on[format]; /* it ends with whole ops */
        if (!x->on[format])
            nib_cuda_device_failed("a kernel for %s activations fails its self-test on this card: %s; the generic kernels run "
                                   "in place of all for them, which takes longer",
                                   name, why_not);
    }
    *ready = x->on[format];
    return NIB_OK;
}

enum nib_status nib_cuda_blackwell_ops_ready(struct nib_stream *s, enum nib_act_format format, struct nib_error *err)
{
    struct nib_cuda_blackwell *x = &s->blackwell;
    char                      *why_not = x->why_not[NIB_ACT_PLAIN]; /* of whole ops alone */
    /* FP8 rows come with --numerics release, whose queries are bf16: what all families take. */
    if (!x->family || x->ops_on || (format != NIB_ACT_FP8 && !x->family->ops_needed))
        return NIB_OK;
    if (why_not[0] == 0) {
        if (!nib_blackwell_known(s, "ops", why_not, sizeof x->why_not[NIB_ACT_PLAIN])) {
            enum nib_status status = x->family->selftest(s, why_not, sizeof x->why_not[NIB_ACT_PLAIN]);
            if (status != NIB_OK)
                return nib_error_set(err, status, "%s", s->error.text);
            nib_blackwell_keep(s, "ops", why_not);
        }
        x->ops_on = why_not[0] == 0;
        if (!x->ops_on && !x->family->ops_needed)
            nib_cuda_device_failed("a kernel fails its self-test on this card: %s; the generic kernels run in place of those of "
                                   "attention and the index",
                                   why_not);
    }
    if (!x->ops_on && x->family->ops_needed)
        return nib_error_set(err, NIB_E_DEVICE, "cuda: a kernel fails its self-test on this card: %s", why_not);
    return NIB_OK;
}

/* ---- Launches ---- */

enum nib_status nib_blackwell_launch(struct nib_stream *s, const void *kernel, dim3 grid, unsigned threads,
                                     unsigned cluster, size_t shared_bytes, void *args, const char *what)
{
    cudaLaunchAttribute attr[2];
    void               *params[] = {args};
    cudaLaunchConfig_t  config = {.gridDim = grid,
                                  .blockDim = {threads, 1, 1},
                                  .dynamicSmemBytes = shared_bytes,
                                  .stream = s->handle,
                                  .attrs = attr,
                                  .numAttrs = cluster > 1 ? 2 : 1};
    memset(attr, 0, sizeof attr);
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    attr[1].id = cudaLaunchAttributeClusterDimension;
    attr[1].val.clusterDim.x = cluster;
    attr[1].val.clusterDim.y = attr[1].val.clusterDim.z = 1;
    if (shared_bytes > SHARED_FREE)
        NIB_TRY(nib_cuda_check(
            s, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes), what));
    nib_cuda_flush(s); /* what waits to be launched comes first */
    return nib_cuda_check(s, cudaLaunchKernelExC(&config, kernel, params), what);
}

static enum nib_status launch(struct nib_stream *s, const void *kernel, int64_t x, int64_t y, unsigned threads,
                              size_t shared_bytes, void *args, const char *what)
{
    return nib_blackwell_launch(s, kernel, (dim3){(unsigned)x, (unsigned)y, 1}, threads, 1, shared_bytes, args, what);
}

/* ---- Norm ---- */

static struct nib_blackwell_rows rows_to(const struct nib_act *y)
{
    return (struct nib_blackwell_rows){.codes = y->codes,
                                       .scales = y->scales,
                                       .row_scale = y->row_scale,
                                       .codes_stride = y->codes_stride,
                                       .scales_stride = y->scales_stride};
}

enum nib_status nib_cuda_blackwell_norm(struct nib_stream *s, const struct nib_norm_args *a)
{
    const struct nib_act *y = &a->y;
    if (!s->blackwell.on[NIB_ACT_NVFP4] || y->format != NIB_ACT_NVFP4 || y->cols % 16 != 0 || a->x.rows == 0)
        return nib_cuda_norm(s, a);
    struct nib_blackwell_norm_args n = {.x = a->x.data,
                                        .weight = a->weight,
                                        .plain = y->plain.data,
                                        .x_stride = a->x.stride,
                                        .plain_stride = y->plain.stride,
                                        .eps = a->eps,
                                        .n_in = y->cols,
                                        .x_f32 = a->x.dtype == NIB_DTYPE_F32,
                                        .plain_f32 = y->plain.dtype == NIB_DTYPE_F32,
                                        .y = rows_to(y)};
    return launch(s, s->blackwell.family->norm, a->x.rows, 1, ROW_THREADS, (size_t)y->cols * sizeof(float), &n, "norm");
}

/* ---- Linear ---- */

static struct nib_mat mat_rows(struct nib_mat m, int32_t first, int32_t n)
{
    if (m.data)
        m.data = (uint8_t *)m.data + first * m.stride * (m.dtype == NIB_DTYPE_F32 ? 4 : 2);
    m.rows = n;
    return m;
}

static struct nib_act act_rows(struct nib_act x, int32_t first, int32_t n)
{
    x.plain = mat_rows(x.plain, first, n);
    x.rows = n;
    if (x.format != NIB_ACT_PLAIN) {
        x.codes += first * x.codes_stride;
        x.scales += first * x.scales_stride;
        x.row_scale = x.row_scale ? x.row_scale + first : NULL;
    }
    return x;
}

static bool takes(const struct nib_stream *s, const struct nib_weight *w)
{
    return s->blackwell.family && nib_cuda_matrix_of(w)->layout == (int32_t)s->blackwell.family->layout;
}

/* The weights that the family has packed, for all rows of a. */
static enum nib_status linear_packed(struct nib_stream *s, const struct nib_linear_args *a)
{
    const struct nib_blackwell_family *f = s->blackwell.family;
    int64_t                            most = f->rows_most(s, a->x.cols);
    if (most < 1)
        return nib_error_set(&s->error, NIB_E_ARGUMENT, "cuda: rows of %d columns, more than the dims given at open",
                             a->x.cols);
    for (int32_t first = 0, n; first < a->x.rows; first += n) {
        n = (int32_t)(a->x.rows - first < most ? a->x.rows - first : most);
        struct nib_act         rows = act_rows(a->x, first, n);
        struct nib_blackwell_x x;
        NIB_TRY(f->take_rows(s, &rows, &x));
        for (int32_t i = 0; i < a->n_weights; i++) {
            struct nib_mat y = mat_rows(a->y[i], first, n);
            NIB_TRY(f->multiply(s, &x, nib_cuda_matrix_of(a->w[i]), &y, NULL));
        }
    }
    return NIB_OK;
}

enum nib_status nib_cuda_blackwell_linear(struct nib_stream *s, const struct nib_linear_args *a)
{
    struct nib_linear_args packed = *a, rest = *a;
    packed.n_weights = rest.n_weights = 0;
    for (int32_t i = 0; i < a->n_weights; i++) {
        struct nib_linear_args *to = takes(s, a->w[i]) ? &packed : &rest;
        to->w[to->n_weights] = a->w[i];
        to->y[to->n_weights++] = a->y[i];
    }
    if (rest.n_weights > 0)
        NIB_TRY(nib_cuda_linear(s, &rest));
    return packed.n_weights > 0 ? linear_packed(s, &packed) : NIB_OK;
}

/* ---- Experts ---- */

/* SwiGLU of the pairs' gate and up, as NVFP4 rows where the second product reads them. */
static enum nib_status inner_nvfp4(struct nib_stream *s, const struct nib_moe_args *a, const float *gate,
                                   const float *up, int32_t pairs, struct nib_blackwell_x *out)
{
    const struct nib_blackwell_family *f = s->blackwell.family;
    struct nib_cuda_blackwell         *t = &s->blackwell;
    int32_t                            inner = a->w2->n_in;
    struct nib_blackwell_swiglu_args   h = {
        .gate = gate,
        .up = up,
        .weight = a->weight_before_w2 ? s->moe.weight : NULL,
        .pair = s->moe.pair,
        .stride = inner,
        .limit = a->limit,
        .n_in = inner,
        .f32 = 1,
        .y = {.codes = t->inner_codes,
              .scales = f->scale_offset ? t->inner_atoms : t->inner_scales,
              .row_scale = t->inner_row_scale,
              .codes_stride = nib_act_codes_stride(NIB_ACT_NVFP4, inner),
              .scales_stride = f->scale_offset ? 0 : nib_act_scales_stride(NIB_ACT_NVFP4, inner),
              .scale_row = t->scale_row}};
    *out = (struct nib_blackwell_x){.format = NIB_ACT_NVFP4,
                                    .rows = pairs,
                                    .codes = h.y.codes,
                                    .scales = h.y.scales,
                                    .row_scale = h.y.row_scale,
                                    .codes_stride = h.y.codes_stride,
                                    .scales_stride = h.y.scales_stride};
    return launch(s, f->swiglu, pairs, 1, ROW_THREADS, (size_t)inner * 4, &h, "SwiGLU");
}

/* The same as rows of another format. */
static enum nib_status inner_act(struct nib_stream *s, const struct nib_moe_args *a, const float *gate,
                                 const float *up, int32_t pairs, struct nib_blackwell_x *out)
{
    const struct nib_blackwell_family *f = s->blackwell.family;
    struct nib_cuda_blackwell         *t = &s->blackwell;
    enum nib_act_format                format = a->w2->act;
    int32_t                            inner = a->w2->n_in;
    struct nib_blackwell_swiglu_act_args h = {.gate = gate,
                                              .up = up,
                                              .weight = a->weight_before_w2 ? s->moe.weight : NULL,
                                              .pair = s->moe.pair,
                                              .limit = a->limit,
                                              .y = {.format = format,
                                                    .rows = pairs,
                                                    .cols = inner,
                                                    .codes = t->inner_codes,
                                                    .scales = t->inner_scales,
                                                    .row_scale = t->inner_row_scale,
                                                    .codes_stride = nib_act_codes_stride(format, inner),
                                                    .scales_stride = nib_act_scales_stride(format, inner)}};
    NIB_TRY(launch(s, f->swiglu_act, pairs, 1, ROW_THREADS, (size_t)inner * 4, &h, "SwiGLU"));
    return f->take_inner(s, &h.y, out);
}

/* Whether one product makes SwiGLU of both. */
static bool in_one(const struct nib_stream *s, const struct nib_weight *w1, const struct nib_weight *w3)
{
    return takes(s, w1) && takes(s, w3) && s->blackwell.family->multiply_swiglu && w1->type == w3->type &&
           w1->act == w3->act && w1->n_out == w3->n_out;
}

/* Both first products and SwiGLU of the rows of x: the inner rows. */
static enum nib_status first_products(struct nib_stream *s, const struct nib_moe_args *a,
                                      const struct nib_blackwell_x *x, const struct nib_blackwell_experts *e,
                                      struct nib_blackwell_x *out)
{
    const struct nib_blackwell_family *f = s->blackwell.family;
    int32_t                            inner = a->w1->n_out;
    /* gate and up lie where the kernels of any/ keep hidden rows and their three bf16 parts. */
    struct nib_mat gate = {s->moe.hidden, NIB_DTYPE_F32, x->rows, inner, inner}, up = gate;
    up.data = NULL;
    if (in_one(s, a->w1, a->w3)) {
        NIB_TRY(f->multiply_swiglu(s, x, nib_cuda_matrix_of(a->w1), nib_cuda_matrix_of(a->w3), a->limit, &gate, e));
    } else {
        up.data = s->moe.parts;
        NIB_TRY(f->multiply(s, x, nib_cuda_matrix_of(a->w1), &gate, e));
        NIB_TRY(f->multiply(s, x, nib_cuda_matrix_of(a->w3), &up, e));
    }
    return a->w2->act == NIB_ACT_NVFP4 ? inner_nvfp4(s, a, gate.data, up.data, x->rows, out)
                                       : inner_act(s, a, gate.data, up.data, x->rows, out);
}

/* The shared expert's fp32 rows behind the routed ones in s->moe.y. Its weights may be of any format. */
static enum nib_status shared(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_act *x, float *y)
{
    struct nib_cuda_blackwell *t = &s->blackwell;
    int32_t                    n = x->rows, inner = a->sw1->n_out;
    int64_t                    at = (int64_t)n * a->top_k * a->w1->n_out;
    float                     *gate = s->moe.hidden + at, *up = (float *)(void *)s->moe.parts + at;
    struct nib_mat gate_rows = {gate, NIB_DTYPE_F32, n, inner, inner}, up_rows = {up, NIB_DTYPE_F32, n, inner, inner};
    struct nib_mat y_rows = {y, NIB_DTYPE_F32, n, a->y.cols, a->y.cols};
    struct nib_linear_args first = {.x = *x, .n_weights = 2, .w = {a->sw1, a->sw3}, .y = {gate_rows, up_rows}};
    enum nib_act_format    format = a->sw2->act;
    struct nib_blackwell_swiglu_act_args h = {
        .gate = gate, .up = up, .limit = a->limit, .y = {.format = format, .rows = n, .cols = inner}};
    if (in_one(s, a->sw1, a->sw3)) {
        struct nib_blackwell_x rows;
        NIB_TRY(t->family->take_rows(s, x, &rows));
        NIB_TRY(t->family->multiply_swiglu(s, &rows, nib_cuda_matrix_of(a->sw1), nib_cuda_matrix_of(a->sw3), a->limit,
                                           &gate_rows, NULL));
        h.up = NULL;
    } else {
        NIB_TRY(nib_cuda_blackwell_linear(s, &first));
    }
    if (format == NIB_ACT_PLAIN) {
        h.y.plain = gate_rows;
    } else {
        h.y.codes = t->shared_codes;
        h.y.scales = t->shared_scales;
        h.y.row_scale = t->shared_row_scale;
        h.y.codes_stride = nib_act_codes_stride(format, inner);
        h.y.scales_stride = nib_act_scales_stride(format, inner);
    }
    NIB_TRY(launch(s, t->family->swiglu_act, n, 1, ROW_THREADS, (size_t)inner * 4, &h, "SwiGLU"));
    struct nib_linear_args second = {.x = h.y, .n_weights = 1, .w = {a->sw2}, .y = {y_rows}};
    return nib_cuda_blackwell_linear(s, &second);
}

enum nib_status nib_blackwell_experts_run(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_act *x,
                                          struct nib_mat y)
{
    const struct nib_blackwell_family *f = s->blackwell.family;
    struct nib_cuda_blackwell         *t = &s->blackwell;
    struct nib_cuda_moe_scratch       *m = &s->moe;
    int32_t                            n = x->rows, pairs = n * a->top_k;
    float                             *shared_y = m->y + (int64_t)pairs * y.cols;
    struct nib_blackwell_groups_args   g = {.chosen = m->chosen,
                                            .groups = (struct nib_blackwell_group *)(void *)t->groups,
                                            .n_groups = t->n_groups,
                                            .pair = m->pair,
                                            .place = m->place,
                                            .scale_row = t->scale_row,
                                            .n_pairs = pairs,
                                            .n_experts = a->n_experts};
    struct nib_blackwell_combine_args  c = {.expert_y = m->y,
                                            .shared = shared_y,
                                            .chosen = m->chosen,
                                            .place = m->place,
                                            .weight = a->weight_before_w2 ? NULL : m->weight,
                                            .y = y.data,
                                            .expert_stride = y.cols,
                                            .shared_stride = y.cols,
                                            .y_stride = y.stride,
                                            .top_k = a->top_k,
                                            .dim = y.cols,
                                            .y_f32 = y.dtype == NIB_DTYPE_F32};
    struct nib_mat         expert_y = {m->y, NIB_DTYPE_F32, pairs, y.cols, y.cols};
    struct nib_blackwell_x rows, inner;
    f->tiles_of(s, a, pairs, &g);
    struct nib_blackwell_experts e = {g.groups, g.n_groups, a->n_experts, g.tile_rows};
    bool                         fused = g.n_zero > 0;
    NIB_TRY(launch(s, f->groups, 1, 1, GROUPS_THREADS, (size_t)a->n_experts * 12, &g, "sorting pairs"));
    NIB_TRY(f->take_pairs(s, x, a->top_k, &rows));
    NIB_TRY(fused ? f->experts_in(s, a, &rows, &e, &inner) : first_products(s, a, &rows, &e, &inner));
    NIB_TRY(shared(s, a, x, shared_y));
    if (fused)
        return f->experts_out(s, a, &inner, &e, &c, n);
    NIB_TRY(f->multiply(s, &inner, nib_cuda_matrix_of(a->w2), &expert_y, &e));
    return launch(s, f->combine, (y.cols + ROW_THREADS - 1) / ROW_THREADS, n, ROW_THREADS, (size_t)a->top_k * 8, &c,
                  "the experts' sum");
}

enum nib_status nib_cuda_blackwell_moe(struct nib_stream *s, const struct nib_moe_args *a)
{
    if (!takes(s, a->w1) || !takes(s, a->w2) || !takes(s, a->w3))
        return nib_cuda_moe(s, a);
    int32_t chunk = nib_cuda_rows_fit(s, a->x.cols, a->x.rows);
    chunk = chunk < s->moe.n_rows ? chunk : s->moe.n_rows;
    for (int32_t first = 0, n; first < a->x.rows; first += n) {
        n = a->x.rows - first < chunk ? a->x.rows - first : chunk;
        struct nib_act x = act_rows(a->x, first, n);
        NIB_TRY(nib_cuda_moe_route(s, a, first, n));
        NIB_TRY(nib_blackwell_experts_run(s, a, &x, mat_rows(a->y, first, n)));
    }
    return NIB_OK;
}

/* ---- Plain rows ---- */

enum nib_status nib_cuda_blackwell_plain(struct nib_stream *s, const struct nib_mat *x, int32_t n_groups,
                                         const struct nib_weight *w, const struct nib_mat *y, bool *taken)
{
    *taken = takes(s, w) && s->blackwell.family->plain && w->act == NIB_ACT_PLAIN;
    return *taken ? s->blackwell.family->plain(s, x, n_groups, nib_cuda_matrix_of(w), y, taken) : NIB_OK;
}

/* Rows as the next product takes them, from s->out. */
static enum nib_status o_a_rows(struct nib_stream *s, const struct nib_act *y)
{
    if (!s->blackwell.on[NIB_ACT_NVFP4] || y->format != NIB_ACT_NVFP4 || y->cols % 16 != 0)
        return nib_cuda_store_act(s, y, s->out);
    struct nib_blackwell_norm_args n = {.x = s->out,
                                        .plain = y->plain.data,
                                        .x_stride = y->cols,
                                        .plain_stride = y->plain.stride,
                                        .n_in = y->cols,
                                        .x_f32 = 1,
                                        .plain_f32 = y->plain.dtype == NIB_DTYPE_F32,
                                        .y = rows_to(y)};
    return launch(s, s->blackwell.family->norm, y->rows, 1, ROW_THREADS, (size_t)y->cols * sizeof(float), &n,
                  "activation rows");
}

enum nib_status nib_cuda_blackwell_o_a(struct nib_stream *s, const struct nib_o_a_args *a)
{
    bool           direct = a->y.format == NIB_ACT_PLAIN, taken;
    struct nib_mat sums = {s->out, NIB_DTYPE_F32, a->x.rows, a->w->n_out, a->w->n_out};
    if (a->x.rows == 0)
        return NIB_OK;
    NIB_TRY(nib_cuda_blackwell_plain(s, &a->x, a->n_groups, a->w, direct ? &a->y.plain : &sums, &taken));
    if (!taken)
        return nib_cuda_o_a(s, a);
    return direct ? NIB_OK : o_a_rows(s, &a->y);
}

/* ---- Whole ops of a family ---- */

enum nib_status nib_cuda_blackwell_q_rope(struct nib_stream *s, const struct nib_q_rope_args *a)
{
    const struct nib_blackwell_family *f = s->blackwell.family;
    return f && f->q_rope ? f->q_rope(s, a) : nib_cuda_q_rope(s, a);
}

enum nib_status nib_cuda_blackwell_kv_insert(struct nib_stream *s, const struct nib_kv_insert_args *a)
{
    const struct nib_blackwell_family *f = s->blackwell.family;
    return f && f->kv_insert ? f->kv_insert(s, a) : nib_cuda_kv_insert(s, a);
}

enum nib_status nib_cuda_blackwell_index_select(struct nib_stream *s, const struct nib_index_select_args *a)
{
    const struct nib_blackwell_family *f = s->blackwell.family;
    return f && f->index_select ? f->index_select(s, a) : nib_cuda_index_select(s, a);
}

enum nib_status nib_cuda_blackwell_attend(struct nib_stream *s, const struct nib_attend_args *a)
{
    const struct nib_blackwell_family *f = s->blackwell.family;
    return f && f->attend ? f->attend(s, a) : nib_cuda_attend(s, a);
}
