/* Body of a rung: products of integer rows (NVFP4, INT8) with 4-bit weights. A step is one vector lane for each of its
 * blocks (half a group, one or two): unsigned codes with a bias times the row's codes, summed as integers over the block's
 * 16 channels (at most 16 * 24 * 127 = 48768; in two halves of 16 bits where a rung has no wider sums), corrected by
 * the row's fix, then times both scales in fp32. */

#define STEP_CHANNELS (16 * VEC_FLOATS)
/* Channels whose packed bytes a step needs whole. */
#define STEP_SPAN (STEP_CHANNELS > NIB_CPU_GROUP ? STEP_CHANNELS : NIB_CPU_GROUP)

/* Position of channel c in a step's opened codes: vectors by (half of a block, odd or even), then lanes of 4 bytes. */
BODY int32_t code_at(int32_t c)
{
    int32_t g = c / NIB_CPU_GROUP, block = c / 16 % 8, half = c / 8 % 2, byte = c / 2 % 4, odd = c % 2;
    return (2 * half + odd) * VEC_BYTES + 32 * g + 4 * block + byte;
}

static void codes_open(enum nib_act_format format, const uint8_t *codes, const uint8_t *scales, int32_t n, int8_t *dst,
                       float *dst_scales, int32_t *fix)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int32_t             n_all = (n + 2 * NIB_CPU_GROUP - 1) / (2 * NIB_CPU_GROUP) * 2 * NIB_CPU_GROUP;
    for (int32_t k = 0; k < n_all; k += 16) {
        int8_t *step = dst + k / STEP_CHANNELS * STEP_CHANNELS;
        int32_t sum = 0;
        for (int32_t i = k; i < k + 16; i++) {
            int8_t q = 0;
            if (i < n)
                q = format == NIB_ACT_INT8 ? (int8_t)codes[i] : doubled[codes[i / 2] >> 4 * (i % 2) & 15];
            step[code_at(i % STEP_CHANNELS)] = q;
            sum += q;
        }
        fix[k / 16] = -NIB_CPU_CODE_BIAS * sum;
        dst_scales[k / 16] = k >= n                   ? 0
                             : format == NIB_ACT_INT8 ? ((const float *)(const void *)scales)[k / 32]
                                                      : ue4m3_value(scales[k / 16]);
    }
}

/* Codes and scales of a step of one output row; the last may need a copy with zeros behind. */
BODY void step_of(const bool mx, const struct nib_cpu_matrix *w, int64_t row, int32_t step, struct last_group *last,
                  u8_vec *u, vec *s)
{
    const int      type = mx ? NIB_WEIGHT_MXFP4 : NIB_WEIGHT_NVFP4;
    int32_t        g = step * STEP_CHANNELS / NIB_CPU_GROUP, block = step * STEP_CHANNELS % NIB_CPU_GROUP / 16;
    const uint8_t *codes = row_codes(w, row) + (int64_t)g * group_bytes(type);
    const uint8_t *scales = row_scales(w, row) + (int64_t)g * group_scale_bytes(type);
    int32_t        n_left = w->n_in - g * NIB_CPU_GROUP;
    if (n_left < STEP_SPAN) {
        /* A full group before the last part keeps its layout, and so do the scales of both. */
        int32_t n_full = n_left / NIB_CPU_GROUP, rest = n_left % NIB_CPU_GROUP, first = n_full * group_bytes(type);
        memset(last->codes, 0, 128);
        memset(last->scales, 0, sizeof last->scales);
        memcpy(last->codes, codes, (size_t)first);
        memcpy(last->scales, scales, (size_t)(n_full * group_scale_bytes(type)));
        last_group_pack(type, codes + first, scales + n_full * group_scale_bytes(type), rest, last->codes + first,
                        last->scales + n_full * group_scale_bytes(type));
        codes = last->codes;
        scales = last->scales;
    }
    codes_decode(codes + 4 * block, u);
    codes_scales(mx, scales + (mx ? block / 2 : block), s);
}

/* acc += this step's sums of one row and output, scaled. */
BODY void step_add(const u8_vec *u, const vec *ws, const struct nib_cpu_code_row *x, int64_t step, vec *acc)
{
    code_sum sum = {0};
    UNROLL for (int i = 0; i < 4; i++)
        codes_dot(&sum, &u[i], x->codes + step * STEP_CHANNELS + i * VEC_BYTES);
    vec f, xs = *(const vec_at *)(x->scales + step * VEC_FLOATS);
    codes_sum(&sum, x->fix + step * VEC_FLOATS, &f);
    f *= *ws; /* exact, and no product of two scales, which may be subnormal */
    VEC_FMA(*acc, f, xs);
}

BODY float codes_result(const struct nib_cpu_tile *t, int32_t r, const vec *acc)
{
    float lane[NIB_CPU_LANES] = {0};
    memcpy(lane, acc, sizeof *acc);
    return fold_lanes(lane) * t->w->global_scale * t->xi[r]->row_scale;
}

BODY void stream_codes(const int rows, const bool mx, const struct nib_cpu_tile *t)
{
    int32_t n_steps = (t->w->n_in + STEP_CHANNELS - 1) / STEP_CHANNELS;
    for (int32_t o = 0; o < t->n_outs; o++) {
        vec            acc[STREAM_ROWS] = {{0}};
        const uint8_t *codes = row_codes(t->w, t->out + o);
        for (int32_t step = 0; step < n_steps; step++) {
            struct last_group last;
            u8_vec            u[4];
            vec               s;
            __builtin_prefetch(codes + step * (STEP_CHANNELS / 2) + PREFETCH_BYTES);
            step_of(mx, t->w, t->out + o, step, &last, u, &s);
            UNROLL for (int r = 0; r < rows; r++)
                step_add(u, &s, t->xi[r], step, &acc[r]);
        }
        UNROLL for (int r = 0; r < rows; r++)
            t->y[r * NIB_CPU_TILE_OUTS + o] = codes_result(t, r, &acc[r]);
    }
}

/* The rows of a tile from row r on, four at most. */
BODY void stream_part(const bool mx, const struct nib_cpu_tile *t, int32_t r)
{
    struct nib_cpu_tile part = *t;
    part.n_rows = t->n_rows - r < STREAM_ROWS ? t->n_rows - r : STREAM_ROWS;
    part.xi += r;
    part.y += r * NIB_CPU_TILE_OUTS;
    switch (part.n_rows) {
    case 1: stream_codes(1, mx, &part); break;
    case 2: stream_codes(2, mx, &part); break;
    case 3: stream_codes(3, mx, &part); break;
    default: stream_codes(4, mx, &part); break;
    }
}

/* Codes are decoded so quickly that any number of rows takes them from the stored bytes, four at a time: the tile's bytes are in
 * the L2 cache from the second time on. */
BODY void tile_codes_of(const bool mx, const struct nib_cpu_tile *t)
{
    for (int32_t r = 0; r < t->n_rows; r += STREAM_ROWS)
        stream_part(mx, t, r);
}

OWN void tile_codes_mxfp4(const struct nib_cpu_tile *t) { tile_codes_of(true, t); }
OWN void tile_codes_nvfp4(const struct nib_cpu_tile *t) { tile_codes_of(false, t); }

static void tile_codes(const struct nib_cpu_tile *t)
{
    (t->w->type == NIB_WEIGHT_MXFP4 ? tile_codes_mxfp4 : tile_codes_nvfp4)(t);
}
