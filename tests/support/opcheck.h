/* The op checker: every op of every backend on random and hostile input, held to ref by arithmetic.
 *
 * A check makes a random case on the host and gives it to oc_all() with two functions: one that runs the op on any
 * backend, and one that judges a result. oc_all runs ref, then each variant of each other backend; judges it against
 * ref; and requires equal bits from a second run, from other thread counts and from the op called on a few rows at a
 * time. Outputs start as NaN (bytes 0xff), guard bands surround every buffer, inputs must come back unchanged.
 *
 * Bounds come from arithmetic: |got - ref| <= bound, where the bound is made from magnitudes (sum of |x||w|) that are
 * computed here in double from this folder's own decoders. OC_U is half an ulp of fp32 at 1. */
#ifndef NIB_TESTS_OPCHECK_H
#define NIB_TESTS_OPCHECK_H

#include <math.h>
#include <stddef.h>

#include "backend/backend.h"

#define OC_U   0x1p-24
#define OC_B16 0x1p-7 /* one step of bf16 at 1: a rounding that falls to the other side */
/* Such a step at v; bf16 has none finer than 2^-133. */
static inline double oc_b16(double v) { return OC_B16 * fabs(v) + 0x1p-133; }

/* The most rows of an op. */
#define OC_ROWS_MOST 300

/* ---- Cases (opcheck_case.c) ---- */

struct oc_block;
struct oc_case {
    const char      *op, *variant; /* variant: what is being judged */
    char             shape[200];
    uint64_t         seed, rng;
    int32_t          index;
    bool             many; /* --rows many: prompts on tiles only, in bf16, where a check knows them */
    bool             deep; /* --columns many: rows as wide as a model's on tiles only, in bf16, likewise */
    /* --format nvfp4, fp8: such rows, of NVFP4 weights, or of FP8 and MXFP4 ones, where a check has them; PLAIN: any. */
    enum nib_act_format format;
    bool             unit_scales; /* of quantised rows and weights: sums of such values are exact */
    bool             failed;
    int64_t         *n_checks;
    struct oc_block *memory;
};

double  oc_uniform(struct oc_case *c);              /* [0, 1) */
int32_t oc_range(struct oc_case *c, int32_t low, int32_t high); /* inclusive */
bool    oc_chance(struct oc_case *c, double p);
double  oc_normal(struct oc_case *c);
int32_t oc_pick(struct oc_case *c, int32_t n, const int32_t *choices);
void   *oc_new(struct oc_case *c, size_t bytes);    /* zeroed, freed with the case */

void    oc_case_free(struct oc_case *c);

/* Append to the case's description of its shape. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void oc_shape(struct oc_case *c, const char *fmt, ...);
/* Report a failure (once a case). */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void oc_fail(struct oc_case *c, const char *fmt, ...);
/* Count a check; false fails the case with this text. */
bool oc_expect(struct oc_case *c, bool ok, const char *what);

/* ---- Host data (opcheck_data.c) ---- */

/* What rows of values look like. */
enum oc_fill { OC_NORMAL, OC_ZEROS, OC_ONE_HOT, OC_HUGE, OC_TINY, OC_TIES, OC_OUTLIER, OC_EDGES, OC_N_FILLS };
enum oc_fill oc_fill_pick(struct oc_case *c);
void oc_fill_row(struct oc_case *c, enum oc_fill fill, float *x, int32_t n, double scale);

struct oc_mat {
    enum nib_dtype dtype;
    int32_t        rows, cols;
    int64_t        stride;
    void          *data;
    double        *value; /* [rows][cols] */
};
/* Random rows, each with its own fill; the stride is at least cols. `poison`: one value becomes NaN or Inf. */
struct oc_mat oc_mat_new(struct oc_case *c, enum nib_dtype dtype, int32_t rows, int32_t cols, double scale,
                         bool poison);
struct oc_mat oc_mat_of(struct oc_case *c, enum nib_dtype dtype, int32_t rows, int32_t cols, const float *x);
float        *oc_floats(struct oc_case *c, int32_t n, double mean, double spread);

struct oc_act {
    struct oc_mat       plain; /* data NULL: absent */
    enum nib_act_format format;
    int32_t             rows, cols;
    uint8_t            *codes, *scales;
    float              *row_scale;
    int64_t             codes_stride, scales_stride;
    double             *value; /* [rows][cols] of the quantised part */
};
/* Quantise plain by this folder's own encoders; keep_plain leaves the plain part present. */
struct oc_act oc_act_new(struct oc_case *c, const struct oc_mat *plain, enum nib_act_format format, bool keep_plain);

struct oc_weight {
    struct nib_weight_desc desc;
    double                *value; /* [n_stack][n_out][n_in] with global scales */
};
struct oc_weight *oc_weight_new(struct oc_case *c, enum nib_weight_type type, enum nib_act_format act, int32_t n_stack,
                                int32_t n_out, int32_t n_in);
const double *oc_weight_row(const struct oc_weight *w, int32_t stack, int32_t out);
/* Values that w multiplies, of row t. */
const double *oc_operand(const struct oc_act *x, const struct oc_weight *w, int32_t t);

/* ---- Own formats (opcheck_formats.c): by search over code values, in the formulas' fp32 ---- */

float  oc_bf16_round(float x);
uint16_t oc_bf16_bits(float x);
float  oc_bf16_value(uint16_t bits);
double oc_e4m3_value(uint8_t code);
double oc_e2m1_value(uint8_t code);
double oc_ue8m0_value(uint8_t code);
void oc_quantise(enum nib_act_format f, const float *x, int32_t n, uint8_t *codes, uint8_t *scales, float *row_scale);
void oc_dequantise(enum nib_act_format f, const uint8_t *codes, const uint8_t *scales, float row_scale, int32_t n,
                   double *value);
void oc_row_encode(enum nib_row_format f, const float *x, int32_t d, int32_t n_rot, uint8_t *row);
void oc_row_decode(enum nib_row_format f, const uint8_t *row, int32_t d, int32_t n_rot, double *value);
void oc_hadamard(float *x, int32_t n);
/* What a row of values x[i] +- err[i] can decode to after quantisation: between low[i] and high[i]. */
void oc_quantise_interval(enum nib_act_format f, const double *x, const double *err, int32_t n, double *low,
                          double *high);

/* ---- Runs (opcheck_run.c) ---- */

enum oc_kind { OC_F32, OC_BF16, OC_I32, OC_BYTES };
struct oc_output {
    const char  *name;
    enum oc_kind kind;
    int32_t      rows, cols;
    int64_t      stride; /* elements */
    size_t       bytes;
    void        *data;
};
struct oc_result {
    int32_t          n;
    struct oc_output out[10];
};
const struct oc_output *oc_find(const struct oc_result *r, const char *name); /* NULL if absent */
double oc_at(const struct oc_output *o, int64_t row, int64_t col);            /* F32 and BF16 */
int32_t oc_int_at(const struct oc_output *o, int64_t row, int64_t col);
const uint8_t *oc_row_at(const struct oc_output *o, int64_t row);

struct oc_memory;
/* One run of an op on one backend. */
struct oc_run {
    struct oc_case               *c;
    const struct nib_backend_api *api;
    struct nib_backend           *b;
    struct nib_stream            *s;
    struct oc_result             *result;
    struct oc_memory             *memory;
    int32_t                       n_memory, cap_memory;
    struct nib_weight            *weight[16];
    int32_t                       n_weights;
};

/* Device copies of inputs; NULL gives NULL. */
void          *oc_put(struct oc_run *r, const void *host, size_t bytes);
struct nib_mat oc_put_mat(struct oc_run *r, const struct oc_mat *m);
struct nib_act oc_put_act(struct oc_run *r, const struct oc_act *a);
const struct nib_weight *oc_put_weight(struct oc_run *r, const struct oc_weight *w);
/* Outputs, judged by name; with `start` they begin as that and not as NaN (in place). */
struct nib_mat oc_out_mat(struct oc_run *r, const char *name, enum nib_dtype dtype, int32_t rows, int32_t cols,
                          int64_t stride, const void *start);
void          *oc_out(struct oc_run *r, const char *name, enum oc_kind kind, int32_t rows, int32_t cols,
                      const void *start);
/* Activation rows named "plain", "codes", "scales", "row_scale". */
struct nib_act oc_out_act(struct oc_run *r, bool plain, enum nib_dtype dtype, enum nib_act_format format, int32_t rows,
                          int32_t cols);
struct nib_mat oc_rows_of_mat(struct nib_mat m, int32_t row0, int32_t n);
struct nib_act oc_rows_of_act(struct nib_act a, int32_t row0, int32_t n);
/* Require success of an op. */
void oc_op(struct oc_run *r, enum nib_status status);

/* Run rows [row0, row0 + n) is up to the function: it calls the op for `step` rows at a time. */
typedef void oc_run_function(struct oc_run *r, const void *data, int32_t step);
typedef void oc_judge_function(struct oc_case *c, const void *data, const struct oc_result *ref,
                               const struct oc_result *got);
void oc_all(struct oc_case *c, oc_run_function *run, oc_judge_function *judge, const void *data, int32_t n_rows);
/* The same op with other arguments on the backend that is being judged: for judges that need a second result. */
void oc_again(struct oc_case *c, oc_run_function *run, const void *data, struct oc_result *result);

/* Open every backend and variant, or beside ref only the one of this name; the cpu backend with kernels of a level
 * (NULL: its best) beside the portable ones. False with a message on failure. */
bool oc_open(const char *backend, const char *cpu_level);
void oc_close(void);
extern const struct nib_dims oc_dims;

/* ---- Judging (opcheck_judge.c) ---- */

/* Sum of n products of at most |a||b| = mag, fp32 in some order with at most n/16 + 16 roundings in any chain. */
double oc_dot_bound(double mag, int64_t n);
/* An element against its expectation; not finite wants not finite. Counts one check a matrix, not an element. */
struct oc_worst {
    double  excess, got, ref, bound;
    int64_t row, col;
    bool    failed;
};
void oc_compare(struct oc_worst *w, double got, double ref, double bound, int64_t row, int64_t col);
void oc_conclude(struct oc_case *c, const struct oc_worst *w, const char *what);
/* Rounding of the output itself: fp32 or bf16 on both sides. */
double oc_out_bound(const struct oc_output *o, double ref);

/* Equal bytes of an output in both results. */
void oc_same(struct oc_case *c, const struct oc_result *ref, const struct oc_result *got, const char *name);
/* The quantised parts of an emitted activation must be those of its plain rows exactly. */
void oc_judge_emitted(struct oc_case *c, const struct oc_result *got, const struct oc_output *plain,
                      enum nib_act_format format, int32_t rows, int32_t cols);

/* Error of x * rsqrt(mean(x^2) + eps) * weight where x has errors err: bound[i] for each element. */
void oc_norm_bound(const double *x, const double *err, const float *weight, double eps, int32_t n, double *y,
                   double *bound);
/* Rotation of the last n_rot of d channels with errors, by the angle of pos; values and bounds in place. */
void oc_rotate(const struct nib_rope *rope, int32_t pos, bool inverse, double *x, double *err, int32_t d);

/* ---- Sequences (opcheck_rows.c) ---- */

struct oc_seqs {
    int32_t  n_rows, n_seqs, first_pos, n_pages;
    int32_t *token, *pos, *seq, *slot, *window_page, *entry_page;
    int64_t  page_stride;
};
/* Rows of up to 6 sequences at positions around 4-, 128- and page boundaries, below pos_end. */
struct oc_seqs oc_seqs_new(struct oc_case *c, int32_t n_rows_most, int32_t pos_end, int32_t first_pos);
/* Rows [row0, row0 + n) as a step. */
const struct nib_rows *oc_put_rows(struct oc_run *r, const struct oc_seqs *q, int32_t row0, int32_t n);
struct nib_rope oc_rope_new(struct oc_case *c, int32_t n_rot);
struct nib_rope oc_put_rope(struct oc_run *r, const struct nib_rope *rope);

/* Pages of stored rows, random content. value: [n_pages * page_rows][d]. */
struct oc_store {
    enum nib_row_format format;
    int32_t             page_rows, n_pages, d, n_rot;
    int64_t             row_bytes;
    uint8_t            *data;
    double             *value;
};
struct oc_store oc_store_new(struct oc_case *c, enum nib_row_format f, int32_t page_rows, int32_t n_pages, int32_t d,
                             int32_t n_rot, double scale);
struct nib_store oc_put_store(struct oc_run *r, const struct oc_store *st);
/* As an output named "store" of rows of row_bytes. */
struct nib_store oc_out_store(struct oc_run *r, const struct oc_store *st);
int64_t oc_store_row(const struct oc_store *st, const struct oc_seqs *q, const int32_t *page, int32_t seq, int32_t i);

/* ---- Checks, one a slot of struct nib_ops ---- */

void oc_check_embed(struct oc_case *c);
void oc_check_norm(struct oc_case *c);
void oc_check_linear(struct oc_case *c);
void oc_check_q_rope(struct oc_case *c);
void oc_check_kv_insert(struct oc_case *c);
void oc_check_compress(struct oc_case *c);
void oc_check_index_select(struct oc_case *c);
void oc_check_attend(struct oc_case *c);
void oc_check_o_a(struct oc_case *c);
void oc_check_moe(struct oc_case *c);
void oc_check_hc_pre(struct oc_case *c);
void oc_check_hc_post(struct oc_case *c);
void oc_check_hc_head(struct oc_case *c);
void oc_check_head(struct oc_case *c);
void oc_check_mtp_join(struct oc_case *c);
void oc_check_copy_rows(struct oc_case *c);
void oc_check_sample(struct oc_case *c);

#endif
