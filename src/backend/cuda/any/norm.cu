/* Row-wise steps: norm, query norm and rotation, KV insertion, the MTP join and copies of rows. One block a row (a warp a
 * head for queries); each row is read once and written once. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"

constexpr int kThreads = 256;
constexpr int kMaxRotary = 512; /* angles of a row in shared memory */

static __global__ void norm_rows(const struct nib_norm_args a)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ double       buffer[32];
    __shared__ uint32_t     max_buffer[32];
    nib_mat_load_block(a.x, blockIdx.x, a.x.cols, x);
    nib_rms_norm_block(x, a.weight, a.x.cols, a.eps, buffer);
    nib_act_store_block(a.y, blockIdx.x, x, max_buffer);
}

enum nib_status nib_cuda_norm(struct nib_stream *s, const struct nib_norm_args *a)
{
    size_t bytes = (size_t)a->x.cols * sizeof(float);
    if (a->x.rows == 0)
        return NIB_OK;
    cudaFuncSetAttribute(norm_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, norm_rows, (unsigned)a->x.rows, kThreads, bytes, *a);
    return nib_cuda_check(s, cudaGetLastError(), "norm");
}

/* Grid (head groups, rows): a warp a head. */
static __global__ void q_rope_heads(const struct nib_q_rope_args a, const struct nib_rows rows)
{
    nib_grid_start();
    __shared__ float angle[kMaxRotary];
    int64_t          t = blockIdx.y;
    int              h = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_dim;
    nib_angles_block(a.rope, rows.pos[t] - rows.first_pos, angle);
    if (h >= a.n_heads)
        return;
    int64_t col = (int64_t)h * d;
    double  sum = 0;
    bool    bf16 = a.q.dtype == NIB_DTYPE_BF16; /* square, mean, root and product are rounded, as the definition has it */
    for (int i = lane; i < d; i += 32) {
        float v = nib_mat_get(a.q, t, col + i);
        sum += bf16 ? (double)nib_bf16_rounded(v * v) : (double)v * (double)v;
    }
    double mean = nib_warp_sum_f64(sum) / d;
    if (bf16)
        mean = (double)nib_bf16_rounded((float)mean);
    float r = (float)(1.0 / sqrt(mean + (double)a.eps));
    if (bf16)
        r = nib_bf16_rounded(r);
    int first = d - a.rope.n_rot;
    for (int i = lane; i < first; i += 32)
        nib_mat_set(a.q, t, col + i, nib_mat_get(a.q, t, col + i) * r);
    for (int i = lane; i < a.rope.n_rot / 2; i += 32) {
        float even = nib_mat_get(a.q, t, col + first + 2 * i) * r, odd = nib_mat_get(a.q, t, col + first + 2 * i + 1) * r;
        even = bf16 ? nib_bf16_rounded(even) : even;
        odd = bf16 ? nib_bf16_rounded(odd) : odd;
        nib_rotate_pair(&even, &odd, angle[i], angle[a.rope.n_rot / 2 + i]);
        nib_mat_set(a.q, t, col + first + 2 * i, even);
        nib_mat_set(a.q, t, col + first + 2 * i + 1, odd);
    }
}

enum nib_status nib_cuda_q_rope(struct nib_stream *s, const struct nib_q_rope_args *a)
{
    dim3 grid((unsigned)((a->n_heads + 3) / 4), (unsigned)a->rows->n_rows);
    if (a->rows->n_rows == 0)
        return NIB_OK;
    nib_launch(s, q_rope_heads, grid, 128, 0, *a, *a->rows);
    return nib_cuda_check(s, cudaGetLastError(), "q_rope");
}

static __global__ void kv_insert_rows(const struct nib_kv_insert_args a, const struct nib_rows rows)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ float        angle[kMaxRotary];
    __shared__ double       buffer[32];
    __shared__ uint32_t     max_buffer[32];
    int64_t                 t = blockIdx.x;
    int32_t                 d = a.kv.cols, pos = rows.pos[t];
    nib_mat_load_block(a.kv, t, d, x);
    nib_angles_block(a.rope, pos - rows.first_pos, angle);
    nib_rms_norm_block(x, a.norm_weight, d, a.eps, buffer);
    if (a.kv.dtype == NIB_DTYPE_BF16) {
        for (int32_t i = threadIdx.x; i < d; i += blockDim.x)
            x[i] = nib_bf16_rounded(x[i]);
        __syncthreads();
    }
    nib_rotate_block(x, d, a.rope.n_rot, angle);
    if (a.kv.dtype == NIB_DTYPE_BF16) {
        for (int32_t i = threadIdx.x; i < d; i += blockDim.x)
            x[i] = nib_bf16_rounded(x[i]);
        __syncthreads();
    }
    uint8_t *row = nib_store_at(a.window, rows.window_page + rows.seq[t] * rows.page_stride, pos);
    nib_kv_encode_block(a.window.format, x, d, a.rope.n_rot, row, a.window.row_bytes, max_buffer);
}

enum nib_status nib_cuda_kv_insert(struct nib_stream *s, const struct nib_kv_insert_args *a)
{
    if (a->rows->n_rows == 0)
        return NIB_OK;
    nib_launch(s, kv_insert_rows, (unsigned)a->rows->n_rows, 128, (size_t)a->kv.cols * sizeof(float), *a, *a->rows);
    return nib_cuda_check(s, cudaGetLastError(), "kv_insert");
}

static __global__ void mtp_join_rows(const struct nib_mtp_join_args a)
{
    nib_grid_start();
    int64_t t = blockIdx.y;
    int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.n_hc * a.e.cols)
        nib_mat_set(a.h, t, i, nib_mat_get(a.h, t, i) + nib_mat_get(a.e, t, i % a.e.cols));
}

enum nib_status nib_cuda_mtp_join(struct nib_stream *s, const struct nib_mtp_join_args *a)
{
    dim3 grid((unsigned)((a->n_hc * a->e.cols + kThreads - 1) / kThreads), (unsigned)a->h.rows);
    if (a->h.rows == 0)
        return NIB_OK;
    nib_launch(s, mtp_join_rows, grid, kThreads, 0, *a);
    return nib_cuda_check(s, cudaGetLastError(), "mtp_join");
}

template <typename T> static __global__ void copy_rows(const struct nib_copy_rows_args a)
{
    nib_grid_start();
    int32_t from = a.src_row[blockIdx.y], to = a.dst_row[blockIdx.y], i = blockIdx.x * blockDim.x + threadIdx.x;
    if (from >= 0 && to >= 0 && i < a.src.cols)
        ((T *)a.dst.data)[to * a.dst.stride + i] = ((const T *)a.src.data)[from * a.src.stride + i];
}

enum nib_status nib_cuda_copy_rows(struct nib_stream *s, const struct nib_copy_rows_args *a)
{
    dim3 grid((unsigned)((a->src.cols + kThreads - 1) / kThreads), (unsigned)a->n);
    if (a->n == 0 || a->src.cols == 0)
        return NIB_OK;
    if (a->src.dtype == NIB_DTYPE_F32)
        nib_launch(s, copy_rows<float>, grid, kThreads, 0, *a);
    else
        nib_launch(s, copy_rows<uint16_t>, grid, kThreads, 0, *a);
    return nib_cuda_check(s, cudaGetLastError(), "copy_rows");
}
