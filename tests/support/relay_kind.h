/* A kind of layout, and what of it concerns the small files of a checkpoint. */
#ifndef RELAY_KIND_H
#define RELAY_KIND_H

#include "base/status.h"

/* AS_STORED stands where KEEP would mean "like the trunk's". BY_LAYER: another form in each layer, and for w2 than for
 * w1 and w3. */
enum relay_form { KEEP, AS_STORED, BF16, NVFP4, FP8, BY_LAYER };

struct relay_kind {
    const char *name, *text;
    enum relay_form experts, dense; /* routed experts; other linears that are stored in few bits */
    enum relay_form mtp;            /* all of the MTP block's, if not KEEP */
    enum relay_form mtp_experts;    /* those only, if not KEEP */
    bool bf16_wo_a, hf_names, stack, drop_mtp;
    bool compressed;          /* NVFP4 in compressed-tensors' spelling */
    const char *scale_dtype;  /* of FP8 linears: "F32" or "BF16"; NULL: as it is */
    const char *scale_suffix; /* NULL: as it is */
    int64_t n_shards;         /* 0: as many files as the source's size suggests, i.e. one */
};

/* config.json and what lies beside it, as producers of the layout write them. */
enum nib_status relay_write_config(const struct relay_kind *k, const char *src, const char *dst, struct nib_error *err);

/* Tokenizer and other small files, as they are. */
enum nib_status relay_copy_files(const char *src, const char *dst, struct nib_error *err);

#endif
