/* Norm and NVFP4 activation rows in one pass: a block a row, which is read once and stays in shared memory. Bytes:
 * 2 or 4 in, 0.5625 out a value. */
#include "backend/cuda/sm100a/rows_sm100a.cuh"

static __device__ __forceinline__ void load_row(const struct nib_blackwell_norm_args &a, int64_t row, float *x)
{
    struct nib_mat m = {(void *)a.x, a.x_f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, 0, a.n_in, a.x_stride};
    nib_mat_load_block(m, row, a.n_in, x);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    nib_sm100a_norm(const __grid_constant__ struct nib_blackwell_norm_args a)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ double   buffer[32];
    __shared__ uint32_t max_buffer[32];
    int64_t             row = blockIdx.x;
    load_row(a, row, x);
    if (a.weight)
        nib_rms_norm_block(x, a.weight, a.n_in, a.eps, buffer);
    if (a.plain)
        nib_row_store_plain({a.plain, a.plain_f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, 0, a.n_in, a.plain_stride}, row, x,
                            a.n_in);
    nib_nvfp4_row_store(a.y, row, x, a.n_in, max_buffer);
}
