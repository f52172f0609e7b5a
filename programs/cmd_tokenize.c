/* nibble tokenize: text to ids and back, and what a conversation looks like to the model. Only the tokenizer is
 * read. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "cli.h"
#include "input.h"
#include "nibble.h"
#include "output.h"
#include "run_prompt.h"
#include "session.h"

struct tokenize_options {
    struct cli_engine_options engine; /* of these, the model alone */
    struct prompt_options     prompt; /* file and text: what is encoded or decoded */
    const char               *chat;
    bool                      decode, json, ids_only, literal, as_reference, keep_thinking;
};

/* What was asked for; owned unless it is the command line's. */
struct text {
    char  *data;
    size_t n;
};

static int check(const struct tokenize_options *o)
{
    const bool  chat_rules = o->prompt.tools || o->prompt.think_given || o->prompt.profile_given ||
                            o->prompt.allow_control || o->as_reference || o->keep_thinking;
    const char *other = o->prompt.text ? "TEXT" : o->prompt.file ? "-f" : NULL;

    if (o->prompt.text && o->prompt.file)
        return cli_usage("tokenize: TEXT and -f both give a text; wanted one of them");
    if (o->chat && other)
        return cli_usage("tokenize: --chat and %s both say what to encode; wanted one of them", other);
    if (o->chat && o->decode)
        return cli_usage("tokenize: --chat encodes and --decode decodes; wanted one of them");
    if (o->decode && (o->ids_only || o->literal))
        return cli_usage("tokenize: %s is for encoding, not for --decode",
                         o->ids_only ? "--ids" : "--no-control-tokens");
    if (o->chat && o->literal)
        return cli_usage("tokenize: --no-control-tokens is for plain text; in --chat it is so without it");
    if (!o->chat && chat_rules)
        return cli_usage("tokenize: --tools, --think and what else is about conversations goes with --chat");
    if (o->json && o->ids_only)
        return cli_usage("tokenize: --json and --ids are two forms of the result; wanted one of them");
    return CLI_OK;
}

static int read_text(const struct tokenize_options *o, struct text *out)
{
    if (!o->prompt.text)
        return input_read_file("-f", o->prompt.file ? o->prompt.file : "-", &out->data, &out->n) ? CLI_OK : CLI_FAILED;
    out->n = strlen(o->prompt.text);
    out->data = malloc(out->n + 1);
    if (!out->data)
        return cli_fail_memory();
    memcpy(out->data, o->prompt.text, out->n + 1);
    return CLI_OK;
}

/* ---- Decoding ---- */

static bool is_all_blank(const struct text *t)
{
    return strspn(t->data, " \t\r\n,[]") == t->n;
}

/* Exactly the tokens' bytes, with nothing behind. */
static int print_decoded(const struct session *s, const struct tokenize_options *o, const int32_t *id, int32_t n)
{
    struct nib_text  text = {0};
    struct nib_error err = {0};
    size_t           n_bytes;

    for (int32_t i = 0; i < n; i++) {
        const char *bytes = nib_tokenizer_bytes(s->tokenizer, id[i], &n_bytes, NULL);
        if (!bytes)
            return cli_fail("id %d at place %d is no token of this tokenizer", id[i], i);
        if (!o->json)
            (void)fwrite(bytes, 1, n_bytes, stdout);
    }
    if (!o->json)
        return CLI_OK;
    enum nib_status status = nib_tokenizer_decode(s->tokenizer, id, (size_t)n, false, &text, &err);
    int             code = status == NIB_OK
                               ? output_json(json_pack("{s:s%}", "text", text.data ? text.data : "", text.n))
                               : session_fail(status, &err);
    nib_text_free(&text);
    return code;
}

static int decode(const struct session *s, const struct tokenize_options *o)
{
    struct text text = {0};
    int32_t    *ids = NULL, n = 0;
    int         code = read_text(o, &text);

    if (code == CLI_OK && strlen(text.data) != text.n)
        code = cli_fail("--decode: byte 0x00 at offset %zu; wanted whole numbers separated by commas",
                        strlen(text.data));
    if (code == CLI_OK && !is_all_blank(&text) &&
        !input_text_ids("--decode", text.data, text.n, nib_tokenizer_n_ids(s->tokenizer), &ids, &n))
        code = o->prompt.text ? CLI_USAGE : CLI_FAILED;
    if (code == CLI_OK)
        code = print_decoded(s, o, ids, n);
    free(ids);
    free(text.data);
    return code;
}

/* ---- Encoding ---- */

/* Bytes of the character at `bytes` that can be shown as it is; 0: there is none. */
static size_t visible_bytes(const char *bytes, size_t n)
{
    const unsigned char c = (unsigned char)bytes[0];
    const size_t        need = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;

    if (need > n || input_utf8_valid_bytes(bytes, need) != need)
        return 0;
    return c < 0x20 || c == 0x7f || (c == 0xc2 && (unsigned char)bytes[1] < 0xa0) ? 0 : need;
}

/* A token's bytes with what cannot be seen spelled out; bytes that are no characters as \xNN. */
static void print_piece(const char *bytes, size_t n)
{
    (void)putchar('"');
    for (size_t i = 0; i < n;) {
        const size_t visible = visible_bytes(bytes + i, n - i);
        switch (bytes[i]) {
        case '\n': (void)fputs("\\n", stdout); break;
        case '\t': (void)fputs("\\t", stdout); break;
        case '\r': (void)fputs("\\r", stdout); break;
        case '"':
        case '\\': (void)printf("\\%c", bytes[i]); break;
        default:
            if (visible)
                (void)fwrite(bytes + i, 1, visible, stdout);
            else
                (void)printf("\\x%02x", (unsigned char)bytes[i]);
            break;
        }
        i += visible ? visible : 1;
    }
    (void)putchar('"');
}

static json_t *piece_json(const char *bytes, size_t n)
{
    struct nib_utf8_stream u;
    struct nib_text        text = {0};
    json_t                *piece = NULL;

    nib_utf8_stream_init(&u);
    if (nib_utf8_stream_push(&u, bytes, n, &text) == NIB_OK && nib_utf8_stream_end(&u, &text) == NIB_OK)
        piece = json_stringn(text.data ? text.data : "", text.n);
    nib_text_free(&text);
    return piece;
}

static int print_encoded_json(const struct session *s, const struct nib_prompt *rendered, const struct nib_ids *ids)
{
    json_t *o = json_object(), *list = json_array(), *pieces = json_array();
    bool    ok = true;

    for (size_t i = 0; i < ids->n; i++) {
        size_t      n = 0;
        const char *bytes = nib_tokenizer_bytes(s->tokenizer, ids->id[i], &n, NULL);
        ok = ok && json_array_append_new(list, json_integer(ids->id[i])) == 0 &&
             json_array_append_new(pieces, piece_json(bytes ? bytes : "", n)) == 0;
    }
    if (rendered)
        ok = ok && json_object_set_new(o, "text", json_stringn(rendered->text.data, rendered->text.n)) == 0;
    ok = json_object_set_new(o, "ids", list) == 0 && json_object_set_new(o, "pieces", pieces) == 0 && ok;
    if (ok)
        return output_json(o);
    json_decref(o);
    return cli_fail_memory();
}

static int print_encoded(const struct session *s, const struct tokenize_options *o, const struct nib_prompt *rendered,
                         const struct nib_ids *ids)
{
    if (o->json)
        return print_encoded_json(s, rendered, ids);
    if (rendered && !o->ids_only) {
        (void)fwrite(rendered->text.data, 1, rendered->text.n, stdout);
        (void)fputs("\n\n", stdout);
    }
    for (size_t i = 0; i < ids->n; i++) {
        size_t      n = 0;
        const char *bytes = nib_tokenizer_bytes(s->tokenizer, ids->id[i], &n, NULL);
        if (o->ids_only) {
            (void)printf(i ? " %d" : "%d", ids->id[i]);
            continue;
        }
        (void)printf("%7d  ", ids->id[i]);
        print_piece(bytes ? bytes : "", n);
        (void)putchar('\n');
    }
    if (o->ids_only)
        (void)putchar('\n');
    return CLI_OK;
}

static int encode_text(const struct session *s, const struct tokenize_options *o)
{
    struct text      text = {0};
    struct nib_ids   ids = {0};
    struct nib_error err = {0};
    int              code = read_text(o, &text);

    if (code == CLI_OK) {
        const struct nib_range all = {0, text.n};
        enum nib_status        status = nib_tokenizer_encode(s->tokenizer, text.data, text.n, &all, o->literal ? 1 : 0,
                                                      &ids, &err);
        code = status == NIB_OK ? print_encoded(s, o, NULL, &ids) : session_fail(status, &err);
    }
    nib_ids_free(&ids);
    free(text.data);
    return code;
}

/* ---- Conversations ---- */

/* An array of messages stays the text it was, with the numbers as they are spelled; an object's are written anew. */
static int split_chat(const char *path, const struct text *file, json_t *root, char **messages, char **tools)
{
    json_t *list = json_is_object(root) ? json_object_get(root, "messages") : root;
    json_t *offered = json_is_object(root) ? json_object_get(root, "tools") : NULL;

    if (!json_is_array(list))
        return cli_fail("--chat: '%s' is neither an array of messages nor an object with one as \"messages\"", path);
    *messages = list == root ? strdup(file->data) : json_dumps(list, JSON_COMPACT);
    if (!*messages)
        return cli_fail_memory();
    if (*tools || !offered || json_is_null(offered))
        return CLI_OK;
    if (!json_is_array(offered))
        return cli_fail("--chat: '%s': \"tools\" is not an array", path);
    *tools = json_dumps(offered, JSON_COMPACT);
    return *tools ? CLI_OK : cli_fail_memory();
}

static int read_chat(const char *path, char **messages, char **tools)
{
    json_error_t problem;
    struct text  file = {0};

    if (!input_read_file("--chat", path, &file.data, &file.n))
        return CLI_FAILED;
    json_t *root = json_loadb(file.data, file.n, JSON_DECODE_INT_AS_REAL, &problem);
    int     code;
    if (!root)
        code = cli_fail("--chat: '%s', line %d, column %d: %s", path, problem.line, problem.column, problem.text);
    else
        code = split_chat(path, &file, root, messages, tools);
    json_decref(root);
    free(file.data);
    return code;
}

static int encode_chat(const struct session *s, const struct tokenize_options *o)
{
    struct prompt_rules rules = {.think = o->prompt.think, .allow_control = o->prompt.allow_control,
                                 .as_reference = o->as_reference, .keep_thinking = o->keep_thinking};
    struct nib_prompt   text = {0};
    struct nib_ids      ids = {0};
    char               *messages = NULL, *tools = NULL;

    int code = prompt_read_tools(&o->prompt, &tools);
    if (code == CLI_OK)
        code = read_chat(o->chat, &messages, &tools);
    if (code == CLI_OK)
        code = prompt_profile(s, &o->prompt, &rules.profile);
    if (code == CLI_OK)
        code = prompt_render(s, &rules, messages, tools, &text, &ids);
    if (code == CLI_OK)
        code = print_encoded(s, o, &text, &ids);
    nib_prompt_free(&text);
    nib_ids_free(&ids);
    free(messages);
    free(tools);
    return code;
}

static int tokenize(struct session *s, const struct tokenize_options *o)
{
    int code = session_find(s, &o->engine);

    if (code == CLI_OK)
        code = session_open_tokenizer(s);
    if (code == CLI_OK)
        code = o->decode ? decode(s, o) : o->chat ? encode_chat(s, o) : encode_text(s, o);
    return code;
}

int cmd_tokenize(int argc, char **argv)
{
    struct tokenize_options o = {0};
    struct session          s;
    int                     code;

    const struct cli_option own[] = {
        {.name = "--model", .alias = "-m", .kind = CLI_KIND_TEXT, .value = &o.engine.model, .metavar = "DIR",
         .help = "checkpoint folder, or a tokenizer.json; the bundled model without it"},
        {.name = "--file", .alias = "-f", .kind = CLI_KIND_TEXT, .value = &o.prompt.file, .metavar = "FILE",
         .help = "take the text from a file, every byte of it; - is standard input, as is no text at all"},
        {.name = "--decode", .kind = CLI_KIND_FLAG, .value = &o.decode,
         .help = "the text is ids, separated by commas or white space; print exactly their bytes"},
        {.name = "--ids", .kind = CLI_KIND_FLAG, .value = &o.ids_only, .help = "print the ids alone, in one line"},
        {.name = "--no-control-tokens", .kind = CLI_KIND_FLAG, .value = &o.literal,
         .help = "control tokens written in the text are plain text"},
        {.name = "--json", .kind = CLI_KIND_FLAG, .value = &o.json,
         .help = "print the result as JSON: ids, pieces; with --chat and --decode text"},
    };
    const struct cli_option chat[] = {
        {.name = "--chat", .kind = CLI_KIND_TEXT, .value = &o.chat, .metavar = "FILE",
         .help = "encode a conversation: a JSON array of messages, or an object with messages and tools"},
        {.name = "--tools", .kind = CLI_KIND_TEXT, .value = &o.prompt.tools, .metavar = "FILE",
         .help = "functions that the model may call, a JSON array"},
        {.name = "--think", .kind = CLI_KIND_CHOICE, .value = &o.prompt.think, .given = &o.prompt.think_given,
         .choices = prompt_think_names, .help = "let the model reason first; off"},
        {.name = "--chat-profile", .kind = CLI_KIND_CHOICE, .value = &o.prompt.profile,
         .given = &o.prompt.profile_given, .choices = prompt_profile_names,
         .help = "which release's prompt rules; auto: from the checkpoint folder"},
        {.name = "--keep-thinking", .kind = CLI_KIND_FLAG, .value = &o.keep_thinking,
         .help = "reasoning of earlier turns stays in"},
        {.name = "--no-generation-prompt", .kind = CLI_KIND_FLAG, .value = &o.as_reference,
         .help = "exactly the release's encoder: no turn is opened where it opens none"},
        {.name = "--allow-control-tokens", .kind = CLI_KIND_FLAG, .value = &o.prompt.allow_control,
         .help = "control tokens written in messages count; otherwise they are plain text"},
    };
    const struct cli_group groups[] = {
        {"Text", own, sizeof own / sizeof own[0]},
        {"Conversations", chat, sizeof chat / sizeof chat[0]},
    };
    const struct cli_syntax syntax = {
        .command = "tokenize",
        .usage = "[-m DIR] [TEXT | -f FILE | --chat FILE] [options]",
        .about = "Prints the token ids of a text, each with the piece of text that it stands for. Nothing is added in\n"
                 "front or behind. --decode goes the other way. --chat shows a conversation as the model sees it.",
        .groups = groups,
        .n_groups = 2,
        .operand = &o.prompt.text,
        .operand_name = "TEXT",
        .operand_optional = true,
    };
    if (!cli_parse(&syntax, argc, argv, &code))
        return code;
    code = check(&o);
    if (code != CLI_OK)
        return code;
    code = tokenize(&s, &o);
    session_close(&s);
    return code;
}
