/* The next token from rows of logits where they are, by the sample op; and what penalties need to know. */
#ifndef NIB_DRAW_H
#define NIB_DRAW_H

#include "engine/distribution.h"
#include "engine/engine.h"

/* Independent streams of random numbers at a position (random.h). */
enum nib_draw_stream {
    NIB_DRAW_TOKEN,    /* the ordinary draw */
    NIB_DRAW_ACCEPT,   /* whether a draft stays */
    NIB_DRAW_RESIDUAL, /* the token in place of a rejected draft */
    NIB_DRAW_DRAFT     /* the draft itself */
};

bool nib_sampling_has_penalties(const struct nib_sampling *s);
bool nib_sampling_is_greedy(const struct nib_sampling *s);

/* What a text has shown so far, in the engine's own arrays; counted only if the sampling has penalties. */
struct nib_past {
    struct nib_engine *e;
    int32_t            n;
    bool               counts;
};
void            nib_past_start(struct nib_past *h, struct nib_engine *e, const struct nib_sampling *s);
void            nib_past_add(struct nib_past *h, int32_t token, bool generated);
struct nib_seen nib_past_seen(const struct nib_past *h);

/* Draw from rows first .. first+n-1 of work.logits, the first of which stands at `position`; all see the same history.
 * n is at most NIB_DRAFTS_MAX + 1. token[i] is -1 where there is nothing to draw from. */
enum nib_status nib_draw_rows(struct nib_engine *e, const struct nib_sampling *s, const struct nib_past *h, int32_t first, int32_t n,
                              int32_t position, int32_t *token, float *logprob, struct nib_error *err);

#endif
