/* The engine's sequence behind a conversation: what it holds is kept, and only what differs is computed again. */
#ifndef NIB_CHAT_SEQ_H
#define NIB_CHAT_SEQ_H

#include <stdbool.h>
#include <stdint.h>

#include "nibble.h"

struct chat_seq {
    struct nib_engine *engine;
    struct nib_seq    *seq;
    struct nib_seq    *turn;          /* a fork from before the last prompt's last token; NULL: none */
    int32_t           *held;          /* [n_held] tokens of seq, from its beginning */
    int32_t            n_held, n_ctx, n_rows_max;
    int32_t            n_kept, n_new; /* of the latest prompt: tokens that were there, and that were computed */
};

/* Takes over the sequence, which is empty. False: memory is used up. Closed with chat_seq_close in any case. */
bool chat_seq_open(struct chat_seq *q, struct nib_engine *e, struct nib_seq *seq);
void chat_seq_close(struct chat_seq *q);

/* Make the sequence hold all of a prompt but its last token. n is at most n_ctx - 1, at least 1. on_prefill as in
 * nib_generate_args; where it ends the work, NIB_E_CANCELLED comes back and what was done is kept. */
enum nib_status chat_seq_prepare(struct chat_seq *q, const int32_t *ids, int32_t n,
                                 bool (*on_prefill)(void *user, int32_t done, int32_t total), void *user,
                                 struct nib_error *err);

/* A token is about to be, or may have been, appended by nib_generate. */
void chat_seq_note(struct chat_seq *q, int32_t token);

/* Drop what was noted and is not in the sequence. */
void chat_seq_settle(struct chat_seq *q);

#endif
