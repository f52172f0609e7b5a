/* Reading the prompt, rendering it as a conversation, encoding it. */
#include "run_prompt.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "input.h"

const char *const prompt_think_names[] = {"off", "low", "high", "max", NULL};
const char *const prompt_profile_names[] = {"auto", "ga", "preview", NULL};

int prompt_check(const struct prompt_options *o, bool chat)
{
    const char *chat_only = o->system          ? "--system"
                            : o->think_given   ? "--think"
                            : o->profile_given ? "--chat-profile"
                            : o->allow_control ? "--allow-control-tokens"
                            : o->tools         ? "--tools"
                                               : NULL;

    if (o->text && o->file)
        return cli_usage("run: -p and -f both give a prompt; wanted one of them");
    if (!o->text && !o->file && !chat)
        return cli_usage("run: no prompt; give one with -p TEXT or -f FILE");
    if (o->raw && chat_only)
        return cli_usage("run: --raw takes the prompt as it is, so %s does not go with it", chat_only);
    return CLI_OK;
}

/* *owned is what must be freed. */
static int read_prompt(const struct prompt_options *o, const char **text, size_t *n_bytes, char **owned)
{
    *owned = NULL;
    if (o->text) {
        *text = o->text;
        *n_bytes = strlen(o->text);
    } else {
        if (!input_read_file("-f", o->file, owned, n_bytes))
            return CLI_FAILED;
        *text = *owned;
        /* Editors and echo end a text with a newline that nobody meant to say. */
        if (!o->raw && *n_bytes > 0 && (*text)[*n_bytes - 1] == '\n')
            --*n_bytes;
    }
    return CLI_OK;
}

int prompt_add_message(json_t *messages, const char *what, const char *role, const char *text, size_t n_bytes)
{
    size_t valid = input_utf8_valid_bytes(text, n_bytes);

    if (valid != n_bytes)
        return cli_fail("%s: byte 0x%02x at offset %zu is not UTF-8", what, (unsigned)(unsigned char)text[valid],
                        valid);
    json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", text, n_bytes);
    if (!message || json_array_append_new(messages, message) != 0)
        return cli_fail_memory();
    return CLI_OK;
}

int prompt_profile(const struct session *s, const struct prompt_options *o, enum nib_chat_profile *out)
{
    struct nib_error err = {0};
    bool             guessed = false;

    *out = (enum nib_chat_profile)o->profile;
    if (*out == NIB_CHAT_AUTO) {
        enum nib_status status = nib_chat_profile_detect(s->dir, out, &guessed, &err);
        if (status != NIB_OK)
            return session_fail(status, &err);
    }
    const char *name = *out == NIB_CHAT_PREVIEW ? "preview" : "ga";
    if (guessed && !s->bundled)
        cli_note("warning: nothing in '%s' says which prompt rules it wants; using %s (see --chat-profile)", s->dir,
                 name);
    else if (s->options->verbose)
        cli_note("chat profile: %s", name);
    return CLI_OK;
}

int prompt_read_tools(const struct prompt_options *o, char **out)
{
    json_error_t problem;
    size_t       n_bytes = 0;

    *out = NULL;
    if (!o->tools)
        return CLI_OK;
    if (!input_read_file("--tools", o->tools, out, &n_bytes))
        return CLI_FAILED;
    json_t      *tools = json_loadb(*out, n_bytes, 0, &problem);
    const bool   is_json = tools != NULL, is_array = json_is_array(tools);
    const size_t n = json_array_size(tools);
    json_decref(tools);
    if (is_array && n > 0)
        return CLI_OK;
    free(*out);
    *out = NULL;
    if (is_array)
        return CLI_OK;
    if (is_json)
        return cli_fail("--tools: '%s' is not a JSON array of tools", o->tools);
    return cli_fail("--tools: '%s', line %d, column %d: %s", o->tools, problem.line, problem.column, problem.text);
}

static int encode(const struct session *s, const char *text, size_t n_bytes, const struct nib_range *literal,
                  size_t n_literal, struct nib_ids *out)
{
    struct nib_error err = {0};
    enum nib_status  status = nib_tokenizer_encode(s->tokenizer, text, n_bytes, literal, n_literal, out, &err);

    return status == NIB_OK ? CLI_OK : session_fail(status, &err);
}

static int encode_raw(const struct session *s, const char *text, size_t n_bytes, struct nib_ids *out)
{
    size_t      n_bos = 0;
    const char *bos = nib_tokenizer_bytes(s->tokenizer, s->info->bos_id, &n_bos, NULL);

    if (!bos)
        return cli_fail("the tokenizer has no token %d, which the model calls its beginning of sentence",
                        s->info->bos_id);
    if (n_bytes >= n_bos && memcmp(text, bos, n_bos) == 0)
        return encode(s, text, n_bytes, NULL, 0, out);

    char *whole = malloc(n_bos + n_bytes + 1);
    if (!whole)
        return cli_fail_memory();
    memcpy(whole, bos, n_bos);
    memcpy(whole + n_bos, text, n_bytes);
    int code = encode(s, whole, n_bos + n_bytes, NULL, 0, out);
    free(whole);
    return code;
}

int prompt_render(const struct session *s, const struct prompt_rules *r, const char *messages, const char *tools,
                  struct nib_prompt *text, struct nib_ids *ids)
{
    struct nib_chat_options options;
    struct nib_error        err = {0};

    nib_chat_options_init(&options);
    options.profile = r->profile;
    options.thinking = r->think > 0;
    options.effort = (enum nib_effort)r->think;
    options.add_generation_prompt = !r->as_reference;
    options.drop_thinking = !r->keep_thinking;
    enum nib_status status = nib_chat_encode(&options, messages, tools, NULL, text, &err);
    if (status != NIB_OK)
        return session_fail(status, &err);
    return encode(s, text->text.data, text->text.n, text->content, r->allow_control ? 0 : text->n_content, ids);
}

static int encode_chat(const struct session *s, const struct prompt_options *o, const char *text, size_t n_bytes,
                       struct nib_ids *out, bool *has_tools)
{
    struct prompt_rules rules = {.think = o->think, .allow_control = o->allow_control};
    struct nib_prompt   prompt = {0};
    json_t             *messages = json_array();
    char               *dumped = NULL, *tools = NULL;

    int code = prompt_profile(s, o, &rules.profile);
    if (code == CLI_OK)
        code = prompt_read_tools(o, &tools);
    if (code == CLI_OK && o->system)
        code = prompt_add_message(messages, "--system", "system", o->system, strlen(o->system));
    if (code == CLI_OK)
        code = prompt_add_message(messages, o->text ? "-p" : "-f", "user", text, n_bytes);
    if (code == CLI_OK) {
        dumped = json_dumps(messages, JSON_COMPACT);
        code = dumped ? prompt_render(s, &rules, dumped, tools, &prompt, out) : cli_fail_memory();
    }
    *has_tools = tools != NULL;
    free(tools);
    free(dumped);
    nib_prompt_free(&prompt);
    json_decref(messages);
    return code;
}

int prompt_encode(struct session *s, const struct prompt_options *o, struct nib_ids *out, bool *has_tools)
{
    const char *text = NULL;
    char       *owned = NULL;
    size_t      n_bytes = 0;

    *has_tools = false;
    int code = read_prompt(o, &text, &n_bytes, &owned);
    if (code == CLI_OK)
        code = o->raw ? encode_raw(s, text, n_bytes, out) : encode_chat(s, o, text, n_bytes, out, has_tools);
    free(owned);
    return code;
}
