/* What the API's objects are made of; shared by the files of this folder. */
#ifndef NIB_ENGINE_H
#define NIB_ENGINE_H

#include "checkpoint/checkpoint.h"
#include "engine/draft_auto.h"
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

struct nib_observer; /* observe.h */

/* Tokens guessed ahead of the trunk; see draft.h. */
struct nib_drafts {
    int32_t token[NIB_DRAFTS_MAX];
    bool    drawn;   /* q holds what the tokens were drawn from; else they are taken as certain guesses */
    double *q;       /* [n_drafts][vocab] */
    double *p;       /* [vocab] */
    float  *logits;  /* [n_drafts + 1][vocab] */
    int32_t *order;  /* [vocab] scratch */
    struct nib_draft_auto chooser;
    /* Tests replace the guesses for the positions from `position` on. */
    void (*force)(void *user, int32_t position, int32_t n, int32_t *token);
    void *force_user;
};

struct nib_engine {
    struct nib_model      *model;
    struct nib_options     options; /* resolved */
    struct nib_rank        rank;
    struct nib_step_buffer step;
    bool                   broken;       /* the device failed, see nib_engine_break */
    struct nib_error       why_broken;
    /* Sampling of up to NIB_DRAFTS_MAX + 1 rows: device arrays and the host's count of every id. */
    struct {
        struct nib_sample_row *row;
        int32_t               *token, *history_token, *history_times;
        float                 *logprob;
        int32_t               *host_times, *host_list; /* [vocab] times seen + 1, or 0; distinct ids in order */
        int32_t               *host_list_times;        /* [vocab] */
    } sample;
    struct nib_drafts    drafts;
    struct nib_observer *observer; /* NULL: nobody looks at the ops */
    struct nib_error     op_error; /* what it found; else empty */
};

struct nib_seq {
    struct nib_engine   *engine;
    struct nib_seq_state state;
    uint64_t             stamp; /* of the last batch it was in */
};

/* A model of a configuration and the tensors it needs, called `dir` in what it says. The checkpoint becomes the model's
 * unless this fails. */
enum nib_status nib_model_make(const char *dir, const struct nib_config *config, struct nib_checkpoint *checkpoint,
                               struct nib_model **out, struct nib_error *err);

/* Options as an engine will use them: defaults filled in, combinations checked. */
enum nib_status nib_options_resolve(const struct nib_model *m, const struct nib_options *o, struct nib_options *out,
                                    struct nib_error *err);

/* What follows from resolved options. */
struct nib_backend_config nib_backend_config_for(const struct nib_config *c, const struct nib_options *o);
struct nib_pool_config    nib_pool_config_for(const struct nib_config *c, const struct nib_options *o);
int32_t                   nib_logits_rows(const struct nib_options *o); /* that the head takes at once */

/* Integers that a step of these limits may need. */
size_t nib_step_buffer_size(int32_t n_rows_max, int32_t n_seqs_max, int32_t page_stride, int32_t n_rollback);

/* Tell that the backend failed to `what`, or what an observer found. */
/* The device failed, as op_error or the backend tells: nothing runs any more, and every later failure names the first. */
void nib_engine_break(struct nib_engine *e);

enum nib_status nib_engine_failed(struct nib_engine *e, enum nib_status status, const char *what,
                                  struct nib_error *err);

/* nib_step() in two halves, so that a sampler can read the logits where they are: run leaves streams in the work
 * buffers and advances the sequences; logits fills work.logits for rows [first, first + n) of the batch's
 * logits_row. */
enum nib_status nib_step_run(struct nib_engine *e, const struct nib_batch *b, bool mtp, struct nib_error *err);
enum nib_status nib_step_logits(struct nib_engine *e, int32_t first, int32_t n, bool mtp);

/* Chains of MTP rows behind the ends of n sequences: row i of each, with the token at position length + i. Its logits,
 * a guess at the next token, go to row r of work.logits. i = 0 starts from the trunk's streams, the others from the
 * call before, which must follow at once; a chain may end before others do. The positions must be reserved. Changes
 * nothing that the next step does not overwrite. */
struct nib_draft_row {
    const struct nib_seq *seq;
    int32_t               token;
    int32_t               from; /* i > 0: this chain's place in the call before */
};
enum nib_status nib_step_draft(struct nib_engine *e, const struct nib_draft_row *row, int32_t n, int32_t i);

#endif
