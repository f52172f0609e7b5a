/* NVFP4 on sm_120a, sm_120f and sm_121a: layouts, kernel arguments, and how a problem becomes launches. C11 and C++17;
 * needs no CUDA headers, so the simulator's tests plan launches with the same code.
 *
 * Compiled and simulated; never run on hardware yet. docs/kernels/sm120a.md explains the kernels.
 *
 * Weights are packed once at load, in units of 8 rows by 128 values of k, so that what a lane of a warp multiplies is
 * 16 bytes on end: a unit's codes are 512 bytes, lane (g, l) = (lane / 4, lane % 4) holding words l, l+4, l+8, l+12 of
 * row g, a word being 8 values; its scales are 64 bytes, 8 of each row. All units of 8 rows follow one another along k,
 * then come the next 8 rows. Rows stand in pairs of units; padding rows and values are zero. A product of two parts, gate
 * and up, takes its units in turn from two matrices that were packed apart, so that one instruction makes both. Rows of
 * activations are those of struct nib_act. */
#ifndef NIB_SM120A_H
#define NIB_SM120A_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/blackwell/blackwell.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NIB_SM120A_K_TILE 128 /* values of k in a unit and in a stage: two instructions */
#define NIB_SM120A_UNIT_BYTES 512
#define NIB_SM120A_UNIT_SCALES 64
#define NIB_SM120A_FP8_UNIT 1024 /* bytes of a unit of FP8 weights */
#define NIB_SM120A_MX_SCALES 32  /* of a unit's scales, FP8 and MXFP4 */
#define NIB_SM120A_SLICES 8 /* of k, each summed by itself, then added up in order: the same in every kernel */

/* Formats of weights. NVFP4 multiplies NVFP4 rows, the others FP8 rows (E4M3 with a UE8M0 scale for 128 values). FP8: E4M3
 * with a UE8M0 scale for 128 x 128; MXFP4: E2M1 with one for 32. mx_sm120a.cu has their units. */
enum nib_sm120a_format { NIB_SM120A_NVFP4, NIB_SM120A_FP8, NIB_SM120A_MXFP4 };

/* Units along the rows of one matrix, an even number. */
int64_t nib_sm120a_units(int64_t n_out);
int64_t nib_sm120a_k_tiles(int64_t n_in);
/* Bytes of one packed matrix. */
int64_t nib_sm120a_code_bytes(int64_t n_out, int64_t n_in);
int64_t nib_sm120a_scale_bytes(int64_t n_out, int64_t n_in);
int64_t nib_sm120a_mx_code_bytes(int64_t n_out, int64_t n_in, enum nib_sm120a_format format); /* FP8 or MXFP4 */
int64_t nib_sm120a_mx_scale_bytes(int64_t n_out, int64_t n_in);

/* ---- Packing of weights ---- */

/* Passed by value to nib_sm120a_pack, _pack_fp8 and _pack_mxfp4: a thread for each 16 bytes of codes, blocks of 256. */
struct nib_sm120a_pack_args {
    const uint8_t *stored, *stored_scales; /* [n_out][n_in / 2], [n_out][n_in / 16] */
    uint8_t       *codes, *scales;
    int64_t        n_pieces; /* of 16 bytes */
    int32_t        n_out, n_in, n_k_tiles;
};

/* n_in a multiple of 32. */
void nib_sm120a_pack_plan(struct nib_sm120a_pack_args *args, struct nib_blackwell_launch *launch);
/* The same for FP8 and MXFP4. */
void nib_sm120a_mx_pack_plan(struct nib_sm120a_pack_args *args, enum nib_sm120a_format format,
                             struct nib_blackwell_launch *launch);

/* ---- y = x w^T ---- */

/* Passed by value to the kernels. */
struct nib_sm120a_linear_args {
    const uint8_t                    *x_codes, *x_scales;
    const float                      *row_scale;
    int64_t                          x_codes_stride, x_scales_stride; /* bytes */
    const uint8_t                    *w_codes[2], *w_scales[2]; /* of each part */
    void                             *y;
    int64_t                          y_stride;  /* elements */
    const float                      *alphas[2]; /* [n_experts], or NULL */
    const struct nib_blackwell_group *groups;   /* or NULL: all rows multiply one matrix */
    const int32_t                    *n_groups, *pair;
    float                            alpha[2], limit;
    int32_t                          y_f32, n_parts, n_rows, n_out, n_in, top_k;
    int32_t                          n_units, w_units; /* of the product: both parts'; of one matrix */
    int32_t                          n_k_tiles, slice_k_tiles, n_out_tiles, n_row_tiles;
};

/* y[t][o] = row_scale * alpha * sum_k x[t][k] w[o][k]. With two parts y is silu(min(gate, limit)) * clamp(up, +-limit)
 * of the two sums, without clamps if limit is 0; not finite where either is not.
 *
 * Row t is row t of x, or with pairs row pair[t] / top_k: an expert's rows are taken from where they stand. For experts
 * (n_experts > 0) rows stand sorted by expert, in groups of up to tile_rows that are listed on the device; w is a stack
 * of n_experts packed matrices.
 *
 * A row's result does not depend on the other rows, nor on which kernel makes it. */
struct nib_sm120a_linear {
    int32_t        n_rows, n_out, n_in; /* n_in a multiple of 32 */
    const uint8_t *x_codes, *x_scales;  /* 16-byte and 4-byte aligned */
    int64_t        x_codes_stride, x_scales_stride; /* bytes, multiples of 16 and 4 */
    const float   *row_scale;
    const uint8_t *w_codes[2], *w_scales[2]; /* packed, 16-byte aligned; the second with two parts */
    int32_t        n_parts;
    float          alpha[2], limit;
    void          *y;
    int64_t        y_stride;
    bool           y_f32;
    int32_t        tile_rows; /* as nib_sm120a_tile_rows() has it; 0: chosen by it (experts: as the groups were made) */
    int32_t        n_experts;
    const struct nib_blackwell_group *groups;
    const int32_t                 *n_groups;
    const int32_t                 *pair;
    int32_t                        top_k;
    const float                   *alphas[2]; /* of each part, [n_experts] */
};

/* False, with a sentence in `error`, for what the kernels do not take. n_rows and n_out of at least 1. */
bool nib_sm120a_linear_plan(const struct nib_sm120a_linear *p, struct nib_sm120a_linear_args *args,
                            struct nib_blackwell_launch *launch, char *error, size_t error_bytes);

/* The same for FP8 rows and FP8 or MXFP4 weights: no row scales (row_scale NULL), tile_rows 8, 16 or 64; codes of rows are
 * bytes, their scales one byte for 128 values. */
#define NIB_SM120A_MX_ROWS 64 /* of a tile of many rows */
#define NIB_SM120A_MX_STAGES 4
#define NIB_SM120A_FP8_STAGE 25088 /* bytes */
#define NIB_SM120A_MXFP4_STAGE 16896
bool nib_sm120a_mx_plan(const struct nib_sm120a_linear *p, enum nib_sm120a_format format,
                        struct nib_sm120a_linear_args *args, struct nib_blackwell_launch *launch, char *error,
                        size_t error_bytes);
int32_t nib_sm120a_mx_tile_rows(int32_t n_rows, int32_t n_experts);

/* Rows of a tile (8, 16, 32 or 128) for n_rows rows of one matrix, or spread over n_experts. */
int32_t nib_sm120a_tile_rows(int32_t n_rows, int32_t n_experts);
/* Most groups that n_rows rows of n_experts experts can make. */
int32_t nib_sm120a_groups_most(int32_t n_rows, int32_t n_experts, int32_t tile_rows);

/* ---- Index scores ---- */

/* nib_sm120a_index_fp4: struct nib_blackwell_index_args, no dynamic shared memory. */
#define NIB_SM120A_INDEX_ENTRIES 128 /* of a tile */
#define NIB_SM120A_INDEX_THREADS 128
#define NIB_SM120A_INDEX_HEADS 128 /* at most */

/* ---- Attention ---- */

#define NIB_SM120A_SPAN 32          /* attended rows that are summed by themselves */
#define NIB_SM120A_ATTEND_HEADS 32  /* of a block of 256 threads */
#define NIB_SM120A_PART_FLOATS 514  /* of a head's sum over a span: channels, maximum, total */
#define NIB_SM120A_ATTEND_BF16 93312 /* bytes of shared memory, by the format of rows */
#define NIB_SM120A_ATTEND_FP8 96896
#define NIB_SM120A_ATTEND_NVFP4 89216

/* Passed by value, behind the op's arguments and rows. nib_sm120a_attend_FORMAT, a block for 32 heads of a row, grid (rows
 * * n_groups), makes rows of o. nib_sm120a_attend_span_FORMAT, grid (n_spans, n_groups, rows), makes the sums of spans
 * first .. first + n_spans - 1; nib_sm120a_attend_fold, grid (heads, rows) of 128 threads and no dynamic shared memory, adds
 * them to the sum so far, or to the sink if first is 0, and makes rows of o behind a row's last span. Both ways give
 * the same bits. */
struct nib_sm120a_spans {
    float  *part;      /* [rows][n_spans + 1][n_heads][NIB_SM120A_PART_FLOATS]; the last is the sum so far */
    int32_t first_row; /* of the op, that part's row 0 is */
    int32_t first, n_spans, n_heads, n_groups;
};

struct nib_stream;
/* The ops, which leave to any/ what their kernels do not take. A row's bits do not depend on the other rows. */
enum nib_status nib_cuda_sm120a_attend(struct nib_stream *s, const struct nib_attend_args *a);
enum nib_status nib_cuda_sm120a_index_select(struct nib_stream *s, const struct nib_index_select_args *a);
/* Scores of rows [first, first + n), `stride` apart, for up to n_entries entries. */
enum nib_status nib_sm120a_index_scores(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first,
                                        int32_t n, int64_t n_entries, float *score, int64_t stride);

#ifdef __cplusplus
}
#endif
#endif
