/* Random numbers and KV rows of the families' self-tests of whole ops. */
#include "backend/cuda/blackwell/selftest_draw_blackwell.h"

#include <string.h>

#include "number/kv_rows.h"

enum { CHANNELS = 512 }; /* at most */

uint32_t nib_selftest_word(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33);
}

float nib_selftest_value(uint64_t *random)
{
    return (float)(int32_t)(nib_selftest_word(random) >> 7 & 0xfff) / 1024.0f - 2.0f;
}

uint16_t nib_selftest_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float nib_selftest_from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float    v;
    memcpy(&v, &u, 4);
    return v;
}

void nib_selftest_kv_row(uint64_t *random, enum nib_row_format f, float times, int32_t d, int32_t n_rot, uint8_t *row,
                         float *decoded)
{
    float x[CHANNELS];
    for (int32_t k = 0; k < d; k++)
        x[k] = nib_selftest_value(random) * times;
    switch (f) {
    case NIB_ROW_FP8:
        nib_kv_fp8_encode(x, d, n_rot, row);
        nib_kv_fp8_decode(row, d, n_rot, decoded);
        break;
    case NIB_ROW_NVFP4:
        nib_kv_nvfp4_encode(x, d, n_rot, row);
        nib_kv_nvfp4_decode(row, d, n_rot, decoded);
        break;
    default:
        nib_kv_bf16_encode(x, d, row);
        nib_kv_bf16_decode(row, d, decoded);
        break;
    }
}
