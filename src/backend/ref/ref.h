/* Inside of the reference backend: its stream with scratch, and the loads, stores and dot products that the ops share.
 *
 * ref is the definition of every op: plain loops, sums in double, formats from src/number and no arithmetic in common
 * with other backends. Rows between ops are fp32 or bf16. Element-wise steps in front of a quantiser are fp32 with a
 * rounding each (backend.h says why); elsewhere a value is rounded to fp32 where it would be stored.
 * Work is spread over rows, outputs or heads, never over a sum, so threads change no bit. */
#ifndef NIB_REF_H
#define NIB_REF_H

#include "backend/backend.h"
#include "number/bf16.h"

/* Heads that share one decoding of an attended row. */
#define NIB_REF_HEADS 8

/* What one thread needs; sizes in elements. */
struct nib_ref_thread {
    double  *weight;      /* [n_wide] a decoded weight row */
    double  *sum;         /* [n_wide] */
    double  *score;       /* [NIB_REF_HEADS * n_attend] */
    double  *logit;       /* [2 * vocab] */
    float   *row[3];      /* [n_wide] each */
    float   *angle;       /* [n_rot] cosines, then sines */
    float   *index_score; /* [n_ctx_max] */
    uint8_t *codes;       /* [n_wide] one quantised row */
    uint8_t *scales;      /* [n_wide] */
};

struct nib_stream {
    struct nib_dims        dims;
    int32_t                n_threads;
    int64_t                n_wide;   /* widest row of any op */
    int64_t                n_attend; /* most rows and entries that one query attends to */
    struct nib_ref_thread *thread;   /* [n_threads] */
    float                 *x[2];     /* [n_rows_max * n_wide] activations as floats: plain, quantised */
    float                 *hidden;   /* [n_rows_max * top_k * widest expert] */
    double                *sum;      /* [n_rows_max * dim] */
    float                 *route;    /* [n_rows_max * n_experts] */
    float                 *weight;   /* [n_rows_max * top_k] */
    int32_t               *chosen;   /* [n_rows_max * top_k] */
    int32_t               *pair;     /* [n_rows_max * top_k] */
};

/* Threads for this much work (multiply-adds, roughly): one where starting a team would cost more. */
int nib_ref_threads(const struct nib_stream *s, int64_t work);
/* The calling thread's scratch inside a parallel region of the op. */
struct nib_ref_thread *nib_ref_thread(const struct nib_stream *s);

/* ---- Rows ---- */

/* Row t of m as floats: in place for F32, else through buffer [cols]. */
const float *nib_ref_row(const struct nib_mat *m, int64_t t, float *buffer);
void         nib_ref_store_row(const struct nib_mat *m, int64_t t, const float *row);
void         nib_ref_store(const struct nib_mat *m, int64_t t, int64_t column, double v);
/* v, rounded to bf16 if asked. */
static inline float nib_ref_round(double v, bool bf16)
{
    return bf16 ? nib_bf16_round((float)v) : (float)v;
}

/* Fill the parts of y that are present from a row of floats; row is rounded to what the plain part stores. */
void nib_ref_act_store(const struct nib_act *y, int64_t t, float *row);
/* All rows of the part of x that `format` names, as floats [rows][*stride], in place or through buffer. */
const float *nib_ref_act_rows(const struct nib_stream *s, const struct nib_act *x, enum nib_act_format format,
                              float *buffer, int64_t *stride);
/* Replace a row by what it decodes to after quantisation. */
void nib_ref_act_round_trip(enum nib_act_format format, float *row, int32_t n, struct nib_ref_thread *th);

/* Address of row i (a position or an entry) given its sequence's page list. */
uint8_t *nib_ref_store_at(const struct nib_store *store, const int32_t *page, int64_t i);
void nib_ref_encode(enum nib_row_format format, const float *x, int32_t d, int32_t n_rot, uint8_t *row);
void nib_ref_decode(enum nib_row_format format, const uint8_t *row, int32_t d, int32_t n_rot, float *x);

/* ---- Weights ---- */

struct nib_ref_weight {
    struct nib_weight      head;
    struct nib_weight_part part[]; /* [n_stack] pointing into the source */
};

/* Row o of matrix i, code * block scale, exact; in buffer [n_in]. */
const double *nib_ref_weight_row(const struct nib_weight *w, int32_t i, int32_t o, double *buffer);
/* What sums with matrix i are multiplied by at the end. */
double nib_ref_weight_scale(const struct nib_weight *w, int32_t i);

/* ---- Arithmetic ---- */

/* Sums of n products in an order fixed by n: eight partial sums, then those. */
double nib_ref_dot(const double *a, const float *b, int64_t n);
double nib_ref_dot_f32(const float *a, const float *b, int64_t n);

/* y = (x * r) * weight with r = fp32(1 / sqrt(mean(x^2) + eps)), each product rounded to fp32; y may be x. */
void nib_ref_rms_norm(const float *x, const float *weight, int32_t n, float eps, float *y);

/* Cosines and sines at position pos (counted from first_pos) into angle [n_rot]. */
void nib_ref_angles(const struct nib_rope *rope, int32_t pos, float *angle);
/* Rotate the last n_rot of d channels, or rotate them back; in fp32, as the release does before it quantises. */
void nib_ref_rotate(float *x, int32_t d, int32_t n_rot, const float *angle, bool inverse);

double nib_ref_sigmoid(double v);

/* ---- Ops, one file a family ---- */

enum nib_status nib_ref_embed(struct nib_stream *s, const struct nib_embed_args *a);
enum nib_status nib_ref_norm(struct nib_stream *s, const struct nib_norm_args *a);
enum nib_status nib_ref_linear(struct nib_stream *s, const struct nib_linear_args *a);
enum nib_status nib_ref_q_rope(struct nib_stream *s, const struct nib_q_rope_args *a);
enum nib_status nib_ref_kv_insert(struct nib_stream *s, const struct nib_kv_insert_args *a);
enum nib_status nib_ref_compress(struct nib_stream *s, const struct nib_compress_args *a);
enum nib_status nib_ref_index_select(struct nib_stream *s, const struct nib_index_select_args *a);
enum nib_status nib_ref_attend(struct nib_stream *s, const struct nib_attend_args *a);
enum nib_status nib_ref_o_a(struct nib_stream *s, const struct nib_o_a_args *a);
enum nib_status nib_ref_moe(struct nib_stream *s, const struct nib_moe_args *a);
enum nib_status nib_ref_hc_pre(struct nib_stream *s, const struct nib_hc_pre_args *a);
enum nib_status nib_ref_hc_post(struct nib_stream *s, const struct nib_hc_post_args *a);
enum nib_status nib_ref_hc_head(struct nib_stream *s, const struct nib_hc_head_args *a);
enum nib_status nib_ref_head(struct nib_stream *s, const struct nib_head_args *a);
enum nib_status nib_ref_mtp_join(struct nib_stream *s, const struct nib_mtp_join_args *a);
enum nib_status nib_ref_copy_rows(struct nib_stream *s, const struct nib_copy_rows_args *a);
enum nib_status nib_ref_sample(struct nib_stream *s, const struct nib_sample_args *a);

#endif
