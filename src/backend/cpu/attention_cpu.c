/* attend: softmax attention of each row over its window and compressed entries, with a sink per head.
 *
 * The rows a query sees are taken in order, NIB_CPU_KV_ROWS at a time: decoded once for all heads (or read where they lie, if
 * heads are few), scored, and added with a running maximum per head (old sums are rescaled when it grows). Where the
 * model has few heads, the rows are first cut into segments by their number alone, which are added up in their order:
 * threads can then share a query without cutting tiles of heads. So the result depends on the query's own list only. */
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

static int32_t n_rows_of(const struct view *v) { return v->n_window + v->n_entries; }

static int32_t min_of(int32_t a, int32_t b) { return a < b ? a : b; }

/* Rows lie anywhere in memory: those that come next are asked for. A segment's first ones only so far ahead. */
enum { ROWS_AHEAD = 3 };

static inline __attribute__((always_inline)) void prefetch_row(const struct nib_attend_args *a, const struct view *v,
                                                               int32_t j)
{
    const uint8_t *row = row_at(a, v, j);
    const int64_t  bytes = j < v->n_window ? a->window.row_bytes : a->entries.row_bytes;
    /* gcc takes a function that only prefetches for one without effects, and drops its calls unless it is inlined. */
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(row + i, 0, 2);
    __builtin_prefetch(row + bytes - 1, 0, 2);
}

/* Many heads are shared out by heads, which need no sums put together; shorter segments are not worth the memory of
 * theirs. */
enum { SEGMENT_HEADS = 16, SEGMENT_ROWS = 64 };

static int32_t n_segments_most(const struct nib_attend_args *a) { return a->n_heads > SEGMENT_HEADS ? 1 : NIB_CPU_SEGMENTS; }

static int32_t n_segments(const struct nib_attend_args *a, const struct view *v)
{
    const int32_t n = n_rows_of(v) / SEGMENT_ROWS, most = n_segments_most(a);
    return n < 1 ? 1 : n > most ? most : n;
}

/* Heads h0 to h0 + n_heads of row t, and the thread that works on them. */
struct query {
    const struct nib_stream      *s;
    const struct nib_attend_args *a;
    struct nib_cpu_thread        *th;
    struct view                   view, next; /* next: of the row that is probably its turn then; no rows if none */
    const float                  *q; /* [n_heads][head_dim] */
    int32_t                       t, h0, n_heads;
};

static struct query query_of(const struct nib_stream *s, const struct nib_attend_args *a, int32_t t, int32_t h0,
                             int32_t n_heads)
{
    const int32_t d = a->head_dim, next = t + s->n_threads;
    struct query  x = {.s = s, .a = a, .th = &s->scratch.thread[omp_get_thread_num()], .t = t, .h0 = h0, .n_heads = n_heads};
    x.view = view_of(a, t);
    if (next < a->rows->n_rows)
        x.next = view_of(a, next);
    x.q = nib_cpu_row_read(s, &a->q, t, h0 * d, n_heads * d, x.th->heads_q);
    return x;
}

/* Turn a head's scores of a block into weights relative to its running maximum, rescaling what was summed before. */
static void softmax_block(const struct nib_stream *s, float *score, int32_t n, float scale, float *top, float *sum,
                          float *o, int32_t d)
{
    float factor = *top, block = s->k.softmax_scores(score, n, scale, top);
    if (*top > factor) {
        /* From -inf (a sink that is switched off, or a later segment's begin) nothing has been summed yet. */
        s->k.exp_shifted(&factor, *top, 1);
        *sum *= factor;
        for (int32_t c = 0; c < d; c++)
            o[c] *= factor;
    }
    *sum += block;
}

static void softmax_heads(const struct query *x, int32_t n_rows, const struct nib_cpu_partial *to)
{
    const int32_t d = x->a->head_dim;
    for (int32_t h = 0; h < x->n_heads; h++)
        softmax_block(x->s, x->th->score + h * NIB_CPU_KV_ROWS, n_rows, x->a->scale, &to->top[h], &to->sum[h],
                      to->o + h * d, d);
}

/* A block's scores piece by piece, each a multiple of every register tile: before a piece some of the rows from `next` on are
 * asked for, evenly, for more of them at once than a core has misses under way would hold up the products. */
static void score_decoded(const struct query *x, int32_t n_rows, int32_t next)
{
    enum { HEADS = 8, ROWS = 6 };
    const struct nib_cpu_thread *th = x->th;
    const int32_t d = x->a->head_dim, stride = nib_cpu_kv_stride(d), end = min_of(next + NIB_CPU_KV_ROWS, n_rows_of(&x->view));
    const int32_t n_pieces = (x->n_heads + HEADS - 1) / HEADS * ((n_rows + ROWS - 1) / ROWS);
    int32_t       j_next = next, piece = 0;
    for (int32_t h = 0; h < x->n_heads; h += HEADS)
        for (int32_t j = 0; j < n_rows; j += ROWS) {
            piece++;
            for (; j_next < end && (j_next - next) * n_pieces < (end - next) * piece; j_next++)
                prefetch_row(x->a, &x->view, j_next);
            x->s->k.dot_rows(x->q + h * d, d, min_of(HEADS, x->n_heads - h), th->kv + j * stride, stride,
                             min_of(ROWS, n_rows - j), d, th->score + h * NIB_CPU_KV_ROWS + j, NIB_CPU_KV_ROWS);
        }
}

static void attend_decoded(const struct query *x, int32_t j0, int32_t n_rows, bool is_first,
                           const struct nib_cpu_partial *to)
{
    const struct nib_stream      *s = x->s;
    const struct nib_attend_args *a = x->a;
    struct nib_cpu_thread        *th = x->th;
    const int32_t                 d = a->head_dim, stride = nib_cpu_kv_stride(d);
    for (int32_t j = 0; j < n_rows; j++) {
        if (is_first && j + ROWS_AHEAD < n_rows)
            prefetch_row(a, &x->view, j0 + j + ROWS_AHEAD);
        enum nib_row_format f = j0 + j < x->view.n_window ? a->window.format : a->entries.format;
        nib_cpu_kv_read(s, f, row_at(a, &x->view, j0 + j), d, a->rope.n_rot, th->kv + j * stride);
    }
    score_decoded(x, n_rows, j0 + n_rows);
    softmax_heads(x, n_rows, to);
    s->k.add_weighted(th->score, NIB_CPU_KV_ROWS, x->n_heads, th->kv, stride, n_rows, d, to->o, d);
}

/* Heads that see BF16 rows sooner where they lie: two tiles of registers. */
enum { HEADS_FEW = 8 };

static bool is_direct(const struct nib_attend_args *a, int32_t n_heads)
{
    return n_heads <= HEADS_FEW && a->head_dim % NIB_CPU_LANES == 0 && a->window.format == NIB_ROW_BF16 &&
           (a->ratio == 0 || a->entries.format == NIB_ROW_BF16);
}

static void attend_direct(const struct query *x, const uint16_t *const *row, const uint16_t *const *next, int32_t n_rows,
                          const struct nib_cpu_partial *to)
{
    const struct nib_stream *s = x->s;
    const int32_t            d = x->a->head_dim;
    float                   *score = x->th->score;
    s->k.dot_bf16(x->q, d, x->n_heads, row, next, n_rows, d, score, NIB_CPU_KV_ROWS);
    softmax_heads(x, n_rows, to);
    s->k.add_bf16(score, NIB_CPU_KV_ROWS, x->n_heads, row, next, n_rows, d, to->o, d);
}

/* Where rows j to j + n of the query are; after its last come those of the one that is probably next, then no more. */
static void find_rows(const struct query *x, int32_t j, int32_t n, const uint16_t **row)
{
    const int32_t own = n_rows_of(&x->view), both = own + n_rows_of(&x->next);
    for (int32_t i = 0; i < n; i++, j++)
        row[i] = (const uint16_t *)(const void *)(j < own    ? row_at(x->a, &x->view, j)
                                                  : j < both ? row_at(x->a, &x->next, j - own)
                                                             : row_at(x->a, &x->view, own - 1));
}

/* The sink is the first segment's. */
static void attend_segment(const struct query *x, int32_t segment, const struct nib_cpu_partial *to)
{
    const int32_t   n = n_rows_of(&x->view), n_parts = n_segments(x->a, &x->view);
    const int32_t   begin = n * segment / n_parts, end = n * (segment + 1) / n_parts;
    const uint16_t *row[2][NIB_CPU_KV_ROWS];
    memset(to->o, 0, sizeof(float) * (size_t)(x->n_heads * x->a->head_dim));
    for (int32_t h = 0; h < x->n_heads; h++) {
        to->top[h] = segment == 0 ? x->a->sink[x->h0 + h] : -INFINITY;
        to->sum[h] = to->top[h] == -INFINITY ? 0.0f : 1.0f;
    }
    if (!is_direct(x->a, x->n_heads)) {
        for (int32_t j = begin; j < end; j += NIB_CPU_KV_ROWS)
            attend_decoded(x, j, min_of(end - j, NIB_CPU_KV_ROWS), j == begin, to);
        return;
    }
    /* Blocks as even as can be, for each one's rows ask for the next one's. */
    const int32_t n_blocks = (end - begin + NIB_CPU_KV_ROWS - 1) / NIB_CPU_KV_ROWS;
    const int32_t block = n_blocks > 0 ? (end - begin + n_blocks - 1) / n_blocks : 0;
    find_rows(x, begin, block, row[0]);
    for (int32_t i = 0, j = begin; j < end; i ^= 1, j += block) {
        const int32_t n_rows = end - j < block ? end - j : block;
        find_rows(x, j + n_rows, n_rows, row[i ^ 1]);
        attend_direct(x, row[i], row[i ^ 1], n_rows, to);
    }
}

/* sum += next, both brought to the larger of their maxima. */
static void add_segment(const struct nib_stream *s, int32_t n_heads, int32_t d, const struct nib_cpu_partial *sum,
                        const struct nib_cpu_partial *next)
{
    for (int32_t h = 0; h < n_heads; h++) {
        float       *o = sum->o + h * d;
        const float  top = next->top[h] > sum->top[h] ? next->top[h] : sum->top[h];
        float        factor[2] = {sum->top[h], next->top[h]};
        s->k.exp_shifted(factor, top, 2);
        if (top > sum->top[h])
            for (int32_t c = 0; c < d; c++)
                o[c] *= factor[0];
        s->k.add_weighted(&factor[1], 1, 1, next->o + h * d, d, 1, d, o, d);
        sum->sum[h] = sum->sum[h] * factor[0] + next->sum[h] * factor[1];
        sum->top[h] = top;
    }
}

static void finish_heads(const struct nib_stream *s, const struct nib_attend_args *a, int32_t t, int32_t h0, int32_t n_heads,
                         const struct nib_cpu_partial *from)
{
    const int32_t d = a->head_dim;
    float        *angle = s->scratch.thread[omp_get_thread_num()].angle;
    nib_cpu_angles(s, &a->rope, a->rows->pos[t] - a->rows->first_pos, angle);
    for (int32_t h = 0; h < n_heads; h++) {
        for (int32_t c = 0; c < d; c++)
            from->o[h * d + c] /= from->sum[h];
        nib_cpu_rotate(s, from->o + h * d, d, a->rope.n_rot, angle, true);
    }
    nib_cpu_row_write(s, &a->o, t, h0 * d, n_heads * d, from->o);
}

static void attend_row(const struct nib_stream *s, const struct nib_attend_args *a, int32_t t)
{
    const struct query            x = query_of(s, a, t, 0, a->n_heads);
    const struct nib_cpu_partial *partial = x.th->partial;
    attend_segment(&x, 0, &partial[0]);
    for (int32_t i = 1; i < n_segments(a, &x.view); i++) {
        attend_segment(&x, i, &partial[1]);
        add_segment(s, a->n_heads, a->head_dim, &partial[0], &partial[1]);
    }
    finish_heads(s, a, t, 0, a->n_heads, &partial[0]);
}

/* ---- Rows that threads share ---- */

/* Heads from h0 on of a segment of the i-th of them. */
static struct nib_cpu_partial shared_partial(const struct nib_stream *s, int32_t i, int32_t segment, int32_t h0, int32_t d)
{
    const struct nib_cpu_partial *p = &s->scratch.partial[i * NIB_CPU_SEGMENTS + segment];
    return (struct nib_cpu_partial){p->o + h0 * d, p->top + h0, p->sum + h0};
}

/* Part `part` of n_parts of the heads of one segment of row t, the i-th that is shared. */
static void attend_shared(const struct nib_stream *s, const struct nib_attend_args *a, int32_t t, int32_t i, int32_t segment,
                          int32_t part, int32_t n_parts)
{
    const int32_t      h0 = a->n_heads * part / n_parts, h1 = a->n_heads * (part + 1) / n_parts;
    const struct query x = query_of(s, a, t, h0, h1 - h0);
    if (segment >= n_segments(a, &x.view))
        return;
    if (n_segments_most(a) == 1) { /* in the thread's own memory, which its cache holds */
        attend_segment(&x, 0, &x.th->partial[0]);
        finish_heads(s, a, t, h0, h1 - h0, &x.th->partial[0]);
        return;
    }
    const struct nib_cpu_partial to = shared_partial(s, i, segment, h0, a->head_dim);
    attend_segment(&x, segment, &to);
}

/* A thread's share of the heads, all segments being there. */
static void finish_shared(const struct nib_stream *s, const struct nib_attend_args *a, int32_t t, int32_t i, int32_t share)
{
    const int32_t     h0 = a->n_heads * share / s->n_threads, n = a->n_heads * (share + 1) / s->n_threads - h0;
    const struct view v = view_of(a, t);
    if (n == 0)
        return;
    const struct nib_cpu_partial sum = shared_partial(s, i, 0, h0, a->head_dim);
    for (int32_t segment = 1; segment < n_segments(a, &v); segment++) {
        const struct nib_cpu_partial next = shared_partial(s, i, segment, h0, a->head_dim);
        add_segment(s, n, a->head_dim, &sum, &next);
    }
    finish_heads(s, a, t, h0, n, &sum);
}

/* With few rows, those beyond a multiple of the threads would leave threads idle: they are shared by segments, if
 * there are any, and by heads, though not below a tile of heads. */
enum { ROWS_FEW = 4 /* for a thread */, HEADS_LEAST = 4 };

enum nib_status nib_cpu_attend(struct nib_stream *s, const struct nib_attend_args *a)
{
    const int32_t n_rows = a->rows->n_rows;
    const int32_t n_threads = nib_cpu_threads(s, (int64_t)n_rows * a->q.cols * 2 * a->n_window);
    const int32_t n_shared = n_rows < ROWS_FEW * n_threads ? n_rows % n_threads : 0, n_whole = n_rows - n_shared;
    const int32_t n_most = n_segments_most(a);
    int32_t       n_parts = 1;
    while (n_shared * n_most * n_parts < n_threads && n_parts * 2 * HEADS_LEAST <= a->n_heads)
        n_parts *= 2;
    const int32_t n_items = n_most * n_parts; /* of a shared row */
#pragma omp parallel num_threads(n_threads)
    {
#pragma omp for schedule(dynamic, 1) nowait
        for (int32_t item = 0; item < n_whole + n_shared * n_items; item++) {
            const int32_t k = item - n_whole, i = k / n_items;
            if (k < 0)
                attend_row(s, a, item);
            else
                attend_shared(s, a, n_whole + i, i, k % n_items / n_parts, k % n_parts, n_parts);
        }
        if (n_shared > 0 && n_most > 1) {
#pragma omp barrier
#pragma omp for schedule(static)
            for (int32_t item = 0; item < n_shared * n_threads; item++)
                finish_shared(s, a, n_whole + item / n_threads, item / n_threads, item % n_threads);
        }
    }
    return NIB_OK;
}
