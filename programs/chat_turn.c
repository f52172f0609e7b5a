/* One question and its answer. */
#include "chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "output.h"
#include "progress.h"
#include "run_stream.h"

/* ---- What the conversation waits for ---- */

static bool has_role(const json_t *message, const char *role)
{
    const char *found = json_string_value(json_object_get(message, "role"));

    return found && strcmp(found, role) == 0;
}

bool chat_call_due(const json_t *messages, struct chat_call *out)
{
    size_t n = json_array_size(messages), n_results = 0;

    while (n > 0 && has_role(json_array_get(messages, n - 1), "tool")) {
        n--;
        n_results++;
    }
    if (n == 0)
        return false;
    const json_t *calls = json_object_get(json_array_get(messages, n - 1), "tool_calls");
    const json_t *call = json_array_get(calls, n_results);
    if (!call)
        return false;
    out->id = json_string_value(json_object_get(call, "id"));
    out->name = json_string_value(json_object_get(json_object_get(call, "function"), "name"));
    return out->id && out->name;
}

/* ---- The answer ---- */

struct turn {
    struct chat               *c;
    struct stream              stream;
    struct progress            progress;
    struct nib_generate_result result;
    double                     prefill_s;
    bool                       closed; /* the output takes no more, or memory is used up */
};

static bool on_prefill(void *user, int32_t done, int32_t total)
{
    struct turn *t = user;

    progress_update(&t->progress, (uint64_t)done, (uint64_t)total);
    return !chat_interrupted;
}

static bool on_token(void *user, int32_t token, float logprob)
{
    struct turn *t = user;

    (void)logprob;
    progress_finish(&t->progress);
    chat_seq_note(&t->c->seq, token);
    t->closed = !stream_token(&t->stream, token);
    return !t->closed && !chat_interrupted && !stream_done(&t->stream);
}

static enum nib_status generate(struct turn *t, const int32_t *ids, int32_t n, struct nib_error *err)
{
    struct chat    *c = t->c;
    const double    start_s = progress_clock_s();
    enum nib_status status = chat_seq_prepare(&c->seq, ids, n, on_prefill, t, err);

    if (status != NIB_OK)
        return status;
    const struct nib_generate_args args = {
        .seq = c->seq.seq,
        .prompt = ids + n - 1,
        .n_prompt = 1,
        .before = ids,
        .n_before = n - 1,
        .n_max = c->o->n_max,
        .stop_id = &c->s->info->eos_id,
        .n_stop = 1,
        .sampling = *c->o->sampling,
        .n_drafts = c->o->n_drafts,
        .on_token = on_token,
        .user = t,
    };
    t->prefill_s = progress_clock_s() - start_s;
    chat_seq_note(&c->seq, ids[n - 1]);
    status = nib_generate(c->s->engine, &args, &t->result, err);
    chat_seq_settle(&c->seq);
    t->prefill_s += t->result.prefill_s;
    return status;
}

/* ---- The answer as a message ---- */

static json_t *call_of(const struct nib_reply_call *call, int32_t index)
{
    char id[32];

    (void)snprintf(id, sizeof id, "call_%d", index);
    return json_pack("{s:s, s:s, s:{s:s%, s:s%}}", "id", id, "type", "function", "function", "name", call->name.data,
                     call->name.n, "arguments", call->arguments.data, call->arguments.n);
}

/* NULL if memory is used up. */
static json_t *message_of(const struct nib_reply *r)
{
    json_t *m = json_pack("{s:s, s:s%}", "role", "assistant", "content", r->content.data ? r->content.data : "",
                          r->content.n);

    if (m && r->reasoning.n > 0 &&
        json_object_set_new(m, "reasoning_content", json_stringn(r->reasoning.data, r->reasoning.n)) != 0)
        goto fail;
    if (m && r->n_calls > 0) {
        json_t *calls = json_array();
        if (json_object_set_new(m, "tool_calls", calls) != 0)
            goto fail;
        for (int32_t i = 0; i < r->n_calls; i++)
            if (json_array_append_new(calls, call_of(&r->call[i], i)) != 0)
                goto fail;
    }
    return m;
fail:
    json_decref(m);
    return NULL;
}

/* ---- What is said about it ---- */

static void print_statistics(const struct turn *t)
{
    const struct chat_seq            *q = &t->c->seq;
    const struct nib_generate_result *r = &t->result;
    const bool                        dim = output_has_colour(2);

    (void)fprintf(stderr, "%s[prompt %d tokens, %d of them kept", dim ? "\033[2m" : "", q->n_kept + q->n_new,
                  q->n_kept);
    if (t->prefill_s > 0)
        (void)fprintf(stderr, ", %.1f tok/s", q->n_new / t->prefill_s);
    (void)fprintf(stderr, "; answer %d tokens", r->n_generated);
    /* The first token is drawn from the prompt's own logits. */
    if (r->n_generated > 1 && r->decode_s > 0)
        (void)fprintf(stderr, ", %.1f tok/s", (r->n_generated - 1) / r->decode_s);
    if (r->n_drafted > 0)
        (void)fprintf(stderr, ", %d of %d drafts accepted", r->n_accepted, r->n_drafted);
    (void)fprintf(stderr, "; context %d of %d]%s\n", q->n_held, q->n_ctx, dim ? "\033[0m" : "");
}

/* How to get more context; depends on what the model could hold. */
static void tell_way_out(const struct chat *c)
{
    if (c->seq.n_ctx < c->s->info->n_ctx_max)
        cli_note("/reset begins a new conversation; --ctx N, up to %d for this model, makes room for longer ones",
                 c->s->info->n_ctx_max);
    else
        cli_note("/reset begins a new conversation; this is all that the model can hold");
}

static void tell_ending(const struct turn *t)
{
    const struct chat *c = t->c;

    if (chat_interrupted)
        cli_note("stopped; what was said so far stays in the conversation");
    if (t->result.reason != NIB_STOP_LENGTH)
        return;
    if (c->o->n_max > 0 && t->result.n_generated >= c->o->n_max) {
        cli_note("cut off after %d tokens, as -n asks", c->o->n_max);
        return;
    }
    cli_note("the context of %d tokens is full, so the answer is cut off", c->seq.n_ctx);
    tell_way_out(c);
}

/* ---- The turn ---- */

/* Keep the answer; false: there is none that could be kept. */
static bool keep_answer(struct turn *t)
{
    const struct nib_reply *r = stream_reply(&t->stream);

    if (!r || (r->content.n == 0 && r->n_calls == 0 && (chat_interrupted || r->reasoning.n == 0))) {
        if (chat_interrupted)
            cli_note("stopped before an answer; the question is taken back");
        else
            cli_note("the model answered nothing; the question is taken back");
        return false;
    }
    if (json_array_append_new(t->c->messages, message_of(r)) == 0)
        return true;
    (void)cli_fail_memory();
    return false;
}

/* False: nothing became of it. */
static bool answer(struct chat *c, const struct nib_ids *ids)
{
    const struct stream_options o = {.thinking = c->rules.think > 0, .tools = c->tools != NULL, .print = true};
    struct nib_error            err = {0};
    struct turn                 t = {.c = c};
    bool                        kept = false;

    if (!stream_open(&t.stream, c->s->tokenizer, c->s->info->eos_id, &o)) {
        stream_close(&t.stream);
        (void)cli_fail_memory();
        return false;
    }
    progress_start(&t.progress, "reading", "tok");
    enum nib_status status = generate(&t, ids->id, (int32_t)ids->n, &err);
    progress_finish(&t.progress);

    const bool whole = status == NIB_OK && t.result.reason != NIB_STOP_LENGTH && !chat_interrupted;
    t.closed |= !stream_end(&t.stream, whole ? NIB_CHAT_END_STOP : NIB_CHAT_END_LENGTH);
    if (t.closed || status == NIB_E_DEVICE)
        c->lost = true;
    if (status != NIB_OK && status != NIB_E_CANCELLED)
        (void)session_fail(status, &err);
    else if (t.closed)
        (void)cli_fail("the answer could not be written");
    else
        kept = keep_answer(&t);
    if (kept) {
        tell_ending(&t);
        print_statistics(&t);
    }
    stream_close(&t.stream);
    return kept;
}

static bool encode_and_answer(struct chat *c)
{
    struct nib_prompt text = {0};
    struct nib_ids    ids = {0};
    bool              kept = false;
    char             *messages = json_dumps(c->messages, JSON_COMPACT);

    int code = messages ? prompt_render(c->s, &c->rules, messages, c->tools, &text, &ids) : cli_fail_memory();
    if (code == CLI_OK && ids.n >= (size_t)c->seq.n_ctx) {
        (void)cli_fail("with this message the conversation has %zu tokens, and the context of %d has no room for an "
                       "answer; the message is taken back", ids.n, c->seq.n_ctx);
        tell_way_out(c);
    } else if (code == CLI_OK) {
        kept = answer(c, &ids);
    }
    free(messages);
    nib_prompt_free(&text);
    nib_ids_free(&ids);
    return kept;
}

void chat_say(struct chat *c, const char *role, const char *text, size_t n_bytes)
{
    const size_t     before = json_array_size(c->messages);
    struct chat_call due;

    bool is_result = chat_call_due(c->messages, &due);
    if (prompt_add_message(c->messages, "the message", role, text, n_bytes) != CLI_OK)
        return;
    if (is_result) {
        json_t *id = json_string(due.id);
        (void)json_object_set_new(json_array_get(c->messages, before), "tool_call_id", id);
        if (chat_call_due(c->messages, &due))
            return;
    }
    if (!encode_and_answer(c))
        while (json_array_size(c->messages) > before)
            (void)json_array_remove(c->messages, json_array_size(c->messages) - 1);
}
