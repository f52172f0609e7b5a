/* A model's weights as a struct with names, and the table that ties each field to its tensors, shapes and formats.
 *
 * Two stages. nib_sources_resolve() reads headers only: every field finds its tensors, and name, dtype, shape and
 * format are checked. nib_weights_load() reads values, checks them, and packs them on a backend. */
#ifndef NIB_WEIGHTS_H
#define NIB_WEIGHTS_H

#include "backend/backend.h"
#include "base/arena.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"

struct nib_hc {
    float *fn, *base, *scale; /* [(2+hc)*hc][hc*dim], [(2+hc)*hc], [3]; the head's: [hc][hc*dim], [hc], [1] */
};

struct nib_compressor {
    struct nib_weight *wkv, *wgate; /* [coff*width, dim], coff 2 at ratio 4, else 1 */
    float             *ape;         /* [ratio][coff*width] */
    float             *norm;        /* [width] */
};

struct nib_layer {
    int32_t ratio;

    struct nib_hc      attn_hc;
    float             *attn_norm; /* [dim] */
    struct nib_weight *wq_a;      /* [q_rank, dim] */
    float             *q_norm;    /* [q_rank] */
    struct nib_weight *wq_b;      /* [n_heads*head_dim, q_rank], split by head */
    struct nib_weight *wkv;       /* [head_dim, dim] */
    float             *kv_norm;   /* [head_dim] */
    float             *sink;      /* [n_heads] */
    struct nib_weight *wo_a;      /* [n_groups*o_rank, n_heads*head_dim/n_groups], split by group */
    struct nib_weight *wo_b;      /* [dim, n_groups*o_rank] */

    struct nib_compressor compress;      /* ratio > 0 */
    struct nib_compressor index;         /* ratio 4 */
    struct nib_weight    *index_wq_b;    /* [n_index_heads*index_dim, q_rank] */
    struct nib_weight    *index_weights; /* [n_index_heads, dim] */

    struct nib_hc      ffn_hc;
    float             *ffn_norm; /* [dim] */
    struct nib_weight *router;   /* [n_experts, dim] */
    float             *bias;     /* [n_experts], scored layers */
    int32_t           *tid2eid;  /* [vocab][top_k], hash layers */
    struct nib_weight *w1, *w2, *w3;    /* stacks of n_experts */
    struct nib_weight *sw1, *sw2, *sw3; /* shared expert */

    /* Quantised activation format that the consumers of each row take (PLAIN: none of them does). */
    enum nib_act_format attn_act, q_act, o_act, ffn_act;
};

struct nib_mtp {
    struct nib_layer   layer;
    float             *enorm, *hnorm, *norm; /* [dim] */
    struct nib_weight *e_proj, *h_proj;      /* [dim, dim] */
    struct nib_hc      hc_head;
};

struct nib_weights {
    struct nib_weight *embed, *head; /* [vocab, dim] */
    float             *norm;         /* [dim] */
    struct nib_hc      hc_head;
    struct nib_layer  *layer;        /* [n_layers] */
    struct nib_mtp     mtp;
    bool               has_mtp;
    float             *rope_plain, *rope_compressed; /* [n_rot/2] */
};

/* ---- Sources: which tensors a field comes from ---- */

enum nib_field_kind { NIB_FIELD_LINEAR, NIB_FIELD_EXPERTS, NIB_FIELD_VECTOR, NIB_FIELD_IDS };

struct nib_field; /* a row of the table in weights_table.c */

struct nib_source {
    const struct nib_field        *field;
    int32_t                        layer; /* -1: not in a layer; n_layers: the MTP block */
    const char                    *name;  /* of the (first) tensor in the checkpoint */
    const struct nib_tensor_entry *entry; /* of the (first) tensor */
    enum nib_weight_type           type;  /* linear and experts */
    int32_t                        n_stack, n_out, n_in; /* vectors: 1, rows, cols; tables likewise */
    struct nib_weight_part        *part;  /* [n_stack]; linear and experts */
    const char                   **part_name; /* [n_stack] */
    uint64_t                       bytes; /* with scales */
};

struct nib_sources {
    struct nib_arena   arena;
    struct nib_source *source; /* in model order */
    int32_t            n;
    const char        *layout; /* "official" or "hf" */
    bool               has_mtp;
    int64_t            n_tensors_used;
};

/* Find every field's tensors. Does not read tensor data. On failure *out is deinitialised. */
enum nib_status nib_sources_resolve(const struct nib_checkpoint *ck, const struct nib_config *c,
                                    struct nib_sources *out, struct nib_error *err);
void nib_sources_deinit(struct nib_sources *s);

enum nib_field_kind nib_source_kind(const struct nib_source *s);
const char         *nib_source_family(const struct nib_source *s);
const char         *nib_source_format(const struct nib_source *s); /* "nvfp4", ... */

/* The activation rows that a source's weight multiplies under a setting. */
enum nib_act_format nib_source_act(const struct nib_source *s, enum nib_act_quant q);

/* Device bytes of one source. */
uint64_t nib_source_device_bytes(const struct nib_source *s, const struct nib_backend_api *api, enum nib_act_quant q);

/* Refuse NaN and Inf values, NaN or signed scale bytes, and ids out of range, naming tensor and place. */
enum nib_status nib_source_check(const struct nib_source *s, const struct nib_config *c, struct nib_error *err);

struct nib_load_args {
    const struct nib_config      *config;
    const struct nib_sources     *sources;
    const struct nib_backend_api *api;
    struct nib_backend           *backend;
    enum nib_act_quant            act_quant; /* resolved */
    bool                          mtp;
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *progress_user;
};

/* Check, convert and pack everything. On failure nothing is left behind. */
enum nib_status nib_weights_load(const struct nib_load_args *a, struct nib_weights *out, struct nib_error *err);
void nib_weights_unload(struct nib_weights *w, const struct nib_config *c, const struct nib_backend_api *api,
                        struct nib_backend *b);

#endif
