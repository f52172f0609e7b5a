/* Tokens to text to events. Text is matched against stop strings where a reader will see it: the content of a chat, all
 * of a completion. */
#include "serve_choice.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- Events ---- */

static json_t *text_of(const struct buffer *b)
{
    json_t *s = json_stringn(b->data ? b->data : "", b->n);
    return s ? s : json_string("");
}

static void send_choice(struct choice *c, const char *key, json_t *value, json_t *finish)
{
    json_t *o = json_pack("{s:i, s:o, s:o, s:o}", "index", (int)c->index, key, value, "logprobs",
                          choice_logprobs(c, c->n_logprobs_sent), "finish_reason", finish);
    c->n_logprobs_sent = json_array_size(c->logprobs);
    generation_event(c->generation, generation_chunk(c->generation, json_pack("[o]", o)));
}

static void say_first(struct choice *c)
{
    if (c->said_first || !c->generation->args.is_chat)
        return;
    c->said_first = true;
    send_choice(c, "delta", json_pack("{s:s, s:s}", "role", "assistant", "content", ""), json_null());
}

static void put_content(struct choice *c, const char *text, size_t n);

/* The prompt's text in front of a completion. Stop strings are not looked for in it. */
static void say_echo(struct choice *c)
{
    const struct generation *g = c->generation;
    const struct nib_ids    *prompt = &g->args.prompt[c->index / g->args.n];
    struct nib_text          text = {0};

    if (!g->args.echo || c->said_first)
        return;
    c->said_first = true;
    if (nib_tokenizer_decode(g->exchange->serve->tokenizer, prompt->id, prompt->n, true, &text, NULL) != NIB_OK)
        c->content.failed = true;
    else
        put_content(c, text.data, text.n);
    nib_text_free(&text);
}

static void add_delta(struct choice *c, json_t *delta)
{
    if (!c->generation->args.streams) {
        json_decref(delta);
        return;
    }
    say_first(c);
    send_choice(c, "delta", delta, json_null());
}

static void put_content(struct choice *c, const char *text, size_t n)
{
    if (n == 0)
        return;
    buffer_add(&c->content, text, n);
    if (!c->generation->args.streams)
        return;
    if (!c->generation->args.want_logprobs) {
        say_first(c);
        generation_text_event(c->generation, c->index, c->generation->args.is_chat ? "content" : NULL, text, n);
        return;
    }
    json_t *s = json_stringn(text, n);
    if (c->generation->args.is_chat)
        add_delta(c, json_pack("{s:o}", "content", s));
    else
        send_choice(c, "text", s, json_null());
}

/* Visible text passes here. What may begin a stop string waits. */
static void filter_content(struct choice *c, const char *text, size_t n)
{
    const struct generation_args *a = &c->generation->args;
    const char *const            *stop = (const char *const *)a->stop;
    size_t                        which;

    if (c->stopped)
        return;
    if (a->n_stop == 0) {
        put_content(c, text, n);
        return;
    }
    buffer_add(&c->held, text, n);
    const size_t at = nib_stop_find(c->held.data, c->held.n, stop, a->n_stop, &which);
    if (which < a->n_stop) {
        c->stopped = true;
        put_content(c, c->held.data, at + (a->include_stop ? strlen(stop[which]) : 0));
        c->held.n = 0;
        return;
    }
    const size_t tail = nib_stop_tail(c->held.data, c->held.n, stop, a->n_stop);
    put_content(c, c->held.data, c->held.n - tail);
    buffer_drop_front(&c->held, c->held.n - tail);
}

/* Ids are not to be guessed: a client could otherwise ask for another's call. */
static void make_call_id(char out[32])
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char     random[24] = {0};
    serve_random(random, sizeof random);
    memcpy(out, "call_", 5);
    for (int i = 0; i < 24; i++)
        out[5 + i] = letters[random[i] % 62];
    out[29] = '\0';
}

static void begin_call(struct choice *c, const struct nib_chat_event *e)
{
    struct choice_call *calls = realloc(c->calls, (size_t)(c->n_calls + 1) * sizeof *calls);
    if (!calls) {
        c->content.failed = true;
        return;
    }
    c->calls = calls;
    struct choice_call *call = &calls[c->n_calls++];
    memset(call, 0, sizeof *call);
    make_call_id(call->id);
    buffer_add(&call->name, e->text, e->n);
    add_delta(c, json_pack("{s:[{s:i, s:s, s:s, s:{s:o, s:s}}]}", "tool_calls", "index", (int)e->call, "id", call->id, "type",
                           "function", "function", "name", text_of(&call->name), "arguments", ""));
}

/* Under the name, or the names, that the clients of this server look for. */
static json_t *add_reasoning(const struct choice *c, json_t *to, const char *text, size_t n)
{
    const int32_t names = c->generation->exchange->serve->settings->reasoning_field;
    if (names != REASONING_SHORT)
        json_object_set_new(to, "reasoning_content", json_stringn(text, n));
    if (names != REASONING_CONTENT)
        json_object_set_new(to, "reasoning", json_stringn(text, n));
    return to;
}

static void say_reasoning(struct choice *c, const char *text, size_t n)
{
    const struct generation *g = c->generation;
    const int32_t            names = g->exchange->serve->settings->reasoning_field;
    if (!g->args.streams || g->args.want_logprobs || names == REASONING_BOTH) {
        add_delta(c, add_reasoning(c, json_object(), text, n));
        return;
    }
    say_first(c);
    generation_text_event(c->generation, c->index, names == REASONING_SHORT ? "reasoning" : "reasoning_content", text, n);
}

static void on_event(void *user, const struct nib_chat_event *e)
{
    struct choice *c = user;
    if (c->stopped || c->content.failed)
        return;
    switch (e->kind) {
    case NIB_CHAT_REASONING:
        buffer_add(&c->reasoning, e->text, e->n);
        say_reasoning(c, e->text, e->n);
        break;
    case NIB_CHAT_CONTENT:
        filter_content(c, e->text, e->n);
        break;
    case NIB_CHAT_CALL_BEGIN:
        begin_call(c, e);
        break;
    case NIB_CHAT_ARGUMENTS:
        buffer_add(&c->calls[e->call].arguments, e->text, e->n);
        add_delta(c, json_pack("{s:[{s:i, s:{s:o}}]}", "tool_calls", "index", (int)e->call, "function", "arguments",
                               json_stringn(e->text, e->n)));
        break;
    case NIB_CHAT_CALL_END:
        c->calls_ended_turn = c->generation->args.one_call;
        break;
    }
}

/* ---- Tokens ---- */

static void push_text(struct choice *c, const char *bytes, size_t n)
{
    if (c->parser) {
        if (nib_chat_parser_push(c->parser, bytes, n, NULL) != NIB_OK)
            c->content.failed = true;
        return;
    }
    struct nib_text text = {0};
    if (nib_utf8_stream_push(&c->utf8, bytes, n, &text) != NIB_OK)
        c->content.failed = true;
    else
        filter_content(c, text.data, text.n);
    nib_text_free(&text);
}

static bool is_stop_id(const struct choice *c, int32_t id)
{
    const struct generation_args *a = &c->generation->args;
    for (int32_t i = 0; i < a->n_stop_id; i++)
        if (a->stop_id[i] == id)
            return true;
    return false;
}

static void keep_id(struct choice *c, int32_t id)
{
    if (c->n_ids == c->ids_capacity) {
        const size_t capacity = c->ids_capacity ? 2 * c->ids_capacity : 256;
        int32_t     *ids = realloc(c->ids, capacity * sizeof *ids);
        if (!ids)
            return; /* then the block's ids will not match, and it is not kept */
        c->ids = ids;
        c->ids_capacity = capacity;
    }
    c->ids[c->n_ids++] = id;
}

/* Whether the last ids are what this text encodes to. Only such a block may be replayed as text: anything else would be
 * read as other tokens than were written, control tokens even, where the model spelled one in letters. */
static bool ends_in(const struct choice *c, const char *text, size_t n)
{
    struct nib_ids ids = {0};
    const struct nib_tokenizer *t = c->generation->exchange->serve->tokenizer;
    const bool ok = nib_tokenizer_encode(t, text, n, NULL, 0, &ids, NULL) == NIB_OK && ids.n <= c->n_ids &&
                    memcmp(ids.id, c->ids + c->n_ids - ids.n, ids.n * sizeof *ids.id) == 0;
    nib_ids_free(&ids);
    return ok;
}

static void keep_block(struct choice *c)
{
    const struct nib_reply *reply = nib_chat_parser_reply(c->parser);
    struct nib_text         block = {0};
    const char             *id[REPLAY_CALLS_MAX];

    if (reply->n_calls == 0 || reply->n_calls > REPLAY_CALLS_MAX || reply->n_calls != c->n_calls ||
        nib_chat_parser_block(c->parser, &block) != NIB_OK) {
        nib_text_free(&block);
        return;
    }
    for (int32_t i = 0; i < c->n_calls; i++)
        id[i] = c->calls[i].id;
    const size_t n_blank = strspn(block.data, "\n"); /* may be part of the token before */
    if (ends_in(c, block.data + n_blank, block.n - n_blank))
        replay_keep(c->generation->exchange->serve->replay, reply, id, block.data, block.n);
    nib_text_free(&block);
}

bool choice_token(struct choice *c, const struct nib_drawn_token *t)
{
    const struct serve *s = c->generation->exchange->serve;
    size_t              n = 0;
    bool                special = false;
    const char         *bytes = nib_tokenizer_bytes(s->tokenizer, t->id, &n, &special);

    say_echo(c);
    c->n_tokens++;
    if (c->parser && nib_chat_parser_in_reasoning(c->parser))
        c->n_reasoning++;
    if (c->generation->args.want_logprobs)
        choice_keep_logprob(c, t);
    if (bytes && !special && !is_stop_id(c, t->id)) {
        if (c->generation->args.tools)
            keep_id(c, t->id);
        push_text(c, bytes, n);
    }
    return !c->stopped && !c->content.failed && !c->calls_ended_turn && !(c->parser && nib_chat_parser_done(c->parser));
}

static bool is_out(const struct choice *c, size_t f)
{
    return c->forced_out[f / 64] >> (f % 64) & 1;
}

void choice_take_forced(struct choice *c, int32_t id)
{
    const struct generation_args *a = &c->generation->args;
    if (!c->forcing)
        return;
    for (size_t f = 0; f < a->n_forced; f++) {
        if (is_out(c, f))
            continue;
        if (c->n_forced_done >= a->forced[f].n || a->forced[f].id[c->n_forced_done] != id)
            c->forced_out[f / 64] |= (uint64_t)1 << (f % 64);
        else if (c->n_forced_done + 1 == a->forced[f].n)
            c->forced = true;
    }
    c->n_forced_done++;
}

/* The sequences that agree with what came so far; all of them begin alike, so most steps leave one token. */
int32_t choice_allowed(struct choice *c)
{
    const struct generation_args *a = &c->generation->args;
    int32_t                       n = 0;

    if (a->n_forced == 0 || c->forced || (c->parser && nib_chat_parser_in_reasoning(c->parser)))
        return 0;
    for (size_t f = 0; f < a->n_forced; f++) {
        if (c->n_forced_done >= a->forced[f].n || is_out(c, f))
            continue;
        int32_t next = a->forced[f].id[c->n_forced_done];
        bool    known = false;
        for (int32_t i = 0; i < n; i++)
            known |= c->allowed[i] == next;
        if (!known && n < N_TOOLS_MAX)
            c->allowed[n++] = next;
    }
    c->forcing = n > 0;
    return n;
}

static enum outcome outcome_of(const struct choice *c)
{
    /* A cancelled request may end at a token that was under way. */
    return c->result.status == NIB_E_CANCELLED || atomic_load(&c->generation->cancelled) ? OUTCOME_ABORT
           : c->result.status != NIB_OK                                                 ? OUTCOME_ERROR
           : c->finish == NIB_CHAT_FINISH_LENGTH                                        ? OUTCOME_LENGTH
                                                                                        : OUTCOME_STOP;
}

static const char *finish_name(enum nib_chat_finish f)
{
    return f == NIB_CHAT_FINISH_LENGTH ? "length" : f == NIB_CHAT_FINISH_TOOL_CALLS ? "tool_calls" : "stop";
}

static void flush(struct choice *c, enum nib_chat_end end)
{
    if (c->parser) {
        if (nib_chat_parser_end(c->parser, end, NULL) != NIB_OK)
            c->content.failed = true;
    } else {
        struct nib_text text = {0};
        if (nib_utf8_stream_end(&c->utf8, &text) == NIB_OK)
            filter_content(c, text.data, text.n);
        nib_text_free(&text);
    }
    if (!c->stopped) {
        const struct buffer held = c->held;
        put_content(c, held.data, held.n);
    }
}

void choice_end(struct choice *c, const struct nib_request_result *r)
{
    struct generation *g = c->generation;
    c->result = *r;
    c->ended = true;
    if (r->status == NIB_OK)
        say_echo(c);
    const bool by_length = r->status == NIB_OK && r->reason == NIB_STOP_LENGTH;
    flush(c, by_length ? NIB_CHAT_END_LENGTH : NIB_CHAT_END_STOP);
    c->finish = by_length ? NIB_CHAT_FINISH_LENGTH : NIB_CHAT_FINISH_STOP;
    if (c->parser && !c->content.failed && !c->stopped)
        c->finish = nib_chat_parser_reply(c->parser)->finish;
    if (c->finish == NIB_CHAT_FINISH_TOOL_CALLS)
        keep_block(c);
    metrics_end(&g->exchange->serve->metrics, outcome_of(c), r);
    if (!g->args.streams || r->status != NIB_OK)
        return;
    if (g->args.is_chat) {
        say_first(c);
        send_choice(c, "delta", json_object(), json_string(finish_name(c->finish)));
    } else {
        send_choice(c, "text", json_string(""), json_string(finish_name(c->finish)));
    }
}

/* ---- A whole answer ---- */

/* Calls as the parser keeps them: without those that the end made void, under the ids that were given. */
static json_t *calls_of(const struct choice *c)
{
    const struct nib_reply *reply = nib_chat_parser_reply(c->parser);
    json_t                 *calls = json_array();
    for (int32_t i = 0; i < reply->n_calls && i < c->n_calls; i++)
        json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:o, s:o}}", "id", c->calls[i].id, "type", "function",
                                               "function", "name",
                                               json_stringn(reply->call[i].name.data, reply->call[i].name.n), "arguments",
                                               json_stringn(reply->call[i].arguments.data,
                                                            reply->call[i].arguments.n)));
    return calls;
}

static json_t *message_of(struct choice *c)
{
    const struct nib_reply *reply = nib_chat_parser_reply(c->parser);
    json_t                 *m = json_pack("{s:s}", "role", "assistant"), *content;
    json_t                 *calls = calls_of(c);
    /* A stream's client has seen a void call begin and no text of it; here nothing is lost. */
    const bool              as_text = reply->n_calls == 0 && c->n_calls > 0 && !c->stopped;

    content = as_text ? json_stringn(reply->content.data, reply->content.n) : text_of(&c->content);
    if (json_array_size(calls) > 0 && json_string_length(content) == 0) {
        json_decref(content);
        content = json_null();
    }
    json_object_set_new(m, "content", content);
    if (c->generation->args.thinking || c->reasoning.n > 0)
        (void)add_reasoning(c, m, c->reasoning.data ? c->reasoning.data : "", c->reasoning.n);
    if (json_array_size(calls) > 0)
        json_object_set(m, "tool_calls", calls);
    json_object_set_new(m, "refusal", json_null());
    json_decref(calls);
    return m;
}

json_t *choice_answer(struct choice *c)
{
    const bool chat = c->generation->args.is_chat;
    return json_pack("{s:i, s:o, s:o, s:s}", "index", (int)c->index, chat ? "message" : "text",
                     chat ? message_of(c) : text_of(&c->content), "logprobs", choice_logprobs(c, 0), "finish_reason",
                     finish_name(c->finish));
}

void choice_free(struct choice *c)
{
    nib_request_close(c->handle);
    nib_chat_parser_close(c->parser);
    for (int32_t i = 0; i < c->n_calls; i++) {
        buffer_free(&c->calls[i].name);
        buffer_free(&c->calls[i].arguments);
    }
    free(c->calls);
    free(c->ids);
    buffer_free(&c->content);
    buffer_free(&c->reasoning);
    buffer_free(&c->held);
    json_decref(c->logprobs);
}

/* The parser tells events to its choice. */
bool choice_init(struct choice *c, struct generation *g, int32_t index)
{
    c->generation = g;
    c->index = index;
    c->logprobs = json_array();
    nib_utf8_stream_init(&c->utf8);
    if (!g->args.is_chat)
        return c->logprobs != NULL;
    const struct nib_chat_parser_options o = {
        .thinking = g->args.thinking, .tools = g->args.tools, .on_event = on_event, .user = c};
    return c->logprobs && nib_chat_parser_open(&o, &c->parser, NULL) == NIB_OK;
}
