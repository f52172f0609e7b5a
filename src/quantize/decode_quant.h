/* One row of a stored matrix as doubles, for calibration, which recomputes what the engine keeps to itself. */
#ifndef NIB_DECODE_QUANT_H
#define NIB_DECODE_QUANT_H

#include "backend/backend.h"

/* Row r of n channels, exact but for the global scale, which is returned. */
double nib_quant_decode_row(enum nib_weight_type type, const struct nib_weight_part *p, int64_t n, int64_t r,
                            double *w);

#endif
