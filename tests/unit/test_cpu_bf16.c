/* Products of rows in bf16 (the cpu backend's level bf16) against double: ordinary rows, rows of any exponents among them, and
 * sums at the edge of what vdpbf16ps takes for 0. And that a row's bits are the same alone and among any others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels.h"

/* Over two decoded parts of 256 channels, and not to the end of a third. */
enum { N_IN = 592, N_OUT = 48, N_BLOCKS = N_IN / NIB_CPU_BLOCK, N_PANELS = N_OUT / NIB_CPU_PANEL, N_ROWS = NIB_CPU_TILE_ROWS };

static const enum nib_weight_type types[] = {NIB_WEIGHT_BF16, NIB_WEIGHT_FP8, NIB_WEIGHT_MXFP4, NIB_WEIGHT_NVFP4};
enum { N_TYPES = sizeof types / sizeof *types };

static struct nib_cpu_kernels k;

static uint32_t random_below(uint32_t n)
{
    static uint64_t g = 3;
    g = g * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g >> 33) % n;
}

static double bf16_value(uint16_t b)
{
    const uint32_t bits = (uint32_t)b << 16;
    float          f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static double e4m3_value(int b)
{
    const int    e = b >> 3 & 15, m = b & 7;
    const double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    return b & 0x80 ? -v : v;
}

static double e2m1_value(int b)
{
    static const double v[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return b & 8 ? -v[b & 7] : v[b & 7];
}

/* Codes of a weight by output and channel, scales, and what they mean. */
struct weight {
    enum nib_weight_type type;
    uint16_t             code[N_OUT][N_IN]; /* E2M1 codes in one each */
    uint8_t              scale[N_OUT][N_BLOCKS]; /* FP8: [0][k / 128]; MXFP4: [o][k / 32] */
    float                global_scale;
};

static double weight_value(const struct weight *w, int o, int i)
{
    switch (w->type) {
    case NIB_WEIGHT_BF16: return bf16_value(w->code[o][i]);
    case NIB_WEIGHT_FP8: return e4m3_value(w->code[o][i]) * ldexp(1, w->scale[0][i / 128] - 127);
    case NIB_WEIGHT_MXFP4: return e2m1_value(w->code[o][i]) * ldexp(1, w->scale[o][i / 32] - 127);
    default: return e2m1_value(w->code[o][i]) * e4m3_value(w->scale[o][i / 16]);
    }
}

/* A weight packed in the level's order. */
struct packed {
    _Alignas(64) uint8_t codes[N_PANELS * N_BLOCKS * 512], scales[N_OUT * N_BLOCKS], least[N_PANELS];
    struct nib_cpu_matrix m;
};

static void pack_octet(const struct weight *w, int panel, int octet, uint8_t *to)
{
    for (int i = 0; i < NIB_CPU_PANEL * NIB_CPU_OCTET; i++) {
        const bool four_bits = w->type == NIB_WEIGHT_MXFP4 || w->type == NIB_WEIGHT_NVFP4;
        const int  at = w->type == NIB_WEIGHT_BF16 ? k.order.bf16[i] : four_bits ? k.order.fp4[i / 2] : k.order.fp8[i];
        const int  out = panel * NIB_CPU_PANEL + at / (four_bits ? 4 : 8);
        const int  channel = octet * NIB_CPU_OCTET + (four_bits ? at % 4 * 2 + i % 2 : at % 8);
        const int  code = w->code[out][channel];
        if (w->type == NIB_WEIGHT_BF16)
            memcpy(to + 2 * i, &w->code[out][channel], 2);
        else if (w->type == NIB_WEIGHT_FP8)
            to[i] = (uint8_t)code;
        else
            to[i / 2] = (uint8_t)(i % 2 ? to[i / 2] | code << 4 : code);
    }
}

static void pack(const struct weight *w, struct packed *p)
{
    const int block = w->type == NIB_WEIGHT_BF16 ? 512 : w->type == NIB_WEIGHT_FP8 ? 256 : 128;
    memset(p, 0, sizeof *p);
    for (int q = 0; q < N_PANELS; q++) {
        for (int i = 0; i < 2 * N_BLOCKS; i++)
            pack_octet(w, q, i, p->codes + q * N_BLOCKS * block + i * block / 2);
        p->least[q] = 255;
        for (int i = 0; w->type == NIB_WEIGHT_BF16 && i < NIB_CPU_PANEL * N_IN; i++) {
            const int bits = w->code[q * NIB_CPU_PANEL + i / N_IN][i % N_IN] & 0x7fff;
            if (bits && bits >> 7 < p->least[q])
                p->least[q] = (uint8_t)(bits >> 7);
        }
        for (int b = 0; b < N_BLOCKS; b++)
            for (int o = 0; o < NIB_CPU_PANEL; o++)
                p->scales[(q * N_BLOCKS + b) * NIB_CPU_PANEL + o] = w->scale[q * NIB_CPU_PANEL + o][b];
    }
    if (w->type == NIB_WEIGHT_FP8)
        memcpy(p->scales, w->scale[0], N_BLOCKS);
    p->m = (struct nib_cpu_matrix){.type = w->type, .n_out = N_OUT, .n_in = N_IN, .codes = p->codes, .scales = p->scales,
                                   .codes_stride = N_BLOCKS * block,
                                   .scales_stride = w->type == NIB_WEIGHT_FP8 ? N_BLOCKS : N_BLOCKS * NIB_CPU_PANEL,
                                   .global_scale = w->global_scale, .least = p->least};
}

/* Hostile BF16 weights have any exponent up to 2^20 in one panel of three; others are as in models. */
static void weight_fill(struct weight *w, enum nib_weight_type type, bool hostile)
{
    memset(w, 0, sizeof *w);
    w->type = type;
    w->global_scale = type == NIB_WEIGHT_NVFP4 ? 0.37f : 1;
    for (int o = 0; o < N_OUT; o++)
        for (int i = 0; i < N_IN; i++) {
            const uint32_t exponent = hostile && o / NIB_CPU_PANEL == 1 ? random_below(148) : 112 + random_below(12);
            const uint32_t bits = random_below(2) << 15 | exponent << 7 | random_below(128);
            const uint32_t code = random_below(type == NIB_WEIGHT_FP8 ? 256 : 16);
            w->code[o][i] = (uint16_t)(type == NIB_WEIGHT_BF16 ? bits : (code & 0x7f) == 0x7f ? 0x3c : code);
        }
    for (int o = 0; o < N_OUT; o++)
        for (int b = 0; b < N_BLOCKS; b++)
            w->scale[o][b] = (uint8_t)(type == NIB_WEIGHT_NVFP4 ? 30 + random_below(60) : 120 + random_below(12));
}

struct rows {
    uint16_t                 x[N_ROWS][N_IN];
    struct nib_cpu_bf16_row row[N_ROWS];
};

/* By turns: values as after a norm; any exponents up to 2^20; a few values of small exponents among zeros; subnormal ones. */
static void rows_fill(struct rows *r)
{
    for (int i = 0; i < N_ROWS; i++) {
        float x[N_IN];
        for (int c = 0; c < N_IN; c++) {
            const int      kind = i % 4;
            const uint32_t exponent = kind == 0 ? 118 + random_below(11) : kind == 1 ? random_below(148) : kind == 2 ? random_below(40) : 0;
            uint32_t       bits = random_below(2) << 31 | exponent << 23 | random_below(128) << 16;
            if ((kind == 2 && random_below(40)) || (kind == 0 && random_below(50) == 0))
                bits &= 1u << 31;
            memcpy(&x[c], &bits, sizeof bits);
        }
        r->row[i] = (struct nib_cpu_bf16_row){r->x[i], k.bf16_take(x, N_IN, r->x[i])};
    }
}

static void tile_run(const struct packed *w, const struct rows *rows, int first, int n, int out, int n_outs, float *y)
{
    static _Alignas(64) float work[NIB_CPU_TILE_WORK];
    const struct nib_cpu_tile t = {.w = &w->m, .out = out, .n_outs = n_outs, .n_rows = n, .xh = rows->row + first, .y = y, .work = work};
    k.tile_bf16(&t);
}

static int outs_at(int out) { return out + NIB_CPU_TILE_OUTS < N_OUT ? NIB_CPU_TILE_OUTS : N_OUT - out; }

/* opcheck's bound of a dot product: a chain of 16, its scale, a sum for each block, a scale at the end; and half of the last
 * place of what is subnormal. Returns by how many times it is passed at worst. */
static double worst_of(const struct weight *w, const struct rows *rows, int out, int n_outs, float (*y)[NIB_CPU_TILE_OUTS])
{
    double worst = 0;
    for (int r = 0; r < N_ROWS; r++)
        for (int o = 0; o < n_outs; o++) {
            double sum = 0, size = 0;
            for (int i = 0; i < N_IN; i++) {
                const double product = bf16_value(rows->x[r][i]) * weight_value(w, out + o, i) * (double)w->global_scale;
                sum += product;
                size += fabs(product);
            }
            const double bound = (N_IN / 16.0 + 20) * 0x1p-24 * size + N_IN * 0x1p-148;
            const double error = fabs((double)y[r][o] - sum) / bound;
            worst = error <= worst ? worst : error; /* NaN is worse */
        }
    return worst;
}

static void test_products(void **state)
{
    (void)state;
    static struct weight      w;
    static struct packed      p;
    static struct rows        rows;
    static _Alignas(64) float alone[N_ROWS][NIB_CPU_TILE_OUTS], y[N_ROWS][NIB_CPU_TILE_OUTS];
    for (int turn = 0; turn < 2 * N_TYPES; turn++) {
        weight_fill(&w, types[turn / 2], turn % 2);
        pack(&w, &p);
        rows_fill(&rows);
        for (int out = 0; out < N_OUT; out += NIB_CPU_TILE_OUTS) {
            const int n_outs = outs_at(out);
            for (int r = 0; r < N_ROWS; r++)
                tile_run(&p, &rows, r, 1, out, n_outs, alone[r]);
            const double worst = worst_of(&w, &rows, out, n_outs, alone);
            if (!(worst <= 1))
                fail_msg("weight type %d, outputs from %d: %g times the bound", (int)w.type, out, worst);
            for (int n = 2; n <= N_ROWS; n = n < 20 ? n + 1 : n * 2 - 5) {
                const int first = (int)random_below((uint32_t)(N_ROWS - n + 1));
                tile_run(&p, &rows, first, n, out, n_outs, y[0]);
                for (int r = 0; r < n; r++)
                    if (memcmp(y[r], alone[first + r], sizeof(float) * (size_t)n_outs) != 0)
                        fail_msg("weight type %d: row %d of %d is not what it is alone", (int)w.type, r, n);
            }
        }
    }
}

/* Two products whose difference is one last place of theirs, for exponents around those where that is subnormal: exact. */
static void test_edge(void **state)
{
    (void)state;
    static struct weight      w;
    static struct packed      p;
    static struct rows        rows;
    static _Alignas(64) float y[N_ROWS][NIB_CPU_TILE_OUTS];
    for (int type = 0; type < N_TYPES; type++)
        for (int way = 0; way < 2; way++) {
            const bool bf16 = types[type] == NIB_WEIGHT_BF16, fp8 = types[type] == NIB_WEIGHT_FP8;
            weight_fill(&w, types[type], false);
            memset(w.code, 0, sizeof w.code);
            memset(w.scale, types[type] == NIB_WEIGHT_NVFP4 ? 0x38 : 127, sizeof w.scale);
            w.global_scale = 1;
            for (int o = 0; o < N_OUT; o++) { /* (1 + 2^-7)^2 - (1 + 2^-6), or 2^-7 of the least value */
                w.code[o][36 + way] = bf16 ? 60 << 7 | 1 : 1;
                w.code[o][37 - way] = bf16 ? 0x8000 | 60 << 7 | 2 : fp8 ? 0x81 : 9;
            }
            pack(&w, &p);
            memset(&rows, 0, sizeof rows);
            for (int r = 0; r < N_ROWS; r++) { /* exponent fields 1 to 64; with BF16 weights 59 to 122, for 2^-149 is the last place of fp32 */
                const int exponent = 1 + r + (bf16 ? 58 : 0);
                rows.x[r][36 + way] = (uint16_t)(exponent << 7 | 1);
                rows.x[r][37 - way] = (uint16_t)(exponent << 7);
                rows.row[r] = (struct nib_cpu_bf16_row){rows.x[r], (uint8_t)exponent};
            }
            for (int n = 1; n <= N_ROWS; n += N_ROWS - 1)
                for (int first = 0; first < N_ROWS; first += n) {
                    tile_run(&p, &rows, first, n, 0, NIB_CPU_TILE_OUTS, y[0]);
                    for (int r = 0; r < n; r++) {
                        const int    e = (rows.x[first + r][36] >> 7) - 127;
                        const double wanted = ldexp(1, bf16 ? e + 60 - 127 - 14 : e - 7 - (fp8 ? 9 : 1));
                        for (int o = 0; o < NIB_CPU_TILE_OUTS; o++)
                            if ((double)y[r][o] != wanted)
                                fail_msg("weight type %d, exponent %d: %g, wanted %g", (int)w.type, e, (double)y[r][o], wanted);
                    }
                }
        }
}

static void test_take(void **state)
{
    (void)state;
    for (int n = 1; n < 70; n++) {
        float     x[70];
        uint16_t  out[70];
        const int at = (int)random_below((uint32_t)n);
        for (int i = 0; i < n; i++) {
            const uint32_t bits = i == at ? 0x80000000u | 20u << 23 | 5u << 16 : random_below(2) ? 0 : (21 + random_below(230)) << 23;
            memcpy(&x[i], &bits, sizeof bits);
        }
        assert_int_equal(k.bf16_take(x, n, out), 20);
        for (int i = 0; i < n; i++)
            assert_true(bf16_value(out[i]) == (double)x[i]);
        x[at] = 0x1.4p-130f;
        assert_int_equal(k.bf16_take(x, n, out), 0);
        memset(x, 0, sizeof x);
        x[at] = -0.0f;
        assert_int_equal(k.bf16_take(x, n, out), 255);
        x[at] = 3.0f;
        assert_int_equal(k.bf16_take(x, n, (uint16_t *)(void *)x), 128); /* in its own memory */
        memcpy(out, x, sizeof out);
        for (int i = 0; i < n; i++)
            assert_int_equal(out[i], i == at ? 0x4040 : 0);
    }
}

/* Rows that are not finite give what is not, and to no other row. */
static void test_not_finite(void **state)
{
    (void)state;
    static struct weight      w;
    static struct packed      p;
    static struct rows        rows;
    static _Alignas(64) float y[N_ROWS][NIB_CPU_TILE_OUTS];
    for (int type = 0; type < N_TYPES; type++) {
        weight_fill(&w, types[type], false);
        pack(&w, &p);
        rows_fill(&rows);
        rows.x[4][100] = 0x7f80;
        rows.x[9][591] = 0x7fc0;
        tile_run(&p, &rows, 0, N_ROWS, 0, NIB_CPU_TILE_OUTS, y[0]);
        for (int r = 0; r < N_ROWS; r++)
            for (int o = 0; o < NIB_CPU_TILE_OUTS; o++)
                assert_int_equal(!isfinite(y[r][o]), r == 4 || r == 9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_edge), cmocka_unit_test(test_take),
                                       cmocka_unit_test(test_not_finite)};
    unsigned mask;
    if (nib_cpu_level_mask("bf16", nib_cpu_flags_detect(), &mask, NULL) != NIB_OK) {
        print_message("this machine has no bf16\n");
        return 0;
    }
    nib_cpu_kernels_init(&k, mask);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
