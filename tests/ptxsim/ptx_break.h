/* PTX with one thing wrong in it, for tests of tests: lines of one entry, found by text, changed. */
#ifndef PTX_BREAK_H
#define PTX_BREAK_H

enum ptx_how {
    PTX_DELETE,   /* the line */
    PTX_REPLACE,  /* the text by `with` */
    PTX_LAST,     /* the line's last operand by `with` */
    PTX_SKIP_WAIT /* the wait always succeeds */
};

struct ptx_breakage {
    const char  *name, *text; /* in the line to be broken */
    int          nth;         /* of the lines that hold the text, from 0; -1: all */
    enum ptx_how how;
    const char  *with;
};

/* The text of DIR/NAME.ptx, NULL if there is none. Freed by the caller, as the next. */
char *ptx_text(const char *dir, const char *name);
/* The text with an entry's lines changed; NULL if there were none to change. */
char *ptx_broken(const char *text, const char *entry, const struct ptx_breakage *b);

#endif
