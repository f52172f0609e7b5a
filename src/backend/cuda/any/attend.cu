/* Attention over window rows and entries in fp32, for every row format and precision of queries.
 *
 * A block takes one query row and 8 heads, a warp a head; it walks the attended rows 32 at a time in ascending order,
 * decoded once for all its heads into shared memory. A lane scores one row of the 32, then owns channels 4 * lane + 128
 * * i of the output. The running maximum starts at the sink, whose weight is 1. */
#include "backend/cuda/attend_cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/attended.cuh"

constexpr int kHeads = 8, kTile = 32;
constexpr int kQuads = 8; /* output channels of a lane / 4: head_dim up to 1024 */
constexpr int kMaxRotary = 512;

static __global__ void __launch_bounds__(32 * kHeads)
    attend_rows(const struct nib_attend_args a, const struct nib_rows rows)
{
    nib_grid_start();
    extern __shared__ float4 memory[];
    __shared__ float         angle[kMaxRotary];
    int64_t                  t = blockIdx.y;
    int d = a.head_dim, d4 = (d + 3) / 4, lane = threadIdx.x % 32, h = blockIdx.x * kHeads + threadIdx.x / 32;
    int stride = d4 * 4 + 4; /* of a row, floats: 16 bytes of padding keep the lanes' reads apart */
    float                   *kv = (float *)memory, *q = kv + kTile * stride + threadIdx.x / 32 * d4 * 4;
    struct nib_attended          at = nib_attended_by(a, rows, t);
    nib_angles_block(a.rope, rows.pos[t] - rows.first_pos, angle);
    for (int i = lane; i < d4 * 4; i += 32)
        q[i] = h < a.n_heads && i < d ? nib_mat_get(a.q, t, (int64_t)h * d + i) : 0;

    float  most = h < a.n_heads ? a.sink[h] : 0, total = 1;
    float4 o[kQuads] = {};
    for (int32_t base = 0; base < at.n; base += kTile) {
        __syncthreads();
        for (int r = threadIdx.x / 32; r < kTile; r += kHeads) {
            int32_t j = base + r;
            if (j >= at.n) {
                for (int i = lane; i < d4 * 4; i += 32)
                    kv[r * stride + i] = 0;
                continue;
            }
            const struct nib_store &store = j < at.n_window ? a.window : a.entries;
            const uint8_t          *row = nib_attended_row(a, at, j);
            for (int i = lane; i < d4 * 4; i += 32)
                kv[r * stride + i] = i < d ? nib_kv_get(store.format, row, d, a.rope.n_rot, i) : 0;
        }
        __syncthreads();
        float sum = 0;
        for (int i = 0; i < d4; i++) {
            float4 x = ((const float4 *)q)[i], y = *(const float4 *)(kv + lane * stride + 4 * i);
            sum = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
        }
        float score = base + lane < at.n ? a.scale * sum : -INFINITY, top = fmaxf(most, score);
        for (int i = 16; i > 0; i /= 2)
            top = fmaxf(top, __shfl_xor_sync(~0u, top, i)); /* passes over NaN; p below does not */
        float p = expf(score - top), fade = expf(most - top);
        most = top;
        total = total * fade + nib_warp_sum(p);
#pragma unroll
        for (int i = 0; i < kQuads; i++) {
            o[i].x *= fade;
            o[i].y *= fade;
            o[i].z *= fade;
            o[i].w *= fade;
        }
        for (int r = 0; r < kTile && base + r < at.n; r++) {
            float w = __shfl_sync(~0u, p, r);
#pragma unroll
            for (int i = 0; i < kQuads; i++) {
                if (lane + 32 * i < d4) {
                    float4 v = *(const float4 *)(kv + r * stride + 4 * (lane + 32 * i));
                    o[i].x = fmaf(w, v.x, o[i].x);
                    o[i].y = fmaf(w, v.y, o[i].y);
                    o[i].z = fmaf(w, v.z, o[i].z);
                    o[i].w = fmaf(w, v.w, o[i].w);
                }
            }
        }
    }
    /* Through the query's place in shared memory, where pairs for the inverse rotation meet. */
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kQuads; i++)
        if (lane + 32 * i < d4)
            ((float4 *)q)[lane + 32 * i] = make_float4(o[i].x / total, o[i].y / total, o[i].z / total, o[i].w / total);
    __syncwarp();
    if (h >= a.n_heads)
        return;
    int n_rot = a.rope.n_rot;
    for (int i = lane; i < n_rot / 2; i += 32)
        nib_rotate_pair(&q[d - n_rot + 2 * i], &q[d - n_rot + 2 * i + 1], angle[i], -angle[n_rot / 2 + i]);
    __syncwarp();
    for (int i = lane; i < d; i += 32)
        nib_mat_set(a.o, t, (int64_t)h * d + i, q[i]);
}

enum nib_status nib_cuda_attend(struct nib_stream *s, const struct nib_attend_args *a)
{
    size_t d4 = ((size_t)a->head_dim + 3) / 4, bytes = (kTile * (d4 * 4 + 4) + kHeads * d4 * 4) * sizeof(float);
    dim3   grid((unsigned)((a->n_heads + kHeads - 1) / kHeads), (unsigned)a->rows->n_rows);
    if (a->rows->n_rows == 0)
        return NIB_OK;
#ifdef NIB_CUDA_SM90A
    if (nib_cuda_attend_wide(s, a))
        return nib_cuda_check(s, cudaGetLastError(), "attend");
#endif
    if (nib_cuda_attend_mma_takes(a))
        return nib_cuda_attend_mma(s, a);
    cudaFuncSetAttribute(attend_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, attend_rows, grid, 32 * kHeads, bytes, *a, *a->rows);
    return nib_cuda_check(s, cudaGetLastError(), "attend");
}
