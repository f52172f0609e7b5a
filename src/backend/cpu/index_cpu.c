/* index_select: scores of all visible entries for a few rows at a time, then the exact top k of each row. */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <omp.h>
#include <string.h>

static int32_t min_of(int32_t a, int32_t b) { return a < b ? a : b; }

static int32_t visible_of(const struct nib_index_select_args *a, int32_t t) { return (a->rows->pos[t] + 1) / a->ratio; }

/* Traced rows are scored even where every entry is taken. */
static bool is_scored(const struct nib_index_select_args *a, int32_t t)
{
    return visible_of(a, t) > a->top_k || (a->scores.data && visible_of(a, t) > 0);
}

static int32_t n_blocks_of(int32_t dim) { return (dim + 31) / 32; }

/* Rotate a query of row r of a group (and, for FP4 keys, transform and round it as the keys were), in place. */
static void transform_query(const struct nib_stream *s, const struct nib_index_select_args *a,
                            struct nib_cpu_thread *th, int32_t t, int32_t r, int32_t h)
{
    const struct nib_cpu_scratch *to = &s->scratch;
    const bool                    bf16 = a->q.dtype == NIB_DTYPE_BF16;
    const int32_t                 d = a->dim;
    float *x = bf16 ? th->row[0] : (float *)nib_cpu_row(&a->q, t) + h * d;
    if (bf16)
        nib_cpu_row_read(s, &a->q, t, h * d, d, x);
    nib_cpu_rotate(s, x, d, a->rope.n_rot, th->angle, false);
    if (bf16)
        s->k.bf16_round(x, d);
    if (a->keys.format == NIB_ROW_FP4) {
        nib_cpu_hadamard(s, x, d);
        if (bf16)
            s->k.bf16_round(x, d);
        s->k.fp4_encode(x, d, th->codes, th->scales);
        s->k.fp4_decode(th->codes, th->scales, d, x);
        const int64_t head = (int64_t)r * a->n_heads + h;
        s->k.fp4_query_open(th->codes, th->scales, d, to->codes_fp4 + head * d, to->scales_fp4 + head * n_blocks_of(d));
    }
    if (bf16)
        nib_cpu_row_write(s, &a->q, t, h * d, d, x);
}

/* Queries [begin, end) of a group that begins with row row0, counted over its rows by heads. */
static void transform_queries(const struct nib_stream *s, const struct nib_index_select_args *a, int32_t row0, int32_t begin,
                              int32_t end)
{
    struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
    for (int32_t i = begin; i < end; i++) {
        const int32_t r = i / a->n_heads, h = i % a->n_heads, t = row0 + r;
        if (!is_scored(a, t))
            continue;
        if (i == begin || h == 0)
            nib_cpu_angles(s, &a->rope, a->rows->pos[t] - a->rows->first_pos, th->angle);
        transform_query(s, a, th, t, r, h);
    }
}

/* Keys of entries e0 to e0 + n of a row's sequence, page by page: a division for each would cost a twentieth of its scores. */
static void find_keys(const struct nib_index_select_args *a, int32_t t, int32_t e0, int32_t n, const uint8_t **key)
{
    const int32_t page_rows = a->keys.page_rows;
    for (int32_t j = 0; j < n;) {
        const uint8_t *row = nib_cpu_entry(&a->keys, a->rows, a->rows->seq[t], e0 + j);
        const int32_t  end = min_of(n, j + page_rows - (e0 + j) % page_rows);
        for (; j < end; j++, row += a->keys.row_bytes)
            key[j] = row;
    }
}

/* Ask for the keys that are probably this thread's turn when those from entry e0 on have been: others take the blocks between.
 * Inlined, for gcc drops calls of a function that only prefetches. */
static inline __attribute__((always_inline)) void prefetch_keys(const struct nib_stream *s, const struct nib_index_select_args *a,
                                                                int32_t t, int32_t e0)
{
    const uint8_t *key[NIB_CPU_KV_ROWS];
    const int32_t  next = e0 + s->n_threads * NIB_CPU_KV_ROWS, n = min_of(visible_of(a, t) - next, NIB_CPU_KV_ROWS);
    find_keys(a, t, next, n, key);
    for (int32_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < a->keys.row_bytes; i += 64)
            __builtin_prefetch(key[j] + i);
        __builtin_prefetch(key[j] + a->keys.row_bytes - 1);
    }
}

static struct nib_cpu_fp4_queries fp4_queries(const struct nib_stream *s, const struct nib_index_select_args *a, int32_t r,
                                              const float *q)
{
    const int32_t d = a->dim;
    const int64_t head = (int64_t)r * a->n_heads;
    return (struct nib_cpu_fp4_queries){a->n_heads, q, d, s->scratch.codes_fp4 + head * d,
                                        s->scratch.scales_fp4 + head * n_blocks_of(d)};
}

/* Dot products of a row's queries q with n keys into th->score. */
static void dot_block(const struct nib_stream *s, const struct nib_index_select_args *a, struct nib_cpu_thread *th,
                      int32_t r, const float *q, const uint8_t *const *key, int32_t n)
{
    const int32_t d = a->dim, stride = nib_cpu_kv_stride(d);
    if (a->keys.format == NIB_ROW_FP4) {
        const struct nib_cpu_fp4_queries fp4 = fp4_queries(s, a, r, q);
        s->k.fp4_dots(&fp4, key, n, d, th->kv, th->score, NIB_CPU_KV_ROWS);
        return;
    }
    for (int32_t j = 0; j < n; j++)
        nib_cpu_kv_read(s, a->keys.format, key[j], d, a->rope.n_rot, th->kv + j * stride);
    s->k.dot_rows(q, d, a->n_heads, th->kv, stride, n, d, th->score, NIB_CPU_KV_ROWS);
}

/* score[j] = sum over heads ascending of weight * max(0, dot) for entries e0 .. e0 + n of row t. */
static void score_block(const struct nib_stream *s, const struct nib_index_select_args *a, struct nib_cpu_thread *th,
                        int32_t t, int32_t r, int32_t e0, int32_t n, float *score)
{
    const bool     bf16 = a->q.dtype == NIB_DTYPE_BF16;
    const float   *q = nib_cpu_row_read(s, &a->q, t, 0, a->n_heads * a->dim, th->row[0]);
    const float   *weight = nib_cpu_row_read(s, &a->weight, t, 0, a->n_heads, th->row[1]);
    float         *scaled = th->row[2];
    const uint8_t *key[NIB_CPU_KV_ROWS];
    find_keys(a, t, e0, n, key);
    prefetch_keys(s, a, t, e0);
    for (int32_t h = 0; h < a->n_heads; h++)
        scaled[h] = weight[h] * a->scale;
    if (a->keys.format == NIB_ROW_FP4 && !bf16) {
        const struct nib_cpu_fp4_queries fp4 = fp4_queries(s, a, r, q);
        s->k.fp4_scores(&fp4, scaled, key, n, a->dim, th->kv, th->score, score);
        return;
    }
    dot_block(s, a, th, r, q, key, n);
    if (bf16)
        s->k.bf16_round(scaled, a->n_heads);
    memset(score, 0, sizeof(float) * (size_t)n);
    for (int32_t h = 0; h < a->n_heads; h++) {
        float *dot = th->score + h * NIB_CPU_KV_ROWS;
        if (bf16)
            s->k.bf16_round(dot, n);
        s->k.add_positive(score, dot, scaled[h], n);
    }
    if (bf16)
        s->k.bf16_round(score, n);
}

/* The scores are destroyed. */
static void select_row(const struct nib_stream *s, const struct nib_index_select_args *a, int32_t t, float *score)
{
    int32_t *selected = a->selected + (int64_t)t * a->top_k, visible = visible_of(a, t);
    int32_t  n = min_of(visible, a->top_k);
    if (visible > a->top_k)
        s->k.select_top(score, visible, a->top_k, selected);
    for (int32_t i = visible > a->top_k ? a->top_k : 0; i < a->top_k; i++)
        selected[i] = i < n ? i : -1;
    a->n_selected[t] = n;
}

/* Rows [row0, row0 + n): queries, then scores by blocks of entries of all rows together, then selection. */
static void index_group(struct nib_stream *s, const struct nib_index_select_args *a, int32_t row0, int32_t n)
{
    int32_t block0[NIB_CPU_INDEX_ROWS + 1] = {0};
    for (int32_t r = 0; r < n; r++) {
        int32_t visible = is_scored(a, row0 + r) ? visible_of(a, row0 + r) : 0;
        assert(visible <= s->n_entries_max);
        block0[r + 1] = block0[r] + (visible + NIB_CPU_KV_ROWS - 1) / NIB_CPU_KV_ROWS;
    }
#pragma omp parallel num_threads(nib_cpu_threads(s, (int64_t)block0[n] * NIB_CPU_KV_ROWS * a->q.cols))
    {
        struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
        const int32_t n_queries = block0[n] > 0 ? n * a->n_heads : 0, team = omp_get_num_threads(), me = omp_get_thread_num();
        transform_queries(s, a, row0, n_queries * me / team, n_queries * (me + 1) / team);
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
        for (int32_t item = 0; item < block0[n]; item++) {
            int32_t r = 0;
            while (item >= block0[r + 1])
                r++;
            int32_t e0 = (item - block0[r]) * NIB_CPU_KV_ROWS;
            int32_t n_entries = min_of(visible_of(a, row0 + r) - e0, NIB_CPU_KV_ROWS);
            score_block(s, a, th, row0 + r, r, e0, n_entries,
                        s->scratch.index_score + (int64_t)r * s->n_entries_max + e0);
        }
#pragma omp for schedule(static)
        for (int32_t r = 0; r < n; r++) {
            float *score = s->scratch.index_score + (int64_t)r * s->n_entries_max;
            if (a->scores.data && block0[r + 1] > block0[r])
                memcpy(nib_cpu_row(&a->scores, row0 + r), score, sizeof(float) * (size_t)visible_of(a, row0 + r));
            select_row(s, a, row0 + r, score);
        }
    }
}

enum nib_status nib_cpu_index_select(struct nib_stream *s, const struct nib_index_select_args *a)
{
    int32_t n = a->rows->n_rows;
    for (int32_t row0 = 0; row0 < n; row0 += NIB_CPU_INDEX_ROWS)
        index_group(s, a, row0, min_of(n - row0, NIB_CPU_INDEX_ROWS));
    return NIB_OK;
}
