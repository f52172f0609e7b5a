/* The list of backends, and the sizes of quantised rows that every backend shares. */
#include "backend/backend.h"

#include <string.h>

#include "backend/meter.h"
#include "number/kv_rows.h"

#ifdef NIB_CUDA
#include "backend/cuda/backend_cuda.h"
#endif

static const struct nib_backend_api *const backends[] = {&nib_backend_ref, &nib_backend_cpu,
#ifdef NIB_CUDA
                                                         &nib_backend_cuda,
#endif
                                                         NULL};

const struct nib_backend_api *const *nib_backends(void)
{
    return backends;
}

const struct nib_backend_api *nib_backend_find(const char *name)
{
    for (const struct nib_backend_api *const *b = backends; name && *b; b++) {
        if (strcmp((*b)->name, name) == 0)
            return *b;
    }
    return NULL;
}

const struct nib_meter *nib_meter_of(const struct nib_backend_api *api)
{
#ifdef NIB_CUDA
    if (api == &nib_backend_cuda)
        return &nib_cuda_meter;
#endif
    (void)api;
    return NULL;
}

static int64_t stride(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int64_t blocks(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

int64_t nib_act_codes_stride(enum nib_act_format format, int32_t cols)
{
    switch (format) {
    case NIB_ACT_FP8:
    case NIB_ACT_INT8: return stride(cols);
    case NIB_ACT_NVFP4: return stride(blocks(cols, 2));
    case NIB_ACT_PLAIN: break;
    }
    return 0;
}

int64_t nib_act_scales_stride(enum nib_act_format format, int32_t cols)
{
    switch (format) {
    case NIB_ACT_FP8: return stride(blocks(cols, 128));
    case NIB_ACT_NVFP4: return stride(blocks(cols, 16));
    case NIB_ACT_INT8: return stride(4 * blocks(cols, 32));
    case NIB_ACT_PLAIN: break;
    }
    return 0;
}

int64_t nib_row_bytes(enum nib_row_format format, int32_t d, int32_t n_rot)
{
    switch (format) {
    case NIB_ROW_F32: return nib_kv_f32_bytes(d);
    case NIB_ROW_BF16: return nib_kv_bf16_bytes(d);
    case NIB_ROW_FP8: return nib_kv_fp8_bytes(d, n_rot);
    case NIB_ROW_NVFP4: return nib_kv_nvfp4_bytes(d, n_rot);
    case NIB_ROW_FP4: return nib_kv_fp4_bytes(d);
    }
    return 0;
}
