/* Measures the CUDA backend on a card: its own copy rate, products with weights at decode and prefill sizes, the
 * experts, and whole steps of a model of published shapes with random weights. Buffers rotate past the L2. Usage:
 *
 *   bench_cuda [linear] [prefill] [experts] [step] [ops] [attend] [index]      all of these without arguments
 *              [step128k] [ops128k] [step1] [products1]      only where named; the last two are for a profiler
 *              [once] PART...                                these parts without graphs and once each, for a profiler
 *
 * Prints bytes, time (median of graph replays) and the share of the copy rate. */
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

cudaError_t nib_rate_copy(cudaStream_t stream, const void *from, void *to, size_t bytes); /* rate_cuda.cu */

enum { REPEATS = 9, SOURCE_BYTES = 64 << 20 };

static const struct nib_backend_api *const api = &nib_backend_cuda;
struct nib_backend *g_backend;
struct nib_stream  *g_stream;
static uint8_t     *g_codes, *g_scales[3]; /* random; scales: UE4M3, UE8M0, bf16 values */
double              g_copy_rate;
bool                g_once;

static void ok(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        fprintf(stderr, "bench: %s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

void bench_done(enum nib_status status, const char *what)
{
    if (status != NIB_OK) {
        fprintf(stderr, "bench: %s: %s (%s)\n", what, nib_status_name(status), g_stream ? g_stream->error.text : "");
        exit(1);
    }
}

/* ---- Random data ---- */

static uint64_t g_seed = 7;

uint32_t bench_draw(void)
{
    g_seed = g_seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g_seed >> 32);
}

/* bf16 bits of a value of magnitude 1/64 to 1/16. */
static uint16_t draw_bf16(void)
{
    return (uint16_t)((bench_draw() & 0x8000u) | (0x3c80u + bench_draw() % 0x100u));
}

static void make_sources(void)
{
    g_codes = malloc(SOURCE_BYTES);
    for (int i = 0; i < 3; i++)
        g_scales[i] = malloc(SOURCE_BYTES);
    for (size_t i = 0; i < SOURCE_BYTES / 4; i++) {
        uint32_t v = bench_draw();
        v &= 0xbfbfbfbfu; /* no e4m3 NaN */
        memcpy(g_codes + 4 * i, &v, 4);
    }
    for (size_t i = 0; i < SOURCE_BYTES; i++) {
        g_scales[0][i] = (uint8_t)(0x30 + bench_draw() % 16);
        g_scales[1][i] = (uint8_t)(118 + bench_draw() % 4);
    }
    for (size_t i = 0; i < SOURCE_BYTES / 2; i++) {
        uint16_t h = draw_bf16();
        memcpy(g_scales[2] + 2 * i, &h, 2);
    }
}

struct nib_weight *bench_weight_for(enum nib_act_format act, enum nib_weight_type type, int32_t n_stack, int32_t n_out,
                                    int32_t n_in)
{
    struct nib_weight_part *part = calloc((size_t)n_stack, sizeof *part);
    struct nib_error        err = {0};
    struct nib_weight      *w = NULL;
    size_t                  n = (size_t)n_out * (size_t)n_in;
    uint8_t                *big = NULL;
    size_t                  bytes = type == NIB_WEIGHT_BF16 ? 2 * n : type == NIB_WEIGHT_FP8 ? n : n / 2;
    const uint8_t          *codes = type == NIB_WEIGHT_BF16 ? g_scales[2] : g_codes;
    if (bytes > SOURCE_BYTES) {
        big = malloc(bytes);
        for (size_t at = 0; at < bytes; at += SOURCE_BYTES)
            memcpy(big + at, codes, bytes - at < SOURCE_BYTES ? bytes - at : SOURCE_BYTES);
        codes = big;
    }
    for (int32_t i = 0; i < n_stack; i++)
        part[i] = (struct nib_weight_part){codes, g_scales[type == NIB_WEIGHT_NVFP4 ? 0 : 1],
                                           type == NIB_WEIGHT_NVFP4 ? 1e-3f : 1.0f};
    struct nib_weight_desc d = {type, act, n_stack, n_out, n_in, part, NIB_USE_ANY};
    if (api->weight_pack(g_backend, &d, &w, &err) != NIB_OK) {
        fprintf(stderr, "bench: %s\n", err.text);
        exit(1);
    }
    bench_done(api->synchronise(g_stream), "packing");
    free(part);
    free(big);
    return w;
}

struct nib_weight *bench_weight(enum nib_weight_type type, int32_t n_stack, int32_t n_out, int32_t n_in)
{
    return bench_weight_for(NIB_ACT_PLAIN, type, n_stack, n_out, n_in);
}

/* FP8 rows with what they need; scales of about 1/100. */
struct nib_act bench_fp8_rows(int32_t rows, int32_t cols)
{
    struct nib_act x = {.format = NIB_ACT_FP8,
                        .rows = rows,
                        .cols = cols,
                        .codes_stride = nib_act_codes_stride(NIB_ACT_FP8, cols),
                        .scales_stride = nib_act_scales_stride(NIB_ACT_FP8, cols)};
    size_t codes = (size_t)(rows * x.codes_stride), scales = (size_t)(rows * x.scales_stride);
    x.codes = api->alloc(g_backend, codes);
    x.scales = api->alloc(g_backend, scales);
    for (size_t at = 0; at < codes; at += SOURCE_BYTES)
        bench_done(api->upload(g_stream, x.codes + at, g_codes, codes - at < SOURCE_BYTES ? codes - at : SOURCE_BYTES),
                   "upload");
    bench_done(api->upload(g_stream, x.scales, g_scales[1], scales), "upload");
    bench_done(api->synchronise(g_stream), "upload");
    return x;
}

size_t bench_weight_bytes(const struct nib_weight *w)
{
    struct nib_weight_desc d = {w->type, w->act, w->n_stack, w->n_out, w->n_in, NULL, NIB_USE_ANY};
    return api->weight_bytes(&d);
}

void *bench_random(size_t bytes, bool f32)
{
    uint8_t *p = api->alloc(g_backend, bytes), *host = malloc(bytes);
    if (!p || !host) {
        fprintf(stderr, "bench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    for (size_t i = 0; i < bytes / (f32 ? 4 : 2); i++) {
        if (f32)
            ((float *)(void *)host)[i] = ((float)bench_draw() / 4294967296.0f - 0.5f) * 0.1f;
        else
            ((uint16_t *)(void *)host)[i] = draw_bf16();
    }
    bench_done(api->upload(g_stream, p, host, bytes), "upload");
    bench_done(api->synchronise(g_stream), "upload");
    free(host);
    return p;
}

static struct nib_mat bf16_mat(int32_t rows, int32_t cols)
{
    return (struct nib_mat){bench_random((size_t)rows * (size_t)cols * 2, false), NIB_DTYPE_BF16, rows, cols, cols};
}

void bench_open(const struct nib_dims *d)
{
    struct nib_backend_config c = {.dims = *d};
    struct nib_error          err = {0};
    if (api->open(&c, &g_backend, &err) != NIB_OK) {
        fprintf(stderr, "bench: %s\n", err.text);
        exit(1);
    }
    g_stream = api->stream(g_backend);
}

void bench_close(void)
{
    api->close(g_backend);
    g_backend = NULL;
    g_stream = NULL;
}

/* ---- Timing ---- */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double bench_graph_seconds(void (*work)(void *data), void *data, int *n_kernels)
{
    cudaGraph_t     graph;
    cudaGraphExec_t exec;
    cudaEvent_t     begin, end;
    float           ms[REPEATS];
    work(data); /* once outside: function attributes, first touches */
    bench_done(api->synchronise(g_stream), "warming up");
    if (g_once) {
        ok(cudaProfilerStart(), "profiler");
        work(data);
        bench_done(api->synchronise(g_stream), "work");
        ok(cudaProfilerStop(), "profiler");
        return 1;
    }
    ok(cudaStreamBeginCapture(g_stream->handle, cudaStreamCaptureModeRelaxed), "capture");
    work(data);
    nib_cuda_flush_all(g_stream);
    ok(cudaStreamEndCapture(g_stream->handle, &graph), "capture");
    ok(cudaGraphInstantiate(&exec, graph, 0), "graph");
    size_t n_nodes = 0;
    ok(cudaGraphGetNodes(graph, NULL, &n_nodes), "graph");
    if (n_kernels)
        *n_kernels = (int)n_nodes;
    ok(cudaEventCreate(&begin), "event");
    ok(cudaEventCreate(&end), "event");
    for (int i = -2; i < REPEATS; i++) {
        ok(cudaEventRecord(begin, g_stream->handle), "event");
        ok(cudaGraphLaunch(exec, g_stream->handle), "launch");
        ok(cudaEventRecord(end, g_stream->handle), "event");
        ok(cudaEventSynchronize(end), "replay");
        if (i >= 0)
            ok(cudaEventElapsedTime(&ms[i], begin, end), "event");
    }
    qsort(ms, REPEATS, sizeof *ms, by_value);
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    return (double)ms[REPEATS / 2] * 1e-3;
}

/* ---- The card's copy rate ---- */

struct copy {
    uint8_t *from, *to;
    size_t   bytes;
};

static void run_copy(void *data)
{
    const struct copy *c = data;
    ok(nib_rate_copy(g_stream->handle, c->from, c->to, c->bytes), "copy");
}

static const struct nib_dims k_dims = {
    .n_rows_max = 4096, .n_seqs_max = 64, .n_ctx_max = 8192, .dim = 7168, .n_hc = 4, .n_heads = 64, .head_dim = 512,
    .n_rot = 64, .q_rank = 1536, .n_groups = 8, .o_rank = 1024, .n_window = 128, .n_index_heads = 64, .index_dim = 128,
    .index_top_k = 512, .n_experts = 256, .top_k = 6, .n_inner = 2048, .n_inner_shared = 2048, .vocab = 4096};

static void bench_rates(void)
{
    bench_open(&k_dims);
    struct copy c = {NULL, NULL, (size_t)4 << 30};
    c.from = api->alloc(g_backend, c.bytes);
    c.to = api->alloc(g_backend, c.bytes);
    for (size_t at = 0; at < c.bytes; at += SOURCE_BYTES)
        bench_done(api->upload(g_stream, c.from + at, g_codes, SOURCE_BYTES), "upload");
    bench_done(api->synchronise(g_stream), "upload");
    double seconds = bench_graph_seconds(run_copy, &c, NULL);
    g_copy_rate = 2 * (double)c.bytes / seconds;
    printf("copy, device to device: %.3f TB/s read and written\n", g_copy_rate * 1e-12);
    api->release(g_backend, c.from);
    api->release(g_backend, c.to);
    bench_close();
}

/* ---- Products ---- */

#define N_COPIES_MAX 64

struct product {
    struct nib_weight *w[N_COPIES_MAX];
    int                n;
    struct nib_act     x;
    struct nib_mat     y;
};

static void run_product(void *data)
{
    struct product *p = data;
    for (int i = 0; i < p->n; i++)
        bench_done(g_stream->broken ? NIB_E_DEVICE
                              : api->ops->linear(g_stream, &(struct nib_linear_args){
                                                               .x = p->x, .n_weights = 1, .w = {p->w[i]}, .y = {p->y}}),
             "linear");
}

static const char *type_name(enum nib_weight_type t)
{
    static const char *const names[] = {"f32", "bf16", "fp8", "mxfp4", "nvfp4"};
    return names[t];
}

static struct nib_act bf16_rows(int32_t rows, int32_t cols)
{
    return (struct nib_act){.plain = bf16_mat(rows, cols), .rows = rows, .cols = cols};
}

static void bench_product_for(enum nib_act_format act, enum nib_weight_type type, int32_t n_out, int32_t n_in,
                              const int32_t *rows, int n_rows)
{
    struct product p = {.n = 1};
    p.w[0] = bench_weight_for(act, type, 1, n_out, n_in);
    double bytes = (double)bench_weight_bytes(p.w[0]);
    while (((double)p.n * bytes < 400e6 || p.n < 8) && p.n < N_COPIES_MAX) {
        p.w[p.n] = bench_weight_for(act, type, 1, n_out, n_in);
        p.n++;
    }
    for (int i = 0; i < n_rows; i++) {
        p.x = act == NIB_ACT_FP8 ? bench_fp8_rows(rows[i], n_in) : bf16_rows(rows[i], n_in);
        p.y = bf16_mat(rows[i], n_out);
        double seconds = bench_graph_seconds(run_product, &p, NULL) / p.n;
        double moved = bytes + 2.0 * rows[i] * (n_in + n_out), limit = moved / g_copy_rate;
        if (rows[i] > 64)
            printf("%-5s [%6d, %5d] %5d %s rows: %9.1f us, %7.1f TFLOP/s\n", type_name(type), n_out, n_in, rows[i],
                   act == NIB_ACT_FP8 ? "fp8" : "bf16", seconds * 1e6, 2e-12 * rows[i] * n_out * n_in / seconds);
        else
            printf("%-5s [%6d, %5d] %5d rows: %7.2f MB %7.2f us, limit %7.2f us, %5.1f %%, over by %6.2f us\n",
                   type_name(type), n_out, n_in, rows[i], moved * 1e-6, seconds * 1e6, limit * 1e6,
                   100 * limit / seconds, (seconds - limit) * 1e6);
        api->release(g_backend, p.x.plain.data);
        api->release(g_backend, p.x.codes);
        api->release(g_backend, p.x.scales);
        api->release(g_backend, p.y.data);
    }
    for (int i = 0; i < p.n; i++)
        api->weight_free(g_backend, p.w[i]);
}

static void bench_product(enum nib_weight_type type, int32_t n_out, int32_t n_in, const int32_t *rows, int n_rows)
{
    bench_product_for(NIB_ACT_PLAIN, type, n_out, n_in, rows, n_rows);
}

static void bench_linear(void)
{
    static const int32_t rows[] = {1, 2, 4, 8, 16, 32};
    bench_open(&k_dims);
    bench_product(NIB_WEIGHT_NVFP4, 1024, 4096, rows, 6);
    bench_product(NIB_WEIGHT_NVFP4, 4096, 8192, rows, 6);
    bench_product(NIB_WEIGHT_NVFP4, 32768, 1024, rows, 6);
    bench_product(NIB_WEIGHT_NVFP4, 7168, 16384, rows, 6);
    bench_product(NIB_WEIGHT_NVFP4, 65536, 1536, rows, 6);
    bench_product(NIB_WEIGHT_NVFP4, 65536, 7168, rows, 6);
    bench_product(NIB_WEIGHT_MXFP4, 7168, 16384, rows, 4);
    bench_product(NIB_WEIGHT_FP8, 7168, 16384, rows, 4);
    bench_product(NIB_WEIGHT_BF16, 7168, 16384, rows, 4);
    bench_product(NIB_WEIGHT_BF16, 8192, 4096, rows, 4);
    bench_close();
}

/* One product of each kind inside a profiler's range. */
static void profile_product(enum nib_weight_type type, int32_t n_out, int32_t n_in, int32_t rows)
{
    struct product p = {.n = 1, .x = bf16_rows(rows, n_in), .y = bf16_mat(rows, n_out)};
    p.w[0] = bench_weight(type, 1, n_out, n_in);
    run_product(&p);
    bench_done(api->synchronise(g_stream), "product");
    ok(cudaProfilerStart(), "profiler");
    run_product(&p);
    bench_done(api->synchronise(g_stream), "product");
    ok(cudaProfilerStop(), "profiler");
    api->release(g_backend, p.x.plain.data);
    api->release(g_backend, p.y.data);
    api->weight_free(g_backend, p.w[0]);
}

static void profile_products(void)
{
    bench_open(&k_dims);
    profile_product(NIB_WEIGHT_NVFP4, 65536, 7168, 1);
    profile_product(NIB_WEIGHT_NVFP4, 65536, 7168, 8);
    profile_product(NIB_WEIGHT_NVFP4, 7168, 16384, 1);
    profile_product(NIB_WEIGHT_NVFP4, 7168, 16384, 8);
    profile_product(NIB_WEIGHT_NVFP4, 8192, 7168, 4096);
    bench_close();
}

static void bench_prefill(void)
{
    static const int32_t rows[] = {128, 512, 4096};
    bench_open(&k_dims);
    bench_product(NIB_WEIGHT_NVFP4, 8192, 7168, rows, 3);
    bench_product(NIB_WEIGHT_MXFP4, 8192, 7168, rows + 2, 1);
    bench_product(NIB_WEIGHT_FP8, 8192, 7168, rows + 2, 1);
    bench_product(NIB_WEIGHT_BF16, 8192, 7168, rows + 2, 1);
    bench_product_for(NIB_ACT_FP8, NIB_WEIGHT_FP8, 8192, 7168, rows, 3);
    bench_product_for(NIB_ACT_FP8, NIB_WEIGHT_MXFP4, 8192, 7168, rows, 3);
    bench_close();
}

/* ---- A model of published shapes ---- */

struct shape {
    const char *name;
    int32_t     dim, n_heads, q_rank, n_groups, n_inner, n_experts, index_top_k;
};

static const struct shape k_shapes[] = {
    {"flash", 4096, 64, 1024, 8, 2048, 256, 512},
    {"pro", 7168, 128, 1536, 16, 3072, 384, 1024},
};

static float *vector(int32_t n)
{
    return bench_random((size_t)n * 4, true);
}

static struct nib_weight *counted(struct bench_model *m, enum nib_weight_type type, int32_t n_out, int32_t n_in)
{
    struct nib_weight *w = bench_weight(type, 1, n_out, n_in);
    m->bytes += (double)bench_weight_bytes(w);
    return w;
}

static struct nib_hc make_hc(const struct nib_config *c, int32_t n)
{
    return (struct nib_hc){vector(n * c->n_hc * c->dim), vector(n), vector(3)};
}

static void make_layer(struct bench_model *m, struct nib_layer *l, int32_t ratio)
{
    const struct nib_config *c = &m->config;
    const enum nib_weight_type t = NIB_WEIGHT_NVFP4, b = NIB_WEIGHT_BF16;
    const int32_t d = c->head_dim, coff = ratio == 4 ? 2 : 1;
    *l = (struct nib_layer){.ratio = ratio};
    l->attn_hc = make_hc(c, (2 + c->n_hc) * c->n_hc);
    l->ffn_hc = make_hc(c, (2 + c->n_hc) * c->n_hc);
    l->attn_norm = vector(c->dim);
    l->ffn_norm = vector(c->dim);
    l->q_norm = vector(c->q_rank);
    l->kv_norm = vector(d);
    l->sink = vector(c->n_heads);
    l->wq_a = counted(m, t, c->q_rank, c->dim);
    l->wq_b = counted(m, t, c->n_heads * d, c->q_rank);
    l->wkv = counted(m, t, d, c->dim);
    l->wo_a = counted(m, b, c->n_groups * c->o_rank, c->n_heads * d / c->n_groups);
    l->wo_b = counted(m, t, c->dim, c->n_groups * c->o_rank);
    if (ratio > 0)
        l->compress = (struct nib_compressor){counted(m, b, coff * d, c->dim), counted(m, b, coff * d, c->dim),
                                              vector(ratio * coff * d), vector(d)};
    if (ratio == 4) {
        l->index =
            (struct nib_compressor){counted(m, b, 2 * c->index_dim, c->dim), counted(m, b, 2 * c->index_dim, c->dim),
                                    vector(ratio * 2 * c->index_dim), vector(c->index_dim)};
        l->index_wq_b = counted(m, t, c->n_index_heads * c->index_dim, c->q_rank);
        l->index_weights = counted(m, b, c->n_index_heads, c->dim);
    }
    l->router = counted(m, b, c->n_experts, c->dim);
    l->bias = vector(c->n_experts);
    l->w1 = bench_weight(t, c->n_experts, c->n_inner, c->dim);
    l->w3 = bench_weight(t, c->n_experts, c->n_inner, c->dim);
    l->w2 = bench_weight(t, c->n_experts, c->dim, c->n_inner);
    m->bytes += (double)(bench_weight_bytes(l->w1) + bench_weight_bytes(l->w2) + bench_weight_bytes(l->w3)) * c->top_k /
                c->n_experts;
    l->sw1 = counted(m, t, c->n_inner, c->dim);
    l->sw3 = counted(m, t, c->n_inner, c->dim);
    l->sw2 = counted(m, t, c->dim, c->n_inner);
}

static struct bench_model make_model(const struct shape *s, int32_t n_layers, int32_t n_seqs, int32_t n_rows,
                                     int32_t n_ctx, enum nib_kv kv)
{
    struct bench_model m = {.bytes = 0};
    struct nib_error err = {0};
    m.config = (struct nib_config){
        .dim = s->dim, .n_layers = n_layers, .n_heads = s->n_heads, .head_dim = 512, .n_rot = 64, .q_rank = s->q_rank,
        .n_groups = s->n_groups, .o_rank = 1024, .n_window = 128, .n_index_heads = 64, .index_dim = 128,
        .index_top_k = s->index_top_k, .n_experts = s->n_experts, .n_shared = 1, .top_k = 6, .n_inner = s->n_inner,
        .n_hc = 4, .n_sinkhorn = 20, .vocab = 129280, .n_ctx_max = 1 << 20, .norm_eps = 1e-6f, .hc_eps = 1e-6f,
        .route_scale = 1.5f, .swiglu_limit = 10, .rope_theta = 10000, .compress_rope_theta = 160000};
    const struct nib_config *c = &m.config;
    struct nib_dims d = {
        .n_rows_max = n_rows, .n_seqs_max = n_seqs, .n_ctx_max = n_ctx, .dim = c->dim, .n_hc = c->n_hc,
        .n_heads = c->n_heads, .head_dim = 512, .n_rot = 64, .q_rank = c->q_rank, .n_groups = c->n_groups,
        .o_rank = 1024, .n_window = 128, .n_index_heads = 64, .index_dim = 128, .index_top_k = c->index_top_k,
        .n_experts = c->n_experts, .top_k = c->top_k, .n_inner = c->n_inner, .n_inner_shared = c->n_inner,
        .vocab = c->vocab};
    bench_open(&d);
    struct nib_rank *rk = &m.rank;
    rk->api = api;
    rk->backend = g_backend;
    rk->stream = g_stream;
    rk->ops = api->ops;
    rk->act_quant = NIB_ACT_QUANT_NONE;
    rk->numerics = NIB_NUMERICS_RELEASE; /* bf16 rows between ops */
    struct nib_weights *w = &rk->weights;
    w->layer = calloc((size_t)n_layers, sizeof *w->layer);
    for (int32_t l = 0; l < n_layers; l++) {
        m.config.ratio[l] = l % 2 ? 128 : 4; /* the two kinds that a deep model is made of */
        make_layer(&m, &w->layer[l], m.config.ratio[l]);
    }
    w->embed = bench_weight(NIB_WEIGHT_BF16, 1, c->vocab, c->dim);
    w->head = bench_weight(NIB_WEIGHT_BF16, 1, c->vocab, c->dim);
    w->norm = vector(c->dim);
    w->hc_head = make_hc(c, c->n_hc);
    w->rope_plain = vector(32);
    w->rope_compressed = vector(32);
    struct nib_pool_config pc = {.kv = kv, .n_ctx = n_ctx, .n_seqs_max = n_seqs, .n_rows_max = n_rows, .n_rollback = 1};
    rk->config = NULL;
    m.rank.pool.api = NULL;
    struct nib_config *kept = malloc(sizeof *kept);
    *kept = m.config;
    rk->config = kept;
    pc.model = kept;
    bench_done(nib_work_init(rk, n_rows, n_seqs, false, &err), err.text);
    bench_done(nib_pool_init(&rk->pool, &pc, api, g_backend, NIB_DTYPE_BF16, &err), err.text);
    return m;
}

/* Random rows where the context stands. */
static void fill_store(const struct nib_store *s, int64_t n_pages)
{
    size_t bytes = (size_t)(n_pages * s->page_rows * s->row_bytes);
    for (size_t at = 0; s->base && at < bytes; at += SOURCE_BYTES)
        bench_done(
            api->upload(g_stream, s->base + at, g_scales[2], bytes - at < SOURCE_BYTES ? bytes - at : SOURCE_BYTES),
            "rows");
    bench_done(api->synchronise(g_stream), "rows");
}

void bench_step_run(void *data)
{
    struct bench_step *s = data;
    struct nib_rank *rk = &s->m->rank;
    bench_done(nib_forward(rk, &s->rows), "forward");
    if (s->n_logits == 0)
        return;
    bench_done(nib_forward_logits(rk, s->logits_row, s->n_logits, false), "logits");
    const struct nib_sample_args choose = {.logits = nib_mat_rows(rk->work.logits, s->n_logits), .n = s->n_logits,
                                           .row = s->sample, .token = s->token, .logprob = s->logprob};
    bench_done(api->ops->sample(g_stream, &choose), "sample");
}

void *bench_put(const void *host, size_t bytes)
{
    void *p = api->alloc(g_backend, bytes);
    bench_done(api->upload(g_stream, p, host, bytes), "upload");
    bench_done(api->synchronise(g_stream), "upload");
    return p;
}

struct bench_step bench_step_make(struct bench_model *m, int32_t n_seqs, int32_t length, int32_t n_new)
{
    struct bench_step     s = {.m = m, .n_logits = n_seqs};
    int32_t               stride = m->rank.pool.page_stride, n = n_seqs * n_new;
    size_t                pages = (size_t)n_seqs * (size_t)stride * 4;
    int32_t              *token = calloc((size_t)n, 4), *pos = calloc((size_t)n, 4), *seq = calloc((size_t)n, 4);
    int32_t              *start = calloc((size_t)n_seqs + 1, 4), *slot = calloc((size_t)n_seqs, 4);
    int32_t              *window = malloc(pages), *entry = malloc(pages), *row = calloc((size_t)n_seqs, 4);
    struct nib_sample_row *sample = calloc((size_t)n_seqs, sizeof *sample);
    for (int32_t i = 0; i < n_seqs; i++) {
        slot[i] = i;
        start[i] = i * n_new;
        row[i] = (i + 1) * n_new - 1;
        sample[i] = (struct nib_sample_row){.top_p = 1, .repetition = 1};
        for (int32_t k = 0; k < n_new; k++) {
            token[i * n_new + k] = (int32_t)(bench_draw() % 129280);
            pos[i * n_new + k] = length + k;
            seq[i * n_new + k] = i;
        }
        for (int32_t p = 0; p < stride; p++) {
            window[i * stride + p] = (i * 4 + p) % m->rank.pool.window.n;
            entry[i * stride + p] = (i * stride + p) % m->rank.pool.entry.n;
        }
    }
    start[n_seqs] = n;
    s.rows = (struct nib_rows){.n_rows = n, .n_seqs = n_seqs, .token = bench_put(token, (size_t)n * 4),
                               .pos = bench_put(pos, (size_t)n * 4), .seq = bench_put(seq, (size_t)n * 4),
                               .seq_start = bench_put(start, ((size_t)n_seqs + 1) * 4),
                               .slot = bench_put(slot, (size_t)n_seqs * 4), .window_page = bench_put(window, pages),
                               .entry_page = bench_put(entry, pages), .page_stride = stride};
    s.logits_row = bench_put(row, (size_t)n_seqs * 4);
    s.sample = bench_put(sample, (size_t)n_seqs * sizeof *sample);
    s.token = api->alloc(g_backend, (size_t)n_seqs * 4);
    s.logprob = api->alloc(g_backend, (size_t)n_seqs * 4);
    return s;
}

/* Bytes that a decode step of n rows must read once: distinct experts as uniform routing draws them. */
static double step_bytes(const struct bench_model *m, int32_t n)
{
    const struct nib_config *c = &m->config;
    double bytes = m->bytes + 2.0 * c->vocab * c->dim;
    double touched = c->n_experts * (1 - pow(1 - (double)c->top_k / c->n_experts, n));
    for (int32_t l = 0; l < c->n_layers; l++) {
        const struct nib_layer *layer = &m->rank.weights.layer[l];
        size_t all = bench_weight_bytes(layer->w1) + bench_weight_bytes(layer->w2) + bench_weight_bytes(layer->w3);
        double expert = (double)all / c->n_experts;
        bytes += expert * (touched - c->top_k);
        bytes += 4.0 * 2 * (2 + c->n_hc) * c->n_hc * c->n_hc * c->dim; /* fn of both hyper-connections, fp32 */
    }
    return bytes;
}

struct bench_model bench_model_make(const char *shape, int32_t n_layers, int32_t n_ctx, enum nib_kv kv)
{
    const struct shape *s = strcmp(shape, "pro") == 0 ? &k_shapes[1] : &k_shapes[0];
    struct bench_model  m = make_model(s, n_layers, 8, 64, n_ctx + 128, kv);
    for (int32_t l = 0; l < n_layers; l++) {
        const struct nib_layer_state *state = &m.rank.pool.layer[l];
        fill_store(&state->window, m.rank.pool.window.n);
        fill_store(&state->entries, m.rank.pool.entry.n);
        fill_store(&state->index, m.rank.pool.entry.n);
    }
    return m;
}

static void bench_step(const char *shape, int32_t n_layers, int32_t n_ctx)
{
    struct bench_model m = bench_model_make(shape, n_layers, n_ctx, NIB_KV_BF16);
    for (int32_t n = 1; n <= 8; n *= 8) {
        struct bench_step step = bench_step_make(&m, n, n_ctx, 1);
        double      seconds = bench_graph_seconds(bench_step_run, &step, NULL), limit = step_bytes(&m, n) / g_copy_rate;
        printf("step %s, %d layers, context %d, batch %d: %.1f us, weights' limit %.1f us, %.1f %%\n", shape, n_layers,
               n_ctx, n, seconds * 1e6, limit * 1e6, 100 * limit / seconds);
    }
}

int main(int argc, char **argv)
{
    bool all = argc == 1;
    setvbuf(stdout, NULL, _IOLBF, 0); /* a run that is cut short leaves what it has measured */
    make_sources();
    bench_rates();
    for (int i = 1; i < argc || all; i++) {
        const char *what = all ? "" : argv[i];
        g_once |= strcmp(what, "once") == 0;
        if (all || strcmp(what, "linear") == 0)
            bench_linear();
        if (all || strcmp(what, "prefill") == 0)
            bench_prefill();
        if (all || strcmp(what, "experts") == 0)
            bench_experts();
        if (all || strcmp(what, "step") == 0)
            bench_step("flash", 4, 4096);
        if (strcmp(what, "step1") == 0) { /* once, for a profiler */
            struct bench_model m = make_model(&k_shapes[0], 2, 8, 64, 4096 + 128, NIB_KV_BF16);
            struct bench_step step = bench_step_make(&m, 1, 4096, 1);
            bench_step_run(&step);
            bench_done(api->synchronise(g_stream), "step");
            ok(cudaProfilerStart(), "profiler");
            bench_step_run(&step);
            bench_done(api->synchronise(g_stream), "step");
            ok(cudaProfilerStop(), "profiler");
        }
        if (strcmp(what, "products1") == 0) /* likewise */
            profile_products();
        if (strcmp(what, "step128k") == 0)
            bench_step("flash", 4, 131072);
        if (all || strcmp(what, "ops") == 0)
            bench_ops("flash", 4096);
        if (strcmp(what, "ops128k") == 0)
            bench_ops("flash", 131072);
        if (all || strcmp(what, "attend") == 0)
            bench_attend();
        if (all || strcmp(what, "index") == 0)
            bench_index();
        if (all)
            break;
    }
    return 0;
}
