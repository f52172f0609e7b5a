/* The table behind weights.h: one row ties a field of the weights struct to its tensor names, shape and use. */
#ifndef NIB_WEIGHTS_TABLE_H
#define NIB_WEIGHTS_TABLE_H

#include "model/weights.h"

enum nib_field_scope { NIB_SCOPE_GLOBAL, NIB_SCOPE_LAYER, NIB_SCOPE_MTP };

/* In which layers a field exists. */
enum nib_field_when { NIB_WHEN_ALWAYS, NIB_WHEN_COMPRESSED, NIB_WHEN_CSA, NIB_WHEN_HASH, NIB_WHEN_SCORED };

/* A dimension by name; nib_dim_value() knows the number. */
enum nib_dim_name {
    NIB_DIM_1, NIB_DIM_3, NIB_DIM_DIM, NIB_DIM_Q_RANK, NIB_DIM_Q_OUT, NIB_DIM_HEAD_DIM, NIB_DIM_HEADS, NIB_DIM_O_OUT,
    NIB_DIM_O_IN, NIB_DIM_COMPRESS, NIB_DIM_INDEX_COMPRESS, NIB_DIM_RATIO, NIB_DIM_INDEX_Q, NIB_DIM_INDEX_HEADS,
    NIB_DIM_INDEX_DIM, NIB_DIM_EXPERTS, NIB_DIM_TOP_K, NIB_DIM_INNER, NIB_DIM_INNER_SHARED, NIB_DIM_VOCAB, NIB_DIM_HC,
    NIB_DIM_HC_MIX, NIB_DIM_HC_DIM
};

struct nib_field {
    enum nib_field_scope scope;
    enum nib_field_kind  kind;
    enum nib_field_when  when;
    size_t               offset; /* of the pointer, in the struct of the scope */
    /* After the prefix of its scope. LINEAR: without ".weight". EXPERTS: "%d" stands for the expert. '|' separates
     * alternatives. */
    const char          *official, *hf;
    enum nib_dim_name    rows, cols; /* vectors: rows x cols as stored; cols NIB_DIM_1 means one dimension */
    const char          *family;
    bool                 quantised_input; /* may multiply quantised activation rows */
    /* HF checkpoints with stacked experts: the tensor, and which part of its rows is this one. */
    const char          *hf_stacked;
    int32_t              stacked_part, stacked_parts;
};

extern const struct nib_field nib_fields[];
extern const int32_t          nib_n_fields;

/* Whether a layer of this ratio and routing has the field. */
bool nib_field_applies(const struct nib_field *f, int32_t ratio, bool hash);

int32_t nib_dim_value(const struct nib_config *c, enum nib_dim_name d, int32_t ratio);

#endif
