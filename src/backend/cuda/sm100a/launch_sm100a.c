/* The sm_100a family (blackwell/table_blackwell.h): launches of the kernels in this folder. Rows' codes are multiplied
 * where they are, their scales first placed in the tensor core's layout; experts' rows are gathered. */
#include "backend/cuda/sm100a/ops_sm100a.h"
#include "backend/cuda/sm100a/sm100a.h"

#include <string.h>

/* Host handles of the kernels, as nvcc's stubs define them. */
void nib_sm100a_norm(const struct nib_blackwell_norm_args a);
void nib_sm100a_linear_one(const struct nib_sm100a_linear_args a);
void nib_sm100a_linear_pair(const struct nib_sm100a_linear_args a);
void nib_sm100a_fp8_one(const struct nib_sm100a_linear_args a);
void nib_sm100a_fp8_pair(const struct nib_sm100a_linear_args a);
void nib_sm100a_mxfp4_one(const struct nib_sm100a_linear_args a);
void nib_sm100a_mxfp4_pair(const struct nib_sm100a_linear_args a);
void nib_sm100a_place(const struct nib_sm100a_place_args a);
void nib_sm100a_groups(const struct nib_blackwell_groups_args a);
void nib_sm100a_swiglu(const struct nib_blackwell_swiglu_args a);
void nib_sm100a_swiglu_act(const struct nib_blackwell_swiglu_act_args a);
void nib_sm100a_combine(const struct nib_blackwell_combine_args a);
void nib_sm100a_pack_scales(const struct nib_sm100a_pack_args a);

void nib_sm100a_experts_in_96(const struct nib_sm100a_experts_args a);
void nib_sm100a_experts_in_16(const struct nib_sm100a_experts_args a);
void nib_sm100a_experts_out_96(const struct nib_sm100a_experts_args a);
void nib_sm100a_experts_out_16(const struct nib_sm100a_experts_args a);
void nib_sm100a_mx_in_96(const struct nib_sm100a_experts_args a);
void nib_sm100a_mx_in_16(const struct nib_sm100a_experts_args a);
void nib_sm100a_mx_out_96(const struct nib_sm100a_experts_args a);
void nib_sm100a_mx_out_16(const struct nib_sm100a_experts_args a);

enum {
    PLACE_THREADS = 128,
    PACK_THREADS = 256,
    SCALE_ROWS = 128,  /* that a group takes */
    MANY_COLUMNS = 96, /* of a group's rows in one product of experts_sm100a.cu */
    FEW_COLUMNS = 16,
    N_DONE = 2         /* counters of tiles, before the rows' largest values */
};

/* ---- Weights ---- */

/* The product that such weights take part in; false: none. */
static bool format_of(enum nib_weight_type type, enum nib_act_format act, enum nib_sm100a_format *format)
{
    *format = type == NIB_WEIGHT_NVFP4  ? NIB_SM100A_NVFP4
              : type == NIB_WEIGHT_FP8 ? NIB_SM100A_FP8
                                        : NIB_SM100A_MXFP4;
    return type == NIB_WEIGHT_NVFP4 ? act == NIB_ACT_NVFP4
                                    : act == NIB_ACT_FP8 && (type == NIB_WEIGHT_FP8 || type == NIB_WEIGHT_MXFP4);
}

/* Whether FP8 weights are bf16 numbers once they are opened. Without values nothing speaks against it. */
static bool opens(const struct nib_weight_desc *d)
{
    size_t         n = (size_t)((d->n_out + 127) / 128) * (size_t)((d->n_in + 127) / 128);
    const uint8_t *scales = d->part ? d->part[0].scales : NULL;
    for (size_t i = 0; i < n && scales; i++)
        if (scales[i] < NIB_SM100A_PLAIN_FP8_LEAST || scales[i] > NIB_SM100A_PLAIN_FP8_MOST)
            return false;
    return true;
}

static bool packs(const struct nib_weight_desc *d, size_t *codes, size_t *scales)
{
    enum nib_sm100a_format format;
    if (d->type == NIB_WEIGHT_FP8 && d->act == NIB_ACT_PLAIN) {
        *codes = (size_t)d->n_out * (size_t)d->n_in;
        *scales = (size_t)nib_sm100a_mx_scale_bytes(d->n_out, d->n_in);
        return d->use != NIB_USE_ANY && d->n_stack == 1 && d->n_in % 16 == 0 && opens(d);
    }
    if (d->type == NIB_WEIGHT_BF16 && d->act == NIB_ACT_PLAIN) { /* plain_sm100a.cu reads units of 8 values */
        *codes = (size_t)d->n_out * (size_t)d->n_in * 2;
        *scales = 0;
        return d->use != NIB_USE_ANY && d->n_stack == 1 && d->n_in % 8 == 0;
    }
    /* Rows of codes are read by boxes that begin at multiples of 16 bytes; those that the copy spreads, of 64. */
    if (!format_of(d->type, d->act, &format) || d->n_in % (format == NIB_SM100A_MXFP4 ? 128 : 32) != 0)
        return false;
    *codes = (size_t)d->n_out * (size_t)d->n_in / (format == NIB_SM100A_FP8 ? 1 : 2);
    *scales = (size_t)(format == NIB_SM100A_NVFP4 ? nib_sm100a_scale_bytes(d->n_out, d->n_in)
                                                  : nib_sm100a_mx_scale_bytes(d->n_out, d->n_in));
    return true;
}

static cudaError_t pack(cudaStream_t stream, const struct nib_cuda_matrix *m, int32_t i, const uint8_t *codes,
                        const uint8_t *scales)
{
    struct nib_sm100a_pack_args a = {.stored = scales,
                                     .packed = (uint32_t *)(uintptr_t)(m->scales + i * m->scales_stride),
                                     .n_words = m->scales_stride / 4,
                                     .n_out = m->n_out,
                                     .n_in = m->n_in};
    enum nib_sm100a_format       format;
    void                        *args[] = {&a};
    dim3        grid = {(unsigned)((a.n_words + PACK_THREADS - 1) / PACK_THREADS), 1, 1}, block = {PACK_THREADS, 1, 1};
    (void)format_of((enum nib_weight_type)m->type, m->type == NIB_WEIGHT_NVFP4 ? NIB_ACT_NVFP4 : NIB_ACT_FP8, &format);
    a.format = (int32_t)format;
    cudaError_t e = cudaMemcpyAsync((uint8_t *)(uintptr_t)m->codes + i * m->codes_stride, codes,
                                    (size_t)m->codes_stride, cudaMemcpyDeviceToDevice, stream);
    if (m->type == NIB_WEIGHT_BF16)
        return e;
    return e != cudaSuccess ? e : cudaLaunchKernel((const void *)nib_sm100a_pack_scales, grid, block, args, 0, stream);
}

/* ---- Scratch ---- */

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void lay_out(struct nib_cuda_blackwell *x, const struct nib_cuda_moe_scratch *m, const struct nib_dims *d,
                    uint8_t *base, size_t *used)
{
    int64_t wide = most(most((int64_t)d->n_heads * d->head_dim, d->dim), (int64_t)d->n_groups * d->o_rank);
    int64_t pairs = m->n_rows * most(d->top_k, 1);
    wide = most(most(wide, d->q_rank), most(d->n_inner, d->n_inner_shared));
    x->scales_bytes = nib_sm100a_scale_bytes(d->n_rows_max, wide);
    x->scales = nib_blackwell_take(base, used, x->scales_bytes);
    if (d->n_experts == 0)
        return;
    /* As many as tiles of any size can make: the smallest are for few rows an expert. */
    int64_t few = (int64_t)FEW_COLUMNS * d->n_experts;
    int64_t groups = most(nib_sm100a_groups_most((int32_t)pairs, d->n_experts, MANY_COLUMNS),
                          nib_sm100a_groups_most((int32_t)(pairs < few ? pairs : few), d->n_experts, FEW_COLUMNS)),
            scale_rows = groups * SCALE_ROWS;
    x->x_scales_bytes = nib_sm100a_scale_bytes(scale_rows, d->dim);
    x->inner_atoms_bytes = nib_sm100a_scale_bytes(scale_rows, d->n_inner);
    x->x_scales = nib_blackwell_take(base, used, x->x_scales_bytes);
    x->inner_atoms = nib_blackwell_take(base, used, x->inner_atoms_bytes);
    x->x_codes = nib_blackwell_take(base, used, pairs * nib_act_codes_stride(NIB_ACT_FP8, d->dim));
    x->x_row_scale = nib_blackwell_take(base, used, pairs * 4);
    x->scale_row = nib_blackwell_take(base, used, pairs * 4);
    x->groups = nib_blackwell_take(base, used, groups * (int64_t)sizeof(struct nib_blackwell_group));
    x->progress = nib_blackwell_take(base, used, (N_DONE + pairs) * 4);
}

static enum nib_status open(struct nib_stream *s, struct nib_error *err)
{
    struct nib_cuda_blackwell           *x = &s->blackwell;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
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
    if (e == cudaSuccess && x->inner_atoms)
        e = cudaMemsetAsync(x->inner_atoms, 0, (size_t)x->inner_atoms_bytes, s->handle);
    if (e != cudaSuccess)
        return nib_error_set(err, nib_cuda_check(s, e, "clearing scales"), "%s", s->error.text);
    return NIB_OK;
}

/* ---- Rows and products ---- */

static int64_t rows_most(const struct nib_stream *s, int32_t cols)
{
    return s->blackwell.scales_bytes / nib_sm100a_scale_bytes(128, cols) * 128; /* FP8 rows' take no more */
}

/* n rows of x to `to`; pair, scale_row: as their kernel has them. */
static enum nib_status place(struct nib_stream *s, const struct nib_act *x, int32_t n, struct nib_blackwell_rows to,
                             const int32_t *pair, int32_t top_k, struct nib_blackwell_x *out)
{
    struct nib_sm100a_place_args p = {.codes = x->codes,
                                      .scales = x->scales,
                                      .row_scale = x->row_scale,
                                      .codes_stride = x->codes_stride,
                                      .scales_stride = x->scales_stride,
                                      .pair = pair,
                                      .y = to,
                                      .top_k = top_k,
                                      .n_in = x->cols,
                                      .fp8 = x->format == NIB_ACT_FP8};
    *out = (struct nib_blackwell_x){.format = x->format,
                                    .rows = n,
                                    .codes = to.codes ? to.codes : x->codes,
                                    .scales = to.scales,
                                    .row_scale = p.fp8 ? NULL : to.codes ? to.row_scale : x->row_scale,
                                    .codes_stride = to.codes ? to.codes_stride : x->codes_stride};
    return nib_blackwell_launch(s, (const void *)nib_sm100a_place, (dim3){(unsigned)n, 1, 1}, PLACE_THREADS, 1, 0, &p,
                                "rows of a product");
}

static enum nib_status take_rows(struct nib_stream *s, const struct nib_act *x, struct nib_blackwell_x *out)
{
    return place(s, x, x->rows, (struct nib_blackwell_rows){.scales = s->blackwell.scales}, NULL, 0, out);
}

static enum nib_status take_pairs(struct nib_stream *s, const struct nib_act *x, int32_t top_k,
                                  struct nib_blackwell_x *out)
{
    struct nib_cuda_blackwell *t = &s->blackwell;
    struct nib_blackwell_rows  to = {.codes = t->x_codes,
                                     .scales = t->x_scales,
                                     .row_scale = t->x_row_scale,
                                     .codes_stride = nib_act_codes_stride(x->format, x->cols),
                                     .scale_row = t->scale_row};
    return place(s, x, x->rows * top_k, to, s->moe.pair, top_k, out);
}

static enum nib_status take_inner(struct nib_stream *s, const struct nib_act *x, struct nib_blackwell_x *out)
{
    struct nib_blackwell_rows to = {.scales = s->blackwell.inner_atoms, .scale_row = s->blackwell.scale_row};
    return place(s, x, x->rows, to, NULL, 0, out);
}

static void tiles_of(const struct nib_stream *s, const struct nib_moe_args *a, int32_t n_pairs,
                     struct nib_blackwell_groups_args *g)
{
    bool same = a->w2->type == a->w1->type && a->w3->type == a->w1->type && a->w2->act == a->w1->act;
    /* experts_sm100a.cu sums up to 32 experts, and stores rows in words of 32 values. */
    bool fused = same && a->top_k <= 32 && a->w1->n_out % 32 == 0 && a->w2->n_out % 32 == 0;
    g->tile_rows = !fused                                   ? nib_sm100a_tile_rows(1)
                   : n_pairs <= FEW_COLUMNS * a->n_experts ? FEW_COLUMNS
                                                            : MANY_COLUMNS;
    g->scale_tile = SCALE_ROWS;
    g->zero = fused ? s->blackwell.progress : NULL;
    g->n_zero = fused ? N_DONE + n_pairs : 0;
}

static enum nib_status multiply(struct nib_stream *s, const struct nib_blackwell_x *x, const struct nib_cuda_matrix *w,
                                const struct nib_mat *y, const struct nib_blackwell_experts *e)
{
    static const void *const kernel[3][2] = {
        {(const void *)nib_sm100a_linear_one, (const void *)nib_sm100a_linear_pair},
        {(const void *)nib_sm100a_fp8_one, (const void *)nib_sm100a_fp8_pair},
        {(const void *)nib_sm100a_mxfp4_one, (const void *)nib_sm100a_mxfp4_pair}};
    struct nib_sm100a_linear p = {.n_rows = x->rows,
                                  .n_out = w->n_out,
                                  .n_in = w->n_in,
                                  .x_codes = x->codes,
                                  .w_codes = w->codes,
                                  .x_stride = x->codes_stride,
                                  .x_scales = x->scales,
                                  .w_scales = w->scales,
                                  .row_scale = x->row_scale,
                                  .alpha = w->alpha0,
                                  .y = y->data,
                                  .y_stride = y->stride,
                                  .y_f32 = y->dtype == NIB_DTYPE_F32,
                                  .n_sms = s->n_sms};
    struct nib_sm100a_linear_args args;
    struct nib_blackwell_launch   l;
    nib_sm100a_encode            *encode;
    char                          why[160];
    (void)format_of((enum nib_weight_type)w->type, x->format, &p.format);
    if (e) {
        p.n_experts = e->n_experts;
        p.groups = e->groups;
        p.n_groups = e->n_groups;
        p.alphas = w->alpha;
    }
    memcpy(&encode, &s->blackwell.encode, sizeof encode);
    if (!nib_sm100a_linear_plan(&p, encode, &args, &l, why, sizeof why))
        return nib_error_set(&s->error, NIB_E_DEVICE, "cuda: %s", why);
    return nib_blackwell_launch(s, kernel[p.format][l.cluster - 1], (dim3){l.grid, 1, 1}, l.block, l.cluster,
                                l.shared_bytes, &args, "a product");
}

/* ---- Experts ---- */

static enum nib_status experts(struct nib_stream *s, const struct nib_sm100a_experts *p, const char *what)
{
    static const void *const kernel[2][2][2] = {
        {{(const void *)nib_sm100a_experts_out_16, (const void *)nib_sm100a_experts_out_96},
         {(const void *)nib_sm100a_experts_in_16, (const void *)nib_sm100a_experts_in_96}},
        {{(const void *)nib_sm100a_mx_out_16, (const void *)nib_sm100a_mx_out_96},
         {(const void *)nib_sm100a_mx_in_16, (const void *)nib_sm100a_mx_in_96}}};
    struct nib_sm100a_experts_args args;
    struct nib_blackwell_launch    l;
    nib_sm100a_encode             *encode;
    char                           why[160];
    memcpy(&encode, &s->blackwell.encode, sizeof encode);
    if (!nib_sm100a_experts_plan(p, encode, &args, &l, why, sizeof why))
        return nib_error_set(&s->error, NIB_E_DEVICE, "cuda: %s", why);
    return nib_blackwell_launch(s, kernel[p->format != NIB_SM100A_NVFP4][p->n_parts - 1][p->columns == MANY_COLUMNS], (dim3){l.grid, 1, 1},
                                l.block, 1, l.shared_bytes, &args, what);
}

static struct nib_sm100a_experts problem(const struct nib_stream *s, const struct nib_blackwell_x *x, int32_t n_parts,
                                         const struct nib_weight *const w[], const struct nib_blackwell_experts *e)
{
    struct nib_sm100a_experts p = {.n_parts = n_parts,
                                   .columns = e->tile_rows,
                                   .n_pairs = x->rows,
                                   .n_experts = e->n_experts,
                                   .n_out = w[0]->n_out,
                                   .n_in = w[0]->n_in,
                                   .x_codes = x->codes,
                                   .x_scales = x->scales,
                                   .x_stride = x->codes_stride,
                                   .n_sms = s->n_sms,
                                   .rest = {.row_scale = x->row_scale, .groups = e->groups, .n_groups = e->n_groups}};
    (void)format_of(w[0]->type, x->format, &p.format);
    for (int32_t i = 0; i < n_parts; i++) {
        const struct nib_cuda_matrix *m = nib_cuda_matrix_of(w[i]);
        p.w_codes[i] = m->codes;
        p.w_scales[i] = m->scales;
        p.rest.alphas[i] = m->alpha;
        p.rest.alpha[i] = m->alpha0;
    }
    return p;
}

static enum nib_status experts_in(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_blackwell_x *x,
                                  const struct nib_blackwell_experts *e, struct nib_blackwell_x *inner)
{
    struct nib_cuda_blackwell      *t = &s->blackwell;
    const struct nib_weight *const  w[] = {a->w1, a->w3};
    struct nib_sm100a_experts       p = problem(s, x, 2, w, e);
    struct nib_sm100a_experts_args *r = &p.rest;
    r->y = s->moe.hidden;
    r->n_done = t->progress;
    r->weight = a->weight_before_w2 ? s->moe.weight : NULL;
    r->pair = s->moe.pair;
    r->limit = a->limit;
    r->most = (uint32_t *)t->progress + N_DONE;
    r->rows = (struct nib_blackwell_rows){.codes = t->inner_codes,
                                          .scales = t->inner_atoms,
                                          .row_scale = t->inner_row_scale,
                                          .codes_stride = nib_act_codes_stride(x->format, a->w1->n_out),
                                          .scale_row = t->scale_row};
    *inner = (struct nib_blackwell_x){.format = x->format,
                                      .rows = x->rows,
                                      .codes = t->inner_codes,
                                      .scales = t->inner_atoms,
                                      .row_scale = x->format == NIB_ACT_NVFP4 ? t->inner_row_scale : NULL,
                                      .codes_stride = r->rows.codes_stride};
    return experts(s, &p, "experts' first products");
}

static enum nib_status experts_out(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_blackwell_x *x,
                                   const struct nib_blackwell_experts *e, const struct nib_blackwell_combine_args *c,
                                   int32_t n_rows)
{
    const struct nib_weight *const w[] = {a->w2};
    struct nib_sm100a_experts      p = problem(s, x, 1, w, e);
    p.n_rows = n_rows;
    p.rest.y = s->moe.y;
    p.rest.n_done = s->blackwell.progress + 1;
    p.rest.sum = *c;
    return experts(s, &p, "experts' second products");
}

static const struct nib_blackwell_product products[] = {
    {3, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, "linear_one"},
    {130, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, "linear_pair"},
    {3, NIB_WEIGHT_FP8, NIB_ACT_FP8, "fp8_one"},
    {130, NIB_WEIGHT_FP8, NIB_ACT_FP8, "fp8_pair"},
    {3, NIB_WEIGHT_MXFP4, NIB_ACT_FP8, "mxfp4_one"},
    {130, NIB_WEIGHT_MXFP4, NIB_ACT_FP8, "mxfp4_pair"},
    {0}};

const struct nib_blackwell_family nib_blackwell_sm100a = {
    .name = "sm100a",
    .major = 10,
    .layout = NIB_CUDA_ATOMS,
    .norm = (const void *)nib_sm100a_norm,
    .groups = (const void *)nib_sm100a_groups,
    .swiglu = (const void *)nib_sm100a_swiglu,
    .swiglu_act = (const void *)nib_sm100a_swiglu_act,
    .combine = (const void *)nib_sm100a_combine,
    .packs = packs,
    .pack = pack,
    .lay_out = lay_out,
    .open = open,
    .rows_most = rows_most,
    .take_rows = take_rows,
    .take_pairs = take_pairs,
    .take_inner = take_inner,
    .tiles_of = tiles_of,
    .multiply = multiply,
    .plain = nib_sm100a_plain_multiply,
    .experts_in = experts_in,
    .experts_out = experts_out,
    .products = products,
    .scale_offset = nib_sm100a_scale_offset,
    .selftest = nib_sm100a_selftest,
    .index_select = nib_sm100a_index_select,
    .attend = nib_sm100a_attend,
};
