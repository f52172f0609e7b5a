/* What the self-test has found before, where the engine was given a file for it. */
#ifndef NIB_KNOWN_BLACKWELL_H
#define NIB_KNOWN_BLACKWELL_H

#include "backend/cuda/blackwell/table_blackwell.h"

/* Whether this part of the family's kernels (a word) was tested before on this card with this driver and this program.
 * why: what failed, or "". */
bool nib_blackwell_known(struct nib_stream *s, const char *part, char *why, size_t why_bytes);
/* Behind nib_blackwell_known(): what the test has found. */
void nib_blackwell_keep(struct nib_stream *s, const char *part, const char *why);

#endif
