/* Drawing the next token: penalties, temperature, min_p, top_k, top_p, draw, in that order.
 *
 * No sort: each cut is a threshold on the logits, found by bisection over their ordered bits. All sums run over ids in
 * ascending order. */
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"

/* An integer that orders doubles as numbers. */
static uint64_t order_key(double v)
{
    uint64_t u;
    v += 0.0; /* -0 and 0 are equal */
    memcpy(&u, &v, sizeof u);
    return u >> 63 ? ~u : u | (uint64_t)1 << 63;
}

/* One row's candidates: z is the logit after temperature, p = exp(z - max), 0 once an id is dropped. */
struct draw {
    int32_t n;
    double *z, *p;
};

static void drop(const struct draw *d, int32_t i)
{
    d->z[i] = -INFINITY;
    d->p[i] = 0;
}

/* Sum of p, or number of ids, among the candidates whose key is at least `key`. */
static double mass_at_least(const struct draw *d, uint64_t key, bool count)
{
    double sum = 0;
    for (int32_t i = 0; i < d->n; i++) {
        if (d->p[i] > 0 && order_key(d->z[i]) >= key)
            sum += count ? 1 : d->p[i];
    }
    return sum;
}

/* The largest key at or above which the mass still reaches `wanted`; 0 where all of it is too little. */
static uint64_t cut_at(const struct draw *d, double wanted, bool count)
{
    uint64_t cut = 0;
    for (uint64_t bit = (uint64_t)1 << 63; bit; bit >>= 1) {
        if (mass_at_least(d, cut | bit, count) >= wanted)
            cut |= bit;
    }
    return cut;
}

static void keep_top_k(const struct draw *d, int32_t k)
{
    uint64_t cut = cut_at(d, k, true);
    for (int32_t i = 0; i < d->n; i++) {
        if (order_key(d->z[i]) < cut)
            drop(d, i);
    }
}

/* The shortest prefix of the descending order whose share reaches top_p; at the cut, lower ids first. */
static void keep_top_p(const struct draw *d, double top_p)
{
    double   wanted = top_p * mass_at_least(d, 0, false);
    uint64_t cut = cut_at(d, wanted > 0 ? wanted : 1, false);
    double   mass = mass_at_least(d, cut + 1, false);
    for (int32_t i = 0; i < d->n; i++) {
        uint64_t key = order_key(d->z[i]);
        bool     kept = key > cut || (key == cut && (mass < wanted || mass == 0));
        if (key == cut)
            mass += d->p[i];
        if (!kept)
            drop(d, i);
    }
}

static int32_t draw_token(const struct draw *d, double uniform)
{
    double  target = uniform * mass_at_least(d, 0, false), sum = 0;
    int32_t last = -1;
    for (int32_t i = 0; i < d->n; i++) {
        if (d->p[i] > 0) {
            sum += d->p[i];
            last = i;
            if (sum > target)
                break;
        }
    }
    return last;
}

static int32_t largest(const double *z, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = z[i] > z[best] ? i : best;
    return best;
}

static void penalise(const struct nib_sample_args *a, const struct nib_sample_row *row, double *z)
{
    for (int32_t i = row->history_start; i < row->history_start + row->history_count; i++) {
        double *l = &z[a->history_token[i]];
        int32_t times = a->history_times[i];
        *l = *l > 0 ? *l / (double)row->repetition : *l * (double)row->repetition;
        *l -= (double)row->frequency * times;
        *l -= times > 0 ? (double)row->presence : 0;
    }
}

/* Neither NaN nor +Inf, and something finite: only then is there a distribution. */
static bool can_sample(const float *logits, int32_t n)
{
    bool any = false;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return false;
        any = any || isfinite(logits[i]);
    }
    return any;
}

static int32_t sample_row(const struct nib_sample_args *a, int32_t t, const struct draw *d)
{
    const struct nib_sample_row *row = &a->row[t];
    penalise(a, row, d->z);
    int32_t best = largest(d->z, d->n);
    if (row->temperature < 1e-5f)
        return best;
    double most = d->z[best];
    for (int32_t i = 0; i < d->n; i++) {
        d->z[i] = (d->z[i] - most) / (double)row->temperature;
        d->p[i] = exp(d->z[i]);
        if (d->p[i] < (double)row->min_p)
            drop(d, i);
    }
    if (row->top_k > 0)
        keep_top_k(d, row->top_k);
    if (row->top_p < 1)
        keep_top_p(d, (double)row->top_p);
    return draw_token(d, (double)row->uniform);
}

enum nib_status nib_ref_sample(struct nib_stream *s, const struct nib_sample_args *a)
{
    int32_t n = a->logits.cols;
#pragma omp parallel for num_threads(nib_ref_threads(s, (int64_t)a->n * n * 64))
    for (int32_t t = 0; t < a->n; t++) {
        const float *logits = (const float *)a->logits.data + t * a->logits.stride;
        struct draw  d = {n, nib_ref_thread(s)->logit, nib_ref_thread(s)->logit + n};
        a->token[t] = -1;
        a->logprob[t] = NAN;
        if (!can_sample(logits, n))
            continue;
        for (int32_t i = 0; i < n; i++)
            d.z[i] = (double)logits[i];
        double most = d.z[largest(d.z, n)], sum = 0;
        for (int32_t i = 0; i < n; i++)
            sum += exp(d.z[i] - most);
        a->token[t] = sample_row(a, t, &d);
        a->logprob[t] = (float)((double)logits[a->token[t]] - most - log(sum));
    }
    return NIB_OK;
}
