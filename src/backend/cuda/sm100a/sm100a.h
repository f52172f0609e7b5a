/* NVFP4, FP8 and MXFP4 on sm_100a, sm_100f and sm_103a: layouts, kernel arguments, and how a problem becomes launches.
 * C11 and C++17; needs no CUDA headers, so the simulator's tests plan launches with the same code.
 *
 * Compiled and simulated; never run on hardware yet. docs/kernels/sm100a.md explains the kernels.
 *
 * Scales (of weights and of activation rows) stand as the tensor core wants them: rows padded to 128, the row's
 * blocks of 16 values padded to 16 blocks (256 values), in atoms of 128 rows by 4 blocks, 512 bytes each; the
 * atoms of 128 rows follow one another along k. Padding blocks hold 0; padding rows may hold anything. Codes are
 * rows of n_in / 2 bytes as everywhere.
 *
 * FP8 rows multiply FP8 or MXFP4 weights under UE8M0 scales of 32 values: an atom is 128 rows by 128 values of k. A
 * scale that serves more values or rows (128 of FP8 rows, 128 x 128 of FP8 weights) is repeated there. */
#ifndef NIB_SM100A_H
#define NIB_SM100A_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/blackwell/blackwell.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NIB_SM100A_K_TILE 256 /* values of k that one stage holds: 128 bytes of codes, the swizzle's span */
#define NIB_SM100A_MX_K_TILE 128 /* the same of FP8 rows */

/* What multiplies what: NVFP4 rows and weights; FP8 (E4M3) rows and FP8 or MXFP4 weights. */
enum nib_sm100a_format { NIB_SM100A_NVFP4, NIB_SM100A_FP8, NIB_SM100A_MXFP4 };

/* Bytes of the scales of `rows` rows of n_in values of NVFP4; the same of the other formats. */
int64_t nib_sm100a_scale_bytes(int64_t rows, int64_t n_in);
int64_t nib_sm100a_mx_scale_bytes(int64_t rows, int64_t n_in);
/* Where the scale of a row's block of 16 values is. */
int64_t nib_sm100a_scale_offset(int64_t row, int64_t block, int64_t n_in);

#ifdef __cplusplus
#define NIB_ALIGNED_64 alignas(64)
#else
#define NIB_ALIGNED_64 _Alignas(64)
#endif

/* A CUtensorMap; passed inside kernel arguments, so aligned as those must be. */
struct nib_sm100a_map {
    NIB_ALIGNED_64 uint64_t word[16];
};

/* cuTensorMapEncodeTiled with its enums as int; 0 is success. */
typedef int nib_sm100a_encode(void *map, int type, uint32_t rank, void *address, const uint64_t *dim,
                              const uint64_t *stride_bytes, const uint32_t *box, const uint32_t *element_stride,
                              int interleave, int swizzle, int l2, int fill);

/* ---- y = x w^T ---- */

/* Passed by value to the kernels. */
struct nib_sm100a_linear_args {
    struct nib_sm100a_map x, w, x_scales, w_scales;
    const float          *row_scale; /* [n_rows]; NULL: all 1 */
    void                 *y;         /* [n_rows][y_stride] bf16 or fp32 */
    int64_t               y_stride;  /* elements */
    float                 alpha;
    int32_t               y_f32, n_rows, n_out;
    int32_t               n_k_tiles, n_row_tiles, n_out_tiles;
    /* For experts, read on the device: tiles of rows and their number; NULL: all rows multiply one matrix. */
    const struct nib_blackwell_group *groups;
    const int32_t                    *n_groups;
    const float                      *alphas;  /* [n_experts]; NULL: alpha */
    int32_t                           n_bands; /* of 128 outputs in one expert's scales */
};

/* y[t][o] = row_scale[t] * alpha * sum_k x[t][k] w[o][k]. With FP8 rows row_scale is NULL.
 *
 * For experts (n_experts > 0): rows stand sorted by expert, in tiles of up to nib_sm100a_tile_rows(n_ctas), each for
 * one expert, which nib_sm100a_groups lists. The scales of each stand in a tile of their own, its first row first: they
 * come by atoms of 128 rows, while codes, row scales and results are dense. x_scales holds nib_sm100a_groups_most()
 * tiles. w and its scales are stacks of n_experts matrices, each matrix's scales padded by itself. Rows of scales
 * behind a tile's last may hold anything. */
struct nib_sm100a_linear {
    enum nib_sm100a_format format;
    int32_t        n_rows, n_out, n_in; /* n_in a multiple of 32, with MXFP4 of 128 */
    const uint8_t *x_codes, *w_codes;   /* 16-byte aligned (MXFP4 w: 32); rows of w follow one another without gaps */
    int64_t        x_stride;            /* bytes, a multiple of 16 */
    const uint8_t *x_scales, *w_scales; /* in the layout above, 16-byte aligned */
    const float   *row_scale;
    float          alpha;
    void          *y;
    int64_t        y_stride;
    bool           y_f32;
    int32_t        n_sms;
    int32_t        n_ctas; /* 1 or 2 that share a tile; 0: chosen by shape (experts: 1) */
    int32_t        n_experts;
    const struct nib_blackwell_group *groups;
    const int32_t                    *n_groups;
    const float                      *alphas; /* [n_experts] */
};

/* False, with a sentence in `error`, for what the kernels do not take. n_rows and n_out of at least 1. */
bool nib_sm100a_linear_plan(const struct nib_sm100a_linear *p, nib_sm100a_encode *encode,
                            struct nib_sm100a_linear_args *args, struct nib_blackwell_launch *launch, char *error,
                            size_t error_bytes);

/* Rows of a tile. */
int32_t nib_sm100a_tile_rows(int32_t n_ctas);
/* Most tiles of so many rows that n_rows rows of n_experts experts can take. */
int32_t nib_sm100a_groups_most(int32_t n_rows, int32_t n_experts, int32_t tile_rows);

/* ---- Experts ---- */

/* Passed by value to the kernels of experts_sm100a.cu: nib_sm100a_experts_in_*, _out_* and nib_sm100a_mx_in_*,
 * _out_*. */
struct nib_sm100a_experts_args {
    struct nib_sm100a_map             x, x_scales, w[2], w_scales[2];
    const float                      *row_scale; /* [n_pairs]; NULL: all 1 */
    const float                      *alphas[2]; /* [n_experts]; NULL: alpha */
    float                             alpha[2];
    const struct nib_blackwell_group *groups;
    const int32_t                    *n_groups;
    float                            *y;      /* [n_pairs][n_out] what tiles hand on: SwiGLU, or an expert's results */
    int32_t                          *n_done; /* tiles; 0 at launch */
    int32_t                           n_pairs, n_rows, n_out, n_bands, n_k_tiles;
    uint32_t                          w_type; /* of mx_*, as the instruction names it */
    /* in */
    const float              *weight; /* by pair; NULL: all 1 */
    const int32_t            *pair;   /* [n_pairs] */
    float                     limit;
    uint32_t                 *most;   /* [n_pairs] largest magnitude of each row, its bits; 0 at launch */
    struct nib_blackwell_rows rows;   /* with scale_row; scales in the layout above */
    /* out; y and expert_y are the same */
    struct nib_blackwell_combine_args sum;
};

/* in: rows of SwiGLU of x w1^T and x w3^T. out: the weighted sum of h w2^T. Rows stand sorted by expert, in groups of
 * up to `columns`, scales in bands of 128 a group. All blocks of a launch must be on the card at once. */
struct nib_sm100a_experts {
    enum nib_sm100a_format format;
    int32_t        n_parts; /* 2: in; 1: out */
    int32_t        columns; /* 16 or 96 */
    int32_t        n_pairs, n_rows, n_experts, n_out, n_in; /* n_in a multiple of 32, with MXFP4 of 128; n_out of 32 */
    const uint8_t *x_codes, *x_scales;
    int64_t        x_stride; /* bytes, a multiple of 16 */
    const uint8_t *w_codes[2], *w_scales[2];
    int32_t        n_sms;
    struct nib_sm100a_experts_args rest; /* everything but maps and counts */
};

bool nib_sm100a_experts_plan(const struct nib_sm100a_experts *p, nib_sm100a_encode *encode,
                             struct nib_sm100a_experts_args *args, struct nib_blackwell_launch *launch, char *error,
                             size_t error_bytes);

/* ---- Plain rows times BF16 or FP8 weights ---- */

#define NIB_SM100A_PLAIN_THREADS 192
#define NIB_SM100A_PLAIN_OUTS 128  /* of a tile */
#define NIB_SM100A_PLAIN_K_TILE 64 /* values of k that a stage holds */
#define NIB_SM100A_PLAIN_STAGES 5
#define NIB_SM100A_PLAIN_SPANS 8 /* most blocks that share a tile's k */
/* FP8 weights come as they are stored, 128 values of k at a time, and are opened to stages of bf16. */
#define NIB_SM100A_PLAIN_FP8_RAW 3
#define NIB_SM100A_PLAIN_FP8_RAW_BYTES 16384
#define NIB_SM100A_PLAIN_FP8_FEW_STAGES 2
#define NIB_SM100A_PLAIN_FP8_MANY_STAGES 3
/* Scale bytes with which every value of E4M3 is a normal bf16 number or zero, and its factor one, too. */
#define NIB_SM100A_PLAIN_FP8_LEAST 10
#define NIB_SM100A_PLAIN_FP8_MOST 134
/* Rows of a tile: what one product has columns for, one a bf16 row, three an fp32 one. */
#define NIB_SM100A_PLAIN_FEW_BF16 32
#define NIB_SM100A_PLAIN_FEW_F32 16
#define NIB_SM100A_PLAIN_MANY_BF16 192
#define NIB_SM100A_PLAIN_MANY_F32 64

/* Passed by value to nib_sm100a_plain_few_bf16, _few_f32, _many_bf16 and _many_f32, and to nib_sm100a_plain_fp8_few_bf16
 * and so on. */
struct nib_sm100a_plain_args {
    struct nib_sm100a_map w;
    const void           *x; /* [n_rows][x_stride] */
    void                 *y; /* [n_rows][y_stride] */
    int64_t               x_stride, y_stride; /* elements */
    int32_t               y_f32, n_rows, n_out, n_in; /* n_out, n_in: of one group */
    int32_t               n_k_tiles, n_out_tiles;
    const uint8_t        *w_scales; /* FP8 */
    int32_t               n_weights, n_scale_cols; /* rows of all groups; atoms of scales side by side */
};

/* y[t][g * n_out + o] = sum_k x[t][g * n_in + k] w[g * n_out + o][k] for n_groups groups. The order of sums follows from
 * the weights' shape. fp32 rows are three bf16 parts, which hold every value exactly; FP8 weights are opened to bf16
 * with their scales, which is exact for scale bytes within the bounds above. */
struct nib_sm100a_plain {
    int32_t     n_rows, n_groups, n_out, n_in; /* of one group; n_in a multiple of 8, of 16 with FP8 weights */
    bool        x_f32, y_f32, w_fp8;
    const void *x, *w; /* 16-byte aligned; rows of w follow one another without gaps */
    const uint8_t *w_scales; /* FP8: of all groups' rows, packed (nib_sm100a_mx_scale_bytes) */
    void       *y;
    int64_t     x_stride, y_stride; /* elements; rows of x begin at multiples of 16 bytes */
};

/* launch: `grid` blocks along x; *n_row_tiles along y. */
bool nib_sm100a_plain_plan(const struct nib_sm100a_plain *p, nib_sm100a_encode *encode,
                           struct nib_sm100a_plain_args *args, struct nib_blackwell_launch *launch,
                           uint32_t *n_row_tiles, char *error, size_t error_bytes);

/* ---- Activation rows ---- */

/* Passed by value to nib_sm100a_place, a block of 128 threads a row: rows quantised elsewhere (scales row by row) to
 * where a product reads them. Row b is row b of x, or with pairs row pair[b] / top_k. */
struct nib_sm100a_place_args {
    const uint8_t         *codes, *scales;
    const float           *row_scale;
    int64_t                codes_stride, scales_stride; /* bytes; codes 16-byte aligned, scales 4 */
    const int32_t         *pair;
    struct nib_blackwell_rows y; /* codes NULL: only scales are placed; codes and row scales are used where they are */
    int32_t                top_k, n_in; /* n_in a multiple of 32 */
    int32_t                fp8; /* rows are FP8: scales of 128 values, no row_scale */
};

/* ---- Attention ---- */

#define NIB_SM100A_ATTEND_COLUMNS 64  /* of a block: heads of bf16 queries; fp32 ones take two each */
#define NIB_SM100A_ATTEND_THREADS 288
#define NIB_SM100A_ATTEND_SHARED 232328 /* bytes, dynamic */
#define NIB_SM100A_ATTEND_BLOCKS 8    /* of a cluster, which share a row in the kernels for few rows */

/* Passed by value to nib_sm100a_attend_bf16, _fp8 and _nvfp4, by the format of both stores, for bf16 q, and to
 * nib_sm100a_attend_f32_bf16 and so on for fp32 q: struct nib_attend_args for head_dim 512 with 64 rotary channels; stores
 * and q 16-byte aligned. Row y of the grid is row first + y;
 * x: groups of heads. few: NIB_SM100A_ATTEND_BLOCKS times as many blocks along x, that many a cluster, share a row. */
struct nib_sm100a_attend_args {
    struct nib_attend_args a; /* without rows */
    struct nib_rows        rows;
    int32_t                first, few;
};

/* ---- Index scores ---- */

#define NIB_SM100A_INDEX_THREADS 288
#define NIB_SM100A_INDEX_ENTRIES 128   /* that a block takes at once */
#define NIB_SM100A_INDEX_FP4_SHARED 47104 /* bytes, dynamic */
#define NIB_SM100A_INDEX_BF16_SHARED 100352

/* nib_sm100a_index_fp4 and _bf16, by the format of the keys, and _f32_bf16 for fp32 queries (up to 64 heads) of BF16 keys:
 * struct nib_blackwell_index_args. */

/* ---- Packing of weights ---- */

/* Passed by value to nib_sm100a_pack_scales: stored scale bytes (NVFP4 [n_out][n_in / 16], MXFP4 [n_out][n_in / 32], FP8
 * [ceil(n_out / 128)][ceil(n_in / 128)]) to the layout above, padding included. A thread for each 4 bytes of the result;
 * blocks of 256. */
struct nib_sm100a_pack_args {
    const uint8_t *stored;
    uint32_t      *packed;
    int64_t        n_words; /* of packed */
    int32_t        n_out, n_in;
    int32_t        format; /* enum nib_sm100a_format */
};

#ifdef __cplusplus
}
#endif
#endif
