/* One matrix of a checkpoint: which tensors make it up and in which format, told by those tensors alone. */
#ifndef NIB_WEIGHTS_FORMATS_H
#define NIB_WEIGHTS_FORMATS_H

#include "backend/backend.h"
#include "base/arena.h"
#include "checkpoint/checkpoint.h"

struct nib_matrix_reader {
    const struct nib_checkpoint *ck;
    struct nib_arena            *arena; /* holds scales that are stored in another type than they are used in */
    struct nib_error            *err;
    int64_t                      n_tensors_used; /* counted up */
};

struct nib_matrix {
    const struct nib_tensor_entry *entry; /* of the codes or plain values */
    enum nib_weight_type           type;
    struct nib_weight_part         part;
    uint64_t                       bytes; /* with scales */
};

/* Whether codes or values of this base name (without ".weight") exist. */
bool nib_matrix_exists(const struct nib_matrix_reader *r, const char *base);

/* Find the matrix's tensors; names, dtypes and shapes are checked, and the values of global scales. */
enum nib_status nib_matrix_resolve(struct nib_matrix_reader *r, const char *base, int64_t rows, int64_t cols,
                                   struct nib_matrix *out);

/* "[256, 128]" in buf, which is also returned. */
const char *nib_shape_text(const struct nib_tensor_entry *e, char *buf, size_t size);

/* The errors for a wrong shape (NIB_OK if it is right) and a wrong dtype. */
enum nib_status nib_want_shape(const struct nib_tensor_entry *e, int64_t rows, int64_t cols, struct nib_error *err);
enum nib_status nib_wrong_dtype(const struct nib_tensor_entry *e, const char *wanted, struct nib_error *err);

#endif
