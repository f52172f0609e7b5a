/* Which prompt rules a checkpoint wants. The folder's own encoder is a Python file: it is searched as text, never
 * run. */
#include "base/arena.h"
#include "base/file.h"
#include "text/json_tree.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ENCODER_BYTES_MAX   ((size_t)4 << 20)  /* the published ones are 30 kB */
#define TOKENIZER_BYTES_MAX ((size_t)256 << 20)

static enum nib_status refuse(const char *dir, const char *why, struct nib_error *err)
{
    return nib_error_set(err, NIB_E_UNSUPPORTED, "%s: unsupported prompt format: %s", dir, why);
}

/* Read dir/name; *data is NULL without an error where there is no such file. */
static enum nib_status read_optional(const char *dir, const char *name, size_t n_max, char **data, size_t *n,
                                     struct nib_error *err)
{
    struct stat st;
    char *path = nib_path_join(dir, name);
    enum nib_status status = NIB_OK;
    *data = NULL;
    *n = 0;
    if (!path)
        return nib_error_set(err, NIB_E_MEMORY, "%s/%s: no memory for the path", dir, name);
    if (stat(path, &st) == 0)
        status = nib_file_read(path, n_max, data, n, err);
    free(path);
    return status;
}

/* Whether a line of Python begins by giving `name` a value ("name = ", "name: str = "). */
static bool defines(const char *python, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = strstr(python, name); at; at = strstr(at + n, name)) {
        const char *next = at + n + strspn(at + n, " \t");
        if ((at == python || at[-1] == '\n') && (*next == '=' || *next == ':'))
            return true;
    }
    return false;
}

static enum nib_status profile_of_encoder(const char *dir, const char *python, enum nib_chat_profile *out,
                                          struct nib_error *err)
{
    if (defines(python, "DEFAULT_REASONING_EFFORT"))
        *out = NIB_CHAT_GA;
    else if (defines(python, "REASONING_EFFORT_MAX"))
        *out = NIB_CHAT_PREVIEW;
    else
        return refuse(dir, "encoding/encoding_dsv4.py defines neither DEFAULT_REASONING_EFFORT (ga) nor "
                      "REASONING_EFFORT_MAX (preview)", err);
    return NIB_OK;
}

/* Draft-head keys came with the ga models. */
static enum nib_status config_has_draft_keys(const char *dir, bool *out, struct nib_error *err)
{
    char *text;
    size_t n;
    struct nib_tree *config = NULL;
    struct nib_arena arena;
    *out = false;
    NIB_TRY(read_optional(dir, "config.json", ENCODER_BYTES_MAX, &text, &n, err));
    if (!text)
        return NIB_OK;
    nib_arena_init(&arena);
    enum nib_status status = nib_tree_parse(text, n, "config.json", &arena, &config, err);
    for (size_t i = 0; status == NIB_OK && config->type == NIB_TREE_OBJECT && i < config->n; i++)
        *out = *out || (config->as.member[i].n_key > 7 && !memcmp(config->as.member[i].key, "dspark_", 7));
    nib_arena_deinit(&arena);
    free(text);
    return status;
}

/* V4.1 has a token for the system role, which V4 never had, and its own encoder file. */
static enum nib_status refuse_newer(const char *dir, struct nib_error *err)
{
    char *text;
    size_t n;
    NIB_TRY(read_optional(dir, "encoding/encoding.py", ENCODER_BYTES_MAX, &text, &n, err));
    bool encoder = text != NULL;
    free(text);
    if (encoder)
        return refuse(dir, "encoding/encoding.py belongs to V4.1, wanted V4's encoding/encoding_dsv4.py or none", err);
    NIB_TRY(read_optional(dir, "tokenizer.json", TOKENIZER_BYTES_MAX, &text, &n, err));
    bool marker = text && (strstr(text, "\"<｜System｜>\"") || strstr(text, "\"<\\uff5cSystem\\uff5c>\"") ||
                           strstr(text, "\"<\\uFF5CSystem\\uFF5C>\""));
    free(text);
    return marker ? refuse(dir, "tokenizer.json has V4.1's token <｜System｜>, wanted a V4 tokenizer", err) : NIB_OK;
}

enum nib_status nib_chat_profile_detect(const char *dir, enum nib_chat_profile *out, bool *guessed,
                                        struct nib_error *err)
{
    char *python;
    size_t n;
    bool draft = false;
    *out = NIB_CHAT_GA;
    *guessed = false;
    NIB_TRY(refuse_newer(dir, err));
    NIB_TRY(read_optional(dir, "encoding/encoding_dsv4.py", ENCODER_BYTES_MAX, &python, &n, err));
    if (python) {
        enum nib_status status = profile_of_encoder(dir, python, out, err);
        free(python);
        return status;
    }
    NIB_TRY(config_has_draft_keys(dir, &draft, err));
    *guessed = !draft;
    return NIB_OK;
}
