/* Check of sample. The token must be the one found here in double, unless a decision on the way (a cut, the draw) was
 * closer than fp32 can tell. */
#include "support/opcheck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sample {
    struct oc_mat          logits;
    struct nib_sample_row *row;
    int32_t                n_history, *token, *times;
};

static void run_sample(struct oc_run *r, const void *data, int32_t step)
{
    const struct sample    *a = data;
    int32_t                 n = a->logits.rows;
    struct nib_mat          logits = oc_put_mat(r, &a->logits);
    struct nib_sample_row  *row = oc_put(r, a->row, sizeof *row * (size_t)n);
    struct nib_sample_args  args = {.history_token = oc_put(r, a->token, 4 * (size_t)a->n_history),
                                    .history_times = oc_put(r, a->times, 4 * (size_t)a->n_history)};
    int32_t *token = oc_out(r, "token", OC_I32, n, 1, NULL);
    float   *logprob = oc_out(r, "logprob", OC_F32, n, 1, NULL);
    for (int32_t t = 0; t < n; t += step) {
        args.n = step < n - t ? step : n - t;
        args.logits = oc_rows_of_mat(logits, t, args.n);
        args.row = row + t;
        args.token = token + t;
        args.logprob = logprob + t;
        oc_op(r, r->api->ops->sample(r->s, &args));
    }
}

struct candidate {
    double  z, p;
    int32_t id;
};

static int by_size(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;
    return a->z > b->z ? -1 : a->z < b->z ? 1 : a->id - b->id;
}

static int by_id(const void *x, const void *y)
{
    return ((const struct candidate *)x)->id - ((const struct candidate *)y)->id;
}

/* Logits after penalties, and how far fp32 may be off. */
static double penalised(const struct sample *a, int32_t t, int32_t id)
{
    const struct nib_sample_row *row = &a->row[t];
    double                       z = a->logits.value[(int64_t)t * a->logits.cols + id];
    for (int32_t i = row->history_start; i < row->history_start + row->history_count; i++)
        if (a->token[i] == id) {
            z = z > 0 ? z / (double)row->repetition : z * (double)row->repetition;
            z -= (double)row->frequency * a->times[i] + (a->times[i] > 0 ? (double)row->presence : 0);
        }
    return z;
}

/* The token of a usable row; *close if some decision was within reach of rounding. Distances are relative to the
 * probabilities involved: each p has an error of about (|z| + 4) ulps over the temperature. */
static int32_t own_sample(struct oc_case *c, const struct sample *a, int32_t t, bool *close)
{
    const struct nib_sample_row *row = &a->row[t];
    int32_t                      vocab = a->logits.cols, n = 0;
    struct candidate            *list = oc_new(c, sizeof *list * (size_t)vocab);
    double                       most = -INFINITY, size = 0;
    *close = false;
    for (int32_t i = 0; i < vocab; i++) {
        list[i] = (struct candidate){penalised(a, t, i), 0, i};
        most = list[i].z > most ? list[i].z : most;
        size = isfinite(list[i].z) && fabs(list[i].z) > size ? fabs(list[i].z) : size;
    }
    qsort(list, (size_t)vocab, sizeof *list, by_size);
    /* Unequal logits that fp32 penalties may have made equal. */
    double z_err = 6 * OC_U * size;
    if (vocab > 1 && list[0].z != list[1].z && list[0].z - list[1].z < z_err && row->history_count)
        *close = true;
    if (row->temperature < 1e-5f)
        return list[0].id;
    double tol = 64 * OC_U + 4 * OC_U * (size + fabs(most)) / (double)row->temperature, mass = 0, sum = 0;
    for (int32_t i = 0; i < vocab; i++) {
        list[i].p = exp((list[i].z - most) / (double)row->temperature);
        if (list[i].p < 1e-37)
            break; /* an id that fp32 may drop has no weight either way */
        if (row->min_p > 0 && fabs(list[i].p - (double)row->min_p) < tol * list[i].p)
            *close = true;
        if (list[i].p < (double)row->min_p)
            break;
        n++;
    }
    if (row->top_k > 0 && row->top_k < n) {
        int32_t k = row->top_k;
        if (list[k].z != list[k - 1].z && list[k - 1].z - list[k].z < z_err)
            *close = true;
        while (k < n && list[k].z == list[k - 1].z)
            k++;
        n = k;
    }
    for (int32_t i = 0; i < n; i++)
        mass += list[i].p;
    for (int32_t i = 0; i < n && row->top_p < 1; i++) {
        sum += list[i].p;
        if (fabs(sum - (double)row->top_p * mass) < tol * mass)
            *close = true;
        if (sum >= (double)row->top_p * mass)
            n = i + 1;
    }
    qsort(list, (size_t)n, sizeof *list, by_id);
    mass = sum = 0;
    for (int32_t i = 0; i < n; i++)
        mass += list[i].p;
    for (int32_t i = 0; i < n; i++) {
        sum += list[i].p;
        if (fabs(sum - (double)row->uniform * mass) < tol * mass)
            *close = true;
        if (sum > (double)row->uniform * mass)
            return list[i].id;
    }
    return list[n - 1].id;
}

static void judge_sample(struct oc_case *c, const void *data, const struct oc_result *ref, const struct oc_result *got)
{
    const struct sample    *a = data;
    const struct oc_output *token = oc_find(got, "token"), *logprob = oc_find(got, "logprob");
    struct oc_worst         worst = {0};
    for (int32_t t = 0; t < a->logits.rows; t++) {
        const double *z = a->logits.value + (int64_t)t * a->logits.cols;
        int32_t       have = oc_int_at(token, t, 0);
        bool          usable = false, broken = false, close;
        double        most = -INFINITY, sum = 0, size = 0;
        for (int32_t i = 0; i < a->logits.cols; i++) {
            broken = broken || isnan(z[i]) || z[i] == INFINITY;
            usable = usable || isfinite(z[i]);
            most = z[i] > most ? z[i] : most;
        }
        ++*c->n_checks;
        if (broken || !usable) {
            if (have != -1)
                oc_fail(c, "row %d has no distribution and gave token %d", t, have);
            continue;
        }
        int32_t want = own_sample(c, a, t, &close);
        if (have < 0 || have >= a->logits.cols ||
            (!close && (have != want || have != oc_int_at(oc_find(ref, "token"), t, 0)))) {
            oc_fail(c, "row %d: token %d, wanted %d (ref %d)", t, have, want, oc_int_at(oc_find(ref, "token"), t, 0));
            return;
        }
        for (int32_t i = 0; i < a->logits.cols; i++)
            sum += exp(z[i] - most);
        size = fabs(z[have] - most);
        /* Weights are right to a few ulps, plus one for each unit of distance that still has weight. */
        oc_compare(&worst, oc_at(logprob, t, 0), z[have] - most - log(sum), OC_U * (2 * size + 2 * fabs(most) + 64), t,
                   0);
    }
    oc_conclude(c, &worst, "logprob");
}

void oc_check_sample(struct oc_case *c)
{
    int32_t       n = oc_range(c, 0, 5), vocab = oc_chance(c, 0.3) ? oc_range(c, 1, 4000) : oc_range(c, 1, 200), at = 0;
    struct sample a = {.logits = oc_mat_new(c, NIB_DTYPE_F32, n, vocab, oc_chance(c, 0.5) ? 3 : 1, oc_chance(c, 0.1))};
    a.row = oc_new(c, sizeof *a.row * (size_t)n + 1);
    a.token = oc_new(c, 4 * 32 * 8);
    a.times = oc_new(c, 4 * 32 * 8);
    for (int32_t t = 0; t < n; t++) {
        struct nib_sample_row *row = &a.row[t];
        *row = (struct nib_sample_row){.temperature = 1, .top_p = 1, .repetition = 1, .uniform = (float)oc_uniform(c)};
        row->uniform = row->uniform < 1 ? row->uniform : 0;
        if (oc_chance(c, 0.2))
            row->temperature = 0;
        else if (oc_chance(c, 0.4))
            row->temperature = (float)(0.2 + 2 * oc_uniform(c));
        if (oc_chance(c, 0.4))
            row->top_p = (float)(0.05 + 0.94 * oc_uniform(c));
        if (oc_chance(c, 0.3))
            row->top_k = oc_range(c, 1, 50);
        if (oc_chance(c, 0.3))
            row->min_p = (float)(0.3 * oc_uniform(c));
        row->history_start = at;
        if (oc_chance(c, 0.4)) {
            row->repetition = 1.3f;
            row->presence = 0.4f;
            row->frequency = 0.2f;
            row->history_count = vocab < 20 ? vocab : 20;
            for (int32_t i = 0, first = oc_range(c, 0, vocab - 1); i < row->history_count; i++) {
                a.token[at] = (first + i * 7) % vocab;
                for (int32_t k = row->history_start; k < at; k++)
                    if (a.token[k] == a.token[at])
                        a.token[at] = (a.token[at] + 1) % vocab, k = row->history_start - 1; /* distinct */
                a.times[at++] = oc_range(c, 0, 3);
            }
        }
        if (oc_chance(c, 0.1) && vocab > 1) /* masked ids */
            for (int32_t i = 0; i < vocab; i += 2) {
                ((float *)a.logits.data)[t * a.logits.stride + i] = -INFINITY;
                a.logits.value[(int64_t)t * vocab + i] = -INFINITY;
            }
    }
    a.n_history = at;
    oc_shape(c, "%d rows of %d", n, vocab);
    oc_all(c, run_sample, judge_sample, &a, n);
}
