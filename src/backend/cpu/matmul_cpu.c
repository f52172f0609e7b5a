/* Matrix products as tiles: making rows ready, running one tile, and the plain loop over all tiles. */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <omp.h>

unsigned nib_cpu_need_of(const struct nib_weight *w)
{
    if (w->act == NIB_ACT_PLAIN)
        return NIB_CPU_NEED_PLAIN;
    bool four_bits = w->type == NIB_WEIGHT_NVFP4 || w->type == NIB_WEIGHT_MXFP4;
    return w->act == NIB_ACT_NVFP4 && four_bits ? NIB_CPU_NEED_FP4 : NIB_CPU_NEED_VALUES;
}

static size_t groups_of(int32_t cols) { return ((size_t)cols + NIB_CPU_FP4_GROUP - 1) / NIB_CPU_FP4_GROUP; }

size_t nib_cpu_opened_bytes(int32_t cols)
{
    return groups_of(cols) * (NIB_CPU_FP4_GROUP * sizeof(int16_t) + 16 * sizeof(float));
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

void nib_cpu_act_open(const struct nib_stream *s, const uint8_t *codes, const uint8_t *scales, float row_scale,
                      int32_t cols, void *opened, struct nib_cpu_fp4_row *out)
{
    int16_t *doubled = opened;
    float   *opened_scales = (float *)(void *)(doubled + groups_of(cols) * NIB_CPU_FP4_GROUP);
    s->k.nvfp4_open(codes, scales, cols, doubled, opened_scales);
    *out = (struct nib_cpu_fp4_row){doubled, opened_scales, row_scale};
}

void nib_cpu_rows_prepare(struct nib_stream *s, const struct nib_act *x, int32_t first, int32_t n, unsigned need,
                          struct nib_cpu_rows *out)
{
    struct nib_cpu_scratch *m = &s->scratch;
    bool                    fp4 = need & NIB_CPU_NEED_FP4, values = need & NIB_CPU_NEED_VALUES;
    bool                    bf16 = need & NIB_CPU_NEED_PLAIN && x->plain.dtype == NIB_DTYPE_BF16;
    assert(n <= NIB_CPU_GROUP_ROWS && x->cols <= (fp4 || values ? s->quant_cols : s->cols));
    *out = (struct nib_cpu_rows){.values = m->values, .values_stride = x->cols, .fp4 = m->fp4};
    if (need & NIB_CPU_NEED_PLAIN) {
        out->plain = bf16 ? m->plain : (const float *)nib_cpu_row(&x->plain, first);
        out->plain_stride = bf16 ? x->cols : x->plain.stride;
    }
    if (!bf16 && !values && !fp4)
        return;
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)n * x->cols)) schedule(static)
    for (int32_t r = 0; r < n; r++) {
        int64_t        t = first + r;
        const uint8_t *codes = x->codes + t * x->codes_stride, *scales = x->scales + t * x->scales_stride;
        float          row_scale = x->format == NIB_ACT_NVFP4 ? x->row_scale[t] : 1.0f;
        if (bf16)
            s->k.bf16_decode(nib_cpu_row(&x->plain, t), m->plain + (int64_t)r * x->cols, x->cols);
        if (values)
            nib_cpu_act_decode(s, x->format, codes, scales, row_scale, x->cols, m->values + (int64_t)r * x->cols);
        if (fp4)
            nib_cpu_act_open(s, codes, scales, row_scale, x->cols,
                             m->opened + (size_t)r * nib_cpu_opened_bytes(x->cols), &m->fp4[r]);
    }
}

void nib_cpu_tile_run(const struct nib_stream *s, struct nib_cpu_thread *th, const struct nib_cpu_matrix *w,
                      unsigned need, const struct nib_cpu_rows *rows, const int32_t *index, int32_t first, int32_t n,
                      int32_t x_col, int32_t out, int32_t n_outs, float *y)
{
    const float                  *x[NIB_CPU_TILE_ROWS];
    const struct nib_cpu_fp4_row *x4[NIB_CPU_TILE_ROWS];
    struct nib_cpu_tile           t = {
                  .w = w, .out = out, .n_outs = n_outs, .n_rows = n, .y = y, .work = th->tile_work};
    for (int32_t r = 0; r < n; r++) {
        int64_t row = index ? index[r] : first + r;
        if (need == NIB_CPU_NEED_FP4)
            x4[r] = rows->fp4 + row;
        else if (need == NIB_CPU_NEED_VALUES)
            x[r] = rows->values + row * rows->values_stride;
        else
            x[r] = rows->plain + row * rows->plain_stride + x_col;
    }
    if (need == NIB_CPU_NEED_FP4) {
        t.x4 = x4;
        s->k.tile_fp4(&t);
    } else {
        t.x = x;
        s->k.tile_plain(&t);
    }
}

void nib_cpu_matmul(struct nib_stream *s, const struct nib_cpu_matrix *w, unsigned need,
                    const struct nib_cpu_rows *rows, int32_t n, float *y, int64_t y_stride)
{
    int32_t n_blocks = (w->n_out + NIB_CPU_TILE_OUTS - 1) / NIB_CPU_TILE_OUTS;
    int32_t n_tiles = (n + NIB_CPU_TILE_ROWS - 1) / NIB_CPU_TILE_ROWS;
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)w->n_out * w->n_in * n)) schedule(dynamic, 1)
    for (int32_t i = 0; i < n_blocks * n_tiles; i++) {
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
