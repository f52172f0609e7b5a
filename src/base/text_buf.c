/* nib_text carries no capacity, so its capacity is a function of its length: the next power of two. Asking realloc for
 * the size that a block already has costs nothing noticeable. */
#include "base/text_buf.h"

#include <stdlib.h>
#include <string.h>

void nib_text_free(struct nib_text *t)
{
    if (t) {
        free(t->data);
        t->data = NULL;
        t->n = 0;
    }
}

enum nib_status nib_text_reserve(struct nib_text *t, size_t n)
{
    if (n >= SIZE_MAX / 4 || t->n >= SIZE_MAX / 4)
        return NIB_E_MEMORY;
    size_t cap = 16;
    while (cap < t->n + n + 1)
        cap *= 2;
    char *data = realloc(t->data, cap);
    if (!data)
        return NIB_E_MEMORY;
    t->data = data;
    t->data[t->n] = '\0';
    return NIB_OK;
}

enum nib_status nib_text_append(struct nib_text *t, const char *bytes, size_t n)
{
    NIB_TRY(nib_text_reserve(t, n));
    if (n > 0)
        memcpy(t->data + t->n, bytes, n);
    t->n += n;
    t->data[t->n] = '\0';
    return NIB_OK;
}

enum nib_status nib_text_append_string(struct nib_text *t, const char *s)
{
    return nib_text_append(t, s, strlen(s));
}
