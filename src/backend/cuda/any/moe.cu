/* The mixture of experts without a host round trip: route, sort the (row, expert) pairs by expert, gate and up of every
 * pair, down of every pair (device/expert_tiles.cuh), and a sum per row in ascending expert order. */
#include "backend/cuda/device/expert_tiles.cuh"

/* ---- Routing ---- */

/* One block. Pairs of an expert end up together in no particular order, which changes no result: rows do not see each
 * other. count [2 * n_experts] in shared memory. */
static __device__ void sort_pairs_block(int32_t n_experts, int32_t n_pairs, int32_t segment_rows, const int32_t *chosen,
                                        const struct nib_cuda_moe_scratch &m, int32_t *count)
{
    int32_t *fill = count + n_experts;
    for (int e = threadIdx.x; e < n_experts; e += blockDim.x)
        count[e] = 0;
    __syncthreads();
    for (int p = threadIdx.x; p < n_pairs; p += blockDim.x)
        atomicAdd(&count[chosen[p]], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        int32_t lane = threadIdx.x, at = 0, segments = 0;
        for (int e0 = 0; e0 < n_experts; e0 += 32) {
            int32_t e = e0 + lane, c = e < n_experts ? count[e] : 0, s = (c + segment_rows - 1) / segment_rows;
            int32_t c_sum = c, s_sum = s;
            for (int offset = 1; offset < 32; offset *= 2) {
                int32_t c_low = __shfl_up_sync(~0u, c_sum, offset), s_low = __shfl_up_sync(~0u, s_sum, offset);
                c_sum += lane >= offset ? c_low : 0;
                s_sum += lane >= offset ? s_low : 0;
            }
            if (e < n_experts) {
                m.first[e] = fill[e] = at + c_sum - c;
                for (int i = 0; i < s; i++) {
                    m.segment[2 * (segments + s_sum - s + i)] = e;
                    m.segment[2 * (segments + s_sum - s + i) + 1] = at + c_sum - c + i * segment_rows;
                }
            }
            at += __shfl_sync(~0u, c_sum, 31);
            segments += __shfl_sync(~0u, s_sum, 31);
        }
        if (lane == 0) {
            m.first[n_experts] = n_pairs;
            *m.n_segments = segments;
        }
    }
    __syncthreads();
    for (int p = threadIdx.x; p < n_pairs; p += blockDim.x) {
        int32_t at = atomicAdd(&fill[chosen[p]], 1);
        m.pair[at] = p;
        m.place[p] = at;
    }
}

static __global__ void sort_pairs(int32_t n_experts, int32_t n_pairs, int32_t segment_rows, const int32_t *chosen,
                                  const struct nib_cuda_moe_scratch m)
{
    nib_grid_start();
    extern __shared__ int32_t count[];
    sort_pairs_block(n_experts, n_pairs, segment_rows, chosen, m, count);
}

/* The experts of row r, by the first warp. key [n_experts], taken [n_experts]. */
NIB_DEVICE void choose(const struct nib_moe_args &a, int32_t token, int64_t t, const float *score, const uint32_t *key,
                       bool *taken, int32_t *chosen, float *weight)
{
    int lane = threadIdx.x, k = a.top_k;
    for (int i = 0; i < k; i++) {
        int32_t best;
        if (a.tid2eid) {
            best = a.tid2eid[(int64_t)token * k + i];
        } else {
            /* ~e in the low word: of equal keys the lowest expert. A taken one is left out altogether. */
            uint64_t top = 0;
            for (int e = lane; e < a.n_experts; e += 32) {
                uint64_t v = (uint64_t)key[e] << 32 | (uint32_t)~e;
                top = !taken[e] && v > top ? v : top;
            }
            for (int offset = 16; offset > 0; offset /= 2) {
                uint64_t other = __shfl_xor_sync(~0u, top, offset);
                top = other > top ? other : top;
            }
            best = (int32_t)~(uint32_t)top;
            if (lane == 0)
                taken[best] = true;
        }
        if (lane == 0)
            chosen[i] = best;
        __syncwarp();
    }
    double sum = 0;
    for (int i = 0; i < k; i++)
        sum += (double)score[chosen[i]];
    for (int i = lane; i < k; i += 32) {
        float w = sum == 0 ? 0 : (float)((double)score[chosen[i]] / sum * (double)a.route_scale);
        weight[i] = w;
        if (a.chosen)
            a.chosen[t * k + i] = chosen[i];
        if (a.weights)
            a.weights[t * k + i] = w;
    }
}

/* A block a row: a thread an expert for the scores, where sums stand there yet, then the first warp chooses. Keys in
 * shared memory [n_experts], then flags of those taken. segment_rows > 0: the last block to come here sorts the
 * pairs; `arrived` counts them and is 0 again. */
static __global__ void choose_experts(const struct nib_moe_args a, const struct nib_rows rows, int32_t first,
                                      const struct nib_cuda_moe_scratch m, bool scored, int32_t segment_rows,
                                      int32_t *arrived)
{
    nib_grid_start();
    extern __shared__ uint32_t key[];
    __shared__ bool            last;
    bool                      *taken = (bool *)(key + a.n_experts);
    int64_t                    r = blockIdx.x, t = first + r;
    float                     *score = m.route + r * a.n_experts;
    for (int e = threadIdx.x; e < a.n_experts; e += blockDim.x) {
        float s = scored ? score[e] : nib_route_score(score[e]);
        score[e] = s;
        taken[e] = false;
        key[e] = a.tid2eid ? 0 : nib_order_key(s + a.bias[e]);
    }
    __syncthreads();
    if (threadIdx.x < 32)
        choose(a, a.tid2eid ? rows.token[t] : 0, t, score, key, taken, m.chosen + r * a.top_k, m.weight + r * a.top_k);
    if (segment_rows == 0)
        return;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(arrived, 1) == (int32_t)gridDim.x - 1;
        if (last)
            *arrived = 0;
    }
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    sort_pairs_block(a.n_experts, (int32_t)gridDim.x * a.top_k, segment_rows, m.chosen, m, (int32_t *)key);
}

/* ---- Where a weight is not tiled: a warp an output and a pair ---- */

NIB_DEVICE float stored_dot(const struct nib_cuda_matrix &w, int32_t stack, int64_t o, const float *x)
{
    float sum = 0;
    for (int32_t k = threadIdx.x % 32; k < w.n_in; k += 32)
        sum = fmaf(nib_matrix_value(w, stack, o, k), x[k], sum);
    return nib_warp_sum(sum) * nib_alpha_of(w, stack);
}

static __global__ void stored_gate_up(const struct nib_experts a, int shared)
{
    nib_grid_start();
    const struct nib_expert_side &side = a.side[shared];
    int64_t            o = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, p = blockIdx.y;
    if (o >= side.w1.n_out)
        return;
    int32_t      pair = shared ? 0 : a.m.pair[p], stack = shared ? 0 : a.chosen[pair];
    const float *x = side.x.f32 + (shared ? p : pair / a.top_k) * side.x.f32_stride;
    float        act = nib_expert_swiglu(stored_dot(side.w1, stack, o, x), stored_dot(side.w3, stack, o, x), a.limit);
    if (a.weight_before && !shared)
        act *= a.weight[pair];
    if (threadIdx.x % 32 == 0)
        a.m.hidden[side.hidden_at + p * side.w1.n_out + o] = act;
}

static __global__ void stored_down(const struct nib_experts a, int shared)
{
    nib_grid_start();
    const struct nib_expert_side &side = a.side[shared];
    int64_t            o = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, p = blockIdx.y;
    if (o >= a.dim)
        return;
    int32_t pair = shared ? 0 : a.m.pair[p], stack = shared ? 0 : a.chosen[pair];
    float   sum = stored_dot(side.w2, stack, o, side.inner.f32 + p * side.inner.f32_stride);
    if (!a.weight_before && !shared)
        sum *= a.weight[pair];
    if (threadIdx.x % 32 == 0)
        a.m.y[(side.y_at + p) * a.dim + o] = sum;
}

/* ---- Between gate-up and down ---- */

/* A hidden row through the format of w2's activations, back to fp32 and into its bf16 parts. row: [n] floats, codes
 * [n] and scales bytes behind. */
static __global__ void finish_hidden(enum nib_act_format act, int32_t n, float *hidden, int n_parts, uint16_t *part, int64_t part_stride,
                                     int32_t *exponent)
{
    nib_grid_start();
    extern __shared__ float row[];
    __shared__ uint32_t     buffer[32];
    __shared__ float        row_scale;
    int64_t                 at = (int64_t)blockIdx.x * n;
    uint8_t                *codes = (uint8_t *)(row + n), *scales = codes + nib_round_up(n, 4);
    struct nib_act          y = {{}, act, 1, n, codes, scales, &row_scale, n, n};
    uint32_t                most = 0;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        row[i] = hidden[at + i];
    if (threadIdx.x == 0)
        row_scale = 1; /* of formats without one, which the compiler reads it for too */
    __syncthreads();
    if (act != NIB_ACT_PLAIN) {
        nib_act_quantise_block(y, 0, row, buffer);
        for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
            hidden[at + i] = row[i] = nib_act_get(y, 0, i);
    }
    if (n_parts == 0)
        return;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        most = max(most, __float_as_uint(row[i]) & 0x7fffffffu);
    int32_t e = nib_exponent_of(nib_block_max_u32(most, buffer));
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        nib_parts_put(scalbnf(row[i], -e), n_parts, part + at + i, part_stride);
    if (threadIdx.x == 0)
        exponent[blockIdx.x] = e;
}

constexpr int kCombineThreads = 64;

/* y[t] = sum over chosen experts in ascending id, then the shared expert; a thread eight columns. by8: those of a
 * row are aligned; weigh: the experts' results are as w2 gave them. */
static __global__ void combine(const struct nib_experts a, int32_t first, const struct nib_mat y, bool by8, bool weigh)
{
    nib_grid_start();
    extern __shared__ int64_t order[]; /* [top_k] where sorted places begin; then their weights */
    float                    *weight = (float *)(order + a.top_k);
    int64_t                   t = blockIdx.y, shared = (a.side[1].y_at + t) * a.dim;
    int32_t                   k = a.top_k, c = ((int32_t)blockIdx.x * kCombineThreads + (int32_t)threadIdx.x) * 8;
    for (int i = threadIdx.x; i < k; i += kCombineThreads) {
        int32_t e = a.chosen[t * k + i], rank = 0;
        for (int j = 0; j < k; j++) {
            int32_t other = a.chosen[t * k + j];
            rank += other < e || (other == e && j < i);
        }
        order[rank] = (int64_t)a.m.place[t * k + i] * a.dim;
        weight[rank] = weigh ? a.weight[t * k + i] : 1.0f;
    }
    __syncthreads();
    if (!by8) {
        for (int32_t end = min(c + 8, a.dim); c < end; c++) {
            float sum = 0;
            for (int i = 0; i < k; i++)
                sum += weight[i] * a.m.y[order[i] + c];
            nib_mat_set(y, first + t, c, sum + a.m.y[shared + c]);
        }
        return;
    }
    if (c >= a.dim)
        return;
    float sum[8] = {};
#pragma unroll 4
    for (int i = 0; i <= k; i++) {
        const float4 *from = (const float4 *)(a.m.y + (i < k ? order[i] : shared) + c);
        float4        low = from[0], high = from[1];
        float         w = i < k ? weight[i] : 1.0f;
        sum[0] += w * low.x, sum[1] += w * low.y, sum[2] += w * low.z, sum[3] += w * low.w;
        sum[4] += w * high.x, sum[5] += w * high.y, sum[6] += w * high.z, sum[7] += w * high.w;
    }
    nib_mat_set8(y, first + t, c, sum);
}

/* ---- Launches ---- */

/* Rows of hidden become the inner rows of w2. */
static void launch_finish(struct nib_stream *s, struct nib_experts *a, const struct nib_weight *w2, int i, bool direct, bool stored)
{
    struct nib_expert_side *side = &a->side[i];
    int32_t      n = side->w1.n_out, rows = i ? a->n_rows : a->n_pairs;
    int64_t      all = (int64_t)a->n_pairs * a->side[0].w1.n_out + (int64_t)a->n_rows * a->side[1].w1.n_out;
    size_t       bytes = (size_t)n * 6 + 64;
    memset(&side->inner, 0, sizeof side->inner);
    side->inner.n_parts = direct || w2->act == NIB_ACT_FP8 ? 1 : 3;
    side->inner.part = a->m.parts + side->hidden_at;
    side->inner.part_stride = (all + 7) / 8 * 8;
    side->inner.stride = side->inner.f32_stride = n;
    side->inner.f32 = a->m.hidden + side->hidden_at;
    if (direct)
        return;
    side->inner.exponent = a->m.exponent + (i ? a->n_pairs : 0);
    cudaFuncSetAttribute(finish_hidden, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, finish_hidden, (unsigned)rows, 128, bytes, w2->act, n, a->m.hidden + side->hidden_at, stored ? 0 : side->inner.n_parts,
                                                            a->m.parts + side->hidden_at, side->inner.part_stride,
                                                            a->m.exponent + (i ? a->n_pairs : 0));
}

/* How the two stages run: on tiles only if all matrices of a stage are tiled; the hidden rows as bf16 from stage to
 * stage where nothing stands between; sixteen pairs a segment where there are many and both stages take rows of one
 * part. */
struct plan {
    bool    in_tiled, out_tiled, in_plain, out_plain, direct;
    int32_t segment_rows;
};

static int32_t parts_of(const struct nib_act *x, enum nib_act_format act)
{
    return act == NIB_ACT_FP8 || (act == NIB_ACT_PLAIN && x->plain.dtype == NIB_DTYPE_BF16) ? 1 : 3;
}

static struct plan plan_of(const struct nib_stream *s, const struct nib_moe_args *a, int32_t n_pairs)
{
    const struct nib_weight *const w[2][3] = {{a->w1, a->w2, a->w3}, {a->sw1, a->sw2, a->sw3}};
    struct plan p = {true, true, true, true, a->y.dtype == NIB_DTYPE_BF16, 8};
    int32_t     experts = n_pairs < a->n_experts ? n_pairs : a->n_experts;
    for (int i = 0; i < 2; i++) {
        p.in_tiled = p.in_tiled && nib_cuda_matrix_of(w[i][0])->layout == NIB_CUDA_TILED &&
                     nib_cuda_matrix_of(w[i][2])->layout == NIB_CUDA_TILED;
        p.out_tiled = p.out_tiled && nib_cuda_matrix_of(w[i][1])->layout == NIB_CUDA_TILED;
        p.direct = p.direct && w[i][1]->act == NIB_ACT_PLAIN;
    }
    p.direct = p.direct && p.in_tiled && p.out_tiled;
    for (int i = 0; i < 2; i++) {
        p.in_plain = p.in_plain && nib_is_plain(*nib_cuda_matrix_of(w[i][0]), parts_of(&a->x, w[i][0]->act));
        p.out_plain = p.out_plain &&
                      nib_is_plain(*nib_cuda_matrix_of(w[i][1]), p.direct || w[i][1]->act == NIB_ACT_FP8 ? 1 : 3);
    }
    if (p.in_tiled && p.out_tiled && p.in_plain && p.out_plain && n_pairs > 4 * experts)
        p.segment_rows = 16;
    /* Fewer where a block's memory on this card does not hold them in three parts. */
    size_t sums = 8 * (sizeof(uint16_t *) + kWarps * kTileRows * sizeof(float));
    size_t fit = ((size_t)s->shared_most - sums) / nib_rows_bytes(1, 3, 1, 8);
    if (!(p.in_plain && p.out_plain) && fit < 8)
        p.segment_rows = (int32_t)fit;
    return p;
}

static void launch_stages(struct nib_stream *s, struct nib_experts *a, const struct nib_weight *const w2[2],
                          const struct plan *p)
{
    unsigned n_segments = (unsigned)(a->n_segments_max + (a->n_rows + p->segment_rows - 1) / p->segment_rows);
    bool     wide = p->segment_rows > 8;
    a->bf16 = p->direct;
    if (p->in_tiled && p->in_plain) {
        nib_cuda_gate_up_plain(s, a, wide, n_segments);
    } else if (p->in_tiled) {
        nib_cuda_gate_up_any(s, a, n_segments);
    } else {
        for (int i = 0; i < 2; i++)
            nib_launch(s, stored_gate_up, dim3((unsigned)((a->side[i].w1.n_out + 7) / 8), (unsigned)(i ? a->n_rows : a->n_pairs)), 256, 0, *a, i);
    }
    for (int i = 0; i < 2; i++)
        launch_finish(s, a, w2[i], i, p->direct, !p->out_tiled);
    if (p->out_tiled && p->out_plain) {
        nib_cuda_down_plain(s, a, wide, n_segments);
    } else if (p->out_tiled) {
        nib_cuda_down_any(s, a, n_segments);
    } else {
        for (int i = 0; i < 2; i++)
            nib_launch(s, stored_down, dim3((unsigned)((a->dim + 7) / 8), (unsigned)(i ? a->n_rows : a->n_pairs)), 256, 0, *a, i);
    }
}

/* segment_rows > 0: pairs are sorted into segments, too. one: scores only, as the experts of one row are chosen where
 * they are multiplied. */
static enum nib_status route(struct nib_stream *s, const struct nib_moe_args *a, int32_t first, int32_t n,
                             int32_t segment_rows, bool one)
{
    struct nib_cuda_moe_scratch *m = &s->moe;
    struct nib_cuda_products     router;
    int64_t                      at = 0;
    memset(&router, 0, sizeof router);
    router.n = n;
    router.n_weights = 1;
    router.scores = true;
    router.w[0] = *nib_cuda_matrix_of(a->router);
    router.y[0].data = m->route;
    router.y[0].rows = n;
    router.y[0].cols = a->n_experts;
    router.y[0].stride = a->n_experts;
    struct nib_mat x = a->x.plain;
    bool           sums = false; /* not scores */
    x.data = (uint8_t *)x.data + first * x.stride * (x.dtype == NIB_DTYPE_F32 ? 4 : 2);
    x.rows = n;
    if (!one)
        NIB_TRY(nib_cuda_blackwell_plain(s, &x, 1, a->router, router.y, &sums));
    bool wide = !sums && a->router->act == NIB_ACT_PLAIN && nib_cuda_wide_takes(s, &a->x, n, 1, &a->router, 0);
    if (wide) {
        NIB_TRY(nib_cuda_wide(s, &a->x, first, n, 1, &a->router, router.y, 0));
    } else if (!sums) {
        bool f32 = router.w[0].layout != NIB_CUDA_TILED;
        NIB_TRY(nib_cuda_rows_prepare(s, &a->x, NIB_ACT_PLAIN, first, n, f32, &at, &router.x[0]));
        NIB_TRY(nib_cuda_products_run(s, &router));
    }
    if (one)
        return nib_cuda_check(s, cudaGetLastError(), "routing");
    /* One block sorts a few rows' pairs sooner than another launch begins. */
    bool   together = segment_rows > 0 && n <= 64;
    size_t keys = (size_t)a->n_experts * 8, counts = (size_t)a->n_experts * 8;
    cudaFuncSetAttribute(choose_experts, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)keys);
    nib_launch(s, choose_experts, (unsigned)n, 256, keys, *a, *a->rows, first, *m, !wide && !sums, together ? segment_rows : 0,
               s->arrived);
    if (segment_rows > 0 && !together) {
        cudaFuncSetAttribute(sort_pairs, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)counts);
        nib_launch(s, sort_pairs, 1, 1024, counts, a->n_experts, n * a->top_k, segment_rows, m->chosen, *m);
    }
    return nib_cuda_check(s, cudaGetLastError(), "routing");
}

enum nib_status nib_cuda_moe_route(struct nib_stream *s, const struct nib_moe_args *a, int32_t first, int32_t n)
{
    return route(s, a, first, n, 0, false);
}

/* Whether the experts of one row are two launches: rows and weights of the plain loop, and a cluster for the sum. */
static bool takes_one(const struct nib_stream *s, const struct nib_moe_args *a, const struct plan *p, int32_t n_rows)
{
    return n_rows == 1 && p->in_plain && p->out_plain && p->direct && a->top_k + 1 <= min(kOneMost, s->cluster_most) &&
           a->n_experts <= kChooseMost;
}

static void launch_one(struct nib_stream *s, const struct nib_moe_args *a, int32_t first, struct nib_experts *args)
{
    struct nib_routing r = {s->moe.route, a->bias, a->tid2eid, a->tid2eid ? a->rows->token + first : NULL, a->n_experts,
                            a->top_k, a->route_scale, a->chosen, a->weights};
    if (r.chosen)
        r.chosen += (int64_t)first * a->top_k;
    if (r.weight)
        r.weight += (int64_t)first * a->top_k;
    args->bf16 = true;
    args->routing = r;
    args->y = a->y;
    args->first = first;
    nib_cuda_gate_up_one(s, args);
    for (int i = 0; i < 2; i++) {
        const struct nib_weight *const w2[2] = {a->w2, a->sw2};
        launch_finish(s, args, w2[i], i, true, false);
    }
    nib_cuda_down_one(s, args);
}

/* The experts' results into args->m.y, where pairs stand into args->m.place; *one: the sum into a->y instead. */
static enum nib_status few_rows(struct nib_stream *s, const struct nib_moe_args *a, int32_t first,
                                struct nib_experts *args, bool *one)
{
    const struct nib_weight *const w[2][3] = {{a->w1, a->w2, a->w3}, {a->sw1, a->sw2, a->sw3}};
    const struct nib_weight *const w2[2] = {a->w2, a->sw2};
    struct plan                    p = plan_of(s, a, args->n_pairs);
    int64_t                        at = 0;
    *one = takes_one(s, a, &p, args->n_rows);
    NIB_TRY(route(s, a, first, args->n_rows, p.segment_rows, *one));
    args->segment_rows = p.segment_rows;
    args->n_segments_max = args->n_pairs < a->n_experts ? args->n_pairs : a->n_experts;
    args->n_segments_max += args->n_pairs / p.segment_rows;
    for (int i = 0; i < 2; i++) {
        struct nib_expert_side *side = &args->side[i];
        side->w1 = *nib_cuda_matrix_of(w[i][0]);
        side->w2 = *nib_cuda_matrix_of(w[i][1]);
        side->w3 = *nib_cuda_matrix_of(w[i][2]);
        side->hidden_at = i ? (int64_t)args->n_pairs * a->w1->n_out : 0;
        if (p.in_tiled && i == 1 && w[1][0]->act == w[0][0]->act)
            side->x = args->side[0].x;
        else
            NIB_TRY(nib_cuda_rows_prepare(s, &a->x, w[i][0]->act, first, args->n_rows, !p.in_tiled, &at, &side->x));
    }
    if (*one)
        launch_one(s, a, first, args);
    else
        launch_stages(s, args, w2, &p);
    return nib_cuda_check(s, cudaGetLastError(), "experts");
}

#ifndef NIB_CUDA_SM90A
/* Without Hopper's kernels nothing is theirs. */
bool nib_cuda_wide_experts_takes(const struct nib_stream *, const struct nib_moe_args *, int32_t)
{
    return false;
}

enum nib_status nib_cuda_wide_experts(struct nib_stream *s, const struct nib_moe_args *, int32_t, int32_t)
{
    return nib_cuda_check(s, cudaErrorNotSupported, "experts of many rows");
}
#endif

static enum nib_status moe_rows(struct nib_stream *s, const struct nib_moe_args *a, int32_t first, int32_t n)
{
    struct nib_experts args;
    memset(&args, 0, sizeof args);
    args.m = s->moe;
    args.chosen = s->moe.chosen;
    args.weight = s->moe.weight;
    args.n_rows = n;
    args.n_pairs = n * a->top_k;
    args.top_k = a->top_k;
    args.dim = a->x.cols;
    args.limit = a->limit;
    args.weight_before = a->weight_before_w2;
    args.bf16 = a->y.dtype == NIB_DTYPE_BF16;
    args.side[1].y_at = args.n_pairs;
    bool wide = nib_cuda_wide_experts_takes(s, a, n);
    if (wide) {
        NIB_TRY(route(s, a, first, n, 0, false));
        NIB_TRY(nib_cuda_wide_experts(s, a, first, n));
    } else {
        bool one;
        NIB_TRY(few_rows(s, a, first, &args, &one));
        if (one)
            return NIB_OK;
    }
    bool by8 = args.dim % 8 == 0 && a->y.stride % 8 == 0 && (uintptr_t)a->y.data % 16 == 0;
    dim3 grid((unsigned)((args.dim + 8 * kCombineThreads - 1) / (8 * kCombineThreads)), (unsigned)n);
    /* The compiler reads up to four places of a list at once, and throws away those behind its end. */
    nib_launch(s, combine, grid, kCombineThreads, (size_t)a->top_k * 12 + 32, args, first, a->y, by8, wide && !a->weight_before_w2);
    return nib_cuda_check(s, cudaGetLastError(), "experts");
}

enum nib_status nib_cuda_moe(struct nib_stream *s, const struct nib_moe_args *a)
{
    int32_t n, chunk = nib_cuda_rows_fit(s, a->x.cols, a->x.rows);
    chunk = chunk < s->moe.n_rows ? chunk : s->moe.n_rows;
    for (int32_t first = 0; first < a->x.rows; first += n) {
        int32_t left = a->x.rows - first, most_at_once = left < s->moe.n_rows ? left : s->moe.n_rows;
        n = left < chunk ? left : chunk;
        /* BF16 rows go to the router as they are; the more there are, the fuller the experts' groups. */
        if (nib_cuda_matrix_of(a->router)->layout == NIB_CUDA_TILED && nib_cuda_wide_experts_takes(s, a, most_at_once))
            n = most_at_once;
        NIB_TRY(moe_rows(s, a, first, n));
    }
    return NIB_OK;
}
