/* Tokens a second with k drafts = (1 + a0 + a0 a1 + ...) / cost(k), where ai is the share of i-th drafts that were
 * right among those that were reached. The best k wins; without drafts nothing is lost but the MTP block's own row. */
#include "engine/draft_auto.h"

#include <stdbool.h>
#include <string.h>

/* Rounds before a cost counts. The first one meets cold caches and is left out. */
#define N_MEASURE 4
/* Weight of one more round in a running cost. */
#define FOLLOW 0.1
/* Drafting must promise this much, so that noise in the clock does not turn it on. */
#define GAIN 1.03
/* Plain rounds between tries while drafts do not pay: a try may cost as much as two or three plain rounds, and the gap
 * doubles as long as tries fail, so that all tries together stay below 5 %. */
#define PROBE_FIRST 64
#define PROBE_LAST  1024
/* Rounds with drafts between measurements of a plain one, whose cost grows with the context. */
#define N_REMEASURE 256
/* A try weighs half after 34 more. */
#define FADE 0.98

void nib_draft_auto_init(struct nib_draft_auto *a, int32_t max)
{
    memset(a, 0, sizeof *a);
    a->max = max;
    a->probe_gap = PROBE_FIRST;
}

void nib_draft_auto_restart(struct nib_draft_auto *a)
{
    memset(a->tried, 0, sizeof a->tried);
    memset(a->hit, 0, sizeof a->hit);
    a->n_plain = a->n_drafting = 0;
    a->probe_gap = PROBE_FIRST;
}

static bool is_known(const struct nib_draft_auto *a, int32_t k)
{
    return a->n_cost[k] >= N_MEASURE;
}

/* Share of i-th drafts that come true. One and a half tries of which one was right stand at the start, and deeper
 * drafts that were never reached are taken to be as good as those before them. */
static double share(const struct nib_draft_auto *a, int32_t i)
{
    while (i > 0 && a->tried[i] < 1)
        i--;
    return (a->hit[i] + 1) / (a->tried[i] + 1.5);
}

/* Measured; or continued from the largest known one at half of the rise so far, so that more drafts are tried rather
 * than not. */
static double cost_of(const struct nib_draft_auto *a, int32_t k)
{
    int32_t last = k;
    while (last > 0 && !is_known(a, last))
        last--;
    return last == k || last == 0 ? a->cost[last] : a->cost[last] + 0.5 * (k - last) * (a->cost[last] - a->cost[0]) / last;
}

/* The best of 0 .. limit; one step beyond what was measured, no further. */
static int32_t best_of(const struct nib_draft_auto *a, int32_t limit)
{
    int32_t best = 0;
    double best_rate = GAIN / a->cost[0], tokens = 1, all_right = 1;
    for (int32_t k = 1; k <= limit && (k < 2 || is_known(a, k - 1)); k++) {
        all_right *= share(a, k - 1);
        tokens += all_right;
        const double rate = tokens / cost_of(a, k);
        if (rate > best_rate) {
            best_rate = rate;
            best = k;
        }
    }
    return best;
}

int32_t nib_draft_auto_choose(struct nib_draft_auto *a, int32_t limit)
{
    limit = limit < a->max ? limit : a->max;
    if (limit <= 0 || !is_known(a, 0))
        return 0;
    if (!is_known(a, 1))
        return 1;
    if (a->n_drafting >= N_REMEASURE)
        return 0;
    const int32_t best = best_of(a, limit);
    if (best > 0) {
        a->probe_gap = PROBE_FIRST;
        return best;
    }
    if (a->n_plain < a->probe_gap)
        return 0;
    a->probe_gap = a->probe_gap * 2 < PROBE_LAST ? a->probe_gap * 2 : PROBE_LAST;
    return 1;
}

void nib_draft_auto_cost(struct nib_draft_auto *a, int32_t k, double seconds)
{
    /* An interruption by another program says nothing about the step. */
    if (is_known(a, k) && seconds > 2 * a->cost[k])
        seconds = 2 * a->cost[k];
    /* A mean at first, a running one later. */
    const double weight = a->n_cost[k] > 1 ? 1.0 / a->n_cost[k] : 1;
    a->cost[k] += (weight > FOLLOW ? weight : FOLLOW) * (seconds - a->cost[k]);
    a->n_cost[k] += a->n_cost[k] < 1000;
    a->n_plain = k > 0 ? 0 : a->n_plain + 1;
    a->n_drafting = k > 0 ? a->n_drafting + 1 : 0;
}

/* A round counts as one try, however many texts it has: its share of right drafts is only the less noisy. */
void nib_draft_auto_outcome(struct nib_draft_auto *a, const struct nib_draft_tally *t)
{
    for (int32_t i = 0; i < NIB_DRAFTS_MAX && t->n_judged[i] > 0; i++) {
        a->tried[i] = a->tried[i] * FADE + (double)t->n_judged[i] / t->n_texts;
        a->hit[i] = a->hit[i] * FADE + (double)t->n_right[i] / t->n_texts;
    }
}

void nib_draft_auto_record(struct nib_draft_auto *a, int32_t k, int32_t n_accepted, double seconds)
{
    struct nib_draft_tally t = {.n_texts = 1};
    for (int32_t i = 0; i < k && i <= n_accepted; i++) {
        t.n_judged[i] = 1;
        t.n_right[i] = i < n_accepted;
    }
    nib_draft_auto_cost(a, k, seconds);
    nib_draft_auto_outcome(a, &t);
}

int32_t nib_draft_auto_best(const struct nib_draft_auto *a, int32_t limit)
{
    limit = limit < a->max ? limit : a->max;
    return limit > 0 && is_known(a, 0) && is_known(a, 1) ? best_of(a, limit) : 0;
}
