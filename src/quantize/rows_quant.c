/* Pieces of a matrix as rows for the kernels. FP8 and MXFP4 values have few significant bits, so they are BF16 numbers
 * unless their exponents are extreme; then, and under F32 scales, rows are F32. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "quantize/quant.h"

enum { FP8_BLOCK = 128, MXFP4_BLOCK = 32 };
#define SLICE_BYTES ((int64_t)256 << 10)

static int64_t row_bytes(const struct nib_quant_matrix *m)
{
    switch (m->type) {
    case NIB_WEIGHT_F32: return m->cols * 4;
    case NIB_WEIGHT_BF16: return m->cols * 2;
    case NIB_WEIGHT_FP8: return m->cols;
    case NIB_WEIGHT_MXFP4:
    case NIB_WEIGHT_NVFP4: return m->cols / 2;
    }
    return 0;
}

static int64_t scale_row_bytes(const struct nib_quant_matrix *m)
{
    return m->type == NIB_WEIGHT_MXFP4   ? m->cols / MXFP4_BLOCK
           : m->type == NIB_WEIGHT_NVFP4 ? m->cols / NIB_QUANT_BLOCK
                                         : 0;
}

/* Matrices of a kind follow each other: memory once touched is worth keeping. */
static void *take(struct nib_quant_buffer *b, size_t bytes)
{
    if (!b->at || b->bytes < bytes || b->bytes / 4 > bytes) {
        free(b->at);
        b->at = malloc(bytes + 1);
        b->bytes = b->at ? bytes : 0;
    }
    return b->at;
}

/* The FP8 scales are few: read at once, and told whether they keep every value within BF16. */
static enum nib_status read_fp8_scales(struct nib_quant_rows *r, const struct nib_quant_plan *p, bool *narrow,
                                       struct nib_error *err)
{
    const struct nib_quant_matrix *m = r->m;
    r->scales = take(&r->buffer[1], (size_t)m->scales.bytes);
    if (!r->scales)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for the scales of '%s'", r->name);
    NIB_TRY(nib_quant_read(p, &m->scales, 0, r->scales, (size_t)m->scales.bytes, err));
    *narrow = !m->f32_scales;
    for (uint64_t i = 0; i < m->scales.bytes / (m->f32_scales ? 4 : 1); i++) {
        float v = 1;
        if (m->f32_scales)
            memcpy(&v, r->scales + 4 * i, 4);
        if ((!m->f32_scales && r->scales[i] == NIB_E8M0_NAN) || !nib_f32_is_finite(v))
            return nib_error_set(err, NIB_E_NUMERIC, "matrix '%s': scale %" PRIu64 " is NaN or Inf", r->name, i);
        if (!m->f32_scales && (r->scales[i] < 127 - 117 || r->scales[i] > 127 + 119))
            *narrow = false;
    }
    return NIB_OK;
}

static enum nib_status read_global(struct nib_quant_rows *r, const struct nib_quant_plan *p, struct nib_error *err)
{
    float v;
    NIB_TRY(nib_quant_read_f32(p, &r->m->global, &v, err));
    r->global = r->m->divisor ? 1.0f / v : v;
    /* Multipliers are far below 1 and divisors far above; a file that mixes them up is not guessed at. */
    if (!(v > 0) || !nib_f32_is_finite(v) || !(r->global > 0) || !nib_f32_is_finite(r->global))
        return nib_error_set(err, NIB_E_NUMERIC, "matrix '%s': its global scale is %g, wanted a finite value above 0",
                             r->name, (double)v);
    return NIB_OK;
}

enum nib_status nib_quant_rows_init(struct nib_quant_rows *r, const struct nib_quant_plan *p,
                                    const struct nib_quant_matrix *m, size_t budget_bytes, int32_t k_ref,
                                    const char *name, struct nib_error *err)
{
    const struct nib_quant_buffer data = r->buffer[0], scales = r->buffer[1], values = r->buffer[2];
    *r = (struct nib_quant_rows){
        .m = m, .name = name, .first = -1, .global = 1, .k_ref = k_ref, .buffer = {data, scales, values}};
    bool narrow = true;
    if (m->type == NIB_WEIGHT_FP8)
        NIB_TRY(read_fp8_scales(r, p, &narrow, err));
    if (m->type == NIB_WEIGHT_NVFP4)
        NIB_TRY(read_global(r, p, err));
    const bool   decoded = m->type == NIB_WEIGHT_FP8 || m->type == NIB_WEIGHT_MXFP4;
    const size_t value_bytes = decoded ? (size_t)m->cols * (narrow ? 2 : 4) : 0;
    const size_t one = (size_t)(row_bytes(m) + scale_row_bytes(m)) + value_bytes;
    r->n_rows_max = (int64_t)(budget_bytes / (one > 0 ? one : 1)) / FP8_BLOCK * FP8_BLOCK;
    if (r->n_rows_max < FP8_BLOCK)
        r->n_rows_max = FP8_BLOCK;
    if (r->n_rows_max > m->rows)
        r->n_rows_max = m->rows;
    const size_t n = (size_t)r->n_rows_max;
    r->data = take(&r->buffer[0], n * (size_t)row_bytes(m));
    if (scale_row_bytes(m) > 0)
        r->scales = take(&r->buffer[1], n * (size_t)scale_row_bytes(m));
    void *at = decoded ? take(&r->buffer[2], n * value_bytes) : r->data;
    if (m->type == NIB_WEIGHT_BF16 || (decoded && narrow))
        r->bf16 = at;
    if (m->type == NIB_WEIGHT_F32 || (decoded && !narrow))
        r->f32 = at;
    if (!r->data || (scale_row_bytes(m) > 0 && !r->scales) || (decoded && !at))
        return nib_error_set(err, NIB_E_MEMORY, "no memory for %" PRId64 " rows of '%s'", r->n_rows_max, name);
    return NIB_OK;
}

void nib_quant_rows_deinit(struct nib_quant_rows *r)
{
    for (int i = 0; i < 3; i++)
        free(r->buffer[i].at);
    memset(r, 0, sizeof *r);
}

/* Row i of FP8 to BF16 or F32; false where a code is NaN. */
static bool decode_fp8(struct nib_quant_rows *r, const struct nib_quant_kernels *k, int64_t i)
{
    const int64_t cols = r->m->cols, n_blocks = (cols + FP8_BLOCK - 1) / FP8_BLOCK,
                  scale_row = (r->first + i) / FP8_BLOCK * n_blocks;
    const uint8_t *x = r->data + i * cols;
    unsigned       nan = 0;
    for (int64_t j = 0; j < cols; j++)
        nan |= (unsigned)((x[j] & 0x7f) == 0x7f);
    for (int64_t b = 0; b < n_blocks; b++) {
        const int64_t start = b * FP8_BLOCK, n = cols - start < FP8_BLOCK ? cols - start : FP8_BLOCK;
        if (r->bf16) {
            k->fp8_to_bf16(x + start, n, r->scales[scale_row + b] - 127, r->bf16 + i * cols + start);
            continue;
        }
        float s = 0;
        if (r->m->f32_scales)
            memcpy(&s, r->scales + 4 * (scale_row + b), 4);
        else
            s = nib_e8m0_to_f32(r->scales[scale_row + b]);
        for (int64_t j = start; j < start + n; j++)
            r->f32[i * cols + j] = nib_e4m3_to_f32(x[j]) * s;
    }
    return !nan;
}

/* Row i of MXFP4 to BF16 times 2^-k_ref; what is below BF16's normal numbers becomes zero. */
static bool decode_mxfp4(struct nib_quant_rows *r, int64_t i)
{
    const int64_t  cols = r->m->cols;
    const uint8_t *codes = r->data + i * (cols / 2), *scales = r->scales + i * (cols / MXFP4_BLOCK);
    uint16_t      *out = r->bf16 + i * cols;
    unsigned       nan = 0;
    for (int64_t b = 0; b < cols / MXFP4_BLOCK; b++, codes += MXFP4_BLOCK / 2, out += MXFP4_BLOCK) {
        uint16_t value[16];
        int32_t  k = scales[b] - 127 - r->k_ref;
        nan |= scales[b] == NIB_E8M0_NAN;
        for (uint32_t c = 0; c < 16; c++) {
            const uint32_t bits = nib_f32_bits(nib_e2m1_to_f32(c)) >> 16;
            const int32_t  exponent = (int32_t)(bits >> 7 & 255u) + k;
            value[c] = (uint16_t)(exponent > 0 && exponent < 255 && (c & 7u)
                                      ? (bits & 0x807fu) | (uint32_t)exponent << 7
                                      : bits & 0x8000u);
        }
        for (int j = 0; j < MXFP4_BLOCK / 2; j++) {
            out[2 * j] = value[codes[j] & 15];
            out[2 * j + 1] = value[codes[j] >> 4];
        }
    }
    return !nan;
}

static bool check_nvfp4(const struct nib_quant_rows *r, int64_t i)
{
    const int64_t n = r->m->cols / NIB_QUANT_BLOCK;
    unsigned      bad = 0;
    for (int64_t b = 0; b < n; b++)
        bad |= (unsigned)(r->scales[i * n + b] >= NIB_E4M3_NAN);
    return !bad;
}

/* False where the row is no number; else *amax is its largest magnitude (NVFP4: not looked at). */
static bool decode_row(struct nib_quant_rows *r, const struct nib_quant_kernels *k, int64_t i, float *amax)
{
    const struct nib_quant_row row = nib_quant_rows_at(r, i);
    *amax = 0;
    if (r->m->type == NIB_WEIGHT_NVFP4)
        return check_nvfp4(r, i);
    if ((r->m->type == NIB_WEIGHT_FP8 && !decode_fp8(r, k, i)) ||
        (r->m->type == NIB_WEIGHT_MXFP4 && !decode_mxfp4(r, i)))
        return false;
    *amax = k->absmax(&row);
    for (int64_t j = row.n_blocks * NIB_QUANT_BLOCK; j < r->m->cols; j++) {
        const float v = r->bf16 ? nib_bf16_to_f32(row.bf16[j]) : row.f32[j];
        if (!nib_f32_is_finite(v))
            return false;
        *amax = fabsf(v) > *amax ? fabsf(v) : *amax;
    }
    return nib_f32_is_finite(*amax);
}

int64_t nib_quant_rows_slice(const struct nib_quant_rows *r)
{
    const int64_t n = SLICE_BYTES / row_bytes(r->m);
    return n < 1 ? 1 : n;
}

/* A slice of rows from the file, and decoded while it is in the cache. *bad becomes the first row that is no number. */
static enum nib_status read_slice(struct nib_quant_rows *r, const struct nib_quant_context *c, bool read, int64_t at,
                                  int64_t n, int64_t *bad, float *amax, struct nib_error *err)
{
    const size_t bytes = (size_t)row_bytes(r->m), scale_bytes = (size_t)scale_row_bytes(r->m), from = (size_t)at;
    const uint64_t row = (uint64_t)(r->first + at);
    if (read) {
        NIB_TRY(nib_quant_read(c->plan, &r->m->data, row * bytes, r->data + from * bytes, (size_t)n * bytes, err));
        if (scale_bytes > 0)
            NIB_TRY(nib_quant_read(c->plan, &r->m->scales, row * scale_bytes, r->scales + from * scale_bytes,
                                   (size_t)n * scale_bytes, err));
    }
    for (int64_t i = at; i < at + n && !r->raw; i++) {
        float most;
        if (!decode_row(r, c->kernels, i, &most))
            *bad = i < *bad ? i : *bad;
        *amax = most > *amax ? most : *amax;
    }
    return NIB_OK;
}

enum nib_status nib_quant_rows_read(struct nib_quant_rows *r, const struct nib_quant_context *c, int64_t first,
                                    struct nib_error *err)
{
    const bool read = r->first != first;
    if (!read && (r->raw || r->decoded))
        return NIB_OK;
    if (read)
        r->n = r->m->rows - first < r->n_rows_max ? r->m->rows - first : r->n_rows_max;
    r->first = first;
    int64_t         bad = r->n;
    float           amax = 0;
    enum nib_status status = NIB_OK;
    const int64_t   slice = nib_quant_rows_slice(r);
#pragma omp parallel for schedule(dynamic, 1) num_threads(nib_quant_team(c, r->n * r->m->cols)) reduction(min          \
                                                                                                          : bad)       \
    reduction(max                                                                                                      \
              : amax)
    for (int64_t at = 0; at < r->n; at += slice) {
        struct nib_error      e;
        const enum nib_status got = read_slice(r, c, read, at, r->n - at < slice ? r->n - at : slice, &bad, &amax, &e);
        if (got != NIB_OK) {
#pragma omp critical(nib_quant_read_failed)
            status = nib_error_set(err, got, "%s", e.text);
        }
    }
    r->amax = amax;
    r->decoded = !r->raw && status == NIB_OK && bad == r->n;
    if (status == NIB_OK && bad < r->n)
        status = nib_error_set(err, NIB_E_NUMERIC,
                               "matrix '%s' of '%s': row %" PRId64
                               " holds NaN or Inf (or a scale byte that stands for it)",
                               r->name, c->plan->src, first + bad);
    if (status != NIB_OK)
        r->first = -1;
    return status;
}

struct nib_quant_row nib_quant_rows_at(const struct nib_quant_rows *r, int64_t i)
{
    const int64_t cols = r->m->cols;
    return (struct nib_quant_row){.bf16 = r->bf16 ? r->bf16 + i * cols : NULL, .f32 = r->f32 ? r->f32 + i * cols : NULL,
                                  .n_blocks = cols / NIB_QUANT_BLOCK, .g = 1, .unit = 1};
}

float nib_quant_unit_of(float amax)
{
    int e = 0;
    if (amax >= 0x1p-30f && amax <= 0x1p+30f)
        return 1; /* squares of all that matters are in range, and a product is saved */
    (void)frexp((double)amax, &e);
    e = e < -126 ? -126 : e > 126 ? 126 : e;
    return ldexpf(1.0f, amax > 0 ? -e : 0);
}

void nib_quant_sums_add(struct nib_quant_sums *a, const struct nib_quant_sums *b)
{
    a->xx += b->xx;
    a->yy += b->yy;
    a->ee += b->ee;
    a->saturated += b->saturated;
}

double nib_quant_relative_mse(const struct nib_quant_sums *s)
{
    return s->xx > 0 ? s->ee / s->xx : s->ee > 0 ? INFINITY : 0;
}

double nib_quant_cosine(const struct nib_quant_sums *s)
{
    if (s->ee == 0)
        return 1;
    return s->xx > 0 && s->yy > 0 ? (s->xx + s->yy - s->ee) / (2 * sqrt(s->xx * s->yy)) : 0;
}
