/* What OpenAI-style clients send, turned into what the reference encoder takes. The reference raises an error or prints
 * Python names for several of these; here is the one place where they get a meaning. */
#include "text/chat_message.h"

#include "base/text_buf.h"

#include <string.h>

static const struct nib_tree empty_text = {.type = NIB_TREE_STRING, .as.text = ""};

static enum nib_status copy_text(const struct nib_text *t, struct nib_arena *arena, struct nib_tree *out)
{
    char *copy = nib_arena_alloc(arena, t->n);
    if (!copy)
        return NIB_E_MEMORY;
    if (t->n)
        memcpy(copy, t->data, t->n);
    *out = (struct nib_tree){.type = NIB_TREE_STRING, .n = t->n, .as.text = copy};
    return NIB_OK;
}

static enum nib_status append_parts(const struct nib_chat_message *m, const char *separator, struct nib_text *text,
                                    struct nib_error *err)
{
    for (size_t i = 0; i < m->content->n; i++) {
        const struct nib_tree *part = &m->content->as.item[i];
        const struct nib_tree *type = nib_tree_get(part, "type"), *words = nib_tree_get(part, "text");
        if (!nib_tree_is_text(type, "text") && !nib_tree_is_text(type, "input_text") &&
            !nib_tree_is_text(type, "output_text"))
            return nib_chat_bad_value(m, "content[].type", type, "text: the model reads nothing else", err);
        if (!words || words->type != NIB_TREE_STRING)
            return nib_chat_bad_value(m, "content[].text", words, "a string", err);
        NIB_TRY(nib_text_append_string(text, i ? separator : ""));
        NIB_TRY(nib_text_append(text, words->as.text, words->n));
    }
    return NIB_OK;
}

/* A list of text parts to one string. Within a user's turn parts are separate things, elsewhere pieces of one text. */
static enum nib_status join_parts(struct nib_chat_message *m, struct nib_arena *arena, struct nib_error *err)
{
    bool turn = m->role == NIB_CHAT_USER || m->role == NIB_CHAT_TOOL;
    struct nib_text text = {0};
    struct nib_tree *joined = nib_arena_alloc(arena, sizeof *joined);
    enum nib_status status = joined ? append_parts(m, turn ? "\n\n" : "", &text, err) : NIB_E_MEMORY;
    if (status == NIB_OK)
        status = copy_text(&text, arena, joined);
    nib_text_free(&text);
    m->content = joined;
    return status;
}

static bool begins_like_object(const struct nib_tree *text)
{
    size_t i = 0;
    while (i < text->n && strchr(" \t\n\r", text->as.text[i]) && text->as.text[i])
        i++;
    return i < text->n && text->as.text[i] == '{';
}

/* Call arguments to a string that holds an object, or that is not JSON at all (which the reference takes as one
 * parameter named "arguments"). */
static enum nib_status normalise_arguments(struct nib_tree *arguments, struct nib_arena *arena, struct nib_error *err)
{
    struct nib_tree value = *arguments;
    struct nib_tree_member wrapped = {.key = "arguments", .n_key = sizeof "arguments" - 1, .value = *arguments};
    if (value.type == NIB_TREE_NULL) {
        *arguments = (struct nib_tree){.type = NIB_TREE_STRING, .n = 2, .as.text = "{}"};
        return NIB_OK;
    }
    if (value.type == NIB_TREE_STRING) {
        struct nib_tree *inner;
        if (begins_like_object(&value))
            return NIB_OK;
        enum nib_status parsed = nib_tree_parse(value.as.text, value.n, "arguments", arena, &inner, NULL);
        if (parsed == NIB_E_FORMAT || parsed == NIB_E_MEMORY)
            return parsed == NIB_E_MEMORY ? parsed : NIB_OK;
    }
    if (value.type != NIB_TREE_OBJECT)
        value = (struct nib_tree){.type = NIB_TREE_OBJECT, .n = 1, .as.member = &wrapped};
    struct nib_text text = {0};
    enum nib_status status = nib_tree_write(&value, "arguments", &text, err);
    if (status == NIB_OK)
        status = copy_text(&text, arena, arguments);
    nib_text_free(&text);
    return status;
}

enum nib_status nib_chat_normalise(struct nib_chat_list *list, struct nib_arena *arena, struct nib_error *err)
{
    for (size_t i = 0; i < list->n; i++) {
        struct nib_chat_message *m = &list->message[i];
        if (m->role == NIB_CHAT_OTHER_ROLE)
            return nib_chat_bad_value(m, "role", m->role_text, "system, user, assistant or tool", err);
        if (m->role == NIB_CHAT_DEVELOPER) {
            m->role = NIB_CHAT_SYSTEM; /* V4's own developer role is something else: a search engine's turn */
        } else if (m->role == NIB_CHAT_FUNCTION) {
            m->role = NIB_CHAT_TOOL;
            m->call_id = NULL;
        }
        if (!m->content || m->content->type == NIB_TREE_NULL)
            m->content = &empty_text;
        else if (m->content->type == NIB_TREE_ARRAY)
            NIB_TRY(join_parts(m, arena, err));
        if (!m->reasoning || m->reasoning->type == NIB_TREE_NULL)
            m->reasoning = m->reasoning_alias;
        for (size_t k = 0; m->tool_calls && m->tool_calls->type == NIB_TREE_ARRAY && k < m->tool_calls->n; k++) {
            const struct nib_tree *function = nib_tree_get(&m->tool_calls->as.item[k], "function");
            struct nib_tree *arguments = nib_tree_get(function, "arguments");
            if (arguments)
                NIB_TRY(normalise_arguments(arguments, arena, err));
        }
    }
    return NIB_OK;
}
