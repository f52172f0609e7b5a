/* What the tests of the reference backend share (with RIG_API defined, those of another one): an opened backend of
 * small odd shapes, memory that is freed with it, matrices, steps of several sequences on scattered pages, and weights
 * of every type with their values in double. */
#ifndef NIB_TESTS_REF_RIG_H
#define NIB_TESTS_REF_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "number/bf16.h"
#include "number/weight_rows.h"
#include "unit/number_model.h"

/* The backend; others must also have memory that the host can read and write. */
#ifndef RIG_API
#define RIG_API nib_backend_ref
#endif

enum {
    RIG_ROWS = 700, RIG_SEQS = 3, RIG_CTX = 700, RIG_DIM = 96, RIG_HC = 4, RIG_HEADS = 10, RIG_HEAD_DIM = 48,
    RIG_ROT = 16, RIG_INDEX_HEADS = 3, RIG_INDEX_DIM = 32, RIG_EXPERTS = 6, RIG_TOP_K = 3, RIG_INNER = 64,
    RIG_SHARED = 160, RIG_VOCAB = 300, RIG_PAGES = 24, RIG_MEMORY = 256
};

struct rig {
    struct nib_backend   *b;
    struct nib_stream    *s;
    const struct nib_ops *ops;
    uint64_t              seed;
    void                 *memory[RIG_MEMORY];
    int                   n_memory;
    struct nib_weight    *weight[RIG_MEMORY];
    int                   n_weight;
};

static inline struct nib_backend_config rig_config(int n_threads)
{
    return (struct nib_backend_config){
        .dims = {.n_rows_max = RIG_ROWS, .n_seqs_max = RIG_SEQS, .n_ctx_max = RIG_CTX, .dim = RIG_DIM, .n_hc = RIG_HC,
                 .n_heads = RIG_HEADS, .head_dim = RIG_HEAD_DIM, .n_rot = RIG_ROT, .q_rank = 160, .n_groups = 2,
                 .o_rank = 48, .n_window = 128, .n_index_heads = RIG_INDEX_HEADS, .index_dim = RIG_INDEX_DIM,
                 .index_top_k = 16, .n_experts = RIG_EXPERTS, .top_k = RIG_TOP_K, .n_inner = RIG_INNER,
                 .n_inner_shared = RIG_SHARED, .vocab = RIG_VOCAB},
        .n_threads = n_threads,
        .cpu_mask = ~0u};
}

static inline void rig_open(struct rig *r, int n_threads)
{
    struct nib_backend_config c = rig_config(n_threads);
    struct nib_error          err;
    memset(r, 0, sizeof *r);
    r->seed = 77;
    assert_int_equal(RIG_API.open(&c, &r->b, &err), NIB_OK);
    r->s = RIG_API.stream(r->b);
    r->ops = RIG_API.ops;
}

static inline void rig_close(struct rig *r)
{
    while (r->n_weight > 0)
        RIG_API.weight_free(r->b, r->weight[--r->n_weight]);
    while (r->n_memory > 0)
        RIG_API.release(r->b, r->memory[--r->n_memory]);
    RIG_API.close(r->b);
}

static inline void *rig_alloc(struct rig *r, size_t bytes)
{
    void *p = RIG_API.alloc(r->b, bytes);
    assert_non_null(p);
    assert_true(r->n_memory < RIG_MEMORY);
    r->memory[r->n_memory++] = p;
    return p;
}

/* ---- Matrices ---- */

/* Rows are longer than cols; everything starts as NaN, so that what an op did not write shows. */
static inline struct nib_mat rig_mat(struct rig *r, enum nib_dtype dtype, int rows, int cols)
{
    int64_t stride = cols + 3;
    size_t  n = (size_t)(rows + 1) * (size_t)stride;
    void   *data = rig_alloc(r, n * 4);
    for (size_t i = 0; i < n; i++) {
        if (dtype == NIB_DTYPE_F32)
            ((float *)data)[i] = NAN;
        else
            ((uint16_t *)data)[i] = 0x7fc0;
    }
    return (struct nib_mat){data, dtype, rows, cols, stride};
}

static inline double rig_get(const struct nib_mat *m, int t, int i)
{
    if (m->dtype == NIB_DTYPE_F32)
        return (double)((const float *)m->data)[t * m->stride + i];
    return (double)nib_bf16_to_f32(((const uint16_t *)m->data)[t * m->stride + i]);
}

static inline void rig_set(const struct nib_mat *m, int t, int i, float v)
{
    if (m->dtype == NIB_DTYPE_F32)
        ((float *)m->data)[t * m->stride + i] = v;
    else
        ((uint16_t *)m->data)[t * m->stride + i] = nib_bf16_from_f32(v);
}

static inline void rig_randomise(struct rig *r, const struct nib_mat *m)
{
    for (int t = 0; t < m->rows; t++) {
        for (int i = 0; i < m->cols; i++)
            rig_set(m, t, i, model_uniform(&r->seed));
    }
}

static inline struct nib_mat rig_random_mat(struct rig *r, enum nib_dtype dtype, int rows, int cols)
{
    struct nib_mat m = rig_mat(r, dtype, rows, cols);
    rig_randomise(r, &m);
    return m;
}

static inline float *rig_random_floats(struct rig *r, int n, float low, float high)
{
    float *x = rig_alloc(r, (size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = low + (high - low) * (model_uniform(&r->seed) + 1) / 2;
    return x;
}

/* The rows [begin, begin + n) of m. */
static inline struct nib_mat rig_slice(const struct nib_mat *m, int begin, int n)
{
    struct nib_mat part = *m;
    part.data = (char *)m->data + begin * m->stride * (m->dtype == NIB_DTYPE_F32 ? 4 : 2);
    part.rows = n;
    return part;
}

/* Bit for bit, between the same rows of two matrices of one type; NaN equals NaN. */
static inline void rig_assert_same_row(const struct nib_mat *a, int ta, const struct nib_mat *b, int tb)
{
    for (int i = 0; i < a->cols; i++) {
        double x = rig_get(a, ta, i), y = rig_get(b, tb, i);
        if (!(x == y || (isnan(x) && isnan(y))))
            fail_msg("row %d against %d, column %d: %.9g, %.9g", ta, tb, i, x, y);
    }
}

/* `got` must be `wanted` rounded to its type: half an ulp of the type, and slack for sums in another order in double
 * (mag: sum of the magnitudes that went in). */
static inline void rig_assert_near(double got, double wanted, double mag, enum nib_dtype dtype)
{
    double unit = dtype == NIB_DTYPE_F32 ? 0x1p-24 : 0x1.01p-8; /* bf16: rounded through fp32 */
    double bound = unit * fabs(wanted) + 0x1p-45 * mag + 0x1p-149;
    if (!(fabs(got - wanted) <= bound))
        fail_msg("got %.12g, wanted %.12g, off by %.3g, allowed %.3g", got, wanted, fabs(got - wanted), bound);
}

static inline void rig_assert_nan_row(const struct nib_mat *m, int t)
{
    int n = 0;
    for (int i = 0; i < m->cols; i++)
        n += !isfinite(rig_get(m, t, i));
    if (n == 0)
        fail_msg("row %d hides a NaN", t);
}

static inline void rig_assert_finite_row(const struct nib_mat *m, int t)
{
    for (int i = 0; i < m->cols; i++)
        assert_true(isfinite(rig_get(m, t, i)));
}

/* ---- Activations ---- */

/* Rows in the given formats, made by op norm with weight 1 from x; `plain` false leaves that part out. */
static inline struct nib_act rig_act_mat(struct rig *r, enum nib_dtype dtype, enum nib_act_format format, bool plain,
                                         int rows, int cols)
{
    struct nib_act a = {.format = format, .rows = rows, .cols = cols};
    if (plain)
        a.plain = rig_mat(r, dtype, rows, cols);
    if (format != NIB_ACT_PLAIN) {
        a.codes_stride = nib_act_codes_stride(format, cols);
        a.scales_stride = nib_act_scales_stride(format, cols);
        a.codes = rig_alloc(r, (size_t)(rows * a.codes_stride));
        a.scales = rig_alloc(r, (size_t)(rows * a.scales_stride));
        a.row_scale = format == NIB_ACT_NVFP4 ? rig_alloc(r, (size_t)rows * sizeof(float)) : NULL;
    }
    return a;
}

/* A row after the quantisation that `format` names, by number_model.h. */
static inline void rig_quantise(enum nib_act_format format, const float *x, int n, float *y)
{
    memcpy(y, x, (size_t)n * sizeof *x);
    if (format == NIB_ACT_FP8)
        model_fp8_sim(x, n, 128, y);
    if (format == NIB_ACT_NVFP4)
        model_nvfp4_sim(x, n, y);
    for (int b = 0; format == NIB_ACT_INT8 && b < n; b += 32) {
        int   len = n - b < 32 ? n - b : 32;
        float s = (float)(model_amax(x + b, len) / 127);
        for (int i = b; i < b + len; i++)
            y[i] = s > 0 ? (float)(nearbyint((double)(float)((double)x[i] / (double)s)) * (double)s) : 0;
    }
}

/* ---- Weights ---- */

/* n_stack random matrices; *values receives [n_stack][n_out][n_in] in double, globals included. */
static inline struct nib_weight *rig_weight(struct rig *r, enum nib_weight_type type, enum nib_act_format act,
                                            int n_stack, int n_out, int n_in, double **values)
{
    int64_t                 n = (int64_t)n_out * n_in, blocks = (n_in + 127) / 128;
    struct nib_weight_part *part = rig_alloc(r, (size_t)n_stack * sizeof *part);
    struct nib_weight      *w;
    struct nib_error        err;
    double                 *v = rig_alloc(r, (size_t)(n_stack * n) * sizeof *v);
    for (int e = 0; e < n_stack; e++, v += n) {
        float   *x = rig_random_floats(r, (int)n, -1, 1);
        uint8_t *codes = rig_alloc(r, (size_t)n * 4), *scales = rig_alloc(r, (size_t)n);
        float    g = 1;
        if (e == 0 && values)
            *values = v;
        for (int64_t i = 0; i < n; i++) /* blocks differ in scale, so that a wrong block shows */
            x[i] = ldexpf(x[i], -(int)(i / n_in / 100 + 2 * (i % n_in / 50)));
        if (type == NIB_WEIGHT_NVFP4) {
            g = nib_nvfp4_global_scale(1) * (float)(e + 1);
            assert_int_equal(nib_nvfp4_weight_encode(x, n_out, n_in, g, codes, scales), NIB_OK);
        } else if (type == NIB_WEIGHT_MXFP4) {
            assert_int_equal(nib_mxfp4_weight_encode(x, n_out, n_in, codes, scales), NIB_OK);
        } else if (type == NIB_WEIGHT_FP8) {
            assert_int_equal(nib_fp8_weight_encode(x, n_out, n_in, codes, scales), NIB_OK);
        }
        for (int64_t i = 0; i < n; i++) {
            int64_t  o = i / n_in, k = i % n_in;
            uint16_t h = nib_bf16_from_f32(x[i]);
            uint32_t nibble = (uint32_t)codes[i / 2] >> (i % 2 * 4) & 15u;
            switch (type) {
            case NIB_WEIGHT_F32:
                memcpy(codes + 4 * i, &x[i], 4);
                v[i] = (double)x[i];
                break;
            case NIB_WEIGHT_BF16:
                memcpy(codes + 2 * i, &h, 2);
                v[i] = (double)model_bf16(x[i]);
                break;
            case NIB_WEIGHT_FP8:
                v[i] = ldexp(model_e4m3(codes[i]), scales[o / 128 * blocks + k / 128] - 127);
                break;
            case NIB_WEIGHT_MXFP4: v[i] = ldexp(model_e2m1(nibble), scales[i / 32] - 127); break;
            case NIB_WEIGHT_NVFP4: v[i] = model_e2m1(nibble) * model_e4m3(scales[i / 16]) * (double)g; break;
            }
        }
        part[e] = (struct nib_weight_part){codes, type <= NIB_WEIGHT_BF16 ? NULL : scales, g};
    }
    struct nib_weight_desc d = {type, act, n_stack, n_out, n_in, part, NIB_USE_ANY};
    assert_int_equal(RIG_API.weight_pack(r->b, &d, &w, &err), NIB_OK);
    r->weight[r->n_weight++] = w;
    return w;
}

/* ---- Steps ---- */

/* Pages of a sequence are scattered, windows and entries differently; slots are not sequence numbers. */
struct rig_step {
    struct nib_rows rows;
    int32_t         token[RIG_ROWS], pos[RIG_ROWS], seq[RIG_ROWS], seq_start[RIG_SEQS + 1], slot[RIG_SEQS];
    int32_t         window_page[RIG_SEQS * 8], entry_page[RIG_SEQS * 8];
};

/* Rows first[i] .. first[i] + count[i] - 1 of each sequence i that has any; sequences are known by their number i,
 * whichever others take part. */
static inline void rig_step(struct rig_step *st, const int *first, const int *count)
{
    int32_t n = 0, n_seqs = 0;
    memset(st, 0, sizeof *st);
    for (int i = 0; i < RIG_SEQS; i++) {
        if (count[i] == 0)
            continue;
        st->seq_start[n_seqs] = n;
        st->slot[n_seqs] = (i + 1) % RIG_SEQS;
        for (int k = 0; k < 8; k++) {
            st->window_page[n_seqs * 8 + k] = (i * 8 + k) * 5 % RIG_PAGES;
            st->entry_page[n_seqs * 8 + k] = (i * 8 + k) * 7 % RIG_PAGES;
        }
        for (int k = 0; k < count[i]; k++, n++) {
            st->pos[n] = first[i] + k;
            st->seq[n] = n_seqs;
            st->token[n] = (i * 31 + st->pos[n] * 7) % RIG_VOCAB;
        }
        n_seqs++;
    }
    st->seq_start[n_seqs] = n;
    st->rows = (struct nib_rows){n, n_seqs, st->token, st->pos, st->seq, st->seq_start, st->slot, st->window_page,
                                 st->entry_page, 8, 0};
}

/* The row of sequence i's position p in a matrix that holds all sequences one after another. */
static inline int rig_home(int i, int p)
{
    static const int start[RIG_SEQS] = {0, 300, 520};
    return start[i] + p;
}

static inline struct nib_store rig_store(struct rig *r, enum nib_row_format format, int page_rows, int d, int n_rot)
{
    int64_t bytes = nib_row_bytes(format, d, n_rot);
    return (struct nib_store){rig_alloc(r, (size_t)(RIG_PAGES * page_rows * bytes)), format, page_rows, bytes};
}

static inline struct nib_rope rig_rope(struct rig *r)
{
    float *freq = rig_alloc(r, RIG_ROT / 2 * sizeof *freq);
    for (int i = 0; i < RIG_ROT / 2; i++)
        freq[i] = powf(100, -(float)(2 * i) / RIG_ROT);
    return (struct nib_rope){freq, RIG_ROT};
}

/* Rotate the last RIG_ROT of d values, sign -1 to rotate back. */
static inline void rig_rotate(const struct nib_rope *rope, double *x, int d, int pos, int sign)
{
    for (int i = 0; i < RIG_ROT / 2; i++) {
        double angle = (double)((float)pos * rope->freq[i]);
        double c = (double)(float)cos(angle), s = sign * (double)(float)sin(angle);
        double a = x[d - RIG_ROT + 2 * i], b = x[d - RIG_ROT + 2 * i + 1];
        x[d - RIG_ROT + 2 * i] = a * c - b * s;
        x[d - RIG_ROT + 2 * i + 1] = a * s + b * c;
    }
}

#endif
