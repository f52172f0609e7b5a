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

#include "backend/backend.h"

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

/* What to launch. */
struct nib_sm100a_launch {
    const char *kernel;
    uint32_t    grid, block, cluster, shared_bytes;
};

/* ---- y = x w^T ---- */

/* A tile of rows that multiply one expert's weights: n_rows of them from `row` on. Their scales stand in a tile of
 * their own, the tile's first row first: scales come by atoms of 128 rows, while codes, row scales and results are
 * dense. */
struct nib_sm100a_group {
    int32_t expert, n_rows, row;
};

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
    const struct nib_sm100a_group *groups;
    const int32_t                 *n_groups;
    const float                   *alphas;  /* [n_experts]; NULL: alpha */
    int32_t                        n_bands; /* of 128 outputs in one expert's scales */
};

/* y[t][o] = row_scale[t] * alpha * sum_k x[t][k] w[o][k]. With FP8 rows row_scale is NULL.
 *
 * For experts (n_experts > 0): rows stand sorted by expert, in tiles of up to nib_sm100a_tile_rows(n_ctas), each for
 * one expert, which nib_sm100a_groups (below) lists. x_scales holds nib_sm100a_groups_most() tiles. w and its scales are
 * stacks of n_experts matrices, each matrix's scales padded by itself. Rows of scales behind a tile's last may hold
 * anything. */
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
    const struct nib_sm100a_group *groups;
    const int32_t                 *n_groups;
    const float                   *alphas; /* [n_experts] */
};

/* False, with a sentence in `error`, for what the kernels do not take. n_rows and n_out of at least 1. */
bool nib_sm100a_linear_plan(const struct nib_sm100a_linear *p, nib_sm100a_encode *encode,
                            struct nib_sm100a_linear_args *args, struct nib_sm100a_launch *launch, char *error,
                            size_t error_bytes);

/* Rows of a tile. */
int32_t nib_sm100a_tile_rows(int32_t n_ctas);
/* Most tiles that n_rows rows of n_experts experts can take. */
int32_t nib_sm100a_groups_most(int32_t n_rows, int32_t n_experts, int32_t n_ctas);

/* Passed by value to nib_sm100a_groups, one block of 1024 threads: from each pair's expert to the order of rows and the
 * tiles of a grouped product. Experts without pairs take no tile. Pairs of one expert come in any order, which changes
 * no result. Shared memory: 3 * n_experts int32. */
struct nib_sm100a_groups_args {
    const int32_t           *chosen; /* [n_pairs] */
    struct nib_sm100a_group *groups; /* [nib_sm100a_groups_most()] */
    int32_t                 *n_groups;
    int32_t                 *pair;      /* [n_pairs] of each row */
    int32_t                 *place;     /* [n_pairs] row of each pair */
    int32_t                 *scale_row; /* [n_pairs] where each row's scales stand */
    int32_t                  n_pairs, n_experts, tile_rows;
};

/* ---- Activation rows ---- */

/* Where NVFP4 rows go: codes and row scales as everywhere, block scales in the layout above, or row by row as in struct
 * nib_act where scales_stride is not 0. A row that holds NaN or Inf gets a NaN row scale and scale bytes of 0, so that
 * it cannot reach the rows it shares an instruction with. */
struct nib_sm100a_rows {
    uint8_t       *codes; /* [n_rows][codes_stride] */
    uint8_t       *scales;
    float         *row_scale;    /* [n_rows] */
    int64_t        codes_stride; /* bytes, a multiple of 16 */
    int64_t        scales_stride; /* bytes, a multiple of 4; 0: the tensor core's layout */
    const int32_t *scale_row;    /* [n_rows] where the scales of each row stand; NULL: at its own number */
};

/* Passed by value to nib_sm100a_norm: y = x * rsqrt(mean(x^2) + eps) * weight as in struct nib_norm_args, then
 * rows of it. One block of 256 threads a row; shared memory: n_in floats. */
struct nib_sm100a_norm_args {
    const void            *x;      /* [n_rows][x_stride] */
    const float           *weight; /* [n_in]; NULL: no norm, x is quantised as it is */
    void                  *plain;  /* [n_rows][plain_stride] or NULL; codes are made of the values as stored */
    struct nib_sm100a_rows y;
    int64_t                x_stride, plain_stride; /* elements */
    float                  eps;
    int32_t                n_in; /* a multiple of 16 */
    int32_t                x_f32, plain_f32;
    const int32_t         *from, *to; /* block b takes row from[b] of x and makes row to[b] of y; NULL: b */
};

/* Passed by value to nib_sm100a_place, a block of 128 threads a row: rows quantised elsewhere (scales row by row) to
 * where a product reads them. Row b is row b of x, or with pairs row pair[b] / top_k. */
struct nib_sm100a_place_args {
    const uint8_t         *codes, *scales;
    const float           *row_scale;
    int64_t                codes_stride, scales_stride; /* bytes; codes 16-byte aligned, scales 4 */
    const int32_t         *pair;
    struct nib_sm100a_rows y;     /* codes NULL: only scales are placed, and codes and row scales used where they are */
    int32_t                top_k, n_in; /* n_in a multiple of 32 */
    int32_t                fp8; /* rows are FP8: scales of 128 values, no row_scale */
};

/* Passed by value to nib_sm100a_swiglu: y = silu(min(gate, limit)) * clamp(up, +-limit), without clamps if limit is 0.
 * Blocks and shared memory as nib_sm100a_norm's. */
struct nib_sm100a_swiglu_args {
    const void            *gate, *up; /* [n_rows][stride] */
    const float           *weight;    /* y of row b is multiplied by weight[pair[b]]; NULL: it is not */
    const int32_t         *pair;
    struct nib_sm100a_rows y;
    int64_t                stride;    /* elements */
    float                  limit;
    int32_t                n_in; /* a multiple of 16 */
    int32_t                f32;
};

/* Passed by value to nib_sm100a_swiglu_act: the same to rows of any format. A plain part may be where gate is. */
struct nib_sm100a_swiglu_act_args {
    const float   *gate, *up; /* [n_rows][y.cols] */
    struct nib_act y;
    float          limit;
};

/* ---- Experts' results ---- */

/* Passed by value to nib_sm100a_combine, blocks of 256 threads, grid (ceil(dim / 256), n_rows): y[t] = sum over j of
 * weight[t][j] * expert_y[place[t][j]], in fp32 and in ascending order of expert, plus shared[t] last. Shared memory:
 * 2 * top_k words. */
struct nib_sm100a_combine_args {
    const float   *expert_y; /* [..][expert_stride] */
    const float   *shared;   /* [n_rows][shared_stride] or NULL */
    const int32_t *chosen;   /* [n_rows][top_k] */
    const int32_t *place;    /* [n_rows][top_k] */
    const float   *weight;   /* [n_rows][top_k]; NULL: all 1 */
    void          *y;        /* [n_rows][y_stride] */
    int64_t        expert_stride, shared_stride, y_stride;
    int32_t        top_k, dim, y_f32;
};

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
