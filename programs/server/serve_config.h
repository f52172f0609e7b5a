/* Options from a file: lines "name value" or "name = value", names as on the command line; # begins a comment line. */
#ifndef NIB_SERVE_CONFIG_H
#define NIB_SERVE_CONFIG_H

#include "../arguments.h"

struct serve_config {
    char **option; /* [n] owned; option values point into them */
    int    n;
};

/* If argv holds --config FILE, take that file's options, to be followed by argv's own. False: a mistake was reported
 * with its line. */
bool serve_config_apply(struct serve_config *c, int argc, char **argv, const struct cli_syntax *syntax, int *exit_code);
void serve_config_free(struct serve_config *c);

#endif
