/* Keys of a JSON object, read with their limits.
 *
 * A nib_keys keeps the first error; every later read on it does nothing. So a reader is a plain list of calls with one
 * look at `status` behind it. A key may have two names (b, else NULL), of which at most one may be there unless both
 * agree; null counts as absent. Messages name the file, the key, what was found and what is wanted. */
#ifndef NIB_JSON_KEYS_H
#define NIB_JSON_KEYS_H

#include <jansson.h>
#include <math.h>

#include "base/status.h"

struct nib_keys {
    const json_t     *object;
    const char       *what;  /* the file */
    const char       *where; /* of the object in it, ready to stand before a key: "" or "rope_scaling." */
    struct nib_error *err;
    enum nib_status   status;
};

/* The same error state over an object inside. The caller carries the status back. */
struct nib_keys nib_keys_enter(const struct nib_keys *r, const json_t *object, const char *where);

/* The value, NULL if absent; *name is the name it has. */
const json_t *nib_keys_find(struct nib_keys *r, const char *a, const char *b, const char **name);

/* Set the error that says that the key is missing. */
void nib_keys_missing(struct nib_keys *r, const char *a, const char *b);

/* A number from min to max, both included. Without the key the fallback is stored; these two make that an error. */
#define NIB_NEEDED_INT INT32_MIN
#define NIB_NEEDED_FLOAT NAN
void nib_keys_int(struct nib_keys *r, const char *a, const char *b, int32_t min, int32_t max, int32_t fallback,
                  int32_t *out);
void nib_keys_float(struct nib_keys *r, const char *a, const char *b, double min, double max, double fallback,
                    float *out);

/* A key that may be absent, but if present has only one value that can be run. */
void nib_keys_only_string(struct nib_keys *r, const char *a, const char *b, const char *wanted);
void nib_keys_only_bool(struct nib_keys *r, const char *key, bool wanted);

/* An object; an array of at least n_min entries. NULL if absent or wrong. */
const json_t *nib_keys_object(struct nib_keys *r, const char *key);
const json_t *nib_keys_list(struct nib_keys *r, const char *key, int32_t n_min);

#endif
