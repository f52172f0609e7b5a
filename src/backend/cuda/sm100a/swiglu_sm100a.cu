/* SwiGLU and NVFP4 activation rows in one pass, as norm_sm100a.cu: what the second product of an expert takes. */
#include "backend/cuda/sm100a/rows_sm100a.cuh"

/* silu(min(g, limit)) * clamp(u, +-limit), in fp32 after silu; Inf must stay visible, so it does not meet the
 * clamps. */
NIB_DEVICE float swiglu(float g, float u, float limit)
{
    if (!nib_is_finite(g) || !nib_is_finite(u))
        return __uint_as_float(0x7fc00000u);
    if (limit > 0) {
        g = g < limit ? g : limit;
        u = u < -limit ? -limit : u > limit ? limit : u;
    }
    return (float)((double)g / (1 + exp(-(double)g))) * u;
}

extern "C" __global__ void __launch_bounds__(kThreads)
nib_sm100a_swiglu(const __grid_constant__ struct nib_blackwell_swiglu_args a)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ uint32_t max_buffer[32];
    int64_t             row = blockIdx.x;
    enum nib_dtype      dtype = a.f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16;
    float               weight = a.weight ? a.weight[a.pair[row]] : 1.0f;
    struct nib_mat gate = {(void *)a.gate, dtype, 0, a.n_in, a.stride}, up = {(void *)a.up, dtype, 0, a.n_in, a.stride};
    for (int32_t i = threadIdx.x; i < a.n_in; i += kThreads)
        x[i] = swiglu(nib_mat_get(gate, row, i), nib_mat_get(up, row, i), a.limit) * weight;
    __syncthreads();
    nib_nvfp4_row_store(a.y, row, x, a.n_in, max_buffer);
}

extern "C" __global__ void __launch_bounds__(kThreads)
nib_sm100a_swiglu_act(const __grid_constant__ struct nib_blackwell_swiglu_act_args a)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ uint32_t max_buffer[32];
    int64_t             row = blockIdx.x, at = row * a.y.cols;
    float               weight = a.weight ? a.weight[a.pair[row]] : 1.0f;
    for (int32_t i = threadIdx.x; i < a.y.cols; i += kThreads)
        x[i] = swiglu(a.gate[at + i], a.up[at + i], a.limit) * weight;
    __syncthreads();
    nib_act_store_block(a.y, row, x, max_buffer);
}
