/* Conversations as files: JSON that people can read, with a name and a version of its own so that nothing else is
 * taken for one. Only the words are kept. What the engine held follows from them, to the bit, and is computed again
 * by the next question. */
#include "chat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "input.h"

#define FORMAT  "nibble chat"
#define VERSION 1

/* ---- Reading ---- */

/* NULL if these are the messages of a conversation, as chat_turn.c makes them; else what is wrong with message
 * *place. */
static const char *check_messages(const json_t *messages, size_t *place)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};

    for (*place = 0; *place < json_array_size(messages); ++*place) {
        const json_t *m = json_array_get(messages, *place);
        const char   *role = json_string_value(json_object_get(m, "role"));
        bool          known = false;
        for (size_t i = 0; role && i < sizeof roles / sizeof roles[0]; i++)
            known |= strcmp(role, roles[i]) == 0;
        if (!known)
            return "its role is not system, user, assistant or tool";
        if (!json_is_string(json_object_get(m, "content")))
            return "its content is not a string";
    }
    return NULL;
}

/* The file's object, or NULL; why was told if `loud`. */
static json_t *read_file(const char *path, bool loud)
{
    json_error_t problem;
    struct stat  there;
    char        *text = NULL;
    size_t       n_bytes = 0;

    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) { /* others may never end */
        if (loud)
            (void)cli_fail("/load: '%s' is not a regular file; nothing is changed", path);
        return NULL;
    }
    if (!input_read_file("/load", path, &text, &n_bytes))
        return NULL;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &problem);
    free(text);
    if (!root && loud)
        (void)cli_fail("/load: '%s', line %d, column %d: %s; nothing is changed", path, problem.line, problem.column,
                       problem.text);
    if (!root)
        return NULL;
    const char *format = json_string_value(json_object_get(root, "format"));
    if (format && strcmp(format, FORMAT) == 0)
        return root;
    if (loud)
        (void)cli_fail("/load: '%s' is not a saved conversation (its \"format\" is not \"%s\"); nothing is changed",
                       path, FORMAT);
    json_decref(root);
    return NULL;
}

static int32_t think_of(const json_t *root)
{
    const char *name = json_string_value(json_object_get(root, "think"));

    for (int32_t i = 0; name && prompt_think_names[i]; i++)
        if (strcmp(name, prompt_think_names[i]) == 0)
            return i;
    return -1;
}

/* Whether this can be rendered as a prompt; a conversation of nothing but a system message can later. */
static bool renders(const struct chat *c, const json_t *messages)
{
    struct nib_prompt text = {0};
    struct nib_ids    ids = {0};
    char             *dumped = json_dumps(messages, JSON_COMPACT);

    int code = !dumped                         ? cli_fail_memory()
               : json_array_size(messages) == 0 ? CLI_OK
                                                : prompt_render(c->s, &c->rules, dumped, c->tools, &text, &ids);
    free(dumped);
    nib_prompt_free(&text);
    nib_ids_free(&ids);
    return code == CLI_OK;
}

static bool take(struct chat *c, const char *path, const json_t *root)
{
    const json_t *version = json_object_get(root, "version");
    json_t       *messages = json_object_get(root, "messages");
    const int32_t think = think_of(root);
    size_t        place = 0;

    if (!json_is_integer(version) || json_integer_value(version) != VERSION) {
        (void)cli_fail("/load: '%s' has another version than %d, the one that this nibble reads; nothing is changed",
                       path, VERSION);
        return false;
    }
    if (think < 0 || !json_is_array(messages)) {
        (void)cli_fail("/load: '%s': %s; nothing is changed", path,
                       think < 0 ? "\"think\" is not off, low, high or max" : "\"messages\" is not an array");
        return false;
    }
    const char *wrong = check_messages(messages, &place);
    if (wrong) {
        (void)cli_fail("/load: '%s', message %zu: %s; nothing is changed", path, place, wrong);
        return false;
    }
    if (!renders(c, messages))
        return false;
    json_incref(messages);
    json_decref(c->messages);
    c->messages = messages;
    c->rules.think = think;
    return true;
}

bool chat_load(struct chat *c, const char *path)
{
    json_t *root = read_file(path, true);
    bool    ok = root && take(c, path, root);

    json_decref(root);
    return ok;
}

/* ---- Writing ---- */

/* Beside the file, then in its place when all of it is on disk: an earlier one is never half gone. */
static bool write_file(const char *path, const json_t *root)
{
    const size_t room = strlen(path) + 8;
    char        *beside = malloc(room);
    bool         ok = false;
    int          fd = -1;

    if (!beside)
        return false;
    (void)snprintf(beside, room, "%s.XXXXXX", path);
    fd = mkstemp(beside); /* for its owner only: it tells what was said */
    if (fd >= 0) {
        ok = json_dumpfd(root, fd, JSON_INDENT(2)) == 0 && write(fd, "\n", 1) == 1 && fsync(fd) == 0;
        ok = close(fd) == 0 && ok && rename(beside, path) == 0;
        if (!ok) {
            const int saved = errno;
            (void)unlink(beside);
            errno = saved;
        }
    }
    free(beside);
    return ok;
}

bool chat_save(const struct chat *c, const char *path)
{
    struct stat there;

    if (stat(path, &there) == 0) {
        json_t *root = read_file(path, false);
        if (!root) {
            (void)cli_fail("/save: '%s' is there and is not a saved conversation; it is left alone", path);
            return false;
        }
        json_decref(root);
    }
    json_t *root = json_pack("{s:s, s:i, s:s, s:O}", "format", FORMAT, "version", VERSION, "think",
                             prompt_think_names[c->rules.think], "messages", c->messages);
    errno = 0;
    const bool ok = root && write_file(path, root);
    if (!ok)
        (void)cli_fail("/save: cannot write '%s': %s", path, errno ? strerror(errno) : "memory is used up");
    json_decref(root);
    return ok;
}
