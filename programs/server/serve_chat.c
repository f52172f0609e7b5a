/* /v1/chat/completions, and the encoding of conversations that /tokenize shares. */
#include "serve_generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Thinking ---- */

struct switches {
    bool            thinking;
    bool            off_by_default; /* then an effort turns it on */
    enum nib_effort effort;
};

static bool read_effort(struct exchange *x, const char *key, const char *word, struct switches *w)
{
    static const struct {
        const char     *word;
        enum nib_effort ga, preview;
    } efforts[] = {
        {"minimal", NIB_EFFORT_LOW, NIB_EFFORT_HIGH}, {"low", NIB_EFFORT_LOW, NIB_EFFORT_HIGH},
        {"medium", NIB_EFFORT_HIGH, NIB_EFFORT_HIGH}, {"high", NIB_EFFORT_HIGH, NIB_EFFORT_HIGH},
        {"xhigh", NIB_EFFORT_HIGH, NIB_EFFORT_MAX},   {"max", NIB_EFFORT_MAX, NIB_EFFORT_MAX},
        {"ultra", NIB_EFFORT_MAX, NIB_EFFORT_MAX},
    };
    if (strcmp(word, "none") == 0) {
        w->thinking = false;
        return true;
    }
    for (size_t i = 0; i < sizeof efforts / sizeof efforts[0]; i++)
        if (strcmp(word, efforts[i].word) == 0) {
            w->thinking = w->thinking || w->off_by_default;
            w->effort = x->serve->profile == NIB_CHAT_PREVIEW ? efforts[i].preview : efforts[i].ga;
            return true;
        }
    return api_fail(&x->error, key, "invalid_value",
                    "%s is '%.40s'; wanted none, minimal, low, medium, high, xhigh, max or ultra", key, word);
}

static bool read_thinking_field(struct exchange *x, const json_t *body, struct switches *w)
{
    const json_t *v = field_get(body, "thinking");
    const char   *type = NULL;
    if (json_is_boolean(v)) {
        w->thinking = json_is_true(v);
        return true;
    }
    if (!v)
        return true;
    if (!json_is_object(v))
        return field_wrong(&x->error, v, "thinking", "thinking", "an object with a type, or true or false");
    type = json_string_value(field_get(v, "type"));
    if (!type || (strcmp(type, "enabled") != 0 && strcmp(type, "adaptive") != 0 && strcmp(type, "disabled") != 0))
        return field_wrong(&x->error, field_get(v, "type"), "thinking", "thinking.type", "enabled, adaptive or disabled");
    w->thinking = strcmp(type, "disabled") != 0;
    return true;
}

/* Weakest first: what is read later counts. */
static bool read_switches(struct exchange *x, const json_t *body, struct nib_chat_options *o)
{
    const enum nib_effort usual = (enum nib_effort)x->serve->settings->default_effort;
    struct switches w = {.thinking = usual != NIB_EFFORT_NONE, .off_by_default = usual == NIB_EFFORT_NONE,
                         .effort = usual != NIB_EFFORT_NONE ? usual : NIB_EFFORT_HIGH};
    const json_t   *kwargs = field_get(body, "chat_template_kwargs");
    const char     *model = json_string_value(field_get(body, "model")), *inner = NULL, *effort = NULL;
    bool            thinking = false, enable = false;

    if (kwargs && !json_is_object(kwargs))
        return field_wrong(&x->error, kwargs, "chat_template_kwargs", "chat_template_kwargs", "an object");
    if (model && (strcmp(model, "deepseek-chat") == 0 || strcmp(model, "deepseek-reasoner") == 0))
        w = (struct switches){.thinking = strcmp(model, "deepseek-reasoner") == 0, .effort = w.effort};
    if (!field_string(kwargs, "reasoning_effort", &inner, &x->error) || (inner && !read_effort(x, "reasoning_effort", inner, &w)) ||
        !field_string(body, "reasoning_effort", &effort, &x->error) || (effort && !read_effort(x, "reasoning_effort", effort, &w)) ||
        !field_bool(kwargs, "thinking", &thinking, &x->error) || !field_bool(kwargs, "enable_thinking", &enable, &x->error) ||
        !field_bool(kwargs, "drop_thinking", &o->drop_thinking, &x->error))
        return false;
    if (field_get(kwargs, "thinking") || field_get(kwargs, "enable_thinking"))
        w.thinking = thinking || enable;
    if (!read_thinking_field(x, body, &w))
        return false;
    o->thinking = w.thinking;
    o->effort = w.thinking ? w.effort : NIB_EFFORT_NONE;
    return true;
}

/* ---- Messages ---- */

/* Put "prefix": true into the last message, which is the model's own and is to be continued. */
static bool mark_prefix(char **messages)
{
    static const char mark[] = ",\"prefix\":true}]";
    char             *text = realloc(*messages, strlen(*messages) + sizeof mark);
    if (!text)
        return false;
    *messages = text;
    /* The last brace is the last message's; the array's bracket is all that followed. */
    memcpy(strrchr(text, '}'), mark, sizeof mark);
    return true;
}

static bool read_continuation(struct exchange *x, const json_t *body, char **messages, bool *has_prefix)
{
    const json_t *list = field_get(body, "messages"), *last = json_array_get(list, json_array_size(list) - 1);
    const char   *role = json_string_value(json_object_get(last, "role"));
    bool          assistant = role && strcmp(role, "assistant") == 0, go_on = false, new_turn = true;

    if (!field_bool(body, "continue_final_message", &go_on, &x->error) ||
        !field_bool(body, "add_generation_prompt", &new_turn, &x->error))
        return false;
    if (go_on && field_get(body, "add_generation_prompt") && new_turn)
        return api_fail(&x->error, "continue_final_message", "invalid_value",
                        "continue_final_message does not go with add_generation_prompt");
    *has_prefix = assistant && json_is_true(json_object_get(last, "prefix"));
    if (!go_on || *has_prefix)
        return true;
    if (!assistant)
        return api_fail(&x->error, "continue_final_message", "invalid_value",
                        "continue_final_message needs a last message of the assistant's");
    *has_prefix = true;
    if (json_object_get(last, "prefix"))
        return api_fail(&x->error, "messages", "invalid_value",
                        "the last message has prefix: false but is to be continued");
    return mark_prefix(messages) || generation_no_memory(x);
}

static bool encode(struct exchange *x, const struct nib_chat_options *o, const char *messages, const char *tools,
                   struct nib_ids *out)
{
    struct nib_prompt prompt = {0};
    struct nib_error  err = {0};
    const bool        escape = !x->serve->settings->allow_control_tokens;

    enum nib_status status = nib_chat_encode(o, messages, tools, NULL, &prompt, &err);
    if (status == NIB_OK)
        status = nib_tokenizer_encode(x->serve->tokenizer, prompt.text.data, prompt.text.n, prompt.content,
                                      escape ? prompt.n_content : 0, out, &err);
    nib_prompt_free(&prompt);
    if (status == NIB_OK)
        return true;
    (void)api_fail(&x->error, strncmp(err.text, "tools", 5) == 0 ? "tools" : "messages", "invalid_value", "%.560s",
                   err.text);
    if (status == NIB_E_MEMORY)
        x->error.status = 500;
    return false;
}

struct replay_user {
    struct replay *replay;
    char          *text; /* the last answer, owned */
};

static const char *find_block(void *user, const struct nib_past_call *call, size_t n_calls, size_t *n)
{
    struct replay_user *u = user;
    free(u->text);
    u->text = replay_find(u->replay, call, n_calls, n);
    return u->text;
}

bool serve_encode_chat(struct exchange *x, const json_t *body, struct chat_prompt *out)
{
    struct nib_chat_options o;
    bool                    failed = false, ok = false;
    char                   *messages = body_member(x->body.data, "messages", &failed);
    char                   *tools = body_member(x->body.data, "tools", &failed);
    const json_t           *list = field_get(body, "messages");

    memset(out, 0, sizeof *out);
    nib_chat_options_init(&o);
    o.profile = x->serve->profile;
    o.add_generation_prompt = true;
    struct replay_user user = {x->serve->replay, NULL};
    o.replay = find_block;
    o.replay_user = &user;
    if (failed) {
        (void)generation_no_memory(x);
    } else if (!list) {
        (void)api_fail(&x->error, "messages", "missing_required_parameter",
                       "messages is missing; wanted an array of messages");
    } else if (!json_is_array(list) || json_array_size(list) == 0) {
        (void)field_wrong(&x->error, list, "messages", "messages", "an array of at least one message");
    } else {
        ok = read_switches(x, body, &o) && read_continuation(x, body, &messages, &out->has_prefix) &&
             encode(x, &o, messages, tools, &out->ids);
        out->thinking = o.thinking && !out->has_prefix;
    }
    free(user.text);
    free(messages);
    free(tools);
    return ok;
}

/* ---- Tools ---- */

static const char *function_name(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static bool is_name(const json_t *v)
{
    const char  *name = json_string_value(v);
    const size_t n = json_string_length(v);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || strchr("\"<>\x7f", name[i]))
            return false;
    return n > 0 && n <= 256;
}

static bool tool_wrong(struct exchange *x, const json_t *v, size_t i, const char *key, const char *wanted)
{
    char name[64];
    (void)snprintf(name, sizeof name, "tools[%zu].%s", i, key);
    return field_wrong(&x->error, v, "tools", name, "%s", wanted);
}

static bool check_tools(struct exchange *x, const json_t *tools)
{
    if (tools && (!json_is_array(tools) || json_array_size(tools) > N_TOOLS_MAX))
        return field_wrong(&x->error, tools, "tools", "tools", "an array of at most %d functions", N_TOOLS_MAX);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const json_t *type = json_object_get(tool, "type");
        const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)
            return tool_wrong(x, type, i, "type", "'function'");
        if (!is_name(name))
            return tool_wrong(x, name, i, "function.name", "1 to 256 bytes without quotes, angle brackets and controls");
    }
    return true;
}

/* How a call to that function begins, in the tokens the prompt's own encoding would give it. */
static bool add_forced(struct exchange *x, struct generation_args *a, const char *name)
{
    char             text[512];
    struct nib_error err;
    int n = snprintf(text, sizeof text, "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"%s\">\n", name);
    if (nib_tokenizer_encode(x->serve->tokenizer, text, (size_t)n, NULL, 0, &a->forced[a->n_forced], &err) != NIB_OK)
        return api_fail(&x->error, "tool_choice", "invalid_value", "%.500s", err.text);
    a->n_forced++;
    return true;
}

static bool force_tools(struct exchange *x, const json_t *tools, const char *only, struct generation_args *a)
{
    a->forced = calloc(json_array_size(tools) + 1, sizeof *a->forced);
    if (!a->forced)
        return generation_no_memory(x);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const char *name = function_name(json_array_get(tools, i));
        if ((!only || strcmp(name, only) == 0) && !add_forced(x, a, name))
            return false;
    }
    if (a->n_forced > 0)
        return true;
    return api_fail(&x->error, "tool_choice", "invalid_value",
                    "tool_choice names '%.64s', which is not among the tools", only ? only : "");
}

static bool ban_calls(struct exchange *x, struct generation_args *a)
{
    if (x->serve->dsml_id >= 0)
        a->bias[a->n_bias++] = (struct nib_logit_bias){x->serve->dsml_id, -INFINITY};
    return true;
}

static bool read_tools(struct exchange *x, const json_t *body, struct generation_args *a)
{
    const json_t *tools = field_get(body, "tools"), *choice = field_get(body, "tool_choice");
    const char   *word = json_string_value(choice);
    const char   *name = function_name(choice);
    bool          parallel = true;

    if (!check_tools(x, tools) || !field_bool(body, "parallel_tool_calls", &parallel, &x->error))
        return false;
    a->tools = json_array_size(tools) > 0;
    a->one_call = !parallel;
    if (!choice || (word && strcmp(word, "auto") == 0 && a->tools))
        return true;
    if (word && strcmp(word, "none") == 0) {
        const bool had_tools = a->tools;
        a->tools = false;
        return had_tools ? ban_calls(x, a) : true;
    }
    if (!a->tools)
        return api_fail(&x->error, "tool_choice", "invalid_value", "tool_choice is only for requests with tools");
    if (word && strcmp(word, "required") == 0)
        return force_tools(x, tools, NULL, a);
    if (name)
        return force_tools(x, tools, name, a);
    return field_wrong(&x->error, choice, "tool_choice", "tool_choice",
                       "none, auto, required or {\"type\": \"function\", \"function\": {\"name\": ...}}");
}

/* ---- The rest ---- */

static bool read_format(struct exchange *x, const json_t *body, struct generation_args *a)
{
    const json_t *format = field_get(body, "response_format");
    const char   *type = json_string_value(json_object_get(format, "type"));

    if (!format || (type && strcmp(type, "text") == 0))
        return true;
    if (!json_is_object(format) || !type)
        return field_wrong(&x->error, format, "response_format", "response_format", "an object with a type that is a string");
    if (strcmp(type, "json_object") == 0) {
        a->wants_json = true;
        return true;
    }
    if (strcmp(type, "json_schema") == 0) {
        if (!json_is_object(field_get(format, "json_schema")))
            return field_wrong(&x->error, field_get(format, "json_schema"), "response_format", "response_format.json_schema",
                               "an object");
        return api_fail(&x->error, "response_format", "unsupported_parameter",
                        "response_format json_schema is not supported; use json_object or a tool");
    }
    return api_fail(&x->error, "response_format", "invalid_value",
                    "response_format.type is '%.40s'; wanted text or json_object", type);
}

static bool read_logprobs(struct exchange *x, const json_t *body, struct generation_args *a)
{
    if (!field_bool(body, "logprobs", &a->want_logprobs, &x->error) ||
        !field_int(body, "top_logprobs", 0, 20, &a->n_top, &x->error))
        return false;
    if (a->n_top > 0 && !a->want_logprobs)
        return api_fail(&x->error, "top_logprobs", "invalid_value", "top_logprobs needs logprobs: true");
    return true;
}

/* The form of tools before there were tools; ignoring it would lose calls. */
static bool refuse_functions(struct exchange *x, const json_t *body)
{
    const char *const old[] = {"functions", "function_call"};
    for (size_t i = 0; i < 2; i++)
        if (field_get(body, old[i]))
            return api_fail(&x->error, old[i], "unsupported_parameter",
                            "%s is not supported; use tools and tool_choice", old[i]);
    return true;
}

static bool read_modalities(struct exchange *x, const json_t *body)
{
    const json_t *list = field_get(body, "modalities");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *m = json_string_value(json_array_get(list, i));
        if (!m || strcmp(m, "text") != 0)
            return api_fail(&x->error, "modalities", "unsupported_parameter", "modalities: the model writes text only");
    }
    return true;
}

static bool read_chat(struct exchange *x, const json_t *body, struct generation_args *a)
{
    struct chat_prompt prompt;

    a->is_chat = true;
    if (!generation_read(x, body, a) || !field_int(body, "max_completion_tokens", 1, 1e18, &a->n_max, &x->error) ||
        !read_logprobs(x, body, a) || !read_tools(x, body, a) || !read_format(x, body, a) || !read_modalities(x, body) ||
        !refuse_functions(x, body))
        return false;
    const bool ok = serve_encode_chat(x, body, &prompt);
    a->prompt[0] = prompt.ids;
    a->n_prompts = 1;
    a->thinking = prompt.thinking;
    return ok;
}

void serve_chat(struct exchange *x)
{
    struct generation_args a = {0};
    json_t                *body;

    if (!body_parse(x->body.data, x->body.n, &body, &x->error))
        return;
    if (read_chat(x, body, &a))
        (void)generation_start(x, &a);
    else
        generation_args_free(&a);
    json_decref(body);
}
