/* Watching a layer's inputs while it runs: an op table that passes everything on and adds up what the projections read.
 */
#ifndef NIB_OBSERVE_QUANT_H
#define NIB_OBSERVE_QUANT_H

#include "model/forward.h"
#include "quantize/quant.h"

/* Inputs of a layer, in the order in which the plan asks for their matrices. Experts follow: 2 * e is what w1 and w3 of
 * expert e read, 2 * e + 1 what its w2 reads. */
enum { NIB_INPUT_ATTN, NIB_INPUT_Q, NIB_INPUT_O, NIB_INPUT_FFN, NIB_INPUT_SHARED_INNER, NIB_INPUT_EXPERTS };

struct nib_quant_input {
    int64_t  n_in;
    uint64_t n_rows;
    float    amax;
    double  *square;  /* [n_in] sums */
    double  *product; /* [n_in][n_in] sums, or NULL */
};

struct nib_quant_observer {
    const struct nib_config *config;
    const struct nib_ops    *ops;   /* that do the work */
    const struct nib_layer  *layer; /* running */
    const struct nib_source *w1, *w3, *sw1, *sw3; /* of it, to recompute what w2 reads */
    struct nib_quant_input  *input; /* [NIB_INPUT_EXPERTS + 2 * n_experts] */
    int32_t                 *chosen; /* [rows_max][top_k] */
    int32_t                  rows_max, n_threads;
    enum nib_status          status; /* of the observer itself */
};

/* Fill *table with ops that report to *o and return it; NULL ends observation. One observer a thread: an op has no
 * place for a pointer of its own, so it is kept in a thread-local variable. */
const struct nib_ops *nib_quant_observe(struct nib_quant_observer *o, struct nib_ops *table);

#endif
