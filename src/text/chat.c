/* nib_chat_encode: the chat encoder that ships with DeepSeek-V4, step by step. With add_generation_prompt false it is
 * the reference and nothing else; with true it also takes what clients really send (chat_normalise.c) and always ends
 * where the model is to continue. */
#include "text/chat_render.h"
#include "text/chat_texts.h"

#include <stdlib.h>
#include <string.h>

void nib_chat_options_init(struct nib_chat_options *o)
{
    *o = (struct nib_chat_options){.profile = NIB_CHAT_GA, .drop_thinking = true, .add_bos = true,
                                   .add_generation_prompt = true};
}

void nib_prompt_free(struct nib_prompt *p)
{
    if (!p)
        return;
    nib_text_free(&p->text);
    free(p->content);
    *p = (struct nib_prompt){0};
}

static enum nib_status check_options(struct nib_chat_options *o, struct nib_error *err)
{
    if (o->profile != NIB_CHAT_GA && o->profile != NIB_CHAT_PREVIEW)
        return nib_error_set(err, NIB_E_ARGUMENT, "chat profile: found %d, wanted ga or preview (see "
                             "nib_chat_profile_detect)", (int)o->profile);
    /* The preview models know no low effort; what they think by default is the least there is. */
    if (o->add_generation_prompt && o->profile == NIB_CHAT_PREVIEW && o->effort == NIB_EFFORT_LOW)
        o->effort = NIB_EFFORT_HIGH;
    if (o->thinking && !nib_chat_effort_prefix(o->profile, o->effort))
        return nib_error_set(err, NIB_E_ARGUMENT, "reasoning effort: found %s, wanted %s",
                             o->effort == NIB_EFFORT_LOW ? "low" : "an unknown one",
                             o->profile == NIB_CHAT_PREVIEW ? "high or max" : "low, high or max");
    return NIB_OK;
}

static enum nib_status parse(const char *text, const char *what, struct nib_arena *arena, struct nib_tree **out,
                             struct nib_error *err)
{
    return nib_tree_parse(text, strlen(text), what, arena, out, err);
}

/* Messages as the caller means them, with the tools attached, before merging. */
static enum nib_status read_messages(const struct nib_chat_options *o, const char *messages, const char *tools,
                                     struct nib_arena *arena, struct nib_chat_list *out, struct nib_error *err)
{
    struct nib_tree *array, *tool_array;
    NIB_TRY(parse(messages, "messages", arena, &array, err));
    NIB_TRY(nib_chat_read(array, "messages", arena, out, err));
    if (o->add_generation_prompt) {
        if (!out->n)
            return nib_error_set(err, NIB_E_ARGUMENT, "messages: found an empty array, wanted at least one message");
        NIB_TRY(nib_chat_normalise(out, arena, err));
        struct nib_chat_message *last = &out->message[out->n - 1];
        if (last->role == NIB_CHAT_ASSISTANT && last->prefix)
            last->without_eos = true; /* the answer goes on where this message stops */
    }
    if (!tools)
        return NIB_OK;
    NIB_TRY(parse(tools, "tools", arena, &tool_array, err));
    return nib_chat_attach_tools(out, tool_array, err);
}

static enum nib_status read_context(const struct nib_chat_options *o, const char *context, struct nib_arena *arena,
                                    struct nib_chat_list *out, struct nib_error *err)
{
    struct nib_tree *array;
    *out = (struct nib_chat_list){0};
    if (!context)
        return NIB_OK;
    NIB_TRY(parse(context, "context", arena, &array, err));
    NIB_TRY(nib_chat_read(array, "context", arena, out, err));
    if (o->add_generation_prompt)
        NIB_TRY(nib_chat_normalise(out, arena, err));
    return nib_chat_merge(out, arena);
}

static enum nib_status encode(const struct nib_chat_options *o, const char *messages, const char *tools,
                              const char *context, struct nib_arena *arena, struct nib_prompt *out,
                              struct nib_error *err)
{
    struct nib_chat_list fresh, before, all;
    NIB_TRY(read_messages(o, messages, tools, arena, &fresh, err));
    NIB_TRY(nib_chat_merge(&fresh, arena));
    NIB_TRY(read_context(o, context, arena, &before, err));
    NIB_TRY(nib_chat_join(&before, &fresh, arena, &all));
    NIB_TRY(nib_chat_sort_results(&all, arena));

    if (o->add_bos && !before.n)
        NIB_TRY(nib_chat_put(out, NIB_MARK_BOS));
    bool drop = o->drop_thinking;
    for (size_t i = 0; i < all.n; i++)
        drop = drop && !nib_chat_is_true(all.message[i].tools);
    if (drop && o->thinking) {
        nib_chat_drop(&all);
        nib_chat_drop(&before); /* only its length counts from here on */
    }
    return nib_chat_render(&all, before.n, drop, o, arena, out, err);
}

enum nib_status nib_chat_encode(const struct nib_chat_options *o, const char *messages, const char *tools,
                                const char *context, struct nib_prompt *out, struct nib_error *err)
{
    *out = (struct nib_prompt){0};
    struct nib_chat_options options = *o;
    struct nib_arena arena;
    NIB_TRY(check_options(&options, err));
    nib_arena_init(&arena);
    enum nib_status status = encode(&options, messages, tools, context, &arena, out, err);
    if (status == NIB_OK)
        status = nib_chat_put(out, ""); /* even an empty prompt has its NUL */
    nib_arena_deinit(&arena);
    if (status == NIB_E_MEMORY)
        (void)nib_error_set(err, status, "no memory for the prompt of %zu bytes of messages", strlen(messages));
    if (status != NIB_OK)
        nib_prompt_free(out);
    return status;
}
