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

/* As wide as the loads of chunk_decode at most: a load waits long for two stores. */
#define COPY_BYTES (VEC_BYTES < 32 ? VEC_BYTES : 32)
typedef uint8_t copy_at __attribute__((vector_size(COPY_BYTES), aligned(1), may_alias));

/* n < 128 channels. Behind 4-bit codes other codes may stand: every one is finite, and rows have zeros there. They are
 * copied as vectors, which loads of vectors can follow at once. */
static void last_group_pack(int type, const uint8_t *codes, const uint8_t *scales, int32_t n, uint8_t *to,
                            uint8_t *to_scales)
{
    if (type == NIB_WEIGHT_BF16) {
        memset(to, 0, 256);
        for (int32_t i = 0; i < NIB_CPU_GROUP; i++)
            if (bf16_channel(i) < n)
                memcpy(to + 2 * i, codes + 2 * bf16_channel(i), 2);
    } else if (type == NIB_WEIGHT_FP8) {
        for (int32_t i = 0; i < NIB_CPU_GROUP; i++)
            to[i] = fp8_channel(i) < n ? codes[fp8_channel(i)] : 0;
        *to_scales = *scales;
    } else {
        int32_t  n_scales = n / (type == NIB_WEIGHT_NVFP4 ? 16 : 32);
        uint64_t all;
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 32; i += COPY_BYTES)
                *(copy_at *)(to + 32 * half + i) = *(const copy_at *)(codes + half * (n / 4) + i);
        memcpy(&all, scales, sizeof all);
        all &= ((uint64_t)1 << 8 * n_scales) - 1;
        memcpy(to_scales, &all, sizeof all);
    }
}

/* Where the codes and scales of output `row` begin. */
BODY const uint8_t *row_codes(const struct nib_cpu_matrix *w, int64_t row) { return w->codes + row * w->codes_stride; }

BODY const uint8_t *row_scales(const struct nib_cpu_matrix *w, int64_t row)
{
    return w->scales + (w->type == NIB_WEIGHT_FP8 ? row / 128 : row) * w->scales_stride;
}

