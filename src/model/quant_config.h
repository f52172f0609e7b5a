/* What a checkpoint's own files say about its quantisation. Tensors decide how they are stored; these words are read
 * only where they claim something that this program would not do, and the tensors cannot show. */
#ifndef NIB_QUANT_CONFIG_H
#define NIB_QUANT_CONFIG_H

#include <jansson.h>

#include "base/status.h"

/* A "quantization_config" object of config.json; `what` names the file. */
enum nib_status nib_quant_config_check(const json_t *object, const char *what, struct nib_error *err);

/* The hf_quant_config.json of a checkpoint folder, if there is one. */
enum nib_status nib_quant_config_read(const char *dir, struct nib_error *err);

#endif
