/* Sampling settings, the history of a text, and the sample op's arguments. */
#include "engine/draw.h"
#include "engine/random.h"

#include <inttypes.h>
#include <string.h>

void nib_sampling_init(struct nib_sampling *s)
{
    *s = (struct nib_sampling){.temperature = 1.0f, .top_p = 1.0f, .repetition = 1.0f};
}

static enum nib_status check_float(const char *name, float v, float low, float high, bool open_low, struct nib_error *err)
{
    if (v <= high && (open_low ? v > low : v >= low)) /* false for NaN */
        return NIB_OK;
    return nib_error_set(err, NIB_E_ARGUMENT, "%s is %g, wanted %s%g to %g", name, (double)v, open_low ? "above " : "",
                         (double)low, (double)high);
}

enum nib_status nib_sampling_check(const struct nib_sampling *s, struct nib_error *err)
{
    NIB_TRY(check_float("temperature", s->temperature, 0.0f, 100.0f, false, err));
    NIB_TRY(check_float("top_p", s->top_p, 0.0f, 1.0f, true, err));
    NIB_TRY(check_float("min_p", s->min_p, 0.0f, 1.0f, false, err));
    NIB_TRY(check_float("repetition penalty", s->repetition, 0.0f, 100.0f, true, err));
    NIB_TRY(check_float("presence penalty", s->presence, -2.0f, 2.0f, false, err));
    NIB_TRY(check_float("frequency penalty", s->frequency, -2.0f, 2.0f, false, err));
    if (s->top_k < 0)
        return nib_error_set(err, NIB_E_ARGUMENT, "top_k is %" PRId32 ", wanted 0 (off) or more", s->top_k);
    return NIB_OK;
}

bool nib_sampling_has_penalties(const struct nib_sampling *s)
{
    return s->repetition != 1.0f || s->presence != 0.0f || s->frequency != 0.0f;
}

bool nib_sampling_is_greedy(const struct nib_sampling *s)
{
    return s->temperature < 1e-5f;
}

void nib_past_start(struct nib_past *h, struct nib_engine *e, const struct nib_sampling *s)
{
    *h = (struct nib_past){.e = e, .counts = nib_sampling_has_penalties(s)};
    if (h->counts)
        memset(e->sample.host_times, 0, (size_t)e->model->config.vocab * sizeof(int32_t));
}

/* host_times holds a position in the list + 1. */
void nib_past_add(struct nib_past *h, int32_t token, bool generated)
{
    if (!h->counts)
        return;
    int32_t *at = &h->e->sample.host_times[token];
    if (*at == 0) {
        h->e->sample.host_list[h->n] = token;
        h->e->sample.host_list_times[h->n] = 0;
        *at = ++h->n;
    }
    h->e->sample.host_list_times[*at - 1] += generated;
}

struct nib_seen nib_past_seen(const struct nib_past *h)
{
    return (struct nib_seen){h->e->sample.host_list, h->e->sample.host_list_times, h->n};
}

static enum nib_status draw(struct nib_engine *e, const struct nib_sampling *s, const struct nib_past *h, int32_t first,
                            int32_t n, int32_t position, int32_t *token, float *logprob)
{
    struct nib_rank *rk = &e->rank;
    struct nib_sample_row row[NIB_DRAFTS_MAX + 1];
    for (int32_t i = 0; i < n; i++)
        row[i] = (struct nib_sample_row){
            .temperature = s->temperature, .top_p = s->top_p, .min_p = s->min_p, .top_k = s->top_k, .repetition = s->repetition,
            .presence = s->presence, .frequency = s->frequency,
            .uniform = nib_uniform(s->seed, (uint64_t)position + (uint64_t)i, NIB_DRAW_TOKEN), .history_count = h->n};
    const size_t bytes = (size_t)h->n * sizeof(int32_t);
    if (h->n > 0) {
        NIB_TRY(rk->api->upload(rk->stream, e->sample.history_token, e->sample.host_list, bytes));
        NIB_TRY(rk->api->upload(rk->stream, e->sample.history_times, e->sample.host_list_times, bytes));
    }
    NIB_TRY(rk->api->upload(rk->stream, e->sample.row, row, (size_t)n * sizeof *row));
    struct nib_mat logits = nib_mat_rows(rk->work.logits, n);
    logits.data = (float *)logits.data + first * logits.stride;
    NIB_TRY(rk->ops->sample(rk->stream, &(struct nib_sample_args){
        .logits = logits, .n = n, .row = e->sample.row, .history_token = e->sample.history_token,
        .history_times = e->sample.history_times, .token = e->sample.token, .logprob = e->sample.logprob}));
    NIB_TRY(rk->api->download(rk->stream, token, e->sample.token, (size_t)n * sizeof *token));
    return rk->api->download(rk->stream, logprob, e->sample.logprob, (size_t)n * sizeof *logprob);
}

enum nib_status nib_draw_rows(struct nib_engine *e, const struct nib_sampling *s, const struct nib_past *h, int32_t first, int32_t n,
                              int32_t position, int32_t *token, float *logprob, struct nib_error *err)
{
    const enum nib_status status = draw(e, s, h, first, n, position, token, logprob);
    return status == NIB_OK ? status : nib_engine_failed(e, status, "sample", err);
}
