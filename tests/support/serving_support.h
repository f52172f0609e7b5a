/* Requests to the library's server and the same ones alone, for tests that compare the two. */
#ifndef SERVING_SUPPORT_H
#define SERVING_SUPPORT_H

#include "nibble.h"
#include "support/model_support.h"

#define JOB_TOKENS_MAX 512

uint32_t random_below(uint32_t n);
void     random_ids(int32_t *ids, int32_t n);

/* One request and what came back. */
struct job {
    int32_t                   prompt[2048], n_prompt, n_max;
    struct nib_sampling       sampling;
    uint64_t                  salt;
    int32_t                   token[JOB_TOKENS_MAX], n_tokens;
    float                     logprob[JOB_TOKENS_MAX];
    int32_t                   cancel_at; /* stop by callback after so many tokens; 0: never */
    bool                      ended;
    struct nib_request_result result;
    struct nib_request       *handle;
};
void job_submit(struct nib_server *s, struct job *j);
void job_wait(struct job *j);

/* Callbacks with a job as user, for tests that submit by themselves. */
void job_on_token(void *user, const struct nib_drawn_token *t, struct nib_next *next);
void job_on_end(void *user, const struct nib_request_result *r);

int32_t jobs_n_ended(void); /* of all jobs so far */

/* What nib_generate gives. */
struct alone {
    int32_t n;
    int32_t token[JOB_TOKENS_MAX];
    float   logprob[JOB_TOKENS_MAX];
};
void job_run_alone(struct nib_engine *e, const struct job *j, struct alone *out);
void job_check(const struct job *j, const struct alone *a); /* bit for bit */

/* How servers and jobs alone quantise activations from now on: none until told otherwise. Both are on the cpu backend, where
 * bits must not depend on company; a card's kernels differ between few and many rows (docs/contracts.md). */
void serving_act_quant_set(enum nib_act_quant q);

/* A server of the bundled model on one thread, with contexts of 1280 tokens. */
struct serving {
    struct fixture     f;
    struct nib_server *server;
};
struct serving server_open(int32_t n_running, int32_t n_kept, int32_t n_pages, int32_t n_prefill);
struct serving server_open_drafting(int32_t n_running, int32_t n_kept, int32_t n_pages, int32_t n_prefill,
                                    int32_t n_drafts);
void           server_close(struct serving *r);

enum { N_JOBS = 10 };

/* Prompts of all lengths around borders; some share beginnings, one with another's salt. */
struct job *jobs_make(void);
void        jobs_run(const struct serving *r, struct job *jobs);

/* Each job on an engine where nothing else runs; and that the jobs were given the same. */
struct alone *jobs_alone(const struct job *jobs, int32_t n_jobs);
void          jobs_check_alone(const struct job *jobs, int32_t n_jobs);

#endif
