/* One layer's experts in the Flash shapes: few tokens against the bytes of the experts that they chose, many tokens
 * against the arithmetic; NVFP4 with BF16 rows, and MXFP4 with FP8 rows and the shared expert in FP8, as they are
 * released. A random bias makes some experts' rows many times as many as others'; from 512 tokens on a second line is
 * without one. Layers rotate, so that no expert is still in the L2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { DIM = 4096, INNER = 2048, N_EXPERTS = 256, TOP_K = 6, N_ROWS = 8192, N_LAYERS = 2, N_TURNS = 4 };

struct experts {
    struct nib_weight  *w1[N_LAYERS], *w2[N_LAYERS], *w3[N_LAYERS], *sw1[N_LAYERS], *sw2[N_LAYERS], *sw3[N_LAYERS];
    struct nib_weight  *router;
    struct nib_moe_args args;
    struct nib_rows     rows;
};

static void run(void *data)
{
    struct experts *e = data;
    for (int turn = 0; turn < N_TURNS * N_LAYERS; turn++) {
        const int          i = turn % N_LAYERS;
        struct nib_moe_args a = e->args;
        a.rows = &e->rows;
        a.router = e->router;
        a.w1 = e->w1[i], a.w2 = e->w2[i], a.w3 = e->w3[i];
        a.sw1 = e->sw1[i], a.sw2 = e->sw2[i], a.sw3 = e->sw3[i];
        bench_done(nib_backend_cuda.ops->moe(g_stream, &a), "moe");
    }
}

/* Different experts that the tokens chose, all of them in turn having the same router. */
static int32_t distinct(const struct experts *e, int32_t n)
{
    int32_t *chosen = malloc((size_t)n * TOP_K * 4), count = 0;
    bool     seen[N_EXPERTS] = {false};
    bench_done(nib_backend_cuda.download(g_stream, chosen, e->args.chosen, (size_t)n * TOP_K * 4), "choices");
    for (int32_t i = 0; i < n * TOP_K; i++) {
        count += !seen[chosen[i]];
        seen[chosen[i]] = true;
    }
    free(chosen);
    return count;
}

static void bench_experts_of(enum nib_act_format act, enum nib_weight_type t, enum nib_weight_type shared,
                             const int32_t *rows, size_t n_rows)
{
    struct experts e = {.router = NULL};
    bench_open(&(struct nib_dims){
        .n_rows_max = N_ROWS, .n_seqs_max = 8, .n_ctx_max = 8192, .dim = DIM, .n_hc = 4, .n_heads = 64, .head_dim = 512,
        .n_rot = 64, .q_rank = 1024, .n_groups = 8, .o_rank = 1024, .n_window = 128, .n_index_heads = 64,
        .index_dim = 128, .index_top_k = 512, .n_experts = N_EXPERTS, .top_k = TOP_K, .n_inner = INNER,
        .n_inner_shared = INNER, .vocab = 4096});
    for (int i = 0; i < N_LAYERS; i++) {
        e.w1[i] = bench_weight_for(act, t, N_EXPERTS, INNER, DIM),
        e.w3[i] = bench_weight_for(act, t, N_EXPERTS, INNER, DIM);
        e.w2[i] = bench_weight_for(act, t, N_EXPERTS, DIM, INNER);
        e.sw1[i] = bench_weight_for(act, shared, 1, INNER, DIM),
        e.sw3[i] = bench_weight_for(act, shared, 1, INNER, DIM);
        e.sw2[i] = bench_weight_for(act, shared, 1, DIM, INNER);
    }
    e.router = bench_weight(NIB_WEIGHT_BF16, 1, N_EXPERTS, DIM);
    struct nib_moe_args *a = &e.args;
    float *bias = bench_random(N_EXPERTS * 4, true), *none = nib_backend_cuda.alloc(g_backend, N_EXPERTS * 4);
    bench_done(nib_backend_cuda.upload(g_stream, none, (float[N_EXPERTS]){0}, N_EXPERTS * 4), "upload");
    bench_done(nib_backend_cuda.synchronise(g_stream), "upload");
    a->n_experts = N_EXPERTS, a->top_k = TOP_K;
    a->route_scale = 1.5f, a->limit = 10;
    a->chosen = nib_backend_cuda.alloc(g_backend, N_ROWS * TOP_K * 4);
    uint16_t *x = bench_random((size_t)N_ROWS * DIM * 2, false), *y = bench_random((size_t)N_ROWS * DIM * 2, false);
    struct nib_act fp8 = bench_fp8_rows(act == NIB_ACT_FP8 ? N_ROWS : 1, DIM);
    for (size_t i = 0; i < 2 * n_rows; i++) {
        int32_t n = rows[i / 2], n_kernels;
        if (n < 512 && i % 2 == 1)
            continue;
        a->bias = i % 2 == 0 ? bias : none;
        if (act == NIB_ACT_FP8)
            a->x = fp8;
        e.rows.n_rows = n;
        a->x.plain = (struct nib_mat){x, NIB_DTYPE_BF16, n, DIM, DIM};
        a->x.rows = n;
        a->x.cols = DIM;
        a->y = (struct nib_mat){y, NIB_DTYPE_BF16, n, DIM, DIM};
        double  seconds = bench_graph_seconds(run, &e, &n_kernels) / (N_TURNS * N_LAYERS);
        int32_t touched = distinct(&e, n);
        double  expert = 3.0 * (double)bench_weight_bytes(e.w1[0]) / N_EXPERTS;
        double bytes =
            expert * touched + 3.0 * (double)bench_weight_bytes(e.sw1[0]) + (double)bench_weight_bytes(e.router);
        double  limit = bytes / g_copy_rate, flops = 6.0 * n * (TOP_K + 1) * DIM * INNER;
        printf("experts, flash, %4d %s tokens, %3d experts and the shared one, %d kernels: %8.1f us, "
               "%6.1f MB in %7.1f us, %5.1f %%; %6.1f TFLOP/s\n",
               n, act == NIB_ACT_FP8 ? "fp8" : "bf16", touched, n_kernels / (N_TURNS * N_LAYERS), seconds * 1e6,
               bytes * 1e-6, limit * 1e6, 100 * limit / seconds, flops / seconds * 1e-12);
    }
    bench_close();
}

void bench_experts(void)
{
    static const int32_t rows[] = {1, 2, 4, 8, 64, 512, 1024, 2048, 8192};
    bench_experts_of(NIB_ACT_PLAIN, NIB_WEIGHT_NVFP4, NIB_WEIGHT_NVFP4, rows, 9);
    bench_experts_of(NIB_ACT_FP8, NIB_WEIGHT_MXFP4, NIB_WEIGHT_FP8, rows + 5, 4);
}
