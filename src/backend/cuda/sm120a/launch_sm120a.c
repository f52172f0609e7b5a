/* The sm_120a family (blackwell/table_blackwell.h): launches of the kernels in this folder. Rows are multiplied where
 * they are; experts' rows too, through the pairs. */
#include "backend/cuda/blackwell/table_blackwell.h"
#include "backend/cuda/sm120a/selftest_sm120a.h"
#include "backend/cuda/sm120a/sm120a.h"

/* Host handles of the kernels, as nvcc's stubs define them. */
void nib_sm120a_norm(const struct nib_blackwell_norm_args a);
void nib_sm120a_linear_128(const struct nib_sm120a_linear_args a);
void nib_sm120a_linear_32(const struct nib_sm120a_linear_args a);
void nib_sm120a_decode_16(const struct nib_sm120a_linear_args a);
void nib_sm120a_decode_8(const struct nib_sm120a_linear_args a);
void nib_sm120a_groups(const struct nib_blackwell_groups_args a);
void nib_sm120a_swiglu(const struct nib_blackwell_swiglu_args a);
void nib_sm120a_swiglu_act(const struct nib_blackwell_swiglu_act_args a);
void nib_sm120a_combine(const struct nib_blackwell_combine_args a);
void nib_sm120a_pack(const struct nib_sm120a_pack_args a);
void nib_sm120a_fp8_8(const struct nib_sm120a_linear_args a);
void nib_sm120a_fp8_16(const struct nib_sm120a_linear_args a);
void nib_sm120a_fp8_64(const struct nib_sm120a_linear_args a);
void nib_sm120a_mxfp4_8(const struct nib_sm120a_linear_args a);
void nib_sm120a_mxfp4_16(const struct nib_sm120a_linear_args a);
void nib_sm120a_mxfp4_64(const struct nib_sm120a_linear_args a);
void nib_sm120a_pack_fp8(const struct nib_sm120a_pack_args a);
void nib_sm120a_pack_mxfp4(const struct nib_sm120a_pack_args a);

void nib_sm120a_index_fp4(const struct nib_blackwell_index_args a);

enum { LEAST_TILE_ROWS = 8, GRID_Y_MOST = 32768 };

/* ---- Weights ---- */

static enum nib_sm120a_format format_of(int32_t type)
{
    return type == NIB_WEIGHT_NVFP4 ? NIB_SM120A_NVFP4 : type == NIB_WEIGHT_FP8 ? NIB_SM120A_FP8 : NIB_SM120A_MXFP4;
}

static bool packs(const struct nib_weight_desc *d, size_t *codes, size_t *scales)
{
    bool nvfp4 = d->type == NIB_WEIGHT_NVFP4 && d->act == NIB_ACT_NVFP4,
         mx = (d->type == NIB_WEIGHT_FP8 || d->type == NIB_WEIGHT_MXFP4) && d->act == NIB_ACT_FP8;
    /* Rows of x are copied by 16 bytes, and those of NVFP4 end in whole pairs of scales. */
    if ((!nvfp4 && !mx) || d->n_in % 32 != 0)
        return false;
    *codes = (size_t)(nvfp4 ? nib_sm120a_code_bytes(d->n_out, d->n_in)
                            : nib_sm120a_mx_code_bytes(d->n_out, d->n_in, format_of((int32_t)d->type)));
    *scales = (size_t)(nvfp4 ? nib_sm120a_scale_bytes(d->n_out, d->n_in)
                             : nib_sm120a_mx_scale_bytes(d->n_out, d->n_in));
    return true;
}

static cudaError_t pack(cudaStream_t stream, const struct nib_cuda_matrix *m, int32_t i, const uint8_t *codes,
                        const uint8_t *scales)
{
    static const void *const    kernels[] = {[NIB_SM120A_NVFP4] = (const void *)nib_sm120a_pack,
                                             [NIB_SM120A_FP8] = (const void *)nib_sm120a_pack_fp8,
                                             [NIB_SM120A_MXFP4] = (const void *)nib_sm120a_pack_mxfp4};
    enum nib_sm120a_format      format = format_of(m->type);
    struct nib_sm120a_pack_args a = {.stored = codes,
                                     .stored_scales = scales,
                                     .codes = (uint8_t *)(uintptr_t)m->codes + i * m->codes_stride,
                                     .scales = (uint8_t *)(uintptr_t)m->scales + i * m->scales_stride,
                                     .n_out = m->n_out,
                                     .n_in = m->n_in};
    struct nib_blackwell_launch l;
    void                       *args[] = {&a};
    if (format == NIB_SM120A_NVFP4)
        nib_sm120a_pack_plan(&a, &l);
    else
        nib_sm120a_mx_pack_plan(&a, format, &l);
    return cudaLaunchKernel(kernels[format], (dim3){l.grid, 1, 1}, (dim3){l.block, 1, 1}, args, 0, stream);
}

/* ---- Scratch ---- */

static void lay_out(struct nib_cuda_blackwell *x, const struct nib_cuda_moe_scratch *m, const struct nib_dims *d,
                    uint8_t *base, size_t *used)
{
    if (d->n_experts == 0)
        return;
    int64_t pairs = (int64_t)m->n_rows * (d->top_k > 1 ? d->top_k : 1);
    int64_t groups = nib_sm120a_groups_most((int32_t)pairs, d->n_experts, LEAST_TILE_ROWS);
    x->groups = nib_blackwell_take(base, used, groups * (int64_t)sizeof(struct nib_blackwell_group));
}

/* ---- Rows and products ---- */

static int64_t rows_most(const struct nib_stream *s, int32_t cols)
{
    (void)s, (void)cols;
    return INT32_MAX;
}

static enum nib_status take_rows(struct nib_stream *s, const struct nib_act *x, struct nib_blackwell_x *out)
{
    (void)s;
    *out = (struct nib_blackwell_x){.format = x->format,
                                    .rows = x->rows,
                                    .codes = x->codes,
                                    .scales = x->scales,
                                    .row_scale = x->row_scale,
                                    .codes_stride = x->codes_stride,
                                    .scales_stride = x->scales_stride};
    return NIB_OK;
}

static enum nib_status take_pairs(struct nib_stream *s, const struct nib_act *x, int32_t top_k,
                                  struct nib_blackwell_x *out)
{
    NIB_TRY(take_rows(s, x, out));
    out->rows *= top_k;
    out->pair = s->moe.pair;
    out->top_k = top_k;
    return NIB_OK;
}

/* Products of both kinds share the groups of a mixture whose weights are of both: tiles that both have. */
static void tiles_of(const struct nib_stream *s, const struct nib_moe_args *a, int32_t n_pairs,
                     struct nib_blackwell_groups_args *g)
{
    int32_t nvfp4 = (a->w1->type == NIB_WEIGHT_NVFP4) + (a->w2->type == NIB_WEIGHT_NVFP4) +
                    (a->w3->type == NIB_WEIGHT_NVFP4),
            rows = nvfp4 == 3 ? nib_sm120a_tile_rows(n_pairs, a->n_experts)
                              : nib_sm120a_mx_tile_rows(n_pairs, a->n_experts);
    (void)s;
    g->tile_rows = g->scale_tile = nvfp4 % 3 != 0 && rows > 16 ? 16 : rows;
}

static const void *kernel_of(enum nib_sm120a_format format, int32_t rows)
{
    static const void *const kernels[][3] = {
        [NIB_SM120A_NVFP4] = {(const void *)nib_sm120a_decode_8, (const void *)nib_sm120a_decode_16,
                              (const void *)nib_sm120a_linear_128},
        [NIB_SM120A_FP8] = {(const void *)nib_sm120a_fp8_8, (const void *)nib_sm120a_fp8_16,
                            (const void *)nib_sm120a_fp8_64},
        [NIB_SM120A_MXFP4] = {(const void *)nib_sm120a_mxfp4_8, (const void *)nib_sm120a_mxfp4_16,
                              (const void *)nib_sm120a_mxfp4_64}};
    return rows == 32 ? (const void *)nib_sm120a_linear_32 : kernels[format][rows == 8 ? 0 : rows == 16 ? 1 : 2];
}

/* up: of the same shape and type, for SwiGLU of both products; or NULL. */
static enum nib_status product(struct nib_stream *s, const struct nib_blackwell_x *x, const struct nib_cuda_matrix *w,
                               const struct nib_cuda_matrix *up, float limit, const struct nib_mat *y,
                               const struct nib_blackwell_experts *e)
{
    struct nib_sm120a_linear p = {.n_rows = x->rows,
                                  .n_out = w->n_out,
                                  .n_in = w->n_in,
                                  .x_codes = x->codes,
                                  .x_scales = x->scales,
                                  .x_codes_stride = x->codes_stride,
                                  .x_scales_stride = x->scales_stride,
                                  .row_scale = x->row_scale,
                                  .w_codes = {w->codes, up ? up->codes : NULL},
                                  .w_scales = {w->scales, up ? up->scales : NULL},
                                  .n_parts = up ? 2 : 1,
                                  .alpha = {w->alpha0, up ? up->alpha0 : 0},
                                  .limit = limit,
                                  .y = y->data,
                                  .y_stride = y->stride,
                                  .y_f32 = y->dtype == NIB_DTYPE_F32,
                                  .pair = x->pair,
                                  .top_k = x->top_k};
    enum nib_sm120a_format        format = format_of(w->type);
    bool                          nvfp4 = format == NIB_SM120A_NVFP4, planned;
    struct nib_sm120a_linear_args args;
    struct nib_blackwell_launch   l;
    char                          why[160];
    if (e) {
        p.n_experts = e->n_experts;
        p.groups = e->groups;
        p.n_groups = e->n_groups;
        p.alphas[0] = w->alpha;
        p.alphas[1] = up ? up->alpha : NULL;
    }
    p.tile_rows = e       ? e->tile_rows
                  : nvfp4 ? nib_sm120a_tile_rows(x->rows, 0)
                          : nib_sm120a_mx_tile_rows(x->rows, 0);
    planned = nvfp4 ? nib_sm120a_linear_plan(&p, &args, &l, why, sizeof why)
                    : nib_sm120a_mx_plan(&p, format, &args, &l, why, sizeof why);
    if (!planned)
        return nib_error_set(&s->error, NIB_E_DEVICE, "cuda: %s", why);
    return nib_blackwell_launch(s, kernel_of(format, p.tile_rows), (dim3){l.grid, 1, 1}, l.block, l.cluster,
                                l.shared_bytes, &args, "a product of quantised rows");
}

static enum nib_status multiply(struct nib_stream *s, const struct nib_blackwell_x *x, const struct nib_cuda_matrix *w,
                                const struct nib_mat *y, const struct nib_blackwell_experts *e)
{
    return product(s, x, w, NULL, 0, y, e);
}

/* ---- The indexer ---- */

enum nib_status nib_sm120a_index_scores(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first,
                                        int32_t n, int64_t n_entries, float *score, int64_t stride)
{
    int64_t blocks = (n_entries + NIB_SM120A_INDEX_ENTRIES - 1) / NIB_SM120A_INDEX_ENTRIES,
            most = 8 * (int64_t)s->n_sms / n + 1;
    struct nib_blackwell_index_args args = {*a, *a->rows, score, stride, first};
    return nib_blackwell_launch(s, (const void *)nib_sm120a_index_fp4,
                                (dim3){(unsigned)(blocks < most ? blocks : most), (unsigned)n, 1},
                                NIB_SM120A_INDEX_THREADS, 1, 0, &args, "index scores");
}

enum nib_status nib_cuda_sm120a_index_select(struct nib_stream *s, const struct nib_index_select_args *a)
{
    int64_t n_entries = s->dims.n_ctx_max / a->ratio + 1, fit = (int64_t)s->n_score_rows * s->n_entries_max / n_entries;
    if (a->keys.format != NIB_ROW_FP4 || a->dim != 128 || a->n_heads > NIB_SM120A_INDEX_HEADS ||
        (uintptr_t)a->keys.base % 4 != 0 || a->keys.row_bytes % 4 != 0)
        return nib_cuda_index_select(s, a);
    fit = fit < 1 ? 1 : fit > GRID_Y_MOST ? GRID_Y_MOST : fit;
    for (int32_t first = 0, n; first < a->rows->n_rows; first += n) {
        n = a->rows->n_rows - first < fit ? a->rows->n_rows - first : (int32_t)fit;
        nib_cuda_index_query(s, a, first, n);
        NIB_TRY(nib_sm120a_index_scores(s, a, first, n, n_entries, s->score, n_entries));
        nib_cuda_index_choose(s, a, first, n, n_entries);
    }
    return nib_cuda_check(s, cudaGetLastError(), "index_select");
}

static const struct nib_blackwell_product products[] = {{3, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, "decode_8"},
                                                        {11, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, "decode_16"},
                                                        {33, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, "linear_32"},
                                                        {130, NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, "linear_128"},
                                                        {3, NIB_WEIGHT_FP8, NIB_ACT_FP8, "fp8_8"},
                                                        {11, NIB_WEIGHT_FP8, NIB_ACT_FP8, "fp8_16"},
                                                        {70, NIB_WEIGHT_FP8, NIB_ACT_FP8, "fp8_64"},
                                                        {3, NIB_WEIGHT_MXFP4, NIB_ACT_FP8, "mxfp4_8"},
                                                        {11, NIB_WEIGHT_MXFP4, NIB_ACT_FP8, "mxfp4_16"},
                                                        {70, NIB_WEIGHT_MXFP4, NIB_ACT_FP8, "mxfp4_64"},
                                                        {0}};

const struct nib_blackwell_family nib_blackwell_sm120a = {
    .name = "sm120a",
    .major = 12,
    .layout = NIB_CUDA_UNITS,
    .norm = (const void *)nib_sm120a_norm,
    .groups = (const void *)nib_sm120a_groups,
    .swiglu = (const void *)nib_sm120a_swiglu,
    .swiglu_act = (const void *)nib_sm120a_swiglu_act,
    .combine = (const void *)nib_sm120a_combine,
    .packs = packs,
    .pack = pack,
    .lay_out = lay_out,
    .rows_most = rows_most,
    .take_rows = take_rows,
    .take_pairs = take_pairs,
    .take_inner = take_rows, /* experts' rows are in this order */
    .tiles_of = tiles_of,
    .multiply = multiply,
    .multiply_swiglu = product,
    .products = products,
    .selftest = nib_sm120a_selftest,
    .ops_needed = true,
    .index_select = nib_cuda_sm120a_index_select,
    .attend = nib_cuda_sm120a_attend,
};
