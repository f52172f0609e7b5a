/* Random numbers and KV rows of the families' self-tests of whole ops. */
#ifndef NIB_SELFTEST_DRAW_BLACKWELL_H
#define NIB_SELFTEST_DRAW_BLACKWELL_H

#include "backend/backend.h"

uint32_t nib_selftest_word(uint64_t *random);
/* In -2 .. 2, of twelve bits. */
float nib_selftest_value(uint64_t *random);
uint16_t nib_selftest_bf16(float v);
float    nib_selftest_from_bf16(uint16_t h);
/* A stored row of d channels, n_rot of them rotary, of values up to `times` as large; decoded: what it holds. */
void nib_selftest_kv_row(uint64_t *random, enum nib_row_format f, float times, int32_t d, int32_t n_rot, uint8_t *row,
                         float *decoded);

#endif
