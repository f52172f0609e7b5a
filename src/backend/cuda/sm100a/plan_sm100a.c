/* Layouts and launches of the sm_100a kernels, as pure functions. */
#include "backend/cuda/sm100a/sm100a.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TYPE_U8 = 0, TYPE_U64 = 4, TYPE_16U4_ALIGN16B = 14, SWIZZLE_NONE = 0, SWIZZLE_128B = 3, L2_256B = 3 };

/* Operands of kind::mxf8f6f4. */
enum { TYPE_E4M3 = 0, TYPE_E2M1 = 5 };

/* As in linear_sm100a.cu. */
enum { ROWS_OF_CTA = 128, OUT_TILE_ONE = 128, OUT_TILE_PAIR = 192, THREADS = 192, SLACK = 1024 };

static int64_t tiles(int64_t n, int64_t tile)
{
    return (n + tile - 1) / tile;
}

int64_t nib_sm100a_scale_bytes(int64_t rows, int64_t n_in)
{
    return tiles(rows, 128) * tiles(n_in, NIB_SM100A_K_TILE) * 2048;
}

int64_t nib_sm100a_mx_scale_bytes(int64_t rows, int64_t n_in)
{
    return tiles(rows, 128) * tiles(n_in, NIB_SM100A_MX_K_TILE) * 512;
}

int64_t nib_sm100a_scale_offset(int64_t row, int64_t block, int64_t n_in)
{
    int64_t band = tiles(n_in, NIB_SM100A_K_TILE) * 2048;
    return row / 128 * band + block / 4 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

int32_t nib_sm100a_tile_rows(int32_t n_ctas)
{
    return ROWS_OF_CTA * n_ctas;
}

int32_t nib_sm100a_groups_most(int32_t n_rows, int32_t n_experts, int32_t tile_rows)
{
    /* Every expert with rows leaves at most one tile unfilled. */
    int32_t partial = n_rows < n_experts ? n_rows : n_experts;
    return n_rows / tile_rows + partial;
}

/* Boxes of 128 bytes of shared memory a row: 256 values of 4 bits, 128 of 8, or 128 of 4 bits that the copy spreads to
 * 8 bytes of every 16. */
static bool encode_codes(nib_sm100a_encode *encode, struct nib_sm100a_map *map, const void *codes, int64_t rows,
                         int64_t row_bytes, int64_t stride, uint32_t box_rows, bool spread)
{
    uint64_t dim[2] = {(uint64_t)row_bytes * (spread ? 2 : 1), (uint64_t)rows}, step[1] = {(uint64_t)stride};
    uint32_t box[2] = {128, box_rows}, one[2] = {1, 1};
    return encode(map, spread ? TYPE_16U4_ALIGN16B : TYPE_U8, 2, (void *)(uintptr_t)codes, dim, step, box, one, 0,
                  SWIZZLE_128B, L2_256B, 0) == 0;
}

/* The scales of one stage and 128 rows are on end, 2048 or 512 bytes: a box of so many words, one band high. */
static bool encode_scales(nib_sm100a_encode *encode, struct nib_sm100a_map *map, const uint8_t *scales, int64_t bands,
                          int64_t k_tiles, uint32_t words_of_tile)
{
    uint64_t words = (uint64_t)k_tiles * words_of_tile;
    uint64_t dim[2] = {words, (uint64_t)bands}, step[1] = {words * 8};
    uint32_t box[2] = {words_of_tile, 1}, one[2] = {1, 1};
    return encode(map, TYPE_U64, 2, (void *)(uintptr_t)scales, dim, step, box, one, 0, SWIZZLE_NONE, L2_256B, 0) == 0;
}

static bool refuse(char *error, size_t bytes, const char *what, int64_t found, const char *wanted)
{
    (void)snprintf(error, bytes, "sm_100a: %s is %" PRId64 ": wants %s", what, found, wanted);
    return false;
}

static bool check(const struct nib_sm100a_linear *p, int64_t x_row_bytes, char *error, size_t error_bytes)
{
    int32_t unit = p->format == NIB_SM100A_MXFP4 ? 128 : 32;
    if (p->n_in < unit || p->n_in % unit != 0)
        return refuse(error, error_bytes, "n_in", p->n_in, unit == 32 ? "a multiple of 32" : "a multiple of 128");
    if (p->x_stride % 16 != 0 || p->x_stride < x_row_bytes)
        return refuse(error, error_bytes, "the stride of the rows' codes", p->x_stride,
                      "a multiple of 16, at least a row's bytes");
    if (p->n_rows < 1 || p->n_out < 1)
        return refuse(error, error_bytes, "the smaller of n_rows and n_out",
                      p->n_rows < p->n_out ? p->n_rows : p->n_out, "at least 1");
    if (p->n_experts && (!p->groups || !p->n_groups))
        return refuse(error, error_bytes, "n_experts", p->n_experts, "groups with it");
    return true;
}

bool nib_sm100a_linear_plan(const struct nib_sm100a_linear *p, nib_sm100a_encode *encode,
                            struct nib_sm100a_linear_args *args, struct nib_blackwell_launch *launch, char *error,
                            size_t error_bytes)
{
    static const char *const kernels[3][2] = {{"nib_sm100a_linear_one", "nib_sm100a_linear_pair"},
                                              {"nib_sm100a_fp8_one", "nib_sm100a_fp8_pair"},
                                              {"nib_sm100a_mxfp4_one", "nib_sm100a_mxfp4_pair"}};
    bool    mx = p->format != NIB_SM100A_NVFP4, spread = p->format == NIB_SM100A_MXFP4;
    int64_t x_row_bytes = mx ? p->n_in : p->n_in / 2, w_row_bytes = p->format == NIB_SM100A_FP8 ? p->n_in : p->n_in / 2;
    if (!check(p, x_row_bytes, error, error_bytes))
        return false;
    /* A pair shares each tile of weights between its halves: worth it once there are rows for both. */
    int     n_ctas = p->n_ctas ? p->n_ctas : p->n_experts == 0 && p->n_rows > ROWS_OF_CTA ? 2 : 1;
    int64_t n_stack = p->n_experts ? p->n_experts : 1, w_bands = tiles(p->n_out, 128);
    int64_t k_tiles = tiles(p->n_in, mx ? NIB_SM100A_MX_K_TILE : NIB_SM100A_K_TILE);
    int     out_tile = n_ctas == 2 ? OUT_TILE_PAIR : OUT_TILE_ONE, stages = (n_ctas == 2 ? 6 : 5) + mx;
    int64_t bands = tiles(out_tile + (out_tile % 128 ? 64 : 0), 128);
    int64_t row_tiles = p->n_experts ? nib_sm100a_groups_most(p->n_rows, p->n_experts, nib_sm100a_tile_rows(n_ctas))
                                     : tiles(p->n_rows, ROWS_OF_CTA * n_ctas);
    int64_t x_bands = p->n_experts ? row_tiles * n_ctas : tiles(p->n_rows, 128), band_bytes = mx ? 512 : 2048;
    int64_t stage_bytes = tiles(128 * (ROWS_OF_CTA + out_tile / n_ctas) + band_bytes * (1 + bands), 1024) * 1024;

    memset(args, 0, sizeof *args);
    if (!encode_codes(encode, &args->x, p->x_codes, p->n_rows, x_row_bytes, p->x_stride, ROWS_OF_CTA, false) ||
        !encode_codes(encode, &args->w, p->w_codes, n_stack * p->n_out, w_row_bytes, w_row_bytes,
                      (uint32_t)(out_tile / n_ctas), spread) ||
        !encode_scales(encode, &args->x_scales, p->x_scales, x_bands, k_tiles, (uint32_t)band_bytes / 8) ||
        !encode_scales(encode, &args->w_scales, p->w_scales, n_stack * w_bands, k_tiles, (uint32_t)band_bytes / 8)) {
        (void)snprintf(error, error_bytes,
                       "sm_100a linear: a tensor map of [%" PRId32 ", %" PRId32 "] x [%" PRId32 "] was refused",
                       p->n_rows, p->n_in, p->n_out);
        return false;
    }
    args->row_scale = p->row_scale;
    args->y = p->y;
    args->y_stride = p->y_stride;
    args->alpha = p->alpha;
    args->y_f32 = p->y_f32;
    args->n_rows = p->n_rows;
    args->n_out = p->n_out;
    args->n_k_tiles = (int32_t)k_tiles;
    args->groups = p->groups;
    args->n_groups = p->n_groups;
    args->alphas = p->alphas;
    args->n_bands = (int32_t)w_bands;
    args->n_row_tiles = (int32_t)row_tiles;
    args->n_out_tiles = (int32_t)tiles(p->n_out, out_tile);

    int64_t work = (int64_t)args->n_row_tiles * args->n_out_tiles,
            places = p->n_sms / n_ctas > 0 ? p->n_sms / n_ctas : 1;
    launch->kernel = kernels[p->format][n_ctas - 1];
    launch->cluster = (uint32_t)n_ctas;
    launch->grid = (uint32_t)((work < places ? work : places) * n_ctas);
    launch->block = THREADS;
    launch->shared_bytes = (uint32_t)(stages * stage_bytes + SLACK);
    return true;
}

/* ---- Experts ---- */

/* As in experts_sm100a.cu: bytes of a stage and how many there are. */
static uint32_t experts_shared(const struct nib_sm100a_experts *p)
{
    int64_t band = p->format != NIB_SM100A_NVFP4 ? 512 : 2048;
    int64_t stage = tiles(p->n_parts * (128 * 128 + band) + p->columns * 128 + band, 1024) * 1024;
    int64_t stages = p->n_parts == 2 ? (p->columns == 96 ? 4 : 5) : (p->columns == 96 ? 6 : 8);
    return (uint32_t)(stages * stage + SLACK);
}

bool nib_sm100a_experts_plan(const struct nib_sm100a_experts *p, nib_sm100a_encode *encode,
                             struct nib_sm100a_experts_args *args, struct nib_blackwell_launch *launch, char *error,
                             size_t error_bytes)
{
    static const char *const kernels[2][2][2] = {
        {{"nib_sm100a_experts_out_16", "nib_sm100a_experts_out_96"},
         {"nib_sm100a_experts_in_16", "nib_sm100a_experts_in_96"}},
        {{"nib_sm100a_mx_out_16", "nib_sm100a_mx_out_96"}, {"nib_sm100a_mx_in_16", "nib_sm100a_mx_in_96"}}};
    bool    mx = p->format != NIB_SM100A_NVFP4, spread = p->format == NIB_SM100A_MXFP4;
    int64_t x_bytes = mx ? p->n_in : p->n_in / 2, w_bytes = p->format == NIB_SM100A_FP8 ? p->n_in : p->n_in / 2;
    int64_t band_bytes = mx ? 512 : 2048;
    int64_t k_tiles = tiles(p->n_in, mx ? NIB_SM100A_MX_K_TILE : NIB_SM100A_K_TILE), bands = tiles(p->n_out, 128);
    int32_t groups = nib_sm100a_groups_most(p->n_pairs, p->n_experts, p->columns);
    int32_t unit = spread ? 128 : 32;
    if (p->n_in < unit || p->n_in % unit != 0)
        return refuse(error, error_bytes, "n_in of experts", p->n_in,
                      unit == 32 ? "a multiple of 32" : "a multiple of 128");
    if (p->n_out < 32 || p->n_out % 32 != 0)
        return refuse(error, error_bytes, "n_out of experts", p->n_out, "a multiple of 32");
    if (p->x_stride % 16 != 0 || p->x_stride < x_bytes)
        return refuse(error, error_bytes, "the stride of the rows' codes", p->x_stride,
                      "a multiple of 16, at least a row's bytes");
    if (p->n_pairs < 1)
        return refuse(error, error_bytes, "n_pairs", p->n_pairs, "at least 1");
    *args = p->rest;
    bool ok = encode_codes(encode, &args->x, p->x_codes, p->n_pairs, x_bytes, p->x_stride, (uint32_t)p->columns,
                           false) &&
              encode_scales(encode, &args->x_scales, p->x_scales, groups, k_tiles, (uint32_t)band_bytes / 8);
    for (int32_t i = 0; i < p->n_parts && ok; i++)
        ok = encode_codes(encode, &args->w[i], p->w_codes[i], (int64_t)p->n_experts * p->n_out, w_bytes,
                          w_bytes, 128, spread) &&
             encode_scales(encode, &args->w_scales[i], p->w_scales[i], p->n_experts * bands, k_tiles,
                           (uint32_t)band_bytes / 8);
    if (!ok) {
        (void)snprintf(error, error_bytes,
                       "sm_100a experts: a tensor map of [%" PRId32 ", %" PRId32 "] x [%" PRId32 "] was refused",
                       p->n_pairs, p->n_in, p->n_out);
        return false;
    }
    args->w_type = spread ? TYPE_E2M1 : TYPE_E4M3;
    args->n_pairs = p->n_pairs;
    args->n_rows = p->n_rows;
    args->n_out = p->n_out;
    args->n_bands = (int32_t)bands;
    args->n_k_tiles = (int32_t)k_tiles;
    int64_t work = groups * bands, places = p->n_sms > 0 ? p->n_sms : 1;
    *launch = (struct nib_blackwell_launch){kernels[mx][p->n_parts - 1][p->columns == 96],
                                            (uint32_t)(work < places ? work : places), THREADS, experts_shared(p), 1};
    return true;
}

/* ---- Plain rows times BF16 weights ---- */

/* Blocks that share a tile's k: as many as leave most of a card's 148 multiprocessors one, with two stages each. */
static int64_t spans_of(int64_t n_tiles, int64_t k_tiles)
{
    int64_t spans = NIB_SM100A_PLAIN_SPANS;
    while (spans > 1 && (n_tiles * spans > 148 || k_tiles < 2 * spans))
        spans /= 2;
    return spans;
}

bool nib_sm100a_plain_plan(const struct nib_sm100a_plain *p, nib_sm100a_encode *encode,
                           struct nib_sm100a_plain_args *args, struct nib_blackwell_launch *launch,
                           uint32_t *n_row_tiles, char *error, size_t error_bytes)
{
    static const char *const kernels[2][2][2] = {
        {{"nib_sm100a_plain_few_bf16", "nib_sm100a_plain_few_f32"},
         {"nib_sm100a_plain_many_bf16", "nib_sm100a_plain_many_f32"}},
        {{"nib_sm100a_plain_fp8_few_bf16", "nib_sm100a_plain_fp8_few_f32"},
         {"nib_sm100a_plain_fp8_many_bf16", "nib_sm100a_plain_fp8_many_f32"}}};
    static const int32_t     rows_of[2][2] = {{NIB_SM100A_PLAIN_FEW_BF16, NIB_SM100A_PLAIN_FEW_F32},
                                              {NIB_SM100A_PLAIN_MANY_BF16, NIB_SM100A_PLAIN_MANY_F32}};
    int64_t align = p->x_f32 ? 4 : 8;
    int32_t unit = p->w_fp8 ? 16 : 8; /* rows of weights begin at multiples of 16 bytes */
    if (p->n_in < unit || p->n_in % unit != 0)
        return refuse(error, error_bytes, "n_in of plain rows", p->n_in,
                      p->w_fp8 ? "a multiple of 16" : "a multiple of 8");
    if (p->x_stride % align != 0 || p->x_stride < (int64_t)p->n_groups * p->n_in || (uintptr_t)p->x % 16 != 0)
        return refuse(error, error_bytes, "the stride of plain rows", p->x_stride,
                      "16-byte aligned rows, none shorter than what is multiplied");
    if (p->n_rows < 1 || p->n_out < 1 || p->n_groups < 1)
        return refuse(error, error_bytes, "the smallest of n_rows, n_out and n_groups",
                      p->n_rows < p->n_out ? p->n_rows : p->n_out < p->n_groups ? p->n_out : p->n_groups, "at least 1");
    bool    many = p->n_rows > rows_of[0][p->x_f32];
    int32_t rows = rows_of[many][p->x_f32];
    int64_t out_tiles = tiles(p->n_out, NIB_SM100A_PLAIN_OUTS), k_tiles = tiles(p->n_in, NIB_SM100A_PLAIN_K_TILE);
    int64_t spans = spans_of(out_tiles * p->n_groups, k_tiles), w_row = (p->w_fp8 ? 1 : 2) * (int64_t)p->n_in;
    int32_t stages = !p->w_fp8 ? NIB_SM100A_PLAIN_STAGES
                     : many    ? NIB_SM100A_PLAIN_FP8_MANY_STAGES
                               : NIB_SM100A_PLAIN_FP8_FEW_STAGES;
    memset(args, 0, sizeof *args);
    if (!encode_codes(encode, &args->w, p->w, (int64_t)p->n_groups * p->n_out, w_row, w_row, NIB_SM100A_PLAIN_OUTS,
                      false)) {
        (void)snprintf(error, error_bytes, "sm_100a plain rows: a tensor map of %" PRId32 " x [%" PRId32 ", %" PRId32
                       "] was refused", p->n_groups, p->n_out, p->n_in);
        return false;
    }
    args->x = p->x;
    args->y = p->y;
    args->x_stride = p->x_stride;
    args->y_stride = p->y_stride;
    args->y_f32 = p->y_f32;
    args->n_rows = p->n_rows;
    args->n_out = p->n_out;
    args->n_in = p->n_in;
    args->n_k_tiles = (int32_t)k_tiles;
    args->n_out_tiles = (int32_t)out_tiles;
    args->w_scales = p->w_scales;
    args->n_weights = p->n_groups * p->n_out;
    args->n_scale_cols = (int32_t)tiles(p->n_in, 128);
    *n_row_tiles = (uint32_t)tiles(p->n_rows, rows);
    *launch = (struct nib_blackwell_launch){
        kernels[p->w_fp8][many][p->x_f32], (uint32_t)(out_tiles * p->n_groups * spans), NIB_SM100A_PLAIN_THREADS,
        (uint32_t)(stages * (NIB_SM100A_PLAIN_OUTS + rows * (p->x_f32 ? 3 : 1)) * 128 + SLACK +
                   (p->w_fp8 ? NIB_SM100A_PLAIN_FP8_RAW * NIB_SM100A_PLAIN_FP8_RAW_BYTES : 0)),
        (uint32_t)spans};
    return true;
}
