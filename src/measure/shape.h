/* Published sizes without a checkpoint: the configurations, and which format each weight gets. */
#ifndef NIB_SHAPE_H
#define NIB_SHAPE_H

#include "model/config.h"
#include "model/weights_table.h"

/* Formats of a random model's linears, by name. */
enum nib_shape_format {
    NIB_SHAPE_NVFP4, NIB_SHAPE_FP8, NIB_SHAPE_MXFP4, NIB_SHAPE_BF16, NIB_SHAPE_OFFICIAL, NIB_N_SHAPE_FORMATS
};

/* NIB_E_ARGUMENT names what is wrong with the shape. */
enum nib_status nib_shape_config(const struct nib_shape *shape, struct nib_config *out, enum nib_shape_format *format,
                                 struct nib_error *err);

/* How a checkpoint of that format stores a linear. */
enum nib_weight_type nib_shape_weight_type(enum nib_shape_format format, const struct nib_field *f);

#endif
