/* The inner kernels of the cpu backend: one table, filled once by CPU features, best last.
 *
 * Weights lie in panels of 16 outputs, channel after channel, so that a vector holds neighbouring outputs of one channel and
 * a row's channel is one number for all of them. A product goes by blocks of 16 channels: a chain of fused multiply-adds
 * over the block's weights without their scales, which is then added to the output's sum, times its scale. Integer rows
 * take exact integer sums of each block instead. Which channel of a block comes first is up to the rung, but within a rung
 * every path runs the same operations in the same order for a row, whatever the rows beside it, the tile or the thread,
 * so a row's bits depend on its own values and the weight's shape only. Bits differ between rungs. */
#ifndef NIB_CPU_KERNELS_H
#define NIB_CPU_KERNELS_H

#include "backend/backend.h"

/* CPU features, also the bits of nib_backend_config.cpu_mask. AVX2 stands for AVX2, FMA and F16C, AVX512 for F, BW, DQ and VL. */
enum nib_cpu_flags {
    NIB_CPU_AVX2 = 1,
    NIB_CPU_AVX512 = 2,
    NIB_CPU_VNNI = 4,
    NIB_CPU_NEON = 8,
    NIB_CPU_DOTPROD = 16,
    NIB_CPU_BF16 = 32, /* AVX-512 BF16 */
    NIB_CPU_AMX = 64   /* AMX of BF16, whose processors run AVX-512 BF16 at half the rate of fp32: no level */
};

/* Outputs of a panel, and channels that one scale and one chain of multiply-adds belong to. */
#define NIB_CPU_PANEL 16
#define NIB_CPU_BLOCK 16
/* Channels that are packed and decoded together. */
#define NIB_CPU_OCTET 8

/* Partial sums of a product of two fp32 rows, whatever the rung's vectors. */
#define NIB_CPU_LANES 16

/* One tile of a matrix product: at most 64 rows by two panels over all channels, 256 channels of a panel at a time. Decoded
 * they are 16 KiB, which stay in a L1 cache of 32 KiB while the rows pass by. */
#define NIB_CPU_TILE_ROWS 64
#define NIB_CPU_TILE_OUTS (2 * NIB_CPU_PANEL)
#define NIB_CPU_TILE_K    256
#define NIB_CPU_TILE_WORK (NIB_CPU_TILE_K * NIB_CPU_PANEL + NIB_CPU_TILE_K / NIB_CPU_BLOCK * NIB_CPU_PANEL)

/* One packed matrix. Codes stand by panel, then by octet: the bytes of 16 outputs by 8 channels in the rung's order, zeros
 * for outputs and channels beyond the last. Scales of NVFP4 and MXFP4 stand by panel, then by block of 16 or 32 channels:
 * one byte for each output. Scales of FP8 keep their rows, one for 128 outputs. Strides are bytes from one panel to the next
 * (FP8 scales: to the next 128 outputs). F32 keeps its rows, and codes_stride is from one to the next. */
struct nib_cpu_matrix {
    enum nib_weight_type type;
    int32_t              n_out, n_in;
    const uint8_t       *codes, *scales;
    int64_t              codes_stride, scales_stride;
    float                global_scale;
    const uint8_t       *least; /* BF16 on a rung with tile_bf16: by panel the least exponent field of values that are not 0, else 255 */
};

/* Which of an octet's elements stands where: element i is channel i % 8 of output i / 8 for FP8 and BF16; of 4-bit codes
 * i counts pairs of channels, 4 for each output, and neighbours 2 i and 2 i + 1 stay together. */
struct nib_cpu_order {
    uint8_t fp4[NIB_CPU_PANEL * 4], fp8[NIB_CPU_PANEL * 8], bf16[NIB_CPU_PANEL * 8];
};

/* 16 channels of a quantised row opened for integer sums: int8 codes (E2M1 codes doubled), zeros beyond the last channel,
 * and minus NIB_CPU_CODE_BIAS times their sum, for packed weights enter the sums as unsigned codes with that bias, plus
 * the bits of NIB_CPU_SUM_BASE: a sum's bits are those of its value and that base as fp32. Together, because a loop over
 * several rows has a register for one address each. */
struct nib_cpu_code_block {
    int8_t  codes[NIB_CPU_BLOCK]; /* of 8 channels the even ones first */
    float   scale;
    int32_t fix;
};
#define NIB_CPU_CODE_BIAS 12
#define NIB_CPU_SUM_BASE  12582912.0f /* 1.5 * 2^23 */

struct nib_cpu_code_row {
    const struct nib_cpu_code_block *block;     /* [blocks] */
    float                            row_scale; /* for the sums at the end, halves of doubled codes included */
};

/* A row that is exact in bf16, zeros up to a whole block, and the least exponent field of its values that are not 0 (255 if
 * there are none). */
struct nib_cpu_bf16_row {
    const uint16_t *x;
    uint8_t         least;
};

struct nib_cpu_tile {
    const struct nib_cpu_matrix          *w;
    int32_t                               out, n_outs, n_rows; /* out begins a panel unless w is F32 */
    const float *const                   *x;  /* [n_rows] fp32 rows, zeros up to a whole block: tile_plain */
    const struct nib_cpu_code_row *const *xi; /* [n_rows]: tile_codes */
    const struct nib_cpu_bf16_row        *xh; /* [n_rows]: tile_bf16 */
    float                                *y;  /* [n_rows][NIB_CPU_TILE_OUTS], 64-byte aligned; all of a panel is written */
    float                                *work; /* NIB_CPU_TILE_WORK floats, 64-byte aligned */
};

/* Queries of the indexer as FP4 rows, in both forms: fp32 values, and doubled codes plus NIB_CPU_CODE_BIAS of all channels
 * with a quarter of each block's scale. */
struct nib_cpu_fp4_queries {
    int32_t        n;
    const float   *x;      /* [n][x_stride] */
    int64_t        x_stride;
    const uint8_t *codes;  /* [n][dim] */
    const float   *scales; /* [n][blocks of 32] */
};

struct nib_cpu_kernels {
    const char          *name; /* of the best rung used */
    struct nib_cpu_order order;

    /* y[r][o] = global * sum_k x[r][k] * w[out + o][k], any weight type. */
    void (*tile_plain)(const struct nib_cpu_tile *t);
    /* NVFP4 and MXFP4 weights: integer sums of 16 channels, times both block scales, summed in fp32 over blocks,
     * times the row's and the matrix's global scale at the end. */
    void (*tile_codes)(const struct nib_cpu_tile *t);
    /* As tile_plain for rows in bf16 and any weights but F32; NULL where fp32 rows are no slower. */
    void (*tile_bf16)(const struct nib_cpu_tile *t);
    /* n fp32 values that are exact in bf16 as such, which may be the same memory; returns `least` of a row. With tile_bf16. */
    uint8_t (*bf16_take)(const float *x, int32_t n, uint16_t *out);
    /* n codes and their scales of an NVFP4 or INT8 row into blocks. */
    void (*codes_open)(enum nib_act_format format, const uint8_t *codes, const uint8_t *scales, int32_t n,
                       struct nib_cpu_code_block *out);

    /* y[i * y_stride + j] = sum over n of x[i] * w[j]; strides in elements. */
    void (*dot_rows)(const float *x, int64_t x_stride, int32_t n_x, const float *w, int64_t w_stride, int32_t n_w,
                     int32_t n, float *y, int64_t y_stride);
    /* o[i * o_stride + c] += sum over j ascending of p[i * p_stride + j] * v[j * v_stride + c], c < n. */
    void (*add_weighted)(const float *p, int64_t p_stride, int32_t n_p, const float *v, int64_t v_stride, int32_t n_v,
                         int32_t n, float *o, int64_t o_stride);
    /* The same two of BF16 rows w[j] and v[j] of n channels, a multiple of NIB_CPU_LANES: the bits of decoding them
     * first. next[j] are rows that will come after these, to be asked of memory. */
    void (*dot_bf16)(const float *x, int64_t x_stride, int32_t n_x, const uint16_t *const *w,
                     const uint16_t *const *next, int32_t n_w, int32_t n, float *y, int64_t y_stride);
    void (*add_bf16)(const float *p, int64_t p_stride, int32_t n_p, const uint16_t *const *v,
                     const uint16_t *const *next, int32_t n_v, int32_t n, float *o, int64_t o_stride);
    /* y[i * y_stride + j] = query i . key j for stored FP4 keys of dim channels; y_stride is at least n to a multiple of 16, and
     * all of that may be written. work: n rows, to a multiple of 16, of nib_cpu_kv_stride(dim) floats. */
    void (*fp4_dots)(const struct nib_cpu_fp4_queries *q, const uint8_t *const *key, int32_t n, int32_t dim, float *work,
                     float *y, int64_t y_stride);
    /* score[j] = sum over queries ascending of weight * max(0, query . key j), as add_positive adds. dots: as y above with a
     * stride of n to a multiple of 16. */
    void (*fp4_scores)(const struct nib_cpu_fp4_queries *q, const float *weight, const uint8_t *const *key, int32_t n,
                       int32_t dim, float *work, float *dots, float *score);
    void (*fp4_query_open)(const uint8_t *codes, const uint8_t *scales, int32_t dim, uint8_t *out, float *out_scales);
    void (*add_positive)(float *sum, const float *x, float weight, int32_t n); /* sum += weight * max(0, x), NaN kept */
    /* Cosines of pos * freq[i], i < n / 2, twice each, then sines, the first of each two negative: out [2 * n]. */
    void (*rotary_angles)(const float *freq, int32_t n, float pos, float *out);
    void (*rotate)(float *x, int32_t n, const float *angle, bool inverse); /* pairs of x by them, every step rounded */
    void (*hadamard)(float *x, int32_t n, float scale);                    /* n a power of 2; times scale at the end */
    /* Indices of the k < n largest of x, NaN first, ties to the lowest index, ascending. x is destroyed. */
    void (*select_top)(float *x, int32_t n, int32_t k, int32_t *selected);
    /* The k <= n largest of score + bias one after another, ties to the lowest index, NaN last. work: [n]. */
    void (*choose_top)(const float *score, const float *bias, int32_t n, int32_t k, float *work, int32_t *chosen);
    void (*route_scores)(float *z, int32_t n); /* z = sqrt(log(1 + exp(z))) */
    /* The first index of the largest of x; -1 where x holds NaN or +Inf, or nothing above -Inf. */
    int32_t (*largest)(const float *x, int32_t n);
    double (*sum_doubles)(const float *x, int32_t n); /* in double */
    /* In double: norms come before quantisers, where a last bit of the factor can flip a code, and cost little. */
    double (*sum_squares)(const float *x, int32_t n);
    void (*scale_by)(float *x, const float *weight, float factor, int32_t n); /* x = x * factor * weight */
    void (*exp_shifted)(float *x, float shift, int32_t n);                    /* x = exp(x - shift) */
    /* x = exp(scale * x - top) with *top raised to the largest scale * x before (NaN raises nothing); the sum of the results. */
    float (*softmax_scores)(float *x, int32_t n, float scale, float *top);
    /* g = silu(min(g, limit)) * clamp(u, +-limit), NaN where g or u is NaN or Inf; limit 0: no clamps. */
    void (*swiglu)(float *g, const float *u, float limit, int32_t n);

    /* n_rows rows of n floats, strides in floats, to where no cache will hold them until they are read: past the caches where
     * the rung can. src and src_stride are aligned to 64 bytes. */
    void (*rows_past)(const float *src, int64_t src_stride, int32_t n_rows, int32_t n, float *dst, int64_t dst_stride);

    void (*bf16_decode)(const uint16_t *src, float *dst, int32_t n);
    void (*bf16_encode)(const float *src, uint16_t *dst, int32_t n);
    void (*bf16_round)(float *x, int32_t n);

    /* Quantisers and their inverses, as struct nib_act and enum nib_row_format define them. */
    void (*fp8_encode)(const float *x, int32_t n, int32_t block, uint8_t *codes, uint8_t *scales);
    void (*fp8_decode)(const uint8_t *codes, const uint8_t *scales, int32_t n, int32_t block, float *dst);
    void (*nvfp4_encode)(const float *x, int32_t n, uint8_t *codes, uint8_t *scales, float *row_scale);
    void (*nvfp4_decode)(const uint8_t *codes, const uint8_t *scales, float row_scale, int32_t n, float *dst);
    void (*fp4_encode)(const float *x, int32_t n, uint8_t *codes, uint8_t *scales);
    void (*fp4_decode)(const uint8_t *codes, const uint8_t *scales, int32_t n, float *dst);
    void (*int8_encode)(const float *x, int32_t n, uint8_t *codes, float *scales);
    void (*int8_decode)(const uint8_t *codes, const float *scales, int32_t n, float *dst);
};

/* Features of this machine that the library has kernels for and that its system supports. */
unsigned nib_cpu_flags_detect(void);
void     nib_cpu_kernels_init(struct nib_cpu_kernels *k, unsigned flags);
/* Whether a machine with these features multiplies integer rows so much faster that they are the default. */
bool nib_cpu_prefers_int8(unsigned flags);
/* The features of a level by name ("c", "avx2", "avx512", "vnni", "bf16", "neon", "dotprod") and of those below it. An error for an
 * unknown name, and for one that needs more than the machine has. */
enum nib_status nib_cpu_level_mask(const char *name, unsigned has, unsigned *mask, struct nib_error *err);

/* The rungs; each of another architecture leaves the table as it is. */
void nib_cpu_kernels_fill_c(struct nib_cpu_kernels *k);       /* every slot */
void nib_cpu_kernels_fill_avx2(struct nib_cpu_kernels *k);    /* every slot */
void nib_cpu_kernels_fill_avx512(struct nib_cpu_kernels *k);  /* every slot */
void nib_cpu_kernels_fill_vnni(struct nib_cpu_kernels *k);    /* integer rows */
void nib_cpu_kernels_fill_bf16(struct nib_cpu_kernels *k);    /* rows in bf16 */
void nib_cpu_kernels_fill_neon(struct nib_cpu_kernels *k);    /* every slot */
void nib_cpu_kernels_fill_dotprod(struct nib_cpu_kernels *k); /* integer rows */

#endif
