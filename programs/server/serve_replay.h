/* Blocks of tool calls as the model wrote them, by the ids their calls were given. Parsing and rendering again would
 * lose spellings (1.50, spaces in JSON), and with them what is kept of the conversation. Bounded; the oldest go first.
 * Safe from any thread. */
#ifndef NIB_SERVE_REPLAY_H
#define NIB_SERVE_REPLAY_H

#include <pthread.h>
#include <stddef.h>

#include "nibble.h"

enum { REPLAY_BLOCKS_MAX = 4096, REPLAY_BLOCK_BYTES_MAX = 64 * 1024, REPLAY_CALLS_MAX = 16 };

struct replay_block {
    size_t n_calls, n_text;
    char  *id[REPLAY_CALLS_MAX], *name[REPLAY_CALLS_MAX], *arguments[REPLAY_CALLS_MAX], *text;
};

struct replay {
    pthread_mutex_t     lock;
    struct replay_block block[REPLAY_BLOCKS_MAX]; /* a ring */
    size_t              next;
};

void replay_init(struct replay *r);
void replay_deinit(struct replay *r);

/* Keep a block; texts are copied, ids are NUL-terminated. */
void replay_keep(struct replay *r, const struct nib_reply *reply, const char *const *id, const char *text, size_t n);

/* A copy of the block of exactly these calls, of *n bytes; free() it. NULL if it is not kept, or a call has changed. */
char *replay_find(struct replay *r, const struct nib_past_call *call, size_t n_calls, size_t *n);

#endif
