/* How many tokens to draft, chosen by what steps cost and how many guesses come true. Pure arithmetic on numbers it is
 * given. */
#ifndef NIB_DRAFT_AUTO_H
#define NIB_DRAFT_AUTO_H

#include <stdint.h>

#define NIB_DRAFTS_MAX 8

struct nib_draft_auto {
    int32_t max;
    double  cost[NIB_DRAFTS_MAX + 1];   /* seconds of a round with k drafts, running */
    int32_t n_cost[NIB_DRAFTS_MAX + 1]; /* rounds it was measured in */
    double  tried[NIB_DRAFTS_MAX], hit[NIB_DRAFTS_MAX]; /* of the i-th draft, where all before it were right; fading */
    int32_t n_plain;                    /* rounds without drafts since the last one with */
    int32_t n_drafting;                 /* the other way round */
    int32_t probe_gap;                  /* rounds without drafts before another try */
};

/* Forget everything; at most `max` drafts. */
void nib_draft_auto_init(struct nib_draft_auto *a, int32_t max);

/* A new text: what steps cost stays known, what comes true does not. */
void nib_draft_auto_restart(struct nib_draft_auto *a);

/* Drafts for the next round, 0 to limit. */
int32_t nib_draft_auto_choose(struct nib_draft_auto *a, int32_t limit);

/* A round drafted k tokens, of which the first n_accepted were right, and took `seconds`. */
void nib_draft_auto_record(struct nib_draft_auto *a, int32_t k, int32_t n_accepted, double seconds);

/* The same for a round of several texts together: of the i-th drafts, how many were judged (all before them were
 * right), and how many were right. */
struct nib_draft_tally {
    int32_t n_texts, n_judged[NIB_DRAFTS_MAX], n_right[NIB_DRAFTS_MAX];
};
void nib_draft_auto_cost(struct nib_draft_auto *a, int32_t k, double seconds);
void nib_draft_auto_outcome(struct nib_draft_auto *a, const struct nib_draft_tally *t);

/* The best number as far as is known, without asking for a try. */
int32_t nib_draft_auto_best(const struct nib_draft_auto *a, int32_t limit);

#endif
