/* Launches that overlap: a kernel may start while the one before it in the stream still runs, and waits where it first
 * touches memory that others write. Every kernel launched by nib_launch() begins with nib_grid_start(), or with
 * nib_grid_release() and, before its first such access, nib_grid_wait(). Completion of a kernel includes that of all
 * before it, so the order of the stream holds. */
#ifndef NIB_CUDA_LAUNCH_CUH
#define NIB_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "backend/cuda/cuda.h"

/* What a kernel asks of the assembler was measured on Hopper. Where that makes it keep values in memory on other cards,
 * for want of registers, it asks for something else there. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define NIB_ON_HOPPER 1
#define NIB_LAUNCH_BOUNDS(threads, blocks_elsewhere) __launch_bounds__(threads)
#define NIB_BLOCKS(hopper, data_centre, rtx) (hopper)
#else
#define NIB_ON_HOPPER 0
#define NIB_LAUNCH_BOUNDS(threads, blocks_elsewhere) __launch_bounds__(threads, blocks_elsewhere)
#if __CUDA_ARCH__ < 1200
#define NIB_BLOCKS(hopper, data_centre, rtx) (data_centre)
#else /* whose shared memory holds no more */
#define NIB_BLOCKS(hopper, data_centre, rtx) (rtx)
#endif
#endif

/* The next kernel may be scheduled once all blocks of this one have come here. */
static __device__ __forceinline__ void nib_grid_release(void)
{
    asm volatile("griddepcontrol.launch_dependents;");
}

/* Until all kernels before this one are complete and their writes visible. */
static __device__ __forceinline__ void nib_grid_wait(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

static __device__ __forceinline__ void nib_grid_start(void)
{
    nib_grid_release();
    nib_grid_wait();
}

/* Behind the work that waits, kernel<<<grid, threads, bytes, s->handle>>>(args) with that overlap, `cluster` blocks of
 * a row of the grid together (1: no cluster). Errors stay with cudaGetLastError(). */
template <typename... P, typename... A> static void nib_launch_cluster(struct nib_stream *s, unsigned cluster,
                                                                       void (*kernel)(P...), dim3 grid,
                                                                       unsigned threads, size_t bytes, A... args)
{
    if (s->jobs.n > 0 || s->post_waits)
        nib_cuda_flush(s);
    cudaLaunchAttribute attribute[2] = {};
    cudaLaunchConfig_t  config = {};
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    attribute[1].id = cudaLaunchAttributeClusterDimension;
    attribute[1].val.clusterDim.x = cluster;
    attribute[1].val.clusterDim.y = attribute[1].val.clusterDim.z = 1;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = s->handle;
    config.attrs = attribute;
    config.numAttrs = cluster > 1 ? 2 : 1;
    (void)cudaLaunchKernelEx(&config, kernel, args...);
}

template <typename... P, typename... A>
static void nib_launch(struct nib_stream *s, void (*kernel)(P...), dim3 grid, unsigned threads, size_t bytes, A... args)
{
    nib_launch_cluster(s, 1, kernel, grid, threads, bytes, args...);
}

#endif
