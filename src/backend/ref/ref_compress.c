/* The compressor: raw rows of a window pooled to one entry, and the ring of rows that no entry holds yet. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"
#include "number/act_rows.h"

/* Value and score (gate + ape) of one channel at one position of a sequence: from this step's projections, or from
 * the ring. Both give the same floats, so it does not matter how a prompt was cut. */
struct source {
    const struct nib_compress_args *a;
    int32_t                         first_row, first_pos; /* the sequence's rows of this step begin here */
    int64_t                         slot;
};

static struct source source_of(const struct nib_compress_args *a, int32_t seq)
{
    const struct nib_rows *rows = a->rows;
    int32_t                first = rows->seq_start[seq];
    return (struct source){a, first, rows->pos[first], rows->slot[seq]};
}

static float score_of_row(const struct nib_compress_args *a, int32_t t, int32_t channel)
{
    const float *gate = (const float *)a->gate.data + t * a->gate.stride;
    return gate[channel] + a->ape[(int64_t)(a->rows->pos[t] % a->ratio) * a->gate.cols + channel];
}

static void source_get(const struct source *src, int32_t pos, int32_t channel, float *value, float *score)
{
    const struct nib_compress_args *a = src->a;
    if (pos >= src->first_pos) {
        int32_t t = src->first_row + pos - src->first_pos;
        *value = ((const float *)a->kv.data + t * a->kv.stride)[channel];
        *score = score_of_row(a, t, channel);
    } else {
        const struct nib_frontier *f = &a->frontier;
        int64_t at = src->slot * f->slot_stride + (int64_t)(pos % f->n_ring) * a->kv.cols + channel;
        *value = f->kv[at];
        *score = f->score[at];
    }
}

/* The softmax-weighted mean of one output channel of entry e. */
static double pool(const struct source *src, int32_t e, int32_t channel)
{
    const struct nib_compress_args *a = src->a;
    int32_t own = e * a->ratio;
    int32_t begin = a->overlap ? own - a->ratio : own;
    int32_t first = begin < a->rows->first_pos ? a->rows->first_pos : begin;
    double  most = -INFINITY, sum = 0, weighted = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t p = first; p < own + a->ratio; p++) {
            float value, score;
            source_get(src, p, a->overlap && p >= own ? a->width + channel : channel, &value, &score);
            if (pass == 0) {
                most = (double)score > most ? (double)score : most;
            } else {
                double w = exp((double)score - most);
                sum += w;
                weighted += w * (double)value;
            }
        }
    }
    return weighted / sum;
}

static void round_row(float *x, int32_t n, bool bf16)
{
    for (int32_t i = 0; bf16 && i < n; i++)
        x[i] = nib_bf16_round(x[i]);
}

/* Entry e of a sequence, through norm, rotation and Hadamard, into its page. */
static void emit(const struct nib_compress_args *a, int32_t seq, int32_t e, struct nib_ref_thread *th)
{
    const struct nib_rows *rows = a->rows;
    struct source          src = source_of(a, seq);
    float                 *x = th->row[0];
    for (int32_t j = 0; j < a->width; j++)
        x[j] = (float)pool(&src, e, j);
    round_row(x, a->width, a->round_bf16);
    nib_ref_rms_norm(x, a->norm_weight, a->width, a->eps, x);
    round_row(x, a->width, a->round_bf16);
    nib_ref_angles(&a->rope, e * a->ratio - rows->first_pos, th->angle);
    nib_ref_rotate(x, a->width, a->rope.n_rot, th->angle, false);
    round_row(x, a->width, a->round_bf16);
    if (a->hadamard) {
        nib_hadamard(x, a->width);
        round_row(x, a->width, a->round_bf16);
    }
    const int32_t *page = rows->entry_page + seq * rows->page_stride;
    nib_ref_encode(a->entries.format, x, a->width, a->rope.n_rot, nib_ref_store_at(&a->entries, page, e));
}

/* Put row t into its sequence's ring. */
static void push(const struct nib_compress_args *a, int32_t t)
{
    const struct nib_frontier *f = &a->frontier;
    int32_t n = a->kv.cols;
    int64_t at = a->rows->slot[a->rows->seq[t]] * f->slot_stride + (int64_t)(a->rows->pos[t] % f->n_ring) * n;
    memcpy(f->kv + at, (const float *)a->kv.data + t * a->kv.stride, (size_t)n * sizeof(float));
    for (int32_t j = 0; j < n; j++)
        f->score[at + j] = score_of_row(a, t, j);
}

enum nib_status nib_ref_compress(struct nib_stream *s, const struct nib_compress_args *a)
{
    const struct nib_rows *rows = a->rows;
    int64_t                work = (int64_t)rows->n_rows * a->kv.cols;
    assert(a->kv.dtype == NIB_DTYPE_F32 && a->gate.dtype == NIB_DTYPE_F32);
#pragma omp parallel for num_threads(nib_ref_threads(s, 16 * work))
    for (int32_t t = 0; t < rows->n_rows; t++) {
        if ((rows->pos[t] + 1) % a->ratio == 0)
            emit(a, rows->seq[t], rows->pos[t] / a->ratio, nib_ref_thread(s));
    }
    /* Only after every entry has read the older rows; no two of a sequence's last n_ring rows share a ring row. */
#pragma omp parallel for num_threads(nib_ref_threads(s, work))
    for (int32_t t = 0; t < rows->n_rows; t++) {
        if (rows->seq_start[rows->seq[t] + 1] - t <= a->frontier.n_ring)
            push(a, t);
    }
    return NIB_OK;
}
