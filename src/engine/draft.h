/* Speculation with the MTP block: guess k tokens, verify them in one step of k + 1 rows, keep the longest right
 * beginning.
 *
 * Greedy: a guess is right if it is the trunk's own choice, so the text is the same with and without drafts. Otherwise
 * rejection sampling: a guess x drawn from q stays with probability min(1, p(x) / q(x)), and a rejected one is replaced
 * by a draw from what p has more than q; so every token has the trunk's distribution p. docs/drafts.md has the whole
 * story. */
#ifndef NIB_DRAFT_H
#define NIB_DRAFT_H

#include "engine/draw.h"

/* Buffers for options.n_drafts; on failure nib_drafts_deinit() still frees. */
enum nib_status nib_drafts_init(struct nib_engine *e);
void            nib_drafts_deinit(struct nib_engine *e);

/* Guess the *k tokens behind `token`, which the sequence does not hold yet, into drafts.token; *k becomes less where
 * the MTP block has no guess (NaN). The *k + 1 positions are reserved. */
enum nib_status nib_draft_propose(struct nib_engine *e, struct nib_seq *seq, const struct nib_sampling *s,
                                  const struct nib_past *h, int32_t token, int32_t *k, struct nib_error *err);

/* What a verified step gave: the first n_accepted of drafts.token with their logprobs, then one more token (-1: nothing
 * to draw from). Accepted tokens have been added to the history. */
struct nib_verdict {
    int32_t n_accepted, next;
    float   logprob[NIB_DRAFTS_MAX], next_logprob;
};

/* Judge drafts.token[0 .. k-1] by rows 0 .. k of work.logits; the first draft stands at `position`. */
enum nib_status nib_draft_verify(struct nib_engine *e, const struct nib_sampling *s, struct nib_past *h,
                                 int32_t position, int32_t k, struct nib_verdict *out, struct nib_error *err);

#endif
