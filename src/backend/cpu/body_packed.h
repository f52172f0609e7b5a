/* Body of a rung: where packed panels lie. The rung supplies the order of an octet's elements. */

/* Bytes ahead of a panel's stream that are asked for: about 100 ns of one core's share of memory bandwidth. */
#define PREFETCH_BYTES 1536

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

BODY int32_t n_blocks_of(const struct nib_cpu_matrix *w)
{
    return (w->n_in + NIB_CPU_BLOCK - 1) / NIB_CPU_BLOCK;
}
