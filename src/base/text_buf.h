/* Growing a nib_text. */
#ifndef NIB_TEXT_BUF_H
#define NIB_TEXT_BUF_H

#include "base/status.h"

/* Make room for n more bytes behind t->n (and the NUL), without changing t->n. *t must be zeroed or made by these
 * functions, which allocate powers of two: appending is linear over all. On NIB_E_MEMORY the text is as before. */
enum nib_status nib_text_reserve(struct nib_text *t, size_t n);

/* Append n bytes, or a string. On NIB_E_MEMORY the text is as before. `bytes` may not point into the text itself. */
enum nib_status nib_text_append(struct nib_text *t, const char *bytes, size_t n);
enum nib_status nib_text_append_string(struct nib_text *t, const char *s);

#endif
