/* The sm_120a products on a card that lacks their instructions, which are emulated (emulated/): packing, copies,
 * pipeline, gathering of rows, slices of k, SwiGLU and stores are the kernels' own. Each result is held to sums over
 * the operands' values, the kernels of a format to the same bits. Usage:
 *
 *   parts_sm120a [small]     small: problems for compute-sanitizer
 *
 * The last line is "N passed, N failed". */
#include <cuda_runtime_api.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/sm120a/sm120a.h"

/* Kernels, by nvcc's names for the host. */
void nib_sm120a_pack(struct nib_sm120a_pack_args a);
void nib_sm120a_linear_128(struct nib_sm120a_linear_args a);
void nib_sm120a_linear_32(struct nib_sm120a_linear_args a);
void nib_sm120a_decode_8(struct nib_sm120a_linear_args a);
void nib_sm120a_decode_16(struct nib_sm120a_linear_args a);
void nib_sm120a_pack_fp8(struct nib_sm120a_pack_args a);
void nib_sm120a_fp8_8(struct nib_sm120a_linear_args a);
void nib_sm120a_fp8_16(struct nib_sm120a_linear_args a);
void nib_sm120a_fp8_64(struct nib_sm120a_linear_args a);
void nib_sm120a_pack_mxfp4(struct nib_sm120a_pack_args a);
void nib_sm120a_mxfp4_8(struct nib_sm120a_linear_args a);
void nib_sm120a_mxfp4_16(struct nib_sm120a_linear_args a);
void nib_sm120a_mxfp4_64(struct nib_sm120a_linear_args a);

enum { EXPERTS = 5, GAP = 8, KERNELS = 4 };

/* The kernels of a format of weights; products end with tile_rows 0. */
static const struct {
    const char *name;
    const void *pack;
    struct {
        int32_t     tile_rows;
        const void *kernel;
    } product[KERNELS + 1];
} formats[] = {[NIB_SM120A_NVFP4] = {"NVFP4",
                                     (const void *)nib_sm120a_pack,
                                     {{8, (const void *)nib_sm120a_decode_8},
                                      {16, (const void *)nib_sm120a_decode_16},
                                      {32, (const void *)nib_sm120a_linear_32},
                                      {128, (const void *)nib_sm120a_linear_128}}},
               [NIB_SM120A_FP8] = {"FP8",
                                   (const void *)nib_sm120a_pack_fp8,
                                   {{8, (const void *)nib_sm120a_fp8_8},
                                    {16, (const void *)nib_sm120a_fp8_16},
                                    {NIB_SM120A_MX_ROWS, (const void *)nib_sm120a_fp8_64}}},
               [NIB_SM120A_MXFP4] = {"MXFP4",
                                     (const void *)nib_sm120a_pack_mxfp4,
                                     {{8, (const void *)nib_sm120a_mxfp4_8},
                                      {16, (const void *)nib_sm120a_mxfp4_16},
                                      {NIB_SM120A_MX_ROWS, (const void *)nib_sm120a_mxfp4_64}}}};

struct problem {
    enum nib_sm120a_format format;
    int32_t                n_rows, n_out, n_in, n_parts;
    bool                   experts, f32;
};

/* Bytes as stored: of a row of x, of one matrix of weights. */
struct sizes {
    size_t x_codes, x_scales, w_codes, w_scales;
};

static struct sizes sizes_of(const struct problem *p)
{
    size_t in = (size_t)p->n_in, out = (size_t)p->n_out, tiles = (in + 127) / 128;
    if (p->format == NIB_SM120A_NVFP4)
        return (struct sizes){in / 2, in / 16, out * in / 2, out * in / 16};
    if (p->format == NIB_SM120A_FP8)
        return (struct sizes){in, tiles, out * in, (out + 127) / 128 * tiles};
    return (struct sizes){in, tiles, out * in / 2, out * in / 32};
}

/* Operands on the host; rows of x are n_rows / 2 + 1, taken through pairs, if there are experts. */
struct data {
    uint8_t *x_codes, *x_scales, *w_codes, *w_scales;
    float   *row_scale;
    int32_t *pair, *expert;
    int32_t  n_x, n_stack;
};

static uint64_t g_seed = 5;
static int      g_passed, g_failed;

static void ok(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        fprintf(stderr, "parts_sm120a: %s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

static uint32_t draw(void)
{
    g_seed = g_seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g_seed >> 33);
}

static void *room(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p) {
        fputs("parts_sm120a: no memory\n", stderr);
        exit(1);
    }
    return p;
}

static uint8_t *draw_bytes(size_t n, uint32_t first, uint32_t span, bool is_e4m3)
{
    uint8_t *p = room(n);
    for (size_t i = 0; i < n; i++) {
        p[i] = (uint8_t)(first + draw() % span);
        if (is_e4m3 && (p[i] & 0x7f) == 0x7f) /* NaN */
            p[i] = 0x38;
    }
    return p;
}

static void *on_card(const void *from, size_t bytes)
{
    void *p = NULL;
    ok(cudaMalloc(&p, bytes), "cudaMalloc");
    if (from)
        ok(cudaMemcpyAsync(p, from, bytes, cudaMemcpyHostToDevice, NULL), "cudaMemcpyAsync");
    return p;
}

static struct data make(const struct problem *p)
{
    struct data d = {.n_x = p->experts ? p->n_rows / 2 + 1 : p->n_rows, .n_stack = p->experts ? EXPERTS : 1};
    bool         nvfp4 = p->format == NIB_SM120A_NVFP4;
    struct sizes b = sizes_of(p);
    size_t       rows = (size_t)d.n_x, matrices = (size_t)d.n_stack * (size_t)p->n_parts;
    uint32_t     scale = nvfp4 ? 0x28 : 112, span = nvfp4 ? 0x30 : 12;
    d.x_codes = draw_bytes(rows * b.x_codes, 0, 256, !nvfp4);
    d.x_scales = draw_bytes(rows * b.x_scales, scale, span, false);
    d.w_codes = draw_bytes(matrices * b.w_codes, 0, 256, p->format == NIB_SM120A_FP8);
    d.w_scales = draw_bytes(matrices * b.w_scales, scale, span, false);
    d.row_scale = room(rows * sizeof *d.row_scale);
    for (size_t i = 0; i < rows; i++)
        d.row_scale[i] = ldexpf(1.0f + (float)(draw() % 1000) / 1000.0f, -6);
    d.row_scale[rows / 2] = NAN;
    if (!nvfp4)
        memset(d.x_scales + rows / 2 * b.x_scales, 255, b.x_scales);
    d.pair = room((size_t)p->n_rows * sizeof *d.pair);
    d.expert = room((size_t)p->n_rows * sizeof *d.expert);
    for (int32_t t = 0; t < p->n_rows; t++) {
        d.pair[t] = p->experts ? (int32_t)(draw() % (uint32_t)(2 * d.n_x)) : t;
        /* One row for expert 0, none for 1 and 4, a third of the others for 2, the rest for 3. */
        d.expert[t] = !p->experts ? 0 : t == 0 ? 0 : t <= p->n_rows / 3 ? 2 : 3;
    }
    return d;
}

static void drop(struct data *d)
{
    free(d->x_codes);
    free(d->x_scales);
    free(d->w_codes);
    free(d->w_scales);
    free(d->row_scale);
    free(d->pair);
    free(d->expert);
}

/* ---- On the card ---- */

/* Frees what it is given at the end of a run. */
struct pool {
    void *p[32];
    int   n;
};

static void *put(struct pool *pool, const void *from, size_t bytes)
{
    return pool->p[pool->n++] = on_card(from, bytes);
}

static void launch(const void *kernel, const struct nib_blackwell_launch *l, void *args)
{
    void *params[1] = {args};
    if (l->shared_bytes)
        ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)l->shared_bytes), l->kernel);
    ok(cudaLaunchKernel(kernel, (dim3){l->grid, 1, 1}, (dim3){l->block, 1, 1}, params, l->shared_bytes, NULL),
       l->kernel);
}

static void pack(const struct problem *p, const struct data *d, struct pool *pool, struct nib_sm120a_linear *l)
{
    bool         nvfp4 = p->format == NIB_SM120A_NVFP4;
    struct sizes b = sizes_of(p);
    size_t       matrices = (size_t)(d->n_stack * p->n_parts);
    size_t       codes = (size_t)(nvfp4 ? nib_sm120a_code_bytes(p->n_out, p->n_in)
                                        : nib_sm120a_mx_code_bytes(p->n_out, p->n_in, p->format));
    size_t       scales = (size_t)(nvfp4 ? nib_sm120a_scale_bytes(p->n_out, p->n_in)
                                         : nib_sm120a_mx_scale_bytes(p->n_out, p->n_in));
    uint8_t     *stored = put(pool, d->w_codes, matrices * b.w_codes);
    uint8_t     *stored_scales = put(pool, d->w_scales, matrices * b.w_scales);
    for (int32_t part = 0; part < p->n_parts; part++) {
        uint8_t *packed = put(pool, NULL, codes * (size_t)d->n_stack);
        uint8_t *packed_scales = put(pool, NULL, scales * (size_t)d->n_stack);
        for (int32_t e = 0; e < d->n_stack; e++) {
            size_t                      matrix = (size_t)(e * p->n_parts + part);
            struct nib_blackwell_launch plan;
            struct nib_sm120a_pack_args a = {.stored = stored + matrix * b.w_codes,
                                             .stored_scales = stored_scales + matrix * b.w_scales,
                                             .codes = packed + (size_t)e * codes,
                                             .scales = packed_scales + (size_t)e * scales,
                                             .n_out = p->n_out,
                                             .n_in = p->n_in};
            if (nvfp4)
                nib_sm120a_pack_plan(&a, &plan);
            else
                nib_sm120a_mx_pack_plan(&a, p->format, &plan);
            launch(formats[p->format].pack, &plan, &a);
        }
        l->w_codes[part] = packed;
        l->w_scales[part] = packed_scales;
    }
}

static void rows_up(const struct problem *p, const struct data *d, struct pool *pool, struct nib_sm120a_linear *l)
{
    struct sizes b = sizes_of(p);
    size_t       stride = (b.x_codes + 63) / 64 * 64, s_stride = (b.x_scales + 63) / 64 * 64;
    /* What lies between rows stays unwritten: initcheck would see it read. */
    uint8_t *codes = put(pool, NULL, (size_t)d->n_x * stride), *scales = put(pool, NULL, (size_t)d->n_x * s_stride);
    for (size_t t = 0; t < (size_t)d->n_x; t++) {
        ok(cudaMemcpyAsync(codes + t * stride, d->x_codes + t * b.x_codes, b.x_codes, cudaMemcpyHostToDevice, NULL),
           "codes");
        ok(cudaMemcpyAsync(scales + t * s_stride, d->x_scales + t * b.x_scales, b.x_scales, cudaMemcpyHostToDevice,
                           NULL),
           "scales");
    }
    l->x_codes = codes;
    l->x_scales = scales;
    l->x_codes_stride = (int64_t)stride;
    l->x_scales_stride = (int64_t)s_stride;
    l->row_scale = put(pool, d->row_scale, (size_t)d->n_x * 4);
}

static void groups_up(const struct problem *p, const struct data *d, struct pool *pool, struct nib_sm120a_linear *l)
{
    struct nib_blackwell_group *groups = room((size_t)(p->n_rows + EXPERTS) * sizeof *groups);
    int32_t                  n = 0;
    for (int32_t t = 0; t < p->n_rows;) {
        int32_t rows = 1;
        while (t + rows < p->n_rows && d->expert[t + rows] == d->expert[t] && rows < l->tile_rows)
            rows++;
        groups[n++] = (struct nib_blackwell_group){d->expert[t], rows, t};
        t += rows;
    }
    l->n_experts = EXPERTS;
    l->groups = put(pool, groups, (size_t)n * sizeof *groups);
    l->n_groups = put(pool, &n, sizeof n);
    l->pair = put(pool, d->pair, (size_t)p->n_rows * 4);
    l->top_k = 2;
    free(groups);
}

/* y [n_rows][n_out + GAP], the gap 0xff. Freed by the caller. */
static uint8_t *run(const struct problem *p, const struct data *d, int32_t tile_rows, const void *kernel)
{
    struct pool                 pool = {.n = 0};
    struct nib_blackwell_launch plan;
    struct nib_sm120a_linear_args args;
    char                          error[200];
    struct nib_sm120a_linear      l = {.n_rows = p->n_rows,
                                       .n_out = p->n_out,
                                       .n_in = p->n_in,
                                       .n_parts = p->n_parts,
                                       .alpha = {1e-3f, 2e-3f},
                                       .limit = 7,
                                       .y_stride = p->n_out + GAP,
                                       .y_f32 = p->f32,
                                       .tile_rows = tile_rows};
    size_t bytes = (size_t)p->n_rows * (size_t)l.y_stride * (p->f32 ? 4 : 2);
    pack(p, d, &pool, &l);
    rows_up(p, d, &pool, &l);
    if (p->experts)
        groups_up(p, d, &pool, &l);
    l.y = put(&pool, NULL, bytes);
    ok(cudaMemset(l.y, 0xff, bytes), "cudaMemset");
    if (!(p->format == NIB_SM120A_NVFP4 ? nib_sm120a_linear_plan(&l, &args, &plan, error, sizeof error)
                                        : nib_sm120a_mx_plan(&l, p->format, &args, &plan, error, sizeof error))) {
        fprintf(stderr, "parts_sm120a: %s\n", error);
        exit(1);
    }
    launch(kernel, &plan, &args);
    uint8_t *y = room(bytes);
    ok(cudaMemcpyAsync(y, l.y, bytes, cudaMemcpyDeviceToHost, NULL), "cudaMemcpyAsync");
    ok(cudaStreamSynchronize(NULL), plan.kernel);
    for (int i = 0; i < pool.n; i++)
        ok(cudaFree(pool.p[i]), "cudaFree");
    return y;
}

/* ---- What must come out ---- */

static double e2m1(uint32_t code)
{
    static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -value[code & 7] : value[code & 7];
}

static double ue4m3(uint32_t code)
{
    return code < 8 ? ldexp(code, -9) : ldexp(8 + (double)(code & 7), (int)(code >> 3) - 10);
}

static double e4m3(uint32_t code)
{
    return code & 0x80 ? -ue4m3(code & 0x7f) : ue4m3(code);
}

static double ue8m0(uint32_t code)
{
    return code == 255 ? (double)NAN : ldexp(1, (int)code - 127);
}

/* sum_of() for FP8 rows. */
static double mx_sum_of(const struct problem *p, const struct data *d, int32_t x_row, int64_t w_row, double *most)
{
    struct sizes   b = sizes_of(p);
    bool           fp8 = p->format == NIB_SM120A_FP8;
    int64_t        o = w_row % p->n_out;
    const uint8_t *x = d->x_codes + (size_t)x_row * b.x_codes, *x_scales = d->x_scales + (size_t)x_row * b.x_scales;
    const uint8_t *w = d->w_codes + (size_t)(w_row / p->n_out) * b.w_codes;
    const uint8_t *w_scales = d->w_scales + (size_t)(w_row / p->n_out) * b.w_scales;
    double         sum = 0;
    *most = 0;
    for (int64_t b32 = 0; b32 < p->n_in / 32; b32++) {
        int64_t tile = b32 / 4;
        double  scale = ue8m0(x_scales[tile]) * ue8m0(fp8 ? w_scales[o / 128 * ((p->n_in + 127) / 128) + tile]
                                                          : w_scales[o * (p->n_in / 32) + b32]);
        for (int64_t k = b32 * 32; k < b32 * 32 + 32; k++) {
            int64_t at = o * p->n_in + k;
            double  v = e4m3(x[k]) * scale * (fp8 ? e4m3(w[at]) : e2m1((unsigned)w[at / 2] >> (at % 2 * 4) & 15u));
            sum += v;
            *most += fabs(v);
        }
    }
    return sum;
}

/* The sum and that of its terms' magnitudes. */
static double sum_of(const struct problem *p, const struct data *d, int32_t x_row, int64_t w_row, double *most)
{
    double sum = 0;
    if (p->format != NIB_SM120A_NVFP4)
        return mx_sum_of(p, d, x_row, w_row, most);
    *most = 0;
    for (int64_t b = 0; b < p->n_in / 16; b++) {
        double         part = 0;
        const uint8_t *x = d->x_codes + (x_row * (int64_t)p->n_in + b * 16) / 2;
        const uint8_t *w = d->w_codes + (w_row * p->n_in + b * 16) / 2;
        for (int i = 0; i < 8; i++)
            part += e2m1(x[i] & 15u) * e2m1(w[i] & 15u) + e2m1((unsigned)x[i] >> 4) * e2m1((unsigned)w[i] >> 4);
        part *=
            ue4m3(d->x_scales[x_row * (int64_t)(p->n_in / 16) + b]) * ue4m3(d->w_scales[w_row * (p->n_in / 16) + b]);
        sum += part;
        *most += fabs(part);
    }
    return sum;
}

static bool right(const struct problem *p, const struct data *d, const uint8_t *y, int32_t t, int32_t o)
{
    int32_t x_row = p->experts ? d->pair[t] / 2 : t;
    double  v[2] = {0, 0}, bound[2] = {0, 0}, alpha[2] = {(double)1e-3f, (double)2e-3f}, most, got;
    int64_t at = t * (int64_t)(p->n_out + GAP) + o;
    for (int32_t part = 0; part < p->n_parts; part++) {
        int64_t w_row = ((int64_t)d->expert[t] * p->n_parts + part) * p->n_out + o;
        bool    nvfp4 = p->format == NIB_SM120A_NVFP4;
        double  scale = (nvfp4 ? (double)d->row_scale[x_row] : 1) * alpha[part];
        v[part] = sum_of(p, d, x_row, w_row, &most) * scale;
        /* A rounding for each instruction, each slice, and three of the scales. */
        bound[part] = (p->n_in / (nvfp4 ? 64 : 32) + NIB_SM120A_SLICES + 4) * 0x1p-24 * most * fabs(scale);
    }
    if (p->f32) {
        float f;
        memcpy(&f, y + at * 4, 4);
        got = f;
    } else {
        uint32_t u = (uint32_t)y[at * 2] << 16 | (uint32_t)y[at * 2 + 1] << 24;
        float    f;
        memcpy(&f, &u, 4);
        got = f;
    }
    if (isnan(v[0]))
        return isnan(got);
    double want = v[0], allowed = bound[0];
    if (p->n_parts == 2) { /* the slope of silu is below 1.1; its own arithmetic is good to 8 ulp */
        double g = fmin(v[0], 7), u = fmax(fmin(v[1], 7), -7), silu = g / (1 + exp(-g));
        want = silu * u;
        allowed = 1.1 * bound[0] * (fabs(u) + bound[1]) + fabs(silu) * bound[1] + 8 * 0x1p-23 * fabs(want) + 1e-35;
    }
    return fabs(got - want) <= allowed + (p->f32 ? 0 : 0x1p-8 * fabs(want));
}

static void check(const struct problem *p)
{
    struct data          d = make(p);
    uint8_t             *first = NULL;
    size_t               size = p->f32 ? 4 : 2, row = (size_t)(p->n_out + GAP) * size;
    bool                 good = true;
    for (int i = 0; formats[p->format].product[i].tile_rows; i++) {
        int32_t  tile_rows = formats[p->format].product[i].tile_rows;
        uint8_t *y = run(p, &d, tile_rows, formats[p->format].product[i].kernel);
        if (!first)
            first = y;
        else if (memcmp(first, y, (size_t)p->n_rows * row) != 0)
            good = false, printf("tiles of %d rows give other bits\n", tile_rows);
        if (y != first)
            free(y);
    }
    for (int32_t t = 0; t < p->n_rows && good; t++) {
        for (int32_t o = 0; o < p->n_out && good; o++)
            if (!right(p, &d, first, t, o))
                good = false, printf("row %d, output %d is wrong\n", t, o);
        for (size_t i = (size_t)p->n_out * size; i < row && good; i++)
            if (first[(size_t)t * row + i] != 0xff)
                good = false, printf("row %d is written behind its end\n", t);
    }
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < (size_t)p->n_rows * row; i++)
        hash = (hash ^ first[i]) * 1099511628211u;
    printf("%s: %d rows, [%d, %d] x %d%s%s: %s, %016llx\n", formats[p->format].name, p->n_rows, p->n_out, p->n_in,
           p->n_parts, p->experts ? ", experts" : "", p->f32 ? ", fp32" : ", bf16", good ? "ok" : "FAILED",
           (unsigned long long)hash);
    *(good ? &g_passed : &g_failed) += 1;
    free(first);
    drop(&d);
}

int main(int argc, char **argv)
{
    static const struct problem small[] = {{NIB_SM120A_NVFP4, 1, 40, 160, 1, false, true},
                                           {NIB_SM120A_NVFP4, 19, 136, 1568, 1, false, false},
                                           {NIB_SM120A_NVFP4, 37, 72, 544, 2, true, true},
                                           {NIB_SM120A_FP8, 19, 136, 1184, 1, false, false},
                                           {NIB_SM120A_FP8, 37, 72, 544, 2, true, true},
                                           {NIB_SM120A_MXFP4, 19, 136, 1184, 1, false, false},
                                           {NIB_SM120A_MXFP4, 37, 72, 544, 2, true, true}},
                                large[] = {{NIB_SM120A_NVFP4, 130, 200, 2336, 1, false, true},
                                           {NIB_SM120A_NVFP4, 300, 1024, 1536, 1, false, false},
                                           {NIB_SM120A_NVFP4, 96, 512, 1024, 2, true, true},
                                           {NIB_SM120A_NVFP4, 16, 520, 7168, 2, false, false},
                                           {NIB_SM120A_FP8, 130, 136, 2080, 1, false, true},
                                           {NIB_SM120A_FP8, 150, 256, 512, 1, true, false},
                                           {NIB_SM120A_MXFP4, 130, 136, 2080, 1, false, true},
                                           {NIB_SM120A_MXFP4, 150, 256, 512, 1, true, false}};
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++)
        check(&small[i]);
    bool only_small = argc > 1 && strcmp(argv[1], "small") == 0;
    for (size_t i = 0; !only_small && i < sizeof large / sizeof large[0]; i++)
        check(&large[i]);
    printf("%d passed, %d failed\n", g_passed, g_failed);
    return g_failed != 0;
}
