/* Products of the tensor part against sums over elements. The expectation decodes codes by its own tables, places
 * operands by the ISA's layouts (tensor_rig.h) and fragments by the formulas of the ISA's text, and sums in long
 * double. */
#include "ptxsim/tensor_rig.h"

static struct sim_fault fault;
static uint64_t         seed = 20;
static uint8_t          bytes[2][131072];
static struct sim_tmem  tmem[2];

/* ---- Values ---- */

/* By definition: sign, exponent, fraction. */
static double value_of(enum sim_element e, uint32_t code)
{
    static const struct {
        int exponent, fraction, bias;
    } format[] = {[SIM_E2M1] = {2, 1, 1},  [SIM_E2M3] = {2, 3, 1},    [SIM_E3M2] = {3, 2, 3},  [SIM_E4M3] = {4, 3, 7},
                  [SIM_E5M2] = {5, 2, 15}, [SIM_F16] = {5, 10, 15}, [SIM_BF16] = {8, 7, 127}, [SIM_UE4M3] = {4, 3, 7}};
    if (e == SIM_UE8M0)
        return code == 255 ? NAN : ldexp(1, (int)code - 127);
    int f = format[e].fraction, x = (int)(code >> f & ((1u << format[e].exponent) - 1)),
        top = (1 << format[e].exponent) - 1;
    double fraction = (double)(code & ((1u << f) - 1)) / (double)(1 << f),
           sign = code >> (f + format[e].exponent) & 1 ? -1 : 1;
    if (x == top && (e == SIM_E4M3 || e == SIM_UE4M3) && fraction == 0.875)
        return NAN;
    if (x == top && (e == SIM_E5M2 || e == SIM_F16 || e == SIM_BF16))
        return fraction > 0 ? NAN : sign * INFINITY;
    return sign * (x == 0 ? ldexp(fraction, 1 - format[e].bias) : ldexp(1 + fraction, x - format[e].bias));
}

static int width_of(enum sim_element e)
{
    return e == SIM_E2M1 ? 4 : e == SIM_E2M3 || e == SIM_E3M2 ? 6 : e == SIM_F16 || e == SIM_BF16 ? 16 : 8;
}

/* A finite code; 16-bit ones of moderate size. */
static uint32_t random_code(enum sim_element e)
{
    for (;;) {
        uint32_t c = rig_random(&seed) & ((1u << width_of(e)) - 1);
        if (e == SIM_BF16)
            c = (c & 0x80ff) | (0x3f00 + (c & 0x0700)) % 0x4700;
        if (e == SIM_UE4M3)
            c &= 127;
        if (e == SIM_UE8M0)
            c = 117 + c % 20;
        if (isfinite(value_of(e, c)))
            return c;
    }
}

struct problem {
    int              m, n, k, group; /* group: k of one scale, 0 for none */
    enum sim_element a_type, b_type, scale_type;
    uint32_t         a[256][64], b[256][64]; /* codes */
    uint8_t          scale_a[256][4], scale_b[256][4];
    float            c[256][256];
    bool             accumulate;
    int              negate;
};

static struct problem p;

static void randomise(void)
{
    for (int i = 0; i < 256; i++) {
        for (int k = 0; k < p.k; k++) {
            p.a[i][k] = random_code(p.a_type);
            p.b[i][k] = random_code(p.b_type);
        }
        for (int g = 0; p.group && g < p.k / p.group; g++) {
            p.scale_a[i][g] = (uint8_t)random_code(p.scale_type);
            p.scale_b[i][g] = (uint8_t)random_code(p.scale_type);
        }
        for (int j = 0; j < 256; j++)
            p.c[i][j] = ldexpf((float)(int32_t)rig_random(&seed), (int)(rig_random(&seed) % 16) - 40);
    }
}

/* d must be the exact sum rounded once; the sum itself is exact but for k * 2^-52 of the magnitudes
 * (tensor_matrix.c) here and there. In steps: the sum of groups, each rounding an fp32 operation. */
static void expect(int i, int j, float d, const struct sim_choices *choices)
{
    long double sum = 0, most = 0;
    float       steps = p.accumulate ? p.c[i][j] : 0;
    int         group = p.group ? p.group : 1;
    for (int first = 0; first < p.k; first += group) {
        long double part = 0, scale = 1;
        for (int k = first; k < first + group; k++) {
            long double v = (long double)value_of(p.a_type, p.a[i][k]) * value_of(p.b_type, p.b[j][k]);
            part += p.negate ? -v : v;
        }
        if (p.group)
            scale = (long double)value_of(p.scale_type, p.scale_a[i][first / group]) *
                    value_of(p.scale_type, p.scale_b[j][first / group]);
        sum += part * scale;
        most += fabsl(part * scale);
        steps = (float)((double)steps + (double)(float)(part * scale));
    }
    if (choices->group_sums_in_f32) {
        assert_true(d == steps);
        return;
    }
    sum += p.accumulate ? p.c[i][j] : 0;
    if (!(fabsl((long double)d - sum) <= 0x1p-24L * fabsl(sum) + (long double)p.k * 0x1p-52L * most + 0x1p-150L))
        fail_msg("row %d, column %d: got %.9g, want %.12Lg", i, j, (double)d, sum);
}

/* ---- Placing operands in shared memory ---- */

static uint32_t field_of(int span, bool hopper)
{
    return span == 0 ? 0 : hopper ? (span == 128 ? 1 : span == 64 ? 2 : 3) : span == 128 ? 2 : span == 64 ? 4 : 6;
}

static uint64_t descriptor_of(uint32_t start, uint32_t leading, uint32_t stride, int span, bool hopper)
{
    uint64_t d = (uint64_t)(start >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32;
    return hopper ? d | (uint64_t)field_of(span, true) << 62 : d | 1ull << 46 | (uint64_t)field_of(span, false) << 61;
}

static void put_bits(uint8_t *at, int bit, int width, uint32_t code)
{
    for (int b = 0; b < width; b++) {
        int to = bit + b;
        at[to / 8] = (uint8_t)((at[to / 8] & ~(1 << to % 8)) | (int)(code >> b & 1) << to % 8);
    }
}

/* Rows [first, first + rows) of codes at `start`; returns the descriptor. packed: 4-bit codes without padding. */
static uint64_t place(uint8_t *memory, uint32_t start, bool k_major, int span, enum sim_element type, bool packed,
                      const uint32_t (*code)[64], int first, int rows, bool hopper)
{
    uint32_t width = (uint32_t)(span ? span : 16), leading, stride;
    if (k_major) {
        stride = 8 * width;
        leading = span ? 16 : ((uint32_t)rows + 7) / 8 * 128;
    } else {
        leading = span ? 8 * width * 4 : ((uint32_t)rows + 7) / 8 * 128 * 2;
        stride = span ? 8 * width : 128;
    }
    int bits = width_of(type);
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < p.k; k++) {
            if (bits == 16 || bits == 8 || packed) {
                uint32_t at = rig_canonical(k_major, span, bits, (int)leading, (int)stride, start, r,
                                            k / (bits == 4 ? 2 : 1) * (bits == 4 ? 2 : 1));
                put_bits(memory + at, bits == 4 ? k % 2 * 4 : 0, bits, code[first + r][k]);
                continue;
            }
            /* 16 values take 16 bytes: the data, then padding that nobody may read. */
            for (int b = 0; b < bits; b++) {
                int      bit = k % 16 * bits + b;
                uint32_t at = rig_canonical(true, span, 8, (int)leading, (int)stride, start, r, k / 16 * 16 + bit / 8);
                put_bits(memory + at, bit % 8, 1, code[first + r][k] >> b);
            }
        }
    return descriptor_of(start, leading, stride, span, hopper);
}

static struct sim_shared shared_of(int i)
{
    return (struct sim_shared){.bytes = bytes[i], .base = 0, .size = sizeof bytes[i]};
}

/* ---- wgmma ---- */

static void one_wgmma(enum sim_element type, int n, int span_a, int span_b, bool a_k_major, bool b_k_major,
                      bool registers, const struct sim_choices *choices)
{
    static float      d[128][128];
    static uint32_t   a[128][4];
    struct sim_shared shared = shared_of(0);
    struct sim_wgmma  w = {
         .type = type, .b_type = type, .n = n, .a_in_registers = registers, .a = (const uint32_t(*)[4])a, .d = d};
    memset(&p, 0, sizeof p);
    p.m = 64, p.n = n, p.k = type == SIM_E4M3 ? 32 : 16, p.a_type = p.b_type = type;
    p.accumulate = n % 16 == 8 || choices->group_sums_in_f32;
    p.negate = n == 24;
    randomise();
    w.accumulate = p.accumulate;
    w.negate_b = n == 24;
    w.transpose_a = !a_k_major;
    w.transpose_b = !b_k_major;
    memset(bytes[0], 0xff, sizeof bytes[0]); /* NaN wherever nothing is placed */
    w.a_descriptor = place(bytes[0], 0x1000, a_k_major, span_a, type, false, (const uint32_t (*)[64])p.a, 0, 64, true);
    w.b_descriptor = place(bytes[0], 0x8000, b_k_major, span_b, type, false, (const uint32_t (*)[64])p.b, 0, n, true);
    if (registers)
        w.a_descriptor = 1ull << 47; /* not looked at */
    for (int t = 0; t < 128; t++) {
        int warp = t / 32, g = t % 32 / 4, l = t % 4, wide = p.k / 16;
        for (int r = 0; r < 4; r++) {
            a[t][r] = 0;
            for (int i = 0; i < 2 * wide; i++) /* a pair of 16-bit or four 8-bit values of row g or g + 8 */
                a[t][r] |= p.a[16 * warp + g + (r & 1 ? 8 : 0)][2 * wide * l + (r & 2 ? 8 * wide : 0) + i]
                           << i * width_of(type);
        }
        for (int i = 0; i < n / 2; i++)
            d[t][i] = p.c[16 * warp + g + (i & 2 ? 8 : 0)][8 * (i / 4) + 2 * l + (i & 1)];
    }
    RIG_OK(sim_wgmma(&w, choices, &shared, &fault));
    for (int t = 0; t < 128; t++)
        for (int i = 0; i < n / 2; i++)
            expect(16 * (t / 32) + t % 32 / 4 + (i & 2 ? 8 : 0), 8 * (i / 4) + 2 * (t % 4) + (i & 1), d[t][i], choices);
}

static void wgmma(void **state)
{
    (void)state;
    static const int         spans[4] = {128, 64, 32, 0}, sizes[4] = {8, 24, 64, 256};
    const struct sim_choices steps = {.group_sums_in_f32 = true};
    for (int i = 0; i < 4; i++) {
        one_wgmma(SIM_BF16, sizes[i], spans[i], spans[3 - i], true, true, false, &plain);
        one_wgmma(SIM_BF16, sizes[i], spans[i], spans[i], false, true, false, &plain);
        one_wgmma(SIM_BF16, i == 3 ? 64 : sizes[i], spans[i], spans[i], true, false, false, &plain);
        one_wgmma(SIM_F16, sizes[3 - i], spans[i], spans[i], true, true, true, &plain);
        one_wgmma(SIM_E4M3, sizes[i], spans[i], spans[3 - i], true, true, false, &plain);
        one_wgmma(SIM_E4M3, sizes[3 - i], spans[i], spans[i], true, true, true, &plain);
    }
    one_wgmma(SIM_E4M3, 64, 128, 128, true, true, true, &steps);
    struct sim_shared shared = shared_of(0);
    struct sim_wgmma  w = {.type = SIM_BF16, .b_type = SIM_BF16, .n = 12};
    RIG_FAULT(sim_wgmma(&w, &plain, &shared, &fault), "n = 12");
    w.n = 264;
    RIG_FAULT(sim_wgmma(&w, &plain, &shared, &fault), "n = 264");
    w = (struct sim_wgmma){.type = SIM_E4M3, .b_type = SIM_E4M3, .n = 8, .transpose_b = true};
    RIG_FAULT(sim_wgmma(&w, &plain, &shared, &fault), "16-bit");
}

/* ---- mma.sync ---- */

static void one_mma(enum sim_element a_type, enum sim_element b_type, bool packed, enum sim_scale scale,
                    enum sim_element scale_type, const struct sim_choices *choices)
{
    uint32_t            a[32][4], b[32][2], scale_a[32], scale_b[32];
    float               d[32][4];
    struct sim_mma_sync m = {.a_type = a_type,
                             .b_type = b_type,
                             .packed = packed,
                             .scale = scale,
                             .scale_type = scale_type,
                             .a = (const uint32_t(*)[4])a,
                             .b = (const uint32_t(*)[2])b,
                             .scale_a = scale_a,
                             .scale_b = scale_b,
                             .d = d};
    memset(&p, 0, sizeof p);
    p.m = 16, p.n = 8, p.k = packed ? 64 : width_of(a_type) == 16 ? 16 : 32, p.a_type = a_type, p.b_type = b_type;
    p.scale_type = scale_type;
    p.accumulate = true;
    int n_scales = scale == SIM_SCALE_4X ? 4 : scale == SIM_SCALE_2X ? 2 : 1;
    p.group = scale == SIM_SCALE_NONE ? 0 : p.k / n_scales;
    randomise();
    m.thread_a = rig_random(&seed) % 2;
    m.thread_b = rig_random(&seed) % 4;
    m.byte_a = n_scales == 4 ? 0 : rig_random(&seed) % 4 / (uint32_t)n_scales * (uint32_t)n_scales;
    m.byte_b = n_scales == 4 ? 0 : rig_random(&seed) % 4 / (uint32_t)n_scales * (uint32_t)n_scales;
    int each = p.k / 8; /* values in a register: 2, 4 or 8 */
    for (int t = 0; t < 32; t++) {
        int g = t >> 2, l = t & 3, shift = packed ? 4 : width_of(a_type) == 16 ? 16 : 8;
        int up_a = !packed && a_type == SIM_E2M1 ? 2 : 0, up_b = !packed && b_type == SIM_E2M1 ? 2 : 0; /* 00xxxx00 */
        for (int r = 0; r < 4; r++) {
            a[t][r] = 0;
            for (int i = 0; i < each; i++)
                a[t][r] |= p.a[g + (r & 1) * 8][each * l + (r >> 1) * 4 * each + i] << (i * shift + up_a);
        }
        for (int r = 0; r < 2; r++) {
            b[t][r] = 0;
            for (int i = 0; i < each; i++)
                b[t][r] |= p.b[g][each * l + r * 4 * each + i] << (i * shift + up_b);
        }
        for (int i = 0; i < 4; i++)
            d[t][i] = p.c[g + i / 2 * 8][2 * l + i % 2];
        scale_a[t] = scale_b[t] = 0x7f7f7f7f; /* NaN in UE4M3 and 1 in UE8M0 where no scale belongs */
    }
    for (int r = 0; r < 16; r++)
        for (int s = 0; s < n_scales; s++)
            put_bits((uint8_t *)&scale_a[4 * (r & 7) + 2 * (int)m.thread_a + (r >> 3)], 8 * ((int)m.byte_a + s), 8,
                     p.scale_a[r][s]);
    for (int n = 0; n < 8; n++)
        for (int s = 0; s < n_scales; s++)
            put_bits((uint8_t *)&scale_b[4 * n + (int)m.thread_b], 8 * ((int)m.byte_b + s), 8, p.scale_b[n][s]);
    RIG_OK(sim_mma_sync(&m, choices, &fault));
    for (int t = 0; t < 32; t++)
        for (int i = 0; i < 4; i++)
            expect((t >> 2) + i / 2 * 8, 2 * (t & 3) + i % 2, d[t][i], choices);
}

static void mma_sync(void **state)
{
    (void)state;
    const struct sim_choices steps = {.group_sums_in_f32 = true};
    for (int round = 0; round < 12; round++) {
        const struct sim_choices *c = round % 3 == 2 ? &steps : &plain;
        one_mma(SIM_BF16, SIM_BF16, false, SIM_SCALE_NONE, SIM_UE8M0, c);
        one_mma(SIM_F16, SIM_F16, false, SIM_SCALE_NONE, SIM_UE8M0, c);
        one_mma(SIM_E2M1, SIM_E2M1, true, SIM_SCALE_4X, SIM_UE4M3, c);
        one_mma(SIM_E2M1, SIM_E2M1, true, SIM_SCALE_4X, SIM_UE8M0, c);
        one_mma(SIM_E2M1, SIM_E2M1, true, SIM_SCALE_2X, SIM_UE8M0, c);
        for (int a = SIM_E2M1; a <= SIM_E5M2; a++) {
            one_mma((enum sim_element)a, (enum sim_element)((a + round) % 5), false, SIM_SCALE_1X, SIM_UE8M0, &plain);
            one_mma((enum sim_element)a, (enum sim_element)((a + round) % 5), false, SIM_SCALE_NONE, SIM_UE8M0, &plain);
        }
    }
    uint32_t            a[32][4] = {{0}}, b[32][2] = {{0}}, s[32] = {0};
    float               d[32][4] = {{0}};
    struct sim_mma_sync m = {.a_type = SIM_E2M1,
                             .b_type = SIM_E2M1,
                             .packed = true,
                             .scale = SIM_SCALE_4X,
                             .scale_type = SIM_UE4M3,
                             .a = (const uint32_t(*)[4])a,
                             .b = (const uint32_t(*)[2])b,
                             .scale_a = s,
                             .scale_b = s,
                             .d = d};
    m.byte_a = 1;
    RIG_FAULT(sim_mma_sync(&m, &plain, &fault), "selectors {1, 0}");
    m.byte_a = 0;
    m.thread_a = 2;
    RIG_FAULT(sim_mma_sync(&m, &plain, &fault), "selectors {0, 2}");
    m.thread_a = 0;
    m.scale = SIM_SCALE_2X;
    RIG_FAULT(sim_mma_sync(&m, &plain, &fault), "scale vector");
    m.scale = SIM_SCALE_4X;
    s[0] = 0x80;
    RIG_FAULT(sim_mma_sync(&m, &plain, &fault), "top bit");
    m.packed = false;
    m.scale = SIM_SCALE_NONE;
    a[3][1] = 0x01000000;
    RIG_FAULT(sim_mma_sync(&m, &plain, &fault), "outside its 4-bit value");
}

/* ---- tcgen05.mma ---- */

struct form {
    enum sim_mma_kind kind;
    enum sim_scale    scale;
    enum sim_element  a_type, b_type, scale_type;
    int               n_ctas, m, n, span, id;
    bool              transpose_a, transpose_b, a_in_tmem;
};

enum { AT_D = 0, AT_SFA = 256, AT_SFB = 260, AT_A = 288, AT_SMEM_A = 0, AT_SMEM_B = 65536 };

static uint32_t idesc_of(const struct form *f)
{
    static const uint32_t code[] = {
        [SIM_E2M1] = 5, [SIM_E2M3] = 3, [SIM_E3M2] = 4, [SIM_E4M3] = 0, [SIM_E5M2] = 1, [SIM_F16] = 0, [SIM_BF16] = 1};
    uint32_t d = (uint32_t)(f->n / 8) << 17;
    if (f->kind >= SIM_KIND_MXF4)
        return d | 1u << 7 | 1u << 10 | (f->scale_type == SIM_UE8M0 ? 1u << 23 : 0) | (uint32_t)(f->m / 128) << 27 |
               (uint32_t)f->id << 4 | (uint32_t)f->id << 29;
    d |= code[f->a_type] << 7 | code[f->b_type] << 10 | (f->transpose_a ? 1u << 15 : 0) |
         (f->transpose_b ? 1u << 16 : 0) | 1u << 14;
    if (f->kind == SIM_KIND_MXF8F6F4)
        return d | 1u << 23 | (uint32_t)(f->m / 128) << 27 | (uint32_t)f->id << 4 | (uint32_t)f->id << 29;
    return d | 1u << 4 | (uint32_t)(f->m / 16) << 24;
}

static uint32_t *cell(int cta, int lane, int column)
{
    tmem[cta].written[lane][column] = 1;
    return &tmem[cta].cell[lane][column];
}

/* Where D[i][j] lives. */
static void d_place(const struct form *f, int i, int j, int *cta, int *lane, int *column)
{
    int rows = f->m / f->n_ctas;
    *cta = i / rows;
    *lane = i % rows;
    *column = AT_D + j;
    if (f->m == 64)
        *lane = i / 16 * 32 + i % 16;
    if (f->m == 128 && f->n_ctas == 2 && j >= f->n / 2) {
        *lane += 64;
        *column -= f->n / 2;
    }
}

static struct sim_tcgen05_mma set_up(const struct form *f, bool accumulate)
{
    struct sim_tcgen05_mma m = {.kind = f->kind,
                                .scale = f->scale,
                                .n_ctas = f->n_ctas,
                                .idesc = idesc_of(f),
                                .a_in_tmem = f->a_in_tmem,
                                .accumulate = accumulate,
                                .a_address = AT_A,
                                .d_address = AT_D,
                                .scale_a_address = AT_SFA,
                                .scale_b_address = AT_SFB};
    bool                   packed = f->kind >= SIM_KIND_MXF4, scaled = f->kind >= SIM_KIND_MXF8F6F4;
    int                    rows = f->m / f->n_ctas, columns = f->n / f->n_ctas;
    memset(&p, 0, sizeof p);
    p.m = f->m, p.n = f->n,
    p.k = packed                    ? 64
          : f->kind == SIM_KIND_F16 ? 16
                                    : 32,
    p.a_type = f->a_type, p.b_type = f->b_type;
    p.scale_type = f->scale_type;
    p.accumulate = accumulate;
    p.negate = !packed; /* idesc_of negates B */
    p.group = !scaled ? 0 : f->scale == SIM_SCALE_4X || f->scale == SIM_SCALE_BLOCK16 ? 16 : 32;
    randomise();
    for (int c = 0; c < f->n_ctas; c++) {
        uint32_t address;
        sim_tmem_reset(&tmem[c]);
        assert_int_equal(sim_tmem_alloc(&tmem[c], 512, &address, &fault), SIM_ALLOC_DONE);
        memset(bytes[c], 0xff, sizeof bytes[c]);
        m.a_descriptor = place(bytes[c], AT_SMEM_A, !f->transpose_a, f->span, f->a_type, packed,
                               (const uint32_t(*)[64])p.a, c * rows, rows, false);
        m.b_descriptor = place(bytes[c], AT_SMEM_B, !f->transpose_b, f->span, f->b_type, packed,
                               (const uint32_t(*)[64])p.b, c * columns, columns, false);
        for (int i = 0; f->a_in_tmem && i < rows; i++)
            for (int k = 0; k < p.k; k++) {
                int bit = k * width_of(f->a_type), lane = f->m == 64 ? i / 16 * 32 + i % 16 : i;
                put_bits((uint8_t *)cell(c, lane, AT_A + bit / 32), bit % 32, width_of(f->a_type),
                         p.a[c * rows + i][k]);
            }
        for (int part = 0; scaled && part < 4; part++)
            for (int g = 0; g < p.k / p.group; g++) {
                for (int i = 0; i < rows; i++)
                    put_bits((uint8_t *)cell(c, i % 32 + 32 * part, AT_SFA + i / 32), 8 * (f->id + g), 8,
                             p.scale_a[c * rows + i][g]);
                for (int j = 0; j < f->n; j++)
                    put_bits((uint8_t *)cell(c, j % 32 + 32 * part, AT_SFB + j / 32), 8 * (f->id + g), 8,
                             p.scale_b[j][g]);
            }
    }
    for (int i = 0; accumulate && i < f->m; i++)
        for (int j = 0; j < f->n; j++) {
            int cta, lane, column;
            d_place(f, i, j, &cta, &lane, &column);
            memcpy(cell(cta, lane, column), &p.c[i][j], 4);
        }
    return m;
}

static bool run(const struct sim_tcgen05_mma *m, const struct sim_choices *choices)
{
    struct sim_shared        s[2] = {shared_of(0), shared_of(1)};
    const struct sim_shared *shared[2] = {&s[0], &s[1]};
    struct sim_tmem         *both[2] = {&tmem[0], &tmem[1]};
    return sim_tcgen05_mma(m, choices, shared, both, &fault);
}

static float result(const struct form *f, int i, int j)
{
    int   cta, lane, column;
    float d;
    d_place(f, i, j, &cta, &lane, &column);
    memcpy(&d, cell(cta, lane, column), 4);
    return d;
}

static void one_tcgen05(const struct form *f, bool accumulate, const struct sim_choices *choices)
{
    struct sim_tcgen05_mma m = set_up(f, accumulate);
    RIG_OK(run(&m, choices));
    for (int i = 0; i < f->m; i++)
        for (int j = 0; j < f->n; j++)
            expect(i, j, result(f, i, j), choices);
}

static const struct form nvfp4 = {
    SIM_KIND_MXF4NVF4, SIM_SCALE_BLOCK16, SIM_E2M1, SIM_E2M1, SIM_UE4M3, 1, 128, 128, 128, 0, false, false, false};

static void tcgen05_products(void **state)
{
    (void)state;
    const struct sim_choices steps = {.group_sums_in_f32 = true};
    static const struct form forms[] = {
        {SIM_KIND_MXF4NVF4, SIM_SCALE_BLOCK16, SIM_E2M1, SIM_E2M1, SIM_UE4M3, 1, 128, 8, 128, 0, false, false, false},
        {SIM_KIND_MXF4NVF4, SIM_SCALE_BLOCK16, SIM_E2M1, SIM_E2M1, SIM_UE4M3, 1, 128, 200, 64, 0, false, false, false},
        {SIM_KIND_MXF4NVF4, SIM_SCALE_4X, SIM_E2M1, SIM_E2M1, SIM_UE4M3, 2, 256, 256, 128, 0, false, false, false},
        {SIM_KIND_MXF4NVF4, SIM_SCALE_BLOCK16, SIM_E2M1, SIM_E2M1, SIM_UE4M3, 2, 256, 48, 32, 0, false, false, false},
        {SIM_KIND_MXF4NVF4, SIM_SCALE_BLOCK16, SIM_E2M1, SIM_E2M1, SIM_UE4M3, 1, 128, 64, 0, 0, false, false, true},
        {SIM_KIND_MXF4NVF4, SIM_SCALE_BLOCK16, SIM_E2M1, SIM_E2M1, SIM_UE8M0, 1, 128, 64, 0, 0, false, false, false},
        {SIM_KIND_MXF4NVF4, SIM_SCALE_BLOCK32, SIM_E2M1, SIM_E2M1, SIM_UE8M0, 1, 128, 96, 128, 2, false, false, false},
        {SIM_KIND_MXF4, SIM_SCALE_NONE, SIM_E2M1, SIM_E2M1, SIM_UE8M0, 2, 256, 32, 128, 0, false, false, false},
        {SIM_KIND_MXF8F6F4, SIM_SCALE_BLOCK32, SIM_E4M3, SIM_E2M1, SIM_UE8M0, 1, 128, 128, 128, 3, false, false, false},
        {SIM_KIND_MXF8F6F4, SIM_SCALE_1X, SIM_E5M2, SIM_E3M2, SIM_UE8M0, 2, 256, 64, 64, 1, false, false, false},
        {SIM_KIND_MXF8F6F4, SIM_SCALE_1X, SIM_E4M3, SIM_E4M3, SIM_UE8M0, 1, 128, 64, 128, 2, false, true, false},
        {SIM_KIND_F8F6F4, SIM_SCALE_NONE, SIM_E2M3, SIM_E4M3, SIM_UE8M0, 1, 64, 40, 32, 0, false, false, false},
        {SIM_KIND_F8F6F4, SIM_SCALE_NONE, SIM_E4M3, SIM_E4M3, SIM_UE8M0, 2, 128, 96, 128, 0, true, false, false},
        {SIM_KIND_F8F6F4, SIM_SCALE_NONE, SIM_E4M3, SIM_E5M2, SIM_UE8M0, 1, 64, 24, 0, 0, false, false, true},
        {SIM_KIND_F16, SIM_SCALE_NONE, SIM_BF16, SIM_BF16, SIM_UE8M0, 1, 128, 256, 128, 0, false, false, false},
        {SIM_KIND_F16, SIM_SCALE_NONE, SIM_BF16, SIM_BF16, SIM_UE8M0, 1, 64, 8, 64, 0, true, false, false},
        {SIM_KIND_F16, SIM_SCALE_NONE, SIM_F16, SIM_F16, SIM_UE8M0, 2, 256, 128, 128, 0, false, true, false},
        {SIM_KIND_F16, SIM_SCALE_NONE, SIM_BF16, SIM_BF16, SIM_UE8M0, 2, 128, 64, 32, 0, false, false, false},
        {SIM_KIND_F16, SIM_SCALE_NONE, SIM_BF16, SIM_BF16, SIM_UE8M0, 1, 128, 64, 0, 0, false, false, true},
    };
    one_tcgen05(&nvfp4, false, &plain);
    one_tcgen05(&nvfp4, true, &plain);
    one_tcgen05(&nvfp4, true, &steps);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        one_tcgen05(&forms[i], i % 2 == 0, &plain);
}

/* The ISA's open questions, both ways. */
static void choices_both_ways(void **state)
{
    (void)state;
    struct sim_choices     other = plain;
    struct sim_tcgen05_mma m = set_up(&nvfp4, false);
    int                    row = 37, column = 70;
    for (int part = 0; part < 4; part++) /* a subnormal scale */
        put_bits((uint8_t *)cell(0, row % 32 + 32 * part, AT_SFA + row / 32), 8, 8, 5);
    p.scale_a[row][1] = 5;
    RIG_OK(run(&m, &plain));
    expect(row, column, result(&nvfp4, row, column), &plain);
    static struct problem kept;
    kept = p;
    for (int g = 0; g < 4; g++) {
        p.scale_a[row][g] = p.scale_a[row][g] < 8 ? 0 : p.scale_a[row][g];
        p.scale_b[column][g] = p.scale_b[column][g] < 8 ? 0 : p.scale_b[column][g];
    }
    other.flush_scale_subnormals = true;
    RIG_OK(run(&m, &other));
    expect(row, column, result(&nvfp4, row, column), &plain);
    p = kept;

    for (int part = 0; part < 4; part++) /* the top bit */
        put_bits((uint8_t *)cell(0, row % 32 + 32 * part, AT_SFA + row / 32), 8, 8, 0x80 | 0x3a);
    RIG_FAULT(run(&m, &plain), "top bit");
    p.scale_a[row][1] = 0x3a;
    other = (struct sim_choices){.scale_sign_ignored = true};
    RIG_OK(run(&m, &other));
    expect(row, column, result(&nvfp4, row, column), &plain);

    for (int k = 0; k < 16; k++) /* a NaN scale over zeros, +0 and -0 */
        p.a[row][k] = k % 2 ? 8 : 0;
    place(bytes[0], AT_SMEM_A, true, 128, SIM_E2M1, true, (const uint32_t (*)[64])p.a, 0, 128, false);
    for (int part = 0; part < 4; part++)
        put_bits((uint8_t *)cell(0, row % 32 + 32 * part, AT_SFA + row / 32), 0, 16, 0x3a7f);
    RIG_OK(run(&m, &plain));
    assert_true(isnan(result(&nvfp4, row, column)) && !isnan(result(&nvfp4, row + 1, column)));
    p.scale_a[row][0] = 0;
    other = (struct sim_choices){.zero_hides_nan_scale = true};
    RIG_OK(run(&m, &other));
    expect(row, column, result(&nvfp4, row, column), &plain);

    struct form narrow = nvfp4; /* scales behind n are not read, unless they are */
    narrow.n = 64;
    m = set_up(&narrow, false);
    other = (struct sim_choices){.scales_beyond_n_read = true};
    RIG_OK(run(&m, &plain));
    RIG_FAULT(run(&m, &other), "scales of B: lane 0, column 262 was never written");

    m = set_up(&nvfp4, false); /* a base offset turns the swizzle's phase */
    m.a_descriptor |= 1ull << 49;
    RIG_OK(run(&m, &(struct sim_choices){.base_offset_ignored = true}));
    expect(row, column, result(&nvfp4, row, column), &plain);
    uint32_t unturned = *cell(0, row, column);
    RIG_OK(run(&m, &plain));
    assert_true(*cell(0, row, column) != unturned);
}

static void misuse_is_a_fault(void **state)
{
    (void)state;
    struct sim_tcgen05_mma m = set_up(&nvfp4, false), bad;
    *cell(0, 64 + 3, AT_SFB + 1) ^= 1;
    RIG_FAULT(run(&m, &plain), "scales of B: row 35 differs between lanes 3 and 67");
    m = set_up(&nvfp4, false);
    tmem[0].written[96][AT_SFA] = 0;
    RIG_FAULT(run(&m, &plain), "scales of A: lane 96");
    m = set_up(&nvfp4, false);
    bad = m;
    bad.d_address = 1 << 16;
    RIG_FAULT(run(&bad, &plain), "D at lane 1");
    bad = m;
    bad.d_address = 448;
    RIG_FAULT(run(&bad, &plain), "outside tensor memory");
    bad = m;
    bad.scale_a_address |= 1u << 30;
    RIG_FAULT(run(&bad, &plain), "wants lane 0");
    bad = m;
    bad.accumulate = true;
    RIG_FAULT(run(&bad, &plain), "D: lane 0, column 0 was never written");
    bad = m;
    bad.a_descriptor = descriptor_of(131072 - 1024, 16, 1024, 128, false);
    RIG_FAULT(run(&bad, &plain), "outside the CTA's");
    bad = m;
    bad.n_ctas = 2;
    RIG_FAULT(run(&bad, &plain), "not modelled");
    RIG_OK(sim_tmem_dealloc(&tmem[0], 0, 512, &fault));
    RIG_FAULT(run(&m, &plain), "not allocated");
}

/* Every byte the product reads, and no other, changes it: a flipped code moves exactly its row or column. */
static void operands_are_read_where_they_stand(void **state)
{
    (void)state;
    static float           first[128][128];
    struct sim_tcgen05_mma m = set_up(&nvfp4, false);
    RIG_OK(run(&m, &plain));
    for (int i = 0; i < 128; i++)
        for (int j = 0; j < 128; j++)
            first[i][j] = result(&nvfp4, i, j);
    for (int round = 0; round < 40; round++) {
        int      row = (int)(rig_random(&seed) % 128), k = (int)(rig_random(&seed) % 64);
        bool     of_a = round % 2;
        uint32_t at = rig_canonical(true, 128, 4, 16, 1024, of_a ? AT_SMEM_A : AT_SMEM_B, row, k & ~1);
        bytes[0][at] ^= (uint8_t)(8 << k % 2 * 4); /* the sign */
        RIG_OK(run(&m, &plain));
        for (int i = 0; i < 128; i++)
            for (int j = 0; j < 128; j++)
                assert_true(result(&nvfp4, i, j) == first[i][j] || (of_a ? i : j) == row);
        bytes[0][at] ^= (uint8_t)(8 << k % 2 * 4);
    }
}

static void element_values(void **state)
{
    (void)state;
    for (int e = SIM_E2M1; e <= SIM_UE8M0; e++)
        for (uint32_t c = 0; c < 1u << (e == SIM_UE4M3 ? 7 : width_of((enum sim_element)e)); c++) {
            double want = value_of((enum sim_element)e, c), got = (double)sim_element_value((enum sim_element)e, c);
            assert_true(got == want || (isnan(got) && isnan(want)));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(element_values),
        cmocka_unit_test(wgmma),
        cmocka_unit_test(mma_sync),
        cmocka_unit_test(tcgen05_products),
        cmocka_unit_test(choices_both_ways),
        cmocka_unit_test(misuse_is_a_fault),
        cmocka_unit_test(operands_are_read_where_they_stand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
