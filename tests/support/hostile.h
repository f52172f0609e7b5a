/* Checkpoints with something wrong, or something else, in them: a good one is read, changed in memory, and written to a
 * fresh folder. */
#ifndef HOSTILE_H
#define HOSTILE_H

#include <jansson.h>

#include "nibble.h"
#include "support/relay_values.h"
#include "support/safetensors_write.h"

struct hostile {
    struct relay_items items;
    json_t            *config; /* of config.json; to be changed freely */
    struct test_dir    dir;    /* of the last write */
    bool               written;
};

/* All tensors and config.json of a checkpoint folder. Failures of these functions fail the running cmocka test. */
void hostile_open(struct hostile *h, const char *src);
void hostile_close(struct hostile *h);

struct relay_item *hostile_item(struct hostile *h, const char *name);
void               hostile_drop(struct hostile *h, const char *name);
void               hostile_rename(struct hostile *h, const char *from, const char *to);

/* Add a tensor; its data is zero. */
void *hostile_add(struct hostile *h, const char *name, enum nib_st_dtype dtype, int32_t n_dims, const int64_t *shape);

/* Replace a tensor's data by zeros of another type or shape. */
void *hostile_reshape(struct hostile *h, const char *name, enum nib_st_dtype dtype, int32_t n_dims,
                      const int64_t *shape);

/* Write the model to a fresh folder, which replaces the last one; valid until the next write or close. */
const char *hostile_write(struct hostile *h);

/* Open the folder's model and an engine (ref, with MTP if there is one). Neither a crash nor success: the error must
 * have this status and hold every one of the texts, up to NULL. */
void hostile_dir_refused(const char *dir, enum nib_status status, ...);

/* The same after hostile_write. */
#define hostile_refused(h, ...) hostile_dir_refused(hostile_write(h), __VA_ARGS__)

/* Logits [n][vocab] of the first n tokens of a fixed text; with mtp those of the MTP block. Owned by the caller. */
float *hostile_logits(const char *dir, const char *backend, enum nib_act_quant act_quant, int32_t n, bool mtp);

/* Largest difference of log-probabilities between two such arrays. */
double hostile_distance(const float *a, const float *b, int32_t n, int32_t vocab);

#endif
