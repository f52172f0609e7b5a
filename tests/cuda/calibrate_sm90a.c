/* What Hopper's own products and attention (wgmma, bulk copies to clusters, mbarriers) give for fixed inputs. The same
 * program runs on a card, where it writes a golden file, and linked with the PTX simulator, which must give the same.
 *
 *   calibrate_sm90a write FILE | check FILE
 *
 * Inputs come from a seed. Half of the cases are small integers, whose sums are exact in any order: there the card, the
 * simulator and plain C agree in every bit. The others are random numbers: results lie within the bound of
 * accumulation, of the sum in double and of each other; the file holds a sample of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate.h"

/* What the kernels' launchers need of the backend. */
enum nib_status nib_cuda_check(struct nib_stream *s, cudaError_t e, const char *what)
{
    (void)s;
    if (e != cudaSuccess) {
        fprintf(stderr, "calibrate_sm90a: %s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
    return NIB_OK;
}

void nib_cuda_flush(struct nib_stream *s)
{
    (void)s;
}

/* ---- Memory and numbers ---- */

enum { ARENA = 64 << 20, ROWS_MOST = 256, SAMPLE = 3000 };

static struct nib_stream stream;
static uint8_t          *arena;
static size_t            used;
static uint64_t          state;

void *calibrate_host(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        fputs("calibrate_sm90a: no memory\n", stderr);
        exit(1);
    }
    return p;
}

void *calibrate_room(size_t bytes)
{
    void *p = arena + used;
    used += (bytes + 255) / 256 * 256;
    if (used > ARENA) {
        fputs("calibrate_sm90a: the arena is too small\n", stderr);
        exit(1);
    }
    return p;
}

static void copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)nib_cuda_check(&stream, cudaMemcpyAsync(to, from, bytes, kind, stream.handle), "a copy");
    (void)nib_cuda_check(&stream, cudaStreamSynchronize(stream.handle), "the kernels");
}

void *calibrate_up(const void *from, size_t bytes)
{
    void *p = calibrate_room(bytes);
    copy(p, from, bytes, cudaMemcpyHostToDevice);
    return p;
}

void calibrate_seed(uint64_t seed)
{
    state = seed;
}

uint32_t calibrate_next(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

double calibrate_bf16_value(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float    v;
    memcpy(&v, &u, 4);
    return (double)v;
}

static uint16_t bf16_of(float v) /* exact for what is asked here */
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return (uint16_t)(u >> 16);
}

uint16_t calibrate_bf16(bool exact)
{
    if (exact)
        return bf16_of((float)((int)(calibrate_next() % 9) - 4));
    return (uint16_t)((calibrate_next() % 2) << 15 | (120 + calibrate_next() % 8) << 7 | calibrate_next() % 128);
}

double calibrate_e4m3_value(uint8_t c)
{
    double v = (c & 0x78) == 0 ? ldexp(c & 7, -9) : ldexp(8 + (c & 7), (c >> 3 & 15) - 10);
    return c & 0x80 ? -v : v;
}

uint8_t calibrate_e4m3(bool exact)
{
    static const uint8_t small[5] = {0, 0x38, 0x40, 0x44, 0x48}; /* 0 to 4 */
    uint8_t              c = (uint8_t)calibrate_next();
    if (exact)
        return (uint8_t)(small[c % 5] | (calibrate_next() % 2) << 7);
    return (c & 0x7f) == 0x7f ? 0 : c;
}

double calibrate_e2m1_value(uint32_t c)
{
    static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return c & 8 ? -value[c & 7] : value[c & 7];
}

/* ---- Results ---- */

static FILE *file;
static bool  writes;
static int   n_wrong;

static void transfer(void *data, size_t bytes)
{
    if ((writes ? fwrite(data, 1, bytes, file) : fread(data, 1, bytes, file)) != bytes) {
        fputs("calibrate_sm90a: the golden file is too short, or cannot be written\n", stderr);
        exit(1);
    }
}

void calibrate_judge(const char *name, const float *got, const double *want, const double *bound, int64_t n)
{
    uint64_t hash = 14695981039346656037u, golden;
    double   worst = 0, apart = 0; /* from plain C, and from the file, in bounds */
    int64_t  wrong = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &got[i], 4);
        hash = (hash ^ u) * 1099511628211u;
        double off = fabs((double)got[i] - want[i]);
        if (bound ? !(off <= bound[i]) : (double)got[i] != want[i])
            wrong++;
        if (bound && off / bound[i] > worst)
            worst = off / bound[i];
    }
    golden = hash;
    transfer(&golden, sizeof golden);
    int64_t step = n / SAMPLE + 1;
    for (int64_t i = 0; bound && i < n; i += step) {
        float v = got[i];
        transfer(&v, sizeof v);
        double off = fabs((double)v - (double)got[i]);
        apart = off / bound[i] > apart ? off / bound[i] : apart;
        wrong += !(off <= bound[i]);
    }
    bool same = golden == hash;
    if (wrong > 0 || (!bound && !same))
        n_wrong++;
    printf("%-28s %7ld results, %ld wrong, %s the file", name, (long)n, (long)wrong,
           writes ? "written to" : same ? "bits of" : "other bits than");
    if (bound)
        printf("; at most %.4f of the bound from double, %.4f from the file", worst, apart);
    puts("");
}

/* ---- Products ---- */

struct product {
    const char          *name;
    enum nib_weight_type type;
    bool                 fp8_rows, exact, f32;
    int32_t              n, n_out, n_in;
};

/* The weight packed for the kernels; its values to w [n_out][n_in]. */
static struct nib_cuda_weight weight_up(const struct product *p, double *w)
{
    bool    fp8 = p->type == NIB_WEIGHT_FP8, bf16 = p->type == NIB_WEIGHT_BF16;
    int64_t n = (int64_t)p->n_out * p->n_in, block = p->type == NIB_WEIGHT_NVFP4 ? 16 : 32;
    size_t  codes_bytes = (size_t)(bf16 ? 2 * n : fp8 ? n : n / 2), packed_codes, packed_scales;
    int32_t k_blocks = (p->n_in + 127) / 128;
    size_t  n_scales = (size_t)(bf16 ? 0 : fp8 ? (p->n_out + 127) / 128 * k_blocks : n / block);
    uint8_t *codes = calibrate_host(codes_bytes), *scales = calibrate_host(n_scales);
    for (size_t i = 0; i < codes_bytes; i++)
        codes[i] = fp8 ? calibrate_e4m3(p->exact) : (uint8_t)calibrate_next();
    for (int64_t i = 0; bf16 && i < n; i++) {
        uint16_t h = calibrate_bf16(p->exact);
        memcpy(codes + 2 * i, &h, 2);
    }
    for (size_t i = 0; i < n_scales; i++) {
        if (p->type == NIB_WEIGHT_NVFP4) /* 1/2, 1, 2; or anything about 1 */
            scales[i] = (uint8_t)(p->exact ? 0x30 + calibrate_next() % 3 * 8 : 0x28 + calibrate_next() % 0x20);
        else
            scales[i] = (uint8_t)(126 + calibrate_next() % 3);
    }
    struct nib_weight_part part = {codes, scales, p->type == NIB_WEIGHT_NVFP4 ? 0.5f : 1.0f};
    struct nib_weight_desc d = {p->type, p->fp8_rows ? NIB_ACT_FP8 : NIB_ACT_PLAIN, 1, p->n_out, p->n_in, &part, NIB_USE_ANY};
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = 0;
        int64_t  o = i / p->n_in, k = i % p->n_in;
        if (bf16)
            memcpy(&h, codes + 2 * i, 2);
        w[i] = bf16  ? calibrate_bf16_value(h)
               : fp8 ? calibrate_e4m3_value(codes[i]) * ldexp(1, scales[o / 128 * k_blocks + k / 128] - 127)
                     : calibrate_e2m1_value((uint32_t)codes[i / 2] >> i % 2 * 4 & 15u) *
                           (block == 16 ? calibrate_e4m3_value(scales[i / 16]) * 0.5 : ldexp(1, scales[i / 32] - 127));
    }
    struct nib_cuda_weight out = {{d.type, d.act, 1, d.n_out, d.n_in}, {0}, NULL};
    int32_t most = n_scales > 0 && block == 32 ? nib_cuda_largest_scale(&d, 0) : 0;
    enum nib_cuda_layout layout = nib_cuda_layout_of(&d, &packed_codes, &packed_scales);
    out.m = (struct nib_cuda_matrix){.codes = calibrate_room(packed_codes),
                                     .scales = calibrate_room(packed_scales),
                                     .alpha0 = nib_cuda_alpha(&d, 0, most, layout),
                                     .codes_stride = (int64_t)packed_codes,
                                     .scales_stride = (int64_t)packed_scales,
                                     .type = (int32_t)d.type,
                                     .layout = (int32_t)layout,
                                     .n_stack = 1,
                                     .n_out = d.n_out,
                                     .n_in = d.n_in};
    const uint8_t *on = calibrate_up(codes, codes_bytes), *on_scales = calibrate_up(scales, n_scales);
    (void)nib_cuda_check(&stream, nib_cuda_pack(stream.handle, &out.m, 0, on, on_scales, most), "packing");
    free(codes);
    free(scales);
    return out;
}

/* Rows on the device; their values to x [n][n_in]. */
static struct nib_act rows_up(const struct product *p, double *x)
{
    int64_t        n = (int64_t)p->n * p->n_in, k_blocks = (p->n_in + 127) / 128;
    struct nib_act a = {.rows = p->n, .cols = p->n_in, .codes_stride = p->n_in, .scales_stride = k_blocks};
    uint16_t      *plain = calibrate_host((size_t)n * 2);
    uint8_t       *codes = calibrate_host((size_t)n), *scales = calibrate_host((size_t)(p->n * k_blocks));
    for (int64_t i = 0; i < p->n * k_blocks; i++)
        scales[i] = (uint8_t)(126 + calibrate_next() % 3);
    for (int64_t i = 0; i < n; i++) {
        plain[i] = calibrate_bf16(p->exact);
        codes[i] = calibrate_e4m3(p->exact);
        x[i] = p->fp8_rows
                   ? calibrate_e4m3_value(codes[i]) * ldexp(1, scales[i / p->n_in * k_blocks + i % p->n_in / 128] - 127)
                   : calibrate_bf16_value(plain[i]);
    }
    if (p->fp8_rows) {
        a.format = NIB_ACT_FP8;
        a.codes = calibrate_up(codes, (size_t)n);
        a.scales = calibrate_up(scales, (size_t)(p->n * k_blocks));
    } else {
        a.plain = (struct nib_mat){calibrate_up(plain, (size_t)n * 2), NIB_DTYPE_BF16, p->n, p->n_in, p->n_in};
    }
    free(plain);
    free(codes);
    free(scales);
    return a;
}

float calibrate_to_bf16(double v)
{
    float    f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    u = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
    memcpy(&f, &u, 4);
    return f;
}

/* As fp32. */
float *calibrate_down(const struct nib_mat *y)
{
    int64_t n = (int64_t)y->rows * y->cols;
    float  *out = calibrate_host((size_t)n * 4);
    if (y->dtype == NIB_DTYPE_F32) {
        copy(out, y->data, (size_t)n * 4, cudaMemcpyDeviceToHost);
        return out;
    }
    uint16_t *half = calibrate_host((size_t)n * 2);
    copy(half, y->data, (size_t)n * 2, cudaMemcpyDeviceToHost);
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)calibrate_bf16_value(half[i]);
    free(half);
    return out;
}

static void run_product(const struct product *p)
{
    int64_t n = (int64_t)p->n * p->n_out;
    double *w = calibrate_host((size_t)p->n_out * (size_t)p->n_in * 8);
    double *x = calibrate_host((size_t)p->n * (size_t)p->n_in * 8);
    double *want = calibrate_host((size_t)n * 8), *bound = calibrate_host((size_t)n * 8);
    used = 0;
    stream.parts = calibrate_room((size_t)ROWS_MOST * (size_t)p->n_in * 4);
    stream.n_parts_max = (int64_t)ROWS_MOST * p->n_in * 2;
    stream.exponent = calibrate_room(8 * ROWS_MOST * 4);
    struct nib_cuda_weight   weight = weight_up(p, w);
    struct nib_act           rows = rows_up(p, x);
    enum nib_dtype           dtype = p->f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16;
    struct nib_mat           y = {calibrate_room((size_t)n * 4), dtype, p->n, p->n_out, p->n_out};
    const struct nib_weight *head = &weight.head;
    if (!nib_cuda_wide_takes(&stream, &rows, p->n, 1, &head, 0)) {
        fprintf(stderr, "calibrate_sm90a: %s is not what the kernel takes\n", p->name);
        exit(1);
    }
    (void)nib_cuda_wide(&stream, &rows, 0, p->n, 1, &head, &y, 0);
    float *got = calibrate_down(&y);
    for (int64_t i = 0; i < n; i++) {
        const double *a = x + i / p->n_out * p->n_in, *b = w + i % p->n_out * p->n_in;
        double        sum = 0, size = 0;
        for (int32_t k = 0; k < p->n_in; k++) {
            sum += a[k] * b[k];
            size += fabs(a[k] * b[k]);
        }
        /* Every addend is cut at most at 2^-23 of the largest sum so far. */
        bound[i] = p->n_in * 0x1p-23 * size + (p->f32 ? 0 : 0x1p-8 * fabs(sum));
        want[i] = p->exact && !p->f32 ? (double)calibrate_to_bf16(sum) : sum;
    }
    calibrate_judge(p->name, got, want, p->exact ? NULL : bound, n);
    free(w);
    free(x);
    free(want);
    free(bound);
    free(got);
}

/* ---- All of them ---- */

int main(int argc, char **argv)
{
    /* One tile of 128 rows and one of 256, blocks in pairs and single, results by eights and one by one. */
    static const struct product products[] = {
        {"integers, BF16", NIB_WEIGHT_BF16, false, true, false, 100, 144, 192},
        {"integers, NVFP4", NIB_WEIGHT_NVFP4, false, true, true, 130, 48, 128},
        {"integers, MXFP4, FP8 rows", NIB_WEIGHT_MXFP4, true, true, false, 100, 144, 256},
        {"integers, FP8, FP8 rows", NIB_WEIGHT_FP8, true, true, true, 130, 32, 192},
        {"random, BF16", NIB_WEIGHT_BF16, false, false, true, 130, 32, 192},
        {"random, NVFP4", NIB_WEIGHT_NVFP4, false, false, true, 100, 144, 256},
        {"random, MXFP4, FP8 rows", NIB_WEIGHT_MXFP4, true, false, true, 130, 32, 256},
        {"random, FP8, FP8 rows", NIB_WEIGHT_FP8, true, false, true, 100, 48, 192},
    };
    writes = argc == 3 && strcmp(argv[1], "write") == 0;
    if (argc != 3 || (!writes && strcmp(argv[1], "check") != 0)) {
        fputs("usage: calibrate_sm90a write FILE | check FILE\n", stderr);
        return 2;
    }
    file = fopen(argv[2], writes ? "wb" : "rb");
    if (!file) {
        fprintf(stderr, "calibrate_sm90a: '%s' cannot be opened\n", argv[2]);
        return 1;
    }
    struct cudaDeviceProp prop;
    (void)nib_cuda_check(&stream, cudaGetDeviceProperties(&prop, 0), "the device");
    (void)nib_cuda_check(&stream, cudaStreamCreateWithFlags(&stream.handle, cudaStreamNonBlocking), "a stream");
    (void)nib_cuda_check(&stream, cudaMalloc((void **)&arena, ARENA), "memory");
    stream.arch = prop.major * 10 + prop.minor;
    stream.n_sms = prop.multiProcessorCount;
    stream.dims.n_rows_max = ROWS_MOST;
    printf("%s\n", prop.name);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        calibrate_seed(1000 + i);
        run_product(&products[i]);
    }
    for (int i = 0; i < calibrate_attend_cases(); i++) {
        used = 0;
        calibrate_attend(&stream, i);
    }
    if (fclose(file) != 0)
        n_wrong++;
    printf("%d of %zu cases wrong\n", n_wrong, sizeof products / sizeof *products + (size_t)calibrate_attend_cases());
    return n_wrong > 0;
}
