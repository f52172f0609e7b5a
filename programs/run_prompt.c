/* Reading the prompt, rendering it as a conversation, encoding it. */
#include "run_prompt.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "input.h"

int prompt_check(const struct prompt_options *o)
{
    const char *chat_only = o->system          ? "--system"
                            : o->think_given   ? "--think"
                            : o->profile_given ? "--chat-profile"
                            : o->allow_control ? "--allow-control-tokens"
                                               : NULL;

    if (o->text && o->file)
        return cli_usage("run: -p and -f both give a prompt; wanted one of them");
    if (!o->text && !o->file)
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

/* Append {"role": ..., "content": ...}; returns an exit code. */
static int add_message(json_t *messages, const char *what, const char *role, const char *text, size_t n_bytes)
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

static int choose_profile(const struct session *s, const struct prompt_options *o, enum nib_chat_profile *out)
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

static int render(const struct session *s, const struct prompt_options *o, const char *text, size_t n_bytes,
                  struct nib_prompt *out)
{
    struct nib_chat_options options;
    struct nib_error        err = {0};
    json_t                 *messages = json_array();
    char                   *rendered = NULL;
    int                     code = CLI_OK;

    nib_chat_options_init(&options);
    options.thinking = o->think > 0;
    options.effort = (enum nib_effort)o->think;
    options.add_generation_prompt = true;
    code = choose_profile(s, o, &options.profile);
    if (code == CLI_OK && o->system)
        code = add_message(messages, "--system", "system", o->system, strlen(o->system));
    if (code == CLI_OK)
        code = add_message(messages, o->text ? "-p" : "-f", "user", text, n_bytes);
    if (code == CLI_OK) {
        rendered = json_dumps(messages, JSON_COMPACT);
        if (!rendered)
            code = cli_fail_memory();
    }
    if (code == CLI_OK) {
        enum nib_status status = nib_chat_encode(&options, rendered, NULL, NULL, out, &err);
        if (status != NIB_OK)
            code = session_fail(status, &err);
    }
    free(rendered);
    json_decref(messages);
    return code;
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

static int encode_chat(const struct session *s, const struct prompt_options *o, const char *text, size_t n_bytes,
                       struct nib_ids *out)
{
    struct nib_prompt prompt = {0};
    int               code = render(s, o, text, n_bytes, &prompt);

    if (code == CLI_OK)
        code = encode(s, prompt.text.data, prompt.text.n, prompt.content, o->allow_control ? 0 : prompt.n_content, out);
    nib_prompt_free(&prompt);
    return code;
}

int prompt_encode(struct session *s, const struct prompt_options *o, struct nib_ids *out)
{
    const char *text = NULL;
    char       *owned = NULL;
    size_t      n_bytes = 0;

    int code = read_prompt(o, &text, &n_bytes, &owned);
    if (code == CLI_OK)
        code = o->raw ? encode_raw(s, text, n_bytes, out) : encode_chat(s, o, text, n_bytes, out);
    free(owned);
    return code;
}
