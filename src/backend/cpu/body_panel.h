/* Body of a rung of 16-byte vectors: packed octets to vectors. A vector is 4 outputs, whose 32-bit parts hold the bytes (or pairs
 * of halves) of consecutive channels of a chunk: the even channels are chunk 0, the odd ones chunk 1. The rung supplies
 * doubled_codes. */

#define CHUNKS              2
#define CHUNK_CHANNEL(c, i) (2 * (i) + (c))

typedef uint32_t u32x4 __attribute__((vector_size(16)));

BODY int32_t fp4_place(int32_t out, int32_t pair) { return 4 * out + pair; }
BODY int32_t fp8_place(int32_t out, int32_t channel) { return 64 * (channel % 2) + 4 * out + channel / 2; }
BODY int32_t bf16_place(int32_t out, int32_t channel)
{
    return 64 * (channel % 2) + 32 * (channel / 4) + 2 * out + channel / 2 % 2;
}

/* Nibbles of 16 packed bytes: the odd channels are the high ones. */
BODY void nibbles_of(const uint8_t *codes, int odd, i8x16 *nibbles)
{
    i8x16 b;
    memcpy(&b, codes, sizeof b);
    *nibbles = (odd ? (i8x16)((i16x8)b >> 4) : b) & 15; /* bytes have no shift */
}

/* v[4 * i + p]: channel i of the chunk, outputs 4 * p and on. */
BODY void chunk_decode(const int type, const uint8_t *codes, int chunk, vec *v)
{
    if (type == NIB_WEIGHT_BF16) {
        UNROLL for (int i = 0; i < 8; i++)
        {
            u32x4 pair;
            memcpy(&pair, codes + 128 * chunk + 16 * i, sizeof pair);
            v[8 * (i / 4) + i % 4] = (vec)(pair << 16);
            v[8 * (i / 4) + 4 + i % 4] = (vec)(pair & 0xffff0000u);
        }
    } else if (type == NIB_WEIGHT_FP8) {
        UNROLL for (int i = 0; i < 16; i++)
        {
            i32x4 b;
            memcpy(&b, codes + 64 * chunk + 16 * (i % 4), sizeof b);
            b = (b << (24 - 8 * (i / 4))) & (int32_t)0xff000000;
            /* Exponents and subnormals as in e4m3_magnitude. */
            i32x4 subnormal = (i32x4)((b & 0x78000000) == 0);
            vec   normal = (vec)((b >> 4 & 0x07f00000) + (120 << 23)), small = (normal - 0x1p-7f) * 2;
            v[i] = (vec)(((i32x4)normal & ~subnormal) | ((i32x4)small & subnormal) | (b & INT32_MIN));
        }
    } else {
        UNROLL for (int p = 0; p < 4; p++)
        {
            i8x16 nibbles, d;
            nibbles_of(codes + 16 * p, chunk, &nibbles);
            doubled_codes(&nibbles, &d);
            UNROLL for (int i = 0; i < 4; i++)
                v[4 * i + p] = __builtin_convertvector(((i32x4)d << (24 - 8 * i)) >> 24, vec);
        }
    }
}

/* A block's scales of 16 outputs, halved for codes that were doubled. */
BODY void panel_scales_decode(const int type, const uint8_t *p, vec *s)
{
    UNROLL for (int i = 0; i < 4; i++)
    {
        const uint8_t *b = p + 4 * i;
        if (type == NIB_WEIGHT_BF16)
            s[i] = (vec){0};
        else if (type == NIB_WEIGHT_FP8)
            s[i] = (vec){0} + ue8m0_value(*p);
        else if (type == NIB_WEIGHT_MXFP4)
            s[i] = (vec){ue8m0_value(b[0]), ue8m0_value(b[1]), ue8m0_value(b[2]), ue8m0_value(b[3])} * 0.5f;
        else
            s[i] = (vec){ue4m3_value(b[0]), ue4m3_value(b[1]), ue4m3_value(b[2]), ue4m3_value(b[3])} * 0.5f;
    }
}

/* The same for integer rows, whose doubled codes are halved at the end. */
BODY void codes_scales(const int type, const uint8_t *p, vec *s)
{
    panel_scales_decode(type, p, s);
    UNROLL for (int i = 0; i < 4; i++)
        s[i] *= 2.0f;
}

/* The codes of an octet with their bias: u[p], the even channels of outputs 4 * p and on, u[4 + p], the odd ones. */
BODY void codes_decode(const uint8_t *codes, u8_vec *u)
{
    UNROLL for (int i = 0; i < 8; i++)
    {
        i8x16 nibbles, d;
        nibbles_of(codes + 16 * (i % 4), i / 4, &nibbles);
        doubled_codes(&nibbles, &d);
        u[i] = (u8_vec)(d + NIB_CPU_CODE_BIAS);
    }
}
