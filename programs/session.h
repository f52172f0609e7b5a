/* A model opened for one command: checkpoint, tokenizer, engine and one sequence. Every function reports its own
 * failures on standard error. */
#ifndef NIB_SESSION_H
#define NIB_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "arguments.h"
#include "nibble.h"

struct session {
    const struct cli_engine_options *options;
    const char                      *dir; /* of the checkpoint */
    char                             dir_buffer[4096];
    char                             selftest_file[4096]; /* of the user's cache folder; "" if there is none */
    bool                             bundled; /* no -m was given */
    bool                             forks;   /* set before the engine is opened: room for one fork of the sequence */
    struct nib_model                *model;
    const struct nib_model_info     *info;
    struct nib_tokenizer            *tokenizer;
    struct nib_engine               *engine;
    struct nib_seq                  *seq;
    int32_t                          n_ctx, n_rows_max; /* of the engine */
    float                           *logits, *mtp_logits; /* [n_rows_max][vocab], made by the first session_feed */
    int32_t                         *rows;
};

/* Report a library error; returns CLI_FAILED. */
int session_fail(enum nib_status status, const struct nib_error *err);

/* Find the checkpoint's folder, the bundled one where none is named, and nothing more. As session_open otherwise. */
int session_find(struct session *s, const struct cli_engine_options *options);

/* Find and open the checkpoint. *s is initialised whatever happens; session_close ends it. The options must outlive
 * it. Returns an exit code, as the next three do. */
int session_open(struct session *s, const struct cli_engine_options *options);

/* Forget what self-tests of kernels found, so that they run again when the engine is opened. */
void session_test_again(const struct session *s);

int session_open_tokenizer(struct session *s);

/* The library's options for these command line options. n_rows_max 0: the library's default. */
int session_engine_options(const struct session *s, int32_t n_rows_max, bool mtp, struct nib_options *out);

/* Load the weights and open the sequence. */
int session_open_engine(struct session *s, int32_t n_rows_max, bool mtp);

void session_close(struct session *s);

/* Say on standard error if a kernel failed its self-test when an engine of this backend opened; engines go on without
 * it. */
void session_warn_of_kernels(const char *backend);

/* Called for each wanted row: i counts the ids that were fed. mtp_logits is NULL unless the engine has MTP. Return
 * false to stop with a failure that the callback has reported. */
typedef bool session_row_fn(void *user, int32_t i, const float *logits, const float *mtp_logits);

/* Append ids to the sequence in steps of at most n_rows_max rows and call on_row for the last n_last of them.
 * Returns an exit code. */
int session_feed(struct session *s, const int32_t *ids, int32_t n, int32_t n_last, session_row_fn *on_row, void *user);

/* The largest of a row of logits, ties to the lowest id; -1 if the row holds NaN. */
int32_t session_argmax(const struct session *s, const float *logits);

/* Negative log-likelihood of an id under a row of logits, in nats. */
double session_nll(const struct session *s, const float *logits, int32_t id);

#endif
