/* Rendering messages. What looks odd here is what the model was trained on:
 *
 * Non-thinking is thinking closed at once: the prompt ends in "</think>", or else in "<think>", so that the model
 * itself never writes "<think>". An earlier turn whose reasoning was dropped looks like a turn without thinking.
 * Arguments and names of calls are not escaped. A conversation that ends with an assistant, system or reminder message
 * opens no assistant turn unless add_generation_prompt asks for one. */
#include "text/chat_render.h"

#include "base/text_buf.h"
#include "text/chat_texts.h"

#include <stdlib.h>
#include <string.h>

/* What rendering one message may look at. */
struct scene {
    const struct nib_chat_list    *list;
    ptrdiff_t                      last_user;
    bool                           drop;
    const struct nib_chat_options *o;
    struct nib_arena              *arena;
    struct nib_prompt             *out;
    struct nib_error              *err;
};

enum nib_status nib_chat_put(struct nib_prompt *out, const char *text)
{
    return nib_text_append_string(&out->text, text);
}

/* Everything from byte `start` on came from the conversation. Ranges that touch become one: a control token could
 * otherwise be spelled across their border. */
static enum nib_status mark_content(struct nib_prompt *out, size_t start)
{
    struct nib_range *last = out->n_content ? &out->content[out->n_content - 1] : NULL;
    if (start == out->text.n)
        return NIB_OK;
    if (last && last->end == start) {
        last->end = out->text.n;
        return NIB_OK;
    }
    size_t n = out->n_content; /* the capacity is the next power of two */
    if (!(n & (n - 1))) {
        struct nib_range *grown = realloc(out->content, (n ? 2 * n : 1) * sizeof *grown);
        if (!grown)
            return NIB_E_MEMORY;
        out->content = grown;
    }
    out->content[out->n_content++] = (struct nib_range){start, out->text.n};
    return NIB_OK;
}

static enum nib_status put_content(struct nib_prompt *out, const char *bytes, size_t n)
{
    size_t start = out->text.n;
    NIB_TRY(nib_text_append(&out->text, bytes, n));
    return mark_content(out, start);
}

static enum nib_status put_json(struct scene *s, const struct nib_tree *v, const char *what)
{
    size_t start = s->out->text.n;
    NIB_TRY(nib_tree_write(v, what, &s->out->text, s->err));
    return mark_content(s->out, start);
}

/* A string, or nothing in place of null, nothing, or another empty value. */
static enum nib_status put_optional(struct scene *s, const struct nib_chat_message *m, const char *key,
                                    const struct nib_tree *v)
{
    if (!nib_chat_is_true(v))
        return NIB_OK;
    if (v->type != NIB_TREE_STRING)
        return nib_chat_bad_value(m, key, v, "a string", s->err);
    return put_content(s->out, v->as.text, v->n);
}

static enum nib_status put_tools(struct scene *s, const struct nib_chat_message *m)
{
    if (!nib_chat_is_true(m->tools))
        return NIB_OK;
    if (m->tools->type != NIB_TREE_ARRAY)
        return nib_chat_bad_value(m, "tools", m->tools, "an array of tools", s->err);
    NIB_TRY(nib_chat_put(s->out, "\n\n"));
    NIB_TRY(nib_chat_put(s->out, nib_chat_tools_before));
    for (size_t i = 0; i < m->tools->n; i++) {
        const struct nib_tree *function = nib_tree_get(&m->tools->as.item[i], "function");
        if (!function)
            return nib_error_set(s->err, NIB_E_ARGUMENT, "tools[%zu]: found %s without \"function\", wanted "
                                 "{\"type\": \"function\", \"function\": {...}}", i,
                                 nib_tree_type_name(&m->tools->as.item[i]));
        NIB_TRY(nib_chat_put(s->out, i ? "\n" : ""));
        NIB_TRY(put_json(s, function, "tools"));
    }
    return nib_chat_put(s->out, nib_chat_tools_after);
}

static enum nib_status put_tools_and_format(struct scene *s, const struct nib_chat_message *m)
{
    NIB_TRY(put_tools(s, m));
    if (!nib_chat_is_true(m->response_format))
        return NIB_OK;
    NIB_TRY(nib_chat_put(s->out, "\n\n"));
    NIB_TRY(nib_chat_put(s->out, nib_chat_format_before));
    return put_json(s, m->response_format, "response_format");
}

/* A tool's answer given as a list: its texts, and the names of other parts in their place. */
static enum nib_status put_result_parts(struct scene *s, const struct nib_chat_message *m, const struct nib_tree *parts)
{
    for (size_t i = 0; i < parts->n; i++) {
        const struct nib_tree *part = &parts->as.item[i];
        const struct nib_tree *type = nib_tree_get(part, "type"), *words = nib_tree_get(part, "text");
        NIB_TRY(nib_chat_put(s->out, i ? "\n\n" : ""));
        if (part->type != NIB_TREE_OBJECT)
            return nib_chat_bad_value(m, "content[]", part, "a part with a type", s->err);
        if (nib_tree_is_text(type, "text")) {
            if (words && words->type != NIB_TREE_STRING)
                return nib_chat_bad_value(m, "content[].text", words, "a string", s->err);
            NIB_TRY(put_content(s->out, words ? words->as.text : "", words ? words->n : 0));
            continue;
        }
        if (type && type->type != NIB_TREE_STRING && type->type != NIB_TREE_NULL)
            return nib_chat_bad_value(m, "content[].type", type, "a string", s->err);
        bool named = type && type->type == NIB_TREE_STRING;
        NIB_TRY(nib_chat_put(s->out, "[Unsupported "));
        NIB_TRY(named ? put_content(s->out, type->as.text, type->n) : nib_chat_put(s->out, "None"));
        NIB_TRY(nib_chat_put(s->out, "]"));
    }
    return NIB_OK;
}

static enum nib_status put_result(struct scene *s, const struct nib_chat_message *m, const struct nib_tree *v)
{
    NIB_TRY(nib_chat_put(s->out, "<tool_result>"));
    if (v && v->type == NIB_TREE_STRING)
        NIB_TRY(put_content(s->out, v->as.text, v->n));
    else if (v && v->type == NIB_TREE_ARRAY)
        NIB_TRY(put_result_parts(s, m, v));
    else if (v && v->type == NIB_TREE_NULL)
        NIB_TRY(nib_chat_put(s->out, "None")); /* the reference's spelling of null */
    else if (v)
        return nib_chat_bad_value(m, "content", v, "a string or a list of parts", s->err);
    return nib_chat_put(s->out, "</tool_result>");
}

static enum nib_status put_user(struct scene *s, const struct nib_chat_message *m)
{
    NIB_TRY(nib_chat_put(s->out, NIB_MARK_USER));
    for (size_t i = 0; i < m->n_blocks; i++) {
        const struct nib_tree *v = m->block[i].content;
        const struct nib_chat_message origin = {.list = m->list, .index = m->block[i].index};
        NIB_TRY(nib_chat_put(s->out, i ? "\n\n" : ""));
        if (m->block[i].is_result) {
            NIB_TRY(put_result(s, &origin, v));
            continue;
        }
        if (v && v->type != NIB_TREE_STRING)
            return nib_chat_bad_value(&origin, "content", v, "a string", s->err);
        NIB_TRY(put_content(s->out, v ? v->as.text : "", v ? v->n : 0));
    }
    return NIB_OK;
}

static enum nib_status put_parameter(struct scene *s, const char *key, size_t n_key, const struct nib_tree *v,
                                     const char *what)
{
    bool quoted = v->type == NIB_TREE_STRING;
    NIB_TRY(nib_chat_put(s->out, "<" NIB_MARK_DSML "parameter name=\""));
    NIB_TRY(put_content(s->out, key, n_key));
    NIB_TRY(nib_chat_put(s->out, quoted ? "\" string=\"true\">" : "\" string=\"false\">"));
    NIB_TRY(quoted ? put_content(s->out, v->as.text, v->n) : put_json(s, v, what));
    return nib_chat_put(s->out, "</" NIB_MARK_DSML "parameter>");
}

static enum nib_status put_arguments(struct scene *s, const struct nib_tree *v, const char *what)
{
    static const char whole[] = "arguments"; /* the parameter that stands for arguments without names */
    struct nib_tree *parsed = NULL;
    if (v->type != NIB_TREE_STRING)
        return put_parameter(s, whole, sizeof whole - 1, v, what);
    enum nib_status status = nib_tree_parse(v->as.text, v->n, what, s->arena, &parsed, s->err);
    if (status == NIB_E_FORMAT)
        return put_parameter(s, whole, sizeof whole - 1, v, what);
    NIB_TRY(status);
    if (parsed->type != NIB_TREE_OBJECT)
        return nib_error_set(s->err, NIB_E_ARGUMENT, "%s: found JSON text of %s, wanted that of an object", what,
                             nib_tree_type_name(parsed));
    for (size_t i = 0; i < parsed->n; i++) {
        const struct nib_tree_member *p = &parsed->as.member[i];
        NIB_TRY(nib_chat_put(s->out, i ? "\n" : ""));
        NIB_TRY(put_parameter(s, p->key, p->n_key, &p->value, what));
    }
    return NIB_OK;
}

static bool is_string(const struct nib_tree *v)
{
    return v && v->type == NIB_TREE_STRING;
}

/* The block of these calls as the model wrote it, where the caller still has it: what it reads then is what it wrote.
 * NULL without. */
static enum nib_status find_replay(struct scene *s, const struct nib_chat_message *m, const char **text, size_t *n)
{
    *text = NULL;
    if (!s->o->replay || m->tool_calls->n == 0)
        return NIB_OK;
    struct nib_past_call *call = nib_arena_array(s->arena, m->tool_calls->n, sizeof *call);
    if (!call)
        return NIB_E_MEMORY;
    for (size_t i = 0; i < m->tool_calls->n; i++) {
        const struct nib_tree *v = &m->tool_calls->as.item[i], *function = nib_tree_get(v, "function");
        const struct nib_tree *id = nib_tree_get(v, "id"), *name = nib_tree_get(function, "name");
        const struct nib_tree *arguments = nib_tree_get(function, "arguments");
        if (!is_string(id) || !is_string(name) || !is_string(arguments))
            return NIB_OK;
        call[i] = (struct nib_past_call){id->as.text, name->as.text, arguments->as.text, id->n, name->n, arguments->n};
    }
    *text = s->o->replay(s->o->replay_user, call, m->tool_calls->n, n);
    return NIB_OK;
}

static enum nib_status put_calls(struct scene *s, const struct nib_chat_message *m)
{
    const char *text;
    size_t n;
    if (!nib_chat_is_true(m->tool_calls))
        return NIB_OK;
    if (m->tool_calls->type != NIB_TREE_ARRAY)
        return nib_chat_bad_value(m, "tool_calls", m->tool_calls, "an array of calls", s->err);
    NIB_TRY(find_replay(s, m, &text, &n));
    if (text)
        return nib_text_append(&s->out->text, text, n);
    NIB_TRY(nib_chat_put(s->out, "\n\n<" NIB_MARK_DSML "tool_calls>\n"));
    for (size_t i = 0; i < m->tool_calls->n; i++) {
        const struct nib_tree *function = nib_tree_get(&m->tool_calls->as.item[i], "function");
        const struct nib_tree *name = nib_tree_get(function, "name"), *arguments = nib_tree_get(function, "arguments");
        const char *what = nib_arena_printf(s->arena, "%s[%zu].tool_calls[%zu].function.arguments", m->list, m->index,
                                            i);
        if (!what)
            return NIB_E_MEMORY;
        if (!name || name->type != NIB_TREE_STRING)
            return nib_chat_bad_value(m, "tool_calls[].function.name", name, "a string", s->err);
        if (!arguments)
            return nib_error_set(s->err, NIB_E_ARGUMENT, "%s: found nothing, wanted a string", what);
        NIB_TRY(nib_chat_put(s->out, i ? "\n<" NIB_MARK_DSML "invoke name=\"" : "<" NIB_MARK_DSML "invoke name=\""));
        NIB_TRY(put_content(s->out, name->as.text, name->n));
        NIB_TRY(nib_chat_put(s->out, "\">\n"));
        NIB_TRY(put_arguments(s, arguments, what));
        NIB_TRY(nib_chat_put(s->out, "\n</" NIB_MARK_DSML "invoke>"));
    }
    return nib_chat_put(s->out, "\n</" NIB_MARK_DSML "tool_calls>");
}

static enum nib_status put_assistant(struct scene *s, size_t i)
{
    const struct nib_chat_message *m = &s->list->message[i];
    bool answers_task = i > 0 && s->list->message[i - 1].task;
    if (s->o->thinking && !answers_task && (!s->drop || (ptrdiff_t)i > s->last_user)) {
        NIB_TRY(put_optional(s, m, "reasoning_content", m->reasoning));
        NIB_TRY(nib_chat_put(s->out, NIB_MARK_THINK_END)); /* the message before wrote the opening marker */
    }
    NIB_TRY(put_optional(s, m, "content", m->content));
    NIB_TRY(put_calls(s, m));
    return nib_chat_put(s->out, m->without_eos ? "" : NIB_MARK_EOS);
}

static enum nib_status put_reminder(struct scene *s, const struct nib_chat_message *m)
{
    NIB_TRY(nib_chat_put(s->out, NIB_MARK_REMINDER));
    if (!m->content || m->content->type == NIB_TREE_NULL)
        return nib_chat_put(s->out, "None");
    if (m->content->type != NIB_TREE_STRING)
        return nib_chat_bad_value(m, "content", m->content, "a string", s->err);
    return put_content(s->out, m->content->as.text, m->content->n);
}

static enum nib_status put_body(struct scene *s, size_t i)
{
    const struct nib_chat_message *m = &s->list->message[i];
    switch (m->role) {
    case NIB_CHAT_SYSTEM:
        NIB_TRY(put_optional(s, m, "content", m->content));
        return put_tools_and_format(s, m);
    case NIB_CHAT_DEVELOPER:
        if (!nib_chat_is_true(m->content))
            return nib_chat_bad_value(m, "content", m->content, "a developer's text that is not empty", s->err);
        NIB_TRY(nib_chat_put(s->out, NIB_MARK_USER));
        NIB_TRY(put_optional(s, m, "content", m->content));
        return put_tools_and_format(s, m);
    case NIB_CHAT_USER: return put_user(s, m);
    case NIB_CHAT_ASSISTANT: return put_assistant(s, i);
    case NIB_CHAT_LATEST_REMINDER: return put_reminder(s, m);
    case NIB_CHAT_TOOL: /* merged away */
    case NIB_CHAT_FUNCTION:
    case NIB_CHAT_OTHER_ROLE: break;
    }
    return nib_chat_bad_value(m, "role", m->role_text, "system, user, assistant or tool", s->err);
}

static const char *think_marker(bool thinks)
{
    return thinks ? NIB_MARK_THINK_START : NIB_MARK_THINK_END;
}

static enum nib_status put_task(struct scene *s, const struct nib_chat_message *m)
{
    for (size_t k = 0; k < NIB_CHAT_N_TASKS; k++) {
        if (!nib_tree_is_text(m->task, nib_chat_tasks[k].name))
            continue;
        if (nib_tree_is_text(m->task, "action")) {
            NIB_TRY(nib_chat_put(s->out, NIB_MARK_ASSISTANT));
            NIB_TRY(nib_chat_put(s->out, think_marker(s->o->thinking)));
        }
        return nib_chat_put(s->out, nib_chat_tasks[k].token);
    }
    return nib_chat_bad_value(m, "task", m->task, "action, query, authority, domain, title or read_url", s->err);
}

/* What leads from message i to an assistant's turn. */
static enum nib_status put_transition(struct scene *s, size_t i)
{
    const struct nib_chat_message *m = &s->list->message[i];
    bool is_last = i + 1 == s->list->n;
    enum nib_chat_role next = is_last ? NIB_CHAT_ASSISTANT : s->list->message[i + 1].role;
    if (next != NIB_CHAT_ASSISTANT && next != NIB_CHAT_LATEST_REMINDER)
        return NIB_OK;
    if (m->task)
        return put_task(s, m);
    bool asks = m->role == NIB_CHAT_USER || m->role == NIB_CHAT_DEVELOPER;
    if (!asks && !(is_last && s->o->add_generation_prompt && !m->without_eos))
        return NIB_OK;
    bool thinks = s->o->thinking && (!asks || !s->drop || (ptrdiff_t)i >= s->last_user);
    NIB_TRY(nib_chat_put(s->out, NIB_MARK_ASSISTANT));
    return nib_chat_put(s->out, think_marker(thinks));
}

enum nib_status nib_chat_render(const struct nib_chat_list *list, size_t first, bool drop,
                                const struct nib_chat_options *o, struct nib_arena *arena, struct nib_prompt *out,
                                struct nib_error *err)
{
    struct scene s = {.list = list, .last_user = nib_chat_last_user(list), .drop = drop, .o = o, .arena = arena,
                      .out = out, .err = err};
    for (size_t i = first; i < list->n; i++) {
        if (i == 0 && o->thinking)
            NIB_TRY(nib_chat_put(out, nib_chat_effort_prefix(o->profile, o->effort)));
        NIB_TRY(put_body(&s, i));
        NIB_TRY(put_transition(&s, i));
    }
    return NIB_OK;
}
