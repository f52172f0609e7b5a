/* Penalties, temperature, min_p, top_k, top_p, in double. */
#include "engine/distribution.h"

#include <math.h>

static bool fill(const float *logits, int32_t n, double *z)
{
    bool any = false;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return false;
        any = any || isfinite(logits[i]);
        z[i] = (double)logits[i];
    }
    return any;
}

static void penalise(const struct nib_sampling *s, const struct nib_seen *seen, double *z)
{
    for (int32_t i = 0; i < seen->n; i++) {
        double *l = &z[seen->token[i]];
        *l = *l > 0 ? *l / (double)s->repetition : *l * (double)s->repetition;
        *l -= (double)s->frequency * seen->times[i];
        *l -= seen->times[i] > 0 ? (double)s->presence : 0;
    }
}

static double largest(const double *x, int32_t n)
{
    double most = x[0];
    for (int32_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

static double sum_of(const double *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

/* Order of a heap of ids: the likeliest first, equals by lower id. */
static bool before(const double *p, int32_t a, int32_t b)
{
    return p[a] != p[b] ? p[a] > p[b] : a < b;
}

static void sift(const double *p, int32_t *heap, int32_t n, int32_t i)
{
    for (;;) {
        int32_t first = i;
        for (int32_t child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++)
            if (before(p, heap[child], heap[first]))
                first = child;
        if (first == i)
            return;
        const int32_t id = heap[i];
        heap[i] = heap[first];
        heap[first] = id;
        i = first;
    }
}

/* What is enough: a number of ids, or their mass. ties: equals of the last one stay too. */
struct cut {
    double n_ids, mass;
    bool   ties;
};

/* Ids leave the heap in order until enough are kept; the rest need no order. */
static void keep(double *p, int32_t n, const struct cut *c, int32_t *heap)
{
    int32_t left = 0;
    double mass = 0, last = 0;
    for (int32_t i = 0; i < n; i++)
        if (p[i] > 0)
            heap[left++] = i;
    for (int32_t i = left / 2 - 1; i >= 0; i--)
        sift(p, heap, left, i);
    for (int32_t n_kept = 0; left > 0; n_kept++) {
        const double next = p[heap[0]];
        const bool enough = n_kept > 0 && (n_kept >= c->n_ids || mass >= c->mass);
        if (enough && !(c->ties && next == last))
            break;
        last = next;
        mass += next;
        heap[0] = heap[--left];
        sift(p, heap, left, 0);
    }
    while (left > 0)
        p[heap[--left]] = 0;
}

bool nib_distribution(const struct nib_sampling *s, const float *logits, int32_t n, const struct nib_seen *seen,
                      double *p, int32_t *order)
{
    if (!fill(logits, n, p))
        return false;
    penalise(s, seen, p);
    const double most = largest(p, n);
    for (int32_t i = 0; i < n; i++) {
        p[i] = exp((p[i] - most) / (double)s->temperature);
        if (p[i] < (double)s->min_p)
            p[i] = 0;
    }
    if (s->top_k > 0)
        keep(p, n, &(struct cut){.n_ids = s->top_k, .mass = INFINITY, .ties = true}, order);
    if (s->top_p < 1)
        keep(p, n, &(struct cut){.n_ids = INFINITY, .mass = (double)s->top_p * sum_of(p, n)}, order);
    const double sum = sum_of(p, n);
    for (int32_t i = 0; i < n; i++)
        p[i] /= sum;
    return true;
}

int32_t nib_distribution_draw(const double *weight, int32_t n, double uniform)
{
    const double target = uniform * sum_of(weight, n);
    double sum = 0;
    int32_t last = -1;
    for (int32_t i = 0; i < n; i++) {
        if (weight[i] > 0) {
            sum += weight[i];
            last = i;
            if (sum > target)
                break;
        }
    }
    return last;
}

double nib_log_softmax(const float *logits, int32_t n, int32_t id)
{
    double most = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        most = (double)logits[i] > most ? (double)logits[i] : most;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - most);
    return (double)logits[id] - most - log(sum);
}
