/* NVFP4 activation rows on sm_120a in one pass over what they are made of: after RMS norm, or SwiGLU of gate and up. A
 * block a row, which is read once and stays in shared memory. Bytes: 2 or 4 in (8 of gate and up), 0.5625 out a
 * value. */
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/nvfp4_rows.cuh"
#include "backend/cuda/sm120a/sm120a.h"
#include "backend/cuda/device/swiglu.cuh"

static __device__ __forceinline__ enum nib_dtype dtype_of(int32_t f32)
{
    return f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16;
}

static __device__ __forceinline__ void store_row(const struct nib_blackwell_rows &q, int64_t row, const float *x,
                                                 int32_t n_in, uint32_t *max_buffer)
{
    nib_nvfp4_row_encode(x, n_in, q.codes + row * q.codes_stride, q.scales + row * q.scales_stride, 4,
                         (n_in / 16 + 3) / 4 * 4, q.row_scale + row, max_buffer);
}

extern "C" __global__ void __launch_bounds__(kRowThreads)
nib_sm120a_norm(const __grid_constant__ struct nib_blackwell_norm_args a)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ double   buffer[32];
    __shared__ uint32_t max_buffer[32];
    int64_t             row = blockIdx.x;
    nib_mat_load_block({(void *)a.x, dtype_of(a.x_f32), 0, a.n_in, a.x_stride}, row, a.n_in, x);
    if (a.weight)
        nib_rms_norm_block(x, a.weight, a.n_in, a.eps, buffer);
    if (a.plain)
        nib_row_store_plain({a.plain, dtype_of(a.plain_f32), 0, a.n_in, a.plain_stride}, row, x, a.n_in);
    store_row(a.y, row, x, a.n_in, max_buffer);
}

extern "C" __global__ void __launch_bounds__(kRowThreads)
nib_sm120a_swiglu(const __grid_constant__ struct nib_blackwell_swiglu_args a)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ uint32_t max_buffer[32];
    int64_t             row = blockIdx.x;
    float               weight = a.weight ? a.weight[a.pair[row]] : 1.0f;
    struct nib_mat                        gate = {(void *)a.gate, dtype_of(a.f32), 0, a.n_in, a.stride},
                   up = {(void *)a.up, dtype_of(a.f32), 0, a.n_in, a.stride};
    for (int32_t i = threadIdx.x; i < a.n_in; i += kRowThreads)
        x[i] = (a.up ? nib_swiglu(nib_mat_get(gate, row, i), nib_mat_get(up, row, i), a.limit) : nib_mat_get(gate, row, i)) *
               weight;
    __syncthreads();
    store_row(a.y, row, x, a.n_in, max_buffer);
}

extern "C" __global__ void __launch_bounds__(kRowThreads)
nib_sm120a_swiglu_act(const __grid_constant__ struct nib_blackwell_swiglu_act_args a)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ uint32_t max_buffer[32];
    int64_t             row = blockIdx.x, at = row * a.y.cols;
    float               weight = a.weight ? a.weight[a.pair[row]] : 1.0f;
    for (int32_t i = threadIdx.x; i < a.y.cols; i += kRowThreads)
        x[i] = (a.up ? nib_swiglu(a.gate[at + i], a.up[at + i], a.limit) : a.gate[at + i]) * weight;
    __syncthreads();
    nib_act_store_block(a.y, row, x, max_buffer);
}
