/* Shared by tests that run whole models: paths of the bundled data, engines, and reference tensors. */
#ifndef MODEL_SUPPORT_H
#define MODEL_SUPPORT_H

#include "checkpoint/checkpoint.h"
#include "nibble.h"

#define MODEL_NVFP4    NIB_SOURCE_DIR "/models/tiny-v4"
#define MODEL_OFFICIAL NIB_SOURCE_DIR "/tests/data/tiny-v4-official"
#define GOLDENS        NIB_SOURCE_DIR "/tests/data/goldens/model"

/* An engine with its model; fails the test if it cannot be opened. */
struct fixture {
    struct nib_model  *model;
    struct nib_engine *engine;
    int32_t            vocab;
};
struct fixture fixture_open(const char *dir, const struct nib_options *o);
void           fixture_close(struct fixture *f);

/* Feed n tokens in chunks of `chunk`; logits of the last n_last rows ([n_last][vocab], caller's), all argmaxes and all
 * next-token losses where the pointers are not NULL. mtp: [n_mtp][vocab] of the last rows. */
struct run {
    const int32_t *ids;
    int32_t        n, chunk, n_last, n_mtp;
    float         *logits;
    float         *mtp;
    int32_t       *argmax; /* [n] */
    double        *nll;    /* [n - 1] */
};
void fixture_run(struct fixture *f, struct nib_seq *seq, const struct run *r);

int32_t argmax_of(const float *x, int32_t n);
double  nll_of(const float *logits, int32_t n, int32_t token);

/* A reference tensor by printf-style name; NULL if absent. The data may be unaligned: copy it out. */
struct nib_checkpoint         *goldens_open(void);
const struct nib_tensor_entry *golden_find(const struct nib_checkpoint *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void *golden_copy(const struct nib_tensor_entry *e); /* malloc'd */

#endif
