/* The inner kernels of the cpu backend: one table, filled once by CPU features, best last.
 *
 * Every sum over channels has one structure, whatever the tile, the rung or the thread: NIB_CPU_LANES fp32 partial
 * sums, lane l taking channels l, l + 16, l + 32, ... in ascending order, folded by a fixed tree (16, 8, 4, 2, 1).
 * So a row's result does not depend on the rows beside it, and the rungs of today agree bit for bit. A rung that
 * trades this for speed (fused multiply-add, integer dot products) changes whole slots, never one case of a slot. */
#ifndef NIB_CPU_KERNELS_H
#define NIB_CPU_KERNELS_H

#include "backend/backend.h"

/* CPU features, also the bits of nib_backend_config.cpu_mask. */
enum nib_cpu_flags { NIB_CPU_AVX2 = 1 };

/* One tile of a matrix product: at most 64 rows by 12 outputs over all channels, 1024 channels at a time. 12 decoded
 * weight rows of 1024 channels are 48 KiB and as much goes to the partial sums: both stay in a 256 KiB L2 cache
 * beside the activation rows in use, and a decoded weight serves 64 rows. 12 is a multiple of every register tile. */
#define NIB_CPU_LANES     16
#define NIB_CPU_TILE_ROWS 64
#define NIB_CPU_TILE_OUTS 12
#define NIB_CPU_TILE_K    1024
#define NIB_CPU_TILE_WORK (NIB_CPU_TILE_OUTS * NIB_CPU_TILE_K + NIB_CPU_TILE_ROWS * NIB_CPU_TILE_OUTS * NIB_CPU_LANES)

/* One matrix in its stored format; strides in bytes from one output row to the next (FP8 scales: to the next 128
 * rows). */
struct nib_cpu_matrix {
    enum nib_weight_type type;
    int32_t              n_out, n_in;
    const uint8_t       *codes, *scales;
    int64_t              codes_stride, scales_stride;
    float                global_scale;
};

/* An NVFP4 activation row opened for integer sums: doubled E2M1 codes in groups of 16 blocks, the block index
 * running fastest, so that one vector operation serves one channel of 16 blocks; zeros beyond the last block. */
struct nib_cpu_fp4_row {
    const int16_t *codes;     /* [groups][16 channels][16 blocks] */
    const float   *scales;    /* [groups][16 blocks] */
    float          row_scale;
};
#define NIB_CPU_FP4_GROUP 256 /* channels */

struct nib_cpu_tile {
    const struct nib_cpu_matrix          *w;
    int32_t                               out, n_outs, n_rows;
    const float *const                   *x;   /* [n_rows] fp32 rows: tile_plain */
    const struct nib_cpu_fp4_row *const  *x4;  /* [n_rows]: tile_fp4 */
    float                                *y;   /* [n_rows][NIB_CPU_TILE_OUTS] */
    float                                *work; /* NIB_CPU_TILE_WORK floats, 64-byte aligned */
};

struct nib_cpu_kernels {
    const char *name; /* of the best rung used */

    /* y[r][o] = global * sum_k x[r][k] * w[out + o][k], any weight type. */
    void (*tile_plain)(const struct nib_cpu_tile *t);
    /* NVFP4 and MXFP4 weights: integer sums of 16 channels, times both block scales, summed in fp32 over blocks,
     * times the row's and the matrix's global scale at the end. */
    void (*tile_fp4)(const struct nib_cpu_tile *t);
    /* dst = w[row][k0 .. k0 + n) without the global scale (exact in fp32); k0 a multiple of 128. */
    void (*decode_weight)(const struct nib_cpu_matrix *w, int32_t row, int32_t k0, int32_t n, float *dst);

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
    void (*nvfp4_open)(const uint8_t *codes, const uint8_t *scales, int32_t n, int16_t *dst, float *dst_scales);
    void (*fp4_encode)(const float *x, int32_t n, uint8_t *codes, uint8_t *scales);
    void (*fp4_decode)(const uint8_t *codes, const uint8_t *scales, int32_t n, float *dst);
    void (*int8_encode)(const float *x, int32_t n, uint8_t *codes, float *scales);
    void (*int8_decode)(const uint8_t *codes, const float *scales, int32_t n, float *dst);
};

/* Features of this machine that the library has kernels for. */
unsigned nib_cpu_flags_detect(void);
void     nib_cpu_kernels_init(struct nib_cpu_kernels *k, unsigned flags);

void nib_cpu_kernels_fill_c(struct nib_cpu_kernels *k);    /* every slot */
void nib_cpu_kernels_fill_avx2(struct nib_cpu_kernels *k); /* what it improves */

#endif
