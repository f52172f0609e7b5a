/* Reading what a generation is asked for: the fields that chat and completions share. */
#include "serve_generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

void generation_args_free(struct generation_args *a)
{
    for (size_t i = 0; i < a->n_stop; i++)
        free(a->stop[i]);
    for (size_t i = 0; i < a->n_forced; i++)
        nib_ids_free(&a->forced[i]);
    for (size_t i = 0; i < a->n_prompts; i++)
        nib_ids_free(&a->prompt[i]);
    free(a->forced);
    free(a->stop_id);
    free(a->bias);
    free(a->model);
    memset(a, 0, sizeof *a);
}

bool generation_no_memory(struct exchange *x)
{
    (void)api_fail(&x->error, NULL, "internal_error", "memory is used up");
    x->error.status = 500;
    x->error.type = "server_error";
    return false;
}

static bool add_stop(struct exchange *x, struct generation_args *a, const json_t *v)
{
    if (!json_is_string(v) || json_string_length(v) == 0 || json_string_length(v) > STOP_STRING_BYTES_MAX ||
        strlen(json_string_value(v)) != json_string_length(v))
        return field_wrong(&x->error, v, "stop", "stop", "strings of 1 to %d bytes without NUL", STOP_STRING_BYTES_MAX);
    if (a->n_stop == N_STOP_STRINGS_MAX)
        return api_fail(&x->error, "stop", "invalid_value", "stop has more than %d strings", N_STOP_STRINGS_MAX);
    a->stop[a->n_stop] = strdup(json_string_value(v));
    return a->stop[a->n_stop++] != NULL || generation_no_memory(x);
}

bool generation_read_id(struct exchange *x, const char *param, const json_t *list, size_t i, int32_t *out)
{
    const json_t *v = json_array_get(list, i);
    const double  id = json_is_real(v) ? json_real_value(v) : -1;
    if (id >= 0 && id < x->serve->info->vocab && floor(id) == id) {
        *out = (int32_t)id;
        return true;
    }
    char name[96];
    (void)snprintf(name, sizeof name, "%s[%zu]", param, i);
    return field_wrong(&x->error, v, param, name, "a token id from 0 to %d", (int)x->serve->info->vocab - 1);
}

static bool read_stops(struct exchange *x, const json_t *body, struct generation_args *a)
{
    const json_t *stop = field_get(body, "stop"), *ids = field_get(body, "stop_token_ids");
    size_t        n_ids = json_is_array(ids) ? json_array_size(ids) : 0;

    if (stop && !json_is_array(stop) && !add_stop(x, a, stop))
        return false;
    for (size_t i = 0; json_is_array(stop) && i < json_array_size(stop); i++)
        if (!add_stop(x, a, json_array_get(stop, i)))
            return false;
    if ((ids && !json_is_array(ids)) || n_ids > 1024)
        return field_wrong(&x->error, ids, "stop_token_ids", "stop_token_ids", "an array of at most 1024 ids");
    a->stop_id = calloc(n_ids + 1, sizeof *a->stop_id);
    if (!a->stop_id)
        return generation_no_memory(x);
    if (!a->ignore_eos)
        a->stop_id[a->n_stop_id++] = x->serve->info->eos_id;
    for (size_t i = 0; i < n_ids; i++) {
        if (!generation_read_id(x, "stop_token_ids", ids, i, &a->stop_id[a->n_stop_id]))
            return false;
        a->n_stop_id++;
    }
    return true;
}

static bool read_bias(struct exchange *x, const json_t *body, struct generation_args *a)
{
    json_t     *bias = (json_t *)field_get(body, "logit_bias"), *v;
    const char *key;

    if (bias && (!json_is_object(bias) || json_object_size(bias) > 1024))
        return field_wrong(&x->error, bias, "logit_bias", "logit_bias", "an object of at most 1024 ids");
    a->bias = calloc(json_object_size(bias) + 1, sizeof *a->bias);
    if (!a->bias)
        return generation_no_memory(x);
    json_object_foreach(bias, key, v) {
        char  *end;
        long   id = strtol(key, &end, 10);
        double b = json_is_real(v) ? json_real_value(v) : NAN;
        if (end == key || *end || id < 0 || id >= x->serve->info->vocab)
            return api_fail(&x->error, "logit_bias", "invalid_value", "logit_bias has the key '%.20s'; wanted ids from 0 to %d", key,
                            (int)x->serve->info->vocab - 1);
        if (isnan(b)) {
            char name[64];
            (void)snprintf(name, sizeof name, "logit_bias['%.20s']", key);
            return field_wrong(&x->error, v, "logit_bias", name, "a number");
        }
        a->bias[a->n_bias++] = (struct nib_logit_bias){(int32_t)id, (float)(b > 100 ? 100 : b < -100 ? -100 : b)};
    }
    return true;
}

/* 64 bits, sign and all; -1 is what some clients send for none. Reals would lose the low ones. */
static bool read_seed(struct exchange *x, const json_t *body, struct generation_args *a)
{
    bool  failed = false, given = false;
    char *text = body_member(x->body.data, "seed", &failed);

    if (text) {
        double v = json_is_real(field_get(body, "seed")) ? json_real_value(field_get(body, "seed")) : NAN;
        if (!(v >= -0x1p63 && v < 0x1p64) || floor(v) != v) {
            free(text);
            return field_wrong(&x->error, field_get(body, "seed"), "seed", "seed", "a whole number of 64 bits");
        }
        given = v != -1;
        if (strpbrk(text, ".eE")) /* 1e3 is a whole number too */
            a->sampling.seed = v < 0 ? (uint64_t)(int64_t)v : (uint64_t)v;
        else
            a->sampling.seed = v < 0 ? (uint64_t)strtoll(text, NULL, 10) : strtoull(text, NULL, 10);
        free(text);
    }
    if (!given)
        serve_random(&a->sampling.seed, sizeof a->sampling.seed);
    return !failed || generation_no_memory(x);
}

static bool read_sampling(struct exchange *x, const json_t *body, struct generation_args *a)
{
    struct nib_sampling *p = &a->sampling;
    struct api_error    *e = &x->error;
    double               least = 1e-6;

    nib_sampling_init(p);
    p->temperature = x->serve->info->greedy ? 0 : x->serve->info->temperature;
    p->top_p = x->serve->info->top_p;
    int32_t top_k = 0;
    if (!field_float(body, "temperature", 0, 2, &p->temperature, e) || !field_float(body, "top_p", 1e-9, 1, &p->top_p, e) ||
        !field_int(body, "top_k", -1, 1e18, &top_k, e) || !field_float(body, "min_p", 0, 1, &p->min_p, e) ||
        !field_float(body, "presence_penalty", -2, 2, &p->presence, e) ||
        !field_float(body, "frequency_penalty", -2, 2, &p->frequency, e) ||
        !field_float(body, "repeat_penalty", least, 100, &p->repetition, e) ||
        !field_float(body, "repetition_penalty", least, 100, &p->repetition, e))
        return false;
    p->top_k = top_k < 0 ? 0 : top_k;
    return read_seed(x, body, a);
}

static bool read_stream(struct exchange *x, const json_t *body, struct generation_args *a)
{
    const json_t *options = field_get(body, "stream_options");
    if (!field_bool(body, "stream", &a->streams, &x->error))
        return false;
    if (options && !a->streams)
        return api_fail(&x->error, "stream_options", "invalid_value", "stream_options is only for stream: true");
    if (options && !json_is_object(options))
        return field_wrong(&x->error, options, "stream_options", "stream_options", "an object");
    return !options || field_bool(options, "include_usage", &a->include_usage, &x->error);
}

/* Clients that must not share kept beginnings send a salt. */
static bool read_salt(struct exchange *x, const json_t *body, struct generation_args *a)
{
    const char *salt = NULL;
    if (!field_string(body, "cache_salt", &salt, &x->error))
        return false;
    /* A salt may hold NUL bytes, and what stands behind them tells salts apart too. */
    const size_t n = salt ? json_string_length(field_get(body, "cache_salt")) : 0;
    uint64_t     h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)salt[i]) * 0x100000001b3u;
    a->salt = salt ? h : 0;
    return true;
}

bool generation_read(struct exchange *x, const json_t *body, struct generation_args *a)
{
    struct api_error *e = &x->error;
    const char       *model = NULL;

    a->n = 1;
    if (!serve_check_model(x, body, &model) || !read_stream(x, body, a) ||
        !field_int(body, "n", 1, N_CHOICES_MAX, &a->n, e) || !field_bool(body, "ignore_eos", &a->ignore_eos, e) ||
        !field_bool(body, "include_stop_str_in_output", &a->include_stop, e) ||
        !field_int(body, "min_tokens", 0, 1e18, &a->n_min, e) || !read_sampling(x, body, a) || !read_stops(x, body, a) ||
        !read_bias(x, body, a) || !read_salt(x, body, a))
        return false;
    a->model = strdup(model);
    a->has_max = field_get(body, "max_tokens") != NULL;
    return (a->model || generation_no_memory(x)) && field_int(body, "max_tokens", 1, 1e18, &a->n_max, e);
}
