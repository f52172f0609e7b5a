/* One unit of the plan into its shard: bytes copied, or a matrix converted piece by piece. Threads share out rows; what
 * is summed over rows is summed row by row afterwards, so their number changes nothing. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/e4m3.h"
#include "quantize/quant.h"

#define COPY_BYTES  ((size_t)8 << 20)

struct job {
    struct nib_quant_context *c;
    struct nib_quant_unit    *u;
    int                       fd;
    const char               *dir;
    struct nib_error         *err;
};

/* Safe from any thread. */
static enum nib_status write_out(const struct job *j, int32_t out, uint64_t offset, const void *data, size_t n,
                                 struct nib_error *err)
{
    const struct nib_quant_plan   *p = j->c->plan;
    const struct nib_quant_output *o = &p->output[j->u->out + out];
    const struct nib_quant_shard  *s = &p->shard[o->shard];
    return nib_quant_write_at(j->fd, j->dir, s->name, s->header_bytes + o->offset + offset, data, n, err);
}

static enum nib_status put(const struct job *j, int32_t out, uint64_t offset, const void *data, size_t n)
{
    NIB_TRY(write_out(j, out, offset, data, n, j->err));
    *j->c->done_bytes += n;
    return NIB_OK;
}

static enum nib_status tick(const struct job *j)
{
    return j->c->tick ? j->c->tick(j->c, j->err) : NIB_OK;
}

/* ---- Copies ---- */

static bool is_finite_data(enum nib_st_dtype dtype, const unsigned char *p, size_t n)
{
    unsigned bad = 0;
    switch (dtype) {
    case NIB_ST_BF16:
        for (size_t i = 1; i < n; i += 2)
            bad |= (unsigned)((p[i] & 0x7f) == 0x7f && (p[i - 1] & 0x80));
        break;
    case NIB_ST_F32:
        for (size_t i = 3; i < n; i += 4)
            bad |= (unsigned)((p[i] & 0x7f) == 0x7f && (p[i - 1] & 0x80));
        break;
    case NIB_ST_F8_E4M3:
        for (size_t i = 0; i < n; i++)
            bad |= (unsigned)((p[i] & 0x7f) == 0x7f);
        break;
    case NIB_ST_F8_E8M0:
        for (size_t i = 0; i < n; i++)
            bad |= (unsigned)(p[i] == 0xff);
        break;
    default: break;
    }
    return !bad;
}

static enum nib_status copy(const struct job *j)
{
    const struct nib_quant_span   *s = &j->u->m.data;
    const struct nib_quant_output *o = &j->c->plan->output[j->u->out];
    unsigned char                 *buffer = malloc(s->bytes < COPY_BYTES ? (size_t)s->bytes + 1 : COPY_BYTES);
    enum nib_status status = buffer ? NIB_OK : nib_error_set(j->err, NIB_E_MEMORY, "no memory to copy '%s'", o->name);
    for (uint64_t at = 0; at < s->bytes && status == NIB_OK; at += COPY_BYTES) {
        const size_t n = s->bytes - at < COPY_BYTES ? (size_t)(s->bytes - at) : COPY_BYTES;
        status = nib_quant_read(j->c->plan, s, at, buffer, n, j->err);
        if (status == NIB_OK && !is_finite_data(o->dtype, buffer, n))
            status = nib_error_set(j->err, NIB_E_NUMERIC, "tensor '%s' of '%s' holds NaN or Inf", j->u->base,
                                   j->c->plan->src);
        if (status == NIB_OK)
            status = put(j, 0, at, buffer, n);
        *j->c->done_bytes += n;
        if (status == NIB_OK)
            status = tick(j);
    }
    free(buffer);
    return status;
}

static enum nib_status widen(const struct job *j)
{
    struct nib_quant_rows r = {0};
    const int64_t   cols = j->u->m.cols;
    enum nib_status status = nib_quant_rows_init(&r, j->c->plan, &j->u->m, j->c->chunk_bytes, 0, j->u->base, j->err);
    if (status == NIB_OK && !r.bf16)
        status = nib_error_set(j->err, NIB_E_UNSUPPORTED,
                               "matrix '%s': FP8 scales beyond BF16's range; --exclude or --include it", j->u->base);
    for (int64_t first = 0; first < j->u->m.rows && status == NIB_OK; first += r.n_rows_max) {
        status = nib_quant_rows_read(&r, j->c, first, j->err);
        if (status == NIB_OK)
            status = put(j, 0, (uint64_t)(first * cols * 2), r.bf16, (size_t)(r.n * cols) * 2);
        if (status == NIB_OK)
            status = tick(j);
    }
    *j->c->done_bytes += j->u->m.data.bytes;
    nib_quant_rows_deinit(&r);
    return status;
}

/* ---- Limits: what the global scale is chosen from ---- */

static enum nib_status find_amax(const struct job *j, struct nib_quant_unit *u, struct nib_quant_rows *r)
{
    float amax = 0;
    for (int64_t first = 0; first < u->m.rows; first += r->n_rows_max) {
        NIB_TRY(nib_quant_rows_read(r, j->c, first, j->err));
        amax = r->amax > amax ? r->amax : amax;
    }
    u->amax = amax;
    return NIB_OK;
}

static bool all_zero(const uint8_t *codes, size_t n)
{
    unsigned any = 0;
    for (size_t i = 0; i < n; i++)
        any |= codes[i] & 0x77u;
    return !any;
}

static enum nib_status find_k_max(const struct job *j, struct nib_quant_unit *u, struct nib_quant_rows *r)
{
    const int64_t n_blocks = u->m.cols / 32;
    int32_t       k_max = NIB_QUANT_NO_K;
    r->raw = true;
    for (int64_t first = 0; first < u->m.rows; first += r->n_rows_max) {
        NIB_TRY(nib_quant_rows_read(r, j->c, first, j->err));
#pragma omp parallel for schedule(static) num_threads(nib_quant_team(j->c, r->n * r->m->cols)) reduction(max : k_max)
        for (int64_t b = 0; b < r->n * n_blocks; b++) {
            const int32_t k = r->scales[b] - 127;
            if (k > k_max && !all_zero(r->data + b * 16, 16))
                k_max = k;
        }
    }
    u->k_max = k_max;
    r->raw = false;
    return NIB_OK;
}

static enum nib_status find_limit_in(const struct job *j, struct nib_quant_unit *u, struct nib_quant_rows *r)
{
    if (!u->limit_known)
        NIB_TRY(u->action == NIB_QUANT_CAST ? find_k_max(j, u, r) : find_amax(j, u, r));
    u->limit_known = true;
    return NIB_OK;
}

/* Of this unit and of its partner, whose rows are read besides; they come next, and stay if they fit. */
static enum nib_status find_limits(const struct job *j)
{
    struct nib_quant_context *c = j->c;
    NIB_TRY(find_limit_in(j, j->u, &c->rows[0]));
    if (j->u->partner < 0 || c->plan->unit[j->u->partner].limit_known)
        return NIB_OK;
    struct nib_quant_unit *other = &c->plan->unit[j->u->partner];
    NIB_TRY(nib_quant_rows_init(&c->rows[1], c->plan, &other->m, c->chunk_bytes, 0, other->base, j->err));
    NIB_TRY(find_limit_in(j, other, &c->rows[1]));
    c->partner = c->rows[1].n_rows_max == other->m.rows ? j->u->partner : -1;
    return NIB_OK;
}

/* This unit's rows: those that were read as a partner's, or nothing yet. */
static enum nib_status begin_rows(const struct job *j)
{
    struct nib_quant_context *c = j->c;
    if (c->partner >= 0 && &c->plan->unit[c->partner] == j->u) {
        const struct nib_quant_rows rows = c->rows[0];
        c->rows[0] = c->rows[1];
        c->rows[1] = rows;
        c->partner = -1;
        return NIB_OK;
    }
    return nib_quant_rows_init(&c->rows[0], c->plan, &j->u->m, c->chunk_bytes, 0, j->u->base, j->err);
}

/* ---- Conversion of a piece ---- */

/* Per row of a piece. */
struct piece {
    struct nib_quant_sums *sums;
    uint64_t              *recoded;
    uint64_t *inexact; /* CAST: recoded blocks that changed; ENCODE: blocks with a subnormal or zero scale */
};

/* What a thread works on: some rows, written together. */
struct slice {
    int64_t  rows_max;
    uint8_t *codes, *scales;
    float   *spare; /* GPTQ: [cols] */
};

/* Everything that is the same for all rows. */
struct recipe {
    float                 g, unit;
    enum nib_quant_choice how;
    const float          *weight; /* [cols] or NULL */
    struct nib_quant_gptq gptq;   /* order NULL: not used */
    int32_t               k_max;
};

/* Scale byte of an MXFP4 block with exponent k; -1 if E4M3 has no such power under this global scale. */
static int cast_scale(int32_t k, int32_t k_max)
{
    const int32_t e = k - k_max + 8;
    return e < -9 || e > 8 ? -1 : e >= -6 ? (e + 7) << 3 : 1 << (e + 9);
}

static void cast_row(const struct job *j, const struct nib_quant_rows *r, const struct recipe *a,
                     const struct piece *out, int64_t i, uint8_t *codes, uint8_t *scales)
{
    const int64_t        cols = r->m->cols, n_blocks = cols / 32;
    struct nib_quant_row row = nib_quant_rows_at(r, i);
    row.g = a->g;
    row.unit = a->unit;
    memcpy(codes, r->data + i * (cols / 2), (size_t)cols / 2);
    for (int64_t b = 0; b < n_blocks; b++) {
        const int  s = cast_scale(r->scales[i * n_blocks + b] - 127, a->k_max);
        const bool zero = s < 0 && all_zero(codes + b * 16, 16);
        scales[2 * b] = scales[2 * b + 1] = (uint8_t)(s < 0 ? 0 : s);
        for (int64_t half = 2 * b; s < 0 && !zero && half < 2 * b + 2; half++) {
            const bool            nothing = all_zero(codes + half * 8, 8);
            struct nib_quant_row  one = row;
            struct nib_quant_sums sums = {0};
            one.bf16 += half * NIB_QUANT_BLOCK;
            one.n_blocks = 1;
            j->c->kernels->choose(&one, NIB_QUANT_CHOOSE_MSE, scales + half);
            j->c->kernels->encode(&one, scales + half, codes + half * 8, &sums);
            out->recoded[i]++;
            out->inexact[i] += sums.ee > 0 || (scales[half] == 0 && !nothing);
        }
    }
    j->c->kernels->measure(&row, scales, codes, &out->sums[i]);
}

static bool is_zero_block(const struct nib_quant_row *r, int64_t b)
{
    for (int64_t k = b * NIB_QUANT_BLOCK; k < (b + 1) * NIB_QUANT_BLOCK; k++)
        if (r->f32 ? r->f32[k] != 0 : (r->bf16[k] & 0x7fffu) != 0)
            return false;
    return true;
}

static void encode_row(const struct job *j, const struct nib_quant_rows *r, const struct recipe *a,
                       const struct piece *out, int64_t i, uint8_t *codes, uint8_t *scales, float *spare)
{
    const int64_t        cols = r->m->cols;
    struct nib_quant_row row = nib_quant_rows_at(r, i);
    row.g = a->g;
    row.unit = a->unit;
    row.weight = a->weight;
    j->c->kernels->choose(&row, a->how, scales);
    for (int64_t b = 0; b < row.n_blocks; b++)
        if (scales[b] < 8)
            out->inexact[i] += scales[b] > 0 || !is_zero_block(&row, b);
    if (a->gptq.order) {
        for (int64_t k = 0; k < cols; k++)
            spare[k] = row.f32 ? row.f32[k] : nib_f32_from_bits((uint32_t)row.bf16[k] << 16);
        out->sums[i].saturated = nib_quant_gptq_row(&a->gptq, spare, a->g, scales, codes);
        j->c->kernels->measure(&row, scales, codes, &out->sums[i]);
    } else {
        j->c->kernels->encode(&row, scales, codes, &out->sums[i]);
    }
}

static bool slice_init(struct slice *s, const struct nib_quant_rows *r, bool gptq)
{
    const size_t cols = (size_t)r->m->cols;
    s->rows_max = nib_quant_rows_slice(r);
    s->codes = malloc((size_t)s->rows_max * (cols / 2) + 1);
    s->scales = malloc((size_t)s->rows_max * (cols / NIB_QUANT_BLOCK) + 1);
    s->spare = gptq ? malloc(cols * sizeof *s->spare + 1) : NULL;
    return s->codes && s->scales && (s->spare || !gptq);
}

static void slice_deinit(struct slice *s)
{
    free(s->codes);
    free(s->scales);
    free(s->spare);
}

/* Rows [at, at + n) of the piece, converted and written. */
static enum nib_status convert_slice(const struct job *j, const struct nib_quant_rows *r, const struct recipe *a,
                                     const struct piece *out, struct slice *s, int64_t at, int64_t n,
                                     struct nib_error *err)
{
    const int64_t cols = r->m->cols, code_bytes = cols / 2, scale_bytes = cols / NIB_QUANT_BLOCK;
    for (int64_t i = 0; i < n; i++) {
        uint8_t *codes = s->codes + i * code_bytes, *scales = s->scales + i * scale_bytes;
        if (j->u->action == NIB_QUANT_CAST)
            cast_row(j, r, a, out, at + i, codes, scales);
        else
            encode_row(j, r, a, out, at + i, codes, scales, s->spare);
    }
    const uint64_t row = (uint64_t)(r->first + at);
    NIB_TRY(write_out(j, 0, row * (uint64_t)code_bytes, s->codes, (size_t)(n * code_bytes), err));
    return write_out(j, 1, row * (uint64_t)scale_bytes, s->scales, (size_t)(n * scale_bytes), err);
}

static void add_piece(const struct job *j, const struct nib_quant_rows *r, const struct piece *out)
{
    struct nib_quant_stats *stats = &j->u->stats;
    for (int64_t i = 0; i < r->n; i++) {
        nib_quant_sums_add(&stats->sums, &out->sums[i]);
        stats->n_recoded += out->recoded[i];
        *(j->u->action == NIB_QUANT_CAST ? &stats->n_recoded_inexact : &stats->n_vanished) += out->inexact[i];
    }
    *j->c->done_bytes += (uint64_t)(r->n * (r->m->cols / 2 + r->m->cols / NIB_QUANT_BLOCK));
}

static enum nib_status convert_piece(const struct job *j, const struct nib_quant_rows *r, const struct recipe *a,
                                     const struct piece *out)
{
    enum nib_status status = NIB_OK;
    memset(out->sums, 0, (size_t)r->n * sizeof *out->sums);
    memset(out->recoded, 0, (size_t)r->n * sizeof *out->recoded);
    memset(out->inexact, 0, (size_t)r->n * sizeof *out->inexact);
#pragma omp parallel num_threads(nib_quant_team(j->c, r->n * r->m->cols))
    {
        struct slice s;
        const bool   ready = slice_init(&s, r, a->gptq.order != NULL);
#pragma omp for schedule(dynamic, 1)
        for (int64_t at = 0; at < r->n; at += nib_quant_rows_slice(r)) {
            const int64_t    n = r->n - at < s.rows_max ? r->n - at : s.rows_max;
            struct nib_error e;
            const enum nib_status done = ready ? convert_slice(j, r, a, out, &s, at, n, &e)
                                               : nib_error_set(&e, NIB_E_MEMORY, "no memory for rows of '%s'",
                                                               j->u->base);
            if (done != NIB_OK) {
#pragma omp critical(nib_quant_convert_failed)
                status = nib_error_set(j->err, done, "%s", e.text);
            }
        }
        slice_deinit(&s);
    }
    NIB_TRY(status);
    add_piece(j, r, out);
    return tick(j);
}

static enum nib_status piece_init(struct piece *out, int64_t rows, const char *name, struct nib_error *err)
{
    const size_t n = (size_t)rows;
    out->sums = malloc(n * sizeof *out->sums + 1);
    out->recoded = malloc(n * sizeof *out->recoded + 1);
    out->inexact = malloc(n * sizeof *out->inexact + 1);
    if (!out->sums || !out->recoded || !out->inexact)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for %" PRId64 " rows of '%s'", rows, name);
    return NIB_OK;
}

static void piece_deinit(struct piece *out)
{
    free(out->sums);
    free(out->recoded);
    free(out->inexact);
}

/* ---- Recipes ---- */

static enum nib_status cast_recipe(const struct job *j, struct recipe *a)
{
    const struct nib_quant_unit *u = j->u;
    int32_t                      k = u->k_max;
    if (u->partner >= 0 && j->c->plan->unit[u->partner].k_max > k)
        k = j->c->plan->unit[u->partner].k_max;
    a->k_max = k == NIB_QUANT_NO_K ? 0 : k;
    /* Rows are decoded in units of 2^k_max, so that exponents near both ends of E8M0 are in range; so is the global
     * scale here. */
    a->g = 0x1p-8f;
    a->unit = 0.25f;
    j->u->stats.global_scale = ldexpf(1.0f, a->k_max - 8);
    return NIB_OK;
}

static enum nib_quant_choice choice_of(enum nib_quant_method m)
{
    return m == NIB_QUANT_ABSMAX   ? NIB_QUANT_CHOOSE_ABSMAX
           : m == NIB_QUANT_4OVER6 ? NIB_QUANT_CHOOSE_4OVER6
                                   : NIB_QUANT_CHOOSE_MSE;
}

/* Mean squares of input channels as weights around 1. */
static float *weights_of(const struct nib_quant_inputs *in)
{
    float *w = malloc((size_t)in->n_in * sizeof *w);
    double mean = 0;
    for (int64_t i = 0; i < in->n_in; i++)
        mean += (double)in->mean_square[i] / (double)in->n_in;
    for (int64_t i = 0; w && i < in->n_in; i++) /* a channel that was never seen still counts a little */
        w[i] = mean > 0 ? (float)((double)in->mean_square[i] / mean * 0.99 + 0.01) : 1.0f;
    return w;
}

static enum nib_status calibrate(const struct job *j, struct recipe *a, float **weights)
{
    const enum nib_quant_method method = j->c->plan->options->method;
    struct nib_quant_inputs     in;
    bool                        found = false;
    if (!j->c->calibration)
        return NIB_OK;
    NIB_TRY(nib_quant_calibration_inputs(j->c->calibration, j->u, &found, &in, j->err));
    if (!found || in.n_rows == 0)
        return NIB_OK;
    if (in.amax > 0) {
        j->u->stats.input_scale = in.amax / 2688.0f;
        j->u->stats.calibrated = in.measured;
    }
    if (j->u->action == NIB_QUANT_CAST || (method != NIB_QUANT_MSE && method != NIB_QUANT_GPTQ))
        return NIB_OK;
    *weights = weights_of(&in);
    if (!*weights)
        return nib_error_set(j->err, NIB_E_MEMORY, "no memory for the channel weights of '%s'", j->u->base);
    a->weight = *weights;
    if (method == NIB_QUANT_GPTQ && in.hessian)
        return nib_quant_gptq_init(&a->gptq, in.hessian, in.n_in, j->c->n_threads, j->err);
    return NIB_OK;
}

static enum nib_status encode_recipe(const struct job *j, struct recipe *a)
{
    const struct nib_quant_unit *u = j->u;
    float                        amax = u->amax;
    if (u->partner >= 0 && j->c->plan->unit[u->partner].amax > amax)
        amax = j->c->plan->unit[u->partner].amax;
    a->how = choice_of(j->c->plan->options->method);
    /* 6 * 448, or 6 * 256 where scales above that of the largest block must have codes too. */
    a->g = amax / (a->how == NIB_QUANT_CHOOSE_ABSMAX ? 2688.0f : 1536.0f);
    if (!(a->g > 0))
        a->g = amax > 0 ? FLT_TRUE_MIN : 1.0f;
    a->unit = nib_quant_unit_of(amax);
    j->u->stats.global_scale = a->g;
    return NIB_OK;
}

static enum nib_status convert_rows(const struct job *j, struct nib_quant_rows *r, const struct recipe *a)
{
    struct piece    out;
    enum nib_status status = piece_init(&out, r->n_rows_max, j->u->base, j->err);
    for (int64_t first = 0; first < r->m->rows && status == NIB_OK; first += r->n_rows_max) {
        status = nib_quant_rows_read(r, j->c, first, j->err);
        if (status == NIB_OK)
            status = convert_piece(j, r, a, &out);
    }
    piece_deinit(&out);
    return status;
}

static enum nib_status put_scalars(const struct job *j)
{
    const struct nib_quant_stats *s = &j->u->stats;
    NIB_TRY(put(j, 2, 0, &s->global_scale, sizeof s->global_scale));
    return put(j, 3, 0, &s->input_scale, sizeof s->input_scale);
}

/* Sums were taken in units that suit the tensor; the report adds up tensors. Powers of two, so nothing is lost. */
static void sums_to_real(struct nib_quant_sums *s, const struct recipe *a, bool cast)
{
    const double one = cast ? ldexp(1.0, a->k_max) / (double)a->unit : 1.0 / (double)a->unit, factor = one * one;
    s->xx *= factor;
    s->yy *= factor;
    s->ee *= factor;
}

static enum nib_status convert(const struct job *j)
{
    struct nib_quant_rows *r = &j->c->rows[0];
    struct recipe          a = {.unit = 1};
    float                 *weights = NULL;
    const bool             cast = j->u->action == NIB_QUANT_CAST;
    j->u->stats.input_scale = 1.0f;
    enum nib_status status = begin_rows(j);
    if (status == NIB_OK)
        status = find_limits(j);
    if (status == NIB_OK)
        status = cast ? cast_recipe(j, &a) : encode_recipe(j, &a);
    if (status == NIB_OK)
        status = calibrate(j, &a, &weights);
    r->k_ref = a.k_max;
    if (status == NIB_OK)
        status = convert_rows(j, r, &a);
    if (status == NIB_OK)
        status = put_scalars(j);
    j->u->stats.exact = j->u->stats.sums.ee == 0 && j->u->stats.n_recoded_inexact == 0;
    sums_to_real(&j->u->stats.sums, &a, cast);
    if (a.gptq.order)
        nib_quant_gptq_deinit(&a.gptq);
    free(weights);
    *j->c->done_bytes += j->u->m.data.bytes + (j->u->m.scales.file < 0 ? 0 : j->u->m.scales.bytes);
    return status;
}

/* NVFP4 as it is, under the names and conventions of the destination. */
static enum nib_status relay(const struct job *j)
{
    struct nib_quant_rows   r = {0};
    const int64_t           cols = j->u->m.cols;
    struct nib_quant_stats *s = &j->u->stats;
    enum nib_status status = nib_quant_rows_init(&r, j->c->plan, &j->u->m, j->c->chunk_bytes, 0, j->u->base, j->err);
    s->input_scale = 1.0f;
    s->exact = true;
    if (status == NIB_OK && j->u->m.input_scale.file >= 0) {
        status = nib_quant_read_f32(j->c->plan, &j->u->m.input_scale, &s->input_scale, j->err);
        if (status == NIB_OK && j->u->m.divisor)
            s->input_scale = 1.0f / s->input_scale;
        if (status == NIB_OK && !(s->input_scale > 0 && nib_f32_is_finite(s->input_scale)))
            status = nib_error_set(j->err, NIB_E_NUMERIC, "matrix '%s': its input scale is not a finite value above 0",
                                   j->u->base);
        s->calibrated = true;
    }
    s->global_scale = r.global;
    for (int64_t first = 0; first < j->u->m.rows && status == NIB_OK; first += r.n_rows_max) {
        status = nib_quant_rows_read(&r, j->c, first, j->err);
        if (status == NIB_OK)
            status = put(j, 0, (uint64_t)(first * (cols / 2)), r.data, (size_t)(r.n * (cols / 2)));
        if (status == NIB_OK)
            status = put(j, 1, (uint64_t)(first * (cols / NIB_QUANT_BLOCK)), r.scales,
                         (size_t)(r.n * (cols / NIB_QUANT_BLOCK)));
        if (status == NIB_OK)
            status = tick(j);
    }
    if (status == NIB_OK)
        status = put_scalars(j);
    *j->c->done_bytes += j->u->m.data.bytes + j->u->m.scales.bytes;
    nib_quant_rows_deinit(&r);
    return status;
}

enum nib_status nib_quant_unit_write(struct nib_quant_context *c, int64_t unit, int fd, const char *dir,
                                     struct nib_error *err)
{
    const struct job j = {.c = c, .u = &c->plan->unit[unit], .fd = fd, .dir = dir, .err = err};
    j.u->stats.sums = (struct nib_quant_sums){0};
    j.u->stats.n_recoded = j.u->stats.n_recoded_inexact = j.u->stats.n_vanished = 0;
    switch (j.u->action) {
    case NIB_QUANT_COPY: return copy(&j);
    case NIB_QUANT_WIDEN: return widen(&j);
    case NIB_QUANT_CAST:
    case NIB_QUANT_ENCODE: return convert(&j);
    case NIB_QUANT_RELAY: return relay(&j);
    }
    return NIB_E_ARGUMENT;
}
