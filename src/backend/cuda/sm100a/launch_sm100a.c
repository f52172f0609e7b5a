/* The sm_100a family (blackwell/table_blackwell.h): launches of the kernels in this folder. Rows' codes are multiplied
 * where they are, their scales first placed in the tensor core's layout; experts' rows are gathered. */
#include "backend/cuda/sm100a/ops_sm100a.h"
#include "backend/cuda/sm100a/sm100a.h"

#include <string.h>

/* Host handles of the kernels, as nvcc's stubs define them. */
void nib_sm100a_norm(const struct nib_blackwell_norm_args a);
void nib_sm100a_linear_one(const struct nib_sm100a_linear_args a);
void nib_sm100a_linear_pair(const struct nib_sm100a_linear_args a);
void nib_sm100a_place(const struct nib_sm100a_place_args a);
void nib_sm100a_groups(const struct nib_blackwell_groups_args a);
void nib_sm100a_swiglu(const struct nib_blackwell_swiglu_args a);
void nib_sm100a_swiglu_act(const struct nib_blackwell_swiglu_act_args a);
void nib_sm100a_combine(const struct nib_blackwell_combine_args a);
void nib_sm100a_pack_scales(const struct nib_sm100a_pack_args a);

enum { PLACE_THREADS = 128, PACK_THREADS = 256 };

/* ---- Weights ---- */

static bool packs(const struct nib_weight_desc *d, size_t *codes, size_t *scales)
{
    /* Rows of codes are read by boxes that begin at multiples of 16 bytes. */
    if (d->type != NIB_WEIGHT_NVFP4 || d->act != NIB_ACT_NVFP4 || d->n_in % 32 != 0)
        return false;
    *codes = (size_t)d->n_out * (size_t)d->n_in / 2;
    *scales = (size_t)nib_sm100a_scale_bytes(d->n_out, d->n_in);
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
    int64_t groups = nib_sm100a_groups_most((int32_t)pairs, d->n_experts, 1),
            scale_rows = groups * nib_sm100a_tile_rows(1);
    x->x_scales_bytes = nib_sm100a_scale_bytes(scale_rows, d->dim);
    x->inner_scales_bytes = nib_sm100a_scale_bytes(scale_rows, d->n_inner);
    x->x_scales = nib_blackwell_take(base, used, x->x_scales_bytes);
    x->inner_scales = nib_blackwell_take(base, used, x->inner_scales_bytes);
    x->x_codes = nib_blackwell_take(base, used, pairs * nib_act_codes_stride(NIB_ACT_NVFP4, d->dim));
    x->x_row_scale = nib_blackwell_take(base, used, pairs * 4);
    x->scale_row = nib_blackwell_take(base, used, pairs * 4);
    x->groups = nib_blackwell_take(base, used, groups * (int64_t)sizeof(struct nib_blackwell_group));
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
    if (e == cudaSuccess && x->inner_scales)
        e = cudaMemsetAsync(x->inner_scales, 0, (size_t)x->inner_scales_bytes, s->handle);
    if (e != cudaSuccess)
        return nib_error_set(err, nib_cuda_check(s, e, "clearing scales"), "%s", s->error.text);
    return NIB_OK;
}

/* ---- Rows and products ---- */

static int64_t rows_most(const struct nib_stream *s, int32_t cols)
{
    return s->blackwell.scales_bytes / nib_sm100a_scale_bytes(128, cols) * 128;
}

static enum nib_status take_rows(struct nib_stream *s, const struct nib_act *x, struct nib_blackwell_x *out)
{
    struct nib_sm100a_place_args p = {.codes = x->codes,
                                      .scales = x->scales,
                                      .row_scale = x->row_scale,
                                      .codes_stride = x->codes_stride,
                                      .scales_stride = x->scales_stride,
                                      .n_in = x->cols,
                                      .y = {.scales = s->blackwell.scales}};
    *out = (struct nib_blackwell_x){.rows = x->rows,
                                    .codes = x->codes,
                                    .scales = p.y.scales,
                                    .row_scale = x->row_scale,
                                    .codes_stride = x->codes_stride};
    return nib_blackwell_launch(s, (const void *)nib_sm100a_place, (dim3){(unsigned)x->rows, 1, 1}, PLACE_THREADS, 1, 0,
                                &p, "scales of rows");
}

static enum nib_status take_pairs(struct nib_stream *s, const struct nib_act *x, int32_t top_k,
                                  struct nib_blackwell_x *out)
{
    struct nib_cuda_blackwell   *t = &s->blackwell;
    struct nib_sm100a_place_args p = {.codes = x->codes,
                                      .scales = x->scales,
                                      .row_scale = x->row_scale,
                                      .codes_stride = x->codes_stride,
                                      .scales_stride = x->scales_stride,
                                      .pair = s->moe.pair,
                                      .y = {.codes = t->x_codes,
                                            .scales = t->x_scales,
                                            .row_scale = t->x_row_scale,
                                            .codes_stride = nib_act_codes_stride(NIB_ACT_NVFP4, x->cols),
                                            .scale_row = t->scale_row},
                                      .top_k = top_k,
                                      .n_in = x->cols};
    *out = (struct nib_blackwell_x){.rows = x->rows * top_k,
                                    .codes = p.y.codes,
                                    .scales = p.y.scales,
                                    .row_scale = p.y.row_scale,
                                    .codes_stride = p.y.codes_stride};
    return nib_blackwell_launch(s, (const void *)nib_sm100a_place, (dim3){(unsigned)out->rows, 1, 1}, PLACE_THREADS, 1,
                                0, &p, "gathering rows");
}

static int32_t tile_rows(int32_t n_pairs, int32_t n_experts)
{
    (void)n_pairs, (void)n_experts;
    return nib_sm100a_tile_rows(1);
}

static enum nib_status multiply(struct nib_stream *s, const struct nib_blackwell_x *x, const struct nib_cuda_matrix *w,
                                const struct nib_mat *y, const struct nib_blackwell_experts *e)
{
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
    if (e) {
        p.n_experts = e->n_experts;
        p.groups = e->groups;
        p.n_groups = e->n_groups;
        p.alphas = w->alpha;
    }
    memcpy(&encode, &s->blackwell.encode, sizeof encode);
    if (!nib_sm100a_linear_plan(&p, encode, &args, &l, why, sizeof why))
        return nib_error_set(&s->error, NIB_E_DEVICE, "cuda: %s", why);
    return nib_blackwell_launch(
        s, l.cluster == 2 ? (const void *)nib_sm100a_linear_pair : (const void *)nib_sm100a_linear_one,
        (dim3){l.grid, 1, 1}, l.block, l.cluster, l.shared_bytes, &args, "an NVFP4 product");
}

static const struct nib_blackwell_product products[] = {
    {3, "linear_one"}, {130, "linear_pair"}, {0, NULL}};

const struct nib_blackwell_family nib_blackwell_sm100a = {
    .name = "sm100a",
    .major = 10,
    .layout = NIB_CUDA_BLOCK16,
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
    .tile_rows = tile_rows,
    .multiply = multiply,
    .products = products,
    .scale_offset = nib_sm100a_scale_offset,
    .selftest = nib_sm100a_selftest,
    .index_select = nib_sm100a_index_select,
    .attend = nib_sm100a_attend,
};
