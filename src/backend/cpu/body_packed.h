/* Body of a rung: where packed groups of 128 channels lie, and the copy that a last part of one needs. The rung supplies
 * the order of channels. */

/* Rows that are multiplied straight from the stored bytes. */
#define STREAM_ROWS 4
/* Bytes ahead of the stream that are asked for: about 100 ns of one core's share of memory bandwidth. */
#define PREFETCH_BYTES 1536

/* Bytes of a full group's codes, and of its scales. */
BODY int32_t group_bytes(int type)
{
    return type == NIB_WEIGHT_BF16 ? 256 : type == NIB_WEIGHT_FP8 ? 128 : 64;
}

BODY int32_t group_scale_bytes(int type)
{
    return type == NIB_WEIGHT_NVFP4 ? 8 : type == NIB_WEIGHT_MXFP4 ? 4 : type == NIB_WEIGHT_FP8 ? 1 : 0;
}

/* The last part of a row's groups, packed as a full one with zeros behind. */
struct last_group {
    _Alignas(64) uint8_t codes[512];
    uint8_t scales[16];
};

static void last_group_pack(int type, const uint8_t *codes, const uint8_t *scales, int32_t n, struct last_group *g)
{
    memset(g, 0, sizeof *g);
    memcpy(g->scales, scales, (size_t)((n * group_scale_bytes(type) + NIB_CPU_GROUP - 1) / NIB_CPU_GROUP));
    if (type == NIB_WEIGHT_BF16) {
        for (int32_t i = 0; i < NIB_CPU_GROUP; i++)
            if (bf16_channel(i) < n)
                memcpy(g->codes + 2 * i, codes + 2 * bf16_channel(i), 2);
    } else if (type == NIB_WEIGHT_FP8) {
        for (int32_t i = 0; i < NIB_CPU_GROUP; i++)
            g->codes[i] = fp8_channel(i) < n ? codes[fp8_channel(i)] : 0;
    } else {
        for (int32_t b = 0; b < n / 16; b++)
            for (int32_t j = 0; j < 2; j++)
                memcpy(g->codes + 32 * j + 4 * b, codes + 8 * b + 4 * j, 4);
    }
}

/* Where the codes and scales of output `row` begin. */
BODY const uint8_t *row_codes(const struct nib_cpu_matrix *w, int64_t row) { return w->codes + row * w->codes_stride; }

BODY const uint8_t *row_scales(const struct nib_cpu_matrix *w, int64_t row)
{
    return w->scales + (w->type == NIB_WEIGHT_FP8 ? row / 128 : row) * w->scales_stride;
}

