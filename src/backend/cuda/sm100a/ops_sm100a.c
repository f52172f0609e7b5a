/* Whole ops of the sm_100a family: attention, products of plain rows, and the indexer's scores, from which any/ takes the
 * largest. */
#include "backend/cuda/sm100a/ops_sm100a.h"
#include "backend/cuda/sm100a/sm100a.h"

#include <string.h>

/* Host handles of the kernels. */
void nib_sm100a_attend_bf16(const struct nib_sm100a_attend_args a);
void nib_sm100a_attend_fp8(const struct nib_sm100a_attend_args a);
void nib_sm100a_attend_nvfp4(const struct nib_sm100a_attend_args a);
void nib_sm100a_attend_f32_bf16(const struct nib_sm100a_attend_args a);
void nib_sm100a_attend_f32_fp8(const struct nib_sm100a_attend_args a);
void nib_sm100a_attend_f32_nvfp4(const struct nib_sm100a_attend_args a);
void nib_sm100a_index_fp4(const struct nib_blackwell_index_args a);
void nib_sm100a_index_bf16(const struct nib_blackwell_index_args a);
void nib_sm100a_index_f32_bf16(const struct nib_blackwell_index_args a);
void nib_sm100a_plain_few_bf16(const struct nib_sm100a_plain_args a);
void nib_sm100a_plain_few_f32(const struct nib_sm100a_plain_args a);
void nib_sm100a_plain_many_bf16(const struct nib_sm100a_plain_args a);
void nib_sm100a_plain_many_f32(const struct nib_sm100a_plain_args a);
void nib_sm100a_plain_fp8_few_bf16(const struct nib_sm100a_plain_args a);
void nib_sm100a_plain_fp8_few_f32(const struct nib_sm100a_plain_args a);
void nib_sm100a_plain_fp8_many_bf16(const struct nib_sm100a_plain_args a);
void nib_sm100a_plain_fp8_many_f32(const struct nib_sm100a_plain_args a);

enum {
    GRID_Y_MOST = 32768,
    /* Attended rows up to which eight blocks take a row by themselves: four tiles each. For more, any/ spreads a row
     * over up to 160. */
    FEW_MOST = 4 * 128 * NIB_SM100A_ATTEND_BLOCKS,
    INDEX_DIM = 128,
    INDEX_HEADS_MOST = 128,
    TAKE_EACH = 1024 * 32, /* entries that a block of nib_cuda_index_take() can take from; up to eight share a row */
    TAKE_BLOCKS = 8
};

/* ---- Attention ---- */

bool nib_sm100a_attend_takes(const struct nib_attend_args *a)
{
    enum nib_row_format f = a->window.format;
    /* 16 bytes of a row, or 8 of an FP8 one, are one access; so are 16 of a query. */
    int64_t align = f == NIB_ROW_FP8 ? 8 : 16, q_align = a->q.dtype == NIB_DTYPE_F32 ? 4 : 8;
    bool    format = f == NIB_ROW_BF16 || f == NIB_ROW_FP8 || f == NIB_ROW_NVFP4;
    bool    entries = a->ratio == 0 || (a->entries.format == f && (uintptr_t)a->entries.base % 16 == 0 &&
                                     a->entries.row_bytes % align == 0);
    return a->head_dim == 512 && a->rope.n_rot == 64 && a->q.stride % q_align == 0 && (uintptr_t)a->q.data % 16 == 0 &&
           format && entries && (uintptr_t)a->window.base % 16 == 0 && a->window.row_bytes % align == 0;
}

enum nib_status nib_sm100a_attend_launch(struct nib_stream *s, const struct nib_attend_args *a, bool few)
{
    static const void *const kernels[2][3] = {
        {(const void *)nib_sm100a_attend_bf16, (const void *)nib_sm100a_attend_fp8,
         (const void *)nib_sm100a_attend_nvfp4},
        {(const void *)nib_sm100a_attend_f32_bf16, (const void *)nib_sm100a_attend_f32_fp8,
         (const void *)nib_sm100a_attend_f32_nvfp4}};
    bool        f32 = a->q.dtype == NIB_DTYPE_F32;
    int         format = a->window.format == NIB_ROW_BF16 ? 0 : a->window.format == NIB_ROW_FP8 ? 1 : 2;
    const void *kernel = kernels[f32][format];
    int32_t     heads = NIB_SM100A_ATTEND_COLUMNS / (f32 ? 2 : 1);
    unsigned    cluster = few ? NIB_SM100A_ATTEND_BLOCKS : 1, groups = (unsigned)((a->n_heads + heads - 1) / heads);
    int32_t n_rows = a->rows->n_rows;
    for (int32_t first = 0; first < n_rows; first += GRID_Y_MOST) {
        struct nib_sm100a_attend_args args = {*a, *a->rows, first, few};
        dim3 grid = {groups * cluster, (unsigned)(n_rows - first < GRID_Y_MOST ? n_rows - first : GRID_Y_MOST), 1};
        NIB_TRY(nib_blackwell_launch(s, kernel, grid, NIB_SM100A_ATTEND_THREADS, cluster, NIB_SM100A_ATTEND_SHARED,
                                     &args, "attend"));
    }
    return NIB_OK;
}

enum nib_status nib_sm100a_attend(struct nib_stream *s, const struct nib_attend_args *a)
{
    bool    few = a->rows->n_rows <= NIB_CUDA_ATTEND_FEW;
    int64_t most = a->n_window + (a->ratio == 0 ? 0 : a->selected ? a->top_k : s->dims.n_ctx_max / a->ratio);
    if (!s->blackwell.ops_on || !nib_sm100a_attend_takes(a) ||
        (few && (most > FEW_MOST || s->cluster_most < NIB_SM100A_ATTEND_BLOCKS)))
        return nib_cuda_attend(s, a);
    return nib_sm100a_attend_launch(s, a, few);
}

/* ---- Index scores ---- */

static bool index_takes(const struct nib_index_select_args *a)
{
    bool fp4 = a->keys.format == NIB_ROW_FP4, bf16 = a->keys.format == NIB_ROW_BF16;
    /* An fp32 query of BF16 keys is two parts, which share the columns of one product. */
    int32_t heads_most = bf16 && a->q.dtype == NIB_DTYPE_F32 ? INDEX_HEADS_MOST / 2 : INDEX_HEADS_MOST;
    return (fp4 || bf16) && a->dim == INDEX_DIM && a->n_heads <= heads_most &&
           (uintptr_t)a->keys.base % 16 == 0 && a->keys.row_bytes % (fp4 ? 4 : 16) == 0;
}

enum nib_status nib_sm100a_index_scores(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first,
                                        int32_t n, int64_t n_entries, float *score, int64_t stride)
{
    bool    fp4 = a->keys.format == NIB_ROW_FP4;
    int64_t blocks = (n_entries + NIB_SM100A_INDEX_ENTRIES - 1) / NIB_SM100A_INDEX_ENTRIES,
            most = 4 * (int64_t)s->n_sms / n + 1; /* two at a time on a multiprocessor */
    struct nib_blackwell_index_args args = {*a, *a->rows, score, stride, first};
    dim3                         grid = {(unsigned)(blocks < most ? blocks : most), (unsigned)n, 1};
    const void *kernel = fp4                             ? (const void *)nib_sm100a_index_fp4
                         : a->q.dtype == NIB_DTYPE_F32 ? (const void *)nib_sm100a_index_f32_bf16
                                                       : (const void *)nib_sm100a_index_bf16;
    return nib_blackwell_launch(s, kernel, grid, NIB_SM100A_INDEX_THREADS, 1,
                                fp4 ? NIB_SM100A_INDEX_FP4_SHARED : NIB_SM100A_INDEX_BF16_SHARED, &args,
                                "index scores");
}

enum nib_status nib_sm100a_index_select(struct nib_stream *s, const struct nib_index_select_args *a)
{
    int64_t n_entries = s->dims.n_ctx_max / a->ratio + 1, fit = (int64_t)s->n_score_rows * s->n_entries_max / n_entries;
    if (!s->blackwell.ops_on || !index_takes(a) || s->cluster_most < TAKE_BLOCKS ||
        n_entries - 1 > TAKE_BLOCKS * TAKE_EACH)
        return nib_cuda_index_select(s, a);
    fit = fit < 1 ? 1 : fit > GRID_Y_MOST ? GRID_Y_MOST : fit;
    for (int32_t first = 0, n; first < a->rows->n_rows; first += n) {
        n = a->rows->n_rows - first < fit ? a->rows->n_rows - first : (int32_t)fit;
        nib_cuda_index_query(s, a, first, n);
        NIB_TRY(nib_sm100a_index_scores(s, a, first, n, n_entries, s->score, n_entries));
        if (!nib_cuda_index_take(s, a, first, n, n_entries))
            return nib_error_set(&s->error, NIB_E_DEVICE, "cuda: nothing takes from %lld index scores",
                                 (long long)n_entries);
    }
    return nib_cuda_check(s, cudaGetLastError(), "index_select");
}

/* ---- Plain rows times BF16 or FP8 weights ---- */

enum nib_status nib_sm100a_plain_multiply(struct nib_stream *s, const struct nib_mat *x, int32_t n_groups,
                                          const struct nib_cuda_matrix *w, const struct nib_mat *y, bool *taken)
{
    static const void *const kernels[2][2][2] = {
        {{(const void *)nib_sm100a_plain_few_bf16, (const void *)nib_sm100a_plain_few_f32},
         {(const void *)nib_sm100a_plain_many_bf16, (const void *)nib_sm100a_plain_many_f32}},
        {{(const void *)nib_sm100a_plain_fp8_few_bf16, (const void *)nib_sm100a_plain_fp8_few_f32},
         {(const void *)nib_sm100a_plain_fp8_many_bf16, (const void *)nib_sm100a_plain_fp8_many_f32}}};
    bool                    f32 = x->dtype == NIB_DTYPE_F32, fp8 = w->type == NIB_WEIGHT_FP8;
    struct nib_sm100a_plain p = {.n_rows = x->rows,
                                 .n_groups = n_groups,
                                 .n_out = w->n_out / n_groups,
                                 .n_in = w->n_in,
                                 .x_f32 = f32,
                                 .y_f32 = y->dtype == NIB_DTYPE_F32,
                                 .w_fp8 = fp8,
                                 .x = x->data,
                                 .w = w->codes,
                                 .w_scales = w->scales,
                                 .y = y->data,
                                 .x_stride = x->stride,
                                 .y_stride = y->stride};
    struct nib_sm100a_plain_args args;
    struct nib_blackwell_launch  l;
    nib_sm100a_encode           *encode;
    uint32_t                     n_row_tiles;
    char                         why[160];
    *taken = x->stride % (f32 ? 4 : 8) == 0 && (uintptr_t)x->data % 16 == 0;
    if (!*taken)
        return NIB_OK;
    memcpy(&encode, &s->blackwell.encode, sizeof encode);
    if (!nib_sm100a_plain_plan(&p, encode, &args, &l, &n_row_tiles, why, sizeof why))
        return nib_error_set(&s->error, NIB_E_DEVICE, "cuda: %s", why);
    bool many = strstr(l.kernel, "_many_") != NULL;
    return nib_blackwell_launch(s, kernels[fp8][many][f32], (dim3){l.grid, n_row_tiles, 1}, l.block, l.cluster,
                                l.shared_bytes, &args, "a product of plain rows");
}
