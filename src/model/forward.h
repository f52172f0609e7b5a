/* One forward pass over the rows of a step, as calls of the op table.
 *
 * nib_forward() runs the trunk and leaves the streams of every row in the work buffers; nib_forward_mtp() then runs the
 * MTP block on the pairs (streams before a row, the row's token); nib_forward_logits() collapses chosen rows to logits.
 * Nothing here knows which backend runs, allocates, or waits. */
#ifndef NIB_FORWARD_H
#define NIB_FORWARD_H

#include "model/pool.h"
#include "model/weights.h"

/* Activation rows between ops, sized once for n_rows_max. */
struct nib_work {
    int32_t        n_rows_max, n_logits_max;
    enum nib_dtype dtype;          /* of rows between modules: F32 with --numerics model, else BF16 */
    struct nib_mat streams;        /* [rows, n_hc * dim] */
    struct nib_mat post, comb;     /* F32 [rows, n_hc], [rows, n_hc * n_hc] */
    struct nib_act x;              /* [rows, dim] a module's normed input */
    struct nib_mat qa;             /* [rows, q_rank] */
    struct nib_act qr;             /* [rows, q_rank] */
    struct nib_mat q, o;           /* [rows, n_heads * head_dim] */
    struct nib_mat kv;             /* [rows, head_dim] */
    struct nib_mat compress_kv, compress_gate; /* F32 [rows, 2 * head_dim] */
    struct nib_mat index_kv, index_gate;       /* F32 [rows, 2 * index_dim] */
    struct nib_mat index_q;        /* [rows, n_index_heads * index_dim] */
    struct nib_mat index_weight;   /* [rows, n_index_heads] */
    int32_t       *selected;       /* [rows][index_top_k] */
    int32_t       *n_selected;     /* [rows] */
    struct nib_act u;              /* [rows, n_groups * o_rank] */
    struct nib_mat y;              /* [rows, dim] a module's output */
    struct nib_mat head_x;         /* [n_logits_max, dim] */
    struct nib_mat logits;         /* F32 [n_logits_max, vocab] */
    /* MTP */
    struct nib_mat mtp_streams;    /* [rows, n_hc * dim] */
    struct nib_mat mtp_h;          /* [rows, n_hc * dim] streams before each row */
    struct nib_act mtp_x;          /* [rows * n_hc, dim] */
    struct nib_mat mtp_e;          /* [rows, dim] */
};

/* One device's share of a model. */
struct nib_rank {
    const struct nib_backend_api *api;
    struct nib_backend           *backend;
    struct nib_stream            *stream;
    const struct nib_ops         *ops; /* api->ops, or a table that wraps it */
    const struct nib_config      *config;
    struct nib_weights            weights;
    struct nib_pool               pool;
    struct nib_work               work;
    enum nib_act_quant            act_quant; /* resolved */
    enum nib_numerics             numerics;
};

/* Which trunk rows feed the MTP block, as row numbers on the device. */
struct nib_mtp_rows {
    struct nib_rows rows;      /* first_pos 1; rows at position 0 left out */
    /* [rows.n_rows] each, where the streams before a row are: a row number in one of the three, -1 in the others; or
     * NULL. */
    const int32_t  *from_step; /* work.streams */
    const int32_t  *from_ring; /* pool.streams */
    const int32_t  *from_mtp;  /* work.mtp_streams: the block's own guess */
    const int32_t  *to;        /* [rows.n_rows] 0, 1, 2, ... */
    int32_t         n_keep;    /* trunk rows whose streams the ring must hold afterwards */
    const int32_t  *keep_row, *keep_ring; /* [n_keep] */
};

/* Of rows between modules with these numerics, AUTO resolved. */
enum nib_dtype nib_work_dtype(enum nib_numerics n);
uint64_t nib_work_bytes(const struct nib_config *c, int32_t n_rows, int32_t n_logits, bool mtp, enum nib_dtype dtype,
                        enum nib_act_quant q);
enum nib_status nib_work_init(struct nib_rank *rk, int32_t n_rows, int32_t n_logits, bool mtp, struct nib_error *err);
void            nib_work_deinit(struct nib_rank *rk);

enum nib_status nib_forward(struct nib_rank *rk, const struct nib_rows *rows);
enum nib_status nib_forward_mtp(struct nib_rank *rk, const struct nib_mtp_rows *m);

/* Logits of n rows (device row numbers) into work.logits; of the trunk's streams, or of the MTP block's. */
enum nib_status nib_forward_logits(struct nib_rank *rk, const int32_t *row, int32_t n, bool mtp);

/* Parts of the pass, each in its own file. x is the layer's normed input in work.x, the result goes to work.y. */
enum nib_status nib_attention(struct nib_rank *rk, const struct nib_rows *rows, const struct nib_layer *l,
                              int32_t layer);
enum nib_status nib_block(struct nib_rank *rk, const struct nib_rows *rows, const struct nib_layer *l, int32_t layer,
                          struct nib_mat streams);

/* The first n rows of a buffer, with the quantised part that `format` names. */
struct nib_mat nib_mat_rows(struct nib_mat m, int32_t n);
struct nib_act nib_act_rows(struct nib_act a, int32_t n, enum nib_act_format format);

#endif
