/* Log-probabilities of a choice's tokens, as chat and as the older completions have them. */
#include "serve_choice.h"

#include <math.h>

/* A token's text for people: what is no character becomes U+FFFD. */
static json_t *lossy(const char *bytes, size_t n)
{
    struct nib_utf8_stream u;
    struct nib_text        text = {0};
    nib_utf8_stream_init(&u);
    json_t *s = NULL;
    if (nib_utf8_stream_push(&u, bytes, n, &text) == NIB_OK && nib_utf8_stream_end(&u, &text) == NIB_OK)
        s = json_stringn(text.data, text.n);
    nib_text_free(&text);
    return s ? s : json_string("");
}

static json_t *logprob_number(float v)
{
    return json_real(isfinite(v) ? (double)v : -9999.0);
}

static json_t *logprob_entry(const struct serve *s, int32_t id, float logprob)
{
    size_t      n = 0;
    const char *bytes = nib_tokenizer_bytes(s->tokenizer, id, &n, NULL);
    json_t     *list = json_array();
    for (size_t i = 0; bytes && i < n; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return json_pack("{s:o, s:o, s:o}", "token", lossy(bytes ? bytes : "", n), "logprob", logprob_number(logprob),
                     "bytes", list);
}

void choice_keep_logprob(struct choice *c, const struct nib_drawn_token *t)
{
    const struct serve *s = c->generation->exchange->serve;
    json_t             *entry = logprob_entry(s, t->id, t->logprob), *top = json_array();
    for (int32_t i = 0; i < c->generation->args.n_top && i < t->n_top; i++)
        json_array_append_new(top, logprob_entry(s, t->top_id[i], t->top_logprob[i]));
    json_object_set_new(entry, "top_logprobs", top);
    json_array_append_new(c->logprobs, entry);
}

/* The older form of completions: parallel lists, offsets into the choice's text. */
static json_t *legacy_logprobs(const json_t *entries)
{
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array();
    size_t  i, k, offset = 0;
    json_t *entry, *top;
    json_array_foreach((json_t *)entries, i, entry) {
        json_t *map = json_object();
        json_array_append(tokens, json_object_get(entry, "token"));
        json_array_append(values, json_object_get(entry, "logprob"));
        json_array_foreach(json_object_get(entry, "top_logprobs"), k, top)
            json_object_set(map, json_string_value(json_object_get(top, "token")), json_object_get(top, "logprob"));
        json_array_append_new(tops, map);
        json_array_append_new(offsets, json_integer((json_int_t)offset));
        offset += json_string_length(json_object_get(entry, "token"));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops,
                     "text_offset", offsets);
}

/* What a chunk or an answer carries of the entries from `from` on. */
json_t *choice_logprobs(struct choice *c, size_t from)
{
    if (!c->generation->args.want_logprobs)
        return json_null();
    json_t *part = json_array();
    for (size_t i = from; i < json_array_size(c->logprobs); i++)
        json_array_append(part, json_array_get(c->logprobs, i));
    if (c->generation->args.is_chat)
        return json_pack("{s:o}", "content", part);
    json_t *legacy = legacy_logprobs(part);
    json_decref(part);
    return legacy;
}
