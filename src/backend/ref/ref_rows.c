/* Loads, stores, dot products and rotation of the reference backend; see ref.h. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"
#include "number/act_rows.h"
#include "number/kv_rows.h"
#include "number/weight_rows.h"

const float *nib_ref_row(const struct nib_mat *m, int64_t t, float *buffer)
{
    if (m->dtype == NIB_DTYPE_F32)
        return (const float *)m->data + t * m->stride;
    const uint16_t *row = (const uint16_t *)m->data + t * m->stride;
    for (int32_t i = 0; i < m->cols; i++)
        buffer[i] = nib_bf16_to_f32(row[i]);
    return buffer;
}

void nib_ref_store_row(const struct nib_mat *m, int64_t t, const float *row)
{
    if (m->dtype == NIB_DTYPE_F32) {
        memcpy((float *)m->data + t * m->stride, row, (size_t)m->cols * sizeof *row);
        return;
    }
    for (int32_t i = 0; i < m->cols; i++)
        ((uint16_t *)m->data)[t * m->stride + i] = nib_bf16_from_f32(row[i]);
}

void nib_ref_store(const struct nib_mat *m, int64_t t, int64_t column, double v)
{
    if (m->dtype == NIB_DTYPE_F32)
        ((float *)m->data)[t * m->stride + column] = (float)v;
    else
        ((uint16_t *)m->data)[t * m->stride + column] = nib_bf16_from_f32((float)v);
}

void nib_ref_act_store(const struct nib_act *y, int64_t t, float *row)
{
    if (y->plain.data) {
        nib_ref_store_row(&y->plain, t, row);
        for (int32_t i = 0; y->plain.dtype == NIB_DTYPE_BF16 && i < y->cols; i++)
            row[i] = nib_bf16_round(row[i]);
    }
    uint8_t *codes = y->codes + t * y->codes_stride;
    uint8_t *scales = y->scales + t * y->scales_stride;
    switch (y->format) {
    case NIB_ACT_PLAIN: break;
    case NIB_ACT_FP8: nib_fp8_row_encode(row, y->cols, 128, codes, scales); break;
    case NIB_ACT_NVFP4: nib_nvfp4_row_encode(row, y->cols, codes, scales, &y->row_scale[t]); break;
    case NIB_ACT_INT8: nib_int8_row_encode(row, y->cols, (int8_t *)codes, (float *)(void *)scales); break;
    }
}

const float *nib_ref_act_rows(const struct nib_stream *s, const struct nib_act *x, enum nib_act_format format,
                              float *buffer, int64_t *stride)
{
    int32_t n = x->rows, cols = x->cols;
    assert((int64_t)n * cols <= s->dims.n_rows_max * s->n_wide);
    assert(format == NIB_ACT_PLAIN ? x->plain.data != NULL : x->format == format);
    if (format == NIB_ACT_PLAIN && x->plain.dtype == NIB_DTYPE_F32) {
        *stride = x->plain.stride;
        return (const float *)x->plain.data;
    }
    *stride = cols;
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)n * cols))
    for (int32_t t = 0; t < n; t++) {
        float         *row = buffer + (int64_t)t * cols;
        const uint8_t *codes = x->codes + t * x->codes_stride;
        const uint8_t *scales = x->scales + t * x->scales_stride;
        switch (format) {
        case NIB_ACT_PLAIN: nib_ref_row(&x->plain, t, row); break;
        case NIB_ACT_FP8: nib_fp8_row_decode(codes, scales, cols, 128, row); break;
        case NIB_ACT_NVFP4: nib_nvfp4_row_decode(codes, scales, x->row_scale[t], cols, row); break;
        case NIB_ACT_INT8:
            nib_int8_row_decode((const int8_t *)codes, (const float *)(const void *)scales, cols, row);
            break;
        }
    }
    return buffer;
}

void nib_ref_act_round_trip(enum nib_act_format format, float *row, int32_t n, struct nib_ref_thread *th)
{
    float g;
    switch (format) {
    case NIB_ACT_PLAIN: break;
    case NIB_ACT_FP8:
        nib_fp8_row_encode(row, n, 128, th->codes, th->scales);
        nib_fp8_row_decode(th->codes, th->scales, n, 128, row);
        break;
    case NIB_ACT_NVFP4:
        nib_nvfp4_row_encode(row, n, th->codes, th->scales, &g);
        nib_nvfp4_row_decode(th->codes, th->scales, g, n, row);
        break;
    case NIB_ACT_INT8:
        nib_int8_row_encode(row, n, (int8_t *)th->codes, (float *)(void *)th->scales);
        nib_int8_row_decode((const int8_t *)th->codes, (const float *)(void *)th->scales, n, row);
        break;
    }
}

uint8_t *nib_ref_store_at(const struct nib_store *store, const int32_t *page, int64_t i)
{
    int64_t p = page[i / store->page_rows];
    assert(p >= 0);
    return store->base + (p * store->page_rows + i % store->page_rows) * store->row_bytes;
}

void nib_ref_encode(enum nib_row_format format, const float *x, int32_t d, int32_t n_rot, uint8_t *row)
{
    switch (format) {
    case NIB_ROW_F32: nib_kv_f32_encode(x, d, row); break;
    case NIB_ROW_BF16: nib_kv_bf16_encode(x, d, row); break;
    case NIB_ROW_FP8: nib_kv_fp8_encode(x, d, n_rot, row); break;
    case NIB_ROW_NVFP4: nib_kv_nvfp4_encode(x, d, n_rot, row); break;
    case NIB_ROW_FP4: nib_kv_fp4_encode(x, d, row); break;
    }
}

void nib_ref_decode(enum nib_row_format format, const uint8_t *row, int32_t d, int32_t n_rot, float *x)
{
    switch (format) {
    case NIB_ROW_F32: nib_kv_f32_decode(row, d, x); break;
    case NIB_ROW_BF16: nib_kv_bf16_decode(row, d, x); break;
    case NIB_ROW_FP8: nib_kv_fp8_decode(row, d, n_rot, x); break;
    case NIB_ROW_NVFP4: nib_kv_nvfp4_decode(row, d, n_rot, x); break;
    case NIB_ROW_FP4: nib_kv_fp4_decode(row, d, x); break;
    }
}

const double *nib_ref_weight_row(const struct nib_weight *w, int32_t i, int32_t o, double *buffer)
{
    const struct nib_weight_part *part = &((const struct nib_ref_weight *)w)->part[i];
    const uint8_t *codes = part->data, *scales = part->scales;
    int64_t n = w->n_in;
    switch (w->type) {
    case NIB_WEIGHT_F32:
        for (int64_t k = 0; k < n; k++) {
            float v; /* tensors in a file need not be aligned */
            memcpy(&v, codes + 4 * (o * n + k), sizeof v);
            buffer[k] = (double)v;
        }
        break;
    case NIB_WEIGHT_BF16:
        for (int64_t k = 0; k < n; k++) {
            uint16_t v;
            memcpy(&v, codes + 2 * (o * n + k), sizeof v);
            buffer[k] = (double)nib_bf16_to_f32(v);
        }
        break;
    case NIB_WEIGHT_FP8: nib_fp8_weight_decode(codes + o * n, scales + o / 128 * ((n + 127) / 128), n, buffer); break;
    case NIB_WEIGHT_MXFP4: nib_mxfp4_weight_decode(codes + o * (n / 2), scales + o * (n / 32), n, buffer); break;
    case NIB_WEIGHT_NVFP4: nib_nvfp4_weight_decode(codes + o * (n / 2), scales + o * (n / 16), n, buffer); break;
    }
    return buffer;
}

double nib_ref_weight_scale(const struct nib_weight *w, int32_t i)
{
    return w->type == NIB_WEIGHT_NVFP4 ? (double)((const struct nib_ref_weight *)w)->part[i].global_scale : 1.0;
}

/* The eight partial sums of a dot product, in a fixed order. */
static double fold(const double *sum)
{
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

double nib_ref_dot(const double *a, const float *b, int64_t n)
{
    double  sum[8] = {0};
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) {
        for (int64_t j = 0; j < 8; j++)
            sum[j] += a[k + j] * (double)b[k + j];
    }
    for (; k < n; k++)
        sum[k % 8] += a[k] * (double)b[k];
    return fold(sum);
}

double nib_ref_dot_f32(const float *a, const float *b, int64_t n)
{
    double  sum[8] = {0};
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) {
        for (int64_t j = 0; j < 8; j++)
            sum[j] += (double)a[k + j] * (double)b[k + j];
    }
    for (; k < n; k++)
        sum[k % 8] += (double)a[k] * (double)b[k];
    return fold(sum);
}

void nib_ref_rms_norm(const float *x, const float *weight, int32_t n, float eps, float *y)
{
    float mean = (float)(nib_ref_dot_f32(x, x, n) / n);
    float r = (float)(1 / sqrt((double)(mean + eps)));
    for (int32_t i = 0; i < n; i++)
        y[i] = x[i] * r * weight[i];
}

void nib_ref_angles(const struct nib_rope *rope, int32_t pos, float *angle)
{
    int32_t n = rope->n_rot / 2;
    for (int32_t i = 0; i < n; i++) {
        /* The product is rounded to fp32 by definition: the model was trained with these angles. */
        float a = (float)pos * rope->freq[i];
        angle[i] = (float)cos((double)a);
        angle[n + i] = (float)sin((double)a);
    }
}

void nib_ref_rotate(float *x, int32_t d, int32_t n_rot, const float *angle, bool inverse)
{
    for (int32_t i = 0; i < n_rot / 2; i++) {
        float *pair = x + d - n_rot + 2 * i;
        float  c = angle[i], s = inverse ? -angle[n_rot / 2 + i] : angle[n_rot / 2 + i];
        float  even = pair[0], odd = pair[1];
        pair[0] = even * c - odd * s;
        pair[1] = even * s + odd * c;
    }
}

double nib_ref_sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}
