/* The self-test of what only this family has. */
#ifndef NIB_SELFTEST_SM120A_H
#define NIB_SELFTEST_SM120A_H

#include "backend/cuda/cuda.h"

/* struct nib_blackwell_family.selftest. */
enum nib_status nib_sm120a_selftest(struct nib_stream *s, char *why, size_t why_bytes);

#endif
