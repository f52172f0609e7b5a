/* Number formats of PTX as bits and as doubles, which hold every value of all of them exactly. */
#ifndef PTXSIM_NUMBER_H
#define PTXSIM_NUMBER_H

#include "ptxsim/ptx_module.h"

enum px_round { PX_TO_NEAREST, PX_TO_ZERO, PX_DOWN, PX_UP, PX_AWAY /* nearest, ties away */ };

/* Bits of one value of a type up to PX_UE4M3 that is a float. */
double   px_decode_float(uint8_t type, uint64_t bits);
/* The nearest bits by `how`; finite: what is too large becomes the largest finite value. NaN has the type's one NaN (the
 * largest finite value where it has none). */
uint64_t px_encode_float(uint8_t type, double v, enum px_round how, bool finite);
/* The same of a sum a + b that need not be exact in double: rounded once. */
uint64_t px_encode_sum(uint8_t type, double a, double b, enum px_round how, bool finite);
/* Type of the halves of a packed type, and how many; the type itself and 1 for others. */
uint8_t  px_element_type(uint8_t type, uint32_t *n, uint32_t *bits);
enum px_round px_round_of(const struct px_instruction *i);

#endif
