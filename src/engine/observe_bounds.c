/* How far a right result may be from ref's. u is half an ulp at 1 in fp32.
 *
 * A sum of n products in fp32 or better, in any order that has no chain of more than n/16 + 8 roundings, is within
 * (n/16 + 8) 2u ||x|| ||w|| (Cauchy and Schwarz over sum |x||w|). What follows a sum carries its error on by the
 * derivative; a bf16 result may round to the other side, one part in 2^7. A code of a quantised row may fall to the
 * neighbour on its grid. These are bounds of single ops on equal inputs; tests/opcheck has tighter ones, this table
 * must hold on any model without knowing more. */
#include "engine/observe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/act_rows.h"
#include "number/bf16.h"
#include "number/kv_rows.h"

#define U   0x1p-24
#define B16 0x1p-7

static double chain(int64_t n)
{
    return ((double)n / 16 + 8) * 2 * U;
}

/* Rounding of the result itself. */
static double own(const struct nib_values *v, double ref)
{
    return fabs(ref) * (v->kind == NIB_VALUES_PLAIN && v->dtype == NIB_DTYPE_BF16 ? B16 : 2 * U) + 1e-37;
}

static double at(const struct nib_mat *m, int64_t row, int64_t col)
{
    const int64_t i = row * m->stride + col;
    return m->dtype == NIB_DTYPE_F32 ? (double)((const float *)m->data)[i] : (double)nib_bf16_to_f32(((const uint16_t *)m->data)[i]);
}

static double norm_of_mat_row(const struct nib_mat *m, int64_t row, int32_t first, int32_t n)
{
    double sum = 0;
    for (int32_t i = first; i < first + n; i++)
        sum += at(m, row, i) * at(m, row, i);
    return sqrt(sum);
}

static double norm_of(const float *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* Of the part of x that a weight multiplies. */
static double operand_norm(const struct nib_act *x, enum nib_act_format f, int32_t row, float *scratch)
{
    const uint8_t *codes = x->codes + row * x->codes_stride, *scales = x->scales + row * x->scales_stride;
    switch (f) {
    case NIB_ACT_PLAIN: return norm_of_mat_row(&x->plain, row, 0, x->cols);
    case NIB_ACT_FP8: nib_fp8_row_decode(codes, scales, x->cols, 128, scratch); break;
    case NIB_ACT_NVFP4: nib_nvfp4_row_decode(codes, scales, x->row_scale[row], x->cols, scratch); break;
    case NIB_ACT_INT8: nib_int8_row_decode((const int8_t *)codes, (const float *)(const void *)scales, x->cols, scratch); break;
    }
    return norm_of(scratch, x->cols);
}

/* ---- Grids ---- */

/* One step of E2M1 codes or E4M3 codes around a value, the scale of its block included, which may itself round the
 * other way. */
static void add_grid(const float *ref, int32_t n, int32_t block, bool fp4, double scale_flip, double *bound)
{
    for (int32_t k = 0; k < n; k += block) {
        const int32_t end = k + block < n ? k + block : n;
        double most = 0;
        for (int32_t i = k; i < end; i++)
            most = fabs((double)ref[i]) > most ? fabs((double)ref[i]) : most;
        for (int32_t i = k; i < end; i++) {
            const double v = fabs((double)ref[i]);
            const double step = fp4 ? fmax(most / 6, v / 2) * 1.15 : v / 7 + most * 0x1p-14 + 1e-9;
            bound[i] += step + scale_flip * v;
        }
    }
}

static void add_act_grid(const struct nib_values *v, double *bound)
{
    for (int32_t r = 0; r < v->rows; r++) {
        const float *ref = v->value + (size_t)r * (size_t)v->cols;
        double *b = bound + (size_t)r * (size_t)v->cols;
        switch (v->act_format) {
        case NIB_ACT_FP8: add_grid(ref, v->cols, 128, false, 0, b); break;
        case NIB_ACT_NVFP4: add_grid(ref, v->cols, 16, true, 0.125, b); break;
        case NIB_ACT_INT8:
            for (int32_t k = 0; k < v->cols; k += 32) {
                double most = 0;
                for (int32_t i = k; i < k + 32 && i < v->cols; i++)
                    most = fmax(most, fabs((double)ref[i]));
                for (int32_t i = k; i < k + 32 && i < v->cols; i++)
                    b[i] += most / 126;
            }
            break;
        case NIB_ACT_PLAIN: break;
        }
    }
}

static void add_row_grid(const struct nib_values *v, double *bound)
{
    const int32_t n = v->cols - v->n_rot;
    for (int32_t r = 0; r < v->rows; r++) {
        const float *ref = v->value + (size_t)r * (size_t)v->cols;
        double *b = bound + (size_t)r * (size_t)v->cols;
        const bool mixed = v->row_format == NIB_ROW_FP8 || v->row_format == NIB_ROW_NVFP4;
        if (v->row_format == NIB_ROW_FP8)
            add_grid(ref, n, 64, false, 0, b);
        else if (v->row_format == NIB_ROW_NVFP4)
            add_grid(ref, n, 16, true, 0.125, b);
        else if (v->row_format == NIB_ROW_FP4)
            add_grid(ref, v->cols, 32, true, 0, b);
        for (int32_t i = v->row_format == NIB_ROW_BF16 ? 0 : n; i < v->cols && (mixed || v->row_format == NIB_ROW_BF16); i++)
            b[i] += fabs((double)ref[i]) * B16;
    }
}

/* ---- Ops ---- */

struct bounds {
    struct nib_observer     *o;
    const struct nib_values *ref;
    int32_t                  n;
    double                 **bound;
    float                   *scratch; /* as long as the widest row */
    bool                     failed;
};

/* error[row] for each value of a row, and the rounding of the result. */
static void fill(struct bounds *b, int32_t k, double error_of_row, int32_t row)
{
    const struct nib_values *v = &b->ref[k];
    for (int32_t i = 0; i < v->cols; i++) {
        const size_t at_i = (size_t)row * (size_t)v->cols + (size_t)i;
        b->bound[k][at_i] = error_of_row + own(v, (double)v->value[at_i]);
    }
}

static void products(struct bounds *b, int32_t k, const struct nib_act *x, const struct nib_weight *w, int32_t n_groups)
{
    const struct nib_values *v = &b->ref[k];
    const float *norm = nib_shadow_row_norms(b->o->shadow, w);
    const int32_t group = v->cols / n_groups;
    if (!norm) {
        b->failed = true;
        return;
    }
    for (int32_t r = 0; r < v->rows; r++)
        for (int32_t g = 0; g < n_groups; g++) {
            const double length = n_groups > 1 ? norm_of_mat_row(&x->plain, r, g * w->n_in, w->n_in)
                                               : operand_norm(x, w->act, r, b->scratch);
            for (int32_t i = g * group; i < (g + 1) * group; i++) {
                const size_t at_i = (size_t)r * (size_t)v->cols + (size_t)i;
                b->bound[k][at_i] = chain(w->n_in) * length * (double)norm[i] + own(v, (double)v->value[at_i]);
            }
        }
}

/* x * r * weight with r from a sum over n. */
static void normed(struct bounds *b, int32_t n, double rounding)
{
    for (int32_t k = 0; k < b->n; k++) {
        const struct nib_values *v = &b->ref[k];
        for (size_t i = 0; i < (size_t)v->rows * (size_t)v->cols; i++)
            b->bound[k][i] = fabs((double)v->value[i]) * (chain(n) / 2 + 16 * U + rounding) + own(v, (double)v->value[i]);
    }
}

/* Pairs turn by an angle whose sine and cosine are within 2u: errors are relative to the pair's length. */
static void turned(struct bounds *b, int32_t k, int32_t head_dim, int32_t n_rot, double relative)
{
    const struct nib_values *v = &b->ref[k];
    for (int32_t r = 0; r < v->rows; r++)
        for (int32_t i = 0; i < v->cols; i++) {
            const float *row = v->value + (size_t)r * (size_t)v->cols;
            const bool rotary = i % head_dim >= head_dim - n_rot;
            const double length = rotary ? hypot((double)row[i], (double)row[i ^ 1]) : fabs((double)row[i]);
            b->bound[k][(size_t)r * (size_t)v->cols + (size_t)i] = relative * length + own(v, (double)row[i]);
        }
}

/* An entry is a mean of rows, weighed by a softmax, and normed. Rows may cancel in the mean: by up to 2^6 of the
 * largest element of the entry this bound allows. */
static void pooled(struct bounds *b, const struct nib_compress_args *a)
{
    const struct nib_values *v = &b->ref[0];
    const double relative = (chain(a->width) + 64 * U) * 64 + (a->round_bf16 ? 4 * B16 : 0);
    for (int32_t r = 0; r < v->rows; r++) {
        double most = 0;
        for (int32_t i = 0; i < v->cols; i++)
            most = fmax(most, fabs((double)v->value[(size_t)r * (size_t)v->cols + (size_t)i]));
        fill(b, 0, relative * most, r);
    }
    for (int32_t k = 1; k < b->n; k++) /* kept rows: a copy, and one sum */
        for (int32_t r = 0; r < b->ref[k].rows; r++)
            fill(b, k, 0, r);
}

/* The largest norm and value of the rows that a sequence can attend to at a position. */
static void add_rows(const struct nib_store *st, const int32_t *page, int32_t first, int32_t end, int32_t d, int32_t n_rot, float *row,
                     double *norm, double *most)
{
    for (int32_t i = first; i < end; i++) {
        const uint8_t *from = st->base + ((int64_t)page[i / st->page_rows] * st->page_rows + i % st->page_rows) * st->row_bytes;
        switch (st->format) {
        case NIB_ROW_F32: nib_kv_f32_decode(from, d, row); break;
        case NIB_ROW_BF16: nib_kv_bf16_decode(from, d, row); break;
        case NIB_ROW_FP8: nib_kv_fp8_decode(from, d, n_rot, row); break;
        case NIB_ROW_NVFP4: nib_kv_nvfp4_decode(from, d, n_rot, row); break;
        case NIB_ROW_FP4: nib_kv_fp4_decode(from, d, row); break;
        }
        *norm = fmax(*norm, norm_of(row, d));
        for (int32_t k = 0; k < d; k++)
            *most = fmax(*most, fabs((double)row[k]));
    }
}

/* Scores within delta move every weight by at most exp(2 delta) - 1 of itself; the rest is a sum of as many rows. */
static void attended(struct bounds *b, const struct nib_attend_args *a)
{
    const struct nib_rows *rows = a->rows;
    const bool bf16 = a->o.dtype == NIB_DTYPE_BF16;
    for (int32_t s = 0; s < rows->n_seqs; s++) {
        const int32_t first = rows->seq_start[s], end = rows->seq_start[s + 1];
        const int32_t *window = rows->window_page + s * rows->page_stride, *entry = rows->entry_page + s * rows->page_stride;
        const int32_t low = rows->pos[first] - a->n_window + 1, high = rows->pos[end - 1] + 1;
        const int32_t n_entries = a->ratio ? high / a->ratio : 0;
        double norm = 0, most = 0;
        add_rows(&a->window, window, low > rows->first_pos ? low : rows->first_pos, high, a->head_dim, a->rope.n_rot, b->scratch, &norm,
                 &most);
        add_rows(&a->entries, entry, 0, n_entries, a->head_dim, a->rope.n_rot, b->scratch, &norm, &most);
        for (int32_t r = first; r < end; r++)
            for (int32_t h = 0; h < a->n_heads; h++) {
                const double q = norm_of_mat_row(&a->q, r, h * a->head_dim, a->head_dim);
                const double delta = (double)a->scale * chain(a->head_dim) * q * norm + 16 * U + (bf16 ? B16 : 0);
                const double error = (expm1(2 * delta) + chain(a->n_window + n_entries)) * most * 1.5;
                for (int32_t i = h * a->head_dim; i < (h + 1) * a->head_dim; i++) {
                    const size_t at_i = (size_t)r * (size_t)a->o.cols + (size_t)i;
                    b->bound[0][at_i] = error + own(&b->ref[0], (double)b->ref[0].value[at_i]) + (bf16 ? B16 * most : 0);
                }
            }
    }
}

/* post and comb are sigmoids and a normalised softmax of `mix`, a product over all streams of which r makes the length
 * sqrt(n). x is the norm of their sum of streams. */
static double mix_error(const float *fn, int32_t n_mix, int32_t n, const float *scale, int32_t n_scales)
{
    double most = 0, widest = 0;
    for (int32_t k = 0; k < n_mix; k++)
        most = fmax(most, norm_of(fn + (size_t)k * (size_t)n, n));
    for (int32_t k = 0; k < n_scales; k++)
        widest = fmax(widest, fabs((double)scale[k]));
    return 2 * chain(n) * sqrt((double)n) * most * widest + 32 * U;
}

/* Of the norm of a collapsed row whose elements have the error share * sum |stream|. */
static void collapsed(struct bounds *b, int32_t k, const struct nib_mat *streams, int32_t n_hc, const struct nib_mat *c,
                      const float *weight, double eps, double share, double rounding)
{
    const struct nib_values *v = &b->ref[k];
    const int32_t dim = v->cols;
    for (int32_t r = 0; r < v->rows; r++) {
        const double length = norm_of_mat_row(c, r, 0, dim);
        const double inverse = 1 / sqrt(length * length / dim + eps);
        double error = 0;
        for (int32_t i = 0; i < dim; i++) {
            double e = 0;
            for (int32_t s = 0; s < n_hc; s++)
                e += fabs(at(streams, r, s * dim + i));
            b->scratch[i] = (float)(e * share);
            error += e * share * e * share;
        }
        const double relative = sqrt(error) / (length > 0 ? length : 1) + chain(dim) + rounding;
        for (int32_t i = 0; i < dim; i++) {
            const size_t at_i = (size_t)r * (size_t)dim + (size_t)i;
            const double ref = (double)v->value[at_i];
            b->bound[k][at_i] = fabs((double)weight[i]) * inverse * ((double)b->scratch[i] + fabs(at(c, r, i)) * relative) +
                                own(v, ref) + 16 * U * fabs(ref);
        }
    }
}

static void hc_pre(struct bounds *b, const struct nib_hc_pre_args *a)
{
    const int32_t n_mix = (2 + a->n_hc) * a->n_hc, n = a->streams.cols;
    const double delta = mix_error(a->fn, n_mix, n, a->scale, 3);
    const bool bf16 = a->streams.dtype == NIB_DTYPE_BF16;
    for (int32_t k = 0; k < 2; k++) /* Sinkhorn's divisions do not widen a relative error, but each adds its roundings */
        for (int32_t r = 0; r < b->ref[k].rows; r++)
            fill(b, k, 8 * delta + 8 * a->n_iters * U, r);
    for (int32_t k = 2; k < b->n; k++)
        collapsed(b, k, &a->streams, a->n_hc, &a->collapsed, a->norm_weight, (double)a->norm_eps, delta + 8 * U, bf16 ? 2 * B16 : 0);
}

/* |a| of an expert is at most |g||u|, and ||g|| ||x|| goes by the rows of w1 and w3. Codes of a quantised inner row may
 * fall to the neighbour: an eighth of a value for FP8, half for NVFP4; one in 64 of them is allowed to, which is an
 * eighth of the norm. */
static void experts(struct bounds *b, const struct nib_moe_args *a)
{
    struct nib_shadow *s = b->o->shadow;
    const float *n1 = nib_shadow_row_norms(s, a->w1), *n2 = nib_shadow_row_norms(s, a->w2), *n3 = nib_shadow_row_norms(s, a->w3);
    const float *m1 = nib_shadow_row_norms(s, a->sw1), *m2 = nib_shadow_row_norms(s, a->sw2), *m3 = nib_shadow_row_norms(s, a->sw3);
    const struct nib_values *v = &b->ref[0];
    const double flip = a->w2->act == NIB_ACT_FP8 ? 0.125 / 8 : a->w2->act == NIB_ACT_NVFP4 ? 0.5 / 8 : 0;
    const double rounding = v->dtype == NIB_DTYPE_BF16 ? 3 * B16 : 0;
    if (!n1 || !n2 || !n3 || !m1 || !m2 || !m3) {
        b->failed = true;
        return;
    }
    for (int32_t r = 0; r < v->rows; r++) {
        const double x = operand_norm(&a->x, a->w1->act, r, b->scratch);
        for (int32_t i = 0; i < v->cols; i++)
            b->bound[0][(size_t)r * (size_t)v->cols + (size_t)i] = own(v, (double)v->value[(size_t)r * (size_t)v->cols + (size_t)i]);
        for (int32_t e = 0; e <= a->top_k; e++) {
            const bool shared = e == a->top_k;
            const struct nib_weight *w1 = shared ? a->sw1 : a->w1, *w2 = shared ? a->sw2 : a->w2;
            const int32_t id = shared ? 0 : a->chosen[r * a->top_k + e], inner = w1->n_out, dim = w2->n_out;
            const double weight = shared ? 1 : fabs((double)a->weights[r * a->top_k + e]);
            const float *g = (shared ? m1 : n1) + (size_t)id * (size_t)inner, *u = (shared ? m3 : n3) + (size_t)id * (size_t)inner;
            const float *y = (shared ? m2 : n2) + (size_t)id * (size_t)dim;
            double sum = 0;
            for (int32_t i = 0; i < inner; i++) {
                double gu = (double)g[i] * x * (double)u[i] * x;
                if (a->limit > 0)
                    gu = fmin(gu, (double)a->limit * (double)a->limit);
                sum += gu * gu;
            }
            const double relative = 4 * chain(w1->n_in) + chain(w2->n_in) + 32 * U + rounding + flip;
            for (int32_t i = 0; i < dim; i++)
                b->bound[0][(size_t)r * (size_t)v->cols + (size_t)i] += weight * relative * sqrt(sum) * (double)y[i];
        }
        for (int32_t k = 1; k < b->n; k++) /* chosen, and weights to a few parts in 10^6 */
            for (int32_t e = 0; e < a->top_k; e++)
                b->bound[k][r * a->top_k + e] = k == 1 ? 0 : (2 * chain(a->router->n_in) * x + 16 * U) * 4 + 1e-6;
    }
}

static void sampled(struct bounds *b)
{
    for (int32_t r = 0; r < b->ref[0].rows; r++) {
        b->bound[0][r] = 0;
        b->bound[1][r] = 64 * U * (1 + fabs((double)b->ref[1].value[r]));
    }
}

static void bound_op(struct bounds *b, enum nib_op op, const void *args)
{
    switch (op) {
    case NIB_OP_EMBED: case NIB_OP_COPY_ROWS: return; /* exact */
    case NIB_OP_INDEX_SELECT: return; /* a choice: observe_compare.c */
    case NIB_OP_NORM: { const struct nib_norm_args *a = args; normed(b, a->x.cols, 0); return; }
    case NIB_OP_LINEAR: {
        const struct nib_linear_args *a = args;
        for (int32_t i = 0; i < a->n_weights; i++)
            products(b, i, &a->x, a->w[i], 1);
        return;
    }
    case NIB_OP_Q_ROPE: {
        const struct nib_q_rope_args *a = args;
        const double rounding = a->q.dtype == NIB_DTYPE_BF16 ? 4 * B16 : 0;
        turned(b, 0, a->head_dim, a->rope.n_rot, chain(a->head_dim) + 32 * U + rounding);
        return;
    }
    case NIB_OP_KV_INSERT: {
        const struct nib_kv_insert_args *a = args;
        const double rounding = a->kv.dtype == NIB_DTYPE_BF16 ? 2 * B16 : 0;
        turned(b, 0, a->kv.cols, a->rope.n_rot, chain(a->kv.cols) + 32 * U + rounding);
        return;
    }
    case NIB_OP_COMPRESS: pooled(b, args); return;
    case NIB_OP_ATTEND: attended(b, args); return;
    case NIB_OP_O_A: {
        const struct nib_o_a_args *a = args;
        const struct nib_act x = {.plain = a->x, .rows = a->x.rows, .cols = a->x.cols};
        for (int32_t k = 0; k < b->n; k++)
            products(b, k, &x, a->w, a->n_groups);
        return;
    }
    case NIB_OP_MOE: experts(b, args); return;
    case NIB_OP_HC_PRE: hc_pre(b, args); return;
    case NIB_OP_HC_POST: case NIB_OP_MTP_JOIN: /* a few products and sums, of the magnitudes before */
        for (size_t i = 0; i < (size_t)b->ref[0].rows * (size_t)b->ref[0].cols; i++)
            b->bound[0][i] = 16 * U * b->bound[0][i] + own(&b->ref[0], (double)b->ref[0].value[i]);
        return;
    case NIB_OP_HC_HEAD: {
        const struct nib_hc_head_args *a = args;
        const double delta = mix_error(a->fn, a->n_hc, a->streams.cols, a->scale, 1);
        collapsed(b, 0, &a->streams, a->n_hc, &a->collapsed, a->norm_weight, (double)a->norm_eps, delta + 8 * U,
                  a->x.dtype == NIB_DTYPE_BF16 ? 2 * B16 : 0);
        return;
    }
    case NIB_OP_HEAD: {
        const struct nib_head_args *a = args;
        const struct nib_act x = {.plain = a->x, .rows = a->x.rows, .cols = a->x.cols};
        products(b, 0, &x, a->w, 1);
        return;
    }
    case NIB_OP_SAMPLE: sampled(b); return;
    case NIB_N_OPS: return;
    }
}

bool nib_op_bounds(struct nib_observer *o, enum nib_op op, const void *args, const struct nib_values *ref, int32_t n, double **bound)
{
    struct bounds b = {.o = o, .ref = ref, .n = n, .bound = bound};
    const struct nib_config *c = o->engine->rank.config;
    const int32_t widest[] = {c->n_hc * c->dim, c->n_heads * c->head_dim, c->n_groups * c->o_rank, c->n_inner * (c->n_shared + 1),
                              c->q_rank};
    int32_t most = 0;
    for (size_t i = 0; i < sizeof widest / sizeof widest[0]; i++)
        most = widest[i] > most ? widest[i] : most;
    b.scratch = nib_arena_array(&o->arena, (size_t)most, sizeof *b.scratch);
    if (!b.scratch)
        return false;
    bound_op(&b, op, args);
    for (int32_t k = 0; k < n && !b.failed; k++) {
        if (ref[k].kind == NIB_VALUES_ACT)
            add_act_grid(&ref[k], bound[k]);
        else if (ref[k].kind == NIB_VALUES_ROWS)
            add_row_grid(&ref[k], bound[k]);
    }
    return !b.failed;
}
