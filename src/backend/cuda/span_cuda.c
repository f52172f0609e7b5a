/* Whether the scales of a matrix lie close enough together for tiles, whose operands are taken relative to the largest one: what
 * is 2^100 times smaller would meet the end of bf16's and fp32's range and be lost. Checkpoints do not look like that, but a file
 * may. Blocks of zeros count for nothing, whatever their scale. */
#include "backend/cuda/cuda.h"

enum { SPAN_MOST = 96 };

static bool any_code(const uint8_t *p, size_t n, uint8_t mask)
{
    uint8_t seen = 0;
    for (size_t i = 0; i < n; i++)
        seen |= p[i] & mask;
    return seen != 0;
}

static bool mxfp4_fits(const struct nib_weight_desc *d, const struct nib_weight_part *part, int32_t most)
{
    const uint8_t *scales = part->scales, *codes = part->data;
    const size_t   n = (size_t)d->n_out * (size_t)(d->n_in / 32);
    for (size_t i = 0; i < n; i++)
        if (scales[i] + SPAN_MOST < most && any_code(codes + 16 * i, 16, 0x77))
            return false;
    return true;
}

static bool fp8_block_is_zero(const struct nib_weight_desc *d, const uint8_t *codes, int32_t o, int32_t k)
{
    const int32_t o_end = o + 128 < d->n_out ? o + 128 : d->n_out, n = d->n_in - k < 128 ? d->n_in - k : 128;
    for (; o < o_end; o++)
        if (any_code(codes + (size_t)o * (size_t)d->n_in + (size_t)k, (size_t)n, 0x7f))
            return false;
    return true;
}

static bool fp8_fits(const struct nib_weight_desc *d, const struct nib_weight_part *part, int32_t most)
{
    const uint8_t *scales = part->scales;
    for (int32_t o = 0; o < d->n_out; o += 128)
        for (int32_t k = 0; k < d->n_in; k += 128, scales++)
            if (*scales + SPAN_MOST < most && !fp8_block_is_zero(d, part->data, o, k))
                return false;
    return true;
}

int32_t nib_cuda_largest_scale(const struct nib_weight_desc *d, int32_t i)
{
    const size_t   n_out = (size_t)d->n_out, n_in = (size_t)d->n_in;
    const size_t   n = d->type == NIB_WEIGHT_MXFP4 ? n_out * (n_in / 32) : (n_out + 127) / 128 * ((n_in + 127) / 128);
    const uint8_t *scales = d->part[i].scales;
    uint8_t        most = 0;
    for (size_t k = 0; k < n; k++)
        most = scales[k] > most ? scales[k] : most;
    return most;
}

bool nib_cuda_span_fits(const struct nib_weight_desc *d)
{
    if (d->type != NIB_WEIGHT_MXFP4 && d->type != NIB_WEIGHT_FP8)
        return true;
    for (int32_t i = 0; i < d->n_stack; i++) {
        const int32_t most = nib_cuda_largest_scale(d, i);
        if (!(d->type == NIB_WEIGHT_MXFP4 ? mxfp4_fits(d, &d->part[i], most) : fp8_fits(d, &d->part[i], most)))
            return false;
    }
    return true;
}
