/* Errors and checked arithmetic used by every folder. */
#ifndef NIB_STATUS_H
#define NIB_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble.h"

/* Fill err (may be NULL) and return status, so that callers can `return nib_error_set(...)`. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
enum nib_status nib_error_set(struct nib_error *err, enum nib_status status, const char *fmt, ...);

/* Return from the enclosing function unless the expression is NIB_OK. Only in functions that own nothing. */
#define NIB_TRY(expr)                             \
    do {                                          \
        enum nib_status nib_try_status_ = (expr); \
        if (nib_try_status_ != NIB_OK)            \
            return nib_try_status_;               \
    } while (0)

/* out = a op b; false (and out unspecified) on overflow. */
static inline bool nib_add_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool nib_mul_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }

#endif
