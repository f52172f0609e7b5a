/* A checkpoint folder as named tensors: one safetensors file, or shards with an index, mapped read-only.
 *
 * One written rule for every file (docs/checkpoints.md): header length within the file and at most 256 MiB; JSON with
 * no duplicate keys; each tensor has a known dtype, a shape whose byte count equals its offsets' span, inside the data
 * section; no two overlap. Holes and trailing bytes are refused. With an index, every named shard must exist and hold
 * the tensor, and the index decides which file a name comes from; without one, a name in two files is refused. */
#ifndef NIB_CHECKPOINT_H
#define NIB_CHECKPOINT_H

#include "base/status.h"

enum nib_st_dtype {
    NIB_ST_BOOL, NIB_ST_U8, NIB_ST_I8, NIB_ST_F8_E4M3, NIB_ST_F8_E5M2, NIB_ST_F8_E8M0, NIB_ST_I16, NIB_ST_U16,
    NIB_ST_F16, NIB_ST_BF16, NIB_ST_I32, NIB_ST_U32, NIB_ST_F32, NIB_ST_I64, NIB_ST_U64, NIB_ST_F64
};

#define NIB_ST_DIMS_MAX 4

struct nib_tensor_entry {
    const char       *name;
    const char       *file; /* base name of its shard */
    enum nib_st_dtype dtype;
    int32_t           n_dims;
    int64_t           shape[NIB_ST_DIMS_MAX];
    const void       *data; /* mapped; may be unaligned for its dtype: read through memcpy */
    uint64_t          bytes;
};

struct nib_checkpoint;

/* Open every *.safetensors that the folder's index names (or, without an index, every one in the folder). Only headers
 * are read. *out is NULL on failure. NIB_E_IO: a file is missing or unreadable; NIB_E_FORMAT: it breaks the rule. */
enum nib_status nib_checkpoint_open(const char *dir, struct nib_checkpoint **out, struct nib_error *err);
void            nib_checkpoint_close(struct nib_checkpoint *c);

/* A checkpoint of tensors that are in memory already. The entries are copied; their names, files and data belong to
 * `owner`, which nib_checkpoint_close() hands to release(). On failure the owner stays the caller's. */
enum nib_status nib_checkpoint_make(const struct nib_tensor_entry *entry, int64_t n, void (*release)(void *owner),
                                    void *owner, struct nib_checkpoint **out, struct nib_error *err);

/* Find a tensor by exact name; NULL if absent. The result points into the checkpoint and is valid until
 * nib_checkpoint_close(). Safe from any thread. O(1). */
const struct nib_tensor_entry *nib_checkpoint_find(const struct nib_checkpoint *c, const char *name);

int64_t                        nib_checkpoint_n_tensors(const struct nib_checkpoint *c);
const struct nib_tensor_entry *nib_checkpoint_at(const struct nib_checkpoint *c, int64_t i); /* sorted by name */

const char *nib_st_dtype_name(enum nib_st_dtype d); /* "F8_E4M3" */
int32_t     nib_st_dtype_bytes(enum nib_st_dtype d);
bool        nib_st_dtype_find(const char *name, enum nib_st_dtype *out); /* false: unknown */

/* Bytes of a tensor; false if a size is negative or the product overflows. No dimensions: one element. */
bool nib_st_tensor_bytes(enum nib_st_dtype d, int32_t n_dims, const int64_t *shape, uint64_t *bytes);

#endif
