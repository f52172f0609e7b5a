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

/* Rotate a row's queries (and, for FP4 keys, transform and round them as the keys were), in place. */
static void transform_query(const struct nib_stream *s, const struct nib_index_select_args *a,
                            struct nib_cpu_thread *th, int32_t t)
{
    bool    bf16 = a->q.dtype == NIB_DTYPE_BF16;
    int32_t d = a->dim;
    nib_cpu_angles(&a->rope, a->rows->pos[t] - a->rows->first_pos, th->angle);
    for (int32_t h = 0; h < a->n_heads; h++) {
        float *x = bf16 ? th->row[0] : (float *)nib_cpu_row(&a->q, t) + h * d;
        if (bf16)
            nib_cpu_row_read(s, &a->q, t, h * d, d, x);
        nib_cpu_rotate(x, d, a->rope.n_rot, th->angle, false);
        if (bf16)
            s->k.bf16_round(x, d);
        if (a->keys.format == NIB_ROW_FP4) {
            nib_cpu_hadamard(x, d);
            if (bf16)
                s->k.bf16_round(x, d);
            s->k.fp4_encode(x, d, th->codes, th->scales);
            s->k.fp4_decode(th->codes, th->scales, d, x);
        }
        if (bf16)
            nib_cpu_row_write(s, &a->q, t, h * d, d, x);
    }
}

/* score[j] = sum over heads ascending of weight * max(0, dot) for entries e0 .. e0 + n of row t. */
static void score_block(const struct nib_stream *s, const struct nib_index_select_args *a, struct nib_cpu_thread *th,
                        int32_t t, int32_t e0, int32_t n, float *score)
{
    bool         bf16 = a->q.dtype == NIB_DTYPE_BF16;
    int32_t      d = a->dim;
    const float *q = nib_cpu_row_read(s, &a->q, t, 0, a->n_heads * d, th->row[0]);
    const float *weight = nib_cpu_row_read(s, &a->weight, t, 0, a->n_heads, th->row[1]);
    for (int32_t j = 0; j < n; j++)
        nib_cpu_kv_read(s, a->keys.format, nib_cpu_entry(&a->keys, a->rows, a->rows->seq[t], e0 + j), d, a->rope.n_rot,
                        th->kv + j * d);
    s->k.dot_rows(q, d, a->n_heads, th->kv, d, n, d, th->score, NIB_CPU_KV_ROWS);
    memset(score, 0, sizeof(float) * (size_t)n);
    for (int32_t h = 0; h < a->n_heads; h++) {
        float  w = weight[h] * a->scale;
        float *dot = th->score + h * NIB_CPU_KV_ROWS;
        if (bf16) {
            s->k.bf16_round(&w, 1);
            s->k.bf16_round(dot, n);
        }
        for (int32_t j = 0; j < n; j++)
            score[j] += w * (dot[j] < 0 ? 0.0f : dot[j]);
    }
    if (bf16)
        s->k.bf16_round(score, n);
}

/* Scores as unsigned integers of the same order; both zeros are one value, and NaN comes first, so that it is never
 * left out unseen. */
static uint32_t order_of(float x)
{
    uint32_t u;
    x += 0.0f;
    memcpy(&u, &x, sizeof u);
    if (x != x)
        return UINT32_MAX;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The k largest of n, ties to the lowest index, ascending: radix selection of the k-th largest key, byte by byte,
 * then one pass that takes everything above it and the first ones equal to it. */
static void select_top(const float *score, int32_t n, int32_t k, int32_t *selected)
{
    uint32_t prefix = 0, mask = 0;
    int32_t  wanted = k; /* rank of the threshold among keys that share the prefix */
    for (int shift = 24; shift >= 0; shift -= 8) {
        int32_t count[256] = {0};
        for (int32_t i = 0; i < n; i++) {
            uint32_t key = order_of(score[i]);
            count[key >> shift & 255] += (key & mask) == prefix;
        }
        uint32_t byte = 255;
        while (count[byte] < wanted)
            wanted -= count[byte--];
        prefix |= byte << shift;
        mask |= 255u << shift;
    }
    int32_t n_selected = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t key = order_of(score[i]);
        if (key > prefix || (key == prefix && wanted-- > 0))
            selected[n_selected++] = i;
    }
    assert(n_selected == k);
}

static void select_row(const struct nib_index_select_args *a, int32_t t, const float *score)
{
    int32_t *selected = a->selected + (int64_t)t * a->top_k, visible = visible_of(a, t);
    int32_t  n = min_of(visible, a->top_k);
    if (visible > a->top_k)
        select_top(score, visible, a->top_k, selected);
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
#pragma omp for schedule(static)
        for (int32_t r = 0; r < n; r++)
            if (block0[r + 1] > block0[r])
                transform_query(s, a, th, row0 + r);
#pragma omp for schedule(dynamic, 1)
        for (int32_t item = 0; item < block0[n]; item++) {
            int32_t r = 0;
            while (item >= block0[r + 1])
                r++;
            int32_t e0 = (item - block0[r]) * NIB_CPU_KV_ROWS;
            int32_t n_entries = min_of(visible_of(a, row0 + r) - e0, NIB_CPU_KV_ROWS);
            score_block(s, a, th, row0 + r, e0, n_entries,
                        s->scratch.index_score + (int64_t)r * s->n_entries_max + e0);
        }
#pragma omp for schedule(static)
        for (int32_t r = 0; r < n; r++) {
            const float *score = s->scratch.index_score + (int64_t)r * s->n_entries_max;
            if (a->scores.data && block0[r + 1] > block0[r])
                memcpy(nib_cpu_row(&a->scores, row0 + r), score, sizeof(float) * (size_t)visible_of(a, row0 + r));
            select_row(a, row0 + r, score);
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
