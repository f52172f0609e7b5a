/* The inner kernels of the cpu backend: one table, filled once by CPU features, best last.
 *
 * Products with packed weights go by groups of 128 input channels (8 blocks of 16). A group's weights are decoded to
 * fp32 without their block scale, multiplied with the group's channels of a row in a few chains of fused multiply-adds
 * whose lanes each belong to one block, and each chain is then added to its 16 fp32 sums, scale by scale. Integer
 * rows take exact integer sums of each block of 16 instead. Which channel sits in which lane is up to the rung, but
 * within a rung every path runs the same operations in the same order for a row, whatever the rows beside it, the tile
 * or the thread, so a row's bits depend on its own values and the weight's shape only. Bits differ between rungs. */
#ifndef NIB_CPU_KERNELS_H
#define NIB_CPU_KERNELS_H

#include "backend/backend.h"

/* CPU features, also the bits of nib_backend_config.cpu_mask. AVX2 stands for AVX2, FMA and F16C, AVX512 for F, BW, DQ and VL. */
enum nib_cpu_flags {
    NIB_CPU_AVX2 = 1,
    NIB_CPU_AVX512 = 2,
    NIB_CPU_VNNI = 4,
    NIB_CPU_NEON = 8,
    NIB_CPU_DOTPROD = 16
};

/* Input channels that are packed, opened and decoded together: 8 blocks of 16, one FP8 scale. */
#define NIB_CPU_GROUP 128

/* One tile of a matrix product: at most 64 rows by 12 outputs over all channels, 256 channels at a time. 12 decoded weight
 * rows of 256 channels are 12 KiB: with the channels and sums of a block of rows they stay in a L1 cache of 32 KiB, and a
 * decoded weight serves 64 rows. 12 is a multiple of every register tile. */
#define NIB_CPU_LANES     16
#define NIB_CPU_TILE_ROWS 64
#define NIB_CPU_TILE_OUTS 12
#define NIB_CPU_TILE_K    256
#define NIB_CPU_TILE_WORK                                                                                             \
    (NIB_CPU_TILE_OUTS * (NIB_CPU_TILE_K + NIB_CPU_TILE_K / NIB_CPU_GROUP * NIB_CPU_LANES) +                          \
     NIB_CPU_TILE_ROWS * NIB_CPU_TILE_OUTS * NIB_CPU_LANES)

/* One packed matrix; strides in bytes from one output row to the next (FP8 scales: to the next 128 rows). Full groups
 * of NVFP4 and MXFP4 are 32 bytes of the first 8 channels of each block, then 32 of the second 8; those of FP8 and
 * BF16 stand in the rung's order. A last part of a group keeps its natural order, as F32 does everywhere. */
struct nib_cpu_matrix {
    enum nib_weight_type type;
    int32_t              n_out, n_in;
    const uint8_t       *codes, *scales;
    int64_t              codes_stride, scales_stride;
    float                global_scale;
};

/* Where a group's channels stand: channel of element i of an opened fp32 row, of packed FP8 codes and BF16 values. */
struct nib_cpu_order {
    uint8_t row[NIB_CPU_GROUP], fp8[NIB_CPU_GROUP], bf16[NIB_CPU_GROUP];
};

/* A quantised row opened for integer sums, two groups at a time, zeros beyond the last channel: int8 codes (E2M1 codes
 * doubled), their blocks' scales, and minus NIB_CPU_CODE_BIAS times the sum of each block's codes: packed weights
 * enter the sums as unsigned codes with that bias. */
struct nib_cpu_code_row {
    const int8_t  *codes;     /* [pairs of groups][256] in the rung's order */
    const float   *scales;    /* [pairs of groups][16] */
    const int32_t *fix;       /* [pairs of groups][16] */
    float          row_scale; /* what the sums are multiplied with at the end, halves of doubled codes included */
};
#define NIB_CPU_CODE_BIAS 12

struct nib_cpu_tile {
    const struct nib_cpu_matrix          *w;
    int32_t                               out, n_outs, n_rows;
    const float *const                   *x;  /* [n_rows] fp32 rows, opened unless w is F32: tile_plain */
    const struct nib_cpu_code_row *const *xi; /* [n_rows]: tile_codes */
    float                                *y;  /* [n_rows][NIB_CPU_TILE_OUTS] */
    float                                *work; /* NIB_CPU_TILE_WORK floats, 64-byte aligned */
};

struct nib_cpu_kernels {
    const char          *name; /* of the best rung used */
    struct nib_cpu_order order;

    /* y[r][o] = global * sum_k x[r][k] * w[out + o][k], any weight type. */
    void (*tile_plain)(const struct nib_cpu_tile *t);
    /* NVFP4 and MXFP4 weights: integer sums of 16 channels, times both block scales, summed in fp32 over blocks,
     * times the row's and the matrix's global scale at the end. */
    void (*tile_codes)(const struct nib_cpu_tile *t);
    /* n codes and scales of an NVFP4 or INT8 row into an opened one's arrays. */
    void (*codes_open)(enum nib_act_format format, const uint8_t *codes, const uint8_t *scales, int32_t n,
                       int8_t *dst, float *dst_scales, int32_t *fix);

    /* y[i * y_stride + j] = sum over n of x[i] * w[j]; strides in elements. */
    void (*dot_rows)(const float *x, int64_t x_stride, int32_t n_x, const float *w, int64_t w_stride, int32_t n_w,
                     int32_t n, float *y, int64_t y_stride);
    /* o[i][c] += sum over j ascending of p[i * p_stride + j] * v[j * n + c], c < n. */
    void (*add_weighted)(const float *p, int64_t p_stride, int32_t n_p, const float *v, int32_t n_v, int32_t n,
                         float *o);
    /* In double: norms come before quantisers, where a last bit of the factor can flip a code, and cost little. */
    double (*sum_squares)(const float *x, int32_t n);
    void (*scale_by)(float *x, const float *weight, float factor, int32_t n); /* x = x * factor * weight */
    void (*exp_shifted)(float *x, float shift, int32_t n);                    /* x = exp(x - shift) */
    /* x = exp(scale * x - top) with *top raised to the largest scale * x before (NaN raises nothing); the sum of the results. */
    float (*softmax_scores)(float *x, int32_t n, float scale, float *top);
    /* g = silu(min(g, limit)) * clamp(u, +-limit), NaN where g or u is NaN or Inf; limit 0: no clamps. */
    void (*swiglu)(float *g, const float *u, float limit, int32_t n);

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
/* The features of a level by name ("c", "avx2", "avx512", "vnni", "neon", "dotprod") and of those below it. An error for an
 * unknown name, and for one that needs more than the machine has. */
enum nib_status nib_cpu_level_mask(const char *name, unsigned has, unsigned *mask, struct nib_error *err);

/* The rungs; each of another architecture leaves the table as it is. */
void nib_cpu_kernels_fill_c(struct nib_cpu_kernels *k);       /* every slot */
void nib_cpu_kernels_fill_avx2(struct nib_cpu_kernels *k);    /* every slot */
void nib_cpu_kernels_fill_avx512(struct nib_cpu_kernels *k);  /* every slot */
void nib_cpu_kernels_fill_vnni(struct nib_cpu_kernels *k);    /* integer rows */
void nib_cpu_kernels_fill_neon(struct nib_cpu_kernels *k);    /* every slot */
void nib_cpu_kernels_fill_dotprod(struct nib_cpu_kernels *k); /* integer rows */

#endif
