/* Writing a checkpoint: the list of tensors first, then their data in that order, in pieces of any size.
 *
 * Shards are filled in the order of the list and named model.safetensors, or model-00001-of-0000N.safetensors with
 * model.safetensors.index.json beside them. Files carry .tmp behind their names until everything is written, so that an
 * interrupted run is never taken for a checkpoint. One thread at a time. */
#ifndef NIB_WRITER_H
#define NIB_WRITER_H

#include "checkpoint/checkpoint.h"

struct nib_writer_tensor {
    const char       *name;
    enum nib_st_dtype dtype;
    int32_t           n_dims;
    int64_t           shape[NIB_ST_DIMS_MAX];
};

struct nib_writer;

/* Plan n tensors into shards of at most shard_bytes of data each (a larger tensor gets its own; 0: one file) in an
 * existing folder that holds no checkpoint yet. The list is copied. Names that are empty or occur twice are refused
 * (NIB_E_ARGUMENT). */
enum nib_status nib_writer_open(const char *dir, const struct nib_writer_tensor *tensor, int64_t n,
                                uint64_t shard_bytes, struct nib_writer **out, struct nib_error *err);

/* The tensor that the next bytes belong to, NULL when all are complete. Valid until close. */
const struct nib_writer_tensor *nib_writer_next(const struct nib_writer *w);

/* Append bytes of that tensor; a piece may not reach beyond its end (NIB_E_ARGUMENT). After a failure only close is
 * allowed. NIB_E_IO carries the system's reason, such as a full disk. */
enum nib_status nib_writer_append(struct nib_writer *w, const void *data, size_t bytes, struct nib_error *err);

/* All data is there: write the index, flush to disk and give the files their names. */
enum nib_status nib_writer_finish(struct nib_writer *w, struct nib_error *err);

/* Release; without a successful finish the temporary files are removed. */
void nib_writer_close(struct nib_writer *w);

#endif
