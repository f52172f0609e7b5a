/* embed, linear, grouped o_a, head: products of rows with packed weights. */
#include "backend/cpu/cpu.h"

#include <omp.h>

static int32_t min_of(int32_t a, int32_t b) { return a < b ? a : b; }

static int32_t blocks_of(int32_t n_out) { return (n_out + NIB_CPU_TILE_OUTS - 1) / NIB_CPU_TILE_OUTS; }

enum nib_status nib_cpu_embed(struct nib_stream *s, const struct nib_embed_args *a)
{
    struct nib_cpu_matrix w = nib_cpu_matrix_of(a->w, 0);
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)a->n_rows * w.n_in * a->n_copies)) schedule(static)
    for (int32_t t = 0; t < a->n_rows; t++) {
        float *x = s->scratch.thread[omp_get_thread_num()].row[0];
        nib_cpu_weight_row(s, a->w, a->token[t], x);
        for (int32_t c = 0; c < a->n_copies; c++)
            nib_cpu_row_write(s, &a->y, t, c * w.n_in, w.n_in, x);
    }
    return NIB_OK;
}

/* Which block of outputs and which tile of rows an item of work is. Blocks run fastest, NIB_CPU_RUN of them with one tile of
 * rows, then the tiles, whose rows go on to the next blocks when all tiles have met these. */
struct item {
    int32_t block, tile;
};

static struct item item_at(int32_t i, int32_t n_blocks, int32_t n_tiles)
{
    const int32_t first = i / (NIB_CPU_RUN * n_tiles) * NIB_CPU_RUN, width = min_of(n_blocks - first, NIB_CPU_RUN);
    const int32_t at = i - first * n_tiles;
    return (struct item){first + at % width, at / width};
}

/* A tile's results to rows [row, row + n) of y. Where y is more than caches hold until it is read, they go past them: rows of
 * 32768 results lie at the same sets of the caches, and a line that is written there is read from memory first. */
static void tile_write(const struct nib_stream *s, const struct nib_mat *y, int32_t row, int32_t n, int32_t out,
                       int32_t n_outs, const float *results)
{
    if (y->dtype == NIB_DTYPE_F32 && (int64_t)y->rows * y->cols * (int64_t)sizeof(float) > NIB_CPU_CACHED_BYTES) {
        s->k.rows_past(results, NIB_CPU_TILE_OUTS, n, n_outs, (float *)nib_cpu_row(y, row) + out, y->stride);
        return;
    }
    for (int32_t r = 0; r < n; r++)
        nib_cpu_row_write(s, y, row + r, out, n_outs, results + r * NIB_CPU_TILE_OUTS);
}

/* Tiles of a group of rows for all weights of a linear. */
static void linear_group(struct nib_stream *s, const struct nib_linear_args *a, int32_t row0, int32_t n)
{
    struct nib_cpu_matrix w[NIB_LINEAR_MAX];
    unsigned              need[NIB_LINEAR_MAX], need_any = 0;
    int32_t               block0[NIB_LINEAR_MAX + 1] = {0};
    for (int32_t i = 0; i < a->n_weights; i++) {
        w[i] = nib_cpu_matrix_of(a->w[i], 0);
        need[i] = nib_cpu_need_of(s, a->w[i], a->x.plain.dtype);
        need_any |= need[i];
        block0[i + 1] = block0[i] + blocks_of(w[i].n_out);
    }
    struct nib_cpu_rows rows;
    nib_cpu_rows_prepare(s, &a->x, row0, n, 1, need_any, &rows);

    int32_t n_tiles = (n + NIB_CPU_TILE_ROWS - 1) / NIB_CPU_TILE_ROWS, n_items = block0[a->n_weights] * n_tiles;
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)block0[a->n_weights] * NIB_CPU_TILE_OUTS * a->x.cols * n)) schedule(dynamic, nib_cpu_chunk(s, n_items))
    for (int32_t item = 0; item < n_items; item++) {
        struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
        const struct item      at = item_at(item, block0[a->n_weights], n_tiles);
        int32_t                block = at.block, i = 0;
        while (block >= block0[i + 1])
            i++;
        int32_t out = (block - block0[i]) * NIB_CPU_TILE_OUTS, n_outs = min_of(w[i].n_out - out, NIB_CPU_TILE_OUTS);
        int32_t r0 = at.tile * NIB_CPU_TILE_ROWS, n_rows = min_of(n - r0, NIB_CPU_TILE_ROWS);
        nib_cpu_tile_run(s, th, &w[i], need[i], &rows, NULL, r0, n_rows, 0, out, n_outs, th->tile_y[0]);
        tile_write(s, &a->y[i], row0 + r0, n_rows, out, n_outs, th->tile_y[0]);
    }
}

enum nib_status nib_cpu_linear(struct nib_stream *s, const struct nib_linear_args *a)
{
    for (int32_t row0 = 0; row0 < a->x.rows; row0 += NIB_CPU_GROUP_ROWS)
        linear_group(s, a, row0, min_of(a->x.rows - row0, NIB_CPU_GROUP_ROWS));
    return NIB_OK;
}

enum nib_status nib_cpu_head(struct nib_stream *s, const struct nib_head_args *a)
{
    struct nib_linear_args l = {
        .x = {.plain = a->x, .rows = a->x.rows, .cols = a->x.cols}, .n_weights = 1, .w = {a->w}, .y = {a->logits}};
    return nib_cpu_linear(s, &l);
}

static void o_a_group(struct nib_stream *s, const struct nib_o_a_args *a, int32_t row0, int32_t n)
{
    struct nib_cpu_matrix w = nib_cpu_matrix_of(a->w, 0);
    struct nib_act        x = {.plain = a->x, .rows = a->x.rows, .cols = a->x.cols};
    struct nib_cpu_rows   rows;
    int32_t               part = nib_cpu_padded(w.n_in);
    unsigned              need = nib_cpu_need_of(s, a->w, a->x.dtype);
    nib_cpu_rows_prepare(s, &x, row0, n, a->n_groups, need, &rows);

    /* Each group reads its own channels. Where groups do not begin at panels, both neighbours compute the panel between them. */
    int32_t n_rank = w.n_out / a->n_groups;
    int32_t n_blocks = blocks_of(n_rank % NIB_CPU_PANEL ? n_rank + NIB_CPU_PANEL - 1 : n_rank);
    int32_t n_tiles = (n + NIB_CPU_TILE_ROWS - 1) / NIB_CPU_TILE_ROWS;
    int32_t n_items = a->n_groups * n_blocks * n_tiles;
    float  *y = s->scratch.out;
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)w.n_out * w.n_in * n)) schedule(dynamic, nib_cpu_chunk(s, n_items))
    for (int32_t item = 0; item < n_items; item++) {
        struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
        const struct item      at = item_at(item % (n_blocks * n_tiles), n_blocks, n_tiles);
        int32_t                g = item / (n_blocks * n_tiles), first = g * n_rank, end = first + n_rank;
        int32_t out = first / NIB_CPU_PANEL * NIB_CPU_PANEL + at.block * NIB_CPU_TILE_OUTS;
        int32_t n_outs = min_of(w.n_out - out, NIB_CPU_TILE_OUTS), r0 = at.tile * NIB_CPU_TILE_ROWS;
        int32_t n_rows = min_of(n - r0, NIB_CPU_TILE_ROWS);
        if (out >= end)
            continue;
        nib_cpu_tile_run(s, th, &w, need, &rows, NULL, r0, n_rows, g * part, out, n_outs, th->tile_y[0]);
        for (int32_t r = 0; r < n_rows; r++)
            for (int32_t o = out < first ? first : out; o < end && o < out + n_outs; o++)
                y[(int64_t)(r0 + r) * w.n_out + o] = th->tile_y[0][r * NIB_CPU_TILE_OUTS + o - out];
    }
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)w.n_out * n)) schedule(static)
    for (int32_t r = 0; r < n; r++)
        nib_cpu_act_write(s, &a->y, row0 + r, y + (int64_t)r * w.n_out);
}

enum nib_status nib_cpu_o_a(struct nib_stream *s, const struct nib_o_a_args *a)
{
    for (int32_t row0 = 0; row0 < a->x.rows; row0 += NIB_CPU_GROUP_ROWS)
        o_a_group(s, a, row0, min_of(a->x.rows - row0, NIB_CPU_GROUP_ROWS));
    return NIB_OK;
}
