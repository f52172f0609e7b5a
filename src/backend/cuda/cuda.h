/* Inside of the CUDA backend: its stream with scratch, packed weights, and the launchers. C11 and C++17.
 *
 * Launchers only enqueue. Each begins where its op's arguments end: it owns grid arithmetic and nothing else. Kernels in
 * any/ run on every device of the build; sm90a/ overwrites slots of the kernel table with what Hopper does better. */
#ifndef NIB_CUDA_H
#define NIB_CUDA_H

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Weights ---- */

/* Where codes stand.
 * STORED: as in the checkpoint.
 * TILED: by 16 rows and 64 columns. Lane (g, l) of a warp owns rows g and g+8 of a tile and columns 16l .. 16l+15 of a
 *   block, which is what four m16n8k16 products take if their k index j*16 + (2l, 2l+1, 2l+8, 2l+9) means column
 *   16l + 4j + (0, 1, 2, 3). A lane's scale block is then one NVFP4 block. tiles.cuh has the bit order.
 *     codes  [tile][block][chunk][lane] 16 bytes: 1 chunk at 4 bits, 2 at 8, 4 at 16
 *     scales NVFP4: [tile][group of 4 blocks][lane][block] {row g, row g+8} bytes; MXFP4 the same for lane pairs; a last
 *            group of fewer blocks is [block][lane]. FP8: one byte for 128 x 128 as stored.
 * ATOMS: for tcgen05: codes as in the checkpoint, scales of NVFP4, FP8 and MXFP4 as sm100a/sm100a.h has them; BF16.
 * UNITS: NVFP4 for block-scaled mma.sync, as sm120a/sm120a.h has it. */
enum nib_cuda_layout { NIB_CUDA_STORED, NIB_CUDA_TILED, NIB_CUDA_ATOMS, NIB_CUDA_UNITS };

/* Passed by value to kernels. */
struct nib_cuda_matrix {
    const uint8_t *codes, *scales;
    const float   *alpha;                        /* [n_stack] multiplies finished sums; NULL: alpha0 does */
    float          alpha0;
    int64_t        codes_stride, scales_stride;  /* bytes from one matrix of the stack to the next */
    int32_t        type, layout, n_stack, n_out, n_in;
};

struct nib_cuda_weight {
    struct nib_weight      head;
    struct nib_cuda_matrix m;
    void                  *memory;
};

static inline const struct nib_cuda_matrix *nib_cuda_matrix_of(const struct nib_weight *w)
{
    return &((const struct nib_cuda_weight *)w)->m;
}

/* ---- Stream ---- */

/* One stack of matrices that multiplies rows made ready: the two halves of a product. */
struct nib_cuda_rows {
    const uint16_t *part;        /* bf16 [n_parts][rows][stride]; a value is the sum of its parts */
    int64_t         stride, part_stride;
    int32_t         n_parts;
    const int32_t  *exponent;    /* [rows] parts hold values * 2^-exponent; NULL: as they are */
    const float    *f32;         /* [rows][f32_stride] for F32 weights, else NULL */
    int64_t         f32_stride;
};

struct nib_cuda_moe_scratch {
    float    *route;   /* [rows][n_experts] */
    int32_t  *chosen;  /* [rows][top_k] */
    float    *weight;  /* [rows][top_k] */
    int32_t  *first;   /* [n_experts + 1] first sorted pair of each expert */
    int32_t  *pair;    /* [pairs] row * top_k + place, sorted by expert */
    int32_t  *place;   /* [pairs] where a pair stands in that order */
    int32_t  *segment; /* [2 * segments]: expert, first sorted pair; a tile's worth of pairs each */
    int32_t  *n_segments;
    float    *hidden;  /* [pairs + rows][inner] */
    uint16_t *parts;   /* [3][pairs + rows][inner] */
    int32_t  *exponent; /* [pairs + rows] of parts */
    float    *y;       /* [pairs + rows][dim] */
    int32_t   n_rows;  /* that one pass takes */
};

/* Quantised rows and weights on Blackwell's tensor cores (blackwell/). */
struct nib_blackwell_family;
struct nib_cuda_blackwell {
    const struct nib_blackwell_family *family; /* NULL: another card, or a build without its kernels */
    /* By the format of rows (NVFP4, FP8): whether its kernels have passed their self-test, and how they failed it. */
    bool      on[NIB_ACT_INT8 + 1];
    char      why_not[NIB_ACT_INT8 + 1][240];
    bool      ops_on;       /* those of whole ops have passed theirs */
    uint64_t  key;          /* card, driver and program to the file of self-tests; 0: not known yet */
    void     *encode;       /* cuTensorMapEncodeTiled, on sm_100a */
    uint8_t  *scales;       /* sm_100a: of a linear's rows, in the tensor core's layout */
    int64_t   scales_bytes;
    uint8_t  *x_codes, *x_scales; /* sm_100a: of the experts' rows; scales in tiles */
    int64_t   x_scales_bytes;
    float    *x_row_scale;
    int32_t  *scale_row;    /* sm_100a: [pairs] */
    uint8_t  *inner_codes, *inner_scales; /* of the experts' inner rows, scales row by row */
    float    *inner_row_scale;
    uint8_t  *inner_atoms;  /* sm_100a: their scales in tiles */
    int64_t   inner_atoms_bytes;
    int32_t  *groups;       /* [3 * groups at most] */
    int32_t  *n_groups;
    int32_t  *progress;     /* sm_100a: tiles that two kernels have finished, and [pairs] largest magnitudes of rows */
    uint8_t  *shared_codes, *shared_scales; /* of the shared expert's inner rows, any format */
    float    *shared_row_scale;
};

/* Row-wise steps that wait to be launched together (any/row_jobs.cu): those that follow one another in a layer do not depend on
 * each other, and a launch costs more than they do. */
enum nib_cuda_job_kind { NIB_CUDA_JOB_NORM, NIB_CUDA_JOB_KV_INSERT, NIB_CUDA_JOB_EMIT, NIB_CUDA_JOB_PUSH, NIB_CUDA_JOB_Q_ROPE,
                         NIB_CUDA_JOB_INDEX_QUERY };
struct nib_cuda_job {
    enum nib_cuda_job_kind kind;
    int32_t                first, n_rows, per_row; /* blocks a row */
    struct nib_rows        rows;                   /* not for norms */
    union {
        struct nib_norm_args         norm;
        struct nib_kv_insert_args    kv_insert;
        struct nib_compress_args     compress;
        struct nib_q_rope_args       q_rope;
        struct nib_index_select_args index;
    } args;
};
#define NIB_CUDA_JOBS 6
struct nib_cuda_jobs {
    int32_t             n;
    struct nib_cuda_job job[NIB_CUDA_JOBS];
};

/* Steps kept as graphs (record_cuda.c). */
#define NIB_CUDA_RECORDS 48
struct nib_cuda_record {
    struct nib_record_key key;
    uint64_t              used;  /* on the records' clock; 0: free */
    cudaGraphExec_t       graph; /* NULL: the key was seen once */
};
struct nib_cuda_records {
    struct nib_cuda_record record[NIB_CUDA_RECORDS];
    uint64_t               clock;
    bool                   off; /* recording failed once; ops run as they are called */
};

struct nib_stream {
    struct nib_dims      dims;
    cudaStream_t         handle;
    int32_t              n_sms, arch;
    bool                 broken; /* an asynchronous fault: nothing works until reopened */
    struct nib_error     error;  /* of the last failure */
    uint16_t            *parts;  /* [n_parts_max] */
    int32_t             *exponent; /* [8][n_rows_max] of rows made ready in this op */
    int32_t              n_exponents; /* sets in use, modulo 8 */
    int64_t              n_parts_max;
    float               *out;    /* [n_rows_max][n_groups * o_rank] */
    float               *mix;    /* [n_rows_max][slices of the streams' channels][mixing products + 1] */
    float               *score;  /* [n_score_rows][n_entries_max] */
    int32_t              n_score_rows, n_entries_max;
    double              *sample; /* [n_sample_rows][2 * vocab] */
    int32_t              n_sample_rows;
    float               *attend; /* [n_attend_parts] partial sums of split attention */
    int64_t              n_attend_max;
    struct nib_cuda_moe_scratch moe;
    struct nib_cuda_blackwell blackwell;
    char                     *selftest_file; /* NULL: none */
    struct nib_cuda_records records;
    struct nib_cuda_jobs jobs;   /* waiting */
    struct nib_hc_post_args post; /* waiting too, for the hc_pre that follows (any/hc.cu) */
    bool                 post_waits;
    int32_t             *arrived; /* [n_rows_max] counts of blocks that meet, 0 between launches */
    bool                 hold;   /* jobs that only push rows may wait on: the op under way does not touch what they read */
    cudaStream_t         side;   /* work beside the main queue, joined by events */
    cudaEvent_t          fork, join;
    int32_t              shared_most, cluster_most; /* bytes of shared memory a block may have; blocks of a cluster */
};

/* ---- Work that waits (any/row_jobs.cu) ---- */

/* What must run before the next launch. nib_launch() calls it; so must whatever else enqueues work. */
void nib_cuda_flush(struct nib_stream *s);
/* The same, and nothing waits any more. */
void nib_cuda_flush_all(struct nib_stream *s);
void nib_cuda_hc_post_run(struct nib_stream *s);
/* Whether something that waits has yet to read these rows. */
bool nib_cuda_jobs_mind(const struct nib_stream *s, const struct nib_mat *written);
/* Brings index queries of rows [first, first + n) to the form of their keys. */
void nib_cuda_index_query(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first, int32_t n);

/* Maps the result of a launch or call; clears it. Failures go to s->error with `what`. */
enum nib_status nib_cuda_check(struct nib_stream *s, cudaError_t e, const char *what);

/* Whether this build holds machine code for the current device. */
bool nib_cuda_runs_here(void);
enum nib_status nib_cuda_device(int32_t i, struct nib_device_info *out, struct nib_error *err); /* nib_device_get() */
/* Added to what nib_device_get() says in `failed` of device 0, once. From any thread. */
void nib_cuda_device_failed(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Whether tiles can hold the scales of these matrices (span_cuda.c); where not they stay as stored. */
bool    nib_cuda_span_fits(const struct nib_weight_desc *d);
/* The largest UE8M0 byte of matrix i's scales; MXFP4 and FP8. */
int32_t nib_cuda_largest_scale(const struct nib_weight_desc *d, int32_t i);

/* ---- Launchers of weights (any/pack.cu) ---- */

/* Bytes of one matrix's codes and scales in its packed layout. */
enum nib_cuda_layout nib_cuda_layout_of(const struct nib_weight_desc *d, size_t *codes, size_t *scales);
/* What sums of a matrix are multiplied by: its global scale, and the powers of two that operands leave out. most: the
 * largest UE8M0 byte of its scales. */
float nib_cuda_alpha(const struct nib_weight_desc *d, int32_t i, int32_t most, enum nib_cuda_layout layout);
/* From a copy of the stored bytes on the device to matrix i of m. */
cudaError_t nib_cuda_pack(cudaStream_t stream, const struct nib_cuda_matrix *m, int32_t i, const uint8_t *codes,
                          const uint8_t *scales, int32_t most);

/* ---- Products (any/linear.cu) ---- */

/* Rows [first, first + n) of the part of x that `act` names, as bf16 parts in s->parts, from `at` on (elements; advanced).
 * BF16 plain rows are used where they are. */
enum nib_status nib_cuda_rows_prepare(struct nib_stream *s, const struct nib_act *x, enum nib_act_format act, int32_t first,
                                      int32_t n, bool f32, int64_t *at, struct nib_cuda_rows *out);
/* Rows that one pass over x may take. */
int32_t nib_cuda_rows_fit(const struct nib_stream *s, int32_t cols, int32_t n_rows);

#define NIB_CUDA_PRODUCTS 8
/* Stream channels of a slice of the mixing products (hc.cu). */
#define NIB_CUDA_MIX_SLICE 256
/* y[i] = w[i] . x[i] for n rows, in one launch. x_group: columns of x for each group_rows outputs (0: all share x). */
struct nib_cuda_products {
    int32_t                n, n_weights, group_rows;
    bool                   scores; /* y takes the router's scores of the sums */
    struct nib_cuda_matrix w[NIB_CUDA_PRODUCTS];
    struct nib_cuda_rows   x[NIB_CUDA_PRODUCTS];
    struct nib_mat         y[NIB_CUDA_PRODUCTS]; /* first row is row 0 */
};
enum nib_status nib_cuda_products_run(struct nib_stream *s, const struct nib_cuda_products *p);

/* ---- Products of many rows on Hopper (sm90a/wide_sm90a.cu) ---- */

/* More rows than this are another kernel variant, with its own order of sums. */
#define NIB_CUDA_MANY_ROWS 96
/* Whether these weights and n rows of x fit it; the same weights and x's cols give the same answer for every n that fits the scratch. */
bool nib_cuda_wide_takes(const struct nib_stream *s, const struct nib_act *x, int32_t n, int32_t n_weights,
                         const struct nib_weight *const *w, int32_t group_rows);
/* Rows [first, first + n) of x times each weight; y[i]: from its first row on. group_rows as in nib_cuda_products. */
enum nib_status nib_cuda_wide(struct nib_stream *s, const struct nib_act *x, int32_t first, int32_t n, int32_t n_weights,
                              const struct nib_weight *const *w, const struct nib_mat *y, int32_t group_rows);

/* ---- Experts of many tokens on Hopper (sm90a/wide_moe_sm90a.cu) ---- */

/* Whether it takes n rows of these arguments at once. */
bool nib_cuda_wide_experts_takes(const struct nib_stream *s, const struct nib_moe_args *a, int32_t n);
/* Rows [first, first + n), routed into s->moe: the experts' results into s->moe.y, sorted pairs and then the shared expert's rows,
 * and where pairs stand into s->moe.place. */
enum nib_status nib_cuda_wide_experts(struct nib_stream *s, const struct nib_moe_args *a, int32_t first, int32_t n);

/* ---- The router (any/moe.cu) ---- */

/* Experts of rows [first, first + n) and their weights into s->moe.chosen and .weight, and where a wants them. */
enum nib_status nib_cuda_moe_route(struct nib_stream *s, const struct nib_moe_args *a, int32_t first, int32_t n);

/* ---- Activation rows (any/linear.cu) ---- */

/* Rows of y from fp32 rows x [y->rows][y->cols]. */
enum nib_status nib_cuda_store_act(struct nib_stream *s, const struct nib_act *y, const float *x);

/* ---- Blackwell (blackwell/) ---- */

/* Pointers into `base` for these dims, or with NULL only their sum, which is returned; finds the card's family. m:
 * n_rows is set. */
size_t nib_cuda_blackwell_lay_out(struct nib_cuda_blackwell *x, const struct nib_cuda_moe_scratch *m, const struct nib_dims *d,
                                  uint8_t *base);
/* Finds what the driver must have for the card's family. */
enum nib_status nib_cuda_blackwell_open(struct nib_stream *s, struct nib_error *err);
/* Before the first weight that multiplies rows of this format: the self-test of its kernels. Engines without such weights
 * never launch them. ready: whether they passed; where not, weights are to be packed for any/ and the device says why. */
enum nib_status nib_cuda_blackwell_ready(struct nib_stream *s, enum nib_act_format format, bool *ready, struct nib_error *err);
/* Before the first weight that multiplies rows of this format: the self-test of whole ops. Where it fails those of any/
 * run, or nothing does if they do not fit the card. */
enum nib_status nib_cuda_blackwell_ops_ready(struct nib_stream *s, enum nib_act_format format, struct nib_error *err);
/* Whether device 0's family packs weights like these; its layout, bytes of one matrix's codes and scales. */
bool nib_cuda_blackwell_packs(const struct nib_weight_desc *d, enum nib_cuda_layout *layout, size_t *codes, size_t *scales);
/* Matrix i of such a weight from a copy of the stored bytes on the device. */
cudaError_t nib_cuda_blackwell_pack(const struct nib_stream *s, const struct nib_cuda_matrix *m, int32_t i, const uint8_t *codes,
                                    const uint8_t *scales);
/* y[t] = x[t] w^T by groups (struct nib_o_a_args) for a weight that the family laid out for plain rows. taken: whether it
 * was, and x fits; else nothing is done. */
enum nib_status nib_cuda_blackwell_plain(struct nib_stream *s, const struct nib_mat *x, int32_t n_groups,
                                         const struct nib_weight *w, const struct nib_mat *y, bool *taken);
/* The ops, which leave to those below what the card's family does not take. */
enum nib_status nib_cuda_blackwell_norm(struct nib_stream *s, const struct nib_norm_args *a);
enum nib_status nib_cuda_blackwell_linear(struct nib_stream *s, const struct nib_linear_args *a);
enum nib_status nib_cuda_blackwell_q_rope(struct nib_stream *s, const struct nib_q_rope_args *a);
enum nib_status nib_cuda_blackwell_kv_insert(struct nib_stream *s, const struct nib_kv_insert_args *a);
enum nib_status nib_cuda_blackwell_index_select(struct nib_stream *s, const struct nib_index_select_args *a);
enum nib_status nib_cuda_blackwell_attend(struct nib_stream *s, const struct nib_attend_args *a);
enum nib_status nib_cuda_blackwell_o_a(struct nib_stream *s, const struct nib_o_a_args *a);
enum nib_status nib_cuda_blackwell_moe(struct nib_stream *s, const struct nib_moe_args *a);

/* ---- Attention on tensor cores (any/attend_mma.cu) ---- */

/* Whether tensor cores' kernels take these rows and heads; whether this one takes the arguments. nib_cuda_attend does everything. */
bool            nib_cuda_attend_rows_fit(const struct nib_attend_args *a);
bool            nib_cuda_attend_mma_takes(const struct nib_attend_args *a);
enum nib_status nib_cuda_attend_mma(struct nib_stream *s, const struct nib_attend_args *a);
/* Up to this many rows a cluster of blocks shares each; more are another kernel variant, with its own order of sums. */
#define NIB_CUDA_ATTEND_FEW 16
/* For few rows (any/attend_cluster.cu); false, and nothing done, where a row may attend to more than a cluster takes. */
bool            nib_cuda_attend_cluster(struct nib_stream *s, const struct nib_attend_args *a);
/* Floats of one row's partial sums over one span. */
int64_t         nib_cuda_attend_part_floats(int32_t n_heads);

/* ---- Index scores on tensor cores (any/index_mma.cu) ---- */

bool nib_cuda_index_mma_takes(const struct nib_index_select_args *a);
/* Scores of rows [first, first + n) into s->score [n][n_entries]; queries are ready. */
void nib_cuda_index_mma(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first, int32_t n, int64_t n_entries);

/* Their selection (any/index_take.cu); false, and nothing done, where a row may see more than n_entries - 1 that it can hold. */
bool nib_cuda_index_take(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first, int32_t n, int64_t n_entries);
/* Rows [first, first + n) choose from scores in s->score, n_entries apart, however many they are. */
void nib_cuda_index_choose(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first, int32_t n, int64_t n_entries);

/* ---- Ops, one file a family ---- */

enum nib_status nib_cuda_embed(struct nib_stream *s, const struct nib_embed_args *a);
enum nib_status nib_cuda_norm(struct nib_stream *s, const struct nib_norm_args *a);
enum nib_status nib_cuda_linear(struct nib_stream *s, const struct nib_linear_args *a);
enum nib_status nib_cuda_q_rope(struct nib_stream *s, const struct nib_q_rope_args *a);
enum nib_status nib_cuda_kv_insert(struct nib_stream *s, const struct nib_kv_insert_args *a);
enum nib_status nib_cuda_compress(struct nib_stream *s, const struct nib_compress_args *a);
enum nib_status nib_cuda_index_select(struct nib_stream *s, const struct nib_index_select_args *a);
enum nib_status nib_cuda_attend(struct nib_stream *s, const struct nib_attend_args *a);
enum nib_status nib_cuda_o_a(struct nib_stream *s, const struct nib_o_a_args *a);
enum nib_status nib_cuda_moe(struct nib_stream *s, const struct nib_moe_args *a);
enum nib_status nib_cuda_hc_pre(struct nib_stream *s, const struct nib_hc_pre_args *a);
enum nib_status nib_cuda_hc_post(struct nib_stream *s, const struct nib_hc_post_args *a);
enum nib_status nib_cuda_hc_head(struct nib_stream *s, const struct nib_hc_head_args *a);
enum nib_status nib_cuda_head(struct nib_stream *s, const struct nib_head_args *a);
enum nib_status nib_cuda_mtp_join(struct nib_stream *s, const struct nib_mtp_join_args *a);
enum nib_status nib_cuda_copy_rows(struct nib_stream *s, const struct nib_copy_rows_args *a);
enum nib_status nib_cuda_sample(struct nib_stream *s, const struct nib_sample_args *a);

#ifdef __cplusplus
}
#endif
#endif
