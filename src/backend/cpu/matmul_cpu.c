/* Matrix products as tiles: making rows ready, running one tile, and the plain loop over all tiles. */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <omp.h>
#include <string.h>

/* Rows that are multiplied where they lie; more are copied to where they do not fall into the same sets of the caches. */
#define ROWS_IN_PLACE 4

unsigned nib_cpu_need_of(const struct nib_stream *s, const struct nib_weight *w, enum nib_dtype plain)
{
    bool bf16 = s->k.tile_bf16 && w->type != NIB_WEIGHT_F32;
    bool four_bits = w->type == NIB_WEIGHT_NVFP4 || w->type == NIB_WEIGHT_MXFP4;
    if (w->act == NIB_ACT_PLAIN)
        return bf16 && plain == NIB_DTYPE_BF16 ? NIB_CPU_NEED_PLAIN_BF16 : NIB_CPU_NEED_PLAIN;
    if (four_bits && (w->act == NIB_ACT_NVFP4 || w->act == NIB_ACT_INT8))
        return NIB_CPU_NEED_CODES;
    return bf16 && w->act == NIB_ACT_FP8 ? NIB_CPU_NEED_VALUES_BF16 : NIB_CPU_NEED_VALUES;
}

size_t nib_cpu_codes_bytes(int32_t cols)
{
    size_t bytes = (size_t)nib_cpu_padded(cols) / NIB_CPU_BLOCK * sizeof(struct nib_cpu_code_block);
    return (bytes + 63) / 64 * 64 + 33 * 64;
}

void nib_cpu_act_decode(const struct nib_stream *s, enum nib_act_format format, const uint8_t *codes,
                        const uint8_t *scales, float row_scale, int32_t cols, float *values)
{
    switch (format) {
    case NIB_ACT_PLAIN: break;
    case NIB_ACT_FP8: s->k.fp8_decode(codes, scales, cols, 128, values); break;
    case NIB_ACT_NVFP4: s->k.nvfp4_decode(codes, scales, row_scale, cols, values); break;
    case NIB_ACT_INT8: s->k.int8_decode(codes, (const float *)(const void *)scales, cols, values); break;
    }
}

void nib_cpu_codes_open(const struct nib_stream *s, enum nib_act_format format, const uint8_t *codes,
                        const uint8_t *scales, float row_scale, int32_t cols, void *memory,
                        struct nib_cpu_code_row *out)
{
    s->k.codes_open(format, codes, scales, cols, memory);
    /* Weights' codes are doubled, and so are NVFP4 rows'. */
    float halves = format == NIB_ACT_NVFP4 ? 0.25f * row_scale : 0.5f;
    *out = (struct nib_cpu_code_row){memory, halves};
}

/* A row's n_parts parts in bf16, padded like those in fp32. */
static void row_take(const struct nib_stream *s, const float *row, int32_t part, int32_t n_parts, uint16_t *to,
                     struct nib_cpu_bf16_row *out)
{
    const int32_t padded = nib_cpu_padded(part);
    *out = (struct nib_cpu_bf16_row){to, 255};
    for (int32_t i = 0; i < n_parts; i++, row += part, to += padded) {
        const uint8_t least = s->k.bf16_take(row, part, to);
        memset(to + part, 0, sizeof *to * (size_t)(padded - part));
        out->least = least < out->least ? least : out->least;
    }
}

/* Row r of a prepared group, in every form that is needed. */
static void row_prepare(const struct nib_stream *s, const struct nib_act *x, int64_t t, int32_t r, int32_t n_parts,
                        unsigned need, float *buffer)
{
    const struct nib_cpu_scratch *m = &s->scratch;
    const uint8_t *codes = x->codes + t * x->codes_stride, *scales = x->scales + t * x->scales_stride;
    float          row_scale = x->format == NIB_ACT_NVFP4 ? x->row_scale[t] : 1.0f;
    if (need & NIB_CPU_NEED_PLAIN) {
        int32_t      part = x->cols / n_parts, padded = nib_cpu_padded(part);
        const float *row = nib_cpu_row_read(s, &x->plain, t, 0, x->cols, buffer);
        float       *to = m->plain + (int64_t)r * nib_cpu_stride(padded * n_parts);
        for (int32_t i = 0; i < n_parts; i++, row += part, to += padded) {
            memcpy(to, row, sizeof(float) * (size_t)part);
            memset(to + part, 0, sizeof(float) * (size_t)(padded - part));
        }
    }
    if (need & NIB_CPU_NEED_PLAIN_BF16) {
        int32_t part = x->cols / n_parts, stride = nib_cpu_stride(nib_cpu_padded(part) * n_parts);
        row_take(s, nib_cpu_row_read(s, &x->plain, t, 0, x->cols, buffer), part, n_parts, m->bf16[0] + (int64_t)r * stride,
                 &m->bf16_row[0][r]);
    }
    if (need & NIB_CPU_NEED_VALUES_BF16) {
        nib_cpu_act_decode(s, x->format, codes, scales, row_scale, x->cols, buffer);
        row_take(s, buffer, x->cols, 1, m->bf16[1] + (int64_t)r * nib_cpu_stride(x->cols), &m->bf16_row[1][r]);
    }
    if (need & NIB_CPU_NEED_VALUES) {
        float *values = m->values + (int64_t)r * nib_cpu_stride(x->cols);
        nib_cpu_act_decode(s, x->format, codes, scales, row_scale, x->cols, values);
        memset(values + x->cols, 0, sizeof(float) * (size_t)(nib_cpu_padded(x->cols) - x->cols));
    }
    if (need & NIB_CPU_NEED_CODES)
        nib_cpu_codes_open(s, x->format, codes, scales, row_scale, x->cols,
                           m->code_memory + (size_t)r * nib_cpu_codes_bytes(x->cols), &m->codes[r]);
}

void nib_cpu_rows_prepare(struct nib_stream *s, const struct nib_act *x, int32_t first, int32_t n, int32_t n_parts,
                          unsigned need, struct nib_cpu_rows *out)
{
    struct nib_cpu_scratch *m = &s->scratch;
    bool    quantised = need & (NIB_CPU_NEED_VALUES | NIB_CPU_NEED_CODES | NIB_CPU_NEED_VALUES_BF16);
    int32_t part = x->cols / n_parts, stride = nib_cpu_stride(nib_cpu_padded(part) * n_parts);
    assert(n <= NIB_CPU_GROUP_ROWS && x->cols <= (quantised ? s->quant_cols : s->cols) && stride <= s->plain_stride);
    *out = (struct nib_cpu_rows){
        .plain = m->plain,
        .plain_stride = stride,
        .values = m->values,
        .values_stride = nib_cpu_stride(x->cols),
        .codes = m->codes,
        .plain_bf16 = m->bf16_row[0],
        .values_bf16 = m->bf16_row[1],
    };
    if (need & NIB_CPU_NEED_PLAIN && x->plain.dtype == NIB_DTYPE_F32 && part % NIB_CPU_BLOCK == 0 && n <= ROWS_IN_PLACE) {
        out->plain = (const float *)nib_cpu_row(&x->plain, first);
        out->plain_stride = x->plain.stride;
        need &= ~(unsigned)NIB_CPU_NEED_PLAIN;
    }
    if (!need)
        return;
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)n * x->cols)) schedule(static)
    for (int32_t r = 0; r < n; r++)
        row_prepare(s, x, first + r, r, n_parts, need, m->thread[omp_get_thread_num()].row[0]);
}

void nib_cpu_tile_run(const struct nib_stream *s, struct nib_cpu_thread *th, const struct nib_cpu_matrix *w,
                      unsigned need, const struct nib_cpu_rows *rows, const int32_t *index, int32_t first, int32_t n,
                      int32_t x_col, int32_t out, int32_t n_outs, float *y)
{
    const float                   *x[NIB_CPU_TILE_ROWS];
    const struct nib_cpu_code_row *xi[NIB_CPU_TILE_ROWS];
    struct nib_cpu_bf16_row        xh[NIB_CPU_TILE_ROWS];
    struct nib_cpu_tile            t = {.w = w, .out = out, .n_outs = n_outs, .n_rows = n, .x = x, .xi = xi, .xh = xh, .y = y,
                                        .work = th->tile_work};
    const bool                     bf16 = need & (NIB_CPU_NEED_PLAIN_BF16 | NIB_CPU_NEED_VALUES_BF16);
    for (int32_t r = 0; r < n; r++) {
        int64_t row = index ? index[r] : first + r;
        switch (need) {
        case NIB_CPU_NEED_CODES: xi[r] = rows->codes + row; break;
        case NIB_CPU_NEED_PLAIN_BF16: xh[r] = rows->plain_bf16[row]; break;
        case NIB_CPU_NEED_VALUES_BF16: xh[r] = rows->values_bf16[row]; break;
        case NIB_CPU_NEED_PLAIN: x[r] = rows->plain + row * rows->plain_stride + x_col; break;
        default: x[r] = rows->values + row * rows->values_stride + x_col; break;
        }
        if (bf16)
            xh[r].x += x_col;
    }
    if (bf16)
        s->k.tile_bf16(&t);
    else if (need == NIB_CPU_NEED_CODES)
        s->k.tile_codes(&t);
    else
        s->k.tile_plain(&t);
}

void nib_cpu_matmul(struct nib_stream *s, const struct nib_cpu_matrix *w, unsigned need,
                    const struct nib_cpu_rows *rows, int32_t n, float *y, int64_t y_stride)
{
    int32_t n_blocks = (w->n_out + NIB_CPU_TILE_OUTS - 1) / NIB_CPU_TILE_OUTS;
    int32_t n_tiles = (n + NIB_CPU_TILE_ROWS - 1) / NIB_CPU_TILE_ROWS, n_items = n_blocks * n_tiles;
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)w->n_out * w->n_in * n)) schedule(dynamic, nib_cpu_chunk(s, n_items))
    for (int32_t i = 0; i < n_items; i++) {
        struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
        int32_t                out = i / n_tiles * NIB_CPU_TILE_OUTS, r0 = i % n_tiles * NIB_CPU_TILE_ROWS;
        int32_t                n_outs = w->n_out - out < NIB_CPU_TILE_OUTS ? w->n_out - out : NIB_CPU_TILE_OUTS;
        int32_t                n_rows = n - r0 < NIB_CPU_TILE_ROWS ? n - r0 : NIB_CPU_TILE_ROWS;
        nib_cpu_tile_run(s, th, w, need, rows, NULL, r0, n_rows, 0, out, n_outs, th->tile_y[0]);
        for (int32_t r = 0; r < n_rows; r++)
            for (int32_t o = 0; o < n_outs; o++)
                y[(r0 + r) * y_stride + out + o] = th->tile_y[0][r * NIB_CPU_TILE_OUTS + o];
    }
}
