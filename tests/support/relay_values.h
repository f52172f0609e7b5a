/* Weights of one linear as exact numbers, and their encoding in the formats that relay writes. */
#ifndef RELAY_VALUES_H
#define RELAY_VALUES_H

#include "checkpoint/checkpoint.h"

enum relay_format { RELAY_PLAIN, RELAY_FP8, RELAY_MXFP4, RELAY_NVFP4 };

/* The tensors of BASE: BASE.weight and its companions, as far as they exist. */
struct relay_linear {
    enum relay_format              format;
    const struct nib_tensor_entry *weight, *scale, *scale_2;
    int64_t                        rows, cols; /* of the decoded matrix; 0 x 0 for plain tensors */
};

/* Growing list of tensors to write. */
struct relay_item {
    char             *name;
    enum nib_st_dtype dtype;
    int32_t           n_dims;
    int64_t           shape[NIB_ST_DIMS_MAX];
    void             *data;
    uint64_t          bytes;
};
struct relay_items {
    struct relay_item *item;
    int64_t            n, room;
};

void *relay_alloc(size_t n); /* zeroed; ends the program without memory, which a test tool may */

/* Append a tensor and return its zeroed data to be filled. */
void *relay_items_add(struct relay_items *l, const char *name, enum nib_st_dtype dtype, int32_t n_dims,
                      const int64_t *shape);
void  relay_items_free(struct relay_items *l);

/* Write them as a checkpoint in an existing folder; n_shards 0: one file. Sorts the list. */
enum nib_status relay_items_write(struct relay_items *l, const char *dst, int64_t n_shards, struct nib_error *err);

/* Find BASE's tensors and what they are. False if there is no BASE.weight. */
bool relay_linear_find(const struct nib_checkpoint *c, const char *base, struct relay_linear *out);

/* The matrix as doubles, row by row; owned by the caller. NULL, with err set, for NaN codes or scales. */
double *relay_decode(const struct relay_linear *w, struct nib_error *err);

/* Largest scale exponent among MXFP4 blocks that are not all zero; INT32_MIN if all are. */
int32_t relay_mxfp4_k_max(const struct relay_linear *w);

/* Exact encodings; NIB_E_FORMAT where a value does not fit. The first takes n doubles, the others an MXFP4 linear. */
enum nib_status relay_to_bf16(const double *x, int64_t n, uint16_t *out, const char *name, struct nib_error *err);
enum nib_status relay_mxfp4_to_nvfp4(const struct relay_linear *w, int32_t k_max, const char *base,
                                     struct relay_items *out, struct nib_error *err);
enum nib_status relay_mxfp4_to_fp8(const struct relay_linear *w, const char *base, struct relay_items *out,
                                   struct nib_error *err);

#endif
