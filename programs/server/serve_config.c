/* Each line becomes an option that is parsed like one of the command line. */
#include "serve_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cli.h"
#include "../complete.h"
#include "../input.h"

static const char *find_config(int argc, char **argv)
{
    const char *found = NULL;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            found = argv[i] + 9;
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            found = argv[i + 1];
    }
    return found;
}

/* "name value" to "--name=value"; NULL without memory. */
static char *option_of(const char *line)
{
    const char  *name = line + strspn(line, "-");
    const size_t n_name = strcspn(name, " \t=");
    const char  *value = name + n_name + strspn(name + n_name, " \t=");
    size_t       n_value = strlen(value);
    while (n_value > 0 && strchr(" \t\r", value[n_value - 1]))
        n_value--;
    char *option = malloc(n_name + n_value + 4);
    if (option)
        (void)sprintf(option, n_value ? "--%.*s=%.*s" : "--%.*s", (int)n_name, name, (int)n_value, value);
    return option;
}

static bool take_line(struct serve_config *c, const char *line, const struct cli_syntax *syntax, int *exit_code)
{
    char **options = realloc(c->option, (size_t)(c->n + 1) * sizeof *options);
    if (options)
        c->option = options;
    char *option = options ? option_of(line) : NULL;
    if (!option) {
        *exit_code = cli_fail_memory();
        return false;
    }
    c->option[c->n++] = option;
    char command[] = "serve", *argv[] = {command, option};
    if (strcmp(option, "--help") == 0 || strncmp(option, "--config", 8) == 0) {
        *exit_code = cli_usage("serve: '%s' cannot stand in a file", option);
        return false;
    }
    return cli_parse(syntax, 2, argv, exit_code);
}

bool serve_config_apply(struct serve_config *c, int argc, char **argv, const struct cli_syntax *syntax, int *exit_code)
{
    const char *path = find_config(argc, argv);
    char       *text = NULL;
    size_t      n = 0;
    bool        ok = true;

    if (!path || cli_completing.n > 0)
        return true;
    if (!input_read_file("--config", path, &text, &n)) {
        *exit_code = CLI_FAILED;
        return false;
    }
    if (strlen(text) != n) {
        free(text);
        *exit_code = cli_fail("--config: '%s' holds a NUL byte", path);
        return false;
    }
    int n_line = 0;
    for (char *line = text, *next; ok && line; line = next) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : NULL;
        if (end)
            *end = '\0';
        n_line++;
        line += strspn(line, " \t\r");
        if (!*line || *line == '#')
            continue;
        ok = take_line(c, line, syntax, exit_code);
        if (!ok)
            cli_note("that was line %d of '%s'", n_line, path);
    }
    free(text);
    return ok;
}

void serve_config_free(struct serve_config *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->option[i]);
    free(c->option);
}
