/* Watching the ops of an engine from between the forward pass and its backend: rank.ops is replaced by a table that
 * looks at every op's arguments and results and calls the real one. No line of the forward pass knows of it, and an
 * engine that is not watched pays nothing.
 *
 * options.trace writes a line of JSON for every op (observe_trace.c). options.compare runs every op on `ref` too, on
 * copies of the same inputs, and stops at the first result that is further away than the op's arithmetic allows
 * (observe_shadow.c makes the copies, observe_bounds.c says how far that is). */
#ifndef NIB_OBSERVE_H
#define NIB_OBSERVE_H

#include <stdio.h>

#include "base/arena.h"
#include "engine/engine.h"

/* The slots of struct nib_ops. */
#define NIB_OP_LIST(X)                                                                                                                \
    X(EMBED, embed) X(NORM, norm) X(LINEAR, linear) X(Q_ROPE, q_rope) X(KV_INSERT, kv_insert) X(COMPRESS, compress)                   \
    X(INDEX_SELECT, index_select) X(ATTEND, attend) X(O_A, o_a) X(MOE, moe) X(HC_PRE, hc_pre) X(HC_POST, hc_post)                     \
    X(HC_HEAD, hc_head) X(HEAD, head) X(MTP_JOIN, mtp_join) X(COPY_ROWS, copy_rows) X(SAMPLE, sample)

enum nib_op {
#define X(upper, lower) NIB_OP_##upper,
    NIB_OP_LIST(X)
#undef X
    NIB_N_OPS
};

/* A result as numbers: rows of floats, decoded from whatever they are stored in. */
enum nib_values_kind { NIB_VALUES_PLAIN, NIB_VALUES_ACT, NIB_VALUES_ROWS, NIB_VALUES_INTS };
struct nib_values {
    const char          *name, *format;
    enum nib_values_kind kind;
    enum nib_dtype       dtype;      /* PLAIN */
    enum nib_act_format  act_format; /* ACT */
    enum nib_row_format  row_format; /* ROWS */
    int32_t              n_rot;      /* ROWS */
    int32_t              rows, cols;
    float               *value;      /* [rows][cols], in the arena */
    uint64_t             hash;       /* of the stored bytes */
};
#define NIB_VALUES_MAX 8

/* Where values are read from. */
struct nib_reader {
    const struct nib_backend_api *api;
    struct nib_stream            *stream;
    struct nib_arena             *arena;
};

/* Bytes of a backend in fresh host memory; NULL where there is none or the backend fails. */
void *nib_read(const struct nib_reader *r, const void *from, size_t bytes);

/* The results of an op that has run, out[NIB_VALUES_MAX]; their number, or -1. */
int32_t nib_op_results(const struct nib_reader *r, enum nib_op op, const void *args, struct nib_values *out);

const char *nib_op_name(enum nib_op op);
int32_t     nib_op_rows(enum nib_op op, const void *args);

/* Call a table's op. */
enum nib_status nib_op_call(const struct nib_ops *ops, enum nib_op op, struct nib_stream *s, const void *args);

/* ---- The observer ---- */

struct nib_shadow;

struct nib_observer {
    struct nib_engine    *engine;
    const struct nib_ops *inner;
    struct nib_arena      arena;   /* of the op that is running */
    FILE                 *trace;
    struct nib_shadow    *shadow;  /* NULL without compare */
    uint64_t              step, n_ops;
    int32_t               layer;   /* -1 before the first and behind the last; n_layers: the MTP block */
    const char           *part;    /* "embed", "attention", "experts", "head", "mtp" */
    struct nib_observer  *next;
};

/* By the engine's resolved options; nothing happens without trace and compare. */
enum nib_status nib_observer_open(struct nib_engine *e, struct nib_error *err);
void            nib_observer_close(struct nib_engine *e); /* NULL-safe; before the backend closes */

enum nib_status nib_trace_open(struct nib_observer *o, const char *path, struct nib_error *err);
void            nib_trace_close(struct nib_observer *o);
enum nib_status nib_trace_op(struct nib_observer *o, enum nib_op op, const void *args, double seconds);

/* ---- Compare ---- */

/* A pointer of the engine's backend and what stands for it on ref. */
struct nib_pair {
    const void              *from;
    void                    *to;
    const struct nib_source *source; /* of a weight; else NULL */
    float                   *norm;   /* [n_stack * n_out] of each row, made when first needed */
};

struct nib_shadow {
    const struct nib_backend_api *api; /* ref */
    struct nib_backend           *backend;
    struct nib_stream            *stream;
    struct nib_weights            weights;
    struct nib_pair              *pair; /* sorted by `from` */
    int32_t                       n_pairs;
    int32_t                      *chosen; /* on the engine's backend, [n_rows_max][top_k] */
    float                        *chosen_weight;
};

/* Memory for the weights' descriptions and for one more set of work buffers' worth of inputs. */
enum nib_status nib_shadow_open(struct nib_observer *o, struct nib_error *err);
void            nib_shadow_close(struct nib_observer *o);

/* Copies of an op's arguments on ref, taken before it runs, in the observer's arena. NULL: no memory. *mine becomes the
 * arguments to call the engine's op with: the same, or with optional results added. */
void *nib_shadow_args(struct nib_observer *o, enum nib_op op, const void *args, const void **mine);

const struct nib_pair *nib_shadow_find(const struct nib_shadow *s, const void *from, bool by_to);
/* Euclidean norms of a weight's rows; NULL: no memory. */
const float *nib_shadow_row_norms(struct nib_shadow *s, const struct nib_weight *on_ref);

/* Run the op on ref and hold `got`, the results of the engine's, to it. args: the copies; mine: what the engine's op
 * was called with. The engine's error text is set on failure. */
enum nib_status nib_compare_op(struct nib_observer *o, enum nib_op op, const void *args, const void *mine);

/* How far results may be from ref's, by value: bound[k][row * cols + col] for each of the n results. ref: ref's
 * results. False: no memory. */
bool nib_op_bounds(struct nib_observer *o, enum nib_op op, const void *args, const struct nib_values *ref, int32_t n,
                   double **bound);

#endif
