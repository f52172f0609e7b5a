/* A program run on a pseudo-terminal, as a person at a keyboard would: type, wait for what appears, look at it. */
#ifndef NIB_TEST_TERMINAL_H
#define NIB_TEST_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct terminal {
    int    fd;
    pid_t  pid;
    char  *seen; /* [n] all that was written, NUL behind */
    size_t n, mark;
    bool   ended; /* the other side is closed */
};

/* Start a program; argv ends with NULL, argv[0] is its path. terminal_type becomes TERM; no_color sets NO_COLOR. */
void terminal_start(struct terminal *t, const char *const *argv, const char *terminal_type, bool no_color,
                    int n_columns);

/* Type bytes; what appears meanwhile is read, so that neither side waits for the other. */
void terminal_type(struct terminal *t, const char *bytes, size_t n);

/* Wait until `text` appears behind the mark, and move the mark behind it. Fails the test after minutes, or when the
 * program ends first; the screen is then printed. Returns what was written between the old mark and the text, valid
 * until the next call. */
const char *terminal_wait(struct terminal *t, const char *text);

/* Wait until the program has ended; its wait status. The terminal is closed. */
int terminal_end(struct terminal *t);

#endif
