/* Inside a nib_server. The server's thread owns everything but the inbox, the flags and the published numbers, which
 * `lock` guards.
 *
 * scheduler.c: the API and the thread. scheduler_batch.c: who runs, and with how many rows. scheduler_draft.c: tokens
 * guessed ahead. scheduler_sample.c: the next tokens. */
#ifndef NIB_SCHEDULER_H
#define NIB_SCHEDULER_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/prefix.h"

#define NIB_TOP_MAX 20
#define NIB_CHOOSERS 40 /* numbers of requests that decode together, of which each has its own best number of drafts */

/* Distinct ids a request has seen, for penalties; memory only where there are some. */
struct nib_history {
    int32_t *place; /* [vocab] where in the list, + 1; 0: nowhere */
    int32_t *token, *times; /* [n] */
    int32_t  n;
};

struct nib_request {
    struct nib_server      *server;
    struct nib_request     *next; /* in a list of the server */
    atomic_int              n_refs;
    atomic_bool             cancelled;
    struct nib_request_args args; /* arrays are copies owned by the request */
    int32_t                *ids;  /* [n_ids of n_ids_max] prompt and generated */
    int32_t                 n_ids, n_ids_max;
    struct nib_seq         *seq;  /* NULL while it waits; holds the first of ids */
    int32_t                 n_known; /* see nib_prefix_match */
    int32_t                 last_kept; /* boundary of the last snapshot made while decoding; 0 */
    const int32_t          *allowed;
    int32_t                 n_allowed;
    struct nib_history      history;
    /* In this step: */
    int32_t                 n_rows;    /* those of drafts included */
    int32_t                 n_drafts;  /* tokens guessed behind the last known one */
    int32_t                 draft[NIB_DRAFTS_MAX];
    int32_t                 chain;     /* place among those that draft */
    int32_t                 logits_at, n_logits; /* its rows of logits */
    bool                    drawn;     /* together with others; else when its turn comes */
    double                  submit_time;
    struct nib_request_result result;
};

struct nib_request_list {
    struct nib_request *first, *last;
    int32_t             n;
};

struct nib_server {
    struct nib_engine         *engine;
    struct nib_server_options  options;
    pthread_t                  thread;
    pthread_mutex_t            lock;
    pthread_cond_t             wake;
    struct nib_request_list    inbox;    /* lock */
    bool                       draining, closing; /* lock */
    bool                       stopped;  /* the thread has ended; of whoever stops and closes */
    struct nib_server_stats    published; /* lock */
    struct nib_error           failure;   /* lock; why the engine is broken; empty: it is not */
    struct nib_request_list    waiting;
    struct nib_request       **running; /* [n_running] oldest first */
    int32_t                    n_running;
    bool                       crowded; /* someone was preempted: no one comes in before someone ends */
    struct nib_prefix          prefix;
    struct nib_server_stats    stats;
    double                     decode_s, row_s; /* usual length of steps without prompts; what a prompt row adds; 0: not
                                                   known */
    int32_t                    n_prefill_now; /* prompt rows of a step in which others decode */
    /* A step's batch, host memory sized at open. */
    int32_t                   *token, *seq_start, *logits_row;
    struct nib_seq           **seq;
    struct nib_request       **in_batch, **sampled; /* by sequence of the batch; by row of logits */
    /* Drafts. */
    struct nib_draft_auto      chooser[NIB_CHOOSERS];
    struct nib_draft_row      *draft_row; /* [n_running_max] */
    struct nib_draft_tally     tally;     /* of this step */
    int32_t                    n_drafts;  /* the most that a request of this step has */
    int32_t                    n_decoding; /* requests that may have some */
    /* Sampling, of as many rows as there may be logits: device arrays and their host sides. */
    struct nib_sample_row     *device_row, *host_row;
    int32_t                   *device_token, *host_token;
    float                     *device_logprob, *host_logprob;
    float                     *logits, *edited; /* [vocab] of one row, on the host */
};

double nib_server_now(void); /* seconds, monotonic */

/* One round: who was cancelled goes, who fits comes in, one step runs, every finished row gives a token. False if there
 * was nothing to run. */
bool nib_server_round(struct nib_server *s);

/* Guess what follows each request that decodes, n_drafts tokens of it into draft[], their positions reserved. Failing
 * only means fewer guesses. A guess is the MTP block's distribution drawn from with the random number that the trunk's
 * will be drawn from with, and is right if the trunk's draw is the same token. So what a request gets does not depend
 * on drafts at all: not on how many, not on who else runs. */
void nib_server_draft(struct nib_server *s);

/* What the step took, for choosing the next number of drafts. is_pure: no prompt was in it. */
void nib_server_draft_learn(struct nib_server *s, bool is_pure, double seconds);

/* Draw tokens for the first n rows of the last step's logits, request sampled[i] each, as far as that needs nothing of
 * what is drawn before them; nib_server_token gives them, or draws one now, in the request's present state. *id is -1
 * where nothing can be drawn. */
enum nib_status nib_server_sample(struct nib_server *s, int32_t n);
enum nib_status nib_server_token(struct nib_server *s, struct nib_request *r, int32_t row, int32_t *id, float *logprob);

/* A guess at token `ahead` of each of the first n rows of the MTP block's logits, request sampled[i] each, into
 * host_token. */
enum nib_status nib_server_guess(struct nib_server *s, int32_t n, int32_t ahead);

/* The likeliest n tokens of a row of the last step's logits. */
enum nib_status nib_server_top(struct nib_server *s, int32_t row, int32_t n, int32_t *id, float *logprob);

static inline int32_t nib_request_n_pending(const struct nib_request *r)
{
    return r->n_ids - nib_seq_length(r->seq);
}

/* What nib_server_get_stats tells, and what limits the queue, becomes what is so now. */
void nib_server_publish(struct nib_server *s);

void nib_history_add(struct nib_history *h, int32_t token, bool generated);

/* Tell the end and drop the server's reference. The request is in no list. */
void nib_request_finish(struct nib_request *r, enum nib_status status, enum nib_stop_reason reason);

void nib_request_push(struct nib_request_list *l, struct nib_request *r, bool front);
struct nib_request *nib_request_pop(struct nib_request_list *l);

#endif
