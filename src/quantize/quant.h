/* Inside the quantiser: a job is planned from headers as a list of outputs, then carried out output by output.
 *
 * Read plan_quant.c for what becomes of each tensor, matrix_quant.c for how one matrix is converted, job_quant.c for
 * the order of things and what survives an interruption. */
#ifndef NIB_QUANT_H
#define NIB_QUANT_H

#include <jansson.h>

#include "base/arena.h"
#include "checkpoint/checkpoint.h"
#include "model/weights_table.h"
#include "quantize/kernels_quant.h"

/* ---- Names ---- */

/* What a tensor is, whatever its spelling. */
struct nib_quant_id {
    const struct nib_field *field;  /* NULL: not a tensor of the model's table */
    int32_t                 layer;  /* -1: not in a layer; n_layers: the MTP block */
    int32_t                 expert; /* of an EXPERTS field; -1 for a stack of them */
    size_t                  base_bytes; /* of the name without its suffix */
    const char             *suffix; /* into the name: ".weight", ".scale", "" */
};

/* False if the table does not know the name. */
bool nib_quant_identify(const char *name, int32_t n_layers, struct nib_quant_id *out);

/* The base name (without suffix) of a field in a layout; false if it does not fit. */
bool nib_quant_name(const struct nib_quant_id *id, int32_t n_layers, bool hf, char *out, size_t n);

/* ---- Plan ---- */

enum nib_quant_action {
    NIB_QUANT_COPY,   /* bytes as they are */
    NIB_QUANT_CAST,   /* MXFP4 -> NVFP4, the same codes */
    NIB_QUANT_ENCODE, /* anything wider -> NVFP4 */
    NIB_QUANT_RELAY,  /* NVFP4 of another convention, codes and scales untouched */
    NIB_QUANT_WIDEN   /* FP8 -> BF16, exact */
};

/* Bytes in the source: file number and place. */
struct nib_quant_span {
    int32_t  file; /* -1: absent */
    uint64_t offset, bytes;
};

/* One matrix of the source. */
struct nib_quant_matrix {
    enum nib_weight_type  type;
    bool                  f32_scales; /* FP8 scales are F32 instead of UE8M0 */
    bool                  divisor;    /* NVFP4 global scale is a divisor */
    int64_t               rows, cols;
    struct nib_quant_span data, scales, global, input_scale; /* the last two one F32 each */
};

/* A tensor of the destination. */
struct nib_quant_output {
    const char       *name;
    enum nib_st_dtype dtype;
    int32_t           n_dims;
    int64_t           shape[NIB_ST_DIMS_MAX];
    uint64_t          bytes;
    int32_t           shard;
    uint64_t          offset; /* in the shard's file */
};

/* What the report says of a matrix. */
struct nib_quant_stats {
    struct nib_quant_sums sums;
    uint64_t              n_weights, n_blocks, n_recoded, n_recoded_inexact;
    uint64_t              n_vanished; /* ENCODE: blocks of nonzero weights whose scale is subnormal or zero */
    float                 global_scale, input_scale;
    bool                  exact;      /* decoded values equal the source's */
    bool                  calibrated; /* input_scale was measured or came with the source; else it is 1 */
};

#define NIB_QUANT_NO_K (-1000)

/* The smallest piece of work: a tensor copied, or a matrix converted into its up to four tensors. */
struct nib_quant_unit {
    enum nib_quant_action   action;
    struct nib_quant_id     id;
    const char             *base;   /* source name without suffix */
    const char             *out_base;
    struct nib_quant_matrix m;      /* COPY: only `data` */
    int64_t                 out;    /* first output; codes, scales, global, input_scale */
    int32_t                 n_outs;
    int64_t                 partner; /* unit that shares the global scale; -1 */
    bool                    limit_known;
    float                   amax;    /* ENCODE: largest magnitude */
    int32_t k_max; /* CAST: largest exponent of a block that is not all zero; NIB_QUANT_NO_K if there is none */
    uint64_t                bytes_before;
    struct nib_quant_stats  stats;
};

struct nib_quant_shard {
    char     name[64];
    int64_t  first_unit, end_unit;
    uint64_t header_bytes, bytes; /* of the file */
    bool     done;
};

struct nib_quant_file {
    const char *name; /* base name */
    uint64_t    bytes;
    int         fd;
    const unsigned char *map; /* where the checkpoint has it mapped: only to find offsets */
};

struct nib_quant_plan {
    const struct nib_quantize_options *options;
    struct nib_arena          arena;
    const char               *src;
    struct nib_checkpoint    *checkpoint;
    struct nib_config         config;
    bool                      src_hf, hf;
    struct nib_quant_file    *file;
    int32_t                   n_files;
    struct nib_quant_unit    *unit;
    int64_t                   n_units, n_matrices; /* matrices: units that are not copies */
    struct nib_quant_output  *output;
    int64_t                   n_outputs;
    struct nib_quant_shard   *shard;
    int32_t                   n_shards;
    uint64_t                  source_bytes, output_bytes; /* of tensors read and written */
    uint64_t                  fingerprint; /* of the job: source, options that matter, outputs */
    int64_t                   n_unknown;   /* tensors that the table does not know, copied */
};

/* Open src, decide on every tensor and lay the destination out. Only headers are read. Everything in *out belongs to
 * it; deinit also after failure. */
enum nib_status nib_quant_plan_open(const char *src, const struct nib_quantize_options *o, struct nib_quant_plan *out,
                                    struct nib_error *err);
void nib_quant_plan_close(struct nib_quant_plan *p);

/* Where a tensor's bytes are. */
struct nib_quant_span nib_quant_span_of(const struct nib_quant_plan *p, const struct nib_tensor_entry *e);

/* The unit of a matrix by what it is; NULL if there is none. */
const struct nib_quant_unit *nib_quant_unit_find(const struct nib_quant_plan *p, const struct nib_quant_id *id);

/* The header of a shard, 8 bytes of length included; the caller frees it. */
enum nib_status nib_quant_shard_header(const struct nib_quant_plan *p, int32_t shard, char **out, size_t *n,
                                       struct nib_error *err);

/* The matrix whose tensors' names begin with `base` followed by ".weight" or ".weight_packed"; false if there is none,
 * or with *status set if they do not fit together. */
bool nib_quant_matrix_find(const struct nib_quant_plan *p, const char *base, struct nib_quant_matrix *out,
                           enum nib_status *status, struct nib_error *err);

const char *nib_quant_action_name(enum nib_quant_action a); /* "copy", "cast", "encode", "relay", "widen" */
const char *nib_quant_type_name(enum nib_weight_type t);    /* "bf16", "f32", "fp8", "mxfp4", "nvfp4" */
const char *nib_quant_family(const struct nib_quant_plan *p, const struct nib_quant_id *id);

/* ---- Source bytes ---- */

/* Read all of n bytes at `offset` of a span. NIB_E_IO names the file, also where it ends too early. */
enum nib_status nib_quant_read(const struct nib_quant_plan *p, const struct nib_quant_span *s, uint64_t offset,
                               void *to, size_t n, struct nib_error *err);
enum nib_status nib_quant_read_f32(const struct nib_quant_plan *p, const struct nib_quant_span *s, float *out,
                                   struct nib_error *err);

/* ---- Destination files ---- */

/* All n bytes at offset; NIB_E_IO names dir/name and the system's reason. */
enum nib_status nib_quant_write_at(int fd, const char *dir, const char *name, uint64_t offset, const void *data,
                                   size_t n, struct nib_error *err);
/* Create dir/name.tmp for writing. */
enum nib_status nib_quant_create(const char *dir, const char *name, int *fd, struct nib_error *err);
/* Flush dir/name.tmp to disk, close it and give it its name; on failure it is removed. */
enum nib_status nib_quant_commit(const char *dir, const char *name, int fd, struct nib_error *err);
/* Close and remove dir/name.tmp. */
void nib_quant_abandon(const char *dir, const char *name, int fd);
/* A small file at once, in the same way. */
enum nib_status nib_quant_write_file(const char *dir, const char *name, const char *data, size_t n,
                                     struct nib_error *err);
/* Every other file of the source folder. */
enum nib_status nib_quant_copy_files(const char *src, const char *dst, struct nib_error *err);

/* ---- One matrix ---- */

struct nib_quant_calibration;

struct nib_quant_rows;

struct nib_quant_context {
    const struct nib_quant_plan    *plan;
    const struct nib_quant_kernels *kernels;
    int32_t                         n_threads;
    size_t                          chunk_bytes; /* source bytes of a matrix in memory at once */
    struct nib_quant_calibration   *calibration; /* NULL without */
    uint64_t                       *done_bytes;  /* source and destination bytes so far, for progress */
    enum nib_status (*tick)(struct nib_quant_context *c, struct nib_error *err); /* cancels */
    const char                     *what; /* for progress */
    struct nib_quant_rows          *rows;    /* [2] the matrix at work, and its partner, read for its limit; or NULL */
    int64_t                         partner; /* the unit that rows[1] holds whole; -1 */
};

/* Threads for n values: one where starting a team would cost more than the work. */
static inline int nib_quant_team(const struct nib_quant_context *c, int64_t n)
{
    return n < 1 << 18 ? 1 : c->n_threads;
}

/* Convert or copy one unit of the plan into the open shard; fills unit->stats. */
enum nib_status nib_quant_unit_write(struct nib_quant_context *c, int64_t unit, int fd, const char *dir,
                                     struct nib_error *err);

/* Rows of a matrix in memory, a piece at a time, as kernels take them: BF16 where that is exact, else F32. */
struct nib_quant_buffer {
    void  *at;
    size_t bytes;
};

struct nib_quant_rows {
    const struct nib_quant_matrix *m;
    const char *name;        /* of the matrix, for messages */
    int64_t   n_rows_max;    /* rows of a piece: all of them if the budget allows, else a multiple of 128 */
    int64_t   first, n;      /* held now */
    bool      raw, decoded;  /* raw: reading does not decode, for those who look at codes and scales only */
    float     amax;          /* decoded only: the largest magnitude of the rows held, in units of 2^k_ref */
    uint8_t  *data;          /* as stored, [n_rows_max] rows */
    uint8_t  *scales;        /* FP4: of those rows; FP8: of the whole matrix */
    uint16_t *bf16;          /* [n_rows_max][cols], or NULL */
    float    *f32;           /* [n_rows_max][cols], or NULL */
    float     global;        /* NVFP4: as a multiplier; 1 otherwise */
    int32_t   k_ref;         /* MXFP4: values are decoded times 2^-k_ref */
    struct nib_quant_buffer buffer[3]; /* what data, scales and values point into */
};

/* Memory is taken here, at most about budget_bytes (but at least for 128 rows). NVFP4 matrices are not decoded: data
 * and scales only. *r is zero, or an earlier matrix's rows whose memory is used again, and is to be deinitialised also
 * after failure. m and name must outlive it. */
enum nib_status nib_quant_rows_init(struct nib_quant_rows *r, const struct nib_quant_plan *p,
                                    const struct nib_quant_matrix *m, size_t budget_bytes, int32_t k_ref,
                                    const char *name, struct nib_error *err);
void nib_quant_rows_deinit(struct nib_quant_rows *r);

/* Read and decode rows [first, first + n_rows_max), fewer at the end; nothing is done if they are held already. Refuses
 * codes and scales that are NaN, and NaN or Inf, by name and place. */
enum nib_status nib_quant_rows_read(struct nib_quant_rows *r, const struct nib_quant_context *c, int64_t first,
                                    struct nib_error *err);
/* Rows that a thread takes at a time: about a quarter of a MiB as stored, so that what follows finds them cached. */
int64_t nib_quant_rows_slice(const struct nib_quant_rows *r);
/* Kernel view of row i of the rows read last. */
struct nib_quant_row nib_quant_rows_at(const struct nib_quant_rows *r, int64_t i);

/* Power of two that brings amax near 1. */
float nib_quant_unit_of(float amax);

/* Add b to a, in the order of calls. */
void nib_quant_sums_add(struct nib_quant_sums *a, const struct nib_quant_sums *b);
double nib_quant_relative_mse(const struct nib_quant_sums *s); /* 0 where both are 0 */
double nib_quant_cosine(const struct nib_quant_sums *s);       /* 1 for a tensor of zeros */

/* ---- Calibration ---- */

/* What the inputs of a matrix looked like. */
struct nib_quant_inputs {
    int64_t       n_in;
    uint64_t      n_rows;      /* tokens that reached it */
    float         amax;        /* 0: none did */
    bool          measured;    /* false: taken from the layer's other inputs */
    const float  *mean_square; /* [n_in] */
    const double *hessian;     /* [n_in][n_in] mean of x x^T, gptq only; else NULL */
};

enum nib_status nib_quant_calibration_open(const struct nib_quant_plan *p, int32_t n_threads,
                                           struct nib_quant_calibration **out, struct nib_error *err);
void nib_quant_calibration_close(struct nib_quant_calibration *c);
/* Inputs of a matrix; units must be asked for in the plan's order, since layers are run one after the other. found is
 * false where nothing is observed (the head, the MTP block). The arrays are valid until the next call. */
enum nib_status nib_quant_calibration_inputs(struct nib_quant_calibration *c, const struct nib_quant_unit *u,
                                             bool *found, struct nib_quant_inputs *out, struct nib_error *err);

/* Error feedback: columns are rounded one after the other, those whose inputs are largest first, and what a rounding
 * costs is made up for by the columns that are still to come. */
struct nib_quant_gptq {
    int64_t  n;
    int64_t *order;  /* [n] columns in order of treatment */
    float   *factor; /* [n][n] upper triangle in that order: row i over its own entry: how column i's error spreads */
};
enum nib_status nib_quant_gptq_init(struct nib_quant_gptq *q, const double *hessian, int64_t n, int32_t n_threads,
                                    struct nib_error *err);
void nib_quant_gptq_deinit(struct nib_quant_gptq *q);
/* Codes of one row under its scales; x [n] is used up. Returns how many values saturate. Safe from any thread. */
int64_t nib_quant_gptq_row(const struct nib_quant_gptq *q, float *x, float g, const uint8_t *scales, uint8_t *codes);

/* ---- Reports ---- */

/* Stats of one unit to JSON and back, without loss. */
json_t         *nib_quant_stats_json(const struct nib_quant_plan *p, const struct nib_quant_unit *u);
enum nib_status nib_quant_stats_read(const json_t *row, struct nib_quant_unit *u, const char *what,
                                     struct nib_error *err);

enum nib_status nib_quant_report_write(const struct nib_quant_plan *p, const char *dst, struct nib_error *err);
enum nib_status nib_quant_config_write(const struct nib_quant_plan *p, const char *dst, struct nib_error *err);
void            nib_quant_result_fill(const struct nib_quant_plan *p, struct nib_quantize_result *r);

const char *nib_quant_method_name(enum nib_quant_method m);
const char *nib_quant_preset_name(enum nib_quant_preset s);

#endif
