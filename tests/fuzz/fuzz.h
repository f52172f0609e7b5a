/* What fuzz targets share. A target is one function over bytes; libFuzzer drives it (cmake -DNIB_FUZZ=ON), or replay.c
 * over the files of its corpus in every build. Targets abort where a promise of the interface is broken. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "nibble.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A file that exists in memory only; the same path in every call. */
const char *fuzz_file(const void *data, size_t n);

/* A fresh folder, removed at exit; the same one in every call. */
const char *fuzz_dir(void);
void        fuzz_dir_write(const char *name, const void *data, size_t n);
void        fuzz_dir_remove(const char *name);

/* Inputs of several parts are separated by zero bytes. The next part, always with a NUL behind it; *rest moves on.
 * Owned by the caller (free). */
char *fuzz_part(const uint8_t **rest, size_t *n_rest, size_t *n);

/* Abort unless the text of a failure is there, is the status's, and is one line. */
void fuzz_check_error(enum nib_status status, const struct nib_error *err);

/* Abort with the condition's text if it does not hold. */
#define FUZZ_CHECK(condition) fuzz_check((condition), #condition, __FILE__, __LINE__)
void fuzz_check(int holds, const char *text, const char *file, int line);

#endif
