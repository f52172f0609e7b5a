/* Attention and index scores alone, at decode and prefill sizes, with rows of their own for every sequence. Small ones
 * are enqueued N_TURNS times in one graph, as a graph of one kernel takes 8 us by itself, over rows that change in
 * turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { DIM = 512, N_ROT = 64, WINDOW = 128, N_PAGES_FILLED = 64, N_TURNS = 8 };

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* Random rows in their format, a few pages of them again and again. */
static void fill_rows(const struct nib_store *s, int64_t n_pages, int32_t d)
{
    const size_t page = (size_t)(s->page_rows * s->row_bytes), row_bytes = (size_t)s->row_bytes;
    uint8_t     *host = malloc(page * N_PAGES_FILLED);
    for (size_t i = 0; i < page * N_PAGES_FILLED; i += row_bytes) {
        uint8_t *row = host + i;
        for (size_t k = 0; k < row_bytes; k++)
            row[k] = (uint8_t)(bench_draw() & 0xbf);
        for (size_t k = 0; k < (s->format == NIB_ROW_FP4 ? 0 : row_bytes - 1); k += 2) {
            if (s->format != NIB_ROW_BF16 && (k < row_bytes - 136 || k + 2 > row_bytes))
                continue;
            const uint16_t h = (uint16_t)((bench_draw() & 0x8000u) | (0x3c80u + bench_draw() % 0x100u));
            memcpy(row + k, &h, 2);
        }
        if (s->format == NIB_ROW_FP8)
            memset(row + d + N_ROT, 120, 8);
        if (s->format == NIB_ROW_NVFP4) {
            const float g = 0.01f;
            memset(row + (d - N_ROT) / 2, 0x30, (size_t)(d - N_ROT) / 16);
            memcpy(row + row_bytes - 132, &g, 4);
        }
        if (s->format == NIB_ROW_FP4)
            memset(row + d / 2, 124, (size_t)d / 32);
    }
    for (int64_t p = 0; p < n_pages; p += N_PAGES_FILLED) {
        const int64_t n = n_pages - p < N_PAGES_FILLED ? n_pages - p : N_PAGES_FILLED;
        bench_done(nib_backend_cuda.upload(g_stream, s->base + (size_t)p * page, host, (size_t)n * page), "rows");
    }
    bench_done(nib_backend_cuda.synchronise(g_stream), "rows");
    free(host);
}

static struct nib_store make_store(enum nib_row_format format, int64_t n_pages, int32_t page_rows, int32_t d)
{
    struct nib_store s = {NULL, format, page_rows, nib_row_bytes(format, d, format == NIB_ROW_FP4 ? 0 : N_ROT)};
    s.base = nib_backend_cuda.alloc(g_backend, (size_t)(n_pages * page_rows * s.row_bytes));
    if (!s.base) {
        fprintf(stderr, "bench: no memory for %lld pages of rows\n", (long long)n_pages);
        exit(1);
    }
    fill_rows(&s, n_pages, d);
    return s;
}

/* Each sequence's n_new last tokens of `length`, on pages of its own. */
static struct nib_rows make_rows(int32_t n_seqs, int32_t length, int32_t n_new)
{
    const int32_t n = n_seqs * n_new, stride = length / NIB_PAGE_TOKENS + 1;
    int32_t      *seq_start = calloc((size_t)n_seqs + 1, 4);
    int32_t      *pos = calloc((size_t)n, 4), *seq = calloc((size_t)n, 4), *page = calloc((size_t)(n_seqs * stride), 4);
    for (int32_t i = 0; i < n; i++) {
        seq[i] = i / n_new;
        seq_start[seq[i] + 1] = i + 1;
        pos[i] = length - n_new + i % n_new;
    }
    for (int32_t i = 0; i < n_seqs * stride; i++)
        page[i] = i;
    struct nib_rows rows = {.n_rows = n,
                            .n_seqs = n_seqs,
                            .pos = bench_put(pos, (size_t)n * 4),
                            .seq = bench_put(seq, (size_t)n * 4),
                            .seq_start = bench_put(seq_start, (size_t)(n_seqs + 1) * 4),
                            .page_stride = stride};
    rows.window_page = rows.entry_page = bench_put(page, (size_t)(n_seqs * stride) * 4);
    free(pos);
    free(seq);
    free(seq_start);
    free(page);
    return rows;
}

struct attend_case {
    const char         *name;
    enum nib_row_format format;
    int32_t             n_heads, ratio, top_k, n_seqs, length, n_new; /* top_k 0: all entries */
    bool                f32;                                         /* queries and results */
};

struct attends {
    struct nib_attend_args a;
    struct nib_store       window[N_TURNS], entries[N_TURNS];
    int                    n_turns, n_stores;
};

static void run_attend(void *data)
{
    struct attends *all = data;
    for (int i = 0; i < all->n_turns; i++) {
        all->a.window = all->window[i % all->n_stores];
        all->a.entries = all->entries[i % all->n_stores];
        bench_done(nib_backend_cuda.ops->attend(g_stream, &all->a), "attend");
    }
}

/* Ascending entries spread over what a row sees. */
static void select_spread(int32_t *selected, int32_t top_k, int32_t visible)
{
    const int32_t step = visible / top_k;
    for (int32_t i = 0; i < top_k; i++)
        selected[i] = i * step + (int32_t)(bench_draw() % (uint32_t)step);
}

static void bench_attend_case(const struct attend_case *c)
{
    struct nib_dims d = {.n_rows_max = c->n_seqs * c->n_new,
                         .n_seqs_max = c->n_seqs,
                         .n_ctx_max = c->length,
                         .dim = 4096,
                         .n_hc = 4,
                         .n_heads = c->n_heads,
                         .head_dim = DIM,
                         .n_rot = N_ROT,
                         .q_rank = 1024,
                         .n_groups = 8,
                         .o_rank = 1024,
                         .n_window = WINDOW,
                         .n_index_heads = 64,
                         .index_dim = 128,
                         .index_top_k = 1024,
                         .vocab = 1024};
    bench_open(&d);
    struct nib_rows        rows = make_rows(c->n_seqs, c->length, c->n_new);
    const int32_t          n = rows.n_rows;
    const int64_t          pages = c->n_seqs * rows.page_stride;
    struct nib_attend_args a = {.n_heads = c->n_heads,
                                .head_dim = DIM,
                                .n_window = WINDOW,
                                .ratio = c->ratio,
                                .top_k = c->top_k,
                                .scale = 0.044194f,
                                .rows = &rows,
                                .rope = {bench_random(N_ROT / 2 * 4, true), N_ROT}};
    const size_t each = c->f32 ? 4 : 2, all_heads = (size_t)n * (size_t)c->n_heads * DIM * each;
    a.q = (struct nib_mat){bench_random(all_heads, c->f32), c->f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, n,
                           c->n_heads * DIM, c->n_heads * DIM};
    a.o = a.q;
    a.o.data = bench_random(all_heads, c->f32);
    a.sink = bench_random((size_t)c->n_heads * 4, true);
    struct attends all = {.n_turns = n > 64 || g_once ? 1 : N_TURNS,
                          .n_stores = n > 64 ? 1 : c->n_seqs == 64 ? 2 : N_TURNS};
    double per_row = WINDOW;
    for (int i = 0; i < all.n_stores; i++) {
        all.window[i] = make_store(c->format, pages, NIB_PAGE_TOKENS, DIM);
        if (c->ratio > 0)
            all.entries[i] = make_store(c->format, pages, NIB_PAGE_TOKENS / c->ratio, DIM);
    }
    a.window = all.window[0];
    if (c->top_k > 0) {
        int32_t *selected = calloc((size_t)n * (size_t)c->top_k, 4), *count = calloc((size_t)n, 4);
        for (int32_t i = 0; i < n; i++) {
            select_spread(selected + (size_t)i * (size_t)c->top_k, c->top_k,
                          (c->length - c->n_new + i % c->n_new + 1) / c->ratio);
            count[i] = c->top_k;
        }
        a.selected = bench_put(selected, (size_t)n * (size_t)c->top_k * 4);
        a.n_selected = bench_put(count, (size_t)n * 4);
        free(selected);
        free(count);
        per_row += c->top_k;
    } else if (c->ratio > 0) {
        per_row += (double)c->length / c->ratio;
    }
    /* Rows of one sequence's tokens may be shared, so bytes count for decoding only. */
    all.a = a;
    const double seconds = bench_graph_seconds(run_attend, &all, NULL) / all.n_turns;
    const double flops = 4.0 * DIM * c->n_heads * per_row * n;
    const double bytes = (c->n_new == 1 ? per_row * (double)a.window.row_bytes * n : 0) + 2.0 * (double)all_heads;
    const double by_bytes = bytes / g_copy_rate, by_flops = flops / BENCH_MATRIX_RATE;
    printf("attend %-26s %4d rows %3d heads: %8.2f us, %6.1f TFLOP/s; limits %6.2f us bytes, %6.2f us products; %4.1f "
           "%%\n",
           c->name, n, c->n_heads, seconds * 1e6, flops / seconds * 1e-12, by_bytes * 1e6, by_flops * 1e6,
           100 * most(by_bytes, by_flops) / seconds);
    bench_close();
}

void bench_attend(void)
{
    static const struct attend_case cases[] = {
        {"bf16, 512 of 4K", NIB_ROW_BF16, 64, 4, 512, 1, 4096, 1},
        {"bf16, 512 of 4K", NIB_ROW_BF16, 64, 4, 512, 8, 4096, 1},
        {"bf16, 512 of 4K", NIB_ROW_BF16, 64, 4, 512, 64, 4096, 1},
        {"fp8, 512 of 4K", NIB_ROW_FP8, 64, 4, 512, 64, 4096, 1},
        {"nvfp4, 512 of 4K", NIB_ROW_NVFP4, 64, 4, 512, 64, 4096, 1},
        {"bf16, 1024 of 16K", NIB_ROW_BF16, 128, 4, 1024, 1, 16384, 1},
        {"bf16, 1024 of 16K", NIB_ROW_BF16, 128, 4, 1024, 64, 16384, 1},
        {"fp8, 1024 of 16K", NIB_ROW_FP8, 128, 4, 1024, 64, 16384, 1},
        {"bf16, all of 128K / 128", NIB_ROW_BF16, 64, 128, 0, 1, 131072, 1},
        {"bf16, all of 128K / 128", NIB_ROW_BF16, 64, 128, 0, 64, 131072, 1},
        {"bf16, 512 of 16K", NIB_ROW_BF16, 64, 4, 512, 1, 16384, 4096},
        {"fp8, 512 of 16K", NIB_ROW_FP8, 64, 4, 512, 1, 16384, 4096},
        {"fp8, 512 of 256K", NIB_ROW_FP8, 64, 4, 512, 1, 262144, 512},
        {"nvfp4, 512 of 16K", NIB_ROW_NVFP4, 64, 4, 512, 1, 16384, 4096},
        {"bf16, 1024 of 16K", NIB_ROW_BF16, 128, 4, 1024, 1, 16384, 2048},
        {"bf16, window", NIB_ROW_BF16, 64, 0, 0, 1, 16384, 4096},
        {"bf16, 512 of 4K, fp32 q", NIB_ROW_BF16, 64, 4, 512, 1, 4096, 1, true},
        {"bf16, 512 of 4K, fp32 q", NIB_ROW_BF16, 64, 4, 512, 64, 4096, 1, true},
        {"fp8, 512 of 4K, fp32 q", NIB_ROW_FP8, 64, 4, 512, 64, 4096, 1, true},
        {"bf16, 512 of 16K, fp32 q", NIB_ROW_BF16, 64, 4, 512, 1, 16384, 4096, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        bench_attend_case(&cases[i]);
}

struct indexes {
    struct nib_index_select_args a;
    struct nib_store             keys[N_TURNS];
};

static void run_index(void *data)
{
    struct indexes *all = data;
    for (int i = 0; i < (g_once ? 1 : N_TURNS); i++) {
        all->a.keys = all->keys[i];
        bench_done(nib_backend_cuda.ops->index_select(g_stream, &all->a), "index_select");
    }
}

static void bench_index_case(enum nib_row_format format, int32_t top_k, int32_t n_seqs, int32_t n_entries, bool f32)
{
    const int32_t   length = n_entries * 4, n_heads = 64, dim = 128;
    struct nib_dims d = {.n_rows_max = n_seqs,
                         .n_seqs_max = n_seqs,
                         .n_ctx_max = length,
                         .dim = 4096,
                         .n_hc = 4,
                         .n_heads = 64,
                         .head_dim = DIM,
                         .n_rot = N_ROT,
                         .q_rank = 1024,
                         .n_groups = 8,
                         .o_rank = 1024,
                         .n_window = WINDOW,
                         .n_index_heads = n_heads,
                         .index_dim = dim,
                         .index_top_k = top_k,
                         .vocab = 1024};
    bench_open(&d);
    struct nib_rows              rows = make_rows(n_seqs, length, 1);
    struct nib_index_select_args a = {.n_heads = n_heads,
                                      .dim = dim,
                                      .ratio = 4,
                                      .top_k = top_k,
                                      .scale = 0.011f,
                                      .rows = &rows,
                                      .rope = {bench_random(N_ROT / 2 * 4, true), N_ROT}};
    a.q = (struct nib_mat){bench_random((size_t)(n_seqs * n_heads * dim) * (f32 ? 4 : 2), f32),
                           f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, n_seqs, n_heads * dim, n_heads * dim};
    a.weight = (struct nib_mat){bench_random((size_t)(n_seqs * n_heads) * 4, true), NIB_DTYPE_F32, n_seqs, n_heads,
                                n_heads};
    struct indexes all;
    for (int i = 0; i < N_TURNS; i++)
        all.keys[i] = make_store(format, n_seqs * rows.page_stride, NIB_PAGE_TOKENS / 4, dim);
    a.keys = all.keys[0];
    a.selected = nib_backend_cuda.alloc(g_backend, (size_t)(n_seqs * top_k) * 4);
    a.n_selected = nib_backend_cuda.alloc(g_backend, (size_t)n_seqs * 4);
    all.a = a;
    const double seconds = bench_graph_seconds(run_index, &all, NULL) / N_TURNS;
    const double flops = 2.0 * n_heads * dim * n_entries * n_seqs;
    const double bytes = (double)a.keys.row_bytes * n_entries * n_seqs;
    printf("index  %s keys, %s q, %4d of %6d entries, %d rows: %8.2f us; limits %6.2f us bytes, %6.2f us products\n",
           format == NIB_ROW_FP4 ? "fp4 " : "bf16", f32 ? "fp32" : "bf16", top_k, n_entries, n_seqs, seconds * 1e6,
           bytes / g_copy_rate * 1e6, flops / BENCH_MATRIX_RATE * 1e6);
    bench_close();
}

void bench_index(void)
{
    for (int i = 0; i < 2; i++) {
        const enum nib_row_format f = i ? NIB_ROW_FP4 : NIB_ROW_BF16;
        bench_index_case(f, 512, 1, 1024, false);
        bench_index_case(f, 512, 1, 32768, false);
        bench_index_case(f, 512, 1, 262144, false);
        bench_index_case(f, 512, 8, 32768, false);
        bench_index_case(f, 512, 1, 32768, true);
        bench_index_case(f, 512, 1, 262144, true);
    }
}
