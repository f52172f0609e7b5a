/* Body of a rung: where packed panels lie. The rung supplies the order of an octet's elements. */

/* Bytes ahead of a panel's stream that are asked for, if the rung does not know better: about 100 ns of one core's share
 * of memory bandwidth. */
#ifndef PREFETCH_BYTES
#define PREFETCH_BYTES 1536
#endif

/* Bytes of the codes of 16 channels by 16 outputs. */
BODY int32_t block_bytes(int type)
{
    return type == NIB_WEIGHT_BF16 ? 512 : type == NIB_WEIGHT_FP8 ? 256 : 128;
}

/* Where the codes of the panel of output `out` begin, and its scales of 4-bit codes, or those of its 128 outputs. */
BODY const uint8_t *panel_codes(const struct nib_cpu_matrix *w, int64_t out)
{
    return w->codes + out / NIB_CPU_PANEL * w->codes_stride;
}
BODY const uint8_t *panel_scales(const struct nib_cpu_matrix *w, int64_t out)
{
    return w->scales + out / (w->type == NIB_WEIGHT_FP8 ? 128 : NIB_CPU_PANEL) * w->scales_stride;
}

/* The scales of block b within a panel's. */
BODY const uint8_t *block_scales_at(const int type, const uint8_t *scales, int32_t b)
{
    switch (type) {
    case NIB_WEIGHT_NVFP4: return scales + NIB_CPU_PANEL * b;
    case NIB_WEIGHT_MXFP4: return scales + NIB_CPU_PANEL * (b / 2);
    case NIB_WEIGHT_FP8: return scales + b / (128 / NIB_CPU_BLOCK);
    default: return scales;
    }
}

/* What is asked for while block b of n of a panel is at work, one of `panels` that are read side by side. Behind its end
 * the neighbours are skipped, for they are being read. */
BODY const uint8_t *codes_ahead(const int type, const uint8_t *codes, int32_t b, int32_t n, int32_t panels)
{
    const int64_t at = (int64_t)b * block_bytes(type) + PREFETCH_BYTES, end = (int64_t)n * block_bytes(type);
    return codes + at + (at >= end ? (panels - 1) * end : 0);
}

/* The scales of 4-bit codes that belong to it, a cache line for four blocks. */
BODY const uint8_t *scales_ahead(const int type, const uint8_t *scales, int32_t b, int32_t n, int32_t panels)
{
    const int32_t at = b + PREFETCH_BYTES / block_bytes(type);
    return block_scales_at(type, scales, at + (at >= n ? (panels - 1) * n : 0));
}

BODY int32_t n_blocks_of(const struct nib_cpu_matrix *w)
{
    return (w->n_in + NIB_CPU_BLOCK - 1) / NIB_CPU_BLOCK;
}
