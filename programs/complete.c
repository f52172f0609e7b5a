/* Candidates from the tables of arguments.h. */
#include "complete.h"

#include <stdio.h>
#include <string.h>

struct cli_words cli_completing;

void cli_candidate(const char *word, const char *candidate, const char *text)
{
    if (strncmp(candidate, word, strlen(word)) == 0)
        (void)printf("%s\t%.*s\n", candidate, (int)strcspn(text, "\n"), text);
}

/* By its name or alias, with a value joined to it or not. */
static const struct cli_option *find_option(const struct cli_syntax *s, const char *word)
{
    const size_t n = strcspn(word, "=");

    for (int g = 0; g < s->n_groups; g++)
        for (int i = 0; i < s->groups[g].n; i++) {
            const struct cli_option *o = &s->groups[g].options[i];
            if ((strlen(o->name) == n && memcmp(o->name, word, n) == 0) || (o->alias && strcmp(o->alias, word) == 0))
                return o;
        }
    return NULL;
}

/* Names of things on the disk are known by how the help calls them. */
static void list_names(const char *kind)
{
    if (strcmp(kind, "F") == 0 || strstr(kind, "FILE"))
        (void)puts(":files");
    else if (strstr(kind, "DIR") || strcmp(kind, "SRC") == 0)
        (void)puts(":folders");
}

/* before: what the word holds in front of the value, "--kv=" or "". */
static void list_values(const struct cli_option *o, const char *word, const char *before)
{
    char candidate[256];

    for (int i = 0; o->kind == CLI_KIND_CHOICE && o->choices[i]; i++) {
        (void)snprintf(candidate, sizeof candidate, "%s%s", before, o->choices[i]);
        cli_candidate(word, candidate, "");
    }
    if (o->kind == CLI_KIND_TEXT)
        list_names(o->metavar);
}

static void list_options(const struct cli_syntax *s, const char *word)
{
    for (int g = 0; g < s->n_groups; g++)
        for (int i = 0; i < s->groups[g].n; i++) {
            const struct cli_option *o = &s->groups[g].options[i];
            cli_candidate(word, o->name, o->help);
            if (o->alias)
                cli_candidate(word, o->alias, o->help);
        }
    cli_candidate(word, "--help", "show the command's help");
}

void cli_complete(const struct cli_syntax *s)
{
    const struct cli_option *pending = NULL; /* an option whose value comes next */
    const char              *word = cli_completing.word[cli_completing.n - 1];
    bool                     options_ended = false;

    for (int i = 1; i < cli_completing.n - 1; i++) {
        const char              *w = cli_completing.word[i];
        const struct cli_option *o = pending || options_ended ? NULL : find_option(s, w);
        options_ended |= !pending && strcmp(w, "--") == 0;
        pending = o && o->kind != CLI_KIND_FLAG && !strchr(w, '=') ? o : NULL;
    }
    if (pending) {
        list_values(pending, word, "");
    } else if (!options_ended && strncmp(word, "--", 2) == 0 && strchr(word, '=')) {
        char                     before[128];
        const struct cli_option *o = find_option(s, word);
        (void)snprintf(before, sizeof before, "%.*s=", (int)strcspn(word, "="), word);
        if (o)
            list_values(o, word, before);
    } else {
        if (s->operand && (options_ended || word[0] != '-'))
            list_names(s->operand_name);
        if (!options_ended)
            list_options(s, word);
    }
}
