/* Prompts of one conversation begin alike, mostly: each is the one before with an answer and a question behind it.
 * Where the beginnings part (reasoning is left out of earlier turns; the user changed the system message), the
 * sequence is cut back: by a truncation if the engine still has the state, else to the fork kept from the last turn,
 * else to nothing. */
#include "chat_seq.h"

#include <stdlib.h>
#include <string.h>

bool chat_seq_open(struct chat_seq *q, struct nib_engine *e, struct nib_seq *seq)
{
    const struct nib_options *o = nib_engine_options(e);

    *q = (struct chat_seq){.engine = e, .seq = seq, .n_ctx = o->n_ctx, .n_rows_max = o->n_rows_max};
    /* One more: the token that ends a full context is noted too. */
    q->held = malloc(((size_t)o->n_ctx + 1) * sizeof *q->held);
    return q->held != NULL;
}

static void drop_turn(struct chat_seq *q)
{
    nib_seq_close(q->turn);
    q->turn = NULL;
}

void chat_seq_close(struct chat_seq *q)
{
    drop_turn(q);
    nib_seq_close(q->seq);
    free(q->held);
    *q = (struct chat_seq){0};
}

/* Back to the turn's fork, of which another is taken so that it stays. */
static void restore_turn(struct chat_seq *q)
{
    struct nib_seq *again = NULL;

    nib_seq_close(q->seq);
    q->seq = q->turn;
    q->turn = NULL;
    if (nib_seq_fork(q->seq, &again, NULL) == NIB_OK)
        q->turn = again;
    q->n_held = nib_seq_length(q->seq);
}

/* Keep the first n tokens or fewer. */
static void cut_back(struct chat_seq *q, int32_t n)
{
    if (q->turn && nib_seq_length(q->turn) > n)
        drop_turn(q);
    if (nib_seq_length(q->seq) <= n || nib_seq_truncate(q->seq, n) == NIB_OK) {
        q->n_held = nib_seq_length(q->seq);
        return;
    }
    if (q->turn) {
        restore_turn(q);
        return;
    }
    (void)nib_seq_truncate(q->seq, 0);
    q->n_held = 0;
}

static enum nib_status feed(struct chat_seq *q, const int32_t *ids, int32_t n, struct nib_error *err)
{
    const int32_t    seq_start[2] = {0, n};
    struct nib_batch batch = {.n_rows = n, .n_seqs = 1, .token = ids, .seq_start = seq_start, .seq = &q->seq};

    enum nib_status status = nib_step(q->engine, &batch, NULL, NULL, err);
    if (status != NIB_OK)
        return status;
    memcpy(q->held + q->n_held, ids, (size_t)n * sizeof *ids);
    q->n_held += n;
    return NIB_OK;
}

enum nib_status chat_seq_prepare(struct chat_seq *q, const int32_t *ids, int32_t n,
                                 bool (*on_prefill)(void *user, int32_t done, int32_t total), void *user,
                                 struct nib_error *err)
{
    int32_t common = 0;

    while (common < q->n_held && common < n - 1 && q->held[common] == ids[common])
        common++;
    cut_back(q, common);
    q->n_kept = q->n_held;
    q->n_new = n - q->n_kept;
    while (q->n_held < n - 1) {
        const int32_t left = n - 1 - q->n_held, rows = left < q->n_rows_max ? left : q->n_rows_max;
        enum nib_status status = feed(q, ids + q->n_held, rows, err);
        if (status != NIB_OK)
            return status;
        if (!on_prefill(user, q->n_held - q->n_kept, q->n_new))
            return NIB_E_CANCELLED;
    }
    /* Without a fork the next prompt may have to be read from its beginning: slower, not wrong. */
    drop_turn(q);
    (void)nib_seq_fork(q->seq, &q->turn, NULL);
    return NIB_OK;
}

void chat_seq_note(struct chat_seq *q, int32_t token)
{
    if (q->n_held <= q->n_ctx)
        q->held[q->n_held++] = token;
}

void chat_seq_settle(struct chat_seq *q)
{
    const int32_t length = nib_seq_length(q->seq);

    if (length <= q->n_held)
        q->n_held = length;
    else
        cut_back(q, q->n_held); /* drafts of a step that failed */
}
