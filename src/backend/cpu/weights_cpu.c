/* Packed weights: the stored bytes in own memory, row-major, the matrices of a stack one after the other. Nothing is
 * dequantised, and groups of 128 channels only change their order (see struct nib_cpu_matrix), so a packed weight takes
 * exactly the stored bytes. */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

/* Blocks of 16 4-bit codes: their first halves side by side, then the second ones. */
static void halves_pack(int32_t n_blocks, const uint8_t *src, uint8_t *dst)
{
    for (int32_t b = 0; b < n_blocks; b++)
        for (int32_t half = 0; half < 2; half++)
            memcpy(dst + 4 * n_blocks * half + 4 * b, src + 8 * b + 4 * half, 4);
}

/* One row of codes in packed order. */
static void row_pack(const struct nib_cpu_order *order, enum nib_weight_type type, int32_t n_in, const uint8_t *src,
                     uint8_t *dst)
{
    int32_t n_groups = n_in / NIB_CPU_GROUP, k = n_groups * NIB_CPU_GROUP;
    for (int32_t g = 0; g < n_groups; g++)
        switch (type) {
        case NIB_WEIGHT_F32: break;
        case NIB_WEIGHT_BF16:
            for (int32_t i = 0; i < NIB_CPU_GROUP; i++)
                memcpy(dst + 2 * (g * NIB_CPU_GROUP + i), src + 2 * (g * NIB_CPU_GROUP + order->bf16[i]), 2);
            break;
        case NIB_WEIGHT_FP8:
            for (int32_t i = 0; i < NIB_CPU_GROUP; i++)
                dst[g * NIB_CPU_GROUP + i] = src[g * NIB_CPU_GROUP + order->fp8[i]];
            break;
        case NIB_WEIGHT_MXFP4:
        case NIB_WEIGHT_NVFP4:
            halves_pack(8, src + 64 * g, dst + 64 * g);
            break;
        }
    if (type == NIB_WEIGHT_MXFP4 || type == NIB_WEIGHT_NVFP4) {
        halves_pack((n_in - k) / 16, src + k / 2, dst + k / 2);
        return;
    }
    int64_t done = type == NIB_WEIGHT_F32 ? 0 : type == NIB_WEIGHT_BF16 ? 2 * k : k;
    int64_t all = type == NIB_WEIGHT_F32 ? 4 * (int64_t)n_in : type == NIB_WEIGHT_BF16 ? 2 * (int64_t)n_in : n_in;
    memcpy(dst + done, src + done, (size_t)(all - done));
}

/* Large weights on large pages where the system has them: a decode step touches every page once. */
static void *weight_memory(size_t bytes)
{
    const size_t large = (size_t)2 << 20;
    void        *memory = NULL;
    if (posix_memalign(&memory, bytes >= 2 * large ? large : 64, bytes))
        return NULL;
    if (bytes >= 2 * large)
        (void)madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

enum nib_status nib_cpu_weight_pack(struct nib_backend *b, const struct nib_weight_desc *d, struct nib_weight **out,
                                    struct nib_error *err)
{
    const struct nib_stream *s = nib_backend_cpu.stream(b);
    *out = NULL;
    NIB_TRY(desc_check(d, err));
    struct sizes       z = sizes_of(d->type, d->n_out, d->n_in);
    size_t             n = (size_t)d->n_stack, bytes = n * (size_t)(z.codes_bytes + z.scales_bytes);
    struct cpu_weight *w = calloc(1, sizeof *w + n * sizeof(float));
    void              *memory = w ? weight_memory(bytes + 64) : NULL; /* a last part of a group is read as a full one */
    if (!memory) {
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
    for (int32_t i = 0; i < d->n_stack; i++) {
        const uint8_t *src = d->part[i].data;
        uint8_t       *dst = w->memory + i * z.codes_bytes;
#pragma omp parallel for num_threads(nib_cpu_threads(s, z.codes_bytes)) schedule(static)
        for (int32_t o = 0; o < d->n_out; o++)
            row_pack(&s->k.order, d->type, d->n_in, src + o * z.codes_stride, dst + o * z.codes_stride);
        if (z.scales_bytes)
            memcpy(w->scales + i * z.scales_bytes, d->part[i].scales, (size_t)z.scales_bytes);
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

void nib_cpu_weight_row(const struct nib_stream *s, const struct nib_weight *weight, int32_t row, float *dst)
{
    struct nib_cpu_matrix w = nib_cpu_matrix_of(weight, 0);
    const uint8_t        *codes = w.codes + row * w.codes_stride;
    assert(w.type == NIB_WEIGHT_F32 || w.type == NIB_WEIGHT_BF16);
    if (w.type == NIB_WEIGHT_F32) {
        memcpy(dst, codes, 4 * (size_t)w.n_in);
        return;
    }
    int32_t k = 0;
    for (; k + NIB_CPU_GROUP <= w.n_in; k += NIB_CPU_GROUP) {
        float group[NIB_CPU_GROUP];
        s->k.bf16_decode((const uint16_t *)(const void *)codes + k, group, NIB_CPU_GROUP);
        for (int32_t i = 0; i < NIB_CPU_GROUP; i++)
            dst[k + s->k.order.bf16[i]] = group[i];
    }
    s->k.bf16_decode((const uint16_t *)(const void *)codes + k, dst + k, w.n_in - k);
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
