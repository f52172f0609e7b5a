/* Shared by the products of sm_120a: which rows a tile takes, what their sums are multiplied by, what is stored. */
#ifndef NIB_PARTS_SM120A_CUH
#define NIB_PARTS_SM120A_CUH

#include "backend/cuda/device/factors.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/ptx.cuh"
#include "backend/cuda/sm120a/mma_sm120a.cuh"
#include "backend/cuda/sm120a/sm120a.h"
#include "backend/cuda/device/swiglu.cuh"

constexpr int kThreads = 256, kWarps = 8;
constexpr int kUnit = NIB_SM120A_UNIT_BYTES, kUnitScales = NIB_SM120A_UNIT_SCALES;
constexpr int kRowBytes = NIB_SM120A_K_TILE / 2; /* of a row's codes in one tile of k */
constexpr int kRowScales = NIB_SM120A_K_TILE / 16;

/* ---- Tiles ---- */

struct nib_tile {
    int32_t row, n_rows; /* of the product */
    int32_t unit;        /* first of the product's, an even number */
    int32_t expert;
};

/* Unit i of a tile: which part it is of, and its number in that part's stack of matrices. Two parts take turns. */
struct nib_unit {
    int     part;
    int64_t at;
};

NIB_DEVICE struct nib_unit nib_unit_of(const struct nib_sm120a_linear_args &a, const struct nib_tile &t, int i)
{
    int32_t unit = t.unit + i, two = a.n_parts == 2;
    return {two ? unit & 1 : 0, (int64_t)t.expert * a.w_units + (two ? unit >> 1 : unit)};
}

/* Tile `block` of the launch; false: there are fewer. Rows vary fastest, so that neighbours share weights. */
NIB_DEVICE bool nib_tile_of(const struct nib_sm120a_linear_args &a, int32_t block, int rows, int units,
                            struct nib_tile *t)
{
    int32_t n_row_tiles = a.groups ? *a.n_groups : a.n_row_tiles;
    if (block >= n_row_tiles * a.n_out_tiles)
        return false;
    int32_t i = block % n_row_tiles;
    t->unit = block / n_row_tiles * units;
    t->row = i * rows;
    t->n_rows = min(rows, a.n_rows - t->row);
    t->expert = 0;
    if (a.groups) {
        struct nib_blackwell_group g = a.groups[i];
        t->row = g.row;
        t->n_rows = g.n_rows;
        t->expert = g.expert;
    }
    return true;
}

/* Row of x that row t of the product is. */
NIB_DEVICE int64_t nib_source_row(const struct nib_sm120a_linear_args &a, int32_t t)
{
    return a.pair ? a.pair[t] / a.top_k : t;
}

/* ---- Scales of finished sums ---- */

NIB_DEVICE float nib_alpha_of(const struct nib_sm120a_linear_args &a, const struct nib_tile &t, int part)
{
    return a.alphas[part] ? a.alphas[part][t.expert] : a.alpha[part];
}

/* Factors of both parts for row i of the tile. */
NIB_DEVICE float4 nib_factors_of(const struct nib_sm120a_linear_args &a, const struct nib_tile &t, int32_t i)
{
    if (i >= t.n_rows)
        return make_float4(0, 0, 0, 0);
    float  scale = a.row_scale[nib_source_row(a, t.row + i)];
    float2 gate = nib_factors(scale, nib_alpha_of(a, t, 0)), up = gate;
    if (a.n_parts == 2)
        up = nib_factors(scale, nib_alpha_of(a, t, 1));
    return make_float4(gate.x, gate.y, up.x, up.y);
}

/* ---- Results ---- */

/* As nib_pack_bf16x2 rounds: NaN has one code, whichever kernel writes it. */
NIB_DEVICE uint16_t nib_bf16_of(float v)
{
    return (uint16_t)nib_pack_bf16x2(v, 0.0f);
}

/* y[row][out .. out+7] as far as there are outputs. */
NIB_DEVICE void nib_store8(const struct nib_sm120a_linear_args &a, int64_t row, int32_t out, const float v[8])
{
    int64_t at = row * a.y_stride + out;
    bool    wide = a.y_stride % 8 == 0 && (uintptr_t)a.y % 16 == 0 && out + 8 <= a.n_out;
    if (wide && a.y_f32) {
        ((float4 *)((float *)a.y + at))[0] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)((float *)a.y + at))[1] = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
    if (wide) {
        *(uint4 *)((uint16_t *)a.y + at) = make_uint4(nib_pack_bf16x2(v[0], v[1]), nib_pack_bf16x2(v[2], v[3]),
                                                      nib_pack_bf16x2(v[4], v[5]), nib_pack_bf16x2(v[6], v[7]));
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (out + j >= a.n_out)
            continue;
        if (a.y_f32)
            ((float *)a.y)[at + j] = v[j];
        else
            ((uint16_t *)a.y)[at + j] = nib_bf16_of(v[j]);
    }
}

#endif
