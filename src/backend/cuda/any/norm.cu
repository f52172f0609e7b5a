/* The MTP join and copies of rows, element by element. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"

constexpr int kThreads = 256;

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
