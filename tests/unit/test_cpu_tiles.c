/* Matrix products of the cpu backend at every level that the machine has: a row's bits are the same alone and among any
 * number of others, for every type of weight and form of rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"

/* Over two decoded parts of 256 channels, and not to the end of a third. */
enum { N_IN = 592, N_OUT = 48, N_BLOCKS = N_IN / NIB_CPU_BLOCK, N_ROWS = NIB_CPU_TILE_ROWS };

static uint32_t random_bits(void)
{
    static uint64_t g = 1;
    g = g * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g >> 33);
}

static float random_float(void) { return ((float)(random_bits() % 20001) - 10000.0f) / 7000.0f; }

static void *room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

/* Packed bytes mean some weight whatever their order is. */
static struct nib_cpu_matrix random_matrix(enum nib_weight_type type)
{
    const int32_t block = type == NIB_WEIGHT_BF16 ? 512 : type == NIB_WEIGHT_FP8 ? 256 : 128;
    const int64_t n_codes = (int64_t)N_OUT / NIB_CPU_PANEL * N_BLOCKS * block, n_scales = N_OUT * N_BLOCKS;
    uint8_t      *codes = room((size_t)n_codes), *scales = room((size_t)n_scales);
    for (int64_t i = 0; i < n_codes; i++)
        codes[i] = (uint8_t)(random_bits() & (type == NIB_WEIGHT_FP8 ? 0xbf : 0xff)); /* no NaN */
    for (int64_t i = 0; type == NIB_WEIGHT_BF16 && i < n_codes; i += 2) {
        const float f = random_float();
        memcpy(codes + i, (const uint8_t *)&f + 2, 2);
    }
    for (int64_t i = 0; i < n_scales; i++)
        scales[i] = (uint8_t)(type == NIB_WEIGHT_NVFP4 ? 30 + random_bits() % 60 : 120 + random_bits() % 12);
    return (struct nib_cpu_matrix){.type = type, .n_out = N_OUT, .n_in = N_IN, .codes = codes, .scales = scales,
                                   .codes_stride = (int64_t)N_BLOCKS * block,
                                   .scales_stride = type == NIB_WEIGHT_FP8 ? 5 : N_BLOCKS * NIB_CPU_PANEL,
                                   .global_scale = 0.37f};
}

struct rows {
    struct nib_cpu_code_block block[N_ROWS][N_BLOCKS];
    struct nib_cpu_code_row   codes[N_ROWS];
    float                     values[N_ROWS][N_IN];
};

static void rows_fill(const struct nib_cpu_kernels *k, enum nib_act_format format, struct rows *r)
{
    uint8_t codes[N_IN], scales[N_IN];
    for (int32_t i = 0; i < N_ROWS; i++) {
        float row_scale = 1.0f;
        for (int32_t c = 0; c < N_IN; c++)
            r->values[i][c] = random_float();
        if (format == NIB_ACT_INT8)
            k->int8_encode(r->values[i], N_IN, codes, (float *)(void *)scales);
        else
            k->nvfp4_encode(r->values[i], N_IN, codes, scales, &row_scale);
        k->codes_open(format == NIB_ACT_INT8 ? format : NIB_ACT_NVFP4, codes, scales, N_IN, r->block[i]);
        r->codes[i] = (struct nib_cpu_code_row){r->block[i], 0.25f * row_scale};
    }
}

static void tile_run(const struct nib_cpu_kernels *k, const struct nib_cpu_matrix *w, const struct rows *rows, bool integer,
                     int32_t first, int32_t n, int32_t out, int32_t n_outs, float *y)
{
    static _Alignas(64) float work[NIB_CPU_TILE_WORK];
    const float                   *x[N_ROWS];
    const struct nib_cpu_code_row *xi[N_ROWS];
    for (int32_t r = 0; r < n; r++) {
        x[r] = rows->values[first + r];
        xi[r] = &rows->codes[first + r];
    }
    const struct nib_cpu_tile t = {.w = w, .out = out, .n_outs = n_outs, .n_rows = n, .x = x, .xi = xi, .y = y, .work = work};
    (integer ? k->tile_codes : k->tile_plain)(&t);
}

static void check_rows(const struct nib_cpu_kernels *k, const struct nib_cpu_matrix *w, const struct rows *rows, bool integer)
{
    static _Alignas(64) float alone[N_ROWS][NIB_CPU_TILE_OUTS], y[N_ROWS][NIB_CPU_TILE_OUTS];
    /* Both panels of a tile, and the last panel by itself. */
    for (int32_t out = 0; out < N_OUT; out += NIB_CPU_TILE_OUTS) {
        const int32_t n_outs = out + NIB_CPU_TILE_OUTS < N_OUT ? NIB_CPU_TILE_OUTS : N_OUT - out;
        for (int32_t r = 0; r < N_ROWS; r++)
            tile_run(k, w, rows, integer, r, 1, out, n_outs, alone[r]);
        for (int32_t n = 2; n <= N_ROWS; n = n < 20 ? n + 1 : n * 2 - 5) {
            const int32_t first = (int32_t)(random_bits() % (uint32_t)(N_ROWS - n + 1));
            tile_run(k, w, rows, integer, first, n, out, n_outs, y[0]);
            for (int32_t r = 0; r < n; r++)
                if (memcmp(y[r], alone[first + r], sizeof(float) * (size_t)n_outs) != 0)
                    fail_msg("level %s, weight type %d, %s rows: row %d of %d is not what it is alone", k->name, (int)w->type,
                             integer ? "integer" : "plain", (int)r, (int)n);
        }
    }
}

static void check_level(const char *name)
{
    static const enum nib_weight_type types[] = {NIB_WEIGHT_BF16, NIB_WEIGHT_FP8, NIB_WEIGHT_MXFP4, NIB_WEIGHT_NVFP4};
    static const enum nib_act_format  formats[] = {NIB_ACT_PLAIN, NIB_ACT_INT8, NIB_ACT_NVFP4};
    struct nib_cpu_kernels k = {0};
    unsigned               flags;
    if (nib_cpu_level_mask(name, nib_cpu_flags_detect(), &flags, NULL) != NIB_OK) {
        print_message("this machine has no %s\n", name);
        return;
    }
    nib_cpu_kernels_init(&k, flags);
    assert_string_equal(k.name, name);
    struct rows *rows = room(sizeof *rows);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const struct nib_cpu_matrix w = random_matrix(types[i]);
        const bool                  four_bits = types[i] == NIB_WEIGHT_MXFP4 || types[i] == NIB_WEIGHT_NVFP4;
        for (size_t f = 0; f < (four_bits ? sizeof formats / sizeof *formats : 1); f++) {
            rows_fill(&k, formats[f], rows);
            check_rows(&k, &w, rows, formats[f] != NIB_ACT_PLAIN);
        }
        free((void *)(uintptr_t)w.codes);
        free((void *)(uintptr_t)w.scales);
    }
    free(rows);
}

static void test_levels(void **state)
{
    (void)state;
    static const char *const names[] = {"c", "avx2", "avx512", "vnni", "bf16", "neon", "dotprod"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_level(names[i]);
}

/* Results of more than NIB_CPU_CACHED_BYTES, which go past the caches: the bits of one row at a time. */
static void test_large_results(void **state)
{
    (void)state;
    enum { N = 17, WIDE = 1 << 18, IN = 16 };
    _Static_assert(sizeof(float) * N * WIDE > NIB_CPU_CACHED_BYTES, "the rows together are too many for caches");
    struct nib_backend_config config = {
        .dims = {.n_rows_max = N, .n_seqs_max = 1, .n_ctx_max = 1, .dim = IN, .n_hc = 1, .n_heads = 1, .head_dim = IN, .q_rank = 1,
                 .n_groups = 1, .o_rank = 1, .n_window = 1, .vocab = 1},
        .n_threads = 2, .cpu_mask = ~0u};
    struct nib_backend *b;
    struct nib_error    err;
    assert_int_equal(nib_backend_cpu.open(&config, &b, &err), NIB_OK);
    uint16_t *values = room(sizeof *values * WIDE * IN);
    float    *x = room(sizeof *x * N * IN), *y = room(sizeof *y * N * WIDE), *alone = room(sizeof *alone * WIDE);
    for (int32_t i = 0; i < WIDE * IN; i++)
        values[i] = (uint16_t)(0x3c00 + random_bits() % 0x400);
    for (int32_t i = 0; i < N * IN; i++)
        x[i] = random_float();
    const struct nib_weight_part part = {.data = values, .global_scale = 1};
    const struct nib_weight_desc desc = {.type = NIB_WEIGHT_BF16, .n_stack = 1, .n_out = WIDE, .n_in = IN, .part = &part};
    struct nib_weight           *w;
    assert_int_equal(nib_backend_cpu.weight_pack(b, &desc, &w, &err), NIB_OK);
    struct nib_stream     *s = nib_backend_cpu.stream(b);
    struct nib_linear_args a = {.x = {.plain = {x, NIB_DTYPE_F32, N, IN, IN}, .rows = N, .cols = IN},
                                .n_weights = 1, .w = {w}, .y = {{y, NIB_DTYPE_F32, N, WIDE, WIDE}}};
    assert_int_equal(nib_backend_cpu.ops->linear(s, &a), NIB_OK);
    a.x.rows = a.x.plain.rows = a.y[0].rows = 1;
    a.y[0].data = alone;
    for (int32_t r = 0; r < N; r++) {
        a.x.plain.data = x + r * IN;
        assert_int_equal(nib_backend_cpu.ops->linear(s, &a), NIB_OK);
        assert_memory_equal(alone, y + (size_t)r * WIDE, sizeof *alone * WIDE);
    }
    nib_backend_cpu.weight_free(b, w);
    nib_backend_cpu.close(b);
    free(values);
    free(x);
    free(y);
    free(alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_levels), cmocka_unit_test(test_large_results)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
