/* The whole distribution that docs/sampling.md defines, on the host: what rejection sampling compares. The sample op
 * draws from the same one without writing it down. */
#ifndef NIB_DISTRIBUTION_H
#define NIB_DISTRIBUTION_H

#include "nibble.h"

/* Distinct ids seen so far, and how often each was generated. */
struct nib_seen {
    const int32_t *token, *times; /* [n] */
    int32_t        n;
};

/* p[i], summing to 1, for a temperature of at least 1e-5. order: [n] scratch. False where the logits hold NaN, plus
 * infinity, or nothing finite. */
bool nib_distribution(const struct nib_sampling *s, const float *logits, int32_t n, const struct nib_seen *seen,
                      double *p, int32_t *order);

/* The id, in ascending order, at which the running sum of weights exceeds uniform times their total; -1 if that is
 * 0. */
int32_t nib_distribution_draw(const double *weight, int32_t n, double uniform);

/* Natural log of the softmax of raw logits at an id. */
double nib_log_softmax(const float *logits, int32_t n, int32_t id);

#endif
