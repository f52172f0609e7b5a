/* Arguments of the kernels that every family of Blackwell cards has under a name of its own (nib_sm100a_norm,
 * nib_sm120a_norm and so on): the steps around its products. C11 and C++17; needs no CUDA headers, so the simulator's
 * tests launch with the same structs. All are passed by value. */
#ifndef NIB_BLACKWELL_H
#define NIB_BLACKWELL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What to launch. */
struct nib_blackwell_launch {
    const char *kernel;
    uint32_t    grid, block, shared_bytes;
    uint32_t    cluster; /* 1: none */
};

/* ---- Activation rows ---- */

/* Where NVFP4 rows go: codes and row scales as everywhere; block scales row by row as in struct nib_act, or where
 * scales_stride is 0 in the layout of the family's tensor core. A row that holds NaN or Inf gets a NaN row scale and
 * scale bytes of 0, so that it cannot reach the rows it shares an instruction with. */
struct nib_blackwell_rows {
    uint8_t       *codes; /* [n_rows][codes_stride] */
    uint8_t       *scales;
    float         *row_scale;     /* [n_rows] */
    int64_t        codes_stride;  /* bytes, a multiple of 16 */
    int64_t        scales_stride; /* bytes, a multiple of 4; 0: the tensor core's layout (sm_100a only) */
    const int32_t *scale_row;     /* [n_rows] where the scales of each row stand; NULL: at its own number */
};

/* norm: y = x * rsqrt(mean(x^2) + eps) * weight as in struct nib_norm_args, then rows of it. One block of 256 threads a
 * row; shared memory: n_in floats. */
struct nib_blackwell_norm_args {
    const void               *x;      /* [n_rows][x_stride] */
    const float              *weight; /* [n_in]; NULL: no norm, x is quantised as it is */
    void                     *plain;  /* [n_rows][plain_stride] or NULL; codes are made of the values as stored */
    struct nib_blackwell_rows y;
    int64_t                   x_stride, plain_stride; /* elements */
    float                     eps;
    int32_t                   n_in; /* a multiple of 16 */
    int32_t                   x_f32, plain_f32;
};

/* swiglu: y = silu(min(gate, limit)) * clamp(up, +-limit), without clamps if limit is 0, for gate and up that were
 * multiplied apart; up NULL (sm_120a only): gate is y already. Blocks and shared memory as norm's. */
struct nib_blackwell_swiglu_args {
    const void               *gate, *up; /* [n_rows][stride] */
    const float              *weight;    /* y of row b is multiplied by weight[pair[b]]; NULL: it is not */
    const int32_t            *pair;
    struct nib_blackwell_rows y;
    int64_t                   stride; /* elements */
    float                     limit;
    int32_t                   n_in; /* a multiple of 16 */
    int32_t                   f32;
};

/* swiglu_act: the same to rows of any format, as struct nib_act has them. A plain part may be where gate is, as it is. */
struct nib_blackwell_swiglu_act_args {
    const float   *gate, *up; /* [n_rows][y.cols] */
    const float   *weight;    /* as above */
    const int32_t *pair;
    struct nib_act y;
    float          limit;
};

/* ---- Experts ---- */

/* A tile of rows that multiply one expert's weights: n_rows of them from `row` on. */
struct nib_blackwell_group {
    int32_t expert, n_rows, row;
};

/* groups, one block of 1024 threads: from each pair's expert to the order of rows and the groups of a product. Experts
 * without pairs take none. Pairs of one expert come in any order, which changes no result. Shared memory: 3 * n_experts
 * int32. */
struct nib_blackwell_groups_args {
    const int32_t              *chosen; /* [n_pairs] */
    struct nib_blackwell_group *groups; /* as many as the family's products can make */
    int32_t                    *n_groups;
    int32_t                    *pair;      /* [n_pairs] of each row */
    int32_t                    *place;     /* [n_pairs] row of each pair */
    int32_t                    *scale_row; /* [n_pairs] each row's number when every group takes scale_tile; or NULL */
    int32_t                    *zero;      /* [n_zero] words to clear, for those who count later */
    int32_t                     n_pairs, n_experts, tile_rows, scale_tile, n_zero;
};

/* combine, blocks of 256 threads, grid (ceil(dim / 256), n_rows): y[t] = sum over j of weight[t][j] *
 * expert_y[place[t][j]], in fp32 and in ascending order of expert, plus shared[t] last. Shared memory: 2 * top_k
 * words. */
struct nib_blackwell_combine_args {
    const float   *expert_y; /* [..][expert_stride] */
    const float   *shared;   /* [n_rows][shared_stride] or NULL */
    const int32_t *chosen;   /* [n_rows][top_k] */
    const int32_t *place;    /* [n_rows][top_k] */
    const float   *weight;   /* [n_rows][top_k]; NULL: all 1 */
    void          *y;        /* [n_rows][y_stride] */
    int64_t        expert_stride, shared_stride, y_stride;
    int32_t        top_k, dim, y_f32;
};

/* ---- Index scores ---- */

/* index_fp4, index_bf16, by the format of the keys: scores of struct nib_index_select_args for dim 128 and up to 128
 * heads, with queries already in the keys' form (BF16 keys: bf16). Row y of the grid is row first + y, whose scores go
 * to score + y * score_stride; blocks along x share its entries. */
struct nib_blackwell_index_args {
    struct nib_index_select_args a; /* without rows */
    struct nib_rows              rows;
    float                       *score;
    int64_t                      score_stride;
    int32_t                      first;
};

#ifdef __cplusplus
}
#endif
#endif
