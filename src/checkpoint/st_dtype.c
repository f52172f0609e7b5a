/* Element types of safetensors: names and sizes. */
#include <string.h>

#include "checkpoint/checkpoint.h"

static const struct {
    const char *name;
    int32_t     bytes;
} dtypes[] = {
    [NIB_ST_BOOL] = { "BOOL", 1 },       [NIB_ST_U8] = { "U8", 1 },           [NIB_ST_I8] = { "I8", 1 },
    [NIB_ST_F8_E4M3] = { "F8_E4M3", 1 }, [NIB_ST_F8_E5M2] = { "F8_E5M2", 1 }, [NIB_ST_F8_E8M0] = { "F8_E8M0", 1 },
    [NIB_ST_I16] = { "I16", 2 },         [NIB_ST_U16] = { "U16", 2 },         [NIB_ST_F16] = { "F16", 2 },
    [NIB_ST_BF16] = { "BF16", 2 },       [NIB_ST_I32] = { "I32", 4 },         [NIB_ST_U32] = { "U32", 4 },
    [NIB_ST_F32] = { "F32", 4 },         [NIB_ST_I64] = { "I64", 8 },         [NIB_ST_U64] = { "U64", 8 },
    [NIB_ST_F64] = { "F64", 8 },
};

const char *nib_st_dtype_name(enum nib_st_dtype d) { return dtypes[d].name; }

int32_t nib_st_dtype_bytes(enum nib_st_dtype d) { return dtypes[d].bytes; }

bool nib_st_dtype_find(const char *name, enum nib_st_dtype *out)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            *out = (enum nib_st_dtype)i;
            return true;
        }
    }
    return false;
}

bool nib_st_tensor_bytes(enum nib_st_dtype d, int32_t n_dims, const int64_t *shape, uint64_t *bytes)
{
    *bytes = (uint64_t)dtypes[d].bytes;
    for (int32_t i = 0; i < n_dims; i++) {
        if (shape[i] < 0 || !nib_mul_u64(*bytes, (uint64_t)shape[i], bytes))
            return false;
    }
    return true;
}
