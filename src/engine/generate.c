/* The usual loop around steps: prefill in chunks, then sample and feed one token at a time. */
#include "engine/engine.h"
#include "engine/random.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void nib_sampling_init(struct nib_sampling *s)
{
    *s = (struct nib_sampling){.temperature = 1.0f, .top_p = 1.0f, .repetition = 1.0f};
}

static enum nib_status check_float(const char *name, float v, float low, float high, bool open_low, struct nib_error *err)
{
    if (v <= high && (open_low ? v > low : v >= low)) /* false for NaN */
        return NIB_OK;
    return nib_error_set(err, NIB_E_ARGUMENT, "%s is %g, wanted %s%g to %g", name, (double)v, open_low ? "above " : "", (double)low,
                         (double)high);
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

static bool has_penalties(const struct nib_sampling *s)
{
    return s->repetition != 1.0f || s->presence != 0.0f || s->frequency != 0.0f;
}

/* Distinct ids seen so far. host_times holds a position in the list + 1. */
struct history {
    struct nib_engine *e;
    int32_t            n;
};

static void history_add(struct history *h, int32_t token, bool generated)
{
    int32_t *at = &h->e->sample.host_times[token];
    if (*at == 0) {
        h->e->sample.host_list[h->n] = token;
        h->e->sample.host_list_times[h->n] = 0;
        *at = ++h->n;
    }
    h->e->sample.host_list_times[*at - 1] += generated;
}

static enum nib_status sample_one(struct nib_engine *e, const struct nib_sampling *s, const struct history *h, int32_t position,
                                  int32_t *token, float *logprob)
{
    struct nib_rank *rk = &e->rank;
    const struct nib_sample_row row = {
        .temperature = s->temperature, .top_p = s->top_p, .min_p = s->min_p, .top_k = s->top_k, .repetition = s->repetition,
        .presence = s->presence, .frequency = s->frequency, .uniform = nib_uniform(s->seed, (uint64_t)position, 0),
        .history_count = h->n};
    const size_t n = (size_t)h->n * sizeof(int32_t);
    if (h->n > 0) {
        NIB_TRY(rk->api->upload(rk->stream, e->sample.history_token, e->sample.host_list, n));
        NIB_TRY(rk->api->upload(rk->stream, e->sample.history_times, e->sample.host_list_times, n));
    }
    NIB_TRY(rk->api->upload(rk->stream, e->sample.row, &row, sizeof row));
    NIB_TRY(rk->ops->sample(rk->stream, &(struct nib_sample_args){
        .logits = nib_mat_rows(rk->work.logits, 1), .n = 1, .row = e->sample.row, .history_token = e->sample.history_token,
        .history_times = e->sample.history_times, .token = e->sample.token, .logprob = e->sample.logprob}));
    NIB_TRY(rk->api->download(rk->stream, token, e->sample.token, sizeof *token));
    return rk->api->download(rk->stream, logprob, e->sample.logprob, sizeof *logprob);
}

/* Append tokens; the last one's logits are left in the work buffer if wanted. */
static enum nib_status feed(struct nib_engine *e, struct nib_seq *seq, const int32_t *token, int32_t n, bool logits,
                            struct nib_error *err)
{
    const int32_t start[2] = {0, n}, last = n - 1;
    struct nib_seq *const seqs[1] = {seq};
    NIB_TRY(nib_step_run(e, &(struct nib_batch){.n_rows = n, .n_seqs = 1, .n_logits = logits, .token = token, .seq_start = start,
                                                .seq = seqs, .logits_row = &last}, e->options.mtp, err));
    return logits ? nib_step_logits(e, 0, 1, false) : NIB_OK;
}

static enum nib_status prefill(struct nib_engine *e, const struct nib_generate_args *a, struct nib_error *err)
{
    const int32_t chunk = e->options.n_rows_max;
    for (int32_t i = 0; i < a->n_prompt; i += chunk) {
        const int32_t n = a->n_prompt - i < chunk ? a->n_prompt - i : chunk;
        NIB_TRY(feed(e, a->seq, a->prompt + i, n, i + n == a->n_prompt, err));
        if (a->on_prefill && !a->on_prefill(a->user, i + n, a->n_prompt))
            return nib_error_set(err, NIB_E_CANCELLED, "prefill was cancelled after %" PRId32 " of %" PRId32 " tokens", i + n, a->n_prompt);
    }
    return NIB_OK;
}

static bool is_stop(const struct nib_generate_args *a, int32_t token)
{
    for (int32_t i = 0; i < a->n_stop; i++)
        if (a->stop_id[i] == token)
            return true;
    return false;
}

static enum nib_status check_args(struct nib_engine *e, const struct nib_generate_args *a, struct nib_error *err)
{
    NIB_TRY(nib_sampling_check(&a->sampling, err));
    if (!a->seq || a->seq->engine != e)
        return nib_error_set(err, NIB_E_ARGUMENT, "the sequence is not of this engine");
    if (a->n_prompt < 1 || a->n_max < 0 || a->n_stop < 0)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_prompt is %" PRId32 ", n_max %" PRId32 ", n_stop %" PRId32
                             "; wanted at least 1, 0 and 0", a->n_prompt, a->n_max, a->n_stop);
    const int32_t free_tokens = e->options.n_ctx - a->seq->state.length;
    if (a->n_prompt > free_tokens)
        return nib_error_set(err, NIB_E_LIMIT, "the prompt is %" PRId32 " tokens and the sequence holds %" PRId32
                             "; the context is %" PRId32, a->n_prompt, a->seq->state.length, e->options.n_ctx);
    for (int32_t i = 0; i < a->n_prompt; i++)
        if (a->prompt[i] < 0 || a->prompt[i] >= e->model->config.vocab)
            return nib_error_set(err, NIB_E_ARGUMENT, "prompt token %" PRId32 " is %" PRId32 ", wanted 0 to %" PRId32, i, a->prompt[i],
                                 e->model->config.vocab - 1);
    return NIB_OK;
}

static enum nib_status decode(struct nib_engine *e, const struct nib_generate_args *a, struct history *h, struct nib_generate_result *r,
                              struct nib_error *err)
{
    for (;;) {
        int32_t token = -1;
        float logprob = 0;
        const enum nib_status status = sample_one(e, &a->sampling, h, a->seq->state.length, &token, &logprob);
        if (status != NIB_OK)
            return nib_error_set(err, status, "backend '%s' failed to sample", e->rank.api->name);
        if (token < 0)
            return nib_error_set(err, NIB_E_NUMERIC, "the logits after token %" PRId32 " hold NaN or nothing finite",
                                 a->seq->state.length - 1);
        r->n_generated++;
        const bool go_on = !a->on_token || a->on_token(a->user, token, logprob);
        r->reason = is_stop(a, token) ? NIB_STOP_ID : NIB_STOP_CALLBACK;
        if (r->reason == NIB_STOP_ID || !go_on)
            return NIB_OK;
        r->reason = NIB_STOP_LENGTH;
        if ((a->n_max > 0 && r->n_generated == a->n_max) || a->seq->state.length == e->options.n_ctx)
            return NIB_OK;
        if (has_penalties(&a->sampling))
            history_add(h, token, true);
        NIB_TRY(feed(e, a->seq, &token, 1, true, err));
    }
}

enum nib_status nib_generate(struct nib_engine *e, const struct nib_generate_args *a, struct nib_generate_result *r,
                             struct nib_error *err)
{
    struct history h = {.e = e};
    *r = (struct nib_generate_result){.reason = NIB_STOP_LENGTH};
    NIB_TRY(check_args(e, a, err));
    if (has_penalties(&a->sampling)) {
        memset(e->sample.host_times, 0, (size_t)e->model->config.vocab * sizeof(int32_t));
        for (int32_t i = 0; i < a->n_prompt; i++)
            history_add(&h, a->prompt[i], false);
    }
    const double start = seconds();
    NIB_TRY(prefill(e, a, err));
    r->n_prompt = a->n_prompt;
    const double middle = seconds();
    const enum nib_status status = decode(e, a, &h, r, err);
    r->prefill_s = middle - start;
    r->decode_s = seconds() - middle;
    return status;
}
