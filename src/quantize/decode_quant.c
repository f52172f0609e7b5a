/* Rows of any stored format through the exact decoders of number/. */
#include "quantize/decode_quant.h"

#include <string.h>

#include "number/bf16.h"
#include "number/weight_rows.h"

double nib_quant_decode_row(enum nib_weight_type type, const struct nib_weight_part *p, int64_t n, int64_t r, double *w)
{
    const uint8_t *data = p->data, *scales = p->scales;
    switch (type) {
    case NIB_WEIGHT_FP8: nib_fp8_weight_decode(data + r * n, scales + r / 128 * ((n + 127) / 128), n, w); break;
    case NIB_WEIGHT_MXFP4: nib_mxfp4_weight_decode(data + r * (n / 2), scales + r * (n / 32), n, w); break;
    case NIB_WEIGHT_NVFP4: nib_nvfp4_weight_decode(data + r * (n / 2), scales + r * (n / 16), n, w); break;
    case NIB_WEIGHT_BF16:
        for (int64_t k = 0; k < n; k++) {
            uint16_t half;
            memcpy(&half, data + (r * n + k) * 2, sizeof half);
            w[k] = (double)nib_bf16_to_f32(half);
        }
        break;
    case NIB_WEIGHT_F32:
        for (int64_t k = 0; k < n; k++) {
            float v;
            memcpy(&v, data + (r * n + k) * 4, sizeof v);
            w[k] = (double)v;
        }
        break;
    }
    return (double)p->global_scale;
}
