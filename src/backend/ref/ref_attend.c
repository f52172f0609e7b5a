/* Which compressed entries a query attends to, and attention over window rows and entries. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"
#include "number/act_rows.h"

/* ---- Index select ---- */

static void round_row(float *x, int32_t n, bool bf16)
{
    for (int32_t i = 0; bf16 && i < n; i++)
        x[i] = nib_bf16_round(x[i]);
}

/* Rotate row t of q in place, and bring it to the form of the keys. */
static void index_query(const struct nib_index_select_args *a, int32_t t, float *q, struct nib_ref_thread *th)
{
    bool bf16 = a->q.dtype == NIB_DTYPE_BF16;
    memcpy(q, nib_ref_row(&a->q, t, th->row[0]), (size_t)a->q.cols * sizeof *q);
    nib_ref_angles(&a->rope, a->rows->pos[t] - a->rows->first_pos, th->angle);
    for (int32_t h = 0; h < a->n_heads; h++) {
        float *head = q + (int64_t)h * a->dim;
        nib_ref_rotate(head, a->dim, a->rope.n_rot, th->angle, false);
        round_row(head, a->dim, bf16);
        if (a->keys.format == NIB_ROW_FP4) {
            nib_hadamard(head, a->dim);
            round_row(head, a->dim, bf16);
            nib_fp4_row_encode(head, a->dim, th->codes, th->scales);
            nib_fp4_row_decode(th->codes, th->scales, a->dim, head);
        }
    }
    nib_ref_store_row(&a->q, t, q);
}

static float index_score(const struct nib_index_select_args *a, const float *q, const float *weight, const float *key)
{
    bool   bf16 = a->q.dtype == NIB_DTYPE_BF16;
    double sum = 0;
    for (int32_t h = 0; h < a->n_heads; h++) {
        double dot = nib_ref_dot_f32(q + (int64_t)h * a->dim, key, a->dim);
        double w = (double)weight[h] * (double)a->scale;
        if (bf16) {
            dot = (double)nib_ref_round(dot, true);
            w = (double)nib_ref_round(w, true);
        }
        sum += w * (dot < 0 ? 0 : dot); /* NaN passes */
    }
    return nib_ref_round(sum, bf16);
}

/* An integer that orders scores, NaN first of all so that it cannot be left out unseen. */
static uint32_t score_key(float v)
{
    uint32_t u = nib_f32_bits(v == 0 ? 0.0f : v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return UINT32_MAX;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static int32_t count_at_least(const float *score, int32_t n, uint32_t key)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        count += score_key(score[i]) >= key;
    return count;
}

/* The k largest of n > k scores, ascending by index; of equal ones the lowest index. */
static void select_top(const float *score, int32_t n, int32_t k, int32_t *selected)
{
    uint32_t cut = 0; /* becomes the k-th largest key, bit by bit from the top */
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
        if (count_at_least(score, n, cut | bit) >= k)
            cut |= bit;
    }
    int32_t above = cut == UINT32_MAX ? 0 : count_at_least(score, n, cut + 1);
    int32_t n_ties = k - above, n_taken = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t key = score_key(score[i]);
        if (key > cut || (key == cut && n_ties-- > 0))
            selected[n_taken++] = i;
    }
}

static void index_row(const struct nib_index_select_args *a, int32_t t, struct nib_ref_thread *th)
{
    const struct nib_rows *rows = a->rows;
    int32_t                visible = (rows->pos[t] + 1) / a->ratio;
    int32_t                n = visible < a->top_k ? visible : a->top_k;
    int32_t               *selected = a->selected + (int64_t)t * a->top_k;
    if (visible > a->top_k || a->scores.data) {
        const int32_t *page = rows->entry_page + rows->seq[t] * rows->page_stride;
        float         *q = th->row[1], *key = th->row[2];
        index_query(a, t, q, th);
        const float *weight = nib_ref_row(&a->weight, t, th->row[0]);
        for (int32_t c = 0; c < visible; c++) {
            nib_ref_decode(a->keys.format, nib_ref_store_at(&a->keys, page, c), a->dim, a->rope.n_rot, key);
            th->index_score[c] = index_score(a, q, weight, key);
        }
        for (int32_t c = 0; a->scores.data && c < visible; c++)
            nib_ref_store(&a->scores, t, c, (double)th->index_score[c]);
    }
    if (visible > a->top_k)
        select_top(th->index_score, visible, n, selected);
    for (int32_t i = visible > a->top_k ? n : 0; i < a->top_k; i++)
        selected[i] = i < n ? i : -1;
    a->n_selected[t] = n;
}

enum nib_status nib_ref_index_select(struct nib_stream *s, const struct nib_index_select_args *a)
{
    const struct nib_rows *rows = a->rows;
#pragma omp parallel for schedule(dynamic) num_threads(nib_ref_threads(s, (int64_t)rows->n_rows * a->q.cols * 16))
    for (int32_t t = 0; t < rows->n_rows; t++) {
        assert((rows->pos[t] + 1) / a->ratio <= s->dims.n_ctx_max);
        index_row(a, t, nib_ref_thread(s));
    }
    return NIB_OK;
}

/* ---- Attend ---- */

/* Rows that one query attends to, in order: window positions, then entries. */
struct attended {
    int32_t        first, n_window, n; /* first window position */
    const int32_t *selected;           /* NULL: entries 0, 1, ... */
    const int32_t *window_page, *entry_page;
};

static struct attended attended_by(const struct nib_attend_args *a, int32_t t)
{
    const struct nib_rows *rows = a->rows;
    int32_t                pos = rows->pos[t];
    struct attended        at = {.first = pos - a->n_window + 1};
    if (at.first < rows->first_pos)
        at.first = rows->first_pos;
    at.n_window = at.n = pos - at.first + 1;
    at.window_page = rows->window_page + rows->seq[t] * rows->page_stride;
    if (a->ratio > 0) {
        at.entry_page = rows->entry_page + rows->seq[t] * rows->page_stride;
        at.selected = a->selected ? a->selected + (int64_t)t * a->top_k : NULL;
        at.n += a->selected ? a->n_selected[t] : (pos + 1) / a->ratio;
    }
    return at;
}

static void attended_row(const struct nib_attend_args *a, const struct attended *at, int32_t j, float *row)
{
    int32_t e = j - at->n_window;
    if (e < 0)
        nib_ref_decode(a->window.format, nib_ref_store_at(&a->window, at->window_page, at->first + j), a->head_dim,
                       a->rope.n_rot, row);
    else
        nib_ref_decode(a->entries.format,
                       nib_ref_store_at(&a->entries, at->entry_page, at->selected ? at->selected[e] : e), a->head_dim,
                       a->rope.n_rot, row);
}

/* Heads h0 .. h0+n-1 of row t. */
static void attend_heads(const struct nib_stream *s, const struct nib_attend_args *a, int32_t t, int32_t h0, int32_t n)
{
    struct nib_ref_thread *th = nib_ref_thread(s);
    struct attended        at = attended_by(a, t);
    int32_t                d = a->head_dim;
    const float           *q = nib_ref_row(&a->q, t, th->row[0]) + (int64_t)h0 * d;
    float                 *row = th->row[1], *o = th->row[2];
    double                 most[NIB_REF_HEADS], total[NIB_REF_HEADS];
    assert(at.n <= s->n_attend);

    for (int32_t h = 0; h < n; h++)
        most[h] = (double)a->sink[h0 + h];
    for (int32_t j = 0; j < at.n; j++) {
        attended_row(a, &at, j, row);
        for (int32_t h = 0; h < n; h++) {
            double score = (double)a->scale * nib_ref_dot_f32(q + (int64_t)h * d, row, d);
            th->score[h * s->n_attend + j] = score;
            most[h] = score > most[h] ? score : most[h];
        }
    }
    for (int32_t h = 0; h < n; h++)
        total[h] = exp((double)a->sink[h0 + h] - most[h]);
    memset(th->sum, 0, (size_t)n * (size_t)d * sizeof *th->sum);
    for (int32_t j = 0; j < at.n; j++) {
        attended_row(a, &at, j, row);
        for (int32_t h = 0; h < n; h++) {
            double  p = exp(th->score[h * s->n_attend + j] - most[h]);
            double *sum = th->sum + (int64_t)h * d;
            total[h] += p;
            for (int32_t i = 0; i < d; i++)
                sum[i] += p * (double)row[i];
        }
    }
    nib_ref_angles(&a->rope, a->rows->pos[t] - a->rows->first_pos, th->angle);
    for (int32_t h = 0; h < n; h++) {
        for (int32_t i = 0; i < d; i++)
            o[i] = (float)(th->sum[(int64_t)h * d + i] / total[h]);
        nib_ref_rotate(o, d, a->rope.n_rot, th->angle, true);
        for (int32_t i = 0; i < d; i++)
            nib_ref_store(&a->o, t, (int64_t)(h0 + h) * d + i, (double)o[i]);
    }
}

enum nib_status nib_ref_attend(struct nib_stream *s, const struct nib_attend_args *a)
{
    int32_t n = a->rows->n_rows;
    int64_t work = (int64_t)n * a->q.cols * 2 * a->n_window;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(nib_ref_threads(s, work))
    for (int32_t t = 0; t < n; t++) {
        for (int32_t h = 0; h < a->n_heads; h += NIB_REF_HEADS)
            attend_heads(s, a, t, h, a->n_heads - h < NIB_REF_HEADS ? a->n_heads - h : NIB_REF_HEADS);
    }
    return NIB_OK;
}
