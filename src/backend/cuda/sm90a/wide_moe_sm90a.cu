/* The experts of many tokens on Hopper, launch by launch: groups of the chosen experts' rows, the image of those
 * rows, gate and up, down (wide_experts.cuh). Every grid has a fixed shape, and blocks without a group leave at
 * once, so the host never learns who chose what. Results stand in s->moe.y as any/moe.cu combines them, not yet
 * weighed where weights come after w2.
 *
 * Bytes: every chosen expert's codes once a group; each pair's row written and read once as an image and once as
 * fp32 sums, which is a tenth of the time of 8192 tokens. */
#include <string.h>

#include "backend/cuda/device/experts.cuh"
#include "backend/cuda/sm90a/wide_experts.cuh"

constexpr int32_t kDownProducts = 4, kGateProducts = 2; /* of a block, one after another */
constexpr int32_t kFewEach = 32;                        /* rows an expert on average up to which groups are small */

static __global__ void __launch_bounds__(kGroupsThreads) make_groups(const struct nib_pairs a)
{
    nib_grid_start();
    extern __shared__ int32_t counts[];
    __shared__ int32_t        buffer[kGroupsThreads];
    nib_groups_block(a, counts, buffer);
}

static __global__ void row_exponents(const struct nib_act x, int32_t first, int32_t n, int32_t *exponent)
{
    nib_grid_start();
    nib_wide_exponents(x, first, n, exponent);
}

/* A warp makes 32 rows of a block of columns of a group, as make_image does. exponent: of FP8 rows. */
template <bool fp8>
static __global__ void gather_rows(const struct nib_act x, int32_t first, int32_t top_k, const int32_t *pair,
                                   const int32_t *exponent, const struct nib_wide_groups groups, uint16_t *routed,
                                   uint16_t *shared)
{
    nib_grid_start();
    struct nib_wide_group g = nib_wide_group_of(groups, (int32_t)blockIdx.z);
    int32_t row = (int32_t)blockIdx.x * 32 + (int32_t)threadIdx.x % 32, n_blocks = x.cols / kBlockCols;
    int32_t block = (int32_t)(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32), eights = (g.count + 7) / 8;
    if (g.none || block >= n_blocks || row >= eights * 8)
        return;
    uint4 v[8] = {};
    if (row < g.count) {
        int32_t t = g.shared ? g.row + row : pair[g.row + row] / top_k;
        nib_wide_load<fp8>(x, first + (int64_t)t, block, fp8 ? exponent[t] : 0, v);
    }
    int64_t at = (int64_t)g.place * n_blocks + (int64_t)block * eights;
    nib_wide_put((g.shared ? shared : routed) + at * kGroupHalves, row, v);
}

/* ---- Host ---- */

/* Places for groups, and for rows of images in eights. */
struct room {
    int32_t rows; /* of a group */
    int32_t groups, shared_groups;
    int64_t routed, shared;
};

static struct room room_of(const struct nib_moe_args *a, int32_t n)
{
    int32_t     pairs = n * a->top_k, experts = pairs < a->n_experts ? pairs : a->n_experts;
    int32_t     rows = pairs <= (int64_t)kFewEach * a->n_experts ? kFewRows : kWideRows;
    struct room r = {rows, experts + pairs / rows, (n + rows - 1) / rows, 0, (n + 7) / 8};
    r.routed = pairs / 8 + r.groups;
    return r;
}

/* Only four-bit weights have narrow products, which experts with few rows want. */
static bool is_narrow(const struct nib_weight *w)
{
    return w->type == NIB_WEIGHT_NVFP4 || w->type == NIB_WEIGHT_MXFP4;
}

/* All weights multiply rows of this format, in tiles. Hidden FP8 rows are quantised by whole blocks of 128 channels. */
static bool all_tiled(const struct nib_moe_args *a, enum nib_act_format act)
{
    const struct nib_weight *w[6] = {a->w1, a->w3, a->w2, a->sw1, a->sw3, a->sw2};
    for (int i = 0; i < 6; i++)
        if (nib_cuda_matrix_of(w[i])->layout != NIB_CUDA_TILED || w[i]->act != act ||
            (act == NIB_ACT_FP8 && w[i]->n_in % 128 != 0))
            return false;
    return is_narrow(a->w1) && is_narrow(a->w2) && a->w1->type == a->w3->type && a->sw1->type == a->sw3->type;
}

bool nib_cuda_wide_experts_takes(const struct nib_stream *s, const struct nib_moe_args *a, int32_t n)
{
    const struct nib_mat  *x = &a->x.plain;
    const struct nib_dims *d = &s->dims;
    if (s->arch != 90 || n <= NIB_CUDA_MANY_ROWS || n > s->moe.n_rows || a->y.dtype != NIB_DTYPE_BF16)
        return false;
    if (a->w1->act == NIB_ACT_FP8) {
        if (!all_tiled(a, NIB_ACT_FP8) || a->x.codes_stride % 4 != 0 || (uintptr_t)a->x.codes % 4 != 0)
            return false;
    } else if (!all_tiled(a, NIB_ACT_PLAIN) || x->dtype != NIB_DTYPE_BF16 || x->stride % 8 != 0 ||
               (uintptr_t)x->data % 16 != 0) {
        return false;
    }
    /* The image of the rows lies where down writes its results, that of the inner rows where their parts would. */
    struct room r = room_of(a, n);
    int64_t     rows = s->moe.n_rows, pairs = rows * d->top_k, inner = pairs * d->n_inner + rows * d->n_inner_shared;
    return a->x.cols <= d->dim && 3 * (int64_t)r.groups <= 2 * (pairs + d->n_experts) &&
           (r.routed + r.shared) * 8 * a->x.cols <= 2 * (pairs + rows) * d->dim &&
           (r.routed * a->w1->n_out + r.shared * a->sw1->n_out) * 8 <= 3 * inner;
}

static void launch_type(struct nib_stream *s, const struct nib_wide_experts *a, int32_t type, int32_t n_groups)
{
    switch (type) {
    case NIB_WEIGHT_NVFP4: nib_cuda_wide_experts_nvfp4(s, a, (unsigned)n_groups); break;
    case NIB_WEIGHT_MXFP4: nib_cuda_wide_experts_mxfp4(s, a, (unsigned)n_groups); break;
    case NIB_WEIGHT_FP8: nib_cuda_wide_experts_fp8(s, a, (unsigned)n_groups); break;
    default: nib_cuda_wide_experts_bf16(s, a, (unsigned)n_groups); break;
    }
}

/* One launch where both sides' weights are of one type. */
static void launch_stage(struct nib_stream *s, struct nib_wide_experts *a, const struct room *r)
{
    int32_t routed = a->w[0][0].type, shared = a->w[1][0].type;
    a->first_group = 0;
    launch_type(s, a, routed, routed == shared ? r->groups + r->shared_groups : r->groups);
    a->first_group = r->groups;
    if (routed != shared)
        launch_type(s, a, shared, r->shared_groups);
}

enum nib_status nib_cuda_wide_experts(struct nib_stream *s, const struct nib_moe_args *a, int32_t first, int32_t n)
{
    struct nib_cuda_moe_scratch *m = &s->moe;
    struct room                  r = room_of(a, n);
    int32_t                      pairs = n * a->top_k, n_blocks = a->x.cols / kBlockCols;
    struct nib_pairs  list = {m->chosen, m->segment, m->n_segments, m->pair, m->place, NULL, NULL, pairs, a->n_experts,
                              r.rows, r.rows, 0};
    uint16_t         *image = (uint16_t *)m->y, *inner = m->parts;
    struct nib_wide_experts e;
    memset(&e, 0, sizeof e);
    size_t counts = 3 * (size_t)a->n_experts * sizeof(int32_t);
    cudaFuncSetAttribute(make_groups, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)counts);
    nib_launch(s, make_groups, 1, kGroupsThreads, counts, list);

    e.groups = {m->segment, m->n_segments, r.groups, n, r.rows};
    e.top_k = a->top_k;
    e.pair = m->pair;
    e.limit = a->limit;
    e.y_shared = pairs;
    e.image[0] = image;
    e.image[1] = image + r.routed * 8 * a->x.cols;
    dim3 grid((unsigned)r.rows / 32, (unsigned)(n_blocks + 7) / 8, (unsigned)(r.groups + r.shared_groups));
    if (a->w1->act == NIB_ACT_FP8) {
        e.exponent = m->exponent;
        nib_launch(s, row_exponents, (unsigned)(n + 7) / 8, 256, 0, a->x, first, n, m->exponent);
        nib_launch(s, gather_rows<true>, grid, 256, 0, a->x, first, a->top_k, m->pair, m->exponent, e.groups, image,
                   image + r.routed * 8 * a->x.cols);
    } else {
        nib_launch(s, gather_rows<false>, grid, 256, 0, a->x, first, a->top_k, m->pair, m->exponent, e.groups, image,
                   image + r.routed * 8 * a->x.cols);
    }

    e.w[0][0] = *nib_cuda_matrix_of(a->w1);
    e.w[0][1] = *nib_cuda_matrix_of(a->w3);
    e.w[1][0] = *nib_cuda_matrix_of(a->sw1);
    e.w[1][1] = *nib_cuda_matrix_of(a->sw3);
    e.hidden[0] = inner;
    e.hidden[1] = inner + r.routed * 8 * a->w1->n_out;
    e.weight = a->weight_before_w2 ? m->weight : NULL;
    /* Hidden FP8 rows are put together where the next product's rows would be. */
    e.products = e.exponent ? 1 : kGateProducts;
    launch_stage(s, &e, &r);

    e.w[0][0] = e.w[0][1] = *nib_cuda_matrix_of(a->w2);
    e.w[1][0] = e.w[1][1] = *nib_cuda_matrix_of(a->sw2);
    e.image[0] = e.hidden[0];
    e.image[1] = e.hidden[1];
    e.hidden[0] = e.hidden[1] = NULL;
    e.weight = NULL;
    e.products = kDownProducts;
    e.y = m->y;
    launch_stage(s, &e, &r);
    return nib_cuda_check(s, cudaGetLastError(), "experts of many rows");
}
