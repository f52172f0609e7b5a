/* The tags inside a block of tool calls. */
#ifndef NIB_CHAT_PARSE_TAG_H
#define NIB_CHAT_PARSE_TAG_H

#include <stdbool.h>
#include <stddef.h>

#include "text/chat_texts.h"

#define NIB_MARK_CALLS       "<" NIB_MARK_DSML "tool_calls>"
#define NIB_TAG_BYTES_MAX    4096 /* of one tag; what is longer is text */

enum nib_tag_kind {
    NIB_TAG_NONE,    /* no tag begins here */
    NIB_TAG_PARTIAL, /* the text ends before that can be said */
    NIB_TAG_INVOKE, NIB_TAG_INVOKE_END, NIB_TAG_PARAMETER, NIB_TAG_PARAMETER_END, NIB_TAG_CALLS_END
};

struct nib_tag {
    enum nib_tag_kind kind;
    size_t            n;      /* bytes of the whole tag */
    const char       *name;   /* INVOKE: not empty; PARAMETER; points into the text */
    size_t            n_name;
    bool              string; /* PARAMETER: string="true" */
};

/* The tag that begins at s[0], which is '<'. White space is allowed wherever it separates. */
struct nib_tag nib_tag_read(const char *s, size_t n);

#endif
