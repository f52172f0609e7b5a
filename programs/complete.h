/* What may stand at the end of a command line, for the shells' completion. The shells' scripts know nothing: they hand
 * the words to `nibble --complete WORD...`, the last of which is the one to be completed, maybe empty, and get
 * candidates, a line each, with a tab and a few words on it behind. Lines ":files" and ":folders" mean that names of
 * those may follow. */
#ifndef NIB_COMPLETE_H
#define NIB_COMPLETE_H

#include "arguments.h"

/* The words behind "nibble" while one is to be completed, the command's name first; n is 0 otherwise. cli_parse looks
 * here, so that the tables that parse a command line complete it too. */
struct cli_words {
    int    n;
    char **word;
};
extern struct cli_words cli_completing;

void cli_complete(const struct cli_syntax *s);

/* A candidate, if it begins as the word does. */
void cli_candidate(const char *word, const char *candidate, const char *text);

#endif
