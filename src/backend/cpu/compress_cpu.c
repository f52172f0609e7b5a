/* compress: entries pooled from windows of positions, and the ring of raw rows behind them. */
#include "backend/cpu/cpu.h"

#include <omp.h>
#include <string.h>

/* Where a position's raw projections are: in this step's rows (score still without ape) or in the ring. */
struct raw_row {
    const float *kv, *score, *ape; /* ape NULL in the ring */
};

static struct raw_row raw_row_at(const struct nib_compress_args *a, int32_t t, int32_t pos)
{
    const struct nib_rows *rows = a->rows;
    int32_t                seq = rows->seq[t], width = (a->overlap ? 2 : 1) * a->width;
    int32_t                row = t - (rows->pos[t] - pos);
    if (row >= rows->seq_start[seq])
        return (struct raw_row){(const float *)nib_cpu_row(&a->kv, row), (const float *)nib_cpu_row(&a->gate, row),
                                a->ape + (int64_t)(pos % a->ratio) * width};
    int64_t at = rows->slot[seq] * a->frontier.slot_stride + (int64_t)(pos % a->frontier.n_ring) * width;
    return (struct raw_row){a->frontier.kv + at, a->frontier.score + at, NULL};
}

static void score_of(const struct raw_row *r, int32_t offset, int32_t n, float *score)
{
    for (int32_t i = 0; i < n; i++)
        score[i] = r->ape ? r->score[offset + i] + r->ape[offset + i] : r->score[offset + i];
}

/* Softmax over the window's rows for each channel: pass 0 finds the maxima, pass 1 sums in ascending position. */
static void pool(const struct nib_stream *s, const struct nib_compress_args *a, struct nib_cpu_thread *th, int32_t t,
                 float *out)
{
    int32_t w = a->width, pos = a->rows->pos[t], first = pos + 1 - a->ratio;
    int32_t begin = a->overlap ? first - a->ratio : first;
    begin = begin > a->rows->first_pos ? begin : a->rows->first_pos;
    float  *top = th->row[1], *sum = th->row[2], *score = th->row[3];
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t p = begin; p <= pos; p++) {
            struct raw_row r = raw_row_at(a, t, p);
            int32_t        offset = a->overlap && p >= first ? w : 0;
            score_of(&r, offset, w, score);
            if (pass == 0) {
                for (int32_t i = 0; i < w; i++)
                    top[i] = p == begin || score[i] > top[i] ? score[i] : top[i];
                continue;
            }
            for (int32_t i = 0; i < w; i++)
                score[i] -= top[i];
            s->k.exp_shifted(score, 0, w);
            for (int32_t i = 0; i < w; i++) {
                sum[i] += score[i];
                out[i] += score[i] * r.kv[offset + i];
            }
        }
        if (pass == 0) {
            memset(sum, 0, sizeof(float) * (size_t)w);
            memset(out, 0, sizeof(float) * (size_t)w);
        }
    }
    for (int32_t i = 0; i < w; i++)
        out[i] /= sum[i];
}

static void emit(const struct nib_stream *s, const struct nib_compress_args *a, struct nib_cpu_thread *th, int32_t t)
{
    const struct nib_rows *rows = a->rows;
    int32_t                w = a->width, e = rows->pos[t] / a->ratio;
    float                 *x = th->row[0];
    pool(s, a, th, t, x);
    if (a->round_bf16)
        s->k.bf16_round(x, w);
    nib_cpu_rms_norm(s, x, a->norm_weight, a->eps, w);
    if (a->round_bf16)
        s->k.bf16_round(x, w);
    nib_cpu_angles(s, &a->rope, e * a->ratio - rows->first_pos, th->angle);
    nib_cpu_rotate(s, x, w, a->rope.n_rot, th->angle, false);
    if (a->round_bf16)
        s->k.bf16_round(x, w);
    if (a->hadamard) {
        nib_cpu_hadamard(s, x, w);
        if (a->round_bf16)
            s->k.bf16_round(x, w);
    }
    nib_cpu_kv_write(s, &a->entries, x, w, a->rope.n_rot, nib_cpu_entry(&a->entries, rows, rows->seq[t], e));
}

/* The step's last n_ring rows of each sequence enter the ring. */
static void push(const struct nib_compress_args *a, int32_t t)
{
    const struct nib_rows *rows = a->rows;
    int32_t                seq = rows->seq[t], width = (a->overlap ? 2 : 1) * a->width;
    if (t < rows->seq_start[seq + 1] - a->frontier.n_ring)
        return;
    int32_t        ring_row = rows->pos[t] % a->frontier.n_ring;
    int64_t        at = rows->slot[seq] * a->frontier.slot_stride + (int64_t)ring_row * width;
    struct raw_row r = raw_row_at(a, t, rows->pos[t]);
    memcpy(a->frontier.kv + at, r.kv, sizeof(float) * (size_t)width);
    score_of(&r, 0, width, a->frontier.score + at);
}

/* What it takes, in multiply-adds: most steps only copy rows to the ring, the others read windows, with an exponential for
 * each number. */
static int64_t work_of(const struct nib_compress_args *a)
{
    const int64_t n = a->rows->n_rows, window = (a->overlap ? 2 : 1) * a->ratio;
    int64_t       n_entries = 0;
    for (int32_t t = 0; t < n; t++)
        n_entries += (a->rows->pos[t] + 1) % a->ratio == 0;
    return n * a->kv.cols * 4 + n_entries * window * a->width * 16;
}

enum nib_status nib_cpu_compress(struct nib_stream *s, const struct nib_compress_args *a)
{
    int32_t n = a->rows->n_rows;
#pragma omp parallel num_threads(nib_cpu_threads(s, work_of(a)))
    {
        struct nib_cpu_thread *th = &s->scratch.thread[omp_get_thread_num()];
#pragma omp for schedule(dynamic, 1)
        for (int32_t t = 0; t < n; t++)
            if ((a->rows->pos[t] + 1) % a->ratio == 0)
                emit(s, a, th, t);
            /* Entries read the ring; only when all are out (the loop's barrier) may it change. */
#pragma omp for schedule(static)
        for (int32_t t = 0; t < n; t++)
            push(a, t);
    }
    return NIB_OK;
}
