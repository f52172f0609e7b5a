/* Re-laying a checkpoint: the same weights under other names and in other storage formats, for tests of the loader.
 *
 * Decoding here is written apart from the library's (only its file reader and writer are used), so that a mistake in
 * one shows against the other. Every conversion is exact; where a source's values do not allow that, it is refused. */
#ifndef RELAY_H
#define RELAY_H

#include "base/status.h"

/* Read folder src and write folder dst (created if missing) in the layout `kind`; relay_kind() lists them. */
enum nib_status relay_checkpoint(const char *kind, const char *src, const char *dst, struct nib_error *err);

/* Kind number i as "name\tdescription"; NULL behind the last. */
const char *relay_kind(int i);

#endif
