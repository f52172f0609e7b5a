/* attend: softmax attention of each row over its window and compressed entries, with a sink per head.
 *
 * The rows a query sees are taken in order, NIB_CPU_KV_ROWS at a time: decoded once for all heads, scored, and added with a
 * running maximum per head (old sums are rescaled when it grows). Blocks start at the first row the query sees, so
 * the result depends on the query's own list only. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* What one query attends to: n_window window rows from position first, then n_entries entries. */
struct view {
    int32_t        seq, first, n_window, n_entries;
    const int32_t *selected; /* NULL: entries 0, 1, 2, ... */
};

static struct view view_of(const struct nib_attend_args *a, int32_t t)
{
    const struct nib_rows *rows = a->rows;
    int32_t                pos = rows->pos[t], first = pos - a->n_window + 1;
    struct view            v = {.seq = rows->seq[t]};
    v.first = first > rows->first_pos ? first : rows->first_pos;
    v.n_window = pos - v.first + 1;
    if (a->ratio > 0 && a->selected) {
        v.selected = a->selected + (int64_t)t * a->top_k;
        v.n_entries = a->n_selected[t];
    } else if (a->ratio > 0) {
        v.n_entries = (pos + 1) / a->ratio;
    }
    return v;
}

static const uint8_t *row_at(const struct nib_attend_args *a, const struct view *v, int32_t j)
{
    const struct nib_rows *rows = a->rows;
    if (j < v->n_window) {
        int32_t p = v->first + j;
        int32_t page = rows->window_page[v->seq * rows->page_stride + p / NIB_PAGE_TOKENS];
        return nib_cpu_store_row(&a->window, page, p % NIB_PAGE_TOKENS);
    }
    int32_t e = j - v->n_window;
    return nib_cpu_entry(&a->entries, rows, v->seq, v->selected ? v->selected[e] : e);
}

/* Rows lie anywhere; those soon to be decoded are asked for. */
enum { ROWS_AHEAD = 3 };

static void prefetch_row(const struct nib_attend_args *a, const struct view *v, int32_t j)
{
    if (j >= v->n_window + v->n_entries)
        return;
    const uint8_t *row = row_at(a, v, j);
    const int64_t  bytes = j < v->n_window ? a->window.row_bytes : a->entries.row_bytes;
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(row + i);
}

/* Turn a head's scores of a block into weights relative to its running maximum, rescaling what was summed before. */
static void softmax_block(const struct nib_stream *s, float *score, int32_t n, float scale, float *top, float *sum,
                          float *o, int32_t d)
{
    float factor = *top, block = s->k.softmax_scores(score, n, scale, top);
    if (*top > factor) {
        /* From -inf (a sink that is switched off) nothing has been summed yet. */
        s->k.exp_shifted(&factor, *top, 1);
        *sum *= factor;
        for (int32_t c = 0; c < d; c++)
            o[c] *= factor;
    }
    *sum += block;
}

static void attend_heads(const struct nib_stream *s, const struct nib_attend_args *a, struct nib_cpu_thread *th,
                         int32_t t, int32_t h0, int32_t n_heads)
{
    int32_t     d = a->head_dim, n_rot = a->rope.n_rot, stride = nib_cpu_kv_stride(d);
    struct view v = view_of(a, t);
    const float *q = nib_cpu_row_read(s, &a->q, t, h0 * d, n_heads * d, th->heads_q);
    float       *o = th->heads_o;
    memset(o, 0, sizeof(float) * (size_t)(n_heads * d));
    for (int32_t h = 0; h < n_heads; h++) {
        th->top[h] = a->sink[h0 + h];
        th->sum[h] = th->top[h] == -INFINITY ? 0.0f : 1.0f;
    }
    int32_t n = v.n_window + v.n_entries;
    for (int32_t j0 = 0; j0 < n; j0 += NIB_CPU_KV_ROWS) {
        int32_t n_rows = n - j0 < NIB_CPU_KV_ROWS ? n - j0 : NIB_CPU_KV_ROWS;
        for (int32_t j = 0; j < n_rows; j++) {
            prefetch_row(a, &v, j0 + j + ROWS_AHEAD);
            enum nib_row_format f = j0 + j < v.n_window ? a->window.format : a->entries.format;
            nib_cpu_kv_read(s, f, row_at(a, &v, j0 + j), d, n_rot, th->kv + j * stride);
        }
        s->k.dot_rows(q, d, n_heads, th->kv, stride, n_rows, d, th->score, NIB_CPU_KV_ROWS);
        for (int32_t h = 0; h < n_heads; h++)
            softmax_block(s, th->score + h * NIB_CPU_KV_ROWS, n_rows, a->scale, &th->top[h], &th->sum[h], o + h * d, d);
        s->k.add_weighted(th->score, NIB_CPU_KV_ROWS, n_heads, th->kv, stride, n_rows, d, o, d);
    }
    nib_cpu_angles(s, &a->rope, a->rows->pos[t] - a->rows->first_pos, th->angle);
    for (int32_t h = 0; h < n_heads; h++) {
        for (int32_t c = 0; c < d; c++)
            o[h * d + c] /= th->sum[h];
        nib_cpu_rotate(s, o + h * d, d, n_rot, th->angle, true);
    }
    nib_cpu_row_write(s, &a->o, t, h0 * d, n_heads * d, o);
}

enum nib_status nib_cpu_attend(struct nib_stream *s, const struct nib_attend_args *a)
{
    /* With few rows the heads of a row are shared out too; each part then decodes the row's KV rows for itself. */
    int32_t n_rows = a->rows->n_rows, n_parts = 1;
    while (n_rows * n_parts < 2 * s->n_threads && n_parts * 2 <= a->n_heads && n_parts < s->n_threads)
        n_parts *= 2;
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)n_rows * a->q.cols * 2 * a->n_window)) schedule(dynamic, 1)
    for (int32_t item = 0; item < n_rows * n_parts; item++) {
        int32_t part = item % n_parts, h0 = a->n_heads * part / n_parts, h1 = a->n_heads * (part + 1) / n_parts;
        attend_heads(s, a, &s->scratch.thread[omp_get_thread_num()], item / n_parts, h0, h1 - h0);
    }
    return NIB_OK;
}
