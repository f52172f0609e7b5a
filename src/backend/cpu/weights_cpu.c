/* Packed weights: the stored bytes in own memory, row-major, the matrices of a stack one after the other. Nothing is
 * dequantised, so a packed weight takes exactly the stored bytes. */
#include "backend/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

struct cpu_weight {
    struct nib_weight head;
    uint8_t          *memory; /* all codes, then all scales */
    uint8_t          *scales;
    int64_t           codes_stride, scales_stride, codes_bytes, scales_bytes; /* strides of a row, bytes of a matrix */
    float             global_scale[];
};

struct sizes {
    int64_t codes_stride, scales_stride, codes_bytes, scales_bytes;
};

static struct sizes sizes_of(enum nib_weight_type type, int64_t n_out, int64_t n_in)
{
    struct sizes z = {0};
    int64_t      scale_rows = n_out;
    switch (type) {
    case NIB_WEIGHT_F32: z.codes_stride = 4 * n_in; break;
    case NIB_WEIGHT_BF16: z.codes_stride = 2 * n_in; break;
    case NIB_WEIGHT_FP8:
        z.codes_stride = n_in;
        z.scales_stride = (n_in + 127) / 128;
        scale_rows = (n_out + 127) / 128;
        break;
    case NIB_WEIGHT_MXFP4:
        z.codes_stride = n_in / 2;
        z.scales_stride = n_in / 32;
        break;
    case NIB_WEIGHT_NVFP4:
        z.codes_stride = n_in / 2;
        z.scales_stride = n_in / 16;
        break;
    }
    z.codes_bytes = n_out * z.codes_stride;
    z.scales_bytes = scale_rows * z.scales_stride;
    return z;
}

size_t nib_cpu_weight_bytes(const struct nib_weight_desc *d)
{
    struct sizes z = sizes_of(d->type, d->n_out, d->n_in);
    size_t       globals = d->type == NIB_WEIGHT_NVFP4 ? sizeof(float) : 0;
    return (size_t)d->n_stack * ((size_t)(z.codes_bytes + z.scales_bytes) + globals);
}

static enum nib_status desc_check(const struct nib_weight_desc *d, struct nib_error *err)
{
    int32_t multiple = d->type == NIB_WEIGHT_NVFP4 ? 16 : d->type == NIB_WEIGHT_MXFP4 ? 32 : 1;
    if (d->n_stack < 1 || d->n_out < 1 || d->n_in < 1)
        return nib_error_set(err, NIB_E_ARGUMENT, "weight of %d matrices [%d, %d]: every size must be positive",
                             d->n_stack, d->n_out, d->n_in);
    if (d->n_in % multiple)
        return nib_error_set(err, NIB_E_UNSUPPORTED,
                             "weight [%d, %d]: this format needs a multiple of %d input channels", d->n_out, d->n_in,
                             multiple);
    return NIB_OK;
}

enum nib_status nib_cpu_weight_pack(struct nib_backend *b, const struct nib_weight_desc *d, struct nib_weight **out,
                                    struct nib_error *err)
{
    (void)b;
    *out = NULL;
    NIB_TRY(desc_check(d, err));
    struct sizes       z = sizes_of(d->type, d->n_out, d->n_in);
    size_t             n = (size_t)d->n_stack, bytes = n * (size_t)(z.codes_bytes + z.scales_bytes);
    struct cpu_weight *w = calloc(1, sizeof *w + n * sizeof(float));
    void              *memory = NULL;
    if (!w || posix_memalign(&memory, 64, bytes)) {
        free(w);
        return nib_error_set(err, NIB_E_MEMORY, "no memory for a weight of %zu bytes", bytes);
    }
    w->head = (struct nib_weight){d->type, d->act, d->n_stack, d->n_out, d->n_in};
    w->memory = memory;
    w->scales = w->memory + n * (size_t)z.codes_bytes;
    w->codes_stride = z.codes_stride;
    w->scales_stride = z.scales_stride;
    w->codes_bytes = z.codes_bytes;
    w->scales_bytes = z.scales_bytes;
    for (size_t i = 0; i < n; i++) {
        memcpy(w->memory + i * (size_t)z.codes_bytes, d->part[i].data, (size_t)z.codes_bytes);
        if (z.scales_bytes)
            memcpy(w->scales + i * (size_t)z.scales_bytes, d->part[i].scales, (size_t)z.scales_bytes);
        w->global_scale[i] = d->type == NIB_WEIGHT_NVFP4 ? d->part[i].global_scale : 1.0f;
    }
    *out = &w->head;
    return NIB_OK;
}

void nib_cpu_weight_free(struct nib_backend *b, struct nib_weight *weight)
{
    (void)b;
    struct cpu_weight *w = (struct cpu_weight *)weight;
    if (w)
        free(w->memory);
    free(w);
}

struct nib_cpu_matrix nib_cpu_matrix_of(const struct nib_weight *weight, int32_t stack)
{
    const struct cpu_weight *w = (const struct cpu_weight *)weight;
    return (struct nib_cpu_matrix){
        .type = w->head.type,
        .n_out = w->head.n_out,
        .n_in = w->head.n_in,
        .codes = w->memory + stack * w->codes_bytes,
        .scales = w->scales + stack * w->scales_bytes,
        .codes_stride = w->codes_stride,
        .scales_stride = w->scales_stride,
        .global_scale = w->global_scale[stack],
    };
}

struct nib_cpu_matrix nib_cpu_matrix_f32(const float *data, int32_t n_out, int32_t n_in)
{
    return (struct nib_cpu_matrix){
        .type = NIB_WEIGHT_F32,
        .n_out = n_out,
        .n_in = n_in,
        .codes = (const uint8_t *)data,
        .codes_stride = 4 * (int64_t)n_in,
        .global_scale = 1.0f,
    };
}
