/* Which family's kernels run here. Folders of targets that a build does not have are not in it. */
#include "backend/cuda/blackwell/table_blackwell.h"

static const struct nib_blackwell_family *const families[] = {
#ifdef NIB_CUDA_SM100A
    &nib_blackwell_sm100a,
#endif
#ifdef NIB_CUDA_SM120A
    &nib_blackwell_sm120a,
#endif
    NULL,
};

const struct nib_blackwell_family *nib_blackwell_find(void)
{
    struct cudaFuncAttributes          f;
    const struct nib_blackwell_family *found = NULL;
    int                                major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess)
        for (int i = 0; families[i]; i++)
            if (families[i]->major == major && cudaFuncGetAttributes(&f, families[i]->norm) == cudaSuccess)
                found = families[i];
    (void)cudaGetLastError();
    return found;
}
