/* Next tokens for the rows of a step. Rows without history or edits are drawn together on the device; the others one by
 * one as their turn comes, since each depends on the token before, their logits edited on the host where tokens are
 * banned, biased or prescribed. */
#include "engine/random.h"
#include "engine/scheduler.h"

#include <math.h>
#include <string.h>

void nib_history_add(struct nib_history *h, int32_t token, bool generated)
{
    if (!h->place)
        return;
    if (h->place[token] == 0) {
        h->token[h->n] = token;
        h->times[h->n] = 0;
        h->place[token] = ++h->n;
    }
    h->times[h->place[token] - 1] += generated;
}

static bool holds_back_stops(const struct nib_request *r)
{
    return r->result.n_generated < r->args.n_min && r->args.n_stop > 0;
}

static bool is_edited(const struct nib_request *r)
{
    return r->n_allowed > 0 || r->args.n_bias > 0 || holds_back_stops(r);
}

static bool stands_alone(const struct nib_request *r)
{
    return r->history.n > 0 || is_edited(r);
}

/* Of request r, `ahead` tokens behind its next position: one place a token's number comes from, so that neither
 * scheduling nor drafts can change it. */
static struct nib_sample_row row_of(const struct nib_request *r, int32_t ahead)
{
    const struct nib_sampling *p = &r->args.sampling;
    return (struct nib_sample_row){.temperature = p->temperature, .top_p = p->top_p, .min_p = p->min_p, .top_k = p->top_k,
                                   .repetition = p->repetition, .presence = p->presence, .frequency = p->frequency,
                                   .uniform = nib_uniform(p->seed, (uint64_t)r->n_ids + (uint64_t)ahead, 0)};
}

static struct nib_mat logits_at(const struct nib_server *s, int32_t row, int32_t n)
{
    struct nib_mat m = s->engine->rank.work.logits;
    m.data = (float *)m.data + (int64_t)row * m.stride;
    m.rows = n;
    return m;
}

static enum nib_status draw(struct nib_server *s, int32_t first, int32_t n)
{
    struct nib_rank *rk = &s->engine->rank;
    NIB_TRY(rk->api->upload(rk->stream, s->device_row + first, s->host_row + first, (size_t)n * sizeof *s->host_row));
    return rk->ops->sample(rk->stream, &(struct nib_sample_args){
        .logits = logits_at(s, first, n), .n = n, .row = s->device_row + first, .history_token = s->engine->sample.history_token,
        .history_times = s->engine->sample.history_times, .token = s->device_token + first, .logprob = s->device_logprob + first});
}

static enum nib_status download_row(struct nib_server *s, int32_t row)
{
    struct nib_rank *rk = &s->engine->rank;
    return rk->api->download(rk->stream, s->logits, logits_at(s, row, 1).data,
                             (size_t)rk->config->vocab * sizeof(float));
}

/* Log of the sum of exponentials of the row on the host; NaN or infinite where the row is no distribution. */
static double log_sum(const float *x, int32_t n)
{
    double sum = 0;
    float max = x[0];
    for (int32_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)max);
    return (double)max + log(sum);
}

/* What is left after bans, biases and prescribed tokens. A prescribed token may always be drawn. */
static void edit(const struct nib_request *r, const float *raw, float *x, int32_t vocab)
{
    for (int32_t i = 0; i < vocab; i++)
        x[i] = r->n_allowed > 0 ? -INFINITY : raw[i];
    for (int32_t i = 0; i < r->n_allowed; i++) {
        const int32_t id = r->allowed[i];
        x[id] = isfinite(raw[id]) ? raw[id] : 0.0f;
    }
    if (r->n_allowed > 0)
        return;
    for (int32_t i = 0; i < r->args.n_bias; i++)
        x[r->args.bias[i].id] += r->args.bias[i].bias;
    for (int32_t i = 0; holds_back_stops(r) && i < r->args.n_stop; i++)
        x[r->args.stop_id[i]] = -INFINITY;
}

/* A row by itself. Log-probabilities are of the logits as they were, so an edited row's is taken here. */
static enum nib_status draw_edited(struct nib_server *s, const struct nib_request *r, int32_t row)
{
    struct nib_rank *rk = &s->engine->rank;
    const int32_t vocab = rk->config->vocab;
    const size_t bytes = (size_t)vocab * sizeof(float);
    void *device = logits_at(s, row, 1).data;
    int32_t token;
    NIB_TRY(download_row(s, row));
    const double total = log_sum(s->logits, vocab);
    if (isnan(total)) /* editing must not hide it from the draw */
        return draw(s, row, 1);
    edit(r, s->logits, s->edited, vocab);
    NIB_TRY(rk->api->upload(rk->stream, device, s->edited, bytes));
    NIB_TRY(draw(s, row, 1));
    NIB_TRY(rk->api->upload(rk->stream, device, s->logits, bytes));
    NIB_TRY(rk->api->download(rk->stream, &token, s->device_token + row, sizeof token));
    if (token < 0)
        return NIB_OK;
    const float logprob = (float)((double)s->logits[token] - total);
    return rk->api->upload(rk->stream, s->device_logprob + row, &logprob, sizeof logprob);
}

static enum nib_status draw_alone(struct nib_server *s, const struct nib_request *r, int32_t row)
{
    struct nib_rank *rk = &s->engine->rank;
    const size_t n = (size_t)r->history.n * sizeof(int32_t);
    if (n > 0) {
        NIB_TRY(rk->api->upload(rk->stream, s->engine->sample.history_token, r->history.token, n));
        NIB_TRY(rk->api->upload(rk->stream, s->engine->sample.history_times, r->history.times, n));
    }
    s->host_row[row] = row_of(r, 0);
    s->host_row[row].history_count = r->history.n;
    return is_edited(r) ? draw_edited(s, r, row) : draw(s, row, 1);
}

static enum nib_status download_drawn(struct nib_server *s, int32_t first, int32_t n)
{
    struct nib_rank *rk = &s->engine->rank;
    NIB_TRY(rk->api->download(rk->stream, s->host_token + first, s->device_token + first,
                              (size_t)n * sizeof *s->host_token));
    return rk->api->download(rk->stream, s->host_logprob + first, s->device_logprob + first,
                             (size_t)n * sizeof *s->host_logprob);
}

enum nib_status nib_server_sample(struct nib_server *s, int32_t n)
{
    bool any = false;
    for (int32_t i = 0; i < n; i++)
        s->host_row[i] = row_of(s->sampled[i], i - s->sampled[i]->logits_at);
    for (int32_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && !stands_alone(s->sampled[end]); end++)
            s->sampled[end]->drawn = true;
        if (end < n)
            s->sampled[end]->drawn = false;
        if (end == i)
            continue;
        NIB_TRY(draw(s, i, end - i));
        any = true;
    }
    return any ? download_drawn(s, 0, n) : NIB_OK;
}

enum nib_status nib_server_token(struct nib_server *s, struct nib_request *r, int32_t row, int32_t *id, float *logprob)
{
    /* What was prescribed since the step ran is not in what was drawn together. */
    if (!r->drawn || stands_alone(r)) {
        NIB_TRY(draw_alone(s, r, row));
        NIB_TRY(download_drawn(s, row, 1));
    }
    *id = s->host_token[row];
    *logprob = s->host_logprob[row];
    return NIB_OK;
}

enum nib_status nib_server_guess(struct nib_server *s, int32_t n, int32_t ahead)
{
    for (int32_t i = 0; i < n; i++)
        s->host_row[i] = row_of(s->sampled[i], ahead);
    NIB_TRY(draw(s, 0, n));
    return download_drawn(s, 0, n);
}

enum nib_status nib_server_top(struct nib_server *s, int32_t row, int32_t n, int32_t *id, float *logprob)
{
    const int32_t vocab = s->engine->rank.config->vocab;
    int32_t held = 0;
    NIB_TRY(download_row(s, row));
    const double total = log_sum(s->logits, vocab);
    for (int32_t t = 0; t < vocab; t++) {
        if (held == n && !(s->logits[t] > logprob[held - 1]))
            continue;
        int32_t at = held < n ? held++ : n - 1;
        for (; at > 0 && s->logits[t] > logprob[at - 1]; at--) {
            logprob[at] = logprob[at - 1];
            id[at] = id[at - 1];
        }
        logprob[at] = s->logits[t];
        id[at] = t;
    }
    for (int32_t i = 0; i < held; i++)
        logprob[i] = (float)((double)logprob[i] - total);
    return NIB_OK;
}
