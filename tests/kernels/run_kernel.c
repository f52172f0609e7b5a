/* Runs one hot kernel of the cpu backend a number of times, to have its instructions or its reads counted:
 * run_kernel NAME TIMES [TILES [ROWS]]. Data are fixed; a tile is 32 outputs of 4096 channels, and TILES of them, one if
 * not given, are taken one after the other each time. With no arguments it prints the names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels.h"

enum { N_IN = 4096, N_HEADS = 32, N_KV = 48, HEAD_DIM = 512 };

static struct nib_cpu_kernels k;

static void *filled(size_t bytes, uint8_t first, uint8_t span)
{
    uint8_t *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p)
        exit(2);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(first + i * 7 % span);
    return p;
}

static float *floats(size_t n)
{
    float *p = filled(n * sizeof *p, 0, 1);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(i * 37 % 101) / 50 - 1;
    return p;
}

static void run_tile(enum nib_weight_type type, bool codes, int32_t n_rows, int times, int32_t n_tiles)
{
    /* Scale bytes near 1 in both formats. */
    struct nib_cpu_matrix w = {.type = type, .n_out = n_tiles * NIB_CPU_TILE_OUTS, .n_in = N_IN, .global_scale = 1};
    const int32_t         panels = n_tiles * NIB_CPU_TILE_OUTS / NIB_CPU_PANEL, values = NIB_CPU_PANEL * N_IN;
    w.codes_stride = type == NIB_WEIGHT_BF16 ? 2 * values : type == NIB_WEIGHT_FP8 ? values : values / 2;
    w.scales_stride = type == NIB_WEIGHT_NVFP4 ? values / 16 : type == NIB_WEIGHT_FP8 ? N_IN / 128 : values / 32;
    w.codes = filled((size_t)(panels * w.codes_stride), 0x30, 16);
    w.scales = filled((size_t)(panels * w.scales_stride), type == NIB_WEIGHT_NVFP4 ? 0x38 : 0x7e, 4);

    const float                   *x[NIB_CPU_TILE_ROWS];
    const struct nib_cpu_code_row *xi[NIB_CPU_TILE_ROWS];
    struct nib_cpu_code_block     *block = filled(N_IN / NIB_CPU_BLOCK * sizeof *block, 0, 12);
    struct nib_cpu_code_row        row = {block, 1};
    for (int32_t b = 0; b < N_IN / NIB_CPU_BLOCK; b++)
        block[b].scale = 1;
    for (int32_t r = 0; r < n_rows; r++) {
        x[r] = floats(N_IN + 33 * 16);
        xi[r] = &row;
    }
    float              *work = floats(NIB_CPU_TILE_WORK), *y = floats(NIB_CPU_TILE_ROWS * NIB_CPU_TILE_OUTS);
    struct nib_cpu_tile t = {.w = &w, .n_outs = NIB_CPU_TILE_OUTS, .n_rows = n_rows, .x = x, .xi = xi, .y = y, .work = work};
    for (int32_t i = 0; i < times * n_tiles; i++) {
        t.out = i % n_tiles * NIB_CPU_TILE_OUTS;
        (codes ? k.tile_codes : k.tile_plain)(&t);
    }
}

static void run_attention(int times)
{
    float *q = floats(N_HEADS * HEAD_DIM), *kv = floats(N_KV * HEAD_DIM), *o = floats(N_HEADS * HEAD_DIM);
    float *score = floats(N_HEADS * N_KV), top = 0;
    for (int i = 0; i < times; i++) {
        k.dot_rows(q, HEAD_DIM, N_HEADS, kv, HEAD_DIM, N_KV, HEAD_DIM, score, N_KV);
        for (int h = 0; h < N_HEADS; h++)
            (void)k.softmax_scores(score + h * N_KV, N_KV, 1e-3f, &top);
        k.add_weighted(score, N_KV, N_HEADS, kv, HEAD_DIM, N_KV, HEAD_DIM, o, HEAD_DIM);
    }
}

/* A block of FP4 keys' scores for all queries of a row; every scale is 1. */
static void run_index(int times)
{
    enum { N_QUERIES = 64, DIM = 128, KEY_BYTES = DIM / 2 + DIM / 32 };
    uint8_t       *stored = filled(N_KV * KEY_BYTES, 0, 251), *codes = filled(N_QUERIES * DIM, 0, 25);
    float         *q = floats(N_QUERIES * DIM), *scales = floats(N_QUERIES * DIM / 32), *weight = floats(N_QUERIES);
    float         *work = floats(N_KV * (DIM + 16)), *dots = floats(N_QUERIES * N_KV), score[N_KV];
    const uint8_t *key[N_KV];
    for (int32_t j = 0; j < N_KV; j++) {
        key[j] = stored + j * KEY_BYTES;
        memset(stored + j * KEY_BYTES + DIM / 2, 127, DIM / 32);
    }
    const struct nib_cpu_fp4_queries queries = {N_QUERIES, q, DIM, codes, scales};
    for (int i = 0; i < times; i++)
        k.fp4_scores(&queries, weight, key, N_KV, DIM, work, dots, score);
}

static const struct kernel {
    const char          *name;
    enum nib_weight_type type;
    bool                 codes;
    int32_t              n_rows; /* 0: none of a product with weights */
    void (*other)(int times);
} kernels[] = {
    {"nvfp4-plain-1", NIB_WEIGHT_NVFP4, false, 1, NULL}, {"nvfp4-plain-8", NIB_WEIGHT_NVFP4, false, 8, NULL},
    {"nvfp4-plain-64", NIB_WEIGHT_NVFP4, false, 64, NULL}, {"nvfp4-codes-1", NIB_WEIGHT_NVFP4, true, 1, NULL},
    {"nvfp4-codes-8", NIB_WEIGHT_NVFP4, true, 8, NULL},  {"nvfp4-codes-64", NIB_WEIGHT_NVFP4, true, 64, NULL},
    {"mxfp4-plain-1", NIB_WEIGHT_MXFP4, false, 1, NULL}, {"fp8-plain-1", NIB_WEIGHT_FP8, false, 1, NULL},
    {"fp8-plain-8", NIB_WEIGHT_FP8, false, 8, NULL},     {"bf16-plain-1", NIB_WEIGHT_BF16, false, 1, NULL},
    {"bf16-plain-8", NIB_WEIGHT_BF16, false, 8, NULL},   {"attention", NIB_WEIGHT_F32, false, 0, run_attention},
    {"index", NIB_WEIGHT_F32, false, 0, run_index},
};

int main(int argc, char **argv)
{
    unsigned mask;
    if (nib_cpu_level_mask("avx2", nib_cpu_flags_detect(), &mask, NULL) != NIB_OK) {
        printf("skipped: no avx2 here\n");
        return 77;
    }
    nib_cpu_kernels_init(&k, mask);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (argc < 3)
            printf("%s\n", kernels[i].name);
        else if (strcmp(argv[1], kernels[i].name) != 0)
            continue;
        else if (kernels[i].n_rows)
            run_tile(kernels[i].type, kernels[i].codes, argc > 4 ? atoi(argv[4]) : kernels[i].n_rows, atoi(argv[2]),
                     argc > 3 ? atoi(argv[3]) : 1);
        else
            kernels[i].other(atoi(argv[2]));
    }
    return 0;
}
