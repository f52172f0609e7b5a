/* Bodies of the row-wise steps around a layer's projections, for a block of kRowThreads threads (row_jobs.cu): norm,
 * the window row, queries of attention and of the index. Each row is read once and written once. */
#ifndef NIB_CUDA_ROW_NORM_CUH
#define NIB_CUDA_ROW_NORM_CUH

#include "backend/cuda/device/rows.cuh"

constexpr int kRowThreads = 256;
constexpr int kRowAngles = 512; /* of a row in shared memory: n_rot is at most this */
constexpr int kQueryHeads = kRowThreads / 32; /* a warp a head */

/* What every body may use of shared memory, beside the row itself. */
struct row_buffers {
    double   sum[32];
    uint32_t most[32];
    float    angle[kRowAngles];
};

NIB_DEVICE void round_block(float *x, int32_t n, bool bf16)
{
    if (!bf16)
        return;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        x[i] = nib_bf16_rounded(x[i]);
    __syncthreads();
}

NIB_DEVICE void norm_row(const struct nib_norm_args &a, int64_t t, float *x, struct row_buffers *b)
{
    nib_mat_load_block(a.x, t, a.x.cols, x);
    nib_rms_norm_block(x, a.weight, a.x.cols, a.eps, b->sum);
    nib_act_store_block(a.y, t, x, b->most);
}

NIB_DEVICE void kv_insert_row(const struct nib_kv_insert_args &a, const struct nib_rows &rows, int64_t t, float *x,
                              struct row_buffers *b)
{
    int32_t d = a.kv.cols, pos = rows.pos[t];
    bool    bf16 = a.kv.dtype == NIB_DTYPE_BF16;
    nib_mat_load_block(a.kv, t, d, x);
    nib_angles_block(a.rope, pos - rows.first_pos, b->angle);
    nib_rms_norm_block(x, a.norm_weight, d, a.eps, b->sum);
    round_block(x, d, bf16);
    nib_rotate_block(x, d, a.rope.n_rot, b->angle);
    round_block(x, d, bf16);
    uint8_t *row = nib_store_at(a.window, rows.window_page + rows.seq[t] * rows.page_stride, pos);
    nib_kv_encode_block(a.window.format, x, d, a.rope.n_rot, row, a.window.row_bytes, b->most);
}

/* The factor of a head's norm; bf16 queries round square, mean, root and product, as the definition has it. */
NIB_DEVICE float query_factor(double sum, int d, float eps, bool bf16)
{
    double mean = nib_warp_sum_f64(sum) / d;
    if (bf16)
        mean = (double)nib_bf16_rounded((float)mean);
    float r = (float)(1.0 / sqrt(mean + (double)eps));
    return bf16 ? nib_bf16_rounded(r) : r;
}

NIB_DEVICE void rotate_query_pair(float *even, float *odd, bool bf16, float cosine, float sine)
{
    *even = bf16 ? nib_bf16_rounded(*even) : *even;
    *odd = bf16 ? nib_bf16_rounded(*odd) : *odd;
    nib_rotate_pair(even, odd, cosine, sine);
}

/* A head of 512 channels: a lane keeps eight of either half. */
NIB_DEVICE void query_head_512(const struct nib_q_rope_args &a, const struct nib_rows &rows, int64_t t, int h,
                               float *angle)
{
    constexpr int d = 512;
    int           lane = threadIdx.x % 32, first = d - a.rope.n_rot;
    bool          bf16 = a.q.dtype == NIB_DTYPE_BF16;
    float         x[2][8] = {};
    double        sum = 0;
    if (h < a.n_heads)
        for (int half = 0; half < 2; half++)
            nib_mat_get8(a.q, t, (int64_t)h * d + half * 256 + lane * 8, x[half]);
    nib_angles_block(a.rope, rows.pos[t] - rows.first_pos, angle);
    if (h >= a.n_heads)
        return;
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 8; k++) {
            float square = x[half][k] * x[half][k];
            sum += bf16 ? (double)nib_bf16_rounded(square) : (double)x[half][k] * (double)x[half][k];
        }
    float r = query_factor(sum, d, a.eps, bf16);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int c = half * 256 + lane * 8;
#pragma unroll
        for (int k = 0; k < 8; k++)
            x[half][k] *= r;
#pragma unroll
        for (int k = 0; k < 8; k += 2)
            if (c + k >= first) {
                int i = (c + k - first) / 2;
                rotate_query_pair(&x[half][k], &x[half][k + 1], bf16, angle[i], angle[a.rope.n_rot / 2 + i]);
            }
        nib_mat_set8(a.q, t, (int64_t)h * d + c, x[half]);
    }
}

NIB_DEVICE void query_heads(const struct nib_q_rope_args &a, const struct nib_rows &rows, int64_t t, int group,
                            struct row_buffers *b)
{
    int h = group * kQueryHeads + threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_dim, first = d - a.rope.n_rot;
    int64_t col = (int64_t)h * d;
    double  sum = 0;
    bool    bf16 = a.q.dtype == NIB_DTYPE_BF16;
    if (d == 512 && a.rope.n_rot % 2 == 0 && nib_mat_by8(a.q)) {
        query_head_512(a, rows, t, h, b->angle);
        return;
    }
    nib_angles_block(a.rope, rows.pos[t] - rows.first_pos, b->angle);
    if (h >= a.n_heads)
        return;
    for (int i = lane; i < d; i += 32) {
        float v = nib_mat_get(a.q, t, col + i);
        sum += bf16 ? (double)nib_bf16_rounded(v * v) : (double)v * (double)v;
    }
    float r = query_factor(sum, d, a.eps, bf16);
    for (int i = lane; i < first; i += 32)
        nib_mat_set(a.q, t, col + i, nib_mat_get(a.q, t, col + i) * r);
    for (int i = lane; i < a.rope.n_rot / 2; i += 32) {
        float even = nib_mat_get(a.q, t, col + first + 2 * i) * r,
              odd = nib_mat_get(a.q, t, col + first + 2 * i + 1) * r;
        rotate_query_pair(&even, &odd, bf16, b->angle[i], b->angle[a.rope.n_rot / 2 + i]);
        nib_mat_set(a.q, t, col + first + 2 * i, even);
        nib_mat_set(a.q, t, col + first + 2 * i + 1, odd);
    }
}

/* A head of an index query brought to the form of its keys; nothing where all entries are taken unscored. */
NIB_DEVICE void index_query_head(const struct nib_index_select_args &a, const struct nib_rows &rows, int64_t t,
                                 int head, float *x, struct row_buffers *b)
{
    int64_t col = (int64_t)head * a.dim;
    bool    bf16 = a.q.dtype == NIB_DTYPE_BF16;
    if ((rows.pos[t] + 1) / a.ratio <= a.top_k && !a.scores.data)
        return;
    nib_mat_load_part_block(a.q, t, col, a.dim, x);
    nib_angles_block(a.rope, rows.pos[t] - rows.first_pos, b->angle);
    nib_rotate_block(x, a.dim, a.rope.n_rot, b->angle);
    round_block(x, a.dim, bf16);
    if (a.keys.format == NIB_ROW_FP4) {
        uint8_t *codes = (uint8_t *)(x + a.dim), *scales = codes + a.dim / 2;
        nib_hadamard_block(x, a.dim);
        round_block(x, a.dim, bf16);
        nib_fp4_encode_block(x, a.dim, codes, scales);
        __syncthreads();
        for (int32_t i = threadIdx.x; i < a.dim; i += blockDim.x)
            x[i] = nib_e2m1_value((uint32_t)codes[i / 2] >> (i % 2 * 4)) * nib_e8m0_value(scales[i / 32]);
        __syncthreads();
    }
    for (int32_t i = threadIdx.x; i < a.dim; i += blockDim.x)
        nib_mat_set(a.q, t, col + i, x[i]);
}

#endif
