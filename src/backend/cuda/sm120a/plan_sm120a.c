/* Layouts and launches of the sm_120a kernels, as pure functions. */
#include "backend/cuda/sm120a/sm120a.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* As in linear_sm120a.cu. */
enum { THREADS = 256, STAGES = 5, UNITS = 16, OUT_BYTES = UNITS * (NIB_SM120A_UNIT_BYTES + NIB_SM120A_UNIT_SCALES) };

static int64_t tiles(int64_t n, int64_t tile)
{
    return (n + tile - 1) / tile;
}

int64_t nib_sm120a_units(int64_t n_out)
{
    return 2 * tiles(n_out, 16);
}

int64_t nib_sm120a_k_tiles(int64_t n_in)
{
    return tiles(n_in, NIB_SM120A_K_TILE);
}

int64_t nib_sm120a_code_bytes(int64_t n_out, int64_t n_in)
{
    return nib_sm120a_units(n_out) * nib_sm120a_k_tiles(n_in) * NIB_SM120A_UNIT_BYTES;
}

int64_t nib_sm120a_scale_bytes(int64_t n_out, int64_t n_in)
{
    return nib_sm120a_units(n_out) * nib_sm120a_k_tiles(n_in) * NIB_SM120A_UNIT_SCALES;
}

int64_t nib_sm120a_mx_code_bytes(int64_t n_out, int64_t n_in, enum nib_sm120a_format format)
{
    return nib_sm120a_units(n_out) * nib_sm120a_k_tiles(n_in) *
           (format == NIB_SM120A_FP8 ? NIB_SM120A_FP8_UNIT : NIB_SM120A_UNIT_BYTES);
}

int64_t nib_sm120a_mx_scale_bytes(int64_t n_out, int64_t n_in)
{
    return nib_sm120a_units(n_out) * nib_sm120a_k_tiles(n_in) * NIB_SM120A_MX_SCALES;
}

void nib_sm120a_mx_pack_plan(struct nib_sm120a_pack_args *args, enum nib_sm120a_format format,
                             struct nib_blackwell_launch *launch)
{
    args->n_k_tiles = (int32_t)nib_sm120a_k_tiles(args->n_in);
    args->n_pieces = nib_sm120a_mx_code_bytes(args->n_out, args->n_in, format) / 16;
    *launch = (struct nib_blackwell_launch){format == NIB_SM120A_FP8 ? "nib_sm120a_pack_fp8" : "nib_sm120a_pack_mxfp4",
                                            (uint32_t)tiles(args->n_pieces, THREADS), THREADS, 0, 1};
}

void nib_sm120a_pack_plan(struct nib_sm120a_pack_args *args, struct nib_blackwell_launch *launch)
{
    args->n_k_tiles = (int32_t)nib_sm120a_k_tiles(args->n_in);
    args->n_pieces = nib_sm120a_code_bytes(args->n_out, args->n_in) / 16;
    *launch = (struct nib_blackwell_launch){"nib_sm120a_pack", (uint32_t)tiles(args->n_pieces, THREADS), THREADS, 0, 1};
}

int32_t nib_sm120a_tile_rows(int32_t n_rows, int32_t n_experts)
{
    /* Rows that an expert gets if they fall evenly. A tile of 128 makes full use of the tensor cores; below 64 rows two
     * tiles of 32 waste less; up to 16 the kernels that stream weights are bound by bytes alone. */
    int64_t each = n_experts ? tiles(n_rows, n_experts) : n_rows;
    return each <= 8 ? 8 : each <= 16 ? 16 : each <= 64 ? 32 : 128;
}

int32_t nib_sm120a_groups_most(int32_t n_rows, int32_t n_experts, int32_t tile_rows)
{
    /* Every expert with rows leaves at most one tile unfilled. */
    return n_rows / tile_rows + (n_rows < n_experts ? n_rows : n_experts);
}

static bool refuse(char *error, size_t bytes, const char *what, int64_t found, const char *wanted)
{
    (void)snprintf(error, bytes, "sm_120a linear: %s is %" PRId64 ": wants %s", what, found, wanted);
    return false;
}

/* What all products ask for. row_bytes, row_scales: bytes of a row of x. */
static bool check_shape(const struct nib_sm120a_linear *p, int64_t row_bytes, int64_t row_scales, char *error,
                        size_t bytes)
{
    if (p->n_in < 32 || p->n_in % 32 != 0)
        return refuse(error, bytes, "n_in", p->n_in, "a multiple of 32");
    if (p->x_codes_stride % 16 != 0 || p->x_codes_stride < row_bytes)
        return refuse(error, bytes, "the stride of the rows' codes", p->x_codes_stride,
                      "a multiple of 16, at least a row");
    if (p->x_scales_stride < row_scales)
        return refuse(error, bytes, "the stride of the rows' scales", p->x_scales_stride, "at least a row");
    if (p->n_rows < 1 || p->n_out < 1)
        return refuse(error, bytes, "the smaller of n_rows and n_out", p->n_rows < p->n_out ? p->n_rows : p->n_out,
                      "at least 1");
    if (p->n_parts < 1 || p->n_parts > 2)
        return refuse(error, bytes, "n_parts", p->n_parts, "1 or 2");
    if (p->n_experts && (!p->groups || !p->n_groups || !p->tile_rows))
        return refuse(error, bytes, "n_experts", p->n_experts, "groups with it, and their tile_rows");
    if (p->pair && p->top_k < 1)
        return refuse(error, bytes, "top_k", p->top_k, "at least 1, as there are pairs");
    return true;
}

static bool check(const struct nib_sm120a_linear *p, char *error, size_t bytes)
{
    if (p->x_scales_stride % 4 != 0)
        return refuse(error, bytes, "the stride of the rows' scales", p->x_scales_stride, "a multiple of 4");
    if (p->tile_rows && p->tile_rows != 8 && p->tile_rows != 16 && p->tile_rows != 32 && p->tile_rows != 128)
        return refuse(error, bytes, "tile_rows", p->tile_rows, "8, 16, 32 or 128");
    return check_shape(p, p->n_in / 2, p->n_in / 16, error, bytes);
}

/* Arguments for tiles of `rows` rows by `units` units. */
static bool fill_args(const struct nib_sm120a_linear *p, int32_t rows, int32_t tile_units,
                      struct nib_sm120a_linear_args *args, struct nib_blackwell_launch *launch, char *error,
                      size_t error_bytes)
{
    /* Of a second part those units that hold rows: what pads a matrix to pairs is not taken. */
    int64_t w_units = nib_sm120a_units(p->n_out), units = p->n_parts == 2 ? 2 * tiles(p->n_out, 8) : w_units, k_tiles = nib_sm120a_k_tiles(p->n_in);
    int64_t row_tiles = p->n_experts ? nib_sm120a_groups_most(p->n_rows, p->n_experts, rows) : tiles(p->n_rows, rows);
    int64_t out_tiles = tiles(units, tile_units), grid = row_tiles * out_tiles;
    if (grid > INT32_MAX)
        return refuse(error, error_bytes, "the number of tiles", grid, "less than 2^31");
    *args = (struct nib_sm120a_linear_args){
        .x_codes = p->x_codes,
        .x_scales = p->x_scales,
        .row_scale = p->row_scale,
        .x_codes_stride = p->x_codes_stride,
        .x_scales_stride = p->x_scales_stride,
        .w_codes = {p->w_codes[0], p->w_codes[1]},
        .w_scales = {p->w_scales[0], p->w_scales[1]},
        .y = p->y,
        .y_stride = p->y_stride,
        .alphas = {p->alphas[0], p->alphas[1]},
        .groups = p->groups,
        .n_groups = p->n_groups,
        .pair = p->pair,
        .alpha = {p->alpha[0], p->alpha[1]},
        .limit = p->limit,
        .y_f32 = p->y_f32,
        .n_parts = p->n_parts,
        .n_rows = p->n_rows,
        .n_out = p->n_out,
        .n_in = p->n_in,
        .top_k = p->top_k,
        .n_units = (int32_t)units,
        .w_units = (int32_t)w_units,
        .n_k_tiles = (int32_t)k_tiles,
        .slice_k_tiles = (int32_t)tiles(k_tiles, NIB_SM120A_SLICES),
        .n_out_tiles = (int32_t)out_tiles,
        .n_row_tiles = (int32_t)row_tiles,
    };
    *launch = (struct nib_blackwell_launch){.grid = (uint32_t)grid, .block = THREADS, .cluster = 1};
    return true;
}

bool nib_sm120a_linear_plan(const struct nib_sm120a_linear *p, struct nib_sm120a_linear_args *args,
                            struct nib_blackwell_launch *launch, char *error, size_t error_bytes)
{
    if (!check(p, error, error_bytes))
        return false;
    int32_t rows = p->tile_rows ? p->tile_rows : nib_sm120a_tile_rows(p->n_rows, 0);
    if (!fill_args(p, rows, rows <= 16 ? 2 : UNITS, args, launch, error, error_bytes))
        return false;
    const char *kernel[] = {"nib_sm120a_decode_8", "nib_sm120a_decode_16", "nib_sm120a_linear_32",
                            "nib_sm120a_linear_128"};
    launch->kernel = kernel[rows == 8 ? 0 : rows == 16 ? 1 : rows == 32 ? 2 : 3];
    if (rows > 16)
        launch->shared_bytes =
            (uint32_t)(STAGES * (OUT_BYTES + rows * (NIB_SM120A_K_TILE / 2 + NIB_SM120A_K_TILE / 16)));
    return true;
}

/* ---- FP8 and MXFP4 ---- */

int32_t nib_sm120a_mx_tile_rows(int32_t n_rows, int32_t n_experts)
{
    int64_t each = n_experts ? tiles(n_rows, n_experts) : n_rows;
    return each <= 8 ? 8 : each <= 16 ? 16 : NIB_SM120A_MX_ROWS;
}

bool nib_sm120a_mx_plan(const struct nib_sm120a_linear *p, enum nib_sm120a_format format,
                        struct nib_sm120a_linear_args *args, struct nib_blackwell_launch *launch, char *error,
                        size_t error_bytes)
{
    static const char *const kernel[2][3] = {{"nib_sm120a_fp8_8", "nib_sm120a_fp8_16", "nib_sm120a_fp8_64"},
                                             {"nib_sm120a_mxfp4_8", "nib_sm120a_mxfp4_16", "nib_sm120a_mxfp4_64"}};
    int32_t rows = p->tile_rows ? p->tile_rows : nib_sm120a_mx_tile_rows(p->n_rows, 0);
    if (rows != 8 && rows != 16 && rows != NIB_SM120A_MX_ROWS)
        return refuse(error, error_bytes, "tile_rows", rows, "8, 16 or 64");
    if (!check_shape(p, p->n_in, nib_sm120a_k_tiles(p->n_in), error, error_bytes) ||
        !fill_args(p, rows, rows <= 16 ? 2 : UNITS, args, launch, error, error_bytes))
        return false;
    launch->kernel = kernel[format == NIB_SM120A_MXFP4][rows == 8 ? 0 : rows == 16 ? 1 : 2];
    if (rows > 16)
        launch->shared_bytes =
            NIB_SM120A_MX_STAGES * (format == NIB_SM120A_FP8 ? NIB_SM120A_FP8_STAGE : NIB_SM120A_MXFP4_STAGE);
    return true;
}
