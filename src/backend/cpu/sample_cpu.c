/* sample: one token for each row of logits. Filters as in struct nib_sample_row, in their order; the draw is an
 * inverse CDF over ids in ascending order, summed in double so that the order of summation does not matter in
 * practice. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <string.h>

static void penalise(const struct nib_sample_args *a, const struct nib_sample_row *row, float *l)
{
    for (int32_t i = row->history_start; i < row->history_start + row->history_count; i++) {
        float  *x = &l[a->history_token[i]];
        int32_t times = a->history_times[i];
        *x = *x > 0 ? *x / row->repetition : *x * row->repetition;
        *x -= row->frequency * (float)times;
        if (times > 0)
            *x -= row->presence;
    }
}

/* w = exp((l - top) / temperature), 1 at the top. */
static void weights_of(const struct nib_stream *s, const float *l, int32_t n, float top, float temperature, float *w)
{
    for (int32_t i = 0; i < n; i++)
        w[i] = (l[i] - top) / temperature;
    s->k.exp_shifted(w, 0, n);
}

/* Ids of positive weight, largest logit first, ties to the lowest id: radix sort by the logit's bits made to order as
 * integers, descending, stable over ids that start ascending. Returns their number; *sorted has them in the low 32
 * bits. */
static int32_t sort_ids(const float *l, const float *w, int32_t n, uint64_t *const buffer[2], const uint64_t **sorted)
{
    uint64_t *from = buffer[0], *to = buffer[1];
    int32_t   n_ids = 0;
    for (int32_t i = 0; i < n; i++)
        if (w[i] > 0) {
            float    zero_is_one_value = l[i] + 0.0f;
            uint32_t bits;
            memcpy(&bits, &zero_is_one_value, sizeof bits);
            bits = bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
            from[n_ids++] = (uint64_t)bits << 32 | (uint32_t)i;
        }
    for (int shift = 32; shift < 64; shift += 8) {
        int32_t start[256] = {0}, sum = 0;
        for (int32_t i = 0; i < n_ids; i++)
            start[from[i] >> shift & 255]++;
        for (int b = 0; b < 256; b++) {
            int32_t count = start[b];
            start[b] = sum;
            sum += count;
        }
        for (int32_t i = 0; i < n_ids; i++)
            to[start[from[i] >> shift & 255]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    *sorted = from;
    return n_ids;
}

/* Set the weights of ids that min_p, top_k and top_p leave out to 0. */
static void filter(const struct nib_sample_row *row, const float *l, float *w, int32_t n, uint64_t *const buffer[2])
{
    if (row->min_p > 0)
        for (int32_t i = 0; i < n; i++)
            w[i] = w[i] < row->min_p ? 0.0f : w[i]; /* the largest weight is 1 */
    bool by_rank = row->top_k > 0, by_mass = row->top_p < 1;
    if (!by_rank && !by_mass)
        return;
    const uint64_t *sorted;
    int32_t         n_ids = sort_ids(l, w, n, buffer, &sorted), n_kept = n_ids;
    if (by_rank && row->top_k < n_ids) {
        /* Ids equal to the k-th largest all stay. */
        n_kept = row->top_k;
        while (n_kept < n_ids && sorted[n_kept] >> 32 == sorted[row->top_k - 1] >> 32)
            n_kept++;
    }
    if (by_mass) {
        double mass = 0, sum = 0;
        for (int32_t i = 0; i < n_kept; i++)
            mass += (double)w[sorted[i] & 0xffffffffu];
        int32_t i = 0;
        do
            sum += (double)w[sorted[i++] & 0xffffffffu];
        while (i < n_kept && sum < (double)row->top_p * mass);
        n_kept = i;
    }
    for (int32_t i = n_kept; i < n_ids; i++)
        w[sorted[i] & 0xffffffffu] = 0;
}

enum { DRAW_BLOCK = 256 };

/* The first id at which the sum passes its share of the mass, by whole blocks first; the last one that has any weight where
 * rounding lets none pass. */
static int32_t draw(const struct nib_stream *s, const float *w, int32_t n, float uniform)
{
    double target = (double)uniform * s->k.sum_doubles(w, n), sum = 0;
    for (int32_t b = 0; b < n; b += DRAW_BLOCK) {
        const int32_t end = n - b < DRAW_BLOCK ? n : b + DRAW_BLOCK;
        const double  block = s->k.sum_doubles(w + b, end - b);
        if (sum + block <= target) {
            sum += block;
            continue;
        }
        for (int32_t i = b; i < end; i++) {
            sum += (double)w[i];
            if (w[i] > 0 && sum > target)
                return i;
        }
    }
    while (n > 1 && !(w[n - 1] > 0))
        n--;
    return n - 1;
}

static void sample_row(const struct nib_stream *s, const struct nib_sample_args *a, struct nib_cpu_thread *th,
                       int32_t r)
{
    const struct nib_sample_row *row = &a->row[r];
    const float                 *logits = (const float *)nib_cpu_row(&a->logits, r), *l = logits;
    int32_t                      n = a->logits.cols, token;
    float                       *w = th->weight;
    a->token[r] = -1;
    a->logprob[r] = NAN;
    const int32_t best = s->k.largest(logits, n);
    if (best < 0)
        return;

    float top = logits[best];
    weights_of(s, logits, n, top, 1, w);
    const double mass = s->k.sum_doubles(w, n);

    token = best;
    if (row->history_count > 0) {
        memcpy(th->logits, logits, sizeof(float) * (size_t)n);
        penalise(a, row, th->logits);
        l = th->logits;
        token = s->k.largest(l, n);
        token = token < 0 ? best : token; /* a penalty can push even the last finite logit out of range */
    }
    if (row->temperature >= 1e-5f) {
        weights_of(s, l, n, l[token], row->temperature, w);
        filter(row, l, w, n, th->sort);
        token = draw(s, w, n, row->uniform);
    }
    a->token[r] = token;
    a->logprob[r] = (float)((double)logits[token] - (double)top - log(mass));
}

enum nib_status nib_cpu_sample(struct nib_stream *s, const struct nib_sample_args *a)
{
#pragma omp parallel for num_threads(nib_cpu_threads(s, (int64_t)a->n * a->logits.cols * 16)) schedule(dynamic, 1)
    for (int32_t r = 0; r < a->n; r++)
        sample_row(s, a, &s->scratch.thread[omp_get_thread_num()], r);
    return NIB_OK;
}
