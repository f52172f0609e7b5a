/* What the user types: lines with editing and history on a terminal that can do it, plain ones elsewhere. */
#ifndef NIB_CHAT_LINE_H
#define NIB_CHAT_LINE_H

#include <stddef.h>

enum chat_typed {
    CHAT_TYPED_TEXT,        /* may hold line ends; may be empty */
    CHAT_TYPED_INTERRUPTED, /* Ctrl-C: the line was cleared */
    CHAT_TYPED_END,         /* Ctrl-D on an empty line, or the terminal is gone */
    CHAT_TYPED_FAILED       /* too long, or memory is used up; was told */
};

struct chat_line;

/* NULL: memory is used up. One at a time. Until close, the signals that end a program put the terminal back first. */
struct chat_line *chat_line_open(void);
void              chat_line_close(struct chat_line *l);

/* Read one message from standard input. prompt: ASCII. *text, of *n bytes and a NUL, is valid until the next call. */
enum chat_typed chat_line_read(struct chat_line *l, const char *prompt, const char **text, size_t *n);

#endif
