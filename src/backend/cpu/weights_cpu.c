/* Packed weights: the stored values in own memory, by panels of 16 outputs (see struct nib_cpu_matrix), the matrices of a
 * stack one after the other. Nothing is dequantised: a packed weight takes the stored bytes, with zeros up to a whole panel
 * and block. */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

struct cpu_weight {
    struct nib_weight head;
    uint8_t          *memory; /* all codes, then all scales */
    uint8_t          *scales;
    int64_t           codes_stride, scales_stride, codes_bytes, scales_bytes; /* strides as in a matrix, bytes of one */
    uint8_t          *least;                                                  /* of a matrix, or NULL; behind global_scale */
    float             global_scale[];
};

struct sizes {
    int64_t codes_stride, scales_stride, codes_bytes, scales_bytes;
};

static int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static struct sizes sizes_of(enum nib_weight_type type, int64_t n_out, int64_t n_in)
{
    struct sizes z = {0};
    int64_t      panels = up_to(n_out, NIB_CPU_PANEL) / NIB_CPU_PANEL, scale_rows = panels;
    int64_t      values = NIB_CPU_PANEL * up_to(n_in, NIB_CPU_BLOCK);
    switch (type) {
    case NIB_WEIGHT_F32:
        z.codes_stride = 4 * n_in;
        panels = n_out;
        break;
    case NIB_WEIGHT_BF16: z.codes_stride = 2 * values; break;
    case NIB_WEIGHT_FP8:
        z.codes_stride = values;
        z.scales_stride = up_to(n_in, 128) / 128;
        scale_rows = up_to(n_out, 128) / 128;
        break;
    case NIB_WEIGHT_MXFP4:
        z.codes_stride = values / 2;
        z.scales_stride = values / 32;
        break;
    case NIB_WEIGHT_NVFP4:
        z.codes_stride = values / 2;
        z.scales_stride = values / 16;
        break;
    }
    z.codes_bytes = panels * z.codes_stride;
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

/* One panel of 4-bit codes from stored rows of `stride` bytes. Pairs of bytes stay together, and n_in is whole octets. */
static void panel_pack_fp4(const uint8_t *order, const uint8_t *src, int64_t stride, int32_t n_out, int32_t n_in,
                           uint8_t *dst)
{
    for (int32_t k = 0; k < n_in; k += NIB_CPU_OCTET, dst += NIB_CPU_PANEL * NIB_CPU_OCTET / 2)
        for (int32_t i = 0; i < NIB_CPU_PANEL * NIB_CPU_OCTET / 2; i += 2)
            if (order[i] / 4 < n_out)
                memcpy(dst + i, src + order[i] / 4 * stride + k / 2 + order[i] % 4, 2);
}

/* The same of values of `size` bytes, any number of channels. */
static void panel_pack_values(const uint8_t *order, int32_t size, const uint8_t *src, int64_t stride, int32_t n_out,
                              int32_t n_in, uint8_t *dst)
{
    for (int32_t k = 0; k < n_in; k += NIB_CPU_OCTET, dst += NIB_CPU_PANEL * NIB_CPU_OCTET * size)
        for (int32_t i = 0; i < NIB_CPU_PANEL * NIB_CPU_OCTET; i++)
            if (order[i] / 8 < n_out && k + order[i] % 8 < n_in)
                memcpy(dst + i * size, src + order[i] / 8 * stride + (k + order[i] % 8) * size, (size_t)size);
}

/* The codes of n_out <= 16 rows as a panel, whose memory is zero. */
static void panel_pack(const struct nib_cpu_order *order, enum nib_weight_type type, const uint8_t *src, int32_t n_out,
                       int32_t n_in, uint8_t *dst)
{
    switch (type) {
    case NIB_WEIGHT_F32: break;
    case NIB_WEIGHT_BF16: panel_pack_values(order->bf16, 2, src, 2 * (int64_t)n_in, n_out, n_in, dst); break;
    case NIB_WEIGHT_FP8: panel_pack_values(order->fp8, 1, src, n_in, n_out, n_in, dst); break;
    case NIB_WEIGHT_MXFP4:
    case NIB_WEIGHT_NVFP4: panel_pack_fp4(order->fp4, src, n_in / 2, n_out, n_in, dst); break;
    }
}

/* The least exponent field of a panel's BF16 values that are not 0, else 255. */
static uint8_t panel_least(const uint8_t *codes, int64_t bytes)
{
    int least = 255;
    for (int64_t i = 0; i < bytes; i += 2) {
        const int bits = (codes[i + 1] << 8 | codes[i]) & 0x7fff, exponent = bits ? bits >> 7 : 255;
        least = exponent < least ? exponent : least;
    }
    return (uint8_t)least;
}

/* n scales of n_out <= 16 rows, side by side. */
static void panel_pack_scales(const uint8_t *src, int32_t n, int32_t n_out, uint8_t *dst)
{
    for (int32_t b = 0; b < n; b++)
        for (int32_t o = 0; o < n_out; o++)
            dst[b * NIB_CPU_PANEL + o] = src[o * n + b];
}

static void matrix_pack(const struct nib_stream *s, const struct nib_weight_desc *d, const struct sizes *z,
                        const struct nib_weight_part *part, uint8_t *codes, uint8_t *scales, uint8_t *least)
{
    const uint8_t *src = part->data, *src_scales = part->scales;
    int64_t        src_stride = d->type == NIB_WEIGHT_BF16  ? 2 * (int64_t)d->n_in
                                : d->type == NIB_WEIGHT_FP8 ? d->n_in
                                                            : d->n_in / 2;
    bool           fp4 = d->type == NIB_WEIGHT_MXFP4 || d->type == NIB_WEIGHT_NVFP4;
    int32_t        n_scales = d->n_in / (d->type == NIB_WEIGHT_NVFP4 ? 16 : 32);
    if (d->type == NIB_WEIGHT_F32) {
        memcpy(codes, src, (size_t)z->codes_bytes);
        return;
    }
    if (d->type == NIB_WEIGHT_FP8)
        memcpy(scales, src_scales, (size_t)z->scales_bytes);
#pragma omp parallel for num_threads(nib_cpu_threads(s, z->codes_bytes)) schedule(static)
    for (int32_t out = 0; out < d->n_out; out += NIB_CPU_PANEL) {
        int32_t n_out = d->n_out - out < NIB_CPU_PANEL ? d->n_out - out : NIB_CPU_PANEL;
        int64_t panel = out / NIB_CPU_PANEL;
        if (n_out < NIB_CPU_PANEL || d->n_in % NIB_CPU_BLOCK) {
            memset(codes + panel * z->codes_stride, 0, (size_t)z->codes_stride);
            if (fp4)
                memset(scales + panel * z->scales_stride, 0, (size_t)z->scales_stride);
        }
        panel_pack(&s->k.order, d->type, src + out * src_stride, n_out, d->n_in, codes + panel * z->codes_stride);
        if (least)
            least[panel] = panel_least(codes + panel * z->codes_stride, z->codes_stride);
        if (fp4)
            panel_pack_scales(src_scales + (int64_t)out * n_scales, n_scales, n_out, scales + panel * z->scales_stride);
    }
}

enum nib_status nib_cpu_weight_pack(struct nib_backend *b, const struct nib_weight_desc *d, struct nib_weight **out,
                                    struct nib_error *err)
{
    const struct nib_stream *s = nib_backend_cpu.stream(b);
    *out = NULL;
    NIB_TRY(desc_check(d, err));
    struct sizes       z = sizes_of(d->type, d->n_out, d->n_in);
    size_t             n = (size_t)d->n_stack, bytes = n * (size_t)(z.codes_bytes + z.scales_bytes);
    const bool         bf16 = s->k.tile_bf16 && d->type == NIB_WEIGHT_BF16;
    const size_t       n_least = bf16 ? (size_t)(z.codes_bytes / z.codes_stride) : 0;
    struct cpu_weight *w = calloc(1, sizeof *w + n * (sizeof(float) + n_least));
    void              *memory = w ? nib_cpu_memory(bytes) : NULL;
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
    w->least = bf16 ? (uint8_t *)(w->global_scale + n) : NULL;
    for (int32_t i = 0; i < d->n_stack; i++) {
        matrix_pack(s, d, &z, &d->part[i], w->memory + i * z.codes_bytes, w->scales + i * z.scales_bytes,
                    bf16 ? w->least + (size_t)i * n_least : NULL);
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
        .least = w->least ? w->least + stack * (w->codes_bytes / w->codes_stride) : NULL,
    };
}

void nib_cpu_weight_row(const struct nib_stream *s, const struct nib_weight *weight, int32_t row, float *dst)
{
    struct nib_cpu_matrix w = nib_cpu_matrix_of(weight, 0);
    assert(w.type == NIB_WEIGHT_F32 || w.type == NIB_WEIGHT_BF16);
    if (w.type == NIB_WEIGHT_F32) {
        memcpy(dst, w.codes + row * w.codes_stride, 4 * (size_t)w.n_in);
        return;
    }
    const uint8_t *octet = w.codes + row / NIB_CPU_PANEL * w.codes_stride;
    int32_t        place[NIB_CPU_OCTET];
    for (int32_t i = 0; i < NIB_CPU_PANEL * NIB_CPU_OCTET; i++)
        if (s->k.order.bf16[i] / NIB_CPU_OCTET == row % NIB_CPU_PANEL)
            place[s->k.order.bf16[i] % NIB_CPU_OCTET] = 2 * i;
    for (int32_t k = 0; k < w.n_in; k += NIB_CPU_OCTET, octet += 2 * NIB_CPU_PANEL * NIB_CPU_OCTET)
        for (int32_t i = 0; i < NIB_CPU_OCTET && k + i < w.n_in; i++) {
            uint8_t bits[4] = {0, 0, octet[place[i]], octet[place[i] + 1]};
            memcpy(dst + k + i, bits, sizeof bits);
        }
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
