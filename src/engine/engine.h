/* What the API's objects are made of; shared by the files of this folder. */
#ifndef NIB_ENGINE_H
#define NIB_ENGINE_H

#include "checkpoint/checkpoint.h"
#include "model/forward.h"

struct nib_model {
    char                  *dir;
    struct nib_checkpoint *checkpoint;
    struct nib_config      config;
    struct nib_sources     sources;
    struct nib_model_info  info;
};

/* A step's integers, filled on the host and sent to the device in one piece. */
struct nib_step_buffer {
    int32_t               *host, *device;
    size_t                 n, used;    /* integers */
    struct nib_seq_state **state;      /* [n_seqs_max] of the batch */
    int32_t               *n_new;      /* [n_seqs_max] rows of each */
    const int32_t         *logits_row; /* on the device, of the last step: trunk rows */
    const int32_t         *mtp_row;    /* likewise: MTP rows; 0 where a row has none */
    int32_t                n_mtp_rows;
    uint64_t               count;
};

struct nib_engine {
    struct nib_model      *model;
    struct nib_options     options; /* resolved */
    struct nib_rank        rank;
    struct nib_step_buffer step;
    bool                   broken;       /* the device failed */
    /* One row's sampling: device arrays and the host's count of every id. */
    struct {
        struct nib_sample_row *row;
        int32_t               *token, *history_token, *history_times;
        float                 *logprob;
        int32_t               *host_times, *host_list; /* [vocab] times seen + 1, or 0; distinct ids in order */
        int32_t               *host_list_times;        /* [vocab] */
    } sample;
};

struct nib_seq {
    struct nib_engine   *engine;
    struct nib_seq_state state;
    uint64_t             stamp; /* of the last batch it was in */
};

/* Options as an engine will use them: defaults filled in, combinations checked. */
enum nib_status nib_options_resolve(const struct nib_model *m, const struct nib_options *o, struct nib_options *out,
                                    struct nib_error *err);

/* What follows from resolved options. */
struct nib_backend_config nib_backend_config_for(const struct nib_config *c, const struct nib_options *o);
struct nib_pool_config    nib_pool_config_for(const struct nib_config *c, const struct nib_options *o);
int32_t                   nib_logits_rows(const struct nib_options *o); /* that the head takes at once */

/* Integers that a step of these limits may need. */
size_t nib_step_buffer_size(int32_t n_rows_max, int32_t n_seqs_max, int32_t page_stride, int32_t n_rollback);

/* nib_step() in two halves, so that a sampler can read the logits where they are: run leaves streams in the work buffers and
 * advances the sequences; logits fills work.logits for rows [first, first + n) of the batch's logits_row. */
enum nib_status nib_step_run(struct nib_engine *e, const struct nib_batch *b, bool mtp, struct nib_error *err);
enum nib_status nib_step_logits(struct nib_engine *e, int32_t first, int32_t n, bool mtp);

#endif
