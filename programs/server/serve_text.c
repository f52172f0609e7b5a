/* /v1/completions, /tokenize and /detokenize: text and ids as they are. */
#include "serve_generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Text to ids, control tokens counting; a beginning of sentence in front unless it is there. */
static bool encode_text(struct exchange *x, const char *param, const char *text, size_t n, bool add_bos, bool control,
                        struct nib_ids *out)
{
    const struct serve    *s = x->serve;
    const struct nib_range all = {0, n};
    struct nib_error       err = {0};

    if (nib_tokenizer_encode(s->tokenizer, text, n, control ? NULL : &all, control ? 0 : 1, out, &err) != NIB_OK)
        return api_fail(&x->error, param, "invalid_value", "%.500s", err.text);
    if (!add_bos || (out->n > 0 && out->id[0] == s->info->bos_id))
        return true;
    int32_t *id = realloc(out->id, (out->n + 1) * sizeof *id);
    if (!id)
        return generation_no_memory(x);
    out->id = id;
    memmove(id + 1, id, out->n++ * sizeof *id);
    id[0] = s->info->bos_id;
    return true;
}

static bool read_ids(struct exchange *x, const char *param, const json_t *list, struct nib_ids *out)
{
    const size_t n = json_array_size(list);
    out->id = malloc((n + 1) * sizeof *out->id);
    if (!out->id)
        return generation_no_memory(x);
    while (out->n < n && generation_read_id(x, param, list, out->n, &out->id[out->n]))
        out->n++;
    return out->n == n;
}

/* ---- Completions ---- */

static bool add_prompt(struct exchange *x, const json_t *v, bool add_bos, struct generation_args *a)
{
    struct nib_ids *ids = &a->prompt[a->n_prompts];
    if (a->n_prompts == N_PROMPTS_MAX)
        return api_fail(&x->error, "prompt", "invalid_value", "prompt has more than %d texts; wanted at most that many", N_PROMPTS_MAX);
    a->n_prompts++;
    if (json_is_string(v))
        return encode_text(x, "prompt", json_string_value(v), json_string_length(v), add_bos, true, ids);
    if (!json_is_array(v) || json_array_size(v) == 0)
        return field_wrong(&x->error, v, "prompt", a->n_prompts > 1 ? "a text of prompt" : "prompt",
                           "a string, an array of strings, or arrays of ids");
    return read_ids(x, "prompt", v, ids);
}

/* Text between two texts, in the form of earlier releases, whose tokens this one still has. */
static bool add_gap(struct exchange *x, const json_t *prompt, const json_t *suffix, bool add_bos, struct generation_args *a)
{
    static const char *const marks[] = {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"};
    struct buffer text = {0};

    if (!json_is_string(prompt))
        return field_wrong(&x->error, prompt, "suffix", "prompt", "a string, since there is a suffix");
    if (!json_is_string(suffix))
        return field_wrong(&x->error, suffix, "suffix", "suffix", "a string");
    for (size_t i = 0; i < 3; i++)
        if (nib_tokenizer_find(x->serve->tokenizer, marks[i]) < 0)
            return api_fail(&x->error, "suffix", "unsupported_parameter", "suffix: the model's vocabulary has no %s",
                            marks[i]);
    buffer_text(&text, marks[0]);
    buffer_add(&text, json_string_value(prompt), json_string_length(prompt));
    buffer_text(&text, marks[1]);
    buffer_add(&text, json_string_value(suffix), json_string_length(suffix));
    buffer_text(&text, marks[2]);
    a->n_prompts = 1;
    const bool ok = !text.failed && encode_text(x, "prompt", text.data, text.n, add_bos, true, &a->prompt[0]);
    buffer_free(&text);
    return ok || (!x->error.status && generation_no_memory(x));
}

static bool read_prompts(struct exchange *x, const json_t *body, struct generation_args *a)
{
    const json_t *prompt = field_get(body, "prompt");
    bool          add_bos = true;

    if (!field_bool(body, "add_special_tokens", &add_bos, &x->error))
        return false;
    if (!prompt)
        return api_fail(&x->error, "prompt", "missing_required_parameter", "prompt is missing; wanted a string or ids");
    if (field_get(body, "suffix"))
        return add_gap(x, prompt, field_get(body, "suffix"), add_bos, a);
    const bool many = json_is_array(prompt) && json_array_size(prompt) > 0 && !json_is_real(json_array_get(prompt, 0));
    for (size_t i = 0; many && i < json_array_size(prompt); i++)
        if (!add_prompt(x, json_array_get(prompt, i), add_bos, a))
            return false;
    return many || add_prompt(x, prompt, add_bos, a);
}

static bool read_completion(struct exchange *x, const json_t *body, struct generation_args *a)
{
    int32_t n_top = -1;

    if (!generation_read(x, body, a) || !field_int(body, "logprobs", 0, 20, &n_top, &x->error))
        return false;
    int32_t best_of = a->n;
    if (!field_bool(body, "echo", &a->echo, &x->error) || !field_int(body, "best_of", 1, N_CHOICES_MAX, &best_of, &x->error))
        return false;
    if (best_of != a->n)
        return api_fail(&x->error, "best_of", "unsupported_parameter", "best_of is supported only where it equals n");
    a->want_logprobs = n_top >= 0;
    if (a->echo && a->want_logprobs)
        return api_fail(&x->error, "echo", "unsupported_parameter", "echo together with logprobs is not supported");
    a->n_top = n_top > 0 ? n_top : 0;
    if (!a->has_max)
        a->n_max = 16;
    return read_prompts(x, body, a);
}

void serve_completions(struct exchange *x)
{
    struct generation_args a = {0};
    json_t                *body;

    if (!body_parse(x->body.data, x->body.n, &body, &x->error))
        return;
    if (read_completion(x, body, &a))
        (void)generation_start(x, &a);
    else
        generation_args_free(&a);
    json_decref(body);
}

/* ---- Tokens ---- */

static json_t *ids_to_json(const struct nib_ids *ids)
{
    json_t *list = json_array();
    for (size_t i = 0; i < ids->n; i++)
        json_array_append_new(list, json_integer(ids->id[i]));
    return list;
}

/* A token's text, or its bytes where they are no characters. */
static json_t *piece(const struct serve *s, int32_t id, bool bytes_if_broken)
{
    size_t      n = 0;
    const char *bytes = nib_tokenizer_bytes(s->tokenizer, id, &n, NULL);
    json_t     *text = json_stringn(bytes ? bytes : "", n);
    if (text)
        return text;
    if (!bytes_if_broken)
        return json_string("\xEF\xBF\xBD");
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return list;
}

static json_t *pieces(const struct serve *s, const struct nib_ids *ids, bool with_ids)
{
    json_t *list = json_array();
    for (size_t i = 0; i < ids->n; i++) {
        json_t *p = piece(s, ids->id[i], with_ids);
        json_array_append_new(list, with_ids ? json_pack("{s:i, s:o}", "id", (int)ids->id[i], "piece", p) : p);
    }
    return list;
}

/* llama-server's form: "content". */
static bool tokenize_content(struct exchange *x, const json_t *body, struct nib_ids *ids)
{
    const char *text = NULL;
    bool        special = false, control = true, with_pieces = false;
    if (!field_string(body, "content", &text, &x->error) || !field_bool(body, "add_special", &special, &x->error) ||
        !field_bool(body, "parse_special", &control, &x->error) || !field_bool(body, "with_pieces", &with_pieces, &x->error) ||
        !encode_text(x, "content", text, json_string_length(field_get(body, "content")), special, control, ids))
        return false;
    exchange_answer(x, json_pack("{s:o}", "tokens", with_pieces ? pieces(x->serve, ids, true) : ids_to_json(ids)));
    return true;
}

/* vLLM's: "prompt" or "messages". */
static bool tokenize_prompt(struct exchange *x, const json_t *body, struct nib_ids *ids)
{
    const char *text = NULL;
    bool        special = true, strings = false;
    if (!field_bool(body, "add_special_tokens", &special, &x->error) ||
        !field_bool(body, "return_token_strs", &strings, &x->error) || !field_string(body, "prompt", &text, &x->error))
        return false;
    if (text) {
        if (!encode_text(x, "prompt", text, json_string_length(field_get(body, "prompt")), special, true, ids))
            return false;
    } else {
        struct chat_prompt prompt;
        const bool         ok = serve_encode_chat(x, body, &prompt);
        *ids = prompt.ids;
        if (!ok)
            return false;
    }
    exchange_answer(x, json_pack("{s:I, s:i, s:o, s:o}", "count", (json_int_t)ids->n, "max_model_len", (int)x->serve->n_ctx,
                                 "tokens", ids_to_json(ids), "token_strs",
                                 strings ? pieces(x->serve, ids, false) : json_null()));
    return true;
}

void serve_tokenize(struct exchange *x)
{
    struct nib_ids ids = {0};
    json_t        *body;

    if (!body_parse(x->body.data, x->body.n, &body, &x->error))
        return;
    if (field_get(body, "content"))
        (void)tokenize_content(x, body, &ids);
    else if (field_get(body, "prompt") || field_get(body, "messages"))
        (void)tokenize_prompt(x, body, &ids);
    else
        (void)api_fail(&x->error, "prompt", "missing_required_parameter",
                       "one of prompt, messages and content is needed");
    nib_ids_free(&ids);
    json_decref(body);
}

void serve_detokenize(struct exchange *x)
{
    struct nib_ids   ids = {0};
    struct nib_text  text = {0};
    struct nib_error err = {0};
    json_t          *body;

    if (!body_parse(x->body.data, x->body.n, &body, &x->error))
        return;
    const json_t *tokens = field_get(body, "tokens");
    if (!tokens)
        (void)api_fail(&x->error, "tokens", "missing_required_parameter", "tokens is missing; wanted an array of ids");
    else if (!json_is_array(tokens))
        (void)field_wrong(&x->error, tokens, "tokens", "tokens", "an array of ids");
    else if (read_ids(x, "tokens", tokens, &ids)) {
        if (nib_tokenizer_decode(x->serve->tokenizer, ids.id, ids.n, false, &text, &err) != NIB_OK)
            (void)api_fail(&x->error, "tokens", "invalid_value", "%.500s", err.text);
        else /* both servers' names for it */
            exchange_answer(x, json_pack("{s:s%, s:s%}", "prompt", text.data, text.n, "content", text.data, text.n));
    }
    nib_text_free(&text);
    nib_ids_free(&ids);
    json_decref(body);
}
