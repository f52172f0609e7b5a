/* Body of a rung of 16-byte vectors: packed groups to vectors. A lane is a block of 16 channels: vector 2 * n + p of chunk c
 * holds channel 8 * c + n of blocks 4 * p to 4 * p + 3, and each chunk and p is a chain. The rung
 * supplies doubled_codes. */

#define CHUNKS            2
#define CHAINS            4
#define CHUNK_CHAIN(c, i) (2 * (c) + (i) % 2)
#define CHAIN_VEC(c, i)   (16 * ((c) / 2) + 2 * (i) + (c) % 2)

typedef uint32_t u32x4 __attribute__((vector_size(16)));

BODY int32_t row_channel(int32_t i) { return 16 * (i % 8) + i / 8; }

/* Four bytes (or two halves) of consecutive channels for each lane. */
BODY int32_t fp8_channel(int32_t i) { return 16 * (i / 4 % 8) + 4 * (i / 32) + i % 4; }
BODY int32_t bf16_channel(int32_t i) { return 16 * (i / 2 % 8) + 2 * (i / 16) + i % 2; }

/* Nibbles of 16 packed bytes. */
BODY void nibbles_of(const uint8_t *codes, i8x16 *low, i8x16 *high)
{
    i8x16 b;
    memcpy(&b, codes, sizeof b);
    *low = b & 15;
    *high = (i8x16)((i16x8)b >> 4) & 15; /* bytes have no shift */
}

BODY void chunk_decode(const int type, const uint8_t *codes, int chunk, vec *v)
{
    if (type == NIB_WEIGHT_BF16) {
        UNROLL for (int i = 0; i < 8; i++)
        {
            u32x4 pair;
            memcpy(&pair, codes + 128 * chunk + 16 * i, sizeof pair);
            v[4 * (i / 2) + i % 2] = (vec)(pair << 16);
            v[4 * (i / 2) + 2 + i % 2] = (vec)(pair & 0xffff0000u);
        }
    } else if (type == NIB_WEIGHT_FP8) {
        UNROLL for (int i = 0; i < 16; i++)
        {
            int   byte = i / 2 % 4;
            i32x4 b;
            memcpy(&b, codes + 64 * chunk + 32 * (i / 8) + 16 * (i % 2), sizeof b);
            b = (b << (24 - 8 * byte)) & (int32_t)0xff000000;
            /* Exponents and subnormals as in e4m3_magnitude. */
            i32x4 subnormal = (i32x4)((b & 0x78000000) == 0);
            vec   normal = (vec)((b >> 4 & 0x07f00000) + (120 << 23)), small = (normal - 0x1p-7f) * 2;
            v[i] = (vec)(((i32x4)normal & ~subnormal) | ((i32x4)small & subnormal) | (b & INT32_MIN));
        }
    } else {
        UNROLL for (int p = 0; p < 2; p++)
        {
            i8x16 nibbles[2], d;
            nibbles_of(codes + 32 * chunk + 16 * p, &nibbles[0], &nibbles[1]);
            UNROLL for (int h = 0; h < 2; h++)
            {
                doubled_codes(&nibbles[h], &d);
                UNROLL for (int i = 0; i < 4; i++)
                    v[2 * (2 * i + h) + p] = __builtin_convertvector(((i32x4)d << (24 - 8 * i)) >> 24, vec);
            }
        }
    }
}

/* Scales of 4 blocks from the first of p. */
BODY void block_scales(const bool mx, const uint8_t *p, vec *s)
{
    if (mx)
        *s = (vec){ue8m0_value(p[0]), ue8m0_value(p[0]), ue8m0_value(p[1]), ue8m0_value(p[1])};
    else
        *s = (vec){ue4m3_value(p[0]), ue4m3_value(p[1]), ue4m3_value(p[2]), ue4m3_value(p[3])};
}

BODY void group_scales(const int type, const uint8_t *p, vec *s)
{
    if (type == NIB_WEIGHT_BF16)
        s[0] = s[1] = (vec){0} + 1.0f;
    else if (type == NIB_WEIGHT_FP8)
        s[0] = s[1] = (vec){0} + ue8m0_value(*p);
    else
        UNROLL for (int i = 0; i < 2; i++)
        {
            block_scales(type == NIB_WEIGHT_MXFP4, p + (type == NIB_WEIGHT_MXFP4 ? 2 : 4) * i, &s[i]);
            s[i] *= 0.5f; /* codes were doubled */
        }
    s[2] = s[0];
    s[3] = s[1];
}

BODY void codes_scales(const bool mx, const uint8_t *p, vec *s) { block_scales(mx, p, s); }

BODY void codes_decode(const uint8_t *codes, u8_vec *u)
{
    UNROLL for (int half = 0; half < 2; half++)
    {
        i8x16 nibbles[2], d;
        nibbles_of(codes + 32 * half, &nibbles[0], &nibbles[1]);
        UNROLL for (int h = 0; h < 2; h++)
        {
            doubled_codes(&nibbles[h], &d);
            u[2 * half + h] = (u8_vec)(d + NIB_CPU_CODE_BIAS);
        }
    }
}
