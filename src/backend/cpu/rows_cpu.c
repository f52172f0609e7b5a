/* Rows in and out of memory: BF16 and quantised activations, KV rows in their storage formats; and the row arithmetic
 * that several ops share (norm, rotation, Hadamard). */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const float *nib_cpu_row_read(const struct nib_stream *s, const struct nib_mat *m, int64_t row, int32_t c, int32_t n,
                              float *buffer)
{
    if (m->dtype == NIB_DTYPE_F32)
        return (const float *)nib_cpu_row(m, row) + c;
    s->k.bf16_decode((const uint16_t *)nib_cpu_row(m, row) + c, buffer, n);
    return buffer;
}

void nib_cpu_row_write(const struct nib_stream *s, const struct nib_mat *m, int64_t row, int32_t c, int32_t n,
                       const float *x)
{
    if (m->dtype == NIB_DTYPE_F32)
        memcpy((float *)nib_cpu_row(m, row) + c, x, sizeof(float) * (size_t)n);
    else
        s->k.bf16_encode(x, (uint16_t *)nib_cpu_row(m, row) + c, n);
}

void nib_cpu_act_write(const struct nib_stream *s, const struct nib_act *y, int64_t t, float *x)
{
    int32_t n = y->cols;
    if (y->plain.data) {
        if (y->plain.dtype == NIB_DTYPE_BF16)
            s->k.bf16_round(x, n);
        nib_cpu_row_write(s, &y->plain, t, 0, n, x);
    }
    uint8_t *codes = y->codes + t * y->codes_stride, *scales = y->scales + t * y->scales_stride;
    switch (y->format) {
    case NIB_ACT_PLAIN: break;
    case NIB_ACT_FP8: s->k.fp8_encode(x, n, 128, codes, scales); break;
    case NIB_ACT_NVFP4: s->k.nvfp4_encode(x, n, codes, scales, y->row_scale + t); break;
    case NIB_ACT_INT8: s->k.int8_encode(x, n, codes, (float *)(void *)scales); break;
    }
}

void nib_cpu_rms_norm(const struct nib_stream *s, float *x, const float *weight, float eps, int32_t n)
{
    s->k.scale_by(x, weight, nib_cpu_rms_factor(s, x, eps, n), n);
}

float nib_cpu_rms_factor(const struct nib_stream *s, const float *x, float eps, int32_t n)
{
    float mean = (float)(s->k.sum_squares(x, n) / n);
    return (float)(1 / sqrt((double)(mean + eps)));
}

void nib_cpu_angles(const struct nib_stream *s, const struct nib_rope *rope, int32_t pos, float *angle)
{
    s->k.rotary_angles(rope->freq, rope->n_rot, (float)pos, angle);
}

void nib_cpu_rotate(const struct nib_stream *s, float *x, int32_t d, int32_t n_rot, const float *angle, bool inverse)
{
    s->k.rotate(x + d - n_rot, n_rot, angle, inverse);
}

void nib_cpu_hadamard(const struct nib_stream *s, float *x, int32_t n)
{
    assert(n > 0 && (n & (n - 1)) == 0);
    s->k.hadamard(x, n, (float)(1 / sqrt((double)n)));
}

/* Parts of a stored row; see enum nib_row_format. */
struct parts {
    uint8_t *codes, *scales, *row_scale, *rotary;
};

static struct parts parts_of(enum nib_row_format f, uint8_t *row, int32_t d, int32_t n_rot)
{
    int32_t n = d - n_rot;
    if (f == NIB_ROW_FP8)
        return (struct parts){.codes = row, .rotary = row + n, .scales = row + n + 2 * n_rot};
    if (f == NIB_ROW_NVFP4) {
        uint8_t *scales = row + (n + 1) / 2;
        int32_t  row_scale_at = ((n + 1) / 2 + (n + 15) / 16 + 3) / 4 * 4;
        return (struct parts){row, scales, row + row_scale_at, row + row_scale_at + 4};
    }
    return (struct parts){.codes = row, .scales = row + (d + 1) / 2}; /* FP4 */
}

void nib_cpu_kv_write(const struct nib_stream *s, const struct nib_store *st, const float *x, int32_t d, int32_t n_rot,
                      uint8_t *row)
{
    int32_t      n = d - n_rot;
    struct parts p = parts_of(st->format, row, d, n_rot);
    memset(row, 0, (size_t)st->row_bytes); /* padding */
    switch (st->format) {
    case NIB_ROW_F32: memcpy(row, x, sizeof(float) * (size_t)d); break;
    case NIB_ROW_BF16: s->k.bf16_encode(x, (uint16_t *)(void *)row, d); break;
    case NIB_ROW_FP8:
        s->k.fp8_encode(x, n, 64, p.codes, p.scales);
        s->k.bf16_encode(x + n, (uint16_t *)(void *)p.rotary, n_rot);
        break;
    case NIB_ROW_NVFP4: {
        float g;
        s->k.nvfp4_encode(x, n, p.codes, p.scales, &g);
        memcpy(p.row_scale, &g, sizeof g);
        s->k.bf16_encode(x + n, (uint16_t *)(void *)p.rotary, n_rot);
        break;
    }
    case NIB_ROW_FP4: s->k.fp4_encode(x, d, p.codes, p.scales); break;
    }
}

void nib_cpu_kv_read(const struct nib_stream *s, enum nib_row_format f, const uint8_t *row, int32_t d, int32_t n_rot,
                     float *x)
{
    int32_t n = d - n_rot;
    /* The parts of a row are the same for reading; nothing below writes through them. */
    struct parts p = parts_of(f, (uint8_t *)(uintptr_t)row, d, n_rot);
    switch (f) {
    case NIB_ROW_F32: memcpy(x, row, sizeof(float) * (size_t)d); break;
    case NIB_ROW_BF16: s->k.bf16_decode((const uint16_t *)(const void *)row, x, d); break;
    case NIB_ROW_FP8:
        s->k.fp8_decode(p.codes, p.scales, n, 64, x);
        s->k.bf16_decode((const uint16_t *)(void *)p.rotary, x + n, n_rot);
        break;
    case NIB_ROW_NVFP4: {
        float g;
        memcpy(&g, p.row_scale, sizeof g);
        s->k.nvfp4_decode(p.codes, p.scales, g, n, x);
        s->k.bf16_decode((const uint16_t *)(void *)p.rotary, x + n, n_rot);
        break;
    }
    case NIB_ROW_FP4: s->k.fp4_decode(p.codes, p.scales, d, x); break;
    }
}
